"""Write the help of every command to a Markdown file.

python tools/commands.py docs/commands.md
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from berg.cli import cli
from berg.commands.register import SECTIONS
from berg.commands.terminal import SHOW_ALL

HEAD = """# Commands

What `berg COMMAND --help-all` and `--help` print. `make docs` writes this page; change the docstrings in `berg/commands/`,
not the page.
"""
WIDTH = 100


def walk(command: click.Command, name: str, parent: click.Context) -> Iterator[click.Context]:
    """A context for a command, or for each command of a group."""
    context = click.Context(command, info_name=name, parent=parent)
    context.meta[SHOW_ALL] = True
    if not isinstance(command, click.Group):
        yield context
        return
    for child in command.list_commands(context):
        yield from walk(command.commands[child], child, context)


def page() -> str:
    root = click.Context(cli, info_name="berg", terminal_width=WIDTH, **cli.context_settings)
    parts = [HEAD]
    for heading, names in SECTIONS.items():
        parts.append(f"## {heading}\n")
        for name in names:
            for each in walk(cli.commands[name], name, root):
                parts.append(f"### {each.command_path}\n\n```text\n{each.get_help()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
