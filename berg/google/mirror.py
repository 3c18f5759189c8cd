"""A folder mirrored to the bucket while programs write to it: which files are sent, and when.

A pass compares names, sizes and times with what was sent, and asks the bucket nothing about files
that did not change. It looks at what inotify reports (walk.Watch) and at what is not settled; the
first pass, those at the end and one every few minutes look at everything. Bytes that may have
changed without a sign are compared with their object's crc32c: of a file that grew once it is
quiet, and of all files at the end. What was changed first is sent first, and after each pass a view
says as of which moment the bucket has the folder (journal.py). Not covered: empty folders, owners,
and names that Cloud Storage cannot take, which are refused.
"""

import contextlib
import errno
import hashlib
import itertools
import math
import os
import queue
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.google import api, fetch, views
from berg.google.journal import Journal, Restore
from berg.google.sending import (
    COPIED_FROM,
    LISTED,
    MOVING_AFTER,
    TAILS,
    Entry,
    Grows,
    Manifest,
    Refused,
    Sender,
    Sending,
    Taken,
    Torn,
    has_whole,
    is_written,
    marks,
    open_file,
    writer_of,
)
from berg.google.storage import Changed, Listed, Unreadable
from berg.google.views import Row
from berg.google.walk import Walk, Watch, name_left, shorten
from berg.validation import LARGEST, check_folder

LARGE_FROM = 2 << 20  # bytes from which few files are sent at a time: each needs memory for a chunk
SMALL_AT_ONCE, LARGE_AT_ONCE = 8, 2
# Seconds without a byte after which a file is sent again: while the job runs, at its end, and
# where a lost machine leaves little time.
TIMEOUT, LAST_TIMEOUT, SHORT_TIMEOUT = 120.0, 60.0, 5.0
VIEW_SECONDS = 1  # of the time at the end, for the view
STANDS_STILL = 5  # seconds without a byte after which another file is sent in parallel
RESTORE_PAUSES = 1, 2, 4, 8, 0  # seconds after each try
HOPELESS = (400, 411, 413, 414, 422, 431)  # statuses that are the fault of one file
# Seconds until the end of a job believes a refusal: rights take minutes to count.
REFUSED_FOR = 900
CLOCK_NS = 10**7  # by which the times of files may be behind the clock
WRITE_INTERVAL = 1.1  # seconds between two writes of an object; Cloud Storage takes one a second
# Passes at the end that find a change once all is sent, after which the object stays as it is.
# From the third on there is a second between them.
MOVING_PASSES, CALM_PASSES, MOVING_PAUSE = 20, 3, 1
RESTS = 15  # seconds between two versions of a file in which each machine looks at it
KEPT, HALF = "the version before", "a partial copy, which is not restored"
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
    views: str = ""  # prefix of the views of this disk; "": none are published
    machine: str = ""  # name, in its views
    manifest: Manifest = field(default_factory=Manifest)
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it is not mirrored
    failed: dict[str, str] = field(default_factory=dict)  # path -> why the last pass failed
    bytes_sent: int = 0
    wrote_at: float = -math.inf  # time.monotonic() of the last write of an object
    timeout: float = TIMEOUT
    finishing: bool = False
    at_rest: bool = False  # the command has ended, and no other began
    is_behind: bool = False  # the last pass had no time for some files
    looked_ns: int = 0  # moment of the last look at the folder
    underway: dict[str, Sending] = field(default_factory=dict)
    # SimpleQueue may wait for ever in Python 3.10
    ready: queue.Queue[Any] = field(default_factory=queue.Queue)
    folders: set[str] = field(default_factory=set)  # that are recorded
    # Links to folders outside, which are mirrored, too. Each pass looks at all of them: inotify
    # reports no folder that is created in place of a deleted one.
    followed: set[str] = field(default_factory=set)
    moving: set[str] = field(default_factory=set)  # paths that are written all the time
    were_moving: set[str] = field(default_factory=set)  # the same, while the command ran
    # Path of a file whose program was ended while it wrote it -> what the bucket has of it.
    cut: dict[str, str] = field(default_factory=dict)
    writing_since: dict[str, float] = field(default_factory=dict)  # path -> time.monotonic()
    missed_since: dict[str, float] = field(default_factory=dict)  # the same, of missed versions
    passing_since: dict[str, float] = field(default_factory=dict)  # of names in a folder
    due: set[str] | None = None  # paths of the last look; None: everything
    last_walk: Walk = field(init=False)
    knows_bucket: bool = False  # what it has of the job was restored or learnt
    is_halfway: bool = False  # in a restore, so that what is missing here was not deleted
    rejected: dict[str, str] = field(default_factory=dict)  # path -> why it is not sent again
    failing_since: dict[str, float] = field(default_factory=dict)
    sender: Sender = field(init=False)
    journal: Journal = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.folder)
        self.journal = Journal(
            self.bucket, self.prefix, self.views, self.machine, self.writer, self.manifest
        )
        self.sender = Sender(
            self.folder,
            self.bucket,
            self.prefix,
            self.writer,
            self.record,
            bool(self.views),
            lambda: not self.journal.is_shared,
        )

    @property
    def synced_until(self) -> str:
        """The moment as of which the bucket has the folders of all machines; "": there is none."""
        journal = self.journal
        at_ns = journal.safe_ns if journal.is_shared else journal.at_ns
        return job.timestamp(at_ns / 1e9) if at_ns else ""

    def sync(
        self,
        seconds: float = math.inf,
        stop: Callable[[], bool] = lambda: False,
        only_new: bool = False,
    ) -> int:
        """Send what changed since the last pass, the oldest first, and publish a view; return how
        many files were sent.

        With `only_new` only files that were never sent, and no view. Uploads that run after so many
        seconds, or when it is to stop, continue in the next pass. An error of the pass itself, such
        as a full disk, is a failure of the folder; the next pass does without the disk.
        """
        sent = 0
        self.failed = {}
        if self.is_halfway:
            return 0
        try:
            self.queue_changes(only_new)
            sent = self.send_queue(time.monotonic() + seconds, stop)
            if not only_new:
                self.journal.publish(self.looked_ns, at_rest=self.at_rest)
                self.failed.update(self.journal.settle())
        except Exception as error:
            self.failed[self.own or "."] = f"{type(error).__name__}: {error}"
            self.watch.forget()
            if isinstance(error, sqlite3.Error):  # damaged; our objects still name their writer
                self.take_over(Manifest(":memory:"))
                with contextlib.suppress(Exception):
                    self.learn()
        return sent

    def take_over(self, manifest: Manifest) -> None:
        """Continue with the manifest of another job's mirror on this disk."""
        self.manifest = manifest
        self.journal = replace(self.journal, manifest=manifest)

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
        late = [path for feed in feeds.values() for path, _ in feed]
        self.failed.update(dict.fromkeys(late, "there was no time for it"))
        self.is_behind = bool(late)
        return sent

    def begin_as_many_as_may(self, feeds: dict[bool, Iterator[tuple[str, int]]]) -> None:
        """Begin files of each feed, large or small, up to its limit; drop feeds that are empty."""
        for large, feed in list(feeds.items()):
            for _ in range(at_once(large) - self.count_underway(large)):
                found = next(feed, None)
                if found is None:
                    del feeds[large]
                    break
                self.begin(*found, large)

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
        self.manifest.database.execute("DELETE FROM queue")
        before_ns, self.looked_ns = self.looked_ns, time.time_ns() - CLOCK_NS
        found = set[str]()  # of what was reported
        for path, seen in self.changed():
            if path in self.watch.closed:
                self.journal.publish_growth(path)
            if path in self.watch.reported:
                found.add(path)
            if stat.S_ISLNK(seen.st_mode):
                self.note_link(path, seen, before_ns)
            else:
                self.queue_file(path, seen, before_ns, only_new)
        known = self.journal.paths() if self.due is None else set[str]()
        for each in self.due or ():
            known |= self.journal.paths(each)
        missing = self.watch.reported - self.watch.renamed - known - found
        self.note_passing(missing, before_ns)
        self.note_removed(known, before_ns)

    def queue_file(self, path: str, seen: os.stat_result, before_ns: int, only_new: bool) -> None:
        last = self.manifest.get(path)
        if not self.is_settled(path, last, seen):
            self.watch.keep(path)
        is_same = bool(last and last.is_of(seen))
        changed_ns = 0 if is_same else self.note_version(path, seen, before_ns)
        if only_new and (last or path in self.failing_since):
            return
        if path in self.underway or (last and is_same and not self.is_doubtful(last, seen)):
            return
        self.manifest.enqueue(path, seen.st_size >= LARGE_FROM, is_same, changed_ns)

    def note_version(self, path: str, seen: os.stat_result, before_ns: int) -> int:
        """Note that a path has a new version, and return since when it has.

        Where it may have had others since the last look, they are missed since then. A file in a
        folder that was renamed got its name with it.
        """
        if path in self.watch.removed:  # another one had its name
            self.note_removal(path, before_ns)
        closed, is_moved = self.watch.closed.get(path, 0), self.watch.is_moved(path)
        is_known = closed == 1 and not is_moved and self.is_known(path, seen, before_ns)
        since_ns = seen.st_ctime_ns if is_known else before_ns + 1
        is_closed = bool(closed) or is_moved or not self.is_first(path, seen)
        self.journal.note(path, since_ns, is_closed)
        if is_known and self.watch.renamed:  # it may have been complete under another name
            self.journal.gaps.add((max(seen.st_mtime_ns, before_ns + 1), seen.st_ctime_ns))
        if is_moved or seen.st_ctime_ns <= before_ns:
            return self.looked_ns
        return seen.st_ctime_ns if closed else self.named_ns(path, seen, before_ns)

    def is_known(self, path: str, seen: os.stat_result, before_ns: int) -> bool:
        """Return whether a file that was closed once since the last look had the version before
        until its last change. Not one that was rewritten in place: it was half written for some
        time.
        """
        if not before_ns < seen.st_ctime_ns <= self.looked_ns:
            return False  # it may have been changed twice
        row, last = self.journal.get(path), self.manifest.get(path)
        is_in_place = last is not None and last.inode in (0, seen.st_ino)
        return not is_in_place or row is None or row.grows or row.gone

    def is_first(self, path: str, seen: os.stat_result) -> bool:
        """Return whether a program is still writing the first version since the last look; where
        that is not known, there may have been another.
        """
        if path.rpartition("/")[0] in self.watch.fresh or not self.views:
            return False
        with contextlib.suppress(OSError), open_file(self.folder / path) as file:
            return is_written(file, seen) and marks(os.fstat(file.fileno())) == marks(seen)
        return False

    def named_ns(self, path: str, seen: os.stat_result, before_ns: int) -> int:
        """Return when a file that nothing reported changed at the latest: a new folder above may
        have got its name after it.
        """
        found, folder = seen.st_ctime_ns, (self.folder / path).parent
        with contextlib.suppress(OSError):
            while folder != self.folder and folder.stat().st_ctime_ns > before_ns:
                found, folder = max(found, folder.stat().st_ctime_ns), folder.parent
        return found

    def note_link(self, path: str, seen: os.stat_result, before_ns: int) -> None:
        """Enter a link into the next view, if it is new or leads to another place."""
        with contextlib.suppress(OSError):
            target = self.last_walk.target(path)
            last = self.journal.get(path)
            mtime_ns = min(max(seen.st_mtime_ns, 0), LARGEST)
            is_same = last and (last.link, last.mtime_ns, last.gone) == (target, mtime_ns, False)
            if target and not is_same:
                changed_ns = self.note_version(path, seen, before_ns)
                self.journal.put(Row(path, changed_ns, mtime_ns=mtime_ns, link=target))

    def note_removed(self, paths: Iterable[str], since_ns: int) -> None:
        """Enter into the next view which paths are gone, unless the folder or its disk fails."""
        if self.own and not (self.folder / self.own).is_dir():
            return
        for path in paths:
            try:
                mode = (self.folder / path).lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                mode = 0
            except OSError as error:
                if error.errno != errno.ELOOP:  # a folder became a link to itself
                    return
                mode = 0
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                self.note_removal(path, since_ns)

    def note_removal(self, path: str, since_ns: int) -> None:
        """Enter that a path is gone: after a moment, and since one of the folders above changed
        last.
        """
        changed_ns = self.changed_above(path, since_ns)
        self.journal.remove(path, since_ns + 1, changed_ns)
        if changed_ns > self.looked_ns:
            self.watch.keep(path)

    def note_passing(self, paths: Iterable[str], since_ns: int) -> None:
        """Enter that names came and went since the last look: no view is of a moment at which one
        of them may have been there. Where they do for long, they hold T back no more.
        """
        now = time.monotonic()
        passing = [path for path in paths if not (self.folder / path).is_dir()]
        folders = {path.rpartition("/")[0]: path for path in passing}
        self.passing_since = {each: self.passing_since.get(each, now) for each in folders}
        for folder, path in folders.items():
            if now - self.passing_since[folder] < MOVING_AFTER:
                self.journal.gaps.add((since_ns + 1, self.changed_above(path, since_ns)))

    def changed_above(self, path: str, since_ns: int) -> int:
        """Return when one of the folders above a path changed last, from a moment until now."""
        changed_ns = since_ns
        for folder in (self.folder / path).parents:
            with contextlib.suppress(OSError):
                changed_ns = max(changed_ns, folder.stat().st_mtime_ns)
            if folder == self.folder:
                break
        return min(changed_ns, time.time_ns())

    def changed(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files and links that may differ from their objects, with their stat."""
        due = self.watch.due()
        self.due = None if self.finishing else due
        if self.due is None:
            began = time.monotonic()
            self.refused = dict(self.rejected)
            if not self.finishing:
                self.watch.begin()
            self.last_walk = self.walk(self.watch.add)
            yield from self.last_walk.files()
            self.watch.looked(time.monotonic() - began)
            return
        self.due |= self.followed
        for path in self.due:
            self.refused.pop(path, None)
        self.refused.update(self.rejected)
        self.last_walk = self.walk(self.watch.add)
        yield from self.last_walk.among(self.due)

    def is_settled(self, path: str, last: Entry | None, seen: os.stat_result) -> bool:
        """Return whether a file needs no look until inotify reports it.

        inotify does not report a file that is written under another name.
        """
        if last is None or seen.st_nlink > 1 or not self.is_entered(last):
            return False
        return last.sure and last.is_of(seen) and path not in self.underway

    def is_entered(self, last: Entry) -> bool:
        """Return whether the next view has a file, if there are views."""
        return last.in_view or not self.views

    def is_doubtful(self, last: Entry, seen: os.stat_result) -> bool:
        """Return whether a file that looks as it was sent is to be compared with its object.

        Reading costs its writer time: the larger it is, the longer it must be quiet.
        """
        if not self.is_entered(last):
            return True
        if last.sure:
            return False
        return self.finishing or time.time_ns() - seen.st_mtime_ns > 50 * seen.st_size

    def begin(self, path: str, changed_ns: int, large: bool) -> None:
        last = self.manifest.get(path)
        sending = self.underway[path] = Sending(path, last, large, changed_ns=changed_ns)
        if self.views:
            sending.viewed = self.journal.get(path)
            sending.is_moving = path in self.moving
            was_moving = sending.viewed is not None and sending.viewed.moving
            sending.was_moving = was_moving or path in self.moving | self.were_moving
            if last is None:
                sending.twin = self.twin(path)

        def work() -> None:
            try:
                sending.entry = self.sender.send(sending)
            except FileNotFoundError:
                pass  # deleted meanwhile, or no file any more
            except Exception as error:
                sending.error = error
            self.ready.put(sending)

        threading.Thread(target=work, name="mirror", daemon=True).start()

    def twin(self, path: str) -> Listed | None:
        """Return the object of a file that was renamed to this path."""
        with contextlib.suppress(OSError):
            seen = (self.folder / path).lstat()
            found = self.manifest.twin(seen) if seen.st_size >= COPIED_FROM else None
            if found:
                name, entry = found
                return Listed(self.prefix + name, entry.size, entry.crc32c, entry.generation)
        return None

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
        if isinstance(sending.error, Grows):
            self.note_growth(sending)
            return
        self.bytes_sent += sending.bytes
        if sending.wrote:
            self.wrote_at = time.monotonic()
        if sending.error:
            self.note_error(sending.path, sending.error)
            return
        self.failing_since.pop(sending.path, None)
        self.sender.taken.discard(sending.path)
        if sending.is_open:
            self.note_open(sending)
        elif sending.entry:
            self.note_sent(sending, sending.entry)
        else:
            self.watch.keep(sending.path)  # it is gone, or no file any more

    def note_growth(self, sending: Sending) -> None:
        """Let the next view say that a file grows; then it is sent."""
        self.journal.note_open(sending.path)
        self.journal.publish_growth(sending.path, begins=True)
        self.watch.keep(sending.path)
        sending.wrote = True  # the next pass has something to do

    def note_open(self, sending: Sending) -> None:
        """Note that a file is being written: it is sent once it is closed."""
        path = sending.path
        self.watch.keep(path)
        if sending.is_cut:
            self.note_cut(path, KEPT if has_whole(sending.viewed) else "no version of it")
            return
        if self.finishing:  # that was before the command ended
            sending.wrote = True  # the next pass has something to do
            return
        if not has_whole(sending.viewed):
            self.journal.note_open(path)
        if sending.is_moving:
            self.journal.pass_over(path)
        self.note_moving(path)

    def note_cut(self, path: str, has: str) -> None:
        """Note what the bucket has of a file whose program was ended while it wrote it. T stays
        before that; where another attempt began on this disk, for at most a minute.
        """
        self.cut[path] = has
        since = self.writing_since.setdefault(path, time.monotonic())
        if not self.finishing and time.monotonic() - since > MOVING_AFTER:
            self.journal.pass_over(path)

    def note_moving(self, path: str) -> None:
        """Let a file that cannot be sent whole for long hold T back no more."""
        since = self.writing_since.setdefault(path, time.monotonic())
        if self.finishing or time.monotonic() - since > MOVING_AFTER:
            self.moving.add(path)
            self.journal.pass_over(path)

    def note_sent(self, sending: Sending, entry: Entry) -> None:
        path = sending.path
        self.manifest.put(path, entry)
        if not sending.is_moving:
            self.writing_since.pop(path, None)
            self.moving.discard(path)
        self.note_row(sending)
        self.cut.pop(path, None)  # it was closed after all, or written again
        if sending.is_half:
            self.cut[path] = HALF
        self.note_later(path, entry, sending.changed_ns)

    def note_row(self, sending: Sending) -> None:
        """Enter what was sent into the next view."""
        path = sending.path
        before = self.journal.get(path)
        row = sending.row if self.views and sending.row != before else None
        is_longer = row is not None and row.only_grew_since(before)
        if row is None or row.moving or is_longer:
            self.journal.pass_over(path)
        if row and before and is_longer:
            self.journal.change(before, size=row.size, crc32c=row.crc32c, mtime_ns=row.mtime_ns)
            if not sending.grows:
                self.journal.publish_growth(path)
        elif row:
            self.note_missed(row, before)
            self.journal.put(row)

    def note_missed(self, row: Row, viewed: Row | None) -> None:
        """Let a file of which versions are missed in every pass, for long, hold T back no more:
        several machines would find no moment that they have in common.
        """
        missed_ns = self.journal.unsent_since(row.path)
        is_complete = missed_ns in (0, row.changed_ns)
        if viewed is None or is_complete or missed_ns - viewed.changed_ns > RESTS * 10**9:
            self.missed_since.pop(row.path, None)
        elif self.journal.is_shared:
            since = self.missed_since.setdefault(row.path, time.monotonic())
            if time.monotonic() - since > MOVING_AFTER:
                self.moving.add(row.path)

    def note_later(self, path: str, entry: Entry, changed_ns: int) -> None:
        """Note if a file has another version already than the one that was sent, or is gone."""
        try:
            is_same = entry.is_of((self.folder / path).lstat())
        except OSError:
            self.note_removed({path}, changed_ns)
            return
        if not is_same:
            self.journal.note(path, changed_ns + 1, True)
            self.watch.keep(path)

    def note_error(self, path: str, error: Exception) -> None:
        """Remember why a file was not sent: refused for good, or failed for now."""
        why = str(error)
        if isinstance(error, Torn):
            self.note_moving(path)
        if isinstance(error, Taken):
            self.sender.taken.add(path)
        if isinstance(error, PermissionError | Unreadable | Refused):
            self.refused[path] = getattr(error, "strerror", None) or why
            self.journal.pass_over(path)
            return
        now = time.monotonic()
        since = self.failing_since.setdefault(path, now)
        if now - since > self.timeout_of(api.status_of(error)):
            self.refused[path] = self.rejected[path] = f"the bucket refuses it: {why}"
            self.journal.pass_over(path)
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
        self,
        bring: bool = True,
        begins_with: str = "",
        fresh: bool = False,
        publish: bool = True,
        undo: bool = False,
    ) -> tuple[int, dict[str, Exception]]:
        """Bring the job's folders to its last view, or that of the job that it `begins_with`.

        Without a view all files that the bucket has in its folder count, and none if it begins
        `fresh`. Without `bring` the files are here already, and their objects are learnt: before a
        command runs again, `undo` what it wrote in a save in which it was ended.
        A machine that restores again with the others does not `publish` what it restored: its view
        would hold back the moment that they bring.
        Return how many files were downloaded, and why others can have none here. Raises BergError
        if that fails.
        """
        copied = 0
        trouble: Exception | None = None
        self.at_rest = False
        self.cut.clear()
        self.is_halfway = bring
        (self.folder / self.own).mkdir(parents=True, exist_ok=True)
        for pause in RESTORE_PAUSES:
            try:
                if bring:
                    new, left = Restore(self, begins_with, fresh, publish).run()
                    self.watch_restored()
                    self.knows_bucket = True
                else:
                    self.learn()
                    new, left = Restore(self).undo_save() if undo else (0, {})
                copied += new
                trouble = next(
                    (error for error in left.values() if not isinstance(error, fetch.NoPlace)), None
                )
                if not trouble:
                    self.is_halfway = False
                    return copied, left
            except Exception as error:
                trouble = error
            time.sleep(pause)
        raise BergError(
            f"its results could not be restored, and stay in the bucket as they are: {trouble}"
        )

    def watch_restored(self) -> None:
        """Watch the folder from now on: what the restore did is no change of the job's. The next
        pass looks at everything.
        """
        self.watch.forget()
        for _ in self.changed():
            pass
        self.watch.next_look = 0

    def learn(self) -> None:
        """Learn the job's objects, and the views that a worker before this one published; files
        are compared with them before they are sent.
        """
        for blob in self.listed():
            if writer_of(blob) == self.job_name:
                self.manifest.put_known(blob.name[len(self.prefix) :], blob, True)
        histories = views.of_job(self.bucket, self.job_name) if self.views else []
        for history in histories:
            if self.writer == f"{self.job_name}/{history.disk}":
                self.journal.recall(history)
                self.looked_ns = self.journal.at_ns
                if self.journal.head.rests and (view := views.at(histories)):
                    self.journal.stir(view.at_ns)
        self.knows_bucket = True

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
        some passes. Return the files that are not in the bucket, with why. Where a restore failed,
        the bucket keeps what it has, and there are none.
        """
        if self.is_halfway:
            return {}
        end = time.monotonic() + max(seconds, 2) - VIEW_SECONDS
        has_time = seconds > 60
        self.begin_to_finish(has_time)
        left = self.pass_until(end, progress if has_time else lambda text: None)
        left = self.different(left)
        if not left and self.lags:
            left = {self.own or ".": "its last changes are in the bucket, and in no view"}
        self.watch.end()
        self.delete_below(self.sender.tails)
        return {**left, **self.refused}

    @property
    def lags(self) -> bool:
        """Whether another pass may bring the last view to a later moment."""
        return self.journal.lags() and not self.ends_in_a_save

    @property
    def ends_in_a_save(self) -> bool:
        """Whether the last view stays at a moment before something that was sent, here or by other
        machines: a program was rewriting a file when it was ended.
        """
        journal = self.journal
        is_held = not journal.head.rests if journal.is_shared else journal.lags()
        return is_held and any(has != HALF for has in self.cut.values())

    def different(self, left: dict[str, str]) -> dict[str, str]:
        """Return those files that are not as they were sent: of the others only a comparison is
        left.
        """
        return {path: why for path, why in left.items() if self.differs(path)}

    def differs(self, path: str) -> bool:
        """Return whether a file is not as it was sent."""
        entry = self.manifest.get(path)
        with contextlib.suppress(OSError):
            return not (entry and entry.is_of((self.folder / path).lstat()))
        return True

    def pass_until(self, end: float, progress: Callable[[str], None]) -> dict[str, str]:
        """Pass over the folder until all is there, or until `end`; return what is left, and why."""
        pause, moving = 1.0, 0
        while True:
            # A pass ends with a view: where time is short, there are many.
            sent = self.sync(min(self.timeout, max(0, end - time.monotonic())))
            left = {**dict.fromkeys(self.underway, "it is being sent"), **self.failed}
            is_done = not (sent or left or self.lags)
            if time.monotonic() > end or is_done:
                return left
            moving += not left
            if moving > MOVING_PASSES:
                self.refused.update({path: MOVING for path, _ in self.left()})
                return left
            if moving > CALM_PASSES:
                time.sleep(MOVING_PAUSE)
            if named := self.different(left):
                progress(name_left(named, " yet"))
            if self.failed:
                time.sleep(max(0, min(pause, end - time.monotonic())))
                pause = min(pause * 2, 30)

    def conclude(self, left: dict[str, str]) -> dict[str, str]:
        """Publish the last view of a job that has ended, make the plain objects what it says, and
        delete staged ones, those of earlier disks if this is the only machine. Return what failed.

        Of one that ended in a save the last view stays: a job that continues it begins with the
        moment before. Do nothing if more is left than the bucket cannot take.
        """
        if self.is_halfway or not left.keys() <= self.refused.keys():
            return {}
        try:
            if self.ends_in_a_save:
                self.journal.write(self.journal.at_ns, self.journal.is_full_due(), cut=True)
                return {}
            self.journal.publish(self.looked_ns, is_final=True)
            failed = self.journal.settle(everything=True)
        except Exception as error:
            return {self.own or ".": f"{type(error).__name__}: {error}"}
        if not failed:
            is_alone = not self.journal.is_shared
            self.delete_below(f"{TAILS}{self.job_name}/" if is_alone else self.sender.staged)
        return failed

    def delete_below(self, prefix: str) -> None:
        """Delete the objects below a prefix, unless the bucket refuses it."""
        with contextlib.suppress(Exception):
            self.bucket.delete(*[blob.name for blob in self.bucket.list(prefix, "name")])

    def rest(self) -> None:
        """Note that the command has ended: the next view has all that it wrote, and says that
        nothing comes after it until the next restore.
        """
        if self.views:
            time.sleep(2 * CLOCK_NS / 1e9)  # what it wrote last is before the next look, too
        self.at_rest = True

    def begin_to_finish(self, has_time: bool) -> None:
        """Doubt what was not compared, and give up uploads that do not move."""
        if not self.finishing:
            self.folder.mkdir(parents=True, exist_ok=True)  # a worker may end before it restores
            self.finishing = self.sender.finishing = True
            self.rest()
            if self.views and not self.knows_bucket:  # a worker that comes after one that died
                with contextlib.suppress(Exception):
                    self.learn()
            self.were_moving, self.moving = self.moving, set()
            self.manifest.passes += 1  # the bytes of every file are compared once more
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
            is_same = entry and entry.is_of(seen)
            if stat.S_ISLNK(seen.st_mode) or is_same or path in self.cut:
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


def at_once(large: bool) -> int:
    return LARGE_AT_ONCE if large else SMALL_AT_ONCE
