"""`berg sync`: the working tree goes to the machines of a job, and again after every change.

git names the files, and rsync sends those that differ through one ssh connection for each machine.
Deleted on a machine is only what came from here and is deleted here: files of the job's commit, and
those listed in .git/berg-pushed of its checkout. All else there stays: ignored files, what was made
there, and a link that replaced a folder. What a person edited there is replaced when it differs.
"""

import contextlib
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
from pathlib import Path

import click

from berg import BergError, code, jobs, place, ssh, terminal
from berg.bucket import trouble
from berg.config import Config
from berg.job import Job
from berg.place import Machine

PAUSE = 1  # seconds between two looks at the working tree
AGAIN = 5  # seconds after which a machine that did not answer is tried again
READY = 300  # seconds until a machine that starts has checked the code out
SHOWN = 3  # files named in a line
PARTIAL, VANISHED = 23, 24  # exit codes of rsync: all else was sent
RSYNC = ["rsync", "--from0", "--files-from=-", "--delete-missing-args", "--checksum", "--links"]
RSYNC += ["--perms", "--times", "--omit-dir-times", "--keep-dirlinks", "--compress"]
RSYNC += ["--protect-args", "--temp-dir=.git", "--out-format=%o %n"]  # git does not look there
STAGED = re.compile(r"(\d{6}) [0-9a-f]+ \d\t")  # before a tracked file's name, which may have a tab
LOCKS = ("uv.lock", "requirements.txt", "poetry.lock", "Pipfile.lock")

Stamp = tuple[int, int, int]  # mode, size in bytes, and time of the last change in ns


class Away(OSError):
    """The machine did not answer, which may pass."""


@dataclass
class Checkout:
    """The checkout on one machine, and which of its files came from here."""

    machine: Machine
    folder: str
    words: list[str]  # ssh and its options
    address: str
    known: set[str] = field(default_factory=set)
    has: dict[str, Stamp] = field(default_factory=dict)  # as they were sent

    def remote(self, command: str, content: bytes = b"") -> bytes:
        """Run a command in the checkout; raise Away if the machine does not answer."""
        words = [*self.words, self.address, f"cd {shlex.quote(self.folder)} && {command}"]
        done = subprocess.run(words, input=content, capture_output=True)
        if done.returncode == 255:
            raise Away(last_line(done.stderr) or "the connection was lost")
        if done.returncode:
            raise BergError(f"{self.machine.name}: {last_line(done.stderr) or command}. Try again")
        return done.stdout


def last_line(text: bytes) -> str:
    return terminal.clean(text.decode(errors="replace").strip().rpartition("\n")[2])


def files_of(root: Path, below: str = "") -> dict[str, Stamp]:
    """The files of the working tree that git does not ignore, also of submodules that are here."""
    listed = code.git(
        root / below, "ls-files", "-z", "--stage", "--cached", "--others", "--exclude-standard"
    )  # lines of tracked files have their mode first
    found: dict[str, Stamp] = {}
    for row in filter(None, listed.split("\0")):
        staged = STAGED.match(row)
        path = f"{below}{row[staged.end() :] if staged else row}"
        if staged and staged[1] == "160000":
            if (root / path / ".git").exists():
                found |= files_of(root, f"{path}/")
            continue
        with contextlib.suppress(OSError):  # deleted
            about = os.lstat(root / path)
            if (about.st_mode >> 12) in (0o10, 0o12):  # a file or a link
                found[path] = about.st_mode, about.st_size, about.st_mtime_ns
    left_out = code.environments(found)
    return {path: stamp for path, stamp in found.items() if not path.startswith(left_out)}


@contextlib.contextmanager
def reached(config: Config, machine: Machine, job: Job, folder: Path) -> Iterator[Checkout]:
    """The checkout of a machine, when its code is there; one connection serves until the end."""
    words = ssh.login(config, job, machine)
    control = ssh.quoted(folder / "s")  # short: a socket's path has 104 letters at most
    shared = {"ControlMaster": "auto", "ControlPath": control, "ControlPersist": "300"}
    shared |= {"BatchMode": "yes", "ConnectTimeout": "10", "ServerAliveInterval": "5"}
    options = [word for key, text in shared.items() for word in ("-o", f"{key}={text}")]
    found = Checkout(
        machine, f"/root/code/{job.repo}", [words[0], *options, *words[1:-1]], words[-1]
    )
    try:
        commit, end = str(job.code["commit"]), time.monotonic() + READY
        while True:
            try:  # a checkout writes HEAD last
                found.remote("git rev-parse -q --verify HEAD")
                break
            except BergError:
                if time.monotonic() > end:
                    raise BergError(
                        f"{machine.name} has no checkout. See: berg log {job.name}"
                    ) from None
                time.sleep(2)
        listed = f"git ls-tree -r -z --name-only {shlex.quote(commit)}"
        names = found.remote(f"cat .git/berg-pushed 2>/dev/null || {listed}")
        found.known = {os.fsdecode(name) for name in names.split(b"\0") if name}
        yield found
    finally:
        subprocess.run([*found.words, "-O", "exit", found.address], capture_output=True)


def push(root: Path, files: dict[str, Stamp], checkout: Checkout) -> list[str]:
    """Make a checkout like the working tree; return what was sent and deleted."""
    changed = [path for path, stamp in files.items() if checkout.has.get(path) != stamp]
    gone = [path for path in checkout.known - files.keys() if not os.path.lexists(root / path)]
    if not changed and not gone:
        return []
    above = {str(parent) for path in gone for parent in Path(path).parents} - {"."}
    if became := above & {*changed}:  # folders that are files now: what was in them goes first
        inner = {path for path in gone if became & {*map(str, Path(path).parents)}}
        checkout.remote("xargs -0 rm -f --", joined(sorted(inner)))
        empty(checkout, above)
        checkout.known -= inner
        return sorted(inner) + push(root, files, checkout)
    # Before they are sent: if the connection breaks, it is known that they come from here.
    note(checkout, checkout.known | files.keys())
    words = [
        *RSYNC,
        "--rsh",
        shlex.join(checkout.words),
        "./",
        f"{checkout.address}:{checkout.folder}/",
    ]
    names = joined([f"./{path}" for path in [*changed, *gone]])  # it takes # and ; for comments
    done = subprocess.run(words, cwd=root, input=names, capture_output=True)
    if b"command not found" in done.stderr:
        raise BergError(f"{checkout.machine.name} has no rsync. There: apt-get install rsync")
    if done.returncode not in (0, PARTIAL, VANISHED):
        raise Away(last_line(done.stderr))
    if done.returncode == PARTIAL:
        terminal.warn(f"{checkout.machine.name}: {done.stderr.decode(errors='replace').strip()}")
    if gone:  # what somebody makes there under such a name later is theirs
        note(checkout, checkout.known - {*gone})
    checkout.has = dict(files)
    rows = [row.partition(" ") for row in done.stdout.decode(errors="replace").splitlines()]
    sent = [path for verb, _, path in rows if verb in ("send", "del.") and not path.endswith("/")]
    empty(checkout, above)
    return sent


def note(checkout: Checkout, known: set[str]) -> None:
    """Keep, here and there, which names come from here: such a file goes when it is deleted here."""
    checkout.known = known
    command = "cat >.git/berg-pushed.new && mv .git/berg-pushed.new .git/berg-pushed"
    checkout.remote(command, joined(sorted(known)))


def empty(checkout: Checkout, folders: set[str]) -> None:
    """Delete those of these folders that are empty."""
    command = "xargs -0 rmdir --ignore-fail-on-non-empty -- 2>/dev/null || true"
    if folders:
        checkout.remote(command, joined(sorted(folders, reverse=True)))


def joined(paths: list[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def without_secrets(files: dict[str, Stamp], known: set[str], say: Callable[[str], None]) -> None:
    """Take out what looks like a secret, and say so; what the job was submitted with is agreed on."""
    for path in [path for path in files if code.SECRETS.search(path) and path not in known]:
        say(
            f"Not sent, as it looks like a secret: {path}. Ignore it: .gitignore; or: --send-secrets"
        )
        del files[path]


@click.command()
@click.argument("name")
@click.option("--once", is_flag=True, help="Send the working tree once and exit.")
@click.option(
    "--send-secrets", is_flag=True, help="Also send what looks like a secret, such as .env."
)
def sync(name: str, once: bool, send_secrets: bool) -> None:
    """Send the working tree to the machines of a job or devbox, and again after every change.

    Deleted there is only what came from here. Ctrl-C ends it.

    \b
    berg sync my-devbox
    berg sync my-job --once
    """
    config, root = Config.load(), code.find_root(Path.cwd())
    if not shutil.which("rsync"):
        raise BergError("rsync is not installed. Install it, for example: apt-get install rsync")
    if b"openrsync" in subprocess.run(["rsync", "--version"], capture_output=True).stdout:
        raise BergError("the rsync of macOS cannot do it. Install another: brew install rsync")
    state, machines = ssh.machines_of(config, name)
    job = ssh.read_job(config, state.name)
    if job is None or job.repo != root.name:
        of = f"of the repository {job.repo!r}" if job else "without a record"
        raise BergError(f"{state.name} is {of}, and this is {root.name!r}. Run berg sync there")
    where = ", ".join(machine.name for machine in machines)
    terminal.say(f"Sending {root} to {where}" + ("" if once else "; Ctrl-C ends it"))
    over = threading.Event()  # others end when one raises, or at Ctrl-C

    def work(machine: Machine) -> None:
        try:
            follow(config, root, job, machine, once, send_secrets, over)
        except BergError:
            over.set()
            raise

    with ThreadPoolExecutor(len(machines)) as pool, contextlib.suppress(KeyboardInterrupt):
        try:
            [*pool.map(work, machines)]
        finally:
            over.set()


def follow(
    config: Config, root: Path, job: Job, machine: Machine, once: bool, all_files: bool,
    over: threading.Event,
) -> None:  # fmt: skip
    """Send what changes to one machine, until the end; one that does not answer is tried again."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            terminal.say(text)

    while not over.is_set():
        try:
            with (
                tempfile.TemporaryDirectory(prefix="berg-") as folder,
                reached(config, machine, job, Path(folder)) as checkout,
            ):
                while not over.is_set():
                    files = files_of(root)
                    if not all_files:
                        without_secrets(files, checkout.known, say)
                    began = time.monotonic()
                    if sent := push(root, files, checkout):
                        names = ", ".join(sent[:SHOWN]) + (", …" if len(sent) > SHOWN else "")
                        seconds = time.monotonic() - began
                        terminal.say(
                            f"{machine.name}: {len(sent)} files ({names}) in {seconds:.1f} s"
                        )
                        for lock in {*LOCKS} & {*sent}:
                            terminal.say(f"{lock} has changed: install it again on {machine.name}")
                    if once:
                        return
                    over.wait(PAUSE)
        except trouble() as error:  # the laptop may have slept
            if not over.wait(PAUSE):
                say(f"{machine.name}: {error}; trying again until it answers")
                over.wait(AGAIN)
                machine = present(config, job, machine)


def present(config: Config, job: Job, machine: Machine) -> Machine:
    """The machine that has the name now: Google makes some again; raise BergError if it is gone."""
    with contextlib.suppress(*trouble()):
        state = jobs.find(config, job.name)
        for each in place.machines(config, job.name):
            if each.name == machine.name:
                return each
        if state.is_final or not job.returns:
            raise BergError(f"{machine.name} is gone. See: berg show {job.name}")
    return machine
