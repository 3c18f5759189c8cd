"""Clusters: created, resized, shown, deleted; as a file, and in the configuration of kubectl.

A cluster has a pool of one small node for Kubernetes, and pools for jobs that have no node while no
job needs one. What was started and not finished continues with the same command. The pools of a
cluster.toml have the options of `berg cluster create` as keys. Not covered: upgrades (Google does
them), networks of its own, pods of others, changes of an existing pool by a file.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from berg import BergError, computer, validation
from berg.config import Config
from berg.gke import client, pods
from berg.gke.client import Say
from berg.gke.place import machines_in
from berg.gke.status import NO_POD, ending
from berg.google import api, iam, offers, prices, shapes
from berg.plain import plural
from berg.spec import PoolOptions, check_rows, in_unit, is_given, rows

# Google's fee of $0.10 (an account's first zonal cluster is free of it) and the e2-medium;
# us-central1, 2026-11.
IDLE_PRICE = "about $0.13 an hour"
MONTH = 30 * 24  # hours
DISK_TYPES = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")
NODE_ROLE = "roles/container.defaultNodeServiceAccount"
NOT_FOR_JOBS = (client.SYSTEM, client.CACHE)  # pools
EXEC_API = "client.authentication.k8s.io/v1beta1"


class Wanted(PoolOptions):
    """What nodes for jobs are to be."""

    @property
    def slice(self) -> shapes.Tpu | None:
        """The TPUs that are wanted; raise BergError where no node has such ones."""
        return shapes.parse_tpu(self.tpu, in_cluster=True) if self.tpu else None

    @property
    def shape(self) -> shapes.Shape:
        """What each node is; raise BergError where there is none such."""
        if self.slice:
            return self.slice.shape
        shape = shapes.choose(self.num_gpus, self.gpu_type, None, self.machine_type)
        shapes.check(shape, "", self.spot)
        return shape

    @property
    def most(self) -> int:
        """How many nodes the pool has at most: all of a slice of TPUs."""
        if self.slice and self.slice.hosts > 1:
            return self.slice.hosts
        return self.num_nodes if self.max_nodes is None else self.max_nodes

    @property
    def options(self) -> str:
        """The options that differ from the defaults."""
        words = []
        for name, row in rows(self).items():
            if is_given(self, name):
                value = getattr(self, name)
                words += [row.flag] if value is True else [row.flag, str(value)]
        return "".join(f" {shlex.quote(word)}" for word in words)

    def check(self) -> None:
        """Raise BergError for what no cluster can be."""
        check_rows(self)
        if self.tpu is not None:
            self.check_tpu(shapes.parse_tpu(self.tpu, in_cluster=True))
        if not 0 <= self.min_nodes <= self.most:
            raise BergError(
                f"--min-nodes {self.min_nodes} is not possible: give 0 to {self.most}, the maximum"
            )
        if self.disk_type is not None and self.disk_type not in DISK_TYPES:
            raise BergError(f"--disk-type {self.disk_type}: there are {', '.join(DISK_TYPES)}")

    def check_tpu(self, wanted: shapes.Tpu) -> None:
        """Raise BergError for what Google does not offer with TPUs."""
        if self.spot and not wanted.about.is_open:
            raise BergError(
                f"--tpu {self.tpu}: Google sells Spot nodes of it only to approved projects. "
                "Leave out --spot"
            )
        hosts = wanted.hosts
        is_part = self.max_nodes not in (None, hosts) or self.min_nodes not in (0, hosts)
        if hosts > 1 and is_part:
            raise BergError(
                f"--tpu {self.tpu} is a slice of {hosts} nodes, all or none: "
                "leave out --max-nodes and --min-nodes"
            )


def create(config: Config, name: str, wanted: Wanted, say: Say) -> str:
    """Create a cluster with a pool of nodes as wanted, or what is missing of it.

    Return LOCATION/NAME. If that fails or is interrupted, `say` names what may exist.
    """
    if not client.CLUSTER_NAME.fullmatch(name):
        raise BergError(
            f"{name!r} cannot be the name of a cluster: give up to 40 lower-case letters, digits "
            "and dashes that begin with a letter, as in: berg cluster create train"
        )
    config.refuse_in_purse("create a cluster")
    wanted.check()
    shape = wanted.shape
    there = next((each for each in client.clusters(config) if each["name"] == name), None)
    if there:
        check_there(config, there, wanted, say)
        location, as_nodes = there["location"], as_its_nodes(config, there)
    else:
        zones = [wanted.zone] if wanted.zone else config.zones
        location, as_nodes = place_of(offers.zones_with(config, shape, zones)), config
    place = f"{location}/{name}"
    try:
        if not there:
            make_cluster(config, name, location, say)
        client.settle(config, place, say)
        ensure_pool(as_nodes, place, wanted, say)
        pods.ensure_account(config, client.server_of(config, client.get_cluster(config, place)))
    except BaseException as error:
        say(
            f"\nThe cluster {name} in {location} is not complete, "
            f"and what there is of it may cost {IDLE_PRICE}."
        )
        say(f"Continue:   berg cluster create {name}{wanted.options}")
        say(f"Delete it:  berg cluster delete {name}")
        if not isinstance(error, api.OperationFailed):
            raise
        is_external = api.EXTERNAL in error.message
        advice = f" {way_out(name, error.message)}" if is_external else ""
        raise BergError(f"{error.message}{advice}") from None
    return place


def place_of(zones: list[str]) -> str:
    """Return the first of these zones that takes a cluster's control plane and its small pool.

    AI zones have only machines with accelerators. Raise BergError if no other is among them.
    """
    # such as us-central1-ai1a
    usual = [zone for zone in zones if not re.search(r"-ai\d+[a-z]$", zone)]
    if not usual:
        raise BergError(
            f"{zones[0]} is a zone for accelerators only: it takes no cluster's own machines. "
            "Name another one: --zone"
        )
    return usual[0]


def check_there(config: Config, cluster: dict[str, Any], wanted: Wanted, say: Say) -> None:
    """Raise BergError if an existing cluster is not what is wanted."""
    name, location = cluster["name"], cluster["location"]
    client.find_cluster(config, name)  # raises if it is not berg's
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

    It may pull images and do what nodes do; the account of the user may differ.
    """
    first = next(iter(client.accounts(cluster)), "default")
    return replace(config, service_account=first.removeprefix("default"))


def make_cluster(config: Config, name: str, location: str, say: Say) -> None:
    """Create a cluster with the pool for Kubernetes only."""
    if iam.is_default(config.service_account):
        say(f"Careful, the nodes get it: {iam.DEFAULT_IS_WIDE}. Another one: berg init")
    if config.service_account:
        member = f"serviceAccount:{config.service_account}"
        try:
            iam.bind(config, iam.project_policy, NODE_ROLE, member)
        except api.GoogleError as error:
            say(
                f"The nodes may lack rights to write logs ({api.words(error)}). "
                "An administrator of the project should run:"
            )
            say(
                f"  gcloud projects add-iam-policy-binding {config.project} "
                f"--member {member} --role {NODE_ROLE}"
            )
    say(f"Making the cluster {name} in {location}: some five minutes, and {IDLE_PRICE} from now on")
    body = {"cluster": client.cluster_body(config, name, config.user)}
    path, place = f"{location}/clusters", f"{location}/{name}"
    client.change_cluster(config, place, "POST", path, body, f"the cluster {name}", say)


def ensure_pool(config: Config, place: str, wanted: Wanted, say: Say) -> None:
    """Create the pool that is wanted, unless one of its name exists."""
    cluster, pool = client.get_cluster(config, place), pool_body(config, wanted)
    name, there = pool["name"], client.pool_of(cluster, pool["name"])
    if there is None:
        if (tpu := wanted.slice) and tpu.policy:
            # The workload policy that the pool names. It costs nothing, all pools of its topology
            # in the region share it, and it stays.
            body = shapes.workload_policy(tpu.policy, tpu.topology, "for pools of berg's clusters")
            region = prices.region_of(cluster["location"])
            with contextlib.suppress(api.Conflict):
                api.write(config, f"/regions/{region}/resourcePolicies", body)
        spot = ", spot" if wanted.spot else ""
        say(f"Making the pool {name}: 0 to {wanted.most} nodes, {wanted.tpu or wanted.shape}{spot}")
        path = f"{client.path_of(cluster)}/nodePools"
        body = {"nodePool": client.like_its_cluster(pool, cluster)}
        client.change_cluster(config, place, "POST", path, body, f"the pool {name}", say)
    elif nodes_of(there) != nodes_of(pool):
        say(
            f"The pool {name} exists already, with {nodes_of(there)}, and stays as it is. "
            f"Its limits: berg cluster resize {cluster['name']} --pool {name} "
            f"--max-nodes {wanted.most}"
        )


def question(config: Config, pools: list[Wanted]) -> str:
    """Return the question before pools that may be expensive; "" for others.

    Nodes run while jobs need them, so the sum is that of 30 days with all nodes.
    """
    if not config.ask_above:
        return ""
    parts: prices.Parts = []
    for each in pools:
        listed, _ = prices.look_up(config, prices.region_of(each.zone or config.region))
        node, disk = None, None
        if listed:
            model = prices.SPOT if each.spot else prices.STANDARD
            node = listed.per_hour(each.shape, model)
            disk = listed.disk_per_hour(each.disk_type or each.shape.disk_type, each.disk_gb)
        parts += [(node, each.most), (disk, each.most)]
    hourly = prices.total(parts)
    if hourly is None:
        return "What these nodes cost is unknown. Create them?"
    if hourly * MONTH <= config.ask_above:
        return ""
    count = plural(sum(each.most for each in pools), "node")
    return (
        f"{count} for jobs cost ${hourly:,.2f} an hour while jobs use them all, "
        f"${hourly * MONTH:,.0f} in 30 days. Create the cluster?"
    )


def pool_body(config: Config, wanted: Wanted) -> dict[str, Any]:
    """Return a pool that starts without nodes; Google installs the drivers of its GPUs."""
    shape = wanted.shape
    # Else the kernel ends all of a pod, worker included, when its command runs out of memory.
    kubelet: dict[str, Any] = {"singleProcessOomKill": True}
    node = client.node_config(
        config,
        machineType=shape.machine_type,
        diskSizeGb=wanted.disk_gb,
        diskType=wanted.disk_type or shape.disk_type,
        kubeletConfig=kubelet,
    )
    name = f"{shape.gpu_type}-x{shape.num_gpus}" if shape.num_gpus else shape.machine_type
    if wanted.spot:
        name += "-spot"
    pool = {
        "name": name[:40].strip("-"),
        "initialNodeCount": 0,
        "autoscaling": client.scaling(wanted.min_nodes, wanted.most),
        "config": node,
        "management": client.MANAGED,
    }
    if wanted.spot:
        node["spot"] = True
        kubelet |= {"shutdownGracePeriodSeconds": 120, "shutdownGracePeriodCriticalPodsSeconds": 15}
    if tpu := wanted.slice:
        pool["name"] = tpu.pool(wanted.spot)
        node["maxRunDuration"] = f"{round(wanted.max_hours * 3600)}s"
        if tpu.hosts > 1:
            how = {"policyName": tpu.policy} if tpu.policy else {"type": "COMPACT"}
            pool["placementPolicy"] = {**how, "tpuTopology": tpu.topology}
    elif shape.num_gpus:
        node["accelerators"] = [client.gpus_for(shape)]
    else:  # GKE taints nodes with chips itself; pods of kube-system would keep these nodes up
        taint = {"key": client.FOR_JOBS, "value": "true", "effect": "NO_SCHEDULE"}
        node["taints"] = [taint]
    return pool


def nodes_of(pool: dict[str, Any]) -> str:
    """Return how many nodes a pool may have and what they are, in words."""
    node, now = pool["config"], pool_status(pool)
    disk = f"{node.get('diskSizeGb')} GB of {node.get('diskType')}"
    return f"{now['min_nodes']} to {now['max_nodes']} nodes of {now['machine_type']} with {disk}"


def way_out(name: str, why: str) -> str:
    """Return the next step for a cluster that Google could not make."""
    steps = f"berg cluster delete {name}"
    if api.EXTERNAL in why:
        steps += ", berg config set no_external_ip true, and make it again"
    return steps


def problems(thing: dict[str, Any]) -> str:
    """Return what is wrong with a cluster or a pool, in Google's words."""
    found = [
        f"{each.get('canonicalCode') or each.get('code', '')}: {each.get('message', '')}"
        for each in thing.get("conditions", [])
    ]
    return "; ".join(found) or thing.get("statusMessage", "")


def admit(config: Config, name: str, user: str) -> str:
    """Create the namespace of a user's pods in a cluster, with an account; return the namespace.

    The user's first job says which account of Google's the pods act as.
    """
    cluster = client.find_cluster(config, name)
    if not client.workload_pool(cluster):
        raise BergError(
            f"the cluster {name} has no Workload Identity: all pods share one account there, and "
            "no user needs a namespace"
        )
    server, namespace = client.server_of(config, cluster), iam.namespace(user)
    pods.make_namespace(server, namespace)
    pods.admit(server, namespace)
    return namespace


def delete(config: Config, name: str, say: Say) -> None:
    """Delete a cluster with all that is in it, and wait until it is gone."""
    found = client.find_cluster(config, name)
    place, path = client.where(found), client.path_of(found)
    with api.waiting(f"Waiting until Google has deleted {name}: some minutes", say):
        client.change_cluster(config, place, "DELETE", path, None, f"deleting {name}", say)
    client.ca_file(config, place).unlink(missing_ok=True)


def resize(
    config: Config,
    name: str,
    pool: str | None,
    low: int | None,
    most: int | None,
    now: int | None,
    say: Say,
) -> str:
    """Change how many nodes a pool has at least, at most, and now; return the pool's name."""
    config.refuse_in_purse("change how many nodes a cluster has")
    found = client.find_cluster(config, name)
    chosen, place = choose_pool(found, pool), client.where(found)
    called = str(chosen["name"])
    path = client.path_of(found, called)
    if low is not None or most is not None:
        low = chosen.get("autoscaling", {}).get("minNodeCount", 0) if low is None else low
        most = client.most_nodes(chosen) if most is None else most
        if not 0 <= low <= most or not 1 <= most <= 1000:
            raise BergError(f"a pool cannot have {low} to {most} nodes")
        body: dict[str, Any] = {"autoscaling": client.scaling(low, most)}
        what = f"the limits of {called}"
        with api.waiting(f"Waiting until Google has changed {what}", say):
            client.change_cluster(config, place, "POST", f"{path}:setAutoscaling", body, what, say)
    if now is not None:
        body, what = {"nodeCount": now}, f"the size of {called}"
        with api.waiting(f"Waiting until Google has changed {what}", say):
            client.change_cluster(config, place, "POST", f"{path}:setSize", body, what, say)
    return called


def choose_pool(cluster: dict[str, Any], wanted: str | None) -> dict[str, Any]:
    """Return the pool of that name, or the only one for jobs."""
    pools = client.pools(cluster)
    if wanted:
        fitting = [each for each in pools if each["name"] == wanted]
        what = f"no pool {wanted!r}"
    else:
        fitting = [each for each in pools if each["name"] not in NOT_FOR_JOBS]
        what = "several pools for jobs" if fitting else "no pool for jobs"
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(each["name"] for each in pools)
    raise BergError(
        f"the cluster {cluster['name']} has {what}; its pools are {names}. Name one: --pool NAME"
    )


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
    pools = [pool_status(each) for each in client.pools(cluster)]
    state = cluster.get("status", "UNKNOWN")
    found = Status(cluster["name"], cluster["location"], state, problems(cluster), pools)
    ours = {"labelSelector": "berg=1", "timeout": client.LISTING}
    try:
        server = client.server_of(config, cluster)
        nodes = client.items(server, client.NODES, timeout=client.LISTING)
        jobs = client.items(server, client.everywhere(server, "jobs"), **ours)
        pods = client.items(server, client.everywhere(server, "pods"), **ours)
    except BergError as error:
        found.trouble = error.message
        return found
    node_of = {client.called(pod): pod["spec"].get("nodeName", "") for pod in pods}
    unfinished = [each for each in jobs if not ending(each)]
    used: Counter[str] = Counter()
    for machine in machines_in(server, unfinished, pods, "Kubernetes has yet to make its pod"):
        labels, node = machine.labels, node_of.get(machine.pod, "")
        gpus = int(machine.gpus.partition(" ")[0] or 0)
        used[node] += gpus
        row = {
            "pod": machine.pod,
            "name": machine.name,
            "job": labels.get("berg-job") or labels.get("berg-sweep", ""),
            "status": machine.status,
            "node": node,
            "gpus": gpus,
            "note": machine.note,
            "silence": machine.silence,
            "user": labels.get("berg-user", ""),
        }
        found.pods.append(row)
    found.nodes = [node_row(each, used[each["metadata"]["name"]]) for each in nodes]
    return found


def node_row(node: dict[str, Any], used: int) -> dict[str, Any]:
    """Return what is shown of a node with so many GPUs in use."""
    about, labels = node.get("status", {}), node["metadata"].get("labels", {})
    there = about.get("allocatable", {})
    gpus = int(there.get("nvidia.com/gpu", there.get(shapes.CHIP, 0)))
    conditions = {each["type"]: each["status"] for each in about.get("conditions", [])}
    drivers = ""
    if f"{client.LABEL}gke-accelerator" in labels:
        drivers = "ready" if gpus else "coming"
    return {
        "node": node["metadata"]["name"],
        "pool": labels.get(f"{client.LABEL}gke-nodepool", ""),
        "ready": conditions.get("Ready") == "True",
        "gpus": gpus,
        "used": used,
        "drivers": drivers,
    }


def pool_status(pool: dict[str, Any]) -> dict[str, Any]:
    """Return what is shown of a pool."""
    kind, count = client.gpus_of(pool)
    node, scaling = pool.get("config", {}), pool.get("autoscaling", {})
    chips, low = shapes.tpu_of_pool(pool), pool.get("initialNodeCount", 0)
    drivers = node.get("accelerators", [{}])[0].get("gpuDriverInstallationConfig", {})
    return {
        "pool": pool["name"],
        "machine_type": node.get("machineType", ""),
        "gpus": f"{count} x {kind}" if count else "",
        "tpu": chips.name if chips else "",
        "spot": bool(node.get("spot")),
        "min_nodes": scaling.get("minNodeCount", 0) if scaling.get("enabled") else low,
        "max_nodes": client.most_nodes(pool),
        "status": pool.get("status", ""),
        "drivers": drivers.get("gpuDriverVersion", "") if count else "",
        "problems": problems(pool),
    }


def looks(config: Config) -> list[Status]:
    """Return berg's clusters as they are now; [] without permission."""
    ours = sorted(set(client.running_clusters(client.seen_clusters(config))))
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda each: status(config, client.get_cluster(config, each)), ours))


def idle(config: Config) -> list[str]:
    """Return a sentence on what each of berg's clusters without pods of a job costs."""
    sentences = []
    for found in [each for each in looks(config) if each.idle]:
        costs = IDLE_PRICE
        if count := sum(each["pool"] not in NOT_FOR_JOBS for each in found.nodes):
            costs += f", and {count} nodes for jobs as long as they are there"
        if any(each["pool"] == client.CACHE for each in found.pools):
            costs += ", and its dataset cache"
        sentences.append(
            f"the cluster {found.name} in {found.location} is idle, and costs {costs}. "
            f"Delete it: berg cluster delete {found.name}"
        )
    return sentences


def hindered(config: Config) -> list[tuple[str, str]]:
    """Return a sentence for each job whose pods Kubernetes refuses to make, and for each pod on a
    node that does not answer, with the command that shows more or helps.
    """
    refused, silent = [], []
    for each in looks(config):
        where = f"{each.name} in {each.location}"
        for row in each.pods:
            if row["note"].startswith(NO_POD):
                text = f"{row['job']} waits in {where}: {row['note']}"
                refused.append((text, f"berg cluster status {each.name}"))
            if row["silence"]:
                text = f"{row['name']} in {where}: {row['silence']}"
                silent.append((text, f"berg kill {row['job']}"))
    return refused + silent


# --- kubectl


def context(config: Config, place: str) -> str:
    """Return the name that gcloud gives a cluster."""
    return f"gke_{config.project}_{place.replace('/', '_')}"


def credentials(config: Config, name: str) -> str:
    """Add a cluster to kubectl's configuration and return the name of the context.

    Its namespace is that of the user's pods. kubectl itself writes its file, and one that it cannot
    read stays as it is.
    """
    cluster = client.find_cluster(config, name)
    server, there = client.server_of(config, cluster), context(config, client.where(cluster))
    program = computer.python("berg", "cluster", "token")
    if (berg := shutil.which("berg")) and Path(berg).is_absolute():
        program = [berg, "cluster", "token"]
    # A broken file is found before anything is written. Of an entry of gcloud's the authority
    # would stay.
    if there in kubectl("get-clusters").split():
        kubectl("delete-cluster", there)
    authority = [f"--certificate-authority={server.ca}", "--embed-certs=true"] if server.ca else []
    kubectl("set-cluster", there, f"--server={server.url}", *authority)
    command = [f"--exec-command={program[0]}", f"--exec-api-version={EXEC_API}"]
    arguments = [f"--exec-arg={argument}" for argument in program[1:]]
    kubectl("set-credentials", there, *command, *arguments)
    home = f"--namespace={pods.namespace(config, server)}"
    kubectl("set-context", there, f"--cluster={there}", f"--user={there}", home)
    kubectl("use-context", there)
    return there


def kubectl(*words: str) -> str:
    """Run `kubectl config` and return its output."""
    program = shutil.which("kubectl")
    if not program:
        raise BergError(
            "kubectl is not installed: gcloud components install kubectl "
            "(Debian: kubernetes-client)"
        )
    done = subprocess.run(
        [program, "config", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,  # Ctrl-C would leave its lock, with which it writes nothing more
    )
    if done.returncode:
        raise BergError(
            f"kubectl config {words[0]} failed, and wrote nothing: {done.stderr.strip()}"
        )
    return done.stdout


def token(config: Config) -> str:
    """Return the user's token, as kubectl reads it from a program."""
    found = config.credentials
    status = {"token": found.token}
    if expiry := getattr(found, "expiry", None):
        status["expirationTimestamp"] = f"{expiry.isoformat(timespec='seconds')}Z"
    return json.dumps({"apiVersion": EXEC_API, "kind": "ExecCredential", "status": status})


# --- cluster.toml

TOP = ("name", "zone", "pools")
KEYS = {each.name.replace("_", "-"): each.name for each in fields(Wanted) if each.name != "zone"}


def read(file: str) -> tuple[str, list[Wanted]]:
    """Return a cluster's name and its pools; raise BergError for an invalid file."""
    try:
        values = validation.parse_toml(Path(file).read_text(), file)
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


def check_keys(file: str, values: dict[str, Any], known: Collection[str]) -> None:
    """Raise BergError for an unknown key."""
    if unknown := sorted(values.keys() - set(known)):
        raise BergError(
            f"{file}: there is no key {unknown[0]!r} here. There are: {', '.join(known)}"
        )


def wanted_in(file: str, values: Any, zone: str | None) -> Wanted:
    """Return a pool of a file; a duration is a number of hours or one such as 14d."""
    if not isinstance(values, dict):
        raise BergError(f"{file}: pools are tables, each below a line [[pools]]")
    check_keys(file, values, KEYS)
    kinds = validation.types_of(Wanted)
    found: dict[str, Any] = {}
    for key, value in values.items():
        kind = kinds[KEYS[key]]
        if kind is float and isinstance(value, str):
            try:
                value = in_unit(value, "h")
            except BergError as error:
                raise BergError(f"{file}: {key}: {error.message}") from None
        if not validation.fits(value, kind):
            raise BergError(f"{file}: {key} cannot be {value!r}")
        found[KEYS[key]] = value
    wanted = Wanted(zone=zone, **found)
    wanted.check()
    return wanted


def text(cluster: dict[str, Any]) -> str:
    """Return an existing cluster as such a file."""
    lines = [f"name = {json.dumps(cluster['name'])}", f"zone = {json.dumps(cluster['location'])}"]
    for pool in client.pools(cluster):
        if pool["name"] in NOT_FOR_JOBS:
            continue
        node, limits = pool["config"], pool_status(pool)
        kind, count = client.gpus_of(pool)
        values: dict[str, Any] = {"gpu-type": kind} if kind else {}
        values |= {"num-gpus": count, "machine-type": node["machineType"]}
        if limits["tpu"]:
            values = {"tpu": limits["tpu"], "max-hours": client.max_seconds(pool) // 3600}
        values |= {
            "min-nodes": limits["min_nodes"],
            "max-nodes": limits["max_nodes"],
            "disk-gb": node["diskSizeGb"],
            "disk-type": node["diskType"],
            "spot": bool(node.get("spot")),
        }
        # TOML writes these values as JSON does.
        lines += ["", "[[pools]]", *(f"{key} = {json.dumps(each)}" for key, each in values.items())]
    return "\n".join(lines) + "\n"
