"""Instance templates: the properties of machines under a name.

They are checked as an insert of an instance would be, and refused if no zone would take them. A
template that is made from an instance has its properties, see from_instance.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from localcloud.call import Call
from localcloud.compute import catalog, from_instance
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_description,
    check_types_are_names,
    invalid,
    last,
    not_found,
    written,
)
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


def path_of(project: str, name: str, region: str = "") -> str:
    """The path of a template; without a region it is a global one."""
    scope = f"regions/{region}" if region else "global"
    return f"projects/{project}/{scope}/instanceTemplates/{name}"


def find(compute: Compute, project: str, name: str, region: str = "") -> dict:
    path = path_of(project, name, region)
    if template_key(path) not in compute.templates:
        raise not_found(path)
    return compute.templates[template_key(path)]


async def insert_template(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], written({"$ref": "InstanceTemplate"}, call.body)
    region = call.params.get("region", "")
    path = path_of(project, body["name"], region)
    check_description(body)
    if template_key(path) in compute.templates:
        raise already_exists(path)
    if body.get("sourceInstance"):
        body["properties"] = from_instance.properties(compute, project, body)
    elif body.get("sourceInstanceParams"):
        why = "It can be specified with a source instance only."
        raise invalid("resource.sourceInstanceParams", "", why)
    check_properties(compute, project, body.get("properties", {}), region)
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
        **{key: body[key] for key in ("sourceInstance", "sourceInstanceParams") if body.get(key)},
        "selfLink": LINK + path,
        **({"region": f"{LINK}projects/{project}/regions/{region}"} if region else {}),
    }

    def keep() -> None:
        compute.templates[template_key(path)] = row
        compute.write("templates", row["id"], row)

    return change(compute, call, "insert", path, row["id"], keep)


def check_properties(compute: Compute, project: str, properties: dict, region: str = "") -> None:
    kind = properties.get("machineType", "")
    if not kind:
        raise invalid("resource.properties.machineType", kind, "Machine type must be specified.")
    check_types_are_names("resource.properties", properties)
    refusals = []
    links = [row.get("subnetwork") or "" for row in properties.get("networkInterfaces") or []]
    named = {link.partition("regions/")[2].partition("/")[0] for link in links} - {""}
    regions = {region} if region else named & set(catalog.REGIONS) or set(catalog.REGIONS)
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
    params = call.params
    return find(compute, params["project"], params["instanceTemplate"], params.get("region", ""))


async def list_templates(compute: Compute, call: Call) -> dict:
    found = [row for key, row in compute.templates.items() if key[0] == call.params["project"]]
    if call.method.endswith("aggregatedList"):
        rows = [
            (f"regions/{last(row['region'])}" if "region" in row else "global", row)
            for row in found
        ]
        return listed(call, "instanceTemplate", "regionsAndGlobal", rows)
    place = "regions" if "region" in call.params else "globals"
    here = [row for row in found if ("region" in row) == (place == "regions")]
    rows = [(last(row.get("region", "global")), row) for row in here]
    return listed(call, "instanceTemplate", place, rows)


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
