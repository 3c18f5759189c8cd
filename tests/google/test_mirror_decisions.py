"""What a mirror decides by itself: what is due, what is waited for, what is given up, and when it ends.

The bucket is in memory, and the clock is one that the tests set. What Cloud Storage makes of it is
looked at in test_mirror.py.
"""

import errno
import math
import os
import threading
import time
from datetime import datetime
from types import SimpleNamespace

import pytest

from berg import BergError
from berg.google import api, fetch
from berg.google import mirror as module
from berg.google.mirror import Mirror
from berg.google.sending import WRITER, Entry, Refused, Sending, Taken, marks
from berg.google.storage import Unreadable
from tests.memory_bucket import Uploads

RECORDS = ".berg/folders/job/"


class Scripted(Mirror):
    """A mirror whose passes are told: how many files each sends, and what it could not send."""

    def sync(self, seconds=math.inf, **_):
        self.asked.append(seconds)
        module.time.now += 0.5
        sent, self.failed = next(self.script)
        return sent


class Clock:
    """The time of the mirror's module: it passes while one sleeps."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    return Mirror(folder, Uploads(), "berg_results/", "job/0", "job", RECORDS)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def scripted(tmp_path, clock):
    def begin(*passes):
        mirror = Scripted(tmp_path, Uploads(), "berg_results/", "job/0", "job")
        mirror.script, mirror.asked = iter(passes), []
        return mirror

    return begin


def under_way(mirror, clock, path: str, still: float, large: bool = False, inode: int = 0):
    sending = Sending(path, None, large, inode, moved=clock.now - still)
    mirror.underway[path] = sending
    return sending


def sent(mirror, path: str, **changed) -> Entry:
    """Let a file count as sent, as it is now but for what is said."""
    entry = Entry(*marks((mirror.folder / path).stat()), 1, "crc", "", True)
    for name, value in changed.items():
        setattr(entry, name, value)
    mirror.manifest.put(path, entry)
    return mirror.manifest.get(path)


def queued(mirror, large: bool) -> list[str]:
    return [path for path, _ in mirror.manifest.queued(large)]


# --- how many at a time


@pytest.mark.parametrize(
    ("still", "large", "counted"),
    [
        ([], True, 0),
        ([0, 0], True, 2),
        ([0, 4.9], True, 2),
        ([0, 5], True, 1),  # one that stands still holds no other up,
        ([5, 5], True, 0),
        ([5, 5, 0], True, 1),
        ([5, 5, 5, 5], True, 2),  # until as many stand still as may be sent at a time
        ([5] * 8 + [0], False, 1),
        ([5] * 10, False, 2),
    ],
)
def test_files_that_stand_still_are_counted_as_few(mirror, clock, still, large, counted):
    for number, seconds in enumerate(still):
        under_way(mirror, clock, str(number), seconds, large)
    under_way(mirror, clock, "of the other kind", 0, not large)
    assert mirror.count_underway(large) == counted


def test_each_kind_of_file_has_a_limit_of_its_own(mirror, clock, monkeypatch):
    begun = []
    monkeypatch.setattr(mirror, "begin", lambda path, at, large: begun.append((path, large)))

    def feed(paths):
        return iter([(str(path), 1) for path in paths])

    feeds = {False: feed(range(10)), True: feed(["one"])}
    mirror.begin_as_many_as_may(feeds)
    assert begun == [(str(number), False) for number in range(8)] + [("one", True)]
    assert list(feeds) == [False], "a kind that has no more is asked no more"
    feeds = {True: feed("abc")}
    begun.clear()
    mirror.begin_as_many_as_may(feeds)
    assert begun == [("a", True), ("b", True)] and list(feeds) == [True]
    for number in range(2):
        under_way(mirror, clock, str(number), 0)
    begun.clear()
    mirror.begin_as_many_as_may({False: feed("abcdefghij")})
    assert len(begun) == 6


def test_what_only_has_to_be_compared_counts_as_in_the_bucket(scripted):
    names, said = ("same", "changed", "new"), []
    late = (1, dict.fromkeys(names, "there was no time for it"))
    mirror = scripted(late, (0, dict.fromkeys(names[:1], "no time")), *[late] * 300)
    for name in names:
        (mirror.folder / name).write_text(name)
    sent(mirror, "same", sure=False)
    sent(mirror, "changed", size=1)
    assert mirror.finish(said.append, seconds=100) == dict.fromkeys(
        ("changed", "new"), "there was no time for it"
    )
    assert {line.partition(":")[0] for line in said} == {"2 files are not in the bucket yet"}


@pytest.mark.parametrize(("size", "is_large"), [((2 << 20) - 1, False), (2 << 20, True)])
def test_a_file_is_large_from_two_mebibytes_on(mirror, size, is_large):
    with (mirror.folder / "file").open("wb") as file:
        file.truncate(size)
    mirror.queue_changes()
    assert queued(mirror, is_large) == ["file"] and queued(mirror, not is_large) == []


# --- which files are due


def test_what_is_on_its_way_or_as_it_was_sent_is_not_queued(mirror, clock, monkeypatch):
    for name in ("new", "same", "doubtful", "changed", "on its way"):
        (mirror.folder / name).write_text(name)
    sent(mirror, "same")
    sent(mirror, "doubtful", sure=False)
    sent(mirror, "changed", size=1)
    under_way(mirror, clock, "on its way", 0)
    (mirror.folder / "on its way").unlink()
    clock.now = time.time() + 3600
    for newer, older in (("new", "changed"), ("changed", "new")):
        at_ns = {newer: 2, older: 1}
        monkeypatch.setattr(mirror, "note_version", lambda path, *_, at_ns=at_ns: at_ns[path])
        mirror.watch.forget()
        mirror.queue_changes()
        assert queued(mirror, False) == [older, newer, "doubtful"], "what changed first goes first"
    mirror.failing_since["new"] = 0.0
    (mirror.folder / "newer").touch()
    monkeypatch.undo()
    monkeypatch.setattr(module, "time", clock)
    mirror.watch.forget()
    mirror.queue_changes(only_new=True)
    assert queued(mirror, False) == ["newer"], "neither sent before nor tried"


def test_a_file_is_settled_once_it_was_compared_and_has_one_name(mirror, clock):
    path = mirror.folder / "file"
    path.write_text("x")
    entry, seen = sent(mirror, "file"), path.stat()
    assert mirror.is_settled("file", entry, seen)
    assert not mirror.is_settled("file", None, seen)
    assert not mirror.is_settled("file", sent(mirror, "file", sure=False), seen)
    assert not mirror.is_settled("file", sent(mirror, "file", mtime_ns=1), seen)
    mirror.views = ".berg/views/job/0/"
    assert not mirror.is_settled("file", entry, seen), "the next view is to have it"
    assert mirror.is_settled("file", sent(mirror, "file", in_view=True), seen)
    mirror.views = ""
    under_way(mirror, clock, "file", 0)
    assert not mirror.is_settled("file", entry, seen)
    mirror.underway.clear()
    os.link(path, mirror.folder / "other name")
    assert not mirror.is_settled("file", sent(mirror, "file"), path.stat())


def test_what_is_not_settled_is_looked_at_by_the_next_pass(mirror):
    for name in ("settled", "not sure"):
        (mirror.folder / name).write_text("x")
        sent(mirror, name, sure=name == "settled")
    mirror.queue_changes()
    assert mirror.watch.pending == {"not sure"}


def test_the_larger_a_file_the_longer_it_is_quiet_before_it_is_compared(mirror, clock):
    (mirror.folder / "file").write_bytes(bytes(10_000_000))
    entry = sent(mirror, "file", sure=False)
    os.utime(mirror.folder / "file", (1000, 1000))
    seen = (mirror.folder / "file").stat()
    clock.now = 1000.5
    assert not mirror.is_doubtful(entry, seen), "half a second for ten megabytes"
    clock.now = 1000.51
    assert mirror.is_doubtful(entry, seen)
    entry.sure = True
    assert not mirror.is_doubtful(entry, seen)
    clock.now, entry.sure, mirror.finishing = 1000.0, False, True
    assert mirror.is_doubtful(entry, seen)


# --- passes


def test_a_pass_counts_only_if_it_was_whole(mirror, clock):
    clock.now = time.time() + 10
    (mirror.folder / "file").write_text("x")
    assert mirror.sync(seconds=-1) == 0
    assert mirror.failed == {} and mirror.synced_until == "", "the file is still on its way"
    assert mirror.wait_for_some(10) == 1
    assert mirror.sync(only_new=True) == 0 and mirror.synced_until == ""
    assert mirror.sync() == 0
    at = datetime.fromisoformat(mirror.synced_until.replace("Z", "+00:00")).timestamp()
    assert at == pytest.approx(clock.now, abs=2)


def test_what_a_pass_had_no_time_for_is_named(mirror, clock, monkeypatch):
    for number in range(10):
        (mirror.folder / str(number)).write_text("x")
    monkeypatch.setattr(mirror, "note_version", lambda path, *_: int(path) or 100)
    mirror.sync(stop=lambda: True)
    assert mirror.failed == dict.fromkeys(["9", "0"], "there was no time for it")
    assert mirror.is_behind
    while mirror.underway:
        mirror.wait_for_some(10)
    assert mirror.sync() == 2 and not mirror.is_behind and mirror.failed == {}


def test_a_pass_that_breaks_off_names_the_jobs_folder(mirror):
    mirror.manifest.database.close()
    mirror.bucket.write("berg_results/job/a", b"a", metadata={WRITER: "job/0"})
    mirror.bucket.write("berg_results/job/b", b"b", metadata={WRITER: "other/0"})
    mirror.sync()
    assert list(mirror.failed) == ["job"] and mirror.failed["job"].startswith("ProgrammingError: ")
    known = mirror.bucket.get("berg_results/job/a").generation
    assert mirror.manifest.get("job/a").generation == known
    assert mirror.manifest.get("job/b") is None
    assert mirror.watch.due() is None, "the next pass looks at everything"


def test_passes_go_on_until_they_are_to_stop(mirror, monkeypatch):
    waited, passes = [], []

    class Stop(threading.Event):
        def wait(self, seconds):
            waited.append(seconds)
            return len(waited) == 3

    monkeypatch.setattr(mirror, "sync", lambda stop: passes.append(stop()))
    mirror.run(15, Stop())
    assert waited == [15, 15, 15] and passes == [False, False]


def test_a_look_at_everything_says_how_long_it_took(mirror, clock, monkeypatch):
    took = []
    monkeypatch.setattr(mirror.watch, "looked", took.append)
    monkeypatch.setattr(
        mirror, "walk", lambda _: SimpleNamespace(files=lambda: clock.sleep(2) or ())
    )
    mirror.queue_changes()
    assert took == [2]


# --- what became of a file


def test_what_is_through_is_noted(mirror, clock):
    entry = Entry(1, 2, 3, 4, 5, "crc", "", True)
    mirror.failing_since["file"] = 1.0
    mirror.sender.taken.add("file")
    sending = under_way(mirror, clock, "file", 0)
    sending.wrote, sending.bytes, sending.entry = True, 7, entry
    mirror.ready.put(Sending("given up", None, False, wrote=True))
    mirror.ready.put(sending)
    clock.now += 10
    assert mirror.wait_for_some(1) == 1, "nobody waits for the other one"
    assert (mirror.bytes_sent, mirror.wrote_at, mirror.underway) == (7, clock.now, {})
    assert mirror.failing_since == {} and mirror.sender.taken == set()
    assert mirror.manifest.get("file") == entry and mirror.manifest.get("given up") is None
    under_way(mirror, clock, "same", 0).bytes = 1
    clock.now += 10
    mirror.note_end(mirror.underway["same"])
    assert (mirror.bytes_sent, mirror.wrote_at) == (8, clock.now - 10), "nothing was written"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
        (Unreadable("the disk"), "the disk"),
        (Refused("no such name"), "no such name"),
        (Taken("another's"), "another's"),
    ],
)
def test_a_file_that_no_pass_will_send_is_refused(mirror, error, why):
    mirror.note_error("file", error)
    assert (mirror.refused, mirror.failed, mirror.rejected) == ({"file": why}, {}, {})
    assert mirror.sender.taken == ({"file"} if isinstance(error, Taken) else set())


def test_a_failure_is_one_until_its_timeout(mirror, clock):
    refusal, mirror.finishing = api.Forbidden("no"), True
    for seconds in (0, 900):
        clock.now += seconds
        mirror.note_error("file", refusal)
        assert (mirror.failed, mirror.refused) == ({"file": "403 no"}, {})
    clock.now += 1
    mirror.failed = {}
    mirror.note_error("file", refusal)
    assert mirror.failed == {} and mirror.refused == {"file": "the bucket refuses it: 403 no"}
    assert mirror.rejected == mirror.refused
    mirror.note_error("other", ConnectionError("no network"))
    assert mirror.failed == {"other": "no network"}


@pytest.mark.parametrize(
    ("status", "timeout", "at_the_end"),
    [
        (400, 0, 0),
        (431, 0, 0),
        (401, math.inf, 900),
        (403, math.inf, 900),
        (404, math.inf, 900),
        (499, math.inf, 900),
        (408, math.inf, math.inf),
        (412, math.inf, math.inf),
        (429, math.inf, math.inf),
        (500, math.inf, math.inf),
        (501, math.inf, math.inf),
        (399, math.inf, math.inf),
        (0, math.inf, math.inf),
    ],
)
def test_a_refusal_is_taken_at_its_word_at_the_end_alone(mirror, status, timeout, at_the_end):
    assert mirror.timeout_of(status) == timeout
    mirror.finishing = True
    assert mirror.timeout_of(status) == at_the_end


def test_what_is_given_up_says_for_how_long_nothing_came(mirror, clock):
    stalls, goes = under_way(mirror, clock, "stalls", 7), under_way(mirror, clock, "goes", 1)
    mirror.give_up(lambda sending: sending.path == "stalls")
    assert mirror.failed == {"stalls": "the bucket did not answer for 7 s"}
    assert mirror.underway == {"goes": goes} and stalls.given_up and not goes.given_up


def test_a_pass_gives_up_what_stands_still_for_longer_than_its_timeout(mirror, clock):
    for still in (120, 121):
        under_way(mirror, clock, f"{still}", still)
    looks = iter([False, True])
    assert mirror.send_queue(clock.now + 1, stop=lambda: next(looks)) == 0
    assert list(mirror.underway) == ["120"] and list(mirror.failed) == ["121"]


def test_the_next_write_is_due_when_the_bucket_takes_one(mirror, clock):
    assert mirror.seconds_to_next_write() == 0
    mirror.wrote_at = clock.now - 0.5
    assert mirror.seconds_to_next_write() == pytest.approx(0.6)
    clock.now += 2
    assert mirror.seconds_to_next_write() == 0


# --- the end


def test_the_end_waits_no_more_for_what_does_not_move_or_was_replaced(mirror, clock):
    for name in ("moves", "stands", "replaced"):
        (mirror.folder / name).write_text("x")
        inode = (mirror.folder / name).stat().st_ino + (name == "replaced")
        under_way(mirror, clock, name, 3 if name == "stands" else 2, inode=inode)
    under_way(mirror, clock, "gone", 0, inode=1)
    sent(mirror, "moves")
    mirror.begin_to_finish(has_time=True)
    assert list(mirror.underway) == ["moves"] and mirror.timeout == module.LAST_TIMEOUT
    assert mirror.finishing and mirror.watch.due() is None
    assert not mirror.manifest.get("moves").sure, "its bytes are compared once more"
    sent(mirror, "moves")
    mirror.begin_to_finish(has_time=False)
    assert mirror.timeout == module.SHORT_TIMEOUT
    assert mirror.manifest.get("moves").sure, "but once"


def test_what_fails_at_the_end_is_tried_again_with_growing_pauses(scripted, clock):
    failing = [(0, {"file": "no"})] * 7
    mirror, said = scripted(*failing, (1, {}), (0, {})), []
    assert mirror.finish(said.append) == {}
    assert clock.slept == [1, 2, 4, 8, 16, 30, 30] and mirror.asked == [60] * 9
    assert said == ["1 file is not in the bucket yet: file (no)"] * 7


@pytest.mark.parametrize("seconds", [0, 2, 100])
def test_the_end_has_its_time_and_no_more(scripted, clock, seconds):
    mirror, began = scripted(*[(0, {"file": "no"})] * 99), clock.now
    assert mirror.finish(print, seconds=seconds) == {"file": "no"}
    assert clock.now - began == max(seconds, 2) - 0.5, "one more pass, for what is ready"
    longest = 60 if seconds > 60 else 5  # of a pass, which ends with a view
    assert mirror.asked[0] == min(longest, max(seconds, 2) - 1) and mirror.asked[-1] == 0


@pytest.mark.parametrize(("seconds", "has_time"), [(10, False), (60, False), (61, True)])
def test_an_end_in_a_hurry_says_nothing_and_waits_for_less(scripted, seconds, has_time):
    mirror, said = scripted((0, {"file": "no"}), (0, {})), []
    mirror.finish(said.append, seconds=seconds)
    assert bool(said) is has_time
    assert mirror.timeout == (module.LAST_TIMEOUT if has_time else module.SHORT_TIMEOUT)


def test_the_end_names_what_is_still_on_its_way(scripted, clock):
    mirror = scripted(*[(0, {})] * 99)
    (mirror.folder / "file").write_text("x")
    inode = (mirror.folder / "file").stat().st_ino
    under_way(mirror, clock, "file", -99, inode=inode)
    mirror.refused["pipe"] = "no file"
    assert mirror.finish(print, seconds=5) == {"file": "it is being sent", "pipe": "no file"}


def test_what_is_written_without_end_is_kept_as_it_is(scripted, clock):
    mirror = scripted(*[(1, {})] * 2, (0, {"other": "no"}), *[(1, {})] * 99)
    (mirror.folder / "file").write_text("x")
    mirror.bucket.write(f"{mirror.sender.tails}1", b"half")
    assert mirror.finish(print) == {"file": module.MOVING}
    assert mirror.refused == {"file": module.MOVING}
    assert len(mirror.asked) == 22, "twenty passes that found something changed, and one more"
    assert clock.slept == [1] + [1] * 17, "after a failure, and from the fourth of them on"
    assert not mirror.bucket.blobs


def test_what_is_left_is_counted_from_what_is_through(mirror, clock):
    for name in ("new", "begun", "shrunk", "there"):
        (mirror.folder / name).write_bytes(bytes(10))
    sent(mirror, "there")
    sent(mirror, "new", size=1)
    under_way(mirror, clock, "begun", 0).through = 4
    under_way(mirror, clock, "shrunk", 0).through = 12
    assert sorted(mirror.left()) == [("begun", 6), ("new", 10), ("shrunk", 0)]


# --- folders beside the job's own


def test_the_first_file_of_a_folder_that_nobody_would_guess_is_recorded(mirror):
    for path in ("job/a", "job/deep/b", "jobs/c", "jobs/d", "top"):
        mirror.record(path)
    found = {name: blob.metadata["folder"] for name, blob in mirror.bucket.blobs.items()}
    assert sorted(found.values()) == ["", "jobs"] and mirror.folders == {"", "jobs"}
    assert all(name.startswith(RECORDS) and len(name) == len(RECORDS) + 32 for name in found)
    later = Mirror(mirror.folder, mirror.bucket, mirror.prefix, "job/1", "job", RECORDS)
    later.record("jobs/e")  # an earlier attempt did
    assert later.folders == {"jobs"} and len(mirror.bucket.blobs) == 2
    mirror.records = ""
    mirror.record("nobody/asks")
    assert len(mirror.bucket.blobs) == 2


def test_folders_elsewhere_are_told_and_three_of_them_named(mirror):
    assert mirror.elsewhere(alone=True) == ""
    mirror.folders = {"b", "a"}
    for folder in ("c", "../bad"):
        mirror.bucket.write(f"{RECORDS}{ord(folder[0])}", b"", metadata={"folder": folder})
    mirror.bucket.write(f"{RECORDS}0", b"")
    assert mirror.elsewhere(alone=True) == "berg_results/a, berg_results/b"
    three = "berg_results/a, berg_results/b, berg_results/c"
    assert mirror.elsewhere(alone=False) == three
    mirror.folders |= {"d", "e", "f", "g"}
    assert mirror.elsewhere(alone=False) == f"{three} and 4 more"
    mirror.folders = {"x" * 200}
    assert len(mirror.elsewhere(alone=True)) == 80


def test_only_what_the_job_wrote_to_folders_that_it_recorded_is_its_own(mirror):
    def write(name, writer, folder=None):
        metadata = {WRITER: writer} if writer else {}
        metadata |= {} if folder is None else {"folder": folder}
        mirror.bucket.write(name, name.encode(), metadata=metadata)

    for number, folder in enumerate(("", "beside", "../bad", "job/deep")):
        write(f"{RECORDS}{number}", "", folder)
    for folder in ("", "beside/", "nobody/", "beside/deep/"):
        for writer in ("ann/0", "job/7", "zoe/0", ""):
            write(f"berg_results/{folder}{writer.partition('/')[0] or 'nobody'}.txt", writer)
    write("berg_results/job/theirs", "zoe/0")
    write("berg_results/job/deep/mine", "job/0")
    names = [blob.name.removeprefix("berg_results/") for blob in mirror.listed()]
    assert names == ["job/deep/mine", "job/theirs", "job.txt", "beside/job.txt"]
    assert mirror.folders == {"", "beside", "job/deep"}
    mirror.learn()
    known = {name for name in names if mirror.manifest.get(name)}
    assert known == {"job/deep/mine", "job.txt", "beside/job.txt"}, "the folder's others are not"
    mirror.records = ""
    assert len(list(mirror.listed())) == 2


# --- what is brought back


class Tried:
    """A restore whose tries are told: what each returns, or raises."""

    script = iter(())

    def __init__(self, *_):
        pass

    def run(self):
        found = next(self.script)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def tried(monkeypatch):
    monkeypatch.setattr(module, "Restore", Tried)
    return Tried


def test_a_restore_is_tried_again_until_nothing_is_in_its_way(mirror, clock, tried):
    no_place = {"job/A": fetch.NoPlace("its name")}
    half, none = (3, {"job/x": OSError("half")}), ConnectionError("no network")
    tried.script = iter([half, none, (1, no_place)])
    assert mirror.restore() == (4, no_place) and clock.slept == [1, 2]


def test_a_restore_that_never_works_says_why(mirror, clock, tried):
    tried.script = iter([ConnectionError("no network")] * 4 + [OSError("no disk")])
    with pytest.raises(BergError, match="could not be restored, .* as they are: no disk$"):
        mirror.restore()
    assert clock.slept == [1, 2, 4, 8, 0]


def test_files_that_are_here_are_only_learnt(mirror, tried):
    mirror.bucket.write("berg_results/job/a", b"one", metadata={WRITER: "job/7"})
    assert mirror.restore(bring=False) == (0, {})
    entry = mirror.manifest.get("job/a")
    there = mirror.bucket.get("berg_results/job/a")
    assert (entry.size, entry.generation, entry.sure) == (3, there.generation, False)
