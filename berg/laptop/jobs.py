"""The jobs and machines there are: listed, found by name, and shown as rows of a list.

BERG_HOME/names has the names that a command saw, for the shell's completion, which must not wait
for the network; a line each: NAME [live] [sweep JOBS].
"""

import contextlib
import functools
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from berg import BergError, computer, config, job, places, plain, states
from berg.config import Config
from berg.google import api, iam, prices
from berg.google.storage import Bucket
from berg.job import Machine, State
from berg.laptop import spending
from berg.plain import dollars, duration, plural
from berg.states import Stored

Say = Callable[[str], None]  # prints a sentence for the user
Progress = Callable[[int, int], None]  # gets the bytes done and their total
LOST_AFTER = 60  # seconds without a machine or a final state, after which a job is lost
BETWEEN_ZONES = 300  # more seconds for a slice, which is deleted in one zone before the next
OFF = ("STOPPED", "TERMINATED", "SUSPENDED")  # statuses of a machine that does nothing
GOING = ("STOPPING", *OFF)
LATELY = 0.5  # seconds for which a list of a sweep's machines serves all waits for its jobs
LISTING = threading.Lock()
LEFT_AFTER = 300  # seconds after a job's end, when its machine should be gone
LEAVING = 180  # seconds for machines of a finished job to go
MOST = 5_000  # names
# A line of boot.py's on the serial console, among the kernel's: as startup script of the old
# guest agent, of the new one, and as a unit.
STARTUP_LINE = re.compile(
    r'(?:startup-script: |"startup-script"\), command\("[^"]*"\): |^berg: )'
    r"(?!Continuing as )([^\r\n]*)",
    re.M,
)
BEGAN, ENDED = "Found startup-script in metadata.", "Finished running startup scripts."
# boot.py's words
HANDED_OVER, UNIT_ENDED = "Continuing as a unit of systemd", "berg's startup script has ended"


class IsSweep(BergError):
    """The name is that of a sweep, not of a job."""


@dataclass
class Entry:
    """A job with its machines, or a machine without a job."""

    name: str
    state: State | None  # as a reader must see it; None: a machine without a job
    machines: list[Machine]  # by rank
    stored: Stored | None = None  # the state in the bucket
    workers: list[Machine] = field(default_factory=list)  # all machines of its sweep
    parts: list["Entry"] = field(default_factory=list)  # of a whole sweep: its jobs
    about: str = ""  # a remark for people

    def __post_init__(self) -> None:
        """Name the devbox of a job on one; its machine is not the job's once that has ended."""
        if self.state and self.summary.on:
            self.about = f"on {self.summary.on}"
            self.machines = [] if self.state.final else self.machines

    @property
    def machine(self) -> Machine | None:
        return self.machines[0] if self.machines else None

    @property
    def job_state(self) -> State:
        """The state of its job; raise BergError for a machine without one."""
        if self.state is None:
            raise BergError(
                f"{self.name} is a machine without a job ({self.status}). "
                f"End it: berg kill {self.name}"
            )
        return self.state

    @property
    def summary(self) -> job.Summary:
        """The job as its state describes it; empty for a machine without a job."""
        return self.state.job if self.state else job.Summary()

    @property
    def status(self) -> str:
        """The state, and the machine's status if it is not what the state implies."""
        machine = self.machine.status if self.machine else ""
        if self.state is None:
            return f"no job, machine {machine}"
        usual = {"", "STOPPING"}
        if self.is_stopped:
            usual |= {*OFF}
        is_odd = (self.state.final or self.is_stopped) and machine not in usual
        return f"{self.state.state}, machine {machine}" if is_odd else self.state.state

    @property
    def fate(self) -> str:
        """What to say of the machine that its state names: that it is gone, unless it is there, or
        a devbox.
        """
        return "" if self.machines or self.summary.on else ", gone"

    @property
    def is_stopped(self) -> bool:
        """Whether it is a stopped devbox."""
        return self.state is not None and self.state.state == job.STOPPED

    @property
    def user(self) -> str:
        if self.state is None and self.machine:
            return self.machine.labels.get("berg-user", "")
        return self.summary.user

    @property
    def created_at(self) -> str:
        return self.summary.created_at or (self.machine.created_at if self.machine else "")

    @property
    def can_end(self) -> bool:
        """Whether it has not ended, or has machines that will not be deleted by themselves."""
        is_left = self.machine or (self.state and self.state.state == "LOST" and self.workers)
        return bool(is_left or (self.state and not self.state.final))

    @property
    def place(self) -> places.Place:
        """The place of its machines."""
        return places.of(self.machine.place if self.machine else self.summary.place)

    @property
    def zone(self) -> str:
        """The zone of its machines, now or then, or the LOCATION/NAME of their cluster."""
        if self.machine:
            return self.machine.zone
        return self.group.cluster or (self.state.zone if self.state else "")

    @property
    def usd(self) -> float | None:
        """USD that its machines have cost; None if a price is unknown, or it is no job."""
        if self.state is None:
            return None
        if self.parts:
            return prices.total([(part.usd, 1) for part in self.parts])
        return spending.so_far(self.state, self.running)

    @property
    def running(self) -> int:
        """The number of its machines that are not off."""
        return sum(machine.status not in OFF for machine in self.machines)

    @property
    def left(self) -> str:
        """What a list shows of machines that are there after the job: that they are kept, or a
        warning that they should have deleted themselves.
        """
        state = self.state
        if state is None or not state.final or state.job.kept or not self.machines:
            return ""
        if state.kept_seconds:
            return kept(state)
        if state.job.place == "gke" or self.sweep:
            return ""
        ended = max(state.finished_at, state.kept_until)
        is_old = spending.between(ended, job.now()) > LEFT_AFTER
        if not self.running:
            return "machine is off, its disk costs money: berg reap" if state.undeleted else ""
        if not (state.undeleted or is_old):
            return ""
        costs = by_the_hour(state, self.running)
        return f"{plural(self.running, 'machine')} still running: {costs}, berg reap"

    @property
    def group(self) -> job.Group:
        """The group that replaces the job's machines, as in `Job.group`."""
        return self.summary.group

    @property
    def sweep(self) -> str:
        """The job's sweep; "" for a single job."""
        return self.summary.sweep

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for --json: the fields of its state and of its job in one object."""
        machine = self.machine or Machine("", "")
        shown = ("name", "status", "zone", "external_ip", "internal_ip")
        about: dict[str, Any] = {"state": None}
        if self.state:
            about = asdict(self.state) | self.state.job.to_dict()
            del about["job"], about["claim"], about["removed_by"]
        return {
            "name": self.name,
            **about,
            "user": self.user,
            "created_at": self.created_at,
            "machine_status": self.machine.status if self.machine else None,
            "zone": self.zone,
            "external_ip": machine.external_ip,
            "internal_ip": machine.internal_ip,
            "instances": [{key: getattr(each, key) for key in shown} for each in self.machines],
            "usd": self.usd,
        }


class MachineGroup(list[Machine]):
    """The machines of a job or sweep; what each waiting job of a sweep asks is computed once."""

    @functools.cached_property
    def alive(self) -> list[Machine]:
        """Those that are not off."""
        return [machine for machine in self if machine.status not in OFF]

    @functools.cached_property
    def statuses(self) -> set[str]:
        """The statuses of those that are not off."""
        return {machine.status for machine in self.alive}

    @functools.cached_property
    def failure(self) -> str:
        """Why one of them fails again and again before it begins; "" if none does."""
        return next((machine.note for machine in self.alive if machine.is_crash_looping), "")

    @functools.cached_property
    def is_queued(self) -> bool:
        """Whether the cluster holds one back."""
        return any(machine.is_queued for machine in self.alive)


def conclude(
    state: State,
    seconds_since_written: float,
    machines: list[Machine],
    waits: Callable[[], bool],
    last_words: Callable[[Machine], str],
) -> State:
    """Return the state as a reader must see it: LOST if no worker will write a final one.

    A job is lost if it has not ended, has no machine and waits for none, or if its machine, or all
    that it waits for in its sweep, ended the startup script without a worker.
    """
    group = machines if isinstance(machines, MachineGroup) else MachineGroup(machines)
    is_fresh = may_be_new(state, seconds_since_written, group)
    if is_box_off(state, group, is_fresh):
        why = f"its machine went off without a last word; it was {state.state}"
        return replace(state, state=job.STOPPED, reason=why)
    if is_fresh or is_settled(state, machines):
        return state
    if why := given_up(state, seconds_since_written, group):
        return replace(state, state="LOST", reason=f"{why}; end it: berg kill")
    if "PENDING" in group.statuses if state.state == "SUBMITTED" else group.alive:
        return state  # it has a machine, or is in Google's queue for one
    needed = group.alive if state.job.sweep else group.alive[:1]  # the first one of a cluster leads
    if needed:
        is_lost = all(map(last_words, needed))
        return without_worker(state, needed[0], last_words) if is_lost else state
    return state if waits() else without_machine(state)


def may_be_new(state: State, seconds_since_written: float, group: MachineGroup) -> bool:
    """Return whether a state is so new that a machine may be on its way."""
    if group.failure and not state.started_at:
        return False
    is_slice = state.state == "SUBMITTED" and state.job.place == "tpu"
    return seconds_since_written < LOST_AFTER + BETWEEN_ZONES * is_slice


def is_box_off(state: State, group: MachineGroup, is_fresh: bool) -> bool:
    """Return whether a devbox's machine is off without a word of its worker. One that is just
    SUBMITTED may be starting again after maintenance.
    """
    has_begun = not state.final and state.state != job.STOPPED
    if state.state == "SUBMITTED" and is_fresh:
        return False
    return has_begun and state.job.kind == "devbox" and bool(group) and not group.alive


def is_settled(state: State, machines: list[Machine]) -> bool:
    """Return whether a job has ended, or is off until its user starts it."""
    return state.final or (state.state == job.STOPPED and bool(machines))


def given_up(state: State, seconds_since_written: float, group: MachineGroup) -> str:
    """Return why a job's pods will not begin: they fail again and again, or none came in time; ""
    if they may. Pods that come too late or wait for others end the job themselves.
    """
    waits_again = state.state == "SUBMITTED" and group.is_queued
    if state.started_at and not waits_again:
        return ""
    limit = state.job.wait_seconds
    is_late = limit and seconds_since_written > limit and "RUNNING" not in group.statuses
    return group.failure or (job.TOO_LATE if is_late else "")


def without_worker(state: State, machine: Machine, last_words: Callable[[Machine], str]) -> State:
    """Return the state of a job whose machine has no worker: LOST."""
    if state.job.on:
        return without_machine(state)
    command = "berg reap" if state.job.sweep else f"berg kill {machine.name}"
    advice = f"delete the machine: {command}"
    if state.job.kind == "devbox":
        advice = f"turn it off, its disk stays: berg stop --now {machine.name}"
    reason = (
        f"the startup script of {machine.name} ended without a worker; {advice}. "
        f"The end of its console: {last_words(machine)}"
    )
    return replace(state, state="LOST", reason=reason)


def without_machine(state: State) -> State:
    """Return the state of a job that has no machine: LOST."""
    if state.job.on and state.state == "SUBMITTED":
        return replace(state, state="LOST", reason=f"its devbox {state.job.on} did not begin it")
    if state.job.on:
        where = f"its devbox {state.job.on} is gone, off or without a worker"
        return replace(state, state="LOST", reason=f"{where}; it was {state.state} there")
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
    """Return the last lines of a machine's startup script if that has ended, else ""."""
    output = places.of(machine.place).console(config, machine)
    began = output.rfind(BEGAN)
    ended = UNIT_ENDED if output.rfind(HANDED_OVER) > began else ENDED
    if output.rfind(ended) <= began:
        return ""
    return " | ".join(STARTUP_LINE.findall(output)[-4:]) or "…"


def overview(config: Config, user: str | None, prefix: str = "", say: Say = silent) -> list[Entry]:
    """Return all jobs and machines of a user (None: of all users), the newest first; with a prefix,
    only jobs whose names begin with it.

    Without the bucket return the machines alone, and raise NotFound if there are none either.
    """
    _ = config.credentials
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(places.machines, config)
        try:
            stored = list(states.listed(Bucket(config), prefix))
        except api.NotFound:
            if not listed.result():
                raise
            say(
                f"bucket {config.bucket!r} does not exist, so there are no jobs; "
                "these are the machines"
            )
            stored = []
        entries = entries_of(config, stored, by_owner(listed.result()), not prefix)
    of_all = sorted_of(entries, None)
    if not prefix:
        remember([(each.name, each.sweep) for each in of_all], living(entries))
    return sorted_of(of_all, user)


def sorted_of(entries: list[Entry], user: str | None) -> list[Entry]:
    """Return the entries of a user (None: of all users), the newest first."""
    mine = [each for each in entries if user in (None, each.user)]
    return sorted(mine, key=lambda each: each.created_at, reverse=True)


def entries_of(
    config: Config, stored: list[Stored], owned: dict[str, list[Machine]], others: bool
) -> list[Entry]:
    """Return jobs from their states and the machines by their owners; with `others` also the
    machines of none of them.
    """
    waiting = functools.cache(lambda place: places.of(place).waiting(config))
    ends: dict[str, str] = {}  # a console is read once for all jobs of a sweep

    def words(machine: Machine) -> str:
        if machine.name not in ends:
            ends[machine.name] = last_words(config, machine)
        return ends[machine.name]

    entries = [entry(config, each, owned, waiting, words) for each in stored]
    return entries + (without_jobs(entries, owned) if others else [])


def without_jobs(entries: list[Entry], owned: dict[str, list[Machine]]) -> list[Entry]:
    """Return the machines that belong to none of these jobs and sweeps, or do not count as their
    job's.
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
    """Return the machines of all entries, each once, with its entry: of a sweep its first job."""
    found: dict[str, tuple[Machine, Entry]] = {}
    sweeps: set[str] = set()
    for each in entries:
        if not (each.sweep or each.summary.on):
            found |= {machine.name: (machine, each) for machine in each.machines}
        elif each.sweep not in sweeps:
            sweeps.add(each.sweep)
            found |= {machine.name: (machine, each) for machine in each.workers}
    return list(found.values())


def living(entries: list[Entry]) -> set[str]:
    """Return the names of jobs and sweeps that have not ended, or have machines."""
    return {
        each.sweep or each.name
        for each in entries
        if each.state is None or not each.state.final or each.machines or each.workers
    }


def newest(entries: list[Entry], limit: int) -> list[Entry]:
    """Return the entries without those that ended, except the newest `limit`; a sweep is one."""
    live = living(entries)
    over = dict.fromkeys(name for each in entries if (name := each.sweep or each.name) not in live)
    hidden = set(list(over)[limit:])
    return [each for each in entries if (each.sweep or each.name) not in hidden]


def owner(machine: Machine) -> str:
    """Return the job of a machine, or `SWEEP/`."""
    sweep = machine.labels.get("berg-sweep")
    return f"{sweep}/" if sweep else machine.labels.get("berg-job", machine.name)


def by_owner(machines: list[Machine]) -> dict[str, list[Machine]]:
    """Return the machines of each `owner`."""
    owned: dict[str, list[Machine]] = {}
    for machine in machines:
        owned.setdefault(owner(machine), MachineGroup()).append(machine)
    return owned


def entry(
    config: Config,
    stored: Stored,
    owned: dict[str, list[Machine]],
    waiting: Callable[[str], set[str]] | None = None,
    words: Callable[[Machine], str] | None = None,
) -> Entry:
    """Return a job from its state and the machines by their owners.

    `waiting` returns the names of jobs that wait for machines in a place, `words` the `last_words`
    of a machine.
    """
    state, summary = stored.state, stored.state.job
    machines, workers = of_own_account(config, stored, owned), []
    needed = machines
    if summary.sweep and not machines:  # the machines are the sweep's
        needed = workers = owned.get(f"{summary.sweep}/", [])
        if state.state != "SUBMITTED":
            is_on = "" if state.final else state.machine
            needed = machines = [machine for machine in workers if machine.name == is_on]
    if summary.on and state.state == "SUBMITTED":  # the devbox would have begun it
        needed = []
    seen = conclude(
        state,
        job.clock() - stored.written_at,
        needed,
        lambda: waits(config, stored, waiting),
        words or functools.partial(last_words, config),
    )
    if seen.state == "LOST" and not state.final:
        seen = explained(config, stored, seen)
    return Entry(stored.name, seen, machines, stored, workers)


def of_own_account(
    config: Config, stored: Stored, owned: dict[str, list[Machine]]
) -> list[Machine]:
    """Return a job's machines, or its devbox's. If it is the user's and the user has an account for
    machines, only those with this account: another user may have created the others. They count if
    there is no other, and ssh.py refuses to log in to them.
    """
    summary = stored.state.job
    machines = owned.get(summary.on or stored.name, [])
    if summary.user != config.user or not iam.is_own(config):
        return machines
    own = [each for each in machines if each.place == "gke" or is_mine(config, each)]
    return own if own and len(own) < len(machines) else machines


def is_mine(config: Config, machine: Machine) -> bool:
    """Return whether a machine acts as the account of the settings."""
    return machine.account == config.service_account


def is_users(config: Config, machine: Machine) -> bool:
    """Return whether a machine is the user's.

    With the right to create machines one can label them, but not give them another user's account.
    """
    has_account = is_mine(config, machine) or not iam.is_own(config)
    return machine.labels.get("berg-user") == config.user and has_account


def explained(config: Config, stored: Stored, seen: State) -> State:
    """Return a lost job with its place's reason, if that can be read; FAILED if Google's queue had
    no machine for it.
    """
    summary = seen.job
    zone = "" if seen.machine else seen.zone
    if not (summary.group or zone):
        return seen
    owner, why = summary.sweep or stored.name, ""
    # No command ends because this is not answered: it only says more of the job.
    with contextlib.suppress(BergError, api.GoogleError, api.RetryError, api.NoAnswer):
        why = places.of(summary.place).why_gone(config, owner, summary.group, zone)
    if why and zone:
        return replace(seen, state="FAILED", reason=f"there was no room in time: {why}")
    if why and summary.place == "gce":
        return replace(seen, state="FAILED", reason=f"Google gave up the request: {why}")
    if why and why not in seen.reason:
        return replace(seen, reason=f"{why}; {seen.reason}")
    return seen


def waits(config: Config, stored: Stored, waiting: Callable[[str], set[str]] | None) -> bool:
    """Return whether a place has a machine for a job, or will create one."""
    summary = stored.state.job
    look = waiting or (lambda place: places.of(place).waiting(config, stored.name))
    try:
        return is_to_come(stored.name, summary, look)
    except api.Denied:
        return True  # unknown


def is_to_come(name: str, about: job.Job | job.Summary, waiting: Callable[[str], set[str]]) -> bool:
    """Return whether a place is still creating machines for a job."""
    if about.place == "gce" and not about.group:
        return False
    return not waiting(about.place).isdisjoint((name, about.sweep, str(about.group)))


def look_again(config: Config, found: Entry) -> Entry:
    """Return a job that has a machine as it is now; it is asked often."""
    assert found.machine
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(listed_again, config, found, found.machine.zone)
        stored = states.read(Bucket(config), found.name)
        machines = listed.result()
    if stored is None:
        return replace(found, state=None, machines=machines)
    return entry(config, stored, by_owner(machines))


def listed_again(config: Config, found: Entry, zone: str) -> list[Machine]:
    """Return the machines of a job, or of its sweep, in a zone.

    Threads that wait for other jobs of the same sweep share a list that is half a second old.
    """
    if not found.sweep:
        return found.place.machines(config, [found.summary.on or found.name], zone=zone)
    key = (found.sweep, zone)
    with LISTING:
        listed_at, machines = config.listed_lately.get(key, (-math.inf, []))
        if time.monotonic() > listed_at + LATELY:
            machines = found.place.machines(config, [], [found.sweep], zone=zone)
            config.listed_lately[key] = time.monotonic(), machines
    return list(machines)


def wait_while(there: Callable[[], list[str]], whose: str, say: Say) -> list[str]:
    """Wait until no machines are there that go by themselves; return the names of those that stay.

    `whose` tells the user why they are waited for.
    """
    left = there()
    if left:
        say(f"Waiting for {', '.join(left)} to go, {whose}")

    def is_gone() -> bool:
        left[:] = there()
        return not left

    if left:
        api.wait_for(is_gone, 1, LEAVING)
    return left


def find(config: Config, name: str) -> Entry:
    """Return the job of that name, or of the machine of that name, or SWEEP/INDEX.

    Raise BergError if there is none, IsSweep for a sweep.
    """
    bucket = Bucket(config)
    full_name = name_in_sweep(bucket, name) if "/" in name else name
    if not job.NAME.fullmatch(full_name):
        raise unknown(name)
    _ = config.credentials
    with ThreadPoolExecutor() as pool:
        sweeps = {full_name, full_name.rpartition("-")[0] or full_name}
        found = pool.submit(places.machines, config, [full_name], sweeps)
        stored = states.read(bucket, full_name)
        machines = found.result()
        if stored and stored.state.job.on:
            machines = places.machines(config, [stored.state.job.on])
    if stored:
        return entry(config, stored, by_owner(machines))
    if states.sweep_exists(bucket, full_name):
        raise IsSweep(
            f"{full_name} is a sweep; name one of its jobs, such as {full_name}/0. "
            "See them: berg list -v"
        )
    return with_machine(config, full_name, machines)


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


def with_machine(config: Config, name: str, machines: list[Machine]) -> Entry:
    """Return the job of the machine of that name, or the machine if it has none.

    `machines` are candidates. Raise BergError if there is no such machine.
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
    """Return the objects of a job's logs, or of one machine's, the oldest first."""
    logs = [blob.name for blob in bucket.list(job.log_prefix(name), "name", "**.log")]
    return sorted(
        (log for log in logs if machine in (None, machine_of(log))),
        key=lambda log: log.rpartition("/")[2].partition(".")[2],
    )


def is_cluster(found: Entry) -> bool:
    return found.summary.machines > 1


def machine_of(log: str) -> str:
    return log.rpartition("/")[2].partition(".")[0]


def file() -> Path:
    return config.home() / "names"


def remember(named: list[tuple[str, str]], live: set[str], is_all: bool = True) -> None:
    """Write down jobs with their sweeps ("" for none), the newest first; `live` have not ended.

    Other names in the file are kept as ended, unless these are all that there are.
    """
    counts = Counter(sweep or name for name, sweep in named)
    sweeps = {sweep for _, sweep in named}
    found = {}
    for name in [*islice(counts, MOST), *(live & counts.keys())]:
        words = ["live"] if name in live else []
        found[name] = [*words, "sweep", str(counts[name])] if name in sweeps else words
    if not is_all:
        for name, words in remembered().items():
            if len(found) < MOST:
                found.setdefault(name, [word for word in words if word != "live"])
    write_names(found)


def remembered() -> dict[str, list[str]]:
    """Return the file's names, each with what it says of it."""
    try:
        lines = [line.split() for line in file().read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: words[1:] for words in lines if words}


def write_names(found: dict[str, list[str]]) -> None:
    # Other names would be a line of this file, or another's words.
    lines = [" ".join([name, *words]) for name, words in found.items() if job.NAME.fullmatch(name)]
    with contextlib.suppress(OSError):  # completion is a comfort
        computer.write(file(), "".join(f"{line}\n" for line in sorted(lines)))


def forget(names: Iterable[str]) -> None:
    """Delete names from the file."""
    write_names({name: words for name, words in remembered().items() if name not in names})


def cells(entry: Entry) -> list[str]:
    """Return the columns of a list: name, state, age, cost, zone, GPUs, results dir, exit code."""
    state, summary = entry.state, entry.summary
    gpus = summary.gpus or (entry.machine.gpus if entry.machine else "")
    if summary.machines > 1:
        gpus = f"{summary.machines} machines" + (f" of {gpus}" if gpus else "")
    code = "" if state is None or state.exit_code is None else str(state.exit_code)
    created, cost = shown_age(entry.created_at), dollars(entry.usd)
    return [entry.name, entry.status, created, cost, entry.zone, gpus, summary.results_dir, code]


def folded(entries: list[Entry]) -> list[Entry]:
    """Return the entries with each sweep as one, in the place of its first job."""
    parts: dict[str | int, list[Entry]] = {}
    for number, each in enumerate(entries):
        parts.setdefault(each.sweep or number, []).append(each)
    return [as_one(jobs) if jobs[0].sweep else jobs[0] for jobs in parts.values()]


def as_one(parts: list[Entry]) -> Entry:
    """Return the jobs of a sweep as one entry, whose state counts theirs."""
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
    zone = f"{len(zones)} zones" if len(zones) > 1 else "".join(zones)
    state = State(state=in_states, idle=idle, zone=zone, job=summary)
    return replace(first, name=first.sweep, state=state, machines=first.workers, parts=parts)


def common_folder(folders: list[str]) -> str:
    """Return the folder that the results folders of a sweep have in common."""
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # an absolute path among others
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


def age_heading() -> str:
    """Return the heading of a table's column with `shown_age`."""
    return "CREATED" if plain.for_program() else "AGE"


def shown_age(timestamp: str) -> str:
    """Return how long ago a moment was, for a table; a program gets the moment."""
    return timestamp if plain.for_program() else age(timestamp)


def by_the_hour(state: State, machines: int) -> str:
    """Return what so many machines of a job cost, in words."""
    hourly = spending.rate_of(state.job, state.zone)
    return "at an unknown price" if hourly is None else f"{dollars(hourly * machines)} an hour"


def kept(state: State) -> str:
    """Return until when the machines of a job are kept, and what that costs: of a failed one in
    all, of one that waits for another job an hour.
    """
    if state.is_warm:
        costs = by_the_hour(state, state.job.machines)
        return f"warm until {state.kept_until[11:16]} UTC ({costs})"
    hourly = spending.rate_of(state.job, state.zone)
    hours = spending.between(state.finished_at, state.kept_until) / 3600
    usd = None if hourly is None else hourly * hours * state.job.machines
    return f"kept until {state.kept_until[11:16]} UTC, {dollars(usd)}"


def also(state: State) -> str:
    """Return what the job wrote outside of its results folder; "" if nothing is known."""
    texts = []
    if state.elsewhere:
        texts.append(f"It also wrote to other folders: {state.elsewhere}")
    if state.checkout:
        texts.append(f"It also wrote to the checkout: {state.checkout}")
    return "\n".join(texts)


def hang(state: State) -> str:
    """Return why a job seems to hang, or seemed to when it ended; "" if it moves."""
    return f"seems to hang: {state.hang}" if state.hang and not state.final else ""


def about_hang(state: State) -> list[str]:
    """Return why a job seems to hang, or did when it ended, and where its stacks are."""
    if not state.hang:
        return []
    folder = states.autopsy_folder(state.job.results_dir, state.hang_at)
    return [state.hang, f"stacks and more: berg_results/{folder}"]


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
    if state.missing:
        since = f"{state.missing} of {state.job.machines} machines since {age(state.missing_since)}"
        return f"attempt {number}; waits for {since}"
    return f"attempt {number}" if number > 1 else ""
