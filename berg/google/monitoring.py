"""Cloud Monitoring: the dashboard "Berg training", and what machines write for it.

The dashboard shows what Google measures of every machine without an agent, and metrics of berg's
own, which machines write once a minute where `berg init --monitoring` said so. Not covered: alerts.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api

TITLE, LABEL = "Berg training", "berg"
GOOGLE, OWN = "compute.googleapis.com/instance/", "custom.googleapis.com/berg/"
ROLE = "roles/monitoring.metricWriter"
COLUMNS, WIDTH, HEIGHT = 48, 24, 14  # of the dashboard and of a chart, in its units
MACHINE, ACCELERATOR = "${metadata.system_labels.name}", " ${metric.labels.accelerator}"
# Title of a chart -> metrics, each with what is shown beside the machine's name.
CHARTS = {
    "CPU": [(f"{GOOGLE}cpu/utilization", "")],
    "Memory (berg init --monitoring)": [(f"{OWN}memory_percent", "")],
    "GPU or TPU (berg init --monitoring)": [(f"{OWN}accelerator_percent", ACCELERATOR)],
    "GPU or TPU memory (berg init --monitoring)": [
        (f"{OWN}accelerator_memory_percent", ACCELERATOR)
    ],
    "Network": [
        (f"{GOOGLE}network/received_bytes_count", " in"),
        (f"{GOOGLE}network/sent_bytes_count", " out"),
    ],
    "Disk": [
        (f"{GOOGLE}disk/read_bytes_count", " read"),
        (f"{GOOGLE}disk/write_bytes_count", " written"),
    ],
}


def url(config: Config, version: str, path: str) -> str:
    return f"{config.service_url('monitoring')}/{version}/{path}"


# --- the dashboard


@contextlib.contextmanager
def explained(config: Config) -> Iterator[None]:
    """What a person may not do, in a sentence."""
    try:
        yield
    except api.Forbidden as error:
        if why := api.refused_to_all(config, error, "Cloud Monitoring", "monitoring"):
            raise BergError(why) from None
        role = f"roles/monitoring.dashboardEditor on {config.project}"
        raise BergError(f"you lack {role} ({api.words(error)})") from None


def dashboard() -> dict[str, Any]:
    """The dashboard as Monitoring takes it: each chart has a line for each machine, and can be
    limited to a job.
    """
    tiles = [
        {
            "xPos": WIDTH * (number % 2),
            "yPos": HEIGHT * (number // 2),
            "width": WIDTH,
            "height": HEIGHT,
            "widget": {"title": title, "xyChart": {"dataSets": [line(*each) for each in metrics]}},
        }
        for number, (title, metrics) in enumerate(CHARTS.items())
    ]
    # Without a variable, which only charts that name it would hear, it is every chart's.
    job = {"filterType": "USER_METADATA_LABEL", "labelKey": "berg-job", "stringValue": ""}
    layout = {"columns": COLUMNS, "tiles": tiles}
    return {
        "displayName": TITLE,
        "labels": {LABEL: ""},
        "dashboardFilters": [job],
        "mosaicLayout": layout,
    }


def line(metric: str, legend: str) -> dict[str, Any]:
    """The values of a metric for each machine of berg's."""
    is_count = metric.endswith("_count")
    groups = ['metadata.user_labels."berg-job"', "metadata.system_labels.name"]
    aggregation = {
        "alignmentPeriod": "60s",
        "perSeriesAligner": "ALIGN_RATE" if is_count else "ALIGN_MEAN",
        "crossSeriesReducer": "REDUCE_SUM" if is_count else "REDUCE_MEAN",
        "groupByFields": [
            *groups,
            *(['metric.label."accelerator"'] if legend == ACCELERATOR else []),
        ],
    }
    machines = (
        f'metric.type="{metric}" AND resource.type="gce_instance" AND '
        'metadata.user_labels."berg"="1"'
    )
    query = {"timeSeriesFilter": {"filter": machines, "aggregation": aggregation}}
    return {
        "plotType": "LINE",
        "minAlignmentPeriod": "60s",
        "legendTemplate": MACHINE + legend,
        "timeSeriesQuery": query,
    }


def find(config: Config) -> dict[str, Any] | None:
    """The dashboard that berg made in this project."""
    with explained(config):
        pages = list(
            api.pages(
                config, url(config, "v1", f"projects/{config.project}/dashboards"), pageSize=1000
            )
        )
    found = [each for page in pages for each in page.get("dashboards", [])]
    return next(
        (
            each
            for each in found
            if each["displayName"] == TITLE and LABEL in each.get("labels", {})
        ),
        None,
    )


def create(config: Config) -> tuple[dict[str, Any], bool]:
    """Make the dashboard, or update the one there is; return it, and whether it is new."""
    there, wanted = find(config), dashboard()
    try:
        with explained(config):
            if there is None:
                return api.call(
                    config,
                    "POST",
                    url(config, "v1", f"projects/{config.project}/dashboards"),
                    wanted,
                ), True
            return api.call(
                config, "PATCH", url(config, "v1", there["name"]), {**wanted, "etag": there["etag"]}
            ), False
    except api.Conflict:
        raise BergError(
            "somebody changes the dashboard just now. Try again: berg dashboard"
        ) from None


def delete(config: Config, there: dict[str, Any]) -> None:

    # somebody else did, or an answer was lost
    with (
        explained(config),
        contextlib.suppress(api.NotFound),
    ):
        api.call(config, "DELETE", url(config, "v1", there["name"]))


def address(config: Config, there: dict[str, Any]) -> str:
    """Where people see a dashboard; the embedded cloud has no console."""
    name = api.last_part(there["name"])
    console = "https://console.cloud.google.com/monitoring/dashboards/builder"
    return f"{console}/{name}?project={config.project}"


# --- what machines write


def points(
    config: Config, zone: str, instance: str, sample: dict[str, Any]
) -> list[dict[str, Any]]:
    """A sample of machine/usage.py as time series with a point each."""
    labels = {"project_id": config.project, "zone": zone, "instance_id": instance}
    when = datetime.fromtimestamp(sample.get("time", time.time()), timezone.utc).isoformat(
        timespec="seconds"
    )
    interval = {"endTime": when.replace("+00:00", "Z")}

    def one(name: str, value: float, **told: str) -> dict[str, Any]:
        return {
            "metric": {"type": OWN + name, **({"labels": told} if told else {})},
            "resource": {"type": "gce_instance", "labels": labels},
            "metricKind": "GAUGE",
            "valueType": "DOUBLE",
            "points": [{"interval": interval, "value": {"doubleValue": float(value)}}],
        }

    found = (
        [one("memory_percent", sample["memory_percent"])]
        if sample.get("memory_percent") is not None
        else []
    )
    for accelerator in [*(sample.get("gpus") or []), *(sample.get("tpus") or [])]:
        which = str(int(accelerator.get("index") or 0))
        if accelerator.get("percent") is not None:
            found.append(one("accelerator_percent", accelerator["percent"], accelerator=which))
        used, total = accelerator.get("memory_mb"), accelerator.get("memory_total_mb")
        if used is not None and total:
            found.append(one("accelerator_memory_percent", 100 * used / total, accelerator=which))
    return found


def write(config: Config, series: Iterable[dict[str, Any]]) -> None:
    """Write points, once: one that is lost is not missed, and a second try would be refused as out
    of order.
    """
    address = url(config, "v3", f"projects/{config.project}/timeSeries")
    api.send(config, "POST", address, {"timeSeries": list(series)})
