"""A Dockerfile for a repo without one: it installs what was decided for the repo, as machines do.

What can be installed from the files that name packages comes before the code, so that a change of
the code alone installs nothing again. The code is where pods and machines have it, and the virtual
environment where they look for it: a job finds it there, and has nothing to download.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from berg import BergError
from berg.code import installation, uv
from berg.code.commits import Files
from berg.code.installation import PROJECT, REQUIREMENTS
from berg.job import Installation

ENVIRONMENTS, CACHE, UV = "/root/berg_env", "/root/berg_cache/uv", "/opt/uv"
# A pod's code comes with git; without it each pod would install it.
GIT = "RUN command -v git || { apt-get update && apt-get install -y --no-install-recommends git; }"
# Files that say what to install, and with which python.
NAMES = (PROJECT, "uv.lock", "uv.toml", "pylock.toml", REQUIREMENTS, ".python-version")
SAFE = re.compile(r"[\w.@+/-]*", re.ASCII)  # in a Dockerfile, and to a shell
# What in a file says that more of the repo is needed than this file.
NEEDS_REPO = {
    REQUIREMENTS: r"^\s*(-[erc]\b|--(editable|requirement|constraint|find-links)\b|\.|file:)",
    "pylock.toml": r"\bpath\s*=|file:",
    PROJECT: r"file:|find-links",
}
BY_PIP = (["-m", "pip"], ["pip", "install"], ["pip", "sync"])  # the words after the first


def write(what: Installation, files: Files, repo: str, script: str, base: str) -> str:
    """Return the Dockerfile on a base image; raise BergError for a path that cannot be in one."""
    for path in (what.folder, what.venv, script):
        if not SAFE.fullmatch(path):
            raise BergError(
                f"{path!r} cannot be in a Dockerfile of berg's: rename it, or name a Dockerfile of "
                "yours: -f PATH"
            )
    first = [] if script else without_code(what, files)
    code, venv = f"/root/code/{repo}", f"{ENVIRONMENTS}/{what.environment(repo)}"
    lines = [f"FROM {base}", GIT]
    if calls_uv(what, first, files.read(script) if script else ""):
        lines += uv_lines()
    make, link = [], []
    if what.venv:
        lines.append(f"ENV VIRTUAL_ENV={venv} UV_PROJECT_ENVIRONMENT={venv} PATH={venv}/bin:$PATH")
        pinned = ["--python", what.python] if what.python else []
        folder = posixpath.dirname(what.venv)
        make = inside(code, folder, [run(["uv", "venv", "--seed", *pinned, venv])])
        link = [f"RUN ln -sfn {venv} {what.venv}"]
    lines += ["ENV UV_NO_SYNC=1"] * what.no_sync
    lines.append(f"WORKDIR {code}")
    if first:
        lines += [*copies(files, what.folder), *make, *inside(code, what.folder, map(run, first))]
        make = []
    lines += ["COPY . .", *make, *link]
    lines += [run(["bash", "-e", script])] * bool(script)
    return "\n".join([*lines, *inside(code, what.folder, remaining(what, first))]) + "\n"


def remaining(what: Installation, first: list[list[str]]) -> list[str]:
    """Return the lines for the steps that need the code."""
    lines = []
    for number, step in enumerate(what.steps):
        may_fail = " || echo The packages that it depends on are installed"
        lines += [run(step) + may_fail * (number in what.may_fail)] * (step not in first)
    return lines


def uv_lines() -> list[str]:
    """Return what installs the uv of machines, which is static and known by its hash."""
    hashes = " ".join(f"--hash=sha256:{wheel.sha256}" for wheel in uv.WHEELS.values())
    wheel = "--no-deps --only-binary :all: --platform musllinux_1_1_$(uname -m)"
    return [
        f"RUN echo 'uv=={uv.VERSION} {hashes}' >/tmp/uv.txt && pip install --no-cache-dir "
        f"--require-hashes {wheel} --target {UV} -r /tmp/uv.txt",
        f"ENV PATH=$PATH:{UV}/bin UV_CACHE_DIR={CACHE} UV_HTTP_TIMEOUT=120",
    ]


def calls_uv(what: Installation, first: list[list[str]], script: str) -> bool:
    """Return whether an installation runs uv."""
    steps = [*what.steps, *first]
    texts = [script, *(step[-1] if step[0] == "bash" else step[0] for step in steps)]
    return bool(what.venv) or any(map(installation.CALLS_UV.search, texts))


def inside(code: str, folder: str, lines: Iterable[str]) -> list[str]:
    """Return lines that run in a folder of the code."""
    found = list(lines)
    if not (folder and found):
        return found
    return [f"WORKDIR {code}/{folder}", *found, f"WORKDIR {code}"]


def run(words: list[str]) -> str:
    """Return the line that runs a program; without a shell where one would read more than words."""
    if words[:4] == installation.PIP[:4]:
        words = [*words, "--no-cache-dir"]
    text = shlex.join(words)
    return f"RUN {text if text == ' '.join(words) else json.dumps(words)}"


def copies(files: Files, folder: str) -> list[str]:
    """Return what copies the files that say what to install, of a folder and those around it."""
    lines = []
    for each in reversed(installation.upwards(folder)):
        there = [posixpath.join(each, name) for name in NAMES if files.has(each, name)]
        lines += [f"COPY {' '.join(there)} {PurePosixPath(each)}/"] * bool(there)
    return lines


def without_code(what: Installation, files: Files) -> list[list[str]]:
    """Return the first steps as they run with the files alone that say what to install."""
    found = []
    for step in what.steps:
        words = of_names(step, what, files)
        if not words:
            break
        found.append(words)
    return found


def of_names(step: list[str], what: Installation, files: Files) -> list[str]:
    """Return a step, or the part of it that installs what the code depends on; [] if that needs
    more files.
    """
    if step[:3] == ["uv", "sync", "--frozen"]:
        return [] if has_local_wheels(what, files) else [*step, "--no-install-local"]
    name = next((each for each in NEEDS_REPO if each in step), PROJECT)
    text = files.text(what.folder, name)
    if step[1:3] not in BY_PIP or re.search(NEEDS_REPO[name], text, re.MULTILINE):
        return []
    if "--no-deps" in step:  # all packages, by their versions
        is_local = any(re.match(r"-e|\.", word) for word in step)
        return [] if is_local else step
    return of_project(step, what, files) if name == PROJECT else step


def has_local_wheels(what: Installation, files: Files) -> bool:
    """Return whether a uv.lock names a folder of the repo as an index."""
    lock = installation.load(files, posixpath.join(posixpath.dirname(what.venv), "uv.lock"))
    sources = [str(each["source"].get("registry", "")) for each in lock["package"]]
    return any(source and not source.startswith("http") for source in sources)


def of_project(step: list[str], what: Installation, files: Files) -> list[str]:
    """Return the same of a step that installs a project's dependencies, or one of its groups."""
    about = installation.load(files, posixpath.join(what.folder, PROJECT)).get("project", {})
    is_dynamic = {"dependencies", "optional-dependencies"} & {*about.get("dynamic", [])}
    if step[-2] != "-e":
        return [] if is_dynamic and "-r" in step else step
    if is_dynamic or "dependencies" not in about:
        return []
    pip = installation.UV_PIP if step[0] == "python" else step[:3]
    extras = filter(None, step[-1].strip(".[]").split(","))
    return [*pip, "-r", PROJECT, *(word for each in extras for word in ("--extra", each))]
