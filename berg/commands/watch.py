"""The commands that look at what runs: wait, top, tensorboard."""

import json
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from berg import BergError, config
from berg.commands.results import exit_code
from berg.commands.terminal import complete_names, json_option, name_argument, say

if TYPE_CHECKING:
    import subprocess

POLL, REDRAW, BRING = 2, 10, 30  # seconds
HISTORY = 1800  # seconds that a sparkline shows
STALE = 120  # seconds after which a sample says nothing of now
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = ("GPU", "GPU MEM", "CPU", "MEMORY")

names_argument = click.argument(
    "names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names
)


def parts_of(settings, names: tuple[str, ...]) -> list[str]:
    """The names, with the jobs of a sweep in place of the sweep, and my latest job's for `@`."""
    from berg.laptop import records

    resolved = [records.resolve(settings, name) for name in names]
    return list(
        dict.fromkeys(part for name in resolved for part in records.members(settings, name))
    )


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
    waiting, over = [entry.name for entry in found], {}
    while True:
        for entry in found:
            if entry.state is None:
                raise BergError(
                    f"{entry.name} is a machine without a job, which is never over. End it: berg kill"
                )
            if entry.state.final:
                over[entry.name] = entry.state
                say(tables.outcome(entry.name, entry.state))
        waiting = [name for name in waiting if name not in over]
        if not waiting or (first and over):
            break
        time.sleep(POLL)
        found = again(settings, waiting)
    if as_json:
        click.echo(
            json.dumps(
                [
                    {"name": name, "state": s.state, "exit_code": s.exit_code}
                    for name, s in over.items()
                ]
            )
        )
    sys.exit(next((exit_code(state) for state in over.values() if exit_code(state)), 0))


def again(settings, names: list[str]) -> list:
    """Those jobs a while later; none while there is no way to Google, which says nothing of them."""
    import requests
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    try:
        return look_at(settings, names)
    except (
        auth.TransportError,
        exceptions.RetryError,
        exceptions.ServerError,
        requests.RequestException,
    ) as error:
        from berg.google.storage import explain

        say(f"Waiting on: {explain(error, settings) or error}")
        return []


def look_at(settings, names: list[str]) -> list:
    """Those jobs as they are now: with two requests, however many they are."""
    from berg.laptop import jobs

    if len(names) == 1:
        return [jobs.find(settings, names[0])]
    entries = {entry.name: entry for entry in jobs.overview(settings, None)}
    if gone := next((name for name in names if name not in entries), None):
        raise BergError(f"{gone} was deleted meanwhile")
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
    from berg.google.fetch import side_by_side
    from berg.google.storage import Bucket
    from berg.laptop import jobs
    from berg.watch import usage

    bucket = Bucket(settings)

    parts = parts_of(settings, (name,)) if name else []

    def look() -> list[dict]:
        if len(parts) == 1:
            found = [jobs.find(settings, parts[0])]
        else:
            found = jobs.overview(settings, None if parts else settings.user)
            found = [each for each in found if each.machines and (each.name in parts or not parts)]
        _ = bucket.client
        rows = []
        for entry, samples in side_by_side(
            lambda each: (each, usage.read(bucket, each.name, HISTORY)), found
        ):
            machines = [machine.name for machine in entry.machines] or sorted(samples)
            about = {
                "job": entry.name,
                "state": entry.status,
                "over": bool(entry.state and entry.state.final),
            }
            rows += [
                {**about, "machine": each, "samples": samples.get(each, [])} for each in machines
            ]
        return rows

    while True:
        rows = look()
        if as_json:
            click.echo(json.dumps(rows))
            return
        shown = (
            table(rows, bool(name), api.now(settings))
            if rows
            else "No machine of yours runs. See: berg list"
        )
        if once or not sys.stdout.isatty():
            click.echo(shown) if rows else say(shown)
            return
        click.clear()
        click.echo(f"{shown}\n\n{time.strftime('%H:%M:%S')}, every {REDRAW} s until Ctrl-C")
        time.sleep(REDRAW)


def table(rows: list[dict], in_detail: bool, now: float) -> str:
    """A line for each machine, as wide as the terminal; in detail also one for each GPU and TPU."""
    from berg.commands import tables
    from berg.watch import usage

    room = shutil.get_terminal_size((100, 24)).columns
    width = max(7, min(32, max(len(row["machine"]) for row in rows)))
    head = f"{'MACHINE':<{width}}  {'  '.join(f'{name:>9}' for name in COLUMNS)}  {'NET/s':>7}  LAST HALF HOUR"
    lines = [click.style(head[:room], bold=True)]
    for row in rows:
        samples = row["samples"]
        is_new = samples and (row["over"] or now - samples[-1]["time"] < STALE)
        last = samples[-1] if is_new else {}
        shown = (
            row["machine"] if len(row["machine"]) <= width else f"{row['machine'][: width - 1]}…"
        )
        percents = [
            usage.mean(last),
            memory_percent(last),
            last.get("cpu_percent"),
            last.get("memory_percent"),
        ]
        network = last.get("received_per_second", 0) + last.get("sent_per_second", 0)
        left = f"{shown:<{width}}  {'  '.join(map(bar, percents))}  {tables.size(network) if last else '-':>7}  "
        history = [(each["time"], usage.mean(each)) for each in samples if usage.accelerators(each)]
        history = history or [(each["time"], each.get("cpu_percent")) for each in samples]
        lines.append(left + (sparkline(history, room - len(left)) if is_new else row["state"]))
        for name, each in usage.accelerators(last).items() if in_detail else ():
            lines.append(
                f"  {name:<{width - 2}}  {bar(each.get('percent'))}  {bar(memory_percent({'gpus': [each]}))}"
            )
            for key, unit in (("watt", "W"), ("celsius", "°C")):
                lines[-1] += f"  {each[key]:.0f} {unit}" if each.get(key) is not None else ""
    return "\n".join(lines)


def memory_percent(sample: dict) -> float | None:
    """Percent of the memory of a sample's accelerators that is used."""
    from berg.watch.usage import mean

    used, total = mean(sample, "memory_mb"), mean(sample, "memory_total_mb")
    return 100 * used / total if used is not None and total else None


def bar(percent: float | None) -> str:
    """Nine columns: four for a bar, five for the number."""
    if percent is None:
        return f"{'-':>9}"
    eighths = round(max(0.0, min(100.0, percent)) / 100 * 32)
    drawn = "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
    return f"{drawn:<4}{percent:4.0f}%"


def sparkline(history: list[tuple[float, float | None]], room: int) -> str:
    """Percents of the last half hour by their time, in so many columns; a blank where nobody knows."""
    columns = max(1, min(room, 60))
    buckets: list[list[float]] = [[] for _ in range(columns)]
    for when, percent in history:
        age = history[-1][0] - when
        if percent is not None and age < HISTORY:
            buckets[columns - 1 - int(age / HISTORY * columns)].append(percent)
    means = [sum(bucket) / len(bucket) if bucket else None for bucket in buckets]
    return "".join(
        " " if value is None else BLOCKS[min(7, max(0, int(value / 12.5)))] for value in means
    )


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
    from berg.commands import tables
    from berg.watch import board

    parts = parts_of(settings, names)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # TensorBoard ends with this
    if machine:
        follow(*board.start_on(settings, machine, parts, port, say), machine)
        return
    folder = config.home() / "tensorboard" / board.key(names)
    folder.mkdir(parents=True, exist_ok=True)
    made: dict = {}
    brought = sum(board.follow(settings, each, folder, made) for each in parts)
    if not any(path.is_file() for path in folder.rglob("*")):
        missing = (
            "no event file, profile or metrics.jsonl in its results, and no sample of a machine"
        )
        raise BergError(f"there is nothing to show of {', '.join(names)} yet: {missing}")
    say(f"Brought {tables.plural(brought, 'file')} to {folder}")
    if once:
        click.echo(folder)
        return
    process, address = board.start(folder, port)
    click.echo(address)
    say("Ctrl-C ends it")
    try:
        while not ended(process, BRING):
            for each in parts:
                try:
                    board.follow(settings, each, folder, made)
                except Exception as error:  # the network may fail for a while
                    say(f"{each} could not be brought: {error}; trying again")
        raise BergError(f"TensorBoard ended: {board.last_line(folder)}")
    except KeyboardInterrupt:
        pass
    finally:
        process.terminate()
        process.wait()


def follow(there: "subprocess.Popen[str]", address: str, machine: str) -> None:
    """Show what TensorBoard's machine says, and the address here once it is up; raises BergError
    where it ends.
    """
    try:
        for line in there.stdout or ():
            if line.startswith("http://127.0.0.1:"):
                click.echo(address)
            elif line.strip():
                say(f"{machine}: {line.strip()}")
        code = there.wait()
        older = f"berg on {machine} is older than this one: start a machine anew"
        raise BergError(
            older if code == 127 else f"TensorBoard ended on {machine}, or the connection to it did"
        )
    except KeyboardInterrupt:
        pass
    finally:
        there.terminate()
        there.wait()


def ended(process: "subprocess.Popen", seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    import subprocess

    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


COMMANDS = (wait, top, tensorboard)
