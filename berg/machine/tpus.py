"""How busy a machine's TPUs are, as libtpu tells while a program uses them: gRPC on a port of
loopback.

The messages are those of https://github.com/AI-Hypercomputer/cloud-accelerator-diagnostics
(tpu_info), by their fields' numbers. The worker has no grpcio, which is larger than all of its
packages together: three small questions over HTTP/2 (RFC 9113) need no more than what stands here.
Not covered: which program it is; of several on one machine only the first has this port.
"""

import socket
import struct
import time
from typing import IO, Any

from berg.google import wire

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
        answers = ask(port, [wire.embedded(NAME, name.encode()) for name in METRICS.values()])
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
    for field, each in wire.fields(dict(wire.fields(answer)).get(METRIC, b"")):
        if field == METRICS_OF:
            metric = dict(wire.fields(each))
            attribute = dict(wire.fields(metric.get(ATTRIBUTE, b"")))
            chip = dict(wire.fields(attribute.get(ATTRIBUTE_VALUE, b""))).get(INTEGER, 0)
            gauge = dict(wire.fields(metric.get(GAUGE, b"")))
            double = gauge.get(AS_DOUBLE)
            found.append(
                (
                    chip,
                    struct.unpack("<d", double)[0] if double else float(gauge.get(AS_INTEGER, 0)),
                )
            )
    return found
