"""Handlers of Kubernetes Engine v1: clusters and node pools are made, clusters are read and deleted.

A cluster does one thing at a time, as on Google. An operation ends when the nodes are there, or
gives up on them.

Not covered: updates of clusters and pools, regional clusters, Autopilot, upgrades, the older methods below
zones.
"""

import asyncio
import base64
import copy
import functools
import time
import uuid
from typing import Any

from localcloud.call import CLOUD, Call, Cloud
from localcloud.compute import catalog
from localcloud.container import planes
from localcloud.container.checks import NODE_VERSION, bad, check_cluster, check_pool, filled_pool
from localcloud.container.state import LINK, Container, shown, stamp
from localcloud.errors import ApiError, unserved
from localcloud.kubernetes import nodes


async def placed(handler: Any, cloud: Cloud, call: Call) -> dict:
    """Check the project and the location that a request names, and hand over what it names below."""
    path = (call.params.get("name") or call.params.get("parent") or "").split("/")
    project = cloud.project_named(path[1])
    if project is None:
        needed = call.method.replace("container.projects.locations.", "container.")
        raise ApiError(
            403, "forbidden", f'Required "{needed}" permission(s) for "projects/{path[1]}".'
        )
    place = path[3]
    if place != "-" and place not in catalog.ZONES and place not in set(catalog.ZONES.values()):
        raise bad(f'Location "{place}" does not exist.')
    return await handler(cloud.container, call, project, place, path[4:])


def find(container: Container, project: str, place: str, rest: list[str]) -> dict:
    cluster = container.clusters.get((project, place, rest[1]))
    if cluster is None:
        name = f"projects/{project}/locations/{place}/clusters/{rest[1]}"
        raise ApiError(
            404, "notFound", f"Not found: {name}.\nNo cluster named '{rest[1]}' in {project}."
        )
    return cluster


def check_idle(cluster: dict) -> None:
    if operation := cluster.get("_operation"):
        message = f"Cluster is running incompatible operation {operation.partition(': ')[2]}."
        raise ApiError(400, "failedPrecondition", message, code="FAILED_PRECONDITION")


def check_account(container: Container, pool: dict) -> None:
    """Of a new account Kubernetes Engine hears later than IAM, as Compute Engine does."""
    email = (pool.get("config") or {}).get("serviceAccount", "default")
    compute = container.compute
    if email != "default" and not (
        compute.account_exists(email) and compute.account_is_known(email)
    ):
        raise bad(f'Service account "{email}" does not exist.')


# --- clusters


async def create(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    wanted = copy.deepcopy((call.body or {}).get("cluster") or {})
    unserved(place not in catalog.ZONES, "clusters in several zones")
    check_cluster(wanted, project)
    name, pools = wanted["name"], wanted.pop("nodePools", None) or []
    if (project, place, name) in container.clusters:
        message = f"Already exists: projects/{project}/locations/{place}/clusters/{name}."
        raise ApiError(409, "alreadyExists", message)
    if not any(pool.get("initialNodeCount") for pool in pools):
        raise bad("Cluster.initial_node_count must be greater than zero.")
    for pool in pools:
        check_pool(pool, place, project)
        check_account(container, pool)
    cluster = filled(project, place, wanted, [place])
    cluster["nodePools"] = [filled_pool(cluster, pool) for pool in pools]
    container.clusters[project, place, name] = cluster
    plane = container.plane_of(cluster)
    await planes.start(call.request.app[CLOUD], cluster)
    show_endpoint(cluster, plane)

    async def work() -> dict | None:
        error = await provisioned(container, cluster, cluster["nodePools"])
        cluster["status"] = "ERROR" if error else "RUNNING"
        if error:
            cluster["statusMessage"] = error["message"]
        return error

    return container.begin(cluster, "CREATE_CLUSTER", "", work)


def filled(project: str, place: str, wanted: dict, zones: list[str]) -> dict:
    return {
        **wanted,
        "_project": project,
        "id": uuid.uuid4().hex * 2,
        "selfLink": f"{LINK}projects/{project}/locations/{place}/clusters/{wanted['name']}",
        "location": place,
        "zone": place,
        "locations": zones,
        "status": "PROVISIONING",
        "currentMasterVersion": NODE_VERSION,
        "currentNodeVersion": NODE_VERSION,
        "initialClusterVersion": NODE_VERSION,
        "createTime": stamp(),
        "network": wanted.get("network", "default"),
        "subnetwork": wanted.get("subnetwork", "default"),
        "releaseChannel": wanted.get("releaseChannel") or {"channel": "REGULAR"},
        "labelFingerprint": uuid.uuid4().hex[:8],
        "etag": uuid.uuid4().hex[:8],
    }


def show_endpoint(cluster: dict, plane: Any) -> None:
    """Where the API server is. Its name in DNS is the same address here, with the same certificate."""
    cluster["endpoint"] = endpoint = f"127.0.0.1:{plane.port}"
    authority = base64.b64encode((plane.folder / "ca.pem").read_bytes()).decode()
    cluster["masterAuth"] = {"clusterCaCertificate": authority}
    config = cluster.get("controlPlaneEndpointsConfig", {})
    cluster["controlPlaneEndpointsConfig"] = {
        "dnsEndpointConfig": {**config.get("dnsEndpointConfig", {}), "endpoint": endpoint},
        "ipEndpointsConfig": {
            "enabled": True,
            "enablePublicEndpoint": True,
            "publicEndpoint": endpoint,
        },
    }


async def provisioned(container: Container, cluster: dict, pools: list[dict]) -> dict | None:
    """Wait for the nodes of new pools; the error in Google's words if they do not come."""
    plane = container.plane_of(cluster)
    end = time.monotonic() + 600
    for pool in pools:
        give_up = None
        while True:
            ready = [
                each
                for each in nodes.instances_of(plane, pool)
                if plane.store.get("nodes", "", each.name)
            ]
            if len(ready) >= pool["_size"]:
                pool["status"] = "RUNNING"
                break
            trouble = pool.get("_trouble")
            give_up = (
                (give_up or time.monotonic() + container.settings.give_up) if trouble else None
            )
            if (trouble and give_up and time.monotonic() >= give_up) or time.monotonic() >= end:
                return failed(
                    plane,
                    pool,
                    trouble or {"code": "GCE_STOCKOUT", "message": "the nodes did not come"},
                )
            await asyncio.sleep(0.05)
    return None


def failed(plane: Any, pool: dict, trouble: dict) -> dict:
    group = f"{nodes.group_name(plane, pool)}-grp"
    text = f"Google Compute Engine: Instance group '{group}' creation failed: {trouble['message']}"
    pool.update(status="RUNNING_WITH_ERROR", statusMessage=text)
    code = (
        trouble["code"] if trouble["code"].startswith(("GCE_STOCKOUT", "GCE_QUOTA")) else "UNKNOWN"
    )
    canonical = "RESOURCE_EXHAUSTED" if code != "UNKNOWN" else "UNKNOWN"
    pool["conditions"] = [{"code": code, "message": text, "canonicalCode": canonical}]
    return {"code": 8 if code != "UNKNOWN" else 2, "message": text}


async def get(container: Container, call: Call, project: str, place: str, rest: list[str]) -> dict:
    return present(container, find(container, project, place, rest))


def present(container: Container, cluster: dict) -> dict:
    plane = container.plane_of(cluster)
    count = sum(len(nodes.instances_of(plane, pool)) for pool in cluster["nodePools"])
    return {**shown(cluster), **({"currentNodeCount": count} if count else {})}


async def list_clusters(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    found = [
        row
        for (owner, where, _), row in container.clusters.items()
        if owner == project and place in ("-", where)
    ]
    return {"clusters": [present(container, row) for row in found]} if found else {}


async def delete(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    cluster = find(container, project, place, rest)
    check_idle(cluster)
    cluster["status"] = "STOPPING"

    async def work() -> None:
        await drained(container, cluster, cluster["nodePools"])
        await planes.remove_plane(container, cluster)
        del container.clusters[project, place, rest[1]]

    return container.begin(cluster, "DELETE_CLUSTER", "", work)


# --- pools


async def create_pool(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    cluster, wanted = find(container, project, place, rest), (call.body or {}).get("nodePool") or {}
    check_pool(wanted, place, project)
    check_account(container, wanted)
    if any(pool["name"] == wanted["name"] for pool in cluster["nodePools"]):
        name = f"projects/{project}/locations/{place}/clusters/{rest[1]}/nodePools/{wanted['name']}"
        raise ApiError(409, "alreadyExists", f"Already exists: {name}.")
    check_idle(cluster)
    pool = filled_pool(cluster, wanted)
    cluster["nodePools"].append(pool)
    cluster["status"] = "RECONCILING"

    async def work() -> dict | None:
        error = await provisioned(container, cluster, [pool])
        cluster["status"] = "RUNNING"
        return error

    target = f"/nodePools/{pool['name']}"
    return container.begin(cluster, "CREATE_NODE_POOL", target, work)


async def drained(container: Container, cluster: dict, pools: list[dict]) -> None:
    """Wait until pools that go have no instance left."""
    plane = container.plane_of(cluster)
    for pool in pools:
        pool["status"] = "STOPPING"
    plane.store.notify()
    while any(nodes.instances_of(plane, pool) for pool in pools) and not plane.closing:
        await asyncio.sleep(0.05)


# --- operations and the rest


async def get_operation(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    found = container.operations.get((project, place, rest[1]))
    if found is None:
        raise ApiError(
            404,
            "notFound",
            f"Not found: projects/{project}/locations/{place}/operations/{rest[1]}.",
        )
    return found


async def list_operations(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    rows = container.operations.items()
    return {
        "operations": [
            row for (owner, where, _), row in rows if owner == project and place in ("-", where)
        ]
    }


HANDLERS = {
    f"container.projects.locations.{method}": functools.partial(placed, handler)
    for method, handler in {
        "clusters.create": create,
        "clusters.get": get,
        "clusters.list": list_clusters,
        "clusters.delete": delete,
        "clusters.nodePools.create": create_pool,
        "operations.get": get_operation,
        "operations.list": list_operations,
    }.items()
}
