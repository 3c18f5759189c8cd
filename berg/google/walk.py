"""A walk over a folder of results: which files are mirrored, and why others are not.

Links are followed where they stay inside, and where they stand for the whole folder of the job.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from berg.google import fetch
from berg.google.paths import bad_name, is_below, is_harmless


@dataclass
class Folder:
    """A folder that is still to be read."""

    path: str  # below the root; "" is the root
    above: tuple[str, ...]  # its real path and those of the folders that lead to it


@dataclass
class Walk:
    """One walk over `root`; `refused` and `links` fill up while it goes on."""

    root: Path
    prefix: str  # of the objects' names
    own: str  # folder of the job, below the root
    rejected: Collection[str]  # paths that are passed over
    refused: dict[str, str] = field(default_factory=dict)  # path -> why
    links: set[str] = field(default_factory=set)  # paths that are sent as what they lead to
    # hears of a folder before it is read
    on_folder: Callable[[str], None] = lambda path: None
    inside: list[str] = field(init=False)  # real paths of folders that links may lead to
    reached: dict[str, Folder] = field(default_factory=dict)  # by path, on the way to others

    def __post_init__(self) -> None:
        self.inside = [os.path.realpath(self.root)]

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield regular files with their stat."""
        yield from self.below(self.top)

    def among(self, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield those of `files` that are one of the paths, or below one; some may come twice."""
        self.reach(self.own)  # where it is a link, others may lead to the same folder
        for path in paths:
            found = self.reach(path)
            if isinstance(found, Folder):
                yield from self.below(found)
            elif found:
                yield path, found

    @property
    def top(self) -> Folder:
        return Folder("", (self.inside[0],))

    def below(self, top: Folder) -> Iterator[tuple[str, os.stat_result]]:
        pending = [top]
        while pending:
            folder = pending.pop()
            for entry in self.entries(folder):
                path = f"{folder.path}/{entry.name}".lstrip("/")
                found = self.look_at(entry, path, folder)
                if isinstance(found, Folder):
                    pending.append(found)
                elif found:
                    yield path, found

    def reach(self, path: str) -> Folder | os.stat_result | None:
        """Go down from the root to a path, by the same rules as a walk over everything."""
        if not path:
            return self.top
        if path in self.reached:
            return self.reached[path]
        folder = self.reach(path.rpartition("/")[0])
        if not isinstance(folder, Folder):
            return None
        found = self.look_at(self.root / path, path, folder)
        if isinstance(found, Folder):
            self.reached[path] = found
        return found

    def look_at(
        self, entry: os.DirEntry[str] | Path, path: str, folder: Folder
    ) -> Folder | os.stat_result | None:
        """Return as `visit` does; what cannot be read is refused."""
        try:
            return self.visit(entry, path, folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.refused[path] = error.strerror or str(error)
        return None

    def entries(self, folder: Folder) -> Iterator[os.DirEntry[str]]:
        self.on_folder(folder.path)
        try:
            entries = os.scandir(self.root / folder.path)
        except FileNotFoundError:
            return
        except OSError as error:
            self.refused[folder.path or "."] = error.strerror or str(error)
            return
        yield from entries

    def visit(
        self, entry: os.DirEntry[str] | Path, path: str, folder: Folder
    ) -> Folder | os.stat_result | None:
        """Return the folder or the stat of the file that an entry is, None to pass over it."""
        real = ""
        if entry.is_symlink():
            real = os.path.realpath(entry)
            self.allow_own_folder(path, real)
        if path in self.rejected or fetch.is_parts(self.root / path):
            return None
        if why := self.why_not(path, real):
            self.refused[path] = why
            return None
        if entry.is_dir():
            return self.visit_folder(entry, path, real, folder)
        if not entry.is_file():
            return None
        if real:
            self.links.add(path)
        return entry.stat()

    def visit_folder(
        self, entry: os.DirEntry[str] | Path, path: str, real: str, folder: Folder
    ) -> Folder | None:
        target = real or os.path.realpath(entry)
        if target in folder.above:
            self.refused[path] = "a link to a folder that holds it"
            return None
        if real and real not in self.inside:
            self.links.add(path)
        return Folder(path, (*folder.above, target))

    def allow_own_folder(self, path: str, real: str) -> None:
        """Let links lead to where the job's folder is a link to, or a folder that holds it."""
        leads_to_own = f"{self.own}/".startswith(f"{path}/")
        if leads_to_own and is_harmless(real, self.inside[0]):
            self.inside.append(real)

    def why_not(self, path: str, real: str) -> str:
        """Return why a path is refused, "" if it is not; `real` is what a link leads to."""
        if real and not any(is_below(real, folder) for folder in self.inside):
            return "a link to outside of the results"
        return bad_name(self.prefix + path)
