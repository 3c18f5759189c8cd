"""The results and the log of an attempt: restored, mirrored while it runs, and sent to the end when
it is finished. What could not be saved is named.

What the command writes to the checkout, outside of its results, is below `_checkout` in them. New
files are linked into it when the command has ended. The folders of --keep are mirrored while the
command runs: `_checkout` has a link to each, which the mirror follows, so that programs may delete
and re-create them. Before a restore each is moved back into the results, and after the checkout of
the code to its place.
"""

import contextlib
import functools
import itertools
import math
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from berg import BergError, job, plain, states
from berg.code import git
from berg.google import api, views
from berg.google.sending import RECORD, WRITER
from berg.google.walk import MAX_NAME, name_left, shorten
from berg.machine import boot, peers
from berg.machine.attempt import LAST_STATE_SECONDS, Attempt, Damaged, NoJob
from berg.machine.environment import repo_folder
from berg.machine.outcome import Ending, Uploads, join
from berg.machine.process import CUT_FILE, LOST_POWER, RESULTS, start_thread
from berg.plain import plural

UNREACHABLE = 600  # seconds for which the last state and log are tried while the bucket fails
BUCKET_TIMEOUT = 120  # seconds in which a missing bucket may be there again
GONE_TIMEOUT = 30  # the same for the last state and log, after that
BUCKET_LOOK = 300  # seconds between two looks whether the bucket exists while the command runs
LOG_TIMEOUT = 120  # seconds for the last lines of the log
LONG_LOG = 8 << 20  # bytes of a log that is sent at once
MOMENT = 1.0  # seconds for the last results before the log is sent in parallel
UPLOAD_LOOK = 3  # seconds between two looks at the progress of the last upload
LOG_INTERVAL, RESULTS_INTERVAL = 2, 10  # seconds
ASIDE = boot.BERG / "cut-off"  # what a command left under which the machine lost its power
MOST_PASSES = 5  # before another attempt, over what something still writes
STATE_INTERVAL = 20  # seconds between notes of a pass in the state: with a pass they are 30 s
IN_A_SAVE = "in a save"  # how the results of a machine may end (Mirror.ends_in_a_save)
NEW_INTERVAL = 1  # seconds between passes over files that are not in the bucket yet


def restore_results(attempt: Attempt) -> None:
    """Bring the results to the last view of the job, or of the one whose results it begins with."""
    this, results = attempt.job, attempt.mirrors.results
    take_out(attempt)
    how = (attempt.begins_here, this.begins_with, this.fresh)
    meets = not attempt.member.is_alone and this.is_replaced  # and brings the news then
    runs = bool(this.cmd) and not attempt.earlier
    restored, left = results.restore(*how, publish=not meets, undo=runs)
    if restored:
        attempt.say(f"Restored {plural(restored, 'file')} of the results")
    for path, why in left.items():
        attempt.say(f"Not restored: {path}: {why}")


def set_aside(attempt: Attempt) -> None:
    """Let a job whose machine lost its power under the command begin here as on a new disk. What is
    here stays next to it, unless it takes the space that the job may need.
    """
    for mark in (*boot.BERG.glob("begun-*"), attempt.command_mark, CUT_FILE):
        mark.unlink(missing_ok=True)
    left = [*RESULTS.glob("*"), repo_folder(attempt.job)]
    aside = ASIDE / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    has_room = 2 * sum(map(size_of, left)) < shutil.disk_usage(boot.BERG).free
    for each in left:
        if has_room and os.path.lexists(each):
            (aside / each.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.move(each, aside / each.parent.name)
        elif each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink(missing_ok=True)
    LOST_POWER.unlink()  # the last, for a machine that loses its power again
    until = attempt.state.synced_until
    since = f"with its results as of {until}" if until else "from its beginning"
    what = f"is in {aside}" if has_room else "was deleted, as the disk has no room for it"
    attempt.say(f"The machine lost its power: the job continues as on a new one, {since}")
    attempt.say(f"What the command left may be half written, and {what}")


def size_of(place: Path) -> int:
    """Return how many bytes a file or folder takes on its disk."""
    files = (Path(top) / name for top, _, names in os.walk(place) for name in names)
    return sum(512 * each.lstat().st_blocks for each in (place, *files) if os.path.lexists(each))


def write_record(attempt: Attempt) -> None:
    """Write a copy of the job's record next to its results: in the bucket alone, since programs may
    want an empty folder.
    """
    name = f"berg_results/{attempt.job.results_dir}/{RECORD}"
    writer = attempt.mirrors.results.writer
    attempt.bucket.write(name, attempt.job.to_json(), metadata={WRITER: writer})


def mirror_results(attempt: Attempt) -> None:
    attempt.mirrors.start(keep_results, attempt)
    if attempt.job.kind == "job":
        attempt.mirrors.start(watch_bucket, attempt)


def watch_bucket(attempt: Attempt) -> None:
    """End a job whose bucket is gone at two looks: its results could not be saved."""
    was_gone = False
    while not attempt.mirrors.done.wait(BUCKET_LOOK):
        is_gone = bucket_is_gone(attempt)
        if is_gone and was_gone:
            minutes = BUCKET_LOOK // 60
            why = f"its bucket {attempt.bucket.name} has not existed for {minutes} minutes or more"
            attempt.stop(Ending("FAILED", why))
            return
        was_gone = is_gone


def send_all(attempt: Attempt) -> None:
    """Send all that this machine wrote before another attempt looks for it in the bucket.

    What the bucket does not accept within the job's upload timeout is logged and left to later
    passes. Raises Stopped if the job is to end.
    """
    results, end = attempt.mirrors.results, time.monotonic() + attempt.job.upload_timeout
    with attempt.mirrors.turn:
        results.rest()
    for passes in itertools.count(1):
        with attempt.mirrors.turn:
            results.sync(stop=attempt.stopping.event.is_set)
        if results.journal.head.rests or (passes >= MOST_PASSES and not results.failed):
            return
        if results.failed and time.monotonic() > end:
            attempt.say(f"The next attempt begins without all results: {name_left(results.failed)}")
            return
        attempt.stopping.pause(1 if results.failed else 0)


def bring_news(attempt: Attempt) -> None:
    """Bring the results to the moment as of which the bucket has those of all machines."""
    with attempt.mirrors.turn:
        take_out(attempt)
        new, _ = attempt.mirrors.results.restore()
        put_back(attempt)
    if new:
        attempt.say(f"Downloaded {plural(new, 'file')} of the other machines' results")


def send_changes(attempt: Attempt, seconds: float, only_new: bool = False) -> int:
    """Make a pass over the results, one at a time; return how many files were sent."""
    with attempt.mirrors.turn:
        return attempt.mirrors.results.sync(seconds, attempt.mirrors.done.is_set, only_new)


def keep_results(attempt: Attempt) -> None:
    """Mirror the results until the attempt is done.

    A pass takes at most RESULTS_INTERVAL: the next one looks again at what is newest.
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
        if tries:  # soon, then less and less often
            pause = min(pause, 2 ** (tries - 1))
        if results.is_behind:
            pause = 0
        if is_whole and time.monotonic() - written >= STATE_INTERVAL - 1:
            written = time.monotonic()
            attempt.states.write_quietly(soon=True, synced_until=results.synced_until)


def is_done_after(attempt: Attempt, pause: float, sent: int) -> bool:
    """Wait for `pause` seconds or a hurry; return whether the attempt is done then.

    Meanwhile new files are sent while there are any: each costs one write, whenever it is sent.
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

    Each write costs, a dollar for some 200,000. With a pass the pause is at most 30 s, which is
    what the loss of a machine may cost of the results.
    """
    return min(max(changed / 10, RESULTS_INTERVAL), 20)


def stop_mirrors(attempt: Attempt) -> None:
    attempt.mirrors.stop()
    if attempt.sampling.is_alive():
        attempt.sampling.join(1)  # its last sample is sent with the end of the log


def last_moment(attempt: Attempt) -> float:
    """Return when (time.monotonic()) the last passes end, so that the state can be written."""
    if attempt.machine_goes:
        return attempt.stopping.deadline - LAST_STATE_SECONDS
    limit = attempt.job.max_run_seconds
    if not limit:
        return math.inf
    return attempt.states.began + limit - attempt.counted_before - min(75, limit / 8)


@dataclass
class LastPass:
    """The result of the last pass over the results."""

    left: dict[str, str] = field(default_factory=dict)  # file -> why it is not in the bucket
    failure: str = ""  # why the pass failed


def save(attempt: Attempt, reason: str) -> Uploads:
    """Send the last results and the end of the log in parallel, to the last moment if there is
    progress. Log what could not be sent.
    """
    mirrors = attempt.mirrors
    seconds = last_moment(attempt) - time.monotonic()
    last = LastPass()
    sending = start_thread(send_results, attempt, last, seconds)
    mirrors.last_log_pass = start_thread(send_log_in_parallel, attempt, sending, seconds)
    watch_upload(attempt, sending, reason)
    left, is_whole = last.left, False
    if last.failure:
        left = {f"berg_results/{attempt.job.results_dir}": last.failure}
    elif sending.is_alive():
        why = mirrors.trouble or "it was being sent"
        left = {path: why for path, _ in mirrors.results.left()}
    else:
        is_whole = left.keys() <= mirrors.results.refused.keys()
    if is_whole and attempt.job.on:
        attempt.command_mark.unlink(missing_ok=True)  # nothing is left here (hosting.py)
    return uploads_of(attempt, left, is_whole)


def uploads_of(attempt: Attempt, left: dict[str, str], is_whole: bool) -> Uploads:
    """Log what is not in the bucket, and why; return it as `Uploads`."""
    for path, why in left.items():
        attempt.say(f"Not in the bucket: {shorten(path, 2 * MAX_NAME)}: {why}")
    return Uploads(is_whole=is_whole, lost=name_left(left))


def conclude_together(attempt: Attempt, uploads: Uploads) -> Uploads:
    """Conclude the results of this machine once all machines of the job have sent theirs; return
    what this one uploaded.

    None concludes if one of them ended in a save: a job that continues this one begins with the
    moment before, which all have in common.
    """
    results, end = attempt.mirrors.results, last_moment(attempt)
    continues = attempt.restart() is not None or attempt.is_re_created
    has_sent = uploads.is_whole and results.finishing  # else those of a machine before this one
    if continues or not has_sent:
        return uploads
    note = functools.partial(note_left, attempt) if attempt.leads else lambda reports: None
    try:
        peers.announce(attempt.member, sent=how_it_ends(attempt))
        others = peers.wait_for_records(attempt.member, "sent", note, end)
    except Exception:  # the network; the last views have it all
        return uploads
    elsewhere = any(about.get("sent") == IN_A_SAVE for about in others.values())
    if time.monotonic() > end or (elsewhere and not results.ends_in_a_save):
        return uploads
    if failed := results.conclude({}):
        lost = join(uploads.lost, uploads_of(attempt, failed, False).lost)
        return replace(uploads, is_whole=False, lost=lost)
    return uploads


def how_it_ends(attempt: Attempt) -> str:
    """Return what the other machines are to know of the results of this one."""
    return IN_A_SAVE if attempt.mirrors.results.ends_in_a_save else "all"


def of_lost_machine(attempt: Attempt) -> Uploads:
    """Return what became of the last results of a machine that was lost after the command had
    ended, and that this one replaces.
    """
    view = views.at(views.of_job(attempt.bucket, attempt.name))
    if view and (view.final or view.cut):
        return Uploads()
    lost = (
        "its machine was lost before the last results were in the bucket; run the command again: "
        f"berg run --resume {attempt.name}"
    )
    if not attempt.member.is_alone:
        lost = f"{attempt.machine.name}: {lost}"
        if record := peers.phases(attempt.member).get(attempt.machine.name):
            uploaded = record.metadata.get("uploaded")
            if uploaded:
                return Uploads(uploaded == "all", record.metadata.get("lost", ""))
    return Uploads(is_whole=False, lost=lost)


def send_results(attempt: Attempt, last: LastPass, seconds: float) -> None:
    """Send the last results, then what is new in the checkout, for at most `seconds`."""
    results, end = attempt.mirrors.results, time.monotonic() + seconds

    def note_trouble(text: str) -> None:
        attempt.mirrors.trouble = text
        attempt.say(text)

    try:
        last.left = results.finish(note_trouble, seconds)
    except Exception as error:
        last.failure = f"{type(error).__name__}: {error}"
        return
    try:
        if time.monotonic() < end and save_checkout(attempt):
            last.left = results.finish(note_trouble, end - time.monotonic())
    except Exception as error:  # such as a checkout that the command deleted
        attempt.say(f"What is new in the checkout could not be saved: {error}")
    for path, has in results.cut.items():
        what = f"{shorten(path, 2 * MAX_NAME)} was being written when its program was ended"
        attempt.say(f"{what}: the bucket has {has}")
    if attempt.member.is_alone and attempt.restart() is None and not attempt.is_re_created:
        last.left |= results.conclude(last.left)


def send_log_in_parallel(attempt: Attempt, sending: threading.Thread, seconds: float) -> None:
    """Send the log during the last results, unless it is short and they are sent within a moment:
    its end would have to wait, as an object takes one write a second.
    """
    log = attempt.mirrors.log
    is_long = sum(size for _, size in log.left()) > LONG_LOG
    if not (attempt.machine_goes or is_long):
        sending.join(MOMENT)
    if is_long or sending.is_alive():
        log.finish(boot.console, seconds)


def watch_upload(attempt: Attempt, sending: threading.Thread, reason: str) -> None:
    """Write the upload's progress into the state until it ends, hangs, or has no time left."""
    sending.join(UPLOAD_LOOK)
    ahead: list[tuple[str, int]] = []
    moved, timeout = time.monotonic(), attempt.job.upload_timeout
    while sending.is_alive():
        now = time.monotonic()
        if now > last_moment(attempt) + 1 or now - moved > timeout:
            return
        still = attempt.mirrors.results.left()
        if still != ahead:
            ahead, moved = still, now
        report_progress(attempt, ahead, reason)
        if timeout > BUCKET_TIMEOUT and attempt.mirrors.trouble and bucket_is_gone(attempt):
            timeout = BUCKET_TIMEOUT
        sending.join(max(0.1, min(UPLOAD_LOOK, last_moment(attempt) - now)))


def report_progress(attempt: Attempt, ahead: list[tuple[str, int]], reason: str) -> None:
    """Write into the state how much of the results is still to be sent, and what delays it."""
    files, size = len(ahead), sum(size for _, size in ahead)
    attempt.member.summary["left"] = f"{files} {size}"  # sent with the next heartbeat
    if attempt.mirrors.trouble:
        reason = f"{reason}; {attempt.mirrors.trouble}".strip("; ")
    state = attempt.state
    if (files, size, reason) != (state.left_files, state.left_bytes, state.reason):
        attempt.states.write(soon=True, left_files=files, left_bytes=size, reason=reason)


def note_left(attempt: Attempt, reports: list[str]) -> None:
    """Write into the state how many "files bytes" the other machines report as left."""
    counts = [report.split() for report in reports]
    files, size = (sum(int(count[n]) for count in counts) for n in (0, 1))
    if (files, size) != (attempt.state.left_files, attempt.state.left_bytes):
        attempt.states.write(left_files=files, left_bytes=size)


def send_log(attempt: Attempt) -> bool:
    """Send the end of the log; return whether that was done in time."""
    now = time.monotonic()
    end = now + min(LOG_TIMEOUT, seconds_for_last_words(attempt))
    if attempt.machine_goes:
        end = max(now + LAST_STATE_SECONDS / 2, attempt.stopping.deadline - LAST_STATE_SECONDS)
    if attempt.mirrors.last_log_pass.is_alive():
        attempt.mirrors.last_log_pass.join(end - time.monotonic())
    if attempt.mirrors.last_log_pass.is_alive():
        return False
    if not attempt.machine_goes:
        time.sleep(attempt.mirrors.log.seconds_to_next_write())
    with contextlib.suppress(Exception):  # the state must be written all the same
        return not attempt.mirrors.log.finish(boot.console, end - time.monotonic())
    return False


def seconds_for_last_words(attempt: Attempt) -> float:
    """Return for how long to try to write the last state and the end of the log."""
    if attempt.machine_goes:
        return LAST_STATE_SECONDS
    has_trouble = attempt.mirrors.trouble or attempt.mirrors.last_log_pass.is_alive()
    if has_trouble and bucket_is_gone(attempt):
        return GONE_TIMEOUT
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
    """Save a job's results unless another worker has them; replace an unreadable state."""
    is_damaged, this = False, attempt.machine
    attempt.member.leads = False
    try:
        state = attempt.states.read()
        if not state.final and (state.machine, state.zone) != (this.name, this.zone):
            return
    except NoJob:
        pass
    except Damaged as error:
        is_damaged, why = True, error.message
    lost = save(attempt, "").lost
    send_log(attempt)
    if is_damaged:
        replace_state(attempt, why, lost)


def replace_state(attempt: Attempt, why: str, lost: str) -> None:
    """Write the state of a job that was ended because its state is unreadable."""
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


def read_job(attempt: Attempt) -> None:
    """Read the job's metadata; raises BergError if they are missing, damaged or replaced."""
    this = states.read_job(attempt.bucket, attempt.name, sha256_of_job(attempt))
    if this is None:
        raise BergError(f"gs://{attempt.bucket.name}/{job.metadata_path(attempt.name)} is missing")
    attempt.member.job = this
    if this.spec.queue:  # it waits again each time that it is evicted
        attempt.member.waited = attempt.waited_last
    attempt.member.host = peers.host_of(attempt.machine, attempt.bucket.config, this)
    results = attempt.mirrors.results
    results.journal.is_shared = not attempt.member.is_alone
    results.journal.others = attempt.member.others_views
    results.journal.keeps_deleted = this.spec.keep_deleted
    attempt.member.own_view = lambda: results.journal.head


def sha256_of_job(attempt: Attempt) -> str:
    """Return the hash that the job's metadata must have."""
    if not attempt.sweep:
        expected: str = attempt.machine.job_sha256
        return expected
    record = states.read_sweep(attempt.bucket, attempt.sweep)
    # read again: the laptop changes it when the sweep continues with other code
    submitted = attempt.machine.facts()["job_sha256"]
    if record is None or record.fingerprint() not in submitted.split():
        raise BergError(
            f"{job.sweep_path(attempt.sweep)} is not what was submitted: it was replaced. "
            "Submit the sweep again"
        )
    return record.sha256_of(attempt.name)


CHECKOUT = "_checkout"
MOST_BYTES, MOST_FILES = 10 * 10**9, 100_000
START_COMMIT = "refs/berg/start"  # the job's commit (code/snapshot.py)
# Folders that are not saved where git ignores them, as the job's checkout lets it do with most.
IS_CACHE = re.compile(r"\.?venv|__pycache__|node_modules|\.cache|\..*_cache|.*\.egg-info")


def link_results(root: Path, cwd: str) -> None:
    """Let the relative path berg_results of a checkout, and of the folder that the command runs in,
    lead to the results, unless the repository has something there.
    """
    for folder in {root, root / cwd}:
        link = folder / RESULTS.name
        if folder.is_dir() and not os.path.lexists(link):
            link.symlink_to(RESULTS)


def folder_of(attempt: Attempt) -> Path:
    """Return where this machine saves what is new in its checkout."""
    rank = attempt.member.node.rank
    return RESULTS / attempt.job.results_dir / CHECKOUT / (f"rank-{rank}" if rank else "")


def kept_folders(attempt: Attempt) -> Iterator[tuple[Path, Path]]:
    """Yield each folder of --keep: its path in the results and in the checkout."""
    for path in attempt.job.spec.kept if attempt.job.kind == "job" else ():
        inside = RESULTS / attempt.job.results_dir / CHECKOUT / path
        yield inside, repo_folder(attempt.job) / path


def take_out(attempt: Attempt) -> None:
    """Move the kept folders into the results, where a restore looks for them."""
    for inside, here in kept_folders(attempt):
        if inside.is_symlink():
            inside.unlink()
            if here.exists():
                shutil.move(here, inside)


def put_back(attempt: Attempt) -> None:
    """Move what the results have of the kept folders into the checkout, and link to it."""
    for inside, here in kept_folders(attempt):
        if inside.exists() and not inside.is_symlink():
            merge_into(inside, here)
        if not inside.is_symlink():
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(here)
        attempt.mirrors.results.followed.add(str(inside.relative_to(RESULTS)))


def merge_into(source: Path, target: Path) -> None:
    """Move a file or folder; files that a folder has at the same path are replaced."""
    folders = [each.is_dir() and not each.is_symlink() for each in (source, target)]
    if all(folders):
        for each in source.iterdir():
            merge_into(each, target / each.name)
        source.rmdir()
        return
    if folders[1]:
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


def note_start(attempt: Attempt) -> None:
    """Note that the command begins, once: what changes from now on is new."""
    if attempt.job.kind == "job" and not attempt.command_mark.exists():
        attempt.command_mark.touch()


def save_checkout(attempt: Attempt) -> bool:
    """Link what the command wrote to the checkout into the results; return whether there is any.

    What was saved and what was not is logged, and is in the state.
    """
    if not attempt.command_mark.exists() or not attempt.job.spec.saves_checkout:
        return False
    folder, root = folder_of(attempt), repo_folder(attempt.job)
    saved = total = 0
    left: dict[str, str] = {}
    for path, found in sorted(new_files(attempt, root), key=lambda each: -each[1].st_ctime_ns):
        if total + found.st_size > MOST_BYTES or saved == MOST_FILES:
            left[path] = f"more than {plain.size(MOST_BYTES)} or {MOST_FILES:,} files"
        elif why := why_not(root, path):
            left[path] = why
        else:
            try:
                link_file(root / path, folder / path)
            except OSError as error:
                left[path] = error.strerror or str(error)
                continue
            saved, total = saved + 1, total + found.st_size
    attempt.state.checkout = in_words(saved, total, left)
    if attempt.state.checkout:
        attempt.say(f"Of the checkout: {attempt.state.checkout}")
    return saved > 0


def in_words(saved: int, total: int, left: dict[str, str]) -> str:
    """Return what was saved of a checkout, and what was not, short enough for a state."""
    text = ""
    if saved:
        text = f"{plain.plural(saved, 'new file')} ({plain.size(total)}) saved in {CHECKOUT}"
    if left:
        names = [f"{shorten(path, 60)} ({shorten(why, 60)})" for path, why in [*left.items()][:2]]
        more = f", and {len(left) - 2:,} more" if len(left) > 2 else ""
        text += f"{'; ' if text else ''}not saved: {', '.join(names)}{more}"
    return text


def new_files(attempt: Attempt, root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files and links of the checkout that the command created or changed, but not what
    --keep mirrors.
    """
    since = attempt.command_mark.stat().st_ctime_ns
    same = unchanged(root)
    for path, found in files_below(root, {here for _, here in kept_folders(attempt)}):
        if found.st_ctime_ns > since and path not in same:
            yield path, found


def files_below(root: Path, left_out: set[Path]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files and links below a checkout, but not those of git, of caches that git ignores, and
    on other file systems.
    """
    disk = root.stat().st_dev
    pending, caches = [root], list[Path]()
    while pending:
        for path, found in entries_in(pending.pop()):
            if path.name == ".git" or path in left_out or found.st_dev != disk:
                continue
            if stat.S_ISDIR(found.st_mode):
                (caches if IS_CACHE.fullmatch(path.name) else pending).append(path)
            elif stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                yield str(path.relative_to(root)), found
        if not pending and caches:
            pending, caches = not_ignored(root, caches), []


def entries_in(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with contextlib.suppress(OSError):  # it cannot be read, or is gone
        for entry in os.scandir(folder):
            yield Path(entry.path), entry.stat(follow_symlinks=False)


def unchanged(root: Path) -> set[str]:
    """Return the files of the job's commit that are as they are there."""
    with contextlib.suppress(git.GitError):  # the command may have deleted .git
        names = git.names(git.run(root, "ls-tree", "-r", "-z", "--name-only", START_COMMIT))
        return {*names} - {*git.names(git.run(root, "diff", "--name-only", "-z", START_COMMIT))}
    return set()


def not_ignored(root: Path, folders: list[Path]) -> list[Path]:
    """Return the folders whose files git does not ignore."""
    files = {f"{each.relative_to(root)}/file": each for each in folders}
    paths = b"".join(os.fsencode(name) + b"\0" for name in files)
    try:
        ignored = {*git.names(git.run(root, "check-ignore", "-z", "--stdin", stdin=paths))}
    except git.GitError:  # none is, or there is no repository any more
        ignored = set() if (root / ".git").exists() else {*files}
    return [each for name, each in files.items() if name not in ignored]


def why_not(root: Path, path: str) -> str:
    """Return why a link is not saved; "" for one whose target comes with it, and for files."""
    here = root / path
    if not here.is_symlink():
        return ""
    leads_out = here.readlink().is_absolute() or root not in here.resolve().parents
    return "a link out of the checkout" if leads_out else ""


def link_file(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it to another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
