"""A machine's local SSDs as one folder, /mnt/scratch: ext4 on a RAID 0 of all, or on the only one.

It is prepared at each boot. After a stop the disks are empty, and it is made again; after a reboot
what is there is mounted. A disk that holds anything is never formatted. No fault ends the job: it
then has no such folder, or a smaller one, and its log says why.

What a job can get again is on it, too, as it is gone when the machine stops: data sets, what mounts
have read, and docker's images.

Not covered: machine types whose number of local SSDs Berg does not know (z3, those with -lssd).
"""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from berg.job import Job
from berg.machine import boot

FOLDER = Path("/mnt/scratch")
DISKS = Path("/dev/disk/by-id")
NAME = "berg-scratch"  # of the array and the file system
ARRAY = Path("/dev/md") / NAME
MDSTAT = Path("/proc/mdstat")  # exists where the kernel has RAID
SECONDS = 60  # for the disks to appear
RAID, EXT4 = "linux_raid_member", "ext4"  # as blkid calls them


def folder() -> Path | None:
    """Return the folder if it is there."""
    is_own = "BERG_ROOT" not in os.environ and not boot.POD  # else /mnt is the host's
    return FOLDER if is_own and FOLDER.is_mount() else None


def room_for(this: Job) -> Path | None:
    """Return the folder if what a job can get again may be there, in place of the machine's disk.

    Not of a devbox, whose disk people keep when they stop it; not on a machine that waits for
    another job, which may use the same again; and not if the disk is larger.
    """
    found = folder()
    if not found or this.kind != "job" or this.on or this.spec.keep_warm:
        return None
    return found if shutil.disk_usage(found).total > this.spec.disk_gb * 10**9 else None


def take(this: Job, own: Path, name: str) -> bool:
    """Let a folder of a job be one on the local SSDs, unless it holds anything; return whether it
    is one now. Raise OSError if that fails.
    """
    fast = room_for(this)
    if not fast or own.is_mount() or own.is_symlink() or (own.is_dir() and any(own.iterdir())):
        return False
    own.mkdir(parents=True, exist_ok=True)
    (fast / name).mkdir(exist_ok=True)
    boot.execute("mount", "--bind", str(fast / name), str(own))
    return True


def prepare(machine: boot.Machine) -> bool:
    """Mount the local SSDs that a machine was created with; return whether they are there."""
    if boot.POD or "BERG_ROOT" in os.environ or folder():
        return False
    number = int(boot.metadata("instance/attributes/berg-local-ssds", default="0"))
    if not number:
        return False
    try:
        device = device_of(machine, find_disks(number))
        mount(device)
    except (OSError, subprocess.SubprocessError) as error:
        machine.say(f"{FOLDER} cannot be prepared, and the job continues without it: {error}")
        return False
    size = shutil.disk_usage(FOLDER).total / 2**30
    machine.say(f"{FOLDER} has {size:,.0f} GB of local SSD")
    return True


def find_disks(number: int) -> list[Path]:
    """Return the local SSDs once all are there; raise OSError if some do not come."""
    disks = [DISKS / f"google-local-nvme-ssd-{each}" for each in range(number)]
    until = time.monotonic() + SECONDS
    while DISKS.exists() and time.monotonic() < until and not all(each.exists() for each in disks):
        time.sleep(0.1)
    if missing := [each.name for each in disks if not each.exists()]:
        raise OSError(f"{len(missing)} of {number} local SSDs are missing: {missing[0]}")
    return disks


def device_of(machine: boot.Machine, disks: list[Path]) -> Path:
    """Return the device of the file system: the array of all disks, or the first disk alone.

    Raise OSError if a disk holds something else.
    """
    contents = [content(each) for each in disks]
    if contents[0] == EXT4 or len(disks) == 1:
        return disks[0]
    names = [str(each) for each in disks]
    if RAID in contents:
        if subprocess.run(["mdadm", "--detail", str(ARRAY)], capture_output=True).returncode:
            boot.execute("mdadm", "--assemble", str(ARRAY), *names)
        return ARRAY
    if any(contents):
        raise OSError(f"a local SSD holds {max(contents)} already, which is left as it is")
    if why := why_no_raid(machine):
        machine.say(f"{FOLDER} is the first of {len(disks)} local SSDs alone: {why}")
        return disks[0]
    create = ["--create", str(ARRAY), f"--name={NAME}", "--homehost=any", "--level=0", "--run"]
    boot.execute("mdadm", *create, f"--raid-devices={len(disks)}", *names)
    return ARRAY


def content(device: Path) -> str:
    """Return what a device holds, as blkid calls it; "" for nothing."""
    done = subprocess.run(
        ["blkid", "--probe", "--output", "export", str(device)], capture_output=True, text=True
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode == 2 and not found:
        return ""
    return found.get("TYPE") or found.get("PTTYPE") or "something unknown"


def why_no_raid(machine: boot.Machine) -> str:
    """Return why this machine can make no array; "" if it can. Install mdadm if it is missing."""
    if not MDSTAT.exists():
        with contextlib.suppress(OSError):
            subprocess.run(["modprobe", "raid0"], capture_output=True)
    if not MDSTAT.exists():
        return "this kernel has no RAID"
    try:
        if not shutil.which("mdadm"):
            boot.apt_install(machine, "--no-install-recommends", "mdadm")
    except OSError as error:
        return f"mdadm cannot be installed: {error}"
    return ""


def empty() -> None:
    """Delete what is in the folder, before another job; raise OSError if something stays."""
    for each in there.iterdir() if (there := folder()) else ():
        if each.name == "lost+found":  # of the file system
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def mount(device: Path) -> None:
    """Mount a device, with a new file system if it holds nothing; raise OSError if that fails."""
    there = content(device)
    if there not in ("", EXT4):
        raise OSError(f"{device} holds {there} already, which is left as it is")
    if not there:
        boot.execute("mkfs.ext4", "-q", "-m", "0", "-L", NAME, str(device))
    FOLDER.mkdir(parents=True, exist_ok=True)
    boot.execute("mount", "-o", "discard,nofail", str(device), str(FOLDER))
    FOLDER.chmod(0o1777)
