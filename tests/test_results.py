"""Whose a folder of results is, where a path leads to it, and what a fetch does with files that are here."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from conftest import Cloud, Done, commit, write
from inside import mirrored
from records import put, put_row

from berg import bucket as buckets
from berg import metrics, moments
from berg.bucket import Changed
from berg.fetch import NOTES, Fetch, Fetched

CPU = ["run", "-g", "0", "-n"]


def test_a_folder_of_results_has_one_live_job(cloud: Cloud, project: Path) -> None:
    def planned(*words: str) -> Done:
        return cloud.run(*CPU, "wants", *words, "--dry-run", cwd=project)

    put(cloud, "holds", "RUNNING", ago=100, folder="held/one")
    for folder in ("held/one", "held", "held/one/deep"):
        words = [*CPU, "wants", "-r", folder, "true"]
        cloud.fails(*words, cwd=project, says="holds, which has not ended")
    done = planned("train --out /root/berg_results/held/one")
    assert done.code == 1 and "berg kill holds" in done.err, done.err
    assert not cloud.read(".berg/jobs/wants_state.json")
    put(cloud, "other", "RUNNING", ago=100, folder="wants")
    done = planned("true")
    assert done.code == 1 and "other, which has not ended" in done.err, done.err
    assert planned("-r", "held/on", "true").code == 0
    put(cloud, "holds", "RUNNING", ago=1000, folder="held/one")  # it is lost
    assert planned("-r", "held/one", "true").code == 0


def test_results_in_a_folder_that_others_have_as_well_stay(cloud: Cloud) -> None:
    put(cloud, "outer", folder="top")
    put(cloud, "inner", folder="top/inner", results={"file": b"1"})
    sweep = put(cloud, "rows", job={"cmd": "true {x}", "rows": [{"x": "a"}]})
    put_row(cloud, sweep, 0, "SUCCEEDED", results="of-a")
    put(cloud, "shares", folder="of-a", results={"file": b"1"})
    for job, folder, other in (("outer", "top", "inner"), ("shares", "of-a", "rows/0")):
        assert f"results/{folder} stays: {other} has it as well" in cloud.ok("rm", "-y", job).err
    for folder in ("top/inner", "of-a"):
        assert cloud.read(f"berg_results/{folder}/file") == b"1"
    said = json.loads(cloud.ok("fetch", "rows", "--json").out)
    assert (cloud.home / "berg_results/of-a/file").read_text() == "1"
    assert Path(said["table"]).read_text().endswith("\nrows/0,SUCCEEDED,,,a\n")
    put(cloud, "also-inner", folder="top/inner")
    assert "stays" not in cloud.ok("rm", "-y", "inner", "also-inner").err
    assert not cloud.names("berg_results/top/")


@pytest.mark.slow
def test_a_relative_path_leads_to_the_results_and_a_rerun_has_its_own(
    cloud: Cloud, project: Path
) -> None:
    line = "mkdir -p berg_results/told && echo $BERG_JOB >> berg_results/told/jobs && git status -s"
    line += "; cat $BERG_REPO_DIR/train.py; echo $A $B"
    words = [*CPU, "first-told", "--env", "A=1", "--env", "B=2", "--tail", line]
    write(project, {"deep/er/file": ""})
    assert "?? berg_results" not in cloud.ok(*words, cwd=project / "deep/er").out
    assert cloud.read("berg_results/told/jobs") == b"first-told\n"
    commit(project, {"train.py": "changed"})
    words = ["rerun", "first-told", "-n", "again-told", "--env", "B=3", "--tail"]
    out = cloud.ok(*words, cwd=project).out
    assert "hello from train" in out and "\n1 3\n" in out, "the code and options of the job"
    assert cloud.read("berg_results/told/jobs") == b"first-told\n"
    assert cloud.read("berg_results/again-told/jobs") == b"again-told\n"
    write(project, {"berg_results/mine": "code\n"})
    words = [*CPU, "own-folder", "--wait", "cat berg_results/mine; ls -l | grep -c '>' || true"]
    assert cloud.run(*words, cwd=project).code == 0
    assert "\ncode\n0\n" in cloud.log("own-folder")


def test_a_place_that_cannot_be_written_is_named(cloud: Cloud, tmp_path: Path) -> None:
    cloud.bucket.write("berg_results/placed/a.txt", b"1", 0)
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file/in", Path("/proc/none")):
        cloud.fails("fetch", "placed", str(place), says="Give another folder")
    assert (tmp_path / "file").read_text() == "in the way"
    cloud.fails("fetch", "placed", str(tmp_path / ("n" * 300)), says="File name too long")


def test_a_disk_that_takes_two_names_for_one_loses_no_file_in_silence(
    cloud: Cloud, tmp_path: Path
) -> None:
    """As macOS' own does; here a folder only looks like one of such a disk."""
    for name in ("A", "a", "b"):
        cloud.bucket.write(f"berg_results/folding/{name}", name.encode(), 0)
    (tmp_path / ".BERG-PARTS").mkdir()
    for _ in range(2):
        done = cloud.ok("fetch", "folding", str(tmp_path))
        assert "a was not downloaded: this disk takes its name for" in done.err
    assert {file.name for file in tmp_path.iterdir() if file.name[0] != "."} == {"A", "b"}


def test_two_fetches_of_a_folder_take_turns(cloud: Cloud, tmp_path: Path) -> None:
    for number in range(40):
        cloud.bucket.write(f"berg_results/turns/{number}", str(number).encode(), 0)
    words = ["fetch", "turns", str(tmp_path), "--json"]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: cloud.run(*words), range(2))
    assert one.err + other.err == "", one.err + other.err
    assert {json.loads(each.out)["fetched"] for each in (one, other)} == {0, 40}


# --- a bucket's objects


def test_a_write_names_what_it_replaces(cloud: Cloud, tmp_path: Path) -> None:
    bucket = cloud.bucket
    first = bucket.write("tests/record", b"one", 0, {"key": "value"})
    assert (first.size, first.crc, first.about) == (
        3,
        google_crc32c.value(b"one"),
        {"key": "value"},
    )
    again = bucket.write("tests/record", b"one", 0, {"key": "value"})  # an answer that was lost
    assert again.generation == first.generation == bucket.get("tests/record").generation  # type: ignore[union-attr]
    for content, about in ((b"two", {"key": "value"}), (b"one", {"key": "other"})):
        with pytest.raises(Changed):
            bucket.write("tests/record", content, 0, about)
    second = bucket.write("tests/record", b"two", first.generation)
    with pytest.raises(Changed):
        bucket.write("tests/record", b"three", first.generation)
    assert bucket.find_with_generation("tests/record") == (b"two", second.generation)
    small = bucket.put_bytes("tests/small.json", b"{}", 0, {"by": "me"})
    for generation in (0, small.generation + 1):
        with pytest.raises(Changed):
            bucket.put_bytes("tests/small.json", b"[]", generation, {})
    (listed,) = bucket.list("tests/small")
    assert (listed.generation, listed.crc, listed.about) == (
        small.generation, small.crc, {"by": "me"}
    )  # fmt: skip
    newer = bucket.put_bytes("tests/small.json", b"[]", small.generation, {})
    assert bucket.read("tests/small.json") == b"[]" and newer.generation > small.generation
    kind = bucket.client.get_blob("tests/small.json").content_type
    assert kind == "application/json"
    with pytest.raises(FileNotFoundError):
        bucket.read("tests/none")
    assert bucket.find("tests/none") is None
    assert bucket.find("tests/record", 1) == b"wo" and bucket.find("tests/record", 3) == b""


def test_objects_are_appended_copied_and_deleted_as_they_are_known(cloud: Cloud) -> None:
    bucket = cloud.bucket
    log = bucket.write("tests/log.txt", b"one,", 0)
    part = bucket.write("tests/part", b"two", 0)
    assert bucket.client.get_blob("tests/log.txt").content_type == "text/plain"
    longer = bucket.extend("tests/log.txt", log.generation, part, {"by": "me"})
    assert bucket.read("tests/log.txt") == b"one,two" and longer.about == {"by": "me"}
    assert longer.crc == google_crc32c.value(b"one,two")
    with pytest.raises(Changed):
        bucket.extend("tests/log.txt", log.generation, part, {})
    assert bucket.client.get_blob("tests/log.txt").content_type == "text/plain"
    bucket.copy("tests/log.txt", longer.generation, "tests/copy")
    bucket.write("tests/log.txt", b"new", longer.generation)
    bucket.copy("tests/log.txt", longer.generation, "tests/copy")  # it is there
    assert bucket.read("tests/copy") == b"one,two"
    with pytest.raises(Changed):
        bucket.copy("tests/log.txt", longer.generation, "tests/other-copy")
    with pytest.raises(Changed):
        bucket.delete("tests/log.txt", generation=longer.generation)
    with pytest.raises(Changed):
        bucket.delete(longer)
    bucket.delete("tests/nothing", "tests/log.txt")
    bucket.delete(*bucket.list("tests/part"), "tests/copy", "tests/nothing")
    assert not {*cloud.names("tests/")} & {"tests/log.txt", "tests/part", "tests/copy"}
    for name in "abc":
        bucket.write(f"tests/listed/{name}", b"", 0)
    listed = [each.name for each in bucket.list("tests/listed/", "tests/listed/b")]
    assert listed == ["tests/listed/b", "tests/listed/c"]


def test_a_download_is_what_its_checksum_says(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "PIECE", 7)
    content, bucket, path = bytes(range(100)), cloud.bucket, tmp_path / "file"
    bucket.write("tests/large", content, 0)
    counts: list[int] = []
    for size in (100, 99, 7, 0):  # of a log that has grown the beginning
        right = google_crc32c.value(content[:size])
        bucket.download("tests/large", path, size, right, counts.append)
        assert path.read_bytes() == content[:size] and sum(counts) == size
        counts.clear()
        with pytest.raises(Changed):
            bucket.download("tests/large", path, size, right + 1)
    with pytest.raises(FileNotFoundError):
        bucket.download("tests/none", path, 7, 0)


def test_a_token_that_ended_before_its_time_is_renewed_and_a_wrong_clock_is_known(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = cloud.bucket
    bucket.write("tests/token", b"1")
    bucket.renew()
    bucket.config.credentials.token = "of another life"
    assert bucket.read("tests/token") == b"1"
    assert bucket.offset == 0

    class Slow:
        @staticmethod
        def time() -> float:
            return time.time() - 1000

    monkeypatch.setattr(buckets, "time", Slow)
    bucket.write("tests/token", b"2")
    assert bucket.offset == pytest.approx(1000, abs=30)
    assert bucket.time() == pytest.approx(time.time(), abs=30)


def test_a_moment_is_one_of_the_newest_attempt_that_has_any(cloud: Cloud) -> None:
    def write_moment(attempt: int, rank: int, number: str, at_ns: int) -> None:
        row = [1, 1, at_ns, 0, 0o644, False, ""]
        about = {"at_ns": at_ns, "gone": {}, "rows": {f"{rank}": row}}
        name = f".berg/moments/dated/at/{attempt:04}/{rank}/{number}"
        cloud.bucket.write(name, json.dumps(about).encode(), 0)

    def newest(machines: int, before_ns: int = 1 << 62) -> tuple[int, int]:
        return moments.newest(cloud.bucket, "dated", machines, before_ns)[:2]

    assert newest(1) == (0, 0)
    for number in (1, 2):
        write_moment(1, 0, f"{number:012}", number * 10)
        write_moment(1, 1, f"{number:012}", number * 10 + 5)
    write_moment(2, 0, f"{1:012}", 30)
    assert newest(1) == (2, 30)
    assert newest(2) == (1, 25)
    assert newest(2, 25) == (1, 25) and newest(2, 24) == (1, 15) and newest(2, 14) == (0, 0)
    write_moment(2, 1, f"{0:012}", 29)
    write_moment(2, 1, f"{1:012}-partly", 31)
    assert newest(2) == (2, 31)
    write_moment(2, 0, f"{2:012}", 40)
    moments.end_for(cloud.bucket, "dated", 2, 1)
    moments.end_for(cloud.bucket, "dated", 2, 1)
    prefix = ".berg/moments/dated/at/0002/1/"
    names = [name.removeprefix(prefix) for name in cloud.names(prefix)]
    assert names == [f"{0:012}", f"{1:012}-final", f"{1:012}-partly"]
    assert newest(2) == (2, 40)
    assert newest(3) == (0, 0)
    moments.end_for(cloud.bucket, "dated", 2, 2)
    attempt, at_ns, rows = moments.newest(cloud.bucket, "dated", 3)
    assert (attempt, at_ns, {*rows}) == (2, 40, {"0", "1"})


# --- a fetch


def fetched(cloud: Cloud, name: str, to: Path, job: str = "", deleted: bool = False) -> Fetched:
    return Fetch(cloud.bucket, "berg_results/", name, to, job).run(deleted=deleted)


def texts(folder: Path) -> dict[str, str]:
    """Files below a folder, without a fetch's own notes."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != NOTES]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_fetch_brings_what_changed_and_keeps_what_is_ones_own(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berg.moments.AT_ONCE", ((8, 2), (1 << 62, 2)))  # some files are large
    put_result = lambda name, text: cloud.bucket.write(f"berg_results/again/{name}", text.encode())  # noqa: E731
    here = tmp_path / "here"
    for name in ("a", "deep/large", "gone", "gone-but-edited", "becomes/file"):
        put_result(name, f"first {name}")
    here.mkdir()
    (here / "a").write_text("first a")  # by a copy, of no fetch
    write(here, {"gone": "mine, before any fetch", "own": "own"})
    done = fetched(cloud, "again", here)
    assert {*done.new} == {"deep/large", "gone", "gone-but-edited", "becomes/file"}
    assert done.files == 5 and done.kept == {"gone": "gone.~1~"} and not done.left
    assert fetched(cloud, "again", here).new == []
    write(here, {"gone-but-edited": "edited", "deep/large": "edited once"})
    assert fetched(cloud, "again", here).kept == {
        "deep/large": "deep/large.~1~", "gone-but-edited": "gone-but-edited.~1~"
    }  # fmt: skip
    write(here, {"deep/large": "edited twice", "gone-but-edited": "edited"})
    put_result("a", "second a")
    put_result("becomes", "a file")
    for name in ("gone", "gone-but-edited", "becomes/file", "deep/large"):
        cloud.bucket.delete(f"berg_results/again/{name}")
    put_result("deep/large/now", "in a folder")
    done = fetched(cloud, "again", here, deleted=True)
    assert {*done.deleted} == {"gone", "becomes/file"}
    assert {*done.new} == {"a", "becomes", "deep/large/now"} and done.left == {}
    assert texts(here) == {
        "a": "second a", "own": "own", "gone.~1~": "mine, before any fetch", "becomes": "a file",
        "deep/large.~1~": "edited once", "deep/large.~2~": "edited twice",
        "deep/large/now": "in a folder",
        "gone-but-edited.~1~": "edited", "gone-but-edited": "edited",
    }  # fmt: skip
    assert texts(tmp_path / "here.deleted") == {
        "gone": "first gone", "becomes/file": "first becomes/file"
    }  # fmt: skip
    assert not (here / ".berg-parts").exists()
    (here / NOTES).write_text("{")  # which a full disk cut off
    done = fetched(cloud, "again", here)
    assert not done.new and not done.kept and texts(here)["a"] == "second a"


def test_what_gets_no_file_here_is_named(cloud: Cloud, tmp_path: Path) -> None:
    for name in ("a//b", "a/../c", ".git/hooks", "dir/", NOTES, "file", "file/below", "n" * 300):
        cloud.bucket.write(f"berg_results/odd-names/{name}", b"1", 0)
    (tmp_path / "here").mkdir()
    left = fetched(cloud, "odd-names", tmp_path / "here").left
    assert {*left} == {"a//b", "a/../c", ".git/hooks", "dir/", NOTES, "file/below", "n" * 300}
    assert "programs on this computer" in left[".git/hooks"]
    assert left["file/below"] == "file is a link or a file, not a folder"
    assert "too long" in left["n" * 300] and "cannot be that of a file" in left["dir/"]
    assert texts(tmp_path / "here") == {"file": "1"}


def test_a_list_of_results_leads_out_of_no_folder(cloud: Cloud, tmp_path: Path) -> None:
    """Whoever wrote the list of a moment, and what an earlier fetch has made of it."""
    rows: dict[str, list[Any]] = {}
    for name in ("good", "../up", "/abs", "a/../../up", "a//b", ".git/hooks/x", "link/x", "out/x"):
        made = cloud.bucket.write(f"berg_results/led/{name}", b"1", 0)
        rows[f"led/{name}"] = [1, made.crc, made.generation, 0, 0o644, False, ""]
    for name, to in {"link": "..", "out": str(tmp_path), "up": "../../x", "in": "good"}.items():
        rows[f"led/{name}"] = [0, 0, 0, 0, 0o777, False, to]
    about = {"at_ns": time.time_ns(), "gone": {}, "rows": rows}
    name = ".berg/moments/led/at/0001/0/000000000001-final"
    cloud.bucket.write(name, json.dumps(about).encode(), 0)
    here = tmp_path / "here"
    for _ in range(2):
        Fetch(cloud.bucket, "berg_results/", "led", here, "led").run()
    assert {path.name for path in tmp_path.iterdir()} == {"here"}
    found = {str(path.relative_to(here)) for path in here.rglob("*") if path.name != NOTES}
    assert found >= {"good", "in"} and not any(".git" in path for path in found), found
    links = [path for path in here.rglob("*") if path.is_symlink()]
    assert all(path.resolve().is_relative_to(here) for path in links), links


def test_a_fetch_goes_through_no_link_and_has_times_and_modes(cloud: Cloud, tmp_path: Path) -> None:
    mirror, folder = mirrored(cloud, tmp_path / "job", "exact")
    (folder / "deep").mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o555)
    os.utime(folder / "run.sh", (1e9, 1e9))
    (folder / "deep/file").write_text("inside")
    (folder / "link").symlink_to("deep/file")
    assert mirror.sync()
    here, outside = tmp_path / "here", tmp_path / "outside"
    here.mkdir(), outside.mkdir()
    (here / "deep").symlink_to(outside)
    done = fetched(cloud, "exact", here, "exact")
    assert done.left == {"deep/file": "deep is a link or a file, not a folder"}
    assert not [*outside.iterdir()] and {*done.new} == {"run.sh", "link"}
    about = (here / "run.sh").stat()
    assert (about.st_mtime, about.st_mode & 0o777) == (1e9, 0o755)
    assert os.readlink(here / "link") == "deep/file"
    (here / "deep").unlink()
    (here / "link").unlink()
    (here / "link").symlink_to("run.sh")  # a person's
    done = fetched(cloud, "exact", here, "exact")
    assert {*done.new} == {"deep/file", "link"} and done.kept == {"link": "link.~1~"}
    assert (here / "link").read_text() == "inside" and os.readlink(here / "link.~1~") == "run.sh"
    again = fetched(cloud, "exact", here, "exact")
    assert again.new == [] and again.files == 3


def test_a_fetch_says_what_it_has_not(cloud: Cloud, tmp_path: Path) -> None:
    put(cloud, "nothing", "FAILED")
    for more in ([], [str(tmp_path / "nothing")]):
        cloud.fails("fetch", "nothing", *more, says="no results yet. Its log: berg log nothing")
    assert cloud.run("fetch", "nosuch").code == cloud.run("fetch", "no/folder").code == 1
    here = [*cloud.home.glob("berg_results/no*"), *tmp_path.iterdir()]
    assert not here
    missing = {f"file{number}": "a pipe" for number in range(30)}
    put(cloud, "lacks", "FAILED", results={"there": b"1"}, missing=missing)
    cloud.bucket.write(".berg/moments/lacks/at/0001/0/000000000001", b'{"at_ns": "x"}', 0)
    done = cloud.run("fetch", "lacks")
    assert done.code == 0 and "lists of lacks's results cannot be read" in done.err, done.err
    assert done.err.count("is not in the bucket: a pipe") == 20
    assert "1 of 1 files new or changed" in done.err
    assert done.out.strip() == str(cloud.home / "berg_results/lacks")
    assert (cloud.home / "berg_results/lacks/there").read_text() == "1"
    both = ["--watch", "--view", "2026-01-02T03:04:05Z"]
    cloud.fails("fetch", "lacks", *both, says="only one of --watch and --view", code=2)


def test_a_fetch_keeps_what_is_edited_moves_what_is_gone_and_brings_a_view_elsewhere(
    cloud: Cloud, tmp_path: Path
) -> None:
    mirror, own = mirrored(cloud, tmp_path / "job", "viewed")
    put(cloud, "viewed", "RUNNING", ago=100)
    write(own, {"model": "one", "gone": "x"})
    (own / "link").symlink_to("gone")
    here = tmp_path / "here"
    assert mirror.sync() and cloud.run("fetch", "viewed", str(here)).code == 0
    (first,) = json.loads(cloud.run("show", "viewed", "--views", "--json").out)
    (here / "model").write_text("me!")  # as long as it was
    (here / "own").write_text("never fetched")
    time.sleep(1.1)  # a moment is named by its second
    (own / "model").write_text("two")
    (own / "gone").unlink(), (own / "link").unlink()
    (own / "link").write_text("a file")
    assert mirror.sync()
    done = cloud.run("fetch", "viewed", str(here))
    assert done.code == 0 and "your version is now model.~1~" in done.err, done.err
    assert f"such as gone, are in {here}.deleted now" in done.err
    assert texts(here) == {
        "model": "two", "model.~1~": "me!", "link": "a file", "own": "never fetched"
    }  # fmt: skip
    assert texts(tmp_path / "here.deleted") == {"gone": "x"}
    assert cloud.run("show", "viewed", "--views").out.splitlines()[1].split() == [
        first["time"], "3", "4"
    ]  # fmt: skip
    said = json.loads(cloud.run("fetch", "viewed", "--view", first["time"], "--json").out)
    named = first["time"].replace(":", "")
    assert said["folder"] == str(cloud.home / f"berg_results/viewed@{named}")
    assert texts(Path(said["folder"])) == {"model": "one", "gone": "x", "link": "x"}
    view = ["fetch", "viewed", "--view"]
    says = "no results from then. See: berg show viewed --views"
    cloud.fails(*view, "2020-01-01T00:00:00Z", says=says)
    cloud.fails(*view, "yesterday", says="is not a time")


def test_the_metrics_of_a_long_file_are_its_last_ones(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"step": number, f"of{number}": number}) for number in range(20)]
    cloud.bucket.write("berg_results/long/metrics.jsonl", "\n".join(lines).encode(), 0)
    assert len(metrics.of_results(cloud.bucket, "long").lines) == 20
    assert metrics.of_results(cloud.bucket, "none").lines == []
    monkeypatch.setattr(metrics, "MOST", 60)
    found = metrics.of_results(cloud.bucket, "long")
    assert found.damaged == 0 and [line["step"] for line in found.lines] == [18, 19]
