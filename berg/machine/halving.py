"""Successive halving without a controller: a job of a sweep ends itself if it is among the worst.

At each rung, a step of the job's own metrics, it writes its value into its state, reads what its
siblings had there in one list of states, and goes on if it is among the best 1/eta of those that
came so far: the rule of ASHA (Li et al., 2020, https://arxiv.org/abs/1810.05934), as stopping jobs
that run in place of promoting those that wait. Nobody waits for anybody, so that the first at a
rung goes on. What was decided stands in the state, and is not decided again after a restart.

Values come from metrics.jsonl in the job's results folder, and where that has no such metric, from
TensorBoard's event files anywhere in it.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from berg import states
from berg.google import events
from berg.machine.attempt import Attempt
from berg.machine.outcome import Ending
from berg.machine.process import RESULTS

LOOK = 1.0  # seconds between two looks at the metrics
EVENTS_LOOK = 10.0  # and at event files
LARGEST = 64 << 20  # bytes of an event file
USUAL_FACTOR = 3.0
HIGHEST = "max:"  # before the name of a metric of which more is better
WORST = sys.float_info.max

Points = Sequence[tuple[int, float, float]]  # step, value, time
NONE: Points = ()


def watch(attempt: Attempt) -> None:
    """Compare the job with its siblings at each rung, until it ends."""
    this = attempt.job
    if not (attempt.sweep and this.stop_worst):
        return
    folder = RESULTS / this.results_dir
    files = EventFiles(folder)
    while not attempt.mirrors.done.wait(LOOK):
        # A file that is not there yet, or half written; the network may fail for a while.
        with contextlib.suppress(Exception):
            look(attempt, lines_in(folder), files.series(this.stop_worst.removeprefix(HIGHEST)))


def lines_in(folder: Path) -> str:
    """Return what metrics.jsonl has so far; "" where there is none."""
    file = folder / "metrics.jsonl"
    return file.read_text(errors="replace") if file.exists() else ""


class EventFiles:
    """The event files below a folder, of which each is read again when it has grown."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.due = 0.0
        self.read: dict[Path, tuple[int, events.Series]] = {}

    def series(self, tag: str) -> Points:
        """Return what they have of a tag so far, by step."""
        if time.monotonic() > self.due:
            for path in self.folder.rglob("*tfevents*"):
                self.look_at(path)
            self.due = time.monotonic() + EVENTS_LOOK
        return sorted(point for _, found in self.read.values() for point in found.get(tag, []))

    def look_at(self, path: Path) -> None:
        """Read a file, unless it is as it was, or larger than files of numbers are."""
        size = path.stat().st_size
        if self.read.get(path, (0, {}))[0] != size <= LARGEST:
            self.read[path] = size, events.scalars(path)


def look(attempt: Attempt, text: str, points: Points = NONE) -> None:
    """Act on the rungs that the job has come to, by lines of metrics, or points of event files."""
    for step in attempt.job.rungs:
        is_over = attempt.stopping.ending or attempt.state.state != "RUNNING"
        if is_over or str(step) in attempt.state.rungs:
            continue
        value = value_at(text, step, attempt.job.stop_worst)
        if value is None:
            value = value_among(points, step, attempt.job.stop_worst)
        if value is None:
            return
        judge(attempt, step, value)


def value_at(text: str, step: int, metric: str) -> float | None:
    """Return a metric at its first line of that step or later, so that less is better; None if it
    is not there yet. What is no number is the worst.
    """
    name = metric.removeprefix(HIGHEST)
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            return None  # cut off in the middle of a line
        if step_of(row) >= step and name in row:
            return signed(row[name], metric)
    return None


def value_among(points: Points, step: int, metric: str) -> float | None:
    """Return the value of the first point of that step or later, as `value_at` does it."""
    for there, value, _ in points:
        if there >= step:
            return signed(value, metric)
    return None


def step_of(row: Any) -> float:
    """Return the step that a line of metrics is of, or its epoch; -1 for a line without."""
    if not isinstance(row, dict):
        return -1
    found = row.get("step", row.get("epoch", -1))
    return found if isinstance(found, int | float) else -1


def signed(value: Any, metric: str) -> float:
    """Return a value of which less is better."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return WORST
    if metric.startswith(HIGHEST):
        return -float(value)
    return float(value)


def judge(attempt: Attempt, step: int, value: float) -> None:
    """Note the value at a rung, and end the job if it is not among the best there."""
    attempt.states.write(rungs={**attempt.state.rungs, str(step): value})
    attempt.states.flush()
    others = values_of_others(attempt, str(step))
    rank, count = 1 + sum(other < value for other in others), 1 + len(others)
    metric = attempt.job.stop_worst.removeprefix(HIGHEST)
    where = f"at step {step}: number {rank} of {count} by {metric}"
    if rank <= kept(count, attempt.job.rungs):
        attempt.say(f"Goes on {where}")
        return
    attempt.stop(Ending("SUCCEEDED", f"stopped {where}", 0))


def values_of_others(attempt: Attempt, step: str) -> list[float]:
    """Return what the siblings had at a rung that they came to before."""
    found = []
    for stored in states.listed(attempt.bucket, f"{attempt.sweep}-"):
        is_sibling = stored.state.job.sweep == attempt.sweep and stored.name != attempt.name
        if is_sibling and step in stored.state.rungs:
            found.append(stored.state.rungs[step])
    return found


def kept(count: int, rungs: list[int]) -> int:
    """Return how many of so many go on: one in as many as a rung is times the one before."""
    factor = USUAL_FACTOR
    if len(rungs) > 1:
        factor = rungs[1] / rungs[0]
    return max(1, int(count / factor))
