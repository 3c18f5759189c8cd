"""What Kubernetes Engine says of clusters and pools in prose alone, and what it fills in.

What is not kept at all, kept.py refuses.
"""

import copy
import functools
import re
import zlib

from localcloud import schema
from localcloud.compute import catalog, checks
from localcloud.container import kept
from localcloud.errors import ApiError
from localcloud.kubernetes.plane import VERSION

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # 40 characters, unlike an instance's 63
NODE_VERSION = VERSION.removeprefix("v")
MOST_NODES = 1000  # of a pool in one zone: https://cloud.google.com/kubernetes-engine/quotas
USUAL = {"machineType": "e2-medium", "diskSizeGb": 100, "diskType": "pd-balanced"}
USUAL |= {"imageType": "COS_CONTAINERD", "serviceAccount": "default", "oauthScopes": []}
bad = functools.partial(ApiError, 400, "badRequest")


def check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        rule = "(?:[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?)"
        raise bad(
            f'Invalid value for field "{what}": "{name}". Must be a match of regex \'{rule}\''
        )


def check_pool(pool: dict, zone: str, project: str) -> None:
    check_name("node_pool.name", pool.get("name", ""))
    kept.check("node pools", pool, kept.POOL)
    config = {**USUAL, **(pool.get("config") or {})}
    machine, disk = config["machineType"], config["diskType"]
    kind = catalog.machine_type(zone, machine)
    if kind is None:
        raise bad(f"Machine type {machine} does not exist in zone {zone} of project {project}.")
    check_accelerators(config.get("accelerators") or [], kind, zone)
    if disk not in catalog.of_family(catalog.BOOT_DISKS, machine, tuple(catalog.DISK_TYPES)):
        raise bad(f"Disk type {disk} is not compatible with machine type {machine}.")
    for scope in config["oauthScopes"]:
        if scope not in schema.scopes():
            raise bad(f'Invalid OAuth scope: "{scope}".')
    check_labels(config.get("resourceLabels") or {})
    check_scaling(pool)


def check_cluster(cluster: dict, project: str) -> None:
    """What concerns the whole of a new cluster."""
    check_name("cluster.name", cluster.get("name", ""))
    kept.check("clusters", cluster, kept.CLUSTER)
    links = ("default", f"projects/{project}/global/networks/default")
    if cluster.get("network", "default") not in links:
        raise bad(f'Network "{cluster["network"]}" does not exist.')
    check_labels(cluster.get("resourceLabels") or {})


def check_labels(labels: dict[str, str]) -> None:
    """Refuse labels that the machines of a cluster cannot have."""
    try:
        checks.check_labels(labels)
    except ApiError as error:
        raise bad(error.message) from None


def check_accelerators(rows: list[dict], kind: catalog.MachineType, zone: str) -> None:
    for row in rows:
        name, count = row.get("acceleratorType", ""), int(row.get("acceleratorCount", 0))
        if name not in catalog.accelerators_in(zone):
            raise bad(f'Accelerator type "{name}" does not exist in zone {zone}.')
        if kind.accelerator:
            if (name, count) != (kind.accelerator, kind.accelerator_count):
                raise bad(
                    f"Machine type {kind.name} requires {kind.accelerator_count} {kind.accelerator}."
                )
            continue
        if kind.family != "n1" or kind.shared_core:
            raise bad(f"Accelerators are not supported on machine type {kind.name}.")
        most = catalog.cpu_limits(zone, name) or {}
        if count not in most:
            raise bad(f"The number of {name} must be one of {', '.join(map(str, most))}.")
        if kind.cpus > most[count]:
            raise bad(
                f"Machine type {kind.name} has too many vCPUs for {count} {name}: the maximum is {most[count]}."
            )
    if kind.accelerator and not rows:
        raise bad(f"Machine type {kind.name} requires accelerators to be set.")


def check_scaling(pool: dict) -> None:
    scaling, first = pool.get("autoscaling") or {}, pool.get("initialNodeCount", 0)
    fewest, most = scaling.get("minNodeCount", 0), scaling.get("maxNodeCount", 0)
    for what, count in (("Initial", first), ("Min", fewest), ("Max", most)):
        if not 0 <= count <= MOST_NODES:
            raise bad(f"{what} node count must be from 0 to {MOST_NODES} in a zone, not {count}.")
    if scaling.get("enabled") and not most:
        raise bad("Max node count must be set when autoscaling is enabled.")
    if scaling.get("enabled") and max(fewest, first) > most:
        raise bad("Min and initial node count cannot exceed max node count.")


def filled_pool(cluster: dict, wanted: dict) -> dict:
    """A pool as Google shows it."""
    pool = copy.deepcopy(wanted)
    config = pool["config"] = {**copy.deepcopy(USUAL), **pool.get("config", {})}
    config["metadata"] = {"disable-legacy-endpoints": "true"}
    if config.get("accelerators"):
        row = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
        config["taints"] = [*config.get("taints", []), row]
    pool.setdefault("initialNodeCount", 0)
    pool.setdefault("management", {"autoUpgrade": True, "autoRepair": True})
    pool["locations"] = list(cluster["locations"])
    mark = zlib.crc32(f"{cluster['id']}/{pool['name']}".encode())
    pool.update(
        status="PROVISIONING", version=NODE_VERSION, podIpv4CidrSize=24, _hash=f"{mark:08x}"
    )
    pool["selfLink"] = f"{cluster['selfLink']}/nodePools/{pool['name']}"
    scaling = pool.get("autoscaling") or {}
    fewest = scaling.get("minNodeCount", 0) if scaling.get("enabled") else 0
    pool["_size"] = max(pool["initialNodeCount"], fewest)
    return pool
