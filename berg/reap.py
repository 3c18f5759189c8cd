"""What was left behind: machines that no live job owns, and disks that no machine has.

Every machine deletes itself, and Google deletes it at its time limit; this is for what went wrong all the
same, and for who does not want to wait for the limit.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from berg import gce, job, jobs
from berg.config import Config

SETTLED = 300  # seconds after a job's end, or a machine's creation, in which things may still be under way


@dataclass
class Leftover:
    kind: str  # instances or disks, as in the API's paths
    name: str
    zone: str
    created_at: str
    why: str


def find(config: Config, user: str | None) -> list[Leftover]:
    """What a user (None: everybody) left behind; machines that were to be kept are not among it."""
    _ = config.session
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(unattached_disks, config, user)
        entries = jobs.overview(config, user)
        disks = listed.result()
    machines = [
        Leftover("instances", machine["name"], machine["zone"], machine["creationTimestamp"], why)
        for entry in entries
        if (why := why_left(entry))
        for machine in entry.machines
        if job.age_seconds(machine["creationTimestamp"]) > SETTLED or machine["status"] == "TERMINATED"
    ]
    return machines + disks


def why_left(entry: jobs.Entry) -> str:
    """Why nobody needs the machines of an entry any more; "" if somebody may."""
    if not entry.machines:
        return ""
    if entry.state is None:
        return "no job owns it"
    if all(machine["status"] == "TERMINATED" for machine in entry.machines):
        return f"it is stopped; the job is {entry.state.state}"
    if entry.state.final and not entry.state.job.get("kept"):
        over = job.age_seconds(entry.state.finished_at) if entry.state.finished_at else SETTLED + 1
        return f"the job is {entry.state.state}" if over > SETTLED else ""
    return ""


def unattached_disks(config: Config, user: str | None) -> list[Leftover]:
    found = []
    wanted = "labels.berg=1" + (f" AND labels.berg-user={user}" if user else "")
    fields = "items/*/disks(name,zone,users,creationTimestamp),nextPageToken"
    for page in gce.pages(config, "/aggregated/disks", filter=wanted, fields=fields):
        for scope in page.get("items", {}).values():
            for disk in scope.get("disks", []):
                if not disk.get("users") and job.age_seconds(disk["creationTimestamp"]) > SETTLED:
                    zone = gce.last_part(disk["zone"])
                    found.append(Leftover("disks", disk["name"], zone, disk["creationTimestamp"], "no machine has it"))
    return found


def delete(config: Config, leftovers: list[Leftover]) -> None:
    """Delete them all, side by side; what is gone already is fine."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: gce.delete(config, each.zone, each.name, True, each.kind), leftovers))
