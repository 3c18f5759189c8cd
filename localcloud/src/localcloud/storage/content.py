"""Objects' content as a file that is being filled: written, hashed, cut and joined. Knows no
buckets and no HTTP.
"""

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

BLOCK = 1 << 20  # bytes read or written at a time


@dataclass
class Content:
    """A file that is being filled, and the hashes of what it holds so far. Methods block on the
    disk.
    """

    path: Path
    size: int = 0
    crc: int = 0
    md5: Any = field(default_factory=lambda: hashlib.md5(usedforsecurity=False))  # None: not wanted
    file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        """Append `data`. Unbuffered: a killed process keeps what was written."""
        if self.file is None:
            self.file = self.path.open("ab", buffering=0)
        view = memoryview(data)
        while view:
            view = view[self.file.write(view) :]
        self._hash(data)

    def _hash(self, data: bytes) -> None:
        self.crc = google_crc32c.extend(self.crc, data)
        if self.md5 is not None:
            self.md5.update(data)
        self.size += len(data)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def discard(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def truncate(self, size: int) -> "Content":
        """Cut the file to `size` and return it with the hashes of what is left."""
        self.close()
        with self.path.open("ab") as file:
            file.truncate(size)
        return reread(self.path)

    def hashes(self) -> dict[str, str]:
        """crc32c and md5 as the API writes them: base64 of the big-endian bytes."""
        hashes = {"crc32c": base64.b64encode(self.crc.to_bytes(4, "big")).decode()}
        if self.md5 is not None:
            hashes["md5Hash"] = base64.b64encode(self.md5.digest()).decode()
        return hashes


def reread(path: Path) -> Content:
    """Hash a partly filled file again, after a broken chunk."""
    content = Content(path)
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            content._hash(data)
    return content


def concatenate(sources: Iterable[BinaryIO], content: Content) -> None:
    """Append what each source holds to `content`, a block at a time."""
    for source in sources:
        while data := source.read(BLOCK):
            content.write(data)
