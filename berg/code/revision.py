"""A commit of a repo as a snapshot, whatever the working tree is: `--branch` and `--commit`.

Not covered: content of Git LFS, which only a working tree is sure to have. It is named.
"""

import tempfile
from pathlib import Path

from berg import BergError
from berg.code import git as program
from berg.code.git import names, text
from berg.code.git import run as git
from berg.code.snapshot import Snapshot, objects_folder


def take(root: Path, branch: str | None, commit: str | None) -> Snapshot:
    """Return a branch's last commit, or a commit by its id or tag; raise BergError for neither."""
    if branch and commit:
        raise BergError("--branch and --commit both say which code runs: leave one out")
    if branch:
        return of_commit(root, root.name, branch, find_branch(root, branch))
    return of_commit(root, root.name, "", find_commit(root, commit or ""))


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


def of_commit(root: Path, repo_name: str, branch: str, commit: str) -> Snapshot:
    """Return the snapshot of a commit, with those of its submodules that are here."""
    snapshot = Snapshot(root, repo_name, branch, commit, commit, objects_folder(root))
    snapshot.left_out = [f"{path} (content of Git LFS)" for path in lfs_files(root, commit)]
    for path, inner in submodules(root, commit).items():
        folder = root / path
        is_there = (folder / ".git").exists() and not program.enter(root, folder)
        if is_there and resolve(folder, inner):
            name = f"{repo_name}.{Path(path).name}"
            snapshot.submodules[path] = of_commit(folder, name, "berg", inner)
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
