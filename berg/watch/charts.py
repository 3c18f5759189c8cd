"""Charts as small SVGs of our own.

A library would bring half a megabyte (uPlot is 50 kB, but no package of Python's ships it; plotly's
is 4.6 MB), which runs only with JavaScript. These are readable without it, also printed and from a
file; page.js adds what people expect: the values under the pointer, and zoom. Lines are drawn a
second time over a logarithmic axis, which a box of the figure shows in place of the first, by style
alone.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from berg.watch.markup import Html, tag, text

WIDTH, HEIGHT = 640, 220  # of a chart, in its own units
LEFT, TOP, RIGHT, BOTTOM = 56, 8, 8, 22  # room around its plot
SIDE = 1000  # of the plot, which is stretched into its place
MOST = 600  # points of a line; more are thinned out
MARGIN = 0.04  # of the range, above and below lines
LARGEST = 1e280  # what is beyond is not drawn, and what lies closer than its inverse is one point
COLORS = 8
SHADES = 8
Point = tuple[float, float]


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
    """Logarithms of round numbers between two logarithms: powers of ten, or what lies between them."""
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


def lines(
    title: str, series: dict[str, list[Point]], is_time: bool = False, top: float | None = None
) -> Html | None:
    """Lines over a common x; `top` is what the axis shows at least. None without a point."""
    thinned = {name: thin(points) for name, given in series.items() if (points := finite(given))}
    if not thinned:
        return None
    xs = [x for points in thinned.values() for x, _ in points]
    x0, x1 = widened(min(xs), max(xs))
    legend = []
    for number, (name, points) in enumerate(thinned.items()):
        color = f"s{number % COLORS}"
        alone = tag("b", label(points[-1][1]), class_=color) if name == title else None
        legend.append(
            tag("span", alone or text(tag("b", name, class_=color), " ", label(points[-1][1])))
        )
    last = ", ".join(f"{name} {label(points[-1][1])}" for name, points in thinned.items())
    drawings = [drawing(f"{title}: {last}", thinned, x0, x1, is_time, top)]
    logarithms = {
        name: [(x, math.log10(y)) for x, y in points if y > 0] for name, points in thinned.items()
    }
    if top is None and len({y for points in logarithms.values() for _, y in points}) > 1:
        drawings.append(
            drawing(f"{title}, logarithmic: {last}", logarithms, x0, x1, is_time, is_log=True)
        )
        legend.append(tag("label", tag("input", type="checkbox"), " logarithmic"))
    about = {"data_name": title, "data_x0": x0, "data_x1": x1, "data_time": is_time}
    return tag(
        "figure",
        tag("figcaption", tag("span", title), *legend),
        *drawings,
        class_="chart lines",
        **about,
    )


def drawing(
    about: str,
    series: dict[str, list[Point]],
    x0: float,
    x1: float,
    is_time: bool = False,
    top: float | None = None,
    is_log: bool = False,
) -> Html:
    """Lines with their axes; where these are logarithmic, what is given as y are logarithms."""
    ys = [y for points in series.values() for _, y in points]
    y0, y1 = widened(min(0.0, *ys) if top else min(ys), max(top or max(ys), max(ys)))
    y1 += 0 if y1 == top else (y1 - y0) * MARGIN
    y0 -= 0 if y0 == 0 and not is_log else (y1 - y0) * MARGIN
    curves = []
    for number, (name, points) in enumerate(series.items()):
        places = [
            ((x - x0) / (x1 - x0) * SIDE, SIDE - (y - y0) / (y1 - y0) * SIDE) for x, y in points
        ]
        places = places * 2 if len(places) == 1 else places
        coordinates = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        if places:
            curves.append(
                tag("polyline", points=coordinates, class_=f"s{number % COLORS}", data_name=name)
            )
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
        data_y0=y0,
        data_y1=y1,
        data_log=is_log,
    )
    return tag(
        "svg",
        *axes(x0, x1, y0, y1, is_time, is_log),
        plot,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=about,
        class_="logarithmic" if is_log else None,
    )


def axes(
    x0: float, x1: float, y0: float, y1: float, is_time: bool = False, is_log: bool = False
) -> list[Html]:
    """Lines of a grid with their values."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    shown = []
    for value in decades(y0, y1) if is_log else ticks(y0, y1, 4):
        y = TOP + height - (value - y0) / (y1 - y0) * height
        shown.append(
            tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
        )
        shown.append(
            tag(
                "text",
                label(10.0**value if is_log else value),
                x=LEFT - 6,
                y=f"{y + 4:.1f}",
                class_="end",
            )
        )
    for value in ticks(x0, x1, 4):
        x = LEFT + (value - x0) / (x1 - x0) * width
        shown.append(
            tag("text", label(value, is_time), x=f"{x:.1f}", y=HEIGHT - 6, class_="middle x")
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
        grid = axes(across.low, across.high, up.low, up.high)
    title = f"{up.name} by {across.name}"
    drawing = tag(
        "svg", *grid, *dots, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title
    )
    return tag("figure", tag("figcaption", tag("span", title)), drawing, class_="chart scatter")


def words(axis: Axis, upwards: bool) -> list[Html]:
    """The values of one axis of a scatter of which some are words."""
    values = [(axis.place(word), word) for word in axis.words] or [
        (0.0, label(axis.low)),
        (1.0, label(axis.high)),
    ]
    shown = []
    for place, value in values:
        assert place is not None
        x, y = (
            (LEFT - 6, TOP + (1 - place) * (HEIGHT - TOP - BOTTOM) + 4)
            if upwards
            else (LEFT + place * (WIDTH - LEFT - RIGHT), HEIGHT - 6)
        )
        shown.append(
            tag(
                "text",
                value[:12],
                x=f"{x:.1f}",
                y=f"{y:.1f}",
                class_="end" if upwards else "middle",
            )
        )
    return shown


def parallel(columns: list[Axis], rows: list[tuple[str, list[Value]]]) -> Html | None:
    """Parallel coordinates: a line for each job across all columns, in the shade of the last one."""
    if len(columns) < 2 or not rows:
        return None
    height, top = 260, 28
    step = (WIDTH - 2 * LEFT) / (len(columns) - 1)
    shown = []
    for number, axis in enumerate(columns):
        x = LEFT + number * step
        shown.append(tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=top, y2=height, class_="axis"))
        shown.append(tag("text", axis.name[:20], x=f"{x:.1f}", y=14, class_="middle"))
        marks = axis.words if axis.words else [label(axis.low), label(axis.high)]
        for at, mark in enumerate(marks):
            place = axis.place(mark) if axis.words else float(at)
            assert place is not None
            shown.append(
                tag(
                    "text",
                    mark[:12],
                    x=f"{x + 4:.1f}",
                    y=f"{height - place * (height - top) + 4:.1f}",
                )
            )
    for name, values in rows:
        places = [axis.place(value) for axis, value in zip(columns, values, strict=True)]
        points = [
            f"{LEFT + number * step:.1f},{height - place * (height - top):.1f}"
            for number, place in enumerate(places)
            if place is not None
        ]
        if len(points) > 1:
            note = tag(
                "title",
                ", ".join(
                    [name, *(f"{axis.name} {v}" for axis, v in zip(columns, values, strict=True))]
                ),
            )
            shown.append(
                tag(
                    "polyline",
                    note,
                    points=" ".join(points),
                    class_=shade(places[-1]),
                    data_job=name,
                )
            )
    title = f"{columns[-1].name} by all"
    drawing = tag("svg", *shown, viewBox=f"0 0 {WIDTH} {height + 10}", role="img", aria_label=title)
    caption = tag(
        "figcaption",
        tag("span", text("Parameters and metrics, in the shade of ", columns[-1].name)),
    )
    return tag("figure", caption, drawing, class_="chart parallel")
