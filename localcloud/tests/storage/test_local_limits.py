# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""What Cloud Storage refuses or limits beyond types and preconditions."""

import time

import pytest
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
        {"iamConfiguration": {"publicAccessPrevention": "sometimes"}},
        {"storageClass": "COLDISH"},
    ],
)
def test_bodies_of_buckets_are_checked(raw, body):
    assert refused(make(raw, **body))[0] == 400


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


def test_settings_of_buckets_that_are_kept_are_shown(raw):
    kept = {"labels": {"team": "a"}, "softDeletePolicy": {"retentionDurationSeconds": "0"}}
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
    found = raw.session.get(url).json()
    assert found["labels"] == kept["labels"]
    assert kept["softDeletePolicy"].items() <= found["softDeletePolicy"].items()
    domain = make(raw, name="data.example.com")
    assert refused(domain) == (403, "forbidden") and "domain" in domain.text


# --- objects


def test_custom_metadata_is_limited_to_8_kib(raw):
    fits = {"metadata": {"key": "é" * 4000, "k": "x" * 188}}  # 3 + 8000 + 1 + 188 bytes
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
