"""The command that keeps the dashboard in Cloud Monitoring: dashboard."""

import json

import click

from berg import BergError, config, plain
from berg.commands.terminal import json_option, say, yes_option


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


COMMANDS = (dashboard,)
