"""Repos of today's shapes on machines: what uv.lock says is there, for every program that looks."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import WHEELHOUSE, Berg, wait_for

from berg.code import dist

OFFLINE = f"UV_OFFLINE=1 UV_FIND_LINKS={WHEELHOUSE} PIP_FIND_LINKS={WHEELHOUSE}".split()
PROJECT = """\
[project]
name = "proj"
version = "1"
requires-python = ">=3.9"
dependencies = ["tinytwo"]
[project.optional-dependencies]
cpu = ["tinyone==1.0"]
gpu = ["tinyone==2.0"]
[tool.uv]
find-links = ["wheels"]
conflicts = [[{extra = "cpu"}, {extra = "gpu"}]]
"""
SHOW = """\
import sys, tinyone, tinytwo
# At once: the ranks of mpi write to the same pipe.
print(f"tinyone {tinyone.version} in {sys.prefix.rpartition('/')[2]}")
"""


def make_wheel(folder: Path, name: str, version: str = "1.0") -> None:
    """Write a wheel that holds a module with a version, and nothing else."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = '{version}'\n")
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        wheel.writestr(f"{info}/METADATA", about)
        kind = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="session")
def uv_program(tmp_path_factory) -> Path:
    """Return uv for this computer, which makes the tests' locks."""
    program = tmp_path_factory.mktemp("uv") / "uv"
    with zipfile.ZipFile(WHEELHOUSE / dist.OF_MACHINES.name) as wheel:
        program.write_bytes(wheel.read(f"uv-{dist.UV_VERSION}.data/scripts/uv"))
    program.chmod(0o755)
    return program


@pytest.fixture
def locked(berg: Berg, uv_program: Path) -> Berg:
    """Make the repo one with two modules, a lock, and extras that exclude each other."""
    for name, version in (("tinyone", "1.0"), ("tinyone", "2.0"), ("tinytwo", "1.0")):
        make_wheel(berg.repo / "wheels", name, version)
    (berg.repo / "pyproject.toml").write_text(PROJECT)
    (berg.repo / "prepare.py").write_text("")
    (berg.repo / "show.py").write_text(SHOW)
    make_lock(uv_program, berg.repo)
    return berg


def make_lock(program: Path, folder: Path, *options: str) -> None:
    cache = {"UV_CACHE_DIR": str(program.parent / "cache"), "UV_PYTHON": sys.executable}
    command = [program, "lock", "--quiet", *(options or ["--offline"])]
    subprocess.run(command, cwd=folder, env={**os.environ, **cache}, check=True)


def run(berg: Berg, name: str, command: str, *more: str, cwd: str = ".") -> str:
    """Run a job to its end; return what its command printed."""
    given = [word for each in OFFLINE for word in ("--env", each)]
    arguments = ["run", "-g", "0", "-n", name, *given, *more, "--wait", command]
    done = berg(*arguments, cwd=berg.repo / cwd)
    log = berg.log(name)
    assert done.returncode == 0, f"{done.stderr}\n{log}"
    return log.rpartition("Running:")[2].partition("\n")[2]


def test_every_program_finds_what_the_lock_says(locked):
    """By any way to start python, and although the command would be another sync without it."""
    command = (
        "python show.py; uv run show.py; uv run python show.py; mpi python show.py; "
        "bash -c 'source .venv/bin/activate; python show.py'; "
        "type -p uv pip; echo $VIRTUAL_ENV; git status --porcelain"
    )
    ran = run(locked, "lock", command, "--extra", "gpu")
    assert ran.count(" in .venv") == 6, ran
    assert "/root/berg/bin/uv\n/root/code/proj/.venv/bin/pip\n/root/code/proj/.venv\n" in ran
    assert "??" not in ran, "an installation left the checkout dirty"
    assert dist.OF_MACHINES.path in locked.objects(".berg/dist/")


def test_a_devbox_has_the_environment_and_a_changed_lock_is_synced(locked, uv_program, tmp_path):
    """And its install script sees the secrets that are its own, and no other."""
    script = "echo sees ${MINE-nothing}, ${THEIRS-nothing} >/root/seen; ! grep hush -r /root/berg\n"
    (locked.repo / "setup.sh").write_text(script + "pip install tinyone==1.0\n")
    given = [word for each in OFFLINE for word in ("--env", each)]
    given[-1] += " /root/code/proj/wheels"
    (tmp_path / "file").write_text("hush")
    secrets = ["--secret", f"THEIRS={tmp_path}/file", "--install-secret", f"MINE={tmp_path}/file"]
    options = [*secrets, "--install-script", "setup.sh"]
    done = locked("devbox", "-g", "0", "-n", "box", *options, *given)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "Ready\n" in locked.log("box"), 60, what="the devbox")
    seen = locked("ssh", "box", "--", "cat ~/seen; python show.py; echo $MINE $THEIRS")
    assert seen.stdout == "sees hush, nothing\ntinyone 1.0 in .venv\nhush\n", locked.log("box")

    project = locked.repo / "pyproject.toml"
    project.write_text(PROJECT.replace('["tinytwo"]', '["tinytwo", "tinythree"]'))
    make_wheel(locked.repo / "wheels", "tinythree")
    make_lock(uv_program, locked.repo)
    synced = locked("sync", "box", "--once")
    assert synced.returncode == 0 and "installing the changed uv.lock" in synced.stderr
    seen = locked("ssh", "box", "--", "python -c 'import tinythree; import tinyone'")
    assert seen.returncode == 0, seen.stderr
    (locked.repo / "wheels/tinythree-1.0-py3-none-any.whl").write_text("no wheel")
    (locked.repo / "uv.lock").write_text("no lock")
    synced = locked("sync", "box", "--once")
    assert synced.returncode == 1 and "uv.lock could not be installed" in synced.stderr


def test_the_next_job_of_a_sweep_finds_its_environment(locked):
    """Although it gets a new checkout: nothing is downloaded or made again."""
    given = [word for each in OFFLINE for word in ("--env", each)]
    options = ["-g", "0", "-n", "two", "--parallel", "1", *given, "--extra", "cpu"]
    done = locked("run", *options, "--grid", "i=1,2", "--wait", "python show.py {i}")
    logs = [locked.log("two-0"), locked.log("two-1")]
    assert done.returncode == 0, logs
    assert all("tinyone 1.0 in .venv\n" in log for log in logs)
    made = [log for log in logs if "Installing: uv venv" in log]
    assert len(made) == 1 and "Installed 2 packages" in made[0], logs
    assert sum("Checked out" in log for log in logs) == 2


@pytest.mark.slow
def test_what_fails_is_named_with_what_to_change(locked):
    """The lock names a wheel that is not sent."""
    (locked.repo / ".gitignore").write_text("tinytwo*\n")
    given = [word for each in OFFLINE for word in ("--env", each)]
    done = locked("run", "-g", "0", "-n", "fails", *given, "--wait", "true")
    reason = locked.state("fails")["reason"]
    assert done.returncode == 2
    assert reason.startswith("the installation failed with exit code 2: uv sync --frozen")
    assert "tinytwo" in reason and "--install uv|pip|none|COMMAND" in reason, reason
