"""When a devbox is idle: no typing, no processes that people started, and idle CPUs, GPUs and TPUs.

People started what has a terminal, or came out of an ssh session or tmux, with nohup or without. A
shell at its prompt and programs that only show something, such as top, do not count. What a daemon
starts for people (cron, at, systemd-run, docker run -d) counts by its CPUs, GPUs and TPUs alone.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from berg.machine import usage

BUSY_CPUS = 0.1  # CPUs in use, on average over a sample, from which a machine is not idle
BUSY_GPU = 5  # percent, also of a TPU
NOTICE = 600  # seconds before the end in which people are warned
SHELLS = {"ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"}
# Programs that hold a session, and that show something.
ASIDE = {"SCREEN", "dbus-daemon", "gpg-agent", "login", "screen", "ssh-agent", "sshd"}
ASIDE |= {"sshd-session", "tmux"}
ASIDE |= {"htop", "less", "more", "nvidia-smi", "nvtop", "tail", "top", "watch"}
FROM_PEOPLE = re.compile(rb"(?:\A|\0)(?:SSH_CONNECTION|TMUX|STY)=")  # variables of a process
WITHOUT_TERMINAL = re.compile(rb"sshd(?:-session)?: \S+@notty")  # title of a session
TAKES_FILE = ("--init-file", "--rcfile")  # options of a shell at its prompt


def sample_seconds(seconds: float) -> float:
    """Return the length of a sample, for a machine that may be idle for so long."""
    return min(60.0, seconds / 20)


def samples(
    seconds: float, stopped: Callable[[float], bool], has_tpus: bool = False
) -> Iterator[bool]:
    """Yield after each sample whether the machine was used, until `stopped(pause)` is true."""
    sample = sample_seconds(seconds)
    before, typed = cpu_seconds(), last_typed()
    while not stopped(sample):
        now, typed_now = cpu_seconds(), last_typed()
        busy = (now - before) / sample > BUSY_CPUS or typed_now > typed
        busy = busy or any(map(is_use, processes())) or gpu_percent() > BUSY_GPU
        tpus = usage.tpus() if has_tpus and not busy else []
        yield busy or any((each.get("percent") or 0) > BUSY_GPU for each in tpus)
        before, typed = now, typed_now


def wait(
    seconds: float,
    stopped: Callable[[float], bool],
    warn: Callable[[float], None],
    used_elsewhere: Callable[[], bool] = lambda: False,
    has_tpus: bool = False,
) -> bool:
    """Wait until the machine was idle for `seconds`; return False if `stopped(pause)` became true
    before.

    `warn` is called once with the seconds that are left: ten minutes before, or after half of the
    time if that is less. `used_elsewhere` says whether another machine of the devbox was used.
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
    """Return the name of a process, and the fields after it in proc(5)'s stat; "" and none if it
    ended.
    """
    try:
        text = (process / "stat").read_text(errors="replace")
    except OSError:
        return "", []
    name, _, fields = text.partition("(")[2].rpartition(")")
    return name, fields.split()


def cpu_seconds() -> float:
    """Return the CPU time of all processes but berg's own: this one and its parent."""
    ours = (str(os.getpid()), str(os.getppid()))
    others = [process for process in processes() if process.name not in ours]
    # fields 11 and 12 are their own, 13 and 14 those of their children that ended
    ticks = sum(int(field) for process in others for field in stat(process)[1][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def is_use(process: Path) -> bool:
    """Return whether people started a process, and it is no shell at its prompt."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        name, fields = stat(process)
        if WITHOUT_TERMINAL.match(words[0]):
            return True
        is_aside = name.partition(":")[0] in ASIDE or is_at_prompt(name, words[1:-1])
        if not fields or fields[0] == "Z" or is_aside:
            return False
        if stat(process.with_name(fields[1]))[0] == "watch":
            return False
        return terminal_of(fields) is not None or bool(
            FROM_PEOPLE.search((process / "environ").read_bytes())
        )
    except OSError:
        return False  # it ended


def is_at_prompt(name: str, arguments: list[bytes]) -> bool:
    """Return whether a shell reads its commands from people: it has no command and no script."""
    plain = [word.decode(errors="replace") for word in arguments]
    pairs = zip(["", *plain], plain, strict=False)
    scripts = [word for before, word in pairs if before not in TAKES_FILE]
    return name in SHELLS and all(word.startswith("-") and word != "-c" for word in scripts)


def terminal_of(fields: list[str]) -> Path | None:
    """Return the pseudo terminal of a process."""
    number = int(fields[4])
    minor = (number & 0xFF) | (number >> 12 & 0xFFF00)
    return Path("/dev/pts", str(minor)) if number >> 8 & 0xFFF == 136 else None


def terminals() -> set[Path]:
    """Return the pseudo terminals of this machine's processes, tmux's included: in a sandbox
    /dev/pts has others, too.
    """
    found = (terminal_of(fields) for process in processes() if (fields := stat(process)[1]))
    return {terminal for terminal in found if terminal}


def last_typed() -> float:
    """Return when a program last read from a terminal; the kernel rounds that to 8 seconds."""
    times = [0.0]
    for terminal in terminals():
        with contextlib.suppress(OSError):  # it is closed
            times.append(terminal.stat().st_atime)
    return max(times)


def gpu_percent() -> float:
    """Return the use of the busiest GPU; 0 without one, and while its driver does not answer."""
    return max((each["percent"] for each in usage.gpus() if each["percent"] is not None), default=0)


def tell_terminals(text: str) -> None:
    """Write a line to every terminal of this machine."""
    for terminal in terminals():
        with contextlib.suppress(OSError):  # it is closed, or not read
            descriptor = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                os.write(descriptor, f"\r\n{text}\r\n".encode())
            finally:
                os.close(descriptor)
