"""What jobs cost, or may cost, and machines, disks and clusters, by Google's list prices.

A job's record has the price of an hour of its machine, as listed when it was submitted; a job is
paid for from its worker's start to its end. Unknown prices are counted apart, never as 0. Not
included: the minute of a boot, traffic, addresses, buckets, images and discounts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta, timezone
from itertools import pairwise
from typing import Any

from berg import BergError, gce, job, places
from berg.config import Config
from berg.gke import client
from berg.google import api, instances, prices
from berg.google.prices import region_of
from berg.google.shapes import BY_TYPE, Shape, has_local_disks
from berg.job import Machine, Resource
from berg.plan import Offer, Plan

PAID = ("STARTING", "INSTALLING", "RUNNING", "UPLOADING")
STOPPED = ("STOPPED", "TERMINATED", "SUSPENDED")


def rates(config: Config, offer: Offer, model: str) -> dict[str, float]:
    """Return USD for an hour of an offer's machine by region, without regions of unknown price.

    Prices are downloaded once a day.
    """
    if offer.priced is None:
        return {}
    found = {}
    for region, listed in prices.latest(config, map(region_of, offer.zones)).items():
        hourly = rate(listed, offer, model)
        if hourly is not None:
            found[region] = hourly
    return found


def rate(listed: prices.Prices, offer: Offer, model: str) -> float | None:
    """Return USD for an hour of an offer's machine, or of a pod: its share of its node."""
    if offer.priced is None:
        return None
    parts = [(listed.per_hour(offer.priced, model, offer.disk_gb), 1.0)]
    disk_type, gigabytes = offer.priced.node_disk
    if gigabytes:
        parts.append((listed.disk_per_hour(disk_type, gigabytes), 1.0))
    found = prices.total(parts)
    if found is None or not offer.is_shared:
        return found
    return found * offer.shape.num_gpus / offer.priced.num_gpus


def dearest(hourly: dict[str, float], zones: list[str]) -> float | None:
    """Return the highest rate of these zones' regions; None if one is unknown."""
    regions = set(map(region_of, zones))
    if not regions or regions - hourly.keys():
        return None
    return max(map(hourly.__getitem__, regions))


def rate_of(summary: job.Summary, zone: str) -> float | None:
    """Return USD for an hour of a job's machine in a zone; None if that is unknown.

    The zone of a pod is its node; the price is that of its cluster's region.
    """
    place = summary.group.cluster.partition("/")[0] or zone
    if place:
        return summary.rates.get(region_of(place))
    return max(summary.rates.values(), default=None)


def so_far(state: job.State, running: int, begin: str = "") -> float | None:
    """Return USD that a job's machines have cost since a moment; None if their price is unknown.

    `running` is the number of its machines now that are not off.
    """
    hourly = rate_of(state.job, state.zone)
    return None if hourly is None else hourly * machine_hours(state, running, begin)


def machine_hours(state: job.State, running: int, begin: str = "") -> float:
    """Return the hours that a job's machines ran, during it or after it, since a moment."""
    changes = [(name, max(since, begin)) for name, since in state.history]
    end = max([state.synced_until, *(since for _, since in changes)])
    if running:
        end = job.now()
    spans = pairwise([*changes, ("", end)])
    seconds = sum(between(since, later) for (name, since), (_, later) in spans if name in PAID)
    seconds *= state.job.machines
    if changes and changes[-1][0] in job.FINAL:
        # Machines after the job: kept, or those that could not delete themselves.
        over = changes[-1][1]
        if running:
            seconds += between(over, job.now()) * running
        elif state.kept_until:
            seconds += between(over, min(state.kept_until, job.now())) * state.job.machines
        else:
            gone_at = [min(each, job.now()) for each in state.undeleted.values()]
            seconds += sum(between(over, each) for each in gone_at[: state.job.machines])
    return seconds / 3600


def between(since: str, later: str) -> float:
    """Return the seconds between two timestamps; 0 if one is invalid."""
    try:
        return max(0.0, (job.time_of(later) - job.time_of(since)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


@dataclass
class Sum:
    """The cost of a user's jobs that were submitted in a week."""

    begins: str  # the week's Monday
    user: str
    jobs: int = 0
    hours: float = 0.0  # of machines
    usd: float = 0.0  # of jobs whose price is known
    unknown: int = 0  # jobs whose price is unknown

    def add(self, state: job.State, running: int) -> None:
        """Count one more job."""
        cost = so_far(state, running)
        self.jobs += 1
        if not state.job.on:  # else they are those of a devbox, too
            self.hours += machine_hours(state, running)
        self.usd += cost or 0.0
        self.unknown += cost is None


def week_of(created_at: str) -> str:
    """Return the Monday of a timestamp's week, in UTC; "" if it is invalid."""
    try:
        then = job.time_of(created_at).astimezone(timezone.utc)
        return (then - timedelta(days=then.weekday())).strftime("%Y-%m-%d")
    except (ValueError, OverflowError):
        return ""


def weeks(pairs: list[tuple[job.State, int]]) -> list[Sum]:
    """Return sums by week and user, the newest first."""
    found: dict[tuple[str, str], Sum] = {}
    for state, running in pairs:
        key = (week_of(state.job.created_at), state.job.user)
        found.setdefault(key, Sum(*key)).add(state, running)
    return sorted(found.values(), key=lambda each: (each.begins, each.usd), reverse=True)


@dataclass
class Billable:
    """A machine, a disk or a cluster that costs money whatever its job does."""

    kind: str
    name: str
    where: str
    created_at: str  # "": unknown
    usd_per_hour: float | None  # None: unknown
    about: str = ""


def billable(config: Config, say: Callable[[str], None]) -> list[Billable]:
    """Return the machines, disks and clusters that exist, with the last downloaded prices; `say` is
    called if clusters may not be listed.
    """
    from berg.gke import clusters  # only `berg costs` needs it

    there = []
    try:
        there = client.clusters(config)
    except api.Denied as error:
        say(f"Clusters and their caches are not included. {error.message}")
    regions = {region_of(str(each["location"])) for each in there}
    prices.latest(config, {config.region, *regions})
    rows = []
    for machine in places.machines(config):
        if machine.place == "gke":  # its node is paid for
            continue
        about = machine.machine_type
        if machine.status in STOPPED:
            about = f"stopped, {machine.disk_gb} GB"
        found = (machine.name, machine.zone, machine.created_at, machine_rate(config, machine))
        rows.append(Billable("machine", *found, about))
    disks = map(gce.unused_disk, instances.unused_disks(config))
    rows += [disk(config, each) for each in disks]
    for cluster in there:
        nodes = [node["pool"] for node in clusters.status(config, cluster).nodes]
        rows += cluster_parts(config, cluster, nodes)
    return rows


def machine_rate(config: Config, machine: Machine) -> float | None:
    """Return USD for an hour of a machine as it is now, or of its disk if it is stopped; None if
    that is unknown.
    """
    listed = prices.known(config, region_of(machine.zone))
    if machine.status in ("PENDING", "PROVISIONING"):  # only running machines are paid for
        return 0.0
    if listed is None:
        return None
    count, _, kind = machine.gpus.partition(" x ")
    attached = (kind, int(count) if count.isdigit() else 0)
    kind, number, *_ = BY_TYPE.get(machine.machine_type, attached)
    ssds = 0 if has_local_disks(machine.machine_type) else machine.local_ssds
    shape = Shape(machine.machine_type, number, kind, asked_ssds=ssds)
    if machine.status in STOPPED:
        return listed.disk_per_hour(shape.disk_type, machine.disk_gb)
    if machine.model not in prices.MODELS:  # a reservation is paid for even if it is not used
        return None
    return listed.per_hour(shape, machine.model, machine.disk_gb)


def disk(config: Config, disk: Resource) -> Billable:
    """Return a disk without a machine."""
    listed = prices.known(config, region_of(disk.where))
    hourly = listed.disk_per_hour(disk.disk_type, disk.gb) if listed else None
    return Billable("disk", disk.name, disk.where, disk.created_at, hourly, f"{disk.gb} GB")


def cluster_parts(
    config: Config, cluster: dict[str, Any], pools_of_nodes: list[str]
) -> Iterable[Billable]:
    """Return Google's fee for a cluster, and the nodes of each pool."""
    name, location = cluster["name"], str(cluster["location"])
    listed = prices.known(config, region_of(location))
    created_at = cluster.get("createTime", "")
    fee = prices.cluster_fee(config, location)
    yield Billable("cluster", name, location, created_at, fee, "Google's fee")
    for pool in client.pools(cluster):
        node, count = pool.get("config", {}), pools_of_nodes.count(pool["name"])
        kind = node.get("machineType", "")
        hourly = None
        if listed:
            gpu_type, num_gpus = client.gpus_of(pool)
            model = prices.SPOT if node.get("spot") else prices.STANDARD
            machine = listed.per_hour(Shape(kind, num_gpus, gpu_type), model)
            storage = listed.disk_per_hour(*client.disk_of(pool))
            hourly = prices.total([(machine, count), (storage, count)])
        about = f"{count} x {kind}"
        yield Billable("nodes", f"{name}/{pool['name']}", location, created_at, hourly, about)


# --- what a job may cost
# A limit becomes the time that a job's machines may live in all attempts, which Google enforces.
# Purses and the budget for a day are in purse.py. Traffic, the bucket and other users are not
# covered; Google's own cap is for them (`berg costs --spend-cap`).

LEAST = 300  # seconds; a machine with less would hardly boot


def ceiling(plan: Plan, num_jobs: int) -> tuple[float, str]:
    """Return USD that each job may cost and the source of the limit; 0 for no limit.

    Only --max-cost can raise the limit of the user's settings.
    """
    spec, of_all = plan.spec, max(num_jobs, 1)
    if spec.max_cost is not None:
        return spec.max_cost / of_all, "--max-cost"
    own, lower = plan.config.max_cost, spec.lower_cost / of_all
    if lower and not 0 < own <= lower:
        whose = "the repo" if plan.job.spec.defaults else "its first run"
        return lower, f"max-cost = {spec.lower_cost:g} of {whose}"
    return own, f"max_cost = {own} of your settings"


def limited(plan: Plan, num_jobs: int = 0) -> Plan:
    """Return a plan whose job, or each of the sweep's jobs, ends before it costs too much.

    Raise BergError if a price is unknown, or if hardly any time is left.
    """
    usd, source = ceiling(plan, num_jobs)
    if not usd:
        return plan
    hourly = dearest(plan.job.rates, plan.offer.zones)
    if plan.offer.reservation:
        raise BergError(
            "a reservation costs the same if it is not used, so its cost cannot be kept below "
            f"${usd:,.2f}. Limit the time: --max-hours. Without a limit: --max-cost 0"
        )
    if hourly is None:
        raise BergError(
            f"the price of an hour in {', '.join(plan.offer.zones)} is unknown, so the cost cannot "
            f"be kept below ${usd:,.2f}. See why: berg prices. Without a limit: --max-cost 0"
        )
    seconds = int(3600 * usd / (hourly * plan.job.num_machines) - plan.job.spec.keep_warm)
    if seconds < LEAST:
        raise BergError(
            f"${usd:g} for a job is spent after {seconds} seconds, at ${hourly:,.2f} an hour "
            "for each machine: give more (--max-cost), or cheaper machines (berg prices)"
        )
    if seconds >= plan.job.max_run_seconds:
        return plan
    return replace(plan, job=replace(plan.job, max_run_seconds=seconds), limit=source)


def worst(plan: Plan, num_jobs: int = 0) -> float | None:
    """Return USD that a job or the jobs of a sweep cost at most; None if that is unknown."""
    hourly = dearest(plan.job.rates, plan.offer.zones)
    if hourly is None:
        return None
    machines = num_jobs or plan.job.num_machines
    return hourly * machines * (plan.job.max_run_seconds + plan.job.spec.keep_warm) / 3600


def question(plan: Plan, num_jobs: int = 0) -> str:
    """Return the question before an expensive plan; "" for others, and for reservations and pods
    that have no price of their own.
    """
    usd, bound = worst(plan, num_jobs), plan.config.ask_above
    if not bound or plan.offer.priced is None:
        return ""
    if usd is None:
        return f"The cost of this is unknown; it may be over ${bound:,} (ask_above). Start it?"
    if usd <= bound:
        return ""
    return f"This may cost ${usd:,.0f}. Start it?"
