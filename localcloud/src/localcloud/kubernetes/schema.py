"""Kubernetes' own field names and types, read from the package lightkube-models, and what a body
has wrong.

The models are generated from Kubernetes' OpenAPI. They are parsed, not imported: importing them
needs lightkube.

Not covered: enums, patterns, times, ranges of numbers, required fields, of which checks.py knows those that
matter here.
"""

import ast
import importlib.metadata
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

MODULES = {"v1": "core_v1", "batch/v1": "batch_v1"}
QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
# Go's words
BAD_QUANTITY = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
SCALARS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float)}
OF_STRINGS = ("labels", "annotations", "ata", "elector")  # how the paths of maps of strings end
OF_QUANTITIES = ("limits", "requests", "capacity", "allocatable", "hard", "overhead")


@lru_cache
def folder() -> Path:
    files = importlib.metadata.files("lightkube-models") or []
    return next(Path(str(file.locate())).parent for file in files if file.name == "core_v1.py")


@lru_cache
def module(name: str) -> dict[str, Any]:
    """Classes of a module, {class: {field: its type}}, and aliases such as `Time = datetime` as
    text.
    """
    found: dict[str, Any] = {}
    for node in ast.parse((folder() / f"{name}.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            rows = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            found[node.name] = dict(map(described, rows))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.unparse(node.value)
    return found


def described(item: ast.AnnAssign) -> tuple[str, ast.expr]:
    """A field's name on the wire, and its type: `x: 'Optional[str]' = field(metadata={"json":
    "from"})`.
    """
    assert isinstance(item.target, ast.Name) and isinstance(item.annotation, ast.Constant)
    wire = item.target.id
    for keyword in item.value.keywords if isinstance(item.value, ast.Call) else []:
        if keyword.arg == "metadata":
            wire = ast.literal_eval(keyword.value).get("json", wire)
    return wire, ast.parse(str(item.annotation.value), mode="eval").body


def errors(api: str, kind: str, value: Any) -> list[str]:
    """What a strict API server says of a body: unknown fields, which are taken out, and wrong
    types.
    """
    found: list[str] = []
    check_class(MODULES[api], kind, value, "", found)
    return found


def check_class(where: str, name: str, value: Any, path: str, found: list[str]) -> None:
    if not isinstance(value, dict):
        found.append(wrong(value, path, f"v1.{name}"))
        return
    fields = module(where)[name]
    for key, inner in list(value.items()):
        at = f"{path}.{key}" if path else key
        if key not in fields:
            found.append(f'unknown field "{at}"')
            del value[key]
        elif inner is not None:
            check(where, fields[key], inner, at, found)


def check(where: str, kind: ast.expr, value: Any, path: str, found: list[str]) -> None:
    if isinstance(kind, ast.Subscript):
        assert isinstance(kind.value, ast.Name)
        if kind.value.id != "List":
            check(where, kind.slice, value, path, found)
        elif not isinstance(value, list):
            found.append(wrong(value, path, "a list"))
        else:
            for index, item in enumerate(value):
                check(where, kind.slice, item, f"{path}[{index}]", found)
        return
    name = ""
    if isinstance(kind, ast.Attribute) and isinstance(kind.value, ast.Name):
        where, name = kind.value.id, kind.attr
    elif isinstance(kind, ast.Name):
        name = kind.id
    if name == "dict":
        check_map(value, path, found)
    elif name in SCALARS:
        if not isinstance(value, SCALARS[name]) or (isinstance(value, bool) and name != "bool"):
            found.append(wrong(value, path, name))
    elif name == "Quantity":
        check_quantity(value, found)
    elif where.endswith("_v1") or where in ("resource", "runtime"):
        target = module(where).get(name)
        if isinstance(target, dict):
            check_class(where, name, value, path, found)


def check_map(value: Any, path: str, found: list[str]) -> None:
    """A map of strings or of quantities; the models do not tell which."""
    if not isinstance(value, dict):
        found.append(wrong(value, path, "a map"))
    elif path.rpartition(".")[2] in OF_QUANTITIES:
        for item in value.values():
            check_quantity(item, found)
    elif path.endswith(OF_STRINGS):
        rows = [item for item in value.values() if not isinstance(item, str)]
        found += [wrong(item, path, "str") for item in rows]


def check_quantity(value: Any, found: list[str]) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number and not QUANTITY.fullmatch(str(value)):
        found.append(BAD_QUANTITY)


def wrong(value: Any, path: str, wanted: str) -> str:
    return f"json: cannot unmarshal {json.dumps(value)} into field {path} of type {wanted}"
