"""`berg try`: its steps on the embedded cloud, what is unexpected, and that nothing stays."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import BERG, Cloud, until

from berg import gce


def left(cloud: Cloud) -> list[str]:
    machines = [machine.name for machine in gce.machines(cloud.config)]
    objects = [name for name in cloud.names() if "/try-" in name]
    return machines + [name for name in objects if not name.startswith(".berg/budget/")]


@pytest.mark.slow
def test_steps_prove_what_they_say_and_leave_nothing(cloud: Cloud, tmp_path: Path) -> None:
    words = ["try", "-y", "--json", "--only", "job", "--only", "spot", "--only", "devbox"]
    done = cloud.run(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    results = {row["step"]: row for row in json.loads(done.out)["results"]}
    assert {*results} == {"job", "spot", "devbox", "reap"}
    assert all(row["is_good"] for row in results.values()), results
    assert results["job"]["saw"].startswith("create "), results["job"]
    assert left(cloud) == [] and not [*tmp_path.iterdir()]
    assert "there is no step 'jobs'" in cloud.run("try", "--only", "jobs").err
    asked = cloud.run("try", "--only", "job")
    assert asked.code == 1 and "answer with -y" in asked.err and "$0.0" in asked.out, asked.err


def test_what_is_unexpected_is_in_a_file_without_names(cloud: Cloud, tmp_path: Path) -> None:
    message = f"{cloud.config.project} and 10.1.2.3 are refused"
    fault = {"method": "compute.instances.insert", "status": 400, "message": message}
    cloud.call("POST", "/_berg/faults", fault)
    try:
        done = cloud.run("try", "-y", "--json", "--only", "failing", cwd=tmp_path)
    finally:
        cloud.call("DELETE", "/_berg/faults")
    assert done.code == 1 and "not all is as promised" in done.err, done.err
    told = json.loads(done.out)
    step, reap = told["results"]
    assert not step["is_good"] and reap["is_good"], told
    text = Path(told["file"]).read_text()
    assert "PROJECT and ADDRESS are refused" in text and cloud.config.project not in text
    assert left(cloud) == []


@pytest.mark.slow
def test_after_an_interruption_nothing_is_left(cloud: Cloud, tmp_path: Path) -> None:
    trial = subprocess.Popen(
        [*BERG, "try", "-y", "--only", "killed", "--only", "two"],
        cwd=tmp_path, env=cloud.env, stderr=subprocess.PIPE, text=True,
        process_group=0,
    )  # fmt: skip
    until(lambda: trial.poll() is not None or len(gce.machines(cloud.config)) == 2)
    assert trial.returncode is None
    os.killpg(trial.pid, signal.SIGINT)  # as a terminal does
    _, said = trial.communicate(timeout=200)
    assert trial.returncode == 130 and "cleaning up" in said, said
    assert left(cloud) == []
