"""The door to the states in the bucket: who claims a name, who may write, what is damaged."""

import hashlib
import json
import re
from dataclasses import asdict, replace

import pytest

from berg import BergError, job, states, validation
from berg.commands import tables
from berg.google.storage import Changed
from berg.job import Group, State, Summary
from berg.laptop.jobs import Entry, attempt
from berg.watch import page


def stored(bucket, name: str) -> states.Stored:
    found = states.read(bucket, name)
    assert found is not None
    return found


def test_of_two_equal_submits_one_has_the_name(bucket):
    state = State(history=[["SUBMITTED", "2026-01-01T00:00:00Z"]])
    first = states.claim(bucket, "a", state)
    with pytest.raises(Changed):
        states.claim(bucket, "a", state)
    assert stored(bucket, "a").state == first.state and first.state.claim != state.claim == ""
    with pytest.raises(Changed):
        states.claim(bucket, "a", state, first.generation + 1)


def test_a_claim_whose_answer_was_lost_is_ones_own(bucket, cloud):
    cloud.fault("storage.objects.insert", reset=True, after_handler=True)
    claimed = states.claim(bucket, "a", State())
    assert stored(bucket, "a").generation == claimed.generation


def test_of_two_that_let_a_job_go_on_one_does(bucket):
    over = states.claim(bucket, "a", State("FAILED"))
    anew = State(history=[["SUBMITTED", "2026-01-01T00:00:00Z"]])
    states.claim(bucket, "a", anew, over.generation)
    with pytest.raises(Changed):
        states.claim(bucket, "a", anew, over.generation)


def test_a_state_is_written_and_deleted_only_where_it_was_read(bucket):
    first = states.claim(bucket, "a", State())
    second = states.replaced(bucket, first, State("RUNNING"))
    with pytest.raises(Changed):
        states.replaced(bucket, first, State("KILLED"))
    with pytest.raises(Changed):
        states.delete(bucket, first)
    assert stored(bucket, "a").state.state == "RUNNING"
    states.delete(bucket, second)
    states.delete(bucket, second)
    assert states.read(bucket, "a") is None


def test_only_what_carries_the_claim_is_taken_back(bucket):
    ours = states.claim(bucket, "a", State())
    states.replaced(bucket, ours, State("STARTING", claim=ours.state.claim))
    bucket.write(job.metadata_path("a"), "{}")
    assert states.withdraw(bucket, ours)
    assert list(bucket.list("")) == []
    theirs = states.claim(bucket, "a", State())
    bucket.write(job.metadata_path("a"), "{}")
    assert not states.withdraw(bucket, ours)
    assert stored(bucket, "a").generation == theirs.generation
    assert bucket.exists(job.metadata_path("a"))


def test_of_two_equal_sweeps_one_has_the_name(bucket):
    ours, theirs = (states.Sweep(["lr-0", "lr-1"], claim) for claim in ("ours", "theirs"))
    states.write_sweep(bucket, "lr", ours)
    with pytest.raises(Changed):
        states.write_sweep(bucket, "lr", theirs)
    assert states.read_sweep(bucket, "lr") == ours
    assert states.sweep_exists(bucket, "lr") and not states.sweep_exists(bucket, "l")
    assert not states.withdraw_sweep(bucket, "lr", theirs)
    assert states.withdraw_sweep(bucket, "lr", ours)
    assert states.read_sweep(bucket, "lr") is None
    assert not states.withdraw_sweep(bucket, "lr", ours)


@pytest.mark.parametrize("odd", ["{", "[]", '{"jobs": "x"}', '{"jobs": ["../x"]}', "{}"])
def test_a_sweeps_record_that_is_odd_is_damaged(bucket, odd):
    bucket.write(job.sweep_path("lr"), odd)
    with pytest.raises(BergError, match=r"\.berg/sweeps/lr\.json is damaged"):
        states.read_sweep(bucket, "lr")


def test_what_is_damaged_is_listed_by_its_name(bucket):
    states.claim(bucket, "good", State("RUNNING"))
    for name in ("bad", "b\x1b]0;title\x07"):
        bucket.write(job.state_path(name), "{", metadata={"state": "{"})
    bucket.write(job.state_path("bare"), "{}")
    found = {each.name: each for each in states.listed(bucket)}
    assert list(found) == ["b�]0;title�", "bad", "bare", "good"]
    assert [each.name for each in found.values() if not each.is_damaged] == ["good"]
    assert found["bad"].state.state == "LOST"
    assert found["bad"].state.reason == ".berg/jobs/bad_state.json is damaged"
    assert [each.name for each in states.listed(bucket, "g")] == ["good"]
    assert states.names(bucket) == ["bad", "bare", "good"]
    assert states.read(bucket, "../good") is states.read(bucket, "none") is None


def test_metadata_that_is_missing_is_told_from_what_is_damaged(bucket):
    assert states.read_job(bucket, "a") is states.read_job(bucket, "../a") is None
    bucket.write(job.metadata_path("a"), "")
    with pytest.raises(BergError, match="a_metadata.json is damaged"):
        states.read_job(bucket, "a")
    commit = "d" * 40
    this = job.Job(
        "a",
        "true",
        "a",
        "",
        repo_name="r",
        git_commit=commit,
        git_snapshot=commit,
        snapshot={"commit": commit},
    )
    states.write_job(bucket, this)
    assert states.read_job(bucket, "a") == this
    with pytest.raises(Changed):
        states.write_job(bucket, job.Job("a", "false", "a", "gs://b/a", "r", "0", "0"), 1)


@pytest.mark.parametrize(
    "odd",
    [
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        f'{{"a": {10**400}}}',
        '{"a": -9223372036854775809}',
        "[1]",
        "1",
        "",
        "{",
    ],
)
def test_json_that_two_readers_understand_in_two_ways_is_refused(odd):
    with pytest.raises(ValueError, match=r"."):
        validation.parse(odd)


@pytest.mark.parametrize("key", ["packs", "shallow", "cut"])
@pytest.mark.parametrize("odd", [7, [1], {"a": "b"}, "a"])
def test_a_snapshot_whose_lists_are_none_is_odd(key, odd):
    job.check_snapshot({"commit": "c0ffee", key: ["c0ffee"]})
    job.check_snapshot({"commit": "c0ffee", key: [], "cut": None})
    with pytest.raises(ValueError, match="its packs are odd"):
        job.check_snapshot({"commit": "c0ffee", key: odd})
    with pytest.raises(ValueError, match="its packs are odd"):
        job.check_snapshot({"commit": "c0ffee", "packs": None})


def test_json_that_is_too_much_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="nested too deeply"):
        validation.parse('{"a":' * 100_000)
    monkeypatch.setattr(validation, "MOST_BYTES", 10)
    assert validation.parse('{"a": 1.5}') == {"a": 1.5}
    with pytest.raises(ValueError, match="it has 11 bytes"):
        validation.parse('{"a": 1.55}')


def test_what_would_steer_a_terminal_is_taken_out():
    steering = "\x1b[31m\x9b2J‮\r\ud800\x7f"
    mark = "\N{REPLACEMENT CHARACTER}"
    assert validation.clean(steering) == f"{mark}[31m{mark}2J{mark * 4}"
    assert validation.clean({"a\x00": ["b\x00", 1, None]}) == {f"a{mark}": [f"b{mark}", 1, None]}
    assert validation.clean("a\tb\nü🚀") == "a\tb\nü🚀"
    state = job.state_from_json(
        State("FAILED", reason=steering, job=Summary(cmd=steering)).to_json()
    )
    assert state.reason == state.job.cmd == validation.clean(steering)


@pytest.mark.parametrize(
    "summary",
    [
        {"results_dir": "../.ssh"},
        {"results_dir": "/etc"},
        {"results_dir": "a\x1bb"},
        {"sweep": "../x"},
        {"machines": -1},
        {"secrets": True},
        {"user": "a\nb"},
        {"group": "us-central1/../../secrets/x"},
        {"group": "../x"},
        {"gpus": "\x9b"},
        {"params": {"lr": 1}},
        [],
    ],
)
def test_a_state_with_an_odd_summary_is_none(summary):
    with pytest.raises(ValueError, match="no state of a job"):
        job.state_from_json(json.dumps({"state": "RUNNING", "job": summary}))


@pytest.mark.parametrize(
    "odd",
    [
        {"machine": "a\nb"},
        {"zone": "\n"},
        {"history": [["RUNNING"]]},
        {"attempts": [["2", "2026-01-01T00:00:00Z"]]},
        {"missing": "1"},
        {"missing_since": "noon"},
        {"claim": 1},
        {"zone": "../x"},
        {"machine": "a?b"},
        {"finished_at": "noon"},
        {"started_at": "2026-01-01T00:00:00"},
    ],
)
def test_a_state_with_odd_values_is_none(odd):
    with pytest.raises(ValueError, match="no state of a job"):
        job.state_from_json(json.dumps({"state": "RUNNING", **odd}))


def test_a_state_has_keys_of_a_sweep_only_in_a_sweep_and_unknown_keys_are_ignored():
    alone = json.loads(State(job=Summary("ada", machines=2)).to_json())
    assert alone["job"]["machines"] == 2 and not alone["job"].keys() & {"sweep", "params"}
    of_sweep = json.loads(State(job=Summary(sweep="lr", params={"lr": "1"})).to_json())
    assert (of_sweep["job"]["sweep"], of_sweep["job"]["params"]) == ("lr", {"lr": "1"})
    with_more = json.dumps({"state": "RUNNING", "job": {"user": "ada", "later": 1}})
    assert job.state_from_json(with_more).job == Summary("ada")


@pytest.mark.parametrize("group", ["", "us-central1", "us-central1-a/my-cluster"])
def test_groups_as_berg_writes_them_pass(group):
    written = State(
        "RUNNING", machine="a-x1b2", zone="us-central1-a", job=Summary(group=Group.parse(group))
    )
    assert job.state_from_json(written.to_json()).job.group == Group.parse(group)


def test_metadata_with_another_hash_than_was_submitted_is_refused(bucket):
    commit = "d" * 40
    code = {"repo_name": "r", "git_commit": commit, "git_snapshot": commit}
    this = job.Job("a", "true", "a", "", **code, snapshot={"commit": commit})
    states.write_job(bucket, this)
    digests = [hashlib.sha256(bucket.read(job.metadata_path("a"))).hexdigest(), "0" * 64, "f" * 64]
    assert states.read_job(bucket, "a", digests[0]) == this
    for wrong in digests[1:]:
        with pytest.raises(BergError, match="is not what was submitted"):
            states.read_job(bucket, "a", wrong)


def test_claims_are_the_same_or_not_whichever_is_greater(bucket):
    held = states.claim(bucket, "a", State(), token="5")
    swept = states.Sweep(jobs=["a"], claim="5")
    bucket.write(job.sweep_path("s"), json.dumps(asdict(swept)))
    for other in ("4", "6"):
        theirs = replace(held, state=replace(held.state, claim=other))
        assert not states.withdraw(bucket, theirs)
        assert not states.withdraw_sweep(bucket, "s", replace(swept, claim=other))
    assert stored(bucket, "a").state == held.state and states.sweep_exists(bucket, "s")


def test_a_sweeps_record_that_is_gone_or_changed_is_not_replaced(bucket):
    before = states.Sweep(jobs=["a"], claim="1")
    with pytest.raises(Changed):
        states.replace_sweep(bucket, "s", before, replace(before, jobs=["a", "b"]))
    bucket.write(job.sweep_path("s"), json.dumps(asdict(before)))
    states.replace_sweep(bucket, "s", before, replace(before, jobs=["a", "b"]))
    assert states.read_sweep(bucket, "s").jobs == ["a", "b"]
    with pytest.raises(Changed):
        states.replace_sweep(bucket, "s", before, before)


def test_a_record_of_a_sweep_with_fewer_hashes_than_jobs_has_none_for_the_others():
    record = states.Sweep(jobs=["a", "b"], sha256=["1"])
    assert [record.sha256_of(name) for name in ("a", "b", "c")] == ["1", "", ""]


def test_a_state_remembers_its_last_attempts_and_fits_its_object():
    state = State("RUNNING", job=Summary(cmd="x" * 500, note="n" * 200), reason="y" * 3000)
    for number in range(2, 15):
        for key, value in state.next_attempt(f"why {number} " + "z" * 400).items():
            setattr(state, key, value)
    assert state.attempt == 14 and [each[0] for each in state.attempts][::9] == ["5", "14"]
    text = state.to_json()
    read = job.state_from_json(text)
    assert len(text) <= job.MAX_STATE and read.attempts[-1][2].startswith("why 14")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"attempt": 3}, "attempt 3"),
        ({"attempt": 3, "missing": 1}, "attempt 3; waits for 1 of 4 machines since 6m"),
        ({"missing": 2}, "attempt 1; waits for 2 of 4 machines since 6m"),
        ({"state": "SUBMITTED", "missing": 1}, "attempt 1; waits for 1 of 4 machines since 6m"),
        (
            {"state": "SUBMITTED", "missing": 1, "started_at": "2026-01-01T00:00:00Z"},
            "attempt 2; waits for 1 of 4 machines since 6m",
        ),
        ({"state": "FAILED", "attempt": 3, "missing": 1}, ""),
        ({"attempt": 2, "job": Summary(kind="devbox")}, ""),
    ],
)
def test_a_list_says_which_attempt_it_is_and_for_whom_it_waits(fields, said):
    lately = job.after(-360)
    about = {"state": "RUNNING", "job": Summary(machines=4), "missing_since": lately}
    state = State(**{**about, **fields})
    assert attempt(state) == said
    shown = tables.entries([Entry("four", state, [])], False, False, False)
    assert (said in shown) and ("attempt" in shown) == bool(said)


def test_the_page_draws_attempts():
    state = State("FAILED", started_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T03:00:00Z")
    assert page.attempts(state) is None
    state.attempt = 3
    state.attempts = [
        ["2", "2026-01-01T01:00:00Z", "machine four-1 is gone"],
        ["3", "2026-01-01T01:10:00Z", "<b>Google</b> preempted the machine"],
    ]
    drawn = page.attempts(state)
    rows = re.findall(r"<tr>(.*?)</tr>", drawn)
    found = [[re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", r)] for r in rows]
    assert [row[:1] + row[2:] for row in found[1:]] == [
        ["1", "60m", ""],
        ["2", "10m", "machine four-1 is gone"],
        ["3", "110m", "&lt;b&gt;Google&lt;/b&gt; preempted the machine"],
    ], drawn
    state.attempts = state.attempts[1:]
    assert len(re.findall("<tr>", page.attempts(state))) == 2, "what it does not remember"
