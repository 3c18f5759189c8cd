"""How busy the machines of jobs are and were: the samples that machine/usage.py left in the bucket,
and the dashboard of Cloud Monitoring.

A sample is a dict with `time` (Unix time), the numbers of OF_MACHINES, and `gpus` and `tpus`: lists
of dicts with `index` and the numbers of OF_ACCELERATORS. An unknown number is None or missing.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from berg import BergError, job
from berg.config import Config
from berg.google import api
from berg.google.events import Series, is_number
from berg.google.fetch import side_by_side
from berg.google.storage import Bucket, Listed
from berg.laptop import jobs

END = 24 << 10  # bytes read first from an object's end: half an hour without accelerators
LARGEST = 64 << 20  # bytes of an object that are read at most: weeks of samples of eight GPUs
KINDS = {"gpus": "gpu", "tpus": "tpu"}
# Number -> title and unit of its chart, and how many of the unit it is.
OF_MACHINES = {
    "cpu_percent": ("CPU", "%", 1),
    "cpu_waiting_percent": ("CPU, waiting for disks", "%", 1),
    "memory_percent": ("Memory, used", "%", 1),
    "memory_bytes": ("Memory", "B", 1),
    "disk_percent": ("Disk, used", "%", 1),
    "read_per_second": ("Disk, read", "B/s", 1),
    "written_per_second": ("Disk, written", "B/s", 1),
    "received_per_second": ("Network, received", "B/s", 1),
    "sent_per_second": ("Network, sent", "B/s", 1),
}
OF_ACCELERATORS = {
    "percent": ("GPUs and TPUs", "%", 1),
    "memory_mb": ("Memory of GPUs and TPUs", "B", 1 << 20),
    "memory_total_mb": ("Total memory of GPUs and TPUs", "B", 1 << 20),
    "watt": ("Power of GPUs and TPUs", "W", 1),
    "celsius": ("Temperature of GPUs and TPUs", "°C", 1),
}
MOST = 1e15  # of a number in a sample
ACCELERATORS = 64  # of a machine that are read


def read(
    bucket: Bucket, name: str, seconds: float | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the samples of each machine of a job by time: all, or the job's last `seconds`."""
    found = [
        (machine, blob, blob.updated.timestamp())
        for machine, blobs in objects(bucket, name).items()
        for blob in blobs
        if blob.updated
    ]
    since = 0.0
    if seconds:
        since = max((updated for _, _, updated in found), default=0.0) - seconds
    wanted = [(machine, blob) for machine, blob, updated in found if updated >= since]
    read = side_by_side(lambda each: (each[0], samples_since(bucket, each[1], since)), wanted)
    samples: dict[str, list[dict[str, Any]]] = {}
    for machine, more in read:
        samples.setdefault(machine, []).extend(more)
    return samples


def objects(bucket: Bucket, name: str) -> dict[str, list[Listed]]:
    """Return the objects with a job's samples by machine, the earliest first."""
    found: dict[str, list[Listed]] = {}
    for blob in bucket.list(job.log_prefix(name), "name,size,updated,crc32c", f"**{job.USAGE}"):
        found.setdefault(jobs.machine_of(blob.name), []).append(blob)
    return {machine: sorted(blobs, key=lambda blob: blob.name) for machine, blobs in found.items()}


def samples_since(bucket: Bucket, blob: Listed, since: float) -> list[dict[str, Any]]:
    """Return the samples of an object from a time on, reading no more of its end than needed."""
    size = END if since else LARGEST
    while True:
        samples = list(parse(bucket.last_lines(blob.name, blob.size, size)))
        is_enough = size >= min(blob.size, LARGEST) or (samples and samples[0]["time"] < since)
        if is_enough:
            return [sample for sample in samples if sample["time"] >= since]
        size *= 4


def parse(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the samples in a file; damaged lines, incomplete ones and unknown keys are skipped."""
    for line in data.splitlines():
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(sample, dict):
            continue
        found = select(sample, ["time", *OF_MACHINES])
        if found.get("time") is None:
            continue
        for kind in KINDS:
            if isinstance(listed := sample.get(kind), list):
                some = [each for each in listed[:ACCELERATORS] if isinstance(each, dict)]
                found[kind] = [select(each, ["index", *OF_ACCELERATORS]) for each in some]
        yield found


def select(values: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """Return the known keys whose value is None or a number that a machine may have measured."""
    found = {key: values[key] for key in known if key in values}
    return {
        key: value
        for key, value in found.items()
        if value is None or (is_number(value) and 0 <= value <= MOST)
    }


def accelerators(sample: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the GPUs and TPUs of a sample by name: gpu0, gpu1, …"""
    return {
        f"{name}{int(each['index'])}": each
        for kind, name in KINDS.items()
        for each in sample.get(kind) or []
        if each.get("index") is not None
    }


def numbers(sample: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield the numbers of a sample: the accelerator ("" for the machine), the key, the value."""
    parts = {"": {key: sample[key] for key in OF_MACHINES if key in sample}}
    for name, values in (parts | accelerators(sample)).items():
        for key, value in values.items():
            if key != "index" and value is not None:
                yield name, key, float(value)


def series(samples: list[dict[str, Any]]) -> Series:
    """Return samples as series `berg/gpu0_percent`, …; a step is a second since the first one."""
    found: Series = {}
    for sample in samples:
        step = max(0, round(sample["time"] - samples[0]["time"]))
        for name, key, value in numbers(sample):
            tag = f"berg/{name}_{key}" if name else f"berg/{key}"
            found.setdefault(tag, []).append((step, value, sample["time"]))
    return found


def mean(sample: dict[str, Any], key: str = "percent") -> float | None:
    """Return the mean of a number over a sample's accelerators; None where it is unknown."""
    values = [each[key] for each in accelerators(sample).values() if each.get(key) is not None]
    return sum(values) / len(values) if values else None


# --- the dashboard "Berg training" of Cloud Monitoring
# It shows what Google measures of every machine without an agent, and metrics of berg's own, which
# machines write once a minute after `berg init --monitoring`. Not covered: alerts.

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


def dashboard_url(config: Config, path: str) -> str:
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


def find_dashboard(config: Config) -> dict[str, Any] | None:
    """Return the dashboard that berg made in this project."""
    url = dashboard_url(config, f"projects/{config.project}/dashboards")
    with explained(config):
        for each in api.items(config, url, "dashboards", pageSize=1000):
            if each["displayName"] == TITLE and LABEL in each.get("labels", {}):
                return each
    return None


def create_dashboard(config: Config) -> tuple[dict[str, Any], bool]:
    """Create the dashboard, or update the one there is; return it, and whether it is new."""
    there, wanted = find_dashboard(config), dashboard()
    try:
        with explained(config):
            if there is None:
                url = dashboard_url(config, f"projects/{config.project}/dashboards")
                return api.call(config, "POST", url, wanted), True
            url = dashboard_url(config, there["name"])
            return api.call(config, "PATCH", url, {**wanted, "etag": there["etag"]}), False
    except api.Conflict:
        raise BergError(
            "another user is changing the dashboard. Try again: berg dashboard"
        ) from None


def delete_dashboard(config: Config, there: dict[str, Any]) -> None:
    with explained(config), contextlib.suppress(api.NotFound):  # it may be deleted already
        api.call(config, "DELETE", dashboard_url(config, there["name"]))


def dashboard_address(config: Config, there: dict[str, Any]) -> str:
    """Return where a dashboard can be seen; the embedded cloud has no console."""
    name = api.last_part(there["name"])
    console = "https://console.cloud.google.com/monitoring/dashboards/builder"
    return f"{console}/{name}?project={config.project}"
