"""How a patch changes an object: JSON patch, merge patch, strategic merge patch.

Not covered: strategic merges' `$retainKeys`, `$setElementOrder` and lists of plain values; who
manages which field, so that a server-side apply removes nothing and conflicts with nobody.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from localcloud.kubernetes.kinds import Refusal

# List field -> the field by which a strategic merge knows its items.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "port",
    "conditions": "type",
    "tolerations": "key",
    "ownerReferences": "uid",
}


def parse(text: str) -> Any:
    """A body in JSON or, as of an apply patch, in YAML."""
    try:
        return json.loads(text)
    except ValueError:
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise Refusal(400, "BadRequest", f"error decoding patch: {error}") from None


def patched(thing: dict, kind: str, text: str) -> dict:
    """A copy of `thing` with a patch of that content type."""
    new = copy.deepcopy(thing)
    patch = parse(text)
    if kind == "application/json-patch+json":
        return json_patch(new, patch)
    if kind not in (
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ):
        raise Refusal(
            415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}"
        )
    if not isinstance(patch, dict):
        raise Refusal(400, "BadRequest", "error decoding patch: it is no object")
    return merge(new, patch, plain=kind == "application/merge-patch+json")


def merge(old: Any, patch: Any, key: str = "", plain: bool = False) -> Any:
    """Merge in place; lists of named things by their names, unless `plain` (RFC 7386)."""
    if isinstance(patch, dict) and isinstance(old, dict):
        if patch.get("$patch") == "replace":
            return {name: value for name, value in patch.items() if name != "$patch"}
        for name, value in patch.items():
            if name.startswith("$"):
                continue
            if value is None:
                old.pop(name, None)
            else:
                old[name] = merge(old.get(name), value, name, plain)
        return old
    if isinstance(patch, list) and isinstance(old, list) and key in MERGE_KEYS and not plain:
        return merge_list(old, patch, MERGE_KEYS[key])
    return merge({}, patch, plain=plain) if isinstance(patch, dict) else patch


def merge_list(old: list, patch: list, by: str) -> list:
    for item in patch:
        same = next((each for each in old if each.get(by) == item.get(by)), None)
        if item.get("$patch") == "delete":
            old[:] = [each for each in old if each.get(by) != item.get(by)]
        elif same is None:
            old.append(item)
        else:
            merge(same, item)
    return old


def json_patch(thing: dict, steps: list[dict]) -> dict:
    """RFC 6902, without move and copy."""
    if not isinstance(steps, list):
        told = "json: cannot unmarshal object into Go value of type jsonpatch.Patch"
        raise Refusal(400, "BadRequest", told)
    for step in steps:
        *way, last = [
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
        ]
        at: Any = thing
        try:
            for part in way:
                at = at[int(part)] if isinstance(at, list) else at[part]
            key: Any = (len(at) if last == "-" else int(last)) if isinstance(at, list) else last
            if step["op"] == "remove":
                del at[key]
            elif step["op"] == "test":
                if at[key] != step["value"]:
                    raise ValueError(f"testing value {step['path']} failed")
            elif isinstance(at, list) and step["op"] == "add":
                at.insert(key, step["value"])
            elif step["op"] in ("add", "replace"):
                at[key] = step["value"]
            elif step["op"] not in ("copy", "move"):
                raise ValueError(f"Unexpected kind: {step['op']}")
            else:
                raise Refusal(
                    501,
                    "NotImplemented",
                    f"JSON patch {step['op']} is not part of the embedded cloud",
                )
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise Refusal(
                422,
                "Invalid",
                f"the server rejected our request due to an error in our request: {error}",
            ) from None
    return thing
