"""The archive of what the worker imports: complete, for every python, and made once."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from conftest import WHEELHOUSE

from berg import BergError
from berg.code import dist

FOR_LINUX = ("--python-version", "3.12", "--platform", "manylinux2014_x86_64")
TOP = Path(dist.__file__).parent.parent.parent
CHECK = """
import json, sys
sys.path[:0] = sys.argv[1:]
import berg.worker, google_crc32c
from google.auth import compute_engine
here = [m.__file__ for m in sys.modules.values() if "-packages" in (getattr(m, "__file__", None) or "")]
value = google_crc32c.extend(google_crc32c.value(b"1234"), b"56789")
print(json.dumps([here, google_crc32c.implementation, value]))
"""


def pythons() -> list[str]:
    """The pythons of this computer that berg runs on."""
    found = {sys.executable}
    for folder in os.get_exec_path():
        found |= {str(path) for path in Path(folder).glob("python3.1[0-9]")}
    works = "import sys, ctypes; sys.exit(sys.version_info < (3, 10))"
    return sorted(
        each
        for each in found
        if not subprocess.run([each, "-c", works], capture_output=True).returncode
    )


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(WHEELHOUSE))
    return tmp_path / "home"


def unpack(content: bytes, folder: Path) -> Path:
    archive = folder.with_suffix(".zip")
    archive.write_bytes(content)
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(folder)
    return folder


def run_worker_imports(python: str, folder: Path) -> list:
    command = [python, "-I", "-S", "-c", CHECK, str(TOP), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, (python, ran.stderr)
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_every_python_runs_the_worker_from_the_archive_alone(home, tmp_path):
    _, content = dist.build()
    folder = unpack(content, tmp_path / "site")
    assert len(content) < 6 << 20
    for python in pythons():
        assert run_worker_imports(python, folder) == [[], "c", 0xE3069283], python
    # One for which nothing of the archive was compiled.
    for compiled in folder.glob("google_crc32c/*.so"):
        compiled.unlink()
    assert run_worker_imports(sys.executable, folder) == [[], "c", 0xE3069283]
    # Without the library it would be slow: better ask pip.
    shutil.rmtree(folder / "google_crc32c.libs")
    command = [sys.executable, "-I", "-S", "-c", CHECK, str(TOP), str(folder)]
    assert subprocess.run(command, capture_output=True).returncode == 64


@pytest.mark.slow
def test_a_machine_with_this_python_compiles_next_to_nothing_of_the_archive(home, tmp_path):
    """Also where the sources' times are others, as they are once they are unpacked."""
    _, content = dist.build()
    folder = unpack(content, tmp_path / "site")
    sent = {path.relative_to(folder) for path in folder.rglob("*.pyc")}
    assert (
        len(sent) > 100 and Path(importlib.util.cache_from_source("requests/sessions.py")) in sent
    )
    run_worker_imports(sys.executable, folder)
    written = {path.relative_to(folder) for path in folder.rglob("*.pyc")} - sent
    assert len(written) < 10, f"more than the modules that the laptop has as libraries: {written}"


def test_it_is_made_once_for_its_versions(home, monkeypatch):
    made = dist.build()
    assert [path.read_bytes() for path in (home / "packages").iterdir()] == [made[1]]
    monkeypatch.setattr(dist, "collect", lambda wanted: pytest.fail("made again"))
    assert dist.build() == made


@pytest.mark.slow
def test_another_kind_of_laptop_takes_the_library_of_the_known_wheel(home, tmp_path, monkeypatch):
    """A Mac's own is for a Mac. Another wheel of the same name and version is not taken."""
    name = "google_crc32c-1.9.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    if not (WHEELHOUSE / name).exists():
        pytest.skip(f"takes {name}, which make .venv/wheelhouse downloads")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    shutil.copy(WHEELHOUSE / name, wheels)
    with zipfile.ZipFile(wheels / name, "a") as zipped:
        zipped.writestr("google_crc32c.libs/evil.so", "evil")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "macosx-14.0-arm64")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    with pytest.raises(BergError, match="DO NOT MATCH THE HASHES"):
        dist.download(dist.LIBRARY_OF, dist.LIBRARY_SHA256, dist.pip(), *FOR_LINUX)
    assert dist.build() == ("", b"")  # nothing that is known: the machine asks pip
    shutil.copy(WHEELHOUSE / name, wheels)
    _, content = dist.build()
    folder = unpack(content, tmp_path / "site")
    assert run_worker_imports(sys.executable, folder)[1:] == ["c", 0xE3069283]
