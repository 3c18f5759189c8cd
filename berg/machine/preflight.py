"""A look at the network between the machines of a job, before its command runs on their GPUs: an
all_gather by the job's own PyTorch on all of them, for some seconds.

A slow network is the usual reason why several machines train no faster than one, and nothing says
so. What it measured is in the job's state. If a single machine of several is the reason, it deletes
itself once in the life of a job whose group then makes another one.

The machine that leads judges, and the others wait for its verdict: a machine, or GO.
"""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from berg import BergError
from berg.job import Job
from berg.machine import boot, fabric, installation, peers
from berg.machine.attempt import Attempt
from berg.machine.environment import PROGRAM, environment
from berg.machine.outcome import SLOW_NETWORK
from berg.machine.process import end_group

SCRIPT = PROGRAM / "allgather.py"
SECONDS = 180  # for importing PyTorch, connecting and measuring
PORTS = 1000  # between the command's port and this one's
# GB/s of each GPU that a network must reach, about 3/4 of what was measured on such machines (A4)
# or is to be expected (A3 Ultra): https://docs.cloud.google.com/ai-hypercomputer/docs/nccl/test-vms
FLOOR = 280
NO_TORCH = re.compile(r"^(ModuleNotFoundError|ImportError):", re.M)
RESULT = re.compile(r"^berg-all-gather (.+)$", re.M)
PAIRS = re.compile(r"^berg-pairs (.+)$", re.M)
GO = "-"  # a verdict: the command begins
# Seconds after a failed all_gather for the news that a machine was lost, and for the slow machine
# to go.
NEWS, LEAVING = 30, 60


@dataclass(frozen=True)
class Finding:
    """What was measured, in words."""

    text: str
    is_bad: bool = False
    has_failed: bool = False
    odd: str = ""  # the machine that is the reason, if there is a single one


def is_wanted(this: Job) -> bool:
    several = this.num_machines > 1 and this.gpus_per_machine > 0 and this.place == "gce"
    return several and this.spec.preflight != "off"


def check(attempt: Attempt) -> None:
    """Measure the network together with the other machines, and return when the command may begin.

    On the machine that leads note the result, and raise BergError if it is too slow and the job is
    to fail then. Raise MachineLost if a machine is lost or replaced.
    """
    if not is_wanted(attempt.job):
        return
    attempt.say("Measuring the network between the machines")
    output = run(attempt)
    if attempt.leads:
        names = [node.name for node in attempt.member.nodes]
        decide(attempt, judge(attempt.job, names, output, attempt.roce_faults))
    else:
        await_verdict(attempt)


def decide(attempt: Attempt, found: Finding) -> None:
    """Note what was found, and replace a machine, end the job, or let its command begin."""
    if found.has_failed:
        pause(attempt, NEWS)  # a machine that is lost ends this attempt, not the job
    attempt.say(f"Network between the machines: {found.text}")
    attempt.states.write(network=found.text)
    if found.odd and (why_not := why_not_replaced(attempt)):
        attempt.say(f"{found.odd} is not replaced: {why_not}")
    elif found.odd:
        attempt.say(f"{found.odd} deletes itself, so that its group replaces it")
        attempt.states.write(replaced=found.odd)
        peers.announce(attempt.member, verdict=found.odd)
        leave_if_odd(attempt, found.odd)
        pause(attempt, LEAVING)
        attempt.say(f"{found.odd} is still there; the job continues with it")
    if found.is_bad and attempt.job.spec.preflight == "fail":
        raise BergError(f"the network between the machines: {found.text} (--preflight)")
    peers.announce(attempt.member, verdict=GO)


def why_not_replaced(attempt: Attempt) -> str:
    """Return why the job continues with a slow machine; "" if the machine can be replaced."""
    if not attempt.job.is_replaced:
        return "only Spot machines and those of --wait-for-capacity are"
    if attempt.state.replaced:
        return f"{attempt.state.replaced} was, and that is done once"
    if attempt.state.restarts >= attempt.job.spec.max_restarts:
        return "the job has no restart left (--max-restarts)"
    return ""


def await_verdict(attempt: Attempt) -> None:
    """Wait until the machine that leads lets the command begin."""
    member, verdict = attempt.member, ""
    while verdict != GO:
        record = peers.phases(member).get(peers.first_machine(member))
        if record and peers.is_of_attempt(member, record):
            verdict = record.metadata.get("verdict", "")
        leave_if_odd(attempt, verdict)
        attempt.pause_together(0 if verdict == GO else 0.5)


def leave_if_odd(attempt: Attempt, verdict: str) -> None:
    """End this machine's part of the job if the verdict names it; the next pause raises Stopped."""
    if verdict == attempt.machine.name:
        attempt.stop(SLOW_NETWORK)


def pause(attempt: Attempt, seconds: float) -> None:
    """Wait unless the job or its attempt ends meanwhile, which raises an error."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        attempt.pause_together(0.3)


def run(attempt: Attempt) -> str:
    """Return what this machine's part of the all_gather printed, also if it failed."""
    this, variables = attempt.job, environment(attempt)
    words = ["python", str(SCRIPT)]
    variables |= {"MASTER_PORT": str(int(variables["MASTER_PORT"]) + PORTS), "NCCL_DEBUG": "INFO"}
    if fabric.is_wanted(this) and not attempt.roce_faults:
        variables["BERG_FLOOR"] = str(FLOOR * 1e9)  # under which pairs are measured, too
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
                attempt.pause_together(0.2)
        finally:
            if process.poll() is None:
                end_group(process.pid, 2)
            if this.docker:
                installation.remove_container()
        output.seek(0)
        return output.read().decode(errors="replace")


def judge(this: Job, names: list[str], output: str, faults: Mapping[str, str]) -> Finding:
    """Return what the all_gather's output says; `faults` are of machines that cannot use RoCE."""
    found, speed = measured(this, output)
    if faults:
        first, *others = sorted(faults)
        more = f" (and {len(others)} more)" if others else ""
        text = f"{found.text}, over TCP: {first}: {faults[first]}{more}"
        return replace(found, text=text, is_bad=True, odd="" if others else first)
    if not speed or not fabric.is_wanted(this):
        return found
    if "Using network gIB" not in output:
        return replace(found, text=f"{found.text}, over TCP: NCCL does not use RoCE", is_bad=True)
    if speed >= FLOOR:
        return found
    odd = odd_of(names, output)
    slow = f"; {odd} is the slow one" if odd else ""
    text = f"{found.text}, under the {FLOOR} of such machines{slow}"
    return replace(found, text=text, is_bad=True, odd=odd)


def measured(this: Job, output: str) -> tuple[Finding, float]:
    """Return what the all_gather's output says by itself, and its GB/s; 0 if there was none."""
    if found := RESULT.search(output):
        speed = json.loads(found[1])["bytes_per_second"] / 1e9
        machines = f"{this.num_machines} x {this.gpus_per_machine} {this.gpu_type}"
        return Finding(f"{machines}: {speed:.3g} GB/s all_gather"), speed
    if NO_TORCH.search(output):
        return Finding("not measured, as there is no PyTorch here"), 0
    last = (output.strip().splitlines() or [f"it printed nothing within {SECONDS} s"])[-1]
    return Finding(f"all_gather failed: {last}", is_bad=True, has_failed=True), 0


def odd_of(names: list[str], output: str) -> str:
    """Return the only machine that is slow with each other one with which it was measured; "" if
    there is none, or there are several.
    """
    found = PAIRS.search(output)
    best: dict[int, float] = {}
    for one, other, speed in json.loads(found[1]) if found else ():
        for rank in (one, other):
            best[rank] = max(best.get(rank, 0), speed / 1e9)
    slow = [rank for rank, speed in best.items() if speed < FLOOR]
    return names[slow[0]] if len(slow) == 1 else ""
