"""Rows, their verdicts, and the run that makes a table of them.

A row is a function that gets a `Trial` (world.py) and returns if the promise holds. It says no by
raising `Red` with a reason of one line; `Missing` means that something it needs is not installed.
"""

import contextlib
import queue
import re
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

AREAS = ["story", "data", "savers", "machines", "processes", "hostile"]


class Red(Exception):
    """The promise does not hold; the message is the reason, in one line."""


class Missing(Exception):
    """What the row needs is not installed."""


@dataclass
class Row:
    """A promise, and the function that tries it."""

    area: str
    name: str
    promise: str
    function: Callable[..., str | None]
    options: dict[str, Any]
    is_real: bool = False  # can be tried on Google's cloud
    usd: float = 0.0  # what it costs there, at most
    is_sample: bool = False  # one of those that continuous integration runs
    minutes: float = 5.0  # more means that it hangs

    @property
    def key(self) -> str:
        return f"{self.area}/{self.name}"


@dataclass
class Verdict:
    row: str
    promise: str
    status: str  # green, red, or missing
    reason: str
    seconds: float
    seed: int
    output: list[str] = field(default_factory=list)  # the last commands, with what they printed

    def __str__(self) -> str:
        mark = "RED" if self.status == "red" else self.status
        return f"{mark:<7} {self.row:<58} {self.seconds:>6.1f} s  {self.reason or self.promise}"


ROWS: list[Row] = []


def row(area: str, promise: str, name: str = "", **options: Any) -> Callable[..., Any]:
    """Register a function as a row; options are those of `Row`, the rest goes to the function."""
    assert area in AREAS, area
    own = {key: options.pop(key) for key in list(options) if key in Row.__dataclass_fields__}

    def register(function: Callable[..., str | None]) -> Callable[..., str | None]:
        title = name or function.__name__.replace("_", " ")
        made = Row(area, title, promise, function, options, **own)
        assert made.key not in {other.key for other in ROWS}, f"two rows are called {made.key}"
        ROWS.append(made)
        return function

    return register


def check(condition: Any, reason: str) -> None:
    """Raise Red with the reason unless the condition holds."""
    if not condition:
        raise Red(reason)


def all_hold(facts: dict[str, Any]) -> None:
    """Check facts by what is wrong if they do not hold; red with all that are wrong."""
    wrong = [reason for reason, holds in facts.items() if not holds]
    check(not wrong, "; ".join(wrong))


def chosen(only: str, is_real: bool, is_sample: bool) -> list[Row]:
    """Rows whose key matches a word of `only` (a regular expression each, separated by spaces)."""
    rows = [
        row
        for row in ROWS
        if any(re.search(word, row.key) for word in only.split() or [""])
        and (row.is_real or not is_real)
        and (row.is_sample or not is_sample)
    ]
    return sorted(rows, key=lambda row: AREAS.index(row.area))


def tried(row: Row, trial: Any, seed: int) -> Verdict:
    """The verdict of one row; whatever it raises is one. Each row draws from a seed of its own."""
    began, status, reason = time.monotonic(), "green", ""
    drawn = zlib.crc32(f"{row.key} {seed}".encode())
    try:
        trial.begin(row, drawn)
        reason = row.function(trial, **row.options) or ""
    except Missing as error:
        status, reason = "missing", str(error)
    except Red as error:
        status, reason = "red", str(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        status, reason = "red", f"{type(error).__name__}: {error} ({last.name}:{last.lineno})"
    finally:
        if status == "red":
            trial.told.append(trial.evidence())
        try:
            trial.end()
        except Exception as error:
            if status == "green":
                status, reason = "red", f"clean-up: {type(error).__name__}: {error}"
    seconds = round(time.monotonic() - began, 1)
    reason = " ".join(reason.split())[:400]
    told = trial.told[-12:] if status == "red" else []
    return Verdict(row.key, row.promise, status, reason, seconds, drawn, told)


def run(rows: list[Row], trials: list[Any], seed: int) -> Iterator[Verdict]:
    """Try all rows on so many trials side by side."""
    waiting = [*reversed(rows)]
    ended: queue.Queue[Verdict] = queue.Queue()

    def work(trial: Any) -> None:
        with contextlib.suppress(IndexError):
            while True:
                ended.put(tried(waiting.pop(), trial, seed))

    for trial in trials:
        threading.Thread(target=work, args=[trial], daemon=True).start()
    for _ in rows:
        yield ended.get()
