"""The code of a job on its machine: its packs from the bucket, checked out."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berg import BergError
from berg.code import snapshot
from berg.google import http
from berg.google.storage import Bucket
from berg.machine import boot


def fetch(bucket: Bucket, description: dict[str, Any], folder: Path) -> None:
    """Check a snapshot out to a folder; raise BergError if a part of it is not in the bucket."""
    packs = boot.BERG / "packs"

    def file(name: str) -> Path:
        return packs / name.replace("/", "%")

    def bring(name: str) -> None:
        try:
            bucket.download(name, file(name))
        except http.NotFound:
            missing = f"gs://{bucket.name}/{name}"
            raise BergError(f"commit {description['commit']} is missing: no {missing}") from None

    with ThreadPoolExecutor() as pool:
        list(pool.map(bring, snapshot.all_packs(description)))
    snapshot.restore(description, folder, lambda name: file(name).open("rb"))
    shutil.rmtree(packs)
