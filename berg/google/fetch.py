"""Objects downloaded to a folder: to a laptop, and to a machine that continues another one's job.

Small objects of a large fetch are downloaded by processes of their own (bringer.py): Python runs
one thread at a time, and most of a file's cost is Python's. What they cannot do is done here.
"""

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
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from berg import BergError, computer
from berg.google import api
from berg.google.storage import blocks, crc32c_of
from berg.validation import names_repo

Item = TypeVar("Item")
Done = TypeVar("Done")

THREADS = 16
FILES = 256  # that are downloaded at a time
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


class RepoFile(NoPlace):
    """An object whose file would be a part of a repo's settings; see validation.names_repo."""


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
    with_repos: bool = False,
) -> tuple[int, int, dict[str, Exception]]:
    """Download the objects under `prefix`, or those `listed`, to the same paths below `folder`.

    Returns how many were new or changed, how many there are, and by name why others were not
    downloaded: NoPlace, Gone, or an error that may pass. Files in folders such as `.git` are
    downloaded only `with_repos`, to a job's machine; elsewhere they are a RepoFile. Files keep the
    object's time, so that a later fetch recognises them without reading them. `done` hears of each
    object, one at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts, lock = make_parts(folder)
    one = Fetch(bucket, prefix, folder, parts, progress, done)
    blobs = bucket.list(prefix) if listed is None else listed
    try:
        one.run(blobs if with_repos else without_repos(blobs, one.left))
    finally:
        shutil.rmtree(parts, ignore_errors=True)
        os.close(lock)
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
    hidden: set[str] = field(default_factory=set)  # names below a name that is a file itself
    left: dict[str, Exception] = field(default_factory=dict)
    inside: dict[Path, bool] = field(default_factory=dict)  # whether no link leads out of a folder
    new: int = 0
    total: int = 0

    def run(self, blobs: Iterable[Any]) -> None:
        """Download objects, and count the results in the order of their names."""
        # an empty object whose name ends with a slash shows as a folder
        files: Iterable[Any] = (blob for blob in blobs if blob.size or not blob.name.endswith("/"))
        if computer.folds_names(self.parts):
            files = without_folded(files, self.left)
        with Helpers(self.bucket) as helpers, ThreadPoolExecutor(THREADS) as pool:
            missing = self.without_unchanged(note_hidden(files, self.hidden))
            for fetched in in_order(partial(self.begin, helpers, pool), missing):
                self.count(fetched)

    def without_unchanged(self, blobs: Iterable[Any]) -> Iterator[Any]:
        """Yield those whose file has not their size and time; count the others."""
        for blob in blobs:
            is_same = False
            with contextlib.suppress(OSError, NoPlace):
                here = (self.folder / below(blob.name, self.prefix)).stat()
                same_time = abs(here.st_mtime - blob.updated.timestamp()) < 1e-3
                is_same = stat.S_ISREG(here.st_mode) and here.st_size == blob.size and same_time
            if is_same and blob.name not in self.hidden:
                self.count(Fetched(blob))
            else:
                yield blob

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
        by_helper = None
        with contextlib.suppress(NoPlace, NotADirectoryError):  # `bring` reports it
            by_helper = helpers.bring(blob, self.parts, self.path_of(blob))
        if by_helper is None:
            return pool.submit(self.bring, blob).result
        return partial(self.wait, by_helper, blob)

    def wait(self, by_helper: "Future[bool]", blob: Any) -> Fetched:
        """Wait for a helper; download the object here if it could not."""
        if not by_helper.result():
            return self.bring(blob)
        self.progress(blob.name, blob.size)
        return Fetched(blob, is_new=True)

    def bring(self, blob: Any) -> Fetched:
        there = blob
        try:
            path = self.path_of(blob)
            while there:
                if is_here(there, path):
                    return Fetched(there)
                try:
                    self.bucket.download(there.name, path, self.parts, there)
                except api.NotFound:
                    there = self.bucket.get(there.name)  # its job replaced it since it was listed
                    continue
                self.progress(there.name, there.size)
                return Fetched(there, is_new=True)
        except OSError as error:
            return Fetched(blob, error=explained(error, self.bucket.name, blob.name))
        except Exception as error:  # the others are downloaded all the same
            return Fetched(blob, error=error)
        return Fetched(blob, error=Gone("it was deleted while it was fetched"))

    def path_of(self, blob: Any) -> Path:
        """Return the path of an object's file.

        Raises NoPlace or NotADirectoryError for one that can have no file.
        """
        if blob.name in self.hidden:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        path = self.folder / below(blob.name, self.prefix)
        if path.parent not in self.inside:
            self.inside[path.parent] = path.parent.resolve().is_relative_to(self.folder.resolve())
        if not self.inside[path.parent]:
            raise NoPlace(
                f"{path.parent} is a link that leads out of {self.folder}, and nothing is written "
                "through it. Move the link away, and fetch again"
            )
        return path


def explained(error: OSError, bucket_name: str, name: str) -> Exception:
    """Return NoPlace for an object that can have no file, else the error."""
    if error.errno not in NO_PLACE:
        return error
    if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
        return NoPlace(
            "a folder of that name is in its place. Move the folder away, and fetch again"
        )
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
            left[blob.name] = RepoFile("it could configure programs on this computer")
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


def is_here(blob: Any, path: Path) -> bool:
    """Return whether a file has an object's bytes; give it the object's time then.

    The file is opened once: another fetch may replace it meanwhile.
    """
    try:
        file = path.open("rb")
    except (FileNotFoundError, IsADirectoryError):
        return False
    with file:
        updated, here = blob.updated.timestamp(), os.fstat(file.fileno())
        if here.st_size != blob.size:
            return False
        if abs(here.st_mtime - updated) < 1e-3:
            return True
        if crc32c_of(blocks(file, blob.size)) != blob.crc32c:
            return False
        os.utime(file.fileno(), (updated, updated))
        return True


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
    """Make a folder for temporary files on the file system of `folder`; outside of `berg_results`
    if possible.

    The mirror ignores it elsewhere, and where a machine died before it was removed.
    """
    mirrored = [above.parent for above in (folder, *folder.parents) if above.name == "berg_results"]
    for place in (*mirrored[-1:], folder.parent):
        with contextlib.suppress(OSError):
            if place.stat().st_dev == folder.stat().st_dev:
                return Path(tempfile.mkdtemp(prefix=".berg-parts-", dir=place))
    return Path(tempfile.mkdtemp(prefix=".berg-parts-", dir=folder))


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

    def bring(self, blob: Any, parts: Path, path: Path) -> Future[bool] | None:
        """Begin to download an object to `path`, with a temporary file in `parts`.

        Return the future answer: whether it is there, whole; None without a process.
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
            headers = {"Accept-Encoding": "gzip"}
            self.signed = api.signed(self.bucket.config, "GET", url, headers)
            self.signed_at = time.monotonic()
        task = {
            "target": url.removeprefix(api.storage_url(self.bucket.config)),
            "headers": self.signed,
            "part": str(parts / f".berg-part-{number}"),
            "path": str(path),
            "updated": blob.updated.timestamp(),
        }
        return living[number % len(living)].bring(number, task)

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
