"""What becomes of a command's output and exit code, with the programs that a machine runs."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import wait_for

from berg.job import Job
from berg.machine import boot, installation, keeper, process
from berg.machine.outcome import Stopping
from berg.machine.process import Runner, judge
from berg.spec import JobSpec

LINE = 60_000_000  # bytes
TRAINS = """\
import os, signal, sys
os.write(1, b"step 1\\rstep 2\\r" + bytes(range(256)))
os.system("echo to the file >/dev/stderr; echo again | tee /dev/stderr /dev/stdout >/proc/self/fd/1")
sys.stdout.write("x" * int(sys.argv[1]))
sys.stdout.flush()
os.write(2, b"last words")
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture
def runner(tmp_path, monkeypatch) -> Runner:
    for name in ("COMMAND_FILE", "RUNNING"):
        monkeypatch.setattr(process, name, tmp_path / name)
    return Runner(SimpleNamespace(log=tmp_path / "log"), Stopping())


def run(runner: Runner, *words: str) -> int:
    return runner.keep([*words], runner.machine.log.parent, dict(os.environ))


def test_a_log_has_all_that_a_command_writes_in_whatever_way(runner):
    runner.machine.log.write_bytes(b"[berg] Running\n")
    assert run(runner, sys.executable, "-c", TRAINS, str(LINE)) == -signal.SIGKILL
    log = runner.machine.log.read_bytes()
    begin = b"[berg] Running\nstep 1\rstep 2\r" + bytes(range(256)) + b"to the file\n"
    begin += b"again\n" * 3
    assert log[: len(begin)] == begin
    is_whole = log[len(begin) :] == b"x" * LINE + b"last words"
    assert is_whole, f"{len(log):,} bytes"


def test_berg_begins_a_line_of_its_own(tmp_path, capfd):
    machine = SimpleNamespace(log=tmp_path / "log")
    for output in ("", "step 1\n", "50%|###\r", "no line break"):
        with machine.log.open("a") as file:
            file.write(output)
        boot.Machine.say(machine, "Next")
    texts = ["[berg] Next", "step 1", "[berg] Next", "50%|###\r", "[berg] Next", "no line break"]
    assert machine.log.read_bytes().decode() == "\n".join([*texts, "[berg] Next", ""])


def test_what_an_installation_leaves_running_neither_delays_it_nor_loses_its_output(
    runner, tmp_path, monkeypatch
):
    monkeypatch.setattr(boot, "BERG", tmp_path)
    serve = "setsid bash -c 'echo >up; until [ -e go ]; do sleep 0.02; done; echo served' &"
    serve += "\nuntil [ -e up ]; do sleep 0.02; done"
    began = time.monotonic()
    words = ["bash", "-c", f"{serve}\necho installed"]
    assert runner.execute(words, tmp_path, dict(os.environ)) == 0
    assert runner.machine.log.read_text() == "installed\n"
    installation.run_for_image(installation.Step(words, tmp_path), dict(os.environ))
    assert time.monotonic() - began < process.LOG_GRACE, "it waited for what runs in the background"
    (tmp_path / "go").touch()
    wait_for(lambda: runner.machine.log.read_text() == "installed\nserved\n", 10, "its output")


def test_a_command_whose_worker_is_killed_keeps_its_output(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from types import SimpleNamespace\n"
        "from berg.machine import process; from berg.machine.outcome import Stopping\n"
        "here = Path(sys.argv[1]); process.COMMAND_FILE = here / 'command'\n"
        "process.RUNNING = here / 'running'\n"
        "runner = process.Runner(SimpleNamespace(log=here / 'log'), Stopping())\n"
        "runner.keep(['bash', '-c', sys.argv[2]], here, dict(os.environ))"
    )
    command = "trap 'seq 100000; echo saved; exit' TERM; echo begun; while :; do sleep 0.02; done"
    worker = subprocess.Popen([sys.executable, "-c", code, tmp_path, command])
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and log.read_text(), 20, "the command")
    worker.kill()
    worker.wait()
    process.end_group(int((tmp_path / "command").read_text()), 20)  # as the next worker does
    wait_for(lambda: log.read_text().endswith("\n100000\nsaved\n"), 10, "its last words")


def test_output_that_a_full_disk_does_not_take_is_counted_and_ends_nothing(tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    log = tmp_path / "log"
    pipe, output = os.pipe()
    program = [sys.executable, "-I", "-S", keeper.__file__, "log", str(pipe)]
    with log.open("ab") as file:
        writer = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=file, pass_fds=[pipe], preexec_fn=limit
        )
    os.write(output, b"a" * 3000)
    wait_for(lambda: log.read_bytes() == b"a" * 1000, 10, "the first bytes")
    os.truncate(log, 0)
    os.write(output, b"there is room\n")
    os.close(output)
    writer.communicate(timeout=10)
    missing = "[berg] 2000 bytes of output are missing here: the log could not be written"
    assert log.read_text() == f"\n{missing}\nthere is room\n"


def test_every_exit_code_and_signal_is_an_ending():
    for code in range(256):
        ending = judge(code, "box-1")
        assert (ending.state, ending.exit_code) == ("FAILED" if code else "SUCCEEDED", code)
        assert ending.reason.endswith(" on box-1") == bool(code)
    assert judge(42 + 128).reason == "the command failed with exit code 170"
    for number in signal.valid_signals():
        reason = judge(-number).reason
        assert process.SIGNALS.get(number, f"exit code {-number}") in reason
    assert "killed by SIGTERM" in judge(143).reason and "--no-pipefail" in judge(141).reason


def test_a_command_may_send_its_group_any_signal_that_it_handles(runner):
    numbers = sorted(map(int, signal.valid_signals() - keeper.DEADLY - {signal.SIGCHLD}))
    command = f"for n in {' '.join(map(str, numbers))}; do trap 'echo trapped' $n; kill -$n 0; done"
    assert run(runner, "bash", "-c", f"{command}; exit 170") == 170
    assert runner.machine.log.read_text() == "trapped\n" * len(numbers)


@pytest.mark.parametrize(("no_pipefail", "code"), [(False, 3), (True, 0)])
def test_a_program_that_fails_before_a_pipe_fails_the_command(runner, no_pipefail, code):
    spec = JobSpec(no_pipefail=no_pipefail)
    this = Job("a", "(echo step 1; exit 3) | tee log.txt", "a", "", "proj", "", "", spec=spec)
    assert run(runner, *this.shell, this.cmd) == code
    assert Path(runner.machine.log.parent, "log.txt").read_text() == "step 1\n"
