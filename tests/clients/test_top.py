"""How busy machines are now, and were at the end of a job."""

import json
import time
from pathlib import Path

import pytest
from conftest import Cloud
from records import machine, put

from berg import gce, usage

SAMPLE = {"time": 0, "cpu_percent": 50, "memory_percent": 25, "received_per_second": 3_000_000,
          "sent_per_second": 0, "gpus": [{"index": 0, "percent": 98, "memory_mb": 1, "memory_total_mb": 4,
          "watt": 350.4, "celsius": 61}]}  # fmt: skip


def samples(cloud: Cloud, job: str, machine: str, *ages: float) -> None:
    """Write what a machine would have, of so many seconds ago."""
    lines = [json.dumps({**SAMPLE, "time": time.time() - age}) + "\n" for age in ages]
    name = f".berg/logs/{job}/{machine}.20260101T000000.usage.jsonl"
    cloud.bucket.write(name, "".join(lines).encode())


@pytest.mark.slow
def test_machines_of_a_job_and_of_a_user(cloud: Cloud, project: Path) -> None:
    assert cloud.run("run", "-g", "0", "-n", "seen", "sleep 900", cwd=project).code == 0
    samples(cloud, "seen", "seen", 3000, 60, -300)  # newer than those that it writes itself
    line = next(row for row in cloud.run("top").out.splitlines() if row.startswith("seen "))
    assert "98%" in line and "3.0 MB" in line and "██" in line, line
    out = cloud.run("top", "seen", "--once").out
    assert "350 W" in out and "61 °C" in out
    rows = json.loads(cloud.run("top", "seen", "--json").out)
    times = [sample["time"] for sample in rows[0]["samples"]]
    assert rows[0]["name"] == "seen" and len(times) >= 2 and times[-1] - times[0] < 1800
    assert cloud.run("kill", "-y", "--now", "seen").code == 0
    cloud.bucket.delete(*[n for n in cloud.names(".berg/logs/seen/") if n.endswith(".jsonl")])
    assert "seen has no samples" in cloud.run("top", "seen").err
    samples(cloud, "seen", "seen", 900)
    assert "KILLED: 15m ago" in cloud.run("top", "seen").out


@pytest.mark.slow
def test_a_job_that_prints_all_the_time_has_samples(cloud: Cloud, project: Path) -> None:
    words = ["run", "-g", "0", "-n", "talks", "--wait"]
    talk = "for i in $(seq 450); do echo $i; sleep 0.1; done"
    assert cloud.run(*words, talk, cwd=project).code == 0
    found = usage.read(cloud.bucket, "talks")["talks"]
    assert max(sample["time"] for sample in found) > found[0]["time"] + 25, found


def test_machines_that_are_on_are_ones_own(cloud: Cloud) -> None:
    mine = {"BERG_USER": "watcher"}
    assert "No machine runs. See: berg list" in cloud.run("top", **mine).err
    job = put(cloud, "tops", "RUNNING", ago=100, user="watcher")
    for name, its, user in (("tops-0", job, "watcher"), ("tops-1", job, "watcher"),
                            ("tops-bare", None, "watcher"), ("others", None, "another")):  # fmt: skip
        machine(cloud, name, its, user=user)
    machine(cloud, "tops-off", user="watcher").stop(cloud.config)
    samples(cloud, "tops", "tops-1", 2000, 1700, 30)
    rows = json.loads(cloud.run("top", "--json", **mine).out)
    assert [(row["name"], row["job"], row["state"], len(row["samples"])) for row in rows] == [
        ("tops-0", "tops", "RUNNING", 0), ("tops-1", "tops", "RUNNING", 2),
        ("tops-bare", "tops-bare", "RUNNING", 0),
    ]  # fmt: skip
    out = cloud.run("top", **mine).out
    assert out.splitlines()[0].split()[-3:] == ["LAST", "HALF", "HOUR"] and "350 W" not in out
    assert "RUNNING: no sample yet" in out
    out = cloud.run("top", "tops").out
    assert "350 W" in out and "tops-0" not in out and "tops-1" in out
    for each in gce.machines(cloud.config):
        each.delete(cloud.config)
