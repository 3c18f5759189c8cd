"""Whether an object may be: its form, and what no schema says. The texts are those of a real
server of the version that clusters claim (plane.py).

Covered is what Berg, kubectl and lightkube send; Kubernetes checks much more.
"""

from __future__ import annotations

from typing import Any, NoReturn

from localcloud.kubernetes import job_checks, object_checks, pod_checks, schema
from localcloud.kubernetes.kinds import KINDS, Kind, Refusal
from localcloud.kubernetes.words import check_label_value

REASONS = {
    "Required value": "FieldValueRequired",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "Duplicate value": "FieldValueDuplicate",
    "Not found": "FieldValueNotFound",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}


class Unfit(Refusal):
    """The decoder's 400 for a body that is no object of its kind."""

    def __init__(self, prefix: str, message: str):
        super().__init__(400, "BadRequest", prefix + message)
        self.detail = message


def check_form(kind: Kind, body: Any, strict: bool) -> None:
    """Raise the decoder's 400 for a body of another kind, with wrong types or, if `strict`, with
    unknown fields.
    """
    if not isinstance(body, dict):
        message = "couldn't get version/kind; json parse error: not an object"
        raise Refusal(400, "BadRequest", message)
    name, api = body.get("kind") or kind.name, body.get("apiVersion") or kind.api
    prefix = f'{name} in version "{api.rpartition("/")[2]}" cannot be handled as a {kind.name}: '
    if (name, api) != (kind.name, kind.api):
        raise Unfit(prefix, f'no kind "{name}" is registered for version "{api}" here')
    found = schema.errors(kind.api, kind.name, body)
    types = [each for each in found if not each.startswith("unknown field")]
    if types:  # Go's decoder stops at the first wrong type
        raise Unfit(prefix, types[0])
    if (at := object_checks.not_in_base64(kind.plural, body)) is not None:
        raise Unfit(prefix, f"illegal base64 data at input byte {at}")
    if found and strict:
        raise Unfit(prefix, f"strict decoding error: {', '.join(found)}")


def refuse(kind: Kind, name: str, causes: list[str]) -> NoReturn:
    refuse_as(kind.name, kind.group, name, causes)


def refuse_as(kind: str, group: str, name: str, causes: list[str]) -> NoReturn:
    """Raise the 422 of an object of a kind, or of what is called so."""
    shown = f"{kind}.{group}".rstrip(".")
    different = [*dict.fromkeys(causes)]
    text = different[0] if len(different) == 1 else f"[{', '.join(different)}]"
    message = f'{shown} "{name}" is invalid: {text}'
    detail = [cause(each) for each in causes]
    raise Refusal(422, "Invalid", message, name=name, group=group, kind=kind, causes=detail)


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
    bad = object_checks.metadata_errors(plural, meta) + object_checks.object_errors(plural, body)
    if plural == "pods":
        bad += pod_checks.pod_errors(spec, "spec")
    if plural == "jobs":
        bad += pod_checks.template_errors(spec.get("template") or {}, "spec.template")
        bad += job_checks.job_errors(spec, meta)
        if not spec.get("manualSelector"):  # the name is a label of its pods, too
            check_label_value(meta.get("name", ""), "spec.template.labels", bad)
    if bad:
        refuse(KINDS[plural], meta.get("name", ""), bad)
