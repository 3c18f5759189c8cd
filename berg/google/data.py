"""Data sets in the bucket (files under `data/NAME/`, as other programs read and write them), and
folders of buckets that jobs see as files through gcsfuse, read only.

Not covered: empty folders, permissions, versions of a data set, and two writers at a time: an
object that another program replaces meanwhile is an error, one that it adds is not.
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
from berg.google.sending import marks
from berg.google.storage import Bucket, Changed, Listed, file_crc32c
from berg.google.walk import bad_name

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HOME = PurePosixPath("/root/data")  # on machines
CODE = PurePosixPath("/root/code")
OURS = ("/root/berg", "/root/berg_results")  # berg's own, and what is mirrored
# Folders of every Linux that a mount would hide.
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var")
GS = "gs://"
READING = [
    f"roles/storage.{each}" for each in ("admin", "objectAdmin", "objectUser", "objectViewer")
]
THREADS = 8
TRIES = 3  # for a file that changes while it is sent
SHOWN = 3  # files named in an error
MOST = 100_000  # files of a mount that are counted; of more the plan says so
PROGRAM = "gcsfuse"


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
    """Return bucket and prefix of NAME or gs://BUCKET/FOLDER."""
    if not where.startswith(GS):
        return Bucket(config), prefix_of(where)
    bucket, _, folder = where.removeprefix(GS).partition("/")
    if not bucket or not folder.strip("/"):
        raise BergError(f"{where} names no folder of a bucket: give it as gs://BUCKET/FOLDER")
    settings = config if bucket == config.bucket else replace(config, bucket=bucket)
    return Bucket(settings), f"{folder.strip('/')}/"


def wanted(text: str, option: str = "--data") -> tuple[str, str]:
    """Return name and path on the machine for NAME[:PATH] or gs://BUCKET/FOLDER[:PATH].

    Raise BergError for a place that cannot have data, or where a mount would hide files.
    """
    scheme = GS if text.startswith(GS) else ""
    name, _, path = text.removeprefix(scheme).partition(":")
    name = scheme + name.rstrip("/")
    if not scheme:
        check_name(name)
    usual = HOME / name.rpartition("/")[2]
    given = PurePosixPath(path or usual)
    if not is_place(given):
        raise BergError(
            f"{option} {text}: {path!r} is no folder for data: give a whole path, as in "
            f"{name}:{usual}"
        )
    if any(f"{given}/".startswith(f"{folder}/") for folder in OURS):
        raise BergError(
            f"{option} {text}: {path} is berg's own, or a folder of results. Give another place"
        )
    hidden = given.parts[1] in SYSTEM or CODE in (given, given.parent)
    if hidden and option == "--mount":
        raise BergError(
            f"--mount {text}: a mount at {given} would hide what is there. Give another place, "
            f"such as {name}:{usual}"
        )
    return name, str(given)


def is_place(path: PurePosixPath) -> bool:
    """Return whether a folder for data can have this path."""
    if not path.is_absolute() or ".." in path.parts:
        return False
    return len(path.parts) > 1 and str(path) != "/root"


def listed(
    config: Config, option: str, name: str, most: int | None = None
) -> tuple[Bucket, str, list[Listed]]:
    """Return bucket, prefix and objects of a data set; raise BergError if there are none, or they
    may not be read.
    """
    bucket, prefix = find(config, name)
    try:
        blobs = list(itertools.islice(bucket.list(prefix), most))
    except api.Forbidden as error:
        fix = grant_command(bucket.name)
        raise BergError(f"{option} {name}: {api.words(error)}. {fix}") from None
    except api.NotFound:
        raise BergError(f"{option} {name}: there is no bucket {bucket.name!r}") from None
    if option == "--data":
        blobs = [blob for blob in blobs if blob.size or not blob.name.endswith("/")]
    if not blobs:
        raise BergError(
            f"{option} {name}: there is nothing in gs://{bucket.name}/{prefix}. "
            f"Send it: berg data push FOLDER {name} (list data sets: berg data ls)"
        )
    if bucket.name != config.bucket:
        warn_of_rights(config, bucket)
    return bucket, prefix, blobs


def measure(config: Config, text: str) -> dict[str, Any]:
    """Return a job's record of NAME[:PATH] or gs://BUCKET/FOLDER[:PATH]."""
    name, path = wanted(text)
    _, _, blobs = listed(config, "--data", name)
    return {
        "name": name,
        "path": path,
        "files": len(blobs),
        "bytes": sum(blob.size for blob in blobs),
        "checksum": checksum(blobs),
    }


def measure_mount(config: Config, text: str) -> dict[str, Any]:
    """Return a job's record of a mount. At most MOST files are counted, in `files` and `bytes`."""
    name, path = wanted(text, "--mount")
    bucket, prefix, blobs = listed(config, "--mount", name, MOST + 1)
    counted = blobs[:MOST]
    return {
        "name": name,
        "path": path,
        "bucket": bucket.name,
        "prefix": prefix.rstrip("/"),
        "files": len(counted),
        "bytes": sum(blob.size for blob in counted),
        "has_more": len(blobs) > MOST,
    }


def check_places(folders: list[dict[str, Any]], data_sets: list[dict[str, Any]]) -> None:
    """Raise BergError if a mount is inside another one or data, or data is inside a mount."""
    paths = {each["path"] for each in folders}
    places = [each["path"] for each in folders + data_sets]
    for one, other in itertools.permutations(places, 2):
        if f"{one}/".startswith(f"{other}/") and {one, other} & paths:
            raise BergError(
                f"--mount, --data: {one} is inside {other}, or the same. "
                "Give one of them another place: NAME:PATH"
            )


def grant_command(bucket: str, member: str = "user:YOUR_ADDRESS") -> str:
    """Return the command that lets a member read a bucket."""
    return (
        "An administrator of the bucket can allow it: gcloud storage buckets "
        f"add-iam-policy-binding gs://{bucket} --member={member} "
        "--role=roles/storage.objectViewer"
    )


def warn_of_rights(config: Config, bucket: Bucket) -> None:
    """Warn if the policy of another bucket does not let the machines' account read it."""
    account = f"serviceAccount:{config.service_account}"
    try:
        policy = bucket.ask("GET", "/iam", optionsRequestedPolicyVersion=3)
    except api.Forbidden:
        return  # it may be as it should
    readers = {"allUsers", "allAuthenticatedUsers", account}
    bindings = [each for each in policy.get("bindings", []) if each["role"] in READING]
    if config.service_account and not any(readers & {*each["members"]} for each in bindings):
        fix = grant_command(bucket.name, account)
        api.notify(f"The machines may be refused gs://{bucket.name}. {fix}")


def checksum(blobs: Iterable[Any]) -> str:
    """Return a hash of the content of a data set."""
    lines = sorted(f"{blob.name} {blob.crc32c}\n" for blob in blobs)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@dataclass
class Push:
    """The plan of a push."""

    files: dict[str, Path]  # name in the bucket -> file
    # name of a file to send -> generation of its object, 0: there is none
    changed: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # path -> why
    leading_out: dict[str, Path] = field(default_factory=dict)  # path of a link -> its target
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
    """Compare a file, or the files of a folder, with the objects below the prefix."""
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
        if not same:
            plan.changed[name] = there[name].generation if name in there else 0
    return plan


def is_same(blob: Listed | None, file: Path) -> bool:
    """Return whether an object has the bytes of a file that was not deleted."""
    try:
        if blob is None or blob.size != file.stat().st_size:
            return False
        return blob.crc32c == file_crc32c(file)
    except FileNotFoundError:
        return False


def add_folder(plan: Push, prefix: str, path: Path) -> None:
    """Add the files below a folder to a plan; links to folders are left out.

    Links to files outside of the folder are noted: the user may not have made them.
    """

    def leave_out(error: OSError) -> None:
        plan.left_out[os.path.relpath(error.filename, path)] = error.strerror or str(error)

    root = path.resolve()
    for folder, folders, files in os.walk(path, onerror=leave_out):
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


def add(plan: Push, prefix: str, file: Path, path: str) -> None:
    """Add a file to a plan, or why it is left out.

    Its name is sent as other computers write it: macOS may store an accent apart from its letter.
    """
    if computer.is_mac():
        path = unicodedata.normalize("NFC", path)
    why = bad_name(prefix + path)
    # macOS' record of how a folder is shown
    if file.name == ".DS_Store":
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
    """Send what changed; `on_progress` hears how many bytes were sent so far.

    Another push continues where this one was interrupted. A file that changes while it is sent is
    sent again. When all others are sent, raises BergError with the names of those that changed each
    time, and of those that were deleted.
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
    """Send a file as it is at one moment; return why that failed, "" if it did not."""
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
            # The object is created by the last bytes, which are read but not sent yet.
            if count == before.st_size and has_changed(path, before):
                raise Moving

        try:
            bucket.upload_stream(name, file, before.st_size, generation, check)
        except Changed:
            # A write whose answer was lost is refused when it is repeated: then the object is ours.
            blob = bucket.get(name)
            if blob is None or blob.crc32c != file_crc32c(path):
                raise
        except Exception:
            if has_changed(path, before):  # such as a file that has fewer bytes now
                raise Moving from None
            raise


def has_changed(path: Path, before: os.stat_result) -> bool:
    """Return whether a file was replaced or written since `before`.

    Raises FileNotFoundError for one that was deleted.
    """
    return marks(path.stat()) != marks(before)


def sets(bucket: Bucket) -> dict[str, list[Listed]]:
    """Return the files of each data set."""
    found: dict[str, list[Listed]] = {}
    for blob in bucket.list("data/"):
        name, slash, path = blob.name.removeprefix("data/").partition("/")
        if slash and path:
            found.setdefault(name, []).append(blob)
    return found


def delete(
    bucket: Bucket, names: list[str], on_progress: Callable[[int], None] = lambda n: None
) -> None:
    """Delete objects; `on_progress` hears how many were deleted."""
    for number, _ in enumerate(side_by_side(bucket.delete, names, THREADS), 1):
        on_progress(number)


def own_program() -> tuple[str, bytes]:
    """Return this computer's gcsfuse for machines that have none, under a name with its sha256;
    ("", b"") without one for Linux on x86.
    """
    found = shutil.which(PROGRAM)
    content = Path(found).read_bytes() if found else b""
    # the processor in a program's ELF header
    is_program = content[:5] == b"\x7fELF\x02" and content[18:20] == b"\x3e\x00"
    if not is_program:
        return "", b""
    return f"{PROGRAM}-{hashlib.sha256(content).hexdigest()}", content
