"""Berg's commands: parse, call, print. Only the cli modules print."""

import gc
import io
import json
import os
import sys
from dataclasses import replace
from typing import Any

import click

from berg import BergError, __version__, config, plain
from berg.commands import (
    cache,
    cluster,
    dashboard,
    data,
    image,
    listing,
    money,
    page,
    profile,
    records,
    results,
    setup,
    start,
)
from berg.commands import ssh as cli_ssh
from berg.commands import watch as watching
from berg.commands.terminal import (
    Quoted,
    Sections,
    complete_names,
    interrupted,
    is_unanswered,
    job_options,
    machine_options,
    say,
    sweep_options,
    yes_option,
)

SHOWN = 8  # names that kill says at once; of more the first ones


def main() -> None:
    """Run the command line; every error ends in one sentence, and in a traceback only with
    BERG_DEBUG=1.
    """
    gc.set_threshold(100_000)  # imports make many objects, none of which is garbage
    # google-api-core does without grpc, in 0.05 s less
    sys.modules.setdefault("grpc", None)  # type: ignore[arg-type]
    try:
        sys.exit(
            cli.main(standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
        )
    except click.UsageError as error:
        error.show(shown := io.StringIO())
        say(shown.getvalue().rstrip())
        sys.exit(2)
    except click.ClickException as error:
        show_traceback()
        error.show()
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt) as error:
        say(interrupted(error))
        if is_unanswered(error):
            sys.exit(1)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        show_traceback()
        BergError(describe(error)).show()
        sys.exit(1)


def show_traceback() -> None:
    if os.environ.get("BERG_DEBUG") == "1":
        import traceback

        traceback.print_exc()


def describe(error: Exception) -> str:
    """Return an error as one sentence."""
    from berg.google.explain import explain
    from localcloud.control import LocalCloudError

    if isinstance(error, click.ClickException):
        return error.message
    if isinstance(error, LocalCloudError):
        return str(error)
    try:
        sentence = explain(error, config.load())
    except Exception:
        sentence = None
    if sentence:
        return sentence
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return f"{type(error).__name__}: {error} (an error of berg's; BERG_DEBUG=1 shows where)"


@click.group(
    cls=Sections, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="berg")
def cli() -> None:
    """Run machine-learning experiments on Google Cloud accelerators; keep the results in a bucket.

    \b
    berg init --local                        # try it without Google
    berg run "python train.py --lr=0.1"      # from a git repo
    berg list

    Names complete in the shell after: eval "$(_BERG_COMPLETE=bash_source berg)"
    """


ROOMS = (
    listing,
    money,
    data,
    cache,
    setup,
    results,
    records,
    cli_ssh,
    watching,
    page,
    profile,
    dashboard,
    cluster,
    image,
)
for module in ROOMS:
    for command in module.COMMANDS:
        cli.add_command(command)


@cli.command(cls=Quoted)
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
    launched = start.start_machines(spec, dry_run, quiet=as_json or tail)
    if launched is None:
        return
    sys.exit(start.follow(launched, wait, tail, as_json))


@cli.command()
@machine_options
@click.option(
    "--idle-hours",
    type=float,
    default=4,
    show_default=True,
    help="Delete itself after so long idle; 0: never.",
)
def devbox(as_json: bool, dry_run: bool, **options: Any) -> None:
    """Start machines to live on, with the repo around you.

    The repo is in /root/code, results are mirrored, and no command runs. A devbox on which nobody
    types and nothing runs that people started (a shell at its prompt or top is nothing) or that
    keeps a CPU, GPU or TPU busy uploads its results and deletes itself with its disk, 10 minutes
    after a warning on its terminals.

    \b
    berg devbox
    berg devbox -m 2 -g 8 -t a100 -n big
    berg ssh big
    """
    spec = start.wish(options)
    if spec.idle_hours == 0:
        say("With --idle-hours 0 a forgotten devbox costs money until --max-hours deletes it.")
    launched = start.start_machines(spec, dry_run, quiet=as_json)
    if launched is None:
        return
    _, this, zone = launched
    say(f"Log in:  berg ssh {this.job_name}\nEnd it:  berg kill {this.job_name}\n")
    if as_json:
        plain.echo(
            json.dumps({"name": this.job_name, "zone": zone, "results": this.gcs_results_dir})
        )


@cli.command()
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
    from berg.laptop.records import resolve

    found = ending.match(settings, tuple(resolve(settings, name) for name in names), everything)
    if not found:
        say("There is nothing to kill.")
        return
    if (everything or any(map(jobs.is_glob, names))) and not yes:
        say("\n".join(found))
        click.confirm(f"Kill these {len(found)}?", abort=True, err=True)
    _ = settings.session  # before threads want it
    say(f"Ending {', '.join(found[:SHOWN])}{' …' * (len(found) > SHOWN)}")
    failed = False
    pool = ThreadPoolExecutor(8)
    endings = {name: pool.submit(ending.kill, settings, name, now, say) for name in found}
    try:
        for name, future in endings.items():
            try:
                say(f"{name}: {future.result() or 'machine deleted'}")
            except Exception as error:
                failed = True
                show_traceback()
                BergError(describe(error)).show()
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        say_left(settings, [name for name, future in endings.items() if not future.done()])
        sys.stderr.flush()
        os._exit(130)  # the threads that still wait for an end would be waited for
    sys.exit(int(failed))


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
