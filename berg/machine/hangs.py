"""A job that seems to hang: found, explained, and ended only if that was asked for (--on-hang).

The machine that leads looks at metrics.jsonl, or without one at its log. After the first step, no
step for longer than 20 minutes and 8 times the longest pause so far, or for --max-silence, makes an
autopsy on all machines; the state and one notification say what it shows. Steps count, not lines:
in many hangs another thread continues to print. Only a running command counts. Not covered: jobs of
which only other machines print, and devboxes.
"""

import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berg import BergError, job, states
from berg.machine import autopsy, saving, watchdogs
from berg.machine.attempt import Attempt
from berg.machine.outcome import Ending, join
from berg.machine.process import GRACE, RESULTS, end_process, start_thread
from berg.plain import span

LOOK = 5.0  # seconds between two looks
LONGER = 8  # than the longest pause so far
TAIL = 16 << 10  # bytes of metrics.jsonl in which its last line is looked for
STEPS = ("step", "global_step", "iteration", "iter", "epoch")
UPLOAD_SECONDS, OTHERS_SECONDS = 60, 150  # for an autopsy to be sent, and for those of others

Mark = tuple[str, float]  # what moves, and where it is


@dataclass
class Pulse:
    """The steps of one run of a command. Times are seconds of any clock."""

    mark: Mark | None = None
    moved_at: float = 0
    steps: int = 0  # so far; the first pause that counts is after the first
    longest: float = 0  # pause between two steps

    def look(self, mark: Mark, now: float) -> float:
        """Note where the job is; return for how long it did not move, 0 before the first step."""
        if self.mark is None or mark != self.mark:
            if self.steps:
                self.longest = max(self.longest, now - self.moved_at)
            self.steps += self.mark is not None
            self.mark, self.moved_at = mark, now
        return now - self.moved_at if self.steps else 0

    def limit(self, least: float, given: float) -> float:
        """Return after how long without a step the job seems to hang."""
        return given or max(least, LONGER * self.longest)


def watch(attempt: Attempt) -> None:
    """Watch the command until this machine's part of the job ends."""
    if not attempt.job.cmd:
        return
    pulse, running, seen = Pulse(), None, attempt.state.hang_at
    pause = min(LOOK, (attempt.job.spec.max_silence or attempt.job.hang_seconds) / 4)
    while not attempt.mirrors.done.wait(pause):
        if not attempt.leads:
            if attempt.state.hang_at not in ("", seen):
                seen = attempt.state.hang_at
                examine(attempt, seen)
            continue
        if attempt.runner.command != running:
            pulse, running = Pulse(), attempt.runner.command
            settle(attempt)
        if running and attempt.state.state == "RUNNING" and not attempt.state.missing:
            with contextlib.suppress(OSError, ValueError):  # a line that is half written
                look(attempt, pulse)


def look(attempt: Attempt, pulse: Pulse) -> None:
    """Note where the job is, and act on a hang, once until it moves again."""
    spec, steps = attempt.job.spec, pulse.steps
    silent = pulse.look(mark_of(attempt), time.monotonic())
    if attempt.state.hang_at:
        if pulse.steps > steps:
            settle(attempt)
    elif silent > pulse.limit(attempt.job.hang_seconds, spec.max_silence):
        text = explain(attempt, pulse, silent)
        if attempt.mirrors.done.is_set() or mark_of(attempt) != pulse.mark:
            settle(attempt)  # it moved meanwhile
            return
        tell(attempt, text)
        pulse.mark = mark_of(attempt)  # the log has our own line
        act(attempt)


def settle(attempt: Attempt) -> None:
    """Take back that the job hangs."""
    if attempt.state.hang_at:
        attempt.states.write_quietly(hang="", hang_at="")


def mark_of(attempt: Attempt) -> Mark:
    """Return where the job is: its last step, or the size of its log."""
    file = RESULTS / attempt.job.results_dir / "metrics.jsonl"
    if not file.exists():
        return "line", attempt.machine.log.stat().st_size
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - TAIL))
        *_, last, _ = [b"", *lines.read().split(b"\n")]  # what follows the last newline is half
    row = json.loads(last)
    found = [row[key] for key in STEPS if isinstance(row.get(key), int | float)]
    return "step", found[0] if found else file.stat().st_size


def explain(attempt: Attempt, pulse: Pulse, silent: float) -> str:
    """Take the autopsy of all machines; return why the job seems to hang, and what its ranks do."""
    what = pulse.mark[0] if pulse.mark else "step"
    pause = span(60 * (silent // 60) or silent)
    text = join(f"no {what} for {pause}", gpus_in_words(attempt, silent))
    at = job.now()
    attempt.states.write_quietly(hang=text, hang_at=at)
    examine(attempt, at)
    return join(text, states.odd_one_out(collect(attempt, at)))


def tell(attempt: Attempt, text: str) -> None:
    """Write why the job seems to hang into its state and log, and tell the webhook."""
    folder = states.autopsy_folder(attempt.job.results_dir, attempt.state.hang_at)
    attempt.states.write_quietly(hang=text)
    attempt.say(f"It seems to hang: {text}. Stacks and more: berg_results/{folder}")
    watchdogs.of_hang(attempt, text)


def examine(attempt: Attempt, at: str) -> None:
    """Take this machine's autopsy, and send it to the bucket."""
    try:
        file = autopsy.take(attempt, Path(states.autopsy_folder(attempt.job.results_dir, at)).name)
        end = time.monotonic() + UPLOAD_SECONDS
        name = f"berg_results/{file.relative_to(RESULTS)}"
        while not attempt.bucket.get(name) and time.monotonic() < end:
            attempt.mirrors.done.wait(0.5)
            saving.send_changes(attempt, UPLOAD_SECONDS, only_new=True)
    except Exception as error:  # it never disturbs the job
        attempt.say(f"No autopsy: {getattr(error, 'message', error)}")


def collect(attempt: Attempt, at: str) -> Iterator[states.Autopsy]:
    """Yield the autopsies of all machines that come in time."""
    folder = f"berg_results/{states.autopsy_folder(attempt.job.results_dir, at)}"
    waiting = {f"{folder}/{each.name}.json" for each in attempt.member.nodes}
    end = time.monotonic() + OTHERS_SECONDS
    while waiting:
        for name in [*waiting]:
            if data := attempt.bucket.read(name):
                waiting.remove(name)
                with contextlib.suppress(ValueError, BergError):
                    yield states.read_autopsy(data)
        if time.monotonic() > end or attempt.mirrors.done.wait(1 if waiting else 0):
            return


def act(attempt: Attempt) -> None:
    """End the command of a job that hangs, or the job, if that was asked for."""
    how, text = attempt.job.spec.on_hang, f"it hangs (--max-silence): {attempt.state.hang}"
    if how == "fail":
        attempt.stop(Ending("FAILED", text))
    if how == "restart":
        attempt.say("Ending the command, which counts as its failure (--on-hang restart)")
        start_thread(end_process, attempt.runner.command, GRACE)


def gpus_in_words(attempt: Attempt, silent: float) -> str:
    """Return how busy this machine's GPUs are since the last step, and were before; "" without
    samples.
    """
    with contextlib.suppress(OSError, ValueError):
        samples = [json.loads(line) for line in attempt.usage_file.read_text().splitlines()]
        since = job.clock() - silent
        now = [gpu for each in samples if each["time"] > since for gpu in each["gpus"]]
        before = [gpu for each in samples if each["time"] <= since for gpu in each["gpus"]]
        busy, watt, usual = middle(now, "percent"), middle(now, "watt"), middle(before, "watt")
        if busy is None:
            return ""
        text = f"GPUs {busy:.0f} % busy"
        text += "" if watt is None else f" at {watt:.0f} W"
        return text + ("" if watt is None or usual is None else f" (usual {usual:.0f} W)")
    return ""


def middle(gpus: list[dict[str, Any]], key: str) -> float | None:
    found = [gpu[key] for gpu in gpus if gpu.get(key) is not None]
    return statistics.median(found) if found else None
