"""More than one region: in which order its zones are tried, and what the plan says of that."""

import json

import pytest

PLAN = ("run", "--dry-run", "-t", "t4")


def zones_in(shown) -> list[str]:
    assert shown.returncode == 0, shown.stderr
    (line,) = [line for line in shown.stderr.splitlines() if line.startswith("Zones ")]
    return line.removeprefix("Zones").strip().split(", ")


def test_the_cheapest_region_comes_first_and_what_has_no_price_last(berg):
    regions = ("--region", "europe-west4", "--region", "us-east1", "--region", "us-central1")
    shown = berg(*PLAN, *regions, "true")
    found = [zone.rpartition("-")[0] for zone in zones_in(shown)]
    order = list(dict.fromkeys(found))
    assert order == ["us-central1", "us-east1", "europe-west4"], (
        "mine among those that cost the same"
    )
    assert "at most unknown: some of the regions have no price" in shown.stderr
    assert ", where the bucket is" in " ".join(shown.stderr.split())
    body = json.loads(shown.stdout)
    assert f"zones/{zones_in(shown)[0]}/" in body["machineType"]


def test_any_region_is_all_that_have_the_machine(berg):
    found = {zone.rpartition("-")[0] for zone in zones_in(berg(*PLAN, "--region", "any", "true"))}
    assert {"us-central1", "europe-west4", "asia-east1"} <= found


@pytest.mark.slow
def test_a_region_without_room_is_left_for_the_next(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {})
    cloud.call("POST", "/_berg/stockout", {"zone": "us-east1-c", "on": False})
    regions = ("--region", "us-central1", "--region", "us-east1")
    ran = berg("run", "-t", "t4", *regions, "-n", "far", "--wait", "true")
    assert ran.returncode == 0, ran.stderr
    assert "Created far in us-east1-c" in ran.stderr
    row = next(each for each in json.loads(berg("list", "--json").stdout))
    assert row["zone"] == "us-east1-c" and set(row["rates"]) == {"us-central1", "us-east1"}
    assert row["usd"] is not None


def test_a_group_waits_in_the_cheapest_region(berg):
    shown = berg(*PLAN, "--spot", "--region", "us-east1", "--region", "us-central1", "true")
    assert {zone.rpartition("-")[0] for zone in zones_in(shown)} == {"us-central1"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--region", "mars-1"), "no n1-standard-8 with 1 x t4 in mars-1"),
        (("--region", "us-east1", "--zone", "us-east1-c"), "leave out --zone"),
        (("--region", "us-east1", "--any-zone"), "leave out --any-zone"),
    ],
)
def test_regions_that_cannot_be_tried(berg, options, says):
    refused = berg("run", "-t", "t4", *options, "true")
    assert refused.returncode == 1 and says in refused.stderr, refused.stderr
