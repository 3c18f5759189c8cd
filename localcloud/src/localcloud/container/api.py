"""Handlers of Kubernetes Engine v1: clusters, node pools, operations, server config.

A cluster does one thing at a time, as on Google. An operation ends when the nodes are there, or
gives up on them.

Not covered: updates of clusters and pools but for Workload Identity (Google re-creates the nodes of
a pool for it, here they stay), Autopilot, upgrades, the older methods below zones.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import functools
import time
import uuid
from typing import Any

from localcloud.call import Call, Cloud, Handler
from localcloud.compute import catalog
from localcloud.container import planes
from localcloud.container.checks import (
    NODE_VERSION,
    bad,
    check_cluster,
    check_count,
    check_locations,
    check_metadata_mode,
    check_name,
    check_own_zone,
    check_placement,
    check_pool,
    check_scaling,
    check_upgrades,
    check_workload_pool,
    filled_pool,
)
from localcloud.container.state import LINK, Container, shown, stamp
from localcloud.errors import ApiError
from localcloud.kubernetes import nodes, schema


def handlers(cloud: Cloud) -> dict[str, Handler]:
    table = {
        "clusters.create": create,
        "clusters.get": get,
        "clusters.list": list_clusters,
        "clusters.delete": delete,
        "clusters.update": update,
        "clusters.nodePools.create": create_pool,
        "clusters.nodePools.get": get_pool,
        "clusters.nodePools.list": list_pools,
        "clusters.nodePools.delete": delete_pool,
        "clusters.nodePools.update": update_pool,
        "clusters.nodePools.setSize": set_size,
        "clusters.nodePools.setAutoscaling": set_autoscaling,
        "operations.get": get_operation,
        "operations.list": list_operations,
        "getServerConfig": server_config,
    }
    return {
        f"container.projects.locations.{key}": functools.partial(placed, cloud, handler)
        for key, handler in table.items()
    }


async def placed(cloud: Cloud, handler: Any, call: Call) -> dict:
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
    check_same(path, call.body or {})
    return await handler(cloud.container, call, project, place, path[4:])


def check_same(path: list[str], body: dict) -> None:
    """Refuse a body that names another place than its path; gcloud sends both. The words are ours."""
    named = {"parent": "/".join(path), "name": "/".join(path)}
    named |= dict(zip(("projectId", "zone", "clusterId", "nodePoolId"), path[1::2], strict=False))
    for field, right in named.items():
        if body.get(field) and body[field] != right:
            raise bad(f'The body names {field} "{body[field]}", its path "{right}".')


def find(container: Container, project: str, place: str, rest: list[str]) -> dict:
    if place == "-":
        raise bad('Location "-" does not name one cluster.')
    cluster = container.clusters.get((project, place, rest[1]))
    if cluster is None:
        name = f"projects/{project}/locations/{place}/clusters/{rest[1]}"
        raise ApiError(
            404, "notFound", f"Not found: {name}.\nNo cluster named '{rest[1]}' in {project}."
        )
    return cluster


def find_pool(container: Container, project: str, place: str, rest: list[str]) -> tuple[dict, dict]:
    cluster = find(container, project, place, rest)
    for pool in cluster["nodePools"]:
        if pool["name"] == rest[3]:
            return cluster, pool
    raise ApiError(
        404,
        "notFound",
        f"Not found: projects/{project}/locations/{place}/clusters/{rest[1]}/nodePools/{rest[3]}.",
    )


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


def check_policy(container: Container, pool: dict, project: str, place: str) -> None:
    """Refuse a workload policy that is not there, or says another topology."""
    wanted = pool.get("placementPolicy") or {}
    name = wanted.get("policyName")
    if not name:
        return
    region = catalog.ZONES.get(place, place)
    policy = container.compute.policies.get((project, region, name))
    if policy is None:
        path = f"projects/{project}/regions/{region}/resourcePolicies/{name}"
        raise bad(f"Resource policy '{path}' was not found.")
    topology = policy["workloadPolicy"]["acceleratorTopology"]
    if topology != wanted.get("tpuTopology"):
        raise bad(f"Resource policy {name} has the topology {topology}, not that of the pool.")


# --- clusters


async def create(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    wanted = copy.deepcopy((call.body or {}).get("cluster") or {})
    name = wanted.get("name", "")
    if place == "-":
        raise bad('Location "-" does not exist.')
    check_name("cluster.name", name)
    try:
        schema.folder()
    except ModuleNotFoundError as error:
        raise ApiError(501, "notImplemented", str(error)) from None
    if (project, place, name) in container.clusters:
        message = f"Already exists: projects/{project}/locations/{place}/clusters/{name}."
        raise ApiError(409, "alreadyExists", message)
    if (wanted.get("autopilot") or {}).get("enabled"):
        raise ApiError(
            501, "notImplemented", "Autopilot clusters are not part of the embedded cloud"
        )
    pools = wanted.pop("nodePools", None)
    if pools and (wanted.get("initialNodeCount") or wanted.get("nodeConfig")):
        raise bad("Cannot specify both initial_node_count/node_config and node_pools.")
    count, config = wanted.pop("initialNodeCount", 0), wanted.pop("nodeConfig", {})
    pools = pools or [{"name": "default-pool", "initialNodeCount": count, "config": config}]
    if not any(pool.get("initialNodeCount") for pool in pools):
        raise bad("Cluster.initial_node_count must be greater than zero.")
    regional = [zone for zone, region in catalog.ZONES.items() if region == place][:3]
    zones = wanted.get("locations") or regional or [place]
    check_cluster(wanted, pools, project, place)
    check_workload_pool(wanted.get("workloadIdentityConfig"), project)
    check_locations(place, zones)
    check_own_zone(place, zones)
    for pool in pools:
        check_locations(place, pool.get("locations") or [])
        check_metadata_mode(wanted, pool)
        check_pool(pool, pool.get("locations") or zones, project)
        check_upgrades(wanted, pool)
        check_account(container, pool)
        check_policy(container, pool, project, place)
    cluster = filled(project, place, wanted, zones)
    cluster["nodePools"] = [filled_pool(cluster, pool) for pool in pools]
    container.clusters[project, place, name] = cluster
    container.note_pool(cluster)
    plane = container.plane_of(cluster)
    await planes.open_plane(call.request, cluster)
    show_endpoint(cluster, plane)

    async def work() -> dict | None:
        error = await provisioned(container, cluster, cluster["nodePools"])
        cluster["status"] = "ERROR" if error else "RUNNING"
        if error:
            cluster["statusMessage"] = error["message"]
        return error

    operation = container.begin(cluster, "CREATE_CLUSTER", "", work)
    container.save(cluster)
    return operation


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
    cluster["_port"] = plane.port
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


async def update(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    """Switch Workload Identity on; pools that are there stay as they are."""
    cluster = find(container, project, place, rest)
    config = (call.body or {})["update"]["desiredWorkloadIdentityConfig"]
    check_workload_pool(config, project)
    check_idle(cluster)
    cluster["workloadIdentityConfig"] = config
    container.note_pool(cluster)

    async def work() -> None: ...

    return container.begin(cluster, "UPDATE_CLUSTER", "", work)


async def update_pool(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    """Change what pods of a pool see as their metadata server: those that begin from now on."""
    cluster, pool = find_pool(container, project, place, rest)
    check_metadata_mode(cluster, {"name": pool["name"], "config": call.body})
    check_idle(cluster)
    pool["config"]["workloadMetadataConfig"] = (call.body or {})["workloadMetadataConfig"]
    container.plane_of(cluster).store.notify()
    return change(
        container, cluster, "UPDATE_CLUSTER", pool, lambda: provisioned(container, cluster, [])
    )


# --- pools


async def create_pool(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    cluster, wanted = find(container, project, place, rest), (call.body or {}).get("nodePool") or {}
    check_locations(place, wanted.get("locations") or [])
    check_pool(wanted, wanted.get("locations") or cluster["locations"], project)
    check_upgrades(cluster, wanted)
    check_metadata_mode(cluster, wanted)
    check_account(container, wanted)
    check_policy(container, wanted, project, place)
    if any(pool["name"] == wanted["name"] for pool in cluster["nodePools"]):
        name = f"projects/{project}/locations/{place}/clusters/{rest[1]}/nodePools/{wanted['name']}"
        raise ApiError(409, "alreadyExists", f"Already exists: {name}.")
    check_idle(cluster)
    pool = filled_pool(cluster, wanted)
    cluster["nodePools"].append(pool)
    return change(
        container,
        cluster,
        "CREATE_NODE_POOL",
        pool,
        lambda: provisioned(container, cluster, [pool]),
    )


def change(container: Container, cluster: dict, kind: str, pool: dict, wait: Any) -> dict:
    """Begin an operation on a pool; the cluster is RECONCILING until it ends."""
    cluster["status"] = "RECONCILING"

    async def work() -> dict | None:
        error = await wait()
        cluster["status"] = "RUNNING"
        return error

    operation = container.begin(cluster, kind, f"/nodePools/{pool['name']}", work)
    container.save(cluster)
    return operation


async def get_pool(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    return shown(find_pool(container, project, place, rest)[1])


async def list_pools(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    return {"nodePools": shown(find(container, project, place, rest)["nodePools"])}


async def delete_pool(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    cluster, pool = find_pool(container, project, place, rest)
    check_idle(cluster)
    pool["status"] = "STOPPING"

    async def wait() -> None:
        await drained(container, cluster, [pool])
        cluster["nodePools"].remove(pool)

    return change(container, cluster, "DELETE_NODE_POOL", pool, wait)


async def drained(container: Container, cluster: dict, pools: list[dict]) -> None:
    """Wait until pools that go have no instance left."""
    plane = container.plane_of(cluster)
    for pool in pools:
        pool["status"] = "STOPPING"
    plane.store.notify()
    while any(nodes.instances_of(plane, pool) for pool in pools) and not plane.closing:
        await asyncio.sleep(0.05)


async def set_size(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    cluster, pool = find_pool(container, project, place, rest)
    check_idle(cluster)
    count = (call.body or {}).get("nodeCount", 0)
    check_count("Node count", count)
    check_placement({**pool, "initialNodeCount": count}, pool["locations"])
    pool["_size"] = count * len(pool["locations"])
    pool["initialNodeCount"] = count
    pool.pop("_trouble", None)

    async def wait() -> dict | None:
        error = await provisioned(container, cluster, [pool])
        plane = container.plane_of(cluster)
        while len(nodes.instances_of(plane, pool)) > pool["_size"] and not plane.closing:
            await asyncio.sleep(0.05)
        return error

    return change(container, cluster, "SET_NODE_POOL_SIZE", pool, wait)


async def set_autoscaling(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    cluster, pool = find_pool(container, project, place, rest)
    wanted = (call.body or {}).get("autoscaling") or {}
    changed = {**pool, "autoscaling": wanted, "initialNodeCount": 0}
    check_scaling(changed)
    check_placement(changed, pool["locations"])
    check_idle(cluster)
    pool["autoscaling"] = wanted
    return change(
        container, cluster, "UPDATE_CLUSTER", pool, lambda: provisioned(container, cluster, [])
    )


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


async def server_config(
    container: Container, call: Call, project: str, place: str, rest: list[str]
) -> dict:
    channel = {
        "channel": "REGULAR",
        "defaultVersion": NODE_VERSION,
        "validVersions": [NODE_VERSION],
    }
    versions = {"validMasterVersions": [NODE_VERSION], "validNodeVersions": [NODE_VERSION]}
    images = {
        "defaultImageType": "COS_CONTAINERD",
        "validImageTypes": ["COS_CONTAINERD", "UBUNTU_CONTAINERD"],
    }
    return {"defaultClusterVersion": NODE_VERSION, **versions, **images, "channels": [channel]}
