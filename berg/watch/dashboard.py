"""The dashboard "Berg training" of Cloud Monitoring.

It shows what Google measures of every machine without an agent, and metrics of Berg's own, which
machines write once a minute after `berg init --monitoring`. Not covered: alerts.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from berg import BergError, job
from berg.config import Config
from berg.google import api

TITLE, LABEL = "Berg training", "berg"
GOOGLE = "compute.googleapis.com/instance/"
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


def url_of(config: Config, path: str) -> str:
    return f"{config.service_url('monitoring')}/v1/{path}"


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


def body() -> dict[str, Any]:
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
                "xyChart": {"dataSets": [chart_line(*each) for each in metrics.items()]},
            },
        }
        for number, (title, metrics) in enumerate(CHARTS.items())
    ]
    # It has no variable, which only charts that name it would use: so it is for every chart.
    of_job = {"filterType": "USER_METADATA_LABEL", "labelKey": "berg-job", "stringValue": ""}
    return {
        "displayName": TITLE,
        "labels": {LABEL: ""},
        "dashboardFilters": [of_job],
        "mosaicLayout": {"columns": COLUMNS, "tiles": tiles},
    }


def chart_line(metric: str, legend: str) -> dict[str, Any]:
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
        f'metric.type="{GOOGLE if "/" in metric else job.METRICS}{metric}" AND '
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
    url = url_of(config, f"projects/{config.project}/dashboards")
    with explained(config):
        for each in api.items(config, url, "dashboards", pageSize=1000):
            if each["displayName"] == TITLE and LABEL in each.get("labels", {}):
                return each
    return None


def create(config: Config) -> tuple[dict[str, Any], bool]:
    """Create the dashboard, or update the one there is; return it, and whether it is new."""
    there, wanted = find(config), body()
    try:
        with explained(config):
            if there is None:
                url = url_of(config, f"projects/{config.project}/dashboards")
                return api.call(config, "POST", url, wanted), True
            url = url_of(config, there["name"])
            return api.call(config, "PATCH", url, {**wanted, "etag": there["etag"]}), False
    except api.Conflict:
        raise BergError(
            "another user is changing the dashboard. Try again: berg dashboard"
        ) from None


def delete(config: Config, there: dict[str, Any]) -> None:
    with explained(config), contextlib.suppress(api.NotFound):  # it may be deleted already
        api.call(config, "DELETE", url_of(config, there["name"]))


def address(config: Config, there: dict[str, Any]) -> str:
    """Return where a dashboard can be seen; the embedded cloud has no console."""
    name = api.last_part(there["name"])
    console = "https://console.cloud.google.com/monitoring/dashboards/builder"
    return f"{console}/{name}?project={config.project}"
