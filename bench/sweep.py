"""A sweep of 1,000 jobs until all machines are requested, against as many creates by gcloud.

The machines run nothing. Single creates by gcloud are extrapolated from 20.
"""

from collections.abc import Callable

from common import (
    BIN,
    SCRATCH,
    Cloud,
    Cost,
    Result,
    Target,
    commit,
    git,
    has,
    main,
    median,
    rounds,
    table,
    timed,
)

JOBS, SINGLES = 1000, 20
# Berg's own process says how much memory it had at most.
BERG = """
import atexit, resource
from berg.cli import main
atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
main()
"""
MACHINE = [
    "--zone",
    "us-central1-a",
    "--machine-type",
    "n1-standard-1",
    "--image-family",
    "debian-12",
]
MACHINE += ["--image-project", "debian-cloud", "--async"]


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    repo.mkdir()
    (repo / "train.py").write_text("print('hello')\n")
    git(repo, "init", "-q", "-b", "main")
    commit(repo)
    memory: list[float] = []
    bulks: list[int] = []

    def fresh(side: Callable[[Cloud], Cost]) -> Callable[[], Cost]:
        def once() -> Cost:
            with Cloud() as cloud:
                cloud.call("POST", "/_berg/settings", {"boot": 0, "grace": 0})
                for metric in (
                    "CPUS",
                    "INSTANCES",
                    "IN_USE_ADDRESSES",
                    "SSD_TOTAL_GB",
                    "DISKS_TOTAL_GB",
                ):
                    quota = {"metric": metric, "limit": 1e9, "project": cloud.project}
                    cloud.call("POST", "/_berg/quotas", {**quota, "region": "us-central1"})
                quota = {"metric": "CPUS_ALL_REGIONS", "limit": 1e9, "project": cloud.project}
                cloud.call("POST", "/_berg/quotas", quota)
                return cloud.counted(lambda: side(cloud))

        return once

    def berg(cloud: Cloud) -> Cost:
        grid = ",".join(map(str, range(JOBS)))
        command = [
            "run",
            "-g",
            "0",
            "-c",
            "1",
            "-n",
            "sweep",
            "--grid",
            f"seed={grid}",
            "python train.py {seed}",
        ]
        cost = timed(BIN / "python", "-c", BERG, *command, env=cloud.env, cwd=repo)
        memory.append(float(cost.out.split()[-1]))
        bulks.append(cloud.call("GET", "/_berg/requests")["counts"]["compute.instances.bulkInsert"])
        return cost

    def singles(cloud: Cloud) -> Cost:
        costs = [
            cloud.gcloud("compute", "instances", "create", f"one-{n}", *MACHINE)
            for n in range(SINGLES)
        ]
        scale = JOBS / SINGLES
        return Cost(
            sum(cost.wall for cost in costs) * scale, sum(cost.cpu for cost in costs) * scale
        )

    def bulk(cloud: Cloud) -> Cost:
        names = ["--name-pattern", "sweep-####", "--count", str(JOBS)]
        return cloud.gcloud("compute", "instances", "bulk", "create", *names, *MACHINE)

    sides = {"berg, a sweep of 1,000 jobs": fresh(berg)}
    if has("gcloud"):
        sides["`gcloud compute instances bulk create`, machines only"] = fresh(bulk)
        sides[f"1,000 x `gcloud compute instances create`, **extrapolated** from {SINGLES}"] = (
            fresh(singles)
        )
    costs = rounds(sides, repeats)
    ours = costs[next(iter(sides))]
    targets = [
        Target("submitted by one sweep", median(ours), 20, "s"),
        Target("bulk requests", max(bulks), JOBS / 500, "requests"),
        Target("memory of berg's process at most", max(memory), 200, "MB"),
    ]
    note = "Each job has its metadata and its state in the bucket."
    return [table("1,000 jobs", note, costs, targets, net=True)]


if __name__ == "__main__":
    main(__doc__ or "", measure, repeats=3)
