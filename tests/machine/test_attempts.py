"""A command that fails on one of several machines runs again on all of them, together.

How machines are lost: test_cluster_faults.py.
"""

import json
import re
import time

import pytest
from conftest import Berg, commit, wait_for
from rendezvous import TRAINING, check_attempts

from berg.google import groups


def train(berg: Berg, name: str, *options: str) -> None:
    (berg.repo / "train.py").write_text(TRAINING)
    commit(berg.repo)
    run = ("run", "-m", "3", "-g", "0", "-n", name, "--each", *options, "python train.py")
    done = berg(*run)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_command_that_fails_runs_again_on_all_machines(berg):
    train(berg, "again", "--restart-on-failure", "3")
    check_attempts(berg, "again")
    wait_for(lambda: not berg.machines(), what="the end of the machines")


@pytest.mark.slow
def test_what_fails_too_often_fails_with_the_first_failure(berg):
    train(berg, "often", "--restart-on-failure", "1")
    wait_for(lambda: berg.state("often")["finished_at"], 180, "the end")
    state = berg.state("often")
    why = "the command failed with exit code 5 on often-0"
    assert (state["state"], state["reason"], state["exit_code"]) == ("FAILED", why, 5), state
    assert (state["attempt"], state["failures"]) == (2, 1)
    wait_for(lambda: not berg.machines(), what="the end of the machines")


@pytest.mark.slow
def test_kill_ends_a_job_whose_machines_wait_for_each_other(berg, cloud):
    cloud.fault("storage.objects.insert", match="slow/ended-2-1", delay=15)
    train(berg, "slow", "--restart-on-failure", "3")
    wait_for(lambda: berg.state("slow")["attempt"] == 2, 90, "the second attempt")
    wait_for(lambda: "attempt 2 begins" in berg.state("slow")["reason"], what="the reason")
    time.sleep(2)
    assert berg("kill", "slow", "-y").returncode == 0
    wait_for(lambda: berg.state("slow")["finished_at"], 90, "the end")
    assert berg.state("slow")["state"] == "KILLED"
    wait_for(lambda: not berg.machines(), 60, what="the end of the machines")


def begun(berg: Berg, name: str, attempt: int) -> None:
    """Wait until an attempt goes on on all of the job's three machines."""
    begins = f" in attempt {attempt} on port "
    wait_for(
        lambda: berg.log(name).count(begins) == 3, 90, f"attempt {attempt} in {berg.log(name)}"
    )
    wait_for(lambda: berg.log(name).count("agreed on") == 3 * attempt, what="the checkpoint")


@pytest.mark.slow
def test_what_google_is_asked_for_several_spot_machines(berg):
    planned = berg(
        "run", "-m", "11", "-g", "0", "-n", "many", "--spot", "--dry-run", "--json", "true"
    )
    assert planned.returncode == 0, planned.stderr
    asked = json.loads(planned.stdout)["request"]
    group, members = asked["group"], asked["members"]["instances"]
    assert (group["name"], group["targetSize"]) == ("many", 0)
    assert group["distributionPolicy"]["targetShape"] == "ANY_SINGLE_ZONE"
    assert [each["name"] for each in members] == [f"many-{rank:02}" for rank in range(11)]
    said = " ".join(planned.stderr.split())
    assert "20 after lost machines, each made again in their zone; the others wait 15m" in said


@pytest.mark.slow
def test_machines_that_google_takes_come_back_to_the_others(berg, cloud):
    """One, then the first one, which leads."""
    train(berg, "taken", "--spot", "--env", 'DIES={"1": -1, "2": -1}')
    for attempt, victim in ((1, 1), (2, 0)):
        begun(berg, "taken", attempt)
        time.sleep(4)  # what was written less than 2 s before is not restored: clocks differ
        cloud.call("POST", f"/_berg/instances/taken-{victim}/preempt", {"grace": 20})
    begun(berg, "taken", 3)
    wait_for(lambda: berg.state("taken")["finished_at"], 60, "the end")
    state = berg.state("taken")
    assert (state["state"], state["reason"]) == ("SUCCEEDED", ""), state
    assert (state["attempt"], state["failures"], state["restarts"]) == (3, 0, 2)
    begun_anew = [(number, why) for number, _, why in state["attempts"]]
    assert [number for number, _ in begun_anew] == ["2", "3"] and state["missing"] == 0
    assert "taken-1" in begun_anew[0][1] and "preempted" in begun_anew[1][1], begun_anew
    begins = re.findall(r"in attempt (\d) on port \d+ begins at (\d)$", berg.log("taken"), re.M)
    assert sorted(begins) == [(str(n), str(n - 1)) for n in (1, 2, 3) for _ in range(3)]
    check_nothing_left(berg, "taken")


def check_nothing_left(berg: Berg, name: str) -> None:
    wait_for(lambda: not berg.machines(), 60, "the end of the machines")
    wait_for(lambda: not groups.find(berg.bucket.config, name), 60, "the end of the group")
