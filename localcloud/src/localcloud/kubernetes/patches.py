"""How a merge patch (RFC 7386) changes an object. Not covered: other kinds of patches."""

from __future__ import annotations

import copy
import json
from typing import Any

from aiohttp import web

from localcloud.kubernetes.kinds import Refusal

MERGE = "application/merge-patch+json"


async def patched(request: web.Request, thing: dict) -> dict:
    """A copy of `thing` with the patch that a request carries."""
    if request.content_type != MERGE:
        message = (
            "the body of the request was in an unknown format - accepted media types include: "
        )
        raise Refusal(415, "UnsupportedMediaType", message + MERGE)
    try:
        patch = json.loads(await request.read())
        if not isinstance(patch, dict):
            raise ValueError("json: cannot unmarshal it into a patch of this type")
    except ValueError as error:
        raise Refusal(400, "BadRequest", f"error decoding patch: {error}") from None
    found: dict = merge(copy.deepcopy(thing), patch)
    return found


def merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    new = old if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merge(new.get(name), value)
    return new
