"""What jobs cost: by their states, in sums, in lists, and what costs money now."""

import json
from dataclasses import replace

import pytest
from conftest import wait_for

from berg import job
from berg.laptop import spending

HOUR = {"us-central1": 4.0}
SUMMARY = job.Summary(user="ada", created_at="2026-11-18T09:00:00Z", machines=2, rates=HOUR)


def state(*history: list[str], **fields) -> job.State:
    made = job.State(history=[*history], state=history[-1][0], job=SUMMARY, zone="us-central1-a")
    return replace(made, **fields)


def at(clock: str) -> str:
    return f"2026-11-18T{clock}:00Z"


def test_a_job_costs_from_its_worker_s_beginning_to_its_end():
    ran = state(
        ["SUBMITTED", at("09:00")],
        ["STARTING", at("10:00")],
        ["RUNNING", at("10:30")],
        ["SUCCEEDED", at("12:00")],
    )
    assert spending.so_far(ran, running=0) == pytest.approx(2 * 2 * 4.0)


def test_what_waits_again_costs_nothing_meanwhile():
    resumed = state(
        ["RUNNING", at("10:00")],
        ["FAILED", at("11:00")],
        ["SUBMITTED", at("15:00")],
        ["RUNNING", at("16:00")],
        ["SUCCEEDED", at("17:00")],
    )
    assert spending.machine_hours(resumed, running=0) == pytest.approx(2 * 2)


def test_a_lost_job_counts_until_its_last_sign_of_life():
    lost = state(["RUNNING", at("10:00")], synced_until=at("10:45"))
    assert spending.machine_hours(replace(lost, state="LOST"), running=0) == 2 * 0.75


def test_a_machine_that_was_kept_goes_on_costing():
    kept = state(["RUNNING", at("10:00")], ["SUCCEEDED", at("11:00")])
    kept = replace(kept, job=replace(SUMMARY, kept=True))
    assert spending.machine_hours(kept, running=0) == 2
    assert spending.machine_hours(kept, running=1) > 3


def test_machines_that_could_not_delete_themselves_cost_until_they_are_gone(monkeypatch):
    monkeypatch.setattr(job, "now", lambda: at("15:00"))
    over = state(["RUNNING", at("10:00")], ["SUCCEEDED", at("11:00")])
    left = replace(over, undeleted={"a-0": at("13:00"), "a-1": at("13:30")})
    assert spending.machine_hours(left, running=2) == 2 + 2 * 4
    assert spending.machine_hours(left, running=0) == 2 + 2 + 2.5, "until their last sign of life"
    forged = replace(over, undeleted={"a-0": "2099-01-01T00:00:00Z"})
    assert spending.machine_hours(forged, running=0) == 2 + 4, "no longer than until now"
    lost = replace(state(["RUNNING", at("10:00")]), state="LOST")
    assert spending.machine_hours(lost, running=1) == 2 * 5, "counted once"


def test_unknown_is_unknown_and_never_zero():
    ran = state(["RUNNING", at("10:00")], ["SUCCEEDED", at("11:00")])
    of_cluster = replace(SUMMARY, group=job.Group(cluster="us-central1-a/train"))
    in_pod = replace(ran, zone="gke-train-x", job=of_cluster)
    assert spending.so_far(in_pod, False) == spending.so_far(ran, False), "its zone is its node"
    elsewhere = replace(ran, zone="europe-west4-a")
    nowhere = replace(ran, job=replace(SUMMARY, rates={}))
    assert spending.so_far(elsewhere, False) is spending.so_far(nowhere, False) is None
    (found,) = spending.weeks([(ran, False), (elsewhere, False), (nowhere, False)])
    assert (found.begins, found.user, found.jobs, found.unknown) == ("2026-11-16", "ada", 3, 2)
    assert found.usd == pytest.approx(8.0) and found.hours == pytest.approx(6)


def test_a_state_with_a_price_below_zero_is_damaged():
    odd = state(["SUCCEEDED", at("10:00")], job=replace(SUMMARY, rates={"us-central1": -1.0}))
    with pytest.raises(ValueError, match="below zero"):
        job.state_from_json(odd.to_json())


@pytest.mark.parametrize("moment", ["", "yesterday", "0001-01-01T00:00:00+14:00"])
def test_odd_moments_are_of_no_week(moment):
    assert spending.week_of(moment) == ""


@pytest.mark.parametrize("moment", ["", "yesterday", "2026-11-18T10:00:00"])
def test_odd_moments_count_nothing(moment):
    assert spending.machine_hours(state(["RUNNING", moment], ["FAILED", at("11:00")]), False) == 0


@pytest.mark.slow
def test_a_job_costs_something_in_lists_and_sums(berg):
    ran = berg("run", "-t", "t4", "-n", "paid", "--wait", "sleep 1")
    assert ran.returncode == 0, ran.stderr
    wait_for(lambda: not berg.machines(), 30, "the machine's end")  # until then it costs
    rate = 0.35 + 8 * 0.031611 + 30 * 0.004237 + 200 * 0.1 / 730
    (row,) = json.loads(berg("list", "--json").stdout)
    assert row["rates"]["us-central1"] == pytest.approx(rate) and 0 < row["usd"] < rate / 60
    assert "$0.00" in berg("list").stdout
    found = json.loads(berg("costs", "--json").stdout)
    (week,) = found["weeks"]
    assert week["jobs"] == 1 and week["usd"] == pytest.approx(row["usd"]) and not week["unknown"]
    shown = berg("costs").stdout
    assert "WEEK OF" in shown and " 1 " in shown
    assert berg("run", "-g", "0", "-n", "later", "sleep 99").returncode == 0
    of_limit = [json.loads(berg("list", "--json", "--limit", n).stdout) for n in "012"]
    assert [[each["name"] for each in rows] for rows in of_limit] == [
        [],
        ["later"],
        ["later", "paid"],
    ]
    assert berg("kill", "later", "--now").returncode == 0


def test_what_is_stopped_costs_its_disk_and_what_waits_nothing(berg, cloud):
    assert berg("prices").returncode == 0
    machine = spending.Machine(
        "m", "us-central1-a", "RUNNING", gpus="1 x t4", machine_type="n1-standard-8", disk_gb=730
    )
    config = cloud.settings()

    def rate(status: str) -> float | None:
        return spending.machine_rate(config, replace(machine, status=status))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERG_HOME", str(berg.home))
        assert rate("TERMINATED") == pytest.approx(0.1) and rate("PENDING") == 0
        assert rate("RUNNING") == pytest.approx(0.1 + 0.35 + 8 * 0.031611 + 30 * 0.004237)
        for reserved in ("RESERVATION_BOUND", "SPECIFIC_RESERVATION"):
            machine = replace(machine, model=reserved)
            assert rate("RUNNING") is None and rate("TERMINATED") == pytest.approx(0.1)


def test_gpus_are_compared_by_price(berg):
    rows = json.loads(berg("prices", "--json").stdout)
    assert next(each["type"] for each in rows if each["usd_per_hour"]) in ("t4", "l4")
    (one, *more) = json.loads(berg("prices", "-t", "a100", "--json").stdout)
    assert one["machine_type"].startswith("a2-highgpu-") and len(more) == 4
    shown = berg("prices", "-t", "a100")
    assert "$3.67 $1.93 $2.02" in " ".join(shown.stdout.split())
    assert "List prices in us-central1" in shown.stderr
    assert "unknown GPU type" in berg("prices", "-t", "x9").stderr
