"""The code of commits: as a snapshot (`--branch`, `--commit`), as the files that a machine will
have, and what changed between the code of two jobs.

The code of jobs is read in an empty repo without a working tree, so that nothing of it is written
as a file of this computer. Not covered: content of Git LFS, which only a working tree is sure to
have; such files are named.
"""

import os
import posixpath
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from berg import BergError
from berg.code import git, snapshot
from berg.code.git import GitError
from berg.code.snapshot import LINK, SUBMODULE, Snapshot

# In paths that are not UTF-8. What decides about an installation is in others: a job records it.
UNDECODABLE = re.compile("[\udc80-\udcff]")
MOST_LINKS = 8  # that are followed, one after the other

OpenPack = Callable[[str], IO[bytes]]  # opens a pack of the bucket by name


@dataclass(frozen=True)
class Files:
    """Paths from the root of a repo, and what reads one of them; "" for a missing one."""

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


def of_snapshot(taken: Snapshot) -> Files:
    """Return the files of a snapshot whose commit is on this computer."""
    return of_commit(taken.root, taken.commit, snapshot.objects_of(taken))


def of_commit(root: Path, commit: str, env: dict[str, str] | None = None) -> Files:
    """Return the files of a commit of a repo; raise BergError if git cannot read it."""
    try:
        found = entries(root, commit, env)
    except GitError as error:
        raise BergError(f"git cannot list the files of {commit[:12]} in {root}: {error}") from None
    found = {
        path: entry
        for path, entry in found.items()
        if entry[0] != SUBMODULE and not UNDECODABLE.search(path)
    }

    def read(path: str) -> str:
        for _ in range(MOST_LINKS):
            if path not in found:
                return ""
            mode, content = found[path]
            text = git.run(root, "cat-file", "blob", content, env=env)
            if mode != LINK:
                return text.decode(errors="replace")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), os.fsdecode(text)))
        return ""

    return Files(frozenset(found), read)


def entries(root: Path, commit: str, env: dict[str, str] | None = None) -> dict[str, git.Entry]:
    """Return mode and id of all that a commit has, by path."""
    found = {}
    for line in git.names(git.run(root, "ls-tree", "-r", "-z", "--full-tree", commit, env=env)):
        about, _, path = line.partition("\t")
        mode, _, content = about.split()
        found[path] = (mode, content)
    return found


def revision(root: Path, branch: str | None, commit: str | None) -> Snapshot:
    """Return a branch's last commit, here or at origin, or a commit by its id or tag."""
    if branch and commit:
        raise BergError("--branch and --commit both say which code runs: leave one out")
    if branch:
        found = resolve(root, f"refs/heads/{branch}")
        found = found or resolve(root, f"refs/remotes/origin/{branch}")
        what, command = f"branch {branch!r}", f"git fetch origin {branch}"
    else:
        found = "" if not commit or commit.startswith("-") else resolve(root, commit)
        what, command = f"commit {commit!r}", "git fetch --all --tags"
    if not found:
        raise BergError(f"there is no {what} in {root}. Fetch it: {command}")
    return commit_snapshot(root, snapshot.folder_name(root.name), branch or "", found)


def resolve(root: Path, name: str) -> str:
    """Return the id of the commit of that name, "" if there is none."""
    try:
        return git.text(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitError:
        return ""


def commit_snapshot(root: Path, repo_name: str, branch: str, commit: str) -> Snapshot:
    """Return the snapshot of a commit, with those of its submodules that are here."""
    taken = Snapshot(root, repo_name, branch, commit, commit, snapshot.objects_folder(root))
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        env = {"GIT_INDEX_FILE": str(Path(temporary, "index"))}
        git.run(root, "read-tree", commit, env=env)
        stored = snapshot.entries_in(git.run(root, *snapshot.FILTERED, env=env))
        filters = snapshot.filters_of(root, stored, "--cached", env=env)
    for path, name in filters.items():
        why = "content of Git LFS" if name == "lfs" else f"as git's filter {name} stores it"
        taken.left_out.append(f"{path} ({why})")
    for path, (mode, inner) in entries(root, commit).items():
        if mode != SUBMODULE:
            continue
        folder = root / path
        is_there = (folder / ".git").exists() and not git.enter(root, folder)
        if is_there and resolve(folder, inner):
            name = snapshot.folder_name(f"{repo_name}.{folder.name}")
            taken.submodules[path] = commit_snapshot(folder, name, "berg", inner)
        else:
            why = f"a submodule whose commit {inner[:12]} is not here"
            taken.left_out.append(f"{path}/ ({why}: git submodule update --init)")
    snapshot.complete(taken)
    return taken


def kind_of(taken: Snapshot, path: str) -> str:
    """Return what a commit has at a path: a tree or a blob; "" for nothing."""
    try:
        words = ("cat-file", "-t", f"{taken.commit}:{path}")
        return git.text(taken.root, *words, env=snapshot.objects_of(taken))
    except GitError:
        return ""


def between(
    before: dict[str, Any], after: dict[str, Any], folder: Path, open_pack: OpenPack
) -> str:
    """Return git's diff of two snapshots, "" if they are the same.

    `folder` is empty, and used for the repo. Raises BergError if a snapshot is damaged, or its
    packs do not hold its commit.
    """
    if before["commit"] == after["commit"]:
        return ""
    try:
        unpack(folder, [before, after], open_pack)
        options = ["--no-color", "--no-ext-diff", "--no-textconv", "--stat", "--patch"]
        return git.text(folder, "diff", *options, commit_of(before), commit_of(after), "--")
    except GitError as error:
        raise BergError(f"the code cannot be compared: {error}") from None


def files_of(description: dict[str, Any], folder: Path, open_pack: OpenPack) -> Files:
    """Return the files of a snapshot, whose packs are put into a folder, as `between` does."""
    try:
        unpack(folder, [description], open_pack)
    except GitError as error:
        raise BergError(f"the code cannot be read: {error}") from None
    return of_commit(folder, commit_of(description))


def unpack(folder: Path, descriptions: list[dict[str, Any]], open_pack: OpenPack) -> None:
    """Make a repo without a working tree from the packs of snapshots."""
    # Neither the user's nor the system's configuration is for a repo of Berg's own.
    git.distrusted[folder.resolve()] = [], git.NO_CONFIG
    snapshot.init(folder, commit_of(descriptions[0]))
    # Commits behind which the history of a snapshot's packs ends.
    ends = []
    for each in descriptions:
        ends += [*each.get("shallow", []), *(each.get("cut") or [])]
    snapshot.write_shallow(folder, [end for end in ends if snapshot.COMMIT.fullmatch(str(end))])
    for name in dict.fromkeys(pack for each in descriptions for pack in packs(each)):
        with open_pack(name) as stream:
            git.run(folder, "index-pack", "--fix-thin", "--stdin", stdin=stream)


def commit_of(description: dict[str, Any]) -> str:
    name = str(description["commit"])
    if not snapshot.COMMIT.fullmatch(name):
        raise BergError(f"{name[:80]!r} is not the id of a commit")
    return name


def packs(description: dict[str, Any]) -> list[str]:
    """Return the names of a snapshot's packs; raise BergError for what is no pack's name."""
    found = [str(each) for each in description.get("packs", [])]
    for name in found:
        # where packs are in the bucket
        if not name.startswith(".berg/repos/") or not name.endswith(".pack"):
            raise BergError(f"{name[:80]!r} is not the name of a pack")
    return found
