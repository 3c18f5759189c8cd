"""Event files against TensorBoard's own reader and PyTorch's own writer; metrics as people write
them.
"""

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berg.google import events

SERIES = {
    "loss": [(0, 0.5, 1000.5), (300, 0.25, 1001.5)],
    "a/b": [(0, -1.0, 1000.5)],
    "größe": [(2**40, 3.0, 1002.0)],
}


def test_what_is_written_is_read_by_tensorboard_and_by_us(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    file = tmp_path / "events.out.tfevents.berg"
    events.write(file, SERIES)
    assert events.scalars(file) == events.scalars(file.read_bytes()) == SERIES
    theirs = loader.EventAccumulator(str(tmp_path)).Reload()
    found = {
        tag: [(e.step, e.value, e.wall_time) for e in theirs.Scalars(tag)]
        for tag in theirs.Tags()["scalars"]
    }
    assert found == SERIES


@pytest.mark.slow
def test_what_pytorch_writes_is_read(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    for step in range(3):
        writer.add_scalar("train/loss", 1 / (step + 1), step)
        writer.add_scalar("new style", step * 2, step, new_style=True)
    writer.add_text("note", "no number")
    writer.add_histogram("weights", numpy.array([1.0, 2.0, 3.0]), 0)
    writer.close()
    (file,) = tmp_path.glob("*tfevents*")
    found = events.scalars(file)
    assert found.keys() == {"train/loss", "new style"}, "only scalars are read"
    assert [(step, value) for step, value, _ in found["new style"]] == [(0, 0), (1, 2), (2, 4)]
    assert all(
        math.isclose(value, 1 / (step + 1), rel_tol=1e-6) for step, value, _ in found["train/loss"]
    )
    assert all(when > 1e9 for _, _, when in found["train/loss"])


@given(st.binary(max_size=200), st.integers(0, 200), st.binary(max_size=5))
def test_files_that_are_cut_off_or_damaged_end_there(tmp_path_factory, junk, cut, patch):
    file = tmp_path_factory.mktemp("events") / "file"
    events.write(file, SERIES)
    whole = file.read_bytes()
    assert events.scalars(junk) == {}
    for damaged in (whole[:cut], whole[:cut] + patch + whole[cut + len(patch) :]):
        for tag, points in events.scalars(damaged).items():
            assert points == SERIES[tag][: len(points)]


def test_an_event_whose_numbers_have_no_end_ends_the_file():
    whole = events.record(b"\xff" * 2_000_000)
    assert events.scalars(whole) == {}


def test_metrics_may_hold_any_text_and_step():
    lines = (
        '{"note": "a\u2028b\x85c", "loss": 1}\n{"loss": 2, "step": 1e300}\r\n{"loss": 3, "step": 7}'
    )
    found = events.metrics(lines.encode())["loss"]
    assert (
        [value for _, value, _ in found] == [1, 2, 3]
        and found[1][0] == 2**63 - 1
        and found[2][0] == 7
    )


def test_metrics_are_read_with_their_steps_and_times():
    lines = b"""{"step": 10, "loss": 0.5, "time": 1000, "note": "warm", "ok": true, "huge": 1e999}
{"step": 20, "loss": 0.25, "accuracy": 1, "time": 1001}
[1, 2]
not JSON
{"loss": NaN, "step": 30}
{"step": 40, "loss": 0.1"""
    assert events.metrics(lines) == {
        "loss": [(10, 0.5, 1000), (20, 0.25, 1001)],
        "accuracy": [(20, 1.0, 1001)],
    }
    assert events.metrics(b'{"loss": 2}\n{"loss": 1, "epoch": 7}\n') == {
        "loss": [(0, 2.0, 0), (7, 1.0, 0)],
        "epoch": [(7, 7.0, 0)],
    }


@given(st.binary(max_size=300))
def test_metrics_of_any_file_are_numbers(junk):
    for points in events.metrics(junk).values():
        assert all(math.isfinite(value) for _, value, _ in points)


def test_of_a_file_of_lines_that_is_too_long_the_last_ones_are_read(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f'{{"step": {number}, "loss": 1}}\n' for number in range(100)))
    lines = events.last_lines(file, 100).splitlines()
    assert lines[-1] == b'{"step": 99, "loss": 1}' and 1 < len(lines) < 5
    assert all(line.startswith(b'{"step"') for line in lines)
    assert events.last_lines(file, 1 << 20) == file.read_bytes()
