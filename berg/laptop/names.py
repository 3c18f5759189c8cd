"""Names of jobs and sweeps that a command saw, for the shell's completion, which must not wait for
the network.

BERG_HOME/names   a line each: NAME [live] [sweep JOBS]
"""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from berg import computer, config, job

MOST = 5_000  # names


def file() -> Path:
    return config.home() / "names"


def remember(named: list[tuple[str, str]], live: set[str], is_all: bool = True) -> None:
    """Write down jobs with their sweeps ("" for none), the newest first, MOST of them at most;
    `live` are those that are not over.

    Those that were there before stay, as over, unless these are all that there are.
    """
    counts = Counter(sweep or name for name, sweep in named)
    sweeps = {sweep for _, sweep in named}
    kept = {*islice(counts, MOST), *(live & counts.keys())}
    lines = [
        f"{name}{' live' * (name in live)}{f' sweep {counts[name]}' if name in sweeps else ''}\n"
        for name in kept
        if job.NAME.fullmatch(name)  # else it would be a line of this file, or another's words
    ]
    try:
        if not is_all:
            lines += islice(others(kept), max(0, MOST - len(kept)))
        computer.write(file(), "".join(sorted(lines)))
    except OSError:
        pass  # completion is a comfort


def others(known: set[str]) -> list[str]:
    """Return the lines of the file that are of other names, as of what is over."""
    if not file().exists():
        return []
    lines = [line.split() for line in file().read_text().splitlines()]
    return [
        f"{' '.join(word for word in words if word != 'live')}\n"
        for words in lines
        if words and words[0] not in known
    ]


def forget(names: Iterable[str]) -> None:
    """Delete names from the file."""
    try:
        left = [
            line for line in file().read_text().splitlines() if line.split()[:1][0] not in names
        ]
        computer.write(file(), "".join(f"{line}\n" for line in left))
    except (OSError, IndexError):
        pass
