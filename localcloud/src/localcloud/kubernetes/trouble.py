"""Trouble for pods on demand: no memory left, an eviction by the node."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from localcloud.kubernetes import kubelet
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.running import Running
from localcloud.machines.processes import first_process


def run_out_of_memory(plane: Plane, pod: dict) -> list[int]:
    """What the kernel does when a pod has no memory left: all of its containers' processes, or the
    largest alone.
    """
    node = plane.store.get("nodes", "", pod["spec"].get("nodeName", "")) or {
        "metadata": {"labels": {}}
    }
    label = node["metadata"]["labels"].get("cloud.google.com/gke-nodepool")
    pool: dict = next((each for each in plane.pools if each["name"] == label), {"config": {}})
    single = (pool["config"].get("kubeletConfig") or {}).get("singleProcessOomKill")
    killed = []
    for key, running in list(plane.running.items()):
        if key[0] != pod["metadata"]["uid"]:
            continue
        running.reason = "OOMKilled"
        pids = sorted(processes(running), key=memory_of, reverse=True)
        for pid in pids[:1] if single else pids:
            killed.append(pid)
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
    return killed


def processes(running: Running) -> list[int]:
    """Process ids, as this host counts them, of a container; without the one that reaps."""
    first = first_process(running.folder)
    if not first:
        return []
    space = Path(f"/proc/{first}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == space:
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != first or not running.shared]


def memory_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0


def evict(plane: Plane, pod: dict, grace: float = 0) -> None:
    """What a node does to a pod when it runs out of something."""
    message = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. "
    kubelet.fail(plane, pod, "Evicted", message, "TerminationByKubelet")
    plane.event(pod, "Evicted", message, "Warning", "kubelet")
    plane.in_background(kubelet.end_pod(plane, pod, grace))
