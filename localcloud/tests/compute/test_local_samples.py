# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""What Google's own samples for Compute Engine ask for, beyond what other tools do."""

import pytest
from local_machines import IMAGE, NIC, ZONE, body, client  # noqa: F401 (a fixture)
from test_local_compute import error

REGION = "us-central1"
INSTANCES = f"/zones/{ZONE}/instances"
RESERVATIONS = f"/zones/{ZONE}/reservations"
ADDRESSES, GLOBAL = f"/regions/{REGION}/addresses", "/global/addresses"
IMAGES, TEMPLATES = "/global/images", "/global/instanceTemplates"
ROOT = "https://www.googleapis.com/compute/v1/projects/berg-local"


@pytest.fixture(autouse=True)
def clean(client):
    client.control("settings", {"grace": 0.5, "boot": 0})
    yield
    for path in (INSTANCES, RESERVATIONS, ADDRESSES, GLOBAL, IMAGES, TEMPLATES):
        for row in client.call("GET", path).json().get("items", []):
            client.wait(client.call("DELETE", f"{path}/{row['name']}"))
    client.control("settings", {"boot": 1})


# --- addresses


def test_a_global_address_is_nobody_s_in_a_region(client):
    client.wait(client.call("POST", GLOBAL, {"name": "web", "labels": {"a": "b"}}))
    client.wait(client.call("POST", GLOBAL, {"name": "web6", "ipVersion": "IPV6"}))
    client.wait(client.call("POST", ADDRESSES, {"name": "web"}))
    row = client.call("GET", f"{GLOBAL}/web").json()
    assert row["selfLink"] == f"{ROOT}{GLOBAL}/web" and "region" not in row
    assert (row["networkTier"], row["status"], row["labels"]) == ("PREMIUM", "RESERVED", {"a": "b"})
    assert ":" in client.call("GET", f"{GLOBAL}/web6").json()["address"]
    assert [each["name"] for each in client.call("GET", GLOBAL).json()["items"]] == ["web", "web6"]
    scopes = client.call("GET", "/aggregated/addresses").json()["items"]
    assert [len(scopes[each]["addresses"]) for each in ("global", f"regions/{REGION}")] == [2, 1]
    quotas = client.call("GET", "").json()["quotas"]
    assert [q["usage"] for q in quotas if q["metric"] == "STATIC_ADDRESSES"] == [2.0]
    with_it = [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT", "natIP": row["address"]}]}]
    answer = client.call("POST", INSTANCES, body("one", networkInterfaces=with_it))
    assert "was not found in region" in error(answer)[2]


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        ({"name": "Web"}, 400, "resource.name"),
        ({"name": "x", "networkTier": "STANDARD"}, 400, "always Premium"),
        ({"name": "x", "address": "34.1.2.3"}, 400, "resource.address"),
        ({"name": "x", "purpose": "VPC_PEERING"}, 400, "INTERNAL"),
        ({"name": "x", "addressType": "INTERNAL"}, 501, "addressType"),
        ({"name": "x", "ipVersion": "IPV5"}, 400, "ipVersion"),
        ({"name": "web"}, 409, "already exists"),
    ],
)
def test_what_is_no_global_address(client, sent, status, words):
    client.wait(client.call("POST", GLOBAL, {"name": "web"}))
    answer = error(client.call("POST", GLOBAL, sent))
    assert answer[0] == status and words in answer[2]


def change(client, verb: str, config=None, **params):
    where = {"networkInterface": "nic0", **params}
    return client.call("POST", f"{INSTANCES}/one/{verb}AccessConfig", config, **where)


def external(client) -> list[dict]:
    return client.get("one")["networkInterfaces"][0].get("accessConfigs", [])


def test_a_machine_s_external_address_goes_and_another_one_comes(client):
    client.wait(client.call("POST", ADDRESSES, {"name": "mine"}))
    address = client.call("GET", f"{ADDRESSES}/mine").json()["address"]
    config = {"name": "External NAT", "type": "ONE_TO_ONE_NAT"}
    client.insert("one", networkInterfaces=[{"accessConfigs": [config]}])
    second = error(change(client, "add", config))
    assert second == (400, "badRequest", "At most one access config currently supported.")
    assert error(change(client, "delete", accessConfig="other"))[0] == 400
    assert "networkInterface" in error(change(client, "add", config, networkInterface="nic1"))[2]
    client.wait(change(client, "delete", accessConfig="External NAT"))
    assert external(client) == []
    for wrong in ({**config, "natIP": "34.1.2.3"}, {**config, "type": "DIRECT_IPV6"}):
        assert error(change(client, "add", wrong))[0] == 400
    client.wait(change(client, "add", {**config, "natIP": address}))
    (shown,) = external(client)
    assert (shown["natIP"], shown["networkTier"]) == (address, "PREMIUM")
    row = client.call("GET", f"{ADDRESSES}/mine").json()
    assert (row["status"], row["users"]) == ("IN_USE", [client.get("one")["selfLink"]])
    client.wait(client.call("POST", f"{INSTANCES}/one/stop"))
    assert external(client)[0]["natIP"] == address  # it is the project's
    client.delete("one")
    assert client.call("GET", f"{ADDRESSES}/mine").json()["status"] == "RESERVED"


def test_an_address_that_a_machine_has_for_now_can_be_reserved(client):
    shown = client.insert("one", networkInterfaces=[NIC])
    address = shown["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    sent = {"name": "kept", "address": address}
    elsewhere = client.call("POST", "/regions/us-east1/addresses", sent)
    assert "resource.address" in error(elsewhere)[2]
    client.wait(client.call("POST", ADDRESSES, sent))
    assert client.call("GET", f"{ADDRESSES}/kept").json()["users"] == [shown["selfLink"]]
    client.delete("one")
    assert client.call("GET", f"{ADDRESSES}/kept").json()["status"] == "RESERVED"


# --- images


def test_an_image_keeps_its_features_and_where_it_is(client):
    features = [{"type": "GVNIC"}, {"type": "MULTI_IP_SUBNET"}]
    more = {"guestOsFeatures": features, "storageLocations": ["eu"]}
    client.wait(client.call("POST", IMAGES, {"name": "one", "sourceImage": IMAGE, **more}))
    client.wait(client.call("POST", f"/zones/{ZONE}/disks", {"name": "d", "sourceImage": IMAGE}))
    taken = {"name": "s", "sourceDisk": f"zones/{ZONE}/disks/d"}
    client.wait(client.call("POST", "/global/snapshots", taken))
    of_it = {"name": "two", "sourceSnapshot": "global/snapshots/s", "diskSizeGb": "12"}
    client.wait(client.call("POST", IMAGES, of_it))
    rows = {row["name"]: row for row in client.call("GET", IMAGES).json()["items"]}
    assert {key: rows["one"][key] for key in more} == more
    assert rows["two"]["diskSizeGb"] == "12" and rows["two"]["status"] == "READY"
    assert rows["two"]["sourceSnapshot"] == "global/snapshots/s"
    for sent, status, words in (
        ({"storageLocations": ["us", "eu"]}, 400, "At most one"),
        ({"storageLocations": ["mars"]}, 400, "storageLocations"),
        ({"guestOsFeatures": [*features, features[0]]}, 400, "guestOsFeatures[2]"),
        ({"guestOsFeatures": [{}]}, 400, "guestOsFeatures[0]"),
        ({"guestOsFeatures": [{"type": "FAST"}]}, 400, "Must be one of"),
        ({"sourceSnapshot": "global/snapshots/s"}, 400, "Exactly one"),
        ({"diskSizeGb": "5"}, 400, "cannot be smaller"),
    ):
        answer = client.call("POST", IMAGES, {"name": "x", "sourceImage": IMAGE, **sent})
        assert error(answer)[0] == status and words in error(answer)[2], sent
    lost = {"name": "x", "sourceSnapshot": "global/snapshots/lost"}
    assert client.call("POST", IMAGES, lost).status_code == 404
    client.wait(client.call("DELETE", "/global/snapshots/s"))
    client.wait(client.call("DELETE", f"/zones/{ZONE}/disks/d"))


def test_images_of_a_snapshot_and_of_that_image_hold_what_was_on_the_disk(client):
    client.control("settings", {"boot": 1})
    client.insert("one", "#!/bin/bash\necho kept > /root/kept\necho written\n")
    client.console_with("one", "startup-script: written")
    snapshot = {"name": "s", "sourceDisk": f"zones/{ZONE}/disks/one"}
    client.wait(client.call("POST", "/global/snapshots", snapshot))
    client.delete("one")
    of_it = {"name": "first", "sourceSnapshot": "global/snapshots/s"}
    client.wait(client.call("POST", IMAGES, of_it))
    client.wait(client.call("DELETE", "/global/snapshots/s"))
    again = {"name": "second", "sourceImage": "global/images/first"}
    client.wait(client.call("POST", IMAGES, again))
    client.wait(client.call("DELETE", f"{IMAGES}/first"))
    client.insert("one", "#!/bin/bash\ncat /root/kept\n", image="global/images/second")
    client.console_with("one", "startup-script: kept")


def test_an_image_on_its_way_out(client):
    for name in ("old", "new"):
        sent = {"name": name, "family": "mine", "sourceImage": IMAGE}
        client.wait(client.call("POST", IMAGES, sent))
    deprecate = lambda sent: client.call("POST", f"{IMAGES}/new/deprecate", sent)
    family = lambda: client.call("GET", f"{IMAGES}/family/mine").json()["name"]
    assert family() == "new"
    client.wait(deprecate({"state": "DEPRECATED", "replacement": "global/images/old"}))
    shown = client.call("GET", f"{IMAGES}/new").json()["deprecated"]
    assert shown == {"state": "DEPRECATED", "replacement": f"{ROOT}{IMAGES}/old"}
    assert family() == "old"
    boot = {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {"sourceImage": "global/images/new"},
    }
    done = client.wait(client.call("POST", INSTANCES, body("one", disks=[boot])))
    (warning,) = done["warnings"]
    assert warning["code"] == "DEPRECATED_RESOURCE_USED"
    said = "The resource 'projects/berg-local/global/images/new' is deprecated. A suggested replacement is 'projects/berg-local/global/images/old'."
    assert warning["message"] == said
    client.wait(deprecate({"state": "OBSOLETE"}))
    refused = error(client.call("POST", INSTANCES, body("two", disks=[boot])))
    assert refused[0] == 400 and "is obsolete" in refused[2]
    for wrong in ({"state": "GONE"}, {"replacement": "global/images/old"}):
        assert error(deprecate(wrong))[0] == 400
    assert error(deprecate({"state": "OBSOLETE", "deleted": "soon"}))[0] == 400
    assert error(deprecate({"state": "OBSOLETE", "replacement": "global/images/lost"}))[0] == 400
    client.wait(deprecate({}))
    assert "deprecated" not in client.call("GET", f"{IMAGES}/new").json() and family() == "new"


def test_images_of_google_s_are_read_only(client):
    sent = {"name": "mine", "sourceImage": IMAGE}
    assert client.call("POST", IMAGES, sent, project="debian-cloud").status_code == 403
    path = f"{IMAGES}/debian-12-bookworm-v20251014"
    out = client.call("POST", f"{path}/deprecate", {"state": "OBSOLETE"}, project="debian-cloud")
    assert out.status_code == 403
    assert client.call("DELETE", path, project="debian-cloud").status_code == 403


# --- templates


def test_a_template_has_the_properties_of_an_instance(client):
    tags, meta = {"items": ["web"]}, {"items": [{"key": "k", "value": "v"}]}
    scratch = {"type": "SCRATCH", "autoDelete": True, "deviceName": "local-ssd-0"}
    scratch["initializeParams"] = {"diskType": f"zones/{ZONE}/diskTypes/local-ssd"}
    boot = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
    client.insert("one", disks=[boot, scratch], tags=tags, metadata=meta, labels={"a": "b"})
    link = f"{ROOT}{INSTANCES}/one"
    rocky = "projects/rocky-linux-cloud/global/images/family/rocky-linux-8"
    custom = {"deviceName": "persistent-disk-0", "instantiateFrom": "CUSTOM_IMAGE"}
    params = {"diskConfigs": [{**custom, "customImage": rocky}]}
    sent = {"name": "t", "sourceInstance": link, "sourceInstanceParams": params}
    client.wait(client.call("POST", TEMPLATES, sent))
    shown = client.call("GET", f"{TEMPLATES}/t").json()
    assert shown["sourceInstance"] == link and shown["sourceInstanceParams"] == params
    made = shown["properties"]
    assert (made["machineType"], made["tags"], made["labels"]) == (
        "n1-standard-1",
        tags,
        {"a": "b"},
    )
    assert made["metadata"]["items"] == meta["items"]
    assert "natIP" not in made["networkInterfaces"][0]["accessConfigs"][0]
    first, second = made["disks"]
    assert first["initializeParams"]["sourceImage"] == rocky and first["diskSizeGb"] == "10"
    assert second["type"] == "SCRATCH"


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        ({"sourceInstance": "one"}, 400, "malformed"),
        ({"sourceInstance": f"zones/{ZONE}/instances/lost"}, 404, "was not found"),
        ({"properties": {"machineType": "n1-standard-1"}}, 400, "together with a source"),
        ({"deviceName": "lost"}, 400, "no disk with this device name"),
        ({"instantiateFrom": "CUSTOM_IMAGE"}, 400, "customImage"),
        ({"instantiateFrom": "BLANK"}, 400, "boot disk must have an image"),
        ({"instantiateFrom": "DO_NOT_INCLUDE"}, 400, "boot disk must have an image"),
        ({"customImage": IMAGE}, 400, "customImage"),
        (
            {"instantiateFrom": "CUSTOM_IMAGE", "customImage": "global/images/no"},
            400,
            "cannot be found",
        ),
        ({"instantiateFrom": "SOURCE_IMAGE_FAMILY"}, 200, ""),
    ],
)
def test_what_no_template_is_made_from(client, sent, status, words):
    client.insert("one")
    whole = {"name": "t", "sourceInstance": f"zones/{ZONE}/instances/one"}
    if "sourceInstance" in sent or "properties" in sent:
        whole |= sent
    else:
        configs = [{"deviceName": "persistent-disk-0", **sent}]
        whole["sourceInstanceParams"] = {"diskConfigs": configs}
    answer = client.call("POST", TEMPLATES, whole)
    assert answer.status_code == status and words in answer.text, answer.text


# --- updates


# --- reservations


def reserve(client, name: str, count: int = 1, **fields):
    properties = fields.pop("properties", {"machineType": "n1-standard-2"})
    specific = {"count": str(count), "instanceProperties": properties}
    return client.call(
        "POST", RESERVATIONS, {"name": name, "specificReservation": specific, **fields}
    )


def in_use(client, name: str) -> str:
    row = client.call("GET", f"{RESERVATIONS}/{name}").json()
    assert row["specificReservationRequired"] is False
    return row["specificReservation"]["inUseCount"]


def test_a_reservation_for_any_machine_is_used_by_those_that_fit(client):
    client.wait(reserve(client, "a", 1))
    client.wait(reserve(client, "b", 1))
    kind = {"machineType": f"zones/{ZONE}/machineTypes/n1-standard-2"}
    none = {"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}
    client.insert("other")
    client.insert("free", **kind, **none)
    client.insert("spot", **kind, scheduling={"provisioningModel": "SPOT"})
    assert (in_use(client, "a"), in_use(client, "b")) == ("0", "0")
    client.insert("one", **kind)
    assert (in_use(client, "a"), in_use(client, "b")) == ("1", "0")
    any_of = {"reservationAffinity": {"consumeReservationType": "ANY_RESERVATION"}}
    client.insert("two", **kind, **any_of)
    client.insert("three", **kind)  # there is no room left for it, and it does not mind
    assert (in_use(client, "a"), in_use(client, "b")) == ("1", "1")
    named = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["a"]}
    named["key"] = "compute.googleapis.com/reservation-name"
    refused = client.call("POST", INSTANCES, body("four", **kind, reservationAffinity=named))
    assert "do not exist" in error(refused)[2]
    client.wait(client.call("DELETE", f"{RESERVATIONS}/a"))  # its machine stays
    assert client.get("one")["status"] == "RUNNING"


def test_what_a_reservation_is_for_is_checked(client):
    ssds = [{"diskSizeGb": "375", "interface": "NVME"}]
    full = {"machineType": "n1-standard-2", "minCpuPlatform": "Intel Ivy Bridge", "localSsds": ssds}
    client.wait(reserve(client, "full", properties=full))
    client.insert("plain", machineType=f"zones/{ZONE}/machineTypes/n1-standard-2")
    assert in_use(client, "full") == "0"
    for wrong in (
        {"machineType": f"zones/{ZONE}/machineTypes/n1-standard-2"},
        {"machineType": ""},
        {"minCpuPlatform": "Intel Pentium"},
        {"localSsds": ssds * 9},
        {"localSsds": [{"diskSizeGb": "100"}]},
        {"guestAccelerators": [{"acceleratorType": "nvidia-none", "acceleratorCount": 1}]},
    ):
        assert error(reserve(client, "x", properties={**full, **wrong}))[0] == 400, wrong


# --- placement


def test_a_placement_policy_is_its_machines(client):
    path = f"/regions/{REGION}/resourcePolicies"
    near = {"collocation": "COLLOCATED", "availabilityDomainCount": 1}
    client.wait(client.call("POST", path, {"name": "near", "groupPlacementPolicy": near}))
    apart = {"name": "apart", "groupPlacementPolicy": {"availabilityDomainCount": 2}}
    client.wait(client.call("POST", path, apart))
    shown = client.call("GET", f"{path}/near").json()
    assert (shown["groupPlacementPolicy"], shown["status"]) == (near, "READY")
    link = f"projects/berg-local{path}/near"
    small = body("one", resourcePolicies=[link])
    assert "compact placement" in error(client.call("POST", INSTANCES, small))[2]
    kind = f"zones/{ZONE}/machineTypes/n2-standard-2"
    made = client.insert("one", machineType=kind, resourcePolicies=[link])
    assert made["resourcePolicies"] == [shown["selfLink"]]
    in_use = error(client.call("DELETE", f"{path}/near"))
    assert in_use[1] == "resourceInUseByAnotherResource"
    assert in_use[2].endswith(f"is already being used by 'projects/berg-local{INSTANCES}/one'")
    for links in ([link, link], ["near"], [link.replace(REGION, "us-east1")]):
        wrong = body("two", machineType=kind, resourcePolicies=links)
        assert error(client.call("POST", INSTANCES, wrong))[0] == 400, links
    lost = body("two", machineType=kind, resourcePolicies=[link.replace("near", "lost")])
    assert error(client.call("POST", INSTANCES, lost))[0] == 404
    for sent in (
        {},
        {"groupPlacementPolicy": {"vmCount": 2}},
        {"groupPlacementPolicy": {"availabilityDomainCount": 9}},
    ):
        assert error(client.call("POST", path, {"name": "x", **sent}))[0] == 400, sent
    client.delete("one")
    for name in ("near", "apart"):
        client.wait(client.call("DELETE", f"{path}/{name}"))
