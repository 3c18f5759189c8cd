"""Images on disk. Knows nothing of HTTP.

<folder>/artifacts.json   repositories by full name, and of each image, PROJECT/REPOSITORY/IMAGE, its tags,
                          manifests (with their media types) and blobs
<folder>/blobs/<hex>      content by its sha256: layers, configurations, manifests
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from localcloud.identity.tokens import write_private


class Artifacts:
    def __init__(self, folder: Path):
        self.folder, self.path = folder / "blobs", folder / "artifacts.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        text = self.path.read_text() if self.path.exists() else "{}"
        state = {"repositories": {}, "images": {}, **json.loads(text)}
        self.repositories: dict[str, dict] = state["repositories"]
        self.images: dict[str, dict[str, Any]] = state["images"]

    def image(self, name: str) -> dict[str, Any]:
        """The state of an image, to be changed and saved."""
        return self.images.setdefault(name, {"tags": {}, "manifests": {}, "blobs": []})

    def save(self) -> None:
        write_private(self.path, {"repositories": self.repositories, "images": self.images})

    def put(self, data: bytes) -> str:
        """Keep content; return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / digest).write_bytes(data)
        return f"sha256:{digest}"

    def read(self, digest: str) -> bytes:
        return (self.folder / digest.removeprefix("sha256:")).read_bytes()
