"""Kubernetes' OpenAPI as `kubectl explain` reads it, and the paths that tell kubectl that the
server checks fields.

Kinds, fields and their descriptions come from the package lightkube-models, as in schema.py.

Not covered: how lists are patched; kubectl knows that by itself.
"""

from __future__ import annotations

import ast
import json
import re
from functools import lru_cache
from typing import Any

from localcloud.kubernetes import schema
from localcloud.kubernetes.kinds import ALL, Kind

FIELD = re.compile(r"^ *\* \*\*(\w+)\*\* ``.*?`` - ", re.M)
TYPES = {
    "str": "string",
    "int": "integer",
    "bool": "boolean",
    "float": "number",
    "Time": "string",
    "Quantity": "string",
}


def document(path: str, version: str) -> dict:
    """The part below a path: api/v1, apis/batch/v1."""
    kinds = [kind for kind in ALL if kind.api == path.partition("/")[2]]
    known = [kind for kind in kinds if kind.api in schema.MODULES]  # no custom resources
    info = {"title": "Kubernetes", "version": version}
    paths = dict(of_path(path, kind) for kind in kinds)
    return {
        "openapi": "3.0.0",
        "info": info,
        "paths": paths,
        "components": {"schemas": schemas(tuple(known))},
    }


def whole(version: str) -> dict:
    """All of it as one document of OpenAPI 2."""
    apis = sorted({kind.api for kind in ALL if kind.api in schema.MODULES})
    rows: dict[str, dict] = {}
    for api in apis:
        rows |= schemas(tuple(kind for kind in ALL if kind.api == api))
    text = json.dumps(rows).replace("#/components/schemas/", "#/definitions/")
    served = [(f"api{'' if api == 'v1' else 's'}/{api}", api) for api in apis]
    paths = dict(of_path(path, kind) for path, api in served for kind in ALL if kind.api == api)
    info = {"title": "Kubernetes", "version": version}
    return {"swagger": "2.0", "info": info, "paths": paths, "definitions": json.loads(text)}


def of_path(path: str, kind: Kind) -> tuple[str, dict]:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}}
        for name in ("fieldValidation", "dryRun")
    ]
    operation = {
        "parameters": parameters,
        "x-kubernetes-group-version-kind": about(kind),
        "responses": {},
    }
    where = "namespaces/{namespace}/" if kind.namespaced else ""
    return f"/{path}/{where}{kind.plural}/{{name}}", {"patch": operation}


def about(kind: Kind) -> dict:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


@lru_cache
def schemas(kinds: tuple[Kind, ...]) -> dict[str, dict]:
    """The schemas of kinds, and of all that they consist of."""
    made: dict[str, dict] = {}
    wanted = [(schema.MODULES[kind.api], kind.name) for kind in kinds]
    while wanted:
        where, name = wanted.pop()
        if full_name(where, name) not in made:
            made[full_name(where, name)] = of_class(where, name, wanted)
    for kind in kinds:
        made[full_name(schema.MODULES[kind.api], kind.name)]["x-kubernetes-group-version-kind"] = [
            about(kind)
        ]
    return made


def full_name(where: str, name: str) -> str:
    group = "apimachinery.pkg.apis.meta" if where == "meta_v1" else f"api.{where[:-3]}"
    return f"io.k8s.{group}.v1.{name}"


def of_class(where: str, name: str, wanted: list[tuple[str, str]]) -> dict:
    text, described = descriptions(where).get(name, ("", {}))
    fields = schema.module(where)[name]
    rows = {
        key: {"description": described.get(key, ""), **of_type(where, kind, wanted)}
        for key, kind in fields.items()
    }
    needed = [key for key, kind in fields.items() if not ast.unparse(kind).startswith("Optional")]
    return {
        "type": "object",
        "description": text,
        "properties": rows,
        **({"required": needed} if needed else {}),
    }


def of_type(where: str, kind: ast.expr, wanted: list[tuple[str, str]]) -> dict[str, Any]:
    if isinstance(kind, ast.Subscript):
        inner = of_type(where, kind.slice, wanted)
        return {"type": "array", "items": inner} if ast.unparse(kind.value) == "List" else inner
    module, _, name = ast.unparse(kind).rpartition(".")
    if name in TYPES:
        return {"type": TYPES[name]}
    if name == "dict":
        return {"type": "object", "additionalProperties": {"type": "string"}}
    if name == "IntOrString":
        return {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}
    module = module or where
    if not module.endswith("_v1") or not isinstance(schema.module(module).get(name), dict):
        return {"type": "object"}
    wanted.append((module, name))
    return {"allOf": [{"$ref": f"#/components/schemas/{full_name(module, name)}"}]}


@lru_cache
def descriptions(where: str) -> dict[str, tuple[str, dict[str, str]]]:
    """What a module says of its classes, and of the fields of each."""
    found = {}
    for node in ast.parse((schema.folder() / f"{where}.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            text, _, rest = (ast.get_docstring(node) or "").partition("**parameters**")
            _, *parts = FIELD.split(rest)
            found[node.name] = (
                joined(text),
                dict(zip(parts[::2], map(joined, parts[1::2]), strict=True)),
            )
    return found


def joined(text: str) -> str:
    return " ".join(text.split())
