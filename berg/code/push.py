"""The working tree pushed to machines over ssh, again on every change: `berg sync`.

It is called push because it goes one way, from here to machines; sync.py is the mirror of a folder in the
bucket. Changes are noticed by inotify or its like, found by a scan of the working tree (worktree.py) and
sent by rsync through one ssh connection per machine, which stays open.

What is here is made so there. Of what is only there, files that came from here are removed: those of the
commit that the machine was started with, and those that were pushed later, which are listed in
.git/berg-pushed of the checkout. What else a machine has stays: ignored files, and what was made there.

Not covered: empty folders, owners, hard links, and changes that are made on the machine.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from berg import BergError, jobs, ssh
from berg.code import snapshot, worktree
from berg.code.worktree import Stamp
from berg.config import Config

CODE = "/root/code"
STEP, LONGEST_BURST = 50, 1000  # ms without a change that end a burst of saves; ms after which it is sent anyway
SETTLES = 120  # seconds from a machine's answer in which its worker may still restore the checkout
RESCAN = 10  # seconds: some file systems tell nothing, and a rule outside of the repo may change
PATIENCE = 300  # seconds that --once waits for a machine that does not answer
SHOWN = 3  # files named in a line
LARGE = 8 << 20  # bytes worth a word before they are sent
# A file that is being received lies in .git, where neither git nor a program that watches the code sees it.
RSYNC = ["rsync", "--from0", "--files-from=-", "--ignore-missing-args", "--checksum", "--links", "--perms", "--times"]
RSYNC += ["--omit-dir-times", "--compress", "--protect-args", "--8-bit-output", "--temp-dir=.git"]
RSYNC += ["--out-format=%i %b %n"]
USAGE, PARTIAL, VANISHED = 1, 23, 24  # exit codes of rsync; after the last two everything else has been sent
SENT = re.compile(r"(?:<f|cL)\S* (\d+) (.*)")  # not: a folder, or what is the same but for time and mode
SENT_OR_MODE = re.compile(r"(?:<f|cL|\.f..[.t]p)\S* (\d+) (.*)")

Say = Callable[[str], None]


class Away(BergError):
    """The machine does not answer, or has no checkout yet: worth another try."""


class Gone(BergError):
    """The machine will not come back."""


@dataclass
class Place:
    """The checkout on one machine, and what is known of it. One thread at a time uses it."""

    name: str
    folder: str  # of the checkout, on the machine
    locate: Callable[[], tuple[list[str], str]]  # finds ssh's options and destination; raises Gone
    sudo: list[str] = field(default_factory=list)
    ssh: list[str] = field(default_factory=list)
    destination: str = ""
    # What of the machine's files came from here, each as it was when it was sent (None: earlier); None: not known.
    has: dict[str, Stamp | None] | None = None
    tracked: set[str] = field(default_factory=set)
    pushed: set[str] = field(default_factory=set)  # not tracked there: what the list on the machine says
    index: bytes = b""  # which one git has there; a checkout that is made anew has another
    ready: bool = False
    reached: float = 0  # when it answered, on the monotonic clock
    process: subprocess.Popen | None = None
    ended: bool = False

    def call(self, command: list[str], cwd: Path | None = None, stdin: bytes = b"") -> subprocess.CompletedProcess:
        """Run a program of this computer; `end` ends it, too."""
        # The ssh that holds the connection outlives the one that opened it, and would keep a pipe open.
        with tempfile.TemporaryFile() as errors:
            pipe = subprocess.PIPE
            # In a session of its own, so that Ctrl-C reaches berg alone, which then ends it.
            self.process = subprocess.Popen(
                command, cwd=cwd, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True
            )
            if self.ended:
                self.process.terminate()
            output = self.process.communicate(stdin)[0]
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        return subprocess.CompletedProcess(command, self.process.returncode, output, said)

    def remote(self, words: list[str], stdin: bytes = b"") -> subprocess.CompletedProcess:
        """Run a program of the machine; raises Away if it cannot be reached."""
        command = [*self.ssh, self.destination, shlex.join([*self.sudo, *words])]
        done = self.call(command, stdin=stdin)
        if done.returncode == 255:
            raise Away(last_line(done.stderr) or "the connection was lost")
        return done

    def git(self, folder: str, arguments: list[str]) -> bytes:
        return self.remote(worktree.command(f"{self.folder}/{folder}", arguments)).stdout

    def end(self) -> None:
        self.ended = True
        if self.process and self.process.poll() is None:
            self.process.terminate()


@dataclass
class Report:
    """What one machine was sent in one pass."""

    sent: list[str]
    removed: list[str]
    size: int  # bytes that travelled
    seconds: float
    compared: int = 0  # files, if this was the first pass
    complaint: str = ""  # what could not be sent, in rsync's words


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("rsync error: unexplained")]
    return lines[-1].strip() if lines else ""


def look(place: Place) -> None:
    """Ask the machine what it has of ours."""
    place.index = index_of(place)
    place.tracked, untracked = worktree.list_files(place.git)
    listed = place.remote(["cat", f"{place.folder}/.git/berg-pushed"])
    place.pushed = set(snapshot.names(listed.stdout))
    place.has = dict.fromkeys(place.tracked | (place.pushed & untracked))


def index_of(place: Place) -> bytes:
    """Inode and time of git's index on the machine; it is the last that a checkout writes."""
    done = place.remote(["stat", "--format=%i %y", f"{place.folder}/.git/index"])
    if done.returncode:
        raise Away(f"waiting for its checkout of the code, {place.folder}")
    return done.stdout


def note(place: Place, pushed: set[str]) -> None:
    """Keep the list of what was pushed beside the checkout, so that it is as lasting as the files."""
    if pushed != place.pushed:
        place.remote(["tee", f"{place.folder}/.git/berg-pushed"], stdin=joined(sorted(pushed)))
        place.pushed = pushed


def joined(paths: list[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def push(root: Path, files: dict[str, Stamp | None], place: Place, say: Say = lambda text: None) -> Report:
    """Make one machine's checkout as `files` of the working tree; raises Away if it cannot be reached."""
    began = time.monotonic()
    changed, gone = compare(root, files, place)
    if place.has is not None and not changed and not gone and began > place.reached + SETTLES:
        return Report([], [], 0, 0)
    first = place.has is None or index_of(place) != place.index
    if first:
        look(place)
        changed, gone = compare(root, files, place)
    ours = files.keys() - place.tracked
    note(place, place.pushed | ours)  # before they are sent: what is lost from here on is still known to be ours
    complaint = remove(place, gone, files) if gone else ""
    size = sum(stamp[1] for path in changed if (stamp := files[path]))
    if size > LARGE and not first:
        say(f"{place.name}: sending {megabytes(size)}")
    lines, more = send(root, changed, place) if changed else ([], "")
    note(place, ours)
    place.has = dict(files)
    # The machine that made the checkout had a umask of its own, so that at first all modes may differ.
    telling = SENT if first else SENT_OR_MODE
    matches = [match for line in lines if (match := telling.fullmatch(line))]
    sent, size = [match[2] for match in matches], sum(int(match[1]) for match in matches)
    seconds = time.monotonic() - began
    return Report(sorted(sent), sorted(gone), size, seconds, len(files) if first else 0, complaint + more)


def compare(root: Path, files: dict[str, Stamp | None], place: Place) -> tuple[list[str], list[str]]:
    """Which files to send to a machine, and which to delete there."""
    has = place.has or {}
    changed = [path for path, stamp in files.items() if stamp and has.get(path) != stamp]
    return changed, [path for path in has if path not in files and worktree.is_gone(root, path, files)]


def remove(place: Place, gone: list[str], files: dict[str, Stamp | None]) -> str:
    """Delete files on the machine, and the folders that this leaves empty; returns what went wrong."""
    done = place.remote(["xargs", "-0", "rm", "-f", "--"], joined([f"{place.folder}/{path}" for path in gone]))
    left = {parent for path in gone for parent in worktree.parents(path)}
    left -= {parent for path in files for parent in worktree.parents(path)}
    deepest_first = sorted(left, key=lambda path: -path.count("/"))
    if deepest_first:
        folders = joined([f"{place.folder}/{path}" for path in deepest_first])
        place.remote(["xargs", "-0", "rmdir", "--ignore-fail-on-non-empty", "--"], folders)
    return done.stderr if done.returncode else ""


def send(root: Path, paths: list[str], place: Place) -> tuple[list[str], str]:
    """Send files; returns what rsync says of each, and what went wrong."""
    path_there = ["--rsync-path", shlex.join([*place.sudo, "rsync"])]
    target = f"{place.destination}:{place.folder}/"
    command = [*RSYNC, *path_there, "--rsh", shlex.join(place.ssh), "./", target]
    # Without "./" rsync would take names that begin with # or ; for comments.
    done = place.call(command, cwd=root, stdin=joined([f"./{path}" for path in paths]))
    if done.returncode == USAGE:
        raise BergError(f"{explain(done.stderr, USAGE)}. Berg needs rsync 3.1, here and on the machine (macOS: brew)")
    if done.returncode not in (0, PARTIAL, VANISHED):
        raise Away(explain(done.stderr, done.returncode))
    return done.stdout.decode(errors="replace").splitlines(), done.stderr if done.returncode == PARTIAL else ""


def explain(stderr: str, code: int) -> str:
    """The line of rsync's complaint that says most: the first one, except where a lost connection follows it."""
    if "command not found" in stderr:
        return "it has no rsync. On the machine: apt-get install rsync"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("rsync error:", "rsync: connection unexpectedly"))]
    return (telling or lines or [f"rsync ended with exit code {code}"])[0]


@dataclass
class Push:
    """The working tree `root` on its way to `places`, pass by pass."""

    root: Path
    places: list[Place]
    say: Say
    changed: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    lost: dict[str, str] = field(default_factory=dict)  # machines that will not come back, and why

    def run(self, once: bool = False) -> None:
        """Push until it is interrupted, or once; raises BergError when no machine is left."""
        began = time.monotonic()
        for place in self.places:
            self.start(self.reach, place)
        if not once:
            self.start(self.watch)
        try:
            with ThreadPoolExecutor(max(1, len(self.places))) as pool:
                try:
                    self.work(pool, once, began)
                finally:
                    self.over.set()
                    for place in self.places:
                        place.end()
        finally:
            for place in self.places:
                if place.ssh:
                    subprocess.run([*place.ssh, "-O", "exit", place.destination], capture_output=True)

    def work(self, pool: ThreadPoolExecutor, once: bool, began: float) -> None:
        while not self.over.is_set():
            self.wait_for_change(PATIENCE if once else None, began)
            places = [place for place in self.places if place.ready]
            if places:
                files = worktree.scan(self.root)
                reports = list(pool.map(self.attempt, repeat(files), places))
                done = [(place, report) for place, report in zip(places, reports, strict=True) if report]
                for line in tell(done):
                    self.say(line)
            living = [place for place in self.places if place.name not in self.lost]
            if not living or (once and self.lost):
                raise BergError("; ".join(self.lost.values()))
            if once and all(place.has is not None for place in living):
                return

    def wait_for_change(self, patience: float | None, began: float) -> None:
        # Without a timeout, an interrupt would be heard only after the next change on some platforms.
        while not self.changed.wait(1):
            if patience and time.monotonic() > began + patience:
                names = ", ".join(place.name for place in self.places if place.has is None)
                raise BergError(f"{names} could not be reached within {patience:.0f} s. See: berg list")
        self.changed.clear()

    def start(self, function: Callable, *arguments) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def attempt(self, files: dict[str, Stamp | None], place: Place) -> Report | None:
        try:
            return push(self.root, files, place, self.say)
        except Away as error:
            if not self.over.is_set():
                self.say(f"{place.name}: {error.message}; trying again until it answers")
                place.ready, place.has = False, None  # after a reboot it may have other files
                self.start(self.reach, place)
            return None

    def reach(self, place: Place) -> None:
        """Try to reach a machine until it answers or will not come back; then there is something to do."""
        said, pause = "", 0.5
        while not self.over.is_set():
            try:
                place.ssh, place.destination = place.locate()
                index_of(place)
                place.reached, place.ready = time.monotonic(), True
                break
            except Gone as error:
                self.lost[place.name] = error.message
                self.say(error.message)
                break
            except Exception as error:  # of whatever kind: the network may be down
                message = error.message if isinstance(error, BergError) else f"{type(error).__name__}: {error}"
                if message != said and not self.over.is_set():
                    self.say(f"{place.name}: {message}")
                said = message
            self.over.wait(pause)
            pause = min(2 * pause, 4)
        self.changed.set()

    def watch(self) -> None:
        """Set `changed` whenever a file of the working tree may have changed."""
        import watchfiles

        options = {"step": STEP, "debounce": LONGEST_BURST, "rust_timeout": RESCAN * 1000, "yield_on_timeout": True}
        try:
            for batch in watchfiles.watch(self.root, watch_filter=None, stop_event=self.over, **options):  # type: ignore[arg-type]
                if not batch or worktree.matters(self.root, {path for _, path in batch}):
                    self.changed.set()
        except OSError as error:
            self.say(f"Looking for changes every 2 s, as this system cannot report them: {error}")
            while not self.over.wait(2):
                self.changed.set()


def tell(reports: list[tuple[Place, Report]]) -> Iterator[str]:
    """Lines about a pass: one for all machines to which the same happened."""
    groups: dict[tuple, list[tuple[Place, Report]]] = {}
    for place, report in reports:
        key = tuple(report.sent), tuple(report.removed), report.compared, report.complaint
        groups.setdefault(key, []).append((place, report))
    for members in groups.values():
        report = members[0][1]
        seconds = max(each.seconds for _, each in members)
        names = ", ".join(place.name for place, _ in members) if len(members) < 4 else f"{len(members)} machines"
        what = [f"compared {report.compared:,} files"] if report.compared else []
        what += [
            f"{verb} {some(paths)}" for verb, paths in (("sent", report.sent), ("removed", report.removed)) if paths
        ]
        if what:
            how = f"{megabytes(report.size)} in {seconds:.2f} s"
            yield f"{time.strftime('%H:%M:%S')}  {names}: {', '.join(what)}; {how}"
        for line in report.complaint.splitlines():
            if not line.startswith("rsync error:"):
                yield f"{names}: {line}"


def some(paths: list[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    return f"{len(paths):,} files ({', '.join(paths[:SHOWN])}{', …' if len(paths) > SHOWN else ''})"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB" if size >= 1000 else f"{size} bytes"


def multiplex(options: list[str], sockets: Path) -> list[str]:
    """Ssh with one connection for all that goes to a machine: a handshake takes longer than a small transfer.

    A connection that is dead is noticed after 15 seconds. One that is not used is closed after 300: an open one
    keeps a devbox from being idle.
    """
    settings = ["ControlMaster=auto", f"ControlPath={ssh.as_path(sockets)}/%C", "ControlPersist=300", "BatchMode=yes"]
    settings += ["ServerAliveInterval=5", "ServerAliveCountMax=3", "ConnectTimeout=10"]
    return ["ssh", *(word for setting in settings for word in ("-o", setting)), *options]


def sync(config: Config, name: str, folder: Path, say: Say, once: bool = False) -> None:
    """Push the working tree around `folder` to all machines of a job, until it is interrupted or once.

    Raises BergError if there is no repo, no such job, or no machine of it any more.
    """
    root = snapshot.find_root(folder).resolve()
    if not shutil.which("rsync"):
        raise BergError("rsync is not installed. Install it, for example: sudo apt-get install rsync")
    found = jobs.find(config, name)
    repo = found.state.job.get("repo") if found.state else root.name
    if repo != root.name:
        raise BergError(f"{name} was started in the repo {repo!r}, and this is {root.name!r}. Run berg sync in {repo}")
    machines = [machine["name"] for machine in found.machines if machine["name"] == name]
    machines = machines or [machine["name"] for machine in found.machines] or [name]
    # Not below BERG_HOME: the path of a socket must be shorter than 104 bytes.
    with tempfile.TemporaryDirectory(prefix="berg-") as sockets:
        places = [make_place(config, machine, root.name, Path(sockets), say) for machine in machines]
        say(f"Pushing {root} to {CODE}/{root.name} on {', '.join(machines)}" + ("" if once else "; Ctrl-C ends it"))
        Push(root, places, say).run(once)


def make_place(config: Config, machine: str, repo_name: str, sockets: Path, say: Say) -> Place:
    def locate() -> tuple[list[str], str]:
        try:
            target = ssh.find_target(config, machine, say)
        except BergError as error:
            if is_gone(config, machine):
                raise Gone(error.message) from None
            raise
        return multiplex(ssh.options(config, target), sockets), ssh.destination(config, target)

    sudo = [] if config.ssh_user == "root" else ["sudo", "-n"]
    return Place(machine, f"{CODE}/{repo_name}", locate, sudo)


def is_gone(config: Config, machine: str) -> bool:
    """Whether nobody will see this machine again."""
    try:
        found = jobs.find(config, machine)
    except BergError:
        return True
    waits = found.state is not None and found.state.state == "SUBMITTED"
    return not waits and machine not in [each["name"] for each in found.machines]
