"""The crc32c of bytes as Cloud Storage writes it: base64, big-endian."""

import base64
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

BLOCK = 1 << 20
# Polynomials over GF(2), the highest bit for x^0: Castagnoli's, 1, and x^8, which is one byte more.
CASTAGNOLI, ONE, BYTE = 0x82F63B78, 1 << 31, 1 << 23


def crc32c_of(blocks: Iterable[bytes], before: str = "") -> str:
    """The crc32c of all blocks; behind bytes whose crc32c is `before`."""
    import google_crc32c

    value = int.from_bytes(base64.b64decode(before), "big")
    for block in blocks:
        value = google_crc32c.extend(value, block)
    return encoded(value)


def encoded(crc: int) -> str:
    """A crc32c as Cloud Storage writes it."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def combined(first: int, second: int, size: int) -> int:
    """The crc32c of two pieces, the second of `size` bytes, from those of each."""
    return times(bytes_more(size), first) ^ second


@functools.cache
def bytes_more(size: int) -> int:
    """What a crc32c is multiplied by for `size` bytes that follow."""
    product, power = ONE, BYTE
    while size:
        product = times(product, power) if size & 1 else product
        power, size = times(power, power), size >> 1
    return product


def times(one: int, other: int) -> int:
    """The product of two polynomials, modulo Castagnoli's."""
    product = 0
    for bit in range(31, -1, -1):
        product ^= other * (one >> bit & 1)
        other = other >> 1 ^ CASTAGNOLI * (other & 1)
    return product


def file_crc32c(path: Path) -> str:
    with path.open("rb") as file:
        return crc32c_of(blocks(file))


def blocks(file: IO[bytes], size: int | None = None) -> Iterator[bytes]:
    """What a file has from where it stands; `size` bytes of it at most."""
    left = size
    while data := file.read(BLOCK if left is None else min(BLOCK, left)):
        left = None if left is None else left - len(data)
        yield data
