"""Networks and subnetworks: how they are made, and Private Google Access.

What is being made is there, and not ready: until its operation is done it can be in no use. Not
covered: networks in auto mode other than `default`, which cannot be deleted; changes, IPv6,
secondary ranges, peerings, routes.
"""

import asyncio
import ipaddress

from localcloud.call import Call
from localcloud.compute import catalog, networks, quotas
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_description,
    check_name,
    fingerprint,
    invalid,
    last,
    not_found,
    served,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.operations import begin_operation, change
from localcloud.compute.state import Compute
from localcloud.errors import ApiError

LONGEST_PREFIX = 29
NETWORK = ("name", "description", "autoCreateSubnetworks", "mtu", "networkProfile")
SUBNETWORK = ("name", "description", "network", "region", "ipCidrRange")


async def insert_network(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], written({"$ref": "Network"}, call.body)
    check_name("resource.name", body.get("name", ""))
    check_description(body)
    honoured("resource", body, NETWORK)
    path = f"projects/{project}/global/networks/{body['name']}"
    if networks.row_at(compute, LINK + path):
        raise already_exists(path)
    profile = check_profile(compute, project, body)
    mtu = body.get("mtu") or (networks.RDMA_MTU if profile else networks.MTU)
    row = {
        "kind": "compute#network",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": body["name"],
        "description": body.get("description", ""),
        "selfLink": LINK + path,
        "autoCreateSubnetworks": False,
        "mtu": mtu,
        "routingConfig": {"routingMode": "REGIONAL"},
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        **({"networkProfile": profile} if profile else {}),
    }
    error = quotas.quota_error(compute, project, "", {"NETWORKS": 1})
    return make(compute, call, row, compute.kept(project, "networks"), error)


def check_profile(compute: Compute, project: str, body: dict) -> str:
    """The link of the profile of a new network; "" for an ordinary one."""
    served("resource.autoCreateSubnetworks", body.get("autoCreateSubnetworks"), False)
    wanted = body.get("networkProfile") or ""
    if not wanted:
        return ""
    path = f"projects/{project}/global/networkProfiles/{last(wanted)}"
    if LINK + path not in [row["selfLink"] for _, row in networks.profiles(compute, project)]:
        raise not_found(path)
    return LINK + path


async def insert_subnetwork(compute: Compute, call: Call) -> dict:
    project, region = call.params["project"], call.params["region"]
    body = written({"$ref": "Subnetwork"}, call.body)
    check_name("resource.name", body.get("name", ""))
    check_description(body)
    honoured("resource", body, SUBNETWORK)
    path = f"projects/{project}/regions/{region}/subnetworks/{body['name']}"
    above = f"projects/{project}/global/networks/{last(body.get('network') or '')}"
    network = networks.row_at(compute, LINK + above)
    if network is None:
        raise not_found(above)
    networks.check_ready(compute, LINK + above)
    if networks.row_at(compute, LINK + path):
        raise already_exists(path)
    if (zone := networks.zone_of(network)) and catalog.ZONES[zone] != region:
        place = catalog.ZONES[zone]
        message = f"Network profile only allows resource creation in location {place}."
        raise ApiError(400, "invalid", message)
    addresses = check_range(compute, project, LINK + above, body.get("ipCidrRange", ""))
    row = {
        "kind": "compute#subnetwork",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": body["name"],
        "description": body.get("description", ""),
        "selfLink": LINK + path,
        "network": LINK + above,
        "ipCidrRange": str(addresses),
        "gatewayAddress": str(addresses[1]),
        "region": f"{LINK}projects/{project}/regions/{region}",
        "stackType": "IPV4_ONLY",
        "purpose": "PRIVATE",
        "privateIpGoogleAccess": False,
        "fingerprint": fingerprint(path),
    }
    return make(compute, call, row, compute.kept(project, "subnetworks"))


def check_range(compute: Compute, project: str, network: str, text: str) -> ipaddress.IPv4Network:
    field = "resource.ipCidrRange"
    try:
        addresses = ipaddress.IPv4Network(text)
    except ValueError:
        raise invalid(field, text, "Must be a CIDR address range.") from None
    if not addresses.is_private or "/" not in text or addresses.prefixlen > LONGEST_PREFIX:
        raise invalid(field, text, f"Must be a private range of /{LONGEST_PREFIX} or larger.")
    for region, row in networks.subnetworks(compute, project):
        there = ipaddress.IPv4Network(row["ipCidrRange"])
        if row["network"] == network and there.overlaps(addresses):
            other = f"existing subnetwork '{row['name']}' in region '{region}'"
            raise invalid(field, text, f"Invalid IPCidrRange: {text} conflicts with {other}.")
    return addresses


def make(
    compute: Compute, call: Call, row: dict, rows: list[dict], error: dict | None = None
) -> dict:
    """Begin to make something; its operation is done once it is ready."""
    path = row["selfLink"].removeprefix(LINK)
    operation = begin_operation(compute, call, "insert", path, row["id"])
    error = compute.faults.take_operation_error(call.method) or error
    if error:
        return compute.finish(operation, error)
    rows.append(row)
    compute.unready.add(row["selfLink"])
    compute.save_project(call.params["project"])

    async def finish() -> None:
        await asyncio.sleep(compute.settings.network_delay)
        compute.unready.discard(row["selfLink"])
        compute.finish(operation)

    compute.in_background(finish())
    return operation


async def set_private_access(compute: Compute, call: Call) -> dict:
    """Give a subnetwork Private Google Access, or take it away."""
    project, region, name = (call.params[key] for key in ("project", "region", "subnetwork"))
    path = f"projects/{project}/regions/{region}/subnetworks/{name}"
    row, there = networks.row_at(compute, LINK + path), compute.kept(project, networks.OPEN)
    if row is None:
        raise not_found(path)
    wanted = bool((call.body or {}).get("privateIpGoogleAccess"))

    def work() -> None:
        if name == "default":
            there[:] = sorted({*there, region} if wanted else {*there} - {region})
        row["privateIpGoogleAccess"] = wanted
        compute.save_project(project)

    return change(compute, call, "setPrivateIpGoogleAccess", path, "0", work)


HANDLERS = {
    "networks.insert": insert_network,
    "subnetworks.insert": insert_subnetwork,
    "subnetworks.setPrivateIpGoogleAccess": set_private_access,
}
