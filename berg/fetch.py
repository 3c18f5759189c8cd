"""`berg fetch`: the results of a job in a folder here: what changed, and never outside of it.

A file that differs from the bucket's and from what a fetch wrote was edited here: it is kept under
another name. Notes in the folder say what a fetch wrote.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import click

from berg import BergError, jobs, table, terminal
from berg.bucket import Bucket, Changed, Object
from berg.config import Config
from berg.job import OBEYED, RESULTS, State, check_results, row_states, states
from berg.moments import (
    Row,
    bring_all,
    copies,
    download,
    hashed,
    is_plain,
    is_there,
    newest,
    sources,
    split_name,
)
from berg.options import complete_names

WHERE = f"{Path(RESULTS).name}/"  # of results in the bucket
PAUSE = 10  # seconds between two downloads of `fetch --watch`
MOST_NAMED = 20  # files that are missing
NOTES, PARTS = ".berg-fetched", ".berg-parts"
# Errors of a name that this file system cannot hold, or not together with the others.
NO_PLACE = {
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
    errno.EEXIST,
}
# Errors of a folder in which no file can be made.
NO_FOLDER = {errno.EACCES, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS}


class LeftOut(Exception):
    """An object that gets no file in the folder."""


@dataclass
class Fetched:
    """What a fetch did, by path."""

    new: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)  # edited here -> its name now
    deleted: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)  # -> why it was not downloaded
    files: int = 0  # that the folder is to have


@dataclass
class Fetch:
    """One download of results, those of a job or of a folder that several jobs wrote."""

    bucket: Bucket
    where: str  # prefix of the plain objects
    own: str  # the job's folder below it, whose files come to `folder`
    folder: Path
    job: str = ""
    machines: int = 1
    on_bytes: Callable[[int], None] = lambda count: None
    notes: dict[str, list[int | str]] = field(
        default_factory=dict
    )  # path -> size, mtime and crc; or a link
    plain: dict[str, Object] = field(default_factory=dict)
    kept: dict[str, list[Object]] = field(default_factory=dict)  # copies aside, by `hashed` paths
    done: Fetched = field(default_factory=Fetched)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self, view_ns: int | None = None, deleted: bool = False) -> Fetched:
        """Download the newest moment, or the last one before `view_ns`; without any, the plain objects."""
        rows = self.rows(view_ns)
        if not rows and not self.folder.exists():
            return self.done
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / NOTES, "a+") as notes:
            try:
                fcntl.flock(notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # by another fetch
                fcntl.flock(notes, fcntl.LOCK_EX)
                rows = self.rows(view_ns)
            (self.folder / PARTS).mkdir(exist_ok=True)
            notes.seek(0)
            with contextlib.suppress(ValueError):  # a full disk may have cut it off
                self.notes = json.loads(notes.read() or "{}")
            try:
                if (self.folder / PARTS.upper()).exists():
                    rows = self.apart(rows)
                self.done.files = len(rows)
                for path in [*self.notes.keys() - rows.keys()] if deleted else []:
                    self.move_away(path)
                links = [path for path, row in rows.items() if row.link]
                files = {path: row for path, row in rows.items() if not row.link}
                bring_all(lambda path: self.bring(path, rows[path], rows), files)
                for path in links:  # last: no file comes through one
                    self.bring(path, rows[path], rows)
            finally:
                notes.truncate(0)
                notes.write(json.dumps(self.notes))
                shutil.rmtree(self.folder / PARTS)
        return self.done

    def rows(self, view_ns: int | None) -> dict[str, Row]:
        """What the folder is to have."""
        at_ns, rows = self.moment(view_ns) if self.job else (0, {})
        if view_ns and not at_ns:
            raise BergError(
                f"{self.job} has no results from then. See: berg show {self.job} --views"
            )
        start = f"{self.own}/"
        rows = {path[len(start) :]: row for path, row in rows.items() if path.startswith(start)}
        present = self.bucket.list(self.where + start)
        self.plain = {each.name[len(self.where + start) :]: each for each in present}
        self.kept = copies(self.bucket, self.job) if self.job else {}
        if at_ns:
            return {
                path: row
                for path, row in rows.items()
                if row.link or not self.is_replaced(path, row)
            }
        return {
            path: Row(each.size, each.crc, each.generation, each.updated_ns)
            for path, each in self.plain.items()
        }

    def apart(self, rows: dict[str, Row]) -> dict[str, Row]:
        """Rows without those whose names a disk, such as macOS' own, takes for that of another one."""
        first: dict[str, str] = {}
        for path in sorted(rows):
            other = first.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
            if other != path:
                self.done.left[path] = f"this disk takes its name for that of {other}"
        return {path: row for path, row in rows.items() if path not in self.done.left}

    def is_replaced(self, path: str, row: Row) -> bool:
        """Whether a lower rank has replaced a file of a higher one, and no copy of it is left."""
        full, rank = split_name(f"{self.own}/{path}", self.machines)
        there, kept = self.plain.get(path), self.kept.get(hashed(full), [])
        return bool(rank) and not sources(path, there, kept, row)

    def moment(self, view_ns: int | None) -> tuple[int, dict[str, Row]]:
        """Time and rows of a moment; (0, {}) without one, or if others wrote what cannot be one."""
        damage = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)
        try:
            _, at_ns, rows = newest(self.bucket, self.job, self.machines, view_ns or 1 << 62)
            kinds = list(map(type, Row()))
            wrong = [path for path, row in rows.items() if list(map(type, row)) != kinds]
            if wrong:
                raise ValueError(wrong[0])
            return at_ns, rows
        except (*damage, Changed):
            terminal.warn(
                f"the lists of {self.job}'s results cannot be read; downloading its files as they are"
            )
            return 0, {}

    def bring(self, path: str, row: Row, rows: dict[str, Row]) -> None:
        """Make one file or link, and note it."""
        try:
            full = self.place(path, rows)
            if row.link:
                self.link(path, full, row)
            elif not self.is_here(path, full, row):
                part = self.folder / PARTS / hashed(path)
                row = self.download(path, part, row)
                part.chmod((row.mode & 0o777) | 0o600)
                self.put(path, part, full, row)
        except LeftOut as error:
            self.done.left[path] = str(error)
        except ValueError:  # obstore or this system takes no such name
            self.done.left[path] = "its name cannot be that of a file here"
        except (Changed, FileNotFoundError):
            self.done.left[path] = "it changes all the time, or was deleted"
        except OSError as error:
            if error.errno not in NO_PLACE:
                raise
            self.done.left[path] = f"this computer cannot have it here: {error.strerror}"

    def place(self, path: str, rows: dict[str, Row]) -> Path:
        """Where a file belongs, in a folder that is there; raise LeftOut for no place here."""
        names = path.split("/")
        if not is_plain(path) or names[0] in (NOTES, PARTS) or path.endswith("/"):
            raise LeftOut("its name cannot be that of a file here")
        if OBEYED & {name.lower() for name in names}:
            raise LeftOut("programs on this computer would act on it")
        with self.turn:
            for depth in range(1, len(names)):
                above = "/".join(names[:depth])
                is_link, is_ours = (self.folder / above).is_symlink(), self.is_ours(above)
                if above in rows or (is_link and not is_ours):
                    raise LeftOut(f"{above} is a link or a file, not a folder")
                if is_ours:  # it was a file or a link once
                    (self.folder / above).unlink()
                elif (self.folder / above).is_file():
                    self.keep_aside(above)
                (self.folder / above).mkdir(exist_ok=True)
        return self.folder / path

    def is_ours(self, path: str) -> bool:
        """Whether what is here is what a fetch wrote."""
        with contextlib.suppress(OSError):
            full, note = self.folder / path, self.notes.get(path)
            about = full.lstat()
            return note is not None and note[:2] == (
                [os.readlink(full), 0] if full.is_symlink() else [about.st_size, about.st_mtime_ns]
            )
        return False

    def is_here(self, path: str, full: Path, row: Row) -> bool:
        """Whether a file has its content here; one that was edited is kept aside."""
        if not os.path.lexists(full):
            return False
        if self.is_ours(path):
            return self.notes[path][::2] == [row.size, row.crc]  # a link has no checksum
        if not full.is_symlink() and is_there(full, row):
            self.note(path, full, row)
            return True
        self.keep_aside(path)
        return False

    def keep_aside(self, path: str) -> None:
        """Rename what a person has here, but not a folder."""
        full = self.folder / path
        if (
            os.path.lexists(full)
            and (full.is_symlink() or not full.is_dir())
            and not self.is_ours(path)
        ):
            name = next(
                name
                for n in range(1, 1 << 30)
                if not os.path.lexists(name := full.with_name(f"{full.name}.~{n}~"))
            )
            full.rename(name)
            self.done.kept[path] = str(name.relative_to(self.folder))

    def download(self, path: str, part: Path, row: Row) -> Row:
        """Download a file; return its row, another one if its object was replaced meanwhile."""
        for _ in range(5):
            with contextlib.suppress(Changed):
                name = split_name(f"{self.own}/{path}", self.machines)[0]
                kept = self.kept.get(hashed(name), [])
                download(
                    self.bucket,
                    f"{self.where}{self.own}/{path}",
                    self.plain.get(path),
                    kept,
                    part,
                    row,
                    self.on_bytes,
                )
                return row
            there = self.bucket.get(f"{self.where}{self.own}/{path}")
            if self.kept or not there:
                break
            self.plain[path], row = (
                there,
                Row(there.size, there.crc, there.generation, there.updated_ns, row.mode),
            )
        raise Changed

    def put(self, path: str, part: Path, full: Path, row: Row) -> None:
        if full.is_dir() and not full.is_symlink():
            full.rmdir()  # only an empty one
        part.replace(full)
        with contextlib.suppress(
            OSError, OverflowError
        ):  # a time that this file system cannot hold
            os.utime(full, ns=(row.mtime_ns, row.mtime_ns), follow_symlinks=False)
        self.note(path, full, row)
        self.done.new.append(path)

    def note(self, path: str, full: Path, row: Row) -> None:
        self.notes[path] = (
            [row.link, 0] if row.link else [row.size, full.lstat().st_mtime_ns, row.crc]
        )

    def link(self, path: str, full: Path, row: Row) -> None:
        """Make a link, if it stays in the folder: steps up at its beginning alone, at most to the top."""
        steps = row.link.split("/")
        up = next((n for n, step in enumerate(steps) if step != ".."), len(steps))
        if (
            row.link.startswith("/")
            or up > path.count("/")
            or ".." in steps[up:]
            or OBEYED & {*steps}
        ):
            raise LeftOut("a link that leads out of the results")
        if full.is_symlink() and os.readlink(full) == row.link:
            self.note(path, full, row)
            return
        self.keep_aside(path)
        part = self.folder / PARTS / hashed(path)
        part.symlink_to(row.link)
        self.put(path, part, full, row)

    def move_away(self, path: str) -> None:
        """Move a file that the bucket has no more next to the folder, unless it was edited here."""
        is_safe = is_plain(path) and not any(
            (self.folder / above).is_symlink() for above in [*Path(path).parents][:-1]
        )
        if is_safe and self.is_ours(path):
            to = self.folder.with_name(f"{self.folder.name}.deleted") / path
            to.parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).replace(to)
            self.done.deleted.append(path)
        del self.notes[path]


def view(text: str) -> int:
    """The last nanosecond of a moment that a person names in UTC, as berg show --views has it."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise BergError(f"{text!r} is not a time. Choose one: berg show NAME --views") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return (int(at.timestamp()) + 1) * 10**9 - 1


def here() -> Path:
    """Where results go on this computer."""
    return Path.home() / "berg_results"


def of_job(config: Config, name: str, folder: Path | None) -> tuple[list[Fetch], Path, State]:
    """The downloads for a job, a sweep or a row of one, the folder here, and the job's state."""
    bucket, state = Bucket(config), jobs.find(config, name)
    above = folder or here()
    target = folder or here() / state.results
    mine = Fetch(bucket, WHERE, state.results, target, state.name, state.machines)
    if "/" in state.name:
        return [mine], target, state
    found = []
    for _, (row, _) in sorted(row_states(bucket, state.name).items()):
        below = row.results.removeprefix(f"{state.results}/")
        place = target / below if below != row.results else above / row.results
        found.append(Fetch(bucket, WHERE, row.results, place, row.name))
    return found or [mine], target, state


def of_folder(config: Config, name: str, folder: Path | None) -> tuple[list[Fetch], Path]:
    """The download of a folder of results, which one job or several wrote; none without files."""
    bucket, path = Bucket(config), check_results(name)
    writers = [state for state in states(bucket) if state.results == path]
    writer = writers[-1] if writers else State("")  # the latest
    mine = Fetch(bucket, WHERE, path, folder or here() / path, writer.name, writer.machines)
    return [mine] if any(True for _ in bucket.list(f"{WHERE}{path}/")) else [], mine.folder


@click.command()
@click.argument("name", default="@", shell_complete=complete_names)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--watch", is_flag=True, help="Fetch again every 10 seconds until the job ends.")
@click.option(
    "--view", "moment", default="", metavar="TIME",
    help="The results as they were then; see: berg show NAME --views",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fetch(name: str, folder: Path | None, watch: bool, moment: str, as_json: bool) -> None:
    """Download results to FOLDER, ~/berg_results/… by default; only what changed.

    NAME is a job, a sweep, or a folder of results. A sweep comes with results.csv: a row for each of
    its rows, with parameters, state, exit code and last metrics. What a job deleted is moved to
    FOLDER.deleted, and a file that you edited is kept as FILE.~1~.

    \b
    berg fetch my-job                 # to ~/berg_results/my-job
    berg fetch sweep1 ./sweep1 --watch
    """
    if watch and moment:
        raise click.UsageError("give only one of --watch and --view")
    config, state = Config.load(), None
    while True:
        try:
            parts, target, state = of_job(config, name, folder)
        except BergError:  # no job, or its records are damaged
            with contextlib.suppress(BergError):
                parts, target = of_folder(config, name, folder)
                if parts:
                    break
            raise
        if not watch or state.is_final:
            break
        download_all(parts, 0)
        time.sleep(PAUSE)
    if moment and not folder:
        for part in parts:
            part.folder = part.folder.with_name(f"{part.folder.name}@{moment.replace(':', '')}")
        target = parts[0].folder
    files, done = download_all(parts, view(moment) if moment else 0)
    is_sweep = state is not None and parts[0].job != state.name
    if not files and state and not is_sweep:
        raise BergError(f"{state.name} has no results yet. Its log: berg log {state.name}")
    for path, reason in [*(state.missing.items() if state else ())][:MOST_NAMED]:
        terminal.warn(f"{path} is not in the bucket: {reason}")
    about = {"folder": str(target), "files": files, "fetched": done}
    if state and is_sweep:
        rows, _ = table.read(config, state.name)
        target.mkdir(parents=True, exist_ok=True)
        table.write_csv(rows, target / "results.csv")
        about["table"] = str(target / "results.csv")
    if as_json:
        return terminal.show_json(about)
    terminal.say(f"{done} of {files} files new or changed")
    terminal.show(str(about.get("table", target)))
    return None


def download_all(parts: list[Fetch], view_ns: int) -> tuple[int, int]:
    """Download several folders one after the other; how many files they have, and how many came."""
    files = new = 0
    for part in parts:
        try:
            done = part.run(view_ns or None, deleted=not view_ns)
        except OSError as error:
            if error.errno not in NO_FOLDER:
                raise
            raise BergError(
                f"{error.filename} cannot be written: {error.strerror}. Give another folder: "
                f"berg fetch {part.job or part.own} FOLDER"
            ) from None
        for path, kept in done.kept.items():
            terminal.warn(f"{path} was edited here: your version is now {kept}")
        for path, reason in done.left.items():
            terminal.warn(f"{path} was not downloaded: {reason}")
        if done.deleted:
            terminal.say(
                f"{len(done.deleted)} files that are no longer in the results, such as "
                f"{done.deleted[0]}, are in {part.folder}.deleted now"
            )
        files, new = files + done.files, new + len(done.new)
    return files, new
