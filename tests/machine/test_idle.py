"""What counts as use of a devbox, with real processes, terminals and tmux."""

import os
import pty
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import libtpu
import pytest
from conftest import commit, wait_for

from berg.machine import usage

CLEAN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm", "PS1": "$ "}
FROM_SSH = {**CLEAN, "SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22"}
OPEN = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR); [os.dup2(f, n) for n in range(3)]; "
OPEN += "os.execvp(sys.argv[2], sys.argv[2:])"
needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")


@contextmanager
def running(command: list[str], env: dict[str, str], terminal: bool = False):
    """A process; `terminal` gives it one of its own, whose other end is `process.terminal`."""
    leader, follower = pty.openpty()
    # A program takes the first terminal that it opens for its own.
    opening = [sys.executable, "-c", OPEN, os.ttyname(follower), *command] if terminal else command
    process = subprocess.Popen(
        opening, env=env, stdin=subprocess.DEVNULL, stdout=follower, start_new_session=True
    )
    process.terminal = leader
    try:
        wait_for(
            lambda: (
                Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0]
                == command[0].encode()
            )
        )
        yield process
    finally:
        process.kill()
        process.wait()
        os.close(leader)
        os.close(follower)


def is_use(process: subprocess.Popen) -> bool:
    return usage.is_use(Path(f"/proc/{process.pid}"))


@pytest.mark.parametrize(
    ("command", "env", "terminal", "expected"),
    [
        (["sleep", "1000"], CLEAN, False, False),  # a daemon's
        (["sleep", "1000"], FROM_SSH, False, True),  # under nohup
        (["sleep", "1000"], {**CLEAN, "TMUX": "/tmp/tmux-0/default,1,0"}, False, True),
        (["sleep", "1000"], CLEAN, True, True),
        (["bash", "-c", "sleep 1000; :"], FROM_SSH, False, True),
        (["bash", "--norc"], FROM_SSH, True, False),
        (["bash", "--norc", "-i"], CLEAN, True, False),
        (["bash", "--init-file", "/dev/null", "-i"], CLEAN, True, False),
        (["bash", "--norc", "/dev/fd/3"], CLEAN, True, True),
        (["sh"], FROM_SSH, True, False),
        (["tail", "-f", "/dev/null"], FROM_SSH, True, False),
        (["watch", "-n", "0.1", "true"], FROM_SSH, True, False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_counts(command, env, terminal, expected):
    if "/dev/fd/3" in command:  # a script that waits
        read, _write = os.pipe()
        command[-1] = f"/proc/{os.getpid()}/fd/{read}"
    with running(command, env, terminal) as process:
        assert is_use(process) == expected
        if not expected and command[0] == "watch":
            time.sleep(0.5)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert not any(usage.is_use(Path("/proc", child)) for child in children)


@pytest.mark.slow
def test_typing_is_use():
    with running(["cat"], CLEAN, True) as process:
        before = usage.last_typed()
        end = time.time() + 12
        while usage.last_typed() <= before and time.time() < end:
            os.write(process.terminal, b"x\n")
            time.sleep(0.2)
        assert usage.last_typed() > before
        samples = usage.used_samples(200, lambda pause: time.sleep(0.3))
        assert next(samples)  # cat runs, which people started


def test_a_warning_reaches_terminals():
    with running(["cat"], CLEAN, True) as process:
        usage.tell_terminals("going down")
        assert b"going down" in os.read(process.terminal, 100)


@needs_tmux
def test_what_runs_in_tmux_is_use_and_its_shells_are_not(tmp_path):
    tmux = ["tmux", "-S", str(tmp_path / "s"), "-f", "/dev/null"]

    def mine() -> list[str]:
        found = [each for each in usage.processes() if usage.is_use(each)]
        tag = f"TMUX={tmp_path}".encode()
        return [usage.stat(each)[0] for each in found if tag in (each / "environ").read_bytes()]

    try:
        subprocess.run([*tmux, "new-session", "-d", "bash --norc"], env=CLEAN, check=True)
        subprocess.run([*tmux, "split-window", "tail -f /dev/null"], env=CLEAN, check=True)
        wait_for(lambda: not mine(), what="nothing but shells")
        subprocess.run([*tmux, "split-window", "sleep 1000"], env=CLEAN, check=True)
        wait_for(lambda: mine() == ["sleep"], what="the one that counts")
    finally:
        subprocess.run([*tmux, "kill-server"], env=CLEAN)


@pytest.mark.slow
def test_a_devbox_whose_tpu_is_busy_is_not_idle(berg):
    shutil.copy(libtpu.__file__, berg.repo)
    packages = ":".join(["/root/berg/app", *filter(None, sys.path)])  # berg's own, and grpc
    # as a daemon would
    serve = f"PYTHONPATH={packages} setsid {sys.executable} libtpu.py 40 >/dev/null 2>&1 &"
    (berg.repo / "install.sh").write_text(f"{serve}\nsleep 3\n")
    commit(berg.repo)
    wishes = ["--tpu", "v6e-1", "--idle-hours", "0.0014", "--install-script", "install.sh"]
    assert berg("devbox", "-n", "chip", *wishes).returncode == 0
    wait_for(lambda: berg.state("chip")["state"] == "RUNNING", 60)
    time.sleep(12)
    assert berg.state("chip")["state"] == "RUNNING", berg.log("chip")
    wait_for(lambda: berg.state("chip")["state"] == "SUCCEEDED", 90)
    assert berg.state("chip")["reason"].startswith("idle for ")


def test_a_gpu_whose_driver_does_not_answer_keeps_nobody_waiting(monkeypatch, tmp_path):
    """Nor does SIGKILL end nvidia-smi then."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(usage, "TIMEOUT", 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda process: None)
        began = time.monotonic()
        assert usage.gpu_percent() == 0 and usage.gpu_percent() == 0
        assert time.monotonic() - began < 20
    (hangs,) = usage.stuck
    hangs.kill()
    hangs.wait()
