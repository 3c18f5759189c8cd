"""The programs between the worker and the job's command; standard library only.

    keep LEFT ENDING CUT FOLDERS COMMAND…   runs the command, and ends what it left behind
    log PIPE                                appends what comes out of a pipe, its output, to the log

A process that the command left, in a session of its own, would keep writing results, and the job
would never end. The kernel makes `keep` (a subreaper) the parent of all orphans below it. It
ignores the signals of its process group, which the command gets, too. It exits with the command's
exit code, as a shell gives it, when no process is left below it. Not covered: what another daemon
starts (docker run -d).

Who first ends the command's processes makes ENDING: `keep` when the command has ended by itself, or
the worker, which then also ends what the command leaves.

A program that is ended while it writes a file leaves half of it. Which files below the folders
programs had open for writing when Berg ended them is noted in CUT, before they end.

`log` writes to its standard output. Its standard input closes when the command has ended; it then
exits as soon as the pipe is empty. A copy of it stays while a background process holds the pipe. It
also outlives a worker that dies, so that no program loses its output.
"""

import contextlib
import math
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

HELPER_SECONDS = 0.5  # for helpers of the command that end by themselves when it has ended
LEFTOVER_GRACE = 5  # seconds between SIGTERM and SIGKILL for what a command left behind
WORKER_SECONDS = 120  # for the worker, or the next one, to kill what is left of a command
KILL_SECONDS = 5  # for killed processes to be gone; those that hang in the kernel stay
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL = 0.05  # seconds
PF_EXITING, EXITS = 4, "X"  # linux/sched.h
FREEZE_SECONDS = 1  # for processes to be stopped; those in the kernel may take longer
# Signals that no program can ignore, and those of its own faults.
DEADLY = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
DEADLY |= {signal.SIGILL}
CHUNK = 1 << 16  # bytes, the usual capacity of a pipe
MISSING = "\n[berg] %d bytes of output are missing here: the log could not be written\n"


class Cut:
    """The inodes of files below some folders that were open for writing when their programs were
    ended, in a file that several processes append to: + one, or - one that was closed after all.
    = and a time: a command began, and what it changes is not cut.
    """

    def __init__(self, file: Path, folders: tuple[str, ...]) -> None:
        self.file, self.folders = file, folders
        self.held: dict[int, set[int]] = {}  # by process that SIGTERM ends
        # inode -> processes that handle SIGTERM, and had the file open
        self.handled: dict[int, set[int]] = {}

    def files(self) -> dict[int, float]:
        """Return the inodes of the files that were cut off, or may be in a moment, each with the
        time (st_mtime_ns) after which a later command has written it.
        """
        found: dict[int, float] = {}
        with contextlib.suppress(OSError):
            for line in self.file.read_text().split():
                if not line[1:].isdigit():  # cut off, as on a full disk
                    continue
                sign, number = line[0], int(line[1:])
                if sign == "=":
                    found = {inode: min(until, number) for inode, until in found.items()}
                elif sign == "+":
                    found[number] = math.inf
                else:
                    found.pop(number, None)
        return found

    def has(self, seen: os.stat_result) -> bool:
        """Return whether a file was cut off, or may be in a moment."""
        return seen.st_mtime_ns <= self.files().get(seen.st_ino, -math.inf)

    def note(self, sign: str, numbers: Iterable[int]) -> None:
        # A line break first: the line before may have been cut off.
        if text := "".join(f"\n{sign}{each}\n" for each in numbers):
            with contextlib.suppress(OSError), self.file.open("a") as file:  # a full disk
                file.write(text)

    def note_all(self, ancestor: int) -> None:
        """Note the files of a command's processes, which get SIGKILL."""
        self.note("+", set().union(*self.writers(ancestor).values()))

    def look(self, ancestor: int) -> None:
        """Note the files of a command's processes that end at SIGTERM: they may get it at any
        moment. One that handles it closes its files itself, also those that processes which it
        forked inherited.
        """
        now: dict[int, set[int]] = {}
        for process, files in self.writers(ancestor).items():
            if ends(process):
                now[process] = files
            else:
                for each in files:
                    self.handled.setdefault(each, set()).add(process)
        for process, files in now.items():
            now[process] = {each for each in files if not self.handled.get(each, set()) - {process}}
        # After the look: one that ends closes its files once it is known to end.
        alive = {process for process, _, state in living() if state != EXITS}
        before, ended = self.held, {p: files for p, files in self.held.items() if p not in alive}
        self.held = {**now, **ended}
        old, new = (set().union(*each.values()) for each in (before, self.held))
        self.note("+", new - old)
        self.note("-", old - new)

    def writers(self, ancestor: int) -> dict[int, set[int]]:
        """Return the inodes of the files that each process of a command has open for writing."""
        found: dict[int, set[int]] = {}
        for process in [ancestor, *below(ancestor), *in_containers()]:
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                for link in Path(f"/proc/{process}/fd").iterdir():
                    if inode := self.written(link):
                        found.setdefault(process, set()).add(inode)
        return found

    def written(self, link: Path) -> int:
        """Return the inode of a file that a link in /proc is for writing to; 0 for any other."""
        with contextlib.suppress(OSError):  # it has just been closed
            may_write = link.lstat().st_mode & stat.S_IWUSR
            if may_write and str(link.readlink()).startswith(self.folders):
                seen = link.stat()
                return seen.st_ino if stat.S_ISREG(seen.st_mode) and seen.st_nlink else 0
        return 0


def in_containers() -> list[int]:
    """Return the processes in containers, which are not below the docker that runs them."""
    found = []
    with contextlib.suppress(OSError):
        own = Path("/proc/self/ns/pid").readlink()
        for process, _, _ in living():
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if Path(f"/proc/{process}/ns/pid").readlink() != own:
                    found.append(process)
    return found


def ends(process: int) -> bool:
    """Return whether SIGTERM ends a process: it does not handle, ignore or block it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in ("SigBlk", "SigIgn", "SigCgt") and int(value, 16) >> signal.SIGTERM - 1 & 1:
                return False
    return True


def keep(left_file: Path, ending: Path, cut: Cut, program: list[str]) -> None:
    """Run a command, write to a file after how many seconds it ended, and how many processes it
    left, and end those, unless the worker does.
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
    if is_first(ending):
        with contextlib.suppress(OSError):  # a full disk
            left_file.write_text(f"{ran:.0f} {len(below(os.getpid()))}")
    else:
        end = time.monotonic() + WORKER_SECONDS
        while below(os.getpid()) and time.monotonic() < end:
            time.sleep(POLL)
    if below(os.getpid()):
        end_below(os.getpid(), LEFTOVER_GRACE, cut)
    sys.exit(code if code >= 0 else 128 - code)


def is_first(file: Path) -> bool:
    """Make an empty file; return whether it was not there."""
    try:
        file.open("x").close()
    except FileExistsError:
        return False
    except OSError:  # a full disk
        pass
    return True


def end_below(ancestor: int, grace: float, cut: Cut) -> None:
    """SIGTERM to all processes below one, SIGKILL to what is left of them after the grace."""
    with frozen(ancestor):
        cut.look(ancestor)
        send(ancestor, signal.SIGTERM)
    end = time.monotonic() + grace
    while below(ancestor) and time.monotonic() < end:
        time.sleep(POLL)
    kill_below(ancestor, cut)


def end_orphans(ancestor: int, waiting: set[int], cut: Cut) -> None:
    """SIGTERM to those of the waiting processes whose parent has ended, and to the rest of their
    groups; they wait no more.
    """
    left = {process for process, parent, _ in living() if parent == ancestor} & waiting
    groups = {group_of(process) for process in left}
    found = {process for process in waiting if group_of(process) in groups}
    if not found:
        return
    waiting -= found
    with frozen(ancestor):
        cut.look(ancestor)
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGTERM)


def group_of(process: int) -> int:
    """Return the process group of a process; 0 if it is gone."""
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return 0


def kill_below(ancestor: int, cut: Cut | None = None) -> None:
    """SIGKILL to all processes below one, also to those that start meanwhile."""
    if cut:
        with frozen(ancestor):
            cut.note_all(ancestor)
            send(ancestor, signal.SIGKILL)
    end = time.monotonic() + KILL_SECONDS
    while below(ancestor) and time.monotonic() < end:
        send(ancestor, signal.SIGKILL)
        time.sleep(POLL)


@contextlib.contextmanager
def frozen(ancestor: int) -> Iterator[None]:
    """Stop the processes below one for a moment, so that none opens or closes a file in it.

    A parent continues last: a shell with job control would take its children for stopped jobs.
    """
    end, stopped = time.monotonic() + FREEZE_SECONDS, set[int]()
    try:
        while running_below(ancestor) and time.monotonic() < end:
            stopped.update(below(ancestor))
            send(ancestor, signal.SIGSTOP)
            time.sleep(0.001)
        yield
    finally:
        send(ancestor, signal.SIGCONT)
        for process in stopped.difference(below(ancestor)):  # its parent has ended
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGCONT)


def running_below(ancestor: int) -> bool:
    """Return whether a process below one is not stopped."""
    states = {process: state for process, _, state in living()}
    return any(states.get(process, EXITS) not in ("T", "t", EXITS) for process in below(ancestor))


def send(ancestor: int, number: int) -> None:
    found = below(ancestor)
    for process in reversed(found) if number == signal.SIGCONT else found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def below(ancestor: int) -> list[int]:
    """Return the living processes below one."""
    children: dict[int, list[int]] = {}
    for process, parent, _ in living():
        children.setdefault(parent, []).append(process)
    found = [ancestor]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def living() -> list[tuple[int, int, str]]:
    """Return all living processes, each with its parent and its state: a letter of proc(5), EXITS
    for one that is exiting.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            # after the name, which may have any characters: state, parent, …
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                state = EXITS if int(fields[6]) & PF_EXITING else fields[0]
                found.append((int(folder.name), int(fields[1]), state))
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
        cut = Cut(Path(sys.argv[4]), tuple(sys.argv[5].split(":")))
        keep(Path(sys.argv[2]), Path(sys.argv[3]), cut, sys.argv[6:])
