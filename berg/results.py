"""Mirrors a folder of results to a bucket, and restores it.

A pass looks at the folder twice. At the first look it opens what changed since the last pass, so
that a file that is replaced or deleted later can still be read. If nothing but logs changed by the
second look, the folder is known as it was at that instant, however long sending takes. If the
folder is never quiet, the command is stopped for one look. When everything is in the bucket, one
more object, the moment, lists every file with the generation of its object.

Objects under plain names have the newest files, for people to look at. Before one that a recent
moment needs is replaced or deleted, it is copied aside within the bucket. A file that a program has
open for writing keeps its previous version in the moment, unless it is a log; a single machine
waits up to 20 seconds for such files before it takes a moment. A restore makes the folder what the
newest moment says, on a new disk or an old one.

Of machines that write one path, the one of the lowest rank has the plain name; another one's file is
PATH.~rank1~ in the bucket and in moments, and PATH again where that machine is restored. Who replaces
an object that another machine's moments may need copies it aside for that machine.
"""

import contextlib
import fcntl
import io
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import stat
import struct
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote

from berg.bucket import THREADS, Bucket, Changed, Object, Section, checksum, trouble
from berg.job import kept_prefix, moments_prefix, parts_prefix
from berg.moments import (
    FINAL,
    OPEN,
    PARTLY,
    UNKNOWN,
    Row,
    bring_all,
    common,
    copies,
    download,
    hashed,
    is_plain,
    is_there,
    misnamed,
    newest,
    number_of,
    rank_name,
    sources,
    split_name,
)

TRIES, UNSTOPPED_TRIES = 4, 20  # looks for a quiet instant, where the command can be stopped or not
COARSE = 5  # CLOCK_REALTIME_COARSE: of the times of files
CLOCK_STEP = time.clock_getres(COARSE) + 0.001  # changes this many seconds apart differ in mtime
PATIENCE = 20  # seconds for which a file that is rewritten, or changes all the time, delays moments
GAP = 5  # seconds for which a pass waits until a file that is being rewritten is closed
# Seconds after which an open file that does not change counts as whole, and for which new files that
# are still being written may delay a moment. Logs are sent this often in a long pass.
QUIET = 10
KEPT = 3  # moments that stay; of several machines also the newest that all have
LONG_AGO = float("-inf")
KEEP_DELETED = 3600  # seconds for which the bucket keeps what was deleted here
VERIFY = 60  # seconds to the end that allow a last pass which reads every byte again
LAST_TRIES = 10  # passes at the end over what the network, or a program, keeps from the bucket
HEAD = 64 << 10  # bytes at both ends of what was sent of a log, which tell whether it only grew
TAIL = 8 << 20  # bytes of a log from which on only what is new is sent
SMALL, HELD = 1 << 20, 256 << 20  # bytes of a file, and of all, that wait for sending in memory
SMALL_DATABASE = 64 << 20  # bytes of one that is copied without a lock
BEGINNING = 100  # the first bytes of a log: if they differ, it was begun anew
LOGS = (".log", ".jsonl", ".csv", ".tsv", ".wandb")
LOCK_WAIT = 2  # seconds to wait for a database that its program has locked
SQLITE, SHARED, PARTS = b"SQLite format 3\0", "-shm", ("-journal", "-wal", "-shm")
JOURNAL = bytes.fromhex("d9d505f920a163d7")  # SQLite's magic of a journal
RESERVED = 0x40000001  # the byte that its writer locks
KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
CUT = "it was being written: the last moment has the version before"

TROUBLE: tuple[type[Exception], ...] = trouble()
AUTHOR = re.compile(r"(.*)/(\d+)/(\d+)", re.S)
WRITER = "berg-writer"  # metadata: JOB/ID/ATTEMPT/RANK that wrote an object
Mark = tuple[int, int, int, int]  # inode, size, mtime and ctime: a version of a file


@dataclass
class Pin:
    """A file that changed, open, as it was at a look."""

    file: IO[bytes]
    seen: os.stat_result
    now: os.stat_result  # of `file`, which may be a copy: of a database, or in memory
    marks: dict[str, Mark]  # of the files whose content this is
    grows: bool = False  # a log: longer is as good
    half: bool = False  # open for writing, or cut off in a write: the version before counts
    beginning: bytes = b""  # first bytes of a log; a new log in its place begins differently

    @property
    def size(self) -> int:
        return self.now.st_size

    def follow(self) -> None:
        """Let a file be a log as it is now."""
        self.grows = True
        while len(self.beginning) < min(BEGINNING, self.size) or not self.is_same_log():
            self.beginning = os.pread(self.file.fileno(), BEGINNING, 0)
            self.now = os.fstat(self.file.fileno())

    def is_same_log(self) -> bool:
        return os.pread(self.file.fileno(), len(self.beginning), 0) == self.beginning


class Instant(NamedTuple):
    """The folder as it was at one time, if nothing is `moving`."""

    at_ns: int
    seen: dict[str, os.stat_result]  # all files and links
    pins: dict[str, Pin]  # what changed since it was sent, open; who gets it closes them
    moving: set[str]  # what was not quiet


class Refused(Exception):
    """A file that the bucket cannot have."""


class Hurry(Exception):
    """There is no time left for this pass."""


# A later pass tries again what ended like this.
UNSENT: tuple[type[Exception], ...] = (Changed, Hurry, ValueError, *TROUBLE)


@dataclass
class Mirror:
    """The results folder of one machine."""

    folder: str
    bucket: Bucket
    where: str  # prefix of the plain objects, with a slash at its end
    own: str  # the job's own folder in `folder`; other jobs' folders lie beside it
    job: str
    disk: str  # the rank of its machine
    attempt: int = 1
    machines: int = 1
    id: str = ""  # of the job: another one of its name may have written to the folder before
    notes: str = ""  # a file on this disk that has what was restored, for a worker that takes over
    # Stops what writes the folder, for milliseconds; None where that is not allowed.
    stopped: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    on_bytes: Callable[[int], None] = lambda count: None

    rows: dict[str, Row] = field(default_factory=dict)  # of the last moment
    restored_rows: dict[str, Row] = field(default_factory=dict)  # of the moment that was restored
    restored_marks: dict[str, Mark] = field(default_factory=dict)
    sent: dict[str, Row] = field(default_factory=dict)  # the newest object of each file
    marks: dict[str, Mark] = field(default_factory=dict)  # of the files that these have
    # Of logs: checksums of the beginning, and of both ends, of what was sent.
    log_sums: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Rows by number of a moment; 0 is what was restored.
    needed: dict[int, dict[str, Row]] = field(default_factory=dict)
    asides: set[str] = field(default_factory=set)  # names of the copies aside
    stale: list[Object] = field(default_factory=list)  # moments and copies of the attempts before
    gone: dict[str, float] = field(default_factory=dict)  # path -> when it was deleted here
    odd: dict[str, str] = field(default_factory=dict)  # path -> why the bucket cannot have it
    links: dict[str, str] = field(default_factory=dict)  # their targets at the last look
    # Path -> its name in the bucket and in moments, where a lower rank writes a file of that path, too.
    rank_names: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)  # paths whose object another machine wrote alike
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it was not sent
    halves: set[str] = field(default_factory=set)  # being rewritten at the last look
    ever_whole: set[str] = field(default_factory=set)  # were whole at some look
    unopened: set[str] = field(
        default_factory=set
    )  # at the last look: too many to be open together
    # Path -> when it began to delay moments.
    delays_since: dict[str, float] = field(default_factory=dict)
    # Open files, and since when they are as they are.
    unchanged_since: dict[str, tuple[Mark, float]] = field(default_factory=dict)
    copied: dict[str, float] = field(default_factory=dict)  # large databases -> when
    at_ns: int = 0  # of the last moment; of several machines, of the last one that all have
    own_moments: dict[int, tuple[str, int]] = field(default_factory=dict)  # their names and at_ns
    waiting_since: float = 0  # time.monotonic() of the first pass since the last moment
    trouble: str = ""
    was_restless: bool = False  # the last instant was not found at the first look
    is_restored: bool = False  # before that, the folder is nobody's results
    ending: bool = False
    is_final: bool = False
    is_clean: bool = True  # nothing is to be deleted that could not be
    # Inodes of files whose program was ended in a write, and when that was.
    cut: dict[int, float] = field(default_factory=dict)
    deadline: float = float("inf")  # time.monotonic() at which a pass is given up
    idle: float = 0  # seconds by which what is sent puts the deadline off
    latest: float = 0  # but not beyond this time.monotonic()

    def __post_init__(self) -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # of a lease that a program waits for
        self.most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.most, self.most))
        self.title = f"{self.job}/{self.id}"
        self.writer = f"{self.title}/{self.attempt:04}/{self.disk}"
        self.prefix = f"{moments_prefix(self.job)}{self.attempt:04}/{self.disk}/"
        self.busy: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by path
        self.turn = threading.Lock()

    @property
    def first(self) -> bool:
        """Whether this is the first machine, which lists what all restored."""
        return self.disk == "0"

    @property
    def overdue(self) -> set[str]:
        """Paths that may no longer delay a moment: they, or all together, did so for PATIENCE."""
        now, began = time.monotonic(), self.waiting_since or float("inf")
        return {path for path, at in self.delays_since.items() if now - min(at, began) >= PATIENCE}

    def path(self, path: str) -> str:
        return f"{self.folder}/{path}"

    def name(self, path: str) -> str:
        """The name of the object of a file here."""
        return self.where + self.rank_names.get(path, path)

    def by_path(self, named: dict[str, Row]) -> dict[str, Row]:
        """The rows of a moment by paths here, without other ranks' files; note this one's own names."""
        found: dict[str, Row] = {}
        for name, row in named.items():
            path, rank = split_name(name, self.machines)
            if rank == self.disk:
                self.rank_names[path] = name
                found[path] = row
            elif not rank:
                found.setdefault(path, row)  # its own one may be there already
        return found

    def without_lost(self, rows: dict[str, Row], kept: dict[str, list[Object]]) -> dict[str, Row]:
        """Rows without files of this rank's own names that the bucket has no more: then the plain ones count."""
        lost = set()
        for name, row in rows.items():
            path, rank = split_name(name, self.machines)
            if rank == self.disk and not row.link:
                there = self.bucket.get(self.where + name)
                if not sources(name, there, kept.get(hashed(path), []), row):
                    lost.add(name)
        return {name: row for name, row in rows.items() if name not in lost}

    def present(self, paths: Iterable[str]) -> dict[str, Object]:
        """The objects of files here, by path: of the job's own folder, and of others that it wrote to."""
        others = {path for path in paths if not path.startswith(f"{self.own}/")}
        folders = {path[: path.find("/") + 1] or path for path in others}
        top = self.own.split("/")[0] + "/"
        prefixes = folders | ({f"{self.own}/"} if top not in folders else set())
        found = [item for prefix in prefixes for item in self.bucket.list(self.where + prefix)]
        plain = {item.name[len(self.where) :]: item for item in found}
        own = {path: plain[name] for path, name in self.rank_names.items() if name in plain}
        return own | {
            name: item
            for name, item in plain.items()
            if name not in self.rank_names and not split_name(name, self.machines)[1]
        }

    # --- the instant

    def look(self) -> dict[str, os.stat_result]:
        """All files and links by path; note what cannot be in the bucket."""
        found, odd, links, pending = {}, {}, {}, [""]
        while pending:
            folder = pending.pop()
            try:
                for entry in os.scandir(self.path(folder)):
                    with contextlib.suppress(FileNotFoundError):
                        path, about = folder + entry.name, entry.stat(follow_symlinks=False)
                        kind, reason = stat.S_IFMT(about.st_mode), misnamed(self.where + path)
                        if kind == stat.S_IFDIR:
                            pending.append(f"{path}/")
                            continue
                        if kind == stat.S_IFLNK:
                            links[path] = os.readlink(self.path(path))
                            reason = reason or self.leads_out(path, links[path])
                        elif kind != stat.S_IFREG:
                            reason = KINDS[kind]
                        elif path.endswith(SHARED) and self.database(path):
                            continue  # which SQLite makes anew
                        if reason:
                            odd[path] = reason
                        else:
                            found[path] = about
            except OSError as error:
                if not folder:
                    raise
                if not isinstance(error, FileNotFoundError | NotADirectoryError):
                    odd[folder] = (
                        f"it cannot be read: {error.strerror}"  # what is below it counts as it was
                    )
        self.odd, self.links = odd, links
        return found

    def leads_out(self, path: str, target: str) -> str:
        """Why a link is not sent; "" for one within the folder."""
        full = os.path.normpath(os.path.join(self.folder, os.path.dirname(path), target))
        is_within = f"{full}/".startswith(f"{os.path.normpath(self.folder)}/")
        return "" if is_within else "a link to outside of the results"

    def quiet_instant(self, number: int) -> Instant:
        """An instant at which no file is being rewritten, if there is one soon; or just an instant.

        Machines with equal numbers look at the same time, and wait for nothing.
        """
        end = time.monotonic() + (0 if number or self.ending else GAP)
        while True:
            found = self.instant()
            halves = [pin for pin in found.pins.values() if pin.half]
            if not halves or time.monotonic() > end:
                return found
            while time.monotonic() < end and any(is_written(pin, 0) for pin in halves):
                time.sleep(CLOCK_STEP)
            close(found.pins)

    def instant(self) -> Instant:
        """Look until nothing changes between two looks, or the tries run out."""
        self.was_restless = False
        for left in reversed(range(TRIES if self.stopped else UNSTOPPED_TRIES)):
            stopped = self.stopped if not left and not self.ending else None
            with stopped() if stopped else contextlib.nullcontext():
                seen = self.look()
                pins, databases = self.pin(seen)
                time.sleep(CLOCK_STEP)  # a change after this has another time
                at_ns, now = time.time_ns(), seen if stopped else self.look()
                moving, may_lock = self.changed(seen, now, pins), not (left or stopped)
                copies, locked = {}, set()
                for path in databases if not (left and moving) else ():
                    is_large = seen[path].st_size > SMALL_DATABASE
                    if is_large and stopped:  # it would be stopped for long
                        continue
                    if may_lock or is_large:
                        locked.add(path)
                        self.copied |= {path: time.monotonic()} if is_large else {}
                    copies[path] = self.copy_database(path, path in locked)
                if copies and not stopped:
                    at_ns = time.time_ns()
                    moving |= self.changed(seen, self.look(), pins)
                if not (left and moving):
                    hold(sorted(pins.values(), key=lambda pin: -pin.seen.st_mtime_ns))
            # A copy under a lock is consistent in itself.
            moving = {path for path in moving if self.database(path) not in locked}
            for path in databases:
                if merged := self.merged(path, copies.get(path, ""), seen):
                    pins[path] = merged
                else:
                    moving.add(path)
            if not moving or not left:
                break
            close(pins)
            self.was_restless = True
        return Instant(at_ns, seen, pins, moving | self.unopened)

    def changed(
        self, seen: dict[str, os.stat_result], now: dict[str, os.stat_result], pins: dict[str, Pin]
    ) -> set[str]:
        """What is another file at a second look, or may not be what was opened."""
        others = seen.keys() ^ now.keys()
        for path in seen.keys() & now.keys():
            pin, before, after = pins.get(path), seen[path], now[path]
            if pin and (pin.grows or pin.half):
                is_same = before.st_ino == after.st_ino == pin.seen.st_ino
                is_same = is_same and (pin.half or after.st_size >= pin.size)
            else:
                is_same = mark(before) == mark(after) and (
                    not pin or mark(pin.seen) == mark(before)
                )
            if not is_same:
                others.add(path)
        return others

    def pin(self, seen: dict[str, os.stat_result]) -> tuple[dict[str, Pin], set[str]]:
        """Open what changed since it was sent; return it, and the databases that changed."""
        changed = [
            path
            for path, about in seen.items()
            if stat.S_ISREG(about.st_mode) and self.marks.get(path) != mark(about)
        ]
        changed.sort(key=lambda path: seen[path].st_mtime_ns)
        pins: dict[str, Pin] = {}
        databases, now, most = set(), time.monotonic(), self.most * 3 // 4
        self.unopened = {*changed[most:]}
        if self.unopened:
            self.trouble = "more files changed than may be open at a time"
        for path in changed[:most]:
            if not self.ending and (base := self.database(path)):
                if now - self.copied.get(base, -PATIENCE) >= PATIENCE:
                    databases.add(base)
                continue
            try:
                file = open(os.open(self.path(path), OPEN), "rb", buffering=0)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):
                    self.refused[path] = f"it cannot be read: {error.strerror}"
                continue
            about = os.fstat(file.fileno())
            pins[path] = self.judged(path, Pin(file, about, about, {path: mark(about)}), now)
        self.unchanged_since = {
            path: each for path, each in self.unchanged_since.items() if path in pins
        }
        return pins, databases & seen.keys()

    def judged(self, path: str, pin: Pin, now: float) -> Pin:
        """Note whether a file grows, or is half written."""
        last = self.sent.get(path, UNKNOWN)
        cut_at, changed_at = self.cut.get(pin.seen.st_ino), pin.seen.st_mtime
        # A handler of SIGTERM may have written the rest.
        is_cut = cut_at is not None and cut_at - QUIET < changed_at <= cut_at + CLOCK_STEP
        is_open = is_cut or (not self.ending and is_written(pin, time.time() - changed_at))
        is_other = (
            path not in self.marks
            or self.marks[path][0] != pin.seen.st_ino
            or self.is_begun_again(path, pin)
        )
        has_grown = (last.grows or is_open) and self.has_grown(path, pin)
        is_named_log = path.endswith(LOGS) or "tfevents" in os.path.basename(path)
        has_lines = is_open and ends_in_lines(pin)
        has_lines = has_lines and (is_other or has_grown or path in self.overdue)
        if is_named_log or has_lines or (last.grows and has_grown):
            pin.follow()
        if is_open and not pin.grows and not (self.ending and self.database(path)):
            last_mark, at = self.unchanged_since.get(path, (None, now))
            self.unchanged_since[path] = mark(pin.seen), at if last_mark == mark(pin.seen) else now
            is_new = now - self.unchanged_since[path][1] < QUIET
            pin.half = self.ending or is_new or (not pin.size and last.size > 0)  # emptied to begin
        return pin

    def has_grown(self, path: str, pin: Pin) -> bool:
        """Whether what was sent of a file is still its beginning; of logs both ends are compared."""
        last = self.sent.get(path, UNKNOWN)
        with contextlib.suppress(Changed):
            if path in self.log_sums and last.size <= pin.size:
                return log_sums(pin, last.size) == self.log_sums[path]
            if 0 <= last.size <= pin.size and checksum(pin.file, 0, last.size) == last.crc:
                self.log_sums |= {path: log_sums(pin, last.size)} if last.grows else {}
                return True
        return False

    def is_begun_again(self, path: str, pin: Pin) -> bool:
        """Whether a file was begun anew since it was sent: other first bytes, or shorter."""
        last = self.sent.get(path, UNKNOWN)
        if path in self.log_sums and last.size <= pin.size:
            with contextlib.suppress(Changed):
                return log_sums(pin, last.size)[0] != self.log_sums[path][0]
        return pin.size < last.size

    # --- databases

    def database(self, path: str) -> str:
        """The SQLite database that a file is, or is a part of; "" for others."""
        base = next((path.removesuffix(part) for part in PARTS if path.endswith(part)), path)
        with (
            contextlib.suppress(OSError),
            open(os.open(self.path(base), OPEN), "rb", buffering=0) as file,
        ):
            return base if file.read(len(SQLITE)) == SQLITE else ""
        return ""

    def copy_database(self, path: str, is_locked: bool) -> str:
        """Copy a database as it is at one moment to a new folder; return that, "" if it is busy.

        Its files are copied as they are, which SQLite recovers as after a crash: a lock could make
        its program fail. One is taken for large databases, and where nothing else helps.
        """
        copy, place = tempfile.mkdtemp(prefix="berg-copy-"), self.path(path)
        try:
            if is_locked:
                source = sqlite3.connect(f"file:{quote(place)}?mode=ro", uri=True, timeout=1)
                target = sqlite3.connect(f"{copy}/db")
                end = time.monotonic() + LOCK_WAIT

                def check(status: int, remaining: int, total: int) -> None:
                    if remaining and time.monotonic() > end:  # else it would try for ever
                        raise TimeoutError("its program keeps it locked")

                with contextlib.closing(source), contextlib.closing(target):
                    source.backup(target, progress=check)
                return copy
            if is_recoverable(place):
                for part in ("", "-journal", "-wal"):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copyfile(place + part, f"{copy}/db{part}")
                return copy
        except (sqlite3.Error, OSError) as error:
            self.trouble = f"{path}: {error}"
        shutil.rmtree(copy)
        return ""

    def merged(self, path: str, copy: str, seen: dict[str, os.stat_result]) -> Pin | None:
        """A copy of a database as one file."""
        if not copy:
            return None
        try:
            with contextlib.closing(sqlite3.connect(f"{copy}/db")) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                database.execute(
                    "SELECT count(*) FROM sqlite_master"
                ).fetchall()  # rolls a journal back
            file = open(f"{copy}/db", "rb", buffering=0)
            marks = {
                path + part: mark(seen[path + part]) for part in ("", *PARTS) if path + part in seen
            }
            return Pin(file, seen[path], os.fstat(file.fileno()), marks)
        except (sqlite3.Error, OSError):
            return None
        finally:
            shutil.rmtree(copy)

    # --- a pass

    def sync(self, number: int = 0) -> bool:
        """Send the folder as it is at an instant; return whether that is a moment in the bucket. If
        not, the next pass may come soon. Machines of a job use equal numbers at the same time.
        """
        with self.turn:
            try:
                return self.pass_over(number)
            except UNSENT as error:  # also a folder that is gone
                self.trouble = f"{type(error).__name__}: {error}"
                return False

    def pass_over(self, number: int) -> bool:
        """Look, send, and publish a moment, unless it is better to wait for a better one."""
        at_ns, seen, pins, moving = self.quiet_instant(number)
        self.halves = {path for path, pin in pins.items() if pin.half}
        whole = pins.keys() - self.halves - moving  # what moves may be torn
        try:
            failed = self.send_all(
                sorted(whole, key=lambda path: pins[path].seen.st_ctime_ns), pins
            )
        finally:
            close(pins)
        self.ever_whole = (self.ever_whole | whole) & seen.keys()
        self.refused = {path: why for path, why in self.refused.items() if path in seen}
        if self.unopened:  # files go in portions: the wait for a moment begins with the last one
            self.delays_since, self.waiting_since = {}, 0
        now = time.monotonic()
        self.waiting_since = self.waiting_since or now
        # A new file that is being written is no reason to wait for long; at the end nothing is.
        is_soon = now - self.waiting_since < QUIET
        waiting = self.halves if is_soon else self.halves & self.ever_whole
        delaying = failed | moving | (set() if self.ending else waiting)
        since, hopeless = self.delays_since, self.refused.keys() | self.odd.keys()
        self.delays_since = {path: since.get(path, now) for path in delaying - hopeless}
        # A moment is whole if nothing delays it any more. A single machine waits for a whole one;
        # several publish others, too, as PARTLY, unless something failed that a retry may bring.
        pending = self.delays_since.keys() - self.overdue
        is_whole = not pending
        if number and self.first and self.was_restless:
            is_whole = False  # the others have looked before: its files may name theirs
        if not is_whole and (self.ending or not number or pending & (failed | moving)):
            return False
        rows = self.rows_at(seen, delaying - self.halves)
        now = time.monotonic()
        for path in self.sent.keys() - rows.keys() - seen.keys() - self.gone.keys():
            self.gone[path] = LONG_AGO if path.endswith(PARTS) else now
        self.gone = {path: at for path, at in self.gone.items() if path not in rows}
        self.publish(rows, at_ns, number, is_whole)
        return is_whole

    def rows_at(self, seen: dict[str, os.stat_result], failing: set[str]) -> dict[str, Row]:
        """The rows of a moment: each file as it was last sent, a half one in its last whole version. A path in
        `failing` has its row of the last moment instead, or none.
        """
        unread = tuple(path for path in self.odd if path.endswith("/"))
        rows = {path: row for path, row in self.rows.items() if unread and path.startswith(unread)}
        for path, about in seen.items():
            is_sent = self.sent.get(path, UNKNOWN).size >= 0
            if stat.S_ISLNK(about.st_mode):
                time_ns, target = about.st_mtime_ns, self.links.get(path, "")
                if not target:  # it was deleted between two looks
                    continue
                if target.startswith("/"):
                    target = os.path.relpath(target, os.path.dirname(self.path(path)))
                # Generations are microseconds since 1970, too: `union` compares them.
                rows[path] = Row(generation=time_ns // 1000, mtime_ns=time_ns, link=target)
            elif is_sent and path not in failing:
                rows[path] = self.sent[path]
            elif path in self.rows and (path in failing or path in self.halves):
                rows[path] = self.rows[path]
        return rows

    def send_all(self, paths: list[str], pins: dict[str, Pin]) -> set[str]:
        """Send files, the oldest first, and meanwhile what logs grow; return those that failed."""
        pool, looked = ThreadPoolExecutor(THREADS), time.monotonic()
        try:
            sending = {pool.submit(self.send, path, pins[path]): path for path in paths}
            while left := wait(sending, 0.2 if sending else 0).not_done:
                if time.monotonic() > self.deadline:
                    raise Hurry(f"{len(left)} files were not sent in time")
                if time.monotonic() - looked > QUIET:
                    self.send_logs({sending[task] for task in left})
                    looked = time.monotonic()
            return {path for task, path in sending.items() if not task.result()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def send_logs(self, busy: Iterable[str]) -> None:
        for path in [
            path for path, row in self.sent.copy().items() if row.grows and path not in busy
        ]:
            with (
                contextlib.suppress(OSError),
                open(os.open(self.path(path), OPEN), "rb", buffering=0) as file,
            ):
                about = os.fstat(file.fileno())
                pin = Pin(file, about, about, {path: mark(about)}, grows=True)
                if self.marks.get(path) != mark(about) and self.has_grown(path, pin):
                    self.send(path, pin)

    def send(self, path: str, pin: Pin) -> bool:
        """Send a file as it was at the look; return whether the bucket has it."""
        with self.busy[path]:
            try:
                row = self.upload(path, pin)._replace(
                    mtime_ns=pin.seen.st_mtime_ns, mode=pin.seen.st_mode & 0o7777, grows=pin.grows
                )
                # Of a database its journal: beside what it was merged into it would be another content.
                parts = [part for part in pin.marks if part != path and part in self.sent]
                for part in parts:
                    self.copy_aside(part)
            except Refused as error:
                row = self.restored_rows.get(path, UNKNOWN)
                if not is_content(pin, row):
                    self.refused[path] = str(error)
                    return False
                parts = []
                # It is as it was restored, and another machine's, which has replaced the object, counts.
            except UNSENT as error:
                self.trouble = f"{path}: {error}"
                return False
            self.refused.pop(path, None)
            for part in parts:
                self.sent[part] = self.sent[part]._replace(size=-1)
                self.gone[part] = LONG_AGO
            self.sent[path] = row
            self.marks |= pin.marks
            self.log_sums.pop(path, None)
            with contextlib.suppress(Changed):
                self.log_sums |= {path: log_sums(pin, row.size)} if pin.grows else {}
            return True

    def upload(self, path: str, pin: Pin) -> Row:
        """Send a file unless the bucket has it already; its row."""
        last, is_longer = self.sent.get(path, UNKNOWN), pin.grows and self.has_grown(path, pin)

        def check(count: int) -> None:
            now = os.fstat(pin.file.fileno())
            if time.monotonic() > self.deadline:
                raise Hurry("there was no time left")
            is_same = (now.st_size, now.st_mtime_ns) == (pin.size, pin.now.st_mtime_ns)
            is_same = is_same or (pin.grows and pin.is_same_log())
            if not is_same or (is_longer and not self.has_grown(path, pin)):
                raise Changed("it was written while it was sent")

        if is_longer and last.size >= TAIL and path not in self.shared:
            crc = checksum(pin.file, last.size, pin.size, last.crc, check)
            if row := last if pin.size == last.size else self.extended(path, pin, last, crc, check):
                return row
        if last.size == pin.size and checksum(pin.file, 0, pin.size, check=check) == last.crc:
            return last
        if not is_longer:
            self.copy_aside(path)
        return self.put(path, pin, 0 if path in self.shared else last.generation, check)

    def put(self, path: str, pin: Pin, generation: int, check: Callable[[int], None]) -> Row:
        """Write a file over the object that this disk wrote or restored, or that a higher rank wrote; over
        no other.
        """

        for _ in range(3):
            name = self.name(path)
            try:
                file = Section(pin.file, 0, pin.size, self.counted(check))
                if pin.size <= SMALL:
                    data = file.read(pin.size)
                    check(0)
                    made = self.bucket.put_bytes(name, data, generation, {WRITER: self.writer})
                else:
                    made = self.bucket.put(name, file, pin.size, generation, {WRITER: self.writer})
                self.shared.discard(path)
                return Row(made.size, made.crc, made.generation)
            except Changed:
                check(0)
            there, restored = self.bucket.get(name), self.restored_rows.get(path, UNKNOWN)
            if there is None:  # somebody deleted it
                generation = 0
                continue
            content, before = (there.size, there.crc), (restored.size, restored.crc)
            mine = pin.size, checksum(pin.file, 0, pin.size, check=check)
            rank = self.rank_of(there)
            is_higher = rank is not None and rank > int(self.disk)
            if content == mine and not is_higher:
                if not self.is_mine(there):  # else of a write whose answer was lost
                    self.share(path, there)
                return Row(*content, there.generation)
            if self.is_mine(there) or (content == before and not is_higher):
                generation = there.generation
            elif rank is None or mine == before:
                raise Refused("the bucket has a file of that name which this machine did not write")
            elif rank > int(self.disk):  # that machine's moments name what is replaced here
                self.bucket.copy(name, there.generation, self.aside(path, there.generation, rank))
                generation = there.generation
            else:
                self.rank_names[path], generation = rank_name(path, self.disk), 0
        raise Changed("its object changes all the time")

    def counted(self, check: Callable[[int], None]) -> Callable[[int], None]:
        """A check that also puts the deadline off, as long as bytes are sent."""

        def count_and_check(count: int) -> None:
            check(count)
            self.on_bytes(count)
            if self.idle:
                self.deadline = min(self.latest, time.monotonic() + self.idle)

        return count_and_check

    def share(self, path: str, there: Object) -> None:
        """Take another machine's object for a file that is alike here, with a copy for its moments."""
        copy = self.aside(path, there.generation)
        self.bucket.copy(self.name(path), there.generation, copy)
        self.asides.add(copy)
        self.shared.add(path)

    def extended(
        self, path: str, pin: Pin, last: Row, crc: int, check: Callable[[int], None]
    ) -> Row | None:
        """Append what is new of a log to its object; None if the object is another."""
        name = f"{parts_prefix(self.job)}{self.attempt:04}/{self.disk}/{hashed(path)}"
        part = self.bucket.put(
            name, Section(pin.file, last.size, pin.size, self.counted(check)), pin.size - last.size
        )
        try:
            made: Object | None = self.bucket.extend(
                self.name(path), last.generation, part, {WRITER: self.writer}
            )
        except Changed:
            made = self.bucket.get(self.name(path))
        self.bucket.delete(name)
        if made and (made.about.get(WRITER), made.size, made.crc) == (self.writer, pin.size, crc):
            return Row(made.size, made.crc, made.generation)
        return None

    def copy_aside(self, path: str) -> None:
        """Copy aside what a moment needs of the object that is about to be replaced or deleted."""
        last = self.sent.get(path, UNKNOWN)
        generation = last.generation
        rows = [
            rows[path] for rows in [*self.needed.values()] if path in rows and not rows[path].link
        ]
        needed = {
            self.aside(path, row.generation): (row.size, row.crc)
            for row in rows
            if generation and (row.grows or last.grows or row[:2] == last[:2])
        }
        for name in needed.keys() - self.asides:
            try:
                self.bucket.copy(self.name(path), generation, name)
            except Changed:
                # By a write whose answer was lost, of a log that had grown; or by another machine, which keeps
                # what moments need of what all restored; or by somebody who deleted or replaced it: then it
                # is lost.
                there = self.bucket.get(self.name(path))
                contents = (last.size, last.crc), needed[name]
                if there and ((there.size, there.crc) in contents or self.is_mine(there)):
                    self.bucket.copy(self.name(path), there.generation, name)
            self.asides.add(name)

    def author(self, there: Object) -> tuple[int, int] | None:
        """Attempt and rank of the machine of this job that wrote an object; None if none did."""
        found = AUTHOR.fullmatch(there.about.get(WRITER, ""))
        return (int(found[2]), int(found[3])) if found and found[1] == self.title else None

    def is_mine(self, there: Object) -> bool:
        """Whether this machine wrote an object, or one of the attempts before."""
        author = self.author(there)
        own = self.attempt, int(self.disk)
        return author is not None and (author == own or author[0] < self.attempt)

    def rank_of(self, there: Object) -> int | None:
        """The rank of the machine of this attempt that wrote an object; None if none did."""
        attempt, rank = self.author(there) or (0, None)
        return rank if attempt == self.attempt else None

    def aside(self, path: str, generation: int, rank: int | None = None) -> str:
        """The name of a copy for the moments of this machine, or of another rank."""
        disk = self.disk if rank is None else rank
        return f"{kept_prefix(self.job)}{self.attempt:04}/{disk}/{hashed(path)}-{generation}"

    # --- the moment

    def publish(self, rows: dict[str, Row], at_ns: int, number: int, is_whole: bool) -> None:
        """Write a moment; then delete what no moment needs any more."""
        self.waiting_since = 0 if is_whole else self.waiting_since
        if rows == self.rows and self.own_moments and self.ending == self.is_final and not number:
            self.at_ns = at_ns
            if not self.is_clean:
                self.try_to_clean()
            return
        same = {
            path for path, seen in self.restored_marks.items() if self.marks.get(path) == seen
        } | {  # also one that was written again with its content, or touched
            path
            for path, row in rows.items()
            if (was := self.restored_rows.get(path))
            and (row.generation, row.link) == (was.generation, was.link)
        }
        listed = {
            self.rank_names.get(path, path): row
            for path, row in rows.items()
            if self.first or path in self.rank_names or path not in same
        }
        gone = {
            self.rank_names.get(path, path): [row.size, row.crc, row.link]
            for path, row in self.restored_rows.items()
            if path not in rows
        }
        about = {"at_ns": at_ns, "gone": gone, "rows": listed}
        data = json.dumps(about, separators=(",", ":")).encode()
        if not number or self.ending:  # the end may be published more than once
            number = max(number, max(self.needed, default=0) + 1)
        kind = FINAL if self.ending else "" if is_whole else PARTLY
        name = f"{self.prefix}{number:012}{kind}"
        self.own_moments[number] = name, at_ns
        self.needed[number] = rows  # from now on: a lost answer may mean that it is there
        with contextlib.suppress(Changed):
            self.bucket.put(name, io.BytesIO(data), len(data), 0)
        self.rows, self.is_final, self.is_clean = rows, self.ending, False
        self.try_to_clean()

    def try_to_clean(self) -> None:
        """What cannot be deleted now has another chance with the next moment; the results are there."""
        with contextlib.suppress(*UNSENT):
            self.clean(time.monotonic())
            self.is_clean = True

    def clean(self, now: float) -> None:
        """Delete old moments, then copies that no moment needs, and what was deleted here long ago."""
        oldest, last = sorted(self.needed)[-KEPT:][0], max(self.needed)
        if self.machines > 1:  # what a restore would bring if another machine were lost now
            prefix = f"{moments_prefix(self.job)}{self.attempt:04}/"
            last = common([each.name for each in self.bucket.list(prefix)], self.machines)[0]
            oldest = min(oldest, last)
        self.at_ns = self.own_moments[last][1] if last in self.own_moments else self.at_ns
        kept = {number: rows for number, rows in self.needed.items() if number >= oldest}
        kept_rows = kept.values() if self.asides or self.stale else ()
        needed = {
            self.aside(path, row.generation) for rows in kept_rows for path, row in rows.items()
        }
        # Copies of the attempts before may be the only ones of what this one has not changed.
        keys, stale = {name.rpartition("/")[2] for name in needed}, list[Object]()
        if self.stale and 0 not in kept:
            attempt, _, rows = newest(self.bucket, self.job, self.machines)
            for name, row in rows.items():  # also of other machines
                keys.add(f"{hashed(split_name(name, self.machines)[0])}-{row.generation}")
            if attempt == self.attempt:
                stale = [each for each in self.stale if each.name.rpartition("/")[2] not in keys]

        def remove(path: str) -> None:
            with contextlib.suppress(Changed):  # it is another's now
                if path not in self.shared:
                    self.copy_aside(path)
                    self.bucket.delete(self.name(path), generation=self.sent[path].generation)
            del self.sent[path], self.gone[path]

        with ThreadPoolExecutor(THREADS) as pool:
            old = {number: each for number, each in self.own_moments.items() if number < oldest}
            [*pool.map(self.bucket.delete, [name for name, _ in old.values()])]
            self.needed = kept
            self.own_moments = {n: each for n, each in self.own_moments.items() if n not in old}
            names = [*(self.asides - needed), *(each.name for each in stale)]
            [*pool.map(self.bucket.delete, names)]
            self.asides &= needed
            self.stale = [each for each in self.stale if each not in stale]
            paths = [p for p, at in self.gone.items() if self.ending or now - at > KEEP_DELETED]
            [*pool.map(remove, paths)]

    # --- the end

    def give_up(self) -> None:
        """End the pass that another thread is in: the last one is more important."""
        self.deadline = 0

    def finish(self, seconds: float, number: int = 0, longest: float = 0) -> dict[str, str]:
        """Send all, once no program runs any more; return what is not in the bucket as it is, by path,
        and why; "" stands for all, if something could not be sent.

        It ends after so many seconds, or, while bytes are sent, `longest`. A file that a program was
        rewriting when it was ended (`cut`) keeps the version before.
        """
        if not self.is_restored:
            return {}
        now, self.ending = time.monotonic(), True
        self.deadline, self.latest = now + seconds, now + longest
        self.idle = seconds if longest > seconds else 0
        self.delays_since, self.waiting_since = {}, 0
        is_whole, is_verified = False, seconds < VERIFY
        for _ in range(LAST_TRIES):
            self.trouble = ""
            is_whole |= self.sync(number)
            is_done = is_verified and self.is_clean and not self.trouble
            if time.monotonic() > self.deadline or is_done:
                break
            if self.trouble or is_verified:
                time.sleep(1)
            else:
                is_verified = True
                is_whole &= self.verify()
        unsent = self.delays_since.keys() - self.halves
        missing = dict.fromkeys(self.halves, CUT) | dict.fromkeys(unsent, self.trouble)
        if unsent or not (is_whole or missing):
            missing[""] = self.trouble or "the files changed all the time"
        return missing | self.refused | self.odd

    def verify(self) -> bool:
        """Let the next pass compare every byte, and send again what others changed in the bucket;
        whether there is nothing of that.
        """
        self.marks, self.log_sums, is_right = {}, {}, True
        with contextlib.suppress(*TROUBLE):
            present = self.present(self.sent)
            for path, row in [*self.sent.items()]:
                found = present.get(path)
                if not found or (found.generation, found.crc) != (row.generation, row.crc):
                    is_right &= path not in self.rows
                    ours = found.generation if found and self.is_mine(found) else 0
                    self.sent[path] = UNKNOWN._replace(generation=ours)
        return is_right

    # --- a restore

    def restore(self) -> int:
        """Make the folder what the newest moment of the job says, or what other jobs left in it; return
        how many files were downloaded.
        """
        os.makedirs(self.folder, exist_ok=True)
        attempt, self.at_ns, found = newest(self.bucket, self.job, self.machines)
        kept = copies(self.bucket, self.job)
        rows = self.by_path(self.without_lost(found, kept))
        plain = self.present(rows)
        if not attempt:  # what other jobs left
            rows = {
                path: Row(each.size, each.crc, each.generation, each.updated_ns)
                for path, each in plain.items()
                if is_plain(path) and not each.about.get(WRITER, "").startswith(f"{self.title}/")
            }
        # Of several machines, one may have had a folder where another had a file: that stays in the bucket.
        rows = {
            path: row
            for path, row in rows.items()
            if not {*map(str, Path(path).parents)} & rows.keys()
        }
        self.clear(rows)
        new = sum(bring_all(lambda path: self.bring(path, rows[path], plain.get(path), kept), rows))
        self.take(plain, rows)
        here = self.aside("", 0).rpartition("/")[0]
        self.asides = {  # need no other copy
            f"{here}/{each.name.rpartition('/')[2]}" for found in kept.values() for each in found
        }
        old = (moments_prefix(self.job), kept_prefix(self.job))
        stale = [each for prefix in old if self.first for each in self.bucket.list(prefix)]
        self.stale = [each for each in stale if int(each.name.split("/")[-3]) < self.attempt]
        self.rows, self.restored_rows, self.needed = rows, rows, {0: rows}
        self.restored_marks, self.ever_whole = {**self.marks}, {*rows}
        if self.notes:
            names = self.rank_names
            about = {"of": self.prefix, "rows": rows, "marks": self.restored_marks, "names": names}
            Path(self.notes).write_text(json.dumps(about))
        self.is_restored = True
        return new

    def take_over(self, goes_on: bool = False) -> None:
        """Continue after a worker on this disk died: its last moments say what it had sent, and the
        file of notes what it had restored. If the machine `goes_on`, no moment is the last one.
        """
        with contextlib.suppress(OSError, ValueError):
            noted = json.loads(Path(self.notes).read_text())
            if noted["of"] == self.prefix:
                self.restored_rows = {path: Row(*row) for path, row in noted["rows"].items()}
                self.restored_marks = {path: tuple(each) for path, each in noted["marks"].items()}
                self.rank_names |= noted["names"]
        self.needed = {0: self.restored_rows}
        same = {
            path: row
            for path, row in self.restored_rows.items()
            if self.restored_marks.get(path) == self.mark_here(path)
        }
        for item in [*self.bucket.list(self.prefix)]:
            moment, number = json.loads(self.bucket.read(item.name)), number_of(item.name)
            object_name = item.name
            if goes_on and object_name.endswith(FINAL):
                object_name = object_name.removesuffix(FINAL)
                self.bucket.copy(item.name, item.generation, object_name)
                self.bucket.delete(item.name)
            listed = self.by_path({name: Row(*each) for name, each in moment["rows"].items()})
            rest = {
                path: row
                for path, row in self.restored_rows.items()
                if not self.first and self.rank_names.get(path, path) not in moment["gone"]
            }
            self.needed[number] = rest | listed
            self.own_moments[number] = object_name, moment["at_ns"]
            self.at_ns = moment["at_ns"]
        self.rows = self.needed[max(self.needed)]
        plain = self.present(self.rows)
        for path in self.rows.keys() & plain.keys():
            if plain[path].generation == self.rows[path].generation:
                self.sent[path] = self.rows[path]
                if not self.is_mine(plain[path]):
                    self.shared.add(path)
        for path in same.keys() & self.sent.keys():
            self.marks[path] = self.restored_marks[path]
        self.take(plain, self.rows)
        copies = self.bucket.list(f"{self.aside('', 0).rpartition('/')[0]}/")
        self.asides = {each.name for each in copies}
        self.ever_whole, self.is_restored = {*self.rows}, True

    def mark_here(self, path: str) -> Mark | None:
        with contextlib.suppress(OSError):
            return mark(os.lstat(self.path(path)))
        return None

    def take(self, plain: dict[str, Object], rows: dict[str, Row]) -> None:
        """Note objects that are newer than a moment, and which this machine may replace."""
        for path, there in plain.items():
            if path in self.sent or not self.is_mine(there):
                continue
            if not {*map(str, Path(path).parents)} & rows.keys():  # see `restore`
                self.sent[path] = Row(size=-1, generation=there.generation)
                self.gone |= {path: time.monotonic()} if path not in rows else {}

    def clear(self, rows: dict[str, Row]) -> None:
        """Delete what a moment does not have."""
        for path in {*self.look(), *self.odd} - rows.keys():
            if not path.endswith("/"):
                os.unlink(self.path(path))
                with contextlib.suppress(OSError):  # which belongs to a database
                    os.unlink(self.path(path) + SHARED)
        for top, *_ in os.walk(self.folder, topdown=False):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(top)
        os.makedirs(self.folder, exist_ok=True)

    def bring(
        self, path: str, row: Row, there: Object | None, kept: dict[str, list[Object]]
    ) -> bool:
        """Make one file or link as it was; return whether it was downloaded."""
        full, is_new = Path(self.path(path)), False
        full.parent.mkdir(parents=True, exist_ok=True)
        if row.link:
            full.unlink(missing_ok=True)
            full.symlink_to(row.link)
        elif is_new := not is_there(full, row):
            part = full.with_name(f".berg-part-{hashed(path)}")
            download(self.bucket, self.name(path), there, kept.get(hashed(path), []), part, row)
            part.replace(full)
        if not row.link:
            full.chmod(row.mode)
        os.utime(full, ns=(row.mtime_ns, row.mtime_ns), follow_symlinks=False)
        is_current = there is not None and (there.size, there.crc) == (row.size, row.crc)
        is_sender = self.first or path in self.rank_names  # then no other machine sends it
        if not row.link and (is_current or not is_sender):  # else it is sent again
            is_ours = there and (is_current or self.is_mine(there))
            self.sent[path] = row._replace(generation=there.generation if there and is_ours else 0)
            self.marks[path] = mark(full.lstat())
        return is_new


def mark(seen: os.stat_result) -> Mark:
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def log_sums(pin: Pin, size: int) -> tuple[int, int]:
    """The checksums of the beginning, and of both ends, of the first `size` bytes."""
    both = checksum(pin.file, max(0, size - HEAD), size, checksum(pin.file, 0, min(HEAD, size)))
    return checksum(pin.file, 0, min(BEGINNING, size)), both


def is_written(pin: Pin, age: float) -> bool:
    """Whether a program has a file open for writing: then the kernel gives no lease on it."""
    try:
        fcntl.fcntl(pin.file.fileno(), fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(pin.file.fileno(), fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:  # a file system without leases, or a file of another user
        return age < QUIET
    return False


def is_content(pin: Pin, row: Row) -> bool:
    with contextlib.suppress(Changed):
        return pin.size == row.size and checksum(pin.file, 0, pin.size) == row.crc
    return False


def ends_in_lines(pin: Pin) -> bool:
    end = os.pread(pin.file.fileno(), HEAD, max(0, pin.size - HEAD))
    with contextlib.suppress(UnicodeDecodeError):
        return "\0" not in end[3:].decode() and end.endswith(b"\n")  # it may begin within a letter
    return False


def is_recoverable(place: str) -> bool:
    """Whether the files of a database are one if its program ends now: unless it is within
    a transaction whose journal is in memory.
    """
    with open(place, "rb") as file:
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, RESERVED, 1, 0)
        is_free = (
            struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK
        )
    with contextlib.suppress(OSError), open(f"{place}-journal", "rb") as journal:
        return is_free or journal.read(len(JOURNAL)) == JOURNAL
    return is_free or os.path.exists(f"{place}-wal")


def hold(pins: Iterable[Pin]) -> None:
    """Copy small files to memory, before a program rewrites them."""
    left = HELD
    for pin in pins:
        if pin.size <= min(SMALL, left) and not (pin.grows or pin.half):
            data, now = os.pread(pin.file.fileno(), pin.size, 0), os.fstat(pin.file.fileno())
            is_same = (now.st_size, now.st_mtime_ns) == (pin.size, pin.now.st_mtime_ns)
            # A file that is truncated has its size before its time.
            if is_same and len(data) == pin.size:
                pin.file.close()
                pin.file = open(os.memfd_create("berg"), "w+b", buffering=0)
                pin.file.write(data)
                pin.now, left = os.fstat(pin.file.fileno()), left - len(data)


def close(pins: dict[str, Pin]) -> None:
    for pin in pins.values():
        pin.file.close()
