"""A job in Kubernetes' words: which pool of a cluster can hold it, and the Job that its pods are
made from.

Not covered: a pod's memory (Kubernetes places pods by GPUs and CPUs).

A patch for the pods of jobs: `--pod-patch FILE`, of one's own volumes, tolerations, sidecars.

The file is a part of a pod, {metadata, spec}, in YAML or JSON, and is merged as Kubernetes merges a
strategic patch: what has names by these names, null removes, `$patch: delete` removes from a list.
Tolerations are added to berg's. The cluster checks what comes of it.

Not covered: `$patch: replace`, `$retainKeys` and other directives; they are refused.

The folders of buckets that pods see as files: volumes of Kubernetes Engine's driver for gcsfuse.

The driver puts a container with gcsfuse beside the job's, which ends with it. Not covered: clusters
without Workload Identity, where a pod has no account that could read a bucket by it.
"""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import Config
from berg.gke import container, podstatus
from berg.gke.container import LABEL
from berg.gke.podstatus import NEVER_BEGAN
from berg.google import iam, instances, shapes
from berg.google.data import wanted_mount
from berg.google.shapes import ALIASES, CAPABILITY, Shape
from berg.job import Job
from berg.plan import Plan
from berg.spec import JobSpec

BOOT = Path(__file__).parent.parent / "machine" / "boot.py"

ACCOUNT = iam.ACCOUNT  # of the pods; it may list pods

DEATHS = 5  # times that a job's pod may die by itself, such as for lack of memory

OVER = 42  # exit code of a pod whose job is over without success (boot.py)

KEY = "BERG_CLUSTER_KEY"  # signs what the pods of a job tell each other (boot.py)

GRACE = 120  # seconds between SIGTERM and SIGKILL

SPARE = 600  # seconds that a pod has beyond its job's limit, to boot and to say so

# What shells of `kubectl exec` read: the variables that a login has, unless they are there.
SHELL = """\
berg="${BERG_ROOT:-/root}/berg/environment.sh"
[ -n "${BERG_JOB-}" ] || [ ! -r "$berg" ] || . "$berg"
unset berg
"""

KEPT = 86400  # seconds that Kubernetes keeps a Job that is over

CACHE = "berg-cache"  # the Service of a cluster's dataset cache (cache.py)

CACHE_PORT = 8080

CACHE_URL = f"http://{CACHE}.default:{CACHE_PORT}"

SHARED_CORE = ("e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small")

FACTS = {"BERG_POD": "metadata.uid", "BERG_POD_IP": "status.podIP", "BERG_NODE": "spec.nodeName"}


def choose_tpus(cluster: dict[str, Any], spec: JobSpec, is_sweep: bool) -> shapes.Tpu:
    """Return the TPUs that a spec means; raise BergError if the cluster has no pool of them."""
    wanted, name = shapes.parse_tpu(spec.tpu or "", in_cluster=True), cluster["name"]
    if wanted.hosts > 1 and is_sweep:
        raise BergError(
            f"--tpu {spec.tpu} is a slice of {wanted.hosts} pods: "
            "each job of a sweep runs on one machine"
        )
    called = wanted.pool(spec.spot)
    pool = next((each for each in container.pools(cluster) if each["name"] == called), None)
    if pool is None:
        spot = " --spot" if spec.spot else ""
        raise BergError(
            f"the cluster {name} has no pool {called}. "
            f"Add it: berg cluster create {name} --tpu {wanted.name}{spot}"
        )
    seconds = int(pool["config"].get("maxRunDuration", "0s").rstrip("s"))
    if seconds and spec.max_hours * 3600 > seconds:
        raise BergError(
            f"--max-hours {spec.max_hours:g}: the nodes of the pool {called} exist for "
            f"{seconds // 3600} hours at most. Give fewer"
        )
    return wanted


def choose(cluster: dict[str, Any], spec: JobSpec) -> Shape:
    """Return what each pod has, from a pool that can hold them all; raise BergError if none can."""
    name = cluster["name"]
    wanted = gpu_type_of(spec)
    pools = pools_to_take(cluster, spec.spot)
    with_gpus = [pool for pool in pools if container.gpus_of(pool)[1]]
    count = int(bool(with_gpus)) if spec.num_gpus is None else spec.num_gpus
    if count < 0:
        raise BergError(f"--num-gpus {count} makes no sense: give 0 for pods without GPUs")
    if count == 0:
        without = [pool for pool in pools if pool not in with_gpus]
        return choose_without_gpus(name, without, spec)
    pool = choose_pool(name, with_gpus, wanted, count)
    check_cpus(name, pools_for(with_gpus, wanted, count), spec.num_cpus or 0)
    if room(pool, count) < spec.num_machines:
        raise BergError(
            f"the cluster {name} grows to {container.most_nodes(pool)} nodes with "
            f"{container.gpus_of(pool)[1]} GPUs each, which have room for {room(pool, count)} "
            f"pods, not for {spec.num_machines}. "
            f"Let it grow: berg cluster resize {name} --max-nodes N"
        )
    gpu_type, gpus = container.gpus_of(pool)
    accelerator = container.ACCELERATORS.get(gpu_type, gpu_type)
    machine_type = pool["config"]["machineType"]
    return Shape(machine_type, count, gpu_type, accelerator, gpus, container.disk_of(pool))


def pools_to_take(cluster: dict[str, Any], spot: bool) -> list[dict[str, Any]]:
    """Return the pools whose nodes a job may have; raise BergError if Spot nodes are missing."""
    pools = container.pools(cluster)
    if not spot:
        return pools
    found = [pool for pool in pools if pool.get("config", {}).get("spot")]
    if not found:
        name = cluster["name"]
        raise BergError(
            f"the cluster {name} has no Spot nodes. Add them: berg cluster create {name} --spot"
        )
    return found


def gpu_type_of(spec: JobSpec) -> str:
    """Return the type of GPUs asked for, "" for any; raise BergError for one that is unknown."""
    wanted = (spec.gpu_type or "").lower()
    wanted = ALIASES.get(wanted, wanted)
    if wanted and wanted not in CAPABILITY:
        raise shapes.unknown(wanted)
    return wanted


def choose_without_gpus(name: str, pools: list[dict[str, Any]], spec: JobSpec) -> Shape:
    """Return what a pod without GPUs runs on: the largest kind of node, "" for whichever."""
    pools = [pool for pool in pools if pool["name"] != container.CACHE]
    own = [pool for pool in pools if pool["name"] != container.SYSTEM]
    # Kubernetes' own small node is for jobs only where there is no other.
    check_cpus(name, own or pools, spec.num_cpus or 0)
    shapes = [Shape(pool["config"]["machineType"], 0, "") for pool in own]
    return max(shapes, key=lambda shape: shape.num_cpus, default=Shape("", 0, ""))


def pools_for(pools: list[dict[str, Any]], wanted: str, count: int) -> list[dict[str, Any]]:
    """Return the pools whose nodes have so many GPUs of a type; "" is any."""
    found = []
    for pool in pools:
        gpu_type, gpus = container.gpus_of(pool)
        if wanted in ("", gpu_type) and gpus >= count:
            found.append(pool)
    return found


def choose_pool(name: str, pools: list[dict[str, Any]], wanted: str, count: int) -> dict[str, Any]:
    """Return the pool with room for the most pods; raise BergError if none can hold one."""
    large = pools_for(pools, wanted, count)
    if large:
        return max(large, key=lambda pool: room(pool, count))
    there = sorted({"{1} x {0}".format(*container.gpus_of(pool)) for pool in pools})
    what = f"its nodes have {', '.join(there) or 'none'}"
    if not pools_for(pools, wanted, 0):
        raise BergError(
            f"the cluster {name} has no {wanted or 'GPUs'}: {what}. "
            f"Add a pool: berg cluster create {name} -t {wanted or 'l4'}"
        )
    raise BergError(
        f"no node of the cluster {name} has {count} GPUs: {what}. "
        "Give fewer (-g), and more pods (-m)"
    )


def check_cpus(name: str, pools: list[dict[str, Any]], count: int) -> None:
    """Raise BergError if no node of these pools gives so many CPUs to a pod: Kubernetes keeps a
    part of one.
    """
    types = [pool.get("config", {}).get("machineType", "") for pool in pools]
    sizes = [1 if kind in SHARED_CORE else Shape(kind, 0, "").num_cpus for kind in types]
    if sizes and all(sizes) and count >= max(sizes):
        raise BergError(
            f"no node of the cluster {name} gives a pod {count} CPUs: its nodes for this are "
            f"{', '.join({*types})}, of which Kubernetes keeps a part of one CPU. "
            "Give fewer (-c), or add a pool of larger machines: "
            f"berg cluster create {name} --machine-type TYPE"
        )


def room(pool: dict[str, Any], count: int) -> int:
    """How many pods with so many GPUs a pool can hold when it has grown."""
    return container.most_nodes(pool) * (container.gpus_of(pool)[1] // count)


def boot_map() -> dict[str, Any]:
    files = {"boot.py": BOOT.read_text(), "shell": SHELL}
    content = "".join(files.values()).encode()
    name = f"berg-boot-{hashlib.sha256(content).hexdigest()[:10]}"
    about = {"name": name, "labels": {"berg": "1"}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "immutable": True,
        "data": files,
    }


def request(plan: Plan) -> dict[str, Any]:
    """Return the cluster, and the Job without its name and the names of its machines."""
    this, labels = plan.job, labels_of(plan)
    is_alone = this.num_machines == 1 and this.kind == "job"
    restarts = this.spec.max_restarts if is_alone or this.is_replaced else 0
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": pod_spec(plan),
    }
    add(template, this.mounts, plan.offer.shape.node_disk[1])
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "backoffLimit": restarts if this.sweep else min(restarts, DEATHS),
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEPT,
        "podFailurePolicy": {"rules": failure_rules(restarts)},
        "template": merged(template, this.spec.pod_patch or {}),
    }
    if not this.sweep:  # the first one ends last
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    name = "" if this.sweep else this.job_name
    if queue := this.spec.queue:  # Kueue's webhook would suspend it as well
        labels = {**labels, podstatus.QUEUE_LABEL: queue}
        spec["suspend"] = True
    whole = {"cluster": this.group.cluster, "name": name, "labels": labels, "spec": spec}
    is_slice = bool(this.tpu) and this.num_machines > 1
    return {**whole, "cluster_key": plan.cluster_key, "is_slice": is_slice}


def labels_of(plan: Plan) -> dict[str, str]:
    return {
        "berg": "1",
        **plan.owner,
        "berg-kind": plan.job.kind,
        "berg-user": plan.config.user,
        "berg-bucket": bucket_label(plan.config),
    }


def failure_rules(restarts: int) -> list[dict[str, Any]]:
    """Return what becomes of the Job when a pod fails, or is taken away."""
    codes = [OVER, *NEVER_BEGAN]
    over = {"containerName": "main", "operator": "In", "values": codes}
    taken_away = {"type": "DisruptionTarget", "status": "True"}
    return [
        {"action": "FailJob", "onExitCodes": over},
        {"action": "Ignore" if restarts else "FailJob", "onPodConditions": [taken_away]},
    ]


def pod_spec(plan: Plan) -> dict[str, Any]:
    """Return what each pod is to be."""
    annotations = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": ACCOUNT,
        "shareProcessNamespace": True,  # so that orphans are reaped, and boot.py hears SIGTERM
        "terminationGracePeriodSeconds": GRACE,
        "enableServiceLinks": False,
        # From when a node has the pod; the Job's own deadline counts from when it was made.
        "activeDeadlineSeconds": plan.machine_seconds + SPARE,
        "nodeSelector": node_selector(plan),
        "tolerations": tolerations(plan),
        "containers": [main_container(plan)],
        "volumes": [
            {"name": "boot", "configMap": {"name": boot_map()["metadata"]["name"]}},
            {"name": "pod", "downwardAPI": {"items": [annotations]}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def node_selector(plan: Plan) -> dict[str, str]:
    """Return which nodes may have the pods."""
    shape, found = plan.offer.shape, {}
    if plan.job.tpu:
        tpus = shapes.parse_tpu(plan.job.tpu, in_cluster=True)
        found = {shapes.NODE_POOL: tpus.pool(plan.spot), **tpus.selector}
    elif plan.job.gpus_per_machine:
        found[f"{LABEL}gke-accelerator"] = shape.accelerator
    elif shape.machine_type:
        found["node.kubernetes.io/instance-type"] = shape.machine_type
    if plan.spot:
        found[f"{LABEL}gke-spot"] = "true"
    return found


def tolerations(plan: Plan) -> list[dict[str, str]]:
    """Return the taints of nodes that the pods do not mind."""
    if plan.job.tpu:
        kind = shapes.CHIP
    else:
        kind = "nvidia.com/gpu"
    chips = {"key": kind, "operator": "Exists", "effect": "NoSchedule"}
    spot = {"key": f"{LABEL}gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    ours = {"key": container.FOR_JOBS, "operator": "Exists", "effect": "NoSchedule"}
    return [chips, spot] if plan.job.gpus_per_machine or plan.job.tpu else [spot, ours]


def main_container(plan: Plan) -> dict[str, Any]:
    """Return the container of each pod, which boot.py begins."""
    fields = [
        {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in FACTS.items()
    ]
    return {
        "name": "main",
        "image": plan.job.image,
        "command": ["python3", "/etc/berg/boot/boot.py"],
        "env": [
            {"name": "BERG_FACTS", "value": json.dumps(facts(plan))},
            {"name": "BERG_UNIT", "value": "1"},  # what boot.py prints is for people who wait
            {"name": "BASH_ENV", "value": "/etc/berg/boot/shell"},
            {"name": "ENV", "value": "/etc/berg/boot/shell"},
            *fields,
        ],
        # No limit of memory: the kernel would end all of the container for it, worker included.
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},  # for `berg profile`
        "resources": wanted_resources(plan.job),
        "volumeMounts": [
            {"name": "boot", "mountPath": "/etc/berg/boot", "readOnly": True},
            {"name": "pod", "mountPath": "/etc/berg/pod", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def facts(plan: Plan) -> dict[str, Any]:
    """Return what boot.py needs to know in a pod."""
    config, this = plan.config, plan.job
    return {
        "job": this.job_name,
        "sweep": this.sweep,
        "project": config.project,
        "bucket": config.bucket,
        "dist": f".berg/dist/{plan.wheel[0]}",
        "packages": f".berg/dist/{plan.packages[0]}" if plan.packages[0] else "",
        "endpoint": config.endpoint or "",
        "packages_sha256": "",
        **plan.checksums,
        "box": this.box,
        "cluster_key": "",  # not here: whoever lists pods reads this
    }


def wanted_resources(this: Job) -> dict[str, Any]:
    """Return the GPUs, TPUs and CPUs of a pod."""
    gpus = {"nvidia.com/gpu": str(this.gpus_per_machine)} if this.gpus_per_machine else {}
    if this.tpu:
        gpus = {shapes.CHIP: str(shapes.parse_tpu(this.tpu, in_cluster=True).chips_each)}
    cpus = {"cpu": str(this.spec.num_cpus)} if this.spec.num_cpus else {}
    return {"limits": gpus, "requests": {**gpus, **cpus}}


def body(request: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The Job for machines of those names."""
    spec = json.loads(json.dumps(request["spec"]))
    variable = spec["template"]["spec"]["containers"][0]["env"][0]
    variable["value"] = json.dumps({**json.loads(variable["value"]), "names": names})
    spec |= {"completions": len(names), "parallelism": len(names)}
    about = {"name": request["name"] or names[0], "labels": request["labels"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def in_namespace(made: dict[str, Any], namespace: str) -> dict[str, Any]:
    """A Job of a person's namespace; that of the shared one says nothing of it."""
    if namespace == "default":
        return made
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def with_cache(made: dict[str, Any]) -> dict[str, Any]:
    """A Job whose pods are told of their cluster's dataset cache."""
    main = made["spec"]["template"]["spec"]["containers"][0]
    main["env"].append({"name": "BERG_CACHE_URL", "value": CACHE_URL})
    return made


def in_slice(made: dict[str, Any], service: str) -> dict[str, Any]:
    """A Job whose pods find each other by the names of a Service, as libtpu and GKE want it."""
    made["spec"]["template"]["spec"]["subdomain"] = service
    return made


def slice_service(made: dict[str, Any], name: str) -> dict[str, Any]:
    """The headless Service of a Job's pods: a name for each, before they are ready, too."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": made["metadata"]["labels"]},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": made["metadata"]["name"]},
        },
    }


def owned(thing: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """A thing that goes with a Job that was made."""
    about = made["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [owner]}}


def with_key(made: dict[str, Any], secret: str) -> dict[str, Any]:
    """A Job whose pods get the key of their cluster from a Secret of Kubernetes'."""
    main = made["spec"]["template"]["spec"]["containers"][0]
    source = {"secretKeyRef": {"name": secret, "key": KEY}}
    main["env"].append({"name": KEY, "valueFrom": source})
    return made


def key_secret(made: dict[str, Any], secret: str, key: str) -> dict[str, Any]:
    """The Secret with the key of a Job's pods. No pod may read it by itself."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret, "labels": made["metadata"]["labels"]},
        "immutable": True,
        "stringData": {KEY: key},
    }


def bucket_label(config: Config) -> str:
    """The bucket as a label, which Kubernetes wants to end with a letter or digit."""
    return instances.bucket_label(config).strip("-_")


# Lists whose items a strategic merge knows by a field, as Kubernetes' types say it.
KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}

# Fields of a pod, and of its container `main`, without which no worker runs, or job ends.
OURS = {"restartPolicy", "serviceAccountName", "shareProcessNamespace"}

OURS_OF_MAIN = {"command", "args", "$patch"}


def read(file: str) -> dict[str, Any]:
    """Return the patch in a file; raise BergError for what is none."""
    try:
        text = Path(file).read_text()
    except (OSError, ValueError) as error:
        raise BergError(f"--pod-patch {file}: cannot read it ({error})") from None
    patch = parse(file, text)
    check(file, patch)
    return {key: patch[key] for key in ("metadata", "spec") if key in patch}


def check(file: str, patch: Any) -> None:
    """Raise BergError for what is no patch, or changes what is berg's."""
    try:
        taken = what_is_bergs(patch)
        unknown = sorted(patch.keys() - {"apiVersion", "kind", "metadata", "spec"})
    except (AttributeError, KeyError, TypeError):
        taken, unknown = [], ["what it holds"]
    if unknown:
        raise BergError(
            f"--pod-patch {file}: {unknown[0]} is no part of a pod, which has metadata and spec"
        )
    if taken:
        raise BergError(f"--pod-patch {file}: {taken[0]} is berg's, and stays as it is")


def parse(file: str, text: str) -> Any:
    """Return what a text in JSON or YAML says; raise BergError for neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:
        raise BergError(
            f"--pod-patch {file} is not JSON, and YAML takes a package: pip install pyyaml"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BergError(f"--pod-patch {file} is not valid YAML: {error}") from None


def what_is_bergs(patch: dict[str, Any]) -> list[str]:
    """Return what a patch changes of what berg needs as it is."""
    spec, about = patch.get("spec", {}), patch.get("metadata", {})
    names = [*about.get("labels", {}), *about.get("annotations", {})]
    taken = OURS & spec.keys()
    for each in spec.get("containers", []):
        if each["name"] == "main":
            names += [variable["name"] for variable in each.get("env", [])]
            taken |= OURS_OF_MAIN & each.keys()
    return sorted(taken) + [name for name in names if name.lower().startswith("berg")]


def merged(template: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's template with a patch; raise BergError where that fits nowhere in it."""
    try:
        return merge(copy.deepcopy(template), patch)
    except (AttributeError, TypeError):
        raise BergError("--pod-patch: what it holds is no part of a pod") from None


def merge(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Merge a patch into an object, in place."""
    for key, value in patch.items():
        if key.startswith("$"):
            raise BergError(f"--pod-patch: {key}: {value} is not possible here")
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict):
            old[key] = merge(old.get(key) or {}, value)
        elif key == "tolerations":
            old[key] = [*old.get(key, []), *value]
        elif key in KEYS:
            old[key] = merge_list(old.get(key, []), value, KEYS[key])
        else:
            old[key] = value
    return old


def merge_list(
    old: list[dict[str, Any]], patch: list[dict[str, Any]], by: str
) -> list[dict[str, Any]]:
    """Return a list with a patch's items, those of the same name merged or taken out."""
    found = {each[by]: each for each in old}
    for item in patch:
        if by not in item:
            raise BergError(f"--pod-patch: {json.dumps(item)} has no {by}, by which it is known")
        if item.get("$patch") == "delete":
            found.pop(item[by], None)
        else:
            found[item[by]] = merge(found.get(item[by], {}), item)
    return list(found.values())


def in_words(patch: dict[str, Any]) -> str:
    """Return what a patch touches, for a plan."""
    return ", ".join(f"{part}.{key}" for part in patch for key in patch[part])


DRIVER = "gcsfuse.csi.storage.gke.io"

# The second one: no limit of what the cache takes of the node's disk beside its own.
ANNOTATIONS = {"gke-gcsfuse/volumes": "true", "gke-gcsfuse/ephemeral-storage-limit": "0"}

# What gcsfuse's profile for training says, in words that older drivers know as well.
TRAINING = (
    "implicit-dirs",
    "metadata-cache:ttl-secs:-1",
    "metadata-cache:negative-ttl-secs:0",
    "metadata-cache:stat-cache-max-size-mb:-1",
    "file-cache:enable-parallel-downloads:true",
)

USUAL_DISK = 20  # GB of a node whose disk is not known


def check_volumes(cluster: dict[str, Any], spec: JobSpec) -> None:
    """Raise BergError for mounts that pods of a cluster cannot have."""
    if not spec.mount:
        return
    name, place = cluster["name"], cluster["location"]
    if not container.workload_pool(cluster):
        raise BergError(
            f"--mount: pods of the cluster {name} have no account of their own (docs/gke.md, Whose "
            "pods are whose). Bring the data instead: --data"
        )
    if not container.has_gcsfuse(cluster):
        raise BergError(
            f"--mount: the cluster {name} has no driver for gcsfuse. Who administers it runs: "
            f"gcloud container clusters update {name} --location {place} "
            "--update-addons GcsFuseCsiDriver=ENABLED"
        )
    for text in spec.mount:
        if "," in wanted_mount(text)[0]:
            raise BergError(f"--mount {text}: a pod cannot have a folder with a comma in its name")


def add(template: dict[str, Any], mounts: list[dict[str, Any]], disk_gb: int) -> None:
    """Let a template's pods have folders of buckets, of which the node's disk keeps a part."""
    if not mounts:
        return
    template["metadata"]["annotations"] |= ANNOTATIONS
    pod = template["spec"]
    cache_mb = (disk_gb or USUAL_DISK) * 1024 // 2 // len(mounts)
    for number, wish in enumerate(mounts):
        name = f"berg-mount-{number}"
        options = [f"only-dir={wish['prefix']}", *TRAINING, f"file-cache:max-size-mb:{cache_mb}"]
        attributes = {"bucketName": wish["bucket"], "mountOptions": ",".join(options)}
        source = {"driver": DRIVER, "readOnly": True, "volumeAttributes": attributes}
        pod["volumes"].append({"name": name, "csi": source})
        place = {"name": name, "mountPath": wish["path"], "readOnly": True}
        pod["containers"][0]["volumeMounts"].append(place)
