"""What the handlers of Cloud Storage share: finding things, preconditions, names, what is refused,
how it is shown.
"""

from base64 import b64encode
from typing import Any
from urllib.parse import quote

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, unserved
from localcloud.identity.iam import tag
from localcloud.storage.content import Content

CONDITIONS = {"GenerationMatch": "generation", "MetagenerationMatch": "metageneration"}
# Fields of an object that clients set; all others are the server's.
WRITABLE = {
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
    "storageClass",
    "contexts",
}
STORAGE_CLASSES = {
    "STANDARD",
    "NEARLINE",
    "COLDLINE",
    "ARCHIVE",
    # of old buckets
    "MULTI_REGIONAL",
    "REGIONAL",
    "DURABLE_REDUCED_AVAILABILITY",
}
REFUSED = {
    "kmsKeyName",
    "customerEncryption",
    "temporaryHold",
    "eventBasedHold",
    "retention",
    "acl",
}
MAX_CUSTOM = 8 << 10  # bytes of all keys and values of an object's custom metadata


def origin(call: "Call") -> str:
    """The scheme and host by which the client knows this server; links in answers begin with it."""
    return f"{call.request.scheme}://{call.request.host}"


def etag(resource: dict) -> str:
    """Changes with each generation and metageneration."""
    return b64encode(f"{resource['generation']}/{resource['metageneration']}".encode()).decode()


def present(resource: dict, base: str) -> dict:
    """An object as the API shows it: with kind, id, links and etag."""
    bucket, name, generation = resource["bucket"], resource["name"], resource["generation"]
    path = f"storage/v1/b/{bucket}/o/{quote(name, safe='')}"
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{generation}",
        "selfLink": f"{base}/{path}",
        "mediaLink": f"{base}/download/{path}?generation={generation}&alt=media",
        "etag": etag(resource),
        **resource,
    }


def find_bucket(cloud: "Cloud", call: "Call", name: str | None = None) -> dict:
    """Return a bucket (by default the request's); 404 if there is none."""
    name = name or call.params["bucket"]
    bucket = cloud.storage.bucket(name)
    if bucket is None:
        raise ApiError(404, "notFound", "The specified bucket does not exist.")
    return bucket


def policy_of(cloud: "Cloud", bucket: dict) -> dict:
    """The policy that was set on a bucket, or the one that Google gives to a new bucket."""
    project = bucket["project"]
    owners, viewers = (
        [f"projectEditor:{project}", f"projectOwner:{project}"],
        [f"projectViewer:{project}"],
    )
    given = {"legacyBucketOwner": owners, "legacyBucketReader": viewers}
    if bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
        given.update(legacyObjectOwner=owners, legacyObjectReader=viewers)
    bindings = [
        {"role": f"roles/storage.{role}", "members": members} for role, members in given.items()
    ]
    policy = cloud.storage.policy(bucket["name"]) or {"version": 1, "bindings": bindings}
    name = f"projects/_/buckets/{bucket['name']}"
    return {"kind": "storage#policy", "resourceId": name, "etag": tag(policy), **policy}


def find_object(
    cloud: "Cloud",
    call: "Call",
    bucket: str | None = None,
    name: str | None = None,
    generation: int | str | None = None,
) -> dict:
    """Return a live object (by default the request's), or raise 404."""
    bucket = bucket or call.params["bucket"]
    if name is None:
        name, generation = call.params["object"], call.params.get("generation")
    find_bucket(cloud, call, bucket)
    check_name(name)
    resource = cloud.storage.find(bucket, name)
    if resource is None or (generation and str(generation) != resource["generation"]):
        suffix = f"#{generation}" if generation else ""
        raise ApiError(404, "notFound", f"No such object: {bucket}/{name}{suffix}")
    return resource


def check_conditions(params: dict[str, Any], current: dict | None, prefix: str = "if") -> None:
    """Raise 412 unless all preconditions among `params` hold.

    `current` is the live object or bucket, None if there is none: its generation counts as 0.
    """
    for condition, field in CONDITIONS.items():
        wanted = params.get(prefix + condition)
        if wanted not in (None, int(current[field]) if current else 0):
            message = "At least one of the pre-conditions you specified did not hold."
            raise ApiError(412, "conditionNotMet", message)


def check_request(call: "Call", current: dict | None) -> None:
    """The same for all that a request says."""
    check_conditions(call.params, current)
    unserved(any(key.endswith("NotMatch") for key in call.params), "conditions by NotMatch")
    unserved({"If-Match", "If-None-Match"} & {*call.request.headers}, "conditions by etag")


def check_rate(cloud: "Cloud", bucket: str, name: str) -> None:
    """Raise 429 for a second write of one name within a second. Deleting is free here."""
    if cloud.storage.is_too_soon(bucket, name):
        raise ApiError(
            429,
            "rateLimitExceeded",
            f"The object {bucket}/{name} exceeded the rate limit for object mutation operations (create, update, and "
            "delete). Please reduce your request rate. See https://cloud.google.com/storage/docs/gcs429.",
            domain="usageLimits",
        )


def check_name(name: str) -> None:
    """Raise 400 for a name that https://cloud.google.com/storage/docs/objects#naming forbids."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ApiError(400, "invalid", "Object names must be valid Unicode") from None
    is_taken = name in (".", "..") or name.startswith(".well-known/acme-challenge/")
    if not 1 <= size <= 1024 or "\r" in name or "\n" in name or is_taken:
        raise ApiError(400, "invalid", f"Invalid object name: {name[:80]!r}")


def check_supported(call: "Call", body: dict, bucket: dict) -> None:
    """Refuse what would otherwise be dropped in silence. rclone asks for the list "private", which is
    what there is.
    """
    check_storage_class(body)
    for key in REFUSED:
        unserved(body.get(key), key)
    acl = call.params.get("predefinedAcl") or call.params.get("destinationPredefinedAcl")
    if acl and bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
        message = (
            "Cannot insert legacy ACL for an object when uniform bucket-level access is enabled."
        )
        raise ApiError(400, "invalid", message)
    unserved(acl not in (None, "private"), f"access lists ({acl})")


def check_identity(body: dict, true: dict[str, Any]) -> None:
    """Refuse a body that names another thing than its path; Google passes over most of it."""
    for key, right in true.items():
        if body.get(key) not in (None, right):
            message = f"Value '{right}' in content does not agree with value '{body[key]}'."
            raise ApiError(400, "invalidParameter", message)


def check_storage_class(body: dict) -> None:
    wanted = body.get("storageClass")
    if wanted and wanted not in STORAGE_CLASSES:
        raise ApiError(400, "invalid", f"Invalid storage class: {wanted}")


def written(body: dict) -> dict:
    """The fields of `body` that clients may set, without what is null."""
    fields = {key: body[key] for key in WRITABLE if body.get(key) is not None}
    if "metadata" in fields:
        fields["metadata"] = {
            key: value for key, value in fields["metadata"].items() if value is not None
        }
    check_metadata(fields)
    return fields


def check_metadata(fields: dict) -> None:
    """Raise 400 for more custom metadata than an object may have."""
    pairs = fields.get("metadata", {}).items()
    if (
        sum(len(text.encode(errors="surrogatepass")) for pair in pairs for text in pair)
        > MAX_CUSTOM
    ):
        raise ApiError(
            400, "invalid", "Your metadata headers exceed the maximum allowed metadata size."
        )


def expected_hashes(header: str) -> dict[str, str]:
    """Parse `X-Goog-Hash: crc32c=...,md5=...`."""
    pairs = (part.strip().partition("=") for part in header.split(",") if "=" in part)
    return {
        {"crc32c": "crc32c", "md5": "md5Hash"}.get(name, name): value for name, _, value in pairs
    }


def check_expected_hashes(expected: dict, content: Content) -> None:
    """Raise 400 if a hash that the client sent is not that of the content."""
    for field, actual in content.hashes().items():
        wanted = expected.get(field)
        if wanted and wanted != actual:
            label = {"crc32c": "CRC32C", "md5Hash": "MD5 hash"}[field]
            raise ApiError(
                400,
                "invalid",
                f'Provided {label} "{wanted}" doesn\'t match calculated {label} "{actual}".',
            )
