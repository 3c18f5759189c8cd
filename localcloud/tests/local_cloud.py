"""An embedded cloud, for tests that ask it by plain HTTP or kill it; fixtures with one of each file's own."""

import base64
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import google.auth
import google_crc32c
import pytest
from google.cloud import storage as gcs
from local_machines import session_of, until

from localcloud import control

PROJECT = "test-project"
KB, MB = 1 << 10, 1 << 20
QUANTUM = 256 * KB  # chunks of resumable uploads are multiples of this
names = (f"bucket-{number}" for number in itertools.count())
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


class Server:
    """One embedded cloud; `start` again after `kill` keeps the port."""

    def __init__(self, folder: Path, project: str, **settings: float) -> None:
        self.folder, self.project, self.settings = folder, project, settings
        self.start()

    def start(self) -> None:
        port = control.start(self.folder, options=("--project", self.project))
        self.url = f"http://127.0.0.1:{port}"
        self.session = session_of(self.folder)
        self.call("POST", "/_berg/settings", self.settings)

    def kill(self) -> None:
        """kill -9."""
        os.kill(control.status(self.folder)["pid"], signal.SIGKILL)
        until(lambda: not control.is_running(self.folder), "the end of the server")

    @property
    def token(self) -> str:
        return self.session.headers["Authorization"].partition(" ")[2]

    def call(self, method: str, path: str, body=None):
        """A request with the laptop's token; returns the JSON of the answer."""
        answer = self.session.request(method, self.url + path, json=body)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def credentials(self) -> google.auth.credentials.Credentials:
        """Credentials as berg loads them: from the laptop's file."""
        file = self.folder / "credentials.json"
        return google.auth.load_credentials_from_file(file, scopes=SCOPES)[0]


def served(factory: pytest.TempPathFactory, project: str, **settings: float) -> Iterator[Server]:
    """A new cloud, deleted at the end."""
    made = Server(factory.mktemp("cloud") / "local", project, **settings)
    yield made
    assert "failed inside" not in (made.folder / "server.log").read_text()
    control.reset(made.folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from served(tmp_path_factory, PROJECT, write_interval=0)  # the tests of it set it


@pytest.fixture(scope="module")
def client(server):
    options = {"api_endpoint": server.url}
    return gcs.Client(project=PROJECT, credentials=server.credentials(), client_options=options)


@pytest.fixture
def http_session(server):
    session = session_of(server.folder)
    yield session
    session.delete(f"{server.url}/_berg/faults")


@pytest.fixture
def bucket(client):
    return client.create_bucket(next(names), location="us-central1")


class Bucket:
    """Raw requests about one bucket."""

    def __init__(self, server, session, name):
        self.server, self.session, self.name = server, session, name
        self.base = f"{server.url}/storage/v1/b/{name}"
        self.uploads = f"{server.url}/upload/storage/v1/b/{name}/o"

    def put(self, name, data=b"", **params):
        params = {"uploadType": "media", "name": name, **params}
        return self.session.post(self.uploads, params=params, data=data)

    def url(self, name):
        return f"{self.base}/o/{quote(name, safe='')}"

    def get(self, name, **params):
        return self.session.get(self.url(name), params=params)

    def read(self, name, **headers):
        return self.session.get(self.url(name), params={"alt": "media"}, headers=headers)

    def names(self, **params):
        answer = self.session.get(f"{self.base}/o", params=params).json()
        return [item["name"] for item in answer.get("items", [])]

    def start(self, name, **params):
        answer = self.session.post(
            self.uploads, params={"uploadType": "resumable", "name": name, **params}
        )
        assert answer.status_code == 200, answer.text
        return answer.headers["Location"]

    def chunk(self, url, data, content_range):
        headers = {"Content-Range": content_range}
        return self.session.put(url, data=data, headers=headers, allow_redirects=False)


@pytest.fixture
def raw(server, http_session, bucket):
    return Bucket(server, http_session, bucket.name)


def reason(response):
    return response.json()["error"]["errors"][0]["reason"]


def crc32c(data):
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
