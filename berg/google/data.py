"""Data sets in the bucket: files under `data/NAME/`, as they are, so that others can read and write
them, too.

What is there already is recognised by its size and crc32c. Not covered: empty folders, permissions,
versions of a data set, and writers at the same time: an object that somebody else replaces
meanwhile is an error, one that he adds is not. A file that changes here while it is sent is never
sent as a mixture.

Folders of buckets that jobs see as files, read only, by gcsfuse: what is asked for, and with
which program.

Machines run gcsfuse itself, pods get a volume of Kubernetes Engine's driver for it
(places/volumes.py). Not covered: writing through a mount. Results stay mirrored: gcsfuse writes a
file when it is closed, and all of it for each change.
"""

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import threading
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from berg import BergError, computer
from berg.config import Config
from berg.google import api
from berg.google.fetch import side_by_side
from berg.google.storage import Bucket, Changed, Listed, file_crc32c
from berg.google.walk import bad_name

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

HOME = PurePosixPath("/root/data")  # on machines

GS = "gs://"

READING = [f"roles/storage.{each}" for each in ("admin", "objectAdmin", "objectUser")]


READING.append("roles/storage.objectViewer")

OURS = ("/root/berg", "/root/berg_results")  # berg's own, and what is mirrored

THREADS = 8

TRIES = 3  # for a file that changes while it is sent

FINDERS = ".DS_Store"  # what macOS keeps of how a folder is shown

SHOWN = 3  # files named in an error


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise BergError(
            f"{name!r} cannot be the name of a data set: use letters, digits, dots, dashes, as in "
            "mnist-v2"
        )
    return name


def prefix_of(name: str) -> str:
    return f"data/{check_name(name)}/"


def find(config: Config, where: str) -> tuple[Bucket, str]:
    """Bucket and prefix of a data set, which is a name or an address such as gs://bucket/folder."""
    if not where.startswith(GS):
        return Bucket(config), prefix_of(where)
    bucket, _, folder = where.removeprefix(GS).partition("/")
    if not bucket or not folder.strip("/"):
        raise BergError(f"{where} names no folder of a bucket: give it as gs://BUCKET/FOLDER")
    return Bucket(
        config if bucket == config.bucket else replace(config, bucket=bucket)
    ), f"{folder.strip('/')}/"


def wanted(text: str, option: str = "--data") -> tuple[str, str]:
    """Return name and path on the machine for NAME[:PATH] or gs://BUCKET/FOLDER[:PATH]; raise
    BergError for a wrong place.
    """
    scheme = GS if text.startswith(GS) else ""
    name, _, path = text.removeprefix(scheme).partition(":")
    name = scheme + name.rstrip("/")
    if not scheme:
        check_name(name)
    given = PurePosixPath(path or HOME / name.rpartition("/")[2])
    if (
        not given.is_absolute()
        or ".." in given.parts
        or len(given.parts) < 2
        or str(given) == "/root"
    ):
        raise BergError(
            f"{option} {text}: {path!r} is no folder for data: give a whole path, as in "
            f"{name}:{HOME / name.rpartition('/')[2]}"
        )
    if any(f"{given}/".startswith(f"{folder}/") for folder in OURS):
        raise BergError(
            f"{option} {text}: {path} is berg's own, or a folder of results; data goes elsewhere"
        )
    return name, str(given)


def measure(config: Config, text: str) -> dict[str, Any]:
    """What a job is to know of NAME[:PATH] or gs://BUCKET/FOLDER[:PATH]; raises BergError if there
    are no files, or they may not be read.
    """
    name, path = wanted(text)
    bucket, prefix = find(config, name)
    try:
        listed = list(bucket.list(prefix))
    except api.Forbidden as error:
        raise BergError(f"--data {name}: {api.words(error)}. {mend(bucket.name)}") from None
    except api.NotFound:
        raise BergError(f"--data {name}: there is no bucket {bucket.name!r}") from None
    blobs = [blob for blob in listed if blob.size or not blob.name.endswith("/")]
    if not blobs:
        raise BergError(
            f"--data {name}: there is nothing in gs://{bucket.name}/{prefix}. "
            f"Send it: berg data push FOLDER {name} (what there is: berg data ls)"
        )
    if bucket.name != config.bucket:
        warn_of_rights(config, bucket)
    size = sum(blob.size for blob in blobs)
    return {
        "name": name,
        "path": path,
        "files": len(blobs),
        "bytes": size,
        "checksum": checksum(blobs),
    }


def mend(bucket: str, member: str = "user:YOUR_ADDRESS") -> str:
    """Return the command that lets somebody read a bucket."""
    return (
        f"Somebody who may should run: gcloud storage buckets add-iam-policy-binding gs://{bucket} "
        f"--member={member} --role=roles/storage.objectViewer"
    )


def warn_of_rights(config: Config, bucket: Bucket) -> None:
    """Say so where nothing in another bucket's policy lets the machines' account read it."""
    account = f"serviceAccount:{config.service_account}"
    try:
        policy = bucket.ask("GET", "/iam", optionsRequestedPolicyVersion=3)
    except api.Forbidden:
        return  # it may be as it should
    readers = {"allUsers", "allAuthenticatedUsers", account}
    named = {
        who
        for each in policy.get("bindings", [])
        if each["role"] in READING
        for who in each["members"]
    }
    if config.service_account and not named & readers:
        api.notify(f"The machines may be refused gs://{bucket.name}. {mend(bucket.name, account)}")


def checksum(blobs: Iterable[Any]) -> str:
    """What tells one content of a data set from another one."""
    lines = sorted(f"{blob.name} {blob.crc32c}\n" for blob in blobs)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@dataclass
class Push:
    """Return which files go up, and onto which generation of their object (0: there is none)."""

    files: dict[str, Path]  # name in the bucket -> file
    changed: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # path -> why
    leading_out: dict[str, Path] = field(default_factory=dict)  # path of a link -> where it leads
    extra: list[str] = field(default_factory=list)  # objects without a file

    @property
    def bytes(self) -> int:
        """Size of the files to send, as far as they are still there."""
        total = 0
        for name in self.changed:
            with contextlib.suppress(FileNotFoundError):
                total += self.files[name].stat().st_size
        return total


def plan_push(bucket: Bucket, prefix: str, path: Path) -> Push:
    """Compare a file, or the files of a folder, with what lies below the prefix."""
    plan = Push({})
    if path.is_dir():
        add_folder(plan, prefix, path)
    else:
        add(plan, prefix, path, path.name)
    there = {blob.name: blob for blob in bucket.list(prefix)}
    plan.extra = [name for name in there if name not in plan.files]

    def compare(name: str) -> tuple[str, bool]:
        return name, is_same(there.get(name), plan.files[name])

    for name, same in side_by_side(compare, list(plan.files), THREADS):
        if same:
            continue
        plan.changed[name] = 0
        if name in there:
            plan.changed[name] = there[name].generation
    return plan


def is_same(blob: Listed | None, file: Path) -> bool:
    """Return whether an object has the bytes of a file; one that was deleted is no object's."""
    try:
        if blob is None or blob.size != file.stat().st_size:
            return False
        return blob.crc32c == file_crc32c(file)
    except FileNotFoundError:
        return False


def add_folder(plan: Push, prefix: str, path: Path) -> None:
    """Add the files below a folder to a plan; links to folders are left out.

    Links to files outside of the folder are noted: their author may be another than the user.
    """
    root = path.resolve()
    for folder, folders, files in os.walk(path, onerror=lambda error: left_out(plan, path, error)):
        for each in folders:
            if Path(folder, each).is_symlink():
                plan.left_out[str(Path(folder, each).relative_to(path))] = "a link to a folder"
        for each in files:
            file = Path(folder, each)
            name = str(file.relative_to(path))
            if file.is_symlink() and file.is_file():
                target = file.resolve()
                if not target.is_relative_to(root):
                    plan.leading_out[name] = target
            add(plan, prefix, file, name)


def left_out(plan: Push, root: Path, error: OSError) -> None:
    plan.left_out[os.path.relpath(error.filename, root)] = error.strerror or str(error)


def add(plan: Push, prefix: str, file: Path, path: str) -> None:
    """Add a file to a plan, or why it is left out. Its name is sent as other computers write it:
    macOS may keep an accent apart from its letter.
    """
    if computer.is_mac():
        path = unicodedata.normalize("NFC", path)
    why = bad_name(prefix + path)
    if file.name == FINDERS:
        why = "a file of macOS' Finder"
    if not why and not file.is_file():
        why = "a link to nothing" if file.is_symlink() else "no regular file"
    if not why and not os.access(file, os.R_OK):
        why = "it cannot be read"
    if why:
        plan.left_out[path.encode(errors="replace").decode()] = why
    else:
        plan.files[prefix + path] = file


class Moving(Exception):
    """A file that changed while it was read."""


def push(bucket: Bucket, plan: Push, on_progress: Callable[[int], None]) -> None:
    """Send what changed; `on_progress` hears how many bytes went up so far.

    Repeated, it goes on where it was interrupted. A file that changes while it is sent is sent
    again; raises BergError with the names of those that changed each time, and of those that are
    gone, when all others are sent.
    """
    sent: dict[str, int] = {}
    lock = threading.Lock()

    def send(name: str) -> str:
        def note(count: int) -> None:
            with lock:
                sent[name] = count
                on_progress(sum(sent.values()))

        return push_one(bucket, name, plan.files[name], plan.changed[name], note)

    troubles = [each for each in side_by_side(send, list(plan.changed), THREADS) if each]
    if troubles:
        more = len(troubles) - SHOWN
        named = "; ".join(troubles[:SHOWN])
        if more > 0:
            named += f"; and {more:,} more"
        raise BergError(f"{named}. Push again when nothing writes to the data")


def push_one(
    bucket: Bucket, name: str, file: Path, generation: int, note: Callable[[int], None]
) -> str:
    """Send a file as it is at one moment; return why that cannot be done, "" if it was."""
    for _ in range(TRIES):
        try:
            send_unchanged(bucket, name, file, generation, note)
            return ""
        except FileNotFoundError:
            return f"{file} was deleted while the data was sent"
        except Moving:
            continue
    return f"{file} changed each time that it was sent"


def send_unchanged(
    bucket: Bucket, name: str, path: Path, generation: int, note: Callable[[int], None]
) -> None:
    """Send a file; raises Moving if it changed meanwhile, before its object is written."""
    with path.open("rb") as file:
        before = os.fstat(file.fileno())

        def check(count: int) -> None:
            note(count)
            # The object is made with the last bytes, which are read but not sent yet.
            if count == before.st_size and has_changed(path, before):
                raise Moving

        try:
            bucket.upload_stream(name, file, before.st_size, generation, check)
        except Changed:
            # a write whose answer was lost is refused when it is repeated: then what is there is
            # ours
            blob = bucket.get(name)
            if blob is None or blob.crc32c != file_crc32c(path):
                raise
        except Exception:
            if has_changed(path, before):  # such as a file that has fewer bytes now
                raise Moving from None
            raise


def has_changed(path: Path, before: os.stat_result) -> bool:
    """Return whether a path has another file, or other bytes, than when it was looked at before.

    Raises FileNotFoundError for a path that has no file any more.
    """
    return identity(path.stat()) != identity(before)


def identity(seen: os.stat_result) -> tuple[int, int, int, int]:
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def sets(bucket: Bucket) -> dict[str, list[Listed]]:
    """The files of each data set."""
    found: dict[str, list[Listed]] = {}
    for blob in bucket.list("data/"):
        name, slash, path = blob.name.removeprefix("data/").partition("/")
        if slash and path:
            found.setdefault(name, []).append(blob)
    return found


def delete(
    bucket: Bucket, names: list[str], on_progress: Callable[[int], None] = lambda n: None
) -> None:
    """Delete objects; `on_progress` hears how many are gone."""
    for number, _ in enumerate(side_by_side(bucket.delete, names, THREADS), 1):
        on_progress(number)


MOST = 100_000  # files that are counted; of more the plan says so

# Folders of every Linux that a mount would hide.
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var")

CODE = PurePosixPath("/root/code")

PROGRAM = "gcsfuse"

X86 = b"\x3e\x00"  # of an ELF header, what processors a program is for


def wanted_mount(text: str) -> tuple[str, str]:
    """Return name and path for NAME[:PATH] or gs://BUCKET/FOLDER[:PATH].

    Raise BergError for a place where a mount would hide files.
    """
    name, path = wanted(text, "--mount")
    place = PurePosixPath(path)
    hides_code = place == CODE or place.parent == CODE
    if place.parts[1] in SYSTEM or hides_code:
        raise BergError(
            f"--mount {text}: a mount at {path} would hide what is there. Give another place, such "
            f"as {name}:{HOME / name.rpartition('/')[2]}"
        )
    return name, path


def check_places(folders: list[dict[str, Any]], data_sets: list[dict[str, Any]]) -> None:
    """Raise BergError if a mount lies in another one or in data, or one of those in it."""
    paths = {each["path"] for each in folders}
    places = [each["path"] for each in folders + data_sets]
    for one, other in itertools.permutations(places, 2):
        if f"{one}/".startswith(f"{other}/") and {one, other} & paths:
            raise BergError(
                f"--mount, --data: {one} lies in {other}, or is it. "
                "Give one of them another place: NAME:PATH"
            )


def measure_mount(config: Config, text: str) -> dict[str, Any]:
    """What a job is to know of a mount; raises BergError if there are no files, or they may not be
    read. At most MOST files are counted, in `files` and `bytes`.
    """
    name, path = wanted_mount(text)
    bucket, prefix = find(config, name)
    try:
        listed = list(itertools.islice(bucket.list(prefix), MOST + 1))
    except api.Forbidden as error:
        raise BergError(f"--mount {name}: {api.words(error)}. {mend(bucket.name)}") from None
    except api.NotFound:
        raise BergError(f"--mount {name}: there is no bucket {bucket.name!r}") from None
    if not listed:
        raise BergError(
            f"--mount {name}: there is nothing in gs://{bucket.name}/{prefix}. "
            f"Send it: berg data push FOLDER {name} (what there is: berg data ls)"
        )
    if bucket.name != config.bucket:
        warn_of_rights(config, bucket)
    counted = listed[:MOST]
    return {
        "name": name,
        "path": path,
        "bucket": bucket.name,
        "prefix": prefix.rstrip("/"),
        "files": len(counted),
        "bytes": sum(blob.size for blob in counted),
        "has_more": len(listed) > MOST,
    }


def own_program() -> tuple[str, bytes]:
    """Return this computer's gcsfuse, for machines that have none, under a name that says its
    sha256; ("", b"") where it has none that runs on Linux.
    """
    found = shutil.which(PROGRAM)
    content = Path(found).read_bytes() if found else b""
    is_program = content[:5] == b"\x7fELF\x02" and content[18:20] == X86
    if not is_program:
        return "", b""
    return f"{PROGRAM}-{hashlib.sha256(content).hexdigest()}", content
