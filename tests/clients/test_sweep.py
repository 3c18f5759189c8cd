"""A sweep as a table: what each row was given, how it ended, and its last metrics."""

import csv
import json
from pathlib import Path

import pytest
from conftest import Cloud, commit

PROGRAM = r"""
import os, sys
lr = float(sys.argv[1])
with open(os.environ["BERG_RESULTS_DIR"] + "/metrics.jsonl", "wb") as file:
    file.write(b'{"step": 1, "loss": 9, "note": "=1+1"}\n{"step": 2, "lo\n\n[1]\n')
    file.write(b'{"step": 3, "loss": %f, "best": NaN}\n{"step": 4, "lo' % (lr * 2))
sys.exit(3 if lr > 1 else 0)
"""


@pytest.mark.slow
def test_rows_have_parameters_states_and_last_metrics(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    commit(project, {"train.py": PROGRAM})
    words = ["run", "-g", "0", "-n", "sw", "--grid", "lr=0.1,2", "--parallel", "1", "--wait"]
    done = cloud.run(*words, "--json", "python3 train.py {lr}", cwd=project)
    rows = json.loads(done.out)["jobs"]
    assert done.code == 3 and [row["exit_code"] for row in rows] == [0, 3], done.err
    done = cloud.ok("sweep", "sw", str(tmp_path / "results.csv"))
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["NAME", "STATE", "EXIT", "lr", "step", "loss", "note", "best", "REASON"]
    assert lines[1] == ["sw/0", "SUCCEEDED", "0", "0.1", "3", "0.2", "=1+1", "nan"]
    assert lines[2][:6] == ["sw/1", "FAILED", "3", "2", "3", "4"]
    assert "2 lines of sw/0's metrics.jsonl cannot be read" in done.err  # not the half written one
    with open(tmp_path / "results.csv", newline="") as file:
        cells = [*csv.DictReader(file)]
    losses = [(row["param.lr"], row["metric.loss"]) for row in cells]
    assert losses == [("0.1", "0.2"), ("2", "4.0")]
    assert cells[0]["metric.note"] == "'=1+1"  # no spreadsheet runs what a job wrote
    shown = json.loads(cloud.run("sweep", "sw", "--json").out, parse_constant=lambda text: 1 / 0)
    assert [row["exit_code"] for row in shown] == [0, 3] and shown[0]["metrics"]["best"] is None
    cloud.fails("sweep", "no-such-one", says="berg list")
