"""The folder of results, without a machine around it."""

import time
from pathlib import Path

import pytest
from conftest import Cloud

from berg import results
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
