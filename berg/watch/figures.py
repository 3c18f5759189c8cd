"""Charts as what is to be drawn: figures.js draws it with the library, where that is installed.

A figure carries its data as JSON in an attribute, and its last values as a table for who has no
JavaScript. Names are what people say, and numbers are in units that people use. Without the library
charts.py draws, from the same numbers.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from berg import gate
from berg.watch import charts, library
from berg.watch.charts import Series, Value
from berg.watch.markup import Html, tag

BYTES, RATE, PERCENT = "B", "B/s", "%"
MIB = float(1 << 20)
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SPANS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))
# What machines measure: name of a number -> what people call it, its unit, how many of those it is.
KNOWN = {
    "cpu_percent": ("CPU", PERCENT, 1.0),
    "cpu_waiting_percent": ("CPU, waiting for disks", PERCENT, 1.0),
    "memory_percent": ("Memory, used", PERCENT, 1.0),
    "memory_bytes": ("Memory", BYTES, 1.0),
    "disk_percent": ("Disk, used", PERCENT, 1.0),
    "read_per_second": ("Disk, read", RATE, 1.0),
    "written_per_second": ("Disk, written", RATE, 1.0),
    "received_per_second": ("Network, received", RATE, 1.0),
    "sent_per_second": ("Network, sent", RATE, 1.0),
    "accelerator_percent": ("GPUs and TPUs", PERCENT, 1.0),
    "accelerator_memory_mb": ("Memory of GPUs and TPUs", BYTES, MIB),
    "accelerator_memory_total_mb": ("Memory that GPUs and TPUs have", BYTES, MIB),
    "accelerator_watt": ("Power of GPUs and TPUs", "W", 1.0),
    "accelerator_celsius": ("Temperature of GPUs and TPUs", "°C", 1.0),
}


@dataclass
class Lines:
    """Lines over a common x, with the words for their chart."""

    name: str  # as it is called where it comes from
    title: str
    series: Series
    across: str = "step"  # what x is
    unit: str = ""
    top: float | None = None  # what the axis shows at least


def of_metric(name: str, series: Series) -> Lines:
    return Lines(name, name, usable(series))


def of_machines(name: str, series: Series, began: float) -> Lines:
    """Return what machines measured, over the time since `began` (seconds since 1970)."""
    title, unit, factor = KNOWN.get(name, (name, "", 1.0))
    found = {key: sorted(points) for key, points in usable(series).items()}
    span = max((points[-1][0] - began for points in found.values()), default=0.0)
    length, across = time_unit(span)
    scale, unit = people_unit(found, factor, unit)
    scaled = {
        key: [((x - began) / length, y * scale) for x, y in points] for key, points in found.items()
    }
    top = 100.0 if unit == PERCENT else None
    return Lines(name, title, scaled, f"{across} since its machines began", unit, top)


def usable(series: Series) -> Series:
    """Return series without what cannot be drawn, and without those that are empty."""
    found = {name: charts.thin(charts.finite(points)) for name, points in series.items()}
    return {name: points for name, points in found.items() if points}


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit for a span of time: its length in seconds, and its name."""
    for least, length, name in SPANS:
        if seconds >= least:
            return length, name
    return 1.0, "seconds"


def people_unit(series: Series, factor: float, unit: str) -> tuple[float, str]:
    """Return what to multiply numbers with, and their unit then: gigabytes for many bytes."""
    if unit not in (BYTES, RATE):
        return factor, unit
    most = max((abs(y) * factor for points in series.values() for _, y in points), default=0.0)
    for size, prefix in PREFIXES:
        if most >= size:
            return factor / size, prefix + unit
    return factor, unit


def draw(lines: Lines) -> Html | None:
    """Return the figure of lines; None where they have no point."""
    if not lines.series:
        return None
    if not library.find():
        title = f"{lines.title} ({lines.unit})" if lines.unit else lines.title
        return charts.lines(title, lines.series, top=lines.top)
    last = [(name, said(points[-1][1], lines.unit)) for name, points in lines.series.items()]
    described = {
        "kind": "lines",
        "title": lines.title,
        "unit": lines.unit,
        "across": lines.across,
        "top": lines.top,
        "lines": [line(name, points) for name, points in lines.series.items()],
    }
    return figure(lines.title, described, last)


def line(name: str, points: list[charts.Point]) -> dict[str, Any]:
    return {"name": name, "x": [short(x) for x, _ in points], "y": [short(y) for _, y in points]}


def short(number: float) -> float:
    """Return a number with as many digits as a chart can show."""
    return float(f"{number:.9g}")


def said(number: float, unit: str) -> str:
    return f"{charts.label(number)} {unit}".rstrip()


def figure(title: str, described: dict[str, Any], last: Iterable[tuple[str, str]]) -> Html:
    """Return a figure that figures.js draws, with its last values for who has no JavaScript."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in last]
    table = tag("table", tag("tbody", *rows), class_="last") if rows else None
    caption = tag("figcaption", tag("span", title))
    data = json.dumps(gate.clean(described), allow_nan=False)
    kind = described["kind"]
    return tag(
        "figure", caption, table, class_=f"chart drawing {kind}", data_name=title, data_figure=data
    )


def scatter(
    across: charts.Axis, up: charts.Axis, points: list[tuple[str, Value, Value]]
) -> Html | None:
    """Return one column against another, a point for each job; None where no job has both."""
    if not library.find():
        return charts.scatter(across, up, points)
    known = [point for point in points if None not in point]
    if not known:
        return None
    names, xs, ys = zip(*known, strict=True)
    described = {
        "kind": "scatter",
        "jobs": list(names),
        "x": {"name": across.name, "values": list(xs), "words": across.words},
        "y": {"name": up.name, "values": list(ys), "words": up.words},
    }
    return figure(f"{up.name} by {across.name}", described, [])


def parallel(columns: list[charts.Axis], rows: list[tuple[str, list[Value]]]) -> Html | None:
    """Return parallel coordinates, a line for each job, in the shade of the last column."""
    if not library.find() or len(columns) < 2 or not rows:
        return charts.parallel(columns, rows)
    described = {
        "kind": "parallel",
        "jobs": [name for name, _ in rows],
        "columns": [
            {
                "name": axis.name,
                "words": axis.words,
                "values": [values[at] for _, values in rows],
            }
            for at, axis in enumerate(columns)
        ],
    }
    return figure(f"Parameters and metrics, in the shade of {columns[-1].name}", described, [])
