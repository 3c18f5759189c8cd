"""Objects brought to a folder: whole, in their places, and nothing else touched."""

import gzip
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import library

from berg import BergError
from berg.google import api, storage
from berg.google.fetch import (
    LOCK,
    Gone,
    LeftOut,
    NoPlace,
    fetch,
    in_order,
    is_parts,
    make_parts,
)
from berg.google.mirror import Mirror


@pytest.fixture
def mirror(bucket, tmp_path):
    folder = tmp_path / "machine/berg_results"
    folder.mkdir(parents=True)
    return Mirror(folder, bucket, "berg_results/", "job/1", own="job", records=".berg/folders/job/")


def there(mirror) -> dict[str, bytes]:
    return {
        blob.name: mirror.bucket.read(blob.name, blob.size)
        for blob in mirror.bucket.list("berg_results/")
    }


def here(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def another(mirror, tmp_path) -> Mirror:
    """The mirror of the machine that goes on with the job."""
    folder = tmp_path / "next/berg_results"
    folder.mkdir(parents=True)
    return Mirror(folder, mirror.bucket, mirror.prefix, "job/2", mirror.own, mirror.records)


def test_a_link_that_takes_a_files_place_meanwhile_is_replaced_and_not_followed(bucket, tmp_path):
    """As each pass of `berg fetch --watch` may meet it."""
    outside, target = tmp_path / "authorized_keys", tmp_path / "here"
    outside.write_text("mine")
    target.mkdir()
    is_over, links = threading.Event(), []

    def put_links() -> None:
        while not is_over.is_set():
            new = tmp_path / "link"
            new.symlink_to(outside)
            new.replace(target / "model.pt")  # at once, where the file was
            links.append(1)
            time.sleep(0.001)

    racer = threading.Thread(target=put_links)
    racer.start()
    try:
        for number in range(5):
            bucket.write("berg_results/job/model.pt", b"evil" * (number + 2))
            assert fetch(bucket, "berg_results/job/", target) == (1, 1, {})
            assert outside.read_text() == "mine"
    finally:
        is_over.set()
        racer.join()
    assert len(links) > 5 and outside.read_text() == "mine"
    fetch(bucket, "berg_results/job/", target)
    assert not (target / "model.pt").is_symlink()


def test_fetch_brings_only_what_changed(mirror, tmp_path, cloud):
    for name in ("a", "b/c", "empty"):
        (mirror.folder / name).parent.mkdir(exist_ok=True)
        (mirror.folder / name).write_text(name * 10 if name != "empty" else "")
    mirror.sync()
    target = tmp_path / "here"
    assert fetch(mirror.bucket, "berg_results/", target) == (3, 3, {})
    assert (target / "b/c").read_text() == "b/c" * 10
    assert fetch(mirror.bucket, "berg_results/", target) == (0, 3, {})
    (target / "a").write_text("scribbled!")
    (mirror.folder / "b/c").write_text("new")
    mirror.sync()
    names = []
    assert fetch(mirror.bucket, "berg_results/", target, lambda name, size: names.append(name)) == (
        2,
        3,
        {},
    )
    assert sorted(names) == ["berg_results/a", "berg_results/b/c"]
    assert (target / "a").read_text() == "a" * 10
    assert [path.name for path in target.rglob("*.berg-part")] == []


def test_fetch_stays_in_its_folder(bucket, tmp_path):
    bucket.write("berg_results/../../evil", b"x")
    bucket.write("berg_results/good", b"x")
    new, total, left = fetch(bucket, "berg_results/", tmp_path / "here")
    assert (new, total, list(left)) == (1, 1, ["berg_results/../../evil"])
    assert "outside" in str(left["berg_results/../../evil"])
    assert not (tmp_path / "evil").exists() and (tmp_path / "here/good").read_bytes() == b"x"


def test_settings_of_repos_come_to_machines_alone(bucket, tmp_path):
    repos = [".git/config", "a/.Git/x", ".g\u200cit/x", "a/b/.hg/hgrc", ".SVN/x", "a/.git"]
    others = [".gitignore", "a/git/x", "a.git/x", ".github/x"]
    for name in (*repos, *others):
        bucket.write(f"x/{name}", b"1")
    new, total, left = fetch(bucket, "x/", tmp_path / "laptop")
    assert (new, total) == (4, 4) and here(tmp_path / "laptop").keys() == set(others)
    assert left.keys() == {f"x/{name}" for name in repos}
    assert {type(each) for each in left.values()} == {LeftOut}
    assert fetch(bucket, "x/", tmp_path / "machine", on_machine=True) == (10, 10, {})


def test_names_alike_do_not_meet(bucket, tmp_path):
    long = "events.out.tfevents." + "x" * 100
    objects = {f"job/{long}.{number}": os.urandom(300_000) for number in range(24)}
    objects |= {
        "job/x": b"x",
        "job/.x.berg-part": b"a file of its own",
        f"job/{'n' * 255}": b"as long as names can be",
    }
    for name, data in objects.items():
        bucket.write(name, data)
    assert fetch(bucket, "job/", tmp_path / "here") == (27, 27, {})
    assert here(tmp_path / "here") == {
        name.removeprefix("job/"): data for name, data in objects.items()
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"], "nothing is left beside it"


def test_what_has_no_place_is_told_and_the_rest_is_brought(bucket, tmp_path):
    objects = {
        "model": b"1",
        "good": b"2",
        "long/" + "l" * 256: b"3",
        "a//b": b"4",
        "n\0l": b"5",
        "folder/": b"",
    }
    for name, data in objects.items():
        bucket.write(f"job/{name}", data)
    assert fetch(bucket, "job/", tmp_path / "here")[0] == 2
    bucket.write("job/model/weights", b"6")
    new, total, left = fetch(bucket, "job/", tmp_path / "here")
    assert (new, total) == (0, 2) and here(tmp_path / "here") == {"model": b"1", "good": b"2"}
    assert sorted(left) == ["job/a//b", "job/long/" + "l" * 256, "job/model/weights", "job/n\0l"]
    assert {type(why) for why in left.values()} == {NoPlace}


def test_one_object_that_cannot_be_read_leaves_the_others(bucket, tmp_path, cloud):
    for name in "abc":
        bucket.write(f"job/{name}", name.encode())
    cloud.fault("storage.objects.get", match="/o/job/b?", status=403, times=None)
    new, _, left = fetch(bucket, "job/", tmp_path / "here")
    cloud.call("DELETE", "/_berg/faults")
    assert (new, list(left)) == (2, ["job/b"]) and here(tmp_path / "here") == {"a": b"a", "c": b"c"}


def test_objects_that_change_while_they_are_fetched(bucket, tmp_path, cloud):
    """As those of a job that runs: what is there when it is asked for is brought, and what was
    deleted is named.
    """
    for name in "ab":
        bucket.write(f"job/{name}", b"old")
    cloud.fault("storage.objects.get", match="alt=media", delay=3, times=2)
    changing = threading.Timer(1.2, lambda: (bucket.write("job/a", b"new"), bucket.delete("job/b")))
    changing.start()
    new, files, left = fetch(bucket, "job/", tmp_path / "here")
    assert (new, files, list(left)) == (1, 1, ["job/b"]) and isinstance(left["job/b"], Gone)
    changing.join()
    assert here(tmp_path / "here") == {"a": b"new"}


@pytest.fixture
def pieces(monkeypatch):
    """What counts as large is small here."""
    monkeypatch.setattr(storage, "PIECE", 1 << 20)


@pytest.mark.parametrize("trouble", [{}, {"status": 503}, {"reset": True}])
def test_a_large_object_is_brought_in_ranges_of_one_generation(
    bucket, tmp_path, cloud, pieces, trouble
):
    data = os.urandom((3 << 20) + 1)
    generation = bucket.write("job/large", data)
    bucket.write("job/small", b"x")
    cloud.call("DELETE", "/_berg/requests")
    if trouble:
        cloud.fault("storage.objects.get", match="alt=media", skip=2, times=2, **trouble)
    assert fetch(bucket, "job/", tmp_path / "here") == (2, 2, {})
    assert here(tmp_path / "here") == {"large": data, "small": b"x"}
    asked = [each["path"] for each in cloud.call("GET", "/_berg/requests")["requests"]]
    ranges = [path for path in asked if "large?" in path and "alt=media" in path]
    assert len(ranges) >= 4 and all(f"generation={generation}" in path for path in ranges), asked
    assert fetch(bucket, "job/", tmp_path / "here") == (0, 2, {})


def test_a_late_piece_of_a_large_object_is_tried_again_for_as_long_as_the_first(
    bucket, cloud, monkeypatch, pieces, tmp_path
):
    """The clock of api.py goes forward, as if each piece took ten minutes."""
    data, passed = os.urandom(3 << 20), []
    bucket.write("job/x", data)
    monkeypatch.setattr(storage, "PIECES", 1)
    bring = storage.Bucket.download_piece

    def slow(*given):
        passed.append(600)
        return bring(*given)

    monkeypatch.setattr(storage.Bucket, "download_piece", lambda *given, file: slow(*given, file))
    clock = SimpleNamespace(
        time=time.time, sleep=time.sleep, monotonic=lambda: time.monotonic() + sum(passed)
    )
    monkeypatch.setattr(api, "time", clock)
    cloud.fault("storage.objects.get", match="alt=media", status=503, skip=2)
    bucket.download("job/x", tmp_path / "x")
    assert len(passed) > 2 and (tmp_path / "x").read_bytes() == data


def test_a_large_object_with_an_encoding_is_brought_as_it_is_stored(bucket, tmp_path, pieces):
    packed = gzip.compress(os.urandom(3 << 20), 1)
    blob = library(bucket.config).blob("job/packed")
    blob.content_encoding = "gzip"
    blob.upload_from_string(packed)
    assert fetch(bucket, "job/", tmp_path / "here") == (1, 1, {})
    assert here(tmp_path / "here") == {"packed": packed}
    assert fetch(bucket, "job/", tmp_path / "here") == (0, 1, {})


def test_a_large_object_whose_content_is_not_what_its_checksum_says_is_not_brought(
    bucket, tmp_path, cloud, pieces
):
    data = os.urandom(3 << 20)
    bucket.write("job/large", data)
    files = [path for path in (cloud.folder / "storage").rglob("*") if path.is_file()]
    [content] = [path for path in files if path.read_bytes() == data]
    with content.open("r+b") as file:
        file.seek(2 << 20)
        file.write(b"bad")
    new, total, left = fetch(bucket, "job/", tmp_path / "here")
    assert (new, total, here(tmp_path / "here")) == (0, 0, {}) and "hecksum" in str(
        left["job/large"]
    )


def test_a_file_is_known_by_its_content_whatever_its_time(bucket, tmp_path):
    target = tmp_path / "here"
    for name in ("same", "other"):
        bucket.write(f"job/{name}", b"12345678")
    fetch(bucket, "job/", target)
    times = {name: (target / name).stat().st_mtime for name in ("same", "other")}
    (target / "other").write_bytes(b"87654321")
    os.utime(target / "same", (1, 1))
    brought, heard = [], []
    counts = fetch(
        bucket,
        "job/",
        target,
        lambda name, size: brought.append((name, size)),
        lambda blob: heard.append(blob.name),
    )
    assert counts == (1, 2, {}) and brought == [("job/other", 8)]
    assert heard == ["job/other", "job/same"], "those that were here already, too"
    both = {"same": b"12345678", "other": b"12345678"}
    assert here(target) == {**both, "other.~1~": b"87654321"}
    for name, time_then in times.items():
        assert (target / name).stat().st_mtime == pytest.approx(time_then, abs=1e-3)


def test_many_small_objects_are_brought_by_helpers_and_counted_once(bucket, tmp_path):
    objects = {f"job/{number:03}": b"%d" % number for number in range(80)}
    for name, data in objects.items():
        bucket.write(name, data)
    brought, heard = [], []
    counts = fetch(
        bucket,
        "job/",
        tmp_path / "here",
        lambda name, size: brought.append((name, size)),
        lambda blob: heard.append(blob.name),
    )
    assert counts == (80, 80, {}) and heard == sorted(objects)
    assert sorted(brought) == [(name, len(data)) for name, data in sorted(objects.items())]
    assert here(tmp_path / "here") == {name[4:]: data for name, data in objects.items()}


def test_what_is_on_its_way_waits_outside_of_the_results(tmp_path):
    within = tmp_path / "berg_results/job/deep"
    for folder, place in (
        (within, tmp_path),
        (tmp_path / "berg_results", tmp_path),
        (tmp_path / "elsewhere/here", tmp_path / "elsewhere"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        parts, lock = make_parts(folder)
        os.close(lock)
        assert parts.parent == place and is_parts(parts)


def test_only_folders_that_a_fetch_made_count_as_parts(tmp_path):
    made, empty, others, link, file = (tmp_path / f".berg-parts-abcd123{n}" for n in range(5))
    for folder in (made, empty, others):
        folder.mkdir()
    (made / LOCK).touch()
    (others / "x").touch()
    link.symlink_to(made)
    file.touch()
    longer = tmp_path / ".berg-parts-abcd12345"
    longer.mkdir()
    seen = [is_parts(path) for path in (made, empty, others, link, file, longer)]
    assert seen == [True, True, False, False, False, False]


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_items_are_under_way_than_were_asked_for(most):
    begun, waited = [], []

    def begin(item):
        begun.append(item)
        assert len(begun) - len(waited) <= most
        return lambda: waited.append(item) or item * 10

    ends = [(done, len(begun)) for done in in_order(begin, range(5), most)]
    assert [done for done, _ in ends] == [0, 10, 20, 30, 40]
    assert [count for _, count in ends] == [min(most + each, 5) for each in range(5)]


# --- a machine that goes on with a job


def test_every_folder_that_the_job_wrote_is_restored(mirror, tmp_path):
    files = {
        "job/a": b"1",
        "job/deep/b": b"2",
        "elsewhere/run 7/c": b"3",
        "top": b"4",
        "elsewhere/ünï/d": b"5",
    }
    for name, data in files.items():
        (mirror.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror.folder / name).write_bytes(data)
    mirror.finish(print)
    for name in ("elsewhere/run 7/theirs", "elsewhere/theirs", "other-job/x"):
        mirror.bucket.write(f"berg_results/{name}", b"another job's")
    new = another(mirror, tmp_path)
    assert new.restore() == (5, {}) and here(new.folder) == files
    assert new.sync() == 0, "what was restored counts as sent"
    for name in files:
        (new.folder / name).write_bytes(b"goes on")
    assert new.finish(print) == {} and {
        there(mirror)[f"berg_results/{name}"] for name in files
    } == {b"goes on"}


def test_a_repo_among_the_results_is_restored(mirror, tmp_path):
    (mirror.folder / "job/.git").mkdir(parents=True)
    (mirror.folder / "job/.git/config").write_text("the job's")
    (mirror.folder / "beside/.git").mkdir(parents=True)
    (mirror.folder / "beside/.git/config").write_text("beside")
    mirror.finish(print)
    new = another(mirror, tmp_path)
    assert new.restore() == (2, {})
    assert here(new.folder) == here(mirror.folder)


def test_a_later_job_begins_with_what_its_folder_has(mirror, tmp_path):
    mirror.bucket.write("berg_results/job/log", b"of the first\n")
    mirror.restore()
    with (mirror.folder / "job/log").open("ab") as file:
        file.write(b"of the second\n")
    assert mirror.finish(print) == {} and there(mirror) == {
        "berg_results/job/log": b"of the first\nof the second\n"
    }


def test_a_restore_that_is_not_whole_leads_to_no_uploads(mirror, tmp_path, cloud, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for number in range(20):
        mirror.bucket.write(f"berg_results/job/{number}", b"good")
    cloud.fault("storage.objects.get", match="job/7?", status=403, times=2)
    assert mirror.restore() == (20, {}), "it is tried again"
    new = another(mirror, tmp_path)
    cloud.fault("storage.objects.get", match="job/7?", status=403, times=None)
    with pytest.raises(BergError, match="could not be restored, and stay in the bucket"):
        new.restore()
    cloud.call("DELETE", "/_berg/faults")
    (new.folder / "job/7").write_bytes(b"anew")
    assert new.finish(print) == {}
    assert set(there(mirror).values()) == {b"good"}


def test_parts_of_a_restore_that_was_killed_are_no_results(mirror):
    (mirror.folder / ".berg-parts-abcd1234").mkdir()
    (mirror.folder / ".berg-parts-abcd1234/.berg-lock").touch()
    (mirror.folder / ".berg-parts-abcd1234/x").write_bytes(b"half")
    (mirror.folder / ".x.berg-part").write_bytes(b"a user's")
    assert mirror.finish(print) == {} and there(mirror) == {
        "berg_results/.x.berg-part": b"a user's"
    }


def test_after_a_reboot_nothing_is_sent_or_brought_again(mirror):
    (mirror.folder / "job").mkdir()
    for name in ("kept", "deleted", "changed"):
        (mirror.folder / "job" / name).write_bytes(b"x" * 1000)
    mirror.sync()
    (mirror.folder / "job/deleted").unlink()
    (mirror.folder / "job/changed").write_bytes(b"y" * 1001)
    later = Mirror(
        mirror.folder, mirror.bucket, mirror.prefix, mirror.writer, mirror.own, mirror.records
    )
    later.restore(bring=False)
    assert later.finish(print) == {} and later.bytes_sent == 1001
    assert (
        not (mirror.folder / "job/deleted").exists()
        and there(mirror)["berg_results/job/changed"] == b"y" * 1001
    )


def test_files_of_a_user_that_are_named_as_parts_are_results(mirror):
    (mirror.folder / ".berg-parts-abcd1234").mkdir()
    (mirror.folder / ".berg-parts-abcd1234/x").write_bytes(b"mine")
    (mirror.folder / ".berg-parts-abcd5678").write_bytes(b"mine too")
    assert mirror.finish(print) == {}
    assert set(there(mirror).values()) == {b"mine", b"mine too"}


def test_what_a_killed_fetch_left_is_removed_and_what_another_one_uses_stays(bucket, tmp_path):
    bucket.write("job/x", b"x")
    target = tmp_path / "here"
    target.mkdir()
    left, lock = make_parts(target)
    (left / "half").touch()
    used, other = make_parts(target)
    mine = tmp_path / ".berg-parts-abcd1234"
    mine.mkdir()
    os.close(lock)  # as when its process was killed
    fetch(bucket, "job/", target)
    os.close(other)
    assert (left.exists(), used.exists(), mine.exists()) == (False, True, True)


def test_a_file_has_its_objects_time_when_it_is_in_its_place(bucket, tmp_path, monkeypatch):
    """Another fetch may put a newer file there a moment later, which must not get this one's."""
    bucket.write("job/x", b"x")
    updated = bucket.get("job/x").updated.timestamp()
    times = []
    replace = Path.replace

    def noting(self, target):
        times.append(self.stat().st_mtime)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noting)
    fetch(bucket, "job/", tmp_path / "here")
    assert times == [pytest.approx(updated, abs=1e-3)]


def test_a_folder_where_a_file_belongs_is_kept(bucket, tmp_path, capsys):
    target = tmp_path / "here"
    bucket.write("job/model/weights", b"old")
    fetch(bucket, "job/", target)
    bucket.write("job/model", b"new")
    left = fetch(bucket, "job/", target)[2]
    assert list(left) == ["job/model/weights"] and (target / "model").read_bytes() == b"new"
    assert here(target / "model.~1~") == {"weights": b"old"}
    assert (
        f"{target}/model is not as Berg wrote it, and was renamed to model.~1~"
        in capsys.readouterr().err
    )
    assert f"berg data pull gs://{bucket.name}/job/model OTHER_FOLDER" in str(
        left["job/model/weights"]
    )
    assert fetch(bucket, "job/model/", tmp_path / "other")[2] == {}
    assert (tmp_path / "other/weights").read_bytes() == b"old"


def test_a_link_to_a_folder_elsewhere_is_not_written_through(bucket, tmp_path):
    """One that stays in the folder, and the folder's own, are the user's way to keep things."""
    outside, disk, target = tmp_path / "outside", tmp_path / "disk", tmp_path / "here"
    outside.mkdir()
    (disk / "real").mkdir(parents=True)
    target.symlink_to(disk)
    (target / "away").symlink_to(outside)
    (target / "within").symlink_to("real")
    for name in ("away/a", "away/deep/b", "within/c", "d"):
        bucket.write(f"berg_results/job/{name}", b"x")
    new, total, left = fetch(bucket, "berg_results/job/", target)
    assert (new, total) == (2, 2) and [*outside.iterdir()] == []
    assert (disk / "real/c").read_bytes() == (disk / "d").read_bytes() == b"x"
    assert sorted(left) == ["berg_results/job/away/a", "berg_results/job/away/deep/b"]
    assert all(isinstance(each, NoPlace) for each in left.values())
    assert "a link that leads out of" in str(left["berg_results/job/away/a"])
