"""What keeps a cluster as it is described: one loop that looks at everything whenever something
changed.

Not covered: rolling updates in steps (all pods of an old template are replaced at once), endpoint
slices.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import logging
import secrets
from pathlib import Path

from localcloud.kubernetes import jobs, kubelet, nodes, scaling, scheduler, volumes
from localcloud.kubernetes.kinds import (
    Refusal,
    condition,
    is_leaving,
    is_over,
    owned_by,
    set_condition,
)
from localcloud.kubernetes.plane import LETTERS, Plane
from localcloud.kubernetes.store import Selector
from localcloud.machines import processes

log = logging.getLogger("localcloud")

IDLE = 0.25  # seconds between two looks when nothing changes


async def run(plane: Plane) -> None:
    """Look after a cluster until its server ends."""
    plane.end_pod = kubelet.end_pod
    while not plane.closing:
        seen, changed = plane.store.version, plane.store.changed
        # A node that just came takes its pods before the autoscaler looks for those that have none.
        pods = (
            look_at_workloads,
            jobs.look,
            kubelet.take_up,
            Plane.collect,
            refresh_volumes,
            tell_names,
        )
        for look in (nodes.look, scheduler.schedule, scaling.look, *pods):
            try:
                look(plane)
            except Refusal as refusal:
                log.info("cluster %s: %s", plane.name, refusal)
            except Exception:
                log.exception("cluster %s: a controller failed inside", plane.name)
        if plane.store.version == seen:
            try:
                await asyncio.wait_for(changed.wait(), IDLE)
            except asyncio.TimeoutError:
                pass
        else:
            await asyncio.sleep(0)


def look_at_workloads(plane: Plane) -> None:
    for deployment in plane.store.all("deployments"):
        if not is_leaving(deployment):
            look_at_deployment(plane, deployment)
    for replicas in plane.store.all("replicasets"):
        if not is_leaving(replicas):
            look_at_replicas(plane, replicas)
    for service in plane.store.all("services"):
        look_at_service(plane, service)


def reference(owner: dict) -> list[dict]:
    meta = owner["metadata"]
    row = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
    }
    return [{**row, "controller": True, "blockOwnerDeletion": True}]


def look_at_deployment(plane: Plane, deployment: dict) -> None:
    """One set of replicas for each template that there was; only that of the present one has pods."""
    meta, spec = deployment["metadata"], deployment["spec"]
    text = json.dumps(spec["template"], sort_keys=True).encode()
    mark = hashlib.sha256(text).hexdigest()[:10]
    mine = [each for each in plane.store.all("replicasets") if owned_by(each, deployment)]
    current = next(
        (each for each in mine if each["metadata"]["labels"]["pod-template-hash"] == mark), None
    )
    others = [each for each in mine if each is not current]
    left = [
        pod
        for pod in plane.store.all("pods")
        if any(owned_by(pod, each) for each in others) and not is_over(pod)
    ]
    held = spec.get("strategy", {}).get("type") == "Recreate" and bool(left)
    if current is None and held:
        for each in others:
            if each["spec"]["replicas"]:
                each["spec"]["replicas"] = 0
                plane.store.put("replicasets", each)
        return
    if current is None:
        template = copy.deepcopy(spec["template"])
        labels = {**(template["metadata"].get("labels") or {}), "pod-template-hash": mark}
        template["metadata"]["labels"] = labels
        selector = {
            **spec["selector"],
            "matchLabels": {**spec["selector"].get("matchLabels", {}), "pod-template-hash": mark},
        }
        number = str(1 + len(mine))
        body = {
            "metadata": {
                **{
                    "name": f"{meta['name']}-{mark}",
                    "labels": labels,
                    "ownerReferences": reference(deployment),
                },
                "annotations": {"deployment.kubernetes.io/revision": number},
            },
            "spec": {"replicas": spec["replicas"], "selector": selector, "template": template},
        }
        meta["annotations"] = {
            **(meta.get("annotations") or {}),
            "deployment.kubernetes.io/revision": number,
        }
        current = plane.create("replicasets", meta["namespace"], body)
        message = (
            f"Scaled up replica set {current['metadata']['name']} from 0 to {spec['replicas']}"
        )
        plane.event(deployment, "ScalingReplicaSet", message, by="deployment-controller")
    for each in mine:
        wanted = spec["replicas"] if each is current else 0
        if each["spec"]["replicas"] != wanted:
            each["spec"]["replicas"] = wanted
            plane.store.put("replicasets", each)
    ready = current["status"].get("readyReplicas", 0)
    total = sum(each["status"].get("replicas", 0) for each in mine) or current["status"].get(
        "replicas", 0
    )
    status = {
        "observedGeneration": meta.get("generation", 1),
        "replicas": total,
        "conditions": deployment["status"].get("conditions", []),
    }
    status |= {
        "updatedReplicas": current["status"].get("replicas", 0),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    if spec["replicas"] > ready:
        status["unavailableReplicas"] = spec["replicas"] - ready
    enough = ready >= spec["replicas"]
    set_condition(
        status,
        "Available",
        str(enough),
        "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
    )
    set_condition(
        status, "Progressing", "True", "NewReplicaSetAvailable" if enough else "ReplicaSetUpdated"
    )
    deployment["status"] = status
    plane.store.put("deployments", deployment)


def look_at_replicas(plane: Plane, replicas: dict) -> None:
    meta, spec = replicas["metadata"], replicas["spec"]
    pods = [
        pod for pod in plane.store.all("pods") if owned_by(pod, replicas) and not is_leaving(pod)
    ]
    for pod in [pod for pod in pods if is_over(pod)]:
        plane.delete("pods", pod)
        pods.remove(pod)
    for _ in range(spec["replicas"] - len(pods)):
        body = copy.deepcopy(spec["template"])
        ends = "".join(secrets.choice(LETTERS) for _ in range(5))
        body["metadata"] |= {
            "name": f"{meta['name']}-{ends}",
            "ownerReferences": reference(replicas),
        }
        pods.append(plane.create("pods", meta["namespace"], body))
        plane.event(
            replicas,
            "SuccessfulCreate",
            f"Created pod: {pods[-1]['metadata']['name']}",
            by="replicaset-controller",
        )
    for pod in pods[spec["replicas"] :]:
        plane.delete("pods", pod)
    ready = sum(bool(condition(pod, "Ready")) for pod in pods)
    replicas["status"] = {
        "replicas": min(len(pods), spec["replicas"]),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    plane.store.put("replicasets", replicas)


# --- services


def pods_of_service(plane: Plane, service: dict) -> list[dict]:
    chosen = service["spec"].get("selector") or {}
    namespace = service["metadata"]["namespace"]
    terms = Selector(namespace, ",".join(f"{key}={value}" for key, value in chosen.items()))
    early = service["spec"].get("publishNotReadyAddresses")
    return [
        pod
        for pod in plane.store.all("pods")
        if chosen
        and terms.fits(pod)
        and pod["status"].get("podIP")
        and not is_over(pod)
        and (early or condition(pod, "Ready"))
    ]


def look_at_service(plane: Plane, service: dict) -> None:
    """The endpoints of a service: the addresses of its pods."""
    meta = service["metadata"]
    if not service["spec"].get("selector"):
        return
    rows = [
        {
            **{"ip": pod["status"]["podIP"], "nodeName": pod["spec"]["nodeName"]},
            "targetRef": {
                "kind": "Pod",
                **{key: pod["metadata"][key] for key in ("name", "namespace", "uid")},
            },
        }
        for pod in pods_of_service(plane, service)
    ]
    ports = [
        {
            **({"name": port["name"]} if "name" in port else {}),
            "port": port["targetPort"],
            "protocol": port["protocol"],
        }
        for port in service["spec"].get("ports") or []
        if isinstance(port["targetPort"], int)
    ]
    subsets = [{"addresses": rows, **({"ports": ports} if ports else {})}] if rows else []
    old = plane.store.get("endpoints", meta["namespace"], meta["name"])
    if old is None:
        body = {
            "metadata": {"name": meta["name"], "ownerReferences": reference(service)},
            "subsets": subsets,
        }
        plane.create("endpoints", meta["namespace"], body)
    else:
        old["subsets"] = subsets
        plane.store.put("endpoints", old)


def refresh_volumes(plane: Plane) -> None:
    for pod in plane.store.all("pods"):
        if pod["metadata"]["uid"] in plane.kept and pod["spec"].get("volumes"):
            volumes.refresh(plane, pod, kubelet.folder_of(plane, pod))


def tell_names(plane: Plane) -> None:
    """Services' names in every pod's /etc/hosts, as DNS has them: a headless one's pods, else its
    first pod.
    """
    lines = []
    for service in plane.store.all("services"):
        meta, mine = service["metadata"], pods_of_service(plane, service)
        name, namespace = meta["name"], meta["namespace"]
        whole = f"{name}.{namespace}.svc.cluster.local"
        for pod in mine:
            if pod["spec"].get("subdomain") == name and pod["spec"].get("hostname"):
                host, address = pod["spec"]["hostname"], pod["status"]["podIP"]
                lines.append(
                    f"{address} {host}.{whole} {host}.{name}.{namespace}.svc {host}.{name}"
                )
        lines += [
            f"{pod['status']['podIP']} {whole} {name}.{namespace}.svc {name}.{namespace} {name}"
            for pod in mine[:1]
        ]
    text = "".join(f"{line}\n" for line in lines)
    for running in plane.running.values():
        file = Path(f"/proc/{processes.first_process(running.folder)}/root/etc/hosts")
        with contextlib.suppress(OSError):  # its process ends, or has not begun
            own, _, old = file.read_text().partition("# services\n")
            if old != text:
                file.write_text(f"{own}# services\n{text}")  # in place: it may be mounted
