"""The commands about what the bucket keeps of jobs: show, rerun, rm, diff."""

import json
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands import start
from berg.commands.terminal import (
    Grouped,
    complete_names,
    given,
    json_option,
    labelled,
    name_argument,
    ready,
    say,
    start_options,
    table,
    yes_option,
)

if TYPE_CHECKING:
    from berg.job import Job, State
    from berg.laptop.compare import Comparison
    from berg.laptop.jobs import Entry
    from berg.laptop.records import Record, Removal
    from berg.laptop.sweep import Row

MOST_BESIDE = 80  # characters of two texts that stand beside each other
SHOWN = 20  # files that are named; the rest is summed up


@click.command()
@name_argument()
@click.option("--lines", default=10, show_default=True, help="Lines of the log, at most.")
@click.option("--ip", "address", is_flag=True, help="Print the address of its machine alone.")
@json_option
def show(name: str, lines: int, address: bool, as_json: bool) -> None:
    """Show all about one job: state, machine, code, results, log.

    NAME is a job or its machine; @ is my latest job, here and wherever a name goes. Of a sweep it
    shows how each job went, with its parameters and the last values of its metrics.jsonl.

    \b
    berg show digits-1121-0930-x7k
    berg show @
    ping $(berg show my-devbox --ip)
    berg show @ --json | jq .metadata.git_commit
    """
    settings, name = ready(name)
    if address:
        plain.echo(address_of(settings, name))
        return
    from berg.laptop import jobs, records

    try:
        record = records.read(settings, name, lines)
    except jobs.IsSweep:
        show_sweep(settings, name, as_json)
        return
    if as_json:
        plain.echo(json.dumps(record.to_dict(), indent=2))
    else:
        plain.echo(describe(record))


def show_sweep(settings: config.Config, name: str, as_json: bool) -> None:
    from berg.google.storage import Bucket
    from berg.watch import collect

    rows = collect.sweep_rows(settings, Bucket(settings), name)
    if as_json:
        plain.echo(json.dumps([row.to_dict() for row in rows], indent=2))
    else:
        plain.echo(describe_sweep(name, rows))


def address_of(settings: config.Config, name: str) -> str:
    """Return the address of a job's machine, the external one if it has one;
    raises BergError where there is none.
    """
    from berg.laptop import jobs

    found = jobs.find(settings, name)
    if not found.machine:
        raise BergError(f"{name} has no machine any more ({found.status})")
    address = found.machine.internal_ip
    if found.machine.external_ip:
        address = found.machine.external_ip
    if not address:
        raise BergError(
            f"the machine {name} has no address yet ({found.status}). Try again in a moment"
        )
    return address


def describe(record: "Record") -> str:
    """Return a job as people read it: how it went, what it left, what one may do next."""
    from berg.commands import tables

    entry, state = record.entry, record.entry.state
    assert state
    kind = "Job"
    if state.job.kind == "devbox":
        kind = "Devbox"
    status = f"{entry.status}{tables.why(state)}"
    rows = [(kind, entry.name), ("State", click.style(status, fg=tables.COLORS.get(state.state)))]
    rows += listed("History", [f"{begun}  {word}" for word, begun in state.history])
    if state.attempt > 1:
        lost = f"{state.restarts} of them after a machine went away"
        begun = [f"{when}  {number}: {why}" for number, when, why in state.attempts]
        rows += listed("Attempts", [f"{state.attempt}, {lost}", *begun])
    rows.append(("Times", times(state)))
    rows += what_ran(record.job)
    label = "Machine"
    if record.job:  # whose rows end with the kind of machine
        label = ""
    rows += listed(label, machines(entry))
    rows += results_rows(record)
    rows += listed("Log", record.log)
    return f"{labelled(rows, sys.stdout)}\n\n{next_commands(entry)}"


def times(state: "State") -> str:
    """Return when a job was created, started and finished, as far as it was."""
    moments = {
        "created": state.job.created_at,
        "started": state.started_at,
        "finished": state.finished_at,
    }
    return ", ".join(f"{word} {when}" for word, when in moments.items() if when)


def what_ran(this: "Job | None") -> list[tuple[str, str]]:
    """Return rows with a job's command, code, and kind of machine."""
    from berg.commands import tables

    if this is None:
        trouble = "what was to run cannot be read: its metadata in the bucket is missing or damaged"
        return [("Trouble", trouble)]
    rows = listed("Note", [this.spec.note] if this.spec.note else [])
    if this.cmd:
        rows.append(("Command", this.cmd))
    rows += listed("Container", [this.docker] if this.docker else [])
    code = f"{this.repo_name} at {this.git_commit[:12]}"
    if branch := this.snapshot.get("branch"):
        code += f" ({branch})"
    if this.git_dirty:
        code += f" with {plain.plural(len(this.git_changed_files), 'uncommitted change')}"
    rows.append(("Code", code))
    rows += listed("", tables.shorten(this.git_changed_files))
    rows += tables.install_rows(this)
    shape = this.machine_type
    if this.num_machines > 1:
        shape = f"{this.num_machines} of {shape}"
    if this.gpus_per_machine:
        shape += f" with {this.gpus_per_machine} x {this.gpu_type}"
    return [*rows, ("Machine", f"{shape}, {this.image.rpartition('/')[2]}")]


def machines(entry: "Entry") -> list[str]:
    """Return a line for each machine that a job has, and for what they wait for, or for the one
    that it had.
    """
    from berg.commands import tables

    lines = []
    for each in entry.machines:
        line = f"{each.name} {each.status} in {each.zone} {each.external_ip}"
        lines.append(line.rstrip())
    if not lines and entry.state and entry.state.machine:
        return [f"{entry.state.machine} in {entry.state.zone}, gone"]
    return lines + tables.waits_of(entry)


def results_rows(record: "Record") -> list[tuple[str, str]]:
    """Return rows with a job's results: how many, how large, and the first files by name."""
    from berg.laptop.jobs import also

    state, files = record.entry.state, record.results
    assert state
    folder = state.job.results_dir
    size = sum(each.size for each in files)
    summary = f"{folder}: {plain.plural(len(files), 'file')}, {plain.size(size)}"
    if state.synced_until:
        summary += f", up to {state.synced_until}"
    lines = []
    for each in files[:SHOWN]:
        path = plain.name(each.name.removeprefix(f"berg_results/{folder}/"))
        lines.append(f"{each.size:>14,}  {path}")
    if len(files) > SHOWN:
        lines.append(f"{'':>14}  … and {len(files) - SHOWN:,} more")
    if state.elsewhere:
        lines.append(also(state))
    return [("Results", summary), *listed("", lines)]


def describe_sweep(name: str, rows: "list[Row]") -> str:
    """Return a sweep as people read it: how many jobs are in which state, a row for each, and what
    one may do next.
    """
    from berg import job
    from berg.commands import tables

    counts = Counter(row.state for row in rows)
    states = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
    head = labelled([("Sweep", name), ("Jobs", f"{len(rows):,}: {states}")], sys.stdout)
    lines = [
        head,
        "",
        tables.outcomes(rows),
        f"One job:    berg show {name}/0",
        f"Results:    berg fetch {name}",
    ]
    over = all(row.state in job.FINAL for row in rows)
    lines.append(f"Delete it:  berg rm {name}" if over else f"End it:     berg kill {name}")
    return "\n".join(lines)


def listed(key: str, lines: list[str]) -> list[tuple[str, str]]:
    """Return rows for some lines, of which the first has the label."""
    labels = [key, *[""] * len(lines)]
    return list(zip(labels, lines, strict=False))


def next_commands(entry: "Entry") -> str:
    """Return what one may do with a job as it is."""
    from berg.laptop import records

    name = entry.name
    if records.is_over(entry):
        lines = [
            f"Log:        berg log {name}",
            f"Results:    berg fetch {name}",
            f"Again:      berg rerun {name}",
            f"Delete it:  berg rm {entry.sweep or name}",
        ]
    elif entry.is_stopped:
        lines = [
            f"Start it:   berg start {name}",
            f"Results:    berg fetch {name}",
            f"End it:     berg kill {name}",
        ]
    else:
        lines = [
            f"Follow it:  berg tail {name}",
            f"Log in:     berg ssh {name}",
            f"Results:    berg fetch {name}",
            f"End it:     berg kill {name}",
        ]
    return "\n".join(lines)


@click.command(cls=Grouped)
@click.argument("old", metavar="NAME", shell_complete=complete_names)
@start_options
@click.pass_context
def rerun(ctx: click.Context, /, old: str, **options: Any) -> None:
    """Run a job again, as a new one with a name of its own.

    The command, the code and the options are those of the job NAME; options that are given here
    replace them, and --env adds to the job's. --secret, --install-secret, --notify and --pod-patch
    are to be given again. A job of a sweep runs on its own. Defaults of a repo are not looked at
    again.

    \b
    berg rerun @
    berg rerun digits-1121-0930-x7k --new-code
    berg rerun @ -t a100 --spot --max-hours 4 --tail
    """
    run = start.run_options(options)
    settings, old = ready(old)
    from berg.laptop import jobs, records
    from berg.laptop.resume import read_job, spec_again

    before = read_job(settings, jobs.find(settings, old).name)
    is_other_code = run.new_code or options["branch"] or options["commit"]
    code_of = None if is_other_code else lambda settings: records.code_of(settings, before)
    start.read_patch(options)
    asked = {"branch": None, "commit": None, **given(ctx, options)}
    spec = spec_again(before, asked)
    asked["env"] = (*spec.env, *options["env"])  # the last one of a name counts
    spec = replace(spec, **asked)
    if before.notify and spec.notify is None:
        say(f"Nobody is told of its end, as of that of {old}: give --notify again\n")
    launched = start.start_machines(
        spec, run.dry_run, run.as_json or run.tail, run.as_json, code_of
    )
    if launched is None:
        return
    if launched[1].results_dir == before.results_dir:
        say(f"It writes to the results of {old}, too: files of the same name are replaced\n")
    sys.exit(start.follow(launched, run.wait, run.tail, run.as_json))


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
    from berg.laptop import jobs as names_seen
    from berg.laptop import latest, records

    removals = records.plan_removal(
        settings, [latest.resolve(settings, name) for name in names], say
    )
    for each in removals:
        say_removal(each)
    if not yes:
        which = "it"
        if len(removals) > 1:
            which = "these"
        click.confirm(f"Delete {which} for good?", abort=True, err=True)
    for each in removals:
        records.remove(
            settings, each, tables.counter("Deleting", len(each.results) + len(each.others))
        )
        names_seen.forget([each.name])
        say(f"Deleted {each.name}")


def say_removal(removal: "Removal") -> None:
    """Say what of a job, or of all jobs of a sweep, will be deleted, and what stays."""
    from berg.commands import tables

    name = removal.name
    if len(removal.jobs) > 1:
        name += f" ({len(removal.jobs):,} jobs)"
    files = plain.plural(len(removal.results), "file")
    results = plain.size(sum(blob.size for blob in removal.results))
    rest = plain.size(sum(blob.size for blob in removal.others))
    say(f"{name}: {files} of results, {results}; log and state, {rest}")
    if removal.elsewhere:
        folders = dict.fromkeys(blob.name.rpartition("/")[0] for blob in removal.elsewhere)
        say(f"  of these {len(removal.elsewhere):,} in {', '.join(tables.shorten([*folders]))}")
    for folder, owner in removal.shared.items():
        say(f"  berg_results/{folder} stays: {owner} has its results there, too")


@click.command()
@click.argument("first", metavar="A", shell_complete=complete_names)
@click.argument("second", metavar="B", shell_complete=complete_names)
@click.option("--stat", is_flag=True, help="Of the code only which files changed, and how much.")
@json_option
def diff(first: str, second: str, stat: bool, as_json: bool) -> None:
    """Show what differs between two jobs, in code and all else.

    It compares command, parameters, options, environment, machine, last metrics and code. The code
    is compared as it ran, with what had no commit; both are read from the bucket.

    \b
    berg diff digits-1121-0930-x7k digits-1122-1015-b2c
    berg diff sweep-0 sweep-3 --stat
    berg diff digits-1121-0930-x7k @ --json | jq .metrics
    """
    settings = config.load_ready()
    from berg.laptop import compare, latest

    names = [latest.resolve(settings, each) for each in (first, second)]
    found = compare.compare(settings, *names)
    if as_json:
        plain.echo(json.dumps(found.to_dict(), indent=2))
    else:
        plain.echo(describe_comparison(found, stat))


def describe_comparison(found: "Comparison", stat: bool) -> str:
    """Return two jobs side by side, as text."""
    parts = []
    for title, rows in (("", found.differences), ("last value", found.metrics)):
        short = [row for row in rows if len(row.first + row.second) <= MOST_BESIDE]
        cells = [[row.what, row.first or "-", row.second or "-"] for row in short]
        if cells:
            parts.append(table([[title, *found.names], *cells], sys.stdout))
        parts += [f"{row.what}\n- {row.first}\n+ {row.second}" for row in rows if row not in short]
    code = found.code or "The code is the same."
    if stat:
        code = code.partition("\n\n")[0]
    return "\n\n".join([*parts, code])


COMMANDS = (show, rm, rerun, diff)
