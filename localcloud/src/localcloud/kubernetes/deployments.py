"""The controller of deployments: observe its sets of replicas, decide their sizes, apply that.

There is one set of replicas for each template that there was; only that of the present one has
pods.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass

from localcloud.kubernetes.kinds import is_over, owned_by, reference, set_condition
from localcloud.kubernetes.plane import Plane

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True)
class Observed:
    """What there is of one deployment."""

    template: str  # the hash of its present template
    sizes: dict[str, int]  # hash of a template -> how many pods its set of replicas is to have
    old_pods: int  # pods of other templates that have not ended


@dataclass(frozen=True)
class Decision:
    """What is to be done about one deployment."""

    create: bool  # a set of replicas for the present template
    sizes: dict[str, int]  # hash of a template -> the new size of its set of replicas


def look(plane: Plane, deployment: dict) -> None:
    """Bring one deployment nearer to what it describes, and write its status."""
    mine = [each for each in plane.store.all("replicasets") if owned_by(each, deployment)]
    seen = observe(plane, deployment, mine)
    decision = decide(deployment["spec"], seen)
    if decision.create:
        mine.append(create_replicas(plane, deployment, seen))
    for each in mine:
        if template_of(each) in decision.sizes:
            each["spec"]["replicas"] = decision.sizes[template_of(each)]
            plane.store.put("replicasets", each)
    if any(template_of(each) == seen.template for each in mine):
        deployment["status"] = status_of(deployment, seen.template, mine)
        plane.store.put("deployments", deployment)


def template_of(replicas: dict) -> str:
    return replicas["metadata"]["labels"][HASH]


def observe(plane: Plane, deployment: dict, mine: list[dict]) -> Observed:
    text = json.dumps(deployment["spec"]["template"], sort_keys=True).encode()
    template = hashlib.sha256(text).hexdigest()[:10]
    others = [each for each in mine if template_of(each) != template]
    living = [pod for pod in plane.store.all("pods") if not is_over(pod)]
    old_pods = [pod for pod in living if any(owned_by(pod, each) for each in others)]
    sizes = {template_of(each): each["spec"]["replicas"] for each in mine}
    return Observed(template, sizes, len(old_pods))


def decide(spec: dict, seen: Observed) -> Decision:
    """Return which sets of replicas change, and whether a new one is made."""
    present = seen.template in seen.sizes
    recreates = spec.get("strategy", {}).get("type") == "Recreate"
    create = not present and not (recreates and seen.old_pods)
    wanted = dict.fromkeys(seen.sizes, 0)
    if present:
        wanted[seen.template] = spec["replicas"]
    changed = {key: size for key, size in wanted.items() if seen.sizes[key] != size}
    return Decision(create, changed)


def create_replicas(plane: Plane, deployment: dict, seen: Observed) -> dict:
    meta, spec = deployment["metadata"], deployment["spec"]
    revision = {REVISION: str(1 + len(seen.sizes))}
    template = copy.deepcopy(spec["template"])
    labels = {**(template["metadata"].get("labels") or {}), HASH: seen.template}
    template["metadata"]["labels"] = labels
    chosen = {**spec["selector"].get("matchLabels", {}), HASH: seen.template}
    body = {
        "metadata": {
            "name": f"{meta['name']}-{seen.template}",
            "labels": labels,
            "ownerReferences": reference(deployment),
            "annotations": revision,
        },
        "spec": {
            "replicas": spec["replicas"],
            "selector": {**spec["selector"], "matchLabels": chosen},
            "template": template,
        },
    }
    meta["annotations"] = {**(meta.get("annotations") or {}), **revision}
    made = plane.create("replicasets", meta["namespace"], body)
    message = f"Scaled up replica set {made['metadata']['name']} from 0 to {spec['replicas']}"
    plane.event(deployment, "ScalingReplicaSet", message, by="deployment-controller")
    return made


def status_of(deployment: dict, template: str, mine: list[dict]) -> dict:
    """Return a deployment's status, from those of its sets of replicas."""
    wanted = deployment["spec"]["replicas"]
    counts = {template_of(each): each["status"] for each in mine}
    ready = counts[template].get("readyReplicas", 0)
    status = {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "replicas": sum(each.get("replicas", 0) for each in counts.values()),
        "conditions": deployment["status"].get("conditions", []),
        "updatedReplicas": counts[template].get("replicas", 0),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    if ready < wanted:
        status["unavailableReplicas"] = wanted - ready
        set_condition(status, "Available", "False", "MinimumReplicasUnavailable")
        set_condition(status, "Progressing", "True", "ReplicaSetUpdated")
    else:
        set_condition(status, "Available", "True", "MinimumReplicasAvailable")
        set_condition(status, "Progressing", "True", "NewReplicaSetAvailable")
    return status
