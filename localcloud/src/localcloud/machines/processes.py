"""The processes of a machine: whether it is up, signals, and waiting for its end."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from localcloud.machines.sandbox import PLAIN, Sandbox


def is_up(folder: Path) -> bool:
    """Whether the machine's first process has written its id. The file is there before its one line
    is.
    """
    try:
        return (folder / "init.pid").stat().st_size > 0
    except FileNotFoundError:
        return False


def first_process(folder: Path) -> int | None:
    """Process id of a machine's first process, if it is alive."""
    try:
        pid, start_time = (folder / "init.pid").read_text().split()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    state, started = fields[0], fields[19]
    return int(pid) if started == start_time and state not in "ZX" else None


def plain_processes(folder: Path) -> list[int]:
    """Processes of a plain machine: they carry its folder in their environment, unless they cleared
    it.
    """
    mark, argument = b"BERG_MACHINE=" + os.fsencode(folder), os.fsencode(folder)
    found = []
    for entry in Path("/proc").iterdir():
        try:
            # A shell that has forked but not yet started its program shows only boot.sh's own
            # arguments. They are looked at first, or a start between the two looks would be missed.
            if entry.name.isdigit() and (
                argument in (entry / "cmdline").read_bytes().split(b"\0")
                or mark in (entry / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def send(folder: Path, sandbox: Sandbox, number: signal.Signals) -> None:
    """Press the power button (SIGTERM) or cut the power (SIGKILL: nothing in the machine survives
    it).
    """
    pids = plain_processes(folder) if sandbox.files == PLAIN else []
    first = first_process(folder)
    for pid in [*pids, *([first] if first else [])]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def alive(folder: Path, sandbox: Sandbox) -> bool:
    return first_process(folder) is not None or (
        sandbox.files == PLAIN and bool(plain_processes(folder))
    )


async def ended(folder: Path, sandbox: Sandbox) -> None:
    """Return once no process of the machine is left."""
    pid = first_process(folder)
    if pid is not None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            descriptor = -1
        if descriptor >= 0:
            await readable(descriptor)
    while alive(folder, sandbox):
        await asyncio.sleep(0.02)


async def readable(descriptor: int) -> None:
    """Wait for a pidfd: it turns readable when the process, and with it its pid namespace, is gone."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_reader(descriptor, done.cancel)
    try:
        await asyncio.wait([done])
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def shut_down(folder: Path, sandbox: Sandbox, grace: float) -> None:
    """SIGTERM to every process, wait until all are gone or `grace` seconds have passed, then
    SIGKILL.
    """
    deadline = time.monotonic() + grace
    gone = asyncio.ensure_future(ended(folder, sandbox))
    while not gone.done() and time.monotonic() < deadline:
        # Repeated, because the first process ignores a signal that comes before it has set its
        # trap.
        send(folder, sandbox, signal.SIGTERM)
        await asyncio.wait([gone], timeout=min(0.5, max(0.0, deadline - time.monotonic())))
    while not gone.done():
        send(folder, sandbox, signal.SIGKILL)
        await asyncio.wait([gone], timeout=0.1)
    await gone


def wait_for_boot(folder: Path, process: subprocess.Popen[bytes], seconds: float = 30) -> bool:
    """Whether the machine came up (blocking; for probes and image making)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_up(folder):
            return True
        if process.poll() is not None:
            return is_up(folder)
        time.sleep(0.002)
    return False
