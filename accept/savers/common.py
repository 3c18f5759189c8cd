"""What each of these programs does: find its newest checkpoint, see that all of it is of one step,
and save on. Their lines on standard output say what came back, and when each save began and ended.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER, RANK, WORLD = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
STEPS = int(os.environ.get("SAVERS_STEPS", "60"))  # more than there is time for
SIZE = 150_000  # floating point numbers in each part of a checkpoint


def say(what: str, step: int) -> None:
    sys.stdout.write(f"{what} {step} {time.time()}\n")
    sys.stdout.flush()


def meet() -> None:
    """Begin the process group of all ranks, by the variables of torchrun."""
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)


def same(steps: list[int], what: str) -> int:
    """Return the one step that all parts of a checkpoint are of."""
    if len(set(steps)) != 1:
        sys.exit(f"mixed: {what} has parts of the steps {steps}")
    return steps[0]


def run(load: Callable[[], int], save: Callable[[int], None], pause: float = 0.1) -> None:
    """Resume from what `load` returns, 0 for nothing, and save step after step."""
    begin = load()
    say("resumed", begin)
    for step in range(begin + 1, begin + STEPS):
        say("saving", step)
        save(step)
        say("saved", step)
        time.sleep(pause)
