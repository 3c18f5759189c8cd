"""The bucket: objects are read, written and listed, retried where that is safe.

Every write can carry a generation precondition (0: the object must not exist yet), so that a retry,
a second laptop or a second worker cannot do a thing twice. Content is read as it is stored,
whatever its encoding, and every read has a limit.
"""

import base64
import contextlib
import email.parser
import functools
import json
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from berg import BergError, computer, validation
from berg import config as settings
from berg.config import Config
from berg.google import api
from berg.job import time_of

Item = TypeVar("Item")

TIMEOUT = (10, 60)  # seconds to connect, and between two pieces of an answer
LONGEST_PAUSE = 8  # seconds between two tries: results are missing for at most 30 s
BLOCK = api.BLOCK
CHUNK = 8 << 20  # bytes of a large upload in one request; more would cost CPU for memory
SMALL = 4 << 20  # bytes of an upload in one request, which are in memory
PIECE, PIECES = 32 << 20, 8  # bytes of a large download on one connection; connections
BATCH, BATCHES = 100, 8  # calls in one batch, which Google limits; parallel batches
PARTIAL, INCOMPLETE, ABSENT, REFUSED, BEYOND = 206, 308, 404, 412, 416  # statuses
BOUNDARY = "berg-0f6b4e6f5c7d4d4c8a3e2b1a90817263"
JSON, BINARY = "application/json", "application/octet-stream"
LISTED = "name,size,crc32c,generation,updated"
KINDS: dict[str, Callable[[Any], Any]] = {  # of the fields of `Listed`
    "name": str,
    "size": int,
    "crc32c": str,
    "generation": int,
    "updated": time_of,
    "metadata": dict,
}


class Unreadable(BergError):
    """A file that is to be sent cannot be read."""


class Changed(BergError):
    """The object is not at the generation that the writer expected."""


class Corrupt(Exception):
    """Content that does not match its checksum."""


@dataclass
class Listed:
    """An object's description in the bucket."""

    name: str
    size: int = 0  # bytes
    crc32c: str = ""  # base64
    generation: int = 0
    updated: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    md5_hash: str = ""  # base64
    row: Any = None  # the file in a view of its job, see views.Row

    @classmethod
    def of(cls, item: dict[str, Any]) -> "Listed":
        """Return the description in JSON of Google's."""
        known = {key: parse(item[key]) for key, parse in KINDS.items() if key in item}
        return cls(**known, md5_hash=item.get("md5Hash", ""))


class Bucket:
    """One bucket. Methods raise GoogleError, and `Changed` for a precondition."""

    def __init__(self, config: Config):
        self.config = config
        self.name = config.bucket
        self.timeout: tuple[float, float] = TIMEOUT
        self.url = f"{api.buckets_url(config)}/{self.name}"

    def open(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
        is_read: bool = False,
    ) -> Any:
        """Send one request; return the answer, whose content is yet to be read.

        Nothing is written to the bucket and no answer is used before it is known to be ours.
        """
        known = confirmed(self.config)
        if method != "GET" and not is_read:
            known.result()
        answer = api.open_answer(self.config, method, url, self.timeout, headers or {}, body)
        known.result()
        if answer.status >= 400:
            raise api.refusal(f"{method} {url}", answer.status, api.content_of(answer))
        return answer

    def ask_json(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        kind: str = JSON,
        forbidden: bool = True,
    ) -> Any:
        """Return the JSON of an answer; retried."""
        headers = {"Content-Type": kind} if body is not None else {}

        def ask() -> Any:
            return json.loads(api.content_of(self.open(method, url, headers, body)))

        return self.retry(ask, forbidden)

    def retry(self, ask: Callable[[], Item], forbidden: bool = True) -> Item:
        """Return what `ask` returns, with retries for two minutes; see api.retry.

        The content of files is sent without `forbidden`: the mirror names what is refused, and
        tries again.
        """
        return api.retry(ask, seconds=120, forbidden=forbidden, maximum=LONGEST_PAUSE)

    def ask(
        self, method: str, path: str = "", body: dict[str, Any] | None = None, **query: Any
    ) -> dict[str, Any]:
        """Return the answer to a request about the bucket itself, such as one for its policy."""
        data = None if body is None else json.dumps(body).encode()
        return dict(self.ask_json(method, api.with_query(self.url + path, query), data))

    def address(self, prefix: str, name: str = "", method: str = "", /, **query: Any) -> str:
        """Return the address of an object, or of all, below one of the API's prefixes."""
        base = f"{api.storage_url(self.config)}{prefix}/storage/v1/b/{self.name}/o"
        path = f"/{quote(name, safe='')}{method}" if name else ""
        return api.with_query(base + path, query)

    def read(self, name: str, most: int = validation.MOST_BYTES) -> bytes | None:
        """Return the content of an object, a byte more than `most` of a longer one; None without
        the object.
        """
        return self.read_from(name, 0, most + 1, is_whole=True)

    def read_from(self, name: str, start: int, end: int, is_whole: bool = False) -> bytes | None:
        """Return bytes of an object from `start` on, before `end`; b"" behind its end, None without
        the object. With `is_whole` compare the checksum, unless the object is longer.
        """
        headers = {} if is_whole else {"Range": f"bytes={start}-{end - 1}"}
        url = self.address("/download", name, alt="media")

        def ask() -> bytes:
            answer = self.open("GET", url, headers)
            if start and answer.status != PARTIAL:
                api.hang_up(answer)
                raise Corrupt(f"{name} came from its beginning, and was requested from {start} on")
            data = b"".join(stored_blocks(answer, end - start))
            if is_whole and len(data) < end:
                check(name, crc32c_of([data]), checksum_in(answer))
            return data

        try:
            return self.retry(ask)
        except api.GoogleError as error:
            message = str(error).lower()
            if error.status == BEYOND:
                return b""
            if error.status != ABSENT or ("bucket" in message and "object" not in message):
                raise
            return None

    def last_lines(self, name: str, size: int, most: int) -> bytes:
        """Return the whole lines in the last `most` bytes of an object of `size` bytes."""
        start = max(0, size - most)
        data = self.read_from(name, start, size) or b""
        return data.partition(b"\n")[2] if start else data

    def exists(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Listed | None:
        """Return an object's description, None without the object or the bucket."""
        try:
            return Listed.of(self.ask_json("GET", self.address("", name)))
        except api.NotFound:
            return None

    def gets(self, names: Iterable[str], fields: str) -> Iterator[Listed | None]:
        """Yield the description of each object, None without it; a hundred in one request."""

        def some(names: list[str]) -> Sequence[tuple[int, dict[str, Any]]]:
            calls = [f"GET {self.path_of(name)}?fields={fields}" for name in names]
            return self.retry(lambda: self.batch(calls, is_read=True))

        with ThreadPoolExecutor(BATCHES) as pool:
            for status, item in chain.from_iterable(pool.map(some, in_batches(names))):
                yield None if status == ABSENT else Listed.of(item)

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
            return self.put(name, data, generation, metadata).generation
        except Changed:
            # A write whose answer was lost is refused when it is repeated: then the object is ours.
            there = self.get(name)
            if there is None or there.metadata != (metadata or {}):
                raise
            if self.read(name, len(data)) != data:
                raise
            return there.generation

    def upload(
        self, name: str, path: Path, on_progress: Callable[[int], None] = lambda n: None
    ) -> None:
        """Upload a file under a name that identifies its content: an existing object counts as
        sent.

        `on_progress` hears how many bytes were sent so far.
        """
        with path.open("rb") as file, contextlib.suppress(Changed):
            self.upload_stream(name, file, path.stat().st_size, 0, on_progress)

    def upload_stream(
        self,
        name: str,
        file: IO[bytes],
        size: int,
        generation: int | None = None,
        on_progress: Callable[[int], None] = lambda n: None,
        metadata: dict[str, str] | None = None,
    ) -> Listed:
        """Upload the next `size` bytes of a file; return the object.

        Without a generation the last writer wins. Raises Changed if the object is not at
        `generation`; a write whose answer was lost may be why.
        """
        if size <= SMALL:
            data = next_bytes(file, size)
            on_progress(size)
            return self.put(name, data, generation, metadata, forbidden=False)
        url = self.address("/upload", uploadType="resumable", ifGenerationMatch=generation)
        headers = {"Content-Type": JSON, "X-Upload-Content-Length": str(size)}
        about = json.dumps({"name": name, "contentType": BINARY, "metadata": metadata or {}})
        with self.conditional(name):
            begun = self.retry(lambda: self.open("POST", url, headers, about.encode()), False)
            api.content_of(begun)
            return self.upload_chunks(begun.headers["Location"], file, size, on_progress)

    def upload_chunks(
        self, session: str, file: IO[bytes], size: int, on_progress: Callable[[int], None]
    ) -> Listed:
        """Send the content of a resumable upload; its crc32c is compared on arrival."""
        import google_crc32c

        crc = 0
        item: Any = None
        for start in range(0, size, CHUNK):
            data = next_bytes(file, min(CHUNK, size - start))
            on_progress(start + len(data))
            crc = google_crc32c.extend(crc, data)
            item = self.upload_chunk(session, data, start, size, encoded(crc))
        return Listed.of(item)

    def upload_chunk(self, session: str, data: bytes, start: int, size: int, crc32c: str) -> Any:
        """Send bytes of a resumable upload; return the object after the last ones, else None.

        Another try asks first how many of them arrived.
        """
        end, is_sent = start + len(data), False

        def send() -> Any:
            nonlocal is_sent
            at = start
            while at < end:
                headers, body = {"Content-Range": f"bytes */{size}"}, b""
                if not is_sent:
                    headers = {"Content-Range": f"bytes {at}-{end - 1}/{size}"}
                    body = data[at - start :]
                    if end == size:
                        headers["X-Goog-Hash"] = f"crc32c={crc32c}"
                    is_sent = True
                answer = self.open("PUT", session, headers, body)
                content = api.content_of(answer)
                if answer.status != INCOMPLETE:
                    return json.loads(content)
                arrived = answer.headers.get("Range", "").rpartition("-")[2]
                at = int(arrived) + 1 if arrived else 0
                if at < start:
                    raise Corrupt(f"{start - at} bytes that had arrived were lost")
                is_sent = False
            if end == size:
                raise api.NoAnswer("all bytes arrived, and the upload has no end")
            return None

        return self.retry(send, forbidden=False)

    def put(
        self,
        name: str,
        data: bytes,
        generation: int | None,
        metadata: dict[str, str] | None,
        forbidden: bool = True,
    ) -> Listed:
        """Write an object in one request, whose checksum is compared on arrival."""
        about: dict[str, Any] = {"name": name, "crc32c": crc32c_of([data])}
        if metadata:
            about["metadata"] = metadata
        line = f"--{BOUNDARY}\r\nContent-Type: "
        head = f"{line}application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
        head += f"{line}{BINARY}\r\n\r\n"
        body = b"".join((head.encode(), data, f"\r\n--{BOUNDARY}--".encode()))
        url = self.address("/upload", uploadType="multipart", ifGenerationMatch=generation)
        kind = f"multipart/related; boundary={BOUNDARY}"
        with self.conditional(name):
            return Listed.of(self.ask_json("POST", url, body, kind, forbidden))

    @contextlib.contextmanager
    def conditional(self, name: str) -> Iterator[None]:
        """Raise Changed for a write that finds the object at another generation."""
        try:
            yield
        except api.PreconditionFailed:
            raise Changed(f"gs://{self.name}/{name} was changed by another program") from None

    def append(
        self,
        name: str,
        tail_name: str,
        file: IO[bytes],
        size: int,
        generation: int,
        on_progress: Callable[[int], None] = lambda n: None,
        metadata: dict[str, str] | None = None,
    ) -> Listed:
        """Append the next `size` bytes of a file to an object at `generation`; return the object.

        They are stored under `tail_name` meanwhile, which no other program writes.
        """
        tail = self.upload_stream(tail_name, file, size, on_progress=on_progress)
        sources = [
            {"name": part, "objectPreconditions": {"ifGenerationMatch": str(at)}}
            for part, at in ((name, generation), (tail_name, tail.generation))
        ]
        body = {"sourceObjects": sources, "destination": {"metadata": metadata or {}}}
        url = self.address("", name, "/compose", ifGenerationMatch=generation)
        try:
            # Harmless when repeated: the object is at another generation then.
            with self.conditional(name):
                return Listed.of(self.ask_json("POST", url, json.dumps(body).encode()))
        finally:
            with contextlib.suppress(Exception):  # the end of the mirror deletes those that stay
                self.delete(tail_name)

    def rewrite(self, name: str, source: Listed, generation: int) -> Listed:
        """Copy an object within the bucket, over one at `generation`; return the new one."""
        query: dict[str, Any] = {
            "sourceGeneration": source.generation,
            "ifGenerationMatch": generation,
        }
        place = f"/rewriteTo/b/{self.name}/o/{quote(name, safe='')}"
        with self.conditional(name):
            while True:
                url = self.address("", source.name, place, **query)
                answer = self.ask_json("POST", url, b"{}", forbidden=False)
                if answer["done"]:
                    return Listed.of(answer["resource"])
                query["rewriteToken"] = answer["rewriteToken"]

    def download(self, name: str, path: Path) -> None:
        """Download an object to a temporary file next to `path`, check it, then move it there."""
        temporary = path.with_name(f".berg-part-{uuid.uuid4().hex}")
        found = self.get(name)
        if found is None:
            raise api.NotFound(f"there is no gs://{self.name}/{name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.download_pieces(found, temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def download_pieces(self, listed: Listed, path: Path) -> None:
        """Download an object to a file and check its crc32c; a large one in parallel ranges, since
        one connection seldom fills the link.
        """
        with path.open("wb") as file:
            if listed.size <= PIECE:
                crc = self.download_piece(listed, 0, listed.size, file)
            else:
                starts = range(0, listed.size, PIECE)
                sizes = [min(PIECE, listed.size - start) for start in starts]
                crc = 0
                with ThreadPoolExecutor(PIECES) as pool:
                    bring = functools.partial(self.download_piece, listed, file=file)
                    for each, size in zip(pool.map(bring, starts, sizes), sizes, strict=True):
                        crc = combined(crc, each, size)
        check(listed.name, encoded(crc), listed.crc32c)

    def download_piece(self, listed: Listed, start: int, size: int, file: IO[bytes]) -> int:
        """Write `size` bytes of an object to their place in a file; return their crc32c."""
        import google_crc32c

        url = self.address("/download", listed.name, alt="media", generation=listed.generation)
        is_part = size < listed.size
        headers = {"Range": f"bytes={start}-{start + size - 1}"} if is_part else {}

        def bring() -> int:
            answer = self.open("GET", url, headers)
            if is_part and answer.status != PARTIAL:
                api.hang_up(answer)
                raise Corrupt(f"{listed.name} came whole, and a part of it was requested")
            crc, at = 0, start
            for block in stored_blocks(answer, size):
                crc = google_crc32c.extend(crc, block)
                rest = memoryview(block)
                while rest:
                    written = os.pwrite(file.fileno(), rest, at)
                    rest, at = rest[written:], at + written
            if at != start + size:
                raise api.NoAnswer(f"{at - start} of {size} bytes came")
            return crc

        return self.retry(bring, forbidden=False)

    def delete(self, *object_names: str) -> None:
        """Delete objects, if they exist."""
        for name in object_names:
            self.delete_at(name)

    def delete_at(self, name: str, generation: int | None = None) -> None:
        """Delete an object, if it exists; raise Changed if it is at another generation."""
        url = self.address("", name, ifGenerationMatch=generation)
        with self.conditional(name), contextlib.suppress(api.NotFound):
            self.retry(lambda: api.content_of(self.open("DELETE", url)))

    def delete_all_at(self, objects: Iterable[tuple[str, int]]) -> None:
        """Delete objects, each at its generation; those that are at another one stay."""
        calls = (
            f"DELETE {self.path_of(name)}?ifGenerationMatch={generation}"
            for name, generation in objects
        )
        with ThreadPoolExecutor(BATCHES) as pool:
            list(pool.map(lambda some: self.retry(lambda: self.batch(some)), in_batches(calls)))

    def path_of(self, name: str) -> str:
        """Return an object's path in a batch."""
        return f"/storage/v1/b/{self.name}/o/{quote(name, safe='')}"

    def batch(
        self, calls: Sequence[str], is_read: bool = False
    ) -> Sequence[tuple[int, dict[str, Any]]]:
        """Send calls, each a method with a path, in one request; return status and JSON of each.

        Raises GoogleError for any that failed but for 404 and 412.
        """
        body = "".join(
            f"--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <berg+{number}>\r\n\r\n"
            f"{call} HTTP/1.1\r\n\r\n\r\n"
            for number, call in enumerate(calls)
        )
        answer = self.open(
            "POST",
            f"{api.storage_url(self.config)}/batch/storage/v1",
            {"Content-Type": f"multipart/mixed; boundary={BOUNDARY}"},
            f"{body}--{BOUNDARY}--\r\n".encode(),
            is_read,
        )
        answers = answers_in(answer.headers["Content-Type"], api.content_of(answer))
        for call, (status, found) in zip(calls, answers, strict=True):
            if status >= 400 and status not in (ABSENT, REFUSED):
                message = found.get("error", {}).get("message", "unknown error")
                raise api.error_of(status, f"{call}: {message}")
        return answers

    def list_pages(self, **query: Any) -> Iterator[dict[str, Any]]:
        return api.paged(
            lambda token: self.ask_json("GET", self.address("", **query, pageToken=token))
        )

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the prefixes of objects up to the next slash behind a prefix, in order."""
        fields = "prefixes,nextPageToken"
        for page in self.list_pages(prefix=prefix, delimiter="/", fields=fields):
            yield from page.get("prefixes", [])

    def list(
        self,
        prefix: str,
        fields: str = LISTED,
        glob: str | None = None,
        delimiter: str | None = None,
    ) -> Iterator[Listed]:
        """Yield objects under a prefix in order of their names; only those that match a glob.

        With a delimiter, only those without one behind the prefix.
        """
        return chain.from_iterable(self.pages(prefix, fields, glob, delimiter))

    def pages(
        self,
        prefix: str,
        fields: str = LISTED,
        glob: str | None = None,
        delimiter: str | None = None,
    ) -> Iterator[Sequence[Listed]]:
        """Yield the pages of such a list, 1,000 objects each."""
        query = {"prefix": prefix, "matchGlob": glob, "delimiter": delimiter}
        for page in self.list_pages(**query, fields=f"items({fields}),nextPageToken"):
            yield [Listed.of(item) for item in page.get("items", [])]


def next_bytes(file: IO[bytes], size: int) -> bytes:
    """Read exactly `size` bytes of a file."""
    try:
        data = file.read(size)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    if len(data) != size:
        raise ValueError(f"{size} bytes were to be read, and {len(data)} were there")
    return data


def stored_blocks(answer: Any, most: int) -> Iterator[bytes]:
    """Yield the first `most` bytes of an object as they are stored.

    Google may compress an object that is stored without an encoding: that is undone.
    """
    stored = answer.headers.get("X-Goog-Stored-Content-Encoding", "")
    is_compressed = stored == "identity" and answer.headers.get("Content-Encoding") == "gzip"
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # of gzip
    left = most
    for block in api.blocks_of(answer):
        data = unpacker.decompress(block, left + 1) if is_compressed else block
        yield data[:left]
        left -= len(data)
        if left < 0:
            return


def checksum_in(answer: Any) -> str:
    """Return the crc32c that an answer names, "" if it names none."""
    for hashed in answer.headers.get("X-Goog-Hash", "").replace(" ", "").split(","):
        kind, _, value = hashed.partition("=")
        if kind == "crc32c":
            return str(value)
    return ""


def check(name: str, found: str, expected: str) -> None:
    """Raise Corrupt unless content has its checksum."""
    if expected and base64.b64decode(found) != base64.b64decode(expected):
        raise Corrupt(f"{name} came with the checksum {found}, and the bucket has {expected}")


def answers_in(kind: str, content: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Return the status and the JSON of each part of an answer to a batch, in the calls' order."""
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    whole: Any = email.parser.BytesParser().parsebytes(head + content)
    found = {}
    for each in whole.get_payload():
        number = int(each["Content-ID"].rpartition("+")[2].rstrip(">"))
        answer = each.get_payload(decode=True).replace(b"\r\n", b"\n")
        first, _, body = answer.partition(b"\n\n")
        found[number] = int(first.split()[1]), json.loads(body) if body.strip() else {}
    return [found[number] for number in sorted(found)]


def in_batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists that fit into a batch."""
    rest = iter(items)
    while some := list(islice(rest, BATCH)):
        yield some


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items; each is waited for in a thread while the one before is used, the first from now
    on.
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


# Whose a bucket is. Another project may take its name once it was deleted, and would get code and
# the names of secrets. BERG_HOME/buckets.json has the number of the project that a bucket belonged
# to when berg first used it here. It is asked for once in each process, in parallel with the first
# request. Machines do not ask: the laptop that submitted their job did.

LOCK = threading.Lock()  # of `asked`
asked: dict[tuple[str | None, str, bool], Future[dict[str, Any]]] = {}  # of `confirmed`


def numbers_file() -> Path:
    return settings.home() / "buckets.json"


def known_numbers() -> dict[str, str]:
    """Return the numbers of projects by the names of their buckets, as far as they are known."""
    try:
        found = json.loads(numbers_file().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(bucket: str, number: str) -> None:
    """Keep whose a bucket is; "" forgets it."""
    numbers = {**known_numbers(), bucket: number}
    if not number:
        del numbers[bucket]
    with contextlib.suppress(OSError):  # a home that cannot be written knows nothing
        settings.make_private(numbers_file().parent)
        # Half of it would make any bucket look like the right one.
        computer.write(numbers_file(), json.dumps(numbers, indent=2) + "\n")


def bucket_record(config: Config) -> dict[str, Any]:
    """Return the number of the bucket's project, and its location."""
    url = f"{api.buckets_url(config)}/{config.bucket}"
    return api.call(config, "GET", url, fields="projectNumber,location")


def check_owner(config: Config) -> dict[str, Any]:
    """Compare whose the bucket is with whose it was; raise BergError if that is another project.

    Return its record, {} without the right to read that, or without a bucket. Raise Forbidden for
    a bucket whose owner was known before.
    """
    before = known_numbers().get(config.bucket, "")
    try:
        found = bucket_record(config)
    except api.NotFound:
        return {}  # the request that uses it says so
    except api.Forbidden:
        if before:
            raise
        return {}
    now = found["projectNumber"]
    if not before:
        remember(config.bucket, now)
    elif before != now:
        raise BergError(
            f"the bucket {config.bucket!r} belonged to the project with number {before}, and now "
            f"to another one, number {now}, which created a bucket of its name. Choose a bucket of "
            f"your own, or accept this one: {api.init_command(config)}"
        )
    return found


def confirmed(config: Config) -> "Future[dict[str, Any]]":
    """Return the future result of `check_owner`, which begins now unless it did before."""
    key = (config.endpoint, config.bucket, config.is_mine)
    with LOCK:
        if key in asked:
            return asked[key]
        answer: Future[dict[str, Any]] = Future()
        asked[key] = answer

    def settle() -> None:
        try:
            answer.set_result(check_owner(config))
        except BaseException as error:
            answer.set_exception(error)

    if config.is_mine:
        threading.Thread(target=settle, daemon=True).start()
    else:
        answer.set_result({})
    return answer


# The crc32c of bytes as Cloud Storage writes it: base64, big-endian. Polynomials over GF(2) have
# the highest bit for x^0: Castagnoli's, 1, and x^8, which is one byte more.
CASTAGNOLI, ONE, BYTE = 0x82F63B78, 1 << 31, 1 << 23


def crc32c_of(blocks: Iterable[bytes], before: str = "") -> str:
    """Return the crc32c of all blocks, behind bytes whose crc32c is `before`."""
    import google_crc32c

    value = int.from_bytes(base64.b64decode(before), "big")
    for block in blocks:
        value = google_crc32c.extend(value, block)
    return encoded(value)


def encoded(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def combined(first: int, second: int, size: int) -> int:
    """Return the crc32c of two pieces, the second of `size` bytes, from those of each."""
    return times(bytes_more(size), first) ^ second


@functools.cache
def bytes_more(size: int) -> int:
    """Return the factor of a crc32c for `size` bytes that follow."""
    product, power = ONE, BYTE
    while size:
        product = times(product, power) if size & 1 else product
        power, size = times(power, power), size >> 1
    return product


def times(one: int, other: int) -> int:
    """Return the product of two polynomials, modulo Castagnoli's."""
    product = 0
    for bit in range(31, -1, -1):
        product ^= other * (one >> bit & 1)
        other = other >> 1 ^ CASTAGNOLI * (other & 1)
    return product


def file_crc32c(path: Path) -> str:
    with path.open("rb") as file:
        return crc32c_of(blocks(file))


def blocks(file: IO[bytes], size: int | None = None) -> Iterator[bytes]:
    """Yield the rest of a file; `size` bytes of it at most."""
    left = size
    while data := file.read(BLOCK if left is None else min(BLOCK, left)):
        left = None if left is None else left - len(data)
        yield data
