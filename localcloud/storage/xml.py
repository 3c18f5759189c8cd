"""Cloud Storage's XML API, as far as reading an object goes: GET and HEAD of /BUCKET/OBJECT.

A reader who says not who he is gets 403, but for a bucket that everybody may read; one with a token
that is none gets 401.

Not covered: everything else of the XML API (buckets, lists, uploads, signed URLs, HMAC keys),
buckets as host names, entity tags that are MD5 sums.
"""

from urllib.parse import unquote
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
NO_BUCKET = ("NoSuchBucket", "The specified bucket does not exist.")
ANONYMOUS = (
    "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object. "
)
ANONYMOUS += "Permission 'storage.objects.get' denied on resource (or it may not exist)."


def named(verb: str, path: str, services: tuple[str, ...]) -> dict[str, str] | None:
    """The bucket and the object that a raw path means; None if it is no read of an object."""
    bucket, name = bucket_of(path, services), path.lstrip("/").partition("/")[2]
    if verb not in ("GET", "HEAD") or not bucket or not name:
        return None
    return {"bucket": bucket, "object": unquote(name, errors="surrogateescape")}


def bucket_of(path: str, services: tuple[str, ...]) -> str | None:
    """The bucket that a raw path of the XML API begins with; None if it is none of that API's."""
    first = path.lstrip("/").partition("/")[0]
    return None if not first or first in TAKEN or first in services else unquote(first)


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
    error = (
        ApiError(403, "forbidden", ANONYMOUS)
        if error.reason == "required" and error.status == 401
        else error
    )
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
