"""A container that runs: what it prints into its log, maybe through a terminal, and what it reads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Running:
    """A container that runs."""

    folder: Path
    env: dict[str, str]
    workdir: str
    shared: bool
    capabilities: str
    process: subprocess.Popen | None  # None: it outlived an earlier server
    started: str
    image: str = ""  # that it was started from
    reason: str = ""  # why it will have ended, if not by itself
    # (end of the log, when), for times in logs
    lines: list[tuple[int, float]] = field(default_factory=list)
    terminal: int | None = None  # the end of it that is not the container's


def follow(process: subprocess.Popen, ours: int | None, theirs: int | None, log: Path) -> None:
    """Take care of a new container's terminal, of which `theirs` is its end, or of the pipe that it
    reads.
    """
    if ours is not None and theirs is not None:
        os.close(theirs)
        os.set_blocking(ours, False)
        asyncio.get_running_loop().add_reader(ours, copy, ours, log)
    elif process.stdin:
        os.set_blocking(process.stdin.fileno(), False)


def copy(terminal: int, log: Path) -> None:
    """What a container wrote to its terminal, into its log."""
    try:
        data = os.read(terminal, 1 << 16)
    except BlockingIOError:
        return
    except OSError:  # the last of those who had it open has gone
        data = b""
    if data:
        with log.open("ab") as file:
            file.write(data)
    else:
        asyncio.get_running_loop().remove_reader(terminal)


def close(running: Running) -> None:
    """The same, when it has ended."""
    if running.terminal is not None:
        copy(running.terminal, running.folder / "log")
        asyncio.get_running_loop().remove_reader(running.terminal)
        os.close(running.terminal)
        running.terminal = None
    if running.process and running.process.stdin:
        running.process.stdin.close()


def note(running: Running) -> None:
    """Remember how long a log was when, for those who ask for a part of it by time."""
    try:
        size = (running.folder / "log").stat().st_size
    except FileNotFoundError:
        return
    if not running.lines or running.lines[-1][0] != size:
        running.lines.append((size, time.time()))
