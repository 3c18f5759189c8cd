"""Moves a machine that is off to another zone: a snapshot of its disk, and a machine like it there.

A laptop that dies meanwhile leaves the snapshot, and maybe both machines: who tries again goes on
from there.

Not covered: disks beside the first one, addresses that were reserved, and images that another
project lends to its first zone alone.
"""

from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import accelerators, api, http, instances, offers
from berg.google.accelerators import Shape
from berg.google.api import last_part
from berg.inventory import Machine

SAME = ("labels", "scheduling", "serviceAccounts", "reservationAffinity")
COPIED_AT = "berg-copied-at"  # in the metadata of what was made of a snapshot: when it was taken
KIND = "move"  # the label berg-kind of its snapshots
UNDER_WAY = ("CREATING", "UPLOADING")
PAUSE = 1  # seconds between two looks at a snapshot
LONGEST = 7200  # seconds that a snapshot may take
INTERFACE = ("network", "subnetwork", "nicType")  # what an interface there has of the one here


def read(config: Config, machine: Machine) -> dict[str, Any]:
    """Return an instance as Google describes it."""
    found: dict[str, Any] = api.call(config, "GET", instances.path_of(machine))
    return found


def shape_of(instance: dict[str, Any]) -> Shape:
    """Return what kind of machine an instance is, with the GPUs that are attached to it."""
    kind = last_part(instance["machineType"])
    gpus = instance.get("guestAccelerators", [])
    if not gpus or accelerators.find_built_in(kind):
        return Shape(kind, 0, "")
    attached = last_part(gpus[0]["acceleratorType"])
    return Shape(kind, gpus[0]["acceleratorCount"], "", accelerator=attached)


def zones(config: Config, instance: dict[str, Any]) -> list[str]:
    """Return the other zones of its region that have such machines."""
    here = last_part(instance["zone"])
    offered = offers.zones_in(config, shape_of(instance), [here.rpartition("-")[0]])
    return [zone for zone in offered if zone != here]


def take_snapshot(config: Config, instance: dict[str, Any], name: str) -> None:
    """Copy a machine's disk to a snapshot, which may take minutes."""
    disk = last_part(instance["disks"][0]["source"])
    path = f"/zones/{last_part(instance['zone'])}/disks/{disk}/createSnapshot"
    labels = {**instance.get("labels", {}), "berg-kind": KIND}
    api.write(config, path, {"name": name, "labels": labels})


def snapshots(config: Config, box: str = "") -> list[dict[str, Any]]:
    """Return the snapshots that moves of a box (of all boxes) made and have not deleted."""
    which = f'{instances.ours(config)} AND (labels.berg-kind="{KIND}")'
    if box:
        which += f' AND (labels.berg-job="{box}")'
    fields = "items(name,status,labels,creationTimestamp,sourceDisk),nextPageToken"
    listed = api.pages(config, "/global/snapshots", filter=which, fields=fields)
    return [each for page in listed for each in page.get("items", [])]


def is_current(snapshot: dict[str, Any], instance: dict[str, Any]) -> bool:
    """Return whether a snapshot has what is on the disk of an instance that is off."""
    on = instance.get("lastStartTimestamp") or instance["creationTimestamp"]
    disk = instance["disks"][0]["source"].partition("/projects/")[2]
    return (
        snapshot["sourceDisk"].partition("/projects/")[2] == disk
        and api.time_of(snapshot["creationTimestamp"]) > api.time_of(on)
        and snapshot["status"] in ("READY", *UNDER_WAY)
    )


def wait_until_ready(config: Config, name: str) -> None:
    """Wait for a snapshot that somebody else began; raise BergError after two hours."""
    path = f"/global/snapshots/{name}"

    def is_ready() -> bool:
        return api.call(config, "GET", path, fields="status")["status"] not in UNDER_WAY

    if not http.wait_for(is_ready, PAUSE, LONGEST):
        raise BergError(f"Google still makes the snapshot {name}. Try again later")


def copied_at(config: Config, name: str) -> str:
    """Return when a snapshot was taken; raise BergError unless it is whole."""
    found = api.call(config, "GET", f"/global/snapshots/{name}", fields="status,creationTimestamp")
    if found["status"] != "READY":
        raise BergError(
            f"the snapshot {name} is {found['status']}. Try again: berg reap, then start"
        )
    return str(found["creationTimestamp"])


def delete_snapshots(config: Config, box: str) -> list[str]:
    """Delete the snapshots of a box's moves; return those that Google still makes, which stay."""
    there = snapshots(config, box)
    going = [each["name"] for each in there if each["status"] in UNDER_WAY]
    for each in there:
        if each["name"] not in going:
            api.delete(config, f"/global/snapshots/{each['name']}", wait_for_it=True)
    return going


def body(instance: dict[str, Any], zone: str, snapshot: str, copied: str = "") -> dict[str, Any]:
    """Return what a machine like this one is to be in a zone, with the disk of a snapshot."""
    shape = shape_of(instance)
    disk = {
        "sourceSnapshot": f"global/snapshots/{snapshot}",
        "diskSizeGb": instance["disks"][0]["diskSizeGb"],
        "diskType": f"zones/{zone}/diskTypes/{shape.disk_type}",
        "labels": instance.get("labels", {}),
    }
    made = {key: instance[key] for key in SAME if instance.get(key)}
    made["machineType"] = f"zones/{zone}/machineTypes/{shape.machine_type}"
    made["tags"] = {"items": instance.get("tags", {}).get("items", [])}
    items = [each for each in instance["metadata"].get("items", []) if each["key"] != COPIED_AT]
    made["metadata"] = {"items": [*items, *[{"key": COPIED_AT, "value": copied}] * bool(copied)]}
    made["networkInterfaces"] = [interface(each) for each in instance["networkInterfaces"]]
    is_kept = not instance["disks"][0].get("autoDelete", True)
    made["disks"] = [{"boot": True, "autoDelete": not is_kept, "initializeParams": disk}]
    if shape.accelerator:
        kind = f"zones/{zone}/acceleratorTypes/{shape.accelerator}"
        attached = {"acceleratorType": kind, "acceleratorCount": shape.num_gpus}
        made["guestAccelerators"] = [attached]
    return made


def interface(here: dict[str, Any]) -> dict[str, Any]:
    """Return a network interface like this one, with an external address if this one has any."""
    there = {key: here[key] for key in INTERFACE if here.get(key)}
    if here.get("accessConfigs"):
        there["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return there
