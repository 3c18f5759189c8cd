"""The folders in which jobs and people leave files, as they were before a machine's first job.

What is new there goes; what was changed or deleted is put back from a copy. Named caches stay as
they are: they make the next job quick. Data sets keep the files that were only read.
"""

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from berg import BergError
from berg.machine import boot, installation

FOLDER = boot.BERG / "original"
COPIES, KNOWN = FOLDER / "copies", FOLDER / "files.json"
LARGE, MOST = 1 << 20, 64 << 20  # bytes of a file, and of all, that are copied
DATA = boot.ROOT / "data"
CACHES = [".cache/pip", ".cache/uv", ".cache/torch", ".nv", ".triton", ".local/share/uv/python"]
CACHES += [f".cache/huggingface/{name}" for name in ("hub", "datasets", "xet")]
KEPT = {boot.BERG, DATA, boot.ROOT / "anaconda3", boot.ROOT / "berg_cache"}
KEPT |= {installation.ENVIRONMENTS, *(boot.ROOT / name for name in CACHES)}
# Of Berg's own folder: what its next boot needs, or would download again.
OWN = [*installation.KEPT, FOLDER.name, "boot.py", "worker.lock", "disk", "app", "packages", "bin"]
OWN += ["tools", "warm-since", "berg-before.json"]
ARCHIVES = (".whl", ".zip")
# Without namespaces, as in some embedded clouds, folders are also the host's.
IS_SHARED = "BERG_ROOT" in os.environ
OF_ALL = ["/home", "/var/spool/cron", "/var/spool/at", "/var/lib/systemd/linger", "/etc/crontab"]
OF_ALL += [f"/etc/cron.{often}" for often in ("d", "hourly", "daily", "weekly", "monthly")]
OF_ALL += [f"/etc/{name}" for name in ("profile.d", "profile", "bash.bashrc", "environment")]
OF_ALL += [f"/etc/{name}" for name in ("hosts", "ld.so.preload", "sudoers.d", "sysctl.d", "ssh")]
OF_ALL += ["/etc/gitconfig", "/etc/pip.conf", "/etc/systemd/user"]
TREES = [boot.ROOT, *map(Path, [] if IS_SHARED else OF_ALL)]


def note(mounts: list[str]) -> None:
    """Copy small files, and note of all when they changed; leave what is mounted, and caches."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    COPIES.mkdir(parents=True)
    known, room = {}, MOST
    for path in sorted(found(mounts), key=lambda path: len(path.parts)):
        known[str(path)] = stamp = stamp_of(path)
        size = path.lstat().st_size
        if is_copied(stamp[0]) and size <= min(LARGE, room):
            room -= size
            copy = COPIES / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy, follow_symlinks=False)
    KNOWN.write_text(json.dumps(known))


def restore(mounts: list[str]) -> None:
    """Make all as it was noted; raise BergError or OSError if that cannot be done."""
    known: dict[str, list[int]] = json.loads(KNOWN.read_text())
    for path in found(mounts):
        if known.get(str(path)) != stamp_of(path):
            remove(path)
    for name, stamp in sorted(known.items()):  # a folder before what is in it
        path = Path(name)
        if not os.path.lexists(path):
            put_back(path, stamp[0])
        if stamp_of(path) != stamp and not path.is_symlink():
            os.chown(path, *stamp[1:3])
            path.chmod(stat.S_IMODE(stamp[0]))
    for path in boot.BERG.iterdir():
        if not (path.name in OWN or path.name.startswith("uv") or path.suffix in ARCHIVES):
            remove_all(path)
    note(mounts)


def found(mounts: list[str]) -> Iterator[Path]:
    """Yield all files and folders, what is in a folder before the folder."""
    spared = KEPT | {*map(Path, mounts)} - {*TREES}
    for tree in filter(os.path.lexists, TREES):
        yield from below(tree, spared)


def below(path: Path, spared: set[Path]) -> Iterator[Path]:
    if path in spared:
        return
    if path.is_dir() and not path.is_symlink():
        for each in [*path.iterdir()]:
            yield from below(each, spared)
    yield path


def stamp_of(path: Path) -> list[int]:
    """Return what changes with a file; no program can set the last of it back."""
    seen = path.lstat()
    times = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]
    return [seen.st_mode, seen.st_uid, seen.st_gid, *([] if path.is_dir() else times)]


def is_copied(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def remove(path: Path) -> None:
    """Delete a file, a link, or a folder in which nothing stays."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # a cache or a mount is in it
            path.rmdir()
    else:
        path.unlink(missing_ok=True)


def remove_all(path: Path) -> None:
    for each in below(path, set()):
        remove(each)


def put_back(path: Path, mode: int) -> None:
    copy = COPIES / path.relative_to("/")
    if stat.S_ISDIR(mode):
        path.mkdir()
    elif os.path.lexists(copy):
        shutil.copy2(copy, path, follow_symlinks=False)
    elif is_copied(mode):
        raise BergError(f"{path} was changed or deleted, and there is no copy")


def forget_changed_data(since_ns: int) -> None:
    """Delete from the data sets what was changed or added since then, in ns since 1970."""
    for path in below(DATA, set()) if os.path.lexists(DATA) else ():
        if path.is_dir() or path.lstat().st_ctime_ns > since_ns:
            remove(path)
