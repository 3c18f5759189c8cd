"""The bucket: reads, writes and lists, retried where that is safe, with errors in plain sentences.

Every write can carry a generation precondition (0: the object must not exist yet), which is what
makes a retry, a second laptop or a second worker unable to do a thing twice.

Many small requests about a bucket's objects in one: Cloud Storage takes a hundred at a time.

Not covered: content, which no batch carries.
"""

import contextlib
import email.parser
import functools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from berg import BergError, gate
from berg.config import Config
from berg.google import api
from berg.google import media as owner
from berg.google.api import is_transient, status_of
from berg.google.media import Media, check, combined, encoded

Item = TypeVar("Item")

TIMEOUT = (10, 60)  # seconds to connect, and between two pieces of an answer

LONGEST_PAUSE = 8  # seconds between two tries: results are to miss for no longer than 30 s

# bytes of a large upload that are in memory at a time; what malloc maps anew each time costs more
# CPU
CHUNK = 8 << 20

SMALL = 4 << 20  # bytes of an upload in one request, which are in memory

PIECE = 32 << 20  # bytes of a large download that one connection brings

PIECES = 8  # that come side by side

# what becomes of the fields of `Listed`
KINDS: dict[str, Callable[[Any], Any]] = {
    "name": str,
    "size": int,
    "crc32c": str,
    "generation": int,
    "updated": api.time_of,
    "metadata": dict,
}

BATCHES = 8  # that are asked side by side

LISTED = "name,size,crc32c,generation,updated"

ABSENT, BEYOND = 404, 416  # statuses: no such object, and none of its bytes


def in_batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the items in lists that fit into a batch."""
    rest = iter(items)
    while some := list(islice(rest, MOST)):
        yield some


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, of which the first is waited for from now on, and each next one while the one
    before it is used.
    """
    rest, pool = iter(items), ThreadPoolExecutor(1)
    waiting: list[Future[Item]] = [pool.submit(next, rest)]

    def each() -> Iterator[Item]:
        with contextlib.suppress(StopIteration), pool:
            while True:
                item = waiting.pop().result()
                waiting.append(pool.submit(next, rest))
                yield item

    return each()


class Unreadable(BergError):
    """A file that is to be sent cannot be read."""


class Part:
    """A file from where it stands on, as a stream of its own: it begins at 0, as resumable uploads
    demand.
    """

    def __init__(self, file: IO[bytes], on_progress: Callable[[int], None]):
        self.file, self.start, self.report = file, file.tell(), on_progress

    def read(self, size: int = -1) -> bytes:
        try:
            data = self.file.read(size)
        except OSError as error:  # the library would take it for trouble with the network
            raise Unreadable(error.strerror or str(error)) from None
        self.report(self.tell())
        return data

    def tell(self) -> int:
        return self.file.tell() - self.start

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return (
            self.file.seek(offset + (self.start if whence == os.SEEK_SET else 0), whence)
            - self.start
        )


class Changed(BergError):
    """The object is not at the generation that the writer expected."""


class Bucket:
    """One bucket. Methods raise GoogleError, and `Changed` for a precondition."""

    def __init__(self, config: Config):
        self.config = config
        self.name = config.bucket
        self.timeout: tuple[float, float] = TIMEOUT
        self.asking = Media(config, TIMEOUT)

    @functools.cached_property
    def client(self) -> Any:
        # Else the library asks for the bucket's metadata in the background, to label traces nobody
        # reads.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        import google.cloud.storage as storage
        from requests.adapters import HTTPAdapter

        options = {"api_endpoint": self.config.endpoint} if self.config.endpoint else {}
        client = storage.Client(
            project=self.config.project, credentials=self.config.credentials, client_options=options
        )
        session = client._http
        session.mount("http", HTTPAdapter(pool_maxsize=64, pool_block=True))
        # Proxies and certificates of the environment are looked up once: for each request that is a
        # seventh of its CPU.
        settings = session.merge_environment_settings(
            api.storage_url(self.config), {}, None, None, None
        )
        session.proxies, session.verify = settings["proxies"], settings["verify"]
        session.trust_env = False
        owner.guard(self.config, session)
        return client

    @property
    def url(self) -> str:
        return f"{api.buckets_url(self.config)}/{self.name}"

    def ask(
        self, method: str, path: str = "", body: dict[str, Any] | None = None, **query: Any
    ) -> dict[str, Any]:
        """Return the answer to a request about the bucket itself, such as one for its policy."""
        known = owner.confirmed(self.config)
        if method != "GET":
            known.result()
        answer = api.call(self.config, method, self.url + path, body, **query)
        known.result()
        return answer

    @property
    def media(self) -> Media:
        """What reads and writes small objects; its connections are kept."""
        self.asking.timeout = self.timeout
        return self.asking

    @property
    def retry(self) -> Any:
        """Return the retry of one call: what http.py names, with jitter, for two minutes.

        On a machine that is new 403 is tried again as well.
        """
        return api.retrying(is_transient, 120, f"gs://{self.name}", maximum=LONGEST_PAUSE)

    @property
    def retry_of_files(self) -> Any:
        """The same for the content of files, but never 403: who mirrors them names what is refused,
        and tries again.
        """
        pauses = {"maximum": LONGEST_PAUSE}
        return api.retrying(is_transient, 120, f"gs://{self.name}", forbidden=False, **pauses)

    def read(self, name: str, most: int = gate.MOST_BYTES) -> bytes | None:
        """Content of an object, of a longer one a byte more than `most`; None if there is no such
        object.
        """
        return self._read(name, 0, most + 1, is_whole=True)

    def read_from(self, name: str, start: int, end: int) -> bytes | None:
        """Bytes of an object from `start` on, before `end`; b"" where it ends, None without the
        object.
        """
        return self._read(name, start, end)

    def _read(self, name: str, start: int, end: int, is_whole: bool = False) -> bytes | None:
        try:
            content: bytes = self.retry(self.media.read)(name, start, end, is_whole)
            return content
        except Exception as error:
            status, said = status_of(error), str(error).lower()
            if status == BEYOND:
                return b""
            if status != ABSENT or ("bucket" in said and "object" not in said):
                raise
            return None

    def exists(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> "Listed | None":
        """What the bucket says of an object, None without the object."""
        about = self.retry(self.media.about)(name)
        return about and Listed.of(about)

    def gets(self, names: Iterable[str], fields: str) -> "Iterator[Listed | None]":
        """What the bucket says of many objects, None of those that are not there; a request for a
        hundred of them.
        """

        def some(of: list[str]) -> list[dict[str, Any] | None]:
            return about(self.config, of, fields)

        with ThreadPoolExecutor(BATCHES) as pool:
            for found in pool.map(some, in_batches(names)):
                yield from (Listed.of(about) if about else None for about in found)

    def write(
        self,
        name: str,
        data: str | bytes,
        generation: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> int:
        """Write a small object and return its generation; raises Changed if it is not at
        `generation`.
        """
        data = data.encode() if isinstance(data, str) else data
        try:
            return self.written(name, data, generation, metadata, self.retry).generation
        except Changed:
            # A write whose answer was lost is refused when it is repeated: then what is there is
            # ours.
            there = self.get(name)
            if there is None or there.metadata != (metadata or {}):
                raise
            if self.read(name, len(data)) != data:
                raise
            generation_now: int = there.generation
            return generation_now

    def upload(
        self, name: str, path: Path, on_progress: Callable[[int], None] = lambda n: None
    ) -> None:
        """Upload a file under a name that stands for its content: one that is there already counts
        as sent.

        `on_progress` hears how many bytes went up so far.
        """
        with path.open("rb") as file:
            try:
                self.upload_stream(
                    name, file, path.stat().st_size, generation=0, on_progress=on_progress
                )
            except Changed:
                pass

    def upload_stream(
        self,
        name: str,
        file: IO[bytes],
        size: int,
        generation: int | None = None,
        on_progress: Callable[[int], None] = lambda n: None,
        metadata: dict[str, str] | None = None,
    ) -> Any:
        """Upload `size` bytes of a file from where it stands; returns the Blob with its generation
        and crc32c.

        Raises Changed if the object is not at `generation`; a write whose answer was lost may be
        why.
        """
        part = Part(file, on_progress)
        if size <= SMALL:
            return self.upload_small(name, part, size, generation, metadata)
        blob = self.client.bucket(self.name).blob(name, chunk_size=CHUNK)
        blob.metadata = metadata
        # Content is checked by its crc32c on arrival. Without a precondition the last writer wins,
        # which makes a repeated write harmless, so that it may be retried as well.
        with self.conditional(name), api.translated():
            part.seek(0)
            blob.upload_from_file(
                part,
                size=size,
                content_type="application/octet-stream",
                if_generation_match=generation,
                timeout=self.timeout,
                retry=self.retry_of_files,
                checksum="crc32c",
            )
        return blob

    def upload_small(
        self,
        name: str,
        part: Part,
        size: int,
        generation: int | None,
        metadata: dict[str, str] | None,
    ) -> "Listed":
        """Upload a file that fits into one request, as `upload_stream` does."""
        data = part.read(size)
        if len(data) != size:
            raise ValueError(f"{size} bytes were to be read, and {len(data)} were there")
        return self.written(name, data, generation, metadata, self.retry_of_files)

    def written(
        self,
        name: str,
        data: bytes,
        generation: int | None,
        metadata: dict[str, str] | None,
        retry: Any,
    ) -> "Listed":
        """Write an object in one request; raises Changed if it is not at `generation`.

        Without one the last writer wins, so that it may be repeated as well.
        """
        with self.conditional(name):
            return Listed.of(retry(self.media.upload)(name, data, generation, metadata))

    @contextlib.contextmanager
    def conditional(self, name: str) -> Iterator[None]:
        """Raise Changed if a write finds the object at another generation than it expects."""
        try:
            yield
        except api.PreconditionFailed:
            raise Changed(f"gs://{self.name}/{name} was changed by somebody else") from None

    def append(
        self,
        name: str,
        tail_name: str,
        file: IO[bytes],
        size: int,
        generation: int,
        on_progress: Callable[[int], None] = lambda n: None,
        metadata: dict[str, str] | None = None,
    ) -> "Listed":
        """Append `size` bytes of a file to an object that is at `generation`; return it as it is.

        The tail lies at `tail_name` meanwhile, where nobody else may write.
        """
        tail = self.upload_stream(tail_name, file, size, on_progress=on_progress)
        parts = [(name, generation), (tail_name, tail.generation)]
        try:
            # The tail is named twice in what a retry sees, never in what it writes: a second
            # attempt finds the object at another generation and changes nothing.
            with self.conditional(name):
                return Listed.of(self.retry(self.media.compose)(name, parts, metadata))
        finally:
            with contextlib.suppress(Exception):  # what is left of it, the mirror's end deletes
                self.delete(tail_name)

    def download(
        self,
        name: str,
        path: Path,
        generation: int | None = None,
        parts: Path | None = None,
        listed: Any = None,
    ) -> None:
        """Download an object to a name of its own in `parts` (beside `path`), check its crc32c,
        then move it there, with the time of what is `listed` of it.

        One of several pieces by its size comes in ranges side by side: a single connection seldom
        fills the link.
        """
        temporary = (parts or path.parent) / f".berg-part-{uuid.uuid4().hex}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.download_to(temporary, name, generation, listed)
            if listed:  # before it is moved: afterwards the file may be another download's
                updated = listed.updated.timestamp()
                os.utime(temporary, (updated, updated))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def download_to(
        self, path: Path, name: str, generation: int | None, listed: "Listed | None"
    ) -> None:
        """Download an object as it is stored, in one piece or in several by its size."""
        found = listed or self.get(name)
        if found is None:
            raise api.NotFound(f"there is no gs://{self.name}/{name}")
        if found.size > PIECE:
            self.download_pieces(found, path)
            return
        with path.open("wb") as file:
            at = generation or found.generation
            self.retry_of_files(self.media.download)(name, at, found.size, file)

    def download_pieces(self, listed: "Listed", path: Path) -> None:
        """Download an object of a known size in ranges side by side, each written to its place.

        The crc32c of the whole is made of theirs.
        """
        get = self.retry_of_files(self.media.download_range)
        sizes = [min(PIECE, listed.size - at) for at in range(0, listed.size, PIECE)]
        with path.open("wb") as file, ThreadPoolExecutor(PIECES) as pool:

            def bring(number: int) -> int:
                start, size = number * PIECE, sizes[number]
                crc: int = get(listed.name, listed.generation, start, size, file.fileno())
                return crc

            whole = 0
            for crc, size in zip(pool.map(bring, range(len(sizes))), sizes, strict=True):
                whole = combined(whole, crc, size)
        check(listed.name, encoded(whole), listed.crc32c)

    def delete(self, *object_names: str) -> None:
        """Delete objects; those that do not exist are passed over."""
        for name in object_names:
            with contextlib.suppress(api.NotFound):
                self.retry(self.media.delete)(name)

    def delete_at(self, name: str, generation: int) -> None:
        """Delete an object that is at `generation`; raise Changed if it is at another one.

        One that does not exist is passed over.
        """
        with self.conditional(name), contextlib.suppress(api.NotFound):
            self.retry(self.media.delete)(name, generation)

    def delete_all_at(self, objects: Iterable[tuple[str, int]]) -> None:
        """Delete objects, each at its generation; those that are at another one stay."""
        with ThreadPoolExecutor(BATCHES) as pool:
            list(pool.map(lambda some: delete(self.config, some), in_batches(objects)))

    def folders(self, prefix: str) -> Iterator[str]:
        """Prefixes of objects up to the next slash behind a prefix, in order."""
        path = f"{self.url}/o"
        fields = "prefixes,nextPageToken"
        for page in api.pages(self.config, path, prefix=prefix, delimiter="/", fields=fields):
            owner.confirmed(self.config).result()
            yield from page.get("prefixes", [])

    def list(
        self,
        prefix: str,
        fields: str = LISTED,
        glob: str | None = None,
        delimiter: str | None = None,
    ) -> Iterator["Listed"]:
        """Objects under a prefix in order of their names, a page of 1,000 at a time; only those
        that a glob matches.

        With a delimiter, only those without one behind the prefix.
        """
        for page in self.pages(prefix, fields, glob, delimiter):
            yield from page

    def begin_list(self, prefix: str) -> Iterator["Listed"]:
        """Objects under a prefix, asked for from now on, each page while the one before is used."""
        return chain.from_iterable(ahead(self.pages(prefix)))

    def pages(
        self,
        prefix: str,
        fields: str = LISTED,
        glob: str | None = None,
        delimiter: str | None = None,
    ) -> Iterator["Sequence[Listed]"]:
        """The pages of such a list."""
        path = f"{self.url}/o"
        query = {
            "prefix": prefix,
            "matchGlob": glob,
            "delimiter": delimiter,
            "fields": f"items({fields}),nextPageToken",
        }
        is_ours = owner.confirmed(self.config)
        for page in api.pages(self.config, path, **query):
            is_ours.result()
            yield [Listed.of(item) for item in page.get("items", [])]


@dataclass
class Listed:
    """What a list says of an object. Asked for by itself it takes half the time that
    google-cloud-storage does.
    """

    name: str
    size: int = 0  # bytes
    crc32c: str = ""  # base64
    generation: int = 0
    updated: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    md5_hash: str = ""  # base64

    @classmethod
    def of(cls, item: dict[str, Any]) -> "Listed":
        """What one item of a list says, as far as it is used here."""
        known = {key: item[key] for key in KINDS if key in item}
        checked = {key: KINDS[key](value) for key, value in known.items()}
        return cls(**checked, md5_hash=item.get("md5Hash", ""))


MOST = 100  # calls in one batch

BOUNDARY = "berg-5b0f6d2c9e7a4c1f8d3b6a4e2c1d0f97"

MISSING = 404

REFUSED = 412  # the object is at another generation


def about(config: Config, names: list[str], fields: str) -> list[dict[str, Any] | None]:
    """Return what the bucket says of at most MOST objects, None for those that are not there.

    Raises GoogleError.
    """
    answers = ask(config, [f"GET {path_of(config, name)}?fields={fields}" for name in names])
    return [None if status == MISSING else body for status, body in answers]


def delete(config: Config, objects: list[tuple[str, int]]) -> None:
    """Delete at most MOST objects that are at these generations still; others stay.

    Raises GoogleError.
    """
    calls = [
        f"DELETE {path_of(config, name)}?ifGenerationMatch={generation}"
        for name, generation in objects
    ]
    ask(config, calls)


def path_of(config: Config, name: str) -> str:
    """Return the path of an object in requests."""
    return f"/storage/v1/b/{config.bucket}/o/{quote(name, safe='')}"


def ask(config: Config, calls: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return status and answer of each call, a method with a path; all may be repeated."""
    answers: list[tuple[int, dict[str, Any]]] = api.retrying()(ask_once)(config, calls)
    return answers


def ask_once(config: Config, calls: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Send calls in one request; raise GoogleError for any that failed."""
    known = owner.confirmed(config)
    if not all(call.startswith("GET ") for call in calls):
        known.result()
    body = "".join(map(part, range(len(calls)), calls)) + f"--{BOUNDARY}--\r\n"
    headers = {"Content-Type": f"multipart/mixed; boundary={BOUNDARY}"}
    url = f"{api.storage_url(config)}/batch/storage/v1"
    response = api.send(config, "POST", url, 150, data=body.encode(), headers=headers)
    known.result()
    answers = answers_in(response.headers["Content-Type"], response.content)
    for call, (status, answer) in zip(calls, answers, strict=True):
        if status >= 400 and status not in (MISSING, REFUSED):
            told = answer.get("error", {}).get("message", "unknown error")
            raise api.error_of(status, f"{call}: {told}")
    return answers


def part(number: int, call: str) -> str:
    """Return one call as a part of a batch."""
    return (
        f"--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <berg+{number}>\r\n\r\n"
        f"{call} HTTP/1.1\r\n\r\n\r\n"
    )


def answers_in(kind: str, content: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Return the status and the JSON of each part of an answer to a batch, in the calls' order."""
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    whole: Any = email.parser.BytesParser().parsebytes(head + content)
    found = {}
    for each in whole.get_payload():
        number = int(each["Content-ID"].rpartition("+")[2].rstrip(">"))
        found[number] = answer_in(each.get_payload(decode=True))
    return [found[number] for number in sorted(found)]


def answer_in(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of an HTTP answer."""
    head, _, body = answer.replace(b"\r\n", b"\n").partition(b"\n\n")
    return int(head.split()[1]), json.loads(body) if body.strip() else {}
