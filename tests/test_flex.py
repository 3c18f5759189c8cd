"""Flex-start: Google's queue holds a job's machine while nobody waits here."""

import json
import time

import pytest
from conftest import wait_for

FLEX = ("run", "-t", "l4", "--flex")
ZONE = "us-central1-a"


@pytest.fixture
def full(cloud):
    """No zone has room; the queue moves once this is called."""
    cloud.call("POST", "/_berg/stockout", {})
    return lambda: cloud.call("POST", "/_berg/stockout", {"on": False})


def listed(berg) -> dict:
    (row,) = json.loads(berg("list", "--json").stdout)
    return row


def test_the_request_says_that_google_waits(berg):
    shown = berg(*FLEX, "--max-hours", "4", "--dry-run", "true")
    assert shown.returncode == 0, shown.stderr
    body = json.loads(shown.stdout)
    assert body["scheduling"] == {
        "maxRunDuration": {"seconds": "14400"},
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
        "provisioningModel": "FLEX_START",
        "onHostMaintenance": "TERMINATE",
    }
    assert body["params"] == {"requestValidForDuration": {"seconds": "7200"}}
    assert body["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert ", flex-start, 200 GB disk" in shown.stderr
    assert "Price     $0.58 an hour by flex-start, $1.03 an hour on demand" in shown.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--spot",), "leave out --spot"),
        (("--wait-for-capacity",), "leave out --wait-for-capacity"),
        (("-m", "2"), "--flex is for jobs on one machine"),
        (("--max-hours", "169"), "168 hours at most"),
        (("-t", "t4"), "not for n1-standard-8 with 1 x t4"),
        (("-g", "0"), "not for n1-standard-8"),
        (("--tpu", "v6e-4x4"), "a slice has 4"),
        (("--grid", "x=1,2"), "--flex is not for sweeps"),
    ],
)
def test_what_flex_start_cannot_be_is_refused_at_once(berg, options, says):
    refused = berg("run", "--flex", *options, "echo {x}" if "--grid" in options else "true")
    assert refused.returncode == 1 and says in refused.stderr
    assert not berg.machines()


def test_with_room_it_runs_at_once(berg):
    done = berg(*FLEX, "-n", "soon", "--wait", "true")
    assert done.returncode == 0, done.stderr
    assert "queue" not in done.stderr


def test_a_machine_comes_out_of_the_queue_without_the_laptop(berg, full):
    submitted = berg(*FLEX, "-n", "later", "echo made > $BERG_RESULTS_DIR/out")
    assert submitted.returncode == 0, submitted.stderr
    assert f"later is in Google's queue for {ZONE} since" in submitted.stderr
    row = listed(berg)
    assert (row["state"], row["zone"], row["machine_status"]) == ("SUBMITTED", ZONE, "PENDING")
    assert row["reason"].startswith("in Google's queue") and ", until 20" in row["reason"]
    assert row["usd"] == 0
    now = json.loads(berg("costs", "--json").stdout)["now"]
    assert [each["usd_per_hour"] for each in now] == [0]
    full()
    wait_for(lambda: berg.state("later")["state"] == "SUCCEEDED", 60)
    assert berg.objects("berg_results/later/")["berg_results/later/out"] == b"made\n"
    wait_for(lambda: not berg.machines(), 60)


def test_a_wait_that_runs_out_is_a_failure_in_google_s_words(berg, cloud, full, monkeypatch):
    cloud.call("POST", "/_berg/settings", {"hurry": 3600})  # two seconds
    assert berg(*FLEX, "-n", "never", "true").returncode == 0
    wait_for(lambda: not berg.machines(), 30)
    stored = berg.state("never")
    assert stored["state"] == "SUBMITTED" and stored["reason"].startswith("in Google's queue")
    from berg.laptop import jobs

    monkeypatch.setattr(jobs, "LOST_AFTER", -2)  # clocks have seconds
    found = jobs.find(cloud.settings(berg.bucket_name), "never")
    state = found.state
    assert state.state == "FAILED"
    assert "no room in time: The zone" in state.reason and "enough resources" in state.reason
    assert (
        cloud.call("GET", f"/compute/v1/projects/berg-local/zones/{ZONE}/disks").get("items", [])
        == []
    )


def test_who_is_killed_in_the_queue_gives_up_the_place(berg, full):
    assert berg(*FLEX, "-n", "bored", "true").returncode == 0
    killed = berg("kill", "bored")
    assert killed.returncode == 0, killed.stderr
    assert berg.state("bored")["state"] == "KILLED" and not berg.machines()
    full()
    time.sleep(0.5)
    assert not berg.machines()
