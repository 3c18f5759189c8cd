"""A machine's folders as a view has them: its files with their times and modes, its links, and in
the job's own folder nothing else.

What is in the bucket besides, such as what was sent after the moment of the view, is only learnt,
so that the job may replace it.
"""

import base64
import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from berg.google import api, fetch, views
from berg.google.sending import GROWS_FROM, RECORD, WRITER, Entry, ends_of, marks
from berg.google.storage import Changed, Listed
from berg.google.views import CLOCKS_NS, Row, View


@dataclass
class Restore:
    """One restore of a mirror's folders."""

    mirror: Any  # the Mirror that it is for
    begins_with: str  # name of the job before; "": none
    fresh: bool  # without files of earlier jobs
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
        wanted = [self.listed[path] for path, row in rows.items() if self.is_missing(row)]
        self.clear(rows)
        new, _, left = fetch.fetch(
            mirror.bucket, mirror.prefix, mirror.folder, listed=wanted, on_machine=True
        )
        self.left.update(left)
        if not all(isinstance(error, fetch.NoPlace) for error in left.values()):
            return new, self.left  # it is tried again
        for path, blob in self.listed.items():
            if path not in rows or mirror.manifest.get(path) is None:
                mirror.manifest.put_known(path, blob, self.is_own(blob))
        for row in rows.values():
            if mirror.prefix + row.path not in self.left:
                self.place(row)
        self.give_folders_times(rows.values())
        self.begin_history(view, rows)
        return new, self.left

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
        found = views.at(views.of_job(mirror.bucket, mirror.job_name)) or self.view_before()
        view = found or View()
        for path, blob in self.listed.items():
            is_foreign = not (blob.metadata or {}).get(WRITER)
            is_wanted = is_foreign if found else not self.fresh
            is_known = path in view.gone or path == f"{mirror.own}/{RECORD}"
            if is_wanted and not is_known:
                view.rows.setdefault(path, plain_row(path, blob))
        return view

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
        """Yield the rows whose bytes are there; give those in a staged object or in the view their
        plain one. Else each machine would write it later, also when another has a newer version.
        """
        for path, row in rows.items():
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
        entry.is_own = blob is None or self.is_own(blob)
        self.mirror.manifest.put(row.path, entry)

    def is_own(self, blob: Any) -> bool:
        """Return whether this job wrote an object."""
        writer = (blob.metadata or {}).get(WRITER, "")
        return bool(writer.rpartition("/")[0] == self.mirror.job_name)


def plain_row(path: str, blob: Any) -> Row:
    """Return the row of an object that no view has."""
    mtime_ns = round(blob.updated.timestamp() * 1e9)
    return Row(path, 1, blob.size, blob.crc32c, blob.generation, mtime_ns=mtime_ns)
