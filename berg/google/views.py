"""Views: the results folder of a job as it was at a moment, as its machines write it to the bucket.

Each disk of a job has a history of its own, with an object for each view:

    .berg/views/JOB/DISK/NUMBER     gzip; 8 digits from 1, each written once

The first line of JSON is a Head, each other line a Row: every path if the view is full, else what
changed since the view before. A row counts from its `changed_ns` on, so that a reader can cut every
history at the same moment. Its bytes are in the row itself, in a staged object, or in the plain one
if that has the same checksum: staged objects are moved to their plain name after their view.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any

from berg import BergError, job, validation

STAGED = ".berg/tmp/"  # where staged objects are
MOST_BYTES, MOST_TEXT = 128 << 20, 1 << 30  # of one view, packed and unpacked
CLOCKS_NS = 2 * 10**9  # by which the clocks of several machines may differ
FOREVER = 1 << 62  # after every moment
READERS = 16  # views that are read at a time
NAME = re.compile(r"(?P<disk>[\w.-]+)/(?P<number>\d{8})")


@dataclass(slots=True)
class Row:
    """A file, a link, or a path that is gone. Times are nanoseconds since 1970."""

    path: str  # below berg_results/
    changed_ns: int = 0  # when it was last closed after writing, or got its name; or was gone
    size: int = 0
    crc32c: str = ""
    generation: int = 0
    object: str = ""  # name of the staged object that has the bytes
    mtime_ns: int = 0
    mode: int = 0o644
    link: str = ""  # target of a symbolic link, which has no object
    grows: bool = False  # it is only appended to: a longer plain object is as good
    moving: bool = False  # it is rewritten all the time: a copy as of some moment
    half: bool = False  # its program was ended while it wrote it: no restore brings it
    gone: bool = False  # it was deleted or renamed; the rest says what it was
    data: str = ""  # base64 of the bytes of a small file, until the plain object has them

    def validate(self) -> None:
        """Raise ValueError for what no machine writes."""
        sizes = (self.changed_ns, self.size, self.generation, self.mtime_ns)
        if min(sizes) < 0 or self.mode != self.mode & 0o777:
            raise ValueError(f"{self.path[:80]!r} has odd numbers")
        if not is_path(self.path) or (self.object and not self.object.startswith(STAGED)):
            raise ValueError(f"{self.path[:80]!r} is no path of results")
        if self.link and not stays_inside(self.path, self.link):
            raise ValueError(f"{self.path[:80]!r} is a link that leads out of the results")

    def only_grew_since(self, before: "Row | None") -> bool:
        return self.grows and before is not None and before.grows and not before.gone

    def is_in(self, there: Any) -> bool:
        """Return whether an object has the bytes of this file; or more, of one that grows."""
        if self.grows and there.size >= self.size:
            return True
        return bool(there.crc32c == self.crc32c and there.size == self.size)


@dataclass
class Head:
    """What a view says about itself."""

    at_ns: int  # the bucket has the folder as it was then
    machine: str = ""
    begun_ns: int = 0  # when its disk began, by the clock of its machine
    # Where a moment before that is none of this disk's, from and before, for one of several
    # machines: it had versions then that no view has.
    gaps: list[list[int]] = field(default_factory=list)
    full: bool = False
    final: bool = False  # the job has ended, and everything is there
    rests: bool = False  # its command has ended: the folder stays as it is, whatever others do
    cut: bool = False  # the job has ended, in the middle of a save: its rows say more than at_ns

    def validate(self) -> None:
        """Raise ValueError for what no machine writes."""
        if self.at_ns < 0 or self.begun_ns < 0:
            raise ValueError("its time is below zero")
        if any(len(gap) != 2 for gap in self.gaps):
            raise ValueError("its gaps are odd")


@dataclass
class Published:
    """One view of a disk."""

    number: int
    head: Head
    rows: list[Row]


@dataclass
class History:
    """The views of one disk, the oldest first; the first is full."""

    disk: str
    views: list[Published] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # names of objects that are not readable
    last: int = 0  # number of the newest object, readable or not

    def rows_at(self, moment_ns: int) -> dict[str, Row]:
        """Return by path what the disk had at a moment, and what was gone by then."""
        found: dict[str, Row] = {}
        for view in self.views_for(moment_ns):
            found.update((row.path, row) for row in view.rows if row.changed_ns <= moment_ns)
        return found

    def views_for(self, moment_ns: int) -> list[Published]:
        """Return the views that say what the disk had at a moment: a full one, and those after."""
        begin = 0
        for index, view in enumerate(self.views):
            if view.head.full and view.head.at_ns <= moment_ns:
                begin = index
        return self.views[begin:]


@dataclass
class View:
    """The results of a job as of a moment."""

    at_ns: int = 0
    final: bool = False
    cut: bool = False  # the job ended in the middle of a save, which is not in the rows
    rows: dict[str, Row] = field(default_factory=dict)  # by path: files and links
    gone: dict[str, Row] = field(default_factory=dict)  # by path: what was deleted lately
    damaged: list[str] = field(default_factory=list)  # names of views that are not readable


def is_path(path: str) -> bool:
    """Return whether a path is one of a file below the folder that it is relative to."""
    return not ({"", ".", ".."} & {*path.split("/")} or "\0" in path)


def stays_inside(path: str, target: str) -> bool:
    """Return whether a link at a path below berg_results/ leads to a place below it, whatever other
    links there are: `..` may only come first.
    """
    parts = target.split("/") if target != "." else []
    ups = 0
    while parts and parts[0] == "..":
        del parts[0]
        ups += 1
    return ups <= path.count("/") and (not parts or is_path("/".join(parts)))


def line(row: Row) -> str:
    """Return a row as it is in a view."""
    values = {name: getattr(row, name) for name in DEFAULTS}
    return json.dumps({name: each for name, each in values.items() if each != DEFAULTS[name]})


DEFAULTS = {each.name: each.default for each in fields(Row)}


def encode(head: Head, lines: Iterable[str]) -> bytes:
    """Return the content of a view's object."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(json.dumps(vars(head)).encode())
        for each in lines:
            file.write(f"\n{each}".encode())
    return packed.getvalue()


def decode(number: int, data: bytes) -> Published:
    """Return the view in `data`; raise ValueError if it is damaged."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # of gzip
    try:
        text = unpacker.decompress(data, MOST_TEXT)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError("it is cut off, or too long")
    first, *lines = text.split(b"\n")
    head = validation.from_dict(Head, validation.parse(first))
    rows = [validation.from_dict(Row, validation.parse(line)) for line in lines]
    return Published(number, head, rows)


def prefix_of(name: str, disk: str) -> str:
    """Return where the views of a job's disk are."""
    return f"{job.views_prefix(name)}{disk}/"


def of_job(bucket: Any, name: str) -> list[History]:
    """Return the histories of a job's disks, by when it began on each the last time; [] for a job
    without views.
    """
    prefix = job.views_prefix(name)
    names = [blob.name for blob in bucket.list(prefix, "name")]
    histories: dict[str, History] = {}
    with ThreadPoolExecutor(READERS) as pool:
        contents = pool.map(lambda each: bucket.read(each, MOST_BYTES), names)
        for each, data in zip(names, contents, strict=True):
            found = NAME.fullmatch(each[len(prefix) :])
            if found and data is not None:  # None: deleted meanwhile
                history = histories.setdefault(found["disk"], History(found["disk"]))
                add(history, each, int(found["number"]), data)
    return sorted(
        (each for each in histories.values() if each.views or each.damaged),
        key=lambda each: each.views[-1].head.begun_ns if each.views else 0,
    )


def add(history: History, name: str, number: int, data: bytes) -> None:
    """Add the next view to a history. Behind a damaged or missing one only a full view counts."""
    is_next = bool(history.views) and history.views[-1].number == number - 1
    history.last = number
    try:
        view = decode(number, data)
    except (ValueError, BergError):
        history.damaged.append(name)
        return
    if is_next or view.head.full:
        history.views.append(view)


def at(histories: Iterable[History], moment_ns: int | None = None) -> View | None:
    """Return a job's view at a moment, by default the newest that is whole; None without one."""
    histories = list(histories)
    newest = newest_disks(histories, moment_ns)
    damaged = list(chain.from_iterable(each.damaged for each in histories))
    if not (newest or damaged):
        return None
    view = View(moment_ns or 0, damaged=damaged)
    if newest and moment_ns is None:
        heads = [each.views[-1].head for each in newest]
        view.at_ns, view.final = newest_moment(heads)
        view.cut = any(head.cut for head in heads)
    for row in merged(history.rows_at(view.at_ns) for history in newest):
        (view.gone if row.gone else view.rows)[row.path] = row
    view.rows = without_those_below_links(view.rows)
    return view


def newest_disks(histories: list[History], moment_ns: int | None) -> list[History]:
    """Return the history of each machine that counts: of the disk that began last by a moment."""
    found = {}
    for each in histories:
        if each.views and (moment_ns is None or each.views[0].head.at_ns <= moment_ns):
            found[each.views[-1].head.machine] = each
    return list(found.values())


def newest_moment(heads: list[Head]) -> tuple[int, bool]:
    """Return the moment as of which the bucket has the folders of all machines, and whether that
    is their end. No machine says so before all commands have ended.

    Pointers are written once all machines have reached a barrier: where several write, a moment is
    common to all, less what their clocks may differ by. A folder that rests limits it no more.
    """
    last_ns = max(head.at_ns for head in heads)
    if any(head.final for head in heads):
        return last_ns, True
    times = [head.at_ns for head in heads if not head.rests]
    if len(heads) == 1 or not times:
        return last_ns, False
    return before_gaps(min(times) - CLOCKS_NS, (gap for head in heads for gap in head.gaps)), False


def before_gaps(moment_ns: int, gaps: Iterable[Any]) -> int:
    """Return the last moment until a moment that is in no gap."""
    for begin, end in sorted(gaps, reverse=True):
        if begin <= moment_ns < end:
            moment_ns = begin - 1
    return moment_ns


def merged(folders: Iterable[dict[str, Row]]) -> Iterable[Row]:
    """Return the newest row of each path in the folders of several machines: of those that restored
    the same file, that of the one that has appended to it since.
    """

    def age(row: Row) -> tuple[int, bool, int]:
        return row.changed_ns, row.grows, row.size

    newest: dict[str, Row] = {}
    for folder in folders:
        for path, row in folder.items():
            if path not in newest or age(row) >= age(newest[path]):
                newest[path] = row
    return newest.values()


def without_those_below_links(rows: dict[str, Row]) -> dict[str, Row]:
    """Return the rows but for those that would be written through a link."""
    links = {path for path, row in rows.items() if row.link}
    if not links:
        return rows
    return {path: row for path, row in rows.items() if links.isdisjoint(folders_of(path))}


def folders_of(path: str) -> list[str]:
    """Return the folders above a path, the highest first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def moments(histories: Iterable[History]) -> list[int]:
    """Return the times of a job's views, the oldest first."""
    return sorted({view.head.at_ns for history in histories for view in history.views})
