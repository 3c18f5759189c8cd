"""bulkInsert: many machines in one request, in one zone or anywhere in a region.

Not covered: instanceFlexibilityPolicy, capacity of a zone other than what
/_berg/stockout says.
"""

from __future__ import annotations

import asyncio
import re
import uuid

from localcloud import schema
from localcloud.call import Call
from localcloud.compute import catalog, checks, constraints, power, quotas, reservations
from localcloud.compute.fields import honoured
from localcloud.compute.make import make_instance
from localcloud.compute.state import Compute, Instance, template_key
from localcloud.errors import ApiError

MOST = 5000
HONOURED = (
    "count",
    "minCount",
    "namePattern",
    "perInstanceProperties",
    "instanceProperties",
    "locationPolicy",
    "sourceInstanceTemplate",
)


async def bulk_insert(compute: Compute, call: Call) -> dict:
    """Check everything now, then make the machines; the operation tells how it went."""
    given = (call.body or {}).get("instanceProperties") or {}  # its nulls are for the template
    project, body = call.params["project"], schema.without_nulls(call.body or {})
    region = call.params.get("region") or catalog.ZONES[call.params["zone"]]
    scope = f"regions/{region}" if "region" in call.params else f"zones/{call.params['zone']}"
    honoured("resource", body, HONOURED)
    if any(each.get("hostname") for each in body.get("perInstanceProperties", {}).values()):
        raise checks.missing("resource.perInstanceProperties[].hostname")
    properties = body.get("instanceProperties", {})
    checks.check_types_are_names("resource.instanceProperties", properties)
    if link := body.get("sourceInstanceTemplate"):
        template = template_of(compute, project, region, link)
        properties = checks.merged(template["properties"], given)
    if properties.get("scheduling", {}).get("provisioningModel") == "FLEX_START":
        field = "resource.instanceProperties.scheduling.provisioningModel"
        raise checks.invalid(field, "FLEX_START", "It is not supported for bulk inserts.")
    names = choose_names(compute, project, region, body)
    least = int(body.get("minCount", len(names)))
    if not 1 <= least <= len(names):
        raise checks.invalid(
            "resource.minCount", least, f"Must be between 1 and count ({len(names)})."
        )
    zones = [call.params["zone"]] if "zone" in call.params else allowed_zones(region, body)
    for name in names:
        for zone in zones:
            if (project, zone, name) in compute.instances:
                raise checks.already_exists(f"projects/{project}/zones/{zone}/instances/{name}")
    samples = samples_by_zone(compute, project, zones, {**properties, "name": names[0]})
    path, group = f"projects/{project}/{scope}/instances", str(uuid.uuid4())
    ids = {"clientOperationId": call.params.get("requestId"), "operationGroupId": group}
    operation = compute.operation(project, "bulkInsert", path, scope, call.principal, **ids)
    error = compute.faults.take_operation_error(call.method, call.params.get("zone"))
    sample = next(iter(samples.values()))
    needs = {metric: amount * len(names) for metric, amount in sample.needs.items()}
    needs = quotas.drawn(compute, project, region, needs, sample.resource["scheduling"])
    error = error or forbidden(compute, project, sample.zone, {**properties, "name": names[0]})
    error = error or quotas.quota_error(compute, project, region, needs)
    error = error or reservations.shortage(compute, sample, len(names))
    shape = body.get("locationPolicy", {}).get("targetShape", "ANY_SINGLE_ZONE")
    plan = place(compute, list(samples), len(names), shape)
    if error is None and len(plan) < least:
        error = quotas.stockout_error(compute, project, sample.zone, sample.resource)
    if error is not None:
        return compute.finish(operation, too_few(least), error)
    children = []
    for name, zone in zip(names, plan, strict=False):
        instance, disk = make_instance(compute, project, zone, {**properties, "name": name})
        child = compute.operation_on(instance, "insert", call.principal, operationGroupId=group)
        power.insert(compute, instance, disk, child)
        children.append((instance, child))
    compute.in_background(finish(compute, operation, children, least))
    return operation


def template_of(
    compute: Compute,
    project: str,
    region: str,
    link: str,
    field: str = "resource.sourceInstanceTemplate",
) -> dict:
    """The instance template that a whole or a partial link names: a global one, or of the region."""
    found = re.search(
        r"(?:projects/([^/]+)/)?((?:global|regions/([^/]+))/instanceTemplates/[^/]+)$", link
    )
    if not found:
        raise checks.invalid(field, link, "The URL is malformed.")
    if found[3] not in (None, region):
        why = f"The template must be global or in the region of the instance, {region}."
        raise checks.invalid(field, link, why)
    path = f"projects/{found[1] or project}/{found[2]}"
    if template_key(path) not in compute.templates:
        raise checks.not_found(path)
    return compute.templates[template_key(path)]


def forbidden(compute: Compute, project: str, zone: str, body: dict) -> dict | None:
    """The operation error for what an organisation policy forbids."""
    try:
        constraints.check_instance(compute, project, zone, body)
    except ApiError as error:
        return {"code": "CONDITION_NOT_MET", "message": error.message}
    return None


def too_few(least: int) -> dict:
    """The first error of a bulk insert that came to nothing; why stands in those after it."""
    message = f"Requested minimum count of {least} VMs could not be created."
    return {"code": "VM_MIN_COUNT_NOT_REACHED", "message": message}


def choose_names(compute: Compute, project: str, region: str, body: dict) -> list[str]:
    """The names of the machines: keys of perInstanceProperties, or the pattern counted up."""
    given, pattern = list(body.get("perInstanceProperties", {})), body.get("namePattern")
    count = int(body.get("count", len(given)))
    if not 1 <= count <= MOST:
        raise checks.invalid("resource.count", count, f"Must be between 1 and {MOST}.")
    if given and pattern:
        why = "Either namePattern or perInstanceProperties must be set."
        raise checks.invalid("resource.namePattern", pattern, why)
    if given:
        if len(given) != count:
            message = f"count ({count}) must be the number of perInstanceProperties ({len(given)})."
            raise checks.invalid("resource.perInstanceProperties", "", message)
        for name in given:
            checks.check_name("resource.perInstanceProperties", name)
        return given
    found = re.fullmatch(r"([^#]*)(#{1,18})([^#]*)", pattern or "")
    if not found:
        why = "Must contain one contiguous sequence of hash (#) characters."
        raise checks.invalid("resource.namePattern", pattern, why)
    head, digits, tail = found.groups()
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
    """The zones of the region that locationPolicy leaves: those allowed if any is, minus those
    denied.
    """
    field, policy = "resource.locationPolicy", body.get("locationPolicy", {})
    honoured(field, policy, ("locations", "targetShape"))
    zones = [zone for zone in catalog.ZONES if catalog.ZONES[zone] == region]
    zones = [zone for zone in zones if zone not in catalog.AI_ZONES]  # only those in `zones` named
    preferences = {}
    for key, value in policy.get("locations", {}).items():
        zone = checks.last(key)
        if "/" not in key:
            raise checks.invalid(f"{field}.locations", key, "The URL is malformed.")
        if zone not in zones:
            raise checks.invalid(f"{field}.locations", zone, f"Zone must be in region '{region}'.")
        preferences[zone] = value.get("preference", "ALLOW")
    allowed = [zone for zone in zones if preferences.get(zone) == "ALLOW"]
    return allowed or [zone for zone in zones if preferences.get(zone) != "DENY"]


def samples_by_zone(
    compute: Compute, project: str, zones: list[str], body: dict
) -> dict[str, Instance]:
    """What the first machine would be in each zone where Google would make it; the first refusal if
    that is none.
    """
    samples, refusals = {}, []
    for zone in zones:
        try:
            samples[zone] = make_instance(compute, project, zone, body)[0]
        except ApiError as error:
            if error.reason == "alreadyExists":
                raise
            refusals.append(error)
    if not samples:
        raise (
            refusals[0]
            if refusals
            else checks.invalid("resource.locationPolicy", "", "No zone is allowed.")
        )
    return samples


def place(compute: Compute, zones: list[str], count: int, shape: str) -> list[str]:
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


async def finish(
    compute: Compute, operation: dict, children: list[tuple[Instance, dict]], least: int
) -> None:
    """Wait for the machines; with fewer than minCount take them back."""
    while any(child["status"] != "DONE" for _, child in children):
        await compute.changed.wait()
    good = [instance for instance, child in children if "error" not in child]
    enough = len(good) >= least
    locations = {}
    for zone in {instance.zone for instance, _ in children}:
        target = sum(instance.zone == zone for instance, _ in children)
        created = sum(instance.zone == zone for instance in good)
        locations[f"zones/{zone}"] = {
            "targetVmCount": target,
            "createdVmCount": created,
            "failedToCreateVmCount": target - created,
            "deletedVmCount": 0 if enough else created,
            "status": "DONE" if enough else "ROLLING_BACK",
        }
    operation["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": locations}
    if enough:
        compute.finish(operation)
        return
    deletions = [
        (instance, compute.operation_on(instance, "delete", operation["user"])) for instance in good
    ]
    await asyncio.gather(*(power.delete(compute, *deletion) for deletion in deletions))
    failed = next(child for _, child in children if "error" in child)
    compute.finish(operation, too_few(least), *failed["error"]["errors"])
