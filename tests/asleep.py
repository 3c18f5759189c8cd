"""A laptop that can be closed in the middle of a command: before any request that its berg sends."""

import contextlib
import http.client
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from conftest import Cloud, Done

HOPS = {"connection", "keep-alive", "transfer-encoding", "proxy-connection", "content-length"}


class Sleeper(ThreadingHTTPServer):
    """The HTTP proxy of one command, which holds the first request that a regular expression finds (method,
    path, query, what its body begins with), and all after it.
    """

    daemon_threads = True
    process: subprocess.Popen[str]

    def __init__(self, at: str):
        super().__init__(("127.0.0.1", 0), Forward)
        self.at, self.requests, self.open, self.lock = at, list[str](), 0, threading.Lock()
        self.is_held, self.may_go = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def wait(self, request: str) -> None:
        with self.lock:
            self.requests.append(request)
            self.open += 1
            if re.search(self.at, request, re.S):
                self.is_held.set()
        if self.is_held.is_set():
            self.may_go.wait()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the command was ended

    def wake(self, seconds: float = 120) -> Done:
        """Let it go on to its end, with the answers that have come meanwhile."""
        self.may_go.set()
        end = time.monotonic() + 10
        while self.open and time.monotonic() < end:
            time.sleep(0.05)
        self.process.send_signal(signal.SIGCONT)
        out, err = self.process.communicate(timeout=seconds)
        self.shutdown()
        self.server_close()
        assert "Traceback" not in err, err
        return Done(self.process.returncode, out, err)


class Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sleeper

    def forward(self) -> None:
        url = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else None
        begun = (body or b"")[:300].decode(errors="replace")
        self.server.wait(f"{self.command} {unquote(url.path)}?{url.query} {begun}")
        to = http.client.HTTPConnection(url.netloc, timeout=200)
        headers = {key: text for key, text in self.headers.items() if key.lower() not in HOPS}
        if body is not None or self.command not in ("GET", "HEAD"):
            headers["Content-Length"] = str(size)
        to.request(self.command, f"{url.path}?{url.query}".rstrip("?"), body, headers)
        answer = to.getresponse()
        content = answer.read()
        with contextlib.suppress(OSError):  # the command was ended
            self.send_response(answer.status)
            for key, text in answer.getheaders():
                if key.lower() not in (*HOPS, "date", "server"):
                    self.send_header(key, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        to.close()
        with self.server.lock:
            self.server.open -= 1

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = forward

    def log_message(self, *words: Any) -> None:
        pass


@contextlib.contextmanager
def asleep(cloud: Cloud, at: str, *words: str, cwd: Path | None = None) -> Iterator[Sleeper]:
    """A command that is held before such a request, and goes on at the end at the latest."""
    sleeper = Sleeper(at)
    proxy = f"http://127.0.0.1:{sleeper.server_port}"
    own = {"HTTP_PROXY": proxy, "http_proxy": proxy, "NO_PROXY": "", "no_proxy": ""}
    # Berg reaches this computer without a proxy.
    program = "from berg import config; config.bypass_proxy = lambda: None; "
    program += "from berg.cli import main; main()"
    sleeper.process = subprocess.Popen(
        [sys.executable, "-c", program, *words], cwd=cwd or cloud.home,
        env={**cloud.env, **own}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not sleeper.is_held.wait(0.05):
            assert sleeper.process.poll() is None, sleeper.requests
        sleeper.process.send_signal(signal.SIGSTOP)
        yield sleeper
    finally:
        sleeper.may_go.set()
        if sleeper.process.poll() is None:
            sleeper.process.send_signal(signal.SIGCONT)
            sleeper.process.kill()
            sleeper.process.wait()
