"""Views as they are written and read: what a history has at a moment, and what is refused."""

import gzip
import json

import pytest

from berg.google import views
from berg.google.views import Head, Row
from tests.memory_bucket import Memory

S = 10**9  # nanoseconds in a second


def publish(bucket, number: int, at: float, *rows: Row, disk="d0", **head) -> None:
    head = {"begun_ns": int(at * S), **head}
    content = views.encode(Head(int(at * S), **head), map(views.line, rows))
    bucket.write(f".berg/views/job/{disk}/{number:08}", content, 0)


def row(path: str, at: float = 1, **values) -> Row:
    return Row(path, int(at * S), size=1, crc32c="AAAAAA==", generation=7, **values)


def view_of(bucket, moment=None):
    moment_ns = None if moment is None else int(moment * S)
    return views.at(views.of_job(bucket, "job"), moment_ns)


@pytest.fixture
def bucket():
    return Memory()


def test_what_is_written_is_read(bucket):
    rows = [
        Row("a/b", 5, 3, "AAAAAA==", 9, ".berg/tmp/job/d0-staged/1", 17, 0o755, grows=True),
        Row("a/link", 6, link="../x/y"),
        Row("moves", 7, moving=True, data="AAEC"),
        Row("old", 8, 3, gone=True),
    ]
    content = views.encode(Head(9, "m", 1, [[2, 3]], True, True), map(views.line, rows))
    found = views.decode(4, content)
    assert (found.number, found.head, found.rows) == (
        4,
        Head(9, "m", 1, [[2, 3]], True, True),
        rows,
    )
    publish(bucket, 1, 9, *rows, full=True, final=True)
    view = view_of(bucket)
    assert list(view.rows) == ["a/b", "a/link", "moves"] and list(view.gone) == ["old"]
    assert view.final and view.at_ns == 9 * S


def test_a_job_without_views_has_none(bucket):
    assert views.of_job(bucket, "job") == [] and view_of(bucket) is None


def test_a_moment_cuts_each_history_at_the_same_time(bucket):
    publish(bucket, 1, 10, row("a", 5), row("b", 6), full=True)
    publish(bucket, 2, 20, row("a", 15, mode=0o600), row("b", 16, gone=True), row("c", 25))
    publish(bucket, 3, 30, row("a", 15, mode=0o600), row("c", 25), full=True)
    assert list(view_of(bucket, 12).rows) == ["a", "b"]
    assert view_of(bucket, 12).rows["a"].changed_ns == 5 * S
    assert list(view_of(bucket, 15.5).rows) == ["a", "b"]
    assert view_of(bucket, 15.5).rows["a"].changed_ns == 15 * S
    assert list(view_of(bucket, 20).rows) == ["a"], "what changed later is not of the moment"
    assert list(view_of(bucket).rows) == ["a", "c"] and view_of(bucket).gone == {}
    assert views.moments(views.of_job(bucket, "job")) == [10 * S, 20 * S, 30 * S]


def test_several_machines_have_one_moment(bucket):
    publish(bucket, 1, 10, row("shard", 5), full=True, machine="m-1", disk="d1")
    publish(bucket, 1, 8, row("shard 0", 4), full=True, machine="m-0")
    publish(bucket, 2, 20, row("pointer", 9), row("shard 0", 9, gone=True), machine="m-0")
    assert sorted(view_of(bucket).rows) == ["shard", "shard 0"], "as of 10 s less 2"
    gap = [[int(4.5 * S), int(8.5 * S)]]
    publish(bucket, 3, 20, row("pointer", 9), gaps=gap, machine="m-0")
    assert sorted(view_of(bucket).rows) == ["shard 0"], "m-0 was not whole from 4.5 s to 8.5"
    publish(bucket, 2, 19, row("later", 18), machine="m-1", disk="d1", final=True)
    assert sorted(view_of(bucket).rows) == ["later", "pointer", "shard"], "over: all of it"


def test_a_machine_that_was_replaced_does_not_count(bucket):
    publish(bucket, 1, 10, row("a", 5), full=True, machine="m")
    publish(bucket, 2, 50, row("too late", 45), machine="m")
    later = {"machine": "m", "disk": "a-later-one", "begun_ns": 60 * S}
    publish(bucket, 1, 40, row("a", 5), full=True, **later)
    view = view_of(bucket)
    assert list(view.rows) == ["a"] and view.at_ns == 40 * S
    assert sorted(view_of(bucket, 30).rows) == ["a"]


def test_a_damaged_view_is_named_and_the_one_before_it_used(bucket):
    publish(bucket, 1, 10, row("a"), full=True)
    publish(bucket, 2, 20, row("b"))
    name = ".berg/views/job/d0/00000002"
    bucket.put(name, bucket.read(name)[:-9])
    publish(bucket, 3, 30, row("c"))
    view = view_of(bucket)
    assert (list(view.rows), view.at_ns, view.damaged) == (["a"], 10 * S, [name])
    publish(bucket, 4, 40, row("d"), full=True)
    assert list(view_of(bucket).rows) == ["d"], "a full one needs none before it"
    assert views.of_job(bucket, "job")[0].last == 4
    publish(bucket, 1, 50, row("e"), disk="d1")  # not full
    assert list(view_of(bucket).rows) == ["d"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "../a"},
        {"path": "a//b"},
        {"path": "/etc/passwd"},
        {"path": "a", "size": -1},
        {"path": "a", "size": "1"},
        {"path": "a", "mode": 0o4755},
        {"path": "a", "object": ".berg/repos/other"},
        {"path": "a", "link": "/etc/passwd"},
        {"path": "a", "link": "../b"},
        {"path": "a/b", "link": "../../b"},
        {"path": "a/b", "link": "x/../../.."},
        {"path": "a/b", "link": "b/"},
        {},
    ],
)
def test_what_no_machine_writes_is_damaged(bucket, wrong):
    lines = [{"at_ns": 1, "full": True}, wrong]
    content = gzip.compress("\n".join(map(json.dumps, lines)).encode())
    bucket.write(".berg/views/job/d0/00000001", content)
    view = view_of(bucket)
    assert view.rows == {} and view.damaged == [".berg/views/job/d0/00000001"]


def test_links_lead_to_what_is_inside(bucket):
    for path, target in (
        ("a", "b"),
        ("a/b", "../c/d"),
        ("a/b", ".."),
        ("a/b", "."),
        ("x/y/z", "../../q"),
    ):
        Row(path, link=target).validate()


def test_nothing_is_written_through_a_link(bucket):
    publish(bucket, 1, 10, Row("a", link="b"), row("a/x"), row("a/x/y"), row("ab"), full=True)
    assert sorted(view_of(bucket).rows) == ["a", "ab"]


def test_an_object_is_a_files_if_it_has_its_bytes_or_more_of_a_growing_one(bucket):
    bucket.put("x", b"four")
    there = bucket.get("x")
    assert Row("x", size=4, crc32c=there.crc32c).is_in(there)
    assert not Row("x", size=3, crc32c=there.crc32c).is_in(there)
    assert not Row("x", size=4, crc32c="other").is_in(there)
    assert Row("x", size=3, crc32c="other", grows=True).is_in(there)
    assert not Row("x", size=5, crc32c="other", grows=True).is_in(there)
