"""Processes that bring small objects: what they do not do, berg does itself."""

import gzip
import os
import sys

import pytest
from conftest import library

from berg.google import api
from berg.google import fetch as module
from berg.google.fetch import fetch

FILES = 60


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """They are worth it from the first file on."""
    monkeypatch.setattr(module, "FIRST", 0)
    monkeypatch.setattr(module, "PROCESSES", 2)


@pytest.fixture
def objects(bucket):
    contents = {f"job/{number % 3}/{number}": os.urandom(number * 100) for number in range(FILES)}
    for name, data in contents.items():
        bucket.write(name, data)
    return contents


@pytest.fixture
def answers(monkeypatch):
    """What the processes said of each object."""
    said = {}
    ask = module.Helpers.bring

    def noting(self, blob, parts):
        answer = ask(self, blob, parts)
        said[blob.name] = bool(answer and answer[0].result())
        return answer

    monkeypatch.setattr(module.Helpers, "bring", noting)
    return said


def check(bucket, objects, folder, new=FILES):
    assert fetch(bucket, "job/", folder) == (new, FILES, {})
    for name, data in objects.items():
        assert (folder / name.removeprefix("job/")).read_bytes() == data
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]


def test_many_are_brought_and_known_again(bucket, objects, tmp_path, answers):
    check(bucket, objects, tmp_path / "here")
    assert len(answers) == FILES and all(answers.values())
    answers.clear()
    check(bucket, objects, tmp_path / "here", new=0)
    assert not answers, "what is here takes no process"


def test_what_they_are_refused_berg_asks_for_again(bucket, objects, tmp_path, answers, cloud):
    cloud.fault("storage.objects.get", match="/o/job/1/", status=503, times=5)
    check(bucket, objects, tmp_path / "here")
    assert 5 <= list(answers.values()).count(False) < FILES


def test_one_that_dies_costs_nothing_but_time(bucket, objects, tmp_path, answers, monkeypatch):
    ask = module.Helper.bring

    def killing(self, number, task):
        if number == 20:
            self.process.kill()
        return ask(self, number, task)

    monkeypatch.setattr(module.Helper, "bring", killing)
    check(bucket, objects, tmp_path / "here")
    assert 0 < list(answers.values()).count(False) < FILES


def test_without_any_all_is_brought(bucket, objects, tmp_path, answers, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    check(bucket, objects, tmp_path / "here")
    assert not any(answers.values())


def test_a_proxy_is_none_of_theirs(bucket, objects, tmp_path, answers, monkeypatch):
    route = api.route_to(bucket.url)
    monkeypatch.setattr(route, "proxy", "http://proxy:3128")
    check(bucket, objects, tmp_path / "here")
    assert not any(answers.values())


def test_content_that_is_not_what_its_checksum_says_is_not_brought(
    bucket, tmp_path, answers, cloud
):
    data = os.urandom(1000)
    bucket.write("job/odd", data)
    files = [path for path in (cloud.folder / "storage").rglob("*") if path.is_file()]
    [content] = [path for path in files if path.read_bytes() == data]
    content.write_bytes(data[:-1] + b"x")
    _, total, left = fetch(bucket, "job/", tmp_path / "here")
    assert answers == {"job/odd": False} and not total and "checksum" in str(left["job/odd"])
    assert not list((tmp_path / "here").iterdir())


def test_content_with_an_encoding_is_brought_as_it_is_stored(bucket, tmp_path, answers):
    blob = library(bucket.config).blob("job/packed")
    blob.content_encoding = "gzip"
    packed = gzip.compress(b"words" * 100)
    blob.upload_from_string(packed)
    _, _, left = fetch(bucket, "job/", tmp_path / "here")
    assert not left and (tmp_path / "here/packed").read_bytes() == packed
    assert answers["job/packed"] is True
