"""The commands for machines to work on: ssh, sync, stop, start, open."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from berg import computer, config, plain
from berg.commands.terminal import (
    name_argument,
    names_argument,
    ready,
    say,
    secrets_option,
    show_error,
)


@click.command()
@name_argument()
@click.argument("command", metavar="[-- CMD…]", nargs=-1)
@click.option(
    "-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Forward a port; repeatable."
)
@click.option("-N", "no_command", is_flag=True, help="Only forward ports.")
@click.option("-t", "terminal", is_flag=True, help="Give CMD a terminal.")
@click.option("-A", "agent", is_flag=True, help="Let the machine use your ssh agent.")
@click.option(
    "--worker",
    type=click.IntRange(0),
    metavar="N",
    help="Of several machines, the one whose BERG_NODE_RANK is N.",
)
@click.option(
    "--all",
    "everywhere",
    is_flag=True,
    help="Run CMD on every machine; each line starts with its name.",
)
@click.option("--dry-run", is_flag=True, help="Print the ssh command, and stop.")
def ssh(
    name: str, command: tuple[str, ...], worker: int | None, everywhere: bool, **options: Any
) -> None:
    """Log in to the machine NAME, or run CMD there.

    NAME is a machine or a job; of several machines it is the first one. berg waits while a machine
    boots. This is plain OpenSSH with gcloud's key and without ~/.ssh/config; the exit code is that
    of CMD. The words of CMD are joined by blanks and read by the machine's shell, in the folder of
    the repo. With --all the exit code is that of the first machine on which CMD failed.

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
    log_in(settings, name, command, **options)


def log_in(
    settings: config.Config,
    name: str,
    command: tuple[str, ...],
    forwards: tuple[str, ...],
    no_command: bool,
    terminal: bool,
    agent: bool,
    dry_run: bool,
) -> None:
    """Become ssh on a machine, or print its command; without a server in a pod, become a shell."""
    from berg.laptop import ssh

    try:
        target = ssh.find_target(settings, name, say)
    except ssh.NoServer as error:
        if not error.shell or any((forwards, no_command, agent)):
            raise
        say(f"{error.message}. Using Kubernetes' exec instead")
        program = " ".join(ssh.in_repo(list(command))) or "exec bash -l || exec sh"
        tty = ["--tty"] if terminal or not command else []
        os.execv(error.shell[0], [*error.shell, *tty, "--", "sh", "-c", program])
    if "start-iap-tunnel" in target.proxy and not target.address:
        account = computer.gcloud_account() or "the one that `gcloud auth list` shows"
        say(f"Through Identity-Aware Proxy, with gcloud's account: {account}")
    switches = {"-N": no_command, "-t": terminal, "-A": agent}
    flags = ssh_flags(switches, forwards)
    words = ssh.command(settings, target, flags, ssh.in_repo(list(command)))
    if dry_run:
        plain.echo(shlex.join(words))
        return
    for forward in forwards:
        ssh.check_port(forward)
    os.execv(ssh.require("ssh"), words)


def ssh_flags(switches: dict[str, bool], forwards: tuple[str, ...]) -> list[str]:
    flags = [flag for flag, is_on in switches.items() if is_on]
    for forward in forwards:
        flags += ["-L", forward]
    if forwards:
        flags += ["-o", "ExitOnForwardFailure=yes"]
    return flags


@click.command()
@name_argument()
@click.option("--once", is_flag=True, help="Push once, and stop.")
@secrets_option
def sync(name: str, once: bool, send_secrets: bool) -> None:
    """Push the working tree to machines, again on every change.

    It goes to /root/code/<repo> on all machines of NAME, where the command runs, until Ctrl-C.
    Tracked files are pushed, and untracked ones that are not ignored. What is deleted here is
    deleted there. Ignored files on the machines, and files created there, stay. Files that look
    like secrets are named and not pushed, unless --send-secrets is given, or you agreed to send
    them with a job or devbox.

    \b
    berg devbox -n my-devbox
    berg sync my-devbox
    berg sync my-devbox --once && berg ssh my-devbox -- "cd code/digits && python train.py"
    """
    settings, name = ready(name)
    from berg.laptop import sync as pushing

    try:
        pushing.sync(settings, name, Path.cwd(), say, once, send_secrets)
    except KeyboardInterrupt:
        if once:
            raise
        say("Stopped. What was pushed stays on the machines")


@click.command()
@names_argument
@click.option("--now", is_flag=True, help="Stop at once, without waiting for the last results.")
def stop(names: tuple[str, ...], now: bool) -> None:
    """Turn devboxes off, and keep their disks.

    What runs on a devbox ends, its last results are uploaded, then its machine is off and costs
    only its disk. Files, installed packages, name and ssh host key stay. A stopped devbox is never
    deleted automatically: berg reap offers it after 14 days (the setting max_stopped_days).

    \b
    berg stop box
    berg start box
    """
    settings = config.load_ready()
    from berg.laptop import power

    sys.exit(for_each(settings, names, lambda name: power.stop(settings, name, now, say)))


@click.command()
@names_argument
@click.option("--move", is_flag=True, help="If the zone has no capacity, move to another zone.")
@click.option("--rescue", is_flag=True, help="Only for login: no installation, worker or checks.")
def start(names: tuple[str, ...], move: bool, rescue: bool) -> None:
    """Turn stopped devboxes on again.

    Waits until they answer. The disk is as it was, nothing is installed again, and --max-hours
    starts again. If the zone has no capacity, the devbox stays off; with --move its disk is copied
    by a snapshot to a new machine in another zone of the region, and the old machine is deleted
    when the new one answers.

    \b
    berg start box
    berg start box --move
    berg start box --rescue
    berg ssh box
    """
    settings = config.load_ready()
    from berg.laptop import power

    sys.exit(for_each(settings, names, lambda name: power.start(settings, name, move, rescue, say)))


def for_each(settings: config.Config, names: tuple[str, ...], step: Callable[[str], str]) -> int:
    """Do something with devboxes in parallel, and say what each became; return the exit code."""
    from concurrent.futures import ThreadPoolExecutor

    from berg.laptop import lookup

    _ = settings.credentials  # before threads use it
    code = 0
    with ThreadPoolExecutor(8) as pool:
        full = dict.fromkeys(lookup.resolve(settings, name) for name in names)
        done = {name: pool.submit(step, name) for name in full}
        for name, future in done.items():
            try:
                say(f"{name} {future.result()}")
            except Exception as error:
                code = show_error(error)
    return code


@click.command(name="open")
@name_argument()
@click.option("--jupyter", is_flag=True, help="Open Jupyter in the browser here: the default.")
@click.option("--code", is_flag=True, help="Print the command that opens VS Code there over ssh.")
@click.option("--no-browser", is_flag=True, help="Only print the file that opens Jupyter.")
def open_(name: str, jupyter: bool, code: bool, no_browser: bool) -> None:
    """Open Jupyter of a machine in the browser, or an editor.

    Jupyter is started on the machine NAME if it does not run, and continues when this command ends
    at Ctrl-C. It listens on that machine only, and is reached through ssh. Its token is in no
    command line: the browser gets a file that only you can read. With --code the command for VS
    Code is printed. If you agree, ~/.ssh/config gets an Include line, by which ssh, rsync and
    editors know every machine that you logged in to by its name.

    \b
    berg open my-devbox
    berg open my-devbox --code
    """
    if code and (jupyter or no_browser):
        raise click.UsageError("--code does not open Jupyter: leave out the other options")
    settings, name = ready(name)
    if code:
        open_editor(settings, name)
        return
    import webbrowser

    from berg.laptop import ssh

    with (
        contextlib.suppress(KeyboardInterrupt),
        ssh.jupyter(settings, name, say) as (page, tunnel),
    ):
        is_shown = not no_browser and webbrowser.open(page.as_uri())
        how = "Jupyter is in the browser" if is_shown else f"Open in a browser: {page.as_uri()}"
        say(f"{how}\nThe tunnel is open until Ctrl-C")
        tunnel.wait()
    say(f"The tunnel is closed. Jupyter still runs on {name}")


def open_editor(settings: config.Config, name: str) -> None:
    """Print the command for VS Code on a machine, after asking to let ssh know it by its name."""
    from berg.laptop import jobs
    from berg.laptop import ssh as login

    target = login.find_target(settings, name, say)
    login.warn(target.machine, say)
    if not login.is_included():
        line, file = login.include_line(), login.user_config()
        question = f"Add `{line}` to {file}, so that ssh knows machines by name?"
        if sys.stdin.isatty() and click.confirm(question, default=True, err=True):
            login.include()
        else:
            say(f"To let ssh know machines by name, put at the beginning of {file}:  {line}")
    summary = jobs.find(settings, name).summary
    folder = f"/root/code/{summary.repo}".rstrip("/")
    plain.echo(shlex.join(["code", "--remote", f"ssh-remote+{target.machine}", folder]))


COMMANDS = (ssh, sync, stop, start, open_)
