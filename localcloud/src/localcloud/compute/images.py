"""Images, disks and snapshots of boot disks: looked up, made, deleted.

Not covered: images of other things than snapshots, licences, what features of the guest mean, deprecations that
come by themselves.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from localcloud.call import Call
from localcloud.compute import catalog, contents
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_labels,
    check_name,
    fingerprint,
    in_use,
    invalid,
    last,
    named,
    not_found,
    number_of,
    served,
)
from localcloud.compute.fields import honoured
from localcloud.compute.operations import begin_operation, delete
from localcloud.compute.state import Compute, key_of
from localcloud.errors import ApiError
from localcloud.machines import sandbox

log = logging.getLogger("localcloud")

MOST_GB = 65536
DISK = (
    "kind",
    "type",
    "boot",
    "autoDelete",
    "initializeParams",
    "interface",
    "diskSizeGb",
)
NEW_DISK = (
    "sourceImage",
    "diskSizeGb",
    "diskType",
    "labels",
)
SNAPSHOT = ("name", "description", "labels", "kind")
IMAGE = (*SNAPSHOT, "family", "sourceSnapshot")


def image_resource(project: str, image: catalog.Image) -> dict:
    path = f"projects/{project}/global/images/{image.name}"
    return {
        "kind": "compute#image",
        "id": number_of(path),
        "name": image.name,
        "family": image.family,
        "description": image.description,
        "creationTimestamp": image.created,
        "status": "READY",
        "diskSizeGb": str(image.disk_gb),
        "archiveSizeBytes": str(image.disk_gb << 28),
        "architecture": "X86_64",
        "sourceType": "RAW",
        "selfLink": LINK + path,
        "labelFingerprint": "42WmSpB8rSM=",
        "storageLocations": ["us"],
        **({"deprecated": {"state": "DEPRECATED"}} if image.deprecated else {}),
    }


def images_of(compute: Compute, project: str) -> list[dict]:
    public = [image_resource(project, image) for image in catalog.IMAGES.get(project, [])]
    return public + compute.kept(project, "images")


def newest(compute: Compute, project: str, family: str) -> dict:
    of_family = [each for each in images_of(compute, project) if each.get("family") == family]
    found = [row for row in of_family if row["status"] == "READY" and "deprecated" not in row]
    if not found:
        raise not_found(f"projects/{project}/global/images/family/{family}")
    return max(found, key=lambda image: image["creationTimestamp"])


def resolve(compute: Compute, project: str, link: str, field: str) -> dict:
    """Return the image that a source image link names, by name or by family."""
    parts = (link.partition("compute/v1/")[2] or link).split("/")
    owner = parts[parts.index("projects") + 1] if "projects" in parts else project
    by_family = len(parts) >= 2 and parts[-2] in ("family", "imageFamilyViews")
    try:
        if by_family:
            return newest(compute, owner, parts[-1])
        return named(images_of(compute, owner), parts[-1])
    except ApiError:
        raise invalid(field, link, "The referenced image resource cannot be found.") from None


def check_disks(kind: catalog.MachineType, body: dict) -> dict:
    """The boot disk among the disks of an insert, which is the first and the only one that is no
    Local SSD.
    """
    disks, field = body.get("disks") or [], "resource.disks"
    if not disks:
        raise invalid(field, "", "At least one disk is required.")
    for index, disk in enumerate(disks):
        honoured(f"{field}[{index}]", disk, DISK)
        params = disk.get("initializeParams", {})
        honoured(f"{field}[{index}].initializeParams", params, NEW_DISK)
        served(f"{field}[{index}].boot", bool(disk.get("boot")), index == 0)
        served(f"{field}[{index}].type", disk.get("type"), None if index == 0 else "SCRATCH")
    return disks[0]


def local_ssds(kind: catalog.MachineType, body: dict) -> list[dict]:
    """The Local SSDs of a machine, those that come with it included."""
    places = [at for at, disk in enumerate(body["disks"]) if disk.get("type") == "SCRATCH"]
    wanted = [body["disks"][at] for at in places]
    included = catalog.of_family(catalog.LOCAL_SSDS_INCLUDED, kind.name, 0)
    allowed = (0, included) if included else catalog.of_family(catalog.LOCAL_SSDS, kind.name, (0,))
    guests = body.get("guestAccelerators") or []
    if any(last(each.get("acceleratorType", "")) == "nvidia-tesla-t4" for each in guests):
        allowed = tuple(number for number in allowed if number < 24)
    if len(wanted) not in allowed:
        offered = ", ".join(map(str, allowed))
        message = f"Invalid number of local SSDs {len(wanted)} for machine type {kind.name}: it may have {offered}."
        raise ApiError(400, "badRequest", message)
    for index, disk in zip(places, wanted, strict=True):
        field, kind_of_disk = f"resource.disks[{index}]", disk.get("initializeParams", {})
        served(
            f"{field}.initializeParams.diskType",
            last(kind_of_disk.get("diskType", "")),
            "local-ssd",
        )
        served(f"{field}.initializeParams.diskSizeGb", kind_of_disk.get("diskSizeGb"), None)
        served(f"{field}.autoDelete", disk.get("autoDelete"), True)
    return [
        {
            "kind": "compute#attachedDisk",
            "type": "SCRATCH",
            "mode": "READ_WRITE",
            "deviceName": f"local-ssd-{number}",
            "index": index,
            "boot": False,
            "autoDelete": True,
            "interface": wanted[0].get("interface", "SCSI") if wanted else "NVME",
            "diskSizeGb": str(catalog.SSD_GB),
        }
        for number, index in enumerate(
            places or range(len(body["disks"]), len(body["disks"]) + included)
        )
    ]


def check_stop_action(scheduling: dict, has_ssds: bool) -> None:
    """Raise ApiError unless an insert says that Local SSDs are lost if the time limit stops the
    machine.
    """
    field = "resource.scheduling.onInstanceStopAction"
    discards = scheduling.get("onInstanceStopAction", {}).get("discardLocalSsd")
    served(f"{field}.discardLocalSsd", discards, None, True)
    stops = "maxRunDuration" in scheduling and scheduling["instanceTerminationAction"] == "STOP"
    if has_ssds and stops and not discards:
        why = "It must be true for a VM with local SSDs that its maximum run duration stops."
        raise invalid(f"{field}.discardLocalSsd", "", why)


def boot_disk(
    compute: Compute, project: str, zone: str, kind: catalog.MachineType, name: str, given: dict
) -> tuple[dict, bool]:
    """Return the Disk resource for an instance's first disk, and whether its image is plain."""
    field = "resource.disks[0].initializeParams"
    params: dict[str, Any] = given.get("initializeParams", {})
    image = resolve(compute, project, params.get("sourceImage", ""), f"{field}.sourceImage")
    check_ready(image)
    taken = catalog.of_family(catalog.BOOT_DISKS, kind.name, tuple(catalog.DISK_TYPES))
    link = params.get("diskType") or taken[0]
    disk_type = last(link)
    if disk_type not in catalog.DISK_TYPES or ("zones/" in link and f"zones/{zone}/" not in link):
        raise invalid(
            f"{field}.diskType", link, "The referenced diskType resource cannot be found."
        )
    if disk_type not in taken:
        message = f"{disk_type} disk type cannot be used by {kind.name} machine type."
        raise ApiError(400, "badRequest", message)
    size = int(params.get("diskSizeGb", image["diskSizeGb"]))
    if size > MOST_GB:
        raise invalid(f"{field}.diskSizeGb", size, f"Disk size must be at most {MOST_GB} GB.")
    if size < int(image["diskSizeGb"]):
        why = (
            f"Requested disk size cannot be smaller than the image size ({image['diskSizeGb']} GB)"
        )
        raise invalid(f"{field}.diskSizeGb", size, why)
    base = f"{LINK}projects/{project}/zones/{zone}"
    disk: dict[str, Any] = {
        "kind": "compute#disk",
        "id": number_of(f"{base}/disks/{name}"),
        "name": name,
        "status": "READY",
        "sizeGb": str(size),
        "type": f"{base}/diskTypes/{disk_type}",
        "zone": base,
        "selfLink": f"{base}/disks/{name}",
        "sourceImage": image["selfLink"],
        "sourceImageId": image["id"],
        "physicalBlockSizeBytes": "4096",
        "architecture": "X86_64",
        "labelFingerprint": "42WmSpB8rSM=",
    }
    if params.get("labels"):
        disk["labels"] = check_labels(params["labels"])
    if key_of(disk["selfLink"]) in compute.tables["disks"]:
        raise already_exists(f"projects/{project}/zones/{zone}/disks/{name}")
    return disk, image.get("family", "").startswith(("debian-", "cos-"))


def check_ready(row: dict) -> None:
    """Raise 400 for an image or a snapshot that is still being made."""
    if row["status"] != "READY":
        path = row["selfLink"].removeprefix(LINK)
        raise ApiError(400, "resourceNotReady", f"The resource '{path}' is not ready")


# --- images and snapshots that are made


def path_of(project: str, kind: str, name: str) -> str:
    return f"projects/{project}/global/{kind}/{name}"


def new_path(compute: Compute, project: str, kind: str, body: dict) -> str:
    """The path of a new image or snapshot, whose name must be free."""
    name = body.get("name", "")
    check_name("resource.name", name)
    path = path_of(project, kind, name)
    if any(row["name"] == name for row in compute.kept(project, kind)):
        raise already_exists(path)
    return path


def make(
    compute: Compute, call: Call, kind: str, row: dict, operation: dict, copy: Callable
) -> dict:
    """Begin to make an image or a snapshot; `copy` copies its content."""
    compute.kept(call.params["project"], kind).append(row)
    compute.save_project(call.params["project"])
    failed = compute.faults.take_operation_error(call.method)
    compute.in_background(finish(compute, call.params["project"], row, operation, failed, copy))
    return operation


async def finish(
    compute: Compute,
    project: str,
    row: dict,
    operation: dict,
    failed: dict | None,
    copy: Callable[[], Awaitable[None]],
) -> None:
    """Copy content; until then the image or snapshot can be neither used nor deleted. One that fails
    stays, and says so.
    """
    try:
        if not failed:
            await copy()
    except Exception as error:  # an operation that never ends would say nothing
        log.exception("%s failed", row["selfLink"])
        failed = {"code": "INTERNAL_ERROR", "message": f"{type(error).__name__}: {error}"}
    await asyncio.sleep(compute.settings.image_delay)
    row["status"] = "FAILED" if failed else "READY"
    compute.save_project(project)
    compute.finish(operation, failed)


async def remove(compute: Compute, call: Call) -> dict:
    """Delete an image or a snapshot."""
    project, kind = call.params["project"], call.method.split(".")[1]
    rows = compute.kept(project, kind)
    row = named(rows, path_of(project, kind, call.params[kind[:-1]]))
    if row["status"] in ("PENDING", "UPLOADING"):
        check_ready(row)
    rows.remove(row)
    compute.save_project(project)
    await asyncio.to_thread(sandbox.remove, contents.folder_of(compute, row["id"]))
    path = row["selfLink"].removeprefix(LINK)
    return compute.finish(begin_operation(compute, call, "delete", path, row["id"]))


# --- methods


async def get_newest(compute: Compute, call: Call) -> dict:
    return newest(compute, call.params["project"], call.params["family"])


async def insert_image(compute: Compute, call: Call) -> dict:
    """Give the project an image of its own, of a snapshot."""
    project, body = call.params["project"], call.body or {}
    path = new_path(compute, project, "images", body)
    honoured("resource", body, IMAGE)
    if family := body.get("family"):
        check_name("resource.family", family)
    check_labels(body.get("labels") or {})
    link = body.get("sourceSnapshot", "")
    if "/" not in link:
        raise invalid("resource.sourceSnapshot", link, "The URL is malformed.")
    snapshots = compute.kept(project, "snapshots")
    source = named(snapshots, path_of(project, "snapshots", last(link)))
    check_ready(source)
    size = int(source["diskSizeGb"])
    image = image_resource(project, catalog.Image(last(path), "", "", size, compute.timestamp()))
    kept = ("family", "description", "labels", "sourceSnapshot")
    image.update({key: body[key] for key in kept if body.get(key)}, status="PENDING")
    image = {key: value for key, value in image.items() if value != ""}
    operation = begin_operation(compute, call, "insert", path, image["id"])
    copy = functools.partial(contents.repeat, compute, source["id"], image["id"])
    return make(compute, call, "images", image, operation, copy)


async def snapshot_disk(compute: Compute, call: Call) -> dict:
    """Make a snapshot of a disk (disks.createSnapshot), which machines may write to meanwhile."""
    project, body, disk = call.params["project"], call.body or {}, find_disk(compute, call)
    path = new_path(compute, project, "snapshots", body)
    honoured("resource", body, SNAPSHOT)
    labels = check_labels(body.get("labels") or {})
    kept = {"labels": labels, "description": body.get("description", "")}
    row = {
        "kind": "compute#snapshot",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": last(path),
        "status": "UPLOADING",
        "sourceDisk": disk["selfLink"],
        "sourceDiskId": disk["id"],
        "diskSizeGb": disk["sizeGb"],
        "storageBytes": "0",
        "storageBytesStatus": "UP_TO_DATE",
        "downloadBytes": "0",
        "snapshotType": "STANDARD",
        "storageLocations": ["us"],
        "autoCreated": False,
        "labelFingerprint": fingerprint(labels),
        "selfLink": LINK + path,
        **{key: value for key, value in kept.items() if value},
    }
    target = disk["selfLink"].removeprefix(LINK)
    operation = begin_operation(compute, call, "createSnapshot", target, disk["id"])
    copy = functools.partial(contents.keep, compute, disk, row["id"])
    return make(compute, call, "snapshots", row, operation, copy)


def find_disk(compute: Compute, call: Call) -> dict:
    project, zone, name = (call.params[key] for key in ("project", "zone", "disk"))
    return compute.row("disks", f"projects/{project}/zones/{zone}/disks/{name}")


async def delete_disk(compute: Compute, call: Call) -> dict:
    disk = find_disk(compute, call)
    if disk.get("users"):
        raise in_use("disk", disk, disk["users"][0].removeprefix(LINK))
    return delete(compute, call, "disks", disk)


HANDLERS = {
    "disks.delete": delete_disk,
    "disks.createSnapshot": snapshot_disk,
    "images.getFromFamily": get_newest,
    "images.insert": insert_image,
    "images.delete": remove,
    "snapshots.delete": remove,
}
