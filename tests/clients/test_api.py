"""Berg from Python, in programs as users write them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud
from records import put

JOB = r"""
import berg

job = berg.run(
    "echo lr=$LR; echo x > $BERG_RESULTS_DIR/x; sleep $PAUSE", folder="proj", num_gpus=0, name="api-1",
    zones=["us-central1-b"], env={"LR": "0.1", "PAUSE": "0"},
)
assert berg.run is berg.run and job == berg.Job("@"), berg.run
state = job.wait(100)
assert (state.state, state.exit_code, state.zone) == ("SUCCEEDED", 0, "us-central1-b"), state
assert "lr=0.1" in job.logs() and job.data()["metadata"]["options"]["zones"] == ["us-central1-b"]
print((job.fetch("here") / "x").read_text())
"""
REFUSED = r"""
import concurrent.futures
import berg

def refused(**options):
    try:
        berg.run("true", folder="proj", name="api-2", **options)
    except (berg.BergError, TypeError) as error:
        return str(error)

with concurrent.futures.ThreadPoolExecutor(1) as pool:  # no main thread
    print(pool.submit(refused, gpus=0, zones=["us-central1-a"]).result())
print(refused(gpu_type="l5", zones=["us-central1-a"]))
print(refused(gpus=0))
print(refused(gpus="many"))
print(refused(colour="red"))
try:
    berg.Job("no-such-job")
except berg.BergError as error:
    print(error)
"""


def python(cloud: Cloud, text: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=cwd, env=cloud.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_program_runs_a_job_waits_and_has_its_results(cloud: Cloud, project: Path) -> None:
    assert python(cloud, JOB, project.parent) == "x\n\n"


def test_what_is_refused_is_a_sentence_and_leaves_nothing(
    cloud: Cloud, project: Path, faults: Any
) -> None:
    faults("compute.instances.insert", status=403, reason="forbidden", times=1)
    (project / "pyproject.toml").write_text("[tool.berg]\nzone = ['mars-a']\n")
    lines = python(cloud, REFUSED, project.parent).splitlines()
    assert "no machine could be created, and none was left behind" in lines[0], lines
    assert "there is no GPU type 'l5'" in "".join(lines)
    assert "in mars-a. Regions that have it" in "".join(lines)
    assert "Invalid value for '-g' / '--num-gpus'" in "".join(lines)
    assert "berg.run() has no option 'colour'" in "".join(lines)
    assert "there is no job 'no-such-job'" in lines[-1]
    assert not [name for name in cloud.names(".berg/jobs/") if "api-2" in name]


OF_RECORDS = r"""
import os
import berg

os.environ["BERG_ASK_ABOVE"] = "1"

def told(act):
    try:
        return act()
    except (berg.BergError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"

job = berg.Job("api-done")
print(job.state.state, job.wait(0).exit_code, job.data()["name"], repr(job.logs()))
print([(job.fetch("~/api-results") / "x").read_text() for _ in range(2)])
print(told(lambda: berg.Job("api-live").wait(0)))
print(told(lambda: berg.Job("api-live").fetch()))
print(told(lambda: berg.run(" ")))
print(told(lambda: berg.run("true", folder="proj", num_gpus=8, gpu_type="h100", max_hours=24)))
print(berg.Job("@").name)
print(berg.Job("api-live").kill().state)
"""


def test_a_program_reads_and_ends_jobs(cloud: Cloud, project: Path) -> None:
    put(cloud, "api-done", "FAILED", exit_code=3, results={"x": b"kept"}, log="größe\n".encode())
    put(cloud, "api-live", "SUBMITTED", ago=0)
    lines = python(cloud, OF_RECORDS, project.parent).splitlines()
    assert lines[:2] == ["FAILED 3 api-done 'größe\\n'", "['kept', 'kept']"]
    assert (cloud.home / "api-results/x").read_bytes() == b"kept"
    assert lines[2] == "TimeoutError: api-live is SUBMITTED after 0 s"
    assert lines[3] == "BergError: api-live has no results yet. Its log: berg log api-live"
    assert "BergError: the command is empty" in lines[4]
    assert (
        "berg asks above $1" in lines[5] and "If that is right: berg.run(…, yes=True)" in lines[5]
    )
    assert lines[-2:] == ["api-live", "KILLED"]
