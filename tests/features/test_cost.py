"""A plan says what it costs, a limit holds whatever lifts it, and a dear plan asks first."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Cloud
from inside import job_of, plan_of, run_of, state_of

from berg import BergError
from berg import job as jobs
from berg.config import Config
from berg.features import cost
from berg.features.cost import MaxCost, Price
from berg.job import State

BIG = ["run", "-g", "0", "-c", "96"]  # $4.58 an hour
RARE = ["run", "--machine-type", "n2-standard-4"]  # of unknown price


def planned(cloud: Cloud, project: Path, *words: str, **env: str) -> Any:
    done = cloud.ok(*BIG, *words, "--dry-run", "--json", "true", cwd=project, **env)
    return json.loads(done.out)


def test_a_plan_says_what_it_costs(cloud: Cloud, project: Path) -> None:
    plan = planned(cloud, project, "--max-hours", "2", "-n", "dear")
    assert 4 < plan["usd_per_hour"] < 6 and plan["max_run_seconds"] == 7200
    spots = planned(cloud, project, "--spot", "-m", "3")["usd_per_hour"]
    assert 0 < spots / 3 < plan["usd_per_hour"] / 2
    shown = cloud.run(*BIG, "--max-hours", "2", "--dry-run", "true", cwd=project).out
    assert f"${plan['usd_per_hour']:.2f} an hour, at most ${plan['usd_at_most']:.2f} in 2h" in shown


def test_a_limit_ends_a_job_sooner_and_no_option_lifts_the_environments(
    cloud: Cloud, project: Path
) -> None:
    def most(*words: str, **env: str) -> float:
        return float(planned(cloud, project, *words, **env)["usd_at_most"])

    env = {"BERG_MAX_COST": "1"}
    for words in (["--max-cost", "50"], ["--max-cost", "0"]):
        assert 0.99 < most(*words, **env) < 1.001, words
    assert most("--max-cost", "0.5", **env) < 0.501
    (project / "pyproject.toml").write_text("[tool.berg]\nmax-cost = 500\n")
    assert most(**env) < 1.001
    (project / "pyproject.toml").write_text("[tool.berg]\nmax-cost = 1\n")
    assert most() < 1.001
    assert most("--max-cost", "0") > 500
    spent = "$0.1 (--max-cost) are spent after 78 seconds"
    cloud.fails(*BIG, "--max-cost", "0.1", "true", says=spent, cwd=project)
    cloud.fails(*RARE, "--max-cost", "1", "true", says="price of this is not known", cwd=project)


def test_a_dear_plan_or_one_of_unknown_price_asks(cloud: Cloud, project: Path) -> None:
    few, asks = {"BERG_ASK_ABOVE": "100"}, ["-n", "asks", "true"]
    dear = "This may cost $771; berg asks above $100"
    cloud.fails(*BIG, *asks, says=dear, cwd=project, **few)
    assert "Price    unknown" in cloud.fails(
        *RARE, *asks, says="an unknown sum", cwd=project, **few
    )
    (project / "pyproject.toml").write_text("[tool.berg]\nask-above = 3\n")
    cloud.fails(*BIG, "--max-hours", "1", *asks, says="above $3", cwd=project, **few)
    assert not cloud.state("asks")
    done = cloud.ok(*BIG, "-n", "agreed", "-y", "sleep 60", cwd=project, **few)
    assert done.out == "agreed\n" and "\nPrice " in done.err
    assert done.err.endswith("Follow it: berg tail agreed\n")
    (row,) = [row for row in json.loads(cloud.run("list", "--json").out) if row["name"] == "agreed"]
    assert 4 < row["usd_per_hour"] < 6 and row["usd"] >= 0
    assert "an hour" in cloud.run("show", "agreed").out
    cloud.run("kill", "-y", "--now", "agreed")


def test_a_job_costs_while_its_machines_work() -> None:
    """Not while it waits for one, nor after its end; earlier attempts count."""
    hour = {n: f"2026-01-01T{n:02}:00:00Z" for n in range(9)}
    running = {jobs.SUBMITTED: hour[0], jobs.STARTING: hour[1], jobs.RUNNING: hour[2]}
    cases: list[tuple[dict[str, str], str, float]] = [
        ({jobs.SUBMITTED: hour[0]}, "", 0),
        ({**running, jobs.SUCCEEDED: hour[4]}, "", 3),
        ({**running, jobs.SUBMITTED: hour[4]}, "", 3),
        ({**running, jobs.LOST: hour[2]}, hour[3], 2),
        ({jobs.SUBMITTED: hour[0], jobs.RUNNING: hour[1], jobs.FAILED: hour[2]}, "", 1),
    ]
    for times, synced, hours in cases:
        state = State("x", times=times, synced_until=synced, rate=2.0, machines=3)
        assert round(state.seconds / 3600, 2) == hours, times
        assert state.usd == round(6.0 * hours, 4)
        state.seconds_before = 7200.0
        assert state.usd == round(6.0 * (hours + 2), 4)
    assert State("x").usd is None


@pytest.mark.parametrize(
    ("limit", "ago", "about", "rank", "is_over"),
    [
        (10.0, 700, {}, 0, True),  # a cent a second, and 200 seconds for its results
        (10.0, 500, {}, 0, False),
        (10.0, 700, {}, 1, False),
        (10.0, 900, {"seconds_before": 0.0}, 0, False),  # Google's limit ends its first attempt
        (10.0, 700, {"rate": None}, 0, False),
        (0.0, 700, {}, 0, False),
    ],
)
def test_attempts_together_cost_no_more_than_was_allowed(
    tmp_path: Path, limit: float, ago: float, about: Any, rank: int, is_over: bool
) -> None:
    job = job_of("attempts", machines=2)
    about = {"seconds_before": 200.0, "rate": 18.0, "machines": 2, **about}
    run = run_of(None, tmp_path, job, rank=rank, ago=ago, **about)
    ending = MaxCost(max_cost=limit).look(run)
    assert bool(ending) == is_over
    if ending:
        assert (ending.state, ending.is_firm, ending.seconds) == ("FAILED", True, 200)
        assert "--max-cost allows ($10)" in ending.reason


def test_a_resumed_job_has_what_its_attempts_left_of_its_limit() -> None:
    job = job_of("left", returns=True, features={"MaxCost": {"max_cost": 10.0}})
    ended = state_of(job, "FAILED", rate=36.0, seconds_before=600.0)
    plan = plan_of_price(job, ended, 36.0)
    with click.Context(click.Command("run")):
        MaxCost(max_cost=10.0).change(plan)
        Price().change(plan)
        assert plan.seconds == 400 and job.max_seconds == 1000
        assert plan.limit == "6m, then Google deletes the machine (max-cost of the job's record)"
        assert (
            plan.rows["Price"]
            == "$36.00 an hour, at most $4.00 in 6m for each attempt, $10.00 for all"
        )
        own = (3.0, "max_cost of your settings")
        for given, found in ((None, own), (5.0, own), (2.0, (2.0, "max-cost of the job's record"))):
            assert cost.limit(Config(max_cost="3"), given) == found
        for before, left in ((989.5, 10), (2000.0, 0)):
            ended.seconds_before = before
            with pytest.raises(BergError, match=f"spent after {left} seconds"):
                MaxCost(max_cost=10.0).change(plan_of_price(job, ended, 36.0))
        free = plan_of_price(job, ended, 0.0)
        MaxCost(max_cost=10.0).change(free)
        assert free.seconds == 1000


def plan_of_price(job: Any, ended: State, usd_per_hour: float) -> Any:
    plan = plan_of(None, job, ended=ended)
    plan.usd_per_hour = usd_per_hour
    return plan


@pytest.mark.parametrize(
    ("model", "asked", "seconds", "found"),
    [
        ("", 5000, 300, 300),
        ("", 5000, 299, None),
        ("", 200, 250, 200),  # all that was asked for
        ("", 200, 150, None),
        ("FLEX_START", 5000, 599, None),
        ("FLEX_START", 5000, 600.9, 600),
        ("SPOT", 5000, 9000, 5000),
    ],
)
def test_a_limit_leaves_a_machine_that_is_worth_a_start(
    model: str, asked: int, seconds: float, found: int | None
) -> None:
    plan = plan_of(None, job_of("worth", max_seconds=asked))
    plan.request["scheduling"]["provisioningModel"] = model
    assert cost.shorten(plan, seconds, "budget") == (found is not None)
    assert (plan.seconds, plan.job.max_seconds) == (found or asked,) * 2
