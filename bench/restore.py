"""How results are restored to a machine: Berg's restore against `gcloud storage rsync` and `rclone copy`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import common
from common import BIN, FAR, SCRATCH, Cloud, Cost, Result, Target, distance, rounds, table, timed
from fetch import downloads
from results import GCLOUD, RCLONE, make_files, mirror_once

# What a worker does on a new disk before its command begins.
RESTORE = """
import sys
from pathlib import Path
from berg import config
from berg.google.mirror import Mirror
from berg.google.storage import Bucket

folder, job = sys.argv[1:]
views = f".berg/views/{job}/new/"
bucket = Bucket(config.load())
Mirror(Path(folder), bucket, "berg_results/", f"{job}/new", job, views=views).restore()
"""
BERG = "Berg's restore"
NOTE = "To an empty folder, all from the same cloud; whole processes."
MANY, LARGE = 2000, 10 << 30  # files of 50 KB; bytes of one file


def sides(cloud: Cloud, job: str, place: Path) -> dict[str, Callable[[], Cost]]:
    def restore() -> Cost:
        return timed(BIN / "python", "-c", RESTORE, place / "own", job, env=cloud.env)

    peers = downloads(cloud, job, place)
    others = {name: peers[name] for name in (GCLOUD, RCLONE) if name in peers}
    return {BERG: lambda: cloud.counted(restore), **others}


def compare(
    cloud: Cloud, title: str, job: str, repeats: int, limit: float, expected: int
) -> Result:
    """Bring the results of a job by all sides, each time to an empty folder."""
    costs: dict[str, list[Cost]] = {}
    place = SCRATCH / "restored"
    for _ in range(repeats):
        for name in sides(cloud, job, place):
            run = sides(cloud, job, place)[name]  # it makes gcloud's folder
            costs.setdefault(name, []).extend(rounds({name: run}, 1)[name])
            there = sum(each.stat().st_size for each in place.rglob("*.bin"))
            assert there == expected, (name, there)
            shutil.rmtree(place)
    peers = [name for name in costs if name != BERG]
    ratio = common.ratio(costs, BERG, peers)
    why = common.least(costs, BERG, peers)
    return table(
        title, NOTE, costs, [Target("wall over the better peer's", ratio, limit, why=why)], net=True
    )


def measure(repeats: int) -> list[Result]:
    results = []
    for job, files, size in (("many", MANY, 50_000), ("large", 1, LARGE)):
        folder = make_files(SCRATCH / f"of-{job}/{job}", files, size)
        with Cloud() as cloud:
            mirror_once(cloud, folder.parent, job)
            shutil.rmtree(folder.parent)
            for latency in (0, FAR):
                what = f"{files:,} files of 50 KB" if files > 1 else f"one file of {size >> 30} GB"
                title = f"Restore: {what}, {distance(latency)}"
                with cloud.far(latency):
                    times = repeats if files > 1 else min(repeats, 2)
                    results.append(compare(cloud, title, job, times, 1.0, files * size))
    return results


if __name__ == "__main__":
    common.main(__doc__, measure)
