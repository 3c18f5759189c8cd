"""What the page draws: the JSON of `berg list`, `berg show` and `berg sweep`, and what only it shows."""

import functools
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from berg import clients, jobs, logs, metrics, rows, table, usage
from berg import job as records
from berg.bucket import Bucket
from berg.config import Config

HERE = Path(__file__).parent
ASSETS = ("index.html", "page.css", "page.js", "charts.js")
MOST = 500  # jobs that have ended
LOG = 256 << 10  # bytes at the end of each log that the page begins with
CHARTS, POINTS = 100, 600  # of a job; of a line, longer ones are thinned out
LINES = 32  # machines of a job whose utilization is drawn
# Variables whose values are not shown. Secrets belong to --secret, but not every job uses it.
HIDDEN = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|DSN|WEBHOOK", re.I)


@dataclass(frozen=True)
class Library:
    """Plotly's script, and the name under which the page loads it."""

    name: str
    file: Path


@functools.cache
def library() -> Library | None:
    """Plotly's script in its Python package; None where that is not installed."""
    try:
        installed = distribution("plotly")
    except PackageNotFoundError:
        return None
    file = Path(str(installed.locate_file("plotly/package_data/plotly.min.js")))
    return Library(f"plotly-{installed.version}.js", file) if file.is_file() else None


def site(config: Config, is_live: bool) -> dict[str, Any]:
    """What all views of the page need."""
    plotly = library()
    return {
        "where": f"{config.project} · gs://{config.bucket}",
        "user": config.user,
        "live": is_live,
        "plotly": plotly.name if plotly else "",
        "install": clients.how_to_install("plotly>=6"),
    }


def overview(config: Config, everyone: bool) -> list[dict[str, Any]]:
    """The jobs, as `berg list --json` has them."""
    states, machines = jobs.observed(config)
    states += jobs.unrecorded(states, machines)
    states = [state for state in states if everyone or state.user in ("", config.user)]
    shown = {id(state) for state in [state for state in states if state.is_final][-MOST:]}
    return [
        jobs.about(config, state, machines)
        for state in states
        if not state.is_final or id(state) in shown
    ]


def one(config: Config, name: str) -> dict[str, Any]:
    """A job or a row of a sweep, as `berg show --json` has it, with its metrics over time."""
    bucket = Bucket(config)
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(jobs.all_about, config, name, 0)
        state, job = jobs.find(config, name), records.read_job(bucket, name)
        read = metrics.of_results(bucket, state.results)
        found = shown.result()
    number, series = rows.number_of(name), [*read.series().items()]
    metadata = found["metadata"]
    metadata["rows"], metadata["options"] = [], {}  # long; values of variables
    hidden = {key: "…" for key in job.env if HIDDEN.search(key)}
    metadata["env"] = {**job.env, **hidden}
    return {
        **found,
        "command": job.cmd if number is None else rows.row_job(job, number).cmd,
        "params": {} if number is None else job.rows[number],
        "rows": len(job.rows) if number is None else 0,
        "busy": busy(bucket, name),
        "series": {key: thin(point[:2] for point in line) for key, line in series[:CHARTS]},
        "damaged": read.note(name),
    }


def busy(bucket: Bucket, name: str) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """For what is in use the percents of each machine, by minutes since the first sample."""
    samples = usage.read(bucket, name)
    first = min((each[0]["time"] for each in samples.values()), default=0)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for machine, each in [*samples.items()][:LINES]:
        for sample in each:
            for key, value in usage.shares(sample).items():
                at = round((sample["time"] - first) / 60, 2)
                found.setdefault(key, {}).setdefault(machine, []).append((at, value))
    return {key: {name: thin(line) for name, line in lines.items()} for key, lines in found.items()}


def thin(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points to draw; of many the lowest and the highest of each stretch."""
    found = list(points)
    if len(found) <= POINTS:
        return found
    kept, step = [], 2 * len(found) / POINTS
    for number in range(POINTS // 2):
        part = found[round(number * step) : round((number + 1) * step)]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def sweep(config: Config, name: str) -> list[dict[str, Any]]:
    """The rows of a sweep, as `berg sweep --json` has them."""
    return [row.record() for row in table.read(config, name)[0]]


def log(bucket: Bucket, name: str, read: dict[str, int] | None, is_over: bool) -> dict[str, Any]:
    """What a log has beyond what was read of it, at first its end; lines have their colors."""
    skipped = 0
    if read is None:
        listed = [item for item in bucket.list(records.log_prefix(name)) if item.size > LOG]
        read = {item.name: item.size - LOG for item in listed if item.name.endswith(".log")}
        skipped = sum(read.values())
    lines = [*logs.lines(bucket, name, read, is_over)]
    shown = [logs.readable(line, has_colors=True, is_terminal=True) for line in lines]
    return {"lines": shown, "read": read, "skipped": skipped}
