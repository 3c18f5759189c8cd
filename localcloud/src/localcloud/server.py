"""The embedded cloud's one HTTP application: its services, its routes, and the network of its
machines.

Handlers are plain async functions in tables keyed by Google's method ids. The way of a request to
its handler is in dispatch.py.

Not covered: HTTP/2, TLS, gRPC, API keys.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from localcloud import control_api, distance
from localcloud.artifacts import api as artifacts_api
from localcloud.artifacts import registry
from localcloud.artifacts.store import Artifacts
from localcloud.billing import api as billing_api
from localcloud.call import CLOUD, Cloud, cut
from localcloud.compute import api as compute_api
from localcloud.compute.networks import reaches_google
from localcloud.compute.state import Compute, Settings
from localcloud.container import api as container_api
from localcloud.container.state import Container
from localcloud.dispatch import HANDLERS, api, authenticate, error_response
from localcloud.errors import ApiError
from localcloud.faults import Faults
from localcloud.identity import api as iam_api
from localcloud.identity import keys, oauth
from localcloud.identity import services as services_api
from localcloud.identity.iam import Iam
from localcloud.identity.tokens import LAPTOP, Tokens
from localcloud.machines import tunnel
from localcloud.monitoring import api as monitoring_api
from localcloud.monitoring.store import Monitoring
from localcloud.secrets import api as secrets_api
from localcloud.secrets.store import Secrets
from localcloud.storage import api as storage_api
from localcloud.storage.state import Storage


def open_cloud(folder: Path, port: int, project: str, settings: Settings | None = None) -> Cloud:
    """Open the cloud whose state is in `folder`, or make a new one with one project."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "projects.json"
    projects = json.loads(saved.read_text()) if saved.exists() else {}
    faults, tokens = Faults(), Tokens(folder)
    compute = Compute(folder / "compute", projects, faults, settings or Settings())
    cloud = Cloud(
        folder,
        port,
        projects,
        tokens,
        Storage(folder / "storage"),
        Secrets(folder / "secrets"),
        Iam(folder, projects, lambda: {LAPTOP, *tokens.state["refresh_tokens"]}),
        faults,
        Monitoring(folder / "monitoring"),
        Artifacts(folder / "artifacts"),
        compute,
        Container(folder / "kubernetes", compute),
    )
    if project not in projects:
        cloud.add_project(project)
    return cloud


def make_app(cloud: Cloud) -> web.Application:
    """Return the application that serves `cloud`."""
    far = distance.middleware(cloud.link, cloud.tokens)
    app = web.Application(client_max_size=0, middlewares=[far, network])  # 0: bodies of any size
    app[CLOUD] = cloud
    services = (
        storage_api,
        secrets_api,
        iam_api,
        keys,
        services_api,
        billing_api,
        monitoring_api,
        artifacts_api,
        compute_api,
        container_api,
    )
    app[HANDLERS] = {
        method: functools.partial(handler, cloud)
        for service in services
        for method, handler in service.HANDLERS.items()
    }
    cloud.compute.account_exists = lambda email: cloud.iam.account(email) is not None
    cloud.compute.account_is_known = cloud.iam.is_known
    app.router.add_post("/token", functools.partial(oauth.token, cloud.tokens, cloud.iam))
    app.router.add_get("/v4/connect", connect_tunnel)
    app.add_routes([_guarded(cloud, route) for route in control_api.routes(cloud)])
    app.router.add_route("*", "/v2/{path:.*}", registry.serve)
    app.router.add_route("*", "/{path:.*}", api)
    return app


def _guarded(cloud: Cloud, route: web.RouteDef) -> web.RouteDef:
    """Give a control route what API methods have anyway: the token check, and errors as JSON."""

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            authenticate(cloud, request.headers)
            return await route.handler(request)
        except ApiError as error:
            return error_response(error)

    return web.RouteDef(route.method, route.path, handler, route.kwargs)


@web.middleware
async def network(request: web.Request, handler: Callable) -> web.StreamResponse:
    """Reset the connection of a machine that is off the network; its token tells which it is."""
    token = request.headers.get("Authorization", "").rpartition(" ")[2]
    compute = request.app[CLOUD].compute
    if not token or not (
        mine := [each for each in compute.instances.values() if each.token == token]
    ):
        return await handler(request)
    if mine[0].cut or mine[0].network_down or not reaches_google(compute, mine[0]):
        cut(request)
        raise ConnectionResetError("this machine is off the network, or has no way to Google")
    under_way = compute.connections.setdefault(token, set())
    under_way.add(request.transport)
    try:
        return await handler(request)
    finally:
        under_way.discard(request.transport)


async def connect_tunnel(request: web.Request) -> web.StreamResponse:
    """A tunnel of Identity-Aware Proxy's; the path is that of its relay."""
    try:
        owner = authenticate(request.app[CLOUD], request.headers)
    except ApiError as error:
        return error_response(error)
    return await tunnel.connect(request, owner.email)
