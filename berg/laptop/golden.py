"""An image of a machine on which everything is installed, so that jobs begin at once.

A machine boots from another image, installs what the repo names, and is stopped; its disk becomes
the image. It is deleted whatever happens, and an image that is half made as well. Should this
computer die meanwhile, Google deletes the machine after two hours; one that was stopped already,
which costs its disk alone, is `berg reap`'s.

Not covered: images for other processors than that of the machine, and what GPUs need: their driver
is the other image's.
"""

import json
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from berg import BergError, gce, job
from berg.code import snapshot
from berg.config import Config, label
from berg.google import api, images, instances, offers
from berg.google.storage import Bucket
from berg.inventory import Machine
from berg.laptop import defaults, launch
from berg.laptop.jobs import GOING, STARTUP_LINE
from berg.plan import Plan
from berg.spec import JobSpec

MPI = ["openmpi-bin", "libopenmpi-dev"]
# What an image may have as well -> packages of Debian's.
ADDITIONS = {
    "horovod": [*MPI, "cmake", "g++", "make", "python3-dev"],
    "openmpi": MPI,
    "tmux": ["tmux"],
}
CPUS, HOURS = 8, 2
FAMILY = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
LOOK = 2  # seconds between two looks at the console
READY, FAILED = "The disk is ready to be an image", "The disk is no image: "  # boot.py's words

Say = Callable[[str], None]


@dataclass
class Wanted:
    """What image is to be made; "" and 0 stand for what is usual."""

    source: str = ""
    family: str = ""
    additions: tuple[str, ...] = ()
    install_script: str = ""
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    install: str | None = None
    zones: tuple[str, ...] = ()
    disk_gb: int = 0


def plan(config: Config, wanted: Wanted, folder: Path) -> Plan:
    """Return what is to be done; raise BergError for what is not possible."""
    for extra in wanted.additions:
        if extra not in ADDITIONS:
            raise BergError(
                f"--with {extra!r}: there are {', '.join(ADDITIONS)}, or several with commas"
            )
    family = wanted.family or f"berg-{label(snapshot.find_root(folder).name)[:35].strip('-')}"
    if not FAMILY.fullmatch(family):
        raise BergError(
            f"--family {family!r} cannot be one: give up to 40 lower-case letters, digits and "
            "dashes, beginning with a letter"
        )
    now = datetime.now(timezone.utc)
    project, _, source = wanted.source.rpartition("/")
    project = project or (config.project if source else "")
    source = source or config.default_image
    found = offers.find_image(config, source, project or config.default_image_project)
    config = replace(config, default_image=source)
    config.default_image_project = found.split("/")[1]
    spec = JobSpec(
        name=f"{family}-{now:%Y%m%d-%H%M%S}",
        num_gpus=0,
        num_cpus=CPUS,
        zones=wanted.zones,
        disk_gb=wanted.disk_gb or offers.image_gb(config, found),
        max_hours=HOURS,
        install_script=wanted.install_script or None,
        **defaults.of_installation(wanted.extras, wanted.groups, wanted.install, folder),
    )
    made = launch.prepare(config, spec, folder, image_for="gpu")
    return replace(
        made, job=replace(made.job, kind="image", stops_when_idle=False, keeps_disk=False)
    )


def request(plan: Plan, wanted: Wanted) -> dict[str, Any]:
    """Return what the machine is to be, by zone: one that prepares its disk."""
    packages = [package for extra in wanted.additions for package in ADDITIONS[extra]]
    recipe = {
        "packages": list(dict.fromkeys(packages)),
        "horovod": "horovod" in wanted.additions,
        "repo": plan.job.repo_name,
        "snapshot": plan.job.snapshot,
        "install_script": plan.job.install_script,
        "installation": asdict(plan.job.installation),
    }
    made = gce.request(plan)
    for body in made.values():
        body["metadata"]["items"].append({"key": "berg-image", "value": json.dumps(recipe)})
    return made


def preview(plan: Plan, wanted: Wanted) -> Any:
    """Return the request that makes the machine, as people read it."""
    first = next(iter(request(plan, wanted).values()))
    return launch.without_script({"name": plan.job.job_name, **first})


def create(
    plan: Plan, wanted: Wanted, say: Say, on_progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Make the image, and return its body; of anything else nothing is left, whatever happens."""
    config, name = plan.config, plan.job.job_name
    launch.send_code(plan, Bucket(config), say, on_progress)
    try:
        zone = gce.create(config, request(plan, wanted), [name], False, say, lambda: None)
        wait_until_ready(config, name, zone, say)
        say(f"Stopping {name}")
        stop(config, name, zone)
        say(f"Making the image {name}")
        made = image_body(plan, wanted)
        images.make(config, name, zone, made)
    finally:
        delete_machine(config, name, say)
    return {"name": name, **made}


def image_body(plan: Plan, wanted: Wanted) -> dict[str, Any]:
    """Return what the image says of itself."""
    this = plan.job
    extras = f", with {', '.join(wanted.additions)}" if wanted.additions else ""
    source = api.last_part(plan.offer.image)
    return {
        "family": this.job_name.rsplit("-", 2)[0],
        "labels": {"berg": "1", "berg-user": plan.config.user},
        "description": f"{source}; {this.repo_name} at {this.git_snapshot[:12]}{extras}",
    }


def wait_until_ready(config: Config, name: str, zone: str, say: Say) -> None:
    """Wait until the machine has prepared its disk; `say` hears what its console says.

    Raise BergError if it could not, or went away.
    """
    shown = 0
    while True:
        there = instances.find(config, names=[name], zone=zone)
        lines = said_by(config, Machine(name, zone))
        for line in lines[shown:]:
            say(line)
        shown = len(lines)
        for line in lines:
            if line.startswith(FAILED):
                raise BergError(f"no image was made: {line.removeprefix(FAILED)}")
        if READY in lines:
            return
        if all(machine.status in GOING for machine in there):
            raise BergError(f"no image was made: the machine {name} went away")
        time.sleep(LOOK)


def said_by(config: Config, machine: Machine) -> list[str]:
    """Return the lines of berg's on a machine's console."""
    return [line.strip() for line in STARTUP_LINE.findall(instances.serial_output(config, machine))]


def stop(config: Config, name: str, zone: str) -> None:
    """Turn a machine off, so that all of its disk is written."""
    path = f"/zones/{zone}/instances/{name}/stop"
    api.wait(config, api.call(config, "POST", path, requestId=str(uuid.uuid4())))


def delete_machine(config: Config, name: str, say: Say) -> None:
    """Delete the machine with its disk, if it is there; say how to, if that fails."""
    try:
        machines = instances.find(config, names=[name])
        if machines:
            say(f"Deleting the machine {name}")
        gce.delete(config, name, machines)
    except BaseException:
        say(f"The machine {name} may be there still. Delete it:  berg kill --now {name}")
        raise


def lacks_default(config: Config) -> bool:
    """Return whether jobs boot by default what the project has no image of."""
    if config.default_image_project != config.project:
        return False
    try:
        offers.find_image(config, config.default_image, config.project)
    except BergError:
        return True
    return False


def described(image: dict[str, Any]) -> dict[str, Any]:
    """Return what a list says of an image of Google's."""
    made = api.time_of(image["creationTimestamp"]).astimezone(timezone.utc)
    return {
        "name": image["name"],
        "family": image.get("family", ""),
        "disk_gb": int(image["diskSizeGb"]),
        "status": image["status"],
        "created_at": job.timestamp(made),
        "user": image.get("labels", {}).get("berg-user", ""),
        "description": image.get("description", ""),
    }
