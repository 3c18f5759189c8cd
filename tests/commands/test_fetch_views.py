"""What `berg fetch` makes of a job's views: the folder as the job left it, and nothing lost here."""

import base64
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from berg import BergError, job
from berg.commands import results
from berg.google import fetch, views
from berg.google.sending import RECORD, WRITER
from berg.google.views import Head, Row
from berg.laptop import lookup, records
from berg.states import Stored

S = 10**9
LONG_AGO = 1_600_000_000 * S + 123_456_789


class Machine:
    """What a job's machine would write to the bucket."""

    def __init__(self, bucket, name: str = "job", results_dir: str = "exp/job"):
        self.bucket, self.name, self.folder = bucket, name, results_dir
        self.number, self.is_over = 0, True

    def put(self, path: str, content: bytes, to: str = "", **details) -> Row:
        """Write a file of the results, with its row."""
        path = f"{self.folder}/{path}"
        blob_name = to or f"berg_results/{path}"
        self.bucket.put(blob_name, content, None, {WRITER: f"{self.name}/d0"})
        blob = self.bucket.get(blob_name)
        known = {"size": blob.size, "crc32c": blob.crc32c, "generation": blob.generation}
        details = {"mtime_ns": LONG_AGO, "changed_ns": time.time_ns(), "object": to, **details}
        return Row(path, **known, **details)

    def row(self, path: str, **details) -> Row:
        return Row(f"{self.folder}/{path}", changed_ns=time.time_ns(), **details)

    def publish(self, *rows: Row, full: bool = False, final: bool = False) -> int:
        """Write the next view; return its time."""
        self.number += 1
        head = Head(time.time_ns(), "m", full=full or self.number == 1, final=final)
        name = f".berg/views/{self.name}/d0/{self.number:08}"
        self.bucket.write(name, views.encode(head, map(views.line, rows)), 0)
        return head.at_ns

    def stored(self) -> Stored:
        summary = job.Summary(results_dir=self.folder, user="tester")
        state = job.State(state="SUCCEEDED" if self.is_over else "RUNNING", job=summary)
        return Stored(self.name, state, 1)

    def fetch(self, target: Path, **wanted) -> results.Fetched:
        found = lookup.Found(self.name, False, f"berg_results/{self.folder}/", self.stored())
        return results.fetch_once(self.bucket, found, target, target, results.Wanted(**wanted))


@pytest.fixture
def machine(bucket):
    return Machine(bucket)


def tree(folder: Path) -> dict[str, bytes | str]:
    """Return the content of the files below a folder, and the targets of links."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_a_folder_comes_as_its_job_left_it(machine, tmp_path):
    target = tmp_path / "here"
    script = machine.put("bin/run.sh", b"#!/bin/sh\n", mode=0o755)
    gone = replace(machine.put("ckpt-1/w", b"old"), gone=True)
    machine.bucket.put("berg_results/exp/job/notes.txt", b"by hand", None, None)
    data = base64.b64encode(b"small").decode()
    inline = machine.put("state.json", b"small", data=data)
    machine.bucket.delete("berg_results/exp/job/state.json")
    staged = machine.put("ckpt.pt", b"new bytes", to=".berg/tmp/job/d0-staged/1")
    machine.put("ckpt.pt", b"old bytes")
    rows = [
        script,
        gone,
        inline,
        staged,
        machine.row("last", link="ckpt-2", mtime_ns=LONG_AGO),
        machine.row("bin/up", link="../ckpt.pt", mtime_ns=LONG_AGO),
        machine.put("ckpt-2/w", b"w"),
        machine.put("log", b"line\n", grows=True),
    ]
    machine.put("log", b"line\nmore\n")
    machine.put(RECORD, b"{}")
    machine.put("deleted long ago", b"no view has it any more")
    machine.publish(*rows, final=True)
    found = machine.fetch(target)
    left = {
        "bin/run.sh": b"#!/bin/sh\n",
        "berg_job_metadata.json": b"{}",
        "bin/up": "../ckpt.pt",
        "ckpt-2/w": b"w",
        "ckpt.pt": b"new bytes",
        "last": "ckpt-2",
        "log": b"line\nmore\n",
        "notes.txt": b"by hand",
        "state.json": b"small",
    }
    assert tree(target) == left and (found.new, found.files, found.missing) == (9, 9, {})
    times = {path: (target / path).lstat().st_mtime_ns for path in left}
    assert {times[path] // 10**6 for path in left.keys() - {"notes.txt", RECORD}} == {
        LONG_AGO // 10**6
    }
    modes = {path: (target / path).stat().st_mode & 0o111 for path in ("bin/run.sh", "log")}
    assert modes == {"bin/run.sh": 0o111 & ~umask(), "log": 0}
    again = machine.fetch(target)
    assert (again.new, again.files) == (0, 9) and tree(target) == left
    assert times == {path: (target / path).lstat().st_mtime_ns for path in left}


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_unchanged_files_are_not_read(machine, tmp_path, monkeypatch):
    machine.publish(machine.put("a", b"a"), machine.row("b", link="a"), final=True)
    machine.fetch(tmp_path / "here")

    def refuse(*given):
        raise AssertionError("a file was read")

    monkeypatch.setattr("berg.google.fetch.crc32c_of", refuse)
    monkeypatch.setattr(fetch, "is_copy", refuse)
    assert machine.fetch(tmp_path / "here").new == 0


def test_what_was_edited_here_is_kept_and_copies_are_replaced(machine, tmp_path, capsys):
    target = tmp_path / "here"
    rows = [
        machine.put(name, b"first ")
        for name in ("copy", "edited", "sly", "into-folder", "copy-into-folder", "dir/x")
    ]
    machine.publish(*rows, machine.row("link", link="copy"))
    machine.fetch(target)
    (target / "edited").write_bytes(b"mine")
    when = (target / "sly").stat().st_mtime_ns
    (target / "sly").write_bytes(b"equal!")  # of the same size, at the same time
    os.utime(target / "sly", ns=(when, when))
    (target / "edited.~1~").write_bytes(b"older")
    (target / "into-folder").write_bytes(b"a file")
    (target / "link").unlink()
    (target / "link").symlink_to("edited")
    rows = [
        machine.put(name, b"second")
        for name in ("copy", "edited", "sly", "into-folder/f", "copy-into-folder/f", "dir")
    ]
    machine.publish(*rows, machine.row("link", link="sly"), full=True, final=True)
    for path in ("into-folder", "copy-into-folder", "dir/x"):
        machine.bucket.delete(f"berg_results/exp/job/{path}")
    assert machine.fetch(target).missing == {}
    assert tree(target) == {
        "copy": b"second",
        "copy-into-folder/f": b"second",
        "dir": b"second",
        "dir.~1~/x": b"first ",
        "edited": b"second",
        "edited.~1~": b"older",
        "edited.~2~": b"mine",
        "into-folder/f": b"second",
        "into-folder.~1~": b"a file",
        "link": "sly",
        "link.~1~": "edited",
        "sly": b"second",
        "sly.~1~": b"equal!",
    }
    assert f"{target}/edited is not as Berg wrote it, and was renamed to edited.~2~" in (
        capsys.readouterr().err
    )


def test_copies_of_what_the_job_deleted_are_moved_away(machine, tmp_path):
    """The database would be rolled back by a journal of before."""
    target, machine.is_over = tmp_path / "here", False
    rows = {
        name: machine.put(name, name.encode())
        for name in ("db", "db-journal", "old/a", "old/b", "x", "empty/c")
    }
    machine.publish(*rows.values())
    machine.fetch(target)
    (target / "old/b").write_bytes(b"edited")
    gone = [
        replace(rows[name], gone=True, changed_ns=time.time_ns())
        for name in ("db-journal", "old/a", "old/b", "x", "empty/c")
    ]
    machine.publish(*gone, machine.put("x/y", b"now a folder"), final=True)
    machine.bucket.delete("berg_results/exp/job/x")
    machine.is_over = True
    machine.fetch(target)
    assert tree(target) == {"db": b"db", "old/b": b"edited", "x/y": b"now a folder"}
    away = {name: name.encode() for name in ("db-journal", "old/a", "x", "empty/c")}
    assert tree(tmp_path / "here.deleted") == away and not (target / "empty").exists()
    found = machine.fetch(tmp_path / "brought", deleted=True)
    assert tree(tmp_path / "brought") == {
        **{k: v for k, v in away.items() if k != "x"},
        "old/b": b"old/b",
    }
    assert found.files == 4 and lookup.count_deleted(machine.bucket, "job") == (4, 27)


def test_while_a_job_runs_its_newer_files_come_too(machine, tmp_path):
    target, machine.is_over = tmp_path / "here", False
    deleted, same = machine.put("deleted", b"1"), machine.put("same", b"1")
    machine.publish(machine.put("model", b"old"), deleted, machine.put("again", b"1"))
    gone = [replace(deleted, gone=True), replace(same, gone=True, changed_ns=LONG_AGO)]
    machine.publish(*gone, machine.row("again", gone=True))
    machine.put("model", b"newer than the view")
    machine.put("again", b"written again")
    machine.put("later", b"later")
    machine.fetch(target)
    left = {"model": b"newer than the view", "again": b"written again", "later": b"later"}
    left["same"] = b"1"  # written again with the content of before
    assert tree(target) == left
    machine.is_over = True  # as of a machine that was lost
    machine.fetch(target)
    assert tree(target) == left


def test_what_another_job_wrote_is_left_out_and_named(machine, tmp_path, capsys):
    mine = machine.put("mine", b"1")
    machine.publish(mine, machine.put("replaced", b"2"), final=True)
    other = Machine(machine.bucket, "other")
    other.put("replaced", b"the other's")
    other.put("theirs", b"3")
    found = machine.fetch(tmp_path / "here")
    assert tree(tmp_path / "here") == {"mine": b"1"} and len(found.missing) == 2
    results.raise_missing(found.missing)
    said = " ".join(capsys.readouterr().err.split())
    assert "Left out: 2 files, such as berg_results/exp/job/replaced: the job other wrote" in said


def test_an_older_view_comes_as_it_was(machine, tmp_path, monkeypatch):
    state = machine.stored().state.to_json()
    machine.bucket.write(job.state_path("job"), state, metadata={"state": state})
    first = machine.put("ckpt", b"first")
    clock = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: clock)
    rows = [machine.put("lost", b"gone since"), machine.put("changed", b"newer since")]
    machine.publish(first, machine.row("last", link="ckpt"), *rows)
    clock += 100 * S
    machine.publish(machine.put("ckpt", b"second", to=".berg/tmp/job/d0-staged/1"))
    machine.bucket.delete("berg_results/exp/job/lost")
    machine.put("changed", b"newer")
    moments = records.moments(machine.bucket.config, "job")
    assert [(each.files, each.bytes, each.state) for each in moments] == [
        (4, 26, "SUCCEEDED"),
        (4, 27, "SUCCEEDED"),
    ]
    found = machine.fetch(tmp_path / "here", moment=moments[0].time)
    assert tree(tmp_path / "here") == {"ckpt": b"first", "last": "ckpt"}
    assert [*found.missing] == [f"berg_results/exp/job/{name}" for name in ("changed", "lost")]
    with pytest.raises(BergError, match="2 files could not be fetched: the bucket does not have"):
        results.raise_missing(found.missing)
    for moment, message in {
        "2020-01-01T00:00:00Z": "job has no view of 2020-01-01T00:00:00Z, or of a time before",
        "yesterday": "'yesterday' is not a time such as 2",
    }.items():
        with pytest.raises(BergError, match=message) as error:
            machine.fetch(tmp_path / "none", moment=moment)
        assert "berg show job --views" in str(error.value)


def test_files_in_other_folders_of_the_job_are_of_its_view_too(machine, tmp_path):
    other = Machine(machine.bucket, "job", "beside")
    machine.bucket.write(".berg/folders/job/1", b"", metadata={"folder": "beside"})
    kept = other.put("tool", b"x", mode=0o700)
    gone = replace(other.put("gone", b"x"), gone=True)
    link = other.row("link", link="tool")
    machine.publish(machine.put("mine", b"1"), kept, gone, link, final=True)
    machine.fetch(tmp_path / "here")
    assert tree(tmp_path / "here") == {"mine": b"1", "beside/tool": b"x", "beside/link": "tool"}
    assert os.access(tmp_path / "here/beside/tool", os.X_OK)


def test_a_folder_that_cannot_be_written_is_named_with_what_to_give(berg, tmp_path):
    berg.bucket.write("berg_results/exp/a.txt", b"1", 0)
    (berg.home / "berg_results").write_text("in the way")
    refused = berg("fetch", "exp")
    folder = berg.home / "berg_results/exp"
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{folder} cannot be written: Not a directory" in refused.stderr
    assert refused.stderr.rstrip().endswith("Give another folder: berg fetch exp FOLDER")
    assert (berg.home / "berg_results").read_text() == "in the way"
    assert "Give another folder" in berg("fetch", "exp", "/proc/none").stderr
    assert berg("fetch", "exp", str(tmp_path / "here")).returncode == 0
    assert (tmp_path / "here/a.txt").read_bytes() == b"1"
