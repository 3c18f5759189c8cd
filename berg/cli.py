"""The command line: which module has which command, and what is printed for an error."""

import contextlib
import difflib
import importlib
import itertools
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from berg import BergError, __version__, clients, features, terminal

RUN = {  # command -> its module, which is imported when it runs, and what it does
    "run": ("run", "Run a command on a machine of its own"),
    "devbox": ("run", "Start a machine to work on"),
    "rerun": ("run", "Run a job again, with other options"),
}
JOBS = {
    "list": ("jobs", "Show machines and recent jobs"),
    "show": ("jobs", "Show all about a job"),
    "wait": ("jobs", "Wait until jobs have ended"),
    "log": ("logs", "Print what a job has printed"),
    "tail": ("logs", "Follow what a job prints"),
    "fetch": ("fetch", "Download results"),
    "kill": ("end", "End jobs and delete their machines"),
    "rm": ("end", "Delete results, logs and states of jobs"),
}
MACHINES = {
    "ssh": ("ssh", "Open a shell on a machine, or run a command there"),
    "sync": ("sync", "Send the working tree, again on every change"),
    "open": ("ssh", "Bring a port of a machine to this computer"),
    "stop": ("end", "Switch devboxes off; their disks stay"),
    "start": ("end", "Switch devboxes on again"),
}
SETUP = {
    "init": ("init", "Choose project and bucket"),
    "doctor": ("init", "Check all that jobs need"),
    "config": ("init", "Show and change the settings"),
    "local": ("init", "The embedded cloud of this computer"),
    "completion": ("init", "Let the shell complete commands and names"),
}
SECTIONS = {
    "Run": RUN,
    "Jobs": JOBS,
    "Machines": MACHINES,
    "Look": {
        name: (f"clients.{module}", does) for name, (module, does) in clients.COMMANDS.items()
    },
    "Prepare": {
        name: (f"features.{module}", does) for name, (module, does) in features.COMMANDS.items()
    },
    "Set up": SETUP,
}
COMMANDS = {name: module for each in SECTIONS.values() for name, (module, _) in each.items()}

OTHERS = {  # what other tools call it -> Berg's command
    "cancel": "kill", "down": "kill", "terminate": "kill", "delete": "kill",
    "launch": "run", "submit": "run", "ls": "list", "status": "list", "ps": "list", "jobs": "list",
    "queue": "list", "describe": "show", "logs": "log", "exec": "ssh", "attach": "ssh",
    "download": "fetch", "pull": "fetch",
}  # fmt: skip


OPTIONS = {  # what other tools call it -> Berg's way
    "-p": "For a port of a job's machine: berg open NAME 8080",
    "-v": "For data: --data NAME or --mount NAME",
    "-e": "For a variable: --env NAME=VALUE",
    "-d": "It returns at once anyway; to wait: --wait or --tail",
    "-i": "For a shell: berg devbox, then berg ssh NAME",
    "-w": "CMD runs in the folder where you are",
    "--rm": "A job's machine is deleted at its end",
    "--gpu": "Say how many and which: -g 1 -t l4",
    "--nodes": "For several machines: -m 2 --each",
    "--memory": "For more memory: --machine-type n2-highmem-8",
    "--partition": "For a kind of GPU: -t TYPE; they are listed by: berg gpus",
    "--time": "For a limit: --max-hours 2",
}  # fmt: skip
OPTIONS |= {"--publish": OPTIONS["-p"], "--port": OPTIONS["-p"], "--ports": OPTIONS["-p"]}
OPTIONS |= {"--volume": OPTIONS["-v"], "--detach": OPTIONS["-d"], "--workdir": OPTIONS["-w"]}
OPTIONS |= {"--interactive": OPTIONS["-i"], "--accelerators": OPTIONS["--gpu"]}
OPTIONS |= {"--num-nodes": OPTIONS["--nodes"], "--num_nodes": OPTIONS["--nodes"]}
OPTIONS |= {"--gres": OPTIONS["--gpu"], "--mem": OPTIONS["--memory"], "--cloud": "It is Google's"}
OPTIONS |= {"--use-spot": "For Spot machines: --spot", "--preemptible": "For Spot machines: --spot"}
STARTERS = {"python", "python3", "torchrun", "accelerate", "deepspeed", "bash", "sh", "uv"}


class Berg(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), does) for name, (_, does) in commands.items()]
                formatter.write_dl(rows)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        options = click.Command.shell_complete(self, context, incomplete)
        commands = [(name, does) for each in SECTIONS.values() for name, (_, does) in each.items()]
        found = [CompletionItem(name, help=does) for name, does in commands]
        return [each for each in found if each.value.startswith(incomplete)] + options

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"berg.{COMMANDS[name]}")
        command: click.Command = getattr(module, f"{name}_", None) or getattr(module, name)
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = words[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = (
                [OTHERS[name]] if name in OTHERS else difflib.get_close_matches(name, COMMANDS, 1)
            )
            hint = f"Did you mean: berg {near[0]}" if near else "See them: berg --help"
            context.fail(f"No such command {terminal.clean(name)!r}. {hint}")
        return super().resolve_command(context, words)


def show_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    import subprocess
    from importlib import metadata

    folder, found = Path(__file__).parents[1], __version__
    if (folder / ".git").exists():
        git = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        found += f"+g{subprocess.run(git, capture_output=True, text=True).stdout.strip()}"
    else:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.version("berg")
    click.echo(f"berg, version {found}")
    context.exit()


@click.group(
    cls=Berg,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="berg COMMAND --help has options and examples.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=show_version,
    help="Show the version, and the commit that it is of.",
)
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
        name = str(context.invoked_subcommand)
        command = importlib.import_module("berg.run").__dict__[name]
        context.default_map = {name: defaults(Path.cwd(), command)}


# Variables by which git names its repository to a hook. Berg goes by the folder, and uses more than one.
GIT_PLACES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_LITERAL_PATHSPECS"),
)


def main() -> None:
    """Exit codes: the command's for --wait and --tail, 1 for an error, 2 for wrong usage, 130."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="replace"))
    for variable in GIT_PLACES:
        os.environ.pop(variable, None)
    # What Google's libraries say of pythons whose support has ended is nothing that the command did.
    warnings.filterwarnings("ignore", category=FutureWarning, module="google")
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error = explained(error)
        if is_for_json():
            sys.exit(tell(error.format_message(), error.exit_code))
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        leave(tell("Interrupted", 130))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        leave(report(error))


def leave(code: int) -> NoReturn:
    """End at once: other threads may wait for an answer, for minutes."""
    with contextlib.suppress(OSError, AttributeError):  # a full disk; that is said already
        sys.stdout.flush()
    os._exit(code)


def explained(error: click.ClickException) -> click.ClickException:
    """The same error with what the user may have meant."""
    hint, context = "", getattr(error, "ctx", None)
    is_run = context is not None and context.info_name == "run"
    if is_run and (STARTERS & {*sys.argv} or "extra argument" in error.format_message()):
        hint = 'Put CMD in quotes: berg run "python train.py --lr 0.1"'
    elif isinstance(error, click.NoSuchOption):
        hint = OPTIONS.get(error.option_name, "")
    if not hint:
        return error
    return click.UsageError(f"{error.message.rstrip('.')}. {hint}", context)


def is_for_json() -> bool:
    """Whether the command line has --json, also one that is wrong."""
    return "--json" in itertools.takewhile(lambda word: word != "--", sys.argv[1:])


def tell(text: str, code: int) -> int:
    """Print an error as the user wants to read it, and return the exit code."""
    if is_for_json():
        click.echo(json.dumps({"error": terminal.clean(text), "exit_code": code}), err=True)
    else:
        terminal.say(text if code == 130 else f"Error: {text}")
    return code


def report(error: Exception) -> int:
    """Print an error as a sentence, if it is one of the user's or of Google's."""
    if isinstance(error, BergError):
        return tell(str(error), 1)
    from berg import google
    from berg.config import Config

    config: Any = None
    with contextlib.suppress(BergError):
        config = Config.read()
    text = google.sentence(error, config)
    if text is None and isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'this computer'}: {error.strerror}"
    if text is None:
        raise error
    return tell(text, 1)
