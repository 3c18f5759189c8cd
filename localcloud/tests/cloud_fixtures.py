"""An embedded cloud for each process of a test run, and what tests ask of it."""

import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google.auth
import local_kube
import pytest
from google.auth.transport.requests import AuthorizedSession

from localcloud import control

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
# What pip needs to build a package: `make test` fetches it, because machines have no network.
WHEELHOUSE = Path(sys.prefix) / "wheelhouse"
# Asks for a policy with its conditions, without which a policy that has some cannot be written back.
POLICY_3 = {"options": {"requestedPolicyVersion": 3}}
# The embedded cloud's settings in tests, where they are not those that it begins with: grants and
# new accounts are late, as Google's are by minutes; clusters are in a hurry.
USUAL = {
    "hurry": 1,
    "metadata_delay": 0,
    "grant_delay": 2,
    "account_delay": 2,
    "first_boot": 30,
    "image_delay": 0,
    "prepared": 1,  # how the worker came to a machine makes no difference to what happens later
    "grace": None,
    "operation": 0.2,
    "give_up": 3,
    "backoff": 0.3,
    "scale_retry": 1.0,
}


@dataclass
class Cloud:
    """The embedded cloud of this test process, and its control plane."""

    folder: Path
    url: str
    # Which server has the usual settings, and no other by the control plane since.
    settled: bytes = b""

    @functools.cached_property
    def session(self) -> AuthorizedSession:
        found, _ = google.auth.load_credentials_from_file(
            str(self.folder / "credentials.json"), scopes=SCOPES
        )
        return AuthorizedSession(found)

    def call(self, method: str, path: str, body=None):
        """A request with the laptop's token; returns the JSON of the answer."""
        if method != "GET" and path.startswith("/_berg/") and path != "/_berg/requests":
            self.settled = b""
        answer = self.session.request(method, self.url + path, json=body)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def settle_down(self) -> None:
        """End the faults, the shortages and the settings of a test, if it had any."""
        server = (self.folder / "server.json").read_bytes()
        if self.settled == server:
            return
        self.call("DELETE", "/_berg/faults")
        self.call("POST", "/_berg/stockout", {"on": False})
        self.call("POST", "/_berg/settings", self.usual)
        self.settled = server

    @functools.cached_property
    def usual(self) -> dict[str, float | None]:
        """The settings that this cloud began with, but for those that tests have otherwise."""
        return {**self.call("POST", "/_berg/settings", {}), **USUAL}


@contextlib.contextmanager
def session_cloud(factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """The embedded cloud of a test process; deleted at the end."""
    folder = factory.mktemp("cloud") / "local"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(WHEELHOUSE))  # also for processes that start it again
        made = Cloud(folder, f"http://127.0.0.1:{control.start(folder)}")
        try:
            made.settle_down()
            yield made
        finally:
            control.reset(folder)


@pytest.fixture(scope="session")
def kube(cloud, tmp_path_factory):
    """A cluster for the tests of Kubernetes in each process: a small pool, and one with GPUs that
    scales from 0.
    """
    return local_kube.make_cluster(cloud, "kube", tmp_path_factory.mktemp("kube"))


def settle(cloud: Cloud) -> None:
    """Let count what accounts and grants there are by now."""
    settings = cloud.call("POST", "/_berg/settings", {})
    time.sleep(max(settings["grant_delay"], settings["account_delay"]))
