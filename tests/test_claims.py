"""Two people, or one in a hurry, and one name: who has it keeps it, and nobody deletes another's."""

import random
import time

import pytest
from conftest import Berg, wait_for
from test_run import check_ended

from berg import BergError, config
from berg.google import secret as secrets
from berg.inventory import Machine
from berg.laptop import launch, sweep

pytestmark = pytest.mark.golden
RUN = ["run", "-g", "0", "-n", "twin"]


def start_two(berg: Berg, *words: str) -> list[tuple[int, str]]:
    """Run a command twice at the same time; returns exit code and standard error of each."""
    both = [berg.start(*words) for _ in range(2)]
    errors = [each.communicate(timeout=120)[1] for each in both]
    return sorted((each.returncode, said) for each, said in zip(both, errors, strict=True))


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        pytest.param(
            "sweeps/twin.json",
            [*RUN, "--grid", "x=1,2", "sleep 3; echo {x}"],
            marks=pytest.mark.slow,
        ),
        ("jobs/twin_state.json", [*RUN, "sleep 3"]),
    ],
    ids=["sweep", "job"],
)
def test_of_two_equal_submits_one_runs_and_the_other_deletes_nothing(berg, cloud, claim, words):
    # Both have looked whether the name is free before either has it.
    cloud.fault("storage.objects.insert", match=f".berg/{claim}", delay=3, times=2)
    (code, _), (other_code, said) = start_two(berg, *words)
    assert (code, other_code) == (0, 1), said
    assert "already. Choose another name" in said and "Taking back" not in said
    for name in ["twin-0", "twin-1"] if "{x}" in words[-1] else ["twin"]:
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 90)


@pytest.mark.slow
def test_who_lost_a_name_meanwhile_takes_nothing_back(berg, cloud):
    """A submit that fails after another one has its name leaves what is the other's."""
    cloud.fault("compute.instances.insert", delay=4)
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "left": 0})
    (berg.repo / "token").write_text("s3cret")
    secret = ["--secret", "TOKEN=token"]
    first = berg.start(*RUN, *secret, "--zone", "us-central1-a", "true")
    path = ".berg/jobs/twin_state.json"
    wait_for(lambda: berg.bucket.exists(path), 60, "the first one's claim")
    other = berg.bucket.read(path).decode().replace('"claim": "', '"claim": "another')
    berg.bucket.write(path, other, metadata={"state": other})
    _, said = first.communicate(timeout=90)
    assert first.returncode == 1 and "Taking back" in said
    assert berg.bucket.read(path).decode() == other
    there = secrets.find(cloud.settings(berg.bucket_name))
    assert [each.name for each in there] == ["twin"]


@pytest.mark.slow
def test_resume_and_a_new_job_of_the_name_wait_for_the_machine_that_goes(berg, cloud):
    assert berg(*RUN, "--max-hours", "1", "exit 3").returncode == 0
    cloud.fault("compute.instances.delete", delay=6, times=None)
    wait_for(lambda: berg.state("twin")["state"] == "FAILED", 60)
    assert "twin" in berg.machines()
    resumed = berg("run", "--resume", "twin", "--wait")
    assert resumed.returncode == 3, resumed.stderr
    assert "Waiting for twin to go" in resumed.stderr
    wait_for(lambda: berg("rm", "--yes", "twin").returncode == 0, 30, "its deletion")
    anew = berg(*RUN, "--wait", "true")
    assert anew.returncode == 0, anew.stderr
    check_ended(berg, "twin", "SUCCEEDED", 0)


def test_a_sweep_that_is_over_waits_for_its_machines_before_it_is_resumed(monkeypatch):
    """They were counted as there, went, and the jobs that were submitted again never began."""
    monkeypatch.setattr(launch.time, "sleep", lambda seconds: None)
    looks = [["RUNNING", "TERMINATED"], ["STOPPING", "TERMINATED"], ["TERMINATED"]]

    def members(*_) -> list[Machine]:
        statuses = looks.pop(0) if len(looks) > 1 else looks[0]
        return [Machine(f"lr-machine-{n}", "", status) for n, status in enumerate(statuses)]

    monkeypatch.setattr(sweep, "members", members)
    said: list[str] = []
    sweep.wait_until_gone(config.Config(), "lr", said.append)
    assert said == ["Waiting for lr-machine-0 to go, as the sweep lr is over"] and len(looks) == 1
    monkeypatch.setattr(launch, "GOING", -1)
    looks[:] = [["RUNNING"]]
    with pytest.raises(BergError, match="lr-machine-0 did not go. Delete them: berg reap"):
        sweep.wait_until_gone(config.Config(), "lr", said.append)


def start_together(berg: Berg, seed: int, *commands: list[str]) -> list[tuple[int, str]]:
    """Start commands at the same time, give or take what the seed says; exit code and standard
    error of each.
    """
    dice, started = random.Random(seed), []
    for words in dice.sample(list(enumerate(commands)), len(commands)):
        started.append((words[0], berg.start(*words[1])))
        time.sleep(dice.choice([0, 0, dice.uniform(0, 1.5)]))
    ended = [(number, each.communicate(timeout=150)[1], each) for number, each in started]
    return [(each.returncode, said) for _, said, each in sorted(ended, key=lambda row: row[0])]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--grid", "x=1,2", "true {x}"], ["true"]], ids=["sweep", "job"])
def test_two_submits_race(berg, seed, words):
    """`make chaos` runs it, and the next one, many times with other seeds."""
    (code, said), (other_code, other_said) = start_together(berg, seed, *[[*RUN, *words]] * 2)
    assert sorted([code, other_code]) == [0, 1], said + other_said
    for name in ["twin-0", "twin-1"] if len(words) > 1 else ["twin"]:
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 90)
        assert berg.bucket.exists(f".berg/jobs/{name}_metadata.json")


@pytest.mark.slow
def test_resume_and_rm_race(berg, seed):
    assert berg(*RUN, "--max-hours", "1", "--wait", "exit 3").returncode == 3
    resume, remove = ["run", "--resume", "twin"], ["rm", "-y", "twin"]
    (resumed, said), (removed, rm_said) = start_together(berg, seed, resume, remove)
    assert 0 in (resumed, removed), said + rm_said
    if removed == 0 and resumed != 0:
        wait_for(lambda: not berg.machines(), 60, "the machine's end")
        assert not berg.bucket.exists(".berg/jobs/twin_state.json")
    else:
        wait_for(lambda: berg.state("twin")["state"] == "FAILED", 90, "the end of what was resumed")
        assert (removed, berg.state("twin")["exit_code"]) == (1, 3), said + rm_said
