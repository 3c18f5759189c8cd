"""What the page shows of jobs and sweeps, from the bucket and the list of machines.

Objects are read once for each of their generations, and a bounded number of results is kept.
"""

import functools
import itertools
import json
import os.path
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from berg import BergError, job
from berg.config import Config
from berg.google import events
from berg.google.fetch import NoPlace, below
from berg.google.storage import Bucket, Listed
from berg.job import Machine
from berg.laptop import jobs, logs, records, spending, sweep
from berg.watch import markup, usage

# bytes of a file with metrics: the last ones of a metrics.jsonl, the first ones of an event file
LARGEST = 32 << 20
LAST = 16 << 10  # bytes of a metrics.jsonl in which its last values are looked for
LOG = 256 << 10  # bytes of a log that the page begins with
REST = 64 << 10  # bytes of an incomplete line, as progress bars write them
HITS = 1000  # lines that a search shows
AROUND = 1000  # characters of a line before and after what was searched for
FILES_WITH_METRICS = 20  # of one job; the newest
POINTS = 300_000  # of all lines of a page, which are some 10 MB
CHARTS = 100  # of a page
NAME = 200  # characters of a metric's name
COMPARED = 40  # jobs that are compared
PICTURES = {  # suffix of a file -> its type
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}

Lines = dict[str, list[markup.Point]]


@dataclass
class About:
    """What the page shows of a job, without its log."""

    record: records.Record
    metrics: dict[str, Lines]  # metric -> folder of its file -> points
    cut: list[str]  # event files of which only the beginning was read
    busy: dict[str, Lines]  # number -> machine and accelerator -> points
    cost: str  # so far, in words; "" where prices are unknown
    costs: dict[str, float]  # of its machines since their creation
    software: records.Software  # of its last attempt


def about(config: Config, bucket: Bucket, name: str) -> About:
    """Return what is known about a job; raises BergError if there is no such job."""
    with ThreadPoolExecutor() as pool:
        busied = pool.submit(busy, bucket, name)
        record = records.read(config, name, 0)
        software = pool.submit(records.read_software, bucket, record.entry.name)
        found = [each for each in record.results if each.generation]  # links have none
        leaves = [(each, each.name.rpartition("/")[2]) for each in found]
        files = [each for each, leaf in leaves if leaf == "metrics.jsonl" or "tfevents" in leaf]
        files = sorted(files, key=lambda each: str(each.updated))[-FILES_WITH_METRICS:]
        read = pool.map(lambda each: numbers(bucket, each.name, each.generation, each.size), files)
    folder = f"{results_folder(record.entry)}/"
    metrics: dict[str, Lines] = {}
    cut = []
    for each, lines in zip(files, read, strict=True):
        path = PurePosixPath(each.name.removeprefix(folder))
        where = str(path.parent)
        for metric, points in lines.items():
            line = metric if where == "." else where
            metrics.setdefault(metric, {}).setdefault(line, []).extend(points)
        if each.size > LARGEST and path.name != "metrics.jsonl":
            cut.append(str(path))
    spent = costs(config, record.entry.machines)
    return About(record, metrics, cut, busied.result(), cost(record), spent, software.result())


def cost(record: records.Record) -> str:
    """Return what a job's machines have cost, in words; "" where their price is unknown."""
    state = record.entry.state
    if not state or record.entry.usd is None:
        return ""
    hourly = spending.rate_of(state.job, state.zone) or 0
    where = "list price when it was submitted, with disks, without traffic"
    total = hourly * state.job.machines
    return f"${record.entry.usd:,.2f}, at ${total:,.2f} an hour ({where})"


def costs(config: Config, machines: Iterable[Machine]) -> dict[str, float]:
    """Return what machines cost since their creation, by name, where prices are known already."""
    found = {}
    for each in machines:
        hourly = spending.machine_rate(config, each)
        if hourly is not None and each.created_at:
            found[each.name] = hourly * max(0, job.age_seconds(each.created_at)) / 3600
    return found


def results_folder(entry: jobs.Entry) -> str:
    return f"berg_results/{entry.state.job.results_dir}" if entry.state else ""


@functools.lru_cache(64)
def numbers(bucket: Bucket, name: str, generation: int, size: int) -> Lines:
    """Return the steps and values in a metrics.jsonl or an event file, by metric."""
    if name.endswith("metrics.jsonl"):
        found = events.metrics(bucket.last_lines(name, size, LARGEST))
    else:
        found = events.scalars(bucket.read_from(name, 0, min(size, LARGEST)) or b"")
    return {
        key: markup.thin((step, value) for step, value, _ in points)
        for key, points in found.items()
        if key not in (*events.STEPS, *events.TIMES) and len(key) <= NAME
    }


def fitting(found: dict[str, Lines]) -> tuple[dict[str, Lines], int]:
    """Return the charts that fit on a page by name, and how many lines do not fit."""
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
    """Return what a job's machines were busy with: number -> machine or accelerator -> points."""
    shown: dict[str, Lines] = {}
    for machine, blobs in usage.objects(bucket, name).items():
        for blob in blobs:
            for (accelerator, key), points in samples(bucket, blob.name, blob.size).items():
                chart, line = key, machine
                if accelerator:
                    chart, line = f"accelerator_{key}", f"{machine} {accelerator}"
                shown.setdefault(chart, {}).setdefault(line, []).extend(points)
    return shown


@functools.lru_cache(64)
def samples(bucket: Bucket, name: str, size: int) -> dict[tuple[str, str], list[markup.Point]]:
    """Return times and values in an object of samples, by accelerator and number. It only grows."""
    found: dict[tuple[str, str], list[markup.Point]] = {}
    for sample in usage.parse(bucket.last_lines(name, size, LARGEST)):
        for accelerator, key, value in usage.numbers(sample):
            found.setdefault((accelerator, key), []).append((sample["time"], value))
    return {key: markup.thin(points) for key, points in found.items()}


@dataclass
class Log:
    """A part of a job's log. Lines have their machine, "" if it is the only one."""

    lines: list[tuple[str, str]]
    rest: list[tuple[str, str]]  # lines without an end yet
    read_to: dict[str, int]  # object -> bytes: where the next part begins
    skipped: int = 0  # bytes before it


def log(
    config: Config, bucket: Bucket, found: jobs.Entry, read_to: dict[str, int] | None = None
) -> Log:
    """Return the end of a job's log, or what follows `read_to`; without one, the console."""
    names = jobs.logs_of(bucket, found.name, None)
    piece = Log([], [], dict(read_to or {}))
    if read_to is None:
        room = LOG
        for name in reversed(names):
            blob = bucket.get(name)
            size = blob.size if blob else 0
            piece.read_to[name] = max(0, size - room)
            room -= size - piece.read_to[name]
        piece.skipped = sum(piece.read_to.values())
    several = jobs.is_cluster(found)
    for name in names:
        machine = jobs.machine_of(name) if several else ""
        add_lines(bucket, name, machine, piece, in_middle=read_to is None)
    if not names and found.machine:
        output = found.place.console(config, found.machine)
        piece.rest = [("", f"[berg] {line}") for line in jobs.STARTUP_LINE.findall(output)]
    return piece


def add_lines(bucket: Bucket, name: str, machine: str, piece: Log, in_middle: bool) -> None:
    """Add the lines of one log from `piece.read_to`, which may be in the middle of a line."""
    start = piece.read_to.get(name, 0)
    data = bucket.read_from(name, start, start + (LOG * 2)) or b""
    if in_middle and start:
        cut = data.find(b"\n") + 1
        data, start = data[cut:], start + cut
    whole = data.rfind(b"\n") + 1
    if not whole and len(data) > REST:
        whole = data.rfind(b"\r") + 1 or len(data)
    lines = data[:whole].decode(errors="replace").split("\n")
    piece.lines += [(machine, line) for line in (lines if lines[-1] else lines[:-1])]
    piece.read_to[name] = start + whole
    if whole < len(data):
        piece.rest.append((machine, data[whole:].decode(errors="replace")))


def search(config: Config, name: str, wanted: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, machine and text of the first HITS lines of a log that contain `wanted`."""
    hits = (
        (number, machine, line, at)
        for number, (machine, line) in enumerate(whole_lines(config, name), 1)
        if (at := line.lower().find(wanted.lower())) >= 0
    )
    for number, machine, line, at in itertools.islice(hits, HITS):
        yield number, machine, line[max(0, at - AROUND) : at + len(wanted) + AROUND]


def whole_lines(config: Config, name: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a whole log with their machine, those without an end last."""
    rest: dict[str, bytes] = {}
    for machine, chunk in logs.chunks(config, name):
        *lines, rest[machine] = (rest.get(machine, b"") + chunk).split(b"\n")
        for line in lines:
            yield machine, line.decode(errors="replace")
    for machine, line in rest.items():
        yield machine, line.decode(errors="replace")


@dataclass
class Several:
    """What the page shows of several jobs."""

    entries: list[jobs.Entry]
    rows: list[sweep.Row]  # of the entries, in their order
    first: job.Job | None = None  # the metadata of the first one
    metrics: dict[str, Lines] = field(default_factory=dict)  # metric -> job -> points
    left: int = 0  # chosen jobs that do not fit on the page


def sweep_rows(config: Config, bucket: Bucket, name: str) -> list[sweep.Row]:
    """Return a row for each job of a sweep, as `berg fetch` writes them."""
    return rows_of(bucket, sweep_entries(config, name))


def sweep_entries(config: Config, name: str) -> list[jobs.Entry]:
    """Return the jobs of a sweep that have a state; raises BergError if there is none."""
    entries = [entry for entry in sweep.entries(config, name) if entry.state]
    if not entries:
        raise BergError(f"there is no sweep {name!r}. List jobs and sweeps: berg list")
    return entries


def a_sweep(config: Config, bucket: Bucket, name: str) -> Several:
    """Return what the page shows of a sweep; raises BergError if there is no such sweep."""
    entries = sweep_entries(config, name)
    first = records.described_job(bucket, entries[0].name)
    return Several(entries, rows_of(bucket, entries), first)


def compared(config: Config, bucket: Bucket, names: list[str]) -> Several:
    """Return jobs to compare, for a sweep its jobs; raises BergError for other names."""
    for name in names:
        if not job.NAME.fullmatch(name):
            raise BergError(f"{name[:80]!r} is not the name of a job or a sweep")
    chosen = records.members(config, names)
    if not chosen:
        raise BergError("tick at least one job in the list to compare")
    with ThreadPoolExecutor(4) as pool:
        abouts = list(pool.map(lambda name: about(config, bucket, name), chosen[:COMPARED]))
    entries = [each.record.entry for each in abouts]
    found = Several(entries, rows_of(bucket, entries), left=len(chosen) - len(entries))
    for entry, each in zip(entries, abouts, strict=True):
        for metric, lines in each.metrics.items():
            for folder, points in lines.items():
                line = entry.name if folder == metric else f"{entry.name} {folder}"
                found.metrics.setdefault(metric, {})[line] = points
    return found


def rows_of(bucket: Bucket, entries: list[jobs.Entry]) -> list[sweep.Row]:
    """Return a row for each job with the last values of its metrics.jsonl."""
    folders = [results_folder(entry) for entry in entries]
    wanted = {f"{folder}/metrics.jsonl" for folder in folders}
    common = os.path.commonprefix(folders)  # noqa: RUF071  objects have names, not paths
    files = [each for each in bucket.list(common, glob="**/metrics.jsonl") if each.name in wanted]
    with ThreadPoolExecutor(16) as pool:
        read = pool.map(
            lambda each: last_values(bucket, each.name, each.generation, each.size), files
        )
    texts = {
        each.name.removeprefix("berg_results/"): text
        for each, text in zip(files, read, strict=True)
    }
    return sweep.results(entries, lambda path: texts.get(path, ""))


@functools.lru_cache(20_000)
def last_values(bucket: Bucket, name: str, generation: int, size: int) -> str:
    """Return the last value of each number near the end of a metrics.jsonl, as a line of JSON."""
    text = bucket.last_lines(name, size, LAST).decode(errors="replace")
    return json.dumps(events.last_values(text, skips_damage=True))


def file_of(bucket: Bucket, entry: jobs.Entry, path: str) -> Listed:
    """Return a file among a job's results; raises BergError if there is none of that name."""
    folder = f"{results_folder(entry)}/"
    try:
        blob = bucket.get(folder + below(folder + path, folder))
    except NoPlace:
        blob = None
    if blob is None:
        raise BergError(f"{entry.name} has no file {path!r} among its results")
    return blob
