"""The files of a working tree as git sees them, here and on a machine: tracked, or untracked and
not ignored.

Submodules, and repos inside of the repo, count with their own ignore rules. Untracked virtual
environments do not count, as in snapshot.py. Symbolic links are files of their own and never
followed.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from berg import BergError
from berg.code import git as program
from berg.code.git import last_line, names
from berg.code.snapshot import IGNORE_FILE, left_to_berg

# Mode, size in bytes, times of content and of inode in ns: what differs after a save, also where
# one of them does not.
Stamp = tuple[int, int, int, int]
# Files that say which others count.
RULES = (".gitignore", IGNORE_FILE)
# Runs git in a folder of the tree ("" for its root) and returns what it printed; b"" if no repo is
# there.
Git = Callable[[str, list[str]], bytes]

HERE = "--git-dir=.git"
LIST = ["ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard"]
# which snapshot.restore leaves on a machine
START = [
    "ls-tree",
    "-r",
    "-z",
    "--full-tree",
    "refs/berg/start",
]
# Unlike `ls-files --deleted`, it takes a file that is only to be seen through a symbolic link for
# deleted.
DELETED = ["diff-files", "-z", "--name-only", "--diff-filter=D", "--ignore-submodules"]


def command(folder: str, arguments: list[str]) -> list[str]:
    """Git of a machine for a repo whose root is `folder`: never for one around it."""
    return ["git", "-C", folder, HERE, *arguments]


def list_files(git: Git, folder: str = "", nested: bool = False) -> tuple[set[str], set[str]]:
    """Tracked and untracked files below `folder`; those of `nested` repos that git does not track,
    too.
    """
    tracked: set[str] = set()
    untracked: set[str] = set()
    inner: set[str] = set()
    for entry in names(git(folder, LIST)):
        tag, rest = entry[0], entry[2:]
        if tag != "?":
            details, _, path = rest.partition("\t")
            (inner if details.startswith("160000") else tracked).add(folder + path)
        elif not rest.endswith("/"):
            untracked.add(folder + rest)
        elif nested:
            inner.add(folder + rest.rstrip("/"))
    tracked -= {folder + path for path in names(git(folder, DELETED))}
    for path in inner:
        more = list_files(git, f"{path}/", nested)
        tracked |= more[0]
        untracked |= more[1]
    return tracked, untracked


def list_start(git: Git, folder: str = "") -> set[str]:
    """Files of the snapshot that a machine was started with, submodules included."""
    found: set[str] = set()
    for entry in names(git(folder, START)):
        details, _, path = entry.partition("\t")
        found |= (
            list_start(git, f"{folder}{path}/") if details.startswith("160000") else {folder + path}
        )
    return found


def scan(root: Path) -> dict[str, Stamp | None]:
    """Every file of the working tree below `root`; None for one that is tracked, but not checked
    out.

    Sparse checkouts have such files. A file that vanishes meanwhile reads the same; the next scan
    lacks it.
    """

    import git as gitpython

    def git(folder: str, arguments: list[str]) -> bytes:
        if folder and program.enter(root, root / folder):
            return b""
        try:
            return program.run(root / folder, HERE, *arguments)
        except gitpython.GitCommandError as error:
            if folder:
                return b""
            raise BergError(f"git cannot list the files of {root}: {last_line(error)}") from None

    tracked, untracked = list_files(git, nested=True)
    environments = {
        path.removesuffix("pyvenv.cfg") for path in untracked if Path(path).name == "pyvenv.cfg"
    }
    outside = tuple(environments - {""})
    untracked -= set(left_to_berg(root))
    files = tracked | {path for path in untracked if not path.startswith(outside)}
    base = f"{root}/"  # of 20,000 files, making a Path each would take most of the time
    return {path: stamp(base + path) for path in files}


def with_edits(
    root: Path, files: dict[str, Stamp | None], paths: set[str]
) -> dict[str, Stamp | None] | None:
    """Return what a scan found, after edits of files at these paths; None where all must be looked
    at again: a file is new or gone, or says what is ignored.
    """
    found = dict(files)
    for path in paths:
        name = os.path.relpath(path, root)
        if name in files:
            found[name] = stamp(path)
            if found[name] is None or Path(name).name in RULES:
                return None
        elif ".git" not in Path(name).parts and os.path.lexists(path):
            return None
    return found


def stamp(path: str) -> Stamp | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return None  # a pipe where a file was
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def parents(path: str) -> list[str]:
    """The folders around a file, the deepest first."""
    return [str(parent) for parent in Path(path).parents][:-1]


def is_gone(root: Path, path: str, files: dict[str, Stamp | None]) -> bool:
    """Whether a file that is not among `files` is deleted, or a folder by now; else it is there,
    and ignored now.
    """
    there = root / path
    is_folder = there.is_dir() and not there.is_symlink()
    return (
        is_folder or any(parent in files for parent in parents(path)) or not os.path.lexists(there)
    )


def matters(root: Path, paths: set[str]) -> bool:
    """Whether a change of these paths can be a change of the working tree: not in .git, not
    ignored.
    """
    import git as gitpython

    relative = [os.path.relpath(path, root) for path in paths]
    relative = [path for path in relative if ".git" not in Path(path).parts]
    if not relative or len(relative) > 100:  # asking about many takes longer than a scan
        return bool(relative)
    asked = b"".join(os.fsencode(path) + b"\0" for path in relative)
    try:
        ignored = program.run(root, HERE, "check-ignore", "-z", "--stdin", stdin=asked)
    except gitpython.GitCommandError:  # none is
        return True
    return ignored.count(b"\0") < len(relative)
