"""What was left behind: machines, groups and secrets that no live job owns, disks that no machine
has, what moves of devboxes left that broke off, templates.

Every machine deletes itself, and Google deletes it at its time limit; this is for what went wrong
all the same, and for users who do not want to wait for the limit. Idle clusters are only named.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from berg import places
from berg.config import Config
from berg.gke import clusters
from berg.google import api, secret
from berg.job import Machine, Resource, State
from berg.laptop import ending, jobs, power
from berg.laptop.jobs import Entry

# Seconds after a job's end, or a resource's creation, in which resources may still be under way.
SETTLED = 300


@dataclass
class Leftover:
    """A machine or a resource, and why nobody needs it."""

    what: Machine | Resource
    why: str

    @property
    def name(self) -> str:
        return self.what.name

    @property
    def kind(self) -> str:
        return self.what.kind if isinstance(self.what, Resource) else "machine"

    @property
    def where(self) -> str:
        """Zone or region; "" for what is everywhere."""
        return self.what.where if isinstance(self.what, Resource) else self.what.zone

    def to_dict(self) -> dict[str, str]:
        details = {"kind": self.kind, "name": self.name, "place": self.where}
        return {**details, "created_at": self.what.created_at, "why": self.why}


@dataclass
class Seen:
    """All that there is, and how long ago a time was in seconds."""

    entries: list[Entry]
    resources: list[Resource]
    age: Callable[[str], float]
    stopped_seconds: float = 0  # after which a devbox that is off is left over; 0: never


def find(
    config: Config, user: str | None, say: Callable[[str], None] = jobs.silent
) -> list[Leftover]:
    """Return what a user (None: everybody) left behind; machines that were to be kept are not among
    it.

    `say` hears what may still be under way.
    """
    seen = gather(config, say)
    leftovers = [*left_machines(seen, user), *left_resources(seen, user)]
    settled = [each for each in leftovers if is_settled(seen, each.what)]
    for each in leftovers:
        if each not in settled:
            minutes = SETTLED // 60
            say(
                f"{each.kind} {each.name} ({each.why}) may still be under way: "
                f"look again in {minutes} minutes"
            )
    return in_order(settled)


def gather(config: Config, say: Callable[[str], None]) -> Seen:
    """Ask all places at once what there is; `say` hears of idle clusters."""
    _ = config.credentials
    with ThreadPoolExecutor() as pool:
        idle = pool.submit(clusters.idle, config)
        listed = pool.map(lambda place: place.resources(config), places.ALL)
        secrets = pool.submit(secret.find, config)
        entries = jobs.overview(config, None, say=say)
    for line in idle.result():  # it takes ten minutes to make another one: a person decides
        say(line)
    resources = [resource for found in listed for resource in found] + secrets.result()
    stopped_seconds = config.max_stopped_days * 86400
    return Seen(entries, resources, functools.partial(api.age_seconds, config), stopped_seconds)


def left_machines(seen: Seen, user: str | None) -> list[Leftover]:
    """Return the machines that nobody needs of a user (None: of everybody)."""
    found = []
    workers: dict[str, list[Machine]] = {}
    for entry in seen.entries:
        if user not in (None, entry.user):
            continue
        if entry.sweep:
            workers[entry.sweep] = entry.workers
        if why := why_left(seen, entry):
            found += [Leftover(machine, why) for machine in entry.machines]
        else:
            moved = power.left_by_move(entry)
            found += [Leftover(machine, f"{entry.name} has gone elsewhere") for machine in moved]
    busy = busy_sweeps(seen)
    for sweep, machines in workers.items():
        found += left_workers(machines, is_busy=sweep in busy)
    return found


def left_workers(machines: list[Machine], is_busy: bool) -> list[Leftover]:
    """Return those of a sweep's machines that it does not need: all when it is over, else those
    that are stopped.
    """
    if not is_busy:
        return [Leftover(machine, "its sweep is over") for machine in machines]
    stopped = [machine for machine in machines if machine.status == "TERMINATED"]
    return [Leftover(machine, "it is stopped; its sweep goes on") for machine in stopped]


def left_resources(seen: Seen, user: str | None) -> list[Leftover]:
    """Return the resources that nobody needs of a user (None: of everybody)."""
    whys = whys_by_name(seen, user)
    found = []
    for resource in seen.resources:
        is_meant = not resource.user or user in (None, resource.user)
        why = resource.why or whys.get(resource.name, "no job owns it")
        if is_meant and why:
            found.append(Leftover(resource, why))
    return found


def whys_by_name(seen: Seen, user: str | None) -> dict[str, str]:
    """Return why nobody needs what has the name of a job or a sweep; "" where somebody may, as do
    others than the user.
    """
    whys = dict.fromkeys((name for each in seen.entries for name in (each.name, each.sweep)), "")
    busy = busy_sweeps(seen)
    for entry in seen.entries:
        if user not in (None, entry.user):
            continue
        whys[entry.name] = why_left(seen, entry)
        if entry.sweep and entry.sweep not in busy:
            whys[entry.sweep] = "its sweep is over"
    return whys


def busy_sweeps(seen: Seen) -> set[str]:
    """Return the sweeps that have a job that somebody may still need."""
    return {each.sweep for each in seen.entries if each.sweep and not why_left(seen, each)}


def in_order(leftovers: list[Leftover]) -> list[Leftover]:
    """Return what is to be deleted: machines first, templates last; machines of a group that goes
    go with it.
    """
    groups = {each.name for each in leftovers if each.kind == "group"}
    alone = [
        each
        for each in leftovers
        if not (isinstance(each.what, Machine) and jobs.owner(each.what) in groups)
    ]
    return sorted(alone, key=lambda each: (each.kind != "machine", is_last(each)))


def is_last(leftover: Leftover) -> bool:
    """Return whether what it belongs to is to be deleted first."""
    return leftover.kind in ("template", "policy")


def is_settled(seen: Seen, what: Machine | Resource) -> bool:
    """Return whether nothing more can be under way that made it."""
    if isinstance(what, Machine) and what.status == "TERMINATED":
        return True
    return seen.age(what.created_at) > SETTLED


def why_left(seen: Seen, entry: Entry) -> str:
    """Return why nobody needs the machines and the group of an entry; "" if somebody may."""
    statuses = {machine.status for machine in entry.machines}
    if entry.state is None:
        is_for_image = {each.labels.get("berg-kind") for each in entry.machines} == {"image"}
        is_busy = is_for_image and statuses != {"TERMINATED"}
        return "" if is_busy else "no job owns it"
    if statuses == {"TERMINATED"} and not entry.group:
        return why_off(seen, entry, entry.state)
    if not entry.state.final or entry.summary.kept:
        return ""
    end = entry.state.finished_at
    is_over = not end or seen.age(end) > SETTLED
    return f"the job is {entry.state.state}" if is_over else ""


def why_off(seen: Seen, entry: Entry, state: State) -> str:
    """Return why nobody needs what is off; "" if it is a devbox that somebody may start again."""
    is_over = state.state in ("KILLED", "SUCCEEDED")
    if not entry.is_stopped and (is_over or entry.summary.kind != "devbox"):
        return f"it is stopped; the job is {state.state}"
    since = power.since(state)
    limit = seen.stopped_seconds
    if not since or not limit or seen.age(since) < limit:
        return ""
    return f"it is stopped since {since} (max_stopped_days)"


def delete(config: Config, leftovers: list[Leftover]) -> None:
    """Delete them all, side by side, templates last; what is gone already is fine."""
    with ThreadPoolExecutor(16) as pool:
        for last in (False, True):
            part = [each for each in leftovers if is_last(each) == last]
            list(pool.map(lambda each: delete_one(config, each), part))


def delete_one(config: Config, leftover: Leftover) -> None:
    what = leftover.what
    place = places.of(what.place)
    if leftover.kind == "secret":
        secret.delete(config, what.name)
    elif isinstance(what, Resource):
        place.remove(config, what)
    else:
        ending.save_console(config, what.name, what)
        place.delete(config, what.name, [what])
