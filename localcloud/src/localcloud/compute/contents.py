"""The files of an image or a snapshot that was made from a machine's disk: a folder next to the
images' rows, from which a new machine's disk starts.

    image-disks/<id>/about.json   of what image that machine was
    image-disks/<id>/upper/       as in the machine's folder, see sandbox.py; without overlays its /root

Not covered: disks that no machine has, and images that are made from those.
"""

import asyncio
import json
import subprocess
from pathlib import Path

from localcloud.compute.state import Compute, Instance, key_of
from localcloud.machines import sandbox

PASSING = ("hostname", "hosts", "resolv.conf", "machine-id")  # of /etc, a machine's own


def folder_of(compute: Compute, image_id: str) -> Path:
    return compute.folder.parent / "image-disks" / image_id


def part_of(compute: Compute) -> str:
    """Return what of a machine's folder is on its disk."""
    root = sandbox.own_root_of(Path(), compute.sandbox)
    return "upper" if compute.sandbox.files == sandbox.OVERLAY else str(root)


def origin_of(compute: Compute, instance: Instance) -> Path:
    """Return the folder of the image that a machine's boot disk was made from; it may not exist."""
    disk = compute.row("disks", instance.resource["disks"][0]["source"])
    return folder_of(compute, disk["sourceImageId"])


def settle(compute: Compute, instance: Instance, image_id: str) -> None:
    """Let a new machine be of the image that its image's machine was of."""
    about = folder_of(compute, image_id) / "about.json"
    if image_id and about.exists():
        known = json.loads(about.read_text())
        instance.plain_image, instance.learns = known["plain"], known["learns"]


async def keep(compute: Compute, disk: dict, image_id: str) -> None:
    """Copy what is on a disk of a machine to the folder of an image."""
    for link in disk.get("users", []):
        instance = compute.instances[key_of(link)]
        folder, part = folder_of(compute, image_id), part_of(compute)
        source = compute.machine_folder(instance) / part
        if not source.is_dir():
            return
        await asyncio.to_thread(copy, source, folder / part)
        for name in PASSING:
            (folder / part / "etc" / name).unlink(missing_ok=True)
        known = {"plain": instance.plain_image, "learns": instance.learns}
        (folder / "about.json").write_text(json.dumps(known))


async def repeat(compute: Compute, source_id: str, image_id: str) -> None:
    """Copy what a snapshot holds to the folder of an image."""
    source = folder_of(compute, source_id)
    if source.is_dir():
        await asyncio.to_thread(copy, source, folder_of(compute, image_id))


async def lay_out(compute: Compute, instance: Instance) -> None:
    """Give a machine that boots for the first time what is on its image."""
    target = compute.machine_folder(instance) / part_of(compute)
    source = origin_of(compute, instance) / part_of(compute)
    if source.is_dir() and not target.exists():
        await asyncio.to_thread(copy, source, target)


def copy(source: Path, target: Path) -> None:
    """Copy a folder with everything that an overlay notes in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", "-T", source, target], check=True)
