"""The API server of a cluster: HTTP on loopback, with TLS of the cluster's own authority.

A request passes: token, faults (as `kubernetes.<plural>.<verb>`), rights, then what it asks for.
Streams are in streams.py, changes of objects in changes.py.

Not covered: watches, other bodies than JSON, patches other than merge patches, who manages which field.
"""

import copy
import functools
import json
import logging
import ssl
from typing import Any

from aiohttp import web

from localcloud import certificates, distance, patches
from localcloud.call import Cloud, suffer
from localcloud.faults import Fault
from localcloud.identity.tokens import Owner
from localcloud.kubernetes import bodies, paths, rbac, streams
from localcloud.kubernetes.changes import delete, replace
from localcloud.kubernetes.kinds import (
    KINDS,
    Kind,
    Refusal,
    is_leaving,
    key_of,
    no_method,
    not_found,
)
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.store import Selector
from localcloud.kubernetes.tables import table

log = logging.getLogger("localcloud")

MAX_BODY = 3 << 20  # as of etcd behind a real one
BASES = ("/api/{group:v1}", "/apis/{group:[a-z0-9.-]+/v1(?:beta2)?}")
REASONS = {
    429: "TooManyRequests",
    409: "Conflict",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
STREAMS: dict[str, Any] = {"log": streams.logs, "exec": streams.execute}
# Subresource -> what may be done with it.
METHODS: dict[str, tuple[str, ...]] = {"log": ("GET",), "exec": ("GET",)}
MADE = ("configmaps", "secrets", "jobs")  # by clients
DELETED = (*MADE, "pods")
REASONS |= {401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}


async def listen(cloud: Cloud, plane: Plane) -> web.AppRunner:
    """Serve a cluster's API, on the port that it had before."""
    certificates.make(plane.folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(plane.folder / "cert.pem", plane.folder / "key.pem")
    runner = web.AppRunner(
        make_app(cloud, plane), access_log=None, shutdown_timeout=0.1, handler_cancellation=True
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", plane.port, ssl_context=context).start()
    plane.port = runner.addresses[0][1]
    return runner


def make_app(cloud: Cloud, plane: Plane) -> web.Application:
    far = distance.middleware(cloud.link, cloud.tokens)
    app = web.Application(client_max_size=MAX_BODY, middlewares=[far])
    table_of_routes: list[tuple[str, str, Any]] = []
    for base in BASES:
        for middle in ("/namespaces/{namespace}", ""):
            table_of_routes += [
                ("*", f"{base}{middle}/{{plural}}", collection),
                ("*", f"{base}{middle}/{{plural}}/{{name}}", single),
                ("*", f"{base}{middle}/{{plural}}/{{name}}/{{sub}}", single),
            ]
    table_of_routes.append(("*", "/{path:.*}", paths.answer))
    for verb, path, handler in table_of_routes:
        app.router.add_route(verb, path, functools.partial(guarded, cloud, plane, handler))
    return app


async def guarded(
    cloud: Cloud, plane: Plane, handler: Any, request: web.Request
) -> web.StreamResponse:
    """Answer a request and log it, whatever happens."""
    match = request.match_info
    method = f"kubernetes.{match.get('plural', 'about')}.{verb_of(request)}"
    try:
        owner = rbac.authenticate(cloud, request.headers.get("Authorization", ""))
        fault = cloud.faults.take(method, request.path_qs)
        if fault and not fault.after_handler:
            await suffer(fault, request, injected)
        response = await handler(cloud, plane, request, owner)
        if fault and fault.after_handler:
            await suffer(fault, request, injected)
    except Refusal as refusal:
        response = refused(refusal)
    except ConnectionError:
        response = web.Response(status=499)
    except web.HTTPRequestEntityTooLarge:
        response = refused(Refusal(413, "RequestEntityTooLarge", f"limit is {MAX_BODY}"))
    except Exception:
        log.exception("cluster %s: %s %s failed inside", plane.name, request.method, request.path)
        response = refused(Refusal(500, "InternalError", "Internal error of the embedded cloud"))
    received, times = request.content.total_bytes, distance.times_of(request)
    cloud.requests.add(method, request.method, request.raw_path, response.status, received, times)
    return response


def as_json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """An answer of the type that a real server names: some clients take one with a character set
    for another.
    """
    data = json.dumps(body).encode()
    return web.Response(body=data, status=status, headers=headers, content_type="application/json")


def refused(refusal: Refusal) -> web.Response:
    headers = {"Retry-After": "1"} if refusal.code == 429 else {}
    return as_json(refusal.body, status=refusal.code, headers=headers)


def injected(fault: Fault) -> Refusal:
    """A fault as Kubernetes would write it."""
    status = fault.status or 500
    reason = fault.reason or REASONS.get(status, "InternalError")
    return Refusal(status, reason, fault.message or f"Injected fault: {reason}")


def verb_of(request: web.Request) -> str:
    """The verb by which rights and faults know a request: list, watch, create, …, or a subresource."""
    return request.match_info.get("sub") or verb_of_resource(request)


def verb_of_resource(request: web.Request) -> str:
    whole = "name" not in request.match_info
    if request.method == "GET":
        watched = request.query.get("watch", "false").lower() not in ("0", "false")
        return "watch" if watched and whole else "list" if whole else "get"
    if request.method == "DELETE":
        return "deletecollection" if whole else "delete"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(
        request.method, request.method.lower()
    )


def kind_of(request: web.Request) -> Kind:
    """The kind of the objects at a path."""
    match = request.match_info
    kind, sub = KINDS.get(match["plural"]), match.get("sub")
    if (
        kind is None
        or kind.api != match["group"]
        or (sub and sub not in kind.subresources)
        or not is_place_of(kind, match)
    ):
        raise paths.nothing()
    if request.method not in METHODS.get(sub or "", (request.method,)):
        raise no_method()
    return kind


def is_place_of(kind: Kind, match: Any) -> bool:
    """Whether a path leads to objects of a kind: each in its namespace, others in none."""
    if kind.namespaced:
        return "namespace" in match or "name" not in match
    return "namespace" not in match


def wants_table(request: web.Request) -> bool:
    """Whether the answer shall be a table, as `kubectl get` asks for it."""
    return "as=Table" in request.headers.get("Accept", "")


def shown(
    request: web.Request,
    plane: Plane,
    kind: Kind,
    thing: dict,
    status: int = 200,
) -> web.Response:
    meta = {"resourceVersion": str(plane.store.version)}
    body = table(kind.plural, [thing], meta) if wants_table(request) else thing
    return as_json(body, status=status)


def is_strict(request: web.Request) -> bool:
    """Whether unknown fields are to be refused."""
    return request.query.get("fieldValidation") == "Strict"


async def create(plane: Plane, request: web.Request, kind: Kind, namespace: str) -> web.Response:
    body, is_dry = await bodies.read(request, kind.name), "dryRun" in request.query
    made = plane.create(kind.plural, namespace, body, is_strict(request), is_dry)
    return shown(request, plane, kind, made, 201)


# --- collections


async def collection(
    cloud: Cloud, plane: Plane, request: web.Request, owner: Owner
) -> web.StreamResponse:
    kind = kind_of(request)
    namespace, verb = request.match_info.get("namespace", ""), verb_of(request)
    rbac.require(cloud, plane, owner, verb, kind.group, kind.plural, namespace)
    if verb == "create":
        if kind.plural not in MADE or not namespace:
            raise no_method()
        return await create(plane, request, kind, namespace)
    if verb != "list":
        raise no_method()
    query = request.query
    chosen = Selector(namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    found = [thing for thing in plane.store.shown[kind.plural].values() if chosen.fits(thing)]
    found.sort(key=key_of)
    meta = {"resourceVersion": str(plane.store.version)}
    if wants_table(request):
        return as_json(table(kind.plural, found, meta))
    return as_json(
        {"kind": f"{kind.name}List", "apiVersion": kind.api, "metadata": meta, "items": found}
    )


# --- single objects


async def single(
    cloud: Cloud, plane: Plane, request: web.Request, owner: Owner
) -> web.StreamResponse:
    kind, match = kind_of(request), request.match_info
    name, sub = match["name"], match.get("sub", "")
    namespace = match.get("namespace", "") if kind.namespaced else ""
    verb = verb_of_resource(request)
    rbac.require(cloud, plane, owner, verb, kind.group, kind.plural, namespace, name, sub)
    thing, options = plane.store.get(kind.plural, namespace, name), {}
    if request.method == "DELETE":
        options = await bodies.read(request, bodies.OPTIONS)
    if thing is None:
        raise not_found(kind, name)
    if sub in STREAMS:
        return await STREAMS[sub](plane, request, thing)
    if request.method == "GET":
        return shown(request, plane, kind, plane.store.shown[kind.plural][namespace, name])
    if request.method == "DELETE" and kind.plural in DELETED:
        delete(plane, kind, thing, options)
        if is_leaving(thing):
            return shown(request, plane, kind, thing)
        details = {"name": name, "group": kind.group, "kind": kind.plural}
        details = {key: each for key, each in details.items() if each}
        details["uid"] = thing["metadata"]["uid"]
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return as_json({**done, "details": details})
    if request.method != "PATCH" or kind.plural != "pods":
        raise no_method()
    new = patches.merge(copy.deepcopy(thing), await bodies.read(request, "Pod", bodies.MERGE))
    return shown(request, plane, kind, replace(plane, thing, new, is_strict(request)))
