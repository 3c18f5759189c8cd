"""The commands that turn devboxes off and on again: stop, start."""

import sys
from collections.abc import Callable

import click

from berg import BergError, config
from berg.commands.terminal import complete_names, describe, say, show_traceback


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--now", is_flag=True, help="At once, without waiting for the last results.")
def stop(names: tuple[str, ...], now: bool) -> None:
    """Turn devboxes off, and keep their disks.

    What runs on a box ends, its last results go to the bucket, then its machine is off: it costs
    its disk alone. Files, installed packages, name and ssh host key stay. Nothing deletes a box
    that is off by itself: berg reap offers it after 14 days (the setting max_stopped_days).

    \b
    berg stop box
    berg start box
    """
    settings = config.load_ready()
    from berg.laptop import power

    def stopped(name: str) -> str:
        return power.stop(settings, name, now, say)

    sys.exit(for_each(settings, names, stopped))


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option(
    "--move", is_flag=True, help="Where its zone has no room, bring its disk to another zone."
)
@click.option(
    "--rescue", is_flag=True, help="Only for login: without installation, worker and checks."
)
def start(names: tuple[str, ...], move: bool, rescue: bool) -> None:
    """Turn devboxes on again that were stopped.

    Waits until they answer. The disk is as it was, what is installed is not installed again, and
    --max-hours starts again. Where the zone has no room, Google says so, and the box stays as it
    is; with --move its disk is copied to a machine like it in another zone of the region, by a
    snapshot. The machine here is deleted when the other one answers.

    \b
    berg start box
    berg start box --move
    berg start box --rescue
    berg ssh box
    """
    settings = config.load_ready()
    from berg.laptop import power

    def started(name: str) -> str:
        return power.start(settings, name, move, rescue, say)

    sys.exit(for_each(settings, names, started))


def for_each(settings: config.Config, names: tuple[str, ...], step: Callable[[str], str]) -> int:
    """Do something with devboxes side by side, and say what came of each; return the exit code."""
    from concurrent.futures import ThreadPoolExecutor

    from berg.laptop.latest import resolve

    _ = settings.session  # before threads want it
    failed = False
    with ThreadPoolExecutor(8) as pool:
        full = list(dict.fromkeys(resolve(settings, name) for name in names))
        done = {name: pool.submit(step, name) for name in full}
        for name, future in done.items():
            try:
                say(f"{name} {future.result()}")
            except Exception as error:
                failed = True
                show_traceback()
                BergError(describe(error)).show()
    return int(failed)


COMMANDS = (stop, start)
