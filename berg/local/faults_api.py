"""The `/_berg/` routes of tests and demonstrations: faults, the request log, projects, tokens."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from berg.local.errors import ApiError

if TYPE_CHECKING:
    from berg.local.server import Cloud


def routes(cloud: "Cloud") -> list[web.RouteDef]:
    """Return the routes; the server adds the token check."""

    async def add_fault(request: web.Request) -> web.Response:
        cloud.faults.add(await body_of(request))
        return web.json_response({"faults": cloud.faults.describe()})

    async def list_faults(_request: web.Request) -> web.Response:
        return web.json_response({"faults": cloud.faults.describe()})

    async def clear_faults(_request: web.Request) -> web.Response:
        cloud.faults.clear()
        return web.json_response({"faults": []})

    async def list_requests(_request: web.Request) -> web.Response:
        return web.json_response(cloud.requests.describe())

    async def clear_requests(_request: web.Request) -> web.Response:
        cloud.requests.clear()
        return web.json_response(cloud.requests.describe())

    async def add_project(request: web.Request) -> web.Response:
        spec = await body_of(request)
        if not isinstance(spec.get("project"), str):
            raise ApiError(400, "invalid", 'Needs {"project": id, "access": true|false}')
        cloud.add_project(spec["project"], bool(spec.get("access", True)))
        return web.json_response({"projects": cloud.projects})

    async def expire_tokens(request: web.Request) -> web.Response:
        cloud.tokens.expire_all(revoke=bool((await body_of(request)).get("revoke")))
        return web.json_response({})

    table: list[tuple[str, str, Callable[[web.Request], Awaitable[web.Response]]]] = [
        ("POST", "/_berg/faults", add_fault),
        ("GET", "/_berg/faults", list_faults),
        ("DELETE", "/_berg/faults", clear_faults),
        ("GET", "/_berg/requests", list_requests),
        ("DELETE", "/_berg/requests", clear_requests),
        ("POST", "/_berg/projects", add_project),
        ("POST", "/_berg/tokens/expire", expire_tokens),
    ]
    return [web.route(verb, path, handler) for verb, path, handler in table]


async def body_of(request: web.Request) -> dict[str, Any]:
    """The JSON object that a control request carries; none is an empty one."""
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise ApiError(400, "parseError", f"Not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "parseError", "Expected a JSON object")
    return body
