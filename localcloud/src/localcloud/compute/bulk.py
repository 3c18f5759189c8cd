"""instances.bulkInsert: many machines of given names in one zone, in one request.

Not covered: bulk inserts in a region, of which some machines are enough, name patterns, templates,
instanceFlexibilityPolicy.
"""

import asyncio
import uuid

from localcloud import schema
from localcloud.call import Call
from localcloud.compute import catalog, checks, power, quotas, reservations
from localcloud.compute.fields import honoured
from localcloud.compute.make import make_instance
from localcloud.compute.operations import begin_operation
from localcloud.compute.state import Compute, Instance
from localcloud.errors import unserved

MOST = 5000
HONOURED = (
    "count",
    "minCount",
    "perInstanceProperties",
    "instanceProperties",
)


async def bulk_insert(compute: Compute, call: Call) -> dict:
    """Check everything now, then make the machines; the operation tells how it went."""
    project, body = call.params["project"], schema.without_nulls(call.body or {})
    zone = call.params["zone"]
    region = catalog.ZONES[zone]
    honoured("resource", body, HONOURED)
    differ = any(any(each.values()) for each in body.get("perInstanceProperties", {}).values())
    unserved(differ, "bulk inserts of machines that differ")
    properties = body.get("instanceProperties", {})
    checks.check_types_are_names("resource.instanceProperties", properties)
    if properties.get("scheduling", {}).get("provisioningModel") == "FLEX_START":
        field = "resource.instanceProperties.scheduling.provisioningModel"
        raise checks.invalid(field, "FLEX_START", "It is not supported for bulk inserts.")
    names = choose_names(body)
    unserved(int(body.get("minCount", len(names))) != len(names), "minCount other than count")
    for name in names:
        if (project, zone, name) in compute.instances:
            raise checks.already_exists(f"projects/{project}/zones/{zone}/instances/{name}")
    first = {**properties, "name": names[0]}
    sample = make_instance(compute, project, zone, first)[0]
    path, group = f"projects/{project}/zones/{zone}/instances", str(uuid.uuid4())
    operation = begin_operation(compute, call, "bulkInsert", path, operationGroupId=group)
    error = compute.faults.take_operation_error(call.method, zone)
    needs = {metric: amount * len(names) for metric, amount in sample.needs.items()}
    needs = quotas.drawn(compute, project, region, needs, sample.resource["scheduling"])
    error = error or quotas.quota_error(compute, project, region, needs)
    error = error or reservations.shortage(compute, sample, len(names))
    if error is None and compute.stockouts.get(zone, len(names)) < len(names):
        error = quotas.stockout_error(compute, project, zone, sample.resource)
    if error is not None:
        return compute.finish(operation, too_few(len(names)), error)
    children = []
    for name in names:
        instance, disk = make_instance(compute, project, zone, {**properties, "name": name})
        child = compute.operation_on(instance, "insert", call.principal, operationGroupId=group)
        power.insert(compute, instance, disk, child)
        children.append((instance, child))
    compute.in_background(finish(compute, operation, children))
    return operation


def too_few(least: int) -> dict:
    """The first error of a failed bulk insert; the errors after it give the reasons."""
    message = f"Requested minimum count of {least} VMs could not be created."
    return {"code": "VM_MIN_COUNT_NOT_REACHED", "message": message}


def choose_names(body: dict) -> list[str]:
    """The names of the machines: the keys of perInstanceProperties."""
    given = list(body.get("perInstanceProperties", {}))
    count = int(body.get("count", len(given)))
    if not 1 <= count <= MOST or count != len(given):
        why = f"Must be between 1 and {MOST}, and the number of perInstanceProperties."
        raise checks.invalid("resource.count", count, why)
    for name in given:
        checks.check_name("resource.perInstanceProperties", name)
    return given


async def finish(compute: Compute, operation: dict, children: list[tuple[Instance, dict]]) -> None:
    """Wait for the machines; unless all of them come take them back."""
    while any(child["status"] != "DONE" for _, child in children):
        await compute.changed.wait()
    good = [instance for instance, child in children if "error" not in child]
    if len(good) == len(children):
        compute.finish(operation)
        return
    deletions = [
        (instance, compute.operation_on(instance, "delete", operation["user"])) for instance in good
    ]
    await asyncio.gather(*(power.delete(compute, *deletion) for deletion in deletions))
    failed = next(child for _, child in children if "error" in child)
    compute.finish(operation, too_few(len(children)), *failed["error"]["errors"])
