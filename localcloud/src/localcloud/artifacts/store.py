"""Images on disk. Knows nothing of HTTP.

<folder>/artifacts.json    repositories by full name; in each image's name its tags, manifests and
blobs <folder>/blobs/<hex>       content by its sha256: layers, configurations, manifests
<folder>/uploads/<id>      what arrives <folder>/roots/<hex>/      images that pods run, unpacked,
by the digest of their manifest

Not covered: content that no image uses any more is kept.
"""

import hashlib
import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.identity.tokens import write_private


@dataclass(frozen=True)
class Unpacked:
    """An image that a pod can run."""

    root: Path
    config: dict[str, Any]  # Env, Entrypoint, Cmd, WorkingDir, …
    digest: str


class NotPulled(Exception):
    """An image cannot be pulled."""


def digest_of(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return f"sha256:{found.hexdigest()}"


def stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())


class Artifacts:
    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "artifacts.json"
        for name in ("blobs", "uploads", "roots"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        state = (
            json.loads(self.path.read_text())
            if self.path.exists()
            else {"repositories": {}, "images": {}}
        )
        self.repositories: dict[str, dict] = state["repositories"]
        # Repository -> image -> {"tags": {tag: digest}, "manifests": {digest: {"type", "time"}},
        # "blobs": [digest]}
        self.images: dict[str, dict[str, dict[str, Any]]] = state["images"]
        self.operations: dict[
            str, dict
        ] = {}  # name -> what it will have made; not kept over a restart
        for left in (folder / "uploads").iterdir():
            left.unlink()

    def save(self) -> None:
        write_private(self.path, {"repositories": self.repositories, "images": self.images})

    def image(self, repository: str, name: str) -> dict[str, Any]:
        """The state of an image; empty for one that was never pushed."""
        return self.images.get(repository, {}).get(name) or {
            "tags": {},
            "manifests": {},
            "blobs": [],
        }

    def change(self, repository: str, name: str) -> dict[str, Any]:
        """The same, to be changed and saved."""
        return self.images.setdefault(repository, {}).setdefault(name, self.image(repository, name))

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.removeprefix("sha256:")

    def manifest(self, repository: str, name: str, reference: str) -> tuple[str, str, bytes] | None:
        """Digest, media type and content of the manifest of a tag or a digest."""
        image = self.image(repository, name)
        digest = image["tags"].get(reference, reference)
        if digest not in image["manifests"]:
            return None
        return digest, image["manifests"][digest]["type"], self.blob(digest).read_bytes()

    def put_manifest(
        self, repository: str, name: str, reference: str, kind: str, data: bytes
    ) -> str:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        temporary = self.new_upload()
        temporary.write_bytes(data)
        temporary.replace(self.blob(digest))
        image = self.change(repository, name)
        image["manifests"].setdefault(digest, {"type": kind, "time": stamp()})
        if not reference.startswith("sha256:"):
            image["tags"][reference] = digest
        self.save()
        return digest

    def delete_repository(self, repository: str) -> None:
        del self.repositories[repository]
        self.images.pop(repository, None)
        self.save()

    # --- uploads

    def new_upload(self) -> Path:
        path = self.folder / "uploads" / str(uuid.uuid4())
        path.touch()
        return path

    def upload(self, id: str) -> Path | None:
        path = self.folder / "uploads" / id
        return path if str(uuid.UUID(id)) == id and path.exists() else None

    def keep(self, path: Path, digest: str, repository: str, name: str) -> None:
        """Make an upload a blob of an image."""
        path.replace(self.blob(digest))
        self.add_blob(repository, name, digest)

    def add_blob(self, repository: str, name: str, digest: str) -> None:
        image = self.change(repository, name)
        if digest not in image["blobs"]:
            image["blobs"].append(digest)
        self.save()
