"""How an attempt at a job ends, and the state that follows from that.

Nothing here reads, writes or waits: worker.py collects what is known, and acts on what is decided.
"""

import math
import threading
import time
from dataclasses import dataclass, field, replace

from berg.job import STOPPED, Job, State

MAX_LOST = 500  # characters of a state for what was not saved
LOG_IS_CUT = "the end of the log is not in the bucket"
NOTICE = 28  # of the 30 seconds that Google gives


@dataclass(frozen=True)
class Ending:
    """How a job is to end, or has ended, and why."""

    # one of job.FINAL, or STOPPED; ENDED: another machine writes the state
    state: str
    reason: str
    exit_code: int | None = None
    is_chosen: bool = False  # a user chose that the machine is deleted


PREEMPTED = Ending("FAILED", "Google preempted the machine")
# A machine that shuts down sends SIGTERM to all its processes at once; its metadata may say why.
SHUT_DOWN = Ending("KILLED", "the machine was shut down from outside")
MAINTAINED = Ending("FAILED", "Google stopped the machine to maintain its host")
POD_TAKEN_AWAY = Ending(
    "FAILED",
    "Kubernetes ended the pod: its node was removed, a user deleted it, or another pod of the job "
    "was lost",
)
BOX_ENDS = Ending("FAILED", "its devbox was stopped or killed")
# It deletes itself, and its group makes another one.
SLOW_NETWORK = Ending("FAILED", "its network is slower than that of the others, so it is replaced")
# After these the machine is gone within seconds.
TAKEN_AWAY = (PREEMPTED, SHUT_DOWN, MAINTAINED, POD_TAKEN_AWAY, BOX_ENDS, SLOW_NETWORK)


@dataclass(frozen=True)
class Restart:
    """How a job restarts after its machine was taken away, or stopped."""

    reason: str
    is_counted: bool = True  # as one of the restarts that the job may have
    state: str = "SUBMITTED"  # of the job until then
    is_of_all: bool = False  # all of its machines went away together


AFTER_MAINTENANCE = Restart("it restarts, and the job with it", is_counted=False)
ELSEWHERE = Restart("the job restarts where there is capacity")
WHEN_STARTED = Restart("", is_counted=False, state=STOPPED)
# The command has ended, and only the disk has some of its results: a machine with it sends them.
TO_FINISH = Restart("", is_counted=False, state="UPLOADING")


@dataclass(frozen=True)
class Uploads:
    """What became of the last results and of the end of the log."""

    is_whole: bool = True  # this machine's results are in the bucket, but for what it cannot take
    lost: str = ""  # what this machine could not upload
    others_are_whole: bool = True
    others_lost: list[str] = field(default_factory=list)  # a text for each machine that lost some
    elsewhere: str = ""  # other folders under berg_results that the job wrote to
    synced_until: str = ""
    log_is_whole: bool = True

    @property
    def are_whole(self) -> bool:
        """Whether that is so on all machines."""
        return self.is_whole and self.others_are_whole


def restart_after(cause: Ending | None, this: Job, sweep: str, restarts: int) -> Restart | None:
    """Return how the job restarts after `cause` stopped it; None if it does not.

    `sweep` is the name of the sweep whose jobs this machine runs, `restarts` how often the job
    restarted before.
    """
    restart = restart_of_one(cause, this, sweep, restarts)
    if restart and this.tpu:  # all machines of a slice go away together
        return replace(restart, is_of_all=True)
    return restart


def restart_of_one(cause: Ending | None, this: Job, sweep: str, restarts: int) -> Restart | None:
    """Return the same, as if the machine was alone."""
    if cause and cause.state == STOPPED:
        return WHEN_STARTED
    if cause not in TAKEN_AWAY:
        return None
    if cause == MAINTAINED and this.is_restarted:
        return AFTER_MAINTENANCE
    if this.keeps_disk:  # also if the machine was turned off from outside
        return WHEN_STARTED
    if not has_successor(this, sweep) or restarts >= this.spec.max_restarts:
        return None
    return AFTER_MAINTENANCE if cause == MAINTAINED else ELSEWHERE


def has_successor(this: Job, sweep: str) -> bool:
    """Return whether another machine replaces a lost one and continues the job."""
    is_lone_member = this.num_machines == 1 and this.is_kept
    return sweep != "" or is_lone_member or this.is_replaced


def after_uploads(ending: Ending, uploads: Uploads) -> Ending:
    """Return the ending once the uploads are known: a job whose results are lost has failed."""
    if ending.state == "SUCCEEDED" and not uploads.are_whole:
        return replace(ending, state="FAILED")
    return ending


def lost_by_all(reason: str, uploads: Uploads, lost_before: str) -> str:
    """Return what all attempts could not upload, but for what the reason says."""
    others = [text for text in uploads.others_lost if text not in reason]
    now = join(uploads.lost, *others)
    return join(*dict.fromkeys([now, lost_before]))[:MAX_LOST]


def final_reason(ending: Ending, uploads: Uploads, lost_before: str) -> str:
    """Return why a job that does not restart has ended, with what is lost."""
    lost = lost_by_all(ending.reason, uploads, lost_before)
    return ending.reason if lost in ending.reason else join(ending.reason, lost)


def decide(
    before: State, ending: Ending, uploads: Uploads, restart: Restart | None, now: str
) -> State:
    """Return the last state that this attempt writes.

    `before` is the state so far. `now` is the time of the end, ISO 8601 in UTC.
    """
    if restart == TO_FINISH:
        return before
    ending = after_uploads(ending, uploads)
    log = "" if uploads.log_is_whole else LOG_IS_CUT
    missing = 0
    if restart and before.job.machines > 1:  # the others wait for this one
        missing = before.job.machines if restart.is_of_all else 1
    common = replace(
        before,
        synced_until=uploads.synced_until,
        lost=lost_by_all(ending.reason, uploads, before.lost),
        elsewhere=uploads.elsewhere,
        left_files=0,
        left_bytes=0,
        ending="",
        missing=missing,
        missing_since=now if missing else "",
    )
    if restart:
        return replace(
            common,
            state=restart.state,
            exit_code=None,
            reason=join(ending.reason, log, restart.reason),
            restarts=before.restarts - (not restart.is_counted),
        )
    return replace(
        common,
        state=ending.state,
        exit_code=ending.exit_code,
        reason=join(final_reason(ending, uploads, before.lost), log),
        finished_at=now,
    )


def join(*texts: str) -> str:
    """Return the texts that are not empty as one."""
    return "; ".join(text for text in texts if text)


class Stopped(Exception):
    """The job ends before its command does."""


class Stopping:
    """Whether the job is to end, which any thread may request; only the first request counts."""

    def __init__(self) -> None:
        self.ending: Ending | None = None
        self.event = threading.Event()
        self.deadline = math.inf  # time.monotonic() at which Google takes the machine

    def request(self, ending: Ending) -> bool:
        """Request that the job ends; return whether this is the first request."""
        if self.ending:
            return False
        self.ending = ending
        if self.machine_goes:
            self.deadline = time.monotonic() + NOTICE
        self.event.set()
        return True

    @property
    def machine_goes(self) -> bool:
        """Whether Google takes the machine within seconds."""
        return self.ending in TAKEN_AWAY

    def pause(self, seconds: float) -> None:
        """Wait; raise Stopped when the job is to end."""
        if self.event.wait(seconds):
            raise Stopped
