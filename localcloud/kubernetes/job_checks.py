"""What Kubernetes checks of a job's own fields, beside its schema, in its words and order."""

from __future__ import annotations

import json
import re
from typing import Any

from localcloud.kubernetes import placing_checks
from localcloud.kubernetes.words import (
    LABEL,
    check_key,
    check_subdomain,
    invalid,
    not_negative,
    one_of,
    required,
    supported,
)

MOST_RULES = 20
HTTP_PATH = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
MOST_INDEXES = 100_000
MOST_TEXT = 64 << 10  # bytes of a list of indexes
COUNTS = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
)
ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")


def selector_errors(name: str, uid: str, spec: dict) -> list[str]:
    """Of a job that brings a selector, which is Kubernetes' own to make: its part is added, and
    that is no match.
    """
    labels = {
        **{"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name},
        **{"controller-uid": uid, "job-name": name},
    }
    selector = {
        "matchLabels": {
            **spec["selector"].get("matchLabels", {}),
            "batch.kubernetes.io/controller-uid": uid,
        }
    }
    template = (spec.get("template") or {}).get("metadata") or {}
    all_labels = {**(template.get("labels") or {}), **labels}
    if selector["matchLabels"].items() <= labels.items():
        return []
    bad = [invalid("spec.selector", dict_sorted(selector), "`selector` not auto-generated")]
    if not selector["matchLabels"].items() <= all_labels.items():
        told = "`selector` does not match template `labels`"
        bad.append(invalid("spec.template.metadata.labels", dict(sorted(all_labels.items())), told))
    return bad


def label_errors(name: str, uid: str, spec: dict) -> list[str]:
    """Of a job whose template has labels that are Kubernetes' own to write, or that chooses its
    pods itself and does not say how.
    """
    template = (spec.get("template") or {}).get("metadata") or {}
    given = template.get("labels") or {}
    if spec.get("manualSelector"):
        return manual_errors(spec.get("selector"), given)
    expected = {
        **{"controller-uid": uid, "job-name": name},
        **{"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name},
    }
    shown = dict(sorted({**expected, **given}.items()))
    return [
        invalid(f"spec.template.metadata.labels[{key}]", shown, f"must be '{value}'")
        for key, value in expected.items()
        if given.get(key, value) != value
    ]


def manual_errors(selector: dict | None, labels: dict) -> list[str]:
    if selector is None:
        return [required("spec.selector")]
    bad: list[str] = []
    placing_checks.selector_errors(selector, "spec.selector", bad)
    if bad or placing_checks.selects(selector, labels):
        return bad
    told = "`selector` does not match template `labels`"
    return [invalid("spec.template.metadata.labels", dict(sorted(labels.items())), told)]


def manager_errors(manager: str) -> list[str]:
    """Of the name of another controller that is to look after a job."""
    bad, path = list[str](), "spec.managedBy"
    host, _, rest = manager.partition("/")
    if not manager:
        return [required(path)]
    if not host or not rest:
        told = 'must be a domain-prefixed path (such as "acme.io/foo")'
        bad.append(invalid(path, manager, told))
    else:
        check_subdomain(host, path, bad)
        if not re.fullmatch(HTTP_PATH, rest):
            bad.append(
                invalid(path, rest, f"Invalid path (regex used for validation is '{HTTP_PATH}')")
            )
    if len(manager) > 63:
        bad.append(f"{path}: Too long: may not be more than 63 bytes")
    return bad


def dict_sorted(selector: dict) -> dict:
    return {key: dict(sorted(value.items())) for key, value in selector.items()}


def job_errors(spec: dict) -> list[str]:
    bad: list[str] = []
    for name in (*COUNTS, "backoffLimitPerIndex", "maxFailedIndexes"):
        not_negative(spec.get(name), f"spec.{name}", bad)
    mode, per_index, most = (
        spec.get("completionMode"),
        spec.get("backoffLimitPerIndex"),
        spec.get("maxFailedIndexes"),
    )
    if most is not None and per_index is None:
        bad.append(required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    if spec.get("managedBy") is not None:
        bad += manager_errors(spec["managedBy"])
    one_of(mode, ("NonIndexed", "Indexed"), "spec.completionMode", bad)
    completions = spec.get("completions")
    if mode == "Indexed":
        if completions is None:
            bad.append(required("spec.completions", "when completion mode is Indexed"))
        if (spec.get("parallelism") or 0) > MOST_INDEXES:
            told = f"must be less than or equal to {MOST_INDEXES} when completion mode is Indexed"
            bad.append(invalid("spec.parallelism", spec["parallelism"], told))
        if most is not None and completions is not None and most > completions:
            bad.append(
                invalid("spec.maxFailedIndexes", most, "must be less than or equal to completions")
            )
        large_errors(spec, bad)
    elif mode in (None, "NonIndexed"):
        for name, value in (("backoffLimitPerIndex", per_index), ("maxFailedIndexes", most)):
            if value is not None:
                bad.append(invalid(f"spec.{name}", value, "requires indexed completion mode"))
    if spec.get("podFailurePolicy") is not None:
        failure_errors(spec, bad)
    if spec.get("successPolicy") is not None:
        success_errors(spec, mode == "Indexed", bad)
    allowed = (
        ("Failed",)
        if spec.get("podFailurePolicy") is not None
        else ("Failed", "TerminatingOrFailed")
    )
    one_of(spec.get("podReplacementPolicy"), allowed, "spec.podReplacementPolicy", bad)
    return bad


def large_errors(spec: dict, bad: list[str]) -> None:
    """Of how many failures are kept of an indexed job, by their numbers."""
    completions, most = spec.get("completions") or 0, spec.get("maxFailedIndexes")
    per_index, many = spec.get("backoffLimitPerIndex") is not None, completions > MOST_INDEXES
    least = f"must be less than or equal to {MOST_INDEXES // 10} when completions are above "
    least += f"{MOST_INDEXES} and used with backoff limit per index"
    if most is not None and most > MOST_INDEXES:
        told = f"must be less than or equal to {MOST_INDEXES}"
        bad.append(invalid("spec.maxFailedIndexes", most, told))
    if not per_index or not many:
        return
    if most is None:
        told = f"must be specified when completions is above {MOST_INDEXES}"
        bad.append(required("spec.maxFailedIndexes", told))
    for key in ("parallelism", "maxFailedIndexes"):
        if (spec.get(key) or 0) > MOST_INDEXES // 10:
            bad.append(invalid(f"spec.{key}", spec[key], least))


def restart_errors(spec: dict, pod: dict) -> list[str]:
    policy, path = pod.get("restartPolicy") or "Always", "spec.template.spec.restartPolicy"
    if policy == "Always":
        return [required(path, 'valid values: "OnFailure", "Never"')]
    if policy not in ("OnFailure", "Never"):
        return [
            f'{path}: Unsupported value: "{policy}": supported values: {supported(("OnFailure", "Never"))}'
        ]
    if spec.get("podFailurePolicy") is not None and policy != "Never":
        return [
            invalid(path, policy, 'only "Never" is supported when podFailurePolicy is specified')
        ]
    return []


def name_errors(spec: dict, name: str) -> list[str]:
    """An indexed job's pods have host names of the job's name and their number."""
    if spec.get("completionMode") != "Indexed" or not (spec.get("completions") or 0) > 0:
        return []
    last = f"{name}-{spec['completions'] - 1}"
    if LABEL.fullmatch(last):
        return []
    return [
        invalid(
            "metadata.name", name, f"will not able to create pod with invalid DNS label: {last}"
        )
    ]


def failure_errors(spec: dict, bad: list[str]) -> None:
    rules = spec["podFailurePolicy"].get("rules") or []
    pod = (spec.get("template") or {}).get("spec") or {}
    names = {
        each.get("name")
        for kind in ("containers", "initContainers")
        for each in pod.get(kind) or []
    }
    too_many(rules, "spec.podFailurePolicy.rules", MOST_RULES, bad)
    for number, rule in enumerate(rules):
        path, action, codes = (
            f"spec.podFailurePolicy.rules[{number}]",
            rule.get("action"),
            rule.get("onExitCodes"),
        )
        conditions = rule.get("onPodConditions") or []
        if not action:
            bad.append(
                required(f"{path}.action", f"valid values: [{' '.join(map(json.dumps, ACTIONS))}]")
            )
        elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            bad.append(
                invalid(f"{path}.action", action, "requires the backoffLimitPerIndex to be set")
            )
        else:
            one_of(action, ACTIONS, f"{path}.action", bad)
        if codes is not None:
            code_errors(codes, f"{path}.onExitCodes", names, bad)
        too_many(conditions, f"{path}.onPodConditions", MOST_RULES, bad)
        for at, pattern in enumerate(conditions):
            check_key(pattern.get("type") or "", f"{path}.onPodConditions[{at}].type", bad)
            states = ("False", "True", "Unknown")
            one_of(
                pattern.get("status") or "True", states, f"{path}.onPodConditions[{at}].status", bad
            )
        if codes is not None and conditions:
            bad.append(
                f"{path}: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported"
            )
        if codes is None and not conditions:
            bad.append(
                f"{path}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required"
            )


def code_errors(codes: dict, path: str, names: set, bad: list[str]) -> None:
    operator, values, container = (
        codes.get("operator"),
        codes.get("values") or [],
        codes.get("containerName"),
    )
    if not operator:
        bad.append(required(f"{path}.operator", 'valid values: ["In" "NotIn"]'))
    else:
        one_of(operator, ("In", "NotIn"), f"{path}.operator", bad)
    if container is not None and container not in names:
        told = "must be one of the container or initContainer names in the pod template"
        bad.append(invalid(f"{path}.containerName", container, told))
    if not values:
        shown = "null" if codes.get("values") is None else "[]"
        bad.append(f"{path}.values: Invalid value: {shown}: at least one value is required")
    too_many(values, f"{path}.values", 255, bad)
    for number, value in enumerate(values):
        if operator == "In" and value == 0:
            bad.append(
                invalid(f"{path}.values[{number}]", value, "must not be 0 for the In operator")
            )
        if value in values[:number]:
            bad.append(f"{path}.values[{number}]: Duplicate value: {value}")
    if values != sorted(values):
        bad.append(invalid(f"{path}.values", values, "must be ordered"))


def success_errors(spec: dict, indexed: bool, bad: list[str]) -> None:
    rules, path = spec["successPolicy"].get("rules") or [], "spec.successPolicy"
    if not indexed:
        bad.append(invalid(path, shown_policy(rules), "requires indexed completion mode"))
        return
    if not rules:
        told = "at least one rules must be specified when the successPolicy is specified"
        bad.append(required(f"{path}.rules", told))
    too_many(rules, f"{path}.rules", MOST_RULES, bad)
    completions = spec.get("completions") or 0
    for number, rule in enumerate(rules):
        at, indexes, count = (
            f"{path}.rules[{number}]",
            rule.get("succeededIndexes"),
            rule.get("succeededCount"),
        )
        if indexes is None and count is None:
            bad.append(
                required(at, "at least one of succeededCount or succeededIndexes must be specified")
            )
        total = 0
        if indexes is not None:
            if len(indexes) > MOST_TEXT:
                told = f"Too long: may not be more than {MOST_TEXT} bytes"
                bad.append(f"{at}.succeededIndexes: {told}")
            try:
                total = len(indexes_in(indexes, completions))
            except ValueError as error:
                bad.append(
                    invalid(
                        f"{at}.succeededIndexes",
                        indexes,
                        f"error parsing succeededIndexes: {error}",
                    )
                )
        if count is None:
            continue
        not_negative(count, f"{at}.succeededCount", bad)
        for most, what in (
            (completions, "specified completions"),
            (total, "indexes in the specified succeededIndexes field"),
        ):
            if count > most and not (what.startswith("indexes") and indexes is None):
                told = f"must be less than or equal to {most} (the number of {what})"
                bad.append(invalid(f"{at}.succeededCount", count, told))


def shown_policy(rules: list[dict]) -> Any:
    """A policy as Go's own JSON shows it in a refusal."""
    return {
        "Rules": [
            {
                "SucceededIndexes": r.get("succeededIndexes"),
                "SucceededCount": r.get("succeededCount"),
            }
            for r in rules
        ]
    }


def indexes_in(text: str, completions: int) -> set[int]:
    """The numbers that `1,3-5` stands for; ValueError with Kubernetes' words for what is none."""
    found: set[int] = set()
    last: int | None = None
    for part in text.split(",") if text else []:
        ends = part.split("-")
        if len(ends) > 2:
            told = "violates the requirement that an index interval can have at most two parts separated by '-'"
            raise ValueError(f'the fragment "{part}" {told}')
        for end in ends:
            if not end.isdigit():
                raise ValueError(f'cannot convert string to integer for index: "{end}"')
            if int(end) >= completions:
                raise ValueError(f'too large index: "{end}"')
        first, until = int(ends[0]), int(ends[-1])
        if last is not None and last >= first:
            raise ValueError(f"non-increasing order, previous: {last}, current: {first}")
        if len(ends) == 2 and first >= until:
            raise ValueError(f"non-increasing order, previous: {first}, current: {until}")
        found |= set(range(first, until + 1))
        last = until
    return found


def too_many(rows: list, path: str, most: int, bad: list[str]) -> None:
    if len(rows) > most:
        bad.append(f"{path}: Too many: {len(rows)}: must have at most {most} items")
