"""What this host lets us build machines of: tried once, and explained in sentences."""

import os
import shutil
from pathlib import Path

from localcloud.machines.processes import wait_for_boot
from localcloud.machines.sandbox import (
    LOCALHOST,
    OVERLAY,
    PLAIN,
    Machine,
    Sandbox,
    boot,
    remove,
    ssh_obstacle,
)


def abilities(folder: Path) -> dict:
    """Try what this host allows, in a scratch folder; say in sentences what machines will lack."""
    if not shutil.which("unshare"):
        return describe(Sandbox(PLAIN), "the program `unshare` (package util-linux) is missing")
    reason = ""
    for user in [False, True] if os.geteuid() == 0 else [True]:
        sandbox = Sandbox(OVERLAY, user)
        probe = Machine(
            folder / "probe", "probe", LOCALHOST, 0, None, "#!/bin/sh\nexec kill -TERM 1\n"
        )
        process = boot(probe, sandbox)
        works = wait_for_boot(probe.folder, process)
        if not works:
            process.kill()
        process.wait()
        reason = (probe.folder / "serial.log").read_text().strip().rpartition("\n")[2]
        remove(probe.folder)
        if works:
            return describe(sandbox, "")
    return describe(Sandbox(PLAIN), reason)


def describe(sandbox: Sandbox, reason: str) -> dict:
    limits = []
    if sandbox.files == PLAIN:
        limits.append(
            f"Namespaces or overlay mounts do not work here ({reason}): machines are plain process trees that "
            "share the host's name, files and /tmp. The folder in BERG_ROOT is used as their /root."
        )
    if sandbox.user:
        limits.append(
            "Without root, apt-get does not work in machines (the system's files belong to another user there), and "
            "metadata servers do not answer on port 80 (GCE_METADATA_HOST tells the port that does). Who logs in by "
            "ssh, on port 2222, has the number 1000 instead of 0."
        )
    if obstacle := ssh_obstacle(sandbox):
        limits.append(
            f"ssh into machines does not work here: {obstacle}. `berg ssh` and `berg sync` need it."
        )
    limits.append(
        "Machines share the host's network ports; each has a loopback address of its own."
    )
    return {"files": sandbox.files, "user_namespace": sandbox.user, "limits": limits}
