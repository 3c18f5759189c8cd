# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""What Google refuses and an emulation easily takes, by service."""

import pytest
from local_cloud import bucket, client, http_session, raw, server  # noqa: F401
from local_machines import IMAGE, NIC, ZONE

DISK = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}


def message(answer) -> str:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["message"]


# --- Compute Engine

URLS = [
    ({"machineType": f"zones/{ZONE}/machineTypes/n1-standard-1"}, "machineType"),
    (
        {
            "disks": [
                {"boot": True, "initializeParams": {"diskType": f"zones/{ZONE}/diskTypes/pd-ssd"}}
            ]
        },
        "diskType",
    ),
    (
        {
            "guestAccelerators": [
                {
                    "acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4",
                    "acceleratorCount": 1,
                }
            ],
            "scheduling": {"onHostMaintenance": "TERMINATE"},
        },
        "acceleratorType",
    ),
]


@pytest.mark.parametrize(("fields", "field"), URLS, ids=[field for _, field in URLS])
def test_templates_and_bulk_inserts_name_types_by_their_names(machines, fields, field):
    properties = {"machineType": "n1-standard-1", "disks": [DISK], "networkInterfaces": [NIC]}
    template = {"name": "linked", "properties": {**properties, **fields}}
    answer = machines.call("POST", "/global/instanceTemplates", template)
    assert field in message(answer) and "Must be the name" in message(answer)
    bulk = {
        "count": 1,
        "perInstanceProperties": {"linked-1": {}},
        "instanceProperties": {**properties, **fields},
    }
    answer = machines.call("POST", f"/zones/{ZONE}/instances/bulkInsert", bulk)
    assert field in message(answer) and "Must be the name" in message(answer)


def test_a_scope_that_one_of_googles_apis_has_is_taken(machines):
    scopes = ["https://www.googleapis.com/auth/trace.append", "https://mail.google.com/"]
    account = {"email": "default", "scopes": scopes}
    properties = {"machineType": "n1-standard-1", "disks": [DISK], "networkInterfaces": [NIC]}
    template = {"name": "scoped", "properties": {**properties, "serviceAccounts": [account]}}
    assert machines.call("POST", "/global/instanceTemplates", template).ok


def test_the_family_of_an_image_is_a_name(machines):
    image = {"name": "own", "sourceSnapshot": "global/snapshots/none", "family": "No Family"}
    assert "resource.family" in message(machines.call("POST", "/global/images", image))


def test_a_mask_names_fields_that_there_are(machines, raw):
    path = f"/zones/{ZONE}/instances"
    assert machines.call("GET", path, fields="items(name,disks/deviceName),nextPageToken").ok
    assert machines.call("GET", "/aggregated/instances", fields="items/*/instances(name)").ok
    for wrong in ("item", "items(nam)", "items/disks/deviceNames"):
        assert "Invalid field selection" in message(machines.call("GET", path, fields=wrong))
    assert raw.session.get(raw.base, params={"fields": "name,labels/any"}).ok
    assert raw.session.get(raw.base, params={"fields": "names"}).status_code == 400


# --- Cloud Storage


@pytest.mark.parametrize(("days", "status"), [(0, 200), (1, 400), (7, 200), (90, 200), (91, 400)])
def test_how_long_deleted_objects_are_kept(raw, days, status):
    policy = {"softDeletePolicy": {"retentionDurationSeconds": days * 24 * 3600}}
    url, params = f"{raw.server.url}/storage/v1/b", {"project": "test-project"}
    answer = raw.session.post(url, params=params, json={"name": f"kept-{days}-days", **policy})
    assert answer.status_code == status


def test_permissions_that_can_be_tested_of_a_bucket(raw):
    url = f"{raw.base}/iam/testPermissions"
    for wrong in ("storage.*", "storage.objects.erase", "compute.instances.get"):
        asked = [("permissions", "storage.objects.get"), ("permissions", wrong)]
        assert raw.session.get(url, params=asked).status_code == 400, wrong
    held = raw.session.get(url, params={"permissions": "storage.objects.get"}).json()
    assert held["permissions"] == ["storage.objects.get"]


def test_uploads_say_what_can_be(raw):
    assert "uploadType" in message(raw.session.post(f"{raw.uploads}?name=a", data=b"x"))


def test_a_body_names_the_object_of_its_path(raw):
    raw.put("a", b"x")
    assert "does not agree" in message(raw.session.patch(raw.url("a"), json={"name": "b"}))
    composed = {"sourceObjects": [{"name": "a"}], "destination": {"name": "other"}}
    assert "does not agree" in message(raw.session.post(f"{raw.url('c')}/compose", json=composed))
    assert raw.session.patch(raw.url("a"), json={"name": "a", "bucket": raw.name}).ok


# --- Resource Manager


def test_a_project_keeps_the_owner_it_has(raw):
    url = f"{raw.server.url}/cloudresourcemanager/v1/projects/test-project:setIamPolicy"
    readers = {"role": "roles/storage.objectViewer", "members": ["user:laptop@berg.local"]}
    answer = raw.session.post(url, json={"policy": {"bindings": [readers]}})
    assert "at least one owner" in message(answer)
