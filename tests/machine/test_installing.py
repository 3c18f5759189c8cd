"""What a machine does before it installs what a repo asks for: it waits for its driver, and gets
pip.
"""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from berg.machine import boot, installation
from berg.machine.outcome import Stopped


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for programs, the first of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(installation, "DRIVER_SCRIPT", tmp_path / "install-driver.sh")
    (tmp_path / "install-driver.sh").touch()
    real = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: real(0.05))
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def attempt(gpus: int = 1, ending: str | None = None) -> SimpleNamespace:
    said: list[str] = []
    stopping = SimpleNamespace(ending=ending)
    this = SimpleNamespace(gpus_per_machine=gpus)
    return SimpleNamespace(job=this, say=said.append, said=said, stopping=stopping, machine=None)


def test_a_job_waits_for_the_driver_that_its_image_installs_at_its_first_boot(folder):
    again = attempt()
    program(folder / "nvidia-smi", f'echo >>{folder}/asked; [ "$(wc -l <{folder}/asked)" -gt 3 ]')
    installation.await_driver(again)
    assert len((folder / "asked").read_text().splitlines()) == 4
    assert len(again.said) == 1 and "installs at its first boot" in again.said[0]


def test_nobody_waits_for_a_driver_that_is_there_or_that_no_job_wants(folder):
    program(folder / "nvidia-smi", "exit 9")
    installation.await_driver(attempt(gpus=0))
    (folder / "install-driver.sh").unlink()
    installation.await_driver(attempt())
    (folder / "install-driver.sh").touch()
    program(folder / "nvidia-smi", "exit 0")
    there = attempt()
    installation.await_driver(there)
    assert not there.said


def test_a_driver_that_never_answers_fails_the_job_and_a_stop_ends_the_waiting(folder, monkeypatch):
    program(folder / "nvidia-smi", "exit 9")
    with pytest.raises(Stopped):
        installation.await_driver(attempt(ending="kill"))
    monkeypatch.setattr(installation, "DRIVER_SECONDS", 0)
    with pytest.raises(installation.InstallationFailed, match="exit code 1: nvidia-smi"):
        installation.await_driver(attempt())


def test_pip_is_installed_where_the_python_of_an_image_has_none(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(boot, "apt_install", lambda machine, *names: asked.append(names))
    program(folder / "python", 'echo "No module named pip" >&2; exit 1')
    installation.provide_pip(attempt(), dict(os.environ))
    assert asked == [("python3-pip",)]
    program(folder / "python", "exit 0")
    installation.provide_pip(attempt(), dict(os.environ))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("output", "said", "advice"),
    [
        (
            "Using python\nerror: no wheel\n  cause: not there\n",
            ": error: no wheel: not there",
            "--install",
        ),
        ("  ERROR: HTTP error 403 for corp\n", "", "--install-secret NAME"),
        ("x.c:1: fatal error: Python.h: No such file\n", "", "apt-get install -y python3-dev"),
        ("setup.sh: line 3: cmake: command not found\n", "", "--install-script"),
        (
            "ERROR: Package 'x' requires a different Python; requires-python >=3.13\n",
            "",
            "--install uv",
        ),
        ("", "", ""),
    ],
)
def test_a_step_that_fails_is_named_with_what_to_change(output, said, advice):
    error = installation.InstallationFailed(2, ["uv", "sync"], output)
    words = "the installation failed with exit code 2: uv sync"
    assert error.message.startswith(words + said) and advice in error.message
    assert "\n" not in error.message and error.code == 2
