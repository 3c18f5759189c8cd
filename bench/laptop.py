"""Where people wait: help, list, submit, fetch, against gcloud and rclone, and against other Bergs."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from common import FAR, Cost, Side, Table, away, peers, rounds, sides, timed

JOBS = 5_000
REMOVED = 100
KILLED = 12  # jobs, each on a machine of its own
FILES = 20_000  # of the repository
MAKE = """import os, sys
count, size = map(int, sys.argv[1:])
folder = os.environ["BERG_RESULTS_DIR"]
for number in range(count):
    with open(f"{folder}/{number}.bin", "wb") as file:
        for _ in range(-(-size // (1 << 20))):
            file.write(os.urandom(min(size, 1 << 20)))
"""


def measure(bergs: dict[str, str], repeats: int, scratch: Path) -> Iterator[Table]:
    yield starts(bergs, repeats)
    with sides(bergs, scratch) as made:
        for name, side in made.items():
            repository(side, scratch / f"code-{name}")
        yield from submits(made, repeats)
        yield kills(made)
        yield removals(made, repeats)
        yield from lists(made, repeats)
        yield from fetches(made, repeats, scratch)


def starts(bergs: dict[str, str], repeats: int) -> Table:
    runs = {
        f"`berg --help`, {name}": lambda berg=berg: timed([berg, "--help"])
        for name, berg in bergs.items()
    }
    runs["`python3 -c pass`"] = lambda: timed(["python3", "-c", "pass"])
    runs["`gcloud --help`"] = lambda: timed(["gcloud", "--help"])
    return rounds(Table("Help", ""), runs, repeats)


def repository(side: Side, folder: Path) -> None:
    """A repository of 20,000 small files in 200 folders."""
    trial = side.trial
    trial.repo = folder
    folder.mkdir(parents=True)
    for number in range(FILES):
        path = folder / f"package{number // 1000}/module{number // 100 % 10}/file{number % 100}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"number = {number}\n" * 20)
    (folder / "make.py").write_text(MAKE)
    trial.git("init", "-q", "-b", "main")
    trial.git("config", "gc.auto", "0")  # it would run beside the one below
    trial.git("add", "-A")
    trial.git("commit", "-q", "-m", "first")
    trial.git("gc", "-q")


def submits(made: dict[str, Side], repeats: int) -> Iterator[Table]:
    """The first submit, then each after an edit of one file, until the machine is created."""
    number = 0

    def edit() -> None:
        nonlocal number
        number += 1
        for side in made.values():
            (side.trial.repo / "package0/module3/file12.py").write_text(f"edit = {number}\n")

    def submit(side: Side) -> Cost:
        cost = side.berg("run", "-g", "0", "-n", f"job{number}", "true", cwd=side.trial.repo)
        side.berg("wait", f"job{number}")  # its machine is no part of what comes next
        return cost

    runs = {name: lambda side=side: submit(side) for name, side in made.items()}
    note = f"`berg run` in a repository of {FILES:,} files until the machine is created."
    yield rounds(Table("Submit: the first", note), runs, 1)
    for seconds in (0, FAR):
        for side in made.values():
            side.trial.cloud.settings(latency=seconds, machine_latency=0)
        yield rounds(Table(f"Submit: after an edit, {away(seconds)}", note), runs, repeats, edit)
        for side in made.values():
            side.trial.cloud.settings(latency=0, machine_latency=None)


def kills(made: dict[str, Side]) -> Table:
    """`berg kill` of jobs that run, by a pattern."""
    for side in made.values():
        for number in range(KILLED):
            words = ("run", "-g", "0", "-n", f"going{number}", "sleep 900")
            side.berg(*words, cwd=side.trial.repo)
        for number in range(KILLED):
            while side.trial.state(f"going{number}").get("state") != "RUNNING":
                time.sleep(0.2)
    runs = {
        name: lambda side=side: side.berg("kill", "-y", "going*") for name, side in made.items()
    }
    note = "`berg kill -y 'going*'`; the requests have those of the machines meanwhile."
    return rounds(Table(f"Kill: {KILLED} jobs", note), runs, 1)


def removals(made: dict[str, Side], repeats: int) -> Table:
    """`berg rm` of 100 jobs that have ended, by a pattern."""

    def copy() -> None:
        for cloud in (side.trial.cloud for side in made.values()):
            objects = cloud.objects()
            found = {
                name: (cloud.read(name) or b"", objects[name].get("metadata") or {})
                for name in objects
                if "job0" in name and "/dist/" not in name
            }
            for new in (f"old{number}" for number in range(REMOVED)):
                for name, (data, about) in found.items():
                    told = {key: text.replace("job0", new) for key, text in about.items()}
                    cloud.write(
                        name.replace("job0", new), data.replace(b"job0", new.encode()), told
                    )

    runs = {name: lambda side=side: side.berg("rm", "-y", "old*") for name, side in made.items()}
    return rounds(Table(f"Remove: {REMOVED} jobs", "`berg rm -y 'old*'`."), runs, repeats, copy)


def lists(made: dict[str, Side], repeats: int) -> Iterator[Table]:
    """`berg list` where a bucket has 5,000 jobs that have ended."""
    for side in made.values():
        multiply(side, "job0", JOBS)
    for seconds in (0, FAR):
        runs = {
            f"`berg list`, {name}": listing(side.berg, side, seconds) for name, side in made.items()
        }
        if shutil.which("gcloud"):
            side = next(iter(made.values()))
            words = ("compute", "instances")
            runs["`gcloud compute instances list`"] = listing(side.gcloud, side, seconds, *words)
        note = "gcloud lists machines: there are none."
        yield rounds(Table(f"List: {JOBS:,} jobs, {away(seconds)}", note), runs, repeats)


def listing(
    program: Callable[..., Cost], side: Side, seconds: float, *words: str
) -> Callable[[], Cost]:
    def run() -> Cost:
        with side.far(seconds):
            return program(*words, "list")

    return run


def multiply(side: Side, like: str, copies: int) -> None:
    """Objects of a job under other names, straight in the embedded cloud's index: by HTTP it would take minutes."""
    assert side.trial.cloud.folder
    with sqlite3.connect(side.trial.cloud.folder / "storage/index.sqlite3", timeout=60) as index:
        query = (
            "SELECT bucket, name, generation, resource FROM objects WHERE CAST(name AS TEXT) LIKE ?"
        )
        found = index.execute(query, (f".berg/%{like}_%",)).fetchall()
        assert found, "the job has no objects"
        for bucket, name, generation, resource in found:
            rows = []
            for number in range(copies):
                copy = name.decode().replace(like, f"copy{number}")
                text = json.dumps(json.loads(resource) | {"name": copy}).replace(
                    f"{like}\\", f"copy{number}\\"
                )
                rows.append((bucket, copy.encode(), generation, text))
            index.executemany("INSERT INTO objects VALUES (?, ?, ?, ?)", rows)


def fetches(made: dict[str, Side], repeats: int, scratch: Path) -> Iterator[Table]:
    """Results to an empty folder."""
    kinds = [
        ("many", 2_000, 50_000, "2,000 files of 50 KB"),
        ("large", 10, 1 << 30, "10 files of 1 GB"),
    ]
    place = scratch / "fetched"
    for job, count, size, what in kinds:
        for side in made.values():
            command = f"python3 make.py {count} {size}"
            side.berg("run", "-g", "0", "--wait", "-n", job, command, cwd=side.trial.repo)
        for seconds in (0, FAR):
            runs = {
                f"`berg fetch`, {name}": fetch(side, seconds, place, job)
                for name, side in made.items()
            }
            runs |= peers(next(iter(made.values())), seconds, place, job)
            few = repeats if count > 100 else min(repeats, 2)
            yield rounds(Table(f"Fetch: {what}, {away(seconds)}", "To an empty folder."), runs, few)
        shutil.rmtree(place, ignore_errors=True)


def fetch(side: Side, seconds: float, place: Path, job: str) -> Callable[[], Cost]:
    def run() -> Cost:
        shutil.rmtree(place, ignore_errors=True)
        with side.far(seconds):
            return side.berg("fetch", job, str(place))

    return run
