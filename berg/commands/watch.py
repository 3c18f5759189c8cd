"""The commands that look at what runs: wait, top, tensorboard.

The command that shows jobs in a browser: page.

The command that profiles what runs: profile.

The command that keeps the dashboard in Cloud Monitoring: dashboard.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands.results import exit_code
from berg.commands.terminal import (
    Duration,
    complete_names,
    json_option,
    name_argument,
    ready,
    say,
    yes_option,
)
from berg.google import api

if TYPE_CHECKING:
    import subprocess

    from berg.job import State
    from berg.laptop.jobs import Entry
    from berg.watch.board import Made

Sample = dict[str, Any]  # as berg/watch/usage.py says

POLL, REDRAW, BRING = 2, 10, 30  # seconds

HISTORY = 1800  # seconds that a sparkline shows

STALE = 120  # seconds after which a sample says nothing of now

BLOCKS = "▁▂▃▄▅▆▇█"

EIGHTHS = ("", *"▏▎▍▌▋▊▉")

COLUMNS = ("GPU", "GPU MEM", "CPU", "MEMORY")

names_argument = click.argument(
    "names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names
)


def parts_of(settings: config.Config, names: tuple[str, ...]) -> list[str]:
    """Return the names, with the jobs of a sweep in place of the sweep, and my latest job's for
    `@`.
    """
    from berg.laptop import latest, records

    found: list[str] = []
    for name in names:
        found += records.members(settings, latest.resolve(settings, name))
    return list(dict.fromkeys(found))


@click.command()
@names_argument
@click.option("--any/--all", "first", help="Until one of them is over, or all are.  [default: all]")
@json_option
def wait(names: tuple[str, ...], first: bool, as_json: bool) -> None:
    """Wait until jobs are over.

    A sweep is waited for whole. Exits with 0 if all succeeded, else with the exit code of the first
    that did not.

    \b
    berg wait digits-1121-0930-x7k && berg fetch digits-1121-0930-x7k
    berg wait --any first-try second-try
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import jobs

    found = [jobs.find(settings, name) for name in parts_of(settings, names)]
    waiting = [entry.name for entry in found]
    over: dict[str, State] = {}
    while True:
        for name, state in final_states(found).items():
            over[name] = state
            waiting.remove(name)
            say(tables.outcome(name, state))
        if not waiting or (first and over):
            break
        time.sleep(POLL)
        found = look_again(settings, waiting)
    if as_json:
        rows = []
        for name, state in over.items():
            rows.append({"name": name, "state": state.state, "exit_code": state.exit_code})
        plain.echo(json.dumps(rows))
    codes = [exit_code(state) for state in over.values()]
    sys.exit(next(filter(None, codes), 0))


def final_states(found: "list[Entry]") -> "dict[str, State]":
    """Return the states of those jobs that are over, by name; raises BergError for what is none."""
    over = {}
    for entry in found:
        if entry.state is None:
            raise BergError(
                f"{entry.name} is a machine without a job, which is never over. End it: berg kill"
            )
        if entry.state.final:
            over[entry.name] = entry.state
    return over


def look_again(settings: config.Config, names: list[str]) -> "list[Entry]":
    """Return those jobs a while later; none while there is no way to Google, which says nothing of
    them.
    """
    from google.auth import exceptions as auth

    try:
        return look_at(settings, names)
    except (
        auth.TransportError,
        api.RetryError,
        api.NoAnswer,
    ) as error:
        from berg.google.api import explain

        say(f"Waiting on: {explain(error, settings) or error}")
        return []


def look_at(settings: config.Config, names: list[str]) -> "list[Entry]":
    """Return those jobs as they are now: with two requests, however many they are."""
    from berg.laptop import jobs

    if len(names) == 1:
        return [jobs.find(settings, names[0])]
    entries = {entry.name: entry for entry in jobs.overview(settings, None)}
    for name in names:
        if name not in entries:
            raise BergError(f"{name} was deleted meanwhile")
    return [entries[name] for name in names]


@click.command()
@name_argument(required=False)
@click.option("--once", is_flag=True, help="Print it once, and stop.")
@json_option
def top(name: str | None, once: bool, as_json: bool) -> None:
    """Show how busy my machines are, live.

    A row for each machine: GPUs (or TPUs), CPU, memory and network now, and the last half hour of
    its GPUs, or of its CPUs where it has none. With NAME a row for each GPU as well. Machines look
    at themselves every 30 seconds.

    \b
    berg top
    berg top digits-1121-0930-x7k --once
    """
    settings = config.load_ready()
    from berg.google import api

    names = parts_of(settings, (name,)) if name else []
    while True:
        rows = look(settings, names)
        if as_json:
            plain.echo(json.dumps([asdict(row) for row in rows]))
            return
        if not rows:
            shown = "No machine of yours runs. See: berg list"
        else:
            shown = table(rows, bool(name), api.now(settings))
        if once or not sys.stdout.isatty():
            plain.echo(shown, err=not rows)
            return
        try:
            click.clear()
            plain.echo(f"{shown}\n\n{time.strftime('%H:%M:%S')}, every {REDRAW} s until Ctrl-C")
            time.sleep(REDRAW)
        except KeyboardInterrupt:
            return


@dataclass
class Row:
    """A machine with its samples of the last half hour."""

    name: str
    job: str
    state: str
    over: bool
    samples: list[Sample]

    def last_sample(self, now: float) -> Sample:
        """Return what the machine does now, or did at the end of a job that is over; nothing where
        that is not known.
        """
        if self.samples and (self.over or now - self.samples[-1]["time"] < STALE):
            return self.samples[-1]
        return {}

    def history(self) -> list[tuple[float, float | None]]:
        """Return how busy its GPUs were by time, or its CPUs where it has none."""
        from berg.watch import usage

        with_gpus = [each for each in self.samples if usage.accelerators(each)]
        if with_gpus:
            return [(each["time"], usage.mean(each)) for each in with_gpus]
        return [(each["time"], each.get("cpu_percent")) for each in self.samples]


def look(settings: config.Config, names: list[str]) -> list[Row]:
    """Return a row for each machine of those jobs, or of mine if there are no names."""
    from berg.google.fetch import side_by_side
    from berg.google.storage import Bucket
    from berg.watch import usage

    bucket = Bucket(settings)
    _ = settings.credentials  # before threads want it

    def read(entry: "Entry") -> list[Row]:
        samples = usage.read(bucket, entry.name, HISTORY)
        over = bool(entry.state and entry.state.final)
        machines = [machine.name for machine in entry.machines] or sorted(samples)
        return [
            Row(machine, entry.name, entry.status, over, samples.get(machine, []))
            for machine in machines
        ]

    rows: list[Row] = []
    for found in side_by_side(read, busy_entries(settings, names)):
        rows += found
    return rows


def busy_entries(settings: config.Config, names: list[str]) -> "list[Entry]":
    """Return those jobs as they are now, of several only those with machines; without names all of
    mine.
    """
    from berg.laptop import index, jobs

    if len(names) == 1:
        return [jobs.find(settings, names[0])]
    if not names:
        return [each for each in index.look(settings, settings.user, 0).entries if each.machines]
    everybody = index.look(settings, None, 0).entries
    return [each for each in everybody if each.machines and each.name in names]


def table(rows: list[Row], in_detail: bool, now: float) -> str:
    """Return a line for each machine, as wide as the terminal; in detail also one for each GPU and
    TPU.
    """
    import shutil

    from berg.watch import usage

    room = shutil.get_terminal_size((100, 24)).columns
    width = max(7, min(32, max(len(row.name) for row in rows)))
    columns = "  ".join(f"{name:>9}" for name in COLUMNS)
    head = f"{'MACHINE':<{width}}  {columns}  {'NET/s':>7}  LAST HALF HOUR"
    lines = [click.style(head[:room], bold=True)]
    for row in rows:
        last = row.last_sample(now)
        begin = f"{shortened(row.name, width):<{width}}  {current(last)}  "
        if last:
            end = sparkline(row.history(), room - len(begin))
        else:
            end = row.state
        lines.append(begin + end)
        if in_detail:
            for name, each in usage.accelerators(last).items():
                lines.append(accelerator_line(name, each, width))
    return "\n".join(lines)


def shortened(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    return f"{name[: width - 1]}…"


def current(last: Sample) -> str:
    """Return the columns of what a machine does now; without a sample nothing is known."""
    from berg.watch import usage

    percents = [
        usage.mean(last),
        memory_percent(last),
        last.get("cpu_percent"),
        last.get("memory_percent"),
    ]
    network = "-"
    if last:
        both = (last.get("received_per_second"), last.get("sent_per_second"))
        network = plain.size(sum(each or 0 for each in both))
    return f"{'  '.join(map(bar, percents))}  {network:>7}"


def accelerator_line(name: str, sample: Sample, width: int) -> str:
    """Return the line of one GPU or TPU: how busy, its memory, watts and degrees."""
    memory = memory_percent({"gpus": [sample]})
    line = f"  {name:<{width - 2}}  {bar(sample.get('percent'))}  {bar(memory)}"
    for key, unit in (("watt", "W"), ("celsius", "°C")):
        if sample.get(key) is not None:
            line += f"  {min(sample[key], 99_999):.0f} {unit}"
    return line


def memory_percent(sample: Sample) -> float | None:
    """Return the percent of the memory of a sample's accelerators that is used."""
    from berg.watch.usage import mean

    used, total = mean(sample, "memory_mb"), mean(sample, "memory_total_mb")
    if used is None or not total:
        return None
    return 100 * used / total


def bar(percent: float | None) -> str:
    """Return nine columns: four for a bar, five for the number."""
    if percent is None:
        return f"{'-':>9}"
    eighths = round(max(0.0, min(100.0, percent)) / 100 * 32)
    drawn = "█" * (eighths // 8) + EIGHTHS[eighths % 8]
    return f"{drawn:<4}{min(percent, 999):4.0f}%"


def sparkline(history: list[tuple[float, float | None]], room: int) -> str:
    """Return the percents of the last half hour by their time, in so many columns; a blank where
    nobody knows.
    """
    columns = max(1, min(room, 60))
    buckets: list[list[float]] = [[] for _ in range(columns)]
    for when, percent in history:
        age = history[-1][0] - when
        if percent is not None and 0 <= age < HISTORY:
            buckets[columns - 1 - int(age / HISTORY * columns)].append(percent)
    return "".join(map(block, buckets))


def block(percents: list[float]) -> str:
    """Return a block as high as the mean of some percents."""
    if not percents:
        return " "
    mean = sum(percents) / len(percents)
    return BLOCKS[min(7, max(0, int(mean / 12.5)))]


@click.command()
@names_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on this computer.  [default: a free one]",
)
@click.option("--once", is_flag=True, help="Bring what there is, print the folder, and stop.")
@click.option(
    "--on",
    "machine",
    metavar="NAME",
    help="Let a machine do it, such as a devbox, and show it here.",
)
def tensorboard(names: tuple[str, ...], port: int, once: bool, machine: str | None) -> None:
    """Show metrics, event files and profiles of jobs in TensorBoard.

    NAME is a job, a sweep, or a folder of results; jobs that are over count, too. What changed is
    brought every 30 seconds, how busy the machines were is shown beside it, and so is a
    metrics.jsonl. Ctrl-C ends it. What is large had better not come here: --on runs it on a
    machine, which needs TensorBoard, and leads here through ssh.

    \b
    berg tensorboard digits-1121-0930-x7k
    berg tensorboard lr-sweep baselines/resnet
    berg tensorboard lr-sweep --on my-devbox
    """
    if once and machine:
        raise click.UsageError(
            "--once brings it here, and --on to a machine: leave one of them out"
        )
    settings = config.load_ready()
    import signal

    from berg.watch import board

    parts = parts_of(settings, names)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # TensorBoard ends with this
    if machine:
        follow(*board.start_on(settings, machine, parts, port, say), machine)
        return
    folder = config.home() / "tensorboard" / board.key(names)
    folder.mkdir(parents=True, exist_ok=True)
    made: Made = {}
    brought = sum(board.follow(settings, each, folder, made) for each in parts)
    if not any(path.is_file() for path in folder.rglob("*")):
        missing = (
            "no event file, profile or metrics.jsonl in its results, and no sample of a machine"
        )
        raise BergError(f"there is nothing to show of {', '.join(names)} yet: {missing}")
    say(f"Brought {plain.plural(brought, 'file')} to {folder}")
    if once:
        plain.echo(folder)
        return
    process, address = board.start(folder, port)
    plain.echo(address)
    say("Ctrl-C ends it")
    try:
        while not ended(process, BRING):
            bring_again(settings, parts, folder, made)
        raise BergError(f"TensorBoard ended: {board.last_line(folder)}")
    except KeyboardInterrupt:
        pass
    finally:
        process.terminate()
        process.wait()


def bring_again(settings: config.Config, parts: list[str], folder: Path, made: "Made") -> None:
    """Bring what is new of some jobs; the network may fail for a while."""
    from berg.watch import board

    for each in parts:
        try:
            board.follow(settings, each, folder, made)
        except Exception as error:
            say(f"{each} could not be brought: {error}; trying again")


def follow(there: "subprocess.Popen[str]", address: str, machine: str) -> None:
    """Show what TensorBoard's machine says, and the address here once it is up; raises BergError
    where it ends.
    """
    try:
        for line in there.stdout or ():
            if line.startswith("http://127.0.0.1:"):
                plain.echo(address)
            elif line.strip():
                say(f"{machine}: {line.strip()}")
        if there.wait() == 127:
            raise BergError(f"berg on {machine} is older than this one: start a machine anew")
        raise BergError(f"TensorBoard ended on {machine}, or the connection to it did")
    except KeyboardInterrupt:
        pass
    finally:
        there.terminate()
        there.wait()


def ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    import subprocess

    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@click.command()
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=complete_names)
@click.option("-a", "--all", "everybody", is_flag=True, help="Everybody's jobs, not only mine.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on this computer.  [default: a free one]",
)
@click.option(
    "--export",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write files instead.",
)
def page(names: tuple[str, ...], everybody: bool, port: int, export: Path | None) -> None:
    """Show jobs, logs, charts and results in a browser.

    The page is served on this computer alone, until Ctrl-C, to who opens the whole address with its
    token. What lives is followed; jobs can be ended, after a question, and nothing else can be
    changed. With --export the pages of jobs and sweeps NAME… are written to a new folder instead,
    with their logs and results, to open from disk or to send.

    \b
    berg page
    berg page --export ./for-ada sweep1
    """
    if export and not names:
        raise click.UsageError("--export writes the pages of jobs and sweeps: give their names")
    if names and not export:
        raise click.UsageError("the page has all jobs; NAME is for --export FOLDER")
    settings = config.load_ready()
    if export:
        from berg.laptop import latest
        from berg.watch import serve as exporting

        plain.echo(
            exporting.export(
                settings, [latest.resolve(settings, name) for name in names], export, say
            )
        )
        return
    from berg import BergError
    from berg.watch.serve import Server

    try:
        server = Server(settings, port, None if everybody else settings.user)
    except OSError as error:
        raise BergError(
            f"port {port} cannot be had: {error.strerror}. Take a free one: leave --port out"
        ) from None
    plain.echo(server.address)
    say("Open it in a browser on this computer. Ctrl-C ends it.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("")
    finally:
        server.server_close()


KINDS = {
    "jax": "the command's profiler server (JAX, torch_tpu)",
    "kineto": "PyTorch's profiler (Kineto)",
    "py-spy": "py-spy: python from outside",
}

PERFETTO = "https://ui.perfetto.dev (files stay in the browser)"

SPEEDSCOPE = "https://www.speedscope.app (files stay in the browser), or: npx speedscope FILE"


@click.command()
@name_argument()
@click.option(
    "-s",
    "--seconds",
    type=Duration("s"),
    default=10,
    show_default="10s",
    help="How long; 1s to 10m.",
)
@click.option("--machine", metavar="NAME", help="Only that machine of a cluster.")
@json_option
def profile(name: str, seconds: float, machine: str | None, as_json: bool) -> None:
    """Take a profile of a command that runs.

    All its machines take it at once, and the command runs on. It is JAX's if the command started
    the profiler server on the port BERG_PROFILER_PORT, PyTorch's if the job was started with
    --profile; else py-spy looks at its python processes from outside. Files are kept among the
    results, and brought to ~/berg_results.

    \b
    berg profile @
    berg profile digits-1121-0930-x7k -s 30 --machine digits-1121-0930-x7k-1
    """
    if not 1 <= seconds <= 600:
        raise click.UsageError(f"--seconds {seconds:g}: give 1s to 10m")
    settings, name = ready(name)
    from berg.watch import profile as profiles

    found, machines = profiles.find(settings, name, machine)
    say(f"Taking a profile of {found.name} for {seconds:g} s")
    answers = profiles.take(settings, found, machines, seconds)
    files = profiles.bring(settings, answers, Path.home() / "berg_results", say)
    kinds = set()
    for each in sorted(answers):
        kind = answers[each].get("kind", "")
        error = answers[each].get("error") or "odd answer"
        kinds.add(kind)
        say(f"{each}: {KINDS.get(kind, error)}")
    if as_json:
        paths = [str(file) for file in files]
        plain.echo(json.dumps({"machines": answers, "files": paths}, indent=2))
    else:
        plain.echo("\n".join(map(str, files)))
        for file in files:
            say_hottest(profiles.hottest(file))

        say_how_to_open(name, kinds)
    sys.exit(int(not files))


def say_hottest(lines: list[str]) -> None:
    """Say in which lines the time went, if that is known."""
    if lines:
        say("The time went here, without what these called:\n" + "\n".join(lines))


def say_how_to_open(name: str, kinds: set[str]) -> None:
    """Say which program shows profiles of each kind."""
    if "jax" in kinds:
        say(f"Open it:  berg tensorboard {name}    (its tab takes berg's extra, profile)")
    if "kineto" in kinds:
        say(f"Open it:  {PERFETTO}")
    if "py-spy" in kinds:
        say(f"Open it:  {SPEEDSCOPE}")


@click.command()
@click.option("--delete", is_flag=True, help="Delete it instead, after asking.")
@yes_option
@json_option
def dashboard(delete: bool, yes: bool, as_json: bool) -> None:
    """Keep a dashboard of berg's machines in Cloud Monitoring.

    It is made, or brought up to date, and its address is printed. It shows CPU, network and disk of
    each machine, which Google measures without an agent, by job. Memory, GPUs and TPUs are there
    too where `berg init --monitoring` lets the machines write them. Metrics that were written stay
    after --delete until Google forgets them.

    \b
    berg dashboard
    berg dashboard --delete
    """
    if delete and as_json:
        raise click.UsageError("--delete prints nothing: leave --json out")
    settings = config.load_ready()
    if delete:
        delete_dashboard(settings, yes)
        return
    from berg.google import monitoring

    there, is_new = monitoring.create(settings)
    done = "Brought up to date:"
    if is_new:
        done = "Created"
    say(f"{done} {there['displayName']}")
    if not settings.monitoring:
        empty = "Memory, GPUs and TPUs stay empty until machines may write them"
        say(f"{empty}: berg init --monitoring")
    if as_json:
        plain.echo(json.dumps(there, indent=2))
        return
    for tile in there.get("mosaicLayout", {}).get("tiles", []):
        say(f"  {tile.get('widget', {}).get('title', '')}")
    plain.echo(monitoring.address(settings, there))


def delete_dashboard(settings: config.Config, yes: bool) -> None:
    from berg.google import monitoring

    there = monitoring.find(settings)
    if there is None:
        raise BergError(f"{settings.project} has no dashboard of berg's. Make it: berg dashboard")
    if not yes:
        question = f"Delete the dashboard {there['displayName']} of {settings.project}?"
        click.confirm(question, abort=True, err=True)
    monitoring.delete(settings, there)
    say("Deleted.")


COMMANDS = (
    wait,
    top,
    tensorboard,
    page,
    profile,
    dashboard,
)
