"""Jobs that hang: found by their steps, explained by their stacks, and ended only if asked for."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import nvidia_smi
import pytest
from conftest import commit, wait_for
from test_cluster import BORROW_TORCH
from webhook import webhook  # noqa: F401 (a fixture)

from berg import BergError, states
from berg.machine import profile as evidence
from berg.machine import watchdogs
from berg.machine.watchdogs import Pulse
from berg.states import Autopsy

MINUTE = 60
# Rank 1 sleeps in its evaluation, the others wait for it in a collective of gloo.
TRAIN = """
import json, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def evaluate():
    time.sleep(1000)

def train_step(step):
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        with open(os.environ["BERG_RESULTS_DIR"] + "/metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": step}) + chr(10))
    time.sleep(0.5)

for step in range(8):
    train_step(step)
if rank == 1:
    evaluate()
train_step(8)
"""


# --- when


def looks(pulse: Pulse, *steps: tuple[float, int]) -> float:
    """Return for how long it did not move, after looks at these minutes that see these steps."""
    for minute, step in steps:
        silent = pulse.look(("step", step), minute * MINUTE)
    return silent / MINUTE


def test_the_first_step_may_take_as_long_as_it_wants():
    pulse = Pulse()
    assert looks(pulse, (0, 0), (600, 0)) == 0
    assert looks(pulse, (601, 1), (621, 1)) == 20


@pytest.mark.parametrize("quiet", [10, 15])
def test_a_compile_and_an_evaluation_are_no_hang(quiet):
    pulse = Pulse()
    looks(pulse, (0, 0), (1, 1), (2, 2))
    assert looks(pulse, (2 + quiet, 2)) == quiet
    assert quiet * MINUTE <= pulse.limit(1200, 0)
    looks(pulse, (2 + quiet, 3))
    assert pulse.limit(1200, 0) == 8 * quiet * MINUTE, "it was quiet for so long once"


def test_the_limit():
    pulse = Pulse()
    looks(pulse, (0, 0), (10, 1), (11, 2))
    assert pulse.limit(1200, 0) == 1200 and pulse.longest == MINUTE, "the first step is no pause"
    assert pulse.limit(1200, 90) == 90, "--max-silence"


def test_what_counts_as_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdogs, "RESULTS", tmp_path)
    (tmp_path / "log").write_text("line\n")
    machine = SimpleNamespace(log=tmp_path / "log")
    attempt = SimpleNamespace(job=SimpleNamespace(results_dir="r"), machine=machine)
    assert watchdogs.mark_of(attempt) == ("line", 5)
    (tmp_path / "r").mkdir()
    file = tmp_path / "r/metrics.jsonl"
    for line, mark in (
        ('{"step": 3, "loss": 1}\n', 3),
        ('{"step": 3, "heartbeat": 1}\n', 3),
        ('{"iter": 4}\n{"half', 4),
    ):
        with file.open("a") as rows:
            rows.write(line)
        assert watchdogs.mark_of(attempt) == ("step", mark)
    file.write_text('{"loss": 1}\n')
    assert watchdogs.mark_of(attempt) == ("step", 12), "without steps each line is one"


# --- what is shown


def of(machine: str, *processes: tuple[int, str]) -> Autopsy:
    rows = [[str(rank), "7", place] for rank, place in processes]
    return Autopsy(machine, "2026-11-26T00:00:00Z", rows)


REDUCE, EVALUATE = "all_reduce (train.py:210)", "evaluate (train.py:214)"


def test_the_smallest_group_is_named_first():
    many = [of(f"m-{n}", (2 * n, REDUCE), (2 * n + 1, REDUCE)) for n in range(3)]
    many[1].processes[1][2] = EVALUATE
    assert (
        states.odd_one_out(many) == f"rank 3 (m-1) is in {EVALUATE}, the 5 others are in {REDUCE}"
    )
    many[2].processes[0][2] = EVALUATE
    assert states.odd_one_out(many) == f"2 ranks are in {EVALUATE}, the 4 others are in {REDUCE}"
    two = [of("m-0", (0, REDUCE)), of("m-1", (1, EVALUATE))]
    assert states.odd_one_out(two) == f"rank 0 (m-0) is in {REDUCE}, rank 1 (m-1) is in {EVALUATE}"
    assert states.odd_one_out([of("m", *((n, f"f (a.py:{n})") for n in range(9)))]).endswith(
        "the others are in 6 other places"
    )
    assert states.odd_one_out([]) == "" and states.odd_one_out([of("m", (0, ""))]) == ""


def test_where_stacks_agree_nccls_counts_are_named():
    same = [of(f"m-{n}", (n, REDUCE)) for n in range(2)]
    assert states.odd_one_out(same) == f"all 2 ranks are in {REDUCE}"
    same[0].texts["nccl"] = "7 ranks have launched up to operation 12\n"
    assert states.odd_one_out(same) == f"all 2 ranks are in {REDUCE}", "they agree"
    same[1].texts["nccl"] = "1 ranks have launched up to operation 11\n"
    assert states.odd_one_out(same).endswith(
        "; NCCL: 7 ranks have launched up to operation 12, 1 ranks have launched up to operation 11"
    )


def test_a_damaged_autopsy_is_refused():
    good = {"machine": "m", "time": "", "processes": [["0", "7", "f\x1b[2J (a.py:1)"]]}
    assert "\x1b" not in states.read_autopsy(json.dumps(good).encode()).processes[0][2]
    for bad in ([], {**good, "processes": [["0"]]}, {**good, "texts": {"a": 1}}, {"machine": "m"}):
        with pytest.raises(ValueError):
            states.read_autopsy(json.dumps(bad).encode())


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([("evaluate", "/code/train.py", 8)], "evaluate (train.py:8)"),
        (
            [
                ("_wait", "/venv/lib/python3.11/site-packages/torch/dist.py", 9),
                ("all_reduce", "/venv/lib/python3.11/site-packages/torch/dist.py", 3),
                ("wrapper", "/venv/lib/python3.11/site-packages/torch/logger.py", 2),
                ("train_step", "/code/train.py", 6),
                ("<module>", "/code/train.py", 20),
            ],
            "all_reduce (train.py:6)",
        ),
        ([("_bootstrap", "/usr/lib/python3.11/threading.py", 1)], "_bootstrap (threading.py:1)"),
        ([], ""),
    ],
)
def test_what_a_stack_does(frames, place):
    rows = [dict(zip(("name", "filename", "line"), each, strict=True)) for each in frames]
    assert evidence.place(rows) == place


# --- what is recorded


def test_ranks_are_the_processes_with_one_of_their_own():
    """Workers of a data loader have their parent's, and are not listed; without ranks, the pythons
    that no other one started."""
    child = "import os, time; os.fork(); time.sleep(100)"
    run = f"{sys.executable} -c '{child}'"
    script = f"RANK=3 {run} & RANK=12 {run} & wait"
    plain = {key: value for key, value in os.environ.items() if key != "RANK"}
    shells = [
        subprocess.Popen(["bash", "-c", text], start_new_session=True, env=plain)
        for text in (script, f"{run}; true")
    ]
    try:
        wait_for(lambda: len(evidence.keeper.below(shells[0].pid)) == 4)
        assert sorted(evidence.ranks(shells[0].pid, 5, False).values()) == ["12", "3"]
        everywhere = evidence.ranks(0, 5, False)
        below = [pid for pid in everywhere if pid in evidence.keeper.below(shells[0].pid)]
        assert sorted(everywhere[pid] for pid in below) == ["12", "3"], "as of mpirun, through ssh"
        wait_for(lambda: len(evidence.keeper.below(shells[1].pid)) == 2)
        assert [*evidence.ranks(shells[1].pid, 5, False).values()] == ["5"]
    finally:
        for shell in shells:
            os.killpg(shell.pid, 9)
            shell.wait()


def test_processes_of_a_container_are_found_from_outside(tmp_path, monkeypatch):
    """They are below docker's daemon. One that has ended has the number 0, which is all."""
    run = f"RANK=2 {sys.executable} -c 'import time; time.sleep(100)'; true"
    shell = subprocess.Popen(["bash", "-c", run], start_new_session=True)
    client = subprocess.Popen(["sleep", "100"])
    docker = tmp_path / "docker"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    try:
        wait_for(lambda: len(evidence.keeper.below(shell.pid)) == 1)
        for pid, ranks in ((shell.pid, ["2"]), (0, [])):
            docker.write_text(f'#!/bin/sh\n[ "$4" = berg-command ] && echo {pid}\n')
            docker.chmod(0o755)
            assert [*evidence.ranks(client.pid, 0, True).values()] == ranks
    finally:
        client.kill()
        client.wait()
        os.killpg(shell.pid, 9)
        shell.wait()


def test_nccls_ras_answers_over_plain_tcp(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(evidence, "RAS_PORT", server.getsockname()[1])

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(100) == b"VERBOSE STATUS\n"
                connection.sendall(b"NCCL version 2.30.7\n")

        threading.Thread(target=answer, daemon=True).start()
        assert evidence.ask_nccl() == "NCCL version 2.30.7\n"


RECORDER = """
import sys, time
open(sys.argv[1] + ".pipe").read(1)
open(sys.argv[1], "w").write("dump")
time.sleep(100)
"""


def test_a_flight_recorder_is_asked_through_its_pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "FLIGHT", f"{tmp_path}/flight_")
    os.mkfifo(tmp_path / "flight_3.pipe")
    process = subprocess.Popen([sys.executable, "-c", RECORDER, f"{tmp_path}/flight_3"])
    try:

        def flown() -> str:
            with contextlib.suppress(BergError):  # it has not opened its pipe yet
                return evidence.fly({process.pid: "3"}, tmp_path / "m")
            return ""

        assert wait_for(flown) == "of ranks 3"
        assert (tmp_path / "m.flight_3").read_text() == "dump"
        with pytest.raises(BergError, match="no process has a flight recorder"):
            evidence.fly({os.getpid(): "9"}, tmp_path / "m")
    finally:
        process.kill()
        process.wait()


def test_a_part_that_hangs_or_fails_is_recorded_as_failed(monkeypatch):
    monkeypatch.setattr(evidence, "PART_SECONDS", 0.2)
    found = Autopsy("m", "")
    evidence.record(found, "slow", lambda: time.sleep(2) or "late")
    evidence.record(found, "missing", lambda: evidence.printed("no-such-program"))
    evidence.record(found, "good", lambda: "text")
    assert found.failed == {
        "slow": "it did not answer within 0.2 s",
        "missing": "there is no no-such-program here",
    }
    assert found.texts == {"good": "text"}


# --- whole jobs


def autopsies(berg, name: str) -> dict[str, Autopsy]:
    found = berg.objects(f"berg_results/{name}/autopsy/")
    read = [states.read_autopsy(data) for path, data in found.items() if path.endswith(".json")]
    return {each.machine: each for each in read}


@pytest.mark.slow
def test_of_two_machines_the_rank_that_does_something_else_is_named(berg, webhook):  # noqa: F811
    torch = pytest.importorskip("torch")
    (berg.repo / "train.py").write_text(TRAIN)
    setup = BORROW_TORCH.format(borrowed=Path(torch.__file__).parent.parent)
    (berg.repo / "setup.sh").write_text(setup)
    commit(berg.repo)
    wishes = ["-g", "0", "-m", "2", "--each", "--install-script", "setup.sh"]
    wishes += ["--notify", webhook.url]
    started = berg.start("run", *wishes, "-n", "pair", "torchrun train.py", hang_seconds=30)
    assert started.wait(60) == 0, started.communicate()
    wait_for(lambda: "rank" in berg.state("pair")["hang"], 120, what="the autopsy")
    hang = berg.state("pair")["hang"]
    assert "rank 1 (pair-1) is in evaluate (train.py:8)" in hang
    assert "rank 0 (pair-0) is in all_reduce (train.py:11)" in hang
    shown = berg("show", "pair").stdout
    assert "no step for " in shown and "berg_results/pair/autopsy/" in shown
    assert "seems to hang" in berg("list").stdout
    wait_for(lambda: webhook.told)
    assert berg.state("pair")["state"] == "RUNNING", "it is only told"
    found = autopsies(berg, "pair")
    assert found.keys() == {"pair-0", "pair-1"}
    assert "evaluate (train.py:8)" in found["pair-1"].texts["stacks"]
    asked = berg("profile", "pair", "--stacks")
    assert asked.returncode == 0 and "rank 1 (pair-1) is in evaluate" in asked.stderr, asked.stderr
    assert len(webhook.told) == 1 and "seems to hang" in webhook.told[0][1]["text"]
    berg("kill", "pair", "--now")


STUCK = """
import os, time
print("starts", flush=True)
def work():
    file = open(os.environ["BERG_RESULTS_DIR"] + "/metrics.jsonl", "a", buffering=1)
    for step in range(2):
        print('{"step": %d}' % step, file=file)
        time.sleep(2.5)
    if not os.path.exists("/tmp/again") and os.environ["BERG_ATTEMPT"] == "1":
        wait_for_ever()
def wait_for_ever():
    time.sleep(1000)
work()
"""


def test_it_is_ended_or_restarted_if_that_was_asked_for(berg):
    (berg.repo / "stuck.py").write_text(STUCK)
    commit(berg.repo)
    limit = ["-g", "0", "--max-silence", "5s"]
    again = ["--on-hang", "restart", "--restart-on-failure", "1"]
    one = berg("run", *limit, "--on-hang", "fail", "-n", "ended", "python3 stuck.py")
    two = berg("run", *limit, *again, "-n", "again", "python3 stuck.py")
    assert one.returncode == two.returncode == 0, one.stderr + two.stderr
    assert berg("wait", "ended").returncode == 143
    state = berg.state("ended")
    assert (
        state["state"] == "FAILED"
        and "no step for 5s; rank 0 (ended) is in wait_for_ever" in (state["reason"])
    )
    assert "wait_for_ever (stuck.py:12)" in autopsies(berg, "ended")["ended"].texts["stacks"]
    assert berg("wait", "again").returncode == 0, berg.log("again")
    state = berg.state("again")
    assert (state["attempt"], state["failures"], state["hang"]) == (2, 1, "")
    assert autopsies(berg, "again").keys() == {"again"}


def test_what_goes_together(berg):
    done = berg("run", "-g", "0", "--on-hang", "fail", "true")
    assert "--on-hang needs --max-silence" in done.stderr
    done = berg("run", "-g", "0", "--max-silence", "5m", "--on-hang", "restart", "true")
    assert "--on-hang restart needs --restart-on-failure" in done.stderr


@pytest.mark.slow
def test_watts_are_told_and_it_is_taken_back(berg):
    options = nvidia_smi.bring(berg.repo, nvidia_smi.busy(100))[2:]
    low = "sed -i s/310.50/71.00/ $(cat /tmp/answer)"
    step = 'echo "{\\"step\\": $i}" >>$BERG_RESULTS_DIR/metrics.jsonl'
    steps = f"for i in 1 2 3 4; do {step}; sleep 1; done"
    command = f"{steps}; {low}; sleep 25; i=5; {step}; sleep 100"
    wishes = ["-g", "1", "-t", "t4", *options, "--sample-seconds", "1"]
    started = berg.start("run", "-n", "watts", *wishes, command, hang_seconds=10)
    assert started.wait(60) == 0, started.communicate()
    wait_for(lambda: berg.state("watts")["hang"], 90)
    assert "GPUs 100 % busy at 71 W (usual 310 W)" in berg.state("watts")["hang"]
    wait_for(lambda: not berg.state("watts")["hang"], 60)
    found = autopsies(berg, "watts")["watts"]
    assert "71.00" in found.texts["nvidia-smi"] and "memory and disks" in found.texts
    assert {"nccl", "flight recorder"} <= found.failed.keys()
    berg("kill", "watts", "--now")
