"""The mirror and the fetch against a real bucket: what lies in the folder is what lies there."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berg import BergError
from berg.google.mirror import Mirror, fetch


@pytest.fixture
def mirror(bucket, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    return Mirror(folder, bucket, "berg_results/")


def content(mirror) -> dict[str, bytes]:
    bucket = mirror.bucket
    return {blob.name.removeprefix(mirror.prefix): bucket.read(blob.name) for blob in bucket.list(mirror.prefix)}


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
    assert content(mirror) == {"a/b/ünï 中.txt": b"two!", "empty": b""}  # deleting here deletes nothing there
    assert mirror.synced_until


def test_a_pass_over_unchanged_files_asks_the_bucket_nothing(mirror, cloud):
    for number in range(200):
        (mirror.folder / str(number)).write_text(str(number))
    assert mirror.sync() == 200
    before = requests_made(cloud)
    assert mirror.sync() == 0
    assert requests_made(cloud) == before


def test_memory_does_not_grow_with_the_tree(tmp_path):
    """Sixteen times the files, the same memory: in a process of its own, with a bucket that takes everything."""
    script = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from berg.google.mirror import Mirror, crc32c_of
import google_crc32c

class Bucket:
    def upload_stream(self, name, file, size):
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
    small, large = subprocess.check_output([sys.executable, "-c", script, tmp_path], text=True).split()
    assert int(large) - int(small) < 5000, "kB"


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


@pytest.mark.parametrize("grown", [(8 << 20) - 1, 8 << 20, (8 << 20) + 1, 9 << 20, (16 << 20) + 5])
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


def test_bytes_changed_behind_the_mirrors_back_are_found_at_the_end(mirror):
    path = mirror.folder / "checkpoint"
    path.write_bytes(b"old" * 1000)
    mirror.sync()
    times = path.stat()
    path.write_bytes(b"new" * 1000)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a write within one tick of the clock
    assert mirror.sync() == 0
    mirror.finish(print)
    assert content(mirror)["checkpoint"] == b"new" * 1000


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
    assert content(mirror) == {"real/x": b"x", "in": b"x", "dir/x": b"x"}
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


def test_a_writer_that_never_rests(mirror):
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
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


names = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"])
actions = st.one_of(
    st.tuples(st.just("write"), names, st.binary(max_size=20)),
    st.tuples(st.just("append"), names, st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("truncate"), names, st.integers(0, 10)),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("delete"), names, st.none()),
    st.tuples(st.just("sync"), st.none(), st.none()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(actions, max_size=25))
def test_any_writer_is_mirrored_exactly(bucket, tmp_path_factory, script):
    folder = tmp_path_factory.mktemp("any")
    mirror = Mirror(folder, bucket, f"{folder.name}/")
    for action, name, argument in script:
        if action == "sync":
            mirror.sync()
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if action == "write":
            path.write_bytes(argument)
        elif action == "append":
            with path.open("ab") as file:
                file.write(argument)
        elif path.exists():
            if action == "truncate":
                os.truncate(path, argument)
            elif action == "delete":
                path.unlink()
            else:
                (folder / argument).parent.mkdir(parents=True, exist_ok=True)
                path.rename(folder / argument)
    mirror.finish(print)
    here = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    there = content(mirror)
    assert {name: there.get(name) for name in here} == here


def test_fetch_brings_only_what_changed(mirror, tmp_path, cloud):
    for name in ("a", "b/c", "empty"):
        (mirror.folder / name).parent.mkdir(exist_ok=True)
        (mirror.folder / name).write_text(name * 10 if name != "empty" else "")
    mirror.sync()
    target = tmp_path / "here"
    assert fetch(mirror.bucket, "berg_results/", target) == (3, 3)
    assert (target / "b/c").read_text() == "b/c" * 10
    assert fetch(mirror.bucket, "berg_results/", target) == (0, 3)
    (target / "a").write_text("scribbled!")
    (mirror.folder / "b/c").write_text("new")
    mirror.sync()
    names = []
    assert fetch(mirror.bucket, "berg_results/", target, lambda name, size: names.append(name)) == (2, 3)
    assert sorted(names) == ["berg_results/a", "berg_results/b/c"]
    assert (target / "a").read_text() == "a" * 10
    assert [path.name for path in target.rglob("*.berg-part")] == []


def test_fetch_stays_in_its_folder(bucket, tmp_path):
    bucket.write("berg_results/../../evil", b"x")
    with pytest.raises(BergError, match="outside"):
        fetch(bucket, "berg_results/", tmp_path / "here")
    assert not (tmp_path / "evil").exists()
