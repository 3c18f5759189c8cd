"""`berg gpus` against the embedded cloud, and what Google shows no quota for."""

import json

from berg.google import shapes


def test_types_zones_and_quotas(berg):
    found = {each["type"]: each for each in json.loads(berg("gpus", "--json").stdout)}
    assert tuple(found) == shapes.TYPES
    assert found["v100"]["per_machine"] == [1, 2, 4, 8]
    assert (
        "us-central1-c" in found["p100"]["zones"] and "us-central1-a" not in found["p100"]["zones"]
    )
    assert found["p100"]["quota_left"] is not None and found["h200"]["quota_left"] is None
    shown = berg("gpus")
    assert shown.returncode == 0 and "List prices in us-central1" in shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "?, ?" in rows["h200"] and rows["b200"].split()[1] == "180"
    assert max(map(len, rows.values())) <= 80, "on a terminal of the usual width"
    assert rows["p100"].endswith("  c, f") and "us-east1" not in shown.stdout
    assert "us-east1-b" in berg("gpus", "--all").stdout
    assert "us-central1-c" in (berg.home / "zones").read_text().split()


def test_prices_of_some_types(berg):
    found = json.loads(berg("prices", "-t", "l4,t4,l4", "--json").stdout)
    assert [each["type"] for each in found] == ["l4"] * 4 + ["t4"] * 3
    eight = found[3]
    assert (eight["gpus"], eight["memory_gb"]) == (8, 24)
    table = berg("prices").stdout.splitlines()
    assert max(map(len, table)) <= 80, "on a terminal of the usual width"
    assert any(line.startswith("b200          180  8 ") and " $4.95 " in line for line in table)
    refused = berg("prices", "-t", "l4,l5")
    assert refused.returncode == 1 and "'l5'" in refused.stderr


def test_quota_in_use_is_taken_off(berg):
    def left() -> float:
        return {each["type"]: each for each in json.loads(berg("gpus", "--json").stdout)}["t4"][
            "quota_left"
        ]

    before = left()
    ran = berg("run", "-t", "t4", "-g", "2", "-n", "two", "sleep 99")
    assert ran.returncode == 0, ran.stderr
    assert left() == before - 2
    assert berg("kill", "--now", "two").returncode == 0


def test_a_region_without_any_says_where_there_are_some(berg):
    shown = berg("gpus", BERG_REGION="us-east4")
    row = next(line for line in shown.stdout.splitlines() if line.startswith("p100"))
    assert "none; in asia-east1, europe-west1, europe-west4, …" in row
