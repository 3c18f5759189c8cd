"""What Kubernetes Engine's webhooks do to pods with TPUs: refuse what fits no node, and tell a slice's
workers who they are.

https://docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus. The words of a refusal for a
selector that is missing are Google's, as users met them; those of the others are made after it.

Not covered: several slices of one job, workloads other than indexed jobs.
"""

from __future__ import annotations

import json

from localcloud.compute import tpus
from localcloud.kubernetes.defaults import INDEX, TPU
from localcloud.kubernetes.kinds import Refusal

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
WEBHOOK = "warden-validating.common-webhooks.networking.gke.io"
RULE = "[denied by tpu-accelerator-topology-constraints]"
GENERATIONS = {each.accelerator: each for each in tpus.ALL}


def chips_in(container: dict) -> int:
    """How many chips a container asks for."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(limits.get(TPU, 0))


def check(plural: str, body: dict) -> None:
    """Raise the refusal of a pod, or of a job's pods, that no node with TPUs could run."""
    spec = body.get("spec") or {}
    if plural == "jobs":
        spec = spec["template"]["spec"]
    elif plural != "pods":
        return
    chips = sum(map(chips_in, spec.get("containers") or []))
    if chips and (why := misfit(spec.get("nodeSelector") or {}, chips)):
        detail = "GKE Warden rejected the request because it violates one or more constraints.\n"
        detail += f"Violations details: {json.dumps({RULE: [why]})}"
        message = f'admission webhook "{WEBHOOK}" denied the request: {detail}'
        raise Refusal(400, "GKE Warden constraints violations", message)


def misfit(selector: dict[str, str], chips: int) -> str:
    """Why pods with these selectors and so many chips each fit no node; "" if some do."""
    for label in (ACCELERATOR, TOPOLOGY):
        if label not in selector:
            return f"Missing nodeSelector/nodeAffinity label {label}"
    accelerator, topology = selector[ACCELERATOR], selector[TOPOLOGY]
    if accelerator not in GENERATIONS:
        return f"Invalid TPU accelerator {accelerator}"
    per_node = chips_of_nodes(accelerator, topology)
    if not per_node:
        return f"Invalid TPU topology {topology} for accelerator {accelerator}"
    if chips not in per_node:
        wanted = " or ".join(map(str, sorted(per_node)))
        return f"Invalid TPU chip count {chips} for {accelerator} {topology}: request {wanted}"
    return ""


def chips_of_nodes(accelerator: str, topology: str) -> set[int]:
    """How many chips a node may have in a slice of that topology; none: there is no such slice."""
    name = GENERATIONS[accelerator].name
    found = set()
    for machine, (_, _, generation, chips) in tpus.MACHINE_TYPES.items():
        alone = topology == tpus.topology_of_one(machine)
        if generation == name and (alone or tpus.is_topology_of_nodes(machine, topology)):
            found.add(chips)
    return found


def tell(pod: dict) -> None:
    """Write into the containers of a pod with TPUs which worker of its slice it is.

    With several pods only those of an indexed job with a headless service get them.
    """
    spec, meta = pod["spec"], pod["metadata"]
    selector = spec.get("nodeSelector") or {}
    index = (meta.get("annotations") or {}).get(INDEX)
    for container in spec["containers"]:
        chips = chips_in(container)
        if not chips:
            continue
        hosts = tpus.chips_in(selector[TOPOLOGY]) // chips
        message = {"TPU_TOPOLOGY": selector[TOPOLOGY], "TPU_SKIP_MDS_QUERY": "true"}
        if hosts == 1:
            message |= {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
        elif index is not None and spec.get("subdomain"):
            job = spec["hostname"].removesuffix(f"-{index}")
            names = [f"{job}-{number}.{spec['subdomain']}" for number in range(hosts)]
            message |= {"TPU_WORKER_ID": index, "TPU_WORKER_HOSTNAMES": ",".join(names)}
        env = container.get("env") or []
        own = {each["name"] for each in env}
        more = [{"name": key, "value": message[key]} for key in message if key not in own]
        container["env"] = [*env, *more]
