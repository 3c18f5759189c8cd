"""The bodies of requests as a cluster's API reads them: JSON, protobuf as kubectl sends it, YAML of
an apply patch.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from localcloud.kubernetes import protobuf
from localcloud.kubernetes.kinds import Refusal

TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
OPTIONS = "DeleteOptions"


async def read(request: web.Request, of: str) -> Any:
    """Return the object of kind `of` that a request carries; the options of a deletion may be
    nothing.
    """
    kind = request.content_type if "Content-Type" in request.headers else TYPES[0]
    data = await request.read()
    if not data and of == OPTIONS:
        return {}
    if kind == protobuf.TYPE:
        return protobuf.read(data)
    if kind not in TYPES:
        message = (
            "the body of the request was in an unknown format - accepted media types include: "
        )
        raise Refusal(415, "UnsupportedMediaType", message + ", ".join(TYPES))
    prefix = f"the object provided is unrecognized (must be of type {of}): "
    if kind == "application/yaml":
        return parse_yaml(text_of(data), prefix)
    try:
        found = json.loads(text_of(data))
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        message = f"couldn't get version/kind; json parse error: {error}"
        raise Refusal(400, "BadRequest", prefix + message) from None
    return found


def text_of(data: bytes) -> str:
    """A body as text; what is no UTF-8 becomes what Go makes of it."""
    return data.decode(errors="replace")


def parse_yaml(text: str, prefix: str) -> Any:
    """A body in YAML, of which JSON is a part."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Refusal(400, "BadRequest", f"{prefix}{error}") from None
