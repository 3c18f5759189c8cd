"""The commands for jobs: run, devbox, list, show, rerun, diff, kill, rm."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands.terminal import (
    Grouped,
    Quoted,
    all_option,
    answer_option,
    complete_names,
    confirm,
    describe,
    done,
    failed,
    given,
    json_option,
    name_argument,
    names_argument,
    print_data,
    print_json,
    ready,
    say,
    start_options,
    yes_option,
)

if TYPE_CHECKING:
    from berg.laptop.jobs import Entry

    Looked = tuple[list[Entry], Callable[[], None]]

REDRAW = 5  # seconds between two lists of `berg list --watch`
FINISHED = 20  # jobs and sweeps in a list


@click.command(cls=Quoted)
@click.argument("cmd", required=False)
@start_options
def run(**options: Any) -> None:
    """Run CMD on its own machine, with your repository.

    The machine gets the working tree, uncommitted changes included, and CMD runs in the folder that
    you are in. Files that CMD writes to /root/berg_results appear in the bucket. The machine is
    deleted when CMD ends.

    \b
    berg run -g 8 -t a100 --spot --max-hours 24 --tail "python train.py"
    berg run "python train.py --lr={lr}" --grid lr=0.1,0.01 --parallel 2
    """
    from berg.commands import start

    spec, asked = start.split(options)
    start.check(asked, options)
    if asked.resume:
        sys.exit(start.resume(spec, asked))
    is_sweep = asked.grid or asked.tasks or asked.samples
    sys.exit(start.start_sweep(spec, asked) if is_sweep else start.run(spec, asked))


@click.command(cls=Grouped)
@start_options
def devbox(**options: Any) -> None:
    """Start an interactive machine with your repository.

    The repo is in /root/code, results are copied to the bucket, and no command runs. An idle devbox
    (no typing, no user process, no busy CPU, GPU or TPU) uploads its results and stops, 10 minutes
    after a warning on its terminals. Its disk is kept, and costs money, until you start or kill it.
    What Google cannot stop (pods, TPUs, flex-start) is deleted instead; the plan says so.

    \b
    berg devbox -m 2 -g 8 -t a100 -n big
    berg ssh big
    """
    from berg.commands import start, tables

    spec, asked = start.split(options)
    if spec.idle_hours == 0:
        say("With --idle-hours 0 a forgotten devbox costs money until --max-hours ends it.")
    launched = start.start_job(spec, asked)
    if launched is None:
        return
    plan, zone = launched
    say(tables.devbox_commands(plan.job, spec.model))
    if asked.as_json:
        print_json({**start.about_job(plan), "zone": zone})


@click.command(name="list")
@all_option
@click.option("-c", "--command", is_flag=True, help="Show the commands, too.")
@click.option("-v", "--verbose", is_flag=True, help="Show all machines, and all jobs of sweeps.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help="Jobs and sweeps, at most; the newest.  [default: all that run, and 20 finished ones]",
)
@click.option(
    "--all-jobs",
    "is_whole",
    is_flag=True,
    help="Show all finished jobs, and read every job again, which is slow if there are many.",
)
@click.option(
    "--watch",
    "keep",
    is_flag=True,
    help="Show the list every 5 seconds until all jobs are finished.",
)
@json_option
def list_(limit: int | None, is_whole: bool, keep: bool, as_json: bool, **shown: bool) -> None:
    """Show machines and recent jobs with their states.


    \b
    berg list -a -c
    berg list --watch
    berg list --json | jq -r '.[] | select(.state == "FAILED") | .name'
    """
    if keep and as_json:
        raise click.UsageError("--watch prints no JSON: call berg list --json repeatedly instead")
    settings = config.load_ready()
    from berg.commands import tables

    def look() -> "Looked":
        user = None if shown["everyone"] else settings.user
        return look_up(settings, user, limit, is_whole)

    def text(entries: "list[Entry]") -> str:
        return tables.entries(entries, **shown)

    if keep:
        watch_list(look, text)
        return
    entries, tidy = look()
    if entries or as_json:
        print_data([each.to_dict() for each in entries], text(entries), as_json)
    else:
        say('Nothing yet. Start with: berg run "python train.py"')
    tidy()


def look_up(
    settings: config.Config, user: str | None, limit: int | None, is_whole: bool
) -> "Looked":
    """Return jobs and machines, and a function to call when they were shown."""
    from berg.laptop import index, jobs, power

    if is_whole:
        found = index.look_at_all(settings, user, say)
        entries = found.entries
    else:
        most = FINISHED if limit is None else limit
        found = index.look(settings, user, most, say)
        entries = jobs.newest(found.entries, most)
    if limit is not None:
        shown = [*dict.fromkeys(each.sweep or each.name for each in entries)][:limit]
        entries = [each for each in entries if (each.sweep or each.name) in shown]
    power.note_stopped(settings, entries)
    return entries, found.tidy


def watch_list(look: "Callable[[], Looked]", text: "Callable[[list[Entry]], str]") -> None:
    """Show a list in its place, or in a pipe when a state changes, until all jobs are finished."""
    before: list[tuple[str, str]] = []
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            entries, tidy = look()
            tidy()
            shown = text(entries) if entries else "Nothing yet"
            states = [(each.name, each.status) for each in entries]
            if plain.is_terminal(sys.stdout):
                click.clear()
                plain.echo(f"{shown}\n\n{datetime.now():%H:%M:%S}, every {REDRAW} s until Ctrl-C")
            elif states != before:
                plain.echo(shown)
                before = states
            if not any(
                each.machines or each.workers or not (each.state and each.state.final)
                for each in entries
            ):
                return
            time.sleep(REDRAW)


@click.command()
@name_argument()
@click.option("--lines", default=10, show_default=True, help="Lines of the log, at most.")
@click.option("--ip", "address", is_flag=True, help="Print only the address of its machine.")
@click.option(
    "--views", "in_time", is_flag=True, help="List the times that berg fetch --view can go back to."
)
@json_option
def show(name: str, lines: int, address: bool, in_time: bool, as_json: bool) -> None:
    """Show all about one job: state, machine, code, results, log.

    NAME is a job or its machine; @ is your latest job, for any command. Of a sweep it shows the
    state of each job, its parameters and the last values of its metrics.jsonl.

    \b
    berg show digits-1121-0930-x7k
    berg show @
    ping $(berg show my-devbox --ip)
    berg show @ --json | jq .metadata.git_commit
    """
    settings, name = ready(name)
    from berg.commands import tables
    from berg.google.storage import Bucket
    from berg.laptop import jobs, records, ssh

    if address:
        found = jobs.find(settings, name)
        machine = found.machine
        if not (ip := machine and (machine.external_ip or machine.internal_ip)):
            why = ssh.still_missing(found)
            raise BergError(f"{name} has no address yet: {why}. Try again in a moment")
        plain.echo(ip)
        return
    if in_time:
        rows = records.moments(settings, name)
        print_data([asdict(each) for each in rows], tables.moments(rows), as_json)
        return
    try:
        record = records.read(settings, name, lines)
    except jobs.IsSweep:
        from berg.watch import collect

        jobs_of = collect.sweep_rows(settings, Bucket(settings), name)
        print_data([row.to_dict() for row in jobs_of], tables.sweep_record(name, jobs_of), as_json)
        return
    print_data(record.to_dict(), tables.record(record), as_json)


@click.command(cls=Grouped)
@click.argument("old", metavar="NAME", shell_complete=complete_names)
@start_options
@click.pass_context
def rerun(ctx: click.Context, /, old: str, **options: Any) -> None:
    """Run a job again, as a new one with a name of its own.

    Code and options are those of the job NAME, but the results dir is its own, also in the command.
    Options that you give replace them, and --env adds to the job's. Give --secret,
    --install-secret, --notify and --pod-patch again. Defaults of the repo are not read again. To
    continue with what a job saved, use berg run --resume NAME.

    \b
    berg rerun @
    berg rerun digits-1121-0930-x7k --new-code
    berg rerun @ -t a100 --spot --max-hours 4 --tail
    """
    settings, old = ready(old)
    from berg.commands import start
    from berg.laptop import jobs, launch, records
    from berg.laptop.resume import read_job, spec_again, with_purse

    asked = start.take_run_options(options)
    before = read_job(settings, jobs.find(settings, old).name)
    is_other_code = asked.new_code or options["branch"] or options["commit"]
    code_of = None if is_other_code else lambda settings: records.code_of(settings, before)
    start.read_patch(options)
    changes = {"branch": None, "commit": None, **given(ctx, options)}
    spec = with_purse(settings, spec_again(before, changes), before)
    changes["env"] = (*spec.env, *options["env"])  # the last one of a name counts
    spec = launch.with_new_results(replace(spec, **changes), before, options["results_dir"])
    if before.notify and spec.notify is None:
        say(f"No webhook is called at its end, unlike for {old}: give --notify again\n")
    launched = start.start_job(spec, asked, code_of)
    if launched is None:
        return
    sys.exit(start.follow(launched, asked))


@click.command()
@click.argument("first", metavar="A", shell_complete=complete_names)
@click.argument("second", metavar="B", shell_complete=complete_names)
@click.option("--stat", is_flag=True, help="Of the code, show only which files changed.")
@json_option
def diff(first: str, second: str, stat: bool, as_json: bool) -> None:
    """Show the differences between two jobs, in code and all else.

    It compares command, parameters, options, environment, machine, last metrics, and the code as it
    ran.

    \b
    berg diff digits-1121-0930-x7k digits-1122-1015-b2c
    berg diff digits-1121-0930-x7k @ --json | jq .metrics
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import lookup, records

    names = [lookup.resolve(settings, each) for each in (first, second)]
    found = records.compare(settings, *names)
    print_data(asdict(found), tables.comparison(found, stat), as_json)


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="All your jobs and machines.")
@click.option("--now", is_flag=True, help="Delete at once, without waiting for the last results.")
@yes_option
@answer_option
def kill(names: tuple[str, ...], everything: bool, now: bool, yes: bool) -> None:
    """End jobs and delete their machines.

    The command gets SIGTERM and 30 seconds, the last results are uploaded, then the machine is
    deleted.

    \b
    berg kill digits-1121-0930-x7k
    berg kill 'sweep1-*'
    berg kill --all --now
    """
    if bool(names) == everything:
        raise click.UsageError("give names, or --all")
    settings = config.load_ready()
    from berg.laptop import ending, jobs, lookup

    names = tuple(lookup.resolve(settings, name) for name in names)
    found = ending.match(settings, names, everything)
    if not found:
        say("There is nothing to kill.")
        return
    if everything or any(map(jobs.is_glob, names)):
        say("\n".join(found))
        confirm(f"Kill these {len(found)}?", yes)
    code = kill_all(settings, found, now)
    for name in {each.sweep for each in found.values() if each and each.summary.secrets} - {""}:
        ending.forget_those_of_sweep(settings, name)
    sys.exit(code)


def kill_all(settings: config.Config, found: "dict[str, Entry | None]", now: bool) -> int:
    """End jobs in parallel, and say what each became; return the exit code."""
    from concurrent.futures import ThreadPoolExecutor

    from berg.laptop import ending

    _ = settings.credentials  # before threads use it
    say(f"Ending {', '.join(list(found)[:8])}{' …' if len(found) > 8 else ''}")
    pool, code = ThreadPoolExecutor(16), 0
    endings = {
        name: pool.submit(ending.kill, settings, name, now, say, seen)
        for name, seen in found.items()
    }
    try:
        for name, future in endings.items():
            try:
                became = future.result() or "machine deleted"
                done(f"{name}: {became}", name=name, done="ended", became=became)
            except Exception as error:
                code = failed(name, error)
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        say_left(settings, [name for name, future in endings.items() if not future.done()])
        sys.stderr.flush()
        os._exit(130)  # sys.exit would wait for the threads
    return code


def say_left(settings: config.Config, names: list[str]) -> None:
    """Say what becomes of jobs whose end is not waited for any more."""
    from berg.laptop import jobs

    say("\nberg: interrupted")
    for name in names:
        try:
            status = jobs.find(settings, name).status
        except Exception as error:
            say(f"{name}: its state is unknown: {describe(error)}")
            continue
        say(f"{name} is {status}, and ends without you if it already got the request.")
        say(f"See it:  berg show {name}\nEnd it:  berg kill {name}")


@click.command()
@names_argument
@yes_option
@answer_option
def rm(names: tuple[str, ...], yes: bool) -> None:
    """Delete finished jobs: results, logs and states.

    NAME is a job, a sweep, or a pattern for your own. Results that other jobs share stay, and are
    named; so does code. The names can be used again.

    \b
    berg rm digits-1121-0930-x7k
    berg rm sweep1 'try-*'
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import jobs, lookup, records

    names = tuple(lookup.resolve(settings, name) for name in names)
    removals = records.plan_removal(settings, [*names], say)
    for each in removals:
        say(tables.removal(each))
    confirm(f"Delete {'these' if len(removals) > 1 else 'it'} permanently?", yes)
    for each in removals:
        count = len(each.results) + len(each.others)
        records.remove(settings, each, tables.count_up("Deleting", count))
        jobs.forget([each.name])
        done(f"Deleted {each.name}", name=each.name, done="deleted", objects=count)


COMMANDS = (run, devbox, list_, show, rerun, diff, kill, rm)
