# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""Uploads to the embedded Cloud Storage, the ones that break off above all: nothing half, nothing
lost.
"""

import json
import os
import socket

import pytest
import requests
from local_cloud import (  # noqa: F401
    KB,
    MB,
    PROJECT,
    QUANTUM,
    Bucket,
    Server,
    bucket,
    client,
    crc32c,
    http_session,
    raw,
    reason,
    server,
)
from local_machines import until


def test_wrong_hashes_store_nothing(raw, http_session):
    url = f"{raw.uploads}?uploadType=media&name=x"
    for header in (f"crc32c={crc32c(b'other')}", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="):
        answer = http_session.post(url, data=b"content", headers={"X-Goog-Hash": header})
        assert (answer.status_code, reason(answer)) == (400, "invalid")
    good = http_session.post(
        url + "2", data=b"content", headers={"X-Goog-Hash": f"crc32c={crc32c(b'content')}"}
    )
    assert good.status_code == 200
    session = http_session.post(
        f"{raw.uploads}?uploadType=resumable", json={"name": "y", "crc32c": crc32c(b"other")}
    )
    answer = http_session.put(session.headers["Location"], data=b"content")
    assert answer.status_code == 400
    assert raw.names() == ["x2"]
    assert list((raw.server.folder / "storage/uploads").iterdir()) == []


@pytest.mark.parametrize("quote_char", ["", '"', "'"])
@pytest.mark.parametrize("newline", [b"\r\n", b"\n"])
def test_multipart_uploads(raw, http_session, newline, quote_char):
    """With all the boundaries and newlines that clients send, and content that looks like a
    boundary.
    """
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


# --- resumable uploads


def test_resumable_protocol(raw):
    data = os.urandom(2 * QUANTUM + 100)
    total = len(data)
    url = raw.start("x")
    assert raw.chunk(url, b"", "bytes */*").status_code == 308
    assert "Range" not in raw.chunk(url, b"", f"bytes */{total}").headers
    first = raw.chunk(url, data[:QUANTUM], f"bytes 0-{QUANTUM - 1}/*")
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    asked = {"Content-Range": "bytes */*", "X-GUploader-No-308": "yes"}  # by Google's clients in Go
    told = raw.session.put(url, headers=asked)
    assert (told.status_code, told.headers["X-Http-Status-Code-Override"]) == (200, "308")
    assert told.headers["Range"] == first.headers["Range"]
    assert raw.get("x").status_code == 404
    small = raw.chunk(url, data[QUANTUM : QUANTUM + 5], f"bytes {QUANTUM}-{QUANTUM + 4}/{total}")
    assert small.status_code == 400 and "262144" in small.text
    gap = raw.chunk(url, data[-100:], f"bytes {total - 100}-{total - 1}/{total}")
    assert gap.status_code == 400 and "exceeds already uploaded size" in gap.text
    odd = raw.chunk(
        url, data[QUANTUM : 2 * QUANTUM + 9], f"bytes {QUANTUM}-{2 * QUANTUM + 8}/{total}"
    )
    assert odd.headers["Range"] == f"bytes=0-{2 * QUANTUM - 1}"  # whole multiples are kept
    for broken in ("bytes 5-1/9", "bytes 0-9/9", "bytes x-y/z", "0-5/6"):
        assert raw.chunk(url, b"", broken).status_code == 400
    # From an offset that is there already: the overlap is ignored.
    last = raw.chunk(url, data[QUANTUM:], f"bytes {QUANTUM}-{total - 1}/{total}")
    assert last.status_code == 200 and last.json()["crc32c"] == crc32c(data)
    assert raw.read("x").content == data
    # The answer may have been lost: asking again gives it again.
    assert raw.chunk(url, b"", f"bytes */{total}").json() == last.json()


def test_resumable_of_unknown_length(raw):
    url = raw.start("stream")
    raw.chunk(url, b"x" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
    done = raw.chunk(url, b"", f"bytes */{QUANTUM}")
    assert done.status_code == 200 and done.json()["size"] == str(QUANTUM)
    # The session's URI is a credential itself.
    assert requests.put(raw.start("open"), data=b"abc").status_code == 200
    assert requests.get(raw.url("open")).status_code == 401


def test_resumable_preconditions_hold_at_the_end_too(raw):
    url = raw.start("x", ifGenerationMatch=0)
    raw.put("x", b"somebody else")
    answer = raw.session.put(url, data=b"mine")
    assert (answer.status_code, reason(answer)) == (412, "conditionNotMet")
    assert raw.read("x").content == b"somebody else"


def send_half(server, path, headers, data, declared):
    """Begin a request of `declared` bytes, send `data` and leave the connection open."""
    sock = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    verb = "PUT" if "upload_id" in path else "POST"
    lines = [f"{verb} {path} HTTP/1.1", "Host: x", f"Content-Length: {declared}", *headers]
    sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return sock


def test_an_upload_that_breaks_off_leaves_nothing(raw):
    uploads = raw.server.folder / "storage/uploads"
    path = f"/upload/storage/v1/b/{raw.name}/o?uploadType=media&name=x"
    sock = send_half(
        raw.server, path, [f"Authorization: Bearer {raw.server.token}"], b"x" * 3 * MB, 4 * MB
    )
    until(lambda: list(uploads.iterdir()), "the beginning of an upload")
    sock.close()
    until(lambda: not list(uploads.iterdir()), "its end")
    assert raw.names() == []


def test_a_stalled_chunk_gives_way_to_its_successor(raw):
    """A client whose network broke comes back on a new connection while the old one still hangs."""
    data = os.urandom(8 * QUANTUM)
    url = raw.start("x")
    path = url.removeprefix(raw.server.url)
    span = f"Content-Range: bytes 0-{len(data) - 1}/{len(data)}"
    sock = send_half(raw.server, path, [span], data[: 5 * QUANTUM + 77], len(data))
    uploads = raw.server.folder / "storage/uploads"
    until(lambda: list(uploads.iterdir()), "the beginning of an upload")
    status = raw.chunk(url, b"", "bytes */*")
    assert status.status_code == 308
    kept = int(status.headers["Range"].removeprefix("bytes=0-")) + 1
    assert kept % QUANTUM == 0 and kept >= 4 * QUANTUM
    done = raw.chunk(url, data[kept:], f"bytes {kept}-{len(data) - 1}/{len(data)}")
    assert done.json()["crc32c"] == crc32c(data)
    sock.close()


def test_kill_in_mid_upload(tmp_path):
    """After kill -9 there is the old object or none, finished objects are whole, sessions are gone."""
    server = Server(tmp_path / "cloud", PROJECT, write_interval=0)
    server.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": "kept"})
    raw = Bucket(server, server.session, "kept")
    raw.put("done", b"old" * MB)
    url = raw.start("resumed", ifGenerationMatch=0)
    raw.chunk(url, b"x" * 4 * QUANTUM, f"bytes 0-{4 * QUANTUM - 1}/{5 * QUANTUM}")
    token = f"Authorization: Bearer {server.token}"
    media = "/upload/storage/v1/b/kept/o?uploadType=media&name="
    socks = [
        send_half(server, media + name, [token], b"x" * 3 * MB, 4 * MB) for name in ("done", "half")
    ]
    uploads = server.folder / "storage/uploads"
    until(lambda: sum(path.stat().st_size for path in uploads.iterdir()) > 4 * MB, "both halves")
    server.kill()
    server.start()
    try:
        assert raw.names() == ["done"]  # tokens survive a restart, too
        assert raw.read("done").content == b"old" * MB
        assert not list(uploads.iterdir())
        assert raw.chunk(url, b"", f"bytes */{5 * QUANTUM}").status_code == 404
    finally:
        server.kill()
        for sock in socks:
            sock.close()
