"""How results get to the bucket: berg's mirror against `gcloud storage rsync` and `rclone copy`."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import common
from common import BIN, SCRATCH, Cloud, Cost, Result, Target, median, ratio, rounds, table, timed

# What a worker's mirror does for a job: a pass for each line that it reads; with a third argument, as
# if all was sent already.
MIRROR = """
import json, sys, time
from pathlib import Path
from berg import config
from berg.google.mirror import Mirror
from berg.google.sending import Entry
from berg.google.storage import Bucket

folder, job, *sent = sys.argv[1:]
views = f".berg/views/{job}/disk/"
mirror = Mirror(Path(folder), Bucket(config.load()), "berg_results/", f"{job}/disk", views=views)
for path, seen in mirror.scan() if sent else ():
    marks = seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
    mirror.manifest.put(path, Entry(*marks, 1, "", "", True, in_view=True))
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    mirror.sync()
    assert not mirror.failed and not mirror.refused, mirror
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)
"""
IMPORTS = "from berg.google.mirror import Mirror; import google.auth.transport.requests"
BERG, GCLOUD, RCLONE = "berg's mirror", "`gcloud storage rsync`", "`rclone copy`"
RCLONE_32 = "`rclone copy --transfers 32`"
FIRST = "An empty bucket in a new cloud each time; whole processes."
LATER = "After a first pass. Berg's mirror keeps running, as on a machine; the others start again."
WHY_WALL = "the embedded cloud writes and hashes all bytes in one process: "


class Mirror:
    """Berg's mirror in a process of its own."""

    def __init__(self, cloud: Cloud, folder: Path, *sent: str):
        command: list[str | Path] = [BIN / "python", "-c", MIRROR, folder, "job", *sent]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=cloud.env, stdin=pipe, stdout=pipe, text=True)

    def sync(self) -> Cost:
        assert self.process.stdin and self.process.stdout
        print(file=self.process.stdin, flush=True)
        return Cost(**json.loads(self.process.stdout.readline()))


def make_files(folder: Path, files: int, size: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(files):
        with (folder / f"{number}.bin").open("wb") as file:
            for start in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - start)))
    return folder


def grow(folder: Path) -> None:
    with (folder / "0.bin").open("ab") as file:
        file.write(os.urandom(1 << 20))


def mirror_once(cloud: Cloud, folder: Path, job: str = "job") -> Cost:
    return timed(BIN / "python", "-c", MIRROR, folder, job, env=cloud.env, stdin="\n")


def others(cloud: Cloud, folder: Path) -> dict[str, Callable[[], Cost]]:
    target, sides = f"{cloud.bucket}/berg_results", {}
    if common.has("gcloud"):
        sides[GCLOUD] = lambda: cloud.gcloud(
            "storage", "rsync", "--recursive", folder, f"gs://{target}"
        )
    if common.has("rclone", "rclone"):
        sides[RCLONE] = lambda: cloud.rclone("copy", folder, f"cloud:{target}")
    return sides


def first_pass(title: str, folder: Path, repeats: int) -> Result:
    def fresh(name: str) -> Cost:
        with Cloud() as cloud:
            sides = {BERG: lambda: mirror_once(cloud, folder), **others(cloud, folder)}
            return cloud.counted(sides[name])

    names = [
        BERG,
        *(
            name
            for name, program in ((GCLOUD, "gcloud"), (RCLONE, "rclone"))
            if common.has(program)
        ),
    ]
    costs = rounds({name: lambda name=name: fresh(name) for name in names}, repeats)  # type: ignore[misc]
    targets = [
        Target(
            "wall over the better peer's",
            ratio(costs, BERG, names[1:]),
            0.5,
            why=WHY_WALL + common.least(costs, BERG, names[1:]),
        ),
        Target(
            "CPU over the better peer's",
            ratio(costs, BERG, names[1:], "cpu"),
            0.5,
            why=f"{timed(BIN / 'python', '-c', IMPORTS).cpu:.2f} s of it is Python's start and imports",
        ),
    ]
    return table(title, FIRST, costs, targets, net=True)


def later_pass(
    title: str,
    folder: Path,
    repeats: int,
    what: str,
    limit: int,
    before: Callable[[], None] = lambda: None,
) -> Result:
    with contextlib.ExitStack() as stack:
        mirror, *clouds = (stack.enter_context(Cloud()) for _ in range(3))
        living = Mirror(mirror, folder)
        sides: dict[str, Callable[[], Cost]] = {BERG: lambda: mirror.counted(living.sync)}
        for cloud, name in zip(clouds, others(mirror, folder), strict=False):
            side = others(cloud, folder)[name]
            sides[name] = lambda cloud=cloud, side=side: cloud.counted(side)  # type: ignore[misc]
        for side in sides.values():
            side()
        costs = rounds(sides, repeats, before)
        living.process.communicate()
        unit = "bytes" if what == "sent" else what
        targets = [Target(f"{unit} of {BERG}", median(costs[BERG], what), limit, unit)]
        return table(title, LATER, costs, targets, net=True)


def measure(repeats: int) -> list[Result]:
    many = make_files(SCRATCH / "many", 2000, 50_000)
    large = make_files(SCRATCH / "large", 1, 1 << 30)
    log = make_files(SCRATCH / "log", 1, 200 << 20)
    results = [first_pass("Results: 2,000 files of 50 KB", many, repeats)]
    results += [first_pass("Results: one file of 1 GB", large, repeats)]
    results += [later_pass("Results: nothing changed of 2,000 files", many, repeats, "requests", 0)]
    results += [
        later_pass(
            "Results: a log of 200 MB grew by 1 MB",
            log,
            repeats,
            "sent",
            2_000_000,
            lambda: grow(log),
        )
    ]
    return results


if __name__ == "__main__":
    common.main(__doc__, measure)
