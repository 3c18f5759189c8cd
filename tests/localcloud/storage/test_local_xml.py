# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""Objects by their names, as the XML API has them."""

import time
import xml.etree.ElementTree as ElementTree

import pytest
import requests
from local_cloud import MB, bucket, client, http_session, server  # noqa: F401

NAME = "data/über 1%.tar"
PATH = "data/%C3%BCber%201%25.tar"
CONTENT = bytes(range(256)) * 1200  # more than one block


@pytest.fixture
def url(server, bucket):
    bucket.blob(NAME).upload_from_string(CONTENT)
    return f"{server.url}/{bucket.name}/{PATH}"


def code(answer: requests.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"].startswith("application/xml")
    return answer.status_code, ElementTree.fromstring(answer.content).findtext("Code")


def test_an_object_is_read_by_its_name(url, bucket, http_session):
    generation = str(bucket.get_blob(NAME).generation)
    whole = http_session.get(url)
    assert whole.content == CONTENT and whole.headers["X-Goog-Generation"] == generation
    part = http_session.get(url, headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, CONTENT[5:10])
    assert part.headers["Content-Range"] == f"bytes 5-9/{len(CONTENT)}"
    head = http_session.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert (head.headers["Content-Length"], head.headers["X-Goog-Generation"]) == (
        str(len(CONTENT)),
        generation,
    )
    assert http_session.get(f"{url}?generation={generation}").content == CONTENT
    beyond = http_session.get(url, headers={"Range": f"bytes={len(CONTENT)}-"})
    assert (
        code(beyond) == (416, "InvalidRange")
        and beyond.headers["Content-Range"] == f"bytes */{len(CONTENT)}"
    )
    assert code(http_session.get(f"{url}?acl")) == (501, "NotImplemented")


def test_who_may_not_read_is_refused_as_by_google(server, url, bucket, http_session):
    assert code(requests.get(url)) == (403, "AccessDenied")
    assert code(requests.get(url, headers={"Authorization": "Bearer nonsense"})) == (
        401,
        "AuthenticationRequired",
    )
    assert requests.head(url).status_code == 403
    assert code(http_session.get(f"{url}x")) == (404, "NoSuchKey")
    assert code(http_session.get(f"{url}?generation=1")) == (404, "NoSuchKey")
    assert code(http_session.get(f"{server.url}/no-such-bucket/x")) == (404, "NoSuchBucket")


def test_faults_and_the_log_of_requests_know_such_reads(server, url, http_session):
    http_session.delete(f"{server.url}/_berg/requests")
    http_session.post(
        f"{server.url}/_berg/faults", json={"method": "storage.objects.get", "status": 503}
    )
    assert code(http_session.get(url)) == (503, "ServiceUnavailable")
    assert http_session.get(url).content == CONTENT
    log = http_session.get(f"{server.url}/_berg/requests").json()
    assert log["counts"]["storage.objects.get"] == 2 and log["requests"][0]["verb"] == "GET"


def test_a_bucket_that_is_far_away(server, bucket, http_session):
    bucket.blob("large").upload_from_string(bytes(7 * MB))
    url, settings = f"{server.url}/{bucket.name}/large", f"{server.url}/_berg/settings"
    assert http_session.post(settings, json={"latency": 0.3}).json()["latency"] == 0.3
    began = time.monotonic()
    http_session.head(url)
    head = time.monotonic() - began
    assert len(http_session.get(url).content) == 7 * MB
    http_session.post(settings, json={"latency": 0})
    assert head >= 0.3 and time.monotonic() - began - head >= 0.9, "its beginning, and two windows"
