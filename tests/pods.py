"""Clusters of berg's on the embedded cloud, for tests of jobs in pods."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import wait_for
from local_kube import Kube

from berg.gke import clusters


@contextlib.contextmanager
def cluster(cloud, name: str, folder: Path, *pools: dict, account: str = "") -> Iterator[Kube]:
    """A cluster with these pools, in us-central1-a, whose nodes act as an account."""
    settings = replace(cloud.settings("any"), service_account=account)
    for pool in pools:
        wanted = clusters.Wanted(zone="us-central1-a", **pool)
        assert clusters.create(settings, name, wanted, lambda text: None) == f"us-central1-a/{name}"
    yield Kube(cloud, name, folder)
    clusters.delete(settings, name, lambda text: None)
    left = cloud.call("GET", "/container/v1/projects/berg-local/locations/-/clusters").get(
        "clusters", []
    )
    assert name not in [each["name"] for each in left]


@pytest.fixture(autouse=True)
def clean(kube, cloud):
    """What a test leaves in the module's cluster goes before the next one."""
    yield
    cloud.settle_down()
    delete_jobs(kube)


def delete_jobs(kube: Kube) -> None:
    """Delete all Jobs with their pods."""
    for each in kube.get("jobs")["items"]:
        path = f"/apis/batch/v1/namespaces/default/jobs/{each['metadata']['name']}"
        kube.call("DELETE", path, propagationPolicy="Background")
    wait_for(lambda: not kube.pods(), 60, "the end of all pods")
    wait_for(lambda: not owned(kube), 60, "the end of what went with the Jobs")


def owned(kube: Kube) -> list[str]:
    """Secrets that go with a Job."""
    there = [each["metadata"] for each in kube.get("secrets")["items"]]
    return [about["name"] for about in there if about.get("ownerReferences")]


def of(kube: Kube, job: str) -> list[dict]:
    """A job's pods."""
    return [pod for pod in kube.pods() if pod["metadata"]["labels"].get("berg-job") == job]


def alive(kube: Kube, job: str) -> list[dict]:
    """Those that live or are to come, by name."""
    there = [pod for pod in of(kube, job) if pod["status"]["phase"] in ("Pending", "Running")]
    return sorted(there, key=lambda pod: pod["metadata"]["name"])


def hear(process: subprocess.Popen, words: str, seconds: float = 60) -> str:
    """What a program wrote to its standard error up to the line with these words."""
    end = threading.Timer(seconds, process.kill)
    end.start()
    heard = ""
    for line in process.stderr:
        heard += line
        if words in line:
            end.cancel()
            return heard
    raise AssertionError(f"{words!r} is not among: {heard}")
