"""Managed instance groups: how each member is kept alive. Knows no HTTP.

What Google says, in pages below https://cloud.google.com/compute/docs/instance-groups/:

- A member that is preempted, crashes, is stopped or deleted by anyone but its group is recreated with a new boot disk
  (about-repair), under its own name (configuring-stateful-migs) and in its own zone.
- In another zone only with `onRepair.allowChangingZone`, when its own has no room; that needs `forceUpdateOnRepair`,
  the shape ANY (or BALANCED), and a group without stateful configuration (repair-vm-in-alternate-zone). Whether a name
  alone is such a configuration no page says; here it is one.
- A member that reaches its maxRunDuration is deleted and not re-created: the group shrinks (release notes).
- A creation that fails is tried again until it succeeds; `currentAction` and `lastAttempt` of the member show it
  (reference of listManagedInstances).

Zonal groups with a workload policy are slices of TPUs, see slices.py; machines that come all at once
by a resize request are resize_requests.py's.

Not covered: groups that spread their machines, updates of a group or its template, health checks, stateful configuration, autoscaling,
standby pools, instance flexibility, target pools, proactive redistribution, abandoned and recreated
instances by request. Google waits longer and longer between attempts; here it is `refill` seconds.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from localcloud.compute import power, quotas, slices
from localcloud.compute.make import make_instance
from localcloud.compute.state import Compute, Group, Instance
from localcloud.errors import ApiError

CODES = {
    "notFound": "RESOURCE_NOT_FOUND",
    "alreadyExists": "RESOURCE_ALREADY_EXISTS",
    "conditionNotMet": "CONDITION_NOT_MET",
}


def resume(compute: Compute) -> None:
    """Resume every group after a start of the server."""
    for group in compute.groups.values():
        for name in group.members:
            compute.in_background(keep(compute, group, name))
        if group.deletion:
            compute.in_background(delete(compute, group))


def add(compute: Compute, group: Group, names: Iterable[str], request: str = "") -> None:
    """Give a group members of these names; those of a resize request are its to make."""
    for name in names:
        group.members[name] = {
            "zone": group.zones[0],
            "created": False,
            "action": "CREATING",
            "errors": [],
            "request": request,
        }
        group.resource["targetSize"] += 1
        compute.in_background(keep(compute, group, name))
    compute.save_group(group)


def remove(compute: Compute, group: Group, names: Iterable[str]) -> None:
    """Let members go for good."""
    for name in names:
        compute.release(group, name)
    compute.save_group(group)


def wanted(group: Group) -> list[str]:
    """The members that shall be there."""
    return [name for name, member in group.members.items() if member["action"] != "DELETING"]


async def delete(compute: Compute, group: Group) -> None:
    """End a group whose members are all being deleted, when they are gone."""
    while group.members:
        await compute.changed.wait()
        if compute.closing:
            return
    del compute.groups[group.key]
    compute.drop("groups", group.resource["id"])
    compute.finish(compute.operations[group.deletion])


def found(compute: Compute, group: Group, name: str) -> Instance | None:
    """The machine that a member has."""
    rows = (compute.instances.get((group.project, zone, name)) for zone in group.zones)
    return next((instance for instance in rows if instance and instance.group == group.path), None)


async def keep(compute: Compute, group: Group, name: str) -> None:
    """See to it that a member runs, until it is let go; then delete it."""
    member, loop = group.members[name], asyncio.get_running_loop()
    policy, next_attempt = group.resource["instanceLifecyclePolicy"], 0.0
    while not compute.closing:
        changed, wait = compute.changed, None
        instance = found(compute, group, name)
        status = instance.resource["status"] if instance else ""
        repaired = not member["created"] or policy["defaultActionOnFailure"] == "REPAIR"
        if member["action"] == "DELETING" and not instance:
            del group.members[name]
            compute.save_group(group)
            return
        if instance and (member["action"] == "DELETING" or (status == "TERMINATED" and repaired)):
            if member["action"] != "DELETING":
                note(compute, group, member, action="RECREATING")
            await power.delete(compute, instance, compute.operation_on(instance, "delete"))
            continue
        if instance and status == "RUNNING":
            note(compute, group, member, action="NONE", errors=[], zone=instance.zone, created=True)
            if group.is_slice:
                slices.note(compute, group)
        elif not instance and repaired and not member.get("request"):
            note(compute, group, member, action="RECREATING" if member["created"] else "CREATING")
            wait = next_attempt - loop.time()
            if wait <= 0:
                wait = compute.settings.refill
                next_attempt = loop.time() + wait
                if not group.is_slice:
                    create(compute, group, name)
                elif name == min(group.members):  # it makes all of them
                    slices.create(
                        compute,
                        group,
                        {name: body_of(compute, group, name) for name in missing(group)},
                    )
        try:
            await asyncio.wait_for(changed.wait(), wait)
        except asyncio.TimeoutError:
            pass


def missing(group: Group) -> list[str]:
    """Members that never had a machine."""
    return [name for name, member in group.members.items() if not member["created"]]


def note(compute: Compute, group: Group, member: dict, **values: Any) -> None:
    if any(member[key] != value for key, value in values.items()):
        member.update(values)
        compute.save_group(group)


def create(compute: Compute, group: Group, name: str) -> None:
    """Make a member's machine in the first zone that takes it; else note what stood in the way."""
    member = group.members[name]
    shortages, refusals = [], []
    for zone in possible_zones(group, name):
        try:
            body = body_of(compute, group, name)
            instance, disk = make_instance(compute, group.project, zone, body)
        except ApiError as error:
            code, words = (
                CODES.get(error.reason, "INVALID_USAGE"),
                f"Instance '{name}' creation failed: ",
            )
            message = f"{words if error.status == 412 else ''}{error.message}"
            refusals.append({"code": code, "message": message})
            continue
        # Asked before there is an operation: hours without stock would leave thousands of them.
        shortage = quotas.shortage(compute, instance)
        if not shortage:
            instance.group = group.path
            kind = "compute.instances.repair.recreateInstance" if member["created"] else "insert"
            operation = compute.operation_on(instance, kind)
            power.insert(compute, instance, disk, operation)
            if "error" not in operation:
                return note(compute, group, member, zone=zone, created=True, errors=[])
            shortage = operation["error"]["errors"][0]
        shortages.append(shortage)
    return note(compute, group, member, errors=(shortages or refusals)[-1:])


def body_of(compute: Compute, group: Group, name: str) -> dict:
    """What an insert of a member would say: its template, what the group sets for all, and where it
    comes from. What the group sets for all does not apply to machines of a resize request.
    """
    link = group.resource["instanceTemplate"]
    properties = compute.row("templates", link)["properties"]
    patch = {}
    if not group.members[name].get("request"):
        patch = group.resource.get("allInstancesConfig", {}).get("properties", {})
    owner = f"projects/{compute.projects[group.project]['number']}"
    metadata = {
        **{
            item["key"]: item.get("value", "")
            for item in properties.get("metadata", {}).get("items", [])
        },
        **patch.get("metadata", {}),
        "instance-template": f"{owner}/{link.partition('/projects/')[2].partition('/')[2]}",
        "created-by": f"{owner}/{group.place}/instanceGroupManagers/{group.name}",
    }
    return {
        **properties,
        "name": name,
        "labels": {**properties.get("labels", {}), **patch.get("labels", {})},
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
    }


def possible_zones(group: Group, name: str) -> list[str]:
    """Where a member may be made, best first."""
    if group.zone:
        return group.zones
    member, shape = group.members[name], group.resource["distributionPolicy"]["targetShape"]
    taken = [
        other["zone"]
        for other in group.members.values()
        if other["created"] and other is not member
    ]
    if member["created"]:
        repair = group.resource["instanceLifecyclePolicy"].get("onRepair", {})
        others = group.zones if repair.get("allowChangingZone") == "YES" else []
        return [member["zone"], *(zone for zone in others if zone != member["zone"])]
    return taken[:1] if shape == "ANY_SINGLE_ZONE" and taken else group.zones
