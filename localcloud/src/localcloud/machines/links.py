"""Network interfaces of machines that have several: a device on this computer for each, with its
hardware address, its MTU and its address.

Machines share this computer's network, so each sees the devices of all. Not covered: computers on
which the server is not root; there the metadata server alone shows the interfaces.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess

from localcloud.compute import networks
from localcloud.compute.state import Compute, Instance

log = logging.getLogger("localcloud")


def names(instance: Instance) -> list[str]:
    """The names of a machine's devices; none for a machine with one interface."""
    count = len(instance.resource["networkInterfaces"])
    mark = f"{int(instance.id) % 16**8:08x}"
    return [f"nic{number}-{mark}" for number in range(count)] if count > 1 else []


def up(compute: Compute, instance: Instance) -> None:
    lines = []
    interfaces = instance.resource["networkInterfaces"]
    for name, row in zip(names(instance), interfaces, strict=False):
        network, address = networks.network_at(compute, row["network"]) or {}, row["networkIP"]
        mtu = network.get("mtu", networks.MTU)
        lines += [
            f"link add {name} address {networks.mac_of(address)} mtu {mtu} type bridge",
            f"link set {name} addrgenmode none up",
            f"address add {address}/32 dev {name}",
        ]
    if lines:
        (compute.machine_folder(instance) / "sysfs").mkdir(
            parents=True, exist_ok=True
        )  # see boot.sh
        ip(lines)


def down(instance: Instance) -> None:
    ip([f"link delete {name}" for name in names(instance)])


def ip(lines: list[str]) -> None:
    if not lines or os.geteuid() != 0 or not shutil.which("ip"):
        return
    done = subprocess.run(
        ["ip", "-force", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True
    )
    if done.returncode:
        log.info("ip: %s", done.stderr.strip())
