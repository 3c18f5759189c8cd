"""The crc32c of bytes as Cloud Storage writes it: base64, big-endian."""

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

BLOCK = 1 << 20


def crc32c_of(blocks: Iterable[bytes], before: str = "") -> str:
    """The crc32c of all blocks; behind bytes whose crc32c is `before`."""
    import google_crc32c

    value = int.from_bytes(base64.b64decode(before), "big")
    for block in blocks:
        value = google_crc32c.extend(value, block)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def file_crc32c(path: Path) -> str:
    with path.open("rb") as file:
        return crc32c_of(blocks(file))


def blocks(file: IO[bytes], size: int | None = None) -> Iterator[bytes]:
    """What a file has from where it stands; `size` bytes of it at most."""
    left = size
    while data := file.read(BLOCK if left is None else min(BLOCK, left)):
        left = None if left is None else left - len(data)
        yield data
