"""Devboxes that stop and start: the machine goes off, and its disk stays."""

import json
import signal
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import wait_for
from test_ssh import needs_sshd

from berg import BergError, config, states
from berg.commands import tables
from berg.google import instances
from berg.google.shapes import Shape
from berg.job import STOPPED, Job, Machine, State, Summary, now
from berg.laptop import ending, jobs, launch, power, spending
from berg.laptop.jobs import Entry
from berg.machine import outcome, watchdogs
from berg.machine.outcome import WHEN_STARTED, Ending, Uploads, decide, restart_after
from berg.spec import JobSpec
from localcloud.compute import power as embedded
from localcloud.errors import ApiError

SINCE = "2026-11-01T10:00:00Z"
BOX = Summary(kind="devbox", max_run_seconds=3600)
OFF = State(STOPPED, history=[["RUNNING", SINCE], [STOPPED, SINCE]], job=BOX)


def box(state: State = OFF, status: str = "TERMINATED", **machine) -> Entry:
    return Entry("box", state, [Machine("box", "us-central1-a", status, **machine)])


@needs_sshd
def test_a_box_stops_and_starts_with_its_disk(berg, monkeypatch):
    monkeypatch.setenv("HOME", str(berg.home))
    made = berg("devbox", "-g", "0", "-n", "box")
    assert made.returncode == 0 and "Stop it: berg stop box" in made.stderr, made.stderr
    folder = "/root/berg_results/box"
    written = berg("ssh", "box", "--", f"echo kept > /opt/file; echo late > {folder}/late")
    assert written.returncode == 0, written.stderr

    stopped = berg("stop", "box")
    assert stopped.returncode == 0 and "Its disk of 200 GB costs" in stopped.stderr, stopped.stderr
    machine = berg.machines()["box"]
    assert machine["status"] == "TERMINATED"
    assert "natIP" not in machine["networkInterfaces"][0]["accessConfigs"][0]
    assert berg.objects("berg_results/box/late") == {"berg_results/box/late": b"late\n"}
    state = berg.state("box")
    assert (state["state"], state["reason"]) == (STOPPED, "stopped by tester")
    assert state["finished_at"] == ""
    shown = berg("list").stdout
    assert "STOPPED" in shown and "off since " in shown and "its disk: 200 GB" in shown
    assert berg("stop", "box").stderr == "box is stopped already; start it: berg start box\n"
    refused = berg("ssh", "box", "--", "true")
    assert (refused.returncode, refused.stderr) == (
        1,
        "berg: box is stopped. Start it: berg start box\n",
    )
    assert "Nothing was left behind" in berg("reap").stderr

    error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "The zone has no resources."}
    berg.cloud.fault("compute.instances.start", operation_error=error)
    full = berg("start", "box")
    assert full.returncode == 1 and "The zone has no resources." in full.stderr
    assert "Its disk is unchanged" in full.stderr

    assert berg("start", "box").returncode == 0
    read = berg("ssh", "box", "--", f"cat /opt/file {folder}/late")
    assert (read.returncode, read.stdout) == (0, "kept\nlate\n"), read.stderr
    wait_for(lambda: berg.state("box")["state"] == "RUNNING")
    assert berg.state("box")["attempt"] == 2
    assert berg.state("box")["restarts"] == 0
    assert "already. Log in: berg ssh box" in berg("start", "box").stderr

    # At once, and then for good; each wait is named.
    ended = berg("stop", "--now", "box", TESTS_SOON="0")
    assert ended.returncode == 0 and "Waiting for box to go off (Ctrl-C" in ended.stderr
    assert berg.state("box")["state"] == STOPPED
    started = berg("start", "box", TESTS_SOON="0").stderr
    assert "Turning box on in us-central1-a\n" in started and "box boots in us-cen" in started
    killed = berg("kill", "box", TESTS_SOON="0")
    assert killed.returncode == 0 and "until Google has deleted its machines" in killed.stderr
    assert "box" not in berg.machines() and berg.state("box")["state"] == "KILLED"
    assert berg("start", "box").returncode == 1


@pytest.mark.slow
def test_an_idle_box_stops_by_itself(berg):
    assert berg("devbox", "-g", "0", "-n", "lazy", "--idle-hours", "0.001").returncode == 0
    wait_for(lambda: berg.machines()["lazy"]["status"] == "TERMINATED", 60)
    state = berg.state("lazy")
    assert (state["state"], state["reason"]) == (STOPPED, "idle for 4s")
    assert "is stopped, and its disk is kept" in berg.log("lazy")
    assert berg("kill", "lazy").returncode == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("devbox", "gce", 1, "n1-standard-8", "STANDARD"), ""),
        (("devbox", "gce", 1, "a2-highgpu-1g", "SPOT"), ""),
        (("job", "gce", 1, "n1-standard-8", "STANDARD"), "it is not a devbox"),
        (("devbox", "tpu", 1, "", "STANDARD"), "Google cannot stop pods and TPU slices"),
        (("devbox", "gke", 1, "", "STANDARD"), "Google cannot stop pods and TPU slices"),
        (("devbox", "gce", 2, "n1-standard-8", "STANDARD"), "berg stops devboxes of one machine"),
        (
            ("devbox", "gce", 1, "a3-highgpu-1g", "FLEX_START"),
            "Google does not stop machines of flex-start",
        ),
        (
            ("devbox", "gce", 1, "a2-ultragpu-1g", "STANDARD"),
            "",
        ),
        (
            ("devbox", "gce", 1, "ct6e-standard-1t", "STANDARD"),
            "Google does not document that machines with TPUs can be stopped",
        ),
        (
            ("devbox", "gce", 1, "c3-standard-8-lssd", "STANDARD"),
            "",
        ),
    ],
)
def test_what_google_does_not_stop_is_not_stopped(words, why):
    assert power.why_never(*words) == why


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Entry("box", None, []), "box is not a devbox with a machine"),
        (replace(box(), machines=[]), "box is not a devbox with a machine"),
        (box(State("KILLED", job=OFF.job)), "there is nothing to stop"),
        (
            box(State("RUNNING", job=Summary(kind="job"))),
            "it is not a devbox. End it: berg kill box",
        ),
        (box(status="RUNNING"), "box is being started or stopped"),
    ],
)
def test_what_cannot_be_stopped_is_named(found, why):
    for at_once in (False, True)[: 1 + ("being" not in why)]:
        with pytest.raises(BergError) as error:
            power.check_stop(found, now=at_once)
        assert why in error.value.message


def test_a_box_that_does_not_answer_is_named():
    power.check_answer(box(State("RUNNING"), "RUNNING"), 59)
    power.check_answer(box(State("UPLOADING"), "RUNNING"), 10_000)
    power.check_answer(box(OFF, "STOPPING"), 10_000)
    with pytest.raises(BergError, match="does not answer.*berg stop --now box"):
        power.check_answer(box(State("RUNNING"), "RUNNING"), 61)
    with pytest.raises(BergError, match="box ended meanwhile: it is KILLED, machine RUNNING"):
        power.check_answer(box(State("KILLED"), "RUNNING"), 1)


def test_a_box_that_goes_down_is_waited_for_before_it_starts(monkeypatch):
    said, looks = [], iter([box(status="STOPPING"), box()])
    monkeypatch.setattr(power, "PAUSE", 0)
    monkeypatch.setattr(power, "look_again", lambda config, found: next(looks))
    off = power.wait_while_stopping(None, box(status="STOPPING"), said.append)
    assert off.machine.status == "TERMINATED" and "still stopping" in said[0]
    assert power.wait_while_stopping(None, box(), said.append) == box() and len(said) == 1

    monkeypatch.setattr(power, "DOWN", -1)
    with pytest.raises(BergError, match="box is still stopping. Try again: berg start box"):
        power.wait_while_stopping(None, box(status="STOPPING"), said.append)


def test_a_box_that_does_not_go_off_is_turned_off_once_a_minute(monkeypatch):
    clock, asked = [0.0], []
    monkeypatch.setattr(power.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(power.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + 1))
    monkeypatch.setattr(power.instances, "stop", lambda config, machine: asked.append(clock[0]))
    off = lambda: box(OFF, "TERMINATED" if clock[0] > 150 else "RUNNING")
    monkeypatch.setattr(power, "look_again", lambda config, found: off())
    assert power.wait_until_off(None, off()).machine.status == "TERMINATED"
    assert asked == [62, 123]


@pytest.mark.parametrize("old", ["RUNNING", "UPLOADING", STOPPED, "FAILED"])
def test_the_end_of_a_box_without_a_worker_is_written(bucket, cloud, old):
    name = f"box-{old.lower()}"
    settings = replace(cloud.settings(bucket.name), user="ada")
    states.claim(bucket, name, State(old, reason="before", job=OFF.job))
    stored = states.read(bucket, name)
    power.write_stopped(settings, replace(box(stored.state), name=name, stored=stored))
    after = states.read(bucket, name).state
    if old in ("RUNNING", "UPLOADING"):
        assert (after.state, after.reason) == (STOPPED, "stopped by ada, at once")
    else:
        assert (after.state, after.reason) == (old, "before")


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        ({}, True),
        ({"idle": "delete"}, False),
        ({"spot": True}, True),
        ({"spot": True, "idle": "delete"}, False),
        ({"spot": True, "idle": "stop"}, True),
        ({"cmd": "true"}, False),
    ],
)
def test_an_idle_box_stops_where_that_keeps_something(options, stops):
    choice = SimpleNamespace(shape=Shape("n1-standard-8", 0, ""), hosts=1)
    assert launch.stops_when_idle(JobSpec(**{"cmd": None, **options}), "gce", choice) == stops


def test_a_stop_that_is_not_possible_is_refused_before_anything_is_made():
    choice = SimpleNamespace(shape=Shape("n1-standard-8", 0, ""), hosts=2)
    assert not launch.stops_when_idle(JobSpec(cmd=None), "gce", choice)
    with pytest.raises(BergError, match="--idle stop is not possible: berg stops devboxes of one"):
        launch.stops_when_idle(JobSpec(cmd=None, idle="stop"), "gce", choice)


def test_a_request_counts_for_the_attempt_that_it_was_made_of():
    attempt = SimpleNamespace(name="box", state=State(attempt=2))
    for asked, who in (("ada 2", "ada"), ("ada 1", ""), ("ada 22", ""), ("", ""), ("ada", "")):
        assert watchdogs.who_stops(attempt, {"attributes": {"berg-stop-box": asked}}) == who
    assert watchdogs.who_stops(attempt, {"attributes": {"berg-stop-other": "ada 2"}}) == ""


def test_a_stop_is_no_end_and_no_restart():
    box = Job("box", "", "box", "", "", "", "", kind="devbox")
    asked = Ending(STOPPED, "stopped by ada")
    assert restart_after(asked, box, "", restarts=9) is WHEN_STARTED
    before = State("UPLOADING", attempt=3, restarts=2, ending=STOPPED, exit_code=1)
    after = decide(before, asked, Uploads(lost="1 file"), WHEN_STARTED, SINCE)
    assert (after.state, after.reason, after.finished_at) == (STOPPED, "stopped by ada", "")
    # The next attempt counts one more, as after each other end of a machine.
    assert (after.restarts, after.ending, after.exit_code) == (1, "", None)
    assert after.lost == "1 file"


def test_a_box_that_is_off_is_not_lost_unless_its_machine_is_gone():
    machine = Machine("box", "us-central1-a", "TERMINATED")

    def seen(*machines: Machine) -> str:
        return jobs.conclude(OFF, 1e6, [*machines], lambda: False, lambda _: "").state

    assert seen(machine) == STOPPED
    assert seen(replace(machine, status="RUNNING")) == STOPPED
    assert seen() == "LOST"
    assert box().status == STOPPED and box(status="STOPPING").status == STOPPED
    assert box(status="RUNNING").status == "STOPPED, machine RUNNING"


@pytest.mark.parametrize(
    ("days", "limit", "why"),
    [
        (13.9, 14, ""),
        (14.1, 14, f"it is stopped since {SINCE} (max_stopped_days)"),
        (1e4, 0, ""),
    ],
)
def test_a_box_that_is_off_for_long_is_offered_for_deletion(days, limit, why):
    seen = ending.Seen([box()], [], lambda _: days * 86400, limit * 86400)
    assert ending.why_left(seen, box()) == why


def test_a_box_that_is_off_costs_nothing_more():
    rates = replace(OFF, zone="us-central1-a", job=Summary(rates={"us-central1": 5.0}))
    assert spending.machine_hours(rates, running=1) == 0


def test_a_price_that_is_not_known_is_said(monkeypatch):
    monkeypatch.setattr(power.prices, "latest", lambda *_: {})
    said = []
    for hourly in (None, 0.0125):
        monkeypatch.setattr(power.spending, "machine_rate", lambda *_, hourly=hourly: hourly)
        for days in (0, 14):
            settings = config.Config(max_stopped_days=days)
            said.append(power.cost_of(settings, Machine("box", "us-central1-a", disk_gb=200)))
    unknown = "Its disk of 200 GB costs an unknown amount until it is deleted"
    known = "Its disk of 200 GB costs about $0.30 a day until it is deleted"
    offered = "; berg reap offers to delete it after 14 days"
    assert said == [unknown, unknown + offered, known, known + offered]


@pytest.mark.parametrize(
    ("machine", "model"),
    [
        ({"machine_type": "g2-standard-12"}, "FLEX_START"),
        ({"machine_type": "g2-standard-12", "num_machines": 2}, "STANDARD"),
        ({"machine_type": "g2-standard-12", "place": "gke"}, "STANDARD"),
    ],
)
def test_no_command_that_would_be_refused_is_offered(machine, model):
    box = Job("box", "", "", "box", "", "", "")
    can = tables.devbox_commands(replace(box, machine_type="g2-standard-12"), "SPOT")
    assert can == "Log in:  berg ssh box\nStop it: berg stop box\nEnd it:  berg kill box\n"
    cannot = tables.devbox_commands(replace(box, **machine), model)
    assert cannot == "Log in:  berg ssh box\nEnd it:  berg kill box\n"


def embedded_machine(
    model: str = "STANDARD", disk: str = "PERSISTENT", status: str = "RUNNING"
) -> SimpleNamespace:
    resource = {
        "status": status,
        "scheduling": {"provisioningModel": model},
        "disks": [{"type": disk}],
    }
    return SimpleNamespace(resource=resource, path="projects/p/zones/z/instances/box")


def test_the_embedded_cloud_stops_what_google_does():
    embedded.check_stop(embedded_machine(), {})
    embedded.check_stop(embedded_machine(disk="SCRATCH"), {"discardLocalSsd": "true"})
    with pytest.raises(ApiError, match="FLEX_START"):
        embedded.check_stop(embedded_machine("FLEX_START"), {})
    with pytest.raises(ApiError, match="discardLocalSsd"):
        embedded.check_stop(embedded_machine(disk="SCRATCH"), {})
    embedded.check_start(embedded_machine(status="TERMINATED"))
    with pytest.raises(ApiError, match="is not ready"):
        embedded.check_start(embedded_machine(status="STOPPING"))


def test_both_commands_need_a_name_that_is_one(berg):
    for command in ("stop", "start"):
        assert berg(command).returncode == 2
        unknown = berg(command, "nosuch")
        assert unknown.returncode == 1 and "there is no job or machine 'nosuch'" in unknown.stderr


def test_the_plan_says_what_an_idle_box_does(berg):
    shown = berg("devbox", "-g", "0", "-n", "box", "--dry-run", "--json")
    assert "Idle      stops and keeps its disk after 4h" in shown.stderr
    assert json.loads(shown.stdout)["request"]
    deleted = berg("devbox", "-g", "0", "-n", "box", "--idle", "delete", "--dry-run", "--json")
    assert "Idle      deletes itself after 4h" in deleted.stderr
    assert "Google stops the machine, and its disk stays" in deleted.stderr, "at its limit"
    for options, why in {
        ("-g", "1", "-t", "l4", "--flex"): "Google does not stop machines of flex-start",
        ("--tpu", "v5p-2x2x2"): "Google cannot stop pods and TPU slices",
    }.items():
        lost = berg("devbox", *options, "-n", "brief", "--dry-run", "--json")
        said = " ".join(lost.stderr.split())
        assert f"deleted with the machine, except /root/berg_results: {why}" in said, said


@pytest.mark.slow
@needs_sshd
def test_a_box_without_room_in_its_zone_goes_to_another_with_its_disk(berg):
    assert berg("devbox", "-g", "0", "-n", "nomad").returncode == 0
    assert berg("ssh", "nomad", "--", "echo kept > /root/file").returncode == 0
    assert berg("stop", "nomad").returncode == 0
    old = berg.machines()["nomad"]
    zone = old["zone"].rpartition("/")[2]
    berg.cloud.call("POST", "/_berg/stockout", {})  # nowhere
    refused = berg("start", "nomad")
    assert refused.returncode == 1 and "berg start --move nomad" in refused.stderr
    nowhere = berg("start", "--move", "nomad")
    assert nowhere.returncode == 1 and "Its disk is unchanged" in nowhere.stderr, nowhere.stderr
    assert berg.machines()["nomad"]["id"] == old["id"]
    assert not snapshots(berg), "it is deleted if nothing comes of it, too"

    berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    berg.cloud.call("POST", "/_berg/stockout", {"zone": zone})
    moved = berg("start", "--move", "nomad")
    assert moved.returncode == 0, moved.stderr
    there = berg.machines()["nomad"]
    where = there["zone"].rpartition("/")[2]
    assert where != zone and f"started in {where}" in moved.stderr
    same = ("labels", "machineType", "scheduling", "tags")
    assert [last(there[key]) for key in same] == [last(old[key]) for key in same]
    assert not snapshots(berg)
    plain = ["ssh", "-F", str(berg.home / "ssh/nomad"), "nomad", "hostname"]
    by_name = subprocess.run(plain, capture_output=True, text=True)
    assert by_name.stdout == "nomad\n", f"its entry has the new address: {by_name.stderr}"
    read = berg("ssh", "nomad", "--", "cat /root/file; hostname")
    assert (read.returncode, read.stdout) == (0, "kept\nnomad\n"), read.stderr
    wait_for(lambda: berg.state("nomad")["state"] == "RUNNING")
    assert (berg.state("nomad")["attempt"], berg.state("nomad")["zone"]) == (2, where)

    # and once more, there
    berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    assert berg("stop", "nomad").returncode == 0 and berg("start", "nomad").returncode == 0
    again = berg("ssh", "nomad", "--", "cat /root/file")
    assert (again.returncode, again.stdout) == (0, "kept\n"), again.stderr
    assert berg("kill", "nomad", "--now").returncode == 0 and "nomad" not in berg.machines()


ROUNDS = 10
MOVED_IN = 5  # the round in which its zone has no room


@pytest.mark.slow
@needs_sshd
def test_a_box_keeps_its_files_and_its_host_key_over_ten_rounds(berg, monkeypatch):
    monkeypatch.setenv("HOME", str(berg.home))
    assert berg("devbox", "-g", "0", "-n", "often").returncode == 0
    sums, before = "sha256sum /opt/round-* /root/berg_results/often/round-*", set()
    for number in range(1, ROUNDS + 1):
        made = f"head -c 300000 /dev/urandom | tee /opt/round-{number}"
        line = f"{made} >/root/berg_results/often/round-{number}; {sums}"
        wrote = berg("ssh", "often", "--", line)
        assert wrote.returncode == 0, wrote.stderr
        assert before <= set(wrote.stdout.splitlines()), "what was there before is as it was"
        before = set(wrote.stdout.splitlines())
        assert berg("stop", "often").returncode == 0
        zone = last(berg.machines()["often"]["zone"])
        options = ["--move"] * (number == MOVED_IN)
        if options:
            berg.cloud.call("POST", "/_berg/stockout", {"zone": zone})
        started = berg("start", *options, "often")
        berg.cloud.call("POST", "/_berg/stockout", {"on": False})
        assert started.returncode == 0, started.stderr
        assert (last(berg.machines()["often"]["zone"]) != zone) == bool(options)
        wait_for(lambda: berg.state("often")["state"] == "RUNNING")
        read = berg("ssh", "often", "--", sums)
        assert (read.returncode, read.stdout) == (0, wrote.stdout), read.stderr
        for question in ("authenticity", "IDENTIFICATION HAS CHANGED", "(yes/no"):
            assert question not in read.stderr + wrote.stderr
    assert read.stdout.count("\n") == 2 * ROUNDS
    wait_for(lambda: berg.state("often")["attempt"] == ROUNDS + 1)
    assert berg.state("often")["restarts"] == 0
    assert len(berg.objects("berg_results/often/round-")) == ROUNDS
    assert berg("kill", "often", "--now").returncode == 0


def turn_off(berg, name: str) -> None:
    """Let a box be off whose machine runs nothing."""
    machine = berg.machines()[name]
    path = machine["selfLink"].partition("/compute/")[2]
    berg.cloud.call("POST", f"/compute/{path}/stop")
    wait_for(lambda: berg.machines()[name]["status"] == "TERMINATED")
    stored = states.read(berg.bucket, name)
    off = replace(stored.state, state=STOPPED, started_at=now(), history=[[STOPPED, now()]])
    states.replaced(berg.bucket, stored, off)


def begin(berg, name: str, where: str = "") -> bool:
    """Do what the worker of a box does that is on and runs nothing: write that it runs. Return
    whether it is on.
    """
    on = [zone for zone, status in all_of(berg) if status == "RUNNING" and where in zone]
    if not on:
        return False
    (zone,), stored = on, states.read(berg.bucket, name)
    if stored.state.state != "RUNNING" or stored.state.zone != zone:
        again = stored.state.next_attempt("it was started")
        runs = replace(stored.state, state="RUNNING", machine=name, zone=zone, **again)
        states.replaced(berg.bucket, stored, runs)
    return True


def forget_claim(berg, name: str) -> None:
    """Delete the claim of a computer that died, which would be waited for until it is old."""
    left = berg.bucket.get(f".berg/jobs/{name}_power.json")
    berg.bucket.delete_at(left.name, left.generation)


def started(berg, name: str, *options: str) -> SimpleNamespace:
    """Start a box whose machine runs nothing, with a worker's word that it runs."""
    laptop = berg.start("start", *options, name)
    wait_for(lambda: begin(berg, name), 60)
    out, errors = laptop.communicate()
    return SimpleNamespace(returncode=laptop.returncode, stdout=out, stderr=errors)


def stored_box(state: State, status: str = "RUNNING") -> Entry:
    return replace(box(state, status), stored=states.Stored("box", state, 1))


@pytest.mark.parametrize(
    ("found", "is_slow", "runs"),
    [
        (stored_box(State("RUNNING", attempt=2)), False, True),
        (stored_box(State("RUNNING", attempt=1)), False, False),  # as before the start
        (stored_box(State("RUNNING", attempt=2), "STOPPING"), False, False),
        (stored_box(State("INSTALLING", attempt=2)), False, False),
        (stored_box(State("INSTALLING", attempt=2)), True, True),
        (stored_box(State(STOPPED, attempt=2)), True, False),
    ],
)
def test_a_box_answers_when_a_later_attempt_runs(found, is_slow, runs):
    assert power.runs_again(found, 1, is_slow) == runs


@pytest.mark.parametrize(
    ("found", "waited", "why"),
    [
        (box(State("STARTING"), "RUNNING"), 599, ""),
        (box(OFF, "RUNNING"), 1, ""),  # before its worker begins
        (box(State("LOST"), "RUNNING"), 59, ""),  # the console of the boot before
        (box(State("LOST", reason="no worker"), "RUNNING"), 61, "does not run: no worker"),
        (box(State("KILLED", reason="killed by ada"), "RUNNING"), 1, "does not run: killed by ada"),
        (
            box(replace(OFF, reason="it broke")),
            1,
            "does not run: it broke\nIts disk is kept. Get in",
        ),
        (box(OFF, "RUNNING"), 601, "berg stop --now box && berg start --rescue box"),
    ],
)
def test_a_start_that_fails_says_why_and_how_to_get_in(found, waited, why):
    if not why:
        power.check_start(found, waited)
        return
    with pytest.raises(BergError) as error:
        power.check_start(found, waited)
    assert why in error.value.message and error.value.message.count("--rescue") == 1


@pytest.fixture
def stopped_box(berg):
    """A devbox that is off, whose machine runs nothing; its zone has no room. Returns the zone."""
    berg.cloud.call("POST", "/_berg/settings", {"boot": 0})
    assert berg("devbox", "-g", "0", "-n", "nomad").returncode == 0
    turn_off(berg, "nomad")
    zone = last(berg.machines()["nomad"]["zone"])
    berg.cloud.call("POST", "/_berg/stockout", {"zone": zone})
    return zone


def all_of(berg, zone: str = "") -> list[tuple[str, str]]:
    """Zones and statuses of the machines that there are."""
    path = "/compute/v1/projects/berg-local/aggregated/instances"
    listed = berg.cloud.call("GET", path)["items"].values()
    found = [each for scope in listed for each in scope.get("instances", [])]
    return sorted((last(each["zone"]), each["status"]) for each in found)


def test_a_box_that_is_stopped_before_its_worker_begins_does_not_stop_again(berg):
    """The request would count for the next attempt as well, if that were the first one."""
    berg.cloud.call("POST", "/_berg/settings", {"boot": 0})
    assert berg("devbox", "-g", "0", "-n", "early").returncode == 0
    assert berg("stop", "--now", "early").returncode == 0
    state = states.read(berg.bucket, "early").state
    assert state.state == STOPPED and state.started_at
    told = {item["key"]: item["value"] for item in berg.machines()["early"]["metadata"]["items"]}
    (who, number) = told["berg-stop-early"].split()
    next_one = replace(state, **state.next_attempt("it was stopped"))
    attempt = SimpleNamespace(name="early", state=next_one)
    assert (who, number) == ("tester", "1") and not watchdogs.who_stops(
        attempt, {"attributes": told}
    )

    # A worker that never comes up after a start, as on a disk that is full, keeps no box on.
    laptop = berg.start("start", "early")
    wait_for(lambda: berg.machines()["early"]["status"] == "RUNNING")
    laptop.kill()
    laptop.communicate()
    forget_claim(berg, "early")
    refused = berg("stop", "early")
    assert refused.returncode == 1 and "berg stop --now early" in refused.stderr
    assert berg("stop", "--now", "early").returncode == 0
    assert berg.machines()["early"]["status"] == "TERMINATED"
    assert states.read(berg.bucket, "early").state.state == STOPPED


KILLED_WHILE = {  # what keeps it there, what is there then, and whether there are two machines
    "the disk is copied": (None, "UPLOADING", 1),
    "the machine is created": ("compute.instances.insert", "READY", 1),
    "the old machine is deleted": ("compute.instances.delete", "READY", 2),
    "the snapshot is deleted": ("compute.snapshots.delete", "READY", 1),
}


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=[] if two == 2 else pytest.mark.slow)
        for step, (_, _, two) in KILLED_WHILE.items()
    ],
)
def test_a_move_that_is_killed_is_found_and_goes_on(
    berg, stopped_box, monkeypatch, record_property, step
):
    record_property("fault", ("laptop killed with -9 while it moves a devbox, at each step", "1 5"))
    monkeypatch.setattr(ending, "SETTLED", -1)
    method, status, machines = KILLED_WHILE[step]
    berg.allowed += [503]
    if method:
        berg.cloud.fault(method, status=503, times=None)
    else:
        berg.cloud.call("POST", "/_berg/settings", {"image_delay": 4})
    laptop = berg.start("start", "--move", "nomad")

    def is_there() -> bool:
        faults = berg.cloud.call("GET", "/_berg/faults")["faults"]
        begin(berg, "nomad")
        is_kept = all(each["hits"] for each in faults)
        return is_kept and [each["status"] for each in snapshots(berg)] == [status]

    wait_for(is_there, 30, step)
    laptop.kill()
    laptop.communicate()
    forget_claim(berg, "nomad")
    berg.cloud.call("DELETE", "/_berg/faults")
    berg.cloud.call("POST", "/_berg/settings", {"image_delay": 1})
    (left,) = snapshots(berg)
    assert len(all_of(berg)) == machines

    wait_for(lambda: snapshots(berg)[0]["status"] == "READY")
    settings = berg.cloud.settings(berg.bucket_name)
    found = {(each.kind, each.name, each.where) for each in ending.leftovers(settings, "tester")}
    old = {("machine", "nomad", stopped_box)} if machines == 2 else set()
    assert found == {("snapshot", left["name"], ""), *old}
    listed = berg("list").stdout
    if machines == 2:
        assert f"its old disk in {stopped_box} costs money, too" in listed, listed
    elif step != "the snapshot is deleted":
        assert "its move broke off. Continue: berg start --move nomad" in listed, listed

    again = started(berg, "nomad", "--move")
    assert again.returncode == 0, again.stderr
    is_used = f"Using the snapshot {left['name']} of an earlier attempt" in again.stderr
    assert is_used == (step in ("the disk is copied", "the machine is created")), again.stderr
    ((zone, status),) = all_of(berg)
    assert zone != stopped_box and status == "RUNNING"
    assert not snapshots(berg) and not ending.leftovers(settings, "tester")


def test_what_a_move_that_broke_off_copies_is_waited_for_and_deleted(berg, stopped_box):
    """Google neither starts nor deletes a machine whose disk it copies."""
    leave_a_copy(berg)
    berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    done = started(berg, "nomad")
    assert done.returncode == 0 and "Waiting: Google is still copying the disk" in done.stderr
    assert all_of(berg) == [(stopped_box, "RUNNING")] and not snapshots(berg)
    turn_off(berg, "nomad")
    berg.cloud.call("POST", "/_berg/stockout", {"zone": stopped_box})
    leave_a_copy(berg)
    killed = berg("kill", "nomad")
    assert killed.returncode == 0 and "Waiting: Google is still copying the disk" in killed.stderr
    assert not all_of(berg) and not berg.disks() and not snapshots(berg)


def leave_a_copy(berg) -> None:
    """Break a move off while the disk is copied."""
    berg.cloud.call("POST", "/_berg/settings", {"image_delay": 4})
    laptop = berg.start("start", "--move", "nomad")
    wait_for(lambda: [each["status"] for each in snapshots(berg)] == ["UPLOADING"], 30)
    laptop.kill()
    laptop.communicate()
    forget_claim(berg, "nomad")


def test_a_copy_that_fails_ends_the_move(berg, stopped_box):
    error = {"code": "INTERNAL_ERROR", "message": "Internal error."}
    berg.cloud.fault("compute.disks.createSnapshot", operation_error=error)
    moved = berg("start", "--move", "nomad")
    assert moved.returncode == 1 and "could not be copied: Internal error." in moved.stderr
    assert "Try again: berg start --move nomad" in moved.stderr
    assert all_of(berg) == [(stopped_box, "TERMINATED")] and not snapshots(berg)


def test_a_snapshot_of_what_the_disk_was_is_not_taken(berg, stopped_box):
    """Who started the box meanwhile and worked on it would lose that."""
    berg.cloud.call("POST", "/_berg/stockout", {})  # nowhere: it waits for a machine
    berg.cloud.fault("compute.instances.insert", status=503, times=None)
    berg.allowed += [503]
    laptop = berg.start("start", "--move", "nomad")
    wait_for(lambda: [each["status"] for each in snapshots(berg)] == ["READY"], 30)
    laptop.kill()
    laptop.communicate()
    forget_claim(berg, "nomad")
    (left,) = snapshots(berg)
    berg.cloud.call("DELETE", "/_berg/faults")
    berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    path = berg.machines()["nomad"]["selfLink"].partition("/compute/")[2]
    berg.cloud.call("POST", f"/compute/{path}/start")  # in the console: berg would delete it
    wait_for(lambda: begin(berg, "nomad"))
    turn_off(berg, "nomad")
    berg.cloud.call("POST", "/_berg/stockout", {"zone": stopped_box})
    moved = started(berg, "nomad", "--move")
    assert moved.returncode == 0 and "Copying the disk" in moved.stderr, moved.stderr
    assert left["name"] not in moved.stderr and not snapshots(berg)


def test_a_move_leaves_a_machine_that_was_started_meanwhile(berg, stopped_box):
    """By the console: of berg's commands one waits for the other."""
    mover = move_until_insert(berg)
    second = berg.start("start", "nomad")
    said = second.stderr.readline()
    assert said.startswith("Waiting: nomad is being moved by tester since"), said
    path = berg.machines()["nomad"]["selfLink"].partition("/compute/")[2]
    berg.cloud.call("POST", f"/compute/{path}/start")
    wait_for(lambda: all_of(berg) == [(stopped_box, "RUNNING")])
    berg.cloud.call("DELETE", "/_berg/faults")
    wait_for(lambda: len(all_of(berg)) == 2, 60)
    (there,) = [zone for zone, _ in all_of(berg) if zone != stopped_box]
    wait_for(lambda: (there, "RUNNING") in all_of(berg))
    begin(berg, "nomad", there)
    for laptop in (mover, second):
        _, errors = laptop.communicate()
        assert laptop.returncode == 1, errors
        assert f"nomad was started in {stopped_box} since its disk was copied" in errors
    assert all_of(berg) == sorted([(stopped_box, "RUNNING"), (there, "RUNNING")])
    assert len(berg.disks()) == 2


def test_of_two_starts_of_a_box_one_waits_and_the_box_is_there_once(berg, stopped_box):
    mover = move_until_insert(berg)
    second = berg.start("start", "nomad")
    assert "nomad is being moved" in second.stderr.readline()
    assert all_of(berg) == [(stopped_box, "TERMINATED")]
    berg.cloud.call("DELETE", "/_berg/faults")
    wait_for(lambda: begin(berg, "nomad"), 60)
    for laptop, word in ((mover, "started in"), (second, "is RUNNING already")):
        _, errors = laptop.communicate()
        assert laptop.returncode == 0 and word in errors, errors
    ((zone, status),) = all_of(berg)
    assert zone != stopped_box and status == "RUNNING" and len(berg.disks()) == 1
    assert not berg.bucket.exists(".berg/jobs/nomad_power.json")


def move_until_insert(berg):
    """Begin a move, whose machine elsewhere Google does not make until the faults are cleared."""
    berg.cloud.fault("compute.instances.insert", status=503, times=None)
    berg.allowed += [503]
    mover = berg.start("start", "--move", "nomad")
    wait_for(lambda: [each["status"] for each in snapshots(berg)] == ["READY"], 30)
    wait_for(lambda: all(each["hits"] for each in faults(berg)), 30)
    berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    return mover


def test_ctrl_c_ends_a_move_and_frees_the_box(berg, stopped_box):
    mover = move_until_insert(berg)
    mover.send_signal(signal.SIGINT)
    errors = mover.communicate(timeout=20)[1]
    assert mover.returncode == 130, errors
    assert "Not waited for: nomad. See what becomes of it: berg list" in errors
    assert not berg.bucket.exists(power.claim_path("nomad")) and not snapshots(berg), errors
    assert all_of(berg) == [(stopped_box, "TERMINATED")]


def faults(berg) -> list[dict]:
    return berg.cloud.call("GET", "/_berg/faults")["faults"]


def test_of_two_machines_of_a_box_the_one_that_comes_is_waited_for():
    here, there = (Machine("box", f"us-central1-{zone}", "TERMINATED") for zone in "ab")
    went = replace(OFF, zone=there.zone)
    moved = Entry("box", went, [replace(there, status="RUNNING"), here])
    assert power.left_by_move(moved) == [here]
    for status in power.COMING:
        assert not power.left_by_move(Entry("box", went, [replace(there, status=status), here]))
    on = replace(here, status="RUNNING")
    assert not power.left_by_move(Entry("box", went, [there, on]))
    unbegun = replace(OFF, zone=here.zone)
    assert not power.left_by_move(replace(moved, state=unbegun)), "its worker has not begun there"
    job = replace(went, job=Summary(kind="job"))
    assert not power.left_by_move(Entry("box", job, [there, here]))


def last(value):
    """What a value says wherever its resource is."""
    return value.rpartition("/")[2] if isinstance(value, str) else value


def snapshots(berg) -> list:
    """Those of this test's bucket: others may have left some."""
    listed = berg.cloud.call("GET", "/compute/v1/projects/berg-local/global/snapshots")
    found = listed.get("items", [])
    return [each for each in found if each["labels"]["berg-bucket"] == berg.bucket_name]


def test_a_machine_elsewhere_has_the_gpus_of_the_one_here():
    zone = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
    here = {
        "zone": zone,
        "machineType": f"{zone}/machineTypes/n1-standard-8",
        "guestAccelerators": [
            {"acceleratorType": f"{zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
        ],
        "disks": [{"diskSizeGb": "200", "source": f"{zone}/disks/box"}],
        "metadata": {"fingerprint": "x", "items": [{"key": "a", "value": "b"}]},
        "networkInterfaces": [{"network": "net", "networkIP": "10.0.0.2"}],
    }
    there = instances.moved(here, "us-central1-b", "snap")
    kind = "zones/us-central1-b/acceleratorTypes/nvidia-tesla-t4"
    assert there["guestAccelerators"] == [{"acceleratorType": kind, "acceleratorCount": 2}]
    assert there["networkInterfaces"] == [{"network": "net"}], "no address of its own, as here"
    assert there["metadata"] == {"items": [{"key": "a", "value": "b"}]}
    disk = there["disks"][0]["initializeParams"]
    assert (disk["sourceSnapshot"], disk["diskSizeGb"]) == ("global/snapshots/snap", "200")
    h100 = f"{zone}/machineTypes/a2-highgpu-1g"
    attached = [{"acceleratorType": "nvidia-tesla-a100", "acceleratorCount": 1}]
    built_in = instances.moved(
        {**here, "machineType": h100, "guestAccelerators": attached}, "z", "s"
    )
    assert "guestAccelerators" not in built_in, "they come with the machine"


def test_a_box_keeps_its_disk_whoever_turns_it_off():
    this = Job("box", "", "", "", "", "", "", kind="devbox", keeps_disk=True)
    for cause in (outcome.PREEMPTED, outcome.SHUT_DOWN):
        assert restart_after(cause, this, "", 0) is WHEN_STARTED
        assert restart_after(cause, replace(this, keeps_disk=False), "", 0) is None
    assert restart_after(outcome.MAINTAINED, this, "", 0) is outcome.AFTER_MAINTENANCE
    assert restart_after(Ending("KILLED", "killed by tester"), this, "", 0) is None


@pytest.mark.slow
def test_a_spot_box_that_google_takes_is_stopped_and_starts_again(berg):
    made = berg("devbox", "-g", "0", "-n", "taken", "--spot", "--idle", "stop")
    assert "then Google stops the machine, and its disk stays (--max-hours)" in made.stderr
    wait_for(lambda: berg.state("taken")["state"] == "RUNNING")
    berg.cloud.call("POST", "/_berg/instances/taken/preempt", {"notice": 0})
    wait_for(lambda: berg.machines()["taken"]["status"] == "TERMINATED")
    state = berg.state("taken")
    assert (state["state"], state["reason"]) == (STOPPED, "Google preempted the machine")
    assert "off since " in berg("list").stdout
    assert berg("start", "taken").returncode == 0
    wait_for(lambda: berg.state("taken")["state"] == "RUNNING")
    assert berg("kill", "taken", "--now").returncode == 0
