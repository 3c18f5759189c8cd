"""Which files and links of a folder of results are mirrored, and which of them changed.

Links are mirrored as links where they stay inside; only where the job's own folder is one, it is
followed. Pipes, sockets, devices and links to them are named, and not mirrored.

Changes are reported by inotify, called in the C library: Python has no module for it, and machines
get few packages. It does not report writes through a memory map, a hard link from outside, or
another machine on a network file system, so the mirror also looks at everything now and then; and
always where there is no inotify, or no watches are left.
"""

import contextlib
import ctypes
import errno
import functools
import os
import posixpath
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from berg import plain
from berg.google import fetch
from berg.google.views import stays_inside

MAX_NAME = 1024  # bytes of an object's name
# Kinds of what is not mirrored, in words.
ODD = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
ODD |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")

# <sys/inotify.h>
MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, OVERFLOW, IGNORED, ONLY_FOLDERS = 0x400, 0x800, 0x4000, 0x8000, 0x1000000
OF_FOLDER = 0x40000000
WANTED = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
WANTED |= DELETE_SELF | MOVE_SELF | ONLY_FOLDERS
EVENT = struct.Struct("iIII")  # watch, what happened, cookie, bytes of the name
BUFFER = 1 << 20  # bytes read at a time

LOOK_SHARE = 1000  # looks at everything take at most one part in so many of the time,
LOOK_SECONDS = 300  # but there is one at least so often
MOST = 20_000  # paths that are kept in memory; with more of them everything is looked at


@dataclass
class Walk:
    """One walk over `root`, which fills `refused`."""

    root: Path
    prefix: str  # of the objects' names
    own: str  # folder of the job, below the root
    rejected: Collection[str]  # paths that are ignored
    refused: dict[str, str] = field(default_factory=dict)  # path -> why
    followed: Collection[str] = ()  # links to folders outside, which are mirrored, too
    on_folder: Callable[[str], None] = lambda path: None  # called before a folder is read
    # Real paths of folders that links may lead to, and the folders' own paths.
    inside: dict[str, str] = field(init=False)
    reached: dict[str, os.stat_result] = field(
        default_factory=dict
    )  # folders, on the way to others

    def __post_init__(self) -> None:
        self.inside = {os.path.realpath(self.root): ""}

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield regular files and links with their stat."""
        self.reach(self.own)  # where it is a link, others may lead to the same folder
        yield from self.below("")

    def among(self, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield those of `files` that are one of the paths, or below one; some may come twice."""
        self.reach(self.own)  # where it is a link, others may lead to the same folder
        for path in paths:
            seen = self.reach(path)
            if seen and stat.S_ISDIR(seen.st_mode):
                yield from self.below(path)
            elif seen:
                yield path, seen

    def below(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        pending = [top]
        while pending:
            folder = pending.pop()
            for entry in self.entries(folder):
                path = f"{folder}/{entry.name}".lstrip("/")
                seen = self.look_at(entry, path)
                if seen and stat.S_ISDIR(seen.st_mode):
                    pending.append(path)
                elif seen:
                    yield path, seen

    def reach(self, path: str) -> os.stat_result | None:
        """Go down from the root to a path, by the same rules as a walk over everything."""
        if not path:
            return self.root.stat()
        if path in self.reached:
            return self.reached[path]
        folder = self.reach(path.rpartition("/")[0])
        if not (folder and stat.S_ISDIR(folder.st_mode)):
            return None
        seen = self.look_at(self.root / path, path)
        if seen and stat.S_ISDIR(seen.st_mode):
            self.reached[path] = seen
        return seen

    def entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        self.on_folder(folder)
        try:
            yield from os.scandir(self.root / folder)
        except FileNotFoundError:
            return
        except OSError as error:
            self.refused[folder or "."] = error.strerror or str(error)

    def look_at(self, entry: os.DirEntry[str] | Path, path: str) -> os.stat_result | None:
        """Return the stat of a folder, file or link, None to ignore it."""
        if path in self.rejected or fetch.is_parts(self.root / path):
            return None
        try:
            return self.visit(entry, path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.refused[path] = error.strerror or str(error)
        return None

    def visit(self, entry: os.DirEntry[str] | Path, path: str) -> os.stat_result | None:
        seen = os.lstat(entry)
        is_followed = path in self.followed or f"{self.own}/".startswith(f"{path}/")
        if stat.S_ISLNK(seen.st_mode) and is_followed:  # mirrored as the folder that it leads to
            seen = self.follow(entry, path) or seen
            if stat.S_ISLNK(seen.st_mode) and path in self.followed:
                return None  # its folder is not there now
        why = bad_name(self.prefix + path) or self.why_odd(entry, path, seen)
        if why:
            self.refused[path] = why
            return None
        return seen

    def why_odd(self, entry: os.DirEntry[str] | Path, path: str, seen: os.stat_result) -> str:
        """Return why the kind of what is at a path is not mirrored; "" if it is."""
        if not stat.S_ISLNK(seen.st_mode):
            return ODD.get(stat.S_IFMT(seen.st_mode), "")
        if not self.target(path):
            return "a link to outside of the results"
        with contextlib.suppress(OSError):  # it leads nowhere now
            kind = ODD.get(stat.S_IFMT(Path(entry).stat().st_mode))
            return f"a link to {kind}" if kind else ""
        return ""

    def follow(self, entry: os.DirEntry[str] | Path, path: str) -> os.stat_result | None:
        """Return the stat of the folder that a link leads to, None if it cannot be mirrored."""
        real = os.path.realpath(entry)
        if is_harmless(real, os.path.realpath(self.root)):
            self.inside[real] = path
        return Path(entry).stat() if real in self.inside else None

    def target(self, path: str) -> str:
        """Return where a link leads from its own folder, "" for one that leads out of the root."""
        text = str((self.root / path).readlink())
        folder = path.rpartition("/")[0]
        if text.startswith("/"):
            to = self.path_inside(posixpath.normpath(text))
            to = to or self.path_inside(os.path.realpath(text))
        else:
            to = posixpath.normpath(posixpath.join(folder, text))
        if not to or f"{to}/".startswith("../"):
            return ""
        found = posixpath.relpath(to, folder or ".")
        return found if stays_inside(path, found) else ""

    def path_inside(self, real: str) -> str:
        """Return the path of an absolute one below the root, "" outside."""
        for top, path in self.inside.items():
            if is_below(real, top):
                return posixpath.normpath(posixpath.join(path, posixpath.relpath(real, top)))
        return ""


@dataclass
class Watch:
    """The paths below `root` that are to be looked at; one thread at a time calls its methods."""

    root: Path
    file: int = -1  # descriptor of the inotify instance; -1: there is none
    folders: dict[int, set[str]] = field(default_factory=dict)  # watch -> paths, of links as well
    before: dict[int, set[str]] = field(default_factory=dict)  # the same, before this look
    pending: set[str] | None = None  # paths to look at; None: everything
    next_look: float = 0  # when everything is to be looked at, time.monotonic()
    ended: bool = False
    # path -> how often a file was closed after writing, or got its name, since the last look; and
    # what happened to it after that
    closed: dict[str, int] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)  # folders that got their name since
    removed: set[str] = field(default_factory=set)  # paths that were deleted or renamed since
    renamed: set[str] = field(default_factory=set)  # those of them that got other names, each time
    reported: set[str] = field(default_factory=set)  # all paths with which something happened since
    fresh: set[str] = field(default_factory=set)  # folders of which nothing was reported before

    def __del__(self) -> None:
        self.close()

    def due(self) -> set[str] | None:
        """Return the paths that are to be looked at now, None for everything, and forget them."""
        self.closed, self.moved, self.fresh = {}, set(), set()
        self.removed, self.renamed, self.reported = set(), set(), set()
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
        """Begin a look at everything; only the folders that it finds are watched after that."""
        if self.pending is None:  # what was reported is lost
            self.close()
        self.before, self.folders, self.pending = self.folders, {}, None
        if self.ended:
            return
        if self.file < 0:
            with contextlib.suppress(AttributeError):  # a system without inotify
                self.file = c_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.file >= 0:
            self.pending = set()

    def looked(self, seconds: float) -> None:
        """Plan the next look at everything, after one that took so many seconds."""
        for watch in self.before.keys() - self.folders.keys():
            c_library().inotify_rm_watch(self.file, watch)
        self.before = {}
        self.next_look = time.monotonic() + min(LOOK_SHARE * seconds, LOOK_SECONDS)

    def add(self, path: str) -> None:
        """Watch a folder, before it is read, so that no change in between is missed."""
        if self.file < 0:
            self.fresh.add(path)
            return
        where = os.fsencode(self.root / path)
        watch = c_library().inotify_add_watch(self.file, where, WANTED)
        if watch >= 0:
            paths = self.folders.setdefault(watch, set())
            if path not in paths | self.before.get(watch, set()):
                self.fresh.add(path)
            paths.add(path)
            return
        # else the folder was deleted just now, or cannot be read, and its parent reports changes
        is_gone = ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
        if not (is_gone and path):
            self.forget()
        if not is_gone:
            self.end()  # such as where the user has no watches left: leave those to others

    def read(self) -> None:
        """Keep the paths that the kernel reports."""
        leaving = dict[int, set[str]]()  # cookie -> paths that are about to get another name
        with contextlib.suppress(BlockingIOError):
            while self.file >= 0:
                data, start = os.read(self.file, BUFFER), 0
                while start < len(data):
                    watch, what, cookie, length = EVENT.unpack_from(data, start)
                    start += EVENT.size + length
                    if what & OVERFLOW:
                        self.forget()
                    name = os.fsdecode(data[start - length : start].rstrip(b"\0"))
                    for folder in self.folders.get(watch, ()):
                        path = f"{folder}/{name}".strip("/")
                        self.keep(path)
                        if what & MOVED_FROM and path not in self.removed:
                            leaving.setdefault(cookie, set()).add(path)
                        elif what & MOVED_TO:
                            self.renamed |= leaving.pop(cookie, set())
                        self.note(path, what)
                    if what & IGNORED:
                        self.folders.pop(watch, None)

    def note(self, path: str, what: int) -> None:
        """Count what tells apart the versions of a file between two looks."""
        if self.pending is None:
            return  # too much happened to know it
        self.reported.add(path)
        if what & (MOVED_TO | CLOSE_WRITE) or path in self.closed:
            self.closed[path] = self.closed.get(path, 0) + 1
        if what & MOVED_TO and what & OF_FOLDER:
            self.moved.add(path)
        if what & (DELETE | MOVED_FROM):
            self.removed.add(path)
        if what & DELETE:
            self.renamed.discard(path)

    def is_moved(self, path: str) -> bool:
        """Return whether a folder above a path got its name since the last look."""
        return any(f"{path}/".startswith(f"{folder}/") for folder in self.moved)

    def forget(self) -> None:
        """Let the next look be one at everything; what was reported may not be all."""
        self.pending, self.closed = None, {}

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


def name_left(left: dict[str, str], yet: str = "") -> str:
    """Return how many files are not in the bucket, and the first of them with why, short enough for
    a state.
    """
    if not left:
        return ""
    count = "1 file is" if len(left) == 1 else f"{len(left)} files are"
    names = [f"{shorten(path, 80)} ({shorten(why, 120)})" for path, why in list(left.items())[:3]]
    more = [f"{len(left) - 3} more"] if len(left) > 3 else []
    return f"{count} not in the bucket{yet}: " + ", ".join(names + more)


def shorten(text: str, length: int) -> str:
    """Return any text printable, and not longer than `length`."""
    text = plain.name(text)
    return text if len(text) <= length else f"{text[: length - 20]}…{text[-19:]}"
