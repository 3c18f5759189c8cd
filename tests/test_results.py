"""Whose a folder of results is, where a path leads to it, and what a fetch does with files that are here."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Cloud

from berg import job as jobs
from berg.job import State

CPU = ["run", "-g", "0", "-n"]


def test_a_folder_of_results_has_one_live_job(cloud: Cloud, project: Path) -> None:
    assert cloud.run(*CPU, "holds", "-r", "held/one", "sleep 300", cwd=project).code == 0
    for folder in ("held/one", "held", "held/one/deep"):
        done = cloud.run(*CPU, "wants", "-r", folder, "true", cwd=project)
        assert done.code == 1 and "holds, which has not ended" in done.err, done.err
    done = cloud.run(*CPU, "wants", "train --out /root/berg_results/held/one", cwd=project)
    assert done.code == 1 and "berg kill holds" in done.err, done.err
    assert not cloud.read(".berg/jobs/wants_state.json")
    plan = ["--dry-run", "true"]
    done = cloud.run(*CPU, "other", "-r", "wants", "sleep 300", cwd=project)
    assert done.code == 0, done.err
    done = cloud.run(*CPU, "wants", *plan, cwd=project)
    assert done.code == 1 and "other, which has not ended" in done.err, done.err
    assert cloud.run("kill", "-y", "--now", "other").code == 0
    assert cloud.run(*CPU, "wants", "-r", "held/on", *plan, cwd=project).code == 0
    assert cloud.run("kill", "-y", "--now", "holds").code == 0
    assert cloud.run(*CPU, "wants", "-r", "held/one", *plan, cwd=project).code == 0


def test_results_in_a_folder_of_a_job_that_is_deleted_stay(cloud: Cloud) -> None:
    cloud.bucket.write("berg_results/top/inner/model", b"1", 0)
    times = {"SUCCEEDED": jobs.now()}
    for name, folder in (("outer", "top"), ("inner", "top/inner")):
        ended = State(name, "SUCCEEDED", results=folder, created_at=jobs.now(), times=times)
        jobs.write_state(cloud.bucket, ended, 0)
    done = cloud.run("rm", "-y", "outer")
    assert done.code == 0 and "berg_results/top stays: inner has it as well" in done.err, done.err
    assert cloud.read("berg_results/top/inner/model") == b"1"


@pytest.mark.slow
def test_folders_of_rows_are_theirs(cloud: Cloud, project: Path) -> None:
    command = "mkdir -p /root/berg_results/rows-{x}; date >/root/berg_results/rows-{x}/file"
    words = [
        "run",
        "-g",
        "0",
        "-n",
        "rows",
        "--grid",
        "x=a,b",
        "--parallel",
        "1",
        "--wait",
        command,
    ]
    assert cloud.run(*words, cwd=project).code == 0
    done = cloud.run(*CPU, "shares", "-r", "rows-a", "--wait", "true", cwd=project)
    assert done.code == 0 and cloud.read("berg_results/rows-a/file"), done.err
    done = cloud.run("rm", "-y", "shares")
    assert done.code == 0 and "berg_results/rows-a stays: rows/0 has it as well" in done.err
    assert cloud.read("berg_results/rows-a/file")
    for again in (["rerun", "rows/1"], ["run", "--resume", "rows/1"]):
        done = cloud.run(*again, "--dry-run", cwd=project)
        assert done.code == 1 and "rows/1 is a row" in done.err, done.err


@pytest.mark.slow
def test_a_relative_path_leads_to_the_results_and_a_rerun_has_its_own(
    cloud: Cloud, project: Path
) -> None:
    line = "mkdir -p berg_results/told && echo $BERG_JOB >> berg_results/told/jobs && git status -s"
    done = cloud.run(*CPU, "first-told", "--tail", line, cwd=project)
    assert done.code == 0 and "??" not in done.out, done.out
    assert cloud.read("berg_results/told/jobs") == b"first-told\n"
    done = cloud.run("rerun", "first-told", "-n", "again-told", "--wait", cwd=project)
    assert done.code == 0, done.err
    assert cloud.read("berg_results/told/jobs") == b"first-told\n"
    assert cloud.read("berg_results/again-told/jobs") == b"again-told\n"
    (project / "berg_results").mkdir()
    (project / "berg_results/mine").write_text("code\n")
    words = [*CPU, "own-folder", "--wait", "cat berg_results/mine; ls -l | grep -c '>' || true"]
    assert cloud.run(*words, cwd=project).code == 0
    assert "\ncode\n0\n" in cloud.log("own-folder")


@pytest.mark.slow
def test_what_is_edited_here_stays_and_what_the_job_deleted_is_moved(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    (project / "job.sh").write_text(
        "cd $BERG_RESULTS_DIR; [ $BERG_ATTEMPT = 1 ] && { echo 1 >a; echo 1 >b; echo x >gone; ln -s a is; exit 3; }\n"
        "echo 2 >a; echo 2 >b; rm gone is; echo 3 >is; mkdir dir; ln -s ../a dir/link\n"
    )
    here = tmp_path / "here"
    assert cloud.run(*CPU, "edits", "--wait", "bash job.sh", cwd=project).code == 3
    assert cloud.run("fetch", "edits", str(here)).code == 0
    (first, *_) = reversed(json.loads(cloud.run("show", "edits", "--views", "--json").out))
    (here / "a").write_text("9\n")  # as long as it was
    (here / "own").write_text("never fetched\n")
    time.sleep(1.1)  # a moment is named by its second
    assert cloud.run("run", "--resume", "edits", "--wait", cwd=project).code == 0
    done = cloud.run("fetch", "edits", str(here))
    assert done.code == 0 and "your version is now a.~1~" in done.err, done.err
    read = {p.name: p.read_text() for p in here.iterdir() if p.is_file() and p.name[0] not in ".b"}
    assert read == {"a": "2\n", "a.~1~": "9\n", "is": "3\n", "own": "never fetched\n"}, done.err
    assert (here / "b").read_text() == "2\n" and (here / "dir/link").read_text() == "2\n"
    assert (tmp_path / "here.deleted/gone").read_text() == "x\n"
    then = tmp_path / "then"
    assert cloud.run("fetch", "edits", str(then), "--view", first["time"]).code == 0
    assert (then / "a").read_text() == "1\n" and (then / "gone").read_text() == "x\n"
    done = cloud.run("fetch", "edits", str(then), "--view", "2020-01-01T00:00:00Z")
    assert done.code == 1 and "berg show edits --views" in done.err
    assert "is not a time" in cloud.run("fetch", "edits", "--view", "yesterday").err


def test_a_place_that_cannot_be_written_is_named(cloud: Cloud, tmp_path: Path) -> None:
    cloud.bucket.write("berg_results/placed/a.txt", b"1", 0)
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file/in", Path("/proc/none")):
        done = cloud.run("fetch", "placed", str(place))
        assert done.code == 1 and "Give another folder" in done.err, done.err
    assert (tmp_path / "file").read_text() == "in the way"
    done = cloud.run("fetch", "placed", str(tmp_path / ("n" * 300)))
    assert done.code == 1 and "File name too long" in done.err, done.err


def test_a_disk_that_takes_two_names_for_one_loses_no_file_in_silence(
    cloud: Cloud, tmp_path: Path
) -> None:
    """As macOS' own does; here a folder only looks like one of such a disk."""
    for name in ("A", "a", "b"):
        cloud.bucket.write(f"berg_results/folding/{name}", name.encode(), 0)
    (tmp_path / ".BERG-PARTS").mkdir()
    for _ in range(2):
        done = cloud.run("fetch", "folding", str(tmp_path))
        assert done.code == 0 and "a was not downloaded: this disk takes its name for" in done.err
    assert {file.name for file in tmp_path.iterdir() if file.name[0] != "."} == {"A", "b"}


def test_two_fetches_of_a_folder_take_turns(cloud: Cloud, tmp_path: Path) -> None:
    for number in range(40):
        cloud.bucket.write(f"berg_results/turns/{number}", str(number).encode(), 0)
    words = ["fetch", "turns", str(tmp_path), "--json"]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: cloud.run(*words), range(2))
    assert one.err + other.err == "", one.err + other.err
    assert {json.loads(each.out)["fetched"] for each in (one, other)} == {0, 40}
