"""Zonal instance groups in BULK mode whose machines form a slice of TPUs: all of them are made, or
none.

Google tries until there is room; the reason for waiting is in `status.bulkInstanceOperation`.
A machine that is preempted, crashes or is deleted leaves a slice without one. The order of the workers is not
that of the names.

Not covered: other zonal groups, reservations, repairs of hosts.
"""

import random
import re
from collections.abc import Iterable
from typing import Any

from localcloud.compute import checks, power, quotas, tpus
from localcloud.compute.checks import invalid, last
from localcloud.compute.make import make_instance
from localcloud.compute.state import Compute, Group, Instance
from localcloud.errors import ApiError

OWN = ("targetSizePolicy", "resourcePolicies")  # fields of a group that a regional one has not
POLICY = "resource.resourcePolicies.workloadPolicy"


def check(
    compute: Compute, project: str, region: str, body: dict, template: dict
) -> dict[str, Any]:
    """Fields of a zonal group's resource that a regional one lacks."""
    link = (body.get("resourcePolicies") or {}).get("workloadPolicy", "")
    mode = (body.get("targetSizePolicy") or {}).get("mode", "")
    found = re.fullmatch(r"(?:.*/)?projects/([^/]+)/regions/([^/]+)/resourcePolicies/([^/]+)", link)
    if not found or found[2] != region:
        why = f"It must be the URL of a policy in the region of the group, {region}."
        raise invalid(POLICY, link, why)
    policy = compute.row("policies", link)
    if mode != "BULK":  # the words are Google's
        message = "MIGs with TPU accelerator topology require BULK mode in target size policy"
        raise ApiError(400, "invalid", message)
    topology, kind = (
        policy["workloadPolicy"]["acceleratorTopology"],
        template["properties"]["machineType"],
    )
    if not tpus.is_topology(kind, topology):
        why = f"Machine type {kind} does not support accelerator topology {topology}."
        raise invalid(POLICY, link, why)
    action = (body.get("instanceLifecyclePolicy") or {}).get("defaultActionOnFailure")
    checks.served("instanceLifecyclePolicy.defaultActionOnFailure", action, "DO_NOTHING")
    return {
        "targetSizePolicy": {"mode": mode},
        "resourcePolicies": {"workloadPolicy": policy["selfLink"]},
    }


def topology_of(compute: Compute, group: Group) -> str:
    return compute.row("policies", group.policy)["workloadPolicy"]["acceleratorTopology"]


def check_size(compute: Compute, group: Group, size: int) -> None:
    """Google's documentation says that the size must fit the topology; the words are ours."""
    topology = topology_of(compute, group)
    wanted = tpus.chips_in(topology) // tpus.IN_SLICES
    if size not in (0, wanted):
        raise invalid(
            "targetSize", size, f"Accelerator topology {topology} takes {wanted} instances."
        )


def create(compute: Compute, group: Group, bodies: dict[str, dict]) -> None:
    """Make all machines of a group that has none yet, or note what stood in the way."""
    if len(bodies) < len(group.members):
        return  # some existed, and are not re-created
    made, failure = make_all(compute, group, group.zone, bodies.values())
    group.progress = {
        "timestamp": compute.timestamp(),
        **({"error": {"errors": [failure]}} if failure else {}),
    }
    compute.save_group(group)
    if not failure:
        form(compute, group, made)


def make_all(
    compute: Compute, group: Group, zone: str, bodies: Iterable[dict]
) -> tuple[list[tuple[Instance, list[dict]]], dict | None]:
    """Return machines of these bodies in a zone with their disks, not turned on yet, and why it
    takes not all of them.
    """
    # a fault that a test asked for: what Google would say instead of making the machines
    failure, made = compute.faults.take_operation_error("compute.instances.insert", zone), []
    try:
        for body in bodies if not failure else ():
            made.append(make_instance(compute, group.project, zone, body))
    except ApiError as error:
        code = "CONDITION_NOT_MET" if error.reason == "conditionNotMet" else "INVALID_USAGE"
        failure = {"code": code, "message": error.message}
    needs: dict[str, int] = {}
    for instance, _ in made:
        for metric, amount in instance.needs.items():
            needs[metric] = needs.get(metric, 0) + amount
    if made and not failure:
        failure = quotas.quota_error(compute, group.project, group.region, needs)
    if made and not failure and compute.stockouts.get(zone, len(made)) < len(made):
        failure = stockout(group, zone)
    return made, failure


def stockout(group: Group, zone: str) -> dict:
    message = (
        f"The zone 'projects/{group.project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  Try a different zone, or try again later."
    )
    return {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message}


def form(compute: Compute, group: Group, made: list[tuple[Instance, list[dict]]]) -> None:
    """Number the machines, and turn them on."""
    kind, topology = last(made[0][0].resource["machineType"]), topology_of(compute, group)
    random.shuffle(made)
    if made[0][0].name == min(group.members):  # Google's order is not that of the names
        made.append(made.pop(0))
    addresses = {instance.name: instance.address for instance, _ in made}
    for worker, (instance, disk) in enumerate(made):
        instance.group = group.path
        instance.attributes = tpus.attributes(kind, topology, worker, list(addresses))
        instance.peers = addresses
        group.members[instance.name].update(created=True, zone=group.zone)
        power.insert(compute, instance, disk, compute.operation_on(instance, "insert"))
    compute.save_group(group)


def status(compute: Compute, group: Group) -> dict:
    """How the machines come, and what became of the slice."""
    machines = [i.resource["status"] for i in compute.instances.values() if i.group == group.path]
    running, total = machines.count("RUNNING"), len(group.members)
    complete = bool(total) and running == total
    begun = any(member["created"] for member in group.members.values())
    coming = bool(total) and not group.deletion and not complete and not group.formed
    state = (
        "ACTIVE" if complete else "INCOMPLETE" if group.formed else "ACTIVATING" if begun else ""
    )
    topologies = (
        [{"acceleratorTopology": topology_of(compute, group), "state": state}] if state else []
    )
    counts = {
        name.lower(): machines.count(name)
        for name in ("PROVISIONING", "STAGING", "RUNNING", "STOPPING", "REPAIRING")
    }
    operation = {"inProgress": coming, "lastProgressCheck": group.progress}
    return {
        "bulkInstanceOperation": operation,
        "currentInstanceStatuses": {**counts, "nonExistent": total - len(machines)},
        "appliedAcceleratorTopologies": topologies,
    }


def note(compute: Compute, group: Group) -> None:
    """Remember that a slice was whole once: what is missing from then on is lost."""
    there = [
        i
        for i in compute.instances.values()
        if i.group == group.path and i.resource["status"] == "RUNNING"
    ]
    if group.members and len(there) == len(group.members) and not group.formed:
        group.formed = True
        compute.save_group(group)
