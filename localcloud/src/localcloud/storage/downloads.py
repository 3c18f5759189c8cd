"""Downloads of objects' content, with ranges.

Content streams from disk to socket a block at a time, whatever its size. More than one block is
read in threads, so that other requests are answered meanwhile.

Not covered: multi-range downloads (the whole object is sent, as by Google).
"""

import asyncio
import re
from datetime import datetime, timezone
from email.utils import format_datetime
from urllib.parse import quote

from aiohttp import web

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError
from localcloud.storage.checks import etag
from localcloud.storage.content import BLOCK

# bytes under way on a connection: half of what Linux lets a receiver buffer (tcp_rmem)
WINDOW = 3 << 20
PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return first and last byte that a Range header asks for; None for the whole object; raise
    416.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", (header or "").replace(" ", ""))
    if (
        not found
        or found.groups() == ("", "")
        or (found[1] and found[2] and int(found[2]) < int(found[1]))
    ):
        return None  # absent, malformed or several ranges: ignored, as RFC 9110 says
    if found[1]:
        first, last = int(found[1]), min(int(found[2] or size), size - 1)
    else:
        first, last = max(0, size - int(found[2])), size - 1
    if first >= size:
        raise ApiError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
    return first, last


async def download(cloud: "Cloud", call: "Call", resource: dict) -> web.StreamResponse:
    """Send an object's content, or the part of it that the Range header asks for."""
    size = int(resource["size"])
    try:
        part = parse_range(call.request.headers.get("Range"), size)
    except ApiError as error:
        return web.json_response(
            error.body(), status=416, headers={"Content-Range": f"bytes */{size}"}
        )
    first, last = part or (0, size - 1)
    headers = media_headers(resource)
    if part:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    status, length = (206 if part else 200), last - first + 1
    if call.request.method == "HEAD":
        return web.Response(status=status, headers={**headers, "Content-Length": str(length)})
    with cloud.storage.open_content(resource) as file:
        file.seek(first)
        if length <= BLOCK:
            return web.Response(body=file.read(length), status=status, headers=headers)
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = length
        await response.prepare(call.request)
        under_way = 0
        while length and (data := await asyncio.to_thread(file.read, min(length, BLOCK))):
            await cloud.link.carry("down", len(data))
            await response.write(data)
            length -= len(data)
            if (under_way := under_way + len(data)) >= WINDOW:
                await asyncio.sleep(cloud.link.seconds(call.request["laptop"]))
                under_way = 0
        await response.write_eof()
        return response


def last_modified(resource: dict) -> str:
    """Return when an object was changed, as HTTP writes times."""
    changed = datetime.fromisoformat(resource["updated"].replace("Z", "+00:00"))
    return format_datetime(changed.astimezone(timezone.utc), usegmt=True)


def media_headers(resource: dict) -> dict[str, str]:
    """The headers that come with content."""
    hashes = [f"crc32c={resource['crc32c']}"]
    if "md5Hash" in resource:
        hashes.append(f"md5={resource['md5Hash']}")
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Type": resource.get("contentType", "application/octet-stream"),
        "Cache-Control": resource.get(
            "cacheControl", "no-cache, no-store, max-age=0, must-revalidate"
        ),
        "ETag": etag(resource),
        "Last-Modified": last_modified(resource),
        "X-Goog-Generation": resource["generation"],
        "X-Goog-Metageneration": resource["metageneration"],
        "X-Goog-Stored-Content-Length": resource["size"],
        "X-Goog-Stored-Content-Encoding": resource.get("contentEncoding", "identity"),
        "X-Goog-Storage-Class": resource["storageClass"],
        "X-Goog-Hash": ",".join(hashes),
    }
    for field, name in (
        ("contentDisposition", "Content-Disposition"),
        ("contentEncoding", "Content-Encoding"),
        ("contentLanguage", "Content-Language"),
    ):
        if field in resource:
            headers[name] = resource[field]
    # A line break in a field would begin a header of its own.
    headers = {
        name: re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", " ", value) for name, value in headers.items()
    }
    for key, value in resource.get("metadata", {}).items():
        # Header values are Latin-1 at best and one line; Google percent-encodes what is not, so do
        # we.
        headers[f"X-Goog-Meta-{quote(key, safe='-_.', errors='replace')}"] = quote(
            value, safe=PRINTABLE, errors="replace"
        )
    return headers
