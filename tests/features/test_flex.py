"""Machines that wait come when there is room; what Google does not offer is refused at once."""

import json
from pathlib import Path

import pytest
from conftest import Cloud

WAYS = {
    "queued": ["-t", "l4", "--flex"],
    "together": ["-t", "l4", "--flex", "-m", "2", "--queue-timeout", "2h", "--max-hours", "1"],
    "waits": ["-g", "0", "--wait-for-capacity"],
}


@pytest.mark.slow
def test_jobs_that_wait_run_when_there_is_room(cloud: Cloud, project: Path) -> None:
    cloud.call("POST", "/_berg/stockout", {})
    try:
        for name, words in WAYS.items():
            done = cloud.run("run", *words, "-n", name, "echo $BERG_NODE_RANK", cwd=project)
            assert done.code == 0 and "waits for a machine" in done.err, done.err
            assert json.loads(cloud.read(f".berg/jobs/{name}_state.json"))["state"] == "SUBMITTED"
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})
    for name in WAYS:
        done = cloud.run("wait", name)
        assert done.code == 0, f"{name}: {done.err} {cloud.log(name)}"


@pytest.mark.slow
def test_a_reservation_names_its_zone_and_what_it_is_for(cloud: Cloud, project: Path) -> None:
    zone = "us-central1-c"
    kind = {"machineType": "n1-standard-8"}
    made = {
        "name": "ours", "specificReservationRequired": True,
        "specificReservation": {"count": "1", "instanceProperties": kind},
    }  # fmt: skip
    path = f"/compute/v1/projects/berg-local/zones/{zone}"
    cloud.call("POST", f"{path}/reservations", made)
    words = ["run", "-g", "0", "--reservation", "ours", "-n", "reserved", "sleep 30"]
    done = cloud.run(*words, cwd=project)
    assert done.code == 0 and f"Created reserved in {zone}" in done.err, done.err
    machine = cloud.call("GET", f"{path}/instances/reserved")
    assert machine["reservationAffinity"]["values"] == ["ours"]
    cloud.run("kill", "-y", "--now", "reserved")
    for words, reason in [
        (["-g", "0", "--reservation", "theirs"], "There are: ours"),
        (["-g", "0", "-c", "4", "--reservation", "ours"], "ours is for n1-standard-8"),
        (["-t", "t4", "--flex"], "Choose another -t"),
        (["-t", "l4", "--flex", "--max-hours", "0.1"], "10 minutes to 7 days"),
        (["-t", "l4", "--flex", "--spot"], "comes in one way"),
        (["-g", "0", "--queue-timeout", "1h"], "without --flex"),
        (["-g", "0", "-m", "2", "--wait-for-capacity"], "one machine"),
    ]:
        done = cloud.run("run", "--dry-run", *words, "true", cwd=project)
        assert done.code == 1 and reason in done.err, done.err
