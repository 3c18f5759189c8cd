"""What the API server serves besides objects: its health, its version and what it has (discovery).

Every caller with a token may read it, as the role system:discovery allows. Not covered: metrics,
profiles, logs of nodes.
"""

from __future__ import annotations

import json

from aiohttp import web

from localcloud.call import Cloud
from localcloud.identity.tokens import Owner
from localcloud.kubernetes import discovery
from localcloud.kubernetes.kinds import NO_ROUTE, NoPage, Refusal
from localcloud.kubernetes.plane import Plane

HEALTH = ("healthz", "livez", "readyz")
OPEN = ("version", *HEALTH)  # without a token


async def answer(
    cloud: Cloud, plane: Plane, request: web.Request, owner: Owner | None
) -> web.StreamResponse:
    path = request.path.strip("/")
    if path in HEALTH:
        return web.Response(text="ok")
    if request.method != "GET":
        return web.Response(status=405, text="405: Method Not Allowed")
    known = discovery.document(path, plane.has_kueue)
    if known is None:
        raise nothing_at(plane, path)
    if path == "api":
        known["serverAddressByClientCIDRs"][0]["serverAddress"] = request.host
    return web.Response(body=json.dumps(known).encode(), content_type="application/json")


def nothing_at(plane: Plane, path: str) -> Exception:
    """The answer for a path without anything: an API that is served says so itself."""
    first, _, rest = path.partition("/")
    group = rest.partition("/")[0]
    if first == "api" or (first == "apis" and discovery.is_served(group, plane.has_kueue)):
        return Refusal(NO_ROUTE[0], "NotFound", NO_ROUTE[1])
    return NoPage()
