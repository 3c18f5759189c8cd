# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""What other tools' provisioners ask of Compute Engine: plain zonal groups, regional templates,
rules that change, machines that get another type.
"""

import pytest
from local_machines import IMAGE, NIC, ZONE, body, client, until  # noqa: F401 (a fixture)
from test_local_compute import error

REGION = "us-central1"
GROUPS = f"/zones/{ZONE}/instanceGroupManagers"
TEMPLATES, REGIONAL = "/global/instanceTemplates", f"/regions/{REGION}/instanceTemplates"
FIREWALLS = "/global/firewalls"
ROOT = "https://www.googleapis.com/compute/v1/projects/berg-local"


@pytest.fixture(autouse=True)
def clean(client):
    client.control("settings", {"refill": 0.2, "grace": 0.5, "boot": 0})
    yield
    for row in client.call("GET", GROUPS).json().get("items", []):
        client.wait(client.call("DELETE", f"{GROUPS}/{row['name']}"))
    for path in (TEMPLATES, REGIONAL):
        for row in client.call("GET", path).json().get("items", []):
            client.wait(client.call("DELETE", f"{path}/{row['name']}"))
    client.control("settings", {"boot": 1})


def properties(**fields) -> dict:
    disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
    made = {"machineType": "n1-standard-1", "disks": [disk], "networkInterfaces": [NIC]}
    return {**made, **fields}


def template(client, path: str = TEMPLATES, name: str = "t", **fields) -> str:
    done = client.wait(
        client.call("POST", path, {"name": name, "properties": properties(**fields)})
    )
    assert "error" not in done, done
    return f"{ROOT}{path}/{name}"


def group(link: str, size: int = 2, **fields) -> dict:
    return {"name": "g", "targetSize": size, "instanceTemplate": link, **fields}


# --- zonal groups and regional templates


def test_a_zonal_group_makes_its_machines_one_by_one_and_repairs_them(client):
    link = template(client)
    client.control("stockout", {"zones": [ZONE], "left": 1})
    client.wait(client.call("POST", GROUPS, group(link)))

    def running() -> int:
        listed = client.call("POST", f"{GROUPS}/g/listManagedInstances").json()
        rows = listed["managedInstances"]
        return [row.get("instanceStatus") for row in rows].count("RUNNING")

    until(lambda: running() == 1, "the machine that there is room for")
    client.control("stockout", {"on": False})
    until(lambda: running() == 2, "the other one")
    shown = client.call("GET", f"{GROUPS}/g").json()
    assert shown["zone"] == f"{ROOT}/zones/{ZONE}" and "distributionPolicy" not in shown
    assert shown["targetSizePolicy"] == {"mode": "INDIVIDUAL"} and shown["status"]["isStable"]
    assert "bulkInstanceOperation" not in shown["status"]
    (name, _) = sorted(
        row["name"] for row in client.call("GET", f"/zones/{ZONE}/instances").json()["items"]
    )
    old = client.get(name)["id"]
    client.delete(name)
    until(lambda: (client.get(name) or {}).get("id", old) != old, "another of its name")
    client.wait(client.call("POST", f"{GROUPS}/g/resize", size=0))
    until(lambda: client.get(name) is None, "the end of all")
    again = client.call("POST", GROUPS, group(link, targetSizePolicy={"mode": "INDIVIDUAL"}))
    assert again.status_code == 409, again.text


def test_templates_of_a_region_are_other_ones_than_the_global_of_the_same_name(client):
    everywhere, here = template(client), template(client, REGIONAL, labels={"a": "b"})
    again = client.call("POST", REGIONAL, {"name": "t", "properties": properties()})
    assert error(again)[:2] == (409, "alreadyExists")
    shown = client.call("GET", f"{REGIONAL}/t").json()
    assert shown["selfLink"] == here and shown["region"] == f"{ROOT}/regions/{REGION}"
    assert "region" not in client.call("GET", f"{TEMPLATES}/t").json()
    for path, link in ((TEMPLATES, everywhere), (REGIONAL, here)):
        (row,) = client.call("GET", path).json()["items"]
        assert row["selfLink"] == link
    elsewhere = client.call("GET", "/regions/us-east1/instanceTemplates").json()
    assert "items" not in elsewhere
    scopes = client.call("GET", "/aggregated/instanceTemplates").json()["items"]
    assert len(scopes["global"]["instanceTemplates"]) == 1
    assert len(scopes[f"regions/{REGION}"]["instanceTemplates"]) == 1
    client.wait(client.call("POST", GROUPS, group(here, 1)))
    name = until(
        lambda: [
            row["name"]
            for row in client.call("GET", f"/zones/{ZONE}/instances").json().get("items", [])
        ],
        "the machine",
    )[0]
    instance = until(lambda: client.get(name), "the machine")
    assert instance["labels"] == {"a": "b"}
    items = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    assert items["instance-template"].endswith(f"/regions/{REGION}/instanceTemplates/t")
    assert error(client.call("DELETE", f"{REGIONAL}/t"))[1] == "resourceInUseByAnotherResource"
    other = client.call("POST", "/regions/us-east1/instanceGroupManagers", group(here, 1))
    assert error(other)[0] == 400 and "in the region of the group" in error(other)[2]


# --- firewall rules


def test_rules_are_patched_and_replaced(client):
    rule = {"name": "r", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "targetTags": ["a"]}
    client.wait(client.call("POST", FIREWALLS, rule))
    client.wait(
        client.call("PATCH", f"{FIREWALLS}/r", {"name": "r", "sourceRanges": ["10.0.0.0/8"]})
    )
    shown = client.call("GET", f"{FIREWALLS}/r").json()
    assert shown["sourceRanges"] == ["10.0.0.0/8"] and shown["targetTags"] == ["a"]
    assert shown["allowed"] == rule["allowed"]
    client.wait(
        client.call("PATCH", f"{FIREWALLS}/r", {"name": "r", "denied": [{"IPProtocol": "udp"}]})
    )
    shown = client.call("GET", f"{FIREWALLS}/r").json()
    assert shown["denied"] == [{"IPProtocol": "udp"}] and "allowed" not in shown
    client.wait(client.call("PUT", f"{FIREWALLS}/r", {**rule, "targetTags": []}))
    shown = client.call("GET", f"{FIREWALLS}/r").json()
    assert shown["sourceRanges"] == ["0.0.0.0/0"] and "targetTags" not in shown
    for verb, change, words in (
        ("PATCH", {"name": "r", "sourceRanges": ["here"]}, "Must be a CIDR address range."),
        ("PATCH", {"name": "r", "direction": "EGRESS", "sourceRanges": []}, "direction"),
        ("PATCH", {"name": "other"}, "name of a rule"),
        ("PUT", {"name": "r"}, "Exactly one of the fields must be specified: allowed, denied."),
    ):
        refused = error(client.call(verb, f"{FIREWALLS}/r", change))
        assert refused[0] == 400 and words in refused[2], refused
    assert error(client.call("PATCH", f"{FIREWALLS}/none", {"name": "none"}))[0] == 404
    client.wait(client.call("DELETE", f"{FIREWALLS}/r"))


def test_the_rules_that_count_for_a_network_and_for_a_machine(client):
    allowed = [{"IPProtocol": "tcp"}]
    for name, tag in (("mine", "a"), ("other", "b")):
        client.wait(
            client.call("POST", FIREWALLS, {"name": name, "allowed": allowed, "targetTags": [tag]})
        )
    client.insert("one", tags={"items": ["a"]})

    def names(path: str, **params) -> set:
        rows = client.call("GET", f"{path}/getEffectiveFirewalls", **params).json()["firewalls"]
        return {row["name"] for row in rows}

    assert {"default-allow-ssh", "mine", "other"} <= names("/global/networks/default")
    here = names(f"/zones/{ZONE}/instances/one", networkInterface="nic0")
    assert {"default-allow-ssh", "mine"} <= here and "other" not in here
    assert client.call("GET", "/global/networks/n/getEffectiveFirewalls").status_code == 404
    client.delete("one")
    for name in ("mine", "other"):
        client.wait(client.call("DELETE", f"{FIREWALLS}/{name}"))


# --- another type


def test_a_stopped_machine_gets_another_type(client):
    client.insert("one")
    path, link = f"/zones/{ZONE}/instances/one", f"zones/{ZONE}/machineTypes/"
    refused = error(
        client.call("POST", f"{path}/setMachineType", {"machineType": f"{link}n1-standard-4"})
    )
    assert refused[:2] == (400, "invalidResourceUsage")
    client.wait(client.call("POST", f"{path}/stop"))
    for kind, words in (
        (f"{link}n1-standard-3", "does not exist"),
        ("n1-standard-4", "The URL is malformed."),
        (f"{link}a3-ultragpu-8g", ""),
        (f"{link}c4-standard-4", "pd-standard disk type cannot be used by c4-standard-4"),
    ):
        refused = error(client.call("POST", f"{path}/setMachineType", {"machineType": kind}))
        assert refused[0] == 400 and words in refused[2], refused
    client.wait(
        client.call("POST", f"{path}/setMachineType", {"machineType": f"{link}n1-standard-4"})
    )
    assert client.get("one")["machineType"] == f"{ROOT}/{link}n1-standard-4"
    quota = client.call("GET", f"/regions/{REGION}").json()["quotas"]
    before = next(row["usage"] for row in quota if row["metric"] == "CPUS")
    client.wait(client.call("POST", f"{path}/start"))
    quota = client.call("GET", f"/regions/{REGION}").json()["quotas"]
    assert next(row["usage"] for row in quota if row["metric"] == "CPUS") == before + 4
    client.delete("one")
