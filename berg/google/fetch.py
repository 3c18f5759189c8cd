"""Objects brought to a folder: to a laptop, and to a machine that goes on with another one's job.

Not covered: file systems that take two names for one, such as those that do not tell `A` from `a`.
"""

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from berg.google.checksum import file_crc32c

Item = TypeVar("Item")
Done = TypeVar("Done")
THREADS = 8
PARTS = re.compile(r"\.berg-parts-[a-z0-9_]{8}")  # folders of what is on its way
# What no later try will change: a name that this file system cannot hold, or not beside the others.
NO_PLACE = {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ELOOP}
NO_PLACE |= {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}


class NoPlace(Exception):
    """An object that can have no file in the folder."""


def fetch(
    bucket,
    prefix: str,
    folder: Path,
    progress: Callable[[str, int], None] = lambda name, n: None,
    done: Callable[[Any], None] = lambda blob: None,
    listed: Iterable[Any] | None = None,
) -> tuple[int, int, dict[str, Exception]]:
    """Bring the objects under `prefix`, or those `listed`, to `folder`, each below it as below the
    prefix.

    Returns how many were new or changed, how many there are, and by their names those that could
    not be brought, with why: NoPlace, or trouble that may pass. Files keep the object's time, so
    that a later fetch recognises them without reading them. `done` hears of the Blob of each, one
    at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = parts_beside(folder)

    def bring(blob) -> tuple[Any, bool, Exception | None]:
        try:
            return *bring_one(
                bucket, blob, folder / below(blob.name, prefix), parts, progress
            ), None
        except OSError as error:
            return blob, False, NoPlace(error.strerror) if error.errno in NO_PLACE else error
        except Exception as error:  # the others are brought all the same
            return blob, False, error

    new = total = 0
    left: dict[str, Exception] = {}
    blobs = bucket.list(prefix) if listed is None else listed
    try:
        # else what shows as a folder
        files = (blob for blob in blobs if blob.size or not blob.name.endswith("/"))
        for blob, is_new, error in side_by_side(bring, files):
            if error:
                left[blob.name] = error
            elif blob:
                done(blob)
                new, total = new + is_new, total + 1
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return new, total, left


def below(name: str, prefix: str) -> str:
    relative = name[len(prefix) :]
    if any(part in ("", ".", "..") for part in relative.split("/")) or "\0" in relative:
        raise NoPlace("it is no name of a file, or would land outside of the folder")
    return relative


def bring_one(
    bucket, blob, path: Path, parts: Path, progress: Callable[[str, int], None]
) -> tuple[Any, bool]:
    """The Blob that is here now, and whether it is new; None for one that was deleted meanwhile."""
    from google.api_core import exceptions

    while blob:
        updated = blob.updated.timestamp()
        try:
            here = path.stat()
            if here.st_size == blob.size and abs(here.st_mtime - updated) < 1e-3:
                return blob, False
            same = here.st_size == blob.size and file_crc32c(path) == blob.crc32c
        except FileNotFoundError:
            same = False
        try:
            if not same:
                bucket.download(blob.name, path, blob.generation, parts, blob.size)
                progress(blob.name, blob.size)
        except exceptions.NotFound:  # its job wrote it anew since it was listed
            blob = bucket.get(blob.name)
            continue
        os.utime(path, (updated, updated))
        return blob, not same
    return None, False


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


def side_by_side(
    work: Callable[[Item], Done], items: Iterable[Item], threads: int = THREADS
) -> Iterator[Done]:
    """What `work` makes of each item, in their order, with a bounded number of them under way."""
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[Done]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= 8 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
