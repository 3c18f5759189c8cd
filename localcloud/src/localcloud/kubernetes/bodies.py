"""The bodies of requests as a cluster's API reads them: JSON."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from localcloud.kubernetes.kinds import Refusal

TYPE = "application/json"
OPTIONS = "DeleteOptions"


async def read(request: web.Request, of: str) -> Any:
    """Return the object of kind `of` that a request carries; the options of a deletion may be
    nothing.
    """
    kind = request.content_type if "Content-Type" in request.headers else TYPE
    data = await request.read()
    if not data and of == OPTIONS:
        return {}
    if kind != TYPE:
        message = (
            "the body of the request was in an unknown format - accepted media types include: "
        )
        raise Refusal(415, "UnsupportedMediaType", message + TYPE)
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        prefix = f"the object provided is unrecognized (must be of type {of}): "
        message = f"couldn't get version/kind; json parse error: {error}"
        raise Refusal(400, "BadRequest", prefix + message) from None
    return found
