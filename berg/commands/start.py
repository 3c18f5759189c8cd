"""What `berg run`, `devbox` and `rerun` do: plan, start, follow and resume jobs and sweeps."""

import os
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from berg import BergError, config, places, plain, states
from berg import plan as defaults
from berg.code.snapshot import Snapshot
from berg.commands import tables
from berg.commands.results import exit_code, say_lost, watch
from berg.commands.terminal import (
    AGREED,
    agree_to_send,
    confirm,
    given,
    print_json,
    remember_zones,
    remembered,
    say,
)
from berg.gke import pods
from berg.google.api import wait_for
from berg.google.shapes import SSD_GB
from berg.google.storage import Bucket
from berg.job import Job
from berg.laptop import jobs, launch, lookup, purse, spending, sweep
from berg.laptop import resume as resuming
from berg.plain import plural
from berg.plan import Plan
from berg.spec import JobSpec, RunOptions, check_rows, rows

# The plan that was carried out, and the zone of its machines.
Launched = tuple[Plan, str]
SWEEPS = "--grid, --tasks or --samples"


def take_run_options(options: dict[str, Any]) -> RunOptions:
    """Remove the options that are not the job's from a command's options, and return them."""
    names = [each for each in rows(RunOptions) if each in options]
    return RunOptions(**{name: options.pop(name) for name in names})


def split(options: dict[str, Any]) -> tuple[JobSpec, RunOptions]:
    """Return the job's options, with the repo's defaults, and the others."""
    on_command_line = set(given(click.get_current_context(), options))
    asked = take_run_options(options)
    read_patch(options)
    options["env"] = variables(asked.env_file, options["env"])
    return JobSpec(**defaults.fill(options, on_command_line, Path.cwd())), asked


def read_patch(options: dict[str, Any]) -> None:
    """Replace the file name of --pod-patch by what is in the file."""
    if options["pod_patch"]:
        options["pod_patch"] = pods.read_patch(options["pod_patch"])


def variables(file: str | None, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return NAME=VALUE for the lines of --env-file, then for each --env; a NAME alone has its
    value here. Raise BergError for a line that is no variable.
    """
    found = [from_here("--env", text) for text in given]
    if not file:
        return tuple(found)
    lines = []
    for number, line in enumerate(Path(file).read_text().splitlines(), start=1):
        where = f"{file}, line {number}:"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise BergError(f"{where} {error}") from None
        if words[:1] == ["export"]:
            del words[0]
        if len(words) > 1:
            raise BergError(f"{where} give one NAME=VALUE, with quotes around blanks")
        lines += [from_here(where, word) for word in words]
    return (*lines, *found)


def from_here(where: str, text: str) -> str:
    """Return NAME=VALUE of a variable that is given by its name alone, or as it is."""
    if "=" in text:
        return text
    if text not in os.environ:
        raise BergError(f"{where} {text!r} is neither NAME=VALUE nor a variable that is set here")
    return f"{text}={os.environ[text]}"


def check(asked: RunOptions, options: dict[str, Any]) -> None:
    """Raise UsageError for options that cannot be given together."""
    name, lists = asked.resume, [asked.grid, asked.tasks, asked.samples]
    if (options["cmd"] is None) != bool(name):
        raise click.UsageError("give a command, or --resume NAME")
    if name:
        check_resume(name, options)
    check_rows(asked)
    if sum(map(bool, lists)) > 1:
        raise click.UsageError("give one of --grid, --tasks and --samples")
    if bool(asked.params) != bool(asked.samples):
        raise click.UsageError("--samples N draws N jobs from each --param NAME=…: give both")
    if asked.new_code and not name:
        raise click.UsageError("--new-code is for --resume; a new job runs the working tree anyway")
    if name and any(lists):
        raise click.UsageError(f"--resume takes a sweep as it was; leave {SWEEPS} out")


def check_resume(name: str, options: dict[str, Any]) -> None:
    """Raise UsageError for options that --resume takes from the job."""
    there = given(click.get_current_context(), options)
    fixed = {key: row.flag for key, row in rows(JobSpec).items() if not row.asked_again}
    if others := [flag for key, flag in fixed.items() if key in there]:
        raise click.UsageError(
            f"--resume uses the options of {name}: leave out {', '.join(others)}. "
            f"With other options: berg rerun {name}"
        )


def run(spec: JobSpec, asked: RunOptions) -> int:
    """Start a job; return the exit code."""
    for option, value in (("--stop-worst", spec.stop_worst), ("--parallel", asked.parallel)):
        if value:
            raise click.UsageError(f"{option} is for sweeps: give {SWEEPS}")
    launched = start_job(spec, asked)
    return follow(launched, asked) if launched else 0


def start_job(
    spec: JobSpec, asked: RunOptions, code_of: Callable[[config.Config], Snapshot] | None = None
) -> Launched | None:
    """Show the plan of a job and start it; return None after a dry run.

    `code_of` makes of the settings a snapshot that was sent before; without it the code is the
    working tree.
    """
    settings = config.load_ready(**spec.settings)

    def carry_out(plan: Plan) -> Launched | None:
        remember_zones({*remembered("zones"), *plan.offer.zones})
        printer(asked)(tables.plan(plan))
        if asked.dry_run:
            print_request(plan, launch.preview(plan), asked)
            return None
        ask(plan, asked)
        began = time.monotonic()
        zone = launch.submit(plan, say, tables.sending)
        if zone:
            names, seconds = ", ".join(plan.machines[:8]), time.monotonic() - began
            taker = plan.warm.offer.title if plan.warm else plan.job.on
            how = f"{taker} took it" if taker else f"Created {names}"
            say(f"{how} in {zone} after {seconds:.1f} s\n")
        if not (asked.as_json or asked.tail):
            plain.echo(plan.job.job_name)
        return plan, zone

    if not asked.dry_run:
        launch.import_ahead(places.of(places.name_for(spec)))
    code = code_of(settings) if code_of else None
    return launch.first(settings, spec, Path.cwd(), code, carry_out, say)


def printer(asked: RunOptions) -> Callable[[str], None]:
    """Return what prints a plan: it is the output of a dry run, unless that is JSON."""
    return plain.echo if asked.dry_run and not asked.as_json else say


def print_request(plan: Plan, request: Any, asked: RunOptions, num_jobs: int = 0) -> None:
    """With --json, print the request of a dry run, and the job."""
    if asked.as_json:
        print_json({**about_job(plan, num_jobs), "request": request})


def ask(plan: Plan, asked: RunOptions, num_jobs: int = 0) -> None:
    """Ask before secrets are sent, and before a plan is carried out whose cost is high or unknown,
    unless -y was given.
    """
    agree_to_send(plan.snapshot, plan.config.bucket, plan.leaks, asked.send_secrets)
    if not click.get_current_context().meta.get(AGREED):
        question = spending.question(plan, num_jobs)
        confirm(question, yes=not question)


def about_job(plan: Plan, num_jobs: int = 0) -> dict[str, Any]:
    """Return what --json prints of a new job, or of the first one of a sweep."""
    this = plan.job
    return {
        "name": this.job_name,
        "results": this.gcs_results_dir,
        "begins_with": this.begins_with,
        "install": this.installation.summary(),
        **price(plan, num_jobs),
    }


def price(plan: Plan, num_jobs: int = 0) -> dict[str, Any]:
    """Return what --json prints of a plan's cost; None for what is unknown.

    usd_per_hour is that of all machines of a job, or of one of a sweep's.
    """
    hourly = spending.dearest(plan.job.rates, plan.offer.zones)
    return {
        "usd_per_hour": None if hourly is None else hourly * plan.job.num_machines,
        "usd_at_most": spending.worst(plan, num_jobs),
        "max_run_seconds": plan.job.max_run_seconds,
        "scratch_gb": plan.offer.shape.local_ssds * SSD_GB,
    }


def follow(launched: Launched, asked: RunOptions) -> int:
    """Print the next commands for a job, or follow it to its end; return the exit code."""
    plan, zone = launched
    name, about = plan.job.job_name, {**about_job(plan), "zone": zone}
    if not (asked.tail or asked.wait):
        say(f"Follow it:  berg tail {name}\nEnd it:     berg kill {name}")
        say(f"Results:    berg fetch {name}\n")
        if asked.as_json:
            print_json(about)
        return 0
    state = watch(plan.config, name, quiet=not asked.tail)
    if asked.as_json and state:
        ended = jobs.Entry(name, state, []).to_dict()
        print_json({**ended, **about, "zone": state.zone or zone})
    return exit_code(state)


def check_tail(asked: RunOptions) -> None:
    if asked.tail:
        raise click.UsageError("--tail follows one job; for a sweep: --wait, and berg log SWEEP/0")


def resume(spec: JobSpec, asked: RunOptions) -> int:
    """Resume a job or sweep, with the secrets and the webhook of `spec`; return the exit code."""
    name = asked.resume or ""
    settings = config.load_ready()
    if states.sweep_exists(Bucket(settings), name.partition("/")[0]):
        check_tail(asked)
        return resume_sweep(settings, name, spec, asked)
    if asked.new_code:
        raise click.UsageError(
            f"--new-code with --resume is for sweeps; for a job: berg rerun --new-code {name}"
        )
    found, this = resuming.find(settings, lookup.resolve(settings, name))
    again = resuming.spec_again(this, {key: getattr(spec, key) for key in resuming.ASKED_AGAIN})
    again = resuming.with_purse(settings, again, this)
    plan = resuming.plan(config.load_ready(**again.settings), this, again)
    printer(asked)(tables.plan(plan))
    say_differences(this, plan)
    if asked.dry_run:
        print_request(plan, launch.preview(plan), asked)
        return 0
    ask(plan, asked)
    zone = resuming.submit(found, plan, say)
    return follow((plan, zone), asked)


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
        return 0 if asked.dry_run else follow_sweep(settings, name, 0, asked)
    spec = replace(found.spec(spec), purse=spec.purse)
    spec = resuming.with_purse(settings, spec, found.first)
    settings = config.load_ready(**spec.settings)
    machines = sweep.missing(settings, found, asked.parallel)
    plan = sweep.plan_again(settings, found, spec, len(machines))
    printer(asked)(tables.again(found, plan, machines))
    if found.is_over:
        say_differences(found.first, plan)
    if asked.dry_run:
        if machines:
            print_request(plan, launch.preview(plan, machines), asked, len(found.jobs))
        return 0
    agree_to_send(plan.snapshot, settings.bucket, plan.leaks, asked.send_secrets)
    sweep.resume(found, plan, machines, say, tables.sending)
    count = len(found.jobs)
    say(f"{plural(count, 'job')} of {found.sweep} {'runs' if count == 1 else 'run'} again")
    return follow_sweep(settings, found.sweep, count, asked, plan)


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
    for option in (
        "on",
        "no_kill",
        "keep_failed",
        "keep_warm",
        "wait_for_capacity",
        "queue_timeout",
        "flex",
    ):
        if getattr(spec, option):
            raise BergError(
                f"--{option.replace('_', '-')} is not for sweeps, whose machines run one job after "
                "another"
            )


def start_sweep(spec: JobSpec, asked: RunOptions) -> int:
    """Show a sweep and start it; return the exit code."""
    check_tail(asked)
    check_for_sweep(spec)
    values, drawn = values_of(asked)
    settings = config.load_ready(**spec.settings)
    at_once = min(asked.parallel or len(values), len(values))
    plan = launch.prepare(settings, replace(spec, results_dir=None), Path.cwd(), sweep=at_once)
    plan = replace(plan, rounds=-(-len(values) // at_once), drawn=drawn)
    plan = purse.limited(spending.limited(plan, len(values)), at_once)
    members = sweep.with_earlier(plan, sweep.expand(plan, values, spec.results_dir))
    count = plural(len(members), "job")
    show = printer(asked)
    show(tables.plan(plan, len(members), at_once))
    show(tables.sweep(members))
    if drawn:
        show(f"Drawn with {drawn}")
    hours = len(members) * plan.job.max_run_seconds / 3600
    show(f"{count} on {plural(at_once, 'machine')}, at most {hours:,.0f} machine-hours\n")
    if asked.dry_run:
        print_request(plan, launch.preview(plan), asked, len(members))
        return 0
    ask(plan, asked, len(members))
    began = time.monotonic()
    sweep.submit(plan, members, at_once, say, tables.sending)
    name = plan.job.job_name
    say(f"Submitted {count} after {time.monotonic() - began:.1f} s\n")
    if not asked.as_json:
        plain.echo(name)
        say(f"See them:  berg list -v\nLog:       berg log {name}/0")
        say(f"End them:  berg kill {name}\nResults:   berg fetch {name}\n")
    return follow_sweep(settings, name, len(members), asked, plan)


def follow_sweep(
    settings: config.Config,
    name: str,
    num_jobs: int,
    asked: RunOptions,
    plan: Plan | None = None,
) -> int:
    """Wait for the end of a sweep if --wait was given; return the exit code.

    `plan` is that of the jobs that were started, None if none was.
    """
    about: dict[str, Any] = {"name": name, "num_jobs": num_jobs}
    if plan:
        about |= price(plan, num_jobs)
    code = 0
    if asked.wait:
        try:
            code = wait_for_sweep(settings, name)
        except KeyboardInterrupt:
            say(tables.still_running(name, "berg list -v"))
            raise
        if asked.as_json:
            from berg.watch import collect

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

    wait_for(is_over, 2)
    say_lost(states)
    return exit_code(*(states[each] for each in sorted(states)))
