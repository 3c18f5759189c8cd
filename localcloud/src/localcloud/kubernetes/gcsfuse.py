"""Volumes of Kubernetes Engine's driver for gcsfuse: a folder of a bucket as files, read only.

The driver is in a cluster by its add-on, and serves pods with its annotation. What a pod may read
is what the account of Google's may that its Kubernetes account acts as. Files are those that were
there when the pod began.

Not covered: writing, buckets of persistent volumes, principals without an account of Google's,
caches and their sizes, which are checked and mean nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from localcloud.call import Cloud
from localcloud.identity import permissions
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.volumes import Missing
from localcloud.kubernetes.workload_identity import Server

ANNOTATION = "gke-gcsfuse/volumes"
ATTRIBUTES = (
    "bucketName",
    "mountOptions",
    "fileCacheCapacity",
    "fileCacheForRangeRead",
    "gcsfuseLoggingSeverity",
    "skipCSIBucketAccessCheck",
    "disableMetrics",
    "metadataStatCacheCapacity",
    "metadataTypeCacheCapacity",
    "metadataCacheTTLSeconds",
)
SWITCH, NUMBER, TEXT = "(true|false)", "-?[0-9]+", ".+"
# Of the mount options those that berg or its users may want: flags with =, the file's with a colon.
OPTIONS = {
    "implicit-dirs": "",
    "only-dir=": TEXT,
    "profile=": "aiml-(training|serving|checkpointing)",
    "metadata-cache:ttl-secs:": NUMBER,
    "metadata-cache:negative-ttl-secs:": NUMBER,
    "metadata-cache:stat-cache-max-size-mb:": NUMBER,
    "metadata-cache:type-cache-max-size-mb:": NUMBER,
    "file-cache:max-size-mb:": NUMBER,
    "file-cache:enable-parallel-downloads:": SWITCH,
    "file-cache:cache-file-for-range-read:": SWITCH,
}


def files(cloud: Cloud, plane: Plane, pod: dict, source: dict) -> dict[str, Path]:
    """The files that a volume shows, by their paths in it; raises Missing with the driver's words
    where it has none.
    """
    if (pod["metadata"].get("annotations") or {}).get(ANNOTATION) != "true":
        message = "rpc error: code = FailedPrecondition desc = failed to find the sidecar container"
        raise Missing(f"{message} in Pod spec")
    attributes = source.get("volumeAttributes") or {}
    for name in attributes:
        if name not in ATTRIBUTES:
            raise Missing(f"rpc error: code = InvalidArgument desc = unknown attribute {name!r}")
    options = attributes.get("mountOptions", "").split(",")
    folder = "".join(checked(each) for each in options if each)
    if not source.get("readOnly"):
        raise Missing("writing through gcsfuse is not part of the embedded cloud")
    return objects(cloud, plane, pod, attributes.get("bucketName", ""), f"{folder}/".lstrip("/"))


def checked(option: str) -> str:
    """The folder that a mount option says, "" for another one; raises Missing for one that gcsfuse
    does not have.
    """
    for known, pattern in OPTIONS.items():
        value = option.removeprefix(known)
        if option.startswith(known) and re.fullmatch(pattern, value):
            return value.strip("/") if known == "only-dir=" else ""
    message = "rpc error: code = InvalidArgument desc = gcsfuse failed with error: unknown flag: "
    raise Missing(f"{message}--{option}")


def objects(cloud: Cloud, plane: Plane, pod: dict, bucket: str, prefix: str) -> dict[str, Path]:
    """The objects below a prefix, by their names in it."""
    if not bucket or cloud.storage.bucket(bucket) is None:
        raise Missing(f"rpc error: code = NotFound desc = bucket {bucket} doesn't exist")
    account = Server(cloud, plane, pod).annotated
    where = f"projects/{plane.project}/buckets/{bucket}"
    if not account or not permissions.allowed(cloud, account, "storage.objects.list", where):
        message = f"googleapi: Error 403: {account or 'the pod'} does not have storage.objects.list"
        raise Missing(f"rpc error: code = PermissionDenied desc = {message} access to the bucket")
    found, _, _ = cloud.storage.list_objects(bucket, prefix, limit=1 << 20)
    names = {each["name"].removeprefix(prefix): each["generation"] for each in found}
    return {
        name: cloud.storage.path(generation)
        for name, generation in names.items()
        if name and not name.endswith("/") and ".." not in name.split("/")
    }
