"""The commands that say what things cost: prices, costs."""

import json
from dataclasses import asdict

import click

from berg import config, plain
from berg.commands.terminal import complete_types, json_option, say


@click.command(name="prices")
@click.option(
    "-t",
    "--gpu-type",
    shell_complete=complete_types,
    help="Only this GPU type, or several with commas, in all numbers that a machine may have.",
)
@json_option
def prices_(gpu_type: str | None, as_json: bool) -> None:
    """Compare what GPUs cost an hour, on demand and otherwise.

    These are Google's list prices in the configured region, without disk and traffic, from the
    Cloud Billing Catalog, which is asked once a day. The cheapest GPU comes first; `?` stands for a
    price that is not in the list.

    \b
    berg prices
    berg prices -t l4,t4
    """
    settings = config.load_ready()
    from berg.commands import costs
    from berg.google import offers, prices

    listed, why = prices.look_up(settings, settings.region)
    found = offers.priced(settings, listed, settings.region, gpu_type)
    if as_json:
        plain.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    plain.echo(costs.priced(found, settings.region))
    say(f"\n{costs.about_prices(listed, why)}")


@click.command(name="costs")
@click.option("-a", "--all", "everybody", is_flag=True, help="Everybody's, not only mine.")
@click.option(
    "--spend-cap",
    type=click.IntRange(1),
    metavar="DOLLARS",
    help="Print the command that lets Google itself end what the project costs in a month.",
)
@json_option
def costs_(everybody: bool, spend_cap: int | None, as_json: bool) -> None:
    """Show what jobs cost by week and user, and what costs money now.

    A job counts in the week in which it was submitted, at the list price of that moment, from its
    worker's beginning to its end. Jobs whose price was unknown are counted apart, never as nothing;
    those that were deleted (berg rm) are in no sum. Below stands what costs money now, whatever its
    jobs do: machines, disks, clusters with their caches. What Google bills differs: discounts,
    traffic, addresses and the bucket are not in it.

    --spend-cap prints a command to copy: a cap of Google's for Compute Engine in this project. It
    takes rights for the billing account, which berg should not have.

    \b
    berg costs
    berg costs --spend-cap 500
    berg costs -a --json
    """
    settings = config.load_ready()
    from berg.commands import costs

    if spend_cap:
        plain.echo(costs.cap_command(settings.project, spend_cap))
        return
    from berg.laptop import jobs, spending, standing

    user = None if everybody else settings.user
    entries = jobs.overview(settings, user, say=say)
    told = [(each.state, each.running) for each in entries if each.state]
    weeks = spending.weeks(told)
    there = standing.everything(settings)
    if as_json:
        found = {"weeks": [asdict(each) for each in weeks], "now": [asdict(each) for each in there]}
        plain.echo(json.dumps(found, indent=2))
        return
    plain.echo(costs.sums(weeks))
    if there:
        plain.echo(f"\n{costs.standing_table(there)}")


COMMANDS = (prices_, costs_)
