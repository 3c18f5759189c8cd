"""The command that shows what there is: list."""

import contextlib
import json
from typing import TYPE_CHECKING

import click

from berg import config, plain
from berg.commands.terminal import json_option, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from berg.laptop.jobs import Entry


@click.command(name="list")
@click.option("-a", "--all", "everybody", is_flag=True, help="Everybody's, not only mine.")
@click.option("-c", "--command", is_flag=True, help="Show the command, too.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Show every machine of a cluster, every job of a sweep."
)
@click.option(
    "--limit",
    default=20,
    show_default=True,
    type=click.IntRange(0),
    help="Jobs that are over, at most; the newest.",
)
@click.option(
    "--all-jobs",
    "is_whole",
    is_flag=True,
    help="Show all that are over, and look at every job anew, which takes its time with many.",
)
@click.option(
    "--watch",
    "keep",
    is_flag=True,
    help="Show it anew every 5 seconds, until nothing lives any more.",
)
@json_option
def list_(
    everybody: bool,
    command: bool,
    verbose: bool,
    limit: int,
    is_whole: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Show machines and recent jobs with what became of them.

    Running and new jobs are found by an index in the bucket. A job whose entry was never written,
    because its submit broke off in between, is missing there until --all-jobs looks at every job.

    \b
    berg list
    berg list -a -c
    berg list --watch
    berg list --json | jq -r '.[] | select(.state == "FAILED") | .name'
    """
    if keep and as_json:
        raise click.UsageError(
            "--watch is for people; for a program: berg list --json, again and again"
        )
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import index, jobs, power

    user: str | None = settings.user
    if everybody:
        user = None

    def newest() -> "tuple[list[Entry], Callable[[], None]]":
        if is_whole:
            found = index.look_at_all(settings, user, say)
            entries = found.entries
        else:
            found = index.look(settings, user, limit, say)
            entries = jobs.newest(found.entries, limit)
        power.note_stopped(settings, entries)
        return entries, found.tidy

    def tidied() -> "list[Entry]":
        entries, tidy = newest()
        tidy()
        return entries

    def table(entries: "list[Entry]") -> str:
        return tables.entries(entries, command, everybody, verbose)

    if keep:
        with contextlib.suppress(KeyboardInterrupt):
            tables.watch(tidied, table)
        return
    shown, tidy = newest()
    if as_json:
        plain.echo(json.dumps([each.to_dict() for each in shown], indent=2))
    elif shown:
        plain.echo(table(shown))
    else:
        say('Nothing yet. Start with: berg run "python train.py"')
    tidy()


COMMANDS = (list_,)
