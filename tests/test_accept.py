"""The judge of the acceptance suite: what a disk had at an instant passes, and nothing else does.

A random writer runs without any berg. It is stopped at a random instant, or killed.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(next(each for each in Path(__file__).parents if (each / "accept").is_dir())))

from accept import judge, writer


@pytest.fixture
def heard():
    collector = judge.Collector()
    yield collector
    collector.close()


def begun(
    heard: judge.Collector, folder: Path, seed: int
) -> tuple[subprocess.Popen, judge.History]:
    heard.answer = {"seconds": 100, "code": 0, "pace": 0}
    variables = {"BERG_RESULTS_DIR": str(folder), "BERG_ATTEMPT": "1", "BERG_NODE_RANK": "0"}
    command = [sys.executable, writer.__file__, str(heard.port), str(seed), "200"]
    process = subprocess.Popen(command, env={**os.environ, **variables, "BERG_JOB": f"job{seed}"})
    history = heard.histories[f"job{seed}", 1]
    end = time.monotonic() + 30
    while len(history.changes) < 20 and time.monotonic() < end:
        time.sleep(0.02)
    return process, history


def settled(history: judge.History) -> None:
    """Wait until all that was told has been heard."""
    count = -1
    while count != (count := len(history.changes)):
        time.sleep(0.3)


@pytest.mark.parametrize("number", range(3))
def test_a_disk_passes_as_it_was_when_its_program_was_killed(heard, tmp_path, number):
    process, history = begun(heard, tmp_path / "results", number)
    time.sleep(random.Random(number).uniform(0.5, 2))
    process.kill()
    process.wait()
    settled(history)
    last = [change for change in history.changes if change.done == float("inf")]
    found = writer.listing(str(tmp_path / "results"))
    if last and last[0].is_slow:  # half a file: nobody promised to keep that
        found = {path: what for path, what in found.items() if path not in last[0].sets}
        before = {
            p: c.sets[p]
            for c in history.changes
            for p in c.sets
            if p in last[0].sets and c is not last[0]
        }
        found.update({path: value for path, value in before.items() if value and value[0] == "f"})
    said = judge.judge(history, found, {})
    assert not said.wrong and said.is_last, said


def test_a_disk_of_an_earlier_instant_is_told_from_the_last(heard, tmp_path):
    process, history = begun(heard, tmp_path / "results", 50)
    try:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        at, found = time.time(), writer.listing(str(tmp_path / "results"))
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(1.5)
    finally:
        process.kill()
        process.wait()
    settled(history)
    said = judge.judge(history, found, {})
    assert not said.is_last
    assert said.wrong.startswith("torn") or abs(said.at - at) < 1, (said, at)


@pytest.mark.parametrize("how", ["torn", "missing", "left over", "older"])
def test_what_no_instant_had_is_refused(heard, tmp_path, how):
    process, history = begun(heard, tmp_path / "results", 60)
    time.sleep(1)
    process.kill()
    process.wait()
    settled(history)
    whole = [change for change in history.changes if change.done < float("inf")]
    history.changes[:] = whole
    found = {}
    for change in whole:
        for path, value in change.sets.items():
            found.pop(path, None)
            if value and value[0] == "log":
                found[path] = [
                    "f",
                    writer.digest(history.texts[value[1]][: value[2]].encode()),
                    value[2],
                ]
            elif value:
                found[path] = value
    assert judge.judge(history, found, {}).is_last
    first = next(path for path, what in found.items() if what[0] == "f" and ".log" not in path)
    if how == "torn":
        found[first] = ["f", "0" * 16, 3]
    elif how == "missing":
        del found[first]
    elif how == "left over":
        gone = next(p for c in whole for p, v in c.sets.items() if v is None and p not in found)
        value = next(c.sets[gone] for c in whole if c.sets.get(gone))
        found[gone] = ["f", *value[1:]] if value[0] == "f" else value
    else:
        history.texts["x"] = "one\ntwo\n"
        history.changes.append(
            judge.Change(whole[-1].done, {"x.log": ["log", "x", 8]}, whole[-1].done)
        )
        history.changes.append(
            judge.Change(whole[-1].done, {"y": ["f", "1" * 16, 1]}, whole[-1].done)
        )
        found |= {"x.log": ["f", writer.digest(b"one\n"), 4], "y": ["f", "1" * 16, 1]}
    said = judge.judge(history, found, {})
    assert said.wrong.startswith("torn" if how == "torn" else "mixed") or not said.is_last, said


@pytest.mark.parametrize(
    ("only", "code"), [("data/kill,.1.machine$ story", 0), ("story nosuch", 1)]
)
def test_each_pattern_has_a_row(only, code):
    words = [sys.executable, "-m", "accept", "--berg", "berg", "--list", "--only", only]
    done = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == code and ("nosuch" in done.stderr) == bool(code), done.stderr
