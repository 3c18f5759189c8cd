"""The one reader of metrics.jsonl, in which each line is an object: {"step": 100, "loss": 0.1}.

A line that is damaged is skipped and counted; the last one may be half written while a job runs.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from berg.bucket import Bucket
from berg.job import results_prefix

MOST = 64 << 20  # bytes that are read; of a longer file the last ones
STEPS = ("step", "global_step", "iteration", "iter", "epoch")  # say where a line is, the best first
TIMES = ("time", "timestamp", "wall_time")


@dataclass
class Metrics:
    lines: list[dict[str, Any]] = field(default_factory=list)  # without lists and objects
    damaged: int = 0

    @property
    def last(self) -> dict[str, Any]:
        """The last value of each metric."""
        return {key: value for line in self.lines for key, value in line.items()}

    def series(self) -> dict[str, list[tuple[float, float, float]]]:
        """Step, value and time of each metric's numbers. The number of a line is its step, where no key
        says that; the time is in seconds since 1970, 0 for unknown.
        """
        found: dict[str, list[tuple[float, float, float]]] = {}
        for count, line in enumerate(self.lines):
            numbers = {key: float(value) for key, value in line.items() if is_number(value)}
            at = next((key for key in STEPS if key in numbers), "")
            when = next((numbers[key] for key in TIMES if key in numbers), 0.0)
            for key in numbers.keys() - {at, *STEPS[:-1], *TIMES}:
                point = numbers.get(at, float(count)), numbers[key], when
                found.setdefault(key, []).append(point)
        return {key: found[key] for key in sorted(found)}

    def note(self, job: str) -> str:
        """What a reader is to be told; "" if every line could be read."""
        if not self.damaged:
            return ""
        lines = "1 line" if self.damaged == 1 else f"{self.damaged} lines"
        return f"{lines} of {job}'s metrics.jsonl cannot be read: left out"


def parse(content: bytes) -> Metrics:
    """All lines that can be read."""
    found = Metrics()
    for line in content.splitlines(keepends=True):
        try:
            values = json.loads(line.decode(errors="replace")).items()
        except (ValueError, AttributeError, RecursionError):
            found.damaged += bool(line.strip()) and line.endswith((b"\n", b"\r"))
            continue
        plain = {key: value for key, value in values if not isinstance(value, (list, dict))}
        found.lines.append(plain)
    return found


def of_results(bucket: Bucket, results: str) -> Metrics:
    """The metrics in a results folder; none without the file."""
    name = f"{results_prefix(results)}metrics.jsonl"
    try:
        answer = bucket.store.get(name)
        size = answer.meta["size"]
        if size <= MOST:
            return parse(bytes(answer.bytes()))
        content = bytes(bucket.store.get_range(name, start=size - MOST, length=MOST))
        return parse(content.partition(b"\n")[2])
    except FileNotFoundError:
        return Metrics()


def is_number(value: Any) -> bool:
    """Whether it is a finite number of JSON that a float can hold."""
    return type(value) in (int, float) and abs(value) < 1e300


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """Values as JSON may have them, which knows no NaN and no Infinity: null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def text(value: Any) -> str:
    """A value for a table."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
