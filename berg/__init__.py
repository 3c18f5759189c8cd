"""Run machine-learning experiments on Google Cloud accelerators, results kept in a bucket."""

import re
import sys
import warnings
from typing import IO, TYPE_CHECKING, Any

import click

from berg import plain

__all__ = ["BergError", "Job", "report", "run"]
__version__ = "0.1.0"
QUOTED = re.compile(r'"[^" ]+ [^"]{1,50}"|`[^`]{1,60}`')  # stays on one line
NO_BREAK = "\N{NO-BREAK SPACE}"
COMMANDS = ("gcloud ", "sudo ", "berg ", "$ ")  # begin a line that the user types
# Google's libraries would print with every command how long they support this Python.
warnings.filterwarnings(
    "ignore", r"\s*You are using a (non-supported )?Python version", FutureWarning
)


class BergError(click.ClickException):
    """An error of the user's: a message that names the thing and the next step."""

    def show(self, file: IO[Any] | None = None) -> None:
        text = wrapped(f"berg: {self.message}", sys.stderr)
        # click reads ctx.color only while a command runs
        click.secho(text, fg="red", err=True, color=plain.color())


def wrapped(text: str, stream: IO[str], indent: int = 0) -> str:
    """Return a text wrapped at the width of a stream's terminal, without control characters.

    Commands stay on one line, to be copied. Continued lines are indented like their first one, and
    by `indent` at least.
    """
    import textwrap  # few commands need it

    room, lines = plain.columns(stream), []
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


if not TYPE_CHECKING:  # else any name would pass the type check

    def __getattr__(name: str) -> Any:
        """Import berg.run, berg.Job and berg.report when they are used: it takes long."""
        modules = {"run": "api", "Job": "api", "report": "machine.program.berg"}
        if name not in modules:
            raise AttributeError(f"module 'berg' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"berg.{modules[name]}"), name)
