"""Local SSDs as one folder, /mnt/scratch: those that come with a machine type, or are added.

A RAID 0 with ext4, without mdadm the first disk alone. It is made at each boot and empty after a loss;
a disk that holds anything is not formatted. No fault ends the job: it has the machine's disk then.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from berg import BergError, gce
from berg.feature import Feature
from berg.options import option

if TYPE_CHECKING:
    from berg.run import Plan
    from berg.worker import Run

SCRATCH, ARRAY = Path("/mnt/scratch"), "/dev/md/berg-scratch"
SECONDS = 60  # for the disks to appear


@dataclass
class Ssd(Feature):
    local_ssd: int = option(
        "--local-ssd",
        default=0,
        type=click.IntRange(0, 32),
        metavar="N",
        help="Local SSDs of 375 GB to add, together at /mnt/scratch.",
    )

    def is_due(self, plan: Plan) -> bool:
        return gce.included_ssds(plan.job.machine_type) > 0

    def change(self, plan: Plan) -> None:
        kind = plan.job.machine_type
        if (comes := gce.included_ssds(kind)) and self.local_ssd not in (0, comes):
            raise BergError(
                f"{kind} comes with {comes} local SSDs, and takes no others. Leave out --local-ssd"
            )
        if not comes:
            params = {"initializeParams": {"diskType": "local-ssd"}}
            disk = {"type": "SCRATCH", "interface": "NVME", "autoDelete": True, **params}
            plan.request["disks"] += [disk] * self.local_ssd
        # A host's repair takes up to an hour for disks that hold nothing of worth.
        plan.request["scheduling"]["localSsdRecoveryTimeout"] = {"seconds": "0"}
        if plan.job.is_devbox:  # Google wants to hear that its limit ends what they hold
            plan.request["scheduling"]["onInstanceStopAction"] = {"discardLocalSsd": True}
        plan.rows["Scratch"] = (
            f"{(comes or self.local_ssd) * gce.SSD_GB:,} GB of local SSD at {SCRATCH}"
        )

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        try:
            number = gce.included_ssds(run.job.machine_type) or self.local_ssd
            mount(number)
            size = shutil.disk_usage(SCRATCH).total / 2**30
            few = ", of one of them: this image has no RAID" * (
                number > 1 and size < 2 * gce.SSD_GB * 0.9
            )
            run.say(f"{SCRATCH} has {size:,.0f} GB of local SSD{few}")
            run.variables["BERG_SCRATCH_DIR"] = str(SCRATCH)
        except (OSError, subprocess.SubprocessError) as error:
            run.say(f"{SCRATCH} is not there, and the job runs without it: {error}")
        yield


def mount(number: int) -> None:
    """Mount the local SSDs, all there are, unless that was done."""
    disks = [Path(f"/dev/disk/by-id/google-local-nvme-ssd-{each}") for each in range(number)]
    end = time.monotonic() + SECONDS
    while not all(disk.exists() for disk in disks):
        if time.monotonic() > end:
            raise OSError(f"not all of its {number} local SSDs came within {SECONDS} seconds")
        time.sleep(0.2)
    if SCRATCH.is_mount():
        return
    device, held = str(disks[0]), [content(disk) for disk in disks]
    if number > 1 and held[0] != "ext4" and has_mdadm():
        names = [str(disk) for disk in disks]
        if "linux_raid_member" in held:
            if subprocess.run(["mdadm", "--detail", ARRAY], capture_output=True).returncode:
                execute("mdadm", "--assemble", ARRAY, *names)
        elif not any(held):
            kind = ["--name=berg-scratch", "--homehost=any", "--level=0", "--run"]
            execute("mdadm", "--create", ARRAY, *kind, f"--raid-devices={number}", *names)
        device = ARRAY
    held = [content(Path(device))]
    if held == [""]:
        execute("mkfs.ext4", "-q", "-m", "0", "-L", "berg-scratch", device)
    elif held != ["ext4"]:
        raise OSError(f"{device} holds {held[0]}, which is left as it is")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    execute("mount", "-o", "discard,nofail", device, str(SCRATCH))
    SCRATCH.chmod(0o1777)


def content(device: Path) -> str:
    """What a device holds, as blkid calls it; "" for nothing."""
    words = ["blkid", "--probe", "--output", "export", str(device)]
    done = subprocess.run(words, capture_output=True, text=True)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode == 2 and not found:
        return ""
    return found.get("TYPE") or found.get("PTTYPE") or "something unknown"


def has_mdadm() -> bool:
    """Whether this machine can make an array; mdadm is installed if that is possible."""
    with contextlib.suppress(OSError):
        subprocess.run(["modprobe", "raid0"], capture_output=True)
    if Path("/proc/mdstat").exists() and not shutil.which("mdadm"):
        words = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "mdadm"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(words, capture_output=True, timeout=180)
    return Path("/proc/mdstat").exists() and shutil.which("mdadm") is not None


def execute(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{words[0]}: {(done.stderr or done.stdout).strip()}")
