"""What a job needs from buckets before its command begins: its code, its data sets, and folders
mounted with Google's gcsfuse. A pod has its mounts as volumes already. A mount stays as long as its
machine.
"""

import platform
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berg import BergError
from berg.code import snapshot
from berg.config import Config
from berg.google import api, data
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.machine import boot, scratch
from berg.machine.attempt import Attempt
from berg.machine.environment import BIN, place, python_path
from berg.plain import plural

SECONDS = 120  # for gcsfuse to mount; it answers once it has seen the bucket
# For training; as metadata never expire, later files of the same name are not seen.
PROFILE = "aiml-training"
ADVICE = "https://cloud.google.com/storage/docs/gcsfuse-install"


def use_scratch(attempt: Attempt) -> None:
    """Let the folder of a job's data sets be on its local SSDs; it stays where it is if not."""
    own = place("/root/data")
    try:
        if scratch.take(attempt.job, own, "berg-data"):
            attempt.say(f"{own} is on the local SSDs")
    except OSError as error:
        attempt.say(f"{own} cannot be on the local SSDs: {error}")


def bring(attempt: Attempt) -> None:
    """Download what is missing of each data set; raises BergError, or Stopped if the job ends."""
    for wanted in attempt.job.data:
        name, folder, began = wanted["name"], place(wanted["path"]), time.monotonic()
        attempt.say(
            f"Downloading data {name}: {plural(wanted['files'], 'file')}, "
            f"{wanted['bytes'] / 1e6:,.1f} MB, to {folder}"
        )
        bucket, prefix = data.find(attempt.bucket.config, name)
        new, seen = download(attempt, bucket, prefix, name, folder)
        if not seen:
            raise BergError(f"data {name} is not in gs://{bucket.name}/{prefix} any more")
        if data.checksum(seen) != wanted["checksum"]:
            attempt.say(f"Data {name} changed since the job was submitted")
        attempt.say(
            f"Downloaded {new:,} of {plural(len(seen), 'file')} of data {name} "
            f"in {time.monotonic() - began:.1f} s"
        )


def download(
    attempt: Attempt, bucket: Bucket, prefix: str, name: str, folder: Path
) -> tuple[int, list[Any]]:
    """Download a data set; return how many files are new, and its objects."""
    seen: list[Any] = []

    def note(blob: Any) -> None:
        seen.append(blob)
        attempt.stopping.pause(0)  # a killed job does not wait for the rest

    try:
        new, _, left = fetch(bucket, prefix, folder, done=note, on_machine=True)
    except api.Forbidden as error:
        raise refused(bucket, name, error) from None
    except OSError as error:
        raise BergError(
            f"data {name} cannot be downloaded to {folder}: {error.strerror or error}"
        ) from None
    if left:
        path, why = next(iter(left.items()))
        if isinstance(why, api.Forbidden):
            raise refused(bucket, name, why)
        raise BergError(
            f"{plural(len(left), 'file')} of data {name} could not be downloaded to {folder}, "
            f"{path}: {why}"
        )
    return new, seen


def refused(bucket: Bucket, name: str, error: Exception) -> BergError:
    """Return the error for data that the machines' account may not read, with the fix."""
    account = getattr(bucket.config.credentials, "service_account_email", "ACCOUNT")
    fix = data.grant_command(bucket.name, f"serviceAccount:{account}")
    return BergError(f"data {name}: {api.words(error)}. {fix}")


def mount(attempt: Attempt) -> None:
    """Mount the folders that a job asks for; raises BergError with gcsfuse's message."""
    wanted = attempt.job.mounts
    missing = [each for each in wanted if not is_mounted(place(each["path"]))]
    if not missing:
        return
    if boot.POD:
        raise BergError(f"the pod has no volume at {missing[0]['path']}, which was asked for")
    program = find_program(attempt)
    cache().mkdir(parents=True, exist_ok=True)
    # each mount may keep its share of half of the free disk
    cache_mb = max(shutil.disk_usage(cache()).free // 2**21 // len(wanted), 1)
    for each in missing:
        mount_one(attempt, program, each, cache_mb)


def cache() -> Path:
    """Return the folder for what mounts have read: on local SSDs, or on the machine's disk."""
    fast = scratch.folder()
    return fast / "berg-mounts" if fast else boot.BERG / "mounts"


def is_mounted(folder: Path) -> bool:
    """Return whether a folder is a mount, which may be of the same disk, as in pods."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    return str(folder) in points


def mount_one(attempt: Attempt, program: str, wanted: dict[str, Any], cache_mb: int) -> None:
    """Mount a folder of a bucket over an empty one."""
    name, folder = wanted["name"], place(wanted["path"])
    if folder.is_dir() and any(folder.iterdir()):
        raise BergError(f"mount {name}: {folder} holds files already, which a mount would hide")
    folder.mkdir(parents=True, exist_ok=True)
    words = command(attempt.bucket.config, program, wanted, folder, cache_mb)
    attempt.say(f"Mounting {name}, {plural(wanted['files'], 'file')}, at {folder}: {words[0]}")
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BergError(f"mount {name}: {error}") from None
    if done.returncode or not is_mounted(folder):
        output = (done.stderr or done.stdout).strip().splitlines()
        raise BergError(
            f"mount {name}: gcsfuse could not mount gs://{wanted['bucket']}/{wanted['prefix']} "
            f"(exit code {done.returncode}): {' | '.join(output[-3:])}"
        )


def command(
    config: Config, program: str, wanted: dict[str, Any], folder: Path, cache_mb: int
) -> list[str]:
    """Return the command that mounts a folder of a bucket."""
    own = cache() / folder.relative_to(folder.anchor)  # one for each: folders may have one name
    own.parent.mkdir(parents=True, exist_ok=True)
    options = [
        f"--profile={PROFILE}",
        "--o=ro",
        f"--only-dir={wanted['prefix']}",
        "--file-mode=444",
        "--dir-mode=555",
        f"--cache-dir={own}",
        f"--file-cache-max-size-mb={cache_mb}",
        "--file-cache-enable-parallel-downloads",
        "--app-name=berg",
        f"--log-file={own}.log",
        "--log-format=text",
    ]
    if config.endpoint:
        options.append(f"--custom-endpoint={config.endpoint}/storage/v1/")
    return [program, *options, wanted["bucket"], str(folder)]


def find_program(attempt: Attempt) -> str:
    """Return gcsfuse: of the image, else sent with the job, else of the image's package sources."""
    if found := shutil.which(data.PROGRAM, path=python_path()):
        return found
    if attempt.job.gcsfuse and platform.machine() == "x86_64":
        return bring_program(attempt)
    try:
        boot.apt_install(attempt.machine, data.PROGRAM)
    except OSError as error:
        raise BergError(
            f"this image has no gcsfuse, and its package sources have none ({error}). Install it "
            f"on your computer, from which it is then sent, or in the image: {ADVICE}"
        ) from None
    return data.PROGRAM


def bring_program(attempt: Attempt) -> str:
    """Return the gcsfuse that was sent with the job; raises BergError if it was replaced."""
    name, file = f".berg/dist/{attempt.job.gcsfuse}", BIN / data.PROGRAM
    content = attempt.machine.read(name)[0]
    try:
        boot.check(content, name.rpartition("-")[2], f"gs://{attempt.machine.bucket}/{name}")
    except OSError as error:
        raise BergError(str(error)) from None
    BIN.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o755)
    return str(file)


def fetch_code(bucket: Bucket, description: dict[str, Any], folder: Path) -> None:
    """Check a snapshot out to a folder; raises BergError if a part of it is not in the bucket."""
    packs = boot.BERG / "packs"

    def file(name: str) -> Path:
        return packs / name.replace("/", "%")

    def bring(name: str) -> None:
        try:
            bucket.download(name, file(name))
        except api.NotFound:
            missing = f"gs://{bucket.name}/{name}"
            raise BergError(f"commit {description['commit']} is missing: no {missing}") from None

    with ThreadPoolExecutor() as pool:
        list(pool.map(bring, snapshot.all_packs(description)))
    snapshot.restore(description, folder, lambda name: file(name).open("rb"))
    shutil.rmtree(packs)
