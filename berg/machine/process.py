"""The processes of a machine: its one worker, the job's command in a process group of its own, and
what an exit code means.
"""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from berg.machine import boot, keeper
from berg.machine.outcome import Ending, Stopped, Stopping

RESULTS = boot.ROOT / "berg_results"
COMMAND_FILE = boot.BERG / "command"  # process group of the command, for a later worker
RUNNING = boot.BERG / "running"  # there while the job's command runs
LOST_POWER = boot.BERG / "lost-power"  # that file, if a worker found it when it began
LEFT_FILE = boot.BERG / "left"  # how many processes the command left
ENDING_FILE = boot.BERG / "ending"  # there once the command's processes get SIGTERM (keeper.py)
CUT_FILE = boot.BERG / "cut"  # the files that it had open for writing when it was ended (keeper.py)
CONTAINER = "berg-command"  # of a command with --docker
# Where PyTorch's flight recorder of NCCL writes what it has, when "1" is written to the pipe of a
# rank; in a container, below its own root.
FLIGHT = "/tmp/berg_flight_"
# Seconds that a command has between SIGTERM and SIGKILL, usually and if Google takes the machine.
GRACE, PREEMPTION_GRACE = 30, 15
LOG_GRACE = 10  # seconds for the last output of a command to be in the log
MOST_FILES = 1 << 20  # open in one process; the kernel allows no more
SIGNALS = {each.value: each.name for each in signal.Signals}
# Failures with the same exit code, within so many seconds, after which a command runs no more.
MAX_FAILURES, FAILURE_SECONDS = 3, 60
Runs = subprocess.Popen[bytes] | None  # the running process, if there is one
held: list[TextIO] = []  # keeps the worker's lock until the process ends


def command_mark(name: str) -> Path:
    """Return the file that is made when the command of a job first begins on this disk."""
    return boot.BERG / f"command-{name}"


def is_alone() -> bool:
    """Return whether no other worker runs on this machine, and make this process the worker."""
    held.append((boot.BERG / "worker.lock").open("w"))
    try:
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def raise_limits() -> None:
    """Let this process, and so the job, use what it may: the limits of a unit, or of a pod."""
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC):
        most = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most, most))


def start_thread(target: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a daemon thread."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def delete_soon(machine: boot.Machine) -> None:
    """Delete a preempted machine at once: that saves the rest of its notice."""
    with contextlib.suppress(Exception):
        machine.delete(alone=True)


def new_cut() -> keeper.Cut:
    """Return what notes the results that a command writes when it is ended."""
    places = RESULTS, boot.ROOT / "code"
    return keeper.Cut(CUT_FILE, tuple(f"{os.path.realpath(each)}/" for each in places))


def end_group(group: int, grace: float, ending: Path | None = None) -> None:
    """SIGTERM to a process group; after `grace` seconds SIGKILL to what is left of it, and to what
    is below its first process in other groups.

    Those get SIGTERM from what started them, as the workers of a launcher do; from here once that
    has ended. Nothing gets it twice: who ends the group first makes the file `ending`, and who
    finds that there sends no SIGTERM.
    """
    cut, others = new_cut(), set[int]()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, 0)  # raises an error if the group is gone
        if ending is None or keeper.is_first(ending):
            with keeper.frozen(group):
                cut.look(group)
                others = {each for each in keeper.below(group) if keeper.group_of(each) != group}
                os.killpg(group, signal.SIGTERM)
        end = time.monotonic() + grace
        while time.monotonic() < end:
            os.killpg(group, 0)
            began = time.monotonic()
            cut.look(group)
            keeper.end_orphans(group, others, cut)
            time.sleep(max(keeper.POLL, 5 * (time.monotonic() - began)))
        keeper.kill_below(group, cut)
        os.killpg(group, signal.SIGKILL)


def end_process(process: Runs, grace: float) -> None:
    """End a command whose first process still runs: SIGTERM, and SIGKILL after the grace."""
    if process and process.poll() is None:
        end_group(process.pid, grace, ENDING_FILE)


@contextlib.contextmanager
def written_to(log: Path) -> Iterator[int]:
    """Provide the output of a command: a pipe whose content is appended to the log.

    Afterwards the log has all that the command wrote. A file would be truncated by programs that
    open /dev/stderr for writing.
    """
    pipe, output = os.pipe()
    with log.open("ab") as file:
        writer = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, "log", str(pipe)],
            stdin=subprocess.PIPE,
            stdout=file,
            pass_fds=[pipe],
            start_new_session=True,
        )
    os.close(pipe)
    try:
        yield output
    finally:
        os.close(output)
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer.communicate(timeout=LOG_GRACE)


def judge(exit_code: int, where: str = "") -> Ending:
    """Return how a command ended by itself; `where` is the machine, if it matters."""
    if exit_code == 0:
        return Ending("SUCCEEDED", "", 0)
    reason = f"the command failed with exit code {exit_code}"
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number in SIGNALS:
        reason = f"the command was killed by {SIGNALS[number]}"
    if number == signal.SIGKILL:
        reason += ", which is often the kernel when memory runs out"
    if number == signal.SIGPIPE:
        reason += ": what it wrote to ended first, as in `yes | head` (see --no-pipefail)"
    if where:
        reason += f" on {where}"
    return Ending("FAILED", reason, exit_code)


def shell_exit_code(exit_code: int | None) -> int | None:
    """Return an exit code as a shell gives it: 128 and the signal's number for a killed command."""
    return exit_code if exit_code is None or exit_code >= 0 else 128 - exit_code


def full_disk() -> str:
    """Return what to add to the reason of a failure if a disk of this machine is full."""
    for folder in (RESULTS, boot.ROOT, Path("/tmp")):
        if folder.exists() and shutil.disk_usage(folder).free < 1 << 20:
            return f"; the machine's disk is full ({folder}): ask for more with --disk-gb"
    return ""


@dataclass
class Runner:
    """Runs one command at a time."""

    machine: boot.Machine
    stopping: Stopping
    process: Runs = None
    is_keeping: bool = False  # the process is the job's command
    ended_alone: bool = False  # the job's last command ended before anything stopped it
    began: float = 0.0  # time.monotonic() at which the last command began
    # of each failure of the command, when it began (time.monotonic()) and its exit code
    failures: list[tuple[float, int]] = field(default_factory=list)

    def keep(self, command: list[str], folder: Path, environment: dict[str, str]) -> int:
        """Run a command as `execute` does, and end with it what it left in other sessions."""
        cut = new_cut()
        places = [str(LEFT_FILE), str(ENDING_FILE), str(CUT_FILE), ":".join(cut.folders)]
        program = [sys.executable, "-I", "-S", keeper.__file__, "keep", *places]
        LEFT_FILE.unlink(missing_ok=True)
        cut.note("=", [time.time_ns()])
        RUNNING.touch()
        self.is_keeping = True
        try:
            return self.execute([*program, *command], folder, environment)
        finally:
            self.is_keeping = False
            RUNNING.unlink(missing_ok=True)

    def leftovers(self) -> str:
        """Return a sentence on the processes that the last command left, "" if it left none or was
        stopped.
        """
        ran, count = "", 0
        with contextlib.suppress(OSError, ValueError):  # it was killed, or the disk is full
            ran, left = LEFT_FILE.read_text().split()
            count = int(left)
        if not count or not self.ended_alone:
            return ""
        what = "process, which was" if count == 1 else "processes, which were"
        return f"the command ended after {ran} s and left {count} {what} ended"

    @property
    def command(self) -> Runs:
        """The process of the job's command, while it runs."""
        return self.process if self.is_keeping else None

    def execute(self, command: list[str], folder: Path, environment: dict[str, str]) -> int:
        """Run a command with its output in the log, and return its exit code.

        Raise Stopped if the job is to end already.
        """
        if self.stopping.ending:
            raise Stopped
        self.began = time.monotonic()
        ENDING_FILE.unlink(missing_ok=True)
        with written_to(self.machine.log) as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=folder,
                env=environment,
            )
            COMMAND_FILE.write_text(str(self.process.pid))
            if self.stopping.ending:
                self.end()
            code = self.process.wait()
            self.ended_alone = self.is_keeping and not self.stopping.ending
            # Processes in the background would keep writing results.
            end_group(self.process.pid, keeper.LEFTOVER_GRACE, ENDING_FILE)
        COMMAND_FILE.unlink(missing_ok=True)
        return code

    def end(self) -> None:
        """End the running process: SIGTERM, and SIGKILL after the grace."""
        end_process(self.process, PREEMPTION_GRACE if self.stopping.machine_goes else GRACE)

    def fails_at_once(self, exit_code: int) -> bool:
        """Note that the last command failed; return whether the last ones failed in the same way
        within FAILURE_SECONDS.
        """
        self.failures.append((self.began, exit_code))
        last = self.failures[-MAX_FAILURES:]
        if len(last) < MAX_FAILURES or len({code for _, code in last}) > 1:
            return False
        return time.monotonic() - last[0][0] < FAILURE_SECONDS
