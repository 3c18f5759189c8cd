"""berg.report: what a job's own program finds when it imports berg, and what it writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import berg as installed
from berg.machine.environment import with_report
from berg.machine.program import berg as ours
from berg.machine.watchdogs import WORST, value_at

WRITERS = """
import berg
for step in range(300):
    berg.report(step, loss=1 / (step + 1))
"""


def start(code: str, folder: Path, **more: str) -> subprocess.Popen:
    """Start a python that has none of this one's packages, as a job's command would."""
    values = with_report({"BERG_RESULTS_DIR": str(folder), "PATH": os.environ["PATH"], **more})
    words = [sys.executable, "-S", "-c", code]
    return subprocess.Popen(words, env=values, cwd=folder.parent, stderr=subprocess.PIPE, text=True)


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_program_reports_without_berg_and_lines_of_two_processes_stay_whole(tmp_path):
    folder = tmp_path / "new/results"
    folder.parent.mkdir()
    writers = [start(WRITERS, folder) for _ in range(2)]
    for each in writers:
        assert each.communicate()[1] == "" and each.returncode == 0
    assert sorted(row["step"] for row in rows(folder)) == sorted([*range(300)] * 2)
    assert {frozenset(row) for row in rows(folder)} == {frozenset({"step", "loss"})}


def test_the_berg_that_is_installed_and_paths_of_the_job_s_own_come_first(tmp_path):
    (tmp_path / "site/berg").mkdir(parents=True)
    (tmp_path / "site/berg/__init__.py").write_text("theirs = 1")
    look = "import sys; sys.path.append(sys.argv[1]); import berg; assert berg.theirs"
    behind = f"import sys; sys.argv = ['', {str(tmp_path / 'site')!r}]; {look}"
    for code, more in ((behind, {}), ("import berg; assert berg.theirs", {"PYTHONPATH": "site"})):
        run = start(code, tmp_path / "results", **more)
        assert (run.communicate()[1], run.returncode) == ("", 0)
    assert installed.report is ours.report


@pytest.mark.parametrize("name", ours.RANKS)
def test_of_several_processes_the_first_alone_writes(tmp_path, monkeypatch, name):
    for each in ours.RANKS:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("BERG_RESULTS_DIR", str(tmp_path))
    for rank in ("1", "0", "10"):
        monkeypatch.setenv(name, rank)
        ours.report(int(rank), loss=1)
    assert rows(tmp_path) == [{"step": 0, "loss": 1}]


def test_what_is_not_finite_is_null_and_the_worst(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_RESULTS_DIR", str(tmp_path))
    monkeypatch.setattr(ours, "RANKS", ())
    ours.report(3, loss=float("nan"), gain=float("-inf"), n=2, is_best=True)
    assert rows(tmp_path) == [{"step": 3, "loss": None, "gain": None, "n": 2, "is_best": True}]
    assert value_at((tmp_path / "metrics.jsonl").read_text(), 3, "loss") == WORST
    with pytest.raises(ValueError, match="good"):
        ours.report(4, loss="good")
    monkeypatch.delenv("BERG_RESULTS_DIR")
    ours.report(5, loss=1)
    assert len(rows(tmp_path)) == 1


def test_a_job_reports_on_its_machine(berg):
    code = "import berg; berg.report(7, loss=0.5)"
    done = berg("run", "-g", "0", "-n", "told", "--wait", f'python3 -c "{code}"')
    assert done.returncode == 0, done.stderr
    assert json.loads(berg.bucket.read("berg_results/told/metrics.jsonl")) == {
        "step": 7,
        "loss": 0.5,
    }
