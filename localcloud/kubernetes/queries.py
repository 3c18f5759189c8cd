"""What a request's query asks for: which objects, from which version, how many at once, how
strictly checked.

A list that is continued goes on in what is there now, as Kubernetes' does when its own copy of the
list has expired.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from aiohttp import web

from localcloud.kubernetes import checks, gojson, kueue_checks, schema
from localcloud.kubernetes.kinds import Kind, Refusal, key_of
from localcloud.kubernetes.store import Selector, Store

NAMES = ("metadata.name", "metadata.namespace")
NAMED_ALONE = ("nodes", "namespaces")  # kinds outside namespaces that say by what they are chosen
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
    query = request.query
    chosen = Selector(
        request.match_info.get("namespace", ""),
        query.get("labelSelector", ""),
        query.get("fieldSelector", ""),
    )
    for field, _, _ in chosen.fields:
        names = NAMES[:1] if kind.plural in NAMED_ALONE else NAMES
        if field not in (*names, *CHOSEN_BY.get(kind.plural, ())):
            raise Refusal(400, "BadRequest", unknown_field(kind, field))
    return chosen


def unknown_field(kind: Kind, field: str) -> str:
    if kind.plural == "jobs":
        return f'field label "{field}" not supported for batchv1.Job'
    if kind.plural in CHOSEN_BY or kind.group == kueue_checks.GROUP:
        return f"field label not supported: {field}"
    return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def number(request: web.Request, name: str) -> int | None:
    """A number of the query."""
    text = request.query.get(name, "")
    if text and not re.fullmatch("[+-]?[0-9]+", text):
        told = f'strconv.ParseInt: parsing "{text}": invalid syntax'
        raise Refusal(400, "BadRequest", told)
    return int(text) if text else None


def is_true(request: web.Request, name: str) -> bool:
    """Whether a query says so: a field that is there and neither 0 nor false."""
    return request.query.get(name, "false").lower() not in ("0", "false")


def list_errors(request: web.Request) -> list[str]:
    """What is wrong with how a list is to match a version."""
    query = request.query
    match, at, bad = query.get("resourceVersionMatch", ""), "resourceVersionMatch", []
    if match and not query.get("resourceVersion"):
        bad.append(f"{at}: Forbidden: {at} is forbidden unless resourceVersion is provided")
    if match and query.get("continue"):
        bad.append(f"{at}: Forbidden: {at} is forbidden when continue is provided")
    if match not in ("", "Exact", "NotOlderThan"):
        allowed = '"Exact", "NotOlderThan", ""'
        bad.append(f'{at}: Unsupported value: "{match}": supported values: {allowed}')
    if match == "Exact" and query.get("resourceVersion") == "0":
        bad.append(f'{at}: Forbidden: {at} "exact" is forbidden for resourceVersion "0"')
    if "sendInitialEvents" in query:
        told = "sendInitialEvents is forbidden for list"
        bad.append(f"sendInitialEvents: Forbidden: {told}")
    return bad


def watch_errors(request: web.Request) -> list[str]:
    """What is wrong with how a watch is to begin."""
    query, at, bad = request.query, "resourceVersionMatch", []
    match = query.get(at, "")
    if "sendInitialEvents" in query and match != "NotOlderThan":
        told = f"sendInitialEvents requires setting {at} to NotOlderThan"
        bad.append(f"{at}: Forbidden: {told}")
    if match and "sendInitialEvents" not in query:
        told = f"{at} is forbidden for watch unless sendInitialEvents is provided"
        bad.append(f"{at}: Forbidden: {told}")
    if match not in ("", "NotOlderThan"):
        bad.append(f'{at}: Unsupported value: "{match}": supported values: "NotOlderThan"')
    if match and query.get("continue"):
        bad.append(f"{at}: Forbidden: {at} is forbidden when continue is provided")
    return bad


def refuse_any(options: str, bad: list[str]) -> None:
    """Raise Kubernetes' refusal of options with which something is wrong."""
    if bad:
        kind, _, group = options.partition(".")
        checks.refuse_as(kind, group, "", bad)


def version(request: web.Request, store: Store) -> int:
    """The version from which a list or a watch is to be; 0 for any."""
    number(request, "limit")
    number(request, "timeoutSeconds")
    watches = is_true(request, "watch")
    bad = watch_errors(request) if watches else list_errors(request)
    refuse_any("ListOptions.meta.k8s.io", bad)
    text = request.query.get("resourceVersion", "")
    if text and not text.isdecimal():
        told = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise Refusal(400, "BadRequest", f'resourceVersion: Invalid value: "{text}": {told}')
    found = int(text or 0)
    if found > store.version:
        raise too_large(found, store.version)
    return found


def too_large(found: int, current: int) -> Refusal:
    told = f"Too large resource version: {found}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(504, "Timeout", told, causes=[cause], retryAfterSeconds=1)


def start_of(token: str, request: web.Request) -> list[str]:
    """The key after which a list goes on."""
    try:
        found = gojson.loads(decoded(token).decode(errors="replace"))
    except gojson.Broken as error:
        raise bad_token(str(error)) from None
    if not isinstance(found, dict) or found.get("v") != "meta.k8s.io/v1":
        known = found.get("v", "") if isinstance(found, dict) else ""
        raise bad_token(f'server does not recognize this encoded version "{known}"')
    if not found.get("start"):
        raise bad_token("encoded start key empty (version meta.k8s.io/v1)")
    if request.query.get("resourceVersion", "0") not in ("", "0"):
        told = "specifying resource version is not allowed when using continue"
        raise Refusal(400, "BadRequest", told)
    return list(found["start"])


def decoded(token: str) -> bytes:
    """The bytes of a token in base64 for URLs, without padding."""
    odd = re.search("[^-A-Za-z0-9_]", token)
    at = odd.start() if odd else len(token) - 1 if len(token) % 4 == 1 else None
    if at is not None:
        raise gojson.Broken(f"illegal base64 data at input byte {at}")
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


def bad_token(why: str) -> Refusal:
    told = f"invalid continue token: continue key is not valid: {why}"
    return Refusal(400, "BadRequest", told)


def page(
    request: web.Request, found: list[dict], store: Store
) -> tuple[list[dict], dict[str, Any]]:
    """The part of a list that a request asks for, in the order of names, and the metadata of the
    list.
    """
    found = sorted(found, key=key_of)
    meta: dict[str, Any] = {"resourceVersion": str(store.version)}
    if token := request.query.get("continue", ""):
        start = start_of(token, request)
        found = [thing for thing in found if list(key_of(thing)) > start]
    limit = number(request, "limit")
    if not limit or limit < 0 or len(found) <= limit:
        return found, meta
    after = {"v": "meta.k8s.io/v1", "rv": store.version, "start": key_of(found[limit - 1])}
    meta["continue"] = base64.urlsafe_b64encode(json.dumps(after).encode()).decode().rstrip("=")
    if not (request.query.get("labelSelector") or request.query.get("fieldSelector")):
        meta["remainingItemCount"] = len(found) - limit
    return found[:limit], meta


MOST_MANAGER = 128  # bytes of the name of who manages fields


def manager_errors(manager: str) -> list[str]:
    bad = []
    if len(manager.encode()) > MOST_MANAGER:
        bad.append(f"fieldManager: Too long: may not be more than {MOST_MANAGER} bytes")
    for at, letter in enumerate(manager):
        if not letter.isprintable():
            told = f"invalid character U+{ord(letter):04X} (at position {at})"
            bad.append(f"fieldManager: Invalid value: {json.dumps(manager)}: {told}")
    return bad


def dry_errors(dry: list[str]) -> list[str]:
    if {*dry} <= {"All"}:
        return []
    return [f'dryRun: Unsupported value: {json.dumps(dry)}: supported values: "All"']


def flags(request: web.Request) -> tuple[bool, bool]:
    """Whether fields are checked strictly, and whether nothing is to be done."""
    query, bad = request.query, []
    options = {"PUT": "Update", "PATCH": "Patch"}.get(request.method, "Create")
    checked, dry = query.get("fieldValidation", ""), query.getall("dryRun", [])
    manager, is_patch = query.get("fieldManager", ""), request.method == "PATCH"
    applies = is_patch and "apply-patch" in request.content_type
    if applies and not manager:
        bad.append("fieldManager: Required value: is required for apply patch")
    elif is_patch and not applies and "force" in query:
        bad.append("force: Forbidden: may not be specified for non-apply patch")
    bad += manager_errors(manager) + dry_errors(dry)
    if checked not in ("", "Strict", "Warn", "Ignore"):
        allowed = '"", "Ignore", "Strict", "Warn"'
        bad.append(f'fieldValidation: Unsupported value: "{checked}": supported values: {allowed}')
    refuse_any(f"{options}Options.meta.k8s.io", bad)
    return checked == "Strict", bool(dry)


def deletion(request: web.Request, options: Any) -> dict[str, Any]:
    """The options of a deletion, from its body or else its query."""
    found: dict[str, Any] = dict(options)
    if not options:
        names = ("propagationPolicy", "gracePeriodSeconds", "orphanDependents")
        found = {name: request.query[name] for name in names if name in request.query}
        number(request, "gracePeriodSeconds")
        if "dryRun" in request.query:
            found["dryRun"] = request.query.getall("dryRun")
        if "orphanDependents" in found:
            found["orphanDependents"] = is_true(request, "orphanDependents")
    grace = found.get("gracePeriodSeconds")
    if options and grace is not None and (isinstance(grace, bool) or not isinstance(grace, int)):
        told = schema.wrong(grace, "DeleteOptions", "gracePeriodSeconds", "int64")
        raise Refusal(500, "", told)
    refuse_any("DeleteOptions.meta.k8s.io", dry_errors(found.get("dryRun") or []))
    return found


def warnings(request: web.Request, kind: Kind, body: Any) -> list[str]:
    """What an object has that Kubernetes does not know, if a request wants to be warned of it."""
    if (request.query.get("fieldValidation") or "Warn") != "Warn" or not isinstance(body, dict):
        return []
    if kind.group == kueue_checks.GROUP:
        return [*request.get("duplicates", []), *kueue_checks.errors(kind, body)[0]]
    unknown = [
        each
        for each in schema.errors(kind.api, kind.name, body)
        if each.startswith("unknown field")
    ]
    return [*request.get("duplicates", []), *unknown]
