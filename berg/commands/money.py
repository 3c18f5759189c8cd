"""Commands about what things cost: `prices`, `costs` and `purse`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from berg import BergError, config, job, plain
from berg.commands.terminal import (
    AnyFunction,
    Duration,
    all_option,
    complete_types,
    json_option,
    print_data,
    say,
    table,
)

if TYPE_CHECKING:
    from berg.google.iam import Grant
    from berg.laptop.purse import Filled


@click.command(name="prices")
@click.option(
    "-t",
    "--gpu-type",
    shell_complete=complete_types,
    help="Only this GPU type, or several with commas, in all numbers per machine.",
)
@json_option
def prices_(gpu_type: str | None, as_json: bool) -> None:
    """Compare the hourly prices of GPUs, on demand and otherwise.

    These are Google's list prices in the configured region, without disk and traffic, sorted by the
    cheapest price of a GPU; `?` means that the price is not in the catalog.

    \b
    berg prices -t l4,t4
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.google import offers, prices

    listed, why = prices.look_up(settings, settings.region)
    found = offers.priced(settings, listed, settings.region, gpu_type)
    text = tables.priced(found, settings.region)
    print_data([asdict(each) for each in found], text, as_json)
    say(f"\n{tables.about_prices(listed, why)}")


@click.command(name="costs")
@all_option
@click.option(
    "--spend-cap",
    type=click.IntRange(1),
    metavar="DOLLARS",
    help="Print the command that sets a monthly limit enforced by Google.",
)
@json_option
def costs_(everyone: bool, spend_cap: int | None, as_json: bool) -> None:
    """Show what jobs cost by week and user, and what costs money now.

    A job counts in the week of its submission, at the list price of that moment. Jobs of unknown
    price are counted separately, never as 0; deleted jobs (berg rm) are not included. Google's bill
    differs: discounts, traffic, addresses and the bucket are not included. Last come files that
    jobs deleted, and that are still in the bucket.

    --spend-cap prints a command for Google's own cap for Compute Engine in this project. It needs
    permissions for the billing account.

    \b
    berg costs --spend-cap 500
    berg costs -a --json
    """
    settings = config.load_ready()
    from berg.commands import tables

    if spend_cap:
        plain.echo(tables.cap_command(settings.project, spend_cap))
        return
    from berg.laptop import jobs, records, spending

    user = None if everyone else settings.user
    entries = jobs.overview(settings, user, say=say)
    deleted = records.deleted_files(settings, entries)
    weeks = spending.weeks([(each.state, each.running) for each in entries if each.state])
    there = spending.billable(settings, say)
    data = {
        "weeks": [asdict(each) for each in weeks],
        "now": [asdict(each) for each in there],
        "deleted": [asdict(each) for each in deleted],
    }
    now = tables.billable_table(there) if there else ""
    lines = [f"{each.job}: {tables.deleted(each.files, each.bytes)}" for each in deleted]
    text = "\n\n".join(filter(None, [tables.sums(weeks), now, "\n".join(lines)]))
    print_data(data, text, as_json)


@click.group(name="purse", invoke_without_command=True)
@json_option
@click.pass_context
def purse_group(ctx: click.Context, as_json: bool) -> None:
    """Show purses: what jobs may cost together, and what is left.

    Jobs draw on a purse with --purse NAME, or BERG_PURSE=NAME for all commands of an agent or a
    script. Before a machine is created, the purse reserves what it costs at most until Google ends
    it; if less is left, the job ends sooner or is refused, whatever -y says. When a job has ended,
    it has cost what it cost. This is a guard, not a wall: a program that may
    create machines can do so without Berg.

    \b
    berg purse create agent1 --usd 40 --types l4,a100 --hours 8h
    BERG_PURSE=agent1 berg run "python train.py"
    berg purse
    """
    if ctx.invoked_subcommand:
        return
    settings = config.load_ready()
    from berg.laptop import purse

    print_purses(purse.all_of(settings), as_json)


def print_purses(found: "list[Filled]", as_json: bool) -> None:
    rows = [["PURSE", "LEFT", "SPENT", "RESERVED", "OF", "OWNER", "FOR"]]
    for each in found:
        this, has = each.purse, each.ledger
        amounts = map(plain.dollars, (each.left, has.spent, has.reserved, this.usd))
        rows.append([this.name, *amounts, this.owner, this.in_words()])
    text = (
        table(rows) if found else "There is no purse. Create one: berg purse create NAME --usd 40"
    )
    print_data([each.to_dict() for each in found], text, as_json)


def usd_option(text: str) -> Callable[[AnyFunction], AnyFunction]:
    return click.option(
        "--usd",
        type=click.FloatRange(0, 1e7, min_open=True),
        required=True,
        metavar="DOLLARS",
        help=text,
    )


@purse_group.command(name="create")
@click.argument("name")
@usd_option("What its jobs may cost together.")
@click.option("--types", default="", metavar="TYPE,…", help="GPU types that it pays for.")
@click.option("--hours", type=Duration("h"), default=0, help="How long each job may run.")
@click.option("--machines", type=click.IntRange(1), help="How many there may be at one time.")
@click.option("--until", type=Duration("-"), default=0, help="For how long it pays, such as 2d.")
@click.option(
    "--for",
    "account",
    default="",
    metavar="SERVICE_ACCOUNT",
    help="Let this account draw on it and on no other one, without the right to change it.",
)
@json_option
def create_purse(
    name: str,
    usd: float,
    types: str,
    hours: float,
    machines: int | None,
    until: float,
    account: str,
    as_json: bool,
) -> None:
    """Create a purse.

    With --for, an agent that has credentials of its own may submit jobs, but IAM keeps it from
    creating, changing or closing a purse.

    \b
    berg purse create agent1 --usd 40
    berg purse create agent1 --usd 40 --types l4,a100 --hours 8h --machines 4 --until 2d
    berg purse create agent1 --usd 40 --for agent@PROJECT.iam.gserviceaccount.com
    """
    settings = config.load_ready()
    from berg.google import iam, shapes
    from berg.laptop import purse

    made = purse.Purse(
        name=name,
        usd=usd,
        owner=settings.user,
        created_at=job.now(),
        types=[shapes.name_of(each, None) for each in filter(None, types.split(","))],
        hours=hours,
        machines=machines or 0,
        until=job.after(until) if until else "",
        account=account,
    )
    grants = iam.purse_grants(settings, name, account) if account else []
    purse.create(settings, made)
    print_purses([purse.filled(settings, made)], as_json)
    make_grants(grants)


def make_grants(grants: "list[Grant]") -> None:
    """Print grants and make them; raise BergError with the commands for those that are refused."""
    from berg.google import iam

    for each in grants:
        say(each.text)
    if refusal := iam.make_all(grants):
        commands = "\n  ".join(each.gcloud for each in grants)
        raise BergError(
            f"you lack the right to do this: {refusal}\nAn administrator can, with:\n  {commands}"
        )


@purse_group.command(name="top-up")
@click.argument("name")
@usd_option("What to add.")
@json_option
def top_up(name: str, usd: float, as_json: bool) -> None:
    """Add to a purse; one that was closed pays again.

    \b
    berg purse top-up agent1 --usd 20
    """
    settings = config.load_ready()
    from berg.google import iam
    from berg.laptop import purse

    found = purse.top_up(settings, name, usd)
    print_purses([found], as_json)
    if account := found.purse.account:
        make_grants(iam.purse_grants(settings, name, account))


@purse_group.command(name="close")
@click.argument("name")
@json_option
def close(name: str, as_json: bool) -> None:
    """Let a purse pay for no further job. Those that run continue.

    \b
    berg purse close agent1
    """
    settings = config.load_ready()
    from berg.google import iam
    from berg.laptop import purse

    found = purse.close(settings, name)
    print_purses([found], as_json)
    if account := found.purse.account:
        make_grants([iam.purse_removal(settings, name, account)])
        say("It can still create machines without berg. If it has no other purse, take that away:")
        say("\n".join(iam.binding_commands(settings, "remove", account)))


COMMANDS = (prices_, costs_, purse_group)
