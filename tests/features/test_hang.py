"""A job that hangs is found, explained and ended; one that goes on is not."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, commit
from inside import job_of, run_of

from berg import job as jobs
from berg import worker
from berg.features import hang
from berg.features.hang import Hang

HANGS = """
import os, time
def stuck():
    while True:
        time.sleep(0.1)
if int(os.environ["BERG_ATTEMPT"]) == 1:
    print("begun")
    stuck()
"""


@pytest.mark.slow
def test_a_hang_is_explained_and_begins_again(cloud: Cloud, project: Path) -> None:
    commit(project, {"train.py": HANGS})
    words = ["-g", "0", "-n", "hangs", "-m", "2", "--each", "--max-silence", "8s"]
    words += ["--on-hang", "restart", "--restart-on-failure", "1", "--wait", "python3 train.py"]
    done = cloud.run("run", *words, cwd=project)
    assert done.code == 0, cloud.log("hangs")
    log = cloud.log("hangs")
    assert re.search(r"no step for \d+s; 1 in stuck \(train.py:5\)", log), log
    written = {name.rpartition("/")[2]: name for name in cloud.names("berg_results/hangs/autopsy")}
    assert set(written) == {"hangs-0.txt", "hangs-1.txt"}
    assert all(b"stuck (train.py:5)" in cloud.read(name) for name in written.values())
    assert cloud.state("hangs")["attempt"] == 2


DUMP = """Process {pid}: python3 train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread {other} (idle): "loader"
    wait (queue.py:180)
Thread {pid} (active): "MainThread"
    all_reduce (torch/distributed.py:77)
    main (train.py:9)
"""


def test_the_innermost_frame_of_the_first_thread_counts() -> None:
    found = hang.TOP.search(DUMP.format(pid=120, other=12))
    assert found and found[2] == "all_reduce (torch/distributed.py:77)"
    assert not hang.TOP.search("Process 7: sleep 9\nState S, in do_wait")


@pytest.fixture
def stuck(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Begin a job on a machine whose command is `sleep`, without a step for longer than it may."""
    monkeypatch.setattr(worker, "RESULTS", tmp_path)
    process = subprocess.Popen(["sleep", "300"])

    def begin(name: str, on_hang: str, machines: int = 1, rank: int = 0) -> tuple[Hang, Any]:
        job = job_of(name, "sleep 300", machines=machines)
        run = run_of(cloud, tmp_path, job, rank=rank)
        run.generation = jobs.write_state(cloud.bucket, run.state, 0) if not rank else 0
        run.command.members = lambda: [process.pid]  # those of the tests are no job's
        run.log.write_text("begun\n")
        own = Hang(max_silence=60, on_hang=on_hang)
        assert own.look(run) is None and own.next == 0, "before its command began"
        own.is_on, own.since, own.mark = True, time.monotonic() - 61, hang.progress(run)
        return own, run

    yield begin
    process.kill()
    process.wait()


@pytest.mark.parametrize("on_hang", ["fail", "restart"])
def test_a_job_without_a_step_ends(stuck: Any, tmp_path: Path, on_hang: str) -> None:
    own, run = stuck(f"silent-{on_hang}", on_hang)
    ending = own.look(run)
    assert ending.state == "FAILED" and ending.is_firm == (on_hang == "fail")
    assert "no step for 60s. See autopsy/" in ending.reason
    (file,) = (tmp_path / run.job.results / "autopsy").rglob("*.txt")
    assert file.name == f"{run.job.name}.txt" and "sleep 300\nState S, in" in file.read_text()


def test_a_step_in_time_is_no_hang(stuck: Any, tmp_path: Path) -> None:
    own, run = stuck("steps", "fail")
    run.log.write_text("begun\nmore\n")
    assert own.look(run) is None and time.monotonic() - own.since < 50
    own.since -= 61
    assert own.look(run) is None, "it looks every few seconds"
    own.next = 0
    run.has_ended = True
    assert own.look(run) is None
    run.has_ended = False
    steps = tmp_path / run.job.results / "metrics.jsonl"
    steps.parent.mkdir(parents=True)
    steps.write_text("{}\n")
    assert hang.progress(run) == 3, "the log may go on while no step is made"
    assert own.look(run) is None
    own.next, own.since = 0, time.monotonic() - 61
    run.log.write_text("begun\nmore\nstill there\n")
    assert own.look(run)


def test_a_report_ends_nothing_and_is_in_the_state_until_the_job_goes_on(
    cloud: Cloud, stuck: Any
) -> None:
    own, run = stuck("reports", "report")
    assert own.look(run) is None and own.is_reported
    state, _ = jobs.read_state(cloud.bucket, "reports")
    assert state.state == "RUNNING" and "it seems to hang: no step for 60s" in state.reason
    assert run.log.read_text().count("it seems to hang") == 1
    own.next, own.since = 0, time.monotonic() - 61
    assert own.look(run) is None and run.log.read_text().count("it seems to hang") == 1
    assert own.is_reported, "Berg's own line in the log is no step"
    with run.log.open("a") as file:
        file.write("goes on\n")
    own.next = 0
    assert own.look(run) is None and not own.is_reported
    state, _ = jobs.read_state(cloud.bucket, "reports")
    assert (state.state, state.reason) == ("RUNNING", "")


def test_another_machine_looks_when_the_first_one_asks(stuck: Any, tmp_path: Path) -> None:
    own, run = stuck("joins", "fail", machines=2, rank=1)
    assert own.look(run) is None and not [*tmp_path.rglob("*.txt")]
    own.next = 0
    run.peers.records[0] = {"silent_at": "20260101T000000Z"}
    assert own.look(run) is None
    (file,) = tmp_path.rglob("*.txt")
    assert str(file.relative_to(tmp_path)) == "joins/autopsy/20260101T000000Z/joins-1.txt"
    assert run.peers.outcome == {"examined": "20260101T000000Z"}
    file.unlink()
    own.next = 0
    own.look(run)
    assert not file.exists(), "once for each look of the first machine's"
