"""The packages of a repository: uv or pip installs them, and says itself what is wrong.

The plan says which file that is, which others are not read, and refuses what cannot work.

the user's own command      berg run --install "make deps"; none installs nothing
uv.lock                     uv sync --locked
poetry.lock, Pipfile.lock   poetry install, pipenv sync, by uv
requirements.txt            into the image's python
pyproject.toml, setup.py    the same, editable
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from berg import BergError, code
from berg.boot import BERG
from berg.code import ROOT

if TYPE_CHECKING:
    from berg.run import Plan
    from berg.worker import Run

VENV = BERG / "env"  # what is installed, on top of the image's own packages


ERROR = re.compile(
    r"^(error|ERROR|× )|\b(No solution found|Multiple top-level packages|does not appear to be a Python)|"
    r"\w+Error:"
)


NONE = "none"  # of --install
# What may say what a repository installs, at its root; the first one counts.
SOURCES = (
    "uv.lock",
    "poetry.lock",
    "Pipfile.lock",
    "requirements.txt",
    "pyproject.toml",
    "setup.py",
)
HOW = {
    "uv.lock": "uv sync --locked",
    "poetry.lock": "poetry install",
    "Pipfile.lock": "pipenv sync",
}
HOW |= {"requirements.txt": "uv pip install -r requirements.txt"}
CONDA = re.compile(
    r"(conda|environment|env)[\w.-]*\.ya?ml|conda-lock\.yml|envs?/[\w.-]+\.ya?ml", re.I
)
TEXTS = re.compile(r"([\w-]*requirements[\w.-]*|requirements?/[\w.-]+)\.(txt|in)", re.I)
OTHERS = re.compile(
    r"pixi\.(toml|lock)|pylock\.toml|pdm\.lock|(.+\.)?dockerfile|dockerfile(\..+)?", re.I
)
# Packages of uv.lock, and of requirements, that are files of the repository.
LOCAL = re.compile(r'^source = \{ (?:editable|directory|virtual|path) = "([^"]+)"', re.M)
EDITABLE = re.compile(r"^\s*(?:-e|--editable)[ =]([.\w][\w./-]*)(?:\[[^]]*\])?\s*(?:#.*)?$", re.M)
SHOWN = 8  # files that the plan names
# Programs of machines that a laptop may lack; those of packages are installed there.
THERE = {"accelerate", "conda", "deepspeed", "fairseq-train", "horovodrun", "ipython", "jupyter", "mpi",
         "mpirun", "nvcc", "nvidia-smi", "pip", "pytest", "python", "python3", "sudo", "torchrun", "uv",
         "uvx", "wandb"}  # fmt: skip
RUNS_SCRIPTS = {
    "accelerate",
    "bash",
    "deepspeed",
    "mpi",
    "python",
    "python3",
    "sh",
    "torchrun",
    "uv",
}


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
    if own == NONE:
        return []
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


# --- on the laptop, before a machine starts


def foresee(plan: Plan) -> dict[str, str]:
    """Rows of the plan: what is installed, what is not read, and what looks wrong in the command.

    Raises BergError for an installation that cannot work.
    """
    snapshot, own = plan.snapshot, plan.job.install
    if snapshot is None:
        return {}
    paths, missing = {*snapshot.files}, snapshot.missing
    used = next((name for name in SOURCES if name in paths), "") if not own else ""
    if used in ("uv.lock", "requirements.txt"):
        check_local(snapshot, used, paths, missing)
    others = [path for path in sorted(paths, key=lambda path: (path.count("/"), path))
              if path != used and is_source(path) and not belongs_to(path, used)]  # fmt: skip
    conda = next((path for path in others if CONDA.fullmatch(path)), "")
    if conda and not used and not own and not plan.job.is_devbox:
        raise BergError(
            f"{conda} is not read: Berg installs with uv and pip. Have it installed by an image's conda: "
            f"{option_for(conda)}; or run without it: --install none"
        )
    what = f"{used}: {HOW.get(used, 'uv pip install -e .')}" if used else own
    what = "nothing (--install none)" if own == NONE else what or "nothing: no file says what"
    rows = {"Install": what}
    if others and not own:
        named = "\n".join(f"{path} ({option_for(path)})" for path in others[:SHOWN])
        rows["Not read"] = named + (
            f"\nand {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        )
    if missing:
        rows["Not sent"] = f"{', '.join(missing[:SHOWN])}: submodules; git submodule update --init"
    if wrong := unknown(plan.job.cmd, snapshot.cwd, paths, bool(own)):
        rows["Careful"] = wrong
    return rows


def is_source(path: str) -> bool:
    """Whether a file of the first two levels says what is to be installed."""
    folder, _, name = path.rpartition("/")
    if "/" in folder:
        return False
    known = path in SOURCES or name in SOURCES[:4]
    return known or any(
        kind.fullmatch(path) or kind.fullmatch(name) for kind in (CONDA, TEXTS, OTHERS)
    )


def belongs_to(path: str, used: str) -> bool:
    """Whether a package file is read together with the one that is used."""
    if path in ("pyproject.toml", "setup.py"):
        return used not in ("", "requirements.txt")
    return path.startswith("requirements") and used in ("pyproject.toml", "setup.py")


def option_for(path: str) -> str:
    """The option with which a package file would be used."""
    name = path.rpartition("/")[2]
    if CONDA.fullmatch(path) or CONDA.fullmatch(name):
        return f'--install "conda env update -n base -f {path}"'
    if TEXTS.fullmatch(path) or TEXTS.fullmatch(name):
        return f'--install "pip install -r {path}"'
    if "dockerfile" in name.lower():
        return "--docker IMAGE, built of it"
    if name in ("pyproject.toml", "setup.py"):
        return '--install "pip install -r requirements.txt -e ."'
    return '--install "COMMAND"'


def check_local(snapshot: code.Snapshot, used: str, paths: set[str], missing: list[str]) -> None:
    """Raise BergError for a package that is a folder or file of the repository, and is not sent."""
    text = code.git(snapshot.root, "show", f"{snapshot.commit}:{used}")
    for path in (LOCAL if used == "uv.lock" else EDITABLE).findall(text):
        path = posixpath.normpath(path)
        if path == "." or path in paths or any(each.startswith(f"{path}/") for each in paths):
            continue
        inside = next((each for each in missing if f"{path}/".startswith(f"{each}/")), "")
        if inside:
            raise BergError(
                f"{used} needs {path}, and the submodule {inside} is not checked out. Run: "
                f"git submodule update --init {inside}"
            )
        place = (
            "outside of the repository" if path.startswith(("..", "/")) else "ignored, or not there"
        )
        raise BergError(
            f"{used} needs {path}, which is {place}, so it would not be sent. Move it into the repository, "
            'or install otherwise: --install "COMMAND"'
        )


def unknown(cmd: str, cwd: str, paths: set[str], has_own: bool) -> str:
    """What looks wrong in a command: a first word or a script that is nowhere here; "" if nothing."""
    try:
        words = shlex.split(cmd)
    except ValueError as error:
        return f"the command is no complete line of a shell: {error}"
    while words and re.fullmatch(r"\w+=.*", words[0], re.S):  # a variable
        words.pop(0)
    stop = next(
        (at for at, word in enumerate(words) if re.search(r"[;&|]$|^[;&|]", word)), len(words)
    )
    words = [word.rstrip(";") for word in words[: stop + 1]]
    if not words or re.search(r"[${}*`]", words[0]):
        return ""
    folders = {posixpath.normpath(posixpath.join(cwd, word)): word for word in words}
    first = words[0]
    is_path = "/" in first
    if is_path and not first.startswith(("/", "~")):
        if posixpath.normpath(posixpath.join(cwd, first)) not in paths:
            return f"{first} is no file of the repository (ignored files are not sent: .gitignore)"
    elif not is_path and not has_own and first not in THERE and not is_word_of_bash(first):
        return f"{first} is no program that is known here; a package must bring it"
    if first not in RUNS_SCRIPTS:
        return ""
    for path, word in folders.items():
        if (
            re.fullmatch(r"(?!-)[\w./-]+\.(py|sh)", word)
            and not word.startswith("/")
            and path not in paths
        ):
            return f"{word} is no file of the repository (ignored files are not sent: .gitignore)"
        if re.fullmatch(r"(?!-)[\w./-]+\.(py|sh)", word) or word in ("-m", "-c"):
            return ""  # what follows are its arguments
    return ""


def is_word_of_bash(word: str) -> bool:
    """Whether bash knows a first word here: a program, a builtin or a keyword."""
    words = ["bash", "-c", 'type -t -- "$1"', "bash", word]
    return not subprocess.run(words, capture_output=True).returncode


# --- on the machine


def program() -> str:
    """uv: what boot.py brought, or that of a golden image."""
    own = (BERG / "uv", BERG / "venv/bin/uv")
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
