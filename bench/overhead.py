"""Where the seconds of a job that does nothing go, from `berg run --wait` to its return.

A golden image, so nothing is installed; the repo was sent before. Machines boot in a fraction of a second
here, and in ten seconds or more at Google.
"""

import itertools
import json
import subprocess
import time
from pathlib import Path
from statistics import median

import common
from common import BIN, FAR, SCRATCH, Cloud, Result, Target, distance

# Runs as the job: when its machine's first process began, and when it runs itself.
COMMAND = """
import json, os, time
age = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
boot = age - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()
with open(os.environ["BERG_RESULTS_DIR"] + "/times.json", "w") as file:
    json.dump([boot, time.monotonic()], file)
"""
IMAGE = ("--image", "golden-images/golden")
PHASES = {
    "plan": "`berg run` to the plan: Python, settings, working tree, what the cloud offers",
    "submit": "to the machine's insert: imports, upload of code and job",
    "boot": "to the machine's first process: the cloud",
    "start": "to the command: worker, checkout",
    "end": "to the final state: results and log are saved",
    "return": "to the return of `berg run`, which polls one to four times a second",
}
CLOUDS = "boot"
TOTAL = "total, without the boot"
WHY = (
    "about 3 s is the limit: 1 s of CPU for imports, 0.8 s for the worker's start (bench/worker.py), 1.1 s "
    "between the claim and the last state, because Cloud Storage accepts one write of an object a second"
)


def seconds_of(cloud: Cloud, repo: Path, name: str) -> dict[str, float]:
    """Run a job that does nothing; return the seconds of each phase."""
    cloud.call("DELETE", "/_berg/requests")
    words = ["run", "-g", "0", "-n", name, *IMAGE, "--wait", "python3 nothing.py"]
    began = time.monotonic()
    process = subprocess.Popen(
        [BIN / "berg", *words],
        cwd=repo,
        env=cloud.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    planned = 0.0
    for line in process.stderr:
        planned = planned or (time.monotonic() if line.startswith("Job ") else 0.0)
    assert process.wait() == 0, f"berg run: exit code {process.returncode}"
    ended = time.monotonic()
    cloud.berg("fetch", name, SCRATCH / name)
    boot, command = json.loads((SCRATCH / name / "times.json").read_text())
    log = cloud.call("GET", "/_berg/requests")["requests"]
    inserted = [each["began"] for each in log if each["method"] == "compute.instances.insert"]
    final = [
        each["ended"]
        for each in log
        if each["method"] == "storage.objects.insert" and not each["laptop"]
    ]
    at = [began, planned, inserted[0], boot, command, final[-1], ended]
    return dict(zip(PHASES, (b - a for a, b in itertools.pairwise(at)), strict=True))


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    common.make_repo(repo, 100)
    (repo / "nothing.py").write_text(COMMAND)
    common.commit(repo)
    header, targets = [""], []
    rows = {phase: [said] for phase, said in PHASES.items()}
    rows[TOTAL] = [TOTAL]
    with Cloud() as cloud:
        seconds_of(cloud, repo, "first")
        for latency in (0, FAR):
            with cloud.far(latency):
                runs = [
                    seconds_of(cloud, repo, f"job-{latency * 1000:.0f}-{n}") for n in range(repeats)
                ]
            for phase in PHASES:
                rows[phase].append(f"{median(run[phase] for run in runs):.2f}")
            own = median(sum(run.values()) - run[CLOUDS] for run in runs)
            rows[TOTAL].append(f"{own:.2f}")
            where = distance(latency)
            header.append(where)
            targets.append(Target(f"beyond the machine's boot, {where}", own, 4, "s", WHY))
    note = f"Seconds, medians of {repeats}."
    return [Result("Overhead", note, header, [*rows.values()], targets)]


if __name__ == "__main__":
    common.main(__doc__, measure)
