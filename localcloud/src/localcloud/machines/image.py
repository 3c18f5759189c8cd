"""The image of machines: the host plus a prepared /root, made once per state folder.

A golden one has /root/anaconda3 (the image's python, a virtual environment with pip),
/root/berg/venv (a link to the python environment of the server, so the machine has berg's
dependencies), /root/code. Google's deep-learning images have /root/code alone; their python is the
host's, with a stub package `torch`, and without venv and ensurepip; with the
setting `prepared` they have /root/berg/venv as well, which saves a machine half of its CPU time.
Plain images have an empty /root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from localcloud.machines import processes
from localcloud.machines import sandbox as machines


class Interrupted(Exception):
    """The server was stopped while it made the image."""


def make_image(
    folder: Path, sandbox: machines.Sandbox, stopped: Callable[[], bool] = lambda: False
) -> Path:
    """Make `folder/root`, the image's /root, unless it is there. Takes seconds, nearly all of them
    pip's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # several clouds may share an image folder
        (folder / "learning/code").mkdir(parents=True, exist_ok=True)
        (folder / "prepared/code").mkdir(parents=True, exist_ok=True)
        (folder / "prepared/berg").mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / "prepared/berg/venv").symlink_to(sys.prefix)
        while not (folder / "root").exists():
            if stopped():
                raise Interrupted
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
                continue
            if not (folder / "root").exists():
                build_image(folder, sandbox, stopped)
    return folder / "root"


def end_orphans(folder: Path, sandbox: machines.Sandbox) -> None:
    """End what makes the image for a server that was killed, unless another server makes it."""
    if not folder.exists():
        return
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        end_builders(folder, sandbox)


def end_builders(folder: Path, sandbox: machines.Sandbox) -> None:
    """End and delete the machines of servers that were killed while they made the image; takes the
    lock of the folder.
    """
    for left in folder.glob("builder*"):
        while processes.alive(left, sandbox):
            processes.send(left, sandbox, signal.SIGKILL)
            time.sleep(0.01)
        machines.remove(left)


def build_image(folder: Path, sandbox: machines.Sandbox, stopped: Callable[[], bool]) -> None:
    end_builders(folder, sandbox)
    # Built inside a machine, because a virtual environment has its own path written all over it.
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    script = f'#!/bin/sh\ncd "${{BERG_ROOT:-/root}}" && "{python}" -m venv anaconda3 >venv.log 2>&1\necho $? >status\n'
    builder = machines.Machine(
        folder / f"builder-{os.getpid()}", "image-builder", machines.LOCALHOST, 0, None, script
    )
    root = machines.own_root_of(builder.folder, sandbox)
    process = machines.boot(builder, sandbox)
    # what is not up yet cannot be found and killed below
    processes.wait_for_boot(builder.folder, process)
    while not (root / "status").exists() and process.poll() is None and not stopped():
        time.sleep(0.02)
    while processes.alive(builder.folder, sandbox):
        processes.send(builder.folder, sandbox, signal.SIGKILL)
        time.sleep(0.01)
    process.wait()
    if stopped():
        raise Interrupted
    if not (root / "status").exists():
        raise RuntimeError(
            f"making the machines' image was interrupted: {machines.console_tail(builder.folder)}"
        )
    if (root / "status").read_text().strip() != "0":
        machines.remove(root / "anaconda3")  # no ensurepip here (python3-venv); venv.log tells
    (root / "status").unlink()
    (root / "code").mkdir()
    (root / "berg").mkdir()
    (root / "berg/venv").symlink_to(sys.prefix)
    root.rename(folder / "root")
    machines.remove(builder.folder)
