"""Run machine-learning experiments on Google Cloud accelerators, results kept in a bucket."""

import os
import re
import sys
import warnings
from typing import IO, TYPE_CHECKING, Any

import click

from berg import plain

__version__ = "0.1.0"
QUOTED = re.compile(r'"[^" ]+ [^"]{1,50}"|`[^`]{1,60}`')  # what is not to be broken
NO_BREAK = "\N{NO-BREAK SPACE}"
COMMANDS = ("gcloud ", "sudo ", "berg ", "$ ")  # a line that begins so is to be typed
# Google's libraries say with every command how long they will support this python.
warnings.filterwarnings(
    "ignore", r"\s*You are using a (non-supported )?Python version", FutureWarning
)


class BergError(click.ClickException):
    """What went wrong, for the person at the terminal: the thing by name, then the next step."""

    def show(self, file: IO[Any] | None = None) -> None:
        # click knows of it only while a command runs
        color = False if os.environ.get("NO_COLOR") else None
        click.secho(wrapped(f"berg: {self.message}", sys.stderr), fg="red", err=True, color=color)


def columns(stream: IO[str]) -> int:
    """How wide the terminal behind a stream is, or what COLUMNS says; 0 for a pipe, which has no
    end.
    """
    try:
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def wrapped(text: str, stream: IO[str], indent: int = 0) -> str:
    """A text whose lines end between words where the terminal would end them inside; commands stay
    to be copied.

    What would steer the terminal is left out.
    What goes on begins as far to the right as its line, and `indent` at least.
    """
    import textwrap  # few commands need it

    room, lines = columns(stream), []
    for line in plain.printable(text).split("\n"):
        start = " " * max(indent, len(line) - len(line.lstrip()))
        if not room or len(click.unstyle(line)) <= room or line.lstrip().startswith(COMMANDS):
            lines.append(line)
        else:
            how = textwrap.TextWrapper(
                max(room, 40), "", start, break_long_words=False, break_on_hyphens=False
            )
            kept = QUOTED.sub(lambda found: found[0].replace(" ", NO_BREAK), line)
            lines += [each.replace(NO_BREAK, " ") for each in how.wrap(kept)]
    return "\n".join(lines)


if not TYPE_CHECKING:  # else any name would seem to be here

    def __getattr__(name: str) -> Any:
        """berg.run and berg.Job, whose modules take long to import, and berg.report, only for who
        uses them.
        """
        modules = {"run": "api", "Job": "api", "report": "machine.program.berg"}
        if name not in modules:
            raise AttributeError(f"module 'berg' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"berg.{modules[name]}"), name)
