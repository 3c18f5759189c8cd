"""The commands for machines to work on, ssh, sync, stop, start, open; and for clusters, cluster."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from berg import BergError, computer, config, plain
from berg.commands.terminal import (
    answer_option,
    confirm,
    done,
    failed,
    given,
    json_option,
    name_argument,
    names_argument,
    pool_options,
    print_data,
    ready,
    say,
    secrets_option,
    table,
    yes_option,
)


@click.command()
@name_argument()
@click.argument("command", metavar="[-- CMD…]", nargs=-1)
@click.option(
    "-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Forward a port; repeatable."
)
@click.option("-N", "no_command", is_flag=True, help="Only forward ports.")
@click.option("-t", "terminal", is_flag=True, help="Give CMD a terminal.")
@click.option("-A", "agent", is_flag=True, help="Let the machine use your ssh agent.")
@click.option(
    "--worker",
    type=click.IntRange(0),
    metavar="N",
    help="Of several machines, the one whose BERG_NODE_RANK is N.",
)
@click.option(
    "--all",
    "everywhere",
    is_flag=True,
    help="Run CMD on every machine; each line starts with its name.",
)
@click.option("--dry-run", is_flag=True, help="Print the ssh command, and stop.")
def ssh(
    name: str, command: tuple[str, ...], worker: int | None, everywhere: bool, **options: Any
) -> None:
    """Log in to the machine NAME, or run CMD there.

    NAME is a machine or a job; of several machines it is the first one. berg waits while a machine
    boots. This is plain OpenSSH with gcloud's key and without ~/.ssh/config. CMD runs in the folder
    of the repo, by the machine's shell; the exit code is that of CMD, with --all that of the first
    machine on which it failed.

    \b
    berg ssh my-devbox
    berg ssh my-devbox -L 6006:localhost:6006 -N     # TensorBoard on http://localhost:6006
    berg ssh my-devbox -- nvidia-smi
    berg ssh my-slice --worker 3
    berg ssh my-slice --all -- uptime
    tar c data | berg ssh my-devbox -- tar x -C /root
    """
    settings, name = ready(name)
    from berg.laptop import ssh

    if everywhere:
        if not command or worker is not None or any(options.values()):
            raise click.UsageError(
                "--all takes a command and no other option: berg ssh NAME --all -- CMD"
            )
        sys.exit(ssh.run_everywhere(settings, name, list(command), say, plain.echo))
    if worker is not None:
        name = ssh.worker(settings, name, worker, say)
    log_in(settings, name, command, **options)


def log_in(
    settings: config.Config,
    name: str,
    command: tuple[str, ...],
    forwards: tuple[str, ...],
    no_command: bool,
    terminal: bool,
    agent: bool,
    dry_run: bool,
) -> None:
    """Become ssh on a machine, or print its command; without a server in a pod, become a shell."""
    from berg.laptop import ssh

    try:
        target = ssh.find_target(settings, name, say)
    except ssh.NoServer as error:
        if not error.shell or any((forwards, no_command, agent)):
            raise
        say(f"{error.message}. Using Kubernetes' exec instead")
        program = " ".join(ssh.in_repo(list(command))) or "exec bash -l || exec sh"
        tty = ["--tty"] if terminal or not command else []
        os.execv(error.shell[0], [*error.shell, *tty, "--", "sh", "-c", program])
    if "start-iap-tunnel" in target.proxy and not target.address:
        account = computer.gcloud_account() or "the one that `gcloud auth list` shows"
        say(f"Through Identity-Aware Proxy, with gcloud's account: {account}")
    flags = ssh_flags({"-N": no_command, "-t": terminal, "-A": agent}, forwards)
    words = ssh.command(settings, target, flags, ssh.in_repo(list(command)))
    if dry_run:
        plain.echo(shlex.join(words))
        return
    for forward in forwards:
        ssh.check_port(forward)
    os.execv(ssh.require("ssh"), words)


def ssh_flags(switches: dict[str, bool], forwards: tuple[str, ...]) -> list[str]:
    flags = [flag for flag, is_on in switches.items() if is_on]
    for forward in forwards:
        flags += ["-L", forward]
    if forwards:
        flags += ["-o", "ExitOnForwardFailure=yes"]
    return flags


@click.command()
@name_argument()
@click.option("--once", is_flag=True, help="Push once, and stop.")
@secrets_option
@answer_option
def sync(name: str, once: bool, send_secrets: bool) -> None:
    """Push the working tree to machines, again on every change.

    It goes to /root/code/<repo> on all machines of NAME until Ctrl-C: tracked files, and untracked
    ones that are not ignored. What is deleted here is deleted there. Ignored files on the machines,
    and files created there, stay. Files that look like secrets are named and not pushed, unless
    --send-secrets is given, or you agreed to send them before.

    \b
    berg devbox -n my-devbox
    berg sync my-devbox
    berg sync my-devbox --once && berg ssh my-devbox -- python train.py
    """
    settings, name = ready(name)
    from berg.laptop import sync as pushing

    try:
        pushing.sync(settings, name, Path.cwd(), say, once, send_secrets)
        done(f"Pushed to {name}", name=name, done="pushed")
    except KeyboardInterrupt:
        if once:
            raise
        say("Stopped. What was pushed stays on the machines")


@click.command()
@names_argument
@click.option("--now", is_flag=True, help="Stop at once, without waiting for the last results.")
@yes_option
@answer_option
def stop(names: tuple[str, ...], now: bool, yes: bool) -> None:
    """Turn devboxes off, and keep their disks.

    What runs there ends and its last results are uploaded. A stopped devbox costs only its disk and
    is never deleted automatically: berg reap offers it after 14 days (the setting
    max_stopped_days). What is on local SSDs (/mnt/scratch) is lost: berg asks first.

    \b
    berg stop box
    berg start box
    """
    settings = config.load_ready()
    from berg.laptop import power

    def stop_one(name: str) -> str:
        question = "" if yes else power.question(settings, name)
        confirm(question, yes=not question)
        return power.stop(settings, name, now, say)

    sys.exit(for_each(settings, names, "stopped", stop_one))


@click.command()
@names_argument
@click.option("--move", is_flag=True, help="If the zone has no capacity, move to another zone.")
@click.option("--rescue", is_flag=True, help="Only for login: no installation, worker or checks.")
@answer_option
def start(names: tuple[str, ...], move: bool, rescue: bool) -> None:
    """Turn stopped devboxes on again.

    Waits until they answer. Nothing is installed again, and --max-hours starts again. If the zone
    has no capacity, the devbox stays off; with --move its disk is copied by a snapshot to a new
    machine in another zone of the region, and the old machine is deleted when the new one answers.

    \b
    berg start box
    berg start box --move
    berg start box --rescue
    berg ssh box
    """
    settings = config.load_ready()
    from berg.laptop import power

    def turn_on(name: str) -> str:
        return power.start(settings, name, move, rescue, say)

    sys.exit(for_each(settings, names, "started", turn_on))


def for_each(
    settings: config.Config, names: tuple[str, ...], verb: str, step: Callable[[str], str]
) -> int:
    """Do something with devboxes in parallel, and print what each became; return the exit code.

    `verb`: what was done to them, in one word.
    """
    from concurrent.futures import ThreadPoolExecutor

    from berg.laptop import lookup

    _ = settings.credentials  # before threads use it
    full = list(dict.fromkeys(lookup.resolve(settings, name) for name in names))
    pool, code = ThreadPoolExecutor(8), 0
    left = set(full)
    # In this thread Ctrl-C ends what runs, which cleans up.
    running = {name: pool.submit(step, name) for name in full} if len(full) > 1 else {}
    try:
        for name in full:
            try:
                became = running[name].result() if running else step(name)
                done(f"{name} {became}", name=name, done=verb, became=became)
            except Exception as error:
                code = failed(name, error)
            left.remove(name)
    except KeyboardInterrupt:
        say(f"Not waited for: {', '.join(sorted(left))}. See what becomes of it: berg list")
        if not running:
            raise
        sys.stderr.flush()
        os._exit(130)  # sys.exit would wait for the threads
    return code


@click.command(name="open")
@name_argument()
@click.option("--jupyter", is_flag=True, help="Open Jupyter in the browser here: the default.")
@click.option("--code", is_flag=True, help="Print the command that opens VS Code there over ssh.")
@click.option("--no-browser", is_flag=True, help="Only print the file that opens Jupyter.")
def open_(name: str, jupyter: bool, code: bool, no_browser: bool) -> None:
    """Open Jupyter of a machine in the browser, or an editor.

    Jupyter is started on the machine NAME if it does not run, and continues after Ctrl-C. It is
    reached through ssh. Its token is in no command line: the browser gets a file that only you can
    read. --code prints the command for VS Code, and offers an Include line for ~/.ssh/config, by
    which ssh, rsync and editors know your machines by name.

    \b
    berg open my-devbox
    berg open my-devbox --code
    """
    if code and (jupyter or no_browser):
        raise click.UsageError("--code does not open Jupyter: leave out the other options")
    settings, name = ready(name)
    if code:
        open_editor(settings, name)
        return
    import webbrowser

    from berg.laptop import ssh

    with (
        contextlib.suppress(KeyboardInterrupt),
        ssh.jupyter(settings, name, say) as (page, tunnel),
    ):
        is_shown = not no_browser and webbrowser.open(page.as_uri())
        how = "Jupyter is in the browser" if is_shown else f"Open in a browser: {page.as_uri()}"
        say(f"{how}\nThe tunnel is open until Ctrl-C")
        tunnel.wait()
    say(f"The tunnel is closed. Jupyter still runs on {name}")


def open_editor(settings: config.Config, name: str) -> None:
    """Print the command for VS Code on a machine, after asking to let ssh know it by its name."""
    from berg.laptop import jobs
    from berg.laptop import ssh as login

    target = login.find_target(settings, name, say)
    login.warn(target.machine, say)
    if not login.is_included():
        line, file = login.include_line(), login.user_config()
        question = f"Add `{line}` to {file}, so that ssh knows machines by name?"
        if plain.is_terminal(sys.stdin) and click.confirm(question, default=True, err=True):
            login.include()
        else:
            say(f"To let ssh know machines by name, put at the beginning of {file}:  {line}")
    summary = jobs.find(settings, name).summary
    folder = f"/root/code/{summary.repo}".rstrip("/")
    plain.echo(shlex.join(["code", "--remote", f"ssh-remote+{target.machine}", folder]))


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
@json_option
def create(name: str | None, file: str | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Create the cluster NAME, or add a pool of other nodes to it.

    It has one small node for itself, and nodes for jobs only while jobs need them. After an
    interruption the same command continues. If kubectl is installed, the cluster is added to its
    configuration.

    \b
    berg cluster create gke-dist --num-nodes 2 --machine-type n1-standard-4 -t t4 -g 2
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
    say(f'\nRun a job:  berg run --cluster {name} "python train.py"')
    say(f"Delete it:  berg cluster delete {name}\n")
    if shutil.which("kubectl"):
        try:
            say(f"kubectl's context is now {clusters.credentials(settings, name or '')}")
        except BergError as error:
            say(error.message)
    print_data({"name": name, "place": place}, place, as_json)


@cluster.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """Show the clusters of the project.

    \b
    berg cluster list
    """
    settings = config.load_ready()
    from berg.gke import client

    found = []
    rows = [["NAME", "LOCATION", "STATUS", "NODES", "BERG'S", "POOLS"]]
    for each in client.clusters(settings):
        about = {
            "name": each["name"],
            "location": each["location"],
            "status": each.get("status", ""),
            "nodes": each.get("currentNodeCount", 0),
            "berg": client.is_ours(each),
            "pools": [pool["name"] for pool in client.pools(each)],
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
    from berg.gke import client, clusters

    if kubectl:
        say(f"kubectl's context is now {clusters.credentials(settings, name)}")
        return
    if toml:
        plain.echo(clusters.text(client.find_cluster(settings, name)), nl=False)
        return
    found = clusters.status(settings, client.find_cluster(settings, name))
    text = tables.cluster(found, tables.cluster_cost(settings, found))
    print_data(asdict(found), text, as_json)


@cluster.command()
@click.argument("name")
@click.option("--pool", help="Pool of nodes.  [default: the one for jobs]")
@click.option("--min-nodes", type=int, help="Nodes at least.")
@click.option("--max-nodes", type=int, help="Nodes at most.")
@click.option("--num-nodes", type=int, help="Nodes right now.")
@answer_option
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
    text = f"Changed the pool {chosen} of {name}. See: berg cluster status {name}"
    done(text, name=name, done="resized", pool=chosen)


@cluster.command()
@click.argument("name")
@click.argument("user")
@answer_option
def admit(name: str, user: str) -> None:
    """Give the pods of USER a namespace of their own in the cluster NAME.

    Users with roles/container.admin do not need it: their first job creates the namespace.

    \b
    berg cluster admit train alice
    """
    settings = config.load_ready()
    from berg.gke import clusters

    namespace = clusters.admit(settings, name, config.label(user))
    text = f"The jobs of {user} run in the namespace {namespace} of {name}"
    done(text, name=name, done="admitted", user=user, namespace=namespace)


@cluster.command()
@click.argument("name")
@yes_option
@answer_option
def delete(name: str, yes: bool) -> None:
    """Delete the cluster NAME with its nodes and everything that runs there.

    \b
    berg cluster delete train
    """
    settings = config.load_ready()
    from berg.gke import client, clusters

    found = clusters.status(settings, client.find_cluster(settings, name))
    jobs = sorted({each["job"] for each in found.pods})
    running = f"jobs {', '.join(jobs)}" if jobs else "no job"
    say(f"{found.name} in {found.location}: {len(found.nodes)} nodes, {running}")
    confirm("Delete it permanently?", yes)
    clusters.delete(settings, name, say)
    done(f"Deleted the cluster {name}", name=name, done="deleted")


@cluster.command()
@click.argument("name")
@click.option("--size", type=int, metavar="GB", help="Create it, or change its size.")
@click.option("--delete", "is_to_go", is_flag=True, help="Delete it with its node.")
@yes_option
@json_option
def cache(name: str, size: int | None, is_to_go: bool, yes: bool, as_json: bool) -> None:
    """Show, create or delete the dataset cache of the cluster NAME.

    The cache is NGINX on its own node, which costs money until it is deleted. Jobs that start after
    that read $BERG_CACHE_URL/BUCKET/OBJECT with their own token. A new size empties it.

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
        about["since_at"] = job.timestamp(since) if since else ""
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


COMMANDS = (ssh, sync, stop, start, open_, cluster)
