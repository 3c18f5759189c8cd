"""The commands that look at what runs: wait, top, tensorboard, page, profile, dashboard."""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, job, plain
from berg.commands.terminal import (
    Duration,
    all_option,
    complete_names,
    confirm,
    json_option,
    machine_option,
    name_argument,
    names_argument,
    port_option,
    print_data,
    print_json,
    ready,
    say,
    table,
    yes_option,
)

if TYPE_CHECKING:
    import subprocess

    from berg.laptop.jobs import Entry

Sample = dict[str, Any]  # as berg/watch/collect.py says

POLL, REDRAW, BRING = 2, 10, 30  # seconds
HISTORY = 1800  # seconds that a sparkline shows
STALE = 120  # seconds after which a sample says nothing about now
EIGHTHS = ("", *"▏▎▍▌▋▊▉")


def parts_of(settings: config.Config, names: tuple[str, ...]) -> list[str]:
    """Return the names, with the jobs of a sweep for the sweep, and the latest job's for `@`."""
    from berg.laptop import lookup, records

    return records.members(settings, [lookup.resolve(settings, name) for name in names])


@click.command()
@names_argument
@click.option("--any/--all", "first", help="Until one of them is finished, or all.  [default: all]")
@json_option
def wait(names: tuple[str, ...], first: bool, as_json: bool) -> None:
    """Wait until jobs are finished.

    A sweep is finished when all its jobs are. The exit code is 0 if all succeeded, else that of the
    first that did not.

    \b
    berg wait digits-1121-0930-x7k && berg fetch digits-1121-0930-x7k
    berg wait --any first-try second-try
    """
    settings = config.load_ready()
    from berg.commands import results, tables
    from berg.laptop import jobs

    found = [jobs.find(settings, name) for name in parts_of(settings, names)]
    waiting = [entry.name for entry in found]
    over: list[Entry] = []
    shown: dict[str, str] = {}
    while True:
        for entry in found:
            if entry.job_state.final:
                over.append(entry)
                waiting.remove(entry.name)
                say(tables.outcome(entry.name, entry.job_state))
            elif (line := tables.progress(entry)) != shown.get(entry.name):
                say(line)
                shown[entry.name] = line
        if not waiting or (first and over):
            break
        time.sleep(POLL)
        found = look_again(settings, waiting)
    if as_json:
        print_json([entry.to_dict() for entry in over])
    sys.exit(results.exit_code(*(entry.state for entry in over)))


def look_again(settings: config.Config, names: list[str]) -> "list[Entry]":
    """Return those jobs now, with two requests in all; none if Google cannot be reached."""
    from google.auth import exceptions as auth

    from berg.google import api
    from berg.laptop import jobs

    try:
        if len(names) == 1:
            return [jobs.find(settings, names[0])]
        entries = {entry.name: entry for entry in jobs.overview(settings, None)}
    except (auth.TransportError, api.RetryError, api.NoAnswer) as error:
        say(f"Waiting on: {api.explain(error, settings) or error}")
        return []
    if gone := [name for name in names if name not in entries]:
        raise BergError(f"{gone[0]} was deleted meanwhile")
    return [entries[name] for name in names]


@click.command()
@name_argument(required=False)
@click.option("--once", is_flag=True, help="Print it once, and stop.")
@json_option
def top(name: str | None, once: bool, as_json: bool) -> None:
    """Show how busy your machines are, live.

    A row for each machine: GPUs (or TPUs), CPU, memory and network now, and the last half hour.
    With NAME also a row for each GPU.

    \b
    berg top
    berg top digits-1121-0930-x7k --once
    """
    settings = config.load_ready()
    names = parts_of(settings, (name,)) if name else []
    while True:
        rows = look(settings, names)
        if as_json:
            print_json([asdict(row) for row in rows])
            return
        shown = "No machine of yours runs. See: berg list"
        if rows:
            shown = machine_table(rows, bool(name), job.clock())
        if once or not plain.is_terminal(sys.stdout):
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
        """Return the sample of now, or of the end of a finished job; {} if there is none."""
        if self.samples and (self.over or now - self.samples[-1]["time"] < STALE):
            return self.samples[-1]
        return {}

    def history(self) -> list[tuple[float, float | None]]:
        """Return how busy its GPUs were by time, or its CPUs if it has none."""
        from berg.watch import collect

        with_gpus = [each for each in self.samples if collect.accelerators(each)]
        if with_gpus:
            return [(each["time"], collect.mean(each)) for each in with_gpus]
        return [(each["time"], each.get("cpu_percent")) for each in self.samples]


def look(settings: config.Config, names: list[str]) -> list[Row]:
    """Return a row for each machine of those jobs, or of yours if there are no names."""
    from berg.google.fetch import side_by_side
    from berg.google.storage import Bucket
    from berg.laptop import index, jobs
    from berg.watch import collect

    bucket = Bucket(settings)
    _ = settings.credentials  # before threads use it

    def read(entry: "Entry") -> list[Row]:
        samples = collect.read_samples(bucket, entry.name, HISTORY)
        over = bool(entry.state and entry.state.final)
        machines = [machine.name for machine in entry.machines] or sorted(samples)
        return [
            Row(machine, entry.name, entry.status, over, samples.get(machine, []))
            for machine in machines
        ]

    if len(names) == 1:
        entries = [jobs.find(settings, names[0])]
    else:
        found = index.look(settings, None if names else settings.user, 0).entries
        entries = [each for each in found if each.machines and (not names or each.name in names)]
    return [row for rows in side_by_side(read, entries) for row in rows]


def machine_table(rows: list[Row], in_detail: bool, now: float) -> str:
    """Return a row for each machine; in detail also one for each GPU and TPU."""
    from berg.watch import collect

    cells = [["MACHINE", "GPU", "GPU MEM", "CPU", "MEMORY", "NET/s", "LAST HALF HOUR"]]
    room = (plain.columns(sys.stdout) or 100) - max(len(row.name) for row in rows) - 57
    for row in rows:
        last, network = row.last_sample(now), "-"
        if last:
            both = (last.get("received_per_second"), last.get("sent_per_second"))
            network = plain.size(sum(each or 0 for each in both))
        percents = (
            collect.mean(last),
            memory_percent(last),
            last.get("cpu_percent"),
            last.get("memory_percent"),
        )
        end = sparkline(row.history(), room) if last else row.state
        cells.append([row.name, *map(bar, percents), f"{network:>7}", end])
        for name, each in collect.accelerators(last).items() if in_detail else ():
            values = [
                f"{min(each[key], 99_999):.0f} {unit}"
                for key, unit in (("watt", "W"), ("celsius", "°C"))
                if each.get(key) is not None
            ]
            bars = bar(each.get("percent")), bar(memory_percent({"gpus": [each]}))
            cells.append([f"  {name}", *bars, "", "", "", "  ".join(values)])
    return table(cells)


def memory_percent(sample: Sample) -> float | None:
    """Return the percentage of a sample's accelerator memory that is used."""
    from berg.watch.collect import mean

    used, total = mean(sample, "memory_mb"), mean(sample, "memory_total_mb")
    if used is None or not total:
        return None
    return 100 * used / total


def bar(percent: float | None) -> str:
    """Return nine characters: four for a bar, five for the number."""
    if percent is None:
        return f"{'-':>9}"
    eighths = round(max(0.0, min(100.0, percent)) / 100 * 32)
    drawn = "█" * (eighths // 8) + EIGHTHS[eighths % 8]
    return f"{drawn:<4}{min(percent, 999):4.0f}%"


def sparkline(history: list[tuple[float, float | None]], room: int) -> str:
    """Return the last half hour in so many characters; blank where there is no sample."""
    width = max(1, min(room, 60))
    buckets: list[list[float]] = [[] for _ in range(width)]
    for when, percent in history:
        age = history[-1][0] - when
        if percent is not None and 0 <= age < HISTORY:
            buckets[width - 1 - int(age / HISTORY * width)].append(percent)
    means = [sum(each) / len(each) if each else None for each in buckets]
    return "".join(
        " " if each is None else "▁▂▃▄▅▆▇█"[min(7, max(0, int(each / 12.5)))] for each in means
    )


@click.command()
@names_argument
@port_option
@click.option("--once", is_flag=True, help="Download what there is, print the folder, and stop.")
@click.option(
    "--on",
    "machine",
    metavar="NAME",
    help="Run it on a machine, such as a devbox, and show it here.",
)
def tensorboard(names: tuple[str, ...], port: int, once: bool, machine: str | None) -> None:
    """Show metrics, event files and profiles of jobs in TensorBoard.

    NAME is a job, also a finished one, a sweep, or a folder of results. What changed is downloaded
    every 30 seconds. For large files use --on: it runs TensorBoard on a machine that has it, and
    shows it here through ssh.

    \b
    berg tensorboard lr-sweep baselines/resnet
    berg tensorboard lr-sweep --on my-devbox
    """
    if once and machine:
        raise click.UsageError("--once and --on cannot be given together: leave one of them out")
    settings = config.load_ready()
    import signal

    from berg.watch import board

    parts = parts_of(settings, names)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # TensorBoard ends with this command
    if machine:
        follow(*board.start_on(settings, machine, parts, port, say), machine)
    else:
        show_board(settings, names, parts, port, once)


def show_board(
    settings: config.Config, names: tuple[str, ...], parts: list[str], port: int, once: bool
) -> None:
    """Run TensorBoard here, with what its jobs write, until Ctrl-C."""
    from berg.google.api import wait_for
    from berg.watch import board

    folder = config.home() / "tensorboard" / board.key(names)
    folder.mkdir(parents=True, exist_ok=True)
    made: board.Made = {}
    count = sum(board.follow(settings, each, folder, made) for each in parts)
    if not any(path.is_file() for path in folder.rglob("*")):
        raise BergError(
            f"there is nothing to show of {', '.join(names)} yet: no event file, profile or "
            "metrics.jsonl in the results, and no sample of a machine"
        )
    say(f"Downloaded {plain.plural(count, 'file')} to {folder}")
    if once:
        plain.echo(folder)
        return
    process, address = board.start(folder, port)
    plain.echo(address)
    say("Ctrl-C ends it")
    try:
        while not wait_for(lambda: process.poll() is not None, 0.2, BRING):
            for each in parts:
                try:
                    board.follow(settings, each, folder, made)
                except Exception as error:  # such as a network that fails for a while
                    say(f"{each} was not downloaded: {error}; trying again")
        raise BergError(f"TensorBoard ended: {board.last_line(folder)}")
    except KeyboardInterrupt:
        pass
    finally:
        process.terminate()
        process.wait()


def follow(there: "subprocess.Popen[str]", address: str, machine: str) -> None:
    """Print what TensorBoard prints on a machine, and its address here once it runs."""
    try:
        for line in there.stdout or ():
            if line.startswith("http://127.0.0.1:"):
                plain.echo(address)
            elif line.strip():
                say(f"{machine}: {line.strip()}")
        if there.wait() == 127:
            raise BergError(f"berg on {machine} is older than this one: start a new machine")
        raise BergError(f"TensorBoard ended on {machine}, or the connection to it did")
    except KeyboardInterrupt:
        pass
    finally:
        there.terminate()
        there.wait()


@click.command()
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=complete_names)
@all_option
@port_option
@click.option(
    "--export",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write files instead.",
)
def page(names: tuple[str, ...], everyone: bool, port: int, export: Path | None) -> None:
    """Show jobs, logs, charts and results in a browser.

    The page is served on this computer only, until Ctrl-C. It follows running jobs and can end them
    after asking; it changes nothing else. --export writes the pages of jobs and sweeps NAME… with
    their logs and results to a new folder, to open from disk or to send.

    \b
    berg page
    berg page --export ./for-ada sweep1
    """
    if export and not names:
        raise click.UsageError("--export writes the pages of jobs and sweeps: give their names")
    if names and not export:
        raise click.UsageError("the page has all jobs; NAME is for --export FOLDER")
    settings = config.load_ready()
    from berg.laptop import lookup
    from berg.watch import serve

    if export:
        full = [lookup.resolve(settings, name) for name in names]
        plain.echo(serve.export(settings, full, export, say))
        return
    try:
        server = serve.Server(settings, port, None if everyone else settings.user)
    except OSError as error:
        raise BergError(
            f"port {port} is not available: {error.strerror}. For a free one: leave --port out"
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
    "py-spy": "py-spy: Python from outside",
    "stacks": "the stacks of its Python processes",
}
# Kind of a profile -> what opens it.
OPENS = {
    "jax": "berg tensorboard {name}    (its tab needs berg's extra, profile)",
    "kineto": "https://ui.perfetto.dev (files stay in the browser)",
    "py-spy": "https://www.speedscope.app (files stay in the browser), or: npx speedscope FILE",
}


@click.command()
@name_argument()
@click.option(
    "-s", "--seconds", type=Duration("s"), default=10, help="How long; 1s to 10m.  [default: 10s]"
)
@click.option("--stacks", is_flag=True, help="Show where it is instead: the stacks of all ranks.")
@machine_option
@json_option
def profile(name: str, seconds: float, stacks: bool, machine: str | None, as_json: bool) -> None:
    """Profile a running command.

    All its machines are profiled at the same time, and the command continues. JAX's profiler is
    used if the command started its server on the port BERG_PROFILER_PORT, PyTorch's if the job was
    started with --profile, otherwise py-spy. Files are kept with the results, and downloaded to
    ~/berg_results.

    --stacks answers where a job hangs: what each rank does now, and what NCCL and the GPUs report.
    Jobs that seem to hang have it among their results already.

    \b
    berg profile @
    berg profile @ --stacks
    berg profile digits-1121-0930-x7k -s 30 --machine digits-1121-0930-x7k-1
    """
    if not 1 <= seconds <= 600:
        raise click.UsageError(f"--seconds {seconds:g}: give 1s to 10m")
    settings, name = ready(name)
    from berg.watch import board

    found, machines = board.find_running(settings, name, machine)
    say(f"Profiling {found.name}{'' if stacks else f' for {plain.span(seconds)}'}")
    answers = board.take_profiles(settings, found, machines, 0 if stacks else seconds)
    files = board.bring_profiles(settings, answers, Path.home() / "berg_results", say)
    for each, answer in sorted(answers.items()):
        error = answer.get("error") or "invalid answer"
        say(f"{each}: {KINDS.get(answer.get('kind', ''), error)}")
    paths = [str(file) for file in files]
    print_data({"machines": answers, "files": paths}, "\n".join(paths), as_json)
    if stacks and (who := board.odd_rank(files)):
        say(who)
    for lines in filter(None, map(board.hottest, files)):
        say("Time spent by line, without the functions that it called:\n" + "\n".join(lines))
    for kind in OPENS.keys() & {answer.get("kind", "") for answer in answers.values()}:
        say(f"Open it:  {OPENS[kind].format(name=name)}")
    sys.exit(int(not files))


@click.command()
@click.option("--delete", is_flag=True, help="Delete it instead, after asking.")
@yes_option
@json_option
def dashboard(delete: bool, yes: bool, as_json: bool) -> None:
    """Keep a dashboard of berg's machines in Cloud Monitoring.

    It is created or updated, and its address is printed. Memory, GPUs and TPUs are in it if `berg
    init --monitoring` lets the machines write them. Metrics stay after --delete until Google
    deletes them.

    \b
    berg dashboard
    berg dashboard --delete
    """
    if delete and as_json:
        raise click.UsageError("--delete prints nothing: leave --json out")
    settings = config.load_ready()
    from berg.watch import dashboard as made

    if delete:
        there = made.find(settings)
        if there is None:
            raise BergError(
                f"{settings.project} has no dashboard of berg's. To create it: berg dashboard"
            )
        confirm(f"Delete the dashboard {there['displayName']} of {settings.project}?", yes)
        made.delete(settings, there)
        say("Deleted.")
        return
    there, is_new = made.create(settings)
    say(f"{'Created' if is_new else 'Updated'} {there['displayName']}")
    if not settings.monitoring:
        say("Memory, GPUs and TPUs are empty until machines may write them: berg init --monitoring")
    for tile in there.get("mosaicLayout", {}).get("tiles", []):
        say(f"  {tile.get('widget', {}).get('title', '')}")
    if settings.endpoint and not as_json:
        say("The embedded cloud keeps it, and has no page to show it")
    else:
        print_data(there, made.address(settings, there), as_json)


COMMANDS = (wait, top, tensorboard, page, profile, dashboard)
