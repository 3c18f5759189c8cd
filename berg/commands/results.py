"""The commands that show what a job printed and bring what it left: log, tail, fetch."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from berg import BergError
from berg.commands.terminal import json_option, name_argument, ready, say

if TYPE_CHECKING:
    from berg.job import State

LAST_LINES = 20  # of the log of a job that failed
MOST_NAMED = 20  # files that come; of more only their number and bytes are said


def watch(settings, name: str, quiet: bool = False, machine: str | None = None) -> "State | None":
    """Follow a job to its end; returns its final state, None for a machine without a job."""
    from berg.commands import tables
    from berg.google.storage import Bucket
    from berg.laptop import logs, records

    output = tables.Interleaved(sys.stdout.buffer)
    shown = [""]

    def tell(found) -> None:
        line = tables.progress(found)
        if line and line != shown[-1] and (quiet or found.state.state == "SUBMITTED"):
            say(line)
        shown.append(line)

    try:
        state = logs.follow(
            settings, name, (lambda *_: None) if quiet else output.write, machine, tell=tell
        )
    except KeyboardInterrupt:
        say(tables.left(name, f"berg tail {name}"))
        raise
    if state is None:
        return None
    lines = (
        records.last_lines(Bucket(settings), name, LAST_LINES)
        if quiet and state.state != "SUCCEEDED"
        else []
    )
    # said below
    if lines := [line for line in lines if not line.startswith(f"[berg] Job {name} {state.state}")]:
        say(f"The end of the log (all of it: berg log {name}):\n" + "\n".join(lines) + "\n")
    say(tables.outcome(name, state))
    return state


def exit_code(state: "State | None") -> int:
    """The exit code that tells how a job went."""
    return 0 if state is None or state.state == "SUCCEEDED" else state.exit_code or 1


machine_option = click.option("--machine", metavar="NAME", help="Only that machine of a cluster.")


@click.command()
@name_argument()
@machine_option
def log(name: str, machine: str | None) -> None:
    """Print the whole log of a job, also after its machine is gone.

    \b
    berg log digits-1121-0930-x7k | grep loss
    """
    settings, name = ready(name)
    from berg.commands import tables
    from berg.laptop import logs

    output = tables.Interleaved(sys.stdout.buffer)
    for source, chunk in logs.chunks(settings, name, machine):
        output.write(source, chunk)
    output.end()


@click.command()
@name_argument()
@machine_option
def tail(name: str, machine: str | None) -> None:
    """Follow the log of a job until it ends.

    The exit code is the command's. The lines of a cluster's machines are mixed, each with the name
    of its machine.

    \b
    berg tail digits-1121-0930-x7k
    """
    settings, name = ready(name)
    sys.exit(exit_code(watch(settings, name, machine=machine)))


@click.command()
@name_argument()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--watch", "keep", is_flag=True, help="Fetch again every 10 seconds until the job is over."
)
@json_option
def fetch(name: str, folder: Path | None, keep: bool, as_json: bool) -> None:
    """Bring results to this computer; only what changed.

    NAME is a job, a sweep, or a folder of results. FOLDER is ~/berg_results/… by default, the same
    tree as on the machines. A sweep comes with results.csv, a row for each job: parameters, state,
    exit code, and the last value of each metric in the job's metrics.jsonl, if it wrote one
    ({"loss": 0.1} a line).

    \b
    berg fetch digits-1121-0930-x7k
    berg fetch sweep1 ./sweep1 --watch
    """
    settings, name = ready(name)
    from berg import job
    from berg.google.fetch import fetch
    from berg.google.storage import Bucket
    from berg.laptop import jobs
    from berg.words import plural

    if job.NAME.fullmatch(name) and Bucket(settings).exists(job.sweep_path(name)):
        fetch_sweep(settings, name, folder, keep, as_json)
        return
    prefix, job_name = jobs.results_prefix(settings, name)
    bucket, target = Bucket(settings), folder or Path.home() / prefix
    while True:
        state = jobs.find(settings, job_name).state if job_name else None
        over = state is None or state.final
        tell = told()
        fetched, files, left = fetch(bucket, prefix, target, tell)
        if job_name:
            new, others, missing = fetch_beside(bucket, job_name, prefix, folder, tell)
            fetched, files, left = fetched + new, files + others, left | missing
        tell("", 0)
        if not keep or over:
            break
        time.sleep(10)
    if not files and not left:
        raise BergError(f"there is nothing in gs://{bucket.name}/{prefix}. See: berg list")
    if as_json:
        click.echo(json.dumps({"folder": str(target), "files": files, "fetched": fetched}))
    else:
        say(f"{fetched} of {plural(files, 'file')} new or changed")
        click.echo(target)
    tell_missing({name: state} if state else {}, left)


def fetch_beside(bucket, name: str, prefix: str, folder: Path | None, tell=lambda path, size: None):
    """Bring what a job wrote to other folders than its own; FOLDER then stands for berg_results. As
    fetch() returns.
    """
    from berg import job
    from berg.google import fetch, mirror

    root, _, own = prefix.partition("/")
    found = mirror.beside(bucket, f"{root}/", own.rstrip("/"), job.folders_prefix(name), name)
    counts = fetch.fetch(bucket, f"{root}/", folder or Path.home() / root, tell, listed=found)
    if counts[1]:
        files = "1 of its files is" if counts[1] == 1 else f"{counts[1]} of its files are"
        say(f"{files} in other folders of {folder or Path.home() / root}")
    return counts


def told():
    """A function that says which files came, with their bytes; those after the first ones in one
    line, with ("", 0).
    """
    sizes: list[int] = []  # several threads tell

    def tell(path: str, size: int) -> None:
        if path:
            sizes.append(size)
        if path and len(sizes) <= MOST_NAMED:
            say(f"{size:>14,}  {path}")
        elif not path and len(sizes) > MOST_NAMED:
            say(f"{sum(sizes):>14,}  in {len(sizes):,} files, the others included")

    return tell


def tell_missing(states, left: dict[str, Exception]) -> None:
    """Say what the jobs could not save; raises BergError if something of what they saved could not
    be brought.
    """
    from berg.google.storage import explain
    from berg.words import plural

    for name, state in states.items():
        if state.reason:
            say(f"{name} {state.state}: {state.reason}")
    for path, why in left.items():
        say(f"{path} was not fetched: {explain(why) or why}")
    if left:
        raise BergError(
            f"{plural(len(left), 'file')} could not be fetched. Once it is mended, fetch again: berg fetch"
        )


def fetch_sweep(settings, name: str, folder: Path | None, keep: bool, as_json: bool) -> None:
    """Bring the results of all jobs of a sweep, and a table of them: results.csv."""
    from berg.google.fetch import fetch
    from berg.google.storage import Bucket
    from berg.laptop import sweep
    from berg.words import plural

    bucket, target = Bucket(settings), folder or Path.home() / "berg_results"
    table = folder / "results.csv" if folder else target / name / "results.csv"
    while True:
        entries = [entry for entry in sweep.states(settings, name) if entry.state]
        fetched = total = 0
        left: dict[str, Exception] = {}
        for entry in entries:
            results = entry.to_dict()["results_dir"]
            new, files, missing = fetch(bucket, f"berg_results/{results}/", target / results)
            fetched, total, left = fetched + new, total + files, left | missing
            if entry.state and (entry.state.elsewhere or entry.state.state != "SUCCEEDED"):
                new, files, missing = fetch_beside(
                    bucket, entry.name, f"berg_results/{results}/", target
                )
                fetched, total, left = fetched + new, total + files, left | missing
            if new:
                say(f"{new:>6} new  {results}")
        sweep.write_results(entries, target, table)
        if not keep or all(entry.state and entry.state.final for entry in entries):
            break
        time.sleep(10)
    if as_json:
        click.echo(
            json.dumps(
                {"folder": str(target), "table": str(table), "files": total, "fetched": fetched}
            )
        )
    else:
        say(f"{fetched} of {plural(total, 'file')} of {plural(len(entries), 'job')} new or changed")
        click.echo(table)
    tell_missing(
        {entry.name: entry.state for entry in entries if entry.state and entry.state.lost}, left
    )


COMMANDS = (log, tail, fetch)
