"""Images of machines' disks that berg made in the project: listed, made, deleted."""

from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, http

FIELDS = "name,family,status,diskSizeGb,archiveSizeBytes,creationTimestamp,description,labels"


def find(config: Config) -> list[dict[str, Any]]:
    """Return the images that berg made, whoever asked for them, the newest first."""
    fields = f"items({FIELDS}),nextPageToken"
    listed = api.pages(config, "/global/images", filter='(labels.berg="1")', fields=fields)
    found = [image for page in listed for image in page.get("items", [])]
    return sorted(found, key=lambda image: str(image["creationTimestamp"]), reverse=True)


def make(config: Config, name: str, zone: str, body: dict[str, Any]) -> None:
    """Make an image of the disk that has its name, and wait until it can be used.

    If that fails or is interrupted, there is no image. Raise api.OperationFailed with Google's
    words.
    """
    disk = f"projects/{config.project}/zones/{zone}/disks/{name}"
    try:
        api.write(config, "/global/images", {"name": name, "sourceDisk": disk, **body})
    except BaseException:
        withdraw(config, name)
        raise


def withdraw(config: Config, name: str) -> None:
    """Delete an image that may be half made: Google refuses that until it is made."""
    path = f"/global/images/{name}"
    http.wait_for(lambda: api.find(config, path, fields="status").get("status") != "PENDING", 0.5)
    api.delete(config, path, wait_for_it=True)


def delete(config: Config, names: list[str]) -> None:
    """Delete images; raise BergError for one that berg did not make, before any is deleted."""
    check_made(config, names)
    for name in names:
        withdraw(config, name)


def check_made(config: Config, names: list[str]) -> None:
    """Raise BergError if berg made no image of one of these names."""
    there = {image["name"] for image in find(config)}
    for name in names:
        if name not in there:
            raise BergError(f"berg made no image {name!r}. See those it made: berg image list")
