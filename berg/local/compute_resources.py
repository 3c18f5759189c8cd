"""Read-only resources made from the catalog: zones, regions, machine and accelerator types, networks.

Not covered: routes, firewalls, networks other than `default`, disk types other than a handful.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from berg.local import catalog, schema
from berg.local.compute import Compute
from berg.local.compute_checks import LINK
from berg.local.compute_images import number_of

Rows = list[tuple[str, dict]]  # (zone, region or "global", resource)
SINCE = "1969-12-31T16:00:00.000-08:00"  # what Google writes for things that always were


@dataclass(frozen=True)
class Resource:
    kind: str  # as in compute#zone
    place: str  # zones, regions or globals
    rows: Callable[[Compute, str], Rows]


def zones(compute: Compute, project: str) -> Rows:
    base = f"{LINK}projects/{project}"
    return [
        (
            zone,
            {
                "kind": "compute#zone",
                "id": number_of(zone),
                "name": zone,
                "creationTimestamp": SINCE,
                "description": zone,
                "status": "UP",
                "region": f"{base}/regions/{region}",
                "selfLink": f"{base}/zones/{zone}",
                "availableCpuPlatforms": sorted(set(catalog.CPU_PLATFORMS.values())),
            },
        )
        for zone, region in catalog.ZONES.items()
    ]


def regions(compute: Compute, project: str) -> Rows:
    base = f"{LINK}projects/{project}"
    # Newer accelerators have quotas that this resource cannot name.
    known = schema.load("compute").schemas["Quota"]["properties"]["metric"]["enum"]
    return [
        (
            region,
            {
                "kind": "compute#region",
                "id": number_of(region),
                "name": region,
                "creationTimestamp": SINCE,
                "description": region,
                "status": "UP",
                "zones": [f"{base}/zones/{region}-{letter}" for letter in letters],
                "quotas": [
                    {
                        "metric": metric,
                        "limit": float(compute.limit(project, region, metric)),
                        "usage": float(compute.usage(project, region, metric)),
                    }
                    for metric in catalog.REGION_QUOTAS
                    if metric in known
                ],
                "selfLink": f"{base}/regions/{region}",
            },
        )
        for region, letters in catalog.REGIONS.items()
    ]


def machine_types(compute: Compute, project: str) -> Rows:
    rows = []
    for zone in catalog.ZONES:
        for kind in catalog.machine_types_in(zone):
            row = {
                "kind": "compute#machineType",
                "id": number_of(kind.name),
                "name": kind.name,
                "creationTimestamp": SINCE,
                "description": f"{kind.cpus} vCPUs, {kind.memory_mb / 1024:g} GB RAM",
                "guestCpus": kind.cpus,
                "memoryMb": kind.memory_mb,
                "isSharedCpu": kind.shared_core,
                "maximumPersistentDisks": 128,
                "maximumPersistentDisksSizeGb": "263168",
                "architecture": "X86_64",
                "zone": zone,
                "selfLink": f"{LINK}projects/{project}/zones/{zone}/machineTypes/{kind.name}",
            }
            if kind.accelerator:
                counts = {
                    "guestAcceleratorType": kind.accelerator,
                    "guestAcceleratorCount": kind.accelerator_count,
                }
                row["accelerators"] = [counts]
            rows.append((zone, row))
    return rows


def accelerator_types(compute: Compute, project: str) -> Rows:
    return [
        (
            zone,
            {
                "kind": "compute#acceleratorType",
                "id": number_of(name),
                "name": name,
                "creationTimestamp": SINCE,
                "description": catalog.ACCELERATORS[name][0],
                "maximumCardsPerInstance": catalog.ACCELERATORS[name][2],
                "zone": f"{LINK}projects/{project}/zones/{zone}",
                "selfLink": f"{LINK}projects/{project}/zones/{zone}/acceleratorTypes/{name}",
            },
        )
        for zone in catalog.ZONES
        for name in catalog.accelerators_in(zone)
    ]


def disk_types(compute: Compute, project: str) -> Rows:
    return [
        (
            zone,
            {
                "kind": "compute#diskType",
                "id": number_of(name),
                "name": name,
                "creationTimestamp": SINCE,
                "defaultDiskSizeGb": str(size),
                "validDiskSize": "10GB-65536GB",
                "zone": f"{LINK}projects/{project}/zones/{zone}",
                "selfLink": f"{LINK}projects/{project}/zones/{zone}/diskTypes/{name}",
            },
        )
        for zone in catalog.ZONES
        for name, size in catalog.DISK_TYPES.items()
    ]


def networks(compute: Compute, project: str) -> Rows:
    base = f"{LINK}projects/{project}"
    row = {
        "kind": "compute#network",
        "id": number_of("default"),
        "name": "default",
        "creationTimestamp": SINCE,
        "description": "Default network for the project",
        "autoCreateSubnetworks": True,
        "subnetworks": [f"{base}/regions/{region}/subnetworks/default" for region in catalog.REGIONS],
        "routingConfig": {"routingMode": "REGIONAL"},
        "selfLink": f"{base}/global/networks/default",
    }
    return [("global", row)]


def subnetworks(compute: Compute, project: str) -> Rows:
    base = f"{LINK}projects/{project}"
    return [
        (
            region,
            {
                "kind": "compute#subnetwork",
                "id": number_of(f"subnet-{region}"),
                "name": "default",
                "creationTimestamp": SINCE,
                "network": f"{base}/global/networks/default",
                # Machines have loopback addresses: this is the range they are drawn from.
                "ipCidrRange": "127.64.0.0/10",
                "gatewayAddress": "127.64.0.1",
                "region": f"{base}/regions/{region}",
                "selfLink": f"{base}/regions/{region}/subnetworks/default",
                "stackType": "IPV4_ONLY",
                "purpose": "PRIVATE",
            },
        )
        for region in catalog.REGIONS
    ]


RESOURCES = {
    "zones": Resource("zone", "zones", zones),
    "regions": Resource("region", "regions", regions),
    "machineTypes": Resource("machineType", "zones", machine_types),
    "acceleratorTypes": Resource("acceleratorType", "zones", accelerator_types),
    "diskTypes": Resource("diskType", "zones", disk_types),
    "networks": Resource("network", "globals", networks),
    "subnetworks": Resource("subnetwork", "regions", subnetworks),
}
