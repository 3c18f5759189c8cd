"""What the commands that start machines share: the plan, the launch, and what comes after it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import config, plain
from berg.commands.results import exit_code, watch
from berg.commands.terminal import AGREED, given, remember_zones, remembered, say
from berg.spec import JobSpec, RunOptions, rows

if TYPE_CHECKING:
    from berg.code.snapshot import Snapshot
    from berg.job import Job
    from berg.plan import Plan

    # Makes of the settings a snapshot that was sent before.
    CodeOf = Callable[[config.Config], Snapshot]
    # Settings, the job, and the zone of its machines.
    Launched = tuple[config.Config, Job, str]


def run_options(options: dict[str, Any]) -> RunOptions:
    """Take out of a command's options those that are not the job's, and return them."""
    names = [each for each in rows(RunOptions) if each in options]
    return RunOptions(**{name: options.pop(name) for name in names})


def wish(options: dict[str, Any]) -> JobSpec:
    """Return what the command line asks for, and for the rest what the repo's defaults do."""
    from berg import plan as defaults

    read_patch(options)
    on_command_line = given(click.get_current_context(), options)
    return JobSpec(**defaults.fill(options, set(on_command_line), Path.cwd()))


def read_patch(options: dict[str, Any]) -> None:
    """Put what the file of --pod-patch holds in place of its name, where it is given."""
    from berg.gke import pods

    if options["pod_patch"]:
        options["pod_patch"] = pods.read_patch(options["pod_patch"])


def check_resume(name: str | None, options: dict[str, Any]) -> None:
    """Raise UsageError for what a job or sweep that goes on cannot have otherwise than it had it,
    and for neither.
    """
    if (options["cmd"] is None) != bool(name):
        raise click.UsageError("give a command, or --resume NAME")
    from berg.laptop.resume import ASKED_AGAIN

    ctx = click.get_current_context()
    there = given(ctx, options).keys() - {*ASKED_AGAIN} if name else set()
    if others := [each.opts[0] for each in ctx.command.params if each.name in there]:
        how = f"leave out {', '.join(others)}. With other options: berg rerun {name}"
        raise click.UsageError(f"--resume goes on with what {name} was asked for with: {how}")


def start_machines(
    spec: JobSpec,
    dry_run: bool,
    quiet: bool,
    as_json: bool = False,
    code_of: CodeOf | None = None,
) -> Launched | None:
    """Show the plan and launch it; returns settings, job and zone, or None after a dry run.

    `code_of` makes of the settings a snapshot that was sent before; without it that is the working
    tree.
    """
    settings = config.load_ready(**spec.settings)
    from berg import places
    from berg.commands import tables
    from berg.laptop import launch

    def carry_out(plan: Plan) -> Launched | None:
        remember_zones(sorted({*remembered("zones"), *plan.offer.zones}))
        say(tables.plan(plan))
        if dry_run:
            show_request(plan, launch.preview(plan), as_json)
            return None
        ask(plan)
        began = time.monotonic()
        zone = launch.submit(plan, say, tables.sending)
        if zone:
            say(
                f"Created {', '.join(plan.machines[:8])} in {zone} after "
                f"{time.monotonic() - began:.1f} s\n"
            )
        if not quiet:
            plain.echo(plan.job.job_name)
        return settings, plan.job, zone

    if not dry_run:
        launch.import_ahead(places.of(places.name_for(spec)))
    code = code_of and code_of(settings)
    return launch.first(settings, spec, Path.cwd(), code, carry_out, say)


def show_request(plan: Plan, request: Any, as_json: bool) -> None:
    """Print the request of a dry run; with --json in an object that has what is installed, too."""
    if as_json:
        request = {"install": plan.job.installation.summary(), "request": request}
    plain.echo(json.dumps(request, indent=2))


def ask(plan: Plan, num_jobs: int = 0) -> None:
    """Ask before a plan is carried out that may cost much, or nobody knows how much, unless it is
    agreed to.
    """
    from berg.laptop import limits

    if click.get_current_context().meta.get(AGREED):
        return
    if question := limits.question(plan, num_jobs):
        click.confirm(question, abort=True, err=True)


def follow(launched: Launched, wait: bool, tail: bool, as_json: bool) -> int:
    """Say how to go on with a launched job, or see it to its end; return the exit code."""
    settings, this, zone = launched
    name, about = this.job_name, about_job(this, zone)
    if not (tail or wait):
        say(
            f"Follow it:  berg tail {name}\nEnd it:     berg kill {name}\nResults:    berg fetch "
            f"{name}\n"
        )
        if as_json:
            plain.echo(json.dumps(about))
        return 0
    from berg.laptop import jobs

    state = watch(settings, name, quiet=not tail)
    if as_json and state:
        ended = jobs.Entry(name, state, []).to_dict()
        plain.echo(json.dumps({**ended, "zone": state.zone, **about}))
    return exit_code(state)


def about_job(this: Job, zone: str) -> dict[str, Any]:
    """Return what --json says of a job that was launched."""
    about = {"name": this.job_name, "zone": zone, "results": this.gcs_results_dir}
    return {**about, "install": this.installation.summary()}


def resume(
    settings: config.Config,
    name: str,
    spec: JobSpec,
    dry_run: bool,
    wait: bool,
    tail: bool,
    as_json: bool,
) -> int:
    """Let a job that is over go on, with the secrets and the webhook of `spec`; return the exit
    code.
    """
    from berg.commands import tables
    from berg.laptop import latest, launch
    from berg.laptop import resume as going_on

    found, this = going_on.described(settings, latest.resolve(settings, name))
    asked = going_on.spec_again(this, {key: getattr(spec, key) for key in going_on.ASKED_AGAIN})
    plan = going_on.plan(config.load_ready(**asked.settings), this, asked)
    say(tables.plan(plan))
    say_differences(this, plan)
    if dry_run:
        show_request(plan, launch.preview(plan), as_json)
        return 0
    ask(plan)
    zone = going_on.submit(found, plan, say)
    return follow((plan.config, plan.job, zone), wait, tail, as_json)


def say_differences(before: Job, plan: Plan) -> None:
    """Say what a job or sweep that goes on has otherwise than it had."""
    from berg.laptop import resume as going_on

    if found := going_on.differences(before, plan.job):
        say("Otherwise than when it was submitted:\n  " + "\n  ".join(found) + "\n")
    if before.notify and not plan.job.notify:
        say("Nobody is told of its end: give --notify again\n")
