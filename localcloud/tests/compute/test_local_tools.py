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


def test_the_rules_that_count_for_a_network(client):
    rule = {"name": "mine", "allowed": [{"IPProtocol": "tcp"}], "targetTags": ["a"]}
    client.wait(client.call("POST", FIREWALLS, rule))
    rows = client.call("GET", "/global/networks/default/getEffectiveFirewalls").json()["firewalls"]
    assert {"default-allow-ssh", "mine"} <= {row["name"] for row in rows}
    assert client.call("GET", "/global/networks/n/getEffectiveFirewalls").status_code == 404
    client.wait(client.call("DELETE", f"{FIREWALLS}/mine"))


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


# --- disks and snapshots


DISKS, SNAPSHOTS = f"/zones/{ZONE}/disks", "/global/snapshots"
TYPE = f"zones/{ZONE}/diskTypes/"


def disk(client, name: str = "data", **fields) -> str:
    done = client.wait(client.call("POST", DISKS, {"name": name, **fields}))
    assert "error" not in done, done
    return f"{ROOT}{DISKS}/{name}"


def usage(client, metric: str) -> float:
    rows = client.call("GET", f"/regions/{REGION}").json()["quotas"]
    return next(row["usage"] for row in rows if row["metric"] == metric)


def test_a_disk_of_ones_own_is_made_grows_and_goes(client):
    before = usage(client, "SSD_TOTAL_GB")
    disk(client, sizeGb="20", type=f"{TYPE}pd-ssd", labels={"a": "b"})
    shown = client.call("GET", f"{DISKS}/data").json()
    assert (shown["sizeGb"], shown["labels"], shown["status"]) == ("20", {"a": "b"}, "READY")
    assert "users" not in shown and "sourceImage" not in shown
    client.wait(client.call("POST", f"{DISKS}/data/resize", {"sizeGb": "30"}))
    assert usage(client, "SSD_TOTAL_GB") == before + 30
    disk(client, "plain")
    assert client.call("GET", f"{DISKS}/plain").json()["sizeGb"] == "500"
    disk(client, "bootable", sourceImage=IMAGE)
    assert client.call("GET", f"{DISKS}/bootable").json()["sizeGb"] == "10"
    labels = {"labels": {"c": "d"}, "labelFingerprint": shown["labelFingerprint"]}
    client.wait(client.call("POST", f"{DISKS}/data/setLabels", labels))
    for path, sent, words in (
        (DISKS, {"name": "data"}, "already exists"),
        (DISKS, {"name": "x", "sizeGb": "9"}, "between 10 GB and 65536 GB"),
        (DISKS, {"name": "x", "type": "pd-ssd"}, "The URL is malformed."),
        (DISKS, {"name": "x", "type": f"{TYPE}pd-fast"}, "diskType resource cannot be found"),
        (DISKS, {"name": "x", "sourceImage": IMAGE, "sizeGb": "5"}, "between 10 GB"),
        (DISKS, {"name": "X"}, "Must be a match of regex"),
        (DISKS, {"name": "x", "sourceSnapshot": "global/snapshots/none"}, "was not found"),
        (f"{DISKS}/data/resize", {"sizeGb": "30"}, "must be larger than existing size '30' GiB"),
        (f"{DISKS}/data/setLabels", labels, "Labels fingerprint"),
    ):
        refused = error(client.call("POST", path, sent))
        assert words in refused[2], (sent, refused)
    client.control("quotas", {"region": REGION, "metric": "SSD_TOTAL_GB", "limit": before + 35})
    done = client.wait(client.call("POST", f"{DISKS}/data/resize", {"sizeGb": "40"}))
    client.control("quotas", {"region": REGION, "metric": "SSD_TOTAL_GB", "limit": 20480})
    assert done["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"
    for name in ("data", "plain", "bootable"):
        client.wait(client.call("DELETE", f"{DISKS}/{name}"))
    assert usage(client, "SSD_TOTAL_GB") == before


def test_a_second_disk_comes_with_its_machine_or_before_it(client):
    link = disk(client, sizeGb="20")
    new = {
        "initializeParams": {"diskSizeGb": "50", "diskType": f"{TYPE}pd-ssd"},
        "autoDelete": True,
    }
    boot = body("one")["disks"][0]
    shown = client.insert("one", disks=[boot, {"source": link, "deviceName": "mine"}, new])
    rows = shown["disks"]
    assert [row["index"] for row in rows] == [0, 1, 2] and [row["boot"] for row in rows][1:] == [
        False
    ] * 2
    assert [row["deviceName"] for row in rows] == ["persistent-disk-0", "mine", "persistent-disk-2"]
    assert [row["diskSizeGb"] for row in rows] == ["10", "20", "50"]
    assert client.call("GET", f"{DISKS}/data").json()["users"] == [shown["selfLink"]]
    assert error(client.call("DELETE", f"{DISKS}/data"))[1] == "resourceInUseByAnotherResource"
    insert = f"/zones/{ZONE}/instances"
    for more, words in (
        ([{"source": link}], "is already being used by"),
        ([{**new, "deviceName": "a"}, {**new, "deviceName": "a"}], "Device names must be unique."),
        ([{"source": f"zones/{ZONE}/disks/none"}], "was not found"),
        ([{"source": "data"}], "The URL is malformed."),
        ([{"source": link, **new}], "Exactly one of the fields"),
    ):
        refused = error(client.call("POST", insert, body("two", disks=[boot, *more])))
        assert words in refused[2], refused
    client.delete("one")
    assert "users" not in client.call("GET", f"{DISKS}/data").json()
    assert client.call("GET", f"{DISKS}/one-2").status_code == 404, "it went with its machine"
    client.wait(client.call("DELETE", f"{DISKS}/data"))


def test_disks_are_attached_and_detached(client):
    link = disk(client, sizeGb="20")
    client.insert("one")
    path = f"/zones/{ZONE}/instances/one"
    attach = {"source": link, "deviceName": "mine"}
    client.wait(client.call("POST", f"{path}/attachDisk", attach))
    assert client.get("one")["disks"][1]["source"] == link
    for sent, words in (
        (attach, "is already being used by"),
        ({"source": link, "boot": True}, "has its boot disk"),
        ({"initializeParams": {"diskSizeGb": "10"}}, "before it is attached"),
        ({"source": link, "deviceName": "d" * 64}, "at most 63 characters"),
        ({"source": link, "deviceName": "a/b"}, "Must be a match of regex"),
    ):
        assert words in error(client.call("POST", f"{path}/attachDisk", sent))[2]
    change = {"deviceName": "mine", "autoDelete": "true"}
    client.wait(client.call("POST", f"{path}/setDiskAutoDelete", **change))
    assert client.get("one")["disks"][1]["autoDelete"]
    detach = f"{path}/detachDisk"
    for name, words in (("none", "No attached disk found"), ("persistent-disk-0", "boot disk")):
        assert words in error(client.call("POST", detach, deviceName=name))[2]
    client.wait(client.call("POST", detach, deviceName="mine"))
    assert len(client.get("one")["disks"]) == 1
    client.delete("one")
    client.wait(client.call("DELETE", f"{DISKS}/data"))


def test_a_snapshot_of_a_boot_disk_boots_in_another_zone(client):
    client.insert("one")
    client.wait(
        client.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s", "labels": {"a": "b"}})
    )
    client.delete("one")
    shown = client.call("GET", f"{SNAPSHOTS}/s").json()
    assert (shown["status"], shown["diskSizeGb"], shown["labels"]) == ("READY", "10", {"a": "b"})
    assert shown["sourceDisk"] == f"{ROOT}{DISKS}/one"
    (row,) = client.call("GET", SNAPSHOTS, filter="labels.a=b").json()["items"]
    assert row == shown
    elsewhere = "us-east1-b"
    boot = {"boot": True, "initializeParams": {"sourceSnapshot": "global/snapshots/s"}}
    kind = f"zones/{elsewhere}/machineTypes/n1-standard-1"
    made = client.insert("two", zone=elsewhere, disks=[boot], machineType=kind)
    client.delete("two", elsewhere)
    row = client.call("GET", f"/zones/{elsewhere}/disks/two").json()
    assert row["sourceSnapshot"] == shown["selfLink"] and made["disks"][0]["diskSizeGb"] == "10"
    client.wait(client.call("DELETE", f"/zones/{elsewhere}/disks/two"))
    disk(client, sourceSnapshot=shown["selfLink"], sizeGb="12")
    assert (
        error(
            client.call(
                "POST", DISKS, {"name": "x", "sourceSnapshot": "global/snapshots/s", "sizeGb": "5"}
            )
        )[0]
        == 400
    )
    again = {"name": "s", "sourceDisk": f"zones/{ZONE}/disks/data"}
    assert error(client.call("POST", SNAPSHOTS, again))[0] == 409
    client.wait(client.call("POST", SNAPSHOTS, {**again, "name": "t"}))
    for name in ("s", "t"):
        client.wait(client.call("DELETE", f"{SNAPSHOTS}/{name}"))
    assert client.call("GET", f"{SNAPSHOTS}/s").status_code == 404
    client.wait(client.call("DELETE", f"{DISKS}/data"))


def test_a_snapshot_is_ready_once_the_disk_is_copied(client):
    disk(client)
    client.control("settings", {"image_delay": 1})
    going = client.call("POST", f"{DISKS}/data/createSnapshot", {"name": "s"})
    assert client.call("GET", f"{SNAPSHOTS}/s").json()["status"] == "UPLOADING"
    of_it = {"name": "x", "sourceSnapshot": "global/snapshots/s"}
    for early in (client.call("POST", DISKS, of_it), client.call("DELETE", f"{SNAPSHOTS}/s")):
        assert error(early)[1] == "resourceNotReady"
    client.wait(going)
    client.control("settings", {"image_delay": 0})
    assert client.call("GET", f"{SNAPSHOTS}/s").json()["status"] == "READY"
    client.wait(client.call("DELETE", f"{SNAPSHOTS}/s"))
    client.wait(client.call("DELETE", f"{DISKS}/data"))


def test_a_disk_that_is_copied_to_a_snapshot_is_neither_deleted_nor_started(client):
    client.insert("one")
    path = f"/zones/{ZONE}/instances/one"
    client.wait(client.call("POST", f"{path}/stop"))
    disk(client)
    client.control("settings", {"image_delay": 1})
    going = [
        client.call("POST", f"{DISKS}/{name}/createSnapshot", {"name": f"of-{name}"})
        for name in ("one", "data")
    ]
    for answer, what in (
        (client.call("POST", f"{path}/start"), "instance resource"),
        (client.call("DELETE", path), "instance resource"),
        (client.call("DELETE", f"{DISKS}/data"), "disk resource"),
    ):
        status, reason, message = error(answer)
        assert (status, reason) == (400, "resourceInUseByAnotherResource")
        assert what in message and "global/snapshots/of-" in message
    for each in going:
        client.wait(each)
    client.control("settings", {"image_delay": 0})
    client.wait(client.call("POST", f"{path}/start"))
    client.delete("one")
    client.wait(client.call("DELETE", f"{DISKS}/data"))
    for name in ("of-one", "of-data"):
        client.wait(client.call("DELETE", f"{SNAPSHOTS}/{name}"))


def test_a_snapshot_that_fails_says_so(client):
    disk(client)
    why = {"code": "INTERNAL_ERROR", "message": "Internal error."}
    client.control("faults", {"method": "compute.disks.createSnapshot", "operation_error": why})
    done = client.wait(client.call("POST", f"{DISKS}/data/createSnapshot", {"name": "s"}))
    assert done["error"]["errors"][0]["code"] == "INTERNAL_ERROR"
    assert client.call("GET", f"{SNAPSHOTS}/s").json()["status"] == "FAILED"
    client.wait(client.call("DELETE", f"{SNAPSHOTS}/s"))
    client.wait(client.call("DELETE", f"{DISKS}/data"))


# --- addresses


def test_a_reserved_address_is_its_machines_until_it_is_released(client):
    path = f"/regions/{REGION}/addresses"
    client.wait(client.call("POST", path, {"name": "mine", "labels": {"a": "b"}}))
    row = client.call("GET", f"{path}/mine").json()
    assert (row["status"], row["addressType"], row["labels"]) == (
        "RESERVED",
        "EXTERNAL",
        {"a": "b"},
    )
    assert usage(client, "STATIC_ADDRESSES") == 1
    with_it = [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT", "natIP": row["address"]}]}]
    shown = client.insert("one", networkInterfaces=with_it)
    assert shown["networkInterfaces"][0]["accessConfigs"][0]["natIP"] == row["address"]
    used = client.call("GET", f"{path}/mine").json()
    assert (used["status"], used["users"]) == ("IN_USE", [shown["selfLink"]])
    (listed,) = client.call("GET", path, filter="status=IN_USE").json()["items"]
    assert listed == used
    scopes = client.call("GET", "/aggregated/addresses").json()["items"]
    assert scopes[f"regions/{REGION}"]["addresses"] == [used]
    assert error(client.call("DELETE", f"{path}/mine"))[1] == "resourceInUseByAnotherResource"
    two = client.call("POST", f"/zones/{ZONE}/instances", body("two", networkInterfaces=with_it))
    assert "is already being used by another resource" in error(two)[2]
    client.delete("one")
    inside = {"name": "inside", "addressType": "INTERNAL"}
    client.wait(client.call("POST", path, inside))
    row = client.call("GET", f"{path}/inside").json()
    shown = client.insert("one", networkInterfaces=[{"networkIP": row["address"]}])
    assert shown["networkInterfaces"][0]["networkIP"] == row["address"]
    client.delete("one")
    for sent, words in (
        ({"name": "mine"}, "already exists"),
        ({"name": "x", "address": "34.1.2.3"}, "resource.address"),
        ({**inside, "name": "x", "address": row["address"]}, "already reserved"),
        ({"name": "x", "subnetwork": f"regions/{REGION}/subnetworks/default"}, "INTERNAL"),
    ):
        assert words in error(client.call("POST", path, sent))[2], sent
    for name in ("mine", "inside"):
        client.wait(client.call("DELETE", f"{path}/{name}"))
    assert error(client.call("DELETE", f"{path}/mine"))[0] == 404


def test_what_is_output_only_passes_where_it_is_true(client):
    insert = f"/zones/{ZONE}/instances"
    for link in (f"{ROOT}{insert}/one", f"projects/berg-local{insert}/one"):
        client.wait(client.call("POST", insert, body("one", selfLink=link, zone=ZONE)))
        client.delete("one")
    wrong = error(client.call("POST", insert, body("one", selfLink=f"{ROOT}{insert}/two")))
    assert wrong[0] == 400 and "output only" in wrong[2]
    rule = {"name": "r", "allowed": [{"IPProtocol": "tcp"}]}
    for link, status in ((f"projects/berg-local{FIREWALLS}/r", 200), (f"{ROOT}{FIREWALLS}/q", 400)):
        answer = client.call("POST", FIREWALLS, {**rule, "selfLink": link})
        assert answer.status_code == status, answer.text
    client.wait(client.call("DELETE", f"{FIREWALLS}/r"))


def test_usable_subnetworks_are_listed_page_by_page(client):
    path, seen, token = "/aggregated/subnetworks/listUsable", [], None
    while True:
        answer = client.call("GET", path, maxResults=5, **({"pageToken": token} if token else {}))
        assert answer.ok, answer.text
        seen += answer.json()["items"]
        token = answer.json().get("nextPageToken")
        if not token:
            break
    assert f"{ROOT}/regions/{REGION}/subnetworks/default" in [row["subnetwork"] for row in seen]
    assert {row["network"] for row in seen} == {f"{ROOT}/global/networks/default"}
    every = client.call("GET", path).json()["items"]
    assert len(every) == len(seen) > 5


# --- nulls


def test_a_null_of_a_patch_takes_the_field_away(client):
    rule = {"name": "r", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "targetTags": ["a"]}
    rule |= {"description": "mine", "priority": 7, "logConfig": {"enable": True}}
    client.wait(client.call("POST", FIREWALLS, rule))
    gone = {"targetTags": None, "description": None, "priority": None}
    more = {"logConfig": {"metadata": "EXCLUDE_ALL_METADATA"}}
    client.wait(client.call("PATCH", f"{FIREWALLS}/r", {**gone, **more}))
    shown = client.call("GET", f"{FIREWALLS}/r").json()
    assert not {"targetTags", "description"} & set(shown) and shown["priority"] == 1000
    assert shown["logConfig"] == {"enable": True, **more["logConfig"]}
    client.wait(client.call("PATCH", f"{FIREWALLS}/r", {"logConfig": None}))
    assert client.call("GET", f"{FIREWALLS}/r").json()["logConfig"] == {"enable": False}
    denied = {"allowed": None, "denied": [{"IPProtocol": "udp", "ports": None}]}
    client.wait(client.call("PATCH", f"{FIREWALLS}/r", denied))
    shown = client.call("GET", f"{FIREWALLS}/r").json()
    assert shown["denied"] == [{"IPProtocol": "udp"}] and "allowed" not in shown
    refused = error(client.call("PATCH", f"{FIREWALLS}/r", {"denied": None}))
    assert refused[0] == 400 and "Exactly one" in refused[2]
    # An update is no patch: there a null is a field left out, as in an insert.
    client.wait(client.call("PUT", f"{FIREWALLS}/r", {**rule, "targetTags": None}))
    assert "targetTags" not in client.call("GET", f"{FIREWALLS}/r").json()
    client.wait(client.call("DELETE", f"{FIREWALLS}/r"))


def test_a_null_of_a_patch_of_a_router(client):
    routers = f"/regions/{REGION}/routers"
    nat = {"name": "nat", "natIpAllocateOption": "AUTO_ONLY"}
    nat["sourceSubnetworkIpRangesToNat"] = "ALL_SUBNETWORKS_ALL_IP_RANGES"
    made = {"name": "out", "network": "global/networks/default", "nats": [nat], "description": "d"}
    client.wait(client.call("POST", routers, made))
    client.wait(client.call("PATCH", f"{routers}/out", {"nats": None, "description": None}))
    shown = client.call("GET", f"{routers}/out").json()
    assert not {"nats", "description"} & set(shown) and shown["id"]
    client.wait(client.call("DELETE", f"{routers}/out"))
