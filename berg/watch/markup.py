"""HTML that is safe by construction: text is escaped wherever it came from, and of what a terminal
would do with a line only its colors are kept. Overwritten lines show their last content.

Charts are data: each figure has JSON in an attribute, which figures.js draws with Plotly (extra
`page`), and a table of its last values for readers without JavaScript or Plotly.
"""

import functools
import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from berg import plain, validation

VOID = {"meta", "link", "img", "input"}  # elements without an end tag

MOST = 32  # numbers of one escape code; terminals read 16 or 32
PREFIXES = {38: "f", 48: "b"}  # codes of foreground and background -> letter of CSS classes
# Code of one of the 16 colors -> 38 or 48, and the color's number.
COLORS = {
    first + number: (kind, color + number)
    for first, kind, color in ((30, 38, 0), (40, 48, 0), (90, 38, 8), (100, 48, 8))
    for number in range(8)
}
WORDS = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike"}
ENDS = {22: (1, 2), 23: (3,), 24: (4,), 27: (7,), 29: (9,)}  # codes that end others
STEPS = (0, 95, 135, 175, 215, 255)  # of the cube of 216 colors
# A terminal's 16 colors as red, green, blue; page.css has those for light and dark.
SIXTEEN_BYTES = bytes.fromhex(
    "000000 aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa aaaaaa "
    "555555 ff5555 55ff55 ffff55 5555ff ff55ff 55ffff ffffff"
)
SIXTEEN = [SIXTEEN_BYTES[at : at + 3] for at in range(0, 48, 3)]

MOST_POINTS = 600  # of a line; longer lines are thinned out
LARGEST = 1e280  # larger numbers are not drawn
MISSING = "The charts need Plotly, which is not installed: pip install '/path/to/berg[page]'"

Point = tuple[float, float]
Series = dict[str, list[Point]]
Value = float | str | None

UNIT_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
# Least seconds of a chart -> the seconds in a unit of its x axis, and the unit.
SPANS = (
    (2 * 86400, 86400, "days"),
    (2 * 3600, 3600, "hours"),
    (120, 60, "minutes"),
    (0, 1, "seconds"),
)


class Html(str):
    """Text that is HTML already."""


def text(*parts: object) -> Html:
    """Return the parts as HTML: escaped unless they are Html; None is left out."""
    return Html("".join(escape(part) for part in parts if part is not None))


def escape(part: object) -> str:
    return part if isinstance(part, Html) else html.escape(plain.clean(str(part)))


def tag(name: str, /, *parts: object, **attributes: object) -> Html:
    """Return an element: `class_` is class, `data_x` data-x; None and False are left out."""
    opened = name
    for key, value in attributes.items():
        key = key.strip("_").replace("_", "-")
        if value is True:
            opened += f" {key}"
        elif value is not None and value is not False:
            opened += f' {key}="{html.escape(plain.clean(str(value)))}"'
    return Html(f"<{opened}>" if name in VOID else f"<{opened}>{text(*parts)}</{name}>")


def of_terminal(printed: str) -> Html:
    """Return a line of a terminal with CSS classes for its colors, without other escape codes."""
    printed = printed.rstrip("\r").rpartition("\r")[2]
    found: list[Html] = []
    style: dict[int, str] = {}

    def add(piece: str) -> None:
        styled = piece and style
        found.append(tag("span", piece, class_=" ".join(style.values())) if styled else text(piece))

    at = 0
    for match in plain.ESCAPES.finditer(printed):
        add(printed[at : match.start()])
        if match[1] is not None:
            change_style(style, match[1])
        at = match.end()
    add(printed[at:])
    return Html("".join(found))


def change_style(style: dict[int, str], codes: str) -> None:
    """Apply the codes of one "select graphic rendition" sequence."""
    numbers = [int(code[:3] or 0) for code in re.split("[;:]", codes, maxsplit=MOST)[:MOST]]
    while numbers:
        number = numbers.pop(0)
        if number == 0:
            style.clear()
        elif number in WORDS:
            style[number] = WORDS[number]
        elif number in ENDS:
            for begun in ENDS[number]:
                style.pop(begun, None)
        elif number in PREFIXES:
            nearest = nearest_color(numbers)
            if nearest is not None:
                style[number] = f"{PREFIXES[number]}{nearest}"
        elif number in (39, 49):
            style.pop(number - 1, None)
        elif number in COLORS:
            kind, color = COLORS[number]
            style[kind] = f"{PREFIXES[kind]}{color}"


def nearest_color(numbers: list[int]) -> int | None:
    """Remove a color of 256 or of all from `numbers`; return the nearest of the 16 colors."""
    kind = numbers.pop(0) if numbers else 0
    count = {5: 1, 2: 3}.get(kind, 0)
    values, numbers[:count] = numbers[:count], []
    if not count or len(values) < count:
        return None
    if kind == 5:
        number = values[0]
        if number < 16:
            return number
        if number > 231:
            values = [8 + 10 * (number - 232)] * 3  # a grey
        else:
            values = [STEPS[(number - 16) // part % 6] for part in (36, 6, 1)]
    distances = [sum((a - b) ** 2 for a, b in zip(values, color, strict=True)) for color in SIXTEEN]
    return distances.index(min(distances))


@dataclass(frozen=True)
class Library:
    """Plotly's script, and the name under which pages load it."""

    name: str
    file: Path


@functools.cache
def find_library() -> Library | None:
    """Return Plotly's script from its installed Python package; None without the extra `page`."""
    try:
        installed = distribution("plotly")
    except PackageNotFoundError:
        return None
    file = Path(str(installed.locate_file("plotly/package_data/plotly.min.js")))
    return Library(f"plotly-{installed.version}.js", file) if file.is_file() else None


def thin(points: Iterable[Point]) -> list[Point]:
    """Return the points that can be drawn; of many only the lowest and highest of each stretch."""
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


def draw(
    title: str, series: Series, across: str = "step", unit: str = "", top: float | None = None
) -> Html | None:
    """Return the chart of some lines; None if they have no point that can be drawn.

    `across` is what x is, `unit` that of y, and `top` the least end of the y axis.
    """
    lines: list[dict[str, Any]] = []
    last = []
    for name, points in series.items():
        if points := thin(points):
            last.append((name, f"{label(points[-1][1])} {unit}".rstrip()))
            xs, ys = ([float(f"{point[axis]:.9g}") for point in points] for axis in (0, 1))
            lines.append({"name": name, "x": xs, "y": ys})
    if not lines:
        return None
    about = {"title": title, "unit": unit, "across": across, "top": top, "lines": lines}
    return figure(title, {"kind": "lines", **about}, last)


def draw_machines(
    title: str, unit: str, factor: float, series: Series, began: float
) -> Html | None:
    """Return the chart of a number over the time since `began`; a value is `factor` units."""
    end, most = (
        max((point[axis] for points in series.values() for point in points), default=0.0)
        for axis in (0, 1)
    )
    _, length, across = next(each for each in SPANS if end - began >= each[0])
    if unit in ("B", "B/s"):
        known = (each for each in UNIT_PREFIXES if most * factor >= each[0])
        size, prefix = next(known, UNIT_PREFIXES[-1])
        factor, unit = factor / size, prefix + unit
    scaled = {
        key: [((x - began) / length, y * factor) for x, y in sorted(points)]
        for key, points in series.items()
    }
    top = 100.0 if unit == "%" else None
    return draw(title, scaled, f"{across} since its machines began", unit, top)


def label(value: float) -> str:
    """Return a number as text of few digits."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def figure(title: str, about: dict[str, Any], last: Iterable[tuple[str, str]] = ()) -> Html | None:
    """Return a figure with its data and last values; without Plotly these alone, or None."""
    caption = tag("figcaption", tag("span", title))
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in last]
    table = tag("table", tag("tbody", *rows), class_="last") if rows else None
    if find_library():
        class_ = f"chart drawing {about['kind']}"
        data = json.dumps(validation.clean(about), allow_nan=False)
        return tag("figure", caption, table, class_=class_, data_name=title, data_figure=data)
    return tag("figure", caption, table, class_="chart", data_name=title) if table else None


def with_note(drawn: Iterable[Html | None]) -> list[Html]:
    """Return the figures, after a note on how to install Plotly if it is missing."""
    drawn = list(drawn)
    note = [tag("p", MISSING, class_="note")] if drawn and not find_library() else []
    return note + [each for each in drawn if each]


class Column:
    """A parameter or a metric of jobs: its name, and its value for each job."""

    def __init__(self, name: str, values: Iterable[object]):
        self.name = name
        self.values = [number_or_word(value) for value in values]
        self.words: list[str] = []  # all values, if one of them is not a number
        if any(isinstance(value, str) for value in self.values):
            self.words = sorted({str(value) for value in self.values if value is not None})

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def number_or_word(value: object) -> Value:
    """Return a value of a column: text that is a number counts as one."""
    if value is None or value == "":
        return None
    try:
        number = float(str(value))
    except ValueError:
        return str(value)
    return number if abs(number) < LARGEST else None


def scatter(jobs: list[str], across: Column, up: Column) -> Html | None:
    """Return one column against another, a point for each job; None if no job has both."""
    both = zip(jobs, across.values, up.values, strict=True)
    known = [point for point in both if None not in point]
    if not known:
        return None
    names, xs, ys = map(list, zip(*known, strict=True))
    x, y = {**vars(across), "values": xs}, {**vars(up), "values": ys}
    return figure(f"{up.name} by {across.name}", {"kind": "scatter", "jobs": names, "x": x, "y": y})


def parallel(jobs: list[str], columns: list[Column]) -> Html | None:
    """Return parallel coordinates: a line for each job, shaded by the last column."""
    if len(columns) < 2:
        return None
    about = {"kind": "parallel", "jobs": jobs, "columns": [vars(each) for each in columns]}
    return figure(f"Parameters and metrics, shaded by {columns[-1].name}", about)
