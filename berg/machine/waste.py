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

from berg.machine import cluster, report, usage
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
    """Keep what this machine is busy with, and what it wastes, until its part of the job ends."""
    this, meter = attempt.job, Meter()
    file, attempt.state.idle = attempt.usage_file, {}
    if not this.sample_seconds:
        return
    reporter = report.Reporter(attempt.bucket.config, attempt.machine, attempt.say)
    for sample in usage.samples(this.sample_seconds, attempt.mirrors.done.wait, bool(this.tpu)):
        usage.append(file, sample)
        if attempt.mirrors.done.is_set():
            break
        if this.monitoring and not attempt.member.host.is_pod:
            reporter.send(sample)
        with contextlib.suppress(Exception):  # the network may fail for a while
            check_sample(attempt, meter, sample)
    attempt.state.idle = {}


def runs(attempt: Attempt) -> bool:
    """Whether all is ready for the command."""
    alone = attempt.member.is_alone
    return attempt.state.state == "RUNNING" if alone else attempt.member.summary["phase"] != "UP"


def check_sample(attempt: Attempt, meter: Meter, sample: dict[str, Any]) -> None:
    """Learn from a sample; on the machine that leads, see how the whole job does."""
    now = sample["time"]
    update(meter, now, usage.busiest(sample), attempt.job.min_utilization, runs(attempt))
    if attempt.job.min_utilization and meter.unknown == UNKNOWN:
        attempt.say(
            "No accelerator here tells how busy it is: until one does, --min-utilization does "
            "nothing"
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
    idle = longest_idle(machines, now, attempt.job.marked_seconds)
    if idle != attempt.state.idle:
        attempt.states.write_quietly(idle=idle)
    if attempt.job.min_utilization:
        quiet_since = max(float(about.get("above_at", now)) for about in machines.values())
        judge(attempt, meter, now - quiet_since)


def update(meter: Meter, now: float, percent: float | None, asked: int, is_running: bool) -> None:
    """Note what a sample says: use of the busiest accelerator, None where none tells it.

    Until the command runs, nothing counts as idle.
    """
    if not is_running:
        meter.busy_at = meter.above_at = now
        return
    if percent is None:
        meter.busy_at = meter.above_at = now
        meter.unknown += 1
        return
    meter.unknown = 0
    if percent > BUSY_GPU:
        meter.busy_at = now
    if percent >= asked:
        meter.above_at = now


def longest_idle(machines: dict[str, dict[str, str]], now: float, seconds: int) -> dict[str, str]:
    """Return the machines that were idle for so many seconds, and since when; the longest first."""
    busy = sorted((float(about.get("busy_at", now)), name) for name, about in machines.items())
    idle = {name: iso(at) for at, name in busy if now - at >= seconds}
    return dict(list(idle.items())[:MOST])


def judge(attempt: Attempt, meter: Meter, quiet: float) -> None:
    """Warn of the end of a job that was quiet for so many seconds, and end it."""
    this = attempt.job
    left = this.waste_seconds - quiet
    is_near = left <= min(NOTICE, this.waste_seconds / 2)
    if left <= 0:
        minutes = f"for {this.waste_seconds / 60:g} minutes (--min-utilization)"
        why = f"its accelerators stayed below {this.min_utilization} % {minutes}"
        attempt.stop(Ending("FAILED", why))
    elif is_near and not meter.warned:
        meter.warned = True
        warn(attempt, left)
    elif meter.warned and not is_near:
        meter.warned = False
        attempt.say("The accelerators do something again")
        attempt.states.write_quietly(reason="")


def warn(attempt: Attempt, left: float) -> None:
    """Say in the log and in the state that the job ends in so many seconds."""
    below = f"its accelerators stay below {attempt.job.min_utilization} %"
    attempt.say(f"Warning: {below}; the job ends in {left / 60:.1f} minutes, unless they do more")
    end = iso(time.time() + left)[11:16]
    attempt.states.write_quietly(reason=f"{below}; it ends at {end} UTC, unless they do more")


def iso(at: float) -> str:
    return (
        datetime.fromtimestamp(at, timezone.utc)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z")
    )
