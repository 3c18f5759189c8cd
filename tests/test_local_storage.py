"""The storage half of the embedded cloud, over real HTTP, with clients that no one here wrote."""

import base64
import hashlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import time
from urllib.parse import quote

import google.auth.exceptions
import google_crc32c
import pytest
import requests
from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed
from google.cloud import storage as gcs
from local_cloud import PROJECT, Server

from berg.local.storage import Storage

KB, MB = 1 << 10, 1 << 20
QUANTUM = 256 * KB
names = (f"bucket-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("cloud")).start()
    yield server
    server.kill()
    assert "failed inside" not in server.stderr.read_text()


@pytest.fixture(scope="module")
def client(server):
    options = {"api_endpoint": server.url}
    return gcs.Client(project=PROJECT, credentials=server.credentials(), client_options=options)


@pytest.fixture
def http_session(server):
    session = server.session()
    yield session
    session.delete(f"{server.url}/_berg/faults")


@pytest.fixture
def bucket(client):
    return client.create_bucket(next(names), location="us-central1")


class Bucket:
    """Raw requests about one bucket."""

    def __init__(self, server, session, name):
        self.server, self.session, self.name = server, session, name
        self.base = f"{server.url}/storage/v1/b/{name}"
        self.uploads = f"{server.url}/upload/storage/v1/b/{name}/o"

    def put(self, name, data=b"", **params):
        params = {"uploadType": "media", "name": name, **params}
        return self.session.post(self.uploads, params=params, data=data)

    def url(self, name):
        return f"{self.base}/o/{quote(name, safe='')}"

    def get(self, name, **params):
        return self.session.get(self.url(name), params=params)

    def read(self, name, **headers):
        return self.session.get(self.url(name), params={"alt": "media"}, headers=headers)

    def names(self, **params):
        answer = self.session.get(f"{self.base}/o", params=params).json()
        return [item["name"] for item in answer.get("items", [])]

    def start(self, name, **params):
        answer = self.session.post(self.uploads, params={"uploadType": "resumable", "name": name, **params})
        assert answer.status_code == 200, answer.text
        return answer.headers["Location"]

    def chunk(self, url, data, content_range):
        headers = {"Content-Range": content_range}
        return self.session.put(url, data=data, headers=headers, allow_redirects=False)


@pytest.fixture
def raw(server, http_session, bucket):
    return Bucket(server, http_session, bucket.name)


def reason(response):
    return response.json()["error"]["errors"][0]["reason"]


def crc32c(data):
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


# --- google-cloud-storage


def test_python_client_round_trip(client, bucket):
    blob = bucket.blob("dir/über 100%.txt")
    blob.metadata = {"state": "RUNNING"}
    blob.cache_control = "no-store"
    blob.upload_from_string("hello", content_type="text/plain", if_generation_match=0)
    found = bucket.get_blob("dir/über 100%.txt")
    assert (found.size, found.content_type, found.metageneration) == (5, "text/plain", 1)
    assert found.metadata == {"state": "RUNNING"} and found.cache_control == "no-store"
    assert found.md5_hash == base64.b64encode(hashlib.md5(b"hello").digest()).decode()
    assert found.crc32c == crc32c(b"hello")
    assert found.download_as_bytes(checksum="crc32c") == b"hello"
    assert found.download_as_bytes(start=1, end=3) == b"ell"
    found.metadata = {"state": "SUCCEEDED", "gone": None}
    found.patch()
    again = bucket.get_blob(found.name)
    assert again.metadata == {"state": "SUCCEEDED"} and again.metageneration == 2
    assert again.generation == found.generation and again.updated > again.time_created
    with pytest.raises(PreconditionFailed):
        blob.upload_from_string("x", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        blob.delete(if_generation_match=1)
    blob.delete(if_generation_match=again.generation)
    assert bucket.get_blob(blob.name) is None
    with pytest.raises(NotFound):
        blob.download_as_bytes()


def test_python_client_resumable_upload_compose_and_rewrite(client, bucket):
    data = os.urandom(3 * MB + 17)
    blob = bucket.blob("big", chunk_size=QUANTUM)
    blob.upload_from_string(data, checksum="crc32c")
    tail = bucket.blob("tail")
    tail.upload_from_string(b"tail")
    whole = bucket.blob("whole")
    whole.compose([blob, tail], if_generation_match=0)
    assert whole.download_as_bytes(checksum="crc32c") == data + b"tail"
    assert (whole.component_count, whole.md5_hash, whole.crc32c) == (2, None, crc32c(data + b"tail"))
    copied = bucket.blob("copied")
    assert copied.rewrite(whole)[0] is None
    whole.delete()
    assert copied.download_as_bytes() == data + b"tail"
    batched = list(client.list_blobs(bucket))
    with client.batch():
        for item in batched:
            item.delete()
    assert list(client.list_blobs(bucket)) == []


def test_buckets(client, server, http_session):
    name = next(names)
    bucket = client.bucket(name)
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.labels = {"berg": "1"}
    client.create_bucket(bucket, location="europe-west4")
    found = client.get_bucket(name)
    assert (found.location, found.location_type, found.labels) == ("EUROPE-WEST4", "region", {"berg": "1"})
    assert found.project_number and found.metageneration == 1
    assert found.iam_configuration.uniform_bucket_level_access_enabled
    found.labels = {**found.labels, "team": "a"}
    found.patch()
    assert client.get_bucket(name).metageneration == 2
    assert name in [item.name for item in client.list_buckets(prefix=name)]
    assert found.test_iam_permissions(["storage.objects.create"]) == ["storage.objects.create"]
    policy = found.get_iam_policy(requested_policy_version=3)
    policy.bindings.append({"role": "roles/storage.objectUser", "members": ["serviceAccount:w@p"]})
    found.set_iam_policy(policy)
    roles = [binding["role"] for binding in found.get_iam_policy().bindings]
    assert "roles/storage.objectUser" in roles
    stale = http_session.put(
        f"{server.url}/storage/v1/b/{name}/iam", json={"bindings": [], "etag": policy.to_api_repr()["etag"]}
    )
    assert stale.status_code == 412
    found.blob("x").upload_from_string("x")
    refused = http_session.post(
        f"{server.url}/upload/storage/v1/b/{name}/o?uploadType=media&name=y&predefinedAcl=private", data=b""
    )
    assert (refused.status_code, reason(refused)) == (400, "invalid")
    url = f"{server.url}/storage/v1/b"
    full = http_session.delete(f"{url}/{name}")
    assert (full.status_code, full.json()["error"]["message"][-9:]) == (409, "ot empty.")
    taken = http_session.post(url, params={"project": PROJECT}, json={"name": name})
    assert (taken.status_code, reason(taken)) == (409, "conflict")
    for bad in ("ab", "Upper", "-dash", "under_", "1.2.3.4", "goog-x", "a..b", "x" * 64, "has space"):
        answer = http_session.post(url, params={"project": PROJECT}, json={"name": bad})
        assert (answer.status_code, reason(answer)) == (400, "invalid"), bad
    found.blob("x").delete()
    found.delete()
    assert client.lookup_bucket(name) is None
    assert http_session.get(f"{url}/{name}/o").status_code == 404


def test_buckets_of_a_project_without_access_are_forbidden(server, http_session, client):
    url, name = f"{server.url}/_berg/projects", next(names)
    http_session.post(url, json={"project": "others", "access": True})
    http_session.post(f"{server.url}/storage/v1/b?project=others", json={"name": name})
    http_session.post(url, json={"project": "others", "access": False})
    for attempt in (
        lambda: client.get_bucket(name),
        lambda: client.bucket(name).blob("x").upload_from_string("x"),
        lambda: client.bucket(name).blob("x").download_as_bytes(),
        lambda: client.create_bucket("others-new", project="others"),
        lambda: list(client.list_buckets(project="others")),
    ):
        with pytest.raises(Forbidden, match="does not have storage"):
            attempt()
    assert name not in [item.name for item in client.list_buckets()]


# --- names and lists


@pytest.mark.parametrize(
    "name", ["../../etc/x", "a//b", "/", "dir/", "a b+c%2F?#&", "ünïcödé/日本", "\x01tab\t", "é" * 512, "...", "0"]
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


def test_list_with_prefix_delimiter_offsets_and_pages(raw):
    tree = ["a", "a/", "a/1", "a/2", "a/b/1", "a/b/2", "b", "c/1", "c/2"]
    for name in tree:
        raw.put(name)

    def listed(**params):
        answer = raw.session.get(f"{raw.base}/o", params=params).json()
        return [item["name"] for item in answer.get("items", [])], answer.get("prefixes", [])

    assert listed() == (tree, [])
    assert listed(prefix="a/") == (["a/", "a/1", "a/2", "a/b/1", "a/b/2"], [])
    assert listed(delimiter="/") == (["a", "b"], ["a/", "c/"])
    assert listed(delimiter="/", prefix="a/") == (["a/", "a/1", "a/2"], ["a/b/"])
    assert listed(delimiter="/", includeTrailingDelimiter="true") == (["a", "a/", "b"], ["a/", "c/"])
    assert listed(startOffset="a/2", endOffset="c/1") == (["a/2", "a/b/1", "a/b/2", "b"], [])
    assert listed(matchGlob="a/*") == (["a/", "a/1", "a/2"], [])
    assert listed(matchGlob="**/{1,b/2}") == (["a/1", "a/b/1", "a/b/2", "c/1"], [])
    assert listed(matchGlob="[a-b]") == (["a", "b"], [])
    for page_size in (1, 2, 3):
        items, prefixes, params = [], [], {"delimiter": "/", "maxResults": page_size}
        while True:
            answer = raw.session.get(f"{raw.base}/o", params=params).json()
            page = [item["name"] for item in answer.get("items", [])]
            assert 1 <= len(page) + len(answer.get("prefixes", [])) <= page_size
            items, prefixes = items + page, prefixes + answer.get("prefixes", [])
            if "nextPageToken" not in answer:
                break
            params["pageToken"] = answer["nextPageToken"]
        assert (items, prefixes) == (["a", "b"], ["a/", "c/"])
    assert raw.session.get(f"{raw.base}/o?pageToken=!!").status_code == 400
    masked = raw.session.get(f"{raw.base}/o?fields=items(name),nextPageToken&maxResults=1").json()
    assert masked["items"] == [{"name": "a"}] and set(masked) == {"items", "nextPageToken"}


def test_listing_costs_what_it_returns(tmp_path):
    """Counted in steps of SQLite's virtual machine, so it does not depend on how busy the machine is."""
    storage = Storage(tmp_path)

    def fill(bucket, folders, files):
        rows = ((bucket, f"dir{d}/{f:06d}".encode(), 1, '{"name": "x"}') for d in range(folders) for f in range(files))
        storage.db.executemany("INSERT INTO objects VALUES (?,?,?,?)", rows)

    def steps(bucket, **params):
        count = 0

        def tick():
            nonlocal count
            count += 1

        storage.db.set_progress_handler(tick, 10)
        page = storage.list_objects(bucket, limit=100, **params)
        storage.db.set_progress_handler(None, 0)
        return count, page

    with storage._transaction():
        fill("small", 4, 100)
        fill("large", 4, 50_000)
    for params in ({"prefix": "dir2/"}, {"delimiter": "/"}, {"start": b"dir2/000050"}):
        few, small = steps("small", **params)
        many, large = steps("large", **params)
        assert small[1] == large[1]
        assert many <= few + 5
    assert steps("large", delimiter="/")[1][1] == ["dir0/", "dir1/", "dir2/", "dir3/"]


# --- preconditions


def test_preconditions_everywhere(raw):
    old = raw.put("x", b"1").json()
    new = raw.put("x", b"2").json()
    assert int(new["generation"]) > int(old["generation"]) and new["metageneration"] == "1"
    wrong = {"ifGenerationMatch": old["generation"]}
    compose = {"sourceObjects": [{"name": "x"}]}
    session, base = raw.session, raw.base
    failing = {
        "insert, media": raw.put("x", b"3", **wrong),
        "insert, must be new": raw.put("x", b"3", ifGenerationMatch=0),
        "insert, must exist": raw.put("y", b"3", ifGenerationNotMatch=0),
        "insert, metageneration": raw.put("x", b"3", ifMetagenerationMatch=2),
        "insert, resumable": session.post(raw.uploads, params={"uploadType": "resumable", "name": "x", **wrong}),
        "get": raw.get("x", **wrong),
        "media": raw.get("x", alt="media", **wrong),
        "patch": session.patch(raw.url("x"), params=wrong, json={}),
        "update": session.put(raw.url("x"), params={"ifMetagenerationNotMatch": 1}, json={}),
        "delete": session.delete(raw.url("x"), params=wrong),
        "compose": session.post(f"{base}/o/x/compose", params=wrong, json=compose),
        "compose, source": session.post(
            f"{base}/o/z/compose",
            json={"sourceObjects": [{"name": "x", "objectPreconditions": wrong}]},
        ),
        "rewrite": session.post(f"{base}/o/x/rewriteTo/b/{raw.name}/o/x", params=wrong, json={}),
        "rewrite, source": session.post(
            f"{base}/o/x/rewriteTo/b/{raw.name}/o/z", params={"ifSourceGenerationMatch": old["generation"]}, json={}
        ),
        "copy": session.post(f"{base}/o/x/copyTo/b/{raw.name}/o/x", params={"ifGenerationMatch": 0}, json={}),
        "bucket": session.patch(base, params={"ifMetagenerationMatch": 9}, json={}),
    }
    for what, answer in failing.items():
        assert answer.status_code == 412, what
        assert reason(answer) == "conditionNotMet", what
    assert raw.get("x").json() == new
    assert raw.names() == ["x"]
    assert raw.get("x", ifGenerationNotMatch=new["generation"]).status_code == 304
    assert raw.get("x", generation=old["generation"]).status_code == 404
    assert raw.get("x", generation=new["generation"], alt="media").content == b"2"
    kept = session.patch(raw.url("x"), params={"ifMetagenerationMatch": 1}, json={"metadata": {"k": "v"}})
    assert kept.json()["metageneration"] == "2" and kept.json()["etag"] != new["etag"]


def test_of_many_writers_with_a_precondition_one_wins(raw):
    from concurrent.futures import ThreadPoolExecutor

    def write(number):
        session = raw.server.session()
        return Bucket(raw.server, session, raw.name).put("lock", str(number).encode(), ifGenerationMatch=0).status_code

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
    body = {"contentType": "text/x-log", "metadata": {"state": "RUNNING", "who": "Zoë\n"}, "contentLanguage": "de"}
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


def test_wrong_hashes_store_nothing(raw, http_session):
    url = f"{raw.uploads}?uploadType=media&name=x"
    for header in (f"crc32c={crc32c(b'other')}", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="):
        answer = http_session.post(url, data=b"content", headers={"X-Goog-Hash": header})
        assert (answer.status_code, reason(answer)) == (400, "invalid")
    good = http_session.post(url + "2", data=b"content", headers={"X-Goog-Hash": f"crc32c={crc32c(b'content')}"})
    assert good.status_code == 200
    session = http_session.post(f"{raw.uploads}?uploadType=resumable", json={"name": "y", "crc32c": crc32c(b"other")})
    answer = http_session.put(session.headers["Location"], data=b"content")
    assert answer.status_code == 400
    assert raw.names() == ["x2"]
    assert list((raw.server.folder / "storage/uploads").iterdir()) == []


@pytest.mark.parametrize("quote_char", ["", '"', "'"])
@pytest.mark.parametrize("newline", [b"\r\n", b"\n"])
def test_multipart_uploads(raw, http_session, newline, quote_char):
    """With all the boundaries and newlines that clients send, and content that looks like a boundary."""
    content = b"\r\n--==sep=\r\n--==sep" + os.urandom(300 * KB) + b"\r\n"
    lines = [
        b"--==sep==",
        b"Content-Type: application/json",
        b"",
        json.dumps({"name": "x", "metadata": {"a": "b"}}).encode(),
        b"--==sep==",
        b"content-type: image/png",
        b"",
        content,
        b"--==sep==--",
        b"",
    ]
    headers = {"Content-Type": f"multipart/related; boundary={quote_char}==sep=={quote_char}"}
    url = f"{raw.uploads}?uploadType=multipart"
    answer = http_session.post(url, data=newline.join(lines), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["contentType"] == "image/png" and answer.json()["metadata"] == {"a": "b"}
    assert raw.read("x").content == content
    cut = http_session.post(url, data=newline.join(lines[:-2]), headers=headers)
    assert (cut.status_code, reason(cut)) == (400, "badContent")
    lines[3] = b'{"name": "y", "contnetType": "z"}'
    assert "contnetType" in http_session.post(url, data=newline.join(lines), headers=headers).text
    assert raw.names() == ["x"]


def test_compose_limits(raw, http_session):
    def compose(sources, **extra):
        body = {"sourceObjects": [{"name": name} for name in sources], **extra}
        return http_session.post(f"{raw.base}/o/sum/compose", json=body)

    raw.put("a", b"a")
    raw.put("b", b"b")
    assert compose(["a"] * 33).status_code == 400
    assert compose([]).status_code == 400
    assert compose(["a", "nothing"]).status_code == 404
    once = compose(["a", "b"] * 16, destination={"contentType": "text/plain"}).json()
    assert (once["componentCount"], once["size"], once["contentType"]) == (32, "32", "text/plain")
    assert "md5Hash" not in once
    twice = compose(["sum", "b"]).json()  # the destination may be a source: a log that grows
    assert twice["componentCount"] == 33
    assert raw.read("sum").content == b"ab" * 16 + b"b"
    assert twice["crc32c"] == crc32c(b"ab" * 16 + b"b")


# --- resumable uploads


def test_resumable_protocol(raw):
    data = os.urandom(2 * QUANTUM + 100)
    total = len(data)
    url = raw.start("x")
    assert raw.chunk(url, b"", "bytes */*").status_code == 308
    assert "Range" not in raw.chunk(url, b"", f"bytes */{total}").headers
    first = raw.chunk(url, data[:QUANTUM], f"bytes 0-{QUANTUM - 1}/*")
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    assert raw.get("x").status_code == 404
    small = raw.chunk(url, data[QUANTUM : QUANTUM + 5], f"bytes {QUANTUM}-{QUANTUM + 4}/{total}")
    assert small.status_code == 400 and "262144" in small.text
    gap = raw.chunk(url, data[-100:], f"bytes {total - 100}-{total - 1}/{total}")
    assert gap.status_code == 400 and "exceeds already uploaded size" in gap.text
    odd = raw.chunk(url, data[QUANTUM : 2 * QUANTUM + 9], f"bytes {QUANTUM}-{2 * QUANTUM + 8}/{total}")
    assert odd.headers["Range"] == f"bytes=0-{2 * QUANTUM - 1}"  # whole multiples are kept
    for broken in ("bytes 5-1/9", "bytes 0-9/9", "bytes x-y/z", "0-5/6"):
        assert raw.chunk(url, b"", broken).status_code == 400
    # From an offset that is there already: the overlap is ignored.
    last = raw.chunk(url, data[QUANTUM:], f"bytes {QUANTUM}-{total - 1}/{total}")
    assert last.status_code == 200 and last.json()["crc32c"] == crc32c(data)
    assert raw.read("x").content == data
    # The answer may have been lost: asking again gives it again.
    assert raw.chunk(url, b"", f"bytes */{total}").json() == last.json()


def test_resumable_of_unknown_length_and_cancel(raw, http_session):
    url = raw.start("stream")
    raw.chunk(url, b"x" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
    done = raw.chunk(url, b"", f"bytes */{QUANTUM}")
    assert done.status_code == 200 and done.json()["size"] == str(QUANTUM)
    url = raw.start("cancelled")
    raw.chunk(url, b"x" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
    assert http_session.delete(url).status_code == 499
    assert raw.chunk(url, b"", "bytes */*").status_code == 404
    assert raw.names() == ["stream"]
    # The session's URI is a credential itself.
    assert requests.put(raw.start("open"), data=b"abc").status_code == 200


def test_resumable_preconditions_hold_at_the_end_too(raw):
    url = raw.start("x", ifGenerationMatch=0)
    raw.put("x", b"somebody else")
    answer = raw.session.put(url, data=b"mine")
    assert (answer.status_code, reason(answer)) == (412, "conditionNotMet")
    assert raw.read("x").content == b"somebody else"


def send_half(server, path, headers, data, declared):
    """Begin a request of `declared` bytes, send `data` and leave the connection open."""
    sock = socket.create_connection(("127.0.0.1", server.port))
    verb = "PUT" if "upload_id" in path else "POST"
    lines = [f"{verb} {path} HTTP/1.1", "Host: x", f"Content-Length: {declared}", *headers]
    sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return sock


def eventually(condition):
    for _ in range(100):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_an_upload_that_breaks_off_leaves_nothing(raw):
    uploads = raw.server.folder / "storage/uploads"
    path = f"/upload/storage/v1/b/{raw.name}/o?uploadType=media&name=x"
    sock = send_half(raw.server, path, [f"Authorization: Bearer {raw.server.token()}"], b"x" * 3 * MB, 4 * MB)
    assert eventually(lambda: list(uploads.iterdir()))
    sock.close()
    assert eventually(lambda: not list(uploads.iterdir()))
    assert raw.names() == []


def test_a_stalled_chunk_gives_way_to_its_successor(raw):
    """A client whose network broke comes back on a new connection while the old one still hangs."""
    data = os.urandom(8 * QUANTUM)
    url = raw.start("x")
    path = url.removeprefix(raw.server.url)
    span = f"Content-Range: bytes 0-{len(data) - 1}/{len(data)}"
    sock = send_half(raw.server, path, [span], data[: 5 * QUANTUM + 77], len(data))
    assert eventually(lambda: list((raw.server.folder / "storage/uploads").iterdir()))
    status = raw.chunk(url, b"", "bytes */*")
    assert status.status_code == 308
    kept = int(status.headers["Range"].removeprefix("bytes=0-")) + 1
    assert kept % QUANTUM == 0 and kept >= 4 * QUANTUM
    done = raw.chunk(url, data[kept:], f"bytes {kept}-{len(data) - 1}/{len(data)}")
    assert done.json()["crc32c"] == crc32c(data)
    sock.close()


def test_kill_in_mid_upload(tmp_path):
    """After kill -9 there is the old object or none, finished objects are whole, sessions go on."""
    server = Server(tmp_path / "cloud").start()
    session = server.session()
    session.post(f"{server.url}/storage/v1/b", params={"project": PROJECT}, json={"name": "kept"})
    raw = Bucket(server, session, "kept")
    raw.put("done", b"old" * MB)
    data = os.urandom(16 * QUANTUM + 5)
    url = raw.start("resumed", ifGenerationMatch=0)
    raw.chunk(url, data[: 4 * QUANTUM], f"bytes 0-{4 * QUANTUM - 1}/{len(data)}")
    token = f"Authorization: Bearer {server.token()}"
    media = "/upload/storage/v1/b/kept/o?uploadType=media&name="
    socks = [send_half(server, media + name, [token], b"x" * 3 * MB, 4 * MB) for name in ("done", "half")]
    span = f"Content-Range: bytes {4 * QUANTUM}-{len(data) - 1}/{len(data)}"
    rest = data[4 * QUANTUM : 14 * QUANTUM + 9]
    socks.append(send_half(server, url.removeprefix(server.url), [span], rest, len(data) - 4 * QUANTUM))
    uploads = server.folder / "storage/uploads"
    assert eventually(lambda: sum(path.stat().st_size for path in uploads.iterdir()) > 6 * MB)
    server.kill()
    server.start()
    try:
        assert raw.names() == ["done"]  # tokens survive a restart, too
        assert raw.read("done").content == b"old" * MB
        assert [path.name for path in uploads.iterdir()] == [url.partition("upload_id=")[2]]
        status = raw.chunk(url, b"", f"bytes */{len(data)}")
        kept = int(status.headers["Range"].removeprefix("bytes=0-")) + 1
        assert kept % QUANTUM == 0 and kept >= 4 * QUANTUM
        done = raw.chunk(url, data[kept:], f"bytes {kept}-{len(data) - 1}/{len(data)}")
        assert done.json()["crc32c"] == crc32c(data)
        assert raw.read("resumed").content == data
    finally:
        server.kill()
        for sock in socks:
            sock.close()


class Zeros:
    """A file of `size` zero bytes that takes no memory."""

    def __init__(self, size):
        self.left, self.block = size, bytes(MB)

    def __len__(self):
        return self.left

    def read(self, size=-1):
        size = min(self.left, MB if size < 0 else size, MB)
        self.left -= size
        return self.block[:size]


def test_a_gigabyte_costs_no_memory(tmp_path):
    server = Server(tmp_path / "cloud").start()
    try:
        session = server.session()
        session.post(f"{server.url}/storage/v1/b", params={"project": PROJECT}, json={"name": "big"})
        raw = Bucket(server, session, "big")
        raw.put("warm", b"x")
        idle = server.memory("VmRSS")
        size = 1 << 30
        assert raw.put("media", Zeros(size)).json()["size"] == str(size)
        assert session.put(raw.start("resumable"), data=Zeros(size)).json()["size"] == str(size)
        with session.get(raw.url("media"), params={"alt": "media"}, stream=True) as answer:
            received = sum(len(block) for block in answer.iter_content(MB))
        assert received == size
        assert server.memory("VmHWM") - idle < 100
    finally:
        server.kill()
        shutil.rmtree(server.folder)


# --- the HTTP core


def test_tokens(server, raw):
    url = f"{server.url}/storage/v1/b/{raw.name}"
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": f"Bearer {server.token(-1)}"}):
        answer = requests.get(url, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
        assert requests.get(f"{server.url}/_berg/requests", headers=headers).status_code == 401
    path = server.folder / "tokens.json"
    assert path.stat().st_mode & 0o777 == 0o600


def test_credentials_file_refreshes_and_can_be_revoked(tmp_path, monkeypatch):
    """google-auth loads the file, refreshes through it, and asks nobody else for anything."""
    asked = []
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest: asked.append(host) or resolve(host, *rest))
    server = Server(tmp_path / "cloud").start()
    try:
        session = server.authorized()
        buckets = f"{server.url}/storage/v1/b?project={PROJECT}"
        assert session.get(buckets).status_code == 200
        before = session.credentials.token
        assert session.post(f"{server.url}/_berg/tokens/expire", json={}).status_code == 200
        assert requests.get(buckets, headers={"Authorization": f"Bearer {before}"}).status_code == 401
        assert session.get(buckets).status_code == 200  # google-auth refreshed on the 401
        assert session.credentials.token != before
        assert (server.folder / "credentials.json").stat().st_mode & 0o777 == 0o600
        session.post(f"{server.url}/_berg/tokens/expire", json={"revoke": True})
        with pytest.raises(google.auth.exceptions.OAuthError, match="invalid_grant"):
            session.get(buckets)
        wrong = requests.post(f"{server.url}/token", auth=("berg-local", "x"), data={"grant_type": "refresh_token"})
        assert (wrong.status_code, wrong.json()["error"]) == (401, "invalid_client")
        time.sleep(0.2)  # a look-up of google-auth's would come from a thread
        assert set(asked) == {"127.0.0.1"}
    finally:
        server.kill()


def test_unknown_routes_parameters_and_fields(raw, http_session):
    base = raw.server.url
    missing = http_session.get(f"{base}/storage/v1/buckets")
    assert (missing.status_code, reason(missing)) == (404, "notFound")
    assert http_session.get(f"{base}/elsewhere").status_code == 404
    absent = http_session.get(f"{raw.base}/notificationConfigs")
    assert (absent.status_code, reason(absent)) == (501, "notImplemented")
    assert "notifications.list" in absent.text
    assert http_session.get(f"{raw.base}/o?prefx=a").status_code == 400
    assert http_session.get(f"{raw.base}/o?fields=items(").status_code == 400
    unknown = http_session.patch(raw.base, json={"lables": {}})
    assert unknown.status_code == 400 and "lables" in unknown.text
    assert http_session.patch(raw.base, data=b"{").status_code == 400
    packed = __import__("gzip").compress(b'{"labels": {"a": "b"}}')
    assert http_session.patch(raw.base, data=packed, headers={"Content-Encoding": "gzip"}).status_code == 200
    assert http_session.get(raw.base).json()["labels"] == {"a": "b"}
    raw.put("x")
    for refused in ({"temporaryHold": True}, {"kmsKeyName": "k"}):
        assert http_session.patch(raw.url("x"), json=refused).status_code == 501
    assert http_session.patch(raw.url("x"), json={"storageClass": "COLDISH"}).status_code == 400


def test_odd_but_legal_metadata_survives(raw, http_session):
    raw.put("x", b"abc")
    odd = {"metadata": {"k": "\ud800 ü", "gone": None}, "contentType": "text/plain\r\nX-Evil: 1", "storageClass": None}
    answer = http_session.patch(raw.url("x"), json=odd)
    assert answer.status_code == 200
    assert answer.json()["metadata"] == {"k": "\ud800 ü"} and answer.json()["storageClass"] == "STANDARD"
    read = raw.read("x")
    assert read.content == b"abc" and "X-Evil" not in read.headers
    replaced = http_session.put(raw.url("x"), json={"metadata": {"a": "b", "gone": None}}).json()
    assert replaced["metadata"] == {"a": "b"} and "contentType" not in replaced
    assert replaced["metageneration"] == "3"


def test_batch(raw, http_session):
    for name in ("a/1", "b"):
        raw.put(name)
    parts = [("DELETE", "/o/a%2F1", ""), ("DELETE", "/o/none", ""), ("PATCH", "/o/b", '{"metadata": {"k": "v"}}')]
    lines = []
    for number, (verb, path, body) in enumerate(parts):
        target = f"/storage/v1/b/{raw.name}{path}"
        lines += ["--xyz", "Content-Type: application/http", f"Content-ID: <id+{number}>", ""]
        lines += [f"{verb} {target} HTTP/1.1", "Content-Type: application/json", "", body]
    content = "\r\n".join([*lines, "--xyz--", ""])
    headers = {"Content-Type": "multipart/mixed; boundary=xyz"}
    answer = http_session.post(f"{raw.server.url}/batch/storage/v1", data=content, headers=headers)
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("multipart/mixed")
    statuses = [line.split()[1] for line in answer.text.splitlines() if line.startswith("HTTP/1.1")]
    assert statuses == ["204", "404", "200"]
    assert "Content-ID: <response-id+2>" in answer.text
    assert raw.names() == ["b"] and raw.get("b").json()["metadata"] == {"k": "v"}
    many = content.replace("--xyz--", "\r\n".join(["\r\n".join(lines)] * 40) + "\r\n--xyz--")
    assert http_session.post(f"{raw.server.url}/batch/storage/v1", data=many, headers=headers).status_code == 400
    anonymous = requests.post(f"{raw.server.url}/batch/storage/v1", data=content, headers=headers)
    assert anonymous.text.count("HTTP/1.1 401") == 3


def test_faults(raw, http_session):
    faults = f"{raw.server.url}/_berg/faults"

    def add(**spec):
        answer = http_session.post(faults, json=spec)
        assert answer.status_code == 200, answer.text

    raw.put("x", b"x")
    add(method="storage.objects.*", status=503, times=2, skip=1, match="/o/x")
    statuses = [raw.get(name).status_code for name in ("x", "other", "x", "x", "x")]
    assert statuses == [200, 404, 503, 503, 200]
    (listed,) = http_session.get(faults).json()["faults"]
    assert (listed["seen"], listed["hits"]) == (3, 2)
    http_session.delete(faults)
    add(method="storage.objects.get", status=429, times=None, probability=0.5, seed=7)
    statuses = [raw.get("x").status_code for _ in range(40)]
    assert 10 < statuses.count(429) < 30
    http_session.delete(faults)
    add(method="storage.objects.get", delay=0.3)
    start = time.monotonic()
    assert raw.get("x").status_code == 200 and time.monotonic() - start > 0.3
    add(method="storage.objects.insert", reset=True)
    with pytest.raises(requests.ConnectionError):
        raw.put("reset", b"x")
    assert raw.get("reset").status_code == 404
    add(method="storage.objects.insert", reset=True, after_handler=True)
    with pytest.raises(requests.ConnectionError):
        raw.put("lost", b"x")
    assert raw.get("lost").status_code == 200
    for wrong in ({"method": "x"}, {"method": "x", "status": 500, "tims": 3}, {"status": 500}, []):
        assert http_session.post(faults, json=wrong).status_code == 400


def test_python_client_rides_out_faults(raw, client):
    """A resumable upload survives; of a conditional upload in one request a lost answer means 412."""
    faults = f"{raw.server.url}/_berg/faults"
    raw.session.post(faults, json={"method": "storage.objects.insert", "status": 503})  # the session's start
    for fault in ({"reset": True}, {"reset": True, "after_handler": True}):
        raw.session.post(faults, json={"method": "storage.objects.insert", "match": "upload_id", **fault})
    data = os.urandom(9 * MB)
    blob = client.bucket(raw.name).blob("x", chunk_size=4 * MB)
    blob.upload_from_string(data, if_generation_match=0)
    assert [fault["hits"] for fault in raw.session.get(faults).json()["faults"]] == [1, 1, 1]
    assert blob.download_as_bytes(checksum="crc32c") == data


def test_request_log(raw, http_session):
    log = f"{raw.server.url}/_berg/requests"
    http_session.delete(log)
    raw.put("x", b"12345")
    raw.get("x")
    raw.get("x")
    answer = http_session.get(log).json()
    assert answer["counts"] == {"storage.objects.insert": 1, "storage.objects.get": 2}
    assert answer["bytes"]["storage.objects.insert"] == 5
    first = answer["requests"][0]
    assert (first["method"], first["status"], first["bytes"]) == ("storage.objects.insert", 200, 5)


# --- gcloud storage


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs the Google Cloud CLI")
def test_gcloud_storage(server, tmp_path):
    (tmp_path / "token").write_text(server.token())
    environment = {
        **os.environ,
        "CLOUDSDK_CONFIG": str(tmp_path / "sdk"),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{server.url}/storage/v1/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
    }

    def gcloud(*args):
        command = ["gcloud", "storage", *args]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "sub").mkdir(parents=True)
    copy.mkdir()
    (source / "big.bin").write_bytes(os.urandom(9 * MB))  # resumable from 8 MiB on
    (source / "sub/grüße.txt").write_text("hello")
    (source / "empty").touch()
    gs = f"gs://{next(names)}"
    gcloud("buckets", "create", gs, "--location=us-central1", "--uniform-bucket-level-access")
    assert gs.removeprefix("gs://") in gcloud("buckets", "list", "--format=value(name)").split()
    gcloud("rsync", "-r", str(source), f"{gs}/up")
    listed = gcloud("ls", f"{gs}/up/**").split()
    assert listed == [f"{gs}/up/big.bin", f"{gs}/up/empty", f"{gs}/up/sub/grüße.txt"]
    assert gcloud("cat", f"{gs}/up/sub/grüße.txt") == "hello"
    gcloud("cp", "-r", f"{gs}/up/*", str(copy))
    files = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
    assert len(files) == 3
    for file in files:
        assert (copy / file).read_bytes() == (source / file).read_bytes()
    session = server.session()
    session.delete(f"{server.url}/_berg/requests")
    (source / "empty").unlink()
    gcloud("rsync", "-r", "--delete-unmatched-destination-objects", str(source), f"{gs}/up")
    counts = session.get(f"{server.url}/_berg/requests").json()["counts"]
    assert "storage.objects.insert" not in counts and counts["storage.objects.delete"] == 1
    gcloud("rm", "-r", gs)
    assert session.get(f"{server.url}/storage/v1/b/{gs.removeprefix('gs://')}").status_code == 404
