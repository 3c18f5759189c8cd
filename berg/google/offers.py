"""What Google offers: images by their family or name, zones that have a kind of machine, GPUs and
their quotas.
"""

import math
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import accelerators, advice, api, http, prices
from berg.google.accelerators import Shape
from berg.google.prices import Prices
from berg.google.tpus import everything as all_tpus

ANY = "any"  # in place of regions: all of them


def find_image(config: Config, image: str, project: str) -> str:
    """Path of an image given by its family or its name; raises BergError if there is neither."""
    for path in (f"/global/images/family/{image}", f"/global/images/{image}"):
        try:
            found = api.call(config, "GET", path, project=project, fields="name")
            return f"projects/{project}/global/images/{found['name']}"
        except (http.NotFound, http.BadRequest):
            continue
    raise BergError(
        f"no image or image family {image!r} in project {project!r}. "
        f"List what there is: gcloud compute images list --project {project} --no-standard-images"
    )


def image_gb(config: Config, image: str) -> int:
    """Size of the disk that an image fills, at most."""
    _, project, *_, name = image.split("/")
    return int(
        api.call(config, "GET", f"/global/images/{name}", project=project, fields="diskSizeGb")[
            "diskSizeGb"
        ]
    )


def zones_with(config: Config, shape: Shape, wanted: list[str]) -> list[str]:
    """Return zones to try for a machine: those wanted, or all of the region; raise BergError where
    there is none.
    """
    kind, name = listed_type(shape)
    offered = zones_that_offer(config, kind, name)
    zones = list(dict.fromkeys(wanted))
    if not wanted:
        zones = sorted(zone for zone in offered if zone.startswith(f"{config.region}-"))
    missing = [f"zone {zone}" for zone in zones if zone not in offered]
    if not zones:
        missing = [f"region {config.region}"]
    if missing:
        what = f"{shape.gpu_type} ({name})" if shape.num_gpus else name
        raise BergError(
            f"there is no {what} in {missing[0]} (or no such place). It is offered in: "
            f"{', '.join(sorted(offered)) or 'no zone at all'}"
        )
    return zones


def zones_in(config: Config, shape: Shape, regions: Collection[str]) -> list[str]:
    """Return the zones of regions, or of ANY, that have a machine; raise BergError without one."""
    kind, name = listed_type(shape)
    offered = sorted(zones_that_offer(config, kind, name))
    if ANY in regions:
        return offered
    found = [zone for zone in offered if zone.rpartition("-")[0] in regions]
    if not found:
        raise BergError(
            f"there is no {shape} in {', '.join(regions)} (or no such region). It is offered in: "
            f"{', '.join(offered) or 'no zone at all'}"
        )
    return found


def listed_type(shape: Shape) -> tuple[str, str]:
    """Return the list of Google's that a machine stands in, and its name there."""
    if shape.accelerator:
        return "acceleratorTypes", shape.accelerator
    if shape.machine_type.startswith(("custom-", "n1-custom-")):
        return "machineTypes", "n1-standard-1"  # custom types exist where N1 does
    return "machineTypes", shape.machine_type


def zones_that_offer(config: Config, kind: str, name: str) -> set[str]:
    """Return the zones of all regions whose list of a kind of types has this one."""
    asked = {"filter": f"name={name}", "fields": f"items/*/{kind}(zone),nextPageToken"}
    found: set[str] = set()
    for page in api.pages(config, f"/aggregated/{kind}", **asked):
        for scope in page.get("items", {}).values():
            found |= {api.last_part(item["zone"]) for item in scope.get(kind, [])}
    return found


def quotas(config: Config, region: str) -> dict[str, tuple[float, float]]:
    """Limit and usage of every quota that a region and the project show, by metric."""

    def ask(path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = api.call(config, "GET", path, fields="quotas").get(
            "quotas", []
        )
        return found

    with ThreadPoolExecutor() as pool:  # at the same time: each may be a round trip of its own
        rows = [*pool.map(ask, (f"/regions/{region}", ""))]
    return {row["metric"]: (row["limit"], row["usage"]) for each in rows for row in each}


def shortages(
    there: dict[str, tuple[float, float]], needs: list[tuple[int, list[str]]]
) -> list[str]:
    """A sentence for each need that no quota has room for; a quota that is not shown is not
    counted.
    """
    found = []
    for amount, metrics in needs:
        shown = {metric: there[metric] for metric in metrics if metric in there}
        if shown and not any(limit - usage >= amount for limit, usage in shown.values()):
            what = ", ".join(
                f"{metric}: {usage:g} of {limit:g} in use"
                for metric, (limit, usage) in shown.items()
            )
            found.append(f"{what}; this needs {amount:g}")
    return found


@dataclass
class Gpu:
    """A GPU type: how many a machine may have, where there are any, and what is left of the
    region's quotas.
    """

    type: str
    per_machine: list[int]
    zones: list[str]
    quota_left: float | None  # None: Google shows no such quota
    spot_quota_left: float | None
    machine_type: str = ""  # the smallest with such a GPU, of which the prices are
    usd_per_hour: float | None = None  # None: not known
    spot_usd_per_hour: float | None = None
    flex_usd_per_hour: float | None = None
    spot_odds: advice.Odds | None = None  # in the best zone of the region; None: Google says none


def gpu_zones(config: Config) -> dict[str, list[str]]:
    """Return the zones of all regions that have each GPU type that berg knows."""
    zones: dict[str, list[str]] = {name: [] for name in accelerators.TYPES}
    fields = "items/*/acceleratorTypes(name,zone),nextPageToken"
    for page in api.pages(config, "/aggregated/acceleratorTypes", fields=fields):
        for scope in page.get("items", {}).values():
            for item in scope.get("acceleratorTypes", []):
                name = accelerators.ALIASES.get(item["name"], item["name"])
                if name in zones:
                    zones[name].append(api.last_part(item["zone"]))
    return zones


@dataclass
class Priced:
    """A machine with GPUs, and what an hour of it costs, without its disk; None: not known."""

    type: str
    gpus: int
    machine_type: str
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    flex_usd_per_hour: float | None
    zones: list[str]  # of the region

    @property
    def cheapest(self) -> float:
        """USD for an hour of one GPU, in the cheapest way; infinite where no price is known."""
        costs = (self.usd_per_hour, self.spot_usd_per_hour, self.flex_usd_per_hour)
        return min((each / self.gpus for each in costs if each), default=math.inf)


def priced(
    config: Config, listed: Prices | None, region: str, gpu_type: str | None
) -> list[Priced]:
    """Return the smallest machine with each GPU type that a region has, the cheapest GPU first; or
    all with one type, or with several in a list with commas, the smallest first.
    """
    zones = gpu_zones(config)
    types = dict.fromkeys(gpu_type.split(",")) if gpu_type else [None]
    found = []
    for shape in chain.from_iterable(map(accelerators.shapes, types)):
        here = sorted({each for each in zones[shape.gpu_type] if each.startswith(f"{region}-")})
        rates = per_hour(listed, shape)
        if here:
            found.append(Priced(shape.gpu_type, shape.num_gpus, shape.machine_type, *rates, here))
    if gpu_type is None:
        found.sort(key=lambda each: each.cheapest)
    return found


def gpus(config: Config, listed: Prices | None) -> list[Gpu]:
    """The GPU types that berg knows, with the zones of all regions, and quotas and prices of the
    configured one.
    """
    _ = config.session
    with ThreadPoolExecutor() as pool:
        there = pool.submit(quotas, config, config.region)
        zones = gpu_zones(config)
        odds = advice.of_shapes(config, smallest(config.region, zones))

    def left(metric: str) -> float | None:
        limit, usage = there.result().get(metric, (None, 0.0))
        return None if limit is None else max(0.0, limit - usage)

    found = []
    for name, places in zones.items():
        metric = f"NVIDIA_{name.upper().replace('-', '_')}_GPUS"
        counts = (
            accelerators.ATTACHED[name][1]
            if name in accelerators.ATTACHED
            else accelerators.BUILT_IN[name]
        )
        shape = accelerators.choose(None, name, None, None)
        rates = per_hour(listed, shape)
        quota = left(metric), left(f"PREEMPTIBLE_{metric}")
        made = Gpu(name, [*counts], sorted(set(places)), *quota, shape.machine_type, *rates)
        found.append(replace(made, spot_odds=odds.get(name)))
    return found


def smallest(region: str, zones: dict[str, list[str]]) -> Iterator[tuple[Shape, list[str]]]:
    """Return the smallest machine with each GPU type, and its zones in a region."""
    for name, places in zones.items():
        here = sorted({zone for zone in places if zone.startswith(f"{region}-")})
        yield accelerators.choose(None, name, None, None), here


def per_hour(
    listed: Prices | None, shape: Shape
) -> tuple[float | None, float | None, float | None]:
    """USD for an hour of a machine on demand, where it can be had so, as Spot, by flex-start."""
    if listed is None:
        return None, None, None
    on_demand = listed.per_hour(shape, prices.STANDARD)
    if shape.machine_type.startswith(accelerators.NOT_ON_DEMAND):
        on_demand = None
    return on_demand, listed.per_hour(shape, prices.SPOT), listed.per_hour(shape, prices.FLEX)


def tpus(config: Config, listed: Prices | None) -> list[dict[str, Any]]:
    """What there is of TPUs: names for --tpu, hosts, chips, machine types, prices, and the zones of
    all regions.
    """
    there = all_tpus()
    kinds = " OR ".join(f"name={kind}" for kind in sorted({each.machine_type for each in there}))
    zones: dict[str, list[str]] = {}
    fields = "items/*/machineTypes(name,zone),nextPageToken"
    for page in api.pages(config, "/aggregated/machineTypes", filter=kinds, fields=fields):
        for scope in page.get("items", {}).values():
            for item in scope.get("machineTypes", []):
                zones.setdefault(item["name"], []).append(api.last_part(item["zone"]))
    costs = {
        each: [price and price * each.hosts for price in per_hour(listed, each.shape)]
        for each in there
    }
    return [
        {
            "tpu": str(each),
            "family": each.family,
            "topology": each.topology,
            "hosts": each.hosts,
            "chips": each.chips,
            "machine_type": each.machine_type,
            "usd_per_hour": costs[each][0],
            "spot_usd_per_hour": costs[each][1],
            "flex_usd_per_hour": costs[each][2],
            "zones": sorted(zones.get(each.machine_type, [])),
        }
        for each in there
    ]
