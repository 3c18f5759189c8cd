"""One attempt at a job on this machine: what its phases and the threads beside them share.

The state is written by state_writer.py, the command is run by command.py, the request to end is in
stopping.py, the log and the results are in mirrors.py. Not covered: the threads beside the attempt,
which send the results (saving.py) and watch what happens outside (outside.py).
"""

import math
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from berg import BergError, computer, config, job
from berg.google import api
from berg.google.storage import Bucket
from berg.job import Job, State
from berg.machine import boot, cluster, kineto, logins, usage
from berg.machine.command import GRACE, MAX_FAILURES, Runner, Runs, end_process
from berg.machine.host import COMING, host_of
from berg.machine.mirrors import mirrors_of
from berg.machine.outcome import Ending, Restart, restart_after
from berg.machine.process import RESULTS, start_thread
from berg.machine.state_writer import Damaged, Ended, NoJob, StateWriter
from berg.machine.stopping import Stopping

# Of the seconds of a machine that Google takes, those of the command, and of the last state; the
# rest is for the last results.
PREEMPTION_GRACE = 15
LAST_STATE_SECONDS = 4
HURRY = 2, 5  # seconds to connect to the bucket, and between two pieces of its answer, from then on
EARLIER = "in earlier attempts: "  # before what those could not save, as it may be saved by now
LONGEST_PAUSE = 30  # seconds between two tries of a step that must not fail

T = TypeVar("T")


def settings_of(machine: boot.Machine) -> config.Config:
    """Return the settings that a machine was created with."""
    return config.load(
        project=machine.project, bucket=machine.bucket, endpoint=machine.endpoint or None
    )


class MachineLost(Exception):
    """A machine of the job is lost, and Google makes it anew: the next attempt begins."""


class Attempt:
    """One job on this machine."""

    def __init__(self, name: str, sweep: str = ""):
        self.name = name
        self.sweep = sweep  # whose job this is, if the machine goes on to others after it
        self.machine = boot.this_machine()
        if sweep:
            self.machine.log_for(name)
        self.bucket = Bucket(settings_of(self.machine))
        self.stopping = Stopping()
        self.member = self.first_member()
        self.states = StateWriter(
            name, self.bucket, self.machine, self.stopping, lambda: self.leads, self.stop
        )
        self.mirrors = mirrors_of(name, self.machine, self.bucket)
        self.runner = Runner(self.machine, self.stopping)
        self.secrets: dict[str, str] = {}  # that the command sees
        self.install_secrets: dict[str, str] = {}  # that the installation sees
        self.webhook = ""  # URL to notify of the job's end
        self.over = threading.Event()  # this machine has another job
        self.sampling = threading.Thread()
        self.reachable = threading.Thread()
        self.waited_last = 0.0  # seconds since the job was submitted, or its last machine went
        self.begins_here = True  # this disk has no files of the job's yet
        self.profiler_port = computer.free_port(host="")  # of the server that the command may start
        self.kineto: kineto.Desk | None = None
        self.loss = ""  # of a machine of the job, in words, for which the attempt is over
        self.is_installed = False  # what its repo needs
        self.is_prepared = False  # what the job needs is on this machine
        self.broken_off: Runs = None  # the last command that ended for the next attempt

    def first_member(self) -> cluster.Member:
        """Return what this machine is among those of the job, before the job has been read."""
        is_first = self.machine.name.removeprefix(self.name).strip("-0") == ""
        # A job that says nothing but what becomes of its machine.
        unread = Job(self.name, "", "", "", "", "", "")
        if self.machine.box:
            unread = replace(unread, kind="devbox", keeps_disk=self.machine.box == boot.STOPS)
        node = cluster.Node(self.machine.name, 0)
        return cluster.Member(
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
        """Wait; raises Stopped when the job is to end, MachineLost when the attempt is over."""
        self.stopping.pause(seconds)
        if self.loss:
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
        """Whether the job's next attempt begins, which this machine takes no part in yet."""
        return self.state.attempt > self.member.attempt

    @property
    def machine_goes(self) -> bool:
        """Whether Google takes the machine within seconds."""
        return self.stopping.machine_goes

    @property
    def usage_file(self) -> Path:
        """Beside the log, and mirrored with it."""
        return self.machine.log.with_suffix(usage.SUFFIX)

    @property
    def software_file(self) -> Path:
        """Beside the log, and mirrored with it."""
        return self.machine.log.with_suffix(job.SOFTWARE)

    @property
    def marker(self) -> Path:
        """A file that says that the job began on this disk, with its results brought back."""
        return boot.BERG / f"begun-{self.name}"

    @property
    def counted_before(self) -> int:
        """Seconds of earlier attempts that count for the time limit: none of a devbox that was
        stopped, for which Google, too, counts anew when it is started.
        """
        if self.job.kind == "devbox":
            return 0
        return self.states.ran_before

    def take_job(self, this: Job) -> None:
        """Note what the job is, now that it has been read."""
        self.member.job = this
        if this.spec.get("queue"):  # it waits anew each time that it is evicted
            self.member.waited = self.waited_last
        self.member.host = host_of(self.machine, self.bucket.config, this)

    def take_secrets(self, values: dict[str, str]) -> None:
        """Divide secrets into those of the command and those of the installation."""
        mine, to_install = self.job.secrets, self.job.install_secrets
        self.secrets = {name: values[name] for name in mine if name in values}
        self.install_secrets = {name: values[name] for name in to_install if name in values}

    def say(self, text: str) -> None:
        self.machine.say(text)

    def read_first_state(self) -> None:
        """Read the state for the first time, and note what follows from it."""
        state = self.states.read_first()
        if state.state == "SUBMITTED" or not state.started_at:
            self.waited_last = api.now(self.bucket.config) - self.states.stored.written_at
        if not state.started_at:
            self.member.waited = self.waited_last
        # The machine of a group has any name.
        is_lone_member = bool(state.job.group) and state.job.machines == 1
        self.member.leads = self.leads or is_lone_member
        self.mirrors.results.own = state.job.results_dir

    def claim(self) -> None:
        """Write that this machine has the job; raises Ended if another one has it and lives."""
        machine, state = self.machine, self.state
        self.begins_here = not self.marker.exists()
        if not self.leads:
            return
        is_ours = (state.machine, state.zone) == (machine.name, machine.zone)
        is_taken = state.state != "SUBMITTED" and not is_ours
        this = replace(self.job, num_machines=state.job.machines)  # it is claimed before it is read
        if is_taken and self.member.host.is_on(this, state.machine, state.zone):
            raise Ended(f"{state.machine} in {state.zone} has job {self.name}; leaving it to it")
        begins_anew = bool(state.started_at)
        lost, again = "", {}
        if begins_anew:
            again = state.next_attempt(why_anew(state))
        if begins_anew and state.lost:
            lost = EARLIER + state.lost.replace(EARLIER, "")
        self.states.write(
            state="STARTING",
            lost=lost,
            machine=machine.name,
            zone=machine.zone,
            started_at=state.started_at or job.now(),
            **again,
            restarts=state.restarts + begins_anew,
            awaited=0,
            awaited_since="",
            ending="",
            reason="",
            exit_code=None,
            left_files=0,
            left_bytes=0,
        )

    def clear(self) -> None:
        """Forget a job that is over, for the next one on this machine, which may be the same."""
        self.over.set()
        if self.job.results_dir:
            delete(RESULTS / self.job.results_dir)
        beside_the_log = self.usage_file, self.software_file
        for file in (self.machine.log, *beside_the_log, self.mirrors.restored, self.marker):
            file.unlink(missing_ok=True)

    def check_restarts(self) -> None:
        """Raise BergError if the job began anew too often."""
        if self.job.kind == "job" and self.leads and self.state.restarts > self.job.max_restarts:
            raise BergError(
                f"its machine went away or crashed {self.state.restarts} times (--max-restarts)"
            )

    def check_region(self) -> None:
        """Wait until the first machine here has a job that waited in several regions; raise Ended
        where it does not come to that, so that these machines came in vain.

        All have the same names there: until then none may write what the others read. That
        another region has the job decides nothing here: its machines may be lost by now, so that
        the first one here takes it over, or else gives up for all.
        """
        if self.leads or len(self.job.regions) < 2:
            return
        end = time.monotonic() + COMING
        try:
            while not (self.states.read().final or self.is_taken_here()):
                # such as by the first machine here, or who has the job, and deletes this group
                if time.monotonic() > end or self.stopping.event.wait(1):
                    break
        except (NoJob, Damaged) as error:
            raise Ended(error.message) from None
        state = self.state
        if state.final or not self.is_taken_here():
            who = f"{state.machine} in {state.zone}" if state.machine else "no first machine"
            raise Ended(f"{who} has job {self.name}; leaving it to it")

    def is_taken_here(self) -> bool:
        """Whether a machine of this one's region has the job."""
        here = self.machine.zone.rpartition("-")[0]
        return self.state.state != "SUBMITTED" and self.state.zone.rpartition("-")[0] == here

    def check_in_time(self) -> None:
        """Raise BergError if this pod comes after the limit for the first of the job's to come."""
        limit = self.job.wait_seconds
        if limit and self.member.waited > limit:
            raise BergError(f"{job.TOO_LATE}; this one came after {self.member.waited:.0f} s")

    @property
    def comes_back(self) -> bool:
        """Whether Google takes this machine, which does not lead, and makes it anew for the job."""
        return self.machine_goes and self.job.is_mended and not self.leads

    def restart(self) -> Restart | None:
        """Return how the job goes on after this machine was taken away.

        None if it does not, as when several machines upload their last results.
        """
        if self.job.is_mended and self.state.ending:
            return None
        return restart_after(self.stopping.ending, self.job, self.sweep, self.state.restarts)

    @property
    def is_deletion_chosen(self) -> bool:
        """Whether a person chose that this devbox is deleted."""
        is_chosen = self.stopping.ending is not None and self.stopping.ending.is_chosen
        return is_chosen or self.machine.is_killed()

    def begin_next(self, why: str) -> None:
        """Count another attempt, which begins because of `why`."""
        for key, value in self.state.next_attempt(why).items():
            setattr(self.state, key, value)

    def runs_again(self, ending: Ending) -> bool:
        """Whether a command that ended is to run once more; counts its failures."""
        exit_code = ending.exit_code
        if not exit_code or self.stopping.ending:
            return False
        if self.state.failures >= self.job.restart_on_failure:
            return False
        self.runner.note_failure(exit_code)
        if self.runner.is_hopeless():
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

    def goes_on(self) -> bool:
        """Whether the job goes on after the loss of a machine; counts it."""
        if self.state.restarts >= self.job.max_restarts:
            return False
        self.state.restarts += 1
        self.begin_next(self.loss)
        return True

    def insist(self, step: Callable[[], T], seconds: float = math.inf) -> T | None:
        """Do a step that must not fail again and again, until it is done or fails for `seconds`.

        Returns what the step returns, or None if it was given up. What is Ended is left undone.
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
        """End the job soon: SIGTERM to what runs, then SIGKILL. The first ending stays."""
        if not self.stopping.request(ending):
            return
        self.say(f"Stopping: {ending.reason}")
        self.mirrors.hurry.set()
        grace = GRACE
        if self.machine_goes:
            self.bucket.timeout = HURRY
            grace = PREEMPTION_GRACE
        start_thread(self.runner.end, grace)

    def break_off(self, running: Runs) -> None:
        """End a command whose attempt is over, once, while the job goes on."""
        if running in (None, self.broken_off) or self.stopping.ending:
            return
        self.broken_off = running
        self.say("Ending the command: the job begins its next attempt on all machines")
        start_thread(end_process, running, GRACE)

    def become_reachable(self) -> None:
        """Let people and the other machines log in; a cluster fails without it."""
        try:
            logins.become_reachable(self.member)
            if not self.member.is_alone:  # from now on, for it may have much data to bring
                start_thread(cluster.heartbeat, self.member)
        except Exception as error:
            self.say(f"This machine cannot be reached by ssh: {error}")
            if not self.member.is_alone:
                why = f"{self.machine.name} cannot be reached by the others: {error}"
                self.stop(Ending("FAILED", why))

    def is_over(self, counts_too: tuple[str, ...] = ()) -> bool:
        """Whether the job is over: its state says so, or is one of `counts_too`, or is unreadable.

        For a machine that Google takes, a job that begins anew elsewhere is over, too, and any is
        at the end of the machine's time.
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


def why_anew(state: State) -> str:
    """Return why a job begins anew that another machine began, or an earlier boot of this one."""
    if state.state != "SUBMITTED":
        return "its machine was lost without a last word"
    return state.reason or "it went on by berg run --resume"


def delete(folder: Path) -> None:
    """Delete a folder, or a link to one."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
