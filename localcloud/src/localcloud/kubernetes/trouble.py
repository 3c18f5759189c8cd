"""Trouble for pods on demand: an eviction by the node."""

from __future__ import annotations

from localcloud.kubernetes import kubelet
from localcloud.kubernetes.plane import Plane


def evict(plane: Plane, pod: dict, grace: float = 0) -> None:
    """What a node does to a pod when it runs out of something."""
    message = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. "
    kubelet.fail(plane, pod, "Evicted", message, "TerminationByKubelet")
    plane.event(pod, "Evicted", message, "Warning", "kubelet")
    plane.in_background(kubelet.end_pod(plane, pod, grace))
