"""A job as Kubernetes objects: the pool of a cluster that can hold it, the Job of its pods, and
the namespace and account that these have.

A `--pod-patch` is a part of a pod, {metadata, spec}, and is merged as Kubernetes merges a strategic
patch; `$patch: delete` removes from a list, tolerations are added. Folders of buckets are volumes
of GKE's driver for gcsfuse. Not covered: a pod's memory, other directives of patches.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import Config
from berg.gke import client
from berg.gke.client import LABEL, SHARED, Server, below, thing
from berg.gke.status import NEVER_BEGAN, QUEUE_LABEL, Thing
from berg.google import api, data, iam, instances, shapes
from berg.google.iam import ACCOUNT, Grant
from berg.google.shapes import ALIASES, CAPABILITY, Shape
from berg.plan import Plan
from berg.spec import JobSpec

BOOT = Path(__file__).parent.parent / "machine" / "boot.py"
DEATHS = 5  # times that a job's pod may die by itself, such as for lack of memory
FINISHED = 42  # exit code of a pod whose job ended without success (boot.py)
CLUSTER_KEY = "BERG_CLUSTER_KEY"  # signs what the pods of a job send each other (boot.py)
GRACE = 120  # seconds between SIGTERM and SIGKILL
SPARE = 600  # seconds that a pod has beyond its job's limit, to boot and to report
KEPT = 86400  # seconds that Kubernetes keeps a finished Job
CACHE = "berg-cache"  # the Service of a cluster's dataset cache (cache.py)
CACHE_PORT = 8080
CACHE_URL = f"http://{CACHE}.default:{CACHE_PORT}"
SHARED_CORE = ("e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small")
FACTS = {"BERG_POD": "metadata.uid", "BERG_POD_IP": "status.podIP", "BERG_NODE": "spec.nodeName"}
# Shells of `kubectl exec` read this: the variables that a login has, unless they are set.
SHELL = """\
berg="${BERG_ROOT:-/root}/berg/environment.sh"
[ -n "${BERG_JOB-}" ] || [ ! -r "$berg" ] || . "$berg"
unset berg
"""


# --- which nodes


def choose_tpus(cluster: Thing, spec: JobSpec, wanted: shapes.Tpu) -> Shape:
    """Return what each pod of TPUs has; raise BergError if the cluster has no pool of them."""
    called = wanted.pool(spec.spot)
    pool = client.pool_of(cluster, called)
    if pool is None:
        spot = " --spot" if spec.spot else ""
        raise BergError(
            f"the cluster {cluster['name']} has no pool {called}. "
            f"Add it: berg cluster create {cluster['name']} --tpu {wanted.name}{spot}"
        )
    seconds = client.max_seconds(pool)
    if seconds and spec.max_hours * 3600 > seconds:
        raise BergError(
            f"--max-hours {spec.max_hours:g}: the nodes of the pool {called} exist for "
            f"{seconds // 3600} hours at most. Give fewer"
        )
    return replace(wanted.shape, node_disk=client.disk_of(pool))


def choose(cluster: Thing, spec: JobSpec) -> Shape:
    """Return what each pod has, from a pool that can hold them all; raise BergError if none can."""
    name, wanted = cluster["name"], gpu_type_of(spec)
    pools = spot_pools(cluster) if spec.spot else client.pools(cluster)
    with_gpus = [pool for pool in pools if client.gpus_of(pool)[1]]
    count = int(bool(with_gpus)) if spec.num_gpus is None else spec.num_gpus
    if count < 0:
        raise BergError(f"--num-gpus {count} makes no sense: give 0 for pods without GPUs")
    if count:
        return choose_gpus(name, with_gpus, wanted, count, spec)
    others = [pool for pool in pools if pool not in with_gpus]
    return choose_without_gpus(name, others, spec.num_cpus)


def spot_pools(cluster: Thing) -> list[Thing]:
    """Return the pools of Spot nodes; raise BergError if there is none."""
    found = [pool for pool in client.pools(cluster) if pool.get("config", {}).get("spot")]
    if not found:
        name = cluster["name"]
        raise BergError(
            f"the cluster {name} has no Spot nodes. Add them: berg cluster create {name} --spot"
        )
    return found


def gpu_type_of(spec: JobSpec) -> str:
    """Return the type of GPUs, "" for any; raise BergError for one that is unknown."""
    wanted = (spec.gpu_type or "").lower()
    wanted = ALIASES.get(wanted, wanted)
    if wanted and wanted not in CAPABILITY:
        raise shapes.unknown(wanted)
    return wanted


def choose_without_gpus(name: str, pools: list[Thing], num_cpus: int | None) -> Shape:
    """Return the largest kind of node for pods without GPUs; one without a type if any will do."""
    others = [pool for pool in pools if pool["name"] != client.CACHE]
    own = [pool for pool in others if pool["name"] != client.SYSTEM]
    # Kubernetes' own small node is for jobs only if there is no other
    check_cpus(name, own or others, num_cpus)
    nodes = [Shape(pool["config"]["machineType"], 0, "") for pool in own]
    return max(nodes, key=lambda shape: shape.num_cpus, default=Shape("", 0, ""))


def choose_gpus(name: str, pools: list[Thing], wanted: str, count: int, spec: JobSpec) -> Shape:
    """Return what each pod with `count` GPUs has, from the pool with room for the most pods."""
    of_type = [pool for pool in pools if wanted in ("", client.gpus_of(pool)[0])]
    large = [pool for pool in of_type if client.gpus_of(pool)[1] >= count]
    if not large:
        there = sorted({"{1} x {0}".format(*client.gpus_of(pool)) for pool in pools})
        what = f"its nodes have {', '.join(there) or 'none'}"
        if of_type:
            raise BergError(
                f"no node of the cluster {name} has {count} GPUs: {what}. "
                "Give fewer (-g), and more pods (-m)"
            )
        raise BergError(
            f"the cluster {name} has no {wanted or 'GPUs'}: {what}. "
            f"Add a pool: berg cluster create {name} -t {wanted or 'l4'}"
        )
    pool = max(large, key=lambda pool: room(pool, count))
    check_cpus(name, large, spec.num_cpus)
    gpu_type, gpus = client.gpus_of(pool)
    if room(pool, count) < spec.num_machines:
        raise BergError(
            f"the cluster {name} grows to {client.most_nodes(pool)} nodes with {gpus} GPUs "
            f"each, which have room for {room(pool, count)} pods, not for {spec.num_machines}. "
            f"Let it grow: berg cluster resize {name} --max-nodes N"
        )
    accelerator = client.ACCELERATORS.get(gpu_type, gpu_type)
    machine_type, disk = pool["config"]["machineType"], client.disk_of(pool)
    return Shape(machine_type, count, gpu_type, accelerator, gpus, disk)


def room(pool: Thing, count: int) -> int:
    """Return how many pods with so many GPUs a pool can hold when it has grown."""
    return client.most_nodes(pool) * (client.gpus_of(pool)[1] // count)


def check_cpus(name: str, pools: list[Thing], count: int | None) -> None:
    """Raise BergError if no node of these pools has so many CPUs for a pod."""
    types = [pool.get("config", {}).get("machineType", "") for pool in pools]
    sizes = [1 if kind in SHARED_CORE else Shape(kind, 0, "").num_cpus for kind in types]
    if sizes and all(sizes) and count and count >= max(sizes):
        raise BergError(
            f"no node of the cluster {name} gives a pod {count} CPUs: its nodes for this are "
            f"{', '.join({*types})}, of which Kubernetes keeps a part of one CPU. "
            "Give fewer (-c), or add a pool of larger machines: "
            f"berg cluster create {name} --machine-type TYPE"
        )


# --- the Job


def boot_map() -> Thing:
    """Return the ConfigMap with boot.py, named by its content."""
    files = {"boot.py": BOOT.read_text(), "shell": SHELL}
    content = "".join(files.values()).encode()
    name = f"berg-boot-{hashlib.sha256(content).hexdigest()[:10]}"
    return thing("ConfigMap", name, {"berg": "1"}, immutable=True, data=files)


def request(plan: Plan) -> Thing:
    """Return the cluster, and the Job without its name and the names of its machines."""
    this, labels = plan.job, {**plan.labels, "berg-bucket": bucket_label(plan.config)}
    is_alone = this.num_machines == 1 and this.kind == "job"
    restarts = this.spec.max_restarts if is_alone or this.is_replaced else 0
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": pod_spec(plan),
    }
    add_mounts(template, this.mounts, plan.offer.shape.node_disk[1])
    spec: Thing = {
        "completionMode": "Indexed",
        "backoffLimit": restarts if this.sweep else min(restarts, DEATHS),
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEPT,
        "podFailurePolicy": {"rules": failure_rules(restarts)},
        "template": patched(template, this.spec.pod_patch or {}),
    }
    if not this.sweep:  # the first one ends last
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    if queue := this.spec.queue:  # Kueue's webhook would suspend it as well
        labels = {**labels, QUEUE_LABEL: queue}
        spec["suspend"] = True
    return {
        "cluster": this.group.cluster,
        "name": "" if this.sweep else this.job_name,
        "labels": labels,
        "spec": spec,
        "cluster_key": plan.cluster_key,
        "is_slice": bool(this.tpu) and this.num_machines > 1,
    }


def failure_rules(restarts: int) -> list[Thing]:
    """Return what happens to the Job when a pod fails, or is taken away."""
    finished = {"containerName": "main", "operator": "In", "values": [FINISHED, *NEVER_BEGAN]}
    taken_away = {"type": "DisruptionTarget", "status": "True"}
    return [
        {"action": "FailJob", "onExitCodes": finished},
        {"action": "Ignore" if restarts else "FailJob", "onPodConditions": [taken_away]},
    ]


def pod_spec(plan: Plan) -> Thing:
    annotations = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
    selector, tolerations = nodes_for(plan)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": iam.ACCOUNT,
        "shareProcessNamespace": True,  # so that orphans are reaped, and boot.py gets SIGTERM
        "terminationGracePeriodSeconds": GRACE,
        "enableServiceLinks": False,
        # From when a node has the pod; the Job's own deadline counts from its creation.
        "activeDeadlineSeconds": plan.machine_seconds + SPARE,
        "nodeSelector": selector,
        "tolerations": tolerations,
        "containers": [main_container(plan)],
        "volumes": [
            {"name": "boot", "configMap": {"name": boot_map()["metadata"]["name"]}},
            {"name": "pod", "downwardAPI": {"items": [annotations]}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def nodes_for(plan: Plan) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the labels of nodes that may have the pods, and the taints that pods tolerate."""
    shape, selector, taint = plan.offer.shape, {}, ""
    if plan.job.tpu:
        wanted, taint = shapes.parse_tpu(plan.job.tpu, in_cluster=True), shapes.CHIP
        selector = {shapes.NODE_POOL: wanted.pool(plan.spec.spot), **wanted.selector}
    elif plan.job.gpus_per_machine:
        selector, taint = {f"{LABEL}gke-accelerator": shape.accelerator}, "nvidia.com/gpu"
    elif shape.machine_type:
        selector = {"node.kubernetes.io/instance-type": shape.machine_type}
    if plan.spec.spot:
        selector[f"{LABEL}gke-spot"] = "true"
    own = {"key": taint or client.FOR_JOBS, "operator": "Exists", "effect": "NoSchedule"}
    spot = {"key": f"{LABEL}gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    return selector, [own, spot]


def main_container(plan: Plan) -> Thing:
    """Return the container of each pod, which runs boot.py."""
    this = plan.job
    facts = {
        "job": this.job_name,
        "sweep": this.sweep,
        "project": plan.config.project,
        "packages_sha256": "",
        **plan.facts,
        "cluster_key": "",  # not here: all that list pods can read this
    }
    fields = [
        {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in FACTS.items()
    ]
    chips = {"nvidia.com/gpu": str(this.gpus_per_machine)} if this.gpus_per_machine else {}
    if this.tpu:
        chips = {shapes.CHIP: str(shapes.parse_tpu(this.tpu, in_cluster=True).chips_each)}
    cpus = {"cpu": str(this.spec.num_cpus)} if this.spec.num_cpus else {}
    return {
        "name": "main",
        "image": this.image,
        "command": ["python3", "/etc/berg/boot/boot.py"],
        "env": [
            {"name": "BERG_FACTS", "value": json.dumps(facts)},
            {"name": "BERG_UNIT", "value": "1"},  # boot.py prints for people who wait
            {"name": "BASH_ENV", "value": "/etc/berg/boot/shell"},
            {"name": "ENV", "value": "/etc/berg/boot/shell"},
            *fields,
        ],
        # No limit of memory: the kernel would end all of the container for it, worker included.
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},  # for `berg profile`
        "resources": {"limits": chips, "requests": {**chips, **cpus}},
        "volumeMounts": [
            {"name": "boot", "mountPath": "/etc/berg/boot", "readOnly": True},
            {"name": "pod", "mountPath": "/etc/berg/pod", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def facts_of(job: Thing) -> dict[str, Any]:
    """Return what a Job tells the boot.py of its pods."""
    env = job["spec"]["template"]["spec"]["containers"][0].get("env", [])
    texts = [each["value"] for each in env if each["name"] == "BERG_FACTS"]
    found: dict[str, Any] = json.loads(texts[0]) if texts else {}
    return found


def body(
    request: Thing, names: list[str], namespace: str, has_cache: bool, service: str = ""
) -> Thing:
    """Return the Job for machines of those names; `service` is that of the pods of a slice."""
    spec = copy.deepcopy(request["spec"])
    pod = spec["template"]["spec"]
    env = pod["containers"][0]["env"]
    env[0]["value"] = json.dumps({**json.loads(env[0]["value"]), "names": names})
    if has_cache:
        env.append({"name": "BERG_CACHE_URL", "value": CACHE_URL})
    if service:  # libtpu and GKE find the other pods by it
        pod["subdomain"] = service
    spec |= {"completions": len(names), "parallelism": len(names)}
    made = thing("Job", request["name"] or names[0], request["labels"], spec=spec)
    return in_namespace(made, namespace)


def in_namespace(made: Thing, namespace: str) -> Thing:
    """Return an object of a namespace; the shared one is not written down."""
    if namespace == "default":
        return made
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def slice_service(job: Thing, name: str) -> Thing:
    """Return the headless Service of a Job's pods: a name for each, before they are ready, too."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": job["metadata"]["name"]},
    }
    return thing("Service", name, job["metadata"]["labels"], spec=spec)


def key_secret(job: Thing, name: str, key: str) -> Thing:
    """Let a Job's pods have the key of their cluster from a Secret, and return the Secret."""
    main = job["spec"]["template"]["spec"]["containers"][0]
    source = {"secretKeyRef": {"name": name, "key": CLUSTER_KEY}}
    main["env"].append({"name": CLUSTER_KEY, "valueFrom": source})
    labels = job["metadata"]["labels"]
    return thing("Secret", name, labels, immutable=True, stringData={CLUSTER_KEY: key})


def bucket_label(config: Config) -> str:
    """Return the bucket as a label, which for Kubernetes must end with a letter or digit."""
    return instances.bucket_label(config).strip("-_")


# --- patches

# Lists whose items a strategic merge identifies by a field, from Kubernetes' types.
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


def read_patch(file: str) -> Thing:
    """Return the patch in a file of JSON or YAML; raise BergError if it is none."""
    try:
        text = Path(file).read_text()
    except (OSError, ValueError) as error:
        raise BergError(f"--pod-patch {file}: cannot read it ({error})") from None
    patch = parse(file, text)
    check_patch(file, patch)
    return {key: patch[key] for key in ("metadata", "spec") if key in patch}


def parse(file: str, text: str) -> Any:
    """Return the content of a text in JSON or YAML; raise BergError if it is neither."""
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


def check_patch(file: str, patch: Any) -> None:
    """Raise BergError if it is no patch, or changes what berg needs as it is."""
    taken: set[str] = set()
    try:
        unknown = sorted(patch.keys() - {"apiVersion", "kind", "metadata", "spec"})
        spec, about = patch.get("spec", {}), patch.get("metadata", {})
        names = [*about.get("labels", {}), *about.get("annotations", {})]
        taken |= OURS & spec.keys()
        for each in spec.get("containers", []):
            if each["name"] == "main":
                names += [variable["name"] for variable in each.get("env", [])]
                taken |= {"command", "args", "$patch"} & each.keys()
        taken |= {name for name in names if name.lower().startswith("berg")}
    except (AttributeError, KeyError, TypeError):
        unknown = ["what it holds"]
    if unknown:
        raise BergError(
            f"--pod-patch {file}: {unknown[0]} is not part of a pod, which has metadata and spec"
        )
    if taken:
        raise BergError(f"--pod-patch {file}: {min(taken)} is berg's, and stays as it is")


def patched(template: Thing, patch: Thing) -> Thing:
    """Return a pod's template with a patch; raise BergError if it does not fit."""
    try:
        return merge(copy.deepcopy(template), patch)
    except (AttributeError, TypeError):
        raise BergError("--pod-patch: what it holds is not part of a pod") from None


def merge(old: Thing, patch: Thing) -> Thing:
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


def merge_list(old: list[Thing], patch: list[Thing], by: str) -> list[Thing]:
    """Return a list with a patch's items; those with the same value of a field are merged."""
    found = {each[by]: each for each in old}
    for item in patch:
        if by not in item:
            raise BergError(f"--pod-patch: {json.dumps(item)} has no {by}, which identifies it")
        if item.get("$patch") == "delete":
            found.pop(item[by], None)
        else:
            found[item[by]] = merge(found.get(item[by], {}), item)
    return list(found.values())


# --- folders of buckets

DRIVER = "gcsfuse.csi.storage.gke.io"
# The second one: the cache may fill the node's disk.
ANNOTATIONS = {"gke-gcsfuse/volumes": "true", "gke-gcsfuse/ephemeral-storage-limit": "0"}
# gcsfuse's profile for training, as options that older drivers know as well
TRAINING = (
    "implicit-dirs",
    "metadata-cache:ttl-secs:-1",
    "metadata-cache:negative-ttl-secs:0",
    "metadata-cache:stat-cache-max-size-mb:-1",
    "file-cache:enable-parallel-downloads:true",
)
USUAL_DISK = 20  # GB of a node whose disk is not known


def check_mounts(cluster: Thing, spec: JobSpec) -> None:
    """Raise BergError for mounts that pods of a cluster cannot have."""
    if not spec.mount:
        return
    name = cluster["name"]
    if not client.workload_pool(cluster):
        raise BergError(
            f"--mount: pods of the cluster {name} have no account of their own (docs/gke.md, Whose "
            "pods are whose). Download the data instead: --data"
        )
    driver = cluster.get("addonsConfig", {}).get("gcsFuseCsiDriverConfig", {})
    if not driver.get("enabled"):
        raise BergError(
            f"--mount: the cluster {name} has no driver for gcsfuse. Its administrator can run: "
            f"gcloud container clusters update {name} --location {cluster['location']} "
            "--update-addons GcsFuseCsiDriver=ENABLED"
        )
    for text in spec.mount:
        if "," in data.wanted(text, "--mount")[0]:
            raise BergError(f"--mount {text}: a pod cannot have a folder with a comma in its name")


def add_mounts(template: Thing, mounts: list[Thing], disk_gb: int) -> None:
    """Add folders of buckets to a template's pods; their cache is on the node's disk."""
    if not mounts:
        return
    template["metadata"]["annotations"] |= ANNOTATIONS
    pod = template["spec"]
    cache_mb = (disk_gb or USUAL_DISK) * 1024 // 2 // len(mounts)
    for number, mount in enumerate(mounts):
        name = f"berg-mount-{number}"
        options = [f"only-dir={mount['prefix']}", *TRAINING, f"file-cache:max-size-mb:{cache_mb}"]
        attributes = {"bucketName": mount["bucket"], "mountOptions": ",".join(options)}
        source = {"driver": DRIVER, "readOnly": True, "volumeAttributes": attributes}
        pod["volumes"].append({"name": name, "csi": source})
        place = {"name": name, "mountPath": mount["path"], "readOnly": True}
        pod["containers"][0]["volumeMounts"].append(place)


# --- the account of the pods
# With Workload Identity each user has a namespace with an account that acts as `service_account` of
# the settings; pods get no token of their node. In other clusters all pods are in the namespace
# default and act as their nodes. The account may list the pods of its namespace and nothing else.
# Not covered: users that may create pods in a cluster; they may do so in every namespace.

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
REVIEWS = "authorization.k8s.io"
PARTS_OF_PODS = {"exec": ("create", "exec"), "getLogs": ("get", "log")}  # Google's own verbs


def accounts(config: Config, cluster: dict[str, Any]) -> tuple[str, ...]:
    """Return the accounts that the user's pods act as; raise BergError if settings name none.

    Nodes from before Workload Identity pass their own account on.
    """
    if not client.workload_pool(cluster):
        return client.accounts(cluster)
    if "@" not in config.service_account:
        raise BergError(
            f"in the cluster {cluster['name']} each user's pods act as an account of that "
            "user, and the settings name none. Make one: berg init"
        )
    older = client.accounts({"nodePools": client.without_identity(cluster)})
    return tuple(sorted({config.service_account, *older}))


def namespace(config: Config, server: Server) -> str:
    """Return the namespace of the user's pods."""
    return iam.namespace(config.user) if server.has_identity else SHARED


def may(config: Config, place: str, permission: str) -> bool:
    """Return whether the cluster lets the user do what a permission of Google's allows.

    The permission is one such as container.jobs.create; roles in the cluster count as well.
    """
    _, plural, verb = permission.split(".")
    verb, part = PARTS_OF_PODS.get(verb, (verb, ""))
    server = client.connect(config, place)
    access = {"verb": verb, "resource": plural.lower(), "subresource": part}
    if plural == "jobs":
        access["group"] = "batch"
    if plural != "namespaces":
        access["namespace"] = namespace(config, server)
    review = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": f"{REVIEWS}/v1",
        "spec": {"resourceAttributes": access},
    }
    answer = client.call(server, "POST", f"/apis/{REVIEWS}/v1/selfsubjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))


def ensure_account(config: Config, server: Server) -> str:
    """Create what the user's pods need in a cluster, if it is missing; return their namespace."""
    own = namespace(config, server)
    if server.has_identity:
        make_namespace(server, own)
    client.create(server, below(own, "configmaps"), boot_map())
    path = f"{below(own, 'serviceaccounts')}/{ACCOUNT}"
    there = client.find(server, path)
    if there is None:
        try:
            admit(server, own)
        except client.Refused as error:
            if error.code != 403 or not server.has_identity:
                raise
            name, user = server.place.rpartition("/")[2], own.removeprefix("berg-")
            raise BergError(
                f"your pods have no account in the cluster {name} yet, and you may not give rights "
                f"there: {error.message}. A user with roles/container.admin has to run: "
                f"berg cluster admit {name} {user}"
            ) from None
    annotations = there["metadata"].get("annotations", {}) if there else {}
    if server.has_identity and annotations.get(iam.ANNOTATION) != config.service_account:
        try:
            iam.bind_pods(config)
        except api.Forbidden as error:
            api.notify(
                f"Whether your pods may act as {config.service_account} you may neither see nor "
                f"change ({api.words(error)}). If they get no token, its administrator has to run: "
                f"{iam.bind_pods_command(config)}"
            )
        change = {"metadata": {"annotations": {iam.ANNOTATION: config.service_account}}}
        client.call(server, "PATCH", path, change, kind=client.MERGE)
    return own


def make_namespace(server: Server, name: str) -> None:
    client.create(server, "/api/v1/namespaces", client.thing("Namespace", name, {"berg": "1"}))


def admit(server: Server, namespace: str) -> None:
    """Create the account of a namespace's pods with its right to list them.

    The account comes last: if it exists, it has its right, which not all users may look at.
    """
    role = {"apiGroup": client.RBAC, "kind": "Role", "name": ACCOUNT}
    subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]
    binding = {"roleRef": role, "subjects": subjects}
    for plural, kind, content in (
        ("roles", "Role", {"rules": RULES}),
        ("rolebindings", "RoleBinding", binding),
        ("serviceaccounts", "ServiceAccount", {}),
    ):
        made = client.thing(kind, ACCOUNT, {"berg": "1"}, **content)
        client.create(server, below(namespace, plural), made)


def missing_grants(config: Config, look: Callable[[], list[dict[str, Any]]]) -> list[Grant]:
    """Return the binding that the user's pods lack, if a cluster has Workload Identity.

    `look` returns the clusters. Return nothing where the binding cannot be seen.
    """
    ours = [each for each in look() if client.is_ours(each) and client.workload_pool(each)]
    if not ours or "@" not in config.service_account:
        return []
    try:
        policy = iam.account_policy(config)
        if iam.is_bound(policy, iam.WORKLOAD_ROLE, iam.pods_member(config)):
            return []
    except api.NotFound:
        pass  # the account has yet to be created
    except api.Forbidden:
        return []
    text = f"Let your pods, and no others, act as {config.service_account}"
    return [Grant(text, iam.bind_pods_command(config), lambda: iam.bind_pods(config))]
