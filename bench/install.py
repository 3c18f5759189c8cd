"""What a uv project's environment costs: a new machine, the next job of a sweep, a golden image.

The lock names numpy, scipy, pandas, scikit-learn and matplotlib, downloaded from PyPI. Seconds until the command
starts: from a new machine's boot, from the end of the job before, from the boot of an image of
`berg image create`, and from the boot of a machine that installs nothing.
"""

import json
import os
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path

import common
from common import SCRATCH, Cloud, Cost, Result, Target, median

from berg.code import dist

PROJECT = """\
[project]
name = "install"
version = "1"
requires-python = ">=3.11"
dependencies = ["matplotlib", "numpy", "pandas", "scikit-learn", "scipy"]
"""
# Runs as the job: when its command began and ended, how long ago its machine's first process began,
# and whether the dependencies are there.
SCRIPT = """
import importlib.util, json, os, sys, time
began = time.time()
booted = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - booted
names = ["matplotlib", "numpy", "pandas", "sklearn", "scipy"]
found = {"has": sum(map(bool, map(importlib.util.find_spec, names))), "began": began, "since_boot": since_boot, "ended": time.time()}
with open(os.environ["BERG_RESULTS_DIR"] + "/times.json", "w") as file:
    json.dump(found, file)
"""
COLD, NEXT, GOLDEN = (
    "a new machine, from its boot",
    "the next job of a sweep, on the same machine",
    "a machine from a golden image, from its boot",
)
BARE = "a new machine that installs nothing, from its boot"
FAMILY, COMMAND = "install", "python times.py"
MOST = 0.2


def make_repo(repo: Path) -> int:
    """Write a project whose lock uv makes here; return how many packages it names."""
    repo.mkdir()
    (repo / "pyproject.toml").write_text(PROJECT)
    (repo / "times.py").write_text(SCRIPT)
    program = SCRATCH / "uv"
    with zipfile.ZipFile(BytesIO(dist.fetch_uv()[1])) as wheel:
        program.write_bytes(wheel.read(f"uv-{dist.UV_VERSION}.data/scripts/uv"))
    program.chmod(0o755)
    cache = {"UV_CACHE_DIR": str(SCRATCH / "cache")}
    subprocess.run([program, "lock", "--quiet"], cwd=repo, env={**os.environ, **cache}, check=True)
    common.git(repo, "init", "-q", "-b", "main")
    common.commit(repo)
    return (repo / "uv.lock").read_text().count("[[package]]") - 1


def times(cloud: Cloud, name: str) -> dict[str, float]:
    """Return what a job's command wrote down."""
    cloud.berg("fetch", name, SCRATCH / "fetched" / name)
    (file,) = (SCRATCH / "fetched" / name).rglob("times.json")
    found: dict[str, float] = json.loads(file.read_text())
    assert found["has"] == (0 if name.startswith("bare") else 5), found
    return found


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "install"
    packages = make_repo(repo)
    costs: dict[str, list[Cost]] = {COLD: [], NEXT: [], GOLDEN: [], BARE: []}
    with Cloud() as cloud:
        cloud.berg("image", "create", "--family", FAMILY, cwd=repo)
        for number in range(repeats):
            name = f"sweep-{number}"
            options = ["-g", "0", "-n", name, "--parallel", "1", "--grid", "i=1,2", "--wait"]
            cloud.berg("run", *options, f"{COMMAND} {{i}}", cwd=repo)
            jobs = [times(cloud, f"{name}/{index}") for index in range(2)]
            first, second = sorted(jobs, key=lambda each: each["began"])
            costs[COLD].append(Cost(first["since_boot"], 0))
            costs[NEXT].append(Cost(second["began"] - first["ended"], 0))
            golden = ["--image", f"{cloud.project}/{FAMILY}"]
            for side, options in {GOLDEN: golden, BARE: ["--install", "none"]}.items():
                name = f"{'golden' if side == GOLDEN else 'bare'}-{number}"
                cloud.berg("run", "-g", "0", "-n", name, *options, "--wait", COMMAND, cwd=repo)
                costs[side].append(Cost(times(cloud, name)["since_boot"], 0))
    installed = median(costs[COLD]) - median(costs[BARE])
    note = f"{packages} packages. Without what a machine needs that installs nothing, the install takes {installed:.1f} s."
    targets = [
        Target(f"{side}, over a new machine", median(costs[side]) / median(costs[COLD]), MOST)
        for side in (NEXT, GOLDEN)
    ]
    return [common.table("Install", note, costs, targets)]


if __name__ == "__main__":
    common.main(__doc__ or "", measure, repeats=3)
