"""Which commands there are, where each stands, and what `berg --help` says of it.

A command's module is imported when somebody asks for the command itself, so that one command does
not wait for the others' imports. A command's sentence here is the first one of its docstring.
"""

import importlib
import os
import select
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from berg import BergError

# Heading in `berg --help` -> its commands: name -> its module in this folder, and its sentence,
# which stands on one line.
SECTIONS = {
    "Jobs": {
        "run": ("running", "Run CMD on its own machine, with your repository."),
        "list": ("listing", "Show machines and recent jobs with what became of them."),
        "show": ("records", "Show all about one job: state, machine, code, results, log."),
        "rerun": ("records", "Run a job again, as a new one with a name of its own."),
        "diff": ("records", "Show what differs between two jobs, in code and all else."),
        "kill": ("running", "End jobs and delete their machines."),
        "rm": ("records", "Delete jobs that are over: results, logs and states."),
    },
    "Devboxes": {
        "devbox": ("running", "Start an interactive machine with your repository."),
        "stop": ("power", "Turn devboxes off, and keep their disks."),
        "start": ("power", "Turn devboxes on again that were stopped."),
        "ssh": ("ssh", "Log in to the machine NAME, or run CMD there."),
        "open": ("notebook", "Open Jupyter of a machine in the browser here, or an editor."),
        "ssh-config": ("ssh", "Make ssh, scp, rsync and editors know machines by name."),
        "sync": ("ssh", "Push the working tree to machines, again on every change."),
    },
    "Machines": {
        "cluster": ("cluster", "Make clusters of Kubernetes, whose pods are machines for jobs."),
        "image": ("image", "Make images of disks or containers with what the repo needs."),
        "reap": ("setup", "Find what was left behind, and delete it after asking."),
    },
    "Data": {
        "fetch": ("results", "Bring results to this computer; only what changed."),
        "data": ("data", "Keep data sets in the bucket, for jobs to take along."),
    },
    "Watching": {
        "log": ("results", "Print the whole log of a job, also after its machine is gone."),
        "tail": ("results", "Follow the log of a job until it ends, as `berg log -f`."),
        "wait": ("watch", "Wait until jobs are over."),
        "top": ("watch", "Show how busy my machines are, live."),
        "tensorboard": ("watch", "Show metrics, event files and profiles of jobs in TensorBoard."),
        "profile": ("profile", "Take a profile of a command that runs."),
        "page": ("page", "Show jobs, logs, charts and results in a browser."),
        "dashboard": ("dashboard", "Keep a dashboard of berg's machines in Cloud Monitoring."),
    },
    "Money": {
        "gpus": ("setup", "Show GPU types or TPUs: their zones, quota left, prices."),
        "prices": ("money", "Compare what GPUs cost an hour, on demand and otherwise."),
        "costs": ("money", "Show what jobs cost by week and user, and what costs money now."),
    },
    "Setup": {
        "init": ("setup", "Set berg up: find what it needs, and keep the answers."),
        "doctor": ("setup", "Check all that berg needs, and say what mends it."),
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
