"""How busy machines are now, and were at the end of a job."""

import json
import time
from pathlib import Path

from conftest import Cloud

SAMPLE = {"time": 0, "cpu_percent": 50, "memory_percent": 25, "received_per_second": 3_000_000,
          "sent_per_second": 0, "gpus": [{"index": 0, "percent": 98, "memory_mb": 1, "memory_total_mb": 4,
          "watt": 350.4, "celsius": 61}]}  # fmt: skip


def samples(cloud: Cloud, job: str, machine: str, *ages: float) -> None:
    """Write what a machine would have, of so many seconds ago."""
    lines = [json.dumps({**SAMPLE, "time": time.time() - age}) + "\n" for age in ages]
    name = f".berg/logs/{job}/{machine}.20260101T000000.usage.jsonl"
    cloud.bucket.write(name, "".join(lines).encode())


def test_machines_of_a_job_and_of_a_user(cloud: Cloud, project: Path) -> None:
    assert cloud.run("run", "-g", "0", "-n", "seen", "sleep 300", cwd=project).code == 0
    assert "no sample yet" in cloud.run("top").out
    samples(cloud, "seen", "seen", 3000, 60, 5)
    line = cloud.run("top").out.splitlines()[1]
    assert line.split()[0] == "seen" and "98%" in line and "3.0 MB" in line and "██" in line, line
    out = cloud.run("top", "seen", "--once").out
    assert "350 W  61 °C" in out
    rows = json.loads(cloud.run("top", "seen", "--json").out)
    assert len(rows[0]["samples"]) == 2 and rows[0]["name"] == "seen"
    assert cloud.run("kill", "-y", "--now", "seen").code == 0
    samples(cloud, "seen", "seen", 900)
    assert "KILLED: 15m ago" in cloud.run("top", "seen").out
