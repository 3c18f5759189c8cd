"""What jobs print: `berg log` for all of it, `berg tail` to follow."""

import time
from collections.abc import Iterator

import click

from berg import jobs, terminal
from berg.bucket import Bucket
from berg.config import Config
from berg.job import log_prefix, now

POLL = 2  # seconds


def pieces(bucket: Bucket, name: str, read: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """What the logs of a job have beyond what was read of each, the oldest log first."""
    logs = sorted(bucket.list(log_prefix(name)), key=lambda log: log.name.rsplit(".", 2)[-2:])
    for log in logs:
        start = read.get(log.name, 0)
        if log.size > start:
            content = bucket.find(log.name, start) or b""
            read[log.name] = start + len(content)
            yield log.name.removeprefix(log_prefix(name)).split(".")[0], content


def print_pieces(bucket: Bucket, name: str, read: dict[str, int], is_whole: bool) -> None:
    """Print complete lines, with the machine in front of them where there are several."""
    for machine, content in pieces(bucket, name, read):
        lines = content.decode(errors="replace").splitlines(keepends=True)
        if lines and not is_whole and not lines[-1].endswith("\n"):
            rest = lines.pop()
            log = next(key for key in read if f"/{machine}." in key and read[key])
            read[log] -= len(rest.encode())
        is_one_of_many = len({key.rpartition("/")[2].split(".")[0] for key in read}) > 1
        mark = f"{machine}: " if is_one_of_many else ""
        for line in lines:
            terminal.show(mark + line.rstrip("\n"))


def follow(config: Config, name: str) -> None:
    """Print what a job prints until it has ended."""
    bucket, read, before = Bucket(config), dict[str, int](), ""
    while True:
        state = jobs.find(config, name)
        if state.state != before:
            terminal.say(f"{state.name} {state.state} {now()} {state.reason}".rstrip())
            before = state.state
        print_pieces(bucket, state.name, read, state.is_final)
        if state.is_final:
            return
        time.sleep(POLL)


@click.command()
@click.argument("name", default="@")
def log(name: str) -> None:
    """Print all that a job has printed; @ is your latest job."""
    config = Config.load()
    state = jobs.find(config, name)
    read: dict[str, int] = {}
    print_pieces(Bucket(config), state.name, read, is_whole=True)
    if not read:
        terminal.say(f"{state.name} is {state.state}, and has printed nothing yet")


@click.command()
@click.argument("name", default="@")
def tail(name: str) -> None:
    """Follow what a job prints, until it has ended."""
    config = Config.load()
    follow(config, jobs.find(config, name).name)
