"""bulkInsert: many machines in one request, in one zone or anywhere in a region.

Not covered: instance templates, instanceFlexibilityPolicy, capacity of a zone other than what /_berg/stockout says.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import TYPE_CHECKING, Any

from berg.local import catalog, compute_make
from berg.local import compute_checks as checks
from berg.local.compute import Compute
from berg.local.errors import ApiError

if TYPE_CHECKING:
    from berg.local.server import Call

MOST = 5000


async def bulk_insert(compute: Compute, call: Call) -> dict:
    """Check everything now, then make the machines; the operation tells how it went."""
    project, body = call.params["project"], call.body or {}
    region = call.params.get("region") or catalog.ZONES[call.params["zone"]]
    scope = f"regions/{region}" if "region" in call.params else f"zones/{call.params['zone']}"
    done = compute.repeated(project, call.params.get("requestId"))
    if done:
        return done
    properties = dict(body.get("instanceProperties", {}))
    names = choose_names(compute, project, region, body)
    least = int(body.get("minCount", len(names)))
    if not 1 <= least <= len(names):
        raise checks.invalid("resource.minCount", least, f"Must be between 1 and count ({len(names)}).")
    zones = [call.params["zone"]] if "zone" in call.params else allowed_zones(region, body)
    fitting, refused = fitting_zones(compute, project, zones, properties, names[0])
    if not fitting:
        raise refused or checks.invalid("resource.locationPolicy", region, "No zone is allowed.")
    for name in names:
        for zone in zones:
            if (project, zone, name) in compute.instances:
                path = f"projects/{project}/zones/{zone}/instances/{name}"
                raise ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
    group = str(uuid.uuid4())
    operation = compute.operation(
        project,
        "bulkInsert",
        f"projects/{project}/{scope}/instances",
        scope,
        call.principal,
        clientOperationId=call.params.get("requestId"),
        operationGroupId=group,
    )
    error = compute.faults.take_operation_error(call.method, call.params.get("zone"))
    instance, _ = compute_make.instance(compute, project, fitting[0], body_for(properties, names[0], fitting[0], {}))
    error = error or compute.quota_error(
        project, region, {metric: amount * len(names) for metric, amount in instance.needs.items()}
    )
    shape = body.get("locationPolicy", {}).get("targetShape", "ANY_SINGLE_ZONE")
    plan = place(compute, fitting, len(names), least, shape)
    if error is None and len(plan) < least:
        error = compute.stockout_error(project, fitting[0], instance.resource)
        error["location"] = fitting[0]
    if error is not None:
        return compute.finish(operation, {key: value for key, value in error.items() if key != "location"})
    per_instance = body.get("perInstanceProperties", {})
    children = []
    for name, zone in zip(names, plan, strict=False):
        own, disk = compute_make.instance(
            compute, project, zone, body_for(properties, name, zone, per_instance.get(name, {}))
        )
        child = compute.operation(
            project, "insert", own.path, f"zones/{zone}", call.principal, targetId=own.id, operationGroupId=group
        )
        compute.insert(own, disk, child)
        children.append((zone, own, child))
    compute.start(finish(compute, operation, children, names, zones, least))
    return operation


def choose_names(compute: Compute, project: str, region: str, body: dict) -> list[str]:
    """The names of the machines: keys of perInstanceProperties, or the pattern counted up."""
    given, pattern = list(body.get("perInstanceProperties", {})), body.get("namePattern")
    count = int(body.get("count", len(given)))
    if not 1 <= count <= MOST:
        raise checks.invalid("resource.count", count, f"Must be between 1 and {MOST}.")
    if given:
        if len(given) != count:
            message = f"count ({count}) must be the number of perInstanceProperties ({len(given)})."
            raise checks.invalid("resource.perInstanceProperties", "", message)
        for name in given:
            checks.check_name("resource.perInstanceProperties", name)
        return given
    if not pattern or not re.fullmatch(r"[^#]*#{1,18}[^#]*", pattern):
        why = "Must contain one contiguous sequence of hash (#) characters."
        raise checks.invalid("resource.namePattern", pattern, why)
    head, digits, tail = re.fullmatch(r"([^#]*)(#+)([^#]*)", pattern).groups()  # type: ignore[union-attr]
    taken = {i.name for i in compute.instances.values() if i.project == project}
    names: list[str] = []
    number = 0
    while len(names) < count:
        number += 1
        name = f"{head}{number:0{len(digits)}d}{tail}"
        if name not in taken:
            names.append(name)
    checks.check_name("resource.namePattern", names[0])
    return names


def allowed_zones(region: str, body: dict) -> list[str]:
    """The zones of the region that locationPolicy leaves: those allowed if any is, minus those denied."""
    zones = [zone for zone in catalog.ZONES if catalog.ZONES[zone] == region]
    locations = body.get("locationPolicy", {}).get("locations", {})
    preferences = {checks.last(key): value.get("preference", "ALLOW") for key, value in locations.items()}
    for zone in preferences:
        if zone not in zones:
            raise checks.invalid("resource.locationPolicy.locations", zone, f"Zone must be in region '{region}'.")
    allowed = [zone for zone in zones if preferences.get(zone) == "ALLOW"]
    return allowed or [zone for zone in zones if preferences.get(zone) != "DENY"]


def fitting_zones(
    compute: Compute, project: str, zones: list[str], properties: dict, name: str
) -> tuple[list[str], ApiError | None]:
    """The zones in which Google would make such a machine, and the last refusal of the others."""
    fitting, refused = [], None
    for zone in zones:
        try:
            compute_make.instance(compute, project, zone, body_for(properties, name, zone, {}))
            fitting.append(zone)
        except ApiError as error:
            if error.reason == "alreadyExists":
                raise
            refused = error
    return fitting, refused


def place(compute: Compute, zones: list[str], count: int, least: int, shape: str) -> list[str]:
    """A zone for each machine, as many as find room."""
    room = {zone: min(compute.stockouts.get(zone, count), count) for zone in zones}
    if shape == "ANY_SINGLE_ZONE":
        best = max(zones, key=lambda zone: room[zone])
        return [best] * room[best]
    plan: list[str] = []
    while len(plan) < count and any(room.values()):
        open_zones = [zone for zone in zones if room[zone]]
        for zone in open_zones if shape == "BALANCED" else open_zones[:1]:
            if len(plan) < count:
                room[zone] -= 1
                plan.append(zone)
    return plan


def body_for(properties: dict, name: str, zone: str, own: dict) -> dict:
    """The Instance body for one machine: instanceProperties name machine type and disks without a zone."""
    body: dict[str, Any] = {**properties, "name": name}
    if own.get("hostname"):
        body["hostname"] = own["hostname"]
    body.pop("minCpuPlatform", None)
    return body


async def finish(
    compute: Compute, operation: dict, children: list, names: list[str], zones: list[str], least: int
) -> None:
    """Wait for the machines; with fewer than minCount take them back."""
    while any(child["status"] != "DONE" for _, _, child in children):
        await compute.changed.wait()
    good = [(zone, own) for zone, own, child in children if "error" not in child]
    status = {
        f"zones/{zone}": {
            "targetVmCount": sum(at == zone for at, _, _ in children),
            "createdVmCount": sum(at == zone for at, _ in good),
            "failedToCreateVmCount": sum(at == zone and "error" in child for at, _, child in children),
            "deletedVmCount": 0 if len(good) >= least else sum(at == zone for at, _ in good),
            "status": "DONE" if len(good) >= least else "ROLLING_BACK",
        }
        for zone in zones
        if any(at == zone for at, _, _ in children)
    }
    operation["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": status}
    if len(good) >= least:
        compute.finish(operation)
        return
    deletions = []
    for zone, own in good:
        row = compute.operation(own.project, "delete", own.path, f"zones/{zone}", operation["user"], targetId=own.id)
        compute.delete(own, row)
        deletions.append(row)
    while any(row["status"] != "DONE" for row in deletions):
        await asyncio.wait_for(compute.changed.wait(), None)
    failed = next(child for _, _, child in children if "error" in child)
    compute.finish(operation, failed["error"]["errors"][0])
