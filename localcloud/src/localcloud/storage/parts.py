"""Uploads in parts by the XML API: begun, filled in any order, joined or given up.

What has come of an upload is kept until it is joined or given up, or the server ends.

Not covered: lists of uploads and of parts, parts that are copies, custom metadata.
"""

from __future__ import annotations

import asyncio
import uuid
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from aiohttp import web

from localcloud.call import Cloud
from localcloud.errors import ApiError
from localcloud.identity import permissions
from localcloud.storage import xml
from localcloud.storage.checks import check_name, check_rate, etag
from localcloud.storage.content import Content, concatenate
from localcloud.storage.uploads import receive

LEAST = 5 << 20  # bytes of a part that is not the last
MOST = 10_000  # parts
RIGHTS = ("storage.multipartUploads.create", "storage.objects.create")


@dataclass
class Upload:
    """An upload under way, and its parts by number."""

    bucket: str
    name: str
    kind: str | None  # the content's type
    parts: dict[int, Content] = field(default_factory=dict)

    def discard(self) -> None:
        for part in self.parts.values():
            part.discard()


uploads: dict[str, Upload] = {}  # by id


def is_meant(verb: str, query: str) -> bool:
    """Whether a request to an object is one of those that are served here."""
    keys = set(dict(parse_qsl(query, keep_blank_values=True)))
    return (verb, frozenset(keys)) in {
        ("POST", frozenset({"uploads"})),
        ("PUT", frozenset({"partNumber", "uploadId"})),
        ("POST", frozenset({"uploadId"})),
        ("DELETE", frozenset({"uploadId"})),
    }


async def answer(
    cloud: Cloud, request: web.Request, who: str, bucket: str, name: str, query: str
) -> web.Response:
    """Answer such a request of a known caller."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    check_access(cloud, who, bucket, name)
    if "uploads" in given:
        return begin(bucket, name, request)
    upload = uploads.get(given["uploadId"])
    if upload is None or (upload.bucket, upload.name) != (bucket, name):
        raise ApiError(404, "NoSuchUpload", "The requested upload was not found.")
    if request.method == "PUT":
        return await take(cloud, upload, given["partNumber"], request)
    del uploads[given["uploadId"]]
    if request.method == "DELETE":
        upload.discard()
        return web.Response(status=204)
    try:
        return await join(cloud, upload, request)
    finally:
        upload.discard()


def check_access(cloud: Cloud, who: str, bucket: str, name: str) -> None:
    """Raise Google's refusal if there is no such bucket, or the caller may not write there."""
    found = cloud.storage.bucket(bucket)
    if found is None:
        raise ApiError(404, "notFound", xml.NO_BUCKET[1])
    check_name(name)
    resource = f"projects/{found['project']}/buckets/{bucket}/objects/{name}"
    for right in RIGHTS:
        if not permissions.allowed(cloud, who, right, resource):
            message = f"{who} does not have {right} access to the Google Cloud Storage object."
            raise ApiError(403, "forbidden", message)


def begin(bucket: str, name: str, request: web.Request) -> web.Response:
    id = uuid.uuid4().hex
    uploads[id] = Upload(bucket, name, request.headers.get("Content-Type"))
    text = xml.tag("Bucket", bucket) + xml.tag("Key", name) + xml.tag("UploadId", id)
    return xml.document("InitiateMultipartUploadResult", text, {})


async def take(cloud: Cloud, upload: Upload, number: str, request: web.Request) -> web.Response:
    """Keep a part, in place of one of its number that came before."""
    if not number.isdigit() or not 1 <= int(number) <= MOST:
        message = f"Part number must be an integer between 1 and {MOST}, inclusive."
        raise ApiError(400, "InvalidArgument", message)
    content = cloud.storage.new_content()
    try:
        await receive(request.content.iter_any(), content)
    except BaseException:
        content.discard()
        raise
    content.close()
    content.path.touch()
    before = upload.parts.get(int(number))
    upload.parts[int(number)] = content
    if before:
        before.discard()
    return web.Response(
        headers={"ETag": tag_of(content), "x-goog-hash": f"crc32c={content.hashes()['crc32c']}"}
    )


def tag_of(part: Content) -> str:
    return f'"{part.md5.hexdigest()}"'


async def join(cloud: Cloud, upload: Upload, request: web.Request) -> web.Response:
    """Make the object of the parts that the request names."""
    parts = chosen(upload, await request.read())
    current = cloud.storage.find(upload.bucket, upload.name)
    wanted = request.headers.get("x-goog-if-generation-match")
    if wanted is not None and wanted != (current or {}).get("generation", "0"):
        raise ApiError(412, "conditionNotMet", xml.CODES[412][1])
    check_rate(cloud, upload.bucket, upload.name)
    whole = cloud.storage.new_content()
    whole.md5 = None  # objects of several parts have none
    sources = [(part.path.open("rb"), part.size) for part in parts]
    await asyncio.to_thread(concatenate, sources, whole)
    bucket = cloud.storage.bucket(upload.bucket) or {}
    resource = {"name": upload.name, "storageClass": bucket.get("storageClass", "STANDARD")}
    if upload.kind:
        resource["contentType"] = upload.kind
    made = cloud.storage.commit(upload.bucket, {**resource, **whole.hashes()}, whole)
    headers = {"x-goog-generation": made["generation"], "x-goog-hash": f"crc32c={made['crc32c']}"}
    text = xml.tag("Location", str(request.url.with_query(None)))
    text += xml.tag("Bucket", upload.bucket) + xml.tag("Key", upload.name)
    text += xml.tag("ETag", f'"{etag(made)}"')
    return xml.document("CompleteMultipartUploadResult", text, headers)


def chosen(upload: Upload, body: bytes) -> list[Content]:
    """The parts that a request to join them names; raise Google's refusal for those that may not
    be.
    """
    try:
        rows = [each for each in ElementTree.fromstring(body) if local(each) == "Part"]
        named = [{local(each): each.text or "" for each in row} for row in rows]
        numbers = [int(row["PartNumber"]) for row in named]
    except (ElementTree.ParseError, KeyError, ValueError):
        message = "The XML you provided was not well-formed or did not validate against our schema."
        raise ApiError(400, "MalformedCompleteMultipartUploadRequest", message) from None
    if not numbers or numbers != sorted(set(numbers)):
        message = "The list of parts was not in ascending order."
        raise ApiError(400, "InvalidPartOrder", message)
    found = []
    for row, number in zip(named, numbers, strict=True):
        part = upload.parts.get(number)
        if part is None or row.get("ETag", "").strip('"') != tag_of(part).strip('"'):
            message = "One or more of the specified parts could not be found."
            raise ApiError(400, "InvalidPart", message)
        found.append(part)
    if any(part.size < LEAST for part in found[:-1]):
        message = "Your proposed upload is smaller than the minimum allowed object size."
        raise ApiError(400, "EntityTooSmall", message)
    return found


def local(element: ElementTree.Element) -> str:
    """The name of an element without its space."""
    return element.tag.rpartition("}")[2]
