"""Accelerators that do nothing: said in the job's state, for lists, and with --min-utilization the
end of the job.

A machine is judged by its busiest accelerator, a job by its busiest machine, from when the command
runs. Where no accelerator tells how busy it is, nothing is concluded. Not covered: what is busy for
nothing.
"""

import contextlib
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from berg.machine import boot, cluster, report, usage
from berg.machine.attempt import Attempt
from berg.machine.idle import BUSY_GPU
from berg.machine.outcome import Ending

NOTICE = 600  # seconds before its end in which a job is warned
MOST = 8  # machines that a state names
UNKNOWN = 3  # samples without a word of an accelerator, after which that is said


@dataclass
class Meter:
    """What the samples of this machine said so far. Times are seconds since 1970."""

    busy_at: float = field(default_factory=time.time)  # when an accelerator did something
    # when one did as much as --min-utilization asks for
    above_at: float = field(default_factory=time.time)
    unknown: int = 0  # samples in a row in which none told
    warned: bool = False


def watch(attempt: Attempt) -> None:
    """Keep what this machine is busy with, and see what it wastes, until its part of the job ends."""
    this, meter = attempt.job, Meter()
    file, attempt.state.idle = attempt.usage_file, {}
    if not this.sample_seconds:
        return
    reporter = report.Reporter(attempt.bucket.config, attempt.machine, attempt.say)
    for sample in usage.samples(this.sample_seconds, attempt.mirrors.done.wait, bool(this.tpu)):
        usage.append(file, sample)
        if attempt.mirrors.done.is_set():
            break
        if this.monitoring and not boot.POD:
            reporter.tell(sample)
        with contextlib.suppress(Exception):  # the network may fail for a while
            look(attempt, meter, sample)
    attempt.state.idle = {}


def runs(attempt: Attempt) -> bool:
    """Whether all is ready for the command."""
    alone = attempt.member.is_alone
    return attempt.state.state == "RUNNING" if alone else attempt.member.summary["phase"] != "UP"


def look(attempt: Attempt, meter: Meter, sample: dict[str, Any]) -> None:
    """Learn from a sample; on the machine that leads, see how the whole job does."""
    now, percent, asked = sample["time"], usage.busiest(sample), attempt.job.min_utilization
    if percent is None or percent > BUSY_GPU or not runs(attempt):
        meter.busy_at = now
    if percent is None or percent >= asked or not runs(attempt):
        meter.above_at = now
    if runs(attempt):
        meter.unknown = meter.unknown + 1 if percent is None else 0
    if asked and meter.unknown == UNKNOWN:
        attempt.say(
            "No accelerator here tells how busy it is: until one does, --min-utilization does nothing"
        )
    # for the next heartbeat
    attempt.member.summary |= {
        "busy_at": str(meter.busy_at),
        "above_at": str(meter.above_at),
    }
    if not attempt.leads or attempt.stopping.ending:
        return
    machines = {attempt.machine.name: attempt.member.summary}
    if not attempt.member.is_alone:
        machines |= {name: blob.metadata for name, blob in cluster.phases(attempt.member).items()}
    busy = {name: float(about.get("busy_at", now)) for name, about in machines.items()}
    longest = sorted(
        (at, name) for name, at in busy.items() if now - at >= attempt.job.marked_seconds
    )
    idle = {name: iso(at) for at, name in longest[:MOST]}
    if idle != attempt.state.idle:
        attempt.states.write_quietly(idle=idle)
    if asked:
        judge(
            attempt,
            meter,
            now - max(float(about.get("above_at", now)) for about in machines.values()),
        )


def judge(attempt: Attempt, meter: Meter, quiet: float) -> None:
    """Warn of the end of a job that was quiet for so many seconds, and end it."""
    this = attempt.job
    left = this.waste_seconds - quiet
    below = f"its accelerators stay below {this.min_utilization} %"
    if left <= 0:
        minutes = f"for {this.waste_seconds / 60:g} minutes (--min-utilization)"
        attempt.stop(
            Ending("FAILED", f"its accelerators stayed below {this.min_utilization} % {minutes}")
        )
    elif left <= min(NOTICE, this.waste_seconds / 2) and not meter.warned:
        meter.warned = True
        attempt.say(
            f"Warning: {below}; the job ends in {left / 60:.1f} minutes, unless they do more"
        )
        attempt.states.write_quietly(
            reason=f"{below}; it ends at {iso(time.time() + left)[11:16]} UTC, unless they do more"
        )
    elif left > min(NOTICE, this.waste_seconds / 2) and meter.warned:
        meter.warned = False
        attempt.say("The accelerators do something again")
        attempt.states.write_quietly(reason="")


def iso(at: float) -> str:
    return (
        datetime.fromtimestamp(at, timezone.utc)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z")
    )
