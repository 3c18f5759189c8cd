"""Machines that wait come when there is room; what Google does not offer is refused at once."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import LATE, Cloud, until
from inside import job_of, plan_of, run_of

from berg import BergError, gce, google
from berg.feature import Feature
from berg.features import flex, spot
from berg.features.flex import Flex
from berg.features.tpu import Tpu

WAYS = {
    "queued": ["-t", "l4", "--flex"],
    "together": ["-t", "l4", "--flex", "-m", "2", "--queue-timeout", "2h", "--max-hours", "1"],
    "waits": ["-g", "0", "--wait-for-capacity"],
}


@pytest.mark.slow
def test_jobs_that_wait_run_when_there_is_room(cloud: Cloud, project: Path, no_room: Any) -> None:
    no_room()
    for name, words in {**WAYS, "killed": WAYS["waits"]}.items():
        done = cloud.run("run", *words, "-n", name, "touch $BERG_RESULTS_DIR/x", cwd=project)
        assert done.code == 0 and "waits for a machine" in done.err, done.err
        assert cloud.state(name)["state"] == "SUBMITTED"
    assert cloud.run("kill", "-y", "killed").code == 0
    path = "/regions/us-central1/instanceGroupManagers/together"
    made = google.call(cloud.config, "GET", path)
    queued = google.call(cloud.config, "GET", f"{path}/resizeRequests/together")
    names = [row["name"] for row in queued["instances"]]
    found = (
        names,
        queued["requestedRunDuration"]["seconds"],
        made["distributionPolicy"]["targetShape"],
    )
    assert found == (["together-0", "together-1"], "3600", "ANY_SINGLE_ZONE")
    assert made["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "DO_NOTHING"
    no_room(on=False)
    for name in WAYS:
        done = cloud.run("wait", name)
        assert done.code == 0, f"{name}: {done.err} {cloud.log(name)}"
    assert cloud.state("killed")["state"] == "KILLED"
    assert cloud.names("berg_results/waits/x") and not cloud.names("berg_results/killed/x")


@pytest.mark.slow
def test_a_wait_that_ran_out_breaks_no_command(cloud: Cloud, project: Path, no_room: Any) -> None:
    no_room()
    cloud.call("POST", "/_berg/settings", {"hurry": 3600})  # the wait is over in two seconds
    try:
        cloud.ok("run", *WAYS["queued"], "-n", "ran-out", "true", cwd=project)
        until(lambda: not gce.machines(cloud.config, "ran-out"))
        for words in ("list --json", "show ran-out --json", "reap --json", "kill -y ran-out"):
            late = [*LATE, *words.split()]  # they ask why there is no machine
            subprocess.run(late, env=cloud.env, cwd=cloud.home, check=True)
    finally:
        cloud.call("POST", "/_berg/settings", {"hurry": 1})


@pytest.mark.slow
def test_a_reservation_names_its_zone_and_what_it_is_for(cloud: Cloud, project: Path) -> None:
    zone = "us-central1-c"
    kind = {"count": "1", "instanceProperties": {"machineType": "n1-standard-8"}}
    made = {"name": "ours", "specificReservationRequired": True, "specificReservation": kind}
    path = f"/compute/v1/projects/berg-local/zones/{zone}"
    cloud.call("POST", f"{path}/reservations", made)
    words = ["run", "-g", "0", "--reservation", "ours", "-n", "reserved", "sleep 30"]
    done = cloud.run(*words, cwd=project)
    assert done.code == 0 and f"Created reserved in {zone}" in done.err, done.err
    machine = cloud.call("GET", f"{path}/instances/reserved")
    assert machine["reservationAffinity"]["values"] == ["ours"]
    cloud.run("kill", "-y", "--now", "reserved")
    for words, reason in [
        (["-g", "0", "-c", "4", "--reservation", "ours"], "ours is for n1-standard-8"),
        (["-t", "t4", "--flex"], "Choose another -t"),
        (["-t", "l4", "--flex", "--max-hours", "0.1"], "10 minutes to 7 days"),
        (["-t", "l4", "--flex", "--spot"], "comes in one way"),
        (["-g", "0", "--queue-timeout", "1h"], "without --flex"),
        (["-g", "0", "-m", "2", "--wait-for-capacity"], "one machine"),
    ]:
        cloud.fails("run", "--dry-run", *words, "true", says=reason, cwd=project)


@pytest.mark.parametrize(
    ("waited", "up", "timeout", "begun", "is_over"),
    [
        (1000, 100, 950, False, False),
        (1000, 100, 850, False, True),
        (1000, 100, 850, True, False),  # its command runs
        (1000, 100, 0, False, False),
    ],
)
def test_machines_that_come_too_late_do_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    waited: float, up: float, timeout: float, begun: bool, is_over: bool,
) -> None:  # fmt: skip
    job = job_of("late")
    run = run_of(None, tmp_path, job, up=up, begun=begun, monkeypatch=monkeypatch, ago=waited)
    ending = Flex(flex=True, queue_timeout=timeout).look(run)
    assert bool(ending) == is_over
    if ending:
        assert ending.state == "FAILED" and ending.is_firm and "--queue-timeout" in ending.reason


@pytest.mark.parametrize(
    ("about", "timeout", "create", "queue", "returns"),
    [
        ({}, 0, flex.create_queued, "for at most 2h", False),
        ({}, 3 * 3600, flex.create_request, "for at most 3h", True),
        ({"machines": 2}, 0, flex.create_request, "until there is room", True),
        ({"machines": 2}, 3 * 3600, flex.create_request, "for at most 3h", True),
        ({"machines": 2}, 60, print, "for at most 60s", False),  # as another feature makes them
    ],
)
def test_how_machines_wait_in_googles_queue(
    about: dict[str, Any], timeout: float, create: Any, queue: str, returns: bool
) -> None:
    about = {"machine_type": "g2-standard-8", "gpu_type": "l4", "gpus": 1, **about}
    plan = plan_of(None, job_of("queue", max_seconds=3600, **about))
    plan.create = create if create is print else plan.create
    Flex(flex=True, queue_timeout=timeout).change(plan)
    assert plan.create is create and plan.job.returns == returns
    assert plan.request["scheduling"]["provisioningModel"] == "FLEX_START"
    assert plan.request["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert plan.rows["Queue"] == queue and ", flex-start" in plan.rows["Machine"]


def test_a_job_that_waits_for_capacity_comes_back_and_is_no_spot_machine() -> None:
    plan = plan_of(None, job_of("patient"))
    Flex(wait_for_capacity=True).change(plan)
    assert plan.create is spot.create_group and plan.job.returns
    assert "provisioningModel" not in plan.request["scheduling"]


def reservation(name: str, kind: str, zone: str, **more: Any) -> dict[str, Any]:
    counts = {"count": "4", "inUseCount": "1", "instanceProperties": {"machineType": kind}}
    about = {"name": name, "zone": f"projects/p/zones/{zone}", "specificReservationRequired": True}
    return {**about, "specificReservation": counts, **more}


def reserved(monkeypatch: pytest.MonkeyPatch, text: str, *rows: Any, futures: Any = ()) -> Any:
    """The plan of a job, where Google has these reservations."""
    asked = []

    def items(config: Any, path: str, **query: Any) -> list[Any]:
        asked.append(path)
        return [*(futures if path.endswith("futureReservations") else rows)]

    monkeypatch.setattr(flex.google, "items", items)
    plan = plan_of(None, job_of("booked"))
    Flex(reservation=text).change(plan)
    return plan, asked


def test_a_reservation_of_another_project_or_of_a_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    n1 = "n1-standard-8"
    other, ours = reservation("a", "a2-highgpu-1g", "z-b"), reservation("a", n1, "z-c")
    plan, asked = reserved(monkeypatch, "projects/owner/reservations/a", other, ours, {"name": "b"})
    assert "/projects/owner/aggregated/reservations" in asked[0]
    assert plan.request["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["projects/owner/reservations/a"],
    }
    assert plan.zones == ["z-c"] and plan.rows["Zones"] == "z-c"
    assert plan.rows["Reservation"] == "a, 3 of 4 machines free"
    assert "provisioningModel" not in plan.request["scheduling"] and plan.create is gce.create
    made = {"autoCreatedReservations": ["x/zones/z-c/reservations/a"]}
    calendar = [{"reservationMode": "CALENDAR", "status": made}]
    for row, futures, is_bound in [
        ({**ours, "deploymentType": "DENSE"}, [], True),
        ({**ours, "deleteAtTime": "x"}, calendar, True),
        ({**ours, "deleteAtTime": "x"}, [{**calendar[0], "reservationMode": "DEFAULT"}], False),
        ({**reservation("b", n1, "z-c"), "deleteAtTime": "x"}, calendar, False),
    ]:
        plan, _ = reserved(monkeypatch, row["name"], row, futures=futures)
        model = plan.request["scheduling"].get("provisioningModel")
        assert (model == "RESERVATION_BOUND") == is_bound, (row, futures)
        assert plan.request["reservationAffinity"]["values"] == [row["name"]]
    anyones = {**ours, "specificReservationRequired": False}
    for text, row, says in [
        ("a", anyones, "Leave out --reservation"),
        ("Bad_Name", ours, "give NAME"),
        ("c", ours, "There are: a"),
    ]:
        with pytest.raises(BergError, match=says):
            reserved(monkeypatch, text, row)


QUEUED, L4, ONE = Flex(flex=True), {"gpu_type": "l4"}, {"machine_type": "ct6e-standard-1t"}


@pytest.mark.parametrize(
    ("feature", "about", "says"),
    [
        (QUEUED, {**L4, "max_seconds": 599}, "--max-hours"),
        (QUEUED, {**L4, "max_seconds": 7 * 86400 + 1}, "--max-hours"),
        (QUEUED, {**L4, "rows": [{"x": "1"}]}, "not for sweeps"),
        (QUEUED, {}, "Choose another -t"),
        (Tpu(tpu="v6e-1"), {**ONE, "features": {"Flex": {"queue_timeout": 60.0}}}, "no --queue-timeout"),
        (Tpu(tpu="v6e-1"), {**ONE, "features": {"Flex": {"wait_for_capacity": True}}},
         "no --wait-for-capacity"),
        (Tpu(tpu="v6e-1"), {**ONE, "features": {"Ssd": {"local_ssd": 1}}}, "no --local-ssd"),
    ],
)  # fmt: skip
def test_a_plan_that_a_feature_refuses(feature: Feature, about: Any, says: str) -> None:
    with pytest.raises(BergError, match=says):
        feature.change(plan_of(None, job_of("refused", **about)))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run -g 0 --on-hang fail true", "--max-silence 30m"),
        ("run -g 0 --max-silence 1h --on-hang restart true", "--restart-on-failure N"),
        ("run -g 0 --docker 'Bad Image' true", "is no image"),
        ("devbox -g 0 --docker python:3.12", "no command to run"),
        ("run --tpu v6e-1 -g 1 true", "Leave out -g"),
        ("run --machine-type ct6e-standard-4t true", "--tpu v6e-2x2"),
        ("run --machine-type ct5lp-hightpu-1t --region any true", "--tpu FAMILY-TOPOLOGY"),
        ("run --tpu v6e-4x4 -m 4 true", "Leave out -m"),
        ("run --tpu v6e-4x4 --grid x=1,2 'echo {x}'", "a row of a sweep has one"),
        ("run --tpu v6e-4x4 --reservation ours true", "no --reservation"),
    ],
)
def test_what_does_not_go_together_is_refused(
    cloud: Cloud, project: Path, line: str, says: str
) -> None:
    cloud.fails(*shlex.split(line), "--dry-run", says=says, cwd=project)
