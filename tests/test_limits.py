"""What jobs may cost: a ceiling for each, a budget for a day, and a question before much is spent."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import googleapiclient
import pytest

from berg import job
from berg.google import prices
from berg.laptop import spending

HOURLY = 0.35 + 8 * 0.031611 + 30 * 0.004237 + 200 * 0.1 / 730  # of one T4 with its disk
T4 = ("run", "-t", "t4", "--dry-run", "--json")


def request(shown) -> dict:
    """The body of what Google would be asked for."""
    body = json.loads(shown.stdout)["request"]
    return body.get("instanceProperties", body)


def seconds(shown) -> int:
    assert shown.returncode == 0, shown.stderr
    return int(request(shown)["scheduling"]["maxRunDuration"]["seconds"])


def test_a_ceiling_is_the_time_that_the_machines_may_live(berg):
    shown = berg(*T4, "--max-cost", "1", "true")
    assert seconds(shown) == int(3600 / HOURLY)
    assert "; at most $1.00 in 1h 19m" in shown.stderr
    assert "Limit     1h 19m, then Google deletes the machine (--max-cost)" in shown.stderr
    two = berg(*T4, "--max-cost", "1", "-m", "2", "true")
    assert seconds(two) == int(3600 / HOURLY / 2)
    short = berg(*T4, "--max-cost", "1000", "--max-hours", "2", "true")
    assert seconds(short) == 7200 and "(--max-hours)" in short.stderr


def test_a_ceiling_of_a_sweep_is_for_all_of_its_jobs(berg):
    sweep = ("--max-cost", "8", "--grid", "x=1,2,3,4", "--parallel", "2", "echo {x}")
    shown = berg(*T4, *sweep)
    assert seconds(shown) == 2 * int(3600 * 2 / HOURLY), "two jobs one after another"
    assert "; at most $8.00 in " in shown.stderr


def test_a_default_ceiling_is_for_each_job_and_0_takes_it_away(berg):
    ceiling = {"BERG_MAX_COST": "2"}
    assert seconds(berg(*T4, "true", **ceiling)) == int(3600 * 2 / HOURLY)
    sweep = ("--grid", "x=1,2", "--parallel", "2", "echo {x}")
    assert seconds(berg(*T4, *sweep, **ceiling)) == int(3600 * 2 / HOURLY)
    assert seconds(berg(*T4, "--max-cost", "0", "true", **ceiling)) == 168 * 3600


@pytest.mark.parametrize(
    ("own", "theirs", "options", "usd", "source"),
    [
        ("2", "500", (), 2, "max_cost = 2 of your settings"),
        ("2", "0", (), 2, "max_cost = 2 of your settings"),
        ("2", "1.5", (), 1.5, "max-cost = 1.5 of the repo"),
        ("0", "1.5", (), 1.5, "max-cost = 1.5 of the repo"),
        ("2", "500", ("--max-cost", "3"), 3, "--max-cost"),
        ("2", "1.5", ("--max-cost", "0"), 0, "--max-hours"),
    ],
)
def test_a_repo_lowers_a_limit_and_never_raises_or_lifts_it(
    berg, own, theirs, options, usd, source
):
    (berg.repo / "berg.toml").write_text(f"max-cost = {theirs}\nmax-hours = 100\n")
    shown = berg(*T4, *options, "true", BERG_MAX_COST=own)
    assert seconds(shown) == (int(3600 * usd / HOURLY) or 100 * 3600)
    assert f"then Google deletes the machine ({source})" in shown.stderr


@pytest.mark.parametrize("key", ["max_cost", "budget", "ask_above", "max_stopped_days"])
def test_a_repo_has_no_other_limits_of_the_users(berg, key):
    for name in (key, key.replace("_", "-")):
        if name != "max-cost":
            (berg.repo / "berg.toml").write_text(f"{name} = 0\n")
            refused = berg(*T4, "true")
            assert refused.returncode == 1 and f"there is no key '{name}'" in refused.stderr


def test_a_repo_does_not_give_machines_the_address_that_the_user_forbids(berg):
    (berg.repo / "berg.toml").write_text("no-external-ip = false\n")
    refused = berg(*T4, "true", BERG_NO_EXTERNAL_IP="true")
    assert refused.returncode == 1
    assert "a machine without an external address reaches nothing of Google's" in refused.stderr


@pytest.mark.slow
def test_what_an_earlier_run_might_cost_lifts_no_limit(berg):
    """Its record may be a colleague's."""
    assert berg("run", "-t", "t4", "-n", "old", "--wait", "exit 3").returncode == 3
    record = json.loads(berg.bucket.read(job.metadata_path("old")))
    for cost, usd in ((0, 2), (500, 2), (1, 1)):
        record["spec"]["max_cost"] = float(cost)
        berg.bucket.write(job.metadata_path("old"), json.dumps(record))
        for words in (("rerun", "old"), ("run", "--resume", "old")):
            shown = berg(*words, "--dry-run", "--json", BERG_MAX_COST="2")
            assert seconds(shown) == int(3600 * usd / HOURLY), words
    assert (
        seconds(berg("rerun", "old", "--dry-run", "--json", "--max-cost", "0", BERG_MAX_COST="2"))
        > 1e5
    )


@pytest.mark.slow
def test_a_sweep_that_goes_on_keeps_to_the_limit_of_the_user(berg):
    sweep = ("run", "-t", "t4", "-n", "lr", "--grid", "x=1,2", "--wait", "exit {x}")
    assert berg(*sweep).returncode == 1
    free = berg("run", "--resume", "lr", "--dry-run", "--json")
    assert seconds(free) == 168 * 3600
    limited = berg("run", "--resume", "lr", "--dry-run", "--json", BERG_MAX_COST="2")
    assert seconds(limited) == int(3600 * 2 / HOURLY)
    assert "2h 38m each (max_cost = 2 of your settings)" in limited.stderr


def test_nothing_can_be_kept_below_a_ceiling_that_has_no_price(berg, cloud):
    refused = berg("run", "-t", "h100-mega", "--max-cost", "5", "true")
    assert refused.returncode == 1 and "is unknown" in refused.stderr
    assert "--max-cost 0" in refused.stderr
    little = berg("run", "-t", "t4", "--max-cost", "0.01", "true")
    assert little.returncode == 1 and "is spent after 47 seconds" in little.stderr
    assert "give dollars" in berg("run", "--max-cost", "-1", "true").stderr
    assert not berg.machines()


@pytest.mark.slow
def test_google_ends_a_job_at_the_minute_in_which_its_money_is_spent(berg):
    done = berg("run", "-t", "t4", "-n", "spent", "--max-cost", "0.07", "--wait", "true")
    assert done.returncode == 0, done.stderr
    job = json.loads(berg("show", "spent", "--json").stdout)["metadata"]
    assert job["max_run_seconds"] == int(3600 * 0.07 / HOURLY) == 332


def test_a_budget_limits_and_refuses_the_next_job(berg):
    cpu = ["run", "-g", "0", "--max-hours", "100h"]  # $0.41 an hour
    budget = {"BERG_BUDGET": "1"}
    first = berg(*cpu, "--max-cost", "0.6", "-n", "first", "sleep 1000", **budget)
    assert first.returncode == 0, first.stderr
    second = berg(*cpu, "-n", "second", "sleep 1000", **budget)
    assert second.returncode == 0, second.stderr
    refused = berg(*cpu, "-y", "true", **budget)
    is_late = not refused.returncode  # little can be spent in the last hours before midnight
    words = r"your jobs have cost \$[\d,.]+ today .*; your budget for a day is \$1"
    assert is_late or re.search(words, refused.stderr), refused.stderr
    assert is_late or "(the day's budget)" in second.stderr
    assert berg(*T4, "--max-cost", "1", "true", BERG_BUDGET="100").returncode == 0


@pytest.mark.parametrize("rate", [1e6, 1e308])
def test_a_state_with_a_rate_of_no_machine_is_damaged(berg, rate):
    summary = job.Summary("tester", job.now(), rates={"us-central1": rate}, machines=100)
    text = job.State("RUNNING", zone="us-central1-a", job=summary).to_json()
    berg.bucket.write(job.state_path("odd"), text, metadata={"state": text})
    listed = berg("list", "-a", "--json")
    (row,) = json.loads(listed.stdout, parse_constant=pytest.fail)
    assert row["state"] == "LOST" and "is damaged" in row["reason"] and not row["usd"]


def test_much_money_is_asked_for_first(berg):
    sweep = ("run", "-t", "t4", "--tasks", "all.csv", "--parallel", "4", "echo {x}")
    (berg.repo / "all.csv").write_text("x\n" + "".join(f"{x}\n" for x in range(1000)))
    worst = f"{HOURLY * 1000 * 168:,.0f}"
    shown = berg(*sweep, BERG_ASK_ABOVE="1000", stdin="n\n")
    assert f"; at most ${worst} in 168,000 machine-hours" in shown.stderr
    assert f"This may cost ${worst}. Start it?" in shown.stderr
    assert shown.returncode == 130 and "nothing was done" in shown.stderr
    unanswered = berg("run", "-t", "t4", "true", BERG_ASK_ABOVE="9", stdin="")
    assert unanswered.returncode == 1 and "to skip it: -y" in unanswered.stderr
    assert not berg.machines() and not berg.objects(".berg/jobs/")


def test_a_plan_of_unknown_price_asks_too(berg, cloud):
    dear = ("run", "-t", "h100", "-g", "8", "--spot", "true")
    shown = berg(*dear, BERG_ASK_ABOVE="1000", stdin="n\n")
    assert "it may be over $1,000 (ask_above). Start it?" in shown.stderr, shown.stderr
    assert shown.returncode == 130 and "nothing was done" in shown.stderr
    assert not berg.machines() and not berg.objects(".berg/jobs/")


@pytest.mark.parametrize(
    ("bound", "priced", "usd", "says"),
    [
        (1000, True, 10.0, ""),
        (1000, True, 2000.0, "This may cost $2,000. Start it?"),
        (1000, True, None, "The cost of this is unknown"),
        (1000, False, None, ""),  # of a reservation, or a pod that any node may hold
        (0, True, None, ""),
    ],
)
def test_when_a_plan_asks(monkeypatch, bound, priced, usd, says):
    monkeypatch.setattr(spending, "worst", lambda *_: usd)
    settings = SimpleNamespace(ask_above=bound)
    plan = SimpleNamespace(config=settings, offer=SimpleNamespace(priced=priced or None))
    assert spending.question(plan)[: len(says) or None] == says


def test_who_agrees_before_is_not_asked(berg):
    ran = berg("run", "-t", "t4", "-n", "agreed", "-y", "true", BERG_ASK_ABOVE="9", stdin="")
    assert ran.returncode == 0, ran.stderr


def test_the_command_for_google_s_own_cap_has_a_body_that_its_api_takes(berg):
    printed = berg("costs", "--spend-cap", "500").stdout
    words = shlex.split(printed)
    body = json.loads(words[words.index("-d") + 1])
    folder = Path(googleapiclient.__file__).parent / "discovery_cache/documents"
    schemas = json.loads((folder / "billingbudgets.v1.json").read_text())["schemas"]

    def check(value, schema: dict) -> None:
        schema = schemas.get(schema.get("$ref", ""), schema)
        if isinstance(value, dict):
            for key, each in value.items():
                check(each, schema["properties"][key])
        if isinstance(value, list):
            for each in value:
                check(each, schema["items"])
        if "enum" in schema:
            assert value in schema["enum"]

    check(body, {"$ref": "GoogleCloudBillingBudgetsV1Budget"})
    assert body["budgetFilter"]["services"] == [prices.SERVICE]
    assert [each["thresholdPercent"] for each in body["thresholdRules"]] == [0.5, 0.8, 1.0]
    assert "/v1/$(gcloud billing projects describe berg-local" in printed


@pytest.mark.parametrize("key", ["max_cost", "budget", "ask_above"])
def test_limits_are_settings(berg, key):
    assert berg("config", "set", key, "25").returncode == 0
    assert berg("config", "get", key).stdout == "25\n"
    assert "a whole number" in berg("config", "set", key, "much").stderr
