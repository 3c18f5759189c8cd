"""Pods as machines: those that exist, and the Job that makes them.

A job is an Indexed Job of Kubernetes with a pod for each machine, which Kubernetes makes again when it
was taken away. Their image needs nothing of ours: boot.py comes as a ConfigMap, the rest from the
bucket. A word for a pod is an annotation, which its node writes to a file within a minute.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from requests import RequestException

from berg import BergError, gce, ssh, terminal
from berg.features.gke import kube
from berg.features.gke.kube import LABEL, Row, Server
from berg.features.secrets import MOUNTED
from berg.gce import GPUS, Shape
from berg.google import GoogleError
from berg.place import Machine

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job

# Exit codes of a pod: its job is over without success; another pod goes on; no python3 could be run.
FAILED, CONTINUES, NEVER_BEGAN = 42, 43, (126, 127, 128)
GRACE = 120  # seconds between SIGTERM and SIGKILL
SPARE = 600  # seconds that a pod has beyond its job's limit, to boot and to report
KEPT, SOON = 86400, 60  # seconds for which Kubernetes keeps a finished Job; one with secrets
DEATHS = 5  # times that a pod may die by itself, such as for want of memory
GONE = 180  # seconds for pods to go
DEFAULT = "l4"  # type of GPUs, unless the user names one
FOR_JOBS = "berg"  # key of the taint of nodes without GPUs, which keeps Kubernetes' own pods off
FILES, POD = "/etc/berg/boot", "/etc/berg/pod"  # in a pod
SCALING = ("FailedScheduling", "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp")
SECRETS = "berg-secrets"
INDEX = "batch.kubernetes.io/job-completion-index"
KEY = "/root/berg/ssh_host_key"
# Brings what a login and `berg sync` need, admits a key, and prints the host key.
OPEN = f"""
[ -x /usr/sbin/sshd ] && command -v rsync ssh-keygen >/dev/null || {{
    apt-get -qq -o DPkg::Lock::Timeout=600 update &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 install -y openssh-server rsync
}} >&2
umask 77; mkdir -p /run/sshd /root/berg /root/.ssh; chmod 755 /run/sshd
grep -qxF "$1" /root/.ssh/authorized_keys 2>/dev/null || echo "$1" >>/root/.ssh/authorized_keys
[ -f {KEY} ] || ssh-keygen -q -t ed25519 -N "" -f {KEY}
cut -d " " -f 1,2 {KEY}.pub
"""
# The server of one connection, which is its input and output.
SSHD = (
    f"exec /usr/sbin/sshd -i -e -f /dev/null -h {KEY} -o UsePAM=no -o StrictModes=no "
    "-o LogLevel=ERROR -o Subsystem='sftp internal-sftp'"
)


@dataclass
class Pod(Machine):
    pod: str = ""
    owner: str = ""  # name and uid of its Job
    owner_uid: str = ""

    @property
    def path(self) -> str:
        return f"{kube.PODS}/{self.pod}"

    def tell(self, config: Config, key: str, value: str) -> None:
        body = {"metadata": {"uid": self.id, "annotations": {key: value}}}
        try:
            kube.ask(config, kube.server(config, self.zone), "PATCH", self.path, body, kube.MERGE)
        except GoogleError as error:
            if error.status not in (404, 409):
                raise

    def host_keys(self, config: Config) -> list[str]:
        words = self.inside(config, OPEN, ssh.public_key())
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.stdout.splitlines() if not done.returncode else []

    def tunnel(self, config: Config) -> list[str]:
        return self.inside(config, SSHD)

    def inside(self, config: Config, script: str, *values: str) -> list[str]:
        """The words that run a script in the pod."""
        words = ["exec", "-i", self.pod, "-c", "main", "--", "sh", "-c", script, "sh", *values]
        return [*kube.reaching(config, self.zone), *words]

    def delete(self, config: Config) -> None:
        """Delete its Job with all pods: of a Job that lives, another pod would come."""
        server = kube.server(config, self.zone)
        kube.remove(config, server, f"{kube.JOBS}/{self.owner}", self.owner_uid)
        kube.remove(config, server, self.path, self.id)

        def is_gone() -> bool:
            pod = kube.look(config, server, self.path)
            return pod is None or pod["metadata"]["uid"] != self.id or not is_alive(pod)

        rest = f"the pod {self.pod} is not gone yet. See: kubectl describe pod {self.pod}"
        kube.wait_until(is_gone, GONE, rest)

    def stop(self, config: Config) -> None:
        raise BergError(
            f"{self.name} is a pod, which has no disk to keep. End it: berg kill {self.job}"
        )

    start = stop


def is_alive(pod: Row) -> bool:
    """Whether a pod runs, or has yet to start."""
    return pod["status"].get("phase") in ("Pending", "Running")


# --- what there is


def bucket_label(config: Config) -> str:
    return gce.bucket_label(config).strip("-_")  # Kubernetes takes no others at the ends


def listed(config: Config, server: Server, path: str, job: str) -> list[Row]:
    """The pods or Jobs of this bucket in a cluster, of one job or of all ("")."""
    labels = f"berg=1,berg-bucket={bucket_label(config)}" + (f",berg-job={job}" if job else "")
    return kube.items(config, server, path, labelSelector=labels)


def machines(
    config: Config, job: str = "", zone: str = "", made_for: Collection[str] = ()
) -> list[Pod]:
    """The pods of a job, or of all jobs of the bucket, by name; a cluster LOCATION/NAME is their zone.
    Those of a cluster that does not answer are missing, which is said.
    """
    if zone and "/" not in zone:
        return []

    def pods_in(cluster: Row) -> list[Pod]:
        try:
            server = kube.connect(config, cluster)
            rows = [row for row in listed(config, server, kube.PODS, job) if is_alive(row)]
            is_waiting = any(row["status"]["phase"] == "Pending" for row in rows)
            events = kube.items(config, server, f"{kube.CORE}/events") if is_waiting else []
        except (GoogleError, RequestException, BergError) as error:
            terminal.warn(f"{error}; the pods of {cluster['name']} are missing in what follows")
            return []
        return [
            pod_of(row, server.place, events)
            for row in rows
            if not made_for or sha_of(row) in made_for
        ]

    try:
        where = [row for row in kube.clusters(config) if zone in ("", kube.place(row))]
    except (GoogleError, RequestException) as error:
        terminal.warn(f"{error}; pods are missing in what follows")
        return []
    with ThreadPoolExecutor(8) as pool:
        found = [pod for pods in pool.map(pods_in, where) for pod in pods]
    return sorted(found, key=lambda pod: (pod.job, gce.order(pod.name)))


def is_coming(config: Config, job: str) -> bool:
    """Whether a Job makes pods, or one may in a cluster that does not answer."""
    try:
        servers = [kube.connect(config, row) for row in kube.clusters(config)]
        rows = [row for each in servers for row in listed(config, each, kube.JOBS, job)]
    except (GoogleError, RequestException, BergError):
        return True
    return not all(map(has_ended, rows))


def sha_of(thing: Row) -> str:
    return str(thing["metadata"].get("annotations", {}).get("berg-job-sha256", ""))


def has_ended(job: Row) -> bool:
    """Whether a Job makes no more pods."""
    kinds = ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")
    rows = job["status"].get("conditions", [])
    is_over = any(row["type"] in kinds and row["status"] == "True" for row in rows)
    return is_over or "deletionTimestamp" in job["metadata"]


def pod_of(row: Row, place: str, events: list[Row]) -> Pod:
    about, spec = row["metadata"], row["spec"]
    labels, own = about["labels"], about.get("annotations", {})
    job = labels.get("berg-job", "")
    status = "RUNNING" if row["status"]["phase"] == "Running" else "PROVISIONING"
    status = "STAGING" if status != "RUNNING" and spec.get("nodeName") else status
    owner: Row = next(iter(about.get("ownerReferences", [])), {})
    return Pod(
        name=job if own.get("berg-machines") == "1" else f"{job}-{labels.get(INDEX, '0')}",
        zone=place,
        has_disk=False,
        status="STOPPING" if "deletionTimestamp" in about else status,
        job=job,
        id=about["uid"],
        created_at=about["creationTimestamp"],
        inner_address=row["status"].get("podIP", ""),
        machine_type=own.get("berg-machine-type", ""),
        user=labels.get("berg-user", ""),
        labels=labels,
        note="" if status == "RUNNING" else reason(row, events),
        pod=about["name"],
        owner=owner.get("name", ""),
        owner_uid=owner.get("uid", ""),
    )


def reason(pod: Row, events: list[Row]) -> str:
    """What a pod waits for, in Kubernetes' words."""
    for row in pod["status"].get("containerStatuses", []):
        waiting = row.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return one_line(f"{waiting['reason']}: {waiting.get('message', row.get('image'))}")
    if node := pod["spec"].get("nodeName"):
        return f"its node {node} pulls the image"
    own = [
        event
        for event in events
        if event.get("involvedObject", {}).get("uid") == pod["metadata"]["uid"]
        and event.get("reason") in SCALING
    ]
    last = max(own, key=order, default={})
    return one_line(f"waits for a node: {last.get('reason', '')} {last.get('message', '')}")


def order(event: Row) -> tuple[str, int]:
    """The newest event is the last; of one second the autoscaler's, which says more."""
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return at, SCALING.index(event["reason"])


def one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(": ")


# --- which nodes


def choose(
    cluster: Row, gpus: int | None, gpu_type: str, cpus: int | None, machine_type: str,
    is_spot: bool = False,
) -> tuple[Shape, int]:  # fmt: skip
    """What a pod has, from the pool that has room for the most of them; and how many that are.

    The default type may be any: the plan says which.
    """
    if gpu_type not in GPUS:
        raise BergError(f"there is no GPU type {gpu_type!r}. Choose one: -t {', '.join(GPUS)}")
    all_pools = [row for row in cluster["nodePools"] if row["name"] != kube.SYSTEM]
    pools = [row for row in all_pools if not is_spot or row["config"].get("spot")]
    pools = [row for row in pools if machine_type in ("", row["config"]["machineType"])]
    kinds = {kube.gpus_of(row)[0] for row in pools} - {""}
    count = int(bool(kinds)) if gpus is None else gpus
    kind = GPUS[gpu_type][0]
    kinds = kinds if gpu_type == DEFAULT and kind not in kinds else {kind}
    fitting = []
    for row in pools:
        own, number = kube.gpus_of(row)
        size = re.search(r"-(\d+)g?$", row["config"]["machineType"])
        is_small = bool(cpus and size and cpus >= int(size[1]))  # Kubernetes keeps a part of one
        if not is_small and (number >= count and own in kinds if count else not number):
            fitting.append((kube.most_nodes(row) * (number // count if count else 1000), row))
    if not fitting:
        what = f"{count} x {gpu_type}" if count else "pods without GPUs"
        what += f" with {cpus} vCPUs" if cpus else ""
        what += f" on {machine_type}" if machine_type else ""
        raise BergError(
            f"no {'Spot ' * is_spot}node of the cluster {cluster['name']} is for {what}; its pools: "
            f"{', '.join(map(describe, all_pools)) or 'none'}. Add one: berg cluster create "
            f"{cluster['name']} {f'-t {gpu_type} ' if count else ''}-g {count}{' --spot' * is_spot}"
        )
    room, best = max(fitting, key=lambda row: row[0])
    return Shape(best["config"]["machineType"], count, name_of(best) if count else ""), room


def name_of(pool: Row) -> str:
    """Berg's name of the GPUs of a pool."""
    kind = kube.gpus_of(pool)[0]
    return next((key for key, row in GPUS.items() if row[0] == kind), kind)


def describe(pool: Row) -> str:
    count = kube.gpus_of(pool)[1]
    gpus = f" with {count} x {name_of(pool)}" if count else ""
    gpus += ", Spot" if pool["config"].get("spot") else ""
    return f"{kube.most_nodes(pool)} of {pool['config']['machineType']}{gpus}"


# --- the Job


def boot_map() -> Row:
    """The ConfigMap with the programs of a pod, named by its content."""
    files = {
        "boot.py": gce.BOOT.read_text("utf-8"),
        "pod.py": Path(__file__).with_name("pod.py").read_text("utf-8"),
    }
    digest = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:10]
    about = {"name": f"berg-boot-{digest}", "labels": {"berg": "1"}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "immutable": True,
        "data": files,
    }


def secret(job: Row, values: dict[str, str]) -> Row:
    """The Secret of a Job, with which it goes."""
    about, volumes = job["metadata"], job["spec"]["template"]["spec"]["volumes"]
    name = next(row["secret"]["secretName"] for row in volumes if row["name"] == SECRETS)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
    meta = {"name": name, "labels": about["labels"], "ownerReferences": [owner]}
    data = {MOUNTED.name: json.dumps(values)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "immutable": True,
        "stringData": data,
    }


def manifest(
    config: Config, job: Job, request: dict[str, Any], place: str, patch: Row, has_secrets: bool
) -> Row:
    """The Job of a job, by the request for a machine of Compute Engine."""
    items = request.get("metadata", {}).get("items", [])
    facts = {row["key"]: row["value"] for row in items if row["key"] != "startup-script"}
    labels = {"berg": "1", "berg-bucket": bucket_label(config), "berg-job": job.name}
    labels |= {key: request["labels"][key] for key in ("berg-user", "berg-kind")}
    about = {"berg-job-sha256": job.sha256, "berg-machines": str(job.machines)}
    about |= {"berg-machine-type": job.machine_type}
    selector, taint = {"node.kubernetes.io/instance-type": job.machine_type}, FOR_JOBS
    if job.gpus:
        selector, taint = {f"{LABEL}accelerator": GPUS[job.gpu_type][0]}, "nvidia.com/gpu"
    tolerations = [{"key": taint, "operator": "Exists", "effect": "NoSchedule"}]
    if request["scheduling"].get("provisioningModel") == "SPOT":
        selector[f"{LABEL}spot"] = "true"
        tolerations.append({"key": f"{LABEL}spot", "operator": "Exists", "effect": "NoSchedule"})
    chips = {"nvidia.com/gpu": str(job.gpus)} if job.gpus else {}
    cpus = {"cpu": str(job.options["cpus"])} if job.options.get("cpus") else {}
    env: list[Row] = [{"name": "BERG_FACTS", "value": json.dumps({**facts, "place": place})}]
    env += [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in (("BERG_POD", "metadata.uid"), ("BERG_POD_IP", "status.podIP"))
    ]
    main: Row = {
        "name": "main",
        "image": job.image,
        "command": ["python3", f"{FILES}/pod.py"],
        "env": env,
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},  # for stacks of a hang
        # No limit of memory: for it the kernel would end the worker, too.
        "resources": {"limits": chips, "requests": {**chips, **cpus}},
        "volumeMounts": [
            {"name": "berg-boot", "mountPath": FILES, "readOnly": True},
            {"name": "berg-pod", "mountPath": POD, "readOnly": True},
            {"name": "berg-shm", "mountPath": "/dev/shm"},
        ],
    }
    words = [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]
    spec: Row = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "shareProcessNamespace": True,  # then process 1 is one that reaps, and ours gets SIGTERM
        "terminationGracePeriodSeconds": GRACE,
        "enableServiceLinks": False,
        # From when a node has the pod; a Job's own deadline counts while it waits, too.
        "activeDeadlineSeconds": int(request["scheduling"]["maxRunDuration"]["seconds"]) + SPARE,
        "nodeSelector": selector,
        "tolerations": tolerations,
        "containers": [main],
        "volumes": [
            {"name": "berg-boot", "configMap": {"name": boot_map()["metadata"]["name"]}},
            {"name": "berg-pod", "downwardAPI": {"items": words}},
            {"name": "berg-shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if has_secrets:
        source = {"secretName": f"{SECRETS}-{token_hex(5)}", "defaultMode": 0o400}
        spec["volumes"].append({"name": SECRETS, "secret": source})
        mount = {"name": SECRETS, "mountPath": str(MOUNTED.parent), "readOnly": True}
        main["volumeMounts"].append(mount)
    safe = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    template = {"metadata": {"labels": labels, "annotations": {**about, **safe}}, "spec": spec}
    taken = {"action": "Ignore" if job.returns else "FailJob"}  # else no other pod comes
    whole = {
        "completionMode": "Indexed",
        "completions": job.machines,
        "parallelism": job.machines,
        "backoffLimit": DEATHS if job.returns else 0,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": SOON if has_secrets else KEPT,
        "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": exits(FAILED, *NEVER_BEGAN)},
            {**taken, "onExitCodes": exits(CONTINUES)},
            {**taken, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]},
        "template": merge(template, patch),
    }  # fmt: skip
    if not job.rows:  # the first pod ends last
        whole["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    meta = {"name": job.name, "labels": labels, "annotations": about}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": whole}


def delete_job(config: Config, server: Server, job: Job) -> None:
    """Delete the Job of this very job; its pods end meanwhile."""
    path = f"{kube.JOBS}/{job.name}"
    found = kube.look(config, server, path)
    if found and sha_of(found) == job.sha256:
        kube.remove(config, server, path, found["metadata"]["uid"])
        rest = f"the Job {job.name} is not gone yet. See: kubectl describe job {job.name}"
        kube.wait_until(lambda: not kube.look(config, server, path), GONE, rest)


def exits(*codes: int) -> Row:
    return {"containerName": "main", "operator": "In", "values": [*codes]}


# --- patches: Kubernetes' strategic merge of a part of a pod

# Lists whose items have a key; those of all others replace.
KEYS = {"containers": "name", "initContainers": "name", "env": "name", "volumes": "name",
        "volumeMounts": "mountPath", "ports": "containerPort", "imagePullSecrets": "name",
        "hostAliases": "ip", "topologySpreadConstraints": "topologyKey"}  # fmt: skip
OURS = {"restartPolicy", "shareProcessNamespace", "command", "args"}


def read_patch(file: str) -> Row:
    """The part of a pod in a file of JSON or YAML; raise BergError for anything else."""
    try:
        text = Path(file).read_text("utf-8")
        try:
            patch = json.loads(text)
        except ValueError:
            import yaml

            patch = yaml.safe_load(text)
    except ImportError:
        raise BergError(
            f"--pod-patch {file} is not JSON, and YAML needs a package: pip install pyyaml"
        ) from None
    except OSError as error:
        raise BergError(f"--pod-patch: cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise BergError(f"--pod-patch {file}: {error}. Give a file with a part of a pod") from None
    except Exception as error:  # what yaml raises
        raise BergError(f"--pod-patch {file} is not valid YAML: {error}. Correct it") from None
    try:
        unknown = patch.keys() - {"apiVersion", "kind", "metadata", "spec"}
        mains = [row for row in patch["spec"].get("containers", []) if row["name"] == "main"]
        about = patch.get("metadata", {})
        names = {*patch["spec"], *about.get("labels", {}), *about.get("annotations", {})}
        names |= {key for row in mains for key in row} | {
            variable["name"] for row in mains for variable in row.get("env", [])
        }
    except (AttributeError, KeyError, TypeError):
        raise BergError(f"--pod-patch {file} is no part of a pod. Give its spec") from None
    ours = sorted(name for name in names if name in OURS or name.lower().startswith("berg"))
    if unknown or ours:
        wrong = f"{min(unknown)} is no part of a pod" if unknown else f"{ours[0]} is Berg's"
        raise BergError(f"--pod-patch {file}: {wrong}. Leave it out")
    return {key: patch[key] for key in ("metadata", "spec") if key in patch}


def merge(old: Row, patch: Row) -> Row:
    """An object with a patch; None removes a field, `$patch: delete` an item."""
    found = dict(old)
    for key, value in patch.items():
        before = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            found[key] = merge(before or {}, value)
        elif key == "tolerations":
            found[key] = [*(before or []), *value]
        elif key in KEYS and isinstance(value, list):
            by = KEYS[key]
            items = {item[by]: item for item in before or []}
            for item in value:
                if by not in item:
                    raise BergError(
                        f"--pod-patch: {shlex.quote(json.dumps(item))} has no {by}. Add it"
                    )
                items[item[by]] = merge(items.get(item[by], {}), item)
            found[key] = [item for item in items.values() if item.get("$patch") != "delete"]
        else:
            found[key] = value
    return found
