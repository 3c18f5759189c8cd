"""The cluster autoscaler: pools from 0 nodes for pods that have none.

Its events on pods are how a user hears of a shortage: TriggeredScaleUp, NotTriggerScaleUp,
FailedScaleUp.

Not covered: removing nodes that are idle, node auto-provisioning, moving pods together to free a node.
"""

import time

from localcloud.kubernetes import nodes
from localcloud.kubernetes.kinds import is_leaving, is_over
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.scheduler import misfit, shortage

BY = "cluster-autoscaler"
LINK = "https://www.googleapis.com/compute/v1/projects"
WORDS = {"GCE_STOCKOUT": "GCE out of resources", "GCE_QUOTA_EXCEEDED": "GCE quota exceeded"}


def limits(pool: dict) -> tuple[int, int] | None:
    """The fewest and the most nodes of a pool; None without autoscaling."""
    scaling = pool.get("autoscaling") or {}
    if not scaling.get("enabled"):
        return None
    return scaling.get("minNodeCount", 0), scaling.get("maxNodeCount", 0)


def look(plane: Plane) -> None:
    if any(limits(pool) for pool in plane.pools):
        scale_up(plane)


def scale_up(plane: Plane) -> None:
    """A node for each pod that fits no node, of those that are there or on their way."""
    coming: list[tuple[dict, list[dict]]] = []  # a node to come, and the pods that are to go there
    for pool in plane.pools:
        if pool["status"] in ("STOPPING", "PROVISIONING"):
            continue
        mine = nodes.instances_of(plane, pool)
        new = [
            each
            for each in mine
            if not plane.store.get("nodes", "", each.name)
            and each.resource["status"] in ("PROVISIONING", "STAGING", "RUNNING")
        ]
        coming += [(nodes.template(pool, each.zone), []) for each in new if not each.preempted]
    for pod in plane.store.all("pods"):
        waiting = not pod["spec"].get("nodeName") and not is_over(pod) and not is_leaving(pod)
        why: dict = next(
            (row for row in pod["status"].get("conditions", []) if row["type"] == "PodScheduled"),
            {},
        )
        if not waiting or why.get("status") != "False":
            continue
        room = next(
            (
                pods
                for node, pods in coming
                if not misfit(pod, node) and not shortage(pod, node, pods)
            ),
            None,
        )
        if room is not None:
            room.append(pod)
        elif made := for_pod(plane, pod):
            coming += [(made[0], [pod]), *((node, []) for node in made[1:])]


def for_pod(plane: Plane, pod: dict) -> list[dict]:
    """Begin one node for a pod in the first pool that fits; say on the pod what came of it. Return
    the nodes to come.
    """
    reasons: dict[str, int] = {}
    failed = ""
    for pool in plane.pools:
        bounds = limits(pool)
        if bounds is None or pool["status"] in ("STOPPING", "PROVISIONING"):
            continue
        node = nodes.template(pool, plane.location)
        why = misfit(pod, node) or shortage(pod, node, [])
        memory = plane.memory.setdefault(f"pool {pool['name']}", {"until": 0.0})
        if not why and pool["_size"] >= bounds[1]:
            why = "max node group size reached"
        if not why and time.monotonic() < memory["until"]:
            why = "in backoff after failed scale-up"
        if why:
            reasons[why] = reasons.get(why, 0) + 1
            continue
        trouble = nodes.add(plane, pool)
        size = pool["_size"] + 1
        group = f"{LINK}/{plane.project}/zones/{plane.location}/instanceGroups/{nodes.group_name(plane, pool)}-grp"
        message = (
            f"pod triggered scale-up: [{{{group} {pool['_size']}->{size} (max: {bounds[1]})}}]"
        )
        plane.event(pod, "TriggeredScaleUp", message, by=BY)
        if trouble is None:
            pool["_size"] = size
            return [node]
        memory["until"] = time.monotonic() + plane.settings.scale_retry
        words = WORDS.get(trouble["code"], f"GCE error: {trouble['message']}")
        failed = (
            f"Node scale up in zones {trouble['zone']} associated with this pod failed: {words}."
        )
        failed += " Pod is at risk of not being scheduled."
        plane.event(pod, "FailedScaleUp", failed, "Warning", BY)
    if not failed:
        message = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
        memory = plane.memory.setdefault(f"pod {pod['metadata']['uid']}", {"message": ""})
        if memory["message"] != message:
            memory["message"] = message
            plane.event(pod, "NotTriggerScaleUp", f"pod didn't trigger scale-up: {message}", by=BY)
    return []
