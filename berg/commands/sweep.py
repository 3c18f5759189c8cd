"""What `berg run` does for a sweep: show its jobs, launch or resume it, wait for its end."""

import json
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import click

from berg import BergError, config, words
from berg.commands import start as commands_start
from berg.commands import tables
from berg.commands.results import tell_missing
from berg.commands.terminal import say
from berg.google.storage import Bucket
from berg.laptop import launch, sweep
from berg.watch import collect

POLL = 2  # seconds


def run(spec, grid, tasks, parallel, resume, new_code, wait, tail, as_json, dry_run) -> int:
    """Launch or resume a sweep; returns the exit code."""
    if grid and tasks:
        raise click.UsageError("give --grid or --tasks, not both")
    if new_code and not resume:
        raise click.UsageError(
            "--new-code goes with --resume; what is new runs the code around you anyway"
        )
    if resume:
        if grid or tasks:
            raise click.UsageError("--resume takes a sweep as it was; leave --grid and --tasks out")
        settings = config.load_ready()
        if not sweep.exists(settings, resume.partition("/")[0]):
            if new_code:
                raise click.UsageError(
                    "--new-code with --resume is for sweeps; for a job: berg rerun --new-code "
                    f"{resume}"
                )
            return commands_start.resume(settings, resume, dry_run, wait, tail, as_json)
    if tail:
        raise click.UsageError("--tail follows one job; for a sweep: --wait, and berg log SWEEP/0")
    if resume:
        found = sweep.again(settings, resume, say, Path.cwd() if new_code else None)
        name, count = found.sweep, len(found.jobs)
        if not count:
            say(
                f"No job of {name} failed or was lost. One that was killed: berg run --resume "
                f"{name}/0"
            )
        elif dry_run:
            preview(settings, found, parallel)
        else:
            sweep.resume(settings, found, parallel, say, tables.sending)
            say(f"They run {found}")
            say(f"{tables.plural(count, 'job')} of {name} {'runs' if count == 1 else 'run'} again")
        if dry_run:
            return 0
    else:
        started = start(spec, grid, tasks, parallel, as_json, dry_run)
        if started is None:
            return 0
        settings, name, count = started
    about = {"name": name, "num_jobs": count}
    if not wait:
        if as_json:
            click.echo(json.dumps(about))
        return 0
    try:
        code = follow(settings, name)
    except KeyboardInterrupt:
        say(tables.left(name, "berg list -v"))
        raise
    if as_json:
        rows = collect.sweep_rows(settings, Bucket(settings), name)
        click.echo(json.dumps({**about, "jobs": [asdict(row) for row in rows]}))
    return code


def preview(settings, found, parallel) -> None:
    """Show what would run again, and the request for the machines that it takes."""
    machines = sweep.missing(settings, found, parallel)
    say(tables.again(found, machines))
    if machines:
        click.echo(json.dumps(sweep.preview(settings, found, machines), indent=2))


def start(spec, grid, tasks, parallel, as_json, dry_run):
    """Show a sweep and launch it; returns settings, name and number of jobs, or None after a dry
    run.
    """
    for option, value in (("-m", spec.num_machines > 1), ("--each", spec.each)):
        if value:
            raise BergError(f"{option}: each job of a sweep runs on one machine")
    for option in ("no_kill", "wait_for_capacity", "wait_hours"):
        if getattr(spec, option):
            raise BergError(
                f"--{option.replace('_', '-')} is not for sweeps, whose machines take one job "
                "after another"
            )
    rows = sweep.grid(grid) if grid else sweep.tasks(Path(tasks))
    settings = config.load_ready(**spec.settings)
    at_once = min(parallel or len(rows), len(rows))
    plan = launch.prepare(settings, replace(spec, results_dir=None), Path.cwd(), sweep=at_once)
    plan = replace(plan, rounds=-(-len(rows) // at_once))
    jobs = sweep.expand(plan, rows, spec.results_dir)
    say(tables.plan(plan, len(jobs), at_once))
    say(tables.sweep(jobs))
    hours = len(jobs) * plan.job.max_run_seconds / 3600
    say(
        f"{words.plural(len(jobs), 'job')} on {words.plural(at_once, 'machine')}, {hours:,.0f} "
        "machine-hours at most\n"
    )
    if dry_run:
        click.echo(json.dumps(launch.preview(plan), indent=2))
        return None
    began = time.monotonic()
    sweep.submit(plan, jobs, at_once, say, tables.sending)
    name = plan.job.job_name
    say(f"Submitted {words.plural(len(jobs), 'job')} after {time.monotonic() - began:.1f} s\n")
    if not as_json:
        click.echo(name)
        say(f"See them:  berg list -v\nLog:       berg log {name}/0")
        say(f"End them:  berg kill {name}\nResults:   berg fetch {name}\n")
    return settings, name, len(jobs)


def follow(settings, name: str) -> int:
    """Wait until every job of a sweep is over; 0 if all succeeded."""
    shown = ""
    while True:
        found = {entry.name: entry.state for entry in sweep.entries(settings, name) if entry.state}
        states = Counter(state.state for state in found.values())
        line = words.counts(states)
        if line != shown:
            say(f"{name}: {line}")
            shown = line
        if set(states) <= {"SUCCEEDED", "FAILED", "KILLED", "LOST"}:
            tell_missing({each: state for each, state in found.items() if state.lost}, {})
            return int(set(states) != {"SUCCEEDED"})
        time.sleep(POLL)
