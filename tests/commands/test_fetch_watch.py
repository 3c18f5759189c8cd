"""What `berg fetch --watch` says while it goes on."""

import time
from types import SimpleNamespace

import pytest

from berg.commands import results
from berg.job import State
from berg.laptop import jobs
from berg.laptop.lookup import Found
from berg.states import Stored


class Stopped(Exception):
    pass


def test_what_keeps_files_from_coming_is_said_at_once_and_once(
    cloud, bucket, tmp_path, monkeypatch, capsys
):
    bucket.write("berg_results/job/a", b"a")
    bucket.write("berg_results/job/b", b"b")
    for name in "ab":
        (tmp_path / name / "in its place").mkdir(parents=True)
    running = SimpleNamespace(state=SimpleNamespace(final=False))
    stored = Stored("job", State(state="RUNNING"), 1)
    asked = Found("job", False, "berg_results/job/", stored)
    monkeypatch.setattr(jobs, "find", lambda *_: running)
    said = []

    def pause(seconds) -> None:
        said.append(capsys.readouterr().err)
        if len(said) == 2:
            raise Stopped

    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(Stopped):
        results.fetch_job(cloud.settings(bucket.name), asked, tmp_path, True, False)
    assert said[0].count("a was not fetched: a folder of that name is in its place") == 1
    assert "Trying again every 10 s" in said[0]
    assert said[1] == ""
