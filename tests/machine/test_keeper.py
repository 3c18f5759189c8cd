"""The program between the worker and the job's command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import wait_for

from berg.machine import keeper, process
from berg.machine.outcome import PREEMPTED, Stopping
from berg.machine.process import end_group

# Writes its process id, and goes on in a session of its own, deaf to SIGTERM.
DEAF = """setsid bash -c 'trap "" TERM; echo $$ >deaf; sleep 1000; sleep 1000' >/dev/null 2>&1 &
while [ ! -s deaf ]; do sleep 0.01; done"""


def kept(command: str, folder: Path) -> subprocess.Popen:
    program = [
        sys.executable,
        "-I",
        "-S",
        keeper.__file__,
        "keep",
        "left",
        "ending",
        "cut",
        "/results/",
    ]
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


COUNTS = """
import signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
open(sys.argv[1] + ".up", "w").close()
while not told:
    time.sleep(0.01)
time.sleep(6)  # to save
open(sys.argv[1], "w").write(str(len(told)))
"""
LAUNCHES = """
import signal, subprocess, sys
worker = subprocess.Popen([sys.executable, "counts.py", "worker"], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
sys.exit(worker.wait())
"""


def test_all_below_a_shell_and_a_launcher_is_told_once_to_end_and_has_the_time(
    tmp_path, monkeypatch
):
    """The shells end at once; the launcher tells its worker itself."""
    for name in ("COMMAND_FILE", "RUNNING", "ENDING_FILE", "CUT_FILE"):
        monkeypatch.setattr(process, name, tmp_path / name)
    (tmp_path / "counts.py").write_text(COUNTS)
    (tmp_path / "launches.py").write_text(LAUNCHES)
    runner = process.Runner(SimpleNamespace(log=tmp_path / "log"), Stopping())
    python = sys.executable
    command = f"""{python} counts.py background & setsid {python} counts.py session &
{python} launches.py & bash -c '{python} counts.py below; true'; true"""
    variables = dict(os.environ)
    running = process.start_thread(runner.keep, ["bash", "-c", command], tmp_path, variables)
    names = ("background", "session", "worker", "below")
    wait_for(lambda: all((tmp_path / f"{name}.up").exists() for name in names), 20, "its programs")
    ends = [process.start_thread(runner.end) for _ in range(2)]  # whoever asks for it
    for each in (running, *ends):
        each.join(60)
    assert not running.is_alive(), "it waits for nothing once all has ended"
    assert {name: (tmp_path / name).read_text() for name in names} == dict.fromkeys(names, "1")
    assert runner.leftovers() == ""


def test_a_command_has_less_time_on_a_machine_that_google_takes(tmp_path, monkeypatch):
    graces = []
    monkeypatch.setattr(process, "end_process", lambda _, grace: graces.append(grace))
    runner = process.Runner(SimpleNamespace(log=tmp_path / "log"), Stopping())
    runner.end()
    runner.stopping.request(PREEMPTED)
    runner.end()
    assert graces == [30, 15]


def test_end_group_kills_what_is_below_in_other_groups(tmp_path):
    process = kept(f"{DEAF}\nsleep 1000", tmp_path)
    deaf = pid_in(tmp_path / "deaf")
    end_group(process.pid, 0)
    assert not is_there(deaf)
    assert process.wait() > 128 or process.returncode < 0
