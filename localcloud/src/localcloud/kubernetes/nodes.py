"""Nodes: the instances of a cluster's pools, and what Kubernetes sees of them.

A node is an instance whose startup script acts as the kubelet: while pods run on it, it keeps the
machine and its network up, as GKE's graceful node shutdown does. The pods themselves run outside of
it, see kubelet.py.

Not covered: upgrades, TPUs, nodes that do not answer, repairs other than of instances that are off.
"""

import secrets
import time
import uuid

from localcloud.compute import catalog, power
from localcloud.compute.make import make_instance
from localcloud.compute.state import Instance
from localcloud.errors import ApiError
from localcloud.kubernetes import kubelet
from localcloud.kubernetes.defaults import GPU
from localcloud.kubernetes.kinds import is_leaving, is_over, set_condition, stamp
from localcloud.kubernetes.plane import LETTERS, VERSION, Plane
from localcloud.machines import processes

IMAGE = "projects/cos-cloud/global/images/family/cos-stable"
CLUSTER, POOL, PLACE = (
    "goog-k8s-cluster-name",
    "goog-k8s-node-pool-name",
    "goog-k8s-cluster-location",
)
EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
    "NO_EXECUTE": "NoExecute",
}
# seconds of a pod on a node that goes down: half of the usual 30, the others are for critical pods
GRACE = 15
KUBELET = """#!/bin/sh
# Acts as the kubelet: it keeps the machine up while pods run on it (/run/pods).
cat >/run/kubelet <<'END'
trap 'while [ -e /run/pods ]; do sleep 0.1; done; exit' TERM
while :; do sleep infinity & wait $!; done
END
cat >/run/systemd/system/kubelet.service <<'END'
[Unit]
Description=kubelet
After=network-online.target
[Service]
Type=exec
ExecStart=/bin/sh /run/kubelet
KillMode=mixed
TimeoutStopSec=120
StandardOutput=tty
END
systemctl start kubelet
"""


def instances_of(plane: Plane, pool: dict) -> list[Instance]:
    wanted = {CLUSTER: plane.name, POOL: pool["name"], PLACE: plane.location}
    return [
        each
        for each in plane.compute.instances.values()
        if each.project == plane.project
        and wanted.items() <= (each.resource.get("labels") or {}).items()
    ]


def look(plane: Plane) -> None:
    """Make and remove instances as the pools want, and nodes as there are instances."""
    known: dict[str, tuple[Instance, dict]] = {}
    for pool in plane.pools:
        mine = instances_of(plane, pool)
        known |= {each.name: (each, pool) for each in mine}
        resize(plane, pool, mine)
    for name, (instance, pool) in known.items():
        if instance.resource["status"] == "RUNNING" and not instance.preempted:
            be_node(plane, pool, instance)
        elif plane.store.get("nodes", "", name):
            leave(plane, pool, instance)
    for node in plane.store.all("nodes"):
        if node["metadata"]["name"] not in known:
            lose(plane, node)


# --- instances


def resize(plane: Plane, pool: dict, mine: list[Instance]) -> None:
    going = plane.memory.setdefault(f"going {pool['name']}", {"names": set(), "next": 0.0})
    ended = [each for each in mine if each.resource["status"] == "TERMINATED"]
    for instance in ended:
        if instance.name not in going["names"]:
            remove(plane, pool, instance)
    alive = [each for each in mine if each.name not in going["names"]]
    going["names"] &= {each.name for each in mine}
    wanted = 0 if pool["status"] == "STOPPING" else pool["_size"]
    busy = {pod["spec"].get("nodeName") for pod in plane.store.all("pods") if not is_over(pod)}
    for instance in sorted(alive, key=lambda each: each.name in busy)[
        : max(0, len(alive) - wanted)
    ]:
        remove(plane, pool, instance)
    if len(alive) < wanted and time.monotonic() >= going["next"]:
        for _ in range(wanted - len(alive)):
            if trouble := add(plane, pool):
                pool["_trouble"] = trouble
                going["next"] = time.monotonic() + plane.compute.settings.refill
                return
        pool.pop("_trouble", None)


def remove(plane: Plane, pool: dict, instance: Instance) -> None:
    """Delete a pool's instance for good."""
    plane.memory[f"going {pool['name']}"]["names"].add(instance.name)
    operation = plane.compute.operation_on(instance, "delete")
    plane.in_background(power.delete(plane.compute, instance, operation))


def group_name(plane: Plane, pool: dict) -> str:
    return f"gke-{plane.name[:20]}-{pool['name'][:20]}-{pool['_hash']}".rstrip("-")


def add(plane: Plane, pool: dict) -> dict | None:
    """Make one instance more; return the error if there is none."""
    zone = plane.location
    name = f"{group_name(plane, pool)}-{''.join(secrets.choice(LETTERS) for _ in range(4))}"
    try:
        body = body_of(plane, pool, zone, name)
        instance, disk = make_instance(plane.compute, plane.project, zone, body)
    except ApiError as error:
        return {"code": "GCE_INVALID", "message": error.message, "zone": zone}
    instance.attributes |= {
        "startup-script": KUBELET,
        "cluster-name": plane.name,
        "cluster-location": plane.location,
    }
    target = f"projects/{plane.project}/zones/{zone}/instances/{name}"
    user = "system@google.com"
    operation = plane.compute.operation(plane.project, "insert", target, f"zones/{zone}", user)
    power.insert(plane.compute, instance, disk, operation)
    errors = operation.get("error", {}).get("errors")
    if not errors:
        return None
    code = "GCE_QUOTA_EXCEEDED" if "QUOTA" in errors[0]["code"] else "GCE_STOCKOUT"
    return {"code": code, "message": errors[0]["message"], "zone": zone}


def body_of(plane: Plane, pool: dict, zone: str, name: str) -> dict:
    """The instance that a pool's node is."""
    config = pool["config"]
    gpus = [
        {
            "acceleratorType": f"zones/{zone}/acceleratorTypes/{row['acceleratorType']}",
            "acceleratorCount": int(row["acceleratorCount"]),
        }
        for row in config.get("accelerators", [])
    ]
    kind = catalog.machine_type(zone, config["machineType"])
    built_in = kind is not None and kind.accelerator
    disk = {
        "sourceImage": IMAGE,
        "diskSizeGb": config["diskSizeGb"],
        "diskType": f"zones/{zone}/diskTypes/{config['diskType']}",
    }
    labels = {
        CLUSTER: plane.name,
        POOL: pool["name"],
        PLACE: plane.location,
        "goog-gke-node": "",
        **config.get("resourceLabels", {}),
    }
    is_fixed = gpus or config.get("spot") or built_in
    scheduling: dict = {"onHostMaintenance": "TERMINATE"} if is_fixed else {}
    if config.get("spot"):
        scheduling |= {"provisioningModel": "SPOT", "automaticRestart": False}
    return {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{config['machineType']}",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
        "serviceAccounts": [{"email": config["serviceAccount"], "scopes": config["oauthScopes"]}],
        "labels": labels,
        "metadata": {
            "items": [{"key": key, "value": value} for key, value in config["metadata"].items()]
        },
        **({"guestAccelerators": gpus} if gpus and not built_in else {}),
        **({"scheduling": scheduling} if scheduling else {}),
    }


# --- nodes


def be_node(plane: Plane, pool: dict, instance: Instance) -> None:
    """Show a running instance as a node, with its GPUs once their drivers are there."""
    node = plane.store.get("nodes", "", instance.name)
    if node is None:
        node = template(pool, instance.zone)
        node["metadata"] |= {
            "name": instance.name,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": stamp(),
        }
        node["metadata"]["labels"]["kubernetes.io/hostname"] = instance.name
        node["spec"]["providerID"] = f"gce://{plane.project}/{instance.zone}/{instance.name}"
        rows = [("InternalIP", instance.address), ("Hostname", instance.name)]
        node["status"]["addresses"] = [{"type": kind, "address": value} for kind, value in rows]
        set_condition(
            node["status"], "Ready", "True", "KubeletReady", "kubelet is posting ready status"
        )
        plane.store.put("nodes", node, "ADDED")
        plane.event(
            node,
            "RegisteredNode",
            f"Node {instance.name} event: Registered Node",
            by="node-controller",
        )
    mark = plane.compute.machine_folder(instance) / "rootfs/run/pods"
    if any(uid in plane.kept for uid in uids_on(plane, instance.name)):
        if mark.parent.exists():
            mark.touch()
    else:
        mark.unlink(missing_ok=True)


def uids_on(plane: Plane, name: str) -> list[str]:
    return [
        pod["metadata"]["uid"]
        for pod in plane.store.all("pods")
        if pod["spec"].get("nodeName") == name
    ]


def gpus_of(pool: dict) -> int:
    return sum(int(row["acceleratorCount"]) for row in pool["config"].get("accelerators", []))


def template(pool: dict, zone: str) -> dict:
    """A node of a pool, as the autoscaler imagines one."""
    config = pool["config"]
    kind = catalog.machine_type(zone, config["machineType"])
    assert kind
    spot, gpus = bool(config.get("spot")), gpus_of(pool)
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": kind.name,
        "beta.kubernetes.io/instance-type": kind.name,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": catalog.ZONES[zone],
        "cloud.google.com/gke-nodepool": pool["name"],
        "cloud.google.com/machine-family": kind.family,
        "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/gke-container-runtime": "containerd",
        "cloud.google.com/gke-boot-disk": config["diskType"],
        "cloud.google.com/gke-provisioning": "spot" if spot else "standard",
        **({"cloud.google.com/gke-spot": "true"} if spot else {}),
        **({"cloud.google.com/gke-gpu": "true"} if gpus else {}),
        **(
            {"cloud.google.com/gke-accelerator": config["accelerators"][0]["acceleratorType"]}
            if gpus
            else {}
        ),
        **({"cloud.google.com/gke-accelerator-count": str(gpus)} if gpus else {}),
        **config.get("labels", {}),
    }
    capacity = {
        "cpu": str(kind.cpus),
        "memory": f"{kind.memory_mb * 1024 - 300_000}Ki",
        "ephemeral-storage": f"{int(disk_capacity(config['diskSizeGb']) * 2**20)}Ki",
        "pods": "110",
        **({GPU: str(gpus)} if gpus else {}),
    }
    disk_gb = config["diskSizeGb"]
    # GiB of the boot disk that GKE leaves to pods.
    disk = int(disk_capacity(disk_gb) * 0.9 - min(disk_gb * 0.5, 6 + disk_gb * 0.35, 100))
    allocatable = {
        **capacity,
        "cpu": f"{940 if kind.shared_core else allocatable_cpu(kind.cpus)}m",
        "memory": f"{allocatable_memory(kind.memory_mb)}Ki",
        "ephemeral-storage": f"{disk}Gi",
    }
    taints = [
        {
            "key": row["key"],
            "effect": EFFECTS[row["effect"]],
            **({"value": row["value"]} if row.get("value") else {}),
        }
        for row in config.get("taints", [])
    ]
    info = {
        **{
            "kubeletVersion": VERSION,
            "kubeProxyVersion": VERSION,
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
        **{
            "osImage": "Container-Optimized OS from Google",
            "containerRuntimeVersion": "containerd://2.0.6",
        },
        **{"kernelVersion": "6.6.93+", "machineID": "", "systemUUID": "", "bootID": ""},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"labels": labels, "annotations": {}},
        "spec": {"taints": taints} if taints else {},
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "nodeInfo": info,
            "conditions": [],
        },
    }


def allocatable_cpu(cpus: int) -> int:
    """Thousandths of processors that GKE leaves to pods."""
    reserved = 60 + (10 if cpus > 1 else 0) + 5 * max(0, min(cpus, 4) - 2) + 2.5 * max(0, cpus - 4)
    return int(cpus * 1000 - reserved)


def allocatable_memory(megabytes: int) -> int:
    """KiB of memory that GKE leaves to pods."""
    left, reserved = megabytes, 100.0
    for size, share in ((4096, 0.25), (4096, 0.2), (8192, 0.1), (114_688, 0.06), (1 << 30, 0.02)):
        reserved += min(left, size) * share
        left -= min(left, size)
    return int((megabytes - reserved) * 1024) - 300_000


def disk_capacity(gigabytes: int) -> float:
    """GiB of the boot disk that the kubelet counts: Container-Optimized OS and the file system take
    the rest.
    """
    return gigabytes * 0.984 - 4.2


# --- nodes that go


def leave(plane: Plane, pool: dict, instance: Instance) -> None:
    """End the pods of a node whose machine goes down: they have until the power is cut."""
    node = plane.store.get("nodes", "", instance.name)
    assert node
    folder = plane.compute.machine_folder(instance)
    pods = [
        pod
        for pod in plane.store.all("pods")
        if pod["spec"].get("nodeName") == instance.name and not is_over(pod)
    ]
    if instance.resource["status"] == "TERMINATED" or not processes.alive(
        folder, plane.compute.sandbox
    ):
        lose(plane, node)
        return
    if instance.resource["status"] != "STOPPING":
        return  # announced, and not yet going down: Google gives notice in the metadata alone
    seconds = shutdown_grace(pool)
    if set_condition(node["status"], "Ready", "False", "KubeletNotReady", "node is shutting down"):
        node["spec"].setdefault("taints", []).append(
            {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
        )
        plane.store.put("nodes", node)
        plane.event(node, "Shutdown", "Shutdown manager detected shutdown event", by="kubelet")
        for pod in pods:
            message = "Pod was terminated in response to imminent node shutdown."
            kubelet.fail(plane, pod, "Terminated", message, "TerminationByKubelet")
            grace = min(seconds, pod["spec"]["terminationGracePeriodSeconds"])
            plane.in_background(kubelet.end_pod(plane, pod, grace))
    if not any(uid in plane.kept for uid in uids_on(plane, instance.name)):
        (folder / "rootfs/run/pods").unlink(missing_ok=True)


def shutdown_grace(pool: dict) -> float:
    kubelet_config = pool["config"].get("kubeletConfig") or {}
    if "shutdownGracePeriodSeconds" not in kubelet_config:
        return GRACE
    return kubelet_config["shutdownGracePeriodSeconds"] - kubelet_config.get(
        "shutdownGracePeriodCriticalPodsSeconds", 15
    )


def lose(plane: Plane, node: dict) -> None:
    """A node whose machine is gone: so is all that ran on it, and the pods are garbage."""
    name = node["metadata"]["name"]
    for pod in plane.store.all("pods"):
        if pod["spec"].get("nodeName") != name:
            continue
        if not is_over(pod):
            message = "PodGC: node no longer exists"
            set_condition(pod["status"], "DisruptionTarget", "True", "DeletionByPodGC", message)
            pod["status"]["phase"] = "Failed"
            plane.store.put("pods", pod)
            plane.in_background(kubelet.end_pod(plane, pod, 0))
        if not is_leaving(pod):
            plane.delete("pods", pod, grace=0)
    message = f"Deleting node {name} because it does not exist in the cloud provider"
    plane.event(node, "DeletingNode", message, by="cloud-node-lifecycle-controller")
    plane.store.put("nodes", node, "DELETED")
