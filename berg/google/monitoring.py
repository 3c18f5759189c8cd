"""Cloud Monitoring: the dashboard "Berg training", and what machines write for it.

The dashboard shows what Google measures of every machine without an agent, and metrics of berg's
own, which machines write once a minute after `berg init --monitoring`. Not covered: alerts.
"""

import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from berg import BergError, job
from berg.config import Config
from berg.google import api

TITLE, LABEL = "Berg training", "berg"
GOOGLE, OWN = "compute.googleapis.com/instance/", "custom.googleapis.com/berg/"
ROLE = "roles/monitoring.metricWriter"
COLUMNS, WIDTH, HEIGHT = 48, 24, 14  # of the dashboard and of a chart, in its units
MACHINE, ACCELERATOR = "${metadata.system_labels.name}", " ${metric.labels.accelerator}"
# Title of a chart -> metrics, each with what is shown after the machine's name.
CHARTS = {
    "CPU": {"cpu/utilization": ""},
    "Memory (berg init --monitoring)": {"memory_percent": ""},
    "GPU or TPU (berg init --monitoring)": {"accelerator_percent": ACCELERATOR},
    "GPU or TPU memory (berg init --monitoring)": {"accelerator_memory_percent": ACCELERATOR},
    "Network": {"network/received_bytes_count": " in", "network/sent_bytes_count": " out"},
    "Disk": {"disk/read_bytes_count": " read", "disk/write_bytes_count": " written"},
}


def url(config: Config, version: str, path: str) -> str:
    return f"{config.service_url('monitoring')}/{version}/{path}"


def dashboards_url(config: Config) -> str:
    return url(config, "v1", f"projects/{config.project}/dashboards")


# --- the dashboard


@contextlib.contextmanager
def explained(config: Config) -> Iterator[None]:
    """Raise BergError with the next step for what the user may not do."""
    try:
        yield
    except api.Forbidden as error:
        if why := api.refused_to_all(config, error, "Cloud Monitoring", "monitoring"):
            raise BergError(why) from None
        role = f"roles/monitoring.dashboardEditor on {config.project}"
        raise BergError(f"you lack {role} ({api.words(error)})") from None


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Monitoring takes it: each chart has a line for each machine, and can
    be limited to a job.
    """
    tiles = [
        {
            "xPos": WIDTH * (number % 2),
            "yPos": HEIGHT * (number // 2),
            "width": WIDTH,
            "height": HEIGHT,
            "widget": {
                "title": title,
                "xyChart": {"dataSets": [line(*each) for each in metrics.items()]},
            },
        }
        for number, (title, metrics) in enumerate(CHARTS.items())
    ]
    # It has no variable, which only charts that name it would use: so it is for every chart.
    job = {"filterType": "USER_METADATA_LABEL", "labelKey": "berg-job", "stringValue": ""}
    return {
        "displayName": TITLE,
        "labels": {LABEL: ""},
        "dashboardFilters": [job],
        "mosaicLayout": {"columns": COLUMNS, "tiles": tiles},
    }


def line(metric: str, legend: str) -> dict[str, Any]:
    """Return the values of a metric for each machine of berg's."""
    is_count = metric.endswith("_count")
    groups = ['metadata.user_labels."berg-job"', "metadata.system_labels.name"]
    if legend == ACCELERATOR:
        groups.append('metric.label."accelerator"')
    aggregation = {
        "alignmentPeriod": "60s",
        "perSeriesAligner": "ALIGN_RATE" if is_count else "ALIGN_MEAN",
        "crossSeriesReducer": "REDUCE_SUM" if is_count else "REDUCE_MEAN",
        "groupByFields": groups,
    }
    machines = (
        f'metric.type="{GOOGLE if "/" in metric else OWN}{metric}" AND '
        'resource.type="gce_instance" AND metadata.user_labels."berg"="1"'
    )
    query = {"timeSeriesFilter": {"filter": machines, "aggregation": aggregation}}
    return {
        "plotType": "LINE",
        "minAlignmentPeriod": "60s",
        "legendTemplate": MACHINE + legend,
        "timeSeriesQuery": query,
    }


def find(config: Config) -> dict[str, Any] | None:
    """Return the dashboard that berg made in this project."""
    with explained(config):
        for each in api.items(config, dashboards_url(config), "dashboards", pageSize=1000):
            if each["displayName"] == TITLE and LABEL in each.get("labels", {}):
                return each
    return None


def create(config: Config) -> tuple[dict[str, Any], bool]:
    """Create the dashboard, or update the one there is; return it, and whether it is new."""
    there, wanted = find(config), dashboard()
    try:
        with explained(config):
            if there is None:
                return api.call(config, "POST", dashboards_url(config), wanted), True
            path = url(config, "v1", there["name"])
            return api.call(config, "PATCH", path, {**wanted, "etag": there["etag"]}), False
    except api.Conflict:
        raise BergError(
            "another user is changing the dashboard. Try again: berg dashboard"
        ) from None


def delete(config: Config, there: dict[str, Any]) -> None:
    with explained(config), contextlib.suppress(api.NotFound):  # it may be deleted already
        api.call(config, "DELETE", url(config, "v1", there["name"]))


def address(config: Config, there: dict[str, Any]) -> str:
    """Return where a dashboard can be seen; the embedded cloud has no console."""
    name = api.last_part(there["name"])
    console = "https://console.cloud.google.com/monitoring/dashboards/builder"
    return f"{console}/{name}?project={config.project}"


# --- what machines write


def points(
    config: Config, zone: str, instance: str, sample: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a sample of machine/usage.py as time series with a point each."""
    labels = {"project_id": config.project, "zone": zone, "instance_id": instance}
    when = datetime.fromtimestamp(sample.get("time", job.clock()), timezone.utc)
    interval = {"endTime": f"{when:%Y-%m-%dT%H:%M:%SZ}"}

    def one(name: str, value: float, **labels_of_metric: str) -> dict[str, Any]:
        metric = {"labels": labels_of_metric} if labels_of_metric else {}
        return {
            "metric": {"type": OWN + name, **metric},
            "resource": {"type": "gce_instance", "labels": labels},
            "metricKind": "GAUGE",
            "valueType": "DOUBLE",
            "points": [{"interval": interval, "value": {"doubleValue": float(value)}}],
        }

    found = []
    if sample.get("memory_percent") is not None:
        found.append(one("memory_percent", sample["memory_percent"]))
    for accelerator in [*(sample.get("gpus") or []), *(sample.get("tpus") or [])]:
        which = str(int(accelerator.get("index") or 0))
        if accelerator.get("percent") is not None:
            found.append(one("accelerator_percent", accelerator["percent"], accelerator=which))
        used, total = accelerator.get("memory_mb"), accelerator.get("memory_total_mb")
        if used is not None and total:
            found.append(one("accelerator_memory_percent", 100 * used / total, accelerator=which))
    return found


def write(config: Config, series: Iterable[dict[str, Any]]) -> None:
    """Write points, once: a second try would be refused as out of order, and one that is lost does
    no harm.
    """
    address = url(config, "v3", f"projects/{config.project}/timeSeries")
    api.send(config, "POST", address, {"timeSeries": list(series)})
