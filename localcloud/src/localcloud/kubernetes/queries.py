"""What a request's query asks for: which objects, from which version, how many at once, how
strictly checked.

The next page of a list shows the current objects, as Kubernetes' does when its own copy of the list
has expired.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from aiohttp import web

from localcloud.kubernetes import checks, schema
from localcloud.kubernetes.kinds import Refusal, key_of
from localcloud.kubernetes.store import Selector, Store


def selector(request: web.Request) -> Selector:
    """Which objects a request means."""
    query = request.query
    return Selector(
        request.match_info.get("namespace", ""),
        query.get("labelSelector", ""),
        query.get("fieldSelector", ""),
    )


def number(request: web.Request, name: str) -> int | None:
    """A number of the query."""
    text = request.query.get(name, "")
    if text and not re.fullmatch("[+-]?[0-9]+", text):
        message = f'strconv.ParseInt: parsing "{text}": invalid syntax'
        raise Refusal(400, "BadRequest", message)
    return int(text) if text else None


def is_true(request: web.Request, name: str) -> bool:
    """Whether a query says so: a field that is there and neither 0 nor false."""
    return request.query.get(name, "false").lower() not in ("0", "false")


def refuse_any(options: str, bad: list[str]) -> None:
    """Raise Kubernetes' refusal of options with which something is wrong."""
    if bad:
        kind, _, group = options.partition(".")
        checks.refuse_as(kind, group, "", bad)


def version(request: web.Request) -> int:
    """The version from which a list or a watch is to be; 0 for any."""
    number(request, "limit")
    number(request, "timeoutSeconds")
    text = request.query.get("resourceVersion", "")
    if text and not text.isdecimal():
        message = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise Refusal(400, "BadRequest", f'resourceVersion: Invalid value: "{text}": {message}')
    return int(text or 0)


def start_of(token: str) -> list[str]:
    """The key after which a list continues."""
    try:
        found = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return list(found["start"])
    except (ValueError, KeyError, TypeError) as error:
        raise bad_token(str(error)) from None


def bad_token(why: str) -> Refusal:
    message = f"invalid continue token: continue key is not valid: {why}"
    return Refusal(400, "BadRequest", message)


def page(
    request: web.Request, found: list[dict], store: Store
) -> tuple[list[dict], dict[str, Any]]:
    """The part of a list that a request asks for, in the order of names, and the metadata of the
    list.
    """
    found = sorted(found, key=key_of)
    meta: dict[str, Any] = {"resourceVersion": str(store.version)}
    if token := request.query.get("continue", ""):
        start = start_of(token)
        found = [thing for thing in found if list(key_of(thing)) > start]
    limit = number(request, "limit")
    if not limit or limit < 0 or len(found) <= limit:
        return found, meta
    after = {"v": "meta.k8s.io/v1", "rv": store.version, "start": key_of(found[limit - 1])}
    meta["continue"] = base64.urlsafe_b64encode(json.dumps(after).encode()).decode().rstrip("=")
    if not (request.query.get("labelSelector") or request.query.get("fieldSelector")):
        meta["remainingItemCount"] = len(found) - limit
    return found[:limit], meta


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
    bad += dry_errors(dry)
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
        message = schema.wrong(grace, "DeleteOptions", "gracePeriodSeconds", "int64")
        raise Refusal(500, "", message)
    refuse_any("DeleteOptions.meta.k8s.io", dry_errors(found.get("dryRun") or []))
    return found
