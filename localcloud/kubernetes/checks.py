"""Whether an object may be: its form, and what no schema says. The texts are those of a real
server of the version that clusters claim (plane.py).

Not covered: most of what Kubernetes checks of objects that are none of jobs, pods or what they
mount.
"""

from __future__ import annotations

import re
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
    check_labels,
    check_segment,
    check_subdomain,
    compact,
    invalid,
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


def check_form(kind: Kind, body: Any, strict: bool) -> None:
    """Raise the decoder's 400 for a body of another kind, with wrong types or, if `strict`, with
    unknown fields.
    """
    version = kind.api.rpartition("/")[2]
    prefix = f'{kind.name} in version "{version}" cannot be handled as a {kind.name}: '
    if not isinstance(body, dict):
        raise Refusal(
            400, "BadRequest", "couldn't get version/kind; json parse error: not an object"
        )
    if body.get("kind", kind.name) != kind.name or body.get("apiVersion", kind.api) != kind.api:
        told = f'no kind "{body.get("kind")}" is registered for version "{body.get("apiVersion")}" in scheme '
        told += '"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30"'
        raise Refusal(
            400,
            "BadRequest",
            f'{body.get("kind")} in version "{version}" cannot be handled as a {kind.name}: {told}',
        )
    if kind.group == kueue_checks.GROUP:
        kueue_checks.check_form(kind, body, strict)
        return
    found = schema.errors(kind.api, kind.name, body)
    types = [each for each in found if not each.startswith("unknown field")]
    if types:  # Go's decoder stops at the first wrong type
        raise Refusal(400, "BadRequest", prefix + types[0])
    if at := object_checks.not_in_base64(kind.plural, body):
        raise Refusal(400, "BadRequest", f"{prefix}illegal base64 data at input byte {at.byte}")
    if found and strict:
        raise Refusal(400, "BadRequest", f"{prefix}strict decoding error: {', '.join(found)}")


def refuse(kind: Kind, name: str, causes: list[str]) -> NoReturn:
    shown = f"{kind.name}.{kind.group}".rstrip(".")
    text = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    message = f'{shown} "{name}" is invalid: {text}'
    told = [cause(each) for each in causes]
    raise Refusal(422, "Invalid", message, name=name, group=kind.group, kind=kind.name, causes=told)


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
    if KINDS[plural].group == kueue_checks.GROUP:
        bad += kueue_checks.spec_errors(plural, spec)
    if plural == "pods":
        bad += pod_checks.pod_errors(spec, "spec")
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
    )
    if not name:
        bad.append(required("metadata.name", "name or generateName is required"))
    elif plural in ("services", "namespaces"):
        check_label_name(name, "metadata.name", bad)
    elif free:
        check_segment(name, "metadata.name", bad)
    else:
        check_subdomain(name, "metadata.name", bad)
    if start := meta.get("generateName"):
        check_start(start, free, bad)
    check_labels(meta.get("labels"), "metadata.labels", bad)
    for key in meta.get("annotations") or {}:
        check_key(key.lower(), "metadata.annotations", bad)
    bad += object_checks.annotation_errors(meta.get("annotations"), "metadata.annotations")
    bad += object_checks.finalizer_errors(meta.get("finalizers"))
    owners = meta.get("ownerReferences") or []
    first, *others = [
        f"{owner.get('kind', '')}/{owner.get('name', '')}"
        for owner in owners
        if owner.get("controller")
    ] or [""]
    if others:
        told = 'Only one reference can have Controller set to true. Found "true" in references for '
        bad.append(invalid("metadata.ownerReferences", owners, f"{told}{first} and {others[0]}"))
    for owner in owners:
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            told = "/v1, Kind=Event is disallowed from being an owner"
            bad.append(invalid("metadata.ownerReferences", owner, told))
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                told = "version must not be empty" if key == "apiVersion" else "must not be empty"
                bad.append(invalid(f"metadata.ownerReferences.{key}", "", told))


def check_start(start: str, free: bool, bad: list[str]) -> None:
    """How names that Kubernetes makes up begin: as names do, and a hyphen may be their end."""
    told: list[str] = []
    whole = re.sub("-$", "a", start)
    if free:
        check_segment(whole, "metadata.generateName", told)
    else:
        check_subdomain(whole, "metadata.generateName", told)
    bad += [each.replace(compact(whole), compact(start), 1) for each in told]
