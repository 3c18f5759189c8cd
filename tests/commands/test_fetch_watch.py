"""What `berg fetch --watch` says while it goes on."""

import time
from types import SimpleNamespace

import pytest

from berg.commands import results
from berg.job import State, Summary
from berg.laptop import jobs
from berg.laptop.lookup import Found
from berg.states import Stored


class Stopped(Exception):
    pass


def test_what_keeps_files_from_coming_is_said_at_once_and_once(
    cloud, bucket, tmp_path, monkeypatch, capsys
):
    for name in ("a/1", "a/2"):
        bucket.write(f"berg_results/job/{name}", b"x")
    (tmp_path / "a").symlink_to(tmp_path.parent)
    stored = Stored("job", State(state="RUNNING", job=Summary(results_dir="job")), 1)
    running = SimpleNamespace(state=stored.state)
    asked = Found("job", False, "berg_results/job/", stored)
    monkeypatch.setattr(jobs, "find", lambda *_: running)
    said = []

    def pause(seconds) -> None:
        said.append(" ".join(capsys.readouterr().err.split()))
        if len(said) == 2:
            raise Stopped

    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(Stopped):
        results.fetch_job(
            cloud.settings(bucket.name), asked, tmp_path, results.Wanted(keep=True), False
        )
    assert said[0].count("a/1 was not fetched:") == 1
    assert "a/2 was not fetched" not in said[0]
    assert "Trying again every 10 s" in said[0]
    assert said[1] == ""
