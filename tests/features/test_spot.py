"""Spot machines: what their user hears."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import BERG, LATE, Cloud, until
from inside import job_of, plan_of, run_of

from berg import gce, google
from berg import job as jobs
from berg.features import spot
from berg.features.ssd import Ssd
from berg.worker import Ending

GROUPS = "/compute/v1/projects/berg-local/regions/us-central1/instanceGroupManagers"


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
    cloud: Cloud, project: Path, no_room: Any
) -> None:
    words = ["-n", "comes-back", "--spot", "sleep 300"]
    assert cloud.run("run", "-g", "0", *words, cwd=project).code == 0
    until(lambda: cloud.state("comes-back")["state"] == "RUNNING")
    no_room()
    (machine,) = gce.machines(cloud.config, "comes-back")
    cloud.call("POST", f"/_berg/instances/{machine.name}/crash", {})
    until(lambda: not any(each.is_on for each in gce.machines(cloud.config, "comes-back")))
    words = [*LATE, "list", "--json"]
    listed = subprocess.check_output(words, env=cloud.env)
    no_room(on=False)
    (row,) = [row for row in json.loads(listed) if row["name"] == "comes-back"]
    assert row["state"] == "RUNNING", row
    no_room(zone=machine.zone)
    until(lambda: any(each.is_on for each in gce.machines(cloud.config, "comes-back")))
    (other,) = gce.machines(cloud.config, "comes-back")
    assert other.zone != machine.zone
    assert cloud.run("kill", "-y", "--now", "comes-back").code == 0


@pytest.mark.slow
def test_a_submit_that_slept_leaves_its_job_alone_that_has_ended(
    cloud: Cloud, project: Path, faults: Any
) -> None:
    words = [*BERG, "run", "-g", "0", "--spot", "-n", "sleeper", "echo done"]
    pipes = {"cwd": project, "env": cloud.env, "stderr": subprocess.PIPE, "text": True}
    groups = "/aggregated/instanceGroupManagers"
    faults("compute.regionInstanceGroupManagers.insert", delay=3, after_handler=True)
    with subprocess.Popen(words, **pipes) as laptop:
        until(lambda: any(each["hits"] for each in cloud.call("GET", "/_berg/faults")["faults"]))
        laptop.send_signal(signal.SIGSTOP)
        assert cloud.run("wait", "sleeper").code == 0, cloud.log("sleeper")
        until(lambda: "sleeper" not in str([*google.items(cloud.config, groups)]))
        cloud.call("DELETE", "/_berg/faults")
        laptop.send_signal(signal.SIGCONT)
        said = laptop.communicate()[1]
    assert laptop.returncode == 1 and "sleeper is SUCCEEDED by now" in said, said
    assert cloud.shown("sleeper")["state"] == "SUCCEEDED"


def test_a_group_makes_its_machine_when_its_account_is_known(cloud: Cloud, project: Path) -> None:
    cloud.call("POST", "/_berg/settings", {"account_delay": 1e6})
    words = [*BERG, "run", "-g", "0", "-n", "early", "--spot", "true"]

    def is_refused() -> bool:
        with contextlib.suppress(google.GoogleError):
            found = cloud.call("POST", f"{GROUPS}/early/listManagedInstances")
            return "serviceAccount" in str(found)
        return False

    try:
        with subprocess.Popen(
            words, cwd=project, env=cloud.env, stderr=subprocess.PIPE, text=True
        ) as laptop:
            until(is_refused)
            cloud.call("POST", "/_berg/settings", {"account_delay": 0})
            said = laptop.communicate()[1]
    finally:
        cloud.call("POST", "/_berg/settings", {"account_delay": 0})
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


@pytest.mark.parametrize(
    ("returns", "ending", "state", "reason"),
    [
        (True, Ending("LOST", "taken", 1, is_loss=True), "SUBMITTED", "taken; waiting for another machine"),
        (True, Ending("SUBMITTED", "taken", is_loss=True), "SUBMITTED", "taken"),
        (True, Ending("FAILED", "broke", 1), "FAILED", "broke"),
        (False, Ending("LOST", "taken", is_loss=True), "LOST", "taken"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_job_whose_machine_google_took(
    tmp_path: Path, returns: bool, ending: Ending, state: str, reason: str
) -> None:
    run = run_of(None, tmp_path, job_of("taken", returns=returns))
    made = spot.Spot(spot=True).ended(run, ending)
    assert (made.state, made.reason) == (state, reason)
    assert made.exit_code == (1 if state == "FAILED" else None)


@pytest.mark.parametrize("cmd", ["true", ""])
def test_spot_machines_of_jobs_come_back_and_those_of_devboxes_do_not(cmd: str) -> None:
    plan = plan_of(None, job_of("spots", cmd=cmd))
    spot.Spot(spot=True).change(plan)
    scheduling = plan.request["scheduling"]
    assert scheduling["provisioningModel"] == "SPOT" and ", Spot" in plan.rows["Machine"]
    assert scheduling["preemptionNoticeDuration"] == {"seconds": "120"}
    assert scheduling["onHostMaintenance"] == "TERMINATE"
    assert plan.job.returns == bool(cmd)
    assert plan.create is (spot.create_group if cmd else gce.create)


@pytest.mark.parametrize(
    ("error", "comes"),
    [
        ({"code": "ZONE_RESOURCE_POOL_EXHAUSTED"}, True),
        ({"code": "INVALID", "message": f"x {gce.UNKNOWN_ACCOUNT} y"}, True),
        ({"code": "QUOTA_EXCEEDED", "message": "x"}, False),
        ({}, False),
    ],
)
def test_which_errors_of_a_group_are_waited_for(error: dict[str, str], comes: bool) -> None:
    assert spot.may_come(error) == comes


@pytest.mark.parametrize("machines", [1, 3])
def test_a_group_is_that_of_its_job_and_goes_alone(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, no_room: Any, machines: int
) -> None:
    monkeypatch.setattr(spot, "ANSWER", 0)
    user = cloud.config.user
    job = job_of(f"grouped{machines}", machines=machines, returns=True, user=user)
    plan = plan_of(cloud, job)
    Ssd(local_ssd=1).change(plan)
    images, family = cloud.config.default_image.split("/")
    image = f"projects/{images}/global/images/family/{family}"
    plan.request["disks"][0]["initializeParams"]["sourceImage"] = image
    told = gce.metadata(cloud.config, job, "ssh-ed25519 AAAA")
    plan.request["metadata"] = {"items": [{"key": key, "value": told[key]} for key in told]}
    zones = ["us-central1-b", "us-central1-c", "us-east1-b"]
    no_room()
    said: list[str] = []
    assert spot.create_group(cloud.config, job, plan.request, zones, said.append) == ""
    assert "no room now" in said[-1] and "us-east1" not in said[0]
    (group,) = spot.groups(cloud.config, job)
    assert (group["name"], spot.made_for(group)) == (job.name, job.sha256)
    path = f"{GROUPS}/{job.name}"
    made = cloud.call("GET", path)
    assert made["distributionPolicy"]["targetShape"] == (
        "ANY" if machines == 1 else "ANY_SINGLE_ZONE"
    )
    assert [row["zone"][-1] for row in made["distributionPolicy"]["zones"]] == ["b", "c"]
    assert made["updatePolicy"]["type"] == "OPPORTUNISTIC"
    rows = cloud.call("POST", f"{path}/listManagedInstances")["managedInstances"]
    if machines > 1:
        assert sorted(row["name"] for row in rows) == job.machine_names
    assert len(rows) == machines
    again, own = spot.make_template(cloud.config, plan.request)
    assert made["instanceTemplate"].endswith(again.rpartition("/")[2]), "jobs of a kind share one"
    assert own == {"berg-job": job.name, "berg-job-sha256": job.sha256}
    shown = cloud.call("GET", f"/compute/v1/{again}")["properties"]
    items = {row["key"]: row["value"] for row in shown["metadata"]["items"]}
    assert not items.keys() & own.keys() and items["berg-bucket"] == cloud.config.bucket
    assert "berg-job" not in shown["labels"] and shown["labels"]["berg"] == "1"
    disks = [disk.get("type", "PERSISTENT") for disk in shown["disks"]]
    assert disks == ["PERSISTENT", "SCRATCH"]
    other = job_of(job.name, machines=machines, returns=True)
    spot.Spot().forget(cloud.config, other)
    job.returns = False
    spot.Spot().forget(cloud.config, job)
    job.returns = True
    assert spot.groups(cloud.config, job), "another job has the name, or it has no group"
    spot.Spot().forget(cloud.config, job)
    assert not spot.groups(cloud.config, job)
