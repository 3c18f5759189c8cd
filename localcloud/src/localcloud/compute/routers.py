"""Ways out of the network `default` for machines without an external address: Cloud NAT, and
Private Google Access.

Machines here share the host's network, so that such a machine reaches the internet all the same.
Google's APIs answer it only where they would on Google: see `reaches_google`.

Not covered: networks but `default`, interfaces, BGP, addresses of one's own for NAT, NAT of single
subnetworks.
"""

from __future__ import annotations

from localcloud.call import Call
from localcloud.compute import catalog, networks
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_name,
    invalid,
    last,
    merged,
    missing,
    not_found,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.state import Compute, Instance
from localcloud.compute.templates import change

KEPT = ("name", "description", "network", "region", "nats")
NAT = (
    "name",
    "type",
    "natIpAllocateOption",
    "sourceSubnetworkIpRangesToNat",
    "endpointTypes",
    "enableEndpointIndependentMapping",
    "logConfig",
    "autoNetworkTier",
)
ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")


def kept(compute: Compute, project: str) -> dict[str, dict]:
    """The routers of a project, by region/name; changes are kept once the project is saved."""
    return compute.project_row(project).setdefault("routers", {})


def reaches_google(compute: Compute, instance: Instance) -> bool:
    """Whether a machine's requests to Google's APIs arrive: by its address, Private Google Access
    or Cloud NAT.
    """
    region, project = catalog.ZONES[instance.zone], networks.owner_of(instance)
    first = instance.resource["networkInterfaces"][0]
    subnetwork = networks.subnetwork_at(compute, first["subnetwork"]) or {}
    if first.get("accessConfigs") or subnetwork.get("privateIpGoogleAccess"):
        return True
    return any(
        at.startswith(f"{region}/") and row.get("nats")
        for at, row in kept(compute, project).items()
    )


def rows(compute: Compute, project: str) -> list[tuple[str, dict]]:
    """The rows of get and list."""
    return [(at.partition("/")[0], row) for at, row in kept(compute, project).items()]


def checked(project: str, region: str, name: str, body: dict) -> dict:
    """What is kept of a router; raise Google's refusal of a wrong one."""
    body = {
        key: value
        for key, value in written({"$ref": "Router"}, body).items()
        if key not in ("id", "selfLink")
    }
    check_name("resource.name", name)
    honoured("resource", body, KEPT)
    if last(body.get("network", "")) != "default":
        raise not_found(f"projects/{project}/global/networks/{last(body.get('network', ''))}")
    for index, nat in enumerate(body.get("nats", [])):
        field = f"resource.nats[{index}]"
        honoured(field, nat, NAT)
        check_name(f"{field}.name", nat.get("name", ""))
        if nat.get("natIpAllocateOption") != "AUTO_ONLY":
            raise missing(f"{field}.natIpAllocateOption but AUTO_ONLY")
        if nat.get("sourceSubnetworkIpRangesToNat") not in ALL:
            raise missing(f"{field}.sourceSubnetworkIpRangesToNat but {' and '.join(ALL)}")
    if len(body.get("nats", [])) > 1:
        raise invalid("resource.nats", "", "Only one NAT of a subnetwork's ranges is allowed.")
    base = f"{LINK}projects/{project}"
    links = {"network": f"{base}/global/networks/default", "region": f"{base}/regions/{region}"}
    return {**{key: body[key] for key in KEPT if key in body}, "name": name, **links}


async def insert_router(compute: Compute, call: Call) -> dict:
    project, region, body = call.params["project"], call.params["region"], call.body or {}
    name = body.get("name", "")
    row = checked(project, region, name, body)
    path = f"projects/{project}/regions/{region}/routers/{name}"
    if f"{region}/{name}" in kept(compute, project):
        raise already_exists(path)
    made = {
        "kind": "compute#router",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
    }
    return keep(compute, call, "insert", {**made, "selfLink": LINK + path, **row})


async def patch_router(compute: Compute, call: Call) -> dict:
    old = find(compute, call)
    new = merged(old, call.body or {})
    row = checked(call.params["project"], call.params["region"], old["name"], new)
    kept_of = {key: value for key, value in old.items() if key not in KEPT}
    return keep(compute, call, "patch", {**kept_of, **row})


async def delete_router(compute: Compute, call: Call) -> dict:
    return keep(compute, call, "delete", find(compute, call))


def find(compute: Compute, call: Call) -> dict:
    project, region, name = (call.params[key] for key in ("project", "region", "router"))
    if f"{region}/{name}" not in kept(compute, project):
        raise not_found(f"projects/{project}/regions/{region}/routers/{name}")
    return kept(compute, project)[f"{region}/{name}"]


def keep(compute: Compute, call: Call, kind: str, row: dict) -> dict:
    project, at = call.params["project"], f"{call.params['region']}/{row['name']}"

    def work() -> None:
        kept(compute, project)[at] = row
        if kind == "delete":
            del kept(compute, project)[at]
        compute.save_project(project)

    return change(compute, call, kind, row["selfLink"].removeprefix(LINK), row["id"], work)


async def set_private_access(compute: Compute, call: Call) -> dict:
    project, region, name = (call.params[key] for key in ("project", "region", "subnetwork"))
    path = f"projects/{project}/regions/{region}/subnetworks/{name}"
    row, there = (
        networks.subnetwork_at(compute, LINK + path),
        networks.private_access(compute, project),
    )
    if row is None:
        raise not_found(path)
    wanted = bool((call.body or {}).get("privateIpGoogleAccess"))

    def work() -> None:
        if name == "default":
            there[:] = sorted({*there, region} if wanted else {*there} - {region})
        row["privateIpGoogleAccess"] = wanted
        compute.save_project(project)

    return change(compute, call, "setPrivateIpGoogleAccess", path, "0", work)
