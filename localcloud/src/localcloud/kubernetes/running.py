"""A container that runs, and when it wrote which part of its log."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
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
