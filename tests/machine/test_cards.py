"""What machines of a job believe of each other: cards that are signed, and nothing odd even then."""

import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from berg import BergError
from berg.job import Group, Job, machine_names
from berg.machine import boot, peers
from berg.machine.outcome import Stopped
from berg.machine.peers import Host, Member, Node

KEY = "00" * 32
PLACE = ".berg/machines/duo/duo-1.json"
UP = {"phase": "UP", "attempt": "1"}
NODE = Node(
    "duo-1", 1, "17", "10.0.0.2", host_keys=["ssh-ed25519 AAAA"], node_key="ssh-ed25519 B x"
)


def test_a_signed_card_is_read():
    assert peers.read(KEY, PLACE, peers.write(KEY, PLACE, NODE).encode()) == NODE


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(asdict(NODE)),  # unsigned
        peers.write("11" * 32, PLACE, NODE),  # by another job
        peers.write("", PLACE, NODE),
        peers.write(KEY, PLACE.replace("-1", "-0"), NODE),  # another machine's card
        peers.write(KEY, PLACE, NODE).replace("10.0.0.2", "10.0.0.3"),
        peers.write(KEY, PLACE, NODE).replace("AAAA", "AAAB"),
        "[]",
        "{" * 100_000,
    ],
)
def test_others_are_refused(data):
    with pytest.raises(ValueError):
        peers.read(KEY, PLACE, data.encode())


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
    data = json.dumps(peers.signed(KEY, PLACE, {**asdict(NODE), **change}))
    with pytest.raises(ValueError):
        peers.read(KEY, PLACE, data.encode())


def test_without_a_key_nothing_is_believed():
    assert not peers.is_signed("", PLACE, peers.signed("", PLACE, {"phase": "UP"}))
    assert not peers.is_signed(KEY, PLACE, None)
    assert not peers.is_signed(KEY, PLACE, {"signature": "é"})


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


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """This bucket takes any number of writes a second."""
    monkeypatch.setattr(peers, "BETWEEN_WRITES", 0)


def member(bucket: Bucket, name: str, said: list[str]) -> Member:
    machine = SimpleNamespace(name=name, warm="", say=said.append)
    job = Job("duo", "true", "", "", "", "", "", num_machines=2)
    node = Node(name, int(name[-1]))
    return Member(machine, None, bucket, job, name == "duo-0", print, node, [node], key=KEY)


def test_an_object_is_written_once_a_second_and_what_comes_meanwhile_goes_with_the_next(
    monkeypatch,
):
    """Cloud Storage refuses a second write, and who retries it waits for longer."""
    monkeypatch.setattr(peers, "BETWEEN_WRITES", 1.05)
    clock, writes = [100.0], []
    monkeypatch.setattr(peers.time, "monotonic", lambda: clock[0])
    bucket = Bucket()
    first = member(bucket, "duo-0", [])
    write = bucket.write
    bucket.write = lambda *given, **more: writes.append(clock[0]) or write(*given, **more)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(peers.time, "sleep", sleep)
    peers.announce(first)
    peers.announce(first, phase="READY")
    clock[0] += 5
    peers.announce(first, phase="ENDED")
    assert writes == pytest.approx([100, 101.05, 106.05])
    peers.announce_soon(first)
    assert writes[3:] == pytest.approx([107.1])

    def meanwhile(seconds: float) -> None:
        sleep(seconds)
        monkeypatch.setattr(peers.time, "sleep", sleep)
        peers.announce(first)

    monkeypatch.setattr(peers.time, "sleep", meanwhile)
    peers.announce_soon(first)
    assert len(writes) == 5, "what was written meanwhile had all of it"


def test_a_stranger_s_card_is_ignored_and_said_once():
    bucket, said = Bucket(), []
    first, second = member(bucket, "duo-0", said), member(bucket, "duo-1", said)
    peers.announce(first)
    bucket.write(PLACE, json.dumps(asdict(NODE)), {"phase": "FAILED", "reason": "none"})
    nodes: dict[str, Node] = {}
    for _ in range(3):
        peers.add_nodes(first, ["duo-0", "duo-1"], nodes)
    assert list(nodes) == ["duo-0"] and peers.phases(first).keys() == {"duo-0"}
    why = "it is not signed by a machine of this job"
    assert said == [f"Ignored gs://bucket/{PLACE}: {why}"]
    peers.announce(second)  # the machine itself
    peers.add_nodes(first, ["duo-0", "duo-1"], nodes)
    assert list(nodes) == ["duo-0", "duo-1"]


def test_a_signed_phase_does_not_vouch_for_another_card():
    """The metadata of one object and the card of another."""
    for card in ({}, {"card": json.dumps(asdict(NODE))}, {"card": "no card"}):
        bucket, said = Bucket(), []
        first = member(bucket, "duo-0", said)
        good = peers.write(KEY, PLACE, NODE)
        bucket.write(PLACE, good, peers.signed(KEY, PLACE, {**UP, **card}))
        nodes: dict[str, Node] = {}
        peers.add_nodes(first, ["duo-1"], nodes)
        assert not nodes and said


def test_a_machine_that_has_not_begun_this_attempt_yet_has_not_failed_in_it():
    """All machines of a slice are turned off and on together, and one comes back first."""
    bucket = Bucket()
    first, second = member(bucket, "duo-0", []), member(bucket, "duo-1", [])
    peers.announce(second, phase="FAILED", reason="Google maintains its host")
    peers.begin_attempt(first, 2)
    peers.add_nodes(first, ["duo-0", "duo-1"], nodes := {})
    assert list(nodes) == ["duo-0"]
    for attempt in (2, 0):  # 0: of a new machine, which has not heard of an attempt
        second.attempt = attempt
        peers.announce(second, phase="FAILED", reason="no disk")
        with pytest.raises(BergError, match="duo-1: no disk"):
            peers.add_nodes(first, ["duo-0", "duo-1"], {})


def test_what_a_machine_wrote_earlier_is_not_believed_when_somebody_writes_it_again(monkeypatch):
    """The failure of an attempt before; and a last word again and again, as if it lived."""
    clock, first = waiting_for_one(monkeypatch)
    said, bucket = [], first.bucket
    first.machine.say = said.append
    second = member(bucket, "duo-1", [])
    peers.announce(second, phase="FAILED", reason="of the first attempt")
    failed = bucket.blobs[PLACE]
    for each in (first, second):
        peers.begin_attempt(each, 2)
    last, nodes = bucket.blobs[PLACE], {}
    peers.add_nodes(first, ["duo-0", "duo-1"], nodes)
    bucket.blobs[PLACE] = SimpleNamespace(**{**vars(failed), "generation": 7})
    peers.add_nodes(first, ["duo-0", "duo-1"], nodes)
    assert sorted(nodes) == ["duo-0", "duo-1"] and peers.phases(first).keys() == {"duo-0"}
    why = "it is an old record that was written again"
    assert said == [f"Ignored gs://bucket/{PLACE}: {why}"]
    for generation in range(first.job.longest_silence):
        clock.now += 2
        bucket.blobs[PLACE] = SimpleNamespace(**{**vars(last), "generation": generation})
        peers.phases(first)
    assert first.silent == ["duo-1"]


@pytest.mark.parametrize("machines", [8, 16, 32, 64])
def test_each_machine_asks_as_often_however_many_meet(machines, monkeypatch):
    """Together they ask N times as often, not N² times."""
    bucket, asked = Bucket(), []
    members = [member(bucket, name, []) for name in machine_names("duo", machines)]
    for rank, each in enumerate(members):
        each.node.rank, each.job.num_machines = rank, machines
        peers.announce(each)
    monkeypatch.setattr(bucket, "read", lambda name: pytest.fail(f"{name} was read"))
    monkeypatch.setattr(bucket, "list", lambda *words: asked.append(1) or [*bucket.blobs.values()])
    for each in members:
        met = peers.gather(each, 60, lambda missing: None)
        assert [node.rank for node in met] == [*range(machines)]
    assert len(asked) == machines


def test_boot_refuses_what_the_metadata_do_not_vouch_for(tmp_path, monkeypatch):
    monkeypatch.setattr(boot, "BERG", tmp_path)
    machine = SimpleNamespace(bucket="bucket", read=lambda name: (b"no wheel", "1"))
    with pytest.raises(OSError, match="is not what was submitted: another user replaced it"):
        boot.unpack(machine, ".berg/dist/berg.whl", "0" * 64, "app")
    assert not list(tmp_path.iterdir())


def test_who_is_in_another_attempt_is_waited_for():
    bucket, said = Bucket(), []
    first, second = member(bucket, "duo-0", said), member(bucket, "duo-1", said)
    peers.announce(second, phase="ENDED", exit_code="5", ended_at="1")
    peers.begin_attempt(first, 2)
    nodes: dict[str, Node] = {}
    peers.add_nodes(first, ["duo-0", "duo-1"], nodes)
    assert list(nodes) == ["duo-0"], "its card is of the last attempt"
    peers.add_nodes(second, ["duo-0", "duo-1"], nodes := {})
    peers.add_nodes(second, ["duo-0", "duo-1"], nodes)
    assert sorted(nodes) == ["duo-0", "duo-1"] and second.attempt == 2, "it takes part in the new"


def test_who_was_turned_off_and_on_takes_part_in_the_next_attempt():
    """Whether the one that leads has counted it before, or after."""
    bucket, said = Bucket(), []
    peers.announce(member(bucket, "duo-1", said), phase="READY")
    again, late = member(bucket, "duo-1", said), member(bucket, "duo-1", said)
    late.attempt = 2
    for each in (again, late):
        peers.note_earlier(each)
        assert each.attempt == 2
    new = member(bucket, "duo-0", said)
    peers.note_earlier(new)
    assert new.attempt == 1


def test_a_failure_counts_in_its_attempt_alone(monkeypatch):
    bucket, said = Bucket(), []
    first, second = member(bucket, "duo-0", said), member(bucket, "duo-1", said)
    monkeypatch.setattr(peers, "FAILURE_GRACE", 0)
    peers.announce(second, phase="ENDED", exit_code="5", ended_at="1")
    failure = peers.lasting_failure(first, peers.phases(first))
    assert failure and failure.exit_code == 5 and failure.reason.endswith("on duo-1")
    peers.begin_attempt(first, 2)
    assert peers.lasting_failure(first, peers.phases(first)) is None
    peers.begin_attempt(second, 2)
    peers.announce(second, phase="ENDED", exit_code="0", ended_at="2")
    assert peers.lasting_failure(first, peers.phases(first)) is None


def test_each_attempt_has_a_port_of_its_own():
    this = member(Bucket(), "duo-0", [])
    this.host = SimpleNamespace(variables=lambda rank, addresses: {})
    ports = set()
    for attempt in range(1, 6):
        this.attempt = attempt
        ports.add(peers.environment(this)["MASTER_PORT"])
    assert len(ports) == 5


def test_the_loss_of_a_machine_that_google_makes_anew(monkeypatch):
    bucket, said = Bucket(), []
    first, second = member(bucket, "duo-0", said), member(bucket, "duo-1", said)
    for each in (first, second):
        each.job.group = Group(region="us-central1")
        each.node.instance_id = each.node.name
        peers.announce(each)
    alive = ["duo-0", "duo-1"]
    monkeypatch.setattr(peers, "living", lambda member: alive)
    first.nodes = [first.node, second.node]
    assert peers.loss(first) == ""
    peers.announce(second, phase="GONE", reason="Google preempted the machine")
    assert peers.loss(first) == "duo-1: Google preempted the machine"
    peers.begin_attempt(first, 2)
    alive.remove("duo-1")
    assert peers.loss(first) == "", "what it was in the last attempt does not count"
    anew = member(bucket, "duo-1", said)
    anew.node.instance_id, anew.attempt = "another", 0
    peers.announce(anew)
    peers.add_nodes(anew, ["duo-0", "duo-1"], {})
    assert anew.attempt == 2
    assert peers.loss(first) == "machine duo-1 is gone"
    alive.append("duo-1")
    first.nodes = [first.node, second.node]
    assert peers.loss(first) == "machine duo-1 was re-created"
    first.nodes = [first.node, anew.node]
    assert peers.loss(first) == ""


def test_a_first_machine_that_is_silent_is_deleted_once(monkeypatch):
    """The one that Google makes in its place says nothing either, until it is up."""
    clock, first = waiting_for_one(monkeypatch)
    second, deleted = member(first.bucket, "duo-1", []), []
    second.job.group, second.job.spec.replacement_timeout = first.job.group, 600
    second.host = SimpleNamespace(delete_peer=deleted.append)
    monkeypatch.setattr(peers, "living", lambda member: ["duo-0", "duo-1"])

    def endings(until: float) -> list:
        found = []
        while clock.now < until:
            clock.now += 5
            found.append(peers.ending_of_part(second, lambda: False))
        return [each for each in found if each]

    assert not endings(1000 + second.job.silence_seconds - 5) and not deleted
    assert not endings(1700) and deleted == ["duo-0"]
    peers.announce(first)  # it came, and hangs again
    assert not endings(2100) and deleted == ["duo-0", "duo-0"]
    (ending, *_) = endings(3000)
    assert ending.reason.startswith("duo-0 did not come within 10m (--replacement-timeout)")


def test_a_machine_made_anew_takes_no_part_in_what_runs():
    """It waits for the attempt that the first machine begins for it."""
    bucket, said = Bucket(), []
    first, anew = member(bucket, "duo-0", said), member(bucket, "duo-1", said)
    anew.attempt = 0
    peers.announce(first, phase="READY")
    peers.add_nodes(anew, ["duo-0", "duo-1"], {})
    assert anew.attempt == 0
    peers.begin_attempt(first, 2)
    peers.add_nodes(anew, ["duo-0", "duo-1"], {})
    assert anew.attempt == 2


class Clock:
    """A clock that goes on only where something waits, and a machine that is killed at a time."""

    def __init__(self, monkeypatch):
        self.now, self.killed_at = 1000.0, math.inf
        fake = SimpleNamespace(
            monotonic=lambda: self.now, time=lambda: self.now, sleep=lambda seconds: None
        )
        monkeypatch.setattr(peers, "time", fake)

    def pause(self, seconds: float) -> None:
        self.now += max(seconds, 0.1)
        if self.now >= self.killed_at:
            raise Stopped


def waiting_for_one(monkeypatch) -> tuple[Clock, Member]:
    """The first of two Spot machines, which waits for the other one."""
    clock = Clock(monkeypatch)
    first = member(Bucket(), "duo-0", [])
    first.job.group = Group(region="us-central1")
    first.job.spec.replacement_timeout = 600
    first.host = SimpleNamespace(is_pod=False)
    first.pause = clock.pause
    peers.announce(first)
    monkeypatch.setattr(peers, "living", lambda member: ["duo-0"])
    return clock, first


def test_the_machine_that_leads_says_first_who_did_not_come(monkeypatch):
    """Else the reason names one more, which said it before the first machine did."""
    clock, first = waiting_for_one(monkeypatch)
    second = member(first.bucket, "duo-1", [])
    for each in (first, second):
        each.job.num_machines = 3
    second.job.group, second.job.spec.replacement_timeout = first.job.group, 600
    second.host, second.pause = first.host, clock.pause
    peers.announce(second)
    ended_at = {}
    for each in (second, first):
        clock.now = 1000.0
        with pytest.raises(BergError) as refused:
            peers.gather(each, 600, lambda missing: None)
        assert refused.value.message.startswith("duo-2 did not come within 10m")
        ended_at[each.node.name] = clock.now
    assert ended_at["duo-0"] + 20 < ended_at["duo-1"] < ended_at["duo-0"] + 60


def test_a_machine_waits_for_so_long_and_no_longer(monkeypatch):
    missing: list[int] = []
    clock, first = waiting_for_one(monkeypatch)
    with pytest.raises(BergError) as refused:
        peers.gather(first, peers.coming_seconds(first), missing.append)
    why = "duo-1 did not come within 10m (--replacement-timeout). Resume the job: berg run --resume duo"
    assert refused.value.message == why
    assert 1600 < clock.now < 1605
    assert set(missing) == {1}, "which the list shows"


@pytest.mark.parametrize(
    "there, came, says, seconds",
    [
        ("duo-0", 60, "machine duo-1 is gone", 180),  # nobody ever saw it
        ("duo-0", 0, "machine duo-1 is gone", 180),
        ("duo-0 duo-1", 60, "duo-1 did not come up within 180 s", 180),  # it hangs
        ("duo-0 duo-1", 140, "duo-1 did not come up within 280 s", 280),
        ("duo-0 duo-1", 4000, "duo-1 did not come up within 600 s", 600),  # out of Google's queue
        ("duo-0 duo-1", 0, "duo-1 did not come up within 600 s", 600),
        ("duo-0 duo-1 waits", 60, "duo-1 did not come up within 600 s", 600),
    ],
)
def test_machines_that_were_made_together_wait_as_long_as_they_took(
    monkeypatch, there, came, says, seconds
):
    clock, first = waiting_for_one(monkeypatch)
    first.job.group = Group()
    first.host = Host(first.machine, None)
    monkeypatch.setattr(first.host, "peers", lambda this: dict.fromkeys(there.split(), True))
    if "waits" in there:
        first.bucket.write(PLACE.replace(".json", boot.INSTALLS), "")
    with pytest.raises(BergError) as refused:
        peers.gather(first, peers.coming_seconds(first, came), lambda missing: None)
    assert refused.value.message == says and first.leads
    assert 1000 + seconds < clock.now < 1005 + seconds


def test_kill_ends_the_waiting_for_a_machine(monkeypatch):
    missing: list[int] = []
    clock, first = waiting_for_one(monkeypatch)
    clock.killed_at = 1300
    with pytest.raises(Stopped):
        peers.gather(first, 600, missing.append)
    assert clock.now < 1301


def test_a_machine_that_comes_back_late_is_waited_for(monkeypatch):
    """The others are not given up while one of them still uploads its results."""
    missing: list[int] = []
    clock, first = waiting_for_one(monkeypatch)
    second = member(first.bucket, "duo-1", [])
    second.attempt = 0
    peers.announce(second)
    monkeypatch.setattr(peers, "living", lambda member: ["duo-0", "duo-1"])

    def come(seconds: float) -> None:
        clock.pause(seconds)
        if clock.now > 2000 and second.attempt == 0:
            peers.begin_attempt(second, first.attempt)
        elif second.attempt == 0:
            peers.announce(second)  # its heartbeat

    first.pause = come
    assert [node.name for node in peers.gather(first, 600, missing.append)] == ["duo-0", "duo-1"]
    assert 2000 < clock.now < 2005
    assert missing[-2:] == [1, 0]
