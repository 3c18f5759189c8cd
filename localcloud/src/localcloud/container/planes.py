"""The control planes of clusters: opened with their cluster or the server, closed and removed with
them.
"""

from __future__ import annotations

import asyncio
import signal

from aiohttp import web

from localcloud.call import CLOUD, Cloud
from localcloud.container.state import Container, key_of
from localcloud.kubernetes import api, controllers
from localcloud.machines import processes, sandbox


async def open_plane(request: web.Request, cluster: dict) -> None:
    await start(request.app[CLOUD], cluster)


async def start(cloud: Cloud, cluster: dict) -> None:
    """Serve a cluster's API, and look after what is in it."""
    container = cloud.container
    plane = container.plane_of(cluster)
    container.servers[key_of(cluster)] = await api.listen(cloud, plane)
    plane.in_background(controllers.run(plane))


async def resume(cloud: Cloud) -> None:
    """Open every cluster, after a start of the server; operations that were under way are over."""
    for cluster in list(cloud.container.clusters.values()):
        if cluster.pop("_operation", None) and cluster["status"] in ("PROVISIONING", "RECONCILING"):
            cluster["status"] = "RUNNING"
        for pool in cluster["nodePools"]:
            if pool["status"] == "PROVISIONING":
                pool["status"] = "RUNNING"
        await start(cloud, cluster)
        cluster["_port"] = cloud.container.plane_of(cluster).port


async def close_plane(container: Container, cluster: dict) -> None:
    """End every pod and the API server."""
    key = key_of(cluster)
    plane = container.planes.get(key)
    if plane is None:
        return
    plane.closing = True
    plane.store.notify()
    deadline = asyncio.get_running_loop().time() + 30
    while plane.kept and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
    for task in list(plane.tasks):
        task.cancel()
    if server := container.servers.pop(key, None):
        await server.cleanup()


async def remove_plane(container: Container, cluster: dict) -> None:
    await close_plane(container, cluster)
    container.planes.pop(key_of(cluster), None)
    await asyncio.to_thread(sandbox.remove, container.folder_of(cluster))


def end_orphans(container: Container) -> None:
    """End the pods that a killed server left running."""
    for folder in container.folder.glob("*/pods/*/*"):
        processes.send(folder, sandbox.Sandbox(sandbox.OVERLAY), signal.SIGKILL)
    release_nodes(container)


def release_nodes(container: Container) -> None:
    """Let nodes go down at once: no pod runs on them."""
    for mark in (container.compute.folder.parent / "machines").glob("*/rootfs/run/pods"):
        mark.unlink(missing_ok=True)


async def close(container: Container) -> None:
    for cluster in list(container.clusters.values()):
        container.save(cluster)
        await close_plane(container, cluster)
    release_nodes(container)
