"""Runs the job's command, and ends with it whatever it left behind.

A process that the command started in a session of its own would go on writing results, and the job
would never end. So this stands between the worker and the command, as a program of its own: the
kernel makes it the parent of whatever loses its own. It gets SIGTERM with the command's group and
leaves it to the command; it exits with the command's exit code, as a shell tells it, when nothing
is left below it.

Not covered: what another daemon starts for the command, such as docker run -d.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

LEFTOVER_GRACE = 5  # seconds between SIGTERM and SIGKILL for what a command left behind
KILL_SECONDS = 5  # for what was killed to be gone; what hangs in the kernel stays
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL = 0.05  # seconds


def main() -> None:
    """Run the command in the arguments."""
    adopt_orphans()
    signal.signal(
        signal.SIGTERM, lambda *_: None
    )  # unlike SIG_IGN, the command does not inherit it
    ignored_by_python = [signal.SIGPIPE, signal.SIGXFSZ]
    command = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, setsigdef=ignored_by_python)
    code = wait_for(command)
    end_below(os.getpid(), LEFTOVER_GRACE)
    sys.exit(code)


def adopt_orphans() -> None:
    """Become the parent of processes below this one that lose theirs."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for(process: int) -> int:
    """Wait for a child, and for others on the way; return its exit code as a shell tells it."""
    while True:
        ended, status = os.wait()
        if ended != process:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return 128 - code
        return code


def end_below(ancestor: int, grace: float) -> None:
    """SIGTERM to all processes below one, SIGKILL to what is left of them after the grace."""
    send(ancestor, signal.SIGTERM)
    end = time.monotonic() + grace
    while below(ancestor) and time.monotonic() < end:
        time.sleep(POLL)
    kill_below(ancestor)


def kill_below(ancestor: int) -> None:
    """SIGKILL to all processes below one, also to those that are started meanwhile."""
    end = time.monotonic() + KILL_SECONDS
    while below(ancestor) and time.monotonic() < end:
        send(ancestor, signal.SIGKILL)
        time.sleep(POLL)


def send(ancestor: int, number: int) -> None:
    for process in below(ancestor):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def below(ancestor: int) -> list[int]:
    """Return the processes below one that have not ended."""
    children: dict[int, list[int]] = {}
    for process, parent in living():
        children.setdefault(parent, []).append(process)
    found = [ancestor]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def living() -> list[tuple[int, int]]:
    """Return all processes that have not ended, each with its parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended just now
            # after the name, which may hold anything: the state, the parent, …
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.append((int(folder.name), int(fields[1])))
    return found


if __name__ == "__main__":
    main()
