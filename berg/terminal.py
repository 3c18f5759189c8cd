"""What the command modules share: where notes go, options, and the completion of names."""

import click

from berg import config


def say(text: str) -> None:
    """Everything that is not data goes to standard error."""
    click.echo(text, err=True)


def complete_names(ctx, param, incomplete: str) -> list[str]:
    try:
        names = (config.home() / "names").read_text().split()
    except OSError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def name_argument(**options):
    return click.argument("name", metavar="NAME", shell_complete=complete_names, **options)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
