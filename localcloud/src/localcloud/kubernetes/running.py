"""A container that runs, and when it wrote which part of its log."""

from __future__ import annotations

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


def note(running: Running) -> None:
    """Remember how long a log was when, for those who ask for a part of it by time."""
    try:
        size = (running.folder / "log").stat().st_size
    except FileNotFoundError:
        return
    if not running.lines or running.lines[-1][0] != size:
        running.lines.append((size, time.time()))
