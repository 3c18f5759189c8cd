"""The commands for what jobs print and leave, log, tail and fetch; and for data sets, data."""

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, config, plain
from berg.commands.terminal import (
    confirm,
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
    from berg.job import State
    from berg.laptop import lookup
    from berg.laptop.jobs import Entry

MOST_NAMED = 20  # fetched files; of more only their number and bytes are printed
FOLDERS = 1000  # other than a job's own that are looked at: other jobs may write such records
PAUSE = 10  # seconds between two passes of `fetch --watch`
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

    output = tables.Interleaved(sys.stdout.buffer, color)
    shown = ""

    def show_progress(found: "Entry") -> None:
        nonlocal shown
        line = tables.progress(found)
        is_submitted = found.state is not None and found.state.state == "SUBMITTED"
        if line and line != shown and (quiet or is_submitted):
            say(line)
        shown = line

    try:
        write = None if quiet else output.write
        state = logs.follow(settings, name, write, machine, on_change=show_progress)
    except KeyboardInterrupt:
        say(tables.still_running(name, f"berg tail {name}"))
        raise
    output.end()
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

    On a terminal, or with --color, it keeps the colors that programs printed. No other control
    sequence is printed. With --follow it continues until the job ends; the exit code is then the
    command's.

    \b
    berg log digits-1121-0930-x7k | grep loss
    berg log -f digits-1121-0930-x7k
    """
    settings, name = ready(name)
    from berg.commands import tables
    from berg.laptop import jobs, logs

    if follow:
        sys.exit(exit_code(watch(settings, name, machine=machine, color=color)))
    output = tables.Interleaved(sys.stdout.buffer, color)
    is_empty = True
    for source, chunk in logs.chunks(settings, name, machine):
        output.write(source, chunk)
        is_empty = is_empty and not chunk
    output.end()
    if is_empty:
        say(tables.progress(jobs.find(settings, name)))


@click.command()
@name_argument()
@machine_option
@color_option
def tail(name: str, machine: str | None, color: bool) -> None:
    """Follow the log of a job until it ends, as `berg log -f`.

    The exit code is the command's. The lines of several machines are mixed, each with the name of
    its machine.

    \b
    berg tail digits-1121-0930-x7k
    """
    settings, name = ready(name)
    sys.exit(exit_code(watch(settings, name, machine=machine, color=color)))


@click.command()
@name_argument()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--watch", "keep", is_flag=True, help="Fetch again every 10s until the job ends.")
@json_option
def fetch(name: str, folder: Path | None, keep: bool, as_json: bool) -> None:
    """Download results to this computer; only what changed.

    NAME is a job, a sweep, or a folder of results. FOLDER is ~/berg_results/… by default, the same
    tree as on the machines. A sweep comes with results.csv, which has a row for each job:
    parameters, state, exit code, and the last value of each metric in the job's metrics.jsonl
    ({"loss": 0.1} a line). Nothing in .git, .hg or .svn is downloaded: programs here would obey it.

    \b
    berg fetch digits-1121-0930-x7k
    berg fetch sweep1 ./sweep1 --watch
    """
    settings, name = ready(name)
    from berg.laptop import lookup

    found = lookup.look_up(settings, name, not keep)
    if found.is_sweep:
        fetch_sweep(settings, name, folder, keep, as_json)
    else:
        fetch_job(settings, found, folder, keep, as_json)


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

    def print(self, target: Path, around: Path, jobs: str, csv: Path | None, as_json: bool) -> None:
        """Print how many files were downloaded, and where to."""
        about = {"folder": str(target), "files": self.files, "fetched": self.new}
        if csv:
            about["table"] = str(csv)
        say(f"{self.new} of {plural(self.files, 'file')}{jobs} new or changed")
        say_if_code(target, around)
        print_data(about, csv or target, as_json)


def fetch_job(
    settings: config.Config, asked: "lookup.Found", folder: Path | None, keep: bool, as_json: bool
) -> None:
    """Fetch the results of a job, or a folder of results; with `keep` until the job ends."""
    from berg.google.storage import Bucket
    from berg.laptop import lookup

    prefix, name, stored = asked.prefix, asked.name, asked.stored
    bucket, target = Bucket(settings), folder or Path.home() / prefix
    reported: set[str] = set()
    while True:
        state = lookup.state_of(settings, stored) if stored else None
        found = fetch_once(bucket, asked, target, folder)
        if not keep or state is None or state.final:
            break
        say_trouble(found.missing, reported)
        time.sleep(PAUSE)
    if stored:
        check_not_removed(bucket, [name])
    if not found.files and not found.missing:
        raise BergError(f"there is nothing in gs://{bucket.name}/{prefix}. See: berg list")
    found.print(target, folder or Path.home() / "berg_results", "", None, as_json)
    if state:
        say_why(name, state)
    raise_missing(found.missing)


def fetch_once(
    bucket: "Bucket", asked: "lookup.Found", target: Path, folder: Path | None
) -> Fetched:
    """Fetch the present results of a job, also from other folders, or a folder of results."""
    from berg.google.fetch import fetch

    found, listed = Fetched(), FileList()
    found.add(fetch(bucket, asked.prefix, target, listed.add, listed=asked.begun))
    if asked.stored:
        whose = (asked.name, asked.stored.state.job.user)
        found.add(fetch_beside(bucket, whose, asked.prefix, folder, listed.add))
    listed.end()
    return found


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
        entries, found = sweep.entries(settings, name), Fetched()
        states = {entry.name: entry.state for entry in entries if entry.state}
        for each, state in states.items():
            fetch_member(bucket, each, state, target, found)
        sweep.write_results([entry for entry in entries if entry.state], target, csv)
        if not keep or all(state.final for state in states.values()):
            break
        say_trouble(found.missing, reported)
        time.sleep(PAUSE)
    check_not_removed(bucket, [*states])
    found.print(target, target, f" of {plural(len(states), 'job')}", csv, as_json)
    say_lost(states)
    raise_missing(found.missing)


def fetch_member(bucket: "Bucket", name: str, state: "State", target: Path, found: Fetched) -> None:
    """Fetch the results of one job of a sweep."""
    from berg.google.fetch import fetch

    folder = state.job.results_dir
    prefix = f"berg_results/{folder}/"
    new = found.add(fetch(bucket, prefix, target / folder))
    if state.elsewhere or state.state != "SUCCEEDED":
        new += found.add(fetch_beside(bucket, (name, state.job.user), prefix, target))
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
    whose: tuple[str, str],
    prefix: str,
    folder: Path | None,
    on_file: Callable[[str, int], None] = lambda path, size: None,
) -> tuple[int, int, dict[str, Exception]]:
    """Fetch what a job wrote to other folders than its own, below FOLDER or ~/berg_results.

    `whose` has the names of the job and its user. Any job can claim to be this one: nothing is
    written to the top of FOLDER, and nothing is read from another user's results. Return what
    fetch() returns.
    """
    from berg import job
    from berg.google import fetch, mirror
    from berg.laptop import lookup

    name, user = whose
    root, _, own = prefix.partition("/")
    folders = mirror.recorded_folders(bucket, job.folders_prefix(name), FOLDERS + 1)
    if len(folders) > FOLDERS:
        say(f"{name} claims to have written to more than {FOLDERS:,} folders; others are left out")
    by_folder: dict[str, list[Any]] = {}
    own, folders = own.rstrip("/"), folders[:FOLDERS]
    for blob in mirror.in_other_folders(bucket, f"{root}/", own, folders, name):
        by_folder.setdefault(blob.name.removeprefix(f"{root}/").rpartition("/")[0], []).append(blob)
    others = lookup.of_others(bucket, set(by_folder) - {""}, user)
    for each in sorted({"", *others} & by_folder.keys()):
        why = "another user's" if each else "above all results"
        where = shlex.quote(f"gs://{bucket.name}/{root}/{each}".rstrip("/"))
        say(f"Left out: {plural(len(by_folder.pop(each)), 'file')} in {where}, which is {why}")
    listed = [blob for each in by_folder.values() for blob in each]
    target = folder or Path.home() / root
    counts = fetch.fetch(bucket, f"{root}/", target, on_file, listed=listed)
    if files := counts[1]:
        say(f"{files} of its files {'is' if files == 1 else 'are'} in other folders of {target}")
    return counts


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
    from berg.google.fetch import RepoFile

    for path, error in missing.items():
        why = reason(error)
        if why not in reported and not isinstance(error, RepoFile):
            reported.add(why)
            say(f"{plain.name(path)} was not fetched: {why}. Trying again every {PAUSE} s")


def raise_missing(missing: dict[str, Exception]) -> None:
    """Name the files that were left out or failed; raise BergError if any failed."""
    from berg.google.fetch import RepoFile

    left_out = [path for path, error in missing.items() if isinstance(error, RepoFile)]
    if left_out:
        say(
            f"Left out: {plural(len(left_out), 'file')} below .git, .hg or .svn, such as "
            f"{plain.name(left_out[0])}: programs on this computer would obey them"
        )
    failed = {path: error for path, error in missing.items() if path not in left_out}
    for path, error in failed.items():
        say(f"{plain.name(path)} was not fetched: {reason(error)}")
    if failed:
        files = plural(len(failed), "file")
        raise BergError(f"{files} could not be fetched. Fix the cause, then run this command again")


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

    Files are compared by size and crc32c. After an interruption the same command continues. Links
    to files in FOLDER are sent as those files. Links to files elsewhere are refused without
    --follow-links. Links to folders are left out, and named.

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
        updated = max(job.timestamp(blob.updated) if blob.updated else "" for blob in blobs)
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
    show = tables.count_up("Deleting", len(blobs))
    data.delete(bucket, [blob.name for blob in blobs], show)
    say("Deleted.")


def existing(bucket: "Bucket", prefix: str) -> "list[Listed]":
    """Return the objects of a folder; raise BergError if there are none."""
    blobs = list(bucket.list(prefix))
    if not blobs:
        raise BergError(
            f"there is nothing in gs://{bucket.name}/{prefix}. See what there is: berg data ls"
        )
    return blobs


COMMANDS = (log, tail, fetch, data)
