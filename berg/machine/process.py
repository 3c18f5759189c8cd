"""The processes of a machine: the one worker, groups that end together, and what an exit code
means.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

from berg.machine import boot

RESULTS = boot.ROOT / "berg_results"
held: list = []  # the file whose lock says that this process is the machine's worker


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


def end_group(group: int, grace: float) -> None:
    """SIGTERM to a process group, SIGKILL to what is left of it after `grace` seconds."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        end = time.monotonic() + grace
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def judge(exit_code: int, where: str = "") -> tuple[str, str]:
    """Final state and reason for the exit code of a command that nobody stopped."""
    if exit_code == 0:
        return "SUCCEEDED", ""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number in signal.valid_signals():
        reason = f"the command was killed by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            reason += ", which is often the kernel when memory runs out"
    else:
        reason = f"the command failed with exit code {exit_code}"
    if where:
        reason += f" on {where}"
    return "FAILED", reason


def full_disk() -> str:
    """What the reason of a failure should add, if a disk of this machine is full."""
    for folder in (RESULTS, boot.ROOT, Path("/tmp")):
        if folder.exists() and shutil.disk_usage(folder).free < 1 << 20:
            return f"; the machine's disk is full ({folder}): ask for more with --disk-gb"
    return ""
