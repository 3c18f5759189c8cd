"""`mpi PROGRAM…` on the first machine of a cluster: PROGRAM on all machines, one process per GPU.

It runs Open MPI's mpirun with what a cluster of berg's needs, and ends with the program's exit
code.
"""

import ipaddress
import json
import os
import shutil
from typing import Any

import click

from berg import BergError
from berg.machine import peers

# Variables that belong to a machine or a login; programs elsewhere get all the others.
OWN = {
    "BERG_NODE_RANK",
    "DISPLAY",
    "HOME",
    "HOSTNAME",
    "LOGNAME",
    "MAIL",
    "OLDPWD",
    "PWD",
    "SHELL",
    "SHLVL",
    "TERM",
}
OWN |= {"USER", "_"}
OWN_PREFIXES = (
    "BASH_FUNC_",
    "GCE_METADATA_",
    "OMPI_",
    "PET_",
    "PMIX_",
    "PRTE_",
    "SSH_",
    "TMUX",
    "XDG_",
)


def command(
    nodes: list[dict[str, Any]],
    program: tuple[str, ...],
    procs: int | None,
    environment: dict[str, str],
) -> list[str]:
    """mpirun's command line for a program on machines; `procs` processes on each (None: one per
    slot).
    """
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if not mpirun:
        raise BergError(
            "there is no mpirun on this machine. Install Open MPI: apt-get install openmpi-bin"
        )
    slots = [procs or node["slots"] for node in nodes]
    hosts = ",".join(f"{node['name']}:{count}" for node, count in zip(nodes, slots, strict=True))
    names = [key for key in environment if key not in OWN and not key.startswith(OWN_PREFIXES)]
    network = interface_network(nodes[0]["internal_ip"])
    return [
        mpirun,
        "--allow-run-as-root",
        *("--host", hosts, "-np", str(sum(slots))),
        # Consecutive ranks on one machine; a program's threads may use all of its cores.
        *("--map-by", "slot", "--bind-to", "none", "--oversubscribe"),
        *("--mca", "plm_rsh_agent", "ssh"),
        # Every daemon is started from here: the others need no key of their own to reach each
        # other.
        *("--mca", "plm_rsh_no_tree_spawn", "1"),
        *("--mca", "btl", "self,vader,tcp", "--mca", "pml", "ob1"),
        *("--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network),
        *[word for name in sorted(names) for word in ("-x", name)],
        *program,
    ]


def interface_network(address: str) -> str:
    """Return the network of the machines: mpirun must not choose docker's or a loopback one."""
    if not address or ipaddress.ip_address(address).is_loopback:
        return "lo"
    return peers.interface(address)


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
            "mpi needs ssh from machine to machine, which pods have not. "
            "Start programs with: berg run --each"
        )
    if known["rank"] != 0:
        raise BergError(f"mpi runs on the first machine of a cluster: {nodes[0]['name']}")
    # Who is logged in has the job's variables only in a login shell.
    environment = {**os.environ, **({} if "BERG_JOB" in os.environ else known["environment"])}
    arguments = command(nodes, program, procs, environment)
    os.execve(arguments[0], arguments, environment)
