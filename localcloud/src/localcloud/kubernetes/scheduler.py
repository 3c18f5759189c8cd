"""Which node a pod goes to, or why to none, in the scheduler's words.

Not covered: affinity, spreading, priorities and preemption,
scheduling gates, volumes' zones.
"""

from collections.abc import Iterable

from localcloud.kubernetes.defaults import GPU
from localcloud.kubernetes.kinds import is_leaving, is_over, set_condition
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.quantity import amount


def requests(pod: dict) -> dict[str, float]:
    """What a pod asks for: the sum of its containers."""
    total: dict[str, float] = {"pods": 1}
    for container in pod["spec"]["containers"]:
        for name, quantity in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0) + amount(quantity)
    return total


def schedule(plane: Plane) -> None:
    """Give every waiting pod a node, or say why it waits."""
    for pod in plane.store.all("pods"):
        if pod["spec"].get("nodeName") or is_leaving(pod) or is_over(pod):
            continue
        node, why = place(plane, pod)
        meta = pod["metadata"]
        if node:
            pod["spec"]["nodeName"] = node
            set_condition(pod["status"], "PodScheduled", "True")
            plane.store.put("pods", pod)
            message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
            plane.event(pod, "Scheduled", message, by="default-scheduler")
        elif set_condition(pod["status"], "PodScheduled", "False", "Unschedulable", why):
            plane.store.put("pods", pod)
            plane.event(pod, "FailedScheduling", why, "Warning", "default-scheduler")


def place(plane: Plane, pod: dict) -> tuple[str, str]:
    """The node for a pod, or why there is none."""
    nodes = plane.store.all("nodes")
    if not nodes:
        return "", "no nodes available to schedule pods"
    reasons: dict[str, int] = {}
    room = []
    for node in nodes:
        name = node["metadata"]["name"]
        why = misfit(pod, node) or shortage(pod, node, on_node(plane, name))
        if why:
            reasons[why] = reasons.get(why, 0) + 1
        else:
            room.append(name)
    if room:
        return min(room, key=lambda name: len(list(on_node(plane, name)))), ""
    message = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
    count = len(nodes)
    return "", (
        f"0/{count} nodes are available: {message}. preemption: 0/{count} nodes are available: "
        f"{count} Preemption is not helpful for scheduling."
    )


def on_node(plane: Plane, name: str) -> Iterable[dict]:
    return (
        pod
        for pod in plane.store.all("pods")
        if pod["spec"].get("nodeName") == name and not is_over(pod)
    )


def misfit(pod: dict, node: dict) -> str:
    """Why a pod may not be on a node, however much room it has."""
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not any(
            tolerates(each, taint) for each in spec.get("tolerations") or []
        ):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    selected = all(
        labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items()
    )
    if not selected:
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def shortage(pod: dict, node: dict, others: Iterable[dict]) -> str:
    """What a node has too little of for one more pod."""
    wanted = requests(pod)
    used: dict[str, float] = {}
    for other in others:
        for name, number in requests(other).items():
            used[name] = used.get(name, 0) + number
    free = node["status"]["allocatable"]
    for name in sorted(wanted, key=lambda name: (name != GPU, name)):
        if wanted[name] and wanted[name] + used.get(name, 0) > amount(free.get(name, 0)):
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def tolerates(toleration: dict, taint: dict) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get(
        "value", ""
    )
