"""The index of jobs: what a list reads, what it writes, and what it does where the index is wrong."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from berg import cli, job, places, states
from berg.google import api
from berg.google.storage import Bucket
from berg.job import Machine, State, Summary
from berg.laptop import doctor, index

ME = "tester"


@pytest.fixture
def settings(bucket, tmp_path, monkeypatch):
    """Settings for an empty bucket, without machines unless a test has some."""
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    monkeypatch.setattr(places, "machines", lambda *_, **__: [])
    return bucket.config


@pytest.fixture
def settled(monkeypatch):
    """An entry without a job is old enough that none is to come."""
    monkeypatch.setattr(index, "SETTLED", -1)


def write(bucket, name: str, state: str = "SUCCEEDED", **details) -> states.Stored:
    """Write a job's state as an earlier berg did, which knew no index."""
    details = {"user": ME, "created_at": "2026-01-01T00:00:00Z", **details}
    return states.claim(bucket, name, State(state, job=Summary(**details)))


def submit(bucket, name: str, state: str = "SUCCEEDED", **details) -> states.Stored:
    stored = write(bucket, name, state, **details)
    index.note(bucket, name, stored.state.job)
    return stored


def listed(settings, limit: int = 20, user: str | None = ME) -> list[str]:
    """Return what a list finds, and let it write what it does to the index."""
    found = index.look(settings, user, limit)
    found.tidy()
    return [each.name for each in found.entries]


def entries(bucket) -> set[str]:
    return {blob.name.removeprefix(index.TOP) for blob in bucket.list(index.TOP)}


def reads(cloud) -> int:
    return cloud.call("GET", "/_berg/requests")["counts"].get("storage.objects.list", 0)


def test_jobs_of_an_earlier_berg_are_found_and_entered(bucket, settings):
    write(bucket, "over")
    write(bucket, "lives", "RUNNING")
    write(bucket, "sweep-0", "SUBMITTED", sweep="sweep")
    write(bucket, "sweep-1", sweep="sweep")
    write(bucket, "hers", user="ann")
    everything = {"over", "lives", "sweep-0", "sweep-1"}
    assert set(listed(settings)) == everything
    assert {
        "living/.complete",
        "living/lives",
        "living/sweep.sweep",
        "recent/ann/8232774399-hers",
        "recent/tester/8232774399-over",
        "recent/tester/8232774399-lives",
        "recent/tester/8232774399-sweep.sweep",
    } == entries(bucket)
    assert set(listed(settings)) == everything, "by the index"
    assert set(listed(settings, user=None)) == {*everything, "hers"}


def test_a_list_asks_for_what_lives_and_what_is_new_alone(bucket, settings, cloud):
    listed(settings)
    for number in range(60):
        write(bucket, f"old-{number:02}")
    for number in range(45):
        submit(bucket, f"new-{number:02}", created_at=f"2026-02-01T00:00:{number:02}Z")
    submit(bucket, "long", "RUNNING", created_at="2026-01-02T00:00:00Z")
    found = listed(settings, 20)
    assert {f"new-{number:02}" for number in range(25, 45)} | {"long"} <= set(found)
    assert not any(name.startswith("old-") for name in found)
    assert found[0] == "new-44" and len(found) < 20 + index.SPARE + 46
    again = listed(settings, 20)
    assert again[:20] == found[:20] and "long" in again
    assert len(again) == 1 + 20 + index.SPARE, "what is over lives no more"
    assert {name for name in entries(bucket) if name.startswith("living/")} == {
        "living/.complete",
        "living/long",
    }


def test_a_list_of_more_than_was_entered_looks_at_all(bucket, settings):
    for number in range(index.KEPT + 10):
        write(bucket, f"old-{number:02}", created_at=f"2026-01-01T00:00:{number:02}Z")
    listed(settings)
    assert "recent/tester/more" in entries(bucket)
    assert len(listed(settings, 20)) == 20 + index.SPARE
    assert len(listed(settings, index.KEPT + 1)) == index.KEPT + 10


def test_an_entry_without_a_state_counts_for_nothing(bucket, settings, settled):
    listed(settings)
    submit(bucket, "there")
    index.note(bucket, "lie", Summary(user=ME, created_at="2026-03-01T00:00:00Z"))
    bucket.write(f"{index.LIVING}lie2.sweep", b"")
    for odd in ("ODD", "..", "x/y", "recent", ".sweep", "a.b.sweep", "-"):
        bucket.write(f"{index.LIVING}{odd}", b"")
        bucket.write(f"{index.RECENT}{ME}/{odd}", b"")
    assert listed(settings) == ["there"]
    listed(settings)
    assert not any("lie" in name for name in entries(bucket))


def test_too_many_jobs_that_are_gone_do_not_hide_those_that_are_there(bucket, settings, settled):
    listed(settings)
    submit(bucket, "old")
    listed(settings)
    for number in range(50):
        lie = Summary(user=ME, created_at=f"2026-03-01T00:00:{number:02}Z")
        bucket.write(index.recent_path(f"gone-{number}", lie), b"")
    assert listed(settings, 5) == ["old"]
    assert "recent/tester/8232774399-old" in entries(bucket)
    assert not any("gone" in name for name in entries(bucket))


def test_a_job_that_begins_again_meanwhile_keeps_its_entry(bucket, settings):
    listed(settings)
    over = submit(bucket, "again")
    found = index.look(settings, ME, 20)
    states.claim(bucket, "again", State(job=over.state.job), over.generation)
    index.note(bucket, "again", over.state.job)
    found.tidy()
    assert "living/again" in entries(bucket)
    (entry,) = index.look(settings, ME, 20).entries
    assert entry.state and entry.state.state == "SUBMITTED"


def test_a_job_without_an_entry_is_found_by_its_machine(bucket, settings, monkeypatch):
    listed(settings)
    write(bucket, "seen", "RUNNING", created_at=job.now())
    write(bucket, "grid-0", "RUNNING", sweep="grid", created_at=job.now())
    assert listed(settings) == []
    there = [
        Machine("seen", "z", "RUNNING", labels={"berg-job": "seen", "berg-user": ME}),
        Machine("grid-machine-0", "z", "RUNNING", labels={"berg-sweep": "grid"}),
        Machine("box", "z", "RUNNING", labels={"berg-user": ME}),
    ]
    monkeypatch.setattr(places, "machines", lambda *_, **__: there)
    found = index.look(settings, ME, 20)
    assert {each.name: bool(each.state) for each in found.entries} == {
        "seen": True,
        "grid-0": True,
        "box": False,
    }
    found.tidy()
    monkeypatch.setattr(places, "machines", lambda *_, **__: [])
    assert set(listed(settings)) == {"seen", "grid-0"}, "they are entered now"


def test_all_jobs_makes_a_wrong_index_right(bucket, settings, settled, monkeypatch):
    listed(settings)
    write(bucket, "unseen", "SUBMITTED")
    write(bucket, "past")
    submit(bucket, "over")
    bucket.write(index.living_path("nothing"), b"")
    monkeypatch.setattr("berg.config.load_ready", lambda: settings)
    shown = CliRunner().invoke(cli.cli, ["list", "--all-jobs", "-a", "--json"])
    assert shown.exit_code == 0, shown.output
    assert {each["name"] for each in json.loads(shown.stdout)} == {"unseen", "past", "over"}
    assert {name for name in entries(bucket) if name.startswith("living/")} == {
        "living/.complete",
        "living/unseen",
    }
    assert set(listed(settings)) == {"unseen", "past", "over"}


def describe(bucket, name: str, **fields) -> states.Stored:
    """Submit a job as berg does: its metadata and its state."""
    this = job.Job(name, "true", name, f"gs://b/{name}", "proj", "c0ffee", "c0ffee", **fields)
    this.snapshot, this.created_by = {"commit": "c0ffee"}, ME
    this.created_at = "2026-01-01T00:00:00Z"
    states.write_job(bucket, this)
    return submit(bucket, name, "SUBMITTED", group=this.group, sweep=this.sweep)


LIES = {
    "to say that it is of a sweep": {"job": Summary(user=ME, sweep="run")},
    "to say that it is of a sweep with another name": {"job": Summary(user=ME, sweep="x")},
    "to say that it is over": {"state": "KILLED"},
    "to say that another person submitted it": {"job": Summary(user="ann")},
    "to damage its state": {"state": "OWNED"},
    "to delete its state": {},
}


@pytest.mark.parametrize("what", LIES)
def test_a_job_stays_listed_whatever_another_job_writes_into_its_state_for_a_while(
    bucket, settings, monkeypatch, what
):
    """Between the lie and the truth somebody lists jobs, with the index or all."""
    waiting = lambda *_: {"run-1", "run"}
    monkeypatch.setattr(places.of("gce"), "waiting", waiting)
    listed(settings)
    truth = describe(bucket, "run-1", group=job.Group(region="us-central1"))
    before, path = entries(bucket), job.state_path("run-1")
    if lie := LIES[what]:
        text = replace(truth.state, **lie).to_json()
        bucket.write(path, text, metadata={"state": text})
    else:
        bucket.delete(path)
    listed(settings)
    index.look_at_all(settings, None).tidy()
    text = truth.state.to_json()
    bucket.write(path, text, metadata={"state": text})
    assert before <= entries(bucket)
    for number in range(30):
        submit(bucket, f"new-{number}", user="ann", created_at="2026-02-01T00:00:00Z")
    assert "run-1" in listed(settings, 1, user=None)


def test_a_sweep_stays_listed_whatever_a_job_writes_into_the_states_of_its_jobs(bucket, settings):
    listed(settings)
    states.write_sweep(bucket, "lr", states.Sweep(["lr-0", "lr-1"]))
    for name in ("lr-0", "lr-1"):
        describe(bucket, name, sweep="lr")
    before = entries(bucket)
    ended = states.read(bucket, "lr-0")
    states.replaced(bucket, ended, replace(ended.state, state="SUCCEEDED"))
    truth = states.read(bucket, "lr-1")
    bucket.delete(job.state_path("lr-1"))
    listed(settings)
    assert entries(bucket) == before
    states.claim(bucket, "lr-1", replace(truth.state, state="FAILED"))
    listed(settings)
    assert entries(bucket) == before - {"living/lr.sweep"}


def test_the_machine_of_a_job_that_is_said_to_be_of_a_sweep_is_its_own(settings, monkeypatch):
    bucket = Bucket(settings)
    there = Machine("run-1", "z", "RUNNING", labels={"berg-job": "run-1", "berg-user": ME})
    monkeypatch.setattr(places, "machines", lambda *_, **__: [there])
    write(bucket, "run-1", "KILLED", sweep="run", created_at=job.now())
    (entry,) = index.look(settings, ME, 20).entries
    assert entry.machines == [there] and "machine RUNNING" in entry.status


def test_the_shell_completes_jobs_that_a_list_does_not_read_any_more(bucket, settings, tmp_path):
    for number in range(60):
        write(bucket, f"old-{number:02}", created_at=f"2026-01-01T00:00:{number:02}Z")
    listed(settings)
    submit(bucket, "new", "RUNNING")
    listed(settings)
    names = (tmp_path / "names").read_text().splitlines()
    assert len(names) == 61 and "new live" in names and "old-00" in names


def test_who_may_not_write_lists_as_well(bucket, settings, cloud):
    write(bucket, "over")
    cloud.fault("storage.objects.insert", status=403, times=None)
    assert listed(settings) == ["over"]
    assert entries(bucket) == set()


def test_without_a_bucket_there_is_the_error_that_names_it(settings):
    with pytest.raises(api.NotFound):
        index.look(replace(settings, bucket="no-such-bucket-of-berg"), ME, 20)


def test_a_batch_says_of_each_object_what_is_there(bucket):
    written = {f"a/{number} +%?é": bucket.write(f"a/{number} +%?é", b"") for number in range(130)}
    asked = ["missing", *written]
    first, *found = bucket.gets(asked, "name,generation")
    assert first is None
    assert {each.name: each.generation for each in found} == written
    bucket.delete_all_at([*list(written.items())[:120], ("missing", 1), ("a/125 +%?é", 1)])
    assert [each.name for each in bucket.list("a/", "name")] == sorted(list(written)[120:])


def test_doctor_names_an_index_that_is_missing_or_wrong_and_what_mends_it(
    bucket, settings, monkeypatch
):
    def found() -> tuple[str, str]:
        (finding,) = doctor.check_index(settings)
        assert finding.fix == ("" if finding.status == "ok" else "berg list --all-jobs")
        return finding.status, finding.found

    assert found() == ("ok", "has 0 jobs")
    write(bucket, "past")
    assert found() == ("warning", "there is none yet, so lists read all jobs")
    listed(settings)
    assert found() == ("ok", "has 1 job")
    write(bucket, "grid-0", "SUBMITTED", sweep="grid")
    write(bucket, "over")
    assert found() == ("warning", "lacks 2 jobs, for example grid-0")
    submit(bucket, "over2")
    monkeypatch.setattr("berg.config.load_ready", lambda: settings)
    shown = CliRunner().invoke(cli.cli, ["list", "--all-jobs", "-a", "--json"])
    assert shown.exit_code == 0, shown.output
    assert found() == ("ok", "has 4 jobs")
    bucket.delete(f"{index.LIVING}grid.sweep")
    assert found() == ("warning", "lacks 1 job, for example grid-0")


def test_doctor_looks_at_no_more_jobs_than_it_has_time_for(bucket, settings, monkeypatch):
    for number in range(3):
        submit(bucket, f"job-{number}")
    listed(settings)
    monkeypatch.setattr(doctor, "STATES", 2)
    assert doctor.check_index(settings)[0].found == "has 2 jobs"
