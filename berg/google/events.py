"""Series of numbers: TensorBoard's event files, written and read without TensorFlow, and a
metrics.jsonl.

A series is what there is of one tag: step, value and time (seconds since 1970) of each point, as
they were written. An event file is a row of records: length (u64), its masked crc32c, an Event as a
protobuf message, its masked crc32c.
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto

Not covered: anything but scalars, such as pictures and histograms, which are passed over.

Protocol buffers by hand, as far as small messages need them: fields are written, and read by
their numbers.
"""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Series = dict[str, list[tuple[int, float, float]]]  # tag -> step, value, time

# Fields of the messages, by number.
WALL_TIME, STEP, FILE_VERSION, SUMMARY = 1, 2, 3, 5  # of Event

VALUE = 1  # of Summary

TAG, SIMPLE_VALUE, TENSOR = 1, 2, 8  # of Summary.Value

DTYPE, CONTENT, FLOATS, DOUBLES = 1, 4, 5, 6  # of TensorProto

FLOAT, DOUBLE = 1, 2  # its dtypes

LAST_STEP = 2**63 - 1

MOST = 64 << 20  # bytes of a file of lines that are read

# keys of a metrics.jsonl that say where it is
STEPS = (
    "step",
    "global_step",
    "iteration",
    "iter",
    "epoch",
)

TIMES = ("time", "timestamp", "wall_time")


def scalars(source: Path | bytes) -> Series:
    """Every scalar of an event file, up to where it is cut off or damaged."""
    data = source if isinstance(source, bytes) else last_lines(source)
    found: Series = {}
    for content in records(data):
        try:
            for wall_time, step, tag, value in of_event(content):
                found.setdefault(tag, []).append((step, value, wall_time))
        except (IndexError, TypeError, AttributeError, struct.error, ValueError):
            break  # whole, but no Event
    return found


def last_lines(file: Path, most: int = MOST) -> bytes:
    """Return the lines of a file, of one that is longer than `most` the last ones."""
    with file.open("rb") as lines:
        start = max(0, lines.seek(0, os.SEEK_END) - most)
        lines.seek(start)
        data = lines.read(most)
    return data.partition(b"\n")[2] if start else data


def metrics(source: Path | bytes) -> Series:
    """Every number of a metrics.jsonl, an object a line; what is no such line is passed over.

    The step is what one of STEPS says, else the number of the line; the time is 0 where no line
    tells it.
    """
    data = source if isinstance(source, bytes) else source.read_bytes()
    found: Series = {}
    for count, line in enumerate(data.splitlines()):
        numbers = numbers_of(line)
        step = int(first_of(STEPS, numbers, count))
        when = first_of(TIMES, numbers, 0.0)
        for key in numbers.keys() - {*STEPS[:-1], *TIMES}:
            found.setdefault(key, []).append((min(max(0, step), LAST_STEP), numbers[key], when))
    return found


def numbers_of(line: bytes) -> dict[str, float]:
    """Return the numbers of a line of JSON; none for what is no object."""
    try:
        values = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {key: float(value) for key, value in values.items() if is_number(value)}


def first_of(keys: tuple[str, ...], numbers: dict[str, float], default: float) -> float:
    """Return the number of the first of the keys that is there."""
    for key in keys:
        if key in numbers:
            return numbers[key]
    return default


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number that a float can hold, and finite."""
    return type(value) in (int, float) and abs(value) < 1e308


def write(file: Path, series: Series) -> None:
    """Append series to an event file, which need not exist."""
    with file.open("ab") as output:
        if not output.tell():
            first = min((when for points in series.values() for _, _, when in points), default=0.0)
            output.write(
                record(fixed(WALL_TIME, "<d", first) + embedded(FILE_VERSION, b"brain.Event:2"))
            )
        for tag, points in series.items():
            name = embedded(TAG, tag.encode(errors="replace"))
            for step, value, when in points:
                about = fixed(WALL_TIME, "<d", when) + number(STEP, step)
                shown = fixed(SIMPLE_VALUE, "<f", max(-3e38, min(3e38, value)))
                output.write(record(about + embedded(SUMMARY, embedded(VALUE, name + shown))))


def masked_crc32c(data: bytes) -> bytes:
    import google_crc32c

    value = google_crc32c.value(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(content: bytes) -> bytes:
    head = struct.pack("<Q", len(content))
    return head + masked_crc32c(head) + content + masked_crc32c(content)


def records(data: bytes) -> Iterator[bytes]:
    """What the records of a file hold, up to the first that is not whole."""
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        content, checksum = data[at + 12 : at + 12 + size], data[at + 12 + size : at + 16 + size]
        if (
            masked_crc32c(data[at : at + 8]) != data[at + 8 : at + 12]
            or masked_crc32c(content) != checksum
        ):
            return
        at += size + 16
        yield content


def of_event(content: bytes) -> Iterator[tuple[float, int, str, float]]:
    """Time, step, tag and value of each scalar of an Event."""
    found = dict(fields(content))
    wall_time, step = struct.unpack("<d", found.get(WALL_TIME, bytes(8)))[0], found.get(STEP, 0)
    for field, value in fields(found.get(SUMMARY, b"")):
        if field == VALUE:
            parts = dict(fields(value))
            scalar = scalar_of(parts)
            if scalar is not None:
                yield wall_time, step - (step >> 63 << 64), parts.get(TAG, b"").decode(), scalar


def scalar_of(value: dict[int, Any]) -> float | None:
    """The number of a Summary.Value; None if it is something else, such as a picture."""
    if SIMPLE_VALUE in value:
        return float(struct.unpack("<f", value[SIMPLE_VALUE])[0])
    tensor = dict(fields(value.get(TENSOR, b"")))
    width = {FLOAT: "<f", DOUBLE: "<d"}.get(tensor.get(DTYPE, 0))
    data = tensor.get(CONTENT) or tensor.get(FLOATS) or tensor.get(DOUBLES) or b""
    if not width or len(data) != struct.calcsize(width):
        return None
    return float(struct.unpack(width, data)[0])


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(value)


def fixed(field: int, form: str, value: float) -> bytes:
    kind = FIXED64 if form == "<d" else FIXED32
    return bytes([field << 3 | kind]) + struct.pack(form, value)


def embedded(field: int, content: bytes) -> bytes:
    return varint(field << 3 | BYTES) + varint(len(content)) + content


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message: an int for a varint, else bytes.

    Raises IndexError or ValueError for what is none.
    """
    at = 0

    def read_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number without an end")

    while at < len(message):
        key = read_varint()
        if key & 7 == VARINT:
            yield key >> 3, read_varint()
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(key & 7) or read_varint()
        yield key >> 3, message[at : at + size]
        at += size
