"""The state as its machine writes it: how many writes of the object there are, and what waits."""

import pytest

from berg import states
from berg.job import State
from berg.machine.attempt import SOON, StateWriter
from berg.machine.outcome import Stopping


@pytest.fixture
def writer(bucket):
    """What writes the state of a job that has been running for a while."""
    stored = states.claim(bucket, "train", State("RUNNING"))
    writer = StateWriter("train", bucket, None, Stopping(), lambda: True, lambda ending: None)
    writer.stored, writer.state = stored, stored.state
    return writer


def test_a_job_that_ends_while_it_uploads_writes_its_last_state_at_once(writer, bucket, cloud):
    """The object takes a write a second: one that says UPLOADING would hold up the end."""
    cloud.call("DELETE", "/_berg/requests")
    writer.write(soon=True, state="UPLOADING")
    assert writer.later and writer.later.interval >= SOON
    writer.write(state="SUCCEEDED")
    assert writer.later is None
    log = cloud.call("GET", "/_berg/requests")["requests"]
    written = [each for each in log if each["method"] == "storage.objects.insert"]
    assert len([each for each in written if each["status"] == 200]) == 1
    stored = states.read(bucket, "train")
    assert stored and stored.state.state == "SUCCEEDED"


def test_a_job_that_uploads_for_long_says_so(writer, bucket):
    writer.write(soon=True, state="UPLOADING")
    writer.flush()
    stored = states.read(bucket, "train")
    assert stored and stored.state.state == "UPLOADING"
