"""A command that fails runs again, with its files, so often and no more."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud
from inside import fresh, job_of, run_of, state_of

from berg import job as jobs
from berg import worker
from berg.features.restart import Restart
from berg.worker import Ending


@pytest.mark.slow
def test_it_runs_again_on_its_machine_with_its_files(cloud: Cloud, project: Path) -> None:
    cmd = "echo $BERG_ATTEMPT >> $BERG_RESULTS_DIR/attempts; touch /root/here-$BERG_ATTEMPT; "
    words = ["-n", "again", "--restart-on-failure", "1", "--wait", cmd + "ls /root; exit 7"]
    done = cloud.run("run", "-g", "0", *words, cwd=project)
    assert done.code == 7 and cloud.state("again")["attempt"] == 2, cloud.log("again")
    assert cloud.read("berg_results/again/attempts") == b"1\n2\n"
    assert "here-1\nhere-2" in cloud.log("again")


@pytest.mark.slow
def test_machines_begin_again_together(cloud: Cloud, project: Path) -> None:
    cmd = "touch $BERG_RESULTS_DIR/at-$BERG_NODE_RANK-$BERG_ATTEMPT; "
    cmd += 'test "$BERG_NODE_RANK" = 0 || { sleep 8; test "$BERG_ATTEMPT" = 2; }'
    words = ["-g", "0", "-n", "pair", "-m", "2", "--each", "--restart-on-failure", "1"]
    done = cloud.run("run", *words, "--wait", cmd, cwd=project)
    assert done.code == 0, cloud.log("pair")
    made = {name.rpartition("/")[2] for name in cloud.names("berg_results/pair/at")}
    assert made == {"at-0-1", "at-1-1", "at-0-2", "at-1-2"}, cloud.log("pair")


QUICK, SLOW = [1, True], [1, False]
FAILED = Ending("FAILED", "exit code 1", 1)


@pytest.mark.parametrize(
    ("before", "ending", "about", "state", "reason", "kept"),
    [
        ([], FAILED, {}, "SUBMITTED", "exit code 1; restart 1 of 4", 1),
        ([QUICK], FAILED, {}, "SUBMITTED", "exit code 1; restart 2 of 4", 2),
        ([QUICK] * 2, FAILED, {}, "FAILED", "exit code 1, 3 times in a row within a minute", 0),
        ([QUICK] * 2, FAILED, {"seconds": 70}, "SUBMITTED", "exit code 1; restart 3 of 4", 3),
        ([QUICK, SLOW], FAILED, {}, "SUBMITTED", "exit code 1; restart 3 of 4", 3),
        ([QUICK, [2, True]], FAILED, {}, "SUBMITTED", "exit code 1; restart 3 of 4", 3),
        ([SLOW] * 3, FAILED, {}, "SUBMITTED", "exit code 1; restart 4 of 4", 4),
        ([SLOW] * 4, FAILED, {}, "FAILED", "exit code 1", 0),
        ([SLOW], Ending("SUCCEEDED", "", 0), {}, "SUCCEEDED", "", 1),
        ([SLOW], Ending("KILLED", "by you"), {}, "KILLED", "by you", 1),
        ([], Ending("FAILED", "too dear", is_firm=True), {}, "FAILED", "too dear", 0),
        ([], Ending("FAILED", "gone", is_loss=True), {}, "FAILED", "gone", 0),
        ([], FAILED, {"begun": False}, "FAILED", "exit code 1", 0),
    ],
)
def test_which_failures_begin_again(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[Any],
    ending: Ending, about: dict[str, Any], state: str, reason: str, kept: int,
) -> None:  # fmt: skip
    job = job_of(fresh("fails-so"))
    path = f"{jobs.machines_prefix(job.name)}failures.json"
    if before:
        cloud.bucket.write(path, json.dumps(before).encode())
    seconds = about.pop("seconds", 50)
    run = run_of(cloud, tmp_path, job, monkeypatch=monkeypatch, **about)
    if run.has_begun:
        os.utime(worker.BEGAN, (time.time() - seconds,) * 2)
    found = Restart(restart_on_failure=4).ended(run, ending)
    assert (found.state, found.reason) == (state, reason)
    assert found.exit_code == (None if state == "SUBMITTED" else ending.exit_code)
    assert len(json.loads(cloud.read(path) or b"[]")) == kept


@pytest.mark.timeout(60)  # else one waits until its limit
def test_other_machines_hear_from_the_first_whether_all_begin_again(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("hears", machines=2, each=True)
    generation = jobs.write_state(cloud.bucket, state_of(job, attempt=2), 0)
    run = run_of(cloud, tmp_path, job, rank=1, monkeypatch=monkeypatch)
    done = Ending("SUCCEEDED", "", 0)
    assert Restart(restart_on_failure=4).ended(run, done).state == "SUBMITTED"
    jobs.write_state(cloud.bucket, state_of(job, "FAILED"), generation)
    assert Restart(restart_on_failure=4).ended(run, done).state == "SUCCEEDED"
    cloud.bucket.delete(jobs.state_path(job.name))
    run.peers.lost[0] = "it said nothing"
    assert Restart(restart_on_failure=4).ended(run, done).state == "SUCCEEDED"
