# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Managed instance groups of the embedded cloud, asked by plain HTTP."""

import os
import signal
import time

import pytest
from local_machines import IMAGE, client, error, failure, until  # noqa: F401 (a fixture)

from localcloud import control

A, C, F = (f"us-central1-{letter}" for letter in "acf")
GROUPS = "/regions/us-central1/instanceGroupManagers"
TEMPLATES = "/global/instanceTemplates"
SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
ANY_ZONE = {"forceUpdateOnRepair": "YES", "onRepair": {"allowChangingZone": "YES"}}
FOREVER = "#!/bin/bash\ntrap 'echo last words; exit' TERM\necho up\nsleep 1000 & wait\n"


@pytest.fixture(autouse=True)
def clean(client):
    """Attempts come soon after each other."""
    client.control("settings", {"refill": 0.2, "grace": 0.5})
    yield
    client.tidy()


def template(client, name: str = "plain", script: str = "", image: str = IMAGE, **fields) -> dict:
    disk = {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {"sourceImage": image, "diskSizeGb": 200},
    }
    items = [{"key": "startup-script", "value": script}, {"key": "who", "value": "template"}]
    properties = {
        "machineType": "n1-standard-1",
        "disks": [disk],
        "networkInterfaces": [{}],
        "scheduling": SPOT,
    }
    body = {"name": name, "properties": {**properties, "metadata": {"items": items}, **fields}}
    return client.wait(client.call("POST", TEMPLATES, body))


def group_body(
    name: str, size: int = 0, zones=(A, C, F), shape: str = "ANY", template: str = "plain", **fields
) -> dict:
    return {
        "name": name,
        "baseInstanceName": name,
        "targetSize": size,
        "instanceTemplate": f"global/instanceTemplates/{template}",
        "distributionPolicy": {
            "zones": [{"zone": f"zones/{zone}"} for zone in zones],
            "targetShape": shape,
        },
        "updatePolicy": {"instanceRedistributionType": "NONE"},
        **fields,
    }


def insert(client, name: str, size: int = 0, **fields) -> dict:
    done = client.wait(client.call("POST", GROUPS, group_body(name, size, **fields)))
    assert "error" not in done, done
    return client.call("GET", f"{GROUPS}/{name}").json()


def act(client, group: str, verb: str, body=None, **params) -> dict:
    return client.wait(client.call("POST", f"{GROUPS}/{group}/{verb}", body, **params))


def members(client, group: str) -> dict[str, dict]:
    answer = client.call("POST", f"{GROUPS}/{group}/listManagedInstances").json()
    return {row["name"]: row for row in answer["managedInstances"]}


def zone_of(row: dict) -> str:
    return row["instance"].split("/")[-3]


def running(client, group: str, count: int = 1) -> dict[str, dict]:
    """The members, once all of them run."""

    def there():
        rows = members(client, group)
        up = [
            row
            for row in rows.values()
            if (row["currentAction"], row.get("instanceStatus")) == ("NONE", "RUNNING")
        ]
        return rows if len(up) == len(rows) == count else None

    return until(there, f"{count} members of {group}")


def failed(client, group: str, name: str, code: str) -> dict:
    """A member, once its last attempt failed with this code."""

    def seen():
        row = members(client, group)[name]
        errors = row["lastAttempt"].get("errors", {}).get("errors", [])
        return row if [each["code"] for each in errors] == [code] else None

    return until(seen, f"{code} of {name}")


def named(client, group: str, *names: str) -> dict[str, dict]:
    """Create members of these names and wait for all."""
    act(client, group, "createInstances", {"instances": [{"name": name} for name in names]})
    return running(client, group, len(names))


# --- templates


def test_a_template_is_kept_as_it_was_checked(client):
    done = template(client)
    assert "/global/operations/" in done["selfLink"]
    row = client.call("GET", f"{TEMPLATES}/plain").json()
    assert row["properties"]["disks"][0]["initializeParams"]["diskSizeGb"] == "200"
    assert [each["name"] for each in client.call("GET", TEMPLATES).json()["items"]] == ["plain"]
    again = client.call("POST", TEMPLATES, {"name": "plain", "properties": row["properties"]})
    assert error(again)[:2] == (409, "alreadyExists")
    client.wait(client.call("DELETE", f"{TEMPLATES}/plain"))
    assert error(client.call("GET", f"{TEMPLATES}/plain"))[:2] == (404, "notFound")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"machineType": "n1-huge"}, "'resource.properties.machineType'"),
        ({"machineType": "zones/us-central1-a/machineTypes/n1-standard-1"}, "not its URL"),
        ({"labels": {"No": "1"}}, "Label key violates"),
        ({"scheduling": {"maxRunDuration": {"seconds": 60}}}, "termination action"),
        ({"disks": []}, "At least one disk"),
        ({"metadata": {"item": []}}, 'Unknown name "item"'),
    ],
)
def test_a_template_that_no_zone_takes_is_refused(client, properties, message):
    disks = [{"boot": True, "initializeParams": {"sourceImage": IMAGE}}]
    usual = {"machineType": "n1-standard-1", "disks": disks, "networkInterfaces": [{}]}
    body = {"name": "bad", "properties": {**usual, **properties}}
    status, _, text = error(client.call("POST", TEMPLATES, body))
    assert status == 400 and message in text


# --- what groups are refused


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"template": "none"}, 404, "global/instanceTemplates/none' was not found"),
        ({"zones": ("us-west1-b",)}, 400, "Zone must be in region 'us-central1'"),
        ({"updatePolicy": {}}, 400, "instanceRedistributionType is NONE"),
        ({"distributionPolicy": {}}, 501, "distributionPolicy.targetShape"),
        (
            {"instanceLifecyclePolicy": {"onRepair": {"allowChangingZone": "YES"}}},
            400,
            "forceUpdateOnRepair",
        ),
        ({"shape": "ANY_SINGLE_ZONE", "instanceLifecyclePolicy": ANY_ZONE}, 400, "ANY or BALANCED"),
        ({"autoHealingPolicies": [{"initialDelaySec": 10}]}, 501, "resource.autoHealingPolicies"),
        ({"allInstancesConfig": {"properties": {"labels": {"No": ""}}}}, 400, "Label key violates"),
        ({"targetsize": 1}, 400, 'Unknown name "targetsize"'),
    ],
)
def test_what_a_group_may_not_be(client, fields, status, message):
    template(client)
    found, _, text = error(client.call("POST", GROUPS, group_body("bad", **fields)))
    assert found == status and message in text


# --- the life of a group


def test_members_know_their_group_and_carry_what_it_sets(client):
    script = (
        "#!/bin/bash\nfor key in created-by instance-template who; do\n"
        'curl -s -H "Metadata-Flavor: Google" http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes/$key\n'
        "echo; done\n"
    )
    template(client, script=script, labels={"berg": "1", "kind": "no"})
    patch = {"labels": {"kind": "job"}, "metadata": {"who": "group"}}
    insert(client, "told", zones=(C,), allInstancesConfig={"properties": patch})
    named(client, "told", "worker")
    number = client.call("GET", "").json()["id"]
    shown = client.console_with("worker", "Finished running")
    assert f"startup-script: projects/{number}{GROUPS}/told\n" in shown
    assert (
        f"startup-script: projects/{number}{TEMPLATES}/plain\n" in shown
        and "startup-script: group\n" in shown
    )
    assert client.get("worker")["labels"] == {"berg": "1", "kind": "job"}


def test_named_members_come_and_go_by_request(client):
    template(client)
    insert(client, "names")
    rows = named(client, "names", "stays", "goes")
    assert rows.keys() == {"stays", "goes"}
    assert client.call("GET", f"{GROUPS}/names").json()["targetSize"] == 2
    again = client.call(
        "POST", f"{GROUPS}/names/createInstances", {"instances": [{"name": "stays"}]}
    )
    assert error(again)[:2] == (409, "alreadyExists")
    link, path = rows["goes"]["instance"], f"{GROUPS}/names/deleteInstances"
    client.wait(client.call("POST", path, {"instances": [link]}))
    until(lambda: members(client, "names").keys() == {"stays"}, "the end of the other")
    assert client.call("GET", f"{GROUPS}/names").json()["targetSize"] == 1, "none is made anew"
    for wrong in (link, "stays"):
        refused = client.call("POST", path, {"instances": [wrong]})
        assert error(refused)[:2] == (400, "invalid")
    skip = {"instances": [link], "skipInstancesOnValidationError": True}
    client.wait(client.call("POST", path, skip))
    assert members(client, "names").keys() == {"stays"}


def test_a_group_is_deleted_after_its_members_had_their_grace(client):
    template(client, script="#!/bin/bash\ntrap 'sleep 99' TERM\necho up\nsleep 99 & wait\n")
    insert(client, "leaving", zones=(C,))
    named(client, "leaving", "leaver")
    client.console_with("leaver", "startup-script: up")
    client.control("settings", {"grace": 1.5})
    operation = client.call("DELETE", f"{GROUPS}/leaving")
    assert operation.json()["status"] == "RUNNING"
    assert members(client, "leaving")["leaver"]["currentAction"] == "DELETING"
    assert client.status("leaver") == "STOPPING"
    late = client.call("POST", f"{GROUPS}/leaving/createInstances", {"instances": [{"name": "l"}]})
    assert error(late)[1] == "resourceNotReady"
    client.wait(operation)
    assert (
        client.get("leaver") is None and client.call("GET", f"{GROUPS}/leaving").status_code == 404
    )


# --- refilling


POWER_OFF = "#!/bin/bash\necho up; sleep 0.5; kill 1\n"
ENDS = {
    "preempt": lambda client: client.control("instances/phoenix/preempt", {"grace": 1}),
    "crash": lambda client: client.control("instances/phoenix/crash"),
    "delete": lambda client: client.delete("phoenix"),
    "stop": lambda client: client.wait(client.call("POST", f"/zones/{C}/instances/phoenix/stop")),
    "power off": lambda client: None,  # its script does it
}


@pytest.mark.parametrize(
    ("end", "action", "script"),
    [
        ("preempt", "DELETE", FOREVER),
        ("preempt", "STOP", FOREVER),
        ("crash", "DELETE", FOREVER),
        ("delete", "DELETE", FOREVER),
        ("stop", "DELETE", FOREVER),
        ("power off", "DELETE", POWER_OFF),
    ],
)
def test_a_member_that_ends_is_made_anew(client, end, action, script):
    template(client, script=script, scheduling={**SPOT, "instanceTerminationAction": action})
    insert(client, "lasting", zones=(C,))
    before = named(client, "lasting", "phoenix")["phoenix"]["id"]
    client.console_with("phoenix", "startup-script: up")
    ENDS[end](client)

    def after():
        row = members(client, "lasting")["phoenix"]
        return row.get("id", before) != before and row.get("instanceStatus") == "RUNNING" and row

    assert zone_of(until(after, "another phoenix")) == C
    assert client.call("GET", f"{GROUPS}/lasting").json()["targetSize"] == 1


def test_a_member_waits_in_its_zone_until_there_is_room(client):
    template(client)
    insert(client, "waiting")
    named(client, "waiting", "patient")
    client.control("stockout", {"zone": A})
    client.control("instances/patient/preempt", {"grace": 0})
    row = failed(client, "waiting", "patient", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
    assert row["currentAction"] == "RECREATING" and zone_of(row) == A and "id" not in row
    group = client.call("GET", f"{GROUPS}/waiting").json()
    assert group["currentActions"]["recreating"] == 1 and not group["status"]["isStable"]
    client.control("stockout", {"zone": A, "on": False})
    row = running(client, "waiting")["patient"]
    assert zone_of(row) == A and row["lastAttempt"] == {}


def test_a_member_that_may_change_its_zone_does(client):
    template(client)
    insert(client, "moving", 1, instanceLifecyclePolicy=ANY_ZONE)
    (name,) = running(client, "moving")
    client.control("stockout", {"zone": A})
    client.control("instances/moving/preempt", {"grace": 0})
    until(lambda: zone_of(running(client, "moving")[name]) == C, "the next zone")
    assert client.get(name, A) is None
    wish = {"instances": [{"name": "nomad"}]}
    assert error(client.call("POST", f"{GROUPS}/moving/createInstances", wish))[0] == 400


def test_a_member_whose_time_is_over_is_not_made_anew(client):
    template(
        client,
        scheduling={"maxRunDuration": {"seconds": 30}, "instanceTerminationAction": "DELETE"},
    )
    client.control("settings", {"hurry": 15})
    insert(client, "limited", 1, zones=(C,))
    (name,) = running(client, "limited")
    resource = client.get(name)
    end = resource["resourceStatus"]["scheduling"]["terminationTimestamp"]
    assert end > resource["creationTimestamp"]
    until(lambda: client.get(name, C) is None, "the end of its time")
    until(lambda: not members(client, "limited"), "the end of the member")
    client.control("settings", {"hurry": 1})
    time.sleep(1)  # several times `refill`
    assert client.call("GET", f"{GROUPS}/limited").json()["targetSize"] == 0 and not members(
        client, "limited"
    )


def test_new_members_take_the_first_zone_with_room(client):
    template(client)
    client.control("stockout", {"zone": A})
    client.control("stockout", {"zone": C, "left": 1})
    insert(client, "filling", 2)
    assert sorted(zone_of(row) for row in running(client, "filling", 2).values()) == [C, F]


def test_quotas_and_faults_hold_members_back(client):
    template(client, machineType="n2-standard-2")
    insert(client, "poor", zones=(C,))
    bad_day = {"operation_error": {"code": "INTERNAL_ERROR", "message": "a bad day"}}
    with client.limited("N2_CPUS", 1, "us-central1"):
        act(client, "poor", "createInstances", {"instances": [{"name": "beggar"}]})
        row = failed(client, "poor", "beggar", "QUOTA_EXCEEDED")
        client.control("faults", {"method": "compute.instances.insert", "times": None, **bad_day})
    assert row["currentAction"] == "CREATING"
    assert "Quota 'N2_CPUS' exceeded" in row["lastAttempt"]["errors"]["errors"][0]["message"]
    failed(client, "poor", "beggar", "INTERNAL_ERROR")
    client.session.delete(f"{client.url}/_berg/faults")
    running(client, "poor")


def test_a_group_whose_creation_fails_is_not_there(client):
    template(client)
    bad_day = {"operation_error": {"code": "INTERNAL_ERROR", "message": "a bad day"}}
    client.control("faults", {"method": "compute.regionInstanceGroupManagers.*", **bad_day})
    done = client.wait(client.call("POST", GROUPS, group_body("unborn", 1)))
    assert failure(done)["code"] == "INTERNAL_ERROR"
    assert client.call("GET", f"{GROUPS}/unborn").status_code == 404


def test_refilling_goes_on_after_a_killed_server(client):
    template(client)
    insert(client, "tough", zones=(A, C))
    named(client, "tough", "kept", "lost")
    insert(client, "dying", zones=(F,))
    act(client, "dying", "createInstances", {"instances": [{"name": "straggler"}]})
    running(client, "dying")
    client.control("stockout", {"zone": A})
    client.delete("lost", A)
    failed(client, "tough", "lost", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
    operation = client.call("DELETE", f"{GROUPS}/dying")
    os.kill(control.status(client.folder)["pid"], signal.SIGKILL)
    until(lambda: not control.is_running(client.folder), "the end of the server")
    control.start(client.folder, options=("--grace", "3"))  # stockouts end with the server
    rows = running(client, "tough", 2)
    assert {*rows} == {"kept", "lost"} and zone_of(rows["lost"]) == A
    client.wait(operation)
    assert (
        client.call("GET", f"{GROUPS}/dying").status_code == 404
        and client.get("straggler", F) is None
    )
