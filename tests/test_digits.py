"""The example that the quickstart runs: accuracy, files, and a kill that changes nothing."""

import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TRAIN = Path(__file__).parent.parent / "examples/digits/train.py"


def command(logdir, epochs):
    return [sys.executable, str(TRAIN), f"--epochs={epochs}", f"--logdir={logdir}"]


def train(logdir, epochs=30):
    return subprocess.run(command(logdir, epochs), capture_output=True, text=True)


def read_metrics(logdir):
    """Return the rows of metrics.jsonl without the time they took, which no two runs share."""
    rows = [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]
    assert all(row.pop("seconds") > 0 for row in rows)
    return rows


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the logdir and the output of a run of 30 epochs, one for all test processes.
    Read-only.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits"
    folder.mkdir(exist_ok=True)
    logdir, output = folder / "demo/digits", folder / "output"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            run = train(logdir)
            assert run.returncode == 0, run.stderr
            output.write_text(run.stdout)
    return logdir, output.read_text()


@pytest.mark.slow
def test_it_learns_to_read_digits(uninterrupted):
    logdir, output = uninterrupted
    *epoch_lines, last_line = output.splitlines()
    rows = read_metrics(logdir)

    assert [line.split()[1] for line in epoch_lines] == [str(epoch) for epoch in range(1, 31)]
    assert [row["epoch"] for row in rows] == list(range(1, 31))
    assert set(rows[0]) == {"epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy"}
    assert rows[-1]["train_loss"] < 0.02 < 0.2 < rows[0]["train_loss"]
    assert rows[-1]["test_accuracy"] >= 0.97
    assert last_line == f"final test accuracy {rows[-1]['test_accuracy']:.3f}"
    files = sorted(path.name for path in logdir.iterdir())
    assert files == ["checkpoint.npz", "learning_curve.png", "metrics.jsonl"]


@pytest.mark.slow
def test_the_learning_curve_is_a_whole_png(uninterrupted):
    png = (uninterrupted[0] / "learning_curve.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert png.endswith(b"IEND\xaeB`\x82")
    assert struct.unpack(">II", png[16:24]) == (1200, 480)
    assert 20_000 < len(png) < 200_000  # an empty picture of this size has 4 kB


@pytest.mark.slow
def test_kill_9_at_any_epoch_changes_nothing(uninterrupted, tmp_path):
    epoch = random.randint(1, 20)  # the 20th ends with a plot, so the kill comes before the 30th
    with subprocess.Popen(command(tmp_path, 30), stdout=subprocess.PIPE, text=True) as process:
        for _ in range(epoch):
            process.stdout.readline()
        process.kill()
    resumed = train(tmp_path)

    assert process.returncode == -9
    assert resumed.returncode == 0, resumed.stderr
    done = int(resumed.stdout.split(" already has ")[1].split()[0])
    assert epoch <= done < 30, resumed.stdout
    assert len(resumed.stdout.splitlines()) == 1 + (30 - done) + 1
    assert read_metrics(tmp_path) == read_metrics(uninterrupted[0])
    expected, actual = (
        np.load(logdir / "checkpoint.npz") for logdir in (uninterrupted[0], tmp_path)
    )
    weights = ["w1", "b1", "w2", "b2"]
    for name in weights + [f"velocity_{name}" for name in weights]:
        assert expected[name].tobytes() == actual[name].tobytes(), (
            f"{name} differs, killed in epoch {epoch}"
        )
    rng_states = [
        json.loads(checkpoint["progress"].item())["rng_state"] for checkpoint in (expected, actual)
    ]
    assert rng_states[0] == rng_states[1]


@pytest.mark.slow
def test_more_epochs_continue_and_mend_metrics(uninterrupted, tmp_path):
    shutil.copy(uninterrupted[0] / "checkpoint.npz", tmp_path)
    half_row = '{"epoch": 31, "sec'  # killed in the middle of a row
    (tmp_path / "metrics.jsonl").write_text(
        (uninterrupted[0] / "metrics.jsonl").read_text() + half_row
    )
    run = train(tmp_path, epochs=32)
    rows = read_metrics(tmp_path)

    assert "already has 30 of 32 epochs" in run.stdout
    assert rows[:30] == read_metrics(uninterrupted[0])
    assert [row["epoch"] for row in rows[30:]] == [31, 32]


@pytest.mark.slow
def test_a_finished_run_says_so(uninterrupted, tmp_path):
    logdir, output = uninterrupted
    shutil.copy(logdir / "checkpoint.npz", tmp_path)
    run = train(tmp_path)

    assert run.returncode == 0
    assert run.stdout.splitlines() == [
        f"{tmp_path}/checkpoint.npz already has 30 of 30 epochs",
        output.splitlines()[-1],
    ]
    assert (tmp_path / "metrics.jsonl").read_text() == (logdir / "metrics.jsonl").read_text()
    assert (tmp_path / "learning_curve.png").read_bytes() == (
        logdir / "learning_curve.png"
    ).read_bytes()


@pytest.mark.slow
def test_a_corrupt_checkpoint_is_named_and_kept(uninterrupted, tmp_path):
    checkpoint = (uninterrupted[0] / "checkpoint.npz").read_bytes()
    middle = len(checkpoint) // 2
    flipped = checkpoint[:middle] + bytes([checkpoint[middle] ^ 1]) + checkpoint[middle + 1 :]
    for corrupt in (checkpoint[:middle], flipped):
        path = tmp_path / "checkpoint.npz"
        path.write_bytes(corrupt)
        run = train(tmp_path)
        assert run.returncode == 1
        assert run.stderr.startswith(f"{path} is corrupt (")
        assert run.stderr.count("\n") == 1
        assert path.read_bytes() == corrupt
