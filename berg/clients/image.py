"""`berg image`: disk images of devboxes, with which jobs and devboxes start with what is installed.

A machine that boots one first puts aside the code and results of the other one: see berg/boot.py.
"""

import re
import subprocess
import time
from typing import Any

import click

from berg import BergError, gce, google, jobs, ssh, terminal
from berg import job as records
from berg.bucket import Bucket
from berg.config import Config, home
from berg.gce import Instance
from berg.google import GoogleError

FAMILY = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
SYNC = 60  # seconds in which a machine writes to its disk what it has in memory
COLUMNS = "name,family,status,diskSizeGb,creationTimestamp,labels,description"


def box_machine(config: Config, name: str) -> Instance:
    """The machine of a devbox, on or off."""
    state = jobs.find(config, name)
    if not state.is_devbox:
        raise BergError(
            f"{state.name} is no devbox, whose disk could become an image. See: berg devbox"
        )
    machines = gce.machines(config, state.name)
    if not machines:
        raise BergError(f"{state.name} has no machine any more. Start another one: berg devbox")
    return machines[0]


def flush(config: Config, machine: Instance) -> None:
    """Let a machine write all that it has in memory to its disk."""
    keys = machine.host_keys(config)
    known = home() / "ssh" / f"known-{machine.id}"
    try:
        if (
            not keys
            or subprocess.run(
                [*ssh.words(machine, keys, known), "sync"], stdin=subprocess.DEVNULL, timeout=SYNC
            ).returncode
        ):
            raise OSError
    except (OSError, subprocess.TimeoutExpired):
        terminal.warn(f"{machine.name} cannot be reached: what it wrote just now may be missing")
    finally:
        known.unlink(missing_ok=True)


def make_image(config: Config, machine: Instance, family: str) -> dict[str, Any]:
    """Make an image of a machine's boot disk, by way of a snapshot, as the machine may be on."""
    image = f"{family}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    row = google.call(config, "GET", machine.path, fields="disks(source,boot)")
    disk = next(disk["source"] for disk in row["disks"] if disk.get("boot"))
    path = "/zones/" + disk.partition("/zones/")[2]
    labels = {"berg": "1", "berg-bucket": gce.bucket_label(config), "berg-user": config.user}
    snapshot = {"name": image, "labels": labels}
    try:
        terminal.say(f"Copying the disk of {machine.name}")
        google.do(config, "POST", f"{path}/createSnapshot", snapshot)
        body = {
            "name": image,
            "family": family,
            "labels": labels,
            "description": f"the devbox {machine.name}",
            "sourceSnapshot": f"projects/{config.project}/global/snapshots/{image}",
        }
        terminal.say(f"Creating the image {image}")
        try:
            google.wait(config, google.call(config, "POST", "/global/images", body))
        except BaseException:
            drop(config, "images", image)
            raise
    finally:
        drop(config, "snapshots", image)
    return google.call(config, "GET", f"/global/images/{image}", fields=COLUMNS)


def drop(config: Config, kind: str, name: str) -> None:
    """Delete an image or a snapshot; one that Google still makes stays, and is named."""
    try:
        google.do(config, "DELETE", f"/global/{kind}/{name}")
    except GoogleError as error:
        if error.status != 404:
            terminal.warn(
                f"{name} stays: {error.message.rstrip('.')}. Delete it: gcloud compute {kind} delete {name}"
            )


def images(config: Config) -> list[dict[str, Any]]:
    """The images that Berg made, the newest first."""
    query = {"filter": 'labels.berg="1"', "fields": f"items({COLUMNS}),nextPageToken"}
    found = google.items(config, "/global/images", **query)
    return sorted(map(about, found), key=lambda row: str(row["created_at"]), reverse=True)


def about(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "family": row.get("family", ""),
        "disk_gb": int(row["diskSizeGb"]),
        "status": row["status"],
        "created_at": row["creationTimestamp"],
        "user": row.get("labels", {}).get("berg-user", ""),
        "description": row.get("description", ""),
    }


@click.group()
def image() -> None:
    """Make disk images of devboxes, for jobs that start with what is installed there."""


@image.command()
@click.argument("box")
@click.option("--family", default="", help="Family of the image.  [default: berg-REPO]")
@click.option("--default", "as_default", is_flag=True, help="Use it for jobs from now on.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(box: str, family: str, as_default: bool, as_json: bool) -> None:
    """Create an image of the disk of the devbox BOX, and print its name.

    BOX goes on meanwhile. Jobs boot the newest image of a family.

    \b
    berg image create my-box --default
    berg run --image my-project/berg-myrepo "python train.py"
    """
    config = Config.load()
    machine = box_machine(config, box)
    if not family:
        repo = records.read_job(Bucket(config), machine.job).repo.lower()
        family = f"berg-{re.sub(r'[^a-z0-9]+', '-', repo)[:35].strip('-')}"
    if not FAMILY.fullmatch(family):
        raise BergError(
            f"--family {family!r} is no family: give up to 40 lower-case letters, digits and dashes, a letter first"
        )
    if machine.status == "RUNNING":
        flush(config, machine)
    made = about(make_image(config, machine, family))
    name = f"{config.project}/{family}"
    if as_default:
        settings = Config.read()
        settings.default_image = name
        settings.save("default_image")
        terminal.say(f"From now on jobs boot the newest image of {name}")
    else:
        terminal.say(
            f'Run with it:  berg run --image {name} --disk-gb {made["disk_gb"]} "python train.py"'
        )
    if as_json:
        return terminal.show_json(made)
    return terminal.show(str(made["name"]))


@image.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the images that Berg made, the newest first.

    \b
    berg image list
    """
    found = images(Config.load())
    if as_json:
        return terminal.show_json(found)
    rows = [[str(value) for value in row.values()] for row in found]
    header = ["NAME", "FAMILY", "GB", "STATUS", "CREATED", "BY", "OF"]
    return terminal.show_table(header, rows)


@image.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(names: tuple[str, ...], yes: bool) -> None:
    """Delete images that Berg made. Machines that booted them stay.

    \b
    berg image delete berg-box-20261129
    """
    config = Config.load()
    owners = {row["name"]: row["user"] for row in images(config)}
    if unknown := [name for name in names if name not in owners]:
        raise BergError(f"Berg made no image {unknown[0]!r}. See them: berg image list")
    texts = [name + f" of {owners[name]}" * (owners[name] != config.user) for name in names]
    if not terminal.confirm(f"Delete {', '.join(texts)}?", yes, "-y"):
        return terminal.say("Nothing was deleted")
    for name in names:
        google.delete(config, f"/global/images/{name}")
        terminal.say(f"Deleted {name}")
    if config.default_image.rpartition("/")[0] == config.project:
        try:
            gce.find_image(config, config.default_image)
        except BergError:
            terminal.warn(
                f"jobs boot {config.default_image} by default, which is gone. "
                "Name another one: berg config set default_image PROJECT/IMAGE"
            )
    return None
