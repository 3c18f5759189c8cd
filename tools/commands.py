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
that make sense for them. Options are explained once, and named where they come again. `make docs` writes this page from
the docstrings in `berg/commands/`.
"""
WIDTH = 100
LIKE_RUN = ("devbox", "rerun")  # commands whose other options are those of berg run
SHARED = "berg.shared"
# options that the head of the page explains
COMMON = re.compile(
    r"^ +(-h, --help +Show this message and exit|--json +Print JSON|-y, --yes +Do not ask)\.\n?",
    re.M,
)


Seen = dict[tuple[str, str], str]


def walk(
    command: click.Command, name: str, parent: click.Context, seen: Seen
) -> Iterator[click.Context]:
    """A context for a command, or for each command of a group."""
    shared: dict[str, list[str]] = {}
    if not isinstance(command, click.Group):
        command, shared = without_explained(command, name, f"{parent.command_path} {name}", seen)
    context = click.Context(command, info_name=name, parent=parent)
    context.meta[SHOW_ALL] = True
    context.meta[SHARED] = "; ".join(f"{of}: {', '.join(flags)}" for of, flags in shared.items())
    if not isinstance(command, click.Group):
        yield context
        return
    for child in command.list_commands(context):
        if not command.commands[child].hidden:
            yield from walk(command.commands[child], child, context, seen)


def without_explained(
    command: click.Command, name: str, path: str, seen: Seen
) -> tuple[click.Command, dict[str, list[str]]]:
    """Return a command without the options that the page has explained for earlier commands, and
    the names of these by command; those of berg run are not named for what is like it.
    """
    rest: list[click.Parameter] = []
    shared: dict[str, list[str]] = {}
    of_run = {option for each in cli.commands["run"].params for option in each.opts}
    for each in command.params:
        help = getattr(each, "help", "") or ""
        where = seen.setdefault((each.opts[-1], help), path)
        if name in LIKE_RUN and {*each.opts} & of_run:
            continue
        if where == path or not help or each.opts[-1] in ("--json", "--yes"):
            rest.append(each)
        else:
            shared.setdefault(where, []).append(each.opts[-1])
    return click.Command(name, help=command.help, params=rest), shared


def page() -> str:
    root = click.Context(cli, info_name="berg", terminal_width=WIDTH, **cli.context_settings)
    parts, seen = [HEAD], Seen()
    for heading, names in SECTIONS.items():
        parts.append(f"## {heading}\n")
        for name in names:
            for each in walk(cli.commands[name], name, root, seen):
                pieces = each.command.collect_usage_pieces(each)[1:]  # without [OPTIONS]
                usage = " ".join([each.command_path, *pieces])
                _, _, text = each.get_help().partition("\n\n")  # without the line of the usage
                text = COMMON.sub("", text).replace("\nOptions:\n", "\n").rstrip()
                if shared := each.meta[SHARED]:
                    text += f"\n\n  As for {shared}"
                parts.append(f"### {usage}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
