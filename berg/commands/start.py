"""What `berg run`, `devbox` and `rerun` do: plan, start and follow jobs."""

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from berg import BergError, config, places, plain
from berg import plan as defaults
from berg.code.snapshot import Snapshot
from berg.commands import tables
from berg.commands.results import exit_code, watch
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
from berg.job import Job
from berg.laptop import jobs, launch, limits
from berg.plan import Plan
from berg.spec import JobSpec, RunOptions, check_rows, rows

# Settings, the job, and the zone of its machines.
Launched = tuple[config.Config, Job, str]
SWEEPS = "--grid, --tasks or --samples"


def take_run_options(options: dict[str, Any]) -> RunOptions:
    """Remove the options that are not the job's from a command's options, and return them."""
    names = [each for each in rows(RunOptions) if each in options]
    return RunOptions(**{name: options.pop(name) for name in names})


def split(options: dict[str, Any]) -> tuple[JobSpec, RunOptions]:
    """Return the job's options, with the repo's defaults, and the others."""
    asked = take_run_options(options)
    read_patch(options)
    options["env"] = variables(asked.env_file, options["env"])
    on_command_line = given(click.get_current_context(), options)
    return JobSpec(**defaults.fill(options, set(on_command_line), Path.cwd())), asked


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
            say(f"Created {names} in {zone} after {seconds:.1f} s\n")
        if not (asked.as_json or asked.tail):
            plain.echo(plan.job.job_name)
        return settings, plan.job, zone

    if not asked.dry_run:
        launch.import_ahead(places.of(places.name_for(spec)))
    code = code_of(settings) if code_of else None
    return launch.first(settings, spec, Path.cwd(), code, carry_out, say)


def printer(asked: RunOptions) -> Callable[[str], None]:
    """Return what prints a plan: it is the output of a dry run, unless that is JSON."""
    return plain.echo if asked.dry_run and not asked.as_json else say


def print_request(plan: Plan, request: Any, asked: RunOptions) -> None:
    """With --json, print the request of a dry run, and the job."""
    if asked.as_json:
        print_json({**about_job(plan.job), "request": request})


def ask(plan: Plan, asked: RunOptions, num_jobs: int = 0) -> None:
    """Ask before secrets are sent, and before a plan is carried out whose cost is high or unknown,
    unless -y was given.
    """
    agree_to_send(plan.snapshot, plan.config.bucket, plan.leaks, asked.send_secrets)
    if not click.get_current_context().meta.get(AGREED):
        question = limits.question(plan, num_jobs)
        confirm(question, yes=not question)


def about_job(this: Job) -> dict[str, Any]:
    """Return what --json prints of a new job."""
    about = {"name": this.job_name, "results": this.gcs_results_dir}
    return {**about, "begins_with": this.begins_with, "install": this.installation.summary()}


def follow(launched: Launched, asked: RunOptions) -> int:
    """Print the next commands for a job, or follow it to its end; return the exit code."""
    settings, this, zone = launched
    name, about = this.job_name, {**about_job(this), "zone": zone}
    if not (asked.tail or asked.wait):
        say(f"Follow it:  berg tail {name}\nEnd it:     berg kill {name}")
        say(f"Results:    berg fetch {name}\n")
        if asked.as_json:
            print_json(about)
        return 0
    state = watch(settings, name, quiet=not asked.tail)
    if asked.as_json and state:
        ended = jobs.Entry(name, state, []).to_dict()
        print_json({**ended, **about, "zone": state.zone or zone})
    return exit_code(state)
