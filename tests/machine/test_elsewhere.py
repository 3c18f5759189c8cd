"""Machines of a job that waited in several regions: those of one region have it, and the others write
nothing that these read.
"""

from types import SimpleNamespace

import pytest

from berg.job import State
from berg.machine.attempt import Attempt, Ended, NoJob
from berg.machine.outcome import SHUT_DOWN, Stopping

ELSEWHERE = State("RUNNING", machine="duo-0", zone="us-east1-b")
HERE = State("STARTING", machine="duo-0", zone="us-central1-a")


def attempt(*states: State, leads: bool = False, regions=("us-central1", "us-east1")):
    """The second machine of a job in us-central1, to which the bucket shows these states."""
    found = SimpleNamespace(
        name="duo",
        leads=leads,
        job=SimpleNamespace(regions=list(regions)),
        machine=SimpleNamespace(name="duo-1", zone="us-central1-a"),
        stopping=Stopping(),
        state=State(),
    )
    left = list(states)

    def read() -> State:
        if not left:
            raise NoJob("there is no job 'duo'")
        found.state = left.pop(0)
        return found.state

    found.states = SimpleNamespace(read=read)
    found.is_taken_here = lambda: Attempt.is_taken_here(found)
    return found


def test_machines_wait_for_the_first_one_and_go_on_with_it():
    Attempt.check_region(attempt(State(), HERE))
    Attempt.check_region(attempt(leads=True))
    Attempt.check_region(attempt(regions=["us-central1"]))


def test_machines_wait_for_the_first_one_to_take_over_what_is_lost_elsewhere():
    Attempt.check_region(attempt(ELSEWHERE, HERE))


@pytest.mark.parametrize("states", [[State("KILLED", zone="us-central1-a")], []])
def test_machines_leave_a_job_that_is_over_or_gone(states):
    with pytest.raises(Ended):
        Attempt.check_region(attempt(*states))


def test_machines_leave_a_job_that_others_have_when_the_first_one_did_or_never_came(monkeypatch):
    deleted = attempt(ELSEWHERE, ELSEWHERE)
    deleted.stopping.request(SHUT_DOWN)
    with pytest.raises(Ended, match="duo-0 in us-east1-b has job duo"):
        Attempt.check_region(deleted)
    monkeypatch.setattr("berg.machine.attempt.COMING", -1)
    with pytest.raises(Ended, match="duo-0 in us-east1-b has job duo"):
        Attempt.check_region(attempt(ELSEWHERE, ELSEWHERE))


def test_machines_that_are_deleted_while_they_wait_say_nothing():
    """Who has the job deletes their group: that they were turned off is no failure of the job."""
    deleted = attempt(State(), State())
    deleted.stopping.request(SHUT_DOWN)
    with pytest.raises(Ended, match="no first machine has job duo"):
        Attempt.check_region(deleted)
