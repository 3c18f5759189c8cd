"""The results and the log of an attempt: brought back, mirrored while it runs, and sent to the end
when it is over.

The last results and the end of the log are sent side by side, in bounded time, and what was not
kept is named.
"""

import contextlib
import functools
import math
import time

from berg import BergError, job
from berg.google.paths import tell
from berg.machine import boot
from berg.machine.attempt import LAST_WORD, Attempt, Damaged, NoJob
from berg.words import plural

UNREACHABLE = 600  # seconds for which a last word is tried while the bucket refuses it
BUCKET_PATIENCE = 120  # seconds in which a bucket that is gone may come back
LOG_PATIENCE = 120  # seconds for the last lines of the log
LOG_INTERVAL, RESULTS_INTERVAL, STATE_INTERVAL = 2, 10, 30  # seconds
NEW_INTERVAL = 1  # seconds between passes over files that are not in the bucket yet


def restore_results(attempt: Attempt) -> None:
    """Bring what the job's folders have in the bucket, from this job or one before it; it may be
    replaced here.
    """
    brought, left = attempt.results.restore(bring=attempt.begins_here)
    if brought:
        attempt.say(f"Brought back {plural(brought, 'file')} of the results")
    for path, why in left.items():
        attempt.say(f"Not brought back: {path}: {why}")
    attempt.marker.touch()


def mirror_log(attempt: Attempt) -> None:
    attempt.mirrors.append(attempt.start_thread(attempt.log.run, LOG_INTERVAL, attempt.done))


def mirror_results(attempt: Attempt) -> None:
    attempt.mirrors.append(attempt.start_thread(keep_results, attempt))


def keep_results(attempt: Attempt) -> None:
    """Mirror the results until the attempt is done.

    No pass takes longer than RESULTS_INTERVAL: the next one looks again at what is the newest.
    """
    written, changed = -math.inf, 0
    pause = float(RESULTS_INTERVAL)
    while not attempt.done.is_set():
        if is_done_after(attempt, pause, changed):
            break
        changed = attempt.results.sync(RESULTS_INTERVAL, attempt.done.is_set)
        pause = pause_after(changed)
        if attempt.results.is_behind:
            pause = 0
        if time.monotonic() - written >= STATE_INTERVAL and not attempt.results.failed:
            written = time.monotonic()
            attempt.write_state_by_the_way(soon=True, synced_until=attempt.results.synced_until)


def is_done_after(attempt: Attempt, pause: float, sent: int) -> bool:
    """Wait for so many seconds, or until there is hurry; return whether the attempt is done then.

    Meanwhile files that are not in the bucket yet go there, as long as there are any: each costs
    one write, whenever it is sent.
    """
    end = time.monotonic() + pause
    while (left := end - time.monotonic()) > 0:
        if sent:
            left = min(left, NEW_INTERVAL)
        if attempt.hurry.wait(left):
            return attempt.done.wait(1)
        left = end - time.monotonic()
        if sent and left > 0:
            sent = attempt.results.sync(left, attempt.done.is_set, only_new=True)
    return attempt.done.is_set()


def pause_after(changed: int) -> float:
    """Return the seconds from a pass over all results to the next.

    Each time that an object is written anew costs, a dollar for some 200,000. With a pass these are
    30 s at most, which is what a machine that is lost may cost of the results.
    """
    return min(max(changed / 10, RESULTS_INTERVAL), 20)


def stop_mirrors(attempt: Attempt) -> None:
    attempt.done.set()
    attempt.hurry.set()
    for thread in attempt.mirrors:
        thread.join()
    if attempt.sampling.is_alive():
        attempt.sampling.join(1)  # its last sample goes with the end of the log


def last_moment(attempt: Attempt) -> float:
    """When the last passes have to end for the state to be written before the machine goes;
    time.monotonic().
    """
    if attempt.machine_goes:
        return attempt.gone_at - LAST_WORD
    limit = attempt.job.max_run_seconds
    return attempt.began + limit - attempt.ran_before - min(75, limit / 8) if limit else math.inf


def tell_trouble(attempt: Attempt, text: str) -> None:
    attempt.trouble = text
    attempt.say(text)


def save(attempt: Attempt, reason: str) -> tuple[dict[str, str], bool]:
    """Bring the last results and the end of the log to the bucket, side by side.

    Returns the files that could not be brought, with why, and whether all is there that can be
    there. It goes on while there is progress, to the last moment.
    """
    found: dict[str, str] = {}
    seconds, broken = last_moment(attempt) - time.monotonic(), ""

    def bring() -> None:
        nonlocal broken
        try:
            found.update(attempt.results.finish(functools.partial(tell_trouble, attempt), seconds))
        except Exception as error:
            broken = f"{type(error).__name__}: {error}"

    results = attempt.start_thread(bring)
    attempt.log_pass = attempt.start_thread(attempt.log.finish, boot.console, seconds)
    results.join(3)
    ahead: list[tuple[str, int]] = []
    moved, patience = time.monotonic(), attempt.job.patience_seconds
    while results.is_alive():
        now = time.monotonic()
        if now > last_moment(attempt) + 1 or now - moved > patience:
            break
        if (still := attempt.results.left()) != ahead:
            ahead, moved = still, now
        tell_progress(
            attempt,
            ahead,
            f"{reason}; {attempt.trouble}".strip("; ") if attempt.trouble else reason,
        )
        if attempt.trouble and patience > BUCKET_PATIENCE and bucket_is_gone(attempt):
            patience = BUCKET_PATIENCE
        results.join(max(0.1, min(3, last_moment(attempt) - now)))
    if broken:
        return {f"berg_results/{attempt.job.results_dir}": broken}, False
    if results.is_alive():
        return {
            path: attempt.trouble or "it was being sent" for path, _ in attempt.results.left()
        }, False
    if count := len(attempt.results.links):
        what = "1 link was sent as a copy" if count == 1 else f"{count:,} links were sent as copies"
        attempt.say(
            f"{what}: a bucket has no links. {min(attempt.results.links)} leads to what is in the results already"
        )
    return found, not (found.keys() - attempt.results.refused.keys())


def tell_progress(attempt: Attempt, ahead: list[tuple[str, int]], reason: str) -> None:
    """Write into the state how much of the results is to come, and what keeps it."""
    files, size = len(ahead), sum(size for _, size in ahead)
    attempt.member.summary["left"] = f"{files} {size}"  # goes with the next heartbeat
    if (files, size, reason) == (
        attempt.state.left_files,
        attempt.state.left_bytes,
        attempt.state.reason,
    ):
        return
    attempt.write_state(soon=True, left_files=files, left_bytes=size, reason=reason)


def tell_left(attempt: Attempt, told: list[str]) -> None:
    """Write into the state what all other machines have still to send, each a count of files and of
    bytes.
    """
    counts = [text.split() for text in told]
    files, size = (sum(int(count[n]) for count in counts) for n in (0, 1))
    if (files, size) != (attempt.state.left_files, attempt.state.left_bytes):
        attempt.write_state(left_files=files, left_bytes=size)


def send_log(attempt: Attempt) -> bool:
    """Send the end of the log, with what was said since the last pass; whether that could be done
    quickly.
    """
    now = time.monotonic()
    end = (
        max(now + LAST_WORD / 2, attempt.gone_at - LAST_WORD)
        if attempt.machine_goes
        else now + LOG_PATIENCE
    )
    attempt.log_pass.join(end - time.monotonic())
    if attempt.log_pass.is_alive():
        return False
    with contextlib.suppress(Exception):  # the state is to be written all the same
        return not attempt.log.finish(boot.console, end - time.monotonic())
    return False


def bucket_is_gone(attempt: Attempt) -> bool:
    from google.api_core import exceptions

    try:
        next(iter(attempt.bucket.list(job.state_path(attempt.name), "name")), None)
    except exceptions.NotFound:
        return True
    except Exception:
        return False
    return False


def save_alone(attempt: Attempt, why: str) -> None:
    """Save what a job left whose state is not to be written any more; one that nobody can read is
    written anew.
    """
    damaged, this = False, attempt.machine
    attempt.member.leads = False
    try:
        state = attempt.read_state()
        if not state.final and (state.machine, state.zone) != (this.name, this.zone):
            return  # another worker has the job, and its results
    except NoJob:
        pass
    except Damaged as error:
        damaged, why = True, error.message
    lost = tell(save(attempt, "")[0])
    send_log(attempt)
    if damaged:
        attempt.member.leads = True
        with contextlib.suppress(BergError):
            read_job(attempt)
        if not attempt.state.job.created_at:
            attempt.state.job = attempt.job.summary()
        reason = "; ".join(filter(None, [f"the job was ended because {why}", lost]))
        end = {
            "state": "FAILED",
            "ending": "",
            "finished_at": job.now(),
            "machine": this.name,
            "zone": this.zone,
        }
        attempt.insist(lambda: attempt.write_state(**end, reason=reason, lost=lost), UNREACHABLE)


def read_job(attempt: Attempt) -> None:
    data = attempt.bucket.read(job.metadata_path(attempt.name))
    if data is None:
        raise BergError(f"gs://{attempt.bucket.name}/{job.metadata_path(attempt.name)} is missing")
    attempt.member.job = job.from_json(data, attempt.name)
