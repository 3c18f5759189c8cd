"""Compute Engine's methods: the table of all, and the handlers of instances, operations and
projects.

A handler reads one checked request and answers in Google's shapes. Not covered: see HANDLERS for
the methods there are; everything else answers 501. Permissions are one flag per project.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

from localcloud.call import Call, Cloud
from localcloud.compute import (
    bulk,
    catalog,
    checks,
    groups_api,
    images,
    networks_api,
    policies,
    power,
    quotas,
    reservations,
    resize_requests,
)
from localcloud.compute.checks import LINK, not_found
from localcloud.compute.firewalls import delete_firewall, insert_firewall
from localcloud.compute.make import make_instance
from localcloud.compute.operations import begin_operation, get_operation, wait_operation
from localcloud.compute.resources import RESOURCES, read_resource
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError, unserved
from localcloud.machines import guest_attributes

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# What anybody may do in Google's projects of images.
PUBLIC = {f"compute.images.{verb}" for verb in ("get", "getFromFamily", "list")}


async def _checked(handler: Callable, cloud: Cloud, call: Call) -> Any:
    """Refuse unknown and forbidden projects and places, and know a repeated request, before any
    handler runs.
    """
    project = call.params["project"]
    known = cloud.projects.get(project)
    if known is None and project not in catalog.IMAGES:
        raise not_found(f"projects/{project}")
    public = known is None and call.method in PUBLIC
    if not public and not known:
        raise ApiError(
            403, "forbidden", f"Required '{call.method}' permission for 'projects/{project}'"
        )
    for place in ("zone", "region"):
        if place in call.params and call.method != f"compute.{place}s.get":
            checks.check_place(place, call.params[place])
    request_id = call.params.get("requestId")
    if request_id is not None and (not UUID.fullmatch(request_id) or not request_id.strip("0-")):
        raise checks.invalid("requestId", request_id, "Must be a valid non-zero UUID.")
    return cloud.compute.repeated(request_id) or await handler(cloud.compute, call)


# --- instances


async def insert(compute: Compute, call: Call) -> dict:
    project, zone, body = call.params["project"], call.params["zone"], call.body or {}
    for name in ("sourceMachineImage", "sourceInstanceTemplate"):
        unserved(call.params.get(name), name)
    checks.check_types_are_links(body)
    instance, disk = make_instance(compute, project, zone, body)
    operation = begin_operation(compute, call, "insert", instance.path, instance.id)
    power.insert(compute, instance, disk, operation)
    return operation


def instance_of(compute: Compute, call: Call) -> Instance:
    return compute.get(call.params["project"], call.params["zone"], call.params["instance"])


async def get_instance(compute: Compute, call: Call) -> dict:
    return instance_of(compute, call).resource


async def simulate_maintenance(compute: Compute, call: Call) -> dict:
    """A Spot machine is preempted by it, one that cannot go to another host goes off at once.

    https://cloud.google.com/compute/docs/instances/simulating-host-maintenance
    """
    instance = instance_of(compute, call)
    if instance.resource["status"] != "RUNNING":
        raise ApiError(400, "resourceNotReady", f"The resource '{instance.path}' is not ready")
    scheduling = instance.resource["scheduling"]
    if scheduling["provisioningModel"] == "SPOT":
        return power.preempt(compute, instance)
    unserved(scheduling["onHostMaintenance"] != "TERMINATE", "moves to another host")
    return power.maintain(compute, instance)


async def change_power(compute: Compute, call: Call) -> dict:
    instance = instance_of(compute, call)
    verb = call.method.rpartition(".")[2]
    if verb == "stop":
        power.check_stop(instance, call.params)
    if verb == "start":
        power.check_start(instance)
    operation = begin_operation(compute, call, verb, instance.path, instance.id)
    error = compute.faults.take_operation_error(call.method, instance.zone)
    if error:
        return compute.finish(operation, error)
    work = {"delete": power.delete, "stop": power.stop, "start": power.start}[verb]
    compute.in_background(work(compute, instance, operation))
    return operation


async def set_metadata(compute: Compute, call: Call) -> dict:
    instance, body = instance_of(compute, call), call.body or {}
    checks.check_fingerprint(body.get("fingerprint"), instance.resource["metadata"]["fingerprint"])
    instance.resource["metadata"] = checks.check_metadata(body)
    compute.save(instance)
    operation = begin_operation(compute, call, "setMetadata", instance.path, instance.id)
    return compute.finish(operation)


# --- projects


async def get_project(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    number = compute.projects[project]["number"]
    return {
        "kind": "compute#project",
        "id": number,
        "name": project,
        "creationTimestamp": "2026-01-05T01:02:03.000-08:00",
        "commonInstanceMetadata": compute.common_metadata(project),
        "quotas": quotas.resources(compute, project, None, catalog.PROJECT_QUOTAS),
        "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
        "defaultNetworkTier": "PREMIUM",
        "selfLink": f"{LINK}projects/{project}",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


async def set_common_metadata(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], call.body or {}
    row = compute.project_row(project)
    checks.check_fingerprint(body.get("fingerprint"), row["commonInstanceMetadata"]["fingerprint"])
    row["commonInstanceMetadata"] = checks.check_metadata(body)
    compute.save_project(project)
    kind, path = "compute.projects.setCommonInstanceMetadata", f"projects/{project}"
    return compute.finish(begin_operation(compute, call, kind, path))


HANDLERS = {
    f"compute.{method}": functools.partial(_checked, handler)
    for method, handler in {
        **{
            f"{name}.{verb}": read_resource
            for name in RESOURCES
            for verb in ("get", "list", "aggregatedList")
        },
        "instances.insert": insert,
        "instances.bulkInsert": bulk.bulk_insert,
        "instances.get": get_instance,
        "instances.delete": change_power,
        "instances.stop": change_power,
        "instances.start": change_power,
        "instances.simulateMaintenanceEvent": simulate_maintenance,
        "instances.getGuestAttributes": guest_attributes.get,
        "instances.setMetadata": set_metadata,
        "projects.get": get_project,
        "projects.setCommonInstanceMetadata": set_common_metadata,
        "firewalls.insert": insert_firewall,
        "firewalls.delete": delete_firewall,
        **groups_api.HANDLERS,
        **networks_api.HANDLERS,
        **policies.HANDLERS,
        **reservations.HANDLERS,
        **resize_requests.HANDLERS,
        **images.HANDLERS,
        **{f"{scope}Operations.get": get_operation for scope in ("zone", "region", "global")},
        **{f"{scope}Operations.wait": wait_operation for scope in ("zone", "region", "global")},
    }.items()
}
