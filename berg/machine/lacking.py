"""A module that a command could not import, and the file of its repo that names the package."""

import re
from pathlib import Path

from berg.code.uvlock import packages_of
from berg.job import Installation

MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
END = 1 << 14  # bytes of a log in which it is looked for


def words(log: Path, what: Installation) -> str:
    """Return what to add to the reason of a command's failure; "" if no file names the package."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - END))
            end = file.read().decode(errors="replace")
    except OSError:
        return ""
    for module in MISSING.findall(end)[-1:]:
        for where, names in what.others.items():
            if {*packages_of(module)} & {*names}:
                return f"; the module {module} is not installed: it is named by {where}"
    return ""
