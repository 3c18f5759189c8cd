"""Whether an object may be: its form, and what no schema says. The texts are those of a real
server of the version that clusters claim (plane.py).

Not covered: most of what Kubernetes checks of objects that are none of jobs, pods or what they
mount.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from localcloud.kubernetes import (
    job_checks,
    kueue_checks,
    object_checks,
    pod_checks,
    policy_checks,
    schema,
    workload_checks,
)
from localcloud.kubernetes.kinds import KINDS, Kind, Refusal
from localcloud.kubernetes.words import (
    check_key,
    check_label_name,
    check_label_value,
    check_labels,
    check_segment,
    check_subdomain,
    compact,
    required,
)

GATED = "cannot be set until all schedulingGates have been cleared"
REASONS = {
    "Required value": "FieldValueRequired",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "Duplicate value": "FieldValueDuplicate",
    "Not found": "FieldValueNotFound",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}
TEMPLATES = ("jobs", "deployments", "replicasets")


class Unfit(Refusal):
    """The decoder's 400 for a body that is no object of its kind."""

    def __init__(self, prefix: str, told: str):
        super().__init__(400, "BadRequest", prefix + told)
        self.told = told


def check_form(kind: Kind, body: Any, strict: bool) -> None:
    """Raise the decoder's 400 for a body of another kind, with wrong types or, if `strict`, with
    unknown fields.
    """
    if not isinstance(body, dict):
        told = "couldn't get version/kind; json parse error: not an object"
        raise Refusal(400, "BadRequest", told)
    name, api = body.get("kind") or kind.name, body.get("apiVersion") or kind.api
    prefix = f'{name} in version "{api.rpartition("/")[2]}" cannot be handled as a {kind.name}: '
    if (name, api) != (kind.name, kind.api):
        raise Unfit(prefix, other_kind(kind, name, api))
    if kind.group == kueue_checks.GROUP:
        kueue_checks.check_form(kind, body, strict)
        return
    found = schema.errors(kind.api, kind.name, body)
    types = [each for each in found if not each.startswith("unknown field")]
    if types:  # Go's decoder stops at the first wrong type
        raise Unfit(prefix, types[0])
    if at := object_checks.not_in_base64(kind.plural, body):
        raise Unfit(prefix, f"illegal base64 data at input byte {at.byte}")
    if found and strict:
        raise Unfit(prefix, f"strict decoding error: {', '.join(found)}")


def other_kind(kind: Kind, name: str, api: str) -> str:
    """What the decoder says of an object that is of another kind than it is to be."""
    if schema.is_known(api, name):
        inner = kind.group.partition(".")[0] or "core"
        return f"converting (v1.{name}) to ({inner}.{kind.name}): unknown conversion"
    told = f'no kind "{name}" is registered for version "{api}" in scheme '
    return told + '"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30"'


def refuse(kind: Kind, name: str, causes: list[str]) -> NoReturn:
    refuse_as(kind.name, kind.group, name, causes)


def refuse_as(kind: str, group: str, name: str, causes: list[str]) -> NoReturn:
    """Raise the 422 of an object of a kind, or of what is called so."""
    shown = f"{kind}.{group}".rstrip(".")
    different = [*dict.fromkeys(causes)]
    text = different[0] if len(different) == 1 else f"[{', '.join(different)}]"
    message = f'{shown} "{name}" is invalid: {text}'
    told = [cause(each) for each in causes]
    raise Refusal(422, "Invalid", message, name=name, group=group, kind=kind, causes=told)


def cause(text: str) -> dict[str, str]:
    """One of the causes of a refusal as clients get it: `spec.a: Invalid value: 1: too small`."""
    field, _, message = text.partition(": ")
    reason = next(
        (reason for start, reason in REASONS.items() if message.startswith(start)),
        "FieldValueInvalid",
    )
    return {"reason": reason, "message": message, "field": field}


def check_meaning(plural: str, body: dict) -> None:
    """Raise the 422 for a body that fits its schema and still may not be."""
    meta, spec = body["metadata"], body.get("spec") or {}
    bad: list[str] = []
    check_metadata(plural, meta, bad)
    bad += object_checks.object_errors(plural, body)
    bad += policy_checks.policy_errors(plural, spec)
    if plural == "priorityclasses":
        bad += policy_checks.class_errors(body)
    if KINDS[plural].group == kueue_checks.GROUP:
        bad += kueue_checks.spec_errors(plural, spec)
    if plural == "pods":
        bad += pod_checks.pod_errors(spec, "spec") + pod_checks.image_errors(spec)
    elif plural == "services":
        bad += workload_checks.service_errors(spec)
    elif plural in TEMPLATES:
        template = spec.get("template") or {}
        if plural == "jobs":
            if spec.get("selector") and not spec.get("manualSelector"):
                bad += job_checks.selector_errors(meta["name"], meta["uid"], spec)
            bad += job_checks.label_errors(meta.get("name", ""), meta.get("uid", ""), spec)
            bad += job_checks.job_errors(spec)
        else:
            bad += workload_checks.replica_errors(plural, spec)
        if plural == "jobs" and not spec.get("manualSelector"):
            # The name is a label of its pods, too.
            check_label_value(meta.get("name", ""), "spec.template.labels", bad)
        bad += pod_checks.template_errors(template, "spec.template")
        if plural == "jobs":
            bad += job_checks.restart_errors(spec, template.get("spec") or {})
            bad += job_checks.name_errors(spec, meta.get("name", ""))
    if bad:
        refuse(KINDS[plural], meta.get("name", ""), bad)


def check_new(plural: str, body: dict) -> None:
    """Raise the 422 for what only comes into an object later."""
    spec = (body.get("spec") or {}) if plural == "pods" else {}
    if spec.get("schedulingGates") and spec.get("nodeName"):
        told = f"spec.nodeName: Forbidden: {GATED}"
        refuse(KINDS[plural], body["metadata"].get("name", ""), [told])
    if plural == "pods" and (body.get("spec") or {}).get("ephemeralContainers"):
        told = "spec.ephemeralContainers: Forbidden: cannot be set on create"
        refuse(KINDS[plural], body["metadata"].get("name", ""), [told])


def check_metadata(plural: str, meta: dict, bad: list[str]) -> None:
    name = meta.get("name", "")
    # names such as system:node
    free = plural in (
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
        "events",
        "poddisruptionbudgets",
    )
    check = check_segment if free else check_subdomain
    if plural in ("services", "namespaces"):
        check = check_label_name
    if start := meta.get("generateName"):
        check_start(start, check, bad)
    if name:
        check(name, "metadata.name", bad)
    else:
        bad.append(required("metadata.name", "name or generateName is required"))
    check_labels(meta.get("labels"), "metadata.labels", bad)
    for key in meta.get("annotations") or {}:
        check_key(key.lower(), "metadata.annotations", bad)
    bad += object_checks.annotation_errors(meta.get("annotations"), "metadata.annotations")
    bad += object_checks.owner_errors(meta.get("ownerReferences") or [])
    bad += object_checks.finalizer_errors(meta.get("finalizers"))


def check_start(start: str, check: Callable[[str, str, list[str]], None], bad: list[str]) -> None:
    """How names that Kubernetes makes up begin: as names do, and a hyphen may be their end."""
    told: list[str] = []
    whole = re.sub(".-$", "a", start)
    check(whole, "metadata.generateName", told)
    bad += [each.replace(compact(whole), compact(start), 1) for each in told]
