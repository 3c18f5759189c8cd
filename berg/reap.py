"""What was left behind: machines and groups that no live job owns, disks that no machine has, unused templates.

Every machine deletes itself, and Google deletes it at its time limit; this is for what went wrong all the
same, and for who does not want to wait for the limit.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from berg import jobs, places
from berg.config import Config
from berg.google import api
from berg.job import Machine, Thing

SETTLED = 300  # seconds after a job's end, or a thing's creation, in which things may still be under way


@dataclass
class Leftover:
    what: Machine | Thing
    why: str

    @property
    def name(self) -> str:
        return self.what.name

    @property
    def kind(self) -> str:
        return self.what.kind if isinstance(self.what, Thing) else "machine"

    @property
    def where(self) -> str:
        """Zone or region; "" for what is everywhere."""
        return self.what.where if isinstance(self.what, Thing) else self.what.zone

    def to_dict(self) -> dict[str, str]:
        details = {"kind": self.kind, "name": self.name, "place": self.where}
        return {**details, "created_at": self.what.created_at, "why": self.why}


def find(config: Config, user: str | None) -> list[Leftover]:
    """What a user (None: everybody) left behind; machines that were to be kept are not among it."""
    _ = config.session
    with ThreadPoolExecutor() as pool:
        listed = pool.map(lambda place: place.things(config), places.PLACES.values())
        entries = jobs.overview(config, None)
    mine = [entry for entry in entries if user in (None, entry.user)]
    whys = {entry.name: why for entry in mine if (why := why_left(config, entry))}
    machines = [
        Leftover(machine, whys[entry.name])
        for entry in mine
        if entry.name in whys
        for machine in entry.machines
        if machine.status == "TERMINATED" or settled(config, machine)
    ]
    machines += idle_crews(config, mine)
    known = {entry.name for entry in entries}
    things = [
        Leftover(thing, why)
        for found in listed
        for thing in found
        if (why := thing.why or whys.get(thing.name) or ("" if thing.name in known else "no job owns it"))
        and (not thing.user or user in (None, thing.user))
        and settled(config, thing)
    ]
    groups = {each.name for each in things if each.kind == "group"}
    # Machines of a group go with it.
    machines = [each for each in machines if not (isinstance(each.what, Machine) and jobs.owner(each.what) in groups)]
    return machines + sorted(things, key=is_last)


def is_last(leftover: Leftover) -> bool:
    """Whether what it belongs to is to be deleted first."""
    return leftover.kind == "template"


def idle_crews(config: Config, entries: list[jobs.Entry]) -> list[Leftover]:
    """Machines of sweeps all of whose jobs have been over for a while."""
    busy = {entry.sweep for entry in entries if entry.sweep and not why_left(config, entry)}
    crews = {entry.sweep: entry.crew for entry in entries if entry.sweep and entry.sweep not in busy}
    return [Leftover(machine, "its sweep is over") for crew in crews.values() for machine in crew]


def settled(config: Config, what: Machine | Thing) -> bool:
    return api.age_seconds(config, what.created_at) > SETTLED


def why_left(config: Config, entry: jobs.Entry) -> str:
    """Why nobody needs the machines and the group of an entry any more; "" if somebody may."""
    if entry.state is None:
        return "no job owns it"
    if entry.machines and all(machine.status == "TERMINATED" for machine in entry.machines) and not entry.group:
        return f"it is stopped; the job is {entry.state.state}"
    if entry.state.final and not entry.state.job.get("kept"):
        end = entry.state.finished_at
        over = api.age_seconds(config, end) if end else SETTLED + 1
        return f"the job is {entry.state.state}" if over > SETTLED else ""
    return ""


def delete(config: Config, leftovers: list[Leftover]) -> None:
    """Delete them all, side by side, templates last; what is gone already is fine."""

    def remove(leftover: Leftover) -> None:
        what = leftover.what
        place = places.of(what.place)
        if isinstance(what, Thing):
            place.remove(config, what)
        else:
            jobs.save_console(config, what.name, what)
            place.delete(config, what.name, [what], "")

    with ThreadPoolExecutor(16) as pool:
        for last in (False, True):
            list(pool.map(remove, [each for each in leftovers if is_last(each) == last]))
