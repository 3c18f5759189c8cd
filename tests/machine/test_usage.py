"""What a machine says of itself, with a stand-in for nvidia-smi that answers as the real one does."""

import json
import os
import time

import pytest

from berg.machine import usage
from berg.watch import usage as read

ANSWERS = {
    "one": "0, 97, 30500, 40960, 310.50, 66\n",
    "eight": "".join(f"{n}, {n * 10}, {n}, 81559, 100.0, 40\n" for n in range(8)),
    "not told": "0, [N/A], 1024, 40960, [Not Supported], 41\n",
    "broken": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
    "none": "",
}


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """Lets nvidia-smi answer, and hears what it was asked."""

    def install(text: str):
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        (tmp_path / "answer").write_text(text)
        program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\ncat {tmp_path}/answer\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return tmp_path / "asked"

    return install


@pytest.mark.parametrize("kind", ANSWERS)
def test_gpus_are_read_as_nvidia_smi_tells_them(answer, kind):
    asked = answer(ANSWERS[kind])
    found = usage.gpus()
    assert asked.read_text().startswith("--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw,temp")
    assert len(found) == {"one": 1, "eight": 8, "not told": 1}.get(kind, 0)
    if kind == "one":
        names = ("index", "percent", "memory_mb", "memory_total_mb", "watt", "celsius")
        assert found == [dict(zip(names, (0, 97, 30500, 40960, 310.5, 66), strict=True))]
    if kind == "not told":
        assert found[0]["percent"] is None and found[0]["watt"] is None and found[0]["memory_mb"] == 1024


def test_samples_tell_of_this_machine_and_are_read_back(answer, tmp_path):
    answer(ANSWERS["not told"])
    file, pauses = tmp_path / "m.usage.jsonl", iter([False, False, False, True])

    def stopped(seconds: float) -> bool:
        end = time.monotonic() + 0.15
        while time.monotonic() < end:  # busy, so that there is something to see
            pass
        return next(pauses)

    usage.keep(file, 30, stopped)
    lines = file.read_text().splitlines()
    samples = list(read.parse(file.read_bytes() + b'{"time": 1, "cut o'))
    assert len(samples) == len(lines) == 3 and samples == [json.loads(line) for line in lines]
    for sample in samples:
        assert (
            0 < sample["cpu_percent"] <= 100
            and 0 < sample["memory_percent"] < 100
            and 0 <= sample["disk_percent"] <= 100
        )
        assert sample["received_per_second"] >= 0 and sample["read_per_second"] >= 0
        flat = read.scalars(sample)
        assert flat["gpu0_memory_mb"] == 1024 and "gpu0_percent" not in flat and "time" not in flat
    assert max(len(line) for line in lines) < read.LINE
