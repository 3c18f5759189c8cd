"""What nodes and pods use of processors and memory, as `kubectl top` asks for it.

A node uses what its pods do. Processors are averages since the question before, or since a container
began.

Not covered: what system daemons use; swap.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from localcloud.kubernetes import trouble
from localcloud.kubernetes.kinds import KINDS, not_found, stamp
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.running import Running
from localcloud.kubernetes.store import Selector

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
API = f"{GROUP}/{VERSION}"
TICKS = os.sysconf("SC_CLK_TCK")
Usage = tuple[float, int]  # processors, bytes of memory


def answer(plane: Plane, plural: str, namespace: str, name: str, labels: str) -> dict:
    """The metrics of one node or pod, or of those with some labels."""
    kind = KINDS[plural]
    chosen = Selector(namespace, labels)
    things = [each for each in plane.store.all(plural) if chosen.fits(each)]
    if plural == "pods":
        things = [each for each in things if each["status"].get("phase") == "Running"]
    things = [each for each in things if not name or each["metadata"]["name"] == name]
    if name and not things:
        raise not_found(kind, name)
    rows = [row_of(plane, plural, each) for each in things]
    if name:
        return {"kind": f"{kind.name}Metrics", "apiVersion": API, **rows[0]}
    about = {"kind": f"{kind.name}MetricsList", "apiVersion": API, "metadata": {}}
    return {**about, "items": rows}


def row_of(plane: Plane, plural: str, thing: dict) -> dict:
    keys = ("name", "namespace", "labels", "creationTimestamp")
    about = {key: thing["metadata"][key] for key in keys if key in thing["metadata"]}
    row = {"metadata": about, "timestamp": stamp(), "window": "30s"}
    if plural == "pods":
        used = usage_of(plane, thing)
        containers = [{"name": name, "usage": text(each)} for name, each in used.items()]
        return {**row, "containers": containers}
    name = thing["metadata"]["name"]
    pods = [pod for pod in plane.store.all("pods") if pod["spec"].get("nodeName") == name]
    all_used = [each for pod in pods for each in usage_of(plane, pod).values()]
    total = sum(cpus for cpus, _ in all_used), sum(memory for _, memory in all_used)
    return {**row, "usage": text(total)}


def text(usage: Usage) -> dict[str, str]:
    return {"cpu": f"{int(usage[0] * 1e9)}n", "memory": f"{usage[1] // 1024}Ki"}


def usage_of(plane: Plane, pod: dict) -> dict[str, Usage]:
    """What each container of a pod uses that runs."""
    uid = pod["metadata"]["uid"]
    mine = {key: each for key, each in plane.running.items() if key[0] == uid}
    return {key[1]: measure(plane, key, each) for key, each in mine.items()}


def measure(plane: Plane, key: tuple[str, str], running: Running) -> Usage:
    pids = trouble.processes(running)
    pages = sum(trouble.memory_of(pid) for pid in pids)
    used, now = sum(map(seconds_of, pids)), time.monotonic()
    memory = plane.memory.setdefault("metrics", {})
    before, at = memory.get(key, (0.0, now - 30.0))
    memory[key] = (used, now)
    return max(0.0, used - before) / max(now - at, 0.01), pages * os.sysconf("SC_PAGE_SIZE")


def seconds_of(pid: int) -> float:
    """Seconds of processors that a process has used."""
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(rest[11]) + int(rest[12])) / TICKS
