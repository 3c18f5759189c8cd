"""What a machine costs an hour, from Google's public price list, the Cloud Billing Catalog.

A description is the only link from a machine to its SKUs, and `usageType` is not to be trusted for
TPUs, so that a description is matched from its beginning, never in parts. Where a part has no price
there is none: half a sum would be a lie. The list has some 30,000 SKUs; those of a region lie in
BERG_HOME for a day, and `berg run` only looks there.

Not covered: disks, traffic, discounts, flex-start, reservations, custom machine types, parts of a
GPU.
"""

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from berg import config as settings
from berg.config import Config
from berg.google import api
from berg.google.accelerators import FRACTIONS, Shape

SERVICE = "services/6F81-5844-456A"  # Compute Engine
PAGE = 5000
FIELDS = (
    "nextPageToken,skus(description,serviceRegions,category(resourceGroup),"
    "pricingInfo(pricingExpression(tieredRates(unitPrice(units,nanos)))))"
)
GROUPS = ("CPU", "RAM", "N1Standard", "GPU", "TPU")
# seconds in which a list is not asked for again, and after which it is not shown
FRESH, KEPT = (
    86400,
    30 * 86400,
)
FAMILIES = {"n1": "N1 Predefined", "a2": "A2", "g2": "G2", "g4": "G4", "a3-highgpu": "A3"}
FAMILIES |= {"a3-megagpu": "A3Plus", "a3-ultragpu": "A3Ultra"}
# GiB for each vCPU. https://cloud.google.com/compute/docs/accelerator-optimized-machines
MEMORY = {
    "n1-standard": 3.75,
    "n1-highmem": 6.5,
    "n1-highcpu": 0.9,
    "g2-standard": 4,
    "g4-standard": 3.75,
}
MEMORY |= {"a2-highgpu": 85 / 12, "a2-megagpu": 1360 / 96, "a2-ultragpu": 170 / 12}
MEMORY |= {"a3-highgpu": 9, "a3-megagpu": 9, "a3-ultragpu": 2952 / 224}
# Several names where regions differ.
GPUS = {
    **{
        name: (f"Nvidia Tesla {name.upper()} GPU",) for name in ("p4", "t4", "p100", "v100", "a100")
    },
    "l4": ("Nvidia L4 GPU",),
    "a100-80gb": ("Nvidia Tesla A100 80GB GPU",),
    "h100": ("Nvidia H100 80GB GPU",),
    "h100-mega": (
        "Nvidia H100 80GB Mega GPU",
        "Nvidia H100 Mega 80GB GPU",
        "Nvidia H100 80GB Plus GPU",
    ),
    "h200": ("H200 141GB GPU",),
    "b200": ("A4 Nvidia B200 (1 gpu slice)",),  # with its share of the machine
    "rtx-pro-6000": ("RTX 6000 96GB",),
}
# of each chip, with its share of the machine
TPUS = {
    "ct5p": "TpuV5p",
    "ct6e": "TpuV6e",
    "tpu7x": "TPU7x",
}


@dataclass
class Prices:
    """The list prices of one region, by description."""

    region: str
    asked_at: float
    rates: dict[str, float]

    @property
    def date(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.asked_at))

    def per_hour(self, shape: Shape, spot: bool) -> float | None:
        """USD for an hour of a machine without disks and traffic; None where a part of it has no
        price.
        """
        family, _, size = shape.machine_type.partition("-")
        if family in TPUS:
            chips = re.search(r"-(\d+)t$", shape.machine_type)
            return total([(self.find((TPUS[family],), spot), int(chips[1]) if chips else 0)])
        parts: list[tuple[float | None, float]] = []
        if shape.num_gpus:
            parts.append((self.find(GPUS.get(shape.gpu_type, ()), spot), shape.num_gpus))
        if shape.gpu_type != "b200":
            kind = f"{family}-{size.partition('-')[0]}"
            name, memory = FAMILIES.get(kind) or FAMILIES.get(family), MEMORY.get(kind)
            if (
                name is None
                or memory is None
                or not shape.num_cpus
                or shape.machine_type in FRACTIONS
            ):
                return None
            parts.append((self.find((f"{name} Instance Core",), spot), shape.num_cpus))
            parts.append((self.find((f"{name} Instance Ram",), spot), shape.num_cpus * memory))
        return total(parts)

    def find(self, names: tuple[str, ...], spot: bool) -> float | None:
        """The rate of the first SKU with one of these names, whichever place it says it is in."""
        for name in names:
            begins = [f"{name} running in "]
            if spot:
                begins = [
                    f"Spot Preemptible {begins[0]}",
                    f"{name} attached to Spot Preemptible VMs running in ",
                ]
            for description, rate in self.rates.items():
                if description.startswith(tuple(begins)) and rate:
                    return rate
        return None


def total(parts: list[tuple[float | None, float]]) -> float | None:
    known = [rate * count for rate, count in parts if rate is not None]
    return sum(known) if known and len(known) == len(parts) else None


def file_of(config: Config, region: str) -> Path:
    cloud = "local-" if config.endpoint else ""
    return settings.home() / f"prices-{cloud}{region}.json"


def known(config: Config, region: str) -> Prices | None:
    """The prices of a region as they were asked for last; None if that never was, or too long ago.
    Asks nobody.
    """
    try:
        found = Prices(**json.loads(file_of(config, region).read_text()))
        return found if 0 <= time.time() - found.asked_at < KEPT else None
    except (OSError, ValueError, TypeError):
        return None


def look_up(config: Config, region: str) -> tuple[Prices | None, str]:
    """The prices of a region as of today, and why there are none."""
    from google.api_core import exceptions

    found = known(config, region)
    if found and time.time() - found.asked_at < FRESH:
        return found, ""
    url = f"{config.service_url('cloudbilling')}/v1/{SERVICE}/skus"
    rates: dict[str, float] = {}
    try:
        for page in api.pages(config, url, pageSize=PAGE, fields=FIELDS):
            rates |= {
                each["description"]: rate(each)
                for each in page.get("skus", [])
                if is_wanted(each, region)
            }
    except exceptions.Forbidden as error:
        if api.lacks_quota_project(error):
            return None, api.name_quota_project(config)
        enable = f"enable cloudbilling.googleapis.com: {api.enable_command(config, 'cloudbilling')}"
        return None, enable if api.is_off(error) else error.message
    except exceptions.GoogleAPICallError as error:
        return None, error.message
    found = Prices(region, time.time(), rates)
    file = file_of(config, region)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(asdict(found)))
    new.replace(file)
    return found, ""


def is_wanted(sku: dict[str, Any], region: str) -> bool:
    """Whether a SKU prices a part of a machine here, at once, and not by contract."""
    text, group = sku["description"], sku["category"].get("resourceGroup")
    return (
        region in sku["serviceRegions"]
        and group in GROUPS
        and not text.startswith(("Commitment", "Reserved "))
    )


def rate(sku: dict[str, Any]) -> float:
    price = sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][-1].get("unitPrice", {})
    return int(price.get("units", 0)) + price.get("nanos", 0) / 1e9
