"""How busy machines are, as they say themselves."""

import json
from pathlib import Path

import pytest
from conftest import Cloud

from berg.clients.top import parse

PROC = """\
cpu  {} 0 0 {} 0 0 0 0 0 0
---
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo: {} 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0
  ens4:{} 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0
---
"""
REST = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 750 kB\nHugePages_Total: 0\n---\n"


def test_a_busy_machine_is_seen_and_one_without_an_answer_is_named(
    cloud: Cloud, project: Path
) -> None:
    assert cloud.run("run", "-g", "0", "-n", "busy", "sleep 300", cwd=project).code == 0
    rows = []
    while not (rows and rows[0]["samples"]):  # it boots
        rows = json.loads(cloud.run("top", "busy", "--json").out)
    sample = rows[0]["samples"][0]
    assert rows[0]["name"] == "busy" and 0 <= sample["cpu_percent"] <= 100
    assert 0 < sample["memory_percent"] < 100
    assert cloud.run("top").out.splitlines()[1].startswith("busy")
    (cloud.home / ".berg/ssh/id_ed25519").rename(cloud.home / "away")
    silent = cloud.run("top", "busy")
    (cloud.home / "away").rename(cloud.home / ".berg/ssh/id_ed25519")
    assert silent.code == 0 and "Permission denied" in silent.out
    cloud.call("POST", "/_berg/instances/busy/crash", {})
    assert "berg list" in cloud.run("top", "busy").err


def test_gpus_cpu_and_network_are_read_as_the_kernel_and_the_driver_say_them() -> None:
    counted = PROC.format(100, 100, 500, 1000) + PROC.format(130, 110, 900, 4000)
    sample = parse(counted + REST + "0, 98, 1024, 4096, 350.5, 61\n1, [N/A], 0, 4096, [N/A], 30\n")
    assert (sample["cpu_percent"], sample["memory_percent"]) == (75, 25)
    assert (sample["received_per_second"], sample["sent_per_second"]) == (3000, 0)
    assert [gpu["percent"] for gpu in sample["gpus"]] == [98, None]
    with pytest.raises(ValueError):
        parse("Welcome to this machine\n")
