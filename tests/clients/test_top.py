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
def test_a_job_that_prints_all_the_time_has_samples(cloud: Cloud, project: Path) -> None:
    words = ["run", "-g", "0", "-n", "talks", "--wait"]
    talk = "for i in $(seq 450); do echo $i; sleep 0.1; done"
    assert cloud.run(*words, talk, cwd=project).code == 0
    found = usage.read(cloud.bucket, "talks")["talks"]
    assert max(sample["time"] for sample in found) > found[0]["time"] + 25, found


def test_machines_that_are_on_are_ones_own_or_of_a_job(cloud: Cloud) -> None:
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
    assert "RUNNING: no sample yet" in out and (
        f"{gce.machines(cloud.config, 'tops')[0].inner_address}\n"
        == cloud.run("show", "tops", "--ip").out
    )
    out = cloud.run("top", "tops").out
    assert "350 W 61 °C" in out and "tops-0" not in out and "tops-1" in out
    put(cloud, "topped", user="watcher")
    assert "topped has no samples" in cloud.run("top", "topped").err
    samples(cloud, "topped", "topped", 900)
    assert "SUCCEEDED: 15m ago" in cloud.run("top", "topped", "--once").out
    for each in gce.machines(cloud.config):
        each.delete(cloud.config)
