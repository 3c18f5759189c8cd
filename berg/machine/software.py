"""Which software an attempt runs with: the python of its command, what is installed there, and the
driver of its GPUs, as JSON beside its log.

Not covered: what is installed while the command runs, and other pythons that it starts.
"""

import json
import shutil
import subprocess

from berg.machine import boot
from berg.machine.attempt import Attempt
from berg.machine.surroundings import environment

PATIENCE = 60  # seconds for the python, and for the driver
LARGEST = 1 << 20  # bytes that are kept of what they say
# Only the names and versions: what parses the rest takes seconds of the images of Google's.
ASK_PYTHON = """
import json, platform, re
from importlib import metadata
found = {}
for each in metadata.distributions():
    header = (each.read_text("METADATA") or each.read_text("PKG-INFO") or "").partition("\\n\\n")[0]
    said = dict(re.findall("^(Name|Version): *(.+)$", header, re.MULTILINE))
    if len(said) == 2:
        found[said["Name"]] = said["Version"]
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""
ASK_DRIVER = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]


def note(attempt: Attempt) -> None:
    """Write what there is beside the log; what does not answer is left out, and says nothing."""
    path = environment(attempt)["PATH"]
    said = ask([shutil.which("python", path=path) or "python3", "-c", ASK_PYTHON])
    try:
        found = json.loads(said)
    except ValueError:
        found = {}
    driver = ask(ASK_DRIVER).split()
    if driver:
        found["driver"] = driver[0]
    try:
        attempt.software_file.write_text(json.dumps(found))
    except OSError:
        return  # a full disk, of which the job itself says more


def ask(command: list[str]) -> str:
    """Return what a program prints; "" where there is none, and where it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=boot.ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:LARGEST] if done.returncode == 0 else ""
