"""The state as its machine writes it: how many writes of the object there are, and what waits."""

import time

import pytest

from berg import states
from berg.job import State
from berg.machine.attempt import SOON, WRITE_INTERVAL, StateWriter
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


def test_a_state_that_changes_while_it_is_written_is_written_again_when_the_bucket_takes_it(
    writer, bucket, cloud, monkeypatch
):
    replaced = states.replaced

    def slow(*arguments):
        written = replaced(*arguments)
        writer.state.reason = "changed"
        return written

    monkeypatch.setattr(states, "replaced", slow)
    cloud.call("DELETE", "/_berg/requests")
    writer.next_write = time.monotonic() + WRITE_INTERVAL  # the fixture wrote just now
    writer.state.restarts = 1
    writer.put()
    log = cloud.call("GET", "/_berg/requests")["requests"]
    written = [each["status"] for each in log if each["method"] == "storage.objects.insert"]
    assert written == [200, 200]
    assert states.read(bucket, "train").state.reason == "changed"
