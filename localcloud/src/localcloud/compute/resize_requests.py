"""Resize requests: several machines with GPUs that a group gets all at once, or not yet.

A request that is ACCEPTED waits in Google's queue until there is room and quota for all of its
machines; `status.lastAttempt` says what stood in the way. Its members are there from the beginning,
CREATING, and count as the group's targetSize. A refusal that waiting cannot change makes it FAILED:
its machines are rolled back, and its members are gone. Deleting a group deletes its requests.

What Google wants of the group is as its pages and Terraform's samples of them have it: no repairs
(`DO_NOTHING`), of a regional one the shape ANY_SINGLE_ZONE, a template by flex-start. The words are
ours.

Not covered: zonal groups, requests for a number of machines, cancelling and deleting requests, reservations, templates without a provisioning model, the order in which Google serves
who waits, changes of the group meanwhile.
"""

import asyncio

from localcloud.call import Call
from localcloud.compute import checks, flex, groups_api, power, slices
from localcloud.compute import groups as compute_groups
from localcloud.compute.checks import LINK, invalid
from localcloud.compute.fields import honoured
from localcloud.compute.operations import change
from localcloud.compute.state import Compute, Group

SHORTEST, LONGEST = 600, 604800  # seconds of requestedRunDuration
HONOURED = ("name", "description", "instances", "requestedRunDuration", "kind")
OVER = ("CANCELLED", "FAILED", "SUCCEEDED")


def resume(compute: Compute) -> None:
    """Resume every waiting request after a start of the server."""
    for group in compute.groups.values():
        for row in group.requests.values():
            if row["state"] not in OVER:
                compute.in_background(serve(compute, group, row))


async def insert(compute: Compute, call: Call) -> dict:
    group = groups_api.open_group(compute, call)
    body = checks.written({"$ref": "InstanceGroupManagerResizeRequest"}, call.body)
    honoured("resource", body, HONOURED)
    checks.check_description(body)
    check_group(compute, group)
    names = [row.get("name", "") for row in body.get("instances") or []]
    groups_api.check_new_names(group, names, "resource.instances.name")
    check_duration(body)
    name, path = body["name"], f"{group.path}/resizeRequests/{body['name']}"
    if name in group.requests:
        raise checks.already_exists(path)
    row = {
        **body,
        "kind": "compute#instanceGroupManagerResizeRequest",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "region": f"{LINK}projects/{group.project}/regions/{group.region}",
        "resizeBy": len(names),
        "state": "CREATING",
        "status": {},
        "selfLink": LINK + path,
    }

    def begin() -> None:
        group.requests[name] = row
        compute_groups.add(compute, group, names, request=name)
        compute.in_background(serve(compute, group, row))

    return change(compute, call, "insert", path, row["id"], begin)


def check_group(compute: Compute, group: Group) -> None:
    """Raise Google's error for a group that takes no resize requests."""
    properties = compute.row("templates", group.resource["instanceTemplate"])["properties"]
    model = properties.get("scheduling", {}).get("provisioningModel", "STANDARD")
    affinity = properties.get("reservationAffinity", {}).get("consumeReservationType", "")
    action = group.resource["instanceLifecyclePolicy"]["defaultActionOnFailure"]
    shape = group.resource["distributionPolicy"]["targetShape"]
    for field, value, needed in (
        ("instanceTemplate.properties.scheduling.provisioningModel", model, "FLEX_START"),
        ("instanceTemplate.properties.reservationAffinity", affinity, "NO_RESERVATION"),
        ("instanceLifecyclePolicy.defaultActionOnFailure", action, "DO_NOTHING"),
        ("distributionPolicy.targetShape", shape, "ANY_SINGLE_ZONE"),
    ):
        if value != needed:
            raise invalid(field, value, f"It must be {needed} for resize requests.")


def check_duration(body: dict) -> None:
    seconds = int(body.get("requestedRunDuration", {}).get("seconds", 0))
    if not SHORTEST <= seconds <= LONGEST:
        why = "It must be between 10 minutes and 7 days."
        raise invalid("resource.requestedRunDuration.seconds", seconds, why)


# --- the queue


async def serve(compute: Compute, group: Group, row: dict) -> None:
    """Retry until a request has its machines or has ended otherwise."""
    row["state"] = "ACCEPTED"
    compute.save_group(group)
    while row["state"] == "ACCEPTED" and not (compute.closing or group.deletion):
        if failure := await attempt(compute, group, row):
            row["status"] = {"lastAttempt": {"error": {"errors": [failure]}}}
            compute.save_group(group)
            await asyncio.sleep(compute.settings.refill)


async def attempt(compute: Compute, group: Group, row: dict) -> dict | None:
    """Make all machines of a request in the first zone that has room for them; return what it
    waits for where none has.
    """
    properties = compute.row("templates", group.resource["instanceTemplate"])["properties"]
    if properties.get("resourcePolicies"):
        message = "Creating queued resource with resource policies is not supported."
        fail(compute, group, row, {"code": "UNSUPPORTED_OPERATION", "message": message})
        return None
    shortage = None
    for zone in group.zones:
        bodies = [body_of(compute, group, name, row) for name in members(group, row)]
        made, failure = slices.make_all(compute, group, zone, bodies)
        if not failure:
            await bring_up(compute, group, row, made)
            return None
        if failure["code"] not in (*flex.ROOM, "ZONE_RESOURCE_POOL_EXHAUSTED"):
            fail(compute, group, row, failure)
            return None
        shortage = shortage or failure
    return shortage


def members(group: Group, row: dict) -> list[str]:
    return [name for name, each in group.members.items() if each.get("request") == row["name"]]


def body_of(compute: Compute, group: Group, name: str, row: dict) -> dict:
    """What an insert of a member says; it runs no longer than its request."""
    body = compute_groups.body_of(compute, group, name)
    most = {"seconds": str(row["requestedRunDuration"]["seconds"])}
    scheduling = {**body["scheduling"], "maxRunDuration": most}
    return {**body, "scheduling": scheduling}


async def bring_up(compute: Compute, group: Group, row: dict, made: list) -> None:
    """Turn the machines on; if one does not come up, none stays."""
    begun = []
    for instance, disks in made:
        instance.group = group.path
        group.members[instance.name].update(created=True, zone=instance.zone)
        operation = compute.operation_on(instance, "insert")
        begun.append(operation)
        power.insert(compute, instance, disks, operation)
    compute.save_group(group)
    while any(operation["status"] != "DONE" for operation in begun) and not compute.closing:
        await asyncio.sleep(flex.LOOK)
    errors = [each["error"]["errors"][0] for each in begun if "error" in each]
    if errors:
        fail(compute, group, row, errors[0])
    else:
        row["status"], row["state"] = {}, "SUCCEEDED"
        compute.save_group(group)


def fail(compute: Compute, group: Group, row: dict, error: dict) -> None:
    compute_groups.remove(compute, group, members(group, row))
    row["status"] = {"error": {"errors": [error]}}
    row["state"] = "FAILED"
    compute.save_group(group)


# --- requests that there are


async def get(compute: Compute, call: Call) -> dict:
    group, name = groups_api.group_of(compute, call), call.params["resizeRequest"]
    if name not in group.requests:
        raise checks.not_found(f"{group.path}/resizeRequests/{name}")
    return group.requests[name]


METHODS = {"insert": insert, "get": get}
HANDLERS = {
    f"regionInstanceGroupManagerResizeRequests.{verb}": handler for verb, handler in METHODS.items()
}
