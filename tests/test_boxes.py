"""What a person put on a devbox's disk: no fault of Berg's and no race deletes it."""

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from conftest import commit, wait_for
from test_run import worker_of

from berg import BergError, cli, worker
from berg.job import STOPPED, metadata_path, state_path
from berg.laptop import ending, jobs, launch, power
from berg.machine import boot, outcome
from berg.machine.outcome import Ending

ON = ("devbox", "-g", "0", "-n")


def machine_is(berg, name: str, status: str) -> dict:
    """Wait until the box's machine has a status, and return it; fail at once if it is deleted."""

    def found():
        there = berg.machines()
        assert name in there, f"it was deleted: {berg.state(name)}"
        return there[name]["status"] == status and there[name]

    return wait_for(found, 60, f"{name} is {status}")


def runs(berg, name: str, attempt: int = 1) -> None:
    def is_there() -> bool:
        state = berg.state(name)
        return (state["state"], state["attempt"]) == ("RUNNING", attempt)

    wait_for(is_there, 60, f"attempt {attempt} runs")


def check_kept(berg, name: str, reason: str) -> None:
    """Check that the box is off with its disk, and that its state says why and how to get in."""
    machine_is(berg, name, "TERMINATED")
    state = berg.state(name)
    assert state["state"] == STOPPED and reason in state["reason"], state
    assert f"berg start --rescue {name}" in state["reason"]
    assert [disk["name"] for disk in berg.disks()] == [name]


def test_a_worker_that_is_killed_leaves_the_disk(berg):
    made = berg(*ON, "slain")
    assert (
        made.returncode == 0 and "then Google stops the machine, and its disk stays" in made.stderr
    )
    runs(berg, "slain")
    machine = berg.machines()["slain"]
    assert machine["scheduling"]["instanceTerminationAction"] == "STOP"
    assert machine["disks"][0]["autoDelete"] is False
    os.kill(wait_for(lambda: worker_of("slain")), signal.SIGKILL)
    check_kept(berg, "slain", "berg's worker was killed by signal 9")
    assert berg("start", "slain").returncode == 0
    assert berg.state("slain")["state"] == "RUNNING", "it answers when the command is over"
    assert berg("kill", "slain").returncode == 0
    assert "slain" not in berg.machines() and not berg.disks(), "a person chose that"


def test_a_second_boot_installs_nothing_again_and_a_fault_of_it_leaves_the_disk(berg):
    script = berg.repo / "install.sh"
    script.write_text("mkdir $HOME/tools\n")
    commit(berg.repo)
    assert berg(*ON, "again", "--install-script", "install.sh").returncode == 0
    runs(berg, "again")
    assert berg("stop", "again").returncode == 0
    started = berg("start", "again")
    assert started.returncode == 0, started.stderr
    assert "Log in: berg ssh again" in started.stderr
    assert berg.state("again")["state"] == "RUNNING"
    assert berg("stop", "again").returncode == 0

    berg.bucket.delete(metadata_path("again"))
    started = berg("start", "again")
    assert started.returncode == 1, started.stderr
    assert "_metadata.json is missing" in started.stderr
    assert "berg start --rescue again" in started.stderr
    check_kept(berg, "again", "_metadata.json is missing")

    rescued = berg("start", "--rescue", "again")
    assert rescued.returncode == 0, rescued.stderr
    state = berg.state("again")
    assert state["state"] == "RUNNING" and "--rescue" in state["reason"], state
    stopped = berg("stop", "again")
    assert stopped.returncode == 0, stopped.stderr
    assert berg.state("again")["state"] == STOPPED
    machine_is(berg, "again", "TERMINATED")
    assert berg("kill", "again").returncode == 0
    assert "again" not in berg.machines() and not berg.disks()


def test_a_box_whose_worker_cannot_begin_is_kept_and_one_whose_state_is_gone(berg):
    """Neither berg itself nor the state is there at the second boot."""
    (berg.home / "token").write_text("xyz")
    assert berg(*ON, "bare", "--secret", f"TOKEN={berg.home / 'token'}").returncode == 0
    runs(berg, "bare")
    assert berg("stop", "bare").returncode == 0
    archives = berg.objects(".berg/dist/")
    berg.bucket.delete(*archives)
    failed = berg("start", "bare")
    assert failed.returncode == 1 and "berg could not be started on bare" in failed.stderr
    assert "berg start --rescue bare" in failed.stderr
    check_kept(berg, "bare", "berg could not be started on bare")

    for name, content in archives.items():
        berg.bucket.write(name, content)
    secrets = "/secretmanager/v1/projects/berg-local/secrets"
    berg.cloud.call("DELETE", f"{secrets}/berg-bare")  # as it expires
    started = berg("start", "bare")
    assert started.returncode == 0, started.stderr
    wait_for(lambda: "Using the secrets that are on this disk" in berg.log("bare"))
    assert berg("stop", "bare").returncode == 0

    state = berg.bucket.get(state_path("bare"))
    berg.bucket.delete_at(state.name, state.generation)
    path = berg.machines()["bare"]["selfLink"].partition("/compute/")[2]
    berg.cloud.call("POST", f"/compute/{path}/start")
    machine_is(berg, "bare", "TERMINATED")
    assert [disk["name"] for disk in berg.disks()] == ["bare"]


@pytest.mark.slow
def test_a_boot_after_maintenance_that_fails_leaves_the_disk(berg):
    """Google stops and starts the machine, and no person does anything."""
    assert berg("devbox", "-g", "1", "-t", "t4", "-n", "moved-on").returncode == 0
    runs(berg, "moved-on")
    berg.bucket.delete(metadata_path("moved-on"))
    berg.cloud.call("POST", "/_berg/instances/moved-on/maintain", {"notice": 1})
    wait_for(lambda: berg.state("moved-on")["attempt"] == 2, 60)
    check_kept(berg, "moved-on", "_metadata.json is missing")
    shown = berg("list").stdout
    assert "STOPPED" in shown and "off since " in shown


@pytest.mark.slow
def test_machines_that_cannot_be_stopped_stay_on_when_berg_fails(berg):
    (berg.repo / "install.sh").write_text("exit 3\n")
    commit(berg.repo)
    made = berg(*ON, "pair", "-m", "2", "--install-script", "install.sh")
    assert made.returncode == 0, made.stderr
    assert "deleted with the machine, except /root/berg_results: berg stops devboxes of one" in (
        " ".join(made.stderr.split())
    )
    wait_for(lambda: berg.state("pair")["state"] == "FAILED", 60)
    reason = berg.state("pair")["reason"]
    assert "exit code 3" in reason and "Log in: berg ssh pair" in reason, reason
    held = "is not deleted; it stays on until its time limit"
    wait_for(lambda: consoles(berg, held) == 2, 60)
    assert [each["status"] for each in berg.machines().values()] == ["RUNNING", "RUNNING"]
    assert berg("kill", "pair", "-y").returncode == 0
    assert not berg.machines() and not berg.disks()


def consoles(berg, words: str) -> int:
    """Return on how many machines' consoles words are."""
    paths = [path_of(berg, name) for name in berg.machines()]
    shown = [berg.cloud.call("GET", f"/compute/{path}/serialPort") for path in paths]
    return sum(words in each["contents"] for each in shown)


def test_a_disk_whose_machine_was_deleted_elsewhere_is_shown_and_deleted_by_kill(berg, monkeypatch):
    berg.cloud.call("POST", "/_berg/settings", {"boot": 0})
    assert berg(*ON, "alone").returncode == 0
    berg.cloud.call("DELETE", f"/compute/{path_of(berg, 'alone')}")
    wait_for(lambda: "alone" not in berg.machines())
    assert [disk["name"] for disk in berg.disks()] == ["alone"], "as the console does it"
    monkeypatch.setattr(jobs, "LOST_AFTER", -1)
    monkeypatch.setattr(ending, "SETTLED", -1)
    settings = berg.cloud.settings(berg.bucket_name)
    entries = jobs.overview(settings, None)
    power.note_stopped(settings, entries)
    (entry,) = entries
    assert "its disk alone (200 GB) is still in us-central1-" in entry.about
    assert entry.about.endswith("delete it: berg kill alone")
    assert [(each.kind, each.name) for each in ending.leftovers(settings, "tester")] == [
        ("disk", "alone"),
        ("job", "alone"),  # which no machine began
    ]
    assert berg("kill", "alone", "-y").returncode == 0
    assert not berg.disks()


def test_a_box_that_cannot_be_created_leaves_no_disk(berg):
    berg.cloud.call("POST", "/_berg/settings", {"boot": 0})
    error = {"code": "INTERNAL_ERROR", "message": "no", "instance_lives": True}
    berg.cloud.fault("compute.instances.insert", operation_error=error, times=None)
    assert berg(*ON, "uncreated").returncode == 1
    assert "uncreated" not in berg.machines() and not berg.disks()


def path_of(berg, name: str) -> str:
    return berg.machines()[name]["selfLink"].partition("/compute/")[2]


@pytest.mark.parametrize(
    ("box", "is_chosen", "is_killed", "end"),
    [
        ("", False, False, "deleted"),
        (boot.STOPS, False, False, "off"),
        (boot.STAYS, False, False, "held"),
        (boot.STOPS, True, False, "deleted"),
        (boot.STOPS, False, True, "deleted"),
        (boot.STAYS, False, True, "deleted"),
    ],
)
def test_a_machine_deletes_a_box_only_if_a_person_chose_that(
    monkeypatch, box, is_chosen, is_killed, end
):
    machine, done = boot.Machine.__new__(boot.Machine), []
    machine.job, machine.box = "box", box
    attributes = {"berg-kill-box": "ada"} if is_killed else {}
    monkeypatch.setattr(boot.Machine, "instance", lambda self: {"attributes": attributes})
    for name, word in (("delete", "deleted"), ("turn_off", "off"), ("hold", "held")):
        did = lambda self, word=word, **patience: done.append(word) or True
        monkeypatch.setattr(boot.Machine, name, did)
    monkeypatch.setattr(boot.Machine, "say", lambda self, text: None)
    machine.insist_on_deletion(is_chosen=is_chosen)
    assert done == [end]


@pytest.mark.parametrize(
    ("box", "chosen", "cause", "after"),
    [
        (boot.STOPS, False, None, STOPPED),
        (boot.STOPS, True, None, "FAILED"),
        (boot.STAYS, False, None, "FAILED"),
        (boot.STOPS, False, outcome.PREEMPTED, "FAILED"),  # the machine goes, and the box stops
    ],
)
def test_a_fault_stops_a_box(box, chosen, cause, after):
    machine = SimpleNamespace(box=box, way_in=lambda: "get in")
    stopping = SimpleNamespace(ending=cause)
    attempt = SimpleNamespace(
        machine=machine, stopping=stopping, is_deletion_chosen=chosen, machine_goes=bool(cause)
    )
    ending = worker.end_of_box(attempt, Ending("FAILED", "it broke"))
    assert ending.state == after
    assert ("get in" in ending.reason) == (not chosen and cause is None)
    assert (stopping.ending == ending) == (after == STOPPED)


def test_a_claim_is_waited_for_taken_over_when_it_is_old_and_taken_by_force(cloud, bucket):
    settings = replace(cloud.settings(bucket.name), user="ada")
    said = []
    with power.claimed(settings, "box", "moved", said.append) as first:
        first.check()
        with power.claimed(settings, "box", "killed", said.append, is_forced=True):
            assert not said
            with pytest.raises(BergError, match="another berg stopped, started or killed box"):
                first.check()
        assert not bucket.exists(first.path), "the one that was forced has ended"
        left = power.Claim(settings, "box", "started")
        left.take(False, said.append)  # and its computer dies
    assert bucket.exists(left.path), "a claim that was lost deletes none of others"


def test_an_old_claim_is_taken_over(cloud, bucket, monkeypatch):
    settings = replace(cloud.settings(bucket.name), user="ada")
    dead = power.Claim(settings, "box", "started")
    dead.take(False, lambda text: None)
    monkeypatch.setattr(power, "CLAIM_PAUSE", 0)
    said = []

    def hear(text: str) -> None:
        said.append(text)
        monkeypatch.setattr(power, "AGED", -1)

    with power.claimed(settings, "box", "stopped", hear) as claim:
        claim.check()
    assert len(said) == 1 and said[0].startswith("Waiting: box is being started by ada since ")
    with pytest.raises(BergError):
        dead.check()


def test_a_job_of_a_box_s_name_whose_records_are_gone_leaves_the_box(berg, cloud, monkeypatch):
    """It deleted the box with its disk, after three minutes."""
    assert berg(*ON, "mine").returncode == 0
    runs(berg, "mine")
    there = berg.machines()["mine"]
    berg.bucket.delete(*berg.objects(".berg/jobs/mine_"), *berg.objects(".berg/index/"))
    for words in (("run", "-g", "0", "-n", "mine", "true"), (*ON, "mine")):
        refused = berg(*words)
        assert refused.returncode == 1 and "Deleting" not in refused.stderr, refused.stderr
        assert "there is a devbox 'mine' in us-central1-" in refused.stderr
        assert "To delete the devbox and its disk: berg kill mine" in refused.stderr
    # Of a submit that did not see it, and fails, only what it made goes.
    monkeypatch.setattr(launch, "check_free", lambda *_: [])
    monkeypatch.setenv("BERG_HOME", str(berg.home))
    monkeypatch.chdir(berg.repo)
    zone = there["zone"].rpartition("/")[2]
    words = ["run", "-g", "0", "-n", "mine", "-y", "--zone", zone, "true"]
    late = CliRunner().invoke(cli.cli, words)
    assert late.exit_code == 1 and "exists in us-central1-" in late.output, late.output
    assert berg.machines()["mine"]["id"] == there["id"]
    assert [disk["name"] for disk in berg.disks()] == ["mine"]
    assert not berg.objects(".berg/jobs/mine_")
