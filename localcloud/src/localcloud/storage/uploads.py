"""Uploads of objects' content: simple, multipart and resumable.

Content streams from socket to disk a block at a time, whatever its size. Disk work on more than one
block runs in threads, so that other requests are answered meanwhile.
"""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from localcloud import schema
from localcloud.call import Call, Cloud, cut, parse_json
from localcloud.errors import ApiError
from localcloud.identity.permissions import require
from localcloud.storage.checks import (
    CONDITIONS,
    check_conditions,
    check_expected_hashes,
    check_name,
    check_rate,
    check_request,
    check_supported,
    expected_hashes,
    find_bucket,
    origin,
    present,
    written,
)
from localcloud.storage.content import BLOCK, Content
from localcloud.storage.state import Upload

QUANTUM = 256 << 10  # resumable uploads keep whole multiples of this
OWN = "x-goog-meta-"  # begins headers of custom metadata
MAX_METADATA = 64 << 10  # JSON before the content of a multipart upload


# --- uploads


async def insert(cloud: "Cloud", call: "Call") -> dict | web.StreamResponse:
    """Store an object from one request, or begin or continue a resumable upload."""
    if "upload_id" in call.params:
        return await continue_upload(cloud, call)
    find_bucket(cloud, call)
    headers, kind = call.request.headers, call.params.get("uploadType")
    if kind == "resumable":
        metadata = parse_metadata(await call.request.read(), call)
        await call.named(metadata.get("name", ""))
        metadata.setdefault("contentType", headers.get("X-Upload-Content-Type"))
        return start_upload(cloud, call, metadata)
    if kind == "multipart":
        metadata, stream = await read_multipart(call)
        await call.named(metadata.get("name", ""))
    elif kind == "media":
        metadata, stream = described(call.request), call.request.content.iter_any()
    else:
        raise ApiError(400, "invalid", f"Invalid uploadType: {kind}")
    resource = new_resource(cloud, call, metadata)
    expected = {**expected_hashes(headers.get("X-Goog-Hash", "")), **metadata}
    content = cloud.storage.new_content()
    try:
        await receive(stream, content)
        check_expected_hashes(expected, content)
        # Again, and now for good: another request may have come between.
        find_bucket(cloud, call)
        check_request(call, cloud.storage.find(call.params["bucket"], resource["name"]))
        check_rate(cloud, call.params["bucket"], resource["name"])
    except BaseException:
        content.discard()
        raise
    resource.update(content.hashes())
    return present(cloud.storage.commit(call.params["bucket"], resource, content), origin(call))


def described(request: web.Request) -> dict:
    """What the headers of a whole upload say of its object; those of its own metadata count in the
    XML API alone.
    """
    about: dict[str, Any] = {"contentType": request.headers.get("Content-Type")}
    own = {
        key.lower().removeprefix(OWN): text
        for key, text in request.headers.items()
        if key.lower().startswith(OWN)
    }
    return {**about, "metadata": own} if own and not request.path.startswith("/upload/") else about


def parse_metadata(data: bytes, call: "Call") -> dict:
    """Parse and check the JSON that describes an object to be uploaded."""
    body = parse_json(data)
    api = schema.load("storage")
    return schema.check_body(api, api.methods[call.method], body)


def new_resource(cloud: "Cloud", call: "Call", metadata: dict) -> dict:
    """The stored fields of an object about to be uploaded, after everything known so far is
    checked.
    """
    name = call.params.get("name") or metadata.get("name")
    if not name:
        raise ApiError(400, "required", "Required parameter: name")
    check_name(name)
    bucket = find_bucket(cloud, call)
    current = cloud.storage.find(bucket["name"], name)
    check_supported(call, metadata, bucket)
    resource = f"projects/{bucket['project']}/buckets/{bucket['name']}/objects/{name}"
    require(cloud, call, "storage.objects.create", resource)
    if current:
        require(cloud, call, "storage.objects.delete", resource)
    check_request(call, current)
    if call.params.get("uploadType") != "resumable":  # which writes at its end
        check_rate(cloud, call.params["bucket"], name)
    fields = written(metadata)
    if "contentEncoding" in call.params:
        fields["contentEncoding"] = call.params["contentEncoding"]
    return {"storageClass": bucket["storageClass"], **fields, "name": name}


async def read_multipart(call: "Call") -> tuple[dict, AsyncIterator[bytes]]:
    """Split a multipart/related upload into its JSON and a stream of its content.

    A parser of our own, because gcloud writes the boundary in single quotes and ends lines with a
    bare newline; Google takes both, parsers that follow RFC 2046 do not.
    """
    content_type, body = call.request.headers.get("Content-Type", ""), call.request.content
    boundary = re.search(r"""boundary=(["']?)([^"';]+)\1""", content_type)
    if not boundary:
        raise ApiError(
            400, "badContent", "Malformed multipart body: no boundary in the Content-Type"
        )
    line = b"--" + boundary[2].encode()
    headers = rb"((?:[^\r\n]+\r?\n)*)\r?\n"
    parts = re.compile(
        re.escape(line)
        + rb" *(\r?\n)"
        + headers
        + rb"(.*?)\r?\n"
        + re.escape(line)
        + rb" *\r?\n"
        + headers,
        re.DOTALL,
    )
    buffer = b""
    while not (found := parts.search(buffer)):
        chunk = await body.readany()
        if not chunk or len(buffer) > MAX_METADATA:
            raise ApiError(
                400, "badContent", "Malformed multipart body: expected JSON, then content"
            )
        buffer += chunk
    newline, _, text, media_headers = found.groups()
    metadata = parse_metadata(text, call)
    media_type = re.search(rb"(?im)^content-type:[ \t]*([^\r\n]+)", media_headers)
    if metadata.get("contentType") is None and media_type:
        metadata["contentType"] = media_type[1].decode("latin-1").strip()
    return metadata, until(newline + line + b"--", buffer[found.end() :], body)


async def until(end: bytes, buffer: bytes, body: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield what comes before `end` in `buffer` and then `body`; 400 if `end` never comes."""
    while (at := buffer.find(end)) < 0:
        # The end may be split over two chunks: keep enough of this one to see it.
        keep = max(0, len(buffer) - len(end))
        yield buffer[:keep]
        chunk = await body.readany()
        if not chunk:
            raise ApiError(
                400, "badContent", "Malformed multipart body: the closing boundary is missing"
            )
        buffer = buffer[keep:] + chunk
    yield buffer[:at]


async def receive(stream: AsyncIterator[bytes], content: Content, skip: int = 0) -> None:
    """Write a stream to disk without its first `skip` bytes; while one block is written the next
    arrives.
    """
    blocks: list[bytes] = []
    size = 0
    writing: asyncio.Task | None = None
    try:
        async for chunk in stream:
            if skip:
                chunk, skip = chunk[skip:], max(0, skip - len(chunk))
            blocks.append(chunk)
            size += len(chunk)
            if size >= BLOCK:
                if writing:
                    await writing
                writing = asyncio.create_task(asyncio.to_thread(content.write, b"".join(blocks)))
                blocks, size = [], 0
    finally:
        if writing:
            await writing
    content.write(b"".join(blocks))  # less than a block: not worth a thread


# --- resumable uploads


def start_upload(cloud: "Cloud", call: "Call", metadata: dict) -> web.Response:
    """Open a session; its URI is the answer's Location."""
    resource = new_resource(cloud, call, metadata)
    for key in ("crc32c", "md5Hash"):
        if metadata.get(key):
            resource[key] = metadata[key]  # what the content must hash to
    conditions = {f"if{name}": call.params.get(f"if{name}") for name in CONDITIONS}
    length = call.request.headers.get("X-Upload-Content-Length")
    total = None if length is None else int(length)
    bucket = call.params["bucket"]
    id = uuid.uuid4().hex
    upload = Upload(bucket, resource, conditions, total, cloud.storage.new_content())
    cloud.storage.uploads[id] = upload
    location = f"{origin(call)}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={id}"
    return web.Response(status=200, headers={"Location": location, "X-GUploader-UploadID": id})


async def continue_upload(cloud: "Cloud", call: "Call") -> dict | web.StreamResponse:
    """Take a chunk of a session, or tell how far it is."""
    id = call.params["upload_id"]
    async with only_request_of(id, call.request):
        upload = cloud.storage.uploads.get(id)
        if upload is None or upload.bucket != call.params["bucket"]:
            raise ApiError(404, "notFound", f"No such upload session: {id}")
        if upload.done:  # the client lost the answer
            return present(upload.done, origin(call))
        return await take_chunk(cloud, call, id, upload)


# Requests that work on an upload session now or wait for their turn.
TURNS: dict[str, tuple[asyncio.Lock, list[web.Request]]] = {}


@contextlib.asynccontextmanager
async def only_request_of(id: str, request: web.Request) -> AsyncIterator[None]:
    """Let one request at a time work on a session. A newer one ends an older one: its client has
    given that connection up, though a broken network may not have closed it.
    """
    lock, requests = TURNS.setdefault(id, (asyncio.Lock(), []))
    for older in requests:
        cut(older)
    requests.append(request)
    try:
        async with lock:
            yield
    finally:
        requests.remove(request)
        if not requests:
            del TURNS[id]


async def recover(upload: Upload) -> None:
    """After an interruption, keep whole multiples of 256 KiB, as Google does."""
    if rest := upload.content.size % QUANTUM:
        whole = upload.content.size - rest
        upload.content = await asyncio.to_thread(upload.content.truncate, whole)


def parse_content_range(header: str | None) -> tuple[int | None, int | None, int | None]:
    """Return first byte, last byte and total of a Content-Range; None where it has `*` or is
    missing.
    """
    if header is None:
        return 0, None, None
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)", header.strip())
    if not found:
        raise ApiError(400, "badRequest", "Failed to parse Content-Range header.")
    first, last, total = (int(text) if text not in (None, "*") else None for text in found.groups())
    return first, last, total


async def take_chunk(
    cloud: "Cloud", call: "Call", id: str, upload: Upload
) -> dict | web.StreamResponse:
    """Append one request's bytes to a session and answer 308, or finish it."""
    content, header = upload.content, call.request.headers.get("Content-Range")
    first, last, total = parse_content_range(header)
    if first is None:  # a question, or the end of an upload of unknown length
        if total is None or total != content.size:
            return progress(call, content)
        return finish_upload(cloud, call, id, upload)
    if first > content.size:
        raise ApiError(
            400,
            "badRequest",
            f"Invalid request. According to the Content-Range header, the upload offset is {first} byte(s), "
            f"which exceeds already uploaded size of {content.size} byte(s).",
        )
    length = last - first + 1 if last is not None else None
    # `bytes 5-*/9` brings all of the rest, as Google's Node client does
    is_last = last is None or last + 1 == total
    if length is not None and not is_last and length < QUANTUM:
        raise ApiError(
            400,
            "badRequest",
            "Invalid request. The number of bytes uploaded is required to be equal or greater than "
            f"{QUANTUM}, except for the final request (it's recommended to be the exact multiple of "
            f"{QUANTUM}). The received request contained {length} bytes, which does not meet this "
            "requirement.",
        )
    total = upload.total if total is None else total
    end = total if length is None else first + length
    try:
        # Bytes that are here already are ignored, as documented.
        await receive(call.request.content.iter_any(), content, skip=content.size - first)
        if end is not None and content.size != end:
            raise ApiError(400, "badRequest", f"Expected {end} bytes, have {content.size}.")
    except BaseException:
        await recover(upload)
        raise
    if is_last:
        return finish_upload(cloud, call, id, upload)
    await recover(upload)
    return progress(call, upload.content)


def progress(call: "Call", content: Content) -> web.Response:
    """308 Resume Incomplete; without Range while nothing has been kept."""
    headers = {"Range": f"bytes=0-{content.size - 1}"} if content.size else {}
    # Google's clients in Go, such as rclone
    if call.request.headers.get("X-GUploader-No-308") == "yes":
        return web.Response(status=200, headers={**headers, "X-Http-Status-Code-Override": "308"})
    return web.Response(status=308, reason="Resume Incomplete", headers=headers)


def finish_upload(cloud: "Cloud", call: "Call", id: str, upload: Upload) -> dict:
    """Make the object of a session whose last byte has come."""
    resource, bucket, storage = upload.resource, upload.bucket, cloud.storage
    check_rate(cloud, bucket, resource["name"])  # the session stays: the client asks again
    expected = {**expected_hashes(call.request.headers.get("X-Goog-Hash", "")), **resource}
    try:
        find_bucket(cloud, call)
        check_expected_hashes(expected, upload.content)
        check_conditions(upload.conditions, storage.find(bucket, resource["name"]))
    except ApiError:
        del storage.uploads[id]
        upload.content.discard()
        raise
    resource.update(upload.content.hashes())
    upload.done = storage.commit(bucket, resource, upload.content)
    return present(upload.done, origin(call))
