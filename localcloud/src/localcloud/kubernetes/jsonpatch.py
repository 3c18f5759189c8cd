"""JSON patches (RFC 6902), with Kubernetes' one answer to all that cannot be done."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from localcloud.kubernetes.kinds import UNFIT, Refusal

MOST_STEPS = 10_000


class Impossible(Exception):
    """A step that does not apply."""


def apply(thing: dict, steps: list[dict]) -> dict:
    if len(steps) > MOST_STEPS:
        told = f"The allowed maximum operations in a JSON patch is {MOST_STEPS}, got {len(steps)}"
        raise Refusal(413, "RequestEntityTooLarge", told)
    try:
        for step in steps:
            STEPS[step["op"]](thing, step)
    except (Impossible, KeyError, IndexError, ValueError, TypeError, AttributeError):
        raise Refusal(UNFIT[0], "Invalid", UNFIT[1]) from None
    return thing


def split(path: str) -> list[str]:
    if not path.startswith("/"):
        raise Impossible
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def place(thing: Any, path: str, adds: bool = False) -> tuple[Any, Any]:
    """Return what holds the value at a path, and its key there."""
    *way, last = split(path)
    at = thing
    for part in way:
        at = at[index(at, part)] if isinstance(at, list) else at[part]
    if not isinstance(at, list):
        return at, last
    return at, len(at) if adds and last == "-" else index(at, last, adds)


def index(rows: list, text: str, adds: bool = False) -> int:
    found = int(text)
    if found < 0:
        found += len(rows) + adds
    if not 0 <= found < len(rows) + adds:
        raise Impossible
    return found


def add_value(thing: dict, path: str, value: Any) -> None:
    at, key = place(thing, path, adds=True)
    if isinstance(at, list):
        at.insert(key, value)
    else:
        at[key] = value


def add(thing: dict, step: dict) -> None:
    add_value(thing, step["path"], step["value"])


def remove(thing: dict, step: dict) -> None:
    at, key = place(thing, step["path"])
    del at[key]


def replace(thing: dict, step: dict) -> None:
    at, key = place(thing, step["path"])
    if isinstance(at, dict) and key not in at:
        raise Impossible
    at[key] = step["value"]


def move(thing: dict, step: dict) -> None:
    at, key = place(thing, step["from"])
    value = at.pop(key)
    add_value(thing, step["path"], value)


def duplicate(thing: dict, step: dict) -> None:
    at, key = place(thing, step["from"])
    add_value(thing, step["path"], copy.deepcopy(at[key]))


def test(thing: dict, step: dict) -> None:
    at, key = place(thing, step["path"])
    found = at.get(key) if isinstance(at, dict) else at[key]
    if found != step.get("value"):
        raise Impossible


STEPS: dict[str, Callable[[dict, dict], None]] = {
    **{"add": add, "remove": remove, "replace": replace},
    **{"move": move, "copy": duplicate, "test": test},
}
