"""Google Kubernetes Engine: clusters, their pools of nodes, and operations on them.

GKE does one thing at a time to a cluster, and refuses all else meanwhile, deletion too. Pools begin
without nodes and grow when pods need them: an operation that finds no room goes on for half an
hour, and nobody can end it.

Not covered: Autopilot, regional clusters, flex-start.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from berg import BergError
from berg.config import SCOPES, Config
from berg.google import api, iam, offers
from berg.google.shapes import ALIASES, ATTACHED, Tpu, driver_version

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # of clusters and pools
PATIENCE = 3000  # seconds for an operation; a cluster takes 10 minutes, one without room 40
TELL_INTERVAL = 20  # seconds between two notes on how far it is
BUSY = "incompatible operation"
LABEL = "cloud.google.com/"
# pools that are not for jobs: Kubernetes' own, and the dataset cache's
SYSTEM, CACHE = (
    "system",
    "cache",
)
FOR_PODS = {"mode": "GKE_METADATA"}  # the metadata server that pods see: it has their own tokens
FOR_JOBS = "berg"  # key of the taint of pools for jobs without GPUs
# What Google calls the GPUs of machines whose type says them.
ACCELERATORS = {name: alias for alias, name in ALIASES.items() if alias.startswith("nvidia-")}
ACCELERATORS |= {name: accelerator for name, (accelerator, _) in ATTACHED.items()}

Say = Callable[[str], None]


class Gone(BergError):
    """A cluster that is not there any more."""


def ask(
    config: Config, method: str, path: str, body: dict[str, Any] | None = None, **query: Any
) -> dict[str, Any]:
    """One request below the project's locations; raises Denied for who may not."""
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
            f"Google does not let you look after clusters: {api.words(error)}. Somebody who may "
            "has to "
            f"give you roles/container.{role} in the project {config.project}"
        ) from None


def clusters(config: Config) -> list[dict[str, Any]]:
    """All clusters of the project, in the API's words."""
    there: list[dict[str, Any]] = ask(config, "GET", "-/clusters").get("clusters", [])
    return there


def is_ours(cluster: dict[str, Any]) -> bool:
    label: str = cluster.get("resourceLabels", {}).get("berg", "")
    return label == "1"


def where(cluster: dict[str, Any]) -> str:
    """LOCATION/NAME, by which a cluster is found again."""
    return f"{cluster['location']}/{cluster['name']}"


def get(config: Config, place: str) -> dict[str, Any]:
    """The cluster LOCATION/NAME; raises Gone."""
    location, _, name = place.partition("/")
    try:
        return ask(config, "GET", f"{location}/clusters/{name}")
    except api.NotFound:
        raise Gone(
            f"there is no cluster {name!r} in {location} any more. See: berg cluster list"
        ) from None


def find(config: Config, name: str) -> dict[str, Any]:
    """The cluster of that name that berg made, or LOCATION/NAME; raises BergError for any other."""
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
            "and delete it: gcloud "
            f"container clusters update {named[0]['name']} --location {named[0]['location']} "
            "--update-labels berg=1"
        )
    return named[0]


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise BergError(
            f"{name!r} cannot be the name of a cluster: give up to 40 lower-case letters, digits "
            "and dashes, "
            "beginning with a letter, as in: berg cluster create train"
        )
    return name


def node_config(config: Config, **more: Any) -> dict[str, Any]:
    account = {"serviceAccount": config.service_account} if config.service_account else {}
    return {
        **account,
        "oauthScopes": SCOPES,
        "labels": {"berg": "1"},
        "resourceLabels": {"berg": "1"},
        **more,
    }


def cluster_body(config: Config, name: str, user: str) -> dict[str, Any]:
    """A zonal cluster with the one small node that a cluster needs for itself."""
    network = offers.network_of(config)
    if network.project != config.project:
        raise BergError(
            "berg makes no clusters on a network of another project: GKE takes no ranges there "
            "but those that were made for it. Name a network of your own: BERG_NETWORK=NAME"
        )
    system = {
        "name": SYSTEM,
        "initialNodeCount": 1,
        "config": node_config(
            config, machineType="e2-medium", diskSizeGb=30, diskType="pd-standard"
        ),
        "management": {"autoUpgrade": True, "autoRepair": True},
    }
    has_account = "@" in config.service_account  # which is what each person's pods act as
    pods = {"workloadIdentityConfig": {"workloadPool": f"{config.project}.svc.id.goog"}}
    identity: dict[str, Any] = pods if has_account else {}
    addons = {"httpLoadBalancing": {"disabled": True}}
    if has_account:  # without an account of its own no pod could read a bucket by it
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


@dataclass(frozen=True)
class NodeShape:
    """What the nodes of a pool are."""

    machine_type: str
    gpu_type: str
    num_gpus: int
    disk_gb: int
    disk_type: str
    spot: bool = False
    tpu: Tpu | None = None
    max_hours: float = 0  # that a node with TPUs may exist

    @property
    def pool(self) -> str:
        """The name of a pool of such nodes."""
        if self.tpu:
            return self.tpu.pool(self.spot)
        what = self.machine_type
        if self.num_gpus:
            what = f"{self.gpu_type}-x{self.num_gpus}"
        return f"{what}{'-spot' if self.spot else ''}"[:40].strip("-")


def pool_body(
    config: Config, shape: NodeShape, *, min_nodes: int, max_nodes: int
) -> dict[str, Any]:
    """A pool that grows from no node to so many; Google installs the drivers of its GPUs."""
    node = node_config(
        config, machineType=shape.machine_type, diskSizeGb=shape.disk_gb, diskType=shape.disk_type
    )
    # Else the kernel ends all of a pod, worker included, when its command runs out of memory.
    kubelet: dict[str, Any] = {"singleProcessOomKill": True}
    if shape.spot:
        node["spot"] = True
        kubelet |= {"shutdownGracePeriodSeconds": 120, "shutdownGracePeriodCriticalPodsSeconds": 15}
    return {
        "name": shape.pool,
        "initialNodeCount": 0,
        "autoscaling": {
            "enabled": True,
            "minNodeCount": min_nodes,
            "maxNodeCount": max_nodes,
            "locationPolicy": "ANY",
        },
        "config": {**node, **chips_of(shape), "kubeletConfig": kubelet},
        "management": {"autoUpgrade": True, "autoRepair": True},
        **placement(shape),
    }


def chips_of(shape: NodeShape) -> dict[str, Any]:
    """Return what nodes say of their chips; without any, the taint that keeps others away."""
    if shape.tpu:
        return {"maxRunDuration": f"{round(shape.max_hours * 3600)}s"}
    if not shape.num_gpus:  # GKE taints those with chips itself; else kube-system keeps nodes up
        return {"taints": [{"key": FOR_JOBS, "value": "true", "effect": "NO_SCHEDULE"}]}
    gpus = {
        "acceleratorType": ACCELERATORS[shape.gpu_type],
        "acceleratorCount": str(shape.num_gpus),
        "gpuDriverInstallationConfig": {"gpuDriverVersion": driver_version(shape.gpu_type)},
    }
    return {"accelerators": [gpus]}


def placement(shape: NodeShape) -> dict[str, Any]:
    """Return how the nodes of a slice of TPUs lie; a single node has no such policy."""
    if shape.tpu is None or shape.tpu.hosts == 1:
        return {}
    how = {"policyName": shape.tpu.policy} if shape.tpu.policy else {"type": "COMPACT"}
    return {"placementPolicy": {**how, "tpuTopology": shape.tpu.topology}}


def change(
    config: Config,
    place: str,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    what: str,
    say: Say,
) -> None:
    """Ask for a change of the cluster LOCATION/NAME and wait until it is made; what others do to it
    comes first.

    Raises BergError with what Google says when it could not be made.
    """
    location = place.partition("/")[0]
    began = time.monotonic()
    while True:
        settle(config, place, say)
        try:
            operation = ask(config, method, path, body)
            break
        except api.NotFound:  # gone by what was settled, or by a request whose answer was lost
            if method != "DELETE":
                raise
            return
        except (
            api.Conflict
        ):  # made by a request whose answer was lost, or by somebody else just now
            settle(config, place, say)
            return
        except api.BadRequest as error:
            patience = (
                iam.SETTLING
                if iam.is_settling(config, error)
                else PATIENCE * (BUSY in error.message)
            )
            if time.monotonic() > began + patience:
                raise
            time.sleep(2)
    wait(config, location, operation, what, say)


def settle(config: Config, place: str, say: Say) -> None:
    """Wait for what goes on with the cluster LOCATION/NAME already, however it ends."""
    location, _, name = place.partition("/")
    for operation in ask(config, "GET", f"{location}/operations").get("operations", []):
        target = operation.get("targetLink", "")
        if operation["status"] != "DONE" and f"/clusters/{name}/" in f"{target}/":
            kind = operation.get("operationType", "an operation")
            try:
                wait(config, location, operation, f"{kind} of {name}, which goes on already", say)
            except api.OperationFailed as error:
                say(f"{kind} of {name} failed: {error.message}")


def wait(config: Config, location: str, operation: dict[str, Any], what: str, say: Say) -> None:
    """Wait until an operation is over; `say` hears how far it is. Raises OperationFailed with
    Google's words.
    """
    began = told = time.monotonic()
    while operation["status"] != "DONE":
        now = time.monotonic()
        if now > began + PATIENCE:
            raise BergError(
                f"{what} took more than {PATIENCE // 60} minutes. See: berg cluster list"
            )
        if now > told + TELL_INTERVAL:
            told = now
            say(f"{what}: {progress(operation)}after {now - began:.0f} s")
        time.sleep(min(0.3 + (now - began) / 30, 5))
        operation = ask(config, "GET", f"{location}/operations/{operation['name']}")
    if error := operation.get("error"):
        raise api.OperationFailed(
            str(error.get("code", "")), f"{what} failed: {error.get('message', 'no reason given')}"
        )


def progress(operation: dict[str, Any]) -> str:
    metrics = operation.get("progress", {}).get("metrics", [])
    told = {
        each.get("name", ""): each.get("intValue", each.get("stringValue", "")) for each in metrics
    }
    return "".join(f"{key.lower().replace('_', ' ')} {value}, " for key, value in told.items())


def pools(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    pools: list[dict[str, Any]] = cluster.get("nodePools", [])
    return pools


def accounts(cluster: dict[str, Any]) -> tuple[str, ...]:
    """What the nodes of a cluster for jobs act as, and with them its pods; "default" is a name."""
    for_jobs = [pool.get("config", {}) for pool in pools(cluster) if pool["name"] != CACHE]
    return tuple(sorted({config.get("serviceAccount", "default") for config in for_jobs}))


def workload_pool(cluster: dict[str, Any]) -> str:
    """The pool of a cluster's Kubernetes accounts; "" without Workload Identity."""
    found: str = cluster.get("workloadIdentityConfig", {}).get("workloadPool", "")
    return found


def has_gcsfuse(cluster: dict[str, Any]) -> bool:
    """Return whether pods of a cluster can have folders of buckets as volumes."""
    driver = cluster.get("addonsConfig", {}).get("gcsFuseCsiDriverConfig", {})
    return bool(driver.get("enabled")) and bool(workload_pool(cluster))


def without_identity(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """The pools whose nodes hand their own account on to pods."""
    modes = [each.get("config", {}).get("workloadMetadataConfig", {}) for each in pools(cluster)]
    both = zip(pools(cluster), modes, strict=True)
    return [each for each, mode in both if mode.get("mode") != FOR_PODS["mode"]]


def like_its_cluster(pool: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    """A pool to be made, whose pods see no token of their node where the cluster can do that."""
    if not workload_pool(cluster):
        return pool
    return {**pool, "config": {**pool["config"], "workloadMetadataConfig": FOR_PODS}}


def disk_of(pool: dict[str, Any]) -> tuple[str, int]:
    """Return type and GB of the disk of each of a pool's nodes, Google's defaults included."""
    node = pool.get("config", {})
    return node.get("diskType", "pd-balanced"), int(node.get("diskSizeGb", 100))


def gpus_of(pool: dict[str, Any]) -> tuple[str, int]:
    """Type and number of the GPUs of a pool's nodes; "" and 0 without any."""
    found = pool.get("config", {}).get("accelerators", [])
    if not found:
        return "", 0
    kind = found[0]["acceleratorType"]
    return ALIASES.get(kind, kind), int(found[0]["acceleratorCount"])


def most_nodes(pool: dict[str, Any]) -> int:
    scaling = pool.get("autoscaling", {})
    most = scaling.get("maxNodeCount") or scaling.get("totalMaxNodeCount") or 0
    return most if scaling.get("enabled") else pool.get("initialNodeCount", 0)
