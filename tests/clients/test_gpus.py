"""All that helps to choose a GPU is in one table: numbers, quota, prices and zones."""

import json

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
