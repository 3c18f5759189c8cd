"""What a job's machines install, of its code, its options and its image together."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from berg import BergError, job
from berg.code import commits, installation, missing
from berg.code.commits import Files
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google import api, builds
from berg.google.storage import Bucket
from berg.job import Installation
from berg.plan import Choice
from berg.spec import JobSpec

# Parts of the names of Google's images, and of containers -> the python that they have.
PYTHONS = {
    r"\bpy3(\d+)\b": "",
    r"\bpython:3\.(\d+)": "",
    r"ubuntu(-accel)?-2404": "3.12",
    r"ubuntu(-accel)?-2204": "3.10",
    r"debian-13": "3.13",
    r"debian-12": "3.11",
    r"debian-11": "3.9",
}
TORCH = re.compile(r"pytorch-(\d+)-(\d+)-|pytorch/pytorch:(\d+)\.(\d+)")


def decide(
    config: Config,
    spec: JobSpec,
    choice: Choice,
    taken: Snapshot,
    folder: Path,
    image_for: str | None = None,
) -> Installation:
    """Return what the machines of a job install for its code; raise BergError if that cannot work.

    Code that is only in the bucket is read there, unless its job was to be installed the same way.
    `image_for` says for which accelerators a disk image is made, gpu or tpu.
    """
    accelerator = "tpu" if spec.tpu is not None else "gpu" * bool(choice.shape.num_gpus)
    is_own = choice.image_project == config.project or image_for is not None
    is_own = is_own or choice.image.startswith(builds.full_name(config, "", "").rstrip(":"))
    wanted = installation.Wanted(
        folder=folder_in(spec, taken, folder),
        command=spec.cmd or "",
        script=spec.install_script or "",
        install=spec.install or "",
        extras=spec.extras,
        groups=spec.groups,
        container=spec.container,
        accelerator=image_for or accelerator,
        image=choice.image,
        is_own_image=is_own,
        where="machine" if spec.cluster is None else "pod",
        **software(config, choice.image, choice.image_project),
    )
    ran = taken.ran
    if ran is None:
        return decided(commits.of_snapshot(taken), wanted)
    if is_asked_alike(ran, wanted) and ran.spec.image == spec.image:
        return ran.installation
    bucket = Bucket(config)
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        folder = Path(temporary, "repo")
        folder.mkdir()
        found = commits.files_of(ran.snapshot, folder, packs_of(bucket, Path(temporary)))
        return decided(found, wanted)


def decide_for_image(
    taken: Snapshot, folder: Path, python: str, additions: dict[str, Any]
) -> tuple[Files, Installation]:
    """Return the files of the repo, and what a container image with a python installs for them on
    machines with GPUs; `additions` are the choices of extras and the like.
    """
    found = commits.of_snapshot(taken)
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


def decided(found: Files, wanted: installation.Wanted) -> Installation:
    made = installation.decide(found, wanted)
    return replace(made, others=missing.named(found, wanted, made))


def packs_of(bucket: Bucket, folder: Path) -> Callable[[str], IO[bytes]]:
    """Return what opens a pack of the bucket, through a file in a folder."""

    def open_pack(name: str) -> IO[bytes]:
        path = folder / "pack"
        try:
            bucket.download(name, path)
        except api.NotFound:
            raise BergError(f"the code is not in the bucket any more: no {name}") from None
        return path.open("rb")

    return open_pack


def folder_in(spec: JobSpec, taken: Snapshot, folder: Path) -> str:
    """Return the folder of the repo whose files count first: that of the command, for a devbox the
    one around.
    """
    root = taken.root.resolve()
    if spec.cmd is not None or taken.ran or not folder.resolve().is_relative_to(root):
        return spec.cwd or ""
    path = folder.resolve().relative_to(root)
    return "" if path == Path() else str(path)


def software(config: Config, image: str, project: str) -> dict[str, Any]:
    """Return the versions of python and torch that an image has; nothing of a person's own images,
    and of containers that are not called after theirs.
    """
    if project == config.project:
        return {"python": "", "torch": ""}
    python = ""
    for pattern, version in PYTHONS.items():
        if not python and (found := re.search(pattern, image)):
            python = version or f"3.{found[1]}"
    torch = TORCH.search(image)
    return {"python": python, "torch": ".".join(filter(None, torch.groups())) if torch else ""}


def is_asked_alike(ran: job.Job, wanted: installation.Wanted) -> bool:
    """Return whether a job was to be installed like this one, for the same accelerators."""
    before = replace(
        wanted,
        folder=ran.spec.cwd or "",
        script=ran.spec.install_script or "",
        install=ran.spec.install or "",
        extras=ran.spec.extras,
        groups=ran.spec.groups,
        container=ran.docker,
        accelerator="tpu" if ran.tpu else "gpu" * bool(ran.gpus_per_machine),
    )
    return before == wanted
