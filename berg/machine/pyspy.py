"""py-spy, which reads the memory of Python processes without stopping them."""

import io
import os
import platform
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

from berg import BergError
from berg.code import dist
from berg.machine import boot

TOOLS = boot.BERG / "tools"

installing = threading.Lock()


def program(machine: boot.Machine) -> str:
    """Return the program, which comes from Berg's packages, or else from the package index."""
    there = TOOLS / "bin/py-spy"
    with installing:
        if there.exists() or from_packages(machine, there):
            return str(there)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", dist.PY_SPY]
        command += ["--target", str(TOOLS)]
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=300)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
            raise BergError(f"py-spy, which profiles python, could not be installed: {why}")
        return str(there)


def from_packages(machine: boot.Machine, target: Path) -> bool:
    """Unpack py-spy from Berg's packages, on this disk or in the bucket; return whether it is there
    for this kind of processor.
    """
    if not machine.packages or platform.machine() != "x86_64":
        return False
    archive = boot.BERG / machine.packages.rpartition("/")[2]
    try:
        content = archive.read_bytes() if archive.exists() else machine.read(machine.packages)[0]
        boot.check(content, machine.packages_sha256, f"gs://{machine.bucket}/{machine.packages}")
        with zipfile.ZipFile(io.BytesIO(content)) as packages:
            wheel = io.BytesIO(packages.read(dist.PY_SPY_WHEEL))
        with zipfile.ZipFile(wheel) as zipped:
            (name,) = [name for name in zipped.namelist() if name.endswith("/scripts/py-spy")]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_suffix(".new").write_bytes(zipped.read(name))
    except (OSError, KeyError) as error:  # KeyError: the laptop could not download it
        boot.console(f"py-spy is not in Berg's packages: {error}")
        return False
    target.with_suffix(".new").chmod(0o755)
    target.with_suffix(".new").rename(target)
    return True
