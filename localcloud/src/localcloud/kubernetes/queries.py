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


def flags(request: web.Request) -> tuple[bool, bool]:
    """Whether fields are checked strictly, and whether nothing is to be done."""
    query = request.query
    return query.get("fieldValidation", "") == "Strict", bool(query.getall("dryRun", []))
