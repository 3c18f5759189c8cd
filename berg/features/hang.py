"""A job that seems to hang: what its processes do is written to its results, and the job ends.

The first machine looks at metrics.jsonl, or without one at what the command prints: in many hangs
another thread goes on printing. Not covered: devboxes, and jobs of which only other machines print.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from berg import BergError, install, machines, terminal
from berg.bucket import trouble
from berg.feature import Feature
from berg.job import RUNNING
from berg.options import duration, option, set_by

if TYPE_CHECKING:
    from berg.run import Plan
    from berg.worker import Ending, Run

LOOK = 5.0  # seconds between two looks
PROCESSES, SECONDS = 64, 10  # that are looked at, and for each of them
OTHERS = 40  # seconds for what the other machines write
# The innermost frame of a process's first thread, as py-spy prints it.
TOP = re.compile(
    r'^Process (\d+):.*?^Thread (?:\1\b[^\n]*|[^\n]*"MainThread"[^\n]*)\n +([^\n]+)', re.M | re.S
)


@dataclass
class Hang(Feature):
    max_silence: float = option(
        "--max-silence",
        default=0.0,
        type=duration,
        metavar="DURATION",
        help="Time without a step, after which a job seems to hang.",
    )
    on_hang: str = option(
        "--on-hang",
        default="report",
        type=click.Choice(["report", "fail", "restart"]),
        show_default=True,
        help="What to do after --max-silence.",
    )

    def __post_init__(self) -> None:
        self.is_on = self.is_reported = False
        self.mark, self.since, self.next = -1, 0.0, 0.0  # bytes; time.monotonic() of a change
        self.answered = ""  # the look of the first machine's that this one has joined

    def change(self, plan: Plan) -> None:
        if plan.job.is_devbox:
            if set_by("max_silence") == "command line":
                raise BergError("a devbox has no command that could hang. Leave out --max-silence")
            plan.drop(self)
            return
        if not self.max_silence:
            raise BergError("--on-hang needs a time: --max-silence 30m")
        if self.on_hang == "restart" and "Restart" not in plan.job.features:
            raise BergError("--on-hang restart counts as a failure. Add: --restart-on-failure N")
        plan.rows["Silence"] = f"{terminal.duration(self.max_silence)}, then {self.on_hang}"

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        threading.Thread(target=py_spy, args=(["--version"], 120), daemon=True).start()
        self.__post_init__()
        self.is_on, self.since = True, time.monotonic()
        yield
        self.is_on = False

    def look(self, run: Run) -> Ending | None:
        now = time.monotonic()
        if not self.is_on or run.has_ended or now < self.next:
            return None
        self.next = now + min(LOOK, self.max_silence / 4)
        if not run.leads:
            at = str(run.peers.records.get(0, {}).get("silent_at", ""))
            if at > self.answered:
                self.answered = at
                examine(run, at)
                machines.tell(run, run.peers.phase, examined=at)
            return None
        if (mark := progress(run)) != self.mark:
            self.mark, self.since = mark, now
            if self.is_reported:
                self.is_reported = False
                note(run, "")
        elif now - self.since > self.max_silence and not self.is_reported:
            return self.found(run)
        return None

    def found(self, run: Run) -> Ending | None:
        """Write what all machines do, and say it."""
        from berg.worker import Ending

        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        if run.job.machines > 1:
            machines.tell(run, run.peers.phase, silent_at=at)
        frames = examine(run, at)
        end = time.monotonic() + OTHERS
        while time.monotonic() < end and len(run.peers.records) > 1:
            others = [row for rank, row in run.peers.records.items() if rank]
            if all(row.get("examined") == at for row in others):
                break
            time.sleep(0.2)
        if progress(run) != self.mark:
            return None  # it went on meanwhile
        rarest = [f"{count} in {frame}" for frame, count in reversed(frames.most_common())]
        reason = f"it seems to hang: no step for {terminal.duration(self.max_silence)}"
        reason += f"; {', '.join(rarest[:3])}" * bool(rarest)
        if self.on_hang != "report":
            reason += f". See autopsy/{at} in its results"
            return Ending("FAILED", reason, is_firm=self.on_hang == "fail")
        run.say(f"{reason}. See autopsy/{at} in its results")
        note(run, reason)
        self.mark, self.is_reported = progress(run), True  # the log has a line of ours
        return None


def note(run: Run, reason: str) -> None:
    """Give the state a reason; the next sign of life has it if the bucket is away."""
    with contextlib.suppress(*trouble()):
        run.write_state(RUNNING, reason=reason)


def progress(run: Run) -> int:
    """The size of what grows with each step."""
    from berg.worker import RESULTS

    steps = RESULTS / run.job.results / "metrics.jsonl"
    with contextlib.suppress(OSError):
        return (steps if steps.exists() else run.log).stat().st_size
    return -1


def examine(run: Run, at: str) -> Counter[str]:
    """Write what the command's processes on this machine do; how many Python ones are where."""
    from berg.worker import RESULTS

    pids = run.command.members()[:PROCESSES]
    with ThreadPoolExecutor(8) as pool:
        texts = [*pool.map(stack, pids)]
    file = RESULTS / run.job.results / "autopsy" / at / f"{run.facts.name}.txt"
    with contextlib.suppress(OSError):  # the disk may be full
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n\n".join(texts) + "\n")
    return Counter(top[2] for text in texts if (top := TOP.search(text)))


def stack(pid: int) -> str:
    """What a process does: its Python stacks, or where it is in the kernel."""
    folder = Path(f"/proc/{pid}")
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        about = f"Process {pid}: {words.strip()}"
        if "python" in os.readlink(folder / "exe").rpartition("/")[2]:
            return py_spy(["dump", "--nonblocking", "--pid", str(pid)], SECONDS) or about
        state = (folder / "stat").read_text().rpartition(") ")[2][0]
        kernel = (folder / "wchan").read_text()
        with contextlib.suppress(OSError):
            kernel += "\n" + (folder / "stack").read_text().rstrip()
        return f"{about}\nState {state}, in {kernel}"
    except OSError as error:
        return f"Process {pid}: {error}"


def py_spy(words: list[str], seconds: float) -> str:
    """What py-spy says, which uv installs when it is first needed."""
    command = [install.program() or "uv", "tool", "run", "-q", "py-spy", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        return (done.stdout or f"Python process {words[-1]}: {done.stderr}").strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Python process {words[-1]}: {error}"
