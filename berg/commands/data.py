"""The commands about data sets in the bucket: push, pull, ls, rm."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from berg import BergError, config, plain
from berg.commands.terminal import json_option, say, yes_option

if TYPE_CHECKING:
    from berg.google.data import Push
    from berg.google.storage import Bucket, Listed

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
    from berg import words
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
    changed = words.plural(len(plan.changed), "file")
    say(f"{changed} of {len(plan.files):,} to send, {words.size(size)}")
    data.push(bucket, plan, bytes_shown("Sent", size))
    seconds = time.monotonic() - began
    if plan.changed:
        say(f"Sent {words.size(size)} in {seconds:.1f} s")
    extra = words.plural(len(plan.extra), "file")
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
    from berg import words

    links = [f"{name} leads to {target}" for name, target in plan.leading_out.items()]
    for line in links[:SHOWN]:
        say(line)
    if len(links) > SHOWN:
        say(f"… and {len(links) - SHOWN:,} more")
    raise BergError(
        f"{path} has {words.plural(len(links), 'link')} to files elsewhere, and nothing was sent. "
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
    from berg import words
    from berg.commands.results import say_left_out
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
        say(f"{fetched:,} of {words.plural(files, 'file')} new or changed")
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
    from berg import words
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
            count, size = words.plural(row["files"], "file"), words.size(row["bytes"])
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
    from berg import words
    from berg.commands import tables
    from berg.google import data

    bucket, prefix = data.find(settings, where)
    blobs = existing(bucket, prefix)
    count, size = words.plural(len(blobs), "file"), words.size(sum(blob.size for blob in blobs))
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
    from berg import words

    began, shown = time.monotonic(), [0.0]
    is_worth_it = total > 4 << 20 and sys.stderr.isatty()

    def tell(done: int) -> None:
        now, is_whole = time.monotonic(), done >= total
        if not is_worth_it or not (is_whole or now - shown[0] > 0.2):
            return
        shown[0] = now
        speed = words.size(done / max(now - began, 0.1))
        line = f"{what} {words.size(done)} of {words.size(total)}, {speed}/s "
        plain.redraw(line, is_whole)

    return tell


COMMANDS = (data,)
