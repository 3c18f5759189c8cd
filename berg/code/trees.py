"""Trees of git's that differ in a few files from one that is there: no index, nothing else read.

An index of 100,000 files takes longer to read and write than all that is done here.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FOLDER = "40000"  # the mode of a tree in a tree
HASHES = {40: hashlib.sha1, 64: hashlib.sha256}  # by the length of ids
KINDS = {FOLDER: "tree", "160000": "commit"}  # of all other modes: blob

Entry = tuple[str, str]  # mode as a tree has it, id
Git = Callable[[list[str], bytes], bytes]  # runs git with words and what it reads


@dataclass
class Edits:
    """What becomes of a folder: None is for what is gone."""

    files: dict[bytes, Entry | None] = field(default_factory=dict)
    folders: dict[bytes, "Edits"] = field(default_factory=dict)

    def put(self, path: str, entry: Entry | None) -> None:
        *parents, name = os.fsencode(path).split(b"/")
        at = self
        for each in parents:
            at = at.folders.setdefault(each, Edits())
        at.files[name] = entry


def edited(git: Git, tree: str, changes: dict[str, Entry | None]) -> str:
    """Return the id of a tree in which some paths are changed; git has it then.

    What is gone gives way to a folder of its name.
    """
    edits = Edits()
    for path, entry in changes.items():
        edits.put(path, entry)
    made: list[bytes] = []
    top = Making(read_trees(git, tree, edits), HASHES[len(tree)], made).make(tree, edits)
    written = git(["mktree", "-z", "--batch"], b"".join(made)).decode().split()
    if written[-1:] != [top]:
        raise ValueError(f"git made the tree {written[-1:]} where {top} was meant")
    return top


def read_trees(git: Git, tree: str, edits: Edits) -> dict[str, dict[bytes, Entry]]:
    """Return the entries of a tree and of those in it that change, by their ids, level by level."""
    found: dict[str, dict[bytes, Entry]] = {}
    level = [(tree, edits)]
    while level:
        ids = "".join(f"{each}\n" for each, _ in level)
        found |= entries_of(git(["cat-file", "--batch"], ids.encode()), len(tree) // 2)
        level = [
            (there[1], below)
            for each, inner in level
            for name, below in inner.folders.items()
            if (there := found[each].get(name)) and there[0] == FOLDER
        ]
    return found


def entries_of(output: bytes, size: int) -> dict[str, dict[bytes, Entry]]:
    """Return the entries of trees from what `git cat-file --batch` says; ids have `size` bytes."""
    found: dict[str, dict[bytes, Entry]] = {}
    at = 0
    while at < len(output):
        head = output.index(b"\n", at)
        tree, _, length = output[at:head].decode().split(" ")
        at, end = head + 1, head + 1 + int(length)
        entries: dict[bytes, Entry] = {}
        found[tree] = entries
        while at < end:
            mode, _, name = output[at : (zero := output.index(b"\0", at))].partition(b" ")
            entries[name] = (mode.decode(), output[zero + 1 : zero + 1 + size].hex())
            at = zero + 1 + size
        at = end + 1
    return found


@dataclass
class Making:
    """The making of an edited tree: the trees that were read, and what `git mktree` reads."""

    read: dict[str, dict[bytes, Entry]]
    hashed: Any
    made: list[bytes]

    def make(self, tree: str, edits: Edits) -> str:
        """Return the id of an edited tree; note the trees in it that change, and then itself."""
        entries = self.merged(tree, edits)
        self.made.append(lines_of(entries))
        return self.id_of(entries)

    def merged(self, tree: str, edits: Edits) -> dict[bytes, Entry]:
        """Return the entries of an edited tree, "" for one that is new.

        A folder goes with its last file.
        """
        entries = dict(self.read.get(tree, {}))
        for name, below in edits.folders.items():
            mode, inner = entries.pop(name, ("", ""))
            within = self.merged(inner if mode == FOLDER else "", below)
            if within:
                self.made.append(lines_of(within))
                entries[name] = (FOLDER, self.id_of(within))
        for name, entry in edits.files.items():
            if entry:
                entries[name] = entry
            elif name not in edits.folders:
                entries.pop(name, None)
        return entries

    def id_of(self, entries: dict[bytes, Entry]) -> str:
        """Return the id that git gives a tree."""
        in_order = sorted(entries.items(), key=lambda each: each[0] + b"/" * (each[1][0] == FOLDER))
        content = b"".join(
            b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(found))
            for name, (mode, found) in in_order
        )
        whole: str = self.hashed(b"tree %d\0%s" % (len(content), content)).hexdigest()
        return whole


def lines_of(entries: dict[bytes, Entry]) -> bytes:
    """Return a tree as `git mktree` reads it."""
    lines = [
        b"%s %s %s\t%s\0" % (mode.encode(), KINDS.get(mode, "blob").encode(), found.encode(), name)
        for name, (mode, found) in entries.items()
    ]
    return b"".join([*lines, b"\0"])
