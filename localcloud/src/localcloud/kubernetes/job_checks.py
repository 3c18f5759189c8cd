"""What Kubernetes refuses of a job besides what its schema says, in its words."""

from __future__ import annotations

import json

from localcloud.kubernetes.words import LABEL, invalid, not_negative, one_of, required, supported

ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
IMMUTABLE = ("selector", "template", "completionMode", "podFailurePolicy", "successPolicy")
COUNTS = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "backoffLimitPerIndex",
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
    if mode != "Indexed" and spec.get("backoffLimitPerIndex") is not None:
        message = "requires indexed completion mode"
        bad.append(invalid("spec.backoffLimitPerIndex", spec["backoffLimitPerIndex"], message))
    last = f"{name}-{(spec.get('completions') or 0) - 1}"
    if mode == "Indexed" and spec.get("completions") and not LABEL.fullmatch(last):
        message = f"will not able to create pod with invalid DNS label: {last}"
        bad.append(invalid("metadata.name", name, message))
    allowed = ["Failed"]
    if spec.get("podFailurePolicy") is None:
        allowed.append("TerminatingOrFailed")
    else:
        failure_errors(spec, bad)
    policy = spec.get("podReplacementPolicy")
    one_of(policy, tuple(allowed), "spec.podReplacementPolicy", bad)
    success_errors(spec, bad)
    return bad + restart_errors(spec) + label_errors(spec, meta)


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


def label_errors(spec: dict, meta: dict) -> list[str]:
    """Of a selector and of labels that are Kubernetes' own to write."""
    name, uid = meta.get("name", ""), meta.get("uid", "")
    labels = {
        **{"controller-uid": uid, "job-name": name},
        **{"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name},
    }
    if spec.get("manualSelector"):
        return []
    chosen = (spec.get("selector") or {}).get("matchLabels") or {}
    if not chosen.items() <= labels.items():
        return [invalid("spec.selector", spec["selector"], "`selector` not auto-generated")]
    given = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    shown = dict(sorted({**labels, **given}.items()))
    return [
        invalid(f"spec.template.metadata.labels[{key}]", shown, f"must be '{value}'")
        for key, value in labels.items()
        if given.get(key, value) != value
    ]


def failure_errors(spec: dict, bad: list[str]) -> None:
    """Of the rules that say what becomes of a job when a pod fails."""
    for number, rule in enumerate(spec["podFailurePolicy"].get("rules") or []):
        path, action = f"spec.podFailurePolicy.rules[{number}]", rule.get("action")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or []
        if not action:
            valid = f"valid values: [{' '.join(map(json.dumps, ACTIONS))}]"
            bad.append(required(f"{path}.action", valid))
        elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            message = "requires the backoffLimitPerIndex to be set"
            bad.append(invalid(f"{path}.action", action, message))
        else:
            one_of(action, ACTIONS, f"{path}.action", bad)
        message = ""
        if codes is not None and conditions:
            message = "specifying both OnExitCodes and OnPodConditions is not supported"
        if codes is None and not conditions:
            message = "specifying one of OnExitCodes and OnPodConditions is required"
        if message:
            bad.append(f"{path}: Invalid value: {message}")


def success_errors(spec: dict, bad: list[str]) -> None:
    """Of the rules that say when an indexed job has succeeded."""
    if spec.get("successPolicy") is None:
        return
    rules, path = spec["successPolicy"].get("rules") or [], "spec.successPolicy"
    if spec.get("completionMode") != "Indexed":
        bad.append(invalid(path, spec["successPolicy"], "requires indexed completion mode"))
    if not rules:
        message = "at least one rules must be specified when the successPolicy is specified"
        bad.append(required(f"{path}.rules", message))
    for number, rule in enumerate(rules):
        at, indexes = f"{path}.rules[{number}]", rule.get("succeededIndexes")
        if indexes is None and rule.get("succeededCount") is None:
            message = "at least one of succeededCount or succeededIndexes must be specified"
            bad.append(required(at, message))
        if indexes is None:
            continue
        try:
            indexes_in(indexes, spec.get("completions") or 0)
        except ValueError as error:
            message = f"error parsing succeededIndexes: {error}"
            bad.append(invalid(f"{at}.succeededIndexes", indexes, message))


def indexes_in(text: str, completions: int) -> set[int]:
    """The numbers that `1,3-5` means; ValueError with Kubernetes' words for what is none."""
    found: set[int] = set()
    last = -1
    for part in text.split(",") if text else []:
        ends = part.split("-")
        if len(ends) > 2:
            message = "violates the requirement that an index interval can have at most two parts "
            raise ValueError(f"the fragment \"{part}\" {message}separated by '-'")
        for end in ends:
            if not end.isdigit():
                raise ValueError(f'cannot convert string to integer for index: "{end}"')
            if int(end) >= completions:
                raise ValueError(f'too large index: "{end}"')
        first, until = int(ends[0]), int(ends[-1])
        if last >= first or (len(ends) == 2 and first >= until):
            before = last if last >= first else first
            current = first if last >= first else until
            raise ValueError(f"non-increasing order, previous: {before}, current: {current}")
        found |= set(range(first, until + 1))
        last = until
    return found


# --- changes


def change_errors(old: dict, new: dict) -> list[str]:
    """Of a job that is to become another, field by field."""
    before, after, bad = old.get("spec") or {}, new.get("spec") or {}, list[str]()
    wanted = after.get("completions")
    if before.get("completions") != wanted:
        if after.get("completionMode") != "Indexed":
            bad.append(immutable("completions", after))
        elif wanted != after.get("parallelism"):
            message = "can only be modified in tandem with spec.parallelism"
            bad.append(invalid("spec.completions", wanted, message))
    return bad + [immutable(key, after) for key in IMMUTABLE if before.get(key) != after.get(key)]


def immutable(key: str, after: dict) -> str:
    shown = json.dumps(after.get(key), separators=(",", ":"))[:200]
    return f"spec.{key}: Invalid value: {shown}: field is immutable"
