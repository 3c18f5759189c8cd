"""Protocol buffers by hand, as far as small messages need them: fields are written, and read by
their numbers.
"""

import struct
from collections.abc import Iterator
from typing import Any

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
