"""The folder of results, without a machine around it."""

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
import ranks
from conftest import Cloud

from berg import moments, results
from berg.fetch import Fetch
from berg.results import Mirror


def test_more_files_than_may_be_open_are_one_moment(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PATIENCE", 0.05)
    mirror = Mirror(str(tmp_path), cloud.bucket, "berg_results/", "many", "many", "0")
    (tmp_path / "many").mkdir()
    for number in range(30):
        (tmp_path / f"many/{number}").write_text("x" * number)
    mirror.most, mirror.on_bytes = 16, lambda count: time.sleep(0.1)
    assert [mirror.sync() for _ in range(3)] == [False, False, True]
    assert len(mirror.rows) == len(results.newest(cloud.bucket, "many")[2]) == 30


def test_a_file_changes_whose_object_somebody_deleted(cloud: Cloud, tmp_path: Path) -> None:
    mirror = Mirror(str(tmp_path), cloud.bucket, "berg_results/", "lost", "lost", "0")
    mirror.restore()
    (tmp_path / "lost").mkdir()
    for content in ("old", "new"):
        (tmp_path / "lost/model").write_text(content)
        assert mirror.sync()
        cloud.bucket.delete("berg_results/lost/model")
    (tmp_path / "lost/model").write_text("newest")
    assert mirror.finish(60) == {}
    assert cloud.read("berg_results/lost/model") == b"newest"


def test_what_could_not_be_deleted_is_deleted_at_the_next_try(cloud: Cloud, tmp_path: Path) -> None:
    mirror = Mirror(str(tmp_path), cloud.bucket, "berg_results/", "held", "held", "0")
    mirror.restore()
    (tmp_path / "held").mkdir()
    (tmp_path / "held/file").write_text("deleted here")
    assert mirror.sync()
    (tmp_path / "held/file").unlink()
    fault = {"method": "storage.objects.delete", "status": 403, "times": 1}
    cloud.call("POST", "/_berg/faults", fault)
    try:
        assert mirror.finish(60) == {}
    finally:
        cloud.call("DELETE", "/_berg/faults")
    assert cloud.read("berg_results/held/file") == b""


def test_a_restored_file_has_its_time_and_mode(cloud: Cloud, tmp_path: Path) -> None:
    """A program that looks for its newest checkpoint finds the same one."""
    place, times = (cloud.bucket, "berg_results/", "aged", "aged", "0"), {"new": 2e9, "old": 1e9}
    mirror = Mirror(str(tmp_path / "1"), *place)
    mirror.restore()
    (tmp_path / "1/aged").mkdir()
    for name, at in times.items():
        (tmp_path / "1/aged" / name).write_text(name)
        (tmp_path / "1/aged" / name).chmod(0o755)
        os.utime(tmp_path / "1/aged" / name, (at, at))
    assert mirror.sync()
    assert Mirror(str(tmp_path / "2"), *place, attempt=2).restore() == 2
    for name, at in times.items():
        about = (tmp_path / "2/aged" / name).stat()
        assert (about.st_mtime, about.st_mode & 0o777) == (at, 0o755)


def test_links_within_lead_to_the_same_file_elsewhere_and_others_are_named(
    cloud: Cloud, tmp_path: Path
) -> None:
    place = cloud.bucket, "berg_results/", "linked", "linked", "0"
    mirror, folder = Mirror(str(tmp_path / "1"), *place), tmp_path / "1/linked"
    mirror.restore()
    (folder / "deep").mkdir(parents=True)
    (folder / "file").write_text("content")
    (folder / "deep/absolute").symlink_to(folder / "file")
    (folder / "deep/relative").symlink_to("../file")
    (folder / "outside").symlink_to("/etc/hostname")
    os.mkfifo(folder / "pipe")
    assert mirror.finish(60).keys() == {"linked/outside", "linked/pipe"}
    Mirror(str(tmp_path / "2"), *place, attempt=2).restore()
    shutil.rmtree(folder)
    for name in ("absolute", "relative"):
        assert (tmp_path / "2/linked/deep" / name).read_text() == "content"


def test_a_log_that_is_begun_again_before_the_next_moment(cloud: Cloud, tmp_path: Path) -> None:
    place = cloud.bucket, "berg_results/", "begun", "begun", "0"
    mirror, path = Mirror(str(tmp_path / "1"), *place), tmp_path / "1/begun/out.txt"
    mirror.restore()
    path.parent.mkdir()
    path.write_text("one\n")
    assert mirror.sync()
    mirror.publish = lambda *about: None  # type: ignore[method-assign]
    with path.open("a") as file:
        file.write("two\n")
        file.flush()
        mirror.sync()
    path.write_text("three\n")
    mirror.sync()
    assert cloud.read("berg_results/begun/out.txt") == b"three\n"
    Mirror(str(tmp_path / "2"), *place, attempt=2).restore()  # its power was lost
    assert (tmp_path / "2/begun/out.txt").read_text() == "one\n"


def test_a_job_of_the_name_of_another_one_finds_its_results(cloud: Cloud, tmp_path: Path) -> None:
    place = cloud.bucket, "berg_results/", "of-two", "again", "0"
    (tmp_path / "old/of-two").mkdir(parents=True)
    (tmp_path / "old/of-two/model").write_text("weights")
    old = Mirror(str(tmp_path / "old"), *place, id="old")
    old.restored_rows, old.is_restored = {}, True
    assert old.finish(60) == {}
    cloud.bucket.delete(*cloud.bucket.list(".berg/moments/again/"))  # berg rm
    new = Mirror(str(tmp_path / "new"), *place, id="new")
    new.restore()
    assert (tmp_path / "new/of-two/model").read_text() == "weights"
    assert new.finish(60) == {} and cloud.read("berg_results/of-two/model") == b"weights"


def test_a_database_has_no_old_journal_beside_it(cloud: Cloud, tmp_path: Path) -> None:
    mirror = Mirror(str(tmp_path), cloud.bucket, "berg_results/", "journal", "journal", "0")
    mirror.restore()
    (tmp_path / "journal").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "journal/db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE numbers (number)")
        database.commit()
        mirror.ending = True  # when files are sent as they are
        mirror.sync()
        assert cloud.read("berg_results/journal/db-wal")
        mirror.ending = False
        database.execute("INSERT INTO numbers VALUES (1)")
        database.commit()
        assert mirror.sync()
        assert {each.name for each in cloud.bucket.list("berg_results/journal/")} == {
            "berg_results/journal/db"
        }


def test_machines_that_change_a_restored_file_alike(cloud: Cloud, tmp_path: Path) -> None:
    """As a database that each of them opens: its journal is merged on all."""

    def machine(rank: int, attempt: int) -> Mirror:
        folder = str(tmp_path / f"{attempt}-{rank}")
        place = cloud.bucket, "berg_results/", "alike", "alike", str(rank)
        return Mirror(folder, *place, attempt=attempt, machines=3)

    def write(mirror: Mirror, content: bytes) -> None:
        path = Path(mirror.folder, "alike/shared")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    before = [machine(rank, 1) for rank in range(3)]
    for each in before:
        each.restore()
    write(before[2], b"before")
    assert [each.finish(60, 1) for each in before] == [{}, {}, {}]
    after = [machine(rank, 2) for rank in range(3)]
    for each in after:
        each.restore()
        write(each, b"merged")
    assert [each.finish(60, 1) for each in after] == [{}, {}, {}]
    assert cloud.read("berg_results/alike/shared") == b"merged"


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

    def write(self, rank: int, text: str) -> None:
        path = Path(self.each[rank].folder, self.job, "log.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self) -> list[str]:
        paths = [Path(each.folder, self.job, "log.txt") for each in self.each]
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
        job.write(0, "zero")
        job.each[0].sync(1)
    job.write(1, "one")
    job.each[1].sync(1)
    job.write(2, "two")
    if first == "rank 1, at its end":
        job.end(1)
    job.write(0, "zero")
    job.end(*{0, 1, 2} - ({1} if first == "rank 1, at its end" else set()))
    assert cloud.read(f"berg_results/{job.job}/log.txt") == b"zero"
    assert job.fetched() == {"": "zero", ".~rank1~": "one", ".~rank2~": "two"}

    job = Machines(cloud, tmp_path, 2)  # each has its own again, and changes it or not
    assert job.read() == ["zero", "one", "two"]
    job.write(2, "two more")
    job.sync(1, 2)  # then all lose their power
    job = Machines(cloud, tmp_path, 3)
    assert job.read() == ["zero", "one", "two more"]
    job.write(0, "zero more")
    job.end(0, 1, 2)
    assert job.fetched() == {"": "zero more", ".~rank1~": "one", ".~rank2~": "two more"}


def test_files_with_one_path_and_content_stay_two_when_one_changes(
    cloud: Cloud, tmp_path: Path
) -> None:
    job = Machines(cloud, tmp_path, 1)
    for rank in (0, 1):
        job.write(rank, "alike")
        job.each[rank].sync(1)
    job.write(1, "another")
    job.sync(1, 2)
    assert job.fetched() == {"": "alike", ".~rank1~": "another"}
    assert Machines(cloud, tmp_path, 2).read() == ["alike", "another", "alike"]


def test_a_machine_that_is_gone_keeps_no_moment_of_the_others(cloud: Cloud, tmp_path: Path) -> None:
    job = Machines(cloud, tmp_path, 1)
    job.write(0, "with all")
    job.sync(1)
    job.write(0, "without one")
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
    job.write(0, "a file")
    shard = Path(job.each[1].folder, job.job, "log.txt/shard")
    shard.parent.mkdir(parents=True)
    shard.write_text("in a folder")
    job.end(0, 1, 2)
    job = Machines(cloud, tmp_path, 2)
    assert job.read() == ["a file"] * 3
    job.end(0, 1, 2)
    assert cloud.read(f"berg_results/{job.job}/log.txt/shard") == b"in a folder"


def test_a_machine_of_an_attempt_before_replaces_nothing(cloud: Cloud, tmp_path: Path) -> None:
    place = cloud.bucket, "berg_results/", "two-lives", "two-lives", "0"
    first, second = (Mirror(str(tmp_path / str(n)), *place, attempt=n) for n in (1, 2))
    for attempt, mirror in {1: first, 2: second}.items():
        mirror.restore()
        path = tmp_path / str(attempt) / "two-lives/model"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"of attempt {attempt}")
        assert mirror.sync()
    (tmp_path / "1/two-lives/model").write_text("late")
    assert "did not write" in first.finish(60)["two-lives/model"]
    assert cloud.read("berg_results/two-lives/model") == b"of attempt 2"


def test_a_journal_stays_until_all_machines_have_done_without_it(
    cloud: Cloud, tmp_path: Path
) -> None:
    job = Machines(cloud, tmp_path, 1)
    path = Path(job.each[0].folder, job.job, "db")
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE numbers (number)")
        database.commit()
        job.end(0, 1, 2)
    job = Machines(cloud, tmp_path, 2)
    path = Path(job.each[0].folder, job.job, "db")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO numbers VALUES (1)")
        database.commit()
        job.each[0].sync(1)  # then all lose their power
    assert cloud.bucket.get(f"berg_results/{job.job}/db-wal") is None
    job = Machines(cloud, tmp_path, 3)
    path = Path(job.each[0].folder, job.job, "db")
    with contextlib.closing(sqlite3.connect(path)) as database:
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
