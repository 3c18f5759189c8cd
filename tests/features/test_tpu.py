"""A slice of TPUs comes as a whole or not at all, and its machines know their numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, until
from inside import job_of, plan_of, run_of

from berg import BergError
from berg.features import tpu
from berg.job import FINAL
from berg.worker import Ending

WORKER = "python3 -c 'import os; print(*[os.environ[n] for n in \"TPU_WORKER_ID BERG_NODE_RANK MASTER_ADDR TPU_WORKER_HOSTNAMES\".split()])'"


def groups(cloud: Cloud) -> list[str]:
    found = cloud.call("GET", "/compute/v1/projects/berg-local/aggregated/instanceGroupManagers")
    return [
        row["name"]
        for place in found["items"].values()
        for row in place.get("instanceGroupManagers", [])
    ]


def machines(cloud: Cloud, job: str) -> list[str]:
    return sorted(row["name"] for row in cloud.call("GET", "/_berg/instances")["instances"]
            if row["labels"]["berg-job"] == job)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "machine_type", "hosts"),
    [
        ("v6e-1", "ct6e-standard-1t", 1),
        ("v6e-4", "ct6e-standard-4t", 1),
        ("v6e-8", "ct6e-standard-4t", 2),
        ("v6e-4x4", "ct6e-standard-4t", 4),
        ("V5P-2x2x1", "ct5p-hightpu-4t", 1),
        ("v5p-8x8x12", "ct5p-hightpu-4t", 192),
        ("tpu7x-2x2x2", "tpu7x-standard-4t", 2),
        ("ct6e-standard-8t", "ct6e-standard-8t", 1),
    ],
)
def test_names(text: str, machine_type: str, hosts: int) -> None:
    found = tpu.parse(text)
    assert (found.machine_type, found.hosts) == (machine_type, hosts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v99-1", "v6e, v5p, tpu7x"),
        ("v5e-8", "v4 and v5e come as nodes of clusters"),
        ("v5p-16", "v5p-2x2x2, v5p-2x2x4"),
        ("v6e-4x3", "v6e has 1x1"),
        ("v5p-8x4x4", "larger cubes"),
    ],
)
def test_names_that_mean_nothing_or_two_things(text: str, reason: str) -> None:
    with pytest.raises(BergError, match=reason):
        tpu.parse(text)


@pytest.mark.slow
def test_a_slice_runs_the_command_on_each_worker_and_goes(cloud: Cloud, project: Path) -> None:
    done = cloud.run("run", "--tpu", "v6e-8", "-n", "pod", WORKER, cwd=project)
    assert done.code == 0, done.err
    until(lambda: cloud.state("pod")["state"] in FINAL)
    assert cloud.state("pod")["state"] == "SUCCEEDED", cloud.log("pod")
    assert "v6e-2x4, 8 chips: 2 machines together" in done.err
    records = [json.loads(cloud.read(f".berg/machines/pod/{rank}.json")) for rank in (0, 1)]
    addresses = [row["address"] for row in sorted(records, key=lambda row: row["worker"])]
    said = dict(re.findall(r"^(\d) (\d \S+ \S+)$", cloud.log("pod"), re.M))
    assert said == {n: f"{n} {addresses[0]} {','.join(addresses)}" for n in "01"}
    assert [row["worker"] for row in records] != [0, 1]  # so that their order mattered
    until(lambda: "pod" not in groups(cloud) and not machines(cloud, "pod"))


def test_a_zone_without_room_leaves_nothing_and_the_next_one_is_tried(
    cloud: Cloud, project: Path
) -> None:
    zones = ["-z", "us-east5-a", "-z", "us-east5-b"]
    cloud.call("POST", "/_berg/stockout", {"zone": "us-east5-a"})
    try:
        words = ["--spot", *zones, "-n", "one", "sleep 60"]
        done = cloud.run("run", "--tpu", "v6e-1", *words, cwd=project)
        assert done.code == 0 and "Created one in us-east5-b" in done.err, done.err
        assert "one" not in groups(cloud)  # it does not come back
        cloud.call("POST", "/_berg/stockout", {"zone": "us-east5-b"})
        done = cloud.run("run", "--tpu", "v6e-2x4", *zones, "-n", "no-pod", "true", cwd=project)
        assert done.code == 1 and "us-east5-b: out of stock" in done.err, done.err
        assert "no-pod" not in groups(cloud) and not cloud.read(".berg/jobs/no-pod_state.json")
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})
    assert cloud.run("kill", "-y", "--now", "one").code == 0


@pytest.mark.slow
def test_a_slice_that_loses_a_machine_ends_and_is_resumed(cloud: Cloud, project: Path) -> None:
    loop = 'test $BERG_ATTEMPT = 2 && cat $BERG_RESULTS_DIR/kept || { echo "saved" >$BERG_RESULTS_DIR/kept; sleep 60; }'
    words = ["--tpu", "v6e-2x4", "--spot", "-n", "lost"]
    assert cloud.run("run", *words, loop, cwd=project).code == 0
    until(lambda: cloud.names("berg_results/lost/kept"))
    cloud.call("POST", "/_berg/instances/lost-1/preempt", {"notice": 5})
    until(lambda: cloud.state("lost")["state"] in FINAL)
    assert "lost-1: Google took the machine" in cloud.state("lost")["reason"]
    until(lambda: not machines(cloud, "lost"))
    done = cloud.run("run", "--resume", "lost", cwd=project)
    until(lambda: cloud.state("lost")["state"] == "SUCCEEDED")
    assert done.code == 0 and cloud.log("lost").count("\nsaved\n") == 2, done.err + cloud.log(
        "lost"
    )


@pytest.mark.slow
def test_a_devbox_slice_does_not_stop_and_is_killed_as_a_whole(cloud: Cloud, project: Path) -> None:
    done = cloud.run("devbox", "--tpu", "v5p-2x2x2", "-n", "pod-box", cwd=project)
    assert done.code == 0 and "cannot be switched off" in done.err, done.err
    assert machines(cloud, "pod-box") == ["pod-box-0", "pod-box-1"]
    done = cloud.run("stop", "pod-box")
    assert done.code == 1 and "berg kill pod-box" in done.err, done.err
    until(lambda: cloud.state("pod-box")["state"] == "RUNNING")
    assert cloud.run("kill", "-y", "pod-box").code == 0
    assert "pod-box" not in groups(cloud) and not machines(cloud, "pod-box")


def test_what_does_not_go_with_tpus_is_refused(cloud: Cloud, project: Path) -> None:
    for words, reason in [
        (["--tpu", "v6e-1", "-g", "1"], "Leave out --gpus"),
        (["--machine-type", "ct6e-standard-4t"], "--tpu v6e-2x2"),
        (["--machine-type", "ct5lp-hightpu-1t", "--region", "any"], "--tpu FAMILY-TOPOLOGY"),
        (["--tpu", "v6e-4x4", "-m", "4"], "Leave out --machines"),
        (["--tpu", "v6e-4x4", "--grid", "x=1,2"], "a row of a sweep has one"),
        (["--tpu", "v6e-4x4", "--reservation", "ours"], "no --reservation"),
        (["--tpu", "v6e-1", "--flex", "--queue-timeout", "1h"], "no --queue-timeout"),
    ]:
        done = cloud.run("run", "--dry-run", *words, "echo {x}", cwd=project)
        assert done.code == 1 and reason in done.err, done.err


@pytest.mark.slow
def test_the_loss_of_the_first_machine_is_said_by_the_next_and_the_group_goes(
    cloud: Cloud, project: Path
) -> None:
    done = cloud.run("run", "--tpu", "v6e-2x4", "-n", "headless", "sleep 300", cwd=project)
    assert done.code == 0, done.err
    until(lambda: cloud.state("headless")["state"] == "RUNNING")
    path = ".berg/machines/headless/0.json"
    record = {**json.loads(cloud.read(path)), "phase": "replaced"}  # sooner than by its silence
    cloud.call("POST", "/_berg/instances/headless-0/crash", {})
    cloud.bucket.write(path, b"", about={"record": json.dumps(record)})
    until(lambda: cloud.state("headless")["state"] in FINAL)
    last = cloud.state("headless")
    assert last["state"] == "FAILED" and "headless-0 was lost" in last["reason"], last
    until(lambda: "headless" not in groups(cloud) and not machines(cloud, "headless"))


@pytest.mark.parametrize(
    ("text", "features", "about", "says"),
    [
        ("v6e-1", [], {}, ["v6e-1x1, 1 chips"]),
        ("v6e-4x4", [], {}, ["16 chips: 4 machines together; none is made again"]),
        ("v5p-8x8x12", [], {}, ["Google's table has no 8x8x12"]),
        ("tpu7x-2x2x1", ["Spot"], {}, ["tpu7x so only to projects it let in"]),
        ("tpu7x-2x2x1", ["Flex"], {}, ["tpu7x so only to projects it let in"]),
        ("v6e-2x4", [], {"cmd": ""}, ["they cannot be switched off"]),
    ],
)
def test_the_plan_says_what_tpus_mean(
    text: str, features: list[str], about: dict[str, Any], says: list[str]
) -> None:
    wanted = tpu.parse(text)
    features_ = {name: {} for name in features}
    about = {"machine_type": wanted.machine_type, "machines": wanted.hosts, **about}
    plan = plan_of(None, job_of("tpus", features=features_, **about))
    tpu.Tpu(tpu=text).change(plan)
    phrases = ["machines together", "has no", "let in", "switched off"]
    told = plan.rows["TPUs"]
    assert all(part in told for part in says), told
    assert all((each in told) == any(each in part for part in says) for each in phrases[1:]), told
    assert plan.create is tpu.create and plan.job.gpu_type == text
    scheduling, interface = plan.request["scheduling"], plan.request["networkInterfaces"][0]
    assert scheduling["onHostMaintenance"] == "TERMINATE" and interface["nicType"] == "GVNIC"
    disk = "pd-balanced" if text[:3] == "v5p" else "hyperdisk-balanced"
    assert plan.request["disks"][0]["initializeParams"]["diskType"] == disk
    assert "advancedMachineFeatures" not in plan.request
    is_box = about.get("cmd") == ""
    assert (plan.request["labels"]["berg-kind"] == "job") and (
        scheduling["instanceTerminationAction"] == "DELETE"
    ), is_box


def test_eight_chips_of_one_machine_have_a_thread_for_each_core() -> None:
    plan = plan_of(None, job_of("eight", machine_type=tpu.EIGHT))
    tpu.Tpu(tpu=tpu.EIGHT).change(plan)
    assert plan.request["advancedMachineFeatures"] == {"threadsPerCore": 1}
    assert "machines together" not in plan.rows["TPUs"] and "no 2x4" not in plan.rows["TPUs"]


@pytest.mark.parametrize(
    ("text", "feature", "options", "says"),
    [
        ("v6e-1", "Flex", {"queue_timeout": 60.0}, "no --queue-timeout"),
        ("v6e-1", "Flex", {"wait_for_capacity": True}, "no --wait-for-capacity"),
        ("v6e-1", "Ssd", {"local_ssd": 1}, "no --local-ssd"),
        ("v6e-2x4", "Flex", {"reservation": "ours"}, "no --reservation"),
        ("v6e-1", "Flex", {"reservation": "ours"}, ""),
        ("v6e-2x4", "Flex", {"flex": True}, ""),
    ],
)
def test_what_tpus_do_not_have(text: str, feature: str, options: Any, says: str) -> None:
    wanted = tpu.parse(text)
    about = {"machine_type": wanted.machine_type, "features": {feature: options}}
    plan = plan_of(None, job_of("without", **about))
    if says:
        with pytest.raises(BergError, match=says):
            tpu.Tpu(tpu=text).change(plan)
    else:
        tpu.Tpu(tpu=text).change(plan)


@pytest.mark.parametrize(
    ("text", "topology"),
    [("v6e-8", "2x4"), ("v5p-4x4x4", "4x4x4"), ("v5p-12x12x16", "12x12x16"), ("v6e-4", "2x2")],
)
def test_topologies(text: str, topology: str) -> None:
    assert (tpu.parse(text).topology, tpu.parse(text).name) == (topology, f"{text[:3]}-{topology}")


@pytest.mark.parametrize("text", ["v5p-4x4x6", "v5p-16x8x4", "v6e-12x12x12", "v5p-8"])
def test_topologies_that_google_has_not(text: str) -> None:
    with pytest.raises(BergError):
        tpu.parse(text)


def test_a_slice_that_is_off_has_ended_and_one_machine_has_not(tmp_path: Path) -> None:
    for machines, state_ in ((2, "FAILED"), (1, "STOPPED")):
        run = run_of(None, tmp_path, job_of("off", machines=machines))
        assert tpu.Tpu().ended(run, Ending("STOPPED", "off")).state == state_
        assert tpu.Tpu().ended(run, Ending("SUCCEEDED")).state == "SUCCEEDED"


def test_the_first_worker_of_a_slice_is_the_master_unless_the_user_says_so(tmp_path: Path) -> None:
    job = job_of("order", machines=3, env={"MASTER_ADDR": "mine"})
    run = run_of(None, tmp_path, job, rank=2)
    run.addresses, run.variables = ["a", "b", "c"], {"BERG_NODE_RANK": "2", "LR": "1"}
    run.peers.records = {0: {"worker": 2}, 1: {"worker": 0}, 2: {"worker": 1}}
    with tpu.Tpu().around(run):
        assert run.variables == {
            "TPU_WORKER_ID": "1", "BERG_NODE_RANK": "1", "PET_NODE_RANK": "1", "LR": "1",
            "TPU_WORKER_HOSTNAMES": "b,c,a", "BERG_HOSTS": "b,c,a",
            "MASTER_ADDR": "mine", "PET_MASTER_ADDR": "b",
        }  # fmt: skip
        assert run.container == ["--privileged"]
    run.peers.records[1] = {"worker": 2}
    with pytest.raises(BergError, match="not the workers of one slice"), tpu.Tpu().around(run):
        pass


def test_no_room_for_tpus_may_be_called_an_internal_error() -> None:
    assert tpu.meant("INTERNAL_ERROR", "x").reason == tpu.NO_ROOM
    assert tpu.meant("QUOTA_EXCEEDED", "x").reason == "QUOTA_EXCEEDED"
