"""`berg dashboard`: a dashboard of Cloud Monitoring, with what Google itself measures of machines.

A chart has a line for each machine, and a filter for the job. Not covered: memory, GPUs and TPUs, which
Google measures by an agent alone (see `berg top`), alerts, and machines in clusters.
"""

from typing import Any

import click

from berg import BergError, google, terminal
from berg.config import Config
from berg.google import GoogleError

TITLE, LABEL = "Berg training", "berg"
COLUMNS, WIDTH, HEIGHT = 48, 24, 14  # of the dashboard and of a chart, in its units
CHARTS = {  # title -> metrics, each with what its lines are called after the machine's name
    "CPU": {"cpu/utilization": ""},
    "Network": {"network/received_bytes_count": " in", "network/sent_bytes_count": " out"},
    "Disk": {"disk/read_bytes_count": " read", "disk/write_bytes_count": " written"},
}


def body() -> dict[str, Any]:
    """The dashboard as Monitoring takes it."""
    tiles = [
        {
            "xPos": WIDTH * (number % 2),
            "yPos": HEIGHT * (number // 2),
            "width": WIDTH,
            "height": HEIGHT,
            "widget": {"title": title, "xyChart": {"dataSets": [*map(line, *zip(*rows.items()))]}},
        }
        for number, (title, rows) in enumerate(CHARTS.items())
    ]
    # Without a variable, which only charts that name it would use: so it is for every chart.
    job = {"filterType": "USER_METADATA_LABEL", "labelKey": "berg-job", "stringValue": ""}
    return {
        "displayName": TITLE,
        "labels": {LABEL: ""},
        "dashboardFilters": [job],
        "mosaicLayout": {"columns": COLUMNS, "tiles": tiles},
    }


def line(metric: str, name: str) -> dict[str, Any]:
    """The values of a metric for each of Berg's machines."""
    is_count = metric.endswith("_count")
    aggregation = {
        "alignmentPeriod": "60s",
        "perSeriesAligner": "ALIGN_RATE" if is_count else "ALIGN_MEAN",
        "crossSeriesReducer": "REDUCE_SUM" if is_count else "REDUCE_MEAN",
        "groupByFields": ['metadata.user_labels."berg-job"', "metadata.system_labels.name"],
    }
    machines = (
        f'metric.type="compute.googleapis.com/instance/{metric}" AND '
        'resource.type="gce_instance" AND metadata.user_labels."berg"="1"'
    )
    return {
        "plotType": "LINE",
        "minAlignmentPeriod": "60s",
        "legendTemplate": "${metadata.system_labels.name}" + name,
        "timeSeriesQuery": {"timeSeriesFilter": {"filter": machines, "aggregation": aggregation}},
    }


def ask(config: Config, method: str, path: str, content: Any = None) -> dict[str, Any]:
    """The answer of Cloud Monitoring."""
    base = (
        f"{config.endpoint}/monitoring" if config.endpoint else "https://monitoring.googleapis.com"
    )
    try:
        return google.call(config, method, f"{base}/v1/{path}", content, requestId=None)
    except GoogleError as error:
        if error.status != 403:
            raise
        raise BergError(
            f"Google refused: {error.message}. Ask an owner of {config.project} for "
            "roles/monitoring.dashboardEditor, and for: gcloud services enable monitoring.googleapis.com"
        ) from None


@click.command()
@click.option("--delete", "is_deleted", is_flag=True, help="Delete it instead, after asking.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def dashboard(is_deleted: bool, yes: bool) -> None:
    """Create or update a dashboard of machines in Cloud Monitoring, and print its address.

    \b
    berg dashboard
    berg dashboard --delete
    """
    config = Config.load()
    place = f"projects/{config.project}/dashboards"
    rows = ask(config, "GET", f"{place}?pageSize=1000").get("dashboards", [])
    ours = [row for row in rows if row["displayName"] == TITLE and LABEL in row.get("labels", {})]
    if is_deleted:
        if not ours:
            raise BergError(
                f"{config.project} has no dashboard of Berg's. Create it: berg dashboard"
            )
        if not terminal.confirm(f"Delete the dashboard {TITLE} of {config.project}?", yes, "-y"):
            raise BergError("nothing was changed")
        ask(config, "DELETE", ours[0]["name"])
        return terminal.say("Deleted")
    if ours:
        made = ask(config, "PATCH", ours[0]["name"], {**body(), "etag": ours[0]["etag"]})
    else:
        made = ask(config, "POST", place, body())
    terminal.say(f"{'Updated' if ours else 'Created'} {TITLE}")
    console = "https://console.cloud.google.com/monitoring/dashboards/builder"
    terminal.show(f"{console}/{google.last_part(made['name'])}?project={config.project}")
    return None
