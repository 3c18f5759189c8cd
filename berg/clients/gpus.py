"""`berg gpus`: what Google has of each GPU type: numbers in a machine, quota, prices, zones; and TPUs."""

from dataclasses import asdict, dataclass
from typing import Any

import click

from berg import gce, google, prices, terminal
from berg.config import Config
from berg.features import tpu as tpus
from berg.features.flex import NOT_ON_DEMAND
from berg.gce import GPUS, Shape
from berg.google import last_part

Row = dict[str, Any]


@dataclass
class Gpu:
    """A GPU type; prices are of the smallest machine with it, in the region of the settings."""

    type: str
    per_machine: list[int]  # how many a machine may have
    machine_type: str
    zones: list[str]  # of all regions
    quota_left: float | None = None  # in the region; None: Google shows none
    spot_quota_left: float | None = None
    usd_per_hour: float | None = None  # None: unknown, or not on demand
    spot_usd_per_hour: float | None = None
    flex_usd_per_hour: float | None = None


def offered(config: Config) -> list[Gpu]:
    """All GPU types of Berg's, as Google offers them."""
    _ = config.credentials
    with google.together(3) as pool:
        quotas = pool.submit(quotas_left, config)
        machine_types = pool.submit(built_in, config)
        fields = "items/*/acceleratorTypes(name,zone,maximumCardsPerInstance),nextPageToken"
        kinds = [*google.items(config, "/aggregated/acceleratorTypes", fields=fields)]
    found = []
    for name, (accelerator, pattern) in GPUS.items():
        rows = [row for row in kinds if row["name"] == accelerator]
        most = max((row.get("maximumCardsPerInstance", 0) for row in rows), default=0)
        machines = {count: f"n1-standard-{gce.CPUS}" for count in (1, 2, 4, 8) if count <= most}
        if pattern:
            machines = machine_types.result().get(accelerator, {})
        zones = sorted({last_part(row["zone"]) for row in rows})
        smallest = machines[min(machines)] if machines else ""
        gpu = Gpu(name, sorted(machines), smallest, zones)
        metric = f"NVIDIA_{name.upper().replace('-', '_')}_GPUS"
        gpu.quota_left = quotas.result().get(metric)
        gpu.spot_quota_left = quotas.result().get(f"PREEMPTIBLE_{metric}")
        found.append(gpu)
    add_prices(config, found[0])  # this reads the list, which all need
    with google.together(8) as pool:
        [*pool.map(lambda gpu: add_prices(config, gpu), found[1:])]
    return found


def built_in(config: Config) -> dict[str, dict[int, str]]:
    """The smallest machine type with each number of each accelerator."""
    pattern = "|".join(pattern for _, pattern in GPUS.values() if pattern)
    query = {"filter": f'name eq "({pattern})"', "maxResults": "500"}
    fields = "items/*/machineTypes(name,guestCpus,accelerators),nextPageToken"
    rows = [*google.items(config, "/aggregated/machineTypes", fields=fields, **query)]
    found: dict[str, dict[int, str]] = {}
    for row in sorted(rows, key=lambda row: int(row["guestCpus"])):
        kind, count = gce.built_in(row)
        found.setdefault(kind, {}).setdefault(count, row["name"])
    return found


def quotas_left(config: Config) -> dict[str, float]:
    """What is left of each quota that Google shows of the region and the project."""
    rows: list[Row] = []
    for path in (f"/regions/{config.region}", ""):
        rows += google.call(config, "GET", path, fields="quotas").get("quotas", [])
    return {row["metric"]: max(0.0, row["limit"] - row["usage"]) for row in rows}


def add_prices(config: Config, gpu: Gpu) -> None:
    here = [zone for zone in gpu.zones if zone.rpartition("-")[0] == config.region]
    if not here or not gpu.machine_type:
        return
    shape = Shape(gpu.machine_type, gpu.per_machine[0], gpu.type)
    if not shape.machine_type.startswith(NOT_ON_DEMAND):
        gpu.usd_per_hour = prices.hourly(config, shape, here[0])
    gpu.spot_usd_per_hour = prices.hourly(config, shape, here[0], is_spot=True)
    if not shape.is_attached:
        gpu.flex_usd_per_hour = prices.hourly(config, shape, here[0], is_flex=True)


@dataclass
class Tpu:
    """TPUs as --tpu takes them; prices are of all their machines, in the region of the settings."""

    tpu: str
    family: str
    topology: str
    hosts: int
    chips: int
    machine_type: str
    zones: list[str]  # of all regions
    usd_per_hour: float | None = None  # None: unknown
    spot_usd_per_hour: float | None = None
    flex_usd_per_hour: float | None = None


def offered_tpus(config: Config) -> list[Tpu]:
    listed, places = tpus.listed(), dict[str, list[str]]()
    pattern = "|".join(sorted({each.machine_type for each in listed}))
    query = {"filter": f'name eq "({pattern})"', "maxResults": "500"}
    fields = "items/*/machineTypes(name,zone),nextPageToken"
    for row in google.items(config, "/aggregated/machineTypes", fields=fields, **query):
        places.setdefault(row["name"], []).append(last_part(row["zone"]))
    found = []
    for each in listed:
        zones = sorted(places.get(each.machine_type, []))
        made = Tpu(
            each.name, each.family, each.topology, each.hosts, each.chips, each.machine_type, zones
        )
        shape, region = (
            Shape(each.machine_type),
            [zone for zone in zones if zone.startswith(f"{config.region}-")],
        )
        for zone in region[:1]:
            money = [
                prices.hourly(config, shape, zone),
                prices.hourly(config, shape, zone, is_spot=True),
                prices.hourly(config, shape, zone, is_flex=True),
            ]
            hourly = [None if usd is None else usd * each.hosts for usd in money]
            made.usd_per_hour, made.spot_usd_per_hour, made.flex_usd_per_hour = hourly
        found.append(made)
    return found


def show_tpus(found: list[Tpu]) -> None:
    rows = []
    for each in found:
        money = (each.usd_per_hour, each.spot_usd_per_hour, each.flex_usd_per_hour)
        numbers = [str(each.hosts), str(each.chips), *map(terminal.dollars, money)]
        rows.append([each.tpu, *numbers, ", ".join(each.zones)])
    terminal.show_table(["TPU", "MACHINES", "CHIPS", "DEMAND", "SPOT", "FLEX", "ZONES"], rows)


def number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


@click.command()
@click.option("-a", "--all", "everywhere", is_flag=True, help="Show the zones of all regions.")
@click.option(
    "--tpu", "of_tpus", is_flag=True, help="Show TPUs: families, topologies, prices, zones."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gpus(everywhere: bool, of_tpus: bool, as_json: bool) -> None:
    """Show GPU types: how many a machine may have, quota left, list prices, zones.

    Quotas, prices and zones are those of your region, on demand and as Spot; ? means that Google shows
    none. A price is that of the smallest machine with the GPU, without disk and traffic.

    TPUs (--tpu) with one machine are that; several are a slice, whose price is that of all of it. v5p and
    tpu7x have larger slices than those shown. Google shows no quotas for TPUs.

    \b
    berg gpus
    berg gpus --tpu
    berg gpus --json | jq -r '.[] | select(.type == "l4") | .zones[]'
    """
    config = Config.load()
    if of_tpus:
        with terminal.waiting("Asking Google"):
            shown = offered_tpus(config)
        return terminal.show_json([asdict(each) for each in shown]) if as_json else show_tpus(shown)
    with terminal.waiting("Asking Google"):
        found = offered(config)
    if as_json:
        return terminal.show_json([asdict(gpu) for gpu in found])
    rows = []
    for gpu in found:
        here = [zone for zone in gpu.zones if zone.rpartition("-")[0] == config.region]
        regions = sorted({zone.rpartition("-")[0] for zone in gpu.zones})
        zones = gpu.zones if everywhere else [zone[len(config.region) + 1 :] for zone in here]
        money = [gpu.usd_per_hour, gpu.spot_usd_per_hour, gpu.flex_usd_per_hour]
        rows.append([
            gpu.type,
            ",".join(map(str, gpu.per_machine)),
            number(gpu.quota_left),
            number(gpu.spot_quota_left),
            *map(terminal.dollars, money),
            ", ".join(zones) or f"none; in {', '.join(regions[:3])}" + ", …" * (len(regions) > 3),
        ])  # fmt: skip
    columns = ["TYPE", "GPUS", "QUOTA", "SPOT QUOTA", "DEMAND", "SPOT", "FLEX"]
    place = "ZONES" if everywhere else f"ZONES OF {config.region}"
    return terminal.show_table([*columns, place], rows)
