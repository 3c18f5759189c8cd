"""A look at the network between the machines of a job, before its command runs on their GPUs: an
all_gather by the job's own PyTorch on all of them, for some seconds.

A slow network is the usual reason why several machines train no faster than one, and nothing says
so. What it measured is in the job's state. Not covered: finding out which of the machines is slow.
"""

import json
import re
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from berg import BergError
from berg.job import Job
from berg.machine import boot, fabric, installation
from berg.machine.attempt import Attempt
from berg.machine.environment import PROGRAM, environment
from berg.machine.process import end_process

SCRIPT = PROGRAM / "allgather.py"
SECONDS = 180  # for importing PyTorch, connecting and measuring
PORTS = 1000  # between the command's port and this one's
# GB/s of each GPU that a network must reach, about 3/4 of what was measured on such machines (A4)
# or is to be expected (A3 Ultra): https://docs.cloud.google.com/ai-hypercomputer/docs/nccl/test-vms
FLOOR = 280
NO_TORCH = re.compile(r"^(ModuleNotFoundError|ImportError):", re.M)
RESULT = re.compile(r"^berg-all-gather (.+)$", re.M)


def is_wanted(this: Job) -> bool:
    several = this.num_machines > 1 and this.gpus_per_machine > 0 and this.place == "gce"
    return several and this.spec.preflight != "off"


def check(attempt: Attempt) -> None:
    """Measure the network together with the other machines; on the machine that leads note the
    result, and raise BergError if it is too slow and the job is to fail then.
    """
    if not is_wanted(attempt.job):
        return
    output = run(attempt)
    if not attempt.leads:
        return
    text, is_bad = judge(attempt.job, output)
    attempt.say(f"Network between the machines: {text}")
    attempt.states.write(network=text)
    if is_bad and attempt.job.spec.preflight == "fail":
        raise BergError(f"the network between the machines: {text} (--preflight)")


def run(attempt: Attempt) -> str:
    """Return what this machine's part of the all_gather printed, also if it failed."""
    this, variables = attempt.job, environment(attempt)
    words = ["python", str(SCRIPT)]
    variables |= {"MASTER_PORT": str(int(variables["MASTER_PORT"]) + PORTS), "NCCL_DEBUG": "INFO"}
    if this.docker:
        names = installation.names_in_container(variables, {*this.env, "NCCL_DEBUG"})
        one = replace(this, cmd=" ".join(words))
        words = installation.container_command(one, Path("/"), names)
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=boot.ROOT,
                env=variables,
            )
        except OSError as error:
            return f"ImportError: {error}"
        end = time.monotonic() + SECONDS
        try:
            while process.poll() is None and time.monotonic() < end:
                attempt.pause(0.2)
        finally:
            end_process(process, 2)
            if this.docker:
                installation.remove_container()
        output.seek(0)
        return output.read().decode(errors="replace")


def judge(this: Job, output: str) -> tuple[str, bool]:
    """Return what the all_gather's output says, in words, and whether that is a bad sign."""
    found = RESULT.search(output)
    if not found:
        if NO_TORCH.search(output):
            return "not measured, as there is no PyTorch here", False
        last = (output.strip().splitlines() or [f"it printed nothing within {SECONDS} s"])[-1]
        return f"all_gather failed: {last}", True
    speed = json.loads(found[1])["bytes_per_second"] / 1e9
    machines = f"{this.num_machines} x {this.gpus_per_machine} {this.gpu_type}"
    text = f"{machines}: {speed:.3g} GB/s all_gather"
    if not fabric.is_wanted(this):
        return text, False
    if "Using network gIB" not in output:
        return f"{text}, over TCP: NCCL does not use RoCE", True
    return (f"{text}, under the {FLOOR} of such machines", True) if speed < FLOOR else (text, False)
