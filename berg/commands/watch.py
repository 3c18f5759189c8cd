"""The commands that look at what runs: top, tensorboard, wait."""

import json
import shutil
import sys
import time

import click

from berg import BergError, config
from berg.commands.terminal import complete_names, json_option, name_argument, say

POLL, REDRAW, BRING = 2, 5, 30  # seconds
HISTORY = 60  # samples in a sparkline: half an hour
BLOCKS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--any", "first", is_flag=True, help="Only until the first of them is over.")
@json_option
def wait(names: tuple[str, ...], first: bool, as_json: bool) -> None:
    """Wait until jobs are over.

    Exits with 0 if all succeeded, else with the exit code of the first that did not. A sweep is waited for whole.

    \b
    berg wait digits-1121-0930-x7k && berg fetch digits-1121-0930-x7k
    berg wait --any first-try second-try
    """
    settings = config.load_ready()
    from berg import jobs, records
    from berg.commands import tables

    waiting = list(dict.fromkeys(part for name in names for part in records.members(settings, name)))
    over: dict = {}
    while waiting and not (first and over):
        for name in list(waiting):
            found = jobs.find(settings, name)
            if found.state is None:
                raise BergError(f"{name} is a machine without a job, which is never over")
            if found.state.final:
                waiting.remove(name)
                over[name] = found.state
                say(tables.outcome(name, found.state))
        if waiting and not (first and over):
            time.sleep(POLL)
    if as_json:
        click.echo(json.dumps([{"name": name, "state": s.state, "exit_code": s.exit_code} for name, s in over.items()]))
    failed = [state for state in over.values() if state.state != "SUCCEEDED"]
    sys.exit(failed[0].exit_code or 1 if failed else 0)


@click.command()
@name_argument(required=False)
@click.option("--once", is_flag=True, help="Print it once, and stop.")
@json_option
def top(name: str | None, once: bool, as_json: bool) -> None:
    """Show how busy my machines are, live.

    A row for each machine: GPUs, memory, CPU and network, and the last half hour of the GPUs (of the CPU without any).
    Machines look at themselves every 30 seconds (berg run --sample-seconds).

    \b
    berg top
    berg top digits-1121-0930-x7k --once
    """
    settings = config.load_ready()
    from berg import jobs
    from berg.google.storage import Bucket
    from berg.watch import usage

    def look() -> list[dict]:
        found = [jobs.find(settings, name)] if name else jobs.overview(settings, settings.user)
        rows = []
        for entry in found:
            if entry.machines or name:
                samples = usage.read(Bucket(settings), entry.name, HISTORY)
                names = sorted({*samples, *(machine.name for machine in entry.machines)})
                about = {"job": entry.name, "state": entry.status}
                rows += [{**about, "machine": each, "samples": samples.get(each, [])} for each in names]
        return rows

    while True:
        rows = look()
        if as_json:
            click.echo(json.dumps(rows))
            return
        text = table(rows)
        if once or not sys.stdout.isatty():
            click.echo(text) if rows else say("No machine of yours runs. See: berg list")
            return
        click.clear()
        click.echo(text or "No machine of yours runs.")
        click.secho(f"{time.strftime('%H:%M:%S')}  Ctrl-C ends it", dim=True)
        time.sleep(REDRAW)


def table(rows: list[dict]) -> str:
    """A line for each machine, as wide as the terminal."""
    from berg.watch.usage import accelerators, mean

    if not rows:
        return ""
    room = shutil.get_terminal_size((100, 24)).columns
    width = max(7, min(32, max(len(row["machine"]) for row in rows)))
    head = f"{'MACHINE':<{width}}  {'GPU':>9}  {'GPU MEM':>9}  {'CPU':>9}  {'MEMORY':>9}  {'NET/s':>7}  "
    lines = [click.style(f"{head}LAST HALF HOUR"[:room], bold=True)]
    for row in rows:
        samples = row["samples"]
        last = samples[-1] if samples else {}
        shown = row["machine"] if len(row["machine"]) <= width else f"{row['machine'][: width - 1]}…"
        cells = [
            bar(mean(last)),
            bar(memory_percent(last)),
            bar(last.get("cpu_percent")),
            bar(last.get("memory_percent")),
        ]
        network = last.get("received_per_second", 0) + last.get("sent_per_second", 0) if last else None
        left = f"{shown:<{width}}  {'  '.join(cells)}  {size(network):>7}  "
        history = [mean(each) if accelerators(each) else each.get("cpu_percent") for each in samples]
        lines.append(left + (sparkline(history, room - len(left)) if samples else row["state"]))
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


def sparkline(values: list[float | None], room: int) -> str:
    shown = values[-max(room, 1) :]
    return "".join(" " if value is None else BLOCKS[min(7, max(0, int(value / 12.5)))] for value in shown)


def size(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this computer.  [default: a free one]")
@click.option("--once", is_flag=True, help="Bring what there is, print the folder, and stop.")
def tensorboard(names: tuple[str, ...], port: int, once: bool) -> None:
    """Show metrics, event files and profiles of jobs in TensorBoard.

    NAME is a job, a sweep, or a folder of results; jobs that are over count, too. What changed is brought every 30
    seconds, how busy the machines were is shown beside it, and so is a metrics.jsonl. Ctrl-C ends it.

    \b
    berg tensorboard digits-1121-0930-x7k
    berg tensorboard lr-sweep baselines/resnet
    """
    settings = config.load_ready()
    from berg import records
    from berg.watch import board

    folder = config.home() / "tensorboard" / board.key(names)
    folder.mkdir(parents=True, exist_ok=True)
    parts = list(dict.fromkeys(part for name in names for part in records.members(settings, name)))
    brought = sum(board.follow(settings, each, folder) for each in parts)
    if not any(folder.rglob("*tfevents*")) and not any(folder.rglob("plugins")):
        raise BergError(
            f"there is nothing to show of {', '.join(names)}: no event file, profile, metrics.jsonl or sample"
        )
    say(f"Brought {brought} files to {folder}")
    if once:
        click.echo(folder)
        return
    process, address = board.start(folder, port)
    click.echo(address)
    say("Ctrl-C ends it")
    try:
        while process.poll() is None:
            time.sleep(BRING)
            for each in parts:
                try:
                    board.follow(settings, each, folder)
                except Exception as error:  # the network may fail for a while
                    say(f"{each}: {error}; trying again")
    except KeyboardInterrupt:
        pass
    finally:
        process.terminate()
        process.wait()


COMMANDS = (wait, top, tensorboard)
