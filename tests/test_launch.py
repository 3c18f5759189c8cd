"""What a submit decides before it asks Google for anything: the folder, the room, the limits."""

from dataclasses import replace
from pathlib import Path

import git
import pytest

from berg import BergError, config, job, plan
from berg.code import snapshot
from berg.laptop import launch

GIB = 2**30


@pytest.fixture
def taken(tmp_path):
    """The last commit of a repo with a file, and a script in a folder."""
    root = tmp_path / "proj"
    (root / "train").mkdir(parents=True)
    (root / "train/setup.sh").write_text("true\n")
    (root / "README").write_text("words\n")
    repo = git.Repo.init(root)
    repo.index.add(["train/setup.sh", "README"])
    author = git.Actor("t", "t@localhost")
    commit = repo.index.commit("first", author=author, committer=author).hexsha
    return snapshot.Snapshot(root, "proj", "main", commit, commit, tmp_path / "objects")


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
    spec = plan.JobSpec(cmd="true", max_hours=1.5, wait_hours=0.5, idle_hours=0.25)
    made = launch.job_of(spec, config.Config(), "one", taken)
    assert (made.max_run_seconds, made.wait_seconds, made.idle_seconds) == (5400, 1800, 900)
    assert made.mending_seconds == 900
    patient = plan.JobSpec(cmd="true", spot=True, num_machines=2, wait_minutes=0.51)
    assert launch.job_of(patient, config.Config(), "one", taken).mending_seconds == 31
    assert made.waste_seconds == 0, "without --min-utilization nothing is waste"
    wasted = plan.JobSpec(cmd="true", min_utilization=10, for_minutes=2)
    assert launch.job_of(wasted, config.Config(), "one", taken).waste_seconds == 120


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


def test_machines_of_a_job_sign_with_a_key_that_few_may_read():
    alone: dict[str, str] = {}
    assert launch.add_cluster_key(alone, 1, True) == "" and not alone
    nobodys: dict[str, str] = {}
    key = launch.add_cluster_key(nobodys, 2, False)
    assert len(key) == 64 and not nobodys, "in the machines' metadata"
    for values, has_own_account in (({}, True), ({"TOKEN": "t"}, False)):
        assert launch.add_cluster_key(values, 2, has_own_account) == ""
        assert len(values[launch.secret.CLUSTER_KEY]) == 64


@pytest.mark.parametrize(
    ("account", "place", "is_own"),
    [
        ("berg-worker-ann@p.iam.gserviceaccount.com", "gce", True),
        ("berg-worker-ann@p.iam.gserviceaccount.com", "gke", False),
        ("berg-worker@p.iam.gserviceaccount.com", "gce", False),
        ("berg-worker@p.iam.gserviceaccount.com", "gke", False),
        ("ann@p.iam.gserviceaccount.com", "gce", False),
    ],
)
def test_only_machines_of_one_persons_account_have_secrets_of_their_own(account, place, is_own):
    settings = config.Config(project="p", service_account=account)
    assert launch.has_own_account(settings, place) is is_own


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
        ({"num_machines": 2, "spot": True, "wait_minutes": 0.05}, "0.05 is not possible"),
    ],
)
def test_wait_minutes_are_for_several_spot_machines_or_pods(given, says):
    spec = plan.JobSpec(cmd="true", **{"wait_minutes": 5, **given})
    with pytest.raises(BergError, match=says):
        spec.check()
    plan.JobSpec(cmd="true", num_machines=2, spot=True, wait_minutes=5).check()
    plan.JobSpec(cmd="true", num_machines=2, cluster="pods", wait_minutes=5).check()
