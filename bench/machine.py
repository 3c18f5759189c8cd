"""Results on a machine: passes over many files, and restores, against rclone and gcloud."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from common import FAR, Cost, Side, Table, away, peers, rounds, sides

# A pass for each line of standard input, in a process that keeps running, as on a machine.
MIRROR = """
import json, sys, time
from berg.bucket import Bucket
from berg.config import Config
from berg.results import Mirror

folder, job = sys.argv[1:3]
mirror = Mirror(folder, Bucket(Config.load()), "berg_results/", own=job, job=job, disk="0")
mirror.take_over()
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    while not mirror.sync():  # 50,000 files are more than this computer may have open at a time
        assert time.perf_counter() - wall < 600 and not mirror.refused, mirror.trouble
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)
"""
RESTORE = MIRROR.partition("mirror.take_over()")[0] + "mirror.attempt = 2\nmirror.restore()\n"


def measure(bergs: dict[str, str], repeats: int, scratch: Path) -> Iterator[Table]:
    with sides(dict([next(iter(bergs.items()))]), scratch) as made:
        [(name, side)] = made.items()
        yield from passes(name, side, 10_000, repeats, scratch)
        yield from restores(name, side, 2_000, 50_000, repeats, scratch)
        yield from restores(name, side, 10, 1 << 30, min(repeats, 2), scratch)


def passes(name: str, side: Side, files: int, repeats: int, scratch: Path) -> Iterator[Table]:
    """A first pass over new files, and passes after a new one."""
    job = f"pass{files}"
    folders = {
        each: make(scratch / f"{each}-{job}", job, files, 100)
        for each in ("berg", "rclone", "gcloud")
    }
    mirror = process(side, MIRROR, folders["berg"], job)

    def sync() -> Cost:
        side.trial.cloud.control("DELETE", "requests")
        print(file=mirror.stdin, flush=True)
        cost = Cost(**json.loads(mirror.stdout.readline()))
        cost.requests = sum(side.trial.cloud.control("GET", "requests")["counts"].values())
        return cost

    bucket = side.trial.cloud.bucket
    runs = {name: sync}
    if shutil.which("rclone"):
        words = (
            "sync",
            "--transfers",
            "32",
            "--checkers",
            "32",
            str(folders["rclone"]),
            f"cloud:{bucket}/rclone",
        )
        runs["`rclone sync --transfers 32`"] = lambda: side.rclone(*words)
    if shutil.which("gcloud"):
        rsync = ("storage", "rsync", "--recursive", str(folders["gcloud"]), f"gs://{bucket}/gcloud")
        runs["`gcloud storage rsync`"] = lambda: side.gcloud(*rsync)

    def add() -> None:
        for folder in folders.values():
            (folder / job / f"new{time.time_ns()}").write_bytes(os.urandom(100))
        time.sleep(0.1)

    note = "Files of 100 bytes. A pass of Berg looks for a moment at which no file is half written."
    yield rounds(Table(f"Pass: {files:,} new files", note), runs, 1)
    yield rounds(Table(f"Pass: one new file beside {files:,}", note), runs, repeats, add)
    mirror.communicate()
    for folder in folders.values():
        shutil.rmtree(folder)


def restores(
    name: str, side: Side, files: int, size: int, repeats: int, scratch: Path
) -> Iterator[Table]:
    """A restore to an empty folder, as whole processes."""
    job, place = f"restore{files}", scratch / "restored"
    folder = make(scratch / job, job, files, size)
    mirror = process(side, MIRROR, folder, job)
    mirror.communicate("\n")
    shutil.rmtree(folder)

    def restore(seconds: float) -> Cost:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        command = [str(python(side)), "-c", RESTORE, str(place), job]
        with side.far(seconds):
            cost = side.timed(command, scratch, side.trial.laptop.environment())
        assert sum(each.stat().st_size for each in place.rglob("*.bin")) == files * size
        return cost

    what = (
        f"{files:,} files of {size // 1000} KB"
        if size < 1 << 20
        else f"{files} files of {size >> 30} GB"
    )
    for seconds in (0, FAR):
        runs = {name: lambda far=seconds: restore(far), **peers(side, seconds, place, job)}
        table = Table(f"Restore: {what}, {away(seconds)}", "To an empty folder.")
        yield rounds(table, runs, repeats)
    shutil.rmtree(place)


def make(folder: Path, job: str, count: int, size: int) -> Path:
    """A folder of results with so many random files of a job."""
    (folder / job).mkdir(parents=True)
    for number in range(count):
        with (folder / job / f"{number}.bin").open("wb") as file:
            for _ in range(-(-size // (1 << 20))):
                file.write(os.urandom(min(size, 1 << 20)))
    return folder


def python(side: Side) -> Path:
    """The Python of the environment that has this berg."""
    return Path(side.trial.laptop.berg).parent / "python"


def process(side: Side, program: str, folder: Path, job: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [python(side), "-c", program, folder, job]
    env = side.trial.laptop.environment()
    return subprocess.Popen(command, cwd=folder.parent, env=env, stdin=pipe, stdout=pipe, text=True)
