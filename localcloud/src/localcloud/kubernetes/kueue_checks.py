"""Whether objects of Kueue's and Jobs for its queues may be, by the schemas and rules of its custom resources (v1beta2, as
of Kueue 0.19).

Custom resources are checked by the API server itself: other words than for Kubernetes' own kinds.

Not covered: fields of queues for topologies, MultiKueue and fair sharing are taken, and mean nothing
here.
"""

from __future__ import annotations

from typing import Any

from localcloud.kubernetes.kinds import Kind, Refusal
from localcloud.kubernetes.schema import QUANTITY
from localcloud.kubernetes.words import SUBDOMAIN, one_of, required

GROUP = "kueue.x-k8s.io"
VERSION = f"{GROUP}/v1beta2"
QUEUE = f"{GROUP}/queue-name"
POLICIES = ("None", "Hold", "HoldAndDrain")
STRATEGIES = ("StrictFIFO", "BestEffortFIFO")
ANY: dict[str, Any] = {}  # an object of which nothing is known here
QUANTITY_OF = "quantity"
QUOTA = {"name": str, "nominalQuota": QUANTITY_OF, "borrowingLimit": QUANTITY_OF}
QUOTA |= {"lendingLimit": QUANTITY_OF}
GROUP_OF_RESOURCES = {
    "coveredResources": [str],
    "flavors": [{"name": str, "resources": [QUOTA]}],
}
LABELS = {"matchLabels": ANY, "matchExpressions": [ANY]}
PREEMPTION = {"reclaimWithinCohort": str, "borrowWithinCohort": ANY, "withinClusterQueue": str}
POD_SET = {"name": str, "template": ANY, "count": int, "minCount": int, "topologyRequest": ANY}
SPECS: dict[str, dict[str, Any]] = {
    "LocalQueue": {"clusterQueue": str, "stopPolicy": str, "fairSharing": ANY},
    "ClusterQueue": {
        "resourceGroups": [GROUP_OF_RESOURCES],
        "cohortName": str,
        "queueingStrategy": str,
        "namespaceSelector": LABELS,
        "flavorFungibility": ANY,
        "preemption": PREEMPTION,
        "admissionChecksStrategy": ANY,
        "stopPolicy": str,
        "fairSharing": ANY,
        "admissionScope": ANY,
    },
    "ResourceFlavor": {
        "nodeLabels": ANY,
        "nodeTaints": [ANY],
        "tolerations": [ANY],
        "topologyName": str,
    },
    "Workload": {
        "podSets": [POD_SET],
        "queueName": str,
        "priorityClassRef": ANY,
        "priority": int,
        "active": bool,
        "maximumExecutionTimeSeconds": int,
        "preemptionGates": [ANY],
    },
}
NAMES: dict[type, str] = {str: "string", int: "integer", bool: "boolean"}
NAMES |= {list: "array", dict: "object"}
ENUMS = (("stopPolicy", POLICIES), ("queueingStrategy", STRATEGIES))


def check_form(kind: Kind, body: Any, strict: bool) -> None:
    """Raise the refusal of a body that does not fit its schema; unknown fields are taken out where
    the request is not strict.
    """
    unknown, wrong = errors(kind, body)
    if unknown and strict:
        message = f'{kind.name} in version "v1beta2" cannot be handled as a {kind.name}: '
        raise Refusal(400, "BadRequest", f"{message}strict decoding error: {', '.join(unknown)}")
    if wrong:
        name = (body.get("metadata") or {}).get("name", "")
        text = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
        message = f'{kind.name}.{GROUP} "{name}" is invalid: {text}'
        raise Refusal(422, "Invalid", message, name=name, group=GROUP, kind=kind.name)


def errors(kind: Kind, body: Any) -> tuple[list[str], list[str]]:
    """What of a body its schema does not know, which is taken out, and what has another type."""
    unknown: list[str] = []
    wrong: list[str] = []
    whole = {"apiVersion": str, "kind": str, "metadata": ANY, "status": ANY}
    look(body, {**whole, "spec": SPECS[kind.name]}, "", unknown, wrong)
    return unknown, wrong


def look(value: Any, wanted: Any, path: str, unknown: list[str], wrong: list[str]) -> None:
    """Note what of a value its schema does not know, and what has another type."""
    if value is None:
        return
    if isinstance(wanted, list):
        if not isinstance(value, list):
            wrong.append(of_type(path, value, "array"))
            return
        for number, each in enumerate(value):
            look(each, wanted[0], f"{path}[{number}]", unknown, wrong)
    elif isinstance(wanted, dict):
        look_at_fields(value, wanted, path, unknown, wrong)
    elif wanted == QUANTITY_OF:
        if not QUANTITY.fullmatch(str(value)):
            wrong.append(
                f'{path}: Invalid value: "{value}": {path} in body should match the pattern'
            )
    elif not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        wrong.append(of_type(path, value, NAMES[wanted]))


def look_at_fields(
    value: Any, wanted: dict[str, Any], path: str, unknown: list[str], wrong: list[str]
) -> None:
    if not isinstance(value, dict):
        wrong.append(of_type(path, value, "object"))
        return
    for key, inner in list(value.items()) if wanted else []:
        at = f"{path}.{key}" if path else key
        if key in wanted:
            look(inner, wanted[key], at, unknown, wrong)
        else:
            unknown.append(f'unknown field "{at}"')
            del value[key]


def of_type(path: str, value: Any, wanted: str) -> str:
    """The words for a wrong type, as of the API server for custom resources."""
    shown = NAMES.get(type(value), "number")
    return f'{path}: Invalid value: "{shown}": {path} in body must be of type {wanted}: "{shown}"'


def spec_errors(plural: str, spec: dict) -> list[str]:
    """What a spec that fits its schema still may not say."""
    bad: list[str] = []
    for key, allowed in ENUMS:
        one_of(spec.get(key), allowed, f"spec.{key}", bad)
    if plural == "clusterqueues":
        for number, group in enumerate(spec.get("resourceGroups") or []):
            group_errors(group, f"spec.resourceGroups[{number}]", bad)
        limits = [row.get("borrowingLimit") for row in quotas(spec)]
        if not spec.get("cohortName") and any(each is not None for each in limits):
            message = "borrowingLimit must be nil when cohort is empty"
            bad.append(f'spec: Invalid value: "object": {message}')
    if plural == "workloads" and not spec.get("podSets"):
        bad.append(required("spec.podSets"))
    return bad


def group_errors(group: dict, path: str, bad: list[str]) -> None:
    covered = group.get("coveredResources") or []
    for key in ("coveredResources", "flavors"):
        if not group.get(key):
            bad.append(required(f"{path}.{key}"))
    for number, flavor in enumerate(group.get("flavors") or []):
        at = f"{path}.flavors[{number}].resources"
        names = [row.get("name") for row in flavor.get("resources") or []]
        if len(names) != len(covered):
            message = "flavors must have the same number of resources as the coveredResources"
            bad.append(f'{path}: Invalid value: "object": {message}')
        elif names != covered:
            bad.append(f"{at}[0].name: Invalid value: must match the name in coveredResources")
        for index, row in enumerate(flavor.get("resources") or []):
            if row.get("nominalQuota") is None:
                bad.append(required(f"{at}[{index}].nominalQuota"))


def quotas(spec: dict) -> list[dict]:
    """Every resource of every flavor of a cluster queue."""
    groups = spec.get("resourceGroups") or []
    flavors = [flavor for group in groups for flavor in group.get("flavors") or []]
    return [row for flavor in flavors for row in flavor.get("resources") or []]


def default(job: dict) -> None:
    """Suspend a new Job that is for a queue, as the webhook does."""
    check_job(job, None)
    if queue_of(job):
        job["spec"]["suspend"] = True


def check_job(job: dict, before: dict | None) -> None:
    """Raise the webhook's refusal of a Job, be it made or changed."""
    name = queue_of(job)
    path = f"metadata.labels[{QUEUE}]"
    if name and not SUBDOMAIN.fullmatch(name):
        raise denied(f'{path}: Invalid value: "{name}": a lowercase RFC 1123 subdomain')
    runs = not job["spec"].get("suspend")
    if before is not None and runs and queue_of(before) != name:
        raise denied(f'{path}: Invalid value: "{name}": field is immutable')


def queue_of(job: dict) -> str:
    """The name of the queue that a Job is for; "" for none."""
    return (job["metadata"].get("labels") or {}).get(QUEUE, "")


def denied(why: str) -> Refusal:
    message = f'admission webhook "vjob.kb.io" denied the request: {why}'
    return Refusal(403, "Forbidden", message)
