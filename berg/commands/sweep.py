"""What `berg run` does for a sweep: show its jobs, launch or resume it, wait for its end."""

import json
import secrets
import shlex
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from berg import BergError, config, plain
from berg.commands import start as commands_start
from berg.commands import tables
from berg.commands.results import exit_code, tell_missing
from berg.commands.terminal import say
from berg.google.storage import Bucket
from berg.laptop import jobs, launch, limits, sweep
from berg.spec import JobSpec, RunOptions, check_rows
from berg.watch import collect

POLL = 2  # seconds


def check(asked: RunOptions) -> None:
    """Raise UsageError for options that do not go together."""
    check_rows(asked)
    if sum(map(bool, (asked.grid, asked.tasks, asked.samples))) > 1:
        raise click.UsageError("give one of --grid, --tasks and --samples")
    if bool(asked.params) != bool(asked.samples):
        raise click.UsageError("--samples N draws N jobs from each --param NAME=…: give both")
    if asked.new_code and not asked.resume:
        raise click.UsageError(
            "--new-code goes with --resume; what is new runs the code around you anyway"
        )
    if asked.resume and (asked.grid or asked.tasks or asked.samples):
        raise click.UsageError(
            "--resume takes a sweep as it was; leave --grid, --tasks and --samples out"
        )


def rows_of(asked: RunOptions) -> tuple[list[dict[str, str]], str]:
    """Return the values of each job, and how they were drawn, "" if they are all listed."""
    if asked.grid:
        return sweep.grid(asked.grid), ""
    if asked.tasks:
        return sweep.tasks(Path(asked.tasks)), ""
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    found = sweep.rows(asked.params, asked.samples or 0, asked.sampler, seed)
    how = f"--samples {asked.samples} --sampler {asked.sampler} --seed {seed}"
    return found, " ".join([how, *(f"--param {shlex.quote(each)}" for each in asked.params)])


@dataclass(frozen=True)
class Launched:
    """A sweep that runs."""

    settings: config.Config
    name: str
    num_jobs: int

    @property
    def about(self) -> dict[str, Any]:
        return {"name": self.name, "num_jobs": self.num_jobs}


def run(spec: JobSpec, asked: RunOptions) -> int:
    """Launch or resume a sweep; return the exit code."""
    check(asked)
    if asked.resume:
        settings = config.load_ready()
        if not sweep.exists(settings, asked.resume.partition("/")[0]):
            return resume_job(settings, asked.resume, spec, asked)
    if asked.tail:
        raise click.UsageError("--tail follows one job; for a sweep: --wait, and berg log SWEEP/0")
    if asked.resume:
        launched = resume(settings, asked.resume, spec, asked)
    else:
        launched = start(spec, asked)
    if launched is None:
        return 0
    return see_it_through(launched, asked)


def resume_job(settings: config.Config, name: str, spec: JobSpec, asked: RunOptions) -> int:
    """Let a job go on that is of no sweep; return the exit code."""
    if asked.new_code:
        raise click.UsageError(
            f"--new-code with --resume is for sweeps; for a job: berg rerun --new-code {name}"
        )
    return commands_start.resume(
        settings, name, spec, asked.dry_run, asked.wait, asked.tail, asked.as_json
    )


def resume(
    settings: config.Config, name: str, given: JobSpec, asked: RunOptions
) -> Launched | None:
    """Run again what of a sweep failed or was lost, with the secrets and the webhook of `given`;
    return None after a dry run.
    """
    found = sweep.again(settings, name, Path.cwd() if asked.new_code else None)
    if found is None:
        name = name.partition("/")[0]
        say(f"No job of {name} failed or was lost. One that was killed: berg run --resume {name}/0")
        return None if asked.dry_run else Launched(settings, name, 0)
    spec = found.spec(given)
    settings = config.load_ready(**spec.settings)
    machines = sweep.missing(settings, found, asked.parallel)
    plan = sweep.plan_again(settings, found, spec, len(machines))
    say(tables.again(found, plan, machines))
    if found.is_over:
        commands_start.say_differences(found.first, plan)
    if asked.dry_run:
        if machines:
            request = sweep.preview(plan, machines)
            commands_start.show_request(plan, request, asked.as_json)
        return None
    sweep.resume(found, plan, machines, say, tables.sending)
    count = len(found.jobs)
    verb = "runs" if count == 1 else "run"
    say(f"{plain.plural(count, 'job')} of {found.sweep} {verb} again")
    return Launched(settings, found.sweep, count)


def see_it_through(launched: Launched, asked: RunOptions) -> int:
    """Wait for a sweep's end if that was asked for; return the exit code."""
    if not asked.wait:
        if asked.as_json:
            plain.echo(json.dumps(launched.about))
        return 0
    settings, name = launched.settings, launched.name
    try:
        code = follow(settings, name)
    except KeyboardInterrupt:
        say(tables.left(name, "berg list -v"))
        raise
    if asked.as_json:
        rows = collect.sweep_rows(settings, Bucket(settings), name)
        plain.echo(json.dumps({**launched.about, "jobs": [row.to_dict() for row in rows]}))
    return code


def check_for_sweep(spec: JobSpec) -> None:
    """Raise BergError for options that no sweep takes."""
    for option, value in (("-m", spec.num_machines > 1), ("--each", spec.each)):
        if value:
            raise BergError(f"{option}: each job of a sweep runs on one machine")
    if spec.gpu_type == "cheapest" or "," in (spec.gpu_type or ""):
        raise BergError("-t takes one GPU type for a sweep. Compare them: berg prices")
    for option in ("no_kill", "wait_for_capacity", "queue_timeout", "flex"):
        if getattr(spec, option):
            raise BergError(
                f"--{option.replace('_', '-')} is not for sweeps, whose machines take one job "
                "after another"
            )


def start(spec: JobSpec, asked: RunOptions) -> Launched | None:
    """Show a sweep and launch it; return None after a dry run."""
    check_for_sweep(spec)
    rows, drawn = rows_of(asked)
    settings = config.load_ready(**spec.settings)
    at_once = min(asked.parallel or len(rows), len(rows))
    plan = launch.prepare(settings, replace(spec, results_dir=None), Path.cwd(), sweep=at_once)
    plan = replace(plan, rounds=-(-len(rows) // at_once), drawn=drawn)
    plan = limits.limited(plan, len(rows))
    jobs = sweep.expand(plan, rows, spec.results_dir)
    say(tables.plan(plan, len(jobs), at_once))
    say(tables.sweep(jobs))
    if drawn:
        say(f"Drawn with {drawn}")
    hours = len(jobs) * plan.job.max_run_seconds / 3600
    say(
        f"{plain.plural(len(jobs), 'job')} on {plain.plural(at_once, 'machine')}, {hours:,.0f} "
        "machine-hours at most\n"
    )
    if asked.dry_run:
        commands_start.show_request(plan, launch.preview(plan), asked.as_json)
        return None
    commands_start.ask(plan, len(jobs))
    began = time.monotonic()
    sweep.submit(plan, jobs, at_once, say, tables.sending)
    name = plan.job.job_name
    say(f"Submitted {plain.plural(len(jobs), 'job')} after {time.monotonic() - began:.1f} s\n")
    if not asked.as_json:
        plain.echo(name)
        say(f"See them:  berg list -v\nLog:       berg log {name}/0")
        say(f"End them:  berg kill {name}\nResults:   berg fetch {name}\n")
    return Launched(settings, name, len(jobs))


def follow(settings: config.Config, name: str) -> int:
    """Wait until every job of a sweep is over; return 0 if all succeeded, else the exit code of the
    first that did not.
    """
    shown = ""
    while True:
        found = {entry.name: entry.state for entry in sweep.entries(settings, name) if entry.state}
        states = Counter(state.state for state in found.values())
        line = jobs.counts(states)
        if line != shown:
            say(f"{name}: {line}")
            shown = line
        if set(states) <= {"SUCCEEDED", "FAILED", "KILLED", "LOST"}:
            tell_missing({each: state for each, state in found.items() if state.lost}, {})
            codes = [exit_code(found[each]) for each in sorted(found)]
            return next(filter(None, codes), 0)
        time.sleep(POLL)
