"""What the bucket has of a folder at each moment, and what a restore brings: programs that write,
rename, delete and die in the middle, against the embedded cloud.
"""

import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from berg import BergError
from berg.google import journal as module
from berg.google import views
from berg.google.mirror import Mirror
from berg.laptop import lookup

BIG = 100_000  # bytes: more than a view holds itself
HOUR = 3600 * 10**9


@pytest.fixture
def begin(bucket, cloud, tmp_path):
    """Return what begins a mirror of a job on a disk of its own, restored."""

    def on_disk(disk: str, name: str = "job", restored: bool = True, **how) -> Mirror:
        folder = tmp_path / disk / "berg_results"
        (folder / "out").mkdir(parents=True)
        prefix = f".berg/views/{name}/{disk}/"
        mirror = Mirror(folder, bucket, "berg_results/", f"{name}/{disk}", "out", "", prefix, "m")
        if restored:
            mirror.restore(**how)
        return mirror

    yield on_disk
    cloud.call("DELETE", "/_berg/faults")


def after(mirror: Mirror) -> Mirror:
    """Return the mirror of the next worker on the same disk."""
    names = ("folder", "bucket", "prefix", "writer", "own", "records", "views", "machine")
    made = Mirror(**{name: getattr(mirror, name) for name in names})
    made.sender.was_cut = mirror.sender.was_cut
    return made


def sync(mirror: Mirror) -> None:
    """Pass until the last view has all that is closed; times of files are a little behind."""
    end = time.monotonic() + 60
    while mirror.sync() or mirror.failed or mirror.journal.lags():
        assert time.monotonic() < end, mirror.failed


def out(mirror: Mirror) -> Path:
    return mirror.folder / "out"


def plain(mirror: Mirror, name: str) -> bytes | None:
    return mirror.bucket.read(f"berg_results/out/{name}")


def found(mirror: Mirror) -> dict[str, object]:
    """What is in the folder: bytes of files, targets of links."""
    return {
        str(path.relative_to(out(mirror))): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(out(mirror).rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def test_a_restore_brings_files_links_times_and_modes_and_nothing_else(begin):
    one = begin("one")
    (out(one) / "step-1").mkdir()
    (out(one) / "step-1/model").write_bytes(b"weights")
    (out(one) / "run.sh").write_text("exit\n")
    (out(one) / "run.sh").chmod(0o755)
    os.utime(out(one) / "step-1/model", (1000, 1000))
    (out(one) / "latest").symlink_to(out(one) / "step-1")
    (out(one) / "gone").write_text("x")
    sync(one)
    (out(one) / "gone").unlink()
    sync(one)
    two = begin("two", restored=False)
    (out(two) / "left by a restore that broke off").write_text("x")
    (out(two) / "run.sh").mkdir()
    two.restore()
    assert found(two) == {"latest": "step-1", "run.sh": b"exit\n", "step-1/model": b"weights"}
    assert (out(two) / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (out(two) / "step-1/model").stat().st_mtime == 1000
    assert (out(two) / "step-1").stat().st_mtime == 1000, "programs look for the newest folder"
    sent = two.bytes_sent
    sync(two)
    assert two.bytes_sent == sent, "what was restored is not sent again"


def test_half_a_file_replaces_no_whole_one(begin):
    one = begin("one")
    (out(one) / "ckpt.pt").write_bytes(b"1" * BIG)
    sync(one)
    with (out(one) / "ckpt.pt").open("wb") as file, (out(one) / "new.pt").open("wb") as new:
        for half in (file, new):
            half.write(b"\0" * (BIG // 2))
            half.flush()
        sync(one)
        assert plain(one, "ckpt.pt") == b"1" * BIG and plain(one, "new.pt") is None
        assert found(begin("two")) == {"ckpt.pt": b"1" * BIG}
    sync(one)
    assert plain(one, "ckpt.pt") == b"\0" * (BIG // 2), "moved to its name once a view has it"
    assert list(one.bucket.list(".berg/tmp/")) == []


@pytest.mark.parametrize("size", [0, 1, BIG])
def test_a_file_of_any_size_is_rewritten(begin, size):
    one = begin("one")
    (out(one) / "file").write_bytes(b"before")
    sync(one)
    (out(one) / "file").write_bytes(b"x" * size)
    sync(one)
    assert found(begin("two", "next", begins_with="job")) == {"file": b"x" * size}
    assert one.finish(print) == {} and one.conclude({}) == {}
    assert plain(one, "file") == b"x" * size


def test_what_came_after_a_file_that_is_not_there_is_not_restored(begin, cloud):
    one = begin("one")
    (out(one) / "latest").write_text("step 1")
    sync(one)
    cloud.fault("storage.objects.insert", match="berg_results/out/shard", status=503, times=None)
    (out(one) / "shard").write_bytes(b"x" * BIG)
    time.sleep(0.02)
    (out(one) / "latest").write_text("step 10")  # which begins as the one before
    (out(one) / "newer").write_text("newer")
    one.sync(1)
    assert plain(one, "newer") == b"newer", "it is a result all the same"
    assert found(begin("two", "next", begins_with="job")) == {"latest": b"step 1"}
    cloud.call("DELETE", "/_berg/faults")
    sync(one)
    assert found(begin("three")).keys() == {"latest", "newer", "shard"}


def test_a_folder_that_is_renamed_is_copied_in_the_bucket_and_comes_whole(begin):
    one = begin("one")
    (out(one) / "3.tmp").mkdir()
    for name in ("a", "b"):
        (out(one) / "3.tmp" / name).write_bytes(os.urandom(2 << 20))
    sync(one)
    sent = one.bytes_sent
    (out(one) / "3.tmp").rename(out(one) / "3")
    sync(one)
    assert one.bytes_sent == sent
    assert found(begin("two")) == {
        f"3/{name}": (out(one) / "3" / name).read_bytes() for name in "ab"
    }


def test_a_log_that_is_open_is_restored_as_long_as_it_is_there(begin):
    one = begin("one")
    with (out(one) / "metrics.jsonl").open("w") as log:
        for number in range(3):
            print(number, file=log, flush=True)
            one.sync()
        sync(one)
        assert found(begin("two")) == {"metrics.jsonl": b"0\n1\n2\n"}
        number = one.journal.number
        print(3, file=log, flush=True)
        sync(one)
    assert one.journal.number == number, "growth needs no view"
    assert found(begin("three")) == {"metrics.jsonl": b"0\n1\n2\n3\n"}


def test_a_database_in_use_is_a_copy_of_one_moment(begin):
    one = begin("one")
    database = sqlite3.connect(out(one) / "study.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE trials (number)")
    database.execute("INSERT INTO trials VALUES (7)")
    sync(one)
    two = begin("two", "next", begins_with="job")
    assert list(found(two)) == ["study.db"], "without the parts that are in use"
    copy = sqlite3.connect(out(two) / "study.db")
    assert copy.execute("SELECT number FROM trials").fetchall() == [(7,)]
    view = views.at(views.of_job(one.bucket, "job"))
    assert view.rows["out/study.db"].moving
    database.close()
    assert one.finish(print) == {} and one.conclude({}) == {}
    view = views.at(views.of_job(one.bucket, "job"))
    assert view.final and not view.rows["out/study.db"].moving


@pytest.mark.parametrize("keeps", [False, True])
def test_what_the_job_deleted_stays_for_an_hour_or_to_its_end(begin, monkeypatch, keeps):
    one = begin("one")
    one.journal.keeps_deleted = keeps
    one.bucket.write("berg_results/out/theirs", b"of nobody")
    for name in ("early", "late", "kept"):
        (out(one) / name).write_text(name)
    sync(one)
    (out(one) / "early").unlink()
    sync(one)
    assert plain(one, "early") == b"early"
    monkeypatch.setattr(module, "GRACE", -1)
    sync(one)
    one.sync()
    assert plain(one, "early") == (b"early" if keeps else None)
    monkeypatch.undo()
    (out(one) / "late").unlink()
    sync(one)
    assert plain(one, "late") == b"late"
    assert one.finish(print) == {} and one.conclude({}) == {}
    assert plain(one, "late") == (b"late" if keeps else None)
    assert plain(one, "theirs") == b"of nobody" and plain(one, "kept") == b"kept"


def test_a_folder_that_is_gone_deletes_nothing(begin, monkeypatch):
    monkeypatch.setattr(module, "GRACE", -1)
    one = begin("one")
    (out(one) / "file").write_text("x")
    sync(one)
    out(one).rename(one.folder.parent / "elsewhere")
    for _ in range(3):
        one.sync()
    assert one.finish(print) == {} and one.conclude({}) == {}
    assert plain(one, "file") == b"x"


def test_a_later_job_begins_with_the_last_view_of_the_one_before_or_with_nothing(begin):
    one = begin("one")
    (out(one) / "file").write_text("first")
    (out(one) / "deleted").write_text("x")
    sync(one)
    (out(one) / "deleted").unlink()
    sync(one)
    assert found(begin("two", "next", begins_with="job")) == {"file": b"first"}
    fresh = begin("three", "fresh", fresh=True)
    assert found(fresh) == {}
    (out(fresh) / "file").write_text("of its own")
    sync(fresh)
    assert fresh.refused == {} and plain(fresh, "file") == b"of its own"


def test_what_a_disk_sent_before_its_first_view_is_no_moment(begin, cloud):
    one = begin("one")
    cloud.fault("storage.objects.insert", match="berg%2Fviews", status=503, times=None)
    cloud.fault("storage.objects.insert", match="out/b", status=503, times=None)
    (out(one) / "a").write_text("without b")
    (out(one) / "b").write_text("b")
    one.sync(0.5)
    cloud.call("DELETE", "/_berg/faults")
    assert plain(one, "a") == b"without b"
    one.bucket.write("berg_results/out/by hand", b"hello")
    assert found(begin("two")) == {"by hand": b"hello"}


def test_old_versions_stay_until_all_machines_have_passed_them(begin, monkeypatch):
    one = begin("one")
    one.journal.is_shared, others = True, [views.Head(one.journal.at_ns)]
    one.journal.others = lambda: others
    (out(one) / "large").write_bytes(b"1" * BIG)
    sync(one)
    (out(one) / "large").write_bytes(b"2" * BIG)
    sync(one)
    assert plain(one, "large") == b"1" * BIG
    later = time.time_ns() + HOUR
    others[0] = views.Head(later, gaps=[[one.journal.at_ns - HOUR, later]])
    one.sync()
    assert plain(one, "large") == b"1" * BIG, "the other machine was not whole in between"
    others[0] = views.Head(later)
    monkeypatch.setattr(views, "CLOCKS_NS", 0)
    one.sync()
    assert plain(one, "large") == b"2" * BIG


def test_a_worker_after_one_that_died_continues_the_history(begin, tmp_path):
    one = begin("one")
    (out(one) / "file").write_text("x")
    sync(one)
    two = after(one)
    two.restore(bring=False)
    assert two.journal.number == one.journal.number
    (out(one) / "file").unlink()
    (out(one) / "more").write_text("y")
    sync(two)
    assert found(begin("two")) == {"more": b"y"}


def test_no_view_is_there_without_those_after_it(begin, monkeypatch):
    """Else it would count at a later moment."""
    one = begin("one")
    for name in ("a.pt", "b.pt"):
        save(one, name)
    two = after(one)
    two.restore(bring=False)
    monkeypatch.setattr(module, "MOST_VIEWS", 1)
    for name in ("c.pt", "d.pt", "e.pt"):
        save(two, name)
    numbers = sorted(int(each.name[-8:]) for each in two.bucket.list(two.views))
    assert numbers[0] > 3 and numbers == [*range(numbers[0], numbers[-1] + 1)]


@pytest.mark.parametrize("how", ["on a new disk", "where it stayed"])
def test_a_restore_that_fails_deletes_nothing_and_is_no_end(begin, cloud, monkeypatch, how):
    """Such as on a machine whose job ends for it."""
    monkeypatch.setattr("berg.google.mirror.RESTORE_PAUSES", (0, 0))
    one = begin("one")
    save(one, "a.pt", "b.pt")
    before = found(one)
    mirror = one if how == "where it stayed" else begin("two", restored=False)
    if mirror is one:
        (out(one) / "a.pt").unlink()  # in no view yet
    cloud.fault("storage.objects.get", match="a.pt?alt=media", status=403, times=None)
    with pytest.raises(BergError, match="stay in the bucket"):
        mirror.restore()
    mirror.sync()
    assert mirror.finish(print) == {} and mirror.conclude({}) == {}
    cloud.call("DELETE", "/_berg/faults")
    assert found(begin("three")) == before and plain(one, "a.pt")


def test_what_a_disk_has_is_sent_also_if_its_next_worker_learns_nothing_at_first(
    begin, cloud, monkeypatch
):
    monkeypatch.setattr("berg.google.mirror.RESTORE_PAUSES", (0, 0))
    one = begin("one")
    save(one, "a.pt")
    (out(one) / "b.pt").write_bytes(b"2")
    cloud.fault("storage.objects.list", status=403, times=None)
    two = after(one)
    with pytest.raises(BergError):
        two.restore(bring=False)
    cloud.call("DELETE", "/_berg/faults")
    finish(two)
    assert sorted(found(begin("three"))) == ["a.pt", "b.pt"]


def test_a_job_that_is_on_a_disk_for_a_second_time_continues_there(begin, monkeypatch):
    """Such as on a machine that is kept warm; in between it was elsewhere."""
    monkeypatch.setattr(module, "MOST_VIEWS", 1)
    one = begin("one")
    for name in ("a.pt", "b.pt", "c.pt", "d.pt"):
        save(one, name)
    two = begin("two")
    save(two, "e.pt")
    shutil.rmtree(out(one))
    again = after(one)
    again.restore()
    save(again, "f.pt")
    assert sorted(found(begin("three"))) == [f"{name}.pt" for name in "abcdef"]


def test_a_worker_after_one_that_died_knows_which_bytes_wait_for_their_object(begin):
    one = begin("one")
    for text in ("first", "second", "third"):
        (out(one) / "file").write_text(text)
        (out(one) / "same").write_text(text)
        sync(one)
    assert plain(one, "file") == b"second", "the third waits in a view"
    after = Mirror(
        one.folder, one.bucket, one.prefix, one.writer, "out", "", one.views, one.machine
    )
    after.restore(bring=False)
    (out(one) / "file").write_text("second")
    sync(after)
    assert after.conclude(after.finish(lambda text: None)) == {}
    assert plain(one, "file") == b"second" and plain(one, "same") == b"third"
    assert found(begin("two")) == {"file": b"second", "same": b"third"}


def test_the_last_view_has_what_was_restored_just_before(begin):
    one = begin("one")
    (out(one) / "file").write_text("x")
    sync(one)
    two = begin("two")
    two.looked_ns -= 10**9
    two.journal.publish(two.looked_ns, is_final=True)
    assert found(begin("three")) == {"file": b"x"}


def test_a_view_of_a_change_among_many_files_is_small(begin):
    one = begin("one")
    for number in range(2000):
        (out(one) / str(number)).touch()
    sync(one)
    while one.journal.rows_since_full >= 2000:  # a full view of them comes with a later change
        with (out(one) / "8").open("a") as file:
            file.write("changed, too")
        sync(one)
    (out(one) / "7").write_text("changed")
    sync(one)
    newest = max(one.bucket.list(one.views), key=lambda blob: blob.name)
    assert newest.size < 1000


def blocked(cloud, *names: str) -> None:
    """Let the bucket refuse what these files send, until the faults are deleted."""
    for name in names:
        match = f"berg_results/out/{name}"
        cloud.fault("storage.objects.insert", match=match, status=503, times=None)


def later(mirror: Mirror, **contents: str) -> None:
    """Write files, and wait: their times are a little behind the clock."""
    for name, text in contents.items():
        (out(mirror) / name).write_text(text)
    time.sleep(0.03)


def test_a_full_view_has_what_a_newer_version_is_to_replace(begin, cloud, monkeypatch):
    monkeypatch.setattr(module, "MOST_VIEWS", 2)
    one = begin("one")
    later(one, latest="step 1")
    sync(one)
    blocked(cloud, "shard")
    later(one, shard="x")
    for step in range(2, 6):
        later(one, latest=f"step {step}")
        one.sync(0.3)
    assert len(one.journal.full_numbers) > 1
    assert found(begin("two", "next", begins_with="job")) == {"latest": b"step 1"}


def test_between_two_looks_a_file_was_gone_before_it_came_again(begin, cloud):
    one = begin("one")
    later(one, marker="1", other="1")
    sync(one)
    (out(one) / "marker").unlink()
    time.sleep(0.03)
    later(one, other="while there was no marker")
    later(one, late="1")
    later(one, marker="2")
    blocked(cloud, "late")
    one.sync(0.3)
    assert found(begin("two", "next", begins_with="job")) == {"marker": b"1", "other": b"1"}


def test_a_folder_whose_place_an_older_one_took_was_there_until_then(begin, cloud):
    one = begin("one")
    for name in ("old", "new"):
        (out(one) / name).mkdir()
        (out(one) / name / name).write_text(name)
    time.sleep(0.03)
    sync(one)
    later(one, first="1")
    later(one, second="2")
    (out(one) / "new").rename(out(one) / "newest")
    (out(one) / "old").rename(out(one) / "new")
    blocked(cloud, "second")
    one.sync(0.3)
    names = {"old/old", "new/new"}
    assert found(begin("two", "next", begins_with="job")).keys() in (names, names | {"first"})


def test_a_file_that_is_deleted_while_it_is_sent_does_not_come_back(begin, cloud):
    one = begin("one")
    later(one, kept="x")
    sync(one)
    cloud.fault("storage.objects.insert", match="out/deleted", delay=1)
    later(one, deleted="x")
    one.sync(0.1)
    (out(one) / "deleted").unlink()
    one.sync(0.1)
    while one.underway:
        one.sync(0.1)
    assert found(begin("two")) == {"kept": b"x"}
    assert one.finish(print) == {} and one.conclude({}) == {}
    assert plain(one, "deleted") is None


def test_a_file_that_takes_the_place_of_another_is_not_that_while_it_is_written(begin):
    one = begin("one")
    (out(one) / "ckpt.pt").write_bytes(b"1" * BIG)
    sync(one)
    (out(one) / "ckpt.pt").unlink()
    with (out(one) / "ckpt.pt").open("wb") as file:
        file.write(b"\0" * BIG)
        file.flush()
        time.sleep(0.03)
        sync(one)
        assert found(begin("two", "next", begins_with="job")) == {}
    sync(one)
    assert found(begin("three")) == {"ckpt.pt": b"\0" * BIG}


def test_a_log_that_is_closed_has_its_last_time(begin):
    one = begin("one")
    for line in ("first\n", "second\n"):
        with (out(one) / "log").open("a") as log:
            log.write(line)
            log.flush()
            sync(one)
        sync(one)
    two = begin("two")
    assert found(two) == {"log": b"first\nsecond\n"}
    assert (out(two) / "log").stat().st_mtime_ns == (out(one) / "log").stat().st_mtime_ns


def test_after_a_view_whose_answer_was_lost_there_is_a_next_one(begin, cloud):
    one = begin("one")
    name = f"{one.views}{one.journal.number + 1:08}"
    one.bucket.write(name, views.encode(views.Head(one.journal.at_ns, "m"), []))
    later(one, file="x")
    sync(one)
    assert found(begin("two")) == {"file": b"x"}


def test_what_was_complete_before_a_folder_was_watched_is_waited_for(begin):
    one = begin("one")
    later(one, file="x")
    sync(one)
    (out(one) / "new").mkdir()
    (out(one) / "new/marker").write_text("1")
    later(one, file="after the marker")
    with (out(one) / "new/marker").open("wb"):
        one.sync()
        assert found(begin("two", "next", begins_with="job")) == {"file": b"x"}


def test_a_file_that_was_cut_short_is_waited_for(begin):
    one = begin("one")
    later(one, marker="long", file="x")
    sync(one)
    os.truncate(out(one) / "marker", 1)
    later(one, file="after the marker")
    one.sync(only_new=True)
    with (out(one) / "marker").open("wb"):
        one.sync()
        assert found(begin("two", "next", begins_with="job")) == {"file": b"x", "marker": b"long"}


def test_a_file_that_is_opened_again_was_complete_before(begin):
    one = begin("one")
    later(one, marker="1", file="x")
    sync(one)
    later(one, marker="2")
    later(one, file="after the marker")
    with (out(one) / "marker").open("wb"):
        time.sleep(0.03)
        one.sync()
        assert found(begin("two", "next", begins_with="job")) == {"file": b"x", "marker": b"1"}


def test_a_file_that_was_open_when_it_was_looked_at_last_is_sent_at_the_end(begin):
    one = begin("one")
    with (out(one) / "file").open("wb") as file:
        file.write(b"\0" * BIG)
        file.flush()
        one.sync(-1)  # begins to look, and does not wait
        while one.ready.empty():
            time.sleep(0.01)
    assert one.finish(print) == {} and one.conclude({}) == {}
    assert found(begin("two")) == {"file": b"\0" * BIG}
    assert not views.at(views.of_job(one.bucket, "job")).rows["out/file"].moving


def test_what_an_earlier_disk_wrote_after_the_restore_is_replaced(begin):
    one, two = begin("one"), begin("two")
    later(one, file="late")
    sync(one)
    later(two, file="x")
    sync(two)
    assert two.refused == {} and plain(two, "file") == b"x"


def test_the_first_bytes_of_a_file_are_no_lines(begin):
    one = begin("one")
    with (out(one) / "ckpt.pt").open("wb") as file:
        file.write(b"\xf0\x0f weights\n")
        file.flush()
        sync(one)
        assert found(begin("two", "next", begins_with="job")) == {}


# --- files that programs had open for writing when they were ended


def cut(mirror: Mirror, *files: Path) -> None:
    inodes = {file.stat().st_ino for file in files}
    mirror.sender.was_cut = lambda seen: seen.st_ino in inodes


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
    last = after(one) if is_new else one
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


def save(mirror: Mirror, *names: str, text: bytes = b"1") -> list[Path]:
    files = [out(mirror) / name for name in names]
    for file in files:
        file.write_bytes(text * BIG)
    sync(mirror)
    return files


def end_in_a_save(mirror: Mirror, half: Path, late: Path) -> None:
    """Rewrite a file half, and meanwhile another one whole."""
    with half.open("wb", buffering=0) as file:
        file.write(b"2")
        mirror.sync()
        late.write_bytes(b"2" * BIG)
        mirror.sync()
        cut(mirror, half)


def test_a_save_in_which_a_program_was_ended_is_undone_on_its_disk(begin, cloud):
    """Also if a download fails at first; and the next view has no mix."""
    one = begin("one")
    half, late, _ = save(one, "a.pt", "late.pt", "rest.pt")
    end_in_a_save(one, half, late)
    (out(one) / "new.pt").write_bytes(b"2")
    cut(one, half, out(one) / "new.pt")
    assert one.finish(print) == {}
    cloud.fault("storage.objects.get", match="late.pt?alt=media", status=403, times=2)
    two = after(one)
    assert two.restore(bring=False, undo=True) == (2, {})
    before = dict.fromkeys(("a.pt", "late.pt", "rest.pt"), b"1" * BIG)
    assert found(two) == before
    sync(two)
    assert found(begin("three")) == before


def test_a_save_over_a_file_that_was_rewritten_all_the_time_is_undone(begin, monkeypatch):
    monkeypatch.setattr("berg.google.mirror.MOVING_AFTER", -1)
    one = begin("one")
    half, rest = save(one, "a.pt", "rest.pt")
    for file in (half, rest):
        with file.open("r+b", buffering=0) as moving:
            moving.write(b"1")
            os.utime(moving.fileno(), (1, 1))  # it is quiet
            for _ in range(3):
                one.sync()
    assert all(row.moving for row in views.at(views.of_job(one.bucket, "job")).rows.values())
    with half.open("wb", buffering=0) as file:
        file.write(b"2")
        cut(one, half)
    assert one.finish(print) == {}
    two = after(one)
    assert two.restore(bring=False, undo=True) == (1, {})
    assert found(two) == dict.fromkeys(("a.pt", "rest.pt"), b"1" * BIG)
    sync(two)
    assert plain(two, "a.pt") == b"1" * BIG


def test_a_save_over_a_file_that_was_removed_is_undone(begin):
    one = begin("one")
    half, again = save(one, "opt.pt", "model.pt")
    with half.open("wb", buffering=0) as file:
        file.write(b"2")
        one.sync()
        again.unlink()
        one.sync()
        again.write_bytes(b"2")
        cut(one, half, again)
        one.sync()
    assert one.finish(print) == {}
    two = after(one)
    two.restore(bring=False, undo=True)
    assert found(two) == {"model.pt": b"1" * BIG, "opt.pt": b"1" * BIG}


def test_a_database_stays_where_a_save_is_undone(begin):
    one = begin("one")
    (half,) = save(one, "ckpt.pt")
    database = sqlite3.connect(out(one) / "study.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE trials (number)")
    sync(one)
    with half.open("wb", buffering=0) as file:
        file.write(b"2")
        one.sync()
        database.executemany("INSERT INTO trials VALUES (?)", [(n,) for n in range(5000)])
        cut(one, half, out(one) / "study.db", out(one) / "study.db-wal")
        assert one.finish(print) == {}
    two = after(one)
    two.restore(bring=False, undo=True)
    assert half.read_bytes() == b"1" * BIG
    again = sqlite3.connect(out(one) / "study.db")
    assert again.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert again.execute("SELECT count(*) FROM trials").fetchone() == (5000,)


def test_what_a_job_deleted_and_did_not_replace_is_there_after_its_machine_is_lost(begin, cloud):
    """A fetch brings it: only a job that ended in a save is more than its last moment."""
    one = begin("one")
    (old,) = save(one, "ckpt-1.pt")
    cloud.fault("storage.objects.insert", match="ckpt-2.pt", status=503, times=None)
    (out(one) / "ckpt-2.pt").write_bytes(b"2" * BIG)
    old.unlink()
    one.sync(0.5)
    assert [*lookup.view_of(one.bucket, "job").rows] == ["out/ckpt-1.pt"]


def test_what_was_written_before_a_job_ended_in_a_save_is_fetched(begin):
    one = begin("one")
    half, best = save(one, "a.pt", "best.pt")
    end_in_a_save(one, half, best)
    finish(one)
    before, now = views.at(views.of_job(one.bucket, "job")), lookup.view_of(one.bucket, "job")
    assert (before.cut, before.final) == (True, False)
    sums = [
        [view.rows[f"out/{name}"].crc32c for name in ("a.pt", "best.pt")] for view in (before, now)
    ]
    assert len({*sums[0], sums[1][0]}) == 1 and sums[1][1] != sums[0][1]
