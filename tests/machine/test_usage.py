"""What a machine says of itself, with stand-ins for nvidia-smi and libtpu that answer as the real
ones do.
"""

import json
import os
import shutil
import sys
import time

import libtpu
import nvidia_smi
import pytest
from conftest import commit, wait_for

from berg.machine import usage
from berg.watch import collect

ANSWERS = {
    "one": "0, 97, 30500, 40960, 310.50, 66\n",
    "eight": "".join(f"{n}, {n * 10}, {n}, 81559, 100.0, 40\n" for n in range(8)),
    "split by MIG": "0, [N/A], 1024, 40960, [Not Supported], 41\n1, 5, 7, 40960, 60.1, 40\n",
    "broken": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
    "lost": "Unable to determine the device handle for GPU0000:00:04.0: Unknown Error\n",
    "none": "",
}
# A command that ends when so many samples tell this.
UNTIL = "until [ $(cat ~/berg/logs/*.usage.jsonl | grep -c '{}') -ge {} ]; do sleep 0.2; done"


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """Lets nvidia-smi answer; its question lies in the file that this returns."""

    def install(text: str, program: str = nvidia_smi.PROGRAM):
        file = tmp_path / "bin/nvidia-smi"
        file.parent.mkdir(exist_ok=True)
        file.with_name("nvidia-smi.answer").write_text(text)
        file.write_text(program)
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")
        return file.with_name("nvidia-smi.asked")

    return install


@pytest.mark.parametrize("kind", ANSWERS)
def test_gpus_are_read_as_nvidia_smi_tells_them(answer, kind):
    asked = answer(ANSWERS[kind])
    found = usage.gpus()
    assert asked.read_text() == (
        "--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu "
        "--format=csv,noheader,nounits\n"
    )
    assert len(found) == {"one": 1, "eight": 8, "split by MIG": 2}.get(kind, 0)
    if kind == "one":
        names = ("index", "percent", "memory_mb", "memory_total_mb", "watt", "celsius")
        assert found == [dict(zip(names, (0, 97, 30500, 40960, 310.5, 66), strict=True))]
    if kind == "split by MIG":
        assert (
            found[0]["percent"] is None
            and found[0]["watt"] is None
            and found[0]["memory_mb"] == 1024
        )
        assert usage.busiest({"gpus": found}) == 5 and usage.busiest({"gpus": found[:1]}) is None
    if kind == "eight":
        assert usage.busiest({"gpus": found}) == 70


def test_an_nvidia_smi_that_hangs_is_given_up_and_asked_again_once_it_is_gone(answer, monkeypatch):
    monkeypatch.setattr(usage, "TIMEOUT", 0.3)
    answer(ANSWERS["one"], "#!/bin/sh\nexec sleep 60\n")
    began = time.monotonic()
    assert usage.gpus() == [] and time.monotonic() - began < 5
    answer(ANSWERS["one"])
    assert wait_for(usage.gpus)[0]["percent"] == 97 and not usage.stuck


def test_tpus_are_read_as_libtpu_tells_them():
    port = 18431
    assert usage.tpus(port) == [], "no program uses them"
    server = libtpu.serve({1: (12.5, 3 * 2**30, 2**35), 0: (90.5, 2**20, 2**35)}, port)
    try:
        assert usage.tpus(port) == [
            {"index": 0, "percent": 90.5, "memory_mb": 1, "memory_total_mb": 32768},
            {"index": 1, "percent": 12.5, "memory_mb": 3072, "memory_total_mb": 32768},
        ]
    finally:
        server.stop(None)


def test_samples_tell_of_this_machine_and_are_read_back(answer, tmp_path):
    answer(ANSWERS["split by MIG"])
    file, pauses = tmp_path / "m.usage.jsonl", iter([False, False, False, True])

    def stopped(seconds: float) -> bool:
        end = time.monotonic() + 0.15
        while time.monotonic() < end:  # busy, so that there is something to see
            pass
        return next(pauses)

    for sample in usage.samples(30, stopped):
        usage.append(file, sample)
    lines = file.read_text().splitlines()
    samples = list(collect.parse_samples(file.read_bytes() + b'{"time": 1, "cut o'))
    assert len(samples) == len(lines) == 3 and samples == [json.loads(line) for line in lines]
    for sample in samples:
        percents = [sample[f"{kind}_percent"] for kind in ("cpu", "memory", "disk")]
        assert sample["cpu_percent"] > 0 and all(0 <= percent <= 100 for percent in percents)
        assert sample["received_per_second"] >= 0 and sample["read_per_second"] >= 0
        flat = {f"{which} {key}": value for which, key, value in collect.numbers_of(sample)}
        assert flat["gpu0 memory_mb"] == 1024 and "gpu0 percent" not in flat and " time" not in flat
        assert collect.mean(sample) == flat["gpu1 percent"] == 5
    series = collect.series_of(samples)
    assert series["berg/gpu1_percent"][0][0] == 0 and "berg/gpu0_percent" not in series


@pytest.mark.slow
def test_every_machine_of_a_job_keeps_its_samples_beside_its_log(berg):
    nvidia_smi.bring(berg.repo, ANSWERS["eight"])
    wishes = [
        "-m",
        "2",
        "--each",
        "-g",
        "0",
        "--install-script",
        "install.sh",
        "--sample-seconds",
        "1",
    ]
    done = berg("run", "-n", "pair", *wishes, "--wait", UNTIL.format('"percent": 70', 4))
    assert done.returncode == 0, done.stderr
    names = sorted(name.rpartition("/")[2] for name in berg.objects(".berg/logs/pair/"))
    assert [name.partition(".")[2].partition(".")[2] for name in names] == [
        "log",
        "software.json",
        "usage.jsonl",
    ] * 2
    assert [name.partition(".usage")[0] for name in names[2::3]] == [
        name.removesuffix(".log") for name in names[::3]
    ]
    found = collect.read_samples(berg.bucket, "pair")
    assert found.keys() == {"pair-0", "pair-1"}
    for samples in found.values():
        times = [sample["time"] for sample in samples]
        told = [sample["gpus"] for sample in samples if sample["gpus"]]
        assert len(told) >= 4 and times == sorted(times)
        assert [gpu["percent"] for gpu in told[-1]] == [n * 10 for n in range(8)]
    last = collect.read_samples(berg.bucket, "pair", seconds=2)
    assert all(
        samples == found[machine][len(found[machine]) - len(samples) :]
        for machine, samples in last.items()
    )
    assert sum(map(len, last.values())) < sum(map(len, found.values()))
    assert (
        "cpu_percent" not in berg("log", "pair").stdout
        and "cpu_percent" not in berg("show", "pair").stdout
    )
    assert berg("rm", "-y", "pair").returncode == 0 and not berg.objects(".berg/logs/pair/")


def test_what_is_no_number_is_not_in_a_sample():
    """A job writes its samples; `berg top` counts with them."""
    odd = b'{"time": 1, "cpu_percent": "9", "gpus": [{"index": 0, "watt": {}, "percent": 5}, 7]}'
    odd += b'\n{"time": 2, "gpus": "none", "tpus": null, "memory_percent": NaN}'
    first, second = collect.parse_samples(odd)
    assert first == {"time": 1, "gpus": [{"index": 0, "percent": 5}]} and second == {"time": 2}
    assert [*collect.numbers_of(first)] == [("gpu0", "percent", 5)] and not [
        *collect.numbers_of(second)
    ]


@pytest.mark.slow
def test_a_job_shorter_than_a_sample_has_one_of_all_of_it(berg):
    nvidia_smi.bring(berg.repo, ANSWERS["eight"])
    done = berg(
        "run", "-n", "quick", "-g", "0", "--install-script", "install.sh", "--wait", "sleep 2"
    )
    assert done.returncode == 0, done.stderr
    ((only,),) = collect.read_samples(berg.bucket, "quick").values()
    assert 0 < only["cpu_percent"] <= 100 and only["memory_bytes"] > 0 and only["gpus"] == []
    assert "quick" in berg("top", "quick", "--once").stdout


@pytest.mark.slow
def test_each_job_of_a_sweep_has_samples_of_its_own_and_none_if_none_are_wanted(berg):
    sweep = ["--grid", "n=0,1", "--parallel", "1", "-g", "0"]
    assert (
        berg(
            "run", "-n", "some", *sweep, "--sample-seconds", "1", "--wait", "sleep 3; : {n}"
        ).returncode
        == 0
    )
    assert (
        berg(
            "run", "-n", "none", *sweep, "--sample-seconds", "0", "--wait", "sleep 3; : {n}"
        ).returncode
        == 0
    )
    first, second = (collect.read_samples(berg.bucket, f"some-{n}") for n in (0, 1))
    (before,), (after,) = first.values(), second.values()
    assert before and after and before[-1]["time"] < after[0]["time"]
    assert (
        collect.read_samples(berg.bucket, "none-0")
        == collect.read_samples(berg.bucket, "none-1")
        == {}
    )


@pytest.mark.slow
def test_tpus_are_sampled_while_a_program_uses_them(berg):
    shutil.copy(libtpu.__file__, berg.repo)
    commit(berg.repo)
    packages = ":".join(["../../berg/app", *filter(None, sys.path)])  # berg's own, and grpc
    command = f"PYTHONPATH={packages} {sys.executable} libtpu.py 300 & " + UNTIL.format(
        '"percent": 90.5', 1
    )
    done = berg("run", "-n", "chip", "--tpu", "v6e-1", "--sample-seconds", "1", "--wait", command)
    assert done.returncode == 0, done.stderr
    (samples,) = collect.read_samples(berg.bucket, "chip").values()
    assert all("tpus" in sample for sample in samples), berg.log("chip")
    told = [sample["tpus"] for sample in samples if sample["tpus"]]
    assert told and told[0][0] == {
        "index": 0,
        "percent": 90.5,
        "memory_mb": 1024,
        "memory_total_mb": 32768,
    }


@pytest.mark.parametrize("seconds", ["-1", "4000"])
def test_how_often_to_sample_is_checked(berg, seconds):
    done = berg("run", "-g", "0", "--sample-seconds", seconds, "true")
    assert (
        done.returncode == 1
        and f"--sample-seconds {seconds} is not possible: give 1 to 3600" in done.stderr
    )
