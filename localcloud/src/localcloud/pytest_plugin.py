"""Fixtures of pytest: `localcloud`, an embedded cloud of each test's own, and `localcloud_session`.

    def test_it(localcloud):
        zones = localcloud.client(compute_v1.ZonesClient)
        assert zones.get(project=localcloud.project, zone="us-central1-a").status == "UP"

Every run of pytest where this distribution is installed imports this module, so it imports nothing
of the cloud before a test asks for one.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

PROJECT = "test-project"


@dataclass
class Faults:
    """What goes wrong on demand; the README says which effects there are."""

    cloud: LocalCloud

    def add(self, method: str, **effects: Any) -> None:
        """Let requests suffer, such as `add("compute.instances.insert", status=503, times=2)`."""
        self.cloud.control("POST", "faults", {"method": method, **effects})

    def all(self) -> list[dict[str, Any]]:
        """Return the faults that wait, and how often each has struck."""
        return self.cloud.control("GET", "faults")["faults"]

    def clear(self) -> None:
        """Forget the faults that wait."""
        self.cloud.control("DELETE", "faults")


@dataclass
class LocalCloud:
    """An embedded cloud that runs, and how a test leads its clients there."""

    folder: Path
    port: int
    project: str = PROJECT

    def __post_init__(self) -> None:
        self.faults = Faults(self)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """A new access token of the cloud's owner, good for an hour."""
        from localcloud import guide

        return guide.access_token(self.folder)

    @cached_property
    def credentials(self) -> Any:
        """Credentials of google-auth's, which fetch their tokens from this cloud."""
        from google.oauth2.credentials import Credentials

        saved = json.loads((self.folder / "credentials.json").read_text())
        return Credentials(
            token=None,
            refresh_token=saved["refresh_token"],
            token_uri=saved["token_url"],
            client_id=saved["client_id"],
            client_secret=saved["client_secret"],
        )

    @property
    def client_options(self) -> dict[str, Any]:
        """The arguments with which a client of Google's libraries finds this cloud."""
        return {
            "credentials": self.credentials,
            "client_options": {"api_endpoint": self.endpoint},
        }

    def client(self, kind: type) -> Any:
        """Return a client of google-cloud-compute, such as InstancesClient, that calls this cloud.

        `result()` of what it starts asks this cloud, too: with `api_endpoint` alone the library
        would ask Google how the operation goes.
        """
        from google.cloud import compute_v1

        made = kind(**self.client_options)
        services = getattr(made.transport, "_extended_operations_services", {})
        for name, watcher in (
            ("zone_operations", compute_v1.ZoneOperationsClient),
            ("region_operations", compute_v1.RegionOperationsClient),
            ("global_operations", compute_v1.GlobalOperationsClient),
        ):
            services[name] = watcher(**self.client_options)
        return made

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which gcloud, and what reads the same, finds this cloud."""
        from localcloud import guide

        found = guide.environment(self.folder, self.port, self.project)
        return {**found, "CLOUDSDK_AUTH_ACCESS_TOKEN": self.token}

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The API requests since this cloud started: method, verb, path, status of each."""
        return self.control("GET", "requests")["requests"]

    def seen(self, method: str) -> int:
        """Return how many requests of a method there were, such as compute.instances.insert."""
        return sum(each["method"] == method for each in self.requests)

    def control(self, verb: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call one of the routes under `/_berg/`: shortages, quotas, preemption, settings."""
        request = urllib.request.Request(
            f"{self.endpoint}/_berg/{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Authorization": f"Bearer {self.token}"},
            method=verb,
        )
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with directly.open(request, timeout=60) as answer:
            return json.loads(answer.read())


def run_cloud(folder: Path) -> Iterator[LocalCloud]:
    """Start a cloud, hand it out, and delete it with all that it holds."""
    from localcloud import control

    port = control.start(folder, options=("--project", PROJECT))
    try:
        yield LocalCloud(folder, port)
    finally:
        control.reset(folder)


@pytest.fixture
def localcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """An embedded Google Cloud of this test's own; it takes about a second to start."""
    yield from run_cloud(tmp_path_factory.mktemp("localcloud"))


@pytest.fixture(scope="session")
def localcloud_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """An embedded Google Cloud for all tests of a session: what one makes, the next one finds."""
    yield from run_cloud(tmp_path_factory.mktemp("localcloud-session"))
