"""What Go's decoder says of a text that is no JSON: a refusal of Kubernetes' quotes it."""

from __future__ import annotations

import json
import re
from typing import Any

END = "unexpected end of JSON input"
VALUE = "looking for beginning of value"
# What Python's decoder says -> what Go's does.
PLACES = {
    "Expecting property name": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
    "Invalid control character": "in string literal",
    "Invalid \\escape": "in string escape code",
    "Illegal trailing comma": VALUE,
}
WORDS = ("true", "false", "null")
HEAD = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
KINDS = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}


class Broken(ValueError):
    """A text that is no JSON; its text is Go's."""


def loads(text: str, **options: Any) -> Any:
    try:
        return json.loads(text, parse_constant=constant, **options)
    except json.JSONDecodeError as error:
        raise Broken(explained(text, error)) from None
    except RecursionError:
        raise Broken("exceeded max depth") from None


def constant(name: str) -> Any:
    """NaN and its like, which Python's decoder reads."""
    raise Broken(f"invalid character {quoted(name.lstrip('-')[0])} {VALUE}")


def explained(text: str, error: json.JSONDecodeError) -> str:
    at = error.pos + len(text[error.pos :]) - len(text[error.pos :].lstrip(" \t\r\n"))
    if error.msg.startswith("Unterminated string") or at >= len(text):
        return END
    if error.msg.startswith("Expecting value") and text[at] in "tfn":
        return misspelt(text[at:])
    where = next((told for said, told in PLACES.items() if error.msg.startswith(said)), VALUE)
    if error.msg.startswith("Expecting ',' delimiter"):
        where = (
            f"after {'array element' if innermost(text[:at]) == '[' else 'object key:value pair'}"
        )
    if error.msg.startswith("Invalid \\escape"):
        at += 1
    return f"invalid character {quoted(text[at : at + 1])} {where}"


def misspelt(text: str) -> str:
    """Of what begins as true, false or null does."""
    word = next(each for each in WORDS if each[0] == text[0])
    for wanted, letter in zip(word, text, strict=False):
        if wanted != letter:
            return f"invalid character {quoted(letter)} in literal {word} (expecting '{wanted}')"
    return END


def innermost(text: str) -> str:
    """The bracket that is open where a text ends."""
    brackets = re.findall(r"[][{}]", re.sub(r'"(\\.|[^"\\])*"', "", text))
    opened: list[str] = []
    for each in brackets:
        opened = [*opened, each] if each in "[{" else opened[:-1]
    return opened[-1] if opened else ""


def quoted(letter: str) -> str:
    """A character as Go's decoder shows it."""
    return {"'": r"'\''", '"': "'\"'"}.get(letter) or f"'{json.dumps(letter)[1:-1]}'"


def check_head(body: Any) -> None:
    """Raise what Go says of a body whose version and kind cannot be read."""
    if not isinstance(body, dict):
        kind = KINDS.get(type(body), "null")
        raise Broken(f"json: cannot unmarshal {kind} into Go value of type {HEAD}")
    for name in ("apiVersion", "kind"):
        value = body.get(name)
        if value is not None and not isinstance(value, str):
            kind = KINDS[type(value)]
            told = f"json: cannot unmarshal {kind} into Go struct field .{name} of type string"
            raise Broken(told)


def summary(data: bytes) -> str:
    """The beginning of a body as a refusal shows it."""
    if not data:
        return "<empty>"
    shown = data[:30].decode(errors="replace") if data[:1] == b"{" else data[:30].hex()
    return shown + (" ..." if len(data) > 30 else "")


def printed(value: Any) -> str:
    """A value as Go prints one (%+v)."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{printed(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(printed, value))}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)
