"""Local SSDs: sparse files of the machine's own, machines/<id>/local-ssds/<number>, which a stop empties.

Where the server is root, each is a loop device, which exists as long as a process of the machine has it
open or mounts it: nothing is left of it, however the machine ends. Elsewhere the machine finds the file, below
machines/<id>/disks, by the name that it has in /dev/disk/by-id.

Not covered: persistent disks other than the first.
"""

import os
import shutil
import subprocess
from pathlib import Path

from localcloud.compute import catalog
from localcloud.compute.state import Compute, Instance

SSD, SSDS = (
    "google-local-",
    "local-ssds",
)  # how names of Local SSDs begin; the folder of their files


def plug_ssds(compute: Compute, instance: Instance) -> list[int]:
    """Let a machine that is about to boot find its Local SSDs; return the open ones for it."""
    machine, opened = compute.machine_folder(instance), []
    (machine / "disks").mkdir(parents=True, exist_ok=True)
    for path in (machine / "disks").glob(f"{SSD}*"):
        path.unlink()
    rows = [row for row in instance.resource["disks"] if row["type"] == "SCRATCH"]
    for number, row in enumerate(rows):
        file = machine / SSDS / str(number)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.touch(mode=0o600)
        os.truncate(file, catalog.SSD_GB << 30)
        kind = "nvme-ssd" if row["interface"] == "NVME" else "ssd"
        name = machine / "disks" / f"{SSD}{kind}-{number}"
        try:
            device, descriptor = loop(file)
        except (OSError, subprocess.CalledProcessError):  # this host has none
            name.hardlink_to(file)
        else:
            name.symlink_to(device)
            opened.append(descriptor)
    return opened


def loop(file: Path) -> tuple[str, int]:
    """Return a loop device of a file, and the device opened: it vanishes once no process has it
    open or mounts it. Raise OSError or CalledProcessError where there are no loop devices.
    """
    if os.geteuid():
        raise PermissionError("loop devices are for root")
    words = ["losetup", "--find", "--show", str(file)]
    device = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    try:
        return device, os.open(device, os.O_RDONLY)
    finally:  # of an open device, this waits for the last process that has it
        subprocess.run(["losetup", "--detach", device], check=False, capture_output=True)


def discard_ssds(compute: Compute, instance: Instance) -> None:
    """Lose what is on the Local SSDs of a machine that is off."""
    shutil.rmtree(compute.machine_folder(instance) / SSDS, ignore_errors=True)
