"""The commands that look at what runs: wait, top, tensorboard."""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands.results import exit_code
from berg.commands.terminal import complete_names, json_option, name_argument, say
from berg.google import http

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
    import requests
    from google.auth import exceptions as auth

    try:
        return look_at(settings, names)
    except (
        auth.TransportError,
        http.RetryError,
        requests.RequestException,
    ) as error:
        from berg.google.explain import explain

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
    from berg.laptop import jobs, recent

    if len(names) == 1:
        return [jobs.find(settings, names[0])]
    if not names:
        return [each for each in recent.look(settings, settings.user, 0).entries if each.machines]
    everybody = recent.look(settings, None, 0).entries
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
    from berg import words
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
        network = words.size(sum(each or 0 for each in both))
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

    from berg import words
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
    say(f"Brought {words.plural(brought, 'file')} to {folder}")
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


COMMANDS = (wait, top, tensorboard)
