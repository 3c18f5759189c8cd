"""Whether costs grow with what changed, not with what exists: the same work at three sizes."""

import os
import shutil

import common
from common import SCRATCH, Cloud, Cost, Result, Target, median, rounds, table
from list import write_jobs
from results import Mirror, make_files, mirror_once

TOUCHED = "package0/module0/file0.py"


def result(title: str, note: str, costs: dict[str, list[Cost]], targets: list[Target]) -> Result:
    return table(f"Growth: {title}", note, costs, targets, net=True)


def last_over_first(costs: dict[str, list[Cost]], what: str = "wall") -> float:
    sizes = list(costs)
    return median(costs[sizes[-1]], what) / median(costs[sizes[0]], what)


def listing(repeats: int) -> Result:
    costs: dict[str, list[Cost]] = {}
    done = 0
    with Cloud() as cloud:
        for jobs in (100, 1_000, 10_000):
            write_jobs(cloud, done, jobs, 0)
            done = jobs
            costs |= rounds(
                {f"{jobs:,} past jobs": lambda: cloud.counted(lambda: cloud.berg("list"))}, repeats
            )
    why = "a bucket lists names in their order, a thousand a request, and not what is new"
    target = Target("wall with 10,000 past jobs over 100", last_over_first(costs), 1.5, why=why)
    return result("`berg list` with past jobs", "No machines.", costs, [target])


def fetching(repeats: int) -> Result:
    costs: dict[str, list[Cost]] = {}
    done = 0
    with Cloud() as cloud:
        mirror_once(cloud, make_files(SCRATCH / "one/mine", 100, 10_000).parent)
        for objects in (10_000, 100_000, 1_000_000):
            names = (
                f"berg_results/{'after' if n % 2 else 'zoo'}/job-{n // 100}/{n}.bin"
                for n in range(done, objects)
            )
            cloud.multiply("berg_results/mine/0.bin", ((name, {}) for name in names))
            done = objects

            def fetch() -> Cost:
                shutil.rmtree(SCRATCH / "fetched", ignore_errors=True)
                return cloud.counted(lambda: cloud.berg("fetch", "mine", SCRATCH / "fetched"))

            costs |= rounds({f"{objects:,} objects in the bucket": fetch}, repeats)
    target = Target("wall with 1,000,000 objects over 10,000", last_over_first(costs), 1.5)
    return result(
        "`berg fetch` of a job with 100 files",
        "The other objects are other jobs' results.",
        costs,
        [target],
    )


def submit_again(files: int, repeats: int) -> list[Cost]:
    repo, numbers = SCRATCH / f"repo-{files}", iter(range(1_000))
    common.make_repo(repo, files)
    common.git(repo, "gc", "-q")
    with Cloud() as cloud:
        cloud.berg("run", "-g", "0", "-n", "first", "--wait", "true", cwd=repo)

        def edit() -> None:
            (repo / TOUCHED).write_text(f"edit = {next(numbers)}\n")

        def run() -> Cost:
            name = f"job-{next(numbers)}"
            cost = cloud.counted(lambda: cloud.berg("run", "-g", "0", "-n", name, "true", cwd=repo))
            cloud.berg("tail", name)  # so that its machine is no part of what comes next
            return cost

        costs = rounds({f"{files:,} files": run}, repeats, edit)
    shutil.rmtree(repo)
    return costs.popitem()[1]


def submitting(repeats: int) -> Result:
    costs = {
        f"{files:,} files in the repo": submit_again(files, repeats)
        for files in (1_000, 10_000, 100_000)
    }
    targets = [
        Target("bytes sent with 100,000 files over 1,000", last_over_first(costs, "sent"), 1.5),
        Target(
            "wall with 100,000 files over 1,000",
            last_over_first(costs),
            1.5,
            why="git looks at every file's times",
        ),
    ]
    return result(
        "`berg run` after an edit of one file",
        "What the machine asks meanwhile counts.",
        costs,
        targets,
    )


def mirror_again(files: int, repeats: int) -> list[Cost]:
    folder = make_files(SCRATCH / f"results-{files}", files, 100)
    with Cloud() as cloud:
        mirror = Mirror(cloud, folder, "sent")
        mirror.sync()
        costs = rounds(
            {f"{files:,} files": lambda: cloud.counted(mirror.sync)},
            repeats,
            lambda: (folder / "0.bin").write_bytes(os.urandom(100)),
        )
        mirror.process.communicate()
    shutil.rmtree(folder)
    return costs.popitem()[1]


def mirroring(repeats: int) -> Result:
    costs = {f"{files:,} files": mirror_again(files, repeats) for files in (1_000, 10_000, 100_000)}
    why = "a pass looks at every file's times"
    targets = [
        Target("requests with 100,000 files over 1,000", last_over_first(costs, "requests"), 1),
        Target("wall with 100,000 files over 1,000", last_over_first(costs), 1.5, why=why),
    ]
    return result("a pass over a results folder in which one file changed", "", costs, targets)


def measure(repeats: int) -> list[Result]:
    return [part(repeats) for part in (listing, fetching, submitting, mirroring)]


if __name__ == "__main__":
    common.main(__doc__, measure)
