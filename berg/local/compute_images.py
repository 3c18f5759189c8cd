"""Images and boot disks. Not covered: making images from disks, snapshots, licences, deprecation schedules."""

from __future__ import annotations

import zlib
from typing import Any

from berg.local import catalog
from berg.local.compute_checks import LINK, check_name, invalid, last, not_found
from berg.local.errors import ApiError


def number_of(text: str) -> str:
    """A stable uint64 id for something that has none in our tables."""
    return str(10**18 + zlib.crc32(text.encode()) * 1000)


def image_resource(project: str, image: catalog.Image) -> dict:
    return {
        "kind": "compute#image",
        "id": number_of(image.name),
        "name": image.name,
        "family": image.family,
        "description": image.description,
        "creationTimestamp": image.created,
        "status": "READY",
        "diskSizeGb": str(image.disk_gb),
        "archiveSizeBytes": str(image.disk_gb << 28),
        "architecture": "X86_64",
        "sourceType": "RAW",
        "selfLink": f"{LINK}projects/{project}/global/images/{image.name}",
        "labelFingerprint": "42WmSpB8rSM=",
        "storageLocations": ["us"],
    }


def images_of(project: str, own: list[dict]) -> list[dict]:
    public = [image_resource(project, image) for image in catalog.IMAGES.get(project, [])]
    return sorted(public + own, key=lambda image: image["name"])


def get(project: str, name: str, own: list[dict]) -> dict:
    for image in images_of(project, own):
        if image["name"] == name:
            return image
    raise not_found(f"projects/{project}/global/images/{name}")


def get_from_family(project: str, family: str, own: list[dict]) -> dict:
    """The newest image of a family."""
    found = [image for image in images_of(project, own) if image.get("family") == family]
    if not found:
        raise not_found(f"projects/{project}/global/images/family/{family}")
    return max(found, key=lambda image: image["creationTimestamp"])


def is_plain(image: dict) -> bool:
    return image.get("family", "").startswith("debian-")


def resolve(project: str, link: str, field: str, own: dict[str, list[dict]]) -> dict:
    """Return the image that a source image link names, by name or by family."""
    words = link.partition("compute/v1/")[2] or link
    parts = words.split("/")
    owner = parts[parts.index("projects") + 1] if "projects" in parts else project
    try:
        if len(parts) >= 2 and parts[-2] in ("family", "imageFamilyViews"):
            return get_from_family(owner, parts[-1], own.get(owner, []))
        return get(owner, parts[-1], own.get(owner, []))
    except ApiError:
        raise invalid(field, link, "The referenced image resource cannot be found.") from None


def boot_disk(project: str, zone: str, name: str, given: dict, own: dict[str, list[dict]]) -> tuple[dict, dict]:
    """Return the Disk resource for an instance's first disk and the image it is made from."""
    field = "resource.disks[0].initializeParams"
    params: dict[str, Any] = given.get("initializeParams", {})
    if not params.get("sourceImage"):
        raise invalid("resource.disks[0]", "", "Boot disk must have a source specified.")
    image = resolve(project, params["sourceImage"], f"{field}.sourceImage", own)
    disk_type = last(params.get("diskType", "pd-standard"))
    if disk_type not in catalog.DISK_TYPES:
        raise invalid(f"{field}.diskType", params["diskType"], "The referenced diskType resource cannot be found.")
    size = int(params.get("diskSizeGb", image["diskSizeGb"]))
    if size < int(image["diskSizeGb"]):
        why = f"Requested disk size cannot be smaller than the image size ({image['diskSizeGb']} GB)"
        raise invalid(f"{field}.diskSizeGb", size, why)
    name = params.get("diskName") or name
    check_name(f"{field}.diskName", name)
    base = f"{LINK}projects/{project}/zones/{zone}"
    disk = {
        "kind": "compute#disk",
        "id": number_of(f"{zone}/{name}"),
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
        disk["labels"] = params["labels"]
    return disk, image
