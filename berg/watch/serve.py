"""The server of `berg page`: on loopback, for callers that have its address, and for no other page
of the same browser.

Every address begins with a random token, which is new with each start. There are no cookies:
browsers send those of 127.0.0.1 to every port, also to a port of another user of this computer.
Each request must name this very server as its Host (or another site's name could lead here), and
one that changes something must come from its own pages (Origin). Nothing can be changed but that a
job is ended. Files of jobs are shown without scripts.

The page of some jobs as files in a folder, which open from disk and can be sent to somebody.

Not covered: results that are larger than what one sends. They are named, and stay in the bucket.
"""

import hmac
import json
import mimetypes
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from berg import BergError, job
from berg.config import Config
from berg.google.api import explain
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.laptop import compare, ending, jobs, logs, sweep
from berg.watch import collect, library, page
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
        self.show(page.one_sweep(site.frame("../../"), name, found))

    def get_several(self, which: str, names: list[str]) -> None:
        """Show jobs side by side, or what differs between two."""
        site, frame = self.server, self.server.frame("../")
        if which == "compare":
            found = collect.compared(site.config, site.bucket, names)
            self.show(page.compared(frame, found, names))
            return
        if len(names) != 2 or not all(map(job.NAME.fullmatch, names)):
            raise BergError("this address names two jobs: diff/?job=NAME&job=NAME")
        self.show(page.differing(frame, compare.compare(site.config, *names)))

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


EXPORTED = ("page.css", "page.js", "figures.js")

LARGEST = 10 << 20  # bytes of a file that goes along


def export(config: Config, names: list[str], folder: Path, say: Callable[[str], None]) -> Path:
    """Write the pages of jobs and sweeps to a folder, which must be empty or not there yet; returns
    the first one.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BergError(f"{folder} is not empty. Give a folder that is new")
    bucket = Bucket(config)
    chosen, sweeps = members(config, bucket, names)
    folder.mkdir(parents=True, exist_ok=True)
    for name in EXPORTED:
        shutil.copyfile(HERE / name, folder / name)
    if found := library.find():
        shutil.copyfile(found.file, folder / found.name)
    below = Frame(config.project, config.bucket, live=False, root="../../")
    for name in sweeps:
        write(
            folder / "sweep" / name,
            page.one_sweep(below, name, collect.a_sweep(config, bucket, name)),
        )
    for name in chosen:
        export_job(config, bucket, below, name, folder / "job" / name, sweeps, say)
    entries = [alone(each, sweeps) for each in jobs.overview(config, None) if each.name in chosen]
    top = Frame(config.project, config.bucket, live=False)
    return write(folder, page.overview(top, entries, [], {}))


def members(config: Config, bucket: Bucket, names: list[str]) -> tuple[list[str], list[str]]:
    """The jobs that names stand for, and which of the names are sweeps."""
    chosen: dict[str, None] = {}
    sweeps = [
        name for name in names if job.NAME.fullmatch(name) and bucket.exists(job.sweep_path(name))
    ]
    for name in names:
        if name in sweeps:
            chosen |= dict.fromkeys(entry.name for entry in sweep.entries(config, name))
        else:
            chosen[jobs.find(config, name).name] = None
    return [name for name in chosen if job.NAME.fullmatch(name)], sweeps


def alone(entry: jobs.Entry, sweeps: list[str]) -> jobs.Entry:
    """A job as one of no sweep, if its sweep does not go along."""
    if entry.state and entry.sweep not in sweeps:
        return replace(entry, state=replace(entry.state, job=replace(entry.state.job, sweep="")))
    return entry


def export_job(
    config: Config,
    bucket: Bucket,
    frame: Frame,
    name: str,
    folder: Path,
    sweeps: list[str],
    say: Callable[[str], None],
) -> None:
    about = collect.about(config, bucket, name)
    entry = about.record.entry = alone(about.record.entry, sweeps)
    piece = collect.log(config, bucket, entry)
    write(folder, page.one_job(frame, about, page.log_section(piece, follows=False)))
    with (folder / "log.txt").open("wb") as output:
        try:
            for _, chunk in logs.chunks(config, name):
                output.write(chunk)
        except BergError as error:  # it left none
            output.write(f"{error.message}\n".encode())
    prefix = f"{collect.results_folder(entry)}/"
    small = [each for each in about.record.results if each.size <= LARGEST]
    _, _, left = fetch(bucket, prefix, folder / "files", listed=small)
    for path, why in left.items():
        say(f"{path} is not among the files: {why}")
    for each in about.record.results:
        if each.size > LARGEST:
            say(f"{each.name} is not among the files: it is larger than {LARGEST >> 20} MiB")


def write(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    file.write_text(content, encoding="utf-8", errors="replace")
    return file
