"""Git, as Berg starts it: it runs no program that a folder's own configuration or hooks name.

The exceptions are filters (`filter.lfs.clean` and the like) of the user's own repo, which are part
of what its files are: a clone brings no configuration. A repo inside of it, which has a
configuration of its own, may have come with an archive of files: see `distrust`.
"""

import functools
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import IO, Any

from berg import BergError

SETTINGS = {
    "core.fsmonitor": "",
    "core.hooksPath": os.devnull,
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
NO_CONFIG = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
# Repos inside of the user's own -> options and variables for git there.
distrusted: dict[Path, tuple[list[str], dict[str, str]]] = {}


def run(
    folder: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    stdin: bytes | IO[bytes] | None = None,
    stdout: Any = None,
) -> bytes:
    """Run git in `folder` and return what it printed, or write that to `stdout`; raises
    git.GitCommandError.

    Raises BergError for a repo of another user, in which git does nothing.
    """
    import git as gitpython

    if isinstance(stdin, bytes):
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            return run(folder, *arguments, env=env, stdin=file, stdout=stdout)
    options, variables = distrusted.get(folder.resolve(), ([], {}))
    try:
        output: Any = gitpython.Git(str(folder)).execute(
            ["git", *OPTIONS, *options, *arguments],
            env={**variables, **(env or {})},
            istream=stdin,  # type: ignore[arg-type]
            output_stream=stdout,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
        )
    except gitpython.GitCommandError as error:
        if not (found := re.search(r"dubious ownership in repository at '(.*)'", str(error))):
            raise
        trust = shlex.join(["git", "config", "--global", "--add", "safe.directory", found[1]])
        raise BergError(
            f"git does not trust {found[1]}, which belongs to another user. Run: {trust}"
        ) from None
    output_of_git: bytes = output
    return output_of_git


def text(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    return run(folder, *arguments, env=env).decode(errors="replace").strip()


def names(output: bytes) -> list[str]:
    return [name.decode(errors="surrogateescape") for name in output.split(b"\0") if name]


def last_line(error: Any) -> str:
    output = (
        error.stderr
        if isinstance(error.stderr, str)
        else (error.stderr or b"").decode(errors="replace")
    )
    lines = [
        line for line in output.replace("stderr:", "").strip(" \n'").splitlines() if line.strip()
    ]
    # which file; the last line only sums up
    named = [line for line in lines if line.startswith("error: ")][:1]
    return [*lines[-1:], *named][-1].strip() if lines else str(error)


@functools.cache
def common_folder(root: Path) -> Path:
    """Return the folder of git's that all working trees of a repo share."""
    return Path(text(root, "rev-parse", "--path-format=absolute", "--git-common-dir"))


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


def isolate(folder: Path) -> None:
    """Let git use neither the user's nor the system's configuration for a repo of Berg's own."""
    distrusted[folder.resolve()] = [], NO_CONFIG


def distrust(folder: Path) -> None:
    """Let git start no filter and no transport for a repo, and stay in its folder."""
    key = folder.resolve()
    if key in distrusted:
        return
    variables = {"GIT_WORK_TREE": str(key), "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
    options = []
    for name in filters(folder):
        if "=" in name:
            raise BergError(f"{folder} configures {name!r} for git. Run: git config --unset {name}")
        options += ["-c", f"{name}={'false' if name.endswith('.required') else ''}"]
    distrusted[key] = options, variables


def unused_filters(folder: Path) -> list[str]:
    """Return the filters that git does not start for a repo, but for that of Git LFS."""
    options, _ = distrusted.get(folder.resolve(), ([], {}))
    return sorted({each.split(".")[1] for each in options if each != "-c"} - {"lfs"})


def filters(folder: Path) -> list[str]:
    """Return the settings of filters that count in a repo, by name."""
    import git as gitpython

    try:
        found = run(folder, "config", "--includes", "--name-only", "-z", "--get-regexp", FILTERS)
    except gitpython.GitCommandError:  # there are none
        return []
    return sorted(set(names(found)))
