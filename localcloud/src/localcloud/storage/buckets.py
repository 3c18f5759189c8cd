"""Handlers of the Cloud Storage methods on buckets. The docstring of api.py lists what they do not cover."""

import re
from typing import Any

from localcloud import patches
from localcloud.call import Call, Cloud
from localcloud.compute.checks import check_labels
from localcloud.errors import ApiError, unserved
from localcloud.locations import DUAL_REGIONS, MULTI_REGIONS, REGIONS
from localcloud.storage.checks import (
    check_identity,
    check_request,
    check_storage_class,
    etag,
    find_bucket,
    origin,
)
from localcloud.storage.state import timestamp

DAY = 24 * 3600  # seconds
SOFT_DELETE_SECONDS = "604800"  # Google's default, a week
KEPT = (
    "labels",
    "storageClass",
    "iamConfiguration",
    "softDeletePolicy",
)
# Settings that can only be off here, with the field that turns them on; "": any value does.
OFF = {
    **{
        "versioning": "enabled",
        "billing": "requesterPays",
        "autoclass": "enabled",
        "hierarchicalNamespace": "enabled",
    },
    **dict.fromkeys(
        ("retentionPolicy", "objectRetention", "defaultEventBasedHold", "encryption", "logging"), ""
    ),
    **dict.fromkeys(("ipFilter", "customPlacementConfig", "acl", "defaultObjectAcl"), ""),
    **dict.fromkeys(("lifecycle", "cors", "website", "rpo"), ""),
}


async def list_buckets(cloud: "Cloud", call: "Call") -> dict:
    project, params = check_project(cloud, call), call.params
    unserved(params.get("softDeleted"), "soft-deleted buckets")
    found = cloud.storage.buckets(project, params.get("prefix", ""))
    unserved(params.get("maxResults", len(found)) < len(found), "pages of buckets")
    rows = [present_bucket(bucket, origin(call)) for bucket in found]
    return {"kind": "storage#buckets", **({"items": rows} if rows else {})}


async def insert_bucket(cloud: "Cloud", call: "Call") -> dict:
    body, project = call.body or {}, check_project(cloud, call)
    name = body["name"]
    check_bucket_name(name)
    for key in ("enableObjectRetention", "predefinedAcl", "predefinedDefaultObjectAcl"):
        unserved(call.params.get(key) not in (None, False, "private"), f"buckets with {key}")
    if cloud.storage.bucket(name):
        message = (
            "Your previous request to create the named bucket succeeded and you already own it."
        )
        raise ApiError(409, "conflict", message)
    location = (body.get("location") or "US").upper()
    generation = cloud.storage.next_generation()
    bucket = {
        "name": name,
        "project": project,
        "projectNumber": cloud.projects[project]["number"],
        "location": location,
        "locationType": location_type(location),
        "storageClass": "STANDARD",
        "generation": str(generation),
        "metageneration": "1",
        "timeCreated": timestamp(generation),
        "updated": timestamp(generation),
    }
    fill_bucket(bucket, body)
    cloud.storage.put_bucket(bucket)
    return present_bucket(bucket, origin(call))


async def get_bucket(cloud: "Cloud", call: "Call") -> dict:
    bucket = find_bucket(cloud, call)
    check_request(call, bucket)
    return present_bucket(bucket, origin(call))


async def patch_bucket(cloud: "Cloud", call: "Call") -> dict:
    bucket, body = find_bucket(cloud, call), call.body or {}
    check_request(call, bucket)
    check_identity(body, {"name": bucket["name"], "location": bucket["location"]})
    fill_bucket(bucket, body)
    bucket["metageneration"] = str(int(bucket["metageneration"]) + 1)
    bucket["updated"] = timestamp(cloud.storage.next_generation())
    cloud.storage.put_bucket(bucket)
    return present_bucket(bucket, origin(call))


async def delete_bucket(cloud: "Cloud", call: "Call") -> None:
    bucket = find_bucket(cloud, call)
    check_request(call, bucket)
    if not cloud.storage.is_empty(bucket["name"]):
        raise ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
    cloud.storage.delete_bucket(bucket["name"])


async def get_storage_layout(cloud: "Cloud", call: "Call") -> dict:
    bucket = find_bucket(cloud, call)
    return {
        "kind": "storage#storageLayout",
        "bucket": bucket["name"],
        "location": bucket["location"],
        "locationType": bucket["locationType"],
        "hierarchicalNamespace": {"enabled": False},
    }


async def list_managed_folders(cloud: "Cloud", call: "Call") -> dict:
    """None: nothing can make one. `gcloud storage rm -r` asks."""
    find_bucket(cloud, call)
    return {"kind": "storage#managedFolders"}


def check_project(cloud: "Cloud", call: "Call") -> str:
    """Return the id of the project that a request names by id or number."""
    project = cloud.project_named(call.params["project"])
    if project is None:
        raise ApiError(400, "invalid", f"Unknown project id: {call.params['project']}")
    return project


def check_bucket_name(name: str) -> None:
    """Raise 400 for a name that breaks https://cloud.google.com/storage/docs/buckets#naming."""
    fits = re.fullmatch(r"[a-z0-9][a-z0-9._-]*[a-z0-9]", name) and 3 <= len(name) <= 222
    parts = name.split(".")
    fits = fits and all(1 <= len(part) <= 63 for part in parts)
    address = re.fullmatch(r"[0-9]+(\.[0-9]+){3}", name)
    if not fits or address or name.startswith("goog") or "google" in name or "g00gle" in name:
        raise ApiError(400, "invalid", f"Invalid bucket name: '{name}'")
    if len(parts) > 1:
        message = "The bucket you tried to create requires domain ownership verification."
        raise ApiError(
            403, "forbidden", f"{message} See https://cloud.google.com/storage/docs/naming-buckets"
        )


def location_type(location: str) -> str:
    if location in MULTI_REGIONS:
        return "multi-region"
    if location in DUAL_REGIONS:
        return "dual-region"
    if location.lower() in REGIONS:
        return "region"
    raise ApiError(400, "invalid", "The specified location constraint is not valid.")


def fill_bucket(bucket: dict, body: dict) -> None:
    """Lay a body over a bucket, and fill in what follows from it; what is not kept is refused or the
    server's own.
    """
    for key, switch in OFF.items():
        unserved(is_on(body.get(key), switch), f"buckets with {key}")
    check_storage_class(body)
    patches.merge(bucket, {key: body[key] for key in KEPT if key in body})
    check_labels(bucket.get("labels", {}))
    access = bucket.setdefault("iamConfiguration", {})
    uniform = access.setdefault("uniformBucketLevelAccess", {"enabled": False})
    access["bucketPolicyOnly"] = uniform  # its older name
    if access.setdefault("publicAccessPrevention", "inherited") not in ("inherited", "enforced"):
        raise ApiError(400, "invalid", "Invalid argument.")
    soft = bucket.setdefault("softDeletePolicy", {"retentionDurationSeconds": SOFT_DELETE_SECONDS})
    soft.setdefault("effectiveTime", bucket["timeCreated"])
    # clients may send an int64 as a number; answers hold text
    if "retentionDurationSeconds" in soft:
        check_soft_delete(int(soft["retentionDurationSeconds"]))
        soft["retentionDurationSeconds"] = str(soft["retentionDurationSeconds"])


def check_soft_delete(seconds: int) -> None:
    if seconds and not 7 * DAY <= seconds <= 90 * DAY:
        message = "Soft delete retention duration must be 0 or between 7 and 90 days."
        raise ApiError(400, "invalid", message)


def is_on(value: Any, switch: str) -> bool:
    if isinstance(value, dict):
        return bool(value.get(switch) if switch else any(value.values()))
    return bool(value)


def present_bucket(bucket: dict, base: str) -> dict:
    """A bucket as the API shows it."""
    shown = {key: value for key, value in bucket.items() if key != "project"}
    return {
        "kind": "storage#bucket",
        "id": bucket["name"],
        "selfLink": f"{base}/storage/v1/b/{bucket['name']}",
        "etag": etag(bucket),
        **shown,
    }


HANDLERS = {
    "storage.managedFolders.list": list_managed_folders,
    "storage.buckets.list": list_buckets,
    "storage.buckets.insert": insert_bucket,
    "storage.buckets.get": get_bucket,
    "storage.buckets.patch": patch_bucket,
    "storage.buckets.delete": delete_bucket,
    "storage.buckets.getStorageLayout": get_storage_layout,
}
