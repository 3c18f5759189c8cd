"""Flex-start: Google's queue holds a job's machine while nobody waits here."""

import json
import time

import pytest
from click.testing import CliRunner
from conftest import wait_for

from berg import cli
from berg.google import groups as groups_of_google
from berg.laptop import ending

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
    shown = berg(*FLEX, "--max-hours", "4", "--dry-run", "--json", "true")
    assert shown.returncode == 0, shown.stderr
    body = json.loads(shown.stdout)["request"]
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


def test_a_g4_can_be_had_by_flex_start(berg, cloud):
    ran = berg("run", "-t", "rtx-pro-6000", "--flex", "--max-hours", "1", "-n", "g4", "sleep 600")
    assert ran.returncode == 0, ran.stderr
    wait_for(lambda: "g4" in cloud.instances(), what="the machine")
    assert cloud.instances()["g4"]["scheduling"]["provisioningModel"] == "FLEX_START"
    assert berg("kill", "--now", "g4").returncode == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--spot",), "leave out --spot"),
        (("--wait-for-capacity",), "leave out --wait-for-capacity"),
        (("--max-hours", "169"), "168 hours at most"),
        (("-t", "t4"), "not for n1-standard-8 with 1 x t4"),
        (("-g", "0"), "not for n1-standard-8"),
        (("--tpu", "v6e-1", "--queue-timeout", "1000h"), "give up to 30d"),
        (("-g", "1", "--queue", "team"), "--queue needs --cluster"),
        (("--grid", "x=1,2"), "--flex is not for sweeps"),
    ],
)
def test_what_flex_start_cannot_be_is_refused_at_once(berg, options, says):
    refused = berg("run", "--flex", *options, "echo {x}" if "--grid" in options else "true")
    assert refused.returncode == 1 and says in refused.stderr
    assert not berg.machines()


@pytest.mark.slow
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
    assert [each["usd_per_hour"] for each in now if each["name"] == "later"] == [0]
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
    disks = cloud.call("GET", f"/compute/v1/projects/berg-local/zones/{ZONE}/disks")
    assert "never" not in [each["name"] for each in disks.get("items", [])]
    # A command that may not ask why there is no machine goes on without knowing it.
    cloud.fault("compute.zoneOperations.list", status=403, reason="forbidden", times=None)
    monkeypatch.setattr(ending, "SETTLED", -1)
    monkeypatch.setenv("BERG_HOME", str(berg.home))
    for command in ("list", "show never", "reap --json", "kill never"):
        ran = CliRunner().invoke(cli.cli, command.split())
        assert ran.exit_code == 0 and "never" in ran.output, (command, ran.output, ran.exception)


def test_who_is_killed_in_the_queue_gives_up_the_place(berg, full):
    assert berg(*FLEX, "-n", "bored", "true").returncode == 0
    killed = berg("kill", "bored")
    assert killed.returncode == 0, killed.stderr
    assert berg.state("bored")["state"] == "KILLED" and not berg.machines()
    full()
    time.sleep(0.5)
    assert not berg.machines()


TWO = ("run", "-t", "l4", "-m", "2", "--flex", "--max-hours", "4")
REGION = "/compute/v1/projects/berg-local/regions/us-central1/instanceGroupManagers"
EACH = "echo $BERG_NODE_RANK > $BERG_RESULTS_DIR/$BERG_NODE_RANK"


def regional(cloud) -> list[str]:
    return [each["name"] for each in cloud.call("GET", REGION).get("items", [])]


def test_several_machines_are_asked_for_by_one_resize_request(berg):
    shown = berg(*TWO, "-n", "pair", "--dry-run", "--json", "true")
    assert shown.returncode == 0, shown.stderr
    made = json.loads(shown.stdout)["request"]
    properties, group = made["template"]["properties"], made["group"]
    assert properties["scheduling"]["provisioningModel"] == "FLEX_START"
    assert properties["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert "params" not in properties
    assert (group["name"], group["targetSize"]) == ("pair", 0)
    # What a group sets for all is not applied to the machines of a resize request.
    assert "allInstancesConfig" not in group and properties["labels"]["berg-job"] == "pair"
    told = {each["key"]: each["value"] for each in properties["metadata"]["items"]}
    assert told["berg-job"] == "pair" and len(told["berg-job-sha256"]) == 64
    assert group["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
    assert group["distributionPolicy"]["targetShape"] == "ANY_SINGLE_ZONE"
    assert made["request"] == {
        "name": "pair",
        "requestedRunDuration": {"seconds": "14400"},
        "instances": [{"name": "pair-0"}, {"name": "pair-1"}],
    }
    assert "none: the loss of a machine ends it" in shown.stderr
    assert "2 machines, each " in shown.stderr and ", flex-start, 200 GB" in shown.stderr


def test_one_machine_that_may_wait_longer_is_asked_for_so_too(berg):
    shown = berg(*FLEX, "-n", "patient", "--queue-timeout", "48h", "--dry-run", "--json", "true")
    assert shown.returncode == 0, shown.stderr
    made = json.loads(shown.stdout)["request"]
    assert made["request"]["instances"] == [{"name": "patient"}]
    assert made["group"]["targetSize"] == 0
    assert made["group"]["distributionPolicy"]["targetShape"] == "ANY_SINGLE_ZONE"
    assert made["group"]["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}


TPU = ("run", "--tpu", "v6e-1", "--zone", ZONE, "--flex", "--max-hours", "4")


def test_one_machine_with_tpus_that_may_wait_longer_is_asked_for_in_bulk(berg):
    shown = berg(*TPU, "-n", "chip", "--queue-timeout", "5h", "--dry-run", "--json", "true")
    assert shown.returncode == 0, shown.stderr
    made = json.loads(shown.stdout)["request"]
    assert "request" not in made, "resize requests take no TPUs"
    assert made["group"]["targetSizePolicy"] == {"mode": "BULK"}
    assert made["group"]["distributionPolicy"]["targetShape"] == "ANY_SINGLE_ZONE"
    assert made["group"]["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
    assert made["members"] == {"instances": [{"name": "chip"}]}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [(*FLEX, "--zone", ZONE), TPU], ids=["gpu", "tpu"])
def test_one_machine_waits_longer_than_two_hours_without_the_laptop(berg, cloud, full, asked):
    cloud.call("POST", "/_berg/settings", {"hurry": 3600})  # two hours are two seconds
    submitted = berg(*asked, "-n", "patient", "--queue-timeout", "48h", "true")
    assert submitted.returncode == 0, submitted.stderr
    time.sleep(3)
    row = listed(berg)
    assert row["state"] == "SUBMITTED" and ", until 20" in row["reason"]
    full()
    wait_for(lambda: berg.state("patient")["state"] == "SUCCEEDED", 90)
    assert berg.state("patient")["restarts"] == 0
    wait_for(lambda: not berg.machines() and not regional(cloud), 60)


def test_one_machine_with_tpus_that_is_killed_in_the_queue_leaves_nothing(berg, cloud, full):
    assert berg(*TPU, "--queue-timeout", "5h", "-n", "bored-chip", "true").returncode == 0
    assert regional(cloud) == ["bored-chip"]
    killed = berg("kill", "bored-chip")
    assert killed.returncode == 0, killed.stderr
    assert berg.state("bored-chip")["state"] == "KILLED"
    full()
    time.sleep(0.5)
    assert not regional(cloud) and not berg.machines()


@pytest.mark.parametrize("asked", [TWO, (*TPU, "--queue-timeout", "5h")], ids=["gpus", "tpu"])
def test_a_request_that_google_refuses_leaves_nothing(berg, cloud, asked):
    error = {"code": "INVALID_USAGE", "message": "Not this one."}
    cloud.fault("compute.instances.insert", operation_error=error)
    refused = berg(*asked, "-n", "refused", "true")
    assert refused.returncode == 1 and "Not this one." in refused.stderr
    assert not regional(cloud) and not berg.machines()
    assert not berg.objects(".berg/jobs/refused")


@pytest.mark.slow
def test_several_machines_come_out_of_the_queue_without_the_laptop(berg, cloud, full):
    submitted = berg(*TWO, "-n", "pair", "--each", EACH)
    assert submitted.returncode == 0, submitted.stderr
    assert "pair is in Google's queue for us-central1-a, " in submitted.stderr
    row = listed(berg)
    assert (row["state"], row["zone"], row["usd"]) == ("SUBMITTED", "", 0)
    assert row["reason"].startswith("in Google's queue for us-central1-a, ")
    assert row["reason"].endswith("until there is room, or: berg kill pair")
    assert regional(cloud) == ["pair"] and not berg.machines()
    full()
    wait_for(lambda: berg.state("pair")["state"] == "SUCCEEDED", 90)
    assert {"berg_results/pair/0", "berg_results/pair/1"} <= berg.objects("berg_results/").keys()
    wait_for(lambda: not berg.machines() and not regional(cloud), 60)


def test_several_machines_that_are_killed_in_the_queue_leave_nothing(berg, cloud, full):
    assert berg(*TWO, "-n", "bored-two", "true").returncode == 0
    assert regional(cloud) == ["bored-two"]
    killed = berg("kill", "bored-two")
    assert killed.returncode == 0, killed.stderr
    assert berg.state("bored-two")["state"] == "KILLED"
    full()
    time.sleep(0.5)
    assert not regional(cloud) and not berg.machines()


@pytest.mark.slow
def test_a_request_that_fails_in_the_queue_is_a_failure_in_google_s_words(
    berg, cloud, full, monkeypatch
):
    assert berg(*TWO, "-n", "given-up", "true").returncode == 0
    error = {"code": "INVALID_USAGE", "message": "Not any more."}
    cloud.fault("compute.instances.insert", operation_error=error)
    wait_for(lambda: not cloud.call("GET", f"{REGION}/given-up")["targetSize"], 30)
    from berg.laptop import jobs

    monkeypatch.setattr(jobs, "LOST_AFTER", -2)  # clocks have seconds
    state = jobs.find(cloud.settings(berg.bucket_name), "given-up").state
    assert (state.state, state.reason) == (
        "FAILED",
        "Google gave up the request: Not any more.",
    )
    assert not berg.machines()
    full()
    monkeypatch.setenv("BERG_HOME", str(berg.home))
    monkeypatch.chdir(berg.repo)
    resumed = CliRunner().invoke(cli.cli, ["run", "--resume", "given-up", "-y"])
    assert resumed.exit_code == 0, (resumed.output, resumed.exception)
    wait_for(lambda: berg.state("given-up")["state"] == "SUCCEEDED", 90)
    wait_for(lambda: not regional(cloud), 60)


SLICE = ("run", "--tpu", "v5p-2x2x2", "--flex", "--zone", ZONE, "--max-hours", "4")
GROUPS = f"/compute/v1/projects/berg-local/zones/{ZONE}/instanceGroupManagers"


def groups(cloud) -> list[str]:
    return [each["name"] for each in cloud.call("GET", GROUPS).get("items", [])]


def test_a_slice_is_asked_for_by_flex_start_in_bulk(berg):
    shown = berg(*SLICE, "--dry-run", "--json", "true")
    assert shown.returncode == 0, shown.stderr
    made = json.loads(shown.stdout)["request"]
    properties = made["template"]["properties"]
    assert properties["scheduling"]["provisioningModel"] == "FLEX_START"
    assert properties["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
    assert "params" not in properties
    assert made["group"]["targetSizePolicy"] == {"mode": "BULK"}
    assert made["group"]["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}


@pytest.mark.slow
def test_a_slice_comes_out_of_the_queue_without_the_laptop(berg, cloud, full):
    submitted = berg(*SLICE, "-n", "chips", EACH)
    assert submitted.returncode == 0, submitted.stderr
    assert f"chips is in Google's queue for {ZONE} since" in submitted.stderr
    row = listed(berg)
    assert (row["state"], row["zone"]) == ("SUBMITTED", ZONE) and not berg.machines()
    assert row["reason"].endswith("until there is room, or: berg kill chips")
    full()
    wait_for(lambda: berg.state("chips")["state"] == "SUCCEEDED", 90)
    assert {"berg_results/chips/0", "berg_results/chips/1"} <= berg.objects("berg_results/").keys()
    wait_for(lambda: not berg.machines() and not groups(cloud), 60)


@pytest.mark.slow
def test_a_slice_that_is_killed_in_the_queue_leaves_nothing(berg, cloud, full):
    assert berg(*SLICE, "-n", "gone", "true").returncode == 0
    assert groups(cloud) == ["gone"]
    killed = berg("kill", "gone")
    assert killed.returncode == 0, killed.stderr
    assert berg.state("gone")["state"] == "KILLED"
    assert not groups(cloud) and not berg.machines()


@pytest.mark.slow
@pytest.mark.parametrize("which", [SLICE, TWO, TPU], ids=["a slice", "several", "one with TPUs"])
def test_what_comes_too_late_gives_itself_up(berg, cloud, full, monkeypatch, which):
    late = berg.start(*which, "-n", "late", "--queue-timeout", "1h", "true", queue_timeout=1)
    assert late.wait(60) == 0, late.stderr.read()
    time.sleep(2.1)  # clocks have seconds
    from berg.laptop import jobs

    monkeypatch.setattr(jobs, "LOST_AFTER", -400)
    seen = jobs.find(cloud.settings(berg.bucket_name), "late").state
    assert seen.state == "LOST" and "within --queue-timeout" in seen.reason
    full()
    wait_for(lambda: berg.state("late")["state"] == "FAILED", 90)
    wait_for(lambda: not (berg.machines() or groups(cloud) or regional(cloud)), 60)


def test_what_no_waiting_mends_leaves_no_slice(berg, cloud):
    error = {"code": "INVALID_USAGE", "message": "Not this one."}
    cloud.fault("compute.instances.insert", operation_error=error)
    refused = berg(*SLICE, "-n", "never", "true")
    assert refused.returncode == 1 and "Not this one." in refused.stderr
    assert not groups(cloud) and not berg.machines()


def test_the_templates_of_requests_that_are_over_go_with_the_next_one(berg, cloud, monkeypatch):
    """A job by resize request has a template of its own, which the machines may not delete."""

    def templates() -> list[str]:
        path = "/compute/v1/projects/berg-local/global/instanceTemplates"
        mine = f"for berg's jobs in gs://{berg.bucket_name}"
        listed = cloud.call("GET", path).get("items", [])
        return [each["name"] for each in listed if each.get("description") == mine]

    cloud.call("POST", "/_berg/stockout", {})
    assert berg(*TWO, "-n", "first-two", "true").returncode == 0
    (first,) = templates()
    group = groups_of_google.path_of("us-central1", "first-two")
    cloud.call("DELETE", f"/compute/v1/projects/berg-local{group}")  # as the worker does
    monkeypatch.setattr(groups_of_google, "YOUNG", -2)  # clocks have seconds
    settings = cloud.settings(berg.bucket_name)
    assert berg(*TWO, "-n", "next-two", "true").returncode == 0
    assert first in templates(), "the command line has its own clock"
    groups_of_google.delete_old_templates(settings)
    (left,) = templates()
    assert left != first, "that of a request in the queue stays"
    assert berg("kill", "next-two").returncode == 0
    assert templates() == [], "who kills a job deletes its template"
