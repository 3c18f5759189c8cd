"""The gate: what comes out of the bucket is checked here before anything is done with it.

Whoever may write to the bucket may have written anything under any name. `values` reads JSON,
`build` makes a dataclass of it, `clean` takes out of a text what would steer a terminal. They raise
ValueError for what does not pass; callers name the object and leave it alone.
"""

import json
import math
import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from berg import BergError, plain
from berg.checks import check_types, types_of

Made = TypeVar("Made")
MOST_BYTES = 16 << 20  # of one object that is read as JSON
LARGEST = 2**63 - 1  # of whole numbers; python has larger ones, which no float holds
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # of durations, in seconds
PROJECT = re.compile(r"([a-z0-9][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]*")
# A machine, a zone or a region, or LOCATION/NAME of a cluster: it becomes a part of a URL.
RESOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


def values(data: str | bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; raise ValueError for anything else.

    A key that is there twice is refused, and so are NaN and numbers that are out of range: two
    readers could understand them in two ways, or fail at them.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data):,} bytes")
    try:
        found = DECODER.decode(data if isinstance(data, str) else data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse_constant(word: str) -> None:
    raise ValueError(f"it has {word}")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"it has the number {digits[:20]}")
    return number


def _whole(digits: str) -> int:
    number = int(digits)
    if abs(number) > LARGEST:
        raise ValueError(f"it has the number {digits[:20]}")
    return number


DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=_refuse_constant,
    parse_float=_finite,
    parse_int=_whole,
)


def build(kind: type[Made], found: Any) -> Made:
    """Return the dataclass `kind` with the values that were found; keys that it lacks are ignored.

    Raise ValueError if a value is not of its field's type or one that has no default is missing.
    """
    assert is_dataclass(kind)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    known = types_of(kind)
    try:
        made = kind(**{key: value for key, value in found.items() if key in known})
    except TypeError as error:
        raise ValueError(str(error)) from None
    check_types(made)
    return made


def clean(found: Any) -> Any:
    """Return a value from JSON with a mark for each character that would steer a terminal."""
    if isinstance(found, str):
        return plain.clean(found)
    if isinstance(found, list):
        return [clean(each) for each in found]
    if isinstance(found, dict):
        return {clean(key): clean(each) for key, each in found.items()}
    return found


def one_line(found: Any) -> Any:
    """Return a value from JSON whose texts are `clean` and one line each."""
    if isinstance(found, str):
        return plain.line(found)
    if isinstance(found, list):
        return [one_line(each) for each in found]
    if isinstance(found, dict):
        return {one_line(key): one_line(each) for key, each in found.items()}
    return found


def cleaned(made: Made, free: Collection[str] = ()) -> Made:
    """Return a dataclass whose texts are `clean` and one line each; those of fields named in `free`
    may have several.
    """
    assert is_dataclass(made) and not isinstance(made, type)
    names = [f.name for f in fields(made)]
    texts = {name: clean(getattr(made, name)) for name in names if name in free}
    texts |= {name: one_line(getattr(made, name)) for name in names if name not in free}
    return replace(made, **texts)


def is_plain(data: str | bytes) -> bool:
    """Return whether no text of this JSON steers a terminal, has several lines or spaces that look
    like a new line: nothing in it is escaped. Most states are so, and need no look at each text.
    """
    if not isinstance(data, str) or not data.isascii():
        return False
    return "\\" not in data and "    " not in data and not plain.STEERING.search(data)


def check_plain(made: Any, free: Collection[str]) -> None:
    """Raise ValueError with the first text of a dataclass that steers a terminal or has many lines.

    Fields named in `free` may hold any text: nothing is done with it but showing it.
    """
    for f in fields(made):
        if f.type is not str or f.name in free:
            continue
        text = getattr(made, f.name)
        if plain.STEERING.search(text) or "\n" in text:
            raise ValueError(f"{f.name} is {text[:40]!r}")


def check_time(text: str) -> None:
    """Raise ValueError for what is neither empty nor a time with its zone in ISO 8601."""
    if text and datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is None:
        raise ValueError(f"{text[:40]!r} is a time without a zone")


def check_project(name: str) -> None:
    """Raise ValueError for what is neither empty nor a project's id, with its domain or without."""
    if name and not PROJECT.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is no project")


def check_resource(name: str) -> None:
    """Raise ValueError for what is neither empty nor the name of something of Google's."""
    if name and not RESOURCE.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is no name of a resource")


def parse_duration(text: str, unit: str = "") -> float:
    """Return a duration such as 90s, 30m, 2h or 3d in seconds; a number alone counts `unit`.

    Raise BergError for anything else.
    """
    letter = text[-1:] if text[-1:] in UNITS else ""
    try:
        number = float(text.removesuffix(letter))
    except ValueError:
        number = math.nan
    if math.isnan(number) or not (letter or unit or number == 0):
        raise BergError(f"{text!r} is not a duration: give one such as 90s, 30m, 2h or 3d")
    return number * UNITS.get(letter or unit, 1)
