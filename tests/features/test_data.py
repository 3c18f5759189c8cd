"""Data sets: pushed, pulled, and on machines."""

import itertools
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gcsfuse
import pytest
from conftest import Cloud, commit


@pytest.fixture
def mnist(cloud: Cloud, tmp_path: Path) -> Path:
    """A folder, and the same as a data set."""
    folder = tmp_path / "mnist"
    (folder / "train set").mkdir(parents=True)
    (folder / "train set/a.txt").write_text("grüße\n")
    (folder / "b.txt").write_text("b\n")
    assert cloud.run("data", "push", str(folder), "mnist").code == 0
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
    (row,) = json.loads(cloud.run("data", "ls", "--json").out)
    assert (row["name"], row["files"], row["bytes"]) == ("mnist", 2, 16)
    assert "c.txt" in cloud.run("data", "ls", "mnist").out
    assert cloud.run("data", "rm", "mnist", "-y").code == 0
    assert not cloud.names("data/mnist/")


def test_links_out_of_the_folder_are_no_data(cloud: Cloud, mnist: Path, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("private\n")
    (mnist / "key").symlink_to(tmp_path / "id_rsa")
    done = cloud.run("data", "push", str(mnist), "linked")
    assert done.code == 1 and "nothing was sent" in done.err and not cloud.names("data/linked/")
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
    shown = json.loads(cloud.run("show", "reads", "--json").out)
    assert shown["metadata"]["features"]["Data"]["counted"]["mnist"]["files"] == 2


def test_places_and_sets_that_cannot_be_are_refused(
    cloud: Cloud, mnist: Path, project: Path
) -> None:
    for words, reason in [
        (["--data", "none"], "Send it: berg data push"),
        (["--data", "Bad Name"], "cannot be the name"),
        (["--data", "gs://no-such-bucket/x"], "no bucket"),
        (["--data", "mnist:/root/berg_results/x"], "files of others"),
        (["--mount", "mnist:/usr/lib"], "files of others"),
        (["--mount", "mnist", "--data", "mnist:/root/data/mnist/x"], "is inside"),
    ]:
        done = cloud.run("run", "-g", "0", "--dry-run", *words, "true", cwd=project)
        assert done.code == 1 and reason in done.err, done.err


def test_a_file_that_changes_is_sent_whole_or_named(cloud: Cloud, tmp_path: Path) -> None:
    file, over = tmp_path / "moving/file", threading.Event()
    file.parent.mkdir()
    file.write_bytes(b"a" * 3_000_000)

    def write() -> None:
        for letter in itertools.cycle(b"abcdefgh"):
            file.write_bytes(bytes([letter]) * 3_000_000)
            if over.wait(0.02):
                return
            os.truncate(file, 2_000_000)
            time.sleep(0.005)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        try:
            done = cloud.run("data", "push", str(file.parent), "moving")
        finally:
            over.set()
    assert done.code == 0 or "changes all the time" in done.err, done.err
    content = cloud.read("data/moving/file")
    assert len({*content}) <= 1, "it is a mixture"
    cloud.run("data", "rm", "moving", "-y")
