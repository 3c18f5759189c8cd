"""Series of numbers: TensorBoard's event files, read and written without TensorFlow, and
metrics.jsonl.

An event file is a row of records: length (u64), its masked crc32c, an Event as a protobuf message,
its masked crc32c. Not covered: anything but scalars, such as pictures and histograms.
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
"""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Series = dict[str, list[tuple[int, float, float]]]  # tag -> step, value, time (s since 1970)

# Fields of the messages, by number.
WALL_TIME, STEP, FILE_VERSION, SUMMARY = 1, 2, 3, 5  # of Event
VALUE = 1  # of Summary
TAG, SIMPLE_VALUE, TENSOR = 1, 2, 8  # of Summary.Value
DTYPE, CONTENT, FLOATS, DOUBLES = 1, 4, 5, 6  # of TensorProto
FORMATS = {1: "<f", 2: "<d"}  # of its dtypes
MOST = 64 << 20  # bytes of a file of lines that are read
# Keys of metrics.jsonl that say where a line is.
STEPS = ("step", "global_step", "iteration", "iter", "epoch")
TIMES = ("time", "timestamp", "wall_time")


def scalars(source: Path | bytes) -> Series:
    """Return every scalar of an event file, up to where it is cut off or damaged."""
    found: Series = {}
    for content in records(source if isinstance(source, bytes) else last_lines(source)):
        try:
            for wall_time, step, tag, value in of_event(content):
                found.setdefault(tag, []).append((step, value, wall_time))
        except (IndexError, TypeError, AttributeError, struct.error, ValueError):
            break  # whole, but no Event
    return found


def last_lines(file: Path, most: int = MOST) -> bytes:
    """Return the lines of a file; of one that is longer than `most`, the last ones."""
    with file.open("rb") as lines:
        start = max(0, lines.seek(0, os.SEEK_END) - most)
        lines.seek(start)
        data = lines.read(most)
    return data.partition(b"\n")[2] if start else data


def metrics(source: Path | bytes) -> Series:
    """Return every number of a metrics.jsonl, which has an object in each line; skip other lines.

    The step is what one of STEPS says, else the number of the line; the time is 0 if no key says.
    """
    data = source if isinstance(source, bytes) else source.read_bytes()
    found: Series = {}
    for count, line in enumerate(data.splitlines()):
        try:
            values = json.loads(line.decode(errors="replace"))
            numbers = {key: float(value) for key, value in values.items() if is_number(value)}
        except (ValueError, AttributeError, RecursionError):
            continue
        step = int(next((numbers[key] for key in STEPS if key in numbers), count))
        when = next((numbers[key] for key in TIMES if key in numbers), 0.0)
        step = min(max(0, step), 2**63 - 1)  # as an Event can hold it
        for key in numbers.keys() - {*STEPS[:-1], *TIMES}:
            found.setdefault(key, []).append((step, numbers[key], when))
    return found


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a finite number that a float can hold."""
    return type(value) in (int, float) and abs(value) < 1e308


def write(file: Path, series: Series) -> None:
    """Append series to an event file, which need not exist."""
    with file.open("ab") as output:
        if not output.tell():
            first = min((when for points in series.values() for _, _, when in points), default=0.0)
            version = embedded(FILE_VERSION, b"brain.Event:2")
            output.write(record(fixed(WALL_TIME, "<d", first) + version))
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
    """Yield what the records of a file hold, up to the first that is not whole."""
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        content = data[at + 12 : at + 12 + size]
        if record(content) != data[at : at + 16 + size]:
            return
        at += size + 16
        yield content


def of_event(content: bytes) -> Iterator[tuple[float, int, str, float]]:
    """Yield time, step, tag and value of each scalar of an Event."""
    found = dict(fields(content))
    wall_time, step = struct.unpack("<d", found.get(WALL_TIME, bytes(8)))[0], found.get(STEP, 0)
    for field, value in fields(found.get(SUMMARY, b"")):
        parts = dict(fields(value)) if field == VALUE else {}
        scalar = scalar_of(parts)
        if scalar is not None:
            yield wall_time, step - (step >> 63 << 64), parts.get(TAG, b"").decode(), scalar


def scalar_of(value: dict[int, Any]) -> float | None:
    """Return the number of a Summary.Value; None if it is something else, such as a picture."""
    if SIMPLE_VALUE in value:
        return float(struct.unpack("<f", value[SIMPLE_VALUE])[0])
    tensor = dict(fields(value.get(TENSOR, b"")))
    form = FORMATS.get(tensor.get(DTYPE, 0))
    data = tensor.get(CONTENT) or tensor.get(FLOATS) or tensor.get(DOUBLES) or b""
    if not form or len(data) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, data)[0])


# --- protocol buffers, as far as small messages need them

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
    """Yield number and value of each field of a message: an int for a varint, else bytes.

    Raises IndexError or ValueError for what is no message.
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


def last_values(text: str, skips_damage: bool = False) -> dict[str, Any]:
    """Return the last value of each metric in a metrics.jsonl, up to a damaged line, for example
    one that is cut off; with `skips_damage` without those. Lists and objects are no metrics.
    """
    values: dict[str, Any] = {}
    for line in text.splitlines():
        try:
            found = json.loads(line).items()
        except (ValueError, AttributeError, RecursionError):
            if skips_damage:
                continue
            break
        values |= {key: value for key, value in found if not isinstance(value, (list, dict))}
    return values
