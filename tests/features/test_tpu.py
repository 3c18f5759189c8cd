"""A slice of TPUs comes as a whole or not at all, and its machines know their numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, until

from berg import BergError
from berg.features import tpu
from berg.job import FINAL

WORKER = "python3 -c 'import os; print(*[os.environ[n] for n in \"TPU_WORKER_ID BERG_NODE_RANK MASTER_ADDR TPU_WORKER_HOSTNAMES\".split()])'"


def groups(cloud: Cloud) -> list[str]:
    found = cloud.call("GET", "/compute/v1/projects/berg-local/aggregated/instanceGroupManagers")
    return [
        row["name"]
        for place in found["items"].values()
        for row in place.get("instanceGroupManagers", [])
    ]


def state(cloud: Cloud, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cloud.read(f".berg/jobs/{job}_state.json"))
    return found


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
    until(lambda: state(cloud, "pod")["state"] in FINAL)
    assert state(cloud, "pod")["state"] == "SUCCEEDED", cloud.log("pod")
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
    until(lambda: state(cloud, "lost")["state"] in FINAL)
    assert "lost-1: Google took the machine" in state(cloud, "lost")["reason"]
    until(lambda: not machines(cloud, "lost"))
    done = cloud.run("run", "--resume", "lost", cwd=project)
    until(lambda: state(cloud, "lost")["state"] == "SUCCEEDED")
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
    until(lambda: state(cloud, "pod-box")["state"] == "RUNNING")
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
    until(lambda: state(cloud, "headless")["state"] == "RUNNING")
    path = ".berg/machines/headless/0.json"
    record = {**json.loads(cloud.read(path)), "phase": "replaced"}  # sooner than by its silence
    cloud.call("POST", "/_berg/instances/headless-0/crash", {})
    cloud.bucket.write(path, b"", about={"record": json.dumps(record)})
    until(lambda: state(cloud, "headless")["state"] in FINAL, 60)
    last = state(cloud, "headless")
    assert last["state"] == "FAILED" and "headless-0 was lost" in last["reason"], last
    until(lambda: "headless" not in groups(cloud) and not machines(cloud, "headless"))
