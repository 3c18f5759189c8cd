"""A file system that takes `A` and `a`, or two forms of `ü`, for one name, as macOS' own does: FUSE
without a library, above a plain folder.

    python folding_fs.py FOLDER MOUNT     until MOUNT is unmounted; it takes root and /dev/fuse

It serves one request after another, keeps nothing in memory, and knows files, folders and renames.

Not covered: links, devices, extended attributes, locks beside the kernel's own.
"""

import ctypes
import errno
import os
import struct
import sys
import unicodedata
from pathlib import Path
from typing import Any

ENTRY, OPENED = struct.Struct("<4Q2I"), struct.Struct("<Q2I")
ROOT, MOST = 1, 128 << 10  # the first node; bytes of a write


def folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def attributes(path: Path, node: int) -> bytes:
    seen = path.lstat()
    times = [(at // 10**9, at % 10**9) for at in (seen.st_atime_ns, seen.st_mtime_ns)] * 2
    whole, rest = [each[0] for each in times[:3]], [each[1] for each in times[:3]]
    owner = (seen.st_mode, seen.st_nlink, seen.st_uid, seen.st_gid, 0, 4096, 0)
    return struct.pack("<6Q10I", node, seen.st_size, seen.st_blocks, *whole, *rest, *owner)


class Folding:
    """Nodes are paths that were looked up once; a rename moves them."""

    def __init__(self, folder: Path) -> None:
        self.paths = {ROOT: folder}

    def below(self, node: int, name: bytes) -> Path:
        """Return the path of a name in a folder: that of what has the name in another form."""
        parent, wanted = self.paths[node], os.fsdecode(name)
        for each in parent.iterdir():
            if folded(each.name) == folded(wanted):
                return each
        return parent / wanted

    def entry(self, path: Path) -> bytes:
        path.lstat()
        known = [node for node, each in self.paths.items() if each == path]
        node = known[0] if known else max(self.paths) + 1
        self.paths[node] = path
        return ENTRY.pack(node, 0, 0, 0, 0, 0) + attributes(path, node)

    def answer(self, code: int, node: int, body: bytes) -> bytes | None:
        """Return what a request is answered with, None for nothing; raise OSError if it fails."""
        method = getattr(self, NAMES.get(code, ""), None)
        if method is None:
            raise OSError(errno.ENOSYS, "not known here")
        found: bytes | None = method(node, body)
        return found

    def init(self, node: int, body: bytes) -> bytes:
        return struct.pack("<4I2H2I2HI7I", 7, 31, MOST, 0, 12, 9, MOST, 1, 0, 0, 0, *[0] * 7)

    def forget(self, node: int, body: bytes) -> None:
        return None

    def done(self, node: int, body: bytes) -> bytes:
        return b""

    def lookup(self, node: int, body: bytes) -> bytes:
        return self.entry(self.below(node, body[:-1]))

    def getattr(self, node: int, body: bytes) -> bytes:
        return bytes(16) + attributes(self.paths[node], node)

    def setattr(self, node: int, body: bytes) -> bytes:
        path = self.paths[node]
        valid, _, _, size, _, atime, mtime, _ = struct.unpack_from("<2I6Q", body)
        atime_ns, mtime_ns, _, mode = struct.unpack_from("<4I", body, 56)
        if valid & 1:
            path.chmod(mode & 0o7777)
        if valid & 8:
            os.truncate(path, size)
        if valid & (16 | 32):
            seen = path.stat()
            now = [seen.st_atime_ns, seen.st_mtime_ns]
            given = [atime * 10**9 + atime_ns, mtime * 10**9 + mtime_ns]
            chosen = [given[at] if valid & (16 << at) else now[at] for at in (0, 1)]
            os.utime(path, ns=(chosen[0], chosen[1]))
        return self.getattr(node, b"")

    def mkdir(self, node: int, body: bytes) -> bytes:
        path = self.below(node, body[8:-1])
        path.mkdir(struct.unpack_from("<I", body)[0] & 0o7777)
        return self.entry(path)

    def unlink(self, node: int, body: bytes) -> bytes:
        self.below(node, body[:-1]).unlink()
        return b""

    def rmdir(self, node: int, body: bytes) -> bytes:
        self.below(node, body[:-1]).rmdir()
        return b""

    def rename(self, node: int, body: bytes, names_at: int = 8) -> bytes:
        old, new = body[names_at:-1].split(b"\0")
        source, target = (
            self.below(node, old),
            self.below(struct.unpack_from("<Q", body)[0], new),
        )
        if source == target:  # another form of its own name
            target = source.with_name(os.fsdecode(new))
        source.rename(target)
        for each, path in self.paths.items():
            if path == source or source in path.parents:
                self.paths[each] = target / path.relative_to(source)
        return b""

    def rename2(self, node: int, body: bytes) -> bytes:
        return self.rename(node, body, 16)

    def opened(self, path: Path, flags: int, mode: int = 0) -> bytes:
        return OPENED.pack(os.open(path, flags & ~os.O_EXCL | os.O_CLOEXEC, mode), 0, 0)

    def open(self, node: int, body: bytes) -> bytes:
        return self.opened(self.paths[node], struct.unpack_from("<I", body)[0] & ~os.O_CREAT)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<2I", body)
        path = self.below(node, body[16:-1])
        if flags & os.O_EXCL and path.exists():
            raise FileExistsError(errno.EEXIST, "it is there")
        opened = self.opened(path, flags | os.O_CREAT, mode & 0o7777)
        return self.entry(path) + opened

    def read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        return os.pread(handle, size, offset)

    def write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        return struct.pack("<2I", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def release(self, node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def opendir(self, node: int, body: bytes) -> bytes:
        return OPENED.pack(0, 0, 0)

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        found = b""
        names = sorted(os.fsencode(each.name) for each in self.paths[node].iterdir())
        for number, name in enumerate(names):
            row = struct.pack("<2Q2I", number + 2, number + 1, len(name), 0) + name
            row += bytes(-len(row) % 8)
            if number >= offset and len(found) + len(row) <= size:
                found += row
        return found

    def statfs(self, node: int, body: bytes) -> bytes:
        return struct.pack(
            "<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0
        )


NAMES = {
    **{1: "lookup", 2: "forget", 3: "getattr", 4: "setattr", 9: "mkdir", 10: "unlink"},
    **{11: "rmdir", 12: "rename", 14: "open", 15: "read", 16: "write", 17: "statfs"},
    **{18: "release", 20: "done", 25: "done", 26: "init", 27: "opendir", 28: "readdir"},
    **{29: "done", 34: "done", 35: "create", 36: "forget", 42: "forget", 45: "rename2"},
}


def main(folder: str, mount: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"folding", os.fsencode(mount), b"fuse.folding", 0, options.encode()):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    system = Folding(Path(folder))
    while True:
        try:
            request = os.read(device, MOST + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            raise
        _, code, unique, node = struct.unpack_from("<2I2Q", request)
        try:
            answer, failed = system.answer(code, node, request[40:]), 0
        except OSError as error:
            answer, failed = b"", error.errno or errno.EIO
        if answer is not None:
            os.write(device, struct.pack("<IiQ", 16 + len(answer), -failed, unique) + answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
