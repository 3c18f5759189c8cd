"""What keeps a cluster as it is described: one loop that looks at everything whenever something
changed.

Not covered: rolling updates in steps (all pods of an old template are replaced at once).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import secrets
from pathlib import Path

from localcloud.kubernetes import (
    admission,
    deployments,
    jobs,
    kubelet,
    kueue,
    making,
    nodes,
    scaling,
    scheduler,
    volumes,
)
from localcloud.kubernetes.kinds import (
    Refusal,
    condition,
    is_leaving,
    is_over,
    owned_by,
    reference,
)
from localcloud.kubernetes.plane import LETTERS, Plane
from localcloud.kubernetes.store import Selector
from localcloud.machines import processes

log = logging.getLogger("localcloud")

IDLE = 0.25  # seconds between two looks when nothing changes


async def run(plane: Plane) -> None:
    """Look after a cluster until its server ends."""
    plane.end_pod = kubelet.end_pod
    while not plane.closing:
        seen, changed = plane.store.version, plane.store.changed
        # A node that just came takes its pods before the autoscaler looks for those that have none.
        pods = (
            look_at_workloads,
            kueue.look,
            jobs.look,
            kubelet.take_up,
            Plane.collect,
            refresh_volumes,
            tell_names,
            count_quotas,
        )
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


def count_quotas(plane: Plane) -> None:
    admission.count(plane.store)


def look_at_workloads(plane: Plane) -> None:
    for deployment in plane.store.all("deployments"):
        if not is_leaving(deployment):
            deployments.look(plane, deployment)
    for replicas in plane.store.all("replicasets"):
        if not is_leaving(replicas):
            look_at_replicas(plane, replicas)


def look_at_replicas(plane: Plane, replicas: dict) -> None:
    meta, spec = replicas["metadata"], replicas["spec"]
    pods = [
        pod for pod in plane.store.all("pods") if owned_by(pod, replicas) and not is_leaving(pod)
    ]
    for pod in [pod for pod in pods if is_over(pod)]:
        plane.delete("pods", pod)
        pods.remove(pod)
    for _ in range(spec["replicas"] - len(pods)):
        body = copy.deepcopy(spec["template"])
        ends = "".join(secrets.choice(LETTERS) for _ in range(5))
        body["metadata"] |= {
            "name": f"{meta['name']}-{ends}",
            "ownerReferences": reference(replicas),
        }
        if made := making.make(plane, replicas, body, "replicaset-controller"):
            pods.append(made)
    for pod in pods[spec["replicas"] :]:
        plane.delete("pods", pod)
    ready = sum(bool(condition(pod, "Ready")) for pod in pods)
    replicas["status"] = {
        "replicas": min(len(pods), spec["replicas"]),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    plane.store.put("replicasets", replicas)


# --- services


def pods_of_service(plane: Plane, service: dict) -> list[dict]:
    chosen = service["spec"].get("selector") or {}
    namespace = service["metadata"]["namespace"]
    terms = Selector(namespace, ",".join(f"{key}={value}" for key, value in chosen.items()))
    early = service["spec"].get("publishNotReadyAddresses")
    return [
        pod
        for pod in plane.store.all("pods")
        if chosen
        and terms.fits(pod)
        and pod["status"].get("podIP")
        and not is_over(pod)
        and (early or condition(pod, "Ready"))
    ]


def refresh_volumes(plane: Plane) -> None:
    for pod in plane.store.all("pods"):
        is_kept = pod["metadata"]["uid"] in plane.kept and not plane.is_silent(pod)
        if is_kept and pod["spec"].get("volumes"):
            volumes.refresh(plane, pod, kubelet.folder_of(plane, pod))


def tell_names(plane: Plane) -> None:
    """Services' names in every pod's /etc/hosts, as DNS has them: a headless one's pods, else its
    first pod. A name alone is known in the service's own namespace.
    """
    lines: list[str] = []
    near: dict[str, list[str]] = {}  # by namespace
    for service in plane.store.all("services"):
        meta, mine = service["metadata"], pods_of_service(plane, service)
        name, namespace = meta["name"], meta["namespace"]
        whole = f"{name}.{namespace}.svc.cluster.local"
        for pod in mine:
            if pod["spec"].get("subdomain") == name and pod["spec"].get("hostname"):
                host, address = pod["spec"]["hostname"], pod["status"]["podIP"]
                lines.append(
                    f"{address} {host}.{whole} {host}.{name}.{namespace}.svc {host}.{name}"
                )
        for pod in mine[:1]:
            address = pod["status"]["podIP"]
            lines.append(f"{address} {whole} {name}.{namespace}.svc {name}.{namespace}")
            near.setdefault(namespace, []).append(f"{address} {name}")
    homes = {
        each["metadata"]["uid"]: each["metadata"]["namespace"] for each in plane.store.all("pods")
    }
    for (uid, _), running in plane.running.items():
        text = "".join(f"{line}\n" for line in [*lines, *near.get(homes.get(uid, ""), [])])
        file = Path(f"/proc/{processes.first_process(running.folder)}/root/etc/hosts")
        with contextlib.suppress(OSError):  # its process ends, or has not begun
            own, _, old = file.read_text().partition("# services\n")
            if old != text:
                file.write_text(f"{own}# services\n{text}")  # in place: it may be mounted
