"""Berg's own wheel, as machines get it."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from berg import __version__
from berg.code import dist
from berg.machine import boot


@pytest.fixture(autouse=True)
def its_home(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))


@pytest.mark.slow
def test_the_same_code_makes_the_same_wheel_and_pip_takes_it(tmp_path):
    name, content = dist.build_wheel()
    assert dist.build_wheel() == (name, content)
    wheel = tmp_path / name
    wheel.write_bytes(content)
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "site"),
    ]
    subprocess.run([sys.executable, *install, str(wheel)], check=True, capture_output=True)
    code = "import berg, berg.worker; print(berg.__version__, berg.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert result.stdout.split() == [__version__, str(tmp_path / "site/berg/__init__.py")], (
        result.stderr
    )


def test_of_earlier_codes_wheels_the_newest_few_are_kept(tmp_path):
    folder = tmp_path / "home/wheels"
    folder.mkdir(parents=True)
    for age in range(9):
        old = folder / f"{age}.whl"
        old.write_bytes(b"old")
        os.utime(old, (1000 - age, 1000 - age))
    _, content = dist.build_wheel()
    kept = {each.name: each.read_bytes() for each in folder.iterdir()}
    assert len(kept) == dist.KEPT and content in kept.values()
    assert kept.keys() > {"0.whl", "1.whl", "2.whl"}


def test_a_machine_with_the_same_python_compiles_nothing_of_the_wheel(tmp_path):
    name, content = dist.build_wheel()
    (tmp_path / name).write_bytes(content)
    site = tmp_path / "site"
    with zipfile.ZipFile(tmp_path / name) as archive:
        archive.extractall(site)
    for source in site.rglob("*.py"):
        source.write_text("this is never read")
    code = "import sys, berg.worker; print(*sorted(each for each in sys.modules if 'berg' in each))"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "berg.machine.boot" in done.stdout.split(), done.stderr
    assert not list(site.glob("berg/laptop/__pycache__/*")), "which machines do not import"


def test_the_wheel_needs_what_berg_needs_and_leaves_the_embedded_cloud_out(tmp_path):
    name, content = dist.build_wheel()
    (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / name) as archive:
        names = archive.namelist()
        metadata = archive.read(f"berg-{__version__}.dist-info/METADATA").decode()
        commands = archive.read(f"berg-{__version__}.dist-info/entry_points.txt").decode()
    assert "berg/worker.py" in names
    assert not [each for each in names if each.startswith("localcloud/")]
    assert "berg-worker = berg.worker:main" in commands and "localcloud" not in commands
    for package in ("click", "google-auth", "GitPython"):
        assert f"Requires-Dist: {package}" in metadata


def test_the_wheel_leaves_the_entry_points_of_the_embedded_cloud_out(tmp_path):
    folder = tmp_path / "berg-1.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text(
        "[console_scripts]\nberg = berg.cli:main\n\n[pytest11]\nx = localcloud.pytest_plugin\n"
    )
    text = dist.console_scripts(Distribution.at(folder))
    assert text == "[console_scripts]\nberg = berg.cli:main\n"


def test_the_startup_script_fits_googles_metadata_and_needs_no_berg():
    source = Path(boot.__file__).read_text()
    assert len(source.encode()) < 256 << 10
    assert source.startswith("#!/usr/bin/env python3\n")
    assert "import berg" not in source
    assert "from berg import" not in source.replace("from berg.worker import main", "")
