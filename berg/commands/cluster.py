"""The commands for clusters: create, list, status, resize, admit, cache, delete; for programs
token, exec.
"""

import shutil
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click

from berg import BergError, config, plain
from berg.commands.terminal import (
    confirm,
    given,
    json_option,
    pool_options,
    print_data,
    say,
    table,
    yes_option,
)


@click.group()
def cluster() -> None:
    """Create Kubernetes clusters, whose pods run jobs.

    \b
    berg cluster create train -t t4 -g 2
    berg run --cluster train -m 2 -g 2 --each "torchrun train.py"
    berg cluster delete train
    """


@cluster.command()
@click.argument("name", required=False)
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False),
    help="TOML file with the name and the pools, without other options.",
)
@pool_options
@yes_option
def create(name: str | None, file: str | None, yes: bool, **options: Any) -> None:
    """Create the cluster NAME, or add a pool of other nodes to it.

    It has one small node for itself, and nodes for jobs only while jobs need them. Google installs
    the GPUs' drivers. After an interruption the same command continues. If kubectl is installed,
    the cluster is added to its configuration.

    \b
    berg cluster create gke-dist --num-nodes 2 --machine-type n1-standard-4 -t t4 -g 2
    berg cluster create gke-dist -t t4 -g 2 --spot
    berg cluster create gke-dist --tpu v5e-4x4 --spot
    berg cluster create -f cluster.toml       # what berg cluster status gke-dist --toml prints
    """
    if (name is None) == (file is None):
        raise click.UsageError("give a name, or --file with one in it")
    settings = config.load_ready()
    from berg.gke import clusters

    wanted = [clusters.Wanted(**options)]
    if file:
        if others := given(click.get_current_context(), options):
            raise click.UsageError(
                f"{file} has all options of the cluster: leave out {min(others)}"
            )
        name, wanted = clusters.read(file)
    question = clusters.question(settings, wanted)
    confirm(question, yes=yes or not question)
    for each in wanted:
        place = clusters.create(settings, name or "", each, say)
    if shutil.which("kubectl"):
        try:
            say(f"kubectl's context is now {clusters.credentials(settings, name or '')}")
        except BergError as error:
            say(error.message)
    say(f'\nRun a job:  berg run --cluster {name} "python train.py"')
    say(f"Delete it:  berg cluster delete {name}\n")
    plain.echo(place)


@cluster.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """Show the clusters of the project.

    \b
    berg cluster list
    """
    settings = config.load_ready()
    from berg.gke import container

    found = []
    rows = [["NAME", "LOCATION", "STATUS", "NODES", "BERG'S", "POOLS"]]
    for each in container.clusters(settings):
        about = {
            "name": each["name"],
            "location": each["location"],
            "status": each.get("status", ""),
            "nodes": each.get("currentNodeCount", 0),
            "berg": container.is_ours(each),
            "pools": [pool["name"] for pool in container.pools(each)],
        }
        found.append(about)
        is_ours = "yes" if about["berg"] else "no"
        cells = [about["name"], about["location"], about["status"], str(about["nodes"])]
        rows.append([*cells, is_ours, ", ".join(about["pools"])])
    if not found and not as_json:
        say("No clusters. To create one: berg cluster create NAME")
        return
    print_data(found, table(rows), as_json)


@cluster.command()
@click.argument("name")
@click.option("--toml", is_flag=True, help="Print the file for berg cluster create -f.")
@click.option("--kubectl", is_flag=True, help="Add the cluster to kubectl's configuration.")
@json_option
def status(name: str, toml: bool, kubectl: bool, as_json: bool) -> None:
    """Show a cluster's nodes, its GPUs with their drivers, and what the pods of jobs wait for.

    \b
    berg cluster status train
    berg cluster status train --toml >cluster.toml
    berg cluster status train --kubectl && kubectl get pods
    """
    if toml + kubectl + as_json > 1:
        raise click.UsageError("give one of --toml, --kubectl and --json")
    settings = config.load_ready()
    from berg.commands import tables
    from berg.gke import clusters, container

    if kubectl:
        say(f"kubectl's context is now {clusters.credentials(settings, name)}")
        return
    if toml:
        plain.echo(clusters.text(container.find(settings, name)), nl=False)
        return
    found = clusters.status(settings, container.find(settings, name))
    text = tables.cluster(found, tables.cluster_cost(settings, found))
    print_data(asdict(found), text, as_json)


@cluster.command()
@click.argument("name")
@click.option("--pool", help="Pool of nodes.  [default: the one for jobs]")
@click.option("--min-nodes", type=int, help="Nodes at least.")
@click.option("--max-nodes", type=int, help="Nodes at most.")
@click.option("--num-nodes", type=int, help="Nodes right now.")
def resize(
    name: str, pool: str | None, min_nodes: int | None, max_nodes: int | None, num_nodes: int | None
) -> None:
    """Change how many nodes a cluster has for jobs.

    \b
    berg cluster resize train --max-nodes 8
    berg cluster resize train --num-nodes 0
    """
    if min_nodes is None and max_nodes is None and num_nodes is None:
        raise click.UsageError("give --max-nodes, --min-nodes or --num-nodes")
    settings = config.load_ready()
    from berg.gke import clusters

    chosen = clusters.resize(settings, name, pool, min_nodes, max_nodes, num_nodes, say)
    say(f"Changed the pool {chosen} of {name}. See: berg cluster status {name}")


@cluster.command()
@click.argument("name")
@click.argument("user")
def admit(name: str, user: str) -> None:
    """Give the pods of USER a namespace of their own in the cluster NAME.

    Users with roles/container.admin do not need it: their first job creates the namespace.

    \b
    berg cluster admit train alice
    """
    settings = config.load_ready()
    from berg.gke import clusters

    namespace = clusters.admit(settings, name, config.label(user))
    say(f"The jobs of {user} run in the namespace {namespace} of {name}")


@cluster.command()
@click.argument("name")
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete the cluster NAME with its nodes and everything that runs there.

    \b
    berg cluster delete train
    """
    settings = config.load_ready()
    from berg.gke import clusters, container

    found = clusters.status(settings, container.find(settings, name))
    jobs = sorted({each["job"] for each in found.pods})
    running = f"jobs {', '.join(jobs)}" if jobs else "no job"
    say(f"{found.name} in {found.location}: {len(found.nodes)} nodes, {running}")
    confirm("Delete it permanently?", yes)
    clusters.delete(settings, name, say)
    say(f"Deleted the cluster {name}")


@cluster.command()
@click.argument("name")
@click.option("--size", type=int, metavar="GB", help="Create it, or change its size.")
@click.option("--delete", "is_to_go", is_flag=True, help="Delete it with its node.")
@yes_option
@json_option
def cache(name: str, size: int | None, is_to_go: bool, yes: bool, as_json: bool) -> None:
    """Show, create or delete the dataset cache of the cluster NAME.

    The cache is NGINX on its own node, which costs money until it is deleted. Jobs that start after
    that find it in BERG_CACHE_URL: $BERG_CACHE_URL/BUCKET/OBJECT is what
    https://storage.googleapis.com/BUCKET/OBJECT is, with the same token. It serves only what Cloud
    Storage lets the job read. A new size empties it. Jobs must be able to read from the bucket
    again when it is deleted; the bucket keeps everything.

    \b
    berg cluster cache train --size 200       # GB
    berg cluster cache train                  # hit rate, contents
    berg cluster cache train --delete
    """
    if (size is not None) + is_to_go + as_json > 1:
        raise click.UsageError("give one of --size, --delete and --json")
    settings = config.load_ready()
    from berg import job
    from berg.commands import tables
    from berg.gke import cache as caches

    if is_to_go:
        confirm(f"Delete the dataset cache of {name}, and its node?", yes)
        caches.delete(settings, name, say)
        say(f"Deleted the dataset cache of {name}")
    elif size is not None:
        caches.deploy(settings, name, size, say)
        say(f"The dataset cache of {name} is ready. Hits: berg cluster cache {name}")
        say(f"It costs money until:  berg cluster cache {name} --delete")
    else:
        found = caches.look(settings, name)
        about = {**asdict(found), "hit_rate": found.hit_rate}
        since = about.pop("since")  # seconds since 1970; 0 if nothing was read
        moment = datetime.fromtimestamp(since, timezone.utc)
        about["since_at"] = job.timestamp(moment) if since else ""
        print_data(about, tables.cache(found), as_json)


@cluster.command(hidden=True)
def token() -> None:
    """Print your credentials as kubectl reads them from a program.

    \b
    berg cluster token
    """
    from berg.gke import clusters

    plain.echo(clusters.token(config.load_ready()))


@cluster.command(name="exec", hidden=True)
@click.argument("place")
@click.argument("pod")
@click.argument("command", nargs=-1, required=True)
@click.option("--tty", "terminal", is_flag=True, help="Give it a terminal.")
def exec_(place: str, pod: str, command: tuple[str, ...], terminal: bool) -> None:
    """Run a command in a pod; berg ssh uses it.

    \b
    berg cluster exec us-central1-a/train berg-alice/job-x7k2p -- nvidia-smi
    """
    settings = config.load_ready()
    from berg.gke import client

    sys.exit(client.run(client.connect(settings, place), pod, list(command), terminal))


COMMANDS = (cluster,)
