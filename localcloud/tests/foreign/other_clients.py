"""obstore, PyArrow, TensorStore, smart_open, libcloud and the official client of Kubernetes against
the embedded cloud: `make foreign` runs this.

They have a virtual environment of their own. Each runs a program beside this file, which prints a
line for each step that went well.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON = Path(sys.prefix) / "foreign/tools/bin/python"  # where `make foreign` puts it
STORAGE = {
    "obstore": [
        *("get", "ranges", "head", "missing", "written", "copied and listed", "deleted"),
        "in parts",
    ],
    "pyarrow": ["written", "read", "seek", "list", "copied, moved and deleted"],
    "tensorstore": ["key", "array", "generation", "listed and deleted"],
}
LIBCLOUD = [
    *("listed", "node", "resized", "disks", "rules and addresses", "group", "several"),
    "destroyed",
]
KUBE = ["job", "log", "deleted", "exec", "port", "refused port", "done"]


@pytest.fixture
def tour(cloud, tmp_path):
    """Run a program beside this file; returns the lines that it printed."""
    cloud.session.get(f"{cloud.url}/_berg/requests")  # so that there is a token
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "GOOGLE_APPLICATION_CREDENTIALS": str(cloud.folder / "credentials.json"),
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": cloud.session.credentials.token,  # TensorStore's
    }

    def run(name: str, *words: str) -> list[str]:
        if not PYTHON.exists():
            pytest.skip("the clients are not there: make foreign fetches them")
        command = [str(PYTHON), str(HERE / f"{name}_tour.py"), *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        return done.stdout.splitlines()

    return run


@pytest.fixture
def bucket(cloud):
    """A bucket with a large object and its checksum."""
    name, content = f"tour-{uuid.uuid4().hex[:12]}", os.urandom(11 << 20)
    cloud.call(
        "POST", "/storage/v1/b?project=berg-local", {"name": name, "location": "US-CENTRAL1"}
    )
    for path, data in (("big", content), ("sha256", hashlib.sha256(content).hexdigest().encode())):
        url = f"{cloud.url}/upload/storage/v1/b/{name}/o?uploadType=media&name=given/{path}"
        assert cloud.session.post(url, data=data).ok
    return name


@pytest.mark.parametrize("client", STORAGE)
def test_clients_of_storage(cloud, tour, bucket, client):
    token = cloud.session.credentials.token
    assert tour("data", cloud.url, bucket, token, client) == STORAGE[client]


def test_smart_open(cloud, tour, bucket):
    said = tour("smart", cloud.url, "berg-local", bucket)
    assert said == ["written in parts and read", "sought", "packed text", "missing"]


def test_libcloud(cloud, tour):
    cloud.call("POST", "/_berg/settings", {"boot": 0, "grace": 1})
    token = cloud.session.credentials.token
    assert tour("libcloud", cloud.url, "berg-local", "us-central1-a", token) == LIBCLOUD
    assert not [name for name in cloud.instances() if name.startswith("libcloud")]


def test_the_official_client_of_kubernetes(kube, tour, tmp_path):
    authority = base64.b64encode(kube.ca.read_bytes()).decode()
    cluster = {"server": kube.server, "certificate-authority-data": authority}
    settings = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": kube.token}}],
    }
    (tmp_path / "config").write_text(json.dumps(settings))
    assert tour("kube", str(tmp_path / "config")) == KUBE
