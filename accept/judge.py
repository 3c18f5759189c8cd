"""Whether a folder is what a program's history says it was at one instant, and at which.

The history is a list of changes with the times of their begin and end, told by writer.py. A file in
the middle of a save counts as it was at some time of the 30 seconds before, or as the new version.
A log may be longer than at the instant, never shorter. The files of several machines may be of instants that are a second apart,
as their clocks are.
"""

import contextlib
import json
import socketserver
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from accept.writer import digest

Listing = dict[str, list[Any]]
APART = 1.0  # seconds between the instants of several machines
BEFORE = 30.0  # seconds for which an earlier version stands for one that is being written


@dataclass
class Change:
    begin: float
    sets: dict[str, Any]
    done: float = float("inf")
    is_slow: bool = False


@dataclass
class History:
    """What one attempt of a job did, of all its machines."""

    found: dict[int, Listing] = field(default_factory=dict)  # at the start, by rank
    changes: list[Change] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # of logs, by incarnation

    @property
    def last(self) -> float:
        """When the last thing happened."""
        return max(
            (t for c in self.changes for t in (c.begin, c.done) if t < float("inf")), default=0
        )


@dataclass
class Collector:
    """Hears the writers of one row. What a new attempt is to do is in `answer`."""

    answer: dict[str, Any] = field(default_factory=lambda: {"seconds": 0, "code": 0, "pace": 0})
    histories: dict[tuple[str, int], History] = field(default_factory=lambda: defaultdict(History))
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    outer.hear(self)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def hear(self, handler: socketserver.StreamRequestHandler) -> None:
        hello = json.loads(handler.rfile.readline())
        with self.lock:
            history = self.histories[hello["hello"], hello["attempt"]]
            history.found[hello["rank"]] = hello["found"]
            handler.wfile.write((json.dumps(self.answer) + "\n").encode())
        changes: dict[int, Change] = {}
        for line in handler.rfile:
            if not line.endswith(b"\n"):
                break
            said = json.loads(line)
            with self.lock:
                if "begin" in said:
                    change = Change(said["t"], said["sets"], is_slow=said.get("slow", False))
                    changes[said["begin"]] = change
                    history.changes.append(change)
                    if "text" in said:
                        log, text = said["text"]
                        history.texts[log] = history.texts.get(log, "") + text
                else:
                    changes[said["done"]].done = said["t"]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def matches(value: Any, found: list[Any] | None, texts: dict[str, str]) -> bool:
    """Whether what was found at a path is this value."""
    if value is None or found is None:
        return value is None and found is None
    if value[0] == "log":
        size = len(texts.get(value[1], "").encode())
        return found[0] == "f" and value[2] <= found[2] <= size and is_piece(value[1], found, texts)
    return bool(value[:2] == found[:2])


@dataclass
class Verdict:
    """At which instant the folder was like this, or why there is none."""

    wrong: str = ""  # torn …, mixed …
    at: float = 0.0  # the latest instant that fits: until when this state lasted
    is_last: bool = False  # nothing happened after it
    late: str = ""  # what the folder at the end had otherwise
    database_at: float = float("inf")


def judge(history: History, found: Listing, start: Listing) -> Verdict:
    """Compare a listing with the history of an attempt that began with `start`."""
    for path, what in found.items():
        if what[0] == "db" and not isinstance(what[1], int):
            return Verdict(f"torn database {path}: {what[1]}")
    paths = {*found, *start, *(path for change in history.changes for path in change.sets)}
    scans = {}
    for part in sorted({part_of(path) for path in paths}):
        scans[part] = scan(history, found, start, part)
        if scans[part].wrong:
            return Verdict(scans[part].wrong)
    files = [each for part, each in scans.items() if not part.startswith("database")]
    at = latest_common([each.spans for each in files])
    if at is None:
        ends = ", ".join(
            f"{each.part} until {history.last - each.spans[-1][1]:.1f} s" for each in files
        )
        return Verdict(
            f"mixed: the machines' instants are more than a second apart: {ends} before the end"
        )
    is_last = all(each.is_last for each in scans.values())
    late = "; ".join(each.late for each in scans.values() if each.late)
    databases = [part for part in scans if part.startswith("database") and not scans[part].is_last]
    database_at = min((scans[part].spans[-1][1] for part in databases), default=float("inf"))
    return Verdict(at=min(at, database_at), is_last=is_last, late=late, database_at=database_at)


def part_of(path: str) -> str:
    """What has an instant of its own: each database, which is a copy, and each machine's files."""
    first = path.split("/")[0]
    is_rank = first[:1] == "r" and first[1:].isdigit() and "/" in path
    if path.endswith(".db"):
        return f"database {path}"
    return f"files of machine {first[1:] if is_rank else 0}"


def latest_common(spans: list[list[tuple[float, float]]]) -> float | None:
    """The end of the latest spans, one of each list, that are at most APART from each other."""
    for begin, end in reversed(spans[0] if spans else [(0.0, float("inf"))]):
        near = [
            [span for span in other if span[0] <= end + APART and span[1] >= begin - APART]
            for other in spans[1:]
        ]
        if all(near):
            return min([end, *(other[-1][1] for other in near)])
    return None


@dataclass
class Scan:
    """When a part of a listing was like this; wrong if it never was."""

    part: str
    spans: list[tuple[float, float]] = field(default_factory=list)  # begin and end
    is_last: bool = False  # it was so at the end
    late: str = ""  # what the end had otherwise
    wrong: str = ""


def scan(history: History, found: Listing, start: Listing, part: str) -> Scan:
    """Go through all instants, and find those at which a part of the listing was like this."""
    found = {path: what for path, what in found.items() if part_of(path) == part}
    settled: dict[str, Any] = {path: what for path, what in start.items() if part_of(path) == part}
    known: dict[str, list[Any]] = defaultdict(
        list, {path: [what] for path, what in settled.items()}
    )
    flying: dict[str, list[Change]] = defaultdict(list)
    points: list[tuple[float, int, Change]] = []
    for change in history.changes:
        mine = [path for path in change.sets if part_of(path) == part]
        if mine:
            points.append((change.begin, 0, change))
            if change.done < float("inf"):
                points.append((change.done, 1, change))
        for path in mine:
            known[path].append(change.sets[path])
    points.sort(key=lambda point: (point[0], point[1]))

    earlier: dict[str, list[tuple[float, Any]]] = defaultdict(
        list
    )  # versions, until when they were

    def fits(path: str, now: float) -> bool:
        allowed = [settled.get(path), *(change.sets[path] for change in flying[path])]
        if any(change.is_slow for change in flying[path]):
            allowed += [value for until, value in earlier[path] if until > now - BEFORE]
        return any(matches(value, found.get(path), history.texts) for value in allowed)

    bad = {path for path in {*found, *settled} if not fits(path, 0)}
    best = len(bad), 0.0, {*bad}, dict(settled)
    spans: list[tuple[float, float]] = (
        [] if bad else [(0.0, points[0][0] if points else float("inf"))]
    )
    for index, (at, is_end, change) in enumerate(points):
        for path in change.sets:
            if part_of(path) != part:
                continue
            if is_end:
                earlier[path].append((at, settled.get(path)))
                settled[path] = change.sets[path]
                flying[path].remove(change)
            else:
                flying[path].append(change)
            (bad.discard if fits(path, at) else bad.add)(path)
        if not bad:
            until = points[index + 1][0] if index + 1 < len(points) else float("inf")
            spans.append((at, until))
        if len(bad) <= best[0]:
            best = len(bad), at, {*bad}, dict(settled)
    late = f"{len(bad)} of the {part} differ: {examples(bad, found, settled)}" if bad else ""
    if spans:
        return Scan(part, spans, spans[-1][1] == float("inf"), late)
    for path, what in found.items():
        values = known.get(path, [])
        if not any(
            matches(value, what, history.texts)
            or (value and value[0] == "log" and is_piece(value[1], what, history.texts))
            for value in values
        ):
            return Scan(part, wrong=f"torn: {path} ({what}) was never whole like this")
    count, at, paths, values = best
    told = f"no instant fits; {history.last - at:.1f} s before the end {count} of the {part} differ"
    return Scan(part, wrong=f"mixed: {told}: {examples(paths, found, values)}")


def is_piece(log: str, what: list[Any], texts: dict[str, str]) -> bool:
    text = texts.get(log, "").encode()
    return what[0] == "f" and digest(text[: what[2]]) == what[1]


def examples(paths: set[str], found: Listing, values: dict[str, Any]) -> str:
    """Some paths, with what was found there, None for nothing, and what should have been."""
    some = sorted(paths)[:3]
    return ", ".join(f"{path} is {found.get(path)}, not {values.get(path)}" for path in some)
