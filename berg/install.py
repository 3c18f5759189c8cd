"""The packages of a repository: uv or pip installs them, and says itself what is wrong.

The plan says which file that is, which others are not read, and refuses what cannot work.

the user's own command           berg run --install "make deps"; none installs nothing
uv.lock                          uv sync --locked, into .venv
poetry.lock, Pipfile.lock        poetry install, pipenv sync, by uv
requirements.txt, a package      pip, on top of the image's packages: its PyTorch stays
pyproject.toml without a build   its dependencies, by pip
[tool.uv] without a lock         as the two above, by uv, which knows its sources and indexes
"""

from __future__ import annotations

import difflib
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from berg import BergError, code, reasons
from berg.boot import BERG
from berg.code import ROOT
from berg.job import INSTALLING

if TYPE_CHECKING:
    from berg.run import Plan
    from berg.worker import Run

VENV = BERG / "env"  # what is installed, on top of the image's own packages
BIN = BERG / "bin"  # uv, the last folder of PATH: an image's own comes first
QUIET = {"PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}  # a log is no terminal
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
LOCKS = {  # -> arguments of uv
    "uv.lock": ["sync", "--locked", "--no-progress"],
    "poetry.lock": ["tool", "run", "-q", "poetry", "install", "--no-interaction"],
    "Pipfile.lock": ["tool", "run", "-q", "pipenv", "sync"],
}
# In a pyproject.toml: it is a package; it is none.
BUILD = re.compile(r"^\[(build-system|tool\.setuptools)\b", re.M)
PACKAGES = re.compile(r"^\[(project|build-system|tool\.(setuptools|poetry|pdm))\b", re.M)
MICROMAMBA = "curl -Ls https://micro.mamba.pm/api/micromamba/linux-64/latest | tar -xj -C /usr/local bin/micromamba"
IN_IMAGE = "true  # the image has the packages"
NO_PACKAGE = re.compile(r"^(package|package-mode|distribution) = false", re.M)
TABLE = r"^\[{}\] *(?:#.*)?\n((?:(?!\[).*\n?)*)"  # of TOML: its lines, up to the next one
KEY = re.compile(r'^"?([\w.-]+)"? *=', re.M)
# A lock was made with its author's settings, without which uv would refuse it.
NEWER = re.compile(r'^exclude-newer(?:-span)? = "([^"]+)"', re.M)
CONDA = re.compile(
    r"(conda|environment|env)[\w.-]*\.ya?ml|conda-lock\.yml|envs?/[\w.-]+\.ya?ml", re.I
)
TEXTS = re.compile(r"([\w-]*requirements[\w.-]*|requirements?/[\w.-]+)\.(txt|in)", re.I)
OTHERS = re.compile(
    r"pixi\.(toml|lock)|pylock\.toml|pdm\.lock|(.+\.)?dockerfile|dockerfile(\..+)?", re.I
)
# Packages of uv.lock, and of requirements, that are files of the repository.
LOCAL = re.compile(r'^source = \{ (?:editable|directory|virtual|path) = "([^"]+)"', re.M)
FOLDER = re.compile(
    r"^\s*(?:(?:-e|--editable)[ =]|[\w.-]+(?:\[[^]]*\])? *@ *file:(?!//)|(?=\.{1,2}/))([.\w][\w./-]*)"
    r"(?:\[[^]]*\])?\s*(?:[;#].*)?$", re.M
)  # fmt: skip
NESTED = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[ =]*([\w./-]+)", re.M)
TORCH = re.compile(r"^requires *= *\[[^]]*[\"']torch\b", re.M)  # of a build
SHOWN, EXTRAS = 8, 5  # files and extras that the plan names
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
        why = reasons.of_installer(output)
        super().__init__(
            f"the installation failed (exit code {code})" + (f": {why}" if why else "")
        )
        self.code = code


@dataclass
class Choice:
    """How a repository is installed: "uv" or "pip" and its arguments, in a folder; nothing if no file
    says what.
    """

    folder: str = "."
    words: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # that say so, the first one names it

    @property
    def is_locked(self) -> bool:
        return self.words[1:] == LOCKS["uv.lock"]


def choose(cwd: str, read: Callable[[str], str | None], is_folder: Callable[[str], bool]) -> Choice:
    """What the files say from the command's folder upwards, locks before others. `read` returns a file
    of the repository by its path, None without it.
    """
    above = [str(folder) for folder in (PurePosixPath(cwd), *PurePosixPath(cwd).parents)]
    for folder in above:
        for name, arguments in LOCKS.items():
            file = posixpath.normpath(f"{folder}/{name}")
            if read(file) is not None:
                return Choice(folder, ["uv", *arguments], [file])
    for folder in above:
        files = {name: posixpath.normpath(f"{folder}/{name}") for name in SOURCES}
        project, found = read(files["pyproject.toml"]) or "", list[str]()
        if read(files["requirements.txt"]) is not None:
            found = ["-r", "requirements.txt"]
        is_project = bool(re.search(r"^\[project\]", project, re.M))
        is_package = BUILD.search(project) or (is_project and is_folder(f"{folder}/src"))
        if read(files["setup.py"]) is not None or (is_package and not NO_PACKAGE.search(project)):
            found += ["-e", "."]
        elif is_project and not found:
            found = ["-r", "pyproject.toml"]
        if found:
            by_uv = re.search(r"^\[+tool\.uv\b", project, re.M) or "pyproject.toml" in found
            used = [name for name in files if name in found]
            used += [name for name in ("pyproject.toml", "setup.py") if "." in found]
            words = [*(["uv", "pip"] if by_uv else ["pip"]), "install", *found]
            there = [files[name] for name in used if read(files[name]) is not None]
            return Choice(folder, words, there)
    return Choice()


# --- on the laptop, before a machine starts


def foresee(plan: Plan) -> dict[str, str]:
    """Rows of the plan: what is installed, what is not read, and what looks wrong in the command.

    Raises BergError for an installation that cannot work.
    """
    snapshot, own = plan.snapshot, plan.job.install
    if snapshot is None:
        return {}
    paths, missing = {*snapshot.files}, snapshot.missing

    def read(name: str) -> str | None:
        file = f"{snapshot.commit}:{name}"
        return code.git(snapshot.root, "show", file) if name in paths else None

    choice = (
        choose(plan.job.cwd, read, lambda path: is_folder(path, paths)) if not own else Choice()
    )
    used = check_local(choice, read, paths, missing)
    others = [path for path in sorted(paths, key=lambda path: (path.count("/"), path))
              if is_source(path) and is_due(path, choice, used)
              and (path != "pyproject.toml" or PACKAGES.search(read(path) or ""))]  # fmt: skip
    conda = next((path for path in others if CONDA.fullmatch(path)), "")
    names_some = [name for name in used if not name.endswith("setup.py")
                  or re.search("install_requires|requirements", read(name) or "")]  # fmt: skip
    if conda and not names_some and not own and not plan.job.is_devbox:
        raise BergError(
            f"{conda} is not read: Berg installs with uv and pip. Have micromamba install it: "
            f"{option_for(conda, choice)}, and run its python: /root/env/bin/python …; or run without it: "
            "--install none"
        )
    what = f"{choice.files[0]}: {shlex.join(choice.words)}" if choice.words else own
    project = read(posixpath.normpath(f"{choice.folder}/pyproject.toml")) or ""
    if left := without(choice, project, bool(plan.job.gpus)):
        what += f"; {left}"
    what = "nothing (--install none)" if own == NONE else what or "nothing: no file says what"
    if own == IN_IMAGE:
        what = "nothing: the image has the packages (another way: --install COMMAND)"
    rows = {"Install": what}
    if others and not own:
        options = {path: option_for(path, choice) for path in others}
        for path in others:  # of several, one has conda's long line
            if CONDA.fullmatch(path) and path != conda:
                options[path] = f"as {conda}"
        named = "\n".join(f"{path} ({options[path]})" for path in others[:SHOWN])
        rows["Not read"] = named + (
            f"\nand {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        )
    if missing:
        rows["Not sent"] = f"{', '.join(missing[:SHOWN])}: submodules; git submodule update --init"
    careful = []
    if choice.words[-1:] == ["."] and TORCH.search(project):
        careful.append(
            "building it needs torch, and pip would take another one than the image's: "
            '--install "pip install --no-build-isolation -e ."'
        )

    def is_brought(program: str) -> bool:
        """Whether the user's own installation, or a package of the repository, may bring it."""
        return bool(own) or any(program in (read(name) or "") for name in choice.files)

    careful.append(code.pointers(snapshot))
    careful.append(unknown(plan.job.cmd, plan.job.cwd, paths, missing, is_brought))
    rows["Careful"] = "\n".join(filter(None, careful))
    return {name: text for name, text in rows.items() if text}


def without(choice: Choice, project: str, has_gpu: bool) -> str:
    """The extras and groups that are left out, and the option that installs one, of those for GPUs or CPUs
    the one that fits; "" if nothing is.
    """
    left = left_out(project)
    if not choice.is_locked:
        left = [name for name in left if name.startswith("extra ")] * (choice.words[-1:] == ["."])
    if not left:
        return ""
    fits = re.compile(r"extra (gpu|cuda|cu)\d*$" if has_gpu else r"extra cpu$")
    first = next(filter(fits.match, left), left[0])
    names = ", ".join(left[:EXTRAS]) + (f" and {len(left) - EXTRAS} more" if left[EXTRAS:] else "")
    option = f"uv sync --locked --{first}"
    if not choice.is_locked:
        option = f"{shlex.join(choice.words)}[{first.removeprefix('extra ')}]"
    return f'without {names}: --install "{option}"'


def left_out(project: str) -> list[str]:
    """Extras and groups of a pyproject.toml that `uv sync` does not install, as its options name them."""

    def keys(table: str) -> list[str]:
        found = re.search(TABLE.format(re.escape(table)), project, re.M)
        return KEY.findall(found[1]) if found else []

    default = re.search(r'^default-groups *= *(\[[^]]*\]|"all")', project, re.M)
    installed = default[1] if default else '"dev"'
    groups = keys("dependency-groups") if installed != '"all"' else []
    return [
        *(f"extra {name}" for name in keys("project.optional-dependencies")),
        *(f"group {name}" for name in groups if f'"{name}"' not in installed.replace("'", '"')),
    ]


def is_source(path: str) -> bool:
    """Whether a file of the first two levels says what is to be installed."""
    folder, _, name = path.rpartition("/")
    if "/" in folder:
        return False
    known = path in SOURCES or name in SOURCES[:4]
    return known or any(
        kind.fullmatch(path) or kind.fullmatch(name) for kind in (CONDA, TEXTS, OTHERS)
    )


def is_due(path: str, choice: Choice, used: list[str]) -> bool:
    """Whether the plan names a package file: none that is used, or that a lock was made of, and none of
    folders beside the one that has its own.
    """
    is_by_lock = bool(used) and posixpath.basename(used[0]) in LOCKS
    of_lock = path in ("pyproject.toml", "setup.py") or bool(TEXTS.fullmatch(path))
    folder = posixpath.dirname(path) or "."
    is_beside = choice.folder != "." and folder not in (".", choice.folder)
    return not (path in used or (is_by_lock and of_lock) or (bool(used) and is_beside))


def option_for(path: str, choice: Choice) -> str:
    """The option with which a package file would be used, beside what is installed anyway."""
    name = path.rpartition("/")[2]
    if CONDA.fullmatch(path) or CONDA.fullmatch(name):
        return f'--install "{MICROMAMBA} && micromamba create -y -p /root/env -f {path}"'
    if TEXTS.fullmatch(path) or TEXTS.fullmatch(name):
        pip = choice.words if "pip" in choice.words else ["pip", "install"]
        return f'--install "{shlex.join(pip)} -r {path}"'
    if "dockerfile" in name.lower():
        return "build and push an image of it, then: --docker IMAGE"
    if name in LOCKS:
        folder = posixpath.dirname(path)
        return f"--cwd {folder}" if folder else f'--install "uv {shlex.join(LOCKS[name])}"'
    if name in ("pyproject.toml", "setup.py"):
        own = "-r requirements.txt " * ("requirements.txt" in choice.words)
        return f'--install "pip install {own}-e ."'
    return "Berg does not know its tool; name the packages in requirements.txt"


def check_local(
    choice: Choice, read: Callable[[str], str | None], paths: set[str], missing: list[str]
) -> list[str]:
    """The files that an installation reads, with those that they name. Raises BergError for a package or a
    file of the repository that they need, and that is not sent.
    """
    used = [*choice.files]
    for name in used:  # which grows
        text, is_lock = read(name) or "", name.endswith("uv.lock")
        nested = [] if is_lock else NESTED.findall(text) * name.endswith((".txt", ".in"))
        needed = [f"{posixpath.dirname(name)}/{path}".lstrip("/") for path in nested]
        found = (LOCAL if is_lock else FOLDER).findall(text)
        for path in [posixpath.normpath(f"{choice.folder}/{each}") for each in found] + needed:
            path = posixpath.normpath(path)
            if path == "." or path in paths or any(each.startswith(f"{path}/") for each in paths):
                continue
            if of_submodule(path, missing):
                raise BergError(f"{name} needs {path}, {of_submodule(path, missing)}")
            is_outside = path.startswith(("..", "/"))
            place = "outside of the repository" if is_outside else "ignored, or not there"
            raise BergError(
                f"{name} needs {path}, which is {place}, so it would not be sent. Move it into the "
                'repository, or install otherwise: --install "COMMAND"'
            )
        used += [path for path in map(posixpath.normpath, needed) if path not in used]
    return used


def of_submodule(path: str, missing: list[str]) -> str:
    """That a path is in a submodule which is not checked out, and what helps; "" if it is not."""
    inside = next((each for each in missing if f"{path}/".startswith(f"{each}/")), "")
    if not inside:
        return ""
    which = f" {inside}" if len(missing) == 1 else ""
    return f"and the submodule {inside} is not checked out. Run: git submodule update --init{which}"


def unknown(
    cmd: str, cwd: str, paths: set[str], missing: list[str], is_brought: Callable[[str], bool]
) -> str:
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
    first = words[0]
    if change := re.match(r"\s*cd\s+([\w.][\w./-]*)\s*(?:(?:&&|;)\s*(.*))?$", cmd, re.S):
        folder = posixpath.normpath(posixpath.join(cwd, change[1]))
        if folder.startswith("..") or folder in paths:  # that is a link
            return ""
        if folder != "." and not is_folder(folder, paths):
            return absent(change[1], folder, missing).replace("a file", "a folder")
        return unknown(change[2], folder, paths, missing, is_brought) if change[2] else ""
    folders = {posixpath.normpath(posixpath.join(cwd, word)): word for word in words}
    is_path = "/" in first
    if is_path and not first.startswith(("/", "~")):
        if posixpath.normpath(posixpath.join(cwd, first)) not in paths:
            return absent(first, posixpath.normpath(posixpath.join(cwd, first)), missing)
    elif not is_path and first not in THERE and not is_word_of_bash(first):
        if near := difflib.get_close_matches(first, THERE, 1, 0.75):
            return f"{first} is not a program that is known here. Did you mean {near[0]}?"
        if not is_brought(first):
            return f"{first} is not a program that is known here; a package must bring it"
    if first not in RUNS_SCRIPTS:
        return ""
    for path, word in folders.items():
        if (
            re.fullmatch(r"(?!-)[\w./-]+\.(py|sh)", word)
            and not word.startswith("/")
            and path not in paths
        ):
            return absent(word, path, missing)
        if word == "-m":
            return no_module("".join(words[words.index(word) + 1 :][:1]), cwd, paths)
        if re.fullmatch(r"(?!-)[\w./-]+\.(py|sh)", word) or word == "-c":
            return ""  # what follows are its arguments
    return ""


def is_folder(path: str, paths: set[str]) -> bool:
    """Whether files of the repository are below a path."""
    return any(each.startswith(f"{posixpath.normpath(path)}/") for each in paths)


def no_module(module: str, cwd: str, paths: set[str]) -> str:
    """What is said of a module that a package of the repository does not have; "" for all others."""
    names = module.split(".")
    package, path = posixpath.join(cwd, names[0]), posixpath.join(cwd, *names)
    package, path = posixpath.normpath(package), posixpath.normpath(path)
    if f"{package}/__init__.py" not in paths or f"{path}.py" in paths or is_folder(path, paths):
        return ""
    return f"{module} is not a module of the repository's {names[0]}"


def absent(word: str, path: str, missing: list[str]) -> str:
    if of_submodule(path, missing):
        return f"{word} is not there, {of_submodule(path, missing)}"
    return f"{word} is not a file of the repository (ignored files are not sent: .gitignore)"


def is_word_of_bash(word: str) -> bool:
    """Whether bash knows a first word here: a program, a builtin or a keyword."""
    words = ["bash", "-c", 'type -t -- "$1"', "bash", word]
    return not subprocess.run(words, capture_output=True).returncode


# --- on the machine


def program() -> str:
    """uv: what boot.py brought, or that of a golden image."""
    own = (BERG / "uv", BERG / "venv/bin/uv")
    return next((str(file) for file in own if file.exists()), shutil.which("uv") or "")


def variables(place: Path) -> dict[str, str]:
    """What makes the command find the packages that were installed in a folder."""
    own = [
        folder / ".venv"
        for folder in (place, *place.parents)
        if folder.is_relative_to(ROOT / "code")
    ]
    folder = next((each for each in own if (each / "bin").exists()), VENV)
    path = f"{os.environ['PATH']}:{BIN}"
    if not folder.exists():
        return {"PATH": path}
    return {"VIRTUAL_ENV": str(folder), "PATH": f"{folder}/bin:{path}"}


def run(run: Run) -> None:
    """Install what the repository needs; raise Failed with the exit code of what refused."""

    def read(name: str) -> str | None:
        file = run.repo / name
        return file.read_text(errors="replace") if file.is_file() else None

    own, uv = run.job.install, program()
    choice = Choice() if own else choose(run.job.cwd, read, lambda path: (run.repo / path).is_dir())
    words, place = choice.words, run.repo / choice.folder
    if uv:
        make_scripts(BIN, uv=uv, uvx=f"{uv} tool run")
    if not VENV.exists() and not choice.is_locked:
        make_environment(run, uv)
    more = {**QUIET, **run.job.env, **run.install_variables}
    if choice.is_locked and (newer := NEWER.findall(read(choice.files[0]) or "")):
        more = {"UV_EXCLUDE_NEWER": newer[-1], **more}  # the span, beside which the time is void
    if own and own != NONE:
        words = ["bash", "-o", "pipefail", "-c", own]
    elif words[:1] == ["pip"]:
        words = [str(VENV / "bin/python"), "-m", "pip", *words[1:]]
    elif words:
        words = [uv or "uv", *words[1:]]
    if words:
        if run.state.state != INSTALLING:  # it is already if features prepared something
            run.write_state(INSTALLING)
        execute(run, words, place, {**more, **variables(place)})
    made = variables(run.cwd).get("VIRTUAL_ENV", "")
    if uv and made and not Path(made, "bin/pip").exists():
        make_scripts(Path(made, "bin"), pip=f"{uv} pip", pip3=f"{uv} pip")


def make_environment(run: Run, uv: str) -> None:
    """Make a virtual environment that sees the packages of the image's python."""
    python = shutil.which(
        "python3", path="/root/anaconda3/bin:/opt/conda/bin:" + os.environ["PATH"]
    )
    python = python or sys.executable
    find = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('pip'))"
    has_pip = not subprocess.run([python, "-c", find]).returncode
    make = [uv, "venv", "-q", *([] if has_pip else ["--seed"])]
    make = [*(make if uv else [python, "-m", "venv"]), "--system-site-packages"]
    execute(run, [*make, *(["--python", python] if uv else []), str(VENV)])
    if has_pip:  # of the image, which knows the image's package sources
        words = f"{VENV}/bin/python -m pip"
        make_scripts(VENV / "bin", pip=words, pip3=words)


def make_scripts(folder: Path, **programs: str) -> None:
    """Programs that run others with the same arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)


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
            start_new_session=True,
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
