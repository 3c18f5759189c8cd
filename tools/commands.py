"""Write the help of every command to a Markdown file.

python tools/commands.py docs/commands.md
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from berg.cli import SECTIONS, cli
from berg.commands.terminal import SHOW_ALL

HEAD = """# Commands

```bash
berg --help
berg COMMAND --help          # the usual options
berg COMMAND --help-all      # all of them
```

What `--help-all` and `--help` print, without `--help` itself and `--json`, which commands that print data have
([json.md](json.md)). `berg devbox` and `berg rerun` also have the options of `berg run`
that make sense for them. `make docs` writes this page from the docstrings in `berg/commands/`.
"""
WIDTH = 100
LIKE_RUN = ("devbox", "rerun")  # commands whose other options are those of berg run
# options that the head of the page explains
COMMON = re.compile(r"^ +(-h, --help +Show this message and exit|--json +Print JSON)\.\n?", re.M)


def walk(command: click.Command, name: str, parent: click.Context) -> Iterator[click.Context]:
    """A context for a command, or for each command of a group."""
    context = click.Context(command, info_name=name, parent=parent)
    context.meta[SHOW_ALL] = True
    if name in LIKE_RUN:
        known = {option for each in cli.commands["run"].params for option in each.opts}
        options = (each for each in command.params if not known & {*each.opts})
        command = click.Command(name, help=command.help, params=[*options])
        context = click.Context(command, info_name=name, parent=parent)
    if not isinstance(command, click.Group):
        yield context
        return
    for child in command.list_commands(context):
        if not command.commands[child].hidden:
            yield from walk(command.commands[child], child, context)


def page() -> str:
    root = click.Context(cli, info_name="berg", terminal_width=WIDTH, **cli.context_settings)
    parts = [HEAD]
    for heading, names in SECTIONS.items():
        parts.append(f"## {heading}\n")
        for name in names:
            for each in walk(cli.commands[name], name, root):
                usage = " ".join([each.command_path, *each.command.collect_usage_pieces(each)])
                _, _, text = each.get_help().partition("\n\n")  # without the line of the usage
                text = COMMON.sub("", text).removesuffix("Options:\n").rstrip()
                parts.append(f"### {usage}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
