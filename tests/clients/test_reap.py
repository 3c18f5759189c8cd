"""What no job needs is found and deleted; what a devbox holds only if a person says so."""

import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import BERG, LATE, Cloud
from records import machine, put

from berg import gce, google
from berg import job as jobs
from berg.clients import reap
from berg.clients.reap import Leftover, Seen, delete
from berg.config import Config
from berg.features import roce
from berg.job import State

LONG_AGO = "2026-01-01T00:00:00Z"
# What is young may still change; here nothing is.


def has_machine(cloud: Cloud, name: str) -> bool:
    return bool(gce.machines(cloud.config, name))


def test_what_a_devbox_holds_goes_only_if_a_person_says_so(cloud: Cloud, project: Path) -> None:
    mine = {"BERG_USER": "boxer"}
    machine(cloud, "box", user="boxer", kind="devbox").stop(cloud.config)
    for words in (["devbox", "-n", "box"], ["run", "-g", "0", "-n", "box", "true"]):
        cloud.fails(*words, cwd=project, **mine, says="machine 'box' in us-central1-a already")
    cloud.bucket.write(jobs.state_path("box"), b"no record")
    (row,) = json.loads(cloud.run("reap", "--json", **mine).out)
    assert row["why"] == "no job has its name, or a record that can be read"
    disk = row["holds"]
    assert disk.startswith("its disk box (") and disk.endswith(" GB)")
    done = cloud.run("reap", "-y", **mine)
    assert f"the machine box in us-central1-a of boxer stays, with {disk}" in done.err, done.err
    assert "-y is no answer. At a terminal: berg kill box" in done.err and has_machine(cloud, "box")
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")
    env = {**cloud.env, **mine, "BERG_FORMAT": "human"}
    subprocess.run([*BERG, "reap"], stdin=theirs, env=env, timeout=60, check=True)
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
def test_disks_groups_and_templates_that_nothing_uses_go(
    cloud: Cloud, project: Path, no_room: Any
) -> None:
    config = cloud.config
    labels = {"berg": "1", "berg-bucket": gce.bucket_label(config), "berg-user": config.user}
    leave_disk(config, "spare", {**labels, "berg-kind": "job"})
    leave_disk(config, "mine", {})
    other = Leftover("disk", "mine", "/zones/us-central1-a/disks/mine", "17", "", "", "")
    delete(config, other)  # of that name, and gone since
    words = ["run", "-g", "0", "-n", "spot", "--spot", "sleep 300"]
    assert cloud.run(*words, cwd=project).code == 0
    no_room()  # else its next machine deletes the group
    cloud.call("POST", "/_berg/instances/spot/crash", {})
    place, close = "/regions/us-central1/resourcePolicies", {"collocation": "COLLOCATED"}
    for text, name in ((roce.description(config), "spot"), ("of others", "theirs")):
        policy = {"name": name, "description": text, "groupPlacementPolicy": close}
        google.do(config, "POST", place, policy)
    state = State("spot", jobs.FAILED, config.user, results="spot", created_at=LONG_AGO)
    state.times = {jobs.FAILED: LONG_AGO}
    cloud.bucket.write(jobs.state_path("spot"), state.content(), about=state.about())
    words = [*LATE, "reap", "-y"]
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
    words = [*LATE, "list"]
    try:
        assert cloud.run("run", "-g", "0", "-n", "stays", "--wait", "true", cwd=project).code == 0
        said = subprocess.run(words, env=cloud.env, capture_output=True, text=True).stderr
        assert "stays in us-" in said and "exists although its job has ended" in said, said
        assert "Delete it: berg kill stays" in said and has_machine(cloud, "stays")
        cloud.call("POST", "/_berg/instances/stays/crash", {})  # else its end takes two minutes
        assert cloud.run("kill", "-y", "stays").code == 0 and not has_machine(cloud, "stays")
    finally:
        assert cloud.run("init", "--local", "-y").code == 0


def test_what_is_used_or_young_stays_and_the_rest_has_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def row(name: str, **more: Any) -> dict[str, Any]:
        labels = {"berg-job": name, "berg-user": "ada", "berg-kind": "job"}
        about = {
            "properties": {"labels": labels},
            "labels": labels,
            "zone": "x/us-b",
            "sizeGb": "9",
        }
        about |= {"region": "x/us", "instanceTemplate": f"x/{name}", "targetSize": 1, "id": "7"}
        return {"name": name, "creationTimestamp": LONG_AGO, **about, **more}

    outcomes = {"done": "FAILED", "runs": "RUNNING", "asks": "RUNNING"}
    states = {name: State(name, state, "ada", times={state: LONG_AGO})
              for name, state in outcomes.items()}  # fmt: skip
    done, runs, new = row("done"), row("runs"), row("new", creationTimestamp=jobs.now())
    seen = Seen(
        states, machines=[],
        disks=[row("spare"), row("used", users=["x"]), new, row("box", labels={"berg-user": "ada"})],
        groups=[done, runs, row("asks", targetSize=0)],
        templates=[done, runs, row("spare"), new, row("asks")],
        policies=[done, runs, row("lone"), new],
    )  # fmt: skip
    monkeypatch.setattr(Seen, "now", lambda config: seen)
    found, over, free = reap.leftovers(Config(), None), "the job is FAILED", "no group uses it"
    assert [(each.kind, each.name, each.place, each.user, each.why, each.holds) for each in found] == [
        ("group", "done", "us", "ada", over, ""), ("group", "asks", "us", "ada", "it wants no machine", ""),
        ("disk", "spare", "us-b", "ada", "no machine has it", ""),
        ("disk", "box", "us-b", "ada", "no machine has it", "9 GB of files"),
        ("policy", "done", "us", "ada", over, ""),
        ("policy", "lone", "us", "", "no job has its name, or a record that can be read", ""),
        ("template", "done", "", "ada", free, ""), ("template", "spare", "", "ada", free, ""),
        ("template", "asks", "", "ada", free, ""),
    ]  # fmt: skip
    assert reap.leftovers(Config(), "ada") == [each for each in found if each.user]


def test_what_a_job_may_need_is_not_left_behind(cloud: Cloud) -> None:
    kept = jobs.now(time.time() + 600)
    for job in (
        put(cloud, "r-old"),
        put(cloud, "r-lost", "RUNNING"),
        put(cloud, "r-runs", "RUNNING", ago=100),
        put(cloud, "r-new", ago=200, took=10),
        put(cloud, "r-waits", kept_until=kept),
        put(cloud, "r-box", "STOPPED", job={"cmd": ""}),
        put(cloud, "r-lost-box", "LOST", job={"cmd": ""}),
        put(cloud, "r-bobs", "FAILED", user="bob"),
    ):
        machine(cloud, job.name, job, user=job.user, kind="devbox" if job.is_devbox else "job")
    machine(cloud, "r-young", kind="devbox")
    for each in gce.machines(cloud.config):
        if each.name in ("r-lost", "r-box", "r-lost-box"):
            each.stop(cloud.config)
    rows = {row["name"]: row for row in json.loads(cloud.run("reap", "-a", "--json").out)}
    found = {name for name in rows if name.startswith("r-")}  # of other tests templates may stay
    assert found == {"r-old", "r-lost", "r-bobs"}
    mine = {row["name"] for row in json.loads(cloud.run("reap", "--json").out)}
    assert {"r-old", "r-lost"} <= mine and "r-bobs" not in mine
    assert rows["r-lost"]["why"] == "the job is LOST"
    assert rows["r-bobs"]["why"] == "the job is FAILED" and rows["r-bobs"]["user"] == "bob"
    assert {key: rows["r-old"][key] for key in ("kind", "place", "holds", "why")} == {
        "kind": "machine", "place": "us-central1-a", "holds": "", "why": "the job is SUCCEEDED"
    }  # fmt: skip
    listed = cloud.run("list", "-a", "-v")
    text = " in us-central1-a still exists although its job has ended. Delete it: berg kill "
    late = {line.partition(text)[2] for line in listed.err.splitlines() if text in line}
    assert late >= {"r-old", "r-bobs"} and not late & {"r-new", "r-waits", "r-runs"}, listed.err
    assert re.search("^ its machine  RUNNING +us-central1-a +bob +e2-medium$", listed.out, re.M)
    cloud.fails("reap", says="-y")
    assert has_machine(cloud, "r-old")
    done = cloud.run("reap", "-y")
    assert "Deleted the machine r-old" in done.err and "r-bobs" not in done.out + done.err
    stay = {"r-runs", "r-new", "r-waits", "r-box", "r-lost-box", "r-bobs", "r-young"}
    assert {each.name for each in gce.machines(cloud.config)} == stay
    cloud.clean()
