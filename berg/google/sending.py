"""How a mirror sends one file, and its record of what was sent.

An object that this mirror neither restored nor wrote is never overwritten: every upload carries the
generation that it replaces, 0 for a new object, and the object's metadata names its writer, so that
a write whose answer was lost is recognised. A file that grew is sent as its tail and composed.

Where views are published, a file is sent only whole: nothing writes it, and it is the same before
and after it was read. One that is open for writing is sent if it is only appended to; the same
applies to a file whose program was ended while it wrote it. An object that a view needs is not
overwritten: new bytes are staged, or are in the view if they are few.
"""

import base64
import errno
import fcntl
import hashlib
import os
import secrets
import signal
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, field
from os import stat_result
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from berg import BergError
from berg.google.storage import BLOCK, Changed, Listed, blocks, crc32c_of
from berg.google.views import Row
from berg.validation import LARGEST

WRITER = "berg-writer"  # custom metadata of an object: JOB/DISK
RECORD = "berg_job_metadata.json"  # a copy of the job's record, next to its results
TAILS = ".berg/tmp/"
LISTED = "name,size,crc32c,generation,updated,metadata"  # what a list of results has of each
TAKEN = "the bucket has a file of that name which this job did not write"
GROWS_FROM = 1 << 20  # bytes from which a tail is sent: composing takes three requests
INLINE = 16 << 10  # bytes of a rewritten file that are sent in the view
COPIED_FROM = 1 << 20  # bytes from which a renamed file is copied in the bucket
TICK_NS = 50_000_000  # within which two changes of a file may have the same time
HEAD = 64 << 10  # bytes at a file's beginning that growing does not change
SQLITE = b"SQLite format 3\0"
SQLITE_PARTS = ("-journal", "-wal", "-shm")  # suffixes of files of a database that is in use
APPENDED = (".log", ".jsonl", ".csv", ".wandb", ".tsv")  # suffixes of files that only grow
BACKUP_SECONDS = 20  # for the copy of a database
# Seconds after which a file counts as written all the time, for which it must be quiet then, and
# for which one must be where the file system does not say who writes it.
MOVING_AFTER, QUIET, YOUNG = 60, 10, 2
SET_SIGNAL, SET_LEASE = 10, 1024  # <fcntl.h> of Linux


class Refused(Exception):
    """A file that the bucket does not take."""


class Taken(Refused):
    """Another writer's object has the name."""


class Torn(Exception):
    """A file that changed while it was read."""


class Grows(Exception):
    """A file that grew for the first time since a view has it."""


class GivenUp(Exception):
    """The mirror does not wait for this upload any more."""


@dataclass(slots=True)
class Entry:
    """A file as it was when it was sent, and its object."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    generation: int
    crc32c: str
    last_block: str  # crc32c of the first and the last bytes that were sent
    sure: bool  # the bytes of file and object were compared after the file's last change
    is_plain: bool = True  # the plain object has the bytes; else a view or a staged object
    is_own: bool = True  # this job wrote the plain object
    in_view: bool = False  # it is in the next view

    def is_of(self, seen: stat_result) -> bool:
        return (self.inode, self.size, self.mtime_ns, self.ctime_ns) == marks(seen)


@dataclass
class Sending:
    """A file that is being sent, in a thread of its own."""

    path: str
    last: Entry | None  # as it was sent before
    large: bool
    inode: int = 0
    moved: float = field(default_factory=time.monotonic)  # when bytes moved last
    given_up: bool = False
    entry: Entry | None = None  # as it is sent now
    wrote: bool = False
    bytes: int = 0
    begins: int = 0  # where the bytes that are being sent begin in the file
    through: int = 0  # bytes of the file that are in the bucket, or nearly
    error: Exception | None = None
    changed_ns: int = 0  # when it was changed, as far as that is known
    viewed: Row | None = None  # of the last view
    is_moving: bool = False  # it is written all the time, and is sent as it is
    twin: Listed | None = None  # the object of a file that was renamed to this one
    was_moving: bool = False  # it was written all the time before the command ended
    is_open: bool = False  # it is being written, and is not sent
    is_cut: bool = False  # its program was ended while it wrote it
    is_half: bool = False  # so it was, and there is no version before
    grows: bool = False  # it is being written, and is sent as far as it has grown
    row: Row | None = None  # for the next view

    def on_progress(self, sent: int | None = None) -> None:
        if self.given_up:
            raise GivenUp
        self.moved = time.monotonic()
        if sent is not None:
            self.through = self.begins + sent


@dataclass
class Whole:
    """A file that is read up to a size; its last bytes are only returned if it did not change."""

    file: IO[bytes]
    before: stat_result
    size: int

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        if self.file.tell() >= self.size:
            after = os.fstat(self.file.fileno())
            versions = [(each.st_size, each.st_mtime_ns) for each in (self.before, after)]
            if versions[0] != versions[1]:
                raise Torn("it changed while it was read")
        return data

    def seek(self, where: int) -> None:
        self.file.seek(where)


@dataclass
class Sender:
    """Sends files of `folder` under `prefix` in `bucket`, each in a thread of its own."""

    folder: Path
    bucket: Any
    prefix: str
    writer: str  # JOB/DISK
    record: Callable[[str], None]  # called with a path before its object is written
    has_views: bool = False
    is_alone: Callable[[], bool] = lambda: False  # no other machine of the job has results
    finishing: bool = False  # no program of the job runs any more
    # whether a file, by its stat, was open for writing when its program was ended
    was_cut: Callable[[stat_result], bool] = lambda seen: False
    taken: set[str] = field(default_factory=set)  # paths whose object is another writer's
    # How large a file was that is open and new, and the checksum of its ends.
    opened: dict[str, tuple[int, str]] = field(default_factory=dict)
    copied_at: dict[str, float] = field(default_factory=dict)  # databases; time.monotonic()

    def send(self, sending: Sending) -> Entry | None:
        """Send one file unless its object has its bytes; return its entry, None if it is not to be
        sent now. Raises FileNotFoundError if there is no regular file any more.
        """
        with open_file(self.folder / sending.path) as file:
            before = self.stat_of(file)
            sending.inode = before.st_ino
            sending.changed_ns = max(sending.changed_ns, before.st_ctime_ns)
            if not self.has_views:
                return self.send_open(sending, file, before)
            is_part = self.is_part(sending, file, before)
            if not self.finishing and self.is_of_database(sending, file, is_part):
                return self.send_database(sending, file, before)
            if is_part and not self.may_send(sending, file, before):
                sending.is_half = self.finishing and not has_whole(sending.viewed)
                sending.is_open = not sending.is_half
            if sending.is_open:
                return None
            sending.grows = is_part and not (sending.is_moving or sending.is_half)
            return self.send_open(sending, file, before)

    def is_part(self, sending: Sending, file: IO[bytes], before: stat_result) -> bool:
        """Return whether a file has only a part of its new version: a program writes it, or was
        ended while it did.
        """
        is_written_now = not self.finishing and is_written(file, before)
        sending.is_cut = self.is_cut(sending, file, before)  # recorded before the process exits
        return is_written_now or sending.is_cut

    def is_cut(self, sending: Sending, file: IO[bytes], before: stat_result) -> bool:
        """Return whether a program was ended while it wrote a new version of a file. Not one that
        it had begun long ago, as a log or an array on the disk; nor a database, which repairs
        itself.
        """
        viewed, size, last = sending.viewed, before.st_size, sending.last
        is_same = has_whole(viewed) and last and last.in_view and last.is_of(before)
        if is_same or not self.was_cut(before):
            return False
        if self.is_of_database(sending, file, True):
            return False
        if sending.was_moving:
            is_shorter = viewed is not None and size < viewed.size
            return is_shorter and not is_appended(sending.path, file, size)
        return not self.only_grew(sending, file, size)

    def is_database(self, path: str) -> bool:
        """Return whether there is a database of SQLite at a path, or a part next to one."""
        with suppress(OSError), open_file(self.folder / path) as file:
            return self.is_of_database(Sending(path, None, False), file, True)
        return False

    def is_left_half(self, path: str, seen: stat_result, last: Entry | None, viewed: Row) -> bool:
        """Return whether a file on the disk of an earlier worker was being rewritten when its
        program was ended.
        """
        if not self.was_cut(seen):
            return False
        with open_file(self.folder / path) as file:
            sending = Sending(path, last, False, viewed=viewed, was_moving=viewed.moving)
            return self.is_cut(sending, file, seen)

    def only_grew(self, sending: Sending, file: IO[bytes], size: int) -> bool:
        """Return whether a file has the bytes that were sent, by this worker or an earlier one, and
        nothing behind them but what was appended.
        """
        viewed = sending.viewed
        if not viewed or not has_whole(viewed) or not 0 < viewed.size <= size:
            return False
        is_log = size == viewed.size or viewed.grows or is_appended(sending.path, file, size)
        return is_log and self.checksum(sending, file, viewed.size) == viewed.crc32c

    def stat_of(self, file: IO[bytes]) -> stat_result:
        """Return the stat of a file that is to be read, after which another change would show."""
        found = os.fstat(file.fileno())
        age = time.time_ns() - found.st_ctime_ns
        if self.has_views and 0 <= age < TICK_NS:
            time.sleep((TICK_NS - age) / 1e9)
            found = os.fstat(file.fileno())
        return found

    def send_open(self, sending: Sending, file: IO[bytes], before: stat_result) -> Entry:
        """Send an open file unless its object has its bytes."""
        size, last = before.st_size, sending.last
        # A change within one tick of the file system's clock after this has the same time.
        is_settled = time.time_ns() - before.st_ctime_ns > TICK_NS
        there = last if last and last.is_plain else bytes_of(sending.viewed)
        if there and there.size == size and self.checksum(sending, file, size) == there.crc32c:
            row, is_whole = self.row_of_same(sending, before, there), True
        else:
            self.record(sending.path)
            row, is_whole = self.put(sending, file, before)
        after = os.fstat(file.fileno())
        is_settled &= marks(after) == marks(before)
        if not sending.grows or sending.viewed or is_appended(sending.path, file, size):
            sending.row = row
        # The stat is the one from before reading: a file that changed meanwhile is sent again.
        entry = self.entry_of(sending, before, row)
        entry.last_block = ends_of(file, size) if size >= GROWS_FROM else ""
        entry.sure = is_settled and is_whole
        return entry

    def entry_of(self, sending: Sending, before: stat_result, row: Row) -> Entry:
        """Return the entry of a file whose bytes are where a row says."""
        is_plain = not (row.object or row.data)
        generation = row.generation
        if not is_plain:
            generation = sending.last.generation if sending.last else 0
        is_own = sending.wrote or sending.last is None or sending.last.is_own
        is_in_view = sending.row is not None
        return Entry(
            *marks(before), generation, row.crc32c, "", False, is_plain, is_own, is_in_view
        )

    def row_of(self, sending: Sending, before: stat_result, made: Any) -> Row:
        """Return the row of a file whose bytes an object has."""
        return Row(
            sending.path,
            sending.changed_ns,
            before.st_size,
            made.crc32c,
            made.generation,
            mtime_ns=min(max(before.st_mtime_ns, 0), LARGEST),
            mode=before.st_mode & 0o777,
            grows=sending.grows or bool(sending.viewed and sending.viewed.grows),
            moving=sending.is_moving,
            half=sending.is_half,
        )

    def row_of_same(self, sending: Sending, before: stat_result, there: Any) -> Row:
        """Return the row of a file whose bytes are where they were."""
        row = self.row_of(sending, before, there)
        if isinstance(there, Row):
            row.object, row.data = there.object, there.data
        if sending.last and sending.viewed and sending.last.is_of(before):
            row.changed_ns = sending.viewed.changed_ns  # a restore is no change
        return row

    def may_send(self, sending: Sending, file: IO[bytes], before: stat_result) -> bool:
        """Return whether a file that is open for writing may be sent: it only grows, or was written
        all the time for long, and is quiet now.
        """
        if sending.is_moving and not sending.is_cut:
            return time.time() - before.st_mtime > QUIET
        size, last = before.st_size, sending.last
        if last:
            return self.has_grown(last, file, before)
        if is_appended(sending.path, file, size):
            return True
        then, ends = self.opened.get(sending.path, (0, ""))
        self.opened[sending.path] = size, ends_of(file, size)
        return 0 < then < size and ends_of(file, then) == ends

    def is_of_database(self, sending: Sending, file: IO[bytes], is_open: bool) -> bool:
        """Return whether a file is a database of SQLite that is open, or a part next to one."""
        for suffix in SQLITE_PARTS:
            if sending.path.endswith(suffix):
                base = self.folder / sending.path.removesuffix(suffix)
                with suppress(OSError), open_file(base) as database:
                    return database.read(len(SQLITE)) == SQLITE
        file.seek(0)
        return is_open and file.read(len(SQLITE)) == SQLITE

    def send_database(self, sending: Sending, file: IO[bytes], before: stat_result) -> Entry | None:
        """Send a copy of a database that is in use, at most once a minute; no part of one."""
        sending.is_moving = sending.is_open = True
        last, now = sending.last, time.monotonic()
        is_late = now - self.copied_at.get(sending.path, -MOVING_AFTER) >= MOVING_AFTER
        if sending.path.endswith(SQLITE_PARTS) or not is_late or (last and last.is_of(before)):
            return None
        self.copied_at[sending.path] = now
        with tempfile.NamedTemporaryFile(dir=self.folder.parent, prefix=".berg-copy-") as copy:
            copy_database(self.folder / sending.path, copy.name)
            sending.changed_ns = time.time_ns()
            size = os.fstat(copy.fileno()).st_size
            self.record(sending.path)
            row, _ = self.put(sending, copy, os.fstat(copy.fileno()))
        sending.is_open, sending.row = False, row
        row.mtime_ns = self.row_of(sending, before, row).mtime_ns
        row.mode, row.size = before.st_mode & 0o777, size
        return self.entry_of(sending, before, row)

    def put(self, sending: Sending, file: IO[bytes], before: stat_result) -> tuple[Row, bool]:
        """Write the bytes of a file to its object, to a staged one, or to a row; return the row,
        and whether all of the bytes were read just now.
        """
        name, size, last = self.prefix + sending.path, before.st_size, sending.last
        self.refuse_if_still_taken(sending.path, name)
        whole: Any = file if self.takes_any(sending) else Whole(file, before, size)
        generation = last.generation if last else 0
        if last and last.is_plain and self.has_grown(last, file, before):
            blob, is_right = self.extend(sending, last, name, file, size)
            if is_right:
                return self.row_of(sending, before, blob), False
            generation = blob.generation if blob else generation
        elif sending.viewed and (last or not sending.viewed.link):
            return self.set_aside(sending, whole, before), True
        blob = self.copied(sending, name) or self.put_whole(sending, name, whole, size, generation)
        return self.row_of(sending, before, blob), sending.twin is None

    def takes_any(self, sending: Sending) -> bool:
        """Return whether a file is sent although it changes while it is read."""
        return not self.has_views or sending.grows or (self.finishing and sending.is_moving)

    def set_aside(self, sending: Sending, whole: Any, before: stat_result) -> Row:
        """Return a row with new bytes of a file whose plain object a view needs: the row has them
        if they are few, else a staged object.
        """
        size = before.st_size
        row = self.row_of(sending, before, Listed(""))
        row.grows = False
        whole.seek(0)
        sending.begins = 0
        if 0 < size <= INLINE:
            data = whole.read(size)
            if len(data) != size:
                raise Torn("it changed while it was read")
            row.data, row.crc32c = base64.b64encode(data).decode(), crc32c_of([data])
        else:
            name = f"{self.staged}{secrets.token_hex(8)}"
            made = self.bucket.upload_stream(
                name, whole, size, None, sending.on_progress, {WRITER: self.writer}
            )
            row.object, row.crc32c, row.generation = name, made.crc32c, made.generation
        sending.wrote, sending.bytes = True, size
        return row

    def copied(self, sending: Sending, name: str) -> Any:
        """Return the object of a file that was renamed, copied from that of its old name; None if
        that is not possible.
        """
        if not sending.twin:
            return None
        try:
            blob = self.bucket.rewrite(name, sending.twin, 0)
        except Exception:
            sending.twin = None
            return None
        sending.wrote = True
        return blob

    def refuse_if_still_taken(self, path: str, name: str) -> None:
        if path not in self.taken:
            return
        there = self.bucket.get(name)
        if there and not self.is_ours(there):
            raise Taken(TAKEN)

    def put_whole(self, sending: Sending, name: str, file: Any, size: int, generation: int) -> Any:
        """Write all of the file over the object at `generation`; return the object."""
        metadata = {WRITER: self.writer}
        for _ in range(5):
            sending.begins = 0
            sending.on_progress(0)
            file.seek(0)
            try:
                blob = self.bucket.upload_stream(
                    name, file, size, generation, sending.on_progress, metadata
                )
                sending.wrote, sending.bytes = True, sending.bytes + size
                return blob
            except Changed:
                there = self.bucket.get(name)
            sending.on_progress()
            plain = file.file if isinstance(file, Whole) else file
            if there and self.is_same(there, sending, plain, size):
                return there  # such as a write whose answer was lost
            if there and not self.is_ours(there):
                raise Taken(TAKEN)
            generation = there.generation if there else 0
        raise BergError("its object changes all the time")

    def is_same(self, there: Any, sending: Sending, file: IO[bytes], size: int) -> bool:
        """Return whether an object has the file's bytes."""
        return bool(there.size == size and there.crc32c == self.checksum(sending, file, size))

    def has_grown(self, last: Entry, file: IO[bytes], now: stat_result) -> bool:
        """Return whether a file has the bytes that were sent, and more behind them: of a large one
        its ends are compared. A small one may also be another text with the same beginning; then
        it is not the same file, or its lines are not.
        """
        if not 0 < last.size < now.st_size:
            return False
        if last.size >= GROWS_FROM:
            return ends_of(file, last.size) == last.last_block
        if not self.has_views or last.inode != now.st_ino:
            return False
        file.seek(last.size - 1)
        is_line = file.read(1) == b"\n"
        file.seek(0)
        return is_line and crc32c_of(blocks(file, last.size)) == last.crc32c

    def extend(
        self, sending: Sending, last: Entry, name: str, file: IO[bytes], size: int
    ) -> tuple[Any, bool]:
        """Send what was appended to a large file, and compose it.

        Return the object, None if that failed, and whether it has the file's bytes. It fails where
        the object is not the one that this mirror wrote.
        """
        if sending.viewed and not sending.viewed.grows:
            raise Grows("the next view is to say that it grows")
        if last.size < GROWS_FROM:
            return None, False
        start, metadata = last.size, {WRITER: self.writer}
        try:
            file.seek(start)
            whole = crc32c_of(blocks(file, size - start), last.crc32c)
            file.seek(start)
            sending.begins = start
            blob = self.bucket.append(
                name,
                self.tail(name),
                file,
                size - start,
                last.generation,
                sending.on_progress,
                metadata,
            )
        except Exception:
            return None, False
        sending.wrote, sending.bytes = True, size - start
        return blob, blob.crc32c == whole

    def is_ours(self, there: Any) -> bool:
        """Return whether this disk wrote an object; or an earlier one of the job, whose last writes
        may arrive after a restore.
        """
        if (there.metadata or {}).get(WRITER, "") == self.writer:
            return True
        job_name = self.writer.rpartition("/")[0]
        return job_name != "" and writer_of(there) == job_name and self.is_alone()

    def checksum(self, sending: Sending, file: IO[bytes], size: int) -> str:
        """Return the crc32c of the file's first `size` bytes."""

        def with_progress() -> Iterator[bytes]:
            for block in blocks(file, size):
                sending.on_progress()
                yield block

        file.seek(0)
        return crc32c_of(with_progress())

    def tail(self, name: str) -> str:
        """Return the name of an object's tail until it is composed."""
        return f"{self.tails}{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @property
    def tails(self) -> str:
        return f"{TAILS}{self.writer}/"

    @property
    def staged(self) -> str:
        return f"{TAILS}{self.writer}-staged/"


def writer_of(blob: Any) -> str:
    """Return the job that wrote an object; "" if its metadata names none."""
    writer: str = (blob.metadata or {}).get(WRITER, "")
    return writer.rpartition("/")[0]


def bytes_of(viewed: Row | None) -> Row | None:
    """Return the row of a file if a staged object or the row itself has its bytes."""
    return viewed if viewed and (viewed.object or viewed.data) else None


def has_whole(viewed: Row | None) -> bool:
    """Return whether the last view has a whole version of a file."""
    return viewed is not None and not (viewed.half or viewed.gone)


def marks(seen: stat_result) -> tuple[int, int, int, int]:
    """Return inode, size and times, which identify a file and its version.

    SQLite has 63 bits for each. A time after 2262 has more, and so has an inode on some file
    systems.
    """
    bits = (1 << 63) - 1
    return seen.st_ino & bits, seen.st_size, seen.st_mtime_ns & bits, seen.st_ctime_ns & bits


class Manifest:
    """The files that were sent, by path, and a queue of those to send.

    It is a temporary database, which SQLite deletes: memory does not grow with the tree.
    """

    def __init__(self, where: str = "") -> None:
        self.passes = 1  # over all files, to compare their bytes
        self.database = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA synchronous=OFF")
        self.database.execute("PRAGMA journal_mode=OFF")
        columns = (
            "path PRIMARY KEY, inode, size, mtime_ns, ctime_ns, generation, crc32c, last_block, "
            "sure, is_plain, is_own, in_view"
        )
        self.database.execute(f"CREATE TABLE sent ({columns}) WITHOUT ROWID")
        self.database.execute("CREATE INDEX by_inode ON sent (inode)")
        self.database.execute("CREATE TABLE queue (path PRIMARY KEY, large, again, changed_ns)")

    def get(self, path: str) -> Entry | None:
        row = self.database.execute("SELECT * FROM sent WHERE path = ?", (path,)).fetchone()
        if not row:
            return None
        entry = Entry(*row[1:])
        entry.sure = row[8] == self.passes
        return entry

    def put(self, path: str, entry: Entry) -> None:
        values = [path, *astuple(entry)]
        values[8] = self.passes if entry.sure else 0
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT OR REPLACE INTO sent VALUES ({marks})", values)

    def put_known(self, path: str, blob: Any, is_own: bool) -> None:
        """Remember an object whose file is to be compared with it."""
        entry = Entry(0, blob.size, 0, 0, blob.generation, blob.crc32c, "", False, is_own=is_own)
        self.put(path, entry)

    def put_waiting(self, row: Row) -> None:
        """Remember that the last bytes of a file that were sent have no plain object yet."""
        there = self.get(row.path)
        generation, is_own = (there.generation, there.is_own) if there else (0, True)
        entry = Entry(0, row.size, 0, 0, generation, row.crc32c, "", False, False, is_own)
        self.put(row.path, entry)

    def forget(self, path: str) -> None:
        self.database.execute("DELETE FROM sent WHERE path = ?", (path,))

    def note_plain(self, path: str, generation: int, crc32c: str) -> None:
        """Remember a file's new plain object, which has its bytes if they did not change since."""
        self.database.execute(
            "UPDATE sent SET generation = ?, is_own = 1, is_plain = (is_plain OR crc32c = ?) "
            "WHERE path = ?",
            (generation, crc32c, path),
        )

    def twin(self, seen: stat_result) -> tuple[str, Entry] | None:
        """Return the path and the entry of a file that was sent and is the same one, by its inode,
        size and time.
        """
        query = "SELECT path FROM sent WHERE inode = ? AND size = ? AND mtime_ns = ? AND is_plain"
        row = self.database.execute(query, marks(seen)[:3]).fetchone()
        entry = self.get(row[0]) if row else None
        return (row[0], entry) if entry else None

    def enqueue(self, path: str, large: bool, again: bool, changed_ns: int) -> None:
        values = (path, large, again, changed_ns)
        self.database.execute("INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?)", values)

    def queued(self, large: bool) -> Iterator[tuple[str, int]]:
        """Yield the paths in the queue, and when they changed: the oldest change first, so that
        the bucket has what came before; last what is only compared.
        """
        order = "SELECT path, changed_ns FROM queue WHERE large = ? ORDER BY again, changed_ns"
        yield from self.database.execute(order, (large,))


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file for reading; raise FileNotFoundError for anything else: a pipe would wait
    for a program that writes to it, a device may do something.
    """
    found = path.stat()
    if stat.S_ISREG(found.st_mode):
        file = os.fdopen(
            os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"
        )  # it may be a pipe by now
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            return file
        file.close()
    raise FileNotFoundError(errno.ENOENT, "No regular file", str(path))


def ends_of(file: IO[bytes], end: int) -> str:
    """Return the crc32c of the first bytes of a file and the last ones before `end`."""
    file.seek(0)
    first = file.read(min(HEAD, end))
    file.seek(max(0, end - BLOCK))
    return crc32c_of([first, file.read(min(end, BLOCK))])


def is_written(file: IO[bytes], seen: stat_result) -> bool:
    """Return whether a program has a file open for writing.

    The kernel gives no lease on such a file. One that opens it meanwhile waits until the lease is
    returned at once; what it would send us for that is ignored by default.
    """
    try:
        fcntl.fcntl(file.fileno(), SET_SIGNAL, signal.SIGURG)
        fcntl.fcntl(file.fileno(), SET_LEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file.fileno(), SET_LEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:  # a file system without leases
        return time.time() - max(seen.st_mtime, seen.st_ctime) < YOUNG
    return False


def is_appended(path: str, file: IO[bytes], size: int) -> bool:
    """Return whether a file that is open for writing is useful as it is: a log, or whole lines."""
    if path.endswith(APPENDED) or "tfevents" in path.rpartition("/")[2]:
        return True
    file.seek(max(0, size - HEAD))
    text = file.read(min(HEAD, size))
    if size > HEAD:
        text = text.partition(b"\n")[2]  # the first line may begin in the middle of a letter
    with suppress(UnicodeDecodeError):
        return text.endswith(b"\n") and "\0" not in text.decode()
    return False


def copy_database(path: Path, to: str) -> None:
    """Copy a database of SQLite that is in use, as it is at one moment."""
    end = time.monotonic() + BACKUP_SECONDS

    def check(*_: int) -> None:
        if time.monotonic() > end:
            raise BergError("the database changes all the time")

    address = f"file:{quote(str(path))}?mode=ro"
    with (
        closing(sqlite3.connect(address, uri=True)) as source,
        closing(sqlite3.connect(to)) as copy,
    ):
        source.backup(copy, pages=4096, progress=check, sleep=0.01)
