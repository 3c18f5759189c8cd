"""The objects of a bucket: written under preconditions, copied within it, listed and downloaded.

Every write of a record names the generation that it replaces (0: none), so that no retry, second
laptop or second worker does a thing twice. google-cloud-storage writes records and large files; obstore
reads and writes many objects, which takes a fifth of its CPU; lists are read as plain JSON, which takes
half of it. All retry errors that may pass.
"""

import base64
import contextlib
import functools
import io
import mimetypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any, TypeVar

import google_crc32c

from berg import google
from berg.config import Config
from berg.google import TIMEOUT, GoogleError

T = TypeVar("T")
WRONG = 1  # seconds by which this computer's clock may differ from the bucket's
SECONDS = 120  # for which a request is retried
THREADS = 16
CHUNK = 16 << 20  # bytes of one request of a large upload, which a lost connection repeats
PIECE, PIECES = 16 << 20, 8  # bytes of a large download on one connection; connections
BLOCK = 1 << 20
STORAGE = "https://storage.googleapis.com"
COLUMNS = "items(name,size,crc32c,generation,updated,metadata),nextPageToken"


class Changed(Exception):
    """The object is not, or no longer, the one that was expected."""


@dataclass(frozen=True)
class Object:
    """What the bucket says of an object."""

    name: str
    size: int
    crc: int  # CRC32C
    generation: int
    about: dict[str, str] = field(default_factory=dict)  # its custom metadata
    updated_ns: int = 0

    @classmethod
    def of(cls, item: dict[str, Any]) -> "Object":
        """An object as Google's API says it, and google-cloud-storage keeps it."""
        crc = int.from_bytes(base64.b64decode(item.get("crc32c", "")), "big")
        updated = datetime.fromisoformat(item["updated"].replace("Z", "+00:00")).timestamp()
        return cls(
            item["name"], int(item["size"]), crc, int(item["generation"]),
            item.get("metadata") or {}, int(updated * 1e9),
        )  # fmt: skip


class Section(io.RawIOBase):
    """Bytes of an open file as a file of their own.

    Each read is told to `check`, which may raise: what was read is not what was meant, or there is
    no time left.
    """

    def __init__(
        self,
        file: IO[bytes],
        start: int,
        end: int,
        check: Callable[[int], None] = lambda count: None,
    ):
        self.file, self.start, self.end, self.at, self.check = file, start, end, start, check

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size, data = min(len(buffer), self.end - self.at), b""
        while len(data) < size:  # a write of Google's library ends with an error at a short read
            more = os.pread(self.file.fileno(), size - len(data), self.at + len(data))
            if not more:
                raise Changed("the file became shorter")
            data += more
        buffer[: len(data)] = data
        self.at += len(data)
        self.check(len(data))
        return len(data)

    def tell(self) -> int:
        return self.at - self.start

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: self.start, os.SEEK_CUR: self.at, os.SEEK_END: self.end}[whence]
        self.at = base + offset
        return self.tell()


def checksum(
    file: IO[bytes],
    start: int,
    end: int,
    crc: int = 0,
    check: Callable[[int], None] = lambda count: None,
) -> int:
    """The CRC32C of what had `crc` up to `start`, and goes on to `end`."""
    section = Section(file, start, end, check)
    while block := section.read(BLOCK):
        crc = google_crc32c.extend(crc, block)
    return int(crc)


def kind_of(name: str) -> str:
    """The content type of an object."""
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


@functools.cache
def trouble() -> tuple[type[Exception], ...]:
    """What the network and the bucket may answer; the same may be tried again later."""
    import obstore
    import requests
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    network = (GoogleError, GoogleAPIError, GoogleAuthError, requests.RequestException, OSError)
    return *network, obstore.exceptions.BaseError


@dataclass
class Bucket:
    """One bucket. Methods raise what `trouble` names, and Changed for a precondition."""

    config: Config
    seconds: float = SECONDS
    offset: float = 0  # seconds that the bucket's clock was ahead at the last write
    renewing: threading.Lock = field(default_factory=threading.Lock)

    def time(self) -> float:
        """Seconds since 1970 by the bucket's clock, which all machines share."""
        return time.time() + self.offset

    @functools.cached_property
    def client(self) -> Any:
        """google-cloud-storage's bucket."""
        import requests
        from google.cloud import storage

        # Else each client asks for the bucket's place, for traces that nobody collects.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        options = {"api_endpoint": self.config.endpoint} if self.config.endpoint else None
        client = storage.Client(
            project=self.config.project, credentials=self.config.credentials, client_options=options
        )
        for scheme in ("https://", "http://"):
            client._http.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=2 * THREADS))
        return client.bucket(self.config.bucket)

    @functools.cached_property
    def store(self) -> Any:
        """obstore's bucket, which asks `token` for another one before that ends."""
        from obstore.store import GCSStore

        def token() -> Any:
            with self.renewing:
                if not self.config.credentials.valid:
                    self.renew()
            expiry = self.config.credentials.expiry  # in UTC, without saying so
            return {
                "token": self.config.credentials.token,
                "expires_at": expiry and expiry.replace(tzinfo=timezone.utc),
            }

        local: Any = {"base_url": self.config.endpoint} if self.config.endpoint else {}
        options: Any = {"timeout": "60s", **({"allow_http": True} if local else {})}
        name = self.config.bucket
        retry: Any = {"retry_timeout": timedelta(seconds=self.seconds)}
        return GCSStore(
            name,
            client_options=options,
            retry_config=retry,
            credential_provider=token,
            **local,
        )

    def renew(self) -> None:
        from google.auth.transport.requests import Request

        self.config.credentials.refresh(Request())

    def of_store(self, ask: Callable[[Any], T]) -> T:
        """What obstore answers; if its token is no longer valid before its time, with another one."""
        from obstore.exceptions import UnauthenticatedError

        store = self.store
        try:
            return ask(store)
        except UnauthenticatedError:
            with self.renewing:
                if self.store is store:  # else another thread has done it
                    self.renew()
                    del self.store
            return ask(self.store)

    @property
    def patience(self) -> dict[str, Any]:
        """How long a request is retried, and waited for."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        retry = DEFAULT_RETRY.with_timeout(self.seconds).with_delay(0.5, 8, 2)
        retry._on_error = google.note  # as no method of it does
        return {"timeout": TIMEOUT, "retry": retry}

    # --- writing

    def put(
        self,
        name: str,
        file: IO[bytes] | io.RawIOBase,
        size: int,
        generation: int | None = None,
        about: dict[str, str] | None = None,
    ) -> Object:
        """Write `size` bytes of a file over the object of a generation; 0: there must be none."""
        blob = self.client.blob(name, chunk_size=CHUNK if size > CHUNK else None)
        blob.metadata = about
        before = time.time()
        with changed():
            blob.upload_from_file(
                file,
                size=size,
                content_type=kind_of(name),
                if_generation_match=generation,
                checksum="crc32c",
                **self.patience,
            )
        made = Object.of(blob._properties)
        updated, after = made.updated_ns / 1e9, time.time()
        is_right = before - WRONG < updated < after + WRONG  # the answer may have taken long
        self.offset = 0 if is_right else updated - after
        return made

    def put_bytes(
        self, name: str, content: bytes, generation: int, about: dict[str, str]
    ) -> Object:
        """Write a small object, one of many. The answer has no checksum: a list of them verifies it."""
        import obstore

        mode: Any = {"version": str(generation)} if generation else "create"
        attributes: Any = {"Content-Type": kind_of(name), **about}
        conflicts = obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError
        try:
            made = self.of_store(
                lambda store: store.put(name, content, mode=mode, attributes=attributes)
            )
        except conflicts as error:
            raise Changed(name) from error
        crc = google_crc32c.value(content)
        return Object(name, len(content), int(crc), int(made["version"]), about)

    def write(
        self,
        name: str,
        content: bytes,
        generation: int | None = None,
        about: dict[str, str] | None = None,
    ) -> Object:
        """Write a small object; an earlier try of the same write, whose answer was lost, is fine."""
        try:
            return self.put(name, io.BytesIO(content), len(content), generation, about)
        except Changed:
            present = self.get(name)
            is_same = present and present.crc == google_crc32c.value(content)
            if present and is_same and present.about == (about or {}):
                return present
            raise Changed(name) from None

    def extend(self, name: str, generation: int, part: Object, about: dict[str, str]) -> Object:
        """Append an object to the one of a generation."""
        blob = self.client.blob(name)
        blob.metadata, blob.content_type = about, kind_of(name)
        sources = [self.client.blob(name, generation=generation), self.client.blob(part.name)]
        with changed():
            blob.compose(sources, if_generation_match=generation, **self.patience)
            blob.reload(timeout=TIMEOUT)  # the answer has no metadata
        return Object.of(blob._properties)

    def copy(self, name: str, generation: int, to: str) -> None:
        """Copy an object of a generation within the bucket, unless the copy is there."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        source, target, token = self.client.blob(name), self.client.blob(to), None
        conditions = {"if_generation_match": 0, "if_source_generation_match": generation}
        try:
            while True:
                token, *_ = target.rewrite(source, token=token, **conditions, **self.patience)
                if not token:
                    return
        except (PreconditionFailed, NotFound) as error:
            if not self.get(to):
                raise Changed(str(error)) from error

    def delete(self, *items: str | Object, generation: int | None = None) -> None:
        """Delete objects by name, or exactly these, which raises Changed for others; those that are gone
        are fine.
        """
        from google.api_core.exceptions import NotFound

        def one(item: str | Object) -> None:
            name, match = (
                (item, generation) if isinstance(item, str) else (item.name, item.generation)
            )
            with contextlib.suppress(NotFound), changed():
                self.client.blob(name).delete(if_generation_match=match, **self.patience)

        if len(items) < 3:
            for item in items:
                one(item)
            return
        with ThreadPoolExecutor(THREADS) as pool:
            [*pool.map(one, items)]

    # --- reading

    def get(self, name: str) -> Object | None:
        blob = self.client.get_blob(name, **self.patience)
        return Object.of(blob._properties) if blob else None

    def list(self, prefix: str, start: str = "", ending: str = "") -> Iterator[Object]:
        """Objects whose names begin with a prefix, by name; with `ending` only those in the very folder
        whose names end so.
        """
        url = f"{self.config.endpoint or STORAGE}/storage/v1/b/{self.config.bucket}/o"
        glob = f"{prefix}*{ending}" if ending else None
        asked = {
            "prefix": prefix,
            "startOffset": start or None,
            "matchGlob": glob,
            "fields": COLUMNS,
        }
        return map(Object.of, google.items(self.config, url, seconds=self.seconds, **asked))

    def find(self, name: str, start: int = 0) -> bytes | None:
        """The bytes of an object from `start`; None if there is none."""
        found = self.find_with_generation(name, start)
        return found[0] if found else None

    def find_with_generation(self, name: str, start: int = 0) -> tuple[bytes, int] | None:
        """Content and generation of the same version; None if there is no object."""
        from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable

        blob = self.client.blob(name)
        try:
            content = blob.download_as_bytes(
                start=start or None, raw_download=True, **self.patience
            )
        except NotFound:
            return None
        except RequestRangeNotSatisfiable:
            return b"", 0
        return content, int(blob.generation)

    def read(self, name: str) -> bytes:
        """A small object, of many; raises FileNotFoundError without it."""
        return self.of_store(lambda store: bytes(store.get(name).bytes()))

    def download(
        self,
        name: str,
        path: Path,
        size: int,
        crc: int,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Write the first `size` bytes of an object to a new file; raises Changed if they are not
        those of the checksum, FileNotFoundError without the object.
        """
        found = 0
        with path.open("wb") as file:
            for piece in self.pieces(name, size):
                file.write(piece)
                found = google_crc32c.extend(found, piece)
                on_bytes(len(piece))
        if found != crc:
            raise Changed(f"{name} does not have the expected content")

    def pieces(self, name: str, size: int) -> Iterator[bytes]:
        """The first `size` bytes of an object, in order; several connections bring what comes next."""

        def bring(start: int) -> bytes:
            length = min(PIECE, size - start)
            get = lambda store: bytes(store.get_range(name, start=start, length=length))  # noqa: E731
            return self.of_store(get)

        if 0 < size <= PIECE:
            yield bring(0)
        elif size:
            with ThreadPoolExecutor(PIECES) as pool:
                coming: deque[Future[bytes]] = deque()
                for start in range(0, size, PIECE):
                    coming.append(pool.submit(bring, start))
                    if len(coming) > PIECES:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()


@contextlib.contextmanager
def changed() -> Iterator[None]:
    """Raise Changed for a precondition that does not hold."""
    from google.api_core.exceptions import PreconditionFailed

    try:
        yield
    except PreconditionFailed as error:
        raise Changed(str(error)) from error
