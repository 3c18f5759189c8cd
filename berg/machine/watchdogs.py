"""What threads watch while a job runs, and what mostly ends it.

- The machine's metadata: a kill or stop, a preemption, requests for profiles, keys for logins.
- The other machines of the job, and the time limit.
- Idle accelerators: marked in lists; with --min-utilization they end the job.
- Successive halving of a sweep: a job ends itself if it is among the worst at a rung.
- The steps: a job that seems to hang is explained, and ended only with --on-hang.
Also the job's secrets, and the webhook that hears of its end (--notify).
"""

import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from berg import BergError, job, states
from berg.config import Config
from berg.google import api, events, secret
from berg.job import STOPPED, State
from berg.machine import boot, logins, peers, profile, saving, usage
from berg.machine.attempt import Attempt
from berg.machine.outcome import MAINTAINED, PREEMPTED, SHUT_DOWN, Ending, join
from berg.machine.process import GRACE, RESULTS, Runs, end_group, end_process, start_thread
from berg.machine.usage import BUSY_GPU
from berg.plain import span

# Announced an hour before on most machines with GPUs, else a minute before.
MAINTENANCE = "TERMINATE_ON_HOST_MAINTENANCE"


def watch(attempt: Attempt) -> None:
    """Act on this machine's metadata until it has another job, also during the last upload."""
    profiles: dict[str, str] | None = None  # that were requested: time -> seconds
    warned = False
    while not attempt.over.is_set():
        try:
            values = attempt.member.host.new_metadata(attempt.over)
        except (OSError, ValueError):
            attempt.over.wait(1)
            continue
        if ending := ending_in(attempt, values):
            attempt.stop(ending)
        attributes = values.get("attributes", {})
        if attempt.job.kind == "devbox":
            attempt.hosting.look(attributes)
        requested = profile.asked(attempt.name, attributes)
        if profiles is not None:  # those of the first look were requested of an earlier attempt
            for when in requested.keys() - profiles.keys():
                start_thread(profile.answer, attempt, when, requested[when])
        profiles = requested
        if values.get("maintenanceEvent") == MAINTENANCE and not warned:
            warned = True
            attempt.say("Google will stop this machine within an hour to maintain its host")
            if not attempt.member.is_alone:
                with contextlib.suppress(Exception):  # the network
                    peers.announce(attempt.member, maintenance="soon")
        with contextlib.suppress(OSError):  # a full disk
            boot.install_keys(attributes.get("ssh-keys", ""))


def ending_in(attempt: Attempt, values: dict[str, Any]) -> Ending | None:
    """Return how the job is to end according to this machine's metadata."""
    if killer := values.get("attributes", {}).get(f"berg-kill-{attempt.name}"):
        killer, _, now = killer.partition(" ")
        if now:
            attempt.say(f"Killed by {killer}, at once")
            if attempt.runner.process:
                end_group(attempt.runner.process.pid, 0)
            os._exit(0)
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
    """Return the user who stops this devbox; "" without a request. Each request is for one attempt:
    it is still there when the machine starts again.
    """
    asked: str = values.get("attributes", {}).get(f"berg-stop-{attempt.name}", "")
    who, _, number = asked.rpartition(" ")
    return who if number == str(attempt.state.attempt) else ""


def watch_others(attempt: Attempt) -> None:
    """End the job when one of its machines dies or fails, and this part when the job ends."""
    while not attempt.mirrors.done.wait(peers.WATCH_INTERVAL):
        running = attempt.runner.command
        try:
            ending = peers.ending_of_part(attempt.member, lambda: attempt.is_over(("UPLOADING",)))
            ending = ending or ending_by_failure(attempt, running)
        except Exception as error:  # the network may fail for a while
            attempt.say(f"Cannot see the other machines: {error}")
        else:
            if ending:
                attempt.stop(ending)


def ending_by_failure(attempt: Attempt, running: Runs) -> Ending | None:
    """Return how the job ends because a command failed; None if it continues.

    If the command may run again, its part here is ended when the attempt is finished; the worker
    does the rest.
    """
    member = attempt.member
    if not attempt.leads:
        if attempt.is_behind:
            attempt.break_off(running)
        return None
    failure = peers.lasting_failure(member, peers.phases(member))
    if attempt.job.is_replaced and not attempt.loss:
        attempt.loss = peers.loss(member)
    if attempt.loss or (failure and attempt.job.spec.restart_on_failure):
        attempt.break_off(running)
        return None
    return failure


def limit_time(attempt: Attempt) -> None:
    """Stop the job before Google ends the machine at its limit, so that the results are saved."""
    limit = attempt.job.max_run_seconds
    if not limit:
        return
    left = limit - min(300, limit / 5) - attempt.counted_before
    state = STOPPED if attempt.job.keeps_disk else "FAILED"
    if not attempt.mirrors.done.wait(left):
        attempt.stop(Ending(state, "it ran into its time limit (--max-hours, --max-cost)"))


# --- idle accelerators
# A machine is judged by its busiest accelerator, a job by its busiest machine, while the command
# runs. Where no accelerator reports its use, nothing is concluded.

NOTICE = 600  # seconds before its end in which a job is warned
MOST = 8  # machines that a state names
UNKNOWN = 3  # samples without a report, after which that is logged


@dataclass
class Meter:
    """What the samples of this machine showed so far. Times are Unix times."""

    busy_at: float = field(default_factory=job.clock)  # when an accelerator did something
    above_at: float = field(default_factory=job.clock)  # when one reached --min-utilization
    unknown: int = 0  # last samples in a row without a report
    warned: bool = False


def watch_use(attempt: Attempt) -> None:
    """Write samples and watch idle accelerators, until this machine's part of the job ends."""
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


def check_sample(attempt: Attempt, meter: Meter, sample: dict[str, Any]) -> None:
    """Update the meter; on the machine that leads, judge the whole job."""
    now, member, least = sample["time"], attempt.member, attempt.job.spec.min_utilization
    is_running = attempt.state.state == "RUNNING"
    if not member.is_alone:
        is_running = member.summary["phase"] != "UP"
    update(meter, now, usage.busiest(sample), least, is_running)
    if least and meter.unknown == UNKNOWN:
        attempt.say(
            "No accelerator here reports its use: until one does, --min-utilization has no effect"
        )
    # sent with the next heartbeat
    member.summary |= {"busy_at": str(meter.busy_at), "above_at": str(meter.above_at)}
    if not attempt.leads or attempt.stopping.ending:
        return
    machines = {attempt.machine.name: member.summary}
    if not member.is_alone:
        machines |= {name: blob.metadata for name, blob in peers.phases(member).items()}
    idle = longest_idle(machines, now, attempt.job.marked_seconds)
    if idle != attempt.state.idle:
        attempt.states.write_quietly(idle=idle)
    if least:
        quiet_since = max(float(about.get("above_at", now)) for about in machines.values())
        judge_use(attempt, meter, now - quiet_since)


def update(meter: Meter, now: float, percent: float | None, least: int, is_running: bool) -> None:
    """Note the busiest accelerator's use. Unknown use, and any before the command runs, is busy."""
    if not is_running:
        meter.busy_at = meter.above_at = now
    elif percent is None:
        meter.busy_at = meter.above_at = now
        meter.unknown += 1
    else:
        meter.unknown = 0
        if percent > BUSY_GPU:
            meter.busy_at = now
        if percent >= least:
            meter.above_at = now


def longest_idle(machines: dict[str, dict[str, str]], now: float, seconds: int) -> dict[str, str]:
    """Return the machines that were idle for so many seconds, and since when; the longest first."""
    busy = sorted((float(about.get("busy_at", now)), name) for name, about in machines.items())
    idle = {name: job.timestamp(at) for at, name in busy if now - at >= seconds}
    return dict(list(idle.items())[:MOST])


def judge_use(attempt: Attempt, meter: Meter, quiet: float) -> None:
    """Warn a job that was quiet for so many seconds, and end it."""
    spec, most = attempt.job.spec, attempt.job.spec.for_minutes * 60
    left = most - quiet
    is_near = left <= min(NOTICE, most / 2)
    if left <= 0:
        minutes = f"for {spec.for_minutes:g} minutes (--min-utilization)"
        why = f"its accelerators stayed below {spec.min_utilization} % {minutes}"
        attempt.stop(Ending("FAILED", why))
    elif is_near and not meter.warned:
        meter.warned = True
        below = f"its accelerators stay below {spec.min_utilization} %"
        minutes = f"{left / 60:.1f} minutes"
        attempt.say(f"Warning: {below}; the job ends in {minutes}, unless they do more")
        end = job.timestamp(job.clock() + left)[11:16]
        attempt.states.write_quietly(reason=f"{below}; it ends at {end} UTC, unless they do more")
    elif meter.warned and not is_near:
        meter.warned = False
        attempt.say("The accelerators do something again")
        attempt.states.write_quietly(reason="")


# --- successive halving
# At each rung, a step of its metrics, a job writes its value into its state and reads its siblings'
# in one list. It continues if it is among the best 1/eta of those that reached the rung so far:
# ASHA (Li et al., 2020, https://arxiv.org/abs/1810.05934) without a controller. No job waits for
# another, so that the first at a rung continues. A decision is in the state: a restart does not
# repeat it. Values come from metrics.jsonl, or from TensorBoard's event files where that lacks the
# metric.

LOOK = 1.0  # seconds between two looks at the metrics
EVENTS_LOOK = 10.0  # and at event files
LARGEST = 64 << 20  # bytes of an event file
USUAL_FACTOR = 3.0
HIGHEST = "max:"  # before the name of a metric whose highest values are the best
WORST = sys.float_info.max

Points = Sequence[tuple[int, float, float]]  # step, value, time


def watch_rungs(attempt: Attempt) -> None:
    """Compare the job with its siblings at each rung, until it ends."""
    this = attempt.job
    if not (attempt.sweep and this.spec.stop_worst):
        return
    folder = RESULTS / this.results_dir
    files, lines = EventFiles(folder), folder / "metrics.jsonl"
    while not attempt.mirrors.done.wait(LOOK):
        # a file that is half written; the network may fail for a while
        with contextlib.suppress(Exception):
            text = lines.read_text(errors="replace") if lines.exists() else ""
            look(attempt, text, files.series(this.spec.stop_worst.removeprefix(HIGHEST)))


class EventFiles:
    """The event files below a folder; each is read again when it has grown."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.due = 0.0
        self.read: dict[Path, tuple[int, events.Series]] = {}

    def series(self, tag: str) -> Points:
        """Return the points of a tag so far, by step."""
        if time.monotonic() > self.due:
            for path in self.folder.rglob("*tfevents*"):
                size = path.stat().st_size
                if self.read.get(path, (0, {}))[0] != size <= LARGEST:
                    self.read[path] = size, events.scalars(path)
            self.due = time.monotonic() + EVENTS_LOOK
        return sorted(point for _, found in self.read.values() for point in found.get(tag, []))


def look(attempt: Attempt, text: str, points: Points) -> None:
    """Act on the rungs that the job has reached by its metrics.jsonl, or its event files."""
    metric = attempt.job.spec.stop_worst
    for step in attempt.job.spec.steps():
        is_done = attempt.stopping.ending or attempt.state.state != "RUNNING"
        if is_done or str(step) in attempt.state.rungs:
            continue
        value = value_at(text, step, metric)
        if value is None:
            later = (value for there, value, _ in points if there >= step)
            value = next((signed(each, metric) for each in later), None)
        if value is None:
            return
        judge_rung(attempt, step, value)


def value_at(text: str, step: int, metric: str) -> float | None:
    """Return a metric's value in the first line of that step or a later one; None without one."""
    name = metric.removeprefix(HIGHEST)
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            return None  # an incomplete line
        if not isinstance(row, dict):
            continue
        there = row.get("step", row.get("epoch", -1))
        if isinstance(there, int | float) and there >= step and name in row:
            return signed(row[name], metric)
    return None


def signed(value: Any, metric: str) -> float:
    """Return a value of which less is better; one that is not a number is the worst."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return WORST
    return -float(value) if metric.startswith(HIGHEST) else float(value)


def judge_rung(attempt: Attempt, step: int, value: float) -> None:
    """Write the value at a rung, and end the job if it is not among the best there."""
    attempt.states.write(rungs={**attempt.state.rungs, str(step): value})
    attempt.states.flush()
    others = [
        stored.state.rungs[str(step)]
        for stored in states.listed(attempt.bucket, f"{attempt.sweep}-")
        if stored.state.job.sweep == attempt.sweep
        and stored.name != attempt.name
        and str(step) in stored.state.rungs
    ]
    rank, count = 1 + sum(other < value for other in others), 1 + len(others)
    metric = attempt.job.spec.stop_worst.removeprefix(HIGHEST)
    where = f"at step {step}: number {rank} of {count} by {metric}"
    if rank <= kept(count, attempt.job.spec.steps()):
        attempt.say(f"Continues {where}")
    else:
        attempt.stop(Ending("SUCCEEDED", f"stopped {where}", 0))


def kept(count: int, rungs: list[int]) -> int:
    """Return how many of so many jobs continue; one of three, or as the first two rungs are."""
    factor = rungs[1] / rungs[0] if len(rungs) > 1 else USUAL_FACTOR
    return max(1, int(count / factor))


# --- secrets and the webhook
# The webhook's URL is a secret, stored with those of the job. The message is sent once, in bounded
# time; a failure is a line in the log. No one reports the end of a job whose machine is LOST.

CONNECT, READ = 5, 10  # seconds of a request
TIMEOUT, HURRIED = 30, 2  # seconds for all tries; when Google takes the machine


def read_secrets(attempt: Attempt) -> None:
    """Read all secrets of the job, the webhook's URL and the key of its machines among them."""
    this = attempt.job
    if not this.has_secret:
        return
    try:
        values = secret.fetch(attempt.bucket.config, attempt.sweep or attempt.name)
    except BergError as error:
        if this.kind == "devbox" and this.secrets and not attempt.begins_here:
            attempt.say(f"{error.message}. Using the secrets that are on this disk")
            attempt.secrets = logins.secrets_here(this.secrets)
            return
        if this.secrets or this.sealed or (this.install_secrets and not attempt.is_installed):
            raise
        if this.notify:
            attempt.say(
                "The webhook of --notify will get no message: its URL was deleted with the secrets "
                "of the attempt before"
            )
        return
    attempt.member.key = values.get(secret.CLUSTER_KEY, attempt.member.key)
    attempt.webhook = values.get(secret.WEBHOOK, "")
    attempt.take_secrets(values)


def of_job(attempt: Attempt, ending: Ending) -> None:
    """Send a message that the job has ended; a job of a sweep sends none."""
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
    seconds = HURRIED if attempt.machine_goes else TIMEOUT
    notify(attempt.webhook, text, about, attempt.say, seconds)


def of_machine(attempt: Attempt, text: str) -> None:
    """Send a message that a machine of a finished job still exists."""
    if attempt.webhook and attempt.leads:
        about = {"job": attempt.name, "user": attempt.job.created_by}
        notify(attempt.webhook, text, about, attempt.say)


def of_sweep(
    config: Config, name: str, states: dict[str, State], say: Callable[[str], None]
) -> None:
    """Delete the secrets of a finished sweep; the machine that deletes them sends the message."""
    values: dict[str, str] = {}
    with contextlib.suppress(Exception):  # another machine was faster
        values = secret.fetch(config, name)
    if not secret.delete(config, name) or secret.WEBHOOK not in values:
        return
    counts = Counter(state.state for state in states.values())
    shown = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    about = {"sweep": name, "jobs": dict(counts)}
    notify(values[secret.WEBHOOK], f"{name} is finished: {shown}", about, say)


def notify(
    url: str,
    text: str,
    about: dict[str, Any],
    say: Callable[[str], None],
    seconds: float = TIMEOUT,
) -> None:
    if why := send(url, text, about, seconds):
        say(f"The webhook of --notify was not reached: {why}")


def send(url: str, text: str, about: dict[str, Any], seconds: float) -> str:
    """Send a message; return why that failed, without the URL, or ""."""
    why: list[str] = []
    sending = threading.Thread(target=post, args=(url, body(url, text, about), why), daemon=True)
    sending.start()
    sending.join(seconds)  # the lookup of a host has no timeout of its own
    return f"it did not answer within {seconds} s" if sending.is_alive() else "".join(why[-1:])


def body(url: str, text: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return a message in the form of the service behind a URL."""
    host = urlsplit(url).hostname or ""
    if host == "hooks.slack.com" or host == "chat.googleapis.com":
        return {"text": text}
    if host.endswith(("discord.com", "discordapp.com")):
        return {"content": text[:2000]}
    return {"text": text, **about}


def post(url: str, content: dict[str, Any], why: list[str]) -> None:
    headers, body = {"Content-Type": "application/json"}, json.dumps(content).encode()
    for pause in (1, 3, 0):  # seconds after each try
        try:
            answer = api.exchange("POST", url, (CONNECT, READ), headers, body)
            api.hang_up(answer)
        except api.NoAnswer as error:
            why.append(error.kind)
        except ValueError as error:  # its text contains the URL
            why.append(type(error).__name__)
        else:
            if answer.status < 300:
                why.clear()
                return
            why.append(f"it answered {answer.status}")
            if answer.status not in api.RETRIED:
                return
        time.sleep(pause)


# --- a job that seems to hang: found, explained, and ended only if that was asked for (--on-hang)
#
# The machine that leads looks at metrics.jsonl, or without one at its log. After the first step, no
# step for longer than 20 minutes and 8 times the longest pause so far, or for --max-silence, makes
# an autopsy on all machines; the state and one notification say what it shows. Steps count, not
# lines: in many hangs another thread continues to print. Only a running command counts. Not
# covered: jobs of which only other machines print, and devboxes.

STEP_LOOK = 5.0  # seconds between two looks
LONGER = 8  # than the longest pause so far
TAIL = 16 << 10  # bytes of metrics.jsonl in which its last line is looked for
STEPS = ("step", "global_step", "iteration", "iter", "epoch")
UPLOAD_SECONDS, OTHERS_SECONDS = 60, 150  # for an autopsy to be sent, and for those of others

Mark = tuple[str, float]  # what moves, and where it is


@dataclass
class Pulse:
    """The steps of one run of a command. Times are seconds of any clock."""

    mark: Mark | None = None
    moved_at: float = 0
    steps: int = 0  # so far; the first pause that counts is after the first
    longest: float = 0  # pause between two steps

    def look(self, mark: Mark, now: float) -> float:
        """Note where the job is; return for how long it did not move, 0 before the first step."""
        if self.mark is None or mark != self.mark:
            if self.steps:
                self.longest = max(self.longest, now - self.moved_at)
            self.steps += self.mark is not None
            self.mark, self.moved_at = mark, now
        return now - self.moved_at if self.steps else 0

    def limit(self, least: float, given: float) -> float:
        """Return after how long without a step the job seems to hang."""
        return given or max(least, LONGER * self.longest)


def watch_steps(attempt: Attempt) -> None:
    """Watch the command until this machine's part of the job ends."""
    if not attempt.job.cmd:
        return
    pulse, running, seen = Pulse(), None, attempt.state.hang_at
    pause = min(STEP_LOOK, (attempt.job.spec.max_silence or attempt.job.hang_seconds) / 4)
    while not attempt.mirrors.done.wait(pause):
        if not attempt.leads:
            if attempt.state.hang_at not in ("", seen):
                seen = attempt.state.hang_at
                examine(attempt, seen)
            continue
        if attempt.runner.command != running:
            pulse, running = Pulse(), attempt.runner.command
            settle_hang(attempt)
        if running and attempt.state.state == "RUNNING" and not attempt.state.missing:
            with contextlib.suppress(OSError, ValueError):  # a line that is half written
                look_for_hang(attempt, pulse)


def look_for_hang(attempt: Attempt, pulse: Pulse) -> None:
    """Note where the job is, and act on a hang, once until it moves again."""
    spec, steps = attempt.job.spec, pulse.steps
    silent = pulse.look(mark_of(attempt), time.monotonic())
    if attempt.state.hang_at:
        if pulse.steps > steps:
            settle_hang(attempt)
    elif silent > pulse.limit(attempt.job.hang_seconds, spec.max_silence):
        text = explain_hang(attempt, pulse, silent)
        if attempt.mirrors.done.is_set() or mark_of(attempt) != pulse.mark:
            settle_hang(attempt)  # it moved meanwhile
            return
        folder = states.autopsy_folder(attempt.job.results_dir, attempt.state.hang_at)
        attempt.states.write_quietly(hang=text)
        attempt.say(f"It seems to hang: {text}. Stacks and more: berg_results/{folder}")
        if attempt.webhook and not attempt.sweep:
            about = {"job": attempt.name, "user": attempt.job.created_by}
            notify(attempt.webhook, f"{attempt.name} seems to hang: {text}", about, attempt.say)
        pulse.mark = mark_of(attempt)  # the log has our own line
        act_on_hang(attempt)


def settle_hang(attempt: Attempt) -> None:
    """Take back that the job hangs."""
    if attempt.state.hang_at:
        attempt.states.write_quietly(hang="", hang_at="")


def mark_of(attempt: Attempt) -> Mark:
    """Return where the job is: its last step, or the size of its log."""
    file = RESULTS / attempt.job.results_dir / "metrics.jsonl"
    if not file.exists():
        return "line", attempt.machine.log.stat().st_size
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - TAIL))
        *_, last, _ = [b"", *lines.read().split(b"\n")]  # what follows the last newline is half
    row = json.loads(last)
    found = [row[key] for key in STEPS if isinstance(row.get(key), int | float)]
    return "step", found[0] if found else file.stat().st_size


def explain_hang(attempt: Attempt, pulse: Pulse, silent: float) -> str:
    """Take the autopsy of all machines; return why the job seems to hang, and what its ranks do."""
    what = pulse.mark[0] if pulse.mark else "step"
    pause = span(60 * (silent // 60) or silent)
    text = join(f"no {what} for {pause}", gpus_in_words(attempt, silent))
    at = job.now()
    attempt.states.write_quietly(hang=text, hang_at=at)
    examine(attempt, at)
    return join(text, states.odd_one_out(collect(attempt, at)))


def examine(attempt: Attempt, at: str) -> None:
    """Take this machine's autopsy, and send it to the bucket."""
    try:
        when = Path(states.autopsy_folder(attempt.job.results_dir, at)).name
        file, end = profile.take_autopsy(attempt, when), time.monotonic() + UPLOAD_SECONDS
        name = f"berg_results/{file.relative_to(RESULTS)}"
        while not attempt.bucket.get(name) and time.monotonic() < end:
            attempt.mirrors.done.wait(0.5)
            saving.send_changes(attempt, UPLOAD_SECONDS, only_new=True)
    except Exception as error:  # it never disturbs the job
        attempt.say(f"No autopsy: {getattr(error, 'message', error)}")


def collect(attempt: Attempt, at: str) -> Iterator[states.Autopsy]:
    """Yield the autopsies of all machines that come in time."""
    folder = f"berg_results/{states.autopsy_folder(attempt.job.results_dir, at)}"
    waiting = {f"{folder}/{each.name}.json" for each in attempt.member.nodes}
    end = time.monotonic() + OTHERS_SECONDS
    while waiting:
        for name in [*waiting]:
            if data := attempt.bucket.read(name):
                waiting.remove(name)
                with contextlib.suppress(ValueError, BergError):
                    yield states.read_autopsy(data)
        if time.monotonic() > end or attempt.mirrors.done.wait(1 if waiting else 0):
            return


def act_on_hang(attempt: Attempt) -> None:
    """End the command of a job that hangs, or the job, if that was asked for."""
    how, text = attempt.job.spec.on_hang, f"it hangs (--max-silence): {attempt.state.hang}"
    if how == "fail":
        attempt.stop(Ending("FAILED", text))
    if how == "restart":
        attempt.say("Ending the command, which counts as its failure (--on-hang restart)")
        start_thread(end_process, attempt.runner.command, GRACE)


def gpus_in_words(attempt: Attempt, silent: float) -> str:
    """Return how busy this machine's GPUs are since the last step, and were before; "" without
    samples.
    """
    with contextlib.suppress(OSError, ValueError):
        samples = [json.loads(line) for line in attempt.usage_file.read_text().splitlines()]
        since = job.clock() - silent
        now = [gpu for each in samples if each["time"] > since for gpu in each["gpus"]]
        before = [gpu for each in samples if each["time"] <= since for gpu in each["gpus"]]
        busy, watt, usual = middle(now, "percent"), middle(now, "watt"), middle(before, "watt")
        if busy is None:
            return ""
        text = f"GPUs {busy:.0f} % busy"
        text += "" if watt is None else f" at {watt:.0f} W"
        return text + ("" if watt is None or usual is None else f" (usual {usual:.0f} W)")
    return ""


def middle(gpus: list[dict[str, Any]], key: str) -> float | None:
    found = [gpu[key] for gpu in gpus if gpu.get(key) is not None]
    return statistics.median(found) if found else None
