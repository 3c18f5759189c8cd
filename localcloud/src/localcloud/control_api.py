"""The `/_berg/` routes of tests and demonstrations: faults, the request log, tokens, trouble for
machines.

Bodies and answers are JSON objects; the server adds the token check.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from localcloud.call import Cloud, parse_json
from localcloud.compute import catalog, power
from localcloud.compute.checks import check_place
from localcloud.errors import ApiError
from localcloud.kubernetes import kubelet
from localcloud.kubernetes.plane import Plane

# Of what holds more than settings.
SETTINGS = {
    "Storage": ["write_interval"],
    "Link": ["latency", "machine_latency", "bandwidth"],
    "Iam": ["grant_delay", "account_delay"],
}


def routes(cloud: Cloud) -> list[web.RouteDef]:
    table: list[tuple[str, str, Callable[[Cloud, str, dict], Awaitable[dict | None]]]] = [
        ("POST", "/_berg/faults", add_fault),
        ("GET", "/_berg/faults", list_faults),
        ("DELETE", "/_berg/faults", clear_faults),
        ("GET", "/_berg/requests", list_requests),
        ("DELETE", "/_berg/requests", clear_requests),
        ("POST", "/_berg/tokens/expire", expire_tokens),
        ("POST", "/_berg/quotas", set_quota),
        ("POST", "/_berg/stockout", set_stockout),
        ("POST", "/_berg/settings", change_settings),
        ("POST", "/_berg/instances/{name}/preempt", preempt),
        ("POST", "/_berg/instances/{name}/crash", crash),
        ("POST", "/_berg/instances/{name}/cut", cut),
        ("POST", "/_berg/pods/{name}/evict", evict),
        ("POST", "/_berg/clusters/{name}/images", set_image),
    ]
    return [
        web.route(verb, path, functools.partial(answer, cloud, handler))
        for verb, path, handler in table
    ]


async def answer(cloud: Cloud, handler: Callable, request: web.Request) -> web.Response:
    name = request.match_info.get("name", "")
    return web.json_response(await handler(cloud, name, parse(await request.read())) or {})


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object that a control request carries; none is an empty one."""
    body = parse_json(data)
    if not isinstance(body, dict):
        raise ApiError(400, "parseError", "Expected a JSON object")
    return body


async def add_fault(cloud: Cloud, name: str, body: dict) -> None:
    cloud.faults.add(body)


async def list_faults(cloud: Cloud, name: str, body: dict) -> dict:
    return {"faults": cloud.faults.describe()}


async def clear_faults(cloud: Cloud, name: str, body: dict) -> None:
    cloud.faults.clear()


async def list_requests(cloud: Cloud, name: str, body: dict) -> dict:
    return cloud.requests.describe()


async def clear_requests(cloud: Cloud, name: str, body: dict) -> None:
    cloud.requests.clear()


async def expire_tokens(cloud: Cloud, name: str, body: dict) -> None:
    cloud.tokens.expire_all()


async def set_quota(cloud: Cloud, name: str, body: dict) -> dict:
    project = body.get("project", "berg-local")
    quotas = cloud.compute.project_row(project)["quotas"]
    quotas.setdefault(body.get("region") or "global", {})[body["metric"]] = body["limit"]
    cloud.compute.save_project(project)
    return quotas


async def set_stockout(cloud: Cloud, name: str, body: dict) -> dict:
    stockouts = cloud.compute.stockouts
    for zone in [body["zone"]] if body.get("zone") else catalog.ZONES:
        check_place("zone", zone)
        stockouts.pop(zone, None)
        if body.get("on", True):
            stockouts[zone] = body.get("left", 0)
    return stockouts


async def change_settings(cloud: Cloud, name: str, body: dict) -> dict:
    kinds = (cloud.storage, cloud.iam, cloud.link, cloud.compute.settings, cloud.container.settings)
    holders = {
        name: each for each in kinds for name in SETTINGS.get(type(each).__name__, vars(each))
    }
    for key, value in body.items():
        if key not in holders:
            raise ApiError(400, "invalid", f"Unknown setting: {key}")
        setattr(holders[key], key, value if value is None else float(value))
    return {name: getattr(holder, name) for name, holder in holders.items()}


async def preempt(cloud: Cloud, name: str, body: dict) -> dict:
    return power.preempt(
        cloud.compute, cloud.compute.find(name), body.get("grace"), body.get("notice")
    )


async def crash(cloud: Cloud, name: str, body: dict) -> None:
    power.crash(cloud.compute, cloud.compute.find(name))


async def cut(cloud: Cloud, name: str, body: dict) -> None:
    await power.cut_off(cloud.compute, cloud.compute.find(name), body.get("cut", True))


def pod_named(cloud: Cloud, name: str) -> tuple[Plane, dict]:
    for plane in cloud.container.planes.values():
        for pod in plane.store.all("pods"):
            if pod["metadata"]["name"] == name:
                return plane, pod
    raise ApiError(404, "notFound", f"pods/{name}")


async def set_image(cloud: Cloud, name: str, body: dict) -> dict:
    planes = [plane for plane in cloud.container.planes.values() if plane.name == name]
    for plane in planes:
        plane.images[str(body["image"])] = "failed to resolve reference: not found"
    return {"clusters": len(planes)}


async def evict(cloud: Cloud, name: str, body: dict) -> None:
    kubelet.evict(*pod_named(cloud, name), float(body.get("grace", 0)))
