"""The data sets of a job, brought to the machine before its command begins.

The folders of buckets that a job sees as files on its machine, by Google's gcsfuse.

A pod has them as volumes before it begins. Not covered: unmounting, since a mount goes with its
machine.

The code of a job on its machine: its packs from the bucket, checked out.
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
from berg.machine import boot
from berg.machine.attempt import Attempt
from berg.machine.environment import BIN, place, python_path
from berg.plain import plural


def bring(attempt: Attempt) -> None:
    """Bring what is missing of every data set; raises BergError if it cannot be whole, Stopped if
    the job ends.
    """
    for wish in attempt.job.data:
        name, began = wish["name"], time.monotonic()
        bucket, prefix = data.find(attempt.bucket.config, name)
        seen: list[Any] = []
        folder = place(wish["path"])

        def note(blob: Any, seen: list[Any] = seen) -> None:
            seen.append(blob)
            attempt.stopping.pause(0)  # a job that was killed need not wait for the rest

        attempt.say(
            f"Bringing data {name}: {plural(wish['files'], 'file')}, "
            f"{wish['bytes'] / 1e6:,.1f} MB, to {folder}"
        )
        try:
            new, _, left = fetch(bucket, prefix, folder, done=note, with_repos=True)
        except api.Forbidden as error:
            raise refused(bucket, name, error) from None
        except OSError as error:
            raise BergError(
                f"data {name} cannot be brought to {folder}: {error.strerror or error}"
            ) from None
        if left:
            path, why = next(iter(left.items()))
            if isinstance(why, api.Forbidden):
                raise refused(bucket, name, why)
            raise BergError(
                f"{plural(len(left), 'file')} of data {name} could not be brought to {folder}, "
                f"{path}: {why}"
            )
        if not seen:
            raise BergError(f"data {name} is not in gs://{bucket.name}/{prefix} any more")
        if data.checksum(seen) != wish["checksum"]:
            attempt.say(f"Data {name} changed since the job was submitted")
        attempt.say(
            f"Brought {new:,} of {plural(len(seen), 'file')} of data {name} "
            f"in {time.monotonic() - began:.1f} s"
        )


def refused(bucket: Bucket, name: str, error: Exception) -> BergError:
    """Return the error for data that the machines' account may not read, with what lets it."""
    account = getattr(bucket.config.credentials, "service_account_email", "ACCOUNT")
    mend = data.mend(bucket.name, f"serviceAccount:{account}")
    return BergError(f"data {name}: {api.words(error)}. {mend}")


CACHE = boot.BERG / "mounts"  # what was read, on the machine's disk

SECONDS = 120  # for gcsfuse to mount; it answers when the bucket was seen

# What training asks for; of a later file of the same name nothing is seen (metadata never expire).
PROFILE = "aiml-training"

ADVICE = "https://cloud.google.com/storage/docs/gcsfuse-install"


def mount(attempt: Attempt) -> None:
    """Mount what a job asks for; raises BergError with gcsfuse's words if that cannot be."""
    wanted = attempt.job.mounts
    left = [each for each in wanted if not is_mounted(place(each["path"]))]
    if not left:
        return
    if boot.POD:
        raise BergError(f"the pod has no volume at {left[0]['path']}, which was asked for")
    program, cache_mb = find_program(attempt), share_of_disk(len(wanted))
    for wish in left:
        mount_one(attempt, program, wish, cache_mb)


def is_mounted(folder: Path) -> bool:
    """Return whether something is mounted at a folder; one of the same disk, too, as in pods."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    return str(folder) in points


def share_of_disk(count: int) -> int:
    """Return how many MiB each of so many mounts may keep: half of the free disk in all."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return max(shutil.disk_usage(CACHE).free // 2**21 // count, 1)


def mount_one(attempt: Attempt, program: str, wish: dict[str, Any], cache_mb: int) -> None:
    """Mount a folder of a bucket over an empty one."""
    name, folder = wish["name"], place(wish["path"])
    if folder.is_dir() and any(folder.iterdir()):
        raise BergError(f"mount {name}: {folder} holds files already, which a mount would hide")
    folder.mkdir(parents=True, exist_ok=True)
    words = command(attempt.bucket.config, program, wish, folder, cache_mb)
    attempt.say(f"Mounting {name}, {plural(wish['files'], 'file')}, at {folder}: {words[0]}")
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BergError(f"mount {name}: {error}") from None
    if done.returncode or not is_mounted(folder):
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BergError(
            f"mount {name}: gcsfuse could not mount gs://{wish['bucket']}/{wish['prefix']} "
            f"(exit code {done.returncode}): {' | '.join(said[-3:])}"
        )


def command(
    config: Config, program: str, wish: dict[str, Any], folder: Path, cache_mb: int
) -> list[str]:
    """Return the command that mounts a folder of a bucket."""
    cache = CACHE / folder.relative_to(folder.anchor)  # of its own: names of folders may be alike
    cache.parent.mkdir(parents=True, exist_ok=True)
    options = [
        f"--profile={PROFILE}",
        "--o=ro",
        f"--only-dir={wish['prefix']}",
        "--file-mode=444",
        "--dir-mode=555",
        f"--cache-dir={cache}",
        f"--file-cache-max-size-mb={cache_mb}",
        "--file-cache-enable-parallel-downloads",
        "--app-name=berg",
        f"--log-file={cache}.log",
        "--log-format=text",
    ]
    if config.endpoint:
        options.append(f"--custom-endpoint={config.endpoint}/storage/v1/")
    return [program, *options, wish["bucket"], str(folder)]


def find_program(attempt: Attempt) -> str:
    """Return gcsfuse: the image's, else that of who submitted the job, else the package of the
    image's own sources.
    """
    if found := shutil.which(data.PROGRAM, path=python_path()):
        return found
    if attempt.job.gcsfuse and platform.machine() == "x86_64":
        return bring_program(attempt)
    try:
        boot.apt_install(attempt.machine, data.PROGRAM)
    except OSError as error:
        raise BergError(
            f"this image has no gcsfuse, and its package sources have none ({error}). Install it "
            f"on your computer, which sends it along then, or in the image: {ADVICE}"
        ) from None
    return data.PROGRAM


def bring_program(attempt: Attempt) -> str:
    """Return the gcsfuse that came with the job; raises BergError if somebody replaced it."""
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
    """Check a snapshot out to a folder; raise BergError if a part of it is not in the bucket."""
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
