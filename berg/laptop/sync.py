"""`berg sync`: finds the machines of a job, and how to reach each, for code/push.py."""

import shutil
import subprocess
from pathlib import Path

from berg import BergError, computer
from berg.code import snapshot
from berg.code.push import CODE, Checkout, Gone, Push, Say
from berg.config import Config
from berg.laptop import jobs, launch, ssh


def multiplex(options: list[str], sockets: Path) -> list[str]:
    """Ssh with one connection for all that goes to a machine: a handshake takes longer than a small
    transfer.

    A connection that is dead is noticed after 15 seconds. One that is not used is closed after 300:
    an open one keeps a devbox from being idle.
    """
    settings = [
        "ControlMaster=auto",
        f"ControlPath={ssh.as_path(sockets)}/%C",
        "ControlPersist=300",
        "BatchMode=yes",
    ]
    settings += ["ServerAliveInterval=5", "ServerAliveCountMax=3", "ConnectTimeout=10"]
    return ["ssh", *(word for setting in settings for word in ("-o", setting)), *options]


def sync(config: Config, name: str, folder: Path, say: Say, once: bool = False) -> None:
    """Push the working tree around `folder` to all machines of a job, until it is interrupted or
    once.

    Raises BergError if there is no repo, no such job, or no machine of it any more.
    """
    root = snapshot.find_root(folder).resolve()
    check_rsync()
    found = jobs.find(config, name)
    here = launch.repo_name(root.name)
    repo = found.state.job.repo if found.state else here
    if repo != here:
        raise BergError(
            f"{name} was started in the repo {repo!r}, and this is {here!r}. Run berg sync in "
            f"{repo}"
        )
    machines = [machine.name for machine in found.machines if machine.name == name]
    machines = machines or [machine.name for machine in found.machines] or [name]
    # Not below BERG_HOME, whose path may be long.
    with computer.folder_for_sockets() as sockets:
        checkouts = [checkout_on(config, machine, here, Path(sockets), say) for machine in machines]
        say(
            f"Pushing {root} to {CODE}/{here} on {', '.join(machines)}"
            + ("" if once else "; Ctrl-C ends it")
        )
        Push(root, checkouts, say).run(once)


def check_rsync() -> None:
    """Raise BergError unless there is an rsync here that has what berg asks of it."""
    mend = f"Install it, for example: {computer.install_command('rsync')}"
    if not shutil.which("rsync"):
        raise BergError(f"rsync is not installed. {mend}")
    told = subprocess.run(["rsync", "--version"], capture_output=True, text=True).stdout
    if told.startswith("openrsync"):
        raise BergError(f"the rsync of macOS is openrsync, which cannot do what berg needs. {mend}")


def checkout_on(config: Config, machine: str, repo_name: str, sockets: Path, say: Say) -> Checkout:
    def locate() -> tuple[list[str], str]:
        try:
            target = ssh.find_target(config, machine, say)
        except BergError as error:
            if isinstance(error, ssh.NoServer) or is_gone(config, machine):
                raise Gone(error.message) from None
            raise
        return multiplex(ssh.options(config, target), sockets), ssh.destination(config, target)

    sudo = [] if config.ssh_user == "root" else ["sudo", "-n"]
    return Checkout(machine, f"{CODE}/{repo_name}", locate, sudo)


def is_gone(config: Config, machine: str) -> bool:
    """Whether nobody will see this machine again."""
    try:
        found = jobs.find(config, machine)
    except BergError:
        return True
    waits = found.state is not None and found.state.state == "SUBMITTED"
    return not waits and machine not in [each.name for each in found.machines]
