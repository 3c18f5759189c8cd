"""What Kubernetes says of a job's pods, in berg's words: the machine that a pod is, why it waits,
and how it ended.

It reads what others have asked for. Not covered: what a container writes; that is the log.

The queues of a cluster: what Kueue says of Jobs that wait for their turn.

A Job with a queue's name is suspended until Kueue has quota for all its pods; a Workload of Kueue's
says why. One that is evicted is suspended again, and its pods are ended. Berg only reads: it
installs and changes nothing of Kueue's.

Not covered: priorities, which the label of a pod patch cannot set, and queues of other schedulers.
"""

import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from berg import BergError
from berg.config import Config
from berg.gke import client as k8s
from berg.gke.client import called
from berg.gke.container import LABEL
from berg.google import api, shapes
from berg.job import Machine
from berg.plain import plural

# the autoscaler's words, in their order
SCALING = (
    "TriggeredScaleUp",
    "NotTriggerScaleUp",
    "FailedScaleUp",
)

NEVER_BEGAN = [126, 127, 128]  # exit codes of a container whose python3 could not be run

FEW = 3  # pods that end alike before they begin, after which there is no hope

NO_POD = "Kubernetes makes no pod"

INDEX = "batch.kubernetes.io/job-completion-index"


def is_of(thing: dict[str, Any], jobs: Collection[str], sweeps: Collection[str]) -> bool:
    labels = thing["metadata"].get("labels", {})
    return labels.get("berg-job") in jobs or labels.get("berg-sweep") in sweeps


def machine_of(pod: dict[str, Any], place: str, events: list[dict[str, Any]]) -> Machine:
    about, spec, status = pod["metadata"], pod["spec"], pod["status"]
    main = spec["containers"][0]
    facts: dict[str, Any] = next(
        (json.loads(each["value"]) for each in main.get("env", []) if each["name"] == "BERG_FACTS"),
        {},
    )
    names, index = facts.get("names", [about["name"]]), int(about["labels"].get(INDEX, 0))
    limits, chosen = main.get("resources", {}).get("limits", {}), spec.get("nodeSelector", {})
    count = limits.get("nvidia.com/gpu") or limits.get(shapes.CHIP)
    kind = chosen.get(f"{LABEL}gke-accelerator", "").rpartition("-")[2]
    kind = kind or shapes.TPU_KINDS.get(chosen.get(shapes.ACCELERATOR, ""), "")
    word = "STAGING" if spec.get("nodeName") else "PROVISIONING"
    return Machine(
        name=names[index],
        zone=place,
        status="STOPPING"
        if about.get("deletionTimestamp")
        else "RUNNING"
        if status["phase"] == "Running"
        else word,
        id=about["uid"],
        labels=about["labels"],
        created_at=about["creationTimestamp"],
        internal_ip=status.get("podIP", ""),
        gpus=f"{count} x {kind}" if count else "",
        place="gke",
        pod=about["name"] and called(pod),
        note="" if status["phase"] == "Running" else why_pending(pod, events),
    )


def may_be_silent(pod: dict[str, Any]) -> bool:
    """Return whether a pod's node may have ceased to answer: the pod is not ready, or it stays."""
    ready = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    is_told = bool(pod["metadata"].get("deletionTimestamp"))
    return is_told or (pod["status"].get("phase") == "Running" and ready.get("Ready") == "False")


def readiness(nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the condition Ready of nodes that are not ready, by their names."""
    return {
        node["metadata"]["name"]: each
        for node in nodes
        for each in node.get("status", {}).get("conditions", [])
        if each["type"] == "Ready" and each["status"] != "True"
    }


def silence(node: str, ready: dict[str, Any]) -> str:
    """Return that a node does not answer, in words; "" for one that merely goes down."""
    if ready.get("status") != "Unknown":
        return ""
    return f"its node {node} does not answer since {ready.get('lastTransitionTime', '')}"


def why_pending(pod: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """Return why a pod waits, in words."""
    if trouble := container_trouble(pod):
        return trouble
    if node := pod["spec"].get("nodeName"):
        return f"its node {node} pulls the image"
    mine = [each for each in events if subject(each).get("uid") == pod["metadata"]["uid"]]
    last = newest(mine, *SCALING)
    if "in backoff after failed scale-up" in last.get("message", ""):
        # What failed, one of the job's other pods was told.
        job = job_of(pod["metadata"]["name"])
        others = [each for each in events if job_of(subject(each).get("name", "")) == job]
        last = newest(others, "FailedScaleUp") or last
    if last:
        return scaling_in_words(last)
    if unscheduled := newest(mine, "FailedScheduling"):
        return f"no room: {one_line(unscheduled)}"
    return "it is to be given a node"


def container_trouble(pod: dict[str, Any]) -> str:
    """Return what keeps one of a pod's containers from starting; "" if nothing is known to."""
    for each in pod["status"].get("containerStatuses", []):
        waiting = each.get("state", {}).get("waiting", {})
        if waiting.get("reason") in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
            # Between two tries the kubelet puts words before the same reason.
            said = re.sub(r'^Back-off pulling image "[^"]*": ', "", one_line(waiting))
            return f"its image {each.get('image', '')} cannot be pulled: {said}"
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {one_line(waiting)}"
    return ""


def scaling_in_words(event: dict[str, Any]) -> str:
    """Return what the autoscaler said of a pod, in words."""
    said = one_line(event)
    if event["reason"] == "TriggeredScaleUp":
        return f"a node is being made for it: {said}"
    if event["reason"] != "FailedScaleUp":
        return f"no room, and no pool can grow for it: {said}"
    if "quota" in said.lower():
        return (
            f"no quota for another node: {said}. Raise it: "
            "https://console.cloud.google.com/iam-admin/quotas"
        )
    return (
        f"no stock: Google has no room for another node now, and the cluster goes on trying: {said}"
    )


def subject(event: dict[str, Any]) -> dict[str, Any]:
    """Return what an event is about."""
    return dict(event.get("involvedObject", {}))


def one_line(said: dict[str, Any]) -> str:
    """Return a message of Kubernetes' without its line breaks."""
    return " ".join(said.get("message", "").split())


def newest(events: list[dict[str, Any]], *reasons: str) -> dict[str, Any]:
    """The newest of the events with these reasons, of one second the one whose reason comes last;
    {} for none.
    """
    mine = [each for each in events if each["reason"] in reasons]

    def order(event: dict[str, Any]) -> tuple[str, int]:
        moment = event.get("lastTimestamp") or event.get("eventTime") or ""
        return moment, reasons.index(event["reason"])

    return max(mine, key=order, default={})


def job_of(pod: str) -> str:
    """Which job a pod is of, by its name JOB-INDEX-RANDOM."""
    return pod.rpartition("-")[0].rpartition("-")[0]


def ending(job: dict[str, Any]) -> dict[str, Any] | None:
    """The condition by which a Job of Kubernetes' ended, or is about to; None while it goes on."""
    kinds = ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")
    conditions = [
        each for each in job.get("status", {}).get("conditions", []) if each["status"] == "True"
    ]
    gone = {"type": "Failed", "reason": "Deleted", "message": "it is being deleted"}
    deleted = gone if job["metadata"].get("deletionTimestamp") else None
    return next((each for kind in kinds for each in conditions if each["type"] == kind), deleted)


def hindrance(job: dict[str, Any], pods: list[dict[str, Any]], events: list[dict[str, Any]]) -> str:
    """Return why a Job has fewer pods than it should, of all its pods and the cluster's events; ""
    if nothing is known to hinder it.
    """
    mine = [each for each in events if subject(each).get("uid") == job["metadata"]["uid"]]
    last = newest(mine, "SuccessfulCreate", "FailedCreate")
    if last.get("reason") == "FailedCreate":
        # The pod that was not made has another name each time.
        said = re.sub(r'^Error creating: (pods "\S+" is )?', "", one_line(last))
        return f"{NO_POD}: {said}"
    dead = failures(pods)
    if not dead:
        return ""
    count = max(len(dead), job["status"].get("failed", 0))
    return f"{plural(count, 'pod')} ended before; the last: {how_ended(dead[-1])}"


def failures(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pods that failed of themselves, which nobody took away, the oldest first."""
    failed = [
        pod
        for pod in pods
        if pod["status"].get("phase") == "Failed" and not is_true(pod, "DisruptionTarget")
    ]
    return sorted(failed, key=lambda pod: pod["metadata"]["creationTimestamp"])


def never_began(pods: list[dict[str, Any]]) -> bool:
    """Return whether the last of a Job's pods that failed had a container that could not run."""
    return any(terminated(pod).get("exitCode") in NEVER_BEGAN for pod in failures(pods)[-1:])


def is_true(pod: dict[str, Any], kind: str) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def is_crash_looping(pods: list[dict[str, Any]]) -> bool:
    """Return whether a Job's last few pods all ended in the same way, and not as boot.py ends."""
    last = [terminated(pod) for pod in failures(pods)[-FEW:]]
    ways = {(end.get("reason"), end.get("exitCode")) for end in last}
    return len(last) == FEW and len(ways) == 1 and last[0].get("exitCode", 1) > 1


def terminated(pod: dict[str, Any]) -> dict[str, Any]:
    """Return how the first of a pod's containers that ended did so; {} for none."""
    states = [each.get("state", {}) for each in pod["status"].get("containerStatuses", [])]
    return next((each["terminated"] for each in states if "terminated" in each), {})


def to_come(job: dict[str, Any], place: str, pods: list[dict[str, Any]], why: str) -> Machine:
    """Return the machine that stands for a Job's pods while none of them lives."""
    about, template = job["metadata"], job["spec"]["template"]
    made = {"name": "", "uid": about["uid"], "creationTimestamp": about["creationTimestamp"]}
    pod = {
        "metadata": {**template["metadata"], **made},
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
    is_queued = bool(job["spec"].get("suspend"))
    machine = machine_of(pod, place, [])
    return replace(machine, note=why, is_crash_looping=is_crash_looping(pods), is_queued=is_queued)


def how_ended(pod: dict[str, Any]) -> str:
    """Why a pod ended without a word in its job's state."""
    if reason := pod["status"].get("reason"):
        message = pod["status"].get("message", "")
        return f"the pod {pod['metadata']['name']} ended: {reason}: {message}".rstrip(": ")
    if ended := terminated(pod):
        said = f": {one_line(ended)}" if ended.get("message") else ""
        return (
            f"the pod {pod['metadata']['name']} ended: {ended.get('reason')}, exit code "
            f"{ended.get('exitCode')}{said}"
        )
    return ""


GROUP = "kueue.x-k8s.io"

QUEUE_LABEL = f"{GROUP}/queue-name"

TIMEOUT = 10  # seconds for a cluster to answer

Thing = dict[str, Any]


def home(config: Config, server: k8s.Server) -> str:
    """Return the path of Kueue's API in the version that a cluster prefers; "" without Kueue."""
    there = k8s.find(config, server, f"/apis/{GROUP}", timeout=TIMEOUT)
    return f"/apis/{GROUP}/{there['preferredVersion']['version']}" if there else ""


def check(config: Config, server: k8s.Server, namespace: str, name: str) -> None:
    """Raise BergError unless a namespace has a queue of that name: Kueue would let a Job for one
    that is missing wait for ever, and say nothing.
    """
    cluster, kueue = server.place.rpartition("/")[2], home(config, server)
    if not kueue:
        raise BergError(
            f"--queue {name}: the cluster {cluster} has no Kueue, and so no queues. Leave out "
            "--queue; or who administers the cluster installs it: https://kueue.sigs.k8s.io"
        )
    there = k8s.items(config, server, f"{kueue}/namespaces/{namespace}/localqueues")
    found = {each["metadata"]["name"]: each for each in there}
    if name not in found:
        names = ", ".join(sorted(found)) or "none"
        raise BergError(
            f"the cluster {cluster} has no queue {name!r} in your namespace {namespace}; there: "
            f"{names}. Who administers the cluster makes a LocalQueue there"
        )
    active = conditions(found[name]).get("Active", {})
    if active.get("status") == "False":
        api.notify(f"The queue {name} admits nothing now: {active.get('message')}")


def conditions(thing: Thing) -> dict[str, Thing]:
    """Return what an object says of itself, by the types of its conditions."""
    return {each["type"]: each for each in thing.get("status", {}).get("conditions", [])}


def reasons(config: Config, server: k8s.Server, jobs: list[Thing]) -> dict[str, str]:
    """Return why those Jobs that are suspended wait, in words, by their uids."""
    suspended = [each for each in jobs if each["spec"].get("suspend")]
    queued = [each for each in suspended if QUEUE_LABEL in each["metadata"].get("labels", {})]
    found = {each["metadata"]["uid"]: "somebody suspended its Job" for each in suspended}
    if not queued:
        return found
    try:
        workloads, unseen = workloads_by_job(config, server), ""
    except BergError as error:
        workloads, unseen = {}, f"why cannot be seen: {error.message}"
    for job in queued:
        uid, queue = job["metadata"]["uid"], job["metadata"]["labels"][QUEUE_LABEL]
        why = unseen or in_words(workloads.get(uid, {}))
        found[uid] = f"it waits in the queue {queue}: {why}"
    return found


def workloads_by_job(config: Config, server: k8s.Server) -> dict[str, Thing]:
    """Return a cluster's Workloads by the uids of their Jobs."""
    where = "/workloads" if server.has_identity else f"/namespaces/{k8s.SHARED}/workloads"
    there = k8s.items(config, server, home(config, server) + where, timeout=TIMEOUT)
    return {
        owner["uid"]: each
        for each in there
        for owner in each["metadata"].get("ownerReferences", [])
    }


def in_words(workload: Thing) -> str:
    """Return what keeps a Workload from running: its eviction, its quota, its admission checks."""
    said, parts = conditions(workload), []
    evicted, reserved = said.get("Evicted", {}), said.get("QuotaReserved", {})
    if evicted.get("status") == "True":
        parts.append(f"evicted: {evicted.get('message')} ({evicted.get('reason')})")
    if reserved.get("status") == "False":
        parts.append(str(reserved.get("message")))
    if reserved.get("status") == "True":
        parts.append(str(reserved.get("message")))
        checks = workload["status"].get("admissionChecks", [])
        waiting = [each for each in checks if each.get("state") != "Ready"]
        parts += [f"{each['name']} is {each['state']} {each['message']}" for each in waiting]
    texts = [" ".join(each.split()) for each in parts]
    return "; ".join(dict.fromkeys(texts)) or "Kueue has not looked at it yet"
