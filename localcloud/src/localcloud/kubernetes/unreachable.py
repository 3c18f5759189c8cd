"""Nodes that do not answer, be they cut off the network or hung: what their cluster makes of them.

The node controller calls such a node NotReady after a while (the setting `node_grace`); its pods
run on, as far as they do. Later they are deleted (the setting `eviction`), and stay: only their
kubelet could say that they have ended. Who deletes one with a grace of 0 forgets it.

Of a pool with autoRepair Google deletes the machine of a node that is NotReady for some ten minutes
(the setting `repair`) and makes another, which ends what ran there.

Not covered: the drain before a repair, which such a node does not hear of; repairs for full disks;
that the new machine has the old one's name.
"""

from __future__ import annotations

import time

from localcloud.kubernetes.kinds import Refusal, is_leaving, is_over, set_condition
from localcloud.kubernetes.plane import Plane

KEY = "node.kubernetes.io/unreachable"
USUAL = 300  # seconds for which pods tolerate such a node, unless they say otherwise
REASON, MESSAGE = "NodeStatusUnknown", "Kubelet stopped posting node status."
PORT = 10250  # of the kubelet


def look(plane: Plane, node: dict) -> None:
    """Take in that a node is silent: it becomes NotReady, later its pods are deleted."""
    name = node["metadata"]["name"]
    memory = plane.memory.setdefault(f"node {name}", {"since": 0.0})
    silent = time.monotonic() - memory.setdefault("silent", time.monotonic())
    if silent < plane.settings.node_grace:
        return
    pods = [pod for pod in plane.store.all("pods") if is_there(pod, name)]
    if set_condition(node["status"], "Ready", "Unknown", REASON, MESSAGE):
        memory["not ready"] = time.monotonic()
        for effect in ("NoSchedule", "NoExecute"):
            node["spec"].setdefault("taints", []).append({"key": KEY, "effect": effect})
        plane.store.put("nodes", node)
        message = f"Node {name} status is now: NodeNotReady"
        plane.event(node, "NodeNotReady", message, by="node-controller")
        for pod in pods:
            set_condition(pod["status"], "Ready", "False")
            plane.store.put("pods", pod)
            plane.event(pod, "NodeNotReady", "Node is not ready", "Warning", "node-controller")
    for pod in pods:
        begun = memory.setdefault("not ready", time.monotonic())
        if not is_leaving(pod) and time.monotonic() >= begun + toleration(plane, pod):
            evict(plane, pod)


def is_beyond_hope(plane: Plane, pool: dict, name: str) -> bool:
    """Whether Google re-creates a pool's node by now."""
    since = plane.memory.get(f"node {name}", {}).get("not ready")
    is_repaired = (pool.get("management") or {}).get("autoRepair", False)
    return is_repaired and since is not None and time.monotonic() >= since + plane.settings.repair


def is_there(pod: dict, node: str) -> bool:
    """Whether a pod is on a node, and not over."""
    return pod["spec"].get("nodeName") == node and not is_over(pod)


def toleration(plane: Plane, pod: dict) -> float:
    """Return for how many seconds a pod tolerates a node that does not answer."""
    rows = [
        row
        for row in pod["spec"].get("tolerations") or []
        if row.get("key") in (None, "", KEY) and row.get("effect") in (None, "", "NoExecute")
    ]
    if not rows:
        return 0
    seconds = min(row.get("tolerationSeconds", float("inf")) for row in rows)
    return plane.settings.eviction if seconds == USUAL else seconds


def evict(plane: Plane, pod: dict) -> None:
    """Delete a pod that does not tolerate its node any more; it stays until its kubelet answers."""
    meta = pod["metadata"]
    message = "Taint manager: deleting due to NoExecute taint"
    set_condition(pod["status"], "DisruptionTarget", "True", "DeletionByTaintManager", message)
    marked = f"Marking for deletion Pod {meta['namespace']}/{meta['name']}"
    plane.event(pod, "TaintManagerEviction", marked, by="taint-eviction-controller")
    plane.delete("pods", pod)


def back(plane: Plane, node: dict) -> None:
    """Take in that a node answers again."""
    name = node["metadata"]["name"]
    memory = plane.memory.get(f"node {name}", {})
    if memory.pop("silent", None) is None:
        return
    memory.pop("not ready", None)
    taints = node["spec"].pop("taints", [])
    if left := [each for each in taints if each["key"] != KEY]:
        node["spec"]["taints"] = left
    message = "kubelet is posting ready status"
    if set_condition(node["status"], "Ready", "True", "KubeletReady", message):
        message = f"Node {name} status is now: NodeReady"
        plane.event(node, "NodeReady", message, by="kubelet")
    plane.store.put("nodes", node)
    for pod in plane.store.all("pods"):
        rows = pod["status"].get("containerStatuses") or []
        if is_there(pod, name) and rows and all(row["ready"] for row in rows):
            set_condition(pod["status"], "Ready", "True")
            plane.store.put("pods", pod)


def check(plane: Plane, pod: dict, what: str) -> None:
    """Raise the refusal of what only a pod's kubelet could answer, if it does not."""
    if not plane.is_silent(pod):
        return
    meta, host = pod["metadata"], pod["status"].get("hostIP", "")
    address = f"{host}:{PORT}"
    url = f"https://{address}/{what}/{meta['namespace']}/{meta['name']}"
    message = f'Get "{url}": dial tcp {address}: i/o timeout'
    raise Refusal(500, "InternalError", message)
