"""`berg run --on BOX`: a job on a devbox, next to who is logged in."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import commit, wait_for
from test_run import worker_of

from berg import job, states
from berg.google import instances
from berg.laptop import jobs, resume

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


def test_its_devbox_is_killed_at_once(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    assert box("kill", "--now", "desk").returncode == 0
    state = box.state("first")
    assert (state["state"], state["reason"]) == ("FAILED", "its devbox desk was deleted")


def test_its_devbox_is_stopped(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    assert box("stop", "desk").returncode == 0
    assert box.state("first")["reason"] == "its devbox was stopped or killed"
    refused = on_box(box, "second", "true")
    assert refused.returncode == 1 and "Start it: berg start desk" in refused.stderr, refused.stderr
    assert box("start", "desk").returncode == 0
    assert on_box(box, "second", "true", "--wait").returncode == 0


GROWS = """
ls berg_results/$BERG_JOB; echo "attempt $BERG_ATTEMPT"
echo $BERG_ATTEMPT >>berg_results/$BERG_JOB/late; echo written
[ $BERG_ATTEMPT = 2 ] || sleep 1000
"""


def test_its_devbox_loses_its_power(box):
    """The disk has what the bucket lacks: the next start saves it, and the job can resume."""
    box.cloud.fault("storage.objects.insert", match="first/late", status=503, times=None)
    assert on_box(box, "first", GROWS).returncode == 0
    wait_for(lambda: "written" in box.log("first"), 60, "the file")
    power(box, "crash")
    wait_for(lambda: box.machines()["desk"]["status"] == "TERMINATED", 60, "the crash")
    stored = box.bucket.get(job.state_path("first"))  # as if it was written just now
    box.bucket.write(stored.name, box.bucket.read(stored.name), stored.generation, stored.metadata)
    reaped = box("reap", "-y")
    assert "desk" in box.machines() and "nothing" in reaped.stderr.lower(), reaped.stderr
    wait = box("wait", "first")
    assert wait.returncode != 0
    assert "its devbox desk is gone, off or without a worker" in wait.stderr, wait.stderr
    refused = box("run", "--resume", "first")
    assert refused.returncode == 1 and "resumes on its devbox desk alone" in refused.stderr
    assert "berg start desk" in refused.stderr, refused.stderr
    box.cloud.call("DELETE", "/_berg/faults")
    assert box("start", "desk").returncode == 0
    assert ended(box, "first")["reason"] == "its devbox desk went off"
    assert box.objects("berg_results/first/")["berg_results/first/late"] == b"1\n"
    resumed = box("run", "--resume", "first", "--wait")
    assert resumed.returncode == 0, resumed.stderr + box.log("first")
    assert box.state("first")["attempt"] == 2
    assert box.objects("berg_results/first/")["berg_results/first/late"] == b"1\n2\n"


def asked_of(berg) -> set[str]:
    """Keys of the devbox's metadata."""
    return {each["key"] for each in berg.machines()["desk"]["metadata"]["items"]}


def power(berg, what: str, **options) -> None:
    berg.cloud.call("POST", f"/_berg/instances/desk/{what}", options)


def test_a_killed_job_resumes(box):
    assert on_box(box, "first", GROWS).returncode == 0
    wait_for(lambda: "written" in box.log("first"), 60, "the file")
    assert box("kill", "first").returncode == 0
    assert on_box(box, "second", WAIT).returncode == 0
    refused = box("run", "--resume", "first")
    assert refused.returncode == 1 and "desk runs second already" in refused.stderr, refused.stderr
    assert box("kill", "--now", "second").returncode == 0
    resumed = box("run", "--resume", "first", "--wait")
    assert resumed.returncode == 0, resumed.stderr + box.log("first")
    assert "devbox desk" in resumed.stderr, resumed.stderr
    assert box.objects("berg_results/first/")["berg_results/first/late"] == b"1\n2\n"
    assert not {"berg-kill-first", "berg-kill-second"} & asked_of(box)
    assert box("kill", "desk").returncode == 0
    gone = box("run", "--resume", "second")
    assert gone.returncode == 1 and "second resumes on its devbox desk alone" in gone.stderr
    assert "it is KILLED" in gone.stderr, gone.stderr


def test_its_spot_devbox_is_preempted(berg):
    made = berg("devbox", "-g", "0", "-n", "desk", "--spot")
    assert made.returncode == 0, made.stderr
    runs(berg, "desk")
    assert on_box(berg, "first", f"trap '' TERM; {WAIT}").returncode == 0
    runs(berg, "first")
    power(berg, "preempt", grace=30)
    assert "preempted" in ended(berg, "first")["reason"]
    assert any(each.endswith("/file") for each in berg.objects("berg_results/first/"))
    wait_for(lambda: berg.machines()["desk"]["status"] == "TERMINATED", 60, "the end of desk")
    assert berg.state("desk")["state"] == "STOPPED"


def test_its_boot_is_killed(box):
    """Its worker and its command end with it, and what they wrote is saved."""
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    mine = wait_for(lambda: worker(box, "first"))
    parent = int(Path(f"/proc/{mine}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    assert "ended with exit code -9" in ended(box, "first")["reason"]
    assert not Path(f"/proc/{mine}").exists()
    assert any(each.endswith("/file") for each in box.objects("berg_results/first/"))
    assert on_box(box, "second", "! pgrep -f '[s]leep 1000'", "--wait").returncode == 0


def test_a_killed_job_whose_worker_hangs(box):
    assert on_box(box, "first", WAIT).returncode == 0
    runs(box, "first")
    mine = wait_for(lambda: worker(box, "first"))
    os.kill(mine, signal.SIGSTOP)
    stored = states.read(box.bucket, "first")
    ended_at = "2026-01-01T00:00:00Z"
    killed = replace(stored.state, state="KILLED", finished_at=ended_at)
    states.replaced(box.bucket, stored, killed)
    assert box("list").returncode == 0
    config = box.bucket.config
    machine = instances.machine_of(box.machines()["desk"])
    instances.set_metadata(config, machine, "berg-kill-first", "tester")
    wait_for(lambda: not Path(f"/proc/{mine}").exists(), 30, "the end of the worker")


def test_a_laptop_that_gives_up(box):
    """Ctrl-C while the devbox begins the job: it ends there, and the next one begins."""
    box.cloud.fault("compute.instances.setMetadata", delay=9, after_handler=True)
    laptop = box.start("run", "--on", "desk", "-n", "first", WAIT)
    wait_for(lambda: worker(box, "first"), 60, "the worker")
    laptop.send_signal(signal.SIGINT)
    said = laptop.communicate()[1]
    assert laptop.returncode and "Deleting what was created" in said, said
    assert "berg-kill-first" in asked_of(box), "it does not wait until the worker writes its state"
    wait_for(lambda: not worker(box, "first"), 15, "the end of the worker")
    assert "first" not in box("list", "-a").stdout
    again = on_box(box, "first", "true", "--wait")
    assert again.returncode == 0, again.stderr + box.log("first")


def test_a_laptop_that_dies_before_the_devbox_knows(box, monkeypatch):
    """The job is lost, and not begun later; it can resume."""
    box.cloud.fault("compute.instances.setMetadata", delay=30)
    laptop = box.start("run", "--on", "desk", "-n", "first", "true")
    wait_for(lambda: box.bucket.exists(job.metadata_path("first")), 60, "the submit")
    laptop.kill()
    laptop.communicate()
    config = box.bucket.config
    assert jobs.find(config, "first").status == "SUBMITTED"
    monkeypatch.setattr(jobs, "LOST_AFTER", 0)
    found = jobs.find(config, "first")
    assert found.status == "LOST" and "desk did not begin it" in found.state.reason
    meant = {"berg-hosted": json.dumps({"first": {"berg-claim": found.stored.state.claim}})}
    machine = instances.machine_of(box.machines()["desk"])
    stored = replace(found.stored.state, claim="another")
    states.replaced(box.bucket, found.stored, stored)
    instances.change_metadata(config, machine, lambda _: meant)
    this = states.read_job(box.bucket, "first")
    plan = resume.plan(config, this, resume.spec_again(this, {}))
    resume.submit(jobs.find(config, "first"), plan, print)
    assert ended(box, "first")["state"] == "SUCCEEDED"


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
