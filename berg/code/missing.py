"""Which files of a repo name packages that are not installed, for a command that lacks one of them.

The job records them; its machine finds a missing module in the log (machine/installation.py).
"""

import contextlib
import posixpath
import re
from collections.abc import Iterable, Iterator

from berg import BergError
from berg.code.commits import Files
from berg.code.installation import (
    PROJECT,
    REQUIREMENTS,
    RUN_BY_UV,
    Repo,
    Wanted,
    defaults,
    find,
    scripts,
    upwards,
)
from berg.code.uvlock import parse
from berg.job import Installation

LIST = re.compile(r"(^|/)requirements([^/]*|/[^/]+)\.txt$")
Source = tuple[Iterable[str], str]  # requirements; what names them, and how to install them
MOST_LISTS, MOST = 20, 500  # files that are looked at, packages that a job records


def named(files: Files, wanted: Wanted, made: Installation) -> dict[str, list[str]]:
    """Return packages that are not installed, by what names them; files that are not in their form
    name nothing.
    """
    found: dict[str, list[str]] = {}
    if wanted.container:
        return found
    seen: set[str] = set()
    with contextlib.suppress(BergError, AttributeError, TypeError, ValueError):
        for texts, where in sources(files, wanted, made):
            new = {each.name for each in parse(t for t in texts if isinstance(t, str))} - seen
            if new and len(seen) < MOST:
                found[where] = sorted(new)
                seen |= new
    return found


def sources(files: Files, wanted: Wanted, made: Installation) -> Iterator[Source]:
    """Yield requirements that are not installed."""
    for name, text in scripts(files, wanted).items():
        yield re.findall(r"[\"']([^\"']+)[\"']", text), f"{name} itself: {RUN_BY_UV} {name}`"
    repo = find(files, wanted.folder) or Repo(files, wanted.folder)
    installed = {word for step in made.steps for word in step} | {*wanted.extras, *defaults(repo)}
    if not made.steps:
        yield repo.about.get("dependencies", []), repo.path(PROJECT)
    for kind, table in (("extra", repo.optional), ("group", repo.groups)):
        for name in table.keys() - installed:
            yield table[name], f"{kind} {name} of {repo.path(PROJECT)} (--{kind} {name})"
    is_read = {posixpath.join(made.folder, REQUIREMENTS)} if REQUIREMENTS in installed else set()
    yield from lists(files, wanted, "--install-script" if made.steps else "--install", is_read)
    for folder in upwards(wanted.folder):
        if conda := Repo(files, folder).conda:
            lines = re.findall(r"^\s*-\s*(\S+)", files.read(conda), re.MULTILINE)
            yield lines, f"{conda}, which is not read"


def lists(files: Files, wanted: Wanted, how: str, is_read: set[str]) -> Iterator[Source]:
    """Yield the same of lists for pip, those next to the root first."""
    found = sorted(
        filter(LIST.search, files.paths - is_read), key=lambda path: (path.count("/"), path)
    )
    for path in found[:MOST_LISTS]:
        command = f"pip install -r {posixpath.relpath(path, wanted.folder or '.')}"
        yield files.read(path).splitlines(), f"{path} ({how}: {command})"
