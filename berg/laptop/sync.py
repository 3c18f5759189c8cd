"""`berg sync`: push the working tree to the machines of a job, and again on every change.

watchfiles reports changes, a scan lists the files, and rsync sends them through one ssh connection
per machine, which stays open. Removed on a machine is only what came from here: files of the commit
that it was started with (refs/berg/start there), and those listed in .git/berg-pushed of its
checkout. Everything else there stays: ignored files, what was made or committed there, and a link
that replaced a folder.
"""

import functools
import math
import os
import queue
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from berg import BergError, computer, plain
from berg.code import git as program
from berg.code import leaks, snapshot
from berg.code.git import GitError, names
from berg.code.leaks import Leak
from berg.code.snapshot import IGNORE_FILE, brought_by_berg, left_to_berg
from berg.config import Config
from berg.laptop import jobs, ssh
from berg.laptop.jobs import Say

# Mode, size in bytes, times of content and inode in ns: what a save changes.
Stamp = tuple[int, int, int, int]
# A working tree; None for a tracked file that is not checked out.
Files = dict[str, Stamp | None]
# Runs git in a folder of a tree ("" for its root) and returns what it prints; b"" without a repo.
Git = Callable[[str, list[str]], bytes]

CODE = "/root/code"
LOCK = "uv.lock"
INSTALL = "/root/berg/install-again"  # a script of the worker's (machine/installation.py)
RULES = (".gitignore", IGNORE_FILE)  # files that decide which others count
STEP, LONGEST_BURST = 50, 1000  # ms: a burst of saves ends without changes for STEP
SETTLES = 120  # seconds after a machine answers in which its worker may still restore the checkout
RESCAN = 10  # seconds: some file systems report nothing, and ignore rules outside the repo count
TIMEOUT = 300  # seconds that --once waits for a machine that does not answer
SHOWN = 3  # files named in a line
LARGE = 8 << 20  # bytes from which a transfer is announced

HERE = "--git-dir=.git"  # never a repo around the folder
LIST = ["ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard"]
# Unlike `ls-files --deleted`, it reports files below a symbolic link as deleted.
DELETED = ["diff-files", "-z", "--name-only", "--diff-filter=D", "--ignore-submodules"]

RSYNC = [
    "rsync",
    "--from0",
    "--files-from=-",
    "--ignore-missing-args",
    "--checksum",
    "--links",
    "--perms",
    "--times",
    "--omit-dir-times",
    "--keep-dirlinks",
    "--compress",
    "--protect-args",
    "--8-bit-output",
    "--temp-dir=.git",  # git and programs that watch the code do not look there
    "--out-format=%i %b %n",
]
# Exit codes of rsync; with the last two everything else was sent.
USAGE, PARTIAL, VANISHED = 1, 23, 24
# Lines for files and links that rsync sent, or whose mode it changed: not for folders.
SENT = re.compile(r"(?:<f|cL)\S* (\d+) (.*)")
SENT_OR_MODE = re.compile(r"(?:<f|cL|\.f..[.t]p)\S* (\d+) (.*)")


class Away(BergError):
    """The machine does not answer, or has no checkout yet: worth another try."""


class Gone(BergError):
    """The machine will not answer any more."""


@dataclass
class Checkout:
    """The checkout on one machine, and what is known of it. One thread at a time uses it."""

    name: str
    folder: str  # of the checkout, on the machine
    locate: Callable[[], tuple[list[str], str]]  # finds ssh's options and destination; raises Gone
    sudo: list[str] = field(default_factory=list)
    ssh: list[str] = field(default_factory=list)
    destination: str = ""
    # Its files that came from here, as they were sent (None: earlier). None: not known yet.
    has: Files | None = None
    started: set[str] = field(default_factory=set)  # files that came with the start
    pushed: set[str] = field(default_factory=set)  # files in the machine's own list
    index: bytes = b""  # identifies git's index there; a new checkout has another one
    ready: bool = False
    reached: float = 0  # when it answered, on the monotonic clock
    process: subprocess.Popen[bytes] | None = None
    ended: bool = False

    def call(
        self, command: list[str], cwd: Path | None = None, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program of this computer; `end` ends it, too."""
        # Not a pipe: the ssh that holds the connection would keep it open after the command.
        with tempfile.TemporaryFile() as errors:
            pipe = subprocess.PIPE
            # A session of its own: Ctrl-C reaches berg alone, which then ends the program.
            self.process = subprocess.Popen(
                command, cwd=cwd, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True
            )
            if self.ended:
                self.process.terminate()
            output = self.process.communicate(stdin)[0]
            errors.seek(0)
            message = errors.read().decode(errors="replace")
        return subprocess.CompletedProcess(command, self.process.returncode, output, message)

    def remote(self, words: list[str], stdin: bytes = b"") -> subprocess.CompletedProcess[Any]:
        """Run a program of the machine; raise Away if it cannot be reached."""
        command = [*self.ssh, self.destination, shlex.join([*self.sudo, *words])]
        done = self.call(command, stdin=stdin)
        if done.returncode == 255:
            message = done.stderr.strip().rpartition("\n")[2].strip()
            raise Away(message or "the connection was lost")
        return done

    def git(self, folder: str, arguments: list[str]) -> bytes:
        words = ["git", "-C", f"{self.folder}/{folder}", HERE, *arguments]
        return bytes(self.remote(words).stdout)

    def read_index(self) -> bytes:
        """Return inode and time of git's index, which a checkout writes last."""
        done = self.remote(["stat", "--format=%i %y", f"{self.folder}/.git/index"])
        if done.returncode:
            raise Away(f"waiting for its checkout of the code, {self.folder}")
        return bytes(done.stdout)

    def read(self) -> None:
        """Ask the machine which files it has from here."""
        self.index = self.read_index()
        tracked, untracked = list_files(self.git)
        self.started = list_start(self.git)
        self.pushed = set(names(self.remote(["cat", f"{self.folder}/.git/berg-pushed"]).stdout))
        self.has = dict.fromkeys((tracked | untracked) & (self.started | self.pushed))

    def write_pushed(self, pushed: set[str]) -> None:
        """Write the machine's own list of pushed files, if it changed."""
        if pushed != self.pushed:
            self.remote(["tee", f"{self.folder}/.git/berg-pushed"], stdin=joined(sorted(pushed)))
            self.pushed = pushed

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


def sync(
    config: Config,
    name: str,
    folder: Path,
    say: Say,
    once: bool = False,
    send_secrets: bool = False,
) -> None:
    """Push the working tree around `folder` to all machines of a job, once or until Ctrl-C; unless
    `send_secrets`, without what looks like a secret.

    Raises BergError if there is no repo, no such job, or no machine left.
    """
    root = snapshot.find_root(folder).resolve()
    check_rsync()
    found = jobs.find(config, name)
    here = snapshot.folder_name(root.name)
    repo = found.state.job.repo if found.state else here
    if repo != here:
        raise BergError(
            f"{name} was started in the repo {repo!r}, and this is {here!r}. Run berg sync in "
            f"{repo}"
        )
    machines = [machine.name for machine in found.machines if machine.name == name]
    machines = machines or [machine.name for machine in found.machines] or [name]
    sudo = [] if config.ssh_user == "root" else ["sudo", "-n"]
    # Not below BERG_HOME, whose path may be long.
    with computer.folder_for_sockets() as sockets:
        path, way = f"{CODE}/{here}", functools.partial(find_way, config, Path(sockets), say)
        checkouts = [Checkout(each, path, functools.partial(way, each), sudo) for each in machines]
        end = "" if once else "; Ctrl-C ends it"
        say(f"Pushing {root} to {path} on {', '.join(machines)}{end}")
        this = Push(root, checkouts, say)
        if not send_secrets:
            this.suspect = lambda paths: leaks.in_files(root, paths, config.bucket)
        this.run(once)


def find_way(config: Config, sockets: Path, say: Say, machine: str) -> tuple[list[str], str]:
    """Return ssh's options for a machine, and its address; raise Gone if it is gone for good."""
    try:
        target = ssh.find_target(config, machine, say)
    except BergError as error:
        if isinstance(error, ssh.NoServer) or is_gone(config, machine):
            raise Gone(error.message) from None
        raise
    return multiplex(ssh.options(config, target), sockets), ssh.destination(config, target)


def check_rsync() -> None:
    """Raise BergError unless there is an rsync here that has what berg asks of it."""
    install = f"Install it, for example: {computer.install_command('rsync')}"
    if not shutil.which("rsync"):
        raise BergError(f"rsync is not installed. {install}")
    version = subprocess.run(["rsync", "--version"], capture_output=True, text=True).stdout
    if version.startswith("openrsync"):
        raise BergError(
            f"the rsync of macOS is openrsync, which cannot do what berg needs. {install}"
        )


def is_gone(config: Config, machine: str) -> bool:
    """Return whether the machine is gone for good."""
    try:
        found = jobs.find(config, machine)
    except BergError:
        return True
    waits = found.state is not None and found.state.state == "SUBMITTED"
    return not waits and machine not in [each.name for each in found.machines]


def multiplex(options: list[str], sockets: Path) -> list[str]:
    """Return ssh with one connection per machine: a handshake takes longer than a small transfer.

    A dead connection is noticed after 15 seconds. An unused one is closed after 300: an open one
    would keep a devbox from being idle.
    """
    settings = [
        "ControlMaster=auto",
        f"ControlPath={ssh.as_path(sockets)}/%C",
        "ControlPersist=300",
        "BatchMode=yes",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        "ConnectTimeout=10",
    ]
    return ["ssh", *(word for setting in settings for word in ("-o", setting)), *options]


def joined(paths: list[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


# --- one pass to one machine


def push(root: Path, files: Files, checkout: Checkout, say: Say = lambda text: None) -> Report:
    """Make one machine's checkout like the working tree; raise Away if it does not answer."""
    began = time.monotonic()
    changed, gone = compare(root, files, checkout)
    if checkout.has is not None and not changed and not gone and began > checkout.reached + SETTLES:
        return Report([], [], 0, 0)
    first = checkout.has is None or checkout.read_index() != checkout.index
    if first:
        checkout.read()
        changed, gone = compare(root, files, checkout)
    elif (size := sum(stamp[1] for path in changed if (stamp := files[path]))) > LARGE:
        say(f"{checkout.name}: sending {plain.size(size)}")
    ours = files.keys() - checkout.started
    # Before they are sent: if the connection breaks, they are still known to come from here.
    checkout.write_pushed(checkout.pushed | ours)
    complaint = remove(checkout, gone, files)
    # The machine that made the checkout has a umask of its own, so that at first all modes differ.
    sent, more = send(root, changed, checkout, SENT if first else SENT_OR_MODE)
    checkout.write_pushed(ours)
    checkout.has = dict(files)
    complaint += more + install(checkout, sent, say)
    size, seconds = sum(sent.values()), time.monotonic() - began
    compared = len(files) if first else 0
    return Report(sorted(sent), sorted(gone), size, seconds, compared, complaint)


def compare(root: Path, files: Files, checkout: Checkout) -> tuple[list[str], list[str]]:
    """Return which files to send to a machine, and which to delete there."""
    has = checkout.has or {}
    changed = [path for path, stamp in files.items() if stamp and has.get(path) != stamp]
    return changed, [path for path in has if path not in files and is_deleted(root, path, files)]


def is_deleted(root: Path, path: str, files: Files) -> bool:
    """Return whether a file that is not among `files` was deleted or replaced by a folder; else it
    is still here, and ignored now.
    """
    there = root / path
    is_folder = there.is_dir() and not there.is_symlink()
    return (
        is_folder or any(parent in files for parent in parents(path)) or not os.path.lexists(there)
    )


def parents(path: str) -> list[str]:
    """Return the folders around a file, the deepest first."""
    return [str(parent) for parent in Path(path).parents][:-1]


def remove(checkout: Checkout, gone: list[str], files: Files) -> str:
    """Delete files on the machine, and folders that become empty; return what went wrong."""
    if not gone:
        return ""
    paths = joined([f"{checkout.folder}/{path}" for path in gone])
    done = checkout.remote(["xargs", "-0", "rm", "-f", "--"], paths)
    left = {parent for path in gone for parent in parents(path)}
    left -= {parent for path in files for parent in parents(path)}
    if left:
        deepest_first = sorted(left, key=lambda path: -path.count("/"))
        folders = joined([f"{checkout.folder}/{path}" for path in deepest_first])
        checkout.remote(["xargs", "-0", "rmdir", "--ignore-fail-on-non-empty", "--"], folders)
    return done.stderr if done.returncode else ""


def send(
    root: Path, paths: list[str], checkout: Checkout, pattern: re.Pattern[str]
) -> tuple[dict[str, int], str]:
    """Send files; return the sizes of those whose line of rsync matches, and what went wrong."""
    if not paths:
        return {}, ""
    path_there = ["--rsync-path", shlex.join([*checkout.sudo, "rsync"])]
    target = f"{checkout.destination}:{checkout.folder}/"
    command = [*RSYNC, *path_there, "--rsh", shlex.join(checkout.ssh), "./", target]
    # Without "./" rsync takes names that begin with # or ; for comments.
    done = checkout.call(command, cwd=root, stdin=joined([f"./{path}" for path in paths]))
    if done.returncode == USAGE:
        raise BergError(
            f"{explain(done.stderr, USAGE)}. Berg needs rsync 3.1, here and on the machine (macOS: "
            "brew)"
        )
    if done.returncode not in (0, PARTIAL, VANISHED):
        raise Away(explain(done.stderr, done.returncode))
    complaint = done.stderr if done.returncode == PARTIAL else ""
    if "symbolic links (40)" in complaint:
        complaint += (
            "A folder that was replaced by a link there stays a link; rsync 3.5 sends nothing "
            "through it\n"
        )
    lines = done.stdout.decode(errors="replace").splitlines()
    matches = [match for line in lines if (match := pattern.fullmatch(line))]
    return {match[2]: int(match[1]) for match in matches}, complaint


def explain(stderr: str, code: int) -> str:
    """Return the line of rsync's complaint that gives the cause: the first that is not general."""
    if "command not found" in stderr:
        return "it has no rsync. On the machine: apt-get install rsync"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    general = ("rsync error:", "rsync: connection unexpectedly")
    causes = [line for line in lines if not line.startswith(general)]
    return (causes or lines or [f"rsync ended with exit code {code}"])[0]


def install(checkout: Checkout, sent: Iterable[str], say: Say) -> str:
    """Install a lock that was sent, if the job installed one; return what went wrong."""
    if not any(Path(path).name == LOCK for path in sent):
        return ""
    if checkout.remote(["test", "-e", INSTALL]).returncode:
        return ""
    say(f"{checkout.name}: installing the changed {LOCK}")
    done = checkout.remote(["bash", "-ec", f". {INSTALL} 2>&1"])
    words: str = done.stdout.decode(errors="replace")
    return f"{LOCK} could not be installed: {words}" if done.returncode else ""


# --- passes to all machines


@dataclass
class Push:
    """Pushes the working tree `root` to `checkouts`, pass by pass."""

    root: Path
    checkouts: list[Checkout]
    say: Say
    changed: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    lost: dict[str, str] = field(default_factory=dict)  # machines that are gone for good, and why
    failure: Exception | None = None  # of a thread, which ended
    files: Files = field(default_factory=dict)  # as the last look found them
    # finds what may be secret among paths
    suspect: Callable[[list[str]], list[Leak]] = lambda paths: []
    withheld: Files = field(default_factory=dict)  # what it found, as it was then
    looked_at: float = -math.inf  # when all of them were looked at, on the monotonic clock
    # What may have changed since; None: anything.
    touched: queue.SimpleQueue[set[str] | None] = field(default_factory=queue.SimpleQueue)

    def run(self, once: bool = False) -> None:
        """Push once, or until interrupted; raise BergError when no machine is left."""
        began = time.monotonic()
        for checkout in self.checkouts:
            self.start(self.reach, checkout)
        if not once:
            self.start(self.watch)
        try:
            with ThreadPoolExecutor(max(1, len(self.checkouts))) as pool:
                try:
                    is_done = False
                    while not is_done and not self.over.is_set():
                        self.wait_for_change(began + TIMEOUT if once else math.inf)
                        refused = self.push_to_all(pool)
                        is_done = self.is_done(once, refused)
                finally:
                    self.over.set()
                    for checkout in self.checkouts:
                        checkout.end()
        finally:
            for checkout in self.checkouts:
                if checkout.ssh:
                    subprocess.run(
                        [*checkout.ssh, "-O", "exit", checkout.destination], capture_output=True
                    )

    def wait_for_change(self, end: float) -> None:
        # Without a timeout, some platforms notice Ctrl-C only after the next change.
        while not self.changed.wait(1):
            if time.monotonic() > end:
                late = ", ".join(each.name for each in self.checkouts if each.has is None)
                raise BergError(f"{late} could not be reached within {TIMEOUT} s. See: berg list")
        self.changed.clear()
        if self.failure:
            raise BergError(
                f"changes are no longer noticed: {type(self.failure).__name__}: {self.failure}"
            )

    def is_done(self, once: bool, refused: list[str]) -> bool:
        """Return whether all machines have the files; without `once` there is always more to do.

        Raises BergError where no machine is left; with `once` also where one refused some files, or
        some may be secret.
        """
        if once and refused:
            raise BergError(f"not everything could be written on {', '.join(refused)}, see above")
        living = [checkout for checkout in self.checkouts if checkout.name not in self.lost]
        if not living or (once and self.lost):
            raise BergError("; ".join(self.lost.values()))
        is_done = once and all(checkout.has is not None for checkout in living)
        if is_done and self.withheld:
            raise BergError(
                f"{some(sorted(self.withheld))} may be secret, see above. Keep it here with a "
                f"line in {IGNORE_FILE}, or send it: --send-secrets"
            )
        return is_done

    def push_to_all(self, pool: ThreadPoolExecutor) -> list[str]:
        """Push to the machines that answer; return those that did not accept all files."""
        checkouts = [checkout for checkout in self.checkouts if checkout.ready]
        files = self.look() if checkouts else {}
        reports = pool.map(self.attempt, repeat(files), checkouts)
        done = [(each, report) for each, report in zip(checkouts, reports, strict=True) if report]
        for line in summary(done):
            self.say(line)
        return [checkout.name for checkout, report in done if report.complaint]

    def look(self) -> Files:
        """Return the files of the working tree. After edits of known files only these are looked
        at, unless the last scan is long ago.
        """
        touched: list[set[str] | None] = []
        while not self.touched.empty():
            touched.append(self.touched.get())
        edited = [paths for paths in touched if paths]
        found = None
        if edited and edited == touched and time.monotonic() < self.looked_at + 2 * RESCAN:
            found = with_edits(self.root, self.files, set().union(*edited))
        if found is None:
            self.looked_at = time.monotonic()
            found = scan(self.root)
        self.withhold(found)
        self.files = found
        return found

    def withhold(self, found: Files) -> None:
        """Take files that may be secret out of those to push, and name them once."""
        known = {**self.files, **self.withheld}
        new = [path for path, stamp in found.items() if stamp and stamp != known.get(path)]
        for each in self.suspect(new):
            self.say(f"Not sent, as it may be secret: {each}. To send it: --send-secrets")
            self.withheld[each.path] = found[each.path]
        for path, stamp in self.withheld.items():
            if found.get(path) == stamp:
                found.pop(path, None)

    def notice(self, paths: set[str]) -> None:
        """Begin the next pass if a change of these paths matters; none: look at all files."""
        is_known = any(os.path.relpath(path, self.root) in self.files for path in paths)
        if not paths or is_known or matters(self.root, paths):
            self.touched.put(paths or None)
            self.changed.set()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        def work() -> None:
            try:
                function(*arguments)
            except Exception as error:
                self.failure = error
                self.changed.set()

        threading.Thread(target=work, daemon=True).start()

    def attempt(self, files: Files, checkout: Checkout) -> Report | None:
        try:
            return push(self.root, files, checkout, self.say)
        except Away as error:
            if not self.over.is_set():
                self.say(f"{checkout.name}: {error.message}; trying again until it answers")
                checkout.ready, checkout.has = False, None  # after a reboot it may have other files
                self.start(self.reach, checkout)
            return None

    def reach(self, checkout: Checkout) -> None:
        """Try to reach a machine until it answers or is gone for good; then begin a pass."""
        last_message, pause = "", 0.5
        while not self.over.is_set():
            try:
                checkout.ssh, checkout.destination = checkout.locate()
                checkout.read_index()
                checkout.reached, checkout.ready = time.monotonic(), True
                break
            except Gone as error:
                self.lost[checkout.name] = error.message
                if len(self.lost) < len(self.checkouts):  # else `run` raises it
                    self.say(error.message)
                break
            except Exception as error:  # of any kind: the network may be down
                message = f"{type(error).__name__}: {error}"
                if isinstance(error, BergError):
                    message = error.message
                if message != last_message and not self.over.is_set():
                    self.say(f"{checkout.name}: {message}")
                last_message = message
            self.over.wait(pause)
            pause = min(2 * pause, 4)
        self.changed.set()

    def watch(self) -> None:
        """Notice each change of the working tree."""
        import watchfiles

        options: dict[str, Any] = {
            "watch_filter": None,
            "stop_event": self.over,
            "step": STEP,
            "debounce": LONGEST_BURST,
            "rust_timeout": RESCAN * 1000,
            "yield_on_timeout": True,
        }
        warned = False
        while not self.over.is_set():
            try:
                for batch in watchfiles.watch(self.root, **options):
                    self.notice({path for _, path in batch})
            except OSError as error:
                self.say(
                    f"Looking for changes every 2 s, as this system cannot report them: {error}"
                )
                while not self.over.wait(2):
                    self.changed.set()
            except RuntimeError as error:  # watchfiles ends at a name that is not UTF-8
                if not warned:
                    self.say(f"Changes may take {RESCAN} s to be noticed: {error}")
                warned = True
                self.over.wait(1)  # a file that is written all the time, such as a log
                self.changed.set()


def summary(reports: list[tuple[Checkout, Report]]) -> Iterator[str]:
    """Yield lines about a pass: one for all machines to which the same happened."""
    groups: dict[tuple[Any, ...], list[tuple[Checkout, Report]]] = {}
    for checkout, report in reports:
        key = tuple(report.sent), tuple(report.removed), report.compared, report.complaint
        groups.setdefault(key, []).append((checkout, report))
    for members in groups.values():
        report = members[0][1]
        where = f"{len(members)} machines"
        if len(members) < 4:
            where = ", ".join(checkout.name for checkout, _ in members)
        what = [f"compared {plain.plural(report.compared, 'file')}"] if report.compared else []
        what += [f"sent {some(report.sent)}"] if report.sent else []
        what += [f"removed {some(report.removed)}"] if report.removed else []
        if what:
            seconds = max(each.seconds for _, each in members)
            how = f"{plain.size(report.size)} in {seconds:.2f} s"
            yield f"{time.strftime('%H:%M:%S')}  {where}: {', '.join(what)}; {how}"
        for line in report.complaint.splitlines():
            if not line.startswith("rsync error:"):
                yield f"{where}: {line}"


def some(paths: list[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    more = ", …" if len(paths) > SHOWN else ""
    return f"{len(paths):,} files ({', '.join(paths[:SHOWN])}{more})"


# --- the files of a working tree as git sees them, here and on a machine


def list_files(git: Git, folder: str = "", nested: bool = False) -> tuple[set[str], set[str]]:
    """Return tracked and untracked files below `folder` that are not ignored, submodules included.

    `nested`: also those of repos inside that git does not track.
    """
    tracked: set[str] = set()
    untracked: set[str] = set()
    inner: set[str] = set()
    for entry in names(git(folder, LIST)):
        tag, rest = entry[0], entry[2:]
        if tag != "?":
            details, _, path = rest.partition("\t")
            (inner if details.startswith("160000") else tracked).add(folder + path)
        elif not rest.endswith("/"):
            untracked.add(folder + rest)
        elif nested:
            inner.add(folder + rest.rstrip("/"))
    tracked -= {folder + path for path in names(git(folder, DELETED))}
    for path in inner:
        more = list_files(git, f"{path}/", nested)
        tracked |= more[0]
        untracked |= more[1]
    return tracked, untracked


def list_start(git: Git, folder: str = "") -> set[str]:
    """Return the files of the snapshot that a machine was started with, submodules included."""
    found: set[str] = set()
    # set by snapshot.restore
    for entry in names(git(folder, ["ls-tree", "-r", "-z", "--full-tree", "refs/berg/start"])):
        details, _, path = entry.partition("\t")
        if details.startswith("160000"):
            found |= list_start(git, f"{folder}{path}/")
        else:
            found.add(folder + path)
    return found


def scan(root: Path) -> Files:
    """Return the files of a working tree, without untracked virtual environments."""

    def git(folder: str, arguments: list[str]) -> bytes:
        if folder and program.enter(root, root / folder):
            return b""
        try:
            return program.run(root / folder, HERE, *arguments)
        except GitError as error:
            if folder:
                return b""
            raise BergError(f"git cannot list the files of {root}: {error}") from None

    tracked, untracked = list_files(git, nested=True)
    configs = [path for path in untracked if Path(path).name == "pyvenv.cfg"]
    environments = tuple({path.removesuffix("pyvenv.cfg") for path in configs} - {""})
    untracked = untracked.union(*brought_by_berg(root)) - set(left_to_berg(root))
    files = tracked | {path for path in untracked if not path.startswith(environments)}
    base = f"{root}/"  # a Path for each of 20,000 files would take most of the time
    return {path: stamp(base + path) for path in files}


def with_edits(root: Path, files: Files, paths: set[str]) -> Files | None:
    """Return `files` after edits of some paths; None if all must be scanned again: a file is new or
    gone, or decides what is ignored.
    """
    found = dict(files)
    for path in paths:
        name = os.path.relpath(path, root)
        if name in files:
            found[name] = stamp(path)
            if found[name] is None or Path(name).name in RULES:
                return None
        elif ".git" not in Path(name).parts and os.path.lexists(path):
            return None
    return found


def stamp(path: str) -> Stamp | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return None  # for example a pipe
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def matters(root: Path, paths: set[str]) -> bool:
    """Return whether one of these paths may be in the working tree: not in .git, not ignored."""
    relative = [os.path.relpath(path, root) for path in paths]
    relative = [path for path in relative if ".git" not in Path(path).parts]
    if not relative or len(relative) > 100:  # asking about many takes longer than a scan
        return bool(relative)
    try:
        ignored = program.run(root, HERE, "check-ignore", "-z", "--stdin", stdin=joined(relative))
    except GitError:  # none is ignored
        return True
    return ignored.count(b"\0") < len(relative)
