"""One attempt at a job on this machine: what its phases and its threads share, its state in the
bucket, and the mirrors of its log and results.
"""

import math
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from berg import BergError, computer, config, job, states
from berg.google import api
from berg.google.mirror import Mirror
from berg.google.storage import Bucket, Changed
from berg.job import Job, State
from berg.machine import boot, hosted, logins, peers, profile
from berg.machine.hosting import Hosting
from berg.machine.outcome import MAINTAINED, TO_FINISH, Ending, Restart, Stopping, restart_after
from berg.machine.peers import COMING, host_of
from berg.machine.process import (
    GRACE,
    LOST_POWER,
    MAX_FAILURES,
    RESULTS,
    Runner,
    Runs,
    command_mark,
    end_process,
    new_cut,
    start_thread,
)

LAST_STATE_SECONDS = 4  # of a preempted machine for its last state
HURRY = 2, 5  # seconds to connect to the bucket, and between two pieces of its answer, from then on
EARLIER = "in earlier attempts: "  # before what they could not save; it may be saved by now
LONGEST_PAUSE = 30  # seconds between two tries of a step that must not fail
WRITE_INTERVAL = 1.1  # seconds between two writes of the state: Cloud Storage takes one a second
LATER = 0.05  # seconds after those, in which later changes are collected
# The same for changes that need not be written at once: if the job ends before, its last state is
# the only write, and waits for none.
SOON = 1.0
# Seconds after which the next write does not wait for one that hangs, usually and in a preemption.
STALLED, STALLED_AT_THE_END = 180, 2

T = TypeVar("T")


def settings_of(machine: boot.Machine) -> config.Config:
    """Return the settings that a machine was created with."""
    return config.load(
        project=machine.project, bucket=machine.bucket, endpoint=machine.endpoint or None
    )


class MachineLost(Exception):
    """A machine of the job is lost and will be re-created: the next attempt begins."""


class NoJob(BergError):
    """The laptop withdrew the job while Google was still creating the machine."""


class Damaged(BergError):
    """The job's state is not readable any more."""


class Ended(Exception):
    """The job was ended elsewhere; this machine must not write its state."""


class Attempt:
    """One job on this machine."""

    def __init__(self, name: str, sweep: str = ""):
        self.name = name
        self.sweep = sweep  # of the job, if the machine runs other jobs after it
        self.machine = hosted.this_machine()
        if sweep:
            self.machine.log_for(name)
        # Files next to the log are mirrored with it.
        self.usage_file = self.machine.log.with_suffix(job.USAGE)
        self.software_file = self.machine.log.with_suffix(job.SOFTWARE)
        self.marker = boot.BERG / f"begun-{name}"  # the job began on this disk
        self.command_mark = command_mark(name)
        self.installed_mark = boot.BERG / f"installed-{name}"  # which record of it was installed
        self.bucket = Bucket(settings_of(self.machine))
        self.stopping = Stopping()
        self.member = self.first_member()
        self.states = StateWriter(
            name, self.bucket, self.machine, self.stopping, lambda: self.leads, self.stop
        )
        self.mirrors = mirrors_of(name, self.machine, self.bucket)
        self.runner = Runner(self.machine, self.stopping)
        self.hosting = Hosting(self.bucket, name)  # of other jobs, on a devbox
        self.secrets: dict[str, str] = {}  # for the command
        self.install_secrets: dict[str, str] = {}  # for the installation
        self.webhook = ""  # URL to notify of the job's end
        self.over = threading.Event()  # this machine has another job
        self.sampling = threading.Thread()
        self.reachable = threading.Thread()
        self.waited_last = 0.0  # seconds since the submit, or since its last machine was lost
        self.begins_here = not self.marker.exists()  # this disk has no files of the job yet
        self.profiler_port = computer.free_port(host="")  # of the server that the command may start
        self.kineto: profile.Desk | None = None
        self.loss = ""  # of a machine of the job, in words, which ends the attempt
        self.roce_faults: dict[str, str] = {}  # machine -> what keeps it from RoCE
        self.is_installed = False
        self.is_prepared = False  # installed, mounted, and results are mirrored
        # The command ended for good before anything stopped it: it does not run again.
        self.has_ended = False
        self.earlier: Ending | None = None  # how it ended before this worker began
        self.is_saved = False  # the bucket has the last results
        self.broken_off: Runs = None  # the last command that ended for the next attempt

    def first_member(self) -> peers.Member:
        """Return this machine among those of the job, before the job has been read."""
        is_first = self.machine.name.removeprefix(self.name).strip("-0") == ""
        if self.machine.warm == self.name:
            is_first = re.fullmatch(r".*-0+", self.machine.name) is not None
        unread = Job(self.name, "", "", "", "", "", "")
        if self.machine.box:
            unread = replace(unread, kind="devbox", keeps_disk=self.machine.box == boot.STOPS)
        node = peers.Node(self.machine.name, 0)
        return peers.Member(
            self.machine,
            host_of(self.machine, self.bucket.config, unread),
            self.bucket,
            unread,
            is_first or self.sweep != "",
            self.pause,
            node,
            [node],
            key=self.machine.cluster_key,
        )

    def pause(self, seconds: float) -> None:
        """Wait; raise Stopped when the job is to end, MachineLost when the attempt is."""
        self.stopping.pause(seconds)
        if self.loss:
            raise MachineLost

    def pause_together(self, seconds: float) -> None:
        """Wait as `pause` does, in a step that all machines take together; raise MachineLost also
        once the next attempt has begun on the machine that leads.
        """
        self.pause(seconds)
        if self.is_behind:
            raise MachineLost

    @property
    def job(self) -> Job:
        return self.member.job

    @property
    def state(self) -> State:
        return self.states.state

    @property
    def leads(self) -> bool:
        """Whether this machine writes the job's state."""
        return self.member.leads

    @property
    def is_behind(self) -> bool:
        """Whether the job's next attempt has begun, without this machine so far."""
        return self.state.attempt > self.member.attempt

    @property
    def machine_goes(self) -> bool:
        """Whether Google takes the machine within seconds."""
        return self.stopping.machine_goes

    @property
    def counted_before(self) -> int:
        """Seconds of earlier attempts that count for the time limit. Google starts counting again
        when a devbox is started.
        """
        return 0 if self.job.kind == "devbox" else self.states.ran_before

    def take_secrets(self, values: dict[str, str]) -> None:
        """Divide secrets into those of the command and those of the installation."""
        mine, to_install = self.job.secrets, self.job.install_secrets
        self.secrets = {name: values[name] for name in mine if name in values}
        self.install_secrets = {name: values[name] for name in to_install if name in values}

    def say(self, text: str) -> None:
        self.machine.say(text)

    def read_first_state(self) -> None:
        """Read the state for the first time; raise NoJob or Damaged."""
        state = self.states.read()
        self.states.ran_before = state.ran_seconds
        if state.state == "SUBMITTED" or not state.started_at:
            self.waited_last = job.clock() - self.states.stored.written_at
        if not state.started_at:
            self.member.waited = self.waited_last
        # The machine of a group has any name, and so has a warm one.
        has_any_name = bool(state.job.group) or self.machine.warm == self.name
        is_lone_member = has_any_name and state.job.machines == 1
        self.member.leads = self.leads or is_lone_member
        if state.job.kind == "job":
            self.earlier = self.earlier_ending()
            self.has_ended = self.earlier is not None
        self.mirrors.results.own = state.job.results_dir

    def earlier_ending(self) -> Ending | None:
        """Return how the command ended if a worker has written that the job uploads its last
        results; else None.
        """
        state = self.state
        if state.state != "UPLOADING" or not state.ending:
            return None
        return Ending(state.ending, state.reason, state.exit_code)

    def claim(self) -> None:
        """Write that this machine has the job; raise Ended if another living machine has it."""
        machine, state = self.machine, self.state
        if not self.leads:
            return
        is_ours = (state.machine, state.zone) == (machine.name, machine.zone)
        is_taken = state.state != "SUBMITTED" and not is_ours
        this = replace(self.job, num_machines=state.job.machines)  # it is claimed before it is read
        if is_taken and self.member.host.is_on(this, state.machine, state.zone):
            raise Ended(f"{state.machine} in {state.zone} has job {self.name}; leaving it to it")
        if self.earlier:
            self.states.write(machine=machine.name, zone=machine.zone)
            return
        lost, again = "", {}
        if state.started_at:
            why = state.reason or "it was resumed by berg run --resume"
            if state.state != "SUBMITTED":
                why = "its machine was lost without a message"
            again = state.next_attempt(why)
            lost = EARLIER + state.lost.replace(EARLIER, "") if state.lost else ""
        self.states.write(
            state="STARTING",
            lost=lost,
            machine=machine.name,
            zone=machine.zone,
            started_at=state.started_at or job.now(),
            **again,
            restarts=state.restarts + bool(again),
            missing=0,
            missing_since="",
            ending="",
            reason="",
            exit_code=None,
            left_files=0,
            left_bytes=0,
        )

    @property
    def is_blank(self) -> bool:
        """Whether the job has written nothing on this disk yet: what it has of the results was
        restored, and not all of them may be here.
        """
        marks = [self.marker, *[self.command_mark] * (self.job.kind == "job")]
        return not all(mark.exists() for mark in marks)

    @property
    def lost_power(self) -> bool:
        """Whether the only machine of the job lost its power under the command: nothing noted which
        of its files are half written.
        """
        is_lone_job = self.job.kind == "job" and self.member.is_alone and not self.job.on
        return is_lone_job and not self.earlier and LOST_POWER.exists()

    def clear(self) -> None:
        """Remove the files of a job that has ended, for the next one, which may be the same."""
        self.over.set()
        results = RESULTS / self.job.results_dir
        if self.job.results_dir and results.is_symlink():
            results.unlink()
        elif self.job.results_dir:
            shutil.rmtree(results, ignore_errors=True)
        next_to_log = self.usage_file, self.software_file
        for file in (self.machine.log, *next_to_log, self.marker, self.command_mark):
            file.unlink(missing_ok=True)

    def check_limits(self) -> None:
        """Raise BergError if this pod came too late, or the job was restarted too often."""
        timeout, most = self.job.spec.queue_timeout, self.job.spec.max_restarts
        if timeout and self.member.waited > timeout:
            raise BergError(f"{job.TOO_LATE}; this one came after {self.member.waited:.0f} s")
        if self.job.kind == "job" and self.leads and self.state.restarts > most:
            raise BergError(
                f"its machine went away or crashed {self.state.restarts} times (--max-restarts)"
            )

    def check_region(self) -> None:
        """Wait until the first machine here has a job that waited in several regions; raise Ended
        if that does not happen.

        The machines of all regions have the same names: until then none may write what the others
        read. If another region has the job, its machines may be lost by now, so that the first one
        here takes it over, or gives up for all.
        """
        if self.leads or len(self.job.regions) < 2:
            return
        stop = self.stopping.event  # the machine that has the job deletes this group
        try:
            api.wait_for(
                lambda: self.states.read().final or self.is_taken_here() or stop.is_set(), 1, COMING
            )
        except (NoJob, Damaged) as error:
            raise Ended(error.message) from None
        state = self.state
        if state.final or not self.is_taken_here():
            owner = f"{state.machine} in {state.zone}" if state.machine else "no first machine"
            raise Ended(f"{owner} has job {self.name}; leaving it to it")

    def is_taken_here(self) -> bool:
        """Return whether a machine of this one's region has the job."""
        here = self.machine.zone.rpartition("-")[0]
        return self.state.state != "SUBMITTED" and self.state.zone.rpartition("-")[0] == here

    @property
    def is_re_created(self) -> bool:
        """Whether Google takes this machine, which does not lead, and re-creates it for the job."""
        return self.machine_goes and self.job.is_replaced and not self.leads

    def restart(self) -> Restart | None:
        """Return how the job restarts after this machine is taken; None if it does not, as when
        several machines upload their last results.
        """
        if self.job.is_replaced and self.state.ending:
            return None
        cause = self.stopping.ending
        if not self.has_ended:
            return restart_after(cause, self.job, self.sweep, self.state.restarts)
        keeps_disk = cause == MAINTAINED and self.job.is_restarted
        return TO_FINISH if keeps_disk and not self.is_saved else None

    @property
    def is_deletion_chosen(self) -> bool:
        """Whether a user chose that this devbox is deleted."""
        is_chosen = self.stopping.ending is not None and self.stopping.ending.is_chosen
        return is_chosen or self.machine.is_killed()

    def begin_next(self, why: str) -> None:
        """Count another attempt, which begins because of `why`."""
        for key, value in self.state.next_attempt(why).items():
            setattr(self.state, key, value)

    def runs_again(self, ending: Ending) -> bool:
        """Return whether a command that ended is to run once more, and count its failures."""
        exit_code = ending.exit_code
        if not exit_code or self.state.failures >= self.job.spec.restart_on_failure:
            self.has_ended = self.runner.ended_alone
            return False
        if self.stopping.ending:
            return False
        if self.runner.fails_at_once(exit_code):
            self.has_ended = True
            times = f"The command failed {MAX_FAILURES} times with exit code {exit_code}"
            self.say(f"{times} in under a minute; giving up")
            return False
        self.state.failures += 1
        self.begin_next(ending.reason)
        where = ""
        if self.member.is_alone:
            self.member.attempt = self.state.attempt
        else:
            where = "on all machines "
        self.say(
            f"The command failed with exit code {exit_code}; running it again {where}"
            f"(attempt {self.state.attempt})"
        )
        return True

    def survives_loss(self) -> bool:
        """Return whether the job continues after the loss of a machine, and count that."""
        if self.state.restarts >= self.job.spec.max_restarts:
            return False
        self.state.restarts += 1
        self.begin_next(self.loss)
        return True

    def insist(self, step: Callable[[], T], seconds: float = math.inf) -> T | None:
        """Retry a step that must not fail, until it works or has failed for `seconds`.

        Return what the step returns, or None if it was given up. Raise Ended if the step does.
        """
        pause, end = 1.0, time.monotonic() + seconds
        while True:
            try:
                return step()
            except Ended:
                raise
            except Exception as error:
                if time.monotonic() + pause > end:
                    self.say(f"Giving up: {error}")
                    return None
                self.say(f"Trying again in {pause:.0f} s: {error}")
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def stop(self, ending: Ending) -> None:
        """End the job soon: SIGTERM to its command, then SIGKILL. Only the first ending counts."""
        if not self.stopping.request(ending):
            return
        self.say(f"Stopping: {ending.reason}")
        self.mirrors.hurry.set()
        if self.machine_goes:
            self.bucket.timeout = HURRY
        start_thread(self.runner.end)

    def break_off(self, running: Runs) -> None:
        """End a command for the job's next attempt, once."""
        if running in (None, self.broken_off) or self.stopping.ending:
            return
        self.broken_off = running
        self.say("Ending the command: the job begins its next attempt on all machines")
        start_thread(end_process, running, GRACE)

    def become_reachable(self) -> None:
        """Let people and the other machines log in; a cluster fails without it."""
        try:
            logins.become_reachable(self.member)
            if not self.member.is_alone:  # from now on: it may have much data to download
                start_thread(peers.heartbeat, self.member)
        except Exception as error:
            self.say(f"This machine cannot be reached by ssh: {error}")
            if not self.member.is_alone:
                why = f"{self.machine.name} cannot be reached by the others: {error}"
                self.stop(Ending("FAILED", why))

    def is_over(self, counts_too: tuple[str, ...] = ()) -> bool:
        """Return whether the job's state is final, one of `counts_too`, or unreadable.

        For a machine that Google takes, a job that restarts elsewhere has ended, too, and so has
        any at the end of the machine's time.
        """
        if self.machine_goes:
            counts_too += ("SUBMITTED",)
            if time.monotonic() > self.stopping.deadline - LAST_STATE_SECONDS:
                return True
        try:
            state = self.states.read()
        except (NoJob, Damaged):
            return True
        return state.final or state.state in counts_too


class StateWriter:
    """Reads and writes the state of one job; any thread may call it. Changes that come sooner than
    the bucket takes them are written a little later by a timer.
    """

    def __init__(
        self,
        name: str,
        bucket: Bucket,
        machine: boot.Machine,
        stopping: Stopping,
        is_leader: Callable[[], bool],
        stop: Callable[[Ending], None],
    ):
        self.name, self.bucket, self.machine = name, bucket, machine
        self.stopping, self.is_leader, self.stop = stopping, is_leader, stop
        self.state = State()  # to write
        self.stored = states.Stored(name, State(), 0)  # as last seen in the bucket
        self.began, self.ran_before = time.monotonic(), 0
        self.lock = threading.Lock()  # of `state` and `later`
        self.writing = threading.Lock()  # one thread at a time writes the object
        self.written: State | None = None  # the last one that this machine wrote
        self.next_write = -math.inf  # time.monotonic() from which the object may be written again
        self.later: threading.Timer | None = None

    def read(self) -> State:
        """Return the state in the bucket; raise NoJob or Damaged if there is none."""
        stored = states.read(self.bucket, self.name)
        if stored is None:
            raise NoJob(
                f"there is no job {self.name!r} in gs://{self.bucket.name}; deleting the machine"
            )
        self.stored = stored
        age = max(job.clock() - stored.written_at, 0)  # seconds since another wrote it
        self.next_write = max(self.next_write, time.monotonic() + WRITE_INTERVAL - age)
        if stored.is_damaged:
            raise Damaged(f"{job.state_path(self.name)} was overwritten with what is no state")
        self.state = stored.state
        return self.state

    def write(self, soon: bool = False, **changes: Any) -> None:
        """Write changes to the state; raise Ended if the job was ended elsewhere.

        With `soon`, or shortly after another write, a timer writes them a little later. The last
        state of this machine waits until it is written.
        """
        if not self.is_leader():
            return
        with self.lock:
            for key, value in changes.items():
                setattr(self.state, key, value)
            self.note()
            wait = self.next_write - time.monotonic()
            if (soon or wait > 0) and self.state.state in job.ACTIVE[1:]:
                if not self.later:
                    seconds = max(wait, 0) + (SOON if soon else LATER)
                    self.later = threading.Timer(seconds, self.quietly, (self.flush,))
                    self.later.daemon = True
                    self.later.start()
                return
            self.cancel_timer()
        self.put()

    def flush(self) -> None:
        """Write now what a timer would write later."""
        if not self.is_leader():
            return
        with self.lock:
            if not self.later:
                return
            self.note()
            self.cancel_timer()
        self.put()

    def write_quietly(self, **changes: Any) -> None:
        """Write changes from a background thread: log errors only."""
        self.quietly(lambda: self.write(**changes))

    def quietly(self, step: Callable[[], None]) -> None:
        """Do a step; stop the job if it was ended elsewhere, and log other errors."""
        try:
            step()
        except Ended as error:
            self.stop(Ending("KILLED", str(error)))
        except Exception as error:
            self.machine.say(f"The state could not be written: {error}")

    def note(self) -> None:
        """Bring the state's times up to date."""
        self.state.ran_seconds = self.ran_before + round(time.monotonic() - self.began)
        self.state.note()

    def cancel_timer(self) -> None:
        """Cancel the timer; the caller has the lock."""
        if self.later:
            self.later.cancel()
            self.later = None

    def put(self) -> None:
        """Write the object until it has the present state, in turn with other threads unless one
        of them hangs.
        """
        in_turn = self.writing.acquire(
            timeout=STALLED_AT_THE_END if self.stopping.machine_goes else STALLED
        )
        try:
            while self.state != self.written:
                time.sleep(max(self.next_write - time.monotonic(), 0))
                state = replace(self.state)
                try:
                    self.stored = states.replaced(self.bucket, self.stored, state)
                    self.written = state
                except Changed:
                    self.stored = self.own_write()
                finally:
                    self.next_write = time.monotonic() + WRITE_INTERVAL
        finally:
            if in_turn:
                self.writing.release()

    def own_write(self) -> states.Stored:
        """Return what is in the bucket if this machine wrote it, with a request that it gave up;
        raise Ended if another machine or a laptop did.
        """
        stored = states.read(self.bucket, self.name)
        if stored and not stored.is_damaged and not stored.state.final:
            writer = (stored.state.machine, stored.state.zone)
            if writer == (self.machine.name, self.machine.zone):
                return stored
        raise Ended(f"the state of {self.name} was written elsewhere; leaving it as it is")


@dataclass
class Mirrors:
    log: Mirror
    results: Mirror
    done: threading.Event = field(default_factory=threading.Event)  # the mirrors are to end
    # The next pass over the results is not to wait.
    hurry: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    last_log_pass: threading.Thread = field(default_factory=threading.Thread)
    turn: threading.Lock = field(default_factory=threading.Lock)  # of the user of `results`
    trouble: str = ""  # why results are not in the bucket yet

    def start(self, target: Callable[..., None], *arguments: object) -> None:
        """Run a mirror in a thread until `done`."""
        self.threads.append(start_thread(target, *arguments))

    def stop(self) -> None:
        """End the mirrors, and wait for their threads."""
        self.done.set()
        self.hurry.set()
        for thread in self.threads:
            thread.join()


def mirrors_of(name: str, machine: boot.Machine, bucket: Bucket) -> Mirrors:
    """Return the mirrors of a job on this machine."""
    disk = boot.BERG / "disk"  # identifies this disk: objects name the disk that has their files
    if not disk.exists():
        disk.write_text(secrets.token_hex(8))
    writer = f"{name}/{disk.read_text()}"
    log = Mirror(machine.log.parent, bucket, job.log_prefix(name), writer)
    results = Mirror(
        RESULTS,
        bucket,
        "berg_results/",
        writer,
        records=job.folders_prefix(name),
        views=f"{job.views_prefix(name)}{disk.read_text()}/",
        machine=machine.name,  # until its rank is known
    )
    results.sender.was_cut = new_cut().has
    return Mirrors(log, results)
