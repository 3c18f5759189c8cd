"""Batches: many requests to the APIs in one.

Not covered: media in a batch, which Google does not take either.
"""

from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDict

from localcloud import distance
from localcloud.call import CLOUD
from localcloud.dispatch import UNKNOWN, error_response, find_method, respond, too_large
from localcloud.errors import ApiError

BATCH_LIMITS = {"compute": 1000, "storage": 100}  # calls in one batch, as documented


async def batch(request: web.Request) -> web.StreamResponse:
    """Answer a multipart/mixed batch: each part goes the way of a request of its own, in order."""
    import email.message
    import email.parser

    head = f"Content-Type: {request.headers.get('Content-Type', '')}\r\n\r\n".encode()
    try:
        outer = email.parser.BytesParser().parsebytes(head + await request.read())
    except web.HTTPRequestEntityTooLarge:
        return error_response(too_large())
    if not outer.is_multipart():
        return error_response(
            ApiError(400, "badRequest", "Failed to parse batch request: no parts")
        )
    limit = BATCH_LIMITS.get(request.match_info.get("service", ""), 100)
    if len(outer.get_payload()) > limit:
        return error_response(
            ApiError(400, "batchLimitExceeded", f"The batch size exceeds {limit} calls")
        )
    parts = []
    for part in outer.get_payload():
        assert isinstance(part, email.message.Message)
        response = await respond_to_part(request, part.get_payload(decode=True))  # type: ignore[arg-type]
        content_id = part.get("Content-ID", "").strip("<>")
        lines = [
            "--batch_berg",
            "Content-Type: application/http",
            f"Content-ID: <response-{content_id}>",
            "",
            f"HTTP/1.1 {response.status} {response.reason}",
            f"Content-Length: {len(_text(response))}",
            *(
                f"{name}: {value}"
                for name, value in response.headers.items()
                if name != "Content-Length"
            ),
        ]
        parts.append("\r\n".join(lines).encode() + b"\r\n\r\n" + _text(response) + b"\r\n")
    content = b"".join(parts) + b"--batch_berg--\r\n"
    return web.Response(
        body=content, headers={"Content-Type": "multipart/mixed; boundary=batch_berg"}
    )


async def respond_to_part(request: web.Request, part: bytes) -> web.Response:
    """Answer one part of a batch, itself an HTTP request; headers it lacks come from the outer one."""
    import email.parser

    first, _, rest = part.lstrip().partition(b"\n")
    words = first.decode().split()
    if len(words) < 2:
        return error_response(
            ApiError(400, "badRequest", "Failed to parse batch request: bad request line")
        )
    message = email.parser.BytesParser().parsebytes(rest)
    headers = CIMultiDict({"Authorization": request.headers.get("Authorization", "")})
    headers.update(dict(message.items()))
    body = message.get_payload(decode=True)

    async def read() -> bytes:
        return body.strip() if isinstance(body, bytes) else b""

    verb, target = words[0], urlsplit(words[1])  # google-cloud-storage sends the full URL here
    found = find_method(verb, target.path, target.query)
    response = await respond(request, found, target.path, target.query, headers, read)
    if not isinstance(response, web.Response):
        response = error_response(ApiError(400, "badRequest", "Media cannot be part of a batch"))
    path = target.path + (f"?{target.query}" if target.query else "")
    request.app[CLOUD].requests.add(
        found[0].id if found else UNKNOWN,
        verb,
        path,
        response.status,
        len(part),
        distance.times_of(request),
    )
    return response


def _text(response: web.Response) -> bytes:
    return response.body if isinstance(response.body, bytes) else b""
