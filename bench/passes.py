"""A pass over a results folder with one new file, at three sizes."""

import os
import shutil
import time

import common
from common import SCRATCH, Cloud, Cost, Result, Target, rounds, table
from growth import last_over_first
from results import Mirror, make_files


def mirror_again(files: int, repeats: int) -> list[Cost]:
    folder = make_files(SCRATCH / f"results-{files}", files, 100)
    with Cloud() as cloud:
        mirror = Mirror(cloud, folder, "sent")
        numbers = iter(range(repeats + 1))

        def add() -> None:
            (folder / f"new{next(numbers)}").write_bytes(os.urandom(100))
            time.sleep(0.1)  # a pass lets a file grow 50 ms old first; most are older

        add()
        mirror.sync()  # looks at everything, and opens a connection
        costs = rounds({f"{files:,} files": lambda: cloud.counted(mirror.sync)}, repeats, add)
        mirror.process.communicate()
    shutil.rmtree(folder)
    return costs.popitem()[1]


def measure(repeats: int) -> list[Result]:
    costs = {f"{files:,} files": mirror_again(files, repeats) for files in (1_000, 10_000, 100_000)}
    targets = [
        Target("requests with 100,000 files over 1,000", last_over_first(costs, "requests"), 1),
        Target("wall with 100,000 files over 1,000", last_over_first(costs), 3),
    ]
    note = "Between two looks at everything, of which there is one every few minutes."
    title = "Passes"
    return [table(title, note, costs, targets, net=True)]


if __name__ == "__main__":
    common.main(__doc__, measure)
