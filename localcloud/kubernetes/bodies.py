"""The bodies of requests as a cluster's API reads them: JSON, protobuf as kubectl sends it, YAML of
an apply patch.

A field that is there twice is found, as Kubernetes finds it where it checks strictly.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from localcloud.kubernetes import gojson, protobuf
from localcloud.kubernetes.kinds import Refusal

TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
OPTIONS = "DeleteOptions"
TWICE = "duplicates"  # of a request: what its body says twice


class Pairs(dict):
    """An object of JSON, and which of its fields are there twice."""

    def __init__(self, pairs: list[tuple[str, Any]]):
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = [name for name in self if names.count(name) > 1]


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
        told = "the body of the request was in an unknown format - accepted media types include: "
        raise Refusal(415, "UnsupportedMediaType", told + ", ".join(TYPES))
    if kind == "application/yaml":
        return parse_yaml(text_of(data), "couldn't get version/kind; yaml: ")
    try:
        found = gojson.loads(text_of(data), object_pairs_hook=Pairs)
        gojson.check_head(found)
    except gojson.Broken as error:
        raise broken(error, of, data) from None
    twice: list[str] = []
    body = plain(found, "", twice)
    request[TWICE] = [f'duplicate field "{each}"' for each in twice]
    return body


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


def broken(error: Exception, of: str, data: bytes) -> Refusal:
    told = f"couldn't get version/kind; json parse error: {error}"
    if of == OPTIONS:
        return Refusal(500, "", told)
    prefix = f"the object provided is unrecognized (must be of type {of}): "
    return Refusal(400, "BadRequest", f"{prefix}{told} ({gojson.summary(data)})")


def plain(value: Any, path: str, twice: list[str]) -> Any:
    """Return a body of plain objects, and note the paths of what it says twice."""
    if isinstance(value, Pairs):
        twice += [f"{path}{each}" for each in value.twice]
        return {key: plain(inner, f"{path}{key}.", twice) for key, inner in value.items()}
    if isinstance(value, list):
        start = path.removesuffix(".")
        return [plain(each, f"{start}[{at}].", twice) for at, each in enumerate(value)]
    return value


def check_twice(request: web.Request, kind: str, version: str, strict: bool) -> None:
    """Raise the strict decoder's refusal of a body that says something twice."""
    if strict and request.get(TWICE):
        told = (
            f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: '
        )
        raise Refusal(400, "BadRequest", told + ", ".join(request[TWICE]))
