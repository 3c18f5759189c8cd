"""What jobs print: `berg log` for all of it, `berg tail` to follow."""

import re
import sys
import time
from collections.abc import Iterator

import click

from berg import BergError, jobs, terminal
from berg.bucket import Bucket
from berg.config import Config
from berg.job import State, log_prefix, now
from berg.options import complete_names

POLL = 1  # seconds
ENDING = 64 << 10  # bytes at the end of each log in which its last lines are looked for
COLOR = re.compile(r"(\x1b\[[0-9;:]*m)")
SEQUENCE = re.compile(  # what steers a terminal: cursors; titles and links; others
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)


def pieces(
    bucket: Bucket, name: str, read: dict[str, int], machine: str = ""
) -> Iterator[tuple[str, bytes]]:
    """Logs of a job, and what each has beyond what was read of it; the oldest first."""
    logs = [log for log in bucket.list(log_prefix(name)) if log.name.endswith(".log")]
    logs = [log for log in logs if machine in ("", writer_of(log.name))]
    for log in logs:  # before the first is read: `lines` counts their machines
        read.setdefault(log.name, 0)
    for log in sorted(logs, key=lambda log: log.name.rsplit(".", 2)[-2:]):
        if log.size > read[log.name]:
            content = bucket.find(log.name, read[log.name]) or b""
            read[log.name] += len(content)
            yield log.name, content


def writer_of(log: str) -> str:
    """The machine that wrote a log."""
    return log.rpartition("/")[2].split(".")[0]


def speaker_of(log: str, name: str) -> str:
    """Whose lines a log of a job has: a row's, in the logs of its sweep, or a machine's."""
    row = log.removeprefix(log_prefix(name)).rpartition("/")[0]
    return f"{name}/{row}" if row else writer_of(log)


def lines(
    bucket: Bucket, name: str, read: dict[str, int], is_whole: bool, machine: str = ""
) -> Iterator[str]:
    """Complete lines, with the row or the machine in front of them where there are several."""
    for log, content in pieces(bucket, name, read, machine):
        found = content.decode(errors="replace").split("\n")
        rest = found.pop()
        if rest and is_whole:
            found.append(rest)
        elif rest:
            read[log] -= len(content) - content.rfind(b"\n") - 1
        is_one_of_many = len({speaker_of(each, name) for each in read}) > 1
        speaker = f"{speaker_of(log, name)}: " * is_one_of_many
        yield from (speaker + line for line in found)


def last_lines(bucket: Bucket, name: str, count: int) -> list[str]:
    logs = [log for log in bucket.list(log_prefix(name)) if log.name.endswith(".log")]
    read = {log.name: max(0, log.size - ENDING) for log in logs}
    return [*lines(bucket, name, read, is_whole=True)][-count:] if count else []


def readable(line: str, has_colors: bool, is_terminal: bool = False) -> str:
    """A line as a terminal may show it: with colors, if they are wanted, and nothing else that steers it.

    A progress bar draws its line again after a return: a terminal gets the last one of them.
    """
    drawn = [part for part in line.split("\r") if part]
    line = "\n".join(drawn[-1:] if is_terminal else drawn)
    parts = [
        part if number % 2 else terminal.clean(SEQUENCE.sub("", part))
        for number, part in enumerate(COLOR.split(line))
    ]
    if not has_colors:
        return "".join(parts[::2])
    return "".join(parts) + ("\x1b[0m" if len(parts) > 1 else "")


def show(line: str, color: bool) -> None:
    is_terminal = sys.stdout.isatty() and not terminal.is_for_program()
    has_colors = color or is_terminal
    click.echo(readable(line, has_colors, is_terminal), color=has_colors)


def follow(config: Config, name: str, machine: str = "", color: bool = False) -> State:
    """Print what a job prints until it has ended; return its state then."""
    bucket, read, before = Bucket(config), dict[str, int](), ""
    while True:
        state = jobs.find(config, name)
        if state.state != before:
            terminal.say(f"{state.name} {state.state} {now()} {state.reason}".rstrip())
            before = state.state
        for line in lines(bucket, state.name, read, state.is_final, machine):
            show(line, color)
        if state.is_final:
            return state
        time.sleep(POLL)


machine_option = click.option("--machine", default="", help="Only the log of this machine.")
color_option = click.option("--color", is_flag=True, help="Keep colors even in a pipe.")


@click.command()
@click.argument("name", default="@", shell_complete=complete_names)
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Until the job ends: berg tail.")
@machine_option
@color_option
def log(name: str, is_followed: bool, machine: str, color: bool) -> None:
    """Print all that a job has printed; @ is your latest job, SWEEP/3 a row of a sweep.

    A terminal gets the colors that programs print, and nothing else that would steer it.

    \b
    berg log digits-1121-0930-x7k | grep loss
    berg log sweep1/3
    """
    if is_followed:  # that exits as the command did
        click.get_current_context().invoke(tail, name=name, machine=machine, color=color)
    config, read, state = Config.load(), dict[str, int](), None
    try:
        state = jobs.find(config, name)
    except BergError:  # its records are damaged or gone: there may be logs
        if not any(True for _ in Bucket(config).list(log_prefix(name))):
            raise
    for line in lines(Bucket(config), state.name if state else name, read, True, machine):
        show(line, color)
    if state and not read:
        of = f" on {machine}" if machine else ""
        terminal.say(f"{state.name} is {state.state}, and has printed nothing yet{of}")


@click.command()
@click.argument("name", default="@", shell_complete=complete_names)
@machine_option
@color_option
def tail(name: str, machine: str, color: bool) -> None:
    """Follow what a job prints until it has ended; the exit code is its command's.

    \b
    berg tail digits-1121-0930-x7k
    """
    config = Config.load()
    name = jobs.find(config, name).name
    with jobs.left_alone(name):
        state = follow(config, name, machine, color)
    sys.exit(jobs.exit_code(state))
