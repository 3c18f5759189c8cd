"""A command that fails runs again, with its files, so often and no more."""

import json
from pathlib import Path

import pytest
from conftest import Cloud

COUNT = 'cd "$BERG_RESULTS_DIR" && echo "$BERG_ATTEMPT" >> attempts; '


def state(cloud: Cloud, job: str) -> dict:
    return json.loads(cloud.read(f".berg/jobs/{job}_state.json"))


@pytest.mark.slow
def test_it_runs_again_on_its_machine_with_its_files(cloud: Cloud, project: Path) -> None:
    cmd = COUNT + 'touch /root/here-$BERG_ATTEMPT; ls /root; test "$BERG_ATTEMPT" = 3'
    words = ["-g", "0", "-n", "again", "--restart-on-failure", "2", "--wait", cmd]
    done = cloud.run("run", *words, cwd=project)
    assert done.code == 0, cloud.log("again")
    assert cloud.read("berg_results/again/attempts") == b"1\n2\n3\n"
    assert "here-1\nhere-2\nhere-3" in cloud.log("again")
    assert state(cloud, "again")["attempt"] == 3


@pytest.mark.slow
def test_it_ends_after_so_many_failures_and_a_killed_job_does_not_run_again(
    cloud: Cloud, project: Path
) -> None:
    words = ["-g", "0", "-n", "fails", "--restart-on-failure", "1", "--wait", COUNT + "exit 7"]
    done = cloud.run("run", *words, cwd=project)
    assert done.code == 7 and state(cloud, "fails")["attempt"] == 2
    assert cloud.read("berg_results/fails/attempts") == b"1\n2\n"
    assert not [name for name in cloud.names(".berg/machines/fails/") if "failures" in name]


@pytest.mark.slow
def test_machines_begin_again_together(cloud: Cloud, project: Path) -> None:
    cmd = (
        "echo $BERG_NODE_RANK.$BERG_ATTEMPT > $BERG_RESULTS_DIR/at-$BERG_NODE_RANK-$BERG_ATTEMPT; "
    )
    cmd += 'test "$BERG_NODE_RANK" = 0 || { sleep 8; test "$BERG_ATTEMPT" = 2; }'
    words = ["-g", "0", "-n", "pair", "-m", "2", "--each", "--restart-on-failure", "1"]
    done = cloud.run("run", *words, "--wait", cmd, cwd=project)
    assert done.code == 0, cloud.log("pair")
    made = {name.rpartition("/")[2] for name in cloud.names("berg_results/pair/at")}
    assert made == {"at-0-1", "at-1-1", "at-0-2", "at-1-2"}, (
        cloud.log("pair"),
        cloud.names("berg_results/pair"),
        cloud.names(".berg/moments/pair"),
    )
