"""Any writer, any trouble: what lies in the folder lies in the bucket, and nothing of anybody
else's is touched.

A model-based test. The folder is the model; beside it stands what others put into the bucket.
"""

import contextlib
import os
import random
import shutil
import tempfile
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from berg.google import fetch, mirror, storage, views
from berg.google.mirror import Mirror

MB = 1 << 20
NAMES = ["a", "b", "d/a", "d/b", "d/e/a", "job/a", "job/d/a"]
names = st.sampled_from(NAMES)
# Over each limit of what sends them: tails from 1 MiB, large files from 2, another kind of upload
# over 8.
SIZES = [0, 1, 1000, MB, 2 * MB + 1, 5 * MB, 8 * MB, 8 * MB + 1]
sizes = st.sampled_from([0, 1, 5, 20, 1000] * 3 + SIZES)
TROUBLES = [
    ("storage.objects.insert", {"status": 503}),
    ("storage.objects.insert", {"status": 429}),
    ("storage.objects.insert", {"status": 403}),
    ("storage.objects.insert", {"reset": True}),
    ("storage.objects.insert", {"reset": True, "after_handler": True}),
    ("storage.objects.insert", {"delay": 1.5}),
    ("storage.objects.compose", {"status": 503}),
    ("storage.objects.compose", {"status": 403}),
    ("storage.objects.compose", {"reset": True, "after_handler": True}),
    ("storage.objects.delete", {"status": 403}),
    ("storage.objects.get", {"reset": True}),
    ("storage.objects.list", {"status": 503}),
]


class AnyWriter(RuleBasedStateMachine):
    bucket: storage.Bucket
    cloud: object

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed):
        self.random = random.Random(seed)
        self.top = Path(tempfile.mkdtemp(prefix="model-"))
        self.name = uuid.uuid4().hex
        self.prefix = f"{self.name}/"
        self.disk = 0
        self.theirs: dict[str, bytes] = {}
        self.mirror = self.on_another_disk()
        self.mirror.restore()

    def on_another_disk(self) -> Mirror:
        self.disk += 1
        folder = self.top / str(self.disk) / "berg_results"
        (folder / "job").mkdir(parents=True)
        return self.with_folder(folder)

    def with_folder(self, folder: Path) -> Mirror:
        return Mirror(
            folder,
            self.bucket,
            self.prefix,
            f"{self.name}/{self.disk}",
            "job",
            f".berg/folders/{self.name}/",
            f".berg/views/{self.name}/{self.disk}/",
            "machine",
            timeout=1.0,
        )

    def data(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def path(self, name: str) -> Path:
        path = self.mirror.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, RuntimeError):
            path.resolve(strict=True)
            return path
        path.unlink(missing_ok=True)  # a link to nothing, or in a circle
        return path

    # --- programs that write

    @rule(name=names, size=sizes)
    def write(self, name, size):
        self.path(name).write_bytes(self.data(size))

    @rule(name=names, size=sizes)
    def write_beside_and_rename(self, name, size):
        temporary = self.path(f"{name}.part")
        temporary.write_bytes(self.data(size))
        temporary.rename(self.path(name))

    @rule(name=names, size=sizes)
    def append(self, name, size):
        with self.path(name).open("ab") as file:
            file.write(self.data(size))

    @rule(name=names, at=sizes, size=st.integers(0, 3000))
    def write_in_place(self, name, at, size):
        path = self.path(name)
        path.touch()
        with path.open("r+b") as file:
            file.seek(min(at, path.stat().st_size))
            file.write(self.data(size))

    @rule(name=names, size=sizes)
    def truncate(self, name, size):
        if self.path(name).exists():
            os.truncate(self.path(name), size)

    @rule(name=names, to=names)
    def rename(self, name, to):
        if self.path(name).exists():
            self.path(name).rename(self.path(to))

    @rule(name=names, to=names)
    def link(self, name, to):
        self.path(to).unlink(missing_ok=True)
        self.path(to).symlink_to(self.path(name))

    @rule(name=names)
    def delete(self, name):
        self.path(name).unlink(missing_ok=True)

    # --- the machine, the bucket, and others

    @rule()
    def sync(self):
        self.mirror.sync()

    @rule(seconds=st.sampled_from([0, 0.05, 0.3]))
    def sync_for_a_while(self, seconds):
        self.mirror.sync(seconds)

    @rule(trouble=st.sampled_from(TROUBLES), times=st.integers(1, 2), skip=st.integers(0, 3))
    def make_trouble(self, trouble, times, skip):
        method, what = trouble
        self.cloud.fault(method, times=times, skip=skip, match=self.prefix, **what)

    @rule(name=names, size=st.integers(0, 50))
    def another_writes(self, name, size):
        data = self.data(size)
        with contextlib.suppress(Exception):  # it is there already, or meets the trouble
            self.bucket.write(self.prefix + name, data, generation=0)
            self.theirs[name] = data

    @rule()
    def worker_dies(self):
        self.end_uploads()
        self.cloud.call("DELETE", "/_berg/faults")
        self.mirror = self.with_folder(self.mirror.folder)
        self.mirror.restore(bring=False)

    @rule()
    def machine_is_preempted(self):
        self.mirror.finish(lambda text: None)
        self.end_uploads()
        before, links = self.files(), self.links()
        self.mirror = self.on_another_disk()
        _, left = self.mirror.restore()
        there, here = self.objects(), self.files()
        ours = {name for name in before if name not in self.theirs}
        assert {name: here.get(name) for name in ours} == {name: before[name] for name in ours}
        assert left == {} and here.keys() <= ours | self.theirs.keys()
        assert self.links() == links
        # What its own folder had from others is here now, and may be written to, as on any disk.
        self.theirs = {name: data for name, data in self.theirs.items() if name not in here}
        assert all(there[name] == data for name, data in self.theirs.items())

    def end_uploads(self):
        """What was under way may arrive, but nobody goes on with it, as after a kill."""
        self.mirror.give_up(lambda sending: True)
        for thread in threading.enumerate():
            if thread.name == "mirror":
                thread.join()

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.mirror.folder)): path.read_bytes()
            for path in self.mirror.folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    def links(self) -> dict[str, str]:
        """The links, and where each leads."""
        found = {}
        for path in self.mirror.folder.rglob("*"):
            if path.is_symlink():
                to = os.path.normpath(path.parent / path.readlink())
                found[str(path.relative_to(self.mirror.folder))] = os.path.relpath(
                    to, self.mirror.folder
                )
        return found

    def objects(self) -> dict[str, bytes]:
        listed = self.bucket.list(self.prefix)
        return {
            blob.name.removeprefix(self.prefix): self.bucket.read(blob.name, blob.size)
            for blob in listed
        }

    def teardown(self):
        if not hasattr(self, "mirror"):
            return
        left = self.mirror.finish(lambda text: None)
        self.end_uploads()
        self.cloud.call("DELETE", "/_berg/faults")
        assert self.mirror.conclude(left) == {}
        files, objects = self.files(), self.objects()
        missing = {name for name, data in files.items() if objects.get(name) != data}
        assert missing <= set(self.theirs) and missing <= set(left), (
            "what is not there has another's object, and is told"
        )
        for name, data in self.theirs.items():
            assert objects[name] == data or objects[name] == files.get(name), (
                "another's is as it was, or was the same"
            )
        view = views.at(views.of_job(self.bucket, self.name))
        assert view.final and view.rows.keys() == files.keys() - missing | self.links().keys()
        assert list(self.bucket.list(f".berg/tmp/{self.name}/")) == []
        assert fetch.fetch(self.bucket, self.prefix, self.top / "fetched")[2] == {}
        fetched = {
            str(p.relative_to(self.top / "fetched")): p.read_bytes()
            for p in (self.top / "fetched").rglob("*")
            if p.is_file()
        }
        assert fetched == objects
        shutil.rmtree(self.top)


@pytest.fixture
def quick(monkeypatch):
    """Pauses that a test need not wait for; their order stays."""
    for name, seconds in (
        ("LAST_TIMEOUT", 1.0),
        ("SHORT_TIMEOUT", 1.0),
        ("RESTORE_PAUSES", (0.1,) * 5),
    ):
        monkeypatch.setattr(mirror, name, seconds)


def test_any_writer_under_any_trouble(bucket, cloud, quick):
    AnyWriter.bucket, AnyWriter.cloud = bucket, cloud
    few = settings(
        max_examples=4,
        stateful_step_count=15,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(AnyWriter, settings=few)
