"""The results and the log of an attempt: brought back, mirrored while it runs, and sent to the end
when it is over.

The last results and the end of the log are sent side by side, in bounded time, and what was not
kept is named.
"""

import contextlib
import functools
import math
import threading
import time
from dataclasses import dataclass, field

from berg import BergError, job, states
from berg.google import api
from berg.google.walk import name_left
from berg.job import State
from berg.machine import boot
from berg.machine.attempt import LAST_STATE_SECONDS, Attempt, Damaged, NoJob
from berg.machine.outcome import Ending, join
from berg.machine.process import start_thread
from berg.plain import plural

UNREACHABLE = 600  # seconds for which a last word is tried while the bucket refuses it
BUCKET_PATIENCE = 120  # seconds in which a bucket that is gone may come back
GONE_PATIENCE = 30  # the same for the last words, after that
BUCKET_LOOK = 300  # seconds between two looks whether the bucket is there while the command runs
LOG_PATIENCE = 120  # seconds for the last lines of the log
LONG_LOG = 8 << 20  # bytes of a log that is sent at once
MOMENT = 1.0  # seconds for the last results before the log is sent beside them
UPLOAD_LOOK = 3  # seconds between two looks at how far the last upload is
LOG_INTERVAL, RESULTS_INTERVAL = 2, 10  # seconds
# after which a pass is told in the state: with a pass more it is 30 s old
STATE_INTERVAL = 20
NEW_INTERVAL = 1  # seconds between passes over files that are not in the bucket yet


def restore_results(attempt: Attempt) -> None:
    """Bring what the job's folders have in the bucket, from this job or one before it; it may be
    replaced here.
    """
    brought, left = attempt.mirrors.results.restore(bring=attempt.begins_here)
    if brought:
        attempt.say(f"Brought back {plural(brought, 'file')} of the results")
    for path, why in left.items():
        attempt.say(f"Not brought back: {path}: {why}")
    attempt.marker.touch()


def mirror_log(attempt: Attempt) -> None:
    attempt.mirrors.start(attempt.mirrors.log.run, LOG_INTERVAL, attempt.mirrors.done)


def mirror_results(attempt: Attempt) -> None:
    attempt.mirrors.start(keep_results, attempt)
    if attempt.job.kind == "job":
        attempt.mirrors.start(watch_bucket, attempt)


def watch_bucket(attempt: Attempt) -> None:
    """End a job whose bucket is gone at two looks: nothing that it still does would be kept."""
    was_gone = False
    while not attempt.mirrors.done.wait(BUCKET_LOOK):
        is_gone = bucket_is_gone(attempt)
        if is_gone and was_gone:
            minutes = BUCKET_LOOK // 60
            why = (
                f"its bucket {attempt.bucket.name} does not exist, since {minutes} minutes or more"
            )
            attempt.stop(Ending("FAILED", why))
            return
        was_gone = is_gone


def send_all(attempt: Attempt) -> None:
    """Send what this machine wrote before another attempt is to find it in the bucket.

    What the bucket does not take for the job's patience is left to later passes, and said. Raises
    Stopped if the job is to end.
    """
    results, end = attempt.mirrors.results, time.monotonic() + attempt.job.upload_timeout
    while True:
        with attempt.mirrors.turn:
            results.sync(stop=attempt.stopping.event.is_set)
        if not results.failed:
            return
        if time.monotonic() > end:
            attempt.say(f"The next attempt begins without all results: {name_left(results.failed)}")
            return
        attempt.stopping.pause(1)


def bring_news(attempt: Attempt) -> None:
    """Bring what the other machines sent of the results since this one looked last."""
    with attempt.mirrors.turn:
        brought, _ = attempt.mirrors.results.restore(only_news=True)
    if brought:
        attempt.say(f"Brought {plural(brought, 'file')} of the other machines' results")


def send_changes(attempt: Attempt, seconds: float, only_new: bool = False) -> int:
    """Make a pass over the results, one at a time; return how many files were sent."""
    with attempt.mirrors.turn:
        return attempt.mirrors.results.sync(seconds, attempt.mirrors.done.is_set, only_new)


def keep_results(attempt: Attempt) -> None:
    """Mirror the results until the attempt is done.

    No pass takes longer than RESULTS_INTERVAL: the next one looks again at what is the newest.
    """
    written, changed, tries = -math.inf, 0, 0
    pause = float(RESULTS_INTERVAL)
    results = attempt.mirrors.results
    while not attempt.mirrors.done.is_set():
        if is_done_after(attempt, pause, changed):
            break
        changed = send_changes(attempt, RESULTS_INTERVAL)
        pause = pause_after(changed)
        is_whole = not (results.failed or results.underway)
        tries = 0 if is_whole else tries + 1
        if tries:  # soon, and less and less: what failed lasts
            pause = min(pause, 2 ** (tries - 1))
        if results.is_behind:
            pause = 0
        if is_whole and time.monotonic() - written >= STATE_INTERVAL - 1:
            written = time.monotonic()
            attempt.states.write_quietly(soon=True, synced_until=results.synced_until)


def is_done_after(attempt: Attempt, pause: float, sent: int) -> bool:
    """Wait for so many seconds, or until there is hurry; return whether the attempt is done then.

    Meanwhile files that are not in the bucket yet go there, as long as there are any: each costs
    one write, whenever it is sent.
    """
    end = time.monotonic() + pause
    while (left := end - time.monotonic()) > 0:
        if sent:
            left = min(left, NEW_INTERVAL)
        if attempt.mirrors.hurry.wait(left):
            return attempt.mirrors.done.wait(1)
        left = end - time.monotonic()
        if sent and left > 0:
            sent = send_changes(attempt, left, only_new=True)
    return attempt.mirrors.done.is_set()


def pause_after(changed: int) -> float:
    """Return the seconds from a pass over all results to the next.

    Each time that an object is written anew costs, a dollar for some 200,000. With a pass these are
    30 s at most, which is what a machine that is lost may cost of the results.
    """
    return min(max(changed / 10, RESULTS_INTERVAL), 20)


def stop_mirrors(attempt: Attempt) -> None:
    attempt.mirrors.stop()
    if attempt.sampling.is_alive():
        attempt.sampling.join(1)  # its last sample goes with the end of the log


def last_moment(attempt: Attempt) -> float:
    """Return when the last passes have to end, so that the state is written before the machine
    goes; time.monotonic().
    """
    if attempt.machine_goes:
        return attempt.stopping.deadline - LAST_STATE_SECONDS
    limit = attempt.job.max_run_seconds
    if not limit:
        return math.inf
    return attempt.states.began + limit - attempt.counted_before - min(75, limit / 8)


def say_trouble(attempt: Attempt, text: str) -> None:
    attempt.mirrors.trouble = text
    attempt.say(text)


def save(attempt: Attempt, reason: str) -> tuple[dict[str, str], bool]:
    """Bring the last results and the end of the log to the bucket, side by side.

    Returns the files that could not be brought, with why, and whether all is there that can be
    there. It goes on while there is progress, to the last moment.
    """
    mirrors = attempt.mirrors
    seconds = last_moment(attempt) - time.monotonic()
    last = LastPass()
    sending = start_thread(send_results, attempt, last, seconds)
    mirrors.last_log_pass = start_thread(send_log_beside, attempt, sending, seconds)
    watch_upload(attempt, sending, reason)
    if last.failure:
        return {f"berg_results/{attempt.job.results_dir}": last.failure}, False
    if sending.is_alive():
        why = mirrors.trouble or "it was being sent"
        return {path: why for path, _ in mirrors.results.left()}, False
    say_links(attempt)
    return last.left, last.left.keys() <= mirrors.results.refused.keys()


@dataclass
class LastPass:
    """What came of the last pass over the results."""

    left: dict[str, str] = field(default_factory=dict)  # file -> why it is not in the bucket
    failure: str = ""  # why the pass broke off


def send_results(attempt: Attempt, last: LastPass, seconds: float) -> None:
    """Send what is left of the results, for at most `seconds`."""
    note_trouble = functools.partial(say_trouble, attempt)
    try:
        last.left = attempt.mirrors.results.finish(note_trouble, seconds)
    except Exception as error:
        last.failure = f"{type(error).__name__}: {error}"


def send_log_beside(attempt: Attempt, sending: threading.Thread, seconds: float) -> None:
    """Send the log while the last results are sent, unless it is short and those are there within a
    moment.

    Its end, which is still to come, would have to wait: an object takes one write a second.
    """
    log = attempt.mirrors.log
    is_long = sum(size for _, size in log.left()) > LONG_LOG
    if not (attempt.machine_goes or is_long):
        sending.join(MOMENT)
    if is_long or sending.is_alive():
        log.finish(boot.console, seconds)


def watch_upload(attempt: Attempt, sending: threading.Thread, reason: str) -> None:
    """Write the upload's progress into the state, until it ends, is stuck, or has no time."""
    sending.join(UPLOAD_LOOK)
    ahead: list[tuple[str, int]] = []
    moved, patience = time.monotonic(), attempt.job.upload_timeout
    while sending.is_alive():
        now = time.monotonic()
        if now > last_moment(attempt) + 1 or now - moved > patience:
            return
        still = attempt.mirrors.results.left()
        if still != ahead:
            ahead, moved = still, now
        report_progress(attempt, ahead, reason)
        if patience > BUCKET_PATIENCE and attempt.mirrors.trouble and bucket_is_gone(attempt):
            patience = BUCKET_PATIENCE
        sending.join(max(0.1, min(UPLOAD_LOOK, last_moment(attempt) - now)))


def say_links(attempt: Attempt) -> None:
    """Say that links were sent as copies of what they lead to."""
    links = attempt.mirrors.results.links
    if not links:
        return
    what = f"{len(links):,} links were sent as copies"
    if len(links) == 1:
        what = "1 link was sent as a copy"
    attempt.say(
        f"{what}: a bucket has no links. {min(links)} leads to what is in the results already"
    )


def report_progress(attempt: Attempt, ahead: list[tuple[str, int]], reason: str) -> None:
    """Write into the state how much of the results is to come, and what keeps it."""
    files, size = len(ahead), sum(size for _, size in ahead)
    attempt.member.summary["left"] = f"{files} {size}"  # goes with the next heartbeat
    if attempt.mirrors.trouble:
        reason = f"{reason}; {attempt.mirrors.trouble}".strip("; ")
    state = attempt.state
    if (files, size, reason) != (state.left_files, state.left_bytes, state.reason):
        attempt.states.write(soon=True, left_files=files, left_bytes=size, reason=reason)


def note_left(attempt: Attempt, reports: list[str]) -> None:
    """Write into the state what all other machines have still to send.

    Each report has the number of files and that of bytes.
    """
    counts = [report.split() for report in reports]
    files, size = (sum(int(count[n]) for count in counts) for n in (0, 1))
    if (files, size) != (attempt.state.left_files, attempt.state.left_bytes):
        attempt.states.write(left_files=files, left_bytes=size)


def send_log(attempt: Attempt) -> bool:
    """Send the end of the log, with what was said since the last pass; return whether that could
    be done in time.
    """
    now = time.monotonic()
    end = now + min(LOG_PATIENCE, seconds_for_last_words(attempt))
    if attempt.machine_goes:
        end = max(now + LAST_STATE_SECONDS / 2, attempt.stopping.deadline - LAST_STATE_SECONDS)
    attempt.mirrors.last_log_pass.join(end - time.monotonic())
    if attempt.mirrors.last_log_pass.is_alive():
        return False
    if not attempt.machine_goes:
        time.sleep(attempt.mirrors.log.seconds_to_next_write())
    with contextlib.suppress(Exception):  # the state is to be written all the same
        return not attempt.mirrors.log.finish(boot.console, end - time.monotonic())
    return False


def seconds_for_last_words(attempt: Attempt) -> float:
    """Return for how long the last state and the end of the log are tried."""
    if attempt.machine_goes:
        return LAST_STATE_SECONDS
    has_trouble = attempt.mirrors.trouble or attempt.mirrors.last_log_pass.is_alive()
    if has_trouble and bucket_is_gone(attempt):
        return GONE_PATIENCE
    return UNREACHABLE


def bucket_is_gone(attempt: Attempt) -> bool:
    try:
        next(iter(attempt.bucket.list(job.state_path(attempt.name), "name")), None)
    except api.NotFound:
        return True
    except Exception:
        return False
    return False


def save_alone(attempt: Attempt, why: str) -> None:
    """Save what a job left whose state is not to be written any more.

    A state that nobody can read is written anew.
    """
    damaged = False
    attempt.member.leads = False
    try:
        if another_has(attempt, attempt.states.read()):
            return
    except NoJob:
        pass
    except Damaged as error:
        damaged, why = True, error.message
    left, _ = save(attempt, "")
    send_log(attempt)
    if damaged:
        write_anew(attempt, why, name_left(left))


def another_has(attempt: Attempt, state: State) -> bool:
    """Whether another worker has the job, and its results."""
    this = attempt.machine
    return not state.final and (state.machine, state.zone) != (this.name, this.zone)


def write_anew(attempt: Attempt, why: str, lost: str) -> None:
    """Write the state of a job that was ended because nobody could read its state."""
    attempt.member.leads = True
    with contextlib.suppress(BergError):
        read_job(attempt)
    if not attempt.state.job.created_at:
        attempt.state.job = attempt.job.summary()
    last = functools.partial(
        attempt.states.write,
        state="FAILED",
        ending="",
        finished_at=job.now(),
        machine=attempt.machine.name,
        zone=attempt.machine.zone,
        reason=join(f"the job was ended because {why}", lost),
        lost=lost,
    )
    attempt.insist(last, UNREACHABLE)


def sha256_of_job(attempt: Attempt) -> str:
    """Return the hash that the job's metadata must have: this machine's metadata vouch for it."""
    if not attempt.sweep:
        expected: str = attempt.machine.job_sha256
        return expected
    record = states.read_sweep(attempt.bucket, attempt.sweep)
    # now: the laptop changes it when the sweep goes on with other code
    submitted = attempt.machine.facts()["job_sha256"]
    if record is None or record.fingerprint() not in submitted.split():
        raise BergError(
            f"{job.sweep_path(attempt.sweep)} is not what was submitted: somebody replaced it. "
            "Submit the sweep again"
        )
    return record.sha256_of(attempt.name)


def read_job(attempt: Attempt) -> None:
    """Read what the job is; raises BergError if that is missing, damaged, or not what was sent."""
    this = states.read_job(attempt.bucket, attempt.name, sha256_of_job(attempt))
    if this is None:
        raise BergError(f"gs://{attempt.bucket.name}/{job.metadata_path(attempt.name)} is missing")
    attempt.take_job(this)
