"""A folder mirrored to the bucket while programs write to it, and fetched from there to a laptop.

A pass compares names, sizes and times with what was sent. That is kept in a temporary database, so that memory does
not grow with the tree, and a pass over files that did not change asks the bucket nothing. A file that grew is sent as
its tail and composed on; the final pass compares the crc32c of every file with the one the bucket reported for its
object. Deleting a file never deletes its object. Not covered: empty folders, permissions, and names that are not UTF-8.
"""

import base64
import hashlib
import os
import sqlite3
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from berg import BergError, job

Item = TypeVar("Item")
Done = TypeVar("Done")
THREADS = 8
GROWS_FROM = 1 << 20  # bytes from which a file that grew is sent as its tail: composing takes three requests
BLOCK = 1 << 20
LARGE_FROM = 2 << 20  # bytes from which files are sent by few threads: each needs memory for a chunk
LARGE_THREADS = 2


@dataclass(slots=True)
class Sent:
    """A file as it was when it was sent, and the object that it became."""

    inode: int
    size: int
    mtime_ns: int
    generation: int
    crc32c: str
    last_block: str  # crc32c of the last BLOCK bytes that were sent

    def is_of(self, seen: os.stat_result) -> bool:
        return (self.inode, self.size, self.mtime_ns) == (seen.st_ino, seen.st_size, seen.st_mtime_ns)


class Store:
    """What was sent, by path. It lies in a file that SQLite deletes, with a cache of two megabytes."""

    def __init__(self) -> None:
        self.database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA synchronous=OFF")
        self.database.execute("PRAGMA journal_mode=OFF")
        columns = "path PRIMARY KEY, inode, size, mtime_ns, generation, crc32c, last_block"
        self.database.execute(f"CREATE TABLE sent ({columns}) WITHOUT ROWID")

    def get(self, path: str) -> Sent | None:
        row = self.database.execute("SELECT * FROM sent WHERE path = ?", (path,)).fetchone()
        return Sent(*row[1:]) if row else None

    def put(self, path: str, sent: Sent) -> None:
        self.database.execute("INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?, ?, ?, ?)", (path, *astuple(sent)))

    def forget(self, path: str) -> None:
        self.database.execute("DELETE FROM sent WHERE path = ?", (path,))

    def checksums(self) -> Iterator[tuple[str, str]]:
        yield from self.database.execute("SELECT path, crc32c FROM sent")


@dataclass
class Mirror:
    """`folder` mirrored under `prefix` in `bucket`; one thread at a time calls its methods."""

    folder: Path
    bucket: Any
    prefix: str
    sent: Store = field(default_factory=Store)
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it is not mirrored
    failed: dict[str, str] = field(default_factory=dict)  # path -> why the last pass could not send it
    synced_until: str = ""
    bytes_sent: int = 0

    def sync(self) -> int:
        """Send what changed since the last pass; returns how many files that were."""
        began = job.now()
        self.refused, self.failed = {}, {}
        changed = 0
        large: list[tuple[str, Sent | None]] = []

        def small() -> Iterator[tuple[str, Sent | None]]:
            for path, seen in self.scan():
                last = self.sent.get(path)
                if last and last.is_of(seen):
                    continue
                if seen.st_size < LARGE_FROM:
                    yield path, last
                else:
                    large.append((path, last))

        for files, threads in ((small(), THREADS), (large, LARGE_THREADS)):
            for path, sent in side_by_side(self.send, files, threads):
                changed += 1
                if sent:
                    self.sent.put(path, sent)
        if not self.failed:
            self.synced_until = began
        return changed

    def scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """Regular files under the folder with their stat; links are followed where they stay inside."""
        root = os.path.realpath(self.folder)
        pending: list[tuple[str, tuple[str, ...]]] = [("", (root,))]
        while pending:
            relative, above = pending.pop()
            try:
                entries = os.scandir(self.folder / relative)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.refused[relative or "."] = error.strerror or str(error)
                continue
            for entry in entries:
                path = f"{relative}/{entry.name}" if relative else entry.name
                try:
                    real = os.path.realpath(entry.path) if entry.is_symlink() else ""
                    if real and os.path.commonpath([root, real]) != root:
                        self.refused[path] = "a link to outside of the results"
                    elif not path.isprintable() and (why := bad_name(path)):
                        self.refused[path.encode(errors="replace").decode()] = why
                    elif entry.is_dir():
                        target = real or os.path.realpath(entry.path)
                        if target in above:
                            self.refused[path] = "a link to a folder that holds it"
                        else:
                            pending.append((path, (*above, target)))
                    elif entry.is_file():
                        yield path, entry.stat()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self.refused[path] = error.strerror or str(error)

    def send(self, change: tuple[str, Sent | None]) -> tuple[str, Sent | None]:
        """Send one file; returns its path and what it is now in the bucket, None if it is not there."""
        path, last = change
        try:
            with (self.folder / path).open("rb") as file:
                now = os.fstat(file.fileno())
                if stat.S_ISREG(now.st_mode):
                    return path, self.send_file(path, file, now, last)
        except FileNotFoundError:
            pass  # deleted meanwhile
        except PermissionError as error:
            self.refused[path] = error.strerror or str(error)
        except Exception as error:  # the next pass sends it again
            self.failed[path] = str(error)
        return path, None

    def send_file(self, path: str, file, now: os.stat_result, last: Sent | None) -> Sent:
        name = self.prefix + path
        start = 0
        if last and last.inode == now.st_ino and GROWS_FROM <= last.size < now.st_size:
            start = last.size if block_before(file, last.size) == last.last_block else 0
        file.seek(start)
        blob = None
        if last and start:
            tail = f".berg/tmp/{hashlib.sha256(name.encode()).hexdigest()[:32]}"
            try:
                blob = self.bucket.append(name, tail, file, now.st_size - start, last.generation)
            except Exception:  # not the object that this mirror wrote, or whatever else: send all of it
                file.seek(0)
                start = 0
        if blob is None:
            blob = self.bucket.upload_stream(name, file, now.st_size)
        self.bytes_sent += now.st_size - start
        # The stat is the one from before reading: a file that changed meanwhile is sent again.
        return sent_as(file, now, blob)

    def restore(self, within: str) -> int:
        """Bring what the bucket has below `within` to the folder, where it counts as sent; returns how many files."""

        def note(blob) -> None:
            path = blob.name[len(self.prefix) :]
            with (self.folder / path).open("rb") as file:
                self.sent.put(path, sent_as(file, os.fstat(file.fileno()), blob))

        return fetch(self.bucket, self.prefix + within, self.folder / within, done=note)[1]

    def finish(self, progress: Callable[[str], None], give_up: Callable[[], bool] = lambda: False) -> None:
        """Pass over the folder until every file is in the bucket byte for byte.

        Failures are retried, with growing pauses, until `give_up()`; `progress` hears of each.
        """
        pause = 1.0
        while not give_up():
            changed = self.sync()
            if self.failed:
                path, error = next(iter(self.failed.items()))
                progress(f"{len(self.failed)} files are not in the bucket yet, {path}: {error}")
                time.sleep(pause)
                pause = min(pause * 2, 30)
            elif not changed and not self.forget_mismatches():
                return

    def forget_mismatches(self) -> list[str]:
        """Files whose bytes are not those of their object, to be sent again by the next pass."""
        wrong = []
        for path, checksum in self.sent.checksums():
            try:
                if file_crc32c(self.folder / path) != checksum:
                    wrong.append(path)
            except FileNotFoundError:
                continue
        for path in wrong:
            self.sent.forget(path)
        return wrong

    def run(self, interval: float, stop: threading.Event) -> None:
        """Pass over the folder every `interval` seconds until `stop`; failures wait for the next pass."""
        while not stop.wait(interval):
            self.sync()


def side_by_side(work: Callable[[Item], Done], items: Iterable[Item], threads: int = THREADS) -> Iterator[Done]:
    """What `work` makes of each item, in their order, with a bounded number of them under way."""
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[Done]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= 8 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def sent_as(file: IO[bytes], seen: os.stat_result, blob) -> Sent:
    block = block_before(file, seen.st_size) if seen.st_size >= GROWS_FROM else ""
    return Sent(seen.st_ino, seen.st_size, seen.st_mtime_ns, blob.generation, blob.crc32c, block)


def bad_name(path: str) -> str:
    """Why Cloud Storage cannot take a name; empty if it can."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return "its name has a line break" if "\n" in path or "\r" in path else ""


def block_before(file, end: int) -> str:
    file.seek(max(0, end - BLOCK))
    return crc32c_of([file.read(min(end, BLOCK))])


def file_crc32c(path: Path) -> str:
    with path.open("rb") as file:
        return crc32c_of(iter(lambda: file.read(BLOCK), b""))


def crc32c_of(blocks) -> str:
    """The crc32c of bytes as Cloud Storage writes it: base64, big-endian."""
    import google_crc32c

    checksum = google_crc32c.Checksum()
    for block in blocks:
        checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


def fetch(
    bucket,
    prefix: str,
    folder: Path,
    progress: Callable[[str, int], None] = lambda name, n: None,
    done: Callable[[Any], None] = lambda blob: None,
) -> tuple[int, int]:
    """Bring the objects under `prefix` to `folder`; returns how many were new or changed, and how many there are.

    Files keep the object's time, so that a later fetch recognises them without reading them. `done` hears of the
    Blob of each, one at a time.
    """

    def bring(blob) -> tuple[Any, bool]:
        relative = blob.name[len(prefix) :]
        if any(part in ("", ".", "..") for part in relative.split("/")):
            raise BergError(f"gs://{bucket.name}/{blob.name} would land outside of {folder}; it was not fetched")
        path = folder / relative
        updated = blob.updated.timestamp()
        try:
            here = path.stat()
            if here.st_size == blob.size and abs(here.st_mtime - updated) < 1e-3:
                return blob, False
            same = here.st_size == blob.size and file_crc32c(path) == blob.crc32c
        except FileNotFoundError:
            same = False
        if not same:
            bucket.download(blob.name, path, blob.generation)
            progress(blob.name, blob.size)
        os.utime(path, (updated, updated))
        return blob, not same

    new = total = 0
    for blob, is_new in side_by_side(bring, (blob for blob in bucket.list(prefix) if not blob.name.endswith("/"))):
        done(blob)
        new, total = new + is_new, total + 1
    return new, total
