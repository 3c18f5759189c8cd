"""Which paths below a folder changed, as Linux tells it: inotify.

Python has no module for it, and machines get few packages, so it is called in the C library. Each
folder is watched by itself, which takes the kernel about a kilobyte. Looks at everything go on
beside it, since inotify does not tell of bytes that are written through a memory map, through a
hard link from outside, or on a network's file system by another machine. What cannot be watched,
such as on a system without inotify or with no watches left, is looked at as a whole each time.
"""

import contextlib
import ctypes
import errno
import functools
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

# <sys/inotify.h>
MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = (
    0x40,
    0x80,
    0x100,
    0x200,
    0x400,
    0x800,
)
OVERFLOW, IGNORED, ONLY_FOLDERS = 0x4000, 0x8000, 0x1000000
WANTED = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
WANTED |= DELETE_SELF | MOVE_SELF | ONLY_FOLDERS
EVENT = struct.Struct("iIII")  # watch, what happened, cookie, bytes of the name
BUFFER = 1 << 20  # bytes read at a time

LOOK_SHARE = 1000  # looks at everything take at most one part in so many of the time
LOOK_SECONDS = 300  # but there is one at least so often
MOST = 20_000  # paths that are kept in memory; with more of them everything is looked at


@dataclass
class Watch:
    """What is to be looked at below `root`; one thread at a time calls its methods."""

    root: Path
    file: int = -1  # descriptor of the inotify instance; -1: there is none
    folders: dict[int, set[str]] = field(default_factory=dict)  # watch -> paths, of links as well
    pending: set[str] | None = None  # paths to look at; None: everything
    next_look: float = 0  # when everything is to be looked at, time.monotonic()
    ended: bool = False

    def __del__(self) -> None:
        self.close()

    def due(self) -> set[str] | None:
        """Return the paths that are to be looked at now, None for everything.

        They are forgotten with that: what is not done with them is to be kept again.
        """
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
        """Before a look at everything: watch anew, so that no folder of the past stays watched."""
        self.close()
        self.pending = None
        if self.ended:
            return
        with contextlib.suppress(AttributeError):  # a system without inotify
            self.file = c_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.file >= 0:
            self.pending = set()

    def looked(self, seconds: float) -> None:
        """After a look at everything that took so many seconds: say when the next one is."""
        self.next_look = time.monotonic() + min(LOOK_SHARE * seconds, LOOK_SECONDS)

    def add(self, path: str) -> None:
        """Watch a folder. Called before it is read, so that nothing happens in between unseen."""
        if self.file < 0:
            return
        where = os.fsencode(self.root / path)
        watch = c_library().inotify_add_watch(self.file, where, WANTED)
        if watch >= 0:
            self.folders.setdefault(watch, set()).add(path)
            return
        # else the folder was deleted just now, or cannot be read, and its parent tells of changes
        is_gone = ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
        if not (is_gone and path):
            self.forget()
        if not is_gone:
            self.end()  # such as where the user has no watches left: leave those to others

    def read(self) -> None:
        """Keep the paths that the kernel names."""
        with contextlib.suppress(BlockingIOError):
            while self.file >= 0:
                self.keep_events(os.read(self.file, BUFFER))

    def keep_events(self, data: bytes) -> None:
        start = 0
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
        """Give the watches back."""
        if self.file >= 0:
            os.close(self.file)
        self.file, self.folders = -1, {}


@functools.cache
def c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
