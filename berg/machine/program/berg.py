"""`import berg` in a job's own program, if berg is not installed there: `report`.

The folder of this file is on the path of each job's command. If berg itself is, too, that one is
imported. Standard library only.
"""

import importlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

# Which process of several this is, for the launchers of PyTorch, MPI and Slurm; then the machine.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "BERG_NODE_RANK")


def report(step: int, **metrics: Any) -> None:
    """Append a line with a step and its metrics to metrics.jsonl in the job's results folder.

    Of several processes only the first writes; outside of a job, none does. A metric is a number,
    or what float() takes, such as a tensor with one element; NaN and infinity become null. Raise
    TypeError or ValueError for other values, OSError if the folder cannot be written.
    """
    folder = os.environ.get("BERG_RESULTS_DIR")
    row = {"step": int(step), **{name: number(value) for name, value in metrics.items()}}
    if not folder or rank() != "0":
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = os.open(Path(folder, "metrics.jsonl"), flags, 0o666)
    try:
        os.write(file, (json.dumps(row) + "\n").encode())  # whole: no line mixes with another
    finally:
        os.close(file)


def number(value: Any) -> float | None:
    """Return a metric for JSON: None for NaN and infinity."""
    if isinstance(value, int):
        return value
    found = float(value)
    return found if math.isfinite(found) else None


def rank() -> str:
    """Return the rank of this process among those of its job; "0" if it is not known."""
    return next((os.environ[name] for name in RANKS if os.environ.get(name)), "0")


def make_way() -> None:
    """Import the berg that this module hides, if there is one."""
    ours = sys.modules.pop(__name__)
    here = Path(__file__).parent
    sys.path[:] = [folder for folder in sys.path if Path(folder) != here]
    try:
        importlib.import_module(__name__)
    except ImportError:
        sys.modules[__name__] = ours


if __name__ == "berg":
    make_way()
