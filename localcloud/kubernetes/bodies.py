"""The bodies of requests as a cluster's API reads them: JSON, protobuf as kubectl sends it, YAML of
an apply patch.

A field that is there twice is found, as Kubernetes finds it where it checks strictly.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from localcloud.kubernetes import patches, protobuf
from localcloud.kubernetes.kinds import Refusal

TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
TWICE = "duplicates"  # of a request: what its body says twice


class Pairs(dict):
    """An object of JSON, and which of its fields are there twice."""

    def __init__(self, pairs: list[tuple[str, Any]]):
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = [name for name in self if names.count(name) > 1]


async def read(request: web.Request) -> Any:
    """Return what a request carries; {} for nothing."""
    kind = request.content_type if "Content-Type" in request.headers else TYPES[0]
    data = await request.read()
    if not data:
        return {}
    if kind == protobuf.TYPE:
        return protobuf.read(data)
    if kind not in TYPES:
        told = "the body of the request was in an unknown format - accepted media types include: "
        raise Refusal(415, "UnsupportedMediaType", told + ", ".join(TYPES))
    if kind == "application/yaml":
        return patches.parse(text_of(data))
    found = parse(data)
    twice: list[str] = []
    body = plain(found, "", twice)
    request[TWICE] = [f'duplicate field "{each}"' for each in twice]
    if not isinstance(body, dict):
        raise broken(ValueError("not an object"))
    return body


def text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise broken(error) from None


def parse(data: bytes) -> Any:
    try:
        return json.loads(text_of(data), object_pairs_hook=Pairs)
    except (ValueError, RecursionError) as error:
        raise broken(error) from None


def broken(error: Exception) -> Refusal:
    told = f"couldn't get version/kind; json parse error: {error}"
    return Refusal(400, "BadRequest", told)


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
