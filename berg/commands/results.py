"""The commands that show what a job printed and bring what it left: log, tail, fetch.

The commands about data sets in the bucket: push, pull, ls, rm.
"""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from berg import BergError, config, plain
from berg.commands.terminal import json_option, name_argument, ready, say, yes_option

if TYPE_CHECKING:
    from berg.google.data import Push
    from berg.google.storage import Bucket, Listed
    from berg.job import State
    from berg.laptop import results
    from berg.laptop.jobs import Entry

LAST_LINES = 20  # of the log of a job that failed

MOST_NAMED = 20  # files that come; of more only their number and bytes are said

FOLDERS = 1000  # beside a job's own that are looked at: other jobs may write such records

PAUSE = 10  # seconds between two passes of `fetch --watch`


def watch(
    settings: config.Config,
    name: str,
    quiet: bool = False,
    machine: str | None = None,
    color: bool = False,
) -> "State | None":
    """Follow a job to its end; return its final state, or None for a machine without a job.

    With `quiet` its log is not shown, but for the end of it if the job does not succeed.
    """
    from berg.commands import tables
    from berg.laptop import logs

    output = tables.Interleaved(sys.stdout.buffer, color)
    shown = [""]

    def show_progress(found: "Entry") -> None:
        line = tables.progress(found)
        is_shown = quiet or (found.state is not None and found.state.state == "SUBMITTED")
        if line and line != shown[-1] and is_shown:
            say(line)
        shown.append(line)

    def write_log(source: str, chunk: bytes) -> None:
        output.write(source, chunk)

    try:
        write = None if quiet else write_log
        state = logs.follow(settings, name, write, machine, on_change=show_progress)
    except KeyboardInterrupt:
        say(tables.left(name, f"berg tail {name}"))
        raise
    output.end()
    if state is None:
        return None
    if quiet and state.state != "SUCCEEDED":
        say_end_of_log(settings, name, state)
    say(tables.outcome(name, state))
    return state


def say_end_of_log(settings: config.Config, name: str, state: "State") -> None:
    """Say the last lines of a job's log, but for the one that tells its final state."""
    from berg.google.storage import Bucket
    from berg.laptop import records

    last_word = f"[berg] Job {name} {state.state}"
    lines = records.last_lines(Bucket(settings), name, LAST_LINES)
    lines = [line for line in lines if not line.startswith(last_word)]
    if lines:
        say(f"The end of the log (all of it: berg log {name}):\n" + "\n".join(lines) + "\n")


def exit_code(state: "State | None") -> int:
    """Return the exit code that tells how a job went."""
    if state is None or state.state == "SUCCEEDED":
        return 0
    return state.exit_code or 1


color_option = click.option("--color", is_flag=True, help="Keep colours, also in a pipe.")

machine_option = click.option("--machine", metavar="NAME", help="Only that machine of a cluster.")


@click.command()
@name_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow it until the job ends: berg tail.")
@machine_option
@color_option
def log(name: str, follow: bool, machine: str | None, color: bool) -> None:
    """Print the whole log of a job, also after its machine is gone.

    On a terminal it keeps the colours that programs printed, elsewhere with --color; nothing else
    that would steer a terminal is printed.

    With --follow it goes on until the job ends; the exit code is then the command's.

    \b
    berg log digits-1121-0930-x7k | grep loss
    berg log -f digits-1121-0930-x7k
    """
    settings, name = ready(name)
    if follow:
        sys.exit(exit_code(watch(settings, name, machine=machine, color=color)))
    from berg.commands import tables
    from berg.laptop import jobs, logs

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

    The exit code is the command's. The lines of a cluster's machines are mixed, each with the name
    of its machine.

    \b
    berg tail digits-1121-0930-x7k
    """
    settings, name = ready(name)
    sys.exit(exit_code(watch(settings, name, machine=machine, color=color)))


@click.command()
@name_argument()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--watch", "keep", is_flag=True, help="Fetch again every 10 seconds until the job is over."
)
@json_option
def fetch(name: str, folder: Path | None, keep: bool, as_json: bool) -> None:
    """Bring results to this computer; only what changed.

    NAME is a job, a sweep, or a folder of results. FOLDER is ~/berg_results/… by default, the same
    tree as on the machines. A sweep comes with results.csv, a row for each job: parameters, state,
    exit code, and the last value of each metric in the job's metrics.jsonl, if it wrote one
    ({"loss": 0.1} a line). Nothing below .git, .hg or .svn comes: programs here would obey it.

    \b
    berg fetch digits-1121-0930-x7k
    berg fetch sweep1 ./sweep1 --watch
    """
    settings, name = ready(name)
    from berg.laptop import results

    found = results.look_up(settings, name, not keep)
    if found.is_sweep:
        fetch_sweep(settings, name, folder, keep, as_json)
    else:
        fetch_job(settings, found, folder, keep, as_json)


@dataclass
class Fetched:
    """What passes over results have brought."""

    new: int = 0  # files that were new or changed
    files: int = 0
    missing: dict[str, Exception] = field(default_factory=dict)  # files that could not be brought
    jobs: list[str] = field(default_factory=list)  # of a sweep, those whose results they are

    def add(self, counts: tuple[int, int, dict[str, Exception]]) -> int:
        """Add what a fetch returned; return how many files were new."""
        new, files, missing = counts
        self.new += new
        self.files += files
        self.missing |= missing
        return new


def fetch_job(
    settings: config.Config, asked: "results.Found", folder: Path | None, keep: bool, as_json: bool
) -> None:
    """Bring the results of a job, or a folder of results; with `keep` until the job is over."""
    from berg.google.fetch import fetch
    from berg.google.storage import Bucket
    from berg.laptop import results

    prefix, name, stored = asked.prefix, asked.name, asked.stored
    bucket, target = Bucket(settings), folder or Path.home() / prefix
    said: set[str] = set()
    for _ in passes():
        state = results.state_of(settings, stored) if stored else None
        with FileList() as listed:
            found = Fetched()
            found.add(fetch(bucket, prefix, target, listed.add, listed=asked.begun))
            if stored:
                whose = (name, stored.state.job.user)
                found.add(fetch_beside(bucket, whose, prefix, folder, listed.add))
        if not keep or state is None or state.final:
            break
        say_trouble(found.missing, said)
    if stored:
        check_not_removed(bucket, [name])
    check_found(found, f"gs://{bucket.name}/{prefix}")
    print_fetched(found, target, folder or Path.home() / "berg_results", as_json)
    if state:
        say_why(name, state)
    raise_missing(found.missing)


def print_fetched(found: Fetched, target: Path, fetched: Path, as_json: bool) -> None:
    """Print how many files were brought, and where to."""

    if as_json:
        about = {"folder": str(target), "files": found.files, "fetched": found.new}
        plain.echo(json.dumps(about))
        return
    say(f"{found.new} of {plain.plural(found.files, 'file')} new or changed")
    say_if_code(target, fetched)
    plain.echo(target)


def say_if_code(folder: Path, fetched: Path) -> None:
    """Say that what was brought to a folder is code of a repo from now on, if a repo around all
    that was fetched does not ignore it.
    """
    from berg.code import snapshot

    root = snapshot.repo_that_takes(folder, fetched)
    if root is None:
        return
    path = folder.resolve().relative_to(root)
    ignore = shlex.join(["echo", f"/{path}/"])
    say(
        f"This is in the repo {root}, and goes with its next job as code. Leave it here:\n"
        f"  $ {ignore} >>{shlex.quote(str(root / snapshot.IGNORE_FILE))}"
    )


def check_not_removed(bucket: "Bucket", names: list[str]) -> None:
    """Raise BergError if a job was deleted meanwhile, or is being deleted: what was listed of it
    may have been the rest.
    """
    from berg import states

    left = {each.name: each.state for each in states.several(bucket, names)}
    for name in names:
        if name not in left or left[name].removed_by:
            raise BergError(f"{name} was deleted meanwhile: not all of its results were brought")


def check_found(found: Fetched, where: str) -> None:
    """Raise BergError if there was nothing to bring."""
    if not found.files and not found.missing:
        raise BergError(f"there is nothing in {where}. See: berg list")


def passes() -> Iterator[None]:
    """Begin passes until the caller breaks off, with a pause between two."""
    while True:
        yield
        time.sleep(PAUSE)


def fetch_beside(
    bucket: "Bucket",
    whose: tuple[str, str],
    prefix: str,
    folder: Path | None,
    on_file: Callable[[str, int], None] = lambda path, size: None,
) -> tuple[int, int, dict[str, Exception]]:
    """Bring what a job wrote to other folders than its own; FOLDER then stands for berg_results.

    `whose`: the names of the job and of its user. Any job can claim to be this one: nothing is
    brought to the top of berg_results, or from another user's results.

    Return what fetch() returns.
    """
    from berg import job
    from berg.google import fetch, mirror
    from berg.laptop import results

    name, user = whose
    root, _, own = prefix.partition("/")
    folders = mirror.recorded_folders(bucket, job.folders_prefix(name), FOLDERS + 1)
    if len(folders) > FOLDERS:
        say(f"{name} says that it wrote to more than {FOLDERS:,} folders; others are left out")
    found = mirror.beside(bucket, f"{root}/", own.rstrip("/"), folders[:FOLDERS], name)
    by_folder: dict[str, list[Any]] = {}
    for blob in found:
        by_folder.setdefault(blob.name.removeprefix(f"{root}/").rpartition("/")[0], []).append(blob)
    others = results.of_others(bucket, set(by_folder) - {""}, user)
    for each in sorted({"", *others} & by_folder.keys()):
        why = "another user's" if each else "above all results"
        where = shlex.quote(f"gs://{bucket.name}/{root}/{each}".rstrip("/"))
        say(
            f"Left out: {plain.plural(len(by_folder.pop(each)), 'file')} in {where}, which is {why}"
        )
    listed = [blob for each in by_folder.values() for blob in each]
    target = folder or Path.home() / root
    counts = fetch.fetch(bucket, f"{root}/", target, on_file, listed=listed)
    _, files, _ = counts
    if files == 1:
        say(f"1 of its files is in other folders of {target}")
    elif files:
        say(f"{files} of its files are in other folders of {target}")
    return counts


class FileList:
    """Names the files that come, with their bytes; those after the first ones in one line at the
    end.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []  # several threads add to it

    def __enter__(self) -> "FileList":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and len(self.sizes) > MOST_NAMED:
            say(f"{sum(self.sizes):>14,}  in {len(self.sizes):,} files, the others included")

    def add(self, path: str, size: int) -> None:
        self.sizes.append(size)
        if len(self.sizes) <= MOST_NAMED:
            say(f"{size:>14,}  {plain.name(path)}")


def say_trouble(left: dict[str, Exception], said: set[str]) -> None:
    """Say at once what keeps files from coming, such as a full disk; each reason once."""
    from berg.google.api import explain
    from berg.google.fetch import RepoFile

    for path, error in left.items():
        if isinstance(error, RepoFile):
            continue
        why = explain(error) or getattr(error, "strerror", None) or str(error)
        if why not in said:
            said.add(why)
            say(f"{plain.name(path)} was not fetched: {why}. Trying again every {PAUSE} s")


def tell_missing(states: "dict[str, State]", left: dict[str, Exception]) -> None:
    """Say what the jobs could not save; raises BergError if something of what they saved could not
    be brought.
    """
    for name, state in states.items():
        say_why(name, state)
    raise_missing(left)


def say_why(name: str, state: "State") -> None:
    """Say why a job ended or goes as it does, if there is a reason."""
    if state.reason:
        say(f"{name} {state.state}: {state.reason}")


def say_left_out(left: dict[str, Exception]) -> None:
    """Say which files of repos were left out, the first of them by name."""
    from berg.google.fetch import RepoFile

    names = [path for path, why in left.items() if isinstance(why, RepoFile)]
    if names:
        say(
            f"Left out: {plain.plural(len(names), 'file')} below .git, .hg or .svn, such as "
            f"{plain.name(names[0])}: programs on this computer would obey them"
        )


def raise_missing(left: dict[str, Exception]) -> None:
    """Name the files that could not be brought, and raise BergError if there are any."""
    from berg.google.api import explain
    from berg.google.fetch import RepoFile

    say_left_out(left)
    left = {path: why for path, why in left.items() if not isinstance(why, RepoFile)}
    for path, why in left.items():
        say(f"{plain.name(path)} was not fetched: {explain(why) or why}")
    if left:
        files = plain.plural(len(left), "file")
        raise BergError(f"{files} could not be fetched. Once it is mended, fetch again: berg fetch")


def fetch_sweep(
    settings: config.Config, name: str, folder: Path | None, keep: bool, as_json: bool
) -> None:
    """Bring the results of all jobs of a sweep, and a table of them: results.csv."""
    from berg.google.storage import Bucket
    from berg.laptop import sweep

    bucket, target = Bucket(settings), folder or Path.home() / "berg_results"
    table = (folder or target / name) / "results.csv"
    said: set[str] = set()
    for _ in passes():
        entries = [entry for entry in sweep.entries(settings, name) if entry.state]
        found = Fetched()
        for entry in entries:
            fetch_member(bucket, entry, target, found)
        sweep.write_results(entries, target, table)
        if not keep or all_over(entries):
            break
        say_trouble(found.missing, said)
    check_not_removed(bucket, found.jobs)
    about = {"folder": str(target), "table": str(table)}
    print_sweep({**about, "files": found.files, "fetched": found.new}, len(entries), as_json)
    lost = {entry.name: entry.state for entry in entries if entry.state and entry.state.lost}
    tell_missing(lost, found.missing)


def print_sweep(about: dict[str, Any], num_jobs: int, as_json: bool) -> None:
    """Print how many files of a sweep were brought, and where its table is."""

    if as_json:
        plain.echo(json.dumps(about))
        return
    files, jobs = plain.plural(about["files"], "file"), plain.plural(num_jobs, "job")
    say(f"{about['fetched']} of {files} of {jobs} new or changed")
    say_if_code(Path(about["folder"]), Path(about["folder"]))
    plain.echo(about["table"])


def all_over(entries: "list[Entry]") -> bool:
    return all(entry.state and entry.state.final for entry in entries)


def fetch_member(bucket: "Bucket", entry: "Entry", target: Path, found: Fetched) -> None:
    """Bring the results of one job of a sweep."""
    from berg.google.fetch import fetch

    state = entry.state
    assert state
    results = entry.to_dict()["results_dir"]
    prefix = f"berg_results/{results}/"
    found.jobs.append(entry.name)
    new = found.add(fetch(bucket, prefix, target / results))
    if state.elsewhere or state.state != "SUCCEEDED":
        new += found.add(fetch_beside(bucket, (entry.name, state.job.user), prefix, target))
    if new:
        say(f"{new:>6} new  {results}")


SHOWN = 8  # files that are named


@click.group()
def data() -> None:
    """Keep data sets in the bucket, for jobs to take along.

    A data set is a folder `data/NAME/` of plain files in the bucket; DATA is its NAME, or the
    address of any folder, such as gs://my-bucket/folder. `berg run --data NAME` brings it to the
    machine before the command begins.

    \b
    berg data push ~/mnist mnist
    berg run --data mnist "python train.py --data=/root/data/mnist"
    """


@data.command()
@click.argument("path", metavar="FOLDER|FILE", type=click.Path(path_type=Path))
@click.argument("where", metavar="DATA")
@click.option(
    "--delete", is_flag=True, help="Delete what the bucket has and FOLDER has not, after asking."
)
@click.option("--follow-links", is_flag=True, help="Send files outside of FOLDER that links name.")
@yes_option
@json_option
def push(
    path: Path, where: str, delete: bool, follow_links: bool, yes: bool, as_json: bool
) -> None:
    """Send a folder or a file to the bucket; only what changed.

    Files are compared by size and crc32c. Interrupted, it goes on where it was when it is called
    again. Links to files in FOLDER are sent as those files. Links to files elsewhere are refused
    without --follow-links. Links to folders are left out, and named.

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
    plan = data.plan_push(bucket, prefix, path)
    if plan.leading_out and not follow_links:
        refuse_links(path, plan)
    say_not_sent(plan)
    if not plan.files:
        raise BergError(f"{path} has no files to send")
    size, began = plan.bytes, time.monotonic()
    changed = plain.plural(len(plan.changed), "file")
    say(f"{changed} of {len(plan.files):,} to send, {plain.size(size)}")
    data.push(bucket, plan, bytes_shown("Sent", size))
    seconds = time.monotonic() - began
    if plan.changed:
        say(f"Sent {plain.size(size)} in {seconds:.1f} s")
    extra = plain.plural(len(plan.extra), "file")
    if plan.extra and delete:
        say("\n".join(f"gs://{bucket.name}/{name}" for name in tables.shorten(plan.extra)))
        if not yes:
            click.confirm(f"Delete {extra}?", abort=True, err=True)
        data.delete(bucket, plan.extra)
        say(f"Deleted {extra} of the bucket")
    elif plan.extra:
        say(f"The bucket keeps {extra} that {path} has not (--delete)")
    if as_json:
        sent = {"files": len(plan.files), "sent": len(plan.changed), "bytes_sent": size}
        plain.echo(
            json.dumps({"data": f"gs://{bucket.name}/{prefix}", **sent, "left_out": plan.left_out})
        )
    else:
        plain.echo(f"gs://{bucket.name}/{prefix}")


def refuse_links(path: Path, plan: "Push") -> NoReturn:
    """Raise BergError with the links that lead out of the folder, the first ones of them."""

    links = [f"{name} leads to {target}" for name, target in plan.leading_out.items()]
    for line in links[:SHOWN]:
        say(line)
    if len(links) > SHOWN:
        say(f"… and {len(links) - SHOWN:,} more")
    raise BergError(
        f"{path} has {plain.plural(len(links), 'link')} to files elsewhere, and nothing was sent. "
        "Delete them, or send those files: --follow-links"
    )


def say_not_sent(plan: "Push") -> None:
    """Name the files that are not sent, the first ones of them."""
    for left, why in list(plan.left_out.items())[:SHOWN]:
        say(f"Left out: {left} ({why})")
    if len(plan.left_out) > SHOWN:
        say(f"Left out: … and {len(plan.left_out) - SHOWN:,} more")


@data.command()
@click.argument("where", metavar="DATA")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@json_option
def pull(where: str, folder: Path, as_json: bool) -> None:
    """Bring a data set to this computer; only what changed.

    \b
    berg data pull mnist ~/mnist
    """
    settings = config.load_ready()
    from berg.google import data
    from berg.google.fetch import RepoFile, fetch

    bucket, prefix = data.find(settings, where)
    listed = existing(bucket, prefix)
    total, done = sum(blob.size for blob in listed), [0]
    on_progress = bytes_shown("Brought", total)

    def note(blob: "Listed") -> None:
        done[0] += blob.size
        on_progress(done[0])

    fetched, files, left = fetch(bucket, prefix, folder, done=note, listed=listed)
    say_left_out(left)
    left = {name: error for name, error in left.items() if not isinstance(error, RepoFile)}
    for name, error in left.items():
        say(f"Not brought: {name}: {error}")
    if as_json:
        plain.echo(json.dumps({"folder": str(folder), "files": files, "fetched": fetched}))
    else:
        say(f"{fetched:,} of {plain.plural(files, 'file')} new or changed")
        plain.echo(folder)
    sys.exit(bool(left))


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
    if where:
        list_files(settings, where, as_json)
    else:
        list_sets(settings, as_json)


def list_files(settings: config.Config, where: str, as_json: bool) -> None:
    from berg.google import data

    bucket, prefix = data.find(settings, where)
    files = []
    for blob in existing(bucket, prefix):
        files.append({"path": blob.name.removeprefix(prefix), "bytes": blob.size})
    if as_json:
        plain.echo(json.dumps(files, indent=2))
        return
    for file in files:
        plain.echo(f"{file['bytes']:>14,}  {file['path']}")


def list_sets(settings: config.Config, as_json: bool) -> None:
    from berg.google import data
    from berg.google.storage import Bucket

    found = data.sets(Bucket(settings))
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "files": len(blobs),
            "bytes": sum(blob.size for blob in blobs),
            "updated_at": max(moment(blob) for blob in blobs),
        }
        for name, blobs in found.items()
    ]
    if as_json:
        plain.echo(json.dumps(rows, indent=2))
    elif not rows:
        say("There are no data sets yet. Send one: berg data push FOLDER NAME")
    else:
        width = max(map(len, found))
        for row in rows:
            count, size = plain.plural(row["files"], "file"), plain.size(row["bytes"])
            plain.echo(f"{row['name']:<{width}}  {count:>14}  {size:>9}  {row['updated_at'][:16]}")


@data.command()
@click.argument("where", metavar="DATA")
@yes_option
def rm(where: str, yes: bool) -> None:
    """Delete a data set, after showing its size.

    Jobs that want it and have not begun fail then.

    \b
    berg data rm mnist
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.google import data

    bucket, prefix = data.find(settings, where)
    blobs = existing(bucket, prefix)
    count, size = plain.plural(len(blobs), "file"), plain.size(sum(blob.size for blob in blobs))
    say(f"gs://{bucket.name}/{prefix}: {count}, {size}")
    if not yes:
        click.confirm("Delete it for good?", abort=True, err=True)
    data.delete(bucket, [blob.name for blob in blobs], tables.counter("Deleting", len(blobs)))
    say("Deleted.")


def moment(blob: "Listed") -> str:
    """Return when an object was written, "" if that is not known."""
    from berg import job

    if blob.updated is None:
        return ""
    return job.timestamp(blob.updated)


def existing(bucket: "Bucket", prefix: str) -> "list[Listed]":
    """Return the objects of a folder; raises BergError if there are none."""
    blobs = list(bucket.list(prefix))
    if not blobs:
        raise BergError(
            f"there is nothing in gs://{bucket.name}/{prefix}. See what there is: berg data ls"
        )
    return blobs


def bytes_shown(what: str, total: int) -> Callable[[int], None]:
    """Return a function that shows on a terminal how many bytes are done, and how fast."""

    began, shown = time.monotonic(), [0.0]
    is_worth_it = total > 4 << 20 and sys.stderr.isatty()

    def tell(done: int) -> None:
        now, is_whole = time.monotonic(), done >= total
        if not is_worth_it or not (is_whole or now - shown[0] > 0.2):
            return
        shown[0] = now
        speed = plain.size(done / max(now - began, 0.1))
        line = f"{what} {plain.size(done)} of {plain.size(total)}, {speed}/s "
        plain.redraw(line, is_whole)

    return tell


COMMANDS = (
    log,
    tail,
    fetch,
    data,
)
