"""Spot machines: what their user hears."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BERG, Cloud, until

from berg import gce, google
from berg import job as jobs


@pytest.mark.slow
def test_files_that_a_restart_will_not_find_are_named_while_it_runs(
    cloud: Cloud, project: Path
) -> None:
    line = "mkdir outputs; echo 1 > outputs/last.ckpt; for i in $(seq 200); do sleep 1; done"
    words = ["-n", "spot-outputs", "--spot", line]
    assert cloud.run("run", "-g", "0", *words, cwd=project).code == 0
    until(lambda: "a restart will not find it" in cloud.log("spot-outputs"))
    assert "/outputs: 1 file," in cloud.log("spot-outputs")
    assert cloud.run("kill", "spot-outputs", "--now").code == 0


@pytest.mark.slow
def test_a_job_whose_machine_google_took_is_not_lost_while_there_is_no_room(
    cloud: Cloud, project: Path
) -> None:
    late = "import berg.job; berg.job.SILENT = 0; from berg.cli import main; main()"
    words = ["-n", "comes-back", "--spot", "sleep 300"]
    assert cloud.run("run", "-g", "0", *words, cwd=project).code == 0
    until(lambda: b'"RUNNING"' in cloud.read(".berg/jobs/comes-back_state.json"))
    cloud.call("POST", "/_berg/stockout", {})
    try:
        (machine,) = gce.machines(cloud.config, "comes-back")
        cloud.call("POST", f"/_berg/instances/{machine.name}/crash", {})
        until(lambda: not any(each.is_on for each in gce.machines(cloud.config, "comes-back")))
        words = [sys.executable, "-c", late, "list", "--json"]
        listed = subprocess.check_output(words, env=cloud.env)
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})
    (row,) = [row for row in json.loads(listed) if row["name"] == "comes-back"]
    assert row["state"] == "RUNNING", row
    cloud.call("POST", "/_berg/stockout", {"zone": machine.zone})  # there is room in others
    try:
        until(lambda: any(each.is_on for each in gce.machines(cloud.config, "comes-back")))
        (other,) = gce.machines(cloud.config, "comes-back")
        assert other.zone != machine.zone
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})
    assert cloud.run("kill", "-y", "--now", "comes-back").code == 0


@pytest.mark.slow
def test_a_submit_that_slept_leaves_its_job_alone_that_has_ended(
    cloud: Cloud, project: Path
) -> None:
    words = [*BERG, "run", "-g", "0", "--spot"]
    pipes = {"cwd": project, "env": cloud.env, "stderr": subprocess.PIPE, "text": True}
    groups = f"/compute/v1/projects/{cloud.config.project}/aggregated/instanceGroupManagers"
    slow = {
        "method": "compute.regionInstanceGroupManagers.insert",
        "delay": 3,
        "after_handler": True,
    }
    cloud.call("POST", "/_berg/faults", slow)
    with subprocess.Popen([*words, "-n", "sleeper", "echo done"], **pipes) as laptop:
        until(lambda: any(each["hits"] for each in cloud.call("GET", "/_berg/faults")["faults"]))
        laptop.send_signal(signal.SIGSTOP)
        assert cloud.run("wait", "sleeper").code == 0, cloud.log("sleeper")
        until(lambda: "sleeper" not in json.dumps(cloud.call("GET", groups)))
        cloud.call("DELETE", "/_berg/faults")
        laptop.send_signal(signal.SIGCONT)
        said = laptop.communicate()[1]
    assert laptop.returncode == 1 and "sleeper is SUCCEEDED by now" in said, said
    assert json.loads(cloud.run("show", "sleeper", "--json").out)["state"] == "SUCCEEDED"


def test_a_group_makes_its_machine_when_its_account_is_known(cloud: Cloud, project: Path) -> None:
    region = (
        f"{cloud.config.endpoint}/compute/v1/projects/{cloud.config.project}/regions/us-central1"
    )
    listing = f"{region}/instanceGroupManagers/early/listManagedInstances"
    cloud.call("POST", "/_berg/settings", {"account_delay": 1e6})
    words = [*BERG, "run", "-g", "0", "-n", "early", "--spot", "true"]

    def is_refused() -> bool:
        with contextlib.suppress(google.GoogleError):
            return "serviceAccount" in str(
                google.call(cloud.config, "POST", listing, requestId=None)
            )
        return False

    try:
        with subprocess.Popen(
            words, cwd=project, env=cloud.env, stderr=subprocess.PIPE, text=True
        ) as laptop:
            until(is_refused)
            cloud.call("POST", "/_berg/settings", {"account_delay": 1})
            said = laptop.communicate()[1]
    finally:
        cloud.call("POST", "/_berg/settings", {"account_delay": 1})
    assert laptop.returncode == 0 and "Created early in" in said, said


@pytest.mark.slow
def test_a_command_that_does_not_hear_is_ended_in_time_to_save(cloud: Cloud, project: Path) -> None:
    line = "trap '' TERM; while :; do date >>$BERG_RESULTS_DIR/dates; sleep 0.5; done"
    assert cloud.run("run", "-g", "0", "-n", "deaf", line, cwd=project).code == 0
    until(lambda: cloud.read("berg_results/deaf/dates"))
    cloud.call("POST", "/_berg/instances/deaf/preempt", {"grace": 30})
    until(lambda: not gce.machines(cloud.config, "deaf"))
    state, _ = jobs.read_state(cloud.bucket, "deaf")
    assert (state.state, state.reason) == ("LOST", "Google took the machine")
