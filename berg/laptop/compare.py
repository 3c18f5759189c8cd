"""What differs between two jobs: command, parameters, options, machine, last metrics, code."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.code import commits
from berg.config import Config
from berg.google.storage import Bucket
from berg.laptop import installing, records, sweep
from berg.laptop.records import Record

METRICS = 64 << 10  # bytes at the end of a metrics.jsonl that are read
# Options that have a row of their own, or always differ.
UNSEEN = ("cmd", "name", "results_dir", "data", "note", "env", "secrets")


@dataclass(frozen=True)
class Difference:
    """One fact about two jobs; "" for a job without it."""

    what: str
    first: str
    second: str


@dataclass
class Comparison:
    """How two jobs differ."""

    names: tuple[str, str]
    differences: list[Difference]
    metrics: list[Difference]
    code: str  # git's diff; "": the same code


def compare(config: Config, first: str, second: str) -> Comparison:
    """Compare two jobs; raise BergError if a job or its metadata is missing."""
    with ThreadPoolExecutor() as pool:
        before, after = pool.map(lambda name: records.read(config, name, 0), (first, second))
    bucket, old, new = Bucket(config), described(before).snapshot, described(after).snapshot
    with tempfile.TemporaryDirectory(prefix="berg-diff-") as folder, ThreadPoolExecutor() as pool:
        repo = Path(folder, "repo")
        repo.mkdir()
        packs = installing.packs_of(bucket, Path(folder))
        code = pool.submit(commits.between, old, new, repo, packs)
        metrics = pool.map(lambda record: last_metrics(bucket, record), (before, after))
        facts = pool.map(lambda record: facts_of(bucket, record), (before, after))
        differences = [row for row in side_by_side(*facts) if row.first != row.second]
        names = (before.entry.name, after.entry.name)
        return Comparison(names, differences, side_by_side(*metrics), code.result())


def described(record: Record) -> job.Job:
    if record.job is None:
        raise BergError(
            f"{record.entry.name} cannot be compared: its metadata is not in the bucket any more, "
            "or damaged"
        )
    return record.job


def facts_of(bucket: Bucket, record: Record) -> dict[str, str]:
    """Return what a job was, how it went, and which software it ran with; nothing that is empty."""
    state, this = record.entry.state, described(record)
    facts: dict[str, Any] = {
        "state": record.entry.status,
        "exit code": str(state.exit_code) if state else "",
        "ran seconds": state and state.ran_seconds,
        "command": this.cmd,
        "repo": this.repo_name,
        "commit": this.git_snapshot[:12],
        "machines": this.num_machines,
        "machine type": this.machine_type,
        "gpus": this.gpus_per_machine and f"{this.gpus_per_machine} x {this.gpu_type}",
        "tpu": this.tpu,
        "image": this.image,
        "secrets": ", ".join(sorted(this.secrets)),
        "user": this.created_by,
        "berg": this.berg_version,
    }
    facts |= {f"param {key}": value for key, value in this.params.items()}
    facts |= {f"env {key}": value for key, value in this.env.items()}
    chosen = {key: value for key, value in asdict(this.spec).items() if key not in UNSEEN}
    facts |= {f"option {key}": value for key, value in chosen.items()}
    facts |= records.read_software(bucket, record.entry.name).facts()
    return {key: str(value) for key, value in facts.items() if value not in (None, "", 0, [], {})}


def last_metrics(bucket: Bucket, record: Record) -> dict[str, str]:
    """Return the last value of each metric in a job's metrics.jsonl; {} without one."""
    name = f"berg_results/{record.entry.summary.results_dir}/metrics.jsonl"
    size = next((each.size for each in record.results if each.name == name), 0)
    start = max(0, size - METRICS)
    data = bucket.read_from(name, start, size) if size else None
    text = (data or b"").decode(errors="replace")
    if start:  # in the middle of a line
        text = text.partition("\n")[2]
    return {key: str(value) for key, value in sweep.last_values(text).items()}


def side_by_side(first: dict[str, str], second: dict[str, str]) -> list[Difference]:
    """Return a row for each name of two tables, in their order."""
    names = dict.fromkeys([*first, *second])
    return [Difference(name, first.get(name, ""), second.get(name, "")) for name in names]
