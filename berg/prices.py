"""What a machine costs an hour, from Google's public price list, the Cloud Billing Catalog.

The descriptions of its 30,000 SKUs are the only link from a machine to them, as `usageType` is not
reliable; they are matched from their beginning. If a part of a machine has no price, the machine has
none. Those of a region are kept in BERG_HOME for a day.

Not covered: traffic, addresses, discounts, reservations, custom machine types.
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from berg import google
from berg.config import Config, home
from berg.gce import SSD_GB, Shape, included_ssds
from berg.job import Job

URL = "/v1/services/6F81-5844-456A/skus"  # of Compute Engine
FIELDS = "nextPageToken,skus(description,serviceRegions,category(resourceGroup),pricingInfo)"
GROUPS = ("CPU", "RAM", "N1Standard", "GPU", "TPU", "SSD", "PDStandard", "LocalSSD")
FRESH = 86400  # seconds
HOURS_A_MONTH = 730
# What follows the name of a GPU, chip or disk, and what precedes that of CPUs and memory.
STANDARD, SPOT, FLEX = "STANDARD", "SPOT", "FLEX_START"  # as Google names them
RESERVED = "SPECIFIC_RESERVATION"
AFTER = {STANDARD: "", SPOT: " attached to Spot Preemptible VMs"}
AFTER[FLEX] = " attached to DWS Defined Duration VMs"
BEFORE = {STANDARD: "", SPOT: "Spot Preemptible ", FLEX: "DWS Defined Duration "}
FAMILIES = {"n1": "N1 Predefined", "a2": "A2", "g2": "G2", "g4": "G4", "e2": "E2"}
FAMILIES |= {"a3-highgpu": "A3", "a3-megagpu": "A3Plus", "a3-ultragpu": "A3Ultra"}
SHARED_CORE = {"e2-micro": 0.25, "e2-small": 0.5, "e2-medium": 1}  # vCPUs that are paid for
GPUS = {  # several names if regions differ
    "p4": ["Nvidia Tesla P4 GPU"],
    "t4": ["Nvidia Tesla T4 GPU"],
    "p100": ["Nvidia Tesla P100 GPU"],
    "v100": ["Nvidia Tesla V100 GPU"],
    "a100": ["Nvidia Tesla A100 GPU"],
    "l4": ["Nvidia L4 GPU"],
    "a100-80gb": ["Nvidia Tesla A100 80GB GPU"],
    "h100": ["Nvidia H100 80GB GPU"],
    "h100-mega": [
        "Nvidia H100 80GB Mega GPU",
        "Nvidia H100 Mega 80GB GPU",
        "Nvidia H100 80GB Plus GPU",
    ],
    "h200": ["H200 141GB GPU", "Nvidia H200 141GB GPU"],
    "b200": ["A4 Nvidia B200 (1 gpu slice)"],  # with its share of the machine and its disks
    "rtx-pro-6000": ["RTX 6000 96GB"],
}
TPUS = {"ct5lp": "TpuV5e", "ct5p": "TpuV5p", "ct6e": "TpuV6e", "tpu7x": "TPU7x"}  # the same
DISKS = {
    "pd-balanced": "Balanced PD Capacity",
    "pd-ssd": "SSD backed PD Capacity",
    "pd-standard": "Storage PD Capacity",
    "hyperdisk-balanced": "Hyperdisk Balanced Capacity",
}


def hourly(
    config: Config,
    shape: Shape,
    zone: str,
    is_spot: bool = False,
    is_flex: bool = False,
    disk_gb: float = 0,
    disk_type: str = "pd-balanced",
    ssds: int = 0,
) -> float | None:
    """USD for an hour of a machine, with its boot disk and local SSDs, those that come with it in any case; None: unknown.

    Asks Google once a day; an error is an unknown price.
    """
    model = SPOT if is_spot else FLEX if is_flex else STANDARD
    try:
        listed = region_prices(config, zone.rpartition("-")[0])
        found = parts(config, listed, shape, zone, model)
    except (google.GoogleError, OSError, ValueError, KeyError):
        return None
    if disk_gb:
        found.append((price(listed, DISKS.get(disk_type, disk_type)), disk_gb))
    ssds = ssds or included_ssds(shape.machine_type)
    if ssds and shape.gpu_type != "b200":
        found.append((own_price(listed, "SSD backed Local Storage", model), ssds * SSD_GB))
    known = [each * count for each, count in found if each is not None]
    return sum(known) if known and len(known) == len(found) else None


def of_machines(
    config: Config, job: Job, request: dict[str, Any], zones: list[str]
) -> float | None:
    """USD for an hour of a job's machines, in the most expensive region of these zones; None: unknown,
    as that of a reservation, which is paid for in any case.
    """
    if request.get("reservationAffinity", {}).get("consumeReservationType") == RESERVED:
        return None
    model = request["scheduling"].get("provisioningModel", STANDARD)
    disk, *ssds = request["disks"]
    boot = disk["initializeParams"]
    about = model == SPOT, model == FLEX, float(boot["diskSizeGb"]), boot["diskType"], len(ssds)
    shape = Shape(job.machine_type, job.gpus, job.gpu_type)
    found = [
        hourly(config, shape, zone, *about)
        for zone in {zone.rpartition("-")[0]: zone for zone in zones}.values()
    ]
    known = [usd for usd in found if usd is not None]
    return max(known) * job.machines if known and len(known) == len(found) else None


def disk(config: Config, zone: str, disk_type: str, gb: float) -> float | None:
    """USD for an hour of a disk; None: unknown."""
    try:
        listed = region_prices(config, zone.rpartition("-")[0])
    except (google.GoogleError, OSError, ValueError, KeyError):
        return None
    usd = price(listed, DISKS.get(disk_type, disk_type))
    return None if usd is None else usd * gb


def parts(
    config: Config, listed: dict[str, float], shape: Shape, zone: str, model: str
) -> list[tuple[float | None, float]]:
    """Price and number of what a machine is made of."""
    family = shape.machine_type.partition("-")[0]
    if family in TPUS:
        chips = re.search(r"-(\d+)t$", shape.machine_type)
        return [(own_price(listed, TPUS[family], model), int(chips[1]) if chips else 0)]
    found: list[tuple[float | None, float]] = []
    if shape.gpus:
        names = [f"{name}{AFTER[model]}" for name in GPUS.get(shape.gpu_type, [])]
        found.append((price(listed, *names), shape.gpus))
    if shape.gpu_type == "b200":
        return found
    series = "-".join(shape.machine_type.split("-")[:2])
    name = FAMILIES.get(series) or FAMILIES.get(family)
    if name is None:
        return [(None, 1)]
    path = f"/zones/{zone}/machineTypes/{shape.machine_type}"
    row = google.call(config, "GET", path, fields="guestCpus,memoryMb")
    cpus = SHARED_CORE.get(shape.machine_type, row["guestCpus"])
    kind = BEFORE[model] + (name if model == FLEX else f"{name} Instance")
    found.append((price(listed, f"{kind} Core"), cpus))
    return [*found, (price(listed, f"{kind} Ram"), row["memoryMb"] / 1024)]


def own_price(listed: dict[str, float], name: str, model: str) -> float | None:
    """The price of a chip or a local disk, which flex-start names as it names CPUs."""
    if model == FLEX:
        return price(listed, BEFORE[FLEX] + name.removeprefix("Tpu"))
    return price(listed, name + AFTER[model])


def price(listed: dict[str, float], *names: str) -> float | None:
    """The price of the first SKU that has one of these names, whichever place it names after it."""
    for name in names:
        begins = (f"{name} running in ", f"{name} in ")
        for description, usd in listed.items():
            if usd and (description == name or description.startswith(begins)):
                return usd
    return None


def region_prices(config: Config, region: str) -> dict[str, float]:
    """USD by description of a SKU, for an hour of one of it or of one GiB."""
    file = home() / f"prices-{'local-' if config.endpoint else ''}{region}.json"
    if file.exists() and 0 <= time.time() - file.stat().st_mtime < FRESH:
        kept: dict[str, float] = json.loads(file.read_text())
        return kept
    found = {
        row["description"]: rate(row)
        for row in skus(config)
        if region in row["serviceRegions"]
        and row["category"].get("resourceGroup") in GROUPS
        and not row["description"].startswith(("Commitment", "Reserved "))
    }
    new = file.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.replace(file)
    return found


def skus(config: Config) -> Iterator[dict[str, Any]]:
    url, token = f"{config.endpoint}/cloudbilling{URL}", ""
    if not config.endpoint:
        url = f"https://cloudbilling.googleapis.com{URL}"
    while True:
        more: dict[str, Any] = {"pageToken": token} if token else {}
        page = google.call(config, "GET", url, pageSize="5000", fields=FIELDS, **more)
        yield from page.get("skus", [])
        if not (token := page.get("nextPageToken", "")):
            return


def rate(row: dict[str, Any]) -> float:
    """USD for an hour of what a SKU counts."""
    expression = row["pricingInfo"][0]["pricingExpression"]
    unit = expression["tieredRates"][-1].get("unitPrice", {})
    usd = int(unit.get("units", 0)) + float(unit.get("nanos", 0)) / 1e9
    return usd / HOURS_A_MONTH if expression.get("usageUnit", "").endswith(".mo") else usd
