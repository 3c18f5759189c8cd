"""The server of `berg page`.

It listens on loopback. Every address begins with a random token that is new at each start; there are
no cookies, which browsers would also send to other ports of 127.0.0.1. A request must name this server
as its Host, and one that changes something must come from its own page (Origin). The only change is to
end a job. Files of jobs are text, pictures or downloads, and none can run a script.
"""

import contextlib
import hmac
import json
import re
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from berg import BergError, google, jobs, logs
from berg import job as records
from berg.bucket import Bucket
from berg.clients.page import data
from berg.config import Config
from berg.end import kill_one
from berg.moments import is_plain

FOREVER = {"Cache-Control": "private, max-age=604800, immutable"}  # its name has its version
SECONDS = 60  # for a browser to send a request, or to read an answer
TEXT = "text/plain; charset=utf-8"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
TEXTS = re.compile(r"\.(txt|log|jsonl?|[ct]sv|md|py|sh|ya?ml|toml|html|out|err)")
# Plotly needs styles in elements. The page makes no HTML of texts, so that no job can write any.
RULES = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
FILE_RULES = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


class Site(ThreadingHTTPServer):
    """The server of one `berg page`."""

    daemon_threads = True

    def __init__(self, config: Config, port: int, everyone: bool):
        super().__init__(("127.0.0.1", port), Handler)
        self.config, self.bucket, self.everyone = config, Bucket(config), everyone
        self.token = secrets.token_urlsafe(32)
        self.ending: dict[str, str] = {}  # job that is being ended -> what became of it
        _ = config.credentials, self.bucket.client, self.bucket.store  # before threads use them

    @property
    def hosts(self) -> list[str]:
        return [f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")]

    @property
    def address(self) -> str:
        return f"http://{self.hosts[0]}/{self.token}/"

    def answer(self, path: list[str], query: dict[str, list[str]]) -> Any:
        """The JSON at an address."""
        match path:
            case ["site"]:
                return data.site(self.config, is_live=True)
            case ["jobs"]:
                return data.overview(self.config, self.everyone)
            case ["job", name]:
                return {**data.one(self.config, name), "ending": self.ending.get(name, "")}
            case ["sweep", name]:
                return data.sweep(self.config, name)
            case ["log", name]:
                read = place(query["from"][0]) if "from" in query else None
                return data.log(self.bucket, name, read, "over" in query)
        raise BergError("there is nothing at this address")

    def end(self, name: str, id: str) -> None:
        """Begin to end a job, if it is still the one that the user saw."""
        if jobs.find(self.config, name).id != id:
            raise BergError(f"{name} is another job now. Look at it first")

        def work() -> None:
            try:
                became = kill_one(self.config, name, yes=True)
                self.ending[name] = "" if became in records.FINAL else became
            except Exception as error:
                self.ending[name] = f"It could not be ended: {sentence(error, self.config)}"

        if not self.ending.get(name, "").startswith("Ending"):
            self.ending[name] = "Ending it; its last results are saved"
            threading.Thread(target=work, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the browser closed the connection


class Handler(BaseHTTPRequestHandler):
    """One request: whether it is allowed, and what it is for."""

    server: Site
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "berg", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        self.handle_request()

    def do_POST(self) -> None:
        self.close_connection = True  # a body is not read
        self.handle_request()

    def handle_request(self) -> None:
        address = urlsplit(self.path)
        token, *path = address.path.removeprefix("/").split("/")
        path, query = [unquote(part) for part in path], parse_qs(address.query)
        try:
            if reason := self.reason_to_refuse(token):
                self.close_connection = True
                self.send(403, TEXT, f"{reason}\n".encode())
            elif self.command == "POST":
                self.post(path, query)
            else:
                self.get(path, query)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            status = 404 if isinstance(error, BergError) else 502
            self.send_json({"error": sentence(error, self.server.config)}, status)

    def reason_to_refuse(self, token: str) -> str:
        """Why a request is refused; "" for the whole address and no foreign origin."""
        hosts, origin = self.headers.get_all("Host"), self.headers.get("Origin")
        if hosts not in [[host] for host in self.server.hosts]:
            return "This server is known by its own address alone."
        own = [f"http://{host}" for host in self.server.hosts]
        if (origin or self.command == "POST") and origin not in own:
            return "A page of another site sent this request."
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return "Open the whole address that berg page printed: it contains a token."
        return ""

    def get(self, path: list[str], query: dict[str, list[str]]) -> None:
        plotly = data.library()
        match path:
            case [name] if (name or "index.html") in data.ASSETS:
                file = data.HERE / (name or "index.html")
                self.send(200, TYPES[file.suffix], file.read_bytes())
            case [name] if plotly and name == plotly.name:
                self.send(200, TYPES[".js"], plotly.file.read_bytes(), **FOREVER)
            case ["text", name]:
                pieces = logs.pieces(self.server.bucket, name, {})
                self.stream(TEXT, (piece for _, piece in pieces), {})
            case ["file", name, *parts] if parts:
                self.send_file(name, "/".join(parts))
            case _:
                self.send_json(self.server.answer(path, query))

    def post(self, path: list[str], query: dict[str, list[str]]) -> None:
        if len(path) != 2 or path[0] != "kill":
            raise BergError("there is nothing to change at this address")
        self.server.end(path[1], query.get("id", [""])[0])
        self.send_json({})

    def send_file(self, name: str, path: str) -> None:
        bucket, state = self.server.bucket, jobs.find(self.server.config, name)
        full = f"{records.results_prefix(state.results)}{path}"
        item = bucket.get(full) if is_plain(path) else None
        if item is None:
            raise BergError(f"{name} has no file {path!r} among its results")
        suffix = PurePosixPath(path).suffix.lower()
        kind = PICTURES.get(suffix) or (TEXT if TEXTS.fullmatch(suffix) else "")
        more = {"Content-Length": str(item.size)}
        if not kind:
            kind, more["Content-Disposition"] = "application/octet-stream", "attachment"
        self.stream(kind, bucket.pieces(full, item.size), more)

    def send_json(self, value: Any, status: int = 200) -> None:
        self.send(status, "application/json", json.dumps(value).encode())

    def send(self, status: int, kind: str, content: bytes, **more: str) -> None:
        self.begin(status, kind, RULES, {"Content-Length": str(len(content)), **more})
        self.wfile.write(content)

    def stream(self, kind: str, pieces: Iterator[bytes], more: dict[str, str]) -> None:
        """Send what a job wrote, piece by piece."""
        first = next(pieces, b"")  # it may fail: before the headers
        self.close_connection = True
        self.begin(200, kind, FILE_RULES, more)
        with contextlib.suppress(Exception):  # its length says that it is cut off
            self.wfile.write(first)
            for piece in pieces:
                self.wfile.write(piece)

    def begin(self, status: int, kind: str, rules: str, more: dict[str, str]) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Security-Policy": rules,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            **more,
            **({"Connection": "close"} if self.close_connection else {}),
        }
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def sentence(error: Exception, config: Config) -> str:
    if isinstance(error, BergError):
        return str(error)
    return google.sentence(error, config) or f"{type(error).__name__}: {error} (an error of berg's)"


def place(text: str) -> dict[str, int]:
    """How far a log was read, as an answer of this server said it."""
    try:
        read: dict[str, int] = json.loads(text)
        if all(type(at) is int and at >= 0 for at in read.values()):
            return read
    except (ValueError, AttributeError, RecursionError):
        pass
    raise BergError("that is no place in a log")
