"""How a mirror sends one file, and its record of what was sent.

An object that this mirror neither restored nor wrote is never overwritten: every upload carries the
generation that it replaces, 0 for a new object, and the object's metadata names its writer, so that
a write whose answer was lost is recognised. A file that grew is sent as its tail and composed.
"""

import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field
from os import stat_result
from pathlib import Path
from typing import IO, Any

from berg import BergError
from berg.google.storage import BLOCK, Changed, blocks, crc32c_of

WRITER = "berg-writer"  # custom metadata of an object: JOB/DISK
TAILS = ".berg/tmp/"
TAKEN = "the bucket has a file of that name which this job did not write"
GROWS_FROM = 1 << 20  # bytes from which a tail is sent: composing takes three requests


class Refused(Exception):
    """A file that the bucket does not take."""


class Taken(Refused):
    """Another writer's object has the name."""


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
    last_block: str  # crc32c of the last BLOCK bytes that were sent
    sure: bool  # the bytes of file and object were compared after the file's last change

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

    def on_progress(self, sent: int | None = None) -> None:
        if self.given_up:
            raise GivenUp
        self.moved = time.monotonic()
        if sent is not None:
            self.through = self.begins + sent


@dataclass
class Sender:
    """Sends files of `folder` under `prefix` in `bucket`, each in a thread of its own."""

    folder: Path
    bucket: Any
    prefix: str
    writer: str  # JOB/DISK
    record: Callable[[str], None]  # called with a path before its object is written
    taken: set[str] = field(default_factory=set)  # paths whose object is another writer's

    def send(self, sending: Sending) -> Entry | None:
        """Send one file unless its object has its bytes; return its entry, None if it is no regular
        file any more.
        """
        with (self.folder / sending.path).open("rb") as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                return None
            sending.inode, size, last = before.st_ino, before.st_size, sending.last
            # A change within one tick of the file system's clock after this has the same time.
            is_settled = time.time_ns() - before.st_ctime_ns > 50_000_000
            if last and last.size == size and self.checksum(sending, file, size) == last.crc32c:
                blob, is_whole = last, True
            else:
                self.record(sending.path)
                blob, is_whole = self.put(sending, self.prefix + sending.path, file, size)
            after = os.fstat(file.fileno())
            is_settled &= marks(after) == marks(before)
            block = block_before(file, size) if size >= GROWS_FROM else ""
            # The stat is the one from before reading: a file that changed meanwhile is sent again.
            return Entry(
                *marks(before), blob.generation, blob.crc32c, block, is_settled and is_whole
            )

    def put(self, sending: Sending, name: str, file: IO[bytes], size: int) -> tuple[Any, bool]:
        """Write the object; return it, and whether all of its bytes were read just now."""
        self.refuse_if_still_taken(sending.path, name)
        generation = 0
        if last := sending.last:
            generation = last.generation
            if self.has_grown(last, file, size):
                blob, is_right = self.try_to_extend(sending, last, name, file, size)
                if is_right:
                    return blob, False
                if blob:
                    generation = blob.generation
        return self.put_whole(sending, name, file, size, generation), True

    def refuse_if_still_taken(self, path: str, name: str) -> None:
        if path not in self.taken:
            return
        there = self.bucket.get(name)
        if there and not self.is_ours(there):
            raise Taken(TAKEN)

    def put_whole(
        self, sending: Sending, name: str, file: IO[bytes], size: int, generation: int
    ) -> Any:
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
            if there and self.is_same(there, sending, file, size):
                return there  # such as a write whose answer was lost
            if there and not self.is_ours(there):
                raise Taken(TAKEN)
            generation = there.generation if there else 0
        raise BergError("its object changes all the time")

    def is_same(self, there: Any, sending: Sending, file: IO[bytes], size: int) -> bool:
        """Return whether an object has the file's bytes."""
        if there.size != size:
            return False
        is_same: bool = there.crc32c == self.checksum(sending, file, size)
        return is_same

    def has_grown(self, last: Entry, file: IO[bytes], size: int) -> bool:
        """Return whether the file begins with the bytes that were sent, by their last block."""
        if not GROWS_FROM <= last.size < size:
            return False
        return block_before(file, last.size) == last.last_block

    def try_to_extend(
        self, sending: Sending, last: Entry, name: str, file: IO[bytes], size: int
    ) -> tuple[Any, bool]:
        """Send what was appended to the file, and compose it.

        Return the object, None if that failed, and whether it has the file's bytes. It fails where
        the object is not the one that this mirror wrote.
        """
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
        return (there.metadata or {}).get(WRITER) == self.writer

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
            "sure"
        )
        self.database.execute(f"CREATE TABLE sent ({columns}) WITHOUT ROWID")
        self.database.execute("CREATE TABLE queue (path PRIMARY KEY, large, again, mtime)")

    def get(self, path: str) -> Entry | None:
        row = self.database.execute("SELECT * FROM sent WHERE path = ?", (path,)).fetchone()
        if not row:
            return None
        entry = Entry(*row[1:])
        entry.sure = row[-1] == self.passes
        return entry

    def put(self, path: str, entry: Entry) -> None:
        sure_in_pass = self.passes if entry.sure else 0
        values = (path, *astuple(entry)[:-1], sure_in_pass)
        self.database.execute(
            "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values
        )

    def put_known(self, path: str, size: int, generation: int, crc32c: str) -> None:
        """Remember an object whose file is to be compared with it."""
        self.put(path, Entry(0, size, 0, 0, generation, crc32c, "", False))

    def doubt_all(self) -> None:
        """Let the bytes of every file be compared once more."""
        self.passes += 1

    def clear_queue(self) -> None:
        self.database.execute("DELETE FROM queue")

    def enqueue(self, path: str, large: bool, again: bool, mtime: float) -> None:
        values = (path, large, again, mtime)
        self.database.execute("INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?)", values)

    def queued(self, large: bool) -> Iterator[str]:
        """Yield the paths in the queue: the newest change first; last what is only compared."""
        order = "SELECT path FROM queue WHERE large = ? ORDER BY again, mtime DESC"
        for (path,) in self.database.execute(order, (large,)):
            yield path


def block_before(file: IO[bytes], end: int) -> str:
    """Return the crc32c of the last BLOCK bytes before `end`."""
    file.seek(max(0, end - BLOCK))
    return crc32c_of([file.read(min(end, BLOCK))])
