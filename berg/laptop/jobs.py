"""The jobs and machines there are: listed, found by name, and where their logs and results are.

Not covered: all about one (records.py), and its end (ending.py).
"""

import contextlib
import functools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from berg import BergError, checks, job, places
from berg.config import Config
from berg.google import api
from berg.google.storage import Bucket
from berg.inventory import Machine
from berg.laptop import names

LOST_AFTER = 60  # seconds without a machine or a final state, after which nobody will write one
BETWEEN_ZONES = (
    300  # more of them for a slice, which is taken back in one zone before the next one is tried
)
# statuses of a machine that is there, but does nothing
OFF = (
    "STOPPED",
    "TERMINATED",
    "SUSPENDED",
)
GOING = ("STOPPING", *OFF)
# What boot.py says on the serial console, among the kernel's lines: as startup script of the old
# guest agent, of the new one, and as a unit.
STARTUP_LINE = re.compile(
    r'(?:startup-script: |"startup-script"\), command\("[^"]*"\): |^berg: )(?!Going on as )([^\r\n]*)',
    re.M,
)
# there, too
BEGAN, ENDED = (
    "Found startup-script in metadata.",
    "Finished running startup scripts.",
)
# boot.py's words
HANDED_OVER, UNIT_ENDED = (
    "Going on as a unit of systemd's",
    "berg's startup script has ended",
)


class IsSweep(BergError):
    """The name is that of a sweep, not of a job."""


@dataclass
class Entry:
    """A job with the machines that it has at the moment, or a machine without a job."""

    name: str
    state: job.State | None  # None: a machine without a job
    machines: list[Machine]  # by rank
    generation: int = 0
    stored: job.State | None = (
        None  # as it lies in the bucket, where a reader concludes another one
    )
    # of a sweep: its machines, whichever job they have
    workers: list[Machine] = field(default_factory=list)

    @property
    def machine(self) -> Machine | None:
        return self.machines[0] if self.machines else None

    @property
    def status(self) -> str:
        status = self.machine.status if self.machine else ""
        if self.state and not (self.state.final and status not in ("", "STOPPING")):
            return self.state.state
        return (
            f"{self.state.state}, machine {status}" if self.state else f"no job, machine {status}"
        )

    @property
    def user(self) -> str:
        if self.state:
            return self.state.job.user
        return self.machine.labels.get("berg-user", "") if self.machine else ""

    @property
    def created_at(self) -> str:
        return (self.state.job.created_at if self.state else "") or (
            self.machine.created_at if self.machine else ""
        )

    @property
    def can_end(self) -> bool:
        """Whether it is not over, or has machines that nobody else deletes."""
        is_left = self.machine or (self.state and self.state.state == "LOST" and self.workers)
        return bool(is_left or (self.state and not self.state.final))

    @property
    def place(self) -> places.Place:
        """Where its machines are."""
        return places.of(self.machine.place if self.machine else place_name(self.state))

    @property
    def group(self) -> str:
        """Region of the group that keeps a machine for the job; "" without one."""
        return self.state.job.group if self.state else ""

    @property
    def sweep(self) -> str:
        """Name of the sweep that the job belongs to; "" for one on its own."""
        return self.state.job.sweep if self.state else ""

    def to_dict(self) -> dict[str, Any]:
        state = asdict(self.state) if self.state else {"state": None}
        summary = self.state.job.to_dict() if self.state else {}
        return {
            "name": self.name,
            **{key: value for key, value in state.items() if key not in ("job", "claim")},
            **summary,
            "user": self.user,
            "created_at": self.created_at,
            "machine_status": self.machine.status if self.machine else None,
            "zone": self.machine.zone if self.machine else state.get("zone", ""),
            "external_ip": self.machine.external_ip if self.machine else "",
            "internal_ip": self.machine.internal_ip if self.machine else "",
            "instances": [describe(machine) for machine in self.machines],
        }


def place_name(state: job.State | None) -> str:
    return state.job.place if state else "gce"


def describe(machine: Machine) -> dict[str, Any]:
    return {
        key: getattr(machine, key)
        for key in ("name", "status", "zone", "external_ip", "internal_ip")
    }


def conclude(
    state: job.State,
    seconds_since_written: float,
    machines: list[Machine],
    waits: Callable[[], bool],
    last_words: Callable[[Machine], str],
) -> job.State:
    """The state as a reader must see it: a job that is not over, has no machine and waits for none
    is LOST.

    So is one whose machine, or all that it waits for in its sweep, ended the startup script without
    a worker.
    """
    alive = [machine for machine in machines if machine.status not in OFF]
    patience = LOST_AFTER + BETWEEN_ZONES * (
        state.state == "SUBMITTED" and place_name(state) == "tpu"
    )
    if state.final or seconds_since_written < patience or (alive and state.state != "SUBMITTED"):
        return state
    if alive:
        # of a cluster the first one, which leads
        needed = alive if state.job.sweep else alive[:1]
        if not all(map(last_words, needed)):
            return state
        first = needed[0]
        mend = "berg reap" if state.job.sweep else f"berg kill {first.name}"
        what = (
            f"the startup script of {first.name} ended without a worker; delete the machine: {mend}"
        )
        return replace(
            state, state="LOST", reason=f"{what}. The end of its console: {last_words(first)}"
        )
    if waits():
        return state
    what = f"was {state.state} on {state.machine or 'no machine'}"
    until = (
        f"; its results are in the bucket up to {state.synced_until}" if state.synced_until else ""
    )
    return replace(
        state, state="LOST", reason=f"its machine is gone without a final state; it {what}{until}"
    )


def silent(text: str) -> None:
    pass


def last_words(config: Config, machine: Machine) -> str:
    """The last lines of a machine's startup script if that has ended, "" if it runs or has yet to
    begin.
    """
    output = places.of(machine.place).console(config, machine)
    began = output.rfind(BEGAN)
    ended = UNIT_ENDED if output.rfind(HANDED_OVER) > began else ENDED
    return (
        " | ".join(STARTUP_LINE.findall(output)[-4:]) or "…" if output.rfind(ended) > began else ""
    )


def overview(
    config: Config, user: str | None, prefix: str = "", say: Callable[[str], None] = silent
) -> list[Entry]:
    """All jobs and machines of a user (None: everybody's), the newest first; with a prefix, only
    jobs named so.

    Without the bucket the machines alone, which `say` hears; without any of those, too, that is an
    error.
    """
    from google.api_core import exceptions

    bucket = Bucket(config)
    _ = config.session
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(places.machines, config)
        try:
            blobs = list(
                bucket.list(
                    f".berg/jobs/{prefix}", "name,metadata,updated,generation", "**_state.json"
                )
            )
        except exceptions.NotFound:
            if not listed.result():
                raise
            say(
                f"bucket {config.bucket!r} does not exist, and with it no job; these are the machines alone"
            )
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
    over = (
        each.state and each.state.final and not each.machines and not each.workers
        for each in entries
    )
    return {
        each.sweep or each.name for each, is_over in zip(entries, over, strict=True) if not is_over
    }


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

    `waiting` tells the names of the jobs that a place keeps machines for, `words` the `last_words`
    of a machine.
    """
    try:
        state = job.state_from_json((blob.metadata or {})["state"])
    except (KeyError, ValueError, TypeError):
        state = job.State(state="LOST", reason=f"{blob.name} is damaged")
    machines, workers = owned.get(name, []), []
    if sweep := state.job.sweep:
        workers = owned.get(f"{sweep}/", [])
        has_one = not state.final and state.state != "SUBMITTED"
        machines = [machine for machine in workers if has_one and machine.name == state.machine]

    def waits() -> bool:
        place = place_name(state)
        if place == "gce" and not state.job.group:
            return False
        with contextlib.suppress(api.Denied):
            there = waiting(place) if waiting else places.of(place).waiting(config, name)
            return not there.isdisjoint((name, state.job.sweep, state.job.group))
        return True  # as far as somebody knows who may not look

    seconds = api.now(config) - blob.updated.timestamp()
    needed = workers if workers and state.state == "SUBMITTED" else machines
    seen = conclude(state, seconds, needed, waits, words or functools.partial(last_words, config))
    if seen.state == "LOST" and not state.final and (group := state.job.group):
        why = places.of(place_name(state)).why_gone(config, state.job.sweep or name, group)
        seen = replace(seen, reason="; ".join(filter(None, [why, seen.reason])))
    return Entry(name, seen, machines, blob.generation, state, workers)


def look_again(config: Config, found: Entry) -> Entry:
    """A job that has a machine as it is now, for who asks often."""
    assert found.machine
    blob, sweeps = (
        Bucket(config).get(job.state_path(found.name)),
        [found.sweep] if found.sweep else [],
    )
    machines = found.place.machines(config, [found.name], sweeps, zone=found.machine.zone)
    owned: dict[str, list[Machine]] = {}
    for machine in machines:
        owned.setdefault(owner(machine), []).append(machine)
    return (
        entry(config, found.name, blob, owned)
        if blob
        else replace(found, state=None, machines=machines)
    )


def find(config: Config, name: str) -> Entry:
    """The job of that name, or of the machine of that name; raises BergError if there is none,
    IsSweep for a sweep.
    """
    unknown = BergError(f"there is no job or machine {name!r}. See what there is: berg list -a")
    bucket = Bucket(config)
    sweep, slash, index = name.partition("/")
    if slash and job.NAME.fullmatch(sweep) and index.isdigit():
        listed = (
            job.name_of(blob.name)
            for blob in bucket.list(f".berg/jobs/{sweep}-", "name", "**_state.json")
        )
        name = next(
            (
                each
                for each in listed
                if each.removeprefix(f"{sweep}-").lstrip("0") == index.lstrip("0")
            ),
            "",
        )
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
        raise IsSweep(
            f"{name} is a sweep; name one of its jobs, such as {name}/0. See them: berg list -v"
        )
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


def is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def logs_of(bucket: Bucket, name: str, machine: str | None) -> list[str]:
    """Objects of a job's logs, in the order in which they began; of one machine if it is given."""
    logs = [blob.name for blob in bucket.list(job.log_prefix(name), "name", "**.log")]
    return sorted(
        (log for log in logs if machine in (None, machine_of(log))),
        key=lambda log: log.rpartition("/")[2].partition(".")[2],
    )


def is_cluster(found: Entry) -> bool:
    return bool(found.state and found.state.job.machines > 1)


def machine_of(log: str) -> str:
    return log.rpartition("/")[2].partition(".")[0]


def results_prefix(config: Config, name: str) -> tuple[str, str | None]:
    """Bucket prefix for a job or a results folder, and the job's name if it is one."""
    blob = Bucket(config).get(job.state_path(name)) if job.NAME.fullmatch(name) else None
    if blob:
        state = entry(config, name, blob, {}).state
        if not state or not state.job.results_dir:
            raise BergError(
                f"{blob.name} is damaged. Fetch the folder of the results by its name: berg fetch FOLDER"
            )
        return f"berg_results/{state.job.results_dir}/", name
    folder = (
        name.removeprefix(f"gs://{config.bucket}/")
        .removeprefix("/root/")
        .removeprefix("berg_results/")
    )
    return f"berg_results/{checks.check_results_dir(folder.strip('/'))}/", None
