"""Pages of several jobs: a sweep, jobs that were chosen to be compared, and what differs between
two.
"""

import itertools
from typing import Any

from berg import words
from berg.google import events
from berg.laptop import jobs
from berg.laptop.compare import Comparison, Difference
from berg.laptop.rows import cells as cells_of
from berg.laptop.sweep import Row
from berg.watch import collect, figures
from berg.watch.markup import Html, tag
from berg.watch.page import (
    Frame,
    badge,
    code_of,
    moment,
    more_lines,
    nothing,
    row,
    section,
    table,
    to_copy,
)

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
        tag("h2", words.plural(len(found.rows), "job")),
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
    drawn = figures.with_note(figures.draw(figures.of_metric(*each)) for each in fitting.items())
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
        tag("h1", f"{words.plural(len(names), 'job')} compared"),
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
    shown = [job_row(frame, entry, each, params, metrics) for entry, each in both]
    header = ["Job", "State", "Age", "Ran", "Cost", "Exit", *params, *metrics]
    return table(header, shown, class_="sortable", id="list")


def job_row(
    frame: Frame, entry: jobs.Entry, each: Row, params: list[str], metrics: list[str]
) -> Html:
    link = tag("td", frame.link("job", each.name), class_="name")
    values = [each.exit_code, *map(each.params.get, params), *map(each.metrics.get, metrics)]
    cells = [tag("td", value(found), data_value=found) for found in values]
    state = tag("td", badge(each.state), tag("small", each.reason, class_="reason"))
    age = tag("td", moment(entry.created_at), data_value=entry.created_at)
    seconds = entry.state.ran_seconds if entry.state else 0
    ran = tag("td", words.duration(seconds) if seconds else "", data_value=seconds)
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
        return figures.label(found)
    return str(found)[:200]


def columns_of(keys: list[str], values: list[dict[str, Any]]) -> list[figures.Column]:
    return [figures.Column(key, [each.get(key) for each in values]) for key in keys]


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
    drawn = [figures.parallel(names, chosen)]
    for metric, param in itertools.islice(itertools.product(measured, differing), SCATTERS):
        drawn.append(figures.scatter(names, param, metric))
    return figures.with_note(drawn)
