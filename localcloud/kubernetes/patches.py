"""How a patch changes an object: JSON patch, merge patch, strategic merge patch.

Not covered: who manages which field, so that a server-side
apply removes nothing and conflicts with nobody.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from localcloud.kubernetes import bodies, checks, gojson, jsonpatch
from localcloud.kubernetes.kinds import Kind, Refusal
from localcloud.kubernetes.words import invalid

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TYPES = (JSON, MERGE, STRATEGIC, APPLY)
# List field -> the field by which a strategic merge knows its items.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
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
WITH_CONTAINER_PORTS = ("containers", "initContainers", "ephemeralContainers")
PLAIN = ("finalizers",)  # lists of plain values that a strategic merge adds to
DROP, ORDER = "$deleteFromPrimitiveList/", "$setElementOrder/"


def check_type(kind: str) -> None:
    if kind not in TYPES:
        told = "the body of the request was in an unknown format - accepted media types include: "
        raise Refusal(415, "UnsupportedMediaType", told + ", ".join(TYPES))


def parse(text: str, of: str) -> Any:
    """A patch in JSON that is to be `of` that type of Go's."""
    found = gojson.loads(text)
    if isinstance(found, dict if of.startswith("map") else list) or found is None:
        return found or {}
    kind = gojson.KINDS[type(found)]
    raise gojson.Broken(f"json: cannot unmarshal {kind} into Go value of type {of}")


def read(kind: str, text: str) -> Any:
    """A patch of that content type, or Kubernetes' refusal of what is none."""
    prefix = "" if kind == STRATEGIC else "error decoding patch: "
    try:
        if kind == APPLY:
            found = bodies.parse_yaml(text, "error decoding YAML: ")
            return found if isinstance(found, dict) else {}
        return parse(text, "[]interface {}" if kind == JSON else "map[string]interface {}")
    except gojson.Broken as error:
        raise Refusal(400, "BadRequest", f"{prefix}{error}") from None


def patched(thing: dict, kind: str, text: str) -> dict:
    """A copy of `thing` with a patch of that content type."""
    new, patch = copy.deepcopy(thing), read(kind, text)
    if kind == JSON:
        return jsonpatch.apply(new, patch)
    found: dict = merge(new, patch, plain=kind == MERGE)
    return found


def check_version(kind: Kind, patch: dict) -> None:
    """Raise the refusal of an apply of an object of another version."""
    version = patch.get("apiVersion") or ""
    if version != kind.api:
        told = "Incorrect version specified in apply patch. Specified patch version: "
        raise Refusal(400, "BadRequest", f"{told}{version}, expected: {kind.api}")


def check_fit(kind: Kind, new: dict, content: str, text: str, strict: bool) -> None:
    """Raise the 422 of a patch that makes no object of its kind."""
    try:
        checks.check_form(kind, new, strict)
    except checks.Unfit as unfit:
        told, shown = unfit.told, json.dumps(new, separators=(",", ":"))
        if content not in (JSON, MERGE):
            shown, told = gojson.printed(read(content, text)), restored(told)
        checks.refuse_as("", "", "", [invalid("patch", shown, told)])


def restored(told: str) -> str:
    """What is said of a wrong type where an object is restored from a map, not from JSON."""
    found = re.fullmatch(r"json: cannot unmarshal (\w+)(?: .*)? into .* of type (\S+)", told)
    if not found:
        return told
    names = {"number": "int64", "array": "slice", "object": "map"}
    kind, wanted = names.get(found[1], found[1]), found[2]
    if wanted.startswith("map["):
        return f"cannot restore map from {kind}"
    if wanted.startswith("[]"):
        return f"cannot restore slice from {kind}"
    if (kind, wanted) == ("int64", "string"):
        return "cannot convert int64 to string"
    return f"unrecognized type: {wanted}"


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
        raise Refusal(500, "", f"Unknown patch type: {how} in map: {gojson.printed(patch)}")
    if how == "delete":
        return {}
    if how == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    kept = patch.get("$retainKeys")
    if kept is not None:
        check_retained(kept, patch)
        for name in [name for name in old if name not in kept]:
            del old[name]
    for name, value in patch.items():
        if name.startswith(DROP) and isinstance(old.get(name.removeprefix(DROP)), list):
            field = name.removeprefix(DROP)
            old[field] = [each for each in old[field] if each not in value]
    usual = {name: value for name, value in patch.items() if not name.startswith("$")}
    orders = {
        name.removeprefix(ORDER): value for name, value in patch.items() if name.startswith(ORDER)
    }
    before = {name: [*(old.get(name) or [])] for name in orders}
    for name, order in orders.items():
        check_order(usual.get(name) or [], order, key_of_items(name, key))
    new = merge_fields(old, usual, key, plain)
    for name, order in orders.items():
        if isinstance(new.get(name), list):
            new[name] = in_order(new[name], order, before[name], key_of_items(name, key))
    return new


def known_by(item: Any, by: str) -> Any:
    return item.get(by) if by and isinstance(item, dict) else item


def check_order(items: list, order: list, by: str) -> None:
    """Raise the refusal of items of a patch that are not in the order that it asks for."""
    kept = [each for each in items if not isinstance(each, dict) or each.get("$patch") != "delete"]
    names = iter([known_by(each, by) for each in order])
    if not all(known_by(each, by) in names for each in kept):
        told = f"The order in patch list:\n{gojson.printed(kept)}\n doesn't match $setElementOrder"
        raise Refusal(500, "", f"{told} list:\n{gojson.printed(order)}\n")


def in_order(items: list, order: list, before: list, by: str) -> list:
    """A merged list in the order that a patch asks for; what it does not name stays after what it
    was after.
    """
    wanted, old = [known_by(each, by) for each in order], [known_by(each, by) for each in before]
    named = [each for each in items if known_by(each, by) in wanted]
    named.sort(key=lambda each: wanted.index(known_by(each, by)))
    others = [each for each in items if known_by(each, by) not in wanted]
    found: list = []
    while named and others:
        places = [known_by(rows[0], by) for rows in (others, named)]
        is_first = all(each in old for each in places) and old.index(places[0]) < old.index(
            places[1]
        )
        found.append(others.pop(0) if is_first else named.pop(0))
    return [*found, *named, *others]


def check_retained(kept: Any, patch: dict) -> None:
    """Raise the refusal of a list of fields to keep that leaves out one that is set."""
    names = {name for name, value in patch.items() if value is not None and name[:1] != "$"}
    if not isinstance(kept, list) or names - {*kept}:
        raise Refusal(400, "BadRequest", "invalid patch format of retainKeys")


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
            told = f"map: {gojson.printed(item)} does not contain declared merge key: {by}"
            raise Refusal(500, "", told)
        same = next((each for each in old if each.get(by) == item[by]), None)
        if item.get("$patch") == "delete":
            old[:] = [each for each in old if each.get(by) != item[by]]
        elif same is None:
            old.append(merge_map({}, item, key, False))
        else:
            merge_map(same, item, key, False)
    return old
