"""Instance templates: the properties of machines under a name.

They are checked as an insert of an instance would be, and refused if no zone would take them. Not
covered: regional templates, templates that are made from an instance.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_description,
    check_types_are_names,
    invalid,
    not_found,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.make import make_instance
from localcloud.compute.state import Compute, template_key
from localcloud.errors import ApiError


def change(
    compute: Compute, call: Call, kind: str, path: str, number: str, work: Callable[[], None]
) -> dict:
    """Do what takes no time; a fault lets the operation fail without it."""
    scope = next(
        (f"{place}s/{call.params[place]}" for place in ("zone", "region") if place in call.params),
        "global",
    )
    ids = {"targetId": number, "clientOperationId": call.params.get("requestId")}
    operation = compute.operation(call.params["project"], kind, path, scope, call.principal, **ids)
    error = compute.faults.take_operation_error(call.method)
    if not error:
        work()
    return compute.finish(operation, error)


def path_of(project: str, name: str) -> str:
    return f"projects/{project}/global/instanceTemplates/{name}"


def find(compute: Compute, project: str, name: str) -> dict:
    path = path_of(project, name)
    if template_key(path) not in compute.templates:
        raise not_found(path)
    return compute.templates[template_key(path)]


async def insert_template(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], written({"$ref": "InstanceTemplate"}, call.body)
    path = path_of(project, body["name"])
    check_description(body)
    if template_key(path) in compute.templates:
        raise already_exists(path)
    honoured("resource", body, ("name", "description", "properties"))
    check_properties(compute, project, body.get("properties", {}))
    for number, interface in enumerate(body["properties"]["networkInterfaces"]):
        interface["name"] = f"nic{number}"
        if not interface.get("subnetwork"):
            interface.setdefault("network", f"{LINK}projects/{project}/global/networks/default")
    row = {
        "kind": "compute#instanceTemplate",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": body["name"],
        "description": body.get("description", ""),
        "properties": body["properties"],
        "selfLink": LINK + path,
    }

    def keep() -> None:
        compute.templates[template_key(path)] = row
        compute.write("templates", row["id"], row)

    return change(compute, call, "insert", path, row["id"], keep)


def check_properties(compute: Compute, project: str, properties: dict) -> None:
    kind = properties.get("machineType", "")
    if not kind:
        raise invalid("resource.properties.machineType", kind, "Machine type must be specified.")
    check_types_are_names("resource.properties", properties)
    refusals = []
    links = [row.get("subnetwork") or "" for row in properties.get("networkInterfaces") or []]
    named = {link.partition("regions/")[2].partition("/")[0] for link in links} - {""}
    regions = named & set(catalog.REGIONS) or set(catalog.REGIONS)
    for zone in (each for each in catalog.ZONES if catalog.ZONES[each] in regions):
        try:
            # Under a name that no machine has.
            make_instance(
                compute, project, zone, {**properties, "name": f"template-{uuid.uuid4().hex}"}
            )
            break
        except ApiError as error:
            refusals.append(error)
    else:
        about_others = [each for each in refusals if "machineType" not in each.message]
        first = (about_others or refusals)[0]
        first.message = first.message.replace("attached to a VM", "in the same instance")
        first.message = first.message.replace("field 'resource.", "field 'resource.properties.")
        raise first


async def get_template(compute: Compute, call: Call) -> dict:
    return find(compute, call.params["project"], call.params["instanceTemplate"])


async def list_templates(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    rows = [("global", row) for key, row in compute.templates.items() if key[0] == project]
    return listed(call, "instanceTemplate", "globals", rows)


async def delete_template(compute: Compute, call: Call) -> dict:
    row = await get_template(compute, call)
    path = row["selfLink"].removeprefix(LINK)
    for group in compute.groups.values():
        if group.resource["instanceTemplate"] == row["selfLink"]:
            message = (
                f"The instance_template resource '{path}' is already being used by '{group.path}'"
            )
            raise ApiError(400, "resourceInUseByAnotherResource", message)

    def forget() -> None:
        del compute.templates[template_key(path)]
        compute.drop("templates", row["id"])

    return change(compute, call, "delete", path, row["id"], forget)
