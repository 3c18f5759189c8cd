"""A bucket in memory, in place of Cloud Storage's: for tests that read many buckets in a second.

Nothing of it is strict; what a call to Cloud Storage means is the embedded cloud's to say.
"""

import base64
import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import google_crc32c

from berg import validation
from berg.google import api, storage

LONG_AGO = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass
class Memory:
    """The objects by their names, and what stands in for the methods of berg's Bucket."""

    blobs: dict[str, Any] = field(default_factory=dict)
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def put(self, name: str, data: str | bytes, metadata: dict[str, str] | None = None) -> int:
        content = data.encode(errors="surrogatepass") if isinstance(data, str) else data
        crc = base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
        generation = next(self.generations)
        self.blobs[name] = SimpleNamespace(
            name=name,
            content=content,
            size=len(content),
            crc32c=crc,
            generation=generation,
            updated=LONG_AGO,
            metadata=metadata or {},
            row=None,
        )
        return generation

    def stand_in(self, patch: Any) -> None:
        """Let every Bucket be this one."""
        names = (
            "read",
            "read_from",
            "exists",
            "get",
            "gets",
            "write",
            "delete",
            "delete_at",
            "list",
            "pages",
        )
        for name in (*names, "delete_all_at", "folders"):
            method = getattr(self, name)
            patch.setattr(storage.Bucket, name, lambda _, *a, method=method, **o: method(*a, **o))
        patch.setattr(storage.Bucket, "download", lambda _, *a: self.download(*a))

    def get(self, name: str) -> Any:
        return self.blobs.get(name)

    def gets(self, names: Iterable[str], fields: str) -> Iterator[Any]:
        return map(self.blobs.get, names)

    def exists(self, name: str) -> bool:
        return name in self.blobs

    def read(self, name: str, most: int = validation.MOST_BYTES) -> bytes | None:
        return self.read_from(name, 0, most + 1)

    def read_from(self, name: str, start: int, end: int) -> bytes | None:
        blob = self.blobs.get(name)
        return None if blob is None else blob.content[start:end]

    def write(
        self, name: str, data: str | bytes, generation: int | None = None, metadata: Any = None
    ) -> int:
        there = self.blobs.get(name)
        if generation is not None and generation != (there.generation if there else 0):
            raise storage.Changed(f"{name} changed")
        return self.put(name, data, metadata)

    def delete(self, *names: str) -> None:
        for name in names:
            self.blobs.pop(name, None)

    def delete_at(self, name: str, generation: int) -> None:
        self.delete(name)

    def delete_all_at(self, objects: Iterable[tuple[str, int]]) -> None:
        self.delete(*(name for name, _ in objects))

    def folders(self, prefix: str) -> list[str]:
        behind = (name[len(prefix) :] for name in self.blobs if name.startswith(prefix))
        return sorted({f"{prefix}{rest.partition('/')[0]}/" for rest in behind if "/" in rest})

    def list(
        self, prefix: str, fields: str = "", glob: str | None = None, delimiter: str | None = None
    ) -> Iterator[Any]:
        pattern = re.compile(fnmatch.translate((glob or "*").replace("**", "*")))
        for name in sorted(self.blobs):
            is_deeper = delimiter is not None and delimiter in name[len(prefix) :]
            if name.startswith(prefix) and pattern.fullmatch(name) and not is_deeper:
                yield self.blobs[name]

    def pages(self, prefix: str, fields: str = "", *more: Any) -> Iterator[Any]:
        yield [*self.list(prefix, fields, *more)]

    def download(self, name: str, path: Path, *_: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.blobs[name].content)


@dataclass
class Uploads(Memory):
    """A bucket in memory that takes what a mirror sends; its generations are as large as Google's."""

    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1 << 50))

    def upload_stream(
        self,
        name: str,
        file: IO[bytes],
        size: int,
        generation: int | None = None,
        on_progress: Callable[[int], None] = lambda n: None,
        metadata: Any = None,
    ) -> Any:
        data = file.read(size)
        on_progress(len(data))
        self.write(name, data, generation, metadata)
        return self.get(name)

    def rewrite(self, name: str, source: Any, generation: int) -> Any:
        there = self.blobs.get(source.name)
        if there is None or there.generation != source.generation:
            raise api.NotFound(source.name)
        self.write(name, there.content, generation, there.metadata)
        return self.get(name)

    def append(
        self,
        name: str,
        tail_name: str,
        file: IO[bytes],
        size: int,
        generation: int,
        on_progress: Callable[[int], None],
        metadata: Any,
    ) -> Any:
        tail = self.upload_stream(tail_name, file, size, None, on_progress)
        before = self.blobs[name].content
        self.delete(tail_name)
        self.write(name, before + tail.content, generation, metadata)
        return self.get(name)
