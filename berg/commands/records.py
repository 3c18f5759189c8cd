"""The commands about what the bucket keeps of jobs: show, rerun, rm."""

import json
import sys
from collections import Counter
from dataclasses import replace

import click

from berg import BergError, config
from berg.commands import start
from berg.commands.terminal import (
    complete_names,
    given,
    json_option,
    labelled,
    machine_options,
    name_argument,
    ready,
    say,
    yes_option,
)

SHOWN = 20  # files that are named; the rest is summed up


@click.command()
@name_argument()
@click.option("--lines", default=10, show_default=True, help="Lines of the log, at most.")
@json_option
def show(name: str, lines: int, as_json: bool) -> None:
    """Show all about one job: state, machine, code, results, log.

    NAME is a job or its machine; @ is my latest job, here and wherever a name goes. Of a sweep it
    shows how each job went, with its parameters and the last values of its metrics.jsonl.

    \b
    berg show digits-1121-0930-x7k
    berg show @
    berg show @ --json | jq .metadata.git_commit
    """
    settings, name = ready(name)
    from berg.google.storage import Bucket
    from berg.laptop import jobs, records
    from berg.watch import collect

    try:
        record = records.read(settings, name, lines)
    except jobs.IsSweep:
        rows = collect.sweep_rows(settings, Bucket(settings), name)
        click.echo(json.dumps(rows, indent=2) if as_json else describe_sweep(name, rows))
        return
    click.echo(json.dumps(record.to_dict(), indent=2) if as_json else describe(record))


def describe(record) -> str:
    """A job as people read it: what it is, how it went, what it left, and what one may do next."""
    from berg.commands import tables

    entry, this = record.entry, record.job
    state, details = entry.state, entry.state.job
    rows = [("Job" if details.kind != "devbox" else "Devbox", entry.name)]
    rows.append(
        (
            "State",
            click.style(f"{entry.status}{tables.why(state)}", fg=tables.COLORS.get(state.state)),
        )
    )
    rows += listed("History", [f"{begun}  {word}" for word, begun in state.history])
    if state.attempt > 1:
        rows.append(
            ("Attempts", f"{state.attempt}, {state.restarts} of them after a machine went away")
        )
    times = (
        ("created", details.created_at),
        ("started", state.started_at),
        ("finished", state.finished_at),
    )
    rows.append(("Times", ", ".join(f"{word} {when}" for word, when in times if when)))
    if this:
        rows += [("Command", this.cmd)] if this.cmd else []
        dirty = (
            f" with {tables.plural(len(this.git_changed_files), 'uncommitted change')}"
            if this.git_dirty
            else ""
        )
        branch = this.snapshot.get("branch", "")
        rows.append(
            (
                "Code",
                f"{this.repo_name} at {this.git_commit[:12]}{f' ({branch})' if branch else ''}{dirty}",
            )
        )
        rows += listed("", tables.shorten(this.git_changed_files))
        gpus = f" with {this.gpus_per_machine} x {this.gpu_type}" if this.gpus_per_machine else ""
        several = f"{this.num_machines} of " if this.num_machines > 1 else ""
        rows.append(
            ("Machine", f"{several}{this.machine_type}{gpus}, {this.image.rpartition('/')[2]}")
        )
    else:
        rows.append(
            (
                "Trouble",
                "what was to run cannot be read: its metadata in the bucket is missing or damaged",
            )
        )
    where = [
        f"{each.name} {each.status} in {each.zone} {each.external_ip}".rstrip()
        for each in entry.machines
    ]
    rows += listed(
        "" if this else "Machine",
        where or ([f"{state.machine} in {state.zone}, gone"] if state.machine else []),
    )
    size = sum(each.size for each in record.results)
    until = f", up to {state.synced_until}" if state.synced_until else ""
    folder = details.results_dir
    rows.append(
        (
            "Results",
            f"{folder}: {tables.plural(len(record.results), 'file')}, {tables.size(size)}{until}",
        )
    )
    names = [
        f"{each.size:>14,}  {each.name.removeprefix(f'berg_results/{folder}/')}"
        for each in record.results
    ]
    more = [f"{'':>14}  … and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    rows += listed("", names[:SHOWN] + more + ([tables.also(state)] if state.elsewhere else []))
    rows += listed("Log", record.log)
    return f"{labelled(rows, sys.stdout)}\n\n{next_commands(entry)}"


def describe_sweep(name: str, rows) -> str:
    """A sweep as people read it: how many jobs are in which state, a row for each, and what one may
    do next.
    """
    from berg import job
    from berg.commands import tables

    counts = Counter(row["state"] for row in rows)
    states = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
    head = labelled([("Sweep", name), ("Jobs", f"{len(rows):,}: {states}")], sys.stdout)
    lines = [
        head,
        "",
        tables.outcomes(rows),
        f"One job:    berg show {name}/0",
        f"Results:    berg fetch {name}",
    ]
    over = all(row["state"] in job.FINAL for row in rows)
    lines.append(f"Delete it:  berg rm {name}" if over else f"End it:     berg kill {name}")
    return "\n".join(lines)


def listed(key: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(key if number == 0 else "", line) for number, line in enumerate(lines)]


def next_commands(entry) -> str:
    """What one may do with a job as it is."""
    from berg.laptop import records

    name, over = entry.name, records.is_over(entry)
    lines = [f"Log:        berg log {name}" if over else f"Follow it:  berg tail {name}"]
    lines += [] if over else [f"Log in:     berg ssh {name}"]
    lines.append(f"Results:    berg fetch {name}")
    lines += [] if over else [f"End it:     berg kill {name}"]
    lines += [f"Again:      berg rerun {name}"] if over else []
    lines += [f"Delete it:  berg rm {entry.sweep or name}"] if over else []
    return "\n".join(lines)


@click.command()
@click.argument("old", metavar="NAME", shell_complete=complete_names)
@click.option(
    "--new-code", is_flag=True, help="Take the repo around you, not the code that NAME ran."
)
@machine_options
@click.option("-r", "--results-dir", help="Folder under berg_results.  [default: as for berg run]")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with the command's exit code.")
@click.option("--tail", is_flag=True, help="Follow the log, then as --wait.")
@click.pass_context
def rerun(ctx, old, new_code, wait, tail, as_json, dry_run, **options) -> None:
    """Run a job again, as a new one with a name of its own.

    The command, the code and the options are those of the job NAME; options that are given here
    replace them. Secrets are read anew. A job of a sweep runs on its own. Defaults of a repo are
    not looked at again.

    \b
    berg rerun @
    berg rerun digits-1121-0930-x7k --new-code
    berg rerun @ -t v100 --spot --max-hours 4 --tail
    """
    settings, old = ready(old)
    from berg.laptop import jobs, records
    from berg.plan import spec_of

    before = records.described_job(records.Bucket(settings), jobs.find(settings, old).name)
    if before is None or not before.spec:
        raise BergError(f"what {old} was asked for with is not known. Start it as new: berg run")
    code_of = None if new_code else lambda settings: records.code_of(settings, before)
    spec = replace(spec_of(before), **given(ctx, options))
    launched = start.start_machines(spec, dry_run, quiet=as_json or tail, code_of=code_of)
    if launched is None:
        return
    if launched[1].results_dir == before.results_dir:
        say(f"It writes to the results of {old}, too: files of the same name are replaced\n")
    sys.exit(start.follow(launched, wait, tail, as_json))


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@yes_option
def rm(names: tuple[str, ...], yes: bool) -> None:
    """Delete jobs that are over: results, logs and states.

    The names can be used again. NAME is a job, a sweep, or a pattern for mine. Results that other
    jobs have as well stay, and are named; so does code, which jobs share.

    \b
    berg rm digits-1121-0930-x7k
    berg rm sweep1 'try-*'
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import names as names_seen
    from berg.laptop import records

    removals = records.plan_removal(settings, [records.resolve(settings, name) for name in names])
    for each in removals:
        count = f" ({len(each.jobs):,} jobs)" if len(each.jobs) > 1 else ""
        left, rest = sum(blob.size for blob in each.results), sum(blob.size for blob in each.others)
        say(
            f"{each.name}{count}: {tables.plural(len(each.results), 'file')} of results, {tables.size(left)}; "
            f"log and state, {tables.size(rest)}"
        )
        if each.beside:
            folders = dict.fromkeys(blob.name.rpartition("/")[0] for blob in each.beside)
            say(f"  of these {len(each.beside):,} in {', '.join(tables.shorten([*folders]))}")
        for folder, owner in each.shared.items():
            say(f"  berg_results/{folder} stays: {owner} has its results there, too")
    if not yes:
        click.confirm(
            f"Delete {'these' if len(removals) > 1 else 'it'} for good?", abort=True, err=True
        )
    for each in removals:
        records.remove(
            settings, each, tables.counter("Deleting", len(each.results) + len(each.others))
        )
        names_seen.forget([each.name])
        say(f"Deleted {each.name}")


COMMANDS = (show, rm, rerun)
