"""The bodies of requests as a cluster's API reads them: JSON."""

import json
from typing import Any

from aiohttp import web

from localcloud.kubernetes.kinds import Refusal

TYPE, MERGE = "application/json", "application/merge-patch+json"
OPTIONS = "DeleteOptions"


async def read(request: web.Request, of: str, kind: str = TYPE) -> Any:
    """Return the object of kind `of` that a request carries; the options of a deletion may be
    nothing.
    """
    data = await request.read()
    if not data and of == OPTIONS:
        return {}
    if request.headers.get("Content-Type", TYPE) != kind:
        message = f"the body of the request was in an unknown format - accepted media types: {kind}"
        raise Refusal(415, "UnsupportedMediaType", message)
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        prefix = f"the object provided is unrecognized (must be of type {of}): "
        message = f"couldn't get version/kind; json parse error: {error}"
        raise Refusal(400, "BadRequest", prefix + message) from None
    return found
