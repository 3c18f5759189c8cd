"""What a repo says that it needs of python packages."""

import re
from pathlib import Path

FILE = "requirements.txt"


def arguments(folder: Path) -> list[str]:
    """What pip is to install for a repo; nothing for one that declares nothing."""
    found = ["-r", FILE] if (folder / FILE).exists() else []
    project = folder / "pyproject.toml"
    is_package = project.exists() and re.search(
        r"^\[(project|build-system)\]", project.read_text(), re.M
    )
    if (folder / "setup.py").exists() or is_package:
        found += ["-e", "."]
    return found
