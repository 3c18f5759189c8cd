"""Files that programs had open for writing when they were ended, against the embedded cloud."""

from pathlib import Path

import pytest
from google.test_moments import BIG, begin, found, out, plain, sync

from berg.google.mirror import Mirror

__all__ = ["begin"]


def cut(mirror: Mirror, file: Path) -> None:
    inode = file.stat().st_ino
    mirror.sender.was_cut = lambda seen: seen.st_ino == inode


def finish(mirror: Mirror) -> None:
    assert mirror.finish(print) == {} and mirror.conclude({}) == {}


@pytest.mark.parametrize(
    ("text", "is_new"), [(b"line\n", True), (b"line\n" * 300_000, True), (b"x" * 3000, False)]
)
def test_the_end_of_a_log_is_sent_also_by_the_worker_after_one_that_died(begin, text, is_new):
    one = begin("one")
    log = out(one) / "train.log"
    with log.open("ab", buffering=0) as file:
        file.write(text)
        sync(one)
        file.write(text + b"la")
    cut(one, log)
    last = one
    if is_new:
        names = ("folder", "bucket", "prefix", "writer", "own", "records", "views", "machine")
        last = Mirror(**{name: getattr(one, name) for name in names})
        cut(last, log)
    finish(last)
    assert plain(one, "train.log") == text * 2 + b"la" and last.cut == {}


def test_a_file_that_is_closed_after_all_was_not_cut(begin):
    one = begin("one")
    file = out(one) / "ckpt.pt"
    file.write_bytes(b"1" * BIG)
    sync(one)
    with file.open("wb", buffering=0) as half:
        half.write(b"2")
        cut(one, file)
        sync(one)
        assert one.cut == {"out/ckpt.pt": "the version before"}
        half.write(b"2" * BIG)
    one.sender.was_cut = lambda seen: False
    finish(one)
    assert one.cut == {} and plain(one, "ckpt.pt") == b"2" * (BIG + 1)


def test_the_beginning_of_a_file_that_was_deleted_before_is_that_of_a_new_one(begin):
    one = begin("one")
    file = out(one) / "ckpt.pt"
    file.write_bytes(b"1" * BIG)
    sync(one)
    file.unlink()
    sync(one)
    file.write_bytes(b"2")
    cut(one, file)
    finish(one)
    assert plain(one, "ckpt.pt") == b"2" and found(begin("two")) == {}
