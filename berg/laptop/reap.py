"""What was left behind: machines, groups and secrets that no live job owns, disks that no machine
has, templates.

Every machine deletes itself, and Google deletes it at its time limit; this is for what went wrong
all the same, and for who does not want to wait for the limit. Idle clusters are named, and stay;
what earlier versions of berg put into them goes.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from berg import places
from berg.config import Config
from berg.google import api, secret
from berg.inventory import Machine, Resource
from berg.laptop import clusters, ending, jobs

SETTLED = 300  # seconds after a job's end, or a resource's creation, in which resources may still be under way


@dataclass
class Leftover:
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


def find(
    config: Config, user: str | None, say: Callable[[str], None] = jobs.silent
) -> list[Leftover]:
    """What a user (None: everybody) left behind; machines that were to be kept are not among it.

    `say` hears what may still be under way.
    """
    _ = config.session
    with ThreadPoolExecutor() as pool:
        idle = pool.submit(clusters.idle, config)
        listed = pool.map(lambda place: place.resources(config), places.PLACES.values())
        secrets = pool.submit(secret.find, config)
        entries = jobs.overview(config, None, say=say)
    for line in idle.result():  # it takes ten minutes to make another one: a person decides
        say(line)
    mine = [entry for entry in entries if user in (None, entry.user)]
    whys = {entry.name: why for entry in mine if (why := why_left(config, entry))}
    machines = [
        Leftover(machine, whys[entry.name])
        for entry in mine
        if entry.name in whys
        for machine in entry.machines
    ]
    machines += idle_workers(config, mine)
    busy = {entry.sweep for entry in entries if not why_left(config, entry)}
    whys |= {
        entry.sweep: "its sweep is over"
        for entry in mine
        if entry.sweep and entry.sweep not in busy
    }
    known = {name for entry in entries for name in (entry.name, entry.sweep)}
    resources = [
        Leftover(resource, why)
        for found in [*listed, secrets.result()]
        for resource in found
        if (
            why := resource.why
            or whys.get(resource.name)
            or ("" if resource.name in known else "no job owns it")
        )
        and (not resource.user or user in (None, resource.user))
    ]
    young = [each for each in machines + resources if not settled(config, each.what)]
    for each in young:
        say(
            f"{each.kind} {each.name} ({each.why}) may still be under way: look again in {SETTLED // 60} minutes"
        )
    machines = [each for each in machines if each not in young]
    resources = [each for each in resources if each not in young]
    groups = {each.name for each in resources if each.kind == "group"}
    # Machines of a group go with it.
    machines = [
        each
        for each in machines
        if not (isinstance(each.what, Machine) and jobs.owner(each.what) in groups)
    ]
    return machines + sorted(resources, key=is_last)


def is_last(leftover: Leftover) -> bool:
    """Whether what it belongs to is to be deleted first."""
    return leftover.kind in ("template", "policy")


def idle_workers(config: Config, entries: list[jobs.Entry]) -> list[Leftover]:
    """Machines of sweeps all of whose jobs have been over for a while, and those that are stopped."""
    busy = {entry.sweep for entry in entries if entry.sweep and not why_left(config, entry)}
    workers_of = {entry.sweep: entry.workers for entry in entries if entry.sweep}
    return [
        Leftover(
            machine, "it is stopped; its sweep goes on" if name in busy else "its sweep is over"
        )
        for name, workers in workers_of.items()
        for machine in workers
        if name not in busy or machine.status == "TERMINATED"
    ]


def settled(config: Config, what: Machine | Resource) -> bool:
    """Whether nothing more can be under way that made it."""
    if isinstance(what, Machine) and what.status == "TERMINATED":
        return True
    return api.age_seconds(config, what.created_at) > SETTLED


def why_left(config: Config, entry: jobs.Entry) -> str:
    """Why nobody needs the machines and the group of an entry any more; "" if somebody may."""
    if entry.state is None:
        return "no job owns it"
    if (
        entry.machines
        and all(machine.status == "TERMINATED" for machine in entry.machines)
        and not entry.group
    ):
        return f"it is stopped; the job is {entry.state.state}"
    if entry.state.final and not entry.state.job.kept:
        end = entry.state.finished_at
        over = api.age_seconds(config, end) if end else SETTLED + 1
        return f"the job is {entry.state.state}" if over > SETTLED else ""
    return ""


def delete(config: Config, leftovers: list[Leftover]) -> None:
    """Delete them all, side by side, templates last; what is gone already is fine."""

    def remove(leftover: Leftover) -> None:
        what = leftover.what
        place = places.of(what.place)
        if leftover.kind == "secret":
            secret.delete(config, what.name)
        elif isinstance(what, Resource):
            place.remove(config, what)
        else:
            ending.save_console(config, what.name, what)
            place.delete(config, what.name, [what], "")

    with ThreadPoolExecutor(16) as pool:
        for last in (False, True):
            list(pool.map(remove, [each for each in leftovers if is_last(each) == last]))
