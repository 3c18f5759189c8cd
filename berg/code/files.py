"""The files of a repo as a machine will have them: those of the commit that is sent."""

import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from berg import BergError
from berg.code.git import names
from berg.code.git import run as git
from berg.code.snapshot import Snapshot, objects_of

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
