"""What a machine is busy with: CPU, memory, disk, network, GPUs and TPUs, a JSON object a line
beside its log.

A sample costs a fraction of a millisecond of CPU; with GPUs nvidia-smi runs for it, with TPUs
libtpu is asked. What a driver does not tell ([N/A], as of a GPU that is split by MIG) is null. In a
container it is the whole machine's. Not covered: single processes, and the parts of a GPU that is
split.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from berg.machine import tpus

SUFFIX = ".usage.jsonl"
# Names of what is virtual, or counted elsewhere.
INTERFACES = ("lo", "docker", "veth", "br-")
DISKS = ("loop", "ram", "zram", "dm-", "md")
LEAST = 1  # seconds that are worth a sample
PATIENCE = 20  # seconds for nvidia-smi, which takes one or two where nothing holds the driver open
# What nvidia-smi calls it -> what we do: percent, MiB, watt, degrees Celsius.
GPU = {
    "index": "index",
    "utilization.gpu": "percent",
    "memory.used": "memory_mb",
    "memory.total": "memory_total_mb",
    "power.draw": "watt",
    "temperature.gpu": "celsius",
}
# Each nvidia-smi that its driver does not let end, not even by SIGKILL.
stuck: list[subprocess.Popen[bytes]] = []


def samples(
    seconds: float, stopped: Callable[[float], bool], has_tpus: bool = False
) -> Iterator[dict[str, Any]]:
    """A sample every so many seconds, of the time since the one before, until `stopped(pause)` is
    true.

    Then there is one more, or a short job had none: without accelerators, which rest by then.
    """
    before, count = counters(), 0
    while not stopped(seconds):
        now = counters()
        yield sample(before, now, gpus()) | ({"tpus": tpus.read()} if has_tpus else {})
        before, count = now, count + 1
    now = counters()
    if not count or now["time"] - before["time"] > LEAST:
        yield sample(before, now, []) | ({"tpus": []} if has_tpus else {})


def append(file: Path, sample: dict[str, Any]) -> None:
    # a full disk; the job says so itself
    with (
        contextlib.suppress(OSError),
        file.open("a") as output,
    ):
        output.write(json.dumps(sample) + "\n")


def counters() -> dict[str, float]:
    """What the kernel has counted since the machine booted."""
    cpu = [int(word) for word in rows("/proc/stat")[0][1:9]]
    memory = {row[0]: int(row[1]) * 1024 for row in rows("/proc/meminfo")[:3]}
    interfaces = [row for row in rows("/proc/net/dev")[2:] if not row[0].startswith(INTERFACES)]
    moved = disk_rows()
    return {
        "time": time.time(),
        "busy": sum(cpu) - cpu[3] - cpu[4],
        "waiting": cpu[4],
        "cpu": sum(cpu),
        "memory": memory["MemTotal"] - memory["MemAvailable"],
        "memory_total": memory["MemTotal"],
        "received": sum(int(row[1]) for row in interfaces),
        "sent": sum(int(row[9]) for row in interfaces),
        "read": sum(int(row[5]) for row in moved) * 512,
        "written": sum(int(row[9]) for row in moved) * 512,
    }


def disk_rows() -> list[list[str]]:
    """Return the kernel's counts of each real disk."""
    try:
        # A Path for each would take longer than all the rest.
        disks = os.listdir("/sys/block")  # noqa: PTH208
    except OSError:  # a sandbox may hide them
        return []
    real = {disk for disk in disks if not disk.startswith(DISKS)}
    if not real:
        return []
    return [row for row in rows("/proc/diskstats") if row[2] in real]


def rows(file: str) -> list[list[str]]:
    with Path(file).open() as lines:
        return [line.replace(":", " ", 1).split() for line in lines]


def sample(
    before: dict[str, float], now: dict[str, float], gpus: list[dict[str, float | None]]
) -> dict[str, Any]:
    """What happened between two counts."""
    # a driver may begin to count anew
    change = {key: max(0, now[key] - before[key]) for key in now}
    ticks, seconds = max(change["cpu"], 1), max(change["time"], 1e-3)
    disk = os.statvfs("/")
    return {
        "time": round(now["time"], 1),
        "cpu_percent": round(100 * change["busy"] / ticks, 1),
        "cpu_waiting_percent": round(100 * change["waiting"] / ticks, 1),
        "memory_percent": round(100 * now["memory"] / now["memory_total"], 1),
        "memory_bytes": now["memory"],
        "disk_percent": round(100 * (1 - disk.f_bavail / max(disk.f_blocks, 1)), 1),
        **{
            f"{key}_per_second": round(change[key] / seconds)
            for key in ("read", "written", "received", "sent")
        },
        "gpus": gpus,
    }


def gpus() -> list[dict[str, float | None]]:
    """Return the machine's GPUs; [] without any, and while nvidia-smi does not answer."""
    forget_those_that_ended()
    if stuck or not shutil.which("nvidia-smi"):
        return []
    found = []
    for line in nvidia_smi().splitlines():
        words = line.split(",")
        if len(words) == len(GPU):
            found.append(dict(zip(GPU.values(), map(number, words), strict=True)))
    return [each for each in found if each["index"] is not None]


def forget_those_that_ended() -> None:
    """Let go of each stuck nvidia-smi that has ended after all."""
    for each in [*stuck]:
        if each.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread saw it as well
                stuck.remove(each)


def nvidia_smi() -> str:
    """Return what nvidia-smi says of the GPUs, a line for each; "" if it does not answer."""
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.Popen(
            query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    try:
        output, _ = asked.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        asked.kill()
        stuck.append(asked)
        return ""
    return output.decode(errors="replace")


def number(word: str) -> float | None:
    try:
        return round(float(word), 1)
    except (ValueError, OverflowError):  # [N/A], [Not Supported]
        return None


def busiest(sample: dict[str, Any]) -> float | None:
    """Percent of the accelerator that does most; None where none tells."""
    listed = [*sample["gpus"], *sample.get("tpus", [])]
    return max(
        (each["percent"] for each in listed if each.get("percent") is not None), default=None
    )
