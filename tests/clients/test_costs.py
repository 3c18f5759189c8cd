"""What costs money is told: jobs of each week, machines now, and disks of devboxes that are off."""

import json
import re

from conftest import Cloud
from records import machine, put

from berg import gce


def test_costs_are_ones_own_unless_all_are_asked_for(cloud: Cloud) -> None:
    mine = {"BERG_USER": "payer"}
    job = put(cloud, "paid", "RUNNING", ago=100, user="payer", rate=2.5)
    before = {"ago": 21 * 86400, "took": 3600, "rate": 1.0}
    put(cloud, "paid-before", "FAILED", user="payer", machines=2, **before)
    put(cloud, "paid-too", user="payee", **before)
    for name, its, user in (
        ("paid", job, "payer"),
        ("paid-bare", None, "payer"),
        ("payees", None, "payee"),
    ):
        machine(cloud, name, its, user=user)
    for user in ("payer", "payee"):
        machine(cloud, f"{user}s-box", user=user, kind="devbox").stop(cloud.config)
    told = json.loads(cloud.run("costs", "--json", **mine).out)
    rows = {(row["kind"], row["name"]): row for row in told["now"]}
    assert {*rows} == {("machine", "paid"), ("machine", "paid-bare"), ("disk", "payers-box")}
    disk = rows["disk", "payers-box"]
    assert disk["about"].endswith(" GB of a machine that is off")
    assert 0 < disk["usd_per_hour"] < 0.1
    paid = rows["machine", "paid"]
    about = paid["usd_per_hour"], paid["where"], paid["about"]
    assert about == (2.5, "us-central1-a", "e2-medium")
    assert rows["machine", "paid-bare"]["usd_per_hour"] is None
    this, then = told["weeks"]
    assert (this["user"], this["jobs"], then["hours"], then["usd"]) == ("payer", 1, 2.0, 2.0)
    done = cloud.run("costs", **mine)
    now = f"Now: ${2.5 + disk['usd_per_hour']:.2f} an hour, and 1 of unknown price\n"
    assert done.err.endswith(now), done.err
    lines = [re.split(" {2,}", line.rstrip()) for line in done.out.splitlines()]
    assert lines[0] == ["WEEK OF", "USER", "JOBS", "MACHINE-HOURS", "COST", "PRICE UNKNOWN"]
    assert lines[2] == [then["begins"], "payer", "1", "2.0", "$2.00"] and lines[3] == [""]
    assert sorted((row[1], *row[4:]) for row in lines[5:]) == [
        ("paid", "$2.50", "e2-medium"), ("paid-bare", "?", "e2-medium"),
        ("payers-box", f"${disk['usd_per_hour']:.4f}", disk["about"]),
    ]  # fmt: skip
    told = json.loads(cloud.run("costs", "-a", "--json", **mine).out)
    assert {"payees", "payees-box", "paid"} <= {row["name"] for row in told["now"]}
    assert {"payer", "payee"} <= {week["user"] for week in told["weeks"]}
    for each in gce.machines(cloud.config):
        each.delete(cloud.config)
