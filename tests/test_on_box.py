"""`berg run --on BOX`: a job on a devbox, next to who is logged in."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import commit, wait_for
from test_run import worker_of

from berg import job

LOOK = """
pwd; echo "$HOME $BERG_JOB"; ls /root/berg_results; cat /root/code/proj/note
echo 1 >berg_results/$BERG_JOB/relative
echo 2 >/root/berg_results/$BERG_JOB/absolute
"""
WAIT = "echo began; echo 1 >berg_results/$BERG_JOB/file; sleep 1000"


@pytest.fixture
def box(berg):
    made = berg("devbox", "-g", "0", "-n", "desk")
    assert made.returncode == 0, made.stderr
    runs(berg, "desk")
    return berg


def worker(berg, name: str) -> int | None:
    """Process id of the worker of a job on the devbox, or of the devbox."""
    interface = berg.machines()["desk"]["networkInterfaces"][0]
    return worker_of(name, interface["networkIP"])


def runs(berg, name: str) -> None:
    wait_for(lambda: berg.state(name)["state"] == "RUNNING", 60, f"{name} runs")


def on_box(berg, name: str, command: str, *more: str) -> subprocess.CompletedProcess:
    return berg("run", "--on", "desk", "-n", name, *more, command)


@pytest.fixture
def person(box) -> Iterator[subprocess.Popen]:
    """A process of a person on the devbox."""
    inside = ["nsenter", "-t", str(wait_for(lambda: worker(box, "desk"))), "-a"]
    with subprocess.Popen([*inside, "sleep", "7777"]) as process:
        yield process
        process.kill()


def ended(berg, name: str) -> dict:
    wait_for(lambda: berg.state(name)["state"] in job.FINAL, 60, f"{name} ends")
    return berg.state(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's machines have a /root of their own")
def test_next_to_a_person(box, person):
    """Who is logged in keeps a process and files, also in the checkout and the results."""
    process = worker(box, "desk")
    root = Path(f"/proc/{process}/root/root")
    (root / "berg_results/own").mkdir(parents=True)
    (root / "code/proj/note").write_text("of the person")
    (box.repo / "note").write_text("of the commit")
    commit(box.repo)

    done = on_box(box, "first", LOOK, "--wait")
    assert done.returncode == 0, done.stderr + box.log("first")
    assert "devbox desk (n1-standard-8), until" in done.stderr
    assert "nothing new is created" in done.stderr and "none of its own" in done.stderr
    log = box.log("first")
    assert "/root/code/proj\n/root first\nfirst\nof the commit" in log, log
    results = box.objects("berg_results/first/")
    assert {each.rpartition("/")[2] for each in results} >= {"relative", "absolute"}

    failing = on_box(box, "second", "exit 7", "--wait")
    assert failing.returncode == 7, failing.stderr
    assert box.state("second")["reason"] == "the command failed with exit code 7"
    shown = box("show", "second").stdout
    assert "desk in us-central1-a" in shown and "gone" not in shown, shown
    listed = box("list").stdout
    assert "on desk" in listed and "$0.00" in listed
    again = box("rerun", "first", "-n", "third", "--tail")
    assert again.returncode == 0 and "devbox desk" in again.stderr, again.stderr
    assert "Job third SUCCEEDED" in again.stdout and "Ready" not in again.stdout, again.stdout
    resumed = box("run", "--resume", "second")
    assert resumed.returncode == 1 and "berg rerun second" in resumed.stderr

    wait_for(lambda: not [*(root / "berg/jobs").iterdir()], what="the folders are removed")
    assert person.poll() is None
    assert worker(box, "desk") == process and box.state("desk")["state"] == "RUNNING"
    assert (root / "code/proj/note").read_text() == "of the person"
    assert {each.name for each in (root / "berg_results").iterdir()} == {"own", "desk"}
    shells = (root / ".bashrc").read_text() + (root / "berg/environment.sh").read_text()
    assert "first" not in shells and "BERG_JOB=desk" in shells, "logins are to the devbox"
    assert [*box.machines()] == ["desk"]


def test_two_at_once_and_kill(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    refused = on_box(box, "second", "true")
    assert refused.returncode == 1 and "desk runs first already" in refused.stderr, refused.stderr
    assert "--share" in refused.stderr and "second" not in box("list", "-a").stdout
    shared = on_box(box, "second", "true", "--share", "--wait")
    assert shared.returncode == 0, shared.stderr
    assert "began" in box("log", "first").stdout
    shown = box("show", "first")
    assert shown.returncode == 0 and "RUNNING" in shown.stdout, shown.stderr
    killed = box("kill", "first")
    assert killed.returncode == 0 and "first: KILLED" in killed.stdout + killed.stderr
    assert box.state("first")["reason"].startswith("killed by ")
    assert box.state("desk")["state"] == "RUNNING" and [*box.machines()] == ["desk"]
    assert box.machines()["desk"]["disks"][0]["autoDelete"] is False
    at_once = on_box(box, "third", WAIT)
    assert at_once.returncode == 0, at_once.stderr
    runs(box, "third")
    assert box("kill", "--now", "third").returncode == 0
    assert on_box(box, "fourth", "true", "--wait").returncode == 0


def test_two_laptops_at_once(box):
    both = [box.start("run", "--on", "desk", "-n", each, WAIT) for each in ("one", "two")]
    texts = [each.communicate()[1] for each in both]
    assert sorted(each.returncode for each in both) == [0, 1], texts
    assert any("already" in text for text in texts), texts


def test_its_devbox_is_killed(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    killed = box("kill", "desk")
    assert killed.returncode == 0 and "first runs on desk, and ends with it" in killed.stderr
    state = box.state("first")
    assert (state["state"], state["reason"]) == ("FAILED", "its devbox was stopped or killed")
    assert any(each.endswith("/file") for each in box.objects("berg_results/first/"))


def test_its_devbox_is_stopped(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    assert box("stop", "desk").returncode == 0
    assert box.state("first")["reason"] == "its devbox was stopped or killed"
    refused = on_box(box, "second", "true")
    assert refused.returncode == 1 and "Start it: berg start desk" in refused.stderr, refused.stderr
    assert box("start", "desk").returncode == 0
    assert on_box(box, "second", "true", "--wait").returncode == 0


def test_its_devbox_loses_its_power(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    box.cloud.session.post(f"{box.cloud.url}/_berg/instances/desk/crash", json={})
    stored = box.bucket.get(job.state_path("first"))
    box.bucket.write(stored.name, box.bucket.read(stored.name), stored.generation, stored.metadata)
    wait = box("wait", "first")
    assert wait.returncode != 0
    assert "its devbox desk is gone or off" in wait.stderr, wait.stderr
    reaped = box("reap", "-y")
    assert "desk" in box.machines(), reaped.stderr
    assert box("start", "desk").returncode == 0
    assert "its devbox desk went off" in ended(box, "first")["reason"]


def test_a_worker_that_dies(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    os.kill(wait_for(lambda: worker(box, "first")), signal.SIGKILL)
    assert "worker was killed by signal 9" in ended(box, "first")["reason"]
    assert box.state("desk")["state"] == "RUNNING"


def test_what_takes_no_job(box):
    def why(*options: str) -> str:
        done = box("run", *options, "true")
        assert done.returncode == 1, done.stderr
        return done.stderr

    assert box("run", "-g", "0", "-n", "other", "sleep 1000").returncode == 0
    assert "no devbox" in why("--on", "other")
    assert "there is no job or machine 'nobox'" in why("--on", "nobox")
    for more in (["-g", "0"], ["-m", "2"], ["--spot"], ["--keep-warm", "1h"], ["--docker", "a"]):
        assert "--on runs on a machine that is there" in why("--on", "desk", *more), more
    assert "--share needs --on" in why("--share")
    (box.repo / "berg.toml").write_text('gpu-type = "a100"\nkeep-warm = "15m"\n')
    assert box("run", "--on", "desk", "--dry-run", "true").returncode == 0
    done = box("run", "--on", "desk", "true", BERG_USER="another")
    assert "it is tester's devbox" in done.stderr, done.stderr
    done = box("run", "--on", "desk", "--grid", "x=1,2", "echo {x}")
    assert "--on is not for sweeps" in done.stderr
    assert box("kill", "desk", "other").returncode == 0
    assert "it is KILLED" in why("--on", "desk")


def test_metadata_that_no_laptop_wrote():
    for text in ("", "x", "[]", '{"a": 1}', '"text"', "null"):
        assert job.hosted({job.HOSTED: text}) == {}, text
    assert job.hosted({job.HOSTED: json.dumps({"a": {"berg-dist": "b"}})}) == {
        "a": {"berg-dist": "b"}
    }
