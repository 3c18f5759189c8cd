"""Write the help of every command to a Markdown file.

python tools/commands.py docs/commands.md
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from berg.cli import cli

HEAD = """# Commands

```bash
berg --help
berg COMMAND --help
berg --format agent COMMAND  # without colors, questions and tables that are drawn: agents.md
```

What `--help` prints, without options that mean the same everywhere: `--json` prints JSON ([json.md](json.md)), `-y` answers
questions with yes, `-h` helps. `berg devbox` and `berg rerun` have all options of `berg run`. `make docs` writes this page.
"""
COMMON = {"--help", "--json", "--yes"}
WIDTH = 100


def commands(command: click.Command, parent: click.Context, name: str) -> Iterator[click.Context]:
    """A context for a command, or for each command of a group."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    if not isinstance(command, click.Group):
        yield context
        return
    for child in command.list_commands(context):
        found = command.get_command(context, child)
        if found and not found.hidden:
            yield from commands(found, context, child)


def key(option: click.Parameter) -> str:
    return f"{option.opts} {getattr(option, 'help', '')}"


def text(context: click.Context, known: set[str]) -> str:
    """The help of a command, without the options that the page has explained."""
    command = context.command
    options = [each for each in command.params if isinstance(each, click.Option)]
    shown = [each for each in options if not {*each.opts} & COMMON and key(each) not in known]
    rest = [each for each in command.params if each not in options]
    short = click.Command(
        command.name, help=command.help, params=[*rest, *shown], add_help_option=False
    )
    help = short.get_help(click.Context(short, info_name=context.info_name, terminal_width=WIDTH))
    _, _, body = help.partition("\n\n")  # without the line of the usage
    return body.replace("\nOptions:\n", "\n").rstrip()


def page() -> str:
    parts, of_run = [HEAD], set[str]()
    for context in commands(cli, click.Context(cli), "berg"):
        name = context.info_name
        usage = [context.command_path, *context.command.collect_usage_pieces(context)[1:]]
        known = of_run if name in ("devbox", "rerun") else set[str]()
        parts.append(f"## {' '.join(usage)}\n\n```text\n{text(context, known)}\n```\n")
        if name == "run":
            of_run = {key(each) for each in context.command.params}
    return re.sub(r" +$", "", "\n".join(parts), flags=re.M)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
