"""What machines cost, from a list of prices that are easy to tell from each other."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud

from berg import prices
from berg.config import Config
from berg.gce import Shape
from berg.job import Job

SPOT, FLEX = prices.AFTER[prices.SPOT], prices.AFTER[prices.FLEX]
LIST = {
    "N1 Predefined Instance Core Extra running in Iowa": 99.0,
    "N1 Predefined Instance Core running in Iowa": 1.0,
    "N1 Predefined Instance Ram running in Iowa": 0.01,
    "Spot Preemptible N1 Predefined Instance Core running in Iowa": 0.5,
    "Spot Preemptible N1 Predefined Instance Ram running in Iowa": 0.001,
    "E2 Instance Core running in Iowa": 2.0, "E2 Instance Ram running in Iowa": 0.03,
    "G2 Instance Core running in Iowa": 3.0, "G2 Instance Ram running in Iowa": 0.05,
    "DWS Defined Duration G2 Core running in Iowa": 0.7,
    "DWS Defined Duration G2 Ram running in Iowa": 0.002,
    "A2 Instance Core running in Iowa": 4.0, "A2 Instance Ram running in Iowa": 0.07,
    "A3Plus Instance Core running in Iowa": 5.0, "A3Plus Instance Ram running in Iowa": 0.09,
    "Nvidia Tesla T4 GPU in Iowa": 10.0, f"Nvidia Tesla T4 GPU{SPOT} in Iowa": 6.0,
    "Nvidia L4 GPU running in Iowa": 20.0, f"Nvidia L4 GPU{FLEX} running in Iowa": 7.0,
    "Nvidia Tesla A100 80GB GPU running in Iowa": 30.0,
    "Nvidia H100 80GB Mega GPU running in Iowa": 0.0,  # one that nobody can have
    "Nvidia H100 80GB Plus GPU running in Iowa": 40.0,
    "A4 Nvidia B200 (1 gpu slice) running in Iowa": 50.0,
    "TpuV6e running in Iowa": 8.0, f"TpuV6e{SPOT} running in Iowa": 5.0,
    "DWS Defined Duration V6e running in Iowa": 3.0,
    "Balanced PD Capacity": 0.001, "Hyperdisk Balanced Capacity in Iowa": 0.002,
    "SSD backed Local Storage": 0.0001, f"SSD backed Local Storage{SPOT}": 0.00003,
}  # fmt: skip
REGION = "us-central1"


@pytest.fixture
def listed(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The settings of a user who has read these prices today."""
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    (tmp_path / f"prices-local-{REGION}.json").write_text(json.dumps(LIST))
    return cloud.config


H100_MEGA = 40 * 8 + 208 * 5 + 1916928 / 1024 * 0.09


@pytest.mark.parametrize(
    ("shape", "how", "usd"),
    [
        (Shape("n1-standard-8"), {}, 8 + 30 * 0.01),
        (Shape("n1-standard-8"), {"is_spot": True}, 8 * 0.5 + 30 * 0.001),
        (Shape("n1-standard-8", 2, "t4"), {}, 20 + 8 + 30 * 0.01),
        (Shape("n1-standard-8", 2, "t4"), {"is_spot": True}, 12 + 8 * 0.5 + 30 * 0.001),
        (Shape("n1-standard-8"), {"is_flex": True}, None),  # not in this list
        (Shape("n1-standard-8"), {"disk_gb": 200}, 8 + 30 * 0.01 + 0.2),
        (Shape("n1-standard-8"), {"disk_gb": 200, "disk_type": "pd-extreme"}, None),
        (Shape("n1-standard-8"), {"ssds": 2}, 8 + 30 * 0.01 + 750 * 0.0001),
        (Shape("n1-standard-8"), {"ssds": 2, "is_spot": True}, 4 + 0.03 + 750 * 0.00003),
        (Shape("e2-medium"), {}, 2 + 4 * 0.03),  # of two vCPUs one is paid for
        (Shape("e2-micro"), {}, 0.5 + 0.03),
        (Shape("e2-standard-4"), {}, 8 + 16 * 0.03),
        (Shape("g2-standard-24", 2, "l4"), {}, 40 + 72 + 96 * 0.05),
        (Shape("g2-standard-24", 2, "l4"), {"is_flex": True}, 14 + 24 * 0.7 + 96 * 0.002),
        (Shape("a2-ultragpu-2g", 2, "a100-80gb"), {}, 60 + 96 + 340 * 0.07 + 750 * 0.0001),
        (Shape("a3-megagpu-8g", 8, "h100-mega"), {}, H100_MEGA + 16 * 375 * 0.0001),
        (Shape("a3-highgpu-8g", 8, "h100"), {}, None),
        (Shape("a4-highgpu-8g", 8, "b200"), {"disk_gb": 100, "disk_type": "hyperdisk-balanced"},
         400.2),
        (Shape("ct6e-standard-4t"), {}, 32), (Shape("ct6e-standard-4t"), {"is_spot": True}, 20),
        (Shape("ct6e-standard-4t"), {"is_flex": True}, 12),
        (Shape("n2-standard-4"), {}, None), (Shape("n1-standard-7"), {}, None),
    ],
    ids=str,
)  # fmt: skip
def test_a_machine_costs_the_sum_of_its_parts(
    listed: Config, shape: Shape, how: dict[str, Any], usd: float | None
) -> None:
    found = prices.hourly(listed, shape, f"{REGION}-a", **how)
    assert found == (None if usd is None else pytest.approx(usd, abs=1e-6))


def test_machines_of_a_job_cost_as_much_as_where_they_are_dearest(listed: Config) -> None:
    dear = {name.replace("Iowa", "Utah"): usd * 2 for name, usd in LIST.items()}
    home = Path(os.environ["BERG_HOME"])
    (home / "prices-local-us-east1.json").write_text(json.dumps(dear))
    job = Job("j", "true", "r", {}, "j", machines=3, machine_type="n1-standard-8")
    disk = {"initializeParams": {"diskSizeGb": "200", "diskType": "pd-balanced"}}
    ssd = {"initializeParams": {"diskType": "local-ssd"}}
    request: dict[str, Any] = {"scheduling": {}, "disks": [disk, ssd, ssd]}
    near, far = f"{REGION}-a", "us-east1-b"

    def usd(*zones: str, **more: Any) -> float | None:
        return prices.of_machines(listed, job, {**request, **more}, [*zones])

    one = 8 + 30 * 0.01 + 0.2 + 750 * 0.0001
    assert usd(near) == pytest.approx(3 * one)
    assert usd(near, far) == usd(far, near) == pytest.approx(6 * one)
    spot = usd(near, scheduling={"provisioningModel": "SPOT"})
    assert spot == pytest.approx(3 * (4 + 0.03 + 0.2 + 750 * 0.00003))
    assert usd(near, reservationAffinity={"consumeReservationType": prices.RESERVED}) is None
    assert usd(near, reservationAffinity={"consumeReservationType": "NO_RESERVATION"})
    (home / "prices-local-us-east1.json").write_text("{}")
    assert usd(near, far) is None
    assert prices.disk(listed, near, "pd-balanced", 50) == pytest.approx(0.05)
    assert prices.disk(listed, near, "pd-extreme", 50) is None


def test_prices_are_those_of_a_region_and_of_today(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    found = prices.region_prices(cloud.config, REGION)
    assert found["Nvidia L4 GPU running in Americas"] == 0.56004
    assert found["Balanced PD Capacity"] == pytest.approx(0.1 / 730)
    strange = [name for name in found if name.startswith(("Commitment", "Reserved ", "Network"))]
    assert not strange and "TpuV6e running in Columbus" not in found
    assert "TpuV6e running in Columbus" in prices.region_prices(cloud.config, "us-east5")
    file = tmp_path / f"prices-local-{REGION}.json"
    assert json.loads(file.read_text()) == found
    for age, is_asked in ((prices.FRESH - 60, False), (prices.FRESH + 60, True), (-60, True)):
        file.write_text("{}")
        os.utime(file, (time.time() - age,) * 2)
        assert bool(prices.region_prices(cloud.config, REGION)) is is_asked, age
    google = replace(cloud.config, endpoint="")  # its prices are others
    (tmp_path / f"prices-{REGION}.json").write_text('{"of Google": 1.0}')
    assert prices.region_prices(google, REGION) == {"of Google": 1.0}
    assert prices.region_prices(cloud.config, REGION) == found


def test_without_an_answer_a_price_is_unknown(cloud: Cloud, listed: Config) -> None:
    shape, zone = Shape("n1-standard-8"), "us-west1-a"
    cloud.call("POST", "/_berg/faults", {"method": "cloudbilling.*", "status": 403, "times": 2})
    assert prices.hourly(listed, shape, zone) is None
    assert prices.disk(listed, zone, "pd-balanced", 1) is None
    assert prices.hourly(listed, shape, zone) == pytest.approx(8 * 0.031611 + 30 * 0.004237)


def test_all_pages_of_the_list_are_read(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [row["description"] for row in prices.skus(cloud.config)]
    ask = prices.google.call

    def less(*words: Any, **query: Any) -> dict[str, Any]:
        return ask(*words, **{**query, "pageSize": "20"})

    monkeypatch.setattr(prices.google, "call", less)
    assert [row["description"] for row in prices.skus(cloud.config)] == whole and len(whole) > 40


@pytest.mark.parametrize(
    ("unit", "price", "usd"),
    [
        ("h", {"units": "2", "nanos": 500_000_000}, 2.5),
        ("h", {"nanos": 31_611_000}, 0.031611),
        ("GiBy.mo", {"units": "73"}, 0.1),
        ("h", {}, 0),
    ],
)
def test_a_price_is_that_of_an_hour(unit: str, price: dict[str, Any], usd: float) -> None:
    tiers = [{"unitPrice": {"units": "0"}}, {"unitPrice": price}]  # the first hours are for nothing
    row = {"pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": tiers}}]}
    assert prices.rate(row) == pytest.approx(usd)
