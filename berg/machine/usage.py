"""Samples of what a machine is busy with: CPU, memory, disk, network, GPUs and TPUs, a JSON object
a line next to its log. In a container they are those of the whole machine.

A sample takes a fraction of a millisecond of CPU; nvidia-smi runs for GPUs, and libtpu answers for
TPUs. What a driver does not know ([N/A], as for a GPU that is split by MIG) is null.

A devbox is idle without typing, processes that people started, and busy CPUs, GPUs and TPUs. People
started what has a terminal, or came out of an ssh session or tmux, with nohup or without. A shell
at its prompt and programs that only show something, such as top, do not count. What a daemon starts
for people (cron, at, systemd-run, docker run -d) counts by its CPUs, GPUs and TPUs alone.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from berg import job
from berg.config import Config
from berg.google import api, events
from berg.machine import boot

# Beginnings of the names of devices that are virtual, or counted elsewhere.
INTERFACES = ("lo", "docker", "veth", "br-")
LEAST = 1  # seconds that are worth a sample
TIMEOUT = 20  # seconds for nvidia-smi, which takes one or two where nothing keeps the driver loaded
# nvidia-smi's name -> ours: percent, MiB, watt, degrees Celsius.
GPU = {
    "index": "index",
    "utilization.gpu": "percent",
    "memory.used": "memory_mb",
    "memory.total": "memory_total_mb",
    "power.draw": "watt",
    "temperature.gpu": "celsius",
}
REPORT_EVERY = 60  # seconds between points in Cloud Monitoring, which takes one in 5 seconds

# Each nvidia-smi that hangs in its driver, so that SIGKILL does not end it.
stuck: list[subprocess.Popen[bytes]] = []


def samples(
    seconds: float, stopped: Callable[[float], bool], has_tpus: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a sample of each `seconds` until `stopped(seconds)` is true.

    Then there is a last one, for short jobs: without accelerators, which are idle by then.
    """
    before, is_first = counters(), True
    while not stopped(seconds):
        now = counters()
        yield sample(before, now, gpus()) | ({"tpus": tpus()} if has_tpus else {})
        before, is_first = now, False
    now = counters()
    if is_first or now["time"] - before["time"] > LEAST:
        yield sample(before, now, []) | ({"tpus": []} if has_tpus else {})


def append(file: Path, sample: dict[str, Any]) -> None:
    # a full disk, which the job reports
    with contextlib.suppress(OSError), file.open("a") as output:
        output.write(json.dumps(sample) + "\n")


def counters() -> dict[str, float]:
    """Return what the kernel has counted since the machine booted."""
    cpu = [int(word) for word in rows("/proc/stat")[0][1:9]]
    memory = {row[0]: int(row[1]) * 1024 for row in rows("/proc/meminfo")[:3]}
    interfaces = [row for row in rows("/proc/net/dev")[2:] if not row[0].startswith(INTERFACES)]
    moved = disk_rows()
    return {
        "time": job.clock(),
        "busy": sum(cpu) - cpu[3] - cpu[4],
        "waiting": cpu[4],
        "cpu": sum(cpu),
        "memory": memory["MemTotal"] - memory["MemAvailable"],
        "memory_total": memory["MemTotal"],
        "received": sum(int(row[1]) for row in interfaces),
        "sent": sum(int(row[9]) for row in interfaces),
        "read": sum(int(row[5]) for row in moved) * 512,
        "written": sum(int(row[9]) for row in moved) * 512,
    }


def disk_rows() -> list[list[str]]:
    """Return the kernel's counts of each real disk."""
    try:
        # a Path for each would take longer than all the rest
        names = os.listdir("/sys/block")  # noqa: PTH208
    except OSError:  # a sandbox may hide them
        return []
    disks = {name for name in names if not name.startswith(("loop", "ram", "zram", "dm-", "md"))}
    return [row for row in rows("/proc/diskstats") if row[2] in disks] if disks else []


def rows(file: str) -> list[list[str]]:
    with Path(file).open() as lines:
        return [line.replace(":", " ", 1).split() for line in lines]


def sample(
    before: dict[str, float], now: dict[str, float], gpus: list[dict[str, float | None]]
) -> dict[str, Any]:
    """Return what happened between two counts."""
    change = {key: max(0, now[key] - before[key]) for key in now}  # a driver may begin at 0 again
    ticks, seconds = max(change["cpu"], 1), max(change["time"], 1e-3)
    disk = os.statvfs("/")
    return {
        "time": round(now["time"], 1),
        "cpu_percent": round(100 * change["busy"] / ticks, 1),
        "cpu_waiting_percent": round(100 * change["waiting"] / ticks, 1),
        "memory_percent": round(100 * now["memory"] / now["memory_total"], 1),
        "memory_bytes": now["memory"],
        "disk_percent": round(100 * (1 - disk.f_bavail / max(disk.f_blocks, 1)), 1),
        **{
            f"{key}_per_second": round(change[key] / seconds)
            for key in ("read", "written", "received", "sent")
        },
        "gpus": gpus,
    }


def gpus() -> list[dict[str, float | None]]:
    """Return the machine's GPUs; [] without any, and while nvidia-smi does not answer."""
    for each in [*stuck]:
        if each.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread removed it
                stuck.remove(each)
    if stuck or not shutil.which("nvidia-smi"):
        return []
    found = []
    for line in nvidia_smi().splitlines():
        words = line.split(",")
        if len(words) == len(GPU):
            found.append(dict(zip(GPU.values(), map(number, words), strict=True)))
    return [each for each in found if each["index"] is not None]


def nvidia_smi() -> str:
    """Return a line for each GPU; "" if nvidia-smi does not answer."""
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader,nounits"]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        process = subprocess.Popen(query, stdin=null, stdout=pipe, stderr=null)
    except OSError:
        return ""
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        stuck.append(process)
        return ""
    return output.decode(errors="replace")


def number(word: str) -> float | None:
    try:
        return round(float(word), 1)
    except (ValueError, OverflowError):  # [N/A], [Not Supported]
        return None


def busiest(sample: dict[str, Any]) -> float | None:
    """Return the percent of the busiest accelerator; None where it is unknown."""
    listed = [*sample["gpus"], *sample.get("tpus", [])]
    percents = [each["percent"] for each in listed if each.get("percent") is not None]
    return max(percents, default=None)


class Reporter:
    """Sends samples to Cloud Monitoring, with `berg init --monitoring`. A failure is logged once,
    and the next minute's sample is sent again: it never disturbs the job.
    """

    def __init__(self, config: Config, machine: boot.Machine, say: Callable[[str], None]):
        self.config, self.machine, self.say = config, machine, say
        self.due, self.instance, self.has_failed = 0.0, "", False

    def send(self, sample: dict[str, Any]) -> None:
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + REPORT_EVERY - 1  # samples come a little late, never early
        try:
            self.instance = self.instance or boot.metadata("instance/id")
            if series := points(self.config, self.machine.zone, self.instance, sample):
                # A second try would be refused as out of order, and one that is lost does no harm.
                where = f"projects/{self.config.project}/timeSeries"
                url = f"{self.config.service_url('monitoring')}/v3/{where}"
                api.send(self.config, "POST", url, {"timeSeries": series})
        except Exception as error:
            if not self.has_failed:
                why = getattr(error, "message", error)
                self.say(f"Cloud Monitoring gets no samples of this machine: {why}")
            self.has_failed = True


def points(
    config: Config, zone: str, instance: str, sample: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a sample as time series with a point each."""
    labels = {"project_id": config.project, "zone": zone, "instance_id": instance}
    interval = {"endTime": job.timestamp(sample.get("time", job.clock()))}

    def one(name: str, value: float, **labels_of_metric: str) -> dict[str, Any]:
        metric = {"labels": labels_of_metric} if labels_of_metric else {}
        return {
            "metric": {"type": job.METRICS + name, **metric},
            "resource": {"type": "gce_instance", "labels": labels},
            "metricKind": "GAUGE",
            "valueType": "DOUBLE",
            "points": [{"interval": interval, "value": {"doubleValue": float(value)}}],
        }

    found = []
    if sample.get("memory_percent") is not None:
        found.append(one("memory_percent", sample["memory_percent"]))
    for accelerator in [*(sample.get("gpus") or []), *(sample.get("tpus") or [])]:
        which = str(int(accelerator.get("index") or 0))
        if accelerator.get("percent") is not None:
            found.append(one("accelerator_percent", accelerator["percent"], accelerator=which))
        used, total = accelerator.get("memory_mb"), accelerator.get("memory_total_mb")
        if used is not None and total:
            found.append(one("accelerator_memory_percent", 100 * used / total, accelerator=which))
    return found


# libtpu answers with gRPC on a port of loopback while a program uses the TPUs; of several programs
# only the first has the port. Three small questions over HTTP/2 (RFC 9113) do without grpcio, which
# is larger than all other packages of the worker. The messages, by the numbers of their fields:
# https://github.com/AI-Hypercomputer/cloud-accelerator-diagnostics (tpu_info)
PORT = 8431
METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
SECONDS = 2  # for all questions
METRICS = {
    "percent": "tpu.runtime.tensorcore.dutycycle.percent",
    "memory_mb": "tpu.runtime.hbm.memory.usage.bytes",
    "memory_total_mb": "tpu.runtime.hbm.memory.total.bytes",
}
NAME, METRIC = 1, 1  # of the request, and of the answer
METRICS_OF = 3  # of the answer's metric: one for each chip
ATTRIBUTE, GAUGE = 1, 3  # of those
ATTRIBUTE_VALUE, INTEGER = 2, 3  # the chip's number
AS_DOUBLE, AS_INTEGER = 1, 2

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7  # kinds of frames
END_STREAM, ACK, END_HEADERS = 1, 1, 4  # flags


def tpus(port: int = PORT) -> list[dict[str, Any]]:
    """Return the machine's TPUs; [] while no program uses them."""
    chips: dict[int, dict[str, Any]] = {}
    try:
        answers = ask(port, [events.embedded(NAME, name.encode()) for name in METRICS.values()])
        for key, answer in zip(METRICS, answers, strict=True):
            for chip, value in values(answer):
                value = value / 2**20 if key.startswith("memory") else value
                chips.setdefault(chip, {"index": chip})[key] = round(value, 1)
    except (OSError, ValueError, IndexError, TypeError, AttributeError, struct.error):
        return []  # no server, or one with another protocol
    return [chips[chip] for chip in sorted(chips)]


def values(answer: bytes) -> list[tuple[int, float]]:
    """Return number and value of each chip in an answer."""

    def part(message: bytes, field: int, default: Any = b"") -> Any:
        return dict(events.fields(message)).get(field, default)

    found = []
    for field, each in events.fields(part(answer, METRIC)):
        if field == METRICS_OF:
            chip = part(part(part(each, ATTRIBUTE), ATTRIBUTE_VALUE), INTEGER, 0)
            gauge = part(each, GAUGE)
            if double := part(gauge, AS_DOUBLE):
                (value,) = struct.unpack("<d", double)
            else:
                value = float(part(gauge, AS_INTEGER, 0))
            found.append((chip, value))
    return found


def ask(
    port: int, messages: list[bytes], method: str = METHOD, seconds: float = SECONDS
) -> list[bytes]:
    """Return a gRPC server's answer to each message, b"" for one it refused; raises OSError."""
    end = time.monotonic() + seconds
    answers: dict[int, bytes] = {2 * n + 1: b"" for n in range(len(messages))}
    block = header_block(port, method)
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
    for stream, message in zip(answers, messages, strict=True):
        length = struct.pack(">I", len(message))
        opening += frame(HEADERS, END_HEADERS, stream, block)
        opening += frame(DATA, END_STREAM, stream, b"\0" + length + message)
    with socket.create_connection(("localhost", port), SECONDS) as connection:
        connection.sendall(opening)
        source, underway = connection.makefile("rb"), set(answers)
        while underway:
            connection.settimeout(max(end - time.monotonic(), 0.01))
            head = source.read(9)
            if len(head) < 9:
                raise ConnectionError
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            payload = source.read(int.from_bytes(head[:3], "big"))
            acknowledge(connection, kind, flags, payload)
            if kind == DATA and stream in answers:
                answers[stream] += payload
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                underway.discard(stream)
    return [answer[5:] for answer in answers.values()]


def header_block(port: int, method: str) -> bytes:
    """Return the headers of a request, each a literal that enters no table (RFC 7541, 6.2.2)."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": f"localhost:{port}",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b""
    for name, value in headers.items():
        block += bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def acknowledge(connection: socket.socket, kind: int, flags: int, payload: bytes) -> None:
    """Acknowledge a frame that needs it; raises ConnectionError if the server goes away."""
    if kind == GOAWAY:
        raise ConnectionError
    if kind in (PING, SETTINGS) and not flags & ACK:
        connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


BUSY_CPUS = 0.1  # CPUs in use, on average over a sample, from which a machine is not idle
BUSY_GPU = 5  # percent, also of a TPU
IDLE_NOTICE = 600  # seconds before the end in which people are warned
SHELLS = {"ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"}
# Programs that hold a session, and that show something.
ASIDE = {"SCREEN", "dbus-daemon", "gpg-agent", "login", "screen", "ssh-agent", "sshd"}
ASIDE |= {"sshd-session", "tmux"}
ASIDE |= {"htop", "less", "more", "nvidia-smi", "nvtop", "tail", "top", "watch"}
FROM_PEOPLE = re.compile(rb"(?:\A|\0)(?:SSH_CONNECTION|TMUX|STY)=")  # variables of a process


def sample_seconds(seconds: float) -> float:
    """Return the length of a sample, for a machine that may be idle for so long."""
    return min(60.0, seconds / 20)


def used_samples(
    seconds: float, stopped: Callable[[float], bool], has_tpus: bool = False
) -> Iterator[bool]:
    """Yield after each sample whether the machine was used, until `stopped(pause)` is true."""
    sample = sample_seconds(seconds)
    before, typed = cpu_seconds(), last_typed()
    while not stopped(sample):
        now, typed_now = cpu_seconds(), last_typed()
        busy = (now - before) / sample > BUSY_CPUS or typed_now > typed
        busy = busy or any(map(is_use, processes())) or gpu_percent() > BUSY_GPU
        found = tpus() if has_tpus and not busy else []
        yield busy or any((each.get("percent") or 0) > BUSY_GPU for each in found)
        before, typed = now, typed_now


def wait_until_idle(
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
    notice = min(IDLE_NOTICE, seconds / 2)
    quiet_since, warned = time.monotonic(), False
    for used in used_samples(seconds, stopped, has_tpus):
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
        # title of a session
        if re.match(rb"sshd(?:-session)?: \S+@notty", words[0]):
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
    # options of a shell at its prompt
    scripts = [word for before, word in pairs if before not in ("--init-file", "--rcfile")]
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
    return max((each["percent"] for each in gpus() if each["percent"] is not None), default=0)


def tell_terminals(text: str) -> None:
    """Write a line to every terminal of this machine."""
    for terminal in terminals():
        with contextlib.suppress(OSError):  # it is closed, or not read
            descriptor = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                os.write(descriptor, f"\r\n{text}\r\n".encode())
            finally:
                os.close(descriptor)
