"""What a machine is busy with: CPU, memory, disk, network and GPUs, a JSON object a line. Standard library only.

A sample costs a fraction of a millisecond of CPU, and with GPUs one run of nvidia-smi. What a driver does not tell
([N/A], as of a part of a GPU that is split by MIG) is null. Not covered: TPUs, and what a container is limited to.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VIRTUAL = ("lo", "docker", "veth", "br-"), ("loop", "ram", "zram", "dm-", "md")  # network interfaces, disks
# What nvidia-smi calls it -> what we do: percent, MiB, watt, degrees Celsius.
GPU = {
    "index": "index",
    "utilization.gpu": "percent",
    "memory.used": "memory_mb",
    "memory.total": "memory_total_mb",
    "power.draw": "watt",
    "temperature.gpu": "celsius",
}


def keep(file: Path, seconds: float, stopped: Callable[[float], bool]) -> None:
    """Append a sample to `file` every so many seconds, until `stopped(pause)`."""
    before = counters()
    while not stopped(seconds):
        now = counters()
        try:
            with file.open("a") as output:
                output.write(json.dumps(sample(before, now)) + "\n")
        except OSError:
            pass  # a full disk; the job says so itself
        before = now


def counters() -> dict[str, float]:
    """What the kernel has counted since the machine booted."""
    cpu = [int(word) for word in rows("/proc/stat")[0][1:9]]
    memory = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows("/proc/meminfo")}
    interfaces = [row for row in rows("/proc/net/dev")[2:] if not row[0].startswith(VIRTUAL[0])]
    disks = {disk.name for disk in Path("/sys/block").iterdir() if not disk.name.startswith(VIRTUAL[1])}
    moved = [row for row in rows("/proc/diskstats") if row[2] in disks]
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


def rows(file: str) -> list[list[str]]:
    return [line.replace(":", " ", 1).split() for line in Path(file).read_text().splitlines()]


def sample(before: dict[str, float], now: dict[str, float]) -> dict[str, Any]:
    """What happened between two counts."""
    change = {key: now[key] - before[key] for key in now}
    ticks, seconds = max(change["cpu"], 1), max(change["time"], 1e-3)
    disk = os.statvfs("/")
    return {
        "time": round(now["time"], 1),
        "cpu_percent": round(100 * change["busy"] / ticks, 1),
        "cpu_waiting_percent": round(100 * change["waiting"] / ticks, 1),
        "memory_percent": round(100 * now["memory"] / now["memory_total"], 1),
        "memory_bytes": now["memory"],
        "disk_percent": round(100 * (1 - disk.f_bavail / disk.f_blocks), 1),
        **{f"{key}_per_second": round(change[key] / seconds) for key in ("read", "written", "received", "sent")},
        "gpus": gpus(),
    }


def gpus() -> list[dict[str, float | None]]:
    """The machine's GPUs; [] without any."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = [[number(word) for word in line.split(",")] for line in lines]
    return [dict(zip(GPU.values(), values, strict=True)) for values in found if len(values) == len(GPU)]


def number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:  # [N/A], [Not Supported]
        return None
