"""The all_gather between machines with GPUs, before their command runs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import commit
from test_cluster import BORROW_TORCH

from berg.machine import preflight
from berg.spec import JobSpec

L4 = ("-m", "2", "-t", "l4", "--each", "--max-hours", "1")
TORCH = ("--install-script", "setup.sh")


def the_job(machine_type: str = "a3-ultragpu-8g", **more) -> SimpleNamespace:
    about = {"num_machines": 2, "gpus_per_machine": 8, "gpu_type": "h200", "place": "gce"}
    return SimpleNamespace(machine_type=machine_type, spec=JobSpec(), **{**about, **more})


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
    text, bad = preflight.judge(the_job(machine_type), output)
    assert says in text and bad is is_bad


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
