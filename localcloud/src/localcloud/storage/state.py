"""Buckets and objects on disk. Knows nothing of HTTP.

    <folder>/index.sqlite3            buckets, objects' metadata (WAL: survives kill -9)
    <folder>/content/<xx>/<generation>  one file per object; a generation is never used twice
    <folder>/uploads/<id>             content that is still arriving

An object exists from the moment its row is committed, which happens after its complete content was
renamed into place; a killed process leaves the old object or the new one, at worst an unused
file. Object names never become file names. All calls but those of content.py are short and
belong to the event loop's thread, so a check followed by a write is atomic without locks.

Not covered: upload sessions that outlive the server, object versions, soft delete, retention, holds, encryption keys, lifecycle rules,
fsync.
"""

import contextlib
import json
import math
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from localcloud.storage.content import Content

SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, project TEXT, resource TEXT, policy TEXT);
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT, name BLOB, generation INTEGER, resource TEXT, PRIMARY KEY (bucket, name)
);
CREATE INDEX IF NOT EXISTS objects_by_generation ON objects (generation);
"""


def timestamp(microseconds: int) -> str:
    """RFC 3339 with milliseconds, as Google writes times."""
    moment = datetime.fromtimestamp(microseconds / 1e6, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def after(prefix: bytes) -> bytes:
    """The smallest name greater than every name that starts with `prefix` (UTF-8 has no byte 0xff)."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"


@dataclass
class Upload:
    """A session for one object, whose content comes in several requests."""

    bucket: str
    resource: dict
    conditions: dict
    total: int | None
    content: Content
    done: dict | None = None  # the object, once all has come


class Storage:
    """All buckets of one cloud, below one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        for part in ("uploads", *(f"content/{number:02x}" for number in range(256))):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(
            folder / "index.sqlite3", isolation_level=None, check_same_thread=False
        )
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=NORMAL")
        self.db.executescript(SCHEMA)
        (newest,) = self.db.execute("SELECT max(generation) FROM objects").fetchone()
        self.last_generation = newest or 0
        self.uploads: dict[str, Upload] = {}
        self.write_interval = 1.0  # seconds between two writes of one object's name
        self.last_writes: dict[tuple[str, str], float] = {}
        for path in (self.folder / "uploads").iterdir():  # what an earlier process left unfinished
            path.unlink()

    def next_generation(self) -> int:
        """Microseconds since 1970, but always greater than any before."""
        self.last_generation = max(int(time.time() * 1e6), self.last_generation + 1)
        return self.last_generation

    # --- buckets

    def bucket(self, name: str) -> dict | None:
        """Return a bucket's resource with its project's id under "project"."""
        row = self.db.execute(
            "SELECT resource, project FROM buckets WHERE name=?", (name,)
        ).fetchone()
        return {**json.loads(row[0]), "project": row[1]} if row else None

    def buckets(self, project: str, prefix: str) -> list[dict]:
        """Return the buckets of a project whose names begin like this."""
        query = "SELECT resource FROM buckets WHERE project=? AND substr(name,1,?)=? ORDER BY name"
        rows = self.db.execute(query, (project, len(prefix), prefix))
        return [{**json.loads(resource), "project": project} for (resource,) in rows]

    def put_bucket(self, resource: dict) -> None:
        """Write a bucket's resource; "project" says whose it is."""
        stored = {key: value for key, value in resource.items() if key != "project"}
        self.db.execute(
            "INSERT INTO buckets (name, project, resource) VALUES (?,?,?) "
            "ON CONFLICT (name) DO UPDATE SET resource=excluded.resource",
            (resource["name"], resource["project"], json.dumps(stored)),
        )

    def delete_bucket(self, name: str) -> None:
        self.db.execute("DELETE FROM buckets WHERE name=?", (name,))

    def is_empty(self, bucket: str) -> bool:
        return (
            self.db.execute("SELECT 1 FROM objects WHERE bucket=? LIMIT 1", (bucket,)).fetchone()
            is None
        )

    def policy(self, bucket: str) -> dict | None:
        """The IAM policy that was set on a bucket, if any was."""
        (policy,) = self.db.execute("SELECT policy FROM buckets WHERE name=?", (bucket,)).fetchone()
        return json.loads(policy) if policy else None

    def set_policy(self, bucket: str, policy: dict) -> None:
        self.db.execute("UPDATE buckets SET policy=? WHERE name=?", (json.dumps(policy), bucket))

    # --- objects

    def find(self, bucket: str, name: str) -> dict | None:
        """Return the resource of an object, None if there is no such object."""
        row = self.db.execute(
            "SELECT resource FROM objects WHERE bucket=? AND name=?", (bucket, name.encode())
        ).fetchone()
        return json.loads(row[0]) if row else None

    def path(self, generation: int | str) -> Path:
        """Where the content of a generation lies."""
        return self.folder / "content" / f"{int(generation) % 256:02x}" / str(generation)

    def open_content(self, resource: dict) -> BinaryIO:
        """Open an object's content; it stays readable when the object is replaced meanwhile."""
        return self.path(resource["generation"]).open("rb", buffering=0)

    def new_content(self) -> Content:
        """Return an empty file for content that is to come."""
        return Content(self.folder / "uploads" / uuid.uuid4().hex)

    def commit(self, bucket: str, resource: dict, content: Content) -> dict:
        """Make `content` an object: give it a generation and times, replace what had its name."""
        content.close()
        content.path.touch()  # an empty object has not been written to yet
        resource = {**resource, "size": str(content.size)}
        return self._commit(bucket, resource, lambda target: content.path.replace(target))

    def copy(self, source: dict, bucket: str, resource: dict) -> dict:
        """Make an object with the content of another. Content never changes, so a hard link will
        do.
        """
        kept = {
            key: source[key]
            for key in ("size", "crc32c", "md5Hash", "componentCount")
            if key in source
        }
        original = self.path(source["generation"])
        return self._commit(bucket, {**resource, **kept}, lambda target: os.link(original, target))

    def is_too_soon(self, bucket: str, name: str) -> bool:
        """Whether an object of this name was written less than `write_interval` ago."""
        return (
            time.monotonic() - self.last_writes.get((bucket, name), -math.inf) < self.write_interval
        )

    def _note_write(self, bucket: str, name: str) -> None:
        if len(self.last_writes) > 10_000:
            self.last_writes = {
                key: at for key, at in self.last_writes.items() if self.is_too_soon(*key)
            }
        self.last_writes[bucket, name] = time.monotonic()

    def _commit(self, bucket: str, resource: dict, place: Callable[[Path], Any]) -> dict:
        old = self.find(bucket, resource["name"])
        generation = self.next_generation()
        moment = timestamp(generation)
        resource = {
            **resource,
            "bucket": bucket,
            "generation": str(generation),
            "metageneration": "1",
            **dict.fromkeys(
                ("timeCreated", "updated", "timeStorageClassUpdated", "timeFinalized"), moment
            ),
        }
        place(self.path(generation))
        self._note_write(bucket, resource["name"])
        self.db.execute(
            "INSERT OR REPLACE INTO objects VALUES (?,?,?,?)",
            (bucket, resource["name"].encode(), generation, json.dumps(resource)),
        )
        if old is not None:
            self.path(old["generation"]).unlink(missing_ok=True)
        return resource

    def change(self, resource: dict) -> dict:
        """Write changed metadata of a live object: next metageneration, new time."""
        resource = {
            **resource,
            "metageneration": str(int(resource["metageneration"]) + 1),
            "updated": timestamp(int(time.time() * 1e6)),
        }
        self._note_write(resource["bucket"], resource["name"])
        self.db.execute(
            "UPDATE objects SET resource=? WHERE bucket=? AND name=?",
            (json.dumps(resource), resource["bucket"], resource["name"].encode()),
        )
        return resource

    def delete(self, resource: dict) -> None:
        """Delete a live object and its content."""
        self.db.execute(
            "DELETE FROM objects WHERE bucket=? AND name=?",
            (resource["bucket"], resource["name"].encode()),
        )
        self.path(resource["generation"]).unlink(missing_ok=True)

    def list_objects(
        self,
        bucket: str,
        prefix: str = "",
        delimiter: str = "",
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 1000,
        trailing: bool = False,
        glob: re.Pattern[str] | None = None,
    ) -> tuple[list[dict], list[str], bytes | None]:
        """Return one page: objects, common prefixes, and the name at which the next page starts.

        Costs what it returns: a common prefix is skipped with one seek, however much lies below it.
        `start` is inclusive, `end` exclusive; `trailing` also lists objects that end in the
        delimiter; only names that match `glob` are listed.
        """
        head, separator = prefix.encode(), delimiter.encode()
        low, high = max(head, start), min(after(head), end or b"\xff")
        items: list[dict] = []
        prefixes: list[str] = []
        while True:
            query = "SELECT name, resource FROM objects WHERE bucket=? AND name>=? AND name<? ORDER BY name"
            with contextlib.closing(self.db.execute(query, (bucket, low, high))) as rows:
                for name, resource in rows:
                    if glob and not glob.fullmatch(name.decode()):
                        continue
                    if len(items) + len(prefixes) >= limit:
                        return items, prefixes, name
                    cut = name.find(separator, len(head)) if separator else -1
                    if cut < 0:
                        items.append(json.loads(resource))
                        continue
                    group = name[: cut + len(separator)]
                    prefixes.append(group.decode())
                    if trailing and name == group:
                        items.append(json.loads(resource))
                    low = after(group)
                    break
                else:
                    return items, prefixes, None
