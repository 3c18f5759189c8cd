"""How busy the machines of jobs are and were: what machine/usage.py left in the bucket.

A sample is a dict: `time` (seconds since 1970), `cpu_percent`, `cpu_waiting_percent`,
`memory_percent`, `memory_bytes`, `disk_percent`, `read_per_second`, `written_per_second`,
`received_per_second`, `sent_per_second` (bytes), `gpus` and `tpus`: lists of dicts with `index`,
`percent`, `memory_mb`, `memory_total_mb`, `watt`, `celsius`. What nobody knows is None or not
there.
"""

import json
from collections.abc import Iterator
from typing import Any

from berg import job
from berg.google.events import Series, is_number
from berg.google.fetch import side_by_side
from berg.google.storage import Bucket, Listed
from berg.laptop import jobs

# bytes that are read first of the end of an object: half an hour of samples without accelerators
END = 24 << 10
LARGEST = 64 << 20  # bytes of it that are read at most: weeks of samples of eight GPUs
SUFFIX = ".usage.jsonl"
KINDS = {"gpus": "gpu", "tpus": "tpu"}
OF_MACHINES = (
    "time",
    "cpu_percent",
    "cpu_waiting_percent",
    "memory_percent",
    "memory_bytes",
    "disk_percent",
    "read_per_second",
    "written_per_second",
    "received_per_second",
    "sent_per_second",
)
OF_ACCELERATORS = ("index", "percent", "memory_mb", "memory_total_mb", "watt", "celsius")
MOST = 1e15  # that a number of a sample may be
ACCELERATORS = 64  # of a machine that are looked at


def read(
    bucket: Bucket, name: str, seconds: float | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The samples of each of a job's machines, by time: all there are, or those of the last
    `seconds` of the job.
    """
    found = objects(bucket, name)
    written = {
        blob.name: blob.updated.timestamp()
        for blobs in found.values()
        for blob in blobs
        if blob.updated
    }
    since = max(written.values(), default=0) - seconds if seconds else 0
    wanted = [
        (machine, blob)
        for machine, blobs in found.items()
        for blob in blobs
        if written[blob.name] >= since
    ]
    samples: dict[str, list[dict[str, Any]]] = {}
    for machine, more in side_by_side(
        lambda each: (each[0], samples_since(bucket, each[1], since)), wanted
    ):
        samples.setdefault(machine, []).extend(more)
    return samples


def objects(bucket: Bucket, name: str) -> dict[str, list[Listed]]:
    """The objects of a job's samples by machine, the earliest first."""
    found: dict[str, list[Listed]] = {}
    for blob in bucket.list(job.log_prefix(name), "name,size,updated,crc32c", f"**{SUFFIX}"):
        found.setdefault(jobs.machine_of(blob.name), []).append(blob)
    return {machine: sorted(blobs, key=lambda blob: blob.name) for machine, blobs in found.items()}


def samples_since(bucket: Bucket, blob: Listed, since: float) -> list[dict[str, Any]]:
    """The samples of an object from a time on; only its end is read where that will do, and never
    more than LARGEST.
    """
    size = END if since else LARGEST
    while True:
        start = max(0, blob.size - size)
        data = bucket.read_from(blob.name, start, blob.size) or b""
        samples = list(parse(data.partition(b"\n")[2] if start else data))
        if not start or size >= LARGEST or (samples and samples[0]["time"] < since):
            return [sample for sample in samples if sample["time"] >= since]
        size *= 4


def parse(data: bytes) -> Iterator[dict[str, Any]]:
    """The samples in a file; what is damaged, not whole yet or unknown is passed over."""
    for line in data.splitlines():
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(sample, dict):
            continue
        found = numbers_of(sample, OF_MACHINES)
        if found.get("time") is None:
            continue
        for kind in KINDS:
            if isinstance(listed := sample.get(kind), list):
                some = [each for each in listed[:ACCELERATORS] if isinstance(each, dict)]
                found[kind] = [numbers_of(each, OF_ACCELERATORS) for each in some]
        yield found


def numbers_of(values: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Return what of a sample is known by its name, and a number or None."""
    found = {key: values[key] for key in known if key in values}
    return {key: value for key, value in found.items() if value is None or is_possible(value)}


def is_possible(value: Any) -> bool:
    """Return whether a value is a number that a machine may have measured."""
    return is_number(value) and 0 <= value <= MOST


def accelerators(sample: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The GPUs and TPUs of a sample by name: gpu0, gpu1, …"""
    return {
        f"{name}{int(each['index'])}": each
        for kind, name in KINDS.items()
        for each in sample.get(kind) or []
        if is_number(each.get("index"))
    }


def scalars(sample: dict[str, Any]) -> dict[str, float]:
    """A sample as flat names and numbers: `cpu_percent`, `gpu0_percent`, …"""
    flat = {key: value for key, value in sample.items() if key != "time" and is_number(value)}
    for name, each in accelerators(sample).items():
        flat |= {
            f"{name}_{key}": value
            for key, value in each.items()
            if key != "index" and is_number(value)
        }
    return flat


def series(samples: list[dict[str, Any]]) -> Series:
    """Samples as series `berg/cpu_percent`, `berg/gpu0_percent`, …; a step is a second since the
    first of them.
    """
    found: Series = {}
    for sample in samples:
        step = max(0, round(sample["time"] - samples[0]["time"]))
        for key, value in scalars(sample).items():
            found.setdefault(f"berg/{key}", []).append((step, float(value), sample["time"]))
    return found


def mean(sample: dict[str, Any], key: str = "percent") -> float | None:
    """The mean over a sample's accelerators; None where none tells."""
    values = [each[key] for each in accelerators(sample).values() if is_number(each.get(key))]
    return sum(values) / len(values) if values else None
