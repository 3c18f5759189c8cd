"""What a job's machines install, decided from its code, its options and its image; and the
Dockerfile that installs the same for a repo without one.
"""

import json
import posixpath
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from berg import BergError, job
from berg.code import dist, installation, snapshot
from berg.code.installation import PROJECT, REQUIREMENTS
from berg.code.snapshot import Files, Snapshot
from berg.config import Config
from berg.google import api, builds
from berg.google.storage import Bucket
from berg.job import Installation
from berg.plan import Choice
from berg.spec import JobSpec

# Patterns of image names -> their Python version; "": 3. and the first group.
PYTHONS = {
    r"\bpy3(\d+)\b": "",
    r"\bpython:3\.(\d+)": "",
    r"ubuntu(-accel)?-2404": "3.12",
    r"ubuntu(-accel)?-2204": "3.10",
    r"debian-13": "3.13",
    r"debian-12": "3.11",
    r"debian-11": "3.9",
}

ENVIRONMENTS, CACHE, UV = "/root/berg_env", "/root/berg_cache/uv", "/opt/uv"
# A pod gets its code by git, and would install it each time.
GIT = "RUN command -v git || { apt-get update && apt-get install -y --no-install-recommends git; }"
# Files that name packages or a Python version.
NAMES = (PROJECT, "uv.lock", "uv.toml", "pylock.toml", REQUIREMENTS, ".python-version")
# Patterns in a file that need more of the repo than this file.
NEEDS_REPO = {
    REQUIREMENTS: r"^\s*(-[erc]\b|--(editable|requirement|constraint|find-links)\b|\.|file:)",
    "pylock.toml": r"\bpath\s*=|file:",
    PROJECT: r"file:|find-links",
}
BY_PIP = (["-m", "pip"], ["pip", "install"], ["pip", "sync"])  # the words after the first


def decide(
    config: Config,
    spec: JobSpec,
    choice: Choice,
    taken: Snapshot,
    folder: Path,
    for_image: bool = False,
) -> Installation:
    """Return what a job's machines install; raise BergError if that cannot work.

    Code that is only in the bucket is downloaded, unless its job was installed in the same way.
    `for_image` is for a disk image, which has no GPUs while it is built.
    """
    accelerator = accelerator_of(spec.tpu, for_image or choice.shape.num_gpus > 0)
    is_own = choice.image_project == config.project or for_image
    is_own = is_own or choice.image.startswith(builds.full_name(config, "", "").rstrip(":"))
    wanted = installation.Wanted(
        folder=folder_in(spec, taken, folder),
        command=spec.cmd or "",
        script=spec.install_script or "",
        install=spec.install or "",
        extras=spec.extras,
        groups=spec.groups,
        container=spec.container,
        accelerator=accelerator,
        image=choice.image,
        is_own_image=is_own,
        where="machine" if spec.cluster is None else "pod",
        **software(config, choice.image, choice.image_project),
    )
    ran = taken.ran
    if ran is None:
        return decide_from(snapshot.files_in(taken), wanted)
    if has_same_options(ran, wanted) and ran.spec.image == spec.image:
        return ran.installation
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        folder = Path(temporary, "repo")
        folder.mkdir()
        found = snapshot.files_of(ran.snapshot, folder, packs_of(Bucket(config), Path(temporary)))
        return decide_from(found, wanted)


def decide_for_image(
    taken: Snapshot, folder: Path, python: str, additions: dict[str, Any]
) -> tuple[Files, Installation]:
    """Return the repo's files, and what a container image for GPUs with a Python version installs;
    `additions` are options such as extras.
    """
    found = snapshot.files_in(taken)
    wanted = installation.Wanted(
        folder=folder_in(JobSpec(), taken, folder),
        accelerator="gpu",
        image=f"python:{python}-slim",
        python=".".join(python.split(".")[:2]),
        is_own_image=True,
        where="build",
        **additions,
    )
    return found, installation.decide(found, wanted)


def decide_from(found: Files, wanted: installation.Wanted) -> Installation:
    made = installation.decide(found, wanted)
    return replace(made, others=installation.named(found, wanted, made))


def packs_of(bucket: Bucket, folder: Path) -> Callable[[str], IO[bytes]]:
    """Return a function that downloads a pack into a folder and opens it."""

    def open_pack(name: str) -> IO[bytes]:
        path = folder / "pack"
        try:
            bucket.download(name, path)
        except api.NotFound:
            raise BergError(f"the code is not in the bucket any more: no {name}") from None
        return path.open("rb")

    return open_pack


def folder_in(spec: JobSpec, taken: Snapshot, folder: Path) -> str:
    """Return the folder of the repo that is installed: the command's, for a devbox the current."""
    root = taken.root.resolve()
    if spec.cmd is not None or taken.ran or not folder.resolve().is_relative_to(root):
        return spec.cwd or ""
    path = folder.resolve().relative_to(root)
    return "" if path == Path() else str(path)


def software(config: Config, image: str, project: str) -> dict[str, Any]:
    """Return an image's versions of Python and torch by its name; "" for a user's own images."""
    if project == config.project:
        return {"python": "", "torch": ""}
    python = ""
    for pattern, version in PYTHONS.items():
        if not python and (found := re.search(pattern, image)):
            python = version or f"3.{found[1]}"
    torch = re.search(r"pytorch-(\d+)-(\d+)-|pytorch/pytorch:(\d+)\.(\d+)", image)
    return {"python": python, "torch": ".".join(filter(None, torch.groups())) if torch else ""}


def accelerator_of(tpu: str | None, has_gpus: bool) -> str:
    if tpu:
        return "tpu"
    return "gpu" if has_gpus else ""


def has_same_options(ran: job.Job, wanted: installation.Wanted) -> bool:
    """Return whether a job was installed with the same options, for the same accelerators."""
    before = replace(
        wanted,
        folder=ran.spec.cwd or "",
        script=ran.spec.install_script or "",
        install=ran.spec.install or "",
        extras=ran.spec.extras,
        groups=ran.spec.groups,
        container=ran.docker,
        accelerator=accelerator_of(ran.tpu, ran.gpus_per_machine > 0),
    )
    return before == wanted


def dockerfile(what: Installation, files: Files, repo: str, script: str, base: str) -> str:
    """Return a Dockerfile on a base image; raise BergError for a path that cannot be in one.

    Packages that files name are installed before the code is copied, so that a change of the code
    alone installs nothing again. Code and virtual environment are where pods look for them.
    """
    for path in (what.folder, what.venv, script):
        # in a Dockerfile, and to a shell
        if not re.fullmatch(r"[\w.@+/-]*", path, re.ASCII):
            raise BergError(
                f"{path!r} cannot be in a generated Dockerfile: rename it, or name your own "
                "Dockerfile: -f PATH"
            )
    first, texts = [], []
    if script:
        texts.append(files.read(script))
    else:
        first = dependency_steps(what, files)
    code, venv = f"/root/code/{repo}", f"{ENVIRONMENTS}/{what.environment(repo)}"
    lines = [f"FROM {base}", GIT]
    texts += [step[-1] if step[0] == "bash" else step[0] for step in (*what.steps, *first)]
    if what.venv or any(map(installation.CALLS_UV.search, texts)):
        lines += uv_lines()
    make, link = [], []
    if what.venv:
        lines.append(f"ENV VIRTUAL_ENV={venv} UV_PROJECT_ENVIRONMENT={venv} PATH={venv}/bin:$PATH")
        make = inside(code, posixpath.dirname(what.venv), [venv_line(what.python, venv)])
        link = [f"RUN ln -sfn {venv} {what.venv}"]
    if what.no_sync:
        lines.append("ENV UV_NO_SYNC=1")
    lines.append(f"WORKDIR {code}")
    if first:
        lines += [*copies(files, what.folder), *make, *inside(code, what.folder, map(run, first))]
        make = []
    lines += ["COPY . .", *make, *link]
    if script:
        lines.append(run(["bash", "-e", script]))
    return "\n".join([*lines, *inside(code, what.folder, remaining(what, first))]) + "\n"


def remaining(what: Installation, first: list[list[str]]) -> list[str]:
    """Return the lines for the steps that need the code."""
    lines = []
    for number, step in enumerate(what.steps):
        if step in first:
            continue
        line = run(step)
        if number in what.may_fail:
            line += " || echo The packages that it depends on are installed"
        lines.append(line)
    return lines


def uv_lines() -> list[str]:
    """Return the lines that install the uv of machines, by its hash."""
    hashes = " ".join(f"--hash=sha256:{wheel.sha256}" for wheel in dist.WHEELS.values())
    wheel = "--no-deps --only-binary :all: --platform musllinux_1_1_$(uname -m)"
    return [
        f"RUN echo 'uv=={dist.UV_VERSION} {hashes}' >/tmp/uv.txt && pip install --no-cache-dir "
        f"--require-hashes {wheel} --target {UV} -r /tmp/uv.txt",
        f"ENV PATH=$PATH:{UV}/bin UV_CACHE_DIR={CACHE} UV_HTTP_TIMEOUT=120",
    ]


def venv_line(python: str, venv: str) -> str:
    pinned = ["--python", python] if python else []
    return run(["uv", "venv", "--seed", *pinned, venv])


def inside(code: str, folder: str, lines: Iterable[str]) -> list[str]:
    """Return lines that run in a folder of the code."""
    found = list(lines)
    if not (folder and found):
        return found
    return [f"WORKDIR {code}/{folder}", *found, f"WORKDIR {code}"]


def run(words: list[str]) -> str:
    """Return the line that runs a program; not by a shell if that would interpret the words."""
    if words[:4] == installation.PIP[:4]:
        words = [*words, "--no-cache-dir"]
    text = shlex.join(words)
    return f"RUN {text if text == ' '.join(words) else json.dumps(words)}"


def copies(files: Files, folder: str) -> list[str]:
    """Return the lines that copy the files that name packages, of a folder and its parents."""
    lines = []
    for each in reversed(installation.upwards(folder)):
        there = [posixpath.join(each, name) for name in NAMES if files.has(each, name)]
        if there:
            lines.append(f"COPY {' '.join(there)} {PurePosixPath(each)}/")
    return lines


def dependency_steps(what: Installation, files: Files) -> list[list[str]]:
    """Return the first steps as they run with only the files that name packages."""
    found = []
    for step in what.steps:
        words = dependencies_of(step, what, files)
        if not words:
            break
        found.append(words)
    return found


def dependencies_of(step: list[str], what: Installation, files: Files) -> list[str]:
    """Return the part of a step that installs the dependencies; [] if it needs more files."""
    if step[:3] == ["uv", "sync", "--frozen"]:
        return [] if has_local_index(what, files) else [*step, "--no-install-local"]
    name = next((each for each in NEEDS_REPO if each in step), PROJECT)
    text = files.text(what.folder, name)
    if step[1:3] not in BY_PIP or re.search(NEEDS_REPO[name], text, re.MULTILINE):
        return []
    if "--no-deps" in step:  # all packages, by their versions
        is_local = any(re.match(r"-e|\.", word) for word in step)
        return [] if is_local else step
    return dependencies_of_project(step, what, files) if name == PROJECT else step


def has_local_index(what: Installation, files: Files) -> bool:
    """Return whether a uv.lock names a folder of the repo as an index."""
    lock = installation.load(files, posixpath.join(posixpath.dirname(what.venv), "uv.lock"))
    indexes = [str(each["source"].get("registry", "")) for each in lock["package"]]
    return any(index and not index.startswith("http") for index in indexes)


def dependencies_of_project(step: list[str], what: Installation, files: Files) -> list[str]:
    """Do the same for a step that installs a project's dependencies, or one of its groups."""
    about = installation.load(files, posixpath.join(what.folder, PROJECT)).get("project", {})
    is_dynamic = {"dependencies", "optional-dependencies"} & {*about.get("dynamic", [])}
    if step[-2] != "-e":
        return [] if is_dynamic and "-r" in step else step
    if is_dynamic or "dependencies" not in about:
        return []
    pip = installation.UV_PIP if step[0] == "python" else step[:3]
    extras = filter(None, step[-1].strip(".[]").split(","))
    return [*pip, "-r", PROJECT, *(word for each in extras for word in ("--extra", each))]
