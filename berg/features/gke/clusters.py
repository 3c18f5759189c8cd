"""`berg cluster`: clusters are made, shown and deleted.

A cluster is in one zone and has one small node for Kubernetes itself. Its pools for jobs have no node
while no job needs one: where Google has no room a job waits, and the cluster can still be changed.
What was begun and not finished the same command continues.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import click

from berg import BergError, gce, init, prices, terminal
from berg.config import SCOPES, Config
from berg.features.gke import kube, pods
from berg.features.gke.kube import Row
from berg.gce import GPUS, Shape
from berg.google import GoogleError
from berg.options import option, options_of

IDLE = "$0.13 an hour"  # Google's fee and the small node; us-central1, 2026-11
MONTH = 720  # hours
ROLE = "roles/container.defaultNodeServiceAccount"
MANAGED = {"autoUpgrade": True, "autoRepair": True}
OLDER = ("v100", "p100", "p4")  # GPUs that the latest drivers do not know


@dataclass
class Nodes:
    """Nodes for jobs."""

    num_nodes: int = option(
        "--num-nodes", default=2, type=click.IntRange(1, 1000), show_default=True,
        help="Nodes for jobs, at most.",
    )  # fmt: skip
    min_nodes: int = option("--min-nodes", default=0, type=click.IntRange(0), help="At least.")
    gpus: int | None = option("-g", "--num-gpus", type=click.IntRange(0), help="GPUs of each node.")
    gpu_type: str = option("-t", "--gpu-type", default="l4", show_default=True, help="Their type.")
    machine_type: str = option("--machine-type", default="", help="A machine type of Google's.")
    disk_gb: int = option(
        "--disk-gb", default=100, type=click.IntRange(30), show_default=True, help="Disk of each."
    )
    disk_type: str = option("--disk-type", default="", help="Such as pd-ssd.")
    zone: str = option("--zone", default="", help="Zone of the cluster.")
    spot: bool = option(
        "--spot", default=False, is_flag=True, help="Cheaper nodes that Google may take."
    )


@click.group()
def cluster() -> None:
    """Make Kubernetes clusters, whose pods run jobs.

    \b
    berg cluster create train -t t4 -g 2
    berg run --cluster train -m 2 -g 2 --each "torchrun train.py"
    berg cluster delete train
    """


@cluster.command()
@click.argument("name")
@options_of(Nodes)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(nodes: Nodes, name: str, yes: bool, as_json: bool) -> None:
    """Make the cluster NAME, or add a pool of other nodes to it.

    \b
    berg cluster create gke-dist --num-nodes 2 --machine-type n1-standard-4 -t t4 -g 2
    berg cluster create gke-dist -t t4 -g 2 --spot
    """
    config = Config.load()
    if nodes.min_nodes > nodes.num_nodes:
        raise BergError("--min-nodes is more than --num-nodes. Give fewer")
    rows = kube.gke(config, "GET", "-/clusters").get("clusters", [])
    existing = kube.find(config, name) if any(row["name"] == name for row in rows) else None
    where = [existing["location"]] if existing else [nodes.zone] if nodes.zone else []
    shape_of = (nodes.gpus, nodes.gpu_type, None, nodes.machine_type)
    shape, zones = gce.choose(config, *shape_of, where, [])
    place = f"{zones[0]}/{name}"
    kind = nodes.disk_type or gce.disk_type(shape)
    usd = prices.hourly(config, shape, zones[0], nodes.spot, disk_gb=nodes.disk_gb, disk_type=kind)
    bound = config.dollars("ask_above")
    if bound and (usd is None or usd * nodes.num_nodes * MONTH > bound):
        hourly = terminal.dollars(None if usd is None else usd * nodes.num_nodes)
        question = f"All {nodes.num_nodes} nodes cost {hourly} an hour while jobs use them. Go on?"
        if not terminal.confirm(question, yes, "-y"):
            raise BergError("nothing was made")
    try:
        if not existing:
            let_nodes_log(config)
            terminal.say(
                f"Making the cluster {name} in {zones[0]}: ten minutes, and {IDLE} from now on"
            )
            body = {"cluster": cluster_body(config, name)}
            kube.change(config, place, "POST", f"{zones[0]}/clusters", body, f"the cluster {name}")
        kube.settle(config, place)
        make_pool(config, place, pool_body(config, nodes, shape, kind))
    except BaseException:
        terminal.say(
            f"The cluster {name} is not complete, and what there is of it may cost {IDLE}. To "
            f"continue, repeat the command; to end it: berg cluster delete {name}"
        )
        raise
    terminal.say(f'Run a job: berg run --cluster {name} "python train.py"')
    if as_json:
        return terminal.show_json({"name": name, "place": place})
    return terminal.show(place)


def make_pool(config: Config, place: str, pool: Row) -> None:
    """Make a pool of a cluster, unless it has one of that name."""
    location, _, name = place.partition("/")
    path = f"{location}/clusters/{name}"
    if any(row["name"] == pool["name"] for row in kube.gke(config, "GET", path)["nodePools"]):
        return terminal.say(f"The pool {pool['name']} is there, and stays as it is")
    terminal.say(f"Making the pool {pool['name']}: {pods.describe(pool)} at most")
    what = f"the pool {pool['name']}"
    return kube.change(config, place, "POST", f"{path}/nodePools", {"nodePool": pool}, what)


def node(config: Config, **more: Any) -> Row:
    account = {"serviceAccount": config.service_account} if config.service_account else {}
    labels = {"labels": {"berg": "1"}, "resourceLabels": {"berg": "1"}}
    return {**account, "oauthScopes": SCOPES, **labels, **more}


def cluster_body(config: Config, name: str) -> Row:
    """A cluster in one zone, with the one small node that Kubernetes needs for itself."""
    small = node(config, machineType="e2-medium", diskSizeGb=30, diskType="pd-standard")
    system = {"name": kube.SYSTEM, "initialNodeCount": 1, "config": small, "management": MANAGED}
    is_private = config.no_external_ip.lower() in ("true", "1", "yes")
    return {
        "name": name,
        "network": config.network,
        "releaseChannel": {"channel": "REGULAR"},
        "ipAllocationPolicy": {"useIpAliases": True},
        "resourceLabels": {"berg": "1", "berg-user": config.user},
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}},
        "addonsConfig": {"httpLoadBalancing": {"disabled": True}},
        "autoscaling": {"autoscalingProfile": "OPTIMIZE_UTILIZATION"},
        "nodePools": [system],
        **({"networkConfig": {"defaultEnablePrivateNodes": True}} if is_private else {}),
    }


def pool_body(config: Config, nodes: Nodes, shape: Shape, disk_type: str) -> Row:
    """A pool that begins without nodes; Google installs the drivers of its GPUs."""
    # Else the kernel ends all of a pod, the worker included, when its command wants too much memory.
    kubelet: Row = {"singleProcessOomKill": True}
    made = node(config, machineType=shape.machine_type, diskSizeGb=nodes.disk_gb,
                diskType=disk_type, kubeletConfig=kubelet)  # fmt: skip
    name = f"{shape.gpu_type}-x{shape.gpus}" if shape.gpus else shape.machine_type
    if shape.gpus:
        drivers = {"gpuDriverVersion": "DEFAULT" if shape.gpu_type in OLDER else "LATEST"}
        made["accelerators"] = [{"acceleratorType": GPUS[shape.gpu_type][0],
                                 "acceleratorCount": str(shape.gpus),
                                 "gpuDriverInstallationConfig": drivers}]  # fmt: skip
    else:
        made["taints"] = [{"key": pods.FOR_JOBS, "value": "true", "effect": "NO_SCHEDULE"}]
    if nodes.spot:
        made["spot"] = True
        kubelet["shutdownGracePeriodSeconds"] = pods.GRACE
        kubelet["shutdownGracePeriodCriticalPodsSeconds"] = 15
    limits = {"minNodeCount": nodes.min_nodes, "maxNodeCount": nodes.num_nodes}
    return {
        "name": f"{name[:35]}-spot" if nodes.spot else name[:40],
        "initialNodeCount": 0,
        "autoscaling": {"enabled": True, "locationPolicy": "ANY", **limits},
        "config": made,
        "management": MANAGED,
    }


def let_nodes_log(config: Config) -> None:
    """Let the account of the nodes do what nodes do, such as to write logs."""
    if not config.service_account:
        return
    member = f"serviceAccount:{config.service_account}"
    about = {"options": {"requestedPolicyVersion": 3}}
    try:
        policy = init.ask(config, "POST", "cloudresourcemanager", ":getIamPolicy", about)
        if not init.has_role(policy.get("bindings", []), ROLE, member):
            bindings = [*policy.get("bindings", []), {"role": ROLE, "members": [member]}]
            body = {"policy": {**policy, "version": 3, "bindings": bindings}}
            init.ask(config, "POST", "cloudresourcemanager", ":setIamPolicy", body)
    except GoogleError as error:
        terminal.say(
            f"The nodes may lack rights to write logs ({error.message}). An owner can run: gcloud "
            f"projects add-iam-policy-binding {config.project} --member {member} --role {ROLE}"
        )


@cluster.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """Show the clusters of the project.

    \b
    berg cluster list
    """
    found = [
        {
            "name": row["name"],
            "location": row["location"],
            "status": row.get("status", ""),
            "nodes": row.get("currentNodeCount", 0),
            "berg": kube.is_ours(row),
            "pools": [pool["name"] for pool in row.get("nodePools", [])],
        }
        for row in kube.gke(Config.load(), "GET", "-/clusters").get("clusters", [])
    ]
    if as_json:
        return terminal.show_json(found)
    cells = [[*map(str, [*row.values()][:4]), "yes" if row["berg"] else "no", ", ".join(row["pools"])]
             for row in found]  # fmt: skip
    return terminal.show_table(["NAME", "LOCATION", "STATUS", "NODES", "BERG'S", "POOLS"], cells)


def status_of(config: Config, row: Row) -> dict[str, Any]:
    """A cluster as it is now."""
    try:
        nodes = kube.items(config, kube.connect(config, row), "/api/v1/nodes")
    except (GoogleError, BergError) as error:
        terminal.warn(f"its nodes are not known: {error}")
        nodes = []
    causes = [each for thing in (row, *row["nodePools"]) for each in thing.get("conditions", [])]
    return {
        "name": row["name"],
        "location": row["location"],
        "state": row.get("status", ""),
        "problems": "; ".join(f"{each.get('code')}: {each.get('message')}" for each in causes),
        "pools": [*map(pool_about, row["nodePools"])],
        "nodes": [*map(node_about, nodes)],
        "pods": [
            {"pod": pod.pod, "name": pod.name, "job": pod.job, "status": pod.status,
             "note": pod.note, "user": pod.user}
            for pod in pods.machines(config, "", kube.place(row))
        ],
    }  # fmt: skip


def pool_about(pool: Row) -> Row:
    count = kube.gpus_of(pool)[1]
    return {
        "pool": pool["name"],
        "machine_type": pool["config"].get("machineType", ""),
        "gpus": f"{count} x {pods.name_of(pool)}" if count else "",
        "spot": bool(pool["config"].get("spot")),
        "max_nodes": kube.most_nodes(pool),
        "status": pool.get("status", ""),
    }


def node_about(node: Row) -> Row:
    """A node; while GPUs' drivers are installed it has none."""
    conditions = {row["type"]: row["status"] for row in node["status"].get("conditions", [])}
    return {
        "node": node["metadata"]["name"],
        "pool": node["metadata"].get("labels", {}).get(f"{kube.LABEL}nodepool", ""),
        "ready": conditions.get("Ready") == "True",
        "gpus": int(node["status"].get("allocatable", {}).get("nvidia.com/gpu", 0)),
    }


@cluster.command()
@click.argument("name")
@click.option("--kubectl", is_flag=True, help="Add the cluster to kubectl's configuration.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(name: str, kubectl: bool, as_json: bool) -> None:
    """Show a cluster's pools and nodes, and what the pods of jobs wait for.

    \b
    berg cluster status train
    berg cluster status train --kubectl && kubectl get pods
    """
    config = Config.load()
    row = kube.find(config, name)
    if kubectl:
        return terminal.say(f"kubectl's context is now {add_to_kubectl(config, row)}")
    found = status_of(config, row)
    if as_json:
        return terminal.show_json(found)
    terminal.say(f"{name} in {found['location']} is {found['state']} {found['problems']}".rstrip())
    for rows in (found["pools"], found["nodes"], found["pods"]):
        if rows:
            cells = [[str(cell) for cell in row.values()] for row in rows]
            terminal.show_table([key.upper() for key in rows[0]], cells)
    return None


def add_to_kubectl(config: Config, row: Row) -> str:
    """Write a cluster into kubectl's own configuration, under the name that gcloud gives it."""
    server = kube.connect(config, row)
    name = f"gke_{config.project}_{kube.place(row).replace('/', '_')}"
    authority = [f"--certificate-authority={server.ca}", "--embed-certs=true"] if server.ca else []
    program, *words = kube.program()
    calling = [f"--exec-command={program}", f"--exec-api-version={kube.EXEC}"]
    calling += [f"--exec-arg={word}" for word in words]
    for each in (
        ["set-cluster", name, f"--server={server.url}", *authority],
        ["set-credentials", name, *calling],
        [
            "set-context",
            name,
            f"--cluster={name}",
            f"--user={name}",
            f"--namespace={kube.NAMESPACE}",
        ],
        ["use-context", name],
    ):
        done = subprocess.run([kube.kubectl(), "config", *each], capture_output=True, text=True)
        if done.returncode:
            raise BergError(f"kubectl config {each[0]} failed: {done.stderr.strip()}")
    return name


@cluster.command(hidden=True)
def token() -> None:
    """Print the user's token, as kubectl reads it."""
    sys.stdout.write(kube.token(Config.load()))


@cluster.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def delete(name: str, yes: bool, as_json: bool) -> None:
    """Delete the cluster NAME with its nodes and all that runs there.

    \b
    berg cluster delete train
    """
    config = Config.load()
    row = kube.find(config, name)
    place = kube.place(row)
    running = ", ".join(sorted({pod.job for pod in pods.machines(config, "", place)}))
    terminal.say(f"{name} in {row['location']}: {running or 'no job'} runs there")
    if not terminal.confirm(f"Delete the cluster {name} for ever?", yes, "-y"):
        raise BergError("nothing was deleted")
    path = f"{row['location']}/clusters/{row['name']}"
    kube.change(config, place, "DELETE", path, None, f"deleting {name}")
    terminal.say(f"Deleted the cluster {name}")
    if as_json:
        terminal.show_json([{"name": name, "done": "deleted"}])
