"""A job in Kubernetes' words: which pool of a cluster can hold it, and the Job that its pods are
made from.

Not covered: a pod's memory (Kubernetes places pods by GPUs and CPUs).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import container, instances
from berg.google.accelerators import ALIASES, CAPABILITY, Shape
from berg.google.container import LABEL
from berg.plan import JobSpec, Plan

BOOT = Path(__file__).parent.parent / "machine" / "boot.py"
ACCOUNT = "berg-worker"  # of the pods; it may look at pods
OVER = 42  # exit code of a pod whose job is over without success (boot.py)
GRACE = 120  # seconds between SIGTERM and SIGKILL
SPARE = 600  # seconds that a pod has beyond its job's limit, to boot and to say so
KEPT = 86400  # seconds that Kubernetes keeps a Job that is over
CACHE = "berg-cache"  # the Service of a cluster's dataset cache (cache.py)
CACHE_PORT = 8080
CACHE_URL = f"http://{CACHE}:{CACHE_PORT}"
SHARED_CORE = ("e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small")
FACTS = {"BERG_POD": "metadata.uid", "BERG_POD_IP": "status.podIP", "BERG_NODE": "spec.nodeName"}


def choose(cluster: dict[str, Any], spec: JobSpec) -> Shape:
    """What each pod has, from a pool of the cluster that can hold them all; raises BergError if
    none can.
    """
    name = cluster["name"]
    wanted = (spec.gpu_type or "").lower()
    wanted = ALIASES.get(wanted, wanted)
    if wanted and wanted not in CAPABILITY:
        raise BergError(f"unknown GPU type {spec.gpu_type!r}. Berg knows: {', '.join(CAPABILITY)}")
    pools = [
        pool
        for pool in container.pools(cluster)
        if pool.get("config", {}).get("spot") or not spec.spot
    ]
    if not pools:
        raise BergError(
            f"the cluster {name} has no Spot nodes. Add them: berg cluster create {name} --spot"
        )
    with_gpus = [pool for pool in pools if container.gpus_of(pool)[1]]
    count = spec.num_gpus if spec.num_gpus is not None else int(bool(with_gpus))
    if count < 0:
        raise BergError(f"--num-gpus {count} makes no sense: give 0 for pods without GPUs")
    if count == 0:
        others = [
            pool for pool in pools if pool not in with_gpus and pool["name"] != container.CACHE
        ]
        # Kubernetes' own small node is for jobs only where there is no other.
        others = [pool for pool in others if pool["name"] != container.SYSTEM] or others
        check_cpus(name, others, spec.num_cpus or 0)
        kinds = [
            pool["config"]["machineType"] for pool in others if pool["name"] != container.SYSTEM
        ]
        return Shape(max(kinds, key=lambda kind: Shape(kind, 0, "").num_cpus, default=""), 0, "")
    there = sorted({"{1} x {0}".format(*container.gpus_of(pool)) for pool in with_gpus})
    what = f"its nodes have {', '.join(there)}" if there else "its nodes have none"
    fitting = [pool for pool in with_gpus if wanted in ("", container.gpus_of(pool)[0])]
    if not fitting:
        raise BergError(
            f"the cluster {name} has no {wanted or 'GPUs'}: {what}. "
            f"Add a pool: berg cluster create {name} -t {wanted or 'l4'}"
        )
    large = [pool for pool in fitting if container.gpus_of(pool)[1] >= count]
    if not large:
        raise BergError(
            f"no node of the cluster {name} has {count} GPUs: {what}. Give fewer (-g), and more pods (-m)"
        )
    check_cpus(name, large, spec.num_cpus or 0)
    pool = max(large, key=lambda pool: room(pool, count))
    if room(pool, count) < spec.num_machines:
        raise BergError(
            f"the cluster {name} grows to {container.most_nodes(pool)} nodes with {container.gpus_of(pool)[1]} GPUs "
            f"each, which have room for {room(pool, count)} pods, not for {spec.num_machines}. "
            f"Let it grow: berg cluster resize {name} --max-nodes N"
        )
    gpu_type, gpus = container.gpus_of(pool)
    accelerator = container.ACCELERATORS.get(gpu_type, gpu_type)
    return Shape(pool["config"]["machineType"], count, gpu_type, accelerator, gpus)


def check_cpus(name: str, pools: list[dict[str, Any]], count: int) -> None:
    """Raise BergError if no node of these pools gives so many CPUs to a pod: Kubernetes keeps a
    part of one.
    """
    types = [pool.get("config", {}).get("machineType", "") for pool in pools]
    sizes = [1 if kind in SHARED_CORE else Shape(kind, 0, "").num_cpus for kind in types]
    if sizes and all(sizes) and count >= max(sizes):
        raise BergError(
            f"no node of the cluster {name} gives a pod {count} CPUs: its nodes for this are {', '.join({*types})}, of "
            "which Kubernetes keeps a part of one CPU. Give fewer (-c), or add a pool of larger machines: "
            f"berg cluster create {name} --machine-type TYPE"
        )


def room(pool: dict[str, Any], count: int) -> int:
    """How many pods with so many GPUs a pool can hold when it has grown."""
    return container.most_nodes(pool) * (container.gpus_of(pool)[1] // count)


def boot_map() -> dict[str, Any]:
    script = BOOT.read_text()
    name = f"berg-boot-{hashlib.sha256(script.encode()).hexdigest()[:10]}"
    about = {"name": name, "labels": {"berg": "1"}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "immutable": True,
        "data": {"boot.py": script},
    }


def request(plan: Plan) -> dict[str, Any]:
    """The cluster, and the Job without its name and the names of its machines."""
    config, this = plan.config, plan.job
    owner = {"berg-sweep": this.job_name} if this.sweep else {"berg-job": this.job_name}
    labels = {"berg": "1", **owner, "berg-kind": this.kind, "berg-user": config.user}
    labels["berg-bucket"] = bucket_label(config)
    facts = {
        "job": this.job_name,
        "sweep": this.sweep,
        "project": config.project,
        "bucket": config.bucket,
        "dist": f".berg/dist/{plan.wheel[0]}",
        "packages": f".berg/dist/{plan.packages[0]}" if plan.packages[0] else "",
        "endpoint": config.endpoint or "",
    }
    gpus = {"nvidia.com/gpu": str(this.gpus_per_machine)} if this.gpus_per_machine else {}
    cpus = {"cpu": str(this.spec["num_cpus"])} if this.spec.get("num_cpus") else {}
    container_ = {
        "name": "main",
        "image": this.image,
        "command": ["python3", "/etc/berg/boot/boot.py"],
        "env": [
            {"name": "BERG_FACTS", "value": json.dumps(facts)},
            {"name": "BERG_UNIT", "value": "1"},  # what boot.py prints is for people who wait
            *(
                {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for key, path in FACTS.items()
            ),
        ],
        # No limit of memory: the kernel would end all of the container for it, worker included.
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},  # for `berg profile`
        "resources": {"limits": gpus, "requests": {**gpus, **cpus}},
        "volumeMounts": [
            {"name": "boot", "mountPath": "/etc/berg/boot", "readOnly": True},
            {"name": "pod", "mountPath": "/etc/berg/pod", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    spot = {"key": f"{LABEL}gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    selector = {f"{LABEL}gke-accelerator": plan.shape.accelerator} if this.gpus_per_machine else {}
    if plan.shape.machine_type and not this.gpus_per_machine:
        selector = {"node.kubernetes.io/instance-type": plan.shape.machine_type}
    told = {"items": [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]}
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": ACCOUNT,
        "shareProcessNamespace": True,  # so that orphans are reaped, and boot.py hears SIGTERM
        "terminationGracePeriodSeconds": GRACE,
        "enableServiceLinks": False,
        # From when a node has the pod; the Job's own deadline counts from when it was made.
        "activeDeadlineSeconds": plan.machine_seconds + SPARE,
        "nodeSelector": {**selector, **({f"{LABEL}gke-spot": "true"} if plan.spot else {})},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        * bool(gpus)
        + [spot],
        "containers": [container_],
        "volumes": [
            {"name": "boot", "configMap": {"name": boot_map()["metadata"]["name"]}},
            {"name": "pod", "downwardAPI": told},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    alone = this.num_machines == 1
    again = this.max_restarts if alone and this.kind == "job" else 0
    gone = {"type": "DisruptionTarget", "status": "True"}
    rules = [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "main", "operator": "In", "values": [OVER]},
        },
        {"action": "Ignore" if again else "FailJob", "onPodConditions": [gone]},
    ]
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "backoffLimit": again,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEPT,
        "podFailurePolicy": {"rules": rules},
        "template": {
            "metadata": {
                "labels": labels,
                "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            },
            "spec": pod,
        },
    }
    if not this.sweep:  # the first one ends last
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    if this.wait_seconds:
        # until all are there, when the first one takes it away
        spec["activeDeadlineSeconds"] = this.wait_seconds
    return {
        "cluster": this.group,
        "name": "" if this.sweep else this.job_name,
        "labels": labels,
        "spec": spec,
    }


def body(request: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The Job for machines of those names."""
    spec = json.loads(json.dumps(request["spec"]))
    variable = spec["template"]["spec"]["containers"][0]["env"][0]
    variable["value"] = json.dumps({**json.loads(variable["value"]), "names": names})
    spec |= {"completions": len(names), "parallelism": len(names)}
    about = {"name": request["name"] or names[0], "labels": request["labels"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def with_cache(made: dict[str, Any]) -> dict[str, Any]:
    """A Job whose pods are told of their cluster's dataset cache."""
    main = made["spec"]["template"]["spec"]["containers"][0]
    main["env"].append({"name": "BERG_CACHE_URL", "value": CACHE_URL})
    return made


def bucket_label(config: Config) -> str:
    """The bucket as a label, which Kubernetes wants to end with a letter or digit."""
    return instances.bucket_label(config).strip("-_")
