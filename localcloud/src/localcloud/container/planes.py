"""The control planes of clusters: opened with their cluster, closed with it or the server."""

import asyncio
import signal

from localcloud.call import Cloud
from localcloud.container.state import Container, key_of
from localcloud.kubernetes import api, controllers
from localcloud.machines import processes, sandbox


async def start(cloud: Cloud, cluster: dict) -> None:
    """Serve a cluster's API, and look after what is in it."""
    container = cloud.container
    plane = container.plane_of(cluster)
    container.servers[key_of(cluster)] = await api.listen(cloud, plane)
    plane.in_background(controllers.run(plane))


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


def release_nodes(container: Container) -> None:
    """Let nodes go down at once: no pod runs on them."""
    for mark in (container.compute.folder.parent / "machines").glob("*/rootfs/run/pods"):
        mark.unlink(missing_ok=True)


async def close(container: Container) -> None:
    """End every cluster; its nodes, `power.settle` deletes with the next start."""
    for cluster in list(container.clusters.values()):
        await close_plane(container, cluster)
    release_nodes(container)


async def settle(container: Container) -> None:
    """End the pods that a killed server left running, and forget its clusters."""
    for folder in container.folder.glob("*/pods/*/*"):
        processes.send(folder, container.compute.sandbox, signal.SIGKILL)
    release_nodes(container)
    await asyncio.to_thread(sandbox.remove, container.folder)
