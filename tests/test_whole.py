"""Whatever programs write, and whenever their machines are cut off: a restore brings the folder of
results as it was at one moment.

Programs are drawn at random. A process runs each beside a mirror, until both are killed; then
another machine restores what the bucket has, and goes on.
"""

import copy
import json
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked
import hypothesis
import pytest
import whole_machine
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from test_faults import fault
from whole_disk import Disk
from whole_history import FOLDER, History, Program, Tree, explain, found_in

from berg.google.mirror import Mirror

MB = 1 << 20
PROGRAMS = 50  # of each round; where there is but one, fewer
FEW_PROGRAMS = 10
LINE_SECONDS = 8  # for all bytes of an attempt
NAMES = ["a", "b", "d/a", "d/b", "d/e/a", "d", "+x/a"]
names = st.sampled_from(NAMES)
sizes = st.sampled_from([20, 30, 400, 5000] * 5 + [200_000, MB + 1, 3 * MB, 8 * MB + 1])
files = st.integers(1, 4)
to = st.tuples(names, names)
of = st.tuples(names, sizes)
save = st.tuples(sizes, files)
KINDS = {
    "write": of,
    "replace": of,
    "append": of,
    "write_in_place": of,
    "log": of,
    "truncate": of,
    "rename": to,
    "link": to,
    "hard_link": to,
    "delete": of,
    "save_folder": save,
    "save_renamed": save,
    "save_with_pointer": save,
    "save_over": save,
    "save_linked": save,
    "wait": st.tuples(st.integers(0, 4), names),
}
deeds = st.lists(
    st.one_of(*(st.tuples(st.just(kind), given) for kind, given in KINDS.items())),
    min_size=3,
    max_size=14,
)
INSERT, ANY = "storage.objects.insert", "storage.objects.*"
TROUBLES = [
    (INSERT, {"status": 503, "times": 2}),
    (INSERT, {"status": 403}),
    (INSERT, {"reset": True, "after_handler": True, "times": 2}),
    (INSERT, {"delay": 1.5}),
    (INSERT, {"delay": 1.5, "after_handler": True}),
    (INSERT, {"delay": 0.2, "times": None, "probability": 0.5}),
    (ANY, {"delay": 0.1, "times": None, "probability": 0.5}),
    (ANY, {"reset": True, "after_handler": True, "times": 3, "probability": 0.3}),
    ("storage.objects.rewrite", {"reset": True, "after_handler": True}),
    ("storage.objects.compose", {"reset": True, "after_handler": True}),
    ("storage.objects.delete", {"status": 503}),
    ("storage.objects.list", {"status": 503}),
]
troubles = st.lists(st.tuples(st.sampled_from(TROUBLES), st.integers(0, 12)), max_size=2)
METHODS = ["insert"] * 4 + ["rewrite", "compose", "delete", "get", "list"]
cuts = st.one_of(
    st.tuples(st.just("power"), st.floats(0.05, 2)),
    st.tuples(st.just("request"), st.sampled_from(METHODS), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("notice"), st.floats(0.05, 2), st.sampled_from([2, 2, 30, 120])),
    st.tuples(st.just("taken"), st.floats(0.05, 2), st.floats(0, 3), st.sampled_from([2, 30, 120])),
    st.tuples(st.just("worker"), st.floats(0.05, 1)),
    st.tuples(st.just("end"), st.just(60)),
)


@dataclass
class Machine:
    """A disk, the mirror of its results, and the program that writes to it."""

    run: "Run"
    disk: Disk
    history: History
    steps: list[tuple] = field(default_factory=list)
    writer: Any = None
    killed_at: float = 0.0
    did: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.disk.top / "log"

    def run_program(self, key: int, deeds: list, dice: random.Random) -> None:
        rank, machines = self.history.rank, self.history.machines
        tree = copy.deepcopy(self.history.tree)
        program = Program(tree, rank, machines, self.run.job, str(key), dice=dice)
        program.most = (self.run.bandwidth or 100 * MB) * LINE_SECONDS / machines
        for kind, given in deeds:
            getattr(program, kind)(*given)
        self.steps = program.steps
        self.log.unlink(missing_ok=True)
        given = (self.steps, self.disk.folder, self.log, self.run.meeting)
        self.writer = forked.start(whole_machine.write, *given)
        self.disk.make_passes(dice.choice([0.05, 0.2, 1]), dice.choice([0.02, 0.05, 0.3]))

    def notes(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def is_over(self) -> bool:
        return any(each["what"] == "over" for each in self.notes())

    def end_program(self) -> None:
        assert self.killed_at or self.writer.is_alive(), "its program failed"
        self.writer.kill()
        self.writer.join()
        self.killed_at = self.killed_at or time.time()

    def kill(self) -> None:
        """Kill both, and learn what the disk had then."""
        self.disk.kill()
        self.end_program()
        self.history.synced = self.disk.synced
        notes = self.notes()
        self.history.follow(self.steps, notes)
        begun = [each for each in notes if each["what"] == "begins"]
        self.did += [f"{each['at']:.3f} {self.steps[each['step']]}" for each in begun]
        self.did.append(f"killed {self.killed_at:.3f}")
        self.history.killed(self.disk.folder, self.killed_at)


@dataclass
class Run:
    """A job: machine after machine, each with a program."""

    cloud: Any
    bucket: Any
    top: Path
    machines: int
    seed: int
    bandwidth: int

    def __post_init__(self) -> None:
        self.job = f"j{uuid.uuid4().hex[:10]}"
        self.dice = random.Random(self.seed)
        self.top = self.top / self.job
        self.meeting = self.top / "meeting"
        self.meeting.mkdir(parents=True)
        self.now: list[Machine] = []
        self.disks = 0
        self.said: list[str] = []

    def begin(self) -> None:
        """Restore to new disks, and see that what comes is the folder at one moment."""
        before, self.now = self.now, []
        self.disks += 1
        names = [f"{self.disks:04x}{rank:012x}" for rank in range(self.machines)]
        for head in self.top.glob("*.head"):
            head.unlink()
        disks = [
            Disk(self.top / name, self.bucket, self.job, name, rank, self.machines)
            for rank, name in enumerate(names)
        ]
        for disk in disks:
            disk.restore()
        for disk in disks:
            disk.restored()
        self.cloud.call("DELETE", "/_berg/faults")
        found = found_in(disks[0].folder)
        for rank, disk in enumerate(disks):
            assert found_in(disk.folder) == found, "each machine has the same"
            tree = Tree.of(found)
            tree.entries.setdefault(self.job, FOLDER)  # as the restore makes it
            history = History(rank, self.machines, tree)
            self.now.append(Machine(self, disk, history))
        if not before:
            assert found == {}
            return
        self.check(before, found)
        if all(machine.disk.left == {} for machine in before):
            for machine in before:
                self.compare(machine, found)
        for machine in before:
            machine.disk.kill()
            shutil.rmtree(machine.disk.top)

    def check(self, before: list[Machine], found: dict[str, Any]) -> None:
        wrong = explain([machine.history for machine in before], found)
        assert not wrong, "\n".join(["not at one moment:", *wrong, *self.said, *self.told(before)])

    def compare(self, machine: Machine, found: dict[str, Any]) -> None:
        """What a machine said is all there is all there."""
        history = machine.history
        there = {path: each for path, each in found.items() if history.owns(path)}
        here = {p: each for p, each in found_in(machine.disk.folder).items() if history.owns(p)}
        wrong = [path for path in {*there, *here} if there.get(path) != here.get(path)]
        assert not wrong, "\n".join(
            ["not as it was at the end:", *wrong, *self.said, *self.told([machine])]
        )

    def told(self, machines: list[Machine]) -> list[str]:
        """Return what the machines did."""
        told = []
        for machine in machines:
            told += [f"--- machine {machine.history.rank}", *machine.did]
            told.append(f"synced {machine.history.synced:.3f}, left {machine.disk.left}")
        return told

    def attempt(self, number: int, deeds: list, troubles: list, cut: tuple) -> None:
        self.cut = cut
        self.said.append(f"attempt {number}: cut {cut}, troubles {troubles}")
        for (method, what), skip in troubles:
            self.cloud.fault(method, match=self.job, skip=skip, **what)
        for machine in self.now:
            machine.run_program(number, deeds, random.Random(self.seed))
        kind, *given = cut
        if kind == "request":
            self.wait_for_request(*given)
        elif kind == "end":
            self.wait_until_over(20)
        else:
            time.sleep(given[0])
        if kind in ("notice", "taken", "end"):
            for number, machine in enumerate(self.now):
                machine.end_program()
                if kind == "taken":  # the others go on for a while
                    machine.disk.finish(given[-1])
                    time.sleep(given[1] if number == 0 else 0)
            for machine in self.now if kind != "taken" else ():
                machine.disk.finish(given[-1], kind == "end")
            end = time.monotonic() + given[-1] + 1
            for machine in self.now:
                machine.disk.finished(end)
        for machine in self.now:
            machine.kill()
        if kind == "worker" and self.machines == 1:
            self.now[0].killed_at = 0.0
            self.now[0].disk.restore(bring=False)
            self.now[0].disk.restored()
            self.cloud.call("DELETE", "/_berg/faults")
        else:
            self.begin()

    def wait_for_request(self, method: str, skip: int, after: bool) -> None:
        """Wait until a request is being answered, which the machine does not live to see; or until
        the program is over.
        """
        what = {"match": self.job, "skip": skip, "delay": 0.7, "after_handler": after}
        self.cloud.fault(f"storage.objects.{method}", **what)

        def is_met() -> bool:
            return self.cloud.call("GET", "/_berg/faults")["faults"][-1]["hits"] > 0

        self.wait_until_over(4, is_met)
        end = time.monotonic() + 0.4
        while time.monotonic() < end and not is_met():
            time.sleep(0.03)

    def wait_until_over(self, seconds: float, or_until: Callable[[], bool] = lambda: False) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not or_until():
            if all(each.is_over() for each in self.now):
                break
            time.sleep(0.03)

    def close(self) -> None:
        for machine in self.now:
            for process in (machine.disk.mirror, machine.writer):
                if process is not None:
                    process.kill()
        self.cloud.call("DELETE", "/_berg/faults")
        shutil.rmtree(self.top, ignore_errors=True)


attempts = st.lists(st.tuples(deeds, troubles, cuts), min_size=1, max_size=3)


def try_one(
    cloud: Any, bucket: Any, top: Path, machines: int, seed: int, bandwidth: int, attempts: list
) -> None:
    cloud.call("POST", "/_berg/settings", {"bandwidth": bandwidth})
    run = Run(cloud, bucket, top, machines, seed, bandwidth)
    try:
        run.begin()
        for number, (deeds, troubles, cut) in enumerate(attempts):
            run.attempt(number, deeds, troubles, cut)
        if cut[0] == "worker":
            run.begin()
    finally:
        run.close()
        cloud.call("POST", "/_berg/settings", {"bandwidth": 0})


@pytest.fixture
def try_programs(cloud, bucket, tmp_path, seed, record_property, request):
    """Return what tries random programs on so many machines."""
    programs = PROGRAMS if request.config.getoption("--rounds") else FEW_PROGRAMS
    record_property("fault", request.node.get_closest_marker("fault").args)
    record_property("tries", programs)

    def on_machines(count: int) -> None:
        @hypothesis.seed(seed)
        @settings(
            max_examples=programs,
            phases=(Phase.generate,),  # a smaller program takes as long, and meets other moments
            suppress_health_check=list(HealthCheck),
            database=None,
            deadline=None,
        )
        @hypothesis.given(
            dice=st.integers(0, 10**6),
            bandwidth=st.sampled_from([0, 3 * MB, MB, MB // 4]),
            attempts=attempts,
        )
        def try_some(dice: int, bandwidth: int, attempts: list) -> None:
            try_one(cloud, bucket, tmp_path, count, dice, bandwidth, attempts)

        try_some()

    return on_machines


@pytest.mark.timeout(3600)  # of 50 programs in a round
@fault("a machine is cut off at any moment, while any program writes", "1 2 6", weight=4)
def test_what_is_restored_was_there_at_one_moment(try_programs):
    try_programs(1)


@pytest.mark.timeout(3600)  # of 50 programs in a round
@fault("three machines are cut off at any moment, while they write", "1 2 6", weight=4)
def test_what_three_machines_restore_was_there_at_one_moment(try_programs):
    try_programs(3)


def tick() -> None:
    """Let the times of files pass on, which are a little behind the clock."""
    time.sleep(0.03)


def mirror(bucket: Any, folder: Path) -> Mirror:
    """A mirror of a disk, which has the folder's name."""
    (folder / "job").mkdir(parents=True)
    disk, views = f"job/{folder.name}", f".berg/views/job/{folder.name}/"
    return Mirror(folder, bucket, "results/", disk, "job", views=views)


def test_a_link_is_as_old_as_what_it_led_to_between_two_looks(bucket, cloud, tmp_path):
    first = mirror(bucket, tmp_path / "1")
    first.restore()
    link = first.folder / "job/link"
    link.symlink_to("one")
    tick()
    first.sync()
    for target, name in (("two", "after-two"), ("three", "late")):
        (first.folder / "job/new").symlink_to(target)
        (first.folder / "job/new").rename(link)
        (first.folder / "job" / name).write_text(name)
        tick()
    (first.folder / "job/new").symlink_to("four")
    (first.folder / "job/new").rename(link)
    cloud.fault("storage.objects.insert", match="/late", status=503, times=None)
    first.sync(0.5)
    second = mirror(bucket, tmp_path / "2")
    second.restore()
    found = found_in(second.folder)
    assert found["job/link"] == ("link", "one") and "job/after-two" not in found


@pytest.fixture
def watched(bucket, tmp_path):
    """A mirror that has seen its folder."""
    first = mirror(bucket, tmp_path / "1")
    first.restore()
    (first.folder / "job/a").write_text("old")
    tick()
    first.sync()
    return first


def restored_by_another(bucket: Any, tmp_path: Path) -> dict[str, str]:
    second = mirror(bucket, tmp_path / "2")
    second.restore()
    return {path.name: path.read_text() for path in second.folder.glob("job/*")}


def test_a_file_that_gets_its_name_once_it_is_complete_was_there_before(
    watched, bucket, cloud, tmp_path
):
    folder = watched.folder / "job"
    (folder / "new.part").write_text("new")
    tick()
    (folder / "after").write_text("after it was complete")
    tick()
    (folder / "new.part").rename(folder / "new")
    tick()
    cloud.fault("storage.objects.insert", match="/new", status=503, times=None)
    watched.sync(0.5)
    assert restored_by_another(bucket, tmp_path) == {"a": "old"}


def after_reports(watched: Mirror, change: Callable[[], None]) -> None:
    """Do something in the next look, after it read what had happened."""
    due = watched.watch.due

    def due_then_change() -> set[str] | None:
        found = due()
        watched.watch.due = due
        change()
        return found

    watched.watch.due = due_then_change


def test_a_file_that_gets_its_name_during_a_look_was_there_before(watched, bucket, tmp_path):
    folder = watched.folder / "job"
    for name in ("new.part", "after"):
        (folder / name).write_text(name)
        tick()
    after_reports(watched, lambda: (folder / "new.part").rename(folder / "new"))
    watched.sync()
    assert restored_by_another(bucket, tmp_path) == {"a": "old"}


def test_what_is_reported_of_a_name_before_another_file_got_it_removes_nothing(
    watched, bucket, tmp_path
):
    folder = watched.folder / "job"
    (folder / "b").write_text("other")
    watched.sync()
    (folder / "a").write_text("newer")

    def replace() -> None:
        (folder / "a").unlink()
        (folder / "a").hardlink_to(folder / "b")

    after_reports(watched, replace)
    for _ in range(3):
        tick()
        watched.sync()
    assert restored_by_another(bucket, tmp_path) == {"a": "other", "b": "other"}


def test_no_view_is_of_a_moment_at_which_a_name_that_came_and_went_was_there(
    watched, bucket, cloud, tmp_path
):
    """Such as a mark that what is written beside it is not complete."""
    folder = watched.folder / "job"
    for name in ("incomplete", "a", "last"):
        (folder / name).write_text("new")
        tick()
    (folder / "incomplete").unlink()
    tick()
    cloud.fault("storage.objects.insert", match="/last", status=503, times=None)
    watched.sync(0.5)
    assert restored_by_another(bucket, tmp_path) == {"a": "old"}


def test_a_folder_that_became_a_link_to_itself_hides_no_removal(bucket, tmp_path):
    first = mirror(bucket, tmp_path / "1")
    first.restore()
    names = [f"job/{number}" for number in range(20)]
    (first.folder / "job/d").mkdir()
    for name in ["job/d/b", *names]:
        (first.folder / name).write_text(name)
    first.sync()
    for name in ["job/d/b", *names]:
        (first.folder / name).unlink()
    (first.folder / "job/d").rmdir()
    (first.folder / "job/d").symlink_to("d/b")
    tick()
    first.sync()
    second = mirror(bucket, tmp_path / "2")
    second.restore()
    assert {path for path in found_in(second.folder) if path != "job"} == {"job/d"}


@pytest.fixture
def saved(watched):
    """A mirror that has seen the files of two ranks."""
    for name in ("0", "1"):
        (watched.folder / "job" / name).write_text("first")
    tick()
    watched.sync()
    return watched


@pytest.mark.parametrize("is_closed", [False, True])
def test_no_view_is_of_a_moment_at_which_a_file_was_being_rewritten(
    saved, bucket, tmp_path, is_closed
):
    """Ranks that save over one folder are not done at the same time."""
    folder = saved.folder / "job"
    with (folder / "0").open("w") as slow:
        slow.write("second, with more of it")
        slow.flush()
        (folder / "1").write_text("second")
        tick()
        saved.sync()
        saved.sync()
        if is_closed:
            slow.close()
            tick()
            saved.sync()
        found = restored_by_another(bucket, tmp_path)
    second = {"0": "second, with more of it", "1": "second"}
    assert found == {"a": "old", **(second if is_closed else {"0": "first", "1": "first"})}


def test_nor_at_which_one_was_that_was_closed_before_the_next_look(saved, bucket, cloud, tmp_path):
    folder = saved.folder / "job"
    with (folder / "0").open("w") as slow:
        slow.write("second" * 10_000)  # too much for the view
        slow.flush()
        (folder / "1").write_text("second")
        tick()
        slow.write("second")
    tick()
    cloud.fault("storage.objects.insert", match="-staged", status=503, times=None)
    saved.sync(0.5)
    assert saved.failed or saved.underway
    assert restored_by_another(bucket, tmp_path) == {"a": "old", "0": "first", "1": "first"}


def test_where_a_program_was_ended_in_a_save_nothing_after_its_begin_is_restored(
    saved, bucket, tmp_path
):
    folder = saved.folder / "job"
    with (folder / "0").open("w") as slow:
        slow.write("sec")
        inode = os.fstat(slow.fileno()).st_ino
    (folder / "1").write_text("second")
    saved.sender.was_cut = lambda seen: seen.st_ino == inode
    assert saved.finish(lambda text: None, 60) == {}
    assert saved.cut == {"job/0": "the version before"}
    assert saved.conclude({}) == {}
    assert restored_by_another(bucket, tmp_path) == {"a": "old", "0": "first", "1": "first"}
