"""When a devbox is idle: nobody types, nothing runs that people started, and CPUs, GPUs and TPUs do
nothing of note.

What people started is what has a terminal, or came out of an ssh session or tmux, nohup or not. A
shell at its prompt and what only shows something, such as top, is no use. Not covered: what a
daemon starts for people (cron, at, systemd-run, docker run -d) counts by its CPUs, GPUs and TPUs
alone.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from berg.machine import usage

BUSY_CPUS = 0.1  # CPUs in use, on average over a sample, from which a machine is not idle
BUSY_GPU = 5  # percent, also of a TPU
NOTICE = 600  # seconds before the end in which people are told of it
SHELLS = {"ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"}
# What holds a session, and what shows something.
ASIDE = {
    "SCREEN",
    "dbus-daemon",
    "gpg-agent",
    "login",
    "screen",
    "ssh-agent",
    "sshd",
    "sshd-session",
    "tmux",
}
ASIDE |= {"htop", "less", "more", "nvidia-smi", "nvtop", "tail", "top", "watch"}
FROM_PEOPLE = re.compile(rb"(?:\A|\0)(?:SSH_CONNECTION|TMUX|STY)=")  # variables of a process
WITHOUT_TERMINAL = re.compile(rb"sshd(?:-session)?: \S+@notty")  # title of a session
TAKES_FILE = ("--init-file", "--rcfile")  # options of a shell at its prompt


def sample_seconds(seconds: float) -> float:
    """How long to look at a time, for a machine that may be idle for so long."""
    return min(60.0, seconds / 20)


def samples(
    seconds: float, stopped: Callable[[float], bool], has_tpus: bool = False
) -> Iterator[bool]:
    """Whether the machine was used, again and again until `stopped(pause)` is true."""
    sample = sample_seconds(seconds)
    before, typed = cpu_seconds(), last_typed()
    while not stopped(sample):
        now, typed_now = cpu_seconds(), last_typed()
        busy = (now - before) / sample > BUSY_CPUS or typed_now > typed
        busy = busy or any(map(is_use, processes()))
        yield busy or gpu_percent() > BUSY_GPU or (has_tpus and tpu_percent() > BUSY_GPU)
        before, typed = now, typed_now


def wait(
    seconds: float,
    stopped: Callable[[float], bool],
    warn: Callable[[float], None],
    used_elsewhere: Callable[[], bool] = lambda: False,
    has_tpus: bool = False,
) -> bool:
    """Wait until the machine was idle for `seconds`; False if `stopped(pause)` became true before.

    `warn` hears once how many seconds are left: ten minutes before, or after half of the time if
    that is less. `used_elsewhere` is asked whether one of the other machines was used in the
    meantime.
    """
    notice = min(NOTICE, seconds / 2)
    quiet_since, warned = time.monotonic(), False
    for used in samples(seconds, stopped, has_tpus):
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


def stat(process: Path) -> tuple[str, list[str]]:
    """Name of a process, and the fields after it in proc(5)'s stat; none if it ended."""
    try:
        name, _, fields = (
            (process / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
        )
    except OSError:
        return "", []
    return name, fields.split()


def cpu_seconds() -> float:
    """CPU time used by all processes but berg's own, which is this one and its parent."""
    others = (
        process for process in processes() if int(process.name) not in (os.getpid(), os.getppid())
    )
    # their dead children's, too
    ticks = sum(int(field) for process in others for field in stat(process)[1][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def is_use(process: Path) -> bool:
    """Whether a process is something that people started, and no shell at its prompt."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        name, fields = stat(process)
        if WITHOUT_TERMINAL.match(words[0]):
            return True
        if (
            not fields
            or fields[0] == "Z"
            or name.partition(":")[0] in ASIDE
            or is_at_prompt(name, words[1:-1])
        ):
            return False
        if stat(process.with_name(fields[1]))[0] == "watch":
            return False
        return terminal_of(fields) is not None or bool(
            FROM_PEOPLE.search((process / "environ").read_bytes())
        )
    except OSError:
        return False  # it ended


def is_at_prompt(name: str, arguments: list[bytes]) -> bool:
    """Whether a shell reads its commands from people: it has neither a command nor a script."""
    plain = [word.decode(errors="replace") for word in arguments]
    scripts = [
        word for before, word in zip(["", *plain], plain, strict=False) if before not in TAKES_FILE
    ]
    return name in SHELLS and all(word.startswith("-") and word != "-c" for word in scripts)


def terminal_of(fields: list[str]) -> Path | None:
    """The pseudo terminal of a process."""
    number = int(fields[4])
    minor = (number & 0xFF) | (number >> 12 & 0xFFF00)
    return Path("/dev/pts", str(minor)) if number >> 8 & 0xFFF == 136 else None


def terminals() -> set[Path]:
    """The pseudo terminals of this machine, tmux's included; in a sandbox /dev/pts has those of
    others, too.
    """
    found = (terminal_of(fields) for process in processes() if (fields := stat(process)[1]))
    return {terminal for terminal in found if terminal}


def last_typed() -> float:
    """When a program last read from a terminal; the kernel rounds that to 8 seconds."""
    times = [0.0]
    for terminal in terminals():
        try:
            times.append(terminal.stat().st_atime)
        except OSError:
            continue  # it is closed
    return max(times)


def gpu_percent() -> float:
    """Use of the busiest GPU; 0 without one, and while its driver does not answer."""
    return max((each["percent"] for each in usage.gpus() if each["percent"] is not None), default=0)


def tpu_percent() -> float:
    """Use of the busiest TPU; 0 where no program uses one."""
    return max(
        (each["percent"] for each in usage.tpus() if each.get("percent") is not None), default=0
    )


def tell_terminals(text: str) -> None:
    """Write a line to every terminal of this machine."""
    for terminal in terminals():
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
