"""How busy machines are: each writes a sample every 30 seconds, a line of JSON beside its log.

.berg/logs/<job>/<machine>.<time>.usage.jsonl

A sample is of the whole machine, and covers the time since the one before. What a driver does not
know, such as the utilization of a GPU that is split, is null. Not covered: TPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from berg import google, metrics
from berg.bucket import THREADS, Bucket
from berg.job import log_prefix

EVERY, FIRST = 30, 5  # seconds between two samples, and before the first
PATIENCE = 20  # seconds for nvidia-smi, which a driver may hold; then a sample lacks the GPUs
ENDING = ".usage.jsonl"
GPU = {  # nvidia-smi's name -> ours: percent, MiB, watt, degrees Celsius
    "index": "index",
    "utilization.gpu": "percent",
    "memory.used": "memory_mb",
    "memory.total": "memory_total_mb",
    "power.draw": "watt",
    "temperature.gpu": "celsius",
}
ASK = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader,nounits"]
NUMBERS = ("time", "cpu_percent", "memory_percent", "memory_bytes", "disk_percent",
           "received_per_second", "sent_per_second")  # fmt: skip
VIRTUAL = ("lo", "docker", "veth", "br-")  # beginnings of interfaces that are counted elsewhere
SHARES = ("GPU", "GPU memory", "CPU", "memory", "disk")  # of what is in use
FILES, BYTES = 1000, 8 << 20  # that are read of a job, the newest
Sample = dict[str, Any]


# --- on a machine


class Sampler:
    """Appends samples of this machine to a file. No fault of it is an error, and it waits for nothing."""

    asked: ClassVar[subprocess.Popen[bytes] | None] = None  # nvidia-smi, one at a time for all rows

    def __init__(self, file: Path, spared: set[int]) -> None:
        self.file, self.spared = file, spared  # pids that are not the command's
        self.next, self.before = time.monotonic() + FIRST, dict[str, float]()

    def look(self) -> None:
        """Append a sample if it is time for one, and nvidia-smi has answered."""
        with contextlib.suppress(OSError, ValueError, LookupError):
            self.before = self.before or counters()
            late = time.monotonic() - self.next
            if late < 0:
                return
            smi, answer = Sampler.asked, b""
            if smi is None and shutil.which(ASK[0]):
                null, pipe = subprocess.DEVNULL, subprocess.PIPE
                smi = Sampler.asked = subprocess.Popen(ASK, stdin=null, stdout=pipe, stderr=null)
                self.spared.add(smi.pid)
            if smi and smi.poll() is not None:
                Sampler.asked, (answer, _) = None, smi.communicate()
                self.spared.discard(smi.pid)
            elif smi and late < PATIENCE:
                return
            self.next = time.monotonic() + EVERY
            before, self.before = self.before, counters()
            made = {**changes(before, self.before), "gpus": gpus(answer.decode(errors="replace"))}
            with self.file.open("a") as out:
                out.write(json.dumps(made) + "\n")


def counters() -> dict[str, float]:
    """What the kernel has counted since the boot, and the bytes of memory."""
    cpu = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    memory = {row[0]: int(row[1]) * 1024 for row in rows("/proc/meminfo")}
    nets = [row for row in rows("/proc/net/dev")[2:] if not row[0].startswith(VIRTUAL)]
    return {
        "time": time.time(),
        "idle": cpu[3] + cpu[4],  # with what waits for a disk
        "cpu": sum(cpu),
        "memory": memory["MemTotal"] - memory["MemAvailable"],
        "memory_total": memory["MemTotal"],
        "received": sum(int(row[1]) for row in nets),
        "sent": sum(int(row[9]) for row in nets),
    }


def rows(file: str) -> list[list[str]]:
    return [line.replace(":", " ", 1).split() for line in Path(file).read_text().splitlines()]


def changes(before: dict[str, float], now: dict[str, float]) -> Sample:
    """What happened between two counts."""
    change = {key: max(0, now[key] - before[key]) for key in now}  # a driver may begin at 0 again
    seconds, disk = max(change["time"], 1e-3), os.statvfs("/")
    return {
        "time": round(now["time"], 1),
        "cpu_percent": round(100 - 100 * change["idle"] / max(change["cpu"], 1), 1),
        "memory_percent": round(100 * now["memory"] / now["memory_total"], 1),
        "memory_bytes": now["memory"],
        "disk_percent": round(100 * (1 - disk.f_bavail / max(disk.f_blocks, 1)), 1),
        "received_per_second": round(change["received"] / seconds),
        "sent_per_second": round(change["sent"] / seconds),
    }


def gpus(answer: str) -> list[Sample]:
    """The GPUs that nvidia-smi names; null for a number that it does not know: [N/A]."""

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    lines = [line.split(",") for line in answer.splitlines() if line.count(",") == len(GPU) - 1]
    return [dict(zip(GPU.values(), map(number, line))) for line in lines]


# --- for readers


def read(bucket: Bucket, name: str) -> dict[str, list[Sample]]:
    """The samples of each machine of a job, or of a row of a sweep, by time; of many the newest."""
    listed = [item for item in bucket.list(log_prefix(name)) if item.name.endswith(ENDING)]
    listed = sorted(listed, key=lambda item: item.updated_ns)[-FILES:]
    most = BYTES // max(len(listed), 1)
    with google.together(THREADS) as pool:
        contents = pool.map(lambda it: bucket.find(it.name, max(0, it.size - most)), listed)
        found: dict[str, list[Sample]] = {}
        for item, content in zip(listed, contents):
            machine = item.name.rpartition("/")[2].split(".")[0]
            found.setdefault(machine, []).extend(parse(content or b""))
    return {
        key: sorted(found[key], key=lambda it: it["time"]) for key in sorted(found) if found[key]
    }


def parse(content: bytes) -> list[Sample]:
    """The samples of a file; a line that is damaged or cut off is skipped."""
    found = []
    for line in content.splitlines():
        with contextlib.suppress(
            ValueError, LookupError, TypeError, AttributeError, RecursionError
        ):
            values = json.loads(line)
            made = known(values, NUMBERS)
            made["gpus"] = [known(gpu, GPU.values()) for gpu in values["gpus"]]
            if made["time"] is not None:
                found.append(made)
    return found


def known(values: Any, keys: Iterable[str]) -> Sample:
    """The numbers of these names; None for one that is unknown."""
    return {key: values.get(key) if metrics.is_number(values.get(key)) else None for key in keys}


def shares(sample: Sample) -> dict[str, float]:
    """How many percent of what a machine has are in use, as far as that is known."""
    found = {
        "GPU": mean(gpu["percent"] for gpu in sample["gpus"]),
        "GPU memory": mean(memory(gpu) for gpu in sample["gpus"]),
        **{name: sample[f"{name.lower()}_percent"] for name in SHARES[2:]},
    }
    return {name: value for name, value in found.items() if value is not None}


def memory(gpu: Sample) -> float | None:
    """Percent of a GPU's memory that is in use."""
    used, total = gpu["memory_mb"], gpu["memory_total_mb"]
    return 100 * used / total if used is not None and total else None


def mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def summary(samples: dict[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Mean and peak of the percents of all samples."""
    rows, found = [shares(sample) for each in samples.values() for sample in each], {}
    for name in SHARES:
        if values := [row[name] for row in rows if name in row]:
            average = sum(values) / len(values)
            found[name] = {"mean": round(average, 1), "peak": round(max(values), 1)}
    return found
