"""Machines wait for other jobs, and these end without them; the machine ends after all."""

import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import BERG, Cloud, until
from inside import ALONE, job_of, plan_of, run_of, state_of
from records import machine, put

from berg import BergError, boot, gce
from berg import job as jobs
from berg.features import keep
from berg.features.data import Data
from berg.features.iap import Iap
from berg.features.keep import Keep, On
from berg.job import Job
from berg.worker import Ending


@pytest.mark.slow
def test_a_machine_waits_for_jobs_and_costs_until_it_is_killed(cloud: Cloud, project: Path) -> None:
    words = ["run", "-g", "0", "-n", "warm1", "--keep-warm", "30m", "--wait", "true"]
    cloud.ok(*words, cwd=project)
    first = cloud.shown("warm1")
    assert first["state"] == "SUCCEEDED" and first["instances"] == ["warm1"]
    plan = cloud.run("run", "-g", "0", "--dry-run", "true", cwd=project)
    found = re.search(r"warm1 is warm \(n1-standard-8, \d+ min left\): --on warm1\n", plan.out)
    assert found, plan.out
    cmd = "cd /root/berg_results/own; hostname >name; ls .. >ls; readlink -f /root/berg/jobs/*/berg/venv >venv"
    words = ["run", "--on", "warm1", "-n", "next1", "-r", "own", "--wait", cmd]
    cloud.ok(*words, cwd=project)
    assert cloud.read("berg_results/own/name") == b"warm1\n"
    assert cloud.read("berg_results/own/ls") == b"own\n"
    assert cloud.read("berg_results/own/venv") == b"/root/berg/venv\n"  # what is there already
    assert cloud.shown("next1")["usd"] == 0 and not gce.machines(cloud.config, "next1")
    assert cloud.shown("warm1")["usd"] > first["usd"] > 0
    assert cloud.run("kill", "warm1").code == 0
    last = cloud.shown("warm1")
    assert last["state"] == "SUCCEEDED" and last["usd"] == cloud.shown("warm1")["usd"]
    assert not gce.machines(cloud.config, "warm1")


@pytest.mark.slow
def test_a_failed_machine_waits_for_its_user_and_goes(cloud: Cloud, project: Path) -> None:
    words = ["run", "-g", "0", "-n", "kept1", "--keep-failed", "40s", "--wait"]
    assert cloud.run(*words, "echo here >/root/left; exit 3", cwd=project).code == 3
    assert cloud.run("ssh", "kept1", "cat /root/left").out == "here\n"
    cloud.fails("kill", "kept1", says="End kept1? It is", BERG_USER="somebody")
    until(lambda: not gce.machines(cloud.config, "kept1"))
    cloud.fails("run", "--on", "kept1", "true", says="no machine that waits", cwd=project)


@pytest.mark.slow
def test_a_job_on_a_devbox_leaves_it_alone_and_ends_with_it(cloud: Cloud, project: Path) -> None:
    assert cloud.run("devbox", "-g", "0", "-n", "host1", cwd=project).code == 0
    until(lambda: cloud.shown("host1")["state"] == "RUNNING")
    cmd = "echo $PWD; touch mine; trap 'echo saved >$BERG_RESULTS_DIR/last; exit' TERM; sleep 900 & wait"
    on = ["run", "--on", "host1", "-n"]
    for name in ("guest1", "guest2"):
        assert cloud.run(*on, name, "--share", cmd, cwd=project).code == 0
        until(lambda name=name: "/root/code/proj" in cloud.log(name))
    cloud.fails(*on, "guest3", "true", says="--share", cwd=project)
    for options in (
        "-t t4 -g 1",
        "-g 2",
        "--image debian-cloud/debian-12",
        "-c 32",
        "--disk-gb 500",
        "-m 2",
        "--spot",
    ):
        cloud.fails(*on, "guest3", *options.split(), "true", says="Leave out", cwd=project)
    assert "there is no job" in cloud.run("show", "guest3").err
    assert cloud.run("ssh", "host1", "ls /root/code/proj").out == "train.py\n"
    assert cloud.run("kill", "guest1").code == 0  # asks nothing: the devbox stays
    states = {name: cloud.shown(name)["state"] for name in ("guest1", "guest2", "host1")}
    assert states == {"guest1": "KILLED", "guest2": "RUNNING", "host1": "RUNNING"}
    assert cloud.run("kill", "-y", "host1").code == 0
    assert cloud.shown("guest2")["state"] == "KILLED"
    for name in ("guest1", "guest2"):
        assert cloud.read(f"berg_results/{name}/last") == b"saved\n"


@pytest.mark.slow
def test_a_laptop_that_slept_starts_nothing_on_another_machine(
    cloud: Cloud, project: Path, faults: Any
) -> None:
    run = ["run", "-g", "0", "-n", "old1", "--keep-warm", "10m", "--wait", "true"]
    assert cloud.run(*run, cwd=project).code == 0
    faults("storage.objects.insert", match="late1", delay=3)
    words = [*BERG, "run", "--on", "old1", "-n", "late1", "touch $BERG_RESULTS_DIR/ran"]
    laptop = subprocess.Popen(words, cwd=project, env=cloud.env, stderr=subprocess.PIPE, text=True)
    until(lambda: cloud.call("GET", "/_berg/faults")["faults"][-1]["hits"])
    laptop.send_signal(signal.SIGSTOP)
    cloud.call("DELETE", "/_berg/faults")
    assert cloud.run("kill", "old1").code == 0 and cloud.run("rm", "-y", "old1").code == 0
    assert cloud.run(*run, cwd=project).code == 0
    laptop.send_signal(signal.SIGCONT)
    _, said = laptop.communicate(timeout=60)
    assert laptop.returncode == 1 and "another machine" in said, said
    assert "there is no job" in cloud.run("show", "late1").err
    assert not cloud.names("berg_results/late1/")
    assert cloud.run("kill", "old1").code == 0


@pytest.mark.slow
def test_a_guest_whose_worker_dies_again_and_again_has_failed(cloud: Cloud, project: Path) -> None:
    assert cloud.run("devbox", "-g", "0", "-n", "host2", cwd=project).code == 0
    until(lambda: cloud.shown("host2")["state"] == "RUNNING")
    mark = "/root/berg/jobs/doomed/berg/began"  # which no worker can read now
    cmd = f"echo kept >$BERG_RESULTS_DIR/file; rm {mark}; mkdir {mark}; kill -9 $PPID"
    assert cloud.run("run", "--on", "host2", "-n", "doomed", cmd, cwd=project).code == 0
    until(lambda: cloud.shown("doomed")["state"] == "FAILED")
    reason = cloud.shown("doomed")["reason"]
    assert "worker died 3 times: IsADirectoryError" in reason
    assert "stays on host2: /root/berg/jobs/doomed" in reason
    assert cloud.run("ssh", "host2", "cat /root/berg/jobs/doomed/berg_results/doomed/file").out
    assert cloud.shown("host2")["state"] == "RUNNING"
    assert cloud.run("kill", "-y", "--now", "host2").code == 0


def test_a_job_on_a_machine_needs_no_other_kind_in_the_region_of_the_settings(
    cloud: Cloud, project: Path
) -> None:
    kept = jobs.now(time.time() + 900)
    machine(cloud, "away1", put(cloud, "away1", job={"max_seconds": 9000}, kept_until=kept))
    dry = ["run", "--on", "away1", "--dry-run"]  # the default is an L4, which that region has not
    done = cloud.run(*dry, "true", cwd=project, BERG_REGION="us-east5")
    assert done.code == 0 and "no new one is created" in done.out, done.err
    cloud.fails(*dry, "--tpu", "v6e-1", "true", says="the options of Tpu", cwd=project)


BOTH = Keep(keep_warm=600, keep_failed=1200)


@pytest.mark.parametrize(
    ("features", "ending", "left", "seconds"),
    [
        ([On(), BOTH], Ending("SUCCEEDED"), 9000, 600),
        ([On(), BOTH], Ending("FAILED"), 9000, 1200),
        ([BOTH], Ending("KILLED"), 9000, 0),
        ([BOTH], Ending("FAILED", is_firm=True), 9000, 0),
        ([BOTH], Ending("FAILED", is_loss=True), 9000, 0),
        ([BOTH], Ending("SUCCEEDED"), 360, 300),  # Google ends it then
        ([BOTH], Ending("FAILED"), 30, 0),
        ([Keep(keep_warm=600)], Ending("SUCCEEDED"), 9000, 600),
        ([Keep(keep_warm=600)], Ending("FAILED"), 9000, 600),
        ([Keep(keep_failed=1200)], Ending("SUCCEEDED"), 9000, 0),
        ([On()], Ending("SUCCEEDED"), 9000, 0),
        ([On()], Ending("FAILED"), 9000, 0),
    ],
)
def test_how_long_a_machine_waits(
    tmp_path: Path, features: list[Any], ending: Ending, left: int, seconds: float
) -> None:
    run = run_of(None, tmp_path, job_of("waits", max_seconds=left), features=features)
    assert keep.waits(run, ending) == pytest.approx(seconds, abs=20)


def box(**about: Any) -> gce.Instance:
    about = {"status": "RUNNING", "job": "host", **about}
    return gce.Instance("host", "us-central1-a", **about)


WARM = {"kept_until": "2100-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("job", "state", "about", "machines", "says"),
    [
        (job_of("host", cmd="", user="ada"), "RUNNING", {}, [box()], ""),
        (job_of("host", user="ada"), "SUCCEEDED", WARM, [box()], ""),
        (job_of("host", user="ada"), "FAILED", WARM, [box()], ""),
        (job_of("host", cmd="", user="bob"), "RUNNING", {}, [box()], "it is bob's"),
        (job_of("host", user="ada", machines=2), "FAILED", WARM, [box()], "has 2 machines"),
        (job_of("host", cmd="", user="ada"), "STOPPED", {}, [box()], "berg start host"),
        (job_of("host", cmd="", user="ada"), "STARTING", {}, [box()], "it is STARTING"),
        (job_of("host", user="ada"), "RUNNING", {}, [box()], "its machine is its own"),
        (job_of("host", user="ada"), "FAILED", {}, [box()], "no machine that waits"),
        (job_of("host", user="ada"), "FAILED", {"kept_until": "2020-01-01T00:00:00Z"}, [box()],
         "no machine that waits"),
        (job_of("host", user="ada"), "FAILED", WARM, [], "no machine that waits"),
        (job_of("host", cmd="", user="ada"), "RUNNING", {}, [box(status="STOPPING")],
         "its machine is STOPPING"),
    ],
)  # fmt: skip
def test_which_machines_take_a_job(
    job: Job, state: str, about: Any, machines: Any, says: str
) -> None:
    said = keep.obstacle(ALONE, state_of(job, state, **about), job, machines)
    assert says in said and bool(says) == bool(said), said


def test_what_a_machine_can_wait_for_is_said_or_refused(cloud: Cloud, project: Path) -> None:
    dry = ["-g", "0", "--dry-run"]
    words = ["--keep-warm", "30m", "--keep-failed", "3h"]
    done = cloud.run("run", *dry, *words, "true", cwd=project)
    waits = "Waits    30m after the job, 3h after a failure, within the limit; that costs as much"
    assert waits in done.out, done.out + done.err
    for words, reason in [
        (["run", "--keep-warm", "8d", "true"], "at most 7d"),
        (["run", "--keep-failed", "8d", "true"], "at most 7d"),
        (["run", "--keep-warm", "1h", "--grid", "x=1,2", "true {x}"], "machines of a sweep"),
        (["devbox", "--keep-warm", "1h"], "a devbox waits anyway"),
        (["devbox", "--keep-failed", "1h"], "a devbox waits anyway"),
        (["run", "--share", "true"], "Add: --on NAME"),
        (["run", "--on", "nosuch", "true"], "nosuch"),
    ]:
        cloud.fails(*words, *dry, says=reason, cwd=project)


@pytest.mark.parametrize(
    ("about", "features", "says"),
    [
        ({}, [], ""),
        ({"cmd": ""}, [], "a devbox has a machine of its own"),
        ({"machines": 2}, [], "Leave out -m"),
        ({"rows": [{"x": "1"}]}, [], "Leave out rows"),
        ({}, [Keep(keep_warm=60)], "Leave out the options of Keep"),
        ({}, [Data(mount=["mnist"])], "Leave out --mount"),
        ({}, [Data(data=["mnist"]), Iap()], ""),  # what nobody asked for is left out in silence
        ({}, [Iap(no_external_ip=True)], "Leave out the options of Iap"),
    ],
)
def test_what_a_machine_that_is_there_does_not_have(about: Any, features: Any, says: str) -> None:
    plan = plan_of(None, job_of("guest", **about), features)
    with click.Context(click.Command("run")):
        if says:
            with pytest.raises(BergError, match=says):
                On(on="host").check(plan)
        else:
            On(on="host").check(plan)
            assert [type(each).__name__ for each in plan.features] == ["Data"] * bool(features)


def test_what_was_not_saved_stays_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "BERG", tmp_path / "berg")
    (tmp_path / "berg").mkdir()
    for is_guest, missing in ((False, {"a": "x"}), (True, {}), (True, {"a": "x"})):
        monkeypatch.setattr(boot, "IS_GUEST", is_guest)
        run = run_of(None, tmp_path, job_of("left-there"), missing=missing)
        On(on="host").ended(run, Ending("FAILED"))
        is_kept = is_guest and bool(missing)
        assert (tmp_path / "berg/unsaved").exists() == is_kept
        assert ("stays on host" in (run.log.read_text() if run.log.exists() else "")) == is_kept


@pytest.mark.parametrize(("left", "waits"), [(9000, True), (keep.LEAST + 2, False)])
def test_the_wait_begins_again_when_a_guest_has_left_and_ends_before_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, waits: bool
) -> None:
    for name, path in (("GUESTS", "jobs"), ("OPEN", "jobs/open"), ("DOOR", "jobs/door")):
        monkeypatch.setattr(boot, name, tmp_path / path)
    monkeypatch.setattr(boot, "HOST", "127.0.0.1:1")
    guest, began = boot.locked(tmp_path / "jobs/guest/lock"), time.monotonic()
    assert boot.guests() == {"guest": 0}
    run = run_of(None, tmp_path, job_of("host", max_seconds=left))
    waiting = threading.Thread(target=keep.wait, args=(run, 5, None))
    waiting.start()
    # Longer than it would have waited.
    until(
        lambda: time.monotonic() > began + 6 if waits else not waiting.is_alive(), keep.LEAST - 15
    )
    guest.close()
    waiting.join(2.5)
    assert waiting.is_alive() == waits
    waiting.join(100)
    assert not waiting.is_alive()
