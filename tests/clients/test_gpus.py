"""All that helps to choose a GPU is in one table: numbers, quota, prices and zones."""

import json
import re

import pytest
from conftest import Cloud


def test_types_with_numbers_quota_prices_and_zones(cloud: Cloud) -> None:
    done = cloud.run("gpus", "--json")
    found = {row["type"]: row for row in json.loads(done.out)}
    assert {"l4", "t4", "a100", "h100", "b200"} <= found.keys()
    l4, t4 = found["l4"], found["t4"]
    assert l4["per_machine"] == [1, 2, 4, 8] and t4["per_machine"] == [1, 2, 4]
    assert l4["machine_type"] == "g2-standard-4" and "us-central1-a" in l4["zones"]
    assert l4["quota_left"] is not None and l4["spot_quota_left"] is not None
    assert 0 < l4["spot_usd_per_hour"] < l4["usd_per_hour"] < 1
    assert found["h200"]["usd_per_hour"] is None  # not on demand


def test_tpus_with_topologies_machines_prices_and_zones(cloud: Cloud) -> None:
    found = {row["tpu"]: row for row in json.loads(cloud.run("gpus", "--tpu", "--json").out)}
    assert found["v6e-1x1"]["machine_type"] == "ct6e-standard-1t"
    assert "us-east5-a" in found["v6e-4x4"]["zones"]
    row = found["v5p-2x2x2"]
    about = row["family"], row["topology"], row["chips"], row["hosts"], row["usd_per_hour"]
    assert about == ("v5p", "2x2x2", 8, 2, 33.6)


def test_a_machine_costs_what_googles_published_bills_say(cloud: Cloud) -> None:
    """Of GPUs, vCPUs, memory and local SSDs; the smallest machine is one with a whole GPU."""
    bills = {
        "a100": (3.674, 1.928, 2.020),
        "a100-80gb": (3.93 + 12 * 0.03161 + 170 * 0.00424 + 375 * 0.08 / 730, None, None),
        "h100": (None, None, (33.606088 + 2.274272 + 1.782144 + 0.65753425) / 8),
        "b200": (None, 8 * 4.95, 8 * 8.06),
        "rtx-pro-6000": (4.50, None, None),
        "v5p-2x2x1": (4 * 4.20, 4 * 0.836, None),
        "v6e-2x2": (4 * 2.70, 4 * 1.4033, 4 * 1.35),
    }
    rows = json.loads(cloud.run("gpus", "--json").out)
    for region in ("us-central1", "us-east5"):
        rows += json.loads(cloud.run("gpus", "--tpu", "--json", BERG_REGION=region).out)
    keys = ("usd_per_hour", "spot_usd_per_hour", "flex_usd_per_hour")
    for name, bill in bills.items():
        mine = [row for row in rows if name in (row.get("tpu"), row.get("type"))]
        costs = [tuple(row[key] for key in keys) for row in mine]
        assert any(cost == pytest.approx(bill, abs=0.001) for cost in costs), (name, costs)


def test_the_table_has_the_zones_of_the_region_or_all(cloud: Cloud) -> None:
    def table(*words: str, **env: str) -> dict[str, list[str]]:
        lines = cloud.run("gpus", *words, **env).out.splitlines()
        return {line.split()[0]: re.split(" {2,}", line)[1:] for line in lines}

    rows = {row["type"]: row for row in json.loads(cloud.run("gpus", "--json").out)}
    here, everywhere, tpus = table(), table("-a"), table("--tpu", BERG_REGION="us-east5")
    header = "GPUS  QUOTA  SPOT QUOTA  DEMAND  SPOT  FLEX  ZONES OF us-central1"
    assert here["TYPE"] == header.split("  ") and everywhere["TYPE"][-1] == "ZONES"
    assert everywhere["l4"][-1] == ", ".join(rows["l4"]["zones"])
    assert here["a100"] == ["1,2,4,8,16", "16", "16", "$3.67", "$1.93", "$2.02", "a, b, c, f"]
    assert here["h200"] == ["8", "?", "?", "?", "?", "?", "ai1a, b"]
    assert here["t4"][3:6] == ["$0.73", "$0.20", "?"]  # GPUs that are attached have no flex-start
    there = table(BERG_REGION="europe-west4")
    assert there["b200"][-1] == "none; in us-central1, us-west1" and there["l4"][-1] == "a, b, c"
    assert there["l4"][3:6] == ["?", "?", "?"]  # prices are those of the region
    assert tpus["TPU"] == ["MACHINES", "CHIPS", "DEMAND", "SPOT", "FLEX", "ZONES"]
    assert tpus["v6e-2x4"][:5] == ["2", "8", "$21.60", "$11.23", "$10.80"]
