"""A folder mirrored to the bucket while programs write to it: which files are sent, and when.

A pass compares names, sizes and times with what was sent, and asks the bucket nothing about files
that did not change. It looks at what inotify reports (walk.Watch) and at what is not settled; the
first pass, those at the end and one every few minutes look at everything. Bytes that may have
changed without a sign are compared with their object's crc32c: of a file that grew once it is
quiet, and of all files at the end. Deleting a file never deletes its object. Not covered: empty
folders, permissions, and names that Cloud Storage cannot take, which are refused.
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
from berg.validation import check_folder

LISTED = "name,size,crc32c,generation,updated,metadata"
LARGE_FROM = 2 << 20  # bytes from which few files are sent at a time: each needs memory for a chunk
SMALL_AT_ONCE, LARGE_AT_ONCE = 8, 2
# Seconds without a byte after which a file is sent again: while the job runs, at its end, and
# where a lost machine leaves little time.
TIMEOUT, LAST_TIMEOUT, SHORT_TIMEOUT = 120.0, 60.0, 5.0
STANDS_STILL = 5  # seconds without a byte after which another file is sent in parallel
RESTORE_PAUSES = 1, 2, 4, 8, 0  # seconds after each try
HOPELESS = (400, 411, 413, 414, 422, 431)  # statuses that are the fault of one file
# Seconds until the end of a job believes a refusal: rights take minutes to count.
REFUSED_FOR = 900
WRITE_INTERVAL = 1.1  # seconds between two writes of an object; Cloud Storage takes one a second
# Passes at the end that find a change once all is sent, after which the object stays as it is.
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
    own: str = ""  # folder that all of the job's files are in, as far as it is known
    records: str = ""  # prefix of objects that name other folders that it wrote to; "": none
    # file that lists what was restored to this disk, for a worker after this one
    restored: Path | None = None
    manifest: Manifest = field(default_factory=Manifest)
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it is not mirrored
    failed: dict[str, str] = field(default_factory=dict)  # path -> why the last pass failed
    synced_until: str = ""
    bytes_sent: int = 0
    wrote_at: float = -math.inf  # time.monotonic() of the last write of an object
    timeout: float = TIMEOUT
    finishing: bool = False
    is_behind: bool = False  # the last pass had no time for some files
    underway: dict[str, Sending] = field(default_factory=dict)
    # SimpleQueue may wait for ever in Python 3.10
    ready: queue.Queue[Any] = field(default_factory=queue.Queue)
    folders: set[str] = field(default_factory=set)  # that are recorded
    links: set[str] = field(default_factory=set)  # paths that were sent as copies of their targets
    # Links to folders outside, which are mirrored, too. Each pass looks at all of them: inotify
    # reports no folder that is created in place of a deleted one.
    followed: set[str] = field(default_factory=set)
    rejected: dict[str, str] = field(default_factory=dict)  # path -> why it is not sent again
    failing_since: dict[str, float] = field(default_factory=dict)
    sender: Sender = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.folder)
        self.sender = Sender(self.folder, self.bucket, self.prefix, self.writer, self.record)
        self.recall()

    def recall(self) -> None:
        """Learn from the notes on the disk what was restored."""
        if self.restored and self.restored.exists():
            for line in self.restored.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the machine died while it wrote the line
                    self.manifest.put_known(*json.loads(line))

    def sync(
        self,
        seconds: float = math.inf,
        stop: Callable[[], bool] = lambda: False,
        only_new: bool = False,
    ) -> int:
        """Send what changed since the last pass, the newest first; return how many files were sent.

        With `only_new` only files that were never sent. Uploads that run after so many seconds, or
        when it is to stop, continue in the next pass. An error of the pass itself, such as a full
        disk, is a failure of the folder; the next pass does without the disk.
        """
        began, sent = job.now(), 0
        self.failed = {}
        begun_before = set(self.underway)  # which the pass ignores
        try:
            self.queue_changes(only_new)
            sent = self.send_queue(time.monotonic() + seconds, stop)
        except Exception as error:
            self.failed[self.own or "."] = f"{type(error).__name__}: {error}"
            self.watch.forget()
            if isinstance(error, sqlite3.Error):  # damaged; our objects still name their writer
                self.manifest = Manifest(":memory:")
                self.recall()
        is_whole = not (only_new or self.failed or self.underway)
        if is_whole and all(map(self.is_there, begun_before)):
            self.synced_until = began
        return sent

    def is_there(self, path: str) -> bool:
        """Return whether the bucket has a file as it is now, or the file is gone."""
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
            self.give_up(lambda each: time.monotonic() - each.moved > self.timeout)
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
        """Return how many files of a kind are being sent. As many again may stand still without
        delaying others.
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
        """Yield the files that may differ from their objects, with their stat."""
        due = self.watch.due()
        if due is None:
            began = time.monotonic()
            self.refused = dict(self.rejected)
            self.watch.begin()
            yield from self.walk(self.watch.add).files()
            self.watch.looked(time.monotonic() - began)
            return
        due |= self.followed
        for path in due:
            self.refused.pop(path, None)
        self.refused.update(self.rejected)
        yield from self.walk(self.watch.add).among(due)

    def is_settled(self, path: str, last: Entry | None, seen: os.stat_result) -> bool:
        """Return whether a file needs no look until inotify reports it.

        inotify does not report a file that is written under another name.
        """
        if last is None or path in self.links or seen.st_nlink > 1:
            return False
        return last.sure and last.is_of(seen) and path not in self.underway

    def is_doubtful(self, last: Entry, seen: os.stat_result) -> bool:
        """Return whether a file that looks as it was sent is to be compared with its object.

        Reading costs its writer time: the larger it is, the longer it must be quiet.
        """
        if last.sure:
            return False
        return self.finishing or time.time_ns() - seen.st_mtime_ns > 50 * seen.st_size

    def begin(self, path: str, large: bool) -> None:
        sending = self.underway[path] = Sending(path, self.manifest.get(path), large)

        def work() -> None:
            try:
                sending.entry = self.sender.send(sending)
            except FileNotFoundError:
                pass  # deleted meanwhile
            except Exception as error:
                sending.error = error
            self.ready.put(sending)

        threading.Thread(target=work, name="mirror", daemon=True).start()

    def wait_for_some(self, seconds: float) -> int:
        """Wait for uploads to end, and note their results; return how many files were sent."""
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
        """Wait for some uploads no more. An object that one writes later is known as ours, and the
        next pass replaces it.
        """
        for path, sending in list(self.underway.items()):
            if which(sending):
                sending.given_up = True
                del self.underway[path]
                self.failed[path] = (
                    f"the bucket did not answer for {time.monotonic() - sending.moved:.0f} s"
                )

    def seconds_to_next_write(self) -> float:
        """Return after how many seconds Cloud Storage takes the same object again: an earlier
        request would be refused, and retried later than that.
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
            followed=self.followed,
            on_folder=on_folder,
        )

    def record(self, path: str) -> None:
        """Record that the job writes to the folder of a file, unless it is below its own."""
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
        """Download the job's files: all of its own folder, and what it wrote to others.

        They count as sent. Without `bring` the files are here already, and only their objects are
        learnt. With `only_news` only what others wrote since; files that differ from their objects
        stay. Return how many were downloaded, and why others can have no file here. Raises
        BergError if that fails.
        """
        copied = 0
        trouble: Exception | None = None
        for pause in RESTORE_PAUSES:
            try:
                if not bring:
                    self.learn()
                    return 0, {}
                new, left = self.bring(self.news() if only_news else self.listed())
                copied += new
                trouble = next(
                    (error for error in left.values() if not isinstance(error, fetch.NoPlace)), None
                )
                if not trouble:
                    return copied, left
            except Exception as error:
                trouble = error
            time.sleep(pause)
        raise BergError(
            f"its results could not be restored, and stay in the bucket as they are: {trouble}"
        )

    def bring(self, listed: Iterator[Any]) -> tuple[int, dict[str, Exception]]:
        """Download files once; return how many are new, and why others were not downloaded."""
        new, _, left = fetch.fetch(
            self.bucket,
            self.prefix,
            self.folder,
            done=self.note_restored,
            listed=listed,
            on_machine=True,
        )
        return new, left

    def news(self) -> Iterator[Any]:
        """Yield the job's objects that are to replace their files, or have none yet."""
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
        """Learn the job's objects; their files are compared with them before they are sent."""
        for blob in self.listed():
            if writer_of(blob) == self.job_name:
                path = blob.name[len(self.prefix) :]
                self.manifest.put_known(path, blob.size, blob.generation, blob.crc32c)

    def listed(self) -> Iterator[Any]:
        """Yield the job's objects."""
        yield from self.bucket.list(f"{self.prefix}{self.own}/", LISTED)
        if self.records:
            folders = recorded_folders(self.bucket, self.records)
            self.folders.update(folders)
            yield from in_other_folders(self.bucket, self.prefix, self.own, folders, self.job_name)

    @property
    def job_name(self) -> str:
        return self.writer.rpartition("/")[0]

    def elsewhere(self, alone: bool) -> str:
        """Return the other folders that the job wrote to, in words. Unless it is `alone` the bucket
        knows those of its other machines.
        """
        others = [] if alone else recorded_folders(self.bucket, self.records)
        folders = sorted(self.folders.union(others))
        more = f" and {len(folders) - 3} more" if len(folders) > 3 else ""
        return ", ".join(shorten(f"{self.prefix}{folder}", 80) for folder in folders[:3]) + more

    def finish(self, progress: Callable[[str], None], seconds: float = math.inf) -> dict[str, str]:
        """Pass over the folder until the bucket has every file byte for byte.

        Failures are retried, with growing pauses, for so many seconds; `progress` hears of each. A
        request that stalls delays no other. What is written all the time is kept as it is after
        some passes. Return the files that are not in the bucket, with why.
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
        with contextlib.suppress(Exception):
            self.bucket.delete(*[blob.name for blob in self.bucket.list(self.sender.tails, "name")])
        return {**left, **self.refused}

    def begin_to_finish(self, has_time: bool) -> None:
        """Doubt what was not compared, and give up uploads that do not move."""
        if not self.finishing:
            self.finishing = True
            self.manifest.doubt_all()
            self.watch.end()
        self.timeout = LAST_TIMEOUT if has_time else SHORT_TIMEOUT

        def is_stuck(sending: Sending) -> bool:
            inode = 0
            with contextlib.suppress(OSError):
                inode = (self.folder / sending.path).stat().st_ino
            return time.monotonic() - sending.moved > 2 or inode != sending.inode

        self.give_up(is_stuck)

    def left(self) -> list[tuple[str, int]]:
        """Return the files that differ from their objects, and how many bytes of each are left."""
        left = []
        for path, seen in self.scan():
            entry = self.manifest.get(path)
            if entry and entry.is_of(seen):
                continue
            sending = self.underway.get(path)
            left.append((path, max(seen.st_size - (sending.through if sending else 0), 0)))
        return left

    def run(self, interval: float, stop: threading.Event) -> None:
        """Pass over the folder every `interval` seconds until `stop`."""
        while not stop.wait(interval):
            self.sync(stop=stop.is_set)


def recorded_folders(bucket: Any, records: str, most: int | None = None) -> list[str]:
    """Return the other folders that a job recorded, of the first `most` records."""
    folders: dict[str, None] = {}
    for record in itertools.islice(bucket.list(records, "name,metadata"), most):
        folder = (record.metadata or {}).get("folder")
        with contextlib.suppress(BergError):  # a damaged record
            if folder is not None:
                folders[check_folder(folder) if folder else ""] = None
    return list(folders)


def in_other_folders(
    bucket: Any, prefix: str, own: str, folders: Iterable[str], job_name: str
) -> Iterator[Any]:
    """Yield what a job wrote to other folders than its own, in those that it recorded."""

    def look(folder: str) -> list[Any]:
        return list(bucket.list(f"{prefix}{folder}/" if folder else prefix, LISTED, delimiter="/"))

    for listed in fetch.side_by_side(look, folders):
        for blob in listed:
            if writer_of(blob) == job_name and not blob.name.startswith(f"{prefix}{own}/"):
                yield blob


def writer_of(blob: Any) -> str:
    """Return the job that wrote an object; "" if its metadata names none."""
    writer: str = (blob.metadata or {}).get(WRITER, "")
    return writer.rpartition("/")[0]


def at_once(large: bool) -> int:
    return LARGE_AT_ONCE if large else SMALL_AT_ONCE
