"""Logins: who can log in to this machine by ssh, which machines it knows, and what a shell has.

People log in with the keys in the metadata, the first machine of a job with a key of its own.
Private keys never leave their machine.

With that key `mpi PROGRAM…` on the first machine runs PROGRAM on all machines, one process per GPU,
by Open MPI's mpirun with the options that a cluster of Berg's needs.
"""

import contextlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from berg import BergError, computer
from berg.google import api
from berg.machine import boot
from berg.machine.peers import CLUSTER_FILE, HOST_FILE, Member, Node, announce, interface
from berg.machine.process import MOST_FILES

SSH = boot.SSH
HOST_KEY = boot.BERG / "ssh_host_key"  # of a pod
NODE_KEY = SSH / "berg_node_key"
ENVIRONMENT = boot.BERG / "environment.sh"
PROFILE = Path("/etc/profile.d/berg.sh")
RAISE_LIMITS = f"""\
{{ ulimit -n {MOST_FILES} || ulimit -n "$(ulimit -Hn)"; ulimit -l unlimited; }} 2>/dev/null || :
"""
SSHD_CONFIG = Path("/etc/ssh/sshd_config")
# Variables of a machine or a login; processes on other machines get all the others.
OWN = {"BERG_NODE_RANK", "DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD"}
OWN |= {"SHELL", "SHLVL", "TERM", "USER", "_"}
OWN_PREFIXES: tuple[str, ...] = ("BASH_FUNC_", "GCE_METADATA_", "OMPI_", "PET_", "PMIX_", "PRTE_")
OWN_PREFIXES += ("SSH_", "TMUX", "XDG_")


def become_reachable(member: Member) -> None:
    """Let people and the job's other machines log in; nothing of the job itself waits for it."""
    if member.leads and not member.is_alone:
        make_node_key(member.node)
    open_to_ssh(member)
    if member.node.introduced:
        tell_ready(member)
    announce(member)


def tell_ready(member: Member) -> None:
    """Write this machine's rank and the port of its ssh server (0: none) to its guest attributes:
    from now on a login has what a command of the job has.
    """
    if member.host.is_pod:
        return
    node = member.node
    ready = f"{node.rank} {node.ssh_port if node.host_keys else 0}"
    try:
        write_attributes("berg", {"ssh": ready}, member.machine.instance())
    except OSError as error:
        member.machine.say(f"berg ssh will not know this machine: {error} for its ssh server")


def open_to_ssh(member: Member) -> None:
    """Let the people log in whose keys the metadata has, and read this machine's host keys."""
    node = member.node
    if member.host.is_pod:
        node.host_keys = open_pod_to_ssh(member.job.kind == "devbox")
        return
    about = member.machine.instance()
    boot.install_keys(about.get("attributes", {}).get("ssh-keys", ""))
    if not SSHD_CONFIG.exists():  # no server, or none that may run here
        return
    if found := re.search(r"^Port\s+(\d+)", SSHD_CONFIG.read_text(), re.M):
        node.ssh_port = int(found[1])
    drop_in = SSHD_CONFIG.with_name("sshd_config.d")
    if shutil.which("systemctl") and drop_in.is_dir():  # Google's images forbid root
        (drop_in / "00-berg.conf").write_text("PermitRootLogin prohibit-password\n")
        subprocess.run(["systemctl", "reload", "ssh"], capture_output=True)
    api.wait_for(lambda: computer.listens(node.internal_ip, node.ssh_port), 0.05, 60)
    for file in sorted(SSHD_CONFIG.parent.glob("ssh_host_*_key.pub")):
        node.host_keys.append(" ".join(file.read_text().split()[:2]))
    try:  # as Google's guest agent does; gcloud reads them, too
        write_attributes("hostkeys", dict(each.split() for each in node.host_keys), about)
    except OSError as error:
        member.machine.say(f"berg ssh will not know this machine: {error} for its host keys")


def open_pod_to_ssh(install: bool) -> list[str]:
    """Prepare a pod's ssh server, which the cluster's API starts for each connection; return its
    public host keys, none if the image has no server.

    With `install`, install it and rsync from Debian's packages.
    """
    if install and not (shutil.which("sshd", path="/usr/sbin:/usr/bin") and shutil.which("rsync")):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ["--no-install-recommends", "openssh-server", "rsync"]
        for words in (["update", "-q"], ["install", "-q", "-y", *packages]):
            subprocess.run(["apt-get", *words], env=environment, stdout=subprocess.DEVNULL)
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        return []
    Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    if not HOST_KEY.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(HOST_KEY)]
        subprocess.run(command, check=True, capture_output=True)
    return [" ".join(HOST_KEY.with_suffix(".pub").read_text().split()[:2])]


def write_attributes(namespace: str, values: dict[str, str], instance: dict[str, Any]) -> None:
    """Write values to a namespace of the guest attributes, unless they are there.

    Only this machine can write those. Raise OSError if the metadata server takes none.
    """
    there = instance.get("guestAttributes", {}).get(namespace, {})
    for key, value in values.items():
        if there.get(key) != value:
            url = f"{boot.METADATA}instance/guest-attributes/{namespace}/{key}"
            boot.request(url, "PUT", value.encode(), boot.FLAVOR)


def make_node_key(node: Node) -> None:
    """Make the key with which the first machine logs in to the others."""
    SSH.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not NODE_KEY.exists() and shutil.which("ssh-keygen"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", node.name]
        subprocess.run([*command, "-f", str(NODE_KEY)], check=True, capture_output=True)
    if NODE_KEY.exists():
        node.node_key = NODE_KEY.with_suffix(".pub").read_text().strip()


def introduce(member: Member, variables: dict[str, str]) -> None:
    """Make the job's machines known here by name: to people, programs, ssh and `mpi`. Logins get
    `variables`, those of a command of the job.
    """
    write_cluster_files(member, variables)
    if not member.job.on:  # logins are to the devbox
        equip_shells(variables)
    member.node.introduced = True
    if len(member.nodes) > 1:
        let_ssh_know(member.nodes)
        others = [each for each in member.nodes if each.name != member.node.name]
        with contextlib.suppress(OSError), Path("/etc/hosts").open("a") as file:
            file.writelines(f"{other.internal_ip} {other.name}\n" for other in others)


def write_cluster_files(member: Member, variables: dict[str, str]) -> None:
    """Write the files by which `mpi` and other programs know the machines."""
    HOST_FILE.write_text("".join(f"{n.name} slots={n.slots}\n" for n in member.nodes))
    known = {
        "rank": member.node.rank,
        "nodes": [asdict(n) for n in member.nodes],
        "environment": variables,
        "pods": member.host.is_pod,
    }
    CLUSTER_FILE.touch(mode=0o600)  # --env may hold what other users must not read
    CLUSTER_FILE.chmod(0o600)  # an existing file keeps its mode
    CLUSTER_FILE.write_text(json.dumps(known))


def secrets_here(names: list[str]) -> dict[str, str]:
    """Return those of a devbox's secrets that an earlier boot wrote to this disk."""
    there: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        there = json.loads(CLUSTER_FILE.read_text())["environment"]
    return {name: there[name] for name in names if name in there}


def let_ssh_know(nodes: list[Node]) -> None:
    """Let the first machine log in to the others, and know their host keys."""
    boot.add_lines(SSH / "authorized_keys", [n.node_key for n in nodes])  # the first has one
    port = nodes[0].ssh_port  # they are of one image
    form = "{}" if port == 22 else f"[{{}}]:{port}"
    hosts = [(f"{form.format(n.name)},{form.format(n.internal_ip)}", n.host_keys) for n in nodes]
    boot.add_lines(SSH / "known_hosts", [f"{host} {key}" for host, keys in hosts for key in keys])
    settings = [f"Host {' '.join(n.name for n in nodes)}", "  User root", f"  Port {port}"]
    settings += [f"  IdentityFile {NODE_KEY}", "  StrictHostKeyChecking yes"]
    boot.add_lines(SSH / "config", settings)


def equip_shells(variables: dict[str, str], folder: Path | None = None) -> None:
    """Let logins and commands over ssh have variables in their environment; with `folder`, a login
    with a terminal begins there.
    """
    lines = [f"export {key}={shlex.quote(value)}\n" for key, value in variables.items()]
    lines.append(RAISE_LIMITS)
    if folder:
        lines.append(f"case $- in *i*) cd {shlex.quote(str(folder))} ;; esac\n")
    computer.write(ENVIRONMENT, "".join(lines))  # which no other user may read, for --env
    read = f"[ ! -r {shlex.quote(str(ENVIRONMENT))} ] || . {shlex.quote(str(ENVIRONMENT))}"
    # A login reads the first file, or the second if the first cannot be written. A command over ssh
    # runs in a bash that reads the third, as does any bash inside of a session, which must keep
    # what was changed there.
    guarded = f'[ -n "${{BERG_JOB-}}" ] || {read}'
    files = (PROFILE, read), (boot.ROOT / ".profile", read), (boot.ROOT / ".bashrc", guarded)
    for file, line in files:
        with contextlib.suppress(OSError):
            # at the start: distributions end theirs early without a terminal
            there = file.read_text(errors="surrogateescape") if file.exists() else ""
            if not there.startswith(f"{line}\n"):
                file.write_text(f"{line}\n{there}", errors="surrogateescape")


# --- mpi


def mpi_command(
    nodes: list[dict[str, Any]],
    program: tuple[str, ...],
    procs: int | None,
    environment: dict[str, str],
) -> list[str]:
    """Return mpirun's command line for a program on machines; `procs` processes on each (None: one
    per slot).
    """
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if not mpirun:
        raise BergError(
            "there is no mpirun on this machine. Install Open MPI: apt-get install openmpi-bin"
        )
    slots = [procs or node["slots"] for node in nodes]
    hosts = ",".join(f"{node['name']}:{count}" for node, count in zip(nodes, slots, strict=True))
    names = [key for key in environment if key not in OWN and not key.startswith(OWN_PREFIXES)]
    # mpirun must not choose docker's network, or a loopback one.
    address, network = nodes[0]["internal_ip"], "lo"
    if address and not ipaddress.ip_address(address).is_loopback:
        network = interface(address)
    parameters = {
        "plm_rsh_agent": "ssh",
        # This machine starts every daemon: the others have no key for each other.
        "plm_rsh_no_tree_spawn": "1",
        "btl": "self,vader,tcp",
        "pml": "ob1",
        "btl_tcp_if_include": network,
        "oob_tcp_if_include": network,
    }
    words = [mpirun, "--allow-run-as-root", "--host", hosts, "-np", str(sum(slots))]
    # Consecutive ranks on one machine; a program's threads may use all of its cores.
    words += ["--map-by", "slot", "--bind-to", "none", "--oversubscribe"]
    for name, value in parameters.items():
        words += ["--mca", name, value]
    for name in sorted(names):
        words += ["-x", name]
    return [*words, *program]


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
)
@click.option(
    "--mpi-procs-per-machine", "procs", type=click.IntRange(1), help="Processes on each machine."
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def mpi(procs: int | None, program: tuple[str, ...]) -> None:
    """Run PROGRAM on all machines of this cluster, one process per GPU (or, without GPUs, per CPU).

    \b
    mpi python train.py
    mpi --mpi-procs-per-machine 2 ./a.out
    """
    try:
        known = json.loads(CLUSTER_FILE.read_text())
    except (OSError, ValueError):
        raise BergError(
            f"this machine is not ready: {CLUSTER_FILE} is missing. See: berg log"
        ) from None
    nodes = known["nodes"]
    if known["pods"] and len(nodes) > 1:
        raise BergError(
            "mpi needs ssh from machine to machine, which pods do not have. "
            "Start programs with: berg run --each"
        )
    if known["rank"] != 0:
        raise BergError(f"mpi runs on the first machine of a cluster: {nodes[0]['name']}")
    # Only a login shell has the job's variables.
    environment = {**os.environ, **({} if "BERG_JOB" in os.environ else known["environment"])}
    arguments = mpi_command(nodes, program, procs, environment)
    os.execve(arguments[0], arguments, environment)
