"""`import berg` in a job's own program, also where berg is not installed: it has `report`.

The folder of this file is on the path of each job's command. Where berg itself is on that path,
too, it is what is imported. Nothing here needs more than python's own library.
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

    Of several processes the first alone writes, and outside of a job nobody does. A metric is a
    number, or what float() takes, such as a tensor with one element; of NaN and infinity the line
    says null. Raises TypeError or ValueError for what is no number, OSError where the folder cannot
    be written.
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
    """Return a metric as JSON can say it: None for what is not finite."""
    if isinstance(value, int):
        return value
    found = float(value)
    return found if math.isfinite(found) else None


def rank() -> str:
    """Return the number of this process among those of its job; "0" where nothing says it."""
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
