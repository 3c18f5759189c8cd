"""Slices of TPUs as a place for jobs: several machines that Google makes together, or none.

A job's slice is a zonal managed instance group in BULK mode, named like the job, with a workload
policy that says its topology. What its machines are lies in an instance template
(google/groups.py). Policies and templates are shared by jobs of the same kind, cost nothing, and
are reap's when no group has them. One machine with TPUs is no slice: gce.py makes it.

Google repairs a slice on demand whose host fails or is maintained: all machines are turned off and
on, and the job begins anew on them. What is preempted or deleted ends the attempt.

By flex-start the group stays where there is no room yet, and Google makes the slice when there is:
nothing runs and nothing costs until then.

Not covered: reservations, for which the template's scheduling has room; several slices for one job.
"""

import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from berg import BergError, gce
from berg.config import Config
from berg.google import api, groups, iam, instances, prices, shapes
from berg.job import NO_GROUP, Group, Machine, Resource
from berg.plan import Choice, Offer, Plan
from berg.spec import JobSpec

PATIENCE = 1500  # seconds; Google may take 12 minutes to say that there is no room
QUEUED = 60  # seconds without a machine, after which a slice by flex-start is in Google's queue
TELL_INTERVAL = 60  # seconds between two notes on how far it is
machines = gce.machines
set_metadata = gce.set_metadata
let_in = gce.let_in
console = gce.console
why_gone, proxy, shell = gce.why_gone, gce.proxy, gce.shell
login = gce.login
longest_name = gce.longest_name


def warm_up() -> None:
    """Do nothing: its requests need no library of Google's."""


def choose(config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
    """Return the machines of a slice; raise BergError for what only one machine can be."""
    choice = gce.choose(config, spec, is_sweep)
    if is_sweep:
        raise BergError(
            f"--tpu {spec.tpu} is a slice of {choice.hosts} machines: each job of a sweep runs on "
            "one machine. See: berg gpus --tpu"
        )
    return replace(choice, is_slice=True)


def offer(config: Config, spec: JobSpec, choice: Choice, sweep: int) -> Offer:
    """Return what there is for a spec, and what Google repairs of it."""
    found = gce.offer(config, spec, choice, sweep)
    if spec.model == prices.STANDARD:
        found.heals = "failed hosts, all machines together"
    return found


def request(plan: Plan) -> dict[str, Any]:
    """Return the topology, and what each machine is to be, by zone in the order of the attempts."""
    bodies = gce.request(plan)
    for body in bodies.values():
        for labels in (body["labels"], body["disks"][0]["initializeParams"]["labels"]):
            labels["berg-place"] = "tpu"
    return {"topology": shapes.parse_tpu(plan.job.tpu).topology, "zones": bodies}


def preview(config: Config, request: dict[str, Any], names: list[str], keep: bool) -> Any:
    """The bodies of the four requests that make the slice, for the first zone."""
    zone, body = next(iter(request["zones"].items()))
    return groups.requests(config, groups.SLICE, [zone], body, names, request["topology"])


def create(
    config: Config,
    request: dict[str, Any],
    names: list[str],
    keep: bool,
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> str:
    """Create the slice in the first zone that has room for it, and wait until all of it runs; by
    flex-start in the first zone, where it may stay in Google's queue.

    Returns the zone. Raises BergError with every zone that was tried and why it would not do.
    """

    def make(zone: str) -> None:
        body, topology = request["zones"][zone], request["topology"]
        bodies = groups.requests(config, groups.SLICE, [zone], body, names, topology)
        say(f"Creating a slice of {len(names)} machines in {zone}")
        ask_and_wait = functools.partial(make_slice, config, zone, bodies, names, say, still_trying)
        iam.once_known(config, ask_and_wait)

    hint = "Try other zones (--zone), another topology, or --spot"
    return gce.in_turn(list(request["zones"]), make, hint, say, still_trying)


def make_slice(
    config: Config,
    zone: str,
    bodies: dict[str, Any],
    names: list[str],
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> None:
    """Make a slice in a zone, all of it or nothing; raise OperationFailed with what Google says."""
    scheduling = bodies["template"]["properties"]["scheduling"]
    may_queue = scheduling.get("provisioningModel") == prices.FLEX
    try:
        ask(config, zone, bodies)
        if may_queue and is_queued(config, zone, names):
            return
        wait(config, zone, names, say, still_trying)
    except api.OperationFailed as error:
        if error.code != "alreadyExists":
            say(f"Taking back what there is in {zone}")
            delete(config, bodies["group"]["name"], [])
        raise


def ask(config: Config, zone: str, bodies: dict[str, Any]) -> None:
    """Send the four requests; raises OperationFailed with what Google says."""
    try:
        groups.send(config, f"/zones/{zone}", bodies)
    except api.Conflict:
        name = bodies["group"]["name"]
        raise api.OperationFailed("alreadyExists", f"a group {name!r} exists in {zone}") from None
    except api.GoogleError as error:
        raise api.OperationFailed(error.reason, error.message) from None


def is_queued(config: Config, zone: str, names: list[str]) -> bool:
    """Return whether a slice by flex-start waits for room or quota; False once a machine is there.

    Raise OperationFailed for what no waiting fixes.
    """
    job, end = names[0].rpartition("-")[0], time.monotonic() + QUEUED
    while time.monotonic() < end:
        status = api.call(config, "GET", path_of(zone, job), fields="status").get("status", {})
        for failed in groups.bulk_errors(status):
            if not failed.blocks:
                raise failed
            return True
        if status.get("currentInstanceStatuses", {}).get("nonExistent", 0) < len(names):
            return False
        time.sleep(0.5)
    return True


def wait(
    config: Config,
    zone: str,
    names: list[str],
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> None:
    """Wait until every machine of a slice runs; raise OperationFailed when that will not be."""
    job = names[0].rpartition("-")[0]
    path = path_of(zone, job)
    began = said_at = time.monotonic()
    while True:
        status = api.call(config, "GET", path, fields="status").get("status", {})
        running = status.get("currentInstanceStatuses", {}).get("running", 0)
        if running == len(names):
            return
        for failed in groups.bulk_errors(status):
            raise failed
        waited = time.monotonic() - began
        if waited > PATIENCE:
            raise not_there(config, zone, names)
        if time.monotonic() > said_at + TELL_INTERVAL:
            said_at = time.monotonic()
            say(f"{running} of {len(names)} machines run after {waited:.0f} s")
            still_trying()
        time.sleep(min(0.5 + waited / 30, 5))


def not_there(config: Config, zone: str, names: list[str]) -> api.OperationFailed:
    """Return the error that says which machines of a slice did not come."""
    there = {each.name for each in machines(config, [names[0].rpartition("-")[0]], zone=zone)}
    missing = [name for name in names if name not in there] or names
    message = f"{', '.join(missing)} did not come within {PATIENCE // 60} minutes"
    return api.OperationFailed("RESOURCE_NOT_READY", message)


def find(config: Config, name: str | None = None) -> list[dict[str, Any]]:
    """Groups that are slices, in the API's words, with `zone` as its short name."""
    return [group for group in groups.find(config, name) if "zone" in group]


def waiting(config: Config, job: str | None = None) -> set[str]:
    """Names of the jobs whose slices are being made; one that lost a machine never gets another."""
    return {
        group["name"]
        for group in find(config, job)
        if group.get("status", {}).get("bulkInstanceOperation", {}).get("inProgress")
    }


def delete(config: Config, job: str, machines: list[Machine], group: Group = NO_GROUP) -> None:
    """Delete a job's slice with all of its machines, or machines that have none, and wait until
    they are gone.
    """
    paths = [path_of(group["zone"], job) for group in find(config, job)]
    paths = paths or [instances.path_of(machine) for machine in machines]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: api.delete(config, path, wait_for_it=True), paths))


def path_of(zone: str, name: str) -> str:
    return f"/zones/{zone}/instanceGroupManagers/{name}"


def resources(config: Config) -> list[Resource]:
    """Return slices, and workload policies that no slice has."""
    slices = find(config)
    found = [
        Resource("group", each["name"], each["zone"], each["creationTimestamp"], "", place="tpu")
        for each in slices
    ]
    used = {each.get("resourcePolicies", {}).get("workloadPolicy", "") for each in slices}
    unused = [policy for policy in policies(config) if policy["selfLink"] not in used]
    return found + [unused_policy(policy) for policy in unused]


def policies(config: Config) -> Iterator[dict[str, Any]]:
    """Return the workload policies of this bucket's jobs, in the API's words."""
    mine = f'description="{groups.description(config)}"'
    for page in api.pages(config, "/aggregated/resourcePolicies", filter=mine):
        for scope in page.get("items", {}).values():
            yield from scope.get("resourcePolicies", [])


def unused_policy(policy: dict[str, Any]) -> Resource:
    region, created_at = api.last_part(policy["region"]), policy["creationTimestamp"]
    why = "no group has it"
    return Resource("policy", policy["name"], region, created_at, why, place="tpu")


def remove(config: Config, resource: Resource) -> None:
    """Delete a slice, with its machines, or a policy; what is gone already is fine."""
    policy = f"/regions/{resource.where}/resourcePolicies/{resource.name}"
    path = path_of(resource.where, resource.name) if resource.kind == "group" else policy
    api.delete(config, path, wait_for_it=True)
