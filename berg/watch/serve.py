"""The server of `berg page`, and its pages as files.

It listens on loopback. Every address begins with a random token that is new at each start; there
are no cookies, which browsers would also send to other ports of 127.0.0.1. A request must name this
server as its Host, and one that changes something must come from its own pages (Origin). The only
change is to end a job. Files of jobs are shown without scripts.
"""

import hmac
import json
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from berg import BergError, job, states
from berg.config import Config
from berg.google.api import explain
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.laptop import ending, jobs, logs, records, sweep
from berg.watch import collect, page
from berg.watch.page import Frame, Html

HERE = Path(__file__).parent
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
ASSETS = {"page.css": "text/css; charset=utf-8", "page.js": SCRIPT, "figures.js": SCRIPT}
LIBRARY_CACHE = {"Cache-Control": "private, max-age=604800, immutable"}  # its name has its version
SECONDS = 60  # for a client to send a request or to read an answer
PIECE = 4 << 20  # bytes of a file that are in memory at a time
LARGEST = 10 << 20  # bytes of a file that is exported
TEXTS = re.compile(r"\.(txt|log|jsonl?|csv|md|py|sh|ya?ml|toml|html|out|err)")
RULES = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
FILE_RULES = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"

Query = dict[str, list[str]]


class Server(ThreadingHTTPServer):
    """The server of one `berg page`."""

    daemon_threads = True

    def __init__(self, config: Config, port: int, user: str | None):
        super().__init__(("127.0.0.1", port), Handler)
        self.config, self.bucket, self.user = config, Bucket(config), user
        self.token = secrets.token_urlsafe(32)
        self.ending: dict[str, str] = {}  # job that is being ended -> progress
        _ = config.credentials  # before threads use it

    @property
    def origins(self) -> list[str]:
        return [f"http://{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")]

    @property
    def address(self) -> str:
        return f"{self.origins[0]}/{self.token}/"

    def frame(self, root: str = "") -> Frame:
        return Frame(self.config.project, self.config.bucket, root=root)

    def end(self, name: str) -> None:
        """End a job in a thread, and keep its progress in `ending`."""

        def say(line: str) -> None:
            self.ending[name] = line

        def work() -> None:
            try:
                ended = ending.kill(self.config, name, False, say) or "machine deleted"
                say(f"Ended: {ended}")
            except Exception as error:
                say(f"It could not be ended: {sentence(error, self.config)}")

        if not self.ending.get(name, "").startswith("Ending"):
            say(f"Ending {name} …")
            threading.Thread(target=work, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client closed the connection


def sentence(error: Exception, config: Config) -> str:
    if isinstance(error, BergError):
        return error.message
    return explain(error, config) or f"{type(error).__name__}: {error} (an error of berg's)"


class Handler(BaseHTTPRequestHandler):
    """One request: whether it is allowed, and which page it is for."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "berg", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        self.answer(self.get)

    def do_POST(self) -> None:
        self.answer(self.post)

    def answer(self, work: Callable[[list[str], Query], None]) -> None:
        address = urlsplit(self.path)
        try:
            token, *path = f"{address.path}/".removeprefix("/").split("/")[:-1]
            if why := self.reason_to_refuse(token):
                self.close_connection = True  # a body that may follow is not read
                self.send(403, TEXT, f"{why}\n")
            else:
                work([unquote(part) for part in path], parse_qs(address.query))
        except BrokenPipeError:
            self.close_connection = True
        except BergError as error:
            self.trouble(404, "There is no such page", error.message)
        except Exception as error:
            self.trouble(502, "That did not work", sentence(error, self.server.config))

    def reason_to_refuse(self, token: str) -> str:
        """Return why a request is refused; "" with the whole address and no foreign origin."""
        site = self.server
        origin, hosts = self.headers.get("Origin"), self.headers.get_all("Host")
        if hosts not in [[each.removeprefix("http://")] for each in site.origins]:
            return "This server is known by its own address alone."
        if (origin or self.command == "POST") and origin not in site.origins:
            return "A page of another site sent this request."
        if not hmac.compare_digest(token.encode(), site.token.encode()):
            return "Open the whole address that berg page printed: it contains a token."
        return ""

    def get(self, path: list[str], query: Query) -> None:
        site = self.server
        below = site.frame("../../")
        match path:
            case [""]:
                notes: list[str] = []
                entries = jobs.overview(site.config, site.user, say=notes.append)
                machines = [machine for machine, _ in jobs.machines_of(entries)]
                costs = collect.costs(site.config, machines)
                self.show(page.overview(site.frame(), entries, notes, costs))
            case [asset]:
                self.get_asset(asset)
            case ["compare", ""]:
                names = query.get("job", [])
                found = collect.compared(site.config, site.bucket, names)
                self.show(page.compared(site.frame("../"), found, names))
            case ["diff", ""]:
                self.get_difference(query.get("job", []))
            case ["sweep", name, ""]:
                sweep = collect.a_sweep(site.config, site.bucket, name)
                self.show(page.one_sweep(below, name, sweep))
            case ["job", name, ""]:
                self.get_job(name, query)
            case ["job", name, "kill"]:
                self.show(page.ask_kill(below, jobs.find(site.config, name)))
            case ["job", name, "log"]:
                self.get_log(name, query)
            case ["job", name, "log.txt"]:
                self.send_log(name)
            case ["job", name, "files", *parts] if parts:
                self.send_file(name, "/".join(parts))
            case _:
                raise BergError("there is nothing at this address")

    def get_asset(self, name: str) -> None:
        """Send a file of the pages: Berg's own, or Plotly's script."""
        library = page.find_library()
        if name in ASSETS:
            self.send(200, ASSETS[name], (HERE / name).read_bytes())
        elif library and name == library.name:
            self.send(200, SCRIPT, library.file.read_bytes(), LIBRARY_CACHE)
        else:
            raise BergError("there is nothing at this address")

    def get_difference(self, names: list[str]) -> None:
        if len(names) != 2 or not all(map(job.NAME.fullmatch, names)):
            raise BergError("this address names two jobs: diff/?job=NAME&job=NAME")
        found = records.compare(self.server.config, *names)
        self.show(page.differing(self.server.frame("../"), found))

    def get_log(self, name: str, query: Query) -> None:
        """Send what was added to a job's log after the place in the query."""
        found = jobs.find(self.server.config, name)
        read_to = place_in_log(query.get("from", ["{}"])[0])
        piece = collect.log(self.server.config, self.server.bucket, found, read_to)
        over = "over" if found.state is None or found.state.final else ""
        more = {"Berg-From": json.dumps(piece.read_to), "Berg-Over": over}
        self.send(200, HTML, page.log_lines(piece), more)

    def get_job(self, name: str, query: Query) -> None:
        site = self.server
        about = collect.about(site.config, site.bucket, name)
        entry, wanted = about.record.entry, query.get("find", [""])[0]
        if wanted:
            hits = collect.search(site.config, entry.name, wanted)
            lines = [page.log_line(machine, line, number) for number, machine, line in hits]
            log = page.hits_section(lines, wanted)
        else:
            piece = collect.log(site.config, site.bucket, entry)
            log = page.log_section(piece, follows=not (entry.state and entry.state.final))
        frame, notice = site.frame("../../"), site.ending.get(entry.name, "")
        self.show(page.one_job(frame, about, log, notice))

    def post(self, path: list[str], query: Query) -> None:
        if len(path) != 3 or path[0] != "job" or path[2] != "kill":
            raise BergError("there is nothing to change at this address")
        self.close_connection = True  # the body, which is empty, is not read
        self.server.end(jobs.find(self.server.config, path[1]).name)
        self.send(303, "text/plain", "", {"Location": "./"})

    def show(self, content: Html) -> None:
        self.send(200, HTML, content)

    def trouble(self, status: int, title: str, why: str) -> None:
        frame = self.server.frame(f"/{self.server.token}/")
        try:
            shown = page.tag("p", f"{why[:1].upper()}{why[1:]}")
            self.send(status, HTML, frame.page(title, page.tag("h1", title), shown))
        except OSError:
            self.close_connection = True

    def send(
        self, status: int, kind: str, body: str | bytes, more: dict[str, str] | None = None
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.begin(status, kind, len(content), RULES, more or {})
        self.wfile.write(content)

    def begin(
        self, status: int, kind: str, size: int | None, rules: str, more: dict[str, str]
    ) -> None:
        """Send the headers; without a size the body ends with the connection."""
        headers = {
            "Content-Type": kind,
            "Content-Security-Policy": rules,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            **more,
        }
        if size is not None:
            headers["Content-Length"] = str(size)
        if size is None or self.close_connection:
            headers["Connection"] = "close"
            self.close_connection = True
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def send_log(self, name: str) -> None:
        chunks = logs.chunks(self.server.config, name)
        first = next(chunks, ("", b""))  # it may fail, so it comes before the headers
        self.begin(200, TEXT, None, FILE_RULES, {})
        for _, chunk in (first, *chunks):
            self.wfile.write(chunk)

    def send_file(self, name: str, path: str) -> None:
        bucket = self.server.bucket
        blob = collect.file_of(bucket, jobs.find(self.server.config, name), path)
        suffix = Path(path).suffix.lower()
        # one of another type can only be saved
        kind = collect.PICTURES.get(suffix, TEXT if TEXTS.fullmatch(suffix) else "")
        more = {} if kind else {"Content-Disposition": "attachment"}
        self.begin(200, kind or "application/octet-stream", blob.size, FILE_RULES, more)
        sent = 0
        while sent < blob.size:
            piece = bucket.read_from(blob.name, sent, min(sent + PIECE, blob.size))
            if not piece:  # it was replaced in the meantime
                self.close_connection = True
                return
            self.wfile.write(piece)
            sent += len(piece)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def place_in_log(text: str) -> dict[str, int]:
    """Return the place from which a log continues, as a page or an answer named it."""
    try:
        read_to: dict[str, int] = json.loads(text)
        if all(isinstance(at, int) and at >= 0 for at in read_to.values()):
            return read_to
    except (ValueError, AttributeError, RecursionError):
        pass
    raise BergError("that is not a place in a log")


def export(config: Config, names: list[str], folder: Path, say: Callable[[str], None]) -> Path:
    """Write the pages of jobs and sweeps to a new or empty folder; return the first page."""
    if folder.exists() and any(folder.iterdir()):
        raise BergError(f"{folder} is not empty. Give a new folder")
    bucket = Bucket(config)
    chosen, sweeps = members(config, names)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ASSETS:
        shutil.copyfile(HERE / name, folder / name)
    if library := page.find_library():
        shutil.copyfile(library.file, folder / library.name)
    below = Frame(config.project, config.bucket, live=False, root="../../")
    for name in sweeps:
        found = collect.a_sweep(config, bucket, name)
        write(folder / "sweep" / name, page.one_sweep(below, name, found))
    for name in chosen:
        about = collect.about(config, bucket, name)
        about.record.entry = alone(about.record.entry, sweeps)
        export_job(config, bucket, below, about, folder / "job" / name, say)
    entries = [alone(each, sweeps) for each in jobs.overview(config, None) if each.name in chosen]
    return write(folder, page.overview(replace(below, root=""), entries, [], {}))


def members(config: Config, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the jobs of those names, and which of the names are sweeps."""
    sweeps = [
        name
        for name in names
        if job.NAME.fullmatch(name) and states.sweep_exists(Bucket(config), name)
    ]
    chosen: list[str] = []
    for name in names:
        found = sweep.entries(config, name) if name in sweeps else [jobs.find(config, name)]
        chosen += [each.name for each in found if job.NAME.fullmatch(each.name)]
    return list(dict.fromkeys(chosen)), sweeps


def alone(entry: jobs.Entry, sweeps: list[str]) -> jobs.Entry:
    """Return a job without its sweep if that is not exported: the link would lead nowhere."""
    if entry.state and entry.sweep not in sweeps:
        return replace(entry, state=replace(entry.state, job=replace(entry.state.job, sweep="")))
    return entry


def export_job(
    config: Config,
    bucket: Bucket,
    frame: Frame,
    about: collect.About,
    folder: Path,
    say: Callable[[str], None],
) -> None:
    """Write the page of a job with its log and its results."""
    entry = about.record.entry
    piece = collect.log(config, bucket, entry)
    write(folder, page.one_job(frame, about, page.log_section(piece, follows=False)))
    with (folder / "log.txt").open("wb") as output:
        try:
            for _, chunk in logs.chunks(config, entry.name):
                output.write(chunk)
        except BergError as error:  # there is none
            output.write(f"{error.message}\n".encode())
    small = [each for each in about.record.results if each.size <= LARGEST]
    prefix = f"{collect.results_folder(entry)}/"
    _, _, left = fetch(bucket, prefix, folder / "files", listed=small)
    large = [each.name for each in about.record.results if each.size > LARGEST]
    too_large = f"it is larger than {LARGEST >> 20} MiB"
    for path, why in {**left, **dict.fromkeys(large, too_large)}.items():
        say(f"{path} is not among the files: {why}")


def write(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    file.write_text(content, encoding="utf-8", errors="replace")
    return file
