"""RoCE on a machine: NCCL's plugin gIB, which Google offers as a package, and its variables.

NCCL needs the same network on all machines: if one lacks gIB or a device, all talk over TCP.
Source: https://docs.cloud.google.com/ai-hypercomputer/docs/nccl/test-vms
"""

import http.client
import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from berg.google import fabric
from berg.job import Job
from berg.machine import boot
from berg.machine.attempt import Attempt

GIB = Path("/usr/local/gib")
DEVICES = Path("/sys/class/infiniband")
APT = Path("/etc/apt")
SOURCE = "sources.list.d/berg-gib.list"
GOOGLE = "https://packages.cloud.google.com/apt"
TIMEOUT = 30  # seconds for the script with the variables


def is_wanted(this: Job) -> bool:
    """Return whether a job's machines are made to talk over RoCE."""
    return fabric.is_fast(this.machine_type, this.num_machines, this.spec.network)


def active() -> int:
    """Return how many of this machine's interfaces for RoCE are up."""
    return sum("ACTIVE" in port.read_text() for port in DEVICES.glob("*/ports/*/state"))


def install(attempt: Attempt) -> None:
    """Install gIB where it is wanted and missing, and say what the machine talks over."""
    if not is_wanted(attempt.job):
        return
    if (up := active()) < fabric.RAILS:
        attempt.say(
            f"{up} of {fabric.RAILS} interfaces for RoCE are up here: machines talk over TCP"
        )
        return
    if not is_installed():
        try:
            install_packages(attempt.machine)
        except OSError as error:
            attempt.say(
                f"gIB cannot be installed, machines talk over TCP: {error}. An image can have it: "
                "berg image create --with roce"
            )
            return
    attempt.say(f"{up} interfaces for RoCE are up, and NCCL uses them by gIB")


def install_packages(machine: boot.Machine) -> None:
    """Install gIB and what it needs; raise OSError if that fails.

    Its source does not stay: upgrades would make machines differ, and each later apt-get update
    would fail where the source cannot be reached.
    """
    try:
        add_source()
        boot.apt_install(machine, *fabric.PACKAGES)
    except http.client.HTTPException as error:
        raise OSError(f"{GOOGLE} did not answer: {error}") from None
    finally:
        (APT / SOURCE).unlink(missing_ok=True)


def is_installed() -> bool:
    return (GIB / "lib64").is_dir()


def fault() -> str:
    """Return what keeps this machine from RoCE; "" if nothing does."""
    if (up := active()) < fabric.RAILS:
        return f"{up} of {fabric.RAILS} interfaces for RoCE are up"
    return "" if is_installed() else "gIB is not installed"


def add_source() -> None:
    """Let apt-get see Google's packages for RoCE; raises OSError."""
    key = boot.request(f"{GOOGLE}/doc/apt-key.gpg")[0]
    is_text = key.startswith(b"-----BEGIN")
    file = APT / "keyrings" / f"berg-google.{'asc' if is_text else 'gpg'}"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(key)
    (APT / SOURCE).write_text(f"deb [signed-by={file}] {GOOGLE} gpudirect-gib-apt main\n")


def is_used(this: Job) -> bool:
    """Return whether NCCL finds gIB and all of the devices here."""
    return is_wanted(this) and is_installed() and active() == fabric.RAILS


def variables(this: Job, faults: Collection[str] = ()) -> dict[str, str]:
    """Return the variables with which NCCL uses gIB, or TCP if machines of the job have `faults`;
    none for other jobs, and where it is not known yet.
    """
    if faults and is_wanted(this):
        return {"NCCL_NET": "Socket"}
    if not is_used(this):
        return {}
    script = GIB / "scripts/set_nccl_env.sh"
    words = ["env", "-i", "bash", "-c", f"source {script} >/dev/null && env -0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
    set_there = dict(each.partition("=")[::2] for each in done.stdout.split("\0") if each)
    found = {key: value for key, value in set_there.items() if key.startswith("NCCL_")}
    path = ":".join(filter(None, [str(GIB / "lib64"), os.environ.get("LD_LIBRARY_PATH")]))
    return {"NCCL_NET": "gIB", **found, "LD_LIBRARY_PATH": path}


def in_container() -> str:
    """Return the line of a script that lets NCCL find gIB next to the image's own libraries."""
    return f'export LD_LIBRARY_PATH="{GIB / "lib64"}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n'
