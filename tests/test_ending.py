"""What is decided about jobs: whether they are lost, what a kill waits for, what rm deletes."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from berg import BergError, config, job, states
from berg.job import Group, Machine, Resource, State, Summary
from berg.laptop import ending, jobs, records
from berg.laptop import jobs as names
from berg.laptop import jobs as rows
from berg.laptop.jobs import Entry


def entry(name: str, state: str = "FAILED", machines: tuple[str, ...] = (), **summary) -> Entry:
    """A job with machines of these statuses."""
    there = [Machine(f"{name}-{n}", "zone", status) for n, status in enumerate(machines)]
    summary = {"user": "ada", "results_dir": name, **summary}
    return Entry(name, State(state, job=Summary(**summary)), there)


def upload(left: int, size: int = 0) -> State:
    return State("UPLOADING", left_files=left, left_bytes=size, uploading_since="noon")


def test_a_kill_says_what_an_upload_has_left_now_and_then():
    waiting = ending.Waiting("a", began=100)
    assert waiting.look(State("RUNNING"), 100) == ""
    assert waiting.look(upload(0), 104) == waiting.look(upload(5), 103) == ""
    said = waiting.look(upload(5, 1000), 104)
    assert (
        said
        == "a has been uploading its results since noon: 5 files, 1,000 bytes are left (Ctrl-C stops waiting)"
    )
    assert waiting.look(upload(4), 134) == "" and waiting.look(upload(4), 134.1)
    assert waiting.look(upload(4), 254) == "" and not waiting.gave_up


def test_a_kill_says_from_the_first_second_on_what_it_waits_for():
    waiting = ending.Waiting("a", began=100)
    assert waiting.look(State("RUNNING"), 100.9) == ""
    said = waiting.look(State("RUNNING"), 101)
    assert "a is still RUNNING" in said and "berg kill --now a" in said
    assert waiting.look(State("RUNNING"), 120) == "", "once"
    assert waiting.look(State("RUNNING"), 161) == "a did not answer; deleting its machine"


def test_a_kill_gives_up_an_upload_that_does_not_go_on():
    waiting = ending.Waiting("a", began=0)
    waiting.look(upload(5), 10)
    waiting.look(upload(4), 100)
    waiting.look(upload(4), 100 + ending.STALLED)
    with pytest.raises(BergError, match=r"moved for 121 s: 4 files(.|\n)*kill --now a"):
        waiting.look(upload(4), 101 + ending.STALLED)


def test_a_kill_gives_up_a_worker_that_does_not_answer():
    waiting = ending.Waiting("a", began=0)
    assert "still RUNNING" in waiting.look(State("RUNNING"), ending.KILL_TIMEOUT)
    assert not waiting.gave_up
    said = waiting.look(State("RUNNING"), ending.KILL_TIMEOUT + 1)
    assert said == "a did not answer; deleting its machine" and waiting.gave_up


@pytest.mark.parametrize(
    ("found", "has_worker"),
    [
        (entry("a", "RUNNING", ("RUNNING",)), True),
        (entry("a", "RUNNING", ("TERMINATED", "RUNNING")), True),
        (entry("a", "RUNNING", ("TERMINATED",)), False),
        (entry("a", "SUBMITTED", ("RUNNING",)), False),
        (entry("a", "FAILED", ("RUNNING",)), False),
        (entry("a", "RUNNING"), False),
        (Entry("a", None, [Machine("a", "zone", "RUNNING")]), False),
    ],
)
def test_only_who_has_a_worker_is_told_of_its_end(found, has_worker):
    assert ending.has_worker(found) == has_worker


def concluded(state: State, seconds: float, statuses: tuple[str, ...], *, waits=False, words=""):
    there = [Machine(f"a-{n}", "zone", status) for n, status in enumerate(statuses)]
    return jobs.conclude(state, seconds, there, lambda: waits, lambda machine: words)


@pytest.mark.parametrize(
    ("state", "seconds", "statuses", "options", "is_lost"),
    [
        (State("RUNNING"), 61, (), {}, True),
        (State("RUNNING"), 59, (), {}, False),
        (State("RUNNING"), 61, (), {"waits": True}, False),
        (State("RUNNING"), 61, ("TERMINATED",), {}, True),
        (State("RUNNING"), 61, ("RUNNING",), {"words": "end"}, False),
        (State("SUBMITTED"), 61, ("RUNNING",), {"words": "end"}, True),
        (State("SUBMITTED"), 61, ("RUNNING",), {}, False),
        (State("SUBMITTED", job=Summary(place="tpu")), 359, (), {}, False),
        (State("SUBMITTED", job=Summary(place="tpu")), 361, (), {}, True),
        (State("RUNNING", job=Summary(place="tpu")), 61, (), {}, True),
        (State("FAILED"), 1000, (), {}, False),
    ],
)
def test_a_job_is_lost_that_nobody_will_end(state, seconds, statuses, options, is_lost):
    seen = concluded(state, seconds, statuses, **options)
    assert (seen.state == "LOST") == is_lost and (is_lost or seen == state)


def test_of_a_sweep_all_machines_must_be_without_a_worker():
    words = {"a-0": "end", "a-1": ""}
    there = [Machine(name, "zone", "RUNNING") for name in words]
    alone, of_sweep = State("SUBMITTED"), State("SUBMITTED", job=Summary(sweep="s"))
    for state, is_lost in ((alone, True), (of_sweep, False)):
        seen = jobs.conclude(state, 99, there, lambda: False, lambda machine: words[machine.name])
        assert (seen.state == "LOST") == is_lost
    words["a-1"] = "end"
    seen = jobs.conclude(of_sweep, 99, there, lambda: False, lambda machine: words[machine.name])
    assert "delete the machine: berg reap. The end of its console: end" in seen.reason


class Watched(Machine):
    """A machine that counts how often somebody looks at its status."""

    looks = 0

    def __getattribute__(self, name: str):
        Watched.looks += name == "status"
        return super().__getattribute__(name)


def test_all_waiting_jobs_of_a_sweep_look_at_its_machines_once():
    labels = {"berg-sweep": "s"}
    there = [Watched(f"s-machine-{n}", "zone", "RUNNING", labels=labels) for n in range(20)]
    state = State("SUBMITTED", job=Summary(sweep="s", wait_seconds=100))
    stored = [states.Stored(f"s-{n:03}", state, 1) for n in range(300)]
    settings = config.Config()
    owned = jobs.by_owner(there)
    found = [jobs.entry(settings, each, owned, words=lambda machine: "") for each in stored]
    assert {each.status for each in found} == {"SUBMITTED"}
    assert Watched.looks <= 3 * len(there)


@pytest.mark.slow
def test_who_waits_for_several_jobs_of_a_sweep_lists_its_machines_once(berg, cloud):
    cloud.call("POST", "/_berg/settings", {"boot": 0})  # nothing runs
    assert berg("run", "-g", "0", "-n", "lr", "--grid", "x=1,2,3,4", "echo {x}").returncode == 0
    settings = cloud.settings(berg.bucket_name)
    machines = [each for each in jobs.places.machines(settings) if "berg-sweep" in each.labels]
    running = [
        replace(found, machines=[machine])
        for found, machine in zip(jobs.overview(settings, None, "lr-"), machines, strict=True)
    ]
    cloud.call("DELETE", "/_berg/requests")
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda found: jobs.look_again(settings, found), running))
    assert [len(each.workers) for each in again] == [4] * 4
    assert cloud.call("GET", "/_berg/requests")["counts"]["compute.instances.list"] == 1


def test_what_rm_means_by_names_and_patterns():
    grid = [entry(f"grid-{n}", sweep="grid") for n in range(2)]
    theirs = entry("theirs", user="bob")
    everything = [entry("one"), entry("other"), theirs, *grid]
    chosen = records.choose(everything, ["o*", "grid", "one", "theirs"], "ada")
    assert [each.name for each in chosen] == ["one", "other", "grid", "theirs"]
    assert [each.jobs for each in chosen[2:]] == [["grid-0", "grid-1"], ["theirs"]]
    for wrong, says in (
        ("t*", "matches none of your jobs"),
        ("none", "there is no job"),
        ("grid-0", "can only be deleted as a whole: berg rm grid"),
    ):
        with pytest.raises(BergError, match=says):
            records.choose(everything, [wrong], "ada")
    with pytest.raises(BergError, match="lives has not ended"):
        records.choose([entry("lives", "RUNNING")], ["lives"], "ada")
    with pytest.raises(BergError, match="there is no job"):
        records.choose([entry("b\N{REPLACEMENT CHARACTER}d")], ["b\N{REPLACEMENT CHARACTER}d"], "")


def test_folders_of_other_jobs_stay():
    whose = {"shared": "x", "above": "y", "deep/inside/it": "z"}
    found = records.shared_folders(["shared", "above/mine", "deep", "own", "shared2"], whose)
    assert found == {"shared": "x", "above/mine": "y", "deep": "z"}
    removal = records.Removal("a", [entry("own"), entry("shared"), entry("c", results_dir="")])
    removal.shared = records.shared_folders(removal.folders, whose)
    assert removal.folders == ["own", "shared"] and removal.alone == ["own"]


def over(bucket, name: str) -> Entry:
    stored = states.claim(bucket, name, State("FAILED", job=Summary("ada", results_dir=name)))
    bucket.write(job.metadata_path(name), "{}")
    bucket.write(f"berg_results/{name}/x", "x")
    return Entry(name, stored.state, [], stored)


def planned(bucket, *names: str) -> records.Removal:
    removal = records.Removal(names[0], [over(bucket, name) for name in names])
    records.list_results(bucket, removal, [])
    removal.others = records.list_records(bucket, removal)
    return removal


def test_a_job_that_went_on_meanwhile_is_not_deleted(bucket):
    removal = planned(bucket, "a", "a-0", "a-1")
    went_on = removal.entries[1].stored
    states.claim(bucket, "a-0", State(job=went_on.state.job), went_on.generation)
    before = [each.name for each in bucket.list("")]
    with pytest.raises(BergError, match="a changed in the meantime, so it was not deleted"):
        records.remove(bucket.config, removal, lambda gone: None)
    assert [each.name for each in bucket.list("")] == before
    there = {each.name: each.state for each in states.listed(bucket)}
    assert [there[name].state for name in removal.jobs] == ["FAILED", "SUBMITTED", "FAILED"]
    assert {each.removed_by for each in there.values()} == {""}, "the others may go on as well"


def test_a_job_that_is_being_deleted_does_not_go_on(bucket):
    removal, gone = planned(bucket, "a"), []

    def go_on(count: int) -> None:
        gone.append(count)
        now = states.read(bucket, "a")
        if now is not None:
            with pytest.raises(BergError, match="a is being deleted by .*: berg rm a"):
                records.check_kept(Entry("a", now.state, [], now))

    records.remove(bucket.config, removal, go_on)
    assert gone == [1, 2, 3] and list(bucket.list("")) == []


def test_what_is_damaged_can_be_deleted(bucket):
    bucket.write(job.state_path("a"), "{")
    stored = states.read(bucket, "a")
    assert stored and stored.is_damaged
    records.check_kept(Entry("a", stored.state, [], stored))
    removal = records.Removal("a", [Entry("a", stored.state, [], stored)])
    records.remove(bucket.config, removal, lambda gone: None)
    assert list(bucket.list("")) == []


def left(*entries: Entry, resources: tuple[Resource, ...] = (), user: str | None = "ada", age=999):
    seen = ending.Seen(list(entries), list(resources), lambda time: age)
    found = [*ending.left_machines(seen, user), *ending.left_resources(seen, user)]
    return {each.name: each.why for each in found}


def resource(name: str, kind: str = "disk", why: str = "", user: str = "") -> Resource:
    return Resource(kind, name, "zone", "2026-01-01T00:00:00Z", why, user)


def test_machines_that_nobody_needs_are_found():
    ended = State("FAILED", finished_at="2026-01-01T00:00:00Z")
    recent = Entry("recent", ended, [Machine("recent", "zone", "RUNNING")])
    theirs = Entry("theirs", ended, [Machine("theirs", "zone", "RUNNING")])
    recent.state.job, theirs.state.job = Summary("ada"), Summary("ada")
    assert left(recent, age=ending.SETTLED) == {}
    assert left(recent, age=ending.SETTLED + 1) == {"recent": "the job is FAILED"}
    assert left(
        entry("over", "KILLED", ("RUNNING",)),
        entry("kept", "KILLED", ("RUNNING",), kept=True),
        entry("lives", "RUNNING", ("RUNNING",)),
        entry("off", "RUNNING", ("TERMINATED", "TERMINATED")),
        entry("half", "RUNNING", ("TERMINATED", "RUNNING")),
        entry("spot", "RUNNING", ("TERMINATED",), group=Group(region="us-central1")),
        entry("theirs", "KILLED", ("RUNNING",), user="bob"),
    ) == {
        "over-0": "the job is KILLED",
        "off-0": "it is stopped; the job is RUNNING",
        "off-1": "it is stopped; the job is RUNNING",
    }


def test_of_a_sweep_machines_go_when_all_jobs_are_over():
    workers = [Machine("w0", "zone", "RUNNING"), Machine("w1", "zone", "TERMINATED")]
    first, second = entry("s-0", sweep="s"), entry("s-1", "RUNNING", sweep="s")
    first.workers = second.workers = workers
    assert left(first, second) == {"w1": "it is stopped; its sweep continues"}
    second.state.state = "LOST"
    of_sweep = (resource("s", "secret"),)
    gone = left(first, second, resources=of_sweep)
    assert gone == dict.fromkeys(("w0", "w1", "s"), "its sweep has ended")
    second.state.state = "RUNNING"
    assert left(first, second, resources=of_sweep) == {"w1": "it is stopped; its sweep continues"}


def test_resources_go_with_what_owned_them():
    there = (
        resource("mine"),
        resource("lives"),
        resource("nobodys"),
        resource("broken", why="it is broken"),
        resource("lives", why="it is old"),
        resource("hers", user="bob"),
        resource("theirs"),
    )
    theirs = entry("theirs", user="bob")
    jobs_there = (entry("mine"), entry("lives", "RUNNING"), theirs)
    found = left(*jobs_there, resources=there)
    assert found == {
        "mine": "the job is FAILED",
        "nobodys": "no job owns it",
        "broken": "it is broken",
        "lives": "it is old",
    }
    everybodys = left(*jobs_there, resources=there, user=None)
    assert everybodys == found | {"hers": "no job owns it", "theirs": "the job is FAILED"}


def test_machines_of_a_group_go_with_it_and_templates_last():
    of_group = Machine("g-x1", "zone", labels={"berg-job": "g"})
    alone = Machine("alone", "zone", labels={"berg-job": "alone"})
    found = [
        ending.Leftover(each, "")
        for each in (resource("t", "template"), resource("g", "group"), of_group, alone)
    ]
    assert [each.name for each in ending.in_order(found)] == ["alone", "g", "t"]
    assert [each.name for each in ending.in_order(found[2:])] == ["g-x1", "alone"]


def test_what_is_no_name_is_not_completed(monkeypatch, tmp_path):
    monkeypatch.setattr(names, "file", lambda: tmp_path / "names")
    names.remember([("good", ""), ("bad live\nevil", ""), ("$(x)", ""), ("s-0", "s")], {"good"})
    assert (tmp_path / "names").read_text() == "good live\ns sweep 1\n"


def test_a_sweep_is_one_row_where_its_first_job_stood():
    parts = [
        entry("s-0", sweep="s", results_dir="grid/a/0"),
        entry("s-1", "RUNNING", sweep="s", results_dir="grid/a/1", gpus="1 x l4"),
        entry("s-2", "RUNNING", sweep="s", results_dir="grid/b/2"),
    ]
    for each in parts:
        each.workers = [Machine("w0", "zone-a", "RUNNING"), Machine("w1", "zone-a", "RUNNING")]
        each.state.idle = {each.name: "2026-01-01T00:00:00Z"}
    alone = entry("alone")
    shown = rows.folded([parts[0], alone, *parts[1:]])
    assert [each.name for each in shown] == ["s", "alone"] and shown[1] is alone
    assert shown[0].state.idle.keys() == {"s-1", "s-2"}, "what is over is not idle"
    name, status, _, cost, zone, gpus, results, code = rows.cells(shown[0])
    assert (name, status, cost, zone) == ("s", "2 RUNNING, 1 FAILED", "?", "zone-a")
    assert (gpus, results, code) == ("2 machines", "grid/…", "")
    assert rows.common_folder(["/abs", "a"]) == rows.common_folder(["a", "b"]) == "…"
    bare = rows.cells(Entry("m", None, [Machine("m", "zone-b", "RUNNING", gpus="4 x p100")]))
    assert bare[:2] == ["m", "no job, machine RUNNING"] and bare[4:] == [
        "zone-b",
        "4 x p100",
        "",
        "",
    ]
    alone.state.exit_code = 0
    assert rows.cells(alone)[-1] == "0"


def test_a_machine_of_an_unknown_job_takes_its_group_along():
    """Without the bucket nobody knew of the group, which made the machine anew."""
    removed = []
    there = [resource(*each) for each in (("gone", "group"), ("other", "group"), ("gone", "disk"))]
    place = SimpleNamespace(
        resources=lambda config: there, remove=lambda config, each: removed.append(each)
    )
    ending.remove_group(config.Config(), SimpleNamespace(name="gone", place=place))
    assert removed == there[:1]


def test_a_sweep_s_row_has_the_zone_of_jobs_that_ended_and_whose_command_it_shows():
    ended = [entry(f"lr-{n}", "SUCCEEDED", cmd=f"train {n}", sweep="lr") for n in range(3)]
    for each in ended[:2]:
        each.state.zone = "us-central1-a"
    (row,) = rows.folded(ended)
    assert rows.cells(row)[4] == "us-central1-a"
    assert row.summary.cmd == "train 0  (the command of lr-0, the first of 3 here)"
    ended[2].state.zone = "us-east1-b"
    assert rows.cells(rows.folded(ended)[0])[4] == "2 zones"


def test_a_job_of_pods_that_ended_was_in_its_cluster_and_not_in_a_node():
    ended = entry("pods", "SUCCEEDED", place="gke", group=Group(cluster="us-central1-a/train"))
    ended.state.zone = "gke-train-n1-standard-8-c0ca6ae5-4snt"
    assert rows.cells(ended)[4] == ended.to_dict()["zone"] == "us-central1-a/train"


def test_pods_that_had_a_limit_to_come_by_are_given_up_when_none_has():
    pending = [Machine("wide", "us-central1-a/full", "PROVISIONING", place="gke")]
    came = [replace(pending[0], status="RUNNING")]
    limited = job.Summary(place="gke", wait_seconds=100)

    def seen(state: job.State, seconds: float, there: list[Machine]) -> str:
        found = jobs.conclude(state, seconds, there, lambda: True, lambda machine: "")
        return f"{found.state} {found.reason}"

    waiting = job.State(job=limited)
    assert seen(waiting, 90, pending) == "SUBMITTED "
    assert seen(waiting, 110, pending).startswith(
        "LOST not all of its pods or machines were up within --queue-timeout"
    )
    assert seen(waiting, 110, []).startswith("LOST ")
    assert seen(waiting, 110, came) == "SUBMITTED ", "that one gives up by itself"
    begun = replace(waiting, started_at="2026-11-23T00:00:00Z")
    assert seen(begun, 110, pending) == "SUBMITTED ", "it came, and was taken away"
    queued = [replace(pending[0], is_queued=True)]
    assert seen(begun, 90, queued) == "SUBMITTED ", "it came, and was evicted from its queue"
    assert seen(begun, 110, queued).startswith("LOST not all of its pods")
    assert seen(replace(begun, state="RUNNING"), 110, queued) == "RUNNING "
    assert seen(job.State(job=job.Summary(place="gke")), 999, pending) == "SUBMITTED "


def test_the_machines_of_a_sweep_are_there_once_however_many_jobs_it_has():
    workers = [Machine(f"s-{n}", "zone", "RUNNING") for n in range(3)]
    parts = [Entry(f"s-{n}", State(job=Summary(sweep="s")), [], None, workers) for n in range(9)]
    parts[0].machines = workers[:1]
    alone = entry("alone", "RUNNING", ("RUNNING", "RUNNING"))
    found = jobs.machines_of([*parts, alone])
    assert [(machine.name, whose.name) for machine, whose in found] == [
        *((f"s-{n}", "s-0") for n in range(3)),
        ("alone-0", "alone"),
        ("alone-1", "alone"),
    ]


@pytest.mark.parametrize(
    ("secrets", "sweep", "state", "others", "gone"),
    [
        (0, "", "KILLED", [], []),
        (1, "", "KILLED", [], ["a"]),
        (1, "", "RUNNING", [], ["a"]),
        (1, "s", "KILLED", ["SUCCEEDED", "FAILED"], ["s"]),
        (1, "s", "KILLED", ["SUCCEEDED", "RUNNING"], []),
        (1, "s", "RUNNING", ["SUCCEEDED"], []),
        (0, "s", "KILLED", ["SUCCEEDED"], []),
    ],
)
def test_secrets_go_with_the_last_that_could_need_them(
    monkeypatch, secrets, sweep, state, others, gone
):
    deleted = []
    found = entry("a", state, sweep=sweep, secrets=secrets)
    # Jobs of another sweep, whose name begins alike, need no secret of this one.
    rest = [entry(f"s-{n}", each, sweep="s") for n, each in enumerate(others)]
    there = [entry("a", "RUNNING", sweep=sweep), *rest, entry("s-2-0", "RUNNING", sweep="s-2")]
    monkeypatch.setattr(ending, "overview", lambda config, user, prefix: there)
    monkeypatch.setattr(ending.secret, "delete", lambda config, name: deleted.append(name))
    ending.forget_secrets(None, found)
    assert deleted == gone


# --- a kill, step by step


class Place:
    """A place with these machines; what it is asked to do is kept."""

    def __init__(self, *machines: Machine):
        self.there, self.done = list(machines), []
        self.resources = lambda config: [resource("a", "group")]
        self.remove = lambda config, each: self.done.append(("remove", each.name))

    def machines(self, config, jobs=(), sweeps=(), zone=""):
        return self.there

    def set_metadata(self, config, machine, key, value):
        self.done.append((machine.name, key, value))
        if machine.status == "STOPPING":
            raise BergError("it goes already")

    def console(self, config, machine):
        return f"console of {machine.name}"

    def delete(self, config, name, machines, group):
        self.done.append(("delete", name, [each.name for each in machines]))


@pytest.fixture
def place(monkeypatch):
    place = Place()
    monkeypatch.setattr(ending.places, "of", lambda name: place)
    return place


def claimed(memory, name: str, state: str, machines: tuple[str, ...] = (), **summary) -> Entry:
    found = entry(name, state, machines, **summary)
    stored = states.claim(memory, name, found.state)
    return replace(found, state=stored.state, stored=stored)


def test_a_pattern_means_what_it_matches_and_a_name_itself():
    living = ["lr-0", "lr-1", "other"]
    assert ending.hits("gone", living) == ["gone"]
    assert ending.hits("lr-*", living) == ["lr-0", "lr-1"]
    with pytest.raises(BergError, match=r"'x\*' matches none of your jobs"):
        ending.hits("x*", living)


@pytest.mark.parametrize(
    ("patterns", "everything", "names"),
    [
        (["one", "gone"], False, ["one", "gone"]),
        (["o*", "gone"], False, ["one", "other", "gone"]),
        ([], True, ["one", "other", "lost"]),
    ],
)
def test_a_kill_means_what_lives(monkeypatch, memory, patterns, everything, names):
    entries = [entry(name, "RUNNING") for name in ("one", "other")]
    entries += [entry("over"), entry("lost", "LOST", ("RUNNING",))]
    seen = SimpleNamespace(entries=entries)
    monkeypatch.setattr(ending.index, "look", lambda config, user, hours: seen)
    found = ending.match(memory.config, tuple(patterns), everything)
    assert list(found) == names
    looked = everything or any("*" in each for each in patterns)
    assert all((each is not None) == (looked and name != "gone") for name, each in found.items())


def test_of_a_sweep_the_jobs_that_no_machine_has_are_ended_first(monkeypatch, memory):
    there = [
        entry("s-0", "RUNNING", ("RUNNING",), sweep="s"),
        entry("s-1", "SUBMITTED", sweep="s"),
        entry("s-2", "SUCCEEDED", sweep="s"),
        entry("s-other", "RUNNING", sweep="s-other"),
        entry("s-3", "RUNNING", ("RUNNING",), sweep="s"),
    ]
    monkeypatch.setattr(ending, "overview", lambda config, user, prefix: there)
    assert ending.parts(memory.config, "s") == {"s": None}, "there is no such sweep"
    memory.write(job.sweep_path("s"), "{}")
    assert list(ending.parts(memory.config, "s")) == ["s-1", "s-0", "s-3"]


@pytest.mark.parametrize(
    ("found", "waits"),
    [
        (entry("s-0", "SUBMITTED", sweep="s"), True),
        (entry("s-0", "SUBMITTED", ("RUNNING",), sweep="s"), False),
        (entry("s-0", "SUBMITTED"), False),
        (entry("s-0", "RUNNING", sweep="s"), False),
        (entry("s-0", "UPLOADING", sweep="s"), False),
        (Entry("s-0", None, []), False),
    ],
)
def test_a_job_of_a_sweep_waits_until_a_machine_has_it(found, waits):
    if found.state:  # as it comes out of the bucket
        found = replace(found, state=job.state_from_json(found.state.to_json()))
    assert ending.waits_for_turn(found) is waits


@pytest.mark.parametrize("state", ["STARTING", "INSTALLING", "RUNNING", "UPLOADING"])
def test_whoever_has_begun_is_told_of_the_end(state):
    assert ending.has_worker(entry("a", state, ("RUNNING",)))
    assert not ending.has_worker(entry("a", state, ("PROVISIONING",)))
    silent = entry("a", state, ("RUNNING",))
    silent.machines[0].silence = "its node does not answer"
    assert not ending.has_worker(silent)


def test_a_job_that_waits_for_its_turn_is_ended_where_it_lies(memory, place):
    seen = claimed(memory, "s-0", "SUBMITTED", sweep="s")
    assert ending.kill(memory.config, "s-0", False, print, seen) == "KILLED"
    assert states.read(memory, "s-0").state.state == "KILLED" and place.done == []


def test_a_job_that_a_machine_took_meanwhile_is_not_ended_as_one_that_waits(memory, place):
    seen = claimed(memory, "s-0", "SUBMITTED", sweep="s")
    states.replaced(memory, seen.stored, replace(seen.state, state="RUNNING"))
    assert ending.end_unbegun(memory.config, seen, now=False) is False
    assert states.read(memory, "s-0").state.state == "RUNNING"


@pytest.mark.parametrize("now", [False, True])
def test_who_is_told_of_an_end(place, now):
    """Of the machines that run the command the first; at once all, and none is waited for."""
    found = entry("a", "RUNNING", ("RUNNING", "RUNNING"))
    found.machines.reverse()
    who = config.Config(user="ada")
    ending.request_end(who, found, now)
    said = "ada now" if now else "ada"
    told = [(f"a-{n}", "berg-kill-a", said) for n in range(2 if now else 1)]
    assert sorted(place.done) == told
    going = entry("a", "RUNNING", ("STOPPING",))
    fails = pytest.raises(BergError, match="it goes already")
    with contextlib.nullcontext() if now else fails:
        ending.request_end(who, going, now)


@pytest.mark.parametrize(
    ("state", "sweep", "now", "done"),
    [
        ("RUNNING", "", False, [("delete", "a", ["a-0"])]),
        ("RUNNING", "s", False, []),
        ("RUNNING", "s", True, [("delete", "a", ["a-0"])]),
        ("LOST", "", False, [("delete", "a", ["a-0"])]),
        ("LOST", "s", False, [("delete", "a", ["w"])]),
        (None, "", False, [("remove", "a"), ("delete", "a", ["a-0"])]),
    ],
)
def test_machines_of_a_sweep_take_the_next_job(memory, place, state, sweep, now, done):
    found = entry("a", state or "RUNNING", ("RUNNING",), sweep=sweep)
    found.workers = [Machine("w", "zone", "RUNNING")]
    found = found if state else replace(found, state=None)
    ending.delete_machines(memory.config, found, now)
    assert place.done == done


@pytest.mark.parametrize("has_log", [False, True])
def test_the_console_is_kept_of_a_machine_that_wrote_no_log(memory, place, has_log):
    log = f"{job.log_prefix('a')}a-0.log"
    memory.write(f"{job.log_prefix('a')}other.log", "of another machine")
    if has_log:
        memory.write(log, "its own")
    ending.save_console(memory.config, "a", Machine("a-0", "zone", "RUNNING"))
    assert memory.read(log) == (b"its own" if has_log else b"console of a-0")
    place.console = lambda config, machine: ""
    ending.save_console(memory.config, "b", Machine("b-0", "zone", "RUNNING"))
    assert memory.get(f"{job.log_prefix('b')}b-0.log") is None


def test_an_end_that_a_worker_wrote_meanwhile_stays(memory, monkeypatch):
    found = claimed(memory, "a", "RUNNING")
    found.machines = [Machine(f"a-{n}", "z", silence="its node is silent") for n in range(2)]
    states.replaced(memory, found.stored, replace(found.state, state="UPLOADING"))

    def again(config, name):
        stored = states.read(memory, name)
        return Entry(name, stored.state, found.machines, stored)

    monkeypatch.setattr(ending, "find", again)
    assert ending.write_end(memory.config, found) == "KILLED"
    there = states.read(memory, "a")
    user = memory.config.user
    assert there.state.reason == f"killed by {user}; its node is silent"
    assert there.state.state == "KILLED" and there.state.finished_at
    states.replaced(memory, there, replace(there.state, state="SUCCEEDED"))
    assert ending.write_end(memory.config, found) == "SUCCEEDED"
    assert ending.write_end(memory.config, again(None, "a")) == "SUCCEEDED"
    assert ending.write_end(memory.config, Entry("m", None, [])) == ""


@pytest.mark.parametrize(
    ("sweep", "is_seen", "forgotten"),
    [("", False, ["RUNNING"]), ("s", False, ["RUNNING", "KILLED"]), ("s", True, ["RUNNING"])],
)
def test_of_several_jobs_of_a_sweep_the_secrets_are_left_to_who_calls(
    memory, place, monkeypatch, sweep, is_seen, forgotten
):
    found, of_states = claimed(memory, "a", "RUNNING", ("TERMINATED",), sweep=sweep), []
    monkeypatch.setattr(ending, "as_now", lambda config, name, seen: found)
    monkeypatch.setattr(ending, "forget_secrets", lambda _, each: of_states.append(each.status))
    seen = found if is_seen else None
    assert ending.kill(memory.config, "a", False, print, seen) == "KILLED"
    assert [each.partition(",")[0] for each in of_states] == forgotten


@pytest.mark.parametrize(
    ("state", "statuses", "sweep", "looks_far"),
    [
        ("RUNNING", ("RUNNING",), "s", False),
        ("FAILED", (), "s", False),
        ("RUNNING", (), "s", True),
        ("RUNNING", ("RUNNING",), "", True),
    ],
)
def test_only_a_job_of_a_sweep_whose_machine_is_known_is_looked_at_there(
    monkeypatch, state, statuses, sweep, looks_far
):
    seen = entry("a", "RUNNING", ("RUNNING",), sweep=sweep)
    near, far = entry("a", state, statuses, sweep=sweep), entry("a")
    monkeypatch.setattr(ending, "look_again", lambda config, found: near)
    monkeypatch.setattr(ending, "find", lambda config, name: far)
    assert ending.as_now(None, "a", seen) is (far if looks_far else near)
    assert ending.as_now(None, "a", None) is far
    assert ending.as_now(None, "a", replace(seen, machines=[])) is far


def test_an_end_is_waited_for_until_it_is_there_or_nobody_answers(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(ending, "time", clock)
    running, over = entry("a", "RUNNING", ("RUNNING",)), entry("a", "KILLED", ("RUNNING",))
    at = 7.0
    monkeypatch.setattr(ending, "look_again", lambda _, found: over if clock.now >= at else running)
    said = []
    assert ending.wait_for_end(None, running, said.append) is over and clock.now == 7
    assert len(said) == 1 and said[0].startswith("a is still RUNNING")
    clock.now, at = 0.0, 1000.0
    assert ending.wait_for_end(None, running, said.append) is running
    assert ending.KILL_TIMEOUT == 60 and clock.now == 60.5 and "did not answer" in said[-1]
    assert ending.wait_for_end(None, over, pytest.fail) is over
