"""Leftovers on the embedded cloud: found, named, deleted after asking; what lives stays."""

import json
import uuid
from dataclasses import replace

import pytest
from conftest import wait_for

from berg import job
from berg.job import Machine
from berg.laptop import ending
from berg.laptop.jobs import Entry


@pytest.fixture
def settled(monkeypatch):
    """Nothing is given time to settle, here and in the command line."""
    monkeypatch.setattr(ending, "SETTLED", -1)


def insert(berg, name: str, **labels: str) -> None:
    """A machine as berg makes it, or as a create that was interrupted leaves it."""
    zone = "us-central1-a"
    image = "projects/debian-cloud/global/images/family/debian-12"
    body = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/n1-standard-1",
        "labels": {"berg": "1", "berg-user": "tester", "berg-bucket": berg.bucket_name, **labels},
        "networkInterfaces": [{"network": "global/networks/default"}],
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
    }
    path = f"/compute/v1/projects/berg-local/zones/{zone}"
    operation = berg.cloud.call("POST", f"{path}/instances", body)
    berg.cloud.call("POST", f"{path}/operations/{operation['name']}/wait")


def write_state(bucket, name: str, **values) -> None:
    text = job.State(job=job.Summary("tester", job.now()), **values).to_json()
    bucket.write(job.state_path(name), text, metadata={"state": text})


def test_machines_that_no_live_job_owns_are_found_and_those_of_live_jobs_are_not(berg, settled):
    unique = uuid.uuid4().hex[:8]
    stray, over, live, kept, other = (
        f"{kind}-{unique}" for kind in ("stray", "over", "live", "kept", "other")
    )
    for name in (stray, over, live, kept):
        insert(berg, name, **{"berg-job": name})
    insert(berg, other, **{"berg-job": other, "berg-user": "somebody"})
    write_state(berg.bucket, over, state="FAILED", finished_at="2026-01-01T00:00:00Z")
    write_state(berg.bucket, live, state="RUNNING")
    text = job.State(
        state="SUCCEEDED", finished_at="2026-01-01T00:00:00Z", job=job.Summary("tester", kept=True)
    )
    berg.bucket.write(job.state_path(kept), text.to_json(), metadata={"state": text.to_json()})
    settings = berg.cloud.settings(berg.bucket_name)
    try:
        found = {
            each.name: each for each in ending.leftovers(settings, "tester") if unique in each.name
        }
        assert set(found) == {stray, over}
        assert found[stray].why == "no job owns it"
        assert found[over].why == "the job is FAILED"
        assert other in {each.name for each in ending.leftovers(settings, None)}
        ending.delete_leftovers(settings, list(found.values()))
        left = {name for name in berg.cloud.instances() if unique in name}
        assert left == {live, kept, other}
    finally:
        ending.delete_leftovers(
            settings,
            [ending.Leftover(Machine(n, "us-central1-a"), "") for n in (live, kept, other)],
        )


@pytest.mark.slow
def test_the_command_asks_and_waits_for_what_may_still_settle(berg):
    name = f"fresh-{uuid.uuid4().hex[:8]}"
    insert(berg, name, **{"berg-job": name})
    try:
        found = berg("reap", "--json")
        assert found.returncode == 0, found.stderr
        assert name not in found.stdout  # a create may be under way
        told = berg("reap").stderr
        assert "may still change" in told and "Nothing else was left behind" in told
        zone = "/compute/v1/projects/berg-local/zones/us-central1-a"
        berg.cloud.call("POST", f"{zone}/instances/{name}/stop")
        berg.cloud.call("GET", f"{zone}/instances/{name}")

        def stopped():
            return berg.cloud.instances()[name]["status"] == "TERMINATED"

        wait_for(stopped)
        assert name in {each["name"] for each in json.loads(berg("reap", "--json").stdout)}
        refused = berg("reap", stdin="n\n")
        assert refused.returncode != 0
        assert name in refused.stdout
        assert name in berg.cloud.instances()
        done = berg("reap", "-y")
        assert done.returncode == 0, done.stderr
        assert name not in berg.cloud.instances()
    finally:
        settings = berg.cloud.settings(berg.bucket_name)
        ending.delete_leftovers(settings, [ending.Leftover(Machine(name, "us-central1-a"), "")])


def test_nothing_left_behind(berg):
    result = berg("reap")
    assert result.returncode == 0
    assert result.stdout == ""
    assert "Nothing was left behind" in result.stderr


@pytest.mark.parametrize("status", ["RUNNING", "TERMINATED"])
def test_a_machine_without_a_job_is_left_unless_an_image_is_made_of_it(status):
    machine = Machine("m", "us-central1-a", status, labels={"berg-kind": "image"})
    seen = ending.Seen([], [], lambda moment: 1e9)
    entry = Entry("m", None, [machine])
    assert ending.why_left(seen, entry) == "its berg image create broke off"
    assert ending.why_left(replace(seen, imaging={"m"}), entry) == ""
    job_machine = replace(machine, labels={"berg-kind": "job"})
    assert ending.why_left(seen, Entry("m", None, [job_machine])) == "no job owns it"
