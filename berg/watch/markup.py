"""HTML that is safe by the way it is made: text is escaped, wherever it came from, also what a
terminal would show.

Not covered: what programs draw with cursors; of lines that are written over, the last writing
counts.

Charts as data: figures.js draws them with plotly, if the extra `page` is installed.

A figure has its data as JSON in an attribute, and its last values as a table for readers without
JavaScript or without plotly. Names are words, and numbers are in units that people use.
"""

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from berg import gate
from berg import plain as plain_text
from berg.watch import library

MOST = 32  # numbers of one code; terminals count to 16 or 32

# The first of eight codes in a row -> the first of its colours, and what it colours.
COLOR_CODES = {30: (0, "38"), 40: (0, "48"), 90: (8, "38"), 100: (8, "48")}

PREFIXES = {"38": "f", "48": "b"}  # of classes: letters, and what is behind them

WORDS = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike"}

ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("strike",)}

STEPS = (0, 95, 135, 175, 215, 255)  # of the cube of 216 colours

# A terminal's 16 colours, as red, green, blue; the page's style says how they look in the light and
# in the dark.
SIXTEEN = [
    (0, 0, 0),
    (170, 0, 0),
    (0, 170, 0),
    (170, 85, 0),
    (0, 0, 170),
    (170, 0, 170),
    (0, 170, 170),
]


SIXTEEN += [
    (170, 170, 170),
    (85, 85, 85),
    (255, 85, 85),
    (85, 255, 85),
    (255, 255, 85),
    (85, 85, 255),
]


SIXTEEN += [(255, 85, 255), (85, 255, 255), (255, 255, 255)]

VOID = {"meta", "link", "img", "input"}


class Html(str):
    """Text that is HTML already."""


def text(*parts: object) -> Html:
    """Return parts in a row as HTML: escaped unless they are Html; None is nothing."""
    return Html("".join(escaped(part) for part in parts if part is not None))


def escaped(part: object) -> str:
    if isinstance(part, Html):
        return part
    return html.escape(plain_text.clean(str(part)))


def tag(name: str, /, *parts: object, **attributes: object) -> Html:
    """An element. `class_` is class, `data_x` data-x; an attribute that is True stands alone, None
    or False is none.
    """
    pairs = [(key.strip("_").replace("_", "-"), value) for key, value in attributes.items()]
    shown = (
        f" {key}" if value is True else f' {key}="{html.escape(plain_text.clean(str(value)))}"'
        for key, value in pairs
        if wanted(value)
    )
    opened = f"<{name}{''.join(shown)}>"
    return Html(opened if name in VOID else f"{opened}{text(*parts)}</{name}>")


def wanted(value: object) -> bool:
    return value is not None and value is not False


def join(separator: object, parts: Iterable[object]) -> Html:
    return Html(text(separator).join(text(part) for part in parts))


def of_terminal(printed: str) -> Html:
    """A line that was printed to a terminal: its colours as classes, everything else of its escape
    codes left out.
    """
    printed = printed.rstrip("\r").rpartition("\r")[2]
    found: list[Html] = []
    style: dict[str, str] = {}
    at = 0
    for match in plain_text.ESCAPES.finditer(printed):
        found.append(styled(printed[at : match.start()], style))
        if match[1] is not None:
            change(style, match[1])
        at = match.end()
    found.append(styled(printed[at:], style))
    return Html("".join(found))


def plain(printed: str) -> str:
    """A line of a terminal as text alone."""
    return plain_text.printable(printed.rstrip("\r").rpartition("\r")[2], colors=False)


def styled(piece: str, style: dict[str, str]) -> Html:
    return tag("span", piece, class_=" ".join(style.values())) if piece and style else text(piece)


def change(style: dict[str, str], codes: str) -> None:
    """What "select graphic rendition" does: numbers that begin and end colours and kinds of
    letters.
    """
    numbers = [int(code[:3] or 0) for code in re.split("[;:]", codes, maxsplit=MOST)[:MOST]]
    while numbers:
        number = numbers.pop(0)
        if number == 0:
            style.clear()
        elif number in WORDS:
            style[WORDS[number]] = WORDS[number]
        elif number in ENDS:
            for word in ENDS[number]:
                style.pop(word, None)
        elif number in (38, 48):
            color = longer(numbers)
            if color is not None:
                style[str(number)] = f"{PREFIXES[str(number)]}{color}"
        elif number in (39, 49):
            style.pop(str(number - 1), None)
        else:
            change_color(style, number)


def change_color(style: dict[str, str], number: int) -> None:
    """Take one of the 16 colours, if the number is one of theirs."""
    for first, (color, key) in COLOR_CODES.items():
        if first <= number < first + 8:
            style[key] = f"{PREFIXES[key]}{color + number - first}"


def longer(numbers: list[int]) -> int | None:
    """The nearest of the 16 colours to one of 256, or of all, which is taken off the numbers."""
    kind = numbers.pop(0) if numbers else 0
    count = {5: 1, 2: 3}.get(kind, 0)
    values, numbers[:count] = numbers[:count], []
    if not count or len(values) < count:
        return None
    if kind == 5 and values[0] < 16:
        return values[0]
    if kind == 5:
        values = of_256(values[0])
    distances = [sum((a - b) ** 2 for a, b in zip(values, color, strict=True)) for color in SIXTEEN]
    return distances.index(min(distances))


def of_256(number: int) -> list[int]:
    """Return red, green and blue of one of 256 colours: a grey, or one of a cube."""
    if number > 231:
        return [8 + 10 * (number - 232)] * 3
    return [STEPS[(number - 16) // part % 6] for part in (36, 6, 1)]


MOST_POINTS = 600  # points of a line; longer lines are thinned out

LARGEST = 1e280  # numbers beyond it are not drawn

MISSING = "The charts need plotly, which is not installed: pip install '/path/to/berg[page]'"

Point = tuple[float, float]

Series = dict[str, list[Point]]

Value = float | str | None

BYTES, RATE, PERCENT = "B", "B/s", "%"

MIB = float(1 << 20)

UNIT_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

SPANS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))

# What machines measure: name of a number -> its title, its unit, and how many of the unit it is.
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
    """Return series without points that cannot be drawn, and without empty series."""
    found = {name: thin(points) for name, points in series.items()}
    return {name: points for name, points in found.items() if points}


def thin(points: Iterable[Point]) -> list[Point]:
    """Return the points that can be drawn: of many, the lowest and the highest of each stretch, so
    that no peak is lost.
    """
    found = [(x, y) for x, y in points if abs(x) < LARGEST and abs(y) < LARGEST]
    if len(found) <= MOST_POINTS:
        return found
    step = len(found) / (MOST_POINTS / 2)
    kept: list[Point] = []
    for number in range(MOST_POINTS // 2):
        part = found[round(number * step) : round((number + 1) * step)]
        if part:
            kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


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
    for size, prefix in UNIT_PREFIXES:
        if most >= size:
            return factor / size, prefix + unit
    return factor, unit


def draw(lines: Lines) -> Html | None:
    """Return the figure of lines; None if they have no point."""
    if not lines.series:
        return None
    last = []
    drawn = []
    for name, points in lines.series.items():
        last.append((name, f"{label(points[-1][1])} {lines.unit}".rstrip()))
        xs = [short(x) for x, _ in points]
        drawn.append({"name": name, "x": xs, "y": [short(y) for _, y in points]})
    described = {
        "kind": "lines",
        "title": lines.title,
        "unit": lines.unit,
        "across": lines.across,
        "top": lines.top,
        "lines": drawn,
    }
    return figure(lines.title, described, last)


def short(number: float) -> float:
    """Return a number with as many digits as a chart can show."""
    return float(f"{number:.9g}")


def label(value: float) -> str:
    """Return a number as text of few digits."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def figure(title: str, described: dict[str, Any], last: Iterable[tuple[str, str]]) -> Html | None:
    """Return a figure that figures.js draws, with its last values as a table. Without plotly it is
    the table alone, or None.
    """
    caption = tag("figcaption", tag("span", title))
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in last]
    table = tag("table", tag("tbody", *rows), class_="last") if rows else None
    if library.find():
        class_ = f"chart drawing {described['kind']}"
        data = json.dumps(gate.clean(described), allow_nan=False)
        return tag("figure", caption, table, class_=class_, data_name=title, data_figure=data)
    if table:
        return tag("figure", caption, table, class_="chart", data_name=title)
    return None


def with_note(drawn: Iterable[Html | None]) -> list[Html]:
    """Return the figures there are, after a note on how to install plotly if it is missing."""
    drawn = list(drawn)
    figures = [each for each in drawn if each]
    if drawn and not library.find():
        return [tag("p", MISSING, class_="note"), *figures]
    return figures


class Column:
    """A parameter or a metric of jobs: its name, and its value for each job."""

    def __init__(self, name: str, values: Iterable[object]):
        self.name = name
        self.values = [number_or_word(value) for value in values]
        self.words: list[str] = []  # all values, if one of them is no number
        if any(isinstance(value, str) for value in self.values):
            self.words = sorted({str(value) for value in self.values if value is not None})

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "values": self.values, "words": self.words}


def number_or_word(value: object) -> Value:
    """Return a value as columns have it: text that is a number counts as one."""
    if value is None or value == "":
        return None
    try:
        number = float(str(value))
    except ValueError:
        return str(value)
    return number if abs(number) < LARGEST else None


def scatter(jobs: list[str], across: Column, up: Column) -> Html | None:
    """Return one column against another, a point for each job; None if no job has both."""
    known = [
        point for point in zip(jobs, across.values, up.values, strict=True) if None not in point
    ]
    if not known:
        return None
    names, xs, ys = zip(*known, strict=True)
    described = {
        "kind": "scatter",
        "jobs": list(names),
        "x": across.described() | {"values": list(xs)},
        "y": up.described() | {"values": list(ys)},
    }
    return figure(f"{up.name} by {across.name}", described, [])


def parallel(jobs: list[str], columns: list[Column]) -> Html | None:
    """Return parallel coordinates, a line for each job, in the shade of the last column."""
    if len(columns) < 2:
        return None
    described = {
        "kind": "parallel",
        "jobs": jobs,
        "columns": [each.described() for each in columns],
    }
    return figure(f"Parameters and metrics, in the shade of {columns[-1].name}", described, [])
