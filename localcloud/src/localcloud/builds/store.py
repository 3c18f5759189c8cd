"""Builds on disk, and the processes of those that run. Knows no HTTP.

<folder>/builds.json    Google's Build resources by full name
<folder>/podman/        the images and layers of all builds, which are their cache
<folder>/work/<id>/     a build that runs: workspace/ with its source, home/ which its steps share
"""

import asyncio
import json
import shutil
from pathlib import Path

from localcloud.identity.tokens import write_private

ENDED = ("SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")
ENGINE = '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n[containers]\nnetns = "host"\nkeyring = false\n'


class Builds:
    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "builds.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, dict] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.tasks: dict[str, asyncio.Task] = {}  # by full name, of those that run
        for row in self.rows.values():
            if row["status"] not in ENDED:  # the server was killed
                row["status"] = "INTERNAL_ERROR"
        shutil.rmtree(folder / "work", ignore_errors=True)

    def save(self) -> None:
        write_private(self.path, self.rows)

    def podman(self) -> dict[str, str]:
        """Variables for podman: without a daemon, root's rights as far as it has them, and a store
        of its own.
        """
        folder = self.folder / "podman"
        folder.mkdir(exist_ok=True)
        store = (
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        )
        (folder / "containers.conf").write_text(ENGINE)
        (folder / "storage.conf").write_text(store)
        return {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "XDG_RUNTIME_DIR": str(folder),
        }
