"""The controller of jobs, as of Kubernetes 1.34: indexes, policies of failure and success,
back-offs, deadlines.

A pod is counted once, when it has ended; then it loses the finalizer that kept it until then.

Not covered: elastic indexed jobs, `managedBy`, schedules (cron jobs).
"""

from __future__ import annotations

import calendar
import copy
import secrets
import time

from localcloud.kubernetes.defaults import INDEX, TRACKING
from localcloud.kubernetes.job_checks import indexes_in
from localcloud.kubernetes.kinds import condition, is_leaving, is_over, owned_by, stamp
from localcloud.kubernetes.plane import LETTERS, Plane

FAILURES = "batch.kubernetes.io/job-index-failure-count"
LONGEST = 600.0  # seconds between two pods of a job that fail


def since(text: str) -> float:
    return time.time() - calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def look(plane: Plane) -> None:
    for job in plane.store.all("jobs"):
        try_to_finish(plane, job) if is_finished(job) else sync(plane, job)
    living = {job["metadata"]["uid"] for job in plane.store.all("jobs")}
    for pod in plane.store.all("pods"):  # whose job is gone nobody counts any more
        owners = {row["uid"] for row in pod["metadata"].get("ownerReferences") or []}
        if TRACKING in (pod["metadata"].get("finalizers") or []) and not owners & living:
            release(plane, pod)


def is_finished(job: dict) -> bool:
    return bool(condition(job, "Complete") or condition(job, "Failed"))


def try_to_finish(plane: Plane, job: dict) -> None:
    """Delete a job whose time to live is over."""
    ended = condition(job, "Complete") or condition(job, "Failed")
    seconds = job["spec"].get("ttlSecondsAfterFinished")
    for pod in pods_of(plane, job):
        if is_over(pod) and TRACKING in (pod["metadata"].get("finalizers") or []):
            release(plane, pod)
    if (
        seconds is not None
        and since(ended["lastTransitionTime"]) >= seconds
        and not is_leaving(job)
    ):
        plane.delete("jobs", job, "Foreground")


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
    """The indexes that a status names: "0,2-4"."""
    return indexes_in(text, 1 << 31) if text else set()


def written(indexes: set[int]) -> str:
    """Indexes as a status names them."""
    parts: list[list[int]] = []
    for each in sorted(indexes):
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ",".join(
        str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in parts
    )


def sync(plane: Plane, job: dict) -> None:
    """Count what ended, decide whether the job is over, and make or delete pods."""
    spec, status = job["spec"], job["status"]
    if spec.get("suspend"):
        suspend(plane, job)
        return
    if condition(job, "Suspended"):
        row = next(row for row in status["conditions"] if row["type"] == "Suspended")
        row.update(
            status="False", reason="JobResumed", message="Job resumed", lastTransitionTime=stamp()
        )
        status.pop("startTime", None)
        plane.event(job, "Resumed", "Job resumed", by="job-controller")
    status.setdefault("startTime", stamp())
    verdict = count(plane, job)
    pods = pods_of(plane, job)
    # With podReplacementPolicy Failed a pod counts until it has ended; otherwise until it is told
    # to.
    waits = spec["podReplacementPolicy"] == "Failed"
    live = [pod for pod in pods if not is_over(pod) and (waits or not is_leaving(pod))]
    active = [pod for pod in pods if not is_over(pod) and not is_leaving(pod)]
    over = early(job) or verdict or judged(job, live)
    if over:
        finish(plane, job, over, active)
    elif not is_leaving(job):
        fill_up(plane, job, live, active)
    pods = pods_of(plane, job)
    active = [pod for pod in pods if not is_over(pod) and not is_leaving(pod)]
    ready = sum(bool(condition(pod, "Ready")) for pod in active)
    leaving = sum(not is_over(pod) and is_leaving(pod) for pod in pods)
    for key, value in (("active", len(active)), ("ready", ready), ("terminating", leaving)):
        status[key] = value
        if key == "active" and not value:
            del status[key]
    status["uncountedTerminatedPods"] = {}
    plane.store.put("jobs", job)


def suspend(plane: Plane, job: dict) -> None:
    count(plane, job)
    for pod in pods_of(plane, job):
        if not is_over(pod) and not is_leaving(pod):
            plane.delete("pods", pod)
    if not condition(job, "Suspended"):
        rows = job["status"].setdefault("conditions", [])
        rows[:] = [row for row in rows if row["type"] != "Suspended"]
        times = {"lastProbeTime": stamp(), "lastTransitionTime": stamp()}
        rows.append(
            {
                "type": "Suspended",
                "status": "True",
                "reason": "JobSuspended",
                "message": "Job suspended",
                **times,
            }
        )
        job["status"].pop("startTime", None)
        job["status"].pop("active", None)
        plane.event(job, "Suspended", "Job suspended", by="job-controller")
    plane.store.put("jobs", job)


def count(plane: Plane, job: dict) -> tuple[str, str, str] | None:
    """Count pods that ended; what the failure policy says of them: a final condition, its reason,
    its message.
    """
    status, spec = job["status"], job["spec"]
    indexed, verdict = spec["completionMode"] == "Indexed", None
    for pod in pods_of(plane, job):
        if not is_over(pod) or TRACKING not in (pod["metadata"].get("finalizers") or []):
            continue
        if pod["status"]["phase"] == "Succeeded":
            if indexed:
                done = numbers(status.get("completedIndexes", "")) | {index_of(pod)}
                status.update(completedIndexes=written(done), succeeded=len(done))
            else:
                status["succeeded"] = status.get("succeeded", 0) + 1
            if spec.get("backoffLimitPerIndex") is None:  # a success ends the waiting
                plane.memory.pop(f"job {job['metadata']['uid']}", None)
        elif is_finished(job):
            status["failed"] = status.get("failed", 0) + 1
        else:
            action, message = action_for(job, pod)
            if action == "FailJob":
                verdict = ("Failed", "PodFailurePolicy", message)
            remember(plane, job, pod, action)
        release(plane, pod)
    return verdict


def remember(plane: Plane, job: dict, pod: dict, action: str) -> None:
    """Count a failed pod as its action says; the next one waits in any case."""
    status, spec = job["status"], job["spec"]
    memory = plane.memory.setdefault(
        f"job {job['metadata']['uid']}", {"failures": 0, "at": 0.0, "indexes": {}}
    )
    memory.update(failures=memory["failures"] + 1, at=time.monotonic())
    if action != "Ignore":
        status["failed"] = status.get("failed", 0) + 1
    if spec.get("backoffLimitPerIndex") is not None:
        index = index_of(pod)
        row = memory["indexes"].setdefault(index, {"counted": 0, "failures": 0, "at": 0.0})
        row.update(
            failures=row["failures"] + 1,
            at=time.monotonic(),
            counted=row["counted"] + (action != "Ignore"),
        )
        if action == "FailIndex" or row["counted"] > spec["backoffLimitPerIndex"]:
            status["failedIndexes"] = written(numbers(status.get("failedIndexes", "")) | {index})


def action_for(job: dict, pod: dict) -> tuple[str, str]:
    """What the failure policy says of a failed pod, and its words for the job's condition."""
    status = pod["status"]
    ended = {
        row["name"]: row["state"]["terminated"]["exitCode"]
        for row in [
            *(status.get("containerStatuses") or []),
            *(status.get("initContainerStatuses") or []),
        ]
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
                told = f"Pod {name} has condition {pattern['type']} matching {action} rule at index {number}"
                return action, told
        for container, code in ended.items() if codes else ():
            meant = codes.get("containerName") in (None, container)
            if meant and code and (code in codes["values"]) == (codes["operator"] == "In"):
                told = f"failed with exit code {code} matching {action} rule at index {number}"
                return action, f"Container {container} for pod {name} {told}"
    return "Count", ""


def early(job: dict) -> tuple[str, str, str] | None:
    """The end that a job has begun to come to."""
    for kind, final in (("SuccessCriteriaMet", "Complete"), ("FailureTarget", "Failed")):
        if row := condition(job, kind):
            return final, row["reason"], row["message"]
    return None


def judged(job: dict, live: list[dict]) -> tuple[str, str, str] | None:
    """Whether a job is over: the final condition, its reason, its message."""
    spec, status = job["spec"], job["status"]
    completions, succeeded = spec.get("completions"), status.get("succeeded", 0)
    done, lost = (
        numbers(status.get("completedIndexes", "")),
        numbers(status.get("failedIndexes", "")),
    )
    for number, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or []):
        meant = (
            numbers(rule["succeededIndexes"]) if rule.get("succeededIndexes") is not None else None
        )
        got = len(done if meant is None else done & meant)
        enough = (
            rule["succeededCount"] if rule.get("succeededCount") is not None else len(meant or ())
        )
        if got >= enough:
            return "Complete", "SuccessPolicy", f"Matched rules at index {number}"
    if status.get("failed", 0) > spec["backoffLimit"]:
        return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if (
        "activeDeadlineSeconds" in spec
        and since(status["startTime"]) >= spec["activeDeadlineSeconds"]
    ):
        return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
    most = spec.get("maxFailedIndexes")
    if most is not None and len(lost) > most:
        return (
            "Failed",
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        )
    if lost and completions is not None and len(done | lost) >= completions:
        return "Failed", "FailedIndexes", "Job has failed indexes"
    if (completions is not None and succeeded >= completions) or (
        completions is None and succeeded and not live
    ):
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
    for pod in active:
        plane.delete("pods", pod)
    if any(not is_over(pod) for pod in pods_of(plane, job)):
        return
    rows.append({"type": final, **row})
    if final == "Complete":
        job["status"]["completionTime"] = now
        plane.event(job, "Completed", "Job completed", by="job-controller")
    else:
        plane.event(job, reason, message, "Warning", "job-controller")
    plane.memory.pop(f"job {job['metadata']['uid']}", None)


def fill_up(plane: Plane, job: dict, live: list[dict], active: list[dict]) -> None:
    """Make the pods that are missing, delete those that are too many."""
    spec, status = job["spec"], job["status"]
    for pod in active[spec["parallelism"] :]:
        plane.delete("pods", pod)
    room = spec["parallelism"] - len(live)
    memory = plane.memory.get(
        f"job {job['metadata']['uid']}", {"failures": 0, "at": 0.0, "indexes": {}}
    )
    per_index = spec.get("backoffLimitPerIndex") is not None
    if room <= 0 or (not per_index and waits(plane, memory)):
        return
    if spec["completionMode"] != "Indexed":
        left = (
            room
            if spec.get("completions") is None
            else spec["completions"] - status.get("succeeded", 0) - len(live)
        )
        if spec.get("completions") is None and status.get("succeeded"):
            left = 0
        for _ in range(min(room, left)):
            make_pod(plane, job, None, 0)
        return
    taken = {index_of(pod) for pod in live}
    taken |= numbers(status.get("completedIndexes", "")) | numbers(status.get("failedIndexes", ""))
    for index in range(spec["completions"]):
        mine = memory["indexes"].get(index, {"failures": 0, "at": 0.0, "counted": 0})
        if index not in taken and room > 0 and not (per_index and waits(plane, mine)):
            make_pod(plane, job, index, mine["counted"])
            room -= 1


def waits(plane: Plane, memory: dict) -> bool:
    """Whether it is too soon for another pod after those that failed."""
    delay = min(plane.settings.backoff * 2 ** max(0, min(memory["failures"] - 1, 20)), LONGEST)
    return bool(memory["failures"]) and time.monotonic() < memory["at"] + delay


def make_pod(plane: Plane, job: dict, index: int | None, failures: int) -> None:
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    ends = "".join(secrets.choice(LETTERS) for _ in range(5))
    pod_meta, spec = template["metadata"], template["spec"]
    pod_meta["name"] = f"{meta['name'][:57]}-{ends}"
    pod_meta["finalizers"] = [TRACKING]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    pod_meta["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    if index is not None:
        pod_meta["name"] = f"{meta['name']}-{index}-{ends}"
        spec["hostname"] = f"{meta['name']}-{index}"
        for kind in ("annotations", "labels"):
            pod_meta[kind] = {**(pod_meta.get(kind) or {}), INDEX: str(index)}
        if job["spec"].get("backoffLimitPerIndex") is not None:
            pod_meta["annotations"][FAILURES] = str(failures)
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
            names = {item["name"] for item in container.get("env") or []}
            if "JOB_COMPLETION_INDEX" not in names:
                container["env"] = [
                    *(container.get("env") or []),
                    {"name": "JOB_COMPLETION_INDEX", "valueFrom": source},
                ]
    made = plane.create("pods", meta["namespace"], {"metadata": pod_meta, "spec": spec})
    plane.event(
        job, "SuccessfulCreate", f"Created pod: {made['metadata']['name']}", by="job-controller"
    )
