"""Handlers of the Cloud Storage methods on buckets. What they do not cover stands in storage_api.py."""

import re
from typing import Any

from berg.local.call import Call, Cloud
from berg.local.errors import ApiError
from berg.local.storage.checks import check_conditions, check_storage_class, etag, find_bucket, origin
from berg.local.storage.state import timestamp

MULTI_REGIONS = {"US", "EU", "ASIA"}
DUAL_REGIONS = {"NAM4", "EUR4", "EUR5", "EUR7", "EUR8", "ASIA1"}
REGION = re.compile(r"[A-Z]+-[A-Z]+[0-9]{1,2}")
SOFT_DELETE_SECONDS = "604800"  # Google's default, a week
# Set by the server, or fixed when a bucket is made.
FIXED = {
    *("kind", "id", "selfLink", "name", "projectNumber", "generation", "metageneration", "location"),
    *("locationType", "etag", "timeCreated", "updated", "project", "owner"),
}


async def list_buckets(cloud: "Cloud", call: "Call") -> dict:
    params = call.params
    project = check_project(cloud, call)
    limit = min(params.get("maxResults") or 1000, 1000)
    prefix = params.get("prefix", "")
    answer: dict[str, Any] = {"kind": "storage#buckets"}
    if params.get("softDeleted"):
        return answer
    start = params.get("pageToken", "") or prefix
    found, following = cloud.storage.buckets(project, prefix, start, limit)
    if found:
        answer["items"] = [present_bucket(bucket, origin(call)) for bucket in found]
    if following:
        answer["nextPageToken"] = following
    return answer


async def insert_bucket(cloud: "Cloud", call: "Call") -> dict:
    body, project = call.body or {}, check_project(cloud, call)
    name = body["name"]
    check_bucket_name(name)
    owner = cloud.storage.bucket(name)
    if owner and owner["project"] == project:
        raise ApiError(
            409, "conflict", "Your previous request to create the named bucket succeeded and you already own it."
        )
    if owner:
        raise ApiError(
            409,
            "conflict",
            "The requested bucket name is not available. The bucket namespace is shared by all users of the "
            "system. Please select a different name and try again.",
        )
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
        "iamConfiguration": {},
        "softDeletePolicy": {"retentionDurationSeconds": SOFT_DELETE_SECONDS},
    }
    if location in MULTI_REGIONS | DUAL_REGIONS:
        bucket["rpo"] = "DEFAULT"
    merge_bucket(bucket, body)
    cloud.storage.put_bucket(bucket)
    return present_bucket(bucket, origin(call))


async def get_bucket(cloud: "Cloud", call: "Call") -> dict:
    bucket = find_bucket(cloud, call)
    check_conditions(call.params, bucket, reading=True)
    return present_bucket(bucket, origin(call))


async def patch_bucket(cloud: "Cloud", call: "Call") -> dict:
    bucket = find_bucket(cloud, call)
    check_conditions(call.params, bucket)
    return change_bucket(cloud, call, bucket)


async def update_bucket(cloud: "Cloud", call: "Call") -> dict:
    bucket = find_bucket(cloud, call)
    check_conditions(call.params, bucket)
    fixed = {key: value for key, value in bucket.items() if key in FIXED}
    fixed["iamConfiguration"] = {}
    fixed["storageClass"] = bucket["storageClass"]
    fixed["softDeletePolicy"] = bucket["softDeletePolicy"]
    return change_bucket(cloud, call, fixed)


def change_bucket(cloud: "Cloud", call: "Call", bucket: dict) -> dict:
    merge_bucket(bucket, call.body or {})
    bucket["metageneration"] = str(int(bucket["metageneration"]) + 1)
    bucket["updated"] = timestamp(cloud.storage.next_generation())
    cloud.storage.put_bucket(bucket)
    return present_bucket(bucket, origin(call))


async def delete_bucket(cloud: "Cloud", call: "Call") -> None:
    bucket = find_bucket(cloud, call)
    check_conditions(call.params, bucket)
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
    """Return the id of the project that a request names by id or number; 400 or 403 if it cannot be used."""
    name = call.params["project"]
    for project, entry in cloud.projects.items():
        if name in (project, entry["number"]):
            if entry["access"]:
                return project
            permission = "list" if call.method.endswith("list") else "create"
            raise ApiError(
                403,
                "forbidden",
                f"{call.principal} does not have storage.buckets.{permission} access to the Google Cloud "
                f"project. Permission 'storage.buckets.{permission}' denied on resource (or it may not exist).",
            )
    raise ApiError(400, "invalid", f"Unknown project id: {name}")


def check_bucket_name(name: str) -> None:
    """Raise 400 for a name that breaks https://cloud.google.com/storage/docs/buckets#naming."""
    fits = re.fullmatch(r"[a-z0-9][a-z0-9._-]*[a-z0-9]", name) and 3 <= len(name) <= 222
    parts = name.split(".")
    fits = fits and all(1 <= len(part) <= 63 for part in parts)
    address = re.fullmatch(r"[0-9]+(\.[0-9]+){3}", name)
    if not fits or address or name.startswith("goog") or "google" in name or "g00gle" in name:
        raise ApiError(400, "invalid", f"Invalid bucket name: '{name}'")


def location_type(location: str) -> str:
    if location in MULTI_REGIONS:
        return "multi-region"
    if location in DUAL_REGIONS:
        return "dual-region"
    if REGION.fullmatch(location):
        return "region"
    raise ApiError(400, "invalid", "The specified location constraint is not valid.")


def merge_bucket(bucket: dict, body: dict) -> None:
    """Apply a patch to a bucket and fill in what follows from it."""
    if (body.get("versioning") or {}).get("enabled") or body.get("retentionPolicy"):
        raise ApiError(501, "notImplemented", "The embedded cloud has no object versions and no retention")
    check_storage_class(body)
    merge(bucket, {key: value for key, value in body.items() if key not in FIXED})
    access = bucket.setdefault("iamConfiguration", {})
    # Two names for one setting; the newer one wins, unless the request speaks only of the older one.
    asked = body.get("iamConfiguration") or {}
    older = asked.get("bucketPolicyOnly") if "uniformBucketLevelAccess" not in asked else None
    uniform = older or access.get("uniformBucketLevelAccess") or {"enabled": False}
    access["uniformBucketLevelAccess"] = access["bucketPolicyOnly"] = uniform
    access.setdefault("publicAccessPrevention", "inherited")
    soft = bucket.setdefault("softDeletePolicy", {"retentionDurationSeconds": SOFT_DELETE_SECONDS})
    soft.setdefault("effectiveTime", bucket["timeCreated"])
    if "retentionDurationSeconds" in soft:  # clients may send an int64 as a number; answers hold text
        soft["retentionDurationSeconds"] = str(soft["retentionDurationSeconds"])


def merge(target: dict, patch: dict) -> None:
    """JSON merge patch (RFC 7396), in place."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


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


TABLE = {
    "storage.managedFolders.list": list_managed_folders,
    "storage.buckets.list": list_buckets,
    "storage.buckets.insert": insert_bucket,
    "storage.buckets.get": get_bucket,
    "storage.buckets.patch": patch_bucket,
    "storage.buckets.update": update_bucket,
    "storage.buckets.delete": delete_bucket,
    "storage.buckets.getStorageLayout": get_storage_layout,
}
