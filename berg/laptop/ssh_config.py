"""Entries for my running machines, for ssh, rsync and editors, in a file that ~/.ssh/config
includes.

    BERG_HOME/ssh_config           what `berg ssh-config` wrote

Not covered: entries that come and go by themselves.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from berg import BergError, places
from berg import config as settings
from berg.config import Config
from berg.inventory import Machine
from berg.laptop.ssh import Say, Target, as_path, keywords, pin, reach


def config_file() -> Path:
    return settings.home() / "ssh_config"


def config_entry(config: Config, target: Target) -> str:
    """A Host entry for ssh's configuration; a cluster's first machine also answers to the job's
    name.
    """
    first = target.machine.removeprefix(target.job).strip("-0") == ""
    names = [target.machine, *([target.job] if first and target.job != target.machine else [])]
    values = {"HostName": target.host, "User": config.ssh_user, **keywords(config, target)}
    return "\n".join(
        [f"Host {' '.join(names)}", *(f"    {key} {value}" for key, value in values.items()), ""]
    )


def write_config(config: Config, say: Say) -> list[str]:
    """Write an entry for every machine of mine that runs; returns the machines' names.

    Those that cannot be logged in to yet are left out, and named to `say`.
    """

    def entry_of(machine: Machine) -> Target | None:
        try:
            return reach(config, machine.labels.get("berg-job", machine.name), machine, say)
        except BergError as error:
            say(error.message)
            return None

    mine = [
        machine
        for machine in places.machines(config)
        if machine.labels.get("berg-user") == config.user
    ]
    running = [machine for machine in mine if machine.status == "RUNNING"]
    with ThreadPoolExecutor(8) as pool:
        targets = list(pool.map(entry_of, running))
    entries = ["# Written by `berg ssh-config`; your own entries belong to ~/.ssh/config.\n"]
    for machine, target in zip(running, targets, strict=True):
        if target:
            pin(target)
            entries.append(config_entry(config, target))
        else:
            say(f"Left out: {machine.name}, which cannot be logged in to yet")
    config_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(config_file(), "\n".join(entries))
    return [target.machine for target in targets if target]


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
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = file.read_text() if file.exists() else ""
    replace(file, f"{include_line()}\n\n{there}")


def replace(file: Path, text: str) -> None:
    """Write a file for its owner's eyes at once; one that is a link stays a link."""
    file = file.resolve()
    new = file.with_name(f"{file.name}.berg-new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.chmod(file.stat().st_mode & 0o777 if file.exists() else 0o600)
    new.replace(file)
