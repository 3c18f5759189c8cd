"""The commands that lead to machines: ssh, sync.

The commands that turn devboxes off and on again: stop, start.

The command that opens a machine in the browser or in an editor: open.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from berg import BergError, computer, config, plain
from berg.commands.terminal import (
    complete_names,
    describe,
    name_argument,
    ready,
    say,
    show_traceback,
)

if TYPE_CHECKING:
    from berg.laptop.ssh import NoServer


@click.command()
@name_argument()
@click.argument("command", metavar="[-- CMD…]", nargs=-1)
@click.option(
    "-L",
    "forwards",
    multiple=True,
    metavar="PORT:HOST:PORT",
    help="Forward a port; may be repeated.",
)
@click.option("-N", "no_command", is_flag=True, help="Only forward ports.")
@click.option("-t", "terminal", is_flag=True, help="Give CMD a terminal.")
@click.option("-A", "agent", is_flag=True, help="Let the machine use the keys of your ssh agent.")
@click.option(
    "--worker",
    type=click.IntRange(0),
    metavar="N",
    help="The machine of a cluster whose BERG_NODE_RANK is N.",
)
@click.option(
    "--all",
    "everywhere",
    is_flag=True,
    help="Run CMD on every machine; each line begins with its name.",
)
@click.option("--dry-run", is_flag=True, help="Print the ssh command, ready to be run, and stop.")
def ssh(
    name: str, command: tuple[str, ...], worker: int | None, everywhere: bool, **options: Any
) -> None:
    """Log in to the machine NAME, or run CMD there.

    NAME is a machine, a job, or a cluster, whose first machine is meant; it is waited for while it
    boots. This is plain OpenSSH with the key that gcloud uses, too, and without ~/.ssh/config; it
    exits with the exit code of CMD. Its words are joined by blanks and read by the shell of the
    machine. With --all the exit code is that of the first machine, in the order of the machines, on
    which CMD failed.

    \b
    berg ssh my-devbox
    berg ssh my-devbox -L 6006:localhost:6006 -N     # TensorBoard on http://localhost:6006
    berg ssh my-devbox -- nvidia-smi
    berg ssh my-slice --worker 3
    berg ssh my-slice --all -- uptime
    tar c data | berg ssh my-devbox -- tar x -C /root
    """
    settings, name = ready(name)
    from berg.laptop import ssh

    if everywhere:
        if not command or worker is not None or any(options.values()):
            raise click.UsageError(
                "--all takes a command and no other option: berg ssh NAME --all -- CMD"
            )
        sys.exit(ssh.run_everywhere(settings, name, list(command), say, plain.echo))
    if worker is not None:
        name = ssh.worker(settings, name, worker, say)
    try:
        target = ssh.find_target(settings, name, say)
    except ssh.NoServer as error:
        needs_server = options["forwards"] or options["no_command"] or options["agent"]
        if not error.shell or needs_server:
            raise
        go_in_without_server(error, command, options["terminal"])
    if "start-iap-tunnel" in target.proxy and not target.address:
        account = computer.gcloud_account() or "the one that `gcloud auth list` shows"
        say(f"Through Identity-Aware Proxy, with gcloud's account: {account}")
    words = ssh.command(settings, target, ssh_flags(**options), list(command))
    if options["dry_run"]:
        plain.echo(shlex.join(words))
        return
    for forward in options["forwards"]:
        ssh.check_port(forward)
    os.execv(ssh.require("ssh"), words)


def ssh_flags(
    forwards: tuple[str, ...], no_command: bool, terminal: bool, agent: bool, dry_run: bool
) -> list[str]:
    """Return the options of OpenSSH for those of `berg ssh`; a dry run needs the same ones."""
    flags = []
    for flag, is_given in (("-N", no_command), ("-t", terminal), ("-A", agent)):
        if is_given:
            flags.append(flag)
    for forward in forwards:
        flags += ["-L", forward]
    if forwards:
        flags += ["-o", "ExitOnForwardFailure=yes"]
    return flags


def go_in_without_server(error: "NoServer", command: tuple[str, ...], terminal: bool) -> NoReturn:
    """Become the program that opens a shell in a pod, or runs the command there."""
    say(f"{error.message}. Going in without it")
    program = "exec bash -l || exec sh"
    if command:
        program = " ".join(command)
    options = []
    if terminal or not command:
        options = ["--tty"]
    os.execv(error.shell[0], [*error.shell, *options, "--", "sh", "-c", program])


def confirms(question: str) -> bool:
    """Return whether somebody at the terminal says yes."""
    return sys.stdin.isatty() and click.confirm(question, default=True, err=True)


@click.command()
@name_argument()
@click.option("--once", is_flag=True, help="Push once, and stop.")
def sync(name: str, once: bool) -> None:
    """Push the working tree to machines, again on every change.

    It goes to all machines of NAME, to /root/code/<repo>, where the command runs, until Ctrl-C.
    What git would add travels: tracked files, and untracked ones that are not ignored. What is
    deleted here is deleted there. Ignored files on the machines, and what was made there, stay.

    \b
    berg devbox -n my-devbox
    berg sync my-devbox
    berg sync my-devbox --once && berg ssh my-devbox -- "cd code/digits && python train.py"
    """
    settings, name = ready(name)
    from berg.laptop import sync as pushing

    try:
        pushing.sync(settings, name, Path.cwd(), say, once)
    except KeyboardInterrupt:
        if once:
            raise
        say("Stopped; what was pushed stays on the machines")


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--now", is_flag=True, help="At once, without waiting for the last results.")
def stop(names: tuple[str, ...], now: bool) -> None:
    """Turn devboxes off, and keep their disks.

    What runs on a box ends, its last results go to the bucket, then its machine is off: it costs
    its disk alone. Files, installed packages, name and ssh host key stay. Nothing deletes a box
    that is off by itself: berg reap offers it after 14 days (the setting max_stopped_days).

    \b
    berg stop box
    berg start box
    """
    settings = config.load_ready()
    from berg.laptop import power

    def stopped(name: str) -> str:
        return power.stop(settings, name, now, say)

    sys.exit(for_each(settings, names, stopped))


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option(
    "--move", is_flag=True, help="Where its zone has no room, bring its disk to another zone."
)
@click.option(
    "--rescue", is_flag=True, help="Only for login: without installation, worker and checks."
)
def start(names: tuple[str, ...], move: bool, rescue: bool) -> None:
    """Turn devboxes on again that were stopped.

    Waits until they answer. The disk is as it was, what is installed is not installed again, and
    --max-hours starts again. Where the zone has no room, Google says so, and the box stays as it
    is; with --move its disk is copied to a machine like it in another zone of the region, by a
    snapshot. The machine here is deleted when the other one answers.

    \b
    berg start box
    berg start box --move
    berg start box --rescue
    berg ssh box
    """
    settings = config.load_ready()
    from berg.laptop import power

    def started(name: str) -> str:
        return power.start(settings, name, move, rescue, say)

    sys.exit(for_each(settings, names, started))


def for_each(settings: config.Config, names: tuple[str, ...], step: Callable[[str], str]) -> int:
    """Do something with devboxes side by side, and say what came of each; return the exit code."""
    from concurrent.futures import ThreadPoolExecutor

    from berg.laptop.latest import resolve

    _ = settings.credentials  # before threads want it
    failed = False
    with ThreadPoolExecutor(8) as pool:
        full = list(dict.fromkeys(resolve(settings, name) for name in names))
        done = {name: pool.submit(step, name) for name in full}
        for name, future in done.items():
            try:
                say(f"{name} {future.result()}")
            except Exception as error:
                failed = True
                show_traceback()
                BergError(describe(error)).show()
    return int(failed)


@click.command(name="open")
@name_argument()
@click.option(
    "--jupyter", is_flag=True, help="Jupyter, in the browser of this computer: the default."
)
@click.option("--code", is_flag=True, help="Print the command that opens an editor there over ssh.")
@click.option("--no-browser", is_flag=True, help="Only say which file leads to Jupyter.")
def open_(name: str, jupyter: bool, code: bool, no_browser: bool) -> None:
    """Open Jupyter of a machine in the browser here, or an editor.

    Jupyter is started on the machine NAME if it does not run, and goes on when this command ends,
    at Ctrl-C. It listens on that machine alone, and is reached through ssh. Its token stands in no
    command line: the browser gets a file that only you may read. With --code the command for VS
    Code is printed, and ~/.ssh/config gets an Include line, if you agree, by which ssh, rsync and
    editors know every machine that you logged in to by its name.

    \b
    berg open my-devbox
    berg open my-devbox --code
    """
    if code and (jupyter or no_browser):
        raise click.UsageError("--code opens no Jupyter: leave out the other options")
    settings, name = ready(name)
    if code:
        from berg.laptop import ssh as login

        target = login.find_target(settings, name, say)
        login.warn(target.machine, say)
        if not login.is_included():
            line, file = login.include_line(), login.user_config()
            if confirms(f"Add `{line}` to {file}, so that ssh knows machines by name?"):
                login.include()
            else:
                say(f"So that ssh knows machines by name, put at the beginning of {file}:  {line}")
        plain.echo(shlex.join(["code", "--remote", f"ssh-remote+{target.machine}", "/root/code"]))
        return
    import webbrowser

    from berg.laptop import notebook

    with (
        contextlib.suppress(KeyboardInterrupt),
        notebook.opened(settings, name, say) as (page, tunnel),
    ):
        is_shown = not no_browser and webbrowser.open(page.as_uri())
        how = "Jupyter is in the browser" if is_shown else f"Open in a browser: {page.as_uri()}"
        say(f"{how}\nIt is reached as long as this runs; Ctrl-C ends the tunnel")
        tunnel.wait()
    say(f"The tunnel is closed. Jupyter goes on, on {name}")


COMMANDS = (
    ssh,
    sync,
    stop,
    start,
    open_,
)
