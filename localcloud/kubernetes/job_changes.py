"""What of a job may change, and what its status may say: the rules of pkg/apis/batch/validation."""

from __future__ import annotations

import json

from localcloud.kubernetes.job_checks import indexes_in
from localcloud.kubernetes.words import invalid, not_negative, required

IMMUTABLE = (
    *("selector", "template", "completionMode", "podFailurePolicy", "backoffLimitPerIndex"),
    *("managedBy", "successPolicy"),
)
# Of a pod in a job that has not begun: what may change, beside affinity to nodes.
PLACING = ("nodeSelector", "tolerations", "schedulingGates")
CONDITIONS = "status.conditions: Invalid value: cannot set"
LASTING = ("Failed", "Complete", "FailureTarget")


def spec_errors(old: dict, new: dict) -> list[str]:
    """What of a job's change may not be, field by field."""
    before, after, bad = old.get("spec") or {}, new.get("spec") or {}, list[str]()
    key, wanted = "completions", after.get("completions")
    if before.get(key) != wanted and after.get("completionMode") != "Indexed":
        bad.append(immutable(key, after))
    elif before.get(key) != wanted and wanted != after.get("parallelism"):
        told = "can only be modified in tandem with spec.parallelism"
        bad.append(invalid(f"spec.{key}", wanted, told))
    waits = before.get("suspend") and not (old.get("status") or {}).get("startTime")
    for key in IMMUTABLE:
        placed = key == "template" and waits and differ_in_placing(before, after)
        if before.get(key) != after.get(key) and not placed:
            bad.append(immutable(key, after))
    return bad


def immutable(key: str, after: dict) -> str:
    shown = "null"
    if key in after:
        shown = json.dumps(after[key], separators=(",", ":"))[:200]
    return f"spec.{key}: Invalid value: {shown}: field is immutable"


def differ_in_placing(before: dict, after: dict) -> bool:
    """Whether two specs of a job differ at most in where their pods may be placed, and what these
    ask for: all that may change before a job begins.
    """
    return unplaced(before["template"]) == unplaced(after.get("template") or {})


def unplaced(template: dict) -> dict:
    """A pod's template without its labels and notes, and without what decides where it goes."""
    pod = {key: each for key, each in (template.get("spec") or {}).items() if key not in PLACING}
    affinity = dict(pod.pop("affinity", None) or {})
    affinity.pop("nodeAffinity", None)
    for kind in ("containers", "initContainers"):
        rows = pod.get(kind) or []
        pod[kind] = [{k: v for k, v in row.items() if k != "resources"} for row in rows]
    return {**pod, **({"affinity": affinity} if affinity else {})}


# --- status


def status_errors(old: dict, new: dict) -> list[str]:
    """What a job's status may not become; what was so before may stay."""
    known = state_errors(old)
    return [each for each in state_errors(new) if each not in known] + step_errors(old, new)


def has(job: dict, kind: str) -> bool:
    rows = (job.get("status") or {}).get("conditions") or []
    return any(row.get("type") == kind and row.get("status") == "True" for row in rows)


def state_errors(job: dict) -> list[str]:
    status, bad = job.get("status") or {}, list[str]()
    for key in ("active", "succeeded", "failed", "ready", "terminating"):
        not_negative(status.get(key), f"status.{key}", bad)
    complete, failed = has(job, "Complete"), has(job, "Failed")
    doomed, met = has(job, "FailureTarget"), has(job, "SuccessCriteriaMet")
    start, end = status.get("startTime"), status.get("completionTime")
    is_over, at_end = complete or failed, "status.completionTime"
    without, only = "when there is no Complete=True condition", "condition without the"
    rows = (
        (complete and failed, f"{CONDITIONS} Complete=True and Failed=true conditions"),
        (complete and doomed, f"{CONDITIONS} Complete=True and FailureTarget=true conditions"),
        (
            end and not complete,
            f'{at_end}: Invalid value: "{end}": cannot set completionTime {without}',
        ),
        (complete and not end, required(at_end, "completionTime is required for Complete jobs")),
        (
            start and end and end < start,
            f'{at_end}: Invalid value: "{end}": must be equal to or after `startTime`',
        ),
        (
            failed and not doomed,
            f"{CONDITIONS} Failed=True {only} FailureTarget=true condition",
        ),
        (
            complete and not met,
            f"{CONDITIONS} Complete=True {only} SuccessCriteriaMet=true condition",
        ),
        (
            is_over and (status.get("active") or 0) > 0,
            invalid("status.active", status.get("active"), "active>0 is invalid for finished job"),
        ),
        (
            is_over and not start,
            required("status.startTime", "startTime is required for finished job"),
        ),
    )
    bad += [told for is_wrong, told in rows if is_wrong]
    bad += index_errors(job)
    if is_over and (status.get("terminating") or 0) > 0:
        told = "terminating>0 is invalid for finished job"
        bad.append(invalid("status.terminating", status["terminating"], told))
    if status.get("ready", 0) > max(status.get("active", 0), 0):
        bad.append(
            invalid("status.ready", status["ready"], "cannot set more ready pods than active")
        )
    pairs = ((failed, "Failed"), (doomed, "FailureTarget"))
    bad += [
        f"{CONDITIONS} SuccessCriteriaMet=True and {name}=true conditions"
        for is_so, name in pairs
        if met and is_so
    ]
    if (job["spec"].get("successPolicy") is not None) and complete and not met:
        told = "Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True"
        bad.append(f"{CONDITIONS} {told}")
    return bad


def index_errors(job: dict) -> list[str]:
    """Of the numbers of pods that are done, and of those that failed."""
    status, spec, bad = job.get("status") or {}, job["spec"], list[str]()
    done, failed = status.get("completedIndexes") or "", status.get("failedIndexes")
    limited = spec.get("backoffLimitPerIndex") is not None
    for key, text in (("completedIndexes", done), ("failedIndexes", failed if limited else None)):
        if spec.get("completions") is None or text is None:
            continue
        try:
            indexes_in(text, spec["completions"])
        except ValueError as error:
            bad.append(invalid(f"status.{key}", text, f"error parsing {key}: {error}"))
    if done and spec.get("completionMode") != "Indexed":
        told = "cannot set non-empty completedIndexes when non-indexed completion mode"
        bad.append(invalid("status.completedIndexes", done, told))
    if failed is not None and not limited:
        told = "cannot set non-null failedIndexes when backoffLimitPerIndex is null"
        bad.append(invalid("status.failedIndexes", failed, told))
    return bad


def step_errors(old: dict, new: dict) -> list[str]:
    """Of what a status may not take back."""
    before, after, bad = old.get("status") or {}, new.get("status") or {}, list[str]()
    for kind in LASTING:
        if has(old, kind) and not has(new, kind):
            told = f"cannot disable the terminal {kind}=True condition"
            bad.append(f"status.conditions: Invalid value: {told}")
    spec = new["spec"]
    is_elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get(
        "parallelism"
    )
    for key in ("failed", *([] if is_elastic else ["succeeded"])):
        number = after.get(key) or 0
        if number < (before.get(key) or 0):
            bad.append(invalid(f"status.{key}", number, f"cannot decrease the {key} counter"))
    start = before.get("startTime")
    if start and start != after.get("startTime") and not spec.get("suspend"):
        told = "startTime cannot be removed for unsuspended job"
        bad.append(required("status.startTime", told))
    if has(old, "SuccessCriteriaMet") and not has(new, "SuccessCriteriaMet"):
        told = "cannot disable the SuccessCriteriaMet=True condition"
        bad.append(f"status.conditions: Invalid value: {told}")
    return bad
