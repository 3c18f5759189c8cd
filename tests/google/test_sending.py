"""How one file of a mirror is sent: whole or by what it grew, over which object, and as whose.

The bucket is in memory, where a name takes more than one write a second; test_mirror.py sends to
the embedded cloud.
"""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from berg import BergError
from berg.google.sending import (
    TAKEN,
    WRITER,
    Entry,
    GivenUp,
    Sender,
    Sending,
    Taken,
    ends_of,
    marks,
)
from berg.google.storage import Changed, crc32c_of, file_crc32c
from tests.memory_bucket import Uploads

MB = 1 << 20
NAME = "berg_results/file"


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def sender(tmp_path, recorded):
    (tmp_path / "results").mkdir()
    return Sender(tmp_path / "results", Uploads(), "berg_results/", "job/5", recorded.append)


def content(sender) -> bytes:
    return sender.bucket.get(NAME).content


def write(sender, data: bytes) -> Path:
    path = sender.folder / "file"
    path.write_bytes(data)
    return path


def send(sender, last: Entry | None = None) -> Sending:
    """Send the file; return what became of it, with the entry it has now."""
    sending = Sending("file", last, False)
    sending.entry = sender.send(sending)
    return sending


def entry_of(path: Path, size: int, last_block: str = "", crc32c: str = "crc") -> Entry:
    _, _, mtime, ctime = marks(path.stat())
    return Entry(1, size, mtime, ctime, 7, crc32c, last_block, True)


# --- what is heard of it meanwhile


def test_progress_is_counted_from_where_the_bytes_begin():
    sending = Sending("file", None, False, moved=0.0)
    sending.begins, sending.through = 100, 3
    sending.on_progress()
    assert sending.through == 3 and time.monotonic() - sending.moved < 60
    for sent, through in ((0, 100), (7, 107)):
        sending.on_progress(sent)
        assert sending.through == through
    sending.given_up, sending.moved = True, 0.0
    with pytest.raises(GivenUp):
        sending.on_progress(8)
    assert (sending.through, sending.moved) == (107, 0.0)


def test_reading_a_file_is_progress(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2 * MB + 1))
    sender = Sender(tmp_path, None, "", "job/5", print)
    heard = []
    sending = SimpleNamespace(on_progress=lambda: heard.append(1))
    with (tmp_path / "file").open("rb") as file:
        file.seek(5)
        assert sender.checksum(sending, file, 2 * MB) == crc32c_of([bytes(2 * MB)])
    assert len(heard) == 2, "for each mebibyte"


# --- whole, or what it grew by


@pytest.mark.parametrize(
    ("before", "now", "has_grown"),
    [
        (MB - 1, MB + 5, False),
        (MB, MB + 5, True),
        (MB, MB, False),
        (MB + 5, MB + 6, True),
        (MB + 5, MB + 4, False),
    ],
)
def test_a_file_has_grown_from_a_mebibyte_on_if_its_last_block_is_there(
    tmp_path, before, now, has_grown
):
    (tmp_path / "file").write_bytes(os.urandom(now))
    sender = Sender(tmp_path, None, "", "job/5", print)
    with (tmp_path / "file").open("rb") as file:
        last, seen = (
            entry_of(tmp_path / "file", before, ends_of(file, before)),
            os.fstat(file.fileno()),
        )
        assert sender.has_grown(last, file, seen) is has_grown
        last.last_block = "another"
        assert not sender.has_grown(last, file, seen)


@pytest.mark.parametrize("size", [MB - 1, MB])
def test_a_file_that_may_grow_keeps_the_checksum_of_its_last_block(sender, size):
    path = write(sender, os.urandom(size))
    sending = send(sender)
    with path.open("rb") as file:
        assert sending.entry.last_block == (ends_of(file, size) if size == MB else "")
    assert sending.entry.is_of(path.stat()) and sending.inode == path.stat().st_ino
    assert sending.entry.crc32c == file_crc32c(path)
    assert sending.entry.generation == sender.bucket.get(NAME).generation
    assert (sending.wrote, sending.bytes, sending.through) == (True, size, size)


def test_what_a_file_grew_by_is_sent_and_not_sure(sender, monkeypatch):
    path = write(sender, os.urandom(MB + 3))
    later = time.time_ns() + 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    first = send(sender).entry
    assert first.sure
    with path.open("ab") as file:
        file.write(b"tail")
    sending = send(sender, first)
    assert (sending.bytes, sending.begins, sending.through) == (4, MB + 3, MB + 7)
    assert content(sender) == path.read_bytes() and sending.wrote
    assert not sending.entry.sure, "the head was not read again"
    assert sender.bucket.get(NAME).metadata == {WRITER: "job/5"}


def test_a_tail_on_what_is_not_the_files_head_is_written_over(sender):
    """As of an archive whose head is written last: its last block is the same, and it grew."""
    path = write(sender, os.urandom(2 * MB))
    first = send(sender).entry
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(b"head")
        file.seek(0, 2)
        file.write(b"tail")
    first.crc32c = file_crc32c(path)  # of other bytes than the object's
    sending = send(sender, first)
    assert sending.bytes == 4 + 2 * MB + 4 and sending.begins == 0
    assert content(sender) == path.read_bytes()
    assert sending.entry.crc32c == file_crc32c(path)


def test_a_tail_that_is_refused_leads_to_the_whole_file_over_the_object_that_was_seen(
    sender, monkeypatch
):
    path = write(sender, os.urandom(MB))
    first = send(sender).entry
    with path.open("ab") as file:
        file.write(b"tail")
    monkeypatch.setattr(sender.bucket, "append", lambda *_: 1 / 0)
    sending = send(sender, first)
    assert sending.bytes == MB + 4 and content(sender) == path.read_bytes()


def test_tails_have_names_that_nobody_else_writes(sender):
    one, other = sender.tail("a"), sender.tail("b")
    assert one != other and len(one) == len(".berg/tmp/job/5/") + 32
    assert one.startswith(".berg/tmp/job/5/")


# --- what is not sent


@pytest.mark.parametrize("change", [0, 1, -1])
def test_a_file_with_its_objects_bytes_is_not_sent_again(sender, recorded, change):
    """Whichever of two checksums is the greater one."""
    contents = sorted((b"one", b"two", b"six"), key=lambda data: crc32c_of([data]))
    path = write(sender, contents[1])
    first = send(sender).entry
    write(sender, contents[1 + change])
    recorded.clear()
    sending = send(sender, first)
    assert sending.wrote is bool(change) and recorded == ["file"] * bool(change)
    assert content(sender) == path.read_bytes()
    assert (sending.entry.generation == first.generation) is not change


@pytest.mark.parametrize("more", [b"", b"x", b"xxx"])
def test_a_file_of_another_size_is_sent_without_reading_it_before(sender, monkeypatch, more):
    write(sender, b"xx")
    first = send(sender).entry
    monkeypatch.setattr(sender, "checksum", lambda *_: pytest.fail("read for nothing"))
    write(sender, more)
    assert send(sender, first).wrote and content(sender) == more


def test_what_is_no_file_any_more_is_not_sent(sender, recorded):
    (sender.folder / "file").symlink_to("/dev/null")
    with pytest.raises(FileNotFoundError):
        send(sender)
    assert not recorded


@pytest.mark.timeout(60)
def test_a_pipe_that_takes_a_file_s_place_meanwhile_is_not_waited_for(
    sender, recorded, monkeypatch
):
    path, opened = write(sender, b"x"), os.open

    def open_late(*given) -> int:
        path.unlink()
        os.mkfifo(path)
        return opened(*given)

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(FileNotFoundError):
        send(sender)
    assert not recorded


# --- whose it is


@pytest.mark.parametrize("writer", ["job/4", "job/6", "", None])
def test_only_what_says_so_is_ours(sender, writer):
    metadata = None if writer is None else {WRITER: writer}
    sender.bucket.write(NAME, b"theirs", metadata=metadata)
    assert not sender.is_ours(sender.bucket.get(NAME))
    write(sender, b"ours")
    with pytest.raises(Taken, match=TAKEN):
        send(sender)
    assert content(sender) == b"theirs"


OURS = b"ours" * 100


@pytest.mark.parametrize("theirs", [OURS[1:], OURS, OURS + b"!", OURS.swapcase()])
def test_anothers_object_is_the_file_if_it_has_its_bytes(sender, theirs):
    sender.bucket.write(NAME, theirs)
    there = sender.bucket.get(NAME)
    with write(sender, OURS).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        sending = Sending("file", None, False)
        assert sender.is_same(there, sending, file, size) is (theirs == OURS)


def test_what_we_wrote_unheard_is_written_over(sender):
    sender.bucket.write(NAME, b"an answer that was lost", metadata={WRITER: "job/5"})
    write(sender, b"newer")
    sending = send(sender)
    assert content(sender) == b"newer"
    assert sending.bytes == 5


def test_before_the_first_byte_of_a_whole_file_nothing_of_it_is_through(sender, monkeypatch):
    seen = []

    def upload(*_):
        seen.append((sending.begins, sending.through))
        raise OSError("no network")

    monkeypatch.setattr(sender.bucket, "upload_stream", upload)
    write(sender, b"ours")
    sending = Sending("file", None, False, begins=7, through=9)  # as after a tail that failed
    with pytest.raises(OSError, match="no network"):
        sender.send(sending)
    assert seen == [(0, 0)]


def test_a_file_that_was_taken_is_sent_once_its_object_is_gone_or_ours(sender, monkeypatch):
    bucket = sender.bucket
    with monkeypatch.context() as patch:
        patch.setattr(bucket, "get", lambda name: pytest.fail("nothing is to be asked"))
        sender.refuse_if_still_taken("file", NAME)
    sender.taken.add("file")
    sender.refuse_if_still_taken("file", NAME)
    bucket.write(NAME, b"theirs")
    with pytest.raises(Taken, match=TAKEN):
        sender.refuse_if_still_taken("file", NAME)
    bucket.write(NAME, b"ours", metadata={WRITER: "job/5"})
    sender.refuse_if_still_taken("file", NAME)


def test_an_object_that_changes_all_the_time_is_tried_five_times(sender):
    tried = []
    write(sender, b"ours")

    def upload(name, file, size, generation, on_progress, metadata):
        tried.append((generation, file.tell(), metadata))
        raise Changed("by ourselves, unheard")

    generations = iter([7, 8, None, 10, 11])

    def get(name):
        generation = next(generations)
        metadata = {WRITER: "job/5"}
        found = SimpleNamespace(generation=generation, size=1, metadata=metadata)
        return found if generation else None

    sender.bucket = SimpleNamespace(upload_stream=upload, get=get)
    with pytest.raises(BergError, match="changes all the time"):
        send(sender)
    assert tried == [(each, 0, {WRITER: "job/5"}) for each in (0, 7, 8, 0, 10)]
