"""obstore, PyArrow, TensorStore, smart_open, libcloud, the official client of Kubernetes and the
provisioners of SkyPilot and dstack against the embedded cloud: `make foreign` runs this.

They have a virtual environment of their own, since SkyPilot wants other versions of what berg's
tests use, and dstack has another one. Each runs a program beside this file, which prints a line for each step that went well.
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
DSTACKS = Path(sys.prefix) / "foreign/dstack/bin/python"
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
SKY = ["created", "informed", "opened and closed ports", "stopped", "resumed", "deleted"]
DSTACK = ["network", "machine", "no capacity", "volumes", "placed", "reservation", "gateway"]
DSTACK += ["deleted"]
# The images that its machines boot, of a project of its own.
IMAGES = """
from dstack._internal.core.backends.gcp.compute import _get_image
for gpu in ("T4", None):
    print(_get_image("n1-standard-8", gpu).id.rpartition("/")[2])
"""
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
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }

    def run(name: str, *words: str, python: Path = PYTHON) -> list[str]:
        if not python.exists():
            pytest.skip("the clients are not there: make foreign fetches them")
        command = [str(python), str(HERE / f"{name}_tour.py"), *words]
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


def test_skypilots_provisioner(cloud, tour):
    """Its backend's own calls: machines come, stop, go on and go, ports open and close."""
    cloud.call("POST", "/_berg/settings", {"boot": 0, "grace": 1})
    said = tour("sky", cloud.url, "berg-local", "us-central1-a")
    assert [line for line in said if line in SKY] == SKY
    left = cloud.call("GET", "/compute/v1/projects/berg-local/global/firewalls")["items"]
    assert not [row for row in left if row["name"].startswith("sky-")]
    assert not [name for name in cloud.instances() if name.startswith("sky-")]


def test_dstacks_backend(cloud, tour):
    """Its machines, volumes, gateways and reservations, of which one zone is out of stock."""
    if not DSTACKS.exists():
        pytest.skip("dstack is not there: make foreign fetches it")
    base, compute, sold_out = "berg-local", "/compute/v1/projects", "us-central1-b"
    cloud.call("POST", "/_berg/settings", {"boot": 0, "grace": 1})
    cloud.call("POST", "/_berg/projects", {"project": "dstack"})
    image = "projects/debian-cloud/global/images/family/debian-12"
    listed = subprocess.run([DSTACKS, "-c", IMAGES], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        cloud.call("POST", f"{compute}/dstack/global/images", {"name": name, "sourceImage": image})
    specific = {"count": "1", "instanceProperties": {"machineType": "n2-standard-2"}}
    held = {"name": "tour", "specificReservationRequired": True, "specificReservation": specific}
    cloud.call("POST", f"{compute}/{base}/zones/us-central1-a/reservations", held)
    cloud.call("POST", "/_berg/stockout", {"zone": sold_out})
    words = (cloud.url, base, "us-central1-a", sold_out, "tour")
    assert tour("dstack", *words, python=DSTACKS) == DSTACK
    assert not [name for name in cloud.instances() if name.startswith("tour-")]


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
