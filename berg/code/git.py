"""Git, as Berg starts it: it runs no program that a folder's own configuration or hooks name.

The exceptions are filters (`filter.lfs.clean` and the like) of the user's own repo, which are part
of what its files are: a clone brings no configuration. A repo inside of it, which has a
configuration of its own, may have come with an archive of files: see `distrust`.

Trees of git's that differ in a few files from one that is there: no index, nothing else read.

An index of 100,000 files takes longer to read and write than all that is done here.
"""

import functools
import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from berg import BergError, computer

SETTINGS = {
    "core.fsmonitor": "",
    "core.hooksPath": os.devnull,
    "gc.auto": "0",
    "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit",
}

OPTIONS = [word for key, value in SETTINGS.items() for word in ("-c", f"{key}={value}")]

# Variables that do the same for git where another program starts it.
ENVIRONMENT = {
    "GIT_CONFIG_COUNT": str(len(SETTINGS)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(SETTINGS.values())},
}

# Git's messages in English, and objects as their ids say: machines have no replacements for them.
ALWAYS = {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1"}

NO_CONFIG = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}

FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"

# Repos inside of the user's own -> options and variables for git there.
distrusted: dict[Path, tuple[list[str], dict[str, str]]] = {}


class GitError(BergError):
    """Why git failed, in its own words."""


def run(
    folder: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    stdin: bytes | IO[bytes] | None = None,
    stdout: Any = None,
) -> bytes:
    """Run git in `folder` and return what it printed, or write that to `stdout`.

    Raises GitError; BergError if git is not installed, or the repo belongs to another user, in
    which git does nothing.
    """
    try:
        import git as gitpython
    except ImportError:
        raise BergError(
            f"git is not installed. Install it, for example: {computer.install_command('git')}"
        ) from None
    if isinstance(stdin, bytes):
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            return run(folder, *arguments, env=env, stdin=file, stdout=stdout)
    options, variables = distrusted.get(folder.resolve(), ([], {}))
    try:
        output: Any = gitpython.Git(str(folder)).execute(
            ["git", *OPTIONS, *options, *arguments],
            env={**ALWAYS, **variables, **(env or {})},
            istream=stdin,  # type: ignore[arg-type]
            output_stream=stdout,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
        )
    except gitpython.GitCommandError as error:
        raise failure(error) from None
    output_of_git: bytes = output
    return output_of_git


def failure(error: Any) -> GitError | BergError:
    """Return the error to raise for a command of git that failed."""
    found = re.search(r"dubious ownership in repository at '(.*)'", str(error))
    if not found:
        return GitError(reason(error))
    trust = shlex.join(["git", "config", "--global", "--add", "safe.directory", found[1]])
    return BergError(f"git does not trust {found[1]}, which belongs to another user. Run: {trust}")


def text(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    return run(folder, *arguments, env=env).decode(errors="replace").strip()


def path(folder: Path, *arguments: str) -> Path:
    """Return the path that `git rev-parse` prints."""
    return Path(os.fsdecode(run(folder, "rev-parse", *arguments).removesuffix(b"\n")))


def names(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def reason(error: Any) -> str:
    """Return the line of git's output that says why it failed."""
    output = error.stderr or ""
    if isinstance(output, bytes):
        output = output.decode(errors="replace")
    lines = output.replace("stderr:", "").strip(" \n'").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    # The last line only sums up; an error before it names the file.
    named = [line for line in lines if line.startswith("error: ")]
    return next(iter(named or lines[-1:]), str(error))


@functools.cache
def common_folder(root: Path) -> Path:
    """Return the folder of git's that all working trees of a repo share."""
    return path(root, "--path-format=absolute", "--git-common-dir")


def enter(root: Path, inner: Path) -> str:
    """Prepare to start git in a repo inside of another one; return why it must not, or "".

    A submodule's configuration was written by the user's git, into the `.git` of the outer repo.
    Any other is distrusted.
    """
    place, here = inner / ".git", inner.resolve()
    if here != root.resolve() / inner.relative_to(root):
        return f"a repo that is elsewhere: {here}"
    if place.is_file():
        place = inner / place.read_text(errors="replace").removeprefix("gitdir:").strip()
    place = place.resolve()
    if place != here / ".git" and not place.is_relative_to(common_folder(root).resolve()):
        return f"a repo whose .git is elsewhere: {place}"
    if place == here / ".git" or root.resolve() in distrusted:
        distrust(inner)
    return ""


def distrust(folder: Path) -> None:
    """Let git start no filter and no transport for a repo, and stay in its folder."""
    key = folder.resolve()
    if key in distrusted:
        return
    variables = {"GIT_WORK_TREE": str(key), "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
    distrusted[key] = without_filters(folder), variables


def without_filters(folder: Path) -> list[str]:
    """Return the options with which git starts none of the filters that a repo configures."""
    try:
        found = run(folder, "config", "--includes", "--name-only", "-z", "--get-regexp", FILTERS)
    except GitError:  # there are none
        return []
    options = []
    for name in sorted(set(names(found))):
        if "=" in name:
            raise BergError(f"{folder} configures {name!r} for git. Run: git config --unset {name}")
        options += ["-c", f"{name}={'false' if name.endswith('.required') else ''}"]
    return options


FOLDER = "40000"  # the mode of a tree in a tree

HASHES = {40: hashlib.sha1, 64: hashlib.sha256}  # by the length of ids

KINDS = {FOLDER: "tree", "160000": "commit"}  # of all other modes: blob

Entry = tuple[str, str]  # mode as a tree has it, id

Git = Callable[[list[str], bytes], bytes]  # runs git with words and what it reads


@dataclass
class Edits:
    """What becomes of a folder: None is for what is gone."""

    files: dict[bytes, Entry | None] = field(default_factory=dict)
    folders: dict[bytes, "Edits"] = field(default_factory=dict)

    def put(self, path: str, entry: Entry | None) -> None:
        *parents, name = os.fsencode(path).split(b"/")
        at = self
        for each in parents:
            at = at.folders.setdefault(each, Edits())
        at.files[name] = entry


def edited(git: Git, tree: str, changes: dict[str, Entry | None]) -> str:
    """Return the id of a tree in which some paths are changed; git has it then.

    What is gone gives way to a folder of its name.
    """
    edits = Edits()
    for path, entry in changes.items():
        edits.put(path, entry)
    made: list[bytes] = []
    top = Making(read_trees(git, tree, edits), HASHES[len(tree)], made).make(tree, edits)
    written = git(["mktree", "-z", "--batch", "--missing"], b"".join(made)).decode().split()
    if written[-1:] != [top]:
        raise ValueError(f"git made the tree {written[-1:]} where {top} was meant")
    return top


def read_trees(git: Git, tree: str, edits: Edits) -> dict[str, dict[bytes, Entry]]:
    """Return the entries of a tree and of those in it that change, by their ids, level by level."""
    found: dict[str, dict[bytes, Entry]] = {}
    level = [(tree, edits)]
    while level:
        ids = "".join(f"{each}\n" for each, _ in level)
        found |= entries_of(git(["cat-file", "--batch"], ids.encode()), len(tree) // 2)
        level = [
            (there[1], below)
            for each, inner in level
            for name, below in inner.folders.items()
            if (there := found[each].get(name)) and there[0] == FOLDER
        ]
    return found


def entries_of(output: bytes, size: int) -> dict[str, dict[bytes, Entry]]:
    """Return the entries of trees from what `git cat-file --batch` says; ids have `size` bytes."""
    found: dict[str, dict[bytes, Entry]] = {}
    at = 0
    while at < len(output):
        head = output.index(b"\n", at)
        tree, _, length = output[at:head].decode().split(" ")
        at, end = head + 1, head + 1 + int(length)
        entries: dict[bytes, Entry] = {}
        found[tree] = entries
        while at < end:
            mode, _, name = output[at : (zero := output.index(b"\0", at))].partition(b" ")
            entries[name] = (mode.decode(), output[zero + 1 : zero + 1 + size].hex())
            at = zero + 1 + size
        at = end + 1
    return found


@dataclass
class Making:
    """The making of an edited tree: the trees that were read, and what `git mktree` reads."""

    read: dict[str, dict[bytes, Entry]]
    hashed: Any
    made: list[bytes]

    def make(self, tree: str, edits: Edits) -> str:
        """Return the id of an edited tree; note the trees in it that change, and then itself."""
        entries = self.merged(tree, edits)
        self.made.append(lines_of(entries))
        return self.id_of(entries)

    def merged(self, tree: str, edits: Edits) -> dict[bytes, Entry]:
        """Return the entries of an edited tree, "" for one that is new.

        A folder goes with its last file.
        """
        entries = dict(self.read.get(tree, {}))
        for name, below in edits.folders.items():
            mode, inner = entries.pop(name, ("", ""))
            within = self.merged(inner if mode == FOLDER else "", below)
            if within:
                self.made.append(lines_of(within))
                entries[name] = (FOLDER, self.id_of(within))
        for name, entry in edits.files.items():
            if entry:
                entries[name] = entry
            elif name not in edits.folders:
                entries.pop(name, None)
        return entries

    def id_of(self, entries: dict[bytes, Entry]) -> str:
        """Return the id that git gives a tree."""
        in_order = sorted(
            entries.items(), key=lambda each: each[0] + (b"/" if each[1][0] == FOLDER else b"")
        )
        content = b"".join(
            b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(found))
            for name, (mode, found) in in_order
        )
        whole: str = self.hashed(b"tree %d\0%s" % (len(content), content)).hexdigest()
        return whole


def lines_of(entries: dict[bytes, Entry]) -> bytes:
    """Return a tree as `git mktree` reads it."""
    lines = [
        b"%s %s %s\t%s\0" % (mode.encode(), KINDS.get(mode, "blob").encode(), found.encode(), name)
        for name, (mode, found) in entries.items()
    ]
    return b"".join([*lines, b"\0"])
