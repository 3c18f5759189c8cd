"""What Google offers: images, zones, GPUs and TPUs with quotas and prices, Spot odds, reservations,
and the network of the machines, which may be another project's (Shared VPC).

Not covered: Spot odds of TPUs; booking reservations, and parts of one (blocks).
"""

import math
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from berg import BergError, plain
from berg.config import Config
from berg.google import api, prices, shapes
from berg.google.api import EXTERNAL, OS_LOGIN, SHIELDED
from berg.google.prices import Prices
from berg.google.shapes import GENERATIONS, TPU_FAMILIES, Shape, all_tpus, parse_tpu

ANY = "any"  # in place of regions: all of them


def find_image(config: Config, image: str, project: str) -> str:
    """Return the path of an image, given by its family or its name."""
    for path in (f"/global/images/family/{image}", f"/global/images/{image}"):
        try:
            found = api.call(config, "GET", path, project=project, fields="name")
            return f"projects/{project}/global/images/{found['name']}"
        except (api.NotFound, api.BadRequest):
            continue
    raise BergError(
        f"there is no image or image family {image!r} in project {project!r}. "
        f"List them: gcloud compute images list --project {project} --no-standard-images"
    )


def image_gb(config: Config, image: str) -> int:
    """Return the size of the smallest disk for an image."""
    _, project, *_, name = image.split("/")
    path = f"/global/images/{name}"
    return int(api.call(config, "GET", path, project=project, fields="diskSizeGb")["diskSizeGb"])


def zones_with(
    config: Config, shape: Shape, zones: Collection[str] = (), regions: Collection[str] = ()
) -> list[str]:
    """Return the zones to try: those given, else all that offer a machine in some regions.

    The default is the configured region; ANY means all. Raises BergError if there is none.
    """
    there = zones_that_offer(config, shape)
    if ANY in regions:
        return there
    if zones:
        missing = [zone for zone in zones if zone not in there]
        found = list(dict.fromkeys(zones))
    else:
        regions = regions or [config.region]
        found = [zone for zone in there if prices.region_of(zone) in regions]
        missing = [] if found else [", ".join(regions)]
    if missing:
        raise BergError(
            f"there is no {shape} in {missing[0]} (or no such place). It is offered in: "
            f"{', '.join(there) or 'no zone at all'}"
        )
    return found


def zones_that_offer(config: Config, shape: Shape) -> list[str]:
    """Return the zones of all regions that offer a machine."""
    kind, name = "machineTypes", shape.machine_type
    if shape.accelerator:
        kind, name = "acceleratorTypes", shape.accelerator
    elif name.startswith(("custom-", "n1-custom-")):
        name = "n1-standard-1"  # Google does not list custom types; they exist where N1 does
    return sorted(set(zones_by_type(config, kind, [name]).get(name, [])))


def zones_by_type(config: Config, kind: str, names: Iterable[str] = ()) -> dict[str, list[str]]:
    """Return the zones of all regions that have each machine or accelerator type of these names."""
    query = {"fields": f"items/*/{kind}(name,zone),nextPageToken"}
    if names:
        query["filter"] = " OR ".join(f"name={name}" for name in sorted(set(names)))
    found: dict[str, list[str]] = {}
    for item in api.items(config, f"/aggregated/{kind}", **query):
        found.setdefault(item["name"], []).append(api.last_part(item["zone"]))
    return found


def quotas(config: Config, region: str) -> dict[str, tuple[float, float]]:
    """Return limit and usage of every quota that a region and the project show, by metric."""
    with ThreadPoolExecutor() as pool:  # each may be a round trip of its own
        answers = pool.map(
            lambda path: api.call(config, "GET", path, fields="quotas"), (f"/regions/{region}", "")
        )
    rows = [row for answer in answers for row in answer.get("quotas", [])]
    return {row["metric"]: (row["limit"], row["usage"]) for row in rows}


def shortages(
    there: dict[str, tuple[float, float]], needs: list[tuple[int, list[str]]]
) -> list[str]:
    """Return a sentence for each need that no quota has room for.

    A quota that Google does not show is not counted.
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


@dataclass(frozen=True)
class SpotAdvice:
    """What Google says of Spot machines in a zone, or in the best of several."""

    zone: str
    obtainability: float  # 0 to 1; from 0.7 good, up to 0.3 poor
    uptime: float  # seconds that one lasts, about
    # share of the machines that ended in the last 30 days because Google took them; None: unknown
    preempted: float | None = None

    @property
    def share(self) -> str:
        return "?" if self.preempted is None else f"{self.preempted * 100:.0f} %"

    def __str__(self) -> str:
        about = f"obtainability {self.obtainability:g}, uptime about {plain.duration(self.uptime)}"
        text = f"{self.zone}: {about}"
        return text if self.preempted is None else f"{text}, {self.share} preempted"


@dataclass
class Gpu:
    """A GPU type: how many a machine may have, its zones, and what is left of the quotas."""

    type: str
    per_machine: list[int]
    zones: list[str]
    quota_left: float | None  # None: Google shows no such quota
    spot_quota_left: float | None
    memory_gb: int = 0
    machine_type: str = ""  # the smallest with such a GPU; the prices are its
    usd_per_hour: float | None = None  # None: unknown
    spot_usd_per_hour: float | None = None
    flex_usd_per_hour: float | None = None
    spot_odds: SpotAdvice | None = None  # in the best zone of the region; None: Google gives none


@dataclass
class Priced:
    """A machine with GPUs and its price an hour without its disk; None: unknown."""

    type: str
    memory_gb: int
    gpus: int
    machine_type: str
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    flex_usd_per_hour: float | None
    zones: list[str]  # of the region

    @property
    def cheapest(self) -> float:
        """USD for an hour of one GPU, in the cheapest way; infinite if no price is known."""
        costs = (self.usd_per_hour, self.spot_usd_per_hour, self.flex_usd_per_hour)
        return min((each / self.gpus for each in costs if each), default=math.inf)


def gpu_zones(config: Config) -> dict[str, list[str]]:
    """Return the zones of all regions that have each GPU type that Berg knows."""
    zones: dict[str, list[str]] = {name: [] for name in shapes.TYPES}
    for name, places in zones_by_type(config, "acceleratorTypes").items():
        zones.get(shapes.ALIASES.get(name, name), []).extend(places)
    return {name: sorted(set(places)) for name, places in zones.items()}


def priced(
    config: Config, listed: Prices | None, region: str, gpu_type: str | None
) -> list[Priced]:
    """Return the smallest machine with each GPU type of a region, the cheapest GPU first.

    With a type, or several in a list with commas, return all machines with it, the smallest first.
    """
    zones = gpu_zones(config)
    found = []
    for name in dict.fromkeys(gpu_type.split(",")) if gpu_type else [None]:
        for shape in shapes.shapes(name):
            here = [each for each in zones[shape.gpu_type] if each.startswith(f"{region}-")]
            memory = shapes.GPU_MEMORY[shape.gpu_type]
            about = shape.gpu_type, memory, shape.num_gpus, shape.machine_type
            if here:
                found.append(Priced(*about, *per_hour(listed, shape), here))
    if gpu_type is None:
        found.sort(key=lambda each: each.cheapest)
    return found


def gpus(config: Config, listed: Prices | None) -> list[Gpu]:
    """Return the GPU types that Berg knows, with the zones of all regions, and with the quotas,
    prices and Spot odds of the configured region.
    """
    _ = config.credentials  # made before threads use it
    smallest = {name: shapes.choose(None, name, None, None) for name in shapes.TYPES}
    with ThreadPoolExecutor() as pool:
        there = pool.submit(quotas, config, config.region)
        zones = gpu_zones(config)
        here = {
            name: [zone for zone in places if zone.startswith(f"{config.region}-")]
            for name, places in zones.items()
        }
        odds = pool.map(lambda name: advice_on(config, smallest[name], here[name], 1), zones)

    def left(metric: str) -> float | None:
        limit, usage = there.result().get(metric, (None, 0.0))
        return None if limit is None else max(0.0, limit - usage)

    found = []
    for (name, places), spot_odds in zip(zones.items(), odds, strict=True):
        metric = f"NVIDIA_{name.upper().replace('-', '_')}_GPUS"
        counts = shapes.ATTACHED[name][1] if name in shapes.ATTACHED else shapes.BUILT_IN[name]
        quota = left(metric), left(f"PREEMPTIBLE_{metric}")
        about = shapes.GPU_MEMORY[name], smallest[name].machine_type
        costs = per_hour(listed, smallest[name])
        found.append(Gpu(name, [*counts], places, *quota, *about, *costs, spot_odds))
    return found


def per_hour(
    listed: Prices | None, shape: Shape
) -> tuple[float | None, float | None, float | None]:
    """Return USD for an hour of a machine on demand, as Spot and by flex-start; None: unknown."""
    if listed is None:
        return None, None, None
    on_demand = listed.per_hour(shape, prices.STANDARD)
    if shape.machine_type.startswith(shapes.NOT_ON_DEMAND):
        on_demand = None
    return on_demand, listed.per_hour(shape, prices.SPOT), listed.per_hour(shape, prices.FLEX)


def tpus(config: Config, listed: Prices | None) -> list[dict[str, Any]]:
    """Return what --tpu takes, with the prices of one region and the zones of all."""
    zones = zones_by_type(config, "machineTypes", [each.machine_type for each in all_tpus()])
    found = []
    for each in all_tpus():
        on_demand, spot, flex = (
            price and price * each.hosts for price in per_hour(listed, each.shape)
        )
        found.append(
            {
                "tpu": each.name,
                "family": each.generation,
                "topology": each.topology,
                "hosts": each.hosts,
                "chips": each.chips,
                "machine_type": each.machine_type,
                "usd_per_hour": on_demand,
                "spot_usd_per_hour": spot,
                "flex_usd_per_hour": flex,
                "zones": sorted(zones.get(each.machine_type, [])),
            }
        )
    return found


def tpu_caution(text: str, model: str) -> list[tuple[str, str]]:
    """Return rows of a plan: that Google's table does not have a topology, and that not every
    project may pay in this way.
    """
    found = parse_tpu(text)
    about, rows = GENERATIONS[found.generation], []
    if found.topology not in (*about.alone, *about.slices):
        rows.append(
            ("", f"Google's table has no {found.topology}: it takes some such cubes, not all")
        )
    if not about.is_open and model != prices.STANDARD:
        how = prices.MODELS[model]
        rows.append(("", f"Google gives {found.generation} {how} only to projects that it let in"))
    return rows


# --- the network

IAP = "35.235.240.0/20"  # where tunnels through Identity-Aware Proxy come from
BEGINNING = r"(?:https://[^/]+/compute/v1/)?projects/(?P<project>[^/]+)/"
SUBNETWORK = re.compile(BEGINNING + "regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)")


@dataclass(frozen=True)
class Network:
    """A VPC network, and the project that owns it."""

    project: str
    name: str


def network_of(config: Config) -> Network:
    """Return the configured network; raise BergError if the setting is neither name nor path."""
    if "/" not in config.network:
        return Network(config.project, config.network)
    found = re.fullmatch(BEGINNING + "global/networks/(?P<name>[^/]+)", config.network)
    if not found:
        raise BergError(
            f"network {config.network!r} is neither a name nor a path such as "
            "projects/HOST/global/networks/NAME. Name it: berg config set network PATH"
        )
    return Network(found["project"], found["name"])


def subnetwork_of(config: Config, region: str) -> str:
    """Return the name of the subnetwork for machines of a region.

    Raises BergError if the setting is neither name nor path, or means another network or region.
    """
    setting, network = config.subnetwork, network_of(config)
    if "/" not in setting:
        return setting or network.name
    found = SUBNETWORK.fullmatch(setting)
    if not found:
        raise BergError(
            f"subnetwork {setting!r} is neither a name nor a path such as "
            "projects/HOST/regions/REGION/subnetworks/NAME. "
            "Name it: berg config set subnetwork PATH"
        )
    if found["project"] != network.project:
        raise BergError(
            f"the subnetwork {found['name']} is in the project {found['project']}, and the "
            f"network {network.name} in {network.project}. Name that project's network: "
            f"berg config set network projects/{found['project']}/global/networks/NAME"
        )
    if found["region"] != region:
        raise BergError(
            f"the subnetwork {found['name']} is in {found['region']}, not in {region}. Choose "
            f"zones there (--region {found['region']}), or, if each region has a subnetwork "
            f"of that name: berg config set subnetwork {found['name']}"
        )
    return found["name"]


def interface(config: Config, region: str) -> dict[str, str]:
    """Return the network of a machine in a region, as its interface names it."""
    network, subnetwork = network_of(config), subnetwork_of(config, region)
    host = f"projects/{network.project}/" if network.project != config.project else ""
    found = {"network": f"{host}global/networks/{network.name}"}
    if host or config.subnetwork:
        found["subnetwork"] = f"{host}regions/{region}/subnetworks/{subnetwork}"
    return found


@dataclass
class Egress:
    """What machines without an external address can reach; None: the user may not see it."""

    region: str
    network: Network
    subnetwork: str
    to_google: bool | None  # its APIs, by Private Google Access; Cloud NAT includes that
    to_internet: bool | None  # by Cloud NAT

    def command(self, to_internet: bool) -> str:
        """Return the commands that open the way to the internet, or to Google's APIs alone."""
        where = f"--region {self.region} --project {self.network.project}"
        if not to_internet:
            return (
                f"gcloud compute networks subnets update {self.subnetwork} {where} "
                "--enable-private-ip-google-access"
            )
        router = f"gcloud compute routers create berg-nat {where} --network {self.network.name}"
        nat = f"gcloud compute routers nats create berg-nat --router berg-nat {where}"
        return f"{router} && {nat} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"


def let_ssh_in(config: Config, port: int, tunnel: bool) -> str:
    """Return the command that opens a port to IAP's tunnels, or to the user's own address."""
    name, source = ("berg-iap", IAP) if tunnel else ("berg-ssh", "YOUR_ADDRESS/32")
    network = network_of(config)
    return (
        f"gcloud compute firewall-rules create {name} --project {network.project} "
        f"--network {network.name} --allow tcp:{port} --source-ranges {source}"
    )


def egress(config: Config, region: str) -> Egress:
    """Return what machines of a region reach from the configured subnetwork."""
    network, name = network_of(config), subnetwork_of(config, region)
    owner, private, nat = network.project, None, None
    try:
        path = f"/regions/{region}/subnetworks/{name}"
        found = api.call(config, "GET", path, project=owner, fields="privateIpGoogleAccess")
        private = found.get("privateIpGoogleAccess", False)
    except api.Forbidden:
        pass
    except api.NotFound:
        raise BergError(
            f"there is no subnetwork {name!r} in {region} of {owner}. "
            "Name it: berg config set subnetwork NAME"
        ) from None
    try:
        nat = any(
            row.get("nats") and api.last_part(row.get("network", "")) == network.name
            for row in api.items(config, f"/regions/{region}/routers", project=owner)
        )
    except api.Forbidden:
        pass
    return Egress(region, network, name, True if nat else private, nat)


def policy(config: Config, constraint: str) -> dict[str, Any]:
    """Return the organisation policy in force for the project; raises api.Forbidden."""
    base = config.service_url("cloudresourcemanager")
    url = f"{base}/v1/projects/{config.project}:getEffectiveOrgPolicy"
    return api.call(config, "POST", url, {"constraint": constraint})


def enforced(config: Config) -> dict[str, bool]:
    """Return whether each of the policies that concern machines is in force for the project."""
    external = policy(config, EXTERNAL).get("listPolicy", {})
    denied = external.get("allValues") == "DENY" or bool(external.get("allowedValues"))
    switches = {
        each: bool(policy(config, each).get("booleanPolicy", {}).get("enforced"))
        for each in (OS_LOGIN, SHIELDED)
    }
    return {EXTERNAL: denied, **switches}


# --- the odds of Spot machines


def advice_by_zone(
    config: Config, shape: Shape, zones: Iterable[str], size: int
) -> list[SpotAdvice]:
    """Return the odds of so many Spot machines in each zone, the best first.

    A zone is missing if Google says nothing of it, or the user may not ask.
    """
    _ = config.credentials  # made before threads use it
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda zone: advice_on(config, shape, [zone], size), zones))
    return sorted(filter(None, found), key=lambda each: -each.obtainability)


def advice_on(config: Config, shape: Shape, zones: list[str], size: int) -> SpotAdvice | None:
    """Return the odds of Spot machines in the best of some zones of a region; None: unknown."""
    if not zones or shape.machine_type.startswith(TPU_FAMILIES):
        return None
    guests = shape.guests(f"projects/{config.project}/zones/{zones[0]}")
    selection = {"machineTypes": [shape.machine_type], **guests}
    question = {
        "size": size,
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"asked": selection}},
        "distributionPolicy": {
            "zones": [{"zone": f"zones/{zone}"} for zone in zones],
            "targetShape": "ANY_SINGLE_ZONE",
        },
    }
    answer = ask_advice(config, zones[0], "capacity", question)
    for each in answer.get("recommendations", []):
        scores, shards = each.get("scores", {}), each.get("shards", [])
        uptime = float(scores.get("estimatedUptime", "0s").removesuffix("s"))
        best = next((api.last_part(shard["zone"]) for shard in shards), zones[0])
        share = preempted(config, shape, best)
        return SpotAdvice(best, scores.get("obtainability", 0.0), uptime, share)
    return None


def preempted(config: Config, shape: Shape, zone: str) -> float | None:
    """Return the share of the Spot machines that ended in the last 30 days because Google took
    them; None: unknown, as for all GPUs attached to N1.
    """
    if shape.accelerator:
        return None
    question = {
        "types": ["PREEMPTION"],
        "locationPolicy": {"location": f"zones/{zone}"},
        "instanceProperties": {
            "machineType": shape.machine_type,
            "scheduling": {"provisioningModel": "SPOT"},
        },
    }
    days = ask_advice(config, zone, "capacityHistory", question).get("preemptionHistory", [])
    rates = [each["preemptionRate"] for each in days if "preemptionRate" in each]
    return sum(rates) / len(rates) if rates else None


def ask_advice(config: Config, zone: str, what: str, question: dict[str, Any]) -> dict[str, Any]:
    """Return Google's advice on the region of a zone; {} if it gives none."""
    try:
        path = f"/regions/{prices.region_of(zone)}/advice/{what}"
        return api.call(config, "POST", path, question)
    except api.GoogleError:
        return {}


# --- reservations

RESERVATION = re.compile(
    r"(?:projects/([a-z][a-z0-9:.-]+)/reservations/)?([a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)


@dataclass(frozen=True)
class Reservation:
    """Room for machines of one type in a zone."""

    name: str
    owner: str  # its project
    zone: str
    machine_type: str
    count: int = 0
    in_use: int = 0
    is_bound: bool = False  # only for machines that end with it: of a calendar, or densely placed
    is_open: bool = False  # for any machine that fits, which must not name it
    ends: bool = False  # at a time: it may be of a calendar

    def __str__(self) -> str:
        if not self.count:
            return f"{self.name} of {self.owner} in {self.zone}: what is free you may not see"
        what = f"{self.count - self.in_use} of {self.count} x {self.machine_type} free"
        if self.is_open:
            what += ", without --reservation"
        return f"{self.name} in {self.zone}: {what}"


def reservations(config: Config, owner: str = "") -> list[Reservation]:
    """Return a project's reservations for machines of one type; by default the configured one's."""
    owner = owner or config.project
    found = []
    for row in api.items(config, "/aggregated/reservations", project=owner):
        if specific := row.get("specificReservation"):
            found.append(
                Reservation(
                    name=row["name"],
                    owner=owner,
                    zone=api.last_part(row["zone"]),
                    machine_type=specific.get("instanceProperties", {}).get("machineType", ""),
                    count=int(specific.get("count", 0)),
                    in_use=int(specific.get("inUseCount", 0)),
                    is_bound=row.get("deploymentType") == "DENSE",
                    is_open=not row.get("specificReservationRequired"),
                    ends="deleteAtTime" in row,
                )
            )
    return found


def is_of_calendar(config: Config, reservation: Reservation) -> bool:
    """Return whether a calendar made a reservation: then only machines that end with it may use it.

    If the user may not see calendars, machines that are never offered on demand count as such.
    """
    path = f"/zones/{reservation.zone}/reservations/{reservation.name}"
    try:
        return any(
            made.endswith(path)
            for row in api.items(
                config, "/aggregated/futureReservations", project=reservation.owner
            )
            for made in row.get("status", {}).get("autoCreatedReservations", [])
            if row.get("reservationMode") == "CALENDAR"
        )
    except api.Forbidden:
        return reservation.machine_type.startswith(shapes.NOT_ON_DEMAND)


def find_reservation(config: Config, text: str, machine_type: str, zones: list[str]) -> Reservation:
    """Return the reservation of that name for machines of a type, in one of the zones if any are
    given. Raises BergError if there is none, or if machines must not name it.
    """
    parts = RESERVATION.fullmatch(text)
    if parts is None:
        raise BergError(
            f"--reservation {text!r} is no name: give NAME, or projects/OWNER/reservations/NAME"
        )
    owner, name = parts[1], parts[2]
    try:
        there = reservations(config, owner or "")
    except api.Forbidden:
        if owner in (None, config.project):
            raise
        return unseen(owner, name, machine_type, zones)
    named = [each for each in there if each.name == name]
    if not named:
        known = f"What there is: {'; '.join(map(str, there))}" if there else "There is none at all"
        other = "" if owner else ". Another project's: projects/OWNER/reservations/NAME"
        raise BergError(f"there is no reservation {text!r}. {known}{other}")
    return usable(config, text, named, machine_type, zones)


def usable(
    config: Config, text: str, named: list[Reservation], machine_type: str, zones: list[str]
) -> Reservation:
    """Return the first reservation that such machines may name, with whether they are bound to it;
    raise BergError if there is none.
    """
    fitting = [
        each
        for each in named
        if each.machine_type == machine_type and (not zones or each.zone in zones)
    ]
    if not fitting:
        raise BergError(
            f"no machine of type {machine_type} in {', '.join(zones) or 'any zone'} can use what "
            f"is reserved: {'; '.join(map(str, named))}. Choose -t, -g or --machine-type"
        )
    found = fitting[0]
    if found.is_open:
        raise BergError(
            f"{found.name} is for any machine that fits, which uses it without its name: "
            f"leave out --reservation {text}"
        )
    is_bound = found.is_bound or (found.ends and is_of_calendar(config, found))
    return replace(found, is_bound=is_bound)


def unseen(owner: str, name: str, machine_type: str, zones: list[str]) -> Reservation:
    """Return a reservation that the user may not look at, from what the user knows of it."""
    if not zones:
        raise BergError(
            f"you may not list the reservations of {owner}: name the zone of {name} (--zone)"
        )
    is_bound = machine_type.startswith(shapes.NOT_ON_DEMAND)
    return Reservation(name, owner, zones[0], machine_type, is_bound=is_bound)


def affinity(config: Config, reservation: Reservation) -> dict[str, Any]:
    """Return what a machine's body says to use a reservation."""
    value = reservation.name
    if reservation.owner != config.project:
        value = f"projects/{reservation.owner}/reservations/{value}"
    key = "compute.googleapis.com/reservation-name"
    return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": key, "values": [value]}
