"""What the API server serves beside objects: its health, its version, what it has (discovery and
OpenAPI) and how often it was asked; and who may read that.

Not covered: profiles, logs of nodes, keys of service accounts' tokens.
"""

from __future__ import annotations

import hashlib
import json

from aiohttp import web

from localcloud.call import Cloud
from localcloud.identity.tokens import Owner
from localcloud.kubernetes import discovery, openapi, rbac
from localcloud.kubernetes.kinds import NoPage, Refusal, no_route
from localcloud.kubernetes.plane import VERSION, Plane

HEALTH = ("healthz", "livez", "readyz")
# Without a token; who has one may read more.
OPEN = ("version", *HEALTH)
CHECKS = {
    "healthz": ("ping", "log", "etcd"),
    "livez": ("ping", "log", "etcd"),
    "readyz": ("ping", "log", "etcd", "etcd-readiness", "informer-sync", "shutdown"),
}
PLAIN = {"X-Content-Type-Options": "nosniff"}
COUNTED = "apiserver_request_total"


def is_open(path: str) -> bool:
    return path.strip("/") in OPEN


def count(plane: Plane, verb: str, resource: str, code: int) -> None:
    """Remember that a request was answered."""
    seen = plane.memory.setdefault("answers", {})
    seen[verb, resource, code] = seen.get((verb, resource, code), 0) + 1


async def answer(
    cloud: Cloud, plane: Plane, request: web.Request, owner: Owner | None
) -> web.StreamResponse:
    if owner is not None:
        require(cloud, plane, owner, request.method.lower(), request.path)
    path = request.path.strip("/")
    name, _, check = path.partition("/")
    if name in HEALTH:
        return health(name, check, request)
    if request.method != "GET":
        return web.Response(status=405, text="405: Method Not Allowed", headers=PLAIN)
    if path == "metrics":
        return web.Response(text=metrics_of(plane))
    if path in ("", "index.html"):
        return as_json(request, {"paths": listed(plane)})
    if path == "openapi/v2":
        return as_json(request, openapi.whole(VERSION))
    if path in ("api", "apis") and discovery.AGGREGATED in request.headers.get("Accept", ""):
        return aggregated(plane, request, path)
    known = discovery.document(path, plane.has_kueue)
    if known is None:
        raise nothing_at(plane, path)
    if path == "api":
        known["serverAddressByClientCIDRs"][0]["serverAddress"] = request.host
    return as_json(request, known)


def as_json(request: web.Request, body: dict) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), content_type="application/json")


def require(cloud: Cloud, plane: Plane, owner: Owner, verb: str, path: str) -> None:
    """Raise the 403 unless somebody may do that with a path that is no object's."""
    if not rbac.may_path(cloud, plane, owner, verb, path):
        told = f'forbidden: User "{owner.email}" cannot {verb} path "{path}"'
        raise Refusal(403, "Forbidden", told, empty=True)


def health(name: str, check: str, request: web.Request) -> web.Response:
    """Whether the server is well, check by check where that is asked for."""
    checks = CHECKS[name]
    if check and check not in checks:
        raise NoPage
    if check or "verbose" not in request.query:
        return web.Response(text="ok", headers=PLAIN)
    left_out = request.query.getall("exclude", [])
    lines = [f"[+]{each} {'excluded: ' if each in left_out else ''}ok" for each in checks]
    unknown = ",".join(json.dumps(each) for each in sorted({*left_out} - {*checks}))
    if unknown:
        told = "warn: some health checks cannot be excluded: no matches for"
        lines.append(f"{told} {unknown}")
    return web.Response(text="\n".join([*lines, f"{name} check passed", ""]), headers=PLAIN)


def metrics_of(plane: Plane) -> str:
    """How often the server was asked for what, as Prometheus reads it."""
    rows = [
        f'{COUNTED}{{code="{code}",resource="{resource}",verb="{verb}"}} {number}'
        for (verb, resource, code), number in sorted(plane.memory.get("answers", {}).items())
    ]
    about = (
        "Counter of apiserver requests broken out for each verb, resource and HTTP response code."
    )
    return "\n".join([f"# HELP {COUNTED} {about}", f"# TYPE {COUNTED} counter", *rows, ""])


def listed(plane: Plane) -> list[str]:
    """The paths that there are."""
    documents = discovery.document("openapi/v3", plane.has_kueue) or {}
    groups = {f"/{each}" for each in documents["paths"]}
    groups |= {f"/apis/{each.split('/')[2]}" for each in groups if each.startswith("/apis/")}
    checks = {f"/{name}/{check}" for name in HEALTH for check in CHECKS[name]}
    own = {"/api", "/apis", "/metrics", "/openapi/v2", "/openapi/v3", "/version"}
    return sorted(own | groups | checks | {f"/{name}" for name in HEALTH})


def aggregated(plane: Plane, request: web.Request, path: str) -> web.Response:
    """All that there is in one document, or the word that it is what a client has."""
    body = json.dumps(discovery.aggregated(path, plane.has_kueue)).encode()
    tag = f'"{hashlib.sha512(body).hexdigest().upper()}"'
    headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public"}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = f"application/json;{discovery.AGGREGATED}"
    return web.Response(body=body, headers=headers)


def nothing_at(plane: Plane, path: str) -> Exception:
    """What there is at a path without anything: an API that is served says so itself."""
    first, _, rest = path.partition("/")
    group = rest.partition("/")[0]
    if first == "api" or (first == "apis" and discovery.is_served(group, plane.has_kueue)):
        return no_route()
    return NoPage()
