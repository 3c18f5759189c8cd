"""Kueue in a cluster that has it: Jobs with a queue's name wait suspended until there is quota.

What its controllers do with Workloads (its webhook: job_checks.py): there is one for each such
Job, which reserves quota in the ClusterQueue behind the Job's LocalQueue, is admitted, and is
evicted where a queue is stopped with HoldAndDrain or the Workload is set inactive.

Not covered: preemption by priority, cohorts and borrowing, admission checks, topologies, the
default queue of a namespace, kinds of jobs other than batch/v1.
"""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Iterator

from localcloud.kubernetes.job_checks import QUEUES, queue_of
from localcloud.kubernetes.jobs import is_finished, pods_of
from localcloud.kubernetes.kinds import (
    condition,
    is_leaving,
    is_over,
    owned_by,
    reference,
    set_condition,
    stamp,
)
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.quantity import amount, canonical

JOB = "batch/job-kueue-controller"
ADMISSION = "kueue-admission"
PLACING = ("nodeSelector", "tolerations")
COUNTED = ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")


class NoFit(Exception):
    """Why a Workload gets no quota now."""


def look(plane: Plane) -> None:
    """Look at all Jobs with a queue, their Workloads, and the queues."""
    if not plane.has_kueue:
        return
    for job in plane.store.all("jobs"):
        if queue_of(job):
            follow(plane, job)
    for workload in plane.store.all("workloads"):
        if not condition(workload, "Finished") and not condition(workload, "Evicted"):
            evict_if_stopped(plane, workload)
    admit(plane)
    show(plane)


def follow(plane: Plane, job: dict) -> None:
    """Let a Job and its Workload be as each other says."""
    workload = next((each for each in plane.store.all("workloads") if owned_by(each, job)), None)
    if is_finished(job):
        if workload:
            finish(plane, job, workload)
        return
    if is_leaving(job):
        return
    if workload is None:
        make_workload(plane, job)
    elif row := condition(workload, "Evicted"):
        stop(plane, job, workload, row["message"])
        if all(is_over(pod) for pod in pods_of(plane, job)):
            release(plane, workload, row)
    elif condition(workload, "Admitted"):
        start(plane, job, workload)
    else:
        stop(plane, job, workload, "Not admitted by cluster queue")


def make_workload(plane: Plane, job: dict) -> None:
    meta, spec = job["metadata"], job["spec"]
    text = "\n".join(["Job", "batch", meta["name"], meta["uid"]])
    ending = hashlib.sha1(text.encode()).hexdigest()[:5]
    name = f"job-{meta['name']}"[: 253 - 6] + f"-{ending}"
    count = min(spec["parallelism"], spec.get("completions") or spec["parallelism"])
    pod_set = {"name": "main", "count": count, "template": copy.deepcopy(spec["template"])}
    about = {
        "name": name,
        "ownerReferences": reference(job),
        "labels": {f"{QUEUES}/job-uid": meta["uid"]},
    }
    wanted = {"queueName": queue_of(job), "active": True, "priority": 0, "podSets": [pod_set]}
    plane.create("workloads", meta["namespace"], {"metadata": about, "spec": wanted})
    message = f"Created Workload: {meta['namespace']}/{name}"
    plane.event(job, "CreatedWorkload", message, by=JOB)


def finish(plane: Plane, job: dict, workload: dict) -> None:
    """Note the end of a Job on its Workload, whose quota is free then."""
    row = condition(job, "Complete") or condition(job, "Failed")
    why = "Succeeded" if row["type"] == "Complete" else "Failed"
    if set_condition(workload["status"], "Finished", "True", why, row["message"]):
        plane.store.put("workloads", workload)


def start(plane: Plane, job: dict, workload: dict) -> None:
    """Let an admitted Job run, on the nodes of the flavors that it was given."""
    if not job["spec"].get("suspend"):
        return
    assigned = workload["status"]["admission"]
    pod = job["spec"]["template"]["spec"]
    for name in set(assigned["podSetAssignments"][0].get("flavors", {}).values()):
        flavor = plane.store.get("resourceflavors", "", name) or {"spec": {}}
        spec = flavor.get("spec") or {}
        pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **(spec.get("nodeLabels") or {})}
        pod["tolerations"] = [*(pod.get("tolerations") or []), *(spec.get("tolerations") or [])]
    suspend(plane, job, False)
    message = f"Admitted by clusterQueue {assigned['clusterQueue']}"
    plane.event(job, "Started", message, by=JOB)


def stop(plane: Plane, job: dict, workload: dict, why: str) -> None:
    """Suspend a Job that runs, and restore where its pods may go."""
    if job["spec"].get("suspend"):
        return
    pod = job["spec"]["template"]["spec"]
    before = workload["spec"]["podSets"][0]["template"]["spec"]
    for key in PLACING:
        pod.pop(key, None)
        if key in before:
            pod[key] = copy.deepcopy(before[key])
    suspend(plane, job, True)
    plane.event(job, "Stopped", why, by=JOB)


def suspend(plane: Plane, job: dict, value: bool) -> None:
    job["spec"]["suspend"] = value
    job["metadata"]["generation"] += 1
    plane.store.put("jobs", job)


def release(plane: Plane, workload: dict, evicted: dict) -> None:
    """Take an evicted Workload's reservation back; it queues again unless something is stopped."""
    status = workload["status"]
    if not status.pop("admission", None):
        return
    set_condition(status, "QuotaReserved", "False", "Pending", evicted["message"])
    why = "The workload has no reservation"
    set_condition(status, "Admitted", "False", "NoReservation", why)
    set_condition(status, "Requeued", "False", evicted["reason"], evicted["message"])
    plane.store.put("workloads", workload)


# --- eviction


def evict_if_stopped(plane: Plane, workload: dict) -> None:
    """Evict a Workload with a reservation whose queue is drained, or that is set inactive."""
    if "admission" not in workload["status"]:
        return
    meta, spec = workload["metadata"], workload["spec"]
    queue = plane.store.get("localqueues", meta["namespace"], spec.get("queueName", ""))
    whole = plane.store.get("clusterqueues", "", workload["status"]["admission"]["clusterQueue"])
    reason = message = ""
    if spec.get("active") is False:
        reason, message = "Deactivated", "The workload is deactivated"
    elif is_stopped(queue, "HoldAndDrain"):
        reason, message = "LocalQueueStopped", "The LocalQueue is stopped"
    elif is_stopped(whole, "HoldAndDrain"):
        reason, message = "ClusterQueueStopped", "The ClusterQueue is stopped"
    if reason:
        set_condition(workload["status"], "Evicted", "True", reason, message)
        plane.store.put("workloads", workload)
        plane.event(workload, f"EvictedDueTo{reason}", message, by="workload-controller")


def is_stopped(queue: dict | None, *policies: str) -> bool:
    policy = ((queue or {}).get("spec") or {}).get("stopPolicy", "None")
    return policy in (policies or ("Hold", "HoldAndDrain"))


# --- admission


def admit(plane: Plane) -> None:
    """Give quota to the Workloads that wait: by priority, then the oldest first."""
    blocked: set[str] = set()
    for workload in sorted(
        waiting(plane),
        key=lambda each: (-each["spec"].get("priority", 0), each["metadata"]["creationTimestamp"]),
    ):
        try:
            whole = queue_for(plane, workload)
            if whole["metadata"]["name"] in blocked:
                continue
            assign(plane, workload, whole)
        except NoFit as why:
            message = str(why)
            reason = (
                "Inadmissible" if message.startswith(("LocalQueue", "ClusterQueue")) else "Pending"
            )
            if set_condition(workload["status"], "QuotaReserved", "False", reason, message):
                plane.store.put("workloads", workload)
            if reason == "Pending" and whole["spec"].get("queueingStrategy") == "StrictFIFO":
                blocked.add(whole["metadata"]["name"])


def waiting(plane: Plane) -> Iterator[dict]:
    for each in plane.store.all("workloads"):
        status, is_active = each["status"], each["spec"].get("active", True)
        if is_active and "admission" not in status and not condition(each, "Finished"):
            yield each


def queue_for(plane: Plane, workload: dict) -> dict:
    """The ClusterQueue that a Workload waits for; raises NoFit where a queue is missing or stopped."""
    namespace, name = workload["metadata"]["namespace"], workload["spec"].get("queueName", "")
    queue = plane.store.get("localqueues", namespace, name)
    if queue is None:
        raise NoFit(f"LocalQueue {name} doesn't exist")
    if is_stopped(queue):
        raise NoFit(f"LocalQueue {name} is stopped")
    target = queue["spec"].get("clusterQueue", "")
    whole = plane.store.get("clusterqueues", "", target)
    if whole is None:
        raise NoFit(f"ClusterQueue {target} doesn't exist")
    if is_stopped(whole):
        raise NoFit(f"ClusterQueue {target} is stopped")
    if inactive_for(plane, whole):
        raise NoFit(f"ClusterQueue {target} is inactive")
    return whole


def inactive_for(plane: Plane, whole: dict) -> list[str]:
    """The flavors that a ClusterQueue names and that are not there."""
    groups = whole["spec"].get("resourceGroups") or []
    names = [flavor["name"] for group in groups for flavor in group["flavors"]]
    return [each for each in names if plane.store.get("resourceflavors", "", each) is None]


def assign(plane: Plane, workload: dict, whole: dict) -> None:
    """Reserve quota for a Workload and admit it; raises NoFit with Kueue's words where there is
    none.
    """
    check_namespace(plane, workload, whole)
    pods = workload["spec"]["podSets"][0]
    wanted = requests(pods)
    flavors = flavors_for(plane, wanted, pods, whole)
    name = whole["metadata"]["name"]
    usage = {key: canonical(number) for key, number in wanted.items() if key in flavors}
    row = {"name": pods["name"], "count": pods["count"], "flavors": flavors, "resourceUsage": usage}
    status = workload["status"]
    status["admission"] = {"clusterQueue": name, "podSetAssignments": [row]}
    message = f"Quota reserved in ClusterQueue {name}"
    set_condition(status, "QuotaReserved", "True", "QuotaReserved", message)
    set_condition(status, "Admitted", "True", "Admitted", "The workload is admitted")
    for old in status["conditions"]:
        if old["type"] == "Evicted" and old["status"] == "True":
            old |= {"status": "False", "reason": "QuotaReserved", "lastTransitionTime": stamp()}
            old["message"] = f"Previously: {old['message']}"
    plane.store.put("workloads", workload)
    plane.event(workload, "Admitted", f"Admitted by ClusterQueue {name}", by=ADMISSION)


def check_namespace(plane: Plane, workload: dict, whole: dict) -> None:
    chosen = whole["spec"].get("namespaceSelector")
    namespace = plane.store.get("namespaces", "", workload["metadata"]["namespace"])
    labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
    wanted = (chosen or {}).get("matchLabels") or {}
    if chosen is None or any(labels.get(key) != value for key, value in wanted.items()):
        raise NoFit("Workload namespace doesn't match ClusterQueue selector")


def requests(pods: dict) -> dict[str, float]:
    """What all pods of a set ask for, by the resource's name."""
    found: dict[str, float] = defaultdict(float)
    for row in pods["template"]["spec"]["containers"]:
        rows = row.get("resources") or {}
        asked = {**(rows.get("limits") or {}), **(rows.get("requests") or {})}
        for key, quantity in asked.items():
            found[key] += amount(quantity) * pods["count"]
    return dict(found)


def flavors_for(plane: Plane, wanted: dict[str, float], pods: dict, whole: dict) -> dict[str, str]:
    """The flavor of each resource that is wanted; raises NoFit if one has no room."""
    start_of = f"couldn't assign flavors to pod set {pods['name']}: "
    groups = whole["spec"].get("resourceGroups") or []
    covered = {name for group in groups for name in group["coveredResources"]}
    wanted = {**wanted, **({"pods": float(pods["count"])} if "pods" in covered else {})}
    if missing := sorted(set(wanted) - covered):
        raise NoFit(f"{start_of}resource {missing[0]} unavailable in ClusterQueue")
    used, found = in_use(plane, whole), {}
    for group in groups:
        asked = {key: wanted[key] for key in group["coveredResources"] if key in wanted}
        message: list[str] = []
        for flavor in group["flavors"] if asked else []:
            why = hindrances(plane, flavor, asked, used, pods)
            message += why
            if not why:
                found.update(dict.fromkeys(asked, flavor["name"]))
                break
        else:
            if asked:
                raise NoFit(start_of + ", ".join(message))
    return found


def hindrances(
    plane: Plane,
    flavor: dict,
    asked: dict[str, float],
    used: dict[tuple[str, str], float],
    pods: dict,
) -> list[str]:
    """Why a flavor does not do, in Kueue's words; [] if it does."""
    name = flavor["name"]
    there = plane.store.get("resourceflavors", "", name) or {}
    labels = (there.get("spec") or {}).get("nodeLabels") or {}
    chosen = pods["template"]["spec"].get("nodeSelector") or {}
    if any(labels.get(key, value) != value for key, value in chosen.items()):
        return [f"flavor {name} doesn't match node affinity"]
    message = []
    for row in flavor["resources"]:
        number, most = asked.get(row["name"], 0.0), amount(row["nominalQuota"])
        free = most - used.get((name, row["name"]), 0.0)
        if number > most:
            message.append(
                f"insufficient quota for {row['name']} in flavor {name}, previously considered "
                f"podsets requests (0) + current podset request ({canonical(number)}) > "
                f"maximum capacity ({canonical(most)})"
            )
        elif number > free:
            more = canonical(number - free)
            message.append(
                f"insufficient unused quota for {row['name']} in flavor {name}, {more} more needed"
            )
    return message


def in_use(plane: Plane, whole: dict) -> dict[tuple[str, str], float]:
    """What of a ClusterQueue is reserved, by flavor and resource."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for each in reserving(plane, whole):
        row = each["status"]["admission"]["podSetAssignments"][0]
        for key, flavor in row["flavors"].items():
            found[flavor, key] += amount(row["resourceUsage"][key])
    return found


def reserving(plane: Plane, whole: dict) -> list[dict]:
    """The Workloads that have a reservation in a ClusterQueue."""
    name = whole["metadata"]["name"]
    return [
        each
        for each in plane.store.all("workloads")
        if each["status"].get("admission", {}).get("clusterQueue") == name
        and not condition(each, "Finished")
    ]


# --- what queues say of themselves


def show(plane: Plane) -> None:
    live = [each for each in plane.store.all("workloads") if not condition(each, "Finished")]
    for whole in plane.store.all("clusterqueues"):
        name, missing = whole["metadata"]["name"], inactive_for(plane, whole)
        active = ("True", "Ready", "Can admit new workloads")
        if is_stopped(whole):
            active = ("False", "Stopped", "Can't admit new workloads: is stopped.")
        elif missing:
            message = (
                f"Can't admit new workloads: references missing ResourceFlavor(s): {missing[0]}."
            )
            active = ("False", "FlavorNotFound", message)
        mine = [each for each in live if target_of(plane, each) == name]
        tell(plane, "clusterqueues", whole, mine, active)
    for queue in plane.store.all("localqueues"):
        whole_of = plane.store.get("clusterqueues", "", queue["spec"].get("clusterQueue", ""))
        active = ("True", "Ready", "Can submit new workloads to localQueue")
        if is_stopped(queue):
            active = ("False", "Stopped", "LocalQueue is stopped")
        elif whole_of is None:
            message = "Can't submit new workloads to clusterQueue"
            active = ("False", "ClusterQueueDoesNotExist", message)
        elif not condition(whole_of, "Active"):
            message = "Can't submit new workloads to clusterQueue"
            active = ("False", "ClusterQueueIsInactive", message)
        mine = [each for each in live if is_in(each, queue)]
        tell(plane, "localqueues", queue, mine, active)


def is_in(workload: dict, queue: dict) -> bool:
    meta = queue["metadata"]
    place = workload["metadata"]["namespace"], workload["spec"].get("queueName")
    return place == (meta["namespace"], meta["name"])


def target_of(plane: Plane, workload: dict) -> str:
    name = workload["spec"].get("queueName", "")
    queue = plane.store.get("localqueues", workload["metadata"]["namespace"], name)
    return queue["spec"].get("clusterQueue", "") if queue else ""


def tell(
    plane: Plane, plural: str, queue: dict, mine: list[dict], active: tuple[str, str, str]
) -> None:
    """Write into a queue's status how many Workloads it has, and whether it takes more."""
    reserved = [each for each in mine if "admission" in each["status"]]
    admitted = [each for each in reserved if condition(each, "Admitted")]
    numbers = (len(mine) - len(reserved), len(reserved), len(admitted))
    queue["status"].update(zip(COUNTED, numbers, strict=True))
    set_condition(queue["status"], "Active", *active)
    plane.store.put(plural, queue)
