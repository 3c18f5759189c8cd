"""What a machine costs an hour, from Google's public price list, the Cloud Billing Catalog.

Its descriptions are the only link from a machine to its SKUs, because `usageType` is not reliable;
they are matched from their beginning. A machine of which one part has no price has none. The list
has some 30,000 SKUs; those of a region are kept in BERG_HOME for a day.

Not covered: traffic, addresses, discounts, what is used of a reservation, custom machine types,
parts of a GPU.
"""

import json
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from berg import computer
from berg import config as settings
from berg.config import Config
from berg.google import api
from berg.google.shapes import FRACTIONS, SSD_GB, Shape

SERVICE = "services/6F81-5844-456A"  # Compute Engine
GLOBAL = "global"  # in place of a region: the fees for clusters are the same in all
PAGE = 5000  # SKUs of one answer
FIELDS = (
    "nextPageToken,skus(description,serviceRegions,category(resourceGroup),"
    "pricingInfo(pricingExpression(usageUnit,tieredRates(unitPrice(units,nanos)))))"
)
GROUPS = ("CPU", "RAM", "N1Standard", "GPU", "TPU", "SSD", "PDStandard", "LocalSSD")
HOURS_A_MONTH = 730
# Seconds for which a list is not asked for again, and after which it is not shown.
FRESH, KEPT = 86400, 30 * 86400
# How machines are paid for, in the API's words, and in the user's.
STANDARD, SPOT, FLEX = "STANDARD", "SPOT", "FLEX_START"
MODELS = {STANDARD: "on demand", SPOT: "as Spot", FLEX: "by flex-start"}
# What follows the name of a GPU, TPU or local disk, and what precedes that of CPUs and memory.
ATTACHED = {
    STANDARD: "",
    SPOT: " attached to Spot Preemptible VMs",
    FLEX: " attached to DWS Defined Duration VMs",
}
BEFORE = {STANDARD: "", SPOT: "Spot Preemptible ", FLEX: "DWS Defined Duration "}
FAMILIES = {"n1": "N1 Predefined", "a2": "A2", "g2": "G2", "g4": "G4", "a3-highgpu": "A3"}
FAMILIES |= {"a3-megagpu": "A3Plus", "a3-ultragpu": "A3Ultra", "e2": "E2"}
# GiB for each vCPU. https://cloud.google.com/compute/docs/accelerator-optimized-machines
MEMORY = {"n1-standard": 3.75, "n1-highmem": 6.5, "n1-highcpu": 0.9, "e2-standard": 4}
MEMORY |= {"g2-standard": 4, "g4-standard": 3.75}
MEMORY |= {"a2-highgpu": 85 / 12, "a2-megagpu": 1360 / 96, "a2-ultragpu": 170 / 12}
MEMORY |= {"a3-highgpu": 9, "a3-megagpu": 9, "a3-ultragpu": 2952 / 224}
# Machines that share a core: vCPUs that are paid for, and GiB.
SHARED_CORE = {"e2-micro": (0.25, 1), "e2-small": (0.5, 2), "e2-medium": (1, 4)}
# Several names if regions differ.
GPUS = {
    "p4": ("Nvidia Tesla P4 GPU",),
    "t4": ("Nvidia Tesla T4 GPU",),
    "p100": ("Nvidia Tesla P100 GPU",),
    "v100": ("Nvidia Tesla V100 GPU",),
    "a100": ("Nvidia Tesla A100 GPU",),
    "l4": ("Nvidia L4 GPU",),
    "a100-80gb": ("Nvidia Tesla A100 80GB GPU",),
    "h100": ("Nvidia H100 80GB GPU",),
    "h100-mega": (
        "Nvidia H100 80GB Mega GPU",
        "Nvidia H100 Mega 80GB GPU",
        "Nvidia H100 80GB Plus GPU",
    ),
    "h200": ("H200 141GB GPU", "Nvidia H200 141GB GPU"),
    "b200": ("A4 Nvidia B200 (1 gpu slice)",),  # with its share of the machine
    "rtx-pro-6000": ("RTX 6000 96GB",),
}
# Of each chip, with its share of the machine.
TPUS = {"ct5lp": "TpuV5e", "ct5p": "TpuV5p", "ct6e": "TpuV6e", "tpu7x": "TPU7x"}
DISKS = {
    "pd-balanced": "Balanced PD Capacity",
    "pd-ssd": "SSD backed PD Capacity",
    "pd-standard": "Storage PD Capacity",
    "hyperdisk-balanced": "Hyperdisk Balanced Capacity",
}

Parts = list[tuple[float | None, float]]  # of a machine: the price of one (None: unknown), how many


def region_of(place: str) -> str:
    """Return the region of a zone; of a region itself."""
    return place if place.count("-") == 1 else place.rpartition("-")[0]


@dataclass
class Prices:
    """The list prices of one region, by description."""

    region: str
    asked_at: float
    hourly: dict[str, float]  # USD for an hour of one of them, or of one GiB

    @property
    def date(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.asked_at))

    def per_hour(self, shape: Shape, model: str, disk_gb: float = 0) -> float | None:
        """Return USD for an hour of a machine with its boot disk; None: unknown."""
        parts = self.parts(shape, model)
        if disk_gb:
            parts.append((self.disk_per_hour(shape.disk_type, disk_gb), 1))
        return total(parts)

    def disk_per_hour(self, disk_type: str, gb: float) -> float | None:
        """Return USD for an hour of a disk of so many GiB; None for a kind without a price."""
        price = self.find(DISKS.get(disk_type, disk_type))
        return None if price is None else price * gb

    def parts(self, shape: Shape, model: str) -> Parts:
        family, _, size = shape.machine_type.partition("-")
        if family in TPUS:
            chips = re.search(r"-(\d+)t$", shape.machine_type)
            return [(self.own(TPUS[family], model), int(chips[1]) if chips else 0)]
        series = f"{family}-{size.partition('-')[0]}"
        found: Parts = []
        if shape.num_gpus:
            found.append((self.attached(GPUS.get(shape.gpu_type, ()), model), shape.num_gpus))
        if shape.gpu_type != "b200":
            found += self.of_cpus(shape, series, model)
        if shape.local_ssds and shape.gpu_type != "b200":  # which has its share
            price = self.own("SSD backed Local Storage", model)
            found.append((price, SSD_GB * shape.local_ssds))
        return found

    def of_cpus(self, shape: Shape, series: str, model: str) -> Parts:
        """Return a machine's vCPUs and memory."""
        name = FAMILIES.get(series) or FAMILIES.get(series.partition("-")[0])
        cpus: float = shape.num_cpus
        gigabytes = cpus * MEMORY.get(series, 0)
        if shape.machine_type in SHARED_CORE:
            cpus, gigabytes = SHARED_CORE[shape.machine_type]
        if name is None or not gigabytes or shape.machine_type in FRACTIONS:
            return [(None, 1)]
        what = BEFORE[model] + (name if model == FLEX else f"{name} Instance")
        return [(self.find(f"{what} Core"), cpus), (self.find(f"{what} Ram"), gigabytes)]

    def own(self, name: str, model: str) -> float | None:
        """Return the price of a TPU chip, or of a GiB of local disk; flex-start names them as it
        names CPUs, and shortens the name of a chip.
        """
        if model == FLEX:
            return self.find(f"{BEFORE[FLEX]}{name.removeprefix('Tpu')}")
        return self.attached((name,), model)

    def attached(self, names: Iterable[str], model: str) -> float | None:
        """Return the price of the first of these names that there is."""
        found = (self.find(f"{name}{ATTACHED[model]}") for name in names)
        return next((price for price in found if price is not None), None)

    def find(self, name: str) -> float | None:
        """Return the price of the first SKU of that name, whichever place it says it is in."""
        begins = (f"{name} running in ", f"{name} in ")
        for description, price in self.hourly.items():
            if price and (description == name or description.startswith(begins)):
                return price
        return None


def total(parts: Parts) -> float | None:
    """Return what all parts cost; None if there are none, or one has no price."""
    known = [price * count for price, count in parts if price is not None]
    return sum(known) if known and len(known) == len(parts) else None


def file_of(config: Config, region: str) -> Path:
    cloud = "local-" if config.endpoint else ""
    return settings.home() / f"prices-{cloud}{region}.json"


def known(config: Config, region: str) -> Prices | None:
    """Return the prices of a region that were asked for last, without a request; None if they are
    too old, or were never asked for.
    """
    try:
        found = Prices(**json.loads(file_of(config, region).read_text()))
        return found if 0 <= time.time() - found.asked_at < KEPT else None
    except (OSError, ValueError, TypeError):
        return None


def is_fresh(found: Prices | None) -> bool:
    return found is not None and time.time() - found.asked_at < FRESH


def look_up(config: Config, region: str) -> tuple[Prices | None, str]:
    """Return the prices of a region as of today, and why there are none."""
    found = known(config, region)
    if is_fresh(found):
        return found, ""
    why = refresh(config, [region])
    return (None, why) if why else (known(config, region), "")


def latest(config: Config, regions: Iterable[str]) -> dict[str, Prices]:
    """Return the prices of regions as of today, or else as they were last known."""
    wanted = list(dict.fromkeys(regions))
    old = [region for region in wanted if not is_fresh(known(config, region))]
    if old:
        refresh(config, old)
    return {region: found for region in wanted if (found := known(config, region))}


def cluster_fee(config: Config, location: str) -> float | None:
    """Return USD for an hour of a cluster without its nodes; None: unknown."""
    if not is_fresh(known(config, GLOBAL)):
        refresh(config, [GLOBAL], "services/CCD8-9BF1-090E")  # Kubernetes Engine
    kind = "Zonal" if location.count("-") > 1 else "Regional"
    listed = known(config, GLOBAL)
    return listed.find(f"{kind} Kubernetes Clusters") if listed else None


def refresh(config: Config, regions: list[str], service: str = SERVICE) -> str:
    """Ask for the prices of regions, all in one list, and keep them; return why there are none."""
    url = f"{config.service_url('cloudbilling')}/v1/{service}/skus"
    hourly: dict[str, dict[str, float]] = {region: {} for region in regions}
    try:
        for sku in filter(is_wanted, api.items(config, url, "skus", pageSize=PAGE, fields=FIELDS)):
            for region in hourly.keys() & set(sku["serviceRegions"]):
                hourly[region][sku["description"]] = rate(sku)
    except api.Forbidden as error:
        if api.lacks_quota_project(error):
            return api.name_quota_project(config)
        enable = f"enable cloudbilling.googleapis.com: {api.enable_command(config, 'cloudbilling')}"
        return enable if api.is_off(error) else error.message
    except (api.GoogleError, api.RetryError, OSError) as error:
        return str(getattr(error, "message", error))
    for region, prices in hourly.items():
        found = Prices(region, time.time(), prices)
        computer.write(file_of(config, region), json.dumps(asdict(found)))
    return ""


def is_wanted(sku: dict[str, Any]) -> bool:
    """Return whether a SKU is the price of a part of a machine, without a commitment."""
    is_fee = sku["description"].endswith("Kubernetes Clusters")
    is_part = is_fee or sku["category"].get("resourceGroup") in GROUPS
    return is_part and not sku["description"].startswith(("Commitment", "Reserved "))


def rate(sku: dict[str, Any]) -> float:
    """Return USD for an hour of what a SKU counts."""
    expression = sku["pricingInfo"][0]["pricingExpression"]
    price = expression["tieredRates"][-1].get("unitPrice", {})
    amount: float = int(price.get("units", 0)) + price.get("nanos", 0) / 1e9
    return amount / HOURS_A_MONTH if expression.get("usageUnit", "").endswith(".mo") else amount
