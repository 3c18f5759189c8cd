"""Talk to the embedded Compute Engine as a client that shares no code with berg."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from localcloud import control
from localcloud.identity.tokens import LAPTOP, Tokens

LATE = 2  # seconds before grants and new accounts count in the cloud of the fixture

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


def session_of(folder: Path, email: str = LAPTOP, **about) -> requests.Session:
    """Requests with a token of somebody's."""
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {Tokens(folder).mint(email, **about)}"
    return session


def error(answer: requests.Response) -> tuple[int, str, str]:
    found = answer.json()["error"]
    return answer.status_code, found["errors"][0]["reason"], found["message"]


def failure(operation: dict) -> dict:
    return operation["error"]["errors"][0]


def ssh(private: str | Path, *words: str, **options: object) -> list[str]:
    """A command of OpenSSH's that has this key alone and asks nobody anything."""
    usual = {
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "UserKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "no",
        "LogLevel": "ERROR",
    }
    named = [f"-o{name}={value}" for name, value in {**usual, **options}.items()]
    return ["ssh", "-F", "none", "-i", str(private), *named, *words]


def body(name: str, script: str = "", image: str = IMAGE, **fields) -> dict:
    """The body of an insert."""
    disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}
    accounts = [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}]
    base = {"name": name, "disks": [disk], "networkInterfaces": [NIC], "serviceAccounts": accounts}
    base["machineType"] = f"zones/{ZONE}/machineTypes/n1-standard-1"
    base["metadata"] = {"items": [{"key": "startup-script", "value": script}] if script else []}
    return {**base, **fields}


class Client:
    def __init__(self, folder: Path, email: str = LAPTOP):
        self.folder, self.session = folder, session_of(folder, email)
        self.url = f"http://127.0.0.1:{control.status(folder)['port']}"

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

    @contextlib.contextmanager
    def limited(self, metric: str, limit: float, region: str = "") -> Iterator[None]:
        """While a quota, of a region or of the project, is another one."""
        where = {"metric": metric, **({"region": region} if region else {})}
        rows = self.call("GET", f"/regions/{region}" if region else "").json()["quotas"]
        before = next(row["limit"] for row in rows if row["metric"] == metric)
        self.control("quotas", {**where, "limit": limit})
        try:
            yield
        finally:
            self.control("quotas", {**where, "limit": before})

    def tidy(self) -> None:
        """Leave nothing of a test to the next: no machines, templates, shortages, faults."""
        self.session.delete(f"{self.url}/_berg/faults")
        self.control("stockout", {"on": False})
        for kind in ("instanceGroupManagers", "instances", "resourcePolicies"):
            for scope, rows in self.call("GET", f"/aggregated/{kind}").json()["items"].items():
                for row in rows.get(kind, []):
                    self.wait(self.call("DELETE", f"/{scope}/{kind}/{row['name']}"))
        for row in self.call("GET", "/global/instanceTemplates").json().get("items", []):
            self.wait(self.call("DELETE", f"/global/instanceTemplates/{row['name']}"))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A cloud of the file's own: its quotas, policies and stockouts are nobody else's."""
    folder = tmp_path_factory.mktemp("own") / "local"
    control.start(folder, options=("--grace", "3"))
    yield Client(folder)
    control.reset(folder)
