"""What a machine is busy with: CPU, memory, disk, network, GPUs and TPUs, a JSON object a line
beside its log.

A sample costs a fraction of a millisecond of CPU; with GPUs nvidia-smi runs for it, with TPUs
libtpu is asked. What a driver does not tell ([N/A], as of a GPU that is split by MIG) is null. In a
container it is the whole machine's. Not covered: single processes, and the parts of a GPU that is
split.

How busy a machine's TPUs are, as libtpu tells while a program uses them: gRPC on a port of
loopback.

The messages are those of https://github.com/AI-Hypercomputer/cloud-accelerator-diagnostics
(tpu_info), by their fields' numbers. The worker has no grpcio, which is larger than all of its
packages together: three small questions over HTTP/2 (RFC 9113) need no more than what stands here.
Not covered: which program it is; of several on one machine only the first has this port.

What a machine tells Cloud Monitoring of itself, once a minute, where `berg init --monitoring`
said so.

It never troubles the job: what cannot be written is said once in the log, and tried again with the
next minute.
"""

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from berg.config import Config
from berg.google import events, monitoring
from berg.machine import boot

SUFFIX = ".usage.jsonl"

# Names of what is virtual, or counted elsewhere.
INTERFACES = ("lo", "docker", "veth", "br-")

DISKS = ("loop", "ram", "zram", "dm-", "md")

LEAST = 1  # seconds that are worth a sample

PATIENCE = 20  # seconds for nvidia-smi, which takes one or two where nothing holds the driver open

# What nvidia-smi calls it -> what we do: percent, MiB, watt, degrees Celsius.
GPU = {
    "index": "index",
    "utilization.gpu": "percent",
    "memory.used": "memory_mb",
    "memory.total": "memory_total_mb",
    "power.draw": "watt",
    "temperature.gpu": "celsius",
}

# Each nvidia-smi that its driver does not let end, not even by SIGKILL.
stuck: list[subprocess.Popen[bytes]] = []


def samples(
    seconds: float, stopped: Callable[[float], bool], has_tpus: bool = False
) -> Iterator[dict[str, Any]]:
    """A sample every so many seconds, of the time since the one before, until `stopped(pause)` is
    true.

    Then there is one more, or a short job had none: without accelerators, which rest by then.
    """
    before, count = counters(), 0
    while not stopped(seconds):
        now = counters()
        yield sample(before, now, gpus()) | ({"tpus": read()} if has_tpus else {})
        before, count = now, count + 1
    now = counters()
    if not count or now["time"] - before["time"] > LEAST:
        yield sample(before, now, []) | ({"tpus": []} if has_tpus else {})


def append(file: Path, sample: dict[str, Any]) -> None:
    # a full disk; the job says so itself
    with (
        contextlib.suppress(OSError),
        file.open("a") as output,
    ):
        output.write(json.dumps(sample) + "\n")


def counters() -> dict[str, float]:
    """What the kernel has counted since the machine booted."""
    cpu = [int(word) for word in rows("/proc/stat")[0][1:9]]
    memory = {row[0]: int(row[1]) * 1024 for row in rows("/proc/meminfo")[:3]}
    interfaces = [row for row in rows("/proc/net/dev")[2:] if not row[0].startswith(INTERFACES)]
    moved = disk_rows()
    return {
        "time": time.time(),
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
        # A Path for each would take longer than all the rest.
        disks = os.listdir("/sys/block")  # noqa: PTH208
    except OSError:  # a sandbox may hide them
        return []
    real = {disk for disk in disks if not disk.startswith(DISKS)}
    if not real:
        return []
    return [row for row in rows("/proc/diskstats") if row[2] in real]


def rows(file: str) -> list[list[str]]:
    with Path(file).open() as lines:
        return [line.replace(":", " ", 1).split() for line in lines]


def sample(
    before: dict[str, float], now: dict[str, float], gpus: list[dict[str, float | None]]
) -> dict[str, Any]:
    """What happened between two counts."""
    # a driver may begin to count anew
    change = {key: max(0, now[key] - before[key]) for key in now}
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
    forget_those_that_ended()
    if stuck or not shutil.which("nvidia-smi"):
        return []
    found = []
    for line in nvidia_smi().splitlines():
        words = line.split(",")
        if len(words) == len(GPU):
            found.append(dict(zip(GPU.values(), map(number, words), strict=True)))
    return [each for each in found if each["index"] is not None]


def forget_those_that_ended() -> None:
    """Let go of each stuck nvidia-smi that has ended after all."""
    for each in [*stuck]:
        if each.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread saw it as well
                stuck.remove(each)


def nvidia_smi() -> str:
    """Return what nvidia-smi says of the GPUs, a line for each; "" if it does not answer."""
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.Popen(
            query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    try:
        output, _ = asked.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        asked.kill()
        stuck.append(asked)
        return ""
    return output.decode(errors="replace")


def number(word: str) -> float | None:
    try:
        return round(float(word), 1)
    except (ValueError, OverflowError):  # [N/A], [Not Supported]
        return None


def busiest(sample: dict[str, Any]) -> float | None:
    """Percent of the accelerator that does most; None where none tells."""
    listed = [*sample["gpus"], *sample.get("tpus", [])]
    return max(
        (each["percent"] for each in listed if each.get("percent") is not None), default=None
    )


PORT = 8431

METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"

TIMEOUT = 2  # seconds, for all of it

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

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7  # kinds of frames

END_STREAM, ACK, END_HEADERS = 1, 1, 4  # flags


def read(port: int = PORT) -> list[dict[str, Any]]:
    """The machine's TPUs; [] while no program uses them."""
    chips: dict[int, dict[str, Any]] = {}
    try:
        answers = ask(port, [events.embedded(NAME, name.encode()) for name in METRICS.values()])
        for key, answer in zip(METRICS, answers, strict=True):
            for chip, value in values(answer):
                value = value / 2**20 if key.startswith("memory") else value
                chips.setdefault(chip, {"index": chip})[key] = round(value, 1)
    except (OSError, ValueError, IndexError, TypeError, AttributeError, struct.error):
        return []  # nobody listens, or it speaks otherwise
    return [chips[chip] for chip in sorted(chips)]


def ask(
    port: int, messages: list[bytes], method: str = METHOD, seconds: float = TIMEOUT
) -> list[bytes]:
    """Return the answer to each message, b"" where it was refused; raises OSError if nobody
    answers.
    """
    end = time.monotonic() + seconds
    answers: dict[int, bytes] = {2 * n + 1: b"" for n in range(len(messages))}
    block = header_block(port, method)
    opening = PREFACE + frame(SETTINGS, 0, 0, b"")
    for stream, message in zip(answers, messages, strict=True):
        length = struct.pack(">I", len(message))
        opening += frame(HEADERS, END_HEADERS, stream, block)
        opening += frame(DATA, END_STREAM, stream, b"\0" + length + message)
    with socket.create_connection(("localhost", port), TIMEOUT) as connection:
        connection.sendall(opening)
        source, underway = connection.makefile("rb"), set(answers)
        while underway:
            connection.settimeout(max(end - time.monotonic(), 0.01))
            kind, flags, stream, payload = next_frame(source)
            reply_to(connection, kind, flags, payload)
            if kind == DATA and stream in answers:
                answers[stream] += payload
            if ends_stream(kind, flags):
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


def next_frame(source: IO[bytes]) -> tuple[int, int, int, bytes]:
    """Return kind, flags, stream and payload of the next frame."""
    head = source.read(9)
    if len(head) < 9:
        raise ConnectionError
    payload = source.read(int.from_bytes(head[:3], "big"))
    return head[3], head[4], int.from_bytes(head[5:], "big"), payload


def reply_to(connection: socket.socket, kind: int, flags: int, payload: bytes) -> None:
    """Acknowledge a frame that wants it; raises ConnectionError if the server goes away."""
    if kind == GOAWAY:
        raise ConnectionError
    if flags & ACK:
        return
    if kind == PING:
        connection.sendall(frame(PING, ACK, 0, payload))
    if kind == SETTINGS:
        connection.sendall(frame(SETTINGS, ACK, 0, b""))


def ends_stream(kind: int, flags: int) -> bool:
    """Whether nothing comes on a stream after this frame."""
    if kind == RST_STREAM:
        return True
    return kind in (DATA, HEADERS) and bool(flags & END_STREAM)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def values(answer: bytes) -> list[tuple[int, float]]:
    """Number and value of each chip in an answer."""
    found = []
    for field, each in events.fields(dict(events.fields(answer)).get(METRIC, b"")):
        if field == METRICS_OF:
            metric = dict(events.fields(each))
            attribute = dict(events.fields(metric.get(ATTRIBUTE, b"")))
            chip = dict(events.fields(attribute.get(ATTRIBUTE_VALUE, b""))).get(INTEGER, 0)
            gauge = dict(events.fields(metric.get(GAUGE, b"")))
            double = gauge.get(AS_DOUBLE)
            found.append(
                (
                    chip,
                    struct.unpack("<d", double)[0] if double else float(gauge.get(AS_INTEGER, 0)),
                )
            )
    return found


EVERY = 60  # seconds; Google takes a point of a series each 5


class Reporter:
    """Samples go in; those that are due go out."""

    def __init__(self, config: Config, machine: boot.Machine, say: Callable[[str], None]):
        self.config, self.machine, self.say = config, machine, say
        self.due, self.instance, self.told = 0.0, "", False

    def send(self, sample: dict[str, Any]) -> None:
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + EVERY - 1  # samples come a little late, not a little early
        try:
            self.instance = self.instance or boot.metadata("instance/id")
            if series := monitoring.points(self.config, self.machine.zone, self.instance, sample):
                monitoring.write(self.config, series)
        except Exception as error:
            if not self.told:
                why = getattr(error, "message", error)
                self.say(f"Cloud Monitoring does not hear of this machine: {why}")
            self.told = True
