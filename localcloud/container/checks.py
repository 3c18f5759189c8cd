"""What Kubernetes Engine says of clusters and pools in prose alone, and what it fills in.

Not covered: versions, networks, add-ons, Autopilot: they are kept as they were sent, or refused.
"""

from __future__ import annotations

import copy
import functools
import re
import zlib

from localcloud.compute import catalog, checks
from localcloud.errors import ApiError
from localcloud.kubernetes.plane import VERSION

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # 40 characters, unlike an instance's 63
NODE_VERSION = VERSION.removeprefix("v")
# https://cloud.google.com/kubernetes-engine/docs/concepts/node-images
IMAGES = ("COS_CONTAINERD", "UBUNTU_CONTAINERD", "WINDOWS_LTSC_CONTAINERD")
SCOPE = re.compile(r"https://www\.googleapis\.com/auth/[a-z0-9_.-]+")
RESERVED = ("kubernetes.io", "k8s.io")  # domains of labels' keys
bad = functools.partial(ApiError, 400, "badRequest")


def check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        rule = "(?:[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?)"
        raise bad(
            f'Invalid value for field "{what}": "{name}". Must be a match of regex \'{rule}\''
        )


def check_pool(pool: dict, zones: list[str], project: str) -> None:
    check_name("node_pool.name", pool.get("name", ""))
    config = pool.get("config") or {}
    machine = config.get("machineType", "e2-medium")
    for zone in zones:
        if zone not in catalog.ZONES:
            raise bad(f'Location "{zone}" does not exist.')
        try:
            found = catalog.machine_type(zone, machine)
        except ValueError as error:
            raise bad(str(error)) from None
        if found is None:
            raise bad(f"Machine type {machine} does not exist in zone {zone} of project {project}.")
        check_accelerators(config.get("accelerators") or [], found, zone)
    if config.get("spot") and config.get("preemptible"):
        raise bad("Spot and preemptible cannot both be set.")
    if config.get("diskSizeGb", 100) < 15:
        raise bad("Disk size must be at least 15 GB.")
    if config.get("diskType", "pd-balanced") not in catalog.of_family(
        catalog.BOOT_DISKS, machine, tuple(catalog.DISK_TYPES)
    ):
        raise bad(f"Disk type {config['diskType']} is not compatible with machine type {machine}.")
    check_shutdown(config)
    check_scaling(pool)
    check_config(pool)


def check_config(pool: dict) -> None:
    """What nodes are made of, beside their machines: image, scopes, labels, pods."""
    config = pool.get("config") or {}
    image = config.get("imageType", "COS_CONTAINERD")
    if image.upper() not in IMAGES:
        raise bad(f'Node image type "{image}" is not supported. Use one of {", ".join(IMAGES)}.')
    for scope in config.get("oauthScopes") or []:
        if not SCOPE.fullmatch(scope):
            raise bad(f'Invalid OAuth scope: "{scope}".')
    for key in config.get("labels") or {}:
        domain = key.partition("/")[0] if "/" in key else ""
        if any(domain == each or domain.endswith(f".{each}") for each in RESERVED):
            raise bad(f'Label key "{key}" is reserved for Kubernetes.')
    check_labels(config.get("resourceLabels") or {})
    pods = (pool.get("maxPodsConstraint") or {}).get("maxPodsPerNode")
    if pods is not None and not 8 <= int(pods) <= 256:
        raise bad(f"Max pods per node must be between 8 and 256, not {pods}.")
    check_version("node_pool.version", pool.get("version", ""))


def check_version(field: str, version: str) -> None:
    """Refuse a version that is not served: a whole one, or the beginning of one."""
    if version in ("", "-", "latest") or f"{NODE_VERSION}.".startswith(f"{version}."):
        return
    if NODE_VERSION.partition("-")[0] == version:
        return
    raise bad(f'{field}: version "{version}" is not supported. Use {NODE_VERSION}.')


def check_upgrades(cluster: dict, pool: dict) -> None:
    """Refuse a pool without upgrades in a cluster that is in a release channel."""
    channel = (cluster.get("releaseChannel") or {}).get("channel", "REGULAR")
    management = pool.get("management")
    if channel != "UNSPECIFIED" and management is not None and not management.get("autoUpgrade"):
        raise bad(f"Auto_upgrade must be true when release_channel {channel} set.")


def check_networks(cluster: dict) -> None:
    for key in ("network", "subnetwork"):
        name = cluster.get(key, "default").rpartition("/")[2]
        if name != "default":
            raise bad(f'{key.capitalize()} "{name}" does not exist.')


def check_cluster(cluster: dict, pools: list[dict]) -> None:
    """What concerns the whole of a new cluster."""
    check_networks(cluster)
    check_labels(cluster.get("resourceLabels") or {})
    check_version("cluster.initial_cluster_version", cluster.get("initialClusterVersion", ""))
    names = [pool.get("name") for pool in pools]
    for name in names:
        if names.count(name) > 1:
            raise bad(f'Node pool names must be unique: "{name}".')


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


def check_shutdown(config: dict) -> None:
    """Graceful node shutdown: of Spot nodes alone, and for as long as those have."""
    kubelet = config.get("kubeletConfig") or {}
    seconds = kubelet.get("shutdownGracePeriodSeconds")
    if seconds is None:
        return
    if seconds not in (0, 30, 120):
        raise bad(
            f"Invalid value for shutdown_grace_period_seconds: {seconds}. Must be one of 0, 30, 120."
        )
    if not config.get("spot"):
        raise bad("shutdown_grace_period_seconds is only supported for Spot VMs.")
    if kubelet.get("shutdownGracePeriodCriticalPodsSeconds", 0) > seconds:
        raise bad(
            "shutdown_grace_period_critical_pods_seconds must not exceed shutdown_grace_period_seconds."
        )


def check_scaling(pool: dict) -> None:
    config, scaling = pool.get("config") or {}, pool.get("autoscaling") or {}
    if {"minNodeCount", "maxNodeCount"} & scaling.keys() and {
        "totalMinNodeCount",
        "totalMaxNodeCount",
    } & scaling.keys():
        raise bad("total_*_node_count and *_node_count fields are mutually exclusive.")
    most = scaling.get("maxNodeCount") or scaling.get("totalMaxNodeCount")
    if scaling.get("enabled") and not most:
        raise bad("Max node count must be set when autoscaling is enabled.")
    if scaling.get("minNodeCount", scaling.get("totalMinNodeCount", 0)) > (most or 1 << 30):
        raise bad("Min node count cannot exceed max node count.")
    flexible = config.get("flexStart") or (pool.get("queuedProvisioning") or {}).get("enabled")
    affinity = (config.get("reservationAffinity") or {}).get("consumeReservationType")
    repaired = (pool.get("management") or {}).get("autoRepair", True)
    fixed = not scaling.get("enabled") or pool.get("initialNodeCount") or config.get("spot")
    if flexible and (fixed or affinity != "NO_RESERVATION" or repaired):
        raise bad(
            "Flex start needs autoscaling, 0 initial nodes, no reservation, no auto-repair, and no spot."
        )


def filled_pool(cluster: dict, wanted: dict) -> dict:
    """A pool as Google shows it."""
    pool = copy.deepcopy(wanted)
    config = pool.setdefault("config", {})
    usual = {
        **{
            "machineType": "e2-medium",
            "diskSizeGb": 100,
            "diskType": "pd-balanced",
            "imageType": "COS_CONTAINERD",
        },
        **{
            "serviceAccount": "default",
            "oauthScopes": [],
            "metadata": {"disable-legacy-endpoints": "true"},
        },
    }
    for key, value in usual.items():
        config.setdefault(key, value)
    config["metadata"].setdefault("disable-legacy-endpoints", "true")
    if config.get("accelerators"):
        row = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
        config["taints"] = [
            *config.get("taints", []),
            *([] if row in config.get("taints", []) else [row]),
        ]
    private = (cluster.get("networkConfig") or {}).get("defaultEnablePrivateNodes", False)
    pool["networkConfig"] = {"enablePrivateNodes": private, **(pool.get("networkConfig") or {})}
    pool.setdefault("initialNodeCount", 0)
    pool.setdefault("management", {"autoUpgrade": True, "autoRepair": True})
    pool["locations"] = pool.get("locations") or list(cluster["locations"])
    mark = zlib.crc32(f"{cluster['id']}/{pool['name']}".encode())
    pool.update(
        status="PROVISIONING", version=NODE_VERSION, podIpv4CidrSize=24, _hash=f"{mark:08x}"
    )
    pool["selfLink"] = f"{cluster['selfLink']}/nodePools/{pool['name']}"
    scaling = pool.get("autoscaling") or {}
    fewest = scaling.get("minNodeCount", 0) if scaling.get("enabled") else 0
    pool["_size"] = max(pool["initialNodeCount"], fewest) * len(pool["locations"])
    return pool
