# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Resize requests of the embedded cloud: a queue for several machines, all of them or none."""

import pytest
from local_machines import LEARNING, client, error, until  # noqa: F401 (a fixture)

A, B = "us-central1-a", "us-central1-b"
GROUPS = "/regions/us-central1/instanceGroupManagers"
REQUESTS = f"{GROUPS}/g/resizeRequests"
TEMPLATES = "/global/instanceTemplates"
LINK = "projects/berg-local/global/instanceTemplates/l4"
FLEX = {
    "provisioningModel": "FLEX_START",
    "instanceTerminationAction": "DELETE",
    "maxRunDuration": {"seconds": "14400"},
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
}
HOUR = {"requestedRunDuration": {"seconds": "3600"}}


@pytest.fixture(autouse=True)
def clean(client):
    client.control("settings", {"refill": 0.1, "boot": 0})
    yield
    client.tidy()


def template(client, **fields) -> None:
    disk = {"sourceImage": LEARNING, "diskSizeGb": 200, "diskType": "pd-balanced"}
    properties = {
        "machineType": "g2-standard-8",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{}],
        "scheduling": FLEX,
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
        **fields,
    }
    done = client.wait(client.call("POST", TEMPLATES, {"name": "l4", "properties": properties}))
    assert "error" not in done, done


def group(client, action: str = "DO_NOTHING", shape: str = "ANY_SINGLE_ZONE", **fields) -> None:
    zones = [{"zone": f"projects/berg-local/zones/{zone}"} for zone in (A, B)]
    body = {
        "name": "g",
        "targetSize": 0,
        "instanceTemplate": LINK,
        "instanceLifecyclePolicy": {"defaultActionOnFailure": action},
        "distributionPolicy": {"zones": zones, "targetShape": shape},
        "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
        **fields,
    }
    done = client.wait(client.call("POST", GROUPS, body))
    assert "error" not in done, done


def ask(client, **fields):
    names = {"instances": [{"name": "g-0"}, {"name": "g-1"}]}
    return client.call("POST", REQUESTS, {"name": "g", **names, **HOUR, **fields})


def asked(client) -> dict:
    return client.call("GET", f"{REQUESTS}/g").json()


def state(client, wanted: str) -> dict:
    ready = lambda: (row := asked(client))["state"] == wanted and row
    return until(ready, f"the state {wanted}")


def machines(client, zone: str = A) -> dict[str, str]:
    rows = client.call("GET", f"/zones/{zone}/instances").json().get("items", [])
    return {row["name"]: row["status"] for row in rows}


def size(client) -> int:
    return client.call("GET", f"{GROUPS}/g").json()["targetSize"]


def test_with_room_all_machines_come_under_their_names(client):
    template(client, labels={"a": "template"})
    group(client, allInstancesConfig={"properties": {"labels": {"a": "group", "b": "group"}}})
    client.wait(ask(client))
    row = state(client, "SUCCEEDED")
    assert (row["resizeBy"], row["status"]) == (2, {})
    assert machines(client) == {"g-0": "RUNNING", "g-1": "RUNNING"}
    made = client.get("g-0", A)
    assert made["scheduling"]["maxRunDuration"] == {"seconds": "3600"}
    assert made["scheduling"]["provisioningModel"] == "FLEX_START"
    assert made["labels"] == {"a": "template"}, "nothing of what the group sets for all"
    assert error(ask(client))[0] == 409


def test_a_template_with_a_placement_policy_fails(client):
    near = {"name": "near", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    client.wait(client.call("POST", "/regions/us-central1/resourcePolicies", near))
    template(client, resourcePolicies=["near"])
    group(client)
    client.wait(ask(client))
    (failed,) = state(client, "FAILED")["status"]["error"]["errors"]
    assert failed == {
        "code": "UNSUPPORTED_OPERATION",
        "message": "Creating queued resource with resource policies is not supported.",
    }


def test_a_request_waits_until_one_zone_has_room_for_all(client):
    template(client)
    group(client)
    client.control("stockout", {})
    client.control("stockout", {"zone": A, "left": 1})
    client.wait(ask(client))
    until(lambda: asked(client)["status"], "the first attempt")
    row = asked(client)
    assert row["state"] == "ACCEPTED" and not machines(client) and size(client) == 2
    (why,) = row["status"]["lastAttempt"]["error"]["errors"]
    assert why["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED" and A in why["message"]
    members = client.call("POST", f"{GROUPS}/g/listManagedInstances").json()["managedInstances"]
    assert [each["currentAction"] for each in members] == ["CREATING", "CREATING"]
    client.control("stockout", {"zone": B, "on": False})
    state(client, "SUCCEEDED")
    assert machines(client, B) == {"g-0": "RUNNING", "g-1": "RUNNING"}


def test_a_quota_that_is_missing_is_waited_for_too(client):
    template(client)
    group(client)
    with client.limited("NVIDIA_L4_GPUS", 1, "us-central1"):
        client.wait(ask(client))
        until(lambda: asked(client)["status"], "the first attempt")
        (why,) = asked(client)["status"]["lastAttempt"]["error"]["errors"]
    assert why["code"] == "QUOTA_EXCEEDED"
    state(client, "SUCCEEDED")


def test_a_group_takes_its_requests_along(client):
    template(client)
    group(client)
    client.control("stockout", {})
    client.wait(ask(client))
    state(client, "ACCEPTED")
    client.wait(client.call("DELETE", f"{GROUPS}/g"))
    client.control("stockout", {"on": False})
    assert error(client.call("GET", f"{REQUESTS}/g"))[0] == 404 and not machines(client)


def test_what_no_waiting_mends_fails_and_leaves_no_machine(client):
    template(client)
    group(client)
    what = {"code": "INVALID_USAGE", "message": "Not this one."}
    client.control("faults", {"method": "compute.instances.insert", "operation_error": what})
    client.wait(ask(client))
    assert state(client, "FAILED")["status"] == {"error": {"errors": [what]}}
    until(lambda: size(client) == 0, "an empty group")
    assert not machines(client)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instances": [{"name": "No"}]}, "resource.instances.name"),
        ({"requestedRunDuration": {"seconds": "599"}}, "between 10 minutes and 7 days"),
        ({"requestedRunDuration": {"seconds": "604801"}}, "between 10 minutes and 7 days"),
    ],
)
def test_what_a_request_may_not_be(client, fields, message):
    template(client)
    group(client)
    refused = error(ask(client, **fields))
    assert refused[0] == 400 and message in refused[2]


@pytest.mark.parametrize(
    ("of_group", "of_template", "message"),
    [
        ({"action": "REPAIR"}, {}, "It must be DO_NOTHING"),
        ({"shape": "ANY"}, {}, "It must be ANY_SINGLE_ZONE"),
        ({}, {"scheduling": {"onHostMaintenance": "TERMINATE"}}, "It must be FLEX_START"),
        ({}, {"reservationAffinity": {}}, "It must be NO_RESERVATION"),
    ],
)
def test_groups_and_templates_that_take_no_requests(client, of_group, of_template, message):
    template(client, **of_template)
    group(client, **of_group)
    assert message in error(ask(client))[2]
