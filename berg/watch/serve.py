"""The server of `berg page`: on loopback, for callers that have its address, and for no other page
of the same browser.

Every address begins with a random token, which is new with each start. There are no cookies:
browsers send those of 127.0.0.1 to every port, also to a port of another user of this computer.
Each request must name this very server as its Host (or another site's name could lead here), and
one that changes something must come from its own pages (Origin). Nothing can be changed but that a
job is ended. Files of jobs are shown without scripts.
"""

import hmac
import json
import mimetypes
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from berg import BergError, job
from berg.config import Config
from berg.google.explain import explain
from berg.google.storage import Bucket
from berg.laptop import compare, ending, jobs, logs
from berg.watch import collect, library, page, several
from berg.watch.markup import Html
from berg.watch.page import Frame

HERE = Path(__file__).parent
SCRIPT = "text/javascript; charset=utf-8"
ASSETS = {"page.css": "text/css; charset=utf-8", "page.js": SCRIPT, "figures.js": SCRIPT}
LIBRARY_CACHE = {"Cache-Control": "private, max-age=604800, immutable"}  # its name has its version
SECONDS = 60  # for a request to come, or for its answer to be taken
PIECE = 4 << 20  # bytes of a file that are in memory at a time
PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"}
TEXTS = {
    ".txt",
    ".log",
    ".json",
    ".jsonl",
    ".csv",
    ".md",
    ".py",
    ".sh",
    ".yaml",
    ".yml",
    ".toml",
    ".html",
    ".out",
    ".err",
}
RULES = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
FILE_RULES = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


class Server(ThreadingHTTPServer):
    """What the pages of one `berg page` have in common."""

    daemon_threads = True

    def __init__(self, config: Config, port: int, user: str | None):
        super().__init__(("127.0.0.1", port), Handler)
        self.config, self.bucket, self.user = config, Bucket(config), user
        self.token = secrets.token_urlsafe(32)
        self.ending: dict[str, str] = {}  # job that is being ended from here -> how that goes
        _ = config.session  # before threads want it

    @property
    def origins(self) -> list[str]:
        return [f"http://{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")]

    @property
    def root(self) -> str:
        """What the path of every address begins with."""
        return f"/{self.token}/"

    @property
    def address(self) -> str:
        return self.origins[0] + self.root

    def frame(self, root: str = "") -> Frame:
        return Frame(self.config.project, self.config.bucket, root=root)

    def end(self, name: str) -> None:
        """End a job, which takes a while, and remember how that goes."""

        def work() -> None:
            try:
                self.ending[name] = (
                    f"Ended: {ending.kill(self.config, name, False, say) or 'machine deleted'}"
                )
            except Exception as error:
                self.ending[name] = f"It could not be ended: {sentence(error, self.config)}"

        def say(line: str) -> None:
            self.ending[name] = line

        if not self.ending.get(name, "").startswith("Ending"):
            say(f"Ending {name} …")
            threading.Thread(target=work, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # who left in the middle is no news


def sentence(error: Exception, config: Config) -> str:
    if isinstance(error, BergError):
        return error.message
    return explain(error, config) or f"{type(error).__name__}: {error} (an error of berg's)"


class Handler(BaseHTTPRequestHandler):
    """One request: whether it may be, and which page it is for."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "berg", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        self.answer(self.get)

    def do_POST(self) -> None:
        self.answer(self.post)

    def answer(self, work: Callable[[list[str], dict[str, list[str]]], None]) -> None:
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        try:
            token, *path = f"{address.path}/".removeprefix("/").split("/")[:-1]
            if self.may(token):
                work([unquote(part) for part in path], query)
        except BrokenPipeError:
            self.close_connection = True
        except BergError as error:
            self.trouble(404, "There is no such page", error.message)
        except Exception as error:
            self.trouble(502, "That did not work", sentence(error, self.server.config))

    def may(self, token: str) -> bool:
        """Return whether a request comes from this server's own pages or from a caller that has its
        address; answer it if not.
        """
        site = self.server
        hosts = [origin.removeprefix("http://") for origin in site.origins]
        origin = self.headers.get("Origin")
        if self.headers.get_all("Host") not in [[host] for host in hosts]:
            self.refuse("This server is known by its own address alone.")
        elif (origin or self.command == "POST") and origin not in site.origins:
            self.refuse("A page of another site has asked.")
        elif not hmac.compare_digest(token.encode(), site.token.encode()):
            self.refuse("Open the whole address that berg page printed: it has a token in it.")
        else:
            return True
        return False

    def refuse(self, why: str) -> None:
        self.close_connection = True  # a body that may follow is not read
        self.send(403, "text/plain; charset=utf-8", f"{why}\n".encode())

    def get(self, path: list[str], query: dict[str, list[str]]) -> None:
        match path:
            case [""]:
                self.get_overview()
            case [asset]:
                self.get_asset(asset)
            case ["compare" | "diff" as which, ""]:
                self.get_several(which, query.get("job", []))
            case ["sweep", name, ""]:
                self.get_sweep(name)
            case ["job", name, ""]:
                self.get_job(name, query)
            case ["job", name, "kill"]:
                entry = jobs.find(self.server.config, name)
                self.show(page.ask_kill(self.server.frame("../../"), entry))
            case ["job", name, "log"]:
                self.get_log(name, query)
            case ["job", name, "log.txt"]:
                self.send_log(name)
            case ["job", name, "files", *parts] if parts:
                self.send_file(name, "/".join(parts))
            case _:
                raise BergError("there is nothing at this address")

    def get_asset(self, name: str) -> None:
        """Send what pages load: berg's own files, and the library where it is installed."""
        found = library.find()
        if name in ASSETS:
            self.send(200, ASSETS[name], (HERE / name).read_bytes())
        elif found and name == found.name:
            self.send(200, SCRIPT, found.file.read_bytes(), LIBRARY_CACHE)
        else:
            raise BergError("there is nothing at this address")

    def get_overview(self) -> None:
        site = self.server
        notes: list[str] = []
        entries = jobs.overview(site.config, site.user, say=notes.append)
        machines = [machine for machine, _ in jobs.machines_of(entries)]
        costs = collect.costs(site.config, machines)
        self.show(page.overview(site.frame(), entries, notes, costs))

    def get_sweep(self, name: str) -> None:
        site = self.server
        found = collect.a_sweep(site.config, site.bucket, name)
        self.show(several.one_sweep(site.frame("../../"), name, found))

    def get_several(self, which: str, names: list[str]) -> None:
        """Show jobs side by side, or what differs between two."""
        site, frame = self.server, self.server.frame("../")
        if which == "compare":
            found = collect.compared(site.config, site.bucket, names)
            self.show(several.compared(frame, found, names))
            return
        if len(names) != 2 or not all(map(job.NAME.fullmatch, names)):
            raise BergError("this address names two jobs: diff/?job=NAME&job=NAME")
        self.show(several.differing(frame, compare.compare(site.config, *names)))

    def get_log(self, name: str, query: dict[str, list[str]]) -> None:
        """Send what came to a job's log since the place in the query."""
        site = self.server
        found = jobs.find(site.config, name)
        read_to = place_in_log(query.get("from", ["{}"])[0])
        piece = collect.log(site.config, site.bucket, found, read_to)
        over = ""
        if found.state is None or found.state.final:
            over = "over"
        more = {"Berg-From": page.cursor(piece), "Berg-Over": over}
        self.send(200, "text/html; charset=utf-8", page.log_lines(piece).encode(), more)

    def get_job(self, name: str, query: dict[str, list[str]]) -> None:
        site = self.server
        about = collect.about(site.config, site.bucket, name)
        entry, wanted = about.record.entry, query.get("find", [""])[0]
        if wanted:
            log = self.search(entry.name, wanted)
        else:
            piece = collect.log(site.config, site.bucket, entry)
            over = bool(entry.state and entry.state.final)
            log = page.log_section(piece, follows=not over)
        frame = site.frame("../../")
        self.show(page.one_job(frame, about, log, site.ending.get(entry.name, "")))

    def search(self, name: str, wanted: str) -> Html:
        """Return the part of a page with the lines of a log that have some text."""
        lines = []
        for number, machine, line in collect.search(self.server.config, name, wanted):
            lines.append(page.log_line(machine, line, number))
        return page.hits_section(lines, wanted)

    def post(self, path: list[str], query: dict[str, list[str]]) -> None:
        if len(path) != 3 or path[0] != "job" or path[2] != "kill":
            raise BergError("there is nothing to change at this address")
        self.close_connection = True  # the body, which says nothing, is not read
        name = jobs.find(self.server.config, path[1]).name
        self.server.end(name)
        self.send(303, "text/plain", b"", {"Location": "./"})

    def show(self, content: Html) -> None:
        self.send(200, "text/html; charset=utf-8", content.encode())

    def trouble(self, status: int, title: str, why: str) -> None:
        try:
            frame = self.server.frame(self.server.root)
            content = page.trouble(frame, title, f"{why[:1].upper()}{why[1:]}")
            self.send(status, "text/html; charset=utf-8", content.encode())
        except OSError:
            self.close_connection = True

    def send(self, status: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.begin(status, kind, len(body), RULES, more or {})
        self.wfile.write(body)

    def begin(
        self, status: int, kind: str, size: int | None, rules: str, more: dict[str, str]
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Security-Policy": rules,
            "X-Content-Type-Options": "nosniff",
        }
        headers |= {"Referrer-Policy": "same-origin", "Cache-Control": "no-store", **more}
        headers |= {
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        if size is not None:
            headers["Content-Length"] = str(size)
        if size is None or self.close_connection:
            headers["Connection"] = "close"
            self.close_connection = True
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def send_log(self, name: str) -> None:
        chunks = logs.chunks(self.server.config, name)
        first = next(chunks, ("", b""))  # before anything is sent: it may fail
        self.begin(200, "text/plain; charset=utf-8", None, FILE_RULES, {})
        for _, chunk in (first, *chunks):
            self.wfile.write(chunk)

    def send_file(self, name: str, path: str) -> None:
        site = self.server
        blob = collect.file_of(site.bucket, jobs.find(site.config, name), path)
        kind = kind_of(path)
        more = {} if kind else {"Content-Disposition": "attachment"}
        self.begin(200, kind or "application/octet-stream", blob.size, FILE_RULES, more)
        sent = 0
        while sent < blob.size and (
            piece := site.bucket.read_from(blob.name, sent, min(sent + PIECE, blob.size))
        ):
            self.wfile.write(piece)
            sent += len(piece)
        # it was written anew meanwhile
        self.close_connection = self.close_connection or sent < blob.size

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def place_in_log(text: str) -> dict[str, int]:
    """What page.cursor wrote."""
    try:
        read_to: dict[str, int] = json.loads(text)
        if all(isinstance(at, int) and at >= 0 for at in read_to.values()):
            return read_to
    except (ValueError, AttributeError, RecursionError):
        pass
    raise BergError("that is no place in a log")


def kind_of(path: str) -> str:
    """The type that a file of a job's is shown as; "" for what is only to be saved."""
    guessed = mimetypes.guess_type(path)[0] or ""
    if guessed in PICTURES:
        return guessed
    return "text/plain; charset=utf-8" if Path(path).suffix.lower() in TEXTS else ""
