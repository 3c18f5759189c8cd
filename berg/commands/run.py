"""The commands that begin and end work: run, devbox, kill."""

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands import start
from berg.commands.terminal import (
    Grouped,
    Quoted,
    complete_names,
    describe,
    say,
    show_traceback,
    start_options,
    yes_option,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from berg.job import Job

SHOWN = 8  # names that kill says at once; of more the first ones


@click.command(cls=Quoted)
@click.argument("cmd", required=False)
@start_options
def run(**options: Any) -> None:
    """Run CMD on its own machine, with your repository.

    The machine gets the working tree, uncommitted changes included, and CMD runs in the same
    folder as you are in. Files that CMD writes to /root/berg_results appear in the bucket. The
    machine is deleted when CMD ends.

    \b
    berg run -g 8 -t a100 --spot --max-hours 24 --tail "python train.py"
    berg run "python train.py --lr={lr}" --grid lr=0.1,0.01 --parallel 2
    """
    asked = start.run_options(options)
    spec = start.wish(options)
    start.check_resume(asked.resume, options)
    if asked.grid or asked.tasks or asked.resume or asked.new_code or asked.params or asked.samples:
        from berg.commands import sweep as cli_sweep

        sys.exit(cli_sweep.run(spec, asked))
    if spec.stop_worst:
        raise click.UsageError("--stop-worst is for sweeps: give --grid, --tasks or --samples")
    if asked.parallel:
        raise click.UsageError("--parallel is for sweeps: give --grid, --tasks or --samples")
    launched = start.start_machines(spec, asked.dry_run, asked.as_json or asked.tail, asked.as_json)
    if launched is None:
        return
    sys.exit(start.follow(launched, asked.wait, asked.tail, asked.as_json))


@click.command(cls=Grouped)
@start_options
def devbox(**options: Any) -> None:
    """Start an interactive machine with your repository.

    The repo is in /root/code, results are mirrored, and no command runs. An idle devbox (nobody
    types, no process of a user runs, no CPU, GPU or TPU is busy) uploads its results and stops, 10
    minutes after a warning on its terminals. Its disk is kept, and costs money, until you start or
    kill it. What Google cannot stop (pods, TPUs, flex-start, local disks) is deleted instead; the
    plan says so.

    \b
    berg devbox -m 2 -g 8 -t a100 -n big
    berg ssh big
    """
    asked = start.run_options(options)
    spec = start.wish(options)
    if spec.idle_hours == 0:
        say("With --idle-hours 0 a forgotten devbox costs money until --max-hours ends it.")
    launched = start.start_machines(spec, asked.dry_run, asked.as_json, asked.as_json)
    if launched is None:
        return
    _, this, zone = launched
    say(how_to_live_with(this, spec.model))
    if asked.as_json:
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
    _ = settings.credentials  # before threads want it
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
    for name in {each.sweep for each in found.values() if each and each.summary.secrets} - {""}:
        ending.forget_those_of_sweep(settings, name)
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
