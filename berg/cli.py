"""The command line: what it is called with goes to a command, and an error ends in one sentence.

Which commands there are, where each stands, and what `berg --help` says of it.

A command's module is imported when somebody asks for the command itself, so that one command does
not wait for the others' imports. A command's sentence here is the first one of its docstring.
"""

import gc
import importlib
import io
import os
import select
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from berg import BergError, __version__


def main() -> None:
    """Run the command line; every error ends in one sentence, and in a traceback only with
    BERG_DEBUG=1.
    """
    gc.set_threshold(100_000)  # imports make many objects, none of which is garbage
    sys.setswitchinterval(0.001)  # who got an answer need not wait long for who imports
    fill_streams()
    try:
        sys.exit(
            cli.main(standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
        )
    except (Exception, KeyboardInterrupt) as error:
        status = show(error)
        drop_output()
        sys.exit(status)
    finally:
        # At its end python looks at all objects for garbage, a third of a second after a submit.
        gc.freeze()


def fill_streams() -> None:
    """Open the null device for standard streams that are closed: the next file that is opened would
    have their number, and take what is printed.
    """
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def show(error: Exception | KeyboardInterrupt) -> int:
    """Say what went wrong, and return the exit status that goes with it."""
    from berg.commands.terminal import describe, interrupted, is_unanswered, say, show_traceback

    if isinstance(error, click.UsageError):
        error.show(shown := io.StringIO())
        say(shown.getvalue().rstrip())
        return 2
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        say(interrupted(error))
        return 1 if is_unanswered(error) else 130
    show_traceback()
    if isinstance(error, click.ClickException):
        error.show()
    else:
        BergError(describe(error)).show()
    return 1


# Heading in `berg --help` -> its commands: name -> its module in this folder, and its sentence,
# which stands on one line.
SECTIONS = {
    "Jobs": {
        "run": ("run", "Run CMD on its own machine, with your repository."),
        "list": ("listing", "Show machines and recent jobs with what became of them."),
        "show": ("records", "Show all about one job: state, machine, code, results, log."),
        "rerun": ("records", "Run a job again, as a new one with a name of its own."),
        "diff": ("records", "Show what differs between two jobs, in code and all else."),
        "kill": ("run", "End jobs and delete their machines."),
        "rm": ("records", "Delete jobs that are over: results, logs and states."),
    },
    "Devboxes": {
        "devbox": ("run", "Start an interactive machine with your repository."),
        "stop": ("machines", "Turn devboxes off, and keep their disks."),
        "start": ("machines", "Turn devboxes on again that were stopped."),
        "ssh": ("machines", "Log in to the machine NAME, or run CMD there."),
        "open": ("machines", "Open Jupyter of a machine in the browser here, or an editor."),
        "sync": ("machines", "Push the working tree to machines, again on every change."),
    },
    "Machines": {
        "cluster": ("cluster", "Make clusters of Kubernetes, whose pods are machines for jobs."),
        "image": ("setup", "Make images of disks or containers with what the repo needs."),
        "reap": ("setup", "Find what was left behind, and delete it after asking."),
    },
    "Data": {
        "fetch": ("results", "Bring results to this computer; only what changed."),
        "data": ("results", "Keep data sets in the bucket, for jobs to take along."),
    },
    "Watching": {
        "log": ("results", "Print the whole log of a job, also after its machine is gone."),
        "tail": ("results", "Follow the log of a job until it ends, as `berg log -f`."),
        "wait": ("watch", "Wait until jobs are over."),
        "top": ("watch", "Show how busy my machines are, live."),
        "tensorboard": ("watch", "Show metrics, event files and profiles of jobs in TensorBoard."),
        "profile": ("watch", "Take a profile of a command that runs."),
        "page": ("watch", "Show jobs, logs, charts and results in a browser."),
        "dashboard": ("watch", "Keep a dashboard of berg's machines in Cloud Monitoring."),
    },
    "Money": {
        "gpus": ("setup", "Show GPU types or TPUs: their zones, quota left, prices."),
        "prices": ("setup", "Compare what GPUs cost an hour, on demand and otherwise."),
        "costs": ("setup", "Show what jobs cost by week and user, and what costs money now."),
    },
    "Setup": {
        "init": ("setup", "Set berg up: find what it needs, and keep the answers."),
        "doctor": ("setup", "Check everything that berg needs, and show how to fix it."),
        "config": ("setup", "Look at the settings, and change them."),
        "local": ("setup", "Look after the embedded cloud on this computer."),
    },
}


class Commands(Mapping[str, click.Command]):
    """All commands by name, each imported when it is looked up."""

    modules = {name: module for each in SECTIONS.values() for name, (module, _) in each.items()}

    def __getitem__(self, name: str) -> click.Command:
        """Return a command; raises KeyError if there is none of this name."""
        module = importlib.import_module(f"berg.commands.{self.modules[name]}")
        commands: tuple[click.Command, ...] = module.COMMANDS
        return next(command for command in commands if command.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


class Sections(click.Group):
    """A group whose help shows its commands in sections, with the first sentence of each."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Who reads no more of what it prints, as `head` does, ends it well; click
        would say that it failed.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if not is_unread():
                raise BergError(
                    "a program or a server that berg was sending to is gone. Try again; "
                    "BERG_DEBUG=1 shows where"
                ) from None
        drop_output()
        sys.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))  # so that the sections line up
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), sentence) for name, (_, sentence) in commands.items()]
                )


@click.group(
    cls=Sections,
    commands=Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="berg")
def cli() -> None:
    """Run machine-learning experiments on Google Cloud accelerators; keep the results in a bucket.

    \b
    berg init --local                        # try it without Google
    berg run "python train.py --lr=0.1"      # from a git repo
    berg list

    Names complete in the shell after: eval "$(_BERG_COMPLETE=bash_source berg)"
    """


def is_unread() -> bool:
    """Return whether nobody can read any more what is printed."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in look.poll(0))


def drop_output() -> None:
    """Forget what was printed and cannot be written, or python would complain of it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
