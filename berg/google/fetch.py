"""Objects downloaded to a folder: to a laptop, and to a machine that continues another one's job.

Small objects of a large fetch are downloaded by processes of their own (bringer.py): Python runs
one thread at a time, and most of a file's cost is Python's. What they cannot do is done here.
"""

import base64
import contextlib
import errno
import fcntl
import itertools
import json
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from berg import BergError, computer
from berg.google import api
from berg.google.sending import WRITER
from berg.google.storage import blocks, check, crc32c_of
from berg.google.views import Row, stays_inside
from berg.validation import names_repo

Item = TypeVar("Item")
Done = TypeVar("Done")

THREADS = 16
FILES = 256  # that are downloaded at a time
OBEYED = "programs on this computer would obey what is below .git, .hg or .svn"
LOCK = ".berg-lock"  # in each folder of temporary files, held by the fetch that uses it
PARTS = re.compile(r"\.berg-parts-[a-z0-9_]{8}")  # folders of temporary files
# Errors of a name that this file system cannot hold, or not together with the others.
NO_PLACE = {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ELOOP}
NO_PLACE |= {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}

FIRST = 32  # files that are downloaded before processes are started
LARGEST = 1 << 20  # bytes of an object that a process downloads
PROCESSES, THREADS_OF_EACH = 4, 16
SIGNED_FOR = 60  # seconds; tokens are renewed minutes before they end


class NoPlace(Exception):
    """An object that can have no file in the folder."""


class LeftOut(NoPlace):
    """An object that is not downloaded, because that could do harm here."""


class Gone(BergError):
    """An object that was deleted after it was listed."""


@dataclass
class Fetched:
    """The result for one object."""

    blob: Any  # as downloaded
    is_new: bool = False
    error: Exception | None = None


def fetch(
    bucket: Any,
    prefix: str,
    folder: Path,
    progress: Callable[[str, int], None] = lambda name, n: None,
    done: Callable[[Any], None] = lambda blob: None,
    listed: Iterable[Any] | None = None,
    on_machine: bool = False,
) -> tuple[int, int, dict[str, Exception]]:
    """Download the objects under `prefix`, or those `listed`, to the same paths below `folder`.

    Returns how many were new or changed, how many there are, and by name why others were not
    downloaded: NoPlace, Gone, or an error that may pass. Files have the object's time, or, as those
    of a view have a row, the time and the mode that they had in the job. `done` hears of each
    object, one at a time.

    On a user's computer what could configure programs there is LeftOut, such as files below `.git`,
    and what was edited there is kept under another name. A job's machine gets all, and keeps
    nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts, lock = make_parts(folder)
    one = Fetch(bucket, prefix, folder, parts, progress, done, on_machine)
    blobs = bucket.list(prefix) if listed is None else listed
    try:
        one.run(blobs if on_machine else without_repos(blobs, one.left))
    finally:
        shutil.rmtree(parts, ignore_errors=True)
        os.close(lock)
        for path, kept in one.kept.items():
            api.notify(f"{path} is not as Berg wrote it, and was renamed to {kept.name}")
    return one.new, one.total, one.left


@dataclass
class Fetch:
    """One fetch: its arguments, and the results so far."""

    bucket: Any
    prefix: str
    folder: Path
    parts: Path  # folder of temporary files
    progress: Callable[[str, int], None]
    done: Callable[[Any], None]
    on_machine: bool
    hidden: set[str] = field(default_factory=set)  # names below a name that is a file itself
    left: dict[str, Exception] = field(default_factory=dict)
    inside: dict[Path, bool] = field(default_factory=dict)  # whether no link leads out of a folder
    kept: dict[Path, Path] = field(default_factory=dict)  # what was edited here -> its new path
    lock: threading.Lock = field(default_factory=threading.Lock)  # of `inside`
    new: int = 0
    total: int = 0

    def run(self, blobs: Iterable[Any]) -> None:
        """Download objects, and count the results in the order of their names; links come last, so
        that nothing is written through them.
        """
        # an empty object whose name ends with a slash shows as a folder
        files: Iterable[Any] = (
            blob for blob in blobs if blob.size or blob.row or not blob.name.endswith("/")
        )
        if computer.folds_names(self.parts):
            files = without_folded(files, self.left)
        links: list[Any] = []
        with Helpers(self.bucket) as helpers, ThreadPoolExecutor(THREADS) as pool:
            missing = self.changed_files(note_hidden(files, self.hidden), links)
            for fetched in in_order(partial(self.begin, helpers, pool), missing):
                self.count(fetched)
        for blob in links:
            self.count(self.bring(blob))

    def changed_files(self, blobs: Iterable[Any], links: list[Any]) -> Iterator[Any]:
        """Yield those whose file is not as this fetch would write it, but for links, which are
        added to `links`; count the others.
        """
        for blob in blobs:
            is_same = False
            with contextlib.suppress(OSError, NoPlace):
                here = (self.folder / below(blob.name, self.prefix)).lstat()
                is_same = self.is_as_written(blob, here)
            if is_same and blob.name not in self.hidden:
                self.count(Fetched(blob))
            elif is_link(blob):
                links.append(blob)
            else:
                yield blob

    def is_as_written(self, blob: Any, here: os.stat_result) -> bool:
        """Return whether a stat is that of the object's file after this fetch wrote it."""
        is_kind = stat.S_ISLNK if is_link(blob) else stat.S_ISREG
        return (
            is_kind(here.st_mode)
            and here.st_size == blob.size
            and here.st_mtime_ns == self.time_of(blob)
            and (is_link(blob) or self.mode_of(blob, here) == stat.S_IMODE(here.st_mode))
        )

    def time_of(self, blob: Any) -> int:
        """Return the modification time that an object's file gets, in nanoseconds."""
        if row := blob.row:
            when = row.mtime_ns or row.changed_ns  # links of earlier views have none
        else:
            when = int(blob.updated.timestamp() * 1000) * 10**6
        return when if self.on_machine else stamp(when, blob.size, blob.crc32c)

    def mode_of(self, blob: Any, here: os.stat_result) -> int:
        """Return the mode that an object's file gets: everyone who can read it can execute it if
        its owner could in the job.
        """
        now = stat.S_IMODE(here.st_mode)
        is_executable = blob.row and blob.row.mode & 0o100
        return now | (now & 0o444) >> 2 if is_executable else now

    def count(self, fetched: Fetched) -> None:
        if fetched.error:
            self.left[fetched.blob.name] = fetched.error
            return
        self.done(fetched.blob)
        self.new += fetched.is_new
        self.total += 1

    def begin(
        self, helpers: "Helpers", pool: ThreadPoolExecutor, blob: Any
    ) -> Callable[[], Fetched]:
        """Begin to download an object; return what waits for it."""
        is_inline = has_content(blob.row)
        by_helper = None
        if blob.generation and not is_inline:
            by_helper = helpers.bring(blob, self.parts)
        if by_helper is None:
            return pool.submit(self.bring, blob).result
        return partial(self.wait, *by_helper, blob)

    def wait(self, is_done: "Future[bool]", part: Path, blob: Any) -> Fetched:
        """Wait for a helper; download the object here if it could not."""
        return self.bring(blob, part if is_done.result() else None)

    def bring(self, blob: Any, part: Path | None = None) -> Fetched:
        """Download an object to its place, unless it is there or, already downloaded, in `part`."""
        source = blob
        try:
            path = self.path_of(blob)
            if not (blob.generation or has_content(blob.row)):
                source = self.find(blob)
            while source:
                found = replace(source, name=blob.name)
                if part is None and self.is_here(found, path):
                    return Fetched(found)
                try:
                    part = part or self.download(source)
                except api.NotFound:
                    source = self.find(blob)  # its job replaced it since it was listed
                    continue
                self.place(found, part, path)
                self.progress(blob.name, found.size)
                return Fetched(found, is_new=True)
        except OSError as error:
            return Fetched(blob, error=explained(error, self.bucket.name, blob.name))
        except Exception as error:  # the others are downloaded all the same
            return Fetched(blob, error=error)
        return Fetched(blob, error=Gone("it is not in the bucket any more"))

    def find(self, blob: Any) -> Any:
        """Return the object that has a file's bytes now, or its job's newer ones; else None."""
        row = blob.row
        for name in filter(None, (row and row.object, blob.name)):
            there = self.bucket.get(name)
            if there and row and row.is_in(there):
                return replace(there, row=row)
        is_newer = there and there.metadata.get(WRITER) == blob.metadata.get(WRITER)
        return there if is_newer or not row else None

    def download(self, source: Any) -> Path:
        """Download an object to a temporary file; return its path."""
        part, row = self.parts / f".berg-part-{uuid.uuid4().hex}", source.row
        try:
            if is_link(source):
                part.symlink_to(row.link)
            elif row and row.data and row.crc32c == source.crc32c:
                content = base64.b64decode(row.data)
                check(source.name, crc32c_of([content]), source.crc32c)
                part.write_bytes(content)
            else:
                self.bucket.download_pieces(source, part)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return part

    def place(self, blob: Any, part: Path, path: Path) -> None:
        """Put a downloaded file or a link into its place, with its time and mode."""
        if is_link(blob):
            self.set_time(blob, part)
        else:
            with part.open("rb") as file:
                self.set_marks(blob, file.fileno())
        if not self.on_machine and os.path.lexists(path) and not is_copy(path):
            self.kept[path] = keep(path)
        part.replace(path)

    def set_marks(self, blob: Any, file: int) -> None:
        """Give a file the time and the mode of its object."""
        here = os.fstat(file)
        mode = self.mode_of(blob, here)
        if mode != stat.S_IMODE(here.st_mode):
            with contextlib.suppress(PermissionError):  # of a disk without modes
                os.fchmod(file, mode)
        when = self.time_of(blob)
        os.utime(file, ns=(when, when))

    def set_time(self, blob: Any, link: Path) -> None:
        when = self.time_of(blob)
        os.utime(link, ns=(when, when), follow_symlinks=False)

    def is_here(self, blob: Any, path: Path) -> bool:
        """Return whether a file has an object's bytes; give it the object's time and mode then.

        The file is opened once: another fetch may replace it meanwhile.
        """
        if is_link(blob):
            is_same = path.is_symlink() and str(path.readlink()) == blob.row.link
            if is_same:
                self.set_time(blob, path)
            return is_same
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                return False
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        with os.fdopen(opened, "rb") as file:
            here = os.fstat(opened)
            if here.st_size != blob.size:
                return False
            is_same = here.st_mtime_ns == self.time_of(blob)
            if not is_same and crc32c_of(blocks(file, blob.size)) != blob.crc32c:
                return False
            self.set_marks(blob, opened)
            return True

    def path_of(self, blob: Any) -> Path:
        """Return the path of an object's file; make its folder.

        Raises NoPlace or NotADirectoryError for one that can have no file.
        """
        if blob.name in self.hidden:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        path = self.folder / below(blob.name, self.prefix)
        with self.lock:
            if path.parent not in self.inside:
                self.inside[path.parent] = self.make_folder(path.parent)
        if is_link(blob):
            self.check_link(blob, path)
        if not self.inside[path.parent]:
            raise NoPlace(
                f"{path.parent} is a link that leads out of {self.folder}, and nothing is written "
                "through it. Move the link away, and fetch again"
            )
        return path

    def make_folder(self, folder: Path) -> bool:
        """Make a folder unless a link leads out of the target to it; return whether it is inside.

        A file or a link in its place is kept, or removed if an earlier fetch wrote it.
        """
        above = folder.relative_to(self.folder)
        for each in (self.folder / part for part in [*reversed(above.parents[:-1]), above]):
            is_in_the_way = os.path.lexists(each) and (each.is_symlink() or not each.is_dir())
            if not is_in_the_way or self.on_machine or each == self.folder:
                continue
            if is_copy(each):
                each.unlink()
            elif not each.is_symlink():
                self.kept[each] = keep(each)
        is_inside = folder.resolve().is_relative_to(self.folder.resolve())
        if is_inside:
            folder.mkdir(parents=True, exist_ok=True)
        return is_inside

    def check_link(self, blob: Any, path: Path) -> None:
        """Raise LeftOut for a link that could lead out of the folder, or to a repo's settings."""
        place = below(blob.name, self.prefix)
        is_there = path.parent.resolve() == (self.folder.resolve() / place).parent
        if not is_there or not stays_inside(place, blob.row.link) or names_repo(blob.row.link):
            raise LeftOut("it is a link that leads out of the folder")


def is_link(blob: Any) -> bool:
    return bool(blob.row and blob.row.link)


def has_content(row: Row | None) -> bool:
    """Return whether a row of a view has the content itself."""
    return bool(row and (row.link or row.data))


def explained(error: OSError, bucket_name: str, name: str) -> Exception:
    """Return NoPlace for an object that can have no file, else the error."""
    if error.errno not in NO_PLACE:
        return error
    if error.errno == errno.ENOTDIR:
        address = shlex.quote(f"gs://{bucket_name}/{name.rpartition('/')[0]}")
        return NoPlace(
            "a file is where its folder should be, and the bucket has both. "
            f"Download the folder to another place: berg data pull {address} OTHER_FOLDER"
        )
    return NoPlace(error.strerror)


def note_hidden(blobs: Iterable[Any], hidden: set[str]) -> Iterator[Any]:
    """Yield objects in the order of their names; note those below a name that is a file itself.

    The file is downloaded, and not they.
    """
    begins: list[str] = []  # earlier names that the current one begins with
    for blob in blobs:
        while begins and not blob.name.startswith(begins[-1]):
            begins.pop()
        if any(blob.name.startswith(f"{name}/") for name in begins):
            hidden.add(blob.name)
        begins.append(blob.name)
        yield blob


def without_repos(blobs: Iterable[Any], left: dict[str, Exception]) -> Iterator[Any]:
    """Yield objects but for those in a repo's own folder; note why those are left."""
    for blob in blobs:
        if names_repo(blob.name):
            left[blob.name] = LeftOut(OBEYED)
        else:
            yield blob


def without_folded(blobs: Iterable[Any], left: dict[str, Exception]) -> Iterator[Any]:
    """Yield objects but for those whose name is an earlier one's on this file system, as `a` and
    `A` are on macOS; note why those are left.
    """
    names: dict[str, str] = {}
    for blob in blobs:
        first = names.setdefault(computer.folded(blob.name), blob.name)
        if first == blob.name:
            yield blob
        else:
            left[blob.name] = NoPlace(
                f"this disk takes its name for that of {first}, which was downloaded. Use a disk "
                "that tells them apart"
            )


def below(name: str, prefix: str) -> str:
    """Return an object's path below a prefix; raise NoPlace for one that leads out of it."""
    relative = name[len(prefix) :]
    if any(part in ("", ".", "..") for part in relative.split("/")) or "\0" in relative:
        raise NoPlace("it is not a file name, or would be outside of the folder")
    return relative


def make_parts(folder: Path) -> tuple[Path, int]:
    """Make a folder for temporary files, and remove those of fetches that were killed.

    Return its path and the descriptor of its lock.
    """
    parts = parts_near(folder)
    lock = os.open(parts / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks keeps what was left
        fcntl.flock(lock, fcntl.LOCK_EX)
    for other in parts.parent.glob(".berg-parts-*"):
        if other == parts or not PARTS.fullmatch(other.name):
            continue
        with contextlib.suppress(OSError):  # another folder of such a name has no lock
            other_lock = os.open(other / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(other_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other, ignore_errors=True)
            finally:
                os.close(other_lock)
    return parts, lock


def parts_near(folder: Path) -> Path:
    """Make a folder for temporary files from which they can be renamed into `folder`; outside of
    `berg_results` if possible.

    The mirror ignores it elsewhere, and where a machine died before it was removed.
    """
    mirrored = [above.parent for above in (folder, *folder.parents) if above.name == "berg_results"]
    for place in (*mirrored[-1:], folder.parent):
        with contextlib.suppress(OSError):
            if place.stat().st_dev == folder.stat().st_dev and is_one_mount(place, folder):
                return Path(tempfile.mkdtemp(prefix=".berg-parts-", dir=place))
    return Path(tempfile.mkdtemp(prefix=".berg-parts-", dir=folder))


def is_one_mount(place: Path, folder: Path) -> bool:
    """Return whether files can be renamed from one folder into the other; not between two mounts,
    though they may be of one file system.
    """
    with tempfile.TemporaryDirectory(prefix=".berg-parts-", dir=place) as made:
        there = folder / Path(made).name
        try:
            Path(made).rename(there)
        except OSError:
            return False
        there.rename(made)
    return True


def is_parts(path: Path) -> bool:
    """Return whether a path is a folder of temporary files, and not a user's of such a name.

    It is empty for a moment before it has its lock.
    """
    if not PARTS.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    return (path / LOCK).exists() or not any(path.iterdir())


def in_order(
    begin: Callable[[Item], Callable[[], Done]], items: Iterable[Item], most: int = FILES
) -> Iterator[Done]:
    """Begin each item, and yield the results in their order; at most `most` run at a time."""
    pending: deque[Callable[[], Done]] = deque()
    for item in items:
        pending.append(begin(item))
        if len(pending) >= most:
            yield pending.popleft()()
    while pending:
        yield pending.popleft()()


def side_by_side(
    work: Callable[[Item], Done], items: Iterable[Item], threads: int = THREADS
) -> Iterator[Done]:
    """Yield what `work` returns for each item, in their order, from parallel threads."""
    with ThreadPoolExecutor(threads) as pool:
        yield from in_order(lambda item: pool.submit(work, item).result, items, 8 * threads)


class Helper:
    """A process that downloads small objects, and what it has not answered yet."""

    def __init__(self, where: dict[str, Any]):
        script = Path(__file__).with_name("bringer.py")
        # -I: it reads nothing from the caller's folder and environment
        self.process = subprocess.Popen(
            [sys.executable, "-I", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.asked: dict[int, Future[bool]] = {}
        self.lock = threading.Lock()
        self.is_over = False
        self.send(where)
        threading.Thread(target=self.listen, daemon=True).start()

    def send(self, row: dict[str, Any]) -> None:
        pipe: IO[str] = self.process.stdin  # type: ignore[assignment]
        with self.lock, contextlib.suppress(OSError, ValueError):
            pipe.write(json.dumps(row) + "\n")
            pipe.flush()

    def listen(self) -> None:
        """Pass its answers on until it ends; what it has not answered then is not done."""
        for line in self.process.stdout or ():
            number, _, done = line.partition(" ")
            if asked := self.asked.pop(int(number), None):
                settle(asked, done.strip() == "1")
        self.is_over = True
        while self.asked:
            _, asked = self.asked.popitem()
            settle(asked, False)

    def bring(self, number: int, task: dict[str, Any]) -> Future[bool]:
        """Return the future answer: whether it is done."""
        answer: Future[bool] = Future()
        self.asked[number] = answer
        self.send({**task, "number": number})
        if self.is_over:
            settle(answer, False)
        return answer


def settle(answer: Future[bool], is_done: bool) -> None:
    """Give the answer, unless there is one already."""
    with contextlib.suppress(InvalidStateError):
        answer.set_result(is_done)


class Helpers:
    """The processes of one fetch; `with` ends them. They get the token through a pipe."""

    def __init__(self, bucket: Any):
        self.bucket = bucket
        self.numbers = itertools.count()
        self.lock = threading.Lock()
        self.running: list[Helper] | None = None
        self.signed: dict[str, str] = {}
        self.signed_at = -math.inf

    def __enter__(self) -> "Helpers":
        return self

    def __exit__(self, *_: Any) -> None:
        for helper in self.running or ():
            helper.process.kill()
            helper.process.communicate()

    def bring(self, blob: Any, parts: Path) -> tuple[Future[bool], Path] | None:
        """Begin to download an object to a temporary file in `parts`.

        Return the future answer, whether it is there, whole, and its path; None without a process.
        """
        number = next(self.numbers)
        if number < FIRST or blob.size > LARGEST:
            return None
        with self.lock:
            if self.running is None:
                self.running = []
                self.start(self.running)
        living = [helper for helper in self.running if not helper.is_over]
        if not living:
            return None
        url = self.bucket.address("/download", blob.name, alt="media", generation=blob.generation)
        if time.monotonic() - self.signed_at > SIGNED_FOR:
            self.signed = api.signed(self.bucket.config, "GET", url, {"Accept-Encoding": "gzip"})
            self.signed_at = time.monotonic()
        part = parts / f".berg-part-{number}"
        target = url.removeprefix(api.storage_url(self.bucket.config))
        task = {"target": target, "headers": self.signed, "part": str(part)}
        return living[number % len(living)].bring(number, task), part

    def start(self, running: list[Helper]) -> None:
        base = api.storage_url(self.bucket.config)
        route, parts = api.route_to(base), urlsplit(base)
        if route.proxy:
            return  # they have no support for one
        where = {
            "host": parts.hostname,
            "port": parts.port,
            "tls": parts.scheme == "https",
            "cafile": route.cafile,
            "capath": route.capath,
            "threads": THREADS_OF_EACH,
        }
        with contextlib.suppress(OSError):
            for _ in range(min(PROCESSES, os.cpu_count() or 1)):
                running.append(Helper(where))


# --- what a fetch wrote here
# A copy has the time of its file in the bucket, to the millisecond. The six digits after that are
# made from it, the size and the crc32c. So a later fetch knows a file that did not change by its
# stat alone, and, before it replaces one, by its content whether a user edited it.


def stamp(time_ns: int, size: int, crc32c: str) -> int:
    """Return the modification time of a copy, in nanoseconds."""
    milliseconds = time_ns // 10**6
    digits = zlib.crc32(f"{milliseconds} {size} {crc32c}".encode()) % 10**6
    return milliseconds * 10**6 + digits


def is_copy(path: Path) -> bool:
    """Return whether a file or a link is as a fetch wrote it."""
    with contextlib.suppress(OSError):
        seen = path.lstat()
        if stat.S_ISLNK(seen.st_mode):
            crc32c = crc32c_of([os.fsencode(path.readlink())])
        elif stat.S_ISREG(seen.st_mode):
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                crc32c = crc32c_of(blocks(file))
                seen = os.fstat(file.fileno())
        else:
            return False
        return seen.st_mtime_ns == stamp(seen.st_mtime_ns, seen.st_size, crc32c)
    return False


def keep(path: Path) -> Path:
    """Rename what is at a path to the first free one of PATH.~1~, PATH.~2~, …; return that."""
    number = 1
    while os.path.lexists(kept := path.with_name(f"{path.name}.~{number}~")):
        number += 1
    return path.rename(kept)


def move_deleted(folder: Path, paths: Iterable[str]) -> list[Path]:
    """Move copies of files that their job deleted from a folder to FOLDER.deleted; return where
    they are now.

    The job's disk and the bucket may have no other copy. Files that were edited here stay.
    """
    moved: list[Path] = []
    target = folder.with_name(f"{folder.name}.deleted")
    for path in sorted(paths):
        here, there = folder / path, target / path
        if not here.parent.resolve().is_relative_to(folder.resolve()) or not is_copy(here):
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(there) and not is_copy(there):
            keep(there)
        moved.append(here.replace(there))
        with contextlib.suppress(OSError):  # until a folder has something else
            for above in here.relative_to(folder).parents:
                (folder / above).rmdir()
    return moved
