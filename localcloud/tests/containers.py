"""podman without a daemon, its settings and its store in a folder of the test's own; images made of
nothing.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SETTINGS = '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
# Where podman looks for a newer image than that which it has: nothing answers there.
NO_DOCKER = '[[registry]]\nprefix = "docker.io"\nlocation = "127.0.0.1:9/docker"\ninsecure = true\n'
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
    files = {
        "containers.conf": SETTINGS + NETWORK,
        "storage.conf": store,
        "registries.conf": NO_DOCKER,
    }
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
    """Call it with the words of a command; it returns what podman prints, and fails when podman
    does.
    """

    def __init__(self, folder: Path):
        self.variables = variables(folder)

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess:
        environment = {**os.environ, **self.variables}
        return subprocess.run(
            ["podman", *words], capture_output=True, text=True, env=environment, input=stdin
        )

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def slow():
    """A Dockerfile whose build takes half a minute, to fail then: its registry takes connections,
    and says nothing.
    """
    with socket.create_server(("127.0.0.1", 0)) as registry:
        yield f"FROM 127.0.0.1:{registry.getsockname()[1]}/nothing/here\n"


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """The files of an image with python, as a tar archive."""
    folder = tmp_path_factory.mktemp("base")
    make_root(folder / "root")
    archive = folder / "base.tar"
    subprocess.run(
        ["tar", "-cf", archive, "--owner=0", "--group=0", "-C", folder / "root", "."], check=True
    )
    return archive


UNNEEDED = "test tests __pycache__ *-packages idlelib config-* ensurepip pydoc_data lib2to3 tkinter _tkinter* _test*"
PROGRAMS = "bash sh git env setpriv setsid cat chmod cp date dirname head id ln ls mkdir mv rm sed sleep tail test touch "
PROGRAMS += "true uname"


def make_root(folder: Path) -> Path:
    """A small file system with python, pip, git and a shell, made of what this computer has; pip
    and uv find wheels in it.
    """
    (folder / "usr/bin").mkdir(parents=True)
    for name in ("bin", "sbin"):
        (folder / name).symlink_to("usr/bin")
    for name in ("etc", "root", "tmp", "var"):
        (folder / name).mkdir()
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (folder / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    (folder / "wheels").mkdir()
    (folder / "etc/uv").mkdir()
    (folder / "etc/uv/uv.toml").write_text('no-index = true\nfind-links = ["/wheels"]\n')
    for name in ("click", "packaging", "pip", "setuptools", "uv", "wheel"):
        for wheel in Path(sys.prefix, "wheelhouse").glob(f"{name}-*.whl"):
            shutil.copy(wheel, folder / "wheels")
    python = Path(sys.executable).resolve()
    asked = "import site, sysconfig; print(sysconfig.get_path('stdlib'), site.getsitepackages()[0])"
    stdlib, packages = subprocess.check_output([python, "-I", "-c", asked], text=True).split()
    unneeded = shutil.ignore_patterns(*UNNEEDED.split())
    shutil.copytree(stdlib, below(folder, stdlib), ignore=unneeded)
    (below(folder, stdlib) / "EXTERNALLY-MANAGED").unlink(missing_ok=True)
    import pip

    source = Path(pip.__file__).parent
    shutil.copytree(
        source, below(folder, packages) / "pip", ignore=shutil.ignore_patterns("__pycache__")
    )
    add_program(folder, python, python)
    for name in ("python", "python3"):
        (folder / "usr/bin" / name).symlink_to(python)
    script = folder / "usr/bin/pip"
    script.write_text(f'#!/bin/sh\nexec {python} -m pip "$@"\n')
    script.chmod(0o755)
    shutil.copytree("/usr/share/git-core/templates", folder / "usr/share/git-core/templates")
    for name in PROGRAMS.split():
        add_program(folder, Path(shutil.which(name) or name), Path("/usr/bin", name))
    # What python's own modules are linked with, and what comes with any Debian for others.
    compiled = Path(sysconfig.get_path("platlib")).glob("google_crc32c*/*.so*")
    for library in [*Path(stdlib, "lib-dynload").glob("*.so"), *compiled]:
        add_libraries(folder, library)
    return folder


def below(folder: Path, path: str | Path) -> Path:
    return folder / Path(path).relative_to("/")


def add_program(folder: Path, source: Path, target: Path) -> None:
    below(folder, target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, below(folder, target))
    add_libraries(folder, source)


def add_libraries(folder: Path, program: Path) -> None:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for path in re.findall(r"(/\S+)", listed):
        if not below(folder, path).exists():
            below(folder, path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, below(folder, path))
