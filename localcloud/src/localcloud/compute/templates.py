"""Instance templates: the properties of machines under a name.

They are checked as an insert of an instance would be, and refused if no zone would take them. Not
covered: regional templates, templates that are made from an instance.
"""

import uuid

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import (
    LINK,
    check_description,
    check_types_are_names,
    in_use,
    invalid,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.make import make_instance
from localcloud.compute.operations import delete, insert
from localcloud.compute.state import Compute
from localcloud.errors import ApiError


async def insert_template(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], written({"$ref": "InstanceTemplate"}, call.body)
    check_description(body)
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
        "selfLink": f"{LINK}projects/{project}/global/instanceTemplates/{body['name']}",
    }
    return insert(compute, call, "templates", row)


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


async def delete_template(compute: Compute, call: Call) -> dict:
    project, name = call.params["project"], call.params["instanceTemplate"]
    row = compute.row("templates", f"projects/{project}/global/instanceTemplates/{name}")
    for group in compute.groups.values():
        if group.resource["instanceTemplate"] == row["selfLink"]:
            raise in_use("instance_template", row, group.path)
    return delete(compute, call, "templates", row)
