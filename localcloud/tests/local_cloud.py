"""A real embedded cloud in a process of its own, for tests that look at memory or kill it; fixtures
with it.
"""

import base64
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import google.auth
import google_crc32c
import pytest
import requests
from google.cloud import storage as gcs

from localcloud.identity.tokens import LAPTOP, Tokens

PROJECT = "test-project"
KB, MB = 1 << 10, 1 << 20
QUANTUM = 256 * KB  # chunks of resumable uploads are multiples of this
names = (f"bucket-{number}" for number in itertools.count())
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


@dataclass
class Server:
    """One server process over a folder; `start` again after `kill` keeps the port."""

    folder: Path
    port: int = 0
    process: subprocess.Popen | None = None
    stderr: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stderr = self.folder / "stderr"

    def start(self) -> "Server":
        with open(self.stderr, "ab") as stderr:
            command = [
                sys.executable,
                str(Path(__file__).with_name("local_server.py")),
                str(self.folder),
                str(self.port),
            ]
            # The script's own folder holds one of the same name, with the package's tests.
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env=environment
            )
        line = self.process.stdout.readline()
        assert line, self.stderr.read_text()
        self.port = int(line)
        return self

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, seconds: float = 3600) -> str:
        return Tokens(self.folder).mint(LAPTOP, seconds)

    def session(self) -> requests.Session:
        """A plain HTTP session that sends a token."""
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {self.token()}"
        return session

    def credentials(self) -> google.auth.credentials.Credentials:
        """Credentials as berg loads them: from the laptop's file."""
        path = self.folder / "credentials.json"
        tokens = Tokens(self.folder, lambda: self.url)
        tokens.write_credentials(path)
        return google.auth.load_credentials_from_file(path, scopes=SCOPES)[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("cloud")).start()
    yield server
    server.kill()
    assert "failed inside" not in server.stderr.read_text()


@pytest.fixture(scope="module")
def client(server):
    options = {"api_endpoint": server.url}
    return gcs.Client(project=PROJECT, credentials=server.credentials(), client_options=options)


@pytest.fixture
def http_session(server):
    session = server.session()
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
