"""What is tried again: one rule for the bucket, for Google's APIs, for clusters and for machines."""

import time
import urllib.error

import pytest
from urllib3.exceptions import SSLError

from berg.gke import client
from berg.google import api
from berg.machine import boot

RETRIED = (408, 429, 500, 502, 503, 504)
REFUSED = (400, 404, 410, 412, 501, 505)
ZONES = "/compute/v1/projects/berg-local/zones"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def ask_for_an_object(cloud, bucket) -> None:
    bucket.get("x")


def ask_compute_engine(cloud, bucket) -> None:
    api.call(cloud.settings(), "GET", "/zones")


def ask_as_a_cluster(cloud, bucket) -> None:
    server = client.Server("here/cluster", cloud.url, cloud.settings())
    client.send(server, "GET", ZONES, timeout=20)


def ask_as_a_machine(cloud, bucket) -> None:
    session = cloud.session
    headers: dict[str, str] = {}
    session.credentials.apply(headers)
    boot.request(cloud.url + ZONES, headers=headers)


ASKED = [
    (ask_for_an_object, "storage.objects.get"),
    (ask_compute_engine, "compute.zones.list"),
    (ask_as_a_cluster, "compute.zones.list"),
    (ask_as_a_machine, "compute.zones.list"),
]
for_each = pytest.mark.parametrize(("ask", "method"), ASKED)


def times_asked(cloud, bucket, ask, method: str, **fault) -> int:
    bucket.write("x", b"1")
    cloud.call("GET", ZONES)  # so that there is a token
    cloud.call("DELETE", "/_berg/requests")
    cloud.fault(method, **fault)
    try:
        ask(cloud, bucket)
    finally:
        cloud.call("DELETE", "/_berg/faults")
        count = cloud.call("GET", "/_berg/requests")["counts"][method]
    return count


@for_each
@pytest.mark.parametrize("status", RETRIED)
def test_trouble_that_passes_is_tried_again(cloud, bucket, quick, ask, method, status):
    assert times_asked(cloud, bucket, ask, method, status=status) == 2


@for_each
def test_a_broken_connection_is_made_again(cloud, bucket, quick, ask, method):
    assert times_asked(cloud, bucket, ask, method, reset=True) == 2


@for_each
@pytest.mark.parametrize("status", REFUSED)
def test_a_refusal_is_taken_at_its_word(cloud, bucket, quick, ask, method, status):
    if (ask, status) == (ask_for_an_object, 404):
        pytest.skip("an object that is missing is no error")
    kinds = (Exception, urllib.error.HTTPError)
    with pytest.raises(kinds) as raised:
        times_asked(cloud, bucket, ask, method, status=status)
    assert not isinstance(raised.value, AssertionError | KeyError)
    assert cloud.call("GET", "/_berg/requests")["counts"][method] == 1


def test_machines_have_the_same_list():
    statuses = range(100, 600)
    assert {each for each in statuses if each in api.RETRIED} == set(boot.RETRIED)


def test_a_certificate_that_is_not_trusted_is_said_at_once():
    untrusted = api.NoAnswer(SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))
    cut = api.NoAnswer(SSLError("[SSL: UNEXPECTED_EOF_WHILE_READING]"))
    assert not api.is_transient(untrusted)
    assert api.is_transient(cut)


@pytest.mark.slow
def test_pauses_have_jitter(cloud, bucket, monkeypatch):
    """Many who wait for the same thing must not all ask again at one moment."""
    for ask, method in ASKED:
        seen = set()
        monkeypatch.setattr(time, "sleep", seen.add)
        for _ in range(4):
            times_asked(cloud, bucket, ask, method, status=503)
        assert len(seen) >= 3, ask
