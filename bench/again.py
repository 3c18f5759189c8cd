"""Results in the Berg of next/ against today's: passes over many files, and restores, in one run.

Make both environments first: make, make next.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import common
from common import (
    BIN,
    FAR,
    SCRATCH,
    TOP,
    Cloud,
    Cost,
    Result,
    Target,
    distance,
    rounds,
    table,
    timed,
)
from restore import LARGE, MANY, RESTORE
from results import MIRROR, make_files

NEXT = TOP / "next/.venv/bin/python"
OLD, NEW = "today's", "next"
# The same as the mirror and the restore of today's Berg, by the next one: a pass for each line.
BUCKET = """
import json, sys, time
from berg.bucket import Bucket
from berg.config import Config
from berg.results import Mirror

folder, job = sys.argv[1:3]
mirror = Mirror(folder, Bucket(Config.load()), "berg_results/", own=job, job=job, disk="0")
"""
MIRROR_AGAIN = f"""{BUCKET}
mirror.take_over()
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    while not mirror.sync():  # 50,000 files are more than this computer may have open at a time
        assert time.perf_counter() - wall < 300 and not mirror.refused, mirror.trouble
    print(json.dumps({{"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}}), flush=True)
"""
RESTORE_AGAIN = f"""{BUCKET}
mirror.attempt = 2
mirror.restore()
"""
SIDES = {OLD: (BIN / "python", MIRROR, RESTORE), NEW: (NEXT, MIRROR_AGAIN, RESTORE_AGAIN)}


class Living:
    """The mirror of one side in a process of its own, on a cloud and a folder of its own."""

    def __init__(self, side: str, cloud: Cloud, folder: Path, job: str):
        python, mirror, _ = SIDES[side]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [python, "-c", mirror, folder, job],
            cwd=SCRATCH,  # where no berg is beside
            env=cloud.env,
            stdin=pipe,
            stdout=pipe,
            text=True,
        )

    def sync(self) -> Cost:
        assert self.process.stdin and self.process.stdout
        print(file=self.process.stdin, flush=True)
        return Cost(**json.loads(self.process.stdout.readline()))


def passes(files: int, repeats: int) -> Result:
    """A first pass over new files, and passes after one of them changed."""
    costs: dict[str, list[Cost]] = {}
    folders = {side: SCRATCH / f"pass-{side}" for side in SIDES}
    for folder in folders.values():
        make_files(folder / "job", files, 100)
    with Cloud() as one, Cloud() as two:
        clouds = dict(zip(SIDES, (one, two), strict=True))
        living = {side: Living(side, clouds[side], folders[side], "job") for side in SIDES}
        sides: dict[str, Callable[[], Cost]] = {
            side: lambda side=side: clouds[side].counted(living[side].sync)  # type: ignore[misc]
            for side in SIDES
        }
        for side, run in sides.items():
            costs[f"{side}, first pass"] = [run()]

        def add() -> None:
            for folder in folders.values():
                (folder / "job" / f"new{time.time_ns()}").write_bytes(os.urandom(100))
            time.sleep(0.1)

        add()
        later = rounds(sides, repeats, add)
        costs |= {f"{side}, one new file": each for side, each in later.items()}
        for each in living.values():
            each.process.communicate()
    for folder in folders.values():
        shutil.rmtree(folder)
    kinds = ("first pass", "one new file")
    targets = [compared(kind, costs, f"{NEW}, {kind}", f"{OLD}, {kind}") for kind in kinds]
    note = "Each on a cloud of its own; the mirrors keep running, as on a machine."
    return table(f"A pass over {files:,} files", note, costs, targets, net=True)


def compared(what: str, costs: dict[str, list[Cost]], new: str, old: str) -> Target:
    return Target(f"{what}: wall over today's", common.ratio(costs, new, old), 1)


def restores(files: int, size: int, repeats: int) -> list[Result]:
    """A restore to an empty folder, as whole processes."""
    what = f"{files:,} files of 50 KB" if files > 1 else f"one file of {size >> 30} GB"
    place, found = SCRATCH / "restored", []
    with Cloud() as one, Cloud() as two:
        clouds = dict(zip(SIDES, (one, two), strict=True))
        for side, cloud in clouds.items():
            folder = make_files(SCRATCH / f"of-{side}/{side}/many", files, size).parent.parent
            living = Living(side, cloud, folder, side)
            living.sync()
            living.process.communicate()
            shutil.rmtree(folder)

        def restore(side: str) -> Cost:
            python, _, code = SIDES[side]
            job = side
            cost = clouds[side].counted(
                lambda: timed(python, "-c", code, place, job, env=clouds[side].env, cwd=SCRATCH)
            )
            there = sum(each.stat().st_size for each in place.rglob("*.bin"))
            assert there == files * size, (side, there)
            shutil.rmtree(place)
            return cost

        for latency in (0, FAR):
            with one.far(latency), two.far(latency):
                costs = rounds({side: lambda side=side: restore(side) for side in SIDES}, repeats)  # type: ignore[misc]
            title = f"Restore: {what}, {distance(latency)}"
            note = "To an empty folder; whole processes, each from a cloud of its own."
            target = compared("restore", costs, NEW, OLD)
            found.append(table(title, note, costs, [target], net=True))
    return found


def measure(repeats: int) -> list[Result]:
    results = [passes(10_000, repeats), passes(50_000, repeats)]
    results += restores(MANY, 50_000, repeats)
    return results + restores(1, LARGE, min(repeats, 2))


if __name__ == "__main__":
    common.main(__doc__, measure)
