"""The command line: imports the module of the command that is called, and prints its errors."""

import gc
import importlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import click

from berg import BergError, __version__, plain


def main() -> None:
    gc.set_threshold(100_000)  # imports make many objects, none of which is garbage
    sys.setswitchinterval(0.001)  # an answer that arrives should not wait long for an import
    sys.unraisablehook = interrupt_again
    open_streams()
    try:
        sys.exit(cli.main(standalone_mode=False))
    except (Exception, KeyboardInterrupt) as error:
        from berg.commands.terminal import show_error

        status = show_error(error)
        drop_output()
        sys.exit(status)
    finally:
        gc.freeze()  # Python's last collection would take a third of a second after a submit


def interrupt_again(what: Any) -> None:
    """Repeat a Ctrl-C that came while Python ran what cannot raise, such as a __del__."""
    if what.exc_type is KeyboardInterrupt:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(what)


def open_streams() -> None:
    """Replace closed standard streams by the null device: the next file that is opened would get
    their number, and what is printed.
    """
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


# Heading in `berg --help` -> its commands: name -> its module, and the first sentence of its help.
SECTIONS = {
    "Jobs": {
        "run": ("jobs", "Run CMD on its own machine, with your repository."),
        "list": ("jobs", "Show machines and recent jobs with their states."),
        "show": ("jobs", "Show all about one job: state, machine, code, results, log."),
        "rerun": ("jobs", "Run a job again, as a new one with a name of its own."),
        "diff": ("jobs", "Show the differences between two jobs, in code and all else."),
        "kill": ("jobs", "End jobs and delete their machines."),
        "rm": ("jobs", "Delete finished jobs: results, logs and states."),
    },
    "Devboxes": {
        "devbox": ("jobs", "Start an interactive machine with your repository."),
        "stop": ("machines", "Turn devboxes off, and keep their disks."),
        "start": ("machines", "Turn stopped devboxes on again."),
        "ssh": ("machines", "Log in to the machine NAME, or run CMD there."),
        "open": ("machines", "Open Jupyter of a machine in the browser, or an editor."),
        "sync": ("machines", "Push the working tree to machines, again on every change."),
    },
    "Machines": {
        "cluster": ("machines", "Create Kubernetes clusters, whose pods run jobs."),
        "image": ("setup", "Create disk or container images with what the repo needs."),
        "reap": ("setup", "Find what was left behind, and delete it after asking."),
    },
    "Data": {
        "fetch": ("results", "Download results to this computer; only what changed."),
        "data": ("results", "Keep data sets in the bucket, for jobs to use."),
    },
    "Watching": {
        "log": ("results", "Print the whole log of a job, also after its machine is gone."),
        "tail": ("results", "Follow the log of a job until it ends, as `berg log -f`."),
        "wait": ("watch", "Wait until jobs are finished."),
        "top": ("watch", "Show how busy your machines are, live."),
        "tensorboard": ("watch", "Show metrics, event files and profiles of jobs in TensorBoard."),
        "profile": ("watch", "Profile a running command."),
        "page": ("watch", "Show jobs, logs, charts and results in a browser."),
        "dashboard": ("watch", "Keep a dashboard of berg's machines in Cloud Monitoring."),
    },
    "Money": {
        "gpus": ("setup", "Show GPU types or TPUs: their zones, quota left, prices."),
        "prices": ("money", "Compare the hourly prices of GPUs, on demand and otherwise."),
        "costs": ("money", "Show what jobs cost by week and user, and what costs money now."),
        "purse": ("money", "Show purses: what jobs may cost together, and what is left."),
    },
    "Setup": {
        "init": ("setup", "Set berg up: find what it needs, and save the answers."),
        "doctor": ("setup", "Check everything that berg needs, and show how to fix it."),
        "config": ("setup", "Show and change the settings."),
        "local": ("setup", "Manage the embedded cloud on this computer."),
        "skill": ("setup", "Print or install the page that teaches coding agents berg."),
    },
}


class Commands(Mapping[str, click.Command]):
    """All commands by name; looking one up imports it."""

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

    sections = SECTIONS

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Exit quietly when stdout is closed, for example by `head`."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if not is_unread():
                raise BergError(
                    "a program or server closed its connection. Try again; BERG_DEBUG=1 shows where"
                ) from None
        drop_output()
        sys.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))  # so that the sections line up
        for heading, commands in self.sections.items():
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
@click.option(
    "--format",
    "wanted",
    type=click.Choice([plain.HUMAN, plain.AGENT]),
    envvar="BERG_FORMAT",
    help="How to print; agent is for programs.  [default: agent when a coding agent runs berg]",
)
@click.pass_context
def cli(ctx: click.Context, wanted: str | None) -> None:
    """Run machine-learning experiments on Google Cloud accelerators; keep the results in a bucket.

    \b
    berg init --local                        # try it without Google
    berg run "python train.py --lr=0.1"      # from a git repo
    berg list

    For completion in the shell: eval "$(_BERG_COMPLETE=bash_source berg)"
    """
    if wanted:
        os.environ["BERG_FORMAT"] = wanted  # also for processes that it starts
    ctx.color = plain.color()


def is_unread() -> bool:
    """Return whether stdout has no reader any more."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in look.poll(0))


def drop_output() -> None:
    """Drop output that cannot be written, which Python would report when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
