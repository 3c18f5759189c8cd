"""What costs money is told: jobs of each week, machines now, and disks of devboxes that are off."""

import json
import re
from pathlib import Path

import pytest
from conftest import Cloud
from records import machine, put

from berg import gce


@pytest.mark.slow
def test_weeks_and_what_costs_money_now(cloud: Cloud, project: Path) -> None:
    def now() -> dict[str, tuple[str, float]]:
        listed = json.loads(cloud.run("costs", "--json").out)["now"]
        return {row["name"]: (row["kind"], row["usd_per_hour"]) for row in listed}

    box = ["devbox", "-g", "0", "-n", "costbox"]
    assert cloud.run(*box, cwd=project).code == 0
    kind, on = now()["costbox"]
    assert kind == "machine" and 0.3 < on < 0.6
    assert cloud.run("stop", "--now", "costbox").code == 0
    kind, off = now()["costbox"]
    assert kind == "disk" and 0 < off < 0.1 * on
    weeks = json.loads(cloud.run("costs", "--json").out)["weeks"]
    assert sum(week["jobs"] for week in weeks) >= 1 and weeks[0]["user"]
    table = cloud.run("costs").out
    assert "of a machine that is off" in table and "WEEK OF" in table
    assert cloud.run("kill", "-y", "--now", "costbox").code == 0


def test_costs_are_ones_own_unless_all_are_asked_for(cloud: Cloud) -> None:
    mine = {"BERG_USER": "payer"}
    job = put(cloud, "paid", "RUNNING", ago=100, user="payer", rate=2.5)
    put(
        cloud,
        "paid-before",
        "FAILED",
        ago=21 * 86400,
        took=3600,
        user="payer",
        rate=1.0,
        machines=2,
    )
    put(cloud, "paid-too", ago=21 * 86400, took=3600, user="payee", rate=1.0)
    for name, its, user in (
        ("paid", job, "payer"),
        ("paid-bare", None, "payer"),
        ("payees", None, "payee"),
    ):
        machine(cloud, name, its, user=user)
    told = json.loads(cloud.run("costs", "--json", **mine).out)
    rows = {(row["kind"], row["name"]): row for row in told["now"]}
    assert {*rows} == {("machine", "paid"), ("machine", "paid-bare")}
    paid = rows["machine", "paid"]
    assert (paid["usd_per_hour"], paid["where"], paid["about"]) == (
        2.5,
        "us-central1-a",
        "e2-medium",
    )
    assert rows["machine", "paid-bare"]["usd_per_hour"] is None
    this, before = told["weeks"]
    assert (this["user"], this["jobs"], before["hours"], before["usd"]) == ("payer", 1, 2.0, 2.0)
    done = cloud.run("costs", **mine)
    assert done.err.endswith("Now: $2.50 an hour, and 1 of unknown price\n"), done.err
    lines = [re.split(" {2,}", line.rstrip()) for line in done.out.splitlines()]
    assert lines[0] == ["WEEK OF", "USER", "JOBS", "MACHINE-HOURS", "COST", "PRICE UNKNOWN"]
    assert lines[2] == [before["begins"], "payer", "1", "2.0", "$2.00"] and lines[3] == [""]
    assert sorted((row[1], *row[4:]) for row in lines[5:]) == [
        ("paid", "$2.50", "e2-medium"), ("paid-bare", "?", "e2-medium")
    ]  # fmt: skip
    told = json.loads(cloud.run("costs", "-a", "--json", **mine).out)
    assert {"payees", "paid"} <= {row["name"] for row in told["now"]}
    assert {"payer", "payee"} <= {week["user"] for week in told["weeks"]}
    for each in gce.machines(cloud.config):
        each.delete(cloud.config)
