"""A machine whose disk becomes an image: what is installed there, and what goes before.

The laptop wrote into the machine's metadata what the image is to have. What stays is what was
installed: the code, berg's own files but for its environment, keys and logs go.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from berg import BergError
from berg.code import requirements
from berg.google.storage import Bucket
from berg.machine import boot, checkout
from berg.machine.attempt import settings_of
from berg.machine.surroundings import INSTALLING, InstallationFailed, pip_step, python_path

KEYS = Path("/etc/ssh")
KEPT = ("venv", "boot.lock", "worker.err")  # the latter two are open
MINE = (".cache", ".ssh/authorized_keys", ".bash_history", ".python_history")


def prepare(machine: boot.Machine) -> None:
    """Install and clean up; the console says in its last line how that went."""
    try:
        recipe = json.loads(machine.recipe)
        install(machine, recipe)
        clean()
    except (BergError, OSError) as error:
        boot.console(f"{boot.NO_IMAGE}{error}")
    else:
        boot.console(boot.IMAGE_READY)


def install(machine: boot.Machine, recipe: dict[str, Any]) -> None:
    """Install the distribution's packages, and what the repo says that it needs.

    Raise BergError or OSError with what failed.
    """
    if recipe["packages"]:
        boot.apt_install(machine, *recipe["packages"])
    folder = boot.ROOT / "code" / recipe["repo"]
    checkout.fetch(Bucket(settings_of(machine)), recipe["snapshot"], folder)
    if recipe["install_script"]:
        run(["bash", "-e", recipe["install_script"]], folder)
    if needed := requirements.arguments(folder):
        run(pip_step(needed), folder)
    if recipe["horovod"]:
        run(["bash", "-e", str(Path(__file__).with_name("horovod.sh"))], folder)


def run(step: list[str], folder: Path) -> None:
    """Run a step of the installation; raise InstallationFailed if it fails."""
    boot.console(f"Installing: {' '.join(step)}")
    variables = {"HOME": str(boot.ROOT), "PATH": python_path(), **INSTALLING}
    ran = subprocess.run(
        step,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    boot.console(ran.stdout.decode(errors="replace"))
    if ran.returncode:
        raise InstallationFailed(ran.returncode, step)


def clean() -> None:
    """Delete what is this machine's own, or the repo's."""
    own = [each for each in boot.BERG.iterdir() if each.name not in KEPT]
    own += [boot.ROOT / name for name in MINE]
    own += (boot.ROOT / "code").iterdir()
    if "BERG_ROOT" not in os.environ:  # else these are the host's
        own += KEYS.glob("ssh_host_*")
        Path("/etc/machine-id").write_text("")
    for path in own:
        remove(path)


def remove(path: Path) -> None:
    """Delete a file or a folder; what is gone already, or not ours to delete, is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        boot.console(f"{path} stays in the image: {error}")
