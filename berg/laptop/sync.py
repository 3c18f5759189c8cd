"""`berg sync`: finds the machines of a job, and how to reach each, for code/push.py.

The working tree pushed to machines over ssh, again on every change: `berg sync`.

Changes are noticed by inotify or its like, found by a scan of the working tree (worktree.py) and
sent by rsync through one ssh connection per machine, which stays open.

What is here is made so there. Of what is only there, files that came from here are removed: those
of the commit that the machine was started with (refs/berg/start there), and those that were pushed
later, which are listed in .git/berg-pushed of the checkout. What else a machine has stays: ignored
files, what was made or committed there, and a link that took a folder's place, to a larger disk or
to the results. Before 3.5 rsync writes through it; from then on it says that it does not.

Not covered: empty folders, owners, hard links, and changes that are made on the machine.

The files of a working tree as git sees them, here and on a machine: tracked, or untracked and
not ignored.

Submodules, and repos inside of the repo, count with their own ignore rules. Untracked virtual
environments do not count, as in snapshot.py. Symbolic links are files of their own and never
followed.
"""

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

from berg import BergError, computer
from berg.code import git as program
from berg.code import snapshot
from berg.code.git import last_line, names
from berg.code.snapshot import IGNORE_FILE, left_to_berg
from berg.config import Config
from berg.laptop import jobs, launch, ssh
from berg.plain import plural


def multiplex(options: list[str], sockets: Path) -> list[str]:
    """Ssh with one connection for all that goes to a machine: a handshake takes longer than a small
    transfer.

    A connection that is dead is noticed after 15 seconds. One that is not used is closed after 300:
    an open one keeps a devbox from being idle.
    """
    settings = [
        "ControlMaster=auto",
        f"ControlPath={ssh.as_path(sockets)}/%C",
        "ControlPersist=300",
        "BatchMode=yes",
    ]
    settings += ["ServerAliveInterval=5", "ServerAliveCountMax=3", "ConnectTimeout=10"]
    return ["ssh", *(word for setting in settings for word in ("-o", setting)), *options]


Say = Callable[[str], None]


def sync(config: Config, name: str, folder: Path, say: Say, once: bool = False) -> None:
    """Push the working tree around `folder` to all machines of a job, until it is interrupted or
    once.

    Raises BergError if there is no repo, no such job, or no machine of it any more.
    """
    root = snapshot.find_root(folder).resolve()
    check_rsync()
    found = jobs.find(config, name)
    here = launch.repo_name(root.name)
    repo = found.state.job.repo if found.state else here
    if repo != here:
        raise BergError(
            f"{name} was started in the repo {repo!r}, and this is {here!r}. Run berg sync in "
            f"{repo}"
        )
    machines = [machine.name for machine in found.machines if machine.name == name]
    machines = machines or [machine.name for machine in found.machines] or [name]
    # Not below BERG_HOME, whose path may be long.
    with computer.folder_for_sockets() as sockets:
        checkouts = [checkout_on(config, machine, here, Path(sockets), say) for machine in machines]
        say(
            f"Pushing {root} to {CODE}/{here} on {', '.join(machines)}"
            + ("" if once else "; Ctrl-C ends it")
        )
        Push(root, checkouts, say).run(once)


def check_rsync() -> None:
    """Raise BergError unless there is an rsync here that has what berg asks of it."""
    mend = f"Install it, for example: {computer.install_command('rsync')}"
    if not shutil.which("rsync"):
        raise BergError(f"rsync is not installed. {mend}")
    told = subprocess.run(["rsync", "--version"], capture_output=True, text=True).stdout
    if told.startswith("openrsync"):
        raise BergError(f"the rsync of macOS is openrsync, which cannot do what berg needs. {mend}")


# Mode, size in bytes, times of content and of inode in ns: what differs after a save, also where
# one of them does not.
Stamp = tuple[int, int, int, int]


@dataclass
class Checkout:
    """The checkout on one machine, and what is known of it. One thread at a time uses it."""

    name: str
    folder: str  # of the checkout, on the machine
    locate: Callable[[], tuple[list[str], str]]  # finds ssh's options and destination; raises Gone
    sudo: list[str] = field(default_factory=list)
    ssh: list[str] = field(default_factory=list)
    destination: str = ""
    # What of the machine's files came from here, each as it was when it was sent (None: earlier);
    # None: not known.
    has: dict[str, Stamp | None] | None = None
    started: set[str] = field(default_factory=set)  # what came with the start
    # what came later: what the list on the machine says
    pushed: set[str] = field(default_factory=set)
    index: bytes = b""  # which one git has there; a checkout that is made anew has another
    ready: bool = False
    reached: float = 0  # when it answered, on the monotonic clock
    process: subprocess.Popen[bytes] | None = None
    ended: bool = False

    def call(
        self, command: list[str], cwd: Path | None = None, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program of this computer; `end` ends it, too."""
        # The ssh that holds the connection outlives the one that opened it, and would keep a pipe
        # open.
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

    def remote(self, words: list[str], stdin: bytes = b"") -> subprocess.CompletedProcess[Any]:
        """Run a program of the machine; raises Away if it cannot be reached."""
        command = [*self.ssh, self.destination, shlex.join([*self.sudo, *words])]
        done = self.call(command, stdin=stdin)
        if done.returncode == 255:
            raise Away(last_rsync_line(done.stderr) or "the connection was lost")
        return done

    def git(self, folder: str, arguments: list[str]) -> bytes:
        listed: bytes = self.remote(command(f"{self.folder}/{folder}", arguments)).stdout
        return listed

    def end(self) -> None:
        self.ended = True
        if self.process and self.process.poll() is None:
            self.process.terminate()


def checkout_on(config: Config, machine: str, repo_name: str, sockets: Path, say: Say) -> Checkout:
    def locate() -> tuple[list[str], str]:
        try:
            target = ssh.find_target(config, machine, say)
        except BergError as error:
            if isinstance(error, ssh.NoServer) or is_gone(config, machine):
                raise Gone(error.message) from None
            raise
        return multiplex(ssh.options(config, target), sockets), ssh.destination(config, target)

    sudo = [] if config.ssh_user == "root" else ["sudo", "-n"]
    return Checkout(machine, f"{CODE}/{repo_name}", locate, sudo)


def is_gone(config: Config, machine: str) -> bool:
    """Whether nobody will see this machine again."""
    try:
        found = jobs.find(config, machine)
    except BergError:
        return True
    waits = found.state is not None and found.state.state == "SUBMITTED"
    return not waits and machine not in [each.name for each in found.machines]


CODE = "/root/code"

LOCK = "uv.lock"

INSTALL = "/root/berg/install-again"  # a script of the worker's (machine/installation.py)

# ms without a change that end a burst of saves; ms after which it is sent anyway
STEP, LONGEST_BURST = (
    50,
    1000,
)

SETTLES = 120  # seconds from a machine's answer in which its worker may still restore the checkout

RESCAN = 10  # seconds: some file systems tell nothing, and a rule outside of the repo may change

PATIENCE = 300  # seconds that --once waits for a machine that does not answer

SHOWN = 3  # files named in a line

LARGE = 8 << 20  # bytes worth a word before they are sent

# A file that is being received lies in .git, where neither git nor a program that watches the code
# sees it.
RSYNC = [
    "rsync",
    "--from0",
    "--files-from=-",
    "--ignore-missing-args",
    "--checksum",
    "--links",
    "--perms",
    "--times",
]


RSYNC += [
    "--omit-dir-times",
    "--keep-dirlinks",
    "--compress",
    "--protect-args",
    "--8-bit-output",
    "--temp-dir=.git",
]


RSYNC += ["--out-format=%i %b %n"]

# exit codes of rsync; after the last two everything else has been sent
USAGE, PARTIAL, VANISHED = (
    1,
    23,
    24,
)

# not: a folder, or what is the same but for time and mode
SENT = re.compile(r"(?:<f|cL)\S* (\d+) (.*)")

SENT_OR_MODE = re.compile(r"(?:<f|cL|\.f..[.t]p)\S* (\d+) (.*)")


class Away(BergError):
    """The machine does not answer, or has no checkout yet: worth another try."""


class Gone(BergError):
    """The machine will not come back."""


@dataclass
class Report:
    """What one machine was sent in one pass."""

    sent: list[str]
    removed: list[str]
    size: int  # bytes that travelled
    seconds: float
    compared: int = 0  # files, if this was the first pass
    complaint: str = ""  # what could not be sent, in rsync's words


def last_rsync_line(text: str) -> str:
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith("rsync error: unexplained")
    ]
    return lines[-1].strip() if lines else ""


def read_checkout(checkout: Checkout) -> None:
    """Ask the machine what it has of ours."""
    checkout.index = index_of(checkout)
    tracked, untracked = list_files(checkout.git)
    checkout.started = list_start(checkout.git)
    listed = checkout.remote(["cat", f"{checkout.folder}/.git/berg-pushed"])
    checkout.pushed = set(names(listed.stdout))
    checkout.has = dict.fromkeys((tracked | untracked) & (checkout.started | checkout.pushed))


def index_of(checkout: Checkout) -> bytes:
    """Inode and time of git's index on the machine; it is the last that a checkout writes."""
    done = checkout.remote(["stat", "--format=%i %y", f"{checkout.folder}/.git/index"])
    if done.returncode:
        raise Away(f"waiting for its checkout of the code, {checkout.folder}")
    listed: bytes = done.stdout
    return listed


def note(checkout: Checkout, pushed: set[str]) -> None:
    """Keep the list of what was pushed beside the checkout, to last as long as the files."""
    if pushed != checkout.pushed:
        checkout.remote(
            ["tee", f"{checkout.folder}/.git/berg-pushed"], stdin=joined(sorted(pushed))
        )
        checkout.pushed = pushed


def joined(paths: list[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def push(
    root: Path, files: dict[str, Stamp | None], checkout: Checkout, say: Say = lambda text: None
) -> Report:
    """Make one machine's checkout as `files` of the working tree; raises Away if it cannot be
    reached.
    """
    began = time.monotonic()
    changed, gone = compare(root, files, checkout)
    if checkout.has is not None and not changed and not gone and began > checkout.reached + SETTLES:
        return Report([], [], 0, 0)
    first = checkout.has is None or index_of(checkout) != checkout.index
    if first:
        read_checkout(checkout)
        changed, gone = compare(root, files, checkout)
    if not first:
        announce(checkout, changed, files, say)
    ours = files.keys() - checkout.started
    # before they are sent: what is lost from here on is still known to be ours
    note(checkout, checkout.pushed | ours)
    complaint = remove(checkout, gone, files) if gone else ""
    lines, more = send(root, changed, checkout) if changed else ([], "")
    note(checkout, ours)
    checkout.has = dict(files)
    sent = sizes_of(lines, first)
    more += install(checkout, sent, say)
    return Report(
        sorted(sent),
        sorted(gone),
        sum(sent.values()),
        time.monotonic() - began,
        len(files) if first else 0,
        complaint + more,
    )


def install(checkout: Checkout, sent: Iterable[str], say: Say) -> str:
    """Install a lock that was sent, where the job installed one; return what went wrong."""
    changed = any(path.rpartition("/")[2] == LOCK for path in sent)
    if not changed or checkout.remote(["test", "-e", INSTALL]).returncode:
        return ""
    say(f"{checkout.name}: installing the changed {LOCK}")
    done = checkout.remote(["bash", "-ec", f". {INSTALL} 2>&1"])
    words: str = done.stdout.decode(errors="replace")
    return f"{LOCK} could not be installed: {words}" if done.returncode else ""


def announce(
    checkout: Checkout, changed: list[str], files: dict[str, Stamp | None], say: Say
) -> None:
    """Say that much is about to be sent."""
    size = sum(stamp[1] for path in changed if (stamp := files[path]))
    if size > LARGE:
        say(f"{checkout.name}: sending {megabytes(size)}")


def sizes_of(lines: list[str], first: bool) -> dict[str, int]:
    """Return the size in bytes of each file that rsync says it sent."""
    # The machine that made the checkout had a umask of its own, so that at first all modes may
    # differ.
    telling = SENT if first else SENT_OR_MODE
    matches = [match for line in lines if (match := telling.fullmatch(line))]
    return {match[2]: int(match[1]) for match in matches}


def compare(
    root: Path, files: dict[str, Stamp | None], checkout: Checkout
) -> tuple[list[str], list[str]]:
    """Which files to send to a machine, and which to delete there."""
    has = checkout.has or {}
    changed = [path for path, stamp in files.items() if stamp and has.get(path) != stamp]
    return changed, [path for path in has if path not in files and is_deleted(root, path, files)]


def remove(checkout: Checkout, gone: list[str], files: dict[str, Stamp | None]) -> str:
    """Delete files on the machine, and folders that become empty; return what went wrong."""
    done = checkout.remote(
        ["xargs", "-0", "rm", "-f", "--"], joined([f"{checkout.folder}/{path}" for path in gone])
    )
    left = {parent for path in gone for parent in parents(path)}
    left -= {parent for path in files for parent in parents(path)}
    deepest_first = sorted(left, key=lambda path: -path.count("/"))
    if deepest_first:
        folders = joined([f"{checkout.folder}/{path}" for path in deepest_first])
        checkout.remote(["xargs", "-0", "rmdir", "--ignore-fail-on-non-empty", "--"], folders)
    return done.stderr if done.returncode else ""


def send(root: Path, paths: list[str], checkout: Checkout) -> tuple[list[str], str]:
    """Send files; returns what rsync says of each, and what went wrong."""
    path_there = ["--rsync-path", shlex.join([*checkout.sudo, "rsync"])]
    target = f"{checkout.destination}:{checkout.folder}/"
    command = [*RSYNC, *path_there, "--rsh", shlex.join(checkout.ssh), "./", target]
    # Without "./" rsync would take names that begin with # or ; for comments.
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
            "A folder that somebody made a link there stays one; rsync 3.5 sends nothing through "
            "it\n"
        )
    return done.stdout.decode(errors="replace").splitlines(), complaint


def explain(stderr: str, code: int) -> str:
    """The line of rsync's complaint that says most: the first one, except where a lost connection
    follows it.
    """
    if "command not found" in stderr:
        return "it has no rsync. On the machine: apt-get install rsync"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if not line.startswith(("rsync error:", "rsync: connection unexpectedly"))
    ]
    return (telling or lines or [f"rsync ended with exit code {code}"])[0]


@dataclass
class Push:
    """The working tree `root` on its way to `checkouts`, pass by pass."""

    root: Path
    checkouts: list[Checkout]
    say: Say
    changed: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    lost: dict[str, str] = field(default_factory=dict)  # machines that will not come back, and why
    failure: Exception | None = None  # of a thread; what it did nobody does any more
    files: dict[str, Stamp | None] = field(default_factory=dict)  # as the last look found them
    looked_at: float = -math.inf  # when all of them were looked at, on the monotonic clock
    # what may have changed since; None: anything
    touched: queue.SimpleQueue[set[str] | None] = field(default_factory=queue.SimpleQueue)

    def run(self, once: bool = False) -> None:
        """Push until it is interrupted, or once; raises BergError when no machine is left."""
        began = time.monotonic()
        for checkout in self.checkouts:
            self.start(self.reach, checkout)
        if not once:
            self.start(self.watch)
        try:
            with ThreadPoolExecutor(max(1, len(self.checkouts))) as pool:
                try:
                    self.work(pool, once, began)
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

    def work(self, pool: ThreadPoolExecutor, once: bool, began: float) -> None:
        """Push after each change; with `once` return when every machine has the working tree."""
        while not self.over.is_set():
            self.wait_for_change(PATIENCE if once else None, began)
            refused = self.push_to_all(pool)
            if once and refused:
                raise BergError(
                    f"not all of it could be put in place on {', '.join(refused)}, as said above"
                )
            if self.is_done(once):
                return

    def is_done(self, once: bool) -> bool:
        """Tell whether every machine has the working tree; raise BergError where none is left."""
        living = [checkout for checkout in self.checkouts if checkout.name not in self.lost]
        if not living or (once and self.lost):
            raise BergError("; ".join(self.lost.values()))
        return once and all(checkout.has is not None for checkout in living)

    def push_to_all(self, pool: ThreadPoolExecutor) -> list[str]:
        """Push to the machines that answer; return the names of those that took not all of it."""
        checkouts = [checkout for checkout in self.checkouts if checkout.ready]
        if not checkouts:
            return []
        files = self.look()
        reports = list(pool.map(self.attempt, repeat(files), checkouts))
        pairs = zip(checkouts, reports, strict=True)
        done = [(checkout, report) for checkout, report in pairs if report]
        for line in summary(done):
            self.say(line)
        return [checkout.name for checkout, report in done if report.complaint]

    def look(self) -> dict[str, Stamp | None]:
        """Return the files of the working tree: after mere edits of some, those of the last look
        with these looked at again, unless that is long ago.
        """
        touched: list[set[str] | None] = []
        while not self.touched.empty():
            touched.append(self.touched.get())
        edited = [paths for paths in touched if paths]
        is_recent = time.monotonic() < self.looked_at + 2 * RESCAN
        found = None
        if edited == touched and edited and is_recent:
            found = with_edits(self.root, self.files, set().union(*edited))
        if found is None:
            self.looked_at = time.monotonic()
            found = scan(self.root)
        self.files = found
        return found

    def notice(self, paths: set[str]) -> None:
        """Let the next pass begin if a change of these paths matters; none: look at all."""
        is_known = any(os.path.relpath(path, self.root) in self.files for path in paths)
        if not paths or is_known or matters(self.root, paths):
            self.touched.put(paths or None)
            self.changed.set()

    def wait_for_change(self, patience: float | None, began: float) -> None:
        # Without a timeout, an interrupt would be heard only after the next change on some
        # platforms.
        while not self.changed.wait(1):
            if patience and time.monotonic() > began + patience:
                names = ", ".join(
                    checkout.name for checkout in self.checkouts if checkout.has is None
                )
                raise BergError(
                    f"{names} could not be reached within {patience:.0f} s. See: berg list"
                )
        self.changed.clear()
        if self.failure:
            raise BergError(
                f"changes are no longer noticed: {type(self.failure).__name__}: {self.failure}"
            )

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        def work() -> None:
            try:
                function(*arguments)
            except Exception as error:
                self.failure = error
                self.changed.set()

        threading.Thread(target=work, daemon=True).start()

    def attempt(self, files: dict[str, Stamp | None], checkout: Checkout) -> Report | None:
        try:
            return push(self.root, files, checkout, self.say)
        except Away as error:
            if not self.over.is_set():
                self.say(f"{checkout.name}: {error.message}; trying again until it answers")
                checkout.ready, checkout.has = False, None  # after a reboot it may have other files
                self.start(self.reach, checkout)
            return None

    def reach(self, checkout: Checkout) -> None:
        """Try to reach a machine until it answers or will not come back; then there is something to
        do.
        """
        said, pause = "", 0.5
        while not self.over.is_set():
            try:
                checkout.ssh, checkout.destination = checkout.locate()
                index_of(checkout)
                checkout.reached, checkout.ready = time.monotonic(), True
                break
            except Gone as error:
                self.lost[checkout.name] = error.message
                if len(self.lost) < len(self.checkouts):  # else it is the error that ends all
                    self.say(error.message)
                break
            except Exception as error:  # of whatever kind: the network may be down
                message = (
                    error.message
                    if isinstance(error, BergError)
                    else f"{type(error).__name__}: {error}"
                )
                if message != said and not self.over.is_set():
                    self.say(f"{checkout.name}: {message}")
                said = message
            self.over.wait(pause)
            pause = min(2 * pause, 4)
        self.changed.set()

    def watch(self) -> None:
        """Set `changed` whenever a file of the working tree may have changed."""
        import watchfiles

        options: dict[str, Any] = {
            "step": STEP,
            "debounce": LONGEST_BURST,
            "rust_timeout": RESCAN * 1000,
            "yield_on_timeout": True,
        }
        warned = False
        while not self.over.is_set():
            try:
                for batch in watchfiles.watch(
                    self.root, watch_filter=None, stop_event=self.over, **options
                ):
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
                self.over.wait(1)  # what is written all the time, as a log, is to cost little
                self.changed.set()


def summary(reports: list[tuple[Checkout, Report]]) -> Iterator[str]:
    """Lines about a pass: one for all machines to which the same happened."""
    groups: dict[tuple[Any, ...], list[tuple[Checkout, Report]]] = {}
    for checkout, report in reports:
        key = tuple(report.sent), tuple(report.removed), report.compared, report.complaint
        groups.setdefault(key, []).append((checkout, report))
    for members in groups.values():
        report = members[0][1]
        seconds = max(each.seconds for _, each in members)
        names = (
            ", ".join(checkout.name for checkout, _ in members)
            if len(members) < 4
            else f"{len(members)} machines"
        )
        what = [f"compared {plural(report.compared, 'file')}"] if report.compared else []
        what += [
            f"{verb} {some(paths)}"
            for verb, paths in (("sent", report.sent), ("removed", report.removed))
            if paths
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
    return (
        f"{size / 1e6:.1f} MB"
        if size >= 1e6
        else f"{size / 1e3:.1f} kB"
        if size >= 1000
        else f"{size} bytes"
    )


# Files that say which others count.
RULES = (".gitignore", IGNORE_FILE)

# Runs git in a folder of the tree ("" for its root) and returns what it printed; b"" if no repo is
# there.
Git = Callable[[str, list[str]], bytes]

HERE = "--git-dir=.git"

LIST = ["ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard"]

# which snapshot.restore leaves on a machine
START = [
    "ls-tree",
    "-r",
    "-z",
    "--full-tree",
    "refs/berg/start",
]

# Unlike `ls-files --deleted`, it takes a file that is only to be seen through a symbolic link for
# deleted.
DELETED = ["diff-files", "-z", "--name-only", "--diff-filter=D", "--ignore-submodules"]


def command(folder: str, arguments: list[str]) -> list[str]:
    """Git of a machine for a repo whose root is `folder`: never for one around it."""
    return ["git", "-C", folder, HERE, *arguments]


def list_files(git: Git, folder: str = "", nested: bool = False) -> tuple[set[str], set[str]]:
    """Tracked and untracked files below `folder`; those of `nested` repos that git does not track,
    too.
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
    """Files of the snapshot that a machine was started with, submodules included."""
    found: set[str] = set()
    for entry in names(git(folder, START)):
        details, _, path = entry.partition("\t")
        found |= (
            list_start(git, f"{folder}{path}/") if details.startswith("160000") else {folder + path}
        )
    return found


def scan(root: Path) -> dict[str, Stamp | None]:
    """Every file of the working tree below `root`; None for one that is tracked, but not checked
    out.

    Sparse checkouts have such files. A file that vanishes meanwhile reads the same; the next scan
    lacks it.
    """

    import git as gitpython

    def git(folder: str, arguments: list[str]) -> bytes:
        if folder and program.enter(root, root / folder):
            return b""
        try:
            return program.run(root / folder, HERE, *arguments)
        except gitpython.GitCommandError as error:
            if folder:
                return b""
            raise BergError(f"git cannot list the files of {root}: {last_line(error)}") from None

    tracked, untracked = list_files(git, nested=True)
    environments = {
        path.removesuffix("pyvenv.cfg") for path in untracked if Path(path).name == "pyvenv.cfg"
    }
    outside = tuple(environments - {""})
    untracked -= set(left_to_berg(root))
    files = tracked | {path for path in untracked if not path.startswith(outside)}
    base = f"{root}/"  # of 20,000 files, making a Path each would take most of the time
    return {path: stamp(base + path) for path in files}


def with_edits(
    root: Path, files: dict[str, Stamp | None], paths: set[str]
) -> dict[str, Stamp | None] | None:
    """Return what a scan found, after edits of files at these paths; None where all must be looked
    at again: a file is new or gone, or says what is ignored.
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
        return None  # a pipe where a file was
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def parents(path: str) -> list[str]:
    """The folders around a file, the deepest first."""
    return [str(parent) for parent in Path(path).parents][:-1]


def is_deleted(root: Path, path: str, files: dict[str, Stamp | None]) -> bool:
    """Whether a file that is not among `files` is deleted, or a folder by now; else it is there,
    and ignored now.
    """
    there = root / path
    is_folder = there.is_dir() and not there.is_symlink()
    return (
        is_folder or any(parent in files for parent in parents(path)) or not os.path.lexists(there)
    )


def matters(root: Path, paths: set[str]) -> bool:
    """Whether a change of these paths can be a change of the working tree: not in .git, not
    ignored.
    """
    import git as gitpython

    relative = [os.path.relpath(path, root) for path in paths]
    relative = [path for path in relative if ".git" not in Path(path).parts]
    if not relative or len(relative) > 100:  # asking about many takes longer than a scan
        return bool(relative)
    asked = b"".join(os.fsencode(path) + b"\0" for path in relative)
    try:
        ignored = program.run(root, HERE, "check-ignore", "-z", "--stdin", stdin=asked)
    except gitpython.GitCommandError:  # none is
        return True
    return ignored.count(b"\0") < len(relative)
