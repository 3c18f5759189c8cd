"""How many requests of a command wait for one another: far from the cloud they are what takes time."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import wait_for

from berg.google.storage import ahead

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
    """Three are a connection's first request, with its handshakes. What is over leaves the index
    after the list was shown.
    """
    assert berg("run", "-g", "0", "-n", "first", "--wait", "true").returncode == 0
    wait_for(lambda: not berg.machines(), 30, "the machine's end")
    berg("list")  # makes the index
    berg("list")
    assert trips("list") <= 5


def test_a_submit_of_an_edit_waits_for_few_round_trips(berg, trips):
    """Three are the first requests with their handshakes, which ask for all there is to know; then
    the entry in the index and the owner of the folder, beside the pack of the code; the claim of
    the name, the job, the machine, and its operation.
    """
    assert berg("run", "-g", "0", "-n", "first", "--wait", "true").returncode == 0
    (berg.repo / "train.py").write_text("print('edited')\n")
    assert trips("run", "-g", "0", "-n", "second", "true") == 8


def test_a_job_that_does_nothing_repeats_no_write_and_its_wait_reads_no_log(berg, cloud):
    """Cloud Storage takes one write a second of an object: one that came too soon would be tried
    again seconds later.
    """
    cloud.call("DELETE", "/_berg/requests")
    assert berg("run", "-g", "0", "-n", "nothing", "--wait", "true").returncode == 0
    log = cloud.call("GET", "/_berg/requests")["requests"]
    assert [each["path"] for each in log if each["status"] == 429] == []
    read = [each["path"] for each in log if each["laptop"] and "logs%2F" in each["path"]]
    assert read == [], "its log is not shown"


def test_a_submit_of_an_edit_does_without_the_library_for_large_files(berg):
    """It takes a seventh of a second to import."""
    assert berg("run", "-g", "0", "-n", "first", "true").returncode == 0
    (berg.repo / "train.py").write_text("print('edited')\n")
    command = [sys.executable, "-X", "importtime", "-m", "berg", "run", "-g", "0", "true"]
    done = subprocess.run(
        command, cwd=berg.repo, env=berg.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "google.cloud.compute_v1.services.instances" in done.stderr
    assert "google.cloud.storage" not in done.stderr


def test_a_fetch_asks_at_once_for_all_that_it_may_need(berg, bucket, trips, tmp_path):
    """What the name stands for, and the list of the folder of that name: each has handshakes."""
    bucket.write("berg_results/some/file", b"x")
    assert berg("fetch", "some", str(tmp_path)).returncode == 0
    assert trips("fetch", "some", str(tmp_path)) == 3


def test_the_next_page_is_asked_for_while_the_one_before_it_is_used():
    asked = []
    both = threading.Barrier(2, timeout=30)

    def pages():
        for number in range(3):
            asked.append(number)
            yield number
            if number == 0:
                both.wait()

    found = ahead(pages())
    assert next(found) == 0
    both.wait()  # else nobody asks for the second page yet
    assert list(found) == [1, 2] and asked == [0, 1, 2]


def test_what_fails_in_a_later_page_fails_there():
    def pages():
        yield 0
        raise OSError("no more")

    found = ahead(pages())
    assert next(found) == 0
    with pytest.raises(OSError, match="no more"):
        next(found)


def test_a_fetch_that_finds_nothing_new_imports_only_what_asks(berg, bucket, tmp_path):
    """Google's errors and retries, with protobuf and asyncio, are for when something fails; the
    places for jobs are for who asks about a machine.
    """
    bucket.write("berg_results/some/file", b"x")
    assert berg("fetch", "some", str(tmp_path)).returncode == 0
    env = berg.environment()
    code = f"""
import sys
from berg.cli import cli

cli(["fetch", "some", {str(tmp_path)!r}], standalone_mode=False)
print(*sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert "0 of 1 file new" in done.stderr
    spared = {"google.api_core", "google.protobuf", "berg.places", "google.cloud.storage"}
    assert not spared.intersection(done.stdout.split())
