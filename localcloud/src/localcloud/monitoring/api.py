"""Handlers of the Cloud Monitoring methods: dashboards (v1).

Not covered: all else, and what the widgets of a dashboard show.
"""

import functools
import uuid
from collections.abc import Callable
from typing import Any

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, unserved
from localcloud.identity.iam import tag

MOST_COLUMNS = 48


async def _checked(handler: Callable, cloud: Cloud, call: Call) -> Any:
    """Refuse projects that are not there, and call the handler with the name, its project by id."""
    name = call.params.get("name") or call.params["parent"]
    refusal = f"Permission denied on resource project {name.split('/')[1]}."
    return await handler(cloud, call, cloud.by_id(name, refusal))


def refuse(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


# --- dashboards


async def create(cloud: Cloud, call: Call, name: str) -> dict:
    body = call.body or {}
    unserved(body.get("name") or body.get("etag"), "names and etags of new dashboards")
    return keep(cloud, call, f"{name}/dashboards/{uuid.uuid4()}", body)


def keep(cloud: Cloud, call: Call, full: str, body: dict) -> dict:
    unserved(call.params.get("validateOnly"), "dashboards that are only checked")
    check_dashboard(body)
    row = {key: value for key, value in body.items() if key not in ("name", "etag")}
    cloud.monitoring.dashboards[full] = row
    cloud.monitoring.save_dashboards()
    return present(cloud, full, row)


def present(cloud: Cloud, full: str, row: dict) -> dict:
    return {"name": cloud.by_number(full), **row, "etag": tag(row)}


def find(cloud: Cloud, full: str) -> dict:
    row = cloud.monitoring.dashboards.get(full)
    if row is None:
        raise ApiError(404, "notFound", f"Requested entity was not found: {cloud.by_number(full)}")
    return row


async def list_dashboards(cloud: Cloud, call: Call, name: str) -> dict:
    there = cloud.monitoring.dashboards.items()
    rows = [present(cloud, full, row) for full, row in there if full.startswith(f"{name}/")]
    unserved(call.params.get("pageSize", len(rows)) < len(rows), "pages of dashboards")
    return {"dashboards": rows} if rows else {}


async def patch(cloud: Cloud, call: Call, name: str) -> dict:
    body, row = call.body or {}, find(cloud, name)
    if body.get("etag") != tag(row):
        raise ApiError(
            409,
            "aborted",
            "The etag of the dashboard does not match: it was changed meanwhile.",
            code="ABORTED",
        )
    return keep(cloud, call, name, body)


async def delete(cloud: Cloud, call: Call, name: str) -> dict:
    find(cloud, name)
    del cloud.monitoring.dashboards[name]
    cloud.monitoring.save_dashboards()
    return {}


def check_dashboard(body: dict) -> None:
    if not body.get("displayName"):
        raise refuse("Field displayName must be set.")
    unserved("mosaicLayout" not in body, "dashboards other than mosaics")
    check_mosaic(body["mosaicLayout"])


def check_mosaic(layout: dict) -> None:
    columns = layout.get("columns", 0)
    taken: set[tuple[int, int]] = set()
    if not 1 <= columns <= MOST_COLUMNS:
        raise refuse(
            f"Field mosaicLayout.columns had an invalid value of {columns}: it must be 1 to {MOST_COLUMNS}."
        )
    for number, tile in enumerate(layout.get("tiles") or []):
        where = f"mosaicLayout.tiles[{number}]"
        x, y, width, height = (tile.get(key, 0) for key in ("xPos", "yPos", "width", "height"))
        if min(x, y) < 0 or min(width, height) < 1 or x + width > columns:
            raise refuse(f"Field {where} is not inside of the {columns} columns.")
        cells = {(column, row) for column in range(x, x + width) for row in range(y, y + height)}
        if cells & taken:
            raise refuse(f"Field {where} overlaps another tile.")
        taken |= cells


HANDLERS = {
    f"monitoring.projects.dashboards.{verb}": functools.partial(_checked, handler)
    for verb, handler in {
        "create": create,
        "list": list_dashboards,
        "patch": patch,
        "delete": delete,
    }.items()
}
