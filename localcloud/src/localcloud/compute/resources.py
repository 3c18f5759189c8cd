"""How everything that has rows is read, alone or in lists; and the rows of what is made from the catalog:
zones, regions, machine and accelerator types.

Not covered: routes, disk types other than a handful.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localcloud import schema
from localcloud.call import Call
from localcloud.compute import catalog, networks, quotas, reservations, tpus
from localcloud.compute.checks import LINK, last, not_found, number_of
from localcloud.compute.firewalls import firewalls
from localcloud.compute.images import images_of
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute

Rows = list[tuple[str, dict]]  # (zone, region or "global", resource)


@dataclass(frozen=True)
class Resource:
    kind: str  # as in compute#zone
    place: str  # zones, regions or globals
    rows: Callable[[Compute, str], Rows]


def resource(kind: str, path: str, **fields: Any) -> dict:
    """A resource with what all have; its name is the end of its path."""
    same = {
        "kind": f"compute#{kind}",
        "id": number_of(path),
        "name": last(path),
        "creationTimestamp": networks.SINCE,
    }
    return {**same, "selfLink": LINK + path, **fields}


def zones(compute: Compute, project: str) -> Rows:
    base, platforms = f"projects/{project}", sorted(set(catalog.CPU_PLATFORMS.values()))
    rows = []
    for zone, region in catalog.ZONES.items():
        fields = {"description": zone, "status": "UP", "region": f"{LINK}{base}/regions/{region}"}
        rows.append(
            (
                zone,
                resource("zone", f"{base}/zones/{zone}", availableCpuPlatforms=platforms, **fields),
            )
        )
    return rows


def regions(compute: Compute, project: str) -> Rows:
    # Newer accelerators have quotas that this resource cannot name.
    known = schema.load("compute").schemas["Quota"]["properties"]["metric"]["enum"]
    metrics = [metric for metric in catalog.REGION_QUOTAS if metric in known]
    base = f"projects/{project}"
    rows = []
    for region in catalog.REGIONS:
        zones = [
            f"{LINK}{base}/zones/{zone}" for zone in catalog.ZONES if catalog.ZONES[zone] == region
        ]
        fields = {
            "description": region,
            "status": "UP",
            "quotas": quotas.resources(compute, project, region, metrics),
        }
        rows.append((region, resource("region", f"{base}/regions/{region}", zones=zones, **fields)))
    return rows


def machine_types(compute: Compute, project: str) -> Rows:
    zones = catalog.ZONES
    return [
        (zone, machine_type(project, zone, kind))
        for zone in zones
        for kind in catalog.machine_types_in(zone)
    ]


def machine_type(project: str, zone: str, kind: catalog.MachineType) -> dict:
    row = resource(
        "machineType",
        f"projects/{project}/zones/{zone}/machineTypes/{kind.name}",
        description=f"{kind.cpus} vCPUs, {kind.memory_mb / 1024:g} GB RAM",
        guestCpus=kind.cpus,
        memoryMb=kind.memory_mb,
        isSharedCpu=kind.shared_core,
        maximumPersistentDisks=128,
        maximumPersistentDisksSizeGb="263168",
        architecture="ARM64" if kind.family == "a4x" else "X86_64",
        zone=zone,
    )
    if kind.accelerator:
        counts = {
            "guestAcceleratorType": kind.accelerator,
            "guestAcceleratorCount": kind.accelerator_count,
        }
        row["accelerators"] = [counts]
    if generation := tpus.generation_of(kind.name):  # as people saw it of ct6e-standard-1t
        counts = {"guestAcceleratorType": generation.family.lower()}
        row["accelerators"] = [{**counts, "guestAcceleratorCount": tpus.chips_of(kind.name)}]
    return row


def accelerator_types(compute: Compute, project: str) -> Rows:
    rows = []
    for zone in catalog.ZONES:
        base = f"projects/{project}/zones/{zone}"
        for name in catalog.accelerators_in(zone):
            title, _, most, _ = catalog.ACCELERATORS[name]
            fields = {"description": title, "maximumCardsPerInstance": most, "zone": LINK + base}
            rows.append(
                (zone, resource("acceleratorType", f"{base}/acceleratorTypes/{name}", **fields))
            )
    return rows


def instances(compute: Compute, project: str) -> Rows:
    return [(i.zone, i.resource) for i in compute.instances.values() if i.project == project]


def kept(kind: str) -> Callable[[Compute, str], Rows]:
    """The rows of a table: of what was made."""
    return lambda compute, project: compute.rows(kind, project)


def everywhere(rows: list[dict]) -> Rows:
    return [("global", row) for row in rows]


RESOURCES = {
    "zones": Resource("zone", "zones", zones),
    "regions": Resource("region", "regions", regions),
    "machineTypes": Resource("machineType", "zones", machine_types),
    "acceleratorTypes": Resource("acceleratorType", "zones", accelerator_types),
    "networks": Resource("network", "globals", networks.networks),
    "networkProfiles": Resource("networkProfile", "globals", networks.profiles),
    "firewalls": Resource("firewall", "globals", firewalls),
    "subnetworks": Resource("subnetwork", "regions", networks.subnetworks),
    "routers": Resource("router", "regions", lambda compute, project: []),
    "instances": Resource("instance", "zones", instances),
    "disks": Resource("disk", "zones", kept("disks")),
    "images": Resource("image", "globals", lambda *whose: everywhere(images_of(*whose))),
    "snapshots": Resource(
        "snapshot",
        "globals",
        lambda compute, project: everywhere(compute.kept(project, "snapshots")),
    ),
    "instanceTemplates": Resource("instanceTemplate", "globals", kept("templates")),
    "resourcePolicies": Resource("resourcePolicy", "regions", kept("policies")),
    "reservations": Resource("reservation", "zones", reservations.rows),
}


async def read_resource(compute: Compute, call: Call) -> dict:
    collection, verb = call.method.split(".")[1:]
    resource = RESOURCES[collection]
    rows = resource.rows(compute, call.params["project"])
    if verb == "get":
        name, place = last(call.params[resource.kind]), resource.place[:-1]
        scope = call.params.get(place)
        for at, row in rows:
            if row["name"] == name and scope in (None, at, name):
                return row
        path = "" if resource.kind == place else f"{place}s/{scope}/" if scope else "global/"
        raise not_found(f"projects/{call.params['project']}/{path}{collection}/{name}")
    return listed(call, resource.kind, resource.place, rows)
