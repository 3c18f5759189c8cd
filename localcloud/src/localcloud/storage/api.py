"""Handlers of the Cloud Storage methods on buckets and on objects' metadata. Content is in
uploads.py and downloads.py.

Refused: ACLs, object versions, holds, retention, encryption keys. Not covered: soft delete,
lifecycle and CORS rules, folders and managed folders, notifications, HMAC
keys.
"""

import asyncio
import base64
import contextlib
import re
from typing import Any

from aiohttp import web

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, unserved
from localcloud.storage import buckets, downloads, policies, uploads
from localcloud.storage.checks import (
    WRITABLE,
    check_conditions,
    check_identity,
    check_metadata,
    check_name,
    check_rate,
    check_request,
    check_supported,
    find_bucket,
    find_object,
    origin,
    present,
    written,
)
from localcloud.storage.content import concatenate

MAX_PAGE = 1000
MAX_SOURCES = 32  # of one compose


async def get(cloud: "Cloud", call: "Call") -> dict | web.StreamResponse:
    resource = find_object(cloud, call)
    check_request(call, resource)
    if call.params.get("alt") == "media":
        return await downloads.download(cloud, call, resource)
    return present(resource, origin(call))


async def list_objects(cloud: "Cloud", call: "Call") -> dict:
    params = call.params
    find_bucket(cloud, call)
    limit = min(params.get("maxResults") or MAX_PAGE, MAX_PAGE)
    for key in ("filter", "softDeleted"):
        unserved(params.get(key), f"lists of objects by {key}")
    prefix = params.get("prefix", "")
    start = params.get("startOffset", "").encode()
    if params.get("pageToken"):
        start = base64.urlsafe_b64decode(params["pageToken"])
    items, prefixes, following = cloud.storage.list_objects(
        params["bucket"],
        prefix,
        params.get("delimiter", ""),
        start,
        params.get("endOffset", "").encode(),
        limit,
        params.get("includeTrailingDelimiter", False),
        glob(params.get("matchGlob", "")),
    )
    answer: dict[str, Any] = {"kind": "storage#objects"}
    if items:
        base = origin(call)
        answer["items"] = [present(item, base) for item in items]
    if prefixes:
        answer["prefixes"] = prefixes
    if following is not None:
        answer["nextPageToken"] = base64.urlsafe_b64encode(following).decode()
    return answer


def glob(text: str) -> re.Pattern[str] | None:
    """A pattern of names in which * stands for all but a slash, and nothing else is special."""
    unserved("**" in text or {*"?[]{}\\"} & {*text}, f"lists of objects by the glob {text}")
    return re.compile(re.escape(text).replace(r"\*", "[^/]*")) if text else None


async def patch(cloud: "Cloud", call: "Call") -> dict:
    """Change the fields that the body names; null removes one. `metadata` is merged key by key."""
    resource, body = find_object(cloud, call), call.body or {}
    check_request(call, resource)
    check_supported(call, body, find_bucket(cloud, call))
    check_identity(body, named(resource))
    old = resource["storageClass"]
    for key in WRITABLE & set(body):
        if body[key] is None:
            resource.pop(key, None)
        elif key == "metadata":
            merged = {**resource.get("metadata", {}), **body["metadata"]}
            resource["metadata"] = {
                name: value for name, value in merged.items() if value is not None
            }
        else:
            resource[key] = body[key]
    unserved(resource.setdefault("storageClass", old) != old, "changes of the storage class")
    check_metadata(resource)
    check_rate(cloud, resource["bucket"], resource["name"])
    return present(cloud.storage.change(resource), origin(call))


def named(resource: dict) -> dict[str, str]:
    """What a body may say of the object that its path names."""
    return {"bucket": resource["bucket"], "name": resource["name"], "kind": "storage#object"}


async def delete(cloud: "Cloud", call: "Call") -> None:
    resource = find_object(cloud, call)
    check_request(call, resource)
    cloud.storage.delete(resource)


async def compose(cloud: "Cloud", call: "Call") -> dict:
    """Concatenate 1 to 32 objects of one bucket into one; it has a crc32c but no md5."""
    body, bucket, name = (
        call.body or {},
        call.params["destinationBucket"],
        call.params["destinationObject"],
    )
    place = find_bucket(cloud, call, bucket)
    check_name(name)
    check_identity(body.get("destination") or {}, named({"bucket": bucket, "name": name}))
    check_identity(body, {"kind": "storage#composeRequest"})
    check_supported(call, body.get("destination") or {}, place)
    unserved(body.get("deleteSourceObjects"), "deletion of what is composed")
    wanted = body["sourceObjects"]
    if not 1 <= len(wanted) <= MAX_SOURCES:
        count = len(wanted)
        raise ApiError(
            400,
            "invalid",
            f"The number of source components provided ({count}) is not in [1, {MAX_SOURCES}]",
        )
    storage = cloud.storage
    check_request(call, storage.find(bucket, name))
    check_rate(cloud, bucket, name)
    sources = []
    for item in wanted:
        source = find_object(cloud, call, bucket, item["name"], item.get("generation"))
        expected = (item.get("objectPreconditions") or {}).get("ifGenerationMatch")
        if expected is not None:
            check_conditions({"ifGenerationMatch": int(expected)}, source)
        sources.append(source)
    content = storage.new_content()
    content.md5 = None  # composed objects have none
    try:
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(storage.open_content(each)) for each in sources]
            await asyncio.to_thread(concatenate, files, content)
        check_request(call, storage.find(bucket, name))  # again: copying took its time
        check_rate(cloud, bucket, name)
        # Its hashes say nothing: gcloud sends those of the first source in it. What it does not say
        # is not taken from the sources.
        resource = {"storageClass": place["storageClass"], **written(body.get("destination") or {})}
    except BaseException:
        content.discard()
        raise
    resource["name"] = name
    resource.update(content.hashes())
    resource["componentCount"] = sum(source.get("componentCount", 1) for source in sources)
    composed = storage.commit(bucket, resource, content)
    return present(composed, origin(call))


async def rewrite(cloud: "Cloud", call: "Call") -> dict:
    """Copy an object in one go. Takes no time: see `copy`."""
    params, body = call.params, call.body or {}
    bucket, name = params["destinationBucket"], params["destinationObject"]
    place = find_bucket(cloud, call, bucket)
    check_name(name)
    check_supported(call, body, place)
    source = find_object(
        cloud, call, params["sourceBucket"], params["sourceObject"], params.get("sourceGeneration")
    )
    check_conditions(params, source, prefix="ifSource")
    check_request(call, cloud.storage.find(bucket, name))
    # As the body says, or as the source's if it says nothing.
    fields = written(body if WRITABLE & set(body) else source)
    new = {"storageClass": source["storageClass"], **fields, "bucket": bucket, "name": name}
    origin_of = find_bucket(cloud, call, source["bucket"])
    moves = (place["location"], new["storageClass"]) != (
        origin_of["location"],
        source["storageClass"],
    )
    unserved(moves, "copies to another location or storage class")
    check_rate(cloud, bucket, name)
    made = cloud.storage.copy(source, bucket, new)
    return {
        "kind": "storage#rewriteResponse",
        "totalBytesRewritten": made["size"],
        "objectSize": made["size"],
        "done": True,
        "resource": present(made, origin(call)),
    }


HANDLERS = {
    **buckets.HANDLERS,
    **policies.HANDLERS,
    "storage.objects.insert": uploads.insert,
    "storage.objects.get": get,
    "storage.objects.list": list_objects,
    "storage.objects.patch": patch,
    "storage.objects.delete": delete,
    "storage.objects.compose": compose,
    "storage.objects.rewrite": rewrite,
}
