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
# options that have a row of their own, or differ always
UNSEEN = ("cmd", "name", "results_dir", "data", "note", "env", "secrets")


@dataclass(frozen=True)
class Difference:
    """One thing of two jobs, as each of them has it; "" for what a job does not have."""

    what: str
    first: str
    second: str


@dataclass
class Comparison:
    """Two jobs side by side."""

    names: tuple[str, str]
    differences: list[Difference]
    metrics: list[Difference]
    code: str  # git's diff; "": the same code

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(config: Config, first: str, second: str) -> Comparison:
    """Compare two jobs; raise BergError if one of them, or its description, is not there."""
    with ThreadPoolExecutor() as pool:
        before, after = pool.map(lambda name: records.read(config, name, 0), (first, second))
    jobs = described(before), described(after)
    bucket = Bucket(config)
    with ThreadPoolExecutor() as pool:
        code = pool.submit(code_between, bucket, *jobs)
        values = [pool.submit(last_metrics, bucket, record) for record in (before, after)]
        facts = [pool.submit(all_facts, bucket, record) for record in (before, after)]
        metrics = side_by_side(values[0].result(), values[1].result())
    rows = side_by_side(facts[0].result(), facts[1].result())
    differences = [row for row in rows if row.first != row.second]
    return Comparison((before.entry.name, after.entry.name), differences, metrics, code.result())


def described(record: Record) -> job.Job:
    if record.job is None:
        raise BergError(
            f"what {record.entry.name} was is not in the bucket any more, or damaged: it cannot "
            "be compared"
        )
    return record.job


def code_between(bucket: Bucket, before: job.Job, after: job.Job) -> str:
    """Return git's diff of what two jobs ran."""
    with tempfile.TemporaryDirectory(prefix="berg-diff-") as temporary:
        repo = Path(temporary, "repo")
        repo.mkdir()
        open_pack = installing.packs_of(bucket, Path(temporary))
        return commits.between(before.snapshot, after.snapshot, repo, open_pack)


def all_facts(bucket: Bucket, record: Record) -> dict[str, str]:
    """Return what a job was, how it went, and which software its last attempt ran with."""
    ran_with = records.read_software(bucket, record.entry.name)
    return facts_of(record, described(record)) | known(ran_with.facts())


def facts_of(record: Record, this: job.Job) -> dict[str, str]:
    """Return what a job was and how it went, as texts by what people call them."""
    state = record.entry.state
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
    return known(facts)


def known(facts: dict[str, Any]) -> dict[str, str]:
    """Return facts as texts, without those that say nothing."""
    return {key: str(value) for key, value in facts.items() if value not in (None, "", 0, [], {})}


def last_metrics(bucket: Bucket, record: Record) -> dict[str, str]:
    """Return the last value of each metric in a job's metrics.jsonl; {} without one."""
    name = f"berg_results/{record.entry.summary.results_dir}/metrics.jsonl"
    size = next((each.size for each in record.results if each.name == name), 0)
    if not size:
        return {}
    start = max(0, size - METRICS)
    text = (bucket.read_from(name, start, size) or b"").decode(errors="replace")
    if start:  # in the middle of a line
        text = text.partition("\n")[2]
    return {key: str(value) for key, value in sweep.last_values(text).items()}


def side_by_side(first: dict[str, str], second: dict[str, str]) -> list[Difference]:
    """Return a row for each name of two tables, in their order."""
    names = dict.fromkeys([*first, *second])
    return [Difference(name, first.get(name, ""), second.get(name, "")) for name in names]
