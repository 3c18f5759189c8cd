"""The packages of a repository: uv or pip installs them, and says itself what is wrong.

the user's own command      berg run --install "make deps"
uv.lock                     uv sync --locked
poetry.lock, Pipfile.lock   poetry install, pipenv sync, by uv
requirements.txt            into the image's python
pyproject.toml, setup.py    the same, editable
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from berg import BergError
from berg.code import ROOT

if TYPE_CHECKING:
    from berg.worker import Run

VENV = ROOT / "berg/env"  # what is installed, on top of the image's own packages


ERROR = re.compile(
    r"^(error|ERROR|× )|\b(No solution found|Multiple top-level packages|does not appear to be a Python)|"
    r"\w+Error:"
)


class Failed(BergError):
    """An installer refused; the message has its own error."""

    def __init__(self, code: int, output: str):
        why = reason(output)
        super().__init__(
            f"the installation failed (exit code {code})" + (f": {why}" if why else "")
        )
        self.code = code


def commands(repo: Path, own: str) -> list[list[str]]:
    """What is run in the repository, in this order."""
    if own:
        return [["bash", "-o", "pipefail", "-c", own]]
    uv = program()
    pip = [uv, "pip", "install"] if uv else [str(VENV / "bin/python"), "-m", "pip", "install", "-q"]
    if (repo / "uv.lock").exists() and uv:
        return [[uv, "sync", "--locked", "--no-progress"]]
    if (repo / "poetry.lock").exists() and uv:
        return [[uv, "tool", "run", "-q", "poetry", "install", "--no-interaction"]]
    if (repo / "Pipfile.lock").exists() and uv:
        return [[uv, "tool", "run", "-q", "pipenv", "sync"]]
    if (repo / "requirements.txt").exists():
        return [[*pip, "-r", "requirements.txt"]]
    if (repo / "pyproject.toml").exists() or (repo / "setup.py").exists():
        return [[*pip, "-e", "."]]
    return []


def program() -> str:
    """uv: what boot.py brought, or that of a golden image."""
    own = (ROOT / "berg/uv", ROOT / "berg/venv/bin/uv")
    return next((str(file) for file in own if file.exists()), shutil.which("uv") or "")


def variables(repo: Path) -> dict[str, str]:
    """What makes the command find the packages."""
    folder = repo / ".venv" if (repo / "uv.lock").exists() else VENV
    if not folder.exists():
        return {}
    return {"VIRTUAL_ENV": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}"}


def run(run: Run, repo: Path) -> None:
    """Install what the repository needs; raise Failed with the exit code of what refused."""
    steps = commands(repo, run.job.install)
    if not VENV.exists() and not (repo / "uv.lock").exists():
        python = shutil.which("python3", path="/root/anaconda3/bin:" + os.environ["PATH"])
        python = python or sys.executable
        make = [program(), "venv", "-q", "--system-site-packages", "--python", python, str(VENV)]
        if not make[0]:
            make = [python, "-m", "venv", "--system-site-packages", str(VENV)]
        steps.insert(0, make)
    for words in steps:
        more = {**run.job.env, **run.install_variables, **variables(repo)}
        execute(run, words, repo, more)


def execute(
    run: Run, words: list[str], cwd: Path = ROOT, more: dict[str, str] | None = None
) -> None:
    """Run a program, whose output is in the log; raise Failed with its exit code and its error."""
    run.say(shlex.join(words))
    before = run.log.stat().st_size
    with run.log.open("ab") as output:
        installer = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        exit_code = run.watch(installer)
    if exit_code:
        with run.log.open("rb") as file:
            file.seek(before)
            raise Failed(exit_code, file.read().decode(errors="replace"))


def provide(run: Run, program: str, package: str, without: str) -> bool:
    """Install a program from the image's package sources if the image lacks it; return whether it
    did. `without` says what to do if they do not have it.
    """
    if shutil.which(program):
        return False
    words = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]  # a first boot may hold the lock
    try:
        execute(run, [*words, "update"])
        execute(run, [*words, "install", "-y", package], more={"DEBIAN_FRONTEND": "noninteractive"})
    except (Failed, OSError) as error:
        raise BergError(f"this image has no {program}, and {package}: {error}. {without}") from None
    return True


def reason(output: str) -> str:
    """The installer's own error, wherever it stands in the output; "" if there is none."""
    lines = [line.strip() for line in output.splitlines()]
    found = [line for line in lines if ERROR.search(line)]
    return found[0][:300] if found else next((line[:300] for line in reversed(lines) if line), "")
