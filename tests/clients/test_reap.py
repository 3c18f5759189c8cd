"""What no job needs is found and deleted; what a devbox holds only if a person says so."""

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import BERG, Cloud
from records import machine, put

from berg import gce, google
from berg import job as jobs
from berg.clients.reap import Leftover, delete
from berg.config import Config
from berg.features import roce
from berg.job import State

LONG_AGO = "2026-01-01T00:00:00Z"
# What is young may still change; here nothing is.
AT_ONCE = "import berg.job; berg.job.SILENT = 0; from berg.cli import main; main()"


def lose(cloud: Cloud, name: str, record: bytes = b"") -> None:
    """Cut a machine's power, which was long ago; its job's state is `record` then."""
    state, _ = jobs.read_state(cloud.bucket, name)
    cloud.call("POST", f"/_berg/instances/{name}/crash", {})
    state.state, state.times = jobs.RUNNING, {jobs.RUNNING: LONG_AGO}
    about = {} if record else state.about()
    cloud.bucket.write(jobs.state_path(name), record or state.content(), about=about)


def has_machine(cloud: Cloud, name: str) -> bool:
    return bool(gce.machines(cloud.config, name))


def found(cloud: Cloud) -> set[str]:
    return {each["name"] for each in json.loads(cloud.run("reap", "--json").out)}


def test_the_machine_of_a_job_goes_once_it_is_lost_and_after_an_answer(
    cloud: Cloud, project: Path
) -> None:
    assert cloud.run("run", "-g", "0", "-n", "lost", "sleep 300", cwd=project).code == 0
    assert "lost" not in found(cloud)
    lose(cloud, "lost")
    assert "lost" in found(cloud)
    asked = cloud.run("reap")
    assert asked.code == 1 and "-y" in asked.err and has_machine(cloud, "lost")
    done = cloud.run("reap", "-y")
    assert done.code == 0 and "the job is LOST" in done.out, done.err
    assert not has_machine(cloud, "lost")


def test_a_devbox_without_a_record_goes_only_if_a_person_says_so(
    cloud: Cloud, project: Path
) -> None:
    assert cloud.run("devbox", "-g", "0", "-n", "box", cwd=project).code == 0
    lose(cloud, "box")
    assert "box" not in found(cloud)  # it starts again
    lose(cloud, "box", b"no record")
    for words in (["devbox"], ["run", "true"]):
        assert cloud.run(*words, "-g", "0", "-n", "box", cwd=project).code == 1
    done = cloud.run("reap", "-y")
    assert "its disk box (200 GB)" in done.err and has_machine(cloud, "box")
    ours, theirs = pty.openpty()
    env = {**cloud.env, "BERG_FORMAT": "human"}
    process = subprocess.Popen([*BERG, "reap"], stdin=theirs, env=env, stderr=subprocess.PIPE)
    os.write(ours, b"y\ny\n")  # maybe for what other tests left, too
    process.communicate(timeout=60)
    assert not has_machine(cloud, "box")


def leave_disk(config: Config, name: str, labels: dict[str, str]) -> None:
    """What a machine leaves whose disk does not go with it."""
    zone, (project, family) = "/zones/us-central1-a", config.default_image.split("/")
    image = f"projects/{project}/global/images/family/{family}"
    disk = {"boot": True, "initializeParams": {"sourceImage": image, "labels": labels}}
    body = {"name": name, "machineType": f"{zone[1:]}/machineTypes/e2-medium", "disks": [disk]}
    network = {"networkInterfaces": [{"network": "global/networks/default"}]}
    google.do(config, "POST", f"{zone}/instances", {**body, **network})
    google.do(config, "DELETE", f"{zone}/instances/{name}")


@pytest.mark.slow
def test_disks_groups_and_templates_that_nothing_uses_go(cloud: Cloud, project: Path) -> None:
    config = cloud.config
    labels = {"berg": "1", "berg-bucket": gce.bucket_label(config), "berg-user": config.user}
    leave_disk(config, "spare", {**labels, "berg-kind": "job"})
    leave_disk(config, "mine", {})
    other = Leftover("disk", "mine", "/zones/us-central1-a/disks/mine", "17", "", "", "")
    delete(config, other)  # of that name, and gone since
    words = ["run", "-g", "0", "-n", "spot", "--spot", "sleep 300"]
    assert cloud.run(*words, cwd=project).code == 0
    cloud.call("POST", "/_berg/instances/spot/crash", {})  # it ends at once
    place, close = "/regions/us-central1/resourcePolicies", {"collocation": "COLLOCATED"}
    for text, name in ((roce.description(config), "spot"), ("of others", "theirs")):
        policy = {"name": name, "description": text, "groupPlacementPolicy": close}
        google.do(config, "POST", place, policy)
    state = State("spot", jobs.FAILED, config.user, results="spot", created_at=LONG_AGO)
    state.times = {jobs.FAILED: LONG_AGO}
    cloud.bucket.write(jobs.state_path("spot"), state.content(), about=state.about())
    words = [sys.executable, "-c", AT_ONCE, "reap", "-y"]
    done = subprocess.run(words, env=cloud.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kinds = {line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert kinds >= {"group", "disk", "policy", "template"}, done.stdout
    policies = {row["name"] for row in google.items(config, "/aggregated/resourcePolicies")}
    assert "theirs" in policies and "spot" not in policies, done.stdout + done.stderr
    disks = {row["name"] for row in google.items(config, "/aggregated/disks")}
    assert "mine" in disks and "spare" not in disks and not has_machine(cloud, "spot")
    assert not [*google.items(config, "/aggregated/instanceGroupManagers")]
    assert not [*google.items(config, "/global/instanceTemplates")]


@pytest.mark.slow
def test_a_machine_that_may_not_delete_itself_is_named_until_somebody_does(
    cloud: Cloud, project: Path
) -> None:
    role = "/iam/v1/projects/berg-local/roles/bergMachine"
    cloud.call("PATCH", role, {"includedPermissions": ["compute.instances.get"]})
    words = [sys.executable, "-c", AT_ONCE, "list"]
    try:
        assert cloud.run("run", "-g", "0", "-n", "stays", "--wait", "true", cwd=project).code == 0
        said = subprocess.run(words, env=cloud.env, capture_output=True, text=True).stderr
        assert "stays in us-" in said and "exists although its job has ended" in said, said
        assert "Delete it: berg kill stays" in said and has_machine(cloud, "stays")
        cloud.call("POST", "/_berg/instances/stays/crash", {})  # else its end takes two minutes
        assert cloud.run("kill", "-y", "stays").code == 0 and not has_machine(cloud, "stays")
    finally:
        assert cloud.run("init", "--local", "-y").code == 0


def test_what_a_job_may_need_is_not_left_behind(cloud: Cloud) -> None:
    kept = jobs.now(time.time() + 600)
    old, new, waits, box, bobs = (
        put(cloud, "r-old"),
        put(cloud, "r-new", ago=200, took=10),
        put(cloud, "r-waits", kept_until=kept),
        put(cloud, "r-box", "STOPPED", job={"cmd": ""}),
        put(cloud, "r-bobs", "FAILED", user="bob"),
    )
    for job in (old, new, waits, box, bobs):
        machine(cloud, job.name, job, user=job.user, kind="devbox" if job is box else "job")
    off = [machine(cloud, "r-off", kind="devbox")]
    off.append(
        machine(cloud, "r-lost", put(cloud, "r-lost", "LOST", job={"cmd": ""}), kind="devbox")
    )
    machine(cloud, "r-young", kind="devbox")
    for each in [*off, *gce.machines(cloud.config, "r-box")]:
        each.stop(cloud.config)
    rows = {row["name"]: row for row in json.loads(cloud.run("reap", "-a", "--json").out)}
    mine = {name for name in rows if name.startswith("r-")}
    assert mine == {"r-old", "r-off", "r-bobs"} and found(cloud) == {*rows} - {"r-bobs"}
    disk = rows["r-off"]["holds"]
    assert disk.startswith("its disk r-off (") and disk.endswith(" GB)")
    assert rows["r-off"]["why"] == "no job has its name, or a record that can be read"
    assert rows["r-bobs"]["why"] == "the job is FAILED" and rows["r-bobs"]["user"] == "bob"
    assert {key: rows["r-old"][key] for key in ("kind", "place", "holds", "why")} == {
        "kind": "machine", "place": "us-central1-a", "holds": "", "why": "the job is SUCCEEDED"
    }  # fmt: skip
    done = cloud.run("reap", "-y")
    assert "Deleted the machine r-old" in done.err and "r-bobs" not in done.out + done.err
    assert "the machine r-off in us-central1-a of " in done.err and "-y is no answer" in done.err
    assert "At a terminal: berg kill r-off" in done.err
    left = {each.name for each in gce.machines(cloud.config)}
    assert {
        "r-new",
        "r-waits",
        "r-box",
        "r-bobs",
        "r-off",
        "r-young",
    } <= left and "r-old" not in left
    for each in gce.machines(cloud.config):
        if each.name.startswith("r-"):
            each.delete(cloud.config)
