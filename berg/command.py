"""A job's command: its processes start, stop for an instant, and end together.

They are all below the worker, which adopts what they leave behind: it is a subreaper. Where the
kernel has cgroups of version 2 they are in one, too, with what other programs start for them, as
docker does. Each of them gets one SIGTERM and the same grace, whoever started it.
"""

import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STUCK = 60  # seconds for which a process that a driver holds is killed again and again
STOPPING = 0.5  # seconds for which a process that a driver holds is waited for, until it stops
LEFTOVER_GRACE = 5  # seconds for what a command left running when it ended by itself


class Command:
    """One command at a time; `name` is that of its cgroup."""

    def __init__(self, name: str) -> None:
        self.group = cgroup(name)
        self.process: subprocess.Popen[bytes] | None = None
        # Files that may be cut off in a write: inode -> time.time() of the signal that found them open.
        self.cut: dict[int, float] = {}
        self.deadline = 0.0  # time.monotonic() at which what is left is killed
        self.top = os.getpid()
        self.spared: set[int] = set()  # pids of Berg's own programs, which are below it, too
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self, words: list[str], cwd: Path, env: dict[str, str], log: Path) -> None:
        self.deadline = 0
        self.cut.clear()
        if self.group:
            self.group.mkdir(exist_ok=True)
            joined = 'echo $$ >"$0" && exec "$@"'
            words = ["sh", "-c", joined, str(self.group / "cgroup.procs"), *words]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                words,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """The exit code as a shell says it, once the first process has ended."""
        code = self.process.poll() if self.process else 0
        return code if code is None or code >= 0 else 128 - code

    def ask_to_end(self, grace: float) -> None:
        """Send SIGTERM to all processes; from now on `kill_late` counts the seconds of their grace."""
        if not self.deadline:
            self.deadline = time.monotonic() + grace
            with self.frozen() as members:
                self.note_cut(members)
                self.send(signal.SIGTERM, members)

    def kill_late(self) -> None:
        """Kill what is left after its grace."""
        if self.deadline and time.monotonic() > self.deadline:
            self.kill()

    def end_leftovers(self) -> int:
        """End what is left below a first process that has ended; how many processes those were."""
        reap()
        left = self.members()
        if left and not self.deadline:
            self.deadline = time.monotonic() + LEFTOVER_GRACE
            self.send(signal.SIGTERM, left)
        while self.members() and time.monotonic() < self.deadline:
            time.sleep(0.05)
            reap()
        self.kill()
        if self.group:
            with contextlib.suppress(OSError):
                self.group.rmdir()
        return len(left)

    def kill(self) -> None:
        """Kill all processes; remember which files that cut off in the middle of a write."""
        end = time.monotonic() + STUCK
        while self.members() and time.monotonic() < end:
            with self.frozen() as members:
                self.note_cut(members)
                self.send(signal.SIGKILL, members)
            time.sleep(0.02)
            reap(self.process.pid if self.process else 0)

    def note_cut(self, members: Iterable[int]) -> None:
        """Note the files that stopped processes have open for writing: the signal may cut them off."""
        self.cut |= dict.fromkeys(open_for_writing(members), time.time())

    def kill_leftovers(self) -> None:
        """Kill what the command of an earlier worker left. These processes are children of boot.py now,
        as this worker is.
        """
        if os.getppid() > 1:
            self.top = os.getppid()
        self.kill()
        self.top = os.getpid()

    def members(self) -> list[int]:
        """All processes of the command that are alive."""
        parents: dict[int, int] = {}  # of all processes here that are alive
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
                if fields[0] not in "ZX":
                    parents[int(folder.name)] = int(fields[1])
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        found: list[int] = []
        pending = [self.top]
        while pending:
            own = {os.getpid(), *self.spared}
            below = [pid for pid in children.get(pending.pop(), []) if pid not in own]
            found += below
            pending += below
        for file in self.group.rglob("cgroup.procs") if self.group else ():
            with contextlib.suppress(OSError):
                found += [pid for pid in map(int, file.read_text().split()) if pid in parents]
        return [*dict.fromkeys(found)]

    def send(self, number: int, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[set[int]]:
        """Stop all processes for an instant, so that the folder they write is quiet."""
        members: set[int] = set()
        try:
            while new := {*self.members()} - members:  # until none was started meanwhile
                members |= new
                stop(new)
            yield members
        finally:
            self.send(signal.SIGCONT, members)


def stop(pids: Iterable[int]) -> None:
    """Stop processes, and wait until all their threads have: a call that is under way, such as an
    `open` that truncates a file, comes to its end first.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + STOPPING
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.001)


def is_running(pid: int) -> bool:
    """Whether a thread of a process may still change a file."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if thread.read_text().rpartition(") ")[2][0] not in "TtZX":
                return True
    return False


def cgroup(name: str) -> Path | None:
    """A cgroup below this process's own, which ends with its unit; None where there are none."""
    with contextlib.suppress(OSError):
        rows = Path("/proc/self/cgroup").read_text().splitlines()
        own = next((row.removeprefix("0::/") for row in rows if row.startswith("0::/")), "")
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if Path(mount, "cgroup.controllers").exists():
                group = Path(mount, own, f"berg-{name}")
                group.mkdir(exist_ok=True)
                return group
    return None


def reap(first: int = 0) -> None:
    """Take the exit codes of adopted processes that have ended, but not of the first one."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            if fields[0] == "Z" and int(fields[1]) == os.getpid() and int(folder.name) != first:
                os.waitpid(int(folder.name), os.WNOHANG)


def open_for_writing(pids: Iterable[int]) -> set[int]:
    """Inodes of the regular files that processes have open, or mapped, for writing."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    # The link's own mode tells how the file was opened.
                    is_written = entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR
                    if is_written and stat.S_ISREG(entry.stat().st_mode):
                        found.add(entry.stat().st_ino)
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                _, rights, _, _, inode, *_ = line.split()
                if rights.startswith("rw-s"):
                    found.add(int(inode))
    return found
