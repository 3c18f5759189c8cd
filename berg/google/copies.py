"""Files on this computer that a fetch wrote: how they are recognised, and how others are kept.

A copy has the time of its file in the bucket, to the millisecond. The six digits after that are
made from it, the size and the crc32c. So a later fetch knows a file that did not change by its stat
alone, and, before it replaces one, by its content whether a user edited it.
"""

import contextlib
import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path

from berg.google.storage import blocks, crc32c_of


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
