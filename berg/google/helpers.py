"""Processes that bring small objects for a fetch of many of them.

They are started once so many files were brought that they are worth it. One that cannot be started,
ends, or says no, costs nothing but time: the caller asks by itself then. The token goes to them
through a pipe.
"""

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from berg.google.media import Media

FIRST = 32  # files that are brought without them
MOST = 4
THREADS = 16  # of each of them
LARGEST = 1 << 20  # bytes of an object that they bring
SIGNED_FOR = 60  # seconds


class Helper:
    """One process, and what it has yet to answer."""

    def __init__(self, where: dict[str, Any]):
        script = Path(__file__).with_name("bringer.py")
        # -I: what the caller's folder and environment hold is none of its business
        self.process = subprocess.Popen(
            [sys.executable, "-I", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.asked: dict[int, Future[bool]] = {}
        self.lock = threading.Lock()
        self.is_over = False
        self.send(where)
        threading.Thread(target=self.listen, daemon=True).start()

    def send(self, row: dict[str, Any]) -> None:
        pipe: IO[str] = self.process.stdin  # type: ignore[assignment]
        with self.lock, contextlib.suppress(OSError, ValueError):
            pipe.write(json.dumps(row) + "\n")
            pipe.flush()

    def listen(self) -> None:
        """Pass its answers on until it ends; what it has not answered then is not done."""
        for line in self.process.stdout or ():
            number, _, done = line.partition(" ")
            if asked := self.asked.pop(int(number), None):
                settle(asked, done.strip() == "1")
        self.is_over = True
        while self.asked:
            _, asked = self.asked.popitem()
            settle(asked, False)

    def bring(self, number: int, task: dict[str, Any]) -> Future[bool]:
        """Return what will tell whether it is done."""
        answer: Future[bool] = Future()
        self.asked[number] = answer
        self.send({**task, "number": number})
        if self.is_over:
            settle(answer, False)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def settle(answer: Future[bool], is_done: bool) -> None:
    """Say whether a task is done, unless that was said."""
    with contextlib.suppress(InvalidStateError):
        answer.set_result(is_done)


class Helpers:
    """The processes of one fetch; `with` ends them."""

    def __init__(self, media: Media):
        self.media = media
        self.numbers = itertools.count()
        self.lock = threading.Lock()
        self.running: list[Helper] = []
        self.is_started = False
        self.signed: dict[str, str] = {}
        self.signed_at = -math.inf

    def __enter__(self) -> "Helpers":
        return self

    def __exit__(self, *_: Any) -> None:
        for helper in self.running:
            helper.end()

    def bring(self, blob: Any, parts: Path, path: Path) -> Future[bool] | None:
        """Bring an object to `path` by way of the folder `parts`.

        Return what will tell whether it is there, whole; None if nobody is here to bring it.
        """
        number = next(self.numbers)
        if number < FIRST or blob.size > LARGEST:
            return None
        self.start()
        living = [helper for helper in self.running if not helper.is_over]
        if not living:
            return None
        address = self.media.address(
            "/download", blob.name, alt="media", generation=blob.generation
        )
        task = {
            "target": address.removeprefix(self.media.base),
            "headers": self.headers(address),
            "part": str(parts / f".berg-part-{number}"),
            "path": str(path),
            "updated": blob.updated.timestamp(),
        }
        return living[number % len(living)].bring(number, task)

    def headers(self, address: str) -> dict[str, str]:
        """Return headers with a token, which is asked for once in a while: it is renewed minutes
        before its end.
        """
        if time.monotonic() - self.signed_at > SIGNED_FOR:
            self.signed = self.media.signed("GET", address, {"Accept-Encoding": "gzip"})
            self.signed_at = time.monotonic()
        return self.signed

    def start(self) -> None:
        """Start them, unless there is a proxy between, of which they know nothing."""
        with self.lock:
            if self.is_started:
                return
            self.is_started = True
            way = self.media.way
            if way.proxy:
                return
            parts = urlsplit(self.media.base)
            where = {
                "host": parts.hostname,
                "port": parts.port,
                "tls": parts.scheme == "https",
                "cafile": way.cafile,
                "capath": way.capath,
                "threads": THREADS,
            }
            with contextlib.suppress(OSError):
                for _ in range(min(MOST, os.cpu_count() or 1)):
                    self.running.append(Helper(where))
