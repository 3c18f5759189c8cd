"""Clusters: made, grown, looked at, deleted; where one is, in the words of kubectl.

A cluster has a pool of one small node for what Kubernetes needs itself, and pools for jobs that
have no node while no job needs one. Google makes one thing at a time, so that a cluster is complete
after some ten minutes. What was begun and not finished goes on with the same command.

Not covered: a cluster's upgrades (Google does them), networks of its own, pods that are none of
berg's jobs.
"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import accelerators, api, container, grants, offers
from berg.google import kubernetes as k8s
from berg.places import gke, podstatus

# Google's fee of $0.10 (an account's first zonal cluster is free of it) and the e2-medium;
# us-central1, 2026-11.
IDLE_PRICE = "about $0.13 an hour"
DISK_TYPES = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")
NODE_ROLE = "roles/container.defaultNodeServiceAccount"
EXEC_API = "client.authentication.k8s.io/v1beta1"

Say = Callable[[str], None]


@dataclass
class Wanted:
    """What nodes for jobs are to be; None: as usual."""

    num_nodes: int = 2  # at most, where max_nodes does not say it
    min_nodes: int = 0
    max_nodes: int | None = None
    machine_type: str | None = None
    gpu_type: str | None = None
    num_gpus: int | None = None
    disk_gb: int = 100
    disk_type: str | None = None
    zone: str | None = None
    spot: bool = False

    @property
    def most(self) -> int:
        return self.num_nodes if self.max_nodes is None else self.max_nodes

    @property
    def options(self) -> str:
        """What differs from the usual, as one types it."""
        words = []
        for each in fields(self):
            if (value := getattr(self, each.name)) != each.default:
                short = {"gpu_type": "-t", "num_gpus": "-g"}.get(each.name)
                words += [
                    short or f"--{each.name.replace('_', '-')}",
                    *([] if value is True else [str(value)]),
                ]
        return "".join(f" {shlex.quote(word)}" for word in words)

    def check(self) -> None:
        """Raise BergError for what no cluster can be."""
        if not 1 <= self.most <= 1000:
            option = "--num-nodes" if self.max_nodes is None else "--max-nodes"
            raise BergError(f"{option} {self.most} is not possible: give 1 to 1000")
        if not 0 <= self.min_nodes <= self.most:
            raise BergError(
                f"--min-nodes {self.min_nodes} is not possible: give 0 to {self.most}, the most there are"
            )
        if not 30 <= self.disk_gb <= 65536:
            raise BergError(
                f"--disk-gb {self.disk_gb} is not possible: a node's disk has 30 to 65536 GB"
            )
        if self.disk_type is not None and self.disk_type not in DISK_TYPES:
            raise BergError(f"--disk-type {self.disk_type}: there are {', '.join(DISK_TYPES)}")


def create(config: Config, name: str, wanted: Wanted, say: Say) -> str:
    """Make a cluster with a pool of nodes as wanted, or what is missing of it; returns
    LOCATION/NAME.

    If that fails or is interrupted, what there is then is named.
    """
    container.check_name(name)
    wanted.check()
    shape = accelerators.choose(wanted.num_gpus, wanted.gpu_type, None, wanted.machine_type)
    accelerators.check(shape, "", wanted.spot)
    there = [each for each in container.clusters(config) if each["name"] == name]
    if there:
        container.find(config, name)  # or it is not berg's
        location = there[0]["location"]
        if wanted.zone not in (None, location):
            raise BergError(
                f"the cluster {name} is in {location}, not in {wanted.zone}: leave out --zone"
            )
        if there[0].get("status") == "ERROR":
            why = problems(there[0])
            raise BergError(
                f"Google could not make the cluster {name}: {why}. {way_out(name, why)}"
            )
        if config.no_external_ip and not there[0].get("networkConfig", {}).get(
            "defaultEnablePrivateNodes"
        ):
            say(
                f"The nodes of {name} have external addresses: no_external_ip counts when a cluster is made"
            )
    else:
        zones = [wanted.zone] if wanted.zone else config.zones
        location = offers.zones_with(config, shape, zones, False)[0]
    pool = container.pool_body(
        config,
        machine_type=shape.machine_type,
        gpu_type=shape.gpu_type,
        num_gpus=shape.num_gpus,
        disk_gb=wanted.disk_gb,
        disk_type=wanted.disk_type or shape.disk_type,
        spot=wanted.spot,
        min_nodes=wanted.min_nodes,
        max_nodes=wanted.most,
    )
    place = f"{location}/{name}"
    try:
        if not there:
            admit_nodes(config, say)
            say(
                f"Making the cluster {name} in {location}: some five minutes, and {IDLE_PRICE} from now on"
            )
            body = {"cluster": container.cluster_body(config, name, config.user)}
            container.change(
                config, place, "POST", f"{location}/clusters", body, f"the cluster {name}", say
            )
        container.settle(config, place, say)
        found = container.get(config, place)
        made = next((each for each in container.pools(found) if each["name"] == pool["name"]), None)
        if made is None:
            say(
                f"Making the pool {pool['name']}: 0 to {wanted.most} nodes, {shape}{', spot' * wanted.spot}"
            )
            path = f"{location}/clusters/{name}/nodePools"
            container.change(
                config, place, "POST", path, {"nodePool": pool}, f"the pool {pool['name']}", say
            )
        elif nodes_of(made) != nodes_of(pool):
            say(
                f"The pool {pool['name']} is there already, with {nodes_of(made)}, and stays as it is. Its limits: "
                f"berg cluster resize {name} --pool {pool['name']} --max-nodes {wanted.most}"
            )
        gke.ensure(config, k8s.server_of(config, container.get(config, place)))
    except BaseException as error:
        say(
            f"\nThe cluster {name} in {location} is not complete, and what there is of it may cost {IDLE_PRICE}."
        )
        say(
            f"Go on:      berg cluster create {name}{wanted.options}\nDelete it:  berg cluster delete {name}"
        )
        if isinstance(error, api.OperationFailed):
            refused = api.EXTERNAL in error.message
            raise BergError(error.message + f" {way_out(name, error.message)}" * refused) from None
        raise
    return place


def nodes_of(pool: dict[str, Any]) -> str:
    """How many nodes a pool may have and what they are, in words."""
    node, now = pool["config"], pool_status(pool)
    disk = f"{node.get('diskSizeGb')} GB of {node.get('diskType')}"
    return f"{now['min_nodes']} to {now['max_nodes']} nodes of {now['machine_type']} with {disk}"


def way_out(name: str, why: str) -> str:
    """The next step for a cluster that Google could not make."""
    inside = (
        ", berg config set no_external_ip true, and make it again" if api.EXTERNAL in why else ""
    )
    return f"berg cluster delete {name}{inside}"


def admit_nodes(config: Config, say: Say) -> None:
    """Let the nodes' account do what nodes need; who may not give it that is told who else does
    what.
    """
    from google.api_core import exceptions

    if not config.service_account:
        return
    member = f"serviceAccount:{config.service_account}"
    try:
        grants.bind(config, grants.project_policy, NODE_ROLE, member)
    except exceptions.GoogleAPICallError as error:
        say(
            f"The nodes may lack rights to write logs ({api.words(error)}). Somebody who may should run:"
        )
        say(
            f"  gcloud projects add-iam-policy-binding {config.project} --member {member} --role {NODE_ROLE}"
        )


def problems(cluster: dict[str, Any]) -> str:
    """What Google says is wrong with a cluster or a pool, in words."""
    conditions = cluster.get("conditions", [])
    said = [
        f"{each.get('canonicalCode') or each.get('code', '')}: {each.get('message', '')}"
        for each in conditions
    ]
    return "; ".join(said) or cluster.get("statusMessage", "")


def delete(config: Config, name: str, say: Say) -> None:
    """Delete a cluster with all that is in it, and wait until it is gone."""
    found = container.find(config, name)
    place = container.where(found)
    path = f"{found['location']}/clusters/{found['name']}"
    container.change(config, place, "DELETE", path, None, f"deleting {name}", say)
    file = k8s.ca_file(config, place)
    file.unlink(missing_ok=True)


def resize(
    config: Config,
    name: str,
    pool: str | None,
    low: int | None,
    most: int | None,
    now: int | None,
    say: Say,
):
    """Change how many nodes a pool has at least and at most, or has now; returns the pool's name."""
    found = container.find(config, name)
    ours = (container.SYSTEM, container.CACHE)
    pools = [
        each
        for each in container.pools(found)
        if each["name"] == pool or (not pool and each["name"] not in ours)
    ]
    if len(pools) != 1:
        names = ", ".join(each["name"] for each in container.pools(found))
        what = (
            f"no pool {pool!r}"
            if pool
            else "no pool for jobs"
            if not pools
            else "several pools for jobs"
        )
        raise BergError(
            f"the cluster {name} has {what}; its pools are {names}. Name one: --pool NAME"
        )
    chosen = pools[0]
    scaling = chosen.get("autoscaling", {})
    path = f"{found['location']}/clusters/{found['name']}/nodePools/{chosen['name']}"
    place = container.where(found)
    if low is not None or most is not None:
        limits = {"minNodeCount": scaling.get("minNodeCount", 0) if low is None else low}
        limits["maxNodeCount"] = container.most_nodes(chosen) if most is None else most
        if (
            not 0 <= limits["minNodeCount"] <= limits["maxNodeCount"]
            or not 1 <= limits["maxNodeCount"] <= 1000
        ):
            raise BergError(
                f"a pool cannot have {limits['minNodeCount']} to {limits['maxNodeCount']} nodes"
            )
        body = {"autoscaling": {"enabled": True, "locationPolicy": "ANY", **limits}}
        container.change(
            config,
            place,
            "POST",
            f"{path}:setAutoscaling",
            body,
            f"the limits of {chosen['name']}",
            say,
        )
    if now is not None:
        container.change(
            config,
            place,
            "POST",
            f"{path}:setSize",
            {"nodeCount": now},
            f"the size of {chosen['name']}",
            say,
        )
    return chosen["name"]


# --- what there is


@dataclass
class Status:
    """A cluster, its nodes, and the pods of berg's jobs in it."""

    name: str
    location: str
    state: str
    problems: str
    pools: list[dict[str, Any]]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""  # why nodes and pods are not known

    @property
    def idle(self) -> bool:
        return not self.trouble and not self.pods


def status(config: Config, cluster: dict[str, Any]) -> Status:
    """A cluster as it is now."""
    pools = [pool_status(each) for each in container.pools(cluster)]
    state = cluster.get("status", "UNKNOWN")
    found = Status(cluster["name"], cluster["location"], state, problems(cluster), pools)
    try:
        server = k8s.server_of(config, cluster)
        nodes = k8s.items(config, server, "/api/v1/nodes", patience=gke.LISTING)
        pods = k8s.items(
            config, server, f"{k8s.CORE}/pods", labelSelector="berg=1", patience=gke.LISTING
        )
        alive = [each for each in pods if each["status"].get("phase") in ("Pending", "Running")]
        waits = any(each["status"]["phase"] == "Pending" for each in alive)
        events = (
            k8s.items(config, server, f"{k8s.CORE}/events", patience=gke.LISTING) if waits else []
        )
    except BergError as error:
        found.trouble = error.message
        return found
    used: dict[str, int] = {}
    for pod in alive:
        machine = podstatus.machine_of(pod, container.where(cluster), events)
        count = int(machine.gpus.partition(" ")[0] or 0)
        node = pod["spec"].get("nodeName", "")
        used[node] = used.get(node, 0) + count
        owner = machine.labels.get("berg-job") or machine.labels.get("berg-sweep", "")
        row = {
            "pod": machine.pod,
            "name": machine.name,
            "job": owner,
            "status": machine.status,
            "node": node,
        }
        found.pods.append(
            {
                **row,
                "gpus": count,
                "note": machine.note,
                "user": machine.labels.get("berg-user", ""),
            }
        )
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        gpus = int(node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", 0))
        kinds = {
            each["type"]: each["status"] for each in node.get("status", {}).get("conditions", [])
        }
        ready = kinds.get("Ready") == "True"
        pool = labels.get(f"{container.LABEL}gke-nodepool", "")
        asked = f"{container.LABEL}gke-accelerator" in labels
        about = {
            "node": name,
            "pool": pool,
            "ready": ready,
            "gpus": gpus,
            "used": used.get(name, 0),
        }
        found.nodes.append(
            {**about, "drivers": "coming" if asked and not gpus else "ready" if asked else ""}
        )
    return found


def pool_status(pool: dict[str, Any]) -> dict[str, Any]:
    kind, count = container.gpus_of(pool)
    node, scaling = pool.get("config", {}), pool.get("autoscaling", {})
    accelerators_ = node.get("accelerators", [{}])
    driver = (
        accelerators_[0].get("gpuDriverInstallationConfig", {}).get("gpuDriverVersion", "")
        if count
        else ""
    )
    return {
        "pool": pool["name"],
        "machine_type": node.get("machineType", ""),
        "gpus": f"{count} x {kind}" if count else "",
        "spot": bool(node.get("spot")),
        "min_nodes": scaling.get("minNodeCount", 0)
        if scaling.get("enabled")
        else pool.get("initialNodeCount", 0),
        "max_nodes": container.most_nodes(pool),
        "status": pool.get("status", ""),
        "drivers": driver,
        "problems": problems(pool),
    }


def idle(config: Config) -> list[str]:
    """A sentence for each of berg's clusters in which no pod of a job is; none for who may not
    look.
    """
    ours = set(gke.places(config))
    with ThreadPoolExecutor(8) as pool:
        looks = pool.map(lambda each: status(config, container.get(config, each)), sorted(ours))
        return [
            f"the cluster {each.name} in {each.location} is idle, and costs {IDLE_PRICE}{with_nodes(each)}. "
            f"Delete it: berg cluster delete {each.name}"
            for each in looks
            if each.idle
        ]


def with_nodes(found: Status) -> str:
    """What an idle cluster costs beside its price: nodes for jobs that are there without one."""
    count = sum(each["pool"] not in (container.SYSTEM, container.CACHE) for each in found.nodes)
    nodes = f", and {count} nodes for jobs as long as they are there" if count else ""
    return nodes + ", and its dataset cache" * any(
        each["pool"] == container.CACHE for each in found.pools
    )


# --- kubectl


def context(config: Config, place: str) -> str:
    """The name that gcloud gives a cluster."""
    return f"gke_{config.project}_{place.replace('/', '_')}"


def credentials(config: Config, name: str) -> str:
    """Let kubectl know a cluster, beside those that it knows; returns the name of the context.

    kubectl itself writes its file, and one that it cannot read stays as it is.
    """
    cluster = container.find(config, name)
    server, there = k8s.server_of(config, cluster), context(config, container.where(cluster))
    program = [sys.executable, "-m", "berg", "cluster", "token"]
    if berg := shutil.which("berg"):
        program = [berg, "cluster", "token"]
    arguments = [word for argument in program[1:] for word in (f"--exec-arg={argument}",)]
    authority = [f"--certificate-authority={server.ca}", "--embed-certs=true"] if server.ca else []
    user = [
        "set-credentials",
        there,
        f"--exec-command={program[0]}",
        f"--exec-api-version={EXEC_API}",
        *arguments,
    ]
    # One that is broken is found before anything is written. Of what gcloud wrote, the authority
    # would stay.
    if there in kubectl(["config", "get-clusters"]).split():
        kubectl(["config", "delete-cluster", there])
    for words in (["set-cluster", there, f"--server={server.url}", *authority], user):
        kubectl(["config", *words])
    kubectl(["config", "set-context", there, f"--cluster={there}", f"--user={there}"])
    kubectl(["config", "use-context", there])
    return there


def kubectl(words: list[str]) -> str:
    program = shutil.which("kubectl")
    if not program:
        raise BergError(
            "kubectl is not installed: gcloud components install kubectl (Debian: kubernetes-client)"
        )
    done = subprocess.run(
        [program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise BergError(
            f"kubectl {words[0]} {words[1]} failed, and wrote nothing: {done.stderr.strip()}"
        )
    return done.stdout


def token(config: Config) -> str:
    """Who runs berg, as kubectl takes it from a program."""
    found = config.credentials
    status = {"token": found.token}
    if expiry := getattr(found, "expiry", None):
        status["expirationTimestamp"] = f"{expiry.isoformat(timespec='seconds')}Z"
    return json.dumps({"apiVersion": EXEC_API, "kind": "ExecCredential", "status": status})
