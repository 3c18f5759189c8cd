"""Write the help of every command between the two markers of a Markdown file.

python tools/commands.py README.md
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from berg.cli import cli

BEGIN, END = "<!-- commands: begin, written by `make docs` -->\n", "<!-- commands: end -->\n"
WIDTH = 100


def walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """A context for every command that is not a mere group, in the order of `--help`."""
    settings = {} if parent else {**cli.context_settings, "terminal_width": WIDTH}  # what is below inherits them
    context = click.Context(command, info_name=name, parent=parent, **settings)
    if not isinstance(command, click.Group):
        yield context
        return
    for child in command.list_commands(context):
        yield from walk(command.commands[child], child, context)


def section() -> str:
    parts = [f"### {each.command_path}\n\n```text\n{each.get_help()}\n```\n" for each in walk(cli, "berg")]
    return "\n".join(["", *parts, ""])


def with_section(text: str) -> str:
    """The text with what stands between its markers written anew."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the markers are missing:\n{BEGIN}{END}")
    return head + begin + section() + end + tail


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_section(path.read_text()))
