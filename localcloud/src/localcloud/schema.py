"""Google's discovery documents: which method a request means, and whether request and answer fit
it.

The documents ship with google-api-python-client, so nothing here was typed in by hand: routes,
parameters, enums, patterns and field types are Google's own.

Not covered: forms of times, `readOnly` fields in a request (Google ignores them, so do we), rules that stand only
in descriptions (the handlers know those), `fields` masks that name a field which no schema has, and
Compute Engine's few paths with a multi-segment `{+parameter}` among others.
"""

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from localcloud.errors import ApiError

INT_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
# Accepted with every method in addition to those of the document ("parameters" at its top).
SCOPE = re.compile(rb'"(https://[^"\s]+)": \{\s*"description"')
SCOPES_END = 16 << 10  # bytes of a document in which its scopes stand
# Scopes of APIs that have no document, such as gRPC ones and those that gcloud's aliases know.
OTHER_SCOPES = tuple(
    f"https://www.googleapis.com/auth/{name}".encode()
    for name in [
        "bigtable.data",
        "bigtable.data.readonly",
        "cloud.useraccounts",
        "cloud.useraccounts.readonly",
        "devstorage.write_only",
        "projecthosting",
        "sqlservice",
        "taskqueue",
    ]
)
EXTRA_GLOBALS = {
    "returnPartialSuccess",  # with every list of gcloud 528; most documents mention it in prose alone
    "$.xgafv",
    "upload_protocol",
    "access_token",
    "callback",
    "$alt",
    "$prettyPrint",
    "$fields",
}
DURATION = re.compile(r"-?\d{1,12}(\.\d{1,9})?s")
# The methods whose body is a JSON merge patch, as the documents of Compute Engine and Cloud Storage
# say of them, and the one that lays a body over a template in the same way. The others that are
# served and change a part of something name it in a mask.
MERGED = re.compile(r"(storage|compute)\..*\.patch|compute\.\w+\.bulkInsert")
BOOLEANS = {
    **dict.fromkeys(("true", "1", "t", "y", "yes"), True),
    **dict.fromkeys(("false", "0", "f", "n", "no"), False),
}


@dataclass(frozen=True)
class Method:
    id: str  # "compute.instances.insert"
    verb: str
    # of the path below the service's base; "{name}" or "{name}:verb" for a parameter
    segments: tuple[str, ...]
    # of a path with `{+name}`: the part before it, "name", the part after it
    whole: tuple[str, str, str] | None
    params: dict[str, dict]
    request: dict | None  # schema of the body
    response: dict | None  # schema of the answer
    scopes: tuple[str, ...]  # of which a token needs one


@dataclass
class Api:
    """One discovery document. `routes` groups methods by verb and number of path segments."""

    name: str
    schemas: dict[str, dict]
    global_params: dict[str, dict]
    methods: dict[str, Method] = field(default_factory=dict)
    routes: dict[tuple[str, int], list[Method]] = field(default_factory=dict)


def _documents() -> Path:
    import googleapiclient

    return Path(googleapiclient.__file__).parent / "discovery_cache/documents"


def names() -> set[str]:
    """The names of all of Google's APIs that have a document."""
    return {path.name.partition(".")[0] for path in _documents().glob("*.json")}


@lru_cache
def scopes() -> frozenset[str]:
    """The known access scopes: those at the top of the documents of Google's APIs, and the few that no document has and machines are given all the same."""
    found = set(OTHER_SCOPES)
    for path in _documents().glob("*.json"):
        with path.open("rb") as file:
            found.update(SCOPE.findall(file.read(SCOPES_END)))
    return frozenset(scope.decode() for scope in found)


@lru_cache
def load(name: str) -> Api:
    """The API of that name, of its discovery document without the descriptions (two thirds of it)."""
    path = _documents() / f"{name}.v1.json"
    document = json.loads(path.read_text(), object_hook=_without_prose)
    api = Api(name, document["schemas"], document["parameters"])
    _add_methods(api, document)
    for methods in api.routes.values():
        # A literal segment wins over a parameter: `o/bulkRestore` is not the object "bulkRestore".
        # So does a custom verb: `secrets/a:getIamPolicy` is not the secret "a:getIamPolicy".
        methods.sort(key=lambda m: [(s.startswith("{"), s.endswith("}")) for s in m.segments])
    return api


def _without_prose(value: dict) -> dict:
    for key in ("description", "enumDescriptions"):
        if isinstance(value.get(key), (str, list)):
            del value[key]
    return value


def _add_methods(api: Api, resource: dict) -> None:
    for spec in resource.get("methods", {}).values():
        path, whole = spec["path"].removeprefix("v1/"), None
        if "{+" in path:
            before, _, rest = path.partition("{+")
            name, _, after = rest.partition("}")
            if "{" in before + after:
                continue
            whole, path = (before, name, after), spec["flatPath"].removeprefix("v1/")
        segments = tuple(path.split("/"))
        method = Method(
            spec["id"],
            spec["httpMethod"],
            segments,
            whole,
            spec.get("parameters", {}),
            spec.get("request"),
            spec.get("response"),
            tuple(spec.get("scopes", ())),
        )
        api.methods[method.id] = method
        api.routes.setdefault((method.verb, len(segments)), []).append(method)
    for child in resource.get("resources", {}).values():
        _add_methods(api, child)


def match(api: Api, verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
    """Find the method of a still percent-encoded path below its base; return it with its decoded
    path parameters. Matching comes before decoding: an object name may hold `%2F`."""
    parts = path.split("/")
    for method in api.routes.get((verb, len(parts)), []):
        values = {}
        for segment, part in zip(method.segments, parts, strict=True):
            name, _, verb_suffix = segment[1:].partition("}")
            if segment[0] == "{" and part.endswith(verb_suffix):
                values[name] = part.removesuffix(verb_suffix)
            elif segment != part:
                break
        else:
            if "" in values.values():
                continue
            if method.whole:
                before, name, after = method.whole
                values = {name: path[len(before) : len(path) - len(after)]}
            # Bytes that are no UTF-8 pass as surrogates; `check_params` refuses them.
            return method, {
                name: unquote(value, errors="surrogateescape") for name, value in values.items()
            }
    return None


def invalid(message: str, reason: str = "invalid", where: str = "") -> ApiError:
    """A 400 in the words of Google's JSON parser, with the offending field in `details`."""
    violation: dict[str, Any] = {"description": message}
    if where:
        violation["field"] = where
    details = [
        {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}
    ]
    return ApiError(400, reason, message, details=details)


# --- parameters


def check_params(
    api: Api, method: Method, path_values: dict[str, str], query: list[tuple[str, str]]
) -> dict[str, Any]:
    """Check and convert path and query parameters; raise Google's 400 for a wrong one.

    Integers (int64 too) become int, booleans bool, repeated parameters lists. The parameters that
    every method takes (`fields`, `alt`, `key`, ...) are returned as well, as strings.
    """
    result: dict[str, Any] = {}
    for name, text in [*path_values.items(), *query]:
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise invalid(f"Parameter '{name}' is not valid UTF-8", "invalidParameter")
    for name, text in path_values.items():
        # gcloud's wildcard lookups use "-" as "any zone".
        result[name] = text if text == "-" else _convert(name, method.params.get(name, {}), text)
    for name, text in query:
        query_spec = method.params.get(name)
        if query_spec is None or query_spec["location"] != "query":
            if name in api.global_params or name in EXTRA_GLOBALS:
                if name == "alt":
                    _convert(name, api.global_params.get(name, {}), text)
                result[name] = text
                continue
            if api.name == "storage":
                continue  # Cloud Storage passes over what it does not know, as its clients count on
            raise invalid(
                f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter. '
                f"Field '{name}' could not be found in request message.",
                "badRequest",
            )
        value = _convert(name, query_spec, text)
        if query_spec.get("repeated"):
            result.setdefault(name, []).append(value)
        elif name in result:
            raise invalid(f"Parameter '{name}' was given more than once.", "invalidParameter", name)
        else:
            result[name] = value
    for name, spec in method.params.items():
        if spec.get("required") and name not in result:
            raise invalid(f"Required parameter: {name}", "required", name)
    return result


def _convert(name: str, spec: dict, text: str) -> Any:
    """One parameter's text as the type that the document gives it."""
    value: Any = text
    if spec.get("type") == "boolean":
        value = BOOLEANS.get(text.lower(), text)
    try:
        _check_scalar(spec, value, name, answer=False)
    except ApiError as error:
        error.reason = "invalidParameter"
        raise
    is_number = spec.get("type") == "integer" or spec.get("format") in INT_RANGES
    return int(text) if is_number else value


# --- bodies


def check_body(api: Api, method: Method, body: Any) -> Any:
    """Return a request body without what is null; raise Google's 400 for the first thing that is wrong with it.

    A null is a field left out, but in what is a JSON merge patch (RFC 7396), where it takes the field
    away: see MERGED.
    """
    if method.request is None:
        return body
    if not isinstance(body, dict):
        raise invalid("Invalid JSON payload received. Expected an object.", "parseError")
    _check(api, method.request, body, "resource", method.id, answer=False)
    if api.name != "storage":  # which takes such in custom metadata
        check_text(body)
    return without_nulls(body, kept=bool(MERGED.fullmatch(method.id)))


def check_text(body: dict) -> None:
    """Refuse half a surrogate pair, which JSON can write, and a string of a message cannot hold."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise invalid("Invalid JSON payload received. A string is not valid UTF-8.") from None


def without_nulls(value: Any, kept: bool = False) -> Any:
    """Return a copy without the fields that are null; with `kept` only those within lists go."""
    if isinstance(value, dict):
        return {
            key: without_nulls(inner, kept)
            for key, inner in value.items()
            if kept or inner is not None
        }
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def check_answer(api: Api, method: Method, body: Any) -> None:
    """Check an answer of ours: like a request, but 64-bit integers must be strings and nothing
    null.
    """
    if method.response is not None:
        _check(api, method.response, body, "response", method.id, answer=True)


def _check(api: Api, schema: dict, value: Any, where: str, method_id: str, answer: bool) -> None:
    if "$ref" in schema:
        schema = api.schemas[schema["$ref"]]
    kind = schema.get("type")
    if kind == "any" or (value is None and not answer):
        return  # null in a request means "not set" (and in a patch, "remove")
    if kind == "object":
        _check_object(api, schema, value, where, method_id, answer)
    elif kind == "array":
        if not isinstance(value, list):
            raise _wrong_type(where, "a list", value)
        for index, item in enumerate(value):
            if item is None:  # only a field can be left out
                raise _wrong_type(f"{where}[{index}]", "a value", item)
            _check(api, schema["items"], item, f"{where}[{index}]", method_id, answer)
    else:
        _check_scalar(schema, value, where, answer)


def _check_object(
    api: Api, schema: dict, value: Any, where: str, method_id: str, answer: bool
) -> None:
    if not isinstance(value, dict):
        raise _wrong_type(where, "an object", value)
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key, item in value.items():
        inner = properties.get(key, others)
        if inner is None:
            raise invalid(
                f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find field.",
                "badRequest",
                where,
            )
        # Google takes these and ignores them. Who sends one means something by it that would be
        # lost; `kind` means nothing, and clients copy it from what they read; all of that, where
        # they change what is there.
        unread = answer or key == "kind" or method_id.endswith((".patch", ".update"))
        # What is empty, 0 or false is as good as left out.
        if inner.get("readOnly") and not unread and item:
            message = f"Invalid value for field '{where}.{key}': {json.dumps(item)[:80]}. The field is output only."
            raise invalid(message, "invalid", f"{where}.{key}")
        _check(api, inner, item, f"{where}.{key}", method_id, answer)
    if answer:
        return
    for key, inner in properties.items():
        required = method_id in inner.get("annotations", {}).get("required", ())
        # Google does not insist on "acl": with uniform access to a bucket there is none to send; nor
        # on a name in a patch, which its own samples for firewall rules leave out.
        is_free = key == "acl" or (key == "name" and method_id.endswith(".patch"))
        if required and not is_free and value.get(key) is None:
            raise invalid(
                f"Required field '{where}.{key}' not specified", "required", f"{where}.{key}"
            )


def _check_scalar(schema: dict, value: Any, where: str, answer: bool) -> None:
    kind, form = schema.get("type"), schema.get("format", "")
    if form in INT_RANGES or kind == "integer":
        _check_integer(schema, value, where, answer)
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise _wrong_type(where, "true or false", value)
    elif kind == "number":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong_type(where, "a number", value)
    elif not isinstance(value, str):
        raise _wrong_type(where, "a string", value)
    elif "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(schema["enum"])
        raise invalid(
            f"Invalid value for field '{where}': '{value}'. Must be one of [{allowed}]",
            "invalid",
            where,
        )
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        why = f"Must be a match of regex '{schema['pattern']}'"
        raise invalid(f"Invalid value for field '{where}': '{value}'. {why}", "invalid", where)
    elif form == "google-duration" and not answer and not DURATION.fullmatch(value):
        raise invalid(
            f"Invalid value at '{where}' (type.googleapis.com/google.protobuf.Duration), \"{value}\"",
            "invalid",
            where,
        )
    elif form == "byte" and not _is_base64(value):
        raise invalid(
            f"Invalid value at '{where}' (TYPE_BYTES), Base64 decoding failed for \"{value}\""
        )


def _check_integer(schema: dict, value: Any, where: str, answer: bool) -> None:
    """Proto JSON reads numbers and decimal strings alike, and writes 64-bit integers as strings."""
    form = schema.get("format", "int64")
    as_string = schema.get("type") == "string"
    fits = isinstance(value, str) == as_string if answer else isinstance(value, (int, str))
    text = str(value)
    low, high = INT_RANGES[form]
    low, high = (
        max(low, int(schema.get("minimum", low))),
        min(high, int(schema.get("maximum", high))),
    )
    whole = re.fullmatch(r"-?[0-9]{1,20}", text) is not None and not isinstance(value, bool)
    if not (fits and whole and low <= int(text) <= high):
        raise invalid(
            f"Invalid value at '{where}' (TYPE_{form.upper()}), {json.dumps(value)}",
            "invalid",
            where,
        )


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.translate({45: 43, 95: 47}) + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _wrong_type(where: str, wanted: str, value: Any) -> ApiError:
    return invalid(
        f"Invalid value at '{where}': expected {wanted}, got {json.dumps(value)[:80]}",
        "invalid",
        where,
    )


# --- partial answers


def check_fields(api: Api, schema: dict | None, tree: dict) -> None:
    """Raise Google's 400 for a mask that names a field which the answer cannot have."""
    if schema is None:
        return
    if "$ref" in schema:
        schema = api.schemas[schema["$ref"]]
    while "items" in schema:
        schema = schema["items"]
        schema = api.schemas[schema["$ref"]] if "$ref" in schema else schema
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, below in tree.items():
        inner = properties.get(name, others)
        if inner is None and name != "*":
            raise invalid(f"Invalid field selection {name}", "invalidParameter", "fields")
        if inner is not None:
            check_fields(api, inner, below)


def parse_fields(text: str) -> dict:
    """Parse a mask such as `items(name,size),nextPageToken` into nested dicts; {} selects all
    below. What is no name in it, `check_fields` does not find.
    """
    tree: dict = {}
    node, opened = tree, [tree]  # what the next name is below: of a path, of parentheses
    for token in re.findall(r"[\w*$-]+|[^\s/.]", text):
        if token == "(":
            opened.append(node)
        elif token == ",":
            node = opened[-1]
        elif token == ")" and len(opened) > 1:
            node = opened.pop()
        else:
            node = node.setdefault(token, {})
    if len(opened) > 1:
        raise invalid(f"Invalid field selection {text}", "invalidParameter", "fields")
    return tree


def select(value: Any, tree: dict) -> Any:
    """Keep only the fields of `value` that a parsed mask names; lists are selected item by item."""
    if not tree or not isinstance(value, (dict, list)):
        return value
    if isinstance(value, list):
        return [select(item, tree) for item in value]
    kept = {}
    for key, item in value.items():
        inner = tree.get(key, tree.get("*"))
        if inner is not None and (not inner or isinstance(item, (dict, list))):
            kept[key] = select(item, inner)
    return kept
