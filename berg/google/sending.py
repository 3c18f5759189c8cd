"""A file of a mirror on its way to the bucket.

An object that this mirror neither restored nor wrote is never overwritten: every upload carries the
generation of the object that it replaces, 0 for a new one, and every object says in its metadata
who wrote it, so that a write whose answer was lost is known as ours. What is there from somebody
else stays, and the file is refused by name.

A file that grew is sent as its tail and composed on. Which files are to be sent, and when, is in
mirror.py.
"""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from berg import BergError
from berg.google.checksum import blocks, crc32c_of
from berg.google.manifest import Entry, block_before, marks
from berg.google.storage import Changed

WRITER = "berg-writer"  # custom metadata of an object: JOB/DISK
TAILS = ".berg/tmp/"
TAKEN = "the bucket has a file of that name which this job did not write"
# bytes from which a file that grew is sent as its tail: composing takes three requests
GROWS_FROM = 1 << 20


class Refused(Exception):
    """A file that the bucket does not take."""


class Taken(Refused):
    """The object of that name is somebody else's."""


class GivenUp(Exception):
    """Nobody waits for this upload any more."""


@dataclass
class Sending:
    """A file under way, in a thread of its own."""

    path: str
    last: Entry | None  # as it was sent before
    large: bool
    inode: int = 0
    moved: float = field(default_factory=time.monotonic)  # when bytes moved last
    given_up: bool = False
    entry: Entry | None = None  # as it is sent now
    wrote: bool = False
    bytes: int = 0
    begins: int = 0  # where in the file the bytes begin that are being sent
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
    record: Callable[[str], None]  # hears of a file before its object is written
    taken: set[str] = field(default_factory=set)  # paths whose object is somebody else's

    def send(self, sending: Sending) -> Entry | None:
        """Send one file; return what it is now in the bucket, None if it is no file any more."""
        with (self.folder / sending.path).open("rb") as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                return None
            sending.inode = before.st_ino
            # A change within one tick of the file system's clock after this would have the same
            # time.
            is_settled = time.time_ns() - before.st_ctime_ns > 50_000_000
            blob, is_whole = self.put_if_changed(sending, file, before.st_size)
            is_settled &= last_change(os.fstat(file.fileno())) == last_change(before)
            block = ""
            if before.st_size >= GROWS_FROM:
                block = block_before(file, before.st_size)
            # The stat is the one from before reading: a file that changed meanwhile is sent again.
            sure = is_settled and is_whole
            return Entry(*marks(before), blob.generation, blob.crc32c, block, sure)

    def put_if_changed(self, sending: Sending, file: IO[bytes], size: int) -> tuple[Any, bool]:
        """Write the object unless it has the file's bytes; return as `put` does."""
        last = sending.last
        if last and last.size == size and self.checksum(sending, file, size) == last.crc32c:
            return last, True
        self.record(sending.path)
        return self.put(sending, self.prefix + sending.path, file, size)

    def put(self, sending: Sending, name: str, file: IO[bytes], size: int) -> tuple[Any, bool]:
        """Write the object; return its Blob, and whether all of its bytes were read just now."""
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
        """Write all of the file over the object at `generation`; return the object's Blob."""
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
        """Return whether the file has the bytes that were sent, as far as its last block tells."""
        if not GROWS_FROM <= last.size < size:
            return False
        return block_before(file, last.size) == last.last_block

    def try_to_extend(
        self, sending: Sending, last: Entry, name: str, file: IO[bytes], size: int
    ) -> tuple[Any, bool]:
        """Send what the file grew by and compose it on.

        Return the object's Blob, None if that failed, and whether the object is the file now. It
        fails where the object is not the one that this mirror wrote: then all of it is sent.
        """
        try:
            return self.extend(sending, last, name, file, size)
        except Exception:
            return None, False

    def extend(
        self, sending: Sending, last: Entry, name: str, file: IO[bytes], size: int
    ) -> tuple[Any, bool]:
        start, metadata = last.size, {WRITER: self.writer}
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
        """Return the name under which the tail of an object lies until it is composed on."""
        return f"{self.tails}{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @property
    def tails(self) -> str:
        return f"{TAILS}{self.writer}/"


def last_change(seen: os.stat_result) -> tuple[int, int, int]:
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
