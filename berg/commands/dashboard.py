"""The commands about the dashboard in Cloud Monitoring: create, show, delete."""

import json

import click

from berg import BergError, config
from berg.commands.terminal import json_option, say, yes_option


@click.group()
def dashboard() -> None:
    """Keep a dashboard of berg's machines in Cloud Monitoring.

    It shows CPU, network and disk of each machine, which Google measures without an agent, by job.
    Memory, GPUs and TPUs are there too where `berg init --monitoring` lets the machines write them.

    \b
    berg dashboard create
    """


@dashboard.command()
@json_option
def create(as_json: bool) -> None:
    """Make the dashboard, or bring it up to date.

    \b
    berg dashboard create
    """
    settings = config.load_ready()
    from berg.google import monitoring

    there, is_new = monitoring.create(settings)
    say(f"{'Created' if is_new else 'Brought up to date:'} {there['displayName']}")
    if not settings.monitoring:
        say(
            "Memory, GPUs and TPUs stay empty until machines may write them: berg init --monitoring"
        )
    click.echo(json.dumps(there, indent=2) if as_json else monitoring.address(settings, there))


@dashboard.command()
@json_option
def show(as_json: bool) -> None:
    """Show whether there is a dashboard, where, and what is on it.

    \b
    berg dashboard show
    """
    settings = config.load_ready()
    from berg.google import monitoring

    there = existing(settings)
    if as_json:
        click.echo(json.dumps(there, indent=2))
        return
    click.echo(f"{there['displayName']}  {monitoring.address(settings, there)}")
    for tile in there.get("mosaicLayout", {}).get("tiles", []):
        click.echo(f"  {tile.get('widget', {}).get('title', '')}")


@dashboard.command()
@yes_option
def delete(yes: bool) -> None:
    """Delete the dashboard; metrics that were written stay until Google forgets them.

    \b
    berg dashboard delete
    """
    settings = config.load_ready()
    from berg.google import monitoring

    there = existing(settings)
    if not yes:
        click.confirm(
            f"Delete the dashboard {there['displayName']} of {settings.project}?",
            abort=True,
            err=True,
        )
    monitoring.delete(settings, there)
    say("Deleted.")


def existing(settings) -> dict:
    from berg.google import monitoring

    there = monitoring.find(settings)
    if there is None:
        raise BergError(
            f"{settings.project} has no dashboard of berg's. Make it: berg dashboard create"
        )
    return there


COMMANDS = (dashboard,)
