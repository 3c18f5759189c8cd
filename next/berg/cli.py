"""The command line: which module has which command, and what is printed for an error."""

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from berg import BergError, __version__, clients, features, terminal

CORE = {  # command -> its module; a module is imported when its command runs
    "run": "run", "devbox": "run", "rerun": "run",
    "list": "jobs", "show": "jobs", "wait": "jobs", "kill": "jobs", "rm": "jobs",
    "stop": "jobs", "start": "jobs",
    "log": "logs", "tail": "logs",
    "fetch": "fetch",
    "ssh": "ssh", "open": "ssh", "sync": "sync",
    "init": "init", "doctor": "init", "config": "init", "local": "init", "completion": "init",
}  # fmt: skip
COMMANDS = {
    **CORE,
    **{name: f"features.{module}" for name, module in features.COMMANDS.items()},
    **{name: f"clients.{module}" for name, module in clients.COMMANDS.items()},
}


class Berg(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"berg.{COMMANDS[name]}")
        command: click.Command = getattr(module, f"{name}_", None) or getattr(module, name)
        return command


@click.group(
    cls=Berg, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__)
@click.option(
    "--format", "reader", type=click.Choice(["human", "agent"]), help="Whom the output is for."
)
@click.pass_context
def cli(context: click.Context, reader: str | None) -> None:
    """Run experiments on Google Cloud machines, and keep their results in a bucket."""
    from berg.options import defaults

    if reader:
        os.environ["BERG_FORMAT"] = reader
    context.color = False if terminal.is_for_program() else None

    if context.invoked_subcommand in ("run", "devbox"):
        context.default_map = {str(context.invoked_subcommand): defaults(Path.cwd())}


def main() -> None:
    """Exit codes: the command's for --wait and --tail, 1 for an error, 2 for wrong usage, 130."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        terminal.say("Interrupted")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        sys.exit(report(error))


def report(error: Exception) -> int:
    """Print an error as a sentence, if it is one of the user's or of Google's."""
    if isinstance(error, BergError):
        terminal.say(f"Error: {error}")
        return 1
    from berg import google
    from berg.config import Config

    config: Any = None
    with contextlib.suppress(BergError):
        config = Config.read()
    text = google.sentence(error, config)
    if text is None:
        raise error
    terminal.say(f"Error: {text}")
    return 1
