"""Which files of a folder of results are mirrored, and which of them changed.

Links are followed where they stay inside, and where the job's own folder is one. Changes are
reported by inotify, called in the C library: Python has no module for it, and machines get few
packages. It does not report writes through a memory map, a hard link from outside, or another
machine on a network file system, so the mirror also looks at everything now and then; and always
where there is no inotify, or no watches are left.
"""

import contextlib
import ctypes
import errno
import functools
import os
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from berg import plain
from berg.google import fetch

MAX_NAME = 1024  # bytes of an object's name

# <sys/inotify.h>
MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, OVERFLOW, IGNORED, ONLY_FOLDERS = 0x400, 0x800, 0x4000, 0x8000, 0x1000000
WANTED = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
WANTED |= DELETE_SELF | MOVE_SELF | ONLY_FOLDERS
EVENT = struct.Struct("iIII")  # watch, what happened, cookie, bytes of the name
BUFFER = 1 << 20  # bytes read at a time

LOOK_SHARE = 1000  # looks at everything take at most one part in so many of the time,
LOOK_SECONDS = 300  # but there is one at least so often
MOST = 20_000  # paths that are kept in memory; with more of them everything is looked at


@dataclass
class Folder:
    """A folder that is still to be read."""

    path: str  # below the root; "" is the root
    above: tuple[str, ...]  # its real path and those of the folders that lead to it


@dataclass
class Walk:
    """One walk over `root`, which fills `refused` and `links`."""

    root: Path
    prefix: str  # of the objects' names
    own: str  # folder of the job, below the root
    rejected: Collection[str]  # paths that are ignored
    refused: dict[str, str] = field(default_factory=dict)  # path -> why
    links: set[str] = field(default_factory=set)  # paths whose targets are sent
    followed: Collection[str] = ()  # links to folders outside, which are mirrored, too
    on_folder: Callable[[str], None] = lambda path: None  # called before a folder is read
    inside: list[str] = field(init=False)  # real paths of folders that links may lead to
    reached: dict[str, Folder] = field(default_factory=dict)  # by path, on the way to others

    def __post_init__(self) -> None:
        self.inside = [os.path.realpath(self.root)]

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield regular files with their stat."""
        yield from self.below(self.top)

    def among(self, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield those of `files` that are one of the paths, or below one; some may come twice."""
        self.reach(self.own)  # where it is a link, others may lead to the same folder
        for path in paths:
            found = self.reach(path)
            if isinstance(found, Folder):
                yield from self.below(found)
            elif found:
                yield path, found

    @property
    def top(self) -> Folder:
        return Folder("", (self.inside[0],))

    def below(self, top: Folder) -> Iterator[tuple[str, os.stat_result]]:
        pending = [top]
        while pending:
            folder = pending.pop()
            for entry in self.entries(folder):
                path = f"{folder.path}/{entry.name}".lstrip("/")
                found = self.look_at(entry, path, folder)
                if isinstance(found, Folder):
                    pending.append(found)
                elif found:
                    yield path, found

    def reach(self, path: str) -> Folder | os.stat_result | None:
        """Go down from the root to a path, by the same rules as a walk over everything."""
        if not path:
            return self.top
        if path in self.reached:
            return self.reached[path]
        folder = self.reach(path.rpartition("/")[0])
        if not isinstance(folder, Folder):
            return None
        found = self.look_at(self.root / path, path, folder)
        if isinstance(found, Folder):
            self.reached[path] = found
        return found

    def entries(self, folder: Folder) -> Iterator[os.DirEntry[str]]:
        self.on_folder(folder.path)
        try:
            yield from os.scandir(self.root / folder.path)
        except FileNotFoundError:
            return
        except OSError as error:
            self.refused[folder.path or "."] = error.strerror or str(error)

    def look_at(
        self, entry: os.DirEntry[str] | Path, path: str, folder: Folder
    ) -> Folder | os.stat_result | None:
        """Return the folder or the stat of the file that an entry is, None to ignore it."""
        try:
            return self.visit(entry, path, folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.refused[path] = error.strerror or str(error)
        return None

    def visit(
        self, entry: os.DirEntry[str] | Path, path: str, folder: Folder
    ) -> Folder | os.stat_result | None:
        real = os.path.realpath(entry) if entry.is_symlink() else ""
        if self.may_lead_out(path, real):
            self.inside.append(real)
        is_gone = path in self.followed and not entry.is_dir()
        if is_gone or path in self.rejected or fetch.is_parts(self.root / path):
            return None
        if why := self.why_not(path, real):
            self.refused[path] = why
            return None
        if entry.is_dir():
            return self.visit_folder(entry, path, real, folder)
        if not entry.is_file():
            return None
        if real:
            self.links.add(path)
        return entry.stat()

    def may_lead_out(self, path: str, real: str) -> bool:
        """Return whether what is in the target of a link is mirrored although it is outside."""
        is_meant = path in self.followed or f"{self.own}/".startswith(f"{path}/")
        return bool(real) and is_meant and is_harmless(real, self.inside[0])

    def why_not(self, path: str, real: str) -> str:
        """Return why a path is refused, "" if it is not; `real` is the target of a link."""
        if real and not any(is_below(real, folder) for folder in self.inside):
            return "a link to outside of the results"
        return bad_name(self.prefix + path)

    def visit_folder(
        self, entry: os.DirEntry[str] | Path, path: str, real: str, folder: Folder
    ) -> Folder | None:
        target = real or os.path.realpath(entry)
        if target in folder.above:
            self.refused[path] = "a link to a folder that holds it"
            return None
        if real and real not in self.inside:
            self.links.add(path)
        return Folder(path, (*folder.above, target))


@dataclass
class Watch:
    """The paths below `root` that are to be looked at; one thread at a time calls its methods."""

    root: Path
    file: int = -1  # descriptor of the inotify instance; -1: there is none
    folders: dict[int, set[str]] = field(default_factory=dict)  # watch -> paths, of links as well
    pending: set[str] | None = None  # paths to look at; None: everything
    next_look: float = 0  # when everything is to be looked at, time.monotonic()
    ended: bool = False

    def __del__(self) -> None:
        self.close()

    def due(self) -> set[str] | None:
        """Return the paths that are to be looked at now, None for everything, and forget them."""
        self.read()
        due = self.pending
        if due is None or "" in due or time.monotonic() > self.next_look:
            return None
        self.pending = set()
        return due

    def keep(self, path: str) -> None:
        """Let a path be looked at once more."""
        if self.pending is None:
            return
        self.pending.add(path)
        if len(self.pending) > MOST:
            self.pending = None

    def begin(self) -> None:
        """Begin a look at everything with new watches, so that no deleted folder stays watched."""
        self.close()
        self.pending = None
        if self.ended:
            return
        with contextlib.suppress(AttributeError):  # a system without inotify
            self.file = c_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.file >= 0:
            self.pending = set()

    def looked(self, seconds: float) -> None:
        """Plan the next look at everything, after one that took so many seconds."""
        self.next_look = time.monotonic() + min(LOOK_SHARE * seconds, LOOK_SECONDS)

    def add(self, path: str) -> None:
        """Watch a folder, before it is read, so that no change in between is missed."""
        if self.file < 0:
            return
        where = os.fsencode(self.root / path)
        watch = c_library().inotify_add_watch(self.file, where, WANTED)
        if watch >= 0:
            self.folders.setdefault(watch, set()).add(path)
            return
        # else the folder was deleted just now, or cannot be read, and its parent reports changes
        is_gone = ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
        if not (is_gone and path):
            self.forget()
        if not is_gone:
            self.end()  # such as where the user has no watches left: leave those to others

    def read(self) -> None:
        """Keep the paths that the kernel reports."""
        with contextlib.suppress(BlockingIOError):
            while self.file >= 0:
                data, start = os.read(self.file, BUFFER), 0
                while start < len(data):
                    watch, what, _, length = EVENT.unpack_from(data, start)
                    start += EVENT.size + length
                    if what & OVERFLOW:
                        self.forget()
                    name = os.fsdecode(data[start - length : start].rstrip(b"\0"))
                    for folder in self.folders.get(watch, ()):
                        self.keep(f"{folder}/{name}".strip("/"))
                    if what & IGNORED:
                        self.folders.pop(watch, None)

    def forget(self) -> None:
        """Let the next look be one at everything."""
        self.pending = None

    def end(self) -> None:
        """Let every look from now on be one at everything."""
        self.ended = True
        self.close()
        self.forget()

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file, self.folders = -1, {}


@functools.cache
def c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([folder, path]) == folder


def is_harmless(target: str, root: str) -> bool:
    """Return whether the target of a job's own folder can be mirrored: a folder outside of the
    root, and not the system's.
    """
    system = ("/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/root/berg")
    return (
        Path(target).is_dir()
        and not is_below(root, target)
        and not any(is_below(target, each) for each in system)
    )


def bad_name(name: str) -> str:
    """Return why Cloud Storage cannot take a name, "" if it can."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if size > MAX_NAME:
        return f"its name is longer than {MAX_NAME} bytes"
    return "its name has a line break" if "\n" in name or "\r" in name else ""


def name_left(left: dict[str, str], yet: str = "", shown: int = 3) -> str:
    """Return how many files are not in the bucket, and the first of them with why, short enough for
    a state.
    """
    if not left:
        return ""
    count = "1 file is" if len(left) == 1 else f"{len(left)} files are"
    names = [
        f"{shorten(path, 80)} ({shorten(why, 120)})" for path, why in list(left.items())[:shown]
    ]
    more = [f"{len(left) - shown} more"] if len(left) > shown else []
    return f"{count} not in the bucket{yet}: " + ", ".join(names + more)


def shorten(text: str, length: int) -> str:
    """Return any text printable, and not longer than `length`."""
    text = plain.name(text)
    return text if len(text) <= length else f"{text[: length - 20]}…{text[-19:]}"
