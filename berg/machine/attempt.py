"""One attempt at a job on this machine: its state, its log, its mirrors, and the process that runs.

Not covered: the threads beside it, which send the log and the results (saving.py) and wait for word
from outside (outside.py).
"""

import math
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from berg import BergError, config, job
from berg.google import instances
from berg.google.mirror import Mirror
from berg.google.storage import Bucket, Changed
from berg.job import Job, State
from berg.machine import boot, cluster, kineto, logins, pods, profile, usage
from berg.machine.process import RESULTS, end_group

# process group of what runs, for a worker that comes after this one
COMMAND_FILE = boot.BERG / "command"
GRACE = 30  # seconds that a command has between SIGTERM and SIGKILL
NOTICE = 28  # of the 30 seconds that Google gives
PREEMPTION_GRACE = 15  # of them for the command; the rest is for the last results
LAST_WORD = 4  # and these for the last state
HURRY = 2, 5  # seconds to connect to the bucket, and between two pieces of its answer, from then on
PREEMPTED = ("FAILED", "Google preempted the machine")
# A machine that goes down tells all its processes at once; whose doing it is, its metadata may
# tell.
SHUT_DOWN = ("KILLED", "the machine was shut down from outside")
MAINTAINED = ("FAILED", "Google stopped the machine to maintain its host")
EARLIER = "in earlier attempts: "  # before what those could not save, as it may be saved by now
# failures with the same exit code, within so many seconds, after which a command runs no more
HOPELESS = (
    3,
    60,
)
WRITE_INTERVAL = (
    1.1  # seconds between two writes of the state: Cloud Storage takes one a second of an object
)
STALLED = 180  # seconds after which a write of the state is not waited for by the next one


class Stopped(Exception):
    """The job ends before its command does."""


class NoJob(BergError):
    """The job was taken back: its laptop gave up while Google was still making the machine."""


class Damaged(BergError):
    """Nobody can read the job's state any more."""


class Ended(Exception):
    """Somebody else ended the job; its state is not ours to write."""


def settings_of(machine: boot.Machine) -> config.Config:
    """The settings that a machine was created with."""
    return config.load(
        project=machine.project, bucket=machine.bucket, endpoint=machine.endpoint or None
    )


class Attempt:
    """One job on this machine: its state, its log, its mirrors, and the process that runs right
    now.
    """

    def __init__(self, name: str, sweep: str = ""):
        self.name = name
        self.sweep = sweep  # whose job this is, if the machine goes on to others after it
        self.machine = boot.Machine()
        if sweep:
            self.machine.log_for(name)
        self.bucket = Bucket(settings_of(self.machine))
        writer = f"{name}/{disk()}"
        self.log = Mirror(self.machine.log.parent, self.bucket, job.log_prefix(name), writer)
        self.restored = boot.BERG / f"restored-{name}"
        folders = job.folders_prefix(name)
        self.results = Mirror(
            RESULTS, self.bucket, "berg_results/", writer, "", folders, self.restored
        )
        self.process: subprocess.Popen | None = None
        self.secrets: dict[str, str] = {}
        self.webhook = ""  # URL to tell of the job's end
        node = cluster.Node(self.machine.name, 0)
        leads = bool(sweep) or self.machine.name.removeprefix(name).strip("-0") == ""
        # Until the job has been read, one that says nothing but that its machine is to be deleted.
        unread = Job(name, "", "", "", "", "", "")
        self.member = cluster.Member(
            self.machine, self.bucket, unread, leads, self.pause, node, [node]
        )
        self.outcome: tuple[str, str] | None = (
            None  # final state and reason, once the job is to stop
        )
        self.exit_code: int | None = None  # of the command for whose failure it is to stop
        self.lock = threading.Lock()
        self.writing, self.written = threading.Lock(), ""  # the state, by one thread at a time
        self.next_write = -math.inf  # when the state may be written again
        self.later: threading.Timer | None = None  # writes it then
        self.stopped = threading.Event()  # the outcome is known
        self.done = threading.Event()  # the mirrors are to end
        self.over = threading.Event()  # this machine has another job
        self.hurry = threading.Event()  # the next pass over the results is not to wait
        self.log_pass = threading.Thread()  # the last one over the log
        self.trouble = ""  # why results are not in the bucket yet
        self.mirrors: list[threading.Thread] = []
        self.sampling = threading.Thread()
        self.reachable = threading.Thread()
        self.begins_here = True  # this disk has no files of the job's yet
        self.gone_at = math.inf  # time.monotonic() at which Google takes the machine
        self.failures: list[
            tuple[float, int]
        ] = []  # when the command began and how it ended, where it failed
        self.began = time.monotonic()
        self.profiler_port = profile.free_port()  # of the server that the command may start
        self.kineto: kineto.Desk | None = None
        self.state, self.generation, self.ran_before = State(), 0, 0

    @property
    def job(self) -> Job:
        return self.member.job

    @property
    def leads(self) -> bool:
        """Whether this machine writes the job's state."""
        return self.member.leads

    def say(self, text: str) -> None:
        self.machine.say(text)

    def read_state(self) -> State:
        """The state as it is in the bucket; raises NoJob or Damaged if there is none that can be
        read.
        """
        stored = self.bucket.get(job.state_path(self.name))
        if stored is None:
            raise NoJob(
                f"there is no job {self.name!r} in gs://{self.bucket.name}; deleting the machine"
            )
        self.generation = stored.generation
        try:
            self.state = job.state_from_json((stored.metadata or {})["state"])
        except (KeyError, ValueError):
            raise Damaged(f"{stored.name} was overwritten with what is no state") from None
        return self.state

    def learn(self) -> State:
        """Read the state for the first time, and what follows from it."""
        state = self.read_state()
        # The machine of a group has any name.
        self.member.leads = self.member.leads or bool(state.job.group and state.job.machines == 1)
        self.ran_before = state.ran_seconds
        self.results.own = state.job.results_dir
        return state

    def write_state(self, soon: bool = False, **changes) -> None:
        """Record how the job goes; raises Ended if somebody else wrote that it is over.

        Cloud Storage takes one write of an object a second. What comes sooner, and what is to be
        written `soon`, is written beside what goes on, with what came meanwhile; this machine's
        last word waits for it.
        """
        if not self.leads:
            return
        with self.lock:
            if not changes and not self.later:
                return  # written meanwhile
            self.state.ran_seconds = self.ran_before + round(time.monotonic() - self.began)
            for key, value in changes.items():
                setattr(self.state, key, value)
            self.state.note()
            early = self.next_write - time.monotonic()
            if (soon or early > 0) and self.state.state in job.ACTIVE[1:]:
                if not self.later:
                    self.later = threading.Timer(max(early, 0) + 0.05, self.write_state_by_the_way)
                    self.later.daemon = True
                    self.later.start()
                return
            if self.later:
                self.later.cancel()
                self.later = None
        in_turn = self.writing.acquire(timeout=LAST_WORD / 2 if self.machine_goes else STALLED)
        try:
            time.sleep(max(self.next_write - time.monotonic(), 0))
            self.put_state()
            self.next_write = time.monotonic() + WRITE_INTERVAL
        finally:
            if in_turn:
                self.writing.release()

    def put_state(self) -> None:
        path = job.state_path(self.name)
        while (text := self.state.to_json()) != self.written:
            try:
                self.generation = self.bucket.write(
                    path, text, self.generation, metadata={"state": text}
                )
                self.written = text
            except Changed:
                stored = self.bucket.get(path)
                if not (stored and self.wrote(stored)):
                    why = (
                        f"the state of {self.name} was written by somebody else; leaving it to them"
                    )
                    raise Ended(why) from None
                self.generation = stored.generation

    def wrote(self, stored) -> bool:
        """Whether a state is this machine's: a write of it that nobody waited for any more arrived
        after all.
        """
        try:
            state = job.state_from_json((stored.metadata or {})["state"])
        except (KeyError, ValueError):
            return False
        return not state.final and (state.machine, state.zone) == (
            self.machine.name,
            self.machine.zone,
        )

    def write_state_by_the_way(self, **changes) -> None:
        """The same outside of the job's course: trouble waits for the next time."""
        try:
            self.write_state(**changes)
        except Ended as error:
            self.stop("KILLED", str(error))
        except Exception as error:
            self.say(f"The state could not be written: {error}")

    def claim(self) -> None:
        """Say that this machine has the job; raises Ended if another one has it and lives."""
        machine, state = self.machine, self.state
        self.begins_here = not self.marker.exists()
        if not self.leads:
            return
        again = bool(state.started_at)
        ours = (state.machine, state.zone) == (machine.name, machine.zone)
        if state.state != "SUBMITTED" and not ours and self.lives(state.machine, state.zone):
            raise Ended(f"{state.machine} in {state.zone} has job {self.name}; leaving it to it")
        earlier = EARLIER + state.lost.replace(EARLIER, "") if again and state.lost else ""
        self.write_state(
            state="STARTING",
            lost=earlier,
            machine=machine.name,
            zone=machine.zone,
            started_at=state.started_at or job.now(),
            attempt=state.attempt + again,
            restarts=state.restarts + again,
            ending="",
            reason="",
            exit_code=None,
            left_files=0,
            left_bytes=0,
        )

    def clear(self) -> None:
        """Forget a job that is over, for the next one on this machine, which may be the same one."""
        self.over.set()
        if self.job.results_dir:
            results = RESULTS / self.job.results_dir
            results.unlink() if results.is_symlink() else shutil.rmtree(results, ignore_errors=True)
        for file in (self.machine.log, self.usage_file, self.restored, self.marker):
            file.unlink(missing_ok=True)

    def lives(self, machine: str, zone: str) -> bool:
        if boot.POD:
            return machine in pods.living(self.name, self.job.num_machines, others=True)
        listed = instances.find(self.bucket.config, names=[machine], zone=zone)
        return any(each.status in cluster.ALIVE for each in listed)

    def check_restarts(self) -> None:
        if self.job.kind == "job" and self.leads and self.state.restarts > self.job.max_restarts:
            raise BergError(
                f"its machine went away or crashed {self.state.restarts} times (--max-restarts)"
            )

    @property
    def usage_file(self) -> Path:
        """Beside the log, and mirrored with it."""
        return self.machine.log.with_suffix(usage.SUFFIX)

    @property
    def marker(self) -> Path:
        """A file that says that the job began on this disk, with its results brought back."""
        return boot.BERG / f"begun-{self.name}"

    def begins_anew(self) -> bool:
        """Whether another machine goes on with the job, after this one was taken away."""
        if self.outcome == MAINTAINED and self.job.is_restarted:
            return True
        others = self.sweep or (
            self.job.group and self.job.num_machines == 1 and self.job.kind == "job"
        )
        return self.machine_goes and bool(others) and self.state.restarts < self.job.max_restarts

    @property
    def machine_goes(self) -> bool:
        return self.outcome in (PREEMPTED, SHUT_DOWN, MAINTAINED)

    def runs_again(self, exit_code: int) -> bool:
        """Whether a command that ended is to run once more; counts its failures."""
        if not exit_code or self.outcome or self.state.failures >= self.job.restart_on_failure:
            return False
        self.failures.append((self.command_began, exit_code))
        count, seconds = HOPELESS
        last = self.failures[-count:]
        if (
            len(last) == count
            and len({code for _, code in last}) == 1
            and time.monotonic() - last[0][0] < seconds
        ):
            self.say(
                f"The command failed {count} times with exit code {exit_code} in under a minute; giving up"
            )
            return False
        self.state.failures += 1
        self.state.attempt += 1
        self.say(
            f"The command failed with exit code {exit_code}; running it again (attempt {self.state.attempt})"
        )
        return True

    def insist(self, step: Callable[[], object], seconds: float = math.inf) -> None:
        """Do a step that must not fail: again and again, until it is done, or fails for so many
        seconds.

        Only a machine's deletion is tried for ever. What is Ended is left undone.
        """
        pause, end = 1.0, time.monotonic() + seconds
        while True:
            try:
                step()
                return None
            except Ended:
                raise
            except Exception as error:
                if time.monotonic() + pause > end:
                    return self.say(f"Giving up: {error}")
                self.say(f"Trying again in {pause:.0f} s: {error}")
                time.sleep(pause)
                pause = min(pause * 2, 30)

    def start_thread(self, target, *arguments) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def stop(self, state: str, reason: str, exit_code: int | None = None) -> None:
        """End the job soon: SIGTERM to what runs, SIGKILL after the grace; the first reason stays."""
        if self.outcome is None:
            self.outcome, self.exit_code = (state, reason), exit_code
            self.say(f"Stopping: {reason}")
            self.stopped.set()
            self.hurry.set()
            if self.machine_goes:
                self.gone_at = time.monotonic() + NOTICE
                self.bucket.timeout = HURRY
            self.start_thread(self.end_process, PREEMPTION_GRACE if self.machine_goes else GRACE)

    def pause(self, seconds: float | None = None) -> None:
        """Wait, for ever without `seconds`; raises Stopped when the job is to end."""
        if self.stopped.wait(seconds):
            raise Stopped

    def end_process(self, grace: float = GRACE) -> None:
        process = self.process
        if process and process.poll() is None:
            end_group(process.pid, grace)

    def execute(self, command: list[str], **options) -> int:
        """Run a command in a process group of its own, its output in the log; returns its exit
        code.
        """
        if self.outcome:
            raise Stopped
        self.command_began = time.monotonic()
        with self.machine.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **options,
            )
        COMMAND_FILE.write_text(str(self.process.pid))
        if self.outcome:
            self.end_process()
        code = self.process.wait()
        end_group(self.process.pid, 5)  # what it left in the background would go on writing results
        COMMAND_FILE.unlink(missing_ok=True)
        return code

    def become_reachable(self) -> None:
        try:
            logins.become_reachable(self.member)
        except Exception as error:
            self.say(f"This machine cannot be reached by ssh: {error}")
            if not self.member.is_alone:
                self.stop("FAILED", f"{self.machine.name} cannot be reached by the others: {error}")

    def is_over(self, counts_too: tuple[str, ...] = ()) -> bool:
        """Whether the job's state says that it is over, or what counts as that, or nothing that can
        be read.

        For a machine that goes, a job that begins anew elsewhere is over, too, and any at the end
        of its time.
        """
        if self.machine_goes:
            counts_too += ("SUBMITTED",)
            if time.monotonic() > self.gone_at - LAST_WORD:
                return True
        try:
            return self.read_state().final or self.state.state in counts_too
        except (NoJob, Damaged):
            return True


def disk() -> str:
    """What tells this machine's disk from others: objects say on which one their files lie."""
    file = boot.BERG / "disk"
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    return file.read_text()
