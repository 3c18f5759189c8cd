"""The manifest of a mirror: each file as it was sent, and what is to be sent next.

It is a temporary database, so that memory does not grow with the tree.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from os import stat_result
from typing import IO

from berg.google.checksum import BLOCK, crc32c_of


@dataclass(slots=True)
class Entry:
    """A file as it was when it was sent, and the object that it became."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    generation: int
    crc32c: str
    last_block: str  # crc32c of the last BLOCK bytes that were sent
    sure: bool  # that the file has the object's bytes: they were compared after its last change

    def is_of(self, seen: stat_result) -> bool:
        return (self.inode, self.size, self.mtime_ns, self.ctime_ns) == marks(seen)


def marks(seen: stat_result) -> tuple[int, int, int, int]:
    """Return what tells a file from others and from itself before: inode, size and times.

    SQLite has 63 bits for each. A time after 2262 has more, and so has an inode on some file
    systems.
    """
    bits = (1 << 63) - 1
    return seen.st_ino & bits, seen.st_size, seen.st_mtime_ns & bits, seen.st_ctime_ns & bits


class Manifest:
    """The files that were sent, by path, and a queue of those to send.

    It lies in a file that SQLite deletes, or in memory.
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
        sure_in_pass = 0
        if entry.sure:
            sure_in_pass = self.passes
        values = (*astuple(entry)[:-1], sure_in_pass)
        self.database.execute(
            "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (path, *values)
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
