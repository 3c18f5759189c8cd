"""What the kernel of a node does when a pod has no memory left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from berg.local.kubernetes.kubelet import processes
from berg.local.kubernetes.plane import Plane


def run_out_of_memory(plane: Plane, pod: dict) -> list[int]:
    """What the kernel does when a pod has no memory left: all of its containers' processes, or the largest alone."""
    node = plane.store.get("nodes", "", pod["spec"].get("nodeName", "")) or {"metadata": {"labels": {}}}
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
            os.kill(pid, signal.SIGKILL)
    return killed


def memory_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
