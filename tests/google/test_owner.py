"""Whose the bucket is, compared each time it is used."""

import json
import threading

import pytest

from berg import BergError
from berg.config import Config
from berg.google import storage

ANOTHER = "another one, number"


def kept(berg) -> dict[str, str]:
    return json.loads((berg.home / "buckets.json").read_text())


def replace(berg, number: str) -> None:
    (berg.home / "buckets.json").write_text(json.dumps({berg.bucket_name: number}))


def test_a_bucket_that_is_somebody_elses_now_is_not_used(berg):
    assert berg("list", "-a").returncode == 0
    number = kept(berg)[berg.bucket_name]
    assert number.isdigit()
    replace(berg, "17")
    (berg.repo / "weights").write_text("mine")
    before = berg.objects()
    for command in (
        ("list", "-a"),
        ("run", "-g", "0", "true"),
        ("run", "--resume", "lr"),
        ("fetch", "folder"),
        ("data", "push", "weights", "mine"),
        ("kill", "x"),
        ("rm", "-y", "x"),
    ):
        ran = berg(*command)
        assert ran.returncode == 1 and ANOTHER in ran.stderr, (command, ran.stderr)
        assert "number 17" in ran.stderr and "berg init --local" in ran.stderr
        assert ran.stdout == ""
    assert berg.objects() == before, "nothing was sent there"
    assert kept(berg) == {berg.bucket_name: "17"}


def test_who_may_not_see_whose_it_is_any_more_does_not_use_it(berg, cloud):
    cloud.fault("storage.buckets.get", status=403, times=None)
    assert berg("list", "-a").returncode == 0, "nothing was known of it"
    cloud.call("DELETE", "/_berg/faults")
    assert berg("list", "-a").returncode == 0
    cloud.fault("storage.buckets.get", status=403, times=None)
    refused = berg("list", "-a")
    assert refused.returncode == 1 and "is forbidden" in refused.stderr


@pytest.mark.parametrize("text", ["", "[]", "{", '{"b": 7}', "\x00"])
def test_what_is_kept_may_be_damaged(monkeypatch, tmp_path, text):
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    (tmp_path / "buckets.json").write_text(text)
    monkeypatch.setattr(storage.api, "call", lambda *_, **__: {"projectNumber": "7"})
    config = Config(bucket="a")
    storage.check_owner(config)
    assert storage.known_numbers()["a"] == "7"
    storage.check_owner(config)
    monkeypatch.setattr(storage.api, "call", lambda *_, **__: {"projectNumber": "8"})
    with pytest.raises(BergError, match="number 7, and now to another one, number 8"):
        storage.check_owner(config)
    storage.remember("a", "")
    storage.remember("nothing", "")
    storage.check_owner(config)
    assert storage.known_numbers()["a"] == "8"


def test_who_reads_while_another_command_writes_finds_what_was_known(monkeypatch, tmp_path):
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    storage.remember("a", "7")

    def write() -> None:
        for number in range(200):
            storage.remember("b", str(number))

    writer = threading.Thread(target=write)
    writer.start()
    found = set()
    while writer.is_alive():
        found.add(storage.known_numbers().get("a"))
    writer.join()
    assert found == {"7"} and storage.known_numbers() == {"a": "7", "b": "199"}
