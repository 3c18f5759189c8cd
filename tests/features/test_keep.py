"""Machines wait for other jobs, and these end without them; the machine ends after all."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import BERG, Cloud, until


def shown(cloud: Cloud, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cloud.run("show", name, "--json").out)
    return found


def names(cloud: Cloud) -> list[str]:
    return [row["name"] for row in cloud.call("GET", "/_berg/instances")["instances"]]


@pytest.mark.slow
def test_a_machine_waits_for_jobs_and_costs_until_it_is_killed(cloud: Cloud, project: Path) -> None:
    words = ["run", "-g", "0", "-n", "warm1", "--keep-warm", "30m", "--wait", "true"]
    done = cloud.run(*words, cwd=project)
    assert done.code == 0, done.err
    first = shown(cloud, "warm1")
    assert first["state"] == "SUCCEEDED" and first["instances"] == ["warm1"]
    assert "waits for" in cloud.run("list").out
    plan = cloud.run("run", "-g", "0", "--dry-run", "true", cwd=project)
    found = re.search(r"warm1 is warm \(n1-standard-8, \d+ min left\): --on warm1\n", plan.out)
    assert found, plan.out
    cmd = "hostname >/root/berg_results/own/name; ls /root/berg_results >/root/berg_results/own/ls"
    words = ["run", "--on", "warm1", "-n", "next1", "-r", "own", "--wait", cmd]
    done = cloud.run(*words, cwd=project)
    assert done.code == 0, done.err
    assert cloud.read("berg_results/own/name") == b"warm1\n"
    assert cloud.read("berg_results/own/ls") == b"own\n"
    assert shown(cloud, "next1")["usd"] == 0 and "next1" not in names(cloud)
    assert shown(cloud, "warm1")["usd"] > first["usd"] > 0
    refused = cloud.run("rm", "-y", "warm1")
    assert refused.code == 1 and "berg kill warm1" in refused.err
    assert cloud.run("kill", "warm1").code == 0
    last = shown(cloud, "warm1")
    assert last["state"] == "SUCCEEDED" and last["usd"] == shown(cloud, "warm1")["usd"]
    assert "warm1" not in names(cloud)


@pytest.mark.slow
def test_a_failed_machine_waits_for_its_user_and_goes(cloud: Cloud, project: Path) -> None:
    words = ["run", "-g", "0", "-n", "kept1", "--keep-failed", "40s", "--wait"]
    assert cloud.run(*words, "echo here >/root/left; exit 3", cwd=project).code == 3
    assert cloud.run("ssh", "kept1", "cat /root/left").out == "here\n"
    done = cloud.run("kill", "kept1", BERG_USER="somebody")
    assert done.code == 1 and "End kept1? It is" in done.err, done.err
    until(lambda: "kept1" not in names(cloud))
    done = cloud.run("run", "--on", "kept1", "true", cwd=project)
    assert done.code == 1 and "no machine that waits" in done.err


@pytest.mark.slow
def test_a_job_on_a_devbox_leaves_it_alone_and_ends_with_it(cloud: Cloud, project: Path) -> None:
    assert cloud.run("devbox", "-g", "0", "-n", "host1", cwd=project).code == 0
    until(lambda: shown(cloud, "host1")["state"] == "RUNNING")
    cmd = "echo $PWD; touch mine; trap 'echo saved >$BERG_RESULTS_DIR/last; exit' TERM; sleep 900 & wait"
    on = ["run", "--on", "host1", "-n"]
    for name in ("guest1", "guest2"):
        assert cloud.run(*on, name, "--share", cmd, cwd=project).code == 0
        until(lambda name=name: "/root/code/proj" in cloud.log(name))
    refused = cloud.run(*on, "guest3", "true", cwd=project)
    assert refused.code == 1 and "--share" in refused.err
    assert "there is no job" in cloud.run("show", "guest3").err
    assert cloud.run("ssh", "host1", "ls /root/code/proj").out == "train.py\n"
    assert "on host1" in cloud.run("list").out
    assert cloud.run("kill", "guest1").code == 0  # asks nothing: the devbox stays
    states = {name: shown(cloud, name)["state"] for name in ("guest1", "guest2", "host1")}
    assert states == {"guest1": "KILLED", "guest2": "RUNNING", "host1": "RUNNING"}
    assert cloud.run("kill", "-y", "host1").code == 0
    assert shown(cloud, "guest2")["state"] == "KILLED"
    for name in ("guest1", "guest2"):
        assert cloud.read(f"berg_results/{name}/last") == b"saved\n"


@pytest.mark.slow
def test_a_laptop_that_slept_starts_nothing_on_another_machine(cloud: Cloud, project: Path) -> None:
    run = ["run", "-g", "0", "-n", "old1", "--keep-warm", "10m", "--wait", "true"]
    assert cloud.run(*run, cwd=project).code == 0
    fault = {"method": "storage.objects.insert", "match": "late1", "delay": 3}
    cloud.call("POST", "/_berg/faults", fault)
    cmd = "touch $BERG_RESULTS_DIR/ran"
    words = [*BERG, "run", "--on", "old1", "-n", "late1", cmd]
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
    until(lambda: shown(cloud, "host2")["state"] == "RUNNING")
    mark = "/root/berg/jobs/doomed/berg/began"  # which no worker can read now
    cmd = f"echo kept >$BERG_RESULTS_DIR/file; rm {mark}; mkdir {mark}; kill -9 $PPID"
    assert cloud.run("run", "--on", "host2", "-n", "doomed", cmd, cwd=project).code == 0
    until(lambda: shown(cloud, "doomed")["state"] == "FAILED")
    reason = shown(cloud, "doomed")["reason"]
    assert "worker died 3 times: IsADirectoryError" in reason
    assert "stays on host2: /root/berg/jobs/doomed" in reason
    assert cloud.run("ssh", "host2", "cat /root/berg/jobs/doomed/berg_results/doomed/file").out
    assert shown(cloud, "host2")["state"] == "RUNNING"
    assert cloud.run("kill", "-y", "--now", "host2").code == 0


def test_a_job_on_a_machine_needs_no_other_kind_in_its_region(cloud: Cloud, project: Path) -> None:
    words = ["run", "-g", "0", "-n", "away1", "--region", "us-east5", "--keep-warm", "10m"]
    assert cloud.run(*words, "--wait", "true", cwd=project).code == 0
    dry = ["run", "--on", "away1", "--dry-run"]  # the default is an L4, which that region has not
    done = cloud.run(*dry, "true", cwd=project, BERG_REGION="us-east5")
    assert done.code == 0 and "no new one is created" in done.out, done.err
    done = cloud.run(*dry, "--tpu", "v6e-1", "true", cwd=project)
    assert done.code == 1 and "the options of Tpu" in done.err, done.err
    assert cloud.run("kill", "-y", "--now", "away1").code == 0
