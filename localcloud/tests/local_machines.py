"""Talk to the embedded Compute Engine as a client that shares no code with berg."""

import time
from pathlib import Path

import google.auth
import google.auth.transport.requests
import pytest
import requests

from localcloud import control

ZONE = "us-central1-c"
IMAGE = "projects/debian-cloud/global/images/family/debian-12"
LEARNING = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"

NIC = {"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}


def until(condition, what: str, seconds: float = 60):
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


def body(name: str, script: str = "", image: str = IMAGE, **fields) -> dict:
    """The body of an insert."""
    disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}
    accounts = [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}]
    base = {"name": name, "disks": [disk], "networkInterfaces": [NIC], "serviceAccounts": accounts}
    base["machineType"] = f"zones/{ZONE}/machineTypes/n1-standard-1"
    base["metadata"] = {"items": [{"key": "startup-script", "value": script}] if script else []}
    return {**base, **fields}


class Client:
    def __init__(self, folder: Path):
        self.folder = folder
        self.url = f"http://127.0.0.1:{control.status(folder)['port']}"
        credentials, _ = google.auth.load_credentials_from_file(folder / "credentials.json")
        self.session = google.auth.transport.requests.AuthorizedSession(credentials)

    def call(
        self, verb: str, path: str, json=None, project: str = "berg-local", **params
    ) -> requests.Response:
        base = f"{self.url}/compute/v1/projects/{project}"
        return self.session.request(verb, base + path, json=json, params=params)

    def control(self, path: str, json=None) -> dict:
        answer = self.session.post(f"{self.url}/_berg/{path}", json=json or {})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, answer: requests.Response) -> dict:
        """The operation that an answer carries, done."""
        assert answer.status_code == 200, answer.text
        link = answer.json()["selfLink"].partition("/berg-local")[2]
        done = self.call("POST", f"{link}/wait").json()
        assert done["status"] == "DONE"
        return done

    def insert(self, name: str, script: str = "", zone: str = ZONE, **fields) -> dict:
        operation = self.wait(
            self.call("POST", f"/zones/{zone}/instances", body(name, script, **fields))
        )
        assert "error" not in operation, operation
        return self.get(name, zone)

    def get(self, name: str, zone: str = ZONE) -> dict | None:
        answer = self.call("GET", f"/zones/{zone}/instances/{name}")
        return answer.json() if answer.ok else None

    def status(self, name: str) -> str:
        return (self.get(name) or {"status": "GONE"})["status"]

    def delete(self, name: str, zone: str = ZONE) -> dict:
        return self.wait(self.call("DELETE", f"/zones/{zone}/instances/{name}"))

    def console(self, name: str, zone: str = ZONE) -> str:
        there = self.get(name, zone)
        log = self.folder / "machines" / there["id"] / "serial.log" if there else None
        return log.read_text(errors="replace") if log and log.exists() else ""

    def console_with(self, name: str, text: str) -> str:
        """The console once it shows `text`."""
        return until(
            lambda: (found := self.console(name)) and text in found and found,
            f"{text} on {name}'s console",
        )


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A cloud of the file's own: its quotas, policies and stockouts are nobody else's."""
    folder = tmp_path_factory.mktemp("own") / "local"
    control.start(folder, options=("--grace", "3"))
    yield Client(folder)
    control.reset(folder)


def groups_there(client) -> list[str]:
    scopes = client.call("GET", "/aggregated/instanceGroupManagers").json()["items"].values()
    return [row["name"] for scope in scopes for row in scope.get("instanceGroupManagers", [])]
