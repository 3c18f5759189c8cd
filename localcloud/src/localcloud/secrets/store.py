"""Secret Manager's secrets and their versions on disk. Knows nothing of HTTP.

    <folder>/index.json   secrets and versions without what they hold, written in one step
    <folder>/<id>         what one version holds: mode 0600, in a folder of mode 0700

A version is there once the index names its file; a killed server leaves at worst an unused
file, which the next start deletes. An expired secret is gone, with its files, at the first
look at any secret after its time.

Not covered: encryption at rest.
"""

import json
import os
import time
import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from localcloud.identity.tokens import write_private


@dataclass
class Version:
    number: int
    created: float
    crc: int
    file: str


@dataclass
class Secret:
    project: str
    id: str
    created: float
    fields: dict  # replication, labels, annotations: Google's Secret
    expires: float | None = None
    versions: list[Version] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"projects/{self.project}/secrets/{self.id}"


class Secrets:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.index = folder / "index.json"
        self._rows: list[Secret] = []
        for row in json.loads(self.index.read_text())["secrets"] if self.index.exists() else []:
            versions = [Version(**version) for version in row.pop("versions")]
            self._rows.append(Secret(**row, versions=versions))
        self._sweep()

    def all(self) -> list[Secret]:
        """The secrets that have not expired, oldest first."""
        kept = [
            secret
            for secret in self._rows
            if secret.expires is None or time.time() < secret.expires
        ]
        if len(kept) < len(self._rows):
            self._rows = kept
            self.save()
            self._sweep()
        return self._rows

    def find(self, name: str) -> Secret | None:
        return next((secret for secret in self.all() if secret.name == name), None)

    def add(self, secret: Secret) -> None:
        self.all().append(secret)
        self.save()

    def delete(self, secret: Secret) -> None:
        self._rows.remove(secret)
        self.save()
        self._sweep()

    def add_version(self, secret: Secret, data: bytes, crc: int) -> Version:
        version = Version(len(secret.versions) + 1, time.time(), crc, uuid.uuid4().hex)
        descriptor = os.open(
            self.folder / version.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        secret.versions.append(version)
        self.save()
        return version

    def read(self, version: Version) -> bytes:
        return (self.folder / version.file).read_bytes()

    def save(self) -> None:
        write_private(self.index, {"secrets": [asdict(secret) for secret in self._rows]})

    def _sweep(self) -> None:
        """Delete the files that belong to no version."""
        wanted = {version.file for secret in self._rows for version in secret.versions} | {
            self.index.name
        }
        for path in self.folder.iterdir():
            if path.name not in wanted:
                path.unlink()


def timestamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
