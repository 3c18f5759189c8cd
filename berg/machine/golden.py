"""A machine whose disk becomes an image: what is installed there, and what goes before.

The laptop wrote into the machine's metadata what the image is to have. What stays is what was
installed: the code, berg's own files but for its environment, keys and logs go.
"""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from berg import BergError, gate
from berg.google.storage import Bucket
from berg.job import Installation
from berg.machine import boot, inputs, installation, uv
from berg.machine.attempt import settings_of
from berg.machine.environment import INSTALLING, programs
from berg.machine.installation import InstallationFailed, Step

KEYS = Path("/etc/ssh")
# The latter two are open.
KEPT = ("venv", uv.FOLDER.name, "boot.lock", "worker.err")
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
    inputs.fetch_code(Bucket(settings_of(machine)), recipe["snapshot"], folder)
    what = gate.build(Installation, recipe["installation"])
    what.check()
    installation.prepare(machine, what, folder)
    steps = installation.steps_of(what, recipe["install_script"], folder)
    if recipe["horovod"]:
        script = str(Path(__file__).with_name("horovod.sh"))
        steps.append(Step(["bash", "-e", script], folder))
    variables = {**os.environ, "HOME": str(boot.ROOT), **programs(what, folder), **INSTALLING}
    for step in steps:
        run(step, installation.with_uv(variables))


def run(step: Step, variables: dict[str, str]) -> None:
    """Run a step of the installation; raise InstallationFailed if it fails and must not."""
    boot.console(f"Installing: {shlex.join(step.words)}")
    ran = subprocess.run(
        step.words,
        cwd=step.folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = ran.stdout.decode(errors="replace")
    boot.console(output)
    if ran.returncode and not step.may_fail:
        raise InstallationFailed(ran.returncode, step.words, output)


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
