"""The files of a repo as a machine will have them: those of the commit that is sent.

A commit of a repo as a snapshot, whatever the working tree is: `--branch` and `--commit`.

Not covered: content of Git LFS, which only a working tree is sure to have. It is named.

What changed between the code of two jobs, as git says it, and what files one has.

The packs are put into an empty repo that has no working tree, so that nothing of what a
job's code holds is written as a file of this computer.
"""

import os
import posixpath
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from berg import BergError
from berg.code import git as program
from berg.code import snapshot
from berg.code.git import last_line, names, text
from berg.code.git import run as git
from berg.code.snapshot import Snapshot, objects_folder, objects_of

LINK = "120000"  # the mode of a symbolic link

MOST_LINKS = 8  # that are followed, one after the other


@dataclass(frozen=True)
class Files:
    """Paths from the root of a repo, and what reads one of them; "" where there is none."""

    paths: frozenset[str]
    read: Callable[[str], str]

    def has(self, folder: str, name: str) -> bool:
        return posixpath.join(folder, name) in self.paths

    def text(self, folder: str, name: str) -> str:
        path = posixpath.join(folder, name)
        return self.read(path) if path in self.paths else ""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        start = f"{folder}/" if folder else ""
        inside = (path[len(start) :] for path in self.paths if path.startswith(start))
        return sorted(name for name in inside if "/" not in name)

    def below(self, folder: str, name: str) -> list[str]:
        """Return the paths of files of a name in the folders of a folder."""
        start = f"{folder}/" if folder else ""
        depth = start.count("/") + 1
        return sorted(
            path
            for path in self.paths
            if path.startswith(start) and path.endswith(f"/{name}") and path.count("/") == depth
        )


def of_snapshot(snapshot: Snapshot) -> Files:
    """Return the files of a snapshot whose commit is on this computer."""
    return of_commit(snapshot.root, snapshot.commit, objects_of(snapshot))


def of_commit(root: Path, commit: str, env: dict[str, str] | None = None) -> Files:
    """Return the files of a commit of a repo; raise BergError if git cannot read it."""
    import git as gitpython

    try:
        listed = names(git(root, "ls-tree", "-r", "-z", "--full-tree", commit, env=env))
    except gitpython.GitCommandError as error:
        raise BergError(f"git cannot list the files of {commit[:12]} in {root}: {error}") from None
    found: dict[str, tuple[str, str]] = {}
    for line in listed:
        about, _, path = line.partition("\t")
        mode, kind, content = about.split()
        if kind == "blob":
            found[path] = (mode, content)

    def read(path: str) -> str:
        for _ in range(MOST_LINKS):
            if path not in found:
                return ""
            mode, content = found[path]
            text = git(root, "cat-file", "blob", content, env=env)
            if mode != LINK:
                return text.decode(errors="replace")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), os.fsdecode(text)))
        return ""

    return Files(frozenset(found), read)


def revision(root: Path, branch: str | None, commit: str | None) -> Snapshot:
    """Return a branch's last commit, or a commit by its id or tag; raise BergError for neither."""
    if branch and commit:
        raise BergError("--branch and --commit both say which code runs: leave one out")
    if branch:
        return commit_snapshot(root, root.name, branch, find_branch(root, branch))
    return commit_snapshot(root, root.name, "", find_commit(root, commit or ""))


def find_branch(root: Path, name: str) -> str:
    """Return the last commit of a branch, or of origin's of that name; raise BergError without."""
    for kind in ("heads", "remotes/origin"):
        if found := resolve(root, f"refs/{kind}/{name}"):
            return found
    raise BergError(f"there is no branch {name!r} in {root}. Bring it: git fetch origin {name}")


def find_commit(root: Path, name: str) -> str:
    """Return the whole id of a commit; raise BergError if the repo does not have it."""
    found = "" if name.startswith("-") else resolve(root, name)
    if not found:
        raise BergError(f"there is no commit {name!r} in {root}. Bring it: git fetch --all --tags")
    return found


def resolve(root: Path, name: str) -> str:
    """Return the id of the commit of that name, "" if there is none."""
    import git as gitpython

    try:
        return text(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except gitpython.GitCommandError:
        return ""


def commit_snapshot(root: Path, repo_name: str, branch: str, commit: str) -> Snapshot:
    """Return the snapshot of a commit, with those of its submodules that are here."""
    snapshot = Snapshot(root, repo_name, branch, commit, commit, objects_folder(root))
    snapshot.left_out = [f"{path} (content of Git LFS)" for path in lfs_files(root, commit)]
    for path, inner in submodules(root, commit).items():
        folder = root / path
        is_there = (folder / ".git").exists() and not program.enter(root, folder)
        if is_there and resolve(folder, inner):
            name = f"{repo_name}.{Path(path).name}"
            snapshot.submodules[path] = commit_snapshot(folder, name, "berg", inner)
        else:
            why = f"a submodule whose commit {inner[:12]} is not here"
            snapshot.left_out.append(f"{path}/ ({why}: git submodule update --init)")
    return snapshot


def submodules(root: Path, commit: str) -> dict[str, str]:
    """Return the commits of a commit's submodules, by path."""
    found = {}
    for entry in names(git(root, "ls-tree", "-r", "-z", commit)):
        about, _, path = entry.partition("\t")
        mode, _, inner = about.split(" ")
        if mode == "160000":
            found[path] = inner
    return found


def lfs_files(root: Path, commit: str) -> list[str]:
    """Return the files of a commit that are pointers of Git LFS there."""
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        env = {"GIT_INDEX_FILE": str(Path(temporary, "index"))}
        git(root, "read-tree", commit, env=env)
        return names(git(root, "ls-files", "-z", "--", ":(attr:filter=lfs)", env=env))


def kind_of(snapshot: Snapshot, path: str) -> str:
    """Return what a commit has at a path: a tree or a blob; "" for nothing."""
    import git as gitpython

    try:
        return text(snapshot.root, "cat-file", "-t", f"{snapshot.commit}:{path}")
    except gitpython.GitCommandError:
        return ""


PREFIX = ".berg/repos/"  # where packs are in the bucket


def between(
    before: dict[str, Any],
    after: dict[str, Any],
    folder: Path,
    open_pack: Callable[[str], IO[bytes]],
) -> str:
    """Return git's diff of two snapshots, "" if they are the same.

    `folder` is empty, and used for the repo. `open_pack` opens a pack of the bucket by name.
    Raises BergError if a snapshot is odd, or its packs do not hold its commit.
    """
    import git as gitpython

    if before["commit"] == after["commit"]:
        return ""
    try:
        bring(folder, [before, after], open_pack)
        options = ["--no-color", "--no-ext-diff", "--no-textconv", "--stat", "--patch"]
        commits = [commit(before), commit(after)]
        return text(folder, "diff", *options, *commits, "--")
    except gitpython.GitCommandError as error:
        raise BergError(f"the code cannot be compared: {last_line(error)}") from None


def bring(
    folder: Path, descriptions: list[dict[str, Any]], open_pack: Callable[[str], IO[bytes]]
) -> None:
    """Make a repo without a working tree, of the packs of snapshots."""
    program.isolate(folder)
    snapshot.init(folder, commit(descriptions[0]))
    snapshot.write_shallow(folder, [cut for each in descriptions for cut in cuts(each)])
    for name in dict.fromkeys(pack for each in descriptions for pack in packs(each)):
        with open_pack(name) as stream:
            git(folder, "index-pack", "--fix-thin", "--stdin", stdin=stream)


def files_of(
    description: dict[str, Any], folder: Path, open_pack: Callable[[str], IO[bytes]]
) -> Files:
    """Return the files of a snapshot whose packs are put into a folder, which is empty.

    Raise BergError as `between` does.
    """
    import git as gitpython

    try:
        bring(folder, [description], open_pack)
    except gitpython.GitCommandError as error:
        raise BergError(f"the code cannot be read: {last_line(error)}") from None
    return of_commit(folder, commit(description))


def commit(description: dict[str, Any]) -> str:
    name = str(description["commit"])
    if not snapshot.COMMIT.fullmatch(name):
        raise BergError(f"{name[:80]!r} is not the id of a commit")
    return name


def cuts(description: dict[str, Any]) -> list[str]:
    """Return the commits behind which the history of a snapshot's packs ends."""
    found = [*description.get("shallow", []), *(description.get("cut") or [])]
    return [each for each in found if snapshot.COMMIT.fullmatch(str(each))]


def packs(description: dict[str, Any]) -> list[str]:
    """Return the names of a snapshot's packs; raise BergError for what is no pack's name."""
    found = [str(each) for each in description.get("packs", [])]
    for name in found:
        if not name.startswith(PREFIX) or not name.endswith(".pack"):
            raise BergError(f"{name[:80]!r} is not the name of a pack")
    return found
