"""The commands for what jobs print and leave, log, tail and fetch; and for data sets, data."""

import errno
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands.terminal import (
    answer_option,
    confirm,
    done,
    json_option,
    machine_option,
    name_argument,
    print_data,
    ready,
    say,
    table,
    yes_option,
)
from berg.plain import plural, size

if TYPE_CHECKING:
    from berg.google.data import Push
    from berg.google.storage import Bucket, Listed
    from berg.google.views import View
    from berg.job import State
    from berg.laptop import lookup
    from berg.laptop.jobs import Entry
    from berg.states import Stored

MOST_NAMED = 20  # fetched files; of more only their number and bytes are printed
FOLDERS = 1000  # other than a job's own that are looked at: other jobs may write such records
PAUSE = 10  # seconds between two passes of `fetch --watch`
# Numbers of errors by which no file can be made in a folder.
NO_FOLDER = {errno.EACCES, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS}
LAST_LINES = 20  # of the log of a job that failed


def watch(
    settings: config.Config,
    name: str,
    quiet: bool = False,
    machine: str | None = None,
    color: bool = False,
) -> "State | None":
    """Follow a job to its end; return its final state, or None for a machine without a job.

    With `quiet` its log is not shown, except the end of it if the job does not succeed.
    """
    from berg.commands import tables
    from berg.laptop import logs

    shown_log = tables.Interleaved(sys.stdout.buffer, color)
    shown = ""

    def show_progress(found: "Entry") -> None:
        nonlocal shown
        line = tables.progress(found)
        is_submitted = found.state is not None and found.state.state == "SUBMITTED"
        if line and line != shown and (quiet or is_submitted):
            say(line)
        shown = line

    try:
        write = None if quiet else shown_log.write
        state = logs.follow(settings, name, write, machine, on_change=show_progress)
    except KeyboardInterrupt:
        say(tables.still_running(name, f"berg tail {name}"))
        raise
    shown_log.end()
    if state is None:
        return None
    if quiet and state.state != "SUCCEEDED":
        say_end_of_log(settings, name, state)
    say(tables.outcome(name, state))
    return state


def say_end_of_log(settings: config.Config, name: str, state: "State") -> None:
    from berg.google.storage import Bucket
    from berg.laptop import records

    lines = records.last_lines(Bucket(settings), name, state, LAST_LINES)
    last = f"[berg] Job {name} {state.state}"
    if lines := [line for line in lines if not line.startswith(last)]:
        text = "\n".join(lines)
        whose = f" of {state.machine}" if state.job.machines > 1 else ""
        say(f"The end of the log{whose} (all of it: berg log {name}):\n{text}\n")


def exit_code(*states: "State | None") -> int:
    """Return the exit code of the first job that did not succeed, or 0."""
    for state in states:
        if state and state.state != "SUCCEEDED":
            return state.exit_code or 1
    return 0


def say_why(name: str, state: "State") -> None:
    if state.reason:
        say(f"{name} {state.state}: {state.reason}")


def say_lost(states: "dict[str, State]") -> None:
    """Say which jobs could not save everything, and why."""
    for name, state in states.items():
        if state.lost:
            say_why(name, state)


color_option = click.option("--color", is_flag=True, help="Keep colors, also in a pipe.")


@click.command()
@name_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow it until the job ends: berg tail.")
@machine_option
@color_option
def log(name: str, follow: bool, machine: str | None, color: bool) -> None:
    """Print the whole log of a job, also after its machine is gone.

    On a terminal, or with --color, it keeps the colors that programs printed, and no other control
    sequence. With --follow the exit code is the command's.

    \b
    berg log digits-1121-0930-x7k | grep loss
    berg log -f digits-1121-0930-x7k
    """
    settings, name = ready(name)
    from berg.commands import tables
    from berg.laptop import jobs, logs

    if follow:
        sys.exit(exit_code(watch(settings, name, machine=machine, color=color)))
    shown_log = tables.Interleaved(sys.stdout.buffer, color)
    is_empty = True
    for source, chunk in logs.chunks(settings, name, machine):
        shown_log.write(source, chunk)
        is_empty = is_empty and not chunk
    shown_log.end()
    if is_empty:
        say(tables.progress(jobs.find(settings, name)))


@click.command()
@name_argument()
@machine_option
@color_option
def tail(name: str, machine: str | None, color: bool) -> None:
    """Follow the log of a job until it ends, as `berg log -f`.

    The exit code is the command's. Lines of several machines begin with the name of their machine.

    \b
    berg tail digits-1121-0930-x7k
    """
    settings, name = ready(name)
    sys.exit(exit_code(watch(settings, name, machine=machine, color=color)))


@click.command()
@name_argument()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--watch", "keep", is_flag=True, help="Fetch again every 10s until the job ends.")
@click.option(
    "--deleted", is_flag=True, help="Download what the job deleted and is still in the bucket."
)
@click.option(
    "--view",
    "moment",
    metavar="TIME",
    help="Download the results as they were then; see: berg show NAME --views",
)
@json_option
def fetch(
    name: str, folder: Path | None, keep: bool, deleted: bool, moment: str | None, as_json: bool
) -> None:
    """Download results to this computer; only what changed.

    NAME is a job, a sweep, or a folder of results. FOLDER is ~/berg_results/… by default, with
    …@TIME for --view and ….deleted for --deleted. Of a job you get what it left, with links, times
    and executable files. Copies of what it deleted since are moved to FOLDER.deleted, and a file
    that you edited is kept as FILE.~1~.

    A sweep comes with results.csv: a row for each job with parameters, state, exit code, and the
    last value of each metric in its metrics.jsonl. Nothing in .git, .hg or .svn is downloaded:
    programs here would obey it.

    \b
    berg fetch digits-1121-0930-x7k
    berg fetch sweep1 ./sweep1 --watch
    """
    if keep + deleted + bool(moment) > 1:
        raise click.UsageError("give only one of --watch, --deleted and --view")
    settings, name = ready(name)
    from berg.laptop import lookup

    found = lookup.look_up(settings, name, not keep)
    if (deleted or moment) and found.stored is None:
        what = f"a sweep: give one of its jobs, such as {name}/0" if found.is_sweep else "no job"
        raise BergError(f"--deleted and --view are for one job, and {name} is {what}")
    try:
        if found.is_sweep:
            fetch_sweep(settings, name, folder, keep, as_json)
        else:
            fetch_job(settings, found, folder, Wanted(keep, deleted, moment), as_json)
    except OSError as error:
        if error.errno not in NO_FOLDER:
            raise
        raise BergError(
            f"{error.filename} cannot be written: {error.strerror}. Give another folder: "
            f"berg fetch {shlex.quote(name)} FOLDER"
        ) from None


@dataclass
class Wanted:
    """What is to be fetched of a job, and for how long."""

    keep: bool = False  # until the job ends
    deleted: bool = False  # what the job deleted
    moment: str | None = None  # its results as they were then

    def folder(self, usual: Path) -> Path:
        """Return where it goes, instead of `usual`."""
        if self.moment:
            return usual.with_name(f"{usual.name}@{self.moment.replace(':', '')}")
        return usual.with_name(f"{usual.name}.deleted") if self.deleted else usual


@dataclass
class Fetched:
    """What passes over results have downloaded."""

    new: int = 0  # files that were new or changed
    files: int = 0
    missing: dict[str, Exception] = field(default_factory=dict)  # files that failed

    def add(self, counts: tuple[int, int, dict[str, Exception]]) -> int:
        """Add what a fetch returned; return how many files were new."""
        new, files, missing = counts
        self.new += new
        self.files += files
        self.missing |= missing
        return new

    def check_any(self, message: str) -> None:
        """Raise BergError with a message if there was nothing to fetch."""
        if not self.files and not self.missing:
            raise BergError(message)

    def print(self, target: Path, around: Path, jobs: str, csv: Path | None, as_json: bool) -> None:
        """Print how many files were downloaded, and where to."""
        about = {"folder": str(target), "files": self.files, "fetched": self.new}
        if csv:
            about["table"] = str(csv)
        say(f"{self.new} of {plural(self.files, 'file')}{jobs} new or changed")
        say_if_code(target, around)
        print_data(about, csv or target, as_json)


def fetch_job(
    settings: config.Config,
    asked: "lookup.Found",
    folder: Path | None,
    wanted: Wanted,
    as_json: bool,
) -> None:
    """Fetch the results of a job, or a folder of results; with `keep` until the job ends."""
    from berg.google.storage import Bucket
    from berg.laptop import lookup

    prefix, name = asked.prefix, asked.name
    bucket, target = Bucket(settings), folder or wanted.folder(Path.home() / prefix)
    reported: set[str] = set()
    while True:
        stored = asked.stored = asked.stored and lookup.as_seen(settings, asked.stored)
        found = fetch_once(bucket, asked, target, folder, wanted)
        if not wanted.keep or stored is None or stored.state.final:
            break
        say_trouble(found.missing, reported)
        time.sleep(PAUSE)
    if stored:
        check_not_removed(bucket, [name])
    what = f"{name} deleted nothing that is still" if wanted.deleted else "there is nothing"
    found.check_any(f"{what} in gs://{bucket.name}/{prefix}. See: berg list")
    found.print(target, folder or Path.home() / "berg_results", "", None, as_json)
    if stored:
        say_why(name, stored.state)
    raise_missing(found.missing)


def fetch_once(
    bucket: "Bucket",
    asked: "lookup.Found",
    target: Path,
    folder: Path | None,
    wanted: Wanted,
) -> Fetched:
    """Fetch the present results of a job, also from other folders, or a folder of results."""
    from berg.google.fetch import fetch
    from berg.laptop import lookup

    found, listed = Fetched(), FileList()
    if asked.stored is None:
        found.add(fetch(bucket, asked.prefix, target, listed.add, listed=asked.begun))
        listed.end()
        return found
    left = lookup.results(bucket, asked.stored, asked.begun, wanted.moment)
    for each in left.view.damaged:
        say(f"gs://{bucket.name}/{plain.name(each)} is damaged: the view before it counts")
    found.add(fetch_left(bucket, left, asked.prefix, target, wanted, listed.add))
    found.add(fetch_beside(bucket, asked.stored, left.view, folder, wanted, listed.add))
    listed.end()
    return found


def fetch_left(
    bucket: "Bucket",
    left: "lookup.Results",
    prefix: str,
    target: Path,
    wanted: Wanted,
    on_file: Callable[[str, int], None] = lambda path, size: None,
) -> tuple[int, int, dict[str, Exception]]:
    """Fetch what a job left below a prefix, or what it deleted; return what fetch() returns."""
    from berg.google.fetch import LeftOut, fetch, move_deleted
    from berg.google.sending import writer_of

    if not wanted.deleted and not wanted.moment:
        below = prefix.removeprefix("berg_results/")
        moved = move_deleted(target, (path.removeprefix(below) for path in left.gone))
        if moved:
            say(f"Moved {plural(len(moved), 'file')} that the job deleted, such as {moved[0]}")
    files = left.deleted if wanted.deleted else left.files
    new, total, missing = fetch(bucket, prefix, target, on_file, listed=files)
    for blob in left.others:
        writer = plain.name(writer_of(blob))
        missing[blob.name] = LeftOut(f"the job {writer} wrote it: berg fetch {writer}")
    return new, total, missing


def fetch_sweep(
    settings: config.Config, name: str, folder: Path | None, keep: bool, as_json: bool
) -> None:
    """Fetch the results of all jobs of a sweep, and a table of them: results.csv."""
    from berg.google.storage import Bucket
    from berg.laptop import sweep

    bucket, target = Bucket(settings), folder or Path.home() / "berg_results"
    csv = (folder or target / name) / "results.csv"
    reported: set[str] = set()
    while True:
        entries = [each for each in sweep.entries(settings, name) if each.state]
        found, states = Fetched(), {each.name: each.state for each in entries if each.state}
        fetch_members(bucket, entries, target, found)
        sweep.write_results(entries, target, csv)
        if not keep or all(state.final for state in states.values()):
            break
        say_trouble(found.missing, reported)
        time.sleep(PAUSE)
    check_not_removed(bucket, [*states])
    found.print(target, target, f" of {plural(len(states), 'job')}", csv, as_json)
    say_lost(states)
    raise_missing(found.missing)


def fetch_members(bucket: "Bucket", entries: "list[Entry]", target: Path, found: Fetched) -> None:
    """Fetch the results of a sweep's jobs, one job after the other."""
    from berg.google.fetch import side_by_side
    from berg.laptop import lookup

    stored = [replace(e.stored, state=e.state) for e in entries if e.stored and e.state]
    all_left = side_by_side(lambda each: lookup.results(bucket, each), stored)
    for each, left in zip(stored, all_left, strict=True):
        fetch_member(bucket, each, left, target, found)


def fetch_member(
    bucket: "Bucket", stored: "Stored", left: "lookup.Results", target: Path, found: Fetched
) -> None:
    """Fetch the results of one job of a sweep."""
    folder, state = stored.state.job.results_dir, stored.state
    new = found.add(fetch_left(bucket, left, f"berg_results/{folder}/", target / folder, Wanted()))
    if state.elsewhere or state.state != "SUCCEEDED":
        new += found.add(fetch_beside(bucket, stored, left.view, target, Wanted()))
    if new:
        say(f"{new:>6} new  {folder}")


def say_if_code(folder: Path, fetched: Path) -> None:
    """Say that a folder is sent as code from now on, if it is in a repo that does not ignore it."""
    from berg.code import snapshot

    root = snapshot.repo_that_takes(folder, fetched)
    if root is None:
        return
    path = folder.resolve().relative_to(root)
    ignore = shlex.join(["echo", f"/{path}/"])
    say(
        f"This is in the repo {root}, and its next job gets it as code. To leave it out:\n"
        f"  $ {ignore} >>{shlex.quote(str(root / snapshot.IGNORE_FILE))}"
    )


def check_not_removed(bucket: "Bucket", names: list[str]) -> None:
    """Raise BergError if a job was deleted in the meantime: its list may have been incomplete."""
    from berg import states

    left = {each.name: each.state for each in states.several(bucket, names)}
    for name in names:
        if name not in left or left[name].removed_by:
            raise BergError(f"{name} was deleted meanwhile: some of its results were not fetched")


def fetch_beside(
    bucket: "Bucket",
    stored: "Stored",
    view: "View",
    folder: Path | None,
    wanted: Wanted,
    on_file: Callable[[str, int], None] = lambda path, size: None,
) -> tuple[int, int, dict[str, Exception]]:
    """Fetch what a job wrote to other folders, below FOLDER; return what fetch() returns.

    Any job can claim to be this one: nothing is written to the top of FOLDER, and nothing is read
    from another user's results.
    """
    from berg import job
    from berg.google import mirror
    from berg.laptop import lookup

    name, root, own = stored.name, "berg_results", stored.state.job.results_dir
    folders = mirror.recorded_folders(bucket, job.folders_prefix(name), FOLDERS + 1)
    if len(folders) > FOLDERS:
        say(f"{name} claims to have written to more than {FOLDERS:,} folders; others are left out")
    by_folder: dict[str, list[Any]] = {}
    for blob in mirror.in_other_folders(bucket, f"{root}/", own, folders[:FOLDERS], name):
        by_folder.setdefault(folder_of(blob.name), []).append(blob)
    others = lookup.of_others(bucket, set(by_folder) - {""}, stored.state.job.user)
    for each in sorted({"", *others} & by_folder.keys()):
        why = "another user's" if each else "above all results"
        where = shlex.quote(f"gs://{bucket.name}/{root}/{each}".rstrip("/"))
        say(f"Left out: {plural(len(by_folder.pop(each)), 'file')} in {where}, which is {why}")

    def is_inside(name: str) -> bool:
        return folder_of(name) in by_folder and not name.startswith(f"{root}/{own}/")

    is_exact = bool(wanted.moment) or (view.final and stored.state.final)
    left = lookup.left_by(name, view, chain(*by_folder.values()), is_inside, is_exact)
    target = folder or wanted.folder(Path.home() / root)
    new, files, missing = fetch_left(bucket, left, f"{root}/", target, wanted, on_file)
    if files:
        say(f"{files} of its files {'is' if files == 1 else 'are'} in other folders of {target}")
    return new, files, missing


def folder_of(name: str) -> str:
    """Return the folder of an object of results, below berg_results/."""
    return name.removeprefix("berg_results/").rpartition("/")[0]


class FileList:
    """Prints the first files that are fetched, with their bytes, and at the end the sum of all."""

    def __init__(self) -> None:
        self.sizes: list[int] = []  # several threads add to it

    def add(self, path: str, size: int) -> None:
        self.sizes.append(size)
        if len(self.sizes) <= MOST_NAMED:
            say(f"{size:>14,}  {plain.name(path)}")

    def end(self) -> None:
        if len(self.sizes) > MOST_NAMED:
            say(f"{sum(self.sizes):>14,}  in {len(self.sizes):,} files in all")


def reason(error: Exception) -> str:
    from berg.google.api import explain

    return explain(error) or getattr(error, "strerror", None) or str(error)


def say_trouble(missing: dict[str, Exception], reported: set[str]) -> None:
    """Say why files cannot be fetched now, for example a full disk; each reason once."""
    from berg.google.fetch import LeftOut

    for path, error in missing.items():
        why = reason(error)
        if why not in reported and not isinstance(error, LeftOut):
            reported.add(why)
            say(f"{plain.name(path)} was not fetched: {why}. Trying again every {PAUSE} s")


def raise_missing(missing: dict[str, Exception]) -> None:
    """Name the files that were left out or failed; raise BergError if any failed."""
    from berg.google.fetch import Gone, LeftOut

    left_out: dict[str, list[str]] = {}  # why -> names
    for path, error in missing.items():
        if isinstance(error, LeftOut):
            left_out.setdefault(str(error), []).append(path)
    for why, paths in left_out.items():
        say(f"Left out: {plural(len(paths), 'file')}, such as {plain.name(paths[0])}: {why}")
    failed = {path: each for path, each in missing.items() if not isinstance(each, LeftOut)}
    for path, error in failed.items():
        say(f"{plain.name(path)} was not fetched: {reason(error)}")
    if failed:
        files, next_step = (
            plural(len(failed), "file"),
            ". Fix the cause, then run this command again",
        )
        if all(isinstance(error, Gone) for error in failed.values()):
            next_step = ": the bucket does not have the bytes any more"
        raise BergError(f"{files} could not be fetched{next_step}")


@click.group()
def data() -> None:
    """Keep data sets in the bucket, for jobs to use.

    A data set is a folder `data/NAME/` of plain files in the bucket. DATA is its NAME, or the
    address of any folder, such as gs://my-bucket/folder. `berg run --data NAME` copies it to the
    machine before the command starts.

    \b
    berg data push ~/mnist mnist
    berg run --data mnist "python train.py --data=/root/data/mnist"
    """


@data.command()
@click.argument("path", metavar="FOLDER|FILE", type=click.Path(path_type=Path))
@click.argument("where", metavar="DATA")
@click.option("--delete", is_flag=True, help="Delete what is not in FOLDER, after asking.")
@click.option("--follow-links", is_flag=True, help="Send files outside FOLDER that links point to.")
@yes_option
@json_option
def push(
    path: Path, where: str, delete: bool, follow_links: bool, yes: bool, as_json: bool
) -> None:
    """Upload a folder or a file to the bucket; only what changed.

    After an interruption the same command continues. Links to files in FOLDER are sent as those
    files; others are refused without --follow-links. Links to folders are left out, and named.

    \b
    berg data push ~/mnist mnist
    berg data push weights.pt pretrained
    berg data push ~/mnist gs://other-bucket/mnist --delete
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.google import data

    if not path.exists():
        raise BergError(f"{path} does not exist: give a folder or a file to send")
    bucket, prefix = data.find(settings, where)
    address = f"gs://{bucket.name}/{prefix}"
    plan = data.plan_push(bucket, prefix, path)
    say_not_sent(path, plan, follow_links)
    began, changed = time.monotonic(), plural(len(plan.changed), "file")
    say(f"{changed} of {len(plan.files):,} to send, {size(plan.bytes)}")
    data.push(bucket, plan, tables.count_up("Sent", plan.bytes, in_bytes=True))
    if plan.changed:
        say(f"Sent {size(plan.bytes)} in {time.monotonic() - began:.1f} s")
    extra = plural(len(plan.extra), "file")
    if plan.extra and delete:
        say("\n".join(f"gs://{bucket.name}/{name}" for name in tables.shorten(plan.extra)))
        confirm(f"Delete {extra}?", yes)
        data.delete(bucket, plan.extra)
        say(f"Deleted {extra} in the bucket")
    elif plan.extra:
        say(f"The bucket keeps {extra} not in {path} (to delete them: --delete)")
    counts = {"files": len(plan.files), "sent": len(plan.changed), "bytes_sent": plan.bytes}
    print_data({"data": address, **counts, "left_out": plan.left_out}, address, as_json)


def say_not_sent(path: Path, plan: "Push", follow_links: bool) -> None:
    """Name what is not sent; raise BergError for links out of the folder, or if nothing is left."""
    from berg.commands.tables import shorten

    links = [f"{name} leads to {target}" for name, target in plan.leading_out.items()]
    if links and not follow_links:
        say("\n".join(shorten(links)))
        raise BergError(
            f"{path} has {plural(len(links), 'link')} to files elsewhere, and nothing was sent. "
            "Delete them, or send those files: --follow-links"
        )
    for line in shorten([f"{left} ({why})" for left, why in plan.left_out.items()]):
        say(f"Left out: {line}")
    if not plan.files:
        raise BergError(f"{path} has no files to send")


@data.command()
@click.argument("where", metavar="DATA")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@json_option
def pull(where: str, folder: Path, as_json: bool) -> None:
    """Download a data set to this computer; only what changed.

    \b
    berg data pull mnist ~/mnist
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.google import data
    from berg.google.fetch import fetch

    bucket, prefix = data.find(settings, where)
    listed = existing(bucket, prefix)
    done, show = 0, tables.count_up("Fetched", sum(blob.size for blob in listed), in_bytes=True)

    def note(blob: "Listed") -> None:
        nonlocal done
        done += blob.size
        show(done)

    fetched, files, missing = fetch(bucket, prefix, folder, done=note, listed=listed)
    say(f"{fetched:,} of {plural(files, 'file')} new or changed")
    print_data({"folder": str(folder), "files": files, "fetched": fetched}, folder, as_json)
    raise_missing(missing)


@data.command()
@click.argument("where", metavar="[DATA]", required=False)
@json_option
def ls(where: str | None, as_json: bool) -> None:
    """List the data sets, or the files of one.

    \b
    berg data ls
    berg data ls mnist
    """
    settings = config.load_ready()
    from berg import job
    from berg.google import data
    from berg.google.storage import Bucket

    if where:
        bucket, prefix = data.find(settings, where)
        blobs = existing(bucket, prefix)
        files = [{"path": each.name.removeprefix(prefix), "bytes": each.size} for each in blobs]
        lines = [f"{file['bytes']:>14,}  {file['path']}" for file in files]
        print_data(files, "\n".join(lines), as_json)
        return
    rows: list[dict[str, Any]] = []
    for name, blobs in data.sets(Bucket(settings)).items():
        total = sum(blob.size for blob in blobs)
        moments = [blob.updated.timestamp() for blob in blobs if blob.updated]
        updated = job.timestamp(max(moments)) if moments else ""
        rows.append({"name": name, "files": len(blobs), "bytes": total, "updated_at": updated})
    if not rows and not as_json:
        say("There are no data sets yet. Send one: berg data push FOLDER NAME")
        return
    cells = [
        [row["name"], f"{row['files']:,}", size(row["bytes"]), row["updated_at"][:16]]
        for row in rows
    ]
    print_data(rows, table([["NAME", "FILES", "SIZE", "UPDATED"], *cells]), as_json)


@data.command()
@click.argument("where", metavar="DATA")
@yes_option
@answer_option
def rm(where: str, yes: bool) -> None:
    """Delete a data set, after showing its size.

    Jobs that need it and have not started yet will fail.

    \b
    berg data rm mnist
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.google import data

    bucket, prefix = data.find(settings, where)
    blobs = existing(bucket, prefix)
    total = size(sum(blob.size for blob in blobs))
    say(f"gs://{bucket.name}/{prefix}: {plural(len(blobs), 'file')}, {total}")
    confirm("Delete it permanently?", yes)
    data.delete(bucket, [blob.name for blob in blobs], tables.count_up("Deleting", len(blobs)))
    done("Deleted.", name=where, done="deleted", objects=len(blobs))


def existing(bucket: "Bucket", prefix: str) -> "list[Listed]":
    """Return the objects of a folder; raise BergError if there are none."""
    blobs = list(bucket.list(prefix))
    if not blobs:
        raise BergError(
            f"there is nothing in gs://{bucket.name}/{prefix}. See what there is: berg data ls"
        )
    return blobs


COMMANDS = (log, tail, fetch, data)
