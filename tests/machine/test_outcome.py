"""How an attempt ends, decided from what is known of it, without machines."""

from dataclasses import replace

import pytest

from berg.job import Group, Job, State, Summary
from berg.machine.outcome import (
    AFTER_MAINTENANCE,
    ELSEWHERE,
    LOG_IS_CUT,
    MAINTAINED,
    MAX_LOST,
    PREEMPTED,
    SHUT_DOWN,
    TO_FINISH,
    Ending,
    Uploads,
    decide,
    restart_after,
)
from berg.spec import JobSpec

NOW = "2026-11-22T20:00:00Z"
BEFORE = State(
    state="UPLOADING",
    exit_code=0,
    ending="SUCCEEDED",
    attempt=2,
    restarts=2,
    left_files=7,
    left_bytes=70,
    machine="box",
    zone="us-central1-a",
)
SUCCEEDED = Ending("SUCCEEDED", "", 0)
FAILED = Ending("FAILED", "the command failed with exit code 3", 3)
LOST = "1 file is not in the bucket: a (it is too large)"
KILLED = Ending("KILLED", "killed by ann")
LONE = Job("box", "true", "box", "", "", "", "")
SLICE = replace(LONE, num_machines=2, place="tpu")


@pytest.mark.parametrize(
    ("ending", "uploads", "state", "reason", "lost"),
    [
        (SUCCEEDED, Uploads(), "SUCCEEDED", "", ""),
        (FAILED, Uploads(), "FAILED", FAILED.reason, ""),
        (KILLED, Uploads(), "KILLED", KILLED.reason, ""),
        # What cannot be kept is named; only what could have been kept fails the job.
        (SUCCEEDED, Uploads(lost=LOST), "SUCCEEDED", LOST, LOST),
        (SUCCEEDED, Uploads(is_whole=False, lost=LOST), "FAILED", LOST, LOST),
        (SUCCEEDED, Uploads(others_are_whole=False), "FAILED", "", ""),
        (KILLED, Uploads(is_whole=False), "KILLED", KILLED.reason, ""),
        (FAILED, Uploads(lost=LOST), "FAILED", f"{FAILED.reason}; {LOST}", LOST),
        (
            SUCCEEDED,
            Uploads(lost=LOST, others_are_whole=False, others_lost=["box-1: b"]),
            "FAILED",
            f"{LOST}; box-1: b",
            f"{LOST}; box-1: b",
        ),
        # A machine whose absence is the reason is not named twice.
        (
            Ending("FAILED", "machine box-1 is gone"),
            Uploads(others_are_whole=False, others_lost=["machine box-1 is gone"]),
            "FAILED",
            "machine box-1 is gone",
            "",
        ),
        (SUCCEEDED, Uploads(log_is_whole=False), "SUCCEEDED", LOG_IS_CUT, ""),
        (
            FAILED,
            Uploads(lost=LOST, log_is_whole=False),
            "FAILED",
            f"{FAILED.reason}; {LOST}; {LOG_IS_CUT}",
            LOST,
        ),
    ],
)
def test_the_last_state_of_a_job_that_is_over(ending, uploads, state, reason, lost):
    last = decide(BEFORE, ending, uploads, None, NOW)
    assert (last.state, last.reason, last.lost) == (state, reason, lost)
    assert last.exit_code == ending.exit_code and last.finished_at == NOW
    assert (last.left_files, last.left_bytes, last.ending) == (0, 0, "")
    assert (last.machine, last.attempt, last.restarts) == ("box", 2, 2)


def test_what_earlier_attempts_lost_is_named_once_and_cut():
    before = replace(BEFORE, lost="in earlier attempts: b")
    last = decide(before, SUCCEEDED, Uploads(lost=LOST), None, NOW)
    assert last.lost == last.reason == f"{LOST}; in earlier attempts: b"
    assert decide(replace(BEFORE, lost=LOST), SUCCEEDED, Uploads(lost=LOST), None, NOW).lost == LOST
    assert len(decide(BEFORE, SUCCEEDED, Uploads(lost="x" * 999), None, NOW).lost) == MAX_LOST


@pytest.mark.parametrize(("restart", "restarts"), [(ELSEWHERE, 2), (AFTER_MAINTENANCE, 1)])
def test_a_job_that_begins_anew_is_submitted_and_not_over(restart, restarts):
    uploads = Uploads(is_whole=False, lost=LOST, synced_until=NOW, log_is_whole=False)
    last = decide(BEFORE, replace(PREEMPTED, exit_code=143), uploads, restart, NOW)
    assert (last.state, last.exit_code, last.finished_at) == ("SUBMITTED", None, "")
    assert last.reason == f"{PREEMPTED.reason}; {LOG_IS_CUT}; {restart.reason}"
    assert (last.restarts, last.lost, last.synced_until) == (restarts, LOST, NOW)


OF_ALL = replace(ELSEWHERE, is_of_all=True)


def test_of_several_machines_the_others_wait_for_the_one_that_was_taken():
    several = replace(BEFORE, job=Summary(machines=3), missing=2, missing_since="before")
    anew = decide(several, PREEMPTED, Uploads(), ELSEWHERE, NOW)
    assert (anew.missing, anew.missing_since) == (1, NOW)
    all_anew = decide(several, PREEMPTED, Uploads(), OF_ALL, NOW)
    assert (all_anew.missing, all_anew.missing_since) == (3, NOW), "nobody is there"
    over = decide(several, FAILED, Uploads(), None, NOW)
    assert (over.missing, over.missing_since) == (0, "")
    alone = decide(BEFORE, PREEMPTED, Uploads(), ELSEWHERE, NOW)
    assert (alone.missing, alone.missing_since) == (0, "")


def test_a_job_whose_disk_comes_back_stays_in_its_upload():
    assert decide(BEFORE, SUCCEEDED, Uploads(is_whole=False), TO_FINISH, NOW) == BEFORE


GROUP = replace(LONE, group=Group(region="us-central1"), spec=JobSpec(max_restarts=2))
PODS = replace(GROUP, num_machines=2, group=Group(cluster="a/b"))


@pytest.mark.parametrize(
    ("cause", "this", "sweep", "restarts", "restart"),
    [
        (None, GROUP, "", 0, None),
        (KILLED, GROUP, "", 0, None),
        (PREEMPTED, LONE, "", 0, None),
        (SHUT_DOWN, LONE, "", 0, None),
        (PREEMPTED, GROUP, "", 1, ELSEWHERE),
        (SHUT_DOWN, GROUP, "", 1, ELSEWHERE),
        (PREEMPTED, GROUP, "", 2, None),
        (PREEMPTED, replace(GROUP, num_machines=2), "", 0, ELSEWHERE),
        (PREEMPTED, replace(GROUP, num_machines=2), "", 2, None),
        (PREEMPTED, replace(GROUP, num_machines=2, spec=JobSpec(flex=True)), "", 0, None),
        (PREEMPTED, replace(GROUP, spec=JobSpec(flex=True)), "", 0, None),
        (PREEMPTED, PODS, "", 0, ELSEWHERE),
        (PREEMPTED, replace(PODS, tpu="v5e-4x4"), "", 0, OF_ALL),
        (PREEMPTED, replace(GROUP, num_machines=2, place="tpu"), "", 0, None),
        (PREEMPTED, replace(LONE, num_machines=2), "", 0, None),
        (PREEMPTED, replace(GROUP, kind="devbox"), "", 0, None),
        (PREEMPTED, replace(LONE, spec=JobSpec(max_restarts=1)), "lr", 0, ELSEWHERE),
        (PREEMPTED, replace(LONE, spec=JobSpec(max_restarts=1)), "lr", 1, None),
        # Google starts the machine again that it maintained, however often, unless it is a group's.
        (MAINTAINED, LONE, "", 9, AFTER_MAINTENANCE),
        (MAINTAINED, replace(LONE, num_machines=2), "", 0, None),
        (MAINTAINED, GROUP, "", 1, AFTER_MAINTENANCE),
        (MAINTAINED, GROUP, "", 2, None),
    ],
)
def test_who_begins_anew(cause, this, sweep, restarts, restart):
    assert restart_after(cause, this, sweep, restarts) == restart


@pytest.mark.parametrize(
    ("this", "is_repaired", "silence"),
    [
        (LONE, True, 180),
        (SLICE, True, 900),
        (replace(SLICE, silence_seconds=1000), True, 1000),
        (replace(SLICE, spec=JobSpec(spot=True)), False, 180),
        (replace(SLICE, spec=JobSpec(flex=True)), False, 180),
        (replace(SLICE, place="gce"), False, 180),
    ],
)
def test_what_google_brings_back_begins_anew_after_maintenance(this, is_repaired, silence):
    """And the others wait longer for the word of a machine that may come back."""
    anew = replace(AFTER_MAINTENANCE, is_of_all=bool(this.tpu))
    assert restart_after(MAINTAINED, this, "", 0) == (anew if is_repaired else None)
    assert this.longest_silence == silence
