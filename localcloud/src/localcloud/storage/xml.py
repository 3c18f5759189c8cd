"""Cloud Storage's XML API, as far as obstore goes: objects are read and written whole by their names,
/BUCKET/OBJECT.

Each request is one of the JSON API in other words.

Not covered: buckets, lists, copies, deletion, uploads in parts, access lists, signed URLs, HMAC keys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlencode
from xml.sax.saxutils import escape

from aiohttp import web

from localcloud.errors import ApiError

# What no bucket is called: paths of the other APIs.
TAKEN = {"upload", "download", "resumable", "batch", "token", "v4", "_berg", "computeMetadata"}
# The XML API's names for errors: https://cloud.google.com/storage/docs/xml-api/reference-status
CODES = {
    400: ("InvalidArgument", "Invalid argument."),
    401: ("AuthenticationRequired", "Authentication required."),
    403: ("AccessDenied", "Access denied."),
    404: ("NoSuchKey", "The specified key does not exist."),
    412: ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold."),
    416: ("InvalidRange", "The requested range cannot be satisfied."),
    429: ("SlowDown", "Please reduce your request rate."),
    501: (
        "NotImplemented",
        "A header or query you provided implies functionality that is not implemented.",
    ),
    503: ("ServiceUnavailable", "Service unavailable. Please retry."),
}
# Headers of writes that mean what is not served.
UNSERVED = ("x-goog-acl", "x-goog-storage-class", "x-goog-copy-source", "content-md5", "x-amz-")
CONDITIONS = {"x-goog-if-generation-match": "ifGenerationMatch"}
NO_BUCKET = ("NoSuchBucket", "The specified bucket does not exist.")


def named(verb: str, path: str, services: tuple[str, ...]) -> dict[str, str] | None:
    """The bucket and the object that a raw path means; None if it is no read of an object."""
    bucket, name = bucket_of(path, services), path.lstrip("/").partition("/")[2]
    if verb not in ("GET", "HEAD") or not bucket or not name:
        return None
    return {"bucket": bucket, "object": unquote(name, errors="surrogateescape")}


@dataclass(frozen=True)
class Asked:
    """A request in the words of the JSON API."""

    method: str
    values: dict[str, str]
    path: str
    query: dict[str, str]

    @property
    def line(self) -> str:
        return urlencode(self.query, errors="surrogateescape")


def asked(
    verb: str, path: str, query: str, headers: Mapping[str, str], bucket: str
) -> Asked | None:
    """Return what a request other than a read means; None for what is not served."""
    name = object_of(path)
    if (
        not name
        or verb != "PUT"
        or query
        or any(key.lower().startswith(UNSERVED) for key in headers)
    ):
        return None
    conditions = {own: headers[key] for key, own in CONDITIONS.items() if key in headers}
    upload = {"uploadType": "media", "name": name, **conditions}
    if "Content-Encoding" in headers:
        upload["contentEncoding"] = headers["Content-Encoding"]
    path = "/upload/storage/v1/b"
    return Asked("storage.objects.insert", {"bucket": bucket}, path, upload)


def describe(answer: web.StreamResponse) -> web.StreamResponse:
    """The answer of the JSON API in the words of this one."""
    assert isinstance(answer, web.Response)
    found = json.loads(answer.body or b"{}")  # type: ignore[arg-type]
    headers = {
        "ETag": f'"{found["etag"]}"',
        "x-goog-generation": found["generation"],
        "x-goog-metageneration": found["metageneration"],
        "x-goog-stored-content-length": found["size"],
        "x-goog-hash": f"crc32c={found['crc32c']}",
    }
    return web.Response(headers=headers, content_type="text/html")


def bucket_of(path: str, services: tuple[str, ...]) -> str | None:
    """The bucket that a raw path of the XML API begins with; None if it is none of that API's."""
    first = path.lstrip("/").partition("/")[0]
    return None if not first or first in TAKEN or first in services else unquote(first)


def object_of(path: str) -> str:
    """The object that a raw path of the XML API means; "" for a bucket alone."""
    return unquote(path.lstrip("/").partition("/")[2], errors="surrogateescape")


def is_one(path: str) -> bool:
    """Whether the path of a read of content is one of the XML API, not of the JSON API."""
    return not path.startswith(("/storage/", "/download/", "/batch"))


def query_of(query: str) -> str:
    """The query of the JSON API's method that does the same; raise 501 for what no reader here
    needs.
    """
    if (query and not query.startswith("generation=")) or "&" in query:
        raise ApiError(
            501, "notImplemented", f"The embedded cloud knows no ?{query} of the XML API"
        )
    return f"alt=media&{query}"


def refusal(error: ApiError) -> web.Response:
    """An error as the XML API writes it."""
    if error.status < 400:
        return web.Response(status=error.status)
    code, message = CODES.get(
        error.status, ("InternalError", "We encountered an internal error. Please try again.")
    )
    if error.message == NO_BUCKET[1]:
        code, message = NO_BUCKET
    details = f"<Details>{escape(error.message)}</Details>"
    text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message>{details}</Error>"
    headers = {"Content-Type": "application/xml; charset=UTF-8"}
    return web.Response(body=text.encode(errors="replace"), status=error.status, headers=headers)


def out_of_range(answer: web.StreamResponse) -> web.Response:
    """The refusal of a range that an object does not have."""
    response = refusal(
        ApiError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
    )
    response.headers["Content-Range"] = answer.headers["Content-Range"]
    return response
