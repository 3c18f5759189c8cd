"""What a request's query asks for: which objects, from which version, how many at once, how
strictly checked.

A list that is continued goes on in what is there now, as Kubernetes' does when its own copy of the
list has expired.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from aiohttp import web

from localcloud.kubernetes import kueue_checks, schema
from localcloud.kubernetes.kinds import Kind, Refusal, key_of
from localcloud.kubernetes.store import Selector, Store, field_term

NAMES = ("metadata.name", "metadata.namespace")
INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
# Fields by which objects of a kind can be chosen, beside their names.
CHOSEN_BY: dict[str, tuple[str, ...]] = {
    "pods": (
        *(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
        ),
        *("status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    "events": (
        *(f"involvedObject.{each}" for each in INVOLVED),
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "jobs": ("status.successful",),
    "replicasets": ("status.replicas",),
}


def selector(request: web.Request, kind: Kind) -> Selector:
    """Which objects a request means."""
    fields = request.query.get("fieldSelector", "")
    for term in filter(None, fields.split(",")):
        if field_term(term)[0] not in (*NAMES, *CHOSEN_BY.get(kind.plural, ())):
            raise Refusal(400, "BadRequest", f"field label not supported: {field_term(term)[0]}")
    return Selector(
        request.match_info.get("namespace", ""), request.query.get("labelSelector", ""), fields
    )


def number(request: web.Request, name: str) -> int | None:
    """A number of the query."""
    text = request.query.get(name, "")
    if text and not text.isdecimal():
        told = f'strconv.ParseInt: parsing "{text}": invalid syntax'
        raise Refusal(400, "BadRequest", f'Invalid value: "{text}": {told}')
    return int(text) if text else None


def match_errors(request: web.Request) -> list[str]:
    """What is wrong with how a list is to match a version."""
    query = request.query
    match, at, bad = query.get("resourceVersionMatch", ""), "resourceVersionMatch", []
    if not match:
        return []
    if not query.get("resourceVersion"):
        bad.append(f"{at}: Forbidden: {at} is forbidden unless resourceVersion is provided")
    if query.get("continue"):
        bad.append(f"{at}: Forbidden: {at} is forbidden when continue is provided")
    if match not in ("Exact", "NotOlderThan"):
        allowed = '"Exact", "NotOlderThan", ""'
        bad.append(f'{at}: Unsupported value: "{match}": supported values: {allowed}')
    if match == "Exact" and query.get("resourceVersion") == "0":
        bad.append(f'{at}: Forbidden: {at} "exact" is forbidden for resourceVersion "0"')
    return bad


def refuse_any(options: str, bad: list[str]) -> None:
    """Raise Kubernetes' refusal of options with which something is wrong."""
    if bad:
        text = bad[0] if len(bad) == 1 else f"[{', '.join(bad)}]"
        raise Refusal(422, "Invalid", f'{options} "" is invalid: {text}')


def version(request: web.Request, store: Store) -> int:
    """The version from which a list or a watch is to be; 0 for any."""
    if request.query.get("watch", "") in ("", "0", "false"):
        refuse_any("ListOptions.meta.k8s.io", match_errors(request))
    found = number(request, "resourceVersion") or 0
    if found > store.version:
        raise Refusal(
            504, "Timeout", f"Too large resource version: {found}, current: {store.version}"
        )
    return found


def page(
    request: web.Request, found: list[dict], store: Store
) -> tuple[list[dict], dict[str, Any]]:
    """The part of a list that a request asks for, in the order of names, and the metadata of the
    list.
    """
    found = sorted(found, key=key_of)
    meta: dict[str, Any] = {"resourceVersion": str(store.version)}
    if token := request.query.get("continue", ""):
        try:
            last = json.loads(base64.urlsafe_b64decode(token))
            found = [thing for thing in found if list(key_of(thing)) > last["start"]]
        except (ValueError, KeyError, TypeError, binascii.Error):
            raise Refusal(400, "BadRequest", f"continue key is not valid: {token}") from None
    limit = number(request, "limit")
    if not limit or len(found) <= limit:
        return found, meta
    after = {"v": "meta.k8s.io/v1", "rv": store.version, "start": key_of(found[limit - 1])}
    meta["continue"] = base64.urlsafe_b64encode(json.dumps(after).encode()).decode()
    if not (request.query.get("labelSelector") or request.query.get("fieldSelector")):
        meta["remainingItemCount"] = len(found) - limit
    return found[:limit], meta


MOST_MANAGER = 128  # bytes of the name of who manages fields


def flags(request: web.Request) -> tuple[bool, bool]:
    """Whether fields are checked strictly, and whether nothing is to be done."""
    query = request.query
    options = (
        f"{ {'PUT': 'Update', 'PATCH': 'Patch'}.get(request.method, 'Create') }Options.meta.k8s.io"
    )
    checked, dry = query.get("fieldValidation", "Warn"), query.getall("dryRun", [])
    bad = []
    if dry and dry != ["All"]:
        bad.append(f'dryRun: Unsupported value: {json.dumps(dry)}: supported values: "All"')
    if checked not in ("Strict", "Warn", "Ignore"):
        bad.append(
            f'fieldValidation: Unsupported value: "{checked}": supported values: "Ignore", "Strict", "Warn"'
        )
    if "apply-patch" in request.content_type and not query.get("fieldManager"):
        bad.append("fieldManager: Required value: is required for apply patch")
    manager = query.get("fieldManager", "")
    if len(manager) > MOST_MANAGER:
        bad.append(f"fieldManager: Too long: may not be more than {MOST_MANAGER} bytes")
    if not manager.isprintable():
        bad.append(
            f"fieldManager: Invalid value: {json.dumps(manager)}: should only contain printable characters"
        )
    refuse_any(options, bad)
    return checked == "Strict", bool(dry)


def warnings(request: web.Request, kind: Kind, body: Any) -> list[str]:
    """What an object has that Kubernetes does not know, if a request wants to be warned of it."""
    if request.query.get("fieldValidation", "Warn") != "Warn" or not isinstance(body, dict):
        return []
    if kind.group == kueue_checks.GROUP:
        return [*request.get("duplicates", []), *kueue_checks.errors(kind, body)[0]]
    unknown = [
        each
        for each in schema.errors(kind.api, kind.name, body)
        if each.startswith("unknown field")
    ]
    return [*request.get("duplicates", []), *unknown]
