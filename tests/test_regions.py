"""More than one region: in which order its zones are tried, and what the plan says of that."""

import json

import pytest
from conftest import wait_for

from berg.google import groups

PLAN = ("run", "--dry-run", "--json", "-t", "t4")


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
    assert "at most unknown: no price in europe-west4 (list" in " ".join(shown.stderr.split())
    assert ", where the bucket is" in " ".join(shown.stderr.split())
    body = json.loads(shown.stdout)["request"]
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


BOTH = ("--region", "us-east1", "--region", "us-central1")


def test_several_machines_wait_in_the_cheapest_region_and_one_in_three_at_most(berg):
    shown = berg(*PLAN, "--spot", "-m", "2", *BOTH, "true")
    assert {zone.rpartition("-")[0] for zone in zones_in(shown)} == {"us-central1"}
    assert ": several machines wait in 1 region at most" in " ".join(shown.stderr.split())
    for regions, count in ((BOTH, 2), (("--region", "any"), 3)):
        found = {z.rpartition("-")[0] for z in zones_in(berg(*PLAN, "--spot", *regions, "true"))}
        assert len(found) == count and "us-central1" in found


def zones_of(cloud, name: str) -> list[str]:
    """Return the zones of the machines that a job of several has, those of one name in each."""
    found = cloud.call("GET", "/compute/v1/projects/berg-local/aggregated/instances")["items"]
    rows = [row for scope in found.values() for row in scope.get("instances", [])]
    return [row["zone"].rpartition("/")[2] for row in rows if row["name"].startswith(f"{name}-")]


FLEX = ("--flex", "-t", "l4", "-m", "2", "--max-hours", "4")


def test_several_machines_by_flex_start_wait_in_three_regions_at_most(berg):
    """They come together, or none does: no region has a part of them."""
    for regions, count in ((BOTH, 2), (("--region", "any"), 3)):
        shown = berg("run", "--dry-run", "--json", *FLEX, *regions, "true")
        assert len({zone.rpartition("-")[0] for zone in zones_in(shown)}) == count
        assert len(json.loads(shown.stdout)["request"]) == count, "a group in each"
    assert ": several machines wait in 3 regions at most" in " ".join(shown.stderr.split())


@pytest.mark.slow
def test_of_machines_that_come_in_two_regions_at_once_one_group_has_the_job(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {})
    each = "echo $(hostname) >> $BERG_RESULTS_DIR/$BERG_NODE_RANK; sleep 5"
    ran = berg("run", *FLEX, *BOTH, "-n", "twice", "--each", each)
    assert ran.returncode == 0, ran.stderr
    assert where_it_waits(berg, "twice") == {"us-central1", "us-east1"}
    cloud.call("POST", "/_berg/stockout", {"on": False})
    wait_for(lambda: len(zones_of(cloud, "twice")) == 4, 30, "the machines of both")
    wait_for(lambda: berg.state("twice")["state"] == "SUCCEEDED", 90, "its end")
    state, found = berg.state("twice"), berg.objects("berg_results/twice/")
    assert (state["attempt"], state["restarts"]) == (1, 0)
    lines = {rank: found[f"berg_results/twice/{rank}"] for rank in (0, 1)}
    assert lines == {0: b"twice-0\n", 1: b"twice-1\n"}
    wait_for(lambda: not where_it_waits(berg, "twice"), 30, "the end of both groups")
    wait_for(lambda: not zones_of(cloud, "twice"), 30, "the end of all machines")


@pytest.mark.slow
def test_machines_that_come_in_vain_do_not_end_those_that_have_the_job(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {})
    ran = berg("run", *FLEX, *BOTH, "-n", "vain", "--each", "sleep 15")
    assert ran.returncode == 0, ran.stderr
    gone = {"method": "compute.regionInstanceGroupManagers.delete", "status": 503, "times": None}
    cloud.fault(match="/us-central1/", **gone)
    cloud.call("POST", "/_berg/stockout", {"zone": "us-east1-c", "on": False})
    wait_for(lambda: berg.state("vain")["state"] == "RUNNING", 90, "its command")
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "on": False})
    wait_for(lambda: len(zones_of(cloud, "vain")) == 4, 30, "the machines of both")
    wait_for(lambda: berg.state("vain")["state"] == "SUCCEEDED", 120, "its end")
    assert (berg.state("vain")["attempt"], berg.state("vain")["restarts"]) == (1, 0)
    cloud.call("DELETE", "/_berg/faults")
    wait_for(lambda: not where_it_waits(berg, "vain"), 90, "the end of both groups")
    wait_for(lambda: not zones_of(cloud, "vain"), 30, "the end of all machines")


def where_it_waits(berg, name: str) -> set[str]:
    return groups.regions(berg.bucket.config, name)


@pytest.mark.slow
def test_one_machine_waits_in_two_regions_and_the_first_with_room_has_the_job(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {})
    ran = berg("run", "-t", "t4", "--spot", *BOTH, "-n", "both", "echo here")
    assert ran.returncode == 0, ran.stderr
    assert where_it_waits(berg, "both") == {"us-central1", "us-east1"}
    assert [each["name"] for each in json.loads(berg("list", "--json").stdout)] == ["both"]
    cloud.call("POST", "/_berg/stockout", {"zone": "us-east1-c", "on": False})
    wait_for(lambda: berg.state("both")["state"] == "SUCCEEDED", 90, "its end")
    assert berg.state("both")["zone"] == "us-east1-c"
    wait_for(lambda: not where_it_waits(berg, "both"), 30, "the end of both groups")


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_waits_in_two_regions_leaves_nothing(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {})
    assert berg("run", "-t", "t4", "--spot", *BOTH, "-n", "none", "true").returncode == 0
    assert berg("kill", "none").returncode == 0
    assert not where_it_waits(berg, "none") and not berg.machines()


@pytest.mark.slow
def test_a_region_without_quota_leaves_the_other_one(berg, cloud):
    """What no region takes fails, and leaves no group."""
    cloud.call("POST", "/_berg/stockout", {})
    cloud.fault("compute.regionInstanceGroupManagers.insert", status=403, times=2)
    ran = berg("run", "-t", "t4", "--spot", *BOTH, "-n", "nil", "true")
    assert ran.returncode == 1 and "no group of machines could be made in us-east1" in ran.stderr
    assert not where_it_waits(berg, "nil") and not berg.objects(".berg/jobs/nil")
    cloud.fault("compute.regionInstanceGroupManagers.insert", status=403)  # the first
    ran = berg("run", "-t", "t4", "--spot", *BOTH, "-n", "one", "true")
    assert ran.returncode == 0 and "no group of machines could be made in us-central1" in ran.stderr
    assert where_it_waits(berg, "one") == {"us-east1"}
    assert berg("kill", "one").returncode == 0 and not where_it_waits(berg, "one")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--region", "mars-1"), "no n1-standard-8 with 1 x t4 in mars-1"),
        (("--region", "us-east1", "--zone", "us-east1-nowhere"), "in us-east1-nowhere"),
        (("--region", "us-east1", "--reservation", "mine"), "leave out --reservation"),
    ],
)
def test_regions_that_cannot_be_tried(berg, options, says):
    refused = berg("run", "-t", "t4", *options, "true")
    assert refused.returncode == 1 and says in refused.stderr, refused.stderr
