"""What the command writes to the checkout, outside of its results: below `_checkout` there.

New files are linked into it when the command has ended. The folders of --keep are mirrored while
the command runs: `_checkout` has a link to each, which the mirror follows, so that programs may
delete and re-create them. Before a restore each is moved back into the results, and after the
checkout of the code to its place.
"""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from berg import plain
from berg.code import git
from berg.google.walk import shorten
from berg.machine.attempt import Attempt
from berg.machine.environment import repo_folder
from berg.machine.process import RESULTS

FOLDER = "_checkout"
MOST_BYTES, MOST_FILES = 10 * 10**9, 100_000
START = "refs/berg/start"  # the job's commit (code/snapshot.py)
# Folders that are not saved where git ignores them, as the job's checkout lets it do with most.
IS_CACHE = re.compile(r"\.?venv|__pycache__|node_modules|\.cache|\..*_cache|.*\.egg-info")


def link_results(root: Path, cwd: str) -> None:
    """Let the relative path berg_results of a checkout, and of the folder that the command runs in,
    lead to the results, unless the repository has something there.
    """
    for folder in {root, root / cwd}:
        link = folder / RESULTS.name
        if folder.is_dir() and not os.path.lexists(link):
            link.symlink_to(RESULTS)


def folder_of(attempt: Attempt) -> Path:
    """Return where this machine saves what is new in its checkout."""
    rank = attempt.member.node.rank
    return RESULTS / attempt.job.results_dir / FOLDER / (f"rank-{rank}" if rank else "")


def kept(attempt: Attempt) -> Iterator[tuple[Path, Path]]:
    """Yield each folder of --keep: its path in the results and in the checkout."""
    for path in attempt.job.spec.kept if attempt.job.kind == "job" else ():
        inside = RESULTS / attempt.job.results_dir / FOLDER / path
        yield inside, repo_folder(attempt.job) / path


def take_out(attempt: Attempt) -> None:
    """Move the kept folders into the results, where a restore looks for them."""
    for inside, here in kept(attempt):
        if inside.is_symlink():
            inside.unlink()
            if here.exists():
                shutil.move(here, inside)


def put_back(attempt: Attempt) -> None:
    """Move what the results have of the kept folders into the checkout, and link to it."""
    for inside, here in kept(attempt):
        if inside.exists() and not inside.is_symlink():
            merge(inside, here)
        if not inside.is_symlink():
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(here)
        attempt.mirrors.results.followed.add(str(inside.relative_to(RESULTS)))


def merge(source: Path, target: Path) -> None:
    """Move a file or folder; files that a folder has at the same path are replaced."""
    folders = [each.is_dir() and not each.is_symlink() for each in (source, target)]
    if all(folders):
        for each in source.iterdir():
            merge(each, target / each.name)
        source.rmdir()
        return
    if folders[1]:
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


def note_start(attempt: Attempt) -> None:
    """Note that the command begins, once: what changes from now on is new."""
    if attempt.job.kind == "job" and not attempt.command_mark.exists():
        attempt.command_mark.touch()


def save(attempt: Attempt) -> bool:
    """Link what the command wrote to the checkout into the results; return whether there is any.

    What was saved and what was not is logged, and is in the state.
    """
    if not attempt.command_mark.exists() or not attempt.job.spec.saves_checkout:
        return False
    folder, root = folder_of(attempt), repo_folder(attempt.job)
    saved = total = 0
    left: dict[str, str] = {}
    for path, found in sorted(new_files(attempt, root), key=lambda each: -each[1].st_ctime_ns):
        if total + found.st_size > MOST_BYTES or saved == MOST_FILES:
            left[path] = f"more than {plain.size(MOST_BYTES)} or {MOST_FILES:,} files"
        elif why := why_not(root, path):
            left[path] = why
        else:
            try:
                link(root / path, folder / path)
            except OSError as error:
                left[path] = error.strerror or str(error)
                continue
            saved, total = saved + 1, total + found.st_size
    attempt.state.checkout = in_words(saved, total, left)
    if attempt.state.checkout:
        attempt.say(f"Of the checkout: {attempt.state.checkout}")
    return saved > 0


def in_words(saved: int, total: int, left: dict[str, str]) -> str:
    """Return what was saved of a checkout, and what was not, short enough for a state."""
    text = ""
    if saved:
        text = f"{plain.plural(saved, 'new file')} ({plain.size(total)}) saved in {FOLDER}"
    if left:
        names = [f"{shorten(path, 60)} ({shorten(why, 60)})" for path, why in [*left.items()][:2]]
        more = f", and {len(left) - 2:,} more" if len(left) > 2 else ""
        text += f"{'; ' if text else ''}not saved: {', '.join(names)}{more}"
    return text


def new_files(attempt: Attempt, root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files and links of the checkout that the command created or changed, but not what
    --keep mirrors.
    """
    since = attempt.command_mark.stat().st_ctime_ns
    same = unchanged(root)
    for path, found in files(root, {here for _, here in kept(attempt)}):
        if found.st_ctime_ns > since and path not in same:
            yield path, found


def files(root: Path, left_out: set[Path]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files and links below a checkout, but not those of git, of caches that git ignores, and
    on other file systems.
    """
    disk = root.stat().st_dev
    pending, caches = [root], list[Path]()
    while pending:
        for path, found in entries(pending.pop()):
            if path.name == ".git" or path in left_out or found.st_dev != disk:
                continue
            if stat.S_ISDIR(found.st_mode):
                (caches if IS_CACHE.fullmatch(path.name) else pending).append(path)
            elif stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                yield str(path.relative_to(root)), found
        if not pending and caches:
            pending, caches = not_ignored(root, caches), []


def entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with contextlib.suppress(OSError):  # it cannot be read, or is gone
        for entry in os.scandir(folder):
            yield Path(entry.path), entry.stat(follow_symlinks=False)


def unchanged(root: Path) -> set[str]:
    """Return the files of the job's commit that are as they are there."""
    with contextlib.suppress(git.GitError):  # the command may have deleted .git
        names = git.names(git.run(root, "ls-tree", "-r", "-z", "--name-only", START))
        return {*names} - {*git.names(git.run(root, "diff", "--name-only", "-z", START))}
    return set()


def not_ignored(root: Path, folders: list[Path]) -> list[Path]:
    """Return the folders whose files git does not ignore."""
    files = {f"{each.relative_to(root)}/file": each for each in folders}
    paths = b"".join(os.fsencode(name) + b"\0" for name in files)
    try:
        ignored = {*git.names(git.run(root, "check-ignore", "-z", "--stdin", stdin=paths))}
    except git.GitError:  # none is, or there is no repository any more
        ignored = set() if (root / ".git").exists() else {*files}
    return [each for name, each in files.items() if name not in ignored]


def why_not(root: Path, path: str) -> str:
    """Return why a link is not saved; "" for one whose target comes with it, and for files."""
    here = root / path
    if not here.is_symlink():
        return ""
    leads_out = here.readlink().is_absolute() or root not in here.resolve().parents
    return "a link out of the checkout" if leads_out else ""


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it to another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
