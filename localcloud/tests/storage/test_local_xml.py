# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""Objects by their names, as the XML API has them."""

import xml.etree.ElementTree as ElementTree

import pytest
import requests
from local_cloud import bucket, client, http_session, server  # noqa: F401

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


def listed(answer: requests.Response) -> tuple[list[str], list[str], str]:
    """Names, folders and the next page of a list."""
    assert answer.ok, answer.text
    space = {"s3": "http://doc.s3.amazonaws.com/2006-03-01"}
    root = ElementTree.fromstring(answer.content)
    names = [each.text for each in root.findall("s3:Contents/s3:Key", space)]
    folders = [each.text for each in root.findall("s3:CommonPrefixes/s3:Prefix", space)]
    return names, folders, root.findtext("s3:NextContinuationToken", "", space)


def test_an_object_is_written_copied_and_deleted_by_its_name(server, bucket, http_session):
    base = f"{server.url}/{bucket.name}"
    new = {"x-goog-if-generation-match": "0", "Content-Type": "text/plain"}
    new["X-Goog-Meta-Berg-Writer"] = "a/1"
    made = http_session.put(f"{base}/{PATH}", data=CONTENT, headers=new)
    assert (made.status_code, made.content) == (200, b"")
    there = bucket.get_blob(NAME)
    assert (there.content_type, there.size) == ("text/plain", len(CONTENT))
    assert there.metadata == {"berg-writer": "a/1"}
    assert made.headers["x-goog-generation"] == str(there.generation)
    assert made.headers["ETag"].startswith('"') and there.crc32c in made.headers["x-goog-hash"]
    again = http_session.put(f"{base}/{PATH}", data=b"late", headers=new)
    assert code(again) == (412, "PreconditionFailed")
    source = {"x-goog-copy-source": f"{bucket.name}/{PATH}"}
    copied = http_session.put(f"{base}/copy", headers=source)
    assert copied.status_code == 200 and b"<CopyObjectResult" in copied.content
    assert bucket.blob("copy").download_as_bytes() == CONTENT
    assert code(http_session.put(f"{base}/copy", headers={**source, **new}))[0] == 412
    missing = {"x-goog-copy-source": f"{bucket.name}/none"}
    assert code(http_session.put(f"{base}/copy", headers=missing)) == (404, "NoSuchKey")
    assert http_session.delete(f"{base}/{PATH}").status_code == 204
    assert code(http_session.delete(f"{base}/{PATH}")) == (404, "NoSuchKey")
    assert bucket.get_blob(NAME) is None


def test_custom_metadata_of_an_upload_have_a_limit(server, bucket, http_session):
    url, large = f"{server.url}/{bucket.name}/x", {f"x-goog-meta-{key}": "b" * 5000 for key in "ab"}
    assert code(http_session.put(url, data=b"y", headers=large)) == (400, "InvalidArgument")
    assert bucket.get_blob("x") is None


def test_objects_are_listed_by_their_names(server, bucket, http_session):
    names = ["a&b", "d/1", "d/2", "é"]
    for name in names:
        bucket.blob(name).upload_from_string(b"x")
    url = f"{server.url}/{bucket.name}"
    assert listed(http_session.get(url, params={"list-type": "2"})) == (names, [], "")
    folders = http_session.get(url, params={"list-type": "2", "delimiter": "/"})
    assert listed(folders) == (["a&b", "é"], ["d/"], "")
    assert listed(http_session.get(url, params={"prefix": "d/", "start-after": "d/1"}))[0] == [
        "d/2"
    ]
    first, _, token = listed(http_session.get(url, params={"list-type": "2", "max-keys": "3"}))
    assert first == names[:3] and token
    rest = http_session.get(url, params={"list-type": "2", "continuation-token": token})
    assert listed(rest) == (names[3:], [], "")
    assert code(requests.get(url)) == (403, "AccessDenied")


def begun(session, url: str) -> str:
    answer = session.post(f"{url}?uploads", headers={"Content-Type": "text/csv"})
    space = {"s3": "http://doc.s3.amazonaws.com/2006-03-01"}
    return ElementTree.fromstring(answer.content).findtext("s3:UploadId", "", space)


def joined(session, url: str, id: str, tags: list[tuple[int, str]], headers=None):
    rows = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in tags
    )
    body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>"
    return session.post(f"{url}?uploadId={id}", data=body, headers=headers)


def test_an_object_is_written_in_parts(server, bucket, http_session):
    url = f"{server.url}/{bucket.name}/{PATH}"
    pieces = {2: b"last", 1: b"x" * (5 << 20)}
    id = begun(http_session, url)

    def send(number: int, data: bytes) -> str:
        answer = http_session.put(f"{url}?partNumber={number}&uploadId={id}", data=data)
        assert answer.ok, answer.text
        return answer.headers["ETag"]

    send(2, b"another one, which is replaced")
    tags = sorted((number, send(number, data)) for number, data in pieces.items())
    assert bucket.get_blob(NAME) is None
    done = joined(http_session, url, id, tags, {"x-goog-if-generation-match": "0"})
    assert done.status_code == 200 and b"CompleteMultipartUploadResult" in done.content
    there = bucket.get_blob(NAME)
    assert there.download_as_bytes() == pieces[1] + pieces[2]
    assert (there.content_type, there.md5_hash) == ("text/csv", None)
    assert code(joined(http_session, url, id, tags)) == (404, "NoSuchUpload")


def test_parts_that_do_not_fit_are_refused(server, bucket, http_session):
    url = f"{server.url}/{bucket.name}/{PATH}"
    put = lambda id, number: http_session.put(f"{url}?partNumber={number}&uploadId={id}", data=b"x")
    assert code(put("none", 1)) == (404, "NoSuchUpload")
    for order, words in (
        ([1, 2], "EntityTooSmall"),
        ([2, 1], "InvalidPartOrder"),
        ([1, 3], "InvalidPart"),
        ([], "InvalidPartOrder"),
    ):
        id = begun(http_session, url)
        tags = {number: put(id, number).headers["ETag"] for number in (1, 2)}
        named = [(number, tags.get(number, '"none"')) for number in order]
        assert code(joined(http_session, url, id, named)) == (400, words)
    id = begun(http_session, url)
    assert code(put(id, 10_001)) == (400, "InvalidArgument")
    made = http_session.post(f"{url}?uploadId={id}", data=b"<no")
    assert code(made) == (400, "MalformedCompleteMultipartUploadRequest")
    id = begun(http_session, url)
    tags = [(1, put(id, 1).headers["ETag"])]
    assert http_session.delete(f"{url}?uploadId={id}").status_code == 204
    assert code(joined(http_session, url, id, tags)) == (404, "NoSuchUpload")
    assert code(requests.post(f"{url}?uploads")) == (403, "AccessDenied")
    missing = f"{server.url}/no-such-bucket/x?uploads"
    assert code(http_session.post(missing)) == (404, "NoSuchBucket")
    bucket.blob(NAME).upload_from_string(b"there")
    id = begun(http_session, url)
    tags = [(1, put(id, 1).headers["ETag"])]
    late = joined(http_session, url, id, tags, {"x-goog-if-generation-match": "0"})
    assert code(late) == (412, "PreconditionFailed")
    assert bucket.blob(NAME).download_as_bytes() == b"there"


def test_faults_and_the_log_of_requests_know_such_reads(server, url, http_session):
    http_session.delete(f"{server.url}/_berg/requests")
    http_session.post(
        f"{server.url}/_berg/faults", json={"method": "storage.objects.get", "status": 503}
    )
    assert code(http_session.get(url)) == (503, "ServiceUnavailable")
    assert http_session.get(url).content == CONTENT
    log = http_session.get(f"{server.url}/_berg/requests").json()
    assert log["counts"]["storage.objects.get"] == 2 and log["requests"][0]["verb"] == "GET"
