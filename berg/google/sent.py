"""What a mirror sent: in a temporary database, so that memory does not grow with the tree."""

import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from os import stat_result
from typing import IO

from berg.google.checksum import BLOCK, crc32c_of


@dataclass(slots=True)
class Sent:
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
        times = seen.st_mtime_ns, seen.st_ctime_ns
        return (self.inode, self.size, self.mtime_ns, self.ctime_ns) == (seen.st_ino, seen.st_size, *times)


class Store:
    """What was sent, by path, and a queue of what is to be. It lies in a file that SQLite deletes."""

    def __init__(self) -> None:
        self.database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA synchronous=OFF")
        self.database.execute("PRAGMA journal_mode=OFF")
        columns = "path PRIMARY KEY, inode, size, mtime_ns, ctime_ns, generation, crc32c, last_block, sure"
        self.database.execute(f"CREATE TABLE sent ({columns}) WITHOUT ROWID")
        self.database.execute("CREATE TABLE queue (path, large, again, mtime_ns)")

    def get(self, path: str) -> Sent | None:
        row = self.database.execute("SELECT * FROM sent WHERE path = ?", (path,)).fetchone()
        return Sent(*row[1:]) if row else None

    def put(self, path: str, sent: Sent) -> None:
        self.database.execute("INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (path, *astuple(sent)))

    def put_known(self, path: str, size: int, generation: int, crc32c: str) -> None:
        """Remember an object whose file is to be compared with it."""
        self.put(path, Sent(0, size, 0, 0, generation, crc32c, "", False))

    def doubt_all(self) -> None:
        """Let the bytes of every file be compared once more."""
        self.database.execute("UPDATE sent SET sure = 0")

    def clear_queue(self) -> None:
        self.database.execute("DELETE FROM queue")

    def enqueue(self, path: str, large: bool, again: bool, mtime_ns: int) -> None:
        self.database.execute("INSERT INTO queue VALUES (?, ?, ?, ?)", (path, large, again, mtime_ns))

    def queued(self, large: bool) -> Iterator[str]:
        """Paths in the queue: what changed first, of that the newest first; then what is only to be compared again."""
        order = "SELECT path FROM queue WHERE large = ? ORDER BY again, mtime_ns DESC"
        for (path,) in self.database.execute(order, (large,)):
            yield path


def block_before(file: IO[bytes], end: int) -> str:
    file.seek(max(0, end - BLOCK))
    return crc32c_of([file.read(min(end, BLOCK))])
