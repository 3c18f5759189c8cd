"""What a submit decides before it asks Google for anything: the folder, the room, the limits."""

import contextlib
import hashlib
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import commit, git

from berg import BergError, config, job, plan, states
from berg.code import snapshot
from berg.commands import start
from berg.google.shapes import Shape
from berg.job import Machine
from berg.laptop import launch
from berg.spec import JobSpec

GIB = 2**30


@pytest.fixture
def taken(tmp_path):
    """The last commit of a repo with a file, and a script in a folder."""
    root = tmp_path / "proj"
    (root / "train").mkdir(parents=True)
    (root / "train/setup.sh").write_text("true\n")
    (root / "README").write_text("words\n")
    (tmp_path / "objects").mkdir()
    git(root, "init", "-q", "-b", "main")
    commit(root)
    head = git(root, "rev-parse", "HEAD")
    return snapshot.Snapshot(root, "proj", "main", head, head, tmp_path / "objects")


def check_room(monkeypatch, disk_gb: int, *data: tuple[str, int]) -> None:
    monkeypatch.setattr(launch.offers, "image_gb", lambda config, image: 10)
    wanted = [{"path": path, "bytes": gigabytes * GIB} for path, gigabytes in data]
    launch.check_room(config.Config(), wanted, "image", disk_gb)


def test_data_and_image_fit_on_the_disk(monkeypatch):
    check_room(monkeypatch, 40, ("a", 20), ("b", 10))
    with pytest.raises(
        BergError,
        match="cannot hold the image and 30 GB of data: --disk-gb 50, or read it .* --mount$",
    ):
        check_room(monkeypatch, 39, ("a", 20), ("b", 10))
    check_room(monkeypatch, 0, ("a", 20))


def test_two_data_sets_in_one_place_are_refused(monkeypatch):
    with pytest.raises(BergError, match="two data sets would go to a"):
        check_room(monkeypatch, 100, ("a", 1), ("b", 1), ("a", 1))


def test_hours_and_minutes_of_a_spec_are_seconds_of_its_job(taken):
    spec = plan.JobSpec(cmd="true", max_hours=1.5, queue_timeout=1800, idle_hours=0.25)
    made = launch.job_of(spec, config.Config(), "one", taken)
    assert (made.max_run_seconds, made.summary().wait_seconds, made.idle_seconds) == (
        5400,
        1800,
        900,
    )


def test_a_job_runs_in_a_folder_that_its_commit_has(taken):
    root: Path = taken.root
    spec = plan.JobSpec(cmd="true", commit=taken.commit)
    assert launch.in_commit(spec, root, taken).cwd == ""
    assert launch.in_commit(spec, root / "train", taken).cwd == "train"
    (root / "later").mkdir()
    for folder in (root / "later", root / "README"):
        with pytest.raises(BergError, match=f"no folder {folder.name} to run in"):
            launch.in_commit(spec, folder, taken)
    devbox = plan.JobSpec(cmd=None, commit=taken.commit)
    assert launch.in_commit(devbox, root / "later", taken).cwd == ""


def test_a_script_to_install_is_a_file_of_the_commit(taken):
    script = plan.JobSpec(cmd="true", commit=taken.commit, install_script="train/setup.sh")
    assert launch.in_commit(script, taken.root, taken).install_script == "train/setup.sh"
    for wrong in ("train", "nothing.sh"):
        with pytest.raises(BergError, match=f"{wrong}"):
            launch.in_commit(replace(script, install_script=wrong), taken.root, taken)


SHARED, OWN = (f"berg-worker{whose}@p.iam.gserviceaccount.com" for whose in ("", "-ann"))


@pytest.mark.parametrize(
    ("account", "place", "values", "is_secret"),
    [
        (OWN, "gce", {}, True),
        (OWN, "gke", {}, False),
        (SHARED, "gce", {}, False),
        (SHARED, "gke", {}, False),
        ("ann@p.iam.gserviceaccount.com", "gce", {}, False),
        (SHARED, "gce", {"TOKEN": "t"}, True),
    ],
)
def test_machines_of_a_job_sign_with_a_key_that_few_may_read(account, place, values, is_secret):
    settings = config.Config(project="p", service_account=account)
    assert launch.add_cluster_key(settings, place, 1, alone := {**values}) == "" and alone == values
    key = launch.add_cluster_key(settings, place, 2, there := {**values})
    if is_secret:
        assert key == "" and len(there[launch.secret.CLUSTER_KEY]) == 64
    else:
        assert len(key) == 64 and there == values, "in the machines' metadata"


def test_a_spec_without_a_command_is_a_devbox(taken):
    kinds = [
        launch.job_of(plan.JobSpec(cmd=cmd), config.Config(), "one", taken).kind
        for cmd in ("true", None)
    ]
    assert kinds == ["job", "devbox"]


def test_what_gone_machines_of_a_cluster_said_of_themselves_is_deleted(bucket):
    mine, others = (job.machines_prefix(name) + "card.json" for name in ("mine", "others"))
    for name in (mine, others):
        bucket.write(name, b"{}")
    this = job.Job("mine", "true", "mine", "gs://b/berg_results/mine", "proj", "c" * 40, "c" * 40)
    launch.forget_machines(bucket, this)
    assert bucket.get(mine), "one machine writes nothing for others"
    launch.forget_machines(bucket, replace(this, num_machines=2))
    assert bucket.get(mine) is None and bucket.get(others)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_machines": 2}, "give -m N, and --spot or --cluster NAME"),
        ({"spot": True}, "give -m N, and --spot or --cluster NAME"),
        ({"cluster": "pods"}, "give -m N, and --spot or --cluster NAME"),
        ({"num_machines": 2, "spot": True, "replacement_timeout": 3}, "3s is not possible"),
    ],
)
def test_replacement_timeout_is_for_several_spot_machines_or_pods(given, says):
    spec = plan.JobSpec(cmd="true", **{"replacement_timeout": 300, **given})
    with pytest.raises(BergError, match=says):
        spec.check()
    plan.JobSpec(cmd="true", num_machines=2, spot=True, replacement_timeout=300).check()
    plan.JobSpec(cmd="true", num_machines=2, cluster="pods", replacement_timeout=300).check()


def place_with(monkeypatch, *machines: Machine, waiting: tuple[str, ...] = ()) -> list[object]:
    """Let the places have these machines; return what they are asked to delete."""
    deleted: list[object] = []
    place = SimpleNamespace(
        machines=lambda config, jobs, sweeps=(), zone="": [
            each for each in machines if zone in each.zone
        ],
        waiting=lambda config, job: set(waiting),
        take_back=lambda config, name, sha256: deleted.append((name, sha256)),
    )
    monkeypatch.setattr(launch.places, "of", lambda name: place)
    return deleted


def job_named(name: str, **more: object) -> job.Job:
    made = job.Job(name, "true", name, f"gs://b/berg_results/{name}", "proj", "c" * 40, "c" * 40)
    return replace(made, **more)


@pytest.fixture
def alive(memory):
    """A job that waits for its machines, and its claim in the bucket."""
    this = job_named("one")
    claimed = states.claim(memory, "one", job.State(state="SUBMITTED", job=this.summary()))
    return launch.Heartbeat(memory.config, this, claimed)


# --- what a spec says of its job


def test_a_job_has_what_its_spec_says(taken):
    spec = plan.JobSpec(
        cmd="python x.py berg_results/a/b",
        cwd="train",
        install_script="train/setup.sh",
        env=("A=1",),
        notify="https://127.0.0.1/hook",
        note="a note",
        keep_going=True,
        tpu="V5e-1x1",
        docker="python:3.12",
        no_kill=True,
        max_restarts=7,
        sample_seconds=11,
        profile=True,
        restart_on_failure=2,
        stop_worst="loss",
        rungs="3,9",
        idle_hours=1.0001,
    )
    settings = config.Config(bucket="b", monitoring=True)
    made = launch.job_of(spec, settings, "one", taken)
    assert (made.job_name, made.cmd) == ("one", spec.cmd)
    assert (made.results_dir, made.gcs_results_dir) == ("a/b", "gs://b/berg_results/a/b")
    assert (made.repo_name, made.git_commit, made.git_snapshot) == (
        "proj",
        taken.head,
        taken.commit,
    )
    assert (made.git_dirty, made.git_changed_files) == (False, [])
    assert (made.env, made.notify) == ({"A": "1"}, True)
    assert (made.tpu, made.docker) == ("v5e-1x1", "python:3.12")
    assert (made.monitoring, made.idle_seconds) == (True, 3601)
    assert made.spec == replace(spec, cmd=None, notify=None), "the URL of a webhook is a secret"
    assert made.created_by == settings.user and made.created_at
    usual = launch.job_of(plan.JobSpec(cmd="true"), settings, "one", taken)
    assert (usual.tpu, usual.docker, usual.results_dir) == ("", "", "one")
    assert not usual.notify
    changed = replace(taken, changed=["M README"])
    dirty = launch.job_of(spec, settings, "one", changed)
    assert (dirty.git_dirty, dirty.git_changed_files) == (True, ["M README"])


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"cmd": "true"}, "one"),
        ({"cmd": "true", "results_parent": "sweep"}, "sweep/one"),
        ({"cmd": "true --out berg_results/named", "results_parent": "sweep"}, "named"),
        ({"cmd": "true --out berg_results/named", "results_dir": "given"}, "given"),
        ({"cmd": None, "results_dir": "/root/berg_results/given"}, "given"),
    ],
)
def test_results_lie_where_it_is_said_first(given, folder):
    assert launch.results_dir_of(plan.JobSpec(**given), "one") == folder


@pytest.mark.parametrize(
    ("name", "is_called"),
    [("proj", "proj"), (".-a b/ü", "a-b-"), ("a_1.x-y", "a_1.x-y"), ("..", "repo"), ("", "repo")],
)
def test_a_repo_has_a_name_that_a_folder_can_have(name, is_called):
    assert snapshot.folder_name(name) == is_called


@pytest.mark.parametrize(
    ("given", "kind", "stops"),
    [
        ({}, "n1-standard-8", True),
        ({"spot": True}, "n1-standard-8", True),
        ({"spot": True, "idle": "delete"}, "n1-standard-8", False),
        ({"idle": "delete"}, "n1-standard-8", False),
        ({"cmd": "true"}, "n1-standard-8", False),
        ({"flex": True}, "n1-standard-8", False),
        ({}, "ct6e-standard-8t", False),
    ],
)
def test_an_idle_devbox_stops_where_it_can_and_people_did_not_say_otherwise(given, kind, stops):
    choice = plan.Choice(Shape(kind, 0, ""), 1, "image")
    assert launch.stops_when_idle(plan.JobSpec(**given), "gce", choice) is stops


def test_a_devbox_that_cannot_stop_is_not_asked_to():
    choice = plan.Choice(Shape("n1-standard-8", 0, ""), 2, "image")
    assert launch.stops_when_idle(plan.JobSpec(), "gce", choice) is False
    with pytest.raises(BergError, match="--idle stop is not possible: berg stops devboxes of one"):
        launch.stops_when_idle(plan.JobSpec(idle="stop"), "gce", choice)


@pytest.mark.parametrize(
    ("num_gpus", "tpu", "fits"), [(0, None, False), (1, None, True), (0, "v6e-1x1", True)]
)
def test_only_accelerators_have_a_utilization(monkeypatch, num_gpus, tpu, fits):
    choice = plan.Choice(Shape("n1-standard-8", num_gpus, ""), 1, "image")
    monkeypatch.setattr(launch.places.of("gce"), "choose", lambda *_: choice)
    spec = plan.JobSpec(cmd="true", tpu=tpu, min_utilization=10)
    assert launch.choose(config.Config(), replace(spec, min_utilization=0), False) is choice
    none = pytest.raises(BergError, match=r"this one has none \(-g 0\)")
    with contextlib.nullcontext() if fits else none:
        assert launch.choose(config.Config(), spec, False) is choice


def test_a_slice_is_not_reserved(monkeypatch):
    is_slice = True
    choice = plan.Choice(Shape("ct5lp-hightpu-4t", 0, ""), 2, "image")
    monkeypatch.setattr(
        launch.places.of("gce"), "choose", lambda *_: replace(choice, is_slice=is_slice)
    )
    assert launch.choose(config.Config(), plan.JobSpec(cmd="true"), False).is_slice
    with pytest.raises(BergError, match="not for slices"):
        launch.choose(config.Config(), plan.JobSpec(reservation="r"), False)
    is_slice = False
    assert not launch.choose(config.Config(), plan.JobSpec(reservation="r"), False).is_slice


def test_values_of_secrets_come_from_here(monkeypatch):
    monkeypatch.setenv("TOKEN", "t")
    monkeypatch.setenv("HOOK", "https://127.0.0.1/hook")
    spec = plan.JobSpec(cmd="true", secrets=("TOKEN",), env=("A=1",), notify="HOOK")
    found = {"TOKEN": "t", launch.secret.WEBHOOK: "https://127.0.0.1/hook"}
    assert launch.read_secrets(spec) == found
    assert launch.read_secrets(replace(spec, notify=None)) == {"TOKEN": "t"}
    with pytest.raises(BergError, match="TOKEN is both a secret and a variable"):
        launch.read_secrets(replace(spec, env=("TOKEN=1",)))
    monkeypatch.setenv("BERG_JOB", "other")
    with pytest.raises(BergError, match="--secret BERG_JOB: .* are set by berg"):
        launch.read_secrets(replace(spec, secrets=("BERG_JOB",)))


@pytest.mark.parametrize(
    ("mount", "place", "comes"), [((), "gce", 0), (("d",), "gke", 0), (("d",), "gce", 1)]
)
def test_machines_with_mounts_bring_a_program_for_them(monkeypatch, mount, place, comes):
    monkeypatch.setattr(launch.data, "own_program", lambda: ("gcsfuse", b"elf"))
    monkeypatch.setattr(launch.data, "measure_mount", lambda config, text: {"path": text})
    fields, program = launch.sources(config.Config(), plan.JobSpec(mount=mount), place)
    assert program == (("", b""), ("gcsfuse", b"elf"))[comes] and fields["gcsfuse"] == program[0]
    assert fields["mounts"] == [{"path": each} for each in mount]


# --- the folder that it runs in


def test_a_job_runs_where_it_was_typed_or_is_told(taken):
    root: Path = taken.root
    spec = plan.JobSpec(cmd="true", install_script="train/setup.sh")
    assert launch.in_folder(spec, root, root).cwd == ""
    assert launch.in_folder(spec, root / "train", root).cwd == "train"
    assert launch.in_folder(replace(spec, cwd="train"), root, root).cwd == "train"
    assert launch.in_folder(replace(spec, cwd="."), root / "train", root).cwd == ""
    assert launch.in_folder(replace(spec, cmd=None), root / "train", root).cwd == ""
    for wrong in ("README", "nothing", ".."):
        with pytest.raises(BergError, match=f"--cwd {wrong} is no folder of {root}"):
            launch.in_folder(replace(spec, cwd=wrong), root, root)
    (root.parent / "outside.sh").write_text("true\n")
    for wrong in ("train", "nothing.sh", "../outside.sh", str(root / "train/setup.sh")):
        with pytest.raises(BergError, match=f"--install-script {wrong} is not a file in {root}"):
            launch.in_folder(replace(spec, install_script=wrong), root, root)


def test_a_job_has_the_code_of_its_folder_unless_a_branch_or_a_commit_is_named(taken):
    root, spec = taken.root, plan.JobSpec(cmd="true")
    assert launch.with_code(spec, root / "train", root) == (replace(spec, cwd="train"), None)
    for given in ({"commit": taken.commit[:9]}, {"branch": "main"}):
        found, code = launch.with_code(replace(spec, **given), root / "train", root)
        assert code is not None and (found.cwd, code.commit) == ("train", taken.commit)


def test_a_commit_is_named_as_people_read_it(taken):
    spec = plan.JobSpec(cmd="true", commit=taken.commit)
    named = f"the commit {taken.commit[:12]} has no folder nothing to run in"
    with pytest.raises(BergError, match=named):
        launch.in_commit(replace(spec, cwd="nothing"), taken.root, taken)
    with pytest.raises(BergError, match=f"not a file of the commit {taken.commit[:12]}$"):
        launch.in_commit(replace(spec, install_script="train"), taken.root, taken)
    assert launch.in_commit(replace(spec, cwd="train/../train"), taken.root, taken).cwd == "train"


# --- a name, and who has it


def test_a_name_that_only_a_machine_of_many_is_too_long_for_is_refused():
    place = SimpleNamespace(longest_name=lambda first, names: max(names, key=len))
    assert launch.check_names(place, "a" * 63, 1) == "a" * 63
    assert launch.check_names(place, "a" * 61, 2) == "a" * 61
    for name, hosts in (("a" * 62, 2), ("a" * 61, 11), ("A", 1)):
        with pytest.raises(BergError):
            launch.check_names(place, name, hosts)


@pytest.mark.parametrize("path", [job.state_path("one"), job.sweep_path("one")])
def test_a_name_is_free_unless_a_job_or_a_sweep_has_it(bucket, path, monkeypatch):
    left = Machine("one", "z", "STOPPING")
    place_with(monkeypatch, left)
    assert launch.check_free(bucket.config, "gce", "one", again=False) == [left]
    bucket.write(path, b"{}")
    assert launch.check_free(bucket.config, "gce", "one", again=True) == []
    launch.check_free(bucket.config, "gce", "two", again=False)
    with pytest.raises(BergError, match="there is a job 'one' already"):
        launch.check_free(bucket.config, "gce", "one", again=False)


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        (Machine("two", "z", "RUNNING"), "machine"),
        (Machine("two-0", "z", "TERMINATED"), "machine"),
        (Machine("two", "z", "STOPPING", labels={"berg-kind": "devbox"}), "devbox"),
    ],
)
def test_a_name_is_not_free_while_a_machine_has_it_that_does_not_go(
    bucket, monkeypatch, machine, what
):
    place_with(monkeypatch, Machine("two-1", "z", "PENDING", is_queued=True), machine)
    error = f"there is a {what} '{machine.name}' in z already.*: -n NAME.*: berg kill two"
    with pytest.raises(BergError, match=error):
        launch.check_free(bucket.config, "gce", "two", again=False)


def test_machines_of_an_earlier_job_are_waited_for_unless_they_are_none_yet(monkeypatch):
    found = [Machine("one-0", "z"), Machine("one-1", "z", is_queued=True)]
    place_with(monkeypatch, *found)
    monkeypatch.setattr(launch.jobs, "wait_while", lambda there, what, say: there())
    assert launch.wait_until_gone(config.Config(), job_named("one"), print) == ["one-0"]


# --- a job that has no machines yet


def test_the_state_of_a_job_without_machines_is_kept_young(alive, memory, monkeypatch):
    place_with(monkeypatch)
    before = alive.stored
    alive.write()
    assert alive.stored.generation > before.generation and alive.stored.state == before.state
    place_with(monkeypatch, Machine("one", "z"))
    written = alive.stored
    alive.write()
    assert alive.stored is written, "its worker may be about to"


def test_what_a_machine_wrote_before_it_was_given_up_is_written_over(alive, memory, monkeypatch):
    place_with(monkeypatch)
    states.replaced(memory, alive.stored, replace(alive.stored.state, state="FAILED"))
    alive.write()
    assert states.read(memory, "one").state == alive.stored.state
    assert alive.stored.state.state == "SUBMITTED"


@pytest.mark.parametrize("end", ["killed", "gone", "damaged", "claimed"])
def test_a_job_that_was_ended_meanwhile_is_not_brought_back(alive, memory, monkeypatch, end):
    place_with(monkeypatch)
    there = alive.stored.state
    if end == "gone":
        memory.delete(job.state_path("one"))
    elif end == "damaged":
        memory.write(job.state_path("one"), b"{", metadata={"state": "{"})
    elif end == "killed":
        states.replaced(memory, alive.stored, replace(there, reason="killed by ann"))
    else:
        states.replaced(memory, alive.stored, replace(there, claim=states.new_claim()))
    with pytest.raises(BergError, match="^one was ended meanwhile$"):
        alive.write()


@pytest.mark.parametrize(
    ("statuses", "waiting", "is_queued"),
    [
        (["PENDING"], (), True),
        (["RUNNING", "PENDING"], (), True),
        (["RUNNING"], ("one",), False),
        (["PROVISIONING"], (), False),
        ([], ("one",), True),
        ([], ("other",), False),
    ],
)
def test_a_job_is_in_googles_queue_while_its_machines_are(
    monkeypatch, statuses, waiting, is_queued
):
    place_with(monkeypatch, *[Machine("one", "zone-a", each) for each in statuses], waiting=waiting)
    alive = launch.Heartbeat(
        config.Config(), job_named("one"), states.Stored("one", job.State(), 1)
    )
    assert alive.is_queued("zone-a") is is_queued


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, launch.gce.FLEX_SECONDS),
        ({"place": "gke"}, launch.gce.FLEX_SECONDS),
        ({"place": "tpu"}, 50),
        ({"group": job.Group("region", "r")}, 50),
        ({"place": "tpu", "spec": plan.JobSpec()}, 0),
    ],
)
def test_the_wait_in_googles_queue_has_an_end_that_is_told(alive, memory, more, seconds):
    alive.this = replace(alive.this, **{"spec": plan.JobSpec(queue_timeout=50), **more})
    said: list[str] = []
    alive.note_queue("z", "zone z", said.append)
    there = states.read(memory, "one").state
    assert (there.zone, there) == ("z", alive.stored.state)
    where, _, until = there.reason.partition(", until ")
    assert where.startswith("in Google's queue for zone z since 20")
    assert said == [f"one is {there.reason}. It continues without this computer"]
    if not seconds:
        assert until == "there is room, or: berg kill one"
        return
    left = datetime.fromisoformat(until.replace("Z", "+00:00")) - datetime.now(timezone.utc)
    assert seconds - 30 < left.total_seconds() <= seconds


@pytest.mark.parametrize(
    ("model", "zone", "status", "has_room"),
    [
        ("STANDARD", "z", "PENDING", True),
        ("FLEX_START", "z", "RUNNING", True),
        ("FLEX_START", "z", "PENDING", False),
        ("STANDARD", "", "PENDING", False),
    ],
)
def test_who_must_have_room_does_not_wait_in_a_queue(
    alive, memory, monkeypatch, model, zone, status, has_room
):
    place = SimpleNamespace(
        request=lambda plan: {},
        create=lambda config, request, machines, keep, say, still_trying: zone,
        machines=lambda config, jobs, zone="": [Machine("one", zone, status)],
    )
    monkeypatch.setattr(launch.places, "of", lambda name: place)
    offer = SimpleNamespace(shape="a shape", zones=["z", "y"], box="")
    asked = SimpleNamespace(
        warm=None,
        **{"config": memory.config, "job": alive.this, "offer": offer, "machines": ["one"]},
        **{"model": model, "must_have_room": True},
    )
    refused = pytest.raises(launch.api.NoRoom, match="no room for a shape now, except in a queue")
    with contextlib.nullcontext() if has_room else refused:
        assert launch.create(asked, alive.stored, print) == zone
    asked.must_have_room = False
    said: list[str] = []
    assert launch.create(asked, alive.stored, said.append) == zone
    is_queued = model == "FLEX_START" and status == "PENDING"
    assert len(said) == is_queued
    assert ("in Google's queue for z" in states.read(memory, "one").state.reason) == is_queued


@pytest.mark.parametrize("claim", ["ours", "another's"])
def test_what_is_taken_back_is_ours(alive, memory, monkeypatch, claim):
    deleted = place_with(monkeypatch, Machine("one", "z"))
    this = alive.this
    if claim != "ours":
        states.replaced(memory, alive.stored, replace(alive.stored.state, claim=states.new_claim()))
    launch.take_back(memory.config, this, alive.stored)
    made = ("one", hashlib.sha256(this.to_json().encode()).hexdigest())
    assert deleted == ([made] if claim == "ours" else [])
    assert (states.read(memory, "one") is None) is (claim == "ours")


# --- what is sent


def test_what_the_bucket_has_of_the_archives_is_asked_for_before(memory, monkeypatch):
    wheel, needed = ("berg-1.whl", b"w"), ("", b"")
    monkeypatch.setattr(launch.dist, "build_wheel", lambda: wheel)
    monkeypatch.setattr(launch.dist, "build", lambda: needed)
    monkeypatch.setattr(launch.snapshot, "base_pack", lambda repo, bucket: f"{repo.name}.pack")
    for name in (".berg/dist/berg-1.whl", "proj.pack"):
        memory.write(name, b"x")
    alone = launch.look_ahead(memory.config, None)
    assert alone[:2] == (wheel, needed) and list(alone[2]) == [".berg/dist/berg-1.whl"]
    _, _, there = launch.look_ahead(memory.config, Path("/proj"))
    assert list(there) == [".berg/dist/berg-1.whl", "proj.pack"]


def test_an_archive_is_sent_once_and_again_if_somebody_replaced_it(bucket):
    path = launch.archive_path("berg-1.whl")
    assert path == ".berg/dist/berg-1.whl"
    assert launch.send_archive(bucket, "", b"nothing", {}) == ""
    assert launch.send_archive(bucket, "berg-1.whl", b"wheel", {}) == ""
    sent = bucket.get(path)
    assert bucket.read(path) == b"wheel" and sent.md5_hash == launch.md5(b"wheel")
    known = {path: sent}
    assert launch.send_archive(bucket, "berg-1.whl", b"wheel", {}) == ""
    assert bucket.get(path).generation == sent.generation
    warning = launch.send_archive(bucket, "berg-1.whl", b"other", known)
    assert "another user replaced it" in warning and bucket.read(path) == b"other"
    launch.send_archive(bucket, "berg-1.whl", b"third", known)
    assert bucket.read(path) == b"other", "it is not what was known"


def test_a_preview_names_the_startup_script_and_shows_the_rest():
    script = {"key": "startup-script", "value": "print()"}
    request = {"items": [script, {"key": "k", "value": "v"}], "n": 1}
    shown = launch.without_script(request)
    assert shown["items"][1:] == request["items"][1:] and shown["n"] == 1
    hashed = hashlib.sha256(b"print()").hexdigest()[:12]
    assert shown["items"][0] == {
        "key": "startup-script",
        "value": f"<berg's boot.py, 7 bytes, sha256 {hashed}…>",
    }


def test_variables_come_from_a_file_then_from_here_and_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", "of here")
    file = tmp_path / "env"
    file.write_text("# a comment\n\nexport A=1  # another\nB='two words'\nHERE\n")
    assert start.variables(str(file), ("HERE", "A=2")) == (
        "A=1",
        "B=two words",
        "HERE=of here",
        "HERE=of here",
        "A=2",
    )
    for line, problem in (("A=two words", "quotes around blanks"), ("A='x", "No closing quot")):
        file.write_text(f"GOOD=1\n{line}\n")
        with pytest.raises(BergError, match=f"env, line 2: .*{problem}"):
            start.variables(str(file), ())


@pytest.mark.parametrize(
    ("asked", "gpus"), [("A100:8", ("A100", 8)), ("t4", ("t4", None)), ("t4:0", ("t4:0", None))]
)
def test_a_type_may_come_with_the_number_of_gpus(asked, gpus):
    spec = JobSpec(gpu_type=asked)
    assert (spec.gpu_type, spec.num_gpus) == gpus
