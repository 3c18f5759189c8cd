"""A file of a mirror on its way to the bucket.

An object that this mirror neither restored nor wrote is never overwritten: every upload carries the
generation of the object that it replaces, 0 for a new one, and every object says in its metadata
who wrote it, so that a write whose answer was lost is known as ours. What is there from somebody
else stays, and the file is refused by name.

A file that grew is sent as its tail and composed on. Which files are to be sent, and when, is in
mirror.py.
"""

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError
from berg.google.checksum import blocks, crc32c_of
from berg.google.sent import Sent, block_before, marks
from berg.google.storage import Changed

WRITER = "berg-writer"  # custom metadata of an object: JOB/DISK
TAILS = ".berg/tmp/"
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
    last: Sent | None
    large: bool
    inode: int = 0
    moved: float = field(default_factory=time.monotonic)  # when bytes moved last
    given_up: bool = False
    sent: Sent | None = None
    wrote: bool = False
    bytes: int = 0
    begins: int = 0  # where in the file the bytes begin that are being sent
    through: int = 0  # bytes of the file that are in the bucket, or nearly
    error: Exception | None = None

    def tell(self, sent: int | None = None) -> None:
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

    def send(self, sending: Sending) -> Sent | None:
        """Send one file; returns what it is now in the bucket, None if it is no file any more."""
        last, name = sending.last, self.prefix + sending.path
        with (self.folder / sending.path).open("rb") as file:
            now = os.fstat(file.fileno())
            if not stat.S_ISREG(now.st_mode):
                return None
            sending.inode = now.st_ino
            # A change within one tick of the file system's clock after this would have the same
            # time.
            is_settled = time.time_ns() - now.st_ctime_ns > 50_000_000
            if (
                last
                and last.size == now.st_size
                and self.checksum(sending, file, now.st_size) == last.crc32c
            ):
                blob, is_whole = last, True
            else:
                self.record(sending.path)
                blob, is_whole = self.put(sending, name, file, now.st_size)
            is_settled &= last_change(os.fstat(file.fileno())) == last_change(now)
            # The stat is the one from before reading: a file that changed meanwhile is sent again.
            block = block_before(file, now.st_size) if now.st_size >= GROWS_FROM else ""
            return Sent(*marks(now), blob.generation, blob.crc32c, block, is_settled and is_whole)

    def put(self, sending: Sending, name: str, file, size: int) -> tuple[Any, bool]:
        """Write the object; returns its Blob, and whether all of its bytes were read just now."""
        generation, metadata = 0, {WRITER: self.writer}
        if (
            sending.path in self.taken
            and (there := self.bucket.get(name))
            and not self.is_ours(there)
        ):
            raise Taken("the bucket has a file of that name which this job did not write")
        if last := sending.last:
            generation = last.generation
            if GROWS_FROM <= last.size < size and block_before(file, last.size) == last.last_block:
                # not the object that this mirror wrote, or else: all of it
                with contextlib.suppress(Exception):
                    blob, is_right = self.extend(sending, last, name, file, size)
                    if is_right:
                        return blob, False
                    generation = blob.generation
        for _ in range(5):
            sending.begins = 0
            sending.tell(0)
            file.seek(0)
            try:
                blob = self.bucket.upload_stream(
                    name, file, size, generation, sending.tell, metadata
                )
                sending.wrote, sending.bytes = True, sending.bytes + size
                return blob, True
            except Changed:
                there = self.bucket.get(name)
                sending.tell()
                if (
                    there
                    and there.size == size
                    and there.crc32c == self.checksum(sending, file, size)
                ):
                    return there, True  # such as a write whose answer was lost
                if there and not self.is_ours(there):
                    raise Taken(
                        "the bucket has a file of that name which this job did not write"
                    ) from None
                generation = there.generation if there else 0
        raise BergError("its object changes all the time")

    def extend(self, sending: Sending, last: Sent, name: str, file, size: int) -> tuple[Any, bool]:
        """Send what the file grew by and compose it on; returns the object's Blob, and whether it
        is the file now.
        """
        start, metadata = last.size, {WRITER: self.writer}
        file.seek(start)
        whole = crc32c_of(blocks(file, size - start), last.crc32c)
        file.seek(start)
        sending.begins = start
        blob = self.bucket.append(
            name, self.tail(name), file, size - start, last.generation, sending.tell, metadata
        )
        sending.wrote, sending.bytes = True, size - start
        return blob, blob.crc32c == whole

    def is_ours(self, there) -> bool:
        return (there.metadata or {}).get(WRITER) == self.writer

    def checksum(self, sending: Sending, file, size: int) -> str:
        def told() -> Iterator[bytes]:
            for block in blocks(file, size):
                sending.tell()
                yield block

        file.seek(0)
        return crc32c_of(told())

    def tail(self, name: str) -> str:
        return f"{self.tails}{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @property
    def tails(self) -> str:
        return f"{TAILS}{self.writer}/"


def last_change(seen: os.stat_result) -> tuple[int, int, int]:
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
