"""The controller of indexed jobs: policies of failure and success, back-offs.

A pod is counted once, when it has ended; then it loses the finalizer that kept it until then.

Not covered: jobs without indexes, elastic ones, back-offs per index, deadlines, schedules (cron jobs).
"""

import calendar
import copy
import secrets
import time

from localcloud.kubernetes.defaults import INDEX, TRACKING
from localcloud.kubernetes.kinds import (
    condition,
    is_leaving,
    is_over,
    owned_by,
    reference,
    stamp,
)
from localcloud.kubernetes.plane import LETTERS, Plane

LONGEST = 600.0  # seconds between two pods of a job that fail
NO_FAILURES = {"failures": 0, "at": 0.0}


def memory_key(job: dict) -> str:
    """Return under which key the plane remembers a job's failures."""
    return f"job {job['metadata']['uid']}"


def since(text: str) -> float:
    return time.time() - calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def look(plane: Plane) -> None:
    for job in plane.store.all("jobs"):
        if is_finished(job):
            try_to_finish(plane, job)
        else:
            sync(plane, job)
    living = {job["metadata"]["uid"] for job in plane.store.all("jobs")}
    for pod in plane.store.all("pods"):  # pods of deleted jobs are not counted any more
        owners = {row["uid"] for row in pod["metadata"].get("ownerReferences") or []}
        if TRACKING in (pod["metadata"].get("finalizers") or []) and not owners & living:
            release(plane, pod)


def is_finished(job: dict) -> bool:
    return bool(condition(job, "Complete") or condition(job, "Failed"))


def try_to_finish(plane: Plane, job: dict) -> None:
    """Delete a finished job at the end of its time to live."""
    ended = condition(job, "Complete") or condition(job, "Failed")
    seconds = job["spec"].get("ttlSecondsAfterFinished")
    for pod in pods_of(plane, job):
        if is_over(pod) and TRACKING in (pod["metadata"].get("finalizers") or []):
            release(plane, pod)
    if seconds is not None and since(ended["lastTransitionTime"]) >= seconds:
        plane.delete("jobs", job)


def pods_of(plane: Plane, job: dict) -> list[dict]:
    return [pod for pod in plane.store.all("pods") if owned_by(pod, job)]


def release(plane: Plane, pod: dict) -> None:
    pod["metadata"]["finalizers"] = [
        each for each in pod["metadata"]["finalizers"] if each != TRACKING
    ]
    if not pod["metadata"]["finalizers"]:
        del pod["metadata"]["finalizers"]
    plane.store.put("pods", pod)
    plane.finish_pod(pod)


def index_of(pod: dict) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def numbers(text: str) -> set[int]:
    """The indexes that a status or a policy names: "0,2"."""
    return {int(part) for part in text.split(",") if part}


def sync(plane: Plane, job: dict) -> None:
    """Count pods that ended, decide whether the job is finished, and create pods."""
    job["status"].setdefault("startTime", stamp())
    verdict = count(plane, job)
    there = [pod for pod in pods_of(plane, job) if not is_over(pod)]
    memory = plane.memory.get(memory_key(job), NO_FAILURES)
    if over := early(job) or verdict or judged(job):
        finish(plane, job, over, [pod for pod in there if not is_leaving(pod)])
    elif not waits(plane.settings.backoff, memory, time.monotonic()):
        for index in missing(job, there):
            make_pod(plane, job, index)
    show(plane, job)
    plane.store.put("jobs", job)


def show(plane: Plane, job: dict) -> None:
    """Write into a job's status how many pods it has."""
    there = [pod for pod in pods_of(plane, job) if not is_over(pod)]
    active = [pod for pod in there if not is_leaving(pod)]
    ready = sum(bool(condition(pod, "Ready")) for pod in active)
    counts = {"active": len(active), "ready": ready, "terminating": len(there) - len(active)}
    job["status"].update(counts)


def count(plane: Plane, job: dict) -> tuple[str, str, str] | None:
    """Count pods that ended; what the failure policy says of them: a final condition, its reason,
    its message.
    """
    status, verdict = job["status"], None
    for pod in pods_of(plane, job):
        if not is_over(pod) or TRACKING not in (pod["metadata"].get("finalizers") or []):
            continue
        if pod["status"]["phase"] == "Succeeded":
            done = numbers(status.get("completedIndexes", "")) | {index_of(pod)}
            status.update(completedIndexes=",".join(map(str, sorted(done))), succeeded=len(done))
            plane.memory.pop(memory_key(job), None)  # a success ends the waiting
        elif is_finished(job):
            status["failed"] = status.get("failed", 0) + 1
        else:
            action, message = action_for(job, pod)
            if action == "FailJob":
                verdict = ("Failed", "PodFailurePolicy", message)
            if action != "Ignore":
                status["failed"] = status.get("failed", 0) + 1
            memory = plane.memory.setdefault(memory_key(job), dict(NO_FAILURES))
            memory.update(failures=memory["failures"] + 1, at=time.monotonic())
        release(plane, pod)
    return verdict


def action_for(job: dict, pod: dict) -> tuple[str, str]:
    """What the failure policy says of a failed pod, and its words for the job's condition."""
    status = pod["status"]
    ended = {
        row["name"]: row["state"]["terminated"]["exitCode"]
        for row in status.get("containerStatuses") or []
        if "terminated" in row["state"]
    }
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        action, codes = rule["action"], rule.get("onExitCodes")
        for pattern in rule.get("onPodConditions") or []:
            if any(
                c["type"] == pattern["type"] and c["status"] == pattern["status"]
                for c in status.get("conditions", [])
            ):
                message = f"Pod {name} has condition {pattern['type']} matching {action} rule at index {number}"
                return action, message
        for container, code in ended.items() if codes else ():
            meant = codes.get("containerName") in (None, container)
            if meant and code and (code in codes["values"]) == (codes["operator"] == "In"):
                message = f"failed with exit code {code} matching {action} rule at index {number}"
                return action, f"Container {container} for pod {name} {message}"
    return "Count", ""


def early(job: dict) -> tuple[str, str, str] | None:
    """The end that a job has begun to come to."""
    for kind, final in (("SuccessCriteriaMet", "Complete"), ("FailureTarget", "Failed")):
        if row := condition(job, kind):
            return final, row["reason"], row["message"]
    return None


def judged(job: dict) -> tuple[str, str, str] | None:
    """The final condition of a finished job, its reason and its message."""
    spec, status = job["spec"], job["status"]
    done = numbers(status.get("completedIndexes", ""))
    for number, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or []):
        if numbers(rule["succeededIndexes"]) <= done:
            return "Complete", "SuccessPolicy", f"Matched rules at index {number}"
    if status.get("failed", 0) > spec["backoffLimit"]:
        return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if len(done) >= spec["completions"]:
        return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
    return None


def finish(plane: Plane, job: dict, over: tuple[str, str, str], active: list[dict]) -> None:
    """End what still runs; the final condition comes when all of it has ended."""
    final, reason, message = over
    rows = job["status"].setdefault("conditions", [])
    now = stamp()
    row = {
        "status": "True",
        "reason": reason,
        "message": message,
        "lastProbeTime": now,
        "lastTransitionTime": now,
    }
    if not early(job):
        rows.append(
            {"type": "SuccessCriteriaMet" if final == "Complete" else "FailureTarget", **row}
        )
    for pod in active:  # they count as failed: the job is finished
        if TRACKING in (pod["metadata"].get("finalizers") or []):
            action, _ = action_for(job, pod)
            job["status"]["failed"] = job["status"].get("failed", 0) + (action != "Ignore")
            release(plane, pod)
        plane.delete("pods", pod)
        message = f"Deleted pod: {pod['metadata']['name']}"
        plane.event(job, "SuccessfulDelete", message, by="job-controller")
    if any(not is_over(pod) for pod in pods_of(plane, job)):
        return
    rows.append({"type": final, **row})
    if final == "Complete":
        job["status"]["completionTime"] = now
        plane.event(job, "Completed", "Job completed", by="job-controller")
    else:
        plane.event(job, reason, message, "Warning", "job-controller")
    plane.memory.pop(memory_key(job), None)


def waits(seconds: float, memory: dict, now: float) -> bool:
    """Whether it is too soon for another pod after the failures of a job: `seconds` after the
    first, doubled with each further one.
    """
    doublings = min(memory["failures"] - 1, 20)
    wait = min(seconds * 2**doublings, LONGEST)
    return bool(memory["failures"]) and now < memory["at"] + wait


def missing(job: dict, live: list[dict]) -> list[int]:
    """Return the indexes of the pods that a job lacks."""
    spec, status = job["spec"], job["status"]
    room = spec["parallelism"] - len(live)
    taken = {index_of(pod) for pod in live} | numbers(status.get("completedIndexes", ""))
    free = [index for index in range(spec["completions"]) if index not in taken]
    return [*free[: max(0, room)]]


def make_pod(plane: Plane, job: dict, index: int) -> None:
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    ends = "".join(secrets.choice(LETTERS) for _ in range(5))
    pod_meta, spec = template["metadata"], template["spec"]
    pod_meta["name"] = f"{meta['name']}-{index}-{ends}"
    pod_meta["finalizers"] = [TRACKING]
    pod_meta["ownerReferences"] = reference(job)
    spec["hostname"] = f"{meta['name']}-{index}"
    for kind in ("annotations", "labels"):
        pod_meta[kind] = {**(pod_meta.get(kind) or {}), INDEX: str(index)}
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    for container in spec["containers"]:
        container["env"] = [*(container.get("env") or []), variable]
    made = plane.create("pods", meta["namespace"], {"metadata": pod_meta, "spec": spec})
    message = f"Created pod: {made['metadata']['name']}"
    plane.event(job, "SuccessfulCreate", message, by="job-controller")
