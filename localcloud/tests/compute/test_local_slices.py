# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Slices of TPUs of the embedded cloud: what is refused, and all machines or none."""

import pytest
from local_machines import client, error, failure, until  # noqa: F401 (a fixture)

ZONE = "us-east5-a"
POLICIES = "/regions/us-east5/resourcePolicies"
GROUPS = f"/zones/{ZONE}/instanceGroupManagers"
TEMPLATES = "/global/instanceTemplates"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"


@pytest.fixture(autouse=True)
def clean(client):
    client.control("settings", {"refill": 0.2, "grace": 0.5})
    yield
    client.tidy()


def policy(client, topology: str = "2x2x2") -> str:
    """The link of a workload policy."""
    name, workload = f"p-{topology}", {"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology}
    client.wait(client.call("POST", POLICIES, {"name": name, "workloadPolicy": workload}))
    return f"https://www.googleapis.com/compute/v1/projects/berg-local{POLICIES}/{name}"


def template(client) -> None:
    disk = {"sourceImage": IMAGE, "diskSizeGb": 200, "diskType": "pd-balanced"}
    scheduling = {
        "provisioningModel": "STANDARD",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "600"},
    }
    properties = {
        "machineType": "ct5p-hightpu-4t",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{"nicType": "GVNIC"}],
        "scheduling": scheduling,
    }
    done = client.wait(client.call("POST", TEMPLATES, {"name": "tpu", "properties": properties}))
    assert "error" not in done, done


def group_body(name: str, link: str, **fields) -> dict:
    return {
        "name": name,
        "baseInstanceName": name,
        "targetSize": 0,
        "instanceTemplate": "projects/berg-local/global/instanceTemplates/tpu",
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {"workloadPolicy": link},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "updatePolicy": {"type": "OPPORTUNISTIC"},
        **fields,
    }


def ask(client, name: str, count: int) -> dict:
    """Ask for the machines of a group; returns the answer."""
    names = [{"name": f"{name}-{number}"} for number in range(count)]
    return client.call("POST", f"{GROUPS}/{name}/createInstances", {"instances": names})


def status(client, name: str) -> dict:
    return client.call("GET", f"{GROUPS}/{name}").json()["status"]


def whole(client, name: str) -> dict:
    def there():
        found = status(client, name)
        return found if not found["bulkInstanceOperation"]["inProgress"] else None

    return until(there, f"all machines of {name}")


def make(client) -> None:
    """Ask for a slice of two machines."""
    template(client)
    client.wait(client.call("POST", GROUPS, group_body("s", policy(client))))
    client.wait(ask(client, "s", 2))


def test_refusals(client):
    template(client)
    link = policy(client)
    bulk = "MIGs with TPU accelerator topology require BULK mode in target size policy"
    for body, status, words in (
        (group_body("s", link, targetSizePolicy={"mode": "INDIVIDUAL"}), 400, bulk),
        (group_body("s", "p-2x2x2"), 400, "must be the URL of a policy"),
        (group_body("s", link.replace("us-east5", "us-east1")), 400, "a policy in the region"),
        (group_body("s", link.replace("2x2x2", "8x8")), 404, "was not found"),
        *(
            (group_body("s", policy(client, other)), 400, f"accelerator topology {other}.")
            for other in ("2x4", "4x4", "4x4x12", "4x4x2")
        ),
    ):
        refused = error(client.call("POST", GROUPS, body))
        assert refused[0] == status and words in refused[2], refused
    client.wait(client.call("POST", GROUPS, group_body("s", link)))
    assert error(client.call("POST", GROUPS, group_body("s", link)))[:2] == (409, "alreadyExists")
    assert "Accelerator topology 2x2x2 takes 2 instances" in error(ask(client, "s", 3))[2]
    refused = error(client.call("DELETE", f"{POLICIES}/p-2x2x2"))
    assert refused[1] == "resourceInUseByAnotherResource"


@pytest.mark.parametrize("action", ["DELETE", "STOP"])
def test_a_slice_of_a_reservation_has_none_to_be_of(client, action):
    affinity = {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
    }
    scheduling = {"provisioningModel": "RESERVATION_BOUND", "onHostMaintenance": "TERMINATE"}
    properties = {
        "machineType": "ct6e-standard-4t",
        "disks": single("any")["disks"],
        "networkInterfaces": [{"nicType": "GVNIC"}],
        "scheduling": {**scheduling, "instanceTerminationAction": action},
        "reservationAffinity": {**affinity, "values": ["mine"]},
    }
    properties["disks"][0]["initializeParams"]["diskType"] = "hyperdisk-balanced"
    refused = error(client.call("POST", TEMPLATES, {"name": "bound", "properties": properties}))
    assert refused[0] == 400 and "reservations [mine] do not exist" in refused[2], refused


def single(name: str, **fields) -> dict:
    disk = {"sourceImage": IMAGE, "diskType": f"zones/{ZONE}/diskTypes/hyperdisk-balanced"}
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/ct6e-standard-1t",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{"nicType": "GVNIC"}],
        "scheduling": {"onHostMaintenance": "TERMINATE"},
        **fields,
    }


def test_one_machine_with_tpus_is_checked_like_one_with_gpus(client):
    insert = f"/zones/{ZONE}/instances"
    link = policy(client)
    refused = error(client.call("POST", insert, single("one", resourcePolicies=[link])))
    kinds = "[VmMaintenancePolicy, GroupPlacementPolicy, InstanceSchedulePolicy]"
    assert refused == (400, "invalid", f"Resource policy must have one of {kinds}")
    assert "live migration" in error(client.call("POST", insert, single("one", scheduling={})))[2]
    quota = {"region": "us-east5", "metric": "TPUS_PER_TPU_FAMILY:CT6E"}
    client.control("quotas", {**quota, "limit": 0})
    problem = failure(client.wait(client.call("POST", insert, single("one"))))
    client.control("quotas", {**quota, "limit": 256})
    assert "TPUS_PER_TPU_FAMILY" in problem["message"]
    info = problem["errorDetails"][0]["quotaInfo"]
    assert info["limitName"] == "TPUS-PER-TPU-FAMILY-per-project-region"
    assert info["dimensions"] == {"region": "us-east5", "tpu_family": "CT6E"}
    with client.limited("GPUS_ALL_REGIONS", 0):
        problem = failure(client.wait(client.call("POST", insert, single("one"))))
    assert "GPUS_ALL_REGIONS" in problem["message"]
    assert "error" not in client.wait(client.call("POST", insert, single("one")))


def test_eight_chips_take_one_thread_on_each_core(client):
    insert, eight = f"/zones/{ZONE}/instances", "ct6e-standard-8t"
    kind = client.call("GET", f"/zones/{ZONE}/machineTypes/{eight}").json()
    assert (kind["guestCpus"], kind["memoryMb"]) == (180, 1440 << 10)
    body = single("eight", machineType=f"zones/{ZONE}/machineTypes/{eight}")
    for features in ({}, {"threadsPerCore": 2}):
        refused = error(client.call("POST", insert, {**body, "advancedMachineFeatures": features}))
        assert refused[0] == 400 and "threadsPerCore" in refused[2], refused
    once = {"threadsPerCore": 1}
    full = client.wait(client.call("POST", insert, {**body, "advancedMachineFeatures": once}))
    assert "error" in full, "no zone has room for it"


def test_all_or_none_until_there_is_room(client):
    client.control("stockout", {"zones": [ZONE], "left": 1})
    make(client)
    found = until(
        lambda: status(client, "s")["bulkInstanceOperation"].get("lastProgressCheck"),
        "a first attempt",
    )
    assert [each["code"] for each in found["error"]["errors"]] == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert status(client, "s")["bulkInstanceOperation"]["inProgress"]
    assert client.get("s-0", ZONE) is client.get("s-1", ZONE) is None
    client.control("stockout", {"on": False})
    found = whole(client, "s")
    assert found["appliedAcceleratorTopologies"] == [
        {"acceleratorTopology": "2x2x2", "state": "ACTIVE"}
    ]
    assert found["currentInstanceStatuses"]["running"] == 2


def test_a_machine_that_went_is_not_made_anew(client):
    make(client)
    whole(client, "s")
    client.control("instances/s-1/preempt", {"grace": 0})
    until(lambda: client.get("s-1", ZONE) is None, "the end of s-1")
    found = status(client, "s")
    assert found["appliedAcceleratorTopologies"][0]["state"] == "INCOMPLETE"
    assert not found["bulkInstanceOperation"]["inProgress"] and client.get("s-0", ZONE)
