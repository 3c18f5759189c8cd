"""Handlers of the Cloud Monitoring methods: dashboards (v1), time series and descriptors of custom
metrics (v3).

Google's rules that the discovery document does not hold follow
https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.timeSeries/create and
https://cloud.google.com/monitoring/quotas.

Not covered: metrics of Google's own services (none has points here), one descriptor by its name,
alerts, uptime checks, MQL and PromQL, filters beyond a metric's type, aggregation, a request of
which a part is written, what the widgets of a dashboard are but charts of time series.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from localcloud.call import Call, Cloud, Handler
from localcloud.compute.listing import resources
from localcloud.errors import ApiError

LAYOUTS = ("mosaicLayout", "gridLayout", "rowLayout", "columnLayout")
QUERIES = (
    "timeSeriesFilter",
    "timeSeriesFilterRatio",
    "timeSeriesQueryLanguage",
    "prometheusQuery",
    "opsAnalyticsQuery",
)
MOST_SERIES, MOST_DASHBOARDS, MOST_LABELS = 200, 1000, 30
MOST_COLUMNS = 48
OWN = ("custom.googleapis.com/", "external.googleapis.com/", "workload.googleapis.com/")
METRIC = re.compile(r"[a-z.]+/([A-Za-z][A-Za-z0-9_]*/)*[A-Za-z][A-Za-z0-9_]*")
# Monitored resources that custom metrics may be written against -> their labels.
RESOURCES = {
    "gce_instance": {"project_id", "instance_id", "zone"},
    "generic_node": {"project_id", "location", "namespace", "node_id"},
    "generic_task": {"project_id", "location", "namespace", "job", "task_id"},
    "global": {"project_id"},
    "k8s_pod": {"project_id", "location", "cluster_name", "namespace_name", "pod_name"},
    "k8s_container": {
        "project_id",
        "location",
        "cluster_name",
        "namespace_name",
        "pod_name",
        "container_name",
    },
}
VALUES = {
    "boolValue": "BOOL",
    "int64Value": "INT64",
    "doubleValue": "DOUBLE",
    "distributionValue": "DISTRIBUTION",
}
# seconds: before now, after now, between two points of a series
OLDEST, NEWEST, PERIOD = (
    25 * 3600,
    300,
    5,
)
ONLY_TYPE = re.compile(r'\s*metric\.type\s*=\s*"([^"]+)"\s*')


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the handler of every method that is served, by method id."""
    table = {
        "dashboards.create": create,
        "dashboards.get": get,
        "dashboards.list": list_dashboards,
        "dashboards.patch": patch,
        "dashboards.delete": delete,
        "timeSeries.create": write,
        "timeSeries.list": read,
    }
    prefix = "monitoring.projects."
    return {
        prefix + method: functools.partial(_checked, cloud, handler)
        for method, handler in table.items()
    }


async def _checked(cloud: Cloud, handler: Callable, call: Call) -> Any:
    """Refuse projects that are not there, and call the handler with the name, its project by id."""
    name = call.params.get("name") or call.params["parent"]
    refusal = f"Permission denied on resource project {name.split('/')[1]}."
    return await handler(cloud, call, cloud.by_id(name, refusal))


def refuse(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


# --- dashboards


async def create(cloud: Cloud, call: Call, name: str) -> dict:
    body = dict(call.body or {})
    if body.get("etag"):
        raise refuse("Field etag must not be set when a dashboard is created.")
    check_dashboard(body)
    id = body.get("name", "").rpartition("/")[2] or str(uuid.uuid4())
    full = f"{name}/dashboards/{id}"
    named = body.get("name") in (None, "", full, shown_name(cloud, full))
    if not named or not re.fullmatch(r"[\w-]{1,64}", id):
        raise refuse(f'Field name had an invalid value of "{body["name"]}".')
    if full in cloud.monitoring.dashboards:
        raise ApiError(409, "alreadyExists", f"Dashboard {shown_name(cloud, full)} already exists.")
    if sum(each.startswith(f"{name}/") for each in cloud.monitoring.dashboards) >= MOST_DASHBOARDS:
        raise ApiError(
            429, "rateLimitExceeded", f"A project has at most {MOST_DASHBOARDS} dashboards."
        )
    return keep(cloud, call, full, body)


def keep(cloud: Cloud, call: Call, full: str, body: dict) -> dict:
    row = {key: value for key, value in body.items() if key not in ("name", "etag")}
    if not call.params.get("validateOnly"):
        cloud.monitoring.dashboards[full] = row
        cloud.monitoring.save_dashboards()
    return present(cloud, full, row)


def shown_name(cloud: Cloud, full: str) -> str:
    """Monitoring answers with the project's number, whatever it was asked with."""
    _, project, *rest = full.split("/")
    return "/".join(["projects", cloud.projects[project]["number"], *rest])


def etag(row: dict) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:32]


def present(cloud: Cloud, full: str, row: dict) -> dict:
    return {"name": shown_name(cloud, full), **row, "etag": etag(row)}


def find(cloud: Cloud, full: str) -> dict:
    row = cloud.monitoring.dashboards.get(full)
    if row is None:
        raise ApiError(
            404, "notFound", f"Requested entity was not found: {shown_name(cloud, full)}"
        )
    return row


async def get(cloud: Cloud, call: Call, name: str) -> dict:
    return present(cloud, name, find(cloud, name))


async def list_dashboards(cloud: Cloud, call: Call, name: str) -> dict:
    there = cloud.monitoring.dashboards.items()
    rows = [present(cloud, full, row) for full, row in there if full.startswith(f"{name}/")]
    return paged(call, "dashboards", rows, 1000)


async def patch(cloud: Cloud, call: Call, name: str) -> dict:
    body, row = call.body or {}, find(cloud, name)
    if not body.get("etag"):
        raise refuse("Field etag must be set when a dashboard is updated.")
    if body["etag"] != etag(row):
        raise ApiError(
            409,
            "aborted",
            "The etag of the dashboard does not match: it was changed meanwhile.",
            code="ABORTED",
        )
    check_dashboard(body)
    return keep(cloud, call, name, body)


async def delete(cloud: Cloud, call: Call, name: str) -> dict:
    find(cloud, name)
    del cloud.monitoring.dashboards[name]
    cloud.monitoring.save_dashboards()
    return {}


def check_dashboard(body: dict) -> None:
    if not body.get("displayName"):
        raise refuse("Field displayName must be set.")
    layouts = [key for key in LAYOUTS if key in body]
    if len(layouts) != 1:
        raise refuse("A dashboard must have exactly one layout.")
    for label, value in (body.get("labels") or {}).items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", label) or len(value) > 63:
            raise refuse(f'Field labels had an invalid key or value: "{label}".')
    for number, each in enumerate(body.get("dashboardFilters") or []):
        if each.get(
            "filterType", "FILTER_TYPE_UNSPECIFIED"
        ) == "FILTER_TYPE_UNSPECIFIED" or not each.get("labelKey"):
            raise refuse(f"Field dashboardFilters[{number}] must have a filterType and a labelKey.")
    if layouts[0] != "mosaicLayout":
        raise ApiError(
            501, "notImplemented", f"The embedded cloud's dashboards have no {layouts[0]}"
        )
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
        check_widget(tile.get("widget") or {}, f"{where}.widget")


def check_widget(widget: dict, where: str) -> None:
    content = [key for key in widget if key not in ("title", "id", "visibilityCondition")]
    if len(content) != 1:
        raise refuse(f"Field {where} must have exactly one content.")
    if content[0] != "xyChart":
        raise ApiError(
            501, "notImplemented", f"The embedded cloud's dashboards have no {content[0]}"
        )
    if not widget["xyChart"].get("dataSets"):
        raise refuse(f"Field {where}.xyChart.dataSets must not be empty.")
    for number, each in enumerate(widget["xyChart"]["dataSets"]):
        at = f"{where}.xyChart.dataSets[{number}].timeSeriesQuery"
        query = each.get("timeSeriesQuery") or {}
        kinds = [key for key in QUERIES if key in query]
        if len(kinds) != 1:
            raise refuse(f"Field {at} must have exactly one query.")
        if kinds[0] != "timeSeriesFilter":
            raise ApiError(
                501, "notImplemented", f"The embedded cloud's dashboards have no {kinds[0]}"
            )
        asked = query["timeSeriesFilter"]
        types = re.findall(r'metric\.type\s*=\s*"[^"]+"', asked.get("filter", ""))
        if len(types) != 1:
            raise refuse(
                f"Field {at}.timeSeriesFilter.filter had an invalid value: it must name one metric.type."
            )
        check_aggregation(asked.get("aggregation") or {}, f"{at}.timeSeriesFilter.aggregation")


def check_aggregation(found: dict, where: str) -> None:
    period, aligner = found.get("alignmentPeriod", ""), found.get("perSeriesAligner", "ALIGN_NONE")
    reducer = found.get("crossSeriesReducer", "REDUCE_NONE")
    if aligner != "ALIGN_NONE" and (not re.fullmatch(r"[0-9]+s", period) or int(period[:-1]) < 60):
        raise refuse(f"Field {where}.alignmentPeriod must be at least 60 seconds.")
    if reducer != "REDUCE_NONE" and aligner == "ALIGN_NONE":
        raise refuse(f"Field {where}.perSeriesAligner must be set with a crossSeriesReducer.")
    if found.get("groupByFields") and reducer == "REDUCE_NONE":
        raise refuse(f"Field {where}.groupByFields must not be set without a crossSeriesReducer.")


def paged(call: Call, kind: str, rows: list[dict], size: int) -> dict:
    return resources(
        {key: call.params.get(key) for key in ("pageSize", "pageToken")}, kind, rows, size
    )


# --- time series


async def write(cloud: Cloud, call: Call, name: str) -> dict:
    """Write a point to each of several series: all or none."""
    project, given = name.split("/")[1], (call.body or {}).get("timeSeries") or []
    if not 1 <= len(given) <= MOST_SERIES:
        raise refuse(
            f"Field timeSeries had an invalid value: 1 to {MOST_SERIES} time series can be written at once."
        )
    seen, rows = set(), []
    for number, each in enumerate(given):
        row = check_series(cloud, project, each, f"timeSeries[{number}]")
        message = json.dumps([row["metric"], row["resource"]], sort_keys=True)
        if message in seen:
            raise refuse(
                f"Field timeSeries[{number}] had an invalid value: Duplicate TimeSeries encountered. Only one point "
                "can be written per TimeSeries per request."
            )
        seen.add(message)
        rows.append(row)
    for row in rows:
        full = f"{project}/{row['metric']['type']}"
        if full not in cloud.monitoring.metrics:
            labels = [{"key": label} for label in row["metric"].get("labels", {})]
            about = {
                "type": row["metric"]["type"],
                "metricKind": row["metricKind"],
                "valueType": row["valueType"],
            }
            cloud.monitoring.add_metric(full, {**about, "labels": labels})
    cloud.monitoring.add(project, rows)
    return {}


def check_series(cloud: Cloud, project: str, given: dict, where: str) -> dict:
    """A series of a request as it is kept; raises Google's refusal."""
    metric, resource = given.get("metric") or {}, given.get("resource") or {}
    kind, labels = metric.get("type", ""), metric.get("labels") or {}
    if not kind.startswith(OWN) or not METRIC.fullmatch(kind) or len(kind) > 200:
        raise refuse(
            f'Field {where}.metric.type had an invalid value of "{kind}": The metric type must be a URL-formatted '
            "string with a domain and non-empty path, and one that may be written."
        )
    if len(labels) > MOST_LABELS or not all(
        re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]{0,99}", label) for label in labels
    ):
        raise refuse(f"Field {where}.metric.labels had an invalid value.")
    wanted = RESOURCES.get(resource.get("type", ""))
    if wanted is None:
        raise refuse(
            f'Field {where}.resource.type had an invalid value of "{resource.get("type", "")}": unrecognized or '
            "unsupported for custom metrics."
        )
    there = {
        **({"project_id": project} if "project_id" in wanted else {}),
        **(resource.get("labels") or {}),
    }
    if set(there) != wanted:
        raise refuse(
            f"Field {where}.resource.labels had an invalid value: {resource['type']} has {sorted(wanted)}."
        )
    if cloud.project_named(there["project_id"]) != project:
        raise refuse(
            f'Field {where}.resource.labels["project_id"] had an invalid value: another project.'
        )
    points = given.get("points") or []
    if len(points) != 1:
        raise refuse(
            f"Field {where}.points had an invalid value: exactly one point can be written."
        )
    values = [key for key in VALUES if key in (points[0].get("value") or {})]
    if len(values) != 1:
        raise refuse(f"Field {where}.points[0].value must have exactly one value.")
    about = {"metricKind": given.get("metricKind", "GAUGE"), "valueType": VALUES[values[0]]}
    check_kind(cloud, f"{project}/{kind}", about, given, where)
    row = {
        "metric": {"type": kind, **({"labels": labels} if labels else {})},
        "resource": {"type": resource["type"], "labels": there},
    }
    point = check_point(points[0], about["metricKind"], cloud.monitoring.last(project, row), where)
    return {**row, **about, "points": [point]}


def check_kind(cloud: Cloud, full: str, about: dict, given: dict, where: str) -> None:
    if about["metricKind"] not in ("GAUGE", "CUMULATIVE"):
        raise refuse(f"Field {where}.metricKind had an invalid value of {about['metricKind']}.")
    if given.get("valueType", about["valueType"]) != about["valueType"]:
        raise refuse(f"Field {where}.valueType does not fit the point's value.")
    known = cloud.monitoring.metrics.get(full)
    for key, value in about.items():
        if known and known[key] != value:
            raise refuse(
                f"Field {where}.{key} had an invalid value of {value}: the metric's descriptor has {known[key]}."
            )


def check_point(point: dict, kind: str, last: dict | None, where: str) -> dict:
    interval = point.get("interval") or {}
    end, start = interval.get("endTime"), interval.get("startTime")
    if not end:
        raise refuse(f"Field {where}.points[0].interval.endTime must be set.")
    moment, now = seconds(end), time.time()
    if moment < now - OLDEST or moment > now + NEWEST:
        raise refuse(
            f'Field {where}.points[0].interval.endTime had an invalid value of "{end}": Data points cannot be written '
            "more than 25h in the past, nor more than 5 minutes in the future."
        )
    if kind == "GAUGE" and start and seconds(start) != moment:
        raise refuse(
            f"Field {where}.points[0].interval.startTime must be the end time, or not be set, for a GAUGE."
        )
    if last and moment <= seconds(last["interval"]["endTime"]):
        raise refuse(
            "Points must be written in order. One or more of the points specified had an older end time than the most "
            f"recent point: {where}"
        )
    if last and moment - seconds(last["interval"]["endTime"]) < PERIOD:
        raise refuse(
            "One or more points were written more frequently than the maximum sampling period configured for the "
            f"metric: {where}"
        )
    return {"interval": {"startTime": start or end, "endTime": end}, "value": point["value"]}


def seconds(timestamp: str) -> float:
    try:
        return (
            datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
            .astimezone(timezone.utc)
            .timestamp()
        )
    except ValueError:
        raise refuse(f'Invalid value for a time: "{timestamp}"') from None


async def read(cloud: Cloud, call: Call, name: str) -> dict:
    """The series of one metric, their newest points first."""
    project, asked = name.split("/")[1], ONLY_TYPE.fullmatch(call.params.get("filter") or "")
    if not call.params.get("filter") or not call.params.get("interval.endTime"):
        raise refuse("Fields filter and interval.endTime must be set.")
    if asked is None or any(key.startswith("aggregation.") for key in call.params):
        raise ApiError(
            501,
            "notImplemented",
            'The embedded cloud filters by metric.type = "…" alone, and aggregates nothing',
        )
    end = seconds(call.params["interval.endTime"])
    start = (
        seconds(call.params["interval.startTime"]) if call.params.get("interval.startTime") else end
    )
    rows = []
    for each in cloud.monitoring.series.values():
        if each["project"] == project and each["metric"]["type"] == asked[1]:
            points = [
                p for p in each["points"][::-1] if start <= seconds(p["interval"]["endTime"]) <= end
            ]
            about = {key: value for key, value in each.items() if key not in ("project", "points")}
            rows += [{**about, "points": points}] if points else []
    return paged(call, "timeSeries", rows, 100_000)
