"""What a user's jobs may cost in a day is never exceeded, and what they did not cost comes back."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, Done, until
from inside import fresh, job_of, plan_of, run_of, state_of

from berg import BergError
from berg import job as jobs
from berg.features import budget
from berg.features.budget import Budget
from berg.features.keep import Keep
from berg.job import Job, State, read_state
from berg.worker import Ending

BIG = ["run", "-g", "0", "-c", "96"]  # $4.58 an hour


def run(cloud: Cloud, project: Path, user: str, *words: str) -> Done:
    """Run a job of somebody whose jobs may cost a dollar a day."""
    env = {"BERG_BUDGET": "1", "BERG_BUDGET_NAME": user}
    return cloud.run(*BIG, *words, cwd=project, **env)


def costs(cloud: Cloud, user: str) -> list[float]:
    """What each job of theirs counts with."""
    items = cloud.bucket.list(".berg/budget/")
    return [float(item.about["usd"]) for item in items if f"/{user}/" in item.name]


@pytest.mark.slow
def test_jobs_end_sooner_or_are_refused(cloud: Cloud, project: Path) -> None:
    done = run(cloud, project, "agent", "-n", "first", "--wait", "true")
    assert done.code == 0 and "at most $1.00 in" in done.err, done.err
    assert "(budget)" in done.err and "(--max-hours)" not in done.err, done.err
    assert 0 < sum(costs(cloud, "agent")) < 0.3
    done = run(cloud, project, "agent", "-n", "second", "sleep 600")
    assert done.code == 0 and 0.99 < sum(costs(cloud, "agent")) < 1.001, done.err
    done = run(cloud, project, "agent", "-n", "third", "--max-hours", "0.1", "-y", "true")
    assert done.code == 1 and "of the $1 that your jobs may cost today" in done.err, done.err
    until(lambda: cloud.state("second")["state"] == "RUNNING")
    assert cloud.run("kill", "-y", "--now", "second").code == 0
    assert sum(costs(cloud, "agent")) < 0.9
    assert cloud.run("rm", "-y", "first").code == 0
    assert len(costs(cloud, "agent")) == 2


def test_two_at_one_moment_do_not_both_pass(cloud: Cloud, project: Path) -> None:
    def submit(name: str) -> Done:
        return run(cloud, project, "team", "-n", name, "--max-hours", "0.2", "sleep 600")

    with ThreadPoolExecutor(2) as pool:
        both = {name: pool.submit(submit, name) for name in ("left", "right")}
    assert sum(costs(cloud, "team")) <= 1.001
    assert 0 in [each.result().code for each in both.values()], "the first one passes"
    for name, each in both.items():
        code, said = each.result().code, each.result().err
        assert code == 0 or re.search("took what was left|may cost today", said), said
        assert bool(cloud.state(name)) == (code == 0)
        cloud.run("kill", "-y", "--now", name)


@pytest.mark.slow
def test_a_job_counts_with_its_most_while_it_restarts(cloud: Cloud, project: Path) -> None:
    mark = "$BERG_RESULTS_DIR/tried"
    once = f'test -e "{mark}" && exec sleep 300; touch "{mark}"; exit 1'
    words = ["-n", "again", "--restart-on-failure", "1", once]
    assert run(cloud, project, "again", *words).code == 0
    counted, state = [], State("again", "")
    while (state.attempt, state.state) != (2, "RUNNING"):
        counted += costs(cloud, "again")
        state, _ = read_state(cloud.bucket, "again")
        assert not state.is_final, state
    assert min(counted) > 0.99, counted
    assert cloud.run("kill", "--now", "again").code == 0


TODAY = time.strftime("%Y-%m-%d", time.gmtime())
CENT = 36.0  # dollars an hour: a cent a second


def noted(cloud: Cloud, job: Job, most: float, costs: dict[str, float], user: str = "me") -> str:
    """The object of a job that may cost so much."""
    path = f"{budget.BUDGETS}{TODAY}/{user}/{job.name}"
    budget.write(cloud.bucket, path, most, costs, most)
    return path


def usd(cloud: Cloud, path: str) -> float:
    item = cloud.bucket.get(path)
    return float(item.about["usd"]) if item else 0.0


@pytest.mark.parametrize(
    ("up", "costs", "is_over"),
    [
        (245, {"other": 0.5}, False),  # with what it may take to save its results
        (255, {"other": 0.5}, True),
        (255, {}, False),
        (305, {}, True),
        (255, {"77": 0.5}, False),  # what this machine cost when it was last looked at
    ],
)
def test_a_machine_ends_its_job_in_time_for_the_last_results(
    cloud: Cloud, tmp_path: Path, up: float, costs: dict[str, float], is_over: bool
) -> None:
    job = job_of(fresh("in-time"))
    path, own = noted(cloud, job, 5.0, costs), Budget("me", CENT)
    run = run_of(cloud, tmp_path, job, up=up)
    with own.around(run):
        assert usd(cloud, path) == 5.0, "its most counts while it runs"
        assert json.loads(cloud.read(path))["costs"]["77"] == pytest.approx(up / 100 + 0.6, abs=0.4)
        ending = own.look(run)
    assert bool(ending) == is_over
    if ending:
        assert (ending.state, ending.is_firm, ending.seconds) == ("FAILED", True, 200)
        assert "budget allows ($5.00)" in ending.reason


@pytest.mark.parametrize(
    ("ending", "about", "cost"),
    [
        (Ending("SUCCEEDED"), {}, 2.1),
        (Ending("LOST", is_loss=True), {}, 2.1),
        (Ending("SUBMITTED", is_loss=True), {"returns": True}, 5.0),
        (Ending("FAILED"), {"returns": True}, 2.1),
    ],
)
def test_what_a_job_did_not_cost_comes_back_at_its_end(
    cloud: Cloud, tmp_path: Path, ending: Ending, about: dict[str, Any], cost: float
) -> None:
    job = job_of(fresh("comes-back"), **about)
    path = noted(cloud, job, 5.0, {"other": 0.5})
    made = Budget("me", CENT).ended(run_of(cloud, tmp_path, job, up=100), ending)
    assert usd(cloud, path) == pytest.approx(cost, abs=0.4) and made.then is None


def test_only_the_first_machine_counts_and_one_that_goes_on_until_it_is_known(
    cloud: Cloud, tmp_path: Path
) -> None:
    job = job_of("counts", machines=2)
    path, own, over = noted(cloud, job, 5.0, {}), Budget("me", CENT), Ending("FAILED")
    own.ended(run_of(cloud, tmp_path, job, rank=1, up=100), over)
    assert usd(cloud, path) == 5.0
    row = replace(job, name="counts/0", machines=1)
    own.ended(run_of(cloud, tmp_path, row, up=100), over)
    assert usd(cloud, path) == 5.0
    waiting = run_of(cloud, tmp_path, job, up=100, features=[Keep(keep_warm=300)])
    restarts = replace(job, features={"Restart": {}})
    restarting = run_of(cloud, tmp_path, restarts, up=100)
    for run, state, cost in ((waiting, "RUNNING", 5.0), (restarting, "FAILED", 1.6)):
        made = own.ended(run, over)
        assert usd(cloud, path) == 5.0 and made.then
        run.state.state = state
        made.then(run)
        assert usd(cloud, path) == pytest.approx(cost, abs=0.4)


@pytest.mark.parametrize(
    ("costs", "state", "cost"),
    [
        ({}, {}, None),  # it never had a machine
        ({}, {"machine": "m", "machine_id": "7"}, 1.6),
        ({"7": 0.3}, {"machine": "m", "machine_id": "7"}, 0.3),  # its machine counted
        (
            {"7": 0.3},
            {"machine": "m", "machine_id": "7", "kept_until": "2100-01-01T00:00:00Z"},
            1.6,
        ),
        ({"6": 0.3}, {"machine": "m", "machine_id": "7", "seconds_before": 500.0}, 1.9),
        ({"6": 4.9}, {"machine": "m", "machine_id": "7"}, 5.0),  # no more than was allowed
        ({"6": 0.3}, {"machine": "m", "machine_id": "7", "id": "another"}, 5.0),
        ({"6": 0.3}, {}, 0.3),
    ],
)
def test_a_killed_job_gives_back_what_it_has_not_cost(
    cloud: Cloud, costs: dict[str, float], state: dict[str, Any], cost: float | None
) -> None:
    job = job_of(fresh("gives-back"))
    path = noted(cloud, job, 5.0, costs)
    cloud.bucket.write(jobs.state_path(job.name), state_of(job, ago=100, **state).content())
    Budget("me", CENT).forget(cloud.config, job)
    assert (cloud.bucket.get(path) is None) == (cost is None)
    assert cost is None or usd(cloud, path) == pytest.approx(cost, abs=0.25)
    assert cost is None or json.loads(cloud.read(path))["most"] == 5.0


def test_of_two_submits_the_later_one_withdraws_and_damaged_sums_count_as_nothing(
    cloud: Cloud,
) -> None:
    config = replace(cloud.config, budget="5")
    first, second, later = (job_of(f"sums-{name}") for name in ("first", "second", "later"))
    noted(cloud, first, 3.0, {}, "sums")
    bad = f"{budget.BUDGETS}{TODAY}/sums/damaged"
    cloud.bucket.write(bad, b"{}", about={"usd": "many"})
    plan = replace(plan_of(cloud, second), config=config)
    own = Budget("sums", 1.0)
    own.most, own.day = 2.0, TODAY
    own.send(plan)
    assert usd(cloud, f"{own.prefix}sums-second") == 2.0
    own.most = 2.1
    with pytest.raises(BergError, match="took what was left of the .5"):
        own.send(plan)
    own.most = 2.0
    noted(cloud, later, 1.0, {}, "sums")
    noted(
        cloud, second, 2.0, {"6": 0.5}, "sums"
    )  # of its attempt before: the last that was written
    cloud.bucket.delete(f"{own.prefix}sums-later")
    own.most = 1.5
    own.send(plan)
    assert usd(cloud, f"{own.prefix}sums-second") == 2.0
    assert json.loads(cloud.read(f"{own.prefix}sums-second"))["costs"] == {"6": 0.5}


def test_a_job_has_the_object_of_its_last_submit(cloud: Cloud) -> None:
    job = job_of("of-days", created_at="2020-01-05T10:00:00Z")
    for day, user, name in [
        ("2020-01-04", "me", "of-days"),  # of an earlier job of the name
        ("2020-01-05", "you", "of-days"),
        ("2020-01-07", "me", "not-of-days"),
    ]:
        cloud.bucket.write(f"{budget.BUDGETS}{day}/{user}/{name}", b"{}")
    assert budget.newest(cloud.bucket, "me", job) == ""
    for day in ("2020-01-05", "2020-01-06"):
        cloud.bucket.write(f"{budget.BUDGETS}{day}/me/of-days", b"{}")
    assert budget.newest(cloud.bucket, "me", job) == f"{budget.BUDGETS}2020-01-06/me/of-days"


def test_a_plan_has_what_is_left_of_the_day(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    config, job = replace(cloud.config, budget="5", user="Ada.L"), job_of("left-of")
    noted(cloud, job_of("spent"), 3.0, {}, "ada-l")
    monkeypatch.delenv("BERG_BUDGET_NAME", raising=False)
    plan, own = replace(plan_of(cloud, job), config=config), Budget()
    plan.usd_per_hour = 7.2
    own.change(plan)
    assert (own.user, own.most, plan.seconds) == ("ada-l", pytest.approx(2.0), 1000)
    assert "at most $2.00 in" in plan.rows["Budget"] and "of $2.00 that are" in plan.rows["Budget"]
    assert job.features["Budget"] == {"user": "ada-l", "usd_per_hour": 7.2}
    plan.usd_per_hour = 14.4
    own.change(plan)
    assert plan.seconds == job.max_seconds == 500 and own.most == pytest.approx(2.0)
    plan.usd_per_hour = 144.0
    with pytest.raises(BergError, match=r"\$2.00 are left of the \$5"):
        own.change(plan)
    again = replace(plan_of(cloud, job_of("spent")), config=config, ended=state_of(job, "FAILED"))
    again.usd_per_hour = 14.4
    own.change(again)  # what it might have cost is not spent twice
    assert again.seconds == 1000 and "Budget" not in again.job.features
    again.config = cloud.config
    monkeypatch.setenv("BERG_BUDGET_NAME", "Team_A")
    own.change(again)
    assert own.most == pytest.approx(4.0) and own.user == "team-a"
    plan.usd_per_hour = None
    with pytest.raises(BergError, match="no budget can count it"):
        own.change(plan)
