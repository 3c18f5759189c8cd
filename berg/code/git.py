"""Git, as Berg starts it: it runs no program that a folder's own configuration or hooks name.

The exceptions are filters (`filter.lfs.clean` and the like) of the user's own repo, which are part
of what its files are: a clone brings no configuration. A repo inside of it, which has a
configuration of its own, may have come with an archive of files: see `enter`.

Trees of git's that differ in a few files from one that is there: no index, nothing else read.

An index of 100,000 files takes longer to read and write than all that is done here.
"""

import functools
import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Collection
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

Entry = tuple[str, str]  # mode as a tree has it, id

LINK, SUBMODULE = "120000", "160000"  # modes of a symbolic link, and of a submodule's commit

STAGED = ["ls-files", "--stage", "-z"]
# A submodule's own files are looked at when it is its turn.
STATUS = ["status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind", "--no-renames"]
STATUS += ["--untracked-files=all"]
STATUS += ["--ignored=matching", "--ignore-submodules=dirty"]

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
    if found := re.search(r"dubious ownership in repository at '(.*)'", str(error)):
        trust = shlex.join(["git", "config", "--global", "--add", "safe.directory", found[1]])
        why = f"git does not trust {found[1]}, which belongs to another user. Run: {trust}"
        return BergError(why)
    output = error.stderr or ""
    if isinstance(output, bytes):
        output = output.decode(errors="replace")
    lines = [line.strip(" '") for line in output.replace("stderr:", "").splitlines()]
    lines = [line for line in lines if line]
    # The last line only sums up; an error before it names the file.
    named = [line for line in lines if line.startswith("error: ")]
    return GitError(next(iter(named or lines[-1:]), str(error)))


def text(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    return run(folder, *arguments, env=env).decode(errors="replace").strip()


def path(folder: Path, *arguments: str) -> Path:
    """Return the path that `git rev-parse` prints."""
    return Path(os.fsdecode(run(folder, "rev-parse", *arguments).removesuffix(b"\n")))


def names(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


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
    if (place == here / ".git" or root.resolve() in distrusted) and here not in distrusted:
        # git starts no filter and no transport there, and stays in its folder
        variables = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
        distrusted[here] = without_filters(inner), {"GIT_WORK_TREE": str(here), **variables}
    return ""


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


# --- what a working tree has that HEAD has not


@dataclass
class Found:
    """What a working tree has that HEAD has not: paths, folders with a slash at their end."""

    head: str = ""
    branch: str = ""  # "": HEAD is detached
    staged: dict[str, Entry | None] = field(default_factory=dict)  # as the index has them
    before: dict[str, Entry] = field(default_factory=dict)  # the index's entries of `changed`
    changed: list[str] = field(default_factory=list)  # unlike the index
    deleted: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    special: dict[str, Entry] = field(default_factory=dict)  # links, and repos, of the index
    hidden: list[str] = field(default_factory=list)  # files that `git status` does not look at
    sparse: list[str] = field(default_factory=list)  # in the index alone, as the user wants it


def look(root: Path, env: dict[str, str]) -> Found:
    """Compare a working tree with HEAD and the index, in git's one walk; raise BergError at a
    conflict, or where there is no commit.
    """
    found = Found()
    lists = {"?": found.untracked, "!": found.ignored}
    for line in names(run(root, *STATUS, env=env)):
        kind, _, rest = line.partition(" ")
        if rest == "branch.oid (initial)":
            raise BergError(
                f"the repo {root} has no commit yet. Run: git add -A && git commit -m start"
            )
        if kind == "#":
            key, _, value = rest.partition(" ")
            if key == "branch.oid":
                found.head = value
            elif key == "branch.head" and value != "(detached)":
                found.branch = value
        elif kind == "u" or (kind == "1" and "U" in rest[:2]):  # the latter in the index alone
            raise BergError(f"{root} has files with merge conflicts. Resolve them: git status")
        elif kind == "1":
            note_tracked(found, rest)
        else:
            lists[kind].append(rest)
    return found


def note_tracked(found: Found, line: str) -> None:
    """Note a path that differs between HEAD and the index, or the index and the working tree."""
    states, _, _, mode, _, _, content, path = line.split(" ", 7)
    # the mode of what is not in the index
    entry = None if mode == "000000" else (mode, content)
    if states[0] != ".":
        found.staged[path] = entry
    if states[1] == "D":
        found.deleted.append(path)
    elif states[1] != ".":
        found.changed.append(path)
        if entry:
            found.before[path] = entry


def look_closer(root: Path, found: Found, listed: bytes, replaced: Collection[str]) -> None:
    """Note links and repos of an index, and files that git does not compare with the working tree:
    it takes them as unchanged, or has another content for them that was `replaced`.
    """
    for line in listed.split(b"\0")[:-1]:
        if line.startswith(b"H 100") and not replaced:
            continue
        about, _, name = line.partition(b"\t")
        flag, mode, content, _ = about.decode().split(" ")
        path = os.fsdecode(name)
        if mode in (LINK, SUBMODULE):
            found.special[path] = (mode, content)
        if mode == SUBMODULE or (flag == "H" and content not in replaced):
            continue
        here = root / path
        if here.is_file() or here.is_symlink():
            found.changed.append(path)
            found.before[path] = (mode, content)
            found.hidden.append(path)
        elif flag in "Ss":
            found.sparse.append(path)
        else:
            found.deleted.append(path)


# --- trees

FOLDER = "40000"  # the mode of a tree in a tree

HASHES = {40: hashlib.sha1, 64: hashlib.sha256}  # by the length of ids

KINDS = {FOLDER: "tree", SUBMODULE: "commit"}  # of all other modes: blob


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


def edited(root: Path, env: dict[str, str], tree: str, changes: dict[str, Entry | None]) -> str:
    """Return the id of a tree in which paths are changed; git has it then, by these variables.

    What is gone gives way to a folder of its name.
    """
    if not changes:
        return tree
    edits = Edits()
    for path, entry in changes.items():
        edits.put(path, entry)
    made: list[bytes] = []
    top = Making(read_trees(root, env, tree, edits), HASHES[len(tree)], made).make(tree, edits)
    command = ["mktree", "-z", "--batch", "--missing"]
    written = run(root, *command, env=env, stdin=b"".join(made)).decode().split()
    if written[-1:] != [top]:
        raise ValueError(f"git made the tree {written[-1:]} where {top} was meant")
    return top


def read_trees(
    root: Path, env: dict[str, str], tree: str, edits: Edits
) -> dict[str, dict[bytes, Entry]]:
    """Return the entries of a tree and of those in it that change, by their ids, level by level."""
    found: dict[str, dict[bytes, Entry]] = {}
    level = [(tree, edits)]
    while level:
        ids = "".join(f"{each}\n" for each, _ in level).encode()
        read = run(root, "cat-file", "--batch", env=env, stdin=ids)
        found |= entries_of(read, len(tree) // 2)
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
