"""The jobs and machines there are: listed, found by name, killed, their results fetched."""

import contextlib
import fnmatch
import functools
import math
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from berg import BergError, checks, job, names, places
from berg.config import Config
from berg.google import api, secret
from berg.google.storage import Bucket, Changed
from berg.inventory import Machine

LOST_AFTER = 60  # seconds without a machine or a final state, after which nobody will write one
BETWEEN_ZONES = 300  # more of them for a slice, which is taken back in one zone before the next one is tried
KILL_PATIENCE = 60  # seconds for a worker to stop its command, which has 30 of them
LEFT_STILL = 120  # seconds without progress of an upload, after which `kill` says what would be lost
OFF = ("STOPPED", "TERMINATED", "SUSPENDED")  # statuses of a machine that is there, but does nothing
GOING = ("STOPPING", *OFF)
# What boot.py says on the serial console, among the kernel's lines: as startup script of the old guest agent, of the
# new one, and as a unit.
STARTUP_LINE = re.compile(
    r'(?:startup-script: |"startup-script"\), command\("[^"]*"\): |^berg: )(?!Going on as )([^\r\n]*)', re.M
)
BEGAN, ENDED = "Found startup-script in metadata.", "Finished running startup scripts."  # there, too
HANDED_OVER, UNIT_ENDED = "Going on as a unit of systemd's", "berg's startup script has ended"  # boot.py's words


class IsSweep(BergError):
    """The name is that of a sweep, not of a job."""


@dataclass
class Entry:
    """A job with the machines that it has at the moment, or a machine without a job."""

    name: str
    state: job.State | None  # None: a machine without a job
    machines: list[Machine]  # by rank
    generation: int = 0
    stored: job.State | None = None  # as it lies in the bucket, where a reader concludes another one
    crew: list[Machine] = field(default_factory=list)  # of a sweep: its machines, whichever job they have

    @property
    def machine(self) -> Machine | None:
        return self.machines[0] if self.machines else None

    @property
    def status(self) -> str:
        status = self.machine.status if self.machine else ""
        if self.state and not (self.state.final and status not in ("", "STOPPING")):
            return self.state.state
        return f"{self.state.state}, machine {status}" if self.state else f"no job, machine {status}"

    @property
    def user(self) -> str:
        if self.state:
            return self.state.job.get("user", "")
        return self.machine.labels.get("berg-user", "") if self.machine else ""

    @property
    def created_at(self) -> str:
        return (self.state.job.get("created_at") if self.state else None) or (
            self.machine.created_at if self.machine else ""
        )

    @property
    def can_end(self) -> bool:
        """Whether it is not over, or has machines that nobody else deletes."""
        is_left = self.machine or (self.state and self.state.state == "LOST" and self.crew)
        return bool(is_left or (self.state and not self.state.final))

    @property
    def place(self) -> places.Place:
        """Where its machines are."""
        return places.of(self.machine.place if self.machine else place_name(self.state))

    @property
    def group(self) -> str:
        """Region of the group that keeps a machine for the job; "" without one."""
        return self.state.job.get("group", "") if self.state else ""

    @property
    def sweep(self) -> str:
        """Name of the sweep that the job belongs to; "" for one on its own."""
        return self.state.job.get("sweep", "") if self.state else ""

    def to_dict(self) -> dict[str, Any]:
        state = asdict(self.state) if self.state else {"state": None, "job": {}}
        return {
            "name": self.name,
            **{key: value for key, value in state.items() if key != "job"},
            **state["job"],
            "user": self.user,
            "created_at": self.created_at,
            "machine_status": self.machine.status if self.machine else None,
            "zone": self.machine.zone if self.machine else state.get("zone", ""),
            "external_ip": self.machine.external_ip if self.machine else "",
            "internal_ip": self.machine.internal_ip if self.machine else "",
            "instances": [describe(machine) for machine in self.machines],
        }


def place_name(state: job.State | None) -> str:
    return state.job.get("place", "gce") if state else "gce"


def describe(machine: Machine) -> dict[str, Any]:
    return {key: getattr(machine, key) for key in ("name", "status", "zone", "external_ip", "internal_ip")}


def conclude(
    state: job.State,
    seconds_since_written: float,
    machines: list[Machine],
    waits: Callable[[], bool],
    last_words: Callable[[Machine], str],
) -> job.State:
    """The state as a reader must see it: a job that is not over, has no machine and waits for none is LOST.

    So is one whose machine, or all that it waits for in its sweep, ended the startup script without a worker.
    """
    alive = [machine for machine in machines if machine.status not in OFF]
    patience = LOST_AFTER + BETWEEN_ZONES * (state.state == "SUBMITTED" and place_name(state) == "tpu")
    if state.final or seconds_since_written < patience or (alive and state.state != "SUBMITTED"):
        return state
    if alive:
        needed = alive if state.job.get("sweep") else alive[:1]  # of a cluster the first one, which leads
        if not all(map(last_words, needed)):
            return state
        first = needed[0]
        mend = "berg reap" if state.job.get("sweep") else f"berg kill {first.name}"
        what = f"the startup script of {first.name} ended without a worker; delete the machine: {mend}"
        return replace(state, state="LOST", reason=f"{what}. The end of its console: {last_words(first)}")
    if waits():
        return state
    what = f"was {state.state} on {state.machine or 'no machine'}"
    until = f"; its results are in the bucket up to {state.synced_until}" if state.synced_until else ""
    return replace(state, state="LOST", reason=f"its machine is gone without a final state; it {what}{until}")


def silent(text: str) -> None:
    pass


def last_words(config: Config, machine: Machine) -> str:
    """The last lines of a machine's startup script if that has ended, "" if it runs or has yet to begin."""
    output = places.of(machine.place).console(config, machine)
    began = output.rfind(BEGAN)
    ended = UNIT_ENDED if output.rfind(HANDED_OVER) > began else ENDED
    return " | ".join(STARTUP_LINE.findall(output)[-4:]) or "…" if output.rfind(ended) > began else ""


def overview(config: Config, user: str | None, prefix: str = "", say: Callable[[str], None] = silent) -> list[Entry]:
    """All jobs and machines of a user (None: everybody's), the newest first; with a prefix, only jobs named so.

    Without the bucket the machines alone, which `say` hears; without any of those, too, that is an error.
    """
    from google.api_core import exceptions

    bucket = Bucket(config)
    _ = config.session
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(places.machines, config)
        try:
            blobs = list(bucket.list(f".berg/jobs/{prefix}", "name,metadata,updated,generation", "**_state.json"))
        except exceptions.NotFound:
            if not listed.result():
                raise
            say(f"bucket {config.bucket!r} does not exist, and with it no job; these are the machines alone")
            blobs = []
        owned: dict[str, list[Machine]] = {}
        for machine in listed.result():
            owned.setdefault(owner(machine), []).append(machine)
    waiting = functools.cache(lambda place: places.of(place).waiting(config))
    said: dict[str, str] = {}  # a console is read once for all jobs of a sweep

    def words(machine: Machine) -> str:
        if machine.name not in said:
            said[machine.name] = last_words(config, machine)
        return said[machine.name]

    entries = [entry(config, job.name_of(blob.name), blob, owned, waiting, words) for blob in blobs]
    for each in entries:
        owned.pop(each.name, None)
        owned.pop(f"{each.sweep}/", None)
    if not prefix:
        entries += [Entry(name.rstrip("/"), None, left) for name, left in owned.items()]
        names.remember([(each.name, each.sweep) for each in entries], living(entries))
    mine = [each for each in entries if user in (None, each.user)]
    return sorted(mine, key=lambda each: each.created_at, reverse=True)


def living(entries: list[Entry]) -> set[str]:
    """Names of jobs and sweeps that are not over, or have machines."""
    over = (each.state and each.state.final and not each.machines and not each.crew for each in entries)
    return {each.sweep or each.name for each, is_over in zip(entries, over, strict=True) if not is_over}


def newest(entries: list[Entry], limit: int) -> list[Entry]:
    """Entries without those that are over, but for the newest `limit`; a sweep counts as one."""
    live = living(entries)
    over = dict.fromkeys(name for each in entries if (name := each.sweep or each.name) not in live)
    hidden = set(list(over)[limit:])
    return [each for each in entries if (each.sweep or each.name) not in hidden]


def owner(machine: Machine) -> str:
    """The job that a machine is for, or `SWEEP/`."""
    sweep = machine.labels.get("berg-sweep")
    return f"{sweep}/" if sweep else machine.labels.get("berg-job", machine.name)


def entry(
    config: Config,
    name: str,
    blob,
    owned: dict[str, list[Machine]],
    waiting: Callable[[str], set[str]] | None = None,
    words: Callable[[Machine], str] | None = None,
) -> Entry:
    """A job from the object of its state, and the machines by their owners.

    `waiting` tells the names of the jobs that a place keeps machines for, `words` the `last_words` of a machine.
    """
    try:
        state = job.state_from_json((blob.metadata or {})["state"])
    except (KeyError, ValueError, TypeError):
        state = job.State(state="LOST", reason=f"{blob.name} is damaged")
    machines, crew = owned.get(name, []), []
    if sweep := state.job.get("sweep"):
        crew = owned.get(f"{sweep}/", [])
        has_one = not state.final and state.state != "SUBMITTED"
        machines = [machine for machine in crew if has_one and machine.name == state.machine]

    def waits() -> bool:
        place = place_name(state)
        if place == "gce" and not state.job.get("group"):
            return False
        with contextlib.suppress(api.Denied):
            there = waiting(place) if waiting else places.of(place).waiting(config, name)
            return not there.isdisjoint((name, state.job.get("sweep"), state.job.get("group")))
        return True  # as far as somebody knows who may not look

    seconds = api.now(config) - blob.updated.timestamp()
    needed = crew if crew and state.state == "SUBMITTED" else machines
    seen = conclude(state, seconds, needed, waits, words or functools.partial(last_words, config))
    if seen.state == "LOST" and not state.final and (group := state.job.get("group")):
        why = places.of(place_name(state)).why_gone(config, state.job.get("sweep") or name, group)
        seen = replace(seen, reason="; ".join(filter(None, [why, seen.reason])))
    return Entry(name, seen, machines, blob.generation, state, crew)


def look_again(config: Config, found: Entry) -> Entry:
    """A job that has a machine as it is now, for who asks often."""
    assert found.machine
    blob, sweeps = Bucket(config).get(job.state_path(found.name)), [found.sweep] if found.sweep else []
    machines = found.place.machines(config, [found.name], sweeps, zone=found.machine.zone)
    owned: dict[str, list[Machine]] = {}
    for machine in machines:
        owned.setdefault(owner(machine), []).append(machine)
    return entry(config, found.name, blob, owned) if blob else replace(found, state=None, machines=machines)


def find(config: Config, name: str) -> Entry:
    """The job of that name, or of the machine of that name; raises BergError if there is none, IsSweep for a sweep."""
    unknown = BergError(f"there is no job or machine {name!r}. See what there is: berg list -a")
    bucket = Bucket(config)
    sweep, slash, index = name.partition("/")
    if slash and job.NAME.fullmatch(sweep) and index.isdigit():
        listed = (job.name_of(blob.name) for blob in bucket.list(f".berg/jobs/{sweep}-", "name", "**_state.json"))
        name = next((each for each in listed if each.removeprefix(f"{sweep}-").lstrip("0") == index.lstrip("0")), "")
    if not job.NAME.fullmatch(name):
        raise unknown
    _ = config.session
    with ThreadPoolExecutor() as pool:
        sweeps = {name, name.rpartition("-")[0] or name}
        found = pool.submit(places.machines, config, [name], sweeps)
        blob = bucket.get(job.state_path(name))
        machines = found.result()
    if blob:
        owned: dict[str, list[Machine]] = {}
        for machine in machines:
            owned.setdefault(owner(machine), []).append(machine)
        return entry(config, name, blob, owned)
    if bucket.exists(job.sweep_path(name)):
        raise IsSweep(f"{name} is a sweep; name one of its jobs, such as {name}/0. See them: berg list -v")
    machines = [machine for machine in machines if owner(machine) == name]
    machines = machines or [machine for machine in places.machines(config) if machine.name == name]
    if not machines:
        raise unknown
    owned_by = owner(machines[0])
    if owned_by == name or owned_by.endswith("/"):
        return Entry(name, None, machines)
    cluster = find(config, owned_by)
    cluster.machines.sort(key=lambda machine: machine.name != name)
    return cluster


def match(config: Config, patterns: tuple[str, ...], everything: bool) -> list[str]:
    """Names of what can be killed: as given, by globs over what is mine and lives, or all of that."""
    if not everything and not any(is_glob(pattern) for pattern in patterns):
        return list(dict.fromkeys(name for pattern in patterns for name in parts(config, pattern)))
    living = [e.name for e in overview(config, config.user) if e.can_end]
    found: list[str] = []
    for pattern in ("*",) if everything else patterns:
        hits = fnmatch.filter(living, pattern) if is_glob(pattern) else [pattern]
        if not hits and not everything:
            raise BergError(f"{pattern!r} matches none of your jobs and machines. See them: berg list")
        found += hits
    return list(dict.fromkeys(found))


def parts(config: Config, name: str) -> list[str]:
    """The jobs of a sweep that are to be ended, those that no machine has first; of anything else its name."""
    if not job.NAME.fullmatch(name) or not Bucket(config).exists(job.sweep_path(name)):
        return [name]
    live = [e for e in overview(config, None, f"{name}-") if e.sweep == name and e.can_end]
    return [e.name for e in sorted(live, key=lambda e: (bool(e.machines), e.name))]


def is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def kill(config: Config, name: str, now: bool, say: Callable[[str], None]) -> str:
    """End a job and delete its machines; returns the state that the job ended in ("" for a mere machine).

    A worker gets the time to stop its command and to upload what is left, unless `now`.
    """
    found = find(config, name)
    name = found.name
    begun = found.state and not found.state.final and found.state.state != "SUBMITTED"
    if begun and any(machine.status not in OFF for machine in found.machines):
        tell_of_end(config, found, now)
        asked = moved = time.monotonic()
        left, told, spoke = "", "", -math.inf
        while not now and found.machine and found.state and not found.state.final:
            if found.state.state == "UPLOADING":
                moment, before = time.monotonic(), left
                left = f"{found.state.left_files:,} files, {found.state.left_bytes:,} bytes are left"
                moved = moment if left != before else moved
                if moment - moved > LEFT_STILL:
                    raise BergError(
                        f"{name} uploads its results since {found.state.uploading_since}, but nothing has moved for "
                        f"{moment - moved:.0f} s: {left}. {found.state.reason}\nIt goes on trying alone. To end it "
                        f"without them: berg kill --now {name}"
                    )
                is_counted = found.state.left_files > 0  # which takes its worker some seconds
                if is_counted and moment - asked > 3 and moment - spoke > 30 and left != told:
                    spoke, told = moment, left
                    say(f"{name} uploads its results since {found.state.uploading_since}: {left} (Ctrl-C leaves it)")
            elif time.monotonic() > asked + KILL_PATIENCE:
                say(f"{name} did not answer; deleting its machine")
                break
            time.sleep(0.5)
            found = look_again(config, found)
    is_lost = bool(found.state and found.state.state == "LOST")
    gone = found.crew if is_lost and found.sweep else found.machines  # none of those takes another job
    for machine in gone:
        save_console(config, name, machine)
    if not found.sweep or now or is_lost:  # else its machine takes the next job
        found.place.delete(config, name, gone, found.group)
    forget_secrets(config, found)
    while found.state and not found.state.final:
        ended = replace(found.state, state="KILLED", reason=f"killed by {config.user}", finished_at=job.now())
        text = ended.to_json()
        try:
            Bucket(config).write(job.state_path(name), text, found.generation, metadata={"state": text})
            forget_secrets(config, replace(found, state=ended))
            return "KILLED"
        except Changed:  # its worker wrote a last word meanwhile
            found = find(config, name)
    return found.state.state if found.state else ""


def tell_of_end(config: Config, found: Entry, now: bool) -> None:
    """Tell the machine that leads who ends the job; with `now` all machines, which then save nothing more."""
    said = f"{config.user} now" if now else config.user
    told = sorted(found.machines, key=lambda machine: machine.name)[: None if now else 1]
    with ThreadPoolExecutor(16) as pool:
        telling = [pool.submit(found.place.tell, config, each, f"berg-kill-{found.name}", said) for each in told]
    for each in telling:
        if each.exception() and not now:  # else it merely takes its time to go
            each.result()


def forget_secrets(config: Config, found: Entry) -> None:
    """Delete the secrets of a job that is killed, or of its sweep with the last of its jobs."""
    if not found.state or not found.state.job.get("secrets"):
        return
    if not found.sweep:
        secret.delete(config, found.name)
    elif found.state.final:
        entries = [each for each in overview(config, None, f"{found.sweep}-") if each.sweep == found.sweep]
        if all(each.name == found.name or (each.state and each.state.final) for each in entries):
            secret.delete(config, found.sweep)


def save_console(config: Config, name: str, machine: Machine) -> None:
    """Keep what a machine wrote to its serial console, which goes with it, if its worker wrote no log."""
    from google.api_core import exceptions

    bucket = Bucket(config)
    with contextlib.suppress(exceptions.NotFound, Changed):  # NotFound: no bucket to keep it in
        if not logs_of(bucket, name, machine.name) and (output := places.of(machine.place).console(config, machine)):
            bucket.write(f"{job.log_prefix(name)}{machine.name}.log", output, generation=0)


def logs_of(bucket: Bucket, name: str, machine: str | None) -> list[str]:
    """Objects of a job's logs, in the order in which they began; of one machine if it is given."""
    logs = [blob.name for blob in bucket.list(job.log_prefix(name), "name", "**.log")]
    return sorted(
        (log for log in logs if machine in (None, machine_of(log))),
        key=lambda log: log.rpartition("/")[2].partition(".")[2],
    )


def is_cluster(found: Entry) -> bool:
    return bool(found.state and found.state.job.get("machines", 1) > 1)


def machine_of(log: str) -> str:
    return log.rpartition("/")[2].partition(".")[0]


def results_prefix(config: Config, name: str) -> tuple[str, str | None]:
    """Bucket prefix for a job or a results folder, and the job's name if it is one."""
    blob = Bucket(config).get(job.state_path(name)) if job.NAME.fullmatch(name) else None
    if blob:
        state = entry(config, name, blob, {}).state
        if not state or "results_dir" not in state.job:
            raise BergError(f"{blob.name} is damaged. Fetch the folder of the results by its name: berg fetch FOLDER")
        return f"berg_results/{state.job['results_dir']}/", name
    folder = name.removeprefix(f"gs://{config.bucket}/").removeprefix("/root/").removeprefix("berg_results/")
    return f"berg_results/{checks.check_results_dir(folder.strip('/'))}/", None
