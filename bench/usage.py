"""What usage samples cost: CPU of a sample, and requests and bytes of an hour of them."""

import json
import os
import statistics
import subprocess
import sys
import time

import common
from common import SCRATCH, TOP, Cloud, Result, Target

from berg.google.mirror import Mirror
from berg.google.storage import Bucket
from berg.machine import usage

SECONDS, HOUR = 30, 120  # of a sample, and samples in an hour
EIGHT = "".join(f"{n}, {n * 10}, {n * 10000}, 81559, 512.34, 61\n" for n in range(8))


def cpu(repeats: int, work) -> float:
    """Milliseconds of CPU that something takes in this process, programs that it runs left out."""
    times = []
    for _ in range(20 * repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return 1000 * statistics.median(times)


def take() -> str:
    now = usage.counters()
    return (
        json.dumps(usage.sample({key: value - 1 for key, value in now.items()}, now, usage.gpus()))
        + "\n"
    )


def hour(cloud: Cloud, line: str, before: int) -> list[int]:
    """Operations of class A, requests and bytes of an hour of samples that follows on `before` of
    them.
    """
    folder = SCRATCH / f"logs{len(line)}-{before}"
    folder.mkdir()
    file = folder / "m.usage.jsonl"
    file.write_text(line * before)
    mirror = Mirror(folder, Bucket(cloud.config), f".berg/logs/{folder.name}/")
    mirror.sync()
    cloud.call("DELETE", "/_berg/requests")
    for _ in range(HOUR):
        with file.open("a") as output:
            output.write(line)
        mirror.sync()
    log = cloud.call("GET", "/_berg/requests")
    made = [each for each in log["requests"] if "upload_id=" not in each["path"]]
    writes = sum(each["method"].rpartition(".")[2] in ("insert", "compose") for each in made)
    return [writes, sum(log["counts"].values()), sum(log["bytes"].values())]


def measure(repeats: int) -> list[Result]:
    plain = take()
    (SCRATCH / "bin").mkdir()
    (SCRATCH / "bin/answer").write_text(EIGHT)
    (SCRATCH / "bin/nvidia-smi").write_text(f"#!/bin/sh\nexec cat {SCRATCH}/bin/answer\n")
    (SCRATCH / "bin/nvidia-smi").chmod(0o755)
    costs = {"no accelerator": cpu(repeats, take)}
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{SCRATCH}/bin:{path}"
    eight = take()
    costs["8 GPUs"] = cpu(repeats, take)
    os.environ["PATH"] = path
    libtpu = subprocess.Popen(
        [sys.executable, TOP / "tests/libtpu.py", "600"], env={**os.environ, "PYTHONPATH": TOP}
    )
    while not usage.tpus():
        time.sleep(0.1)
    costs["2 TPUs"] = cpu(repeats, lambda: (take(), usage.tpus()))
    libtpu.kill()
    libtpu.wait()
    note = "In the worker's process. nvidia-smi and libtpu are stand-ins: the real nvidia-smi's own process is not measured."
    rows = [[what, f"{took:.2f}"] for what, took in costs.items()]
    targets = [Target(what, took, 1, "ms") for what, took in costs.items()]
    found = [Result("CPU of a sample", note, ["", "CPU, ms"], rows, targets)]
    rows, first = [], []
    with Cloud() as cloud:
        cloud.call("POST", "/_berg/settings", {"write_interval": 0})  # an hour passes in seconds
        for what, line in (("no GPU", plain), ("8 GPUs", eight)):
            for name, before in (("first", 0), ("24th", 23 * HOUR)):
                writes, requests, sent = hour(cloud, line, before)
                first += [(writes, sent)] if what == "no GPU" and name == "first" else []
                rows.append(
                    [f"{what}, the {name} hour", f"{writes}", f"{requests}", f"{sent / 1e6:.1f} MB"]
                )
                rows[-1].append(f"${writes * 0.005 / 1000:.4f}")
    note = (
        f"A sample every {SECONDS} seconds: {len(plain)} bytes without a GPU, {len(eight)} with eight. Each sends the whole "
        "file; from 1 MB on only what is new, in two operations of class A. Measured once."
    )
    targets = [
        Target("class A, the first hour", first[0][0], HOUR + 5, "requests"),
        Target("bytes, the first hour without a GPU", first[0][1], 3_000_000, "bytes"),
    ]
    header = ["a machine", "class A", "requests", "sent", "cost"]
    found.append(Result("Samples in the bucket", note, header, rows, targets))
    return found


if __name__ == "__main__":
    common.main(__doc__, measure)
