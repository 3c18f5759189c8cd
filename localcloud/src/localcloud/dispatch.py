"""One request to an API of the embedded cloud: which method it means, who asks, what goes wrong.

A request passes, in this order: route, bearer token, faults, parameters, body, whether its API is
on and its caller may, handler, and a check of our own answer.
"""

import errno
import json
import logging
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from aiohttp import web

from localcloud import distance, schema
from localcloud.call import CLOUD, Call, Cloud, parse_json, suffer
from localcloud.errors import ApiError, error_info
from localcloud.identity import permissions, services
from localcloud.identity.tokens import Owner
from localcloud.storage import xml

log = logging.getLogger("localcloud")

# each below /<service>/v1/
SERVICES = (
    "compute",
    "storage",
    "secretmanager",
    "iam",
    "cloudresourcemanager",
    "serviceusage",
    "cloudbilling",
    "container",
    "monitoring",
    "artifactregistry",
)
# see `ApiError.body`
WITH_REASONS = (
    "/compute/",
    "/storage/",
    "/upload/",
    "/download/",
    "/resumable/",
)
# Uploads and downloads of objects also have prefixes of their own.
STORAGE_PREFIXES = ("/download/storage/v1/", "/upload/storage/v1/", "/resumable/upload/storage/v1/")
UNKNOWN = "unknown"  # method id in the log and for faults, of requests that match nothing
HANDLERS: web.AppKey[dict] = web.AppKey("handlers")


async def api(request: web.Request) -> web.StreamResponse:
    """Answer one request to one of the APIs, and log it."""
    cloud = request.app[CLOUD]
    path, _, query = request.raw_path.partition("?")
    found = find_method(request.method, path, query)
    if not found and xml.is_one(path, SERVICES):
        method_id, response = await answer_by_name(request, path, query)
    else:
        method_id = found[0].id if found else UNKNOWN
        response = await respond(request, found, path, query)
    received = request.content.total_bytes
    cloud.requests.add(
        method_id,
        request.method,
        request.raw_path,
        response.status,
        received,
        distance.times_of(request),
    )
    return response


async def answer_by_name(
    request: web.Request, path: str, query: str
) -> tuple[str, web.StreamResponse]:
    """Answer a request of the XML API by the method of the JSON API that does the same, with errors
    of its own; return that method, too.
    """
    method_id = UNKNOWN
    try:
        method_id, values, path, pairs = xml.meant(request, path, query)
        method = schema.load("storage").methods[method_id]
        line = urlencode(pairs, errors="surrogateescape")
        return method_id, xml.answer(
            method_id, await call_method(request, (method, values), path, line)
        )
    except ApiError as error:
        return method_id, xml.refusal(error)
    except ConnectionError:
        return method_id, web.Response(status=499)  # the client has gone: this is for the log only


def find_method(verb: str, path: str, query: str) -> tuple[schema.Method, dict[str, str]] | None:
    """Return the method and path parameters of a raw path under any prefix; None if there is none."""
    for prefix in STORAGE_PREFIXES:
        if path.startswith(prefix):
            if "upload_id=" in query and verb == "PUT":
                verb = "POST"  # the session of an upload belongs to the insert that began it
            found = schema.match(schema.load("storage"), verb, path[len(prefix) :])
            # Only media travels under these prefixes.
            media = (
                "storage.objects.get"
                if prefix.startswith("/download")
                else "storage.objects.insert"
            )
            return found if found and found[0].id == media else None
    for service in SERVICES:
        base = f"/{service}/v1/"
        if path.startswith(base):
            return schema.match(schema.load(service), verb, path[len(base) :])
    return None


async def respond(
    request: web.Request,
    found: tuple[schema.Method, dict[str, str]] | None,
    path: str,
    query: str,
) -> web.StreamResponse:
    """Take one request through all checks and its handler."""
    try:
        if found is None:
            authenticate(request.app[CLOUD], request.headers)
            raise ApiError(
                404, "notFound", f"Not Found: {request.method} {path} is no method of these APIs"
            )
        return await call_method(request, found, path, query)
    except ApiError as error:
        return error_response(error, path.startswith(WITH_REASONS))
    except ConnectionError:
        return web.Response(status=499)  # the client has gone: this is for the log only
    except Exception as error:
        log.exception("%s %s failed inside the embedded cloud", request.method, path)
        if is_full(error):  # no client tries this again
            text = f"the embedded cloud's disk is full ({request.app[CLOUD].folder}). Make room there, and try again"
            return error_response(ApiError(507, "diskFull", text), path.startswith(WITH_REASONS))
        return error_response(
            ApiError(500, "backendError", f"Internal error of the embedded cloud: {path}")
        )


def is_full(error: BaseException | None) -> bool:
    """Whether an error comes from a disk without room."""
    while error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in str(
            error
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


async def call_method(
    request: web.Request,
    found: tuple[schema.Method, dict[str, str]],
    path: str,
    query: str,
) -> web.StreamResponse:
    cloud, handlers = request.app[CLOUD], request.app[HANDLERS]
    method, path_values = found
    service = schema.load(method.id.partition(".")[0])
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    upload = path.startswith(STORAGE_PREFIXES) and not path.startswith("/download")
    upload_id = next((value for name, value in pairs if upload and name == "upload_id"), None)
    # The URI of an upload session is a credential itself, as documented.
    is_session = "Authorization" not in request.headers and upload_id is not None
    owner = Owner("") if is_session else authenticate(cloud, request.headers)
    fault = cloud.faults.take(method.id, unquote(f"{path}?{query}"), path_values.get("zone"))
    if fault and not fault.after_handler:
        await suffer(fault, request)
    params = schema.check_params(
        service,
        method,
        path_values,
        [pair for pair in pairs if not (upload and pair[0] == "upload_id")],
    )
    if upload_id is not None:
        params["upload_id"] = upload_id
    mask = schema.parse_fields(params["fields"]) if "fields" in params else {}
    schema.check_fields(service, method.response, mask)
    body = None
    if not upload and method.verb not in ("GET", "DELETE"):
        body = parse_json(await request.read())
        body = schema.check_body(service, method, body)
    call = Call(method.id, params, body, request, owner.email)
    check_scopes(method, owner)
    services.check(cloud, call)
    permissions.check(cloud, call)
    if method.id not in handlers:
        raise ApiError(501, "notImplemented", f"{method.id} is not part of the embedded cloud")
    answer = await handlers[method.id](call)
    fault = fault or call.late_fault
    if fault and fault.after_handler:
        await suffer(fault, request)
    response = finish(service, method, params, answer, mask)
    body = response.body if isinstance(response, web.Response) else None
    if fault and fault.half and isinstance(body, bytes):
        return await break_off(request, body)
    return response


async def break_off(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send half of an answer, and cut the connection."""
    begun = web.StreamResponse(headers={"Content-Length": str(len(body))})
    await begun.prepare(request)
    await begun.write(body[: len(body) // 2])
    if request.transport:
        request.transport.close()
    return begun


def finish(
    service: schema.Api,
    method: schema.Method,
    params: dict,
    answer: dict | web.StreamResponse | None,
    mask: dict,
) -> web.StreamResponse:
    """Turn a handler's answer into a response, after checking it as strictly as requests are."""
    if answer is None:
        return web.Response(status=204)
    if isinstance(answer, web.StreamResponse):
        return answer
    try:
        schema.check_answer(service, method, answer)
    except ApiError as error:
        raise RuntimeError(f"answer of {method.id} does not fit: {error.message}") from error
    return json_response(
        schema.select(answer, mask), indent=1 if params.get("prettyPrint") == "true" else None
    )


def authenticate(cloud: Cloud, headers: Any) -> Owner:
    """Return whose the bearer token is, or raise Google's 401."""
    kind, _, token = headers.get("Authorization", "").partition(" ")
    owner = cloud.tokens.owner(token.strip()) if kind.lower() == "bearer" else None
    if owner is None:
        raise ApiError(
            401,
            "authError" if token else "required",
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
            "other valid authentication credential.",
        )
    return owner


def check_scopes(method: schema.Method, owner: Owner) -> None:
    """Raise Google's 403 unless the token has one of the scopes that the discovery document names."""
    if owner.scopes is None or set(owner.scopes) & set(method.scopes) or not method.scopes:
        return
    about = {"service": f"{method.id.partition('.')[0]}.googleapis.com", "method": method.id}
    details = [error_info("ACCESS_TOKEN_SCOPE_INSUFFICIENT", "googleapis.com", **about)]
    message = "Request had insufficient authentication scopes."
    raise ApiError(403, "insufficientPermissions", message, details=details)


def json_response(body: dict, status: int = 200, indent: int | None = None) -> web.Response:
    # ASCII: metadata may hold lone surrogates, which JSON can write and UTF-8 cannot.
    data = json.dumps(body, indent=indent).encode()
    return web.Response(body=data, status=status, content_type="application/json", charset="utf-8")


def error_response(error: ApiError, reasons: bool = True) -> web.Response:
    """The response for an ApiError."""
    response = json_response(error.body(reasons), error.status)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="https://accounts.google.com/"'
    if error.status == 429:
        response.headers["Retry-After"] = "1"
    return response
