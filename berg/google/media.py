"""The content of small objects, and what the bucket says of one, by plain requests.

Google's library takes three times the CPU for each, and half a second to be imported. Connections
are kept, and any number of threads may ask at a time. Errors are those of http.py, whose rule says
what is sent again.

Content is read as it is stored, whatever its `contentEncoding` says: a few bytes that decompress to
gigabytes stay a few bytes. Every read has a limit.

Whose a bucket is: its name may be anybody's once it was deleted, and code and secrets' names
would then go to a stranger.

    BERG_HOME/buckets.json   name of a bucket -> number of the project that it belonged to when berg
                             first used it here

The bucket is asked once in each process, beside the first request that it is used for. Machines do
not ask: who submits their job did.

The crc32c of bytes as Cloud Storage writes it: base64, big-endian.
"""

import base64
import contextlib
import functools
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode

from berg import BergError, computer
from berg import config as settings
from berg.config import Config
from berg.google import api
from berg.google.api import status_of

CONNECTIONS = 64  # that are kept

PARTIAL, ABSENT = 206, 404  # statuses

LOCK = threading.Lock()  # of who makes them

BOUNDARY = "berg-0f6b4e6f5c7d4d4c8a3e2b1a90817263"


class Corrupt(Exception):
    """Content that is not what its checksum says."""


@dataclass
class Way:
    """How the bucket is reached."""

    proxy: str | None
    cafile: str | None  # certificates that are trusted
    capath: str | None  # a folder of them


class Media:
    """Requests about the objects of one bucket."""

    def __init__(self, config: Config, timeout: tuple[float, float]):
        self.config = config
        self.timeout = timeout  # seconds to connect, and between two pieces of an answer
        self.base = api.storage_url(config)

    @functools.cached_property
    def way(self) -> "Way":
        """The proxy and the certificates of the environment, as requests has them."""
        import requests

        settings = requests.Session().merge_environment_settings(self.base, {}, None, None, None)
        trusted: Any = settings["verify"]
        if trusted is True:
            trusted = requests.utils.DEFAULT_CA_BUNDLE_PATH
        proxy = requests.utils.select_proxy(self.base, settings["proxies"])
        if Path(trusted).is_dir():
            return Way(proxy, None, trusted)
        return Way(proxy, trusted, None)

    @property
    def connections(self) -> Any:
        """Connections that are kept, the same for all who have these settings: the first request on
        one waits for two handshakes.
        """
        kept = vars(self.config)
        with LOCK:
            if "connections" not in kept:
                kept["connections"] = self.make_connections()
            return kept["connections"]

    def make_connections(self) -> Any:
        """Certificates are read once: urllib3 would for each connection."""
        import ssl

        from requests.adapters import HTTPAdapter

        adapter: Any = HTTPAdapter()
        pools: dict[str, Any] = {"maxsize": CONNECTIONS, "block": True}
        if self.base.startswith("https:"):
            pools["ssl_context"] = ssl.create_default_context(
                cafile=self.way.cafile, capath=self.way.capath
            )
        if self.way.proxy:
            return adapter.proxy_manager_for(self.way.proxy, **pools)
        adapter.init_poolmanager(2, **pools)
        return adapter.poolmanager

    def address(self, prefix: str, name: str = "", method: str = "", **query: Any) -> str:
        """Return the address of an object, or of all, below one of the API's prefixes."""
        path = f"{self.base}{prefix}/storage/v1/b/{self.config.bucket}/o"
        if name:
            path += f"/{quote(name, safe='')}{method}"
        given = {key: value for key, value in query.items() if value is not None}
        return f"{path}?{urlencode(given)}"

    def ask(self, method: str, url: str, headers: dict[str, str], body: bytes | None = None) -> Any:
        """Return the answer, whose content has yet to be read.

        Raises GoogleError for a status of 400 or more, and
        requests.ConnectionError.
        """
        answer = self.ask_signed(method, url, headers, body)
        if answer.status >= 400:
            raise api.refusal(f"{method} {url}", answer.status, content(answer))
        return answer

    def ask_signed(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None = None
    ) -> Any:
        """Return the answer, whatever its status; if the token is refused, with a new one."""
        answer = self.ask_once(method, url, headers, body)
        if answer.status == 401:  # the token was revoked before its time
            answer.drain_conn()
            self.config.credentials.refresh(self.transport)
            answer = self.ask_once(method, url, headers, body)
        return answer

    def ask_once(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> Any:
        import requests
        import urllib3

        known = confirmed(self.config)
        if method != "GET":
            known.result()
        signed = self.signed(method, url, {**headers, "Accept-Encoding": "gzip"})
        connect, read = self.timeout
        options: dict[str, Any] = {"preload_content": False, "decode_content": False}
        options |= {"retries": False, "redirect": False}
        options["timeout"] = urllib3.Timeout(connect=connect, read=read)
        try:
            answer = self.connections.request(method, url, headers=signed, body=body, **options)
        except urllib3.exceptions.HTTPError as error:
            raise requests.ConnectionError(error) from error
        known.result()  # nothing of a bucket that is not ours is kept
        return answer

    def signed(self, method: str, url: str, headers: dict[str, str]) -> dict[str, str]:
        """Return headers with a token, which is renewed if it is old."""
        self.config.credentials.before_request(self.transport, method, url, headers)
        return headers

    @functools.cached_property
    def transport(self) -> Any:
        """What refreshes credentials."""
        from google.auth.transport.requests import Request

        return Request()

    def about(self, name: str) -> dict[str, Any] | None:
        """Return what the bucket says of an object; None without it, or without a bucket."""
        url = self.address("", name)
        answer = self.ask_signed("GET", url, {})
        if answer.status == ABSENT:
            answer.drain_conn()
            return None
        if answer.status >= 400:
            raise api.refusal(f"GET {url}", answer.status, content(answer))
        about: dict[str, Any] = json.loads(content(answer))
        return about

    def read(self, name: str, start: int, end: int, is_whole: bool = False) -> bytes:
        """Return an object's bytes from `start` on, before `end`. With `is_whole` no range is asked
        for, and an object that is no longer than that must have its checksum.
        """
        headers = {} if is_whole else {"Range": f"bytes={start}-{end - 1}"}
        answer = self.ask("GET", self.address("/download", name, alt="media"), headers)
        if start and answer.status != PARTIAL:
            answer.close()
            raise Corrupt(f"{name} came from its beginning, and was asked for from {start} on")
        expected = checksum_in(answer)
        data = b"".join(stored_blocks(answer, end - start))
        if is_whole and len(data) < end:
            check(name, crc32c_of([data]), expected)
        return data

    def download(self, name: str, generation: int | None, size: int, file: IO[bytes]) -> None:
        """Write an object of `size` bytes to a file and compare its checksum."""
        file.seek(0)
        file.truncate()
        url = self.address("/download", name, alt="media", generation=generation)
        answer = self.ask("GET", url, {})

        def written() -> Iterator[bytes]:
            for block in stored_blocks(answer, size):
                file.write(block)
                yield block

        check(name, crc32c_of(written()), checksum_in(answer))

    def download_range(
        self, name: str, generation: int | None, start: int, size: int, descriptor: int
    ) -> int:
        """Write `size` bytes of an object to where they belong in a file; return their crc32c."""
        import google_crc32c
        import requests

        url = self.address("/download", name, alt="media", generation=generation)
        answer = self.ask("GET", url, {"Range": f"bytes={start}-{start + size - 1}"})
        if answer.status != PARTIAL:
            answer.close()
            raise Corrupt(f"{name} came whole, and a part of it was asked for")
        crc, at = 0, start
        for block in stored_blocks(answer, size):
            crc = google_crc32c.extend(crc, block)
            write_at(descriptor, block, at)
            at += len(block)
        if at != start + size:
            raise requests.ConnectionError(f"{at - start} of {size} bytes came")
        return crc

    def upload(
        self, name: str, data: bytes, generation: int | None, metadata: dict[str, str] | None
    ) -> dict[str, Any]:
        """Write a small object whose checksum is compared on arrival; return what it is now."""
        about: dict[str, Any] = {"name": name, "crc32c": crc32c_of([data])}
        if metadata:
            about["metadata"] = metadata
        line = f"--{BOUNDARY}\r\nContent-Type: "
        body = b"".join(
            (
                f"{line}application/json; charset=UTF-8\r\n\r\n".encode(),
                json.dumps(about).encode(),
                f"\r\n{line}application/octet-stream\r\n\r\n".encode(),
                data,
                f"\r\n--{BOUNDARY}--".encode(),
            )
        )
        url = self.address("/upload", uploadType="multipart", ifGenerationMatch=generation)
        headers = {"Content-Type": f"multipart/related; boundary={BOUNDARY}"}
        written: dict[str, Any] = json.loads(content(self.ask("POST", url, headers, body)))
        return written

    def compose(
        self, name: str, parts: list[tuple[str, int]], metadata: dict[str, str] | None
    ) -> dict[str, Any]:
        """Append the other parts to the first, all at their generations; return what it is now."""
        sources = [
            {"name": part, "objectPreconditions": {"ifGenerationMatch": str(generation)}}
            for part, generation in parts
        ]
        body = {"sourceObjects": sources, "destination": {"metadata": metadata or {}}}
        url = self.address("", name, "/compose", ifGenerationMatch=parts[0][1])
        headers = {"Content-Type": "application/json"}
        answer = self.ask("POST", url, headers, json.dumps(body).encode())
        composed: dict[str, Any] = json.loads(content(answer))
        return composed

    def delete(self, name: str, generation: int | None = None) -> None:
        """Delete an object, only if it is at `generation` where that is given."""
        content(self.ask("DELETE", self.address("", name, ifGenerationMatch=generation), {}))


def write_at(descriptor: int, data: bytes, at: int) -> None:
    """Write all bytes at a place of a file."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def read_from(answer: Any) -> bytes:
    """Return the next bytes of an answer; raise requests.ConnectionError if it breaks off."""
    import requests
    import urllib3

    try:
        data: bytes = answer.read(BLOCK)
        return data
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise requests.ConnectionError(error) from error


def blocks_of(answer: Any) -> Iterator[bytes]:
    """Yield the bytes of an answer; raise requests.ConnectionError if it breaks off."""
    import requests

    read = 0
    try:
        while block := read_from(answer):
            read += len(block)
            yield block
        answer.release_conn()
    finally:
        answer.close()  # without effect on a connection that was given back
    expected = answer.headers.get("Content-Length")
    if expected is not None and read != int(expected):
        raise requests.ConnectionError(f"{read} of {expected} bytes came")


def stored_blocks(answer: Any, most: int) -> Iterator[bytes]:
    """Yield the first `most` bytes of an object as they are stored.

    Google may compress an object on its way that is stored without an encoding: that is undone.
    """
    stored = answer.headers.get("X-Goog-Stored-Content-Encoding", "")
    is_compressed = stored == "identity" and answer.headers.get("Content-Encoding") == "gzip"
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # of gzip
    left = most
    for block in blocks_of(answer):
        data = unpacker.decompress(block, left + 1) if is_compressed else block
        yield data[:left]
        left -= len(data)
        if left < 0:
            return


def content(answer: Any) -> bytes:
    """Return all bytes of an answer of Google's own, which may come compressed."""
    import gzip

    data = b"".join(blocks_of(answer))
    return gzip.decompress(data) if answer.headers.get("Content-Encoding") == "gzip" else data


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
        raise Corrupt(f"{name} came with the checksum {found}, and the bucket says {expected}")


# By endpoint and bucket, and whether it is to be asked at all.
asked: dict[tuple[str | None, str, bool], Future[dict[str, Any]]] = {}


def file() -> Path:
    return settings.home() / "buckets.json"


def known() -> dict[str, str]:
    """Return the numbers of projects by the names of their buckets, as far as they are known."""
    try:
        found = json.loads(file().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(bucket: str, number: str) -> None:
    """Keep whose a bucket is; "" forgets it."""
    numbers = {**known(), bucket: number}
    if not number:
        del numbers[bucket]
    with contextlib.suppress(OSError):  # a home that cannot be written knows nothing
        settings.make_private(file().parent)
        # Half of it would make any bucket look like the right one.
        computer.write(file(), json.dumps(numbers, indent=2) + "\n")


def bucket_record(config: Config) -> dict[str, Any]:
    """Return what the bucket says of itself: the number of its project, and where it lies."""
    url = f"{api.buckets_url(config)}/{config.bucket}"
    return api.call(config, "GET", url, fields="projectNumber,location")


def check_owner(config: Config) -> dict[str, Any]:
    """Compare whose the bucket is with whose it was; raise BergError if that is another project.

    Return what it says of itself, {} for who may not know, or without a bucket. Raise Forbidden if
    that cannot be told of a bucket that told it before.
    """
    before = known().get(config.bucket, "")
    try:
        found = bucket_record(config)
    except Exception as error:
        status = status_of(error)
        if status == 404 or (status == 403 and not before):
            return {}  # whoever uses it says so
        raise
    now = found["projectNumber"]
    if not before:
        remember(config.bucket, now)
    elif before != now:
        init = f"berg init{' --local' if config.endpoint else ''}"
        raise BergError(
            f"the bucket {config.bucket!r} belonged to the project with number {before}, and now "
            f"to another one, number {now}: somebody else made a bucket of its name. Choose a "
            f"bucket of your own, or say that this one is meant: {init}"
        )
    return found


def confirmed(config: Config) -> "Future[dict[str, Any]]":
    """Return what becomes of `check`, which begins now unless it did before."""
    key = (config.endpoint, config.bucket, config.is_mine)
    with LOCK:
        if key not in asked:
            asked[key] = Future()
            if config.is_mine:
                threading.Thread(target=settle, args=(config, asked[key]), daemon=True).start()
            else:
                asked[key].set_result({})
        return asked[key]


def guard(config: Config, http: Any) -> None:
    """Let a session bring no answer, and send nothing, before the bucket is known to be ours."""
    answer, ask = confirmed(config), http.request

    def request(method: str, *arguments: Any, **options: Any) -> Any:
        if method != "GET":
            answer.result()
        response = ask(method, *arguments, **options)
        answer.result()
        return response

    http.request = request


def settle(config: Config, answer: "Future[dict[str, Any]]") -> None:
    """Let everybody who waits know what `check` found."""
    try:
        answer.set_result(check_owner(config))
    except BaseException as error:
        answer.set_exception(error)


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
