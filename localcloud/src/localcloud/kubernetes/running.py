"""A container that runs."""

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
    capabilities: str
    process: subprocess.Popen
    started: str
