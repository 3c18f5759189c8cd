# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Networks other than `default`, those for RDMA, and machines with several interfaces."""

import pytest
from local_machines import IMAGE, body, client, error, failure  # noqa: F401 (a fixture)

ROOT = "projects/berg-local"
ZONE = "us-central1-b"
REGION = ZONE[:-2]
CLOSE = "projects/berg-local/regions/us-central1/resourcePolicies"


def network(client, name: str, **fields) -> dict:
    made = {"name": name, "autoCreateSubnetworks": False, **fields}
    return client.wait(client.call("POST", "/global/networks", made))


def subnetwork(client, name: str, of: str, addresses: str, region: str = REGION):
    made = {"name": name, "network": f"global/networks/{of}", "ipCidrRange": addresses}
    return client.call("POST", f"/regions/{region}/subnetworks", made)


def zones_with_rdma(client) -> list[str]:
    rows = client.call("GET", "/global/networkProfiles").json()["items"]
    return [row["location"]["name"] for row in rows]


@pytest.fixture(scope="module")
def fast(client):
    """A network for the second interface and one for RDMA, in the first zone that has it."""
    client.control("settings", {"boot": 0})
    zone = next(each for each in zones_with_rdma(client) if each[:-2] == REGION)
    profile = f"{ROOT}/global/networkProfiles/{zone}-vpc-roce"
    assert "error" not in network(client, "fast", mtu=8896)
    assert "error" not in network(client, "roce", networkProfile=profile)
    client.wait(subnetwork(client, "fast", "fast", "192.168.64.0/22"))
    for number in range(9):
        addresses = f"192.168.{128 + 8 * number}.0/21"
        client.wait(subnetwork(client, f"roce-{number}", "roce", addresses))
    return zone


def nic(of: str, subnet: str, nic_type: str, **fields) -> dict:
    links = {"network": f"global/networks/{of}"}
    links["subnetwork"] = f"regions/{REGION}/subnetworks/{subnet}"
    return {**links, "nicType": nic_type, **fields}


DEFAULT = {"network": "global/networks/default", "nicType": "GVNIC"}
FAST = nic("fast", "fast", "GVNIC")
ROCE = [nic("roce", f"roce-{number}", "MRDMA") for number in range(9)]
SPOT = {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}


def properties(kind: str, interfaces: list[dict]) -> dict:
    return {
        "machineType": kind,
        "networkInterfaces": interfaces,
        "scheduling": {**SPOT, "instanceTerminationAction": "DELETE"},
    }


def gpus(name: str, zone: str, interfaces: list[dict]) -> dict:
    made = body(name, **properties(f"zones/{zone}/machineTypes/a3-ultragpu-8g", interfaces))
    made["disks"][0]["initializeParams"]["diskType"] = f"zones/{zone}/diskTypes/hyperdisk-balanced"
    return made


def test_profiles_are_where_the_machines_are(client):
    zones = zones_with_rdma(client)
    assert zones and "us-east1-c" not in zones
    row = client.call("GET", f"/global/networkProfiles/{zones[0]}-vpc-roce").json()
    assert row["profileType"] == {"networkType": "RDMA", "rdmaSubtype": "ROCE"}
    assert client.call("GET", "/global/networkProfiles/us-east1-c-vpc-roce").status_code == 404


def test_networks_have_mtus_and_rules_of_their_own(client, fast):
    shown = client.call("GET", "/global/networks/roce").json()
    assert shown["mtu"] == 8896 and len(shown["subnetworks"]) == 9
    profile = shown["networkProfile"]
    wrong = {"name": "wrong", "autoCreateSubnetworks": True, "networkProfile": profile}
    assert error(client.call("POST", "/global/networks", wrong))[0] == 501
    twice = {"name": "fast", "autoCreateSubnetworks": False}
    assert error(client.call("POST", "/global/networks", twice))[:2] == (409, "alreadyExists")
    overlapping = error(subnetwork(client, "other", "fast", "192.168.66.0/24"))
    assert "conflicts with existing subnetwork 'fast'" in overlapping[2]
    away = error(subnetwork(client, "away", "roce", "10.0.0.0/24", "europe-west4"))
    assert "Network profile only allows resource creation in location" in away[2]
    rule = {"name": "in", "allowed": [{"IPProtocol": "tcp"}], "sourceRanges": ["192.168.64.0/18"]}
    refused = client.call("POST", "/global/firewalls", {**rule, "network": "global/networks/roce"})
    assert "does not allow VPC firewall rules" in error(refused)[2]
    client.wait(
        client.call("POST", "/global/firewalls", {**rule, "network": "global/networks/fast"})
    )
    client.wait(client.call("DELETE", "/global/firewalls/in"))


def test_a_subnetwork_waits_for_its_network(client):
    client.control("settings", {"network_delay": 1})
    made = client.call("POST", "/global/networks", {"name": "slow", "autoCreateSubnetworks": False})
    early = subnetwork(client, "slow", "slow", "10.9.0.0/24")
    assert error(early)[:2] == (400, "resourceNotReady")
    client.control("settings", {"network_delay": 0})
    client.wait(made)
    client.wait(subnetwork(client, "slow", "slow", "10.9.0.0/24"))


def test_the_quota_of_networks(client):
    with client.limited("NETWORKS", 1):
        failed = failure(network(client, "much"))
    assert failed["code"] == "QUOTA_EXCEEDED" and "Limit: 1.0 globally." in failed["message"]


def test_ten_interfaces(client, fast):
    made = gpus("ten", fast, [DEFAULT, FAST, *ROCE[:8]])
    assert "error" not in client.wait(client.call("POST", f"/zones/{fast}/instances", made))
    rows = client.get("ten", fast)["networkInterfaces"]
    assert [row["name"] for row in rows] == [f"nic{number}" for number in range(10)]
    assert [row["networkIP"] for row in rows[1:4]] == [
        "192.168.64.2",
        "192.168.128.2",
        "192.168.136.2",
    ]
    client.delete("ten", fast)


def test_what_interfaces_may_not_be(client, fast):
    for interfaces, words in (
        ([DEFAULT, *ROCE], "at most 8 interfaces of type MRDMA"),
        ([DEFAULT, {**ROCE[0], "nicType": "GVNIC"}], "takes MRDMA only"),
        ([DEFAULT, {**FAST, "nicType": "MRDMA"}], "takes no MRDMA"),
        ([DEFAULT, FAST, FAST], "distinct for NICs attached to a VM."),
        ([{"network": "global/networks/fast"}], "custom subnet mode"),
        ([{**ROCE[0], "network": "global/networks/fast"}], "not one of"),
        ([DEFAULT, {**ROCE[0], "accessConfigs": [{}]}], "external IP"),
        ([DEFAULT, *[FAST] * 10], "1 to 10"),
        ([], "1 to 10"),
    ):
        wrong = gpus("wrong", fast, interfaces)
        refused = error(client.call("POST", f"/zones/{fast}/instances", wrong))
        assert refused[0] == 400 and words in refused[2], refused
    other = next(f"{REGION}-{each}" for each in "abcf" if f"{REGION}-{each}" != fast)
    for zone, words in (
        (fast, "does not support MRDMA"),
        (other, f"Network profile only allows resource creation in location {fast}."),
    ):
        kind = f"zones/{zone}/machineTypes/n1-standard-8"
        wrong = body("wrong", machineType=kind, networkInterfaces=[DEFAULT, ROCE[0]])
        refused = error(client.call("POST", f"/zones/{zone}/instances", wrong))
        assert refused[0] == 400 and words in refused[2], refused


def test_templates_say_it_otherwise(client, fast):
    params = {"diskType": "hyperdisk-balanced", "sourceImage": IMAGE}
    disks = [{"boot": True, "initializeParams": params}]
    made = {**properties("a3-ultragpu-8g", [DEFAULT, FAST, FAST]), "disks": disks}
    refused = error(
        client.call("POST", "/global/instanceTemplates", {"name": "two", "properties": made})
    )
    assert refused[2].endswith("Subnetworks must be distinct for NICs in the same instance.")
    made["networkInterfaces"] = [DEFAULT, FAST, *ROCE[:8]]
    client.wait(
        client.call("POST", "/global/instanceTemplates", {"name": "ten", "properties": made})
    )


def test_compact_policies(client, fast):
    path = f"/regions/{REGION}/resourcePolicies"
    near = {"name": "near", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    client.wait(client.call("POST", path, near))
    nearer = {"collocation": "COLLOCATED", "maxDistance": 2}
    wrong = client.call("POST", path, {"name": "nearer", "groupPlacementPolicy": nearer})
    assert error(wrong)[0] == 400 and "maxDistance" in error(wrong)[2]
    made = gpus("close", fast, [DEFAULT])
    bare = client.call("POST", f"/zones/{fast}/instances", {**made, "resourcePolicies": ["near"]})
    assert "The URL is malformed." in error(bare)[2]
    made["resourcePolicies"] = [f"{CLOSE}/near"]
    client.wait(client.call("POST", f"/zones/{fast}/instances", made))
    assert "already being used by" in error(client.call("DELETE", f"{path}/near"))[2]
    client.delete("close", fast)
    client.wait(client.call("DELETE", f"{path}/near"))
