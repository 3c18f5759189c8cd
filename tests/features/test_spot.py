"""Spot machines: what their user hears."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import BERG, LATE, Cloud, until
from inside import ALONE, job_of, plan_of, run_of, stand_ins

from berg import BergError, gce, google
from berg import job as jobs
from berg.feature import Feature
from berg.features import spot
from berg.features.flex import Flex
from berg.features.gke import Gke
from berg.features.ssd import Ssd
from berg.features.tpu import Tpu
from berg.worker import Ending

SPOT, NO_ROOM = spot.Spot(spot=True), "ZONE_RESOURCE_POOL_EXHAUSTED"
GROUPS = "/compute/v1/projects/berg-local/regions/us-central1/instanceGroupManagers"


@pytest.mark.slow
def test_files_that_a_restart_will_not_find_are_named_while_it_runs(
    cloud: Cloud, project: Path
) -> None:
    line = "mkdir outputs; echo 1 > outputs/last.ckpt; for i in $(seq 200); do sleep 1; done"
    words = ["-n", "spot-outputs", "--spot", line]
    assert cloud.run("run", "-g", "0", *words, cwd=project).code == 0
    until(lambda: cloud.state("spot-outputs")["missing"])  # by its next sign of life
    says = (
        "a restart will not find it: write to $BERG_RESULTS_DIR (/root/berg_results/spot-outputs)"
    )
    ((folder, about),) = cloud.state("spot-outputs")["missing"].items()
    assert folder.endswith("/outputs/") and about.endswith(f"; {says}")
    assert cloud.log("spot-outputs").count("/outputs: 1 file,") == 1
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


LOST, OFF = Ending("LOST", "taken", 1, is_loss=True), Ending("STOPPED", "off", 1)
PAIR = {"machines": 2}


@pytest.mark.parametrize(
    ("feature", "about", "ending", "state", "reason"),
    [
        (SPOT, {}, LOST, "SUBMITTED", "taken; waiting for another machine"),
        (SPOT, {}, Ending("SUBMITTED", "taken", is_loss=True), "SUBMITTED", "taken"),
        (SPOT, {}, Ending("FAILED", "broke", 1), "FAILED", "broke"),
        (SPOT, {"returns": False}, LOST, "LOST", "taken"),
        (Flex(wait_for_capacity=True), {}, LOST, "SUBMITTED", "taken; waiting for another machine"),
        (Flex(flex=True), {}, LOST, "LOST", "taken"),
        (Gke(cluster="train"), {}, LOST, "SUBMITTED", "taken; waiting for another pod"),
        (Gke(cluster="train"), {"returns": False}, LOST, "LOST", "taken"),
        (Gke(cluster="train"), {}, OFF, "KILLED", "off"),  # a pod has no disk that stays
        (Gke(cluster="train"), {}, Ending("FAILED", "broke", 1), "FAILED", "broke"),
        (Tpu(), PAIR, OFF, "FAILED", "off"),  # as has a slice
        (Tpu(), {}, OFF, "STOPPED", "off"),
        (Tpu(), PAIR, Ending("SUCCEEDED", "", 1), "SUCCEEDED", ""),
    ],
)
def test_what_becomes_of_a_job_whose_machine_google_took(
    tmp_path: Path, feature: Feature, about: Any, ending: Ending, state: str, reason: str
) -> None:
    made = feature.ended(
        run_of(None, tmp_path, job_of("taken", **{"returns": True, **about})), ending
    )
    code = None if state == "SUBMITTED" else 1
    assert (made.state, made.reason, made.exit_code) == (state, reason, code)


@pytest.mark.parametrize("cmd", ["true", ""])
def test_spot_machines_of_jobs_come_back_and_those_of_devboxes_do_not(cmd: str) -> None:
    plan = plan_of(None, job_of("spots", cmd=cmd))
    own = {"provisioningModel": "SPOT", "preemptionNoticeDuration": {"seconds": "120"}}
    expected = {**plan.request["scheduling"], **own, "onHostMaintenance": "TERMINATE"}
    SPOT.change(plan)
    assert plan.request["scheduling"] == expected and plan.rows["Machine"].endswith(", Spot")
    create = spot.create_group if cmd else gce.create
    assert (plan.job.returns, plan.create) == (bool(cmd), create)


def member(zone: str, status: str, code: str = "", message: str = "") -> dict[str, Any]:
    errors = [{"code": code, "message": message}] if message else []
    attempt = {"lastAttempt": {"errors": {"errors": errors}}}
    return {"instance": f"x/zones/{zone}/instances/m", "instanceStatus": status, **attempt}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([member("a-b", "STAGING"), member("a-b", "RUNNING")], "a-b"),
        ([member("a-b", "RUNNING"), member("a-b", "", NO_ROOM, "none")], ""),  # one of two
        ([member("a-b", "", "INVALID", f"x {gce.UNKNOWN_ACCOUNT} y")], ""),  # which is new
        ([member("a-b", "", NO_ROOM, "none"), member("a-b", "", "QUOTA_EXCEEDED", "too few")],
         "no machine could be created in a: too few"),
    ],
)  # fmt: skip
def test_the_zone_of_a_group_is_known_when_all_its_machines_are_there(
    monkeypatch: pytest.MonkeyPatch, rows: Any, found: str
) -> None:
    answer = lambda *_, **__: {"managedInstances": rows}  # noqa: E731
    stand_ins(monkeypatch, {"berg.features.spot.ANSWER": 0.1, "berg.google.call": answer})
    try:
        zone = spot.first_zone(ALONE, "a", job_of("pair", machines=2), print)
    except BergError as error:
        zone = str(error)
    assert zone == found


@pytest.mark.parametrize("machines", [1, 3])
def test_a_group_is_that_of_its_job_and_goes_alone(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, no_room: Any, machines: int
) -> None:
    monkeypatch.setattr(spot, "ANSWER", 0)
    user = cloud.config.user
    about = {"returns": True, "image": gce.find_image(cloud.config, cloud.config.default_image)}
    job = job_of(f"grouped{machines}", machines=machines, user=user, **about)
    plan = plan_of(cloud, job)
    Ssd(local_ssd=1).change(plan)
    told = gce.metadata(cloud.config, job, "ssh-ed25519 AAAA")
    plan.request["metadata"] = {"items": [{"key": key, "value": told[key]} for key in told]}
    zones = ["us-central1-b", "us-central1-c", "us-east1-b"]
    no_room()
    said: list[str] = []
    assert spot.create_group(cloud.config, job, plan.request, zones, said.append) == ""
    assert "no room now" in said[-1] and "us-east1" not in said[0]
    (group,) = spot.groups(cloud.config, job)
    assert (group["name"], spot.made_for(group)) == (job.name, job.sha256)
    path, same = f"{GROUPS}/{job.name}", spot.make_template(cloud.config, plan.request)[0]
    made = cloud.call("GET", path)
    again = {"onRepair": {"allowChangingZone": "YES"}} if machines == 1 else {}
    own, compute = {"berg-job": job.name, "berg-job-sha256": job.sha256}, "compute/v1"
    assert [row["zone"][-1] for row in made["distributionPolicy"]["zones"]] == ["b", "c"]
    assert made["instanceTemplate"].endswith(f"/{compute}/{same}"), "jobs of a kind share one"
    expected = {
        "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
        "instanceLifecyclePolicy": {"forceUpdateOnRepair": "YES", **again},
        "distributionPolicy": {"targetShape": "ANY" if machines == 1 else "ANY_SINGLE_ZONE"},
        "allInstancesConfig": {"properties": {"labels": {"berg-job": job.name}, "metadata": own}},
    }
    assert expected == {
        key: {name: text for name, text in made[key].items() if name in about}
        for key, about in expected.items()
    }
    rows = cloud.call("POST", f"{path}/listManagedInstances")["managedInstances"]
    names = sorted(row.get("name", job.name) for row in rows)
    assert names == job.machine_names or machines == len(rows) == 1
    shown = cloud.call("GET", f"/{compute}/{same}")["properties"]
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
