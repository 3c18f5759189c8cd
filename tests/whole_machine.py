"""A machine of the model test of whole results: a program that writes, and the mirror beside it.

Each is a process of its own, so that both can be killed as a machine that loses its power.
"""

import hashlib
import importlib
import json
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def content(key: str, size: int) -> bytes:
    """Return bytes that are written nowhere else."""
    unit = hashlib.sha256(key.encode()).digest()
    return (unit * (size // len(unit) + 1))[:size]


def write(steps: list[tuple], folder: Path, log: Path, meeting: Path) -> None:
    """Do the steps of a program in `folder`; write into `log` when each began and ended."""
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    files: dict[int, Any] = {}

    def note(number: int, what: str, **more: Any) -> None:
        line = json.dumps({"step": number, "what": what, "at": time.time(), **more})
        os.write(notes, f"{line}\n".encode())

    for number, (kind, *given) in enumerate(steps):
        note(number, "begins")
        more = do(kind, given, folder, files, meeting) or {}
        note(number, "ended", **more)
    note(len(steps), "over")
    signal.pause()  # what it holds open stays open until the machine ends


def do(kind: str, given: list, folder: Path, files: dict[int, Any], meeting: Path) -> dict | None:
    """Do one step; return what else is to be noted."""
    if kind == "pause":
        time.sleep(given[0])
    elif kind == "meet":
        number, rank, machines = given
        (meeting / f"{number}-{rank}").touch()
        while len(list(meeting.glob(f"{number}-*"))) < machines:
            time.sleep(0.005)
    elif kind == "open":
        slot, path, mode = given
        files[slot] = (folder / path).open(mode, buffering=0)
    elif kind == "write":
        slot, at, key, size = given
        if at is not None:
            files[slot].seek(at)
        files[slot].write(content(key, size))
    elif kind == "close":
        file = files.pop(given[0])
        seen = os.fstat(file.fileno())
        file.close()
        return {"mtime_ns": seen.st_mtime_ns}
    elif kind == "truncate":
        os.truncate(folder / given[0], given[1])
        return {"mtime_ns": (folder / given[0]).stat().st_mtime_ns}
    elif kind == "rename":
        (folder / given[0]).rename(folder / given[1])
    elif kind == "link":
        (folder / given[0]).symlink_to(given[1])
    elif kind == "hard link":
        os.link(folder / given[0], folder / given[1])
    elif kind == "delete":
        (folder / given[0]).unlink()
    elif kind == "mkdir":
        (folder / given[0]).mkdir()
    else:
        assert kind == "rmdir"
        (folder / given[0]).rmdir()
    return None


def serve(
    settings: dict[str, str],
    given: dict[str, Any],
    place: tuple[int, int, Path],
    patches: dict[str, Any],
    parent: Connection,
) -> None:
    """Mirror a folder as its machine does, until it is killed."""
    from berg.config import Config
    from berg.google import storage
    from berg.google.mirror import Mirror
    from berg.machine import keeper

    for name, value in patches.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    mirror = Mirror(bucket=storage.Bucket(Config(**settings)), **given)
    rank, machines, top = place
    mirror.sender.was_cut = keeper.Cut(mirror.folder.parent / "cut", ()).has
    mirror.journal.is_shared = machines > 1
    others = [top / f"{each}.head" for each in range(machines) if each != rank]
    mirror.journal.others = lambda: heads(others)
    while True:
        what, *values = parent.recv()
        if what == "restore":
            _, left = mirror.restore(bring=values[0])
            parent.send({path: str(why) for path, why in left.items()})
        elif what == "pass":
            passes(mirror, values[0], values[1], top / f"{rank}.head", parent)
        else:
            seconds, is_final = values
            left = mirror.finish(lambda text: None, seconds)
            parent.send({**left, **(mirror.conclude(left) if is_final else {})})


def heads(paths: list[Path]) -> list[Any]:
    """Return what the last views of other machines say; [] before that is known of all."""
    from berg.google.views import Head

    found = [Head(**json.loads(path.read_text())) for path in paths if path.exists()]
    return found if len(found) == len(paths) else []


def passes(mirror: Any, seconds: float, pause: float, told: Path, parent: Connection) -> None:
    """Pass over the folder until the parent has something to say."""
    only_new, journal = False, mirror.journal
    while not parent.poll(pause):
        before = journal.number
        mirror.sync(seconds, lambda: parent.poll(0), only_new=only_new)
        if journal.number > before or not journal.is_shared:
            parent.send((journal.safe_ns if journal.is_shared else journal.at_ns) / 1e9)
        if journal.head.at_ns:
            beside = told.with_suffix(".part")
            beside.write_text(json.dumps(vars(journal.head)))
            beside.rename(told)
        only_new = not only_new
