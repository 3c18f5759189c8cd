"""The bucket client where the network fails it."""

import gzip
import io
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3
from conftest import library

from berg.google import api, storage


def test_a_write_whose_answer_was_lost_counts_once(bucket, cloud):
    cloud.fault("storage.objects.insert", reset=True, after_handler=True)
    generation = bucket.write("state", b"1", generation=0, metadata={"a": "b"})
    assert bucket.get("state").generation == generation
    cloud.fault("storage.objects.insert", reset=True, after_handler=True)
    assert bucket.write("state", b"2", generation=generation) != generation
    assert bucket.read("state") == b"2"


def test_a_write_over_somebody_elses_is_refused(bucket):
    generation = bucket.write("state", b"1", generation=0)
    with pytest.raises(storage.Changed, match="gs://.*/state was changed"):
        bucket.write("state", b"2", generation=0)
    bucket.write("state", b"theirs", generation=generation)
    with pytest.raises(storage.Changed):
        bucket.write("state", b"ours", generation=generation)
    assert bucket.read("state") == b"theirs"


def test_trouble_that_passes_is_retried_and_a_refusal_is_not(bucket, cloud):
    bucket.write("x", b"12345")
    for status in (408, 429, 500, 503):
        cloud.fault("storage.objects.get", status=status)
    assert bucket.read("x") == b"12345"
    cloud.call("DELETE", "/_berg/requests")
    cloud.fault("storage.objects.get", status=403, times=None)
    with pytest.raises(Exception, match="403"):
        bucket.read("x")
    assert cloud.call("GET", "/_berg/requests")["counts"] == {"storage.objects.get": 1}
    cloud.call("DELETE", "/_berg/faults")


def test_ranges_and_missing_objects(bucket):
    bucket.write("x", b"0123456789")
    assert bucket.read_from("x", 4, 99) == b"456789"
    assert bucket.read_from("x", 4, 6) == b"45"
    assert bucket.read_from("x", 10, 99) == b""
    bucket.write("empty", b"")
    assert bucket.read("empty") == b""
    assert bucket.read("missing") is None
    assert bucket.get("missing") is None
    bucket.delete("missing", "x")
    assert [blob.name for blob in bucket.list("")] == ["empty"]


def test_a_token_that_was_revoked_is_renewed_once(bucket, cloud):
    bucket.write("x", b"data")
    assert bucket.read("x") == b"data"
    cloud.call("POST", "/_berg/tokens/expire", {"revoke": False})
    assert bucket.read("x") == b"data" and bucket.get("x").size == 4
    assert bucket.upload_stream("y", io.BytesIO(b"more"), 4, generation=0).generation


def test_a_file_that_shrinks_while_it_is_sent_is_not_sent(bucket):
    with pytest.raises(ValueError, match="were to be read"):
        bucket.upload_stream("x", io.BytesIO(b"dat"), 4)
    assert bucket.get("x") is None


def test_content_that_breaks_off_is_asked_for_again(bucket, cloud):
    bucket.write("x", b"data")
    cloud.fault("storage.objects.get", match="alt=media", reset=True, times=2)
    assert bucket.read("x") == b"data"


def test_content_is_read_as_it_is_stored_whatever_its_encoding(bucket, tmp_path):
    """Google would decompress it for a client that does not accept gzip."""
    packed = gzip.compress(bytes(10_000_000))
    for encoding in ("gzip", "GZIP", "br", "gzip, gzip"):
        blob = library(bucket.config).blob(encoding)
        blob.content_encoding = encoding
        blob.upload_from_string(packed)
        assert bucket.read(encoding) == packed
        assert bucket.read_from(encoding, 4, 10) == packed[4:10]
        bucket.download(encoding, tmp_path / "here")
        assert (tmp_path / "here").read_bytes() == packed


def test_a_record_that_is_too_long_is_read_no_further(bucket):
    bucket.write("x", b"0123456789")
    assert bucket.read("x", 4) == b"01234" and bucket.read("x", 10) == b"0123456789"


@pytest.mark.timeout(60)
def test_answers_that_are_not_read_to_their_end_use_up_no_connections(bucket, monkeypatch):
    """A program that lives long, such as `berg page`, would wait for one for ever."""
    bucket.write("x", bytes(9 << 20))
    monkeypatch.setattr(api, "CONNECTIONS", 2)
    monkeypatch.setattr(api, "routes", {})
    for _ in range(3):
        assert len(bucket.read("x", 4)) == 5


def test_what_google_compresses_on_its_way_is_decompressed_up_to_the_size_that_it_has():
    """An answer as urllib3 has it: the embedded cloud compresses nothing on its way."""
    body = gzip.compress(b"words" * 1000)
    headers = {"Content-Encoding": "gzip", "X-Goog-Stored-Content-Encoding": "identity"}

    def answer() -> urllib3.HTTPResponse:
        return urllib3.HTTPResponse(
            io.BytesIO(body), headers, status=200, preload_content=False, decode_content=False
        )

    assert b"".join(storage.stored_blocks(answer(), 5000)) == b"words" * 1000
    assert b"".join(storage.stored_blocks(answer(), 7)) == b"wordswo"


def test_an_answer_may_take_longer_than_a_connection(bucket, cloud):
    """The one is a stalled network after seconds, the other a busy service."""
    bucket.timeout = (1, 30)
    cloud.fault("storage.objects.insert", delay=2)
    cloud.call("DELETE", "/_berg/requests")
    bucket.write("slow", b"x")
    assert cloud.call("GET", "/_berg/requests")["counts"]["storage.objects.insert"] == 1
    assert bucket.read("slow") == b"x"


def test_servers_are_reached_through_a_proxy(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("https_proxy", f"http://ann:word@127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(api, "routes", {})
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(api.exchange, "GET", "https://storage.googleapis.com/x", (9, 9), {})
            proxy, _ = listener.accept()
            with proxy:
                first = proxy.recv(9999).decode()
                proxy.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            with pytest.raises(api.NoAnswer, match="502"):
                asked.result()
    assert first.startswith("CONNECT storage.googleapis.com:443 HTTP/1.")
    assert "Proxy-Authorization: Basic" in first


@pytest.mark.parametrize("fault", [{"status": 503}, {"reset": True}])
@pytest.mark.parametrize("skip", [0, 1, 2, 3])
def test_a_large_upload_continues_where_it_broke_off(bucket, cloud, monkeypatch, fault, skip):
    """Requests: the session, three pieces of content, and a question after each fault."""
    monkeypatch.setattr(storage, "SMALL", 0)
    monkeypatch.setattr(storage, "CHUNK", 1 << 20)
    data, heard = os.urandom((5 << 19) + 7), []
    after = fault if skip == 0 else {**fault, "after_handler": True}
    cloud.fault("storage.objects.insert", skip=skip, **after)
    about = {"berg-writer": "me"}
    made = bucket.upload_stream("large", io.BytesIO(data), len(data), 0, heard.append, about)
    assert heard == [1 << 20, 2 << 20, len(data)]
    there = bucket.get("large")
    assert there.generation == made.generation and there.metadata == about
    assert there.crc32c == storage.crc32c_of([data]) and bucket.read("large") == data
    with pytest.raises(storage.Changed):
        bucket.upload_stream("large", io.BytesIO(data), len(data), 0)


def test_a_large_upload_whose_content_is_damaged_on_its_way_is_refused(bucket, monkeypatch):
    monkeypatch.setattr(storage, "SMALL", 0)
    monkeypatch.setattr(storage, "encoded", lambda crc: "AAAAAA==")
    with pytest.raises(api.BadRequest):
        bucket.upload_stream("large", io.BytesIO(b"data"), 4)
    assert bucket.get("large") is None
