# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded Secret Manager, by plain HTTP and by gcloud."""

import base64
import stat

import google_crc32c
import pytest
from local_cloud import PROJECT, Server, http_session, server  # noqa: F401 (fixtures)
from local_gcloud import Gcloud

from localcloud.secrets.store import Secret, Secrets

PAYLOAD = b"s3cr3t value that nobody may see"
AUTOMATIC = {"replication": {"automatic": {}}}


class Api:
    """Requests about the secrets of one project."""

    def __init__(self, server, session):
        self.server, self.session = server, session

    def __call__(self, verb, path, body=None, project=PROJECT, **params):
        url = f"{self.server.url}/secretmanager/v1/projects/{project}/secrets{path}"
        return self.session.request(verb, url, json=body, params=params)

    def create(self, name, **fields):
        answer = self("POST", "", {**AUTOMATIC, **fields}, secretId=name)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def add(self, name, data=PAYLOAD, **fields):
        payload = {"data": base64.b64encode(data).decode(), **fields}
        return self("POST", f"/{name}:addVersion", {"payload": payload})

    def read(self, name, version="latest"):
        answer = self("GET", f"/{name}/versions/{version}:access")
        assert answer.status_code == 200, answer.text
        return base64.b64decode(answer.json()["payload"]["data"])


@pytest.fixture
def api(server, http_session):
    return Api(server, http_session)


def error(answer):
    found = answer.json()["error"]
    assert found["code"] == answer.status_code and "errors" not in found
    return answer.status_code, found["status"], found["message"]


def test_the_life_of_a_secret(api):
    made = api.create("life", labels={"berg": "1"}, annotations={"of": "a test"}, ttl="3600s")
    number = made["name"].split("/")[1]
    assert number.isdigit() and made["name"] == f"projects/{number}/secrets/life"
    assert (
        made["labels"] == {"berg": "1"}
        and made["expireTime"] > made["createTime"]
        and "ttl" not in made
    )
    assert api("GET", "/life").json() == made == api("GET", "/life", project=number).json()
    first = api.add("life", b"one", dataCrc32c=str(google_crc32c.value(b"one"))).json()
    assert first["name"] == f"{made['name']}/versions/1" and first["state"] == "ENABLED"
    assert first["clientSpecifiedPayloadChecksum"] and first["replicationStatus"] == {
        "automatic": {}
    }
    assert "clientSpecifiedPayloadChecksum" not in api.add("life", b"two").json()
    opened = api("GET", "/life/versions/latest:access").json()
    assert opened["name"] == f"{made['name']}/versions/2"
    assert opened["payload"] == {"data": "dHdv", "dataCrc32c": str(google_crc32c.value(b"two"))}
    assert api.read("life", 1) == b"one"
    listed = api("GET", "/life/versions").json()
    assert [row["name"][-1] for row in listed["versions"]] == ["2", "1"] and listed[
        "totalSize"
    ] == 2
    assert api("GET", "/life/versions/latest").json() == listed["versions"][0]
    assert api("DELETE", "/life", etag='"stale"').status_code == 400
    assert api("DELETE", "/life", etag=made["etag"]).json() == {}
    assert error(api("GET", "/life")) == (404, "NOT_FOUND", f"Secret [{made['name']}] not found.")
    assert error(api("GET", "/life/versions/1:access"))[0] == 404


def test_the_latest_version_is_the_newest(api):
    api.create("states")
    assert "has no versions" in error(api("GET", "/states/versions/latest:access"))[2]
    for data in (b"one", b"two"):
        api.add("states", data)
    assert (api.read("states", 1), api.read("states")) == (b"one", b"two")
    assert [
        row["name"][-1]
        for row in api("GET", "/states/versions", filter="state:ENABLED").json()["versions"]
    ] == ["2", "1"]


def test_lists_are_filtered_and_paged(api):
    for name in ("page-a", "page-b", "page-c"):
        api.create(name, labels={"set": "pages"} if name != "page-b" else {})
    names = lambda answer: [row["name"].rpartition("/")[2] for row in answer["secrets"]]
    found = api("GET", "", filter="labels.set=pages").json()
    assert names(found) == ["page-c", "page-a"] and "totalSize" not in found
    first = api("GET", "", pageSize=2, filter="name:page-").json()
    second = api(
        "GET", "", pageSize=2, filter="name:page-", pageToken=first["nextPageToken"]
    ).json()
    assert (
        names(first) == ["page-c", "page-b"]
        and names(second) == ["page-a"]
        and "nextPageToken" not in second
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"replication": {"userManaged": {}}}, 400),
        ({"replication": {"userManaged": {"replicas": [{"location": "mars-west1"}]}}}, 400),
        ({"replication": {"userManaged": {"replicas": [{"location": "us-east1"}] * 2}}}, 400),
        ({**AUTOMATIC, "labels": {"Bad": "x"}}, 400),
        ({**AUTOMATIC, "ttl": "59s"}, 400),
        ({**AUTOMATIC, "ttl": "an hour"}, 400),
        ({**AUTOMATIC, "expireTime": "2020-01-01T00:00:00Z"}, 400),
        ({**AUTOMATIC, "ttl": "600s", "expireTime": "2090-01-01T00:00:00Z"}, 400),
        ({**AUTOMATIC, "lables": {}}, 400),
        ({**AUTOMATIC, "topics": [{"name": "t"}]}, 501),
    ],
)
def test_what_is_wrong_is_refused(api, body, status):
    assert error(api("POST", "", body, secretId="refused"))[0] == status
    assert api("GET", "/refused").status_code == 404


def test_refusals_by_name(api):
    assert error(api("POST", "", AUTOMATIC, secretId="no.dots"))[1] == "INVALID_ARGUMENT"
    made = api.create("twice")
    again = error(api("POST", "", AUTOMATIC, secretId="twice"))
    assert again == (409, "ALREADY_EXISTS", f"Secret [{made['name']}] already exists.")
    for wrong in ({"data": "eA==", "dataCrc32c": "1"}, {"data": "no base64!"}, {"data": ""}, {}):
        assert error(api("POST", "/twice:addVersion", {"payload": wrong}))[0] == 400
    assert error(api.add("twice", b"x" * 65537))[0] == 400
    assert api.add("twice", b"x" * 65536).status_code == 200
    assert (
        error(api("GET", "/twice/versions/7"))[2]
        == f"Secret Version [{made['name']}/versions/7] not found."
    )
    elsewhere = error(api("GET", "/x/versions/1:access", project="elsewhere"))
    assert elsewhere[:2] == (403, "PERMISSION_DENIED")
    assert elsewhere[2] == (
        "Permission 'secretmanager.versions.access' denied for resource "
        "'projects/elsewhere/secrets/x/versions/1' (or it may not exist)."
    )


def test_a_payload_lies_in_private_files_alone_and_in_no_log(api):
    api.create("hidden")
    encoded = base64.b64encode(PAYLOAD).decode()
    api.add("hidden")
    api("POST", "/hidden:addVersion", {"payload": {"data": encoded, "dataCrc32c": "1"}})
    assert api.read("hidden") == PAYLOAD
    folder = api.server.folder
    holders = [
        path for path in folder.rglob("*") if path.is_file() and PAYLOAD in path.read_bytes()
    ]
    assert [path.parent for path in holders] == [folder / "secrets"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700
    log = api.session.get(f"{api.server.url}/_berg/requests").text
    assert "secretmanager.projects.secrets.addVersion" in log
    for text in (log, api.server.stderr.read_text()):
        assert PAYLOAD.decode() not in text and encoded not in text
    api("DELETE", "/hidden")
    assert not holders[0].exists()


def test_an_expired_secret_is_gone(tmp_path):
    clock = [1000.0]
    secrets = Secrets(tmp_path / "secrets", now=lambda: clock[0])
    secrets.add(Secret("p", "short", clock[0], {}, expires=clock[0] + 60))
    secrets.add_version(secrets.find("projects/p/secrets/short"), PAYLOAD, 0, False)
    clock[0] += 59
    assert secrets.find("projects/p/secrets/short")
    clock[0] += 1
    assert (
        secrets.find("projects/p/secrets/short") is None
        and Secrets(tmp_path / "secrets").all() == []
    )
    assert [path.name for path in (tmp_path / "secrets").iterdir()] == ["index.json"]


@pytest.mark.slow
def test_secrets_survive_kill_9(tmp_path):
    server = Server(tmp_path).start()
    api = Api(server, server.session())
    api.create("kept")
    version = api.add("kept").json()
    server.kill()
    (tmp_path / "secrets" / "left-by-a-crash").write_bytes(b"x")
    server.start()
    assert api("GET", "/kept/versions/1").json() == version and api.read("kept") == PAYLOAD
    assert not (tmp_path / "secrets" / "left-by-a-crash").exists()
    server.kill()


@pytest.mark.slow
def test_gcloud(server, http_session, tmp_path):
    gcloud = Gcloud(server.url, PROJECT, server.token(), tmp_path)
    gcloud(
        "secrets",
        "create",
        "by-gcloud",
        "--data-file=-",
        "--labels=a=b",
        "--ttl=3600s",
        stdin="one",
    )
    gcloud("secrets", "versions", "add", "by-gcloud", "--data-file=-", stdin="two")
    assert gcloud("secrets", "versions", "access", "latest", "--secret=by-gcloud") == "two"
    api = Api(server, http_session)
    assert api.read("by-gcloud", 1) == b"one" and api("GET", "/by-gcloud").json()["labels"] == {
        "a": "b"
    }
    gcloud("secrets", "delete", "by-gcloud")
    assert api("GET", "/by-gcloud").status_code == 404
