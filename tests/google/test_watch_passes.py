"""Passes of a mirror that look only at what changed: what they find without a look at everything."""

import contextlib
import ctypes
import errno
import itertools
import math
import mmap
import os
import random
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from berg.google import walk
from berg.google.mirror import Mirror
from berg.google.walk import Walk
from tests.memory_bucket import Uploads


@pytest.fixture
def mirror(tmp_path):
    """A mirror that has looked at everything once, and will not do so again of its own accord."""
    folder = tmp_path / "results"
    (folder / "old").mkdir(parents=True)
    (folder / "old/file").write_text("old")
    (folder / "other").write_text("other")
    mirror = Mirror(folder, Uploads(), "berg_results/", own="job")
    look_at_everything(mirror)
    return mirror


def look_at_everything(mirror) -> None:
    mirror.watch.forget()
    settle(mirror)
    mirror.watch.next_look = math.inf


def settle(mirror) -> None:
    """Pass over what is not settled, for as long as there is something."""
    end = time.monotonic() + 20
    while mirror.sync() or mirror.failed or mirror.watch.pending:
        assert time.monotonic() < end, (mirror.failed, mirror.watch.pending)
        time.sleep(0.01)


def sent(mirror) -> dict[str, str]:
    blobs = mirror.bucket.blobs.values()
    return {blob.name.removeprefix(mirror.prefix): blob.content.decode() for blob in blobs}


def pass_without_a_look(mirror, monkeypatch) -> int:
    """Pass once; fail if everything is looked at."""
    with monkeypatch.context() as patch:
        patch.setattr(mirror.watch, "begin", lambda: pytest.fail("looked at everything"))
        number = mirror.sync()
    assert not mirror.failed, mirror.failed
    return number


def new_folders(folder: Path) -> None:
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/c/file").write_text("new")


def replaced(folder: Path) -> None:
    (folder / "part").write_text("new")
    (folder / "part").replace(folder / "old/file")


def appended(folder: Path) -> None:
    with (folder / "old/file").open("a") as file:
        file.write(" and new")


def renamed_folder(folder: Path) -> None:
    (folder / "old").rename(folder / "new")
    (folder / "new/more").write_text("more")


def moved_in(folder: Path) -> None:
    (folder.parent / "made/deep").mkdir(parents=True)
    (folder.parent / "made/deep/file").write_text("new")
    (folder.parent / "made").rename(folder / "made")


def made_anew(folder: Path) -> None:
    shutil.rmtree(folder / "old")
    (folder / "old").mkdir()
    (folder / "old/file").write_text("new")


def made_anew_with_all_above(folder: Path) -> None:
    shutil.rmtree(folder)
    (folder / "old").mkdir(parents=True)
    (folder / "old/file").write_text("new")


CHANGES = {
    new_folders: {"a/b/c/file": "new"},
    replaced: {"old/file": "new"},
    appended: {"old/file": "old and new"},
    renamed_folder: {"new/file": "old", "new/more": "more"},
    moved_in: {"made/deep/file": "new"},
    made_anew: {"old/file": "new"},
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_sent_without_a_look_at_everything(mirror, monkeypatch, change):
    change(mirror.folder)
    pass_without_a_look(mirror, monkeypatch)
    assert sent(mirror).items() >= CHANGES[change].items()


def test_a_folder_that_is_made_anew_with_all_above_is_looked_at(mirror):
    made_anew_with_all_above(mirror.folder)
    mirror.sync()
    assert sent(mirror)["old/file"] == "new"


def test_a_pass_looks_at_what_changed_and_what_leads_there(mirror, monkeypatch):
    for number in range(300):
        (mirror.folder / f"old/{number}").write_text("x")
    look_at_everything(mirror)
    looked, visit = [], Walk.visit

    def noted(self, entry, path):
        looked.append(path)
        return visit(self, entry, path)

    monkeypatch.setattr(Walk, "visit", noted)
    assert pass_without_a_look(mirror, monkeypatch) == 0
    assert looked == ["job"]  # whether the job's own folder is a link
    (mirror.folder / "old/7").write_text("changed")
    assert pass_without_a_look(mirror, monkeypatch) == 1
    assert sorted(looked) == ["job", "job", "old", "old/7"]


def test_a_file_with_another_name_is_looked_at_each_time(mirror, monkeypatch, tmp_path):
    """The kernel tells of the name that was written to, here one outside."""
    (tmp_path / "outside").write_text("1")
    os.link(tmp_path / "outside", mirror.folder / "inside")
    pass_without_a_look(mirror, monkeypatch)
    (tmp_path / "outside").write_text("2")
    pass_without_a_look(mirror, monkeypatch)
    assert sent(mirror)["inside"] == "2"


def test_a_folder_that_became_a_link_to_outside_is_not_followed(mirror, monkeypatch, tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/file").write_text("secret")
    (mirror.folder / "old/file").write_text("written just before")
    shutil.rmtree(mirror.folder / "old")
    (mirror.folder / "old").symlink_to(tmp_path / "secrets")
    pass_without_a_look(mirror, monkeypatch)
    assert "secret" not in sent(mirror).values()
    assert "outside" in mirror.refused["old"]


def test_what_is_refused_stays_so_until_it_changes(mirror, monkeypatch, tmp_path):
    (mirror.folder / "out").symlink_to(tmp_path)
    for _ in range(2):
        pass_without_a_look(mirror, monkeypatch)
        assert list(mirror.refused) == ["out"]
    (mirror.folder / "out").unlink()
    pass_without_a_look(mirror, monkeypatch)
    assert mirror.refused == {}


def test_a_link_for_the_whole_folder_of_the_job_is_watched(mirror, monkeypatch, tmp_path):
    (tmp_path / "disk").mkdir()
    (mirror.folder / "job").symlink_to(tmp_path / "disk")
    pass_without_a_look(mirror, monkeypatch)
    (tmp_path / "disk/file").write_text("new")
    pass_without_a_look(mirror, monkeypatch)
    assert sent(mirror)["job/file"] == "new"


def test_what_could_not_be_sent_is_tried_again(mirror, monkeypatch):
    def broken(*_):
        raise ConnectionError("no network")

    (mirror.folder / "other").write_text("new")
    with monkeypatch.context() as patch:
        patch.setattr(Uploads, "upload_stream", broken)
        mirror.sync()
    assert mirror.failed == {"other": "no network"}
    assert pass_without_a_look(mirror, monkeypatch) == 1


def test_a_pass_that_breaks_off_forgets_nothing(mirror):
    (mirror.folder / "other").write_text("new")
    mirror.manifest.database.close()
    mirror.sync()
    assert mirror.failed
    mirror.sync()
    assert sent(mirror)["other"] == "new"


def test_more_changes_than_the_kernel_keeps(mirror):
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    files = [(mirror.folder / name).open("ab", buffering=0) for name in ("one", "two")]
    for number in range(most // 2 + 10):  # the same twice in a row is told once
        files[number % 2].write(b"x")
        files[1 - number % 2].write(b"x")
        os.utime(mirror.folder / "one")
    (mirror.folder / "last").write_text("after the others")
    mirror.watch.read()
    assert mirror.watch.pending is None
    mirror.sync()
    assert sent(mirror)["last"] == "after the others"
    for file in files:
        file.close()


def test_more_changes_than_are_kept_in_memory(mirror, monkeypatch):
    monkeypatch.setattr(walk, "MOST", 10)
    for number in range(11):
        (mirror.folder / f"{number}").write_text("x")
    assert mirror.sync() == 11
    assert mirror.watch.pending is None


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_without_watches_each_pass_looks_at_everything(tmp_path, monkeypatch, call):
    def refuses(*_):
        ctypes.set_errno(errno.ENOSPC)
        return -1

    real = walk.c_library()
    functions = {
        name: getattr(real, name) for name in ("inotify_init1", "inotify_add_watch") if name != call
    }
    monkeypatch.setattr(walk, "c_library", lambda: SimpleNamespace(**{call: refuses}, **functions))
    mirror = Mirror(tmp_path, Uploads(), "berg_results/")
    for text in ("one", "two", "three"):
        (tmp_path / "file").write_text(text)
        assert mirror.sync() == 1
        assert mirror.watch.file == -1
    assert sent(mirror) == {"file": "three"}


def test_a_map_of_memory_is_found_by_the_next_look_at_everything(mirror):
    path = mirror.folder / "map"
    path.write_bytes(b"-" * 5000)
    look_at_everything(mirror)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 5000) as memory:
        memory[0] = ord("x")
        assert mirror.sync() == 0
        mirror.watch.next_look = 0
        assert mirror.sync() == 1
    assert sent(mirror)["map"][0] == "x"


@pytest.mark.parametrize(("took", "seconds"), [(0.001, 1), (0.1, 100), (3, 300)])
def test_looks_at_everything_are_rare_and_never_end(took, seconds):
    looked = walk.Watch(Path("/nowhere"))
    looked.looked(took)
    assert looked.next_look == pytest.approx(time.monotonic() + seconds, abs=0.5)


def test_the_end_looks_at_everything_and_gives_the_watches_back(mirror):
    assert mirror.watch.file >= 0
    mirror.finish(print)
    assert mirror.watch.file == -1
    assert mirror.watch.due() is None


def test_nothing_is_lost_while_folders_come_and_go(mirror, monkeypatch):
    """A storm of writers beside passes none of which looks at everything."""
    stop = threading.Event()
    writers = [threading.Thread(target=storm, args=(mirror.folder, n, stop)) for n in range(3)]
    for writer in writers:
        writer.start()
    end = time.monotonic() + 3
    with monkeypatch.context() as patch:
        patch.setattr(mirror.watch, "begin", lambda: pytest.fail("looked at everything"))
        while time.monotonic() < end:
            mirror.sync()
        stop.set()
        for writer in writers:
            writer.join()
        settle(mirror)
    there = {path: (mirror.folder / path).read_text() for path, _ in mirror.scan()}
    assert len(there) > 10
    assert sent(mirror).items() >= there.items()


def test_a_file_that_comes_while_its_new_folder_is_read_is_seen(mirror, monkeypatch):
    """Its folder is watched before it is read, else nobody would tell of the file."""

    def scandir(path):
        entries = list(os_scandir(path))
        if path == mirror.folder / "new":
            (path / "late").write_text("late")
        return iter(entries)

    os_scandir = os.scandir
    (mirror.folder / "new").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        pass_without_a_look(mirror, monkeypatch)
    pass_without_a_look(mirror, monkeypatch)
    assert sent(mirror)["new/late"] == "late"


def storm(folder: Path, seed: int, stop: threading.Event) -> None:
    """Make, write, move and delete folders and files, with many of the same names."""
    chance, count = random.Random(seed), itertools.count()
    while not stop.is_set():
        names = [chance.choice("abcd") for _ in range(chance.randint(1, 3))]
        path, other = folder.joinpath(*names), folder / chance.choice("abcd")
        with contextlib.suppress(OSError, shutil.Error):
            act = chance.random()
            if act < 0.1:
                path.rename(other / f"moved{next(count) % 5}")
            elif act < 0.15:
                shutil.rmtree(path)
            else:
                path.mkdir(parents=True, exist_ok=True)
                (path / f"file{chance.randint(0, 3)}").write_text(f"{seed} {next(count)}")
        time.sleep(0.001)
