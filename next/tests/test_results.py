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
