"""The commands that lead to machines: ssh, ssh-config, sync."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from berg import computer, config, plain
from berg.commands.terminal import name_argument, ready, say

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


@click.command(name="ssh-config")
@click.option(
    "-y", "--install", is_flag=True, help="Add the Include to ~/.ssh/config without asking."
)
def ssh_config(install: bool) -> None:
    """Make ssh, scp, rsync and editors know machines by name.

    Writes an entry for each of my running machines to a file of berg's own, which ~/.ssh/config
    then includes. Run it again when machines came or went. The entries switch off what your
    configuration gives to all hosts: the agent, X11, forwarded ports.

    \b
    berg ssh-config
    rsync -a data my-devbox:/root/
    """
    settings = config.load_ready()
    from berg.laptop import ssh_config as entries

    names = entries.write_config(settings, say)
    say(f"Wrote {entries.config_file()} with {len(names)} machine{'' if len(names) == 1 else 's'}")
    if not entries.is_included():
        line, file = entries.include_line(), entries.user_config()
        if install or confirms(f"Add `{line}` to {file}?"):
            entries.include()
            say(f"Added `{line}` to {file}")
        else:
            say(f"To use it, put at the beginning of {file}:  {line}")
            say("or run: berg ssh-config --install")
    for name in names:
        plain.echo(name)


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


COMMANDS = (ssh, ssh_config, sync)
