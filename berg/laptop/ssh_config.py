"""Entries for my running machines, for ssh, rsync and editors, in a file that ~/.ssh/config
includes.

    BERG_HOME/ssh_config           what `berg ssh-config` wrote

What ~/.ssh/config says for all hosts holds for these, too, so the entries switch off what would
hand something of this computer to a machine. Options that OpenSSH collects from all entries cannot
be switched off by one of them: forwarded ports are cleared where there are some, and variables
that are sent are named to the person.

Not covered: entries that come and go by themselves.
"""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from berg import BergError, computer, places
from berg import config as settings
from berg.config import Config
from berg.google.instances import vouched
from berg.inventory import Machine
from berg.laptop.jobs import Entry
from berg.laptop.ssh import (
    Say,
    Target,
    as_path,
    check_account,
    keywords,
    pin,
    reach,
    require,
)

OFF = {
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ForwardX11Trusted": "no",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "ControlPath": "none",  # a connection to an earlier machine of this address
}
FORWARDS = ("localforward", "remoteforward", "dynamicforward")  # as `ssh -G` prints them
VARIABLES = ("sendenv", "setenv")


def config_file() -> Path:
    return settings.home() / "ssh_config"


def config_entry(config: Config, target: Target, others: list[str]) -> str:
    """A Host entry for ssh's configuration; a cluster's first machine also answers to the job's
    name. `others` are options that the person's own configuration adds to it.
    """
    first = target.machine.removeprefix(target.job).strip("-0") == ""
    names = [target.machine, *([target.job] if first and target.job != target.machine else [])]
    values = {"HostName": target.host, "User": config.ssh_user, **keywords(config, target), **OFF}
    if any(each.startswith(FORWARDS) for each in others):
        values["ClearAllForwardings"] = "yes"
    return "\n".join(
        [f"Host {' '.join(names)}", *(f"    {key} {value}" for key, value in values.items()), ""]
    )


def write_config(config: Config, say: Say) -> list[str]:
    """Write an entry for every machine of mine that runs; returns the machines' names.

    Those that cannot be logged in to yet are left out, and named to `say`.
    """
    targets = targets_of_mine(config, say)
    others = {target.machine: of_all_hosts(target.machine) for target in targets}
    entries = ["# Written by `berg ssh-config`; your own entries belong to ~/.ssh/config.\n"]
    entries += [config_entry(config, target, others[target.machine]) for target in targets]
    computer.write(config_file(), "\n".join(entries))
    warn(sorted({each for found in others.values() for each in found}), say)
    return [target.machine for target in targets]


def targets_of_mine(config: Config, say: Say) -> list[Target]:
    """Return my machines that can be logged in to, with their host keys pinned."""

    def reach_it(machine: Machine) -> Target | None:
        try:
            check_account(config, Entry(machine.name, None, [machine]), machine)
            return reach(config, machine.labels.get("berg-job", machine.name), machine, say)
        except BergError as error:
            say(error.message)
            return None

    running = [
        machine
        for machine in places.machines(config)
        if machine.labels.get("berg-user") == config.user and machine.status == "RUNNING"
    ]
    with ThreadPoolExecutor(8) as pool:
        running = list(pool.map(lambda each: vouched(config, each), running))
        targets = list(pool.map(reach_it, running))
    for machine, target in zip(running, targets, strict=True):
        if target:
            pin(target)
        else:
            say(f"Left out: {machine.name}, which cannot be logged in to yet")
    return [target for target in targets if target]


def of_all_hosts(name: str) -> list[str]:
    """Return the options of ~/.ssh/config that would forward ports or send variables to a machine,
    as `ssh -G` prints them.
    """
    if not user_config().exists():
        return []
    # An entry that is there already may switch off what is to be seen.
    options = ["-F", str(user_config()), "-o", "ClearAllForwardings=no"]
    command = [require("ssh"), *options, "-G", name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(FORWARDS + VARIABLES)]
    return [line for line in lines if not line.startswith(("sendenv LANG", "sendenv LC_"))]


def warn(others: list[str], say: Say) -> None:
    """Say what of the person's own configuration berg switched off, and what it cannot."""
    forwards = [each for each in others if each.startswith(FORWARDS)]
    variables = [each for each in others if each.startswith(VARIABLES)]
    if forwards:
        say(
            f"Your ssh configuration forwards for all hosts: {', '.join(forwards)}. That is "
            "switched off for berg's machines, and with it what editors forward there"
        )
    if variables:
        say(
            f"Your ssh configuration sends variables to all hosts: {', '.join(variables)}. "
            "An editor sends them to berg's machines, too; berg ssh and berg sync do not"
        )
    if others:
        say("Give such lines to the hosts that they are for, and run: berg ssh-config")


def include_line() -> str:
    return f"Include {as_path(config_file())}"


def user_config() -> Path:
    return Path.home() / ".ssh/config"


def is_included() -> bool:
    file = user_config()
    return file.exists() and include_line() in map(str.strip, file.read_text().splitlines())


def include() -> None:
    """Put the Include into ~/.ssh/config: at its beginning, as below a Host it would hold for that
    host only.
    """
    file = user_config()
    there = file.read_text() if file.exists() else ""
    computer.write(file, f"{include_line()}\n\n{there}")
