"""The bodies of requests as a cluster's API reads them: JSON, protobuf as kubectl sends it, YAML of
an apply patch.

A field that is there twice is found, as Kubernetes finds it where it checks strictly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from localcloud.kubernetes import gojson, protobuf
from localcloud.kubernetes.kinds import Refusal

TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
OPTIONS = "DeleteOptions"
GO_YAML = {  # what Python's decoder of YAML says -> what Go's does
    "^expected the node content, .*": "did not find expected node content",
    "^expected <block end>, but found '?<block sequence start>.*": "did not find expected key",
    "^expected <block end>, .*": "did not find expected key",
    "^expected ',' or '\\]', .*": "did not find expected ',' or ']'",
    "^expected ',' or '}', .*": "did not find expected ',' or '}'",
    "^mapping values are not allowed here": "mapping values are not allowed in this context",
    "^found character '.*' that cannot": "found character that cannot",
}
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
        twice_in_yaml = list[str]()
        found = parse_yaml(text_of(data), unrecognized(of), gojson.summary(data), twice_in_yaml)
        request[TWICE] = twice_in_yaml
        return found
    try:
        found = gojson.loads(text_of(data), object_pairs_hook=Pairs)
        found = Pairs([]) if found is None else found
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


def parse_yaml(text: str, prefix: str, shown: str = "", twice: list[str] | None = None) -> Any:
    """A body in YAML, of which JSON is a part; `twice` gets what it says twice, in Go's words."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if twice is not None and node is not None:
            lines = [
                f"  line {at}: key {json.dumps(key)} already set in map" for at, key in again(node)
            ]
            twice += ["\n".join(["yaml: unmarshal errors:", *lines])] * bool(lines)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        told = yaml_error(error) if shown else str(error)
        raise Refusal(400, "BadRequest", f"{prefix}{told}{f' ({shown})' * bool(shown)}") from None


def again(node: Any) -> Iterator[tuple[int, str]]:
    """Line and key of what a map of YAML's says once more."""
    inner = [each for pair in node.value for each in pair] if node.id == "mapping" else node.value
    seen: set[str] = set()
    for key, _ in node.value if node.id == "mapping" else []:
        if key.value in seen:
            yield key.start_mark.line + 1, key.value
        seen.add(str(key.value))
    for each in inner if node.id != "scalar" else []:
        yield from again(each)


def yaml_error(error: Any) -> str:
    """What Go's decoder says of a text that is no YAML: it counts the lines of some from 0."""
    mark, told = getattr(error, "problem_mark", None), str(getattr(error, "problem", error))
    for pattern, words in GO_YAML.items():
        told = re.sub(pattern, words, told)
    line = mark.line + (type(error).__name__ == "ScannerError") if mark and mark.line else 0
    return f"yaml: {f'line {line}: ' if line else ''}{told}"


def broken(error: Exception, of: str, data: bytes) -> Refusal:
    told = f"couldn't get version/kind; json parse error: {error}"
    if of == OPTIONS:
        return Refusal(500, "", told)
    return Refusal(400, "BadRequest", f"{unrecognized(of)}{told} ({gojson.summary(data)})")


def unrecognized(of: str) -> str:
    return f"the object provided is unrecognized (must be of type {of}): "


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
