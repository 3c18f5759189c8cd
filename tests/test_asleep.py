"""A laptop that was closed in the middle of a command finds another world when it is opened again: it
touches nothing of another's, leaves nothing, and says so.
"""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from asleep import asleep
from conftest import LATE, Cloud, until
from inside import fresh
from records import machine, put

from berg import gce
from berg.job import FINAL

CPU = ["run", "-g", "0"]
OTHER = 'sleep 3; echo x >"$BERG_RESULTS_DIR/other"'


def reached(cloud: Cloud, name: str, *states: str) -> dict[str, Any]:
    """A job's state, once it is one of these."""
    until(lambda: cloud.state(name).get("state") in states)
    return cloud.state(name)


def machines(cloud: Cloud, name: str) -> list[tuple[str, str]]:
    return [(machine.id, machine.status) for machine in gce.machines(cloud.config, name)]


def replace(cloud: Cloud, project: Path, name: str, *words: str) -> None:
    """Another laptop ends and removes what has the name, and takes it."""
    cloud.run("kill", "-y", name)
    removal = [*LATE, "rm", "-y", name]
    subprocess.run(removal, env=cloud.env, cwd=cloud.home, capture_output=True)
    cloud.ok(*words, "-n", name, *[OTHER] * (words[0] == "run"), cwd=project)


def check_other(cloud: Cloud, name: str) -> None:
    """The other laptop's job is alone, and has run."""
    state = reached(cloud, name, *FINAL)
    assert state["state"] == "SUCCEEDED", state
    assert f"berg_results/{name}/other" in cloud.names(f"berg_results/{name}/")
    assert not [file for file in cloud.names(f"berg_results/{name}/") if file.endswith("/mine")]
    assert json.loads(cloud.read(f".berg/jobs/{name}_metadata.json"))["id"] == state["id"]
    until(lambda: not machines(cloud, name), 60)


RECORD = "POST /upload/.*{}_metadata"


@pytest.mark.slow
@pytest.mark.parametrize("at", [RECORD, "POST .*/instances[?]", "DELETE .*{}_state"])
def test_a_submit_starts_and_takes_back_nothing_of_another_job(
    cloud: Cloud, project: Path, faults: Any, at: str
) -> None:
    name = fresh("submit")
    if at.startswith("DELETE"):  # it takes back what was refused
        faults("compute.instances.insert", status=400, message="refused")
    words = [*CPU, "-n", name, 'touch "$BERG_RESULTS_DIR/mine"']
    with asleep(cloud, at.format(name), *words, cwd=project) as laptop:
        replace(cloud, project, name, *CPU)
        done = laptop.wake()
    assert done.code == 1 and "Error: " in done.err, done.err
    check_other(cloud, name)


MADE = ["POST .*/instances[?]", "(GET|POST) .*/operations/", "POST .*/instanceGroupManagers[?]"]


def options(at: str) -> list[str]:
    return ["--spot"] * ("Group" in at)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("at", ["POST /upload/.*{}_state", RECORD, *MADE])
def test_a_submit_that_is_cut_off_leaves_a_job_that_runs_or_nothing(
    cloud: Cloud, project: Path, at: str, number: signal.Signals
) -> None:
    name, look = fresh("cut"), 'touch "$BERG_RESULTS_DIR/mine"'
    words = [*CPU, *options(at), "-n", name, look]
    with asleep(cloud, at.format(name), *words, cwd=project) as laptop:
        laptop.process.send_signal(number)
        done = laptop.wake()
    assert done.code, "it was not interrupted"
    if number == signal.SIGKILL and at in MADE:
        reached(cloud, name, *FINAL)
    if number == signal.SIGINT:
        assert cloud.state(name).get("state") in (None, "SUCCEEDED"), done.err
    until(lambda: not machines(cloud, name))
    has_run = f"berg_results/{name}/mine" in cloud.names("berg_results/")
    assert has_run == (cloud.state(name).get("state") == "SUCCEEDED"), done.err
    reap = [*LATE, "reap", "-y"]
    subprocess.run(reap, env=cloud.env, cwd=cloud.home, capture_output=True, check=True)
    groups = f"/compute/v1/projects/{cloud.config.project}/aggregated/instanceGroupManagers"
    assert name not in json.dumps(cloud.call("GET", groups)), done.err
    if not cloud.state(name):
        assert cloud.run(*CPU, "-n", name, "--wait", "true", cwd=project).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("at", MADE)
def test_a_submit_that_slept_starts_nothing_that_was_killed(
    cloud: Cloud, project: Path, at: str
) -> None:
    name = fresh("not")
    words = [*CPU, *options(at), "-n", name, 'sleep 20; touch "$BERG_RESULTS_DIR/mine"']
    with asleep(cloud, at, *words, cwd=project) as laptop:
        assert cloud.run("kill", "-y", name).code == 0
        done = laptop.wake()
    until(lambda: not machines(cloud, name))
    assert cloud.state(name)["state"] == "KILLED", done.err
    assert not cloud.names(f"berg_results/{name}/mine")


@pytest.mark.slow
def test_reap_deletes_nothing_of_a_new_machine_of_the_name(cloud: Cloud, project: Path) -> None:
    machine(cloud, "reaped", put(cloud, "reaped", "FAILED"))
    with asleep(cloud, "DELETE .*/instances/", "reap", "-y") as laptop:
        for each in gce.machines(cloud.config, "reaped"):
            each.delete(cloud.config)
        replace(cloud, project, "reaped", "devbox", "-g", "0")
        before = machines(cloud, "reaped")
        done = laptop.wake()
    assert machines(cloud, "reaped") == before != [], done.err
    assert cloud.run("kill", "-y", "--now", "reaped").code == 0


@pytest.mark.slow
def test_rm_deletes_nothing_of_another_job(cloud: Cloud, project: Path) -> None:
    assert cloud.run(*CPU, "-n", "removed", "--wait", "true", cwd=project).code == 0
    with asleep(cloud, "DELETE .*removed", "rm", "-y", "removed") as laptop:
        replace(cloud, project, "removed", *CPU)
        check_other(cloud, "removed")
        done = laptop.wake()
    assert done.code == 1 and "is not what it was" in done.err, done.err
    check_other(cloud, "removed")
    assert cloud.log("removed")


@pytest.mark.slow
@pytest.mark.parametrize("at", ["GET .*aggregated/instances", "POST .*/setMetadata"])
@pytest.mark.parametrize("is_guest", [False, True])
def test_kill_ends_no_other_job(cloud: Cloud, project: Path, at: str, is_guest: bool) -> None:
    name, run = fresh("killed"), CPU
    if is_guest:
        run = ["run", "--share", "--on", "killers-host"]
        if not machines(cloud, "killers-host"):
            cloud.ok("devbox", "-g", "0", "-n", "killers-host", cwd=project)
        reached(cloud, "killers-host", "RUNNING")
    cloud.ok(*run, "-n", name, "sleep 100", cwd=project)
    reached(cloud, name, "RUNNING")
    with asleep(cloud, at, "kill", "-y", name) as laptop:
        replace(cloud, project, name, *run)
        done = laptop.wake()
    assert f"{name} is another job now, which was not touched" in done.err, done.err
    check_other(cloud, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "at"),
    [
        ("stop", r"POST .*/setMetadata\b"),
        ("stop --now", r"POST .*/stop\b"),
        ("start", r"POST .*/start\b"),
        ("kill", r"POST .*/setMetadata\b"),
        ("kill --now", "DELETE .*/instances/"),
    ],
)
def test_a_devbox_that_was_made_meanwhile_is_left_alone(
    cloud: Cloud, project: Path, verb: str, at: str
) -> None:
    box = f"{verb.replace(' --', '-')}-box"
    assert cloud.run("devbox", "-g", "0", "-n", box, cwd=project).code == 0
    if verb == "start":
        assert cloud.run("stop", "--now", box).code == 0
    else:
        reached(cloud, box, "RUNNING")
    with asleep(cloud, at, *verb.split(), "-y", box) as laptop:
        replace(cloud, project, box, "devbox", "-g", "0")
        if verb == "start":
            assert cloud.run("stop", "--now", box).code == 0
        before = machines(cloud, box)
        done = laptop.wake()
    assert machines(cloud, box) == before, done.err
    says = "is another job now" if "kill" in verb else "was deleted meanwhile"
    assert says in done.err, done.err
