"""`mpi PROGRAM…` on the first machine of a cluster: run PROGRAM on all machines, one process per
GPU, by Open MPI's mpirun, with the options that a cluster of berg's needs.
"""

import ipaddress
import json
import os
import shutil
from typing import Any

import click

from berg import BergError
from berg.machine import peers

# Variables of a machine or a login; processes on other machines get all the others.
OWN = {"BERG_NODE_RANK", "DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD"}
OWN |= {"SHELL", "SHLVL", "TERM", "USER", "_"}
OWN_PREFIXES: tuple[str, ...] = ("BASH_FUNC_", "GCE_METADATA_", "OMPI_", "PET_", "PMIX_", "PRTE_")
OWN_PREFIXES += ("SSH_", "TMUX", "XDG_")


def command(
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
        network = peers.interface(address)
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
def main(procs: int | None, program: tuple[str, ...]) -> None:
    """Run PROGRAM on all machines of this cluster, one process per GPU (or, without GPUs, per CPU).

    \b
    mpi python train.py
    mpi --mpi-procs-per-machine 2 ./a.out
    """
    try:
        known = json.loads(peers.CLUSTER_FILE.read_text())
    except (OSError, ValueError):
        raise BergError(
            f"this machine is not ready: {peers.CLUSTER_FILE} is missing. See: berg log"
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
    arguments = command(nodes, program, procs, environment)
    os.execve(arguments[0], arguments, environment)
