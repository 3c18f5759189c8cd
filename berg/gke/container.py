"""Google Kubernetes Engine: clusters, their pools of nodes, and operations on them.

GKE does one thing at a time to a cluster, and refuses everything else meanwhile, deletion too.
Pools start without nodes and grow when pods need them: an operation that finds no room takes half
an hour, and nothing can cancel it. Not covered: Autopilot, regional clusters, flex-start.
"""

import re
import time
from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import SCOPES, Config
from berg.google import api, iam, offers
from berg.google.shapes import ALIASES, ATTACHED, Shape, driver_version

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # of clusters and pools
TIMEOUT = 3000  # seconds for an operation; a cluster takes 10 minutes, one without room 40
LABEL = "cloud.google.com/"
SYSTEM, CACHE = "system", "cache"  # pools that are not for jobs
FOR_PODS = {"mode": "GKE_METADATA"}  # the metadata server that pods see: it has their own tokens
FOR_JOBS = "berg"  # key of the taint of pools for jobs without GPUs
MANAGED = {"autoUpgrade": True, "autoRepair": True}
# Google's names of the GPUs of machines whose type includes them.
ACCELERATORS = {name: alias for alias, name in ALIASES.items() if alias.startswith("nvidia-")}
ACCELERATORS |= {name: accelerator for name, (accelerator, _) in ATTACHED.items()}

Say = Callable[[str], None]


class Gone(BergError):
    """A cluster that no longer exists."""


def ask(
    config: Config, method: str, path: str, body: dict[str, Any] | None = None, **query: Any
) -> dict[str, Any]:
    """Send a request below the project's locations; raise Denied where rights are missing."""
    base = f"{config.service_url('container')}/v1/projects/{config.project}/locations"
    try:
        return api.call(config, method, f"{base}/{path}", body, **query)
    except api.Forbidden as error:
        if api.is_off(error):
            raise
        if api.lacks_quota_project(error):
            raise api.Denied(api.name_quota_project(config)) from None
        role = "developer" if method == "GET" else "admin"
        raise api.Denied(
            f"Google does not let you manage clusters: {api.words(error)}. An administrator of "
            f"the project {config.project} can give you roles/container.{role}"
        ) from None


def clusters(config: Config) -> list[dict[str, Any]]:
    """Return all clusters of the project, in the API's words."""
    return list(ask(config, "GET", "-/clusters").get("clusters", []))


def seen(config: Config) -> list[dict[str, Any]]:
    """Return all clusters of the project; [] without permission, or with the API off."""
    try:
        return clusters(config)
    except (api.Denied, api.Forbidden, api.NotFound):
        return []


def running(clusters: list[dict[str, Any]]) -> list[str]:
    """Return LOCATION/NAME of those clusters that are berg's and have an API."""
    states = ("RUNNING", "RECONCILING", "DEGRADED", "RUNNING_WITH_ERROR")
    return [where(each) for each in clusters if is_ours(each) and each.get("status") in states]


def is_ours(cluster: dict[str, Any]) -> bool:
    return bool(cluster.get("resourceLabels", {}).get("berg", "") == "1")


def where(cluster: dict[str, Any]) -> str:
    """Return LOCATION/NAME, which names a cluster in the project."""
    return f"{cluster['location']}/{cluster['name']}"


def path_of(cluster: dict[str, Any], pool: str = "") -> str:
    """Return the path for `ask` of a cluster, or of one of its pools."""
    path = f"{cluster['location']}/clusters/{cluster['name']}"
    return f"{path}/nodePools/{pool}" if pool else path


def get(config: Config, place: str) -> dict[str, Any]:
    """Return the cluster LOCATION/NAME; raise Gone."""
    location, _, name = place.partition("/")
    try:
        return ask(config, "GET", f"{location}/clusters/{name}")
    except api.NotFound:
        raise Gone(
            f"there is no cluster {name!r} in {location} any more. See: berg cluster list"
        ) from None


def find(config: Config, name: str) -> dict[str, Any]:
    """Return berg's cluster NAME or LOCATION/NAME; raise BergError for any other."""
    named = [each for each in clusters(config) if name in (each["name"], where(each))]
    if not named:
        location, _, own = name.rpartition("/")
        there = f" --zone {location}" if location else ""
        raise BergError(
            f"there is no cluster {name!r} in project {config.project}. Make it: berg cluster "
            f"create {own}{there}; or see what there is: berg cluster list"
        )
    if len(named) > 1:
        names = ", ".join(sorted(map(where, named)))
        raise BergError(f"there are several clusters {name!r}; give the location as well: {names}")
    if not is_ours(named[0]):
        raise BergError(
            f"the cluster {name} is not berg's: it has no label berg=1. If berg may use, resize "
            f"and delete it: gcloud container clusters update {named[0]['name']} --location "
            f"{named[0]['location']} --update-labels berg=1"
        )
    return named[0]


def node_config(config: Config, **more: Any) -> dict[str, Any]:
    account = {"serviceAccount": config.service_account} if config.service_account else {}
    labels = {"labels": {"berg": "1"}, "resourceLabels": {"berg": "1"}}
    return {**account, "oauthScopes": SCOPES, **labels, **more}


def cluster_body(config: Config, name: str, user: str) -> dict[str, Any]:
    """Return a zonal cluster with the one small node that a cluster needs for itself."""
    network = offers.network_of(config)
    if network.project != config.project:
        raise BergError(
            "berg makes no clusters on a network of another project, where GKE needs ranges that "
            "an administrator prepared. Name a network of your own: BERG_NETWORK=NAME"
        )
    small = {"machineType": "e2-medium", "diskSizeGb": 30, "diskType": "pd-standard"}
    system = {
        "name": SYSTEM,
        "initialNodeCount": 1,
        "config": node_config(config, **small),
        "management": MANAGED,
    }
    identity: dict[str, Any] = {}
    addons = {"httpLoadBalancing": {"disabled": True}}
    if "@" in config.service_account:  # without an account no pod could read a bucket as its user
        pool = f"{config.project}.svc.id.goog"
        identity = {"workloadIdentityConfig": {"workloadPool": pool}}
        addons["gcsFuseCsiDriverConfig"] = {"enabled": True}
    return {
        "name": name,
        "network": network.name,
        **({"subnetwork": api.last_part(config.subnetwork)} if config.subnetwork else {}),
        **identity,
        "releaseChannel": {"channel": "REGULAR"},
        "ipAllocationPolicy": {"useIpAliases": True},
        "resourceLabels": {"berg": "1", "berg-user": user},
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}},
        "addonsConfig": addons,
        "autoscaling": {"autoscalingProfile": "OPTIMIZE_UTILIZATION"},
        "nodePools": [like_its_cluster(system, identity)],
        **({"networkConfig": {"defaultEnablePrivateNodes": True}} if config.no_external_ip else {}),
    }


def scaling(low: int, most: int) -> dict[str, Any]:
    """Return the autoscaling of a pool."""
    counts = {"minNodeCount": low, "maxNodeCount": most}
    return {"enabled": True, "locationPolicy": "ANY", **counts}


# --- operations


def change(
    config: Config,
    place: str,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    what: str,
    say: Say,
) -> None:
    """Change the cluster LOCATION/NAME, after the operations on it that are running, and wait.

    Raise BergError with Google's message if the change fails.
    """
    began = time.monotonic()
    while True:
        settle(config, place, say)
        try:
            operation = ask(config, method, path, body)
            break
        except api.NotFound:  # deleted meanwhile, or by a request whose answer was lost
            if method != "DELETE":
                raise
            return
        except api.Conflict:  # created by a request whose answer was lost, or by another user
            settle(config, place, say)
            return
        except api.BadRequest as error:
            limit = TIMEOUT if "incompatible operation" in error.message else 0
            limit = iam.SETTLING if iam.is_settling(config, error) else limit
            if time.monotonic() > began + limit:
                raise
            time.sleep(2)
    wait(config, place.partition("/")[0], operation, what, say)


def settle(config: Config, place: str, say: Say) -> None:
    """Wait for running operations on the cluster LOCATION/NAME, whether they succeed or not."""
    location, _, name = place.partition("/")
    for operation in ask(config, "GET", f"{location}/operations").get("operations", []):
        target = operation.get("targetLink", "")
        if operation["status"] != "DONE" and f"/clusters/{name}/" in f"{target}/":
            kind = operation.get("operationType", "an operation")
            try:
                wait(config, location, operation, f"{kind} of {name}, which was running", say)
            except api.OperationFailed as error:
                say(f"{kind} of {name} failed: {error.message}")


def wait(config: Config, location: str, operation: dict[str, Any], what: str, say: Say) -> None:
    """Wait for an operation and report its progress; raise OperationFailed with its error."""
    began = reported = time.monotonic()
    while operation["status"] != "DONE":
        now = time.monotonic()
        if now > began + TIMEOUT:
            raise BergError(
                f"{what} took more than {TIMEOUT // 60} minutes. See: berg cluster list"
            )
        if now > reported + 20:  # seconds between two lines
            reported = now
            progress = ""
            for each in operation.get("progress", {}).get("metrics", []):
                name = each.get("name", "").lower().replace("_", " ")
                progress += f"{name} {each.get('intValue', each.get('stringValue', ''))}, "
            say(f"{what}: {progress}after {now - began:.0f} s")
        time.sleep(min(0.3 + (now - began) / 30, 5))
        operation = ask(config, "GET", f"{location}/operations/{operation['name']}")
    if error := operation.get("error"):
        message = f"{what} failed: {error.get('message', 'no reason given')}"
        raise api.OperationFailed(str(error.get("code", "")), message)


# --- what a cluster has


def pools(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return list(cluster.get("nodePools", []))


def pool_of(cluster: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the pool of that name; None if there is none."""
    return next((each for each in pools(cluster) if each["name"] == name), None)


def accounts(cluster: dict[str, Any]) -> tuple[str, ...]:
    """Return the accounts of the nodes for jobs, and so of their pods; "default" is a name."""
    for_jobs = [pool.get("config", {}) for pool in pools(cluster) if pool["name"] != CACHE]
    return tuple(sorted({config.get("serviceAccount", "default") for config in for_jobs}))


def workload_pool(cluster: dict[str, Any]) -> str:
    """Return the pool of a cluster's Kubernetes accounts; "" without Workload Identity."""
    return str(cluster.get("workloadIdentityConfig", {}).get("workloadPool", ""))


def without_identity(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pools whose nodes pass their own account on to pods."""

    def mode(pool: dict[str, Any]) -> Any:
        return pool.get("config", {}).get("workloadMetadataConfig", {}).get("mode")

    return [each for each in pools(cluster) if mode(each) != FOR_PODS["mode"]]


def like_its_cluster(pool: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    """Return a new pool whose pods see no token of their node if the cluster can do that."""
    if not workload_pool(cluster):
        return pool
    return {**pool, "config": {**pool["config"], "workloadMetadataConfig": FOR_PODS}}


def disk_of(pool: dict[str, Any]) -> tuple[str, int]:
    """Return type and GB of the disk of each of a pool's nodes, with Google's defaults."""
    node = pool.get("config", {})
    return node.get("diskType", "pd-balanced"), int(node.get("diskSizeGb", 100))


def gpus_for(shape: Shape) -> dict[str, Any]:
    """Return the GPUs of the nodes of a pool to be made."""
    return {
        "acceleratorType": ACCELERATORS[shape.gpu_type],
        "acceleratorCount": str(shape.num_gpus),
        "gpuDriverInstallationConfig": {"gpuDriverVersion": driver_version(shape.gpu_type)},
    }


def gpus_of(pool: dict[str, Any]) -> tuple[str, int]:
    """Return type and number of the GPUs of a pool's nodes; "" and 0 without any."""
    found = pool.get("config", {}).get("accelerators", [])
    if not found:
        return "", 0
    kind = found[0]["acceleratorType"]
    return ALIASES.get(kind, kind), int(found[0]["acceleratorCount"])


def max_seconds(pool: dict[str, Any]) -> int:
    """Return how long a node of a pool may exist; 0: without a limit."""
    return int(pool["config"].get("maxRunDuration", "0s").rstrip("s"))


def most_nodes(pool: dict[str, Any]) -> int:
    autoscaling = pool.get("autoscaling", {})
    if autoscaling.get("enabled"):
        return int(autoscaling.get("maxNodeCount") or autoscaling.get("totalMaxNodeCount") or 0)
    return int(pool.get("initialNodeCount", 0))
