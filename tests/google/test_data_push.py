"""A push of files that somebody writes to: whole files arrive, or an error names them."""

import os
import threading

import pytest

from berg import BergError
from berg.google import data

PREFIX = "data/set/"
SIZE = 20 << 20  # bytes: more than one piece of an upload


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "file").write_bytes(b"a" * SIZE)
    return tmp_path


def push(bucket, folder, change, times: int = 1) -> None:
    """Push the folder; `change` is called when the first piece of the file was read, so often."""
    left = [times]
    lock = threading.Lock()

    def on_progress(count: int) -> None:
        with lock:
            if count > 5 and left[0] and count % SIZE > 5:
                left[0] -= 1
                change(folder / "file")

    data.push(bucket, data.plan_push(bucket, PREFIX, folder), on_progress)


def rewrite(path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(100))
        file.seek(SIZE - 100)
        file.write(os.urandom(100))


def shrink(path) -> None:
    os.truncate(path, path.stat().st_size - 1000)


def grow(path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def replace(path) -> None:
    path.with_name("new").write_bytes(os.urandom(SIZE))
    path.with_name("new").rename(path)


@pytest.mark.parametrize("change", [rewrite, shrink, grow, replace])
def test_a_file_that_changes_while_it_is_sent_is_sent_again(bucket, folder, change):
    push(bucket, folder, change)
    assert bucket.read(f"{PREFIX}file", 1 << 30) == (folder / "file").read_bytes()


@pytest.mark.parametrize("change", [rewrite, shrink, grow, replace])
def test_a_file_that_never_rests_is_named_and_no_mixture_is_stored(bucket, folder, change):
    with pytest.raises(BergError, match=r"/file changed each time that it was sent\. Push again"):
        push(bucket, folder, change, times=1000)
    assert bucket.get(f"{PREFIX}file") is None
    assert bucket.read(f"{PREFIX}other") == b"other"


def test_a_file_that_is_deleted_while_it_is_sent_is_named(bucket, folder):
    with pytest.raises(BergError, match=r"/file was deleted while the data was sent"):
        push(bucket, folder, os.remove)
    assert bucket.get(f"{PREFIX}file") is None


def test_a_file_that_is_deleted_before_it_is_sent_is_named(bucket, folder):
    plan = data.plan_push(bucket, PREFIX, folder)
    (folder / "file").unlink()
    assert plan.bytes == 5
    with pytest.raises(BergError, match=r"/file was deleted"):
        data.push(bucket, plan, lambda count: None)
