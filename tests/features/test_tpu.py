"""A slice of TPUs comes as a whole or not at all, and its machines know their numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, until
from inside import ALONE, job_of, plan_of, run_of, stand_ins

from berg import BergError, gce, google
from berg.features import tpu
from berg.google import OperationFailed
from berg.job import FINAL

WORKER = "python3 -c 'import os; print(*[os.environ[n] for n in \"TPU_WORKER_ID BERG_NODE_RANK MASTER_ADDR TPU_WORKER_HOSTNAMES\".split()])'"


def is_gone(cloud: Cloud, job: str) -> bool:
    """Whether there is no machine of a job, and no group."""
    groups = google.items(cloud.config, "/aggregated/instanceGroupManagers")
    return job not in [row["name"] for row in groups] and not gce.machines(cloud.config, job)


def ended(cloud: Cloud, job: str) -> dict[str, Any]:
    """The state in which a job ends."""
    until(lambda: cloud.state(job)["state"] in FINAL)
    return cloud.state(job)


@pytest.mark.parametrize(
    ("text", "name", "machine_type", "hosts"),
    [
        ("v6e-1", "v6e-1x1", "ct6e-standard-1t", 1),
        ("v6e-4", "v6e-2x2", "ct6e-standard-4t", 1),
        ("v6e-8", "v6e-2x4", "ct6e-standard-4t", 2),
        ("v6e-4x4", "v6e-4x4", "ct6e-standard-4t", 4),
        ("V5P-2x2x1", "v5p-2x2x1", "ct5p-hightpu-4t", 1),
        ("v5p-4x4x4", "v5p-4x4x4", "ct5p-hightpu-4t", 16),
        ("v5p-8x8x12", "v5p-8x8x12", "ct5p-hightpu-4t", 192),
        ("v5p-12x12x16", "v5p-12x12x16", "ct5p-hightpu-4t", 576),
        ("tpu7x-2x2x2", "tpu7x-2x2x2", "tpu7x-standard-4t", 2),
    ],
)
def test_a_name_says_what_the_machines_are(
    text: str, name: str, machine_type: str, hosts: int
) -> None:
    found = tpu.parse(text)
    assert (found.name, found.machine_type, found.hosts) == (name, machine_type, hosts)
    assert name == f"{found.family}-{found.topology}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v99-1", "v6e, v5p, tpu7x"),
        ("v5e-8", "v4 and v5e come as nodes of clusters"),
        ("v5p-16", "v5p-2x2x2, v5p-2x2x4"),
        ("v6e-4x3", "v6e has 1x1"),
        ("v5p-8x4x4", "larger cubes"),
        ("v5p-4x4x6", "larger cubes"), ("v5p-16x8x4", "larger cubes"),
        ("v6e-12x12x12", "v6e has 1x1"), ("v5p-8", "v5p-2x2x1, v5p-2x2x2"),
    ],
)  # fmt: skip
def test_names_that_mean_nothing_or_two_things(text: str, reason: str) -> None:
    with pytest.raises(BergError, match=reason):
        tpu.parse(text)


@pytest.mark.slow
def test_a_slice_runs_the_command_on_each_worker_and_goes(cloud: Cloud, project: Path) -> None:
    done = cloud.ok("run", "--tpu", "v6e-8", "-n", "pod", WORKER, cwd=project)
    assert ended(cloud, "pod")["state"] == "SUCCEEDED", cloud.log("pod")
    assert "v6e-2x4, 8 chips: 2 machines together" in done.err
    records = [json.loads(cloud.read(f".berg/machines/pod/{rank}.json")) for rank in (0, 1)]
    addresses = [row["address"] for row in sorted(records, key=lambda row: row["worker"])]
    said = dict(re.findall(r"^(\d) (\d \S+ \S+)$", cloud.log("pod"), re.M))
    assert said == {n: f"{n} {addresses[0]} {','.join(addresses)}" for n in "01"}
    assert [row["worker"] for row in records] != [0, 1]  # so that their order mattered
    until(lambda: is_gone(cloud, "pod"))


def test_a_zone_without_room_leaves_nothing_and_the_next_one_is_tried(
    cloud: Cloud, project: Path, no_room: Any
) -> None:
    zones = ["-z", "us-east5-a", "-z", "us-east5-b"]
    no_room(zone="us-east5-a")
    words = ["--spot", *zones, "-n", "one", "sleep 60"]
    done = cloud.run("run", "--tpu", "v6e-1", *words, cwd=project)
    assert done.code == 0 and "Created one in us-east5-b" in done.err, done.err
    no_room(zone="us-east5-b")
    words = ["--tpu", "v6e-2x4", *zones, "-n", "no-pod", "true"]
    cloud.fails("run", *words, says="us-east5-b: out of stock", cwd=project)
    assert is_gone(cloud, "no-pod") and not cloud.state("no-pod")
    assert cloud.run("kill", "-y", "--now", "one").code == 0


@pytest.mark.slow
def test_a_slice_that_loses_a_machine_ends_and_is_resumed(cloud: Cloud, project: Path) -> None:
    loop = 'test $BERG_ATTEMPT = 2 && cat $BERG_RESULTS_DIR/kept || { echo "saved" >$BERG_RESULTS_DIR/kept; sleep 60; }'
    words = ["--tpu", "v6e-2x4", "--spot", "-n", "lost"]
    assert cloud.run("run", *words, loop, cwd=project).code == 0
    until(lambda: cloud.names("berg_results/lost/kept"))
    cloud.call("POST", "/_berg/instances/lost-1/preempt", {"notice": 5})
    assert "lost-1: Google took the machine" in ended(cloud, "lost")["reason"]
    until(lambda: is_gone(cloud, "lost"))
    assert cloud.run("run", "--resume", "lost", "--wait", cwd=project).code == 0
    assert cloud.log("lost").count("\nsaved\n") == 2, cloud.log("lost")


@pytest.mark.slow
def test_a_devbox_slice_does_not_stop_and_is_killed_as_a_whole(cloud: Cloud, project: Path) -> None:
    done = cloud.run("devbox", "--tpu", "v5p-2x2x2", "-n", "pod-box", cwd=project)
    assert done.code == 0 and "cannot be switched off" in done.err, done.err
    cloud.fails("stop", "pod-box", says="berg kill pod-box")
    until(lambda: cloud.state("pod-box")["state"] == "RUNNING")
    assert cloud.run("kill", "-y", "pod-box").code == 0
    assert is_gone(cloud, "pod-box")


@pytest.mark.slow
def test_the_loss_of_the_first_machine_is_said_by_the_next_and_the_group_goes(
    cloud: Cloud, project: Path
) -> None:
    cloud.ok("run", "--tpu", "v6e-2x4", "-n", "headless", "sleep 300", cwd=project)
    until(lambda: cloud.state("headless")["state"] == "RUNNING")
    path = ".berg/machines/headless/0.json"
    record = {**json.loads(cloud.read(path)), "phase": "replaced"}  # sooner than by its silence
    cloud.call("POST", "/_berg/instances/headless-0/crash", {})
    cloud.bucket.write(path, b"", about={"record": json.dumps(record)})
    last = ended(cloud, "headless")
    assert last["state"] == "FAILED" and "headless-0 was lost" in last["reason"], last
    until(lambda: is_gone(cloud, "headless"))


@pytest.mark.parametrize(
    ("text", "features", "cmd", "disk", "says"),
    [
        ("v6e-1", {}, "true", "hyperdisk-balanced", "v6e-1x1, 1 chip"),
        (tpu.EIGHT, {}, "true", "hyperdisk-balanced", "v6e-2x4, 8 chips"),
        ("v6e-4x4", {}, "true", "hyperdisk-balanced", "v6e-4x4, 16 chips: 4 machines TOGETHER"),
        ("v5p-8x8x12", {}, "true", "pd-balanced",
         "v5p-8x8x12, 768 chips: 192 machines TOGETHER; Google's table has no 8x8x12, and may refuse it"),
        ("tpu7x-2x2x1", {}, "true", "hyperdisk-balanced", "tpu7x-2x2x1, 4 chips"),
        ("tpu7x-2x2x1", {"Spot": {}}, "true", "hyperdisk-balanced",
         "tpu7x-2x2x1, 4 chips; Google gives tpu7x so only to projects it let in"),
        ("tpu7x-2x2x1", {"Flex": {"flex": True}}, "true", "hyperdisk-balanced",
         "tpu7x-2x2x1, 4 chips; Google gives tpu7x so only to projects it let in"),
        ("v6e-1", {"Flex": {"reservation": "ours"}}, "true", "hyperdisk-balanced",
         "v6e-1x1, 1 chip"),
        ("v6e-2x4", {"Flex": {"flex": True}}, "", "hyperdisk-balanced",
         "v6e-2x4, 8 chips: 2 machines TOGETHER; they cannot be switched off, and have no disk that stays"),
    ],
)  # fmt: skip
def test_the_plan_says_what_tpus_mean(
    text: str, features: Any, cmd: str, disk: str, says: str
) -> None:
    wanted = tpu.parse(text)
    about = {"machine_type": wanted.machine_type, "machines": wanted.hosts, "features": features}
    plan = plan_of(None, job_of("tpus", cmd, **about))
    tpu.Tpu(tpu=text).change(plan)
    together = "together; none is made again when lost"
    assert plan.rows["TPUs"] == says.replace("TOGETHER", together)
    assert plan.create is tpu.create and plan.job.gpu_type == text
    ends = {"onHostMaintenance": "TERMINATE", "instanceTerminationAction": "DELETE"}
    request, nic = plan.request, plan.request["networkInterfaces"][0]["nicType"]
    kinds = nic, request["disks"][0]["initializeParams"]["diskType"], request["labels"]["berg-kind"]
    assert kinds == ("GVNIC", disk, "job") and ends.items() <= request["scheduling"].items()
    threads = {"threadsPerCore": 1} if text == tpu.EIGHT else None
    assert request.get("advancedMachineFeatures") == threads


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


def status(running: int = 0, missing: int = 0, *errors: str) -> dict[str, Any]:
    """What Google says of a group of two machines."""
    check = {"error": {"errors": [{"code": code, "message": "why"} for code in errors]}}
    counts = {"currentInstanceStatuses": {"running": running, "nonExistent": missing}}
    return {"status": {**counts, "bulkInstanceOperation": {"lastProgressCheck": check}}}


@pytest.mark.parametrize(
    ("rows", "is_queued", "fault"),
    [
        ([status(0, 2), status(1, 1), status(2)], False, ""),
        ([status(0, 2), status(0, 2, "INTERNAL_ERROR")], False, tpu.NO_ROOM),
        ([status(0, 2, "QUOTA_EXCEEDED")], False, "QUOTA_EXCEEDED"),
        ([status(0, 2, "QUOTA_EXCEEDED")], True, ""),  # it waits in Google's queue
        ([status(1, 1, "QUOTA_EXCEEDED")], True, "QUOTA_EXCEEDED"),
        ([status(0, 2, "INVALID")], True, "INVALID"),
        ([status(0, 2), None], False, "gone"),
    ],
)
def test_a_slice_is_waited_for_until_it_is_whole_or_queued(
    monkeypatch: pytest.MonkeyPatch, rows: list[Any], is_queued: bool, fault: str
) -> None:
    given, found = iter(rows), ""
    own = {"find": lambda *_, **__: next(given), "time.sleep": lambda _: None}
    stand_ins(monkeypatch, {f"berg.google.{name}": value for name, value in own.items()})
    try:
        tpu.await_all(ALONE, job_of("awaited", machines=2), "/group", is_queued)
    except (OperationFailed, BergError) as error:
        found = getattr(error, "reason", "gone")
    assert found == fault and not [*given]
