"""Moments: what the results of a job were at one instant, as the bucket has them.

Each machine of a job writes moments, numbered objects that list its files with the generations of
their objects. A moment that all machines have is the job's. What a row lists is in the object of
that name, or was copied aside before it was replaced or deleted. Here is also what a restore and a
fetch have in common: how content is found, and which names can be files.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from berg.bucket import PIECE, THREADS, Bucket, Changed, Object, checksum
from berg.job import kept_prefix, moments_prefix

OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would wait for a writer
FINAL = "-final"  # suffix of a machine's last moment
# Suffix of a moment in which files that were being rewritten have their previous version. Only with
# several machines: they are seldom all quiet at the same time.
PARTLY = "-partly"
WHOLE_AGE = 10  # ticks by which a moment may be older that is whole on all machines
# The name of a file whose path a lower rank writes, too.
RANK_NAME = re.compile(r"(.+)\.~rank([1-9]\d*)~", re.S)
LOOKS = 10  # at the moments, if they are deleted meanwhile
# Downloads at the same time of files up to so many bytes; a larger one than a piece has several connections.
AT_ONCE = ((1 << 20, 4 * THREADS), (PIECE, 2 * THREADS), (1 << 62, THREADS))

T = TypeVar("T")


class Row(NamedTuple):
    """A file of a moment, and the generation of the object that has its bytes."""

    size: int = 0  # -1: the content of the object is not known, or not that of a file here
    crc: int = 0
    generation: int = 0
    mtime_ns: int = 0
    mode: int = 0o644
    grows: bool = False
    link: str = ""


UNKNOWN = Row(size=-1)


def common(names: Iterable[str], machines: int) -> tuple[int, dict[str, str]]:
    """The number of the moment that counts, which all machines have, and its object for each of them.

    It is the newest, or the newest that is whole if that is hardly older. A machine that has ended
    counts with its last moment from then on. Names are those of objects of one attempt:
    …/RANK/NUMBER.
    """
    moments: dict[str, dict[int, str]] = {}
    finals: dict[str, int] = {}
    for name in names:
        disk = name.split("/")[-2]
        own, number = moments.setdefault(disk, {}), number_of(name)
        if name.endswith(FINAL):
            finals[disk] = number
        if finals.get(disk) != number or name.endswith(FINAL):
            own[number] = name
    found: tuple[int, dict[str, str]] = 0, {}
    if len(moments) < machines:
        return found
    for number in sorted({n for each in moments.values() for n in each}, reverse=True):
        if found[0] - number > WHOLE_AGE:
            break
        chosen = {}
        for disk, each in moments.items():
            is_over = finals.get(disk, number + 1) <= number
            if is_over or number in each:
                chosen[disk] = each[finals[disk]] if is_over else each[number]
        if len(chosen) == len(moments):
            if not any(name.endswith(PARTLY) for name in chosen.values()):
                return number, chosen
            found = found if found[0] else (number, chosen)
    return found


def newest(
    bucket: Bucket, job: str, machines: int = 1, before_ns: int = 1 << 62
) -> tuple[int, int, dict[str, Row]]:
    """Attempt, time and rows of the newest moment that all machines of a job have."""
    for _ in range(LOOKS):
        with contextlib.suppress(FileNotFoundError):  # a machine has deleted it meanwhile
            return newest_listed(bucket, job, machines, before_ns)
    raise Changed(f"the moments of {job} change all the time")


def newest_listed(
    bucket: Bucket, job: str, machines: int, before_ns: int
) -> tuple[int, int, dict[str, Row]]:
    """The same from one list; raises FileNotFoundError if a moment of it is deleted meanwhile."""
    attempts: dict[int, list[str]] = {}
    for each in bucket.list(moments_prefix(job)):
        attempts.setdefault(int(each.name.split("/")[-3]), []).append(each.name)
    for attempt, names in sorted(attempts.items(), reverse=True):
        number, found = common(names, machines)
        while number:
            moments = {disk: json.loads(bucket.read(name)) for disk, name in found.items()}
            at_ns = max(each["at_ns"] for each in moments.values())
            if at_ns <= before_ns:
                return attempt, at_ns, union(moments)
            names = [name for name in names if number_of(name) < number]
            number, found = common(names, machines)
    return 0, 0, {}


def end_for(bucket: Bucket, job: str, attempt: int, rank: int) -> None:
    """Let the last moment of a machine that is gone count as its end; an empty one if it has none."""
    prefix = f"{moments_prefix(job)}{attempt:04}/{rank}/"
    found = [*bucket.list(prefix)]
    last = max(found, key=lambda item: number_of(item.name), default=None)
    if last is None:
        nothing = {"at_ns": 0, "gone": {}, "rows": {}}
        bucket.write(f"{prefix}{0:012}{FINAL}", json.dumps(nothing).encode(), 0)
    elif not any(item.name.endswith(FINAL) for item in found):
        bucket.copy(last.name, last.generation, last.name.removesuffix(PARTLY) + FINAL)


def number_of(name: str) -> int:
    return int(name.rpartition("/")[2].partition("-")[0])


def union(moments: dict[str, dict[str, Any]]) -> dict[str, Row]:
    """The files of all machines, whose moments are given by rank: the newest of a path, but a file before
    a link; not what one deleted that was restored. A higher rank's file that a lower one has replaced,
    so that it is older, has a name of its own; rank 0 lists what all restored, too.
    """
    rows: dict[str, Row] = {}
    for rank in sorted(moments, key=int):
        for name, values in moments[rank]["rows"].items():
            row, lower = Row(*values), rows.get(name)
            if not lower or (not row.link, row.generation) >= (not lower.link, lower.generation):
                rows[name] = row
            elif (row.size, row.crc, row.link) != (lower.size, lower.crc, lower.link):
                rows.setdefault(rank_name(name, rank), row)
    for name, content in (item for each in moments.values() for item in each["gone"].items()):
        if name in rows and [rows[name].size, rows[name].crc, rows[name].link] == content:
            del rows[name]
    return rows


def rank_name(path: str, rank: str | int) -> str:
    """The name of a machine's file whose path a lower rank writes, too."""
    return f"{path}.~rank{rank}~"


def split_name(name: str, machines: int) -> tuple[str, str]:
    """Path and rank of such a name; of a plain one the name and ""."""
    found = RANK_NAME.fullmatch(name)
    return (found[1], found[2]) if found and int(found[2]) < machines else (name, "")


def copies(bucket: Bucket, job: str) -> dict[str, list[Object]]:
    """The copies aside of a job by `hashed` of their paths."""
    found: dict[str, list[Object]] = {}
    for each in bucket.list(kept_prefix(job)):
        found.setdefault(each.name.rpartition("/")[2].partition("-")[0], []).append(each)
    return found


def bring_all(bring: Callable[[str], T], rows: dict[str, Row]) -> list[T]:
    """What `bring` returns for each path, the small files first; after an error nothing more is begun."""
    found, above = list[T](), -2  # -1 is an unknown size
    for most, threads in AT_ONCE:
        paths = [path for path, row in rows.items() if above < row.size <= most]
        with ThreadPoolExecutor(threads) as pool:
            found += pool.map(bring, paths)
        above = most
    return found


def sources(name: str, there: Object | None, kept: list[Object], row: Row) -> list[str]:
    """The objects that may have the content of a row, the most likely first: the plain object if it is
    that, the copy of its generation, and what may have grown since.
    """
    is_exact = there and (there.size, there.crc) == (row.size, row.crc)
    is_longer = there and not is_exact and there.size >= row.size
    exact = [each.name for each in kept if each.name.endswith(f"-{row.generation}")]
    longer = [each.name for each in kept if row.grows and each.size >= row.size]
    return [name] * bool(is_exact) + exact + [name] * bool(is_longer) + longer


def download(
    bucket: Bucket,
    name: str,
    there: Object | None,
    kept: list[Object],
    to: Path,
    row: Row,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> None:
    """Download what a row says from the plain object or a copy aside."""
    for source in sources(name, there, kept, row):
        with contextlib.suppress(Changed, FileNotFoundError):
            bucket.download(source, to, row.size, row.crc, on_bytes)
            return
    to.unlink(missing_ok=True)
    raise Changed(f"{name}: the bucket does not have it as the moment says")


def is_there(path: Path, row: Row) -> bool:
    """Whether a file has the content of a row."""
    with (
        contextlib.suppress(OSError, Changed),
        open(os.open(path, OPEN), "rb", buffering=0) as file,
    ):
        return (
            os.fstat(file.fileno()).st_size == row.size and checksum(file, 0, row.size) == row.crc
        )
    return False


def is_plain(path: str) -> bool:
    """Whether an object's name can be that of a file here."""
    return not {"", ".", ".."} & {*path.split("/")} and "\0" not in path


@functools.cache
def misnamed(name: str) -> str:
    """Why Cloud Storage, or obstore, does not take a name; "" for most."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if re.search(r"[\0-\x1f\x7f]", name):
        return "its name has a line break or another control character"
    return "its name is too long" if size > 1024 else ""


@functools.cache
def hashed(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:24]
