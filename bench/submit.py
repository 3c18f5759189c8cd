"""How long `berg run` takes with a repo of 20,000 files, against gcloud: a copy of the repo, and a
machine.
"""

import shutil
import sys
from pathlib import Path

import common
from common import (
    BIN,
    FAR,
    SCRATCH,
    Cloud,
    Cost,
    Result,
    Target,
    distance,
    median,
    ratio,
    table,
    timed,
)

BERG, GCLOUD = "`berg run`", "`gcloud storage rsync`, then `gcloud compute instances create`"
FILES = 20_000
NOTE = (
    "Until the machine has been created. Berg's figures include the machine's requests meanwhile; gcloud leaves "
    ".git out, and its machine does nothing."
)
IMPORTS = "Python importing the libraries"
LIBRARIES = """
import gc
gc.set_threshold(100_000)
import click, git, google.auth.transport.requests
from berg.google import instances
instances.import_compute()
"""
VERY_FAR = 0.5  # seconds: what the laptop computes between two requests is short compared with it
WHY = "the limit is importing the libraries (last row) and two round trips; a tenth of the CPU is Berg's own"
WHY_TRIPS = (
    "6 is the limit: three for the first requests with their handshakes, the claim, the machine and its "
    "operation; the seventh is the job, written after its packs"
)
IMAGE = [
    "--zone",
    "us-central1-a",
    "--image-family",
    "debian-12",
    "--image-project",
    "debian-cloud",
]


def berg(cloud: Cloud, repo: Path, name: str) -> Cost:
    cost = cloud.counted(lambda: cloud.berg("run", "-g", "0", "-n", name, "true", cwd=repo))
    cloud.berg("tail", name)  # so that its machine is no part of what comes next
    return cost


def edit(cloud: Cloud, repo: Path, away: float, number: int) -> Cost:
    """Submit the repo after an edit, so far from the cloud."""
    text = f"edit = {number}  # {away} s away\n"
    (repo / "package0/module3/file12.py").write_text(text)
    with cloud.far(away):
        return berg(cloud, repo, f"away-{away * 1000:.0f}-{number}")


def gcloud(cloud: Cloud, repo: Path, name: str) -> Cost:
    def both() -> Cost:
        target = f"gs://{cloud.bucket}/code/repo"
        copied = cloud.gcloud("storage", "rsync", "--recursive", r"--exclude=^\.git/", repo, target)
        created = cloud.gcloud("compute", "instances", "create", name, *IMAGE)
        return Cost(copied.wall + created.wall, copied.cpu + created.cpu)

    return cloud.counted(both)


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    common.make_repo(repo, FILES)
    common.git(repo, "gc", "-q")
    sides = {BERG: berg, **({GCLOUD: gcloud} if common.has("gcloud") else {})}
    first: dict[str, list[Cost]] = {name: [] for name in sides}
    second: dict[str, list[Cost]] = {name: [] for name in sides}
    third: dict[str, list[Cost]] = {BERG: [], IMPORTS: []}
    fourth: list[Cost] = []
    for number in range(max(1, repeats // 3)):  # the first copy takes gcloud minutes
        for name, side in list(sides.items())[:: -1 if number % 2 else 1]:
            with Cloud() as cloud:
                first[name].append(side(cloud, repo, "first"))
                (repo / "package0/module3/file11.py").write_text(f"edit = {number}  # for {name}\n")
                second[name].append(side(cloud, repo, "second"))
                if name == BERG:
                    for each in range(3):
                        third[BERG].append(edit(cloud, repo, FAR, each))
                        third[IMPORTS].append(timed(BIN / "python", "-c", LIBRARIES))
                    fourth.append(edit(cloud, repo, VERY_FAR, 0))
            print(
                f"{name}: {first[name][-1].wall:.3f} s, {second[name][-1].wall:.3f} s",
                file=sys.stderr,
            )
    shutil.rmtree(repo)
    targets = [
        Target("bytes sent", median(second[BERG], "sent"), 200_000, "bytes"),
        Target("wall", median(second[BERG]), 1.2, "s", "see 30 ms away"),
    ]
    if GCLOUD in sides:
        targets.insert(0, Target("wall over gcloud's", ratio(second, BERG, GCLOUD), 0.25))
    return [
        table(
            f"Submit: the first time, {FILES:,} files",
            NOTE,
            first,
            [Target("wall over gcloud's", ratio(first, BERG, GCLOUD), 0.5)]
            if GCLOUD in sides
            else [],
            net=True,
        ),
        table("Submit: after an edit", "As above.", second, targets, net=True),
        table(
            f"Submit: after an edit, {distance(FAR)}",
            f"As above. The target's round trips were measured {distance(VERY_FAR)}.",
            third,
            [
                Target("wall", median(third[BERG]), 1.3, "s", WHY),
                Target(
                    "sequential round trips",
                    median(fourth, "trips"),
                    5,
                    "round trips",
                    WHY_TRIPS,
                ),
            ],
            net=True,
        ),
    ]


if __name__ == "__main__":
    common.main(__doc__, measure)
