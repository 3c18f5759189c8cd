"""What Kubernetes refuses of a job besides what its schema says, in its words."""

from __future__ import annotations

from localcloud.kubernetes.words import (
    LABEL,
    compact,
    invalid,
    not_negative,
    one_of,
    required,
    supported,
)

IMMUTABLE = (
    "completions",
    "selector",
    "template",
    "completionMode",
    "podFailurePolicy",
    "successPolicy",
)
COUNTS = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
)


def job_errors(spec: dict, meta: dict) -> list[str]:
    """Of a job's own fields."""
    bad: list[str] = []
    name, mode = meta.get("name", ""), spec.get("completionMode")
    for key in COUNTS:
        not_negative(spec.get(key), f"spec.{key}", bad)
    one_of(mode, ("NonIndexed", "Indexed"), "spec.completionMode", bad)
    if mode == "Indexed" and spec.get("completions") is None:
        bad.append(required("spec.completions", "when completion mode is Indexed"))
    last = f"{name}-{(spec.get('completions') or 0) - 1}"
    if mode == "Indexed" and spec.get("completions") and not LABEL.fullmatch(last):
        message = f"will not able to create pod with invalid DNS label: {last}"
        bad.append(invalid("metadata.name", name, message))
    return bad + restart_errors(spec)


def restart_errors(spec: dict) -> list[str]:
    pod = (spec.get("template") or {}).get("spec") or {}
    policy, path = pod.get("restartPolicy") or "Always", "spec.template.spec.restartPolicy"
    if policy == "Always":
        return [required(path, 'valid values: "OnFailure", "Never"')]
    if policy not in ("OnFailure", "Never"):
        allowed = supported(("OnFailure", "Never"))
        return [f'{path}: Unsupported value: "{policy}": supported values: {allowed}']
    if spec.get("podFailurePolicy") is not None and policy != "Never":
        message = 'only "Never" is supported when podFailurePolicy is specified'
        return [invalid(path, policy, message)]
    return []


# --- changes


def change_errors(old: dict, new: dict) -> list[str]:
    """Of a job that is to become another, field by field."""
    before, after = old.get("spec") or {}, new.get("spec") or {}
    return [
        f"spec.{key}: Invalid value: {compact(after.get(key))[:200]}: field is immutable"
        for key in IMMUTABLE
        if before.get(key) != after.get(key)
    ]
