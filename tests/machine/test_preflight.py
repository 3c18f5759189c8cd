"""The all_gather between machines with GPUs, before their command runs."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import commit, wait_for
from test_cluster import BORROW_TORCH

from berg import computer
from berg.machine import preflight
from berg.machine.program import allgather
from berg.spec import JobSpec

L4 = ("-m", "2", "-t", "l4", "--each", "--max-hours", "1")
TORCH = ("--install-script", "setup.sh")
NAMES = [f"near-{rank}" for rank in range(4)]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")


def the_job(machine_type: str = "a3-ultragpu-8g", **more) -> SimpleNamespace:
    about = {"num_machines": 2, "gpus_per_machine": 8, "gpu_type": "h200", "place": "gce"}
    about |= {"job_name": "near", "spec": JobSpec(), **more}
    return SimpleNamespace(machine_type=machine_type, **about)


def printed(speed: float, *lines: str) -> str:
    result = json.dumps({"bytes_per_second": speed * 1e9, "ranks": 16})
    return "\n".join([*lines, f"berg-all-gather {result}", ""])


@pytest.mark.parametrize(
    ("output", "machine_type", "says", "is_bad"),
    [
        (printed(341, "NCCL INFO Using network gIB"), "a3-ultragpu-8g", "2 x 8 h200: 341 GB/s all_gather", False),
        (printed(200, "NCCL INFO Using network gIB"), "a3-ultragpu-8g", "under the 280 of such machines", True),
        (printed(12.5, "NCCL INFO Using network Socket"), "a3-ultragpu-8g", "over TCP: NCCL does not use RoCE", True),
        (printed(1.5), "g2-standard-24", "2 x 8 h200: 1.5 GB/s all_gather", False),
        ("Traceback\nModuleNotFoundError: No module named 'torch'", "a3-ultragpu-8g", "no PyTorch", False),
        ("Traceback\nRuntimeError: NCCL error", "g2-standard-24", "all_gather failed: RuntimeError: NCCL error", True),
        ("", "g2-standard-24", "it printed nothing within 180 s", True),
    ],
)  # fmt: skip
def test_what_the_output_means(output, machine_type, says, is_bad):
    found = preflight.judge(the_job(machine_type), NAMES, output, {})
    assert says in found.text and found.is_bad is is_bad
    assert found.has_failed is ("failed" in says or "nothing" in says) and not found.odd


@pytest.mark.parametrize("output", [printed(12.5), "ModuleNotFoundError: No module named 'torch'"])
def test_a_machine_that_cannot_use_roce_is_the_odd_one(output):
    why = "7 of 8 interfaces for RoCE are up"
    found = preflight.judge(the_job(), NAMES, output, {"near-1": why})
    assert found.text.endswith(f", over TCP: near-1: {why}")
    assert found.is_bad and found.odd == "near-1"
    found = preflight.judge(
        the_job(), NAMES, output, {"near-1": why, "near-0": "gIB is not installed"}
    )
    assert found.text.endswith(", over TCP: near-0: gIB is not installed (and 1 more)")
    assert found.is_bad and found.odd == ""


@pytest.mark.parametrize(
    ("pairs", "odd"),
    [
        ([(0, 1, 90e9), (1, 2, 80e9), (2, 0, 340e9)], "near-1"),
        ([(0, 1, 90e9), (2, 3, 340e9), (1, 2, 80e9), (3, 0, 340e9)], "near-1"),
        ([(0, 1, 90e9), (2, 3, 90e9), (1, 2, 80e9), (3, 0, 340e9)], ""),  # 1 and 2
        ([(0, 1, 340e9), (1, 2, 340e9), (2, 0, 340e9)], ""),  # only all together are slow
        ([(0, 1, 90e9), (1, 2, 340e9), (2, 0, 340e9)], ""),  # one way between two is slow
        (None, ""),
    ],
)
def test_the_odd_machine_is_slow_with_each_other(pairs, odd):
    lines = ["NCCL INFO Using network gIB"]
    lines += [] if pairs is None else [f"berg-pairs {json.dumps(pairs)}"]
    found = preflight.judge(the_job(num_machines=4), NAMES, printed(100, *lines), {})
    assert found.is_bad and found.odd == odd
    assert found.text.endswith(f"; {odd} is the slow one" if odd else "of such machines")


@pytest.mark.parametrize("nodes", range(3, 9))
def test_each_machine_is_in_two_pairs_and_in_one_at_a_time(nodes):
    rounds = allgather.rounds_of_pairs(nodes)
    for pairs in rounds:
        at_once = [node for pair in pairs for node in pair]
        assert len(at_once) == len({*at_once})
    counts = Counter(node for pairs in rounds for pair in pairs for node in pair)
    assert counts == dict.fromkeys(range(nodes), 2)


@needs_root
def test_pairs_are_measured_if_all_together_are_slow(tmp_path):
    pytest.importorskip("torch")
    common = {"BERG_NUM_NODES": "3", "PET_NPROC_PER_NODE": "1", "BERG_FLOOR": "1e15"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(computer.free_port())}
    common |= {"GLOO_SOCKET_IFNAME": "lo"}
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # PyTorch asks for names
    script = 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"'
    words = ["unshare", "--mount", "sh", "-ec", script, "sh", str(tmp_path / "resolv.conf")]
    words += [sys.executable, str(preflight.SCRIPT)]
    running = [
        subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **common, "BERG_NODE_RANK": str(node)},
        )
        for node in range(3)
    ]
    output, *_ = [each.communicate(timeout=240)[0] for each in running]
    assert preflight.RESULT.search(output), output
    pairs = json.loads(preflight.PAIRS.search(output)[1])
    assert [pair[:2] for pair in pairs] == [[0, 1], [1, 2], [2, 0]]
    assert all(speed > 0 for _, _, speed in pairs)


@pytest.mark.parametrize(
    "more",
    [{"num_machines": 1}, {"gpus_per_machine": 0}, {"place": "gke"}, {"spec": JobSpec(preflight="off")}],
)  # fmt: skip
def test_other_jobs_measure_nothing(more):
    this = the_job()
    assert preflight.is_wanted(this)
    vars(this).update(more)
    assert not preflight.is_wanted(this)


@pytest.fixture
def pytorch(berg):
    """The tests' own PyTorch, for machines: theirs is a stub of it."""
    torch = pytest.importorskip("torch")
    script = BORROW_TORCH.format(borrowed=Path(torch.__file__).parent.parent)
    (berg.repo / "setup.sh").write_text(script)
    commit(berg.repo)


@pytest.mark.usefixtures("pytorch")
def test_two_machines_measure_their_network_by_the_job_s_pytorch(berg):
    ran = berg("run", *L4, *TORCH, "-n", "pair", "--wait", "true")
    assert ran.returncode == 0, ran.stderr
    assert "2 x 1 l4: " in berg.state("pair")["network"]
    assert "GB/s all_gather" in berg("show", "pair").stdout


@pytest.mark.slow
@pytest.mark.usefixtures("pytorch")
def test_an_all_gather_that_fails_ends_the_job_if_it_is_to(berg):
    broken = ("--env", "TORCH_DISTRIBUTED_DEBUG=WRONG")
    ran = berg("run", *L4, *TORCH, *broken, "--preflight", "fail", "-n", "bad", "--wait", "true")
    assert ran.returncode == 1
    state = berg.state("bad")
    assert state["state"] == "FAILED" and "the network between the machines" in state["reason"]


def test_without_pytorch_the_command_runs(berg):
    ran = berg("run", *L4, "--preflight", "fail", "-n", "bare", "--wait", "true")
    assert ran.returncode == 0, ran.stderr
    assert berg.state("bare")["network"] == "not measured, as there is no PyTorch here"


# --- a machine that is the odd one, or lost

# Eight devices for RoCE and gIB. On the first machine of a rank one device is down.
DEVICES = """
down=
[ "$BERG_NODE_RANK $BERG_ATTEMPT" != "{rank} 1" ] || down=3
mount -t tmpfs none /sys/class
for n in 0 1 2 3 4 5 6 7; do
    mkdir -p /sys/class/infiniband/mlx5_$n/ports/1
    [ "$n" = "$down" ] && state="1: DOWN" || state="4: ACTIVE"
    echo "$state" >/sys/class/infiniband/mlx5_$n/ports/1/state
done
mkdir -p /usr/local/gib/lib64 /usr/local/gib/scripts
echo export NCCL_NET=gIB >/usr/local/gib/scripts/set_nccl_env.sh
"""
SHOWN = 'echo "attempt $BERG_ATTEMPT of $BERG_NODE_RANK uses $NCCL_NET"'


def use_script(berg, text: str) -> None:
    (berg.repo / "setup.sh").write_text(text)
    commit(berg.repo)


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_spot_machine_that_is_the_odd_one_is_replaced(berg, rank):
    use_script(berg, DEVICES.format(rank=rank))
    options = ("-m", "2", "-t", "h200", "-g", "8", "--max-hours", "1", "--spot", "--each", *TORCH)
    ran = berg("run", *options, "--preflight", "fail", "-n", "odd", "--wait", SHOWN)
    assert ran.returncode == 0, ran.stderr + berg.log("odd")
    state, log = berg.state("odd"), berg.log("odd")
    assert (state["state"], state["attempt"], state["restarts"]) == ("SUCCEEDED", 2, 1), log
    assert state["replaced"] == f"odd-{rank}" and "is slower than" in state["attempts"][0][2]
    assert f"over TCP: odd-{rank}: 7 of 8 interfaces for RoCE are up" in log
    assert "attempt 2 of 0 uses gIB" in log and "attempt 1 of" not in log
    assert state["network"] == "not measured, as there is no PyTorch here"


@needs_root
@pytest.mark.slow
def test_elsewhere_the_odd_one_is_named_and_no_machine_uses_roce(berg):
    use_script(berg, DEVICES.format(rank=1))
    options = ("-m", "2", "-t", "h200", "-g", "8", "--max-hours", "1", "--flex", "--each", *TORCH)
    ran = berg("run", *options, "-n", "odd", "--wait", SHOWN)
    log = berg.log("odd")
    assert ran.returncode == 0, ran.stderr + log
    assert "odd-1 is not replaced: only Spot machines and those of --wait-for-capacity are" in log
    assert "attempt 1 of 0 uses Socket" in log
    assert "over TCP: odd-1: 7 of 8" in berg.state("odd")["network"]


# An all_gather that fails once a machine is lost, in the first attempt.
BROKEN = """
import os, socket, time
if os.environ["BERG_ATTEMPT"] != "1":
    raise ImportError("no torch")
where = os.environ["BERG_HOSTS"].split(",")[{victim}], int(os.environ["MASTER_PORT"]) + 1
if os.environ["BERG_NODE_RANK"] == "{victim}":
    server = socket.create_server(("", where[1]))
    held = [server.accept() for _ in range(9)]
for _ in range(100):
    try:
        socket.create_connection(where).recv(1)
        break
    except OSError:
        time.sleep(0.1)
raise RuntimeError("Connection closed by peer")
"""
PUT_BROKEN = """
site=$(python -c 'import site; print(site.getsitepackages()[0])')
rm -rf $site/torch
cp broken.py $site/torch.py
"""
THREE = ("-m", "3", "-t", "l4", "--spot", "--each", "--max-hours", "1", "--preflight", "fail")


def lose_and_wait(berg, cloud, victim: int, is_time, how: str = "preempt") -> dict:
    """Run a job on three Spot machines, of which one is lost at a time; return its last state."""
    made = berg("run", *THREE, *TORCH, "-n", "lost", SHOWN)
    assert made.returncode == 0, made.stderr
    wait_for(is_time, 120, "the time to take a machine")
    grace = {"grace": 20} if how == "preempt" else {}
    cloud.call("POST", f"/_berg/instances/lost-{victim}/{how}", grace)
    wait_for(lambda: berg.state("lost")["finished_at"], 150, "the end")
    return berg.state("lost")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
def test_a_machine_that_is_lost_meanwhile_ends_the_attempt_not_the_job(berg, cloud, victim):
    (berg.repo / "broken.py").write_text(BROKEN.format(victim=victim))
    use_script(berg, PUT_BROKEN)
    measures = "Measuring the network between the machines"
    state = lose_and_wait(berg, cloud, victim, lambda: berg.log("lost").count(measures) == 3)
    assert (state["state"], state["attempt"], state["restarts"]) == ("SUCCEEDED", 2, 1), state
    assert "attempt 2 of 0" in berg.log("lost") and "attempt 1 of" not in berg.log("lost")
    assert "preempted" in state["attempts"][0][2]


@pytest.mark.slow
def test_a_machine_that_waits_for_another_begins_the_next_attempt_when_it_is_lost(berg, cloud):
    use_script(berg, '[ "$BERG_NODE_RANK $BERG_ATTEMPT" != "2 1" ] || sleep 600\necho is there\n')

    def is_time() -> bool:
        return berg.log("lost").count("\nis there\n") == 2

    state = lose_and_wait(berg, cloud, 2, is_time, "crash")
    assert (state["state"], state["attempt"], state["restarts"]) == ("SUCCEEDED", 2, 1), state
