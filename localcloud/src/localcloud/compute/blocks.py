"""The content of a machine's disks other than the first, one file for each:

    disk-files/<id>                     its bytes, as a sparse file
    machines/<id>/disks/google-<name>   the same file where the machine finds it, by its device name,
                                        below /dev/disk/by-id

mkfs.ext4 and `mount` take such a file for a device; `mount` needs the machine's root to be the
host's. What is on a disk stays until the disk is deleted, in whatever machine it is, and a snapshot
has a copy of it.

Local SSDs are sparse files of the machine's own, machines/<id>/local-ssds/<number>, which a stop
empties. Where the server is root, each is a loop device, which exists as long as a process of the
machine has it open or mounts it: nothing is left of it, however the machine ends. Elsewhere the
machine finds the file.

Not covered: other names of devices (/dev/sdb, lsblk), partitions of them, disks of an image's, and
that what is attached to be read only is not written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

from localcloud.compute import catalog, contents
from localcloud.compute.checks import last
from localcloud.compute.state import Compute, Instance

MOST = 8 << 40  # bytes that the file systems of hosts take in one file
BYTES = "bytes"  # of a snapshot's folder
SSD, SSDS = (
    "google-local-",
    "local-ssds",
)  # how names of Local SSDs begin; the folder of their files


def plug(compute: Compute, instance: Instance) -> None:
    """Let a machine find the disks that are attached to it now, and no others."""
    folder = compute.machine_folder(instance) / "disks"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for row in instance.resource["disks"]:
        disk = compute.disks.get((instance.project, instance.zone, last(row.get("source", ""))))
        if disk and not row["boot"] and row["type"] == "PERSISTENT":
            wanted[f"google-{row['deviceName']}"] = file_of(compute, disk)
    for path in folder.iterdir():
        if path.name not in wanted and not path.name.startswith(SSD):
            path.unlink()
    for name, path in wanted.items():
        if not (folder / name).exists():
            (folder / name).hardlink_to(path)


def plug_ssds(compute: Compute, instance: Instance) -> list[int]:
    """Let a machine that is about to boot find its Local SSDs; return the open ones for it."""
    machine, opened = compute.machine_folder(instance), []
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


def file_of(compute: Compute, disk: dict) -> Path:
    """Return the file with a disk's bytes, as long as the disk is large."""
    path = compute.disk_file(disk)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not path.exists():
        source = contents.folder_of(compute, contents.source_of(disk) or "none") / BYTES
        if source.exists():
            copy(source, path)
    path.touch(mode=0o600)
    os.truncate(path, min(int(disk["sizeGb"]) << 30, MOST))
    return path


async def keep(compute: Compute, disk: dict, snapshot_id: str) -> None:
    """Give a snapshot what is on a disk."""
    if compute.disk_file(disk).exists():
        target = contents.folder_of(compute, snapshot_id) / BYTES
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(copy, compute.disk_file(disk), target)


def copy(source: Path, target: Path) -> None:
    options = ("--sparse=always", "--reflink=auto")
    subprocess.run(["cp", *options, str(source), str(target)], check=True)
