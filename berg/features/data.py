"""Data sets: folders of plain files in the bucket, data/NAME/, that jobs copy to their disk (--data) or
read as they are opened (--mount, by Google's gcsfuse).

No versions, empty folders or permissions, and one writer at a time. An address of any other folder,
gs://BUCKET/FOLDER, may stand for NAME.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice, permutations
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from berg import BergError, google, install, terminal
from berg.bucket import THREADS, Bucket, Changed, Object, Section, checksum
from berg.code import ROOT
from berg.config import Config
from berg.feature import Feature
from berg.fetch import Fetch
from berg.google import GoogleError
from berg.job import now
from berg.moments import Row, bring_all, is_plain, is_there, misnamed
from berg.options import option

if TYPE_CHECKING:
    from berg.run import Plan
    from berg.worker import Run

T = TypeVar("T")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
OURS = ("/root/berg", "/root/berg_results")
# Folders of every Linux, and of each machine, that a mount would hide.
SYSTEM = ["bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var"]
MOST = 100_000  # files of a mount that are counted
TRIES = 3  # for a file that changes while it is sent
READERS = [
    f"roles/storage.{role}" for role in ("admin", "objectAdmin", "objectUser", "objectViewer")
]
CACHE = ROOT / "berg/mounts"  # of what was read


@dataclass
class Data(Feature):
    data: list[str] = option(
        "--data", default=[], multiple=True, metavar="NAME[:PATH]",
        help="Copy a data set, or gs://BUCKET/FOLDER, to /root/data/NAME or PATH.",
    )  # fmt: skip
    mount: list[str] = option(
        "--mount", default=[], multiple=True, metavar="NAME[:PATH]",
        help="The same, read from the bucket when it is opened.",
    )  # fmt: skip
    counted: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False)  # at the submit

    def change(self, plan: Plan) -> None:
        copies, mounts = [*map(wanted, self.data)], [wanted(text, True) for text in self.mount]
        places, mounted = [*copies, *mounts], {str(path) for _, path in mounts}
        for one, other in permutations([str(path) for _, path in places], 2):
            if f"{one}/".startswith(f"{other}/") and {one, other} & mounted:
                raise BergError(f"--mount: {one} is inside {other}. Give another place: NAME:PATH")
        if not plan.ended:
            copied = {name for name, _ in copies}
            self.counted = {
                name: count(plan.config, name, is_mount=name not in copied) for name, _ in places
            }
            plan.job.features["Data"] = self.record()
        size = sum(self.counted[name]["bytes"] for name, _ in copies) / 1e9
        disk = int(plan.request["disks"][0]["initializeParams"]["diskSizeGb"])
        image = image_gb(plan.config, plan.job.image)
        if size + image > disk:
            raise BergError(
                f"the data has {size:.0f} GB, the image {image}, and the disk {disk}. Give a larger "
                f"one: --disk-gb {size + image + 10:.0f}, or read the data in place: --mount"
            )
        plan.rows["Data"] = "\n".join(
            f"{name}: {self.counted[name]['files']:,} files, "
            f"{in_words(self.counted[name]['bytes'])}, at {path}"
            + (", mounted" if str(path) in mounted else "")
            for name, path in places
        )

    def prepare(self, run: Run) -> None:
        for text in self.data:
            bring(run, *wanted(text), self.counted)

    def around(self, run: Run) -> AbstractContextManager[None]:
        for text in self.mount:  # after the installation, which may bring gcsfuse
            mount(run, *wanted(text), len(self.mount))
        places = [Path(wanted(text)[1]) for text in (*self.data, *self.mount)]
        run.folders += [path for path in places if path not in run.folders]
        return nullcontext()


def find(config: Config, name: str) -> tuple[Bucket, str]:
    """Bucket and prefix of NAME or gs://BUCKET/FOLDER."""
    if not name.startswith("gs://"):
        if not re.fullmatch(NAME, name):
            raise BergError(
                f"{name!r} cannot be the name of a data set: letters, digits, dots and dashes, as "
                "in mnist-v2"
            )
        return Bucket(config), f"data/{name}/"
    bucket, _, folder = name.removeprefix("gs://").partition("/")
    if not bucket or not folder.strip("/"):
        raise BergError(f"{name} names no folder of a bucket. Give it as gs://BUCKET/FOLDER")
    return Bucket(replace(config, bucket=bucket)), f"{folder.strip('/')}/"


def wanted(text: str, is_mount: bool = False) -> tuple[str, PurePosixPath]:
    """Name, and place on the machine, of NAME[:PATH]."""
    scheme = "gs://" if text.startswith("gs://") else ""
    name, _, path = text.removeprefix(scheme).partition(":")
    name = scheme + name.rstrip("/")
    place = PurePosixPath(path or f"{ROOT}/data/{name.rpartition('/')[2]}")
    is_ours = any(f"{place}/".startswith(f"{folder}/") for folder in OURS)
    if not place.is_absolute() or {"..", ":"} & {*place.parts} or len(place.parts) < 2:
        raise BergError(f"{text}: {place} is no full path, as in {name}:/mnt/data")
    hides = place.parts[1] in SYSTEM or str(place.parent) == "/root/code"
    if is_ours or str(place) in ("/root", "/root/code") or (is_mount and hides):
        raise BergError(
            f"{text}: {place} has files of others. Give another place: {name}:/mnt/data"
        )
    return name, place


def objects(config: Config, name: str, most: int | None = None) -> list[Object]:
    """Those of a data set, or none; raise BergError without its bucket."""
    bucket, prefix = find(config, name)
    try:
        return [item for item in islice(bucket.list(prefix), most) if item.name != prefix]
    except GoogleError as error:
        if error.status != 404:
            raise
        raise BergError(f"{name}: there is no bucket {bucket.config.bucket!r}") from None


def listed(config: Config, name: str, most: int | None = None) -> list[Object]:
    """The objects of a data set; raise BergError without any, or without the right to see them."""
    bucket, prefix = find(config, name)
    try:
        items = objects(config, name, most)
    except GoogleError as error:
        if error.status != 403:
            raise
        account = getattr(config.credentials, "service_account_email", "")  # on a machine
        member = f"serviceAccount:{account}" if account else "user:YOUR_ADDRESS"
        raise BergError(f"{name} may not be read. {grant(bucket, member)}") from None
    if not items:
        raise BergError(
            f"there is nothing in gs://{bucket.config.bucket}/{prefix}. Send it: berg data push "
            f"FOLDER {name} (see what there is: berg data ls)"
        )
    return items


def grant(bucket: Bucket, member: str) -> str:
    return (
        "An administrator of the bucket can allow it: gcloud storage buckets "
        f"add-iam-policy-binding gs://{bucket.config.bucket} --member={member} "
        "--role=roles/storage.objectViewer"
    )


def count(config: Config, name: str, is_mount: bool) -> dict[str, Any]:
    """What the record has of a data set."""
    items = listed(config, name, MOST if is_mount else None)
    if find(config, name)[0].config.bucket != config.bucket and config.service_account:
        warn_of_rights(config, find(config, name)[0])
    size = sum(item.size for item in items)
    return {"files": len(items), "bytes": size, "checksum": fingerprint(items)}


def image_gb(config: Config, image: str) -> int:
    base = config.endpoint or "https://compute.googleapis.com"
    found = google.find(config, f"{base}/compute/v1/{image}", fields="diskSizeGb")
    return int((found or {}).get("diskSizeGb", 0))


def warn_of_rights(config: Config, bucket: Bucket) -> None:
    """Warn if the policy of another bucket does not let the machines' account read it."""
    from google.api_core.exceptions import Forbidden

    account = f"serviceAccount:{config.service_account}"
    with suppress(Forbidden):  # then nobody here can tell
        bindings = bucket.client.get_iam_policy(requested_policy_version=3).bindings
        readers = {who for row in bindings if row["role"] in READERS for who in row["members"]}
        if not readers & {"allUsers", "allAuthenticatedUsers", account}:
            terminal.warn(
                f"machines may be refused gs://{bucket.config.bucket}. {grant(bucket, account)}"
            )


def fingerprint(items: Iterable[Object]) -> str:
    """A hash of the content of a data set."""
    lines = sorted(f"{item.name} {item.crc}\n" for item in items)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def in_words(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


# --- on a machine


def bring(run: Run, name: str, place: PurePosixPath, counted: dict[str, Any]) -> None:
    """Download the files of a data set that are not here yet."""
    bucket, prefix = find(run.config, name)
    items = [item for item in listed(run.config, name) if not item.name.endswith("/")]
    run.say(f"Downloading {name}: {len(items):,} files, {in_words(sum(i.size for i in items))}")
    if fingerprint(items) != counted[name]["checksum"]:
        run.say(f"{name} changed since the job was submitted")

    rows = {item.name.removeprefix(prefix): Row(item.size, item.crc) for item in items}

    def one(path: str) -> None:
        file, row = Path(place, path), rows[path]
        if not is_plain(path):
            raise BergError(f"{name}: {path!r} cannot be the name of a file")
        if not is_there(file, row):
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f".berg-part-{file.name}"[:255])
            bucket.download(prefix + path, part, row.size, row.crc, lambda count: run.look())
            part.replace(file)

    try:
        bring_all(one, rows)
    except (Changed, FileNotFoundError) as error:
        raise BergError(f"{name} is being changed: {error}. Start the job again") from None


def mount(run: Run, name: str, place: PurePosixPath, mounts: int) -> None:
    """Mount the folder of a bucket over an empty one; raise BergError with gcsfuse's message."""
    bucket, prefix = find(run.config, name)
    folder, cache = Path(place), CACHE / place.relative_to("/")
    if os.path.ismount(folder):  # by an earlier row
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise BergError(f"{name}: {folder} has files, which a mount would hide")
    install.provide(run, "gcsfuse", "gcsfuse", "Take an image that has it: --image")
    folder.mkdir(parents=True, exist_ok=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    megabytes = max(shutil.disk_usage(ROOT).free // 2**21 // mounts, 1)  # half of what is free
    words = [
        "gcsfuse", "--profile=aiml-training", "--o=ro", f"--only-dir={prefix[:-1]}",
        "--file-mode=444", "--dir-mode=555", f"--cache-dir={cache}",
        f"--file-cache-max-size-mb={megabytes}", "--file-cache-enable-parallel-downloads",
        "--app-name=berg", f"--log-file={cache}.log", "--log-format=text",
    ]  # fmt: skip
    if run.config.endpoint:
        words.append(f"--custom-endpoint={run.config.endpoint}/storage/v1/")
    run.say(f"Mounting {name} at {folder}")
    done = subprocess.run([*words, bucket.config.bucket, folder], capture_output=True, text=True)
    if done.returncode or not os.path.ismount(folder):
        reason = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise BergError(f"{name} could not be mounted (exit code {done.returncode}): {reason}")


# --- the commands


@click.group()
def data() -> None:
    """Keep data sets in the bucket, for jobs to use.

    \b
    berg data push ~/mnist mnist
    berg run --data mnist "python train.py --data=/root/data/mnist"
    """


@data.command()
@click.argument("path", metavar="FOLDER|FILE", type=click.Path(path_type=Path))
@click.argument("name", metavar="DATA")
@click.option("--delete", is_flag=True, help="Delete what is not in FOLDER, after asking.")
@click.option("--follow-links", is_flag=True, help="Send files outside of FOLDER that it links to.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def push(path: Path, name: str, delete: bool, follow_links: bool, yes: bool, as_json: bool) -> None:
    """Upload a folder or a file; only what changed. After an interruption run it again.

    \b
    berg data push ~/mnist mnist
    """
    config = Config.load()
    bucket, prefix = find(config, name)
    if not path.exists():
        raise BergError(f"{path} does not exist. Give a folder or a file")
    files, left_out = walk(path, prefix, follow_links)
    for text, reason in [*left_out.items()][:20]:
        terminal.warn(f"{text} is not sent: {reason}")
    if not files:
        raise BergError(f"{path} has no files to send")
    present = {item.name: item for item in objects(config, name)}
    address = f"gs://{bucket.config.bucket}/{prefix}"

    def send(name: str) -> int:
        return send_one(bucket, name, files[name], present.get(name))

    sizes: list[int] = []
    try:
        with (
            progress("Sending", files, lambda name: files[name].stat().st_size) as bar,
            google.together(THREADS) as pool,
        ):
            for name, size in zip(files, pool.map(send, files)):
                sizes.append(size)
                bar.update(files[name].stat().st_size)
    except FileNotFoundError as error:
        raise BergError(f"{error.filename} was deleted meanwhile. Push again") from None
    sent = [size for size in sizes if size >= 0]
    extra = [name for name in present if name not in files]
    if extra and delete and terminal.confirm(f"Delete {len(extra)} files of {address}?", yes, "-y"):
        forget(bucket, name, [present[each] for each in extra])
    elif extra:
        terminal.say(f"{address} has {len(extra)} files that are not in {path} (--delete)")
    terminal.say(f"Sent {len(sent)} of {len(files)} files, {in_words(sum(sent))}")
    about = {"data": address, "files": len(files), "sent": len(sent), "bytes_sent": sum(sent)}
    terminal.show_json({**about, "left_out": left_out}) if as_json else terminal.show(address)


def walk(path: Path, prefix: str, follow_links: bool) -> tuple[dict[str, Path], dict[str, str]]:
    """The files to send by the names of their objects; what is left out, and why."""
    files: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    if not path.is_dir():
        return {prefix + path.name: path}, {}
    for folder, folders, names in os.walk(
        path, onerror=lambda error: left_out.update({str(error.filename): str(error.strerror)})
    ):
        links = [each for each in folders if Path(folder, each).is_symlink()]
        for name in sorted([*names, *links]):
            file = Path(folder, name)
            inner = str(file.relative_to(path))
            # macOS may write an accent apart from its letter, other computers do not.
            target = prefix + unicodedata.normalize("NFC", inner)
            leads_out = file.is_symlink() and not file.resolve().is_relative_to(path.resolve())
            if reason := misnamed(target):
                left_out[inner.encode(errors="replace").decode()] = reason
            elif not file.is_file():
                left_out[inner] = "a link to a folder" if file.is_dir() else "no regular file"
            elif name == ".DS_Store" or not os.access(file, os.R_OK):
                left_out[inner] = "macOS' own" if name == ".DS_Store" else "it cannot be read"
            elif leads_out and not follow_links:
                raise BergError(
                    f"{inner} leads to {file.resolve()}, and nothing was sent. Delete the link, or "
                    "send what such links lead to: --follow-links"
                )
            else:
                files[target] = file
    return files, left_out


def send_one(bucket: Bucket, name: str, path: Path, present: Object | None) -> int:
    """Send a file that differs from its object; its size, -1 if it does not."""
    for _ in range(TRIES):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            with suppress(Changed):  # it became shorter
                crc = checksum(file, 0, size)
                if present and (present.size, present.crc) == (size, crc):
                    return -1
                content = Section(file, 0, size)
                try:
                    made = bucket.put(name, content, size, present.generation if present else 0)
                except Changed:  # by another, or by an earlier try, whose answer was lost
                    made = bucket.get(name) or Object(name, -1, 0, 0)
                if (made.size, made.crc) == (size, crc):
                    return size
        present = bucket.get(name)
    raise BergError(f"{path} changes all the time. Push again when nothing writes to it")


def progress(label: str, things: Iterable[T], size: Callable[[T], int]) -> Any:
    """A bar on the terminal over the bytes of things."""
    return click.progressbar(length=sum(map(size, things)), label=label, file=sys.stderr)


@data.command()
@click.argument("name", metavar="DATA")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pull(name: str, folder: Path, as_json: bool) -> None:
    """Download a data set to FOLDER; only what changed.

    \b
    berg data pull mnist ~/mnist
    """
    config = Config.load()
    items = listed(config, name)
    bucket, prefix = find(config, name)
    where, _, own = prefix[:-1].rpartition("/")
    with progress("Downloading", items, lambda item: item.size) as bar:
        mine = Fetch(bucket, f"{where}/" if where else "", own, folder, on_bytes=bar.update)
        done = mine.run()
    for path, kept in done.kept.items():
        terminal.warn(f"{path} was edited here: your version is now {kept}")
    for path, reason in done.left.items():
        terminal.warn(f"{path} was not downloaded: {reason}")
    terminal.say(f"{len(done.new)} of {len(items)} files new or changed")
    about = {"folder": str(folder), "files": len(items), "fetched": len(done.new)}
    terminal.show_json(about) if as_json else terminal.show(str(folder))


@data.command()
@click.argument("name", metavar="[DATA]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(name: str | None, as_json: bool) -> None:
    """List the data sets, or the files of one.

    \b
    berg data ls
    berg data ls mnist
    """
    config = Config.load()
    if name:
        start = len(find(config, name)[1])
        files = [{"path": each.name[start:], "bytes": each.size} for each in listed(config, name)]
        if as_json:
            return terminal.show_json(files)
        return terminal.show_table(
            ["BYTES", "PATH"], [[f"{row['bytes']:,}", str(row["path"])] for row in files]
        )
    sets: dict[str, list[Object]] = {}
    for item in Bucket(config).list("data/"):
        set_name, _, path = item.name.removeprefix("data/").partition("/")
        if path:
            sets.setdefault(set_name, []).append(item)
    rows: list[dict[str, Any]] = [
        {
            "name": each,
            "files": len(items),
            "bytes": sum(item.size for item in items),
            "updated_at": now(max(item.updated_ns for item in items) / 1e9),
        }
        for each, items in sets.items()
    ]
    if as_json:
        return terminal.show_json(rows)
    if not rows:
        return terminal.say("There are no data sets yet. Send one: berg data push FOLDER NAME")
    cells = [
        [row["name"], f"{row['files']:,}", in_words(row["bytes"]), row["updated_at"]]
        for row in rows
    ]
    return terminal.show_table(["NAME", "FILES", "SIZE", "UPDATED"], cells)


@data.command()
@click.argument("name", metavar="DATA")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(name: str, yes: bool) -> None:
    """Delete a data set. Jobs that need it and have not started yet will fail.

    \b
    berg data rm mnist
    """
    config = Config.load()
    items = listed(config, name)
    bucket, prefix = find(config, name)
    size = in_words(sum(item.size for item in items))
    question = f"Delete gs://{bucket.config.bucket}/{prefix}, {len(items)} files, {size}?"
    if terminal.confirm(question, yes, "-y"):
        forget(bucket, name, items)
        terminal.say(f"Deleted {name}")


def forget(bucket: Bucket, name: str, items: list[Object]) -> None:
    """Delete exactly these files: after the question others may have their names."""
    try:
        bucket.delete(*items)
    except Changed:
        raise BergError(f"{name} was sent again meanwhile; what is new stays. Try again") from None
