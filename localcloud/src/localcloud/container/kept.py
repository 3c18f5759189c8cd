"""Which fields of clusters, pools and nodes something here acts on, or may be given without effect.

All others are refused: who sends one means something by it that would be lost. What turns a thing
off is as good as left out.
"""

from __future__ import annotations

from typing import Any

from localcloud.errors import ApiError

CLUSTER = {
    "name",
    "description",
    "network",
    "subnetwork",
    "locations",
    "resourceLabels",
    "nodePools",
    "nodeConfig",
    "initialNodeCount",
    "initialClusterVersion",
    "releaseChannel",
    "workloadIdentityConfig",
    "addonsConfig",
    "controlPlaneEndpointsConfig",
    "autopilot",
    "loggingConfig",
    "loggingService",
    "monitoringConfig",
    "monitoringService",
    "etag",
    "shieldedNodes",
    "defaultMaxPodsConstraint",
    "costManagementConfig",
}
# Of these, only what is named here; of enumerations, only such values.
INSIDE: dict[str, dict[str, Any]] = {
    "autoscaling": {"autoscalingProfile": None},
    "ipAllocationPolicy": {"useIpAliases": None, "stackType": ("IPV4",)},
    "networkConfig": {"defaultEnablePrivateNodes": None, "datapathProvider": ("LEGACY_DATAPATH",)},
    "privateClusterConfig": {"enablePrivateNodes": None},
    "masterAuth": {},
    "networkPolicy": {},
}
POOL = {
    "name",
    "config",
    "initialNodeCount",
    "locations",
    "version",
    "autoscaling",
    "management",
    "maxPodsConstraint",
    "placementPolicy",
    "upgradeSettings",
    "queuedProvisioning",
    "etag",
}
NODE = {
    "machineType",
    "diskSizeGb",
    "diskType",
    "imageType",
    "oauthScopes",
    "serviceAccount",
    "metadata",
    "labels",
    "resourceLabels",
    "tags",
    "taints",
    "accelerators",
    "spot",
    "preemptible",
    "flexStart",
    "maxRunDuration",
    "reservationAffinity",
    "kubeletConfig",
    "workloadMetadataConfig",
    "shieldedInstanceConfig",
    "loggingConfig",
    "gcfsConfig",
    "gvnic",
    "fastSocket",
}
KUBELET = {
    "singleProcessOomKill",
    "shutdownGracePeriodSeconds",
    "shutdownGracePeriodCriticalPodsSeconds",
}
ACCELERATOR = {"acceleratorType", "acceleratorCount", "gpuDriverInstallationConfig"}


def is_on(value: Any) -> bool:
    """Whether a value says anything: all that is empty, 0 or false within it does not."""
    if isinstance(value, dict):
        return any(map(is_on, value.values()))
    return bool(value)


def check_fields(what: str, body: dict, kept: set[str]) -> None:
    """Refuse what a body says beyond the fields that are kept."""
    lost = sorted(key for key in body.keys() - kept if is_on(body[key]))
    if lost:
        raise ApiError(501, "notImplemented", f"The embedded cloud's {what} have no {lost[0]}")


def check_cluster(cluster: dict) -> None:
    check_fields("clusters", cluster, CLUSTER | INSIDE.keys())
    for name, inner in INSIDE.items():
        given = cluster.get(name) or {}
        check_fields(
            "clusters", {f"{name}.{key}": given[key] for key in given.keys() - inner}, set()
        )
        for key, values in inner.items():
            if values and given.get(key, values[0]) not in values:
                message = f"The embedded cloud's clusters have no {name}.{key} {given[key]}"
                raise ApiError(501, "notImplemented", message)


def check_pool(pool: dict) -> None:
    check_fields("node pools", pool, POOL | {"networkConfig"})
    check_fields("node pools", pool.get("networkConfig") or {}, {"enablePrivateNodes"})
    config = pool.get("config") or {}
    check_fields("nodes", config, NODE)
    check_fields("nodes", config.get("kubeletConfig") or {}, KUBELET)
    for row in config.get("accelerators") or []:
        check_fields("accelerators", row, ACCELERATOR)
    affinity = config.get("reservationAffinity") or {}
    if affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION" or affinity.get("values"):
        message = "The embedded cloud's nodes have no reservation of their own"
        raise ApiError(501, "notImplemented", message)
    if (pool.get("upgradeSettings") or {}).get("strategy", "SURGE") != "SURGE":
        message = "The embedded cloud's node pools have no upgradeSettings.strategy but SURGE"
        raise ApiError(501, "notImplemented", message)
    policy = pool.get("placementPolicy") or {}
    if is_on(policy) and not policy.get("tpuTopology"):
        message = "The embedded cloud's node pools have no placementPolicy but that of TPUs"
        raise ApiError(501, "notImplemented", message)
