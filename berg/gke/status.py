"""The state of a job's pods: the machine that a pod is, why it waits, and how it ended.

Of a Job in a queue a Workload of Kueue's says why it is suspended; Berg changes nothing of Kueue's.
Not covered: what a container writes (the log), priorities, other schedulers.
"""

import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from berg import BergError
from berg.gke import client
from berg.gke.client import LABEL, Server, called
from berg.google import api, shapes
from berg.job import Machine
from berg.plain import plural

SCALING = ("TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp")  # the autoscaler's events
NEVER_BEGAN = [126, 127, 128]  # exit codes of a container whose python3 could not be run
FEW = 3  # pods that end alike before they start, after which there is no hope
NO_POD = "Kubernetes makes no pod"
INDEX = "batch.kubernetes.io/job-completion-index"
KUEUE = "kueue.x-k8s.io"
QUEUE_LABEL = f"{KUEUE}/queue-name"

Thing = dict[str, Any]


def is_of(thing: Thing, jobs: Collection[str], sweeps: Collection[str]) -> bool:
    labels = thing["metadata"].get("labels", {})
    return labels.get("berg-job") in jobs or labels.get("berg-sweep") in sweeps


def is_alive(pod: Thing) -> bool:
    """Return whether a pod runs or has yet to start."""
    return pod["status"].get("phase") in ("Pending", "Running")


def pods_of(job: Thing, pods: list[Thing]) -> list[Thing]:
    """Return those pods that belong to a Job."""

    def owners(pod: Thing) -> list[str]:
        return [each["uid"] for each in pod["metadata"].get("ownerReferences", [])]

    return [pod for pod in pods if job["metadata"]["uid"] in owners(pod)]


def is_short(job: Thing, alive: list[Thing]) -> bool:
    """Return whether an unfinished Job has fewer living pods than it should."""
    spec, done = job["spec"], job["status"].get("succeeded", 0)
    wanted = min(spec.get("parallelism", 1), spec.get("completions", 1) - done)
    return not ending(job) and len(pods_of(job, alive)) < wanted


def machine_of(pod: Thing, place: str, events: list[Thing]) -> Machine:
    """Return a pod of the cluster LOCATION/NAME as a machine."""
    about, spec, status = pod["metadata"], pod["spec"], pod["status"]
    main = spec["containers"][0]
    facts: Thing = next(
        (json.loads(each["value"]) for each in main.get("env", []) if each["name"] == "BERG_FACTS"),
        {},
    )
    names, index = facts.get("names", [about["name"]]), int(about["labels"].get(INDEX, 0))
    limits, selector = main.get("resources", {}).get("limits", {}), spec.get("nodeSelector", {})
    count = limits.get("nvidia.com/gpu") or limits.get(shapes.CHIP)
    kind = selector.get(f"{LABEL}gke-accelerator", "").rpartition("-")[2]
    kind = kind or shapes.TPU_KINDS.get(selector.get(shapes.ACCELERATOR, ""), "")
    is_running = status["phase"] == "Running"
    state = "STAGING" if spec.get("nodeName") else "PROVISIONING"
    if is_running:
        state = "RUNNING"
    if about.get("deletionTimestamp"):
        state = "STOPPING"
    return Machine(
        name=names[index],
        zone=place,
        status=state,
        id=about["uid"],
        labels=about["labels"],
        created_at=about["creationTimestamp"],
        internal_ip=status.get("podIP", ""),
        gpus=f"{count} x {kind}" if count else "",
        place="gke",
        pod=about["name"] and called(pod),
        note="" if is_running else why_pending(pod, events),
    )


def may_be_silent(pod: Thing) -> bool:
    """Return whether a pod's node may have stopped to answer: the pod is not ready, or it stays."""
    is_deleted = bool(pod["metadata"].get("deletionTimestamp"))
    is_running = pod["status"].get("phase") == "Running"
    ready = conditions(pod).get("Ready", {})
    return is_deleted or (is_running and ready.get("status") == "False")


# --- why a pod waits


def why_pending(pod: Thing, events: list[Thing]) -> str:
    """Return why a pod waits, in words."""
    if trouble := container_trouble(pod):
        return trouble
    if node := pod["spec"].get("nodeName"):
        return f"its node {node} pulls the image"
    mine = events_of(pod, events)
    last = newest(mine, *SCALING)
    if "in backoff after failed scale-up" in last.get("message", ""):
        # what failed is an event of another pod of the job
        job = job_of(pod["metadata"]["name"])
        others = [each for each in events if job_of(subject(each).get("name", "")) == job]
        last = newest(others, "FailedScaleUp") or last
    if last:
        return scaling_in_words(last)
    if unscheduled := newest(mine, "FailedScheduling"):
        return f"no room: {one_line(unscheduled)}"
    return "it waits for a node"


def container_trouble(pod: Thing) -> str:
    """Return what keeps one of a pod's containers from starting; "" if nothing is known."""
    for each in pod["status"].get("containerStatuses", []):
        waiting = each.get("state", {}).get("waiting", {})
        if waiting.get("reason") in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
            # between two tries the kubelet writes this in front of the same reason
            why = re.sub(r'^Back-off pulling image "[^"]*": ', "", one_line(waiting))
            return f"its image {each.get('image', '')} cannot be pulled: {why}"
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {one_line(waiting)}"
    return ""


def scaling_in_words(event: Thing) -> str:
    """Return an event of the autoscaler in words."""
    message = one_line(event)
    if event["reason"] == "TriggeredScaleUp":
        return f"a node is being made for it: {message}"
    if event["reason"] != "FailedScaleUp":
        return f"no room, and no pool can grow for it: {message}"
    if "quota" in message.lower():
        return (
            f"no quota for another node: {message}. Raise it: "
            "https://console.cloud.google.com/iam-admin/quotas"
        )
    return (
        f"no stock: Google has no room for another node now, and the cluster keeps trying: "
        f"{message}"
    )


def subject(event: Thing) -> Thing:
    """Return a reference to the object of an event."""
    return dict(event.get("involvedObject", {}))


def events_of(thing: Thing, events: list[Thing]) -> list[Thing]:
    """Return the events of an object."""
    return [each for each in events if subject(each).get("uid") == thing["metadata"]["uid"]]


def one_line(thing: Thing) -> str:
    """Return a message of Kubernetes without its line breaks."""
    return " ".join(thing.get("message", "").split())


def newest(events: list[Thing], *reasons: str) -> Thing:
    """Return the newest of the events with these reasons, {} for none.

    Of one second it is the one whose reason is named last.
    """
    mine = [each for each in events if each["reason"] in reasons]

    def order(event: Thing) -> tuple[str, int]:
        moment = event.get("lastTimestamp") or event.get("eventTime") or ""
        return moment, reasons.index(event["reason"])

    return max(mine, key=order, default={})


def job_of(pod: str) -> str:
    """Return the job of a pod from its name JOB-INDEX-RANDOM."""
    return pod.rpartition("-")[0].rpartition("-")[0]


# --- how Jobs and pods end


def conditions(thing: Thing) -> dict[str, Thing]:
    """Return the conditions of an object by their types."""
    return {each["type"]: each for each in thing.get("status", {}).get("conditions", [])}


def ending(job: Thing) -> Thing | None:
    """Return the condition by which a Job ended, or is about to; None if it is unfinished."""
    found = conditions(job)
    for kind in ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet"):
        if found.get(kind, {}).get("status") == "True":
            return found[kind]
    if job["metadata"].get("deletionTimestamp"):
        return {"type": "Failed", "reason": "Deleted", "message": "it is being deleted"}
    return None


def hindrance(job: Thing, pods: list[Thing], events: list[Thing]) -> str:
    """Return why a Job has fewer pods than it should; "" if nothing is known.

    `pods` are all that it had, `events` the cluster's.
    """
    last = newest(events_of(job, events), "SuccessfulCreate", "FailedCreate")
    if last.get("reason") == "FailedCreate":
        # each time the pod has another name
        why = re.sub(r'^Error creating: (pods "\S+" is )?', "", one_line(last))
        return f"{NO_POD}: {why}"
    dead = failures(pods)
    if not dead:
        return ""
    count = max(len(dead), job["status"].get("failed", 0))
    return f"{plural(count, 'pod')} ended before; the last: {how_ended(dead[-1])}"


def failures(pods: list[Thing]) -> list[Thing]:
    """Return the pods that failed and were not taken away, the oldest first."""
    failed = [
        pod
        for pod in pods
        if pod["status"].get("phase") == "Failed"
        and conditions(pod).get("DisruptionTarget", {}).get("status") != "True"
    ]
    return sorted(failed, key=lambda pod: pod["metadata"]["creationTimestamp"])


def never_began(pods: list[Thing]) -> bool:
    """Return whether the last of a Job's pods that failed had a container that could not run."""
    return any(terminated(pod).get("exitCode") in NEVER_BEGAN for pod in failures(pods)[-1:])


def terminated(pod: Thing) -> Thing:
    """Return how the first of a pod's containers that ended did so; {} for none."""
    states = [each.get("state", {}) for each in pod["status"].get("containerStatuses", [])]
    return next((each["terminated"] for each in states if "terminated" in each), {})


def to_come(job: Thing, place: str, pods: list[Thing], why: str) -> Machine:
    """Return a machine in place of a Job's pods, none of which is alive.

    It `is_crash_looping` if the last few pods ended in the same way, and not as boot.py ends.
    """
    last = [terminated(pod) for pod in failures(pods)[-FEW:]]
    ways = {(end.get("reason"), end.get("exitCode")) for end in last}
    is_crash_looping = len(last) == FEW and len(ways) == 1 and last[0].get("exitCode", 1) > 1
    metadata, template = job["metadata"], job["spec"]["template"]
    own = {
        "name": "",
        "uid": metadata["uid"],
        "creationTimestamp": metadata["creationTimestamp"],
    }
    pod = {
        "metadata": {**template["metadata"], **own},
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
    is_queued = bool(job["spec"].get("suspend"))
    machine = machine_of(pod, place, [])
    return replace(machine, note=why, is_crash_looping=is_crash_looping, is_queued=is_queued)


def how_ended(pod: Thing) -> str:
    """Return why a pod ended, as far as Kubernetes knows; "" if it knows nothing."""
    name, ended = pod["metadata"]["name"], terminated(pod)
    if reason := pod["status"].get("reason"):
        message = pod["status"].get("message", "")
        return f"the pod {name} ended: {reason}: {message}".rstrip(": ")
    if ended:
        more = f": {one_line(ended)}" if ended.get("message") else ""
        return (
            f"the pod {name} ended: {ended.get('reason')}, exit code {ended.get('exitCode')}{more}"
        )
    return ""


# --- queues


def kueue_path(server: Server) -> str:
    """Return the path of Kueue's API in the version that a cluster prefers; "" without Kueue."""
    there = client.find(server, f"/apis/{KUEUE}", timeout=client.LISTING)
    return f"/apis/{KUEUE}/{there['preferredVersion']['version']}" if there else ""


def check_queue(server: Server, namespace: str, name: str) -> None:
    """Raise BergError unless a namespace has a queue of that name.

    Kueue would let a Job for a missing one wait without an end or a message.
    """
    cluster, kueue = server.place.rpartition("/")[2], kueue_path(server)
    if not kueue:
        raise BergError(
            f"--queue {name}: the cluster {cluster} has no Kueue, and so no queues. Leave out "
            "--queue, or ask the cluster's administrator to install it: https://kueue.sigs.k8s.io"
        )
    there = client.items(server, f"{kueue}/namespaces/{namespace}/localqueues")
    found = {each["metadata"]["name"]: each for each in there}
    if name not in found:
        names = ", ".join(sorted(found)) or "none"
        raise BergError(
            f"the cluster {cluster} has no queue {name!r} in your namespace {namespace}; there: "
            f"{names}. The cluster's administrator can make a LocalQueue there"
        )
    active = conditions(found[name]).get("Active", {})
    if active.get("status") == "False":
        api.notify(f"The queue {name} admits nothing now: {active.get('message')}")


def why_suspended(server: Server, jobs: list[Thing]) -> dict[str, str]:
    """Return why those Jobs that are suspended wait, in words, by their uids."""
    suspended = [each for each in jobs if each["spec"].get("suspend")]
    queued = [each for each in suspended if QUEUE_LABEL in each["metadata"].get("labels", {})]
    found = {each["metadata"]["uid"]: "another user suspended its Job" for each in suspended}
    if not queued:
        return found
    try:
        workloads, unseen = workloads_by_job(server), ""
    except BergError as error:
        workloads, unseen = {}, f"why cannot be seen: {error.message}"
    for job in queued:
        uid, queue = job["metadata"]["uid"], job["metadata"]["labels"][QUEUE_LABEL]
        why = unseen or workload_in_words(workloads.get(uid, {}))
        found[uid] = f"it waits in the queue {queue}: {why}"
    return found


def workloads_by_job(server: Server) -> dict[str, Thing]:
    """Return a cluster's Workloads by the uids of their Jobs."""
    where = "/workloads" if server.has_identity else f"/namespaces/{client.SHARED}/workloads"
    there = client.items(server, kueue_path(server) + where, timeout=client.LISTING)
    return {
        owner["uid"]: each
        for each in there
        for owner in each["metadata"].get("ownerReferences", [])
    }


def workload_in_words(workload: Thing) -> str:
    """Return what keeps a Workload from running: its eviction, its quota, its admission checks."""
    found, parts = conditions(workload), []
    evicted, reserved = found.get("Evicted", {}), found.get("QuotaReserved", {})
    if evicted.get("status") == "True":
        parts.append(f"evicted: {evicted.get('message')} ({evicted.get('reason')})")
    if reserved:
        parts.append(str(reserved.get("message")))
    if reserved.get("status") == "True":
        checks = workload["status"].get("admissionChecks", [])
        waiting = [each for each in checks if each.get("state") != "Ready"]
        parts += [f"{each['name']} is {each['state']} {each['message']}" for each in waiting]
    texts = [" ".join(each.split()) for each in parts]
    return "; ".join(dict.fromkeys(texts)) or "Kueue has not looked at it yet"
