"""What goes wrong under jobs on devboxes (berg run --on), one fault a test, as in test_faults.py: no
result is lost, no process and no folder of a job is left on the devbox, and the devbox stays.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import wait_for
from test_faults import SUBMIT as OF_A_MACHINE
from test_faults import Trial, fault, faults
from test_on_box import worker

from berg import job


@pytest.fixture
def trial(berg, seed, record_property, request) -> Trial:
    mark = request.node.get_closest_marker("fault")
    record_property("fault", mark.args)
    made = berg("devbox", "-g", "0", "-n", "desk", *request.node.callspec.params.get("kind", []))
    assert made.returncode == 0, made.stderr
    wait_for(lambda: berg.state("desk")["state"] == "RUNNING", 90, "the devbox")
    thorough = bool(request.config.getoption("--table"))
    return Trial(berg, seed, record_property, thorough, where=("--on", "desk"))


def power(trial: Trial, what: str, **options) -> None:
    trial.berg.cloud.call("POST", f"/_berg/instances/desk/{what}", options)


def folders(trial: Trial) -> list[str]:
    """The folders of jobs that the devbox has, while it is on."""
    process = wait_for(lambda: worker(trial.berg, "desk"), 90, "the devbox's worker")
    root = Path(f"/proc/{process}/root/root")
    if os.geteuid() != 0:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        root = Path(next(each[10:].decode() for each in variables if each[:10] == b"BERG_ROOT="))
    return [each.name for each in root.glob("berg/jobs/*")]


def start(trial: Trial) -> None:
    wait_for(lambda: trial.berg.machines()["desk"]["status"] == "TERMINATED", 90, "the end of desk")
    begun = trial.berg("start", "desk")
    assert begun.returncode == 0, begun.stderr


def check_resumes(trial: Trial, count: int) -> None:
    """The job continues where it was, and nothing of it stays on the devbox."""
    found = trial.log().count("wrote ")
    resumed = trial.berg("run", "--resume", trial.name, "--wait")
    assert resumed.returncode == 0, resumed.stderr + trial.log()
    assert trial.check("SUCCEEDED", count)["attempt"] == 2
    log = trial.log()  # between the last file and its line the command may have ended
    assert any(f"attempt 2 finds {each}\n" in log for each in (found, found + 1)), log
    wait_for(lambda: not folders(trial), 30, "the end of the job's folder")
    assert trial.berg.state("desk")["state"] == "RUNNING"


@fault("a devbox loses its power under a job on it, and starts again; then --resume", "1 2 4 6")
def test_power_cut(trial):
    trial.run(trial.command(40, 0.1))
    trial.until(f"wrote {trial.dice.randint(0, 20)} ")
    time.sleep(trial.dice.uniform(0, 1))
    power(trial, "crash")
    start(trial)
    assert trial.check("FAILED")["reason"] == "its devbox desk went off"
    check_resumes(trial, 40)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "stop --now", "preempt"])
@pytest.mark.parametrize("kind", [["--spot"]])
@fault("a devbox is stopped or preempted under a job on it; then --resume", "1 2 4 6")
def test_the_devbox_stops(trial, how, kind):
    trial.run(trial.command(40, 0.1))
    trial.until(f"wrote {trial.dice.randint(0, 20)} ")
    if how == "preempt":
        power(trial, "preempt", grace=30)
    else:
        assert trial.berg(*how.split(), "desk").returncode == 0
    reason = trial.check("FAILED")["reason"]
    assert "preempted" in reason or reason == "its devbox was stopped or killed"
    start(trial)
    check_resumes(trial, 40)


@pytest.mark.slow
@fault("a devbox is killed under a job on it", "1 2 4")
def test_the_devbox_is_killed(trial):
    trial.run(trial.command(40, 0.1))
    trial.until(f"wrote {trial.dice.randint(0, 20)} ")
    killed = trial.berg("kill", "desk")
    assert killed.returncode == 0 and f"{trial.name} runs on desk" in killed.stderr, killed.stderr
    trial.check("FAILED")
    assert not trial.berg.machines() and not trial.berg.disks()


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["worker", "boot", "devbox"])
@fault("a worker is killed with -9: of a job on a devbox, or of the devbox; then --resume", "1 2 4")
def test_worker_killed(trial, whose):
    trial.run(trial.command(40, 0.1))
    trial.until(f"wrote {trial.dice.randint(0, 20)} ")
    name = "desk" if whose == "devbox" else trial.name
    process = wait_for(lambda: worker(trial.berg, name))
    os.kill(parent_of(process) if whose == "boot" else process, signal.SIGKILL)
    if whose == "devbox":
        start(trial)
    # while the devbox saves what its people have, the job may end well
    if trial.check("FAILED SUCCEEDED")["state"] == "FAILED":
        check_resumes(trial, 40)
    wait_for(lambda: not folders(trial), 30, "the end of the job's folder")


SUBMIT = {step: OF_A_MACHINE[step] for step in ("code", "state", "state, answer", "metadata")} | {
    "request": {"method": "compute.instances.setMetadata"},
    "request, answer": {"method": "compute.instances.setMetadata", "after_handler": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("step", SUBMIT)
@fault("laptop killed with -9, or Ctrl-C, at each step of a submit to a devbox", "1 2 5")
def test_laptop_killed(trial, step, how, monkeypatch):
    what, berg = SUBMIT[step], trial.berg
    trial.fault(**what, delay=1)
    laptop = berg.start("run", "--on", "desk", "-n", trial.name, trial.command(5))
    wait_for(
        lambda: any(f["hits"] and f["method"] == what["method"] for f in faults(berg)),
        60,
        "the fault",
    )
    time.sleep(trial.dice.uniform(0, 1))
    with contextlib.suppress(ProcessLookupError):
        laptop.send_signal(how)
    laptop.communicate()
    time.sleep(2)  # a request that was under way arrives
    is_given = trial.name in job.hosted(values(trial))
    if is_given and berg.bucket.exists(job.state_path(trial.name)):
        trial.check("SUCCEEDED", 5)  # the devbox has it, and does its work
    trial.reap(monkeypatch)
    trial.check_gone()
    wait_for(lambda: not worker(berg, trial.name), 30, "the end of the worker")
    following = berg("run", "--on", "desk", "-n", f"{trial.name}-2", "--wait", "true")
    assert following.returncode == 0, following.stderr
    wait_for(lambda: not folders(trial), 30, "the end of the folders")


def values(trial: Trial) -> dict[str, str]:
    items = trial.berg.machines()["desk"]["metadata"]["items"]
    return {each["key"]: each["value"] for each in items}
