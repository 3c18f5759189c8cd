"""The mirror and the fetch against a real bucket: what lies in the folder is what lies there."""

import json
import mmap
import os
import queue
import subprocess
import sys
import threading
import time

import pytest

from berg.google.mirror import LARGE_FROM, Mirror
from berg.google.sending import WRITER, Sender, Sending
from berg.google.walk import name_left


@pytest.fixture
def mirror(bucket, cloud, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    yield Mirror(folder, bucket, "berg_results/")
    cloud.call("DELETE", "/_berg/faults")


def content(mirror) -> dict[str, bytes]:
    bucket = mirror.bucket
    return {
        blob.name.removeprefix(mirror.prefix): bucket.read(blob.name, blob.size)
        for blob in bucket.list(mirror.prefix)
    }


def rewrite(path, data: bytes) -> None:
    """As programs that write in place: the same inode, at once."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def requests_made(cloud) -> int:
    return sum(cloud.call("GET", "/_berg/requests")["counts"].values())


def test_new_changed_and_deleted_files(mirror):
    (mirror.folder / "a/b").mkdir(parents=True)
    (mirror.folder / "a/b/ünï 中.txt").write_text("one")
    (mirror.folder / "empty").touch()
    assert mirror.sync() == 2
    assert content(mirror) == {"a/b/ünï 中.txt": b"one", "empty": b""}
    (mirror.folder / "a/b/ünï 中.txt").write_text("two!")
    (mirror.folder / "empty").unlink()
    assert mirror.sync() == 1
    # deleting here deletes nothing there
    assert content(mirror) == {
        "a/b/ünï 中.txt": b"two!",
        "empty": b"",
    }
    assert mirror.synced_until


def test_a_pass_over_unchanged_files_asks_the_bucket_nothing(mirror, cloud):
    for number in range(200):
        (mirror.folder / str(number)).write_text(str(number))
    assert mirror.sync() == 200
    before = requests_made(cloud)
    assert mirror.sync() == 0
    assert requests_made(cloud) == before


@pytest.mark.slow
def test_memory_does_not_grow_with_the_tree(tmp_path):
    """Sixteen times the files, the same memory: in a process of its own, with a bucket that takes
    everything.
    """
    script = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from berg.google.storage import crc32c_of
from berg.google.mirror import Mirror

class Bucket:
    def upload_stream(self, name, file, size, *_):
        return SimpleNamespace(generation=1, crc32c=crc32c_of([file.read()]))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

folder = Path(sys.argv[1])
mirror = Mirror(folder, Bucket(), "x/")
for start, end in ((0, 500), (500, 8000)):
    for number in range(start, end):
        (folder / f"a file with a long name, as there are many of them {number}").write_bytes(b"x")
    assert mirror.sync() == end - start and mirror.sync() == 0
    print(peak())
"""
    small, large = subprocess.check_output(
        [sys.executable, "-c", script, tmp_path], text=True
    ).split()
    assert int(large) - int(small) < 5000, "kB"


def test_nothing_to_wait_for_is_noticed_at_once(tmp_path):
    """The queue of a mirror; some take a wait that has just ended for one that has no end."""
    new = type(Mirror(tmp_path, None, "").ready)
    for _ in range(50_000):
        with pytest.raises(queue.Empty):
            new().get(timeout=0)


def test_a_file_whose_time_has_64_bits_is_sent(mirror):
    for name in ("far", "near"):
        (mirror.folder / name).write_text(name)
    os.utime(mirror.folder / "far", ns=(2**63 + 10**18, 2**63 + 10**18))  # in 2293
    assert (mirror.sync(), mirror.sync(), mirror.finish(print)) == (2, 0, {})
    assert content(mirror) == {"far": b"far", "near": b"near"}


def test_a_pass_that_breaks_off_is_a_failure_and_the_next_one_goes_on(mirror):
    (mirror.folder / "before").touch()
    assert mirror.sync() == 1
    mirror.manifest.database.execute("PRAGMA max_page_count = 3")  # as on a full disk
    for number in range(200):
        (mirror.folder / f"{number:0100}").touch()
    until = mirror.journal.at_ns
    assert until and mirror.sync() == 0 and mirror.journal.at_ns == until
    assert mirror.failed == {".": "OperationalError: database or disk is full"}
    assert (mirror.sync(), len(content(mirror)), mirror.failed) == (200, 201, {})


def test_a_file_that_grows_is_sent_as_its_tail(mirror):
    path = mirror.folder / "log"
    path.write_bytes(os.urandom(3 << 20))
    mirror.sync()
    sent = mirror.bytes_sent
    with path.open("ab") as file:
        file.write(b"tail" * 1000)
    mirror.sync()
    assert mirror.bytes_sent - sent == 4000
    assert content(mirror) == {"log": path.read_bytes()}
    assert list(mirror.bucket.list(".berg/tmp/")) == []


@pytest.mark.parametrize(
    "grown",
    [
        *(pytest.param((8 << 20) + more, marks=pytest.mark.slow) for more in (-1, 0, 1, 1 << 20)),
        (16 << 20) + 5,
    ],
)
def test_a_tail_of_any_size_is_sent(mirror, grown):
    """Above 8 MiB the library begins another kind of upload, which wants a stream that begins at 0."""
    path = mirror.folder / "checkpoint"
    path.write_bytes(os.urandom(2 << 20))
    mirror.sync()
    with path.open("ab") as file:
        file.write(os.urandom(grown))
    sent = mirror.bytes_sent
    mirror.sync()
    assert (mirror.failed, mirror.bytes_sent - sent) == ({}, grown)
    assert content(mirror) == {"checkpoint": path.read_bytes()}


def test_a_tail_that_cannot_be_appended_is_sent_with_the_whole_file(mirror, cloud):
    path = mirror.folder / "checkpoint"
    path.write_bytes(os.urandom(2 << 20))
    mirror.sync()
    with path.open("ab") as file:
        file.write(os.urandom(9 << 20))
    cloud.fault("storage.objects.compose", status=403)
    sent = mirror.bytes_sent
    mirror.sync()
    assert (mirror.failed, mirror.bytes_sent - sent) == ({}, 11 << 20)
    assert content(mirror) == {"checkpoint": path.read_bytes()}
    assert list(mirror.bucket.list(".berg/tmp/")) == []


def test_a_file_that_was_rewritten_longer_is_sent_whole(mirror):
    path = mirror.folder / "log"
    path.write_bytes(b"a" * (2 << 20))
    mirror.sync()
    with path.open("r+b") as file:  # the same inode, other bytes
        file.write(b"b" * (3 << 20))
    mirror.finish(print)
    assert content(mirror) == {"log": b"b" * (3 << 20)}


def test_a_file_whose_time_was_put_back_is_sent(mirror):
    path = mirror.folder / "checkpoint"
    path.write_bytes(b"old" * 1000)
    mirror.sync()
    times = path.stat()
    path.write_bytes(b"new" * 1000)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert mirror.sync() == 1
    assert content(mirror)["checkpoint"] == b"new" * 1000


def test_bytes_changed_behind_the_mirrors_back_are_found_at_the_end(mirror):
    """What is written through a map of memory leaves no new time, once the page is dirty."""
    path = mirror.folder / "checkpoint"
    path.write_bytes(bytes(5000))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 5000) as memory:
        memory[0] = 1
        time.sleep(0.1)
        mirror.sync()
        memory[0] = 2
        mirror.sync()
        mirror.finish(print)
        assert content(mirror)["checkpoint"] == bytes([2]) + bytes(4999)


def test_links_stay_inside_and_bad_names_are_told(mirror, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (mirror.folder / "real").mkdir()
    (mirror.folder / "real/x").write_text("x")
    (mirror.folder / "out").symlink_to(tmp_path / "secret")
    (mirror.folder / "in").symlink_to("real/x")
    (mirror.folder / "dir").symlink_to("real")
    (mirror.folder / "real/loop").symlink_to("..")
    (mirror.folder / "dangling").symlink_to("nothing")
    (mirror.folder / "line\nbreak").write_text("x")
    (mirror.folder / os.fsdecode(b"\xff")).write_text("x")
    os.mkfifo(mirror.folder / "pipe")
    mirror.finish(print)
    assert content(mirror) == {"real/x": b"x"}
    links = {path: mirror.journal.get(path).link for path in ("in", "dir", "real/loop", "dangling")}
    assert links == {"in": "real/x", "dir": "real", "real/loop": "..", "dangling": "nothing"}
    reasons = " ".join(mirror.refused.values())
    assert "outside" in reasons
    assert "line break" in reasons
    assert "UTF-8" in reasons
    assert mirror.failed == {}


def test_failures_are_retried_until_all_is_there(mirror, cloud):
    for number in range(20):
        (mirror.folder / str(number)).write_text(str(number))
    cloud.fault("storage.objects.insert", times=8, status=503)
    cloud.fault("storage.objects.insert", times=4, reset=True)
    cloud.fault("storage.objects.insert", times=4, status=429)
    mirror.finish(print)
    assert content(mirror) == {str(number): str(number).encode() for number in range(20)}


def test_forbidden_files_are_told_and_the_rest_goes_on(mirror, cloud):
    (mirror.folder / "a").write_text("a")
    cloud.fault("storage.objects.insert", times=1, status=403)
    mirror.sync()
    assert list(mirror.failed) == ["a"]
    assert mirror.synced_until == ""
    mirror.finish(print)
    assert content(mirror) == {"a": b"a"}


@pytest.mark.slow
def test_a_writer_that_never_rests(mirror):
    stop = threading.Event()

    def write():
        number = 0
        # without a rest it wrote faster than anyone reads, and filled the disk
        while not stop.wait(0.002):
            number += 1
            with (mirror.folder / "log").open("ab") as file:
                file.write(b"%d\n" % number * 5000)
            temporary = mirror.folder / "tmp"
            temporary.write_bytes(b"%d" % number * 1000)
            temporary.rename(mirror.folder / "checkpoint")

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(5):
        mirror.sync()
    stop.set()
    thread.join()
    mirror.finish(print)
    found = content(mirror)
    assert found["log"] == (mirror.folder / "log").read_bytes()
    assert found["checkpoint"] == (mirror.folder / "checkpoint").read_bytes()


MB8 = 8 << 20  # above it the library begins another kind of upload


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(MB8 - 1, marks=pytest.mark.slow),
        MB8,
        pytest.param(MB8 + 1, marks=pytest.mark.slow),
    ],
)
def test_sizes_around_those_of_the_library(mirror, size):
    path = mirror.folder / "checkpoint"
    path.write_bytes(os.urandom(size))
    mirror.sync()
    rewrite(path, os.urandom(size + 7))
    mirror.sync()
    assert content(mirror) == {"checkpoint": path.read_bytes()}
    os.truncate(path, size - 7)
    mirror.sync()
    assert content(mirror) == {"checkpoint": path.read_bytes()}
    (mirror.folder / "new").write_bytes(os.urandom(size))
    (mirror.folder / "new").rename(path)
    mirror.sync()
    assert content(mirror) == {"checkpoint": path.read_bytes()}
    assert mirror.bytes_sent == 4 * size, "each byte once"


def test_a_sparse_file(mirror):
    path = mirror.folder / "sparse"
    with path.open("wb") as file:
        file.truncate(20 << 20)
        file.seek(9 << 20)
        file.write(b"here")
    mirror.finish(print)
    assert content(mirror) == {"sparse": path.read_bytes()}


def test_a_file_deleted_or_cut_while_it_is_sent(mirror, cloud):
    """Its next state is what counts; nothing fails for good."""
    for name in ("deleted", "cut"):
        (mirror.folder / name).write_bytes(os.urandom(20 << 20))
    cloud.fault("storage.objects.insert", delay=0.5, times=2)
    mirror.sync(seconds=0.2)
    (mirror.folder / "deleted").unlink()
    os.truncate(mirror.folder / "cut", 1000)
    assert mirror.finish(print) == {}
    assert content(mirror)["cut"] == (mirror.folder / "cut").read_bytes()


def test_a_growing_file_whose_head_is_written_last(mirror):
    """As zip archives and HDF5 are: the tail is sent while it grows; once it is quiet, what was
    wrong is found.
    """
    path = mirror.folder / "checkpoint.npz"
    path.write_bytes(bytes(2 << 20))
    mirror.sync()
    with path.open("r+b") as file:
        file.write(b"head")
        file.seek(0, 2)
        file.write(bytes(1 << 20))
    mirror.sync()
    time.sleep(50 * path.stat().st_size / 1e9 + 0.1)
    mirror.sync()
    assert content(mirror) == {"checkpoint.npz": path.read_bytes()}, (
        "while the job runs, not only at its end"
    )


# --- whose objects these are


def test_what_is_somebody_elses_is_never_overwritten(mirror):
    mirror.bucket.write("berg_results/theirs", b"theirs")
    (mirror.folder / "theirs").write_bytes(b"ours")
    (mirror.folder / "ours").write_bytes(b"ours")
    mirror.sync()
    mirror.bucket.write("berg_results/ours", b"changed by another")
    (mirror.folder / "ours").write_bytes(b"changed here")
    left = mirror.finish(print)
    assert content(mirror) == {"theirs": b"theirs", "ours": b"changed by another"}
    assert sorted(left) == ["ours", "theirs"] and "did not write" in left["theirs"]
    assert mirror.failed == {}, "it is not tried for ever"


def test_the_same_bytes_are_nobodys_loss(mirror):
    mirror.bucket.write("berg_results/same", b"same")
    (mirror.folder / "same").write_bytes(b"same")
    assert mirror.finish(print) == {}
    (mirror.folder / "same").write_bytes(b"goes on here")
    assert mirror.finish(print) == {} and content(mirror) == {"same": b"goes on here"}


def test_an_object_that_was_deleted_is_sent_again(mirror):
    path = mirror.folder / "x"
    path.write_bytes(b"1")
    mirror.sync()
    mirror.bucket.delete("berg_results/x")
    path.write_bytes(b"22")
    assert mirror.finish(print) == {} and content(mirror) == {"x": b"22"}


@pytest.mark.parametrize("size", [10, pytest.param(MB8 + 1, marks=pytest.mark.slow)])
def test_a_write_whose_answer_was_lost_is_ours(mirror, cloud, size):
    path = mirror.folder / "x"
    path.write_bytes(os.urandom(size))
    cloud.fault("storage.objects.insert", reset=True, after_handler=True, skip=int(size > MB8))
    mirror.sync()
    assert (mirror.failed, mirror.refused) == ({}, {}) and content(mirror) == {
        "x": path.read_bytes()
    }
    with path.open("ab") as file:
        file.write(os.urandom(1000))
    cloud.fault(
        "storage.objects.compose" if size > MB8 else "storage.objects.insert",
        reset=True,
        after_handler=True,
    )
    mirror.sync()
    assert (mirror.failed, mirror.refused) == ({}, {}) and content(mirror) == {
        "x": path.read_bytes()
    }


def test_a_worker_that_comes_after_one_that_died_replaces_what_that_wrote(mirror):
    (mirror.folder / "x").write_bytes(b"1")
    (mirror.folder / "same").write_bytes(b"same")
    mirror.sync()
    (mirror.folder / "x").write_bytes(b"22")
    salvage = Mirror(mirror.folder, mirror.bucket, mirror.prefix, mirror.writer)
    assert salvage.finish(print) == {} and content(mirror) == {"x": b"22", "same": b"same"}
    (mirror.folder / "x").write_bytes(b"333")
    stranger = Mirror(mirror.folder, mirror.bucket, mirror.prefix)
    assert list(stranger.finish(print)) == ["x"] and content(mirror)["x"] == b"22"
    assert mirror.bucket.get("berg_results/x").metadata == {WRITER: mirror.writer}


# --- what stalls, and what is refused


def test_a_stalled_request_holds_nothing_up(mirror, cloud, monkeypatch):
    monkeypatch.setattr("berg.google.mirror.SHORT_TIMEOUT", 1)
    cloud.fault("storage.objects.insert", match="berg_results/stalls", delay=30)
    (mirror.folder / "stalls").write_bytes(b"before")
    (mirror.folder / "late").write_bytes(b"before")
    mirror.sync(seconds=0.5)
    began = time.monotonic()
    (mirror.folder / "late").write_bytes(b"at the notice")
    (mirror.folder / "stalls").write_bytes(b"at the notice")
    os.utime(mirror.folder / "late", (0, 0))
    assert mirror.finish(print, seconds=13) == {}
    assert time.monotonic() - began < 12 and content(mirror) == dict.fromkeys(
        ["stalls", "late"], b"at the notice"
    )


def test_a_pass_after_a_stall_counts_unless_the_file_changed_meanwhile(mirror, cloud):
    """Results that were there by its begin are in the bucket, and the state may say so."""
    cloud.fault("storage.objects.insert", match="berg_results/stalls", delay=2, times=2)
    for is_changed in (False, True):
        (mirror.folder / "stalls").write_bytes(b"before" * (1 + is_changed))
        mirror.sync(seconds=0.3)
        assert "stalls" in mirror.underway
        if is_changed:
            (mirror.folder / "stalls").write_bytes(b"meanwhile")
        mirror.sync()
        assert not (mirror.underway or mirror.failed)
        assert (mirror.journal.at_ns >= mirror.looked_ns) != is_changed
    mirror.sync()
    assert mirror.journal.at_ns >= mirror.looked_ns
    assert content(mirror) == {"stalls": b"meanwhile"}


def test_large_files_that_stall_hold_no_other_up(mirror, cloud, monkeypatch):
    monkeypatch.setattr("berg.google.mirror.STANDS_STILL", 0.5)
    cloud.fault("storage.objects.insert", match="berg_results/stalls", delay=30, times=None)
    for name in ("stalls 0", "stalls 1", "free"):
        (mirror.folder / name).write_bytes(bytes(LARGE_FROM))
    os.utime(mirror.folder / "free", (0, 0))
    assert mirror.sync(seconds=6) == 1 and list(content(mirror)) == ["free"]
    assert sorted(mirror.underway) == ["stalls 0", "stalls 1"]


def test_what_did_not_make_it_is_named(mirror, cloud):
    cloud.fault("storage.objects.insert", match="berg_results/stalls", delay=20, times=None)
    (mirror.folder / "stalls").write_bytes(b"x")
    (mirror.folder / "y").write_bytes(b"y")
    left = mirror.finish(print, seconds=2)
    assert list(left) == ["stalls"] and content(mirror) == {"y": b"y"}
    cloud.call("DELETE", "/_berg/faults")


@pytest.mark.parametrize("status", [403, pytest.param(404, marks=pytest.mark.slow)])
def test_what_is_refused_for_long_is_given_up_at_the_end_alone(mirror, cloud, monkeypatch, status):
    """Rights that were granted a moment ago, and a bucket made anew, count after minutes."""
    monkeypatch.setattr("berg.google.mirror.REFUSED_FOR", 2)
    cloud.fault("storage.objects.insert", match="berg_results/bad", status=status, times=None)
    (mirror.folder / "bad").write_text("x")
    (mirror.folder / "good").write_text("y")
    for _ in range(3):
        mirror.sync()
        assert list(mirror.failed) == ["bad"] and not mirror.refused, (
            "while the job runs it is tried again"
        )
        time.sleep(1)
    said, began = [], time.monotonic()
    left = mirror.finish(said.append, 100)
    assert list(left) == ["bad"] and "refuses" in left["bad"] and content(mirror) == {"good": b"y"}
    assert time.monotonic() - began < 20 and mirror.refused == left


def test_a_refusal_that_passes_is_none(mirror, cloud, monkeypatch):
    monkeypatch.setattr("berg.google.mirror.REFUSED_FOR", 20)
    cloud.fault("storage.objects.insert", match="berg_results/late", status=403, times=3)
    (mirror.folder / "late").write_text("x")
    assert mirror.finish(print, 100) == {} and content(mirror) == {"late": b"x"}


@pytest.mark.slow
def test_what_is_left_is_counted_in_bytes(mirror, cloud):
    """So that a large file that is on its way shows as such."""
    size = 40 << 20
    (mirror.folder / "large").write_bytes(bytes(size))
    cloud.fault("storage.objects.insert", delay=0.7, times=None)
    assert mirror.left() == [("large", size)]
    sending, seen = threading.Thread(target=mirror.finish, args=[print]), set()
    sending.start()
    while sending.is_alive():
        seen.update(mirror.left())
        time.sleep(0.1)
    counts = sorted(left for _, left in seen)
    assert len(counts) > 3 and counts[0] < size / 2 and counts[-1] == size, counts
    assert mirror.left() == []


def test_one_file_that_the_bucket_refuses_for_good(mirror, cloud):
    cloud.fault("storage.objects.insert", match="berg_results/bad", status=400, times=None)
    (mirror.folder / "bad").write_bytes(b"x")
    (mirror.folder / "good").write_bytes(b"y")
    left = mirror.finish(print)
    cloud.call("DELETE", "/_berg/faults")
    assert list(left) == ["bad"] and "refuses" in left["bad"] and content(mirror) == {"good": b"y"}


def test_names_that_are_too_long(mirror):
    deep = mirror.folder / "/".join(["d" * 200] * 5)
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"x" * 5)
    fits = "y" * (1024 - len(f"berg_results/{deep.relative_to(mirror.folder)}/"))
    for name in (fits, fits + "y"):
        if len(name) <= 255:
            (deep / name).write_bytes(b"y")
    (mirror.folder / ("z" * 255)).write_bytes(b"z")
    left = mirror.finish(print)
    assert list(left.values()) == ["its name is longer than 1024 bytes"]
    assert set(content(mirror).values()) == {b"x" * 5, b"y", b"z"}


def test_a_link_for_the_whole_folder_of_the_job(mirror, tmp_path):
    (tmp_path / "disk/sub").mkdir(parents=True)
    (tmp_path / "disk/sub/x").write_bytes(b"x")
    (tmp_path / "disk/loop").symlink_to(tmp_path / "disk")
    (mirror.folder / "sweep").mkdir()
    (mirror.folder / "sweep/one").symlink_to(tmp_path / "disk")
    (mirror.folder / "sweep/two").symlink_to(tmp_path / "disk")
    mirror.own = "sweep/one"
    left = mirror.finish(print)
    assert content(mirror)["sweep/one/sub/x"] == b"x" and left == {}
    assert mirror.journal.get("sweep/one/loop").link == "."
    assert mirror.journal.get("sweep/two").link == "one"
    (mirror.folder / "sweep/one").unlink()
    (mirror.folder / "sweep/one").symlink_to("/etc")
    assert (
        "outside"
        in Mirror(mirror.folder, mirror.bucket, "other/", own="sweep/one").finish(print)[
            "sweep/one"
        ]
    )


def test_what_is_told_fits_a_state():
    assert name_left({}) == ""
    names = {
        f"\udcff\n{'中' * 300}{number}": "a link to outside of the results" for number in range(50)
    }
    text = name_left(names)
    assert text.startswith("50 files are not in the bucket: ") and text.endswith(", 47 more")
    assert text.isprintable() and len(json.dumps(text)) < 3000


@pytest.mark.parametrize("age, is_sure", [(50_000_000, False), (50_000_001, True)])
def test_what_changed_just_now_is_not_sure(bucket, tmp_path, monkeypatch, age, is_sure):
    """The next change may have the same time: the file is looked at again."""
    (tmp_path / "a").write_text("one")
    now = (tmp_path / "a").stat().st_ctime_ns + age
    monkeypatch.setattr(time, "time_ns", lambda: now)
    sender = Sender(tmp_path, bucket, "berg_results/", "job/0", lambda path: None)
    assert sender.send(Sending("a", None, False)).sure is is_sure


def test_what_changes_while_it_is_sent_is_not_sure(bucket, tmp_path, monkeypatch):
    (tmp_path / "a").write_text("one")
    later = time.time_ns() + 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    sender = Sender(
        tmp_path, bucket, "berg_results/", "job/0", lambda path: os.utime(tmp_path / path, (1, 1))
    )
    assert sender.send(Sending("a", None, False)).sure is False


@pytest.mark.slow
def test_what_is_still_written_at_the_end_is_kept_as_it_is_and_named(mirror, monkeypatch):
    """A process that outlives its command once kept a machine for a week."""
    from berg.google import mirror as module

    monkeypatch.setattr(module, "MOVING_PAUSE", 0)
    (mirror.folder / "rests").write_text("done")
    stop = threading.Event()

    def write():
        while not stop.wait(0.001):
            with (mirror.folder / "moves").open("a") as file:
                file.write("more\n")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        left = mirror.finish(print)
    finally:
        stop.set()
        thread.join()
    assert left == {"moves": module.MOVING} and left.keys() <= mirror.refused.keys()
    there = content(mirror)
    assert there["rests"] == b"done" and there["moves"].startswith(b"more\n")
