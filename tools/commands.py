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

What `--help-all` and `--help` print, without `[OPTIONS]`, `--help`, `--json` (which commands that print data have,
[json.md](json.md)) and `-y` (which commands that ask have). `berg devbox` and `berg rerun` have the options of `berg run`
that make sense for them; other commands name those that they share with it. `make docs` writes this page from the
docstrings in `berg/commands/`.
"""
WIDTH = 100
LIKE_RUN = ("devbox", "rerun")  # commands whose other options are those of berg run
SHARED = "berg.shared"
# options that the head of the page explains
COMMON = re.compile(
    r"^ +(-h, --help +Show this message and exit|--json +Print JSON|-y, --yes +Do not ask)\.\n?",
    re.M,
)


def walk(command: click.Command, name: str, parent: click.Context) -> Iterator[click.Context]:
    """A context for a command, or for each command of a group."""
    shared: list[str] = []
    if not isinstance(command, click.Group) and name != "run":
        command, shared = without_those_of_run(command, name)
    context = click.Context(command, info_name=name, parent=parent)
    context.meta[SHOW_ALL] = True
    context.meta[SHARED] = "" if name in LIKE_RUN else ", ".join(shared)
    if not isinstance(command, click.Group):
        yield context
        return
    for child in command.list_commands(context):
        if not command.commands[child].hidden:
            yield from walk(command.commands[child], child, context)


def without_those_of_run(command: click.Command, name: str) -> tuple[click.Command, list[str]]:
    """Return a command without the options that berg run explains, and the names of these."""
    of_run = {each.opts[-1]: getattr(each, "help", "") for each in cli.commands["run"].params}
    del of_run["--json"]  # the head of the page explains it
    rest, shared = [], []
    for each in command.params:
        flag = each.opts[-1]
        if flag in of_run and (name in LIKE_RUN or of_run[flag] == getattr(each, "help", "")):
            shared.append(flag)
        else:
            rest.append(each)
    return click.Command(name, help=command.help, params=rest), shared


def page() -> str:
    root = click.Context(cli, info_name="berg", terminal_width=WIDTH, **cli.context_settings)
    parts = [HEAD]
    for heading, names in SECTIONS.items():
        parts.append(f"## {heading}\n")
        for name in names:
            for each in walk(cli.commands[name], name, root):
                pieces = each.command.collect_usage_pieces(each)[1:]  # without [OPTIONS]
                usage = " ".join([each.command_path, *pieces])
                _, _, text = each.get_help().partition("\n\n")  # without the line of the usage
                text = COMMON.sub("", text).removesuffix("Options:\n").rstrip()
                if shared := each.meta[SHARED]:
                    text += f"\n\n  As for berg run: {shared}"
                parts.append(f"### {usage}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
