"""The pages: all jobs, one job, one sweep. Each is HTML that needs no program to be read.

They stand in folders (`job/NAME/`, `sweep/NAME/`) and lead to each other relatively, so that the
same pages are served and lie on disk.

Pages of several jobs: a sweep, jobs that were chosen to be compared, and what differs between
two.
"""

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from berg import job, plain
from berg.google import events
from berg.google.storage import Listed
from berg.laptop import jobs
from berg.laptop.compare import Comparison, Difference
from berg.laptop.jobs import cells as cells_of
from berg.laptop.jobs import folded
from berg.laptop.records import Software
from berg.laptop.sweep import Row
from berg.watch import collect, library, markup
from berg.watch.markup import Html, join, of_terminal, tag, text

EVERY = 10  # seconds after which what lives is looked at again

FILES = 500  # that are named; of more the number

PICTURES = 60

# The library writes what its drawings look like into the style sheet that has this id.
STYLE_ID = "plotly.js-style-global"

# Variables whose values are not shown: berg's own way for secrets is --secret, but not everybody
# takes it.
HIDDEN = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|DSN|WEBHOOK", re.I)


@dataclass
class Frame:
    """What all pages have in common, and where they are."""

    project: str
    bucket: str
    live: bool = True  # False: on disk, where nothing changes and nothing can be asked
    root: str = ""  # how to go from this page to where the first one is

    @property
    def index(self) -> str:
        return "" if self.live else "index.html"

    def link(self, kind: str, name: str, what: object = None) -> Html:
        return tag("a", what or name, href=f"{self.root}{kind}/{quote(name, safe='')}/{self.index}")

    def page(self, title: str, *content: object) -> Html:
        home = tag("a", "berg", href=f"{self.root}{self.index}" or "./", class_="home")
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{title} · berg"),
            tag("link", rel="icon", href="data:,"),
            tag("link", rel="stylesheet", href=f"{self.root}page.css", id=self.live and STYLE_ID),
            *(tag("script", src=f"{self.root}{each}", defer=True) for each in scripts(content)),
        )
        where = tag("span", f"{self.project} · gs://{self.bucket}", class_="where")
        body = tag(
            "body",
            tag("header", home, where),
            tag("main", *content),
            data_every=EVERY if self.live else None,
        )
        return Html(f"<!doctype html>\n{tag('html', head, body, lang='en')}\n")


def scripts(content: Iterable[object]) -> list[str]:
    """Return the scripts that a page needs: those for figures where it has any."""
    found = library.find()
    has_figures = any("data-figure=" in part for part in content if isinstance(part, Html))
    if found and has_figures:
        return ["figures.js", "page.js", found.name]
    return ["page.js"]


def section(name: str, title: str, *content: object, live: bool = True) -> Html:
    """A part of a page; one that is live is brought anew while it is looked at."""
    return tag("section", tag("h2", title) if title else None, *content, id=name, data_live=live)


def table(header: Iterable[object], rows: Iterable[Html], **attributes: object) -> Html:
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in header)))
    return tag("div", tag("table", head, tag("tbody", *rows), **attributes), class_="wide")


def row(*cells: object, **attributes: object) -> Html:
    return tag("tr", *(each if is_cell(each) else tag("td", each) for each in cells), **attributes)


def is_cell(cell: object) -> bool:
    return isinstance(cell, Html) and cell.startswith("<td")


def badge(status: str) -> Html:
    """A state in its colour: of a sweep, that of its last word, as in the terminal."""
    first = status.partition(",")[0].split()
    return tag("span", status, class_=f"state {first[-1] if first else ''}")


def moment(timestamp: str) -> Html:
    return (
        tag("time", jobs.age(timestamp), datetime=timestamp, title=timestamp)
        if timestamp
        else text("")
    )


def details(pairs: Iterable[tuple[str, object]]) -> Html:
    return tag(
        "dl",
        *(part for key, value in pairs if value for part in (tag("dt", key), tag("dd", value))),
    )


def overview(
    frame: Frame, entries: list[jobs.Entry], said: list[str], costs: dict[str, float]
) -> Html:
    """All jobs, sweeps and machines, and what those cost that is known of."""
    sweeps = {each.sweep for each in entries if each.sweep}
    rows = [job_row(frame, each, each.name in sweeps) for each in folded(entries)]
    machines = jobs.machines_of(entries)
    search = tag(
        "input", id="filter", type="search", placeholder="Filter  /", aria_label="Filter the jobs"
    )
    nothing = tag("p", 'Nothing yet. Start with: berg run "python train.py"')
    header = ("Name", "State", "Age", "Ran", "Cost", "Zone", "GPUs", "User", "Results", "Exit")
    return frame.page(
        "Jobs",
        *(tag("p", line, class_="note") for line in said),
        section("machines", "Machines", machine_table(frame, machines, costs))
        if machines
        else None,
        tag("h2", "Jobs"),
        search,
        compare_form() if frame.live and rows else None,
        section("jobs", "", table(header, rows, class_="sortable", id="list") if rows else nothing),
    )


def compare_form() -> Html:
    """Return the button that compares the jobs whose boxes in the list are ticked."""
    button = tag("button", "Compare what is ticked")
    return tag("form", button, id="compare", action="compare/", method="get", class_="compare")


def tick(frame: Frame, name: str) -> Html | None:
    """Return the box of a job or sweep that is to be compared; None where nothing can be asked."""
    if not frame.live:
        return None
    label = f"Compare {name}"
    return tag("input", type="checkbox", name="job", value=name, form="compare", aria_label=label)


def job_row(frame: Frame, each: jobs.Entry, is_sweep: bool) -> Html:
    name, status, _, cost, zone, gpus, results, code = cells_of(each)
    known = is_sweep or (each.state and job.NAME.fullmatch(name))
    link = frame.link("sweep" if is_sweep else "job", name) if known else text(name)
    box = tick(frame, name) if known else None
    lines = [each.summary.note]
    if each.state:
        lines += [each.state.reason, jobs.attempt(each.state), each.left]
    said = [tag("small", line, class_="reason") for line in lines if line]
    age = tag("td", moment(each.created_at), data_value=each.created_at)
    ran = each.state.ran_seconds if each.state else 0
    return row(
        tag("td", box, link, class_="name"),
        tag("td", badge(status), *said),
        age,
        tag("td", plain.duration(ran) if ran else "", data_value=ran),
        tag("td", cost, data_value=each.usd or 0),
        zone,
        gpus,
        each.user,
        tag("td", results, class_="name"),
        code,
    )


def machine_table(
    frame: Frame, found: list[tuple[Any, jobs.Entry]], costs: dict[str, float]
) -> Html:
    """Machines, with what they cost since they were made where prices are known."""
    rows = []
    for machine, entry in found:
        name = entry.sweep or entry.name
        kind = "sweep" if entry.sweep else "job"
        whose = frame.link(kind, name) if entry.state else text("none")
        address = machine.external_ip or machine.internal_ip
        price = f"${costs[machine.name]:,.2f}" if machine.name in costs else ""
        cells = (
            badge(machine.status),
            moment(machine.created_at),
            price,
            machine.zone,
            machine.gpus,
            address,
            whose,
        )
        rows.append(row(tag("td", machine.name, class_="name"), *cells))
    return table(("Name", "State", "Age", "Cost", "Zone", "GPUs", "Address", "Job"), rows)


def one_job(frame: Frame, about: collect.About, log: Html, note: str = "") -> Html:
    """Return the page of a job: how it goes, its log, charts, results and code."""
    entry, state = about.record.entry, about.record.entry.state
    assert state
    end, noted, machines = None, None, None
    if frame.live and (not state.final or entry.machines):
        end = tag("a", "End it …", href="kill", class_="danger")
    if note:
        noted = tag("p", note, class_="note")
    if len(entry.machines) > 1:
        pairs = [(machine, entry) for machine in entry.machines]
        machines = machine_table(frame, pairs, about.costs)
    metrics = metric_charts(about) or [nothing("metrics.jsonl or event files")]
    ran_with = software_of(about.software)
    busy = busy_charts(about.busy) or [nothing("samples of its machines")]
    return frame.page(
        entry.name,
        tag("h1", entry.name, " ", end),
        noted,
        section("facts", "", details(facts(frame, about)), *histories(state), machines),
        log,
        section("metrics", "Metrics", *metrics),
        section("busy", "Utilisation", *busy),
        section("results", "Results", *results(frame, about)),
        section("code", "Code", *code_of(about.record.job), ran_with, live=False),
        to_copy(commands_for(entry)),
    )


def commands_for(entry: jobs.Entry) -> list[str]:
    """Return the commands for what one may want of a job next."""
    name = entry.name
    again = [f"berg fetch {name}", f"berg show {name}", f"berg rerun {name}"]
    if entry.state and entry.state.final and entry.state.state != "SUCCEEDED":
        again.append(f"berg run --resume {name}")
    if not entry.machines:
        return again
    return [*again, f"berg ssh {name}", f"berg log -f {name}", f"berg kill {name}"]


def to_copy(commands: list[str]) -> Html:
    """Return the part of a page with commands for a terminal; page.js adds what copies each."""
    lines = (tag("p", tag("code", each)) for each in commands)
    return section("commands", "In a terminal", *lines)


def facts(frame: Frame, about: collect.About) -> list[tuple[str, object]]:
    """Return what is known of how a job goes; what is empty is not shown."""
    entry, state = about.record.entry, about.record.entry.state
    assert state
    code, tries, ran, sweep, machine = "", "", "", None, ""
    if state.exit_code is not None:
        code = f" with exit code {state.exit_code}"
    if state.attempt > 1:
        tries = f"{state.attempt}, {state.restarts} of them after a machine went away"
    if state.ran_seconds:
        ran = plain.duration(state.ran_seconds)
    if entry.sweep:
        sweep = frame.link("sweep", entry.sweep)
    if state.machine:
        machine = f"{state.machine} in {state.zone}"
    if state.machine and not entry.machines:
        machine += ", gone"
    return [
        ("State", text(badge(entry.status), code)),
        ("Note", state.job.note),
        ("Reason", state.reason),
        ("Lost", state.lost),
        ("Beside", state.elsewhere),
        ("Attempts", tries),
        ("Waits", jobs.attempt(state) * bool(state.awaited)),
        ("Created", moment(entry.created_at)),
        ("Ran", ran),
        ("Cost", about.cost),
        ("By", entry.user),
        ("Sweep", sweep),
        ("Machine", machine),
        ("Left", entry.left),
    ]


def nothing(what: str) -> Html:
    return tag("p", f"There are no {what}.", class_="none")


def histories(state: job.State) -> list[Html | None]:
    return [attempts(state), history(state)]


def attempts(state: job.State) -> Html | None:
    """The attempts of a job that began anew: when each began, how long it took, and why the one
    before it ended; None if there is one alone.
    """
    if not state.attempts:
        return None
    begun = [["1", state.started_at, ""]] * (state.attempts[0][0] == "2") + state.attempts
    ends = [when for _, when, _ in begun[1:]] + [state.finished_at]
    rows = [
        row(number, moment(when), between(when, end), why)
        for (number, when, why), end in zip(begun, ends, strict=True)
    ]
    header = ("Attempt", "Since", "For", "Why the one before ended")
    return tag("details", tag("summary", "Attempts"), table(header, rows), open=True)


def history(state: job.State) -> Html | None:
    """Every state that the job had, and how long."""
    times = [each[1] for each in state.history if len(each) == 2]
    if len(times) != len(state.history) or not times:
        return None
    rows = []
    for number, (word, begun) in enumerate(state.history):
        ended = times[number + 1] if number + 1 < len(times) else ""
        rows.append(row(badge(word), moment(begun), between(begun, ended)))
    return tag(
        "details", tag("summary", "History"), table(("State", "Since", "For"), rows), open=True
    )


def between(begun: str, ended: str) -> str:
    try:
        first, last = (
            datetime.fromisoformat(each.replace("Z", "+00:00")) for each in (begun, ended)
        )
        return plain.duration((last - first).total_seconds())
    except (ValueError, TypeError):
        return ""


def metric_charts(about: collect.About) -> list[Html]:
    rest = f"only the first {collect.LARGEST >> 20} MiB are shown here. All of it: berg tensorboard"
    cut = (
        [tag("p", f"Of {', '.join(about.cut)} {rest} {about.record.entry.name}", class_="note")]
        if about.cut
        else []
    )
    shown, left = collect.fitting(about.metrics)
    drawn = (markup.draw(markup.of_metric(*each)) for each in shown.items())
    return [*cut, *more_lines(left), *markup.with_note(drawn)]


def more_lines(left: int) -> list[Html]:
    """Return what says that some lines of charts do not fit on a page."""
    if not left:
        return []
    return [tag("p", f"{plain.plural(left, 'more line')} did not fit on this page", class_="note")]


def busy_charts(found: dict[str, collect.Lines]) -> list[Html]:
    """Return how busy the machines were, accelerators first, over the time since they began."""
    starts = [x for lines in found.values() for points in lines.values() for x, _ in points]
    began = min(starts, default=0.0)
    shown, left = collect.fitting(found)
    names = sorted(shown, key=lambda name: (not name.startswith("accelerator_"), name))
    drawn = (markup.draw(markup.of_machines(name, shown[name], began)) for name in names)
    return [*more_lines(left), *markup.with_note(drawn)]


def results(frame: Frame, about: collect.About) -> list[object]:
    """Return the files of a job, pictures as what they show."""
    folder = f"{collect.results_folder(about.record.entry)}/"
    files = about.record.results
    if not files:
        return [nothing("results yet")]
    pictures = [picture(each, folder) for each in collect.pictures(files)[:PICTURES]]
    rows = [file_row(each, folder) for each in files[:FILES]]
    size = plain.size(sum(each.size for each in files))
    note = f"{plain.plural(len(files), 'file')}, {size}, in gs://{frame.bucket}/{folder}"
    more = None
    if len(files) > FILES:
        more = tag("p", f"… and {len(files) - FILES:,} more")
    listed = table(("File", "Size", "Written (UTC)"), rows, class_="sortable")
    return [tag("p", note), tag("div", *pictures, class_="pictures"), listed, more]


def file_address(file: Listed, folder: str) -> str:
    return f"files/{quote(file.name.removeprefix(folder))}"


def picture(file: Listed, folder: str) -> Html:
    name, address = file.name.removeprefix(folder), file_address(file, folder)
    shown = tag("a", tag("img", src=address, alt=name, loading="lazy"), href=address)
    return tag("figure", shown, tag("figcaption", name), class_="picture")


def file_row(file: Listed, folder: str) -> Html:
    link = tag("a", file.name.removeprefix(folder), href=file_address(file, folder))
    size = tag("td", plain.size(file.size), data_value=file.size)
    return row(tag("td", link, class_="name"), size, str(file.updated or "")[:19])


def code_of(this: job.Job | None) -> list[object]:
    """Return what ran: commit, changed files, command, environment."""
    if this is None:
        return [nothing("readable metadata: what was to run cannot be said")]
    repo, machine, snapshot = this.repo_name, this.machine_type, None
    if branch := this.snapshot.get("branch"):
        repo += f", branch {branch}"
    if this.gpus_per_machine:
        machine += f" with {this.gpus_per_machine} x {this.gpu_type}"
    if this.git_dirty:
        snapshot = tag("code", this.git_snapshot)
    pairs = [
        ("Command", lines_of([this.cmd])),
        ("Repo", repo),
        ("Commit", tag("code", this.git_commit)),
        ("As it ran", snapshot),
        ("Changed files", lines_of(this.git_changed_files)),
        ("Folder", this.spec.cwd or ""),
        ("Install script", this.spec.install_script or ""),
        ("Environment", lines_of(variables(this))),
        ("Data", join(", ", [str(each.get("name")) for each in this.data])),
        ("Machine", f"{this.num_machines} x {machine}, {this.image.rpartition('/')[2]}"),
        ("By berg", this.berg_version),
    ]
    return [details(pairs)]


def software_of(found: Software) -> Html | None:
    """Return what the last attempt ran with; None if nobody said so."""
    if not found.python:
        return None
    packages = [f"{name}=={found.packages[name]}" for name in sorted(found.packages)]
    count = plain.plural(len(packages), "package")
    listed = tag("details", tag("summary", count), lines_of(packages))
    return details([("Python", found.python), ("Driver", found.driver), ("Installed", listed)])


def variables(this: job.Job) -> list[str]:
    """Return the variables of a job's command, without values that look like secrets."""
    shown = []
    for key, given in sorted(this.env.items()):
        if HIDDEN.search(key):
            given = "…"
        shown.append(f"{key}={given}")
    return shown + [f"{name}=… (a secret)" for name in this.secrets]


def lines_of(lines: list[str]) -> Html | None:
    """Return lines as they are; None if there is nothing in them."""
    if not any(lines):
        return None
    return tag("pre", "\n".join(lines))


def log_section(piece: collect.Log, follows: bool) -> Html:
    """Return the end of a log, which page.js goes on with if it `follows`."""
    place = None
    if follows:
        place = cursor(piece)
    body = tag("div", log_lines(piece), class_="log", tabindex=0, role="log", data_follow=place)
    return section("log", "Log", log_form("", piece.skipped), body, live=False)


def hits_section(lines: list[Html], wanted: str) -> Html:
    """Return what a search found in all of a log."""
    count = f"{plain.plural(len(lines), 'line')} of the log with {wanted!r}. "
    back = tag("a", "Back to the end of the log", href="./")
    body = tag("div", *lines, class_="log", tabindex=0)
    return section("log", "Log", log_form(wanted, 0), tag("p", count, back), body, live=False)


def log_form(wanted: str, skipped: int) -> Html:
    """Return the field for a search, and where the whole log is."""
    field = tag(
        "input",
        id="find",
        name="find",
        type="search",
        value=wanted,
        placeholder="Search the log",
        aria_label="Search the log",
    )
    where = "As text: "
    if skipped:
        where = f"The first {plain.size(skipped)} are in "
    whole = tag("a", "all of it", href="log.txt")
    return tag(
        "form", field, tag("span", where, whole, class_="where"), method="get", class_="find"
    )


def cursor(piece: collect.Log) -> str:
    return json.dumps(piece.read_to)


def log_lines(piece: collect.Log) -> Html:
    return text(
        tag("div", *(log_line(machine, line) for machine, line in piece.lines), class_="whole"),
        tag("div", *(log_line(machine, line) for machine, line in piece.rest), class_="rest"),
    )


def log_line(machine: str, line: str, number: int | None = None) -> Html:
    whose = tag("b", f"{machine} | ") if machine else None
    return tag("p", tag("i", number) if number else None, whose, of_terminal(line))


def ask_kill(frame: Frame, entry: jobs.Entry) -> Html:
    """The question before a job is ended."""
    machines = plain.plural(len(entry.machines), "machine")
    what = (
        "Its command gets SIGTERM and 30 seconds; the last results are uploaded; then "
        f"{machines} will be deleted."
    )
    form = tag(
        "form",
        tag("button", f"End {entry.name}", class_="danger"),
        " ",
        tag("a", "No, go back", href="./"),
        method="post",
        action="kill",
    )
    return frame.page(
        f"End {entry.name}?",
        tag("h1", f"End {entry.name}?"),
        tag("p", badge(entry.status)),
        tag("p", what),
        form,
    )


def trouble(frame: Frame, title: str, sentence: str) -> Html:
    return frame.page(title, tag("h1", title), tag("p", sentence))


SCATTERS = 12

KEYS = 50  # parameters, and as many metrics, that a page shows as columns

COLUMNS = 10  # of parallel coordinates


def one_sweep(frame: Frame, name: str, found: collect.Several) -> Html:
    """Return the page of a sweep: its jobs with their parameters and last metrics, as a table and
    as pictures, what they ran, and what to type.
    """
    commands = [f"berg fetch {name}", f"berg show {name}", f"berg run --resume {name}"]
    if any(each.machines or each.workers for each in found.entries):
        commands.append(f"berg kill {name}")
    return frame.page(
        name,
        tag("h1", name),
        tag("h2", plain.plural(len(found.rows), "job")),
        filter_field(),
        section("jobs", "", job_table(frame, found)),
        section("pictures", "Parameters and metrics", *sweep_pictures(found.rows)),
        section("code", "Code of the first job", *code_of(found.first), live=False),
        to_copy(commands),
    )


def compared(frame: Frame, found: collect.Several, asked: list[str]) -> Html:
    """Return the page of jobs side by side: parameters, last metrics, and each metric of all of
    them in one chart. `asked` are the names of jobs and sweeps that were chosen.
    """
    fitting, more = collect.fitting(found.metrics)
    drawn = markup.with_note(markup.draw(markup.of_metric(*each)) for each in fitting.items())
    names = [each.name for each in found.entries]
    between, commands = None, [f"berg show {each}" for each in asked]
    if len(names) == 2:
        query = f"../diff/?job={names[0]}&job={names[1]}"
        between = tag("p", tag("a", "What differs between the two", href=query))
        commands.insert(0, f"berg diff {names[0]} {names[1]}")
    left = None
    if found.left:
        left = tag("p", f"{found.left:,} more jobs were chosen than fit here", class_="note")
    return frame.page(
        "Compared",
        tag("h1", f"{plain.plural(len(names), 'job')} compared"),
        left,
        between,
        filter_field(),
        section("jobs", "", job_table(frame, found)),
        section("metrics", "Metrics", *more_lines(more), *drawn),
        section("pictures", "Parameters and metrics", *sweep_pictures(found.rows)),
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
    shown = [row(each.what, tag("td", each.first), tag("td", each.second)) for each in rows]
    return table(["", *links], shown, class_="sides")


def filter_field() -> Html:
    label = "Filter the jobs"
    return tag("input", id="filter", type="search", placeholder="Filter  /", aria_label=label)


def job_table(frame: Frame, found: collect.Several) -> Html:
    """Return a table of jobs: how they went, and their parameters and last metrics."""
    params, metrics = keys(found.rows)
    both = zip(found.entries, found.rows, strict=True)
    shown = [row_of_several(frame, entry, each, params, metrics) for entry, each in both]
    header = ["Job", "State", "Age", "Ran", "Cost", "Exit", *params, *metrics]
    return table(header, shown, class_="sortable", id="list")


def row_of_several(
    frame: Frame, entry: jobs.Entry, each: Row, params: list[str], metrics: list[str]
) -> Html:
    link = tag("td", frame.link("job", each.name), class_="name")
    values = [each.exit_code, *map(each.params.get, params), *map(each.metrics.get, metrics)]
    cells = [tag("td", value(found), data_value=found) for found in values]
    state = tag("td", badge(each.state), tag("small", each.reason, class_="reason"))
    age = tag("td", moment(entry.created_at), data_value=entry.created_at)
    seconds = entry.state.ran_seconds if entry.state else 0
    ran = tag("td", plain.duration(seconds) if seconds else "", data_value=seconds)
    cost = tag("td", cells_of(entry)[3], data_value=entry.usd or 0)
    return row(link, state, age, ran, cost, *cells, data_job=each.name)


def keys(rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the names of all parameters and of all metrics that jobs have."""
    params = dict.fromkeys(key for each in rows for key in each.params)
    metrics = dict.fromkeys(key for each in rows for key in each.metrics)
    return list(params)[:KEYS], list(metrics)[:KEYS]


def value(found: object) -> str:
    if found is None:
        return ""
    if isinstance(found, float):
        return markup.label(found)
    return str(found)[:200]


def columns_of(keys: list[str], values: list[dict[str, Any]]) -> list[markup.Column]:
    return [markup.Column(key, [each.get(key) for each in values]) for key in keys]


def sweep_pictures(rows: list[Row]) -> list[Html]:
    """Return parallel coordinates of what differs, and each parameter against each metric."""
    params, metrics = keys(rows)
    shown = [key for key in metrics if key not in (*events.STEPS, *events.TIMES)]
    measured = columns_of(shown, [row.metrics for row in rows])
    measured = [each for each in measured if not each.words]
    if not measured:
        return [nothing("jobs with parameters and metrics")]
    columns = columns_of(params, [row.params for row in rows])
    differing = [each for each in columns if each.differs]
    chosen = [*differing[: COLUMNS - min(len(measured), 4)], *measured[:4]]
    names = [each.name for each in rows]
    drawn = [markup.parallel(names, chosen)]
    for metric, param in itertools.islice(itertools.product(measured, differing), SCATTERS):
        drawn.append(markup.scatter(names, param, metric))
    return markup.with_note(drawn)
