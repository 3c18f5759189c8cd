# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded Secret Manager, by plain HTTP and by gcloud."""

import base64
import stat

import pytest
from local_cloud import PROJECT, Server, http_session, server  # noqa: F401 (fixtures)

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
