"""What `berg run` does for sweeps, and to resume a job or a sweep."""

import secrets
import shlex
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from berg import BergError, config, plain
from berg.commands import start as begin
from berg.commands import tables
from berg.commands.results import exit_code, say_lost
from berg.commands.terminal import agree_to_send, print_json, say
from berg.google.api import wait_for
from berg.google.storage import Bucket
from berg.job import Job
from berg.laptop import jobs, launch, limits, lookup, sweep
from berg.laptop import resume as resuming
from berg.plain import plural
from berg.plan import Plan
from berg.spec import JobSpec, RunOptions
from berg.watch import collect

POLL = 2  # seconds


def run(spec: JobSpec, asked: RunOptions) -> int:
    """Start a sweep, or resume a job or sweep; return the exit code."""
    return resume(spec, asked) if asked.resume else start(spec, asked)


def check_tail(asked: RunOptions) -> None:
    if asked.tail:
        raise click.UsageError("--tail follows one job; for a sweep: --wait, and berg log SWEEP/0")


def resume(spec: JobSpec, asked: RunOptions) -> int:
    """Resume a job or sweep, with the secrets and the webhook of `spec`; return the exit code."""
    name = asked.resume or ""
    settings = config.load_ready()
    if sweep.exists(settings, name.partition("/")[0]):
        check_tail(asked)
        return resume_sweep(settings, name, spec, asked)
    if asked.new_code:
        raise click.UsageError(
            f"--new-code with --resume is for sweeps; for a job: berg rerun --new-code {name}"
        )
    found, this = resuming.find(settings, lookup.resolve(settings, name))
    again = resuming.spec_again(this, {key: getattr(spec, key) for key in resuming.ASKED_AGAIN})
    plan = resuming.plan(config.load_ready(**again.settings), this, again)
    begin.printer(asked)(tables.plan(plan))
    say_differences(this, plan)
    if asked.dry_run:
        begin.print_request(plan, launch.preview(plan), asked)
        return 0
    begin.ask(plan, asked)
    zone = resuming.submit(found, plan, say)
    return begin.follow((plan.config, plan.job, zone), asked)


def say_differences(before: Job, plan: Plan) -> None:
    """Say what differs for a job or sweep since it was submitted."""
    if found := resuming.differences(before, plan.job):
        say("Different from when it was submitted:\n  " + "\n  ".join(found) + "\n")
    if before.notify and not plan.job.notify:
        say("No webhook is called at its end: give --notify again\n")


def resume_sweep(settings: config.Config, name: str, spec: JobSpec, asked: RunOptions) -> int:
    """Run the failed and lost jobs of a sweep again; return the exit code."""
    found = sweep.again(settings, name, Path.cwd() if asked.new_code else None)
    if found is None:
        name = name.partition("/")[0]
        say(f"No job of {name} failed or was lost. To run a killed one: berg run --resume {name}/0")
        return 0 if asked.dry_run else follow(settings, name, 0, asked)
    spec = found.spec(spec)
    settings = config.load_ready(**spec.settings)
    machines = sweep.missing(settings, found, asked.parallel)
    plan = sweep.plan_again(settings, found, spec, len(machines))
    begin.printer(asked)(tables.again(found, plan, machines))
    if found.is_over:
        say_differences(found.first, plan)
    if asked.dry_run:
        if machines:
            begin.print_request(plan, launch.preview(plan, machines), asked)
        return 0
    agree_to_send(plan.snapshot, settings.bucket, plan.leaks, asked.send_secrets)
    sweep.resume(found, plan, machines, say, tables.sending)
    count = len(found.jobs)
    say(f"{plural(count, 'job')} of {found.sweep} {'runs' if count == 1 else 'run'} again")
    return follow(settings, found.sweep, count, asked)


def values_of(asked: RunOptions) -> tuple[list[dict[str, str]], str]:
    """Return the parameters of each job, and the options that drew them ("" if they are listed)."""
    if asked.grid:
        return sweep.grid(asked.grid), ""
    if asked.tasks:
        return sweep.tasks(Path(asked.tasks)), ""
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    found = sweep.rows(asked.params, asked.samples or 0, asked.sampler, seed)
    how = f"--samples {asked.samples} --sampler {asked.sampler} --seed {seed}"
    return found, " ".join([how, *(f"--param {shlex.quote(each)}" for each in asked.params)])


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
                f"--{option.replace('_', '-')} is not for sweeps, whose machines run one job after "
                "another"
            )


def start(spec: JobSpec, asked: RunOptions) -> int:
    """Show a sweep and start it; return the exit code."""
    check_tail(asked)
    check_for_sweep(spec)
    values, drawn = values_of(asked)
    settings = config.load_ready(**spec.settings)
    at_once = min(asked.parallel or len(values), len(values))
    plan = launch.prepare(settings, replace(spec, results_dir=None), Path.cwd(), sweep=at_once)
    plan = replace(plan, rounds=-(-len(values) // at_once), drawn=drawn)
    plan = limits.limited(plan, len(values))
    members = sweep.with_earlier(plan, sweep.expand(plan, values, spec.results_dir))
    count = plural(len(members), "job")
    show = begin.printer(asked)
    show(tables.plan(plan, len(members), at_once))
    show(tables.sweep(members))
    if drawn:
        show(f"Drawn with {drawn}")
    hours = len(members) * plan.job.max_run_seconds / 3600
    show(f"{count} on {plural(at_once, 'machine')}, at most {hours:,.0f} machine-hours\n")
    if asked.dry_run:
        begin.print_request(plan, launch.preview(plan), asked)
        return 0
    begin.ask(plan, asked, len(members))
    began = time.monotonic()
    sweep.submit(plan, members, at_once, say, tables.sending)
    name = plan.job.job_name
    say(f"Submitted {count} after {time.monotonic() - began:.1f} s\n")
    if not asked.as_json:
        plain.echo(name)
        say(f"See them:  berg list -v\nLog:       berg log {name}/0")
        say(f"End them:  berg kill {name}\nResults:   berg fetch {name}\n")
    return follow(settings, name, len(members), asked)


def follow(settings: config.Config, name: str, num_jobs: int, asked: RunOptions) -> int:
    """Wait for the end of a sweep if --wait was given; return the exit code."""
    about: dict[str, Any] = {"name": name, "num_jobs": num_jobs}
    code = 0
    if asked.wait:
        try:
            code = wait_for_sweep(settings, name)
        except KeyboardInterrupt:
            say(tables.still_running(name, "berg list -v"))
            raise
        if asked.as_json:
            found = collect.sweep_rows(settings, Bucket(settings), name)
            about["jobs"] = [row.to_dict() for row in found]
    if asked.as_json:
        print_json(about)
    return code


def wait_for_sweep(settings: config.Config, name: str) -> int:
    """Wait for the end of all jobs of a sweep; return the exit code."""
    shown, states = "", {}

    def is_over() -> bool:
        nonlocal shown, states
        found = sweep.entries(settings, name)
        states = {each.name: each.state for each in found if each.state}
        line = jobs.counts(Counter(state.state for state in states.values()))
        if line != shown:
            say(f"{name}: {line}")
            shown = line
        return all(state.final for state in states.values())

    wait_for(is_over, POLL)
    say_lost(states)
    return exit_code(*(states[each] for each in sorted(states)))
