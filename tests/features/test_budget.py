"""What a user's jobs may cost in a day is never exceeded, and what they did not cost comes back."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Cloud, until

from berg.job import State, read_state

BIG = ["run", "-g", "0", "-c", "96"]  # $4.58 an hour


@pytest.mark.slow
def test_jobs_end_sooner_or_are_refused(cloud: Cloud, project: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        env = {"BERG_BUDGET": "1", "BERG_BUDGET_NAME": "agent"}
        done = cloud.run(*BIG, *words, cwd=project, **env)
        return done.code, done.err

    def costs() -> list[float]:
        items = cloud.bucket.list(".berg/budget/")
        return [float(item.about["usd"]) for item in items if "/agent/" in item.name]

    code, said = run("-n", "first", "--wait", "true")
    assert code == 0 and "at most $1.00 in" in said, said
    assert "(budget)" in said and "(--max-hours)" not in said, said
    assert 0 < sum(costs()) < 0.3
    code, said = run("-n", "second", "sleep 600")
    assert code == 0 and 0.99 < sum(costs()) < 1.001, said
    code, said = run("-n", "third", "--max-hours", "0.1", "-y", "true")
    assert code == 1 and "of the $1 that your jobs may cost today" in said, said
    until(lambda: b'"RUNNING"' in cloud.read(".berg/jobs/second_state.json"))
    assert cloud.run("kill", "-y", "--now", "second").code == 0
    assert sum(costs()) < 0.9
    assert cloud.run("rm", "-y", "first").code == 0
    assert len(costs()) == 2


def test_two_at_one_moment_do_not_both_pass(cloud: Cloud, project: Path) -> None:
    def run(name: str) -> tuple[int, str]:
        env = {"BERG_BUDGET": "1", "BERG_BUDGET_NAME": "team"}
        words = ["-n", name, "--max-hours", "0.2", "sleep 600"]
        done = cloud.run(*BIG, *words, cwd=project, **env)
        return done.code, done.err

    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(run, ["left", "right"])]
    items = cloud.bucket.list(".berg/budget/")
    costs = [float(item.about["usd"]) for item in items if "/team/" in item.name]
    assert sum(costs) <= 1.001, done
    for name, (code, said) in zip(["left", "right"], done):
        assert code == 0 or re.search("took what was left|may cost today", said), said
        assert (cloud.read(f".berg/jobs/{name}_state.json") != b"") == (code == 0)
        cloud.run("kill", "-y", "--now", name)


@pytest.mark.slow
def test_a_machine_that_waits_counts_with_its_most_until_it_is_gone(
    cloud: Cloud, project: Path
) -> None:
    def costs() -> float:
        items = cloud.bucket.list(".berg/budget/")
        return sum(float(item.about["usd"]) for item in items if "/warm/" in item.name)

    env = {"BERG_BUDGET": "1", "BERG_BUDGET_NAME": "warm"}
    words = ["-n", "held", "--keep-warm", "5m", "--wait", "true"]
    assert cloud.run(*BIG, *words, cwd=project, **env).code == 0
    assert 0.99 < costs() < 1.001  # a job on it may hold it until its limit
    assert cloud.run("kill", "held").code == 0
    assert 0 < costs() < 0.3


@pytest.mark.slow
def test_a_job_counts_with_its_most_while_it_restarts(cloud: Cloud, project: Path) -> None:
    mark = "$BERG_RESULTS_DIR/tried"
    once = f'test -e "{mark}" && exec sleep 300; touch "{mark}"; exit 1'
    env = {"BERG_BUDGET": "1", "BERG_BUDGET_NAME": "again"}
    words = ["-n", "again", "--restart-on-failure", "1", once]
    assert cloud.run(*BIG, *words, cwd=project, **env).code == 0
    costs, state = [], State("again", "")
    while (state.attempt, state.state) != (2, "RUNNING"):
        items = cloud.bucket.list(".berg/budget/")
        costs += [float(item.about["usd"]) for item in items if "/again/" in item.name]
        state, _ = read_state(cloud.bucket, "again")
        assert not state.is_final, state
    assert min(costs) > 0.99, costs
    assert cloud.run("kill", "--now", "again").code == 0
