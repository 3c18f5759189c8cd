"""What was left behind: machines and groups that no live job owns, disks that no machine has, unused templates.

Every machine deletes itself, and Google deletes it at its time limit; this is for what went wrong all the
same, and for who does not want to wait for the limit.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from berg import gce, jobs
from berg.config import Config
from berg.google import groups

SETTLED = 300  # seconds after a job's end, or a thing's creation, in which things may still be under way


@dataclass
class Leftover:
    kind: str  # machine, group, disk or template
    name: str
    place: str  # zone or region
    created_at: str
    why: str

    @property
    def path(self) -> str:
        return {
            "machine": f"/zones/{self.place}/instances/{self.name}",
            "disk": f"/zones/{self.place}/disks/{self.name}",
            "group": groups.path_of(self.place, self.name),
            "template": f"/global/instanceTemplates/{self.name}",
        }[self.kind]


def find(config: Config, user: str | None) -> list[Leftover]:
    """What a user (None: everybody) left behind; machines that were to be kept are not among it."""
    _ = config.session
    with ThreadPoolExecutor() as pool:
        disks = pool.submit(unattached_disks, config, user)
        kept = pool.submit(groups.find, config)
        entries = jobs.overview(config, None)
    mine = [entry for entry in entries if user in (None, entry.user)]
    found = [(entry, why) for entry in mine if (why := why_left(config, entry))]
    machines = [
        Leftover("machine", machine["name"], machine["zone"], machine["creationTimestamp"], why)
        for entry, why in found
        for machine in entry.machines
        if machine["status"] == "TERMINATED" or settled(config, machine)
    ]
    machines += idle_crews(config, mine)
    whys = {entry.name: why for entry, why in found}
    known = {entry.name for entry in entries}
    left = [
        Leftover("group", group["name"], group["region"], group["creationTimestamp"], why)
        for group in kept.result()
        if (why := whys.get(group["name"]) or ("" if group["name"] in known else "no job owns it"))
        and settled(config, group)
    ]
    names = {each.name for each in left}
    machines = [machine for machine in machines if machine.name not in names]  # they go with their group
    templates = [
        Leftover("template", template["name"], "", template["creationTimestamp"], "no group is made from it")
        for template in groups.unused_templates(config, kept.result())
        if settled(config, template)
    ]
    return left + machines + disks.result() + templates


def idle_crews(config: Config, entries: list[jobs.Entry]) -> list[Leftover]:
    """Machines of sweeps all of whose jobs have been over for a while."""
    busy = {entry.sweep for entry in entries if entry.sweep and not why_left(config, entry)}
    crews = {entry.sweep: entry.crew for entry in entries if entry.sweep}
    return [
        Leftover("machine", machine["name"], machine["zone"], machine["creationTimestamp"], "its sweep is over")
        for name, crew in crews.items()
        for machine in crew
        if name not in busy
    ]


def settled(config: Config, resource: dict[str, Any]) -> bool:
    return gce.age_seconds(config, resource["creationTimestamp"]) > SETTLED


def why_left(config: Config, entry: jobs.Entry) -> str:
    """Why nobody needs the machines and the group of an entry any more; "" if somebody may."""
    if entry.state is None:
        return "no job owns it"
    if entry.machines and all(machine["status"] == "TERMINATED" for machine in entry.machines) and not entry.group:
        return f"it is stopped; the job is {entry.state.state}"
    if entry.state.final and not entry.state.job.get("kept"):
        end = entry.state.finished_at
        over = gce.age_seconds(config, end) if end else SETTLED + 1
        return f"the job is {entry.state.state}" if over > SETTLED else ""
    return ""


def unattached_disks(config: Config, user: str | None) -> list[Leftover]:
    found = []
    wanted = gce.ours(config) + (f" AND labels.berg-user={user}" if user else "")
    fields = "items/*/disks(name,zone,users,creationTimestamp),nextPageToken"
    for page in gce.pages(config, "/aggregated/disks", filter=wanted, fields=fields):
        for scope in page.get("items", {}).values():
            for disk in scope.get("disks", []):
                if not disk.get("users") and settled(config, disk):
                    zone = gce.last_part(disk["zone"])
                    found.append(Leftover("disk", disk["name"], zone, disk["creationTimestamp"], "no machine has it"))
    return found


def delete(config: Config, leftovers: list[Leftover]) -> None:
    """Delete them all, side by side, templates last; what is gone already is fine."""
    with ThreadPoolExecutor(16) as pool:
        machines = [each for each in leftovers if each.kind == "machine"]
        list(pool.map(lambda m: jobs.save_console(config, m.name, {"name": m.name, "zone": m.place}), machines))
        for last in (False, True):
            paths = [each.path for each in leftovers if (each.kind == "template") == last]
            list(pool.map(lambda path: gce.delete(config, path, wait_for_it=True), paths))
