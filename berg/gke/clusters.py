"""Clusters: made, grown, looked at, deleted; where one is, in the words of kubectl.

A cluster has a pool of one small node for what Kubernetes needs itself, and pools for jobs that
have no node while no job needs one. Google makes one thing at a time, so that a cluster is complete
after some ten minutes. What was begun and not finished goes on with the same command.

Not covered: a cluster's upgrades (Google does them), networks of its own, pods that are none of
berg's jobs.

A cluster as a file, which can be kept beside the code and made again: cluster.toml.

    name = "train"
    zone = "us-central1-a"

    [[pools]]
    gpu-type = "t4"
    num-gpus = 2
    max-nodes = 4

A pool's keys are the options of `berg cluster create`. Not covered: Kubernetes' own pool and that
of the dataset cache, which berg makes as they are; changes of a pool that is there.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import typing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from berg import BergError, computer, gate
from berg.config import Config
from berg.gke import client as k8s
from berg.gke import container, podaccount, podstatus
from berg.gke import place as gke
from berg.google import api, iam, offers, prices, shapes
from berg.job import Machine

# Google's fee of $0.10 (an account's first zonal cluster is free of it) and the e2-medium;
# us-central1, 2026-11.
IDLE_PRICE = "about $0.13 an hour"

MOST_NODE_HOURS = 2880  # 120 days, the most that Google takes

DISK_TYPES = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")

NODE_ROLE = "roles/container.defaultNodeServiceAccount"

POOLS_NOT_FOR_JOBS = (container.SYSTEM, container.CACHE)

AI_ZONE = re.compile(r"-ai\d+[a-z]$")  # such as us-central1-ai1a

EXEC_API = "client.authentication.k8s.io/v1beta1"

Say = Callable[[str], None]


@dataclass
class Wanted:
    """What nodes for jobs are to be; None: as usual."""

    num_nodes: int = 2  # at most, where max_nodes does not say it
    min_nodes: int = 0
    max_nodes: int | None = None
    machine_type: str | None = None
    tpu: str | None = None
    max_hours: float = 336  # of a node with TPUs
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
    def slice(self) -> shapes.Tpu | None:
        """The TPUs that are wanted; raise BergError where no node has such ones."""
        return shapes.parse_tpu(self.tpu, in_cluster=True) if self.tpu else None

    @property
    def options(self) -> str:
        """What differs from the usual, as one types it."""
        short = {"gpu_type": "-t", "num_gpus": "-g"}
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value == each.default:
                continue
            words.append(short.get(each.name) or f"--{each.name.replace('_', '-')}")
            if value is not True:
                words.append(str(value))
        return "".join(f" {shlex.quote(word)}" for word in words)

    def check(self) -> None:
        """Raise BergError for what no cluster can be."""
        if not 1 <= self.most <= 1000:
            option = "--num-nodes" if self.max_nodes is None else "--max-nodes"
            raise BergError(f"{option} {self.most} is not possible: give 1 to 1000")
        if not 0 <= self.min_nodes <= self.most:
            raise BergError(
                f"--min-nodes {self.min_nodes} is not possible: give 0 to {self.most}, "
                "the most there are"
            )
        if not 30 <= self.disk_gb <= 65536:
            raise BergError(
                f"--disk-gb {self.disk_gb} is not possible: a node's disk has 30 to 65536 GB"
            )
        if self.disk_type is not None and self.disk_type not in DISK_TYPES:
            raise BergError(f"--disk-type {self.disk_type}: there are {', '.join(DISK_TYPES)}")
        self.check_tpu()

    def check_tpu(self) -> None:
        """Raise BergError for options that say otherwise what --tpu says."""
        if self.tpu is None:
            return
        said = {"--machine-type": self.machine_type, "-t": self.gpu_type, "-g": self.num_gpus}
        if given := [option for option, value in said.items() if value is not None]:
            raise BergError(f"--tpu says what the nodes are: leave out {', '.join(given)}")
        if not 1 <= self.max_hours <= MOST_NODE_HOURS:
            raise BergError(f"--max-hours {self.max_hours:g}: give 1 to {MOST_NODE_HOURS}")
        wanted = shapes.parse_tpu(self.tpu, in_cluster=True)
        if self.spot and not wanted.about.is_open:
            raise BergError(
                f"--tpu {self.tpu} cannot be had as Spot nodes unless Google let your project in: "
                "no --spot"
            )
        if wanted.hosts == 1:
            return
        if self.max_nodes not in (None, wanted.hosts) or self.min_nodes not in (0, wanted.hosts):
            raise BergError(
                f"--tpu {self.tpu} is a slice of {wanted.hosts} nodes, all or none: "
                "leave out --max-nodes and --min-nodes"
            )


@dataclass
class Limits:
    """How many nodes a pool is to have at least, at most, and now; None: as it is."""

    low: int | None = None
    most: int | None = None
    now: int | None = None


def create(config: Config, name: str, wanted: Wanted, say: Say) -> str:
    """Make a cluster with a pool of nodes as wanted, or what is missing of it.

    Returns LOCATION/NAME. If that fails or is interrupted, what there is then is named.
    """
    container.check_name(name)
    wanted.check()
    shape = shape_of(wanted)
    there = next((each for each in container.clusters(config) if each["name"] == name), None)
    account = config.service_account
    if there:
        check_there(config, there, wanted, say)
        config, location = as_its_nodes(config, there), there["location"]
    else:
        zones = [wanted.zone] if wanted.zone else config.zones
        location = place_of(offers.zones_with(config, shape, zones))
    place, pool = f"{location}/{name}", pool_for(config, shape, wanted)
    kind = f"{wanted.tpu or shape}, spot" if wanted.spot else str(wanted.tpu or shape)
    try:
        if not there:
            make_cluster(config, name, location, say)
        container.settle(config, place, say)
        ensure_pool(config, place, pool, kind, wanted, say)
        server = k8s.server_of(config, container.get(config, place))
        podaccount.ensure(replace(config, service_account=account), server)
    except api.OperationFailed as error:
        say_incomplete(name, location, wanted, say)
        message = error.message
        if api.EXTERNAL in message:
            message += f" {way_out(name, message)}"
        raise BergError(message) from None
    except BaseException:
        say_incomplete(name, location, wanted, say)
        raise
    return place


def place_of(zones: list[str]) -> str:
    """Return the first of these zones that takes a cluster's control plane and its small pool: AI
    zones have machines with accelerators alone. Raise BergError if none does.
    """
    usual = [zone for zone in zones if not AI_ZONE.search(zone)]
    if not usual:
        raise BergError(
            f"{zones[0]} is a zone for accelerators alone: it takes no cluster's own machines. "
            "Name another one: --zone"
        )
    return usual[0]


def shape_of(wanted: Wanted) -> shapes.Shape:
    """Return what each node is; raise BergError where there is none such."""
    if wanted.slice:
        return wanted.slice.shape
    shape = shapes.choose(wanted.num_gpus, wanted.gpu_type, None, wanted.machine_type)
    shapes.check(shape, "", wanted.spot)
    return shape


def admit(config: Config, name: str, user: str) -> str:
    """Make the namespace of somebody's pods in a cluster, with an account that has its right there.

    Return the namespace. Whom the pods act as, the user's first job says.
    """
    cluster = container.find(config, name)
    if not container.workload_pool(cluster):
        raise BergError(
            f"the cluster {name} has no Workload Identity: all pods share one account there, and "
            "nobody has to be admitted"
        )
    home = podaccount.Home(iam.namespace(user), iam.ACCOUNT)
    server = k8s.server_of(config, cluster)
    podaccount.make_namespace(config, server, home.namespace)
    podaccount.admit_pods(config, server, home.namespace)
    return home.namespace


def check_there(config: Config, cluster: dict[str, Any], wanted: Wanted, say: Say) -> None:
    """Raise BergError if a cluster that is there is not what is wanted."""
    name, location = cluster["name"], cluster["location"]
    container.find(config, name)  # raises if it is not berg's
    if wanted.zone not in (None, location):
        raise BergError(
            f"the cluster {name} is in {location}, not in {wanted.zone}: leave out --zone"
        )
    if cluster.get("status") == "ERROR":
        why = problems(cluster)
        raise BergError(f"Google could not make the cluster {name}: {why}. {way_out(name, why)}")
    is_private = cluster.get("networkConfig", {}).get("defaultEnablePrivateNodes")
    if config.no_external_ip and not is_private:
        say(
            f"The nodes of {name} have external addresses: no_external_ip counts when "
            "a cluster is made"
        )


def as_its_nodes(config: Config, cluster: dict[str, Any]) -> Config:
    """Return the settings with the account of a cluster's nodes, which new pools get as well.

    That account may pull images and do what nodes do; whoever adds a pool may have another one.
    """
    first = next(iter(container.accounts(cluster)), "default")
    return replace(config, service_account=first.removeprefix("default"))


def make_cluster(config: Config, name: str, location: str, say: Say) -> None:
    """Make a cluster with the pool for Kubernetes alone."""
    if iam.is_default(config.service_account):
        say(f"Careful, the nodes get it: {iam.DEFAULT_IS_WIDE}. Another one: berg init")
    admit_nodes(config, say)
    say(f"Making the cluster {name} in {location}: some five minutes, and {IDLE_PRICE} from now on")
    body = {"cluster": container.cluster_body(config, name, config.user)}
    path, place = f"{location}/clusters", f"{location}/{name}"
    container.change(config, place, "POST", path, body, f"the cluster {name}", say)


def pool_for(config: Config, shape: shapes.Shape, wanted: Wanted) -> dict[str, Any]:
    nodes = container.NodeShape(
        shape.machine_type,
        shape.gpu_type,
        shape.num_gpus,
        wanted.disk_gb,
        wanted.disk_type or shape.disk_type,
        wanted.spot,
        wanted.slice,
        wanted.max_hours,
    )
    return container.pool_body(config, nodes, min_nodes=wanted.min_nodes, max_nodes=most_of(wanted))


def most_of(wanted: Wanted) -> int:
    """Return how many nodes a pool has at most: of a slice of TPUs all that form it."""
    if wanted.slice and wanted.slice.hosts > 1:
        return wanted.slice.hosts
    return wanted.most


def ensure_pool(
    config: Config, place: str, pool: dict[str, Any], kind: str, wanted: Wanted, say: Say
) -> None:
    """Make the pool that is wanted, unless one of its name is there."""
    location, _, name = place.partition("/")
    cluster = container.get(config, place)
    pools = container.pools(cluster)
    made = next((each for each in pools if each["name"] == pool["name"]), None)
    if made is None:
        if wanted.slice:
            ensure_policy(config, location, wanted.slice)
        say(f"Making the pool {pool['name']}: 0 to {most_of(wanted)} nodes, {kind}")
        path = f"{location}/clusters/{name}/nodePools"
        body = {"nodePool": container.like_its_cluster(pool, cluster)}
        container.change(config, place, "POST", path, body, f"the pool {pool['name']}", say)
    elif nodes_of(made) != nodes_of(pool):
        say(
            f"The pool {pool['name']} is there already, with {nodes_of(made)}, and stays as it is. "
            f"Its limits: berg cluster resize {name} --pool {pool['name']} "
            f"--max-nodes {most_of(wanted)}"
        )


def ensure_policy(config: Config, location: str, wanted: shapes.Tpu) -> None:
    """Make the workload policy that a pool of such a slice names, unless it is there.

    It costs nothing, all pools of its topology in the region share it, and it stays.
    """
    if not wanted.policy:
        return
    body = shapes.workload_policy(wanted.policy, wanted.topology, "for pools of berg's clusters")
    with contextlib.suppress(api.Conflict):
        api.write(config, f"/regions/{prices.region_of(location)}/resourcePolicies", body)


def say_incomplete(name: str, location: str, wanted: Wanted, say: Say) -> None:
    """Name what may be there of a cluster whose making ended early."""
    say(
        f"\nThe cluster {name} in {location} is not complete, "
        f"and what there is of it may cost {IDLE_PRICE}."
    )
    say(f"Go on:      berg cluster create {name}{wanted.options}")
    say(f"Delete it:  berg cluster delete {name}")


def nodes_of(pool: dict[str, Any]) -> str:
    """How many nodes a pool may have and what they are, in words."""
    node, now = pool["config"], pool_status(pool)
    disk = f"{node.get('diskSizeGb')} GB of {node.get('diskType')}"
    return f"{now['min_nodes']} to {now['max_nodes']} nodes of {now['machine_type']} with {disk}"


def way_out(name: str, why: str) -> str:
    """The next step for a cluster that Google could not make."""
    steps = f"berg cluster delete {name}"
    if api.EXTERNAL in why:
        steps += ", berg config set no_external_ip true, and make it again"
    return steps


def admit_nodes(config: Config, say: Say) -> None:
    """Let the nodes' account do what nodes need; who may not give it that is told who else does
    what.
    """
    if not config.service_account:
        return
    member = f"serviceAccount:{config.service_account}"
    try:
        iam.bind(config, iam.project_policy, NODE_ROLE, member)
    except api.GoogleError as error:
        say(
            f"The nodes may lack rights to write logs ({api.words(error)}). "
            "Somebody who may should run:"
        )
        say(
            f"  gcloud projects add-iam-policy-binding {config.project} "
            f"--member {member} --role {NODE_ROLE}"
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


def resize(config: Config, name: str, pool: str | None, limits: Limits, say: Say) -> str:
    """Change how many nodes a pool has at least and at most, or has now; return the pool's name."""
    found = container.find(config, name)
    chosen = choose_pool(found, pool)
    place, called = container.where(found), chosen["name"]
    path = f"{found['location']}/clusters/{found['name']}/nodePools/{called}"
    if limits.low is not None or limits.most is not None:
        what = f"the limits of {called}"
        body = {"autoscaling": scaling_with(chosen, limits)}
        container.change(config, place, "POST", f"{path}:setAutoscaling", body, what, say)
    if limits.now is not None:
        what = f"the size of {called}"
        container.change(
            config, place, "POST", f"{path}:setSize", {"nodeCount": limits.now}, what, say
        )
    return str(called)


def choose_pool(cluster: dict[str, Any], wanted: str | None) -> dict[str, Any]:
    """Return the pool of that name, or the only one for jobs."""
    pools = container.pools(cluster)
    if wanted:
        fitting = [each for each in pools if each["name"] == wanted]
        what = f"no pool {wanted!r}"
    else:
        fitting = [each for each in pools if each["name"] not in POOLS_NOT_FOR_JOBS]
        what = "several pools for jobs" if fitting else "no pool for jobs"
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(each["name"] for each in pools)
    raise BergError(
        f"the cluster {cluster['name']} has {what}; its pools are {names}. Name one: --pool NAME"
    )


def scaling_with(pool: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return a pool's autoscaling with new limits; raise BergError for those that cannot be."""
    low = pool.get("autoscaling", {}).get("minNodeCount", 0)
    most = container.most_nodes(pool)
    if limits.low is not None:
        low = limits.low
    if limits.most is not None:
        most = limits.most
    if not 0 <= low <= most or not 1 <= most <= 1000:
        raise BergError(f"a pool cannot have {low} to {most} nodes")
    counts = {"minNodeCount": low, "maxNodeCount": most}
    return {"enabled": True, "locationPolicy": "ANY", **counts}


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
    """Return a cluster as it is now."""
    pools = [pool_status(each) for each in container.pools(cluster)]
    state = cluster.get("status", "UNKNOWN")
    found = Status(cluster["name"], cluster["location"], state, problems(cluster), pools)
    try:
        inside = gather(config, cluster)
    except BergError as error:
        found.trouble = error.message
        return found
    place = container.where(cluster)
    found.pods = pod_rows(inside, place)
    used: Counter[str] = Counter()
    for row in found.pods:
        used[row["node"]] += row["gpus"]
    found.nodes = [node_row(each, used[each["metadata"]["name"]]) for each in inside.nodes]
    return found


@dataclass
class Inside:
    """What a cluster's own server says: its nodes, berg's Jobs that lack pods, berg's pods, what
    befell them, and why Jobs wait in queues, by their uids.
    """

    nodes: list[dict[str, Any]]
    short: list[dict[str, Any]]
    pods: list[dict[str, Any]]
    events: list[dict[str, Any]]
    queued: dict[str, str]


def gather(config: Config, cluster: dict[str, Any]) -> Inside:
    server = k8s.server_of(config, cluster)
    ours = {"labelSelector": "berg=1", "timeout": gke.LISTING}
    nodes = k8s.items(config, server, k8s.NODES, timeout=gke.LISTING)
    jobs = k8s.items(config, server, k8s.everywhere(server, "jobs"), **ours)
    pods = k8s.items(config, server, k8s.everywhere(server, "pods"), **ours)
    alive = [each for each in pods if gke.is_alive(each)]
    short = [each for each in jobs if gke.is_short(each, alive)]
    events = gke.events_for(config, container.where(cluster), alive, bool(short))
    return Inside(nodes, short, pods, events, podstatus.reasons(config, server, short))


def pod_rows(inside: Inside, place: str) -> list[dict[str, Any]]:
    """Return what is shown of the pods that live, and of Jobs that have none and should."""
    alive = [each for each in inside.pods if gke.is_alive(each)]
    unready = podstatus.readiness(inside.nodes)
    rows = []
    for each in alive:
        node = each["spec"].get("nodeName", "")
        machine = podstatus.machine_of(each, place, inside.events)
        machine.silence = podstatus.silence(node, unready.get(node, {}))
        rows.append(pod_row(machine, node))
    for each in inside.short:
        own = [pod for pod in inside.pods if gke.is_owned(pod, each)]
        why = inside.queued.get(each["metadata"]["uid"])
        why = (
            why or podstatus.hindrance(each, own, inside.events) or "Kubernetes is to make its pod"
        )
        if not any(map(gke.is_alive, own)):
            rows.append(pod_row(podstatus.to_come(each, place, own, why), ""))
    return rows


def pod_row(machine: Machine, node: str) -> dict[str, Any]:
    """Return what is shown of a pod on a node."""
    labels = machine.labels
    return {
        "pod": machine.pod,
        "name": machine.name,
        "job": labels.get("berg-job") or labels.get("berg-sweep", ""),
        "status": machine.status,
        "node": node,
        "gpus": int(machine.gpus.partition(" ")[0] or 0),
        "note": machine.note,
        "silence": machine.silence,
        "user": labels.get("berg-user", ""),
    }


def node_row(node: dict[str, Any], used: int) -> dict[str, Any]:
    """Return what is shown of a node, of whose GPUs some are used."""
    about, labels = node.get("status", {}), node["metadata"].get("labels", {})
    there = about.get("allocatable", {})
    gpus = int(there.get("nvidia.com/gpu", there.get(shapes.CHIP, 0)))
    conditions = {each["type"]: each["status"] for each in about.get("conditions", [])}
    drivers = ""
    if f"{container.LABEL}gke-accelerator" in labels:
        drivers = "ready" if gpus else "coming"
    return {
        "node": node["metadata"]["name"],
        "pool": labels.get(f"{container.LABEL}gke-nodepool", ""),
        "ready": conditions.get("Ready") == "True",
        "gpus": gpus,
        "used": used,
        "drivers": drivers,
    }


def pool_status(pool: dict[str, Any]) -> dict[str, Any]:
    """Return what is shown of a pool."""
    kind, count = container.gpus_of(pool)
    node, scaling = pool.get("config", {}), pool.get("autoscaling", {})
    gpus = driver = ""
    tpus = shapes.tpu_of_pool(pool)
    if count:
        gpus = f"{count} x {kind}"
        installation = node.get("accelerators", [{}])[0].get("gpuDriverInstallationConfig", {})
        driver = installation.get("gpuDriverVersion", "")
    low = pool.get("initialNodeCount", 0)
    if scaling.get("enabled"):
        low = scaling.get("minNodeCount", 0)
    return {
        "pool": pool["name"],
        "machine_type": node.get("machineType", ""),
        "gpus": gpus,
        "tpu": tpus.name if tpus else "",
        "spot": bool(node.get("spot")),
        "min_nodes": low,
        "max_nodes": container.most_nodes(pool),
        "status": pool.get("status", ""),
        "drivers": driver,
        "problems": problems(pool),
    }


def idle(config: Config) -> list[str]:
    """Return a sentence for each of berg's clusters in which no pod of a job is.

    Who may not look gets none.
    """
    return [idle_sentence(each) for each in looks(config) if each.idle]


def hindered(config: Config) -> list[tuple[str, str]]:
    """Return a sentence for each of berg's jobs whose pods Kubernetes does not make, or that is on
    a node that does not answer, with the command that says or does more.

    Who may not look gets none.
    """
    found = looks(config)
    refused = [
        (
            f"{row['job']} waits in {each.name} in {each.location}: {row['note']}",
            f"berg cluster status {each.name}",
        )
        for each in found
        for row in each.pods
        if row["note"].startswith(podstatus.NO_POD)
    ]
    silent = [
        (
            f"{row['name']} in {each.name} in {each.location}: {row['silence']}",
            f"berg kill {row['job']}",
        )
        for each in found
        for row in each.pods
        if row["silence"]
    ]
    return refused + silent


def looks(config: Config) -> list[Status]:
    """Return berg's clusters as they are now."""
    ours = sorted(set(gke.places(config)))
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda each: status(config, container.get(config, each)), ours))


def idle_sentence(found: Status) -> str:
    """Say what an idle cluster costs: its price, and nodes for jobs that are there without one."""
    costs = IDLE_PRICE
    count = sum(each["pool"] not in POOLS_NOT_FOR_JOBS for each in found.nodes)
    if count:
        costs += f", and {count} nodes for jobs as long as they are there"
    if any(each["pool"] == container.CACHE for each in found.pools):
        costs += ", and its dataset cache"
    return (
        f"the cluster {found.name} in {found.location} is idle, and costs {costs}. "
        f"Delete it: berg cluster delete {found.name}"
    )


# --- kubectl


def context(config: Config, place: str) -> str:
    """The name that gcloud gives a cluster."""
    return f"gke_{config.project}_{place.replace('/', '_')}"


def credentials(config: Config, name: str) -> str:
    """Let kubectl know a cluster, beside those that it knows; returns the name of the context.

    It looks at the namespace of the person's pods. kubectl itself writes its file, and one that it
    cannot read stays as it is.
    """
    cluster = container.find(config, name)
    server, there = k8s.server_of(config, cluster), context(config, container.where(cluster))
    program = computer.python("berg", "cluster", "token")
    if (berg := shutil.which("berg")) and Path(berg).is_absolute():
        program = [berg, "cluster", "token"]
    arguments = [f"--exec-arg={argument}" for argument in program[1:]]
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
    home = f"--namespace={podaccount.namespace(config, server)}"
    kubectl(["config", "set-context", there, f"--cluster={there}", f"--user={there}", home])
    kubectl(["config", "use-context", there])
    return there


def kubectl(words: list[str]) -> str:
    program = shutil.which("kubectl")
    if not program:
        raise BergError(
            "kubectl is not installed: gcloud components install kubectl "
            "(Debian: kubernetes-client)"
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


TOP = ("name", "zone", "pools")

KEYS = {each.name.replace("_", "-"): each.name for each in fields(Wanted) if each.name != "zone"}


def read(file: str) -> tuple[str, list[Wanted]]:
    """Return a cluster's name and its pools; raise BergError for a file that does not say them."""
    try:
        values = gate.parse_toml(Path(file).read_text(), file)
    except (OSError, UnicodeDecodeError) as error:
        raise BergError(f"cannot read {file}: {error}") from None
    check_keys(file, values, TOP)
    name, zone, pools = values.get("name"), values.get("zone"), values.get("pools")
    if not isinstance(name, str):
        raise BergError(f'{file} has no name of the cluster, as in: name = "train"')
    if not isinstance(zone, str | None):
        raise BergError(f"{file}: zone must be text, not {zone!r}")
    if not isinstance(pools, list) or not pools:
        raise BergError(f"{file} has no [[pools]] of nodes for jobs")
    return name, [wanted_in(file, each, zone) for each in pools]


def check_keys(file: str, values: dict[str, Any], known: typing.Collection[str]) -> None:
    """Raise BergError for a key that means nothing."""
    if unknown := sorted(values.keys() - set(known)):
        raise BergError(
            f"{file}: there is no key {unknown[0]!r} here. There are: {', '.join(known)}"
        )


def wanted_in(file: str, values: Any, zone: str | None) -> Wanted:
    """Return a pool that a file describes; raise BergError for what it cannot be."""
    if not isinstance(values, dict):
        raise BergError(f"{file}: pools are tables, each below a line [[pools]]")
    check_keys(file, values, KEYS)
    kinds = typing.get_type_hints(Wanted)
    for key, value in values.items():
        kind = kinds[KEYS[key]]
        if kind is float:
            kind = float | int
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise BergError(f"{file}: {key} cannot be {value!r}")
    wanted = Wanted(zone=zone, **{KEYS[key]: value for key, value in values.items()})
    wanted.check()
    return wanted


def text(cluster: dict[str, Any]) -> str:
    """Return a cluster that is there as such a file."""
    lines = [f"name = {json.dumps(cluster['name'])}", f"zone = {json.dumps(cluster['location'])}"]
    for pool in container.pools(cluster):
        if pool["name"] in POOLS_NOT_FOR_JOBS:
            continue
        values = pool_values(pool).items()
        # TOML writes these values as JSON does.
        lines += ["", "[[pools]]", *(f"{key} = {json.dumps(value)}" for key, value in values)]
    return "\n".join(lines) + "\n"


def pool_values(pool: dict[str, Any]) -> dict[str, Any]:
    """Return what a pool is, by the keys of the file."""
    node, limits = pool["config"], pool_status(pool)
    return {
        **machines_of(pool, limits["tpu"]),
        "min-nodes": limits["min_nodes"],
        "max-nodes": limits["max_nodes"],
        "disk-gb": node["diskSizeGb"],
        "disk-type": node["diskType"],
        "spot": bool(node.get("spot")),
    }


def machines_of(pool: dict[str, Any], tpu: str) -> dict[str, Any]:
    """Return what the nodes of a pool are: `tpu` says it, or their type and GPUs."""
    node = pool["config"]
    if tpu:
        seconds = int(node.get("maxRunDuration", "0s").rstrip("s"))
        return {"tpu": tpu, "max-hours": seconds // 3600}
    gpu_type, num_gpus = container.gpus_of(pool)
    gpus = {"gpu-type": gpu_type} if gpu_type else {}
    return {**gpus, "num-gpus": num_gpus, "machine-type": node["machineType"]}
