"""How many requests of a command wait for one another: far from the cloud they are what takes time."""

import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench/chain.py"
AWAY = 0.25  # seconds there and back: long beside what a computer with much to do takes


@pytest.fixture
def trips(berg, cloud):
    """Runs a command far from the cloud; returns its round trips one after the other."""
    spec = importlib.util.spec_from_file_location("chain", BENCH)
    chain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chain)

    def count(*words: str) -> int:
        cloud.call("DELETE", "/_berg/requests")
        cloud.call("POST", "/_berg/settings", {"latency": AWAY, "machine_latency": 0})
        try:
            done = berg(*words)
        finally:
            cloud.call("POST", "/_berg/settings", {"latency": 0, "machine_latency": None})
        assert done.returncode == 0, done.stderr
        return chain.round_trips(cloud.call("GET", "/_berg/requests")["requests"])

    return count


def test_a_list_waits_for_five_round_trips_at_most(berg, trips):
    """Three are a connection's first request, with its handshakes."""
    assert berg("run", "-g", "0", "-n", "first", "--wait", "true").returncode == 0
    berg("list")  # makes the index
    assert trips("list") <= 5


def test_a_submit_of_an_edit_waits_for_few_round_trips(berg, trips):
    """What the cloud offers, and quotas; the code's pack; claim, job, machine, and its operation:
    and the handshakes of the first, and of what makes machines.
    """
    assert berg("run", "-g", "0", "-n", "first", "--wait", "true").returncode == 0
    (berg.repo / "train.py").write_text("print('edited')\n")
    assert trips("run", "-g", "0", "-n", "second", "true") <= 20
