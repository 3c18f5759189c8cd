"""What Kubernetes Engine says of clusters and pools in prose alone, and what it fills in.

What is not kept at all, kept.py refuses. Not covered: other versions and networks, Autopilot: refused; add-ons but
gcsfuse's, loggers and monitors: shown as they were sent.
"""

from __future__ import annotations

import copy
import functools
import re
import zlib

from localcloud import schema
from localcloud.compute import catalog, checks, tpus
from localcloud.container import kept
from localcloud.errors import ApiError
from localcloud.kubernetes.plane import VERSION

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # 40 characters, unlike an instance's 63
NODE_VERSION = VERSION.removeprefix("v")
# https://cloud.google.com/kubernetes-engine/docs/concepts/node-images
IMAGES = ("COS_CONTAINERD", "UBUNTU_CONTAINERD", "WINDOWS_LTSC_CONTAINERD")
DURATION = re.compile(r"(\d+)(\.\d{1,9})?s")
MOST_NODES = 1000  # of a pool in one zone: https://cloud.google.com/kubernetes-engine/quotas
MOST_LABELS = 1024  # characters of all keys and values of a node's labels
MOST_VALUE, MOST_METADATA = 32 << 10, 512 << 10  # bytes of one value, and of all
MOST_TAGS = 64
MOST_PARALLEL = 20  # nodes of a pool that an upgrade works on at once
LIFETIMES = (30, 120 * 24 * 3600)  # seconds; of a machine, so of a node
RESERVED = ("kubernetes.io", "k8s.io")  # domains of labels' keys
OF_GKE = "cloud.google.com/gke-"  # labels that it gives nodes itself
SINGLE_HOST = (
    "TPU topology can't be specified with single-host TPU slice pool; please remove the "
    "tpu_topology from the node pool creation request if the node pool is intented to run with "
    "single-host TPU slice nodes."
)
# As the discovery document says of NodeConfig: https://container.googleapis.com/$discovery/rest
METADATA = re.compile(r"[a-zA-Z0-9-_]{1,127}")
OWN_METADATA = {
    "cluster-location",
    "cluster-name",
    "cluster-uid",
    "configure-sh",
    "containerd-configure-sh",
    "enable-os-login",
    "gci-ensure-gke-docker",
    "gci-metrics-enabled",
    "gci-update-strategy",
    "instance-template",
    "kube-env",
    "startup-script",
    "user-data",
    "disable-address-manager",
    "windows-startup-script-ps1",
    "common-psm1",
    "k8s-node-setup-psm1",
    "install-ssh-psm1",
    "user-profile-psm1",
}
TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
TAINT = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{VALUE.pattern}")
bad = functools.partial(ApiError, 400, "badRequest")


def check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        rule = "(?:[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?)"
        raise bad(
            f'Invalid value for field "{what}": "{name}". Must be a match of regex \'{rule}\''
        )


def check_pool(pool: dict, zones: list[str], project: str) -> None:
    check_name("node_pool.name", pool.get("name", ""))
    kept.check_pool(pool)
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
    check_placement(pool, zones)
    check_lifetime(config)


def check_lifetime(config: dict) -> None:
    """How long nodes may exist."""
    text = config.get("maxRunDuration")
    if text is None:
        return
    found = DURATION.fullmatch(text)
    if not found or not LIFETIMES[0] <= int(found[1]) <= LIFETIMES[1]:
        raise bad(f'Invalid max_run_duration "{text}": must be between 30 seconds and 120 days.')


def hosts_of(pool: dict) -> int:
    """The nodes that form a slice of TPUs in a pool, all or none; 0 where each is on its own."""
    topology = (pool.get("placementPolicy") or {}).get("tpuTopology", "")
    return tpus.chips_in(topology) // tpus.IN_SLICES if topology else 0


def check_placement(pool: dict, zones: list[str]) -> None:
    """A topology of TPUs: of several nodes alone, which come and go together.

    https://docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus; the words for a single host
    are Google's, as a user of xpk met them, and those for tpu7x, as users of vLLM's did: its slices
    are placed by a workload policy that is named, without a type.
    """
    policy = pool.get("placementPolicy") or {}
    topology, machine = policy.get("tpuTopology"), (pool.get("config") or {}).get("machineType", "")
    if topology is None:
        return
    if tpus.generation_of(machine) is None:
        raise bad(f"TPU topology is not supported on machine type {machine}.")
    if topology == tpus.topology_of_one(machine):
        raise bad(SINGLE_HOST)
    if not tpus.is_topology_of_nodes(machine, topology):
        raise bad(f"TPU topology {topology} is not supported on machine type {machine}.")
    if tpus.is_placed_by_workload(machine):
        if policy.get("type") or not policy.get("policyName"):
            raise bad(
                f"Creation of a managed instance group with {machine} machine type with placement "
                "policy is not supported. Use workload policy instead."
            )
    elif policy.get("type") != "COMPACT":
        raise bad("TPU topology requires placement policy type COMPACT.")
    if len(zones) != 1:
        raise bad("Multi-host TPU slice node pools must be in one zone.")
    check_slice_size(pool, hosts_of(pool))


def check_slice_size(pool: dict, hosts: int) -> None:
    """Refuse numbers of nodes that are neither none nor the whole slice."""
    scaling = pool.get("autoscaling") or {}
    numbers = [pool.get("initialNodeCount", 0)]
    if scaling.get("enabled"):
        numbers += [scaling.get("minNodeCount", scaling.get("totalMinNodeCount", 0))]
        most = scaling.get("maxNodeCount") or scaling.get("totalMaxNodeCount")
        if most != hosts:
            raise bad(f"Max node count must be {hosts} for this TPU topology, not {most}.")
    for number in numbers:
        if number not in (0, hosts):
            raise bad(f"The number of nodes must be 0 or {hosts} for this TPU topology.")


def check_config(pool: dict) -> None:
    """Check the configuration of nodes other than their machines: image, scopes, labels, pods."""
    config = pool.get("config") or {}
    image = config.get("imageType", "COS_CONTAINERD")
    if image.upper() not in IMAGES:
        raise bad(f'Node image type "{image}" is not supported. Use one of {", ".join(IMAGES)}.')
    for scope in config.get("oauthScopes") or []:
        if scope not in schema.scopes():
            raise bad(f'Invalid OAuth scope: "{scope}".')
    for key in config.get("labels") or {}:
        domain = key.partition("/")[0] if "/" in key else ""
        if any(domain == each or domain.endswith(f".{each}") for each in RESERVED):
            raise bad(f"Applying kubernetes label is not allowed: {key}.")
        if key.startswith(OF_GKE):
            raise bad(
                f'Node labels with key "{key}" are managed by GKE or Kubernetes and must not be '
                "manually specified."
            )
    check_node_labels(config.get("labels") or {})
    check_labels(config.get("resourceLabels") or {})
    check_machines(config)
    check_count("Initial node count", pool.get("initialNodeCount", 0))
    check_pods(pool.get("maxPodsConstraint") or {})
    check_upgrade(pool.get("upgradeSettings") or {})
    check_version("node_pool.version", pool.get("version", ""))


def check_node_labels(labels: dict[str, str]) -> None:
    """Refuse labels of nodes that Kubernetes could not give them."""
    for key, value in labels.items():
        if not TAINT.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            raise bad(f'Invalid label key "{key}".')
        if value and (len(value) > 63 or not VALUE.fullmatch(value)):
            raise bad(f'Invalid label value "{value}".')
    if sum(len(key) + len(value) for key, value in labels.items()) > MOST_LABELS:
        raise bad(f"Node labels must have at most {MOST_LABELS} characters in all.")


def check_count(what: str, count: int) -> None:
    """Refuse numbers of nodes in one zone that no pool can have."""
    if count < 0:
        raise bad(f"{what} must not be negative: {count}.")
    if count > MOST_NODES:
        raise bad(f"{what} must be at most {MOST_NODES} in a zone, not {count}.")


def check_pods(constraint: dict) -> None:
    """Refuse numbers of pods for which no node has addresses."""
    pods = constraint.get("maxPodsPerNode")
    if pods is not None and not 8 <= int(pods) <= 256:
        raise bad(f"Max pods per node must be between 8 and 256, not {pods}.")


def check_upgrade(settings: dict) -> None:
    """Refuse upgrades that would never move, or take too many nodes at once."""
    numbers = [settings.get(key, 0) for key in ("maxSurge", "maxUnavailable")]
    if min(numbers) < 0:
        raise bad("Max surge and max unavailable must not be negative.")
    if settings.keys() & {"maxSurge", "maxUnavailable"} and not any(numbers):
        raise bad("At least one of max_surge and max_unavailable must be greater than 0.")
    if sum(numbers) > MOST_PARALLEL:
        raise bad(f"The sum of max_surge and max_unavailable must be at most {MOST_PARALLEL}.")


def check_machines(config: dict) -> None:
    """What the machines of nodes are given: metadata, tags, taints, disks."""
    metadata = config.get("metadata") or {}
    for key, value in metadata.items():
        if len(value.encode()) > MOST_VALUE:
            raise bad(f'The value of metadata key "{key}" must have at most {MOST_VALUE} bytes.')
        if not METADATA.fullmatch(key):
            raise bad(
                f'Metadata key "{key}" must match [a-zA-Z0-9-_]+ and have less than 128 bytes.'
            )
        if key in OWN_METADATA:
            raise bad(f'Metadata key "{key}" is reserved for use by Kubernetes Engine.')
    if sum(len(f"{key}{value}".encode()) for key, value in metadata.items()) >= MOST_METADATA:
        raise bad(f"Metadata must have less than {MOST_METADATA} bytes in all.")
    check_tags(config.get("tags") or [])
    check_taints(config.get("taints") or [])
    if config.get("diskSizeGb", 100) > 65536:
        raise bad("Disk size must be at most 65536 GB.")


def check_tags(tags: list[str]) -> None:
    """Refuse tags that the network could not know nodes by."""
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise bad(f'Network tag "{tag}" must comply with RFC1035.')
    if len(tags) > MOST_TAGS or len(set(tags)) < len(tags):
        raise bad(f"Network tags must be distinct, and at most {MOST_TAGS}.")


def check_taints(taints: list[dict]) -> None:
    """Refuse taints that Kubernetes could not give to nodes."""
    for taint in taints:
        key, value = taint.get("key", ""), taint.get("value", "")
        if not TAINT.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            raise bad(f'Invalid taint key "{key}".')
        if value and (len(value) > 63 or not VALUE.fullmatch(value)):
            raise bad(f'Invalid taint value "{value}".')
        if taint.get("effect", "EFFECT_UNSPECIFIED") == "EFFECT_UNSPECIFIED":
            raise bad(f'Taint "{key}" must have an effect.')
    places = [(taint.get("key"), taint["effect"]) for taint in taints]
    if len(set(places)) < len(places):
        raise bad("Taints must differ in their keys or effects.")


def check_locations(place: str, zones: list[str]) -> None:
    """Refuse zones of nodes outside of the region of their cluster."""
    region = catalog.ZONES.get(place, place)
    for zone in zones:
        if catalog.ZONES.get(zone) != region:
            raise bad(f'Location "{zone}" is not in the region {region} of the cluster.')
    if len(set(zones)) < len(zones):
        raise bad("Locations must be distinct.")


def check_own_zone(place: str, zones: list[str]) -> None:
    """Refuse locations of a zonal cluster without its own zone."""
    if place in catalog.ZONES and place not in zones:
        raise bad(f'Locations must include the zone of the cluster, "{place}".')


def check_version(field: str, version: str) -> None:
    """Refuse a version that is not served: a whole one, or the beginning of one."""
    if version in ("", "-", "latest") or f"{NODE_VERSION}.".startswith(f"{version}."):
        return
    if NODE_VERSION.partition("-")[0] == version:
        return
    raise bad(f'{field}: version "{version}" is not supported. Use {NODE_VERSION}.')


def check_upgrades(cluster: dict, pool: dict) -> None:
    """Refuse a pool without upgrades or repairs in a cluster that is in a release channel; those that
    wait for their machines are not repaired.
    """
    channel = (cluster.get("releaseChannel") or {}).get("channel", "REGULAR")
    management = pool.get("management")
    if channel == "UNSPECIFIED" or management is None:
        return
    if not management.get("autoUpgrade"):
        raise bad(f"Auto_upgrade must be true when release_channel {channel} set.")
    if not management.get("autoRepair") and not is_flexible(pool):
        message = "Auto_upgrade and auto_repair cannot be false when release_channel"
        raise bad(f"{message} {channel} is set.")


def check_workload_pool(config: dict | None, project: str) -> None:
    """Refuse a workload identity pool other than the one that Google keeps for a project."""
    pool, only = (config or {}).get("workloadPool", ""), f"{project}.svc.id.goog"
    if pool not in ("", only):
        raise bad(
            f'Invalid workload pool "{pool}". Currently the only supported workload pool is "{only}".'
        )


def check_metadata_mode(cluster: dict, pool: dict) -> None:
    """Refuse the metadata server for pods in a cluster without Workload Identity."""
    if mode_of(pool) == "GKE_METADATA" and not workload_pool(cluster):
        raise bad(
            "Workload Identity is not enabled on the cluster: GKE_METADATA is only valid for node "
            f'pools of clusters with a workload pool. Node pool "{pool.get("name", "")}".'
        )


def mode_of(pool: dict) -> str:
    """What pods of a pool see as their metadata server; "" if nothing says so."""
    config = (pool.get("config") or {}).get("workloadMetadataConfig") or {}
    mode: str = config.get("mode", "")
    return "" if mode == "MODE_UNSPECIFIED" else mode


def workload_pool(cluster: dict) -> str:
    found: str = (cluster.get("workloadIdentityConfig") or {}).get("workloadPool", "")
    return found


def check_networks(cluster: dict, project: str, place: str) -> None:
    """Refuse networks that are not the project's, and subnetworks of another region."""
    region = catalog.ZONES.get(place, place)
    links = {
        "network": f"projects/{project}/global/networks/default",
        "subnetwork": f"projects/{project}/regions/{region}/subnetworks/default",
    }
    for key, link in links.items():
        if cluster.get(key, "default") not in ("default", link):
            raise bad(f'{key.capitalize()} "{cluster[key]}" does not exist.')


def check_service(what: str, name: str) -> None:
    """Refuse a service that takes no logs or metrics of clusters."""
    known = (f"{what}.googleapis.com/kubernetes", f"{what}.googleapis.com", "none", "")
    if name not in known:
        raise bad(f'Invalid {what}_service "{name}". Use one of {", ".join(known[:3])}.')


def check_endpoints(config: dict) -> None:
    """Refuse a control plane without any endpoint."""
    dns, ip = config.get("dnsEndpointConfig") or {}, config.get("ipEndpointsConfig") or {}
    if not dns.get("allowExternalTraffic") and ip.get("enabled") is False:
        raise bad("At least one of the DNS-based and the IP-based endpoints must be enabled.")


def check_cluster(cluster: dict, pools: list[dict], project: str, place: str) -> None:
    """What concerns the whole of a new cluster."""
    kept.check_cluster(cluster)
    check_networks(cluster, project, place)
    for what in ("logging", "monitoring"):
        check_service(what, cluster.get(f"{what}Service", ""))
    check_endpoints(cluster.get("controlPlaneEndpointsConfig") or {})
    check_pods(cluster.get("defaultMaxPodsConstraint") or {})
    check_labels(cluster.get("resourceLabels") or {})
    check_version("cluster.initial_cluster_version", cluster.get("initialClusterVersion", ""))
    if has_gcsfuse(cluster) and not cluster.get("workloadIdentityConfig"):
        raise bad("GcsFuseCsiDriver add-on requires Workload Identity to be enabled.")
    names = [pool.get("name") for pool in pools]
    for name in names:
        if names.count(name) > 1:
            raise bad(f'Node pool names must be unique: "{name}".')


def has_gcsfuse(cluster: dict) -> bool:
    """Whether a cluster has the driver that shows buckets as files."""
    addons = cluster.get("addonsConfig") or {}
    return bool((addons.get("gcsFuseCsiDriverConfig") or {}).get("enabled"))


def check_labels(labels: dict[str, str]) -> None:
    """Refuse labels that the machines of a cluster cannot have."""
    for key in labels:
        if key.startswith("goog-"):
            raise bad(f'Label key "{key}" is reserved: it begins with "goog-".')
    try:
        checks.check_labels(labels)
    except ApiError as error:
        raise bad(error.message) from None


def check_accelerators(rows: list[dict], kind: catalog.MachineType, zone: str) -> None:
    if len(rows) > 1:
        raise bad("Only one type of accelerator can be attached to the nodes of a pool.")
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
    fewest = scaling.get("minNodeCount", scaling.get("totalMinNodeCount", 0))
    check_count("Min node count", fewest)
    check_count("Max node count", scaling.get("maxNodeCount", 0))
    if fewest > (most or 1 << 30):
        raise bad("Min node count cannot exceed max node count.")
    if scaling.get("enabled") and pool.get("initialNodeCount", 0) > (most or 0):
        raise bad("Initial node count cannot exceed max node count.")
    flexible = is_flexible(pool)
    affinity = (config.get("reservationAffinity") or {}).get("consumeReservationType")
    repaired = (pool.get("management") or {}).get("autoRepair", True)
    fixed = not scaling.get("enabled") or pool.get("initialNodeCount") or config.get("spot")
    if flexible and (fixed or affinity != "NO_RESERVATION" or repaired):
        raise bad(
            "Flex start needs autoscaling, 0 initial nodes, no reservation, no auto-repair, and no spot."
        )


def is_flexible(pool: dict) -> bool:
    """Whether the nodes of a pool wait in Google's queue."""
    queued = (pool.get("queuedProvisioning") or {}).get("enabled")
    return bool((pool.get("config") or {}).get("flexStart") or queued)


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
    if workload_pool(cluster) and not mode_of(pool):
        config["workloadMetadataConfig"] = {"mode": "GKE_METADATA"}
    if tpus.generation_of(config["machineType"]):
        row = {"key": "google.com/tpu", "value": "present", "effect": "NO_SCHEDULE"}
        config["taints"] = [*config.get("taints", []), row]
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
