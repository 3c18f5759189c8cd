"""Seconds from a machine's boot to the command's first line, against `git clone` of a bundle."""

import json

import common
from common import BIN, SCRATCH, Cloud, Cost, Result, Target, median, rounds, table, timed

# Runs as the job: how long ago its machine's first process began.
COMMAND = """
import json, os, time
now = time.clock_gettime(time.CLOCK_BOOTTIME)
began = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
with open(os.environ["BERG_RESULTS_DIR"] + "/seconds.json", "w") as file:
    json.dump(now - began, file)
"""
IMPORTS = "Python importing the worker"
GOLDEN = ("--image", "golden-images/golden")


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    common.make_repo(repo, 100)
    (repo / "first.py").write_text(COMMAND)
    common.commit(repo)
    common.git(repo, "bundle", "create", "-q", SCRATCH / "bundle", "main")
    numbers = iter(range(1_000_000))

    def job(cloud: Cloud, *image: str) -> Cost:
        name = f"job-{next(numbers)}"
        cloud.berg("run", "-g", "0", "-n", name, *image, "--wait", "python3 first.py", cwd=repo)
        cloud.berg("fetch", name, SCRATCH / name)
        return Cost(json.loads((SCRATCH / name / "seconds.json").read_text()), 0)

    def clone() -> Cost:
        folder = SCRATCH / f"clone-{next(numbers)}"
        return timed(
            "bash",
            "-c",
            f"git clone -q -b main {SCRATCH}/bundle {folder} && cd {folder} && bash -c 'python3 -V'",
        )

    unpacking = "the same on the default image"
    berg, bare = (
        "boot of the machine to the command's first line",
        "`git clone` of a bundle, `bash -c`",
    )
    with Cloud() as cloud:
        job(cloud)
        ways = {berg: lambda: job(cloud, *GOLDEN), unpacking: lambda: job(cloud), bare: clone}
        ways[IMPORTS] = lambda: timed(BIN / "python", "-c", "import berg.worker")
        costs = rounds(ways, repeats * 2)
    note = (
        "A repo of 100 files, nothing to install. A golden image has Berg's dependencies; on the default one they are "
        "unpacked and compiled. The clone boots no machine."
    )
    imports, cloned = median(costs[IMPORTS]), median(costs[bare])
    why = (
        f"the worker's imports take {imports:.2f} s and then the clone {cloned:.2f} s: "
        f"{imports + cloned:.2f} s is the limit without any request"
    )
    targets = [
        Target(berg, median(costs[berg]), 0.8, "s", why),
        Target(f"{berg}, on the default image", median(costs[unpacking]), 3, "s"),
    ]
    return [table("Worker", note, costs, targets)]


if __name__ == "__main__":
    common.main(__doc__, measure)
