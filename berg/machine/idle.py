"""When a devbox is idle: nobody is logged in, and neither its CPUs nor its GPUs do anything of note."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BUSY_CPUS = 0.1  # CPUs in use, on average over a sample, from which a machine is not idle
BUSY_GPU = 5  # percent


def sample_seconds(seconds: float) -> float:
    """How long to look at a time, for a machine that may be idle for so long."""
    return min(60.0, seconds / 20)


def samples(seconds: float, stopped: Callable[[float], bool]) -> Iterator[bool]:
    """Whether the machine was used, again and again until `stopped(pause)` is true."""
    sample = sample_seconds(seconds)
    before = cpu_seconds()
    while not stopped(sample):
        now = cpu_seconds()
        yield sessions() > 0 or (now - before) / sample > BUSY_CPUS or gpu_percent() > BUSY_GPU
        before = now


def wait(
    seconds: float,
    stopped: Callable[[float], bool],
    warn: Callable[[float], None],
    used_elsewhere: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until the machine was idle for `seconds`; False if `stopped(pause)` became true before.

    `warn` hears once how many seconds are left, when a tenth of them is (five minutes at most).
    `used_elsewhere` is asked whether one of the other machines was used in the meantime.
    """
    notice = min(300.0, seconds / 10)
    quiet_since, warned = time.monotonic(), False
    for used in samples(seconds, stopped):
        if used or used_elsewhere():
            quiet_since, warned = time.monotonic(), False
        left = quiet_since + seconds - time.monotonic()
        if left <= 0:
            return True
        if left <= notice and not warned:
            warned = True
            warn(left)
    return False


def processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


def cpu_seconds() -> float:
    """CPU time used by all processes but berg's own, which is this one and its parent."""
    ticks = 0
    for process in processes():
        if int(process.name) in (os.getpid(), os.getppid()):
            continue
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        ticks += sum(int(field) for field in fields[11:15])  # its own and its dead children's
    return ticks / os.sysconf("SC_CLK_TCK")


def sessions() -> int:
    """Number of ssh sessions, with and without a terminal."""
    found = 0
    for process in processes():
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        found += words.startswith(b"sshd: ") and b"@" in words
    return found


def gpu_percent() -> float:
    """Use of the busiest GPU; 0 without one."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
        return max((float(line) for line in output.split() if line.replace(".", "").isdigit()), default=0)
    except (OSError, subprocess.TimeoutExpired):
        return 0


def tell_terminals(text: str) -> None:
    """Write a line to every terminal of this machine, tmux's included."""
    for terminal in Path("/dev/pts").glob("[0-9]*"):
        try:
            descriptor = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            os.write(descriptor, f"\r\n{text}\r\n".encode())
        except OSError:
            pass  # nobody reads it
        finally:
            os.close(descriptor)
