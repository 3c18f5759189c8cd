"""What happens outside of an attempt, which threads beside it watch, and which mostly ends it.

Somebody kills the job, Google takes the machine, another machine of the job dies or fails, the time
is up. Somebody may also ask for a profile, or want to log in.

Accelerators that do nothing: said in the job's state, for lists, and with --min-utilization the
end of the job.

A machine is judged by its busiest accelerator, a job by its busiest machine, from when the command
runs. Where no accelerator tells how busy it is, nothing is concluded. Not covered: what is busy for
nothing.

Successive halving without a controller: a job of a sweep ends itself if it is among the worst.

At each rung, a step of the job's own metrics, it writes its value into its state, reads what its
siblings had there in one list of states, and goes on if it is among the best 1/eta of those that
came so far: the rule of ASHA (Li et al., 2020, https://arxiv.org/abs/1810.05934), as stopping jobs
that run in place of promoting those that wait. Nobody waits for anybody, so that the first at a
rung goes on. What was decided stands in the state, and is not decided again after a restart.

Values come from metrics.jsonl in the job's results folder, and where that has no such metric, from
TensorBoard's event files anywhere in it.

Word that a job is over, or a sweep, to a webhook (--notify): Slack, Discord, or whatever takes
JSON.

Its URL is a secret, and lies with those of the job. It is told once, in bounded time, and what goes
wrong there is a line in the log. Not covered: jobs whose machine ends without a word (LOST), which
nobody is there to tell of.
"""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from berg import BergError, states
from berg.config import Config
from berg.google import events, secret
from berg.google.api import RETRIED
from berg.job import STOPPED, State
from berg.machine import boot, logins, peers, profile, usage
from berg.machine.attempt import Attempt
from berg.machine.idle import BUSY_GPU
from berg.machine.outcome import MAINTAINED, PREEMPTED, SHUT_DOWN, Ending
from berg.machine.process import RESULTS, Runs, end_group, start_thread

# Announced an hour before on most machines with GPUs, else a minute before.
MAINTENANCE = "TERMINATE_ON_HOST_MAINTENANCE"

Requests = dict[str, str]  # for profiles: when each was asked for, and how many seconds it takes


def watch(attempt: Attempt) -> None:
    """Act on what is written into this machine's metadata, until it has another job."""
    requests: Requests | None = None
    warned = False
    while not attempt.over.is_set():  # also while the last results are sent
        try:
            values = attempt.member.host.new_metadata(attempt.over)
        except (OSError, ValueError):
            attempt.over.wait(1)
            continue
        if ending := ending_in(attempt, values):
            attempt.stop(ending)
        attributes = values.get("attributes", {})
        requests = answer_requests(attempt, profile.asked(attempt.name, attributes), requests)
        if values.get("maintenanceEvent") == MAINTENANCE and not warned:
            warned = True
            warn_of_maintenance(attempt)
        with contextlib.suppress(OSError):  # a full disk
            boot.install_keys(attributes.get("ssh-keys", ""))


def answer_requests(attempt: Attempt, asked: Requests, before: Requests | None) -> Requests:
    """Take the profiles that were not asked for before, and return all requests.

    Those of the first look (`before` is None) were an earlier attempt's.
    """
    if before is None:
        return asked
    for when in asked.keys() - before.keys():
        start_thread(profile.answer, attempt, when, asked[when])
    return asked


def warn_of_maintenance(attempt: Attempt) -> None:
    """Say that Google is going to stop this machine, and tell the other machines."""
    attempt.say("Google is going to stop this machine, within the hour, to maintain its host")
    if attempt.member.is_alone:
        return
    with contextlib.suppress(Exception):  # the network; the others then know less
        peers.announce(attempt.member, maintenance="soon")


def ending_in(attempt: Attempt, values: dict[str, Any]) -> Ending | None:
    """Return how the job is to end if the metadata of this machine says so."""
    if killer := values.get("attributes", {}).get(f"berg-kill-{attempt.name}"):
        killer, _, now = killer.partition(" ")
        if now:
            abandon(attempt, killer)
        return Ending("KILLED", f"killed by {killer}", is_chosen=True)
    if who := who_stops(attempt, values):
        return Ending(STOPPED, f"stopped by {who}")
    if values.get("preempted") == "TRUE":
        return PREEMPTED
    is_maintained = values.get("maintenanceEvent") == MAINTENANCE
    if attempt.stopping.ending == SHUT_DOWN and is_maintained:
        return MAINTAINED
    return None


def who_stops(attempt: Attempt, values: dict[str, Any]) -> str:
    """Return who stops this devbox, "" if nobody does. The request is that of one attempt: it is
    still there when the machine starts again.
    """
    asked: str = values.get("attributes", {}).get(f"berg-stop-{attempt.name}", "")
    who, _, number = asked.rpartition(" ")
    if number != str(attempt.state.attempt):
        return ""
    return who


def abandon(attempt: Attempt, killer: str) -> None:
    """End this process and the command at once: nothing of them is wanted any more."""
    attempt.say(f"Killed by {killer}, at once")
    if attempt.runner.process:
        end_group(attempt.runner.process.pid, 0)
    os._exit(0)


def watch_others(attempt: Attempt) -> None:
    """End the job when a machine of it dies or fails; end this machine's part when the job ends."""
    while not attempt.mirrors.done.wait(peers.WATCH_INTERVAL):
        running = attempt.runner.command
        try:
            ending = peers.ending_of_part(attempt.member, lambda: attempt.is_over(("UPLOADING",)))
            ending = ending or ending_by_failure(attempt, running)
        except Exception as error:  # the network may fail for a while; the next look tells
            attempt.say(f"Cannot see the other machines: {error}")
        else:
            if ending:
                attempt.stop(ending)


def ending_by_failure(attempt: Attempt, running: Runs) -> Ending | None:
    """Return how the job ends because a command failed; None if none did, or the job goes on.

    In a job whose command may run again, what runs here is ended when its attempt is over, and the
    rest is the worker's.
    """
    member = attempt.member
    if not attempt.leads:
        if attempt.is_behind:
            attempt.break_off(running)
        return None
    failure = peers.lasting_failure(member, peers.phases(member))
    if attempt.job.is_replaced and not attempt.loss:
        attempt.loss = peers.loss(member)
    if attempt.loss:
        attempt.break_off(running)
        return None
    if failure and attempt.job.spec.restart_on_failure:
        attempt.break_off(running)
        return None
    return failure


def limit_time(attempt: Attempt) -> None:
    """Stop the job before Google ends the machine at its limit: the results come first."""
    limit = attempt.job.max_run_seconds
    if not limit:
        return
    left = limit - min(300, limit / 5) - attempt.counted_before
    state = STOPPED if attempt.job.keeps_disk else "FAILED"
    if not attempt.mirrors.done.wait(left):
        attempt.stop(Ending(state, "it ran into its time limit (--max-hours, --max-cost)"))


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


def watch_use(attempt: Attempt) -> None:
    """Keep what this machine is busy with, and what it wastes, until its part of the job ends."""
    this, meter = attempt.job, Meter()
    file, attempt.state.idle = attempt.usage_file, {}
    every = this.spec.sample_seconds
    if not every:
        return
    reporter = usage.Reporter(attempt.bucket.config, attempt.machine, attempt.say)
    for sample in usage.samples(every, attempt.mirrors.done.wait, bool(this.tpu)):
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
    update(meter, now, usage.busiest(sample), attempt.job.spec.min_utilization, runs(attempt))
    if attempt.job.spec.min_utilization and meter.unknown == UNKNOWN:
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
        machines |= {name: blob.metadata for name, blob in peers.phases(attempt.member).items()}
    idle = longest_idle(machines, now, attempt.job.marked_seconds)
    if idle != attempt.state.idle:
        attempt.states.write_quietly(idle=idle)
    if attempt.job.spec.min_utilization:
        quiet_since = max(float(about.get("above_at", now)) for about in machines.values())
        judge_use(attempt, meter, now - quiet_since)


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


def judge_use(attempt: Attempt, meter: Meter, quiet: float) -> None:
    """Warn of the end of a job that was quiet for so many seconds, and end it."""
    spec, most = attempt.job.spec, attempt.job.spec.for_minutes * 60
    left = most - quiet
    is_near = left <= min(NOTICE, most / 2)
    if left <= 0:
        minutes = f"for {spec.for_minutes:g} minutes (--min-utilization)"
        why = f"its accelerators stayed below {spec.min_utilization} % {minutes}"
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
    below = f"its accelerators stay below {attempt.job.spec.min_utilization} %"
    attempt.say(f"Warning: {below}; the job ends in {left / 60:.1f} minutes, unless they do more")
    end = iso(time.time() + left)[11:16]
    attempt.states.write_quietly(reason=f"{below}; it ends at {end} UTC, unless they do more")


def iso(at: float) -> str:
    return (
        datetime.fromtimestamp(at, timezone.utc)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z")
    )


LOOK = 1.0  # seconds between two looks at the metrics

EVENTS_LOOK = 10.0  # and at event files

LARGEST = 64 << 20  # bytes of an event file

USUAL_FACTOR = 3.0

HIGHEST = "max:"  # before the name of a metric of which more is better

WORST = sys.float_info.max

Points = Sequence[tuple[int, float, float]]  # step, value, time

NONE: Points = ()


def watch_rungs(attempt: Attempt) -> None:
    """Compare the job with its siblings at each rung, until it ends."""
    this = attempt.job
    if not (attempt.sweep and this.spec.stop_worst):
        return
    folder = RESULTS / this.results_dir
    files = EventFiles(folder)
    while not attempt.mirrors.done.wait(LOOK):
        # A file that is not there yet, or half written; the network may fail for a while.
        with contextlib.suppress(Exception):
            name = this.spec.stop_worst.removeprefix(HIGHEST)
            look(attempt, lines_in(folder), files.series(name))


def lines_in(folder: Path) -> str:
    """Return what metrics.jsonl has so far; "" where there is none."""
    file = folder / "metrics.jsonl"
    return file.read_text(errors="replace") if file.exists() else ""


class EventFiles:
    """The event files below a folder, of which each is read again when it has grown."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.due = 0.0
        self.read: dict[Path, tuple[int, events.Series]] = {}

    def series(self, tag: str) -> Points:
        """Return what they have of a tag so far, by step."""
        if time.monotonic() > self.due:
            for path in self.folder.rglob("*tfevents*"):
                self.look_at(path)
            self.due = time.monotonic() + EVENTS_LOOK
        return sorted(point for _, found in self.read.values() for point in found.get(tag, []))

    def look_at(self, path: Path) -> None:
        """Read a file, unless it is as it was, or larger than files of numbers are."""
        size = path.stat().st_size
        if self.read.get(path, (0, {}))[0] != size <= LARGEST:
            self.read[path] = size, events.scalars(path)


def look(attempt: Attempt, text: str, points: Points = NONE) -> None:
    """Act on the rungs that the job has come to, by lines of metrics, or points of event files."""
    for step in attempt.job.spec.steps():
        is_over = attempt.stopping.ending or attempt.state.state != "RUNNING"
        if is_over or str(step) in attempt.state.rungs:
            continue
        value = value_at(text, step, attempt.job.spec.stop_worst)
        if value is None:
            value = value_among(points, step, attempt.job.spec.stop_worst)
        if value is None:
            return
        judge_rung(attempt, step, value)


def value_at(text: str, step: int, metric: str) -> float | None:
    """Return a metric at its first line of that step or later, so that less is better; None if it
    is not there yet. What is no number is the worst.
    """
    name = metric.removeprefix(HIGHEST)
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            return None  # cut off in the middle of a line
        if step_of(row) >= step and name in row:
            return signed(row[name], metric)
    return None


def value_among(points: Points, step: int, metric: str) -> float | None:
    """Return the value of the first point of that step or later, as `value_at` does it."""
    for there, value, _ in points:
        if there >= step:
            return signed(value, metric)
    return None


def step_of(row: Any) -> float:
    """Return the step that a line of metrics is of, or its epoch; -1 for a line without."""
    if not isinstance(row, dict):
        return -1
    found = row.get("step", row.get("epoch", -1))
    return found if isinstance(found, int | float) else -1


def signed(value: Any, metric: str) -> float:
    """Return a value of which less is better."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return WORST
    if metric.startswith(HIGHEST):
        return -float(value)
    return float(value)


def judge_rung(attempt: Attempt, step: int, value: float) -> None:
    """Note the value at a rung, and end the job if it is not among the best there."""
    attempt.states.write(rungs={**attempt.state.rungs, str(step): value})
    attempt.states.flush()
    others = values_of_others(attempt, str(step))
    rank, count = 1 + sum(other < value for other in others), 1 + len(others)
    metric = attempt.job.spec.stop_worst.removeprefix(HIGHEST)
    where = f"at step {step}: number {rank} of {count} by {metric}"
    if rank <= kept(count, attempt.job.spec.steps()):
        attempt.say(f"Goes on {where}")
        return
    attempt.stop(Ending("SUCCEEDED", f"stopped {where}", 0))


def values_of_others(attempt: Attempt, step: str) -> list[float]:
    """Return what the siblings had at a rung that they came to before."""
    found = []
    for stored in states.listed(attempt.bucket, f"{attempt.sweep}-"):
        is_sibling = stored.state.job.sweep == attempt.sweep and stored.name != attempt.name
        if is_sibling and step in stored.state.rungs:
            found.append(stored.state.rungs[step])
    return found


def kept(count: int, rungs: list[int]) -> int:
    """Return how many of so many go on: one in as many as a rung is times the one before."""
    factor = USUAL_FACTOR
    if len(rungs) > 1:
        factor = rungs[1] / rungs[0]
    return max(1, int(count / factor))


TIMEOUT = (5, 10)  # seconds to connect, and for the answer

PATIENCE, HURRIED = 30, 2  # seconds for all tries; where Google takes the machine

PAUSES = 1, 3, 0  # seconds after each try


def read_secrets(attempt: Attempt) -> None:
    """Read the secrets of a job: its command's, its installation's, the URL of its webhook, and
    the key of its machines.
    """
    this = attempt.job
    if not this.has_secret:
        return
    try:
        values = secret.fetch(attempt.bucket.config, attempt.sweep or attempt.name)
    except BergError as error:
        if this.kind == "devbox" and this.secrets and not attempt.begins_here:
            attempt.say(f"{error.message}. Going on with those that are on this disk")
            attempt.secrets = logins.secrets_here(this.secrets)
            return
        if this.secrets or this.sealed or (this.install_secrets and not attempt.is_installed):
            raise
        if this.notify:
            attempt.say(
                "Nobody will be told of the job's end (--notify): the webhook's URL went with the "
                "attempt before"
            )
        return
    attempt.member.key = values.get(secret.CLUSTER_KEY, attempt.member.key)
    attempt.webhook = values.get(secret.WEBHOOK, "")
    attempt.take_secrets(values)


def of_job(attempt: Attempt, ending: Ending) -> None:
    """Notify the webhook that the job is over; that of a sweep hears of it as a whole."""
    if not (attempt.webhook and attempt.leads) or attempt.sweep:
        return
    about = {
        "job": attempt.name,
        "state": ending.state,
        "exit_code": ending.exit_code,
        "reason": ending.reason,
        "user": attempt.job.created_by,
        "results": attempt.job.gcs_results_dir,
    }
    text = f"{attempt.name} {ending.state}"
    if ending.exit_code is not None:
        text += f" with exit code {ending.exit_code}"
    if ending.reason:
        text += f": {ending.reason}"
    patience = PATIENCE
    if attempt.machine_goes:
        patience = HURRIED
    if why := send(attempt.webhook, text, about, patience):
        attempt.say(f"The webhook of --notify was not told: {why}")


def of_machine(attempt: Attempt, text: str) -> None:
    """Notify the webhook that a machine of a job that is over stays."""
    if attempt.webhook and attempt.leads:
        about = {"job": attempt.name, "user": attempt.job.created_by}
        if why := send(attempt.webhook, text, about, PATIENCE):
            attempt.say(f"The webhook of --notify was not told: {why}")


def of_sweep(
    config: Config, name: str, states: dict[str, State], say: Callable[[str], None]
) -> None:
    """Delete the secrets of a sweep that is over; the machine that did so notifies its webhook."""
    values: dict[str, str] = {}
    with contextlib.suppress(Exception):  # another machine was faster
        values = secret.fetch(config, name)
    if not secret.delete(config, name) or secret.WEBHOOK not in values:
        return
    counts = Counter(state.state for state in states.values())
    text = (
        f"{name} is over: {', '.join(f'{count} {state}' for state, count in counts.most_common())}"
    )
    if why := send(values[secret.WEBHOOK], text, {"sweep": name, "jobs": dict(counts)}, PATIENCE):
        say(f"The webhook of --notify was not told: {why}")


def body(url: str, text: str, about: dict[str, Any]) -> dict[str, Any]:
    """What the service behind a URL takes."""
    host = urlsplit(url).hostname or ""
    if host == "hooks.slack.com" or host == "chat.googleapis.com":
        return {"text": text}
    if host.endswith(("discord.com", "discordapp.com")):
        return {"content": text[:2000]}
    return {"text": text, **about}


def send(url: str, text: str, about: dict[str, Any], seconds: float) -> str:
    """Post it; returns why that did not work, without the URL, or "" if it did."""
    why: list[str] = []
    sending = threading.Thread(target=post, args=(url, body(url, text, about), why), daemon=True)
    sending.start()
    sending.join(seconds)  # looking up a name has no time limit of its own
    return f"it did not answer within {seconds} s" if sending.is_alive() else "".join(why[-1:])


def post(url: str, content: dict[str, Any], why: list[str]) -> None:
    import requests

    for pause in PAUSES:
        try:
            answer = requests.post(url, json=content, timeout=TIMEOUT, allow_redirects=False)
        except (requests.RequestException, ValueError) as error:  # whose text has the URL
            why.append(type(error).__name__)
        else:
            if answer.ok and not answer.is_redirect:
                why.clear()
                return
            why.append(f"it answered {answer.status_code}")
            if answer.status_code not in RETRIED:
                return
        time.sleep(pause)
