"""Names of jobs and sweeps that a command saw, for the shell's completion, which must not wait for
the network.

BERG_HOME/names   a line each: NAME [live] [sweep JOBS]
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from berg import config, job


def file() -> Path:
    return config.home() / "names"


def remember(named: list[tuple[str, str]], live: set[str]) -> None:
    """Write down jobs with their sweeps ("" for none); `live` are those that are not over."""
    counts = Counter(sweep or name for name, sweep in named)
    sweeps = {sweep for _, sweep in named}
    lines = [
        f"{name}{' live' * (name in live)}{f' sweep {count}' if name in sweeps else ''}\n"
        for name, count in sorted(counts.items())
        if job.NAME.fullmatch(name)  # else it would be a line of this file, or another's words
    ]
    try:
        file().write_text("".join(lines))
    except OSError:
        pass  # completion is a comfort


def forget(names: Iterable[str]) -> None:
    """Delete names from the file."""
    try:
        left = [
            line for line in file().read_text().splitlines() if line.split()[:1][0] not in names
        ]
        file().write_text("".join(f"{line}\n" for line in left))
    except (OSError, IndexError):
        pass
