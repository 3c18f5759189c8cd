"""Installed size without extras, against peers."""

import importlib.metadata
import shutil
from pathlib import Path

import common
from common import Result, Target

OWN = ("pip", "setuptools", "wheel")  # what a new environment has


def installed(folder: Path) -> tuple[float, float, int]:
    """MB of what packages brought to an environment, MB of what pip compiled of it, and how many
    packages.
    """
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = [
        each
        for each in importlib.metadata.distributions(path=[str(packages)])
        if each.name not in OWN
    ]
    files = {
        Path(str(each.locate_file(file))).resolve() for each in ours for file in each.files or []
    }
    sizes = {file: file.stat().st_size / 1e6 for file in files if file.is_file()}
    compiled = sum(size for file, size in sizes.items() if file.suffix == ".pyc")
    return sum(sizes.values()) - compiled, compiled, len(ours)


def measure(repeats: int) -> list[Result]:
    sizes = {"berg": installed(common.installed_berg().parent)}
    note = "gcloud is its whole folder with its Python. Measured once."
    for package in ("dsub", "skypilot[gcp]"):
        folder = common.peer(package)
        if isinstance(folder, str):
            note += f" {package} is missing: {folder}."
        else:
            sizes[package] = installed(folder.parent)
    rows = [
        [name, f"{mb:.1f}", f"{compiled:.1f}", str(count)]
        for name, (mb, compiled, count) in sizes.items()
    ]
    if gcloud := shutil.which("gcloud"):
        files = [file for file in Path(gcloud).resolve().parent.parent.rglob("*") if file.is_file()]
        compiled = sum(file.lstat().st_size for file in files if file.suffix == ".pyc") / 1e6
        everything = sum(file.lstat().st_size for file in files) / 1e6
        rows.append(["gcloud", f"{everything - compiled:.1f}", f"{compiled:.1f}", ""])
    target = Target("Berg before it is compiled", sizes["berg"][0], 90, "MB")
    return [
        Result("Installed size", note, ["", "MB", "MB more compiled", "packages"], rows, [target])
    ]


if __name__ == "__main__":
    common.main(__doc__, measure)
