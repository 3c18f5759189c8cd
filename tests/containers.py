"""podman without a daemon, its settings and its store in a folder of the test's own; images made of nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETTINGS = '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
NETWORK = '[containers]\nnetns = "host"\nkeyring = false\n'  # the tests' own has no way out anyway


def obstacle() -> str:
    """Why no image can be built here; "" if one can."""
    missing = [name for name in ("podman", "runc") if not shutil.which(name)]
    if missing:
        return f"{' and '.join(missing)} not installed"
    return "" if os.geteuid() == 0 else "podman and runc take root"


needs_podman = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def variables(folder: Path) -> dict[str, str]:
    """What podman is told of where it keeps its things."""
    folder.mkdir(parents=True, exist_ok=True)
    store = f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    files = {"containers.conf": SETTINGS + NETWORK, "storage.conf": store, "registries.conf": ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    return {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        "BUILDAH_ISOLATION": "chroot",
        "XDG_RUNTIME_DIR": str(folder),
        "TMPDIR": str(folder),
    }


class Podman:
    """Call it with the words of a command; it returns what podman prints, and fails when podman does."""

    def __init__(self, folder: Path):
        self.variables = variables(folder)

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess:
        environment = {**os.environ, **self.variables}
        return subprocess.run(["podman", *words], capture_output=True, text=True, env=environment, input=stdin)

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
