# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""What clients that no one here wrote send: nulls, output-only fields, methods that are not served."""

import email.utils
import json
import xml.etree.ElementTree as ElementTree

import pytest
from cloud_fixtures import POLICY_3
from local_cloud import MB, bucket, client, http_session, raw, server  # noqa: F401
from local_machines import IMAGE, NIC, ZONE, Client, body

from localcloud.compute import catalog


@pytest.fixture
def machines(cloud):
    client = Client(cloud.folder)
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    yield client
    for each in cloud.instances().values():
        client.delete(each["name"], each["zone"].rpartition("/")[2])
    cloud.call("POST", "/_berg/settings", {"boot": 1})


def insert(machines, name, **fields):
    return machines.call("POST", f"/zones/{ZONE}/instances", body(name, **fields))


# --- JSON null


def test_a_null_is_a_field_left_out(machines):
    disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
    nulls = {"deviceName": None, "interface": None, "source": None, "diskEncryptionKey": None}
    disk["initializeParams"]["labels"] = None
    network = {**NIC, "nicType": None, "networkIP": None}
    fields = {"labels": None, "tags": None, "scheduling": {"automaticRestart": None}}
    fields |= {"guestAccelerators": None, "minCpuPlatform": None, "description": None}
    answer = insert(machines, "nulls", disks=[disk | nulls], networkInterfaces=[network], **fields)
    machines.wait(answer)
    assert machines.get("nulls")["disks"][0]["deviceName"] == "persistent-disk-0"
    assert machines.get("nulls")["scheduling"]["automaticRestart"] is True
    listed = machines.call("GET", f"/zones/{ZONE}/instances")
    assert [each["name"] for each in listed.json()["items"]] == ["nulls"]


def test_a_null_in_a_list_is_no_value(machines):
    answer = insert(machines, "hole", disks=[None])
    assert answer.status_code == 400 and "resource.disks[0]" in answer.text


def test_a_null_takes_a_field_away_where_cloud_storage_is_patched(raw):
    raw.put("x")
    raw.session.patch(raw.url("x"), json={"metadata": {"a": "1", "b": "2"}})
    raw.session.patch(raw.url("x"), json={"metadata": {"a": None}})
    assert raw.get("x").json()["metadata"] == {"b": "2"}


# --- lists


# --- output-only fields, and names of interfaces


def test_output_only_fields_that_hold_the_true_value_pass(machines):
    link = f"https://www.googleapis.com/compute/v1/projects/berg-local/zones/{ZONE}"
    disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
    fields = {"startRestricted": False, "disks": [{**disk, "index": 0}]}
    for number, zone in enumerate((link, ZONE)):
        machines.wait(insert(machines, f"true-{number}", zone=zone, **fields))
    for wrong in (
        {"zone": link[:-1] + "f"},
        {"status": "RUNNING"},
        {"disks": [{**disk, "index": 1}]},
    ):
        answer = insert(machines, "untrue", **wrong)
        assert answer.status_code == 400 and "output only" in answer.text, wrong


def test_the_interfaces_of_a_template_have_names(machines):
    properties = body("unnamed") | {"machineType": "n1-standard-1"}
    del properties["name"]
    path = "/global/instanceTemplates"
    machines.wait(machines.call("POST", path, {"name": "named", "properties": properties}))
    try:
        shown = machines.call("GET", f"{path}/named").json()["properties"]
        assert [each["name"] for each in shown["networkInterfaces"]] == ["nic0"]
    finally:
        machines.wait(machines.call("DELETE", f"{path}/named"))


def test_e2_machines_that_share_cores_have_a_memory_of_ones_choice():
    found = catalog.machine_type(ZONE, "e2-custom-medium-4096")
    assert (found.cpus, found.memory_mb, found.shared_core) == (2, 4096, True)
    assert not catalog.machine_type(ZONE, "e2-custom-4-8192").shared_core
    for wrong in (
        "micro-768",
        "micro-2304",
        "small-1024",
        "small-4352",
        "medium-2048",
        "medium-4097",
    ):
        with pytest.raises(ValueError, match="Memory"):
            catalog.machine_type(ZONE, f"e2-custom-{wrong}")


def test_tags_are_set(machines):
    machines.wait(insert(machines, "tagged", tags={"items": ["a"]}))
    path = f"/zones/{ZONE}/instances/tagged/setTags"
    old = machines.get("tagged")["tags"]["fingerprint"]
    machines.wait(machines.call("POST", path, {"items": ["b", "c"], "fingerprint": old}))
    assert machines.get("tagged")["tags"]["items"] == ["b", "c"]
    stale = machines.call("POST", path, {"items": ["d"], "fingerprint": old})
    assert stale.status_code == 412
    new = machines.get("tagged")["tags"]["fingerprint"]
    wrong = machines.call("POST", path, {"items": ["Upper"], "fingerprint": new})
    assert wrong.status_code == 400 and "resource.items[0]" in wrong.text
    machines.wait(machines.call("POST", path, {"fingerprint": new}))
    assert "items" not in machines.get("tagged")["tags"]


def test_who_may_look_at_roles(cloud):
    from localcloud.identity import roles

    assert roles.PREDEFINED["roles/iam.roleViewer"].split()[:2] == [
        "iam.roles.get",
        "iam.roles.list",
    ]
    members = ["user:laptop@berg.local"]
    binding = {"role": "roles/iam.roleViewer", "members": members}
    base = f"{cloud.url}/cloudresourcemanager/v1/projects/berg-local"
    policy = cloud.session.post(f"{base}:getIamPolicy", json=POLICY_3).json()
    new = {**policy, "bindings": [*policy["bindings"], binding]}
    assert cloud.session.post(f"{base}:setIamPolicy", json={"policy": new}).ok
    again = cloud.session.post(f"{base}:getIamPolicy", json=POLICY_3).json()
    old = {**again, "bindings": policy["bindings"]}
    assert cloud.session.post(f"{base}:setIamPolicy", json={"policy": old}).ok


# --- Cloud Storage


def code(answer):
    return answer.status_code, ElementTree.fromstring(answer.content).findtext("Code")


def test_the_xml_api_says_when_an_object_was_changed(raw):
    for size in (10, 3 * MB):
        raw.put("x", b"x" * size)
        updated = raw.get("x").json()["updated"]
        for verb in ("GET", "HEAD"):
            answer = raw.session.request(verb, f"{raw.server.url}/{raw.name}/x")
            said = email.utils.parsedate_to_datetime(answer.headers["Last-Modified"])
            assert said.strftime("%Y-%m-%dT%H:%M:%S") == updated[:19]
            assert answer.headers["Last-Modified"].endswith(" GMT")
    assert "Last-Modified" not in raw.read("x").headers


def test_methods_of_the_xml_api_that_are_not_served_say_so(raw):
    raw.put("x")
    url = f"{raw.server.url}/{raw.name}"
    for verb, path in (
        ("GET", "?acl"),
        ("GET", "?encoding-type=url"),
        ("PUT", "/x?acl"),
        ("GET", "?uploads"),
        ("PUT", "/x?partNumber=1"),
        ("DELETE", "/x?generation=1"),
        ("POST", "/x"),
        ("DELETE", ""),
        ("PUT", ""),
    ):
        assert code(raw.session.request(verb, url + path)) == (501, "NotImplemented"), (verb, path)
    assert code(raw.session.put(f"{raw.server.url}/no-such-bucket")) == (501, "NotImplemented")
    assert code(raw.session.get(f"{raw.server.url}/no-such-bucket")) == (404, "NoSuchBucket")
    assert code(raw.session.put(f"{raw.server.url}/no-such-bucket/x")) == (404, "NoSuchBucket")
    for header in ("x-goog-acl", "Content-MD5"):
        answer = raw.session.put(f"{url}/x", data=b"y", headers={header: "private"})
        assert code(answer) == (501, "NotImplemented"), header
    assert raw.read("x").content == b""
    assert raw.session.put(f"{raw.server.url}/compute/v9/x").json()["error"]["code"] == 404


def test_what_is_composed_has_nothing_of_its_first_source(raw):
    raw.put("a", b"1")
    raw.put("b", b"2")
    raw.session.patch(raw.url("a"), json={"contentType": "text/plain", "metadata": {"k": "v"}})
    sources = [{"name": "a"}, {"name": "b"}]
    made = raw.session.post(f"{raw.url('c')}/compose", json={"sourceObjects": sources}).json()
    assert "metadata" not in made and "contentType" not in made
    assert made["storageClass"] == "STANDARD" and raw.read("c").content == b"12"
    said = {"sourceObjects": sources, "destination": {"contentType": "text/css"}}
    assert (
        raw.session.post(f"{raw.url('c')}/compose", json=said).json()["contentType"] == "text/css"
    )


def test_what_was_deleted_is_not_listed_as_kept(raw):
    refused = raw.session.get(f"{raw.base}/o", params={"softDeleted": "true"})
    assert refused.status_code == 501
    raw.session.patch(raw.base, json={"softDeletePolicy": {"retentionDurationSeconds": "0"}})
    empty = raw.session.get(f"{raw.base}/o", params={"softDeleted": "true"})
    assert empty.json() == {"kind": "storage#objects"}
    buckets = {"project": "test-project", "softDeleted": "true"}
    answer = raw.session.get(f"{raw.server.url}/storage/v1/b", params=buckets)
    assert answer.status_code == 501


def test_a_body_with_nulls_for_an_upload(raw):
    boundary = "b"
    meta = json.dumps(
        {"name": "m", "contentType": "text/css", "metadata": None, "cacheControl": None}
    )
    text = f"--b\r\nContent-Type: application/json\r\n\r\n{meta}\r\n--b\r\nContent-Type: text/css\r\n\r\nhi\r\n--b--"
    headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
    url = f"{raw.uploads}?uploadType=multipart"
    made = raw.session.post(url, data=text.encode(), headers=headers).json()
    assert made["contentType"] == "text/css" and "metadata" not in made
