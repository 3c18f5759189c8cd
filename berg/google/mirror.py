"""A folder mirrored to the bucket while programs write to it: which files are sent when, and what
became of them.

A pass compares names, sizes and times with what was sent. That is kept in a temporary database, so
that memory does not grow with the tree, and a pass over files that did not change asks the bucket
nothing. It looks at what the kernel says has changed (watch.py) and at what is not settled; the
first pass, those at the end and one every few minutes look at everything. Bytes that may have
changed without a sign are compared with their object's crc32c: once a file that grew is quiet, and
all at the end. Deleting a file never deletes its object. How one file is sent, and whose objects
are never overwritten, is in sending.py. Not covered: empty folders, permissions, and names that
Cloud Storage cannot take, which are refused.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.gate import check_folder
from berg.google import api, fetch
from berg.google.sending import (
    GROWS_FROM,
    WRITER,
    Entry,
    Manifest,
    Refused,
    Sender,
    Sending,
    Taken,
    block_before,
    marks,
)
from berg.google.storage import Changed, Unreadable
from berg.google.walk import Walk, Watch, name_left, shorten

LISTED = "name,size,crc32c,generation,updated,metadata"
LARGE_FROM = 2 << 20  # bytes from which few files are sent at a time: each needs memory for a chunk
SMALL_AT_ONCE, LARGE_AT_ONCE = 8, 2
# seconds without a byte, after which a file is sent anew
PATIENCE, LAST_PATIENCE, HURRY = (
    120.0,
    60.0,
    5.0,
)
STANDS_STILL = 5  # seconds without a byte, after which another file is sent beside one
RESTORE_PAUSES = 1, 2, 4, 8, 0  # seconds after each try
HOPELESS = (400, 411, 413, 414, 422, 431)  # statuses that say that one file is wrong
# seconds after which the end of a job takes a refusal at its word: rights take minutes to arrive
REFUSED_FOR = 900
WRITE_INTERVAL = 1.1  # seconds between two writes of an object, of which one a second is taken
# Passes at the end that find something changed once all is sent, after which it stays as it is.
# From the third on there is a second between them.
MOVING_PASSES, CALM_PASSES, MOVING_PAUSE = 20, 3, 1
MOVING = "something still writes it: the bucket has it as it was"


@dataclass
class Mirror:
    """`folder` mirrored under `prefix` in `bucket`; one thread at a time calls its methods."""

    folder: Path
    bucket: Any
    prefix: str
    writer: str = field(default_factory=lambda: secrets.token_hex(8))  # JOB/DISK
    own: str = ""  # folder that all of the job's files lie in, as far as one can tell
    records: str = ""  # prefix of objects that say to which other folders it wrote; "": none
    restored: Path | None = (
        None  # file that knows what was restored to this disk, for a worker after this one
    )
    manifest: Manifest = field(default_factory=Manifest)
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it is not mirrored
    # path -> why the last pass could not send it
    failed: dict[str, str] = field(default_factory=dict)
    synced_until: str = ""
    bytes_sent: int = 0
    wrote_at: float = -math.inf  # time.monotonic() of the last write of an object
    patience: float = PATIENCE
    finishing: bool = False
    is_behind: bool = False  # whether the last pass had no time for some files
    underway: dict[str, Sending] = field(default_factory=dict)
    # SimpleQueue may wait for ever in Python 3.10
    ready: queue.Queue[Any] = field(default_factory=queue.Queue)
    folders: set[str] = field(default_factory=set)  # that are recorded
    # paths that were sent as copies of what they lead to
    links: set[str] = field(default_factory=set)
    rejected: dict[str, str] = field(default_factory=dict)  # path -> why it is not sent again
    failing_since: dict[str, float] = field(default_factory=dict)
    sender: Sender = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.folder)
        self.sender = Sender(self.folder, self.bucket, self.prefix, self.writer, self.record)
        self.recall()

    def recall(self) -> None:
        """Learn from the notes on the disk what was brought back."""
        if self.restored and self.restored.exists():
            for line in self.restored.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line, if the machine died over it
                    self.manifest.put_known(*json.loads(line))

    def sync(
        self,
        seconds: float = math.inf,
        stop: Callable[[], bool] = lambda: False,
        only_new: bool = False,
    ) -> int:
        """Send what changed since the last pass, the newest first; return how many files were sent.

        With `only_new` these are files that were never sent. What is under way after so many
        seconds, or when it is to stop, goes on, and the next pass passes over it. A pass that
        breaks off, such as over a full disk, is a failure of the folder; the next one does without
        the disk.
        """
        began, sent = job.now(), 0
        self.failed = {}
        begun_before = set(self.underway)  # which the pass passes over
        try:
            self.queue_changes(only_new)
            sent = self.send_queue(time.monotonic() + seconds, stop)
        except Exception as error:
            self.failed[self.own or "."] = f"{type(error).__name__}: {error}"
            self.watch.forget()
            # it is damaged; what this mirror wrote is known by its writer
            if isinstance(error, sqlite3.Error):
                self.manifest = Manifest(":memory:")
                self.recall()
        is_whole = not (only_new or self.failed or self.underway)
        if is_whole and all(map(self.is_there, begun_before)):
            self.synced_until = began
        return sent

    def is_there(self, path: str) -> bool:
        """Whether a file is in the bucket as it is now, or is none any more."""
        try:
            seen = (self.folder / path).stat()
        except OSError:
            return True
        entry = self.manifest.get(path)
        return bool(entry and entry.is_of(seen))

    def send_queue(self, end: float, stop: Callable[[], bool]) -> int:
        """Send what is queued until `end`, time.monotonic(); return how many files were sent."""
        feeds = {large: self.manifest.queued(large) for large in (False, True)}
        sent = 0
        while feeds or self.underway:
            self.begin_as_many_as_may(feeds)
            if stop() or time.monotonic() > end:
                break
            sent += self.wait_for_some(0.2)
            self.give_up(lambda each: time.monotonic() - each.moved > self.patience)
        late = [path for feed in feeds.values() for path in feed]
        self.failed.update(dict.fromkeys(late, "there was no time for it"))
        self.is_behind = bool(late)
        return sent

    def begin_as_many_as_may(self, feeds: dict[bool, Iterator[str]]) -> None:
        """Begin files of each feed, large or small, up to its limit; drop feeds that are empty."""
        for large, feed in list(feeds.items()):
            for _ in range(at_once(large) - self.count_underway(large)):
                path = next(feed, None)
                if path is None:
                    del feeds[large]
                    break
                self.begin(path, large)

    def count_underway(self, large: bool) -> int:
        """Return how many files of a kind are being sent. As many again may stand still beside
        them, which holds no other up.
        """
        now = time.monotonic()
        moved = [each.moved for each in self.underway.values() if each.large == large]
        going = sum(now - at < STANDS_STILL for at in moved)
        return max(going, len(moved) - at_once(large))

    def queue_changes(self, only_new: bool = False) -> None:
        """Fill the queue with files that are to be sent, or only to be compared again."""
        self.manifest.clear_queue()
        for path, seen in self.changed():
            last = self.manifest.get(path)
            if not self.is_settled(path, last, seen):
                self.watch.keep(path)
            if only_new and (last or path in self.failing_since):
                continue
            is_same = bool(last and last.is_of(seen))
            if path in self.underway or (last and is_same and not self.is_doubtful(last, seen)):
                continue
            self.manifest.enqueue(path, seen.st_size >= LARGE_FROM, is_same, seen.st_mtime)

    def changed(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files that may not be in the bucket as they are, with their stat."""
        due = self.watch.due()
        if due is None:
            began = time.monotonic()
            self.refused = dict(self.rejected)
            self.watch.begin()
            yield from self.walk(self.watch.add).files()
            self.watch.looked(time.monotonic() - began)
            return
        for path in due:
            self.refused.pop(path, None)
        self.refused.update(self.rejected)
        yield from self.walk(self.watch.add).among(due)

    def is_settled(self, path: str, last: Entry | None, seen: os.stat_result) -> bool:
        """Return whether a file needs no look until the kernel says that it changed.

        It says nothing of one that is written under another name.
        """
        if last is None or path in self.links or seen.st_nlink > 1:
            return False
        return last.sure and last.is_of(seen) and path not in self.underway

    def is_doubtful(self, last: Entry, seen: os.stat_result) -> bool:
        """Return whether a file that looks as it was sent is to be compared with its object.

        Reading a file again and again would cost its writer time: the larger it is, the longer it
        must be quiet.
        """
        if last.sure:
            return False
        return self.finishing or time.time_ns() - seen.st_mtime_ns > 50 * seen.st_size

    def begin(self, path: str, large: bool) -> None:
        sending = self.underway[path] = Sending(path, self.manifest.get(path), large)
        threading.Thread(target=self.work, args=(sending,), name="mirror", daemon=True).start()

    def work(self, sending: Sending) -> None:
        try:
            sending.entry = self.sender.send(sending)
        except FileNotFoundError:
            pass  # deleted meanwhile
        except Exception as error:
            sending.error = error
        self.ready.put(sending)

    def wait_for_some(self, seconds: float) -> int:
        """Wait for files to be through, note what became of them; return how many were sent."""
        sent = 0
        with contextlib.suppress(queue.Empty):
            while True:
                sending: Sending = self.ready.get(timeout=seconds)
                seconds = 0
                if self.underway.get(sending.path) is sending:
                    self.note_end(sending)
                    sent += sending.wrote
        return sent

    def note_end(self, sending: Sending) -> None:
        """Remember what became of a file that is through."""
        del self.underway[sending.path]
        self.bytes_sent += sending.bytes
        if sending.wrote:
            self.wrote_at = time.monotonic()
        if sending.error:
            self.note_error(sending.path, sending.error)
            return
        self.failing_since.pop(sending.path, None)
        self.sender.taken.discard(sending.path)
        if sending.entry:
            self.manifest.put(sending.path, sending.entry)

    def note_error(self, path: str, error: Exception) -> None:
        """Remember why a file was not sent: refused for good, or failed for now."""
        why = str(error)
        if isinstance(error, Taken):
            self.sender.taken.add(path)
        if isinstance(error, PermissionError | Unreadable | Refused):
            self.refused[path] = getattr(error, "strerror", None) or why
            return
        now = time.monotonic()
        since = self.failing_since.setdefault(path, now)
        if now - since > self.timeout_of(api.status_of(error)):
            self.refused[path] = self.rejected[path] = f"the bucket refuses it: {why}"
        else:
            self.failed[path] = why

    def timeout_of(self, status: int) -> float:
        """Return after how many seconds of this answer a file is not tried again."""
        if status in HOPELESS:
            return 0
        is_refusal = 400 <= status < 500 and status != 412 and status not in api.RETRIED
        if is_refusal and self.finishing:
            return REFUSED_FOR
        return math.inf

    def give_up(self, which: Callable[[Sending], bool]) -> None:
        """Wait for some no more. What they write all the same is known as ours, and replaced by the
        next pass.
        """
        for path, sending in list(self.underway.items()):
            if which(sending):
                sending.given_up = True
                del self.underway[path]
                self.failed[path] = (
                    f"the bucket did not answer for {time.monotonic() - sending.moved:.0f} s"
                )

    def seconds_to_next_write(self) -> float:
        """Return after how many seconds Cloud Storage takes what was written last once more: before
        that the request would be refused, and tried again later than that.
        """
        return max(0.0, self.wrote_at + WRITE_INTERVAL - time.monotonic())

    def scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files of the folder with their stat."""
        return self.walk(lambda folder: None).files()

    def walk(self, on_folder: Callable[[str], None]) -> Walk:
        return Walk(
            self.folder,
            self.prefix,
            self.own,
            self.rejected,
            refused=self.refused,
            links=self.links,
            on_folder=on_folder,
        )

    def record(self, path: str) -> None:
        """Before the first file goes to a folder that nobody would guess: say that the job writes
        there.
        """
        folder = path.rpartition("/")[0]
        if not self.records or folder in self.folders or f"{folder}/".startswith(f"{self.own}/"):
            return
        digest = hashlib.sha256(folder.encode()).hexdigest()[:32]
        with contextlib.suppress(Changed):  # an earlier attempt did
            self.bucket.write(f"{self.records}{digest}", b"", 0, {"folder": folder})
        self.folders.add(folder)

    def restore(
        self, bring: bool = True, only_news: bool = False
    ) -> tuple[int, dict[str, Exception]]:
        """Bring the job's files, where they count as sent.

        That is all there is in its own folder, and what it wrote to others. Without `bring` the
        files are here already, and only what they are in the bucket is learnt. With `only_news` it
        is what others wrote since; what is not in the bucket as it is here stays. Return how many
        were brought, and those that can have no file here, with why. Raises BergError if it cannot
        be done.
        """
        brought = 0
        trouble: Exception | None = None
        for pause in RESTORE_PAUSES:
            try:
                if not bring:
                    self.learn()
                    return 0, {}
                new, left = self.bring(self.news() if only_news else self.listed())
                brought += new
                trouble = next(
                    (error for error in left.values() if not isinstance(error, fetch.NoPlace)), None
                )
                if not trouble:
                    return brought, left
            except Exception as error:
                trouble = error
            time.sleep(pause)
        raise BergError(
            f"its results could not be brought back, and stay in the bucket as they are: {trouble}"
        )

    def bring(self, listed: Iterator[Any]) -> tuple[int, dict[str, Exception]]:
        """Bring files once; return how many are new, and what was not brought."""
        new, _, left = fetch.fetch(
            self.bucket,
            self.prefix,
            self.folder,
            done=self.note_restored,
            listed=listed,
            with_repos=True,
        )
        return new, left

    def news(self) -> Iterator[Any]:
        """The job's objects that are to replace what is here of them, or are not here yet."""
        for blob in self.listed():
            path = blob.name[len(self.prefix) :]
            known = self.manifest.get(path)
            if known and known.generation == blob.generation:
                continue
            try:
                seen = (self.folder / path).stat()
            except OSError:
                yield blob
            else:
                if known and known.is_of(seen):
                    yield blob

    def note_restored(self, blob: Any) -> None:
        path = blob.name[len(self.prefix) :]
        with (self.folder / path).open("rb") as file:
            now = os.fstat(file.fileno())
            block = block_before(file, now.st_size) if now.st_size >= GROWS_FROM else ""
        self.manifest.put(path, Entry(*marks(now), blob.generation, blob.crc32c, block, True))
        if self.restored:
            with self.restored.open("a") as notes:
                notes.write(json.dumps([path, blob.size, blob.generation, blob.crc32c]) + "\n")

    def learn(self) -> None:
        """Know the job's objects by their generation; their files are compared with them before
        they are sent.
        """
        for blob in self.listed():
            if self.is_jobs(blob):
                self.manifest.put_known(
                    blob.name[len(self.prefix) :], blob.size, blob.generation, blob.crc32c
                )

    def listed(self) -> Iterator[Any]:
        """The job's objects."""
        yield from self.bucket.list(f"{self.prefix}{self.own}/", LISTED)
        if self.records:
            job_name = self.writer.rpartition("/")[0]
            folders = recorded_folders(self.bucket, self.records)
            self.folders.update(folders)
            yield from beside(self.bucket, self.prefix, self.own, folders, job_name)

    def is_jobs(self, blob: Any) -> bool:
        return writer_of(blob) == self.writer.rpartition("/")[0]

    def elsewhere(self, alone: bool) -> str:
        """In words, the folders beside its own that the job wrote to; other machines' are read off
        the bucket.
        """
        records = () if alone else self.bucket.list(self.records, "name,metadata")
        others = {folder for record in records if (folder := folder_of(record)) is not None}
        folders = sorted(self.folders | others)
        more = f" and {len(folders) - 3} more" if len(folders) > 3 else ""
        return ", ".join(shorten(f"{self.prefix}{folder}", 80) for folder in folders[:3]) + more

    def finish(self, progress: Callable[[str], None], seconds: float = math.inf) -> dict[str, str]:
        """Pass over the folder until every file is in the bucket byte for byte.

        Failures are retried, with growing pauses, for so many seconds; `progress` hears of each. A
        request that stalls holds nothing else up. What is written to all the time is kept as it is
        after some passes. Return the files that are not there, with why.
        """
        end = time.monotonic() + max(seconds, 2)
        has_time = seconds > 60
        self.begin_to_finish(has_time)
        pause, moving = 1.0, 0
        while True:
            sent = self.sync(min(60, max(0, end - time.monotonic())))
            late = dict.fromkeys(self.underway, "it is being sent")
            left = {**late, **self.failed}
            if time.monotonic() > end or not (sent or left):
                break
            moving += not left
            if moving > CALM_PASSES:
                time.sleep(MOVING_PAUSE)
            if moving > MOVING_PASSES:
                self.refused.update({path: MOVING for path, _ in self.left()})
                break
            if left and has_time:
                progress(name_left(left, " yet"))
            if self.failed:
                time.sleep(max(0, min(pause, end - time.monotonic())))
                pause = min(pause * 2, 30)
        self.delete_tails()
        return {**left, **self.refused}

    def begin_to_finish(self, has_time: bool) -> None:
        """Doubt what was not compared, and wait no more for what does not move."""
        if not self.finishing:
            self.finishing = True
            self.manifest.doubt_all()
            self.watch.end()
        self.patience = LAST_PATIENCE if has_time else HURRY
        self.give_up(
            lambda each: time.monotonic() - each.moved > 2 or self.inode_of(each.path) != each.inode
        )

    def delete_tails(self) -> None:
        with contextlib.suppress(Exception):
            self.bucket.delete(*[blob.name for blob in self.bucket.list(self.sender.tails, "name")])

    def left(self) -> list[tuple[str, int]]:
        """Files that are not in the bucket as they are, and how many bytes of each."""
        left = []
        for path, seen in self.scan():
            entry = self.manifest.get(path)
            if entry and entry.is_of(seen):
                continue
            through = 0
            if sending := self.underway.get(path):
                through = sending.through
            left.append((path, max(seen.st_size - through, 0)))
        return left

    def inode_of(self, path: str) -> int:
        with contextlib.suppress(OSError):
            return (self.folder / path).stat().st_ino
        return 0

    def run(self, interval: float, stop: threading.Event) -> None:
        """Pass over the folder every `interval` seconds until `stop`; failures wait for the next
        pass.
        """
        while not stop.wait(interval):
            self.sync(stop=stop.is_set)


def recorded_folders(bucket: Any, records: str, most: int | None = None) -> list[str]:
    """Return the folders that a job recorded beside its own, of the first `most` records."""
    listed = itertools.islice(bucket.list(records, "name,metadata"), most)
    folders = [folder for record in listed if (folder := folder_of(record)) is not None]
    return list(dict.fromkeys(folders))


def beside(
    bucket: Any, prefix: str, own: str, folders: Iterable[str], job_name: str
) -> Iterator[Any]:
    """Yield what a job wrote to other folders than its own, in those that it recorded."""

    def look(folder: str) -> list[Any]:
        return list(bucket.list(f"{prefix}{folder}/" if folder else prefix, LISTED, delimiter="/"))

    for listed in fetch.side_by_side(look, folders):
        for blob in listed:
            if writer_of(blob) == job_name and not blob.name.startswith(f"{prefix}{own}/"):
                yield blob


def folder_of(record: Any) -> str | None:
    """Return the folder that a record names, "" for the uppermost; None for what is no folder."""
    folder = (record.metadata or {}).get("folder")
    try:
        return folder and check_folder(folder)
    except BergError:
        return None


def writer_of(blob: Any) -> str:
    """The job that wrote an object; "" if none says so."""
    writer: str = (blob.metadata or {}).get(WRITER, "")
    return writer.rpartition("/")[0]


def at_once(large: bool) -> int:
    return LARGE_AT_ONCE if large else SMALL_AT_ONCE
