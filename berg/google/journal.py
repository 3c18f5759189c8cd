"""What the bucket has of a mirrored folder, from moment to moment, published as views (views.py),
and how a view is restored.

The bucket has the folder as it was at T: of every file the version that was the last one then. T
may not be in a gap, from when a version was complete until a later one is in the bucket. So a file
that is not sent yet holds T back, and what was changed before it does not wait.

A version that a published view needs is kept while a restore may still ask for it: new ones wait in
staged objects, or in the view itself, until T has passed on all machines.
"""

import base64
import contextlib
import json
import math
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from berg import validation
from berg.google import api, fetch, views
from berg.google.sending import (
    GROWS_FROM,
    LISTED,
    RECORD,
    TAKEN,
    WRITER,
    Entry,
    Manifest,
    ends_of,
    marks,
    writer_of,
)
from berg.google.storage import Changed, Listed
from berg.google.views import (
    CLOCKS_NS,
    FOREVER,
    Head,
    History,
    Row,
    View,
    before_gaps,
    encode,
    line,
    newest_moment,
)

GRACE = 3600  # seconds for which the bucket keeps what the job deleted
MOST_VIEWS = 500  # after a full one: a reader has to read all of them
MOST_GAPS = 40  # in a view: records of machines have little room for them
IDLE = 20  # seconds between views of one of several machines while nothing changes
PLAIN = 60  # seconds between writes of a small plain object whose bytes are in the views
AT_ONCE = 8  # staged objects that are moved at a time


@dataclass
class Journal:
    """The rows of a disk's views, in the database of its manifest."""

    bucket: Any
    prefix: str  # of the plain objects' names
    views: str  # prefix of its views' names; "": none are published
    machine: str
    writer: str  # JOB/DISK
    manifest: Manifest
    is_shared: bool = False  # other machines of the job have views, too
    keeps_deleted: bool = False
    # What the last views of the other machines say, [] before that is known
    others: Callable[[], list[Head]] = list
    at_ns: int = 0  # T
    published_ns: int = 0  # T of the last view
    head: Head = field(default_factory=lambda: Head(0))  # of the last view
    begun_ns: int = field(default_factory=time.time_ns)
    number: int = 0  # of the last view
    oldest: int = 1  # number of the first view that is there
    full_numbers: list[int] = field(default_factory=list)  # of full views that are there
    rows_since_full: int = 0
    published_at: float = -math.inf  # time.monotonic()
    gaps: set[tuple[int, int]] = field(default_factory=set)  # where T may not be, without the end
    wrote_plain: dict[str, float] = field(default_factory=dict)  # time.monotonic() by path
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it has no plain object

    def __post_init__(self) -> None:
        self.database = self.manifest.database
        for table in (
            # until_ns: when the next version came; waits: a view or a staged object has the bytes
            "rows (path, changed_ns, until_ns, is_new, is_gone, waits, text, "
            "PRIMARY KEY (path, changed_ns)) WITHOUT ROWID",
            "unsent (path PRIMARY KEY, since_ns, is_closed) WITHOUT ROWID",
        ):
            self.database.execute(f"DROP TABLE IF EXISTS {table.partition(' ')[0]}")
            self.database.execute(f"CREATE TABLE {table}")

    def query(self, what: str, *values: Any) -> sqlite3.Cursor:
        return self.database.execute(what, values)

    # --- what changes

    def note(self, path: str, since_ns: int, is_closed: bool) -> None:
        """Note that a file has a version that is not in the bucket, complete since some time."""
        self.query("INSERT OR IGNORE INTO unsent VALUES (?, ?, ?)", path, since_ns, is_closed)
        if is_closed:
            self.query("UPDATE unsent SET is_closed = 1 WHERE path = ?", path)

    def note_open(self, path: str) -> None:
        """Note that a file is being written: before it is closed, it has no new version."""
        self.query("DELETE FROM unsent WHERE path = ? AND NOT is_closed", path)

    def pass_over(self, path: str) -> None:
        """Let a file that is rewritten all the time hold T back no more."""
        self.query("DELETE FROM unsent WHERE path = ?", path)

    def unsent_since(self, path: str) -> int:
        """Return since when a file has a version that is not in the bucket, 0 without one."""
        found = self.query("SELECT since_ns FROM unsent WHERE path = ?", path).fetchone()
        return int(found[0]) if found else 0

    def get(self, path: str) -> Row | None:
        """Return the newest row of a path, also of one that was deleted lately."""
        query = "SELECT text FROM rows WHERE path = ? AND until_ns = ?"
        found = self.query(query, path, FOREVER).fetchone()
        return row_of(found[0]) if found else None

    def put(self, row: Row, is_new: bool = True) -> None:
        """Enter a version of a file that is in the bucket, or in its row; rows of later moments are
        wrong.
        """
        since_ns = self.unsent_since(row.path)
        if since_ns and since_ns < row.changed_ns:
            self.gaps.add((since_ns, row.changed_ns))
        self.pass_over(row.path)
        key = row.path, row.changed_ns
        self.query("DELETE FROM rows WHERE path = ? AND changed_ns >= ?", *key)
        end = "UPDATE rows SET until_ns = ? WHERE path = ? AND until_ns > ?"
        self.query(end, row.changed_ns, row.path, row.changed_ns)
        waits = bool(row.object or row.data)
        values = (*key, FOREVER, is_new, row.gone, waits, line(row))
        self.query("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def change(self, row: Row, **changes: Any) -> None:
        """Change a row without reason for a new view, as for a file that grew."""
        new = replace(row, **changes)
        waits, key = bool(new.object or new.data), (row.path, row.changed_ns)
        query = "UPDATE rows SET text = ?, waits = ? WHERE path = ? AND changed_ns = ?"
        self.query(query, line(new), waits, *key)

    def publish_growth(self, path: str, begins: bool = False) -> None:
        """Let the next view have the row of a file that grows, or that begins to: then its object
        may become longer.
        """
        row = self.get(path)
        if row and (row.grows or begins):
            self.change(row, grows=True)
            query = "UPDATE rows SET is_new = 1 WHERE path = ? AND until_ns = ?"
            self.query(query, path, FOREVER)

    def remove(self, path: str, since_ns: int, changed_ns: int) -> None:
        """Note that a path is gone: between two moments, and certainly since the later one."""
        row, unsent = self.get(path), self.unsent_since(path)
        if row:
            changed_ns = max(changed_ns, row.changed_ns + 1)
        self.gaps.add((min(since_ns, unsent or since_ns), changed_ns))
        self.pass_over(path)
        if row and not row.gone:
            self.put(replace(row, gone=True, changed_ns=changed_ns, object="", data=""))

    def paths(self, top: str = "") -> set[str]:
        """Return the paths that are a path, or below it; all by default: of rows, and of files that
        are not sent yet.
        """
        found: set[str] = set()
        for table in (f"rows WHERE until_ns = {FOREVER} AND NOT is_gone", "unsent WHERE 1"):
            query, values = f"SELECT path FROM {table}", list[str]()
            if top:
                query += " AND (path = ? OR (path > ? AND path < ?))"
                values = [top, f"{top}/", f"{top}0"]  # 0 comes after the slash
            found.update(path for (path,) in self.query(query, *values))
        return found

    def lags(self) -> bool:
        """Return whether the last view is of a moment before something that it names."""
        newest = self.query("SELECT max(changed_ns) FROM rows").fetchone()[0]
        last_ns = self.shared_ns(self.published_ns, self.head.rests)
        return bool(self.views) and (newest or 0) > last_ns

    def shared_ns(self, at_ns: int, rests: bool) -> int:
        """Return the last moment that machines can have in common of which one is there."""
        return at_ns - CLOCKS_NS if self.is_shared and not rests else at_ns

    # --- T, and the views

    def whole_until(self, looked_ns: int) -> int:
        """Return up to when the bucket has every version, after a look at the folder."""
        first = self.query("SELECT min(since_ns) FROM unsent").fetchone()[0]
        found = looked_ns if first is None else min(looked_ns, first - 1)
        return before_gaps(found, self.gaps)

    def publish(self, looked_ns: int, is_final: bool = False, at_rest: bool = False) -> None:
        """Write a view, if there is something new in it, after a look at a moment: of a folder
        `at_rest` nothing has changed since.
        """
        whole_ns = looked_ns if is_final else self.whole_until(looked_ns)
        rests = self.is_shared and at_rest and whole_ns == looked_ns
        at_ns = whole_ns if rests else max(whole_ns, self.at_ns)
        if self.views and (is_final or self.is_view_due(at_ns, rests)):
            self.write(at_ns, self.is_full_due(), final=is_final, rests=rests)
        self.at_ns = at_ns
        before = self.safe_ns if self.is_shared else at_ns
        self.gaps = {each for each in self.gaps if each[1] > before}

    def is_view_due(self, at_ns: int, rests: bool) -> bool:
        """Return whether a view has something to say: rows, or a moment that rows waited for, or
        that other machines wait for.
        """
        if self.query("SELECT 1 FROM rows WHERE is_new").fetchone():
            return True
        if not self.number:
            return False
        if rests or self.head.rests:
            return rests != self.head.rests
        if at_ns == self.published_ns:
            return False
        later = "SELECT 1 FROM rows WHERE changed_ns > ? AND changed_ns <= ?"
        limits = self.shared_ns(self.published_ns, False), self.shared_ns(at_ns, False)
        if self.query(later, *limits).fetchone():
            return True
        return self.is_shared and time.monotonic() - self.published_at > IDLE

    def is_full_due(self) -> bool:
        """Return whether the next view is to be full: to read it then costs least."""
        if not self.full_numbers or self.number - self.full_numbers[-1] >= MOST_VIEWS:
            return True
        count = self.query("SELECT count(*) FROM rows").fetchone()[0]
        return bool(self.rows_since_full >= count)

    def write(self, at_ns: int, full: bool, **more: bool) -> None:
        """Write a view, with what `more` there is to say in its Head."""
        gaps = self.known_gaps() if self.is_shared else []
        head = Head(at_ns, self.machine, self.begun_ns, gaps, full, **more)
        new = self.query("SELECT count(*) FROM rows WHERE is_new").fetchone()[0]
        which = "" if head.full else " WHERE is_new"
        found = self.query(f"SELECT text FROM rows{which} ORDER BY path, changed_ns")
        content = encode(head, (text for (text,) in found))
        try:
            self.bucket.write(f"{self.views}{self.number + 1:08}", content, 0)
        except Changed:  # the answer to the write before this one was lost
            self.number += 1
            self.write(at_ns, full, **more)
            return
        self.number += 1
        self.head, self.published_ns, self.published_at = head, at_ns, time.monotonic()
        self.rows_since_full = 0 if head.full else self.rows_since_full + new
        self.query("UPDATE rows SET is_new = 0 WHERE is_new")
        if head.full:
            self.full_numbers.append(self.number)
            self.delete_old_views()

    def delete_old_views(self) -> None:
        """Delete the views before the last full one but one, all of them: without those between,
        older ones would count at a later moment.
        """
        while len(self.full_numbers) > 2:
            second = self.full_numbers[1]
            self.bucket.delete(*[f"{self.views}{each:08}" for each in range(self.oldest, second)])
            self.oldest = second
            del self.full_numbers[0]

    def begin_full(self, rows: Iterable[Row], at_ns: int, publish: bool) -> None:
        """Begin with the rows that were restored, and `publish` them, also if there are none: what
        a disk without a view sent is no moment of its folder.
        """
        for table in ("rows", "unsent"):
            self.query(f"DELETE FROM {table}")
        self.gaps.clear()
        for row in rows:
            self.put(row)
        self.full_numbers = []
        self.begun_ns = time.time_ns()
        self.at_ns = self.published_ns = at_ns
        if self.views and publish:
            self.write(at_ns, full=True)

    def stir(self, moment_ns: int) -> None:
        """Publish that a folder that rested may change from now on, which is no earlier than the
        moment that all machines had in common until then.
        """
        self.at_ns = max(time.time_ns(), moment_ns) + CLOCKS_NS + 1
        self.write(self.at_ns, full=False)

    def recall(self, history: History) -> None:
        """Continue the history of this disk, which another worker wrote. Where a row has newer
        bytes than the plain object, these were sent last.
        """
        self.follow(history)
        if history.views:
            self.head = history.views[-1].head
            self.at_ns = self.published_ns = self.head.at_ns
            self.begun_ns = self.head.begun_ns
        for view in history.views_for(FOREVER):
            for row in view.rows:
                self.put(row, is_new=False)
        for row in history.rows_at(FOREVER).values():
            if row.object or row.data:
                self.manifest.put_waiting(row)

    def follow(self, history: History) -> None:
        """Number the next view after those of this disk."""
        self.number, self.full_numbers = history.last, []
        self.oldest = history.views[0].number if history.views else history.last + 1

    # --- plain objects

    @property
    def safe_ns(self) -> int:
        """The moment that a restore would bring, of all machines; none asks for an earlier one."""
        if not self.is_shared:
            return self.published_ns
        others = self.others()
        return newest_moment([self.head, *others])[0] if others else 0

    def known_gaps(self) -> list[list[int]]:
        """Return the gaps for a view: they do not overlap, and of many the oldest are one."""
        merged: list[list[int]] = []
        for begin, end in sorted(self.gaps):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            else:
                merged.append([begin, end])
        if len(merged) > MOST_GAPS:
            last = len(merged) - MOST_GAPS
            merged[: last + 1] = [[merged[0][0], merged[last][1]]]
        return merged

    def settle(self, everything: bool = False) -> dict[str, str]:
        """Give files whose newest bytes wait in a view or a staged object their plain object, and
        delete what was deleted; return by path what failed.
        """
        safe_ns = FOREVER - 1 if everything else self.safe_ns
        self.drop_past(safe_ns)
        query = "SELECT text FROM rows WHERE waits AND changed_ns <= ?"
        rows = [row_of(text) for (text,) in self.query(query, safe_ns)]
        now = time.monotonic()
        due = [
            row
            for row in rows
            if everything
            or not row.data
            or now - self.wrote_plain.get(row.path, -math.inf) >= PLAIN  # else it waits
        ]
        failed = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for row, done in zip(due, pool.map(self.make_plain, due), strict=True):
                if isinstance(done, str):
                    failed[row.path] = done
                else:
                    self.note_plain(row, done)
        if not self.keeps_deleted:
            self.delete_due(everything)
        return failed

    def drop_past(self, safe_ns: int) -> None:
        """Forget the versions that no restore asks for any more; delete their staged objects."""
        query = "SELECT text FROM rows WHERE waits AND until_ns <= ?"
        staged = {row_of(text).object for (text,) in self.query(query, safe_ns)}
        query = "SELECT text FROM rows WHERE waits AND until_ns > ?"
        staged -= {row_of(text).object for (text,) in self.query(query, safe_ns)}
        self.bucket.delete(*filter(None, staged))
        self.query("DELETE FROM rows WHERE until_ns <= ?", safe_ns)

    def make_plain(self, row: Row) -> Any:
        """Write or move the bytes of a row to its plain object; return that, or why it failed."""
        name = self.prefix + row.path
        entry = self.manifest.get(row.path)
        generation = entry.generation if entry else 0
        for _ in range(3):
            try:
                if row.data:
                    data = base64.b64decode(row.data)
                    made = self.bucket.write(name, data, generation, {WRITER: self.writer})
                    return Listed(name, len(data), row.crc32c, made)
                source = Listed(row.object, generation=row.generation)
                moved = self.bucket.rewrite(name, source, generation)
                self.bucket.delete(row.object)
                return moved
            except (Changed, api.NotFound):
                there = self.bucket.get(name)
                if there and row.is_in(there):
                    return there
                if there and writer_of(there) != self.writer.rpartition("/")[0]:
                    return TAKEN
                generation = there.generation if there else 0
            except Exception as error:
                return str(error)
        return "its object changes all the time"

    def note_plain(self, row: Row, made: Listed) -> None:
        """Note that a file has its plain object."""
        self.wrote_plain[row.path] = time.monotonic()
        self.manifest.note_plain(row.path, made.generation, made.crc32c)
        self.change(row, object="", data="", generation=made.generation)

    def delete_due(self, everything: bool) -> None:
        """Delete the objects of what the job deleted long enough ago.

        Where other machines have views, too, ours say for ever what is gone: theirs may have it.
        """
        before: float = math.inf
        if not everything:
            before = min(time.time_ns() - GRACE * 10**9, self.safe_ns)
        which = f"WHERE is_gone = 1 AND NOT is_new AND until_ns = {FOREVER} AND changed_ns <= ?"
        found = [path for (path,) in self.query(f"SELECT path FROM rows {which}", before)]
        entries = [(path, self.manifest.get(path)) for path in found]
        own = [(path, entry) for path, entry in entries if entry and entry.is_own]
        self.bucket.delete_all_at((self.prefix + path, entry.generation) for path, entry in own)
        for path, _ in own:
            self.manifest.forget(path)
        if self.is_shared:
            self.query(f"UPDATE rows SET is_gone = 2 {which}", before)
        else:
            self.query(f"DELETE FROM rows {which}", before)


def row_of(text: str) -> Row:
    return validation.from_dict(Row, json.loads(text))


# --- restoring a view
# A machine's folders become as the view has them: its files with their times and modes, its links,
# and in the job's own folder nothing else. What is in the bucket besides, such as what was sent
# after the moment of the view, is only learnt, so that the job may replace it.


@dataclass
class Restore:
    """One restore of a mirror's folders."""

    mirror: Any  # the Mirror that it is for
    begins_with: str = ""  # name of the job before; "": none
    fresh: bool = False  # without files of earlier jobs
    publish: bool = True  # what was restored as the first view of this disk
    listed: dict[str, Any] = field(default_factory=dict)  # path -> object
    left: dict[str, Exception] = field(default_factory=dict)  # name -> why it is not here

    def run(self) -> tuple[int, dict[str, Exception]]:
        """Return how many files were downloaded, and why others were not."""
        mirror = self.mirror
        for blob in mirror.listed():
            self.listed[blob.name[len(mirror.prefix) :]] = blob
        view = self.view()
        rows = dict(sorted(self.with_plain_objects(view.rows)))
        self.clear(rows)
        new = self.download(rows.values())
        if self.fails:
            return new, self.left  # it is tried again
        for path, blob in self.listed.items():
            if path not in rows or mirror.manifest.get(path) is None:
                mirror.manifest.put_known(path, blob, writer_of(blob) == mirror.job_name)
        for row in self.here(rows):
            self.place(row)
        self.give_folders_times(rows.values())
        self.begin_history(view, rows)
        return new, self.left

    def undo_save(self) -> tuple[int, dict[str, Exception]]:
        """Where a program was ended here in the middle of a save, undo that: bring the versions of
        the last view, and remove the beginnings of new files. Return how many files were
        downloaded, and why others were not.

        What the view does not have stays: it may be nowhere else. So do databases, which repair
        themselves.
        """
        mirror = self.mirror
        halves = self.halves()
        if not halves:
            return 0, {}
        view = views.at(views.of_job(mirror.bucket, mirror.job_name)) or View()
        whole = {path: row for path, row in view.rows.items() if not row.half}
        later = [row for row in whole.values() if self.is_later(row, view.at_ns)]
        new = self.bring_back(row for row in later if row.path not in halves)
        # The halves last: until then they say that there is something to undo.
        if not self.fails:
            new += self.bring_back(whole.get(path, row) for path, row in halves.items())
        return new, self.left

    def halves(self) -> dict[str, Row]:
        """Return by path the newest rows of the files of which half a version is here."""
        mirror, found = self.mirror, {}
        for path, seen in mirror.scan():
            row = mirror.journal.get(path)
            if row and mirror.sender.is_left_half(path, seen, mirror.manifest.get(path), row):
                found[path] = row
        return found

    def is_later(self, row: Row, at_ns: int) -> bool:
        """Return whether a file of a view has another version since, and is no database."""
        mirror, newest = self.mirror, self.mirror.journal.get(row.path)
        is_newer = newest is not None and newest.changed_ns > at_ns
        return is_newer and not mirror.sender.is_database(row.path)

    def bring_back(self, rows: Iterable[Row]) -> int:
        """Make files what rows say; return how many were downloaded."""
        mirror = self.mirror
        wanted = {row.path: row for row in rows}
        found = mirror.bucket.gets([mirror.prefix + path for path in wanted], LISTED)
        self.listed |= {path: blob for path, blob in zip(wanted, found, strict=True) if blob}
        here = dict(self.with_plain_objects(wanted))
        new = self.download(here.values())
        for row in self.here(here):
            self.place(row)
            mirror.journal.put(replace(row, changed_ns=time.time_ns()))
        for path, row in wanted.items():
            if row.half:
                (mirror.folder / path).unlink()
        return new

    @property
    def fails(self) -> bool:
        """Whether a file was not downloaded that may be at the next try."""
        return not all(isinstance(error, fetch.NoPlace) for error in self.left.values())

    def download(self, rows: Iterable[Row]) -> int:
        """Download what is not here; note why some files were not, and return how many were."""
        mirror = self.mirror
        wanted = [self.listed[row.path] for row in rows if self.is_missing(row)]
        new, _, left = fetch.fetch(
            mirror.bucket, mirror.prefix, mirror.folder, listed=wanted, on_machine=True
        )
        self.left.update(left)
        return new

    def here(self, rows: dict[str, Row]) -> list[Row]:
        """Return the rows whose files are here."""
        return [row for path, row in rows.items() if self.mirror.prefix + path not in self.left]

    def give_folders_times(self, rows: Iterable[Row]) -> None:
        """Give each folder the time of what is newest in it: programs look for the newest."""
        newest: dict[str, int] = {}
        for row in rows:
            for folder in views.folders_of(row.path):
                newest[folder] = max(newest.get(folder, 0), row.mtime_ns)
        for folder, mtime_ns in newest.items():
            if f"{folder}/".startswith(f"{self.mirror.own}/") and mtime_ns:
                with contextlib.suppress(OSError):
                    os.utime(self.mirror.folder / folder, ns=(mtime_ns, mtime_ns))

    def begin_history(self, view: View, rows: dict[str, Row]) -> None:
        """Let the history of this disk begin with what was restored."""
        journal = self.mirror.journal
        gone = [row for row in view.gone.values() if row.path in self.listed]
        at_ns = self.mirror.looked_ns = time.time_ns()
        if journal.is_shared and view.at_ns:
            # A clock that is behind may not give what comes next an earlier time.
            time.sleep(min(max(view.at_ns - at_ns, 0), CLOCKS_NS) / 1e9)
            after = view.at_ns + CLOCKS_NS + 1
            # Other machines may be further, for now, unless the job had ended.
            at_ns = max(at_ns, after) if view.final else after
        journal.begin_full([*rows.values(), *gone], at_ns, self.publish)

    def view(self) -> View:
        """Return the view to restore; without one, what the bucket has."""
        mirror = self.mirror
        if not mirror.views:
            return View(rows={path: plain_row(path, blob) for path, blob in self.listed.items()})
        found = views.at(self.histories()) or self.view_before()
        view = found or View()
        for path, blob in self.listed.items():
            is_foreign = not (blob.metadata or {}).get(WRITER)
            is_wanted = is_foreign if found else not self.fresh
            is_known = path in view.gone or path == f"{mirror.own}/{RECORD}"
            if is_wanted and not is_known:
                view.rows.setdefault(path, plain_row(path, blob))
        return view

    def histories(self) -> list[History]:
        """Return the histories of the job's disks; one of this disk is to continue."""
        mirror = self.mirror
        found = views.of_job(mirror.bucket, mirror.job_name)
        for history in found:
            if mirror.writer == f"{mirror.job_name}/{history.disk}":
                mirror.journal.follow(history)
        return found

    def view_before(self) -> View | None:
        """Return the view of the job before that had the same folder, if it had any."""
        if not self.begins_with:
            return None
        found = views.at(views.of_job(self.mirror.bucket, self.begins_with))
        if found:
            own = f"{self.mirror.own}/"
            found.rows = {path: row for path, row in found.rows.items() if path.startswith(own)}
            found.gone = {}
        return found

    def with_plain_objects(self, rows: dict[str, Row]) -> Iterator[tuple[str, Row]]:
        """Yield the rows whose bytes are there, and whole; give those in a staged object or in the
        view their plain one. Else each machine would write it later, also when another has a newer
        version.
        """
        for path, row in rows.items():
            if row.half:
                continue
            if row.link:
                yield path, row
                continue
            if (row.object or row.data) and not self.has_plain(row):
                self.make_plain(row)
            if self.has_plain(row):
                blob = self.listed[path]
                known = {"size": blob.size, "crc32c": blob.crc32c, "generation": blob.generation}
                yield path, replace(row, object="", data="", **known)
            else:
                name = self.mirror.prefix + path
                self.left[name] = fetch.NoPlace("its bytes are not in the bucket any more")

    def has_plain(self, row: Row) -> bool:
        return row.path in self.listed and row.is_in(self.listed[row.path])

    def make_plain(self, row: Row) -> None:
        """Give the bytes of a row their plain object, unless a staged one is gone."""
        bucket, name = self.mirror.bucket, self.mirror.prefix + row.path
        there = self.listed.get(row.path)
        generation = there.generation if there else 0
        with contextlib.suppress(Changed, api.NotFound):  # another machine of the job did, or lost
            if row.data:
                data = base64.b64decode(row.data)
                bucket.write(name, data, generation, {WRITER: self.mirror.writer})
            else:
                bucket.rewrite(name, Listed(row.object, generation=row.generation), generation)
                bucket.delete(row.object)
        if made := bucket.get(name):
            self.listed[row.path] = made

    def is_missing(self, row: Row) -> bool:
        """Return whether a file is to be downloaded: it is not here as it was sent."""
        if row.link:
            return False
        entry = self.mirror.manifest.get(row.path)
        try:
            seen = (self.mirror.folder / row.path).lstat()
        except OSError:
            return True
        if row.grows and seen.st_size > row.size:
            return False
        return not (entry and entry.is_of(seen) and entry.crc32c == row.crc32c)

    def clear(self, rows: dict[str, Row]) -> None:
        """Remove what the view does not have from the job's own folder."""
        own = self.mirror.folder / self.mirror.own
        if not (self.mirror.views and self.mirror.own and own.is_dir()):
            return
        for folder, folders, files in os.walk(own, topdown=False):
            for name in [*files, *folders]:
                full = Path(folder) / name
                row = rows.get(str(full.relative_to(self.mirror.folder)))
                if full.is_symlink() or not full.is_dir():
                    if row is None or full.is_symlink() != bool(row.link):
                        full.unlink()
                elif row:
                    shutil.rmtree(full)
                else:
                    with contextlib.suppress(OSError):  # it has files of the view
                        full.rmdir()

    def place(self, row: Row) -> None:
        """Give a file its time and mode, and enter it as sent; make a link."""
        full = self.mirror.folder / row.path
        full.parent.mkdir(parents=True, exist_ok=True)
        if row.link:
            full.unlink(missing_ok=True)
            full.symlink_to(row.link)
            if row.mtime_ns:
                os.utime(full, ns=(row.mtime_ns, row.mtime_ns), follow_symlinks=False)
            return
        blob = self.listed.get(row.path)
        with full.open("rb") as file:
            if row.mtime_ns:
                os.utime(file.fileno(), ns=(row.mtime_ns, row.mtime_ns))
                os.fchmod(file.fileno(), row.mode | stat.S_IRUSR)
            now = os.fstat(file.fileno())
            if now.st_size != row.size:
                return  # it has grown here
            ends = ends_of(file, now.st_size) if now.st_size >= GROWS_FROM else ""
        entry = Entry(*marks(now), blob.generation if blob else 0, row.crc32c, ends, True)
        entry.in_view = True
        entry.is_own = blob is None or writer_of(blob) == self.mirror.job_name
        self.mirror.manifest.put(row.path, entry)


def plain_row(path: str, blob: Any) -> Row:
    """Return the row of an object that no view has."""
    mtime_ns = round(blob.updated.timestamp() * 1e9)
    return Row(path, 1, blob.size, blob.crc32c, blob.generation, mtime_ns=mtime_ns)
