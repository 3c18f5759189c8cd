"""What machines of a job believe of each other: cards that are signed, and nothing odd even then."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from berg.job import Job
from berg.machine import boot, cards, cluster
from berg.machine.cluster import Member, Node

KEY = "00" * 32
PLACE = ".berg/machines/duo/duo-1.json"
NODE = Node(
    "duo-1", 1, "17", "10.0.0.2", host_keys=["ssh-ed25519 AAAA"], node_key="ssh-ed25519 B x"
)


def test_a_signed_card_is_read():
    assert cards.read(KEY, PLACE, cards.write(KEY, PLACE, NODE).encode(), Node) == NODE


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(asdict(NODE)),  # unsigned
        cards.write("11" * 32, PLACE, NODE),  # by another job
        cards.write("", PLACE, NODE),
        cards.write(KEY, PLACE.replace("-1", "-0"), NODE),  # another machine's card
        cards.write(KEY, PLACE, NODE).replace("10.0.0.2", "10.0.0.3"),
        cards.write(KEY, PLACE, NODE).replace("AAAA", "AAAB"),
        "[]",
        "{" * 100_000,
    ],
)
def test_others_are_refused(data):
    with pytest.raises(ValueError):
        cards.read(KEY, PLACE, data.encode(), Node)


@pytest.mark.parametrize(
    "change",
    [
        {"node_key": 'command="x" ssh-ed25519 AAAA'},
        {"node_key": "ssh-ed25519 AAAA\nssh-ed25519 BBBB"},
        {"host_keys": ["ssh-ed25519 AAAA\nother ssh-ed25519 BBBB"]},
        {"internal_ip": "10.0.0.2 example"},
        {"external_ip": "-oProxyCommand=x"},
        {"name": "duo-1\nroot"},
        {"rank": "1"},
    ],
)
def test_a_signature_does_not_make_odd_values_good(change):
    """The job's own root can sign; it gains nothing on the other machines but what it had."""
    data = json.dumps(cards.signed(KEY, PLACE, {**asdict(NODE), **change}))
    with pytest.raises(ValueError):
        cards.read(KEY, PLACE, data.encode(), Node)


def test_without_a_key_nothing_is_believed():
    assert not cards.is_signed("", PLACE, cards.signed("", PLACE, {"phase": "UP"}))
    assert not cards.is_signed(KEY, PLACE, None)
    assert not cards.is_signed(KEY, PLACE, {"signature": "é"})


class Bucket:
    """Objects with their metadata, as a list shows them."""

    name = "bucket"

    def __init__(self):
        self.blobs: dict[str, SimpleNamespace] = {}

    def write(self, name, data, metadata=None):
        self.blobs[name] = SimpleNamespace(name=name, data=data, metadata=metadata, generation=1)

    def read(self, name):
        return self.blobs[name].data.encode()

    def list(self, prefix, fields):
        return list(self.blobs.values())


def member(bucket: Bucket, name: str, said: list[str]) -> Member:
    machine = SimpleNamespace(name=name, say=said.append)
    job = Job("duo", "true", "", "", "", "", "", num_machines=2)
    node = Node(name, int(name[-1]))
    return Member(machine, None, bucket, job, name == "duo-0", print, node, [node], key=KEY)


def test_a_stranger_s_card_is_ignored_and_said_once():
    bucket, said = Bucket(), []
    first, second = member(bucket, "duo-0", said), member(bucket, "duo-1", said)
    cluster.announce(first)
    bucket.write(PLACE, json.dumps(asdict(NODE)), {"phase": "FAILED", "reason": "none"})
    nodes: dict[str, Node] = {}
    for _ in range(3):
        cluster.add_nodes(first, ["duo-0", "duo-1"], nodes)
    assert list(nodes) == ["duo-0"] and cluster.phases(first).keys() == {"duo-0"}
    why = "it is not signed by a machine of this job"
    assert said == [f"Ignored gs://bucket/{PLACE}: {why}"]
    cluster.announce(second)  # the machine itself
    cluster.add_nodes(first, ["duo-0", "duo-1"], nodes)
    assert list(nodes) == ["duo-0", "duo-1"]


def test_a_signed_phase_does_not_vouch_for_another_card():
    """The metadata of one object and the content of another."""
    bucket, said = Bucket(), []
    first = member(bucket, "duo-0", said)
    bucket.write(PLACE, json.dumps(asdict(NODE)), cards.signed(KEY, PLACE, {"phase": "UP"}))
    nodes: dict[str, Node] = {}
    cluster.add_nodes(first, ["duo-1"], nodes)
    assert not nodes and said


def test_boot_refuses_what_the_metadata_do_not_vouch_for(tmp_path, monkeypatch):
    monkeypatch.setattr(boot, "BERG", tmp_path)
    machine = SimpleNamespace(bucket="bucket", read=lambda name: (b"no wheel", "1"))
    with pytest.raises(OSError, match="is not what was submitted: somebody replaced it"):
        boot.unpack(machine, ".berg/dist/berg.whl", "0" * 64, "app")
    assert not list(tmp_path.iterdir())
