"""The programs between the worker and the job's command; standard library only.

    keep LEFT COMMAND…   runs the command as its parent, and ends what it left behind
    log PIPE             appends what comes out of a pipe, the command's output, to the log

A process that the command left, in a session of its own, would keep writing results, and the job
would never end. The kernel makes `keep` (a subreaper) the parent of all orphans below it. It
ignores the signals of its process group, which the command gets, too. It exits with the command's
exit code, as a shell gives it, when no process is left below it. Not covered: what another daemon
starts (docker run -d).

`log` writes to its standard output. Its standard input closes when the command has ended; it then
exits as soon as the pipe is empty. A copy of it stays while a background process holds the pipe. It
also outlives a worker that dies, so that no program loses its output.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

HELPER_SECONDS = 0.5  # for helpers of the command that end by themselves when it has ended
LEFTOVER_GRACE = 5  # seconds between SIGTERM and SIGKILL for what a command left behind
KILL_SECONDS = 5  # for killed processes to be gone; those that hang in the kernel stay
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL = 0.05  # seconds
# Signals that no program can ignore, and those of its own faults.
DEADLY = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
DEADLY |= {signal.SIGILL}
CHUNK = 1 << 16  # bytes, the usual capacity of a pipe
MISSING = "\n[berg] %d bytes of output are missing here: the log could not be written\n"


def keep(left_file: Path, program: list[str]) -> None:
    """Run a command, and write to a file after how many seconds it ended, and how many processes it
    left.
    """
    began = time.monotonic()
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in signal.valid_signals() - DEADLY:
        # unlike SIG_IGN, the command does not inherit it
        signal.signal(number, lambda *_: None)
    command = os.posix_spawnp(program[0], program, os.environ)
    ended = None
    while ended != command:  # orphans end, too
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    ran, end = time.monotonic() - began, time.monotonic() + HELPER_SECONDS
    while below(os.getpid()) and time.monotonic() < end:
        time.sleep(POLL)
    with contextlib.suppress(OSError):  # a full disk
        left_file.write_text(f"{ran:.0f} {len(below(os.getpid()))}")
    end_below(os.getpid(), LEFTOVER_GRACE)
    sys.exit(code if code >= 0 else 128 - code)


def end_below(ancestor: int, grace: float) -> None:
    """SIGTERM to all processes below one, SIGKILL to what is left of them after the grace."""
    send(ancestor, signal.SIGTERM)
    end = time.monotonic() + grace
    while below(ancestor) and time.monotonic() < end:
        time.sleep(POLL)
    kill_below(ancestor)


def kill_below(ancestor: int) -> None:
    """SIGKILL to all processes below one, also to those that start meanwhile."""
    end = time.monotonic() + KILL_SECONDS
    while below(ancestor) and time.monotonic() < end:
        send(ancestor, signal.SIGKILL)
        time.sleep(POLL)


def send(ancestor: int, number: int) -> None:
    for process in below(ancestor):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def below(ancestor: int) -> list[int]:
    """Return the living processes below one."""
    children: dict[int, list[int]] = {}
    for process, parent in living():
        children.setdefault(parent, []).append(process)
    found = [ancestor]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def living() -> list[tuple[int, int]]:
    """Return all living processes, each with its parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            # after the name, which may have any characters: state, parent, …
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.append((int(folder.name), int(fields[1])))
    return found


# --- the log


def append(data: bytes) -> int:
    """Append to the log; return how many bytes could not be written, as on a full disk."""
    while data:
        try:
            data = data[os.write(1, data) :]
        except OSError:
            break
    return len(data)


def write_log(pipe: int) -> None:
    """Append the output of a command to the log at standard output, until its pipe is empty."""
    # A shutdown may send SIGTERM to all processes, and the command has its last words then.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sources, timeout, missing = [pipe, 0], None, 0
    while True:
        ready = select.select(sources, [], [], timeout)[0]
        if pipe in ready:
            data = os.read(pipe, CHUNK)
            if not data:
                return
            if missing and not append((MISSING % missing).encode()):
                missing = 0
            missing += append(data)
        elif ready:
            sources, timeout = [pipe], 0  # the command has ended: is the pipe still empty?
        else:
            if os.fork():
                os._exit(0)
            timeout = None


if __name__ == "__main__":
    if sys.argv[1] == "log":
        write_log(int(sys.argv[2]))
    else:
        keep(Path(sys.argv[2]), sys.argv[3:])
