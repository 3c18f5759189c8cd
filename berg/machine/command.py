"""What runs on the machine for the job: one command at a time, in a process group of its own."""

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from berg.machine import boot, keeper
from berg.machine.process import end_group
from berg.machine.stopping import Stopped, Stopping

# process group of what runs, for a worker that comes after this one
COMMAND_FILE = boot.BERG / "command"
GRACE = 30  # seconds that a command has between SIGTERM and SIGKILL
# Failures with the same exit code, within so many seconds, after which a command runs no more.
MAX_FAILURES = 3
FAILURE_SECONDS = 60


Runs = subprocess.Popen[bytes] | None  # what runs, if anything does


@dataclass(frozen=True)
class Failure:
    began: float  # time.monotonic()
    exit_code: int


@dataclass
class Runner:
    """Runs commands, and ends the one that runs."""

    machine: boot.Machine
    stopping: Stopping
    process: Runs = None
    is_keeping: bool = False  # what runs is the job's command
    began: float = 0.0  # time.monotonic() at which the last command began
    failures: list[Failure] = field(default_factory=list)

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

    def note_failure(self, exit_code: int) -> None:
        """Remember that the last command failed."""
        self.failures.append(Failure(self.began, exit_code))

    def is_hopeless(self) -> bool:
        """Whether the last commands failed alike, one soon after the other."""
        last = self.failures[-MAX_FAILURES:]
        codes = {failure.exit_code for failure in last}
        if len(last) < MAX_FAILURES or len(codes) > 1:
            return False
        return time.monotonic() - last[0].began < FAILURE_SECONDS


def end_process(process: Runs, grace: float) -> None:
    """End what was started, if it runs still: SIGTERM, and SIGKILL after the grace."""
    if process and process.poll() is None:
        end_group(process.pid, grace)
