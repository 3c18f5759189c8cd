"""The pages: all jobs, one job, one sweep, and jobs that are compared, as HTML without a template.

Pages are in folders (`job/NAME/`, `sweep/NAME/`) and have relative links, so that the same pages
are served and written to disk.

HTML is safe by construction: text is escaped wherever it came from, and of what a terminal would do
with a line only its colors are kept. Overwritten lines show their last content.

Charts are data: each figure has JSON in an attribute, which figures.js draws with Plotly (extra
`page`), and a table of its last values for readers without JavaScript or Plotly.
"""

import functools
import html
import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import quote

from berg import job, plain, validation
from berg.google import events
from berg.google.storage import Listed
from berg.laptop import jobs, spending
from berg.laptop.jobs import cells as cells_of
from berg.laptop.jobs import folded
from berg.laptop.records import Comparison, Difference, Software
from berg.laptop.sweep import Row
from berg.watch import collect
from berg.watch.collect import DRAWN, Lines, thin

EVERY = 10  # seconds between updates of the page
FILES = 500  # that are listed
IMAGES = 60  # that are shown
SCATTERS = 12
KEYS = 50  # parameters, and as many metrics, that are columns
COLUMNS = 10  # of parallel coordinates
STYLE_ID = "plotly.js-style-global"  # Plotly writes its styles into the style sheet with this id
# Variables whose values are not shown. Secrets belong to --secret, but not every job uses it.
HIDDEN = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|DSN|WEBHOOK", re.I)

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

MISSING = "The charts need Plotly, which is not installed: pip install '/path/to/berg[page]'"

Value = float | str | None

UNIT_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
# Least seconds of a chart -> the seconds in a unit of its x axis, and the unit.
SPANS = (
    (2 * 86400, 86400, "days"),
    (2 * 3600, 3600, "hours"),
    (120, 60, "minutes"),
    (0, 1, "seconds"),
)


# --- HTML


class Html(str):
    """Text that is HTML already."""


def text(*parts: object) -> Html:
    """Return the parts as HTML: escaped unless they are Html; None is left out."""
    return Html(
        "".join(
            part if isinstance(part, Html) else html.escape(plain.clean(str(part)))
            for part in parts
            if part is not None
        )
    )


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


def draw(
    title: str, series: Lines, across: str = "step", unit: str = "", top: float | None = None
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


def draw_machines(title: str, unit: str, factor: float, series: Lines, began: float) -> Html | None:
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
    return number if abs(number) < DRAWN else None


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


# --- pages


@dataclass
class Frame:
    """What all pages have in common, and where the page is."""

    project: str
    bucket: str
    live: bool = True  # False: on disk, without updates and buttons
    root: str = ""  # relative address of the first page

    @property
    def index(self) -> str:
        return "" if self.live else "index.html"

    def link(self, kind: str, name: str) -> Html:
        return tag("a", name, href=f"{self.root}{kind}/{quote(name, safe='')}/{self.index}")

    def page(self, title: str, *content: object) -> Html:
        """Return a whole page; only one with figures loads Plotly."""
        scripts = ["page.js"]
        has_figures = any("data-figure=" in part for part in content if isinstance(part, Html))
        if has_figures and (library := find_library()):
            scripts = ["figures.js", "page.js", library.name]
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{title} · berg"),
            tag("link", rel="icon", href="data:,"),
            tag("link", rel="stylesheet", href=f"{self.root}page.css", id=self.live and STYLE_ID),
            *(tag("script", src=f"{self.root}{each}", defer=True) for each in scripts),
        )
        home = tag("a", "berg", href=f"{self.root}{self.index}" or "./", class_="home")
        where = tag("span", f"{self.project} · gs://{self.bucket}", class_="where")
        every = EVERY if self.live else None
        body = tag("body", tag("header", home, where), tag("main", *content), data_every=every)
        return Html(f"<!doctype html>\n{tag('html', head, body, lang='en')}\n")


def section(name: str, title: str, *content: object, live: bool = True) -> Html:
    """Return a part of a page; page.js updates a live one."""
    return tag("section", tag("h2", title) if title else None, *content, id=name, data_live=live)


def table(header: Iterable[object], rows: Iterable[Html], **attributes: object) -> Html:
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in header)))
    return tag("div", tag("table", head, tag("tbody", *rows), **attributes), class_="wide")


def row(*cells: object, **attributes: object) -> Html:
    """Return a row; a value that is not a cell yet becomes one."""
    made = (
        each if isinstance(each, Html) and each.startswith("<td") else tag("td", each)
        for each in cells
    )
    return tag("tr", *made, **attributes)


def badge(status: str) -> Html:
    """Return a state in its color; that of a sweep is the one of its last word."""
    first = status.partition(",")[0].split()
    return tag("span", status, class_=f"state {first[-1] if first else ''}")


def moment(timestamp: str) -> Html:
    if not timestamp:
        return text("")
    return tag("time", jobs.age(timestamp), datetime=timestamp, title=timestamp)


def clock(timestamp: str) -> Html:
    """Return the date and time of a moment in UTC, as `berg show` has them."""
    shown = timestamp.replace("T", " ").replace("Z", " UTC")
    return tag("time", shown, datetime=timestamp)


def details(pairs: Iterable[tuple[str, object]]) -> Html:
    """Return a list of names and values, without the empty ones."""
    return tag("dl", *(text(tag("dt", key), tag("dd", value)) for key, value in pairs if value))


def nothing(what: str) -> Html:
    return tag("p", f"There are no {what}.", class_="none")


def note(line: str) -> Html:
    return tag("p", line, class_="note")


def search_field(key: str, label: str, placeholder: str, **more: object) -> Html:
    shown = {"placeholder": placeholder, "aria_label": label, **more}
    return tag("input", id=key, type="search", **shown)


def filter_field() -> Html:
    return search_field("filter", "Filter the jobs", "Filter  /")


def to_copy(commands: list[str]) -> Html:
    """Return commands for a terminal; page.js adds a button that copies each."""
    lines = (tag("p", tag("code", each)) for each in commands)
    return section("commands", "In a terminal", *lines)


def overview(
    frame: Frame, entries: list[jobs.Entry], notes: list[str], costs: dict[str, float]
) -> Html:
    """Return the page of all jobs, sweeps and machines; `costs` are those of machines, in USD."""
    sweeps = {each.sweep for each in entries if each.sweep}
    rows = [job_row(frame, each, each.name in sweeps) for each in folded(entries)]
    header = ("Name", "State", "Age", "Ran", "Cost", "Zone", "GPUs", "User", "Results", "Exit")
    listed = tag("p", 'Nothing yet. Start with: berg run "python train.py"')
    compare, running = None, None
    if rows:
        listed = table(header, rows, class_="sortable", id="list")
        button = tag("button", "Compare what is ticked")
        about = {"id": "compare", "action": "compare/", "method": "get", "class_": "compare"}
        compare = tag("form", button, **about) if frame.live else None
    if machines := jobs.machines_of(entries):
        running = section("machines", "Machines", machine_table(frame, machines, costs))
    return frame.page(
        "Jobs",
        *map(note, notes),
        running,
        tag("h2", "Jobs"),
        filter_field(),
        compare,
        section("jobs", "", listed),
    )


def job_row(frame: Frame, each: jobs.Entry, is_sweep: bool) -> Html:
    name, status, _, _, zone, gpus, results, code = cells_of(each)
    link, box = text(name), None
    if is_sweep or (each.state and job.NAME.fullmatch(name)):
        link = frame.link("sweep" if is_sweep else "job", name)
        tick = {"type": "checkbox", "name": "job", "value": name, "form": "compare"}
        box = tag("input", **tick, aria_label=f"Compare {name}") if frame.live else None
    lines = [each.summary.note]
    if each.state:
        lines += [each.state.reason, jobs.hang(each.state), jobs.attempt(each.state), each.left]
    reasons = [tag("small", line, class_="reason") for line in lines if line]
    return row(
        tag("td", box, link, class_="name"),
        tag("td", badge(status), *reasons),
        *age_ran_cost(each),
        zone,
        gpus,
        each.user,
        tag("td", results, class_="name"),
        code,
    )


def age_ran_cost(each: jobs.Entry) -> list[Html]:
    """Return three cells, with the values by which page.js sorts them."""
    ran = each.state.ran_seconds if each.state else 0
    return [
        tag("td", moment(each.created_at), data_value=each.created_at),
        tag("td", plain.duration(ran) if ran else "", data_value=ran),
        tag("td", cells_of(each)[3], data_value=each.usd or 0),
    ]


def machine_table(
    frame: Frame, found: list[tuple[Any, jobs.Entry]], costs: dict[str, float]
) -> Html:
    rows = []
    for machine, entry in found:
        owner = text("none")
        if entry.state:
            owner = frame.link("sweep" if entry.sweep else "job", entry.sweep or entry.name)
        cells = (
            tag("td", machine.name, class_="name"),
            badge(machine.status),
            moment(machine.created_at),
            f"${costs[machine.name]:,.2f}" if machine.name in costs else "",
            machine.zone,
            machine.gpus,
            machine.external_ip or machine.internal_ip,
            owner,
        )
        rows.append(row(*cells))
    return table(("Name", "State", "Age", "Cost", "Zone", "GPUs", "Address", "Job"), rows)


def one_job(frame: Frame, about: collect.About, log: Html, notice: str = "") -> Html:
    """Return the page of a job: its state, log, charts, results and code."""
    entry, state = about.record.entry, about.record.entry.state
    assert state
    end, machines, software = None, None, None
    if frame.live and (not state.final or entry.machines):
        end = tag("a", "End it …", href="kill", class_="danger")
    if len(entry.machines) > 1:
        pairs = [(machine, entry) for machine in entry.machines]
        machines = machine_table(frame, pairs, about.costs)
    if about.software.python:
        software = software_of(about.software)
    metrics = metric_charts(about) or [nothing("metrics.jsonl or event files")]
    busy = busy_charts(about.busy) or [nothing("samples of its machines")]
    times = (attempts(state), history(state))
    return frame.page(
        entry.name,
        tag("h1", entry.name, " ", end),
        note(notice) if notice else None,
        section("facts", "", details(facts(frame, about)), *times, machines),
        log,
        section("metrics", "Metrics", *metrics),
        section("busy", "Utilization", *busy),
        section("results", "Results", *results(frame, about)),
        section("code", "Code", *code_of(about.record.job), software, live=False),
        to_copy(commands_for(entry)),
    )


def commands_for(entry: jobs.Entry) -> list[str]:
    """Return the commands that a user may want next for a job."""
    name = entry.name
    found = [f"berg fetch {name}", f"berg show {name}", f"berg rerun {name}"]
    if entry.state and entry.state.final and entry.state.state != "SUCCEEDED":
        found.append(f"berg run --resume {name}")
    if entry.machines:
        found += [f"berg ssh {name}", f"berg log -f {name}", f"berg kill {name}"]
    return found


def facts(frame: Frame, about: collect.About) -> list[tuple[str, object]]:
    """Return what is known about the state of a job."""
    entry, state = about.record.entry, about.record.entry.state
    assert state
    code, tries, machine = "", "", ""
    if state.exit_code is not None:
        code = f" with exit code {state.exit_code}"
    if state.attempt > 1:
        tries = f"{state.attempt}, {state.restarts} of them after the loss of a machine"
    if state.machine:
        machine = f"{state.machine} in {state.zone}{entry.fate}"
    return [
        ("State", text(badge(entry.status), code)),
        ("Note", state.job.note),
        ("Reason", state.reason),
        ("Hang", state.hang),
        ("Network", state.network),
        ("Not saved", state.lost),
        ("Other folders", state.elsewhere),
        ("Checkout", state.checkout),
        ("Attempts", tries),
        ("Waits", jobs.attempt(state) if state.missing else ""),
        ("Created", text(clock(entry.created_at), " (", moment(entry.created_at), " ago)")),
        ("Ran", plain.duration(state.ran_seconds) if state.ran_seconds else ""),
        ("Cost", about.cost),
        ("By", entry.user),
        ("Sweep", frame.link("sweep", entry.sweep) if entry.sweep else ""),
        ("Machine", machine),
        ("Left", entry.left),
    ]


def attempts(state: job.State) -> Html | None:
    """Return the attempts of a job, and why each one before ended; None for a single attempt."""
    if not state.attempts:
        return None
    rows = state.attempts
    if rows[0][0] == "2":
        rows = [["1", state.started_at, ""], *rows]
    header = ("Attempt", "Since", "For", "Why the one before ended")
    return timeline("Attempts", header, rows, state.finished_at)


def history(state: job.State) -> Html | None:
    """Return every state that the job had; None if its times are damaged."""
    if not state.history or any(len(each) != 2 for each in state.history):
        return None
    rows = [[badge(name), begun] for name, begun in state.history]
    return timeline("History", ("State", "Since", "For"), rows, "")


def timeline(title: str, header: Iterable[str], rows: list[Any], end: str) -> Html:
    """Return a table of periods: each ends where the next one begins, the last one at `end`."""
    ends = [when for _, when, *_ in rows[1:]] + [end]
    shown = [
        row(name, clock(begun), between(begun, ended), *more)
        for (name, begun, *more), ended in zip(rows, ends, strict=True)
    ]
    return tag("details", tag("summary", title), table(header, shown), open=True)


def between(begun: str, ended: str) -> str:
    """Return the time between two timestamps in words; "" if one is missing."""
    return plain.duration(spending.between(begun, ended)) if begun and ended else ""


def metric_charts(about: collect.About) -> list[Html]:
    cut = []
    if about.cut:
        most = f"only the first {collect.LARGEST >> 20} MiB are shown here"
        whole = f"All of it: berg tensorboard {about.record.entry.name}"
        cut = [note(f"Of {', '.join(about.cut)} {most}. {whole}")]
    return cut + charts(about.metrics, draw)


def busy_charts(found: dict[str, Lines]) -> list[Html]:
    """Return how busy the machines were over time."""
    starts = [x for lines in found.values() for points in lines.values() for x, _ in points]
    began = min(starts, default=0.0)
    titles = collect.OF_MACHINES | collect.OF_ACCELERATORS

    def draw(name: str, lines: Lines) -> Html | None:
        return draw_machines(*titles[name.removeprefix("accelerator_")], lines, began)

    return charts(found, draw)


def charts(found: dict[str, Lines], draw: Callable[[str, Lines], Html | None]) -> list[Html]:
    """Return the charts that fit on a page, those of accelerators first."""
    shown, left = collect.fitting(found)
    notes = [note(f"{plain.plural(left, 'more line')} did not fit on this page")] if left else []
    names = sorted(shown, key=lambda name: (not name.startswith("accelerator_"), name))
    return notes + with_note(draw(name, shown[name]) for name in names)


def results(frame: Frame, about: collect.About) -> list[object]:
    """Return the files of a job, and its images."""
    folder = f"{collect.results_folder(about.record.entry)}/"
    files = about.record.results
    if not files:
        return [nothing("results yet")]
    endings = tuple(collect.PICTURES)
    images = [each for each in files if each.generation and each.name.lower().endswith(endings)]
    pictures = [picture(each.name.removeprefix(folder)) for each in images[:IMAGES]]
    rows = [file_row(each, each.name.removeprefix(folder)) for each in files[:FILES]]
    size = plain.size(sum(each.size for each in files))
    count = f"{plain.plural(len(files), 'file')}, {size}, in gs://{frame.bucket}/{folder}"
    if deleted := about.record.deleted:
        size = plain.size(sum(each.size for each in deleted))
        count += f"; deleted by the job: {plain.plural(len(deleted), 'file')}, {size}"
    more = tag("p", f"… and {len(files) - FILES:,} more") if len(files) > FILES else None
    listed = table(("File", "Size", "Written (UTC)"), rows, class_="sortable")
    return [tag("p", count), tag("div", *pictures, class_="pictures"), listed, more]


def picture(name: str) -> Html:
    address = f"files/{quote(name)}"
    shown = tag("a", tag("img", src=address, alt=name, loading="lazy"), href=address)
    return tag("figure", shown, tag("figcaption", name), class_="picture")


def file_row(file: Listed, name: str) -> Html:
    size = tag("td", plain.size(file.size), data_value=file.size)
    shown = tag("a", name, href=f"files/{quote(name)}")
    if file.row and file.row.link:
        shown = tag("span", f"{name} → {file.row.link}")
    return row(tag("td", shown, class_="name"), size, str(file.updated or "")[:19])


def code_of(this: job.Job | None) -> list[object]:
    """Return what a job runs: commit, changed files, command, environment."""
    if this is None:
        return [nothing("readable metadata, so that its code and command are unknown")]
    repo, machine = this.repo_name, this.machine_type
    if branch := this.snapshot.get("branch"):
        repo += f", branch {branch}"
    if this.gpus_per_machine:
        machine += f" with {this.gpus_per_machine} x {this.gpu_type}"
    env = {key: "…" if HIDDEN.search(key) else this.env[key] for key in sorted(this.env)}
    variables = [f"{key}={value}" for key, value in env.items()]
    variables += [f"{name}=… (a secret)" for name in this.secrets]
    pairs = [
        ("Command", lines_of([this.cmd])),
        ("Repo", repo),
        ("Commit", tag("code", this.git_commit)),
        ("As it ran", tag("code", this.git_snapshot) if this.git_dirty else None),
        ("Changed files", lines_of(this.git_changed_files)),
        ("Folder", this.spec.cwd or ""),
        ("Install script", this.spec.install_script or ""),
        ("Environment", lines_of(variables)),
        ("Data", ", ".join(str(each.get("name")) for each in this.data)),
        ("Machine", f"{this.num_machines} x {machine}, {this.image.rpartition('/')[2]}"),
        ("By berg", this.berg_version),
    ]
    return [details(pairs)]


def software_of(found: Software) -> Html:
    packages = [f"{name}=={found.packages[name]}" for name in sorted(found.packages)]
    count = plain.plural(len(packages), "package")
    listed = tag("details", tag("summary", count), lines_of(packages))
    return details([("Python", found.python), ("Driver", found.driver), ("Installed", listed)])


def lines_of(lines: list[str]) -> Html | None:
    """Return lines as preformatted text; None if all are empty."""
    return tag("pre", "\n".join(lines)) if any(lines) else None


def log_section(piece: collect.Log, follows: bool) -> Html:
    """Return the end of a log, to which page.js adds new lines if it `follows`."""
    place = json.dumps(piece.read_to) if follows else None
    body = tag("div", log_lines(piece), class_="log", tabindex=0, role="log", data_follow=place)
    return section("log", "Log", log_form("", piece.skipped), body, live=False)


def hits_section(lines: list[Html], wanted: str) -> Html:
    """Return the lines that a search found in a whole log."""
    count = f"{plain.plural(len(lines), 'line')} of the log with {wanted!r}. "
    back = tag("a", "Back to the end of the log", href="./")
    body = tag("div", *lines, class_="log", tabindex=0)
    return section("log", "Log", log_form(wanted, 0), tag("p", count, back), body, live=False)


def log_form(wanted: str, skipped: int) -> Html:
    """Return the field for a search, and a link to the whole log."""
    field = search_field("find", "Search the log", "Search the log", name="find", value=wanted)
    where = f"The first {plain.size(skipped)} are in " if skipped else "As text: "
    whole = tag("span", where, tag("a", "all of it", href="log.txt"), class_="where")
    return tag("form", field, whole, method="get", class_="find")


def log_lines(piece: collect.Log) -> Html:
    return text(
        tag("div", *(log_line(machine, line) for machine, line in piece.lines), class_="whole"),
        tag("div", *(log_line(machine, line) for machine, line in piece.rest), class_="rest"),
    )


def log_line(machine: str, line: str, number: int | None = None) -> Html:
    name = tag("b", f"{machine} | ") if machine else None
    return tag("p", tag("i", number) if number else None, name, of_terminal(line))


def ask_kill(frame: Frame, entry: jobs.Entry) -> Html:
    """Return the question before a job is ended."""
    title = f"End {entry.name}?"
    end = tag("button", f"End {entry.name}", class_="danger")
    back = tag("a", "No, go back", href="./")
    return frame.page(
        title,
        tag("h1", title),
        tag("p", badge(entry.status)),
        tag(
            "p",
            "Its command gets SIGTERM and 30 seconds; the last results are uploaded; then "
            f"{plain.plural(len(entry.machines), 'machine')} will be deleted.",
        ),
        tag("form", end, " ", back, method="post", action="kill"),
    )


def one_sweep(frame: Frame, name: str, found: collect.Several) -> Html:
    """Return the page of a sweep: its jobs as a table and as charts, and their code."""
    commands = [f"berg fetch {name}", f"berg show {name}", f"berg run --resume {name}"]
    if any(each.machines or each.workers for each in found.entries):
        commands.append(f"berg kill {name}")
    return frame.page(
        name,
        tag("h1", name),
        tag("h2", plain.plural(len(found.rows), "job")),
        filter_field(),
        section("jobs", "", job_table(frame, found)),
        section("pictures", "Parameters and metrics", *sweep_charts(found.rows)),
        section("code", "Code of the first job", *code_of(found.first), live=False),
        to_copy(commands),
    )


def compared(frame: Frame, found: collect.Several, asked: list[str]) -> Html:
    """Return the page that compares jobs; `asked` are the jobs and sweeps that were chosen."""
    names = [each.name for each in found.entries]
    difference, commands = None, [f"berg show {each}" for each in asked]
    if len(names) == 2:
        query = f"../diff/?job={names[0]}&job={names[1]}"
        difference = tag("p", tag("a", "What differs between the two", href=query))
        commands.insert(0, f"berg diff {names[0]} {names[1]}")
    left = f"{found.left:,} more jobs were chosen than fit here"
    return frame.page(
        "Compared",
        tag("h1", f"{plain.plural(len(names), 'job')} compared"),
        note(left) if found.left else None,
        difference,
        filter_field(),
        section("jobs", "", job_table(frame, found)),
        section("metrics", "Metrics", *charts(found.metrics, draw)),
        section("pictures", "Parameters and metrics", *sweep_charts(found.rows)),
        to_copy(commands),
    )


def differing(frame: Frame, found: Comparison) -> Html:
    """Return the page of what differs between two jobs."""
    links = [frame.link("job", name) for name in found.names]
    code = tag("pre", found.code) if found.code else tag("p", "It is the same.", class_="none")
    return frame.page(
        "What differs",
        tag("h1", links[0], " and ", links[1]),
        section("facts", "What differs", difference_table(links, found.differences), live=False),
        section("metrics", "Last metrics", difference_table(links, found.metrics), live=False),
        section("code", "Code", code, live=False),
        to_copy([f"berg diff {found.names[0]} {found.names[1]}"]),
    )


def difference_table(links: list[Html], rows: list[Difference]) -> Html:
    if not rows:
        return nothing("differences")
    shown = [row(each.what, each.first, each.second) for each in rows]
    return table(["", *links], shown, class_="sides")


def job_table(frame: Frame, found: collect.Several) -> Html:
    """Return a table of jobs: their states, parameters and last metrics."""
    params, metrics = keys(found.rows)
    shown = []
    for entry, each in zip(found.entries, found.rows, strict=True):
        values = [each.exit_code, *map(each.params.get, params), *map(each.metrics.get, metrics)]
        cells = [tag("td", value(found), data_value=found) for found in values]
        link = tag("td", frame.link("job", each.name), class_="name")
        state = tag("td", badge(each.state), tag("small", each.reason, class_="reason"))
        shown.append(row(link, state, *age_ran_cost(entry), *cells, data_job=each.name))
    header = ["Job", "State", "Age", "Ran", "Cost", "Exit", *params, *metrics]
    return table(header, shown, class_="sortable", id="list")


def keys(rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the names of all parameters and of all metrics of jobs."""
    params = dict.fromkeys(key for each in rows for key in each.params)
    metrics = dict.fromkeys(key for each in rows for key in each.metrics)
    return list(params)[:KEYS], list(metrics)[:KEYS]


def value(found: object) -> str:
    if isinstance(found, float):
        return label(found)
    return "" if found is None else str(found)[:200]


def columns(keys: list[str], values: list[dict[str, Any]]) -> list[Column]:
    return [Column(key, [each.get(key) for each in values]) for key in keys]


def sweep_charts(rows: list[Row]) -> list[Html]:
    """Return parallel coordinates of what differs, and each parameter against each metric."""
    params, metrics = keys(rows)
    shown = [key for key in metrics if key not in (*events.STEPS, *events.TIMES)]
    measured = columns(shown, [each.metrics for each in rows])
    measured = [each for each in measured if not each.words]
    if not measured:
        return [nothing("jobs with parameters and metrics")]
    given = columns(params, [each.params for each in rows])
    differing = [each for each in given if each.differs]
    chosen = [*differing[: COLUMNS - min(len(measured), 4)], *measured[:4]]
    names = [each.name for each in rows]
    pairs = itertools.islice(itertools.product(measured, differing), SCATTERS)
    scatters = [scatter(names, param, metric) for metric, param in pairs]
    return with_note([parallel(names, chosen), *scatters])
