# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded Cloud Storage over real HTTP: buckets, objects, lists, preconditions, ranges."""

import pytest
from google.api_core.exceptions import MethodNotImplemented
from local_cloud import (  # noqa: F401
    MB,
    PROJECT,
    QUANTUM,
    Bucket,
    bucket,
    client,
    crc32c,
    http_session,
    names,
    raw,
    reason,
    server,
)
from local_machines import session_of


def test_buckets(client, server, http_session):
    name, url = next(names), f"{server.url}/storage/v1/b"
    bucket = client.bucket(name)
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    client.create_bucket(bucket, location="europe-west4")
    found = client.get_bucket(name)
    assert (found.location, found.location_type) == ("EUROPE-WEST4", "region")
    assert found.project_number and found.iam_configuration.uniform_bucket_level_access_enabled
    policy = found.get_iam_policy(requested_policy_version=3)
    reader = {"role": "roles/storage.objectUser", "members": ["user:laptop@berg.local"]}
    policy.bindings.append(reader)
    found.set_iam_policy(policy)
    stale = {"bindings": [], "etag": policy.to_api_repr()["etag"]}
    assert http_session.put(f"{url}/{name}/iam", json=stale).status_code == 412
    found.blob("x").upload_from_string("x")
    upload = f"{server.url}/upload/storage/v1/b/{name}/o?uploadType=media&name=y"
    refused = http_session.post(f"{upload}&predefinedAcl=private", data=b"")
    assert (refused.status_code, reason(refused)) == (400, "invalid")
    full = http_session.delete(f"{url}/{name}")
    assert (full.status_code, full.json()["error"]["message"][-9:]) == (409, "ot empty.")
    taken = http_session.post(url, params={"project": PROJECT}, json={"name": name})
    assert (taken.status_code, reason(taken)) == (409, "conflict")
    found.blob("x").delete()
    found.delete()
    assert http_session.get(f"{url}/{name}/o").status_code == 404


@pytest.mark.parametrize(
    "name",
    ["ab", "Upper", "-dash", "under_", "1.2.3.4", "goog-x", "a..b", "x" * 64, "has space"],
)
def test_names_that_no_bucket_has(server, http_session, name):
    url = f"{server.url}/storage/v1/b?project={PROJECT}"
    answer = http_session.post(url, json={"name": name})
    assert (answer.status_code, reason(answer)) == (400, "invalid")


# --- names and lists


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/x",
        "a//b",
        "/",
        "dir/",
        "a b+c%2F?#&",
        "ünïcödé/日本",
        "\x01tab\t",
        "é" * 512,
        "...",
        "0",
    ],
)
def test_any_name_is_kept_apart(raw, server, name):
    other = name + "x" if len(name.encode()) < 1024 else name[:-1]
    assert raw.put(name, b"one").status_code == 200
    assert raw.put(other, b"two").status_code == 200
    assert (raw.read(name).content, raw.read(other).content) == (b"one", b"two")
    assert raw.names() == sorted([name, other], key=str.encode)
    assert not (server.folder.parent / "etc").exists()
    assert raw.session.delete(raw.url(name)).status_code == 204
    assert raw.names() == [other]


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "a\rb", "x" * 1025, "é" * 513])
def test_names_that_google_forbids(raw, name):
    answer = raw.put(name)
    assert answer.status_code == 400
    assert raw.names() == []


def test_names_must_be_utf8(raw):
    assert raw.session.get(f"{raw.base}/o/%ff").status_code == 400
    assert raw.session.get(f"{raw.base}/o?prefix=%ff").status_code == 400


def test_a_glob_lists_what_matches_within_a_folder(client, bucket):
    for name in ("a/1.json", "a/1.txt", "a/b/2.json"):
        bucket.blob(name).upload_from_string("")
    assert [each.name for each in client.list_blobs(bucket, match_glob="a/*.json")] == ["a/1.json"]
    with pytest.raises(MethodNotImplemented):
        [*client.list_blobs(bucket, match_glob="a/**.json")]


# --- preconditions


def test_of_many_writers_with_a_precondition_one_wins(raw):
    from concurrent.futures import ThreadPoolExecutor

    def write(number):
        session = session_of(raw.server.folder)
        return (
            Bucket(raw.server, session, raw.name)
            .put("lock", str(number).encode(), ifGenerationMatch=0)
            .status_code
        )

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write, range(8))) == [200] + [412] * 7


# --- content


def test_ranges(raw):
    data = bytes(range(256)) * 8192  # 2 MB: larger than what is sent in one piece
    raw.put("x", data)
    size = len(data)
    for header, first, last in (
        ("bytes=0-0", 0, 0),
        ("bytes=5-1500000", 5, 1500000),
        (f"bytes={size - 3}-", size - 3, size - 1),
        ("bytes=-10", size - 10, size - 1),
        (f"bytes=-{size * 2}", 0, size - 1),
        (f"bytes=7-{size * 2}", 7, size - 1),
    ):
        answer = raw.read("x", Range=header)
        assert answer.status_code == 206
        assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{size}"
        assert answer.content == data[first : last + 1]
    beyond = raw.read("x", Range=f"bytes={size}-")
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
    for ignored in ("bytes=9-3", "lines=1-2", "bytes=0-1,5-6", "bytes=-"):
        assert raw.read("x", Range=ignored).status_code == 200


def test_download_headers(raw, http_session):
    body = {
        "contentType": "text/x-log",
        "metadata": {"state": "RUNNING", "who": "Zoë\n"},
        "contentLanguage": "de",
    }
    raw.put("x", b"abc")
    http_session.patch(raw.url("x"), json=body)
    resource = raw.get("x").json()
    answer = http_session.get(resource["mediaLink"])
    headers = answer.headers
    assert answer.content == b"abc" and "/download/" in resource["mediaLink"]
    assert headers["X-Goog-Hash"] == f"crc32c={crc32c(b'abc')},md5={resource['md5Hash']}"
    assert headers["X-Goog-Generation"] == resource["generation"]
    assert headers["X-Goog-Metageneration"] == "2"
    assert headers["X-Goog-Stored-Content-Length"] == "3"
    assert headers["ETag"] == resource["etag"]
    assert headers["Content-Type"] == "text/x-log" and headers["Content-Language"] == "de"
    assert headers["X-Goog-Meta-State"] == "RUNNING" and headers["X-Goog-Meta-Who"] == "Zo%C3%AB%0A"
    assert raw.put("empty").json()["size"] == "0"
    assert raw.read("empty").content == b""


def test_odd_but_legal_metadata_survives(raw, http_session):
    raw.put("x", b"abc")
    odd = {
        "metadata": {"k": "\ud800 ü", "gone": None},
        "contentType": "text/plain\r\nX-Evil: 1",
        "storageClass": None,
    }
    answer = http_session.patch(raw.url("x"), json=odd)
    assert answer.status_code == 200
    assert (
        answer.json()["metadata"] == {"k": "\ud800 ü"}
        and answer.json()["storageClass"] == "STANDARD"
    )
    read = raw.read("x")
    assert read.content == b"abc" and "X-Evil" not in read.headers


def test_compose_limits(raw, http_session):
    def compose(sources, **extra):
        body = {"sourceObjects": [{"name": name} for name in sources], **extra}
        return http_session.post(f"{raw.base}/o/sum/compose", json=body)

    raw.put("a", b"a")
    raw.put("b", b"b")
    assert compose(["a"] * 33).status_code == 400
    assert compose([]).status_code == 400
    assert compose(["a", "nothing"]).status_code == 404
    # gcloud's parallel composite uploads send the hash of the first source as the destination's.
    once = compose(
        ["a", "b"] * 16, destination={"contentType": "text/plain", "crc32c": "TD+XYg=="}
    ).json()
    assert (once["componentCount"], once["size"], once["contentType"]) == (32, "32", "text/plain")
    assert "md5Hash" not in once
    twice = compose(["sum", "b"]).json()  # the destination may be a source: a log that grows
    assert twice["componentCount"] == 33
    assert raw.read("sum").content == b"ab" * 16 + b"b"
    assert twice["crc32c"] == crc32c(b"ab" * 16 + b"b")
    again = {"sourceObjects": [{"name": "a"}]}
    late = http_session.post(f"{raw.base}/o/sum/compose?ifGenerationMatch=1", json=again)
    assert late.status_code == 412
