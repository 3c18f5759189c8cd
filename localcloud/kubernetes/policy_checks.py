"""What Kubernetes checks of budgets of disruptions, quotas, ranges of limits and leases beside their
schema, in its words.
"""

from __future__ import annotations

import re
from typing import Any

from localcloud.kubernetes.placing_checks import selector_errors
from localcloud.kubernetes.resource_checks import (
    COUNTED,
    MEASURED,
    PAGES,
    amount_errors,
    fill_range,
    quota_name_errors,
    range_errors,
)
from localcloud.kubernetes.volume_checks import disk_errors, fill_source
from localcloud.kubernetes.words import (
    compact,
    in_go,
    invalid,
    not_negative,
    one_of,
    required,
)

PERCENT_RULE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)
MOST_PRIORITY = 1_000_000_000
PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
OF_CLAIMS = ("persistentvolumeclaims", "requests.storage")
OF_CONTAINERS = {name for name in MEASURED if "storage" not in name}
OF_PODS: tuple[str, ...] = ("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass")
OF_PODS += ("CrossNamespacePodAffinity",)
OPPOSITE = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
SCOPES = {
    *("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass"),
    *("CrossNamespacePodAffinity", "VolumeAttributesClass"),
}


def policy_errors(plural: str, spec: dict) -> list[str]:
    """Of an object of one of the kinds that this module knows."""
    bad: list[str] = []
    if plural == "poddisruptionbudgets":
        budget_errors(spec, bad)
    elif plural == "resourcequotas":
        names = sorted(spec.get("hard") or {})
        quota_errors(spec.get("hard") or {}, bad)
        scope_errors(spec.get("scopes") or [], names, bad)
        requirement_errors(spec, names, bad)
    elif plural == "limitranges":
        rows = spec.get("limits") or []
        for row in rows:
            fill_range(row)
        range_errors(rows, bad)
    elif plural == "leases":
        lease_errors(spec, bad)
    elif plural == "persistentvolumeclaims":
        fill_source(spec)
        disk_errors(spec, "spec", bad)
    return bad


def class_errors(body: dict) -> list[str]:
    """Of a class of priority."""
    name, value, bad = body["metadata"].get("name", ""), body.get("value", 0), list[str]()
    if name.startswith("system-"):
        told = "priority class names with 'system-' prefix are reserved for system use only"
        if why := unlike_own(name, value, bool(body.get("globalDefault"))):
            bad.append(f"metadata.name: Forbidden: {told}. error: {why}")
    elif value > MOST_PRIORITY:
        told = f"maximum allowed value of a user defined priority is {MOST_PRIORITY}"
        bad.append(f"value: Forbidden: {told}")
    policies = ("PreemptLowerPriority", "Never")
    one_of(body.get("preemptionPolicy") or policies[0], policies, "preemptionPolicy", bad)
    return bad


def unlike_own(name: str, value: int, is_default: bool) -> str:
    """How a class of priority differs from Kubernetes' own of that name."""
    if name not in PRIORITIES:
        return f"{name} is not a known system priority class"
    if value != PRIORITIES[name]:
        return f"value of {name} PriorityClass must be {PRIORITIES[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if is_default else ""


def does_not_fit(scope: str, name: str) -> bool:
    """Whether a quota of a resource cannot be for what is of one kind alone."""
    if name not in (*COUNTED, *MEASURED) and not name.startswith(PAGES):
        return False
    if scope == "BestEffort":
        return name != "pods"
    if scope in OF_PODS:
        return name not in ("pods", *OF_CONTAINERS)
    return scope == "VolumeAttributesClass" and name not in OF_CLAIMS


def scope_errors(scopes: list[str], names: list[str], bad: list[str]) -> None:
    for scope in scopes:
        if scope not in SCOPES:
            bad.append(invalid("spec.scopes", scopes, "unsupported scope"))
        misfits = [name for name in names if does_not_fit(scope, name)]
        told = invalid("spec.scopes", scopes, "unsupported scope applied to resource")
        bad += [told] * len(misfits)
    if any({*pair} <= {*scopes} for pair in OPPOSITE):
        bad.append(invalid("spec.scopes", scopes, "conflicting scopes"))


def requirement_errors(spec: dict, names: list[str], bad: list[str]) -> None:
    """Of a quota's scopes where they are said as a selector."""
    path = "spec.scopeSelector.matchExpressions"
    rows = (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    shown = {"MatchExpressions": [in_go(("ScopeName", "Operator", "Values"), row) for row in rows]}
    for row in rows:
        scope, operator = row.get("scopeName", ""), row.get("operator", "")
        if scope not in SCOPES:
            bad.append(invalid(f"{path}.scopeName", scope, "unsupported scope"))
        misfits = [name for name in names if does_not_fit(scope, name)]
        bad += [invalid(path, shown, "unsupported scope applied to resource")] * len(misfits)
        if scope in (*OF_PODS, "BestEffort") and scope != "PriorityClass" and operator != "Exists":
            told = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "
            told += "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, "
            told += "ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
            bad.append(invalid(f"{path}.operator", operator, told))
        operator_errors(row, path, bad)
    chosen = {row.get("scopeName") for row in rows}
    if any({*pair} <= chosen for pair in OPPOSITE):
        bad.append(invalid(path, spec.get("scopes"), "conflicting scopes"))


def operator_errors(row: dict, path: str, bad: list[str]) -> None:
    operator, when = row.get("operator", ""), "when `operator` is"
    if operator in ("In", "NotIn") and not row.get("values"):
        told = f"must be at least one value {when} 'In' or 'NotIn' for scope selector"
        bad.append(required(f"{path}.values", told))
    elif operator in ("Exists", "DoesNotExist") and row.get("values"):
        told = f"must be no value {when} 'Exist' or 'DoesNotExist' for scope selector"
        bad.append(invalid(f"{path}.values", row["values"], told))
    elif operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
        bad.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))


def count_errors(value: Any, path: str, bad: list[str], most: bool = True) -> None:
    """Of a number, or of a percentage of at most 100."""
    if value is None:
        return
    if isinstance(value, int):
        not_negative(value, path, bad)
    elif not re.fullmatch("[0-9]+%", value):
        bad.append(invalid(path, value, PERCENT_RULE))
    elif most and int(value[:-1]) > 100:
        bad.append(invalid(path, value, "must not be greater than 100%"))


def budget_errors(spec: dict, bad: list[str]) -> None:
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        told = "minAvailable and maxUnavailable cannot be both set"
        names = ("minAvailable", "selector", "maxUnavailable", "unhealthyPodEvictionPolicy")
        shown = {name[0].upper() + name[1:]: spec.get(name) for name in names}
        bad.append(f"spec: Invalid value: {compact(shown)}: {told}")
    for key in ("minAvailable", "maxUnavailable"):
        count_errors(spec.get(key), f"spec.{key}", bad)
    policies = ("AlwaysAllow", "IfHealthyBudget")
    chosen, path = spec.get("unhealthyPodEvictionPolicy"), "spec.unhealthyPodEvictionPolicy"
    one_of(chosen, policies, path, bad)
    selector_errors(spec.get("selector"), "spec.selector", bad)


def quota_errors(hard: dict, bad: list[str]) -> None:
    for name, quantity in hard.items():
        quota_name_errors(name, f"spec.hard[{name}]", bad)
        amount_errors(name, quantity, f"spec.hard[{name}]", bad)


def lease_errors(spec: dict, bad: list[str]) -> None:
    seconds, count = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        bad.append(invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    not_negative(count, "spec.leaseTransitions", bad)
