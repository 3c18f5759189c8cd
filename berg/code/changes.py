"""What changed between the code of two jobs, as git says it, and what files one has.

The packs are put into an empty repo that has no working tree, so that nothing of what a
job's code holds is written as a file of this computer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from berg import BergError
from berg.code import git, snapshot
from berg.code.files import Files, of_commit

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
        return git.text(folder, "diff", *options, *commits, "--")
    except gitpython.GitCommandError as error:
        raise BergError(f"the code cannot be compared: {git.last_line(error)}") from None


def bring(
    folder: Path, descriptions: list[dict[str, Any]], open_pack: Callable[[str], IO[bytes]]
) -> None:
    """Make a repo without a working tree, of the packs of snapshots."""
    git.isolate(folder)
    snapshot.init(folder, commit(descriptions[0]))
    snapshot.write_shallow(folder, [cut for each in descriptions for cut in cuts(each)])
    for name in dict.fromkeys(pack for each in descriptions for pack in packs(each)):
        with open_pack(name) as stream:
            git.run(folder, "index-pack", "--fix-thin", "--stdin", stdin=stream)


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
        raise BergError(f"the code cannot be read: {git.last_line(error)}") from None
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
