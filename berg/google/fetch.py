"""Objects brought to a folder: to a laptop, and to a machine that goes on with another one's job.

Where a file system takes two names for one, as macOS' does `A` and `a`, the first one is brought,
and the other is named.
"""

import contextlib
import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from berg import BergError, computer
from berg.gate import names_repo
from berg.google.api import status_of
from berg.google.helpers import Helpers
from berg.google.media import blocks, crc32c_of

Item = TypeVar("Item")
Done = TypeVar("Done")
THREADS = 16
FILES = 256  # that are under way at a time
ABSENT = 404
LOCK = ".berg-lock"  # in each of them, held by the fetch that lives
PARTS = re.compile(r"\.berg-parts-[a-z0-9_]{8}")  # folders of what is on its way
# What no later try will change: a name that this file system cannot hold, or not beside the others.
NO_PLACE = {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ELOOP}
NO_PLACE |= {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}


class NoPlace(Exception):
    """An object that can have no file in the folder."""


class RepoFile(NoPlace):
    """An object whose file would be a part of a repo's settings; see checks.names_repo."""


class Gone(BergError):
    """An object that was deleted after it was listed."""


@dataclass
class Brought:
    """What became of one object."""

    blob: Any  # as it is here, where it is
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
    """Bring the objects under `prefix`, or those `listed`, to `folder`, each below it as below the
    prefix.

    Returns how many were new or changed, how many there are, and by their names those that could
    not be brought, with why: NoPlace, Gone, or trouble that may pass. Files in folders such as
    `.git` come only `with_repos`, to a job's machine; elsewhere they are a RepoFile. Files keep the
    object's time, so that a later fetch recognises them without reading them. `done` hears of the
    Blob of each, one at a time.
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
    """One fetch while it goes on: what is common to its objects, and what became of them so far."""

    bucket: Any
    prefix: str
    folder: Path
    parts: Path  # folder of what is on its way
    progress: Callable[[str, int], None]
    done: Callable[[Any], None]
    hidden: set[str] = field(default_factory=set)  # names below what is a file itself
    left: dict[str, Exception] = field(default_factory=dict)
    inside: dict[Path, bool] = field(default_factory=dict)  # folders no link leads out of
    new: int = 0
    total: int = 0

    def run(self, blobs: Iterable[Any]) -> None:
        """Bring objects, and count what became of them in the order of their names."""
        # an empty one whose name ends so shows as a folder
        files: Iterable[Any] = (blob for blob in blobs if blob.size or not blob.name.endswith("/"))
        if computer.folds_names(self.parts):
            files = note_folded(files, self.left)
        missing = self.without_unchanged(note_hidden(files, self.hidden))
        with Helpers(self.bucket.media) as helpers, ThreadPoolExecutor(THREADS) as pool:
            for brought in in_order(partial(self.begin, helpers, pool), missing):
                self.count(brought)

    def without_unchanged(self, blobs: Iterable[Any]) -> Iterator[Any]:
        """Yield those that are to be brought, or at least to be looked at; count the others."""
        for blob in blobs:
            if blob.name not in self.hidden and is_unchanged(blob, self.folder, self.prefix):
                self.count(Brought(blob))
            else:
                yield blob

    def count(self, brought: Brought) -> None:
        if brought.error:
            self.left[brought.blob.name] = brought.error
            return
        self.done(brought.blob)
        self.new += brought.is_new
        self.total += 1

    def begin(self, helpers: Helpers, pool: ThreadPoolExecutor, blob: Any) -> Callable[[], Brought]:
        """Begin to bring an object; return what waits for it."""
        by_helper = None
        with contextlib.suppress(NoPlace, NotADirectoryError):  # `bring` says so
            by_helper = helpers.bring(blob, self.parts, self.path_of(blob))
        if by_helper is None:
            return pool.submit(self.bring, blob).result
        return partial(self.wait, by_helper, blob)

    def wait(self, by_helper: "Future[bool]", blob: Any) -> Brought:
        """Wait for a helper; bring the object here if it could not."""
        if not by_helper.result():
            return self.bring(blob)
        self.progress(blob.name, blob.size)
        return Brought(blob, is_new=True)

    def bring(self, blob: Any) -> Brought:
        try:
            path = self.path_of(blob)
            there, is_new = bring_one(self.bucket, blob, path, self.parts, self.progress)
        except OSError as error:
            return Brought(blob, error=explained(error, self.bucket.name, blob.name))
        except Exception as error:  # the others are brought all the same
            return Brought(blob, error=error)
        if there is None:  # a job deletes none of its objects: a person does
            return Brought(blob, error=Gone("it was deleted while it was fetched"))
        return Brought(there, is_new)

    def path_of(self, blob: Any) -> Path:
        """Return where an object's file is to be.

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
    """Return what an error means for an object: NoPlace, or trouble that may pass."""
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
            f"Bring the folder elsewhere: berg data pull {address} OTHER_FOLDER"
        )
    return NoPlace(error.strerror)


def note_hidden(blobs: Iterable[Any], hidden: set[str]) -> Iterator[Any]:
    """Yield objects in the order of their names; note those below what is a file itself.

    The file is brought, whichever of them would be there first.
    """
    begins: list[str] = []  # names that the last one began with
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


def note_folded(blobs: Iterable[Any], left: dict[str, Exception]) -> Iterator[Any]:
    """Yield objects but for those whose name this file system takes for that of an earlier one;
    note why those are left.
    """
    names: dict[str, str] = {}
    for blob in blobs:
        first = names.setdefault(computer.folded(blob.name), blob.name)
        if first == blob.name:
            yield blob
        else:
            left[blob.name] = NoPlace(
                f"this disk takes its name for that of {first}, which was brought. Bring it to a "
                "disk that tells them apart"
            )


def below(name: str, prefix: str) -> str:
    relative = name[len(prefix) :]
    if any(part in ("", ".", "..") for part in relative.split("/")) or "\0" in relative:
        raise NoPlace("it is no name of a file, or would land outside of the folder")
    return relative


def bring_one(
    bucket: Any, blob: Any, path: Path, parts: Path, progress: Callable[[str, int], None]
) -> tuple[Any, bool]:
    """The Blob that is here now, and whether it is new; None for one that was deleted meanwhile."""
    while blob:
        if is_here(blob, path):
            return blob, False
        try:
            bucket.download(blob.name, path, blob.generation, parts, blob)
        except Exception as error:
            if status_of(error) != ABSENT:
                raise
            blob = bucket.get(blob.name)  # its job wrote it anew since it was listed
            continue
        progress(blob.name, blob.size)
        return blob, True
    return None, False


def is_unchanged(blob: Any, folder: Path, prefix: str) -> bool:
    """Return whether a file has an object's size and time, by a look at it from outside."""
    try:
        here = (folder / below(blob.name, prefix)).stat()
    except (OSError, NoPlace):
        return False
    same_time = abs(here.st_mtime - blob.updated.timestamp()) < 1e-3
    return stat.S_ISREG(here.st_mode) and here.st_size == blob.size and same_time


def is_here(blob: Any, path: Path) -> bool:
    """Return whether a file has an object's bytes; give it the object's time then.

    The file is opened once: another fetch may put another one in its place meanwhile.
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
    """Make a folder for what is on its way, and remove those that killed fetches left beside it.

    Return its path and the descriptor of its lock, which tells that somebody uses it.
    """
    parts = parts_beside(folder)
    lock = os.open(parts / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks keeps what was left
        fcntl.flock(lock, fcntl.LOCK_EX)
    for other in parts.parent.glob(".berg-parts-*"):
        if other != parts and PARTS.fullmatch(other.name):
            remove_if_left(other)
    return parts, lock


def remove_if_left(parts: Path) -> None:
    """Remove the parts of a fetch that lives no more; another folder of such a name stays."""
    try:
        lock = os.open(parts / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(parts, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(lock)


def is_parts(path: Path) -> bool:
    """Return whether a path is a folder of what is on its way, and not somebody's of such a name.

    It is empty for a moment before it has its lock.
    """
    if not PARTS.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    return (path / LOCK).exists() or not any(path.iterdir())


def parts_beside(folder: Path) -> Path:
    """A new folder for what is on its way to `folder`, on its file system; outside of
    `berg_results`, if that can be.

    The mirror passes over it where it cannot, and where a machine died before it was removed.
    """
    mirrored = [above.parent for above in (folder, *folder.parents) if above.name == "berg_results"]
    for place in (*mirrored[-1:], folder.parent):
        with contextlib.suppress(OSError):
            if place.stat().st_dev == folder.stat().st_dev:
                return Path(tempfile.mkdtemp(prefix=".berg-parts-", dir=place))
    return Path(tempfile.mkdtemp(prefix=".berg-parts-", dir=folder))


def in_order(
    begin: Callable[[Item], Callable[[], Done]], items: Iterable[Item], most: int = FILES
) -> Iterator[Done]:
    """What becomes of each item that is begun, in their order, with a bounded number of them under
    way.
    """
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
    """What `work` makes of each item, in their order, with a bounded number of them under way."""
    with ThreadPoolExecutor(threads) as pool:
        yield from in_order(lambda item: pool.submit(work, item).result, items, 8 * threads)
