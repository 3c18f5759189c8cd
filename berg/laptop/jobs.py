"""The jobs and machines there are: listed, found by name, and where their logs and results are.

Not covered: all about one (records.py), and its end (ending.py).

Names of jobs and sweeps that a command saw, for the shell's completion, which must not wait for
the network.

BERG_HOME/names   a line each: NAME [live] [sweep JOBS]

Jobs as rows of a list, the same in the terminal and on the page.
"""

import functools
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from berg import BergError, computer, config, job, places, states
from berg.config import Config
from berg.google import api, iam
from berg.google.storage import Bucket
from berg.job import Machine, State
from berg.laptop import spending
from berg.plain import dollars, duration
from berg.states import Stored

Say = Callable[[str], None]  # prints a sentence for the user
Progress = Callable[[int, int], None]  # gets the bytes done and their total

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

LATELY = 0.5  # seconds for which a list of a sweep's machines serves all who wait for its jobs

LISTING = threading.Lock()  # of who begins one

LEFT_AFTER = 300  # seconds after a job's end, when its machine should be gone

LEAVING = 180  # seconds for machines of a job that is over to go

# What boot.py says on the serial console, among the kernel's lines: as startup script of the old
# guest agent, of the new one, and as a unit.
STARTUP_LINE = re.compile(
    r'(?:startup-script: |"startup-script"\), command\("[^"]*"\): |^berg: )'
    r"(?!Going on as )([^\r\n]*)",
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
    state: job.State | None  # as a reader must see it; None: a machine without a job
    machines: list[Machine]  # by rank
    stored: Stored | None = None  # the state as it lies in the bucket
    # of a sweep: its machines, whichever job they have
    workers: list[Machine] = field(default_factory=list)
    parts: list["Entry"] = field(default_factory=list)  # the jobs of a sweep that this stands for
    about: str = ""  # what else is to be said of it

    @property
    def machine(self) -> Machine | None:
        return self.machines[0] if self.machines else None

    @property
    def summary(self) -> job.Summary:
        """What the state says of its job; of a machine without a job nothing."""
        return self.state.job if self.state else job.Summary()

    @property
    def status(self) -> str:
        """The state, the machine's status, or both where the one does not tell of the other."""
        machine = self.machine.status if self.machine else ""
        if self.state is None:
            return f"no job, machine {machine}"
        usual = ("", "STOPPING", *(OFF if self.is_stopped else ()))
        is_odd = (self.state.final or self.is_stopped) and machine not in usual
        return f"{self.state.state}, machine {machine}" if is_odd else self.state.state

    @property
    def is_stopped(self) -> bool:
        """Whether it is a devbox that is off and keeps its disk."""
        return self.state is not None and self.state.state == job.STOPPED

    @property
    def user(self) -> str:
        if self.state is None and self.machine:
            return self.machine.labels.get("berg-user", "")
        return self.summary.user

    @property
    def created_at(self) -> str:
        of_machine = self.machine.created_at if self.machine else ""
        return self.summary.created_at or of_machine

    @property
    def can_end(self) -> bool:
        """Whether it is not over, or has machines that nobody else deletes."""
        is_left = self.machine or (self.state and self.state.state == "LOST" and self.workers)
        return bool(is_left or (self.state and not self.state.final))

    @property
    def place(self) -> places.Place:
        """Where its machines are."""
        return places.of(self.machine.place if self.machine else self.summary.place)

    @property
    def zone(self) -> str:
        """Where its machines are or were: a zone, or the LOCATION/NAME of a cluster."""
        if self.machine:
            return self.machine.zone
        return self.group.cluster or (self.state.zone if self.state else "")

    @property
    def usd(self) -> float | None:
        """What its machines have cost; None if their price is unknown, or it is no job."""
        if self.state is None:
            return None
        if self.parts:
            return spending.total(part.usd for part in self.parts)
        return spending.so_far(self.state, self.running)

    @property
    def running(self) -> int:
        """How many of its machines are not off."""
        return sum(machine.status not in OFF for machine in self.machines)

    @property
    def left(self) -> str:
        """What is to be said of machines that should have deleted themselves after the job."""
        state = self.state
        if state is None or not state.final or state.job.kept or not self.machines:
            return ""
        if state.job.place == "gke" or self.sweep:
            return ""
        is_old = spending.between(state.finished_at, job.now()) > LEFT_AFTER
        if not self.running:
            return "machine is off, its disk costs money: berg reap" * bool(state.undeleted)
        if not (state.undeleted or is_old):
            return ""
        hourly = spending.rate_of(state.job, state.zone)
        costs = "at an unknown price"
        if hourly is not None:
            costs = f"{dollars(hourly * self.running)} an hour"
        what = "machine still runs" if self.running == 1 else f"{self.running} machines still run"
        return f"{what}: {costs}, berg reap"

    @property
    def group(self) -> job.Group:
        """What makes the job's machines anew, as in `Job.group`."""
        return self.summary.group

    @property
    def sweep(self) -> str:
        """Name of the sweep that the job belongs to; "" for one on its own."""
        return self.summary.sweep

    def to_dict(self) -> dict[str, Any]:
        machine = self.machine or Machine("", "")
        return {
            "name": self.name,
            **self._told(),
            "user": self.user,
            "created_at": self.created_at,
            "machine_status": self.machine.status if self.machine else None,
            "zone": self.zone,
            "external_ip": machine.external_ip,
            "internal_ip": machine.internal_ip,
            "instances": [describe(each) for each in self.machines],
            "usd": self.usd,
        }

    def _told(self) -> dict[str, Any]:
        """Return what the state says, and in the same row what it says of its job."""
        if self.state is None:
            return {"state": None}
        told = asdict(self.state) | self.state.job.to_dict()
        del told["job"], told["claim"], told["removed_by"]
        return told


class Crew(list[Machine]):
    """Machines that belong together, as those of a sweep, for which all of its waiting jobs wait:
    what each of these asks is looked up once.
    """

    @functools.cached_property
    def alive(self) -> list[Machine]:
        """Those that are not off."""
        return [machine for machine in self if machine.status not in OFF]

    @functools.cached_property
    def statuses(self) -> set[str]:
        """Of those that are not off."""
        return {machine.status for machine in self.alive}

    @functools.cached_property
    def vain(self) -> list[str]:
        """Why those do not begin that end again and again."""
        return [machine.note for machine in self.alive if machine.is_vain]

    @functools.cached_property
    def is_queued(self) -> bool:
        """Whether the cluster holds one back."""
        return any(machine.is_queued for machine in self.alive)


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
    """Return the state as a reader must see it: LOST if nobody will write a final one.

    That is a job that is not over, has no machine and waits for none; and one whose machine, or all
    that it waits for in its sweep, ended the startup script without a worker.
    """
    crew = machines if isinstance(machines, Crew) else Crew(machines)
    is_fresh = seconds_since_written < patience(state) and not hopeless(state, crew)
    if is_box_off(state, crew, is_fresh):
        why = f"its machine went off without a last word; it was {state.state}"
        return replace(state, state=job.STOPPED, reason=why)
    if stands(state, machines) or is_fresh:
        return state
    if why := given_up(state, seconds_since_written, crew):
        return replace(state, state="LOST", reason=f"{why}; end it: berg kill")
    if is_on_its_way(state, crew):
        return state
    # of a cluster the first one, which leads
    needed = crew.alive if state.job.sweep else crew.alive[:1]
    if needed:
        is_lost = all(map(last_words, needed))
        return without_worker(state, needed[0], last_words) if is_lost else state
    return state if waits() else without_machine(state)


def is_box_off(state: job.State, crew: Crew, is_fresh: bool) -> bool:
    """Return whether the machine of a devbox went off, with its disk, and no worker wrote so. One
    that is just SUBMITTED may be starting again after maintenance.
    """
    has_begun = not state.final and state.state != job.STOPPED
    if state.state == "SUBMITTED" and is_fresh:
        return False
    return has_begun and state.job.kind == "devbox" and bool(crew) and not crew.alive


def stands(state: job.State, machines: list[Machine]) -> bool:
    """Return whether a state holds until a person does something: the job is over, or off."""
    return state.final or (state.state == job.STOPPED and bool(machines))


def is_on_its_way(state: job.State, crew: Crew) -> bool:
    """Return whether a machine has a job, or is in Google's queue for it."""
    if state.state == "SUBMITTED":
        return "PENDING" in crew.statuses
    return bool(crew.alive)


def given_up(state: job.State, seconds_since_written: float, crew: Crew) -> str:
    """Return why a job's pods will not begin: they had a limit to come by, and none of them has, or
    they end again and again before that; "" if they may.

    Those that come too late give up themselves, and so do those that wait for others.
    """
    waits_again = state.state == "SUBMITTED" and crew.is_queued
    if state.started_at and not waits_again:
        return ""
    if crew.vain:
        return crew.vain[0]
    limit = state.job.wait_seconds
    has_come = "RUNNING" in crew.statuses
    return job.TOO_LATE if limit and seconds_since_written > limit and not has_come else ""


def hopeless(state: job.State, crew: Crew) -> bool:
    """Return whether no pod of a job can begin, where none has so far."""
    return bool(crew.vain) and not state.started_at


def patience(state: job.State) -> int:
    """Return the seconds for which a state may be that of a job whose machine is on its way."""
    if state.state == "SUBMITTED" and state.job.place == "tpu":
        return LOST_AFTER + BETWEEN_ZONES
    return LOST_AFTER


def without_worker(
    state: job.State, machine: Machine, last_words: Callable[[Machine], str]
) -> job.State:
    """Return that a job is lost as its machine has no worker."""
    mend = "berg reap" if state.job.sweep else f"berg kill {machine.name}"
    what = f"delete the machine: {mend}"
    if state.job.kind == "devbox":
        what = f"turn it off, its disk stays: berg stop --now {machine.name}"
    reason = (
        f"the startup script of {machine.name} ended without a worker; {what}. "
        f"The end of its console: {last_words(machine)}"
    )
    return replace(state, state="LOST", reason=reason)


def without_machine(state: job.State) -> job.State:
    """Return that a job is lost as it has no machine."""
    reason = (
        "its machine is gone without a final state; "
        f"it was {state.state} on {state.machine or 'no machine'}"
    )
    if state.synced_until:
        reason += f"; its results are in the bucket up to {state.synced_until}"
    return replace(state, state="LOST", reason=reason)


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
    _ = config.session
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(places.machines, config)
        try:
            stored = list(states.listed(Bucket(config), prefix))
        except api.NotFound:
            if not listed.result():
                raise
            say(
                f"bucket {config.bucket!r} does not exist, and with it no job; "
                "these are the machines alone"
            )
            stored = []
        entries = entries_of(config, stored, by_owner(listed.result()), not prefix)
    everybodys = sorted_of(entries, None)
    if not prefix:
        remember([(each.name, each.sweep) for each in everybodys], living(entries))
    return sorted_of(everybodys, user)


def sorted_of(entries: list[Entry], user: str | None) -> list[Entry]:
    """Return the entries of a user (None: everybody's), the newest first."""
    mine = [each for each in entries if user in (None, each.user)]
    return sorted(mine, key=lambda each: each.created_at, reverse=True)


def entries_of(
    config: Config, stored: list[Stored], owned: dict[str, list[Machine]], others: bool
) -> list[Entry]:
    """Return jobs from their states and the machines by their owners, and where it is asked for the
    machines of none of them.
    """
    waiting = functools.cache(lambda place: places.of(place).waiting(config))
    said: dict[str, str] = {}  # a console is read once for all jobs of a sweep

    def words(machine: Machine) -> str:
        if machine.name not in said:
            said[machine.name] = last_words(config, machine)
        return said[machine.name]

    entries = [entry(config, each, owned, waiting, words) for each in stored]
    return entries + (without_jobs(entries, owned) if others else [])


def without_jobs(entries: list[Entry], owned: dict[str, list[Machine]]) -> list[Entry]:
    """Return the machines that belong to none of these jobs and sweeps, and those that do not count
    as their job's.
    """
    known = {name for each in entries for name in (each.name, f"{each.sweep}/")}
    counted = {each.id for found in entries for each in found.machines}
    found = []
    for name, left in owned.items():
        if name not in known:
            found.append(Entry(name.rstrip("/"), None, left))
        elif not name.endswith("/"):
            found += [Entry(each.name, None, [each]) for each in left if each.id not in counted]
    return found


def machines_of(entries: list[Entry]) -> list[tuple[Machine, Entry]]:
    """Return the machines of all entries, each once, with one that it belongs to: of those of a
    sweep the first.
    """
    found: dict[str, tuple[Machine, Entry]] = {}
    sweeps: set[str] = set()
    for each in entries:
        if not each.sweep:
            found |= {machine.name: (machine, each) for machine in each.machines}
        elif each.sweep not in sweeps:
            sweeps.add(each.sweep)
            found |= {machine.name: (machine, each) for machine in each.workers}
    return list(found.values())


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


def by_owner(machines: list[Machine]) -> dict[str, list[Machine]]:
    """Return the machines of each `owner`."""
    owned: dict[str, list[Machine]] = {}
    for machine in machines:
        owned.setdefault(owner(machine), Crew()).append(machine)
    return owned


def entry(
    config: Config,
    stored: Stored,
    owned: dict[str, list[Machine]],
    waiting: Callable[[str], set[str]] | None = None,
    words: Callable[[Machine], str] | None = None,
) -> Entry:
    """Return a job from its state and the machines by their owners.

    `waiting` tells the names of the jobs that a place keeps machines for, `words` the `last_words`
    of a machine.
    """
    state, summary = stored.state, stored.state.job
    machines, workers = of_its_person(config, summary, owned.get(stored.name, [])), []
    needed = machines
    if summary.sweep and not machines:  # whose machines are the sweep's
        workers = owned.get(f"{summary.sweep}/", [])
        needed = machines = machine_in_sweep(state, workers)
        if state.state == "SUBMITTED":
            needed = workers
    seen = conclude(
        state,
        api.now(config) - stored.written_at,
        needed,
        lambda: waits(config, stored, waiting),
        words or functools.partial(last_words, config),
    )
    if seen.state == "LOST" and not state.final:
        seen = explained(config, stored, seen)
    return Entry(stored.name, seen, machines, stored, workers)


def of_its_person(config: Config, summary: job.Summary, machines: list[Machine]) -> list[Machine]:
    """Return a job's machines; of mine, where my machines act as an account of my own, only those
    that do. Another person may have created the others: they count only where none of mine is
    there, and ssh.py refuses to log in to them.
    """
    if summary.user != config.user or not iam.is_own(config):
        return machines
    own = [each for each in machines if each.place == "gke" or is_mine(config, each)]
    return own if own and len(own) < len(machines) else machines


def is_mine(config: Config, machine: Machine) -> bool:
    """Return whether a machine acts as the account of the settings."""
    return machine.account == config.service_account


def explained(config: Config, stored: Stored, seen: job.State) -> job.State:
    """Return a lost job with what its place says of that: one that came out of Google's queue
    without a machine FAILED.
    """
    summary, zone = seen.job, ""
    if not seen.machine:
        zone = seen.zone
    if not (summary.group or zone):
        return seen
    owner = summary.sweep or stored.name
    why = places.of(summary.place).why_gone(config, owner, summary.group, zone)
    if why and zone:
        return replace(seen, state="FAILED", reason=f"there was no room in time: {why}")
    if why and summary.place == "gce":
        return replace(seen, state="FAILED", reason=f"Google gave up the request: {why}")
    said = [why] if why and why not in seen.reason else []
    return replace(seen, reason="; ".join([*said, seen.reason]))


def machine_in_sweep(state: job.State, workers: list[Machine]) -> list[Machine]:
    """Return the machine of a sweep that has a job at the moment, if one has."""
    if state.final or state.state == "SUBMITTED":
        return []
    return [machine for machine in workers if machine.name == state.machine]


def waits(config: Config, stored: Stored, waiting: Callable[[str], set[str]] | None) -> bool:
    """Return whether a place has a machine for a job, or makes one when there is room."""
    summary = stored.state.job
    if summary.place == "gce" and not summary.group:
        return False
    names = (stored.name, summary.sweep, str(summary.group))
    try:
        if waiting:
            return not waiting(summary.place).isdisjoint(names)
        return not places.of(summary.place).waiting(config, stored.name).isdisjoint(names)
    except api.Denied:
        return True  # as far as somebody knows who may not look


def look_again(config: Config, found: Entry) -> Entry:
    """Return a job that has a machine as it is now, for who asks often."""
    assert found.machine
    with ThreadPoolExecutor(1) as beside:
        listed = beside.submit(listed_again, config, found)
        stored = states.read(Bucket(config), found.name)
        machines = listed.result()
    if stored is None:
        return replace(found, state=None, machines=machines)
    return entry(config, stored, by_owner(machines))


def listed_again(config: Config, found: Entry) -> list[Machine]:
    """Return the machines of a job, or of its sweep, in the zone of the one that it has.

    Of several threads that ask for those of a sweep within half a second one asks Google: each of
    them waits for another job's end.
    """
    assert found.machine
    zone = found.machine.zone
    if not found.sweep:
        return found.place.machines(config, [found.name], zone=zone)
    key, now = (found.sweep, zone), time.monotonic()
    with LISTING:
        began, listed = config.listed_lately.get(key, (-math.inf, None))
        if is_mine := now > began + LATELY:
            listed = Future()
            config.listed_lately[key] = now, listed
    if is_mine:
        settle(listed, lambda: found.place.machines(config, [], [found.sweep], zone=zone))
    machines: list[Machine] = listed.result()
    return machines


def settle(answer: Future[list[Machine]], ask: Callable[[], list[Machine]]) -> None:
    """Let all who wait for an answer have it, or what asking for it raised."""
    try:
        answer.set_result(ask())
    except BaseException as error:
        answer.set_exception(error)


def wait_while(there: Callable[[], list[str]], whose: str, say: Callable[[str], None]) -> list[str]:
    """Wait until no machines are there that go by themselves; return the names of those that stay.

    `say` hears once of them and whose they are.
    """
    end = time.monotonic() + LEAVING
    is_said = False
    while left := there():
        if time.monotonic() > end:
            return left
        if not is_said:
            say(f"Waiting for {', '.join(left)} to go, {whose}")
            is_said = True
        time.sleep(1)
    return []


def find(config: Config, name: str) -> Entry:
    """Return the job of that name, or of the machine of that name, or SWEEP/INDEX.

    Raise BergError if there is none, IsSweep for a sweep.
    """
    bucket = Bucket(config)
    full_name = name_in_sweep(bucket, name) if "/" in name else name
    if not job.NAME.fullmatch(full_name):
        raise unknown(name)
    _ = config.session
    with ThreadPoolExecutor() as pool:
        sweeps = {full_name, full_name.rpartition("-")[0] or full_name}
        found = pool.submit(places.machines, config, [full_name], sweeps)
        stored = states.read(bucket, full_name)
        machines = found.result()
    if stored:
        return entry(config, stored, by_owner(machines))
    if states.sweep_exists(bucket, full_name):
        raise IsSweep(
            f"{full_name} is a sweep; name one of its jobs, such as {full_name}/0. "
            "See them: berg list -v"
        )
    return of_machine(config, full_name, machines)


def unknown(name: str) -> BergError:
    return BergError(f"there is no job or machine {name!r}. See what there is: berg list -a")


def name_in_sweep(bucket: Bucket, name: str) -> str:
    """Return the full name of the job SWEEP/INDEX; "" if there is none."""
    sweep, _, index = name.partition("/")
    if not job.NAME.fullmatch(sweep) or not index.isdigit():
        return ""
    for each in states.names(bucket, f"{sweep}-"):
        if each.removeprefix(f"{sweep}-").lstrip("0") == index.lstrip("0"):
            return each
    return ""


def of_machine(config: Config, name: str, machines: list[Machine]) -> Entry:
    """Return what owns the machine of that name, itself where no job does; raise BergError if there
    is none. `machines` are those that may be it.
    """
    own = [machine for machine in machines if owner(machine) == name]
    own = own or [machine for machine in places.machines(config) if machine.name == name]
    if not own:
        raise unknown(name)
    owned_by = owner(own[0])
    if owned_by == name or owned_by.endswith("/"):
        return Entry(name, None, own)
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
    return found.summary.machines > 1


def machine_of(log: str) -> str:
    return log.rpartition("/")[2].partition(".")[0]


MOST = 5_000  # names


def file() -> Path:
    return config.home() / "names"


def remember(named: list[tuple[str, str]], live: set[str], is_all: bool = True) -> None:
    """Write down jobs with their sweeps ("" for none), the newest first, MOST of them at most;
    `live` are those that are not over.

    Those that were there before stay, as over, unless these are all that there are.
    """
    counts = Counter(sweep or name for name, sweep in named)
    sweeps = {sweep for _, sweep in named}
    kept = {*islice(counts, MOST), *(live & counts.keys())}
    lines = [
        f"{name}{' live' * (name in live)}{f' sweep {counts[name]}' if name in sweeps else ''}\n"
        for name in kept
        if job.NAME.fullmatch(name)  # else it would be a line of this file, or another's words
    ]
    try:
        if not is_all:
            lines += islice(others(kept), max(0, MOST - len(kept)))
        computer.write(file(), "".join(sorted(lines)))
    except OSError:
        pass  # completion is a comfort


def others(known: set[str]) -> list[str]:
    """Return the lines of the file that are of other names, as of what is over."""
    if not file().exists():
        return []
    lines = [line.split() for line in file().read_text().splitlines()]
    return [
        f"{' '.join(word for word in words if word != 'live')}\n"
        for words in lines
        if words and words[0] not in known
    ]


def forget(names: Iterable[str]) -> None:
    """Delete names from the file."""
    try:
        left = [
            line for line in file().read_text().splitlines() if line.split()[:1][0] not in names
        ]
        computer.write(file(), "".join(f"{line}\n" for line in left))
    except (OSError, IndexError):
        pass


def cells(entry: Entry) -> list[str]:
    """Return what a list shows of a job or machine: name, state, age, cost, zone, GPUs, results
    dir, exit code.
    """
    state, summary = entry.state, entry.summary
    gpus = summary.gpus
    if entry.machine:
        gpus = gpus or entry.machine.gpus
    if summary.machines > 1:
        of_gpus = f" of {gpus}" if gpus else ""
        gpus = f"{summary.machines} machines{of_gpus}"
    code = ""
    if state and state.exit_code is not None:
        code = str(state.exit_code)
    created = age(entry.created_at)
    cost = dollars(entry.usd)
    return [
        entry.name,
        entry.status,
        created,
        cost,
        entry.zone,
        gpus,
        summary.results_dir,
        code,
    ]


def folded(entries: list[Entry]) -> list[Entry]:
    """Return entries with one in place of all jobs of a sweep, where the first of them stood."""
    parts: dict[str, list[Entry]] = {}
    for each in entries:
        parts.setdefault(each.sweep, []).append(each)
    shown: list[Entry] = []
    done: set[str] = set()
    for each in entries:
        if not each.sweep:
            shown.append(each)
        elif each.sweep not in done:
            shown.append(as_one(parts[each.sweep]))
        done.add(each.sweep)
    return shown


def as_one(parts: list[Entry]) -> Entry:
    """Return the jobs of a sweep as one entry, which says how many are in which state."""
    first = parts[0]
    states = [part.state for part in parts if part.state]
    more = f"  (the command of {first.name}, the first of {len(parts)} here)"
    zones = sorted({part.zone for part in parts if part.zone})
    summary = replace(
        first.summary,
        sweep="",
        results_dir=common_folder([state.job.results_dir for state in states]),
        machines=len(first.workers),
        cmd=first.summary.cmd + more,
    )
    idle: dict[str, str] = {}
    for state in states:
        if not state.final:
            idle |= state.idle
    in_states = counts(Counter(state.state for state in states))
    state = State(state=in_states, idle=idle, zone=few(zones), job=summary)
    return replace(first, name=first.sweep, state=state, machines=first.workers, parts=parts)


def few(zones: list[str]) -> str:
    """Return the zone, or how many there are of them."""
    if len(zones) > 1:
        return f"{len(zones)} zones"
    return "".join(zones)


def common_folder(folders: list[str]) -> str:
    """Return what all results folders of a sweep have in common."""
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # odd ones, such as an absolute path among others
        common = ""
    return f"{common}/…" if common else "…"


def counts(states: Mapping[str, int]) -> str:
    """Return how many jobs are in which state, as in `2 RUNNING, 1 FAILED`."""
    order = (*job.ACTIVE, job.STOPPED, *job.FINAL)
    return ", ".join(f"{states[state]} {state}" for state in order if states.get(state))


def age(timestamp: str) -> str:
    """Return how long ago a moment was; "?" for an invalid timestamp."""
    try:
        return duration(max(0, job.age_seconds(timestamp)) if timestamp else 0)
    except (ValueError, TypeError):
        return "?"


def also(state: State) -> str:
    return f"It also wrote to other folders: {state.elsewhere}" if state.elsewhere else ""


def idle(state: State) -> str:
    """Return which machines of a job have idle accelerators, and since when; "" if none."""
    if state.final or not state.idle:
        return ""
    what = "TPUs" if state.job.gpus and " x " not in state.job.gpus else "GPUs"
    if state.job.machines == 1:
        return f"its {what} are idle for {age(min(state.idle.values()))}"
    return f"{what} are idle: " + ", ".join(
        f"{name} for {age(since)}" for name, since in state.idle.items()
    )


def attempt(state: State) -> str:
    """Return a job's attempt, from the second on, and how many of its machines are missing."""
    if state.final or state.job.kind != "job":
        return ""
    number = state.attempt + (state.state == "SUBMITTED" and state.started_at != "")
    if state.awaited:
        since = f"{state.awaited} of {state.job.machines} machines since {age(state.awaited_since)}"
        return f"attempt {number}; waits for {since}"
    return f"attempt {number}" if number > 1 else ""
