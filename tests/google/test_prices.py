"""Prices from the Cloud Billing Catalog: which SKUs make up a machine, what is kept, and what is
said without.
"""

import json
import time

import pytest

from berg.google import accelerators, prices, tpus

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
    a100 = accelerators.choose(1, "a100", None, None)
    assert (
        round(listed.per_hour(a100, spot=False), 3) == 3.674
        and round(listed.per_hour(a100, spot=True), 3) == 1.928
    )
    p100 = accelerators.choose(4, "p100", 32, None)
    assert round(listed.per_hour(p100, spot=False), 4) == round(
        4 * 1.46 + 32 * 0.031611 + 120 * 0.004237, 4
    )
    b200 = accelerators.choose(8, "b200", None, None)
    assert listed.per_hour(b200, spot=True) == pytest.approx(8 * 4.95)
    v6e = look("us-east5")[0]
    assert v6e.per_hour(tpus.parse("v6e-2x2").shape, spot=False) == pytest.approx(4 * 2.70)
    assert v6e.per_hour(tpus.parse("v6e-2x2").shape, spot=True) == pytest.approx(4 * 1.4033)


@pytest.mark.parametrize(
    "options",
    [
        (None, None, None, "e2-standard-4"),  # no such family is known
        (0, None, 6, None),  # a custom machine type
        (1, "p4", None, None),  # its GPU is not in the list
        (1, "rtx-pro-6000", 6, None),  # a part of a GPU
        (8, "h100", None, None),  # nothing of it is in the list
    ],
)
def test_half_a_sum_is_no_price(look, options):
    shape = accelerators.choose(*options)
    assert look()[0].per_hour(shape, spot=False) is None
    assert look()[0].per_hour(accelerators.choose(1, "t4", None, None), spot=True) is None


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


def test_what_is_shown_with_prices_and_without(berg, cloud):
    options = ("run", "--dry-run", "-m", "2", "--max-hours", "10", "-t", "a100", "true")
    assert "Price     unknown; berg gpus looks for prices\n" in berg(*options).stderr
    berg.allowed.append(403)
    with cloud.without("cloudbilling"):
        shown = berg("gpus")
        assert (
            shown.returncode == 0
            and "unknown: enable cloudbilling.googleapis.com: gcloud services" in shown.stderr
        )
        assert {each["usd_per_hour"] for each in json.loads(berg("gpus", "--json").stdout)} == {
            None
        }
        assert berg("tpus").returncode == 0
    shown = berg("gpus")
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert f"List prices in us-central1 of {today}, without disks and traffic" in shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "3.67, 1.93" in rows["a100"] and "?, 39.60" in rows["b200"] and "1.84, ?" in rows["p100"]
    plan = berg(*options).stderr
    assert (
        "Price     $7.35 an hour on demand, $3.86 an hour as Spot; at most $73 in 10 h (list price in us-c"
        in plan
    )
    sweep = berg(
        "run",
        "--dry-run",
        "--max-hours",
        "10",
        "-t",
        "a100",
        "--grid",
        "x=1,2,3",
        "--parallel",
        "2",
        "echo {x}",
    )
    assert (
        "$7.35 an hour on demand, $3.86 an hour as Spot; at most $110 in 30 machine-hours"
        in sweep.stderr
    )
    assert (
        "Price     unknown in us-central1\n"
        in berg("run", "--dry-run", "-t", "h100", "-g", "8", *options[2:4], "true").stderr
    )
    chips = berg("tpus", BERG_REGION="us-east5").stderr
    assert "$/h a chip, on demand and Spot: v6e 2.70, 1.40; v5p ?, ?; tpu7x ?, ?." in chips
    rows = {
        each["tpu"]: each
        for each in json.loads(berg("tpus", "--json", BERG_REGION="us-east5").stdout)
    }
    assert (
        rows["v6e-2x4"]["usd_per_hour"] == pytest.approx(8 * 2.70)
        and rows["v5p-2x2x1"]["usd_per_hour"] is None
    )
