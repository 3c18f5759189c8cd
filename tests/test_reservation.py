"""Machines from reservations: found, used, counted; what they are not for is refused."""

import json

import pytest
from conftest import wait_for

ZONE = "us-central1-b"
BASE = "/compute/v1/projects/berg-local"
HELD = f"{BASE}/zones/{ZONE}/reservations"


@pytest.fixture
def reserve(cloud):
    """Make reservations, which go with the test."""
    made = []

    def make(name: str, machine_type: str, count: int = 1, **more) -> None:
        properties = {"machineType": machine_type}
        specific = {"count": str(count), "instanceProperties": properties}
        body = {"name": name, "specificReservation": specific, **more}
        named = {"specificReservationRequired": True, **more}
        cloud.call("POST", HELD, {**body, **named})
        made.append(name)

    yield make
    for name in made:
        path = f"{HELD}/{name}"
        # a machine that is over may still be on its way out
        wait_for(lambda path=path: used(cloud.call("GET", path)) == "0")
        cloud.call("DELETE", path)


def used(reservation: dict) -> str:
    return reservation["specificReservation"]["inUseCount"]


def body_of(shown) -> dict:
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)["request"]


@pytest.mark.slow
def test_a_job_uses_what_is_reserved_and_gives_it_back(berg, cloud, reserve):
    reserve("mine", "n1-standard-8")
    dry = berg("run", "-g", "0", "--reservation", "mine", "--dry-run", "--json", "true")
    assert f"Reserved  mine in {ZONE}: 1 of 1 x n1-standard-8 free" in dry.stderr
    assert f"Zones     {ZONE}\n" in dry.stderr
    assert "Price     that of the reservation, which is paid for" in dry.stderr
    affinity = body_of(dry)["reservationAffinity"]
    assert affinity["values"] == ["mine"]
    assert "provisioningModel" not in body_of(dry)["scheduling"]
    mine = ("-g", "0", "--reservation", "mine", "-n", "first")
    ran = berg("run", *mine, "sleep 60", BERG_ASK_ABOVE="1", stdin="")
    assert ran.returncode == 0, ran.stderr
    now = json.loads(berg("costs", "--json").stdout)["now"]
    assert [(each["name"], each["usd_per_hour"]) for each in now] == [("first", None)]
    row = cloud.call("GET", f"{HELD}/mine")["specificReservation"]
    assert (row["count"], row["inUseCount"]) == ("1", "1")
    full = berg("run", "-g", "0", "--reservation", "mine", "-n", "second", "true")
    assert full.returncode == 1 and "do not have available resources" in full.stderr
    assert berg("kill", "--now", "first").returncode == 0
    assert cloud.call("GET", f"{HELD}/mine")["specificReservation"]["inUseCount"] == "0"


@pytest.fixture
def book(cloud):
    """A block of a calendar, which is a reservation that ends with it."""
    block = {
        "name": "block",
        "reservationMode": "CALENDAR",
        "reservationName": "block",
        "specificSkuProperties": {
            "totalCount": "2",
            "instanceProperties": {"machineType": "a3-highgpu-8g"},
        },
        "timeWindow": {"startTime": "2026-11-24T00:00:00Z", "endTime": "2026-12-24T00:00:00Z"},
    }
    cloud.call("POST", f"{BASE}/zones/{ZONE}/futureReservations", block)
    yield
    cloud.call("DELETE", f"{HELD}/block")


H100 = ("-t", "h100", "-g", "8")


def test_what_ends_with_its_reservation_is_bound_to_it(berg, cloud, book):
    shown = berg("run", *H100, "--reservation", "block", "--dry-run", "--json", "true")
    scheduling = body_of(shown)["scheduling"]
    assert scheduling["provisioningModel"] == "RESERVATION_BOUND"
    assert scheduling["instanceTerminationAction"] == "DELETE"
    ran = berg("run", *H100, "--reservation", "block", "-n", "booked", "sleep 600")
    assert ran.returncode == 0, ran.stderr
    assert berg("kill", "--now", "booked").returncode == 0


def test_a_reservation_that_deletes_itself_binds_no_machine(berg, cloud, reserve):
    reserve("soon", "n1-standard-8", deleteAtTime="2026-12-24T00:00:00Z")
    ran = berg("run", "-g", "0", "--reservation", "soon", "-n", "free", "sleep 600")
    assert ran.returncode == 0, ran.stderr
    assert cloud.instances()["free"]["scheduling"]["provisioningModel"] == "STANDARD"
    assert berg("kill", "--now", "free").returncode == 0


def test_without_a_look_at_calendars_the_machine_type_tells(berg, cloud, reserve):
    reserve("soon", "n1-standard-8", deleteAtTime="2026-12-24T00:00:00Z")
    reserve("late", "a3-ultragpu-8g", deleteAtTime="2026-12-24T00:00:00Z")
    for wish, model in ((("-g", "0", "--reservation", "soon"), None), (LATE, "RESERVATION_BOUND")):
        cloud.fault("compute.futureReservations.aggregatedList", status=403)
        shown = berg("run", *wish, "--dry-run", "--json", "true")
        assert body_of(shown)["scheduling"].get("provisioningModel") == model


LATE = ("-t", "h200", "--reservation", "late")


def test_a_reservation_for_any_machine_is_used_without_its_name(berg, reserve):
    reserve("open", "n1-standard-8", specificReservationRequired=False)
    refused = berg("run", "-g", "0", "--reservation", "open", "true")
    assert refused.returncode == 1 and not berg.machines()
    assert (
        "open is for any machine that fits, which uses it without its name: leave out "
        "--reservation open"
    ) in " ".join(refused.stderr.split())
    assert "open in us-central1-b: 1 of 1 x n1-standard-8 free, without --reservation" in " ".join(
        berg("doctor").stdout.split()
    )


def test_a_reservation_of_a_project_that_one_may_not_look_into(berg, cloud):
    cloud.call("POST", "/_berg/projects", {"project": "owner"})
    held = f"/compute/v1/projects/owner/zones/{ZONE}/reservations"
    specific = {"count": "1", "instanceProperties": {"machineType": "n1-standard-8"}}
    share = {"shareType": "SPECIFIC_PROJECTS"}
    share["projectMap"] = {"berg-local": {"projectId": "berg-local"}}
    body = {"name": "lent", "specificReservation": specific, "shareSettings": share}
    cloud.call("POST", held, {**body, "specificReservationRequired": True})
    cloud.call("POST", "/_berg/projects", {"project": "owner", "access": False})
    lent = ("-g", "0", "--reservation", "projects/owner/reservations/lent", "-n", "guest")
    try:
        nowhere = berg("run", *lent, "true")
        assert nowhere.returncode == 1
        assert "you may not list the reservations of owner: name the zone" in nowhere.stderr
        ran = berg("run", *lent, "--zone", ZONE, "sleep 600")
        assert ran.returncode == 0, ran.stderr
        assert f"lent of owner in {ZONE}: what is free you may not see" in ran.stderr
        assert berg("kill", "--now", "guest").returncode == 0
    finally:
        cloud.call("POST", "/_berg/projects", {"project": "owner"})
        cloud.call("DELETE", f"{held}/lent")


@pytest.mark.slow
def test_what_is_never_on_demand_comes_from_a_reservation(berg, reserve):
    reserve("hopper", "a3-ultragpu-8g", deploymentType="DENSE")
    shown = berg("run", "-t", "h200", "--reservation", "hopper", "--dry-run", "--json", "true")
    assert body_of(shown)["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    ran = berg("run", "-t", "h200", "--reservation", "hopper", "-n", "h", "--wait", "true")
    assert ran.returncode == 0, ran.stderr
    never = berg("run", "-t", "h100", "--reservation", "hopper", "true")
    assert never.returncode == 1 and "cannot be had on demand" in never.stderr


def test_a_name_of_another_project_s_is_said_in_full(berg, cloud, reserve):
    reserve("theirs", "n1-standard-8")
    full = "projects/berg-local/reservations/theirs"
    shown = berg("run", "-g", "0", "--reservation", full, "--dry-run", "--json", "true")
    assert body_of(shown)["reservationAffinity"]["values"] == ["theirs"], "it is ours"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--reservation", "none"),
            "there is no reservation 'none'. What there is: small in us-central1-b: 1 of 1",
        ),
        (("--reservation", "none"), "Another project's: projects/OWNER/reservations/NAME"),
        (("--reservation", "a/b"), "is no name"),
        (("--reservation", "small", "--spot"), "leave out --spot"),
        (("--reservation", "small", "--flex"), "leave out --flex"),
        (("--reservation", "small", "-c", "16"), "no machine of type n1-standard-16"),
        (("--reservation", "small", "--zone", "us-central1-a"), "in us-central1-a can use"),
        (("--reservation", "small", "--max-cost", "5"), "costs the same if it is not used"),
    ],
)
def test_what_no_reservation_is_for(berg, reserve, options, says):
    reserve("small", "n1-standard-8")
    refused = berg("run", "-g", "0", *options, "true")
    assert refused.returncode == 1 and says in refused.stderr, refused.stderr
    assert not berg.machines()


def test_doctor_says_what_is_reserved(berg, reserve):
    reserve("four", "a2-highgpu-1g", 4)
    found = berg("doctor").stdout
    assert f"four in {ZONE}: 4 of 4 x a2-highgpu-1g free" in " ".join(found.split())


def insert(cloud, **body):
    answer = cloud.session.post(f"{cloud.url}{HELD}", json={"name": "x", **body})
    return answer.status_code, answer.json()["error"]["message"]


def test_reservations_are_refused_as_google_does(cloud, reserve):
    there = {"specificReservationRequired": True}
    status, says = insert(cloud, specificReservation={"count": "1"})
    assert status == 400 and "instanceProperties.machineType" in says
    odd = {"count": "1", "instanceProperties": {"machineType": "z9"}}
    assert insert(cloud, **there, specificReservation=odd)[0] == 400
    none = {"count": "0", "instanceProperties": {"machineType": "n1-standard-1"}}
    assert insert(cloud, **there, specificReservation=none)[0] == 400
    reserve("twice", "n1-standard-1")
    one = {"count": "1", "instanceProperties": {"machineType": "n1-standard-1"}}
    assert insert(cloud, **there, name="twice", specificReservation=one)[0] == 409
    assert cloud.session.get(f"{cloud.url}{HELD}/nowhere").status_code == 404


def test_a_reservation_grows_and_shrinks(cloud, reserve):
    reserve("elastic", "n1-standard-1")
    resize = lambda count: cloud.session.post(
        f"{cloud.url}{HELD}/elastic/resize", json={"specificSkuCount": count}
    )
    assert resize("3").ok
    assert cloud.call("GET", f"{HELD}/elastic")["specificReservation"]["count"] == "3"
    refused = resize("0")
    assert refused.status_code == 400 and "specificSkuCount" in refused.json()["error"]["message"]
