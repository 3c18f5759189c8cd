"""Budgets of disruptions: how many of some pods may be evicted at a time.

Not covered: the policies for pods that are not healthy, `disruptedPods`.
"""

from __future__ import annotations

import math

from localcloud.kubernetes.kinds import Refusal, condition, is_leaving, is_over
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.selectors import selects


def check(plane: Plane, pod: dict) -> None:
    """Raise the refusal of an eviction that a budget does not allow."""
    meta = pod["metadata"]
    if is_over(pod) or pod["status"].get("phase") == "Pending":
        return
    for budget in plane.store.all("poddisruptionbudgets"):
        about = budget["metadata"]
        if about["namespace"] != meta["namespace"] or not covers(budget, pod):
            continue
        healthy, needed = state_of(plane, budget)
        if healthy <= needed:
            told = "Cannot evict pod as it would violate the pod's disruption budget."
            why = f"The disruption budget {about['name']} needs {needed} healthy pods and has "
            why += f"{healthy} currently"
            refusal = Refusal(429, "TooManyRequests", told)
            refusal.body["details"] = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
            raise refusal


def covers(budget: dict, pod: dict) -> bool:
    """Whether a budget counts a pod; one with an empty selector counts all of its namespace."""
    selector = budget["spec"].get("selector")
    if selector is None:
        return False
    return selects(selector, pod["metadata"].get("labels") or {})


def state_of(plane: Plane, budget: dict) -> tuple[int, int]:
    """How many healthy pods a budget counts, and how many there must be."""
    namespace = budget["metadata"]["namespace"]
    pods = [
        pod
        for pod in plane.store.all("pods")
        if pod["metadata"]["namespace"] == namespace and covers(budget, pod) and not is_over(pod)
    ]
    healthy = sum(bool(condition(pod, "Ready")) and not is_leaving(pod) for pod in pods)
    spec = budget["spec"]
    if spec.get("maxUnavailable") is not None:
        return healthy, len(pods) - number(spec["maxUnavailable"], len(pods))
    least = spec.get("minAvailable")
    return healthy, number(1 if least is None else least, len(pods))


def number(value: int | str, total: int) -> int:
    """A count, or a part of the total in percent, rounded up."""
    if isinstance(value, int):
        return value
    return math.ceil(int(value.rstrip("%")) * total / 100)


def look(plane: Plane) -> None:
    """Write into budgets how many disruptions they allow."""
    for budget in plane.store.all("poddisruptionbudgets"):
        healthy, needed = state_of(plane, budget)
        budget["status"] = {
            "currentHealthy": healthy,
            "desiredHealthy": needed,
            "disruptionsAllowed": max(0, healthy - needed),
            "expectedPods": healthy,
            "observedGeneration": budget["metadata"].get("generation", 1),
        }
        plane.store.put("poddisruptionbudgets", budget)
