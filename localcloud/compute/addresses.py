"""Reserved addresses of regions: kept until they are released, whichever machine has them.

A machine of the embedded cloud has one address, internal and external at once: whoever gives it a
reserved external address gives it that one.

Not covered: global addresses, IPv6, ranges, addresses of subnetworks other than `default`, moving.
"""

from __future__ import annotations

from typing import Any

from localcloud.call import Call
from localcloud.compute import quotas
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_labels,
    check_name,
    fingerprint,
    invalid,
    last,
    not_found,
)
from localcloud.compute.disks import relabel
from localcloud.compute.fields import check_address, honoured
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute
from localcloud.errors import ApiError

FIELDS = (
    *("name", "description", "address", "addressType", "networkTier", "subnetwork", "purpose"),
    *("labels", "kind", "ipVersion"),
)


def shown(compute: Compute, row: dict) -> dict:
    """An address with who has it now."""
    project, region = row["selfLink"].removeprefix(LINK).split("/")[1:4:2]
    instance = compute.at_address(row["address"])
    if not instance or instance.project != project or region not in instance.zone:
        return {**row, "status": "RESERVED"}
    return {**row, "status": "IN_USE", "users": [instance.resource["selfLink"]]}


def find(compute: Compute, project: str, region: str, name: str) -> dict:
    path = f"projects/{project}/regions/{region}/addresses/{name}"
    for row in compute.addresses(project):
        if row["selfLink"] == LINK + path:
            return row
    raise not_found(path)


async def insert_address(compute: Compute, call: Call) -> dict:
    project, region, body = call.params["project"], call.params["region"], call.body or {}
    name, rows = body.get("name", ""), compute.addresses(project)
    check_name("resource.name", name)
    honoured("resource", body, FIELDS)
    path = f"projects/{project}/regions/{region}/addresses/{name}"
    if any(row["selfLink"] == LINK + path for row in rows):
        raise already_exists(path)
    is_internal = body.get("addressType") == "INTERNAL"
    if body.get("address") and not is_internal:
        why = "The IP address must be one that the project has: it reserves a new one without."
        raise invalid("resource.address", body["address"], why)
    if last(body.get("subnetwork") or "default") != "default":
        raise not_found(f"projects/{project}/regions/{region}/subnetworks/{body['subnetwork']}")
    if body.get("subnetwork") and not is_internal:
        why = "Subnetwork can be specified for INTERNAL addresses only."
        raise invalid("resource.subnetwork", body["subnetwork"], why)
    if body.get("ipVersion", "IPV4") != "IPV4":
        raise ApiError(501, "notImplemented", "IPv6 is not part of the embedded cloud")
    address = check_address(compute, "resource.address", body.get("address"))
    if any(row["address"] == address for row in rows):
        message = f"IP '{address}' is already reserved."
        raise ApiError(400, "invalidResourceUsage", message)
    row = {
        "kind": "compute#address",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": name,
        "description": body.get("description", ""),
        "address": address,
        "region": f"{LINK}projects/{project}/regions/{region}",
        "selfLink": LINK + path,
        **labels_of(body),
        **kind_of(project, region, body, is_internal),
    }
    error = compute.faults.take_operation_error(call.method)
    if not error and not is_internal:
        error = quotas.quota_error(compute, project, region, {"STATIC_ADDRESSES": 1})
    if not error:
        rows.append(row)
    return done(compute, call, "insert", row, error)


def labels_of(body: dict) -> dict[str, Any]:
    labels = check_labels(body.get("labels") or {})
    return {"labelFingerprint": fingerprint(labels), **({"labels": labels} if labels else {})}


def kind_of(project: str, region: str, body: dict, is_internal: bool) -> dict[str, Any]:
    """The fields that tell an internal address from an external one."""
    if not is_internal:
        return {"addressType": "EXTERNAL", "networkTier": body.get("networkTier", "PREMIUM")}
    subnetwork = f"{LINK}projects/{project}/regions/{region}/subnetworks/default"
    purpose = body.get("purpose", "GCE_ENDPOINT")
    return {"addressType": "INTERNAL", "purpose": purpose, "subnetwork": subnetwork}


def done(compute: Compute, call: Call, kind: str, row: dict, error: dict | None = None) -> dict:
    project = call.params["project"]
    compute.save_project(project)
    ids = {"targetId": row["id"], "clientOperationId": call.params.get("requestId")}
    path, scope = row["selfLink"].removeprefix(LINK), f"regions/{call.params['region']}"
    operation = compute.operation(project, kind, path, scope, call.principal, **ids)
    return compute.finish(operation, error)


async def get_address(compute: Compute, call: Call) -> dict:
    params = call.params
    return shown(compute, find(compute, params["project"], params["region"], params["address"]))


async def list_addresses(compute: Compute, call: Call) -> dict:
    rows = [
        (last(row["region"]), shown(compute, row))
        for row in compute.addresses(call.params["project"])
    ]
    return listed(call, "address", "regions", rows, "addresses")


async def label_address(compute: Compute, call: Call) -> dict:
    params = call.params
    row = find(compute, params["project"], params["region"], params["resource"])
    relabel(row, call.body or {})
    return done(compute, call, "setLabels", row)


async def delete_address(compute: Compute, call: Call) -> dict:
    params = call.params
    row = find(compute, params["project"], params["region"], params["address"])
    users = shown(compute, row).get("users")
    if users:
        path, user = row["selfLink"].removeprefix(LINK), users[0].removeprefix(LINK)
        message = f"The address resource '{path}' is already being used by '{user}'"
        raise ApiError(400, "resourceInUseByAnotherResource", message)
    compute.addresses(params["project"]).remove(row)
    return done(compute, call, "delete", row)


HANDLERS = {
    "addresses.insert": insert_address,
    "addresses.get": get_address,
    "addresses.list": list_addresses,
    "addresses.aggregatedList": list_addresses,
    "addresses.setLabels": label_address,
    "addresses.delete": delete_address,
}
