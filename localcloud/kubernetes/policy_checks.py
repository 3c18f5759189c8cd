"""What Kubernetes checks of budgets of disruptions, quotas, ranges of limits and leases beside their
schema, in its words.
"""

from __future__ import annotations

import re
from typing import Any

from localcloud.kubernetes.placing_checks import selector_errors
from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.volume_checks import disk_errors
from localcloud.kubernetes.words import (
    check_key,
    compact,
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
COUNTED: tuple[str, ...] = (
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
)
COUNTED += ("persistentvolumeclaims", "services.nodeports", "services.loadbalancers")
MEASURED: tuple[str, ...] = ("cpu", "memory", "ephemeral-storage", "requests.storage")
MEASURED += tuple(
    f"{kind}.{name}"
    for kind in ("requests", "limits")
    for name in ("cpu", "memory", "ephemeral-storage")
)


# Of a range of limits: what is at most what, the field that the refusal names, and which of the
# two values it shows.
ORDERED = (
    ("min", "max", "min", 0),
    ("min", "defaultRequest", "defaultRequest", 1),
    ("defaultRequest", "max", "defaultRequest", 0),
    ("defaultRequest", "default", "defaultRequest", 0),
    ("min", "default", "default", 0),
    ("default", "max", "default", 1),
)
CALLED = {"defaultRequest": "default request"}
RANGED = ("Container", "PersistentVolumeClaim", "Pod")  # what ranges of limits are for
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
        quota_errors(spec.get("hard") or {}, bad)
        scope_errors(spec.get("scopes") or [], {*(spec.get("hard") or {})}, bad)
        selector = spec.get("scopeSelector") or {}
        requirement_errors(selector, {*(spec.get("hard") or {})}, bad)
    elif plural == "limitranges":
        range_errors(spec.get("limits") or [], bad)
    elif plural == "leases":
        lease_errors(spec, bad)
    elif plural == "persistentvolumeclaims":
        disk_errors(spec, "spec", bad)
    return bad


def class_errors(body: dict) -> list[str]:
    """Of a class of priority."""
    name, value, bad = body["metadata"].get("name", ""), body.get("value", 0), list[str]()
    if name.startswith("system-"):
        told = "priority class names with 'system-' prefix are reserved for system use only"
        why = f"{name} is not a known system priority class"
        bad.append(f"metadata.name: Forbidden: {told}. error: {why}")
    elif value > MOST_PRIORITY:
        told = f"maximum allowed value of a user defined priority is {MOST_PRIORITY}"
        bad.append(f"value: Forbidden: {told}")
    policies = ("PreemptLowerPriority", "Never")
    one_of(body.get("preemptionPolicy") or policies[0], policies, "preemptionPolicy", bad)
    return bad


def does_not_fit(scope: str, names: set[str]) -> bool:
    """Whether a quota of pods of one kind is to hold for what is no matter of that kind."""
    known = {name for name in names if name in (*COUNTED, *MEASURED)}
    if scope == "BestEffort":
        return bool(known - {"pods"})
    if scope in OF_PODS:
        return bool(known - {"pods", *OF_CONTAINERS})
    return False


def scope_errors(scopes: list[str], names: set[str], bad: list[str]) -> None:
    if {*scopes} - SCOPES:
        bad.append(invalid("spec.scopes", scopes, "unsupported scope"))
    if any(does_not_fit(scope, names) for scope in scopes):
        bad.append(invalid("spec.scopes", scopes, "unsupported scope applied to resource"))
    if any({*pair} <= {*scopes} for pair in OPPOSITE):
        bad.append(invalid("spec.scopes", scopes, "conflicting scopes"))


def requirement_errors(selector: dict, names: set[str], bad: list[str]) -> None:
    """Of a quota's scopes where they are said as a selector."""
    path = "spec.scopeSelector.matchExpressions"
    for row in selector.get("matchExpressions") or []:
        scope, operator = row.get("scopeName", ""), row.get("operator", "")
        if scope not in SCOPES:
            bad.append(invalid(f"{path}.scopeName", scope, "unsupported scope"))
        if does_not_fit(scope, names):
            bad.append(invalid(path, selector, "unsupported scope applied to resource"))
        if scope in (*OF_PODS, "BestEffort") and scope != "PriorityClass" and operator != "Exists":
            told = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, "
            told += "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, "
            told += "ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
            bad.append(invalid(f"{path}.operator", operator, told))
        if operator in ("In", "NotIn") and not row.get("values"):
            told = (
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            )
            bad.append(required(f"{path}.values", told))
        elif operator in ("Exists", "DoesNotExist") and row.get("values"):
            told = (
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            )
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
        path = f"spec.hard[{name}]"
        is_known = name in (*COUNTED, *MEASURED) or "/" in name
        if is_known or name.startswith(("requests.hugepages-", "hugepages-")):
            check_key(name, path, bad)
        else:
            told = "must be a standard resource type or fully qualified"
            bad.append(invalid(path, name, told))
            bad.append(invalid(path, name, "must be a standard resource for quota"))
        if amount(quantity) < 0:
            told = "must be greater than or equal to 0"
            bad.append(f'{path}: Invalid value: "{canonical(quantity)}": {told}')
        extended = "/" in name and not re.match("requests[.]|.*kubernetes.io/", name)
        if (name in COUNTED or extended) and amount(quantity) != int(amount(quantity)):
            bad.append(f'{path}: Invalid value: "{canonical(quantity)}": must be an integer')


def range_errors(rows: list[dict], bad: list[str]) -> None:
    kinds = [row.get("type") or "" for row in rows]
    for number, row in enumerate(rows):
        path, kind = f"spec.limits[{number}]", kinds[number]
        check_key(kind, f"{path}.type", bad)
        if kind and "/" not in kind and kind not in RANGED:
            told = "must be a standard limit type or fully qualified"
            bad.append(invalid(f"{path}.type", kind, told))
        if kind in kinds[:number]:
            bad.append(f'{path}.type: Duplicate value: "{kind}"')
        for key in ("default", "defaultRequest") if kind == "Pod" else ():
            if row.get(key):
                bad.append(f"{path}.{key}: Forbidden: may not be specified when `type` is 'Pod'")
        bounds = {*(row.get("min") or {}), *(row.get("max") or {})}
        if kind == "PersistentVolumeClaim" and "storage" not in bounds:
            told = "either minimum or maximum storage value is required, but neither was provided"
            bad.append(required(f"{path}.limits", told))
        order_errors(row, path, bad)
        for name, ratio in (row.get("maxLimitRequestRatio") or {}).items():
            if amount(ratio) < 1:
                told = f"ratio {canonical(ratio)} is less than 1"
                at = f"{path}.maxLimitRequestRatio[{name}]"
                bad.append(invalid(at, canonical(ratio), told))


def order_errors(row: dict, path: str, bad: list[str]) -> None:
    """Of the bounds of one kind, of which some are not above others."""
    for least, most, field, shown in ORDERED:
        low, high = row.get(least) or {}, row.get(most) or {}
        upper = "default limit" if (least, most) == ORDERED[3][:2] else CALLED.get(most, most)
        for name in low.keys() & high.keys():
            if amount(low[name]) > amount(high[name]):
                values = canonical(low[name]), canonical(high[name])
                told = f"{CALLED.get(least, least)} value {values[0]} is greater than "
                told += f"{upper} value {values[1]}"
                bad.append(invalid(f"{path}.{field}[{name}]", values[shown], told))


def lease_errors(spec: dict, bad: list[str]) -> None:
    seconds, count = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        bad.append(invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    not_negative(count, "spec.leaseTransitions", bad)
