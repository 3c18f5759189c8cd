"""Cloud Storage's XML API, as far as obstore goes: objects are read and written whole by their names,
/BUCKET/OBJECT.

Each request is one of the JSON API in other words.

Not covered: buckets, lists, copies, deletion, uploads in parts, access lists, signed URLs, HMAC keys.
"""

import json
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

from aiohttp import web

from localcloud.errors import ApiError

# What no bucket is called: paths of the other APIs.
TAKEN = {"upload", "download", "resumable", "token", "v4", "_berg", "computeMetadata"}
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
# Headers of writes, and the parameters that mean the same.
HEADERS = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "Content-Encoding": "contentEncoding",
}
NO_BUCKET = ("NoSuchBucket", "The specified bucket does not exist.")


def is_one(path: str, services: tuple[str, ...]) -> bool:
    """Whether a raw path names an object in the way of this API, not of the others."""
    bucket, _, name = path.lstrip("/").partition("/")
    return bool(bucket and name) and bucket not in TAKEN and bucket not in services


def meant(
    request: web.Request, path: str, query: str
) -> tuple[str, dict[str, str], str, dict[str, str]]:
    """The method of the JSON API that does the same, its values, path and query; raise 501 for what
    is not served.
    """
    bucket, _, name = unquote(path.lstrip("/"), errors="surrogateescape").partition("/")
    asked, headers = dict(parse_qsl(query, keep_blank_values=True)), request.headers
    if request.method in ("GET", "HEAD") and asked.keys() <= {"generation"}:
        values = {"bucket": bucket, "object": name}
        return "storage.objects.get", values, path, {"alt": "media", **asked}
    unserved = query or any(key.lower().startswith(UNSERVED) for key in headers)
    if request.method == "PUT" and not unserved:
        upload = {"uploadType": "media", "name": name}
        upload |= {own: headers[key] for key, own in HEADERS.items() if key in headers}
        return "storage.objects.insert", {"bucket": bucket}, "/upload/storage/v1/b", upload
    text = f"This {request.method} is not served by the embedded cloud's XML API"
    raise ApiError(501, "notImplemented", text)


def answer(method: str, found: web.StreamResponse) -> web.StreamResponse:
    """The answer of the JSON API's method in the words of this one."""
    if found.status >= 400:  # a range that the object does not have
        error = ApiError(found.status, "requestedRangeNotSatisfiable", "Range not satisfiable")
        response = refusal(error)
        response.headers["Content-Range"] = found.headers["Content-Range"]
        return response
    if method == "storage.objects.get":
        return found
    assert isinstance(found, web.Response)
    about = json.loads(found.body or b"{}")  # type: ignore[arg-type]
    headers = {
        "ETag": f'"{about["etag"]}"',
        "x-goog-generation": about["generation"],
        "x-goog-metageneration": about["metageneration"],
        "x-goog-stored-content-length": about["size"],
        "x-goog-hash": f"crc32c={about['crc32c']}",
    }
    return web.Response(headers=headers, content_type="text/html")


def refusal(error: ApiError) -> web.Response:
    """An error as the XML API writes it."""
    code, message = CODES.get(
        error.status, ("InternalError", "We encountered an internal error. Please try again.")
    )
    if error.message == NO_BUCKET[1]:
        code, message = NO_BUCKET
    details = f"<Details>{escape(error.message)}</Details>"
    text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message>{details}</Error>"
    headers = {"Content-Type": "application/xml; charset=UTF-8"}
    return web.Response(body=text.encode(errors="replace"), status=error.status, headers=headers)
