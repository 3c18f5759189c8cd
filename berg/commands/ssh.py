"""The commands that lead to machines: ssh, ssh-config, sync, ip."""

import os
import shlex
import sys
from pathlib import Path

import click

from berg import BergError, config
from berg.commands.terminal import name_argument, ready, say


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
def ssh(name, command, forwards, no_command, terminal, agent, worker, everywhere, dry_run) -> None:
    """Log in to the machine NAME, or run CMD there.

    NAME is a machine, a job, or a cluster, whose first machine is meant; it is waited for while it
    boots. This is plain OpenSSH with the key that gcloud uses, too; it exits with the exit code of
    CMD. Its words are joined by blanks and read by the shell of the machine. With --all the exit
    code is that of the first machine, in the order of the machines, on which CMD failed.

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
        if (
            not command
            or forwards
            or no_command
            or terminal
            or agent
            or worker is not None
            or dry_run
        ):
            raise click.UsageError(
                "--all takes a command and no other option: berg ssh NAME --all -- CMD"
            )
        sys.exit(ssh.run_everywhere(settings, name, list(command), say, click.echo))
    if worker is not None:
        name = ssh.worker(settings, name, worker)
    try:
        target = ssh.find_target(settings, name, say)
    except ssh.NoServer as error:
        if not error.shell or forwards or no_command or agent:
            raise
        say(f"{error.message}. Going in without it")
        program = (
            ["sh", "-c", " ".join(command)] if command else ["sh", "-c", "exec bash -l || exec sh"]
        )
        options = ["--tty"] if terminal or not command else []
        os.execv(error.shell[0], [*error.shell, *options, "--", *program])
    flags = [flag for flag, given in (("-N", no_command), ("-t", terminal), ("-A", agent)) if given]
    flags += [word for forward in forwards for word in ("-L", forward)]
    flags += ["-o", "ExitOnForwardFailure=yes"] if forwards else []
    words = ssh.command(settings, target, flags, list(command))
    if dry_run:
        click.echo(shlex.join(words))
        return
    for forward in forwards:
        ssh.check_port(forward)
    os.execv(ssh.require("ssh"), words)


@click.command(name="ssh-config")
@click.option(
    "-y", "--install", is_flag=True, help="Add the Include to ~/.ssh/config without asking."
)
def ssh_config(install: bool) -> None:
    """Make ssh, scp, rsync and editors know machines by name.

    Writes an entry for each of my running machines to a file of berg's own, which ~/.ssh/config
    then includes. Run it again when machines came or went.

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
        if install or (
            sys.stdin.isatty() and click.confirm(f"Add `{line}` to {file}?", default=True, err=True)
        ):
            entries.include()
            say(f"Added `{line}` to {file}")
        else:
            say(
                f"To use it, put at the beginning of {file}:  {line}\nor run: berg ssh-config --install"
            )
    for name in names:
        click.echo(name)


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
@name_argument()
@click.option("--internal", is_flag=True, help="The address inside of the network.")
def ip(name: str, internal: bool) -> None:
    """Print the address of a machine.

    \b
    ping $(berg ip digits-1121-0930-x7k)
    """
    settings, name = ready(name)
    from berg.laptop import jobs

    found = jobs.find(settings, name)
    if not found.machine:
        raise BergError(f"{name} has no machine any more ({found.status})")
    inside = found.machine.internal_ip
    address = inside if internal else found.machine.external_ip or inside
    if not address:
        raise BergError(
            f"the machine {name} has no address yet ({found.status}). Try again in a moment"
        )
    click.echo(address)


COMMANDS = (ip, ssh, ssh_config, sync)
