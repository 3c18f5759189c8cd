"""How long `berg run` takes with a repo of 20,000 files, against a copy of the repo and a machine
made with gcloud.
"""

import shutil
import sys
from pathlib import Path

import common
from common import FAR, SCRATCH, Cloud, Cost, Result, Target, distance, median, ratio, table

BERG, GCLOUD = "`berg run`", "`gcloud storage rsync`, then `gcloud compute instances create`"
FILES = 20_000
NOTE = (
    "From a start of the program to its end, which is when the machine has been created. In berg's figures is what the "
    "machine of the same job asks and sends meanwhile. gcloud leaves .git out, and its machine has nothing to do."
)
WHY = (
    "1.1 s of CPU import google-cloud-compute, which makes the machine, beside all other work but on the same cores; that "
    "with python's start is the limit"
)
WHY_TRIPS = (
    "three are the first request with its handshakes; then the pack of the code, the claim of the name, the job, the machine "
    "and its operation follow one another, which makes 8 the limit of that order: a claim before the code is sent would show "
    "a job without a machine as lost while its code travels, and a machine before its job would find none"
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
    third: dict[str, list[Cost]] = {BERG: []}
    for number in range(max(1, repeats // 3)):  # the first copy takes gcloud minutes
        for name, side in list(sides.items())[:: -1 if number % 2 else 1]:
            with Cloud() as cloud:
                first[name].append(side(cloud, repo, "first"))
                (repo / "package7/module3/file11.py").write_text(f"edit = {number}  # for {name}\n")
                second[name].append(side(cloud, repo, "second"))
                if name == BERG:
                    (repo / "package7/module3/file12.py").write_text(f"edit = {number}\n")
                    with cloud.far(FAR):
                        third[BERG].append(side(cloud, repo, "third"))
            print(
                f"{name}: {first[name][-1].wall:.3f} s, {second[name][-1].wall:.3f} s",
                file=sys.stderr,
            )
    shutil.rmtree(repo)
    targets = [Target("bytes sent", median(second[BERG], "sent"), 200_000, "bytes")]
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
        table("Submit: again, after an edit of one file", NOTE, second, targets, net=True),
        table(
            f"Submit: again, after an edit of one file, {distance(FAR)}",
            NOTE,
            third,
            [
                Target("wall", median(third[BERG]), 1.3, "s", WHY),
                Target(
                    "round trips one after the other",
                    median(third[BERG], "trips"),
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
