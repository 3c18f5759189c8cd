"""The content of small objects, and what the bucket says of one, by plain requests.

Google's library takes three times the CPU for each, and half a second to be imported. Connections
are kept, and any number of threads may ask at a time. Errors are those of http.py, whose rule says
what is sent again.

Content is read as it is stored, whatever its `contentEncoding` says: a few bytes that decompress to
gigabytes stay a few bytes. Every read has a limit.
"""

import base64
import functools
import json
import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode

from berg.config import Config
from berg.google import api, http, owner
from berg.google.checksum import BLOCK, crc32c_of

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
            raise http.refusal(f"{method} {url}", answer.status, content(answer))
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

        known = owner.confirmed(self.config)
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
            raise http.refusal(f"GET {url}", answer.status, content(answer))
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
