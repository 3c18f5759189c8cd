"""What the page, `berg top` and TensorBoard show of jobs and sweeps.

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
from typing import Any

from berg import BergError, job
from berg.config import Config
from berg.google import events
from berg.google.events import Series, is_number
from berg.google.fetch import NoPlace, below, side_by_side
from berg.google.storage import Bucket, Listed
from berg.job import Machine
from berg.laptop import jobs, logs, records, spending, sweep

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
MOST_POINTS = 600  # of a line; longer lines are thinned out
DRAWN = 1e280  # larger numbers are not drawn
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

END = 24 << 10  # bytes read first from an object's end: half an hour without accelerators
MOST_SAMPLES = 64 << 20  # bytes of an object that are read at most: weeks of samples of eight GPUs
KINDS = {"gpus": "gpu", "tpus": "tpu"}
# Number -> title and unit of its chart, and how many of the unit it is.
OF_MACHINES = {
    "cpu_percent": ("CPU", "%", 1),
    "cpu_waiting_percent": ("CPU, waiting for disks", "%", 1),
    "memory_percent": ("Memory, used", "%", 1),
    "memory_bytes": ("Memory", "B", 1),
    "disk_percent": ("Disk, used", "%", 1),
    "read_per_second": ("Disk, read", "B/s", 1),
    "written_per_second": ("Disk, written", "B/s", 1),
    "received_per_second": ("Network, received", "B/s", 1),
    "sent_per_second": ("Network, sent", "B/s", 1),
}
OF_ACCELERATORS = {
    "percent": ("GPUs and TPUs", "%", 1),
    "memory_mb": ("Memory of GPUs and TPUs", "B", 1 << 20),
    "memory_total_mb": ("Total memory of GPUs and TPUs", "B", 1 << 20),
    "watt": ("Power of GPUs and TPUs", "W", 1),
    "celsius": ("Temperature of GPUs and TPUs", "°C", 1),
}
MOST = 1e15  # of a number in a sample
ACCELERATORS = 64  # of a machine that are read

Point = tuple[float, float]
Lines = dict[str, list[Point]]


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
        key: thin((step, value) for step, value, _ in points)
        for key, points in found.items()
        if key not in (*events.STEPS, *events.TIMES) and len(key) <= NAME
    }


def thin(points: Iterable[Point]) -> list[Point]:
    """Return the points that can be drawn; of many only the lowest and highest of each stretch."""
    found = [(x, y) for x, y in points if abs(x) < DRAWN and abs(y) < DRAWN]
    if len(found) <= MOST_POINTS:
        return found
    step = len(found) / (MOST_POINTS / 2)  # more than one
    kept: list[Point] = []
    for number in range(MOST_POINTS // 2):
        part = found[round(number * step) : round((number + 1) * step)]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


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
    for machine, blobs in sample_objects(bucket, name).items():
        for blob in blobs:
            for (accelerator, key), points in samples(bucket, blob.name, blob.size).items():
                chart, line = key, machine
                if accelerator:
                    chart, line = f"accelerator_{key}", f"{machine} {accelerator}"
                shown.setdefault(chart, {}).setdefault(line, []).extend(points)
    return shown


@functools.lru_cache(64)
def samples(bucket: Bucket, name: str, size: int) -> dict[tuple[str, str], list[Point]]:
    """Return times and values in an object of samples, by accelerator and number. It only grows."""
    found: dict[tuple[str, str], list[Point]] = {}
    for sample in parse_samples(bucket.last_lines(name, size, LARGEST)):
        for accelerator, key, value in numbers_of(sample):
            found.setdefault((accelerator, key), []).append((sample["time"], value))
    return {key: thin(points) for key, points in found.items()}


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


# --- how busy the machines of jobs are and were: the samples of machine/usage.py in the bucket
#
# A sample is a dict with `time` (Unix time), the numbers of OF_MACHINES, and `gpus` and `tpus`:
# lists of dicts with `index` and the numbers of OF_ACCELERATORS. An unknown number is None or
# missing.


def read_samples(
    bucket: Bucket, name: str, seconds: float | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the samples of each machine of a job by time: all, or the job's last `seconds`."""
    found = [
        (machine, blob, blob.updated.timestamp())
        for machine, blobs in sample_objects(bucket, name).items()
        for blob in blobs
        if blob.updated
    ]
    newest = max((updated for _, _, updated in found), default=0.0)
    since = newest - seconds if seconds else 0.0
    wanted = [(machine, blob) for machine, blob, updated in found if updated >= since]
    parts = side_by_side(lambda each: (each[0], samples_since(bucket, each[1], since)), wanted)
    samples: dict[str, list[dict[str, Any]]] = {}
    for machine, more in parts:
        samples.setdefault(machine, []).extend(more)
    return samples


def sample_objects(bucket: Bucket, name: str) -> dict[str, list[Listed]]:
    """Return the objects with a job's samples by machine, the earliest first."""
    found: dict[str, list[Listed]] = {}
    for blob in bucket.list(job.log_prefix(name), "name,size,updated,crc32c", f"**{job.USAGE}"):
        found.setdefault(jobs.machine_of(blob.name), []).append(blob)
    return {machine: sorted(blobs, key=lambda blob: blob.name) for machine, blobs in found.items()}


def samples_since(bucket: Bucket, blob: Listed, since: float) -> list[dict[str, Any]]:
    """Return the samples of an object from a time on, reading no more of its end than needed."""
    size = END if since else MOST_SAMPLES
    while True:
        samples = list(parse_samples(bucket.last_lines(blob.name, blob.size, size)))
        is_enough = size >= min(blob.size, MOST_SAMPLES) or (samples and samples[0]["time"] < since)
        if is_enough:
            return [sample for sample in samples if sample["time"] >= since]
        size *= 4


def parse_samples(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the samples in a file; damaged lines, incomplete ones and unknown keys are skipped."""
    for line in data.splitlines():
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(sample, dict):
            continue
        found = select(sample, ["time", *OF_MACHINES])
        if found.get("time") is None:
            continue
        for kind in KINDS:
            if isinstance(listed := sample.get(kind), list):
                some = [each for each in listed[:ACCELERATORS] if isinstance(each, dict)]
                found[kind] = [select(each, ["index", *OF_ACCELERATORS]) for each in some]
        yield found


def select(values: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """Return the known keys whose value is None or a number that a machine may have measured."""
    found = {key: values[key] for key in known if key in values}
    return {
        key: value
        for key, value in found.items()
        if value is None or (is_number(value) and 0 <= value <= MOST)
    }


def accelerators(sample: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the GPUs and TPUs of a sample by name: gpu0, gpu1, …"""
    return {
        f"{name}{int(each['index'])}": each
        for kind, name in KINDS.items()
        for each in sample.get(kind) or []
        if each.get("index") is not None
    }


def numbers_of(sample: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield the numbers of a sample: the accelerator ("" for the machine), the key, the value."""
    parts = {"": {key: sample[key] for key in OF_MACHINES if key in sample}}
    for name, values in (parts | accelerators(sample)).items():
        for key, value in values.items():
            if key != "index" and value is not None:
                yield name, key, float(value)


def series_of(samples: list[dict[str, Any]]) -> Series:
    """Return samples as series `berg/gpu0_percent`, …; a step is a second since the first one."""
    found: Series = {}
    for sample in samples:
        step = max(0, round(sample["time"] - samples[0]["time"]))
        for name, key, value in numbers_of(sample):
            tag = f"berg/{name}_{key}" if name else f"berg/{key}"
            found.setdefault(tag, []).append((step, value, sample["time"]))
    return found


def mean(sample: dict[str, Any], key: str = "percent") -> float | None:
    """Return the mean of a number over a sample's accelerators; None where it is unknown."""
    values = [each[key] for each in accelerators(sample).values() if each.get(key) is not None]
    return sum(values) / len(values) if values else None
