"""What Google offers: images by their family or name, zones that have a kind of machine, GPUs and
their quotas.

The network of the machines, which may be another project's (Shared VPC), its ways out for
machines without an external address, and the organisation policies about that.

What Google says of its own chances: how likely Spot machines are to be had in a zone, how long
one lasts, and how many were taken away.

Not covered: machines that are not Spot, TPUs. Google has no history of GPUs attached to N1.

Reservations of Compute Engine: room that was booked before, for machines that name it.

Berg uses what there is, and books nothing. Not covered: booking ahead; parts of a reservation
(blocks).
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, prices, shapes
from berg.google.api import EXTERNAL, LOCATIONS, OS_LOGIN, SHIELDED
from berg.google.prices import Prices
from berg.google.shapes import TPU_FAMILIES, Shape
from berg.google.tpus import everything as all_tpus

ANY = "any"  # in place of regions: all of them


def find_image(config: Config, image: str, project: str) -> str:
    """Path of an image given by its family or its name; raises BergError if there is neither."""
    for path in (f"/global/images/family/{image}", f"/global/images/{image}"):
        try:
            found = api.call(config, "GET", path, project=project, fields="name")
            return f"projects/{project}/global/images/{found['name']}"
        except (api.NotFound, api.BadRequest):
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


@dataclass(frozen=True)
class Odds:
    """What is to be expected of machines in a zone, or in the best of several."""

    zone: str
    obtainability: float  # 0 to 1; from 0.7 good, up to 0.3 poor
    uptime: float  # seconds that one lasts, about
    # share of those that ended in the last 30 days which Google took; None: not known
    preempted: float | None = None

    @property
    def hours(self) -> str:
        """About how many hours one lasts, as people write it."""
        return f"{self.uptime / 3600:.1f}".removesuffix(".0")

    @property
    def share(self) -> str:
        """How many were taken away, as people write it; "?" if that is not known."""
        return "?" if self.preempted is None else f"{self.preempted * 100:.0f} %"

    def __str__(self) -> str:
        text = f"{self.zone}: obtainability {self.obtainability:g}, uptime about {self.hours} h"
        if self.preempted is None:
            return text
        return f"{text}, {self.share} preempted"


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
    spot_odds: Odds | None = None  # in the best zone of the region; None: Google says none


def gpu_zones(config: Config) -> dict[str, list[str]]:
    """Return the zones of all regions that have each GPU type that berg knows."""
    zones: dict[str, list[str]] = {name: [] for name in shapes.TYPES}
    fields = "items/*/acceleratorTypes(name,zone),nextPageToken"
    for page in api.pages(config, "/aggregated/acceleratorTypes", fields=fields):
        for scope in page.get("items", {}).values():
            for item in scope.get("acceleratorTypes", []):
                name = shapes.ALIASES.get(item["name"], item["name"])
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
    for shape in chain.from_iterable(map(shapes.shapes, types)):
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
        odds = of_shapes(config, smallest(config.region, zones))

    def left(metric: str) -> float | None:
        limit, usage = there.result().get(metric, (None, 0.0))
        return None if limit is None else max(0.0, limit - usage)

    found = []
    for name, places in zones.items():
        metric = f"NVIDIA_{name.upper().replace('-', '_')}_GPUS"
        counts = shapes.ATTACHED[name][1] if name in shapes.ATTACHED else shapes.BUILT_IN[name]
        shape = shapes.choose(None, name, None, None)
        rates = per_hour(listed, shape)
        quota = left(metric), left(f"PREEMPTIBLE_{metric}")
        made = Gpu(name, [*counts], sorted(set(places)), *quota, shape.machine_type, *rates)
        found.append(replace(made, spot_odds=odds.get(name)))
    return found


def smallest(region: str, zones: dict[str, list[str]]) -> Iterator[tuple[Shape, list[str]]]:
    """Return the smallest machine with each GPU type, and its zones in a region."""
    for name, places in zones.items():
        here = sorted({zone for zone in places if zone.startswith(f"{region}-")})
        yield shapes.choose(None, name, None, None), here


def per_hour(
    listed: Prices | None, shape: Shape
) -> tuple[float | None, float | None, float | None]:
    """USD for an hour of a machine on demand, where it can be had so, as Spot, by flex-start."""
    if listed is None:
        return None, None, None
    on_demand = listed.per_hour(shape, prices.STANDARD)
    if shape.machine_type.startswith(shapes.NOT_ON_DEMAND):
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


IAP = "35.235.240.0/20"  # where tunnels through Identity-Aware Proxy come from

BEGINNING = r"(?:https://[^/]+/compute/v1/)?projects/(?P<project>[^/]+)/"

NETWORK = re.compile(BEGINNING + "global/networks/(?P<name>[^/]+)")

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
    found = NETWORK.fullmatch(config.network)
    if not found:
        raise BergError(
            f"network {config.network!r} is neither a name nor a path such as "
            "projects/HOST/global/networks/NAME. Name it: berg config set network PATH"
        )
    return Network(found["project"], found["name"])


def subnetwork_of(config: Config, region: str) -> str:
    """Return the name of the subnetwork that machines of a region are on.

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
            f"zones there (--region {found['region']}), or, where each region has a subnetwork "
            f"of that name: berg config set subnetwork {found['name']}"
        )
    return found["name"]


def interface(config: Config, region: str) -> dict[str, str]:
    """Return the network of a machine in a region, as its interface names it."""
    network, subnetwork = network_of(config), subnetwork_of(config, region)
    path = f"regions/{region}/subnetworks/{subnetwork}"
    if network.project != config.project:
        host = f"projects/{network.project}"
        return {
            "network": f"{host}/global/networks/{network.name}",
            "subnetwork": f"{host}/{path}",
        }
    found = {"network": f"global/networks/{network.name}"}
    return {**found, "subnetwork": path} if config.subnetwork else found


@dataclass
class Ways:
    """How machines without an external address get out of a region; None: Google does not let one
    look.
    """

    region: str
    network: Network
    subnetwork: str
    to_google: bool | None  # to its APIs: Private Google Access, which Cloud NAT brings along
    to_internet: bool | None  # Cloud NAT

    def mend(self, to_internet: bool) -> str:
        """The commands that open a way."""
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
    """The command that opens a port: to the person's own address, or to where tunnels come from."""
    name, source = ("berg-iap", IAP) if tunnel else ("berg-ssh", "YOUR_ADDRESS/32")
    network = network_of(config)
    rule = (
        f"gcloud compute firewall-rules create {name} --project {network.project} --network "
        f"{network.name}"
    )
    return f"{rule} --allow tcp:{port} --source-ranges {source}"


def ways(config: Config, region: str) -> Ways:
    """What leads out of the configured subnetwork of a region; raises BergError if there is no such
    subnetwork.
    """
    network, name = network_of(config), subnetwork_of(config, region)
    private = nat = None
    try:
        found = api.call(
            config,
            "GET",
            f"/regions/{region}/subnetworks/{name}",
            project=network.project,
            fields="privateIpGoogleAccess",
        )
        private = found.get("privateIpGoogleAccess", False)
    except api.Forbidden:
        pass
    except api.NotFound:
        raise BergError(
            f"there is no subnetwork {name!r} in {region} of {network.project}. "
            "Name it: berg config set subnetwork NAME"
        ) from None
    try:
        routers = [
            row
            for page in api.pages(config, f"/regions/{region}/routers", project=network.project)
            for row in page.get("items", [])
        ]
        nat = any(
            row.get("nats")
            for row in routers
            if api.last_part(row.get("network", "")) == network.name
        )
    except api.Forbidden:
        pass
    return Ways(region, network, name, True if nat else private, nat)


def policy(config: Config, constraint: str) -> dict[str, Any]:
    """What is in force for the project; raises Forbidden where one may not ask."""
    base = config.service_url("cloudresourcemanager")
    url = f"{base}/v1/projects/{config.project}:getEffectiveOrgPolicy"
    return api.call(config, "POST", url, {"constraint": constraint})


def enforced(config: Config) -> dict[str, bool]:
    """Whether each of the policies is in force for the project."""
    external = policy(config, EXTERNAL).get("listPolicy", {})
    denied = external.get("allValues") == "DENY" or bool(external.get("allowedValues"))
    switches = {
        each: bool(policy(config, each).get("booleanPolicy", {}).get("enforced"))
        for each in (OS_LOGIN, SHIELDED)
    }
    return {EXTERNAL: denied, **switches}


def allowed_places(config: Config) -> list[str]:
    """Where the organisation allows resources, in its words, such as in:us-locations; [] for
    everywhere.
    """
    found: list[str] = policy(config, LOCATIONS).get("listPolicy", {}).get("allowedValues", [])
    return found


def of_zones(config: Config, shape: Shape, zones: Iterable[str], size: int) -> list[Odds]:
    """Return the odds of so many Spot machines in each zone, the best first.

    A zone of which Google says nothing is not among them: who may not ask hears of none.
    """
    _ = config.session  # before threads want it
    with ThreadPoolExecutor() as pool:
        asked = list(pool.map(lambda zone: of_place(config, shape, [zone], size), zones))
    return sorted(filter(None, asked), key=lambda each: -each.obtainability)


def of_shapes(config: Config, wanted: Iterable[tuple[Shape, list[str]]]) -> dict[str, Odds]:
    """Return the odds of one Spot machine of each shape in the best of its zones, by machine type
    and GPU type; of a shape of which Google says nothing there are none.
    """
    _ = config.session
    asked = [(shape, zones) for shape, zones in wanted if zones]
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda each: of_place(config, each[0], each[1], 1), asked))
    return {shape.gpu_type: odds for (shape, _), odds in zip(asked, found, strict=True) if odds}


def of_place(config: Config, shape: Shape, zones: list[str], size: int) -> Odds | None:
    """Return the odds of machines in the best of some zones of a region; None if Google does not
    say.
    """
    if shape.machine_type.startswith(TPU_FAMILIES):
        return None
    answer = ask(config, zones[0], "capacity", question(config, shape, zones, size))
    for each in answer.get("recommendations", []):
        scores, shards = each.get("scores", {}), each.get("shards", [])
        uptime = float(scores.get("estimatedUptime", "0s").removesuffix("s"))
        best = next((api.last_part(shard["zone"]) for shard in shards), zones[0])
        odds = Odds(best, scores.get("obtainability", 0.0), uptime)
        return replace(odds, preempted=preempted(config, shape, best))
    return None


def preempted(config: Config, shape: Shape, zone: str) -> float | None:
    """Return the share of Spot machines that ended in the last 30 days which Google took away; None
    if it does not say.
    """
    if shape.accelerator:
        return None
    asked = {
        "types": ["PREEMPTION"],
        "locationPolicy": {"location": f"zones/{zone}"},
        "instanceProperties": {
            "machineType": shape.machine_type,
            "scheduling": {"provisioningModel": "SPOT"},
        },
    }
    days = ask(config, zone, "capacityHistory", asked).get("preemptionHistory", [])
    rates = [each["preemptionRate"] for each in days if "preemptionRate" in each]
    return sum(rates) / len(rates) if rates else None


def ask(config: Config, zone: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of Google's about the region of a zone; {} if it gives none."""
    region = zone.rpartition("-")[0]
    try:
        return api.call(config, "POST", f"/regions/{region}/advice/{what}", body)
    except api.GoogleError:
        return {}


def question(config: Config, shape: Shape, zones: list[str], size: int) -> dict[str, Any]:
    """Return the question how likely machines are in some zones of a region."""
    selection: dict[str, object] = {"machineTypes": [shape.machine_type]}
    if shape.accelerator:
        kind = f"projects/{config.project}/zones/{zones[0]}/acceleratorTypes/{shape.accelerator}"
        attached = {"acceleratorType": kind, "acceleratorCount": shape.num_gpus}
        selection["guestAccelerators"] = [attached]
    return {
        "size": size,
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"asked": selection}},
        "distributionPolicy": {
            "zones": [{"zone": f"zones/{zone}"} for zone in zones],
            "targetShape": "ANY_SINGLE_ZONE",
        },
    }


NAME = re.compile(
    r"(?:projects/([a-z][a-z0-9:.-]+)/reservations/)?([a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)

KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True)
class Reservation:
    """Room for machines of one type in a zone."""

    name: str
    owner: str  # the project that has it
    zone: str
    machine_type: str
    count: int = 0
    in_use: int = 0
    is_bound: bool = False  # only for machines that end with it: of a calendar, or densely placed
    is_open: bool = False  # for any machine that fits, which must not name it
    ends: bool = False  # at a time: it may be of a calendar

    @property
    def free(self) -> int:
        return self.count - self.in_use

    def __str__(self) -> str:
        if not self.count:
            return f"{self.name} of {self.owner} in {self.zone}: what is free you may not see"
        what = f"{self.free} of {self.count} x {self.machine_type} free"
        return f"{self.name} in {self.zone}: {what}" + ", without --reservation" * self.is_open


def everything(config: Config, owner: str = "") -> list[Reservation]:
    """Return a project's reservations of machines of one type; by default the configured one's."""
    owner = owner or config.project
    found = []
    for page in api.pages(config, "/aggregated/reservations", project=owner):
        for scope in page.get("items", {}).values():
            for row in scope.get("reservations", []):
                if "specificReservation" in row:
                    found.append(of_row(owner, row))
    return found


def of_row(owner: str, row: dict[str, Any]) -> Reservation:
    """Return a reservation from what the API says of it."""
    specific = row["specificReservation"]
    return Reservation(
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


def is_of_calendar(config: Config, reservation: Reservation) -> bool:
    """Return whether a calendar made a reservation: then only machines that end with it may use it.

    Where Google does not let one look, those that cannot be had on demand are taken for it.
    """
    path = f"/zones/{reservation.zone}/reservations/{reservation.name}"
    try:
        for page in api.pages(config, "/aggregated/futureReservations", project=reservation.owner):
            for scope in page.get("items", {}).values():
                for row in scope.get("futureReservations", []):
                    made = row.get("status", {}).get("autoCreatedReservations", [])
                    if row.get("reservationMode") == "CALENDAR" and any(
                        each.endswith(path) for each in made
                    ):
                        return True
    except api.Forbidden:
        return reservation.machine_type.startswith(shapes.NOT_ON_DEMAND)
    return False


def unseen(owner: str, name: str, machine_type: str, zones: list[str]) -> Reservation:
    """Return a reservation of a project that one may not look into, by what the caller knows."""
    if not zones:
        raise BergError(
            f"you may not list the reservations of {owner}: name the zone of {name} (--zone)"
        )
    is_bound = machine_type.startswith(shapes.NOT_ON_DEMAND)
    return Reservation(name, owner, zones[0], machine_type, is_bound=is_bound)


def unknown(text: str, there: list[Reservation]) -> BergError:
    """Return the error for a name that no reservation of a project has."""
    known = f"What there is: {'; '.join(map(str, there))}" if there else "There is none at all"
    other = ". Another project's: projects/OWNER/reservations/NAME" * ("/" not in text)
    return BergError(f"there is no reservation {text!r}. {known}{other}")


def unfit(named: list[Reservation], machine_type: str, zones: list[str]) -> BergError:
    """Return the error for reservations that machines of a type cannot use there."""
    return BergError(
        f"no machine of type {machine_type} in {', '.join(zones) or 'any zone'} can use what is "
        f"reserved: {'; '.join(map(str, named))}. Choose -t, -g or --machine-type"
    )


def checked(config: Config, found: Reservation, text: str) -> Reservation:
    """Return a reservation that machines may name, with whether they are bound to it; raise
    BergError for one that they must not name.
    """
    if found.is_open:
        raise BergError(
            f"{found.name} is for any machine that fits, which uses it without its name: "
            f"leave out --reservation {text}"
        )
    is_bound = found.is_bound or (found.ends and is_of_calendar(config, found))
    return replace(found, is_bound=is_bound)


def find(config: Config, text: str, machine_type: str, zones: list[str]) -> Reservation:
    """Return the reservation of that name, in one of the zones if any are given.

    Raise BergError where there is none, or not for machines of that type.
    """
    parts = NAME.fullmatch(text)
    if parts is None:
        raise BergError(
            f"--reservation {text!r} is no name: give NAME, or projects/OWNER/reservations/NAME"
        )
    try:
        there = everything(config, parts[1] or "")
    except api.Forbidden:
        if parts[1] in (None, config.project):
            raise
        return unseen(parts[1], parts[2], machine_type, zones)
    named = [each for each in there if each.name == parts[2]]
    if not named:
        raise unknown(text, there)
    for each in named:
        if each.machine_type == machine_type and (not zones or each.zone in zones):
            return checked(config, each, text)
    raise unfit(named, machine_type, zones)


def affinity(config: Config, reservation: Reservation) -> dict[str, Any]:
    """Return what a machine's body says to use a reservation."""
    value = reservation.name
    if reservation.owner != config.project:
        value = f"projects/{reservation.owner}/reservations/{value}"
    return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": KEY, "values": [value]}
