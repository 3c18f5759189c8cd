"""The processes of a machine: the one worker, groups that end together, and what an exit code
means.

What runs on the machine for the job: one command at a time, in a process group of its own.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from berg.machine import boot, keeper
from berg.machine.outcome import Ending, Stopped, Stopping

RESULTS = boot.ROOT / "berg_results"

held: list[TextIO] = []  # the file whose lock says that this process is the machine's worker


def is_alone() -> bool:
    """Whether no other worker runs on this machine; from now on this one does, until its process
    ends.
    """
    held.append((boot.BERG / "worker.lock").open("w"))
    try:
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def start_thread(target: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a thread that ends with this process at the latest, and return it."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def delete_soon(machine: boot.Machine) -> None:
    """Delete a machine that Google takes soon: that saves what is left of its notice."""
    with contextlib.suppress(Exception):
        machine.delete(alone=True)


def end_group(group: int, grace: float) -> None:
    """SIGTERM to a process group, SIGKILL to what is left of it after `grace` seconds, and to what
    is below its first process in other groups.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        end = time.monotonic() + grace
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.05)
        keeper.kill_below(group)
        os.killpg(group, signal.SIGKILL)


def judge(exit_code: int, where: str = "") -> Ending:
    """Return how a command ended that nobody stopped; `where` is the machine, if it matters."""
    if exit_code == 0:
        return Ending("SUCCEEDED", "", 0)
    reason = f"the command failed with exit code {exit_code}"
    number = signal_of(exit_code)
    if number in signal.valid_signals():
        reason = f"the command was killed by {signal.Signals(number).name}"
    if number == signal.SIGKILL:
        reason += ", which is often the kernel when memory runs out"
    if where:
        reason += f" on {where}"
    return Ending("FAILED", reason, exit_code)


def signal_of(exit_code: int) -> int:
    """Return the number of the signal that an exit code speaks of, if it speaks of one."""
    if exit_code < 0:
        return -exit_code
    return exit_code - 128


def shell_exit_code(exit_code: int | None) -> int | None:
    """Return an exit code as a shell gives it: 128 and the signal's number for a killed command."""
    if exit_code is None or exit_code >= 0:
        return exit_code
    return 128 - exit_code


def full_disk() -> str:
    """Return what to add to the reason of a failure if a disk of this machine is full."""
    for folder in (RESULTS, boot.ROOT, Path("/tmp")):
        if folder.exists() and shutil.disk_usage(folder).free < 1 << 20:
            return f"; the machine's disk is full ({folder}): ask for more with --disk-gb"
    return ""


# process group of what runs, for a worker that comes after this one
COMMAND_FILE = boot.BERG / "command"

GRACE = 30  # seconds that a command has between SIGTERM and SIGKILL

# Failures with the same exit code, within so many seconds, after which a command runs no more.
MAX_FAILURES = 3

FAILURE_SECONDS = 60

Runs = subprocess.Popen[bytes] | None  # what runs, if anything does


@dataclass
class Runner:
    """Runs commands, and ends the one that runs."""

    machine: boot.Machine
    stopping: Stopping
    process: Runs = None
    is_keeping: bool = False  # what runs is the job's command
    began: float = 0.0  # time.monotonic() at which the last command began
    # of each failure of the command, when it began (time.monotonic()) and its exit code
    failures: list[tuple[float, int]] = field(default_factory=list)

    def keep(self, command: list[str], folder: Path, environment: dict[str, str]) -> int:
        """Run a command as `execute` does, and end with it what it left in other sessions."""
        program = [sys.executable, "-I", "-S", keeper.__file__]
        self.is_keeping = True
        try:
            return self.execute([*program, *command], folder, environment)
        finally:
            self.is_keeping = False

    @property
    def command(self) -> Runs:
        """The process of the job's command, while it runs."""
        if not self.is_keeping:
            return None
        return self.process

    def execute(self, command: list[str], folder: Path, environment: dict[str, str]) -> int:
        """Run a command with its output in the log, and return its exit code.

        Raises Stopped if the job is to end already.
        """
        if self.stopping.ending:
            raise Stopped
        self.began = time.monotonic()
        with self.machine.log.open("ab") as output:
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
        # What it left in the background would go on writing results.
        end_group(self.process.pid, keeper.LEFTOVER_GRACE)
        COMMAND_FILE.unlink(missing_ok=True)
        return code

    def end(self, grace: float = GRACE) -> None:
        """End what runs: SIGTERM, and SIGKILL after the grace."""
        end_process(self.process, grace)

    def fails_at_once(self, exit_code: int) -> bool:
        """Note that the last command failed; return whether the last ones failed in the same way
        within FAILURE_SECONDS.
        """
        self.failures.append((self.began, exit_code))
        last = self.failures[-MAX_FAILURES:]
        if len(last) < MAX_FAILURES or len({code for _, code in last}) > 1:
            return False
        return time.monotonic() - last[0][0] < FAILURE_SECONDS


def end_process(process: Runs, grace: float) -> None:
    """End what was started, if it runs still: SIGTERM, and SIGKILL after the grace."""
    if process and process.poll() is None:
        end_group(process.pid, grace)
