"""What costs money as long as it is there, whatever its job does: machines, disks, clusters.

Prices are those that were looked up last. Local disks and memory of stopped machines are gone with
their boot; what is left of one is its disk.

Not covered: buckets, addresses, images, snapshots.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from berg import places
from berg.config import Config
from berg.gke import clusters, container
from berg.google import prices
from berg.google.prices import region_of
from berg.google.shapes import Shape, find_built_in
from berg.job import Machine, Resource

STOPPED = ("STOPPED", "TERMINATED", "SUSPENDED")
NOT_YET = ("PENDING", "PROVISIONING")  # nothing is paid for until there is room


@dataclass
class Standing:
    """Something that costs money as long as it is there."""

    kind: str
    name: str
    where: str
    created_at: str  # "": not known
    usd_per_hour: float | None  # None: unknown
    about: str = ""


def everything(config: Config) -> list[Standing]:
    """Return the machines, disks and clusters that there are, with what an hour of each costs."""
    there = container.clusters(config)
    prices.latest(config, {config.region, *map(region_of, map(where, there))})
    rows = [of_machine(config, each) for each in places.machines(config) if each.place != "gke"]
    rows += [of_disk(config, each) for each in places.of("gce").resources(config) if each.gb]
    for cluster in there:
        rows += of_cluster(config, cluster)
    return rows


def where(cluster: dict[str, Any]) -> str:
    return str(cluster["location"])


def of_machine(config: Config, machine: Machine) -> Standing:
    """Return what an hour of a machine costs; of one that is stopped, that of its disk."""
    hourly = machine_rate(config, machine)
    about = machine.machine_type
    if machine.status in STOPPED:
        about = f"stopped, {machine.disk_gb} GB"
    return Standing("machine", machine.name, machine.zone, machine.created_at, hourly, about)


def machine_rate(config: Config, machine: Machine) -> float | None:
    """Return USD for an hour of a machine as it is now; None if that is unknown."""
    listed = prices.known(config, region_of(machine.zone))
    if machine.status in NOT_YET:
        return 0.0
    if listed is None:
        return None
    shape = shape_of(machine)
    if machine.status in STOPPED:
        return listed.disk_per_hour(shape.disk_type, machine.disk_gb)
    if machine.model not in prices.MODELS:  # what is reserved is paid for whether it is used or not
        return None
    return listed.per_hour(shape, machine.model, machine.disk_gb)


def shape_of(machine: Machine) -> Shape:
    """Return the shape of a machine as Google lists it."""
    count, _, kind = machine.gpus.partition(" x ")
    attached = (kind, int(count) if count.isdigit() else 0)
    kind, number = find_built_in(machine.machine_type) or attached
    return Shape(machine.machine_type, number, kind)


def of_disk(config: Config, disk: Resource) -> Standing:
    """Return what an hour of a disk costs that no machine has."""
    listed = prices.known(config, region_of(disk.where))
    hourly = listed.disk_per_hour(disk.disk_type, disk.gb) if listed else None
    return Standing("disk", disk.name, disk.where, disk.created_at, hourly, f"{disk.gb} GB")


def of_cluster(config: Config, cluster: dict[str, Any]) -> Iterable[Standing]:
    """Return what an hour of a cluster costs: Google's fee, and each pool's nodes, the dataset
    cache's among them.
    """
    found, listed = (
        clusters.status(config, cluster),
        prices.known(config, region_of(where(cluster))),
    )
    created_at = cluster.get("createTime", "")
    fee = prices.cluster_fee(config, found.location)
    yield Standing("cluster", found.name, found.location, created_at, fee, "Google's fee")
    for pool in container.pools(cluster):
        count = sum(node["pool"] == pool["name"] for node in found.nodes)
        hourly = prices.total([(node_rate(listed, pool), count)])
        name = f"{found.name}/{pool['name']}"
        about = f"{count} x {pool['config'].get('machineType', '')}"
        yield Standing("nodes", name, found.location, created_at, hourly, about)


def node_rate(listed: prices.Prices | None, pool: dict[str, Any]) -> float | None:
    """Return USD for an hour of a pool's node with its disk; None if that is unknown."""
    if listed is None:
        return None
    node = pool.get("config", {})
    kind, count = container.gpus_of(pool)
    shape = Shape(node.get("machineType", ""), count, kind)
    model = prices.SPOT if node.get("spot") else prices.STANDARD
    machine = listed.per_hour(shape, model)
    disk = listed.disk_per_hour(*container.disk_of(pool))
    return prices.total([(machine, 1), (disk, 1)])
