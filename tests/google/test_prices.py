"""Prices from the Cloud Billing Catalog: which SKUs make up a machine, what is kept, and what is
said without.
"""

import json
import time

import pytest

from berg.commands import tables
from berg.gke import client
from berg.gke.clusters import Status
from berg.google import prices, shapes

SKUS = "/cloudbilling/v1/services/6F81-5844-456A/skus"


@pytest.fixture
def look(cloud, tmp_path, monkeypatch):
    """The prices of a region, asked for anew in small pages."""
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    monkeypatch.setattr(prices, "PAGE", 4)
    return lambda region="us-central1": prices.look_up(cloud.settings(), region)


def asked(cloud) -> int:
    log = cloud.call("GET", "/_berg/requests")["requests"]
    return sum(each["method"] == "cloudbilling.services.skus.list" for each in log)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?pageSize=5001", 400),
        ("?pageToken=x", 400),
        ("?region=us-central1", 400),
        ("?currencyCode=EUR", 501),
    ],
)
def test_the_list_is_read_as_documented(cloud, query, status):
    assert cloud.session.get(f"{cloud.url}{SKUS}{query}").status_code == status
    assert cloud.session.get(f"{cloud.url}{SKUS}".replace("6F81", "0000")).status_code == 404
    pages, token = [], ""
    while token is not None:
        page = cloud.call("GET", f"{SKUS}?pageSize=10&pageToken={token}")
        pages.append(page["skus"])
        token = page.get("nextPageToken")
    assert (
        len(pages) > 2
        and [sku for page in pages for sku in page] == cloud.call("GET", SKUS)["skus"]
    )


def test_a_machine_costs_what_google_s_published_bill_says(look):
    listed, why = look()
    assert why == ""
    a100 = shapes.choose(1, "a100", None, None)
    bills = {prices.STANDARD: 3.674, prices.SPOT: 1.928, prices.FLEX: 2.020}
    for model, bill in bills.items():
        assert listed.per_hour(a100, model) == pytest.approx(bill, abs=0.001)
        with_disk = listed.per_hour(a100, model, disk_gb=730)
        assert with_disk - listed.per_hour(a100, model) == pytest.approx(0.1)  # $ 0.10 a month
    p100 = shapes.choose(4, "p100", 32, None)
    parts = 4 * 1.46 + 32 * 0.031611 + 120 * 0.004237
    assert listed.per_hour(p100, prices.STANDARD) == pytest.approx(parts)
    b200 = shapes.choose(8, "b200", None, None)
    bills = {prices.STANDARD: 16.11, prices.SPOT: 4.95, prices.FLEX: 8.06}
    for model, bill in bills.items():
        assert listed.per_hour(b200, model) == pytest.approx(8 * bill)
    h100 = shapes.choose(8, "h100", None, None)
    assert listed.per_hour(h100, prices.STANDARD) == pytest.approx(88.49, abs=0.01)
    flex = 33.606088 + 2.274272 + 1.782144 + 0.65753425  # the bill of somebody's training
    assert listed.per_hour(h100, prices.FLEX) == pytest.approx(flex, abs=0.0001)
    assert listed.per_hour(h100, prices.SPOT) is None
    g4 = shapes.choose(1, "rtx-pro-6000", None, None)
    assert listed.per_hour(g4, prices.STANDARD) == pytest.approx(4.50, abs=0.001)
    v5p = shapes.parse_tpu("v5p-2x2x1").shape
    assert listed.per_hour(v5p, prices.STANDARD) == pytest.approx(4 * 4.20)
    assert listed.per_hour(v5p, prices.SPOT) == pytest.approx(4 * 0.836)
    v6e = look("us-east5")[0]
    bills = {prices.STANDARD: 2.70, prices.SPOT: 1.4033, prices.FLEX: 1.35}
    for model, bill in bills.items():
        assert v6e.per_hour(shapes.parse_tpu("v6e-2x2").shape, model) == pytest.approx(4 * bill)


def test_local_disks_that_come_with_gpus_are_paid_for(look):
    listed = look()[0]
    ultra = shapes.choose(2, "a100-80gb", None, None)
    without = 2 * 3.93 + 24 * 0.03161 + 340 * 0.00424
    assert listed.per_hour(ultra, prices.STANDARD) == pytest.approx(without + 750 * 0.08 / 730)


@pytest.mark.parametrize(
    "options",
    [
        (None, None, None, "c3-standard-4"),  # no such family is known
        (0, None, 6, None),  # a custom machine type
        (1, "p4", None, None),  # its GPU is not in the list
        (1, "rtx-pro-6000", 6, None),  # a part of a GPU
        (8, "h200", None, None),  # the list has its GPUs alone
        (8, "h100-mega", None, None),  # likewise
    ],
)
def test_half_a_sum_is_no_price(look, options):
    shape = shapes.choose(*options)
    assert look()[0].per_hour(shape, prices.STANDARD) is None
    v100 = shapes.choose(1, "v100", None, None)
    assert look()[0].per_hour(v100, prices.STANDARD) and not look()[0].per_hour(v100, prices.SPOT)
    assert look()[0].per_hour(v100, prices.FLEX) is None


def test_a_disk_without_a_price_makes_the_machine_s_unknown(look):
    listed = look("us-east5")[0]
    listed.hourly.pop("Hyperdisk Balanced Capacity in Columbus")
    shape = shapes.parse_tpu("v6e-2x2").shape
    assert listed.per_hour(shape, prices.SPOT)
    assert listed.per_hour(shape, prices.SPOT, disk_gb=200) is None


@pytest.mark.parametrize(
    "trap",
    [
        "Reserved A2 Instance Core running in Americas",
        "Commitment v1: A2 Core in Americas for 1 Year",
        "Capacity Optimized A2 Instance Core running in Americas",
        "DWS Calendar Mode A2 Core running in Americas",
        "A2 Custom Instance Core running in Americas",
        "A2 Instance Core attached to Nodes running in Americas",
    ],
)
def test_words_that_are_nearly_the_same_price_nothing(trap):
    listed = prices.Prices("us-central1", 0, {trap: 1.0, "A2 Instance Core running in Americas": 0})
    assert listed.find("A2 Instance Core") is None


@pytest.mark.parametrize("before", ["", "Nvidia "])
@pytest.mark.parametrize("model", list(prices.MODELS))
def test_an_h200_is_found_under_either_of_its_names(before, model):
    described = f"{before}H200 141GB GPU{prices.ATTACHED[model]} running in Americas"
    listed = prices.Prices("us-central1", 0, {described: 3.0})
    assert listed.attached(prices.GPUS["h200"], model) == 3.0


def test_several_regions_come_with_one_list(cloud, look):
    cloud.call("DELETE", "/_berg/requests")
    found = prices.latest(cloud.settings(), ["us-central1", "us-east5", "us-central1"])
    pages = asked(cloud)
    assert found.keys() == {"us-central1", "us-east5"} and pages > 2
    assert look()[0] == found["us-central1"] and asked(cloud) == pages


def test_a_region_is_asked_for_once_a_day(cloud, look, tmp_path):
    cloud.call("DELETE", "/_berg/requests")
    first = look()[0]
    count = asked(cloud)
    assert count > 2 and look()[0] == first and asked(cloud) == count
    (file,) = tmp_path.glob("prices-*.json")
    old = {**json.loads(file.read_text()), "asked_at": time.time() - 2 * 86400}
    file.write_text(json.dumps(old))
    assert prices.known(cloud.settings(), "us-central1").date != first.date
    assert look()[0].asked_at >= first.asked_at and asked(cloud) == 2 * count
    for damaged in ("{", "[]", json.dumps({**old, "asked_at": 0})):
        file.write_text(damaged)
        assert prices.known(cloud.settings(), "us-central1") is None


@pytest.mark.slow
def test_what_is_shown_with_prices_and_without(berg, cloud):
    options = ("run", "--dry-run", "--json", "-m", "2", "--max-hours", "10", "-t", "a100", "true")
    berg.allowed.append(403)
    with cloud.without("cloudbilling"):
        assert "Price     unknown; berg prices says why\n" in berg(*options).stderr
        shown = berg("gpus")
        assert (
            shown.returncode == 0
            and "unknown: enable cloudbilling.googleapis.com: gcloud services" in shown.stderr
        )
        assert {each["usd_per_hour"] for each in json.loads(berg("gpus", "--json").stdout)} == {
            None
        }
        assert berg("gpus", "--tpu").returncode == 0
    shown = berg("gpus")
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert f"List prices in us-central1 of {today}, without disks and traffic" in shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert (
        "$3.67, $1.93" in rows["a100"] and "?, $4.95" in rows["b200"] and "$1.84, ?" in rows["p100"]
    )
    plan = berg(*options).stderr
    disks = 2 * 200 * 0.1 / 730
    each = [f"${2 * rate + disks:.2f}" for rate in (3.67388, 1.92768, 2.02038)]
    assert f"{each[0]} an hour on demand, {each[1]} an hour as Spot, {each[2]} an hour by" in plan
    assert f"; at most ${10 * (2 * 3.67388 + disks):,.0f} in 10h (list price in us-central1" in plan
    sweep = ("--grid", "x=1,2,3", "--parallel", "2", "echo {x}")
    shown = berg("run", "--dry-run", "--json", "--max-hours", "10", "-t", "a100", *sweep).stderr
    assert f"{each[0]} an hour on demand" in shown
    assert f"; at most ${30 * (3.67388 + disks / 2):,.0f} in 30 machine-hours" in shown
    unknown = berg(
        "run", "--dry-run", "--json", "-t", "p4", "--image", shapes.OLD_IMAGE, "true"
    ).stderr
    assert "Price     unknown in us-central1\n" in unknown
    chips = berg("gpus", "--tpu", BERG_REGION="us-east5").stderr
    assert "Per chip and hour, on demand and Spot: v6e $2.70, $1.40; v5p ?, ?; tpu7x ?, ?." in chips
    rows = {
        each["tpu"]: each
        for each in json.loads(berg("gpus", "--tpu", "--json", BERG_REGION="us-east5").stdout)
    }
    assert (
        rows["v6e-2x4"]["usd_per_hour"] == pytest.approx(8 * 2.70)
        and rows["v5p-2x2x1"]["usd_per_hour"] is None
    )


def test_a_cluster_costs_what_its_nodes_cost_that_are_up(cloud, look):
    pools = [
        {"pool": client.SYSTEM, "machine_type": "e2-medium", "gpus": "", "spot": False},
        {"pool": "jobs", "machine_type": "a2-highgpu-1g", "gpus": "1 x a100", "spot": False},
        {"pool": "more", "machine_type": "a2-highgpu-1g", "gpus": "1 x a100", "spot": True},
    ]
    nodes = [{"pool": name} for name in (client.SYSTEM, "jobs", "jobs", "more")]
    found = Status("train", "us-central1-a", "RUNNING", "", pools, nodes[:1])
    assert tables.cluster_cost(cloud.settings(), found) == "about $0.13 an hour"
    found.nodes = nodes
    assert "and more for 3 nodes up" in tables.cluster_cost(cloud.settings(), found)
    listed, a100 = look()[0], shapes.choose(1, "a100", None, None)
    on_demand, spot = (listed.per_hour(a100, each) for each in (prices.STANDARD, prices.SPOT))
    more = f"{2 * on_demand + spot:.2f}"
    said = tables.cluster_cost(cloud.settings(), found)
    assert said == f"about $0.13 an hour, and ${more} an hour for 3 nodes up"


@pytest.mark.parametrize(
    ("location", "fee"), [("us-central1-a", 0.1), ("us-central1", 0.1), ("us-east5-b", 0.1)]
)
def test_the_fee_for_a_cluster_is_asked_for_once_a_day(cloud, look, location, fee):
    before = asked(cloud)
    for _ in range(2):
        assert prices.cluster_fee(cloud.settings(), location) == fee
    assert asked(cloud) == before + 1, "it is not in the list of Compute Engine"


def test_a_fee_that_nobody_tells_is_unknown(cloud, look):
    cloud.fault("cloudbilling.services.skus.list", status=403, reason="forbidden")
    assert prices.cluster_fee(cloud.settings(), "us-central1-a") is None


@pytest.mark.parametrize(("kind", "usd"), [("e2-medium", 0.0335), ("e2-small", 0.01675)])
def test_machines_that_share_a_core_cost_a_part_of_it(look, kind, usd):
    listed, _ = look()
    assert listed.per_hour(shapes.Shape(kind, 0, ""), prices.STANDARD) == pytest.approx(
        usd, abs=1e-4
    )
