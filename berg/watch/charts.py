"""Charts as small SVGs of our own, where the library of library.py is not installed.

They are readable without JavaScript, also printed and from a file; page.js adds what people expect:
the values under the pointer, and zoom. Lines are drawn a second time over a logarithmic axis, which
a box of the figure shows in place of the first, by style alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from berg.watch.markup import Html, tag, text

WIDTH, HEIGHT = 640, 220  # of a chart, in its own units
LEFT, TOP, RIGHT, BOTTOM = 56, 8, 8, 22  # room around its plot
HIGH, LOW = 28, 260  # ends of the axes of parallel coordinates
SIDE = 1000  # of the plot, which is stretched into its place
MOST = 600  # points of a line; more are thinned out
MARGIN = 0.04  # of the range, above and below lines
LARGEST = 1e280  # what is beyond is not drawn, and what lies closer than its inverse is one point
COLORS = 8
SHADES = 8
Point = tuple[float, float]
Series = dict[str, list[Point]]


def finite(points: Iterable[Point]) -> list[Point]:
    return [(x, y) for x, y in points if abs(x) < LARGEST and abs(y) < LARGEST]


def thin(points: list[Point]) -> list[Point]:
    """The lowest and the highest of each stretch, so that no peak is lost."""
    if len(points) <= MOST:
        return points
    step = len(points) / (MOST / 2)
    kept: list[Point] = []
    for number in range(MOST // 2):
        part = points[round(number * step) : round((number + 1) * step)]
        if part:
            kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between two."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    unit = 10 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Return logarithms of round numbers between two logarithms: powers of ten, or what lies
    between them.
    """
    whole = [float(number) for number in range(math.ceil(low), math.floor(high) + 1)]
    if len(whole) > 1:
        return whole[:: math.ceil(len(whole) / 6)]
    return [math.log10(value) for value in ticks(10**low, 10**high, 4) if value > 0]


def label(value: float, is_time: bool = False) -> str:
    if is_time:
        return datetime.fromtimestamp(value, timezone.utc).strftime("%H:%M:%S")
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def widened(low: float, high: float) -> tuple[float, float]:
    room = abs(low) if abs(low) > 1 / LARGEST else 1
    return (low, high) if high - low > 1 / LARGEST else (low - room / 2, high + room / 2)


@dataclass
class Range:
    """What an axis shows, from its low end to its high end."""

    low: float
    high: float
    is_time: bool = False
    is_log: bool = False  # the ends are logarithms

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        """Return the values that stand at the axis."""
        if self.is_log:
            return decades(self.low, self.high)
        return ticks(self.low, self.high, 4)

    def label(self, value: float) -> str:
        if self.is_log:
            return label(10.0**value)
        return label(value, self.is_time)


def lines(
    title: str, series: Series, is_time: bool = False, top: float | None = None
) -> Html | None:
    """Return lines over a common x; `top` is what the axis shows at least. None without a point."""
    found = {name: thin(finite(points)) for name, points in series.items()}
    found = {name: points for name, points in found.items() if points}
    if not found:
        return None
    xs = [x for points in found.values() for x, _ in points]
    across = Range(*widened(min(xs), max(xs)), is_time)
    legend = [legend_of(title, name, number, found) for number, name in enumerate(found)]
    last = ", ".join(f"{name} {label(points[-1][1])}" for name, points in found.items())
    drawings = [drawing(f"{title}: {last}", found, across, height(found, top))]
    logarithms = logarithms_of(found)
    if top is None and len(distinct(logarithms)) > 1:
        up = height(logarithms, is_log=True)
        drawings.append(drawing(f"{title}, logarithmic: {last}", logarithms, across, up))
        legend.append(tag("label", tag("input", type="checkbox"), " logarithmic"))
    return tag(
        "figure",
        tag("figcaption", tag("span", title), *legend),
        *drawings,
        class_="chart lines",
        data_name=title,
        data_x0=across.low,
        data_x1=across.high,
        data_time=is_time,
    )


def legend_of(title: str, name: str, number: int, series: Series) -> Html:
    """Return the name of a line and its last value; a line that is named as its chart needs no
    name.
    """
    color, last = f"s{number % COLORS}", label(series[name][-1][1])
    if name == title:
        return tag("span", tag("b", last, class_=color))
    return tag("span", tag("b", name, class_=color), " ", last)


def logarithms_of(series: Series) -> Series:
    """Return series with the logarithms of those values that have one."""
    return {
        name: [(x, math.log10(y)) for x, y in points if y > 0] for name, points in series.items()
    }


def distinct(series: Series) -> set[float]:
    return {y for points in series.values() for _, y in points}


def height(series: Series, top: float | None = None, is_log: bool = False) -> Range:
    """Return the range of the values of lines, with a margin; `top` is what it shows at least."""
    ys = distinct(series)
    low, high = min(ys), max(ys)
    if top:
        low, high = min(0.0, low), max(top, high)
    low, high = widened(low, high)
    if high != top:
        high += (high - low) * MARGIN
    if low != 0 or is_log:
        low -= (high - low) * MARGIN
    return Range(low, high, is_log=is_log)


def drawing(about: str, series: Series, across: Range, up: Range) -> Html:
    """Return lines with their axes; where these are logarithmic, the values are logarithms."""
    curves = []
    for number, (name, points) in enumerate(series.items()):
        if points:
            curves.append(curve(points, across, up, name, f"s{number % COLORS}"))
    plot = tag(
        "svg",
        *curves,
        class_="plot",
        x=LEFT,
        y=TOP,
        width=WIDTH - LEFT - RIGHT,
        height=HEIGHT - TOP - BOTTOM,
        viewBox=f"0 0 {SIDE} {SIDE}",
        preserveAspectRatio="none",
        data_y0=up.low,
        data_y1=up.high,
        data_log=up.is_log,
    )
    class_ = None
    if up.is_log:
        class_ = "logarithmic"
    return tag(
        "svg",
        *axes(across, up),
        plot,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=about,
        class_=class_,
    )


def curve(points: list[Point], across: Range, up: Range, name: str, color: str) -> Html:
    places = [(across.place(x) * SIDE, SIDE - up.place(y) * SIDE) for x, y in points]
    if len(places) == 1:
        places *= 2  # a line needs two
    coordinates = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
    return tag("polyline", points=coordinates, class_=color, data_name=name)


def axes(across: Range, up: Range) -> list[Html]:
    """Return the lines of a grid with their values."""
    width, room = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    shown = []
    for value in up.marks():
        y = TOP + (1 - up.place(value)) * room
        ends = {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        shown.append(tag("line", class_="grid", **ends))
        text_ = up.label(value)
        shown.append(tag("text", text_, x=LEFT - 6, y=f"{y + 4:.1f}", class_="end"))
    for value in across.marks():
        x = LEFT + across.place(value) * width
        shown.append(
            tag("text", across.label(value), x=f"{x:.1f}", y=HEIGHT - 6, class_="middle x")
        )
    return shown


Value = float | str | None


class Axis:
    """Values of a column, numbers or words, as places between 0 and 1."""

    def __init__(self, name: str, values: Sequence[Value]):
        self.name = name
        numbers = [value for value in values if isinstance(value, float)]
        words = [value for value in values if isinstance(value, str)]
        self.words = sorted({str(value) for value in values if value is not None}) if words else []
        self.low, self.high = (
            widened(min(numbers), max(numbers)) if numbers and not words else (0.0, 1.0)
        )

    def place(self, value: Value) -> float | None:
        if value is None:
            return None
        if self.words:
            return (self.words.index(str(value)) + 0.5) / len(self.words)
        assert isinstance(value, float)
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[tuple[float, str]]:
        """Return the places of its words with them, or of its two ends."""
        if self.words:
            return [((at + 0.5) / len(self.words), word) for at, word in enumerate(self.words)]
        return [(0.0, label(self.low)), (1.0, label(self.high))]


def number_or_word(value: object) -> Value:
    """A value as axes take it: text that is a number counts as one."""
    if value is None or value == "":
        return None
    try:
        number = float(str(value))
    except ValueError:
        return str(value)
    return number if abs(number) < LARGEST else None


def shade(place: float | None) -> str:
    return "none" if place is None else f"c{min(SHADES - 1, int(place * SHADES))}"


def scatter(across: Axis, up: Axis, points: list[tuple[str, Value, Value]]) -> Html | None:
    """One column against another, a point for each job; None where no job has both."""
    dots = []
    for name, x, y in points:
        left, high = across.place(x), up.place(y)
        if left is None or high is None:
            continue
        cx, cy = LEFT + left * (WIDTH - LEFT - RIGHT), TOP + (1 - high) * (HEIGHT - TOP - BOTTOM)
        note = tag("title", f"{name}: {across.name} {x}, {up.name} {y}")
        dots.append(
            tag(
                "circle",
                note,
                cx=f"{cx:.1f}",
                cy=f"{cy:.1f}",
                r=5,
                class_=shade(high),
                data_job=name,
            )
        )
    if not dots:
        return None
    if across.words or up.words:
        grid = words(across, False) + words(up, True)
    else:
        grid = axes(Range(across.low, across.high), Range(up.low, up.high))
    title = f"{up.name} by {across.name}"
    drawing = tag(
        "svg", *grid, *dots, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title
    )
    return tag("figure", tag("figcaption", tag("span", title)), drawing, class_="chart scatter")


def words(axis: Axis, upwards: bool) -> list[Html]:
    """Return the values of one axis of a scatter of which some are words."""
    shown = []
    for place, mark in axis.marks():
        x, y, class_ = LEFT + place * (WIDTH - LEFT - RIGHT), float(HEIGHT - 6), "middle"
        if upwards:
            x, y = LEFT - 6, TOP + (1 - place) * (HEIGHT - TOP - BOTTOM) + 4
            class_ = "end"
        shown.append(tag("text", mark[:12], x=f"{x:.1f}", y=f"{y:.1f}", class_=class_))
    return shown


def parallel(columns: list[Axis], rows: list[tuple[str, list[Value]]]) -> Html | None:
    """Return parallel coordinates: a line for each job across all columns, in the shade of the last
    one.
    """
    if len(columns) < 2 or not rows:
        return None
    step = (WIDTH - 2 * LEFT) / (len(columns) - 1)
    shown = []
    for number, axis in enumerate(columns):
        shown += upright(axis, LEFT + number * step)
    for name, values in rows:
        shown += across_columns(columns, name, values, step)
    title = f"{columns[-1].name} by all"
    drawing = tag("svg", *shown, viewBox=f"0 0 {WIDTH} {LOW + 10}", role="img", aria_label=title)
    caption = tag(
        "figcaption",
        tag("span", text("Parameters and metrics, in the shade of ", columns[-1].name)),
    )
    return tag("figure", caption, drawing, class_="chart parallel")


def upright(axis: Axis, x: float) -> list[Html]:
    """Return one axis of parallel coordinates with its name and values."""
    shown = [
        tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=HIGH, y2=LOW, class_="axis"),
        tag("text", axis.name[:20], x=f"{x:.1f}", y=14, class_="middle"),
    ]
    for place, mark in axis.marks():
        y = f"{LOW - place * (LOW - HIGH) + 4:.1f}"
        shown.append(tag("text", mark[:12], x=f"{x + 4:.1f}", y=y))
    return shown


def across_columns(columns: list[Axis], name: str, values: list[Value], step: float) -> list[Html]:
    """Return the line of a job across all columns; none if it has fewer than two values."""
    places = [axis.place(value) for axis, value in zip(columns, values, strict=True)]
    points = [
        f"{LEFT + number * step:.1f},{LOW - place * (LOW - HIGH):.1f}"
        for number, place in enumerate(places)
        if place is not None
    ]
    if len(points) < 2:
        return []
    known = [f"{axis.name} {each}" for axis, each in zip(columns, values, strict=True)]
    note = tag("title", ", ".join([name, *known]))
    color = shade(places[-1])
    return [tag("polyline", note, points=" ".join(points), class_=color, data_job=name)]
