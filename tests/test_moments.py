"""The folder of results, without a machine around it."""

import contextlib
import os
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
from conftest import Cloud, until, write
from inside import mirrored

from berg import moments, results
from berg.fetch import Fetch
from berg.results import Mirror


def test_more_files_than_may_be_open_are_one_moment(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PATIENCE", 0.05)
    mirror, own = mirrored(cloud, tmp_path, "many")
    for number in range(30):
        (own / f"{number}").write_text("x" * number)
    mirror.most, mirror.on_bytes = 16, lambda count: time.sleep(0.1)
    assert [mirror.sync() for _ in range(3)] == [False, False, True]
    assert len(mirror.rows) == len(results.newest(cloud.bucket, "many")[2]) == 30


def test_a_file_changes_whose_object_somebody_deleted(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path, "lost")
    for content in ("old", "new"):
        (own / "model").write_text(content)
        assert mirror.sync()
        cloud.bucket.delete("berg_results/lost/model")
    (own / "model").write_text("newest")
    assert mirror.finish(60) == {}
    assert cloud.read("berg_results/lost/model") == b"newest"


def test_what_could_not_be_deleted_is_deleted_at_the_next_try(
    cloud: Cloud, tmp_path: Path, faults: Any
) -> None:
    mirror, own = mirrored(cloud, tmp_path, "held")
    (own / "file").write_text("deleted here")
    assert mirror.sync()
    (own / "file").unlink()
    faults("storage.objects.delete", status=403)
    assert mirror.finish(60) == {}
    assert cloud.read("berg_results/held/file") == b""


def test_a_restored_file_has_its_time_and_mode(cloud: Cloud, tmp_path: Path) -> None:
    """A program that looks for its newest checkpoint finds the same one."""
    mirror, own = mirrored(cloud, tmp_path / "1", "aged")
    times = {"of 2300": 10416657906.5, "new": 2e9, "old": 1e9, "of 1970": 2865906.5}
    for name, at in times.items():
        (own / name).write_text(name)
        (own / name).chmod(0o755)
        os.utime(own / name, (at, at))
    assert mirror.sync()
    _, again = mirrored(cloud, tmp_path / "2", "aged", attempt=2)
    for name, at in times.items():
        about = (again / name).stat()
        assert (about.st_mtime, about.st_mode & 0o777) == (at, 0o755)


def test_the_last_results_may_be_sent_twice_at_one_tick(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path / "here", "twice", machines=2)
    (own / "one").write_text("1")
    assert mirror.finish(60, 7) == {}
    (own / "two").write_text("2")
    assert mirror.finish(60, 7) == {}
    _, there = mirrored(cloud, tmp_path / "there", "twice", attempt=2)
    assert {path.name for path in there.iterdir()} == {"one", "two"}


def test_links_within_lead_to_the_same_file_elsewhere_and_others_are_named(
    cloud: Cloud, tmp_path: Path
) -> None:
    mirror, folder = mirrored(cloud, tmp_path / "1", "linked")
    (folder / "deep").mkdir()
    (folder / "file").write_text("content")
    (folder / "deep/absolute").symlink_to(folder / "file")
    (folder / "deep/relative").symlink_to("../file")
    odd = {"outside": "/etc/hostname", "zero": "/dev/zero", "to-pipe": "pipe", "loop": "loop"}
    for name, target in odd.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "socket", stat.S_IFSOCK)
    for name in ("line\nbreak", os.fsdecode(b"\xff")):
        (folder / name).touch()
    missing = mirror.finish(60)
    named = {"outside", "pipe", "zero", "socket", "line\nbreak", os.fsdecode(b"\xff")}
    assert {*missing} >= {f"linked/{name}" for name in named}, missing
    assert not {"pipe", "socket", "zero"} & {
        name[20:] for name in cloud.names("berg_results/linked/")
    }
    shutil.rmtree(folder)
    found = restored(cloud, tmp_path / "2", "linked")
    assert found == dict.fromkeys(["file", "deep/absolute", "deep/relative"], "content")


def test_a_log_that_is_begun_again_before_the_next_moment(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path / "1", "begun")
    (path := own / "out.txt").write_text("one\n")
    assert mirror.sync()
    mirror.publish = lambda *about: None  # type: ignore[method-assign]
    with path.open("a") as file:
        file.write("two\n")
        file.flush()
        mirror.sync()
    path.write_text("three\n")
    mirror.sync()
    assert cloud.read("berg_results/begun/out.txt") == b"three\n"
    assert restored(cloud, tmp_path / "2", "begun") == {"out.txt": "one\n"}  # its power was lost


def test_a_job_of_the_name_of_another_one_finds_its_results(cloud: Cloud, tmp_path: Path) -> None:
    place = cloud.bucket, "berg_results/", "of-two", "again", "0"
    write(tmp_path, {"old/of-two/model": "weights"})
    old = Mirror(str(tmp_path / "old"), *place, id="old")
    old.restored_rows, old.is_restored = {}, True
    assert old.finish(60) == {}
    cloud.bucket.delete(*cloud.bucket.list(".berg/moments/again/"))  # berg rm
    new = Mirror(str(tmp_path / "new"), *place, id="new")
    new.restore()
    assert (tmp_path / "new/of-two/model").read_text() == "weights"
    assert new.finish(60) == {} and cloud.read("berg_results/of-two/model") == b"weights"


TABLE = "CREATE TABLE numbers (number)"


@contextlib.contextmanager
def opened(path: Path, *statements: str) -> Iterator[sqlite3.Connection]:
    """A database in which these statements are committed."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
        yield database


def test_a_database_has_no_old_journal_beside_it(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path, "journal")
    with opened(own / "db", "PRAGMA journal_mode=WAL", TABLE) as database:
        mirror.ending = True  # when files are sent as they are
        mirror.sync()
        assert cloud.read("berg_results/journal/db-wal")
        assert (own / "db-shm").exists()
        assert not cloud.names("berg_results/journal/db-shm")
        mirror.ending = False
        database.execute("INSERT INTO numbers VALUES (1)")
        database.commit()
        assert mirror.sync()
        assert cloud.names("berg_results/journal/") == ["berg_results/journal/db"]


class Machines:
    """Machines of one job that write to one folder, each on a disk of its own."""

    def __init__(self, cloud: Cloud, folder: Path, attempt: int):
        self.cloud, self.attempt, self.folder, self.job = cloud, attempt, folder, folder.name
        self.each = [
            Mirror(
                str(folder / f"{attempt}-{rank}"),
                cloud.bucket,
                "berg_results/",
                self.job,
                self.job,
                str(rank),
                attempt=attempt,
                machines=3,
            )
            for rank in range(3)
        ]
        for each in self.each:
            each.restore()

    def path(self, rank: int, name: str = "log.txt") -> Path:
        path = Path(self.each[rank].folder, self.job, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def read(self) -> list[str]:
        paths = [self.path(rank) for rank in range(3)]
        return [path.read_text() if path.exists() else "" for path in paths]

    def sync(self, *numbers: int) -> None:
        for number in numbers:
            for each in self.each:
                each.sync(number)

    def end(self, *ranks: int) -> None:
        assert [self.each[rank].finish(60, 1) for rank in ranks] == [{}] * len(ranks)

    def fetched(self) -> dict[str, str]:
        """What `berg fetch` brings, by the ends of the names."""
        to = self.folder / f"fetched{self.attempt}"
        Fetch(self.cloud.bucket, "berg_results/", self.job, to, self.job, 3).run()
        return {path.name.removeprefix("log.txt"): path.read_text() for path in to.glob("log.txt*")}


@pytest.mark.parametrize("first", ["rank 0", "rank 1", "rank 1, at its end"])
def test_of_files_with_one_path_the_lowest_rank_s_has_the_name(
    cloud: Cloud, tmp_path: Path, first: str
) -> None:
    job = Machines(cloud, tmp_path, 1)
    if first == "rank 0":
        job.path(0).write_text("zero")
        job.each[0].sync(1)
    job.path(1).write_text("one")
    job.each[1].sync(1)
    job.path(2).write_text("two")
    if first == "rank 1, at its end":
        job.end(1)
    job.path(0).write_text("zero")
    job.end(*{0, 1, 2} - ({1} if first == "rank 1, at its end" else set()))
    assert cloud.read(f"berg_results/{job.job}/log.txt") == b"zero"
    assert job.fetched() == {"": "zero", ".~rank1~": "one", ".~rank2~": "two"}

    job = Machines(cloud, tmp_path, 2)  # each has its own again, and changes it or not
    assert job.read() == ["zero", "one", "two"]
    job.path(2).write_text("two more")
    job.sync(1, 2)  # then all lose their power
    job = Machines(cloud, tmp_path, 3)
    assert job.read() == ["zero", "one", "two more"]
    job.path(0).write_text("zero more")
    job.end(0, 1, 2)
    assert job.fetched() == {"": "zero more", ".~rank1~": "one", ".~rank2~": "two more"}


def test_files_with_one_path_and_content_stay_two_when_one_changes(
    cloud: Cloud, tmp_path: Path
) -> None:
    job = Machines(cloud, tmp_path, 1)
    for rank in (0, 1):
        job.path(rank).write_text("alike")
        job.each[rank].sync(1)
    job.path(1).write_text("another")
    job.sync(1, 2)
    assert job.fetched() == {"": "alike", ".~rank1~": "another"}
    assert Machines(cloud, tmp_path, 2).read() == ["alike", "another", "alike"]


def test_a_restored_file_that_all_machines_change_alike_stays_one(
    cloud: Cloud, tmp_path: Path
) -> None:
    """As a database that each of them opens: its journal is merged on all."""
    job = Machines(cloud, tmp_path, 1)
    job.path(2, "shared").write_text("before")
    job.end(0, 1, 2)
    job = Machines(cloud, tmp_path, 2)
    for rank in range(3):
        job.path(rank, "shared").write_text("merged")
    job.end(0, 1, 2)
    place = f"berg_results/{job.job}/shared"
    assert cloud.read(place) == b"merged" and cloud.names(place) == [place]


def test_a_machine_that_is_gone_keeps_no_moment_of_the_others(cloud: Cloud, tmp_path: Path) -> None:
    job = Machines(cloud, tmp_path, 1)
    job.path(0).write_text("with all")
    job.sync(1)
    job.path(0).write_text("without one")
    for number in range(2, 9):
        job.each[0].sync(number), job.each[1].sync(number)
    assert job.fetched() == {"": "with all"}
    moments.end_for(cloud.bucket, job.job, 1, 2)
    job.attempt = 2
    assert job.fetched() == {"": "without one"}
    for number in (9, 10):
        job.each[0].sync(number), job.each[1].sync(number)
    kept = [*cloud.bucket.list(f".berg/moments/{job.job}/at/0001/0/")]
    assert len(kept) == results.KEPT


def test_a_file_here_is_a_folder_there(cloud: Cloud, tmp_path: Path) -> None:
    job = Machines(cloud, tmp_path, 1)
    job.path(0).write_text("a file")
    job.path(1, "log.txt/shard").write_text("in a folder")
    job.end(0, 1, 2)
    job = Machines(cloud, tmp_path, 2)
    assert job.read() == ["a file"] * 3
    job.end(0, 1, 2)
    assert cloud.read(f"berg_results/{job.job}/log.txt/shard") == b"in a folder"


def test_a_machine_of_an_attempt_before_replaces_nothing(cloud: Cloud, tmp_path: Path) -> None:
    attempts = []
    for attempt in (1, 2):
        mirror, own = mirrored(cloud, tmp_path / str(attempt), "two-lives", attempt=attempt)
        (own / "model").write_text(f"of attempt {attempt}")
        assert mirror.sync()
        attempts.append(mirror)
    (tmp_path / "1/two-lives/model").write_text("late")
    assert "did not write" in attempts[0].finish(60)["two-lives/model"]
    assert cloud.read("berg_results/two-lives/model") == b"of attempt 2"


def test_a_journal_stays_until_all_machines_have_done_without_it(
    cloud: Cloud, tmp_path: Path
) -> None:
    job = Machines(cloud, tmp_path, 1)
    with opened(job.path(0, "db"), "PRAGMA journal_mode=WAL", TABLE):
        job.end(0, 1, 2)
    job = Machines(cloud, tmp_path, 2)
    with opened(job.path(0, "db"), "INSERT INTO numbers VALUES (1)"):
        job.each[0].sync(1)  # then all lose their power
    assert cloud.bucket.get(f"berg_results/{job.job}/db-wal") is None
    job = Machines(cloud, tmp_path, 3)
    with opened(job.path(0, "db")) as database:
        assert database.execute("SELECT count(*) FROM numbers").fetchone() == (0,)


def test_a_worker_of_many_machines_keeps_what_others_copied(cloud: Cloud, tmp_path: Path) -> None:
    of_rank_10 = ".berg/moments/eleven/kept/0001/10/hash-1"
    cloud.bucket.write(of_rank_10, b"")
    place = cloud.bucket, "berg_results/", "eleven", "eleven", "1"
    mirror = Mirror(str(tmp_path), *place, machines=11)
    mirror.take_over()
    (tmp_path / "file").write_text("new")
    mirror.sync(1)
    assert cloud.bucket.find(of_rank_10) is not None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_machines_find_their_own_files(cloud: Cloud, tmp_path: Path, seed: int) -> None:
    assert not ranks.life(cloud, seed, tmp_path)


# --- one machine, as a program writes


def restored(cloud: Cloud, folder: Path, job: str) -> dict[str, str]:
    """What the next attempt finds."""
    _, own = mirrored(cloud, folder, job, attempt=9)
    return {
        str(path.relative_to(own)): path.read_text() for path in own.rglob("*") if path.is_file()
    }


def test_a_file_that_is_rewritten_has_the_version_before(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "GAP", 0)
    mirror, own = mirrored(cloud, tmp_path / "1", "rewritten")
    (own / "model").write_text("one")
    assert mirror.sync() and mirror.at_ns
    (own / "other").write_text("other")
    first = mirror.at_ns
    with (own / "model").open("w") as file:
        file.write("tw")
        file.flush()
        assert not mirror.sync() and mirror.at_ns == first
        assert cloud.read("berg_results/rewritten/model") == b"one"
        assert restored(cloud, tmp_path / "2", "rewritten") == {"model": "one"}
        monkeypatch.setattr(results, "PATIENCE", 0)
        assert mirror.sync() and mirror.at_ns > first
        assert restored(cloud, tmp_path / "3", "rewritten") == {"model": "one", "other": "other"}
        file.write("o")
    assert mirror.sync()
    assert restored(cloud, tmp_path / "4", "rewritten") == {"model": "two", "other": "other"}


def test_a_new_file_waits_until_it_is_whole_and_lines_do_not(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "GAP", 0)
    mirror, own = mirrored(cloud, tmp_path / "1", "new-files")
    with (own / "half.bin").open("w") as half, (own / "out.txt").open("w") as lines:
        half.write("no end"), half.flush()
        lines.write("line\n"), lines.flush()
        events = "events.out.tfevents.1.box"
        with (own / "x.jsonl").open("w") as log, (own / events).open("w") as points:
            for file in (log, points):
                file.write("{no end"), file.flush()
            assert not mirror.sync()  # for some seconds it may become whole
            monkeypatch.setattr(results, "QUIET", 1000)
            mirror.waiting_since -= 2000
            assert mirror.sync()  # then nothing waits for a new file
        assert restored(cloud, tmp_path / "2", "new-files") == {
            "out.txt": "line\n", "x.jsonl": "{no end", events: "{no end"
        }  # fmt: skip
        monkeypatch.setattr(results, "QUIET", 0)
        assert mirror.sync()  # it is open, and has not changed for long
    assert restored(cloud, tmp_path / "3", "new-files")["half.bin"] == "no end"


def test_of_a_log_only_what_is_new_is_sent(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "TAIL", 1000)
    mirror, own = mirrored(cloud, tmp_path / "1", "grows")
    sent: list[int] = []
    mirror.on_bytes, path = sent.append, own / "out.log"
    path.write_text("line\n" * 400)
    assert mirror.sync() and sum(sent) == 2000
    (before,), begun = cloud.bucket.list("berg_results/grows/out.log"), mirror.at_ns
    with path.open("a") as file:
        file.write("more\n" * 3)
    assert mirror.sync() and sum(sent) == 2015
    (after,) = cloud.bucket.list("berg_results/grows/out.log")
    assert cloud.read(after.name) == path.read_bytes() and after.about == before.about != {}
    assert not cloud.names(".berg/moments/grows/parts/")
    to = tmp_path / "then"
    Fetch(cloud.bucket, "berg_results/", "grows", to, "grows").run(begun)
    assert (to / "out.log").read_text() == "line\n" * 400
    path.write_text("anew\n" * 500)
    assert mirror.sync() and cloud.read(after.name) == path.read_bytes()
    cloud.bucket.write(after.name, b"of somebody else")
    with path.open("a") as file:
        file.write("last\n")
    missing = mirror.finish(5)
    assert missing["grows/out.log"].endswith("which this machine did not write"), missing


def test_recent_moments_stay_with_what_they_list(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path / "1", "recent")
    times = []
    for number in range(5):
        write(own, {"model": f"{number}", f"only-{number}": ""})
        if number:
            (own / f"only-{number - 1}").unlink()
        assert mirror.sync()
        times.append(mirror.at_ns)
    kept = [results.number_of(name) for name in cloud.names(".berg/moments/recent/at/")]
    assert kept == [3, 4, 5] and len(cloud.names(".berg/moments/recent/kept/")) == 2
    for number in (2, 3, 4):
        to = tmp_path / f"then-{number}"
        done = Fetch(cloud.bucket, "berg_results/", "recent", to, "recent").run(times[number])
        assert not done.left and {*done.new} == {"model", f"only-{number}"}
        assert (to / "model").read_text() == f"{number}"
    assert {f"berg_results/recent/only-{n}" for n in range(5)} <= {*cloud.names("berg_results/")}
    before = mirror.at_ns
    assert mirror.sync() and mirror.at_ns > before  # nothing changed, and that is known
    assert len(cloud.names(".berg/moments/recent/at/")) == 3
    mirror.gone["recent/only-0"] -= results.KEEP_DELETED + 1
    write(own, {"model": "5"})
    assert mirror.sync() and "berg_results/recent/only-0" not in cloud.names("berg_results/")
    assert "berg_results/recent/only-1" in cloud.names("berg_results/")
    assert mirror.finish(5) == {}
    own_names = cloud.names("berg_results/recent/")
    assert own_names == ["berg_results/recent/model", "berg_results/recent/only-4"]


def test_what_a_killed_program_cut_off_has_the_version_before(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path / "1", "cut-off")
    for name in ("model", "whole"):
        (own / name).write_text("one")
    assert mirror.sync()
    for name in ("model", "whole"):
        (own / name).write_text("tw")
    mirror.cut = {(own / "model").stat().st_ino: time.time()}
    assert mirror.finish(5) == {"cut-off/model": results.CUT}
    assert restored(cloud, tmp_path / "2", "cut-off") == {"model": "one", "whole": "tw"}


def test_a_folder_that_is_never_quiet_is_known_at_one_instant(cloud: Cloud, tmp_path: Path) -> None:
    turn, over = threading.Lock(), threading.Event()
    mirror, own = mirrored(cloud, tmp_path / "1", "restless", stopped=lambda: turn)

    def keep_writing() -> None:
        for number in range(1 << 30):
            with turn:
                for name in ("a", "b"):
                    (own / f"{name}.new").write_text(str(number))
                    (own / f"{name}.new").replace(own / name)
            time.sleep(0.0002)
            if over.is_set():
                return

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        until((own / "b").exists)
        assert mirror.sync() and mirror.was_restless
        mirror.stopped = None  # nobody can be
        assert mirror.instant().moving >= {"restless/a", "restless/b"}
    finally:
        over.set()
        writer.join()
    found = restored(cloud, tmp_path / "2", "restless")
    assert found.keys() == {"a", "b"} and found["a"] == found["b"]


def test_what_somebody_put_in_the_place_of_a_file_is_named(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path, "replaced")
    write(own, {"model": "of the job", "other": "of the job"})
    assert mirror.sync()
    cloud.bucket.write("berg_results/replaced/model", b"of a person")
    cloud.bucket.write("berg_results/replaced/theirs", b"of a person")
    cloud.bucket.delete("berg_results/replaced/other")
    missing = mirror.finish(100)
    assert {*missing} == {"replaced/model"} and "did not write" in missing["replaced/model"]
    found = {name[22:]: cloud.read(name) for name in cloud.names("berg_results/replaced/")}
    person = b"of a person"
    assert found == {"theirs": person, "model": person, "other": b"of the job"}


def test_a_disk_becomes_what_the_newest_moment_says(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path / "1", "becomes")
    beside = tmp_path / "1/beside"
    beside.mkdir()
    (own / "same").write_text("same"), (own / "other").write_text("right")
    (own / "file").write_text("file"), (beside / "one").write_text("of another folder")
    (own / "line\nbreak").write_text("cannot be sent")
    assert mirror.sync()
    second, folder = tmp_path / "2", tmp_path / "2/becomes"
    (folder / "empty").mkdir(parents=True)
    write(folder, {"same": "same", "other": "wrong", "surplus": "x", "line\nbreak": "x"})
    (folder / "file").symlink_to("same")
    os.mkfifo(folder / "pipe")
    again = Mirror(str(second), cloud.bucket, "berg_results/", "becomes", "becomes", "0", attempt=2)
    assert again.restore() == 3  # what was there as it is did not come again
    assert {path.name for path in folder.iterdir()} == {"same", "other", "file"}
    assert (folder / "other").read_text() == "right" and not (folder / "file").is_symlink()
    assert (second / "beside/one").read_text() == "of another folder"
    sent: list[int] = []
    again.on_bytes = sent.append
    (folder / "same").unlink()
    assert again.finish(5) == {} and sent == []
    assert cloud.read("berg_results/becomes/same") == b""


def test_a_worker_goes_on_with_what_another_one_sent(cloud: Cloud, tmp_path: Path) -> None:
    notes = str(tmp_path / "notes")
    mirror, own = mirrored(cloud, tmp_path / "1", "goes-on", notes=notes)
    for name in ("kept", "changes", "deleted"):
        (own / name).write_text(name)
    assert mirror.sync()

    def next_one(goes_on: bool) -> tuple[Mirror, list[int]]:
        place = cloud.bucket, "berg_results/", "goes-on", "goes-on", "0"
        made, sent = Mirror(str(tmp_path / "1"), *place, notes=notes), list[int]()
        made.take_over(goes_on)
        made.on_bytes = sent.append
        return made, sent

    (own / "changes").write_text("changed")
    (own / "deleted").unlink()
    second, sent = next_one(goes_on=False)
    assert second.at_ns == mirror.at_ns
    assert second.finish(5) == {} and sum(sent) == len("changed")
    assert cloud.names("berg_results/goes-on/") == [
        "berg_results/goes-on/changes", "berg_results/goes-on/kept"
    ]  # fmt: skip
    names = cloud.names(".berg/moments/goes-on/at/")
    assert names[-1].endswith("-final")
    third, _ = next_one(goes_on=True)  # a devbox is on again
    assert not [n for n in cloud.names(".berg/moments/goes-on/at/") if n.endswith("-final")]
    (own / "late").write_text("late")
    assert third.sync()
    found = restored(cloud, tmp_path / "2", "goes-on")
    assert found == {"kept": "kept", "changes": "changed", "late": "late"}


def test_a_pass_that_is_given_up_leaves_the_last_one_its_time(
    cloud: Cloud, tmp_path: Path, faults: Any
) -> None:
    mirror, own = mirrored(cloud, tmp_path, "given-up")
    assert Mirror(str(tmp_path), cloud.bucket, "berg_results/", "x", "x", "0").finish(5) == {}
    (own / "file").write_text("content")
    mirror.give_up()
    assert not mirror.sync() and mirror.trouble and not cloud.read("berg_results/given-up/file")
    assert mirror.finish(5) == {} and cloud.read("berg_results/given-up/file") == b"content"
    faults("storage.objects.insert", match="given-up", status=403, times=None)
    (own / "file").write_text("newer content")
    missing = mirror.finish(0.5)
    assert {*missing} == {"", "given-up/file"} and missing[""]


def test_the_last_results_have_time_as_long_as_bytes_are_sent(cloud: Cloud, tmp_path: Path) -> None:
    mirror, own = mirrored(cloud, tmp_path, "takes-long")
    mirror.on_bytes = lambda _: time.sleep(0.4)
    (own / "model").write_bytes(bytes(64 << 20))
    assert mirror.finish(1, 0, 60) == {}


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_database_has_what_was_committed(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(results, "SMALL_DATABASE", 0)
    monkeypatch.setattr(results, "GAP", 0)
    job = f"commits-{mode.lower()}-{is_large:d}"
    mirror, own = mirrored(cloud, tmp_path / "1", job)
    (own / "plain-journal").write_text("no database")
    start = [f"PRAGMA journal_mode={mode}", TABLE, "INSERT INTO numbers VALUES (1)"]
    with opened(own / "db", *start) as database:
        database.execute("INSERT INTO numbers VALUES (2)")
        assert mirror.sync()
        names = {name.rpartition("/")[2] for name in cloud.names(f"berg_results/{job}/")}
        assert names == {"db", "plain-journal"}
        _, again = mirrored(cloud, tmp_path / "2", job, attempt=2)
        database.rollback()
    with opened(again / "db") as database:
        assert [*database.execute("SELECT number FROM numbers")] == [(1,)]
