"""The processes of a machine: the one worker, groups that end together, and what an exit code
means.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from berg.machine import boot, keeper
from berg.machine.outcome import Ending

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
