"""What a program did to its folder, and whether what a restore brought is that folder at one moment.

Each step of a program is one change that another process can see. A tree is looked at after each.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whole_machine import content

FOLDER = "folder"


@dataclass(eq=False)
class File:
    """What one inode has had, in order."""

    versions: list[bytes]
    grew: list[bool] = field(default_factory=lambda: [False])  # it is the one before, and more
    mtimes: dict[int, set[int]] = field(default_factory=dict)  # of versions that were closed
    closed: int | None = None  # the last version that was closed
    killed: int | None = None  # the version that was left when its program was killed
    writers: int = 0
    is_log: bool = False  # lines are appended for as long as the program runs

    def change(self, data: bytes) -> None:
        last = self.versions[-1]
        if data != last:
            self.versions.append(data)
            self.grew.append(data.startswith(last))

    def longest(self, version: int) -> bytes:
        """Return what a version became before anything but its end was changed."""
        while version + 1 < len(self.versions) and self.grew[version + 1]:
            version += 1
        return self.versions[version]


@dataclass
class Seen:
    """A file at one moment."""

    file: File
    now: int  # version
    closed: int | None
    is_open: bool

    def why_not(self, found: Any) -> str:
        """Return why what a restore brought is not this file, "" if it is."""
        file, closed = self.file, self.closed
        if found is None:
            return "" if self.is_open and closed is None else "it is missing"
        if found[0] != "file":
            return "it is a link"
        _, data, mtime_ns = found
        if self.now == file.killed and data == file.versions[self.now]:
            return ""  # nobody can tell when it was closed: its last change is older
        if closed is None:
            is_part = file.is_log and file.longest(0).startswith(data)
            return "" if is_part else "it was never finished" + self.guess(data)
        if not (data.startswith(file.versions[closed]) and file.longest(closed).startswith(data)):
            return "it is not as it was" + self.guess(data)
        if self.is_open and not all(file.grew[closed + 1 : self.now + 1]):
            return "it was being rewritten"
        if data == file.versions[closed] and mtime_ns not in file.mtimes[closed]:
            return "its time is another"
        return ""

    def guess(self, data: bytes) -> str:
        for number, version in enumerate(self.file.versions):
            if version == data:
                return f" (version {number} instead of {self.closed})"
        return f" ({len(data)} bytes that it never had)"


@dataclass
class Tree:
    """The folder of one machine, as its program left it."""

    entries: dict[str, Any] = field(default_factory=dict)  # path -> File, FOLDER, or a link's text
    slots: dict[int, list[Any]] = field(default_factory=dict)  # open file and its position

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Tree":
        tree = cls()
        for path, (kind, *rest) in found.items():
            for folder in parents(path):
                tree.entries[folder] = FOLDER
            if kind == "link":
                tree.entries[path] = rest[0]
            else:
                tree.entries[path] = File([rest[0]], closed=0, mtimes={0: {rest[1]}})
        return tree

    def look(self) -> dict[str, Any]:
        """Return the files and links as they are now."""
        seen: dict[str, Any] = {}
        for path, entry in self.entries.items():
            if isinstance(entry, File):
                seen[path] = Seen(entry, len(entry.versions) - 1, entry.closed, entry.writers > 0)
            elif entry != FOLDER:
                seen[path] = ("link", entry)
        return seen

    def below(self, path: str) -> list[str]:
        return sorted(each for each in self.entries if each.startswith(f"{path}/"))

    def apply(self, kind: str, given: list[Any], mtime_ns: int = 0) -> None:
        """Do a step of a program."""
        entries = self.entries
        if kind == "open":
            self.open(*given)
        elif kind == "write":
            self.write(*given)
        elif kind == "close":
            file, _ = self.slots.pop(given[0])
            file.writers -= 1
            self.close(file, mtime_ns)
        elif kind == "truncate":
            file, size = entries[given[0]], given[1]
            file.change(file.versions[-1][:size].ljust(size, b"\0"))
            self.close(file, mtime_ns)
        elif kind == "rename":
            path, to = given
            for each in [*self.below(path), path]:
                entries[to + each[len(path) :]] = entries.pop(each)
        elif kind == "link":
            entries[given[0]] = given[1]
        elif kind == "hard link":
            entries[given[1]] = entries[given[0]]
        elif kind in ("delete", "rmdir"):
            del entries[given[0]]
        elif kind == "mkdir":
            entries[given[0]] = FOLDER

    def open(self, slot: int, path: str, mode: str) -> None:
        file = self.entries.setdefault(path, File([b""], is_log=path.endswith(".log")))
        if mode == "wb":
            file.change(b"")
        file.writers += 1
        self.slots[slot] = [file, len(file.versions[-1]) if mode == "ab" else 0]

    def write(self, slot: int, at: int | None, key: str, size: int) -> None:
        file, position = self.slots[slot]
        position = position if at is None else at
        data, new = file.versions[-1].ljust(position, b"\0"), content(key, size)
        file.change(data[:position] + new + data[position + size :])
        self.slots[slot][1] = position + size

    @staticmethod
    def close(file: File, mtime_ns: int) -> None:
        file.closed = len(file.versions) - 1
        file.mtimes.setdefault(file.closed, set()).add(mtime_ns)

    def end(self, found: dict[str, Any]) -> None:
        """Note that the program was killed, and what was on the disk then."""
        self.slots = {}
        for path, entry in self.entries.items():
            if isinstance(entry, File):
                entry.change(found[path][1])
                if entry.writers:
                    entry.killed = len(entry.versions) - 1
                entry.writers = 0
                self.close(entry, found[path][2])


@dataclass
class History:
    """What one machine's folder was, from moment to moment."""

    rank: int
    machines: int
    tree: Tree
    looks: list[tuple[float, float, dict[str, Any]]] = field(default_factory=list)
    synced: float = 0.0  # from when on the bucket has it all, as the mirror says

    def __post_init__(self) -> None:
        self.looks.append((0.0, 0.0, self.tree.look()))

    def follow(self, steps: list[tuple], notes: list[dict[str, Any]]) -> None:
        """Learn from a program's notes what it did."""
        begun = {each["step"]: each for each in notes if each["what"] == "begins"}
        ended = {each["step"]: each for each in notes if each["what"] == "ended"}
        for number, (kind, *given) in enumerate(steps):
            if number not in begun:
                break
            end = ended.get(number, {})
            if number not in ended and kind in ("write", "close", "truncate"):
                break  # what is on the disk tells
            before = dict(self.tree.entries)
            self.tree.apply(kind, list(given), end.get("mtime_ns", 0))
            if kind not in ("pause", "meet"):
                at = begun[number]["at"], end.get("at", float("inf"))
                self.looks.append((*at, self.tree.look()))
            if number not in ended:
                self.undecided = before
                break

    def killed(self, folder: Path, at: float) -> None:
        """Learn what was on the disk when the program was killed."""
        found = found_in(folder)
        if self.paths() != set(found):  # the last step began, and did nothing
            self.tree.entries = self.undecided
        assert self.paths() == set(found), (self.paths(), set(found))
        self.tree.end(found)
        self.looks.append((at, at, self.tree.look()))

    def paths(self) -> set[str]:
        return {path for path, entry in self.tree.entries.items() if entry != FOLDER}

    def owns(self, path: str) -> bool:
        return self.machines == 1 or owner(path) == self.rank

    def at(self, moment: float) -> list[dict[str, Any]]:
        """Return what the folder may have been at a moment: while a step is done, two things."""
        sure = max(n for n, (_, ended, _) in enumerate(self.looks) if ended <= moment)
        last = max(n for n, (began, _, _) in enumerate(self.looks) if began <= moment)
        return [self.looks[n][2] for n in range(sure, max(sure, last) + 1)]


def moments(histories: list[History]) -> list[float]:
    """Return the moments that a restore may bring."""
    first = max(history.synced for history in histories)
    all_times = {t for each in histories for began, ended, _ in each.looks for t in (began, ended)}
    return sorted({first, *(t for t in all_times if first <= t < float("inf"))})


def explain(histories: list[History], found: dict[str, Any]) -> list[str]:
    """Return what is wrong with what a restore brought, compared with the moment that it is nearest
    to; nothing if it is the folder at one moment.
    """
    best: list[str] | None = None
    nearest = 0.0
    for moment in reversed(moments(histories)):
        for trees in combinations([each.at(moment) for each in histories]):
            wrong = []
            expected: dict[str, Any] = {}
            for history, tree in zip(histories, trees, strict=True):
                expected.update({path: seen for path, seen in tree.items() if history.owns(path)})
            for path in sorted({*expected, *found}):
                if why := why_not(expected.get(path), found.get(path)):
                    wrong.append(f"{path}: {why}")
            if not wrong:
                return []
            if best is None or len(wrong) < len(best):
                best, nearest = wrong, moment
    return [*best, f"nearest to {nearest:.3f}, with {sorted(found)}"] if best else []


def combinations(choices: list[list[Any]]) -> Iterator[list[Any]]:
    if not choices:
        yield []
        return
    for first in choices[0]:
        for rest in combinations(choices[1:]):
            yield [first, *rest]


def why_not(seen: Any, found: Any) -> str:
    if seen is None:
        return "it did not exist"
    if isinstance(seen, Seen):
        return seen.why_not(found)
    return "" if found == seen else f"it is no link to {seen[1]}"


def found_in(folder: Path) -> dict[str, Any]:
    """Return the files and links of a folder."""
    found: dict[str, Any] = {}
    for top, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(top) / name
            where = str(path.relative_to(folder))
            if path.is_symlink():
                found[where] = ("link", str(path.readlink()))
            elif path.is_file():
                found[where] = ("file", path.read_bytes(), path.stat().st_mtime_ns)
    return found


def parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def leads_out(path: str, target: str) -> bool:
    """Whether a link leads to a place outside of the results."""
    return os.path.normpath(Path(path).parent / target).startswith("..")


def owner(path: str) -> int:
    """Return the machine that a path belongs to: the others do not write to it."""
    for part in path.split("/"):
        if part.startswith("r") and part[1:2].isdigit():
            return int(part[1])
    return 0


@dataclass
class Program:
    """Writes the steps of a program, from what it is to do to a tree."""

    tree: Tree
    rank: int
    machines: int
    job: str
    key: str  # of its bytes
    steps: list[tuple] = field(default_factory=list)
    dice: random.Random = field(default_factory=random.Random)
    slots: int = 0
    written: int = 0
    saves: int = 0
    meetings: int = 0
    most: float = float("inf")  # bytes that are left
    logs: dict[str, int] = field(default_factory=dict)  # that are open

    def step(self, kind: str, *given: Any) -> None:
        self.steps.append((kind, *given))
        self.tree.apply(kind, list(given))
        if kind not in ("pause", "meet") and self.dice.random() < 0.3:
            self.steps.append(("pause", round(self.dice.uniform(0, 0.04), 3)))

    def path(self, name: str) -> str:
        """Return the path of a name: in the job's folder, and its own machine's."""
        if name == "d" and self.machines > 1:
            name = "e"  # no file takes the place of a folder in which others have theirs
        if self.rank:
            folder, _, last = name.rpartition("/")
            name = f"{folder}/r{self.rank}-{last}".lstrip("/")
        name = f"{self.job}/{name}" if not name.startswith("+") else f"{self.job}-{name[1:]}"
        for folder in parents(name):
            if self.tree.entries.get(folder) != FOLDER:
                self.remove(folder)
                self.step("mkdir", folder)
        return name

    def remove(self, path: str) -> None:
        entry = self.tree.entries.get(path)
        if entry is None:
            return
        for each in sorted(self.tree.below(path), key=len, reverse=True):
            self.step("rmdir" if self.tree.entries[each] == FOLDER else "delete", each)
        self.step("rmdir" if entry == FOLDER else "delete", path)

    def place(self, name: str) -> str:
        """Return a path that a file may be written to."""
        path = self.path(name)
        if not isinstance(self.tree.entries.get(path, None), File | None):
            self.remove(path)
        return path

    def is_busy(self, path: str) -> bool:
        """Whether a path is open, or something below it."""
        entries = [self.tree.entries.get(each) for each in [path, *self.tree.below(path)]]
        return any(isinstance(each, File) and each.writers for each in entries)

    def put(self, path: str, mode: str, size: int, at: int | None = None) -> None:
        """Write a file in some pieces."""
        if self.is_busy(path):
            return
        size = size if size <= self.most else min(size, 400)
        self.most -= size
        self.slots += 1
        slot = self.slots
        self.step("open", slot, path, mode)
        pieces = self.dice.randint(1, 3) if size > 1 else 1
        for number in range(pieces):
            piece = size // pieces if number < pieces - 1 else size - size // pieces * (pieces - 1)
            self.written += 1
            self.step("write", slot, at if number == 0 else None, self.name(), piece)
        self.step("close", slot)

    def name(self) -> str:
        return f"{self.key}.{self.rank}.{self.written}"

    # --- what programs do

    def write(self, name: str, size: int) -> None:
        self.put(self.place(name), "wb", size)

    def replace(self, name: str, size: int) -> None:
        path, beside = self.place(name), self.place(f"{name}.part")
        self.put(beside, "wb", size)
        if not self.is_busy(path):
            self.step("rename", beside, path)

    def append(self, name: str, size: int) -> None:
        self.put(self.place(name), "ab", size)

    def write_in_place(self, name: str, size: int) -> None:
        path = self.place(name)
        if path in self.tree.entries:
            there = len(self.tree.entries[path].versions[-1])
            self.put(path, "r+b", size, self.dice.randint(0, there))

    def log(self, name: str, size: int) -> None:
        """Append to a file that stays open."""
        path = self.place(f"{name}.log")
        if path not in self.logs or self.logs[path] not in self.tree.slots:
            self.slots += 1
            self.logs[path] = self.slots
            self.step("open", self.slots, path, "ab")
        self.written += 1
        self.step("write", self.logs[path], None, self.name(), size)

    def truncate(self, name: str, size: int) -> None:
        path = self.place(name)
        if path in self.tree.entries and not self.is_busy(path):
            self.step("truncate", path, min(size, 5000))

    def rename(self, name: str, to: str) -> None:
        path, new = self.path(name), self.path(to)
        if path not in self.tree.entries or self.is_busy(path) or self.is_busy(new):
            return
        if f"{new}/".startswith(f"{path}/") or f"{path}/".startswith(f"{new}/"):
            return
        entry = self.tree.entries[path]
        if entry == FOLDER and self.machines > 1:
            return
        if isinstance(entry, str) and leads_out(new, entry):
            return  # such a link is no result
        if FOLDER in (entry, self.tree.entries.get(new)) or entry is self.tree.entries.get(new):
            self.remove(new)
        if path in self.tree.entries:
            self.step("rename", path, new)

    def link(self, name: str, to: str) -> None:
        path, target = self.path(name), self.path(to)
        if path != target and not self.is_busy(path):
            self.remove(path)
            self.step("link", path, os.path.relpath(target, Path(path).parent))

    def hard_link(self, name: str, to: str) -> None:
        path, new = self.path(name), self.path(to)
        if path == new or self.is_busy(path) or self.is_busy(new):
            return
        if isinstance(self.tree.entries.get(path), File):
            self.remove(new)
            if path in self.tree.entries:
                self.step("hard link", path, new)

    def delete(self, name: str, size: int) -> None:
        path = self.path(name)
        if not (self.machines > 1 and self.tree.entries.get(path) == FOLDER):
            self.remove(path)

    def wait(self, size: int, name: str) -> None:
        self.step("pause", 0.1 + size % 5 / 10)

    def meet(self) -> None:
        if self.machines > 1:
            self.meetings += 1
            self.step("meet", f"{self.key}-{self.meetings}", self.rank, self.machines)

    # --- how trainers save

    def save_folder(self, size: int, files: int) -> None:
        """Each checkpoint in a folder of its own, its marker last, and the older ones deleted."""
        folder = f"checkpoint-{self.next_save():03}"
        for number in range(files):
            self.write(f"{folder}/shard-{number}", size)
        self.meet()
        if not self.rank:
            self.write(f"{folder}/state.json", 100)
        self.rotate("checkpoint-", 2)

    def save_renamed(self, size: int, files: int) -> None:
        """Written under another name, and renamed as a whole."""
        if self.machines > 1:
            return
        name = f"{self.next_save()}"
        for number in range(files):
            self.write(f"steps/{name}.tmp/{number}", size)
        self.rename(f"steps/{name}.tmp", f"steps/{name}")
        self.rotate("steps/", 1)

    def save_with_pointer(self, size: int, files: int) -> None:
        """All shards, a barrier, and a small file that names them, written over itself."""
        folder = f"global_step{self.next_save():03}"
        for number in range(files):
            self.write(f"{folder}/shard-{number}", size)
        self.meet()
        if not self.rank:
            self.write("latest", 30)

    def save_over(self, size: int, files: int) -> None:
        """Files of an older checkpoint, one after the other; the marker is gone meanwhile."""
        if not self.rank:
            self.delete("dcp/metadata", 0)
        self.meet()
        for number in range(files):
            self.write(f"dcp/shard-{number}", size)
        self.meet()
        if not self.rank:
            self.replace("dcp/metadata", 100)

    def save_linked(self, size: int, files: int) -> None:
        """A new file, a link to it, and the older one is deleted."""
        name = f"epoch={self.next_save():03}.ckpt"
        self.replace(name, size)
        self.link("last.ckpt", name)
        self.rotate("epoch=", 1)

    def next_save(self) -> int:
        """Return a number that no checkpoint has had, the same on all machines."""
        self.saves += 1
        return int(self.key) * 20 + self.saves

    def rotate(self, prefix: str, keep: int) -> None:
        mine = [name for name in self.tops(prefix) if self.owned_below(name)]
        for path in mine[:-keep]:
            for each in self.owned_below(path):
                self.step("delete", each)
            for each in sorted([*self.tree.below(path), path], key=len, reverse=True):
                if self.tree.entries.get(each) == FOLDER and not self.tree.below(each):
                    self.step("rmdir", each)

    def tops(self, prefix: str) -> list[str]:
        whole = f"{self.job}/{prefix}"
        depth = whole.count("/")
        found = [p for p in self.tree.entries if p.startswith(whole) and p.count("/") == depth]
        return sorted(found, key=lambda path: (len(path), path))

    def owned_below(self, path: str) -> list[str]:
        return [
            each
            for each in [*self.tree.below(path), path]
            if self.tree.entries.get(each, FOLDER) != FOLDER
            and (self.machines == 1 or owner(each) == self.rank)
        ]
