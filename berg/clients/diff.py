"""`berg diff`: how two jobs, or rows of sweeps, differ: options, environment, machine, metrics, code."""

import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from berg import BergError, code, jobs, metrics, rows, terminal
from berg import job as records
from berg.bucket import Bucket
from berg.config import Config
from berg.job import Job, State

SIDE_BY_SIDE = 80  # characters of two values that share a line
MOST = 1 << 30  # bytes of code that are downloaded
# No configuration of a person or of this computer counts for code that came from a bucket.
PLAIN = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Difference:
    """One fact about two jobs; "" for a job without it."""

    what: str
    first: str
    second: str


def facts(job: Job, state: State) -> dict[str, Any]:
    """What a job was, and how it went."""
    began, ended = state.times.get(records.RUNNING), state.times.get(state.state)
    took = None
    if began and ended and state.is_final:
        took = round(records.age(began) - records.age(ended))  # each is of another instant
    known: dict[str, Any] = {
        "state": state.state,
        "exit code": state.exit_code,
        "ran": None if took is None else terminal.duration(max(took, 0)),
        "command": job.cmd,
        "repo": job.repo,
        "commit": str(job.code.get("head", ""))[:12],
        "machines": job.machines,
        "machine type": job.machine_type,
        "gpus": f"{job.gpus} x {job.gpu_type}" if job.gpus else "",
        "image": job.image.rpartition("/")[2],
        "user": job.user,
    }
    known |= {f"env {key}": text for key, text in job.env.items()}
    known |= {f"option {key}": value for key, value in job.options.items() if key != "env"}
    return known


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[Difference]:
    pairs = [
        Difference(name, text(first.get(name)), text(second.get(name)))
        for name in dict.fromkeys([*first, *second])
    ]
    return [pair for pair in pairs if pair.first != pair.second]


def text(value: Any) -> str:
    return "" if value in (None, "", [], {}) else metrics.text(value)


def code_between(bucket: Bucket, first: Job, second: Job) -> str:
    """git's diff of the code that two jobs ran; "" for the same."""
    if first.code.get("commit") == second.code.get("commit"):
        return ""
    with tempfile.TemporaryDirectory(prefix="berg-diff-") as scratch:
        repo, commits = Path(scratch, "repo"), list[str]()
        repo.mkdir()
        code.git(repo, "init", "-q", "--bare", **PLAIN)
        for job in (first, second):
            commit, name = str(job.code.get("commit")), str(job.code.get("object"))
            item = bucket.get(name) if name.startswith(".berg/repos/") else None
            if not re.fullmatch(r"[0-9a-f]{40,64}", commit) or not item or item.size > MOST:
                raise BergError(
                    f"the code of {job.name} is not in the bucket any more. See: berg show {job.name}"
                )
            code.unpack(repo, bucket, name, **PLAIN)
            commits.append(commit)
        options = ["--no-color", "--no-ext-diff", "--no-textconv", "--stat", "--patch"]
        return code.git(repo, "diff", *options, *commits, "--", **PLAIN)


def show_rows(names: list[str], title: str, pairs: list[Difference]) -> None:
    """Print short values side by side, and long ones below each other."""
    short = [pair for pair in pairs if len(pair.first + pair.second) <= SIDE_BY_SIDE]
    if short:
        table = [[pair.what, pair.first or "-", pair.second or "-"] for pair in short]
        terminal.show_table([title, *names], table)
        terminal.show("")
    for pair in pairs:
        if pair not in short:
            terminal.show(f"{pair.what}\n- {pair.first}\n+ {pair.second}\n")


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--stat", is_flag=True, help="Of the code, show only which files changed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(first: str, second: str, stat: bool, as_json: bool) -> None:
    """Show the differences between two jobs, in code and all else.

    \b
    berg diff digits-1121-0930-x7k @
    berg diff lr-sweep/0 lr-sweep/3
    berg diff digits-1121-0930-x7k @ --json | jq .metrics
    """
    config = Config.load()
    bucket = Bucket(config)
    states = [jobs.find(config, name) for name in (first, second)]
    both = []
    for state in states:
        job, number = records.read_job(bucket, state.name), rows.number_of(state.name)
        both.append(job if number is None else rows.row_job(job, number))
    differences = differing(*map(facts, both, states))
    values = [metrics.of_results(bucket, state.results) for state in states]
    for state, found in zip(states, values):
        if found.damaged:
            terminal.warn(found.note(state.name))
    changed = differing(values[0].last, values[1].last)
    with terminal.waiting("Comparing the code"):
        patch = code_between(bucket, both[0], both[1])
    names = [state.name for state in states]
    if as_json:
        about = {"names": names, "code": patch}
        found_rows = {"differences": differences, "metrics": changed}
        return terminal.show_json(
            about | {key: [asdict(pair) for pair in pairs] for key, pairs in found_rows.items()}
        )
    show_rows(names, "", differences)
    show_rows(names, "last value", changed)
    patch = patch or "The code is the same."
    return terminal.show(patch.partition("\n\n")[0] if stat else patch)
