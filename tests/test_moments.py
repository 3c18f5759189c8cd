"""The folder of results, without a machine around it."""

import time
from pathlib import Path

import pytest
import ranks
from conftest import Cloud

from berg import results
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


def test_machines_that_change_a_restored_file_alike(cloud: Cloud, tmp_path: Path) -> None:
    """As a database that each of them opens: its journal is merged on all."""

    def machine(rank: int, attempt: int) -> Mirror:
        folder = str(tmp_path / f"{attempt}-{rank}")
        place = cloud.bucket, "berg_results/", "alike", "alike", str(rank)
        return Mirror(folder, *place, attempt=attempt, machines=3, first=rank == 0)

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
                first=rank == 0,
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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_machines_find_their_own_files(cloud: Cloud, tmp_path: Path, seed: int) -> None:
    assert not ranks.life(cloud, seed, tmp_path)
