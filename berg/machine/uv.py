"""uv and uvx on a machine: scripts that download the programs when they are first called, so that
only a job that uses uv waits for it.

The programs come from the bucket, or from the package index; their hash is in Berg's code.
"""

import fcntl
import io
import platform
import shlex
import shutil
import subprocess
import sys
import urllib.error
import zipfile
from pathlib import Path

from berg import BergError
from berg.code import dist
from berg.machine import boot

FOLDER = boot.BERG / f"uv-{dist.UV_VERSION}"  # of the programs
PROGRAMS = ("uv", "uvx")
QUIET = subprocess.DEVNULL


def write_scripts(bin_folder: Path, settings: dict[str, str]) -> None:
    """Write the scripts; `settings` are the variables that describe this machine."""
    folders = [path for path in sys.path if path.startswith(str(boot.BERG))]
    code = (
        f"import os, sys; os.environ.update({settings!r}); sys.path[:0] = {folders!r}; "
        "from berg.machine.uv import main; main()"
    )
    fetch = shlex.join([sys.executable, "-I", "-c", code])
    for name in PROGRAMS:
        program, script = FOLDER / name, bin_folder / name
        text = f'#!/bin/sh\n[ -x {program} ] || {fetch} >&2 || exit\nexec {program} "$@"\n'
        script.touch(mode=0o700)
        script.write_text(text)


def provide(machine: boot.Machine) -> None:
    """Install uv's programs on this machine unless they are there; raises BergError."""
    with (boot.BERG / "uv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (FOLDER / PROGRAMS[0]).exists():
            return
        wheel = dist.WHEELS.get(platform.machine())
        if wheel is None:
            raise BergError(f"there is no uv for processors of the kind {platform.machine()}")
        new = FOLDER.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(content_of(machine, wheel))) as zipped:
            for name in PROGRAMS:
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                source = zipped.open(f"uv-{dist.UV_VERSION}.data/scripts/{name}")
                with source, (new / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (new / name).chmod(0o755)
        new.rename(FOLDER)


def content_of(machine: boot.Machine, wheel: dist.Wheel) -> bytes:
    """Return the content of a wheel, from the bucket or the package index; raises BergError."""
    try:
        content = machine.read(wheel.path)[0]
        boot.check(content, wheel.sha256, f"gs://{machine.bucket}/{wheel.path}")
        return content
    except urllib.error.HTTPError as error:
        if error.code != 404:
            boot.console(f"{wheel.path} cannot be read: {error}")
    except OSError as error:
        boot.console(str(error))
    if subprocess.call(["python3", "-m", "pip", "--version"], stdout=QUIET, stderr=QUIET):
        boot.apt_install(machine, "python3-pip")
    return dist.download_uv(wheel, ["python3", "-m", "pip"])


def main() -> None:
    """Download uv for a program that called it."""
    boot.bypass_proxies()
    try:
        provide(boot.this_machine())
    except (BergError, OSError) as error:
        sys.exit(f"berg: {error}")
