"""Images and disks: looked up, made, listed, deleted.

Not covered: images of other things than snapshots, licences, what features of the guest mean, deprecations that
come by themselves. Snapshots are in disks.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from localcloud.call import Call
from localcloud.compute import catalog, contents
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_labels,
    check_name,
    invalid,
    last,
    not_found,
    number_of,
    served,
)
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute
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
IMAGE = (
    "name",
    "family",
    "description",
    "labels",
    "sourceSnapshot",
    "kind",
)


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
    return public + compute.own_images(project)


def find(compute: Compute, project: str, name: str) -> dict:
    for image in images_of(compute, project):
        if image["name"] == name:
            return image
    raise not_found(f"projects/{project}/global/images/{name}")


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
        image = (newest if by_family else find)(compute, owner, parts[-1])
    except ApiError:
        raise invalid(field, link, "The referenced image resource cannot be found.") from None
    return image


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
    """Return the new boot disk, and whether its image is plain."""
    disk, image = new_disk(compute, project, zone, kind, name, given)
    if (project, zone, disk["name"]) in compute.disks:
        raise already_exists(f"projects/{project}/zones/{zone}/disks/{disk['name']}")
    return disk, image.get("family", "").startswith(("debian-", "cos-"))


def new_disk(
    compute: Compute, project: str, zone: str, kind: catalog.MachineType, name: str, given: dict
) -> tuple[dict, dict]:
    """Return the Disk resource for an instance's first disk and the image it is made from."""
    field = "resource.disks[0].initializeParams"
    params: dict[str, Any] = given.get("initializeParams", {})
    image, origin = boot_source(compute, project, params, field)
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
        **origin,
        "physicalBlockSizeBytes": "4096",
        "architecture": "X86_64",
        "labelFingerprint": "42WmSpB8rSM=",
    }
    if params.get("labels"):
        disk["labels"] = check_labels(params["labels"])
    return disk, image


def not_ready(path: str) -> ApiError:
    return ApiError(400, "resourceNotReady", f"The resource '{path}' is not ready")


def check_ready(row: dict) -> None:
    """Raise 400 for an image or a snapshot that is still being made."""
    if row["status"] != "READY":
        raise not_ready(row["selfLink"].removeprefix(LINK))


def boot_source(
    compute: Compute, project: str, params: dict, field: str
) -> tuple[dict, dict[str, str]]:
    """Return the image that a boot disk boots, and what its resource says it was made from."""
    image = resolve(compute, project, params.get("sourceImage", ""), f"{field}.sourceImage")
    check_ready(image)
    return image, {"sourceImage": image["selfLink"], "sourceImageId": image["id"]}


def find_disk(compute: Compute, project: str, zone: str, name: str) -> dict:
    if (project, zone, name) not in compute.disks:
        raise not_found(f"projects/{project}/zones/{zone}/disks/{name}")
    return compute.disks[project, zone, name]


def check_unused(disk: dict) -> None:
    if disk.get("users"):
        path, user = disk["selfLink"].removeprefix(LINK), disk["users"][0].removeprefix(LINK)
        message = f"The disk resource '{path}' is already being used by '{user}'"
        raise ApiError(400, "resourceInUseByAnotherResource", message)


# --- methods


async def get_image(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    if "family" in call.params:
        return newest(compute, project, call.params["family"])
    return find(compute, project, call.params["image"])


async def list_images(compute: Compute, call: Call) -> dict:
    rows = images_of(compute, call.params["project"])
    return listed(call, "image", "globals", [("global", row) for row in rows])


async def insert_image(compute: Compute, call: Call) -> dict:
    """Give the project an image of its own, of a snapshot."""
    project, body = call.params["project"], call.body or {}
    name, row = body.get("name", ""), compute.project_row(project)
    check_name("resource.name", name)
    path = f"projects/{project}/global/images/{name}"
    if any(image["name"] == name for image in row["images"]):
        raise already_exists(path)
    honoured("resource", body, IMAGE)
    if family := body.get("family"):
        check_name("resource.family", family)
    check_labels(body.get("labels") or {})
    source = snapshot_at(compute, project, body.get("sourceSnapshot", ""))
    size = int(source["diskSizeGb"])
    image = image_resource(project, catalog.Image(name, "", "", size, compute.timestamp()))
    kept = ("family", "description", "labels", "sourceSnapshot")
    image.update({key: body[key] for key in kept if body.get(key)}, status="PENDING")
    image = {key: value for key, value in image.items() if value != ""}
    row["images"].append(image)
    compute.save_project(project)
    operation = compute.operation(project, "insert", path, "global", call.principal)
    compute.in_background(finish_image(compute, project, image, source, operation))
    return operation


def snapshot_at(compute: Compute, project: str, link: str) -> dict:
    """The snapshot that an image is made of."""
    if "/" not in link:
        raise invalid("resource.sourceSnapshot", link, "The URL is malformed.")
    rows = compute.project_row(project).get("snapshots", [])
    named = [row for row in rows if row["name"] == last(link)]
    if not named:
        raise not_found(f"projects/{project}/global/snapshots/{last(link)}")
    check_ready(named[0])
    return named[0]


async def finish_image(
    compute: Compute, project: str, image: dict, source: dict, operation: dict
) -> None:
    """Copy what an image is made of; an image that fails stays, and says so."""
    await asyncio.sleep(compute.settings.image_delay)
    failed = compute.faults.take_operation_error("compute.images.insert")
    try:
        if not failed:
            await contents.repeat(compute, source["id"], image["id"])
    except Exception as error:  # an operation that never ends would say nothing
        log.exception("the image %s failed", image["name"])
        failed = {"code": "INTERNAL_ERROR", "message": f"{type(error).__name__}: {error}"}
    image["status"] = "FAILED" if failed else "READY"
    compute.save_project(project)
    compute.finish(operation, failed)


async def delete_image(compute: Compute, call: Call) -> dict:
    project, name = call.params["project"], call.params["image"]
    path = f"projects/{project}/global/images/{name}"
    row = compute.project_row(project)
    gone = [image for image in row["images"] if image["name"] == name]
    if not gone:
        raise not_found(path)
    if gone[0]["status"] == "PENDING":
        raise not_ready(path)
    row["images"].remove(gone[0])
    compute.save_project(project)
    await asyncio.to_thread(sandbox.remove, contents.folder_of(compute, gone[0]["id"]))
    return compute.finish(compute.operation(project, "delete", path, "global", call.principal))


async def get_disk(compute: Compute, call: Call) -> dict:
    return find_disk(compute, call.params["project"], call.params["zone"], call.params["disk"])


async def list_disks(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    rows = [(key[1], row) for key, row in compute.disks.items() if key[0] == project]
    return listed(call, "disk", "zones", rows)


async def delete_disk(compute: Compute, call: Call) -> dict:
    project, zone, name = (call.params[key] for key in ("project", "zone", "disk"))
    disk = find_disk(compute, project, zone, name)
    check_unused(disk)
    path = disk["selfLink"].removeprefix(LINK)
    del compute.disks[project, zone, name]
    compute.drop("disks", disk["id"])
    operation = compute.operation(
        project, "delete", path, f"zones/{zone}", call.principal, targetId=disk["id"]
    )
    return compute.finish(operation)
