"""What the page shows of a job or a sweep, from the bucket and the list of machines.

What does not change is read once: objects by name and generation, as numbers, of which a bounded
number is kept.
"""

import functools
import itertools
import json
import os.path
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from berg import BergError, job
from berg.config import Config
from berg.google import events
from berg.google.storage import Bucket, Listed
from berg.job import Machine
from berg.laptop import jobs, logs, records, spending, standing, sweep
from berg.laptop.records import Software
from berg.watch import markup, usage

# bytes of a file with metrics: of a metrics.jsonl the last ones, of an event file the first
LARGEST = 32 << 20
LAST = 16 << 10  # bytes of a metrics.jsonl in which its last values are looked for
LOG = 256 << 10  # bytes of a log that the page begins with
REST = 64 << 10  # bytes of a line that is not whole yet, as progress bars write them
HITS = 1000  # lines that a search shows
AROUND = 1000  # characters of a line before and behind what was searched for
FILES_WITH_METRICS = 20  # of one job; the newest
THREADS = 16
POINTS = 300_000  # of all lines of a page, which are some 10 MB
CHARTS = 100  # of a page
NAME = 200  # characters of a metric's name
COMPARED = 40  # jobs that are shown side by side

ACCELERATOR = re.compile(r"[gt]pu\d+")

Lines = dict[str, list[markup.Point]]


@dataclass
class About:
    """All that the page shows of a job beside its log."""

    record: records.Record
    # name of a metric -> folder of its file -> points
    metrics: dict[str, Lines] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)  # event files of which only the beginning was read
    busy: dict[str, Lines] = field(default_factory=dict)
    cost: str = ""  # so far, in words; "" where prices are not known
    costs: dict[str, float] = field(default_factory=dict)  # of its machines since they were made
    software: Software = field(default_factory=Software)  # of its last attempt


def about(config: Config, bucket: Bucket, name: str) -> About:
    """All about a job; raises BergError for what is none."""
    with ThreadPoolExecutor() as pool:
        busied = pool.submit(busy, bucket, name)
        record = records.read(config, name, 0)
        ran_with = pool.submit(records.read_software, bucket, record.entry.name)
        folder = f"{results_folder(record.entry)}/"
        files = [each for each in record.results if is_metrics(each.name)]
        files = sorted(files, key=lambda each: str(each.updated))[-FILES_WITH_METRICS:]
        read = list(
            pool.map(lambda each: numbers(bucket, each.name, each.generation, each.size), files)
        )
        cut = [each.name.removeprefix(folder) for each in files if is_cut(each)]
        found = About(record, cut=cut, busy=busied.result(), cost=cost(record))
        found.costs = costs(config, record.entry.machines)
        found.software = ran_with.result()
    for each, lines in zip(files, read, strict=True):
        where = str(PurePosixPath(each.name.removeprefix(folder)).parent)
        for metric, points in lines.items():
            found.metrics.setdefault(metric, {}).setdefault(
                metric if where == "." else where, []
            ).extend(points)
    return found


def cost(record: records.Record) -> str:
    """What a job's machines have cost, in words; "" where their price is not known."""
    state = record.entry.state
    if not state or record.entry.usd is None:
        return ""
    hourly = (spending.rate_of(state.job, state.zone) or 0) * state.job.machines
    where = "list price when it was submitted, with disks, without traffic"
    return f"${record.entry.usd:,.2f}, at ${hourly:,.2f} an hour ({where})"


def costs(config: Config, machines: Iterable[Machine]) -> dict[str, float]:
    """What machines cost since they were made, by their names, as far as prices were looked up
    before.
    """
    found = {}
    for each in machines:
        hourly = standing.machine_rate(config, each)
        if hourly is not None and each.created_at:
            found[each.name] = hourly * max(0, job.age_seconds(each.created_at)) / 3600
    return found


def results_folder(entry: jobs.Entry) -> str:
    if not entry.state:
        return ""
    return f"berg_results/{entry.state.job.results_dir}"


def is_metrics(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last == "metrics.jsonl" or "tfevents" in last


def is_cut(file: Listed) -> bool:
    """Whether metrics end before their file does: an event file can only be read from its
    beginning.
    """
    return file.size > LARGEST and not file.name.endswith("metrics.jsonl")


@functools.lru_cache(64)
def numbers(bucket: Bucket, name: str, generation: int, size: int) -> Lines:
    """The numbers in a metrics.jsonl or an event file by their names: step and value."""
    if name.endswith("metrics.jsonl"):
        start = max(0, size - LARGEST)
        data = bucket.read_from(name, start, size) or b""
        found = events.metrics(data.partition(b"\n")[2] if start else data)
    else:
        found = events.scalars(bucket.read_from(name, 0, min(size, LARGEST)) or b"")
    unseen = (*events.STEPS, *events.TIMES)
    return {
        key: markup.thin((step, value) for step, value, _ in points)
        for key, points in found.items()
        if key not in unseen and len(key) <= NAME
    }


def fitting(found: dict[str, Lines]) -> tuple[dict[str, Lines], int]:
    """Return the charts and lines that fit on a page, in the order of their names, and how many
    lines do not.
    """
    shown: dict[str, Lines] = {}
    room, left = POINTS, 0
    for name in sorted(found):
        for line, points in found[name].items():
            if len(points) > room or (name not in shown and len(shown) == CHARTS):
                left += 1
                continue
            room -= len(points)
            shown.setdefault(name, {})[line] = points
    return shown, left


def busy(bucket: Bucket, name: str) -> dict[str, Lines]:
    """How busy the machines of a job were: name of a number -> machine (and accelerator) -> time
    and value.
    """
    shown: dict[str, Lines] = {}
    for machine, blobs in usage.objects(bucket, name).items():
        for blob in blobs:
            for key, points in samples(bucket, blob.name, blob.size).items():
                which, _, kind = key.partition("_")
                is_one = ACCELERATOR.fullmatch(which) and kind
                chart, line = (
                    (f"accelerator_{kind}", f"{machine} {which}") if is_one else (key, machine)
                )
                shown.setdefault(chart, {}).setdefault(line, []).extend(points)
    return shown


@functools.lru_cache(64)
def samples(bucket: Bucket, name: str, size: int) -> Lines:
    """What is in an object of samples, by the names of its numbers: time and value. It only ever
    grows.
    """
    found: Lines = {}
    for sample in usage.parse(bucket.read_from(name, max(0, size - LARGEST), size) or b""):
        for key, value in usage.scalars(sample).items():
            found.setdefault(key, []).append((sample["time"], float(value)))
    return {key: markup.thin(points) for key, points in found.items()}


@dataclass
class Log:
    """A piece of a job's log: whole lines, each with its machine ("": the only one), and what has
    no end yet.
    """

    lines: list[tuple[str, str]]
    rest: list[tuple[str, str]]
    read_to: dict[str, int]  # bytes by object: where the next piece begins
    skipped: int = 0  # bytes before it


def log(
    config: Config, bucket: Bucket, found: jobs.Entry, read_to: dict[str, int] | None = None
) -> Log:
    """Return the end of a job's log, or what came since. Before there is one, what the first
    machine's console shows.
    """
    names = jobs.logs_of(bucket, found.name, None)
    several = jobs.is_cluster(found)
    if read_to is None:
        piece = end_of_logs(bucket, names)
    else:
        piece = Log([], [], dict(read_to))
    for name in names:
        machine = ""
        if several:
            machine = jobs.machine_of(name)
        add_lines(bucket, name, machine, piece, begins=read_to is None)
    if not names and found.machine:
        output = found.place.console(config, found.machine)
        piece.rest = [("", f"[berg] {line}") for line in jobs.STARTUP_LINE.findall(output)]
    return piece


def end_of_logs(bucket: Bucket, names: list[str]) -> Log:
    """Return an empty piece that begins so far before the end of the logs as the page shows."""
    piece, room = Log([], [], {}), LOG
    for name in reversed(names):
        size = size_of(bucket, name)
        start = max(0, size - room)
        room -= size - start
        piece.skipped += start
        piece.read_to[name] = start
    return piece


def add_lines(bucket: Bucket, name: str, machine: str, piece: Log, begins: bool) -> None:
    """Add the lines of one log to a piece, from where the piece was read to."""
    start = piece.read_to.get(name, 0)
    data = bucket.read_from(name, start, start + (LOG * 2)) or b""
    if begins and start:  # in the middle of a line
        cut = data.find(b"\n") + 1
        data, start = data[cut:], start + cut
    whole = data.rfind(b"\n") + 1
    if not whole and len(data) > REST:
        whole = data.rfind(b"\r") + 1 or len(data)
    piece.lines += [(machine, line) for line in split(data[:whole])]
    piece.read_to[name] = start + whole
    if whole < len(data):
        piece.rest.append((machine, data[whole:].decode(errors="replace")))


def size_of(bucket: Bucket, name: str) -> int:
    blob = bucket.get(name)
    return blob.size if blob else 0


def split(data: bytes) -> list[str]:
    lines = data.decode(errors="replace").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


def search(config: Config, name: str, wanted: str) -> Iterator[tuple[int, str, str]]:
    """Number, machine and text of the lines of a whole log in which something stands, the first
    HITS of them.
    """
    lines = enumerate(whole_lines(config, name), 1)
    found = (
        (at, machine, line, line.lower().find(wanted.lower())) for at, (machine, line) in lines
    )
    for at, machine, line, place in itertools.islice(
        (each for each in found if each[3] >= 0), HITS
    ):
        yield at, machine, line[max(0, place - AROUND) : place + len(wanted) + AROUND]


def whole_lines(config: Config, name: str) -> Iterator[tuple[str, str]]:
    """The lines of a whole log, each with its machine; at last those that have no end yet."""
    rest: dict[str, bytes] = {}
    for machine, chunk in logs.chunks(config, name):
        *lines, rest[machine] = (rest.get(machine, b"") + chunk).split(b"\n")
        for line in lines:
            yield machine, line.decode(errors="replace")
    for machine, line in rest.items():
        yield machine, line.decode(errors="replace")


@dataclass
class Several:
    """What a page shows of several jobs."""

    entries: list[jobs.Entry]
    rows: list[sweep.Row]  # of the entries, in their order
    first: job.Job | None = None  # what the first of them was
    metrics: dict[str, Lines] = field(default_factory=dict)  # name of one -> job -> points
    left: int = 0  # jobs that were asked for, and are too many


def sweep_rows(config: Config, bucket: Bucket, name: str) -> list[sweep.Row]:
    """Return a row for each job of a sweep, as `berg fetch` writes them; raises BergError if there
    is no such sweep.
    """
    return rows_of(bucket, sweep_entries(config, name))


def sweep_entries(config: Config, name: str) -> list[jobs.Entry]:
    """Return the jobs of a sweep that have a state; raises BergError if there is none."""
    entries = [entry for entry in sweep.entries(config, name) if entry.state]
    if not entries:
        raise BergError(f"there is no sweep {name!r}. See what there is: berg list")
    return entries


def a_sweep(config: Config, bucket: Bucket, name: str) -> Several:
    """All that the page shows of a sweep; raises BergError if there is no such sweep."""
    entries = sweep_entries(config, name)
    described = records.described_job(bucket, entries[0].name)
    return Several(entries, rows_of(bucket, entries), described)


def compared(config: Config, bucket: Bucket, names: list[str]) -> Several:
    """Jobs side by side, those of a sweep in its place; raises BergError for what is none."""
    chosen = list(dict.fromkeys(each for name in names for each in members(config, name)))
    if not chosen:
        raise BergError("tick at least one job in the list to compare")
    shown = chosen[:COMPARED]
    with ThreadPoolExecutor(4) as pool:
        each_about = list(pool.map(lambda name: about(config, bucket, name), shown))
    entries = [each.record.entry for each in each_about]
    found = Several(entries, rows_of(bucket, entries), left=len(chosen) - len(shown))
    for entry, each in zip(entries, each_about, strict=True):
        for metric, lines in each.metrics.items():
            for folder, points in lines.items():
                line = entry.name if folder == metric else f"{entry.name} {folder}"
                found.metrics.setdefault(metric, {})[line] = points
    return found


def members(config: Config, name: str) -> list[str]:
    """Return the jobs of a sweep; of a job its name. Raises BergError for a name that is none."""
    if not job.NAME.fullmatch(name):
        raise BergError(f"{name[:80]!r} is no name of a job or a sweep")
    return records.members(config, name)


def rows_of(bucket: Bucket, entries: list[jobs.Entry]) -> list[sweep.Row]:
    """Return a row for each job with the last values of its metrics.jsonl."""
    listed = list(bucket.list(common(entries), glob="**/metrics.jsonl"))
    wanted = {f"{results_folder(entry)}/metrics.jsonl" for entry in entries}
    files = [each for each in listed if each.name in wanted]
    with ThreadPoolExecutor(THREADS) as pool:
        read = list(
            pool.map(lambda each: last_values(bucket, each.name, each.generation, each.size), files)
        )
    texts = {
        each.name.removeprefix("berg_results/"): text
        for each, text in zip(files, read, strict=True)
    }
    return sweep.results(entries, lambda path: texts.get(path, ""))


def common(entries: list[jobs.Entry]) -> str:
    """Return what the results folders of jobs begin with."""
    folders = [results_folder(entry) for entry in entries]
    return os.path.commonprefix(folders)  # noqa: RUF071  objects have names, not paths


@functools.lru_cache(20_000)
def last_values(bucket: Bucket, name: str, generation: int, size: int) -> str:
    """The last value of each number near the end of a metrics.jsonl, as one line of JSON."""
    start = max(0, size - LAST)
    data = (bucket.read_from(name, start, size) or b"").decode(errors="replace")
    text = data.partition("\n")[2] if start else data
    return json.dumps(sweep.last_values(text, skips_damage=True))


def file_of(bucket: Bucket, entry: jobs.Entry, path: str) -> Any:
    """A file of a job's results as a Blob; raises BergError if it has none of that name."""
    from berg.google.fetch import NoPlace, below

    folder = f"{results_folder(entry)}/"
    try:
        blob = bucket.get(folder + below(folder + path, folder))
    except NoPlace:
        blob = None
    if blob is None:
        raise BergError(f"{entry.name} has no file {path!r} among its results")
    return blob


def pictures(files: list[Listed]) -> list[Listed]:
    return [
        each
        for each in files
        if each.name.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg"))
    ]
