"""What costs money is told: jobs of each week, machines now, and disks of devboxes that are off."""

import json
from pathlib import Path

import pytest
from conftest import Cloud


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
