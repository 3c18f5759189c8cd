# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""What Cloud Storage refuses or limits beyond types and preconditions, and what foreign clients
count on.
"""

import os
import time

import pytest
import requests
from google.api_core.exceptions import TooManyRequests
from local_cloud import (  # noqa: F401
    MB,
    PROJECT,
    QUANTUM,
    bucket,
    client,
    http_session,
    names,
    raw,
    reason,
    server,
)


def refused(answer):
    return answer.status_code, reason(answer)


def make(raw, **body):
    name = next(names)
    return raw.session.post(
        f"{raw.server.url}/storage/v1/b?project={PROJECT}", json={"name": name, **body}
    )


# --- buckets


@pytest.mark.parametrize(
    "body",
    [
        {"location": "us-central9"},
        {"location": "mars-west1"},
        {"labels": {"Team": "a"}},
        {"labels": {"team": "A B"}},
        {"labels": {f"k{n}": "" for n in range(65)}},
        {"rpo": "ASYNC_TURBO", "location": "us-central1"},
        {"iamConfiguration": {"publicAccessPrevention": "sometimes"}},
        {"storageClass": "COLDISH"},
    ],
)
def test_bodies_of_buckets_are_checked(raw, body):
    assert refused(make(raw, **body))[0] == 400
    if "location" not in body:
        before = raw.session.get(raw.base).json()
        assert raw.session.patch(raw.base, json=body).status_code == 400
        assert raw.session.get(raw.base).json() == before


@pytest.mark.parametrize(
    "body",
    [
        {"encryption": {"defaultKmsKeyName": "projects/p/locations/us/keyRings/r/cryptoKeys/k"}},
        {"billing": {"requesterPays": True}},
        {"defaultEventBasedHold": True},
        {"hierarchicalNamespace": {"enabled": True}},
        {"autoclass": {"enabled": True}},
        {"versioning": {"enabled": True}},
        {"retentionPolicy": {"retentionPeriod": "3600"}},
        {"logging": {"logBucket": "b"}},
        {"customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]}},
        {"defaultObjectAcl": [{"entity": "allUsers", "role": "READER"}]},
    ],
)
def test_settings_of_buckets_that_cannot_be_kept_are_refused(raw, body):
    assert refused(make(raw, **body)) == (501, "notImplemented")
    assert refused(raw.session.patch(raw.base, json=body)) == (501, "notImplemented")


def test_settings_of_buckets_that_are_kept_are_shown(raw):
    kept = {
        "labels": {"team": "a"},
        "versioning": {"enabled": False},
        "billing": {"requesterPays": False},
    }
    made = make(
        raw,
        location="africa-south1",
        satisfiesPZS=True,
        softDeleteTime="2026-01-01T00:00:00Z",
        **kept,
    ).json()
    assert (
        made["location"] == "AFRICA-SOUTH1"
        and "softDeleteTime" not in made
        and "satisfiesPZS" not in made
    )
    url = f"{raw.server.url}/storage/v1/b/{made['name']}"
    assert {key: raw.session.get(url).json()[key] for key in kept} == kept
    changed = raw.session.patch(
        url, json={"labels": {"team": None, "user": "b"}, "lifecycle": None}
    ).json()
    assert changed["labels"] == {"user": "b"} and "lifecycle" not in changed
    domain = make(raw, name="data.example.com")
    assert refused(domain) == (403, "forbidden") and "domain" in domain.text


# --- objects


def test_custom_metadata_is_limited_to_8_kib(raw):
    fits = {"metadata": {"key": "é" * 4000, "k": "x" * 188}}
    assert len("keyk") + 8000 + 188 == 8192
    raw.put("x", b"x")
    assert raw.session.patch(raw.url("x"), json=fits).status_code == 200
    one_more = raw.session.patch(raw.url("x"), json={"metadata": {"m": ""}})
    assert refused(one_more) == (400, "invalid") and "metadata" in one_more.text
    large = {"metadata": {"state": "x" * 8192}}
    url = f"{raw.uploads}?uploadType=resumable&name=y"
    assert refused(raw.session.post(url, json=large)) == (400, "invalid")
    body = {"sourceObjects": [{"name": "x"}], "destination": large}
    assert refused(raw.session.post(f"{raw.base}/o/y/compose", json=body)) == (400, "invalid")
    assert raw.names() == ["x"]


def test_etags_as_preconditions(raw):
    raw.put("x", b"1")
    tag = raw.get("x").json()["etag"]
    get = lambda **headers: raw.session.get(raw.url("x"), headers=headers)
    assert get(**{"If-None-Match": f'"{tag}"'}).status_code == 304
    assert get(**{"If-None-Match": "*"}).status_code == 304
    assert get(**{"If-None-Match": "other"}).status_code == 200
    assert get(**{"If-Match": f'"other", "{tag}"'}).status_code == 200
    assert refused(get(**{"If-Match": "other"})) == (412, "conditionNotMet")
    assert raw.read("x", **{"If-None-Match": tag}).status_code == 304
    stale = {"If-Match": "other"}
    session = raw.session
    assert refused(session.patch(raw.url("x"), json={}, headers=stale)) == (412, "conditionNotMet")
    assert refused(session.delete(raw.url("x"), headers=stale)) == (412, "conditionNotMet")
    assert refused(session.post(f"{raw.uploads}?uploadType=media&name=x", headers=stale)) == (
        412,
        "conditionNotMet",
    )
    assert refused(session.patch(raw.base, json={}, headers=stale)) == (412, "conditionNotMet")
    of_bucket = session.get(raw.base).json()["etag"]
    assert session.get(raw.base, headers={"If-None-Match": of_bucket}).status_code == 304
    part = f"DELETE /storage/v1/b/{raw.name}/o/x HTTP/1.1\r\nIf-Match: {{}}\r\n\r\n"
    # a part of a batch has headers of its own
    for sent, status in (
        ("other", "412"),
        (tag, "204"),
    ):
        content = f"--b\r\nContent-Type: application/http\r\n\r\n{part.format(sent)}\r\n--b--\r\n"
        kind = {"Content-Type": "multipart/mixed; boundary=b"}
        assert (
            f"HTTP/1.1 {status}"
            in session.post(f"{raw.server.url}/batch", data=content, headers=kind).text
        )


@pytest.fixture
def limited(raw):
    """The same bucket, of which each name takes one write in a long while."""
    url = f"{raw.server.url}/_berg/settings"
    assert raw.session.post(url, json={"write_interval": 3600}).json()["write_interval"] == 3600
    yield raw
    raw.session.post(url, json={"write_interval": 0})


def test_one_write_a_second_of_each_name(limited):
    raw, session = limited, limited.session
    raw.put("x", b"1")
    again = raw.put("x", b"2")
    assert refused(again) == (429, "rateLimitExceeded") and "gcs429" in again.text
    assert again.json()["error"]["errors"][0]["domain"] == "usageLimits"
    compose = {"sourceObjects": [{"name": "x"}]}
    raw.put("other", b"3")
    for answer in (
        session.patch(raw.url("x"), json={"metadata": {"a": "b"}}),
        session.post(f"{raw.base}/o/x/compose", json=compose),
        session.post(f"{raw.url('other')}/rewriteTo/b/{raw.name}/o/x", json={}),
    ):
        assert answer.status_code == 429
    assert raw.read("x").content == b"1"
    assert refused(raw.put("x", b"2", ifGenerationMatch=7)) == (412, "conditionNotMet")
    # deleting is free, but what follows comes too soon
    assert session.delete(raw.url("x")).status_code == 204
    assert raw.put("x", b"2").status_code == 429


def test_an_upload_session_waits_for_its_second(limited, client):
    raw = limited
    raw.put("x", b"1")
    url = raw.start("x")
    assert raw.session.put(url, data=b"22").status_code == 429
    assert raw.chunk(url, b"", "bytes */2").status_code == 429
    raw.session.post(f"{raw.server.url}/_berg/settings", json={"write_interval": 0.2})
    time.sleep(0.25)
    assert raw.chunk(url, b"", "bytes */2").status_code == 200
    assert raw.read("x").content == b"22"
    blob = client.bucket(raw.name).blob("y")
    for number in range(3):  # google-cloud-storage waits and writes again
        blob.upload_from_string(str(number))
    assert raw.read("y").content == b"2"
    with pytest.raises(TooManyRequests):
        blob.upload_from_string("3", retry=None)


# --- what foreign clients count on


def test_rewrite_in_parts(raw, client):
    data = os.urandom(2 * MB + 5)
    raw.put("x", data)
    elsewhere = client.create_bucket(next(names), location="europe-west4").name
    url = f"{raw.url('x')}/rewriteTo/b/{elsewhere}/o/y"

    def call(**params):
        return raw.session.post(url, params={"maxBytesRewrittenPerCall": MB, **params}, json={})

    first = call().json()
    assert (first["done"], first["totalBytesRewritten"], first["objectSize"]) == (
        False,
        str(MB),
        str(len(data)),
    )
    assert (
        raw.session.get(f"{raw.server.url}/storage/v1/b/{elsewhere}/o").json().get("items") is None
    )
    assert refused(call(rewriteToken="nonsense")) == (400, "invalid")
    assert refused(call(rewriteToken=first["rewriteToken"], maxBytesRewrittenPerCall=2 * MB)) == (
        400,
        "invalid",
    )
    assert refused(call(maxBytesRewrittenPerCall=MB + 1)) == (400, "invalid")
    second = call(rewriteToken=first["rewriteToken"]).json()
    assert second["totalBytesRewritten"] == str(2 * MB)
    last = call(rewriteToken=second["rewriteToken"]).json()
    assert (
        last["done"] and last["resource"]["size"] == str(len(data)) and "rewriteToken" not in last
    )
    copy = client.bucket(elsewhere).blob("y")
    assert copy.download_as_bytes() == data
    # Within one location all of it goes at once.
    url = f"{raw.url('x')}/rewriteTo/b/{raw.name}/o/z"
    assert call().json()["done"]


def test_an_upload_whose_end_is_open(raw):
    """As Google's Node client sends it: `bytes 0-*/N`, or `bytes 0-*/*` where it does not know the
    length.
    """
    data = os.urandom(QUANTUM + 7)
    for total in (len(data), "*"):
        url = raw.start(f"x{total}")
        done = raw.chunk(url, data, f"bytes 0-*/{total}")
        assert done.status_code == 200 and raw.read(f"x{total}").content == data
    url = raw.start("resumed")
    raw.chunk(url, data[:QUANTUM], f"bytes 0-{QUANTUM - 1}/{len(data)}")
    assert raw.chunk(url, data[QUANTUM:], f"bytes {QUANTUM}-*/{len(data)}").status_code == 200
    assert raw.read("resumed").content == data
    short = raw.chunk(raw.start("short"), data, f"bytes 0-*/{len(data) + 1}")
    assert short.status_code == 400 and "short" not in raw.names()
    assert requests.get(raw.url("short")).status_code == 401
