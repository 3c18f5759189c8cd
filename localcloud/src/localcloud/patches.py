"""How a merge patch (RFC 7386) changes an object. Not covered: other kinds of patches."""

from typing import Any


def merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    new = old if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merge(new.get(name), value)
    return new
