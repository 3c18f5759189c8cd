"""A sweep as a table: what each row was given, how it ended, and its last metrics."""

import csv
import json
from pathlib import Path

from conftest import Cloud
from records import put, put_row

METRICS = b"""{"step": 1, "loss": 9, "note": "=1+1"}
{"step": 2, "lo

[1]
{"step": 3, "loss": %f, "best": NaN}
{"step": 4, "lo"""


def test_rows_have_parameters_states_and_last_metrics(cloud: Cloud, tmp_path: Path) -> None:
    job = {"cmd": "python3 train.py {lr}", "rows": [{"lr": "0.1"}, {"lr": "2"}]}
    made = put(cloud, "sw", "FAILED", job=job)
    for number, outcome in enumerate(("SUCCEEDED", "FAILED")):
        put_row(cloud, made, number, outcome, exit_code=3 * number)
        loss = 2 * float(job["rows"][number]["lr"])
        cloud.bucket.write(f"berg_results/sw/{number}/metrics.jsonl", METRICS % loss)
    done = cloud.ok("sweep", "sw", str(tmp_path / "results.csv"))
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["NAME", "STATE", "EXIT", "lr", "step", "loss", "note", "best", "REASON"]
    assert lines[1] == ["sw/0", "SUCCEEDED", "0", "0.1", "3", "0.2", "=1+1", "nan"]
    assert lines[2][:6] == ["sw/1", "FAILED", "3", "2", "3", "4"]
    assert "2 lines of sw/0's metrics.jsonl cannot be read" in done.err  # not the half written one
    assert f"Wrote {tmp_path}/results.csv\n" in done.err
    with open(tmp_path / "results.csv", newline="") as file:
        cells = [*csv.DictReader(file)]
    losses = [(row["param.lr"], row["metric.loss"]) for row in cells]
    assert losses == [("0.1", "0.2"), ("2", "4.0")]
    assert cells[0]["metric.note"] == "'=1+1"  # no spreadsheet runs what a job wrote
    shown = json.loads(cloud.run("sweep", "sw", "--json").out, parse_constant=lambda text: 1 / 0)
    assert [row["exit_code"] for row in shown] == [0, 3] and shown[0]["metrics"]["best"] is None
    cloud.fails("sweep", "no-such-one", says="berg list")
