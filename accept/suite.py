"""Rows, their verdicts, and the run that makes a table of them.

A row is a function that gets a `Trial` (world.py) and returns if the promise holds. It says no by
raising `Red` with a reason of one line; `Missing` means that this berg does not offer the thing.
"""

import contextlib
import json
import queue
import random
import re
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

AREAS = ["story", "data", "savers", "disks", "machines", "money", "processes", "hostile", "speed"]


class Red(Exception):
    """The promise does not hold; the message is the reason, in one line."""


class Missing(Exception):
    """This berg does not offer what the row is about."""


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
    is_alone: bool = False  # no other row runs meanwhile: it measures time

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
    """The verdict of one row; whatever it raises is one."""
    began, status, reason = time.monotonic(), "green", ""
    try:
        trial.begin(row, seed)
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
    return Verdict(row.key, row.promise, status, reason, seconds, seed, told)


def seed_of(row: Row, seed: int) -> int:
    """Each row has its own seed, whatever runs before it."""
    return zlib.crc32(f"{row.key} {seed}".encode())


def run(rows: list[Row], trials: list[Any], seed: int, rounds: int) -> Iterator[Verdict]:
    """Try all rows on so many trials side by side; those that measure come last, alone.

    The first round has the given seed, so that two runs are the same; further rounds draw theirs.
    """
    tasks: queue.Queue[tuple[Row, int]] = queue.Queue()
    ended: queue.Queue[Verdict] = queue.Queue()
    fresh = random.SystemRandom()
    pairs = [(row, seed_of(row, seed)) for row in rows]
    pairs += [(row, fresh.randrange(1 << 32)) for _ in range(rounds - 1) for row in rows]
    alone = [pair for pair in pairs if pair[0].is_alone]
    for pair in pairs:
        if not pair[0].is_alone:
            tasks.put(pair)

    def work(trial: Any) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                row, drawn = tasks.get_nowait()
                ended.put(tried(row, trial, drawn))

    for trial in trials:
        threading.Thread(target=work, args=[trial], daemon=True).start()
    for _ in range(len(pairs) - len(alone)):
        yield ended.get()
    for row, drawn in alone:
        yield tried(row, trials[0], drawn)


MARKS = {"green": "green  ", "red": "RED    ", "missing": "missing"}


def line(verdict: Verdict) -> str:
    """One line of the table."""
    what = verdict.reason or verdict.promise
    return f"{MARKS[verdict.status]} {verdict.row:<58} {verdict.seconds:>6.1f} s  {what}"


def summary(verdicts: list[Verdict]) -> list[str]:
    """A line for each area: how many rows are green, red, and not offered."""
    lines = [f"{'area':<12} {'green':>6} {'red':>6} {'missing':>8}"]
    counts = {area: Counter[str]() for area in AREAS}
    for verdict in verdicts:
        counts[verdict.row.partition("/")[0]][verdict.status] += 1
    counts["all"] = sum(counts.values(), Counter())
    for area, count in counts.items():
        if count:
            lines.append(f"{area:<12} {count['green']:>6} {count['red']:>6} {count['missing']:>8}")
    return lines


def save(path: Path, about: dict[str, Any], verdicts: list[Verdict]) -> None:
    path.write_text(json.dumps({**about, "rows": [asdict(each) for each in verdicts]}, indent=1))


def compare(first: Path, second: Path) -> list[str]:
    """Lines about the rows whose status differs between two files; a row of several rounds is red
    if one of them is.
    """

    def statuses(path: Path) -> dict[str, tuple[str, str]]:
        reds_last = sorted(json.loads(path.read_text())["rows"], key=lambda e: e["status"] == "red")
        return {each["row"]: (each["status"], each["reason"]) for each in reds_last}

    one, two = statuses(first), statuses(second)
    lines = []
    for key in sorted({*one, *two}):
        before, after = one.get(key, ("absent", "")), two.get(key, ("absent", ""))
        if before[0] != after[0]:
            lines.append(
                f"{key:<58} {before[0]:>8} -> {after[0]:<8} {(after[1] or before[1])[:200]}"
            )
    return lines or ["no row differs"]
