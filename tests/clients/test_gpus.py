"""All that helps to choose a GPU is in one table: numbers, quota, prices and zones."""

import json

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
    assert "a, b, c" in cloud.run("gpus").out


def test_tpus_with_topologies_machines_prices_and_zones(cloud: Cloud) -> None:
    found = {row["tpu"]: row for row in json.loads(cloud.run("gpus", "--tpu", "--json").out)}
    assert found["v5p-2x2x2"]["hosts"] == 2 and found["v5p-2x2x2"]["usd_per_hour"] == 33.6
    assert found["v6e-1x1"]["machine_type"] == "ct6e-standard-1t"
    assert "us-east5-a" in found["v6e-4x4"]["zones"]
    assert "v6e-4x4" in cloud.run("gpus", "--tpu").out


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
