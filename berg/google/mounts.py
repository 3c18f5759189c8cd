"""Folders of buckets that jobs see as files, read only, by gcsfuse: what is asked for, and with
which program.

Machines run gcsfuse itself, pods get a volume of Kubernetes Engine's driver for it
(places/volumes.py). Not covered: writing through a mount. Results stay mirrored: gcsfuse writes a
file when it is closed, and all of it for each change.
"""

import hashlib
import itertools
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import data, http

MOST = 100_000  # files that are counted; of more the plan says so
# Folders of every Linux that a mount would hide.
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var")
CODE = PurePosixPath("/root/code")
PROGRAM = "gcsfuse"
X86 = b"\x3e\x00"  # of an ELF header, what processors a program is for


def wanted(text: str) -> tuple[str, str]:
    """Return name and path for NAME[:PATH] or gs://BUCKET/FOLDER[:PATH].

    Raise BergError for a place where a mount would hide files.
    """
    name, path = data.wanted(text, "--mount")
    place = PurePosixPath(path)
    hides_code = place == CODE or place.parent == CODE
    if place.parts[1] in SYSTEM or hides_code:
        raise BergError(
            f"--mount {text}: a mount at {path} would hide what is there. Give another place, such "
            f"as {name}:{data.HOME / name.rpartition('/')[2]}"
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


def measure(config: Config, text: str) -> dict[str, Any]:
    """What a job is to know of a mount; raises BergError if there are no files, or they may not be
    read. At most MOST files are counted, in `files` and `bytes`.
    """
    name, path = wanted(text)
    bucket, prefix = data.find(config, name)
    try:
        listed = list(itertools.islice(bucket.list(prefix), MOST + 1))
    except http.Forbidden as error:
        raise BergError(f"--mount {name}: {http.words(error)}. {data.mend(bucket.name)}") from None
    except http.NotFound:
        raise BergError(f"--mount {name}: there is no bucket {bucket.name!r}") from None
    if not listed:
        raise BergError(
            f"--mount {name}: there is nothing in gs://{bucket.name}/{prefix}. "
            f"Send it: berg data push FOLDER {name} (what there is: berg data ls)"
        )
    if bucket.name != config.bucket:
        data.warn_of_rights(config, bucket)
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
