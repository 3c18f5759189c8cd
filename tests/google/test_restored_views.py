"""What a mirror publishes is what the next disk's mirror restores. Random programs of test_whole
do the same; here are moments that those meet seldom.
"""

import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from berg.google import views
from berg.google.mirror import Mirror
from berg.machine import saving

SETTLED = 0.06  # seconds until another change of a file would show


@pytest.fixture
def disk(bucket, tmp_path):
    """Make the mirror of a disk of the job; it has restored."""

    def make(name: str, machine: str = "", is_shared: bool = False) -> Mirror:
        folder = tmp_path / name
        (folder / "job").mkdir(parents=True)
        views = f".berg/views/job/{name}/"
        mirror = Mirror(folder, bucket, "results/", f"job/{name}", "job", views=views)
        mirror.machine = mirror.journal.machine = machine
        mirror.journal.is_shared = is_shared
        assert mirror.restore()[1] == {}
        return mirror

    return make


def write(mirror: Mirror, name: str, data: bytes) -> Path:
    path = mirror.folder / "job" / name
    path.write_bytes(data)
    time.sleep(SETTLED)
    return path


@pytest.mark.timeout(60)
def test_what_is_no_file_is_named_and_holds_nothing_up(disk):
    first = disk("1")
    folder = first.folder / "job"
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket"))  # a short path
    targets = {"to-pipe": "pipe", "to-socket": "socket", "to-link": "to-pipe", "to-file": "file"}
    targets |= {"zero": "/dev/zero", "tty": "/dev/tty"}
    for name, target in targets.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "base")
    write(first, "base-wal", b"part of no database")
    write(first, "file", b"1")
    first.sync()
    outside = "a link to outside of the results"
    whys = {"pipe": "a pipe", "base": "a pipe", "socket": "a socket", "zero": outside}
    whys |= {"to-pipe": "a link to a pipe", "to-link": "a link to a pipe"}
    whys |= {"to-socket": "a link to a socket", "tty": outside}
    left = first.finish(lambda text: None, 60)
    assert left == {f"job/{name}": why for name, why in whys.items()}
    there = {path.name for path in (disk("2").folder / "job").iterdir()}
    assert there == {"file", "to-file", "base-wal"}


def test_a_file_that_waits_for_its_object_is_compared_with_the_bytes_that_wait(disk):
    first = disk("1")
    first.journal.is_shared = True  # and of the others nothing is known: nothing is safe
    for byte in b"ab":
        write(first, "large", bytes([byte]) * 100_000)
        first.sync()
    assert first.finish(lambda text: None, 60) == {}
    second = disk("2")
    assert (second.folder / "job/large").read_bytes() == b"b" * 100_000


def test_a_file_that_is_made_again_while_its_bytes_wait(disk):
    first = disk("1")
    first.journal.is_shared = True
    for byte in b"ab":
        path = write(first, "large", bytes([byte]) * 100_000)
        first.sync()
    path.unlink()
    first.sync()
    write(first, "large", b"b" * 100_000)
    first.sync()
    second = disk("2")
    assert (second.folder / "job/large").read_bytes() == b"b" * 100_000


def test_a_view_of_a_moment_with_a_file_has_it(disk):
    first = disk("1")
    write(first, "kept", b"1")
    first.sync()
    path = write(first, "new", b"2")
    first.sync(only_new=True)  # it is sent, and in no view yet
    there_ns = path.stat().st_ctime_ns
    path.unlink()
    gone_ns = path.parent.stat().st_mtime_ns
    first.sync()
    is_there = there_ns <= first.journal.published_ns < gone_ns
    names = sorted(path.name for path in (disk("2").folder / "job").iterdir())
    assert names == (["kept", "new"] if is_there else ["kept"])


def test_links_have_their_times(disk):
    first = disk("1")
    write(first, "file", b"1")
    for name, when in (("older", 1_000_000_000), ("alder", 1_100_000_000)):
        link = first.folder / "job" / name
        link.symlink_to("file")
        os.utime(link, (when, when), follow_symlinks=False)
    time.sleep(SETTLED)
    first.sync()
    second = disk("2")
    times = {path.name: int(path.lstat().st_mtime) for path in (second.folder / "job").iterdir()}
    assert times["older"] == 1_000_000_000 and times["alder"] == 1_100_000_000


@pytest.fixture
def machines(disk):
    """Make the mirrors of two machines of the job, which know each other's last views."""

    def make(*names: str) -> list[Mirror]:
        made = [disk(name, f"machine-{rank}") for rank, name in enumerate(names)]
        for mirror in made:
            mirror.journal.is_shared = True
            heads = [other.journal for other in made if other is not mirror]
            mirror.journal.others = lambda heads=heads: [journal.head for journal in heads]
        return made

    return make


def set_clocks(monkeypatch, difference_ns: int) -> None:
    for module in ("views", "journal"):
        monkeypatch.setattr(f"berg.google.{module}.CLOCKS_NS", difference_ns)


def test_what_several_machines_wrote_last_is_restored(machines, disk, monkeypatch):
    """Such as checkpoints that they save when they are told to end. Nobody waits for clocks."""
    set_clocks(monkeypatch, 10**13)
    both = machines("1", "2")
    for mirror in both:
        write(mirror, f"of-{mirror.machine}", b"saved at the end")
    for mirror in both:
        assert mirror.finish(lambda text: None, 60) == {}
    found = sorted(path.name for path in (disk("3").folder / "job").iterdir())
    assert found == ["of-machine-0", "of-machine-1"]


def send_all(mirror: Mirror) -> None:
    stopping = SimpleNamespace(pause=lambda seconds: None, event=threading.Event())
    mirrors = SimpleNamespace(results=mirror, turn=threading.Lock())
    times = SimpleNamespace(upload_timeout=60)
    saving.send_all(SimpleNamespace(mirrors=mirrors, stopping=stopping, job=times, say=pytest.fail))


def test_the_end_of_a_command_is_a_moment_of_all_whatever_they_wrote_until_then(
    machines, disk, monkeypatch
):
    """One machine is taken, and its command ends before that of the other, which rewrites its
    checkpoint faster than a pass until then.
    """
    set_clocks(monkeypatch, 10**13)
    both = machines("1", "2")
    for mirror in both:
        mirror.sync()
    write(both[0], "checkpoint", b"1")
    assert both[1].finish(lambda text: None, 60) == {}
    for number in range(2, 5):
        write(both[0], "checkpoint", b"%d" % number)
        write(both[0], "metrics", b"".join(b"%d\n" % each for each in range(number)))
        if number == 3:
            both[0].sync()
    send_all(both[0])
    third = disk("3", both[1].machine, is_shared=True)
    assert (third.folder / "job/checkpoint").read_bytes() == b"4"
    assert both[0].restore()[1] == {}
    assert (both[0].folder / "job/checkpoint").read_bytes() == b"4"
    assert (both[0].folder / "job/metrics").read_bytes() == b"0\n1\n2\n3\n"
    assert not both[0].journal.head.rests, "another command begins"


def test_of_a_file_that_was_restored_the_machine_that_appends_to_it_has_the_newest(
    machines, disk, monkeypatch
):
    """It has the same time as on the others, which compare theirs once more at the end."""
    set_clocks(monkeypatch, 0)
    both = machines("1", "2")
    write(both[0], "log", b"1" * 100_000 + b"\n")
    for mirror in both:
        assert mirror.conclude(mirror.finish(lambda text: None, 60)) == {}
    both = [disk(f"{rank + 3}", f"machine-{rank}", is_shared=True) for rank in range(2)]
    with (both[0].folder / "job/log").open("ab") as log:
        log.write(b"2" * 100_000 + b"\n")
    for mirror in both:
        assert mirror.conclude(mirror.finish(lambda text: None, 60)) == {}
    last = disk("5")
    assert (last.folder / "job/log").read_bytes() == b"1" * 100_000 + b"\n" + b"2" * 100_000 + b"\n"


def test_a_folder_rests_once_the_bucket_has_all_of_it(machines, cloud):
    first, _ = machines("1", "2")
    cloud.fault("storage.objects.insert", match="job/checkpoint", status=503, times=None)
    write(first, "checkpoint", os.urandom(1 << 20))
    first.rest()
    first.sync(1)
    assert not first.journal.head.rests
    cloud.call("DELETE", "/_berg/faults")
    first.sync()
    head, number = first.journal.head, first.journal.number
    assert head.rests and head.at_ns == first.looked_ns
    first.sync()
    assert first.journal.number == number, "nothing new to say"


def test_a_worker_that_begins_again_says_that_its_folder_rests_no_more(machines):
    first, second = machines("1", "2")
    write(first, "checkpoint", b"1")
    for mirror in (first, second):
        assert mirror.finish(lambda text: None, 60) == {}
    after = Mirror(
        first.folder, first.bucket, first.prefix, first.writer, "job", "", first.views, "machine-0"
    )
    after.journal.is_shared = True
    assert after.restore(bring=False)[1] == {}
    head = after.journal.head
    assert not head.rests and views.newest_moment([head, second.journal.head])[0] > head.at_ns - 3e9
    rows = views.at(views.of_job(first.bucket, "job")).rows
    assert list(rows) == ["job/checkpoint"]


def test_files_that_machines_rewrite_all_the_time_hold_nothing_up(machines, disk, monkeypatch):
    monkeypatch.setattr("berg.google.mirror.MOVING_AFTER", 1)
    monkeypatch.setattr("berg.google.journal.IDLE", 0)
    set_clocks(monkeypatch, 10**8)
    both = machines("1", "2")

    def make_passes() -> None:
        for mirror in both:
            for name in [f"status-of-{mirror.machine}"] * 3:
                write(mirror, name, os.urandom(100))
            mirror.sync()

    end = time.monotonic() + 2
    while time.monotonic() < end:
        make_passes()
    write(both[0], "checkpoint", b"1")
    make_passes()
    make_passes()
    assert (disk("3").folder / "job/checkpoint").exists()


def test_what_was_restored_does_not_replace_what_another_machine_wrote(
    machines, bucket, monkeypatch
):
    """Small files that are rewritten are in views, before they have their plain object."""
    set_clocks(monkeypatch, 0)
    both = machines("1", "2")
    for data in (b"1", b"2"):
        write(both[0], "checkpoint", data)
        both[0].sync()
    for mirror in both:
        mirror.rest()
        mirror.sync()
    for mirror in both:
        assert mirror.restore()[1] == {}
        assert (mirror.folder / "job/checkpoint").read_bytes() == b"2"
    write(both[0], "checkpoint", b"3")
    for mirror in both:
        assert mirror.conclude(mirror.finish(lambda text: None, 60)) == {}
    assert bucket.read("results/job/checkpoint") == b"3"


def test_a_machine_that_wrote_nothing_holds_the_moment_of_all_back_no_longer_than_it_runs(
    machines, disk, monkeypatch
):
    set_clocks(monkeypatch, 0)
    both = machines("1", "2")
    for mirror in both:
        mirror.sync()
    write(both[0], "checkpoint", b"1")
    for mirror in both:
        assert mirror.finish(lambda text: None, 60) == {}
    assert (disk("3").folder / "job/checkpoint").read_bytes() == b"1"


def test_a_file_that_is_written_before_the_first_pass_makes_no_gap(disk):
    """The folder is watched from the restore on, also if that made it."""
    first = disk("1")
    first.journal.is_shared = True  # of one machine alone gaps are forgotten
    write(first, "checkpoint", b"1")
    write(first, "last-words", b"x")
    first.sync()
    assert not first.journal.gaps


def test_a_machine_that_is_still_to_meet_the_others_holds_back_no_moment(
    machines, bucket, tmp_path, monkeypatch
):
    """It restores at once, and again with the others, which have more in the bucket by then."""
    set_clocks(monkeypatch, 0)
    first, second = machines("1", "2")
    third = tmp_path / "3"
    third.mkdir()
    late = Mirror(third, bucket, "results/", "job/3", "job", views=".berg/views/job/3/")
    late.machine = late.journal.machine = second.machine
    late.journal.is_shared = True
    assert late.restore(publish=False)[1] == {}
    write(first, "checkpoint", b"1")
    for mirror in (first, second):
        mirror.rest()
        mirror.sync()
    assert late.restore()[1] == {}
    assert (late.folder / "job/checkpoint").read_bytes() == b"1"
