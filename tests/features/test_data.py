"""Data sets: pushed, pulled, and on machines."""

import itertools
import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import gcsfuse
import pytest
from conftest import Cloud, commit, write
from inside import job_of, plan_of, run_of

from berg import BergError
from berg.bucket import Bucket
from berg.features import data


@pytest.fixture
def mnist(cloud: Cloud, tmp_path: Path) -> Path:
    """A folder, and the same as a data set."""
    folder = tmp_path / "mnist"
    write(folder, {"train set/a.txt": "grüße\n", "b.txt": "b\n"})
    assert cloud.run("data", "push", str(folder), "mnist", "--delete", "-y").code == 0
    return folder


def test_only_what_changed_is_sent_and_comes_back(
    cloud: Cloud, mnist: Path, tmp_path: Path
) -> None:
    (mnist / "b.txt").write_text("changed\n")
    (mnist / "train set/a.txt").rename(mnist / "c.txt")
    (mnist / "gone").symlink_to("nothing")
    done = cloud.run("data", "push", str(mnist), "mnist", "--delete", "-y", "--json")
    said = json.loads(done.out)
    assert (said["files"], said["sent"], said["bytes_sent"]) == (2, 2, 16), done.err
    assert said["left_out"] == {"gone": "no regular file"}
    assert cloud.names("data/mnist/") == ["data/mnist/b.txt", "data/mnist/c.txt"]
    for fetched in (2, 0):
        done = cloud.run("data", "pull", "mnist", str(tmp_path / "back"), "--json")
        assert json.loads(done.out)["fetched"] == fetched, done.err
    assert (tmp_path / "back/c.txt").read_text() == "grüße\n"


def test_links_out_of_the_folder_are_no_data(cloud: Cloud, mnist: Path, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("private\n")
    (mnist / "key").symlink_to(tmp_path / "id_rsa")
    cloud.fails("data", "push", str(mnist), "linked", says="nothing was sent")
    assert not cloud.names("data/linked/")
    assert cloud.run("data", "push", str(mnist), "linked", "--follow-links").code == 0
    assert cloud.read("data/linked/key") == b"private\n"


def test_a_job_has_the_files_as_copies_and_as_they_are_in_the_bucket(
    cloud: Cloud, mnist: Path, project: Path
) -> None:
    gcsfuse.bring(project)
    commit(project)
    look = "cat /opt/mnist/b.txt 'data set/train set/a.txt' && ls /opt/mnist && touch /opt/mnist/x"
    words = ["-g", "0", "-n", "reads", "--data", "mnist:/root/code/proj/data set"]
    words += ["--mount", "mnist:/opt/mnist", "--install", gcsfuse.INSTALL, look]
    done = cloud.run("run", *words, "--wait", cwd=project)
    assert done.code == 1 and "mnist: 2 files, 10 bytes, at /opt/mnist, mounted" in done.err, (
        done.err
    )
    log = cloud.log("reads")
    assert "b\ngrüße\nb.txt\ntrain set\n" in log and "Read-only file system" in log, log
    features = cloud.shown("reads")["metadata"]["features"]
    assert features["Data"]["counted"]["mnist"]["files"] == 2


def test_places_and_sets_that_cannot_be_are_refused(
    cloud: Cloud, mnist: Path, project: Path, faults: Any
) -> None:
    for words, reason in [
        (["--data", "none"], "Send it: berg data push"),
        (["--data", "Bad Name"], "cannot be the name"),
        (["--data", "gs://no-such-bucket/x"], "no bucket"),
        (["--mount", "mnist:/usr/lib"], "files of others"),
        (["--mount", "mnist", "--data", "mnist:/root/data/mnist/x"], "is inside"),
    ]:
        cloud.fails("run", "-g", "0", "--dry-run", *words, "true", says=reason, cwd=project)
    cloud.call("POST", "/storage/v1/b?project=berg-local", {"name": "of-others"})
    theirs = replace(cloud.config, bucket="of-others")
    Bucket(theirs).write("set/file", b"1")
    assert re.search(
        "may be refused gs://of-others. An admin.* --member=serviceAccount:berg-worker@",
        cloud.ok("run", "--dry-run", "--data", "gs://of-others/set", "true", cwd=project).err,
    )
    faults("storage.objects.list", status=403, match="of-others")
    with pytest.raises(BergError, match="set may not be read. .*--member=user:YOUR_ADDRESS"):
        data.listed(theirs, "gs://of-others/set")


def test_what_is_copied_fits_the_disk_and_a_mount_need_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "count", lambda *_, **__: {"files": 1, "bytes": 900e9})
    monkeypatch.setattr(data, "image_gb", lambda *_: 50)
    data.Data(mount=["big"]).change(plan_of(None, job_of("mounts")))
    with pytest.raises(BergError, match="has 900 GB, the image 50, and the disk 200.*--mount"):
        data.Data(data=["big"]).change(plan_of(None, job_of("copies")))


def test_a_file_that_changes_is_sent_whole_or_named(cloud: Cloud, tmp_path: Path) -> None:
    file, over = tmp_path / "moving/file", threading.Event()
    file.parent.mkdir()
    file.write_bytes(b"a" * 3_000_000)

    def change() -> None:
        for letter in itertools.cycle(b"abcdefgh"):
            file.write_bytes(bytes([letter]) * 3_000_000)
            if over.wait(0.02):
                return
            os.truncate(file, 2_000_000)
            time.sleep(0.005)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(change)
        try:
            done = cloud.run("data", "push", str(file.parent), "moving")
        finally:
            over.set()
    assert done.code == 0 or "changes all the time" in done.err, done.err
    content = cloud.read("data/moving/file")
    assert len({*content}) <= 1, "it is a mixture"
    cloud.run("data", "rm", "moving", "-y")


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("mnist", "mnist", "/root/data/mnist"),
        ("mnist:/opt/x", "mnist", "/opt/x"),
        ("mnist:/root/code/proj/data", "mnist", "/root/code/proj/data"),
        ("gs://b/c/d/", "gs://b/c/d", "/root/data/d"),
        ("gs://b/c:/mnt/c", "gs://b/c", "/mnt/c"),
        ("mnist:/root/bergs", "mnist", "/root/bergs"),
    ],
)
def test_where_a_data_set_comes_to(text: str, name: str, place: str) -> None:
    assert data.wanted(text) == data.wanted(text, is_mount=True) == (name, PurePosixPath(place))


@pytest.mark.parametrize(
    ("place", "is_mount", "says"),
    [
        ("data", False, "is no full path"), ("/opt/../etc", False, "is no full path"),
        ("/", False, "is no full path"), ("/root", False, "files of others"),
        ("/root/code", False, "files of others"), ("/root/berg/x", False, "files of others"),
        ("/root/berg_results/x", False, "files of others"),
        ("/root/code/proj", False, ""), ("/usr/share/x", False, ""),
        ("/root/code/proj", True, "files of others"), ("/usr/share/x", True, "files of others"),
    ],
)  # fmt: skip
def test_where_no_data_set_comes_to(place: str, is_mount: bool, says: str) -> None:
    with pytest.raises(BergError, match=says) if says else nullcontext():
        assert data.wanted(f"mnist:{place}", is_mount) == ("mnist", PurePosixPath(place))


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (999, "999 bytes"),
        (1000, "1 kB"),
        (1_500_000, "1.5 MB"),
        (2.5e9, "2.5 GB"),
        (3e12, "3,000.0 GB"),
    ],
)
def test_sizes_in_words(size: float, says: str) -> None:
    assert data.in_words(size) == says


def test_which_files_are_data(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", ".hidden", ".DS_Store", "sub/.DS_Store", "sub/b", "line\nbreak"):
        (folder / name).write_text(name)
    (folder / "u\u0308").write_text("as macOS writes it")
    (folder / "folder").symlink_to("sub")
    (folder / "same").symlink_to("a")
    os.mkfifo(folder / "pipe")
    files, left = data.walk(folder, "data/x/", False)
    assert {*files} == {f"data/x/{name}" for name in ("a", ".hidden", "sub/b", "same", "\u00fc")}
    assert left == {
        ".DS_Store": "macOS' own", "sub/.DS_Store": "macOS' own", "folder": "a link to a folder",
        "pipe": "no regular file", "line\nbreak": "its name has a line break or another control character",
    }  # fmt: skip
    assert data.walk(folder / "a", "data/x/", False) == ({"data/x/a": folder / "a"}, {})


def test_a_machine_downloads_what_it_lacks_and_no_file_elsewhere(
    cloud: Cloud, tmp_path: Path
) -> None:
    for name in ("a", "sub/b", "folder/"):
        cloud.bucket.write(f"data/brought/{name}", name.encode())
    run, place = run_of(cloud, tmp_path, job_of("brings")), tmp_path / "place"
    counted = {"brought": data.count(cloud.config, "brought", is_mount=False)}
    assert counted["brought"]["files"] == 3 and counted["brought"]["bytes"] == 13
    items = [item for item in data.listed(cloud.config, "brought") if item.name[-1] != "/"]
    counted["brought"]["checksum"] = data.fingerprint(reversed(items))
    data.bring(run, "brought", PurePosixPath(place), counted)
    assert (place / "a").read_text() == "a" and (place / "sub/b").read_text() == "sub/b"
    assert "changed since" not in run.log.read_text() and "2 files, 6 bytes" in run.log.read_text()
    before = (place / "a").stat().st_ino
    (place / "sub/b").write_text("sub/x")
    cloud.bucket.write("data/brought/c", b"new")
    data.bring(run, "brought", PurePosixPath(place), counted)
    assert (place / "a").stat().st_ino == before and (place / "sub/b").read_text() == "sub/b"
    assert "brought changed since the job was submitted" in run.log.read_text()
    cloud.bucket.write("data/brought/../up", b"out")
    with pytest.raises(BergError, match="cannot be the name of a file"):
        data.bring(run, "brought", PurePosixPath(place), counted)
    assert not (tmp_path / "up").exists()


def test_a_container_has_the_places_of_all_data(tmp_path: Path) -> None:
    run = run_of(None, tmp_path, job_of("places"))
    with data.Data(data=["one:/mnt/one", "two:/mnt/two"]).around(run):
        assert run.folders == [Path("/mnt/one"), Path("/mnt/two")]
