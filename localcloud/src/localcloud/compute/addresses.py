"""Reserved addresses, regional and global: they are kept until they are released.

A machine of the embedded cloud has one address, both internal and external. A machine that is created
with a reserved external address has that one. A reserved address that is added later is only shown in
its resource. Global addresses are for load balancers, of which there are none.

Not covered: internal global addresses and other ranges, IPv6 of regions, addresses of subnetworks
other than `default`, moving.
"""

from __future__ import annotations

import ipaddress
import random
from typing import Any

from localcloud.call import Call
from localcloud.compute import catalog, quotas
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_labels,
    check_name,
    fingerprint,
    invalid,
    last,
    missing,
    not_found,
)
from localcloud.compute.fields import honoured
from localcloud.compute.interfaces import check_address
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute
from localcloud.errors import ApiError

FIELDS = (
    "name",
    "description",
    "address",
    "addressType",
    "networkTier",
    "subnetwork",
    "purpose",
    "labels",
    "kind",
    "ipVersion",
)
GLOBAL = ("name", "description", "address", "addressType", "networkTier", "labels", "ipVersion")
# Where there is nothing: no machine is at a global address.
RANGES = {
    "IPV4": ipaddress.ip_network("198.18.0.0/15"),
    "IPV6": ipaddress.ip_network("2001:db8::/32"),
}


def shown(compute: Compute, row: dict) -> dict:
    """An address with who has it now. A machine that gave an external one back still goes by it
    among the machines here.
    """
    project, region = row["selfLink"].removeprefix(LINK).split("/")[1:4:2]
    instance = compute.user_of(row["address"])
    if not instance or (instance.project, catalog.ZONES[instance.zone]) != (project, region):
        return {**row, "status": "RESERVED"}
    if row["addressType"] == "EXTERNAL" and row["address"] not in instance.external_addresses:
        return {**row, "status": "RESERVED"}
    return {**row, "status": "IN_USE", "users": [instance.resource["selfLink"]]}


def place_of(params: dict) -> str:
    """The region of a request, as paths have it; "global" for one about global addresses."""
    return f"regions/{params['region']}" if "region" in params else "global"


def find(compute: Compute, params: dict, name: str) -> dict:
    project = params["project"]
    path = f"projects/{project}/{place_of(params)}/addresses/{name}"
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
    if body.get("address") and not is_internal and not is_borrowed(compute, project, region, body):
        why = "The IP address must be one that the project has: it reserves a new one without."
        raise invalid("resource.address", body["address"], why)
    if last(body.get("subnetwork") or "default") != "default":
        raise not_found(f"projects/{project}/regions/{region}/subnetworks/{body['subnetwork']}")
    if body.get("subnetwork") and not is_internal:
        why = "Subnetwork can be specified for INTERNAL addresses only."
        raise invalid("resource.subnetwork", body["subnetwork"], why)
    if body.get("ipVersion", "IPV4") != "IPV4":
        raise ApiError(501, "notImplemented", "IPv6 is not part of the embedded cloud")
    address = body.get("address") or ""
    if is_internal or not address:
        address = check_address(compute, "resource.address", address)
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


def is_borrowed(compute: Compute, project: str, region: str, body: dict) -> bool:
    """Whether an external address is one that a machine of the region has for the time being, which
    is thereby reserved.
    """
    user = compute.user_of(body["address"])
    is_here = user is not None and (user.project, region) == (project, user.zone.rpartition("-")[0])
    return is_here and user is not None and body["address"] in user.external_addresses


async def insert_global(compute: Compute, call: Call) -> dict:
    """Reserve an external address that is of no region."""
    project, body = call.params["project"], call.body or {}
    name, rows = body.get("name", ""), compute.addresses(project)
    check_name("resource.name", name)
    if body.get("addressType") == "INTERNAL":
        raise missing("resource.addressType: INTERNAL")
    for field in ("subnetwork", "purpose"):
        if body.get(field):
            why = "It can be specified for INTERNAL addresses only."
            raise invalid(f"resource.{field}", body[field], why)
    honoured("resource", body, GLOBAL)
    if body.get("networkTier", "PREMIUM") != "PREMIUM":
        why = "Global external IP addresses are always Premium Tier."
        raise invalid("resource.networkTier", body["networkTier"], why)
    path = f"projects/{project}/global/addresses/{name}"
    if any(row["selfLink"] == LINK + path for row in rows):
        raise already_exists(path)
    if body.get("address"):
        why = "The IP address must be one that the project has: it reserves a new one without."
        raise invalid("resource.address", body["address"], why)
    version = body.get("ipVersion", "IPV4")
    row = {
        "kind": "compute#address",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": name,
        "description": body.get("description", ""),
        "address": unused(version, {each["address"] for each in rows}),
        "addressType": "EXTERNAL",
        "ipVersion": version,
        "networkTier": "PREMIUM",
        "selfLink": LINK + path,
        **labels_of(body),
    }
    error = compute.faults.take_operation_error(call.method)
    error = error or quotas.quota_error(compute, project, "", {"STATIC_ADDRESSES": 1})
    if not error:
        rows.append(row)
    return done(compute, call, "insert", row, error)


def unused(version: str, taken: set[str]) -> str:
    """A new address of a range that is for documents and for tests of networks."""
    addresses = RANGES[version]
    while True:
        found = str(addresses[random.randrange(1, 1 << 16) << (0 if version == "IPV4" else 64)])
        if found not in taken:
            return found


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
    path, scope = row["selfLink"].removeprefix(LINK), place_of(call.params)
    operation = compute.operation(project, kind, path, scope, call.principal, **ids)
    return compute.finish(operation, error)


async def get_address(compute: Compute, call: Call) -> dict:
    return shown(compute, find(compute, call.params, call.params["address"]))


async def list_addresses(compute: Compute, call: Call) -> dict:
    found = compute.addresses(call.params["project"])
    if call.method.endswith("aggregatedList"):
        rows = [(scope_of(row), shown(compute, row)) for row in found]
        return listed(call, "address", "regionsAndGlobal", rows, "addresses")
    place = place_of(call.params)
    rows = [(last(place), shown(compute, row)) for row in found if scope_of(row) == place]
    kind = "regions" if "region" in call.params else "globals"
    return listed(call, "address", kind, rows, "addresses")


def scope_of(row: dict) -> str:
    return f"regions/{last(row['region'])}" if "region" in row else "global"


async def delete_address(compute: Compute, call: Call) -> dict:
    row = find(compute, call.params, call.params["address"])
    users = shown(compute, row).get("users")
    if users:
        path, user = row["selfLink"].removeprefix(LINK), users[0].removeprefix(LINK)
        message = f"The address resource '{path}' is already being used by '{user}'"
        raise ApiError(400, "resourceInUseByAnotherResource", message)
    compute.addresses(call.params["project"]).remove(row)
    return done(compute, call, "delete", row)


HANDLERS = {
    "addresses.insert": insert_address,
    "addresses.get": get_address,
    "addresses.list": list_addresses,
    "addresses.aggregatedList": list_addresses,
    "addresses.delete": delete_address,
    "globalAddresses.insert": insert_global,
    "globalAddresses.get": get_address,
    "globalAddresses.list": list_addresses,
    "globalAddresses.delete": delete_address,
}
