"""The bucket client where the network fails it."""

import gzip
import io

import pytest
import urllib3

from berg.google import media, storage


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
        blob = bucket.client.bucket(bucket.name).blob(encoding)
        blob.content_encoding = encoding
        blob.upload_from_string(packed)
        assert bucket.read(encoding) == packed
        assert bucket.read_from(encoding, 4, 10) == packed[4:10]
        for listed in (None, bucket.get(encoding)):
            bucket.download(encoding, tmp_path / "here", listed=listed)
            assert (tmp_path / "here").read_bytes() == packed


def test_a_record_that_is_too_long_is_read_no_further(bucket):
    bucket.write("x", b"0123456789")
    assert bucket.read("x", 4) == b"01234" and bucket.read("x", 10) == b"0123456789"


def test_what_google_compresses_on_its_way_is_decompressed_up_to_the_size_that_it_has():
    """An answer as urllib3 has it: the embedded cloud compresses nothing on its way."""
    body = gzip.compress(b"words" * 1000)
    headers = {"Content-Encoding": "gzip", "X-Goog-Stored-Content-Encoding": "identity"}

    def answer() -> urllib3.HTTPResponse:
        return urllib3.HTTPResponse(
            io.BytesIO(body), headers, status=200, preload_content=False, decode_content=False
        )

    assert b"".join(media.stored_blocks(answer(), 5000)) == b"words" * 1000
    assert b"".join(media.stored_blocks(answer(), 7)) == b"wordswo"


def test_an_answer_may_take_longer_than_a_connection(bucket, cloud):
    """The one is a stalled network after seconds, the other a busy service."""
    bucket.timeout = (1, 30)
    cloud.fault("storage.objects.insert", delay=2)
    bucket.media.upload("slow", b"x", None, None)  # which tries once
    assert bucket.read("slow") == b"x"
