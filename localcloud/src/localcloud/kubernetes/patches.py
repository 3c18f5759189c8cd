"""How a patch changes an object: merge patch, strategic merge patch, and server-side apply.

Not covered: JSON patches, and who manages which field: an apply removes nothing and conflicts with
no other client.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from localcloud.kubernetes import bodies, checks
from localcloud.kubernetes.kinds import Kind, Refusal
from localcloud.kubernetes.words import invalid

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TYPES = (MERGE, STRATEGIC, APPLY)
# List field -> the field by which a strategic merge knows its items.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "port",
    "conditions": "type",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
    "imagePullSecrets": "name",
    "secrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "taints": "key",
}
WITH_CONTAINER_PORTS = ("containers", "initContainers")
PLAIN = ("finalizers",)  # lists of plain values that a strategic merge adds to
DROP = "$deleteFromPrimitiveList/"


def check_type(kind: str) -> None:
    if kind not in TYPES:
        message = (
            "the body of the request was in an unknown format - accepted media types include: "
        )
        raise Refusal(415, "UnsupportedMediaType", message + ", ".join(TYPES))


def read(kind: str, text: str) -> Any:
    """A patch of that content type, or Kubernetes' refusal of what is none."""
    prefix = "" if kind == STRATEGIC else "error decoding patch: "
    try:
        if kind == APPLY:
            found = bodies.parse_yaml(text, "error decoding YAML: ")
            return found if isinstance(found, dict) else {}
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("json: cannot unmarshal it into a patch of this type")
        return found
    except ValueError as error:
        raise Refusal(400, "BadRequest", f"{prefix}{error}") from None


def patched(thing: dict, kind: str, text: str) -> dict:
    """A copy of `thing` with a patch of that content type."""
    new, patch = copy.deepcopy(thing), read(kind, text)
    found: dict = merge(new, patch, plain=kind == MERGE)
    return found


def check_version(kind: Kind, patch: dict) -> None:
    """Raise the refusal of an apply of an object of another version."""
    version = patch.get("apiVersion") or ""
    if version != kind.api:
        message = "Incorrect version specified in apply patch. Specified patch version: "
        raise Refusal(400, "BadRequest", f"{message}{version}, expected: {kind.api}")


def check_fit(kind: Kind, new: dict, strict: bool) -> None:
    """Raise the 422 of a patch that makes no object of its kind."""
    try:
        checks.check_form(kind, new, strict)
    except checks.Unfit as unfit:
        shown = json.dumps(new, separators=(",", ":"))
        checks.refuse_as("", "", "", [invalid("patch", shown, unfit.detail)])


def merge(old: Any, patch: Any, key: str = "", plain: bool = False, parent: str = "") -> Any:
    """Merge in place; lists of named things by their names, unless `plain` (RFC 7386)."""
    if isinstance(patch, dict) and isinstance(old, dict):
        return merge_map(old, patch, key, plain)
    if isinstance(patch, list) and not plain:
        by = key_of_items(key, parent)
        if by:
            return merge_list(old if isinstance(old, list) else [], patch, by, key)
        if key in PLAIN and isinstance(old, list):
            return [*old, *(each for each in patch if each not in old)]
    return merge_map({}, patch, key, plain) if isinstance(patch, dict) else patch


def key_of_items(key: str, parent: str) -> str:
    if key == "ports" and parent in WITH_CONTAINER_PORTS:
        return "containerPort"
    return MERGE_KEYS.get(key, "")


def merge_map(old: dict, patch: dict, key: str, plain: bool) -> dict:
    if plain:
        return merge_fields(old, patch, key, plain)
    how = patch.get("$patch", "merge")
    if how not in ("merge", "replace", "delete"):
        raise Refusal(500, "", f"Unknown patch type: {how} in map")
    if how == "delete":
        return {}
    if how == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    kept = patch.get("$retainKeys")
    if kept is not None:
        for name in [name for name in old if name not in kept]:
            del old[name]
    for name, value in patch.items():
        if name.startswith(DROP) and isinstance(old.get(name.removeprefix(DROP)), list):
            field = name.removeprefix(DROP)
            old[field] = [each for each in old[field] if each not in value]
    usual = {name: value for name, value in patch.items() if not name.startswith("$")}
    return merge_fields(old, usual, key, plain)


def merge_fields(old: dict, patch: dict, key: str, plain: bool) -> dict:
    for name, value in patch.items():
        if value is None:
            old.pop(name, None)
        else:
            old[name] = merge(old.get(name), value, name, plain, key)
    return old


def merge_list(old: list, patch: list, by: str, key: str) -> list:
    """Merge items that are known by a field."""
    if any(not isinstance(item, dict) for item in patch):
        return patch
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    for item in patch:
        if by not in item:
            message = f"map: {item} does not contain declared merge key: {by}"
            raise Refusal(500, "", message)
        same = next((each for each in old if each.get(by) == item[by]), None)
        if item.get("$patch") == "delete":
            old[:] = [each for each in old if each.get(by) != item[by]]
        elif same is None:
            old.append(merge_map({}, item, key, False))
        else:
            merge_map(same, item, key, False)
    return old
