"""The commands that begin and end work: run, devbox, kill."""

import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands import start
from berg.commands.terminal import (
    Quoted,
    complete_names,
    describe,
    job_options,
    machine_options,
    say,
    show_traceback,
    sweep_options,
    yes_option,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from berg.job import Job

SHOWN = 8  # names that kill says at once; of more the first ones


@click.command(cls=Quoted)
@click.argument("cmd", required=False)
@machine_options
@sweep_options
@job_options
@click.option("--wait", is_flag=True, help="Wait for the end; exit with the command's exit code.")
@click.option("--tail", is_flag=True, help="Follow the log, then as --wait.")
def run(
    wait: bool,
    tail: bool,
    as_json: bool,
    dry_run: bool,
    grid: tuple[str, ...],
    tasks: str | None,
    params: tuple[str, ...],
    samples: int | None,
    sampler: str,
    seed: int | None,
    parallel: int | None,
    resume: str | None,
    new_code: bool,
    **options: Any,
) -> None:
    """Run CMD on a machine of its own, with the repo around you.

    CMD runs in the same folder of the git repo as you are in. The code is the working tree: the
    last commit and what you changed since, untracked files included, ignored ones not. What CMD
    writes under /root/berg_results appears in the bucket. The machine is deleted when CMD ends.

    \b
    berg run "python train.py --bs=256 --logdir=/root/berg_results/sweep1/bs_256"
    berg run -g 8 -t a100 --spot --max-hours 24 --tail "python train.py"
    berg run -g 0 -c 16 --wait "make test" && echo passed
    berg run -m 4 --each "torchrun train.py"
    berg run "python train.py --lr={lr} --bs={bs}" --grid lr=0.1,0.01 --grid bs=32,64 --parallel 2
    """
    spec = start.wish(options)
    start.check_resume(resume, options)
    if grid or tasks or resume or new_code or params or samples:
        from berg.commands import sweep as cli_sweep

        asked = cli_sweep.Asked(
            grid, tasks, parallel, resume, new_code, wait, tail, as_json, dry_run
        )
        asked = replace(asked, params=params, samples=samples, sampler=sampler, seed=seed)
        sys.exit(cli_sweep.run(spec, asked))
    if spec.stop_worst:
        raise click.UsageError("--stop-worst is for sweeps: give --grid, --tasks or --samples")
    if parallel:
        raise click.UsageError("--parallel is for sweeps: give --grid, --tasks or --samples")
    launched = start.start_machines(spec, dry_run, as_json or tail, as_json)
    if launched is None:
        return
    sys.exit(start.follow(launched, wait, tail, as_json))


@click.command()
@machine_options
@click.option(
    "--idle-hours",
    type=float,
    default=4,
    show_default=True,
    help="End by itself after so long idle; 0: never.",
)
@click.option(
    "--idle",
    type=click.Choice(["stop", "delete"]),
    help="What it does then.  [default: stop, where Google can]",
)
def devbox(as_json: bool, dry_run: bool, **options: Any) -> None:
    """Start machines to live on, with the repo around you.

    The repo is in /root/code, results are mirrored, and no command runs. A devbox on which nobody
    types and nothing runs that people started (a shell at its prompt or top is nothing) or that
    keeps a CPU, GPU or TPU busy uploads its results and stops, 10 minutes after a warning on its
    terminals: its disk is kept, and costs money, until berg start or berg kill. So it is whatever
    else ends it. What Google does not stop (pods, TPUs, flex-start, local disks) deletes itself
    instead; the plan says so.

    \b
    berg devbox
    berg devbox -m 2 -g 8 -t a100 -n big
    berg ssh big
    """
    spec = start.wish(options)
    if spec.idle_hours == 0:
        say("With --idle-hours 0 a forgotten devbox costs money until --max-hours ends it.")
    launched = start.start_machines(spec, dry_run, as_json, as_json)
    if launched is None:
        return
    _, this, zone = launched
    say(how_to_live_with(this, spec.model))
    if as_json:
        plain.echo(json.dumps(start.about_job(this, zone)))


def how_to_live_with(this: "Job", model: str) -> str:
    """Return the commands for a devbox that is there now, paid for in a way."""
    from berg.laptop import power

    name, kind = this.job_name, this.machine_type
    stop = f"Stop it: berg stop {name}\n"
    if power.why_never("devbox", this.place, this.num_machines, kind, model):
        stop = ""
    return f"Log in:  berg ssh {name}\n{stop}End it:  berg kill {name}\n"


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="All jobs and machines of mine.")
@click.option("--now", is_flag=True, help="Delete at once, without waiting for the last results.")
@yes_option
def kill(names: tuple[str, ...], everything: bool, now: bool, yes: bool) -> None:
    """End jobs and delete their machines.

    The command gets SIGTERM and 30 seconds, the last results are uploaded, then the machine goes.

    \b
    berg kill digits-1121-0930-x7k
    berg kill 'sweep1-*'
    berg kill --all --now
    """
    if bool(names) == everything:
        raise click.UsageError("give names, or --all")
    settings = config.load_ready()
    from concurrent.futures import ThreadPoolExecutor

    from berg.laptop import ending, jobs
    from berg.laptop.latest import resolve

    found = ending.match(settings, tuple(resolve(settings, name) for name in names), everything)
    if not found:
        say("There is nothing to kill.")
        return
    if (everything or any(map(jobs.is_glob, names))) and not yes:
        say("\n".join(found))
        click.confirm(f"Kill these {len(found)}?", abort=True, err=True)
    _ = settings.session  # before threads want it
    say(f"Ending {', '.join(list(found)[:SHOWN])}{' …' * (len(found) > SHOWN)}")
    pool = ThreadPoolExecutor(16)
    endings = {
        name: pool.submit(ending.kill, settings, name, now, say, seen)
        for name, seen in found.items()
    }
    try:
        failed = [name for name, future in endings.items() if not is_ended(name, future)]
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        say_left(settings, [name for name, future in endings.items() if not future.done()])
        sys.stderr.flush()
        os._exit(130)  # the threads that still wait for an end would be waited for
    for sweep in {each.sweep for each in found.values() if each and each.summary.secrets} - {""}:
        ending.forget_those_of_sweep(settings, sweep)
    sys.exit(1 if failed else 0)


def is_ended(name: str, ending: "Future[str]") -> bool:
    """Wait for the end of a job and say what became of it, or why it could not be ended."""
    try:
        say(f"{name}: {ending.result() or 'machine deleted'}")
    except Exception as error:
        show_traceback()
        BergError(describe(error)).show()
        return False
    return True


def say_left(settings: config.Config, names: list[str]) -> None:
    """Say what becomes of jobs whose end nobody waits for any more."""
    from berg.laptop import jobs

    say("\nberg: interrupted")
    for name in names:
        try:
            status = jobs.find(settings, name).status
        except Exception as error:
            say(f"{name}: what became of it cannot be seen: {describe(error)}")
            continue
        say(f"{name} is {status}, and goes on ending by itself if it was told to.")
        say(f"See it:  berg show {name}\nEnd it:  berg kill {name}")


COMMANDS = (run, devbox, kill)
