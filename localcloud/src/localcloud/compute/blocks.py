"""The content of a machine's disks other than the first, one file for each:

    disk-files/<id>                     its bytes, as a sparse file
    machines/<id>/disks/google-<name>   the same file where the machine finds it, by its device name,
                                        below /dev/disk/by-id

mkfs.ext4 and `mount` take such a file for a device; `mount` needs the machine's root to be the
host's. What is on a disk stays until the disk is deleted, in whatever machine it is, and a snapshot
has a copy of it.

Not covered: other names of devices (/dev/sdb, lsblk), partitions of them, disks of an image's or as
local SSDs, and that what is attached to be read only is not written.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from localcloud.compute import contents
from localcloud.compute.checks import last
from localcloud.compute.state import Compute, Instance

MOST = 8 << 40  # bytes that the file systems of hosts take in one file
BYTES = "bytes"  # of a snapshot's folder


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
        if path.name not in wanted:
            path.unlink()
    for name, path in wanted.items():
        if not (folder / name).exists():
            (folder / name).hardlink_to(path)


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
