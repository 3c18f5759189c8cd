"""The program between the worker and the job's command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from berg.machine import keeper
from berg.machine.process import end_group

# Writes its process id, and goes on in a session of its own, deaf to SIGTERM.
DEAF = """setsid bash -c 'trap "" TERM; echo $$ >deaf; sleep 1000; sleep 1000' >/dev/null 2>&1 &
while [ ! -s deaf ]; do sleep 0.01; done"""


def kept(command: str, folder: Path) -> subprocess.Popen:
    program = [sys.executable, "-I", "-S", keeper.__file__, "keep", "left", "cut", "/results/"]
    return subprocess.Popen([*program, "bash", "-c", command], cwd=folder, start_new_session=True)


def is_there(process: int) -> bool:
    return process in [each for each, _, _ in keeper.living()]


def pid_in(file: Path) -> int:
    end = time.monotonic() + 10
    while not (file.exists() and file.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.01)
    return int(file.read_text())


@pytest.mark.parametrize(
    ("command", "code"), [("true", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill $$", 143)]
)
def test_the_exit_code_is_the_commands(tmp_path, command, code):
    began = time.monotonic()
    assert kept(command, tmp_path).wait() == code
    assert time.monotonic() - began < 3, "it waits for nothing where nothing is left"


def test_what_a_command_leaves_in_another_session_ends_with_it(tmp_path):
    polite = "setsid bash -c 'echo $$ >polite; exec sleep 1000' >/dev/null 2>&1 &\n"
    waits = "\nwhile [ ! -s polite ]; do sleep 0.01; done; exit 4"
    began = time.monotonic()
    assert kept(polite + DEAF + waits, tmp_path).wait() == 4
    assert time.monotonic() - began >= keeper.LEFTOVER_GRACE, "it had time to end by itself"
    assert (tmp_path / "left").read_text() == "0 3", "seconds and processes: it has a child"
    assert not is_there(pid_in(tmp_path / "polite")) and not is_there(pid_in(tmp_path / "deaf"))


@pytest.mark.slow
def test_a_command_that_is_stopped_takes_other_sessions_along(tmp_path):
    process = kept(f"trap 'echo told >told; exit 5' TERM\n{DEAF}\nsleep 1000 & wait", tmp_path)
    deaf = pid_in(tmp_path / "deaf")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 5 and (tmp_path / "told").exists()
    assert not is_there(deaf)


def test_end_group_kills_what_is_below_in_other_groups(tmp_path):
    process = kept(f"{DEAF}\nsleep 1000", tmp_path)
    deaf = pid_in(tmp_path / "deaf")
    end_group(process.pid, 0)
    assert not is_there(deaf)
    assert process.wait() > 128 or process.returncode < 0
