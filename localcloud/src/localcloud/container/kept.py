"""Which fields of clusters, pools and nodes something here acts on, or may be given without effect.

All others are refused: who sends one means something by it that would be lost. What turns a thing
off is as good as left out.
"""

from typing import Any

from localcloud.errors import unserved

# Kind -> its fields, and of what is in them the fields that are kept; None: all.
NODE: dict[str, Any] = dict.fromkeys(
    (
        "machineType",
        "diskSizeGb",
        "diskType",
        "oauthScopes",
        "serviceAccount",
        "labels",
        "resourceLabels",
        "taints",
        "spot",
    )
)
NODE["kubeletConfig"] = dict.fromkeys(
    (
        "singleProcessOomKill",
        "shutdownGracePeriodSeconds",
        "shutdownGracePeriodCriticalPodsSeconds",
    )
)
NODE["accelerators"] = dict.fromkeys(
    ("acceleratorType", "acceleratorCount", "gpuDriverInstallationConfig")
)
SCALING = dict.fromkeys(("enabled", "locationPolicy", "minNodeCount", "maxNodeCount"))
POOL = {
    "name": None,
    "initialNodeCount": None,
    "management": None,
    "config": NODE,
    "autoscaling": SCALING,
}
CLUSTER = {
    "name": None,
    "network": None,
    "releaseChannel": None,
    "resourceLabels": None,
    "controlPlaneEndpointsConfig": {"dnsEndpointConfig": None},
    "addonsConfig": None,
    "autoscaling": {"autoscalingProfile": None},
    "ipAllocationPolicy": {"useIpAliases": None},
    "nodePools": POOL,
}


def is_on(value: Any) -> bool:
    """Whether a value says anything: all that is empty, 0 or false within it does not."""
    if isinstance(value, dict):
        return any(map(is_on, value.values()))
    return bool(value)


def check(what: str, body: dict, kept: dict) -> None:
    """Refuse what a body says beyond the fields that are kept."""
    for key, value in body.items():
        unserved(key not in kept and is_on(value), f"{what} with {key}")
        if kept.get(key):
            for row in value if isinstance(value, list) else [value]:
                check(f"{what}.{key}", row, kept[key])
