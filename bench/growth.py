"""Whether costs grow with what changed, not with what exists: the same work at three sizes."""

import contextlib
import shutil
from collections.abc import Callable

import common
from common import FAR, SCRATCH, Cloud, Cost, Result, Target, distance, median, rounds, table, timed
from list import write_jobs
from results import make_files, mirror_once

from berg import job
from berg.google.storage import Bucket
from berg.laptop import index

TOUCHED = "package0/module0/file0.py"


def result(title: str, note: str, costs: dict[str, list[Cost]], targets: list[Target]) -> Result:
    return table(f"Growth: {title}", note, costs, targets, net=True)


def last_over_first(costs: dict[str, list[Cost]], what: str = "wall") -> float:
    sizes = list(costs)
    return median(costs[sizes[-1]], what) / median(costs[sizes[0]], what)


def listing(repeats: int) -> Result:
    """Each size in a cloud of its own, all of them at once, so that they are asked in turn."""
    sizes = (100, 10_000, 100_000)
    with contextlib.ExitStack() as stack:
        clouds = {jobs: stack.enter_context(Cloud()) for jobs in sizes}
        for jobs, cloud in clouds.items():
            write_jobs(cloud, 0, jobs, 0)
            enter_jobs(cloud, jobs)
            cloud.berg("list")  # it looks at all jobs, as there is no index that is complete
        sides = {f"{jobs:,} past jobs": listed(cloud) for jobs, cloud in clouds.items()}
        for cloud in clouds.values():
            stack.enter_context(cloud.far(FAR))
        costs = rounds(sides, repeats)
    targets = [
        Target("wall with 100,000 past jobs over 100", last_over_first(costs), 1.3),
        Target(
            "round trips with 100,000 past jobs",
            median([*costs.values()][-1], "trips"),
            5,
            "round trips",
        ),
    ]
    title = "`berg list` with past jobs"
    return result(title, f"No machines, {distance(FAR)}.", costs, targets)


def listed(cloud: Cloud) -> Callable[[], Cost]:
    return lambda: cloud.counted(lambda: cloud.berg("list"))


def enter_jobs(cloud: Cloud, jobs: int) -> None:
    """What submitting them would have written into the index."""
    bucket, summary = (
        Bucket(cloud.config),
        job.Summary(user=cloud.config.user, created_at=job.now()),
    )
    bucket.write(index.recent_path("like", summary), b"")
    paths = (index.recent_path(f"job-{number}", summary) for number in range(jobs))
    cloud.multiply(index.recent_path("like", summary), ((path, {}) for path in paths))


def fetching(repeats: int) -> Result:
    costs: dict[str, list[Cost]] = {}
    done = 0
    with Cloud() as cloud:
        mirror_once(cloud, make_files(SCRATCH / "one/mine", 100, 10_000).parent, "mine")
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


def submit_again(files: int, repeats: int) -> tuple[list[Cost], float]:
    """Return what a submit after an edit costs with so many files, and the seconds of `git status`."""
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
    looks = []
    for _ in range(repeats):
        edit()
        looks.append(timed("git", "status", "--porcelain", cwd=repo))
    shutil.rmtree(repo)
    return costs.popitem()[1], median(looks)


def submitting(repeats: int) -> Result:
    found = {files: submit_again(files, repeats) for files in (1_000, 10_000, 100_000)}
    costs = {f"{files:,} files in the repo": each for files, (each, _) in found.items()}
    (small, little), *_, (_, much) = found.values()
    limit = 1 + (much - little) / median(small)
    targets = [
        Target("bytes sent with 100,000 files over 1,000", last_over_first(costs, "sent"), 1.5),
        Target(
            "wall with 100,000 files over 1,000",
            last_over_first(costs),
            1.5,
            why="git looks at every file's times: "
            f"`git status` takes {much - little:.2f} s more there: {limit:.2f} x is the limit",
        ),
    ]
    return result(
        "`berg run` after an edit of one file",
        "Includes the machine's requests.",
        costs,
        targets,
    )


def measure(repeats: int) -> list[Result]:
    return [part(repeats) for part in (listing, fetching, submitting)]


if __name__ == "__main__":
    common.main(__doc__, measure)
