"""What keeps a cluster as it is described: one loop that looks at everything whenever something
changed.
"""

import asyncio
import logging

from localcloud.kubernetes import jobs, kubelet, nodes, scaling, scheduler, volumes
from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.plane import Plane

log = logging.getLogger("localcloud")

IDLE = 0.25  # seconds between two looks when nothing changes


async def run(plane: Plane) -> None:
    """Look after a cluster until its server ends."""
    plane.end_pod = kubelet.end_pod
    while not plane.closing:
        seen, changed = plane.store.version, plane.store.changed
        # A node that just came takes its pods before the autoscaler looks for those that have none.
        pods = (jobs.look, kubelet.take_up, Plane.collect, refresh_volumes)
        for look in (nodes.look, scheduler.schedule, scaling.look, *pods):
            try:
                look(plane)
            except Refusal as refusal:
                log.info("cluster %s: %s", plane.name, refusal)
            except Exception:
                log.exception("cluster %s: a controller failed inside", plane.name)
        if plane.store.version == seen:
            try:
                await asyncio.wait_for(changed.wait(), IDLE)
            except asyncio.TimeoutError:
                pass
        else:
            await asyncio.sleep(0)


def refresh_volumes(plane: Plane) -> None:
    for pod in plane.store.all("pods"):
        if pod["metadata"]["uid"] in plane.kept and pod["spec"].get("volumes"):
            volumes.refresh(plane, pod, kubelet.folder_of(plane, pod))
